/* 03_mma_sync.cu: the same on tensor cores as sm_80 has them: scores, probabilities and output stay
 * in one warp's registers.
 *
 * SHAPES    q, o (B, T, H, D), k, v (B, S, G, D), contiguous; D = WIDTH (64 or 128).
 * MAP       256 threads, 128 queries of a head, 16 a warp. A warp never waits for another but at
 *           the tiles' barriers: a row of scores lies in four threads.
 * MOVEMENT
 *     Q (128, D) ──cp.async──▶ smem ──ldmatrix──▶ fragments, once
 *     K, V blocks (64, D), two of each under way ──cp.async──▶ smem ──ldmatrix (V: .trans)──▶
 *         fragments ──mma.sync──▶ S ─ softmax ─▶ P ──mma.sync──▶ O
 *     The sums of one product have the layout of the next one's left operand: P is packed to 16
 *     bits where it stands.
 * BOUND     mma.sync at about 62 % of Hopper's tensor cores, and exponentials that nothing hides:
 *           while a warp takes them its SM sub-core multiplies for the other warp only.
 * NUMERICS  scores, sums and O in f32, P rounded to 16 bits, one rounding at the store. Fixed
 *           order.
 * LADDER    rung 3. Next: ../fwd_sm90.cu, the copy engine, wgmma, producer and consumers.
 * REFS      Dao 2023 (arXiv:2307.08691). */
#include "attention/mask.cuh"
#include "common/mma.cuh"
#include "kernels/cuda/attention/ladder/rung_args.h"

#define ROWS     128
#define KEYS     64
#define COLUMNS  (WIDTH / 64) /* of 128 bytes */
#define Q_BYTES  (ROWS * WIDTH * 2)
#define KV_BYTES (KEYS * WIDTH * 2)
static_assert(Q_BYTES + 4 * KV_BYTES == LT_ATTN_RUNG_MMA_BYTES(WIDTH), "q, k, v");

/* Address of 16 bytes in a tile of `rows` rows: columns of 64 elements one after another, with
 * pieces swizzled by the row so that ldmatrix has no bank conflicts. */
INLINE u32 piece_at(u32 tile, int rows, int row, int piece) {
    return tile + piece / 8 * rows * 128 + row * 128 + ((piece % 8 ^ (row & 7)) << 4);
}
INLINE void fetch(u32 tile, const elem *x, i64 stride, int first, int limit, int rows) {
    for (int at = (int)threadIdx.x; at < rows * (WIDTH / 8); at += 256) {
        const int row = at / (WIDTH / 8), piece = at % (WIDTH / 8);
        const bool inside = first + row < limit;
        cp_async_16_or_zero(piece_at(tile, rows, row, piece),
                            inside ? x + (i64)(first + row) * stride + piece * 8 : x,
                            inside ? 4 : 0);
    }
}
/* Over the four threads of a row. */
INLINE float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
INLINE float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

typedef struct {
    /* of rows lane / 4 and lane / 4 + 8; sum: this thread's part until the end */
    float top[2], sum[2];
    key_range see[2];
} rows_state;

