/* quant.c: y (M, N) = a (M, K) . b (N, K)^T with b in one of ggml's block formats, packed 16 rows
 * side by side (kernels/cpu/quant.h).
 *
 * MAP      Rows of a become 8-bit blocks once. A thread takes groups of 16 rows of b; a group (10
 *          to 100 KB) stays in L1 or L2 while rows of a pass, TILE at a time. Simple formats: the 8
 *          vectors of a block are unpacked into registers and used by all rows of the tile. K
 *          formats: a block is unpacked to 16-bit numbers, already multiplied by their 6- or 8-bit
 *          scales, once a group (once a tile where there is only one tile).
 * BOUND    M = 1: bytes of b through memory. M large: one instruction (64 multiply-adds) a vector
 *          of b and row of a, plus 4 for the scales of a block.
 * ORDER    Exactly kernels/ref/qdot.c's for every element of y, which a lane computes alone: the
 *          same bits for any M, N, tile, instruction set and number of threads. This file is
 *          compiled without fused multiply-adds.
 * TRIED    docs/speed/cpu-quantised.md. */
#include <omp.h>

#include "base/error.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/quant_act.h"
#include "kernels/cpu/isa/rows.h"
#include "kernels/cpu/scratch.h"

#if defined(LT_ISA_avx512)
/* Rows of a at a time, simple formats: with 8 vectors of b and their scales this uses 26 of 32
 * registers. */
#define TILE       8
#define TILE_SUPER 2 /* K formats have 8 sums per row. */
#else
#define TILE       4
#define TILE_SUPER 1
#endif
#define ROWS LT_QUANT_ROWS
#ifndef AHEAD
#define AHEAD 4096 /* Bytes of b to prefetch if it comes from memory. */
#endif
#define SPLIT (ROWS / VEC) /* Vectors of lanes in a group. */
#define PAIRS 128          /* Vectors of 16-bit pairs in a K block, */
#define MINS  4            /* and vectors of its minima. */

typedef struct {
    const lt_matmul_args *args;
    lt_quant_layout l;
    quant_acts a;
    vs *pairs; /* A thread's unpacked K blocks: SPLIT x blocks x (PAIRS + MINS). */
    int64_t pairs_of_thread;
    int64_t m_count;
} quant;

/* ---- y ---- */

LT_INLINE void store_lanes(const lt_matmul_args *a, int64_t m, int64_t n, vf sum) {
    const int64_t lanes = a->y.shape[1] - n < VEC ? a->y.shape[1] - n : VEC;
    float *y = (float *)a->y.data + m * a->y.stride[0] + n;
    if (a->bias.data != NULL) {
        sum += a->bias.dtype == LT_F32 ? v_get(a->bias.data, LT_F32, n, lanes)
                                       : v_get(a->bias.data, LT_BF16, n, lanes);
    }
    if (a->accumulate) {
        sum += v_get(y, LT_F32, 0, lanes);
    }
    v_put(y, LT_F32, 0, sum, lanes);
}

/* ---- simple formats ---- */

LT_INLINE void expand_small(vq w[8], const uint8_t *body, const int lane, const lt_dtype type) {
    if (type == LT_Q8_0) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            w[i] = *(const vq_mem *)(body + 64 * i + 4 * lane);
        }
        return;
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const vq x = *(const vq_mem *)(body + 64 * i + 4 * lane);
        w[i] = x & 15;
        w[i + 4] = (vq)((vu)x >> 4) & 15;
    }
    if (type == LT_Q5_0 || type == LT_Q5_1) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            w[i] = vq_fifths(w[i], body + 256 + 8 * i, 4 * lane);
        }
    }
}

/* The block's contribution to the sum: see the table in kernels/ref/qdot.c. */
LT_INLINE vf scaled(vf isum, vf dx, vf mx, float dy, float sy, const lt_dtype type) {
    if (type == LT_Q4_0) {
        return isum * dx * dy;
    }
    if (type == LT_Q4_1 || type == LT_Q5_1) {
        return dx * dy * isum + mx * sy;
    }
    return isum * (dx * dy);
}

