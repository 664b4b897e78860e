/* few_lora.cuh: adapters of rows that each have their own, as a part of gemm_few.cu: the sums do
 * not begin with 0, but with scale u B (lora_add in tensor/ops.h; lora.cu's lora_shrink makes u).
 *
 * MAP       a warp has 16 columns of y, as wgmma shares them out: mma.sync's sums lie in the same
 *           registers. A PAIR is eight rows and an adapter that any of them has: one product, 16
 *           columns x 16 of the rank, times u of these rows, with zeros for rows of others. A block
 *           of a cluster begins only the sums of the rows that it adds.
 * MOVEMENT
 *     B ──cp.async, 16 bytes a lane──▶ ring of 4 tiles a warp ──ldmatrix──▶ mma ─▶ acc
 *     u ──▶ registers, in 16 bits
 *     The first three pairs' B is under way before the kernel waits for others, that of the next
 *     tile's while this one is multiplied, and all rows' is sent for to the L2.
 * BOUND     the bytes of B, which come beside those of the weights; 128 bytes a row of B.
 * NUMERICS  u is rounded to 16 bits, as where a linear layer makes it (PEFT). Sums in f32: the
 *           adapter's, in order of the rank, then those of W. */
#ifndef LT_CUDA_GEMM_FEW_LORA_CUH
#define LT_CUDA_GEMM_FEW_LORA_CUH

#include "common/mma.cuh"
#include "common/ptx.cuh"
#include "gemm/few_sums.cuh"

#define LORA_K     16 /* of the rank, a tile */
#define LORA_ALL   0xffffffffu
#define LORA_TILES (LT_FEW_LORA_WARP_BYTES / 512)
static_assert(LORA_TILES == 4, "three are sent for ahead");

/* What a warp knows. Bits of pairs: the first row that has the adapter. */
typedef struct {
    const elem *b;          /* This lane's part of its columns; NULL: they have no adapter. */
    int first_of_u;         /* The part of u that belongs to them. */
    int place[2];           /* Lane l: the adapters of rows l and 32 + l. */
    u32 pairs[2], ahead[2]; /* Of all tiles of B; those that are not sent for. */
    int taken;
    u32 room;
} lora_warp;

INLINE int lora_place_of(const lora_warp *w, int row) { /* All lanes call it for one half. */
    return __shfl_sync(LORA_ALL, row < 32 ? w->place[0] : w->place[1], row % 32);
}

INLINE void lora_open(lora_warp *w, const lt_gemm_few_lora_args *l, int m, int rank, u32 room) {
    const int lane = (int)threadIdx.x % 32;
    w->room = room;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = 32 * half + lane, place = row < m ? l->place[row] : -1;
        bool first = place >= 0 && (SPLITS == 1 || adder_of(row / 8) == rank);
#pragma unroll
        for (int d = 1; d < 8; d++) {
            const int before = __shfl_up_sync(LORA_ALL, place, d);
            first = first && (lane % 8 < d || before != place);
        }
        w->place[half] = place;
        w->pairs[half] = __ballot_sync(LORA_ALL, first);
    }
}

/* This warp's columns of the group's 64, which begin with column col of y. */
INLINE void lora_columns(lora_warp *w, const lt_gemm_few_lora_args *l, int col, int factors) {
    const int warp = warp_uniform((int)threadIdx.x % 128 / 32), lane = (int)threadIdx.x % 32,
              mine = col + 16 * warp % COLS + 16 * warp / COLS * factors;
    w->b = NULL;
#pragma unroll
    for (int i = 0; i < LT_GEMM_FEW_LORA_PARTS; i++) {
        if (mine >= l->first[i] && mine < l->end[i]) {
            w->b = l->b + (mine + l->shift[i]) + lane / 2 * l->ld_b + lane % 2 * 8;
            w->first_of_u = i * l->rank;
        }
    }
}

/* The tile of the next pair is sent for, as number n: 16 rows of 32 bytes, whose halves change
 * places every fourth row, for the banks. A group of copies even if there is no pair. */
