/* mask.cuh: which keys a query sees, and how a score becomes a logit: shared by attention forward
 * and backward.
 *
 * Query token t of sequence b stands at key position p = kv_len[b] - T + t. It sees keys lo(t) ..
 * hi(t):
 *     hi = min(kv_len - 1, p if CAUSAL); lo = max(0, p - window + 1 if WINDOW, doc_start[b][t] if
 *     DOC)
 * lo and hi never fall as t rises (doc_start is sorted in a row), so a tile's bounds come from its
 * first and last token. Logits are kept in units of log2: x = q.k * scale * log2(e), or cap *
 * log2(e) * tanh(q.k * scale / cap) with SOFTCAP, plus slope * log2(e) * (s - p) with ALIBI. */
#ifndef LT_CUDA_ATTENTION_MASK_CUH
#define LT_CUDA_ATTENTION_MASK_CUH

#include "common/hopper.cuh"
#include "kernels/cuda/attention/args.h"

#ifndef CAUSAL
#define CAUSAL 0
#endif
#ifndef WINDOW
#define WINDOW 0
#endif
#ifndef DOC
#define DOC 0
#endif
#ifndef SOFTCAP
#define SOFTCAP 0
#endif
#ifndef ALIBI
#define ALIBI 0
#endif
#ifndef SINKS
#define SINKS 0
#endif
#ifndef PAGED /* Forward: tokens per page of keys; 0: keys are contiguous. */
#define PAGED 0
#endif
#define LOG2E    1.4426950408889634f
#define LN2      0.6931471805599453f
#define INFINITE __int_as_float(0x7f800000)

typedef struct {
    int lo, hi; /* range of visible keys, both included */
} key_range;

INLINE int keys_of(const lt_attn_args *a, int b) {
    return a->kv_len != 0 ? min_i(a->kv_len[b], a->kv_tokens) : a->kv_tokens;
}
INLINE int tokens_of(const lt_attn_args *a, int b) {
    return PAGED ? a->q_start[b + 1] - a->q_start[b] : a->q_tokens;
}
INLINE key_range range_of(const lt_attn_args *a, int b, int n_keys, int token) {
    const int tokens = tokens_of(a, b), t = min_i(token, tokens - 1), p = n_keys - tokens + t;
    key_range r = {0, n_keys - 1};
    if (CAUSAL) {
        r.hi = min_i(r.hi, p);
    }
    if (WINDOW) {
        r.lo = max_i(r.lo, p - a->window + 1);
    }
    if (DOC) {
        r.lo = max_i(r.lo, a->doc_start[b * a->q_tokens + t]);
    }
    return r;
}

/* 1 - 2 / (e^2x + 1): accurate to a few ulp, where tanh.approx has 2^-11. */
INLINE float tanh_of(float x) {
    return 1.0f - __fdividef(2.0f, exp2_fast(x * (2.0f * LOG2E)) + 1.0f);
}

/* One thread of a block that has drawn its last tile: the last block to finish resets the
 * counters. */
INLINE void draws_end(const lt_attn_args *a) {
    __threadfence();
    if (atomicAdd(a->counter + 1, 1) == gridDim.x - 1) {
        a->counter[0] = 0;
        a->counter[1] = 0;
    }
}

#endif
