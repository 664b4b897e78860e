/* attention_bwd.c: flash attention backward (Dao et al. 2022, appendix B) in tiles of NQ queries by
 * KEYS keys; layout: attention.h.
 *
 * STAGES    A task is one (sequence, key/value head): it owns that head's dK and dV and the dQ of
 *           the heads that read it, so nothing is shared and the sums have one order. Per head of
 *           its group and panel of queries, with P^T, dS^T (key, query):
 *           1. delta = <dO, O>; Q^T, dO^T (columns) and scale Q, dO (rows) packed
 *           for each visible block of keys:
 *           2. S^T = K (scale Q)^T, masked; P^T = exp(S^T - lse)
 *           3. dP^T = V dO^T, dS^T = P^T (dP^T - delta) cap'
 *           4. dV += P^T dO
 *           5. dK += dS^T (scale Q)
 *           6. dQ += dS K, scaled when the panel is written
 * BOUND     10 D flops a visible pair: five products where forward has two.
 * THREADS   B * G tasks, which are few for a single long sequence with few key heads.
 * ORDER     Fixed: heads, then panels, then keys rise. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/attention.h"
#include "kernels/cpu/scratch.h"

#include <omp.h>

typedef struct {
    const lt_attention_bwd_args *args;
    int64_t d, row, n_heads, n_kv_heads, kv_keys; /* row: d padded to whole tiles. */
    float *memory;
    int64_t per_thread;
} backward;

/* One thread's memory. */
typedef struct {
    float *key_panels, *value_panels; /* [panel][d][NK] */
    float *key_rows;                  /* (kv_keys, row) */
    float *dk, *dv;                   /* (kv_keys, row) */
    float *qt, *dot;                  /* [d][NQ] */
    float *q_rows, *dout_rows, *dq;   /* (NQ, row) */
    float *pt, *dst, *cap;            /* [KEYS + NK][NQ] */
} workspace;

static int64_t workspace_carve(workspace *w, const backward *c, float *base) {
    const int64_t kv_panels = c->kv_keys * c->d;
    const int64_t kv_rows = c->kv_keys * c->row;
    const int64_t block = (KEYS + NK) * NQ;
    const struct {
        float **field;
        int64_t count;
    } parts[] = {{&w->key_panels, kv_panels},
                 {&w->value_panels, kv_panels},
                 {&w->key_rows, kv_rows},
                 {&w->dk, kv_rows},
                 {&w->dv, kv_rows},
                 {&w->qt, c->d * NQ},
                 {&w->dot, c->d * NQ},
                 {&w->q_rows, NQ * c->row},
                 {&w->dout_rows, NQ * c->row},
                 {&w->dq, NQ * c->row},
                 {&w->pt, block},
                 {&w->dst, block},
                 {&w->cap, block}};
    int64_t at = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i].field = base == NULL ? NULL : base + at;
        at += (parts[i].count + 15) / 16 * 16;
    }
    return at;
}

/* y (m, row) += a . b, a element (i, k) at a[i * a_row + k * a_col], b rows of `row` floats. */
LT_INLINE void add_product(float *y, int64_t m, int64_t row, int64_t k_count, const float *a,
                           const int64_t a_row, const int64_t a_col, const float *b) {
    const int64_t tiles = (m + NK - 1) / NK;
    for (int64_t j = 0; j < row; j += NQ) {
        for (int64_t i = 0; i < tiles; i++) {
            const int64_t first = i * m / tiles;
            const int mr = (int)((i + 1) * m / tiles - first);
            lt_tile t;
            LT_TILE_SWITCH(mr, tile_mul(&t, MR, k_count, a + first * a_row, a_row, a_col, b + j,
                                        row, NULL, 0));
            for (int r = 0; r < mr; r++) {
                float *at = y + (first + r) * row + j;
                v_store(at, v_load(at) + t.v[r][0]);
                v_store(at + VEC, v_load(at + VEC) + t.v[r][1]);
            }
        }
    }
}

