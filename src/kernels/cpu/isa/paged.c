/* paged.c: attention of ragged queries over a key/value cache in pages, and writing to that cache,
 * as in each step of serving.
 *
 * BOUND     Decoding: memory, K and V once. Prefill: arithmetic, 4 D flops a (query, key) pair.
 * MAP       The T * H / G queries that share a key head are cut into blocks of at most BLOCK. A
 *           task is a block against all the keys it sees, or, where there are too few tasks for the
 *           threads (one long sequence decoding), against one chunk of SPLIT keys.
 * MOVEMENT  K rows of a chunk ──▶ registers, LANES = 4 queries x VEC / 4 keys of partial sums
 *     ─transpose─▶ logits x (BLOCK, SPLIT) in L1 ─softmax─▶
 *           weights ──▶ V rows of the chunk, 4 queries x 4 vectors of sums
 *               ──▶ (max, sum, out) of the chunk ─join─▶ of all chunks so far.
 *           A group of VEC keys lies in one page, so the table is read once a group.
 * DECODED   Pages of 8 or 4 bits, or of two types, are decoded to F32 a chunk of K and then of V at
 *           a time, in L1 or L2, once for all queries of a task. So attention has the bits that it
 *           has over F32 pages with the decoded values.
 * ORDER     Chunks start at multiples of SPLIT. A query's logits are sums over D in vectors, then
 *           over lanes in one tree; its weights are added by lanes; its outputs are chains over the
 *           chunk's keys; chunks join in order, by the same function whether one thread ran them
 *           all or not. Masked keys weigh exactly 0. So a row has the same bits alone, in a batch,
 *           or as part of a prompt.
 * REFS      PagedAttention, Kwon et al. 2023 (arXiv:2309.06180); Flash-Decoding, Dao et al. 2023 */
#include <math.h>
#include <omp.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/cached.h"
#include "kernels/cpu/isa/rows.h"
#include "kernels/cpu/scratch.h"

#define SPLIT   128 /* Keys per chunk: 32 KB of K at D = 64. */
#define BLOCK   16  /* Queries per task. */
#define LANES   4
#define MAX_DIM 512

/* Queries [first, first + count) of key head g of sequence n, against chunks [from, to). Query i is
 * head i % group of row i / group. */
typedef struct {
    int32_t n, g, first, count, from, to;
} task;

/* The state of the softmax of a query. */
typedef struct {
    float max, sum;
    float out[MAX_DIM + 4 * VEC];
} state;

typedef struct {
    const lt_attention_paged_args *a;
    int64_t d, group, page, width; /* width: floats in a row of all key heads. */
    task *tasks;
    int64_t n_tasks;
    bool decoded; /* Chunks are decoded before they are read. */
    bool split;   /* A task is one chunk, and its states go to parts. */
    float *parts; /* (n_tasks, BLOCK, part) */
    int64_t part;
} paged;

LT_INLINE int64_t i32_at(const lt_tensor *t, int64_t i) {
    return ((const int32_t *)t->data)[i * t->stride[0]];
}

/* Row and position of query i of a task's (sequence, key head), and the first key it sees. */
typedef struct {
    int64_t row, head, pos, from;
} query;

LT_INLINE query query_of(const paged *p, const task *t, int64_t i) {
    const lt_attention_paged_args *a = p->a;
    const int64_t at = t->first + i, first = i32_at(&a->q_start, t->n),
                  n_rows = i32_at(&a->q_start, t->n + 1) - first;
    query w = {.row = first + at / p->group, .head = t->g * p->group + at % p->group};
    w.pos = i32_at(&a->kv_len, t->n) - n_rows + at / p->group;
    w.from = a->window > 0 && w.pos - a->window + 1 > 0 ? w.pos - a->window + 1 : 0;
    return w;
}

/* Element offset of key s of sequence n, head g, in either pool. */
LT_INLINE int64_t key_at(const paged *p, int64_t n, int64_t g, int64_t s) {
    const lt_tensor *t = &p->a->table;
    const int64_t page = ((const int32_t *)t->data)[n * t->stride[0] + s / p->page * t->stride[1]];
    return (page * p->page + s % p->page) * p->width + g * p->d;
}

/* Fold pairs of n vectors: segments of `length` lanes are halved; x[k] gets those of x[2k], then
 * those of x[2k + 1]. */
