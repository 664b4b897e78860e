/* cluster.h: a page of a cluster: nodes and their health, jobs, runs with their goodput, alerts. It
 * is made of what Slurm's commands and Prometheus's HTTP API answer, at most every few seconds and
 * only while somebody looks; nothing is stored. */
#ifndef LATEEN_CLUSTER_H
#define LATEEN_CLUSTER_H

#include <signal.h>
#include <stdbool.h>

#include "lateen/base.h"

typedef struct {
    const char *listen;     /* "HOST:PORT" */
    const char *prometheus; /* "http://127.0.0.1:9090"; "": none. */
    bool slurm;             /* Ask sinfo, squeue and sacct. */
    double window_s;        /* How far back the page looks. */
    double fresh_s;         /* Answers of this age are given again. */
    const volatile sig_atomic_t *stop;
    void (*on_listen)(const char *address); /* Called once, with the real port. */
} lt_cluster_options;

/* Serve / (the page) and /data.json until *stop is not 0. */
LT_MUST_USE lt_err lt_cluster_serve(const lt_cluster_options *o);

/* What /data.json holds, as text; free it. A part that does not answer is left out, and its reason
 * stands in "errors". */
LT_MUST_USE lt_err lt_cluster_data(char **out, const lt_cluster_options *o);

#endif
