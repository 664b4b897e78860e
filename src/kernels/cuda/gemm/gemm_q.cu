/* gemm_q.cu: up to 64 rows times a quantised weight matrix, packed as tile_q.cuh says: y (M, N) = x
 * (M, K) W^T; W back to 16 bits for more rows; rows of W as an embedding's rows.
 *
 * SHAPES    M at most 8 TILES (TILES 1 to 8); K a multiple of 32, WHOLE: of 128; rows of x 16-byte
 *           aligned; any N.
 * MAP       a warp makes 16 columns of y, a slab of W, for all rows, over the tiles of its part of
 *           K; SPLIT warps of a block share a slab. The weights are the left operand of mma.sync,
 *           whose 16 rows are columns of y, and x the right one, 8 rows of x an operand.
 * MOVEMENT
 *     W ──512 bytes a warp, past the L1, DEPTH tiles ahead──▶ registers ──to 16-bit floats─┐
 *     x ──16 bytes a lane, from the L1──▶ registers ───────────────────────────────────────┴─
 *         mma.sync──▶ a group's sums ─ x scale ─▶ sums ──▶ (SPLIT: smem) ──▶ y
 *     A number u < 128 becomes the float BASE + u by putting it under that float's exponent, two at
 *     a time, and a multiply-add takes BASE + OFFSET off. A signed byte is its low seven bits less
 *     its highest one: both under the same exponent.
 * EXPERTS   GROUPED: rows of x are in the order of their experts, and W is one matrix for each.
 *           Each expert's rows are cut into chunks of 8 TILES; a block (blockIdx.y) finds the chunk
 *           that it computes from the numbers of rows, or that there is none. With two or more
 *           operands and SPLIT = 1 (STAGED), its warps share the chunk's columns of a tile, which
 *           they copy to shared memory while they multiply the tile before. GATED: of two groups of
 *           warps, one has a slab of gates and the other that of their factors (experts_args.h).
 * BOUND     bytes of W: 1.06 an element of Q8_0, 0.56 of Q4_0 (0.69 Q5_0, 0.88 Q6_K): DEPTH x 2 KB
 *           (1 KB) in flight a warp. Instructions, M up to 8: 2.4 for each element of a lane's
 *           share, a quarter (Q4_0: 45 %) of those that an H100 issues in the time of the bytes. 64
 *           rows: 10, and 16 KB from the L1 a tile.
 * NUMERICS  weights exact; f32 sums of 32 (16) in the tensor cores, which truncate, scaled and
 *           added by rounding adds, then parts in order: bit-identical run to run. A row's bits
 *           depend on SPLIT, not on the other rows: the launcher keeps SPLIT constant where that is
 *           requested; otherwise there is one for up to 8 rows and one for more.
 * REFS      PTX ISA 9.7.14 (mma.sync); Frantar et al. 2024, arXiv:2408.11743 (weights laid out for
 *           mma.sync). */
#include "common/early.cuh"
#include "common/late.cuh"
#include "common/product.cuh"
#include "gemm/operand_q.cuh"
#include "kernels/cuda/gemm/gemm_q_args.h"

#ifndef GROUPED
#define GROUPED 0
#endif
#ifndef GATED
#define GATED 0
#endif
#if GATED
#include "gemm/experts.cuh"
#else
#include "kernels/cuda/gemm/experts_args.h"
#endif
#define WARPS   ((1 + GATED) * SPLIT > 4 ? (1 + GATED) * SPLIT : 4)
#define GROUPS  (WARPS / SPLIT) /* groups of warps in a block, each with its own slab */
#define PARTS   (SPLIT > 1 || GATED ? WARPS : 1)
#define THREADS (32 * WARPS)
#define STAGED  (GROUPED && TILES > 1 && SPLIT == 1)
#ifndef DEPTH
#define DEPTH                                                                                      \
    (STAGED ? 2 : TILES > 2 || TILES == 2 && HIGH > 0 ? 1 : TILES == 1 && BITS == 4 ? 4 - GATED : 2)
