/* gemv_q.cu: few rows times a quantised weight matrix, as pack_q.cu laid it out: y (M, N) = x (M, K) W^T, M = 1 .. 8; and W back to 16 bits for more rows.
 *
 * SHAPES    K a multiple of 32; rows of x 16-byte aligned; any N.
 * MAP       a warp makes ROWS columns of y for all M rows of x; a lane takes 16 bytes of a row of W in turn: 16 or 32 elements with one scale.
 *           SPLIT warps of a block share the same columns.
 * MOVEMENT
 *     W ──16 bytes a lane, past the L1──▶ registers ─bytes to floats─┐
 *     x ──16 bytes a lane, from the L1──▶ registers ─────────────────┴─▶ dot products ─ x scale ─▶ sums ──shuffles──▶ (SPLIT: smem) ──▶ y
 *     A byte u becomes the float 2^23 + u by putting it under that float's exponent: no conversion, of which an SM does 16 a clock.
 * BOUND     bytes of W: 1.06 an element of Q8_0, 0.56 of Q4_0. Instructions: 3.5 an element and row of W and 1 more a row of x.
 * NUMERICS  weights exact, f32 multiply-adds, fixed order: bit-identical, whatever M is.
 *@spec sm_80 sm_90a: M=1 ROWS=2 SPLIT=1 BITS=8 GROUP=32 MINS=0 OFFSET=128 OUT=bf16
 *@spec sm_80 sm_90a: M=1 ROWS=4 SPLIT=2 BITS=4 GROUP=32 MINS=0 OFFSET=8 OUT=bf16
 *@spec sm_80 sm_90a: M=2 ROWS=2 SPLIT=4 BITS=4 GROUP=32 MINS=1 OFFSET=0 OUT=fp32
 *@spec sm_80 sm_90a: M=8 ROWS=2 SPLIT=1 BITS=8 GROUP=16 MINS=0 OFFSET=32 OUT=bf16 */
#include "common/early.cuh"
#include "common/hopper.cuh"

#define WARPS  4
#define GROUPS (WARPS / SPLIT)   /* of warps in a block, each with columns of its own */
#define EL     (128 / BITS)      /* elements of a lane's 16 bytes */
#define TURN   (SPLIT * 32 * EL) /* elements that the warps of a group take at once */
#ifndef UNROLL
#define UNROLL 2
#endif
#define MAGIC 8388608.0f /* 2^23: its last byte counts ones. */
static_assert(GROUP >= EL || GROUP == 16 && EL == 16, "a lane's piece has one scale");

typedef struct {
    const elem *x;
    const u8 *w;
    const void *bias;
    OUT *y;
    i64 ldx, ldw, ldy; /* ldw in bytes */
    int n, k, bias_type, accumulate; /* bias_type: 0 none, 1 f32, 2 bf16, 3 fp16 */
} gemv_args;

typedef struct {
    uint4 v;
    fp16 scale, least;
} piece;

