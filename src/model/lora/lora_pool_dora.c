/* lora_pool_dora.c: see lora_pool.h: derives the factors c = m / ||W + s B A|| of adapters with
 * magnitudes.
 *
 *     rows of W, decoded if necessary ─┐
 *     B A, F32, times s ──────────────────────────────────┴─▶ mean of squares of a row ──▶ c
 *
 * It computes some rows at a time, on the model's device, on a separate queue beside the
 * engine's. A row of W is decoded like one of an embedding (decoded.c), even from the packed
 * layout. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "lateen/tensor.h"
#include "model/pass/acts.h"
#include "model/alloc.h"
#include "model/lora/lora_pool_impl.h"

#define ROWS_ELEMENTS ((int64_t)1 << 20) /* Size of `rows`: 4 MiB. */
#define LEAST_MEAN    1e-30              /* A row of zeros stays zero, whatever its magnitude. */

static const lt_param_kind kinds[][2] = {{LT_PARAM_QKV, LT_PARAM_QKV_BIAS},
                                         {LT_PARAM_ATTN_OUT, LT_PARAM_ATTN_OUT_BIAS},
                                         {LT_PARAM_UP, LT_PARAM_UP_BIAS},
                                         {LT_PARAM_DOWN, LT_PARAM_DOWN_BIAS}};
#define N_KINDS ((int)(sizeof kinds / sizeof *kinds))

static lt_param_kind bias_kind(lt_param_kind kind) {
    for (int i = 0; i < N_KINDS; i++) {
        if (kinds[i][0] == kind) {
            return kinds[i][1];
        }
    }
    return LT_PARAM_KIND_COUNT;
}

/* The bias of a matrix; data NULL: it has none. */
static lt_tensor bias_of(const lt_lora_pool *p, lt_param_kind kind, int layer) {
    return lt_param_view(&p->model->table, bias_kind(kind), layer, &p->model->weights);
}

static size_t n_numbers(const lt_lora_pool *p) {
    return (size_t)p->plan.sizes.n_magnitudes * (p->dora->has_offsets ? 2 : 1);
}

size_t lt_lora_pool_dora_bytes(const lt_lora_pool *p) {
    return p->dora != NULL ? n_numbers(p) * sizeof(float) : 0;
}

static int n_sites(const lt_lora_pool *p) {
    return (int)p->model->spec.n_layers * LT_LORA_LAYER_KINDS;
}

/* The most rows of a module. */
static int64_t most_rows(const lt_lora_pool *p) {
    int64_t most = 1;
    for (int i = 0; i < n_sites(p); i++) {
        for (int k = 0; k < p->plan.sites[i].n_parts; k++) {
            const int64_t n = p->plan.sites[i].parts[k].n_rows;
            most = n > most ? n : most;
        }
    }
    return most;
}

static void carve(lt_lora_pool_dora *d, const lt_lora_pool *p, lt_arena *a) {
    const int64_t in = p->plan.sizes.in, all = most_rows(p),
                  most = in < ROWS_ELEMENTS ? ROWS_ELEMENTS / in : 1,
                  rows = most < all ? most : all;
    d->w = lt_tensor_take(a, p->model->options.dtype, rows, in, 0);
    d->rows = lt_tensor_take(a, LT_F32, rows, in, 0);
    d->a = lt_tensor_take(a, LT_F32, p->most, in, 0);
    d->b = lt_tensor_take(a, LT_F32, rows, p->most, 0);
    d->mean = lt_tensor_take(a, LT_F32, rows, 0, 0);
    d->ids = lt_tensor_take(a, LT_I32, rows, 0, 0);
}

lt_err lt_lora_pool_open_dora(lt_lora_pool *p) {
    const lt_model *m = p->model;
    lt_err err = LT_OK;
    float *ones = NULL;
    lt_arena a = {0};
    lt_lora_pool_dora *d = calloc(1, sizeof *d);
    if (d == NULL) {
        LT_FAIL(LT_ERR_OOM, "factors of adapters");
    }
    p->dora = d;
    pthread_mutex_init(&d->lock, NULL);
    for (int i = 0; i < n_sites(p); i++) {
        const lt_lora_site *s = &p->plan.sites[i];
        const lt_param *of = s->n_parts > 0 ? &p->plan.table.params[s->a] : NULL;
        d->has_offsets = d->has_offsets ||
                         (of != NULL && bias_of(p, of->kind, of->layer).data != NULL);
    }
    LT_TRY_DONE(lt_exec_open(&d->exec, m, NULL));
    carve(d, p, &a);
    LT_TRY_DONE(lt_arena_place(&a, m->device, "rows of weights"));
    carve(d, p, &a);
    d->scratch = a;
    LT_TRY_DONE(m->backend->alloc(m->device, (void **)&d->data,
                                  (size_t)p->n * lt_lora_pool_dora_bytes(p),
                                  "factors of adapters"));
    LT_TRY_DONE(lt_lora_pool_begin_factors(p, &ones));
    for (int32_t place = 0; place < p->n; place++) {
        LT_TRY_DONE(lt_lora_pool_fill_factors(p, place, ones));
    }
done:
    free(ones);
    return err;
}