INLINE void lora_send(lora_warp *w, const lt_gemm_few_lora_args *l, int n, int k) {
    const int lane = (int)threadIdx.x % 32, half = w->ahead[0] == 0;
    const u32 left = half ? w->ahead[1] : w->ahead[0];
    if (left != 0) {
        const int place = lora_place_of(w, 32 * half + __ffs((int)left) - 1);
        cp_async_16_or_zero(
            w->room + (u32)(n % LORA_TILES * 512 + lane / 2 * 32 + (lane % 2 ^ lane / 8 % 2) * 16),
            w->b + place * l->next_b + k * l->ld_b, k + lane / 2 < l->rank ? 4 : 0);
        w->ahead[0] = half ? 0u : left & (left - 1);
        w->ahead[1] = half ? left & (left - 1) : w->ahead[1];
    }
    cp_async_commit();
}
INLINE void lora_send_first(lora_warp *w, const lt_gemm_few_lora_args *l, int k) {
    w->ahead[0] = w->pairs[0], w->ahead[1] = w->pairs[1];
    w->taken = 0;
#pragma unroll
    for (int n = 0; n < LORA_TILES - 1; n++) {
        lora_send(w, l, n, k);
    }
}

/* B of the tile whose columns begin with col: the first pairs' is sent for, the others' to the
 * L2. */
INLINE void lora_start(lora_warp *w, const lt_gemm_few_lora_args *l, int col, int factors) {
    const int lane = (int)threadIdx.x % 32;
    lora_columns(w, l, col, factors);
    if (w->b == NULL) {
        return;
    }
    lora_send_first(w, l, 0);
    for (int half = 0; half < 2; half++) {
        for (u32 left = w->ahead[half]; left != 0; left &= left - 1) {
            const int place = lora_place_of(w, 32 * half + __ffs((int)left) - 1);
            if (lane % 2 == 0 && lane / 2 < l->rank) {
                prefetch_l2(w->b + place * l->next_b);
            }
        }
    }
}

/* acc (16 columns, 8 rows) += u B over 16 of the rank for the pairs of these rows. u: this lane's
 * numbers. */
INLINE void lora_octet(float acc[4], lora_warp *w, const lt_gemm_few_lora_args *l, int first,
                       u32 pairs, const float u[4], int k) {
    const int lane = (int)threadIdx.x % 32, own = lora_place_of(w, first + lane / 4);
    const u32 row = (u32)(lane / 16 * 8 + lane % 8),
              from = w->room + row * 32 + ((u32)(lane / 8 % 2) ^ row / 4 % 2) * 16;
    const u32 u0 = PACK_ELEM(u[0], u[1]), u1 = PACK_ELEM(u[2], u[3]);
    for (; pairs != 0; pairs &= pairs - 1, w->taken++) {
        const bool mine = lora_place_of(w, first + __ffs((int)pairs) - 1) == own;
        u32 b[4];
        cp_async_wait(LORA_TILES - 2);
        __syncwarp();
        ldmatrix_x4_trans(b, from + (u32)(w->taken % LORA_TILES * 512));
        lora_send(w, l, w->taken + LORA_TILES - 1, k);
        mma_16x8x16(acc, b, mine ? u0 : 0u, mine ? u1 : 0u);
    }
}

/* This lane's numbers of u times its row's scale: of row first + lane / 4, k + 2 (lane % 4), the
 * next one, and those 8 on. */
INLINE void lora_numbers(float u[4], const lora_warp *w, const lt_gemm_few_lora_args *l, int first,
                         int k) {
    const int lane = (int)threadIdx.x % 32, row = first + lane / 4;
    const bool has = lora_place_of(w, row) >= 0;
    const float *const from = l->u + (i64)row * l->n_u + w->first_of_u;
    const float scale = has && l->scale != NULL ? l->scale[row] : 1.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int r = k + lane % 4 * 2 + i % 2 + i / 2 * 8;
        u[i] = has && r < l->rank ? scale * from[r] : 0.0f;
    }
}

/* The sums of the tile that lora_start began with. */
INLINE void lora_begin(float acc[BN / 2], lora_warp *w, const lt_gemm_few_lora_args *l) {
#pragma unroll
    for (int i = 0; i < BN / 2; i++) {
        acc[i] = 0.0f;
    }
    for (int k = 0; w->b != NULL && k < l->rank; k += LORA_K) {
        float u[OCTETS][4];
        if (k > 0) {
            lora_send_first(w, l, k);
        }
#pragma unroll
        for (int o = 0; o < OCTETS; o++) { /* All loads of u at once. */
            lora_numbers(u[o], w, l, 8 * o, k);
        }
#pragma unroll
        for (int o = 0; o < OCTETS; o++) {
            lora_octet(acc + 4 * o, w, l, 8 * o, w->pairs[o / 4] >> o % 4 * 8 & 0xffu, u[o], k);
        }
    }
}

#endif
