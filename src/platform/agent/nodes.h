/* nodes.h: the nodes of a launch: parts of this machine that stand for machines of their own. Each
 * has a share of the ranks, an agent (agent.h) and a part of the run's memory (memory.h). An agent
 * that ends is started again; neither the ranks nor the memory depend on it. */
#ifndef LT_PLATFORM_NODES_H
#define LT_PLATFORM_NODES_H

#include "platform/agent/events.h"
#include "platform/agent/process.h"

typedef struct {
    int n; /* 0: there are none. */
    char root[LT_PATH_BYTES];
    lt_processes agents;
    double *started_s; /* (n) */
    char *token;       /* In the environment of the agents. */
    lt_events *events;
} lt_nodes;

/* path: this program; mask: of signals, for the agents. */
LT_MUST_USE lt_err lt_nodes_open(lt_nodes *nodes, int n, const char *path, const sigset_t *mask,
                                 const char *token, lt_events *events);
/* Pass on the agents' output, and start again those that have ended. */
void lt_nodes_look(lt_nodes *nodes, int attempt);
/* Before ranks start: links into memory that is gone lead to copies. */
void lt_nodes_repair(const lt_nodes *nodes);
int lt_nodes_of_rank(const lt_nodes *nodes, int rank, int n_ranks);
void lt_nodes_close(lt_nodes *nodes); /* Ends the agents and frees the memory. Accepts zeros. */

#endif