void lt_lora_pool_close_dora(lt_lora_pool *p) {
    lt_lora_pool_dora *d = p->dora;
    if (d == NULL) {
        return;
    }
    if (d->data != NULL) {
        p->model->backend->release(p->model->device, d->data,
                                   (size_t)p->n * lt_lora_pool_dora_bytes(p));
    }
    lt_arena_release(&d->scratch, p->model->device);
    if (d->exec.backend != NULL) {
        lt_exec_close(&d->exec);
    }
    pthread_mutex_destroy(&d->lock);
    free(d);
    p->dora = NULL;
}

lt_err lt_lora_pool_begin_factors(const lt_lora_pool *p, float **out) {
    if (p->dora == NULL) {
        return LT_OK;
    }
    *out = calloc(n_numbers(p), sizeof **out);
    if (*out == NULL) {
        LT_FAIL(LT_ERR_OOM, "factors of an adapter");
    }
    for (int64_t i = 0; i < p->plan.sizes.n_magnitudes; i++) {
        (*out)[i] = 1.0f;
    }
    return LT_OK;
}

lt_err lt_lora_pool_fill_factors(lt_lora_pool *p, int32_t place, const float *factors) {
    return lt_model_upload(p->model, p->dora->data + (size_t)place * n_numbers(p), factors,
                           lt_lora_pool_dora_bytes(p));
}

/* ---- Deriving ---- */

/* Decode rows [first, first + n) of a range of a stored matrix to rows of d->w. */
static lt_err decode_range(lt_lora_pool_dora *d, lt_tensor to, const lt_weight_range *range,
                           int64_t first) {
    const int64_t n = to.shape[0];
    lt_err err;
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    if (ids == NULL) {
        LT_FAIL(LT_ERR_OOM, "%lld rows of weights", (long long)n);
    }
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int32_t)(first + i);
    }
    /* Wait for the previous reader of the ids. */
    LT_TRY_DONE(d->exec.backend->sync(d->exec.queue));
    LT_TRY_DONE(lt_model_upload(d->exec.model, d->ids.data, ids, (size_t)n * sizeof *ids));
    LT_TRY_DONE(
        lt_exec_embed_fwd(&d->exec, &(lt_embed_args){.y = to,
                                                     .table = range->w,
                                                     .table_packed = range->packed,
                                                     .table_scales = range->scales,
                                                     .ids = lt_tensor_1d(d->ids.data, LT_I32, n),
                                                     .scale = 1.0f}));
done:
    free(ids);
    return err;
}

/* Get rows [first, first + n) of a matrix of the model. */
static lt_err weight_rows(lt_lora_pool_dora *d, lt_tensor *out, const lt_param *a, int64_t first,
                          int64_t n) {
    const lt_model *m = d->exec.model;
    const lt_stored_weight *h = m->stored != NULL
                                    ? &m->stored[lt_param_index(&m->table, a->kind, a->layer)]
                                    : NULL;
    if (h == NULL || h->n_ranges == 0) {
        const lt_tensor w = lt_exec_weight(&d->exec, a->kind, a->layer);
        *out = lt_tensor_rows(&w, first, n);
        return LT_OK;
    }
    *out = lt_tensor_2d(d->w.data, d->w.dtype, n, a->shape[1]);
    for (int i = 0; i < h->n_ranges; i++) {
        const lt_weight_range *range = &h->ranges[i];
        const int64_t end = range->first_row + range->w.shape[0],
                      from = range->first_row > first ? range->first_row : first,
                      to = end < first + n ? end : first + n;
        if (from < to) {
            LT_TRY(decode_range(d, lt_tensor_rows(out, from - first, to - from), range,
                                from - range->first_row));
        }
    }
    return LT_OK;
}

/* Compute the means of squares of rows [first, first + n) of one part of W + s B A, into host
 * memory. */
static lt_err measure(lt_lora_pool_dora *d, const lt_param *a, const lt_dora_part *part,
                      int64_t first, int64_t n, float *mean) {
    lt_exec *r = &d->exec;
    const int64_t in = a->shape[1];
    const lt_tensor rows = lt_tensor_2d(d->rows.data, LT_F32, n, in),
                    b = lt_tensor_2d(d->b.data, LT_F32, n, part->rank);
    lt_tensor w;
    LT_TRY(lt_model_upload(r->model, b.data, part->b + first * part->rank,
                           (size_t)(n * part->rank) * sizeof(float)));
    LT_TRY(weight_rows(d, &w, a, part->site->parts[part->index].first_row + first, n));
    LT_TRY(lt_exec_matmul(
        r, &(lt_matmul_args){
               .y = rows, .a = b, .b = lt_tensor_2d(d->a.data, LT_F32, part->rank, in)}));
    LT_TRY(lt_exec_add(
        r, &(lt_add_args){.y = rows, .a = rows, .alpha = part->scale, .b = w, .beta = 1.0f}));
    LT_TRY(lt_exec_rmsnorm_fwd(
        r, &(lt_rmsnorm_args){.y = rows,
                              .x = rows,
                              .gain = lt_tensor_1d(rows.data, LT_F32, in), /* Not read. */
                              .rstd = lt_tensor_1d(d->mean.data, LT_F32, n),
                              .part = LT_NORM_MEASURE}));
    LT_TRY(r->backend->sync(r->queue));
    return lt_model_download(r->model, mean, d->mean.data, (size_t)n * sizeof *mean);
}

