/* owners.h: matrices that are kept in slices, each made whole at one rank for a moment (Muon).
 *
 * Each hidden matrix (queries, keys, values, gate and up are one each: params.h) has an owner: the
 * largest first, each is assigned to the rank with the least work so far. The matrices are
 * processed in rounds, in which every rank has at most one:
 *
 *     slices of g, m, p of all ranks ── gather ──▶ whole at its owner ── computes ──▶
 *     slices of m, p                ◀── scatter ───────────────────────────────────┘
 *
 * With n ranks and P elements in all matrices, each rank sends and receives about 5 P / n elements
 * a step. */
#ifndef LT_PARALLEL_OWNERS_H
#define LT_PARALLEL_OWNERS_H

#include "parallel/shards.h"
#include "tensor/backend.h"

#define LT_OWNERS_BUFFERS 3 /* At most this many buffers are gathered at once. */

typedef struct {
    int param;     /* Index in the shards' table; -1: none. */
    int64_t first; /* Its first element among the parameter's. */
    int64_t rows, cols;
} lt_owned;

typedef struct {
    const lt_shards *shards;
    int n_rounds;
    lt_owned *table; /* (n_rounds, shards->n) */
    int64_t *counts; /* (2, n): scratch of a call. */
    int64_t room;    /* Elements of the largest matrix that this rank owns, in one buffer. */
    int64_t sends;   /* The most elements of one buffer that this rank sends in a round. */
    const lt_backend *backend; /* Backend of the buffers, which the queue reads and writes. */
    lt_queue *queue;
} lt_owners;

/* backend and queue NULL: only measure. Free with lt_owners_close. UNSUPPORTED: a matrix is divided
 * by tensor parallelism. */
LT_MUST_USE lt_err lt_owners_open(lt_owners *o, const lt_shards *s, const lt_backend *backend,
                                  lt_queue *queue);
void lt_owners_close(lt_owners *o);
/* Floats of scratch that gather and scatter need. */
int64_t lt_owners_scratch(const lt_owners *o);

/* The matrix that this rank owns in a round. */
const lt_owned *lt_owners_own(const lt_owners *o, int round);
/* Collective calls. Gather the slices of the round's matrices from n buffers (over the table `own`,
 * F32) into whole (n, rows, cols) at their owners; scatter is the reverse. */
LT_MUST_USE lt_err lt_owners_gather(const lt_owners *o, int round, float *whole, float *scratch,
                                    const lt_param_table *own, const lt_param_buffer *const *from,
                                    int n);
LT_MUST_USE lt_err lt_owners_scatter(const lt_owners *o, int round, const float *whole,
                                     float *scratch, const lt_param_table *own,
                                     const lt_param_buffer *const *to, int n);

#endif
