/* scaled.cu: matrices rounded to 8-bit floats with one scale per block, as stored and transposed.
 *
 * SHAPES    x (R, C), DTYPE; y (R, C), t (C, R) of Y_E5M2, T_E5M2; Y_KIND, T_KIND: 0 absent, 1 one
 *           scale (tensor), 2 of 1 x 128 (row), 3 of 128 x 128 (block). WHOLE 1: rows of x
 *           aligned to 16 bytes, of y to 8, of t to 16, C a multiple of 8; else any.
 * MAP       cast_rows (y by rows, WHOLE): 16 threads per block of 128, and four blocks per
 *           thread; 4 blocks are neighbours, so 64 threads read 1 KB of a row. cast_tile (all
 *           other cases): 256 threads per tile of 128 x 128; a thread holds 8 columns of 8 rows.
 * MOVEMENT
 *     HBM  x ──16 B a thread──▶ registers ──max over 16 lanes (row), the tile (block), 128 rows
 *             through smem (row of t)──▶ scale
 *             y: 8 bytes a thread ──▶ HBM
 *             t: 8 bytes ──▶ smem tile, 16 bytes further every 16 rows ──4 x 4 bytes transposed in
 *             registers──▶ 16 bytes ──▶ HBM
 * BOUND     3 bytes per element of BF16, 4 with the transpose: 16384 x 8192: 403 MB, 134 us at
 *           3.0 TB/s.
 * TENSOR    amax_parts stores the largest magnitude of each block in scratch memory; every block
 *           of cast_tile finds the largest of those itself: no atomics, no third kernel. If the
 *           scale is given, there are no parts, and it is read.
 * NUMERICS  scales are powers of two: only the conversion rounds, so the bits are the same on
 *           every device. Maxima do not depend on order. */
#include "common/early.cuh"
#include "common/fp8.cuh"
#include "common/reduce.cuh"
#include "kernels/cuda/ops/scaled_args.h"

#ifndef Y_E5M2
#define Y_E5M2 0
#endif
#ifndef T_E5M2
#define T_E5M2 0
#endif
#define THREADS     256
#define KIND_TENSOR 1
#define KIND_ROW    2
#define KIND_BLOCK  3
#define SPAN        SCALE_SPAN
/* The tile, shifted by 16 bytes every 16 rows. */
#define N_WORDS (SPAN * SPAN / 4 + SPAN / 16 * 4)
static_assert(W == VEC_ELEMS(DTYPE), "a thread reads 16 bytes at a time");

/* 8 elements of row r, from column c on; zeros outside. */
INLINE void load8(float *v, const DTYPE *x, i64 ld, i64 r, int c, i64 rows, int cols) {
    const DTYPE *at = x + r * ld + c;
    if (WHOLE) {
        const bool in = r < rows && c < cols;
#pragma unroll
        for (int i = 0; i < 8; i += W) {
            UNPACK(DTYPE, v + i, in ? __ldcs((const uint4 *)(at + i)) : make_uint4(0, 0, 0, 0));
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[i] = r < rows && c + i < cols ? TO_F32(DTYPE, at[i]) : 0.0f;
        }
    }
}
INLINE u32 amax8(const float *v) {
    u32 most = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        most = max_u(most, magnitude(v[i]));
    }
    return most;
}
INLINE u32 lanes_max(u32 x, int lanes) { /* The largest of the lanes that share a row. */
#pragma unroll
    for (int at = lanes / 2; at > 0; at /= 2) {
        x = max_u(x, __shfl_xor_sync(ALL_LANES, x, at));
    }
    return x;
}
INLINE uint2 codes8(const float *v, float inverse, int e5m2) {
    return make_uint2(
        f8_pack4(v[0] * inverse, v[1] * inverse, v[2] * inverse, v[3] * inverse, e5m2),
        f8_pack4(v[4] * inverse, v[5] * inverse, v[6] * inverse, v[7] * inverse, e5m2));
}

#if Y_KIND == KIND_ROW && T_KIND == 0 && WHOLE
#define PER     4  /* Blocks of 128 of which a thread has a part. */
#define LANES   16 /* Threads per block of 128, 8 elements each. */
#define ROWS_AT (THREADS / LANES / 4)

