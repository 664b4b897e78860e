/* health.c: one check: reads facts, judges them by the table and the history, and writes the
 * history. See lateen/health.h. */
#include "lateen/health.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "platform/health/expose.h"
#include "platform/health/facts.h"
#include "platform/health/history.h"
#include "platform/health/slurm.h"

#define LOG_WINDOW_S 86400.0
#define MOUNT_S      5.0
#define BURN_S       120.0
#define MEMORY_SHARE 0.5

struct lt_health {
    int tier;
    char mounts[LT_PATH_BYTES], history_path[LT_PATH_BYTES], node[256];
    lt_facts_plan plan;
    lt_work_plan work;
    lt_machine_source source;
    lt_check_levels levels;
    lt_facts facts;
    lt_health_finding *findings;
    int n_findings;
    lt_health_result result;
    /* How long the last check took; when it began, in seconds since 1970. */
    double seconds, time;
};

/* ---- Opening ---- */

static void take_text(char *out, size_t room, const char *text) {
    snprintf(out, room, "%s", text != NULL ? text : "");
}

static void name_node(char *out, size_t room, const char *given) {
    const char *slurm = getenv("SLURMD_NODENAME");
    take_text(out, room, given);
    if (out[0] == '\0' && slurm != NULL) {
        take_text(out, room, slurm);
    }
    if (out[0] == '\0' && gethostname(out, room - 1) != 0) {
        take_text(out, room, "localhost");
    }
}

static double or_default(double given, double fallback) {
    return given > 0.0 ? given : fallback;
}

/* Each element of "PATH,..." must begin with "/". An empty list means no mount points. */
static lt_err check_mounts(const char *mounts) {
    for (const char *at = mounts; mounts[0] != '\0'; at++) {
        const size_t n = strcspn(at, ",");
        if (at[0] != '/') {
            LT_FAIL(LT_ERR_ARG, "mount points \"%s\": element \"%.*s\" is not an absolute path",
                    mounts, (int)n, at);
        }
        at += n;
        if (at[0] == '\0') {
            break;
        }
    }
    if (strlen(mounts) >= LT_PATH_BYTES) {
        LT_FAIL(LT_ERR_LIMIT, "a list of mount points of %zu bytes; at most %d are read",
                strlen(mounts), LT_PATH_BYTES - 1);
    }
    return LT_OK;
}

lt_err lt_health_open(lt_health **out, const lt_health_options *o) {
    lt_err err = LT_OK;
    lt_health *h = calloc(1, sizeof *h);
    const char *machine = o->machine != NULL ? o->machine : "";

    if (h == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "health check");
    }
    h->tier = o->tier > 0 ? o->tier : 1;
    LT_ASSERT(h->tier <= 3);
    if (h->tier > 1 && machine[0] != '\0') {
        LT_FAIL_DONE(LT_ERR_ARG,
                     "tier %d works on a machine; %s is a recorded one, which has tier "
                     "1 only",
                     h->tier, machine);
    }
    LT_TRY_DONE(check_mounts(o->mounts != NULL ? o->mounts : ""));
    take_text(h->mounts, sizeof h->mounts, o->mounts);
    take_text(h->history_path, sizeof h->history_path, o->history);
    name_node(h->node, sizeof h->node, o->node);
    h->plan = (lt_facts_plan){.source = &h->source,
                              .mounts = h->mounts,
                              .log_window_s = or_default(o->log_window_s, LOG_WINDOW_S),
                              .mount_s = or_default(o->mount_s, MOUNT_S)};
    h->work = (lt_work_plan){.burn_s = h->tier == 3 ? or_default(o->burn_s, BURN_S) : 0.0,
                             .memory_share = or_default(o->memory_share, MEMORY_SHARE)};
    LT_TRY_DONE(lt_check_levels_load(&h->levels, o->levels != NULL ? o->levels : ""));
    LT_TRY_DONE(lt_machine_open(&h->source, machine));
    *out = h;
    h = NULL;
done:
    lt_health_close(h);
    return err;
}

void lt_health_close(lt_health *h) {
    if (h == NULL) {
        return;
    }
    lt_machine_close(&h->source);
    lt_facts_clear(&h->facts);
    free(h->findings);
    free(h);
}

