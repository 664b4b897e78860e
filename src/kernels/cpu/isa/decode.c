/* decode.c: attention of few queries (T small) over many keys, as in decoding: bound by reading K
 * and V once.
 *
 * MAP       A task is SPLIT keys of one (sequence, key/value head) for all its queries (T times the
 *           heads of the group): logits of the chunk, their maximum m, sum l and the unnormalised
 *           output go to scratch; then the chunks of a query are joined in order (Dao et al. 2023,
 *           "Flash-Decoding"). VEC dot products at a time: VEC vectors of partial sums, transposed
 *           and added.
 * ORDER     The chunks depend only on the number of keys, so the bits are the same for any number
 * of threads. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/attention.h"
#include "kernels/cpu/scratch.h"

#define SPLIT   256  /* Keys per task. */
#define MAX_DIM 1024 /* As in the reference. */

typedef struct {
    const lt_attention_args *args;
    int64_t d, group, n_queries, n_splits; /* n_queries: T * group of one key/value head. */
    float *parts;                          /* (B, G, splits, queries, 2 + room): m, l, output */
    int64_t part;
} decode;

/* Logits of keys [s, s + count), count <= SPLIT, into x, without masks. */
LT_INLINE void chunk_logits(const decode *c, float *x, const float *query, int64_t b, int64_t g,
                            int64_t s, int64_t count, const lt_dtype dtype) {
    const lt_tensor *k = &c->args->k;
    for (int64_t i = 0; i < count; i += VEC) {
        vf sum[VEC];
#pragma GCC unroll 16
        for (int j = 0; j < VEC; j++) {
            const void *row = head_row(k, b, s + (i + j < count ? i + j : count - 1), g);
            vf acc = {0};
            for (int64_t e = 0; e < c->d; e += VEC) {
                acc += v_load(query + e) * v_get(row, dtype, e, c->d - e);
            }
            sum[j] = acc;
        }
        v_transpose(sum);
        vf total = sum[0];
#pragma GCC unroll 16
        for (int j = 1; j < VEC; j++) {
            total += sum[j];
        }
        v_store(x + i, total);
    }
}

/* Apply cap, bias and mask, and take exponentials in place. Returns the maximum; *sum is their
 * sum. */
LT_INLINE float chunk_softmax(const decode *c, float *x, int64_t b, int64_t t, int64_t h, int64_t s,
                              int64_t count, float *sum) {
    const lt_attention_args *a = c->args;
    const span seen = visible(a, b, t);
    const float alibi = a->alibi.data != NULL
                            ? ((const float *)a->alibi.data)[h * a->alibi.stride[0]]
                            : 0.0f;
    vf high = v_set(-INFINITY);
    vf total = {0};
    for (int64_t i = 0; i < count; i += VEC) {
        const vi key = vi_set((int32_t)(s + i)) + vi_iota();
        vf l = v_load(x + i);
        if (a->softcap > 0.0f) {
            l = a->softcap * v_tanh(l * (1.0f / a->softcap));
        }
        l += alibi * __builtin_convertvector(key - (int32_t)seen.pos, vf);
        const int64_t end = seen.to < s + count ? seen.to : s + count;
        l = v_pick((key >= vi_set((int32_t)seen.from)) & (key < vi_set((int32_t)end)), l,
                   v_set(-INFINITY));
        v_store(x + i, l);
        high = v_max(l, high);
    }
    const float max = v_max_of(high);
    const float shift = max == -INFINITY ? 0.0f : max;
    for (int64_t i = 0; i < count; i += VEC) {
        const vf e = v_exp(v_load(x + i) - shift);
        v_store(x + i, e);
        total += e;
    }
    *sum = v_sum(total);
    return max;
}

LT_INLINE void chunk_output(const decode *c, float *out, const float *x, int64_t b, int64_t g,
                            int64_t s, int64_t count, const lt_dtype dtype) {
    const lt_tensor *v = &c->args->v;
    for (int64_t e = 0; e < c->d; e += 4 * VEC) {
        vf acc[4] = {{0}, {0}, {0}, {0}};
        for (int64_t i = 0; i < count; i++) {
            const void *row = head_row(v, b, s + i, g);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                if (e + j * VEC < c->d) {
                    acc[j] += x[i] * v_get(row, dtype, e + j * VEC, c->d - e - j * VEC);
                }
            }
        }
        for (int j = 0; j < 4 && e + j * VEC < c->d; j++) {
            v_store(out + e + j * VEC, acc[j]);
        }
    }
}

