/* drop.cu — dropout: each number of x becomes 0 or is multiplied by a factor; random words
 * drawn for its place decide which. Formula: tensor/ops.h.
 *
 * SHAPES    x, y (rows, cols) of DTYPE, rows ld apart. Pieces of W elements, the first of them at a
 *           column of the whole row that is a multiple of 4; W = 1 takes any column and alignment.
 *           ADD=1: y += d(x).
 * MAP       one piece per thread; a block of 256 threads lies in one row.
 * MOVEMENT  x HBM ──16 B/thread──▶ registers ──mask──▶ y HBM, which is read first with ADD.
 * BOUND     4 bytes per number (bf16), 6 with ADD. Philox is 20 wide products and 40 more
 *           operations for 4 numbers, or for one with W = 1.
 * NUMERICS  fp32, one product, rounded at the store. */
#include "common/vec.cuh"
#include "kernels/cuda/ops/drop_args.h"

#define THREADS  256
#define ROW_BITS 22 /* LT_DROP_ROW_BITS. */
#define WORDS    4

/* lt_rng_block of base/rng.c. */
INLINE void draw(u32 words[WORDS], u64 seed, u64 stream, u64 position) {
    u32 c0 = (u32)position, c1 = (u32)(position >> 32), c2 = (u32)stream, c3 = (u32)(stream >> 32);
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
        c0 = (u32)(p1 >> 32) ^ c1 ^ k0;
        c2 = (u32)(p0 >> 32) ^ c3 ^ k1;
        c1 = (u32)p1;
        c3 = (u32)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

extern "C" __global__ void __launch_bounds__(THREADS) drop(const lt_cuda_drop_args a) {
    const int across = (a.cols + THREADS * W - 1) / (THREADS * W);
    const int row = blockIdx.x / across,
              col = ((int)(blockIdx.x % across) * THREADS + (int)threadIdx.x) * W;
    const int t = row % a.seq;
    const u64 whole_row = a.first_row + (u64)(row / a.seq) * a.row_step;
    const u64 place = (u64)(a.starts[t / a.piece] + t % a.piece);
    const u64 column = (u64)(a.column + col),
              block = ((whole_row << ROW_BITS) + place) * a.blocks + column / WORDS;
    float x[W], y[W];
    u32 words[WORDS];
    wait_for_others();
    if (col >= a.cols) {
        return;
    }
    piece_load(x, a.x + (i64)row * a.ld_x + col);
#if ADD
    piece_load(y, a.y + (i64)row * a.ld_y + col);
#endif
#pragma unroll
    for (int i = 0; i < W; i++) {
        if (i % WORDS == 0) {
            draw(words, a.seed, a.stream, block + (u64)(i / WORDS));
        }
        const u32 word = W > 1             ? words[i % WORDS]
                         : column % 4 == 0 ? words[0]
                         : column % 4 == 1 ? words[1]
                         : column % 4 == 2 ? words[2]
                                           : words[3];
        const float kept = word < a.threshold ? 0.0f : a.factor * x[i];
#if ADD
        y[i] += kept;
#else
        y[i] = kept;
#endif
    }
    piece_store(a.y + (i64)row * a.ld_y + col, y);
}