/* Rows [m, m + mr) of y, lanes [lane, lane + VEC) of group g. */
LT_INLINE void tile_small(const quant *c, const uint8_t *group, int64_t g, const int lane,
                          int64_t m, const int mr, const lt_dtype type) {
    const bool with_min = type == LT_Q4_1 || type == LT_Q5_1;
    const int64_t n_blocks = c->l.n_blocks;
    const uint8_t *head = group + 2 * lane, *body = group + c->l.bodies_at;
    const int32_t *a = c->a.q + m * c->a.words, *start = c->a.start + m * n_blocks;
    const float *d = c->a.d + m * n_blocks, *s = c->a.s + m * n_blocks;
    vf sum[TILE];
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++) {
        sum[i] = (vf){0};
    }
    for (int64_t block = 0; block < n_blocks; block++) {
        vq w[8];
        const vf dx = v_load_as(head, LT_F16, 0);
        const vf mx = with_min ? v_load_as(head + 2 * ROWS, LT_F16, 0) : (vf){0};
        if (mr <= 2) { /* With so few rows, reading b determines the time. */
            for (int64_t at = 0; at < c->l.body; at += 64) {
                __builtin_prefetch(body + AHEAD + at, 0, 2);
            }
        }
        expand_small(w, body, lane, type);
#pragma GCC unroll 8
        for (int i = 0; i < mr; i++) {
            vi isum = vi_set(start[i * n_blocks + block]);
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
                const vi word = vi_set(a[i * c->a.words + block * 8 + j]);
                isum = type == LT_Q8_0 ? v_dot4_biased(isum, w[j], word) : v_dot4(isum, w[j], word);
            }
            sum[i] += scaled(__builtin_convertvector(isum, vf), dx, mx, d[i * n_blocks + block],
                             with_min ? s[i * n_blocks + block] : 0.0f, type);
        }
        head += c->l.head;
        body += c->l.body;
    }
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++) {
        store_lanes(c->args, m + i, g * ROWS + lane, sum[i]);
    }
}

LT_INLINE void group_small(const quant *c, int64_t g, const lt_dtype type) {
    const uint8_t *group = (const uint8_t *)c->args->b_packed + g * c->l.group_bytes;
    for (int lane = 0; lane < ROWS && g * ROWS + lane < c->args->y.shape[1]; lane += VEC) {
        int64_t m = 0;
        for (; m + TILE <= c->m_count; m += TILE) {
            tile_small(c, group, g, lane, m, TILE, type);
        }
        for (; m + 2 <= c->m_count; m += 2) {
            tile_small(c, group, g, lane, m, 2, type);
        }
        if (m < c->m_count) {
            tile_small(c, group, g, lane, m, 1, type);
        }
    }
}

/* ---- K formats ---- */

/* Two bytes per lane, as 16-bit numbers. */
LT_INLINE vs widen(const uint8_t *p) {
    return __builtin_convertvector(*(const vqh_mem *)p, vs);
}

/* The block's values times their scales, then its minima: dst[8 t + l] pairs elements 16 t + l and
 * 16 t + l + 8. */
LT_INLINE void expand_super(vs *dst, const uint8_t *head, const uint8_t *body, const int lane,
                            const lt_dtype type) {
    for (int j = 0; j < 8; j++) {
        const vs low_scale = type == LT_Q6_K ? vs_scales(head + 32 + 32 * j + lane, true)
                                             : vs_scales(head + 64 + 16 * j + lane, false);
        const vs high_scale = type == LT_Q6_K ? vs_scales(head + 48 + 32 * j + lane, true)
                                              : low_scale;
#pragma GCC unroll 8
        for (int l = 0; l < 8; l++) {
            const int64_t at = type == LT_Q6_K ? 384 * j + 96 * (l / 2) + 32 * (l % 2)
                                               : 256 * j + 32 * l;
            const vs x = widen(body + at + 2 * lane);
            vs low = x & 15, high = x >> 4;
            if (type == LT_Q5_K) {
                low = vs_fifths(low, body + 2048 + 64 * j + 4 * l, 2 * lane);
                high = vs_fifths(high, body + 2080 + 64 * j + 4 * l, 2 * lane);
            } else if (type == LT_Q6_K) {
                const vs bits = widen(body + 384 * j + 96 * (l / 2) + 64 + 2 * lane) >>
                                (4 * (l % 2));
                low = (low | (bits & 3) << 4) - 32;
                high = (high | (bits & 12) << 2) - 32;
            }
            dst[16 * j + l] = low * low_scale;
            dst[16 * j + 8 + l] = high * high_scale;
        }
    }
    for (int j = 0; j < MINS && type != LT_Q6_K; j++) {
        dst[PAIRS + j] = widen(head + 192 + 32 * j + 2 * lane);
    }
}