extern "C" __global__ void __launch_bounds__(THREADS) cast_rows(const lt_cuda_cast_rows_args a) {
    const int lane = (int)threadIdx.x % LANES, group = (int)threadIdx.x / LANES;
    const int block = (int)blockIdx.x % a.tiles * 4 + group % 4, col = block * SPAN + lane * 8;
    const i64 row = (i64)(blockIdx.x / (u32)a.tiles) * (ROWS_AT * PER) + group / 4;
    float v[PER][8];

    wait_for_others();
#pragma unroll
    for (int p = 0; p < PER; p++) {
        load8(v[p], a.x, a.ld_x, row + p * ROWS_AT, col, a.rows, a.cols);
    }
#pragma unroll
    for (int p = 0; p < PER; p++) {
        const i64 r = row + p * ROWS_AT;
        float inverse;
        const float s = scale_of(lanes_max(amax8(v[p]), LANES), Y_E5M2, &inverse);
        if (r < a.rows && col < a.cols) {
            *(uint2 *)(a.y + r * a.ld_y + col) = codes8(v[p], inverse, Y_E5M2);
            if (lane == 0) {
                a.scale[(i64)block * a.rows + r] = s;
            }
        }
    }
}
#endif

/* The largest magnitude over all threads of the block. */
INLINE u32 block_amax(u32 x, u32 *smem) {
    x = lanes_max(x, WARP);
    if (threadIdx.x % WARP == 0) {
        smem[threadIdx.x / WARP] = x;
    }
    __syncthreads();
    return lanes_max(smem[threadIdx.x % (THREADS / WARP)], WARP);
}

/* parts[b] = the largest magnitude of the tiles of block b. */
extern "C" __global__ void __launch_bounds__(THREADS) amax_parts(const lt_cuda_amax_parts_args a) {
    __shared__ u32 warps[THREADS / WARP];
    const int across = (a.cols + SPAN - 1) / SPAN;
    const i64 tiles = (a.rows + SPAN - 1) / SPAN * across;
    u32 most = 0;
    for (i64 t = blockIdx.x; t < tiles; t += gridDim.x) {
        const i64 r = t / across * SPAN + threadIdx.x / 16;
        const int c = (int)(t % across) * SPAN + (int)threadIdx.x % 16 * 8;
        float v[8][8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            load8(v[i], a.x, a.ld, r + 16 * i, c, a.rows, a.cols);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            most = max_u(most, amax8(v[i]));
        }
    }
    most = block_amax(most, warps);
    if (threadIdx.x == 0) {
        a.parts[blockIdx.x] = most;
    }
}

/* Transpose 4 x 4 bytes: a word with four columns of a row becomes one with four rows of a
 * column. */
INLINE void turn4(u32 *w) {
    const u32 a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140),
              c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
    w[0] = __byte_perm(a, b, 0x5410), w[1] = __byte_perm(a, b, 0x7632);
    w[2] = __byte_perm(c, d, 0x5410), w[3] = __byte_perm(c, d, 0x7632);
}

#if T_KIND
/* Store from the tile in shared memory: a thread writes 16 rows of 4 columns. */
INLINE void store_transposed(u8 *t, i64 ld, const u32 *tile, i64 row0, int col0, i64 rows,
                             int cols) {
    const int part = (int)threadIdx.x % 8, quad = (int)threadIdx.x / 8;
    const i64 row = row0 + part * 16;
    u32 w[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            w[i][j] = tile[(part * 16 + i * 4 + j) * (SPAN / 4) + part * 4 + quad];
        }
        turn4(w[i]);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int col = col0 + quad * 4 + j;
        u8 *to = t + (i64)col * ld + row;
        if (col >= cols) {
            return;
        }
        if (WHOLE && row + 16 <= rows) {
            *(uint4 *)to = make_uint4(w[0][j], w[1][j], w[2][j], w[3][j]);
        } else {
#pragma unroll
            for (int i = 0; i < 16; i++) {
                if (row + i < rows) {
                    to[i] = (u8)(w[i / 4][j] >> i % 4 * 8);
                }
            }
        }
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    cast_tile(const __grid_constant__ lt_cast_tile_args a) {
    __shared__ u32 warps[THREADS / WARP];
    const int across = (a.cols + SPAN - 1) / SPAN, tid = (int)threadIdx.x;
    const i64 row0 = (i64)(blockIdx.x / (u32)across) * SPAN, down = (a.rows + SPAN - 1) / SPAN;
    const int col0 = (int)(blockIdx.x % (u32)across) * SPAN, col = col0 + tid % 16 * 8;
    const i64 row = row0 + tid / 16;
    float v[8][8], y_inverse = 0.0f, t_inverse = 0.0f;

    wait_for_others();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        load8(v[i], a.x, a.ld_x, row + 16 * i, col, a.rows, a.cols);
    }
    if (Y_KIND == KIND_BLOCK || T_KIND == KIND_BLOCK) { /* 1. One scale for the tile. */
        u32 most = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            most = max_u(most, amax8(v[i]));
        }
        most = block_amax(most, warps);
        const float y_scale = scale_of(most, Y_E5M2, &y_inverse),
                    t_scale = scale_of(most, T_E5M2, &t_inverse);
        if (Y_KIND == KIND_BLOCK && tid == 0) {
            a.scale[row0 / SPAN * across + col0 / SPAN] = y_scale;
        }
        if (T_KIND == KIND_BLOCK && tid == 0) {
            a.t_scale[col0 / SPAN * down + row0 / SPAN] = t_scale;
        }
    }
    if ((Y_KIND == KIND_TENSOR || T_KIND == KIND_TENSOR) && a.n_parts == 0) {
        y_inverse = Y_KIND == KIND_TENSOR ? 1.0f / a.scale[0] : y_inverse; /* A power of two. */
        t_inverse = T_KIND == KIND_TENSOR ? 1.0f / a.t_scale[0] : t_inverse;
    } else if (Y_KIND == KIND_TENSOR || T_KIND == KIND_TENSOR) { /* 2. One for the matrix. */
        u32 most = 0;
        for (int i = tid; i < a.n_parts; i += THREADS) {
            most = max_u(most, a.parts[i]);
        }
        __syncthreads();
        most = block_amax(most, warps);
        float y_one, t_one;
        const float y_scale = scale_of(most, Y_E5M2, &y_one),
                    t_scale = scale_of(most, T_E5M2, &t_one);
        if (Y_KIND == KIND_TENSOR) {
            y_inverse = y_one;
            if (blockIdx.x == 0 && tid == 0) {
                a.scale[0] = y_scale;
            }
        }
        if (T_KIND == KIND_TENSOR) {
            t_inverse = t_one;
            if (blockIdx.x == 0 && tid == 0) {
                a.t_scale[0] = t_scale;
            }
        }
    }