#endif
static_assert(TILES >= 1 && TILES <= 8, "sums must fit in registers");
static_assert(WARPS % SPLIT == 0, "warps of a slab are in one block");
static_assert(!GATED || (GROUPED && TILES == 1 && GROUPS % 2 == 0), "gates and factors");

/* STAGED: bytes of a row of x in shared memory, 64 more than a multiple of 128, so that two rows
 * that a quarter of a warp reads lie in different banks. */
#define ROW_STAGED (TILE_K * 2 + 64)
#define CHUNK      (8 * TILES)

INLINE void load_share(share *s, const u8 *tile) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        s->v[p] = load_once(tile + 512 * p + 16 * lane);
    }
    if (HIGH == 2) {
        s->high = load_once(tile + HIGH_AT + 16 * lane);
    } else if (HIGH == 1) {
        s->high = load_once_8(tile + HIGH_AT + 8 * lane);
    }
#pragma unroll
    for (int i = 0; i < SCALES; i++) {
        s->scale[i] = load_once(tile + SCALES_AT + 128 * i + lane / 4 * 16);
    }
    if (MINS) {
        s->least = load_once(tile + MINS_AT + lane / 4 * 16);
    }
}
/* The pieces of a lane's quarter in a group of 32 of a row of x. */
INLINE uint4 load_x(const elem *x) {
    if (AS_COUNTED) {
        return make_uint4(*(const u32 *)x, *(const u32 *)(x + 8), *(const u32 *)(x + 16),
                          *(const u32 *)(x + 24));
    }
    if (GROUP == 32) {
        return *(const uint4 *)x;
    }
    const uint2 lo = *(const uint2 *)x, hi = *(const uint2 *)(x + 16);
    return make_uint4(lo.x, lo.y, hi.x, hi.y);
}
/* Add the products of the 32 columns from k on to sum: `a0`, `a1` are the left operands of the two
 * products. */
INLINE void multiply_group(float sum[4], const share *s, int g, const u32 a0[4], const u32 a1[4],
                           uint4 x) {
    const u32 ones[4] = {ONE, ONE, ONE, ONE};
    float dot[2][4] = {{0.0f}}, total[4] = {0.0f};
    mma_16x8x16(dot[0], a0, x.x, x.y);
    mma_16x8x16(dot[SCALES - 1], a1, x.z, x.w);
    if (MINS) {
        mma_16x8x16(total, ones, x.x, x.y);
        mma_16x8x16(total, ones, x.z, x.w);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < SCALES; j++) {
            sum[i] += scale_of(s->scale[SCALES == 2 ? g / 2 : 0],
                               i / 2 * 4 + (SCALES == 2 ? g % 2 * 2 + j : g)) *
                      dot[j][i];
        }
        if (MINS) {
            sum[i] -= scale_of(s->least, i / 2 * 4 + g) * total[i];
        }
    }
}
/* x: this lane's pieces of the tile's first columns; left: number of columns of x from there on.
 * Past the last column the first ones are read again, with scales of zero. */
INLINE void multiply(float sum[TILES][4], const share *s, const elem *const x[TILES], int k0,
                     int left) {
#pragma unroll
    for (int g = 0; g < 4; g++) {
        const int k = k0 + (WHOLE || 32 * g < left ? 32 * g : 0);
        u32 r[4], r8[4];
        widen(r, s, g, 0);
        widen(r8, s, g, 1);
        const u32 a0[4] = {r[0], r8[0], r[1], r8[1]}, a1[4] = {r[2], r8[2], r[3], r8[3]};
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            multiply_group(sum[t], s, g, a0, a1, load_x(x[t] + k));
        }
    }
}
/* Store sum i of lane `lane` to y. */
INLINE void store(const lt_gemm_q_args *a, int slab, int t, int i, int lane, float sum) {
    const int row = 8 * t + lane % 4 * 2 + i % 2, col = slab * TILE_ROWS + lane / 4 + i / 2 * 8;
    if (row < a->m && col < a->n) {
        product_store(a->y + row * a->ldy + col, sum, bias_at(a->bias, a->bias_type, col),
                      a->accumulate);
    }
}

