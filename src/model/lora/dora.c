/* dora.c: see dora.h. */
#include "model/lora/dora.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "model/pass/acts.h"
#include "model/alloc.h"
#include "model/files/decoded.h"
#include "model/blocks/tp.h"

#define ROWS_ELEMENTS ((int64_t)1 << 20) /* Size of lt_dora.rows: 4 MiB, which fit a cache. */
#define LEAST_MEAN    1e-30f             /* A row of zeros stays zero, whatever its magnitude. */

static int64_t rows_at_once(int64_t in) {
    return in < ROWS_ELEMENTS ? ROWS_ELEMENTS / in : 1; /* At most the rows of decoded.h. */
}

static void carve(lt_dora *d, const lt_lora_sizes *z, lt_arena *a) {
    const int64_t most = rows_at_once(z->in) < z->width ? rows_at_once(z->in) : z->width;
    d->factors = lt_tensor_take(a, LT_F32, z->n_magnitudes, 0, 0);
    d->inverse = lt_tensor_take(a, LT_F32, z->n_magnitudes, 0, 0);
    d->magnitudes = lt_tensor_take(a, LT_F32, z->n_magnitudes, 0, 0);
    d->rows = lt_tensor_take(a, LT_F32, most, z->in, 0);
}

size_t lt_lora_derived_bytes(const lt_lora_options *o, const lt_lora_sizes *z) {
    lt_dora d;
    lt_arena a = {0};
    if (o->dora) {
        carve(&d, z, &a);
    }
    return a.used_bytes;
}

/* ---- Factors ---- */

/* Elements [first, first + n) of a vector, as a column. */
static lt_tensor column(const lt_tensor *vector, int64_t first, int64_t n) {
    return lt_tensor_2d((float *)vector->data + first, LT_F32, n, 1);
}

/* Compute the mean of squares of n rows of a part of W + s B A, from row `first` of the held part
 * on, into `inverse`. */
static lt_err measure_rows(lt_exec *r, const lt_lora_site *s, int index, int64_t first, int64_t n) {
    const lt_lora *l = r->lora->lora;
    const lt_lora_part *p = &s->parts[index];
    const lt_param *a = &l->params->table.params[s->a];
    const lt_tensor whole_a = lt_lora_view(r, &l->params->weights, s->a),
                    whole_b = lt_lora_view(r, &l->params->weights, s->b);
    const int64_t rank = l->options.rank, in = whole_a.shape[1];
    const int64_t at = s->m_at + p->held.b_row + first;
    const lt_tensor rows = lt_tensor_2d(l->dora.rows.data, LT_F32, n, in);
    lt_tensor w;
    LT_ASSERT(n <= l->dora.rows.shape[0] && in <= l->dora.rows.shape[1]);
    LT_TRY(lt_decoded_rows(r, &w, a->kind, a->layer, p->held.first_row + first, n));
    LT_TRY(
        lt_exec_matmul(r, &(lt_matmul_args){.y = rows,
                                            .a = lt_tensor_rows(&whole_b, p->held.b_row + first, n),
                                            .b = lt_tensor_rows(&whole_a, index * rank, rank)}));
    LT_TRY(lt_exec_add(
        r, &(lt_add_args){.y = rows, .a = rows, .alpha = l->scale, .b = w, .beta = 1.0f}));
    return lt_exec_rmsnorm_fwd(
        r, &(lt_rmsnorm_args){.y = rows,
                              .x = rows,
                              .gain = lt_tensor_1d(rows.data, LT_F32, in), /* Not read. */
                              .rstd = lt_tensor_1d((float *)l->dora.inverse.data + at, LT_F32, n),
                              .part = LT_NORM_MEASURE});
}

lt_tensor lt_dora_magnitudes(const lt_lora *l, const lt_lora_site *s) {
    const lt_param *m = &l->params->table.params[s->m];
    return l->trained != l->params
               ? column(&l->dora.magnitudes, s->m_at, m->local_count)
               : lt_tensor_2d(lt_param_data(&l->params->master, m), LT_F32, m->local_count, 1);
}

