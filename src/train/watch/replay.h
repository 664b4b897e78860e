/* replay.h: a step's rows are computed again on another rank (guard.replay), to tell arithmetic
 * that fails without an error from data that is at fault. replicas.h compares what several ranks
 * hold copies of. That cannot find a gradient that one rank has computed wrongly, because it goes
 * into the sum, and from there to all ranks alike; so it is computed again.
 *
 *     every N steps   the rank one place before this one in dp sends its rows; this rank computes
 *                     their gradient, then its own; both are hashed (pieces.h) before the sum
 *     an update is    the guard has refused it (guard.h); after that decision each rank computes
 *     skipped         its own rows and those of the rank before again
 *
 * Ranks that share the model of one replica (tp, cp) form a slot, and each exchanges rows with its
 * peers in dp. Each rank has a hash; the verdict is about its slot, whose ranks send each other all
 * that they compute.
 *
 * VERDICT over the rows of slot s. They have the hashes own (of s), other (of s + 1) and, where
 * these differ, third (of s + 2, which with two slots is s again):
 *
 *     own = other             the slot is right
 *     third = other           s was wrong: two others agree, or s itself does not reproduce its own
 *     third = own             s + 1 was wrong; with two slots it is unknown which of them was
 *     three different ones    unknown
 *
 * A rank that was wrong ends the run like one that holds wrong bits: with CORRUPT, and as suspect,
 * so that the launcher avoids its node; the others end with REMOTE. The update was not made, and
 * the next start goes on from the newest checkpoint.
 *
 * If the rows of a skipped update give the same gradients on all ranks again, and the same sum, the
 * data or the recipe is the reason. If the sum differs from that of the step, a fault happened once
 * while the step was computed. Ranks whose loss differs, too, are the ones that failed, and end the
 * run. If no rank's loss differs, it is unknown which rank failed, and the run goes on, since the
 * update was not made.
 *
 * All ranks need the same kind of processor and the same number of threads: others may round
 * differently. */
#ifndef LT_TRAIN_REPLAY_H
#define LT_TRAIN_REPLAY_H

#include "train/watch/replicas.h"

struct lt_draw;
struct lt_step_rows;
struct lt_step_decision;

/* What a rank tells all others; every field is an I64. */
typedef struct {
    /* The rank's place in dp, and the lowest of the ranks that differ only in it. */
    int64_t slot, set;
    /* Hashes of the gradients of its own rows, of the rows of the slot before, and of the rows of
     * the slot before that. */
    int64_t own, other, third;
    int64_t loss_changed; /* 1: the loss of its rows differs from the one in the step; */
    int64_t sum_changed;  /* 1: the sum of the gradients differs, too. */
} lt_replay_sign;

typedef struct {
    int64_t every; /* 0: off. */
    lt_group *dp;
    int64_t set;
    struct lt_step_rows *rows; /* Rows of another rank. */
    lt_replay_sign *signs;     /* (ranks) */
    lt_replica_verdict *verdicts;
    int64_t *send, *recv; /* (dp): counts. */
    lt_pieces gradients;  /* Gradients that this rank alone has computed; */
    lt_pieces sum;        /* their sum over all ranks, or this rank's slices of the sum. */
    lt_replay_sign sign;  /* The sign of this rank. */
    double loss;          /* Loss of its rows in the step. */
    int64_t n_replayed;
    double spent_s;
} lt_replay;

/* Do own and other differ for the rows of some slot? */
bool lt_replay_differs(const lt_replay_sign *signs, int n);
/* Fill verdicts (n), once the third hashes are known. */
void lt_replay_judge(lt_replica_verdict *verdicts, const lt_replay_sign *signs, int n);

/* ARG or UNSUPPORTED names an option that does not work with it. With one replica it logs that it
 * has no effect. */
LT_MUST_USE lt_err lt_replay_open(struct lt_training *t);
void lt_replay_close(struct lt_training *t);
/* A collective call after open. ARG: ranks compute with different numbers of threads, which may
 * round differently. */
LT_MUST_USE lt_err lt_replay_meet(const struct lt_training *t);
/* Are the gradients of this step hashed before they are summed? */
bool lt_replay_is_due(const struct lt_training *t, int64_t step);
/* Collective calls, in this order. before: the step's own rows are drawn. own: their gradients are
 * computed and not yet summed. after: the step is decided, and no update made. */
LT_MUST_USE lt_err lt_replay_before(struct lt_training *t, const struct lt_draw *now);
LT_MUST_USE lt_err lt_replay_own(struct lt_training *t);
LT_MUST_USE lt_err lt_replay_after(struct lt_training *t, const struct lt_draw *now,
                                   const struct lt_step_decision *d);
/* On the leading rank, at the end: log what the replays cost. */
LT_MUST_USE lt_err lt_replay_tell(struct lt_training *t);

#endif
