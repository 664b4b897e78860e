/* batch.h: a batch's arrays out of an arena. */
#ifndef LT_DATA_BATCH_H
#define LT_DATA_BATCH_H

#include "base/arena.h"
#include "lateen/data.h"

/* Room for `batch` rows of `seq` tokens: 16 * batch * seq bytes. Carved like everything else:
 * measure, then place. */
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