/* Stages 2 and 3 for n keys: pt from logits to probabilities, dst from dP to dS. */
LT_INLINE void gradient_block(const workspace *w, int64_t n, const float *lse, const float *delta,
                              bool capped) {
    for (int half = 0; half < NQ; half += VEC) {
        const vf l = v_load(lse + half);
        const vf d = v_load(delta + half);
        for (int64_t i = 0; i < n; i++) {
            const int64_t at = i * NQ + half;
            const vf p = v_exp(v_load(w->pt + at) - l);
            vf ds = p * (v_load(w->dst + at) - d);
            if (capped) {
                ds *= v_load(w->cap + at);
            }
            v_store(w->pt + at, p);
            v_store(w->dst + at, ds);
        }
    }
}

/* The numbers of stage 1: lse and delta of each lane. Lanes beyond T, and rows that saw nothing,
 * get lse = +inf, so that their P is 0. */
LT_INLINE void lane_numbers(const backward *c, const panel *p, int64_t b, int64_t h, float *lse,
                            float *delta, const lt_dtype dtype) {
    const lt_attention_args *f = &c->args->fwd;
    for (int64_t i = 0; i < NQ; i++) {
        lse[i] = INFINITY;
        delta[i] = 0.0f;
        if (i >= p->count) {
            continue;
        }
        const int64_t t = p->first + i;
        const void *out = head_row(&f->out, b, t, h);
        const void *dout = head_row(&c->args->dout, b, t, h);
        vf sum = {0};
        for (int64_t e = 0; e < c->d; e += VEC) {
            sum += v_get(out, dtype, e, c->d - e) * v_get(dout, dtype, e, c->d - e);
        }
        delta[i] = v_sum(sum);
        ((float *)c->args->delta
             .data)[b * c->args->delta.stride[0] + h * c->args->delta.stride[1] + t] = delta[i];
        lse[i] = ((const float *)f->lse.data)[b * f->lse.stride[0] + h * f->lse.stride[1] + t];
        lse[i] = lse[i] == -INFINITY ? INFINITY : lse[i];
    }
}

LT_INLINE void run_panel(const backward *c, const workspace *w, int64_t b, int64_t h, int64_t first,
                         const lt_dtype dtype) {
    const lt_attention_args *f = &c->args->fwd;
    const float alibi = f->alibi.data != NULL
                            ? ((const float *)f->alibi.data)[h * f->alibi.stride[0]]
                            : 0.0f;
    float lse[NQ];
    float delta[NQ];
    panel p;
    panel_open(&p, f, b, first);
    lane_numbers(c, &p, b, h, lse, delta, dtype);
    pack_queries(w->qt, &f->q, b, &p, h, f->scale, dtype);
    pack_queries(w->dot, &c->args->dout, b, &p, h, 1.0f, dtype);
    copy_rows(w->q_rows, c->row, &f->q, b, first, h, p.count, f->scale, dtype);
    copy_rows(w->dout_rows, c->row, &c->args->dout, b, first, h, p.count, 1.0f, dtype);
    memset(w->dq, 0, (size_t)(NQ * c->row) * sizeof *w->dq);
    for (int64_t s = p.from; s < p.to; s += KEYS) {
        const int64_t n = p.to - s < KEYS ? p.to - s : KEYS;
        logits_block(w->pt, w->key_panels + s * c->d, w->qt, n, c->d);
        mask_block(w->pt, &p, s, n, f->softcap, alibi, w->cap);
        logits_block(w->dst, w->value_panels + s * c->d, w->dot, n, c->d);
        gradient_block(w, n, lse, delta, f->softcap > 0.0f);
        add_product(w->dv + s * c->row, n, c->row, p.count, w->pt, NQ, 1, w->dout_rows);
        add_product(w->dk + s * c->row, n, c->row, p.count, w->dst, NQ, 1, w->q_rows);
        add_product(w->dq, p.count, c->row, n, w->dst, 1, NQ, w->key_rows + s * c->row);
    }
    for (int64_t i = 0; i < p.count; i++) {
        void *dq = (void *)(uintptr_t)head_row(&c->args->dq, b, first + i, h);
        for (int64_t e = 0; e < c->d; e += VEC) {
            v_put(dq, dtype, e, f->scale * v_load(w->dq + i * c->row + e), c->d - e);
        }
    }
}

