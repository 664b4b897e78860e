/* paged.c (ref): a key/value cache in pages, row by row.
 *
 * kv_write: k_pages[slot / P][slot % P] = k[r], likewise v. Pages of Q8_0 or Q4_0 hold the
 * row of each head as blocks (tensor/cached.h).
 * attention_paged: for row r of sequence n at position p = kv_len[n] - (q_start[n + 1] - r), over
 * keys s in (p - window, p], with k_s at page table[n][s / P], row s % P:
 *     x_s = softcap'(scale <q_r, k_s>) + alibi (s - p);  out_r = sum_s softmax(x, sink)_s v_s */
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"
#include "tensor/cached.h"

enum { MAX_HEAD_DIM = 1024 };

/* Write D values at `at`, which is a multiple of the block size. */
static void write_values(const lt_tensor *pages, int64_t at, const double *x) {
    const int64_t D = pages->shape[3];
    float values[MAX_HEAD_DIM];
    for (int64_t d = 0; d < D; d++) {
        values[d] = (float)x[d];
        if (!lt_dtype_is_block(pages->dtype)) {
            set(pages, at + d, x[d]);
        }
    }
    if (lt_dtype_is_block(pages->dtype)) {
        lt_cached_encode((char *)pages->data + lt_dtype_row_bytes(pages->dtype, at), pages->dtype,
                         values, (size_t)D);
    }
}

static void read_values(double *x, const lt_tensor *pages, int64_t at) {
    const int64_t D = pages->shape[3];
    float values[MAX_HEAD_DIM];
    if (lt_dtype_is_block(pages->dtype)) {
        lt_cached_decode(values, pages->dtype,
                         (const char *)pages->data + lt_dtype_row_bytes(pages->dtype, at),
                         (size_t)D);
    }
    for (int64_t d = 0; d < D; d++) {
        x[d] = lt_dtype_is_block(pages->dtype) ? (double)values[d] : get(pages, at + d);
    }
}

static void write_row(const lt_tensor *pages, const lt_tensor *x, int64_t r, int64_t slot) {
    const int64_t size = pages->shape[1];
    double row[MAX_HEAD_DIM];
    for (int64_t g = 0; g < x->shape[1]; g++) {
        for (int64_t d = 0; d < x->shape[2]; d++) {
            row[d] = get(x, at3(x, r, g, d));
        }
        write_values(pages, at4(pages, slot / size, slot % size, g, 0), row);
    }
}

lt_err lt_ref_kv_write(lt_queue *q, const lt_kv_write_args *a) {
    (void)q;
    LT_ASSERT(a->k_pages.n_dims == 4 && a->k.n_dims == 3 && a->slots.shape[0] == a->k.shape[0]);
    LT_ASSERT(a->k.shape[2] <= MAX_HEAD_DIM && a->v.shape[2] <= MAX_HEAD_DIM);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->k.shape[0]; r++) {
        const int64_t slot = get_i32(&a->slots, at1(&a->slots, r));
        LT_ASSERT(slot < a->k_pages.shape[0] * a->k_pages.shape[1]);
        if (slot >= 0) {
            write_row(&a->k_pages, &a->k, r, slot);
            write_row(&a->v_pages, &a->v, r, slot);
        }
    }
    return LT_OK;
}

/* One query: row r of the batch, head h, sequence n, position pos. */
typedef struct {
    const lt_attention_paged_args *a;
    int64_t r, h, n, pos;
} query;

static int64_t key_at(const query *w, const lt_tensor *pages, int64_t s) {
    const int64_t size = pages->shape[1];
    const int64_t g = w->h / (w->a->q.shape[1] / pages->shape[2]);
    return at4(pages, get_i32(&w->a->table, at2(&w->a->table, w->n, s / size)), s % size, g, 0);
}

static double logit(const query *w, int64_t s) {
    const lt_attention_paged_args *a = w->a;
    double x = 0.0, key[MAX_HEAD_DIM];
    read_values(key, &a->k_pages, key_at(w, &a->k_pages, s));
    for (int64_t d = 0; d < a->q.shape[2]; d++) {
        x += get(&a->q, at3(&a->q, w->r, w->h, d)) * key[d];
    }
    x *= (double)a->scale;
    if (a->softcap > 0.0f) {
        x = (double)a->softcap * tanh(x / (double)a->softcap);
    }
    if (present(&a->alibi)) {
        x += get(&a->alibi, at1(&a->alibi, w->h)) * (double)(s - w->pos);
    }
    return x;
}

static void run_query(const query *w) {
    const lt_attention_paged_args *a = w->a;
    const int64_t from = a->window > 0 ? max_i64(0, w->pos - a->window + 1) : 0;
    const double sink = present(&a->sinks) ? get(&a->sinks, at1(&a->sinks, w->h)) : -INFINITY;
    double out[MAX_HEAD_DIM] = {0}, value[MAX_HEAD_DIM], max = sink, sum;

    for (int64_t s = from; s <= w->pos; s++) {
        max = fmax(max, logit(w, s));
    }
    sum = exp(sink - max);
    for (int64_t s = from; s <= w->pos; s++) {
        const double e = exp(logit(w, s) - max);
        read_values(value, &a->v_pages, key_at(w, &a->v_pages, s));
        sum += e;
        for (int64_t d = 0; d < a->q.shape[2]; d++) {
            out[d] += e * value[d];
        }
    }
    for (int64_t d = 0; d < a->q.shape[2]; d++) {
        set(&a->out, at3(&a->out, w->r, w->h, d), out[d] / sum);
    }
}

lt_err lt_ref_attention_paged(lt_queue *q, const lt_attention_paged_args *a) {
    (void)q;
    LT_ASSERT(a->q.n_dims == 3 && a->q.shape[2] <= MAX_HEAD_DIM);
    LT_ASSERT(a->q.shape[1] % a->k_pages.shape[2] == 0);
    for (int64_t n = 0; n < a->kv_len.shape[0]; n++) {
        const int64_t first = get_i32(&a->q_start, at1(&a->q_start, n)),
                      end = get_i32(&a->q_start, at1(&a->q_start, n + 1)),
                      n_keys = get_i32(&a->kv_len, at1(&a->kv_len, n));
        LT_ASSERT(end - first <= n_keys && end <= a->q.shape[0]);
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t r = first; r < end; r++) {
            for (int64_t h = 0; h < a->q.shape[1]; h++) {
                run_query(&(query){a, r, h, n, n_keys - (end - r)});
            }
        }
    }
    return LT_OK;
}