LT_INLINE void fold(vf *x, const int n, const int length) {
    const int half = length / 2, of_each = VEC / length;
    vi low, high;
    for (int i = 0; i < VEC; i++) {
        low[i] = i / half / of_each * VEC + i / half % of_each * length + i % half;
        high[i] = low[i] + half;
    }
#pragma GCC unroll 8
    for (int k = 0; k < n / 2; k++) {
        x[k] = __builtin_shuffle(x[2 * k], x[2 * k + 1], low) +
               __builtin_shuffle(x[2 * k], x[2 * k + 1], high);
    }
}

/* Sums over the lanes of VEC vectors, as one vector, in VEC - 1 folds; each sum has the same
 * tree. */
LT_INLINE vf sum_lanes(vf *x) {
    fold(x, VEC, VEC);
    fold(x, VEC / 2, VEC / 2);
#if VEC > 4
    fold(x, VEC / 4, VEC / 4);
#endif
#if VEC > 8
    fold(x, VEC / 8, VEC / 8);
#endif
    return x[0];
}

LT_INLINE vf load_any(const void *base, const lt_dtype dtype, int64_t at, int64_t left) {
    return left >= VEC ? v_load_as(base, dtype, at) : v_load_as_n(base, dtype, at, left);
}

/* A chunk of a task: keys [s, s + count). Each VEC of them lie `width` elements apart, starting at
 * at[], in the pages or, if decoded, in a buffer. */
typedef struct {
    int64_t s, count, width;
    const void *keys, *values;
    int64_t at[SPLIT / VEC];
} chunk;

/* x[i][j] = <q_i, k_j> for nq queries and the VEC keys that start at `at`; keys after number `last`
 * repeat it. q: nq scaled rows of q_row floats, with zeros after D. */
LT_INLINE void dots(const paged *p, float *x, const float *q, int64_t q_row, const int nq,
                    const chunk *c, int64_t at, int64_t last, const bool whole,
                    const lt_dtype dtype) {
    const void *base = c->keys;
    const int n_keys = VEC / nq;
    for (int j = 0; j < VEC; j += n_keys) {
        vf sum[VEC];
        int64_t row[VEC];
#pragma GCC unroll 16
        for (int k = 0; k < n_keys; k++) {
            row[k] = at + (j + k <= last ? j + k : last) * c->width;
        }
#pragma GCC unroll 16
        for (int i = 0; i < VEC; i++) {
            sum[i] = (vf){0};
        }
        for (int64_t e = 0; e < p->d; e += VEC) {
            vf key[VEC];
#pragma GCC unroll 16
            for (int k = 0; k < n_keys; k++) {
                key[k] = load_any(base, dtype, row[k] + e, whole ? VEC : p->d - e);
            }
#pragma GCC unroll 4
            for (int i = 0; i < nq; i++) {
                const vf w = v_load(q + i * q_row + e);
#pragma GCC unroll 16
                for (int k = 0; k < n_keys; k++) {
                    sum[i * n_keys + k] += w * key[k];
                }
            }
        }
        const vf total = sum_lanes(sum);
#pragma GCC unroll 4
        for (int i = 0; i < nq; i++) {
            memcpy(x + i * SPLIT + j, (const float *)&total + i * n_keys,
                   (size_t)n_keys * sizeof(float));
        }
    }
}

LT_INLINE void open_chunk(const paged *p, const task *t, int64_t c, int64_t end, chunk *out) {
    out->s = c * SPLIT;
    out->count = end - out->s < SPLIT ? end - out->s : (int64_t)SPLIT;
    out->width = p->width;
    out->keys = p->a->k_pages.data;
    out->values = p->a->v_pages.data;
    for (int64_t j = 0; j * VEC < out->count; j++) {
        out->at[j] = key_at(p, t->n, t->g, out->s + j * VEC);
    }
}

/* Decode the keys or the values of a chunk of pages: row i of the buffer is its key i. */
static void decode_rows(const paged *p, float *rows, const lt_tensor *pages, const chunk *c) {
    for (int64_t i = 0; i < c->count; i++) {
        const int64_t at = c->at[i / VEC] + i % VEC * p->width;
        LT_ISA_NAME(lt_cpu_cached_decode)
        (rows + i * p->d, pages->dtype,
         (const char *)pages->data + lt_dtype_row_bytes(pages->dtype, at), p->d);
    }
}

