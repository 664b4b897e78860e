/* attention_fwd.c: flash attention forward (Dao et al. 2022, arXiv:2205.14135) in tiles of NQ
 * queries by KEYS keys; layout: attention.h.
 *
 * STAGES    0. All threads pack K (panels, transposed) and V (rows), widened to F32, once a call.
 *           For each (sequence, head, panel of queries), over the blocks of keys that it sees:
 *           1. S^T = K (scale Q)^T
 *           2. cap, alibi, mask
 *           3. running maximum m, P^T = exp(S^T - m), sum l
 *           4. O^T = O^T exp(m_old - m) + V^T P^T
 *           Last: O = O^T / l, transposed when it is stored; lse = m + log l.
 * SKIPPED   Blocks of keys that no query of the panel sees (causal, window, documents, kv_len) are
 *           not computed.
 * BOUND     4 D flops and one exponential a visible (query, key) pair.
 * ORDER     A panel is computed by one thread from the first to the last key, so the bits are the
 *           same for any number of threads. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/attention.h"
#include "kernels/cpu/scratch.h"

#include <omp.h>

typedef struct {
    const lt_attention_args *args;
    /* kv_keys: keys allocated for one (b, g), a multiple of NK. */
    int64_t d, n_heads, n_kv_heads, n_panels, kv_keys;
    float *keys, *values; /* (B, G, kv_keys * d) each */
    float *tiles;         /* S^T, Q^T and O^T of a thread, `per_thread` floats. */
    int64_t per_thread;
} attention;

LT_INLINE void pack_head(const attention *c, int64_t b, int64_t g, const lt_dtype dtype) {
    const int64_t at = (b * c->n_kv_heads + g) * c->kv_keys * c->d;
    const int64_t n_keys = keys_of(c->args, b);
    pack_keys(c->keys + at, &c->args->k, b, g, n_keys, dtype);
    copy_rows(c->values + at, c->d, &c->args->v, b, 0, g, n_keys, 1.0f, dtype);
}

/* Rescaling of stages 3 and 4 for one half of the lanes. Returns the factor for the earlier
 * sums. */
LT_INLINE vf softmax_half(float *st, int64_t n, vf *max, vf *sum) {
    vf high = *max;
    for (int64_t i = 0; i < n; i++) {
        high = v_max(v_load(st + i * NQ), high);
    }
    /* -inf if a lane has seen nothing yet. */
    const vf shift = v_pick(high == -INFINITY, (vf){0}, high);
    const vf factor = v_exp(*max - shift);
    vf total = *sum * factor;
    for (int64_t i = 0; i < n; i++) {
        const vf e = v_exp(v_load(st + i * NQ) - shift);
        v_store(st + i * NQ, e);
        total += e;
    }
    *max = high;
    *sum = total;
    return factor;
}

/* ot[d][NQ] = ot * factor + sum over keys of values[key][d] st[key][NQ]. */
LT_INLINE void values_block(float *ot, const float *st, const float *values, int64_t n, int64_t d,
                            const vf factor[2]) {
    const int64_t tiles = (d + NK - 1) / NK;
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t first = i * d / tiles;
        const int mr = (int)((i + 1) * d / tiles - first);
        lt_tile t;
        LT_TILE_SWITCH(mr, tile_mul(&t, MR, n, values + first, 1, d, st, NQ, NULL, 0));
        for (int r = 0; r < mr; r++) {
            float *row = ot + (first + r) * NQ;
            v_store(row, v_load(row) * factor[0] + t.v[r][0]);
            v_store(row + VEC, v_load(row + VEC) * factor[1] + t.v[r][1]);
        }
    }
}

/* Write O^T / l to rows of out, by transposing, and lse. */
LT_INLINE void finish_panel(const attention *c, const panel *p, int64_t b, int64_t h,
                            const float *ot, const vf max[2], const vf sum[2],
                            const lt_dtype dtype) {
    const lt_attention_args *a = c->args;
    for (int half = 0; half < 2; half++) {
        const int64_t lanes = p->count - half * VEC;
        const vf inverse = v_pick(sum[half] > 0.0f, 1.0f / sum[half], (vf){0});
        for (int64_t d = 0; d < c->d && lanes > 0; d += VEC) {
            vf x[VEC];
            for (int i = 0; i < VEC; i++) {
                x[i] = d + i < c->d ? v_load(ot + (d + i) * NQ + half * VEC) * inverse : (vf){0};
            }
            v_transpose(x);
            for (int i = 0; i < VEC && i < lanes; i++) {
                void *row = at_element(&a->out, b * a->out.stride[0] +
                                                    (p->first + half * VEC + i) * a->out.stride[1] +
                                                    h * a->out.stride[2]);
                v_put(row, dtype, d, x[i], c->d - d);
            }
        }
        for (int64_t i = 0; i < VEC && i < lanes && a->lse.data != NULL; i++) {
            float *lse = (float *)a->lse.data + b * a->lse.stride[0] + h * a->lse.stride[1] +
                         p->first + half * VEC + i;
            *lse = sum[half][i] > 0.0f ? max[half][i] + logf(sum[half][i]) : -INFINITY;
        }
    }
}