INLINE float bias_at(const gemv_args *a, int col) {
    return a->bias_type == 1   ? ((const float *)a->bias)[col]
           : a->bias_type == 2 ? bf16_to_f32(((const bf16 *)a->bias)[col])
           : a->bias_type == 3 ? fp16_to_f32(((const fp16 *)a->bias)[col])
                               : 0.0f;
}
/* Elements [k, k + EL) of a row of n; past its end zeros. */
INLINE piece load_piece(const u8 *row, int k, int n) {
    piece p = {make_uint4(0, 0, 0, 0), {0}, {0}};
    if (k < n) {
        const fp16 *scales = (const fp16 *)(row + n * BITS / 8);
        p.v = load_once(row + k * BITS / 8);
        p.scale = scales[k / GROUP];
        if (MINS) {
            p.least = scales[n / GROUP + k / 32];
        }
    }
    return p;
}
/* The eight elements `chunk` of a piece, OFFSET taken off. */
INLINE void widen(float q[8], uint4 v, int chunk) {
    const u32 w[4] = {v.x, v.y, v.z, v.w};
    const u32 lo = BITS == 8 ? w[2 * chunk & 3] : w[chunk & 3] & 0x0f0f0f0fu;
    const u32 hi = BITS == 8 ? w[(2 * chunk + 1) & 3] : w[chunk & 3] >> 4 & 0x0f0f0f0fu;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        q[i] = __uint_as_float(__byte_perm(lo, 0x4b000000u, 0x7540u + i)) - (MAGIC + OFFSET);
        q[4 + i] = __uint_as_float(__byte_perm(hi, 0x4b000000u, 0x7540u + i)) - (MAGIC + OFFSET);
    }
}
INLINE void load_pieces(piece p[UNROLL][ROWS], const u8 *const w[ROWS], int k0, int n) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            p[u][r] = load_piece(w[r], k0 + u * TURN, n);
        }
    }
}
/* sum += what elements [k, k + EL) give. */
INLINE void multiply(float sum[ROWS][M], const gemv_args *a, const piece p[ROWS], int k) {
    float dot[ROWS][M] = {{0.0f}}, total[M] = {0.0f};
#pragma unroll
    for (int c = 0; c < EL / 8; c++) {
        float q[ROWS][8];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            widen(q[r], p[r].v, c);
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
            float x[8];
            UNPACK(DTYPE, x, *(const uint4 *)(a->x + m * a->ldx + k + 8 * c));
#pragma unroll
            for (int i = 0; i < 8; i++) {
                total[m] += MINS ? x[i] : 0.0f;
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    dot[r][m] += x[i] * q[r][i];
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int m = 0; m < M; m++) {
            sum[r][m] += fp16_to_f32(p[r].scale) * dot[r][m];
            sum[r][m] -= MINS ? fp16_to_f32(p[r].least) * total[m] : 0.0f;
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
gemv_q(const __grid_constant__ gemv_args a) {
    __shared__ float part[WARPS][M * ROWS];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, group = warp / SPLIT, share = warp % SPLIT;
    const int col = ((int)blockIdx.x * GROUPS + group) * ROWS, first = (share * 32 + lane) * EL;
    const u8 *w[ROWS];
    piece p[UNROLL][ROWS];
    float sum[ROWS][M] = {{0.0f}};

    for (int r = 0; r < ROWS; r++) { /* Past the end: the last column again, not stored. */
        w[r] = a.w + (i64)min_i(col + r, a.n - 1) * a.ldw;
    }
    load_pieces(p, w, first, a.k); /* On their way before x is there. */
    wait_for_others();
    for (int k0 = first; k0 < a.k; k0 += UNROLL * TURN) {
        if (k0 != first) {
            load_pieces(p, w, k0, a.k);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (k0 + u * TURN < a.k) {
                multiply(sum, &a, p[u], k0 + u * TURN);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int step = 16; step > 0; step /= 2) {
                sum[r][m] += __shfl_xor_sync(0xffffffffu, sum[r][m], step);
            }
            if (lane == 0) {
                part[warp][r * M + m] = sum[r][m];
            }
        }
    }
    if (SPLIT > 1) {
        __syncthreads();
    } else {
        __syncwarp();
    }
    for (int i = lane; share == 0 && i < ROWS * M; i += 32) {
        const int at = col + i / M;
        float x = 0.0f;
        for (int s = 0; s < SPLIT; s++) {
            x += part[warp + s][i];
        }
        if (at < a.n) {
            OUT *y = a.y + (i % M) * a.ldy + at;
            x += bias_at(&a, at);
            *y = FROM_F32(OUT, a.accumulate ? x + TO_F32(OUT, *y) : x);
        }
    }
}

/* wide (N, K) = W in 16 bits: a thread a piece. */
extern "C" __global__ void __launch_bounds__(128)
widen_q(elem *wide, const u8 *w, i64 rows, int k, i64 ldw) {
    const i64 item = (i64)blockIdx.x * 128 + threadIdx.x, row = item / (k / EL);
    const int at = (int)(item % (k / EL)) * EL;
    if (row >= rows) {
        return;
    }
    const piece p = load_piece(w + row * ldw, at, k);
    const float scale = fp16_to_f32(p.scale), least = MINS ? fp16_to_f32(p.least) : 0.0f;
#pragma unroll
    for (int c = 0; c < EL / 8; c++) {
        float q[8];
        widen(q, p.v, c);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            q[i] = scale * q[i] - least;
        }
        *(uint4 *)(wide + row * k + at + 8 * c) = PACK(DTYPE, q);
    }
}