/* The same chunk in a buffer of decoded rows. */
static void in_buffer(const paged *p, chunk *c, const float *rows) {
    c->keys = c->values = rows;
    c->width = p->d;
    for (int64_t j = 0; j * VEC < c->count; j++) {
        c->at[j] = j * VEC * p->d;
    }
}

/* Logits of the block's queries with the chunk's keys. */
LT_INLINE void chunk_logits(const paged *p, float *x, const float *q, int64_t q_row,
                            int64_t n_queries, const chunk *c, const bool whole,
                            const lt_dtype dtype) {
    for (int64_t j = 0; j * VEC < c->count; j++) {
        const int64_t last = c->count - 1 - j * VEC, at = c->at[j];
        float *to = x + j * VEC;
        int64_t i = 0;
        for (; i + 2 < n_queries; i += LANES) { /* Rows after the last one are padding. */
            dots(p, to + i * SPLIT, q + i * q_row, q_row, LANES, c, at, last, whole, dtype);
        }
        if (n_queries - i == 2) {
            dots(p, to + i * SPLIT, q + i * q_row, q_row, 2, c, at, last, whole, dtype);
        } else if (n_queries - i == 1) {
            dots(p, to + i * SPLIT, q + i * q_row, q_row, 1, c, at, last, whole, dtype);
        }
    }
}

/* Apply cap, bias and mask, and take exponentials in place. Returns the maximum; *sum is their
 * sum. */