/* Derive the factors of a matrix and their divisors. */
static lt_err derive_site(lt_exec *r, const lt_lora_site *s) {
    const lt_lora *l = r->lora->lora;
    const lt_param *a = &l->params->table.params[s->a];
    const lt_tensor m = lt_dora_magnitudes(l, s),
                    inverse = lt_tensor_1d((float *)l->dora.inverse.data + s->m_at, LT_F32,
                                           m.shape[0]),
                    nothing = lt_tensor_1d(l->dora.rows.data, LT_F32, 1);
    const int64_t most = l->dora.rows.shape[0];
    for (int i = 0; i < s->n_parts; i++) {
        for (int64_t first = 0; first < s->parts[i].held.n_rows; first += most) {
            const int64_t left = s->parts[i].held.n_rows - first;
            LT_TRY(measure_rows(r, s, i, first, left < most ? left : most));
        }
    }
    if (a->local_shape[1] < a->shape[1]) { /* Each rank has an equal share of the columns. */
        LT_TRY(lt_tp_mean(r, inverse));
    }
    LT_TRY(r->backend->zero(r->queue, nothing.data, sizeof(float)));
    return lt_exec_rmsnorm_fwd(
        r, &(lt_rmsnorm_args){.y = column(&l->dora.factors, s->m_at, m.shape[0]),
                              .x = m,
                              .gain = nothing,
                              .gain_offset = 1.0f / sqrtf((float)a->shape[1]),
                              .eps = LEAST_MEAN,
                              .rstd = inverse,
                              .part = LT_NORM_GIVEN});
}

/* Whether it is a site with adapters in a layer that this stage of a pipeline has. */
static bool is_here(const lt_lora *l, const lt_lora_site *s) {
    return s->n_parts > 0 && l->params->table.params[s->a].local_count > 0;
}

/* Call it for each adapted matrix of the layer that this rank holds. Its work is never part of a
 * recorded graph. */
static lt_err each_site(lt_exec *r, int layer, lt_err (*call)(lt_exec *, const lt_lora_site *)) {
    const lt_lora *l = r->lora->lora;
    lt_err (*const between)(void *, const lt_exec_verb *) = r->between_pieces;
    lt_err err = LT_OK;
    r->between_pieces = NULL;
    for (int k = 0; k < LT_LORA_LAYER_KINDS && err == LT_OK; k++) {
        const lt_lora_site *s = &l->sites[layer * LT_LORA_LAYER_KINDS + k];
        err = is_here(l, s) ? call(r, s) : LT_OK;
    }
    r->between_pieces = between;
    return err;
}

lt_err lt_lora_refresh_layer(lt_exec *r, int layer) {
    const lt_lora *l = r->lora != NULL ? r->lora->lora : NULL;
    if (l == NULL || !l->options.dora || l->dora.derived[layer] == l->params->version + 1) {
        return LT_OK;
    }
    LT_TRY(each_site(r, layer, derive_site));
    LT_TRY(r->backend->sync(r->queue)); /* Other passes read them on their own queues. */
    l->dora.derived[layer] = l->params->version + 1;
    return LT_OK;
}

lt_err lt_lora_refresh(lt_exec *r) {
    for (int layer = 0; layer < r->spec->n_layers; layer++) {
        LT_TRY(lt_lora_refresh_layer(r, layer));
    }
    return LT_OK;
}

/* ---- Opening ---- */

/* m = ||W||, because B is still zero. */
static lt_err begin_site(lt_exec *r, const lt_lora_site *s) {
    const lt_lora *l = r->lora->lora;
    const lt_param *params = l->params->table.params, *m = &params[s->m];
    const float root = sqrtf((float)params[s->a].shape[1]);
    const size_t bytes = (size_t)m->local_count * sizeof(float);
    lt_err err;
    float *values = malloc(bytes);
    if (values == NULL) {
        LT_FAIL(LT_ERR_OOM, "magnitudes of %lld rows", (long long)m->local_count);
    }
    LT_TRY_DONE(derive_site(r, s));
    LT_TRY_DONE(r->backend->sync(r->queue));
    LT_TRY_DONE(
        lt_model_download(l->params, values, (float *)l->dora.inverse.data + s->m_at, bytes));
    for (int64_t i = 0; i < m->local_count; i++) {
        values[i] = root / values[i];
    }
    for (int64_t at = 0, run; at < m->local_count; at += run) {
        const int64_t whole = lt_param_whole_index(&l->params->table, m, at, &run);
        lt_lora_set(l->trained, m, whole, values + at, run);
    }
done:
    free(values);
    return err;
}

