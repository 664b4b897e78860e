/* snapshot.h: snapshots of a run in the memory of the nodes (platform/agent/memory.h), from which
 * the next attempt goes on when a rank has failed. They are checkpoints that need no disk, so they
 * are made often; those on disk stay behind them for faults that memory does not survive.
 *
 *     agree    before anything is opened, all ranks choose the newest snapshot that each of them
 *              finds whole; none counts that one of them does not see or whose checksums are wrong
 *     take     after a step that is due: every rank writes what a checkpoint needs of it, and the
 *              training goes on; agents copy it to another node meanwhile
 *
 * INTERVAL  `lateen launch --snapshot N`: every N steps. 0: after two steps the first, from whose
 * measured time w the leading rank computes the next, by Daly's formula for w and the expected time
 * between faults, but so that snapshots take at most LT_SNAPSHOT_SHARE of the time. After each
 * snapshot this is done again. */
#ifndef LT_TRAIN_SNAPSHOT_H
#define LT_TRAIN_SNAPSHOT_H

#include "platform/agent/memory.h"

#define LT_SNAPSHOT_SHARE 0.03

struct lt_training;
struct lt_world;

typedef struct {
    bool wanted;
    lt_node_memory memory;
    int64_t from;    /* The snapshot to go on from, agreed by all; -1: none. */
    int64_t next;    /* The step after which one is due. */
    double step_s;   /* Mean of the steps since the last one, on the leading rank. */
    int64_t n_steps; /* Their number. */
} lt_snapshots;

/* How many steps to the next snapshot. */
int64_t lt_snapshot_interval(double mtbf_s, double save_s, double step_s);

#endif
