/* few_sums.cuh: how the sums of a product with swapped operands (gemm_few.cu, gemm_q_sm90.cu)
 * become y. A warpgroup has 64 columns of y and BN rows, in wgmma's layout. The parts of K from the
 * SPLITS blocks of a cluster are added in order by the block that owns their octet of rows, in its
 * shared memory. An octet there is (column, row) f32, so that a thread's pairs are adjacent.
 * -D BN, GROUPS (warpgroups), SPLITS, OUT, GATED and KIND: as in gemm_few.cu. */
#ifndef LT_CUDA_GEMM_FEW_SUMS_CUH
#define LT_CUDA_GEMM_FEW_SUMS_CUH

#include "common/act.cuh"
#include "common/hopper.cuh"
#include "common/product.cuh"
#include "common/wgmma.cuh"
#include "kernels/cuda/gemm/few_args.h"

#ifndef GATED
#define GATED 0
#define KIND  0
#endif
#define COLS        (GATED ? 32 : 64) /* columns of a warpgroup, beside factors */
#define OCTETS      (BN / 8)          /* groups of eight rows of x */
#define OCTET_BYTES (64 * 32)         /* 64 columns x 8 rows, f32 */
/* octets that a block adds at a time */
#define EACH (SPLITS == 1 ? (OCTETS < 4 ? OCTETS : 4) : (OCTETS + SPLITS - 1) / SPLITS)
/* for a consumer's sums */
#define GROUP_BYTES (SPLITS * EACH * OCTET_BYTES)
static_assert(GROUPS * GROUP_BYTES == LT_FEW_SUMS_BYTES(GROUPS, SPLITS, OCTETS), "sums");
static_assert(BN % 8 == 0 && BN >= 8, "rows of x in octets");
static_assert(SPLITS >= 1 && SPLITS <= 8, "a portable cluster");

INLINE int cols_of(const lt_gemm_few_args *a) { /* Columns of y: a gate and its factor give one. */
    return GATED ? a->n / 2 : a->n;
}