lt_err lt_dora_begin(lt_exec *r, int layer) {
    return each_site(r, layer, begin_site);
}

lt_err lt_dora_begin_all(lt_lora *l, lt_model *base) {
    lt_err err = LT_OK;
    lt_exec r = {0};
    lt_lora_run run = {.lora = l};
    lt_arena scratch = {0};
    LT_TRY_DONE(lt_model_wait(base));
    LT_TRY_DONE(lt_exec_open(&r, base, NULL));
    r.lora = &run;
    if (base->options.decoded) {
        lt_decoded_carve(&r, &base->table, base->options.dtype, !base->backend->host_memory,
                         &scratch);
        LT_TRY_DONE(lt_arena_place(&scratch, base->device, "rows of weights"));
        lt_decoded_carve(&r, &base->table, base->options.dtype, !base->backend->host_memory,
                         &scratch);
    }
    for (int layer = 0; layer < base->spec.n_layers; layer++) {
        LT_TRY_DONE(lt_dora_begin(&r, layer));
    }
    LT_TRY_DONE(lt_model_settle(l->trained));
done:
    lt_arena_release(&scratch, base->device);
    lt_exec_close(&r);
    return err;
}

lt_err lt_dora_open(lt_lora *l, lt_model *base, bool begin) {
    lt_arena a = {0};
    if (!l->options.dora) {
        return LT_OK;
    }
    l->dora.derived = calloc((size_t)base->spec.n_layers, sizeof *l->dora.derived);
    if (l->dora.derived == NULL) {
        LT_FAIL(LT_ERR_OOM, "factors of %lld layers", (long long)base->spec.n_layers);
    }
    carve(&l->dora, &l->sizes, &a);
    LT_TRY(lt_arena_place(&a, base->device, "factors of adapters"));
    carve(&l->dora, &l->sizes, &a);
    l->dora.arena = a;
    return begin ? lt_dora_begin_all(l, base) : LT_OK;
}

void lt_dora_close(lt_lora *l) {
    if (l->params != NULL) {
        lt_arena_release(&l->dora.arena, l->params->device);
    }
    free(l->dora.derived);
}

/* ---- Computing ---- */

/* Write columns of x times the factors of a part to y. Leaves ones in run->rstd. */
static lt_err scale_columns(lt_exec *r, lt_tensor y, lt_tensor x, int64_t at) {
    const lt_lora_run *run = r->lora;
    const int64_t rows = x.shape[0], n = x.shape[1];
    LT_TRY(r->backend->zero(r->queue, run->rstd.data, (size_t)rows * sizeof(float)));
    return lt_exec_rmsnorm_fwd(
        r, &(lt_rmsnorm_args){
               .y = y,
               .x = x,
               .gain = lt_tensor_1d((float *)run->lora->dora.factors.data + at, LT_F32, n),
               .eps = 1.0f,
               .rstd = lt_tensor_1d(run->rstd.data, LT_F32, rows),
               .part = LT_NORM_GIVEN});
}

/* y += bias in each row, by a product of zeros to which the bias is added. */
static lt_err add_bias(lt_exec *r, lt_tensor y, lt_tensor bias) {
    const lt_lora_run *run = r->lora;
    const int64_t rows = y.shape[0], n = y.shape[1];
    const size_t bytes = lt_dtype_bytes(run->zeros.dtype);
    LT_TRY(r->backend->zero(r->queue, run->zeros.data, (size_t)rows * bytes));
    LT_TRY(r->backend->zero(r->queue, run->zero_row.data, (size_t)n * bytes));
    return lt_exec_matmul(
        r, &(lt_matmul_args){.y = y,
                             .a = lt_tensor_2d(run->zeros.data, run->zeros.dtype, rows, 1),
                             .b = lt_tensor_2d(run->zero_row.data, run->zeros.dtype, 1, n),
                             .bias = bias,
                             .accumulate = true,
                             .fixed_order = r->fixed_order});
}

lt_err lt_dora_scale(lt_exec *r, const lt_lora_site *s, lt_tensor y, lt_tensor bias) {
    for (int i = 0; i < s->n_parts; i++) {
        const lt_tensor part = lt_lora_columns(&y, &s->parts[i]);
        LT_TRY(scale_columns(r, part, part, s->m_at + s->parts[i].held.b_row));
    }
    return bias.data != NULL ? add_bias(r, y, bias) : LT_OK;
}