LT_INLINE void write_rows(const lt_tensor *dst, const float *rows, int64_t row, int64_t b,
                          int64_t g, int64_t n_keys, const lt_dtype dtype) {
    /* No query saw keys beyond kv_len, so their gradient is 0. */
    for (int64_t s = 0; s < dst->shape[1]; s++) {
        void *to = (void *)(uintptr_t)head_row(dst, b, s, g);
        for (int64_t e = 0; e < dst->shape[3]; e += VEC) {
            v_put(to, dtype, e, s < n_keys ? v_load(rows + s * row + e) : (vf){0},
                  dst->shape[3] - e);
        }
    }
}

LT_INLINE void run_kv_head(const backward *c, int64_t b, int64_t g, float *memory,
                           const lt_dtype dtype) {
    const lt_attention_args *f = &c->args->fwd;
    const int64_t group = c->n_heads / c->n_kv_heads;
    const int64_t n_keys = keys_of(f, b);
    workspace w;
    workspace_carve(&w, c, memory);
    pack_keys(w.key_panels, &f->k, b, g, n_keys, dtype);
    pack_keys(w.value_panels, &f->v, b, g, n_keys, dtype);
    copy_rows(w.key_rows, c->row, &f->k, b, 0, g, n_keys, 1.0f, dtype);
    memset(w.dk, 0, (size_t)(n_keys * c->row) * sizeof *w.dk);
    memset(w.dv, 0, (size_t)(n_keys * c->row) * sizeof *w.dv);
    for (int64_t h = g * group; h < (g + 1) * group; h++) {
        for (int64_t t = 0; t < f->q.shape[1]; t += NQ) {
            run_panel(c, &w, b, h, t, dtype);
        }
    }
    write_rows(&c->args->dk, w.dk, c->row, b, g, n_keys, dtype);
    write_rows(&c->args->dv, w.dv, c->row, b, g, n_keys, dtype);
}

LT_INLINE void run_all(const backward *c, const lt_dtype dtype) {
    const int64_t n_tasks = c->args->fwd.q.shape[0] * c->n_kv_heads;
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t i = 0; i < n_tasks; i++) {
        run_kv_head(c, i / c->n_kv_heads, i % c->n_kv_heads,
                    c->memory + omp_get_thread_num() * c->per_thread, dtype);
    }
}

/* dsinks[h] -= sum over b, t of exp(sink - lse) delta. */
static void sink_gradient(const lt_attention_bwd_args *a) {
    const lt_attention_args *f = &a->fwd;
    for (int64_t h = 0; h < f->q.shape[2]; h++) {
        const float sink = ((const float *)f->sinks.data)[h * f->sinks.stride[0]];
        double sum = 0.0;
        for (int64_t b = 0; b < f->q.shape[0]; b++) {
            const float *lse = (const float *)f->lse.data + b * f->lse.stride[0] +
                               h * f->lse.stride[1];
            const float *delta = (const float *)a->delta.data + b * a->delta.stride[0] +
                                 h * a->delta.stride[1];
            for (int64_t t = 0; t < f->q.shape[1]; t++) {
                sum += (double)(expf(sink - lse[t]) * delta[t]);
            }
        }
        ((float *)a->dsinks.data)[h * a->dsinks.stride[0]] -= (float)sum;
    }
}

lt_err LT_ISA_NAME(lt_cpu_attention_bwd)(lt_queue *q, const void *args) {
    const lt_attention_bwd_args *a = args;
    const int64_t d = a->fwd.q.shape[3];
    backward c = {.args = a,
                  .d = d,
                  .row = padded_dim(d),
                  .n_heads = a->fwd.q.shape[2],
                  .n_kv_heads = a->fwd.k.shape[2],
                  .kv_keys = key_panels(a->fwd.k.shape[1]) * NK};
    workspace unused;
    (void)q;
    c.per_thread = workspace_carve(&unused, &c, NULL);
    LT_TRY(lt_cpu_scratch(&c.memory, LT_CPU_SLOT_TILES,
                          (size_t)(omp_get_max_threads() * c.per_thread) * sizeof(float)));
    BY_DTYPE(a->fwd.q.dtype, run_all, &c);
    if (a->fwd.sinks.data != NULL && a->dsinks.data != NULL) {
        sink_gradient(a);
    }
    return LT_OK;
}