/* ---- A check ---- */

static lt_err read_facts(lt_health *h, const lt_history *history) {
    lt_facts *f = &h->facts;

    lt_facts_clear(f);
    if (history->n_unread > 0) {
        lt_facts_skip(
            f, "history", "%lld lines cannot be read and are dropped, the first is line %lld: %s",
            (long long)history->n_unread, (long long)history->first_unread, h->history_path);
    }
    lt_facts_of_boot(f, &h->plan);
    f->new_from_s = lt_history_last_uptime(history, f->boot);
    lt_facts_of_gpus(f, &h->plan);
    lt_facts_of_log(f, &h->plan);
    lt_facts_of_links(f, &h->plan);
    lt_facts_of_host(f, &h->plan);
    if (h->tier >= 2) {
        LT_TRY(lt_facts_of_gpu_work(f, &h->work));
        LT_TRY(lt_facts_of_cores(f, &h->work));
    }
    if (f->out_of_memory) {
        LT_FAIL(LT_ERR_OOM, "facts of a health check");
    }
    return LT_OK;
}

static const lt_health_finding *judge(lt_health *h, lt_health_check_id check, const char *object,
                                      double value) {
    lt_health_finding *x = &h->findings[h->n_findings++];
    *x = (lt_health_finding){
        .check = lt_check_rows[check].name, .unit = lt_check_rows[check].unit, .value = value};
    snprintf(x->object, sizeof x->object, "%s", object);
    x->result = lt_check_judge(&h->levels, check, value, &x->limit);
    h->result = x->result > h->result ? x->result : h->result;
    return x;
}

/* The seven signals count events before this check, and the XIDs that are new in it. */
static void judge_signals(lt_health *h, const lt_history *history) {
    int score = 0;
    for (int check = LT_CHECK_LEMON_EXCLUSIONS; check < LT_CHECK_LEMON_SCORE; check++) {
        const double before = history->signals[check - LT_CHECK_LEMON_EXCLUSIONS];
        const double now = check == LT_CHECK_LEMON_XIDS ? h->facts.n_xids_new : 0.0;
        score += judge(h, (lt_health_check_id)check, "", before + now)->result > LT_HEALTH_OK;
    }
    (void)judge(h, LT_CHECK_LEMON_SCORE, "", score);
}

static lt_err judge_all(lt_health *h, const lt_history *history) {
    const lt_facts *f = &h->facts;

    free(h->findings);
    h->n_findings = 0;
    h->result = LT_HEALTH_OK;
    h->findings = calloc((size_t)f->n + LT_CHECK_COUNT, sizeof *h->findings);
    if (h->findings == NULL) {
        LT_FAIL(LT_ERR_OOM, "%d findings", f->n);
    }
    for (int i = 0; i < f->n; i++) {
        const lt_fact *fact = &f->facts[i];
        const bool counts = lt_check_rows[fact->check].kind == LT_KIND_COUNT;
        const double value = counts ? lt_history_rate(history, f, fact) : fact->value;
        if (!isnan(value)) {
            (void)judge(h, fact->check, fact->object, value);
        }
    }
    if (history->lock_fd >= 0) {
        judge_signals(h, history);
    }
    return LT_OK;
}

/* ---- The history's line ---- */

static json_t *counters_json(const lt_facts *f) {
    json_t *all = json_object();
    char key[160];
    for (int i = 0; i < f->n; i++) {
        const lt_check_row *row = &lt_check_rows[f->facts[i].check];
        if (row->kind == LT_KIND_COUNT) {
            snprintf(key, sizeof key, "%s %s", row->name, f->facts[i].object);
            json_object_set_new(all, key, json_real(f->facts[i].value));
        }
    }
    return all;
}

static json_t *findings_json(const lt_health *h) {
    json_t *all = json_array();
    for (int i = 0; i < h->n_findings; i++) {
        const lt_health_finding *x = &h->findings[i];
        if (x->result > LT_HEALTH_OK) {
            json_array_append_new(all, json_pack("{s:s, s:s, s:f, s:s}", "check", x->check,
                                                 "object", x->object, "value", x->value, "result",
                                                 lt_health_result_text(x->result)));
        }
    }
    return all;
}