/* dm += dc / ||W + s B A||, elementwise; dc has been divided by sqrt(in). */
static lt_err add_magnitudes(lt_exec *r, lt_tensor dm, lt_tensor dc, lt_tensor spare, int64_t at) {
    const lt_lora_run *run = r->lora;
    const int64_t n = dc.shape[1];
    return lt_exec_rmsnorm_bwd(
        r, &(lt_rmsnorm_bwd_args){
               .dx = spare,
               .dgain = dm,
               .dy = dc,
               .x = lt_tensor_2d((float *)run->lora->dora.inverse.data + at, LT_F32, 1, n),
               .gain = lt_tensor_1d((float *)run->lora->dora.factors.data + at, LT_F32, n),
               .rstd = lt_tensor_1d(run->rstd.data, LT_F32, 1),
               .mean = lt_tensor_1d(run->mean.data, LT_F32, 1),
               .part = LT_NORM_GIVEN});
}

static lt_err part_gradient(lt_exec *r, const lt_lora_site *s, int index, lt_tensor dz, lt_tensor z,
                            lt_tensor dy) {
    const lt_lora_run *run = r->lora;
    const lt_lora_part *p = &s->parts[index];
    const lt_param *a = &run->lora->params->table.params[s->a];
    const int64_t rows = dy.shape[0], n = p->held.n_rows, at = s->m_at + p->held.b_row;
    const lt_tensor dc = lt_tensor_2d(run->dc.data, LT_F32, 1, n),
                    spare = lt_tensor_2d((float *)run->dc.data + run->dc.shape[1], LT_F32, 1, n);
    float *const dm = lt_param_data(&run->gradients, &run->lora->params->table.params[s->m]);
    LT_TRY(scale_columns(r, lt_tensor_cols(&dz, 0, 1), lt_tensor_cols(&dy, 0, 1), at));
    LT_TRY(r->backend->zero(r->queue, dc.data, (size_t)n * sizeof(float)));
    LT_TRY(lt_exec_rmsnorm_bwd(
        r, &(lt_rmsnorm_bwd_args){
               .dx = dz,
               .dgain = lt_tensor_1d(dc.data, LT_F32, n),
               .dy = dy,
               .x = z,
               .gain = lt_tensor_1d((float *)run->lora->dora.factors.data + at, LT_F32, n),
               .rstd = lt_tensor_1d(run->rstd.data, LT_F32, rows),
               .mean = lt_tensor_1d(run->mean.data, LT_F32, rows),
               .part = LT_NORM_GIVEN}));
    LT_TRY(lt_exec_add(
        r, &(lt_add_args){.y = dc, .a = dc, .alpha = 1.0f / sqrtf((float)a->shape[1])}));
    return add_magnitudes(r, lt_tensor_1d(dm + p->held.b_row, LT_F32, n), dc, spare, at);
}

lt_err lt_dora_gradient(lt_exec *r, const lt_lora_site *s, lt_tensor *dy) {
    const lt_lora_run *run = r->lora;
    const int64_t rows = dy->shape[0], n = dy->shape[1];
    const lt_tensor z = lt_tensor_2d(run->z.data, run->z.dtype, rows, n),
                    dz = lt_tensor_2d(run->dz.data, run->dz.dtype, rows, n);
    const lt_param *m = &run->lora->params->table.params[s->m];
    int64_t covered = 0;
    LT_TRY(r->backend->zero(r->queue, run->mean.data, (size_t)rows * sizeof(float)));
    if (r->fresh) {
        LT_TRY(r->backend->zero(r->queue, lt_param_data(&run->gradients, m),
                                (size_t)m->local_count * sizeof(float)));
    }
    for (int i = 0; i < s->n_parts; i++) {
        covered += s->parts[i].held.n_rows;
    }
    if (covered < n) { /* Columns without adapters keep their gradient. */
        LT_TRY(lt_exec_add(r, &(lt_add_args){.y = dz, .a = *dy, .alpha = 1.0f}));
    }
    for (int i = 0; i < s->n_parts; i++) {
        const lt_lora_part *p = &s->parts[i];
        LT_TRY(part_gradient(r, s, i, lt_lora_columns(&dz, p), lt_lora_columns(&z, p),
                             lt_lora_columns(dy, p)));
    }
    *dy = dz;
    return LT_OK;
}