/* The block of the cluster that adds octet o, and the octet's index among that block's. */
INLINE int adder_of(int o) {
    return OCTETS >= SPLITS ? o * SPLITS / OCTETS : o;
}
INLINE int first_octet(int rank) {
    return OCTETS >= SPLITS ? (rank * OCTETS + SPLITS - 1) / SPLITS : rank;
}
/* Orders only the initialisation of the barriers (mbarrier_init_fence). */
INLINE void cluster_arrive(void) {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
INLINE void cluster_wait(void) {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* Position of this thread's first pair in an octet; the second is 8 columns further. */
INLINE u32 pair_place(void) {
    const int tid = (int)threadIdx.x % 128;
    return (u32)((tid / 32 * 16 + tid % 32 / 4) * 32 + tid % 4 * 8);
}

/* Four rows of a column of an octet whose parts are at `sums`, EACH octets apart. */
INLINE float4 sum_of(u32 sums, int column, int half) {
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int s = 0; s < SPLITS; s++) {
        const uint4 part = ld_shared_v4(sums + s * EACH * OCTET_BYTES + column * 32 + half * 16);
        v.x += __uint_as_float(part.x), v.y += __uint_as_float(part.y);
        v.z += __uint_as_float(part.z), v.w += __uint_as_float(part.w);
    }
    return v;
}
__attribute__((unused)) INLINE float as_stored(float x) {
    return TO_F32(OUT, FROM_F32(OUT, x));
}
/* Store the octet that begins with row `row` to y (and act). A thread has one column and four
 * rows. */
INLINE void store_octet(const lt_gemm_few_args *a, u32 sums, int row, int col) {
    const int tid = (int)threadIdx.x % 128, half = tid / 64, mine = tid % 64;
    const float4 v = sum_of(sums, mine, half);
    row += half * 4;
    const int factors = mine / COLS * cols_of(a); /* Where the factors begin, if this is one. */
    col += mine % COLS;
    if (col < cols_of(a)) {
        const float bias = bias_at(a->bias, a->bias_type, col + factors),
                    sum[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (row + i < a->m) {
                product_store(a->y + (row + i) * a->ldy + col + factors, sum[i], bias,
                              a->accumulate);
            }
        }
#if GATED
        if (factors == 0) {
            const float4 w = sum_of(sums, mine + COLS, half);
            const float bias_w = bias_at(a->bias, a->bias_type, col + cols_of(a)),
                        by[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float x = as_stored(sum[i] + bias), f = KIND == 2 ? silu(x) : gelu_tanh(x);
                if (row + i < a->m) {
                    a->act[(row + i) * a->ld_act + col] = FROM_F32(DTYPE,
                                                                   f * as_stored(by[i] + bias_w));
                }
            }
        }
#endif
    }
}

/* Copy this group's 64 columns of x, starting with row `row`, to y, rounded, 16 bytes per
 * thread. */
#define IS_16_bf16 1
#define IS_16_fp16 1
#define IS_16_fp32 0
#if SPLITS == 1 && BN >= 128 && CONCAT(IS_16_, OUT) && !GATED
#define BY_ROWS 1
INLINE bool goes_by_rows(const lt_gemm_few_args *a) {
    return !a->accumulate && a->n % 8 == 0 && a->ldy % 8 == 0 && (u64)a->y % 16 == 0;
}
INLINE void store_by_rows(const float acc[BN / 2], const lt_gemm_few_args *a, u32 sums, int group,
                          int row, int col) {
    const int tid = (int)threadIdx.x % 128, warp = tid / 32, lane = tid % 32,
              mine = col + 16 * warp + lane / 4, r8 = lane % 8;
    const float bias[2] = {mine < a->n ? bias_at(a->bias, a->bias_type, mine) : 0.0f,
                           mine + 8 < a->n ? bias_at(a->bias, a->bias_type, mine + 8) : 0.0f};
#pragma unroll
    /* 64 rows x 64 columns: pieces of 16 bytes are permuted by row % 8, to avoid bank conflicts. */
    for (int from = 0; from < OCTETS; from += 8) {
        named_barrier_sync(1 + group, 128);
#pragma unroll
        for (int o = from; o < OCTETS && o < from + 8; o += 2) {
            u32 v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = 4 * (o + i / 2) + i % 2 * 2;
                v[i] = CONCAT(CONCAT(f32x2_to_, OUT), x2)(acc[at] + bias[i % 2],
                                                          acc[at + 1] + bias[i % 2]);
            }
            stmatrix_x4_trans(sums + (u32)((8 * (o - from + lane / 16) + r8) * 128 +
                                           ((2 * warp + lane / 8 % 2) ^ r8) * 16),
                              v[0], v[1], v[2], v[3]);
        }
        named_barrier_sync(1 + group, 128);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = tid / 8 + 16 * i, piece = tid % 8;
            if (from + r / 8 < OCTETS && row + 8 * from + r < a->m && col + 8 * piece < a->n) {
                *(uint4 *)(a->y + (i64)(row + 8 * from + r) * a->ldy + col + 8 * piece) =
                    ld_shared_v4(sums + (u32)(r * 128 + (piece ^ (r % 8)) * 16));
            }
        }
    }
}
#else
#define BY_ROWS 0
#endif

#if SPLITS == 1
/* Store through this group's own shared memory, EACH octets at a time. */
INLINE void store_own(const float acc[BN / 2], const lt_gemm_few_args *a, u32 sums, int group,
                      int row, int col) {
#if BY_ROWS
    if (goes_by_rows(a)) {
        store_by_rows(acc, a, sums, group, row, col);
        return;
    }
#endif
#pragma unroll
    for (int from = 0; from < OCTETS; from += EACH) {
        named_barrier_sync(1 + group, 128);
#pragma unroll
        for (int o = from; o < OCTETS && o < from + EACH; o++) {
            const u32 to = sums + (o - from) * OCTET_BYTES + pair_place();
            st_shared_v2(to, acc[4 * o], acc[4 * o + 1]);
            st_shared_v2(to + 256, acc[4 * o + 2], acc[4 * o + 3]);
        }
        named_barrier_sync(1 + group, 128);
#pragma unroll
        for (int o = from; o < OCTETS && o < from + EACH; o++) {
            store_octet(a, sums + (o - from) * OCTET_BYTES, row + 8 * o, col);
        }
    }
}

#else
/* Send each octet's part to the block that adds it, to the place of this block's rank. */
INLINE void give_away(const float acc[BN / 2], u32 sums, u32 given, int rank) {
#pragma unroll
    for (int o = 0; o < OCTETS; o++) {
        const int to = adder_of(o);
        const u32 at = remote_address(
            sums + (u32)((rank * EACH + o - first_octet(to)) * OCTET_BYTES) + pair_place(), to);
        const u32 bar = remote_address(given, to);
        st_async_v2(at, acc[4 * o], acc[4 * o + 1], bar);
        st_async_v2(at + 256, acc[4 * o + 2], acc[4 * o + 3], bar);
    }
}
#endif

#endif
