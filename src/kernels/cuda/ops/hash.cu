/* hash.cu — hashes of pieces of memory (ops.h): sum over 64-bit words of mix(word xor key).
 *
 * SHAPES    out (n); pieces (n, 2): a distance from x and a number of bytes. Pieces that begin at a
 *           multiple of 16 bytes are read in vectors of 16, others byte by byte.
 * MAP       one block of 256 threads a piece; thread t takes vectors t, t + 256, ...
 * MOVEMENT  x HBM ──HELD x 16 B/thread──▶ registers ──mix──▶ 64-bit sums
 *           ──shuffles, 8 words of smem──▶ out[piece] HBM
 * BOUND     bytes read. A word takes 2 products of 64 bits (3 of 32 each), 3 shifts with xor, a key
 *           and a sum: some 20 operations, 2.2 words a clock and SM at 4 TB/s on an H200, of which
 *           128 a clock are issued.
 * NUMERICS  integers modulo 2^64: the order of the sum does not matter. */
#include "common/reduce.cuh"
#include "kernels/cuda/ops/hash_args.h"

#define THREADS 256
#define WARPS   (THREADS / WARP)
#define HELD    8 /* Vectors that a thread loads at the same time. */
#define STEP    0x9E3779B97F4A7C15ull

INLINE u64 mix(u64 x) {
    x = (x ^ x >> 33) * 0xFF51AFD7ED558CCDull;
    x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53ull;
    return x ^ x >> 33;
}

/* The two words of a vector; key: that of the first. */
INLINE u64 mix_vector(uint4 v, u64 key) {
    return mix(((u64)v.y << 32 | v.x) ^ key) + mix(((u64)v.w << 32 | v.z) ^ (key + STEP));
}

/* Word `at` of a piece, which may end within it. */
INLINE u64 word_of(const unsigned char *piece, i64 bytes, i64 at) {
    u64 word = 0;
#pragma unroll 1
    for (int i = 0; i < 8 && 8 * at + i < bytes; i++) {
        word |= (u64)piece[8 * at + i] << (8 * i);
    }
    return word;
}

extern "C" __global__ void __launch_bounds__(THREADS) hash(const lt_cuda_hash_args a) {
    __shared__ u64 slots[WARPS];
    const i64 *piece = a.pieces + blockIdx.x * a.ld;
    const unsigned char *from = (const unsigned char *)((u64)a.x + (u64)piece[0]);
    const i64 bytes = piece[1], vectors = (u64)from % 16 == 0 ? bytes / 16 : 0;
    const uint4 *x = (const uint4 *)from;
    i64 at = threadIdx.x;
    u64 sum = 0;

    for (; at + (HELD - 1) * THREADS < vectors; at += HELD * THREADS) {
        uint4 held[HELD];
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            held[h] = __ldcs(x + at + h * THREADS);
        }
        const u64 key = (u64)(2 * at + 1) * STEP;
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            sum += mix_vector(held[h], key + (u64)(2 * THREADS * h) * STEP);
        }
    }
#pragma unroll 1
    for (; at < vectors; at += THREADS) {
        sum += mix_vector(__ldcs(x + at), (u64)(2 * at + 1) * STEP);
    }
    /* The bytes after the last vector, or all of a piece that is not aligned. */
#pragma unroll 1
    for (at = 2 * vectors + threadIdx.x; 8 * at < bytes; at += THREADS) {
        sum += mix(word_of(from, bytes, at) ^ (u64)(at + 1) * STEP);
    }
    sum = block_sum_of(sum, slots, WARPS);
    if (threadIdx.x == 0) {
        a.out[blockIdx.x] = sum;
    }
}
