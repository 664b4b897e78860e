/* 02_tiled.cu: FlashAttention's idea on CUDA cores: tiles of keys come through shared memory, the
 * softmax is updated with each, and the scores are never in memory.
 *
 * SHAPES    q, o (B, T, H, D), k, v (B, S, G, D), contiguous; D a multiple of 16 up to WIDTH (64 or
 *           128).
 * MAP       256 threads, 64 queries of a head; a thread owns 4 rows x 4 keys of the scores and 4
 *           rows x D / 16 columns of O.
 * MOVEMENT
 *     Q (64, D), K block (64, D), V block (64, D) ──▶ smem as f32 ──▶ S in registers
 *         ─ mask, running maximum, exp2 ─▶ P in smem ──▶ O in registers
 *     Row r's 16 threads share its maximum and sum by shuffles. Rows are padded by 4 floats:
 *     threads of a warp read 2 rows of Q (broadcast) and 16 rows of K, 4 banks apart.
 * BOUND     f32 multiply-adds: 2 x 128 a clock and SM, 67 TFLOP/s, and one read of shared memory
 *           for every two of them.
 * NUMERICS  f32 throughout, one rounding; running maximum: when a block raises it, sum and O shrink
 *           by exp2(old - new) (Milakov & Gimelshein 2018, arXiv:1805.02867). A row that sees
 *           nothing: 0, lse -inf.
 * LADDER    rung 2. Next: 03_mma_sync.cu, tensor cores.
 * REFS      Dao et al. 2022 (arXiv:2205.14135), algorithm 1. */
#include "attention/mask.cuh"
#include "kernels/cuda/attention/ladder/rung_args.h"

#define ROWS 64
#define KEYS 64
#define PAD  (WIDTH + 4)
#define COLS (WIDTH / 16) /* columns of O per thread */
static_assert(((ROWS + 2 * KEYS) * PAD + ROWS * (KEYS + 4)) * 4 == LT_ATTN_RUNG_TILED_BYTES(WIDTH),
              "q, k, v, P");

INLINE void load_tile(float *to, const elem *x, i64 stride, int first, int rows, int width) {
    for (int i = (int)threadIdx.x; i < ROWS * WIDTH; i += 256) {
        const int r = i / WIDTH, c = i % WIDTH;
        to[r * PAD + c] = first + r < rows && c < width ? ELEM_F32(x[(i64)(first + r) * stride + c])
                                                        : 0.0f;
    }
}
/* Over the 16 threads of a row. */
INLINE float row_max(float x) {
    for (int step = 8; step > 0; step /= 2) {
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    }
    return x;
}
INLINE float row_sum(float x) {
    for (int step = 8; step > 0; step /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, step);
    }
    return x;
}

extern "C" __global__ void __launch_bounds__(256)
    attn_tiled(const __grid_constant__ lt_attn_rung_args w) {
    extern __shared__ __align__(16) float room[];
    /* P: ROWS x (KEYS + 4) */
    float *sq = room, *sk = sq + ROWS * PAD, *sv = sk + KEYS * PAD, *sp = sv + KEYS * PAD;
    const int tx = (int)threadIdx.x % 16, ty = (int)threadIdx.x / 16,
              first = (int)blockIdx.x * ROWS, h = (int)blockIdx.y, b = (int)blockIdx.z;
    const int g = h / (w.a.q_heads / w.a.kv_heads), n_keys = keys_of(&w.a, b),
              last = min_i(first + ROWS, w.a.q_tokens) - 1;
    const int lo = range_of(&w.a, b, n_keys, first).lo / KEYS,
              hi = range_of(&w.a, b, n_keys, last).hi;
    const i64 kv_at = ((i64)b * w.a.kv_tokens * w.a.kv_heads + g) * w.width,
              kv_stride = (i64)w.a.kv_heads * w.width;
    float top[4], sum[4] = {0.0f}, acc[4][COLS] = {{0.0f}};
    key_range see[4];

    for (int i = 0; i < 4; i++) {
        top[i] = -INFINITE;
        see[i] = range_of(&w.a, b, n_keys, first + ty * 4 + i);
    }
    load_tile(sq, w.q + ((i64)b * w.a.q_tokens * w.a.q_heads + h) * w.width,
              (i64)w.a.q_heads * w.width, first, w.a.q_tokens, w.width);
    for (int j = lo; j * KEYS <= hi; j++) {
        float s[4][4] = {{0.0f}};
        __syncthreads(); /* All threads have used the previous block. */
        load_tile(sk, w.k + kv_at, kv_stride, j * KEYS, n_keys, w.width);
        load_tile(sv, w.v + kv_at, kv_stride, j * KEYS, n_keys, w.width);
        __syncthreads();
        for (int d = 0; d < WIDTH; d += 4) { /* 1. Scores: keys tx, tx + 16, .. */
            float4 x[4], y[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] = *(const float4 *)(sq + (ty * 4 + i) * PAD + d);
                y[i] = *(const float4 *)(sk + (tx + i * 16) * PAD + d);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    s[i][n] += x[i].x * y[n].x + x[i].y * y[n].y + x[i].z * y[n].z +
                               x[i].w * y[n].w;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) { /* 2. Mask; earlier results are rescaled to a new maximum. */
            float most = -INFINITE, part = 0.0f;
            for (int n = 0; n < 4; n++) {
                const int key = j * KEYS + tx + n * 16;
                s[i][n] = key >= see[i].lo && key <= see[i].hi ? s[i][n] * w.a.scale * LOG2E
                                                               : -INFINITE;
                most = fmaxf(most, s[i][n]);
            }
            most = fmaxf(top[i], row_max(most));
            const float base = most == -INFINITE ? 0.0f : most, shrink = exp2_fast(top[i] - base);
            for (int n = 0; n < 4; n++) {
                s[i][n] = exp2_fast(s[i][n] - base);
                part += s[i][n];
                sp[(ty * 4 + i) * (KEYS + 4) + tx + n * 16] = s[i][n];
            }
            sum[i] = sum[i] * shrink + row_sum(part);
            top[i] = most;
            for (int c = 0; c < COLS; c++) {
                acc[i][c] *= shrink;
            }
        }
        __syncthreads();
        for (int key = 0; key < KEYS; key++) { /* 3. O += P V: columns tx, tx + 16, .. */
            float y[COLS];
#pragma unroll
            for (int c = 0; c < COLS; c++) {
                y[c] = sv[key * PAD + tx + c * 16];
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float p = sp[(ty * 4 + i) * (KEYS + 4) + key];
#pragma unroll
                for (int c = 0; c < COLS; c++) {
                    acc[i][c] += p * y[c];
                }
            }
        }
    }
    for (int i = 0; i < 4; i++) {
        const int t = first + ty * 4 + i;
        const float scale = sum[i] > 0.0f ? 1.0f / sum[i] : 0.0f;
        for (int c = 0; c < COLS && t < w.a.q_tokens; c++) {
            if (tx + c * 16 < w.width) {
                w.o[(((i64)b * w.a.q_tokens + t) * w.a.q_heads + h) * w.width + tx + c * 16] =
                    FROM_F32(DTYPE, acc[i][c] * scale);
            }
        }
        if (tx == 0 && t < w.a.q_tokens && w.a.lse != 0) {
            w.a.lse[((i64)b * w.a.q_heads + h) * w.a.q_tokens + t] =
                sum[i] > 0.0f ? top[i] * LN2 + logf(sum[i]) : -INFINITE;
        }
    }
}
