/* health.h: is this machine fit to run on? A check reads facts of the machine, compares each with
 * the levels of one table (platform/health/checks.h), and says ok, warn, drain or evict.
 *
 *   tier 1  reads counters and files; no load, under a second. Every few minutes, beside jobs.
 *   tier 2  also copies memory and multiplies matrices whose product is known, on every core and
 *           GPU: at most 10 s. Before a job.
 *   tier 3  also multiplies for burn_s seconds and writes patterns into memory. On idle machines.
 *
 *     lt_health *h;
 *     LT_TRY(lt_health_open(&h, &(lt_health_options){.tier = 1}));
 *     LT_TRY(lt_health_check(h));
 *     if (lt_health_result_of(h) >= LT_HEALTH_DRAIN) { ... }
 *     lt_health_close(h);
 *
 * With a history, a file of JSON lines for each node, counters are judged by their growth since the
 * last check, and seven signals of the last 28 days show which nodes fail again and again (the
 * signals are those of arXiv:2410.21680, section 5; the levels are this project's own). */
#ifndef LATEEN_HEALTH_H
#define LATEEN_HEALTH_H

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

#include "lateen/base.h"

/* From good to bad. DRAIN: no new job may begin here. EVICT: running jobs should leave, too. */
#define LT_HEALTH_RESULT_MAP(X)                                                                    \
    X(OK, "ok")                                                                                    \
    X(WARN, "warn")                                                                                \
    X(DRAIN, "drain")                                                                              \
    X(EVICT, "evict")

typedef enum {
#define LT_HEALTH_RESULT_ENUM(name, text) LT_HEALTH_##name,
    LT_HEALTH_RESULT_MAP(LT_HEALTH_RESULT_ENUM)
#undef LT_HEALTH_RESULT_ENUM
        LT_HEALTH_RESULT_COUNT
} lt_health_result;
const char *lt_health_result_text(lt_health_result r); /* "drain" */

/* Text fields: NULL counts as "". They are copied. */
typedef struct {
    int tier;            /* 1, 2 or 3; 0 counts as 1. */
    const char *levels;  /* YAML file that overrides levels; "": the built-in ones. */
    const char *machine; /* Folder of a recorded machine to read instead of this one. Tier 1. */
    const char *mounts;  /* Mount points that must exist, "/scratch,/home"; "": "/" and others. */
    const char *history; /* File of JSON lines; "": none. */
    const char *node;    /* Name of this node; "": SLURMD_NODENAME, else the host's name. */
    double log_window_s; /* Largest age of kernel messages that count; 0: 24 hours. */
    double mount_s;      /* A file system must answer within this time; 0: 5 s. */
    double burn_s;       /* Tier 3: how long to multiply; 0: 120 s. */
    double memory_share; /* Tier 3: share of the available memory that is tested; 0: a half. */
} lt_health_options;

/* One measured value and its verdict. */
typedef struct {
    const char *check, *unit; /* Names from the table; they live forever. */
    char object[64];          /* "gpu0", "eth0", "/scratch"; "": the node. */
    double value;             /* For a counter: its growth per hour. */
    double limit;             /* The level that decided; NAN when the result is ok. */
    lt_health_result result;
} lt_health_finding;

/* What could not be read, and why. It counts neither as ok nor as a fault. */
typedef struct {
    char what[64], why[192];
} lt_health_skip;

typedef struct lt_health lt_health;

LT_MUST_USE lt_err lt_health_open(lt_health **out, const lt_health_options *o);
void lt_health_close(lt_health *h); /* Accepts NULL. */

/* Read, judge, and append to the history. The findings of the previous check are dropped. */
LT_MUST_USE lt_err lt_health_check(lt_health *h);

/* The last check: its worst result, and its findings and skips, which are valid until the next
 * check. */
lt_health_result lt_health_result_of(const lt_health *h);
const lt_health_finding *lt_health_findings(const lt_health *h, int *n);
const lt_health_skip *lt_health_skips(const lt_health *h, int *n);
double lt_health_seconds(const lt_health *h); /* Duration of the last check. */
const char *lt_health_node(const lt_health *h);

/* Check every every_s seconds until *stop is not 0, and serve at "HOST:PORT": /metrics for
 * Prometheus (dcgm-exporter's names for GPUs), and /healthz: 200 while the node is fit, else 503,
 * with the reason. on_listen gets the address once, with the real port; on_check is called after
 * each check, and its failure ends the watch. */
typedef struct {
    const char *listen;
    double every_s;
    const volatile sig_atomic_t *stop;
    void (*on_listen)(const char *address);
    lt_err (*on_check)(lt_health *h, void *ctx);
    void *ctx;
} lt_health_watch_options;
LT_MUST_USE lt_err lt_health_watch(lt_health *h, const lt_health_watch_options *o);

/* Append a note to the history: an event on the node that counts for its score. ARG for an unknown
 * kind; the message lists the kinds. */
#define LT_HEALTH_NOTE_MAP(X)                                                                      \
    X(EXCLUSION, "exclusion", "a user excluded the node")                                          \
    X(TICKET, "ticket", "a ticket was opened for the node")                                        \
    X(OUT, "out", "the node was taken out of service by hand")                                     \
    X(MULTI_FAILURE, "multi_node_failure", "a job on several nodes failed because of this one")    \
    X(SINGLE_FAILURE, "single_node_failure", "a job on this node alone failed because of it")      \
    X(SINGLE_JOB, "single_node_job", "a job on this node alone ended without a fault of the node")
LT_MUST_USE lt_err lt_health_note(const lt_health *h, const char *kind, const char *text);

/* Tell Slurm (scontrol): DRAIN and EVICT drain the node with a reason, and EVICT ends its jobs,
 * too, which Slurm queues again; a better result resumes a node that this function drained before.
 * Reasons that others gave stay. *told: what was done, e.g. "drained n7"; "": nothing. */
LT_MUST_USE lt_err lt_health_tell_slurm(const lt_health *h, char told[256]);

/* Write the whole table, with the levels in effect, to `to`, as a YAML file that `levels` reads. */
void lt_health_print_levels(const lt_health *h, FILE *to);

#endif