static float chunk_softmax(const paged *p, float *x, const query *w, int64_t s, int64_t count,
                           float *sum) {
    const lt_attention_paged_args *a = p->a;
    const float alibi = a->alibi.data != NULL
                            ? ((const float *)a->alibi.data)[w->head * a->alibi.stride[0]]
                            : 0.0f;
    const int64_t end = w->pos + 1 < s + count ? w->pos + 1 : s + count;
    vf high = v_set(-INFINITY), total = {0};

    for (int64_t i = 0; i < count; i += VEC) {
        const vi key = vi_set((int32_t)(s + i)) + vi_iota();
        vf l = v_load(x + i);
        if (a->softcap > 0.0f) {
            l = a->softcap * v_tanh(l * (1.0f / a->softcap));
        }
        if (alibi != 0.0f) {
            l += alibi * __builtin_convertvector(key - (int32_t)w->pos, vf);
        }
        l = v_pick((key >= vi_set((int32_t)w->from)) & (key < vi_set((int32_t)end)), l,
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

/* out[i] (vectors of D) = sum over keys of x[i][key] v[key], nq queries. */
LT_INLINE void weigh(const paged *p, state *st, const float *x, const int nq, const chunk *c,
                     const bool whole, const lt_dtype dtype) {
    const void *base = c->values;
    for (int64_t e = 0; e < p->d; e += 4 * VEC) {
        vf acc[LANES][4];
#pragma GCC unroll 4
        for (int i = 0; i < nq; i++) {
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                acc[i][j] = (vf){0};
            }
        }
        for (int64_t k = 0; k < c->count; k += VEC) {
            const int64_t at = c->at[k / VEC] + e;
            const int64_t n = c->count - k < VEC ? c->count - k : VEC;
            for (int64_t m = 0; m < n; m++) {
                vf v[4];
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) {
                    const int64_t left = whole ? VEC : p->d - e - j * VEC;
                    v[j] = left > 0 ? load_any(base, dtype, at + m * c->width + j * VEC, left)
                                    : (vf){0};
                }
#pragma GCC unroll 4
                for (int i = 0; i < nq; i++) {
                    const float weight = x[i * SPLIT + k + m];
#pragma GCC unroll 4
                    for (int j = 0; j < 4; j++) {
                        acc[i][j] += weight * v[j];
                    }
                }
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < nq; i++) {
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                if (whole || e + j * VEC < p->d) {
                    v_store(st[i].out + e + j * VEC, acc[i][j]);
                }
            }
        }
    }
}

/* Merge `next` into the state of all earlier keys. next may be shorter than a state: only its first
 * 2 + D floats are read. */
static void join(state *all, const state *next, int64_t d) {
    if (next->max == -INFINITY) {
        return;
    }
    const float max = all->max > next->max ? all->max : next->max;
    const float old = expf(all->max - max), new = expf(next->max - max);
    all->sum = all->sum * old + next->sum * new;
    all->max = max;
    for (int64_t e = 0; e < d; e += VEC) {
        v_store(all->out + e, v_load(all->out + e) * old + v_load(next->out + e) * new);
    }
}

static void finish(const paged *p, state *st, const query *w, const lt_dtype dtype) {
    const lt_attention_paged_args *a = p->a;
    float scale = 1.0f, sum = st->sum;
    if (a->sinks.data != NULL) {
        const float sink = ((const float *)a->sinks.data)[w->head * a->sinks.stride[0]];
        const float max = st->max > sink ? st->max : sink;
        scale = expf(st->max - max);
        sum = sum * scale + expf(sink - max);
    }
    scale /= sum;
    for (int64_t e = 0; e < p->d; e += VEC) {
        v_put(at_element(&a->out, w->row * a->out.stride[0] + w->head * a->out.stride[1]), dtype, e,
              v_load(st->out + e) * scale, p->d - e);
    }
}

/* The block's queries, scaled, as rows of q_row floats with zeros after D; rows up to a multiple of
 * LANES are zeroed. */
LT_INLINE void load_queries(const paged *p, float *q, int64_t q_row, const task *t,
                            const lt_dtype dtype) {
    const lt_attention_paged_args *a = p->a;
    for (int64_t i = 0; i < (t->count + LANES - 1) / LANES * LANES; i++) {
        const query w = query_of(p, t, i < t->count ? i : 0);
        const void *row = at_element(&a->q, w.row * a->q.stride[0] + w.head * a->q.stride[1]);
        for (int64_t e = 0; e < p->d; e += VEC) {
            v_store(q + i * q_row + e,
                    i < t->count ? a->scale * v_get(row, dtype, e, p->d - e) : (vf){0});
        }
    }
}

LT_INLINE void run_chunks(const paged *p, const task *t, state *st, const float *q, int64_t q_row,
                          const bool whole, const lt_dtype cache) {
    float x[BLOCK * SPLIT] __attribute__((aligned(64)));
    float rows[SPLIT * MAX_DIM] __attribute__((aligned(64)));
    state part[LANES];
    const query top = query_of(p, t, t->count - 1);
    for (int64_t at = t->from; at < t->to; at++) {
        chunk c, in_pages;
        open_chunk(p, t, at, top.pos + 1, &in_pages);
        c = in_pages;
        if (p->decoded) {
            decode_rows(p, rows, &p->a->k_pages, &in_pages);
            in_buffer(p, &c, rows);
        }
        chunk_logits(p, x, q, q_row, t->count, &c, whole, cache);
        if (p->decoded) {
            decode_rows(p, rows, &p->a->v_pages, &in_pages);
        }
        for (int64_t i = 0; i < t->count; i += LANES) {
            const int64_t n = t->count - i < LANES ? t->count - i : LANES;
            for (int64_t j = 0; j < n; j++) {
                const query w = query_of(p, t, i + j);
                part[j].max = chunk_softmax(p, x + (i + j) * SPLIT, &w, c.s, c.count, &part[j].sum);
            }
            /* With three queries the fourth lane computes on stale numbers, whose results are not
             * used. */
            if (n > 2) {
                weigh(p, part, x + i * SPLIT, LANES, &c, whole, cache);
            } else if (n == 2) {
                weigh(p, part, x + i * SPLIT, 2, &c, whole, cache);
            } else {
                weigh(p, part, x + i * SPLIT, 1, &c, whole, cache);
            }
            for (int64_t j = 0; j < n; j++) {
                join(&st[i + j], &part[j], p->d);
            }
        }
    }
}

static void start(const paged *p, state *st, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        st[i].max = -INFINITY;
        st[i].sum = 0.0f;
        memset(st[i].out, 0, (size_t)(p->d + VEC) * sizeof(float));
    }
}