static lt_err derive(lt_lora_pool_dora *d, const lt_param *a, float *c, const lt_dora_part *part,
                     const float *m) {
    const int64_t all = part->site->parts[part->index].n_rows, most = d->rows.shape[0],
                  in = a->shape[1];
    LT_TRY(lt_model_upload(d->exec.model, d->a.data, part->a,
                           (size_t)(part->rank * in) * sizeof(float)));
    for (int64_t first = 0; first < all; first += most) {
        const int64_t n = all - first < most ? all - first : most;
        LT_TRY(measure(d, a, part, first, n, c + first));
        for (int64_t i = first; i < first + n; i++) {
            c[i] = (float)((double)m[i] / sqrt(((double)c[i] + LEAST_MEAN) * (double)in));
        }
    }
    return LT_OK;
}

lt_err lt_lora_pool_derive(const lt_lora_pool *p, float *c, const lt_dora_part *part,
                           const float *m) {
    const lt_param *a = &p->plan.table.params[part->site->a];
    pthread_mutex_lock(&p->dora->lock);
    const lt_err err = derive(p->dora, a, c, part, m);
    pthread_mutex_unlock(&p->dora->lock);
    return err;
}

/* Set (1 - c) bias for the rows of a part that has a bias; others keep 0. */
static lt_err part_offsets(const lt_lora_pool *p, float *factors, const lt_lora_site *s, int index,
                           const lt_tensor *bias) {
    const lt_lora_part *part = &s->parts[index];
    const size_t bytes = lt_dtype_bytes(bias->dtype);
    const float *c = factors + s->m_at + part->b_row;
    float *offset = factors + p->plan.sizes.n_magnitudes + s->m_at + part->b_row;
    lt_err err;
    void *own = malloc((size_t)part->n_rows * bytes);
    if (own == NULL) {
        LT_FAIL(LT_ERR_OOM, "a bias of %lld rows", (long long)part->n_rows);
    }
    LT_TRY_DONE(lt_model_download(p->model, own,
                                  (const char *)bias->data + (size_t)part->first_row * bytes,
                                  (size_t)part->n_rows * bytes));
    lt_convert(offset, LT_F32, own, bias->dtype, (size_t)part->n_rows);
    for (int64_t i = 0; i < part->n_rows; i++) {
        offset[i] *= 1.0f - c[i];
    }
done:
    free(own);
    return err;
}

lt_err lt_lora_pool_find_offsets(const lt_lora_pool *p, float *factors) {
    for (int i = 0; p->dora->has_offsets && i < n_sites(p); i++) {
        const lt_lora_site *s = &p->plan.sites[i];
        const lt_param *a = s->n_parts > 0 ? &p->plan.table.params[s->a] : NULL;
        const lt_tensor bias = a != NULL ? bias_of(p, a->kind, a->layer) : (lt_tensor){0};
        for (int k = 0; bias.data != NULL && k < s->n_parts; k++) {
            LT_TRY(part_offsets(p, factors, s, k, &bias));
        }
    }
    return LT_OK;
}

/* ---- Computing ---- */

/* A view of numbers [first, first + n) of all places. */
static lt_tensor in_places(const lt_lora_pool *p, int64_t first, int64_t n) {
    lt_tensor t = lt_tensor_2d(p->dora->data + first, LT_F32, p->n, n);
    t.stride[0] = (int64_t)n_numbers(p);
    return t;
}

/* Parts that are consecutive in y and among the factors take one call. */
lt_err lt_lora_pool_scale(lt_exec *r, const lt_lora_site *s, lt_param_kind kind, lt_tensor y) {
    const lt_lora_pool *p = r->lora_rows->pool;
    const int layer = p->plan.table.params[s->a].layer;
    const bool biased = bias_of(p, kind, layer).data != NULL;
    for (int i = 0, end; i < s->n_parts; i = end) {
        const lt_lora_part *from = &s->parts[i];
        int64_t n = from->n_rows;
        for (end = i + 1; end < s->n_parts && s->parts[end].first_row == from->first_row + n &&
                          s->parts[end].b_row == from->b_row + n;
             end++) {
            n += s->parts[end].n_rows;
        }
        const int64_t at = s->m_at + from->b_row;
        LT_TRY(lt_exec_lora_scale(
            r, &(lt_lora_scale_args){
                   .y = lt_tensor_cols(&y, from->first_row, n),
                   .factor = in_places(p, at, n),
                   .offset = biased ? in_places(p, p->plan.sizes.n_magnitudes + at, n)
                                    : (lt_tensor){0},
                   .place = r->lora_rows->place}));
    }
    return LT_OK;
}
