/* launch_check.c: checks which options of a launch can be combined. */
#include <stdlib.h>

#include "base/error.h"
#include "comm/shm.h"
#include "platform/agent/launch.h"
#include "platform/agent/nodes.h"

/* With --hosts, each machine is a node. */
static lt_err check_nodes(lt_launch_options *o, const lt_hosts *h) {
    const int n = h->n - o->spares;
    if (o->n_nodes > 0 && o->n_nodes != n) {
        LT_FAIL(LT_ERR_ARG,
                "--nodes %d with --hosts of %d machines, %d of them spare: each machine is a node, "
                "so it is %d",
                o->n_nodes, h->n, o->spares, n);
    }
    for (int i = 1; i < h->n; i++) {
        if (h->all[i].ranks != h->all[0].ranks) {
            LT_FAIL(LT_ERR_ARG,
                    "--hosts: %s has %d ranks and %s %d; --nodes, --spares and --shrink need as "
                    "many on each",
                    h->all[0].name, h->all[0].ranks, h->all[i].name, h->all[i].ranks);
        }
    }
    o->n_nodes = n;
    return LT_OK;
}

static lt_err check_hosts(lt_launch_options *o, const lt_hosts *h) {
    o->n_ranks = h->n_ranks;
    return o->n_nodes > 0 || o->spares > 0 || o->shrink ? check_nodes(o, h) : LT_OK;
}

lt_err lt_launch_check(lt_launch_options *o, const lt_hosts *hosts) {
    LT_TRY(hosts->n > 0 ? check_hosts(o, hosts) : LT_OK);
    if (o->n_ranks < 1 || o->n_ranks > LT_SHM_MOST_RANKS) {
        LT_FAIL(LT_ERR_ARG, "%d ranks on one machine; 1 to %d are possible", o->n_ranks,
                LT_SHM_MOST_RANKS);
    }
    if (o->n_nodes + o->spares > LT_NODES_MOST) {
        LT_FAIL(LT_ERR_ARG, "%d nodes and %d spares; %d nodes are possible", o->n_nodes, o->spares,
                LT_NODES_MOST);
    }
    if ((o->spares > 0 || o->shrink) && (o->n_nodes == 0 || o->retries == 0)) {
        LT_FAIL(LT_ERR_ARG, "%s needs %s--retries", o->spares > 0 ? "--spares" : "--shrink",
                hosts->n > 0 ? "" : "--nodes and ");
    }
    if (o->keep && o->retries == 0) {
        LT_FAIL(LT_ERR_ARG, "--keep needs --retries");
    }
    if (o->requeue && getenv("SLURM_JOB_ID") == NULL) {
        LT_FAIL(LT_ERR_ARG, "--requeue outside a job of Slurm: SLURM_JOB_ID is not set");
    }
    if (o->shrink && o->n_nodes > o->n_ranks) {
        LT_FAIL(LT_ERR_ARG, "--shrink with %d nodes for %d ranks: some have none", o->n_nodes,
                o->n_ranks);
    }
    return LT_OK;
}
