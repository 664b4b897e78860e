/* slurm.c: see slurm.h. */
#include "platform/health/slurm.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"

#define OUTPUT_BYTES 8192
#define WORD_BYTES   600

extern char **environ;

/* Run scontrol, found in PATH; its output's beginning as text. words end with NULL. */
static lt_err run(char *const *words, char out[OUTPUT_BYTES]) {
    posix_spawn_file_actions_t actions;
    int ends[2], failed, status = 0;
    size_t used = 0;
    ssize_t n;
    pid_t child;

    if (pipe(ends) != 0) {
        LT_FAIL(LT_ERR_IO, "pipe: %s", strerror(errno));
    }
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    (void)posix_spawn_file_actions_addclose(&actions, ends[0]);
    failed = posix_spawnp(&child, words[0], &actions, NULL, words, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    while (failed == 0 && used < OUTPUT_BYTES - 1 &&
           (n = read(ends[0], out + used, OUTPUT_BYTES - 1 - used)) > 0) {
        used += (size_t)n;
    }
    out[used] = '\0';
    close(ends[0]);
    if (failed != 0) {
        LT_FAIL(LT_ERR_NOT_FOUND, "scontrol: %s", strerror(failed));
    }
    (void)waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        LT_FAIL(LT_ERR_REMOTE, "scontrol %s %s: exit status %d", words[1], words[2],
                WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    }
    return LT_OK;
}

typedef struct {
    bool out;         /* Draining, drained or down. */
    char reason[256]; /* "": none. */
} node_state;

/* What follows `key` in the output of scontrol show node, up to one of `ends`. */
static void field(const char *text, const char *key, const char *ends, char *out, size_t room) {
    const char *at = strstr(text, key);
    out[0] = '\0';
    if (at != NULL) {
        at += strlen(key);
        snprintf(out, room, "%.*s", (int)strcspn(at, ends), at);
    }
}

static lt_err read_state(const char *node, node_state *s) {
    char text[OUTPUT_BYTES], state[64], name[WORD_BYTES];
    char *const words[] = {"scontrol", "show", "node", name, NULL};

    snprintf(name, sizeof name, "%s", node);
    LT_TRY(run(words, text));
    field(text, "State=", " \n", state, sizeof state);
    field(text, "Reason=", "\n", s->reason, sizeof s->reason);
    s->out = strstr(state, "DOWN") != NULL || strstr(state, "DRAIN") != NULL;
    return LT_OK;
}

static lt_err update(const char *node, const char *state, const char *reason) {
    char text[OUTPUT_BYTES], name[WORD_BYTES], to[64], why[WORD_BYTES];
    char *const words[] = {"scontrol", "update", name, to, reason != NULL ? why : NULL, NULL};

    snprintf(name, sizeof name, "NodeName=%s", node);
    snprintf(to, sizeof to, "State=%s", state);
    snprintf(why, sizeof why, "Reason=%s", reason != NULL ? reason : "");
    return run(words, text);
}

/* DOWN ends the jobs of the node, which Slurm queues again; but it holds only until slurmd registers
 * again, at once with ReturnToService=2. DRAIN stays, so it comes first. */
static lt_err take_out(const char *node, bool evict, const char *reason) {
    LT_TRY(update(node, "DRAIN", reason));
    return evict ? update(node, "DOWN", reason) : LT_OK;
}

lt_err lt_slurm_tell(const char *node, lt_health_result result, const char *why, char told[256]) {
    static const char evicted[] = LT_SLURM_REASON "evict";
    const bool unfit = result >= LT_HEALTH_DRAIN, evict = result == LT_HEALTH_EVICT;
    node_state s;
    char reason[256];

    told[0] = '\0';
    LT_TRY(read_state(node, &s));
    const bool ours = strncmp(s.reason, LT_SLURM_REASON, strlen(LT_SLURM_REASON)) == 0;
    const bool was_evicted = strncmp(s.reason, evicted, strlen(evicted)) == 0;
    if (!unfit && s.out && ours) {
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
