/* replicas.h: finds memory and arithmetic that fail without an error, by comparing what several
 * ranks hold copies of (guard.replicas).
 *
 * The ranks of a mesh that hold the same part of the model (dp x cp; with mesh.zero those that
 * mesh.shard leaves as copies) have the same bits of master weights, moments, weights and summed
 * gradients. They form a set. A comparison hashes them on each rank, where they are (pieces.h), and
 * gathers the hashes of all ranks:
 *
 *     every N steps   between the sum of the gradients and the update, gradients included: all, or
 *                     one of several equal parts after the other (guard.replicas_parts)
 *     before a save   of a checkpoint or a snapshot: what is saved has been compared
 *
 * VERDICT  In a set whose hashes differ, the hash of more than half of the ranks is right, and the
 * others are wrong. Without such a majority (two ranks) it is unknown which ranks are wrong:
 * RUN/replicas.json keeps the hashes, and the next start, which takes the same steps again,
 * compares them with its own hashes after the same step. A rank whose hash has changed was wrong
 * before.
 *
 * A run whose hashes differ ends with CORRUPT on the wrong ranks, or on all of the set if they are
 * unknown, and with REMOTE on the others. The newest checkpoint or snapshot is older than the
 * fault, so the next start goes on from it.
 *
 * NOT FOUND  Faults before the gradients are summed, because the sum carries them to all ranks
 * alike (replay.h finds these), and faults in state that one rank alone holds (mesh.zero without
 * copies). */
#ifndef LT_TRAIN_REPLICAS_H
#define LT_TRAIN_REPLICAS_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "lateen/comm.h"
#include "train/optimiser.h"
#include "train/watch/pieces.h"

#define LT_REPLICAS_FILE    "replicas.json"
#define LT_REPLICAS_LIST    256
#define LT_REPLICAS_AT_ONCE 4096 /* Hashes that are exchanged at a time after a difference. */

struct lt_training;

/* What a rank tells all others. Every field is an I64, so that signs are gathered without
 * conversion. */
typedef struct {
    int64_t set;  /* The lowest rank of its set. */
    int64_t hash; /* Any 64-bit value. */
} lt_replica_sign;

typedef enum { LT_REPLICA_RIGHT, LT_REPLICA_WRONG, LT_REPLICA_UNKNOWN } lt_replica_verdict;

typedef struct {
    int64_t every; /* 0: nothing is compared. */
    /* Number of equal parts of the pieces, one of which is compared at a time. */
    int64_t parts;
    lt_group *set;    /* The ranks that hold the same state. */
    int64_t set_rank; /* The lowest of their ranks in the mesh. */
    lt_pieces pieces; /* Each parameter in a buffer is a span. */
    /* Pieces of the state; pieces of gradients follow them. */
    int n_state;
    /* The buffers that exist, in the order of their spans. */
    int buffers[3 + LT_OPTIM_MAX_MOMENTS];
    int64_t *hashes_of_set; /* (set, LT_REPLICAS_AT_ONCE) */
    lt_replica_sign *signs; /* (ranks) */
    lt_replica_verdict *verdicts;
    int64_t saved; /* The last step whose state was compared before a save; -1: none. */
    /* Signs of an earlier attempt, if it was unknown which rank was wrong; NULL: nothing has to
     * be decided. */
    lt_replica_sign *before;
    int64_t before_step, before_part, before_parts;
    /* The part that the last comparison read, out of of_parts equal ones. */
    int64_t part, of_parts;
    bool before_saving;
    int64_t n_compared;
    double spent_s;
} lt_replicas;

/* Fill verdicts (n). False: all ranks of every set agree. */
bool lt_replicas_judge(lt_replica_verdict *verdicts, const lt_replica_sign *signs, int n);
/* Judge `before`, the undecided signs of an earlier attempt, by the signs that the same step has
 * now. WRONG: the rank was wrong then; UNKNOWN: it is still unknown. False: no rank was wrong. */
bool lt_replicas_judge_again(lt_replica_verdict *verdicts, const lt_replica_sign *before,
                             const lt_replica_sign *now, int n);

/* List those of n ranks that have this verdict: as text, "1, 4 and 6", which is returned, and as
 * an array. */
const char *lt_replicas_list(char out[LT_REPLICAS_LIST], const lt_replica_verdict *verdicts, int n,
                             lt_replica_verdict of);
json_t *lt_replicas_json(const lt_replica_verdict *verdicts, int n, lt_replica_verdict of);

/* Call it after the run has resumed. UNSUPPORTED: no other rank holds the same state. A run of
 * one rank compares nothing, and logs this. */
LT_MUST_USE lt_err lt_replicas_open(struct lt_training *t);
void lt_replicas_close(struct lt_training *t);
/* If the current step is due. hash: queues the hashes after the sum of its gradients. compare, a
 * collective call after a sync: compares them. */
LT_MUST_USE lt_err lt_replicas_hash_gradients(struct lt_training *t);
LT_MUST_USE lt_err lt_replicas_compare_gradients(struct lt_training *t);
/* A collective call before a checkpoint or snapshot is saved. */
LT_MUST_USE lt_err lt_replicas_compare_state(struct lt_training *t);
/* On the leading rank, at the end: log what the comparisons cost. */
LT_MUST_USE lt_err lt_replicas_tell(struct lt_training *t);

#endif
