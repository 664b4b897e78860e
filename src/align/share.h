/* share.h: ranks that have the same rows (pp x cp x tp) divide the work of a draw: each draws and
 * judges the answers to some of the questions, and gets the others from the other ranks.
 *
 *     questions   0 1 | 2 3 | 4 5 6      of three ranks; a question has all its answers on one
 *
 * Afterwards every rank has the same bits. Without a group one rank draws all. */
#ifndef LT_ALIGN_SHARE_H
#define LT_ALIGN_SHARE_H

#include "align/rollout.h"
#include "lateen/comm.h"

/* This rank's part of n: [*first, *end). */
void lt_share_part(const lt_group *g, int64_t n, int64_t *first, int64_t *end);

/* A collective call: each of n 32-bit words is 0 on all ranks but one, and becomes that rank's
 * value on all. */
LT_MUST_USE lt_err lt_share_words(lt_group *g, void *words, int64_t n);

typedef struct {
    lt_answer *answers; /* (n), of which this rank has [first, end); zeros elsewhere. */
    int64_t n, first, end;
    double *rewards, *parts; /* (n), (n, n_parts), with the same range; rewards NULL: neither. */
    int64_t n_parts;
    int32_t *ids; /* Memory of all answers afterwards, */
    float *logp;  /* to be freed. */
} lt_shared_answers;

/* A collective call: all answers, on every rank. If this rank failed with err, the call returns it
 * here, and REMOTE on the others. */
LT_MUST_USE lt_err lt_share_answers(lt_group *g, lt_shared_answers *s, lt_err err);

#endif
