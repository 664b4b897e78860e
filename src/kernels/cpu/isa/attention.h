/* attention.h: shared by forward and backward attention: the visible keys of a query, keys and
 * values packed for tile_mul, panels of queries.
 *
 * A panel is LT_TILE_COLS consecutive queries of one head, one a vector lane. Logits are computed
 * transposed, S^T (key, query): keys are the broadcast operand, queries the vectors. So the softmax
 * over keys runs down the rows, lane by lane, without any reduction across a vector; the
 * exponentials are already the packed operand of the product with V; and only Q is transposed, once
 * a panel. Every mask of the contract is an interval of keys [from, to) per query, so masking takes
 * two comparisons, and only where a block of keys crosses an edge. */
#ifndef LT_CPU_ISA_ATTENTION_H
#define LT_CPU_ISA_ATTENTION_H

#include <math.h>

#include "kernels/cpu/isa/pack.h"
#include "kernels/cpu/isa/rows.h"
#include "kernels/cpu/isa/tile.h"

#define NQ   LT_TILE_COLS
#define NK   LT_TILE_ROWS
#define KEYS 126 /* Keys per block: 9 panels of 14 or 21 of 6; S^T of a block takes 16 KB. */

typedef struct {
    /* Position of the query among the keys, and the range of keys that it sees. */
    int64_t pos, from, to;
} span;

LT_INLINE int64_t keys_of(const lt_attention_args *a, int64_t b) {
    return a->kv_len.data == NULL ? a->k.shape[1]
                                  : ((const int32_t *)a->kv_len.data)[b * a->kv_len.stride[0]];
}

LT_INLINE span visible(const lt_attention_args *a, int64_t b, int64_t t) {
    const int64_t n_keys = keys_of(a, b);
    span s = {.pos = n_keys - a->q.shape[1] + t, .from = 0, .to = n_keys};
    if (a->causal && s.pos + 1 < s.to) {
        s.to = s.pos + 1;
    }
    if (a->window > 0 && s.pos - a->window + 1 > s.from) {
        s.from = s.pos - a->window + 1;
    }
    if (a->doc_start.data != NULL) {
        const int64_t start = ((const int32_t *)a->doc_start
                                   .data)[b * a->doc_start.stride[0] + t * a->doc_start.stride[1]];
        s.from = start > s.from ? start : s.from;
    }
    return s;
}

/* The queries of a panel: the interval that each lane sees, and the hulls of all lanes. Lanes
 * beyond T see nothing. */
typedef struct {
    int64_t first, count;     /* Queries [first, first + count). */
    int64_t from, to;         /* Keys that any lane sees; empty if to <= from. */
    int64_t all_from, all_to; /* Keys that every lane sees. */
    int32_t lane_from[NQ], lane_to[NQ], lane_pos[NQ];
} panel;

LT_INLINE void panel_open(panel *p, const lt_attention_args *a, int64_t b, int64_t first) {
    const int64_t left = a->q.shape[1] - first;
    *p = (panel){
        .first = first, .count = left < NQ ? left : NQ, .from = INT64_MAX, .all_to = INT64_MAX};
    for (int64_t i = 0; i < p->count; i++) {
        const span s = visible(a, b, first + i);
        p->lane_from[i] = (int32_t)s.from;
        p->lane_to[i] = (int32_t)s.to;
        p->lane_pos[i] = (int32_t)s.pos;
        p->from = s.from < p->from ? s.from : p->from;
        p->to = s.to > p->to ? s.to : p->to;
        p->all_from = s.from > p->all_from ? s.from : p->all_from;
        p->all_to = s.to < p->all_to ? s.to : p->all_to;
    }
    /* All lanes are filled alike, so that the shortcuts of full panels apply. */
    for (int64_t i = p->count; i < NQ; i++) {
        p->lane_from[i] = p->lane_from[p->count - 1];
        p->lane_to[i] = p->lane_to[p->count - 1];
        p->lane_pos[i] = p->lane_pos[p->count - 1];
    }
    p->from = p->from / NK * NK; /* A block of keys starts at a packed panel. */
}

/* Sizes of the packed operands of one (sequence, key/value head). */
LT_INLINE int64_t key_panels(int64_t n_keys) {
    return (n_keys + NK - 1) / NK;
}

LT_INLINE int64_t padded_dim(int64_t d) {
    return (d + NQ - 1) / NQ * NQ;
}

