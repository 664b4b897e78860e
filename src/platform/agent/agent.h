/* agent.h: what `lateen agent` does on a node: it sends the snapshots that the node's ranks have
 * written to the agent of the next node that answers, and keeps those of the node before
 * (memory.h). No step of the training waits for it. When it is killed, the launcher starts it
 * again; the memory stays.
 *
 * PROTOCOL over TCP, one snapshot of one holder a connection:
 *
 *     sender     {"token", "holder": "rank-0", "step": 12, "files": [{"name", "bytes", "xxh3"}]}\n
 *                the bytes of the files, one behind the other
 *     receiver   "ok\n" when all is kept and has these checksums; otherwise it closes
 *
 * A snapshot that was not confirmed is sent again with the next look at the folder; one that is
 * gone by then was replaced by a newer one. A connection that is silent for LT_AGENT_SILENT_S is
 * closed. */
#ifndef LT_PLATFORM_AGENT_H
#define LT_PLATFORM_AGENT_H

#include "base/file.h"

#define LT_AGENT_LOOK_S   0.1
#define LT_AGENT_SILENT_S 10.0

typedef struct {
    const char *root, *token;
    int node, n_nodes; /* One node: nothing is sent. */
} lt_agent_options;

/* Runs until SIGTERM or SIGINT. If the launcher is gone by then, the run's memory is removed. */
LT_MUST_USE lt_err lt_agent_run(const lt_agent_options *o);

#endif