/* GROUPED: a block's first row in the order of experts, and its expert's offset from the first
 * matrix. */
typedef struct {
    i64 matrix;
    int first;
} chunk;

/* The product of a block's rows. */
INLINE void multiply_tiles(const lt_gemm_q_args *a, const chunk *c, const lt_experts_up_args *up) {
    __shared__ float part[PARTS][TILES * 4][32];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, group = warp / SPLIT;
    const int slab = (int)blockIdx.x * (GROUPS / (1 + GATED)) + group / (1 + GATED),
              tiles = (a->k + TILE_K - 1) / TILE_K, each = (tiles + SPLIT - 1) / SPLIT;
    const int begin = warp % SPLIT * each,
              end = slab * TILE_ROWS < a->n ? min_i(tiles, begin + each) : 0;
    const u8 *const matrix = (GATED && group % 2 == 1 ? (const u8 *)up->factors : a->w) + c->matrix,
                    *const w = matrix + (i64)slab * tiles * TILE_BYTES;
    const elem *x[TILES];
    float sum[TILES][4] = {{0.0f}};
    share s[DEPTH];

    /* Rows past the last repeat it. Results of different rows do not mix, and those of these rows
     * are not stored. */
    for (int t = 0; t < TILES; t++) {
        const int row = min_i(8 * t + lane / 4, a->m - 1);
#if GATED
        x[t] = gathered_row(up, a->x, a->ldx, c->first + row) + element_at(lane % 4, 0);
#else
        x[t] = a->x + row * a->ldx + element_at(lane % 4, 0);
#endif
    }
    /* 1. Without experts, these copies start before x is ready. */
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
        if (begin + d < end) {
            load_share(&s[d], w + (i64)(begin + d) * TILE_BYTES);
        }
    }
#if !GROUPED
    wait_for_others();
