/* plain.cuh: shared by attention's kernels on CUDA cores (any.cu, tiled.cu): their arguments, which
 * keys a query sees, and how a product becomes a logit.
 *
 * Query t of a sequence stands at p = n_keys - T + t; it sees keys [max(0, p - window + 1,
 * doc_start), min(n_keys, p + 1 if causal)). Logits are in natural units: x = q.k scale, cap tanh(x
 * / cap) with softcap, plus slope (s - p) with ALiBi. The options are arguments, not -D words: all
 * except softcap cost these kernels nothing. */
#ifndef LT_CUDA_ATTENTION_PLAIN_CUH
#define LT_CUDA_ATTENTION_PLAIN_CUH

#include "common/reduce.cuh"
#include "kernels/cuda/attention/plain_args.h"

#ifndef SOFTCAP
#define SOFTCAP 1 /* 0: there is no cap; tanh is expensive. */
#endif
#define INFINITE __int_as_float(0x7f800000)

typedef struct {
    int pos, from, to; /* the query's position; visible keys [from, to) */
} span;
INLINE int keys_of(const lt_attn_plain_args *w, int b) {
    return w->kv_len ? min(w->kv_len[b], w->kv_tokens) : w->kv_tokens;
}
INLINE span visible(const lt_attn_plain_args *w, int b, int t, int n_keys) {
    span s = {n_keys - w->q_tokens + t, 0, n_keys};
    if (w->causal) {
        s.to = min(s.to, s.pos + 1);
    }
    if (w->window > 0) {
        s.from = (int)max((i64)0, s.pos - w->window + 1);
    }
    if (w->doc_start) {
        s.from = max(s.from, w->doc_start[b * w->doc_ld + t]);
    }
    return s;
}
/* Logit of a raw product; *slope: its derivative. */
INLINE float logit(const lt_attn_plain_args *w, float raw, int h, int key, int pos, float *slope) {
    float x = raw * w->scale;
    *slope = 1.0f;
    if (SOFTCAP && w->softcap > 0.0f) {
        const float th = tanhf(x / w->softcap);
        x = w->softcap * th;
        *slope = 1.0f - th * th;
    }
    return w->alibi ? x + w->alibi[h] * (float)(key - pos) : x;
}

/* P and d(logit) of one query and key. */
INLINE void pair(const lt_attn_plain_args *w, float raw, float dp, float lse, float delta, int h,
                 int s, int pos, float *p, float *draw) {
    float slope;
    const float x = logit(w, raw, h, s, pos, &slope);
    *p = lse > -INFINITE ? expf(x - lse) : 0.0f;
    *draw = *p * (dp - delta) * slope;
}

#endif
