/* dora.c: see dora.h. */
#include "model/dora.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "model/acts.h"
#include "model/alloc.h"
#include "model/decoded.h"

#define ROWS_ELEMENTS ((int64_t)1 << 20) /* Room of lt_dora.rows: 4 MiB, which a cache may hold. */
#define LEAST_MEAN    1e-30f             /* A row of zeros stays one, whatever its magnitude. */

static int64_t rows_at_once(int64_t in) {
    return in < ROWS_ELEMENTS ? ROWS_ELEMENTS / in : 1; /* At most those of decoded.h. */
}

static void carve(lt_dora *d, const lt_lora_sizes *z, lt_arena *a) {
    const int64_t most = rows_at_once(z->in) < z->width ? rows_at_once(z->in) : z->width;
    d->factors = lt_tensor_take(a, LT_F32, z->n_magnitudes, 0, 0);
    d->inverse = lt_tensor_take(a, LT_F32, z->n_magnitudes, 0, 0);
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

/* ||W + s B A||^2 / in of n rows of a part, from row `first` on, to `inverse`. */
static lt_err measure_rows(lt_exec *r, const lt_lora_site *s, int index, int64_t first, int64_t n) {
    const lt_lora *l = r->lora->lora;
    const lt_lora_part *p = &s->parts[index];
    const lt_param *a = &l->params->table.params[s->a];
    const lt_tensor whole_a = lt_lora_view(r, &l->params->weights, s->a),
                    whole_b = lt_lora_view(r, &l->params->weights, s->b);
    const int64_t rank = l->options.rank, at = s->m_at + p->b_row + first;
    const lt_tensor rows = lt_tensor_2d(l->dora.rows.data, LT_F32, n, a->shape[1]);
    lt_tensor w;
    LT_TRY(lt_decoded_rows(r, &w, a->kind, a->layer, p->first_row + first, n));
    LT_TRY(lt_exec_matmul(r, &(lt_matmul_args){.y = rows,
                                               .a = lt_tensor_rows(&whole_b, p->b_row + first, n),
                                               .b = lt_tensor_rows(&whole_a, index * rank, rank)}));
    LT_TRY(lt_exec_add(
        r, &(lt_add_args){.y = rows, .a = rows, .alpha = l->scale, .b = w, .beta = 1.0f}));
    return lt_exec_rmsnorm_fwd(
        r, &(lt_rmsnorm_args){.y = rows,
                              .x = rows,
                              .gain = lt_tensor_1d(rows.data, LT_F32, a->shape[1]), /* Unread. */
                              .rstd = lt_tensor_1d((float *)l->dora.inverse.data + at, LT_F32, n),
                              .part = LT_NORM_MEASURE});
}

/* The factors of a matrix, and what they divide by. */
static lt_err derive_site(lt_exec *r, const lt_lora_site *s) {
    const lt_lora *l = r->lora->lora;
    const lt_param *params = l->params->table.params;
    const int64_t in = params[s->a].shape[1], most = rows_at_once(in), n = params[s->m].shape[0];
    for (int i = 0; i < s->n_parts; i++) {
        for (int64_t first = 0; first < s->parts[i].n_rows; first += most) {
            const int64_t left = s->parts[i].n_rows - first;
            LT_TRY(measure_rows(r, s, i, first, left < most ? left : most));
        }
    }
    const lt_tensor m = lt_tensor_2d(lt_param_data(&l->params->master, &params[s->m]), LT_F32, n,
                                     1),
                    c = column(&l->dora.factors, s->m_at, n),
                    nothing = lt_tensor_1d(l->dora.rows.data, LT_F32, 1);
    LT_TRY(r->backend->zero(r->queue, nothing.data, sizeof(float)));
    return lt_exec_rmsnorm_fwd(
        r,
        &(lt_rmsnorm_args){.y = c,
                           .x = m,
                           .gain = nothing,
                           .gain_offset = 1.0f / sqrtf((float)in),
                           .eps = LEAST_MEAN,
                           .rstd = lt_tensor_1d((float *)l->dora.inverse.data + s->m_at, LT_F32, n),
                           .part = LT_NORM_GIVEN});
}

/* Are there adapters of a layer that this stage of a pipeline has? */
static bool is_here(const lt_lora *l, const lt_lora_site *s) {
    return s->n_parts > 0 && l->params->table.params[s->a].local_count > 0;
}

lt_err lt_lora_refresh(lt_exec *r) {
    lt_lora *l = r->model->lora;
    if (r->lora == NULL || l == NULL || !l->options.dora ||
        (l->dora.ready && l->dora.version == l->params->version)) {
        return LT_OK;
    }
    for (int i = 0; i < (int)r->spec->n_layers * LT_LORA_LAYER_KINDS; i++) {
        LT_TRY(is_here(l, &l->sites[i]) ? derive_site(r, &l->sites[i]) : LT_OK);
    }
    LT_TRY(r->backend->sync(r->queue)); /* Other passes read them on queues of their own. */
    l->dora.ready = true;
    l->dora.version = l->params->version;
    return LT_OK;
}

/* ---- Opening ---- */

/* m = ||W||: B is zero still. */
static lt_err begin_site(lt_exec *r, lt_lora *l, const lt_lora_site *s, float *values) {
    const lt_param *params = l->params->table.params, *m = &params[s->m];
    const float root = sqrtf((float)params[s->a].shape[1]);
    LT_TRY(derive_site(r, s));
    LT_TRY(r->backend->sync(r->queue));
    LT_TRY(lt_model_download(l->params, values, (float *)l->dora.inverse.data + s->m_at,
                             (size_t)m->count * sizeof *values));
    for (int64_t i = 0; i < m->count; i++) {
        values[i] = root / values[i];
    }
    lt_model_set(l->params, m, 0, values, LT_F32, m->count);
    return LT_OK;
}

static lt_err begin_magnitudes(lt_lora *l, lt_model *base) {
    lt_err err = LT_OK;
    lt_exec r = {0};
    lt_lora_run run = {.lora = l};
    lt_arena scratch = {0};
    float *values = malloc((size_t)l->sizes.width * sizeof *values);
    if (values == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "magnitudes of %lld rows", (long long)l->sizes.width);
    }
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
    for (int i = 0; i < (int)base->spec.n_layers * LT_LORA_LAYER_KINDS; i++) {
        LT_TRY_DONE(is_here(l, &l->sites[i]) ? begin_site(&r, l, &l->sites[i], values) : LT_OK);
    }
    LT_TRY_DONE(lt_model_settle(l->params));
done:
    lt_arena_release(&scratch, base->device);
    lt_exec_close(&r);
    free(values);
    return err;
}

lt_err lt_dora_open(lt_lora *l, lt_model *base) {
    lt_arena a = {0};
    if (!l->options.dora) {
        return LT_OK;
    }
    carve(&l->dora, &l->sizes, &a);
    LT_TRY(lt_arena_place(&a, base->device, "factors of adapters"));
    carve(&l->dora, &l->sizes, &a);
    l->dora.arena = a;
    return begin_magnitudes(l, base);
}

void lt_dora_close(lt_lora *l) {
    if (l->params != NULL) {
        lt_arena_release(&l->dora.arena, l->params->device);
    }
}

/* ---- Computing ---- */

/* Columns of x times the factors of a part, to y. Leaves ones in run->rstd. */
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

/* y += bias in each row: a product of zeros, which adds its bias to what is there. */
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
        LT_TRY(scale_columns(r, part, part, s->m_at + s->parts[i].b_row));
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
    const int64_t rows = dy.shape[0], n = p->n_rows, at = s->m_at + p->b_row;
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
    return add_magnitudes(r, lt_tensor_1d(dm + p->b_row, LT_F32, n), dc, spare, at);
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
                                (size_t)m->count * sizeof(float)));
    }
    for (int i = 0; i < s->n_parts; i++) {
        covered += s->parts[i].n_rows;
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