#endif
    /* 2. A place is filled again as soon as it has been used. */
    for (int tile = begin; tile < end; tile += DEPTH) {
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            if (tile + d < end) {
                multiply(sum, &s[d], x, (tile + d) * TILE_K, a->k - (tile + d) * TILE_K);
                if (tile + d + DEPTH < end) {
                    load_share(&s[d], w + (i64)(tile + d + DEPTH) * TILE_BYTES);
                }
            }
        }
    }
    if (PARTS == 1) { /* 3. Store to y, through shared memory if warps have parts of the same
                       * sums. */
#pragma unroll
        for (int i = 0; i < TILES * 4; i++) {
            store(a, slab, i / 4, i % 4, lane, sum[i / 4][i % 4]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < TILES * 4; i++) {
        part[warp % PARTS][i][lane] = sum[i / 4][i % 4];
    }
    __syncthreads();
#if GATED
    for (int i = warp % (2 * SPLIT); i < 4; i += 2 * SPLIT) {
        const int row = lane % 4 * 2 + i % 2, col = slab * TILE_ROWS + lane / 4 + i / 2 * 8;
        float x[2] = {0.0f, 0.0f}; /* a gate and its factor */
        for (int p = 0; p < 2 * SPLIT; p++) {
            x[p / SPLIT] += part[group / 2 * 2 * SPLIT + p][i][lane];
        }
        if (row < a->m && col < a->n) {
            elem *const y = a->y + row * a->ldy + col;
            product_store(y, x[0], 0.0f, a->accumulate);
            product_store(y + a->n, x[1], 0.0f, a->accumulate);
            store_gated(up, c->first + row, col, x[0], x[1]);
        }
    }
    if (blockIdx.x == 0) {
        gather_rows(up, a->x, a->ldx, c->first, a->m, a->k);
    }
#else
    for (int i = warp % SPLIT; i < TILES * 4; i += SPLIT) {
        float x = 0.0f;
        for (int p = 0; p < SPLIT; p++) {
            x += part[(group * SPLIT + p) % PARTS][i][lane];
        }
        store(a, slab, i / 4, i % 4, lane, x);
    }
#endif
}

#if STAGED
/* Copy columns k0 .. k0 + 127 of the rows of x; columns past the last are zeros. */
INLINE void stage_x(const lt_gemm_q_args *a, u8 (*to)[ROW_STAGED], int k0) {
#pragma unroll
    for (int i = 0; i < CHUNK * 16 / THREADS; i++) {
        const int at = (int)threadIdx.x + i * THREADS, row = at / 16, k = k0 + at % 16 * 8;
        cp_async_16_or_zero(smem_addr(to[row]) + at % 16 * 16,
                            a->x + min_i(row, a->m - 1) * a->ldx + (k < a->k ? k : 0),
                            k < a->k ? 4 : 0);
    }
    cp_async_commit();
}
INLINE void multiply_staged(const lt_gemm_q_args *a, const chunk *c) {
    __shared__ __align__(16) u8 staged[2][CHUNK][ROW_STAGED];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int slab = (int)blockIdx.x * GROUPS + warp, tiles = (a->k + TILE_K - 1) / TILE_K;
    const bool works = slab * TILE_ROWS < a->n;
    const u8 *const w = a->w + c->matrix + (i64)(works ? slab : 0) * tiles * TILE_BYTES;
    float sum[TILES][4] = {{0.0f}};
    share s[DEPTH];

    stage_x(a, staged[0], 0);
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
        if (d < tiles) {
            load_share(&s[d], w + (i64)d * TILE_BYTES);
        }
    }
    for (int tile = 0; tile < tiles; tile += DEPTH) {
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            if (tile + d < tiles) {
                const elem *x[TILES];
                cp_async_wait(0);
                __syncthreads(); /* The tile is there, and the other place has been read. */
                if (tile + d + 1 < tiles) {
                    stage_x(a, staged[(tile + d + 1) % 2], (tile + d + 1) * TILE_K);
                }
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    x[t] = (const elem *)staged[(tile + d) % 2][8 * t + lane / 4] +
                           element_at(lane % 4, 0);
                }
                multiply(sum, &s[d], x, 0, a->k - (tile + d) * TILE_K);
                if (tile + d + DEPTH < tiles) {
                    load_share(&s[d], w + (i64)(tile + d + DEPTH) * TILE_BYTES);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; works && i < TILES * 4; i++) {
        store(a, slab, i / 4, i % 4, lane, sum[i / 4][i % 4]);
    }
}
#endif

#if GROUPED
/* The rows of this block, also in a->x (unless they are gathered), a->y and a->m. False: there are
 * fewer chunks. */
INLINE bool take_chunk(chunk *c, lt_gemm_q_args *a, const lt_gemm_q_grouped_args *of) {
    const int lane = (int)threadIdx.x % 32;
    int before = 0; /* Chunks of the experts before e - lane. */
    for (int e = lane; e - lane < of->experts; e += 32) {
        const int first = e < of->experts ? of->start[e] : 0,
                  rows = e < of->experts ? of->start[e + 1] - first : 0,
                  own = (rows + CHUNK - 1) / CHUNK;
        int sum = own; /* Of this lane and the lower ones. */
        for (int d = 1; d < 32; d *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, sum, d);
            sum += lane >= d ? other : 0;
        }
        const int place = (int)blockIdx.y - before - (sum - own);
        const u32 mine = __ballot_sync(0xffffffffu, place >= 0 && place < own);
        if (mine != 0) {
            const int by = __ffs((int)mine) - 1, skip = __shfl_sync(0xffffffffu, place, by) * CHUNK,
                      row = __shfl_sync(0xffffffffu, first, by) + skip;
            a->m = min_i(CHUNK, __shfl_sync(0xffffffffu, rows, by) - skip);
            a->x += GATED ? 0 : row * a->ldx;
            a->y += row * a->ldy;
            c->matrix = (e - lane + by) * of->next_expert;
            c->first = row;
            return true;
        }
        before += __shfl_sync(0xffffffffu, sum, 31);
    }
    return false;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
#if GATED
    gemm_q_gated(const __grid_constant__ lt_gemm_q_grouped_args of,
                 const __grid_constant__ lt_experts_up_args up) {
#elif GROUPED
    gemm_q_grouped(const __grid_constant__ lt_gemm_q_grouped_args of) {
#else
    gemm_q(const __grid_constant__ lt_gemm_q_args a) {
#endif
#if !GATED
    const lt_experts_up_args up = {0};
#endif
    chunk c = {0};
#if GROUPED
    lt_gemm_q_args a = of.product;
    wait_for_others();
    if (!take_chunk(&c, &a, &of)) {
        return;
    }
#endif
#if STAGED
    multiply_staged(&a, &c);
#else
    multiply_tiles(&a, &c, &up);
#endif
}

/* wide (N, K) = W in 16 bits: one warp per tile. */
extern "C" __global__ void __launch_bounds__(128) widen_q(const lt_cuda_widen_q_args a) {
    const i64 item = (i64)blockIdx.x * 4 + (int)threadIdx.x / 32, slab = item / a.tiles;
    const int lane = (int)threadIdx.x % 32, q = lane % 4, k0 = (int)(item % a.tiles) * TILE_K;
    share s;
    if (slab * TILE_ROWS >= a.rows) {
        return;
    }
    load_share(&s, a.w + item * TILE_BYTES);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int g = i / 2, h = i % 2;
        const i64 row = slab * TILE_ROWS + lane / 4 + 8 * h;
        u32 pair[4], out[4];
        widen(pair, &s, g, h);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float scale = scale_of(s.scale[SCALES == 2 ? g / 2 : 0],
                                         4 * h + (SCALES == 2 ? g % 2 * 2 + j / 2 : g));
            const float least = MINS ? scale_of(s.least, 4 * h + g) : 0.0f;
            out[j] = PACK_ELEM(scale * elem_lo(pair[j]) - least, scale * elem_hi(pair[j]) - least);
        }
        if (row < a.rows && k0 + 32 * g < a.k) {
            elem *to = a.wide + row * a.k + k0 + 32 * g;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                *(u32 *)(to + element_at(q, 2 * j)) = out[j];
            }
        }
    }
}

