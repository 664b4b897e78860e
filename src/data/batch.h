/* batch.h: allocates the arrays of a batch from an arena. */
#ifndef LT_DATA_BATCH_H
#define LT_DATA_BATCH_H

#include "base/arena.h"
#include "lateen/data.h"

/* Carve `batch` rows of `seq` tokens, 16 * batch * seq bytes: call it once to measure and once to
 * place. */
static inline void lt_batch_carve(lt_batch *b, int64_t batch, int64_t seq, lt_arena *a) {
    const size_t bytes = (size_t)(batch * seq) * sizeof(int32_t);
    b->batch = batch;
    b->seq = seq;
    b->tokens = lt_arena_take(a, bytes, LT_ARENA_ALIGN);
    b->labels = lt_arena_take(a, bytes, LT_ARENA_ALIGN);
    b->doc_start = lt_arena_take(a, bytes, LT_ARENA_ALIGN);
    b->positions = lt_arena_take(a, bytes, LT_ARENA_ALIGN);
}

#endif