/* whole: D is a multiple of four vectors, which is usual, so no load is partial. */
LT_INLINE void run_typed(const paged *p, const task *t, state *st, const float *q, int64_t q_row,
                         const bool whole) {
    if (p->decoded) {
        run_chunks(p, t, st, q, q_row, whole, LT_F32);
    } else if (p->a->k_pages.dtype == LT_F16) {
        run_chunks(p, t, st, q, q_row, whole, LT_F16);
    } else {
        BY_DTYPE(p->a->k_pages.dtype, run_chunks, p, t, st, q, q_row, whole);
    }
}

static void run_task(const paged *p, int64_t at, const lt_dtype dtype) {
    const task *t = &p->tasks[at];
    const int64_t q_row = (p->d + VEC - 1) / VEC * VEC;
    float q[BLOCK * MAX_DIM] __attribute__((aligned(64)));
    state st[BLOCK];

    LT_ASSERT(q_row <= MAX_DIM);
    load_queries(p, q, q_row, t, dtype);
    start(p, st, t->count);
    if (p->d % (4 * VEC) == 0) {
        run_typed(p, t, st, q, q_row, true);
    } else {
        run_typed(p, t, st, q, q_row, false);
    }
    for (int64_t i = 0; i < t->count; i++) {
        if (p->split) {
            memcpy(p->parts + (at * BLOCK + i) * p->part, &st[i],
                   (size_t)(2 + q_row) * sizeof(float));
        } else {
            const query w = query_of(p, t, i);
            finish(p, &st[i], &w, dtype);
        }
    }
}

/* Join the chunks of a block; task `at` is the first of them. */
static void join_block(const paged *p, int64_t at, const lt_dtype dtype) {
    const task *t = &p->tasks[at];
    for (int64_t i = 0; i < t->count; i++) {
        const query w = query_of(p, t, i);
        state st;
        start(p, &st, 1);
        for (int64_t k = at; k < p->n_tasks && p->tasks[k].n == t->n && p->tasks[k].g == t->g &&
                             p->tasks[k].first == t->first;
             k++) {
            join(&st, (const state *)(p->parts + (k * BLOCK + i) * p->part), p->d);
        }
        finish(p, &st, &w, dtype);
    }
}

/* All tasks of the call, in the order of sequence, head, block, chunk. list NULL: only count
 * them. */
static int64_t list_tasks(const paged *p, bool split, task *list) {
    const lt_attention_paged_args *a = p->a;
    int64_t count = 0;
    for (int64_t n = 0; n < a->kv_len.shape[0]; n++) {
        const int64_t rows = i32_at(&a->q_start, n + 1) - i32_at(&a->q_start, n);
        LT_ASSERT(rows <= i32_at(&a->kv_len, n));
        for (int64_t g = 0; g < a->k_pages.shape[2]; g++) {
            for (int64_t i = 0; i < rows * p->group; i += BLOCK) {
                task t = {.n = (int32_t)n, .g = (int32_t)g, .first = (int32_t)i};
                t.count = (int32_t)(rows * p->group - i < BLOCK ? rows * p->group - i : BLOCK);
                t.from = (int32_t)(query_of(p, &t, 0).from / SPLIT);
                t.to = (int32_t)(query_of(p, &t, t.count - 1).pos / SPLIT + 1);
                for (int32_t c = t.from, end = t.to; c < end; c += split ? 1 : end) {
                    if (list != NULL) {
                        t.from = c;
                        t.to = split ? c + 1 : end;
                        list[count] = t;
                    }
                    count++;
                }
            }
        }
    }
    return count;
}

static void run_all(const paged *p, const lt_dtype dtype) {
    const bool parallel = p->n_tasks > 1 && p->a->q.shape[0] * p->a->kv_max * p->d > PARALLEL_MIN;
#pragma omp parallel if (parallel)
    {
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < p->n_tasks; i++) {
            run_task(p, i, dtype);
        }
        if (p->split) {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < p->n_tasks; i++) {
                const task *t = &p->tasks[i], *b = t - 1;
                if (i == 0 || b->n != t->n || b->g != t->g || b->first != t->first) {
                    join_block(p, i, dtype);
                }
            }
        }
    }
}