typedef struct {
    vf part[TILE_SUPER][8], sum[TILE_SUPER];
} super_sums;

/* Multiply one block of b, unpacked at w, with rows [m, m + mr) of a. */
LT_INLINE void block_super(const quant *c, super_sums *to, const vs *w, const uint8_t *head,
                           int64_t block, int64_t m, const int mr, const lt_dtype type) {
    const int32_t *a = c->a.q + m * c->a.words + block * PAIRS;
    vi isum[TILE_SUPER][8];
#pragma GCC unroll 2
    for (int i = 0; i < mr; i++) {
#pragma GCC unroll 8
        for (int l = 0; l < 8; l++) {
            isum[i][l] = (vi){0};
        }
    }
    for (int t = 0; t < PAIRS; t += 8) {
#pragma GCC unroll 8
        for (int l = 0; l < 8; l++) {
            const vs x = w[t + l];
#pragma GCC unroll 2
            for (int i = 0; i < mr; i++) {
                isum[i][l] = v_dot2(isum[i][l], x, vs_pairs(a[i * c->a.words + t + l]));
            }
        }
    }
    const vf dx = v_load_as(head, LT_F16, 0);
    const vf mx = type != LT_Q6_K ? v_load_as(head + 2 * ROWS, LT_F16, 0) : (vf){0};
#pragma GCC unroll 2
    for (int i = 0; i < mr; i++) {
        const int64_t at = (m + i) * c->l.n_blocks + block;
        const vf d = dx * c->a.d[at];
#pragma GCC unroll 8
        for (int l = 0; l < 8; l++) {
            to->part[i][l] += d * __builtin_convertvector(isum[i][l], vf);
        }
        if (type != LT_Q6_K) {
            vi msum = {0};
            for (int j = 0; j < MINS; j++) {
                msum = v_dot2(msum, w[PAIRS + j], vs_pairs(c->a.start[4 * at + j]));
            }
            to->sum[i] -= mx * c->a.d[at] * __builtin_convertvector(msum, vf);
        }
    }
}

/* Rows [m, m + mr) of y. w: all unpacked blocks or, with unpack, room for one. */
LT_INLINE void tile_super(const quant *c, const uint8_t *group, vs *w, bool unpack, int64_t g,
                          const int lane, int64_t m, const int mr, const lt_dtype type) {
    super_sums s;
    memset(&s, 0, sizeof s);
    for (int64_t block = 0; block < c->l.n_blocks; block++) {
        const uint8_t *head = group + block * c->l.head;
        vs *at = unpack ? w : w + block * (PAIRS + MINS);
        if (unpack) {
            expand_super(at, head, group + c->l.bodies_at + block * c->l.body, lane, type);
        }
        block_super(c, &s, at, head + 2 * lane, block, m, mr, type);
    }
    for (int i = 0; i < mr; i++) {
        for (int l = 0; l < 8; l++) {
            s.sum[i] += s.part[i][l];
        }
        store_lanes(c->args, m + i, g * ROWS + lane, s.sum[i]);
    }
}

LT_INLINE void group_super(const quant *c, int64_t g, const lt_dtype type) {
    const uint8_t *group = (const uint8_t *)c->args->b_packed + g * c->l.group_bytes;
    const bool unpack = c->m_count <= TILE_SUPER;
    vs *w = c->pairs + omp_get_thread_num() * c->pairs_of_thread;
    for (int lane = 0; lane < ROWS && g * ROWS + lane < c->args->y.shape[1]; lane += VEC) {
        int64_t m = 0;
        for (int64_t block = 0; block < c->l.n_blocks && !unpack; block++) {
            expand_super(w + block * (PAIRS + MINS), group + block * c->l.head,
                         group + c->l.bodies_at + block * c->l.body, lane, type);
        }
        for (; m + TILE_SUPER <= c->m_count; m += TILE_SUPER) {
            tile_super(c, group, w, unpack, g, lane, m, TILE_SUPER, type);
        }
        if (m < c->m_count) {
            tile_super(c, group, w, unpack, g, lane, m, 1, type);
        }
    }
}

