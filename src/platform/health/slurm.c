/* slurm.c: see slurm.h. */
#include "platform/health/slurm.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "platform/command.h"

/* scontrol gives up by itself after MessageTimeout, which is 10 s. */
#define DEADLINE_S 30.0
#define WORD_BYTES 600

typedef struct {
    bool out;         /* Draining, drained or down. */
    char reason[256]; /* "": none. */
} node_state;

/* The text after `key` in the output of scontrol show node, up to one of `ends`. */
static void field(const char *text, const char *key, const char *ends, char *out, size_t room) {
    const char *at = strstr(text, key);
    out[0] = '\0';
    if (at != NULL) {
        at += strlen(key);
        snprintf(out, room, "%.*s", (int)strcspn(at, ends), at);
    }
}

static lt_err read_state(const char *node, node_state *s) {
    const char *const words[] = {"scontrol", "show", "node", node, NULL};
    char *text = NULL, state[64];

    LT_TRY(lt_command_run(&text, words, DEADLINE_S));
    field(text, "State=", " \n", state, sizeof state);
    field(text, "Reason=", "\n", s->reason, sizeof s->reason);
    s->out = strstr(state, "DOWN") != NULL || strstr(state, "DRAIN") != NULL;
    free(text);
    return LT_OK;
}

static lt_err update(const char *node, const char *state, const char *reason) {
    char name[WORD_BYTES], to[64], why[WORD_BYTES], *text = NULL;
    const char *const words[] = {"scontrol", "update", name, to, reason != NULL ? why : NULL, NULL};

    snprintf(name, sizeof name, "NodeName=%s", node);
    snprintf(to, sizeof to, "State=%s", state);
    snprintf(why, sizeof why, "Reason=%s", reason != NULL ? reason : "");
    LT_TRY(lt_command_run(&text, words, DEADLINE_S));
    free(text);
    return LT_OK;
}

/* DOWN ends the jobs of the node, which Slurm queues again; but it lasts only until slurmd
 * registers again, which happens immediately with ReturnToService=2. DRAIN is permanent, so it is
 * set first. */
static lt_err take_out(const char *node, bool evict, const char *reason) {
    LT_TRY(update(node, "DRAIN", reason));
    return evict ? update(node, "DOWN", reason) : LT_OK;
}

/* The name of the check for which the node was taken out: "lateen: drain: CHECK OBJECT = 1, ...".
 * "": the reason has none. */
static void check_of(const char *reason, char out[64]) {
    const char *at = strchr(reason + strlen(LT_SLURM_REASON), ':');
    out[0] = '\0';
    if (at != NULL) {
        field(at, ": ", " ,", out, 64);
    }
}

/* Whether the check was made. Of the messages of the kernel only those that came are findings;
 * that its log was read shows in cpu.machine_checks. */
static bool is_made(const char *check, const lt_health_finding *all, int n) {
    const bool from_log = strncmp(check, "gpu.xid_", 8) == 0 || strcmp(check, "disk.errors") == 0;
    const char *sign = from_log ? "cpu.machine_checks" : check;
    for (int i = 0; i < n; i++) {
        if (strcmp(all[i].check, sign) == 0) {
            return true;
        }
    }
    return check[0] == '\0';
}

lt_err lt_slurm_tell(const char *node, lt_health_result result, const char *why,
                     const lt_health_finding *all, int n, char told[256]) {
    static const char evicted[] = LT_SLURM_REASON "evict";
    const bool unfit = result >= LT_HEALTH_DRAIN, evict = result == LT_HEALTH_EVICT;
    node_state s;
    char reason[256], check[64] = "";

    told[0] = '\0';
    LT_TRY(read_state(node, &s));
    const bool ours = strncmp(s.reason, LT_SLURM_REASON, strlen(LT_SLURM_REASON)) == 0;
    const bool was_evicted = strncmp(s.reason, evicted, strlen(evicted)) == 0;
    if (ours) {
        check_of(s.reason, check);
    }
    if (!unfit && s.out && ours && !is_made(check, all, n)) {
        snprintf(told, 256,
                 "node %s stays out of service: it was taken out because of %s, which was not "
                 "checked now",
                 node, check);
    } else if (!unfit && s.out && ours) {
        LT_TRY(update(node, "RESUME", NULL));
        snprintf(told, 256, "resumed node %s", node);
    } else if (unfit && s.out && !ours && s.reason[0] != '\0') {
        snprintf(told, 256, "node %s is out of service already: %.150s", node, s.reason);
    } else if (unfit && (!s.out || (evict && !was_evicted))) {
        snprintf(reason, sizeof reason, "%s%.240s", LT_SLURM_REASON, why);
        LT_TRY(take_out(node, evict, reason));
        snprintf(told, 256, "%s node %s: %.150s", evict ? "evicted" : "drained", node, reason);
    }
    return LT_OK;
}
