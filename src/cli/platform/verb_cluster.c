/* verb_cluster.c: `lateen cluster`: a page of nodes, jobs, runs and alerts, from Slurm and
 * Prometheus. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "cli/platform/cluster_verbs.h"
#include "cli/verb.h"
#include "lateen/cluster.h"

#define CLUSTER_OPTIONS(X)                                                                         \
    X(STR, listen, "listen", "127.0.0.1:8400", 0, 1, "HOST:PORT",                                  \
      "where to serve the page; anyone who can open it sees the jobs of all tenants")              \
    X(STR, prometheus, "prometheus", "http://127.0.0.1:9090", 0, 0, "URL",                         \
      "Prometheus, which scrapes nodes and runs (deploy/prometheus); empty: none")                 \
    X(BOOL, slurm, "slurm", "true", 0, 0, "", "ask sinfo, squeue and sacct")                       \
    X(F64, window, "window", "6", 0.01, 720, "H", "how far back the page looks")                   \
    X(F64, fresh, "fresh-s", "5", 0, 3600, "S",                                                    \
      "reuse answers of Slurm and Prometheus that are younger than this")                          \
    X(BOOL, json, "json", "false", 0, 0, "", "print the page's data once, and serve nothing")

typedef struct {
    CLUSTER_OPTIONS(LT_OPTION_FIELD)
} cluster_options;
#define LT_OPTION_STRUCT cluster_options
static const lt_option rows[] = {CLUSTER_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_cluster_options = LT_OPTION_TABLE("cluster", rows);

static void tell_address(const char *address) {
    lt_log_info("cluster: http://%s/", address);
}

static lt_err print_data(const lt_cluster_options *o) {
    char *data = NULL;
    LT_TRY(lt_cluster_data(&data, o));
    puts(data);
    free(data);
    return LT_OK;
}

int lt_verb_cluster(int argc, char **argv);
int lt_verb_cluster(int argc, char **argv) {
    cluster_options o;
    int n = 0, status = LT_EXIT_DONE;
    lt_cluster_options c;
    lt_err err;

    if (argc > 1 && strcmp(argv[1], "policy") == 0) {
        return lt_cluster_policy(argc - 1, argv + 1);
    }
    if (!lt_verb_parse(&lt_verb_cluster_options, &o, argc, argv,
                       "cluster [--listen HOST:PORT] [--prometheus URL] [--no-slurm]\n"
                       "       lateen cluster policy FILE.yaml [--out FOLDER | --check]",
                       "Serve a page of the cluster: nodes and their health, jobs, runs with loss "
                       "and goodput, alerts.\nAll of it is read from Slurm's commands and "
                       "Prometheus while somebody looks; nothing is stored.",
                       NULL, 0, &n, &status)) {
        return status;
    }
    c = (lt_cluster_options){.listen = o.listen,
                             .prometheus = o.prometheus,
                             .slurm = o.slurm,
                             .window_s = o.window * 3600.0,
                             .fresh_s = o.fresh,
                             .stop = lt_verb_stop_signal(),
                             .on_listen = tell_address};
    err = o.json ? print_data(&c) : lt_cluster_serve(&c);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