LT_INLINE void run_chunk(const decode *c, int64_t b, int64_t g, int64_t split, float *parts,
                         const lt_dtype dtype, const lt_dtype kv) {
    const lt_attention_args *a = c->args;
    const int64_t s = split * SPLIT;
    const int64_t left = keys_of(a, b) - s;
    const int64_t count = left < SPLIT ? left : SPLIT;
    for (int64_t i = 0; i < c->n_queries; i++) {
        const int64_t t = i / c->group;
        const int64_t h = g * c->group + i % c->group;
        float *part = parts + i * c->part;
        float query[MAX_DIM + VEC];
        float x[SPLIT + VEC];
        if (count <= 0) {
            part[0] = -INFINITY;
            part[1] = 0.0f;
            memset(part + 2, 0, (size_t)(c->part - 2) * sizeof *part);
            continue;
        }
        for (int64_t e = 0; e < c->d; e += VEC) {
            v_store(query + e, a->scale * v_get(head_row(&a->q, b, t, h), dtype, e, c->d - e));
        }
        chunk_logits(c, x, query, b, g, s, count, kv);
        part[0] = chunk_softmax(c, x, b, t, h, s, count, &part[1]);
        chunk_output(c, part + 2, x, b, g, s, count, kv);
    }
}

/* Join the chunks of query i of (b, g). */
LT_INLINE void join_query(const decode *c, int64_t b, int64_t g, int64_t i, const lt_dtype dtype) {
    const lt_attention_args *a = c->args;
    const int64_t t = i / c->group;
    const int64_t h = g * c->group + i % c->group;
    const float *parts = c->parts +
                         ((b * a->k.shape[2] + g) * c->n_splits * c->n_queries + i) * c->part;
    const int64_t next = c->n_queries * c->part;
    const float sink = a->sinks.data != NULL
                           ? ((const float *)a->sinks.data)[h * a->sinks.stride[0]]
                           : -INFINITY;
    float max = sink;
    for (int64_t s = 0; s < c->n_splits; s++) {
        max = parts[s * next] > max ? parts[s * next] : max;
    }
    const float shift = max == -INFINITY ? 0.0f : max;
    float sum = expf(sink - shift);
    float out[MAX_DIM + VEC] = {0};
    for (int64_t s = 0; s < c->n_splits; s++) {
        const float factor = expf(parts[s * next] - shift);
        sum += factor * parts[s * next + 1];
        for (int64_t e = 0; e < c->d; e += VEC) {
            v_store(out + e, v_load(out + e) + factor * v_load(parts + s * next + 2 + e));
        }
    }
    for (int64_t e = 0; e < c->d; e += VEC) {
        const vf y = v_load(out + e) * (sum > 0.0f ? 1.0f / sum : 0.0f);
        v_put(
            at_element(&a->out, b * a->out.stride[0] + t * a->out.stride[1] + h * a->out.stride[2]),
            dtype, e, y, c->d - e);
    }
    if (a->lse.data != NULL) {
        ((float *)a->lse.data)[b * a->lse.stride[0] + h * a->lse.stride[1] + t] =
            sum > 0.0f ? max + logf(sum) : -INFINITY;
    }
}

LT_INLINE void run_all(const decode *c, const lt_dtype dtype, const lt_dtype kv) {
    const int64_t n_kv = c->args->k.shape[2];
    const int64_t n_tasks = c->args->q.shape[0] * n_kv * c->n_splits;
    const bool parallel = n_tasks * SPLIT * c->d > PARALLEL_MIN;
#pragma omp parallel if (parallel)
    {
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < n_tasks; i++) {
            run_chunk(c, i / c->n_splits / n_kv, i / c->n_splits % n_kv, i % c->n_splits,
                      c->parts + i * c->n_queries * c->part, dtype, kv);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < c->args->q.shape[0] * n_kv * c->n_queries; i++) {
            join_query(c, i / c->n_queries / n_kv, i / c->n_queries % n_kv, i % c->n_queries,
                       dtype);
        }
    }
}

lt_err LT_ISA_NAME(lt_cpu_attention_decode)(lt_queue *q, const void *args) {
    const lt_attention_args *a = args;
    const int64_t group = a->q.shape[2] / a->k.shape[2];
    int64_t most = 0;
    (void)q;
    for (int64_t b = 0; b < a->q.shape[0]; b++) {
        most = keys_of(a, b) > most ? keys_of(a, b) : most;
    }
    decode c = {.args = a,
                .d = a->q.shape[3],
                .group = group,
                .n_queries = a->q.shape[1] * group,
                .n_splits = (most + SPLIT - 1) / SPLIT};
    LT_ASSERT(c.d <= MAX_DIM);
    c.part = 2 + (c.d + 4 * VEC - 1) / VEC * VEC;
    const int64_t n_parts = a->q.shape[0] * a->k.shape[2] * c.n_splits * c.n_queries;
    LT_TRY(lt_cpu_scratch(&c.parts, LT_CPU_SLOT_TILES,
                          (size_t)(n_parts * c.part + VEC) * sizeof(float)));
    if (a->k.dtype == LT_F16) {
        run_all(&c, LT_F32, LT_F16);
    } else if (a->q.dtype == LT_F32) {
        run_all(&c, LT_F32, LT_F32);
    } else {
        run_all(&c, LT_BF16, LT_BF16);
    }
    return LT_OK;
}