LT_INLINE const void *head_row(const lt_tensor *t, int64_t b, int64_t s, int64_t h) {
    return at_element(t, b * t->stride[0] + s * t->stride[1] + h * t->stride[2]);
}

/* dst: panels of NK keys, [d][key], of head h of x (B, S, G, D). */
LT_INLINE void pack_keys(float *dst, const lt_tensor *x, int64_t b, int64_t h, int64_t n_keys,
                         const lt_dtype dtype) {
    const int64_t d = x->shape[3];
    for (int64_t s = 0; s < n_keys; s += NK) {
        pack_across(dst + s * d, NK, NK, head_row(x, b, s, h), dtype, x->stride[1],
                    n_keys - s < NK ? n_keys - s : NK, d);
    }
}

/* dst[s][row] = scale * x of head h: F32 rows of `row` >= D floats, with zeros after D. */
LT_INLINE void copy_rows(float *dst, int64_t row, const lt_tensor *x, int64_t b, int64_t first,
                         int64_t h, int64_t count, float scale, const lt_dtype dtype) {
    const int64_t d = x->shape[3];
    for (int64_t s = 0; s < count; s++) {
        const void *src = head_row(x, b, first + s, h);
        int64_t c = 0;
        for (; c < d; c += VEC) {
            const int64_t n = row - c < VEC ? row - c : VEC;
            v_put(dst + s * row, LT_F32, c, scale * v_get(src, dtype, c, d - c), n);
        }
        for (; c < row; c++) {
            dst[s * row + c] = 0.0f;
        }
    }
}

/* dst[d][NQ]: the panel's queries (or rows of dout) as columns, times scale; absent lanes are 0. */
LT_INLINE void pack_queries(float *dst, const lt_tensor *x, int64_t b, const panel *p, int64_t h,
                            float scale, const lt_dtype dtype) {
    const int64_t d = x->shape[3];
    pack_across(dst, NQ, NQ, head_row(x, b, p->first, h), dtype, x->stride[1], p->count, d);
    for (int64_t i = 0; i < d * NQ; i += VEC) {
        v_store(dst + i, scale * v_load(dst + i));
    }
}

/* out[key][NQ] = sum over d of keys[panel][d][key] columns[d][NQ], for the key panels that cover n
 * keys. */
LT_INLINE void logits_block(float *out, const float *keys, const float *columns, int64_t n,
                            int64_t d) {
    for (int64_t s = 0; s < n; s += NK) {
        lt_tile t;
        tile_mul(&t, NK, d, keys + s * d, 1, NK, columns, NQ, NULL, 0);
#pragma GCC unroll 16
        for (int i = 0; i < NK; i++) {
            v_store(out + (s + i) * NQ, t.v[i][0]);
            v_store(out + (s + i) * NQ + VEC, t.v[i][1]);
        }
    }
}

/* x <- softcap tanh(x / softcap) + slope (s - pos), and -inf where the lane does not see s. With
 * cap_slope (same layout): d(cap)/dx there. */
LT_INLINE void mask_block(float *x, const panel *p, int64_t s0, int64_t n, float softcap,
                          float alibi, float *cap_slope) {
    const bool edge = s0 < p->all_from || s0 + n > p->all_to;
    if (!edge && softcap <= 0.0f && alibi == 0.0f) {
        return;
    }
    for (int half = 0; half < 2; half++) {
        const vi from = *(const vi_mem *)(p->lane_from + half * VEC);
        const vi to = *(const vi_mem *)(p->lane_to + half * VEC);
        const vf pos = __builtin_convertvector(*(const vi_mem *)(p->lane_pos + half * VEC), vf);
        for (int64_t i = 0; i < n; i++) {
            float *at = x + i * NQ + half * VEC;
            vf l = v_load(at);
            if (softcap > 0.0f) {
                const vf t = v_tanh(l * (1.0f / softcap));
                l = softcap * t;
                if (cap_slope != NULL) {
                    v_store(cap_slope + i * NQ + half * VEC, 1.0f - t * t);
                }
            }
            if (alibi != 0.0f) {
                l += alibi * ((float)(s0 + i) - pos);
            }
            const vi s = vi_set((int32_t)(s0 + i));
            v_store(at, v_pick((s >= from) & (s < to), l, v_set(-INFINITY)));
        }
    }
}

#endif