#if Y_KIND
#pragma unroll
    for (int i = 0; i < 8; i++) { /* 3. As stored. */
        const i64 r = row + 16 * i;
        if (Y_KIND == KIND_ROW) {
            const float s = scale_of(lanes_max(amax8(v[i]), 16), Y_E5M2, &y_inverse);
            if (tid % 16 == 0 && r < a.rows) {
                a.scale[col0 / SPAN * a.rows + r] = s;
            }
        }
        const uint2 codes = codes8(v[i], y_inverse, Y_E5M2);
        u8 *to = a.y + r * a.ld_y + col;
        if (WHOLE && r < a.rows && col < a.cols) {
            *(uint2 *)to = codes;
        }
        for (int e = 0; !WHOLE && r < a.rows && e < 8 && col + e < a.cols; e++) {
            to[e] = (u8)((e < 4 ? codes.x : codes.y) >> e % 4 * 8);
        }
    }
#endif
#if T_KIND
    __shared__ u32 tile[N_WORDS];
#if T_KIND == KIND_ROW
    __shared__ u32 columns[16][SPAN];
    float inverse[8];
#pragma unroll
    /* 4. The largest of each column: over the rows of a thread, then over all 16 threads that
     * share the column. */
    for (int e = 0; e < 8; e++) {
        u32 most = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            most = max_u(most, magnitude(v[i][e]));
        }
        columns[tid / 16][tid % 16 * 8 + e] = most;
    }
    __syncthreads();
    if (tid < SPAN) {
        u32 most = 0;
        float one;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            most = max_u(most, columns[i][tid]);
        }
        const float s = scale_of(most, T_E5M2, &one);
        if (col0 + tid < a.cols) {
            a.t_scale[row0 / SPAN * a.cols + col0 + tid] = s;
        }
        columns[0][tid] = __float_as_uint(one);
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < 8; e++) {
        inverse[e] = __uint_as_float(columns[0][tid % 16 * 8 + e]);
    }
#endif
#pragma unroll
    for (int i = 0; i < 8; i++) { /* 5. Transposed. */
#if T_KIND == KIND_ROW
#pragma unroll
        for (int e = 0; e < 8; e++) {
            v[i][e] *= inverse[e];
        }
        const uint2 codes = codes8(v[i], 1.0f, T_E5M2);
#else
        const uint2 codes = codes8(v[i], t_inverse, T_E5M2);
#endif
        *(uint2 *)&tile[(tid / 16 + 16 * i) * (SPAN / 4) + i * 4 + tid % 16 * 2] = codes;
    }
    __syncthreads();
    store_transposed(a.t, a.ld_t, tile, row0, col0, a.rows, a.cols);
#endif
}
