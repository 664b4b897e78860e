/* agent.h: what `lateen agent` does on a node: it sends the snapshots that the node's ranks have
 * written to the agent of the next node that answers, and keeps the snapshots that another agent
 * sends to it (memory.h). No training step waits for it. When it is killed, the launcher starts it
 * again; the memory stays.
 *
 * Where nodes are machines (`lateen agent --machine`), it sends them to the agents of all others.
 * Standard input begins with a line of JSON, and then gives their addresses; on standard output the
 * agent tells the launcher its own address:
 *
 *     {"version", "program", "memory", "node", "nodes", "token", "launcher", "keep"}\n
 *     peer K ADDRESS\n      "-": the agent of node K is gone. An agent at a new address has no
 *                           snapshots yet
 *     alive\n               from time to time
 *     signal 15\n           it ends, as it does at the end of standard input, or after
 *                           LT_AGENT_ALONE_S without a line
 *
 *     listens ADDRESS\n
 *
 * "launcher" is an address of the launcher's machine: the agent listens at the local address from
 * which it would connect there. Unless "keep" is true, the memory of the node is empty at the
 * start.
 *
 * PROTOCOL over TCP, each connection transfers one snapshot of one holder:
 *
 *     sender     {"token", "holder": "rank-0", "step": 12, "files": [{"name", "bytes", "xxh3"}]}\n
 *                the bytes of the files, one after the other
 *     receiver   "ok\n" when all files are kept and have these checksums; otherwise it closes
 *
 * A snapshot that was not confirmed is sent again when the folder is looked at next; if it is gone
 * by then, a newer one has replaced it. A connection that is silent for LT_AGENT_SILENT_S is
 * closed. */
#ifndef LT_PLATFORM_AGENT_H
#define LT_PLATFORM_AGENT_H

#include <signal.h>

#include "base/file.h"

#define LT_AGENT_LOOK_S   0.1
#define LT_AGENT_SILENT_S 10.0
#define LT_AGENT_ALONE_S  300.0
#define LT_AGENT_ADDRESS  32 /* "10.0.0.2:4711" */
/* The signal that the kernel sends to agents on the launcher's machine when the launcher is killed.
 * Nothing else sends it. The parent's pid is no substitute: the kernel may send the signal while
 * threads of the launcher are still ending, and until then the launcher is the parent. */
#define LT_AGENT_ORPHANED (SIGRTMIN + 1)

typedef struct {
    const char *root, *token;
    int node, n_nodes; /* With one node, nothing is sent. */
    /* The address at which it listens if nodes are machines; NULL: nodes are parts of this machine,
     * and ROOT/node-K/agent has their addresses. */
    const char *address;
} lt_agent_options;

/* Run until SIGTERM, SIGINT or LT_AGENT_ORPHANED. After LT_AGENT_ORPHANED it removes the run's
 * memory; the agent of a machine removes it in any case. */
LT_MUST_USE lt_err lt_agent_run(const lt_agent_options *o);
/* `lateen agent --machine`: the same, as standard input describes. */
LT_MUST_USE lt_err lt_agent_run_machine(void);

#endif
