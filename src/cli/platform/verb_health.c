/* verb_health.c: `lateen health`: whether this machine is fit for use. The exit status suits its
 * callers: a prolog, an epilog or a probe treats every status but 0 as a failure. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "base/log.h"
#include "cli/verb.h"
#include "lateen/health.h"

#define EXIT_DRAIN 3
#define EXIT_EVICT 4

#define HEALTH_OPTIONS(X)                                                                          \
    X(I64, tier, "tier", "1", 1, 3, "",                                                            \
      "1: read counters; 2: also copy and multiply, at most 10 s; 3: also burn and test memory")   \
    X(STR, levels, "levels", "", 0, 0, "FILE.yaml", "levels that replace those of --print-levels") \
    X(BOOL, print_levels, "print-levels", "false", 0, 0, "",                                       \
      "print all checks with the levels in effect, as a file for --levels, and check nothing")     \
    X(STR, mounts, "mounts", "", 0, 0, "PATH,...",                                                 \
      "mount points that must be there; empty: those of /, /tmp, /dev/shm and /var that are")      \
    X(STR, history, "history", "", 0, 0, "FILE.jsonl",                                             \
      "history of the node, to which the result is appended: counters are judged by their growth " \
      "since the last check, and the score of a node that fails often is computed")                \
    X(STR, note, "note", "", 0, 0, "KIND[:TEXT]",                                                  \
      "append to the history what happened to the node, and check nothing: exclusion, ticket, "    \
      "out, multi_node_failure, single_node_failure, single_node_job")                             \
    X(STR, node, "node", "", 0, 0, "NAME",                                                         \
      "name of the node; empty: SLURMD_NODENAME, or the host's name")                              \
    X(BOOL, slurm, "slurm", "false", 0, 0, "",                                                     \
      "drain the node by scontrol, with a reason, or resume it when it is fit again")              \
    X(STR, listen, "listen", "", 0, 0, "HOST:PORT",                                                \
      "check again and again, and serve /metrics for Prometheus and /healthz for probes")          \
    X(F64, every, "every-s", "300", 0.1, 1e6, "S", "with --listen: time between two checks")       \
    X(F64, log_window, "log-window", "86400", 1, 1e9, "S",                                         \
      "age of messages of the kernel (XIDs, disk errors) that count")                              \
    X(F64, mount_s, "mount-s", "5", 0.01, 60, "S", "time within which a file system must answer")  \
    X(F64, burn, "burn-s", "120", 0.01, 1e6, "S",                                                  \
      "tier 3: how long every core and GPU multiplies")                                            \
    X(F64, memory_share, "memory-share", "0.5", 0.001, 0.95, "",                                   \
      "tier 3: share of the available memory to test")                                             \
    X(STR, machine, "machine", "", 0, 0, "FOLDER",                                                 \
      "check a recorded machine instead of this one; tier 1 only")                                 \
    X(BOOL, json, "json", "false", 0, 0, "", "print one JSON object with everything that was read")

typedef struct {
    HEALTH_OPTIONS(LT_OPTION_FIELD)
} health_options;
#define LT_OPTION_STRUCT health_options
static const lt_option rows[] = {HEALTH_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_health_options = LT_OPTION_TABLE("health", rows);

static const char usage[] = "health [--tier 1|2|3] [--json] [options]";
static const char prose[] =
    "Check whether this machine is fit to run on: GPUs (by NVML), links, file systems, memory, "
    "time, "
    "load. Every fact is compared with the levels of one table; the worst result counts.\n"
    "Exit status: 0 ok or warn, 3 drain (no new job may begin here), 4 evict (running jobs should "
    "leave), 1 the check itself failed, 2 usage.";

static json_t *number(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *report_json(const lt_health *h, int64_t tier) {
    json_t *checks = json_array(), *skips = json_array();
    int n, n_skips;
    const lt_health_finding *x = lt_health_findings(h, &n);
    const lt_health_skip *s = lt_health_skips(h, &n_skips);

    for (int i = 0; i < n; i++) {
        json_array_append_new(
            checks, json_pack("{s:s, s:s, s:o, s:s, s:s, s:o}", "check", x[i].check, "object",
                              x[i].object, "value", number(x[i].value), "unit", x[i].unit, "result",
                              lt_health_result_text(x[i].result), "limit", number(x[i].limit)));
    }
    for (int i = 0; i < n_skips; i++) {
        json_array_append_new(skips, json_pack("{s:s, s:s}", "what", s[i].what, "why", s[i].why));
    }
    return json_pack("{s:s, s:I, s:s, s:f, s:o, s:o}", "node", lt_health_node(h), "tier",
                     (json_int_t)tier, "result", lt_health_result_text(lt_health_result_of(h)),
                     "seconds", lt_health_seconds(h), "checks", checks, "skipped", skips);
}

static void print_text(const lt_health *h, int64_t tier) {
    int n, n_skips, n_ok = 0;
    const lt_health_finding *x = lt_health_findings(h, &n);
    const lt_health_skip *s = lt_health_skips(h, &n_skips);

    for (int result = LT_HEALTH_EVICT; result > LT_HEALTH_OK; result--) {
        for (int i = 0; i < n; i++) {
            if (x[i].result == (lt_health_result)result) {
                printf("%-6s %-28s %-16s %g %s (limit %g)\n", lt_health_result_text(x[i].result),
                       x[i].check, x[i].object, x[i].value, x[i].unit, x[i].limit);
            }
        }
    }
    for (int i = 0; i < n; i++) {
        n_ok += x[i].result == LT_HEALTH_OK;
    }
    for (int i = 0; i < n_skips; i++) {
        printf("skip   %-28s %s\n", s[i].what, s[i].why);
    }
    printf("%s: %s; %d of %d values ok, %d not read; tier %lld, %.2f s\n", lt_health_node(h),
           lt_health_result_text(lt_health_result_of(h)), n_ok, n, n_skips, (long long)tier,
           lt_health_seconds(h));
}

static lt_err note(const lt_health *h, char *kind) {
    char *colon = kind;
    while (*colon != '\0' && *colon != ':') {
        colon++;
    }
    const char *text = *colon == ':' ? colon + 1 : colon;
    *colon = '\0';
    return lt_health_note(h, kind, text);
}

static lt_err check(lt_health *h, const health_options *o) {
    char told[256];

    LT_TRY(lt_health_check(h));
    if (o->json) {
        json_t *report = report_json(h, o->tier);
        json_dumpf(report, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
        putchar('\n');
        json_decref(report);
    } else {
        print_text(h, o->tier);
    }
    if (o->slurm) {
        LT_TRY(lt_health_tell_slurm(h, told));
        fprintf(stderr, "%s%s", told, told[0] != '\0' ? "\n" : "");
    }
    return LT_OK;
}

static void tell_address(const char *address) {
    lt_log_info("metrics: http://%s/metrics", address);
}

static lt_err after_check(lt_health *h, void *ctx) {
    static lt_health_result before = LT_HEALTH_OK;
    const health_options *o = ctx;
    const lt_health_result now = lt_health_result_of(h);
    char told[256] = "";

    if (now != before) {
        lt_log_info("health: %s", lt_health_result_text(now));
    }
    before = now;
    if (o->slurm && lt_health_tell_slurm(h, told) != LT_OK) {
        lt_log_warn("%s", lt_error_message()); /* The controller may be unavailable for a while. */
    }
    if (told[0] != '\0') {
        lt_log_info("%s", told);
    }
    return LT_OK;
}