/* y (R, K) = scale * rows ids of W [+ pos_table rows]: one thread per quarter of a group of 32. */
extern "C" __global__ void __launch_bounds__(128) embed_q(const lt_cuda_embed_q_args a) {
    const i64 item = (i64)blockIdx.x * 128 + threadIdx.x, row = item / (a.k / 8);
    const int group = (int)(item % (a.k / 8)) / 4, g = group % 4, q = (int)(item % 4);
    wait_for_others();
    if (row >= a.rows) {
        return;
    }
    const int id = late_id(a.ids[row], a.late), r = id % TILE_ROWS;
    const u8 *const tile = a.w + tile_at(id, 32 * group, a.tiles);
    const u32 high = HIGH > 0 ? *(const u32 *)(tile + high_in_tile(g, r, q)) : 0;
    const float least = MINS ? fp16_to_f32(*(const fp16 *)(tile + least_in_tile(g, r))) : 0.0f;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const int at = 32 * group + element_at(q, e);
        u32 bits = *(const u32 *)(tile + word_in_tile(g, r, q, e / 4)) >> bits_in_word(g, e) &
                   (LOW == 4 ? 15u : 255u);
        bits |= HIGH > 0
                    ? (high >> (high_bit(g, e / 4) + bits_in_word(0, e)) & (HIGH == 2 ? 3u : 1u))
                          << 4
                    : 0;
        const int number = OFFSET == 128 ? (int)(signed char)bits : (int)bits - OFFSET;
        float v = a.scale *
                  (fp16_to_f32(*(const fp16 *)(tile + scale_in_tile(g, r, e / 4))) * (float)number -
                   least);
        if (a.pos_table) {
            v += ELEM_F32(a.pos_table[(i64)a.positions[row] * a.ld_pos + at]);
        }
        a.y[row * a.ldy + at] = FROM_F32(DTYPE, v);
    }
}
