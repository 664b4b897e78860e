/* memory.h: keeps snapshots of a run while it runs, as files in shared memory (/dev/shm), which
 * outlive the processes that wrote them.
 *
 *     ROOT/set/step-000000012            a snapshot as a checkpoint folder: links to its files, or
 *                                        one link to the folder that holds them all
 *     ROOT/node-0/own/rank-0/step-N/     what ranks of this node have written (HOLDER: rank-0)
 *     ROOT/node-0/kept/rank-2/step-N/    copies of what ranks of another node have written
 *     ROOT/node-0/agent                  the address of the node's agent
 *     ROOT/launcher                      the process that removes ROOT, and keeps this file
 *                                        locked; if it is gone, lt_memory_sweep does
 *
 * On several machines (`lateen launch --hosts`) each has a ROOT of the same name in its own memory,
 * and each agent sends to all others, so that every machine has every snapshot completely. When an
 * attempt begins, one rank of each machine puts set/ together from its own/ and kept/.
 *
 * A snapshot has the format of a checkpoint (train/checkpoint/checkpoint.h), with the same
 * checksums. Each node's agent (agent.h) sends the folders under own/ to the agent of the next
 * node, which keeps them. When a node's memory is lost, links into it are repaired: they lead to
 * the copies. */
#ifndef LT_PLATFORM_MEMORY_H
#define LT_PLATFORM_MEMORY_H

#include <stdbool.h>

#include "base/file.h"

#define LT_ENV_MEMORY   "LATEEN_MEMORY"   /* ROOT */
#define LT_ENV_NODE     "LATEEN_NODE"     /* Node of the rank. */
#define LT_ENV_SNAPSHOT "LATEEN_SNAPSHOT" /* Steps between snapshots; 0: by Daly's formula, */
#define LT_ENV_MTBF     "LATEEN_MTBF"     /* with this mean time between faults, in seconds. */

/* Snapshots of each holder that are kept: the newest may be incomplete on some node. */
#define LT_MEMORY_KEEP 2

/* The memory, as a rank sees it. */
typedef struct {
    char root[LT_PATH_BYTES];
    char set[LT_PATH_BYTES], own[LT_PATH_BYTES]; /* ROOT/set, ROOT/node-K/own */
    int node;
    bool apart; /* Other nodes are other machines. */
    int64_t every;
    double mtbf_s;
} lt_node_memory;

/* Find the memory of this process's node from the environment. False: no launcher has made one. */
bool lt_node_memory_of_rank(lt_node_memory *m);
/* Make `path` a link to `target`, atomically. */
LT_MUST_USE lt_err lt_memory_link(const char *target, const char *path);

/* For the launcher: make ROOT for n nodes, and remove the ROOTs of launchers that are gone. */
LT_MUST_USE lt_err lt_memory_make(char root[LT_PATH_BYTES], int n_nodes);
/* Remove this user's ROOTs whose owners are gone, because they and their agents were killed.
 * Returns their number. */
int lt_memory_sweep(void);
/* Make ROOT on this machine, for this user alone, unless another agent has made it. */
LT_MUST_USE lt_err lt_memory_enter(const char *root);
/* For the agent of a machine: the same, and remove the ROOTs of agents that are gone. *owner: this
 * process must remove ROOT at its end. */
LT_MUST_USE lt_err lt_memory_join(const char *root, bool *owner);
/* Rebuild set/ from everything in the nodes' own/ and kept/ on this machine. */
LT_MUST_USE lt_err lt_memory_assemble(const char *root);
/* Redirect links to files that are gone to copies of them on any node. */
void lt_memory_repair(const char *root, int n_nodes);

/* The time between two saves with which the least time is lost (Daly 2006,
 * doi:10.1016/j.future.2004.11.016): sqrt(2 w M) (1 + sqrt(w / 2M) / 3 + w / 18M) - w for w < 2M,
 * otherwise M; w is the time that a save takes, M the mean time between faults. */
double lt_daly_interval_s(double mtbf_s, double save_s);

#endif