LT_INLINE void run_panel(const attention *c, int64_t b, int64_t h, int64_t index, float *tiles,
                         const lt_dtype dtype) {
    const lt_attention_args *a = c->args;
    const int64_t g = h / (c->n_heads / c->n_kv_heads);
    const int64_t at = (b * c->n_kv_heads + g) * c->kv_keys * c->d;
    const float alibi = a->alibi.data != NULL
                            ? ((const float *)a->alibi.data)[h * a->alibi.stride[0]]
                            : 0.0f;
    const bool sink = a->sinks.data != NULL;
    const vf start = v_set(sink ? ((const float *)a->sinks.data)[h * a->sinks.stride[0]]
                                : -INFINITY);
    float *st = tiles;
    float *qt = st + (KEYS + NK) * NQ;
    float *ot = qt + c->d * NQ;
    vf max[2] = {start, start};
    vf sum[2] = {v_set(sink ? 1.0f : 0.0f), v_set(sink ? 1.0f : 0.0f)};
    panel p;
    panel_open(&p, a, b, index * NQ);
    pack_queries(qt, &a->q, b, &p, h, a->scale, dtype);
    memset(ot, 0, (size_t)(c->d * NQ) * sizeof *ot);
    for (int64_t s = p.from; s < p.to; s += KEYS) {
        const int64_t n = p.to - s < KEYS ? p.to - s : KEYS;
        vf factor[2];
        logits_block(st, c->keys + at + s * c->d, qt, n, c->d);
        mask_block(st, &p, s, n, a->softcap, alibi, NULL);
        factor[0] = softmax_half(st, n, &max[0], &sum[0]);
        factor[1] = softmax_half(st + VEC, n, &max[1], &sum[1]);
        values_block(ot, st, c->values + at + s * c->d, n, c->d, factor);
    }
    finish_panel(c, &p, b, h, ot, max, sum, dtype);
}

LT_INLINE void run_all(const attention *c, const lt_dtype dtype, const lt_dtype kv) {
    const int64_t batch = c->args->q.shape[0];
    const int64_t n_kv = batch * c->n_kv_heads;
    const int64_t n_tasks = batch * c->n_heads * c->n_panels;
#pragma omp parallel
    {
        float *tiles = c->tiles + omp_get_thread_num() * c->per_thread;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < n_kv; i++) {
            pack_head(c, i / c->n_kv_heads, i % c->n_kv_heads, kv);
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < n_tasks; i++) { /* Long panels (late queries) come first. */
            const int64_t index = c->n_panels - 1 - i / (batch * c->n_heads);
            const int64_t head = i % (batch * c->n_heads);
            run_panel(c, head / c->n_heads, head % c->n_heads, index, tiles, dtype);
        }
    }
}

lt_err LT_ISA_NAME(lt_cpu_attention_fwd)(lt_queue *q, const void *args) {
    const lt_attention_args *a = args;
    const int64_t batch = a->q.shape[0];
    attention c = {.args = a,
                   .d = a->q.shape[3],
                   .n_heads = a->q.shape[2],
                   .n_kv_heads = a->k.shape[2],
                   .n_panels = (a->q.shape[1] + NQ - 1) / NQ,
                   .kv_keys = key_panels(a->k.shape[1]) * NK};
    const size_t kv_bytes = (size_t)(batch * c.n_kv_heads * c.kv_keys * c.d) * sizeof(float);
    (void)q;
    c.per_thread = (KEYS + NK + 2 * c.d) * NQ;
    LT_TRY(lt_cpu_scratch(&c.keys, LT_CPU_SLOT_A, kv_bytes));
    LT_TRY(lt_cpu_scratch(&c.values, LT_CPU_SLOT_B, kv_bytes));
    LT_TRY(lt_cpu_scratch(&c.tiles, LT_CPU_SLOT_TILES,
                          (size_t)(omp_get_max_threads() * c.per_thread) * sizeof(float)));
    if (a->k.dtype == LT_F16) {
        run_all(&c, LT_F32, LT_F16);
    } else if (a->q.dtype == LT_F32) {
        run_all(&c, LT_F32, LT_F32);
    } else {
        run_all(&c, LT_BF16, LT_BF16);
    }
    return LT_OK;
}
