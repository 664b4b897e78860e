/* cluster.h: a page about a cluster: nodes and their health, jobs, runs with their goodput, alerts.
 * Its data come from Slurm's commands and Prometheus's HTTP API, at most every few seconds and only
 * while somebody looks at it; nothing is stored. */
#ifndef LATEEN_CLUSTER_H
#define LATEEN_CLUSTER_H

#include <signal.h>
#include <stdbool.h>

#include "lateen/base.h"

typedef struct {
    const char *listen;     /* "HOST:PORT" */
    const char *prometheus; /* "http://127.0.0.1:9090"; "": none. */
    bool slurm;             /* Ask sinfo, squeue and sacct. */
    double window_s;        /* Time span of the page. */
    double fresh_s;         /* Answers younger than this are reused. */
    const volatile sig_atomic_t *stop;
    void (*on_listen)(const char *address); /* Called once, with the real port. */
} lt_cluster_options;

/* Serve / (the page) and /data.json until *stop is not 0. */
LT_MUST_USE lt_err lt_cluster_serve(const lt_cluster_options *o);

/* The text of /data.json; free it. If a source does not answer, its part is missing, and "errors"
 * has the reason. */
LT_MUST_USE lt_err lt_cluster_data(char **out, const lt_cluster_options *o);

#endif
