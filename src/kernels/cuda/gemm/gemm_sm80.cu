/* gemm_sm80.cu: y (M, N) = op(A) op(B) (+ bias) (+ y), 16-bit in, f32 sums, on the tensor cores of
 * sm_80 (mma.sync): any shape, any alignment.
 *
 * SHAPES    A stored (M, K), or (K, M) with A_MAJOR_M; B stored (N, K), or (K, N) with B_MAJOR_N;
 *           rows a.lda, a.ldb, a.ldy elements apart, at any address. VEC=8: rows of both are
 *           16-byte aligned; VEC=1: nothing is. OUT: fp32, bf16 or fp16.
 * MAP       a block of 8 warps makes a tile of 128 x 128; a warp 64 x 32 of it. Blocks walk in
 *           groups of 8 rows of tiles for the L2.
 * MOVEMENT
 *     HBM ──cp.async, 16 bytes (or 8 single loads)──▶ ring of 3 stages x 32 of K in smem
 *         ──ldmatrix (.trans where K is not contiguous)──▶ registers ──mma.sync──▶ 64 sums a thread
 *         ─ every 128 of K into sums of their own ─▶ bias, y, one rounding ──▶ HBM
 *     Rows are 16 bytes longer in smem, so that the 8 rows of an ldmatrix lie in different banks.
 * BOUND     2 M N K flop; on an H100 mma.sync reaches about 60 % of wgmma's rate. For sm_80, and
 *           for products that gemm_sm90.cu refuses.
 * NUMERICS  the tensor cores truncate their sums (round to zero) at each step; sums of 128 of K are
 *           added by rounding adds, so long sums do not drift. Fixed order: bit-identical run to
 *           run.
 * REFS      PTX ISA 9.7.14 (mma.sync, ldmatrix). */
#include "common/mma.cuh"
#include "common/product.cuh"
#include "kernels/cuda/gemm/sm80_args.h"

#define BM      128
#define BN      128
#define BK      32
#define STAGES  3
#define THREADS 256
#define PROMOTE 4 /* steps of BK whose sums stay in the tensor cores' registers */
#define GROUP   8 /* rows of tiles processed together */
#define A_PITCH (A_MAJOR_M ? BM + 8 : BK + 8)
#define B_PITCH (B_MAJOR_N ? BN + 8 : BK + 8)
#define A_ELEMS ((A_MAJOR_M ? BK : BM) * A_PITCH)
#define B_ELEMS ((B_MAJOR_N ? BK : BN) * B_PITCH)
static_assert(STAGES * (A_ELEMS + B_ELEMS) * 2 <= LT_GEMM_SM80_BYTES, "the ring");
static_assert(VEC == 1 || VEC == 8, "16 bytes or single elements");

INLINE void cp_async_bytes(u32 dst, const void *src, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes)
                 : "memory");
}
/* Eight elements of a row-major matrix at (row, col), with zeros beyond its end. */
INLINE void load_piece(elem *dst, const elem *src, i64 ld, int row, int col, int rows, int cols) {
    const int valid = row < rows ? max_i(0, min_i(8, cols - col)) : 0;
    const elem *from = src + (i64)row * ld + col;
#if VEC == 8
    cp_async_bytes(smem_addr(dst), valid > 0 ? from : src, 2 * valid);
#else
    u32 x[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (i < valid) {
            x[i / 2] |= (u32)from[i].bits << (i % 2 * 16);
        }
    }
    *(uint4 *)dst = make_uint4(x[0], x[1], x[2], x[3]);
#endif
}

/* 1. Stage s: the tiles of A and B at step k. */
INLINE void load_stage(elem *a_smem, elem *b_smem, const lt_gemm_sm80_args *w, int row0, int col0,
                       int k0) {
#pragma unroll
    for (int i = 0; i < BM * BK / 8 / THREADS; i++) {
        const int piece = i * THREADS + (int)threadIdx.x;
#if A_MAJOR_M
        const int k = piece / (BM / 8), m = piece % (BM / 8) * 8;
        load_piece(a_smem + k * A_PITCH + m, w->a, w->lda, k0 + k, row0 + m, w->k, w->m);
#else
        const int m = piece / (BK / 8), k = piece % (BK / 8) * 8;
        load_piece(a_smem + m * A_PITCH + k, w->a, w->lda, row0 + m, k0 + k, w->m, w->k);
#endif
    }
#pragma unroll
    for (int i = 0; i < BN * BK / 8 / THREADS; i++) {
        const int piece = i * THREADS + (int)threadIdx.x;
#if B_MAJOR_N
        const int k = piece / (BN / 8), n = piece % (BN / 8) * 8;
        load_piece(b_smem + k * B_PITCH + n, w->b, w->ldb, k0 + k, col0 + n, w->k, w->n);
#else
        const int n = piece / (BK / 8), k = piece % (BK / 8) * 8;
        load_piece(b_smem + n * B_PITCH + k, w->b, w->ldb, col0 + n, k0 + k, w->n, w->k);
#endif
    }
    cp_async_commit();
}

