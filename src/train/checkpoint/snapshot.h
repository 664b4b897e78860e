/* snapshot.h: snapshots of a run in the memory of the nodes (platform/agent/memory.h), from which
 * the next attempt goes on when a rank has failed. They are checkpoints that need no disk, so they
 * are made often; those on disk remain, for faults that memory does not survive.
 *
 *     agree    before anything is opened, all ranks choose the newest snapshot that each of them
 *              finds whole, with the right checksums. Where ranks are on several machines, one of
 *              each machine puts together what its memory holds, and a machine that lacks the
 *              newest snapshot gets it from another
 *     take     after a step that is due, every rank writes its part of a checkpoint, and the
 *              training goes on; agents copy it to another node meanwhile
 *
 * INTERVAL  `lateen launch --snapshot N`: every N steps. 0: the first snapshot follows two steps;
 * from the measured time w of each the leading rank computes when the next is due, by Daly's
 * formula for w and the expected time between faults, but so that snapshots take at most
 * LT_SNAPSHOT_SHARE of the time. */
#ifndef LT_TRAIN_SNAPSHOT_H
#define LT_TRAIN_SNAPSHOT_H

#include "parallel/world.h"
#include "platform/agent/memory.h"

#define LT_SNAPSHOT_SHARE 0.03

struct lt_training;

typedef struct {
    bool wanted;
    bool near; /* This rank is on the machine of the leading rank, which assembles snapshots. */
    lt_node_memory memory;
    int64_t from;    /* The snapshot from which all agreed to resume; -1: none. */
    int64_t next;    /* The step after which the next one is due. */
    double step_s;   /* Mean of the steps since the last one, on the leading rank. */
    int64_t n_steps; /* Their number. */
} lt_snapshots;

/* The newest step under set/, at most `most`, that is complete for this rank; -1: none. */
int64_t lt_snapshot_newest(const char *set, int64_t most);

/* snapshot_apart.c: collective calls of ranks on several machines. The first chooses the snapshot
 * to go on from, which every machine has under its set/ afterwards. The second sends the manifests
 * of the parts that other machines have written to the leading rank, which needs them to put a
 * snapshot together. */
LT_MUST_USE lt_err lt_snapshot_agree_apart(lt_snapshots *s, const lt_world *w);
LT_MUST_USE lt_err lt_snapshot_gather_parts(struct lt_training *t);

/* Number of steps until the next snapshot. */
int64_t lt_snapshot_interval(double mtbf_s, double save_s, double step_s);

#endif
