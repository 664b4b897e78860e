/* rope.cu — rotary embedding of heads, with the per-head RMSNorm of QK-norm fused in (NORM=1), forward and backward.
 *
 * SHAPES    x, y (rows, H, D) of DTYPE, heads of a wider row too; positions (rows) int32; table (P, D/2, 2) fp32 cos, sin; gain (D) fp32. Halves convention:
 *           y[i] = x[i] c - x[i + D/2] s, y[i + D/2] = x[i + D/2] c + x[i] s. Whole heads rotate (N = D); D = LANES * 2 W.
 * MAP       LANES threads a head; a thread holds W elements of the first half and the W of the second half that rotate with them.
 * MOVEMENT  x ──2 x 16 B──▶ registers ─(norm: shuffle)─▶ rotate with table[position] (L2: H heads share it) ──▶ y
 * BOUND     4 bytes an element (bf16), backward with norm 6. dgain: partial rows as in norm.cu.
 * REFS      Su et al. 2021, arXiv:2104.09864; Henry et al. 2020, arXiv:2010.04245 (QK-norm).
 *@spec sm_80 sm_90a: NORM=0 DTYPE=bf16 W=8 LANES=8
 *@spec sm_80 sm_90a: NORM=1 DTYPE=bf16 W=8 LANES=8
 *@spec sm_80 sm_90a: NORM=1 DTYPE=bf16 W=8 LANES=4
 *@spec sm_80 sm_90a: NORM=1 DTYPE=fp32 W=4 LANES=16 */
#include "common/vec.cuh"

#define THREADS      256
#define D            (LANES * 2 * W)
#define HEADS_AT_ONCE (THREADS / LANES)

INLINE float head_sum(float x) {
#pragma unroll
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, lanes);
    }
    return x;
}
/* Rotate the pairs (a, b) by the angles of a position; sign -1 rotates back. */
INLINE void rotate(float *a, float *b, const float *table, int position, int lane, float sign) {
    const float *cs = table + ((i64)position * (D / 2) + lane * W) * 2;
#pragma unroll
    for (int i = 0; i < W; i += 2) {
        const float4 t = *(const float4 *)&cs[2 * i]; /* Two pairs of cos, sin. */
        const float a0 = a[i], b0 = b[i], a1 = a[i + 1], b1 = b[i + 1];
        a[i] = a0 * t.x - sign * b0 * t.y, b[i] = b0 * t.x + sign * a0 * t.y;
        a[i + 1] = a1 * t.z - sign * b1 * t.w, b[i + 1] = b1 * t.z + sign * a1 * t.w;
    }
}

typedef struct {
    view y, x; /* of rows (R, H) */
    row_shape n;
} rope_views;

extern "C" __global__ void __launch_bounds__(THREADS)
rope_fwd(DTYPE *y, const DTYPE *x, const int *positions, const float *table, const float *gain, float *rstd, i64 n_heads,
         const __grid_constant__ rope_views at, float eps, float sign) {
    const i64 head = (i64)blockIdx.x * HEADS_AT_ONCE + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    const bool live = head < n_heads;
    float a[W] = {0.0f}, b[W] = {0.0f};
    wait_for_others();
    x += row_at(at.x, head, at.n) + lane * W, y += row_at(at.y, head, at.n) + lane * W;
    if (live) {
        piece_load_stream(a, x);
        piece_load_stream(b, x + D / 2);
    }
#if NORM
    float squares = 0.0f, g[W];
#pragma unroll
    for (int i = 0; i < W; i++) {
        squares += a[i] * a[i] + b[i] * b[i];
    }
    const float scale = rsqrtf(head_sum(squares) / D + eps);
    if (live && lane == 0 && rstd) {
        rstd[head] = scale;
    }
    piece_load_f32(g, gain + lane * W);
#pragma unroll
    for (int i = 0; i < W; i++) {
        a[i] *= scale * g[i];
    }
    piece_load_f32(g, gain + D / 2 + lane * W);
#pragma unroll
    for (int i = 0; i < W; i++) {
        b[i] *= scale * g[i];
    }
#endif
    if (live) {
        rotate(a, b, table, positions[(u32)head / (u32)at.n.n1], lane, sign);
        piece_store(y, a);
        piece_store(y + D / 2, b);
    }
}

#if NORM
/* dx from dy: rotate back, then RMSNorm's backward. parts (gridDim.x, D): dgain of a block's heads. */
extern "C" __global__ void __launch_bounds__(THREADS)
rope_norm_bwd(DTYPE *dx, float *parts, const DTYPE *dy, const DTYPE *x, const int *positions, const float *table, const float *gain,
              const float *rstd, i64 n_heads, int heads) {
    __shared__ alignas(16) float sums[HEADS_AT_ONCE][D];
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    float ga[W], gb[W], dga[W] = {0.0f}, dgb[W] = {0.0f};
    piece_load_f32(ga, gain + lane * W);
    piece_load_f32(gb, gain + D / 2 + lane * W);
    for (i64 first = (i64)blockIdx.x * HEADS_AT_ONCE; first < n_heads; first += (i64)gridDim.x * HEADS_AT_ONCE) {
        const i64 head = first + group, at = head * D + lane * W;
        const bool live = head < n_heads;
        float a[W] = {0.0f}, b[W] = {0.0f}, da[W] = {0.0f}, db[W] = {0.0f}, dot = 0.0f;
        const float scale = live ? rstd[head] : 0.0f;
        if (live) {
            piece_load_stream(a, x + at);
            piece_load_stream(b, x + at + D / 2);
            piece_load_stream(da, dy + at);
            piece_load_stream(db, dy + at + D / 2);
            rotate(da, db, table, positions[head / heads], lane, -1.0f);
        }
#pragma unroll
        for (int i = 0; i < W; i++) {
            a[i] *= scale, b[i] *= scale;
            dga[i] += da[i] * a[i], dgb[i] += db[i] * b[i];
            da[i] *= ga[i], db[i] *= gb[i];
            dot += da[i] * a[i] + db[i] * b[i];
        }
        dot = head_sum(dot) / D;
        if (live) {
#pragma unroll
            for (int i = 0; i < W; i++) {
                da[i] = scale * (da[i] - a[i] * dot), db[i] = scale * (db[i] - b[i] * dot);
            }
            piece_store(dx + at, da);
            piece_store(dx + at + D / 2, db);
        }
    }
    piece_store_f32(&sums[group][lane * W], dga);
    piece_store_f32(&sums[group][D / 2 + lane * W], dgb);
    __syncthreads();
    for (int col = threadIdx.x; col < D; col += THREADS) { /* Heads of a block in order. */
        float sum = 0.0f;
        for (int h = 0; h < HEADS_AT_ONCE; h++) {
            sum += sums[h][col];
        }
        parts[(i64)blockIdx.x * D + col] = sum;
    }
}
#endif