/* 2. A warp's 64 x 32 of one stage. */
INLINE void multiply(float acc[4][4][4], const elem *a_smem, const elem *b_smem, int m0, int n0) {
    const int lane = (int)threadIdx.x % 32, part = lane / 8, r = lane % 8;
#pragma unroll
    for (int k = 0; k < BK; k += 16) {
        u32 a[4][4], b[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
#if A_MAJOR_M
            ldmatrix_x4_trans(a[i], smem_addr(a_smem + (k + part / 2 * 8 + r) * A_PITCH + m0 +
                                              16 * i + part % 2 * 8));
#else
            ldmatrix_x4(a[i], smem_addr(a_smem + (m0 + 16 * i + part % 2 * 8 + r) * A_PITCH + k +
                                        part / 2 * 8));
#endif
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
#if B_MAJOR_N
            ldmatrix_x4_trans(b[j], smem_addr(b_smem + (k + part % 2 * 8 + r) * B_PITCH + n0 +
                                              16 * j + part / 2 * 8));
#else
            ldmatrix_x4(b[j], smem_addr(b_smem + (n0 + 16 * j + part / 2 * 8 + r) * B_PITCH + k +
                                        part % 2 * 8));
#endif
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                mma_16x8x16(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
            }
        }
    }
}

/* 3. Add the bias and the old y, and round once. */
INLINE void store(float acc[4][4][4], const lt_gemm_sm80_args *w, int row0, int col0) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = row0 + 16 * i + lane / 4 + e / 2 * 8,
                          col = col0 + 8 * j + lane % 4 * 2 + e % 2;
                if (row < w->m && col < w->n) {
                    product_store(w->y + (i64)row * w->ldy + col, acc[i][j][e],
                                  bias_at(w->bias, w->bias_type, col), w->accumulate);
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_sm80(const __grid_constant__ lt_gemm_sm80_args w) {
    extern __shared__ __align__(16) u8 smem[];
    elem *const ring = (elem *)smem; /* STAGES x (A tile, B tile) */
    const int tiles_m = div_up(w.m, BM), tiles_n = div_up(w.n, BN), t = (int)blockIdx.x;
    const int first = t / (GROUP * tiles_n) * GROUP, inside = t % (GROUP * tiles_n),
              height = min_i(GROUP, tiles_m - first);
    const int row0 = (first + inside % height) * BM, col0 = inside / height * BN,
              steps = div_up(w.k, BK);
    const int warp = (int)threadIdx.x / 32, m0 = warp / 4 * 64, n0 = warp % 4 * 32;
    float acc[4][4][4] = {{{0.0f}}}, sum[4][4][4] = {{{0.0f}}};

    for (int s = 0; s < STAGES - 1; s++) {
        load_stage(ring + s * (A_ELEMS + B_ELEMS), ring + s * (A_ELEMS + B_ELEMS) + A_ELEMS, &w,
                   row0, col0, s * BK);
    }
    for (int step = 0; step < steps; step++) {
        elem *const now = ring + step % STAGES * (A_ELEMS + B_ELEMS), *const next =
                                                                          ring +
                                                                          (step + STAGES - 1) %
                                                                              STAGES *
                                                                              (A_ELEMS + B_ELEMS);
        cp_async_wait(STAGES - 2);
        __syncthreads();
        load_stage(next, next + A_ELEMS, &w, row0, col0, (step + STAGES - 1) * BK);
        multiply(acc, now, now + A_ELEMS, m0, n0);
        if (step % PROMOTE == PROMOTE - 1 || step == steps - 1) {
#pragma unroll
            for (int i = 0; i < 64; i++) {
                ((float *)sum)[i] += ((float *)acc)[i];
                ((float *)acc)[i] = 0.0f;
            }
        }
    }
    cp_async_wait(0);
    store(sum, &w, row0 + m0, col0 + n0);
}