/* ---- the product ---- */

LT_INLINE void quantise_row(quant *c, int64_t m) {
    const lt_dtype type = c->args->b.dtype;
    const float *x = (const float *)c->args->a.data + m * c->args->a.stride[0];
    const int32_t offset = type == LT_Q4_0   ? 8
                           : type == LT_Q5_0 ? 16
                           : type == LT_Q8_0 ? DOT4_BIAS
                                             : 0;
    const bool super = lt_block_partner(type) == LT_PARTNER_Q8_K;
    for (int64_t block = 0; block < c->l.n_blocks; block++) {
        if (super) {
            quant_super_block(&c->a, m, block, x + block * LT_BLOCK_SUPER);
        } else {
            quant_small_block(&c->a, m, block, x + block * LT_BLOCK_SMALL, offset,
                              type == LT_Q4_1 || type == LT_Q5_1);
        }
    }
}

static void run_group(const quant *c, int64_t g) {
    switch (c->args->b.dtype) {
    case LT_Q4_0:
        group_small(c, g, LT_Q4_0);
        break;
    case LT_Q4_1:
        group_small(c, g, LT_Q4_1);
        break;
    case LT_Q5_0:
        group_small(c, g, LT_Q5_0);
        break;
    case LT_Q5_1:
        group_small(c, g, LT_Q5_1);
        break;
    case LT_Q8_0:
        group_small(c, g, LT_Q8_0);
        break;
    case LT_Q4_K:
        group_super(c, g, LT_Q4_K);
        break;
    case LT_Q5_K:
        group_super(c, g, LT_Q5_K);
        break;
    default:
        group_super(c, g, LT_Q6_K);
        break;
    }
}

static lt_err quant_open(quant *c, const lt_matmul_args *a) {
    const bool super = lt_block_partner(a->b.dtype) == LT_PARTNER_Q8_K;
    const int64_t k = a->a.shape[1];
    *c = (quant){.args = a, .m_count = a->y.shape[0]};
    const bool served = lt_quant_layout_of(&c->l, a->b.dtype, a->y.shape[1], k);
    LT_ASSERT(served && a->b_packed != NULL);
    c->a.words = super ? k / 2 : k / 4;
    c->a.n_blocks = c->l.n_blocks;
    const int64_t blocks = c->m_count * c->l.n_blocks, starts = super ? 4 * blocks : blocks;
    LT_TRY(lt_cpu_scratch(&c->a.q, LT_CPU_SLOT_A,
                          (size_t)(c->m_count * c->a.words + 2 * blocks + starts) * 4));
    c->a.start = c->a.q + c->m_count * c->a.words;
    c->a.d = (float *)(c->a.start + starts);
    c->a.s = c->a.d + blocks;
    if (super) {
        c->pairs_of_thread = c->l.n_blocks * (PAIRS + MINS);
        LT_TRY(lt_cpu_scratch(&c->pairs, LT_CPU_SLOT_B,
                              (size_t)(omp_get_max_threads() * c->pairs_of_thread) *
                                  sizeof *c->pairs));
    }
    return LT_OK;
}

lt_err LT_ISA_NAME(lt_cpu_matmul_quant)(lt_queue *q, const void *args) {
    const lt_matmul_args *a = args;
    quant c;
    (void)q;
    LT_TRY(quant_open(&c, a));
    if (c.m_count == 1) { /* Decoding one row is not worth a barrier. */
        quantise_row(&c, 0);
    }
#pragma omp parallel if (a->y.shape[1] * a->a.shape[1] * c.m_count > PARALLEL_MIN)
    {
        if (c.m_count > 1) {
#pragma omp for schedule(static)
            for (int64_t m = 0; m < c.m_count; m++) {
                quantise_row(&c, m);
            }
        }
#pragma omp for schedule(static) nowait
        for (int64_t g = 0; g < c.l.n_groups; g++) {
            run_group(&c, g);
        }
    }
    return LT_OK;
}