static lt_err watch(lt_health *h, health_options *o) {
    const lt_health_watch_options w = {.listen = o->listen,
                                       .every_s = o->every,
                                       .stop = lt_verb_stop_signal(),
                                       .on_listen = tell_address,
                                       .on_check = after_check,
                                       .ctx = o};
    return lt_health_watch(h, &w);
}

static int exit_of(lt_health_result r) {
    return r == LT_HEALTH_EVICT ? EXIT_EVICT : r == LT_HEALTH_DRAIN ? EXIT_DRAIN : LT_EXIT_DONE;
}

int lt_verb_health(int argc, char **argv);
int lt_verb_health(int argc, char **argv) {
    health_options o;
    lt_health *h = NULL;
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;

    if (!lt_verb_parse(&lt_verb_health_options, &o, argc, argv, usage, prose, NULL, 0, &n,
                       &status)) {
        return status;
    }
    const lt_verb_use uses[] = {{"every-s", o.listen[0] != '\0', "--listen"},
                                {"burn-s", o.tier == 3, "--tier 3"},
                                {"memory-share", o.tier == 3, "--tier 3"}};
    err = lt_verb_idle(&lt_verb_health_options, &o, uses, sizeof uses / sizeof *uses);
    if (err != LT_OK) {
        return lt_verb_fail(err);
    }
    err = lt_health_open(&h, &(lt_health_options){.tier = (int)o.tier,
                                                  .levels = o.levels,
                                                  .machine = o.machine,
                                                  .mounts = o.mounts,
                                                  .history = o.history,
                                                  .node = o.node,
                                                  .log_window_s = o.log_window,
                                                  .mount_s = o.mount_s,
                                                  .burn_s = o.burn,
                                                  .memory_share = o.memory_share});
    if (err == LT_OK && o.print_levels) {
        lt_health_print_levels(h, stdout);
    } else if (err == LT_OK && o.note[0] != '\0') {
        err = note(h, o.note);
    } else if (err == LT_OK && o.listen[0] != '\0') {
        err = watch(h, &o);
    } else if (err == LT_OK) {
        err = check(h, &o);
        status = exit_of(lt_health_result_of(h));
    }
    lt_health_close(h);
    return err == LT_OK ? status : lt_verb_fail(err);
}
