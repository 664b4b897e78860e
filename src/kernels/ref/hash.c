/* hash.c (ref): the hash of pieces of memory (ops.h), word by word. */
#include <string.h>

#include "kernels/ref/ref.h"

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 33) * LT_HASH_MIX1;
    x = (x ^ x >> 33) * LT_HASH_MIX2;
    return x ^ x >> 33;
}

static uint64_t hash_of(const unsigned char *at, int64_t bytes) {
    uint64_t sum = 0;
    for (int64_t k = 1; bytes > 0; k++, at += 8, bytes -= 8) {
        uint64_t word = 0;
        memcpy(&word, at, bytes < 8 ? (size_t)bytes : 8);
        sum += mix(word ^ (uint64_t)k * LT_HASH_STEP);
    }
    return sum;
}

lt_err lt_ref_hash(lt_queue *q, const lt_hash_args *a) {
    const int64_t *pieces = a->pieces.data;
    uint64_t *out = a->out.data;
    (void)q;
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < a->out.shape[0]; i++) {
        const int64_t *piece = pieces + i * a->pieces.stride[0];
        out[i] = hash_of((const unsigned char *)((uintptr_t)a->x.data + (uintptr_t)piece[0]),
                         piece[1]);
    }
    return LT_OK;
}