/* S of one block to P, in units of log2. Returns the factor for the rows' earlier results. */
INLINE void softmax(float s[KEYS / 8][4], float shrink[2], rows_state *r, float scale,
                    int first_key, bool masked) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = -INFINITE;
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int key = first_key + i * 8 + lane % 4 * 2 + e;
                float *x = &s[i][half * 2 + e];
                *x = masked && (key < r->see[half].lo || key > r->see[half].hi) ? -INFINITE
                                                                                : *x * scale;
                most = fmaxf(most, *x);
            }
        }
        most = fmaxf(r->top[half], row_max(most));
        const float base = most == -INFINITE ? 0.0f : most;
        shrink[half] = exp2_fast(r->top[half] - base);
        r->top[half] = most;
        r->sum[half] *= shrink[half];
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                s[i][half * 2 + e] = exp2_fast(s[i][half * 2 + e] - base);
                r->sum[half] += s[i][half * 2 + e];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 1)
    attn_mma_sync(const __grid_constant__ lt_attn_rung_args w) {
    extern __shared__ __align__(128) u8 smem[];
    const u32 sq = smem_addr(smem), ring = sq + Q_BYTES; /* two of (K, V) */
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, h = (int)blockIdx.y,
              b = (int)blockIdx.z;
    const int first = ((int)gridDim.x - 1 - (int)blockIdx.x) * ROWS; /* Long rows come first. */
    const int g = h / (w.a.q_heads / w.a.kv_heads), n_keys = keys_of(&w.a, b),
              mine = first + warp * 16 + lane / 4;
    const key_range low = range_of(&w.a, b, n_keys, first),
                    high = range_of(&w.a, b, n_keys, min_i(first + ROWS, w.a.q_tokens) - 1);
    const int j_begin = low.lo / KEYS, j_end = high.hi < low.lo ? j_begin : high.hi / KEYS + 1;
    const i64 kv_at = ((i64)b * w.a.kv_tokens * w.a.kv_heads + g) * w.width,
              kv_stride = (i64)w.a.kv_heads * w.width;
    const float scale = w.a.scale * LOG2E;
    u32 qf[WIDTH / 16][4];
    float acc[WIDTH / 8][4] = {{0.0f}};
    rows_state r = {{-INFINITE, -INFINITE},
                    {0.0f, 0.0f},
                    {range_of(&w.a, b, n_keys, mine), range_of(&w.a, b, n_keys, mine + 8)}};

    fetch(sq, w.q + ((i64)b * w.a.q_tokens * w.a.q_heads + h) * w.width, (i64)w.a.q_heads * w.width,
          first, w.a.q_tokens, ROWS);
    if (j_begin < j_end) {
        fetch(ring, w.k + kv_at, kv_stride, j_begin * KEYS, n_keys, KEYS);
        fetch(ring + KV_BYTES, w.v + kv_at, kv_stride, j_begin * KEYS, n_keys, KEYS);
    }
    cp_async_commit();
    for (int j = j_begin; j < j_end; j++) {
        const u32 tile_k = ring + (j - j_begin) % 2 * 2 * KV_BYTES, tile_v = tile_k + KV_BYTES;
        const u32 next = ring + (j - j_begin + 1) % 2 * 2 * KV_BYTES;
        float s[KEYS / 8][4] = {{0.0f}}, shrink[2];
        if (j + 1 < j_end) {
            fetch(next, w.k + kv_at, kv_stride, (j + 1) * KEYS, n_keys, KEYS);
            fetch(next + KV_BYTES, w.v + kv_at, kv_stride, (j + 1) * KEYS, n_keys, KEYS);
        }
        cp_async_commit();
        cp_async_wait(1);
        __syncthreads();
        if (j == j_begin) {
#pragma unroll
            for (int d = 0; d < WIDTH / 16; d++) {
                ldmatrix_x4(qf[d], piece_at(sq, ROWS, warp * 16 + lane % 16, d * 2 + lane / 16));
            }
        }
#pragma unroll
        for (int d = 0; d < WIDTH / 16; d++) { /* 1. S = Q K^T */
#pragma unroll
            for (int i = 0; i < KEYS / 16; i++) {
                u32 y[4];
                ldmatrix_x4(y, piece_at(tile_k, KEYS, i * 16 + lane / 16 * 8 + lane % 8,
                                        d * 2 + lane / 8 % 2));
                mma_16x8x16(s[2 * i], qf[d], y[0], y[1]);
                mma_16x8x16(s[2 * i + 1], qf[d], y[2], y[3]);
            }
        }
        /* 2. Only blocks that some row of the tile sees partly are masked. */
        softmax(s, shrink, &r, scale, j * KEYS, j * KEYS < high.lo || j * KEYS + KEYS - 1 > low.hi);
#pragma unroll
        for (int i = 0; i < WIDTH / 8; i++) {
            acc[i][0] *= shrink[0], acc[i][1] *= shrink[0], acc[i][2] *= shrink[1],
                acc[i][3] *= shrink[1];
        }
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) { /* 3. O += P V */
            const u32 p[4] = {PACK_ELEM(s[2 * n][0], s[2 * n][1]),
                              PACK_ELEM(s[2 * n][2], s[2 * n][3]),
                              PACK_ELEM(s[2 * n + 1][0], s[2 * n + 1][1]),
                              PACK_ELEM(s[2 * n + 1][2], s[2 * n + 1][3])};
#pragma unroll
            for (int i = 0; i < WIDTH / 16; i++) {
                u32 y[4];
                ldmatrix_x4_trans(y, piece_at(tile_v, KEYS, n * 16 + lane / 8 % 2 * 8 + lane % 8,
                                              i * 2 + lane / 16));
                mma_16x8x16(acc[2 * i], p, y[0], y[1]);
                mma_16x8x16(acc[2 * i + 1], p, y[2], y[3]);
            }
        }
        __syncthreads(); /* The block may be overwritten. */
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int t = mine + half * 8;
        const float sum = row_sum(r.sum[half]), to = sum > 0.0f ? 1.0f / sum : 0.0f;
        elem *row = w.o + (((i64)b * w.a.q_tokens + t) * w.a.q_heads + h) * w.width;
#pragma unroll
        for (int i = 0; i < WIDTH / 8; i++) {
            if (t < w.a.q_tokens) {
                *(u32 *)(row + i * 8 + lane % 4 * 2) = PACK_ELEM(acc[i][half * 2] * to,
                                                                 acc[i][half * 2 + 1] * to);
            }
        }
        if (lane % 4 == 0 && t < w.a.q_tokens && w.a.lse != 0) {
            w.a.lse[((i64)b * w.a.q_heads + h) * w.a.q_tokens + t] =
                sum > 0.0f ? r.top[half] * LN2 + logf(sum) : -INFINITE;
        }
    }
}
