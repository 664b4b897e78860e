/* hash.c: the hash of pieces of memory (ops.h), one vector of words and their keys at a time. */
#include "kernels/cpu/isa/vec.h"
#include "kernels/cpu/cpu.h"

#define LANES (VEC / 2) /* Words of a vector. */

typedef uint64_t vw __attribute__((vector_size(VEC * 4)));
typedef uint64_t vw_mem __attribute__((vector_size(VEC * 4), aligned(1), may_alias));

/* For vectors and for single words. */
#define MIX_STEP(x, factor) (((x) ^ (x) >> 33) * (factor))

static uint64_t mix(uint64_t x) {
    x = MIX_STEP(MIX_STEP(x, LT_HASH_MIX1), LT_HASH_MIX2);
    return x ^ x >> 33;
}

static uint64_t hash_of(const unsigned char *at, int64_t bytes) {
    vw sums = {0}, keys;
    uint64_t sum = 0, key;
    for (int i = 0; i < LANES; i++) {
        keys[i] = (uint64_t)(i + 1) * LT_HASH_STEP;
    }
    for (; bytes >= VEC * 4; bytes -= VEC * 4, at += VEC * 4) {
        vw x = *(const vw_mem *)at ^ keys;
        x = MIX_STEP(x, LT_HASH_MIX1);
        x = MIX_STEP(x, LT_HASH_MIX2);
        sums += x ^ x >> 33;
        keys += LANES * LT_HASH_STEP;
    }
    for (int i = 0; i < LANES; i++) {
        sum += sums[i];
    }
    for (key = keys[0]; bytes > 0; bytes -= 8, at += 8, key += LT_HASH_STEP) {
        uint64_t word = 0;
        memcpy(&word, at, bytes < 8 ? (size_t)bytes : 8);
        sum += mix(word ^ key);
    }
    return sum;
}

lt_err LT_ISA_NAME(lt_cpu_hash)(lt_queue *q, const void *args) {
    const lt_hash_args *a = args;
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