lt_err LT_ISA_NAME(lt_cpu_attention_paged)(lt_queue *q, const void *args) {
    const lt_attention_paged_args *a = args;
    paged p = {.a = a,
               .d = a->q.shape[2],
               .group = a->q.shape[1] / a->k_pages.shape[2],
               .page = a->k_pages.shape[1],
               .width = a->k_pages.shape[2] * a->k_pages.shape[3],
               .decoded = a->k_pages.dtype != a->v_pages.dtype || a->k_pages.dtype == LT_F8_E4M3 ||
                          lt_dtype_is_block(a->k_pages.dtype),
               .part = 2 + (a->q.shape[2] + VEC - 1) / VEC * VEC};
    (void)q;
    LT_ASSERT(p.page % VEC == 0);
    p.n_tasks = list_tasks(&p, false, NULL);
    if (p.n_tasks < 2 * omp_get_max_threads()) {
        p.split = true;
        p.n_tasks = list_tasks(&p, true, NULL);
        LT_TRY(lt_cpu_scratch(&p.parts, LT_CPU_SLOT_PARTIAL,
                              (size_t)(p.n_tasks * BLOCK * p.part + VEC) * sizeof(float)));
    }
    LT_TRY(lt_cpu_scratch(&p.tasks, LT_CPU_SLOT_TILES, (size_t)p.n_tasks * sizeof(task)));
    list_tasks(&p, p.split, p.tasks);
    run_all(&p, a->q.dtype == LT_F32 ? LT_F32 : LT_BF16);
    return LT_OK;
}

LT_INLINE void write_rows(const lt_tensor *pages, const lt_tensor *x, int64_t r, int64_t slot,
                          const lt_dtype dtype, const lt_dtype to) {
    const int64_t d = x->shape[2];
    for (int64_t g = 0; g < x->shape[1]; g++) {
        const int64_t from = r * x->stride[0] + g * x->stride[1];
        const int64_t at = (slot * x->shape[1] + g) * d;
        for (int64_t e = 0; e < d; e += VEC) {
            const vf y = d - e >= VEC ? v_load_as(x->data, dtype, from + e)
                                      : v_load_as_n(x->data, dtype, from + e, d - e);
            if (d - e >= VEC) {
                v_store_as(pages->data, to, at + e, y);
            } else {
                v_store_as_n(pages->data, to, at + e, y, d - e);
            }
        }
    }
}

/* The same to 8 or 4 bits. */
static void encode_rows(const lt_tensor *pages, const lt_tensor *x, int64_t r, int64_t slot) {
    const int64_t d = x->shape[2];
    float row[MAX_DIM + VEC];
    for (int64_t g = 0; g < x->shape[1]; g++) {
        const int64_t from = r * x->stride[0] + g * x->stride[1];
        for (int64_t e = 0; e < d; e += VEC) {
            v_store(row + e, get_any(x->data, x->dtype, from + e, d - e));
        }
        LT_ISA_NAME(lt_cpu_cached_encode)
        ((char *)pages->data + lt_dtype_row_bytes(pages->dtype, (slot * x->shape[1] + g) * d),
         pages->dtype, row, d);
    }
}

LT_INLINE void write_row(const lt_tensor *pages, const lt_tensor *x, int64_t r, int64_t slot,
                         const lt_dtype dtype) {
    if (pages->dtype == LT_F8_E4M3 || lt_dtype_is_block(pages->dtype)) {
        encode_rows(pages, x, r, slot);
    } else if (pages->dtype == LT_F16) {
        write_rows(pages, x, r, slot, dtype, LT_F16);
    } else if (pages->dtype == LT_BF16) {
        write_rows(pages, x, r, slot, dtype, LT_BF16);
    } else {
        write_rows(pages, x, r, slot, dtype, LT_F32);
    }
}

lt_err LT_ISA_NAME(lt_cpu_kv_write)(lt_queue *q, const void *args) {
    const lt_kv_write_args *a = args;
    const int64_t rows = a->k.shape[0];
    (void)q;
#pragma omp parallel for schedule(static) if (lt_tensor_count(&a->k) > PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        const int64_t slot = i32_at(&a->slots, r);
        LT_ASSERT(slot < a->k_pages.shape[0] * a->k_pages.shape[1]);
        if (slot >= 0) {
            BY_DTYPE(a->k.dtype, write_row, &a->k_pages, &a->k, r, slot);
            BY_DTYPE(a->v.dtype, write_row, &a->v_pages, &a->v, r, slot);
        }
    }
    return LT_OK;
}