static json_t *line_json(const lt_health *h, double time) {
    const lt_facts *f = &h->facts;
    json_t *line = json_pack("{s:s, s:I, s:s, s:i, s:s, s:i, s:o, s:o}", "kind", "check", "time",
                             (json_int_t)time, "node", h->node, "tier", h->tier, "result",
                             lt_health_result_text(h->result), "xids", f->n_xids_new, "counters",
                             counters_json(f), "findings", findings_json(h));
    if (line != NULL && f->boot[0] != '\0' && !isnan(f->uptime_s)) {
        json_object_set_new(line, "boot", json_string(f->boot));
        json_object_set_new(line, "uptime_s", json_real(f->uptime_s));
    }
    return line;
}

lt_err lt_health_check(lt_health *h) {
    lt_err err = LT_OK;
    const double start = lt_clock_s();
    lt_history history;

    LT_TRY_DONE(lt_history_open(&history, h->history_path));
    LT_TRY_DONE(read_facts(h, &history));
    LT_TRY_DONE(judge_all(h, &history));
    h->time = history.time;
    if (h->history_path[0] != '\0') {
        LT_TRY_DONE(lt_history_append(&history, h->history_path, line_json(h, history.time)));
    }
    h->seconds = lt_clock_s() - start;
done:
    lt_history_close(&history);
    return err;
}

lt_err lt_health_note(const lt_health *h, const char *kind, const char *text) {
    lt_err err = LT_OK;
    lt_history history = {.lock_fd = -1};

    LT_TRY(lt_history_note_check(kind));
    if (h->history_path[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "--note needs --history FILE.jsonl, to which it is appended");
    }
    LT_TRY_DONE(lt_history_open(&history, h->history_path));
    if (history.n_unread > 0) {
        lt_log_warn("%s: %lld lines cannot be read and are dropped, the first is line %lld",
                    h->history_path, (long long)history.n_unread, (long long)history.first_unread);
    }
    LT_TRY_DONE(lt_history_append(&history, h->history_path,
                                  json_pack("{s:s, s:I, s:s, s:s, s:s}", "kind", "note", "time",
                                            (json_int_t)history.time, "node", h->node, "what", kind,
                                            "text", text)));
done:
    lt_history_close(&history);
    return err;
}

/* ---- What it found ---- */

lt_health_result lt_health_result_of(const lt_health *h) {
    return h->result;
}

const lt_health_finding *lt_health_findings(const lt_health *h, int *n) {
    *n = h->n_findings;
    return h->findings;
}

const lt_health_skip *lt_health_skips(const lt_health *h, int *n) {
    *n = h->facts.n_skips;
    return h->facts.skips;
}

double lt_health_seconds(const lt_health *h) {
    return h->seconds;
}

const char *lt_health_node(const lt_health *h) {
    return h->node;
}

void lt_health_print_levels(const lt_health *h, FILE *to) {
    lt_check_levels_print(&h->levels, to);
}

const lt_machine_source *lt_health_source(const lt_health *h) {
    return &h->source;
}

const lt_facts *lt_health_facts(const lt_health *h) {
    return &h->facts;
}

double lt_health_unix_s(const lt_health *h) {
    return h->time;
}

void lt_health_why(const lt_health *h, char out[LT_HEALTH_WHY_BYTES]) {
    out[0] = '\0';
    for (int i = 0; i < h->n_findings; i++) {
        const lt_health_finding *x = &h->findings[i];
        if (x->result == h->result && x->result > LT_HEALTH_OK) {
            snprintf(out, LT_HEALTH_WHY_BYTES, "%s: %s%s%s = %g, limit %g",
                     lt_health_result_text(x->result), x->check, x->object[0] != '\0' ? " " : "",
                     x->object, x->value, x->limit);
            return;
        }
    }
}

lt_err lt_health_tell_slurm(const lt_health *h, char told[256]) {
    char why[LT_HEALTH_WHY_BYTES];
    lt_health_why(h, why);
    return lt_slurm_tell(h->node, h->result, why, h->findings, h->n_findings, told);
}
