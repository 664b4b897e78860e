/* launch_check.c: which options of a launch go together. */
#include "base/error.h"
#include "comm/shm.h"
#include "platform/agent/launch.h"
#include "platform/agent/nodes.h"

static lt_err check_hosts(const lt_launch_options *o) {
    const struct {
        bool asked;
        const char *name;
    } refused[] = {{o->n_nodes > 0, "--nodes"}, {o->keep, "--keep"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (refused[i].asked) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "%s with --hosts: not built. Without it, all ranks are started again from the "
                    "newest checkpoint on disk",
                    refused[i].name);
        }
    }
    return LT_OK;
}

lt_err lt_launch_check(const lt_launch_options *o, int n_hosts) {
    if (o->n_ranks < 1 || o->n_ranks > LT_SHM_MOST_RANKS) {
        LT_FAIL(LT_ERR_ARG, "%d ranks on one machine; 1 to %d are possible", o->n_ranks,
                LT_SHM_MOST_RANKS);
    }
    LT_TRY(n_hosts > 0 ? check_hosts(o) : LT_OK);
    if (o->n_nodes + o->spares > LT_NODES_MOST) {
        LT_FAIL(LT_ERR_ARG, "%d nodes and %d spares; %d nodes are possible", o->n_nodes, o->spares,
                LT_NODES_MOST);
    }
    if ((o->spares > 0 || o->shrink) && (o->n_nodes == 0 || o->retries == 0)) {
        LT_FAIL(LT_ERR_ARG, "%s needs --nodes and --retries",
                o->spares > 0 ? "--spares" : "--shrink");
    }
    if (o->keep && o->retries == 0) {
        LT_FAIL(LT_ERR_ARG, "--keep needs --retries");
    }
    if (o->shrink && o->n_nodes > o->n_ranks) {
        LT_FAIL(LT_ERR_ARG, "--shrink with %d nodes for %d ranks: some have none", o->n_nodes,
                o->n_ranks);
    }
    return LT_OK;
}
