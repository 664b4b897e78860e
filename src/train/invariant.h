/* invariant.h: `deterministic: mesh-invariant`, with which a run has the same bits on any number of
 * ranks that divides batch.groups.
 *
 * The rows of a step form G groups, a power of two: group q has rows q, q + G, ... and its
 * gradients are summed in the order of its micro-batches. Groups are then added as a tree, in which
 * the groups whose numbers differ in the highest bit meet first. Rank r of n has the groups q with
 * q mod n = r, so the tree's lower levels lie within ranks and its upper ones between them, and no
 * addition depends on n:
 *
 *     G = 8, n = 2    rank 0:  ((0 + 4) + (2 + 6))     + rank 1:  ((1 + 5) + (3 + 7))
 *
 * Within a rank, a group's sum waits for its partner in a buffer of its level: log2(G / n) buffers
 * of the gradients' size. Between ranks, gradients are summed by pairs, log2(n) times. The loss of
 * each group is rounded to a multiple of 2^-24 nats, so that sums are exact in any order. */
#ifndef LT_TRAIN_INVARIANT_H
#define LT_TRAIN_INVARIANT_H

#include "base/arena.h"
#include "model/pass/pass.h"
#include "parallel/world.h"
#include "tensor/backend.h"
#include "train/recipe/recipe.h"

#define LT_INVARIANT_LEVELS 12

typedef struct {
    int n_groups; /* Groups of all ranks; 0: the run is not invariant. */
    int n_own;    /* Number of groups of this rank. */
    lt_world *world;
    /* This rank and its partner, with the highest bit first. */
    lt_group *pairs[LT_INVARIANT_LEVELS];
    int n_pairs;
    lt_arena arena;
    float *waiting[LT_INVARIANT_LEVELS]; /* (n_elements) each */
    int n_waiting;
    int64_t n_elements;
} lt_invariant;

/* Called before the model is opened: refuses a recipe or mesh that cannot be invariant. A
 * micro-batch that is not given becomes a group's rows. world NULL, or without ranks: one rank. */
LT_MUST_USE lt_err lt_invariant_check(lt_recipe *r, const lt_world *world);
LT_MUST_USE lt_err lt_invariant_open(lt_invariant *v, const lt_recipe *r, lt_world *world,
                                     const lt_model *m);
void lt_invariant_close(lt_invariant *v, lt_device *device);
/* Bytes that open takes on one of dp ranks. */
size_t lt_invariant_bytes(const lt_recipe *r, int dp, const lt_param_table *t);

/* Position of row i of a rank's n_rows, so that its groups are in the order in which they are
 * added. */
int64_t lt_invariant_row(const lt_invariant *v, int64_t i, int64_t n_rows);
/* `gradients` holds the sum of this rank's group s: add the waiting sums, or let it wait. After the
 * last group `gradients` holds the rank's sum. */
LT_MUST_USE lt_err lt_invariant_add(lt_invariant *v, int s, const lt_backend *be, lt_queue *queue,
                                    float *gradients);
/* A collective call: adds the sums of all ranks, on each. On a GPU the queue waits for them. */
LT_MUST_USE lt_err lt_invariant_sum(lt_invariant *v, lt_queue *queue, float *gradients);
/* Round a group's result so that sums of such results are exact. */
void lt_invariant_round(lt_pass_result *r);

#endif
