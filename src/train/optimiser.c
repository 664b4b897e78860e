/* optimiser.c: walks the parameter table; the ops do the arithmetic. */
#include "train/optimiser.h"

#include <math.h>

#include "base/error.h"
#include "model/pass/acts.h"
#include "tensor/ops.h"

static const struct {
    int n_moments;
    const char *names[LT_OPTIM_MAX_MOMENTS - LT_OPTIM_OUTER];
} kinds[] = {
    [LT_OPTIM_ADAMW] = {2, {"m", "v"}},
    [LT_OPTIM_ADEMAMIX] = {3, {"m", "v", "slow"}},
    [LT_OPTIM_MUON] = {2, {"m", "v"}},
    [LT_OPTIM_LION] = {1, {"m"}},
};

static int64_t scratch_count(const lt_recipe *r, const lt_param_table *t) {
    int64_t most = 0;
    for (int i = 0; r->optim == LT_OPTIM_MUON && i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        for (int b = 0; p->matrix && b < p->n_blocks; b++) {
            const int64_t n = lt_muon_scratch_count(p->block_rows[b], p->shape[p->n_dims - 1]);
            most = n > most ? n : most;
        }
    }
    return most;
}

/* They follow the optimiser's own. */
static const char *const outer_names[LT_OPTIM_OUTER] = {"outer", "outer_momentum"};

static int count_moments(const lt_recipe *r) {
    return kinds[r->optim].n_moments + (r->sites > 1 ? LT_OPTIM_OUTER : 0);
}

static lt_dtype moment_dtype(const lt_recipe *r, int i) {
    return r->moments != 0 && i < kinds[r->optim].n_moments ? LT_BF16 : LT_F32;
}

static void carve(lt_optimiser *o, const lt_recipe *r, const lt_param_table *t, lt_arena *a) {
    const int n_own = kinds[r->optim].n_moments;
    o->n_moments = count_moments(r);
    for (int i = 0; i < o->n_moments; i++) {
        void *flat = lt_arena_take(a, lt_param_buffer_bytes(t, moment_dtype(r, i)), LT_ARENA_ALIGN);
        o->moment_names[i] = i < n_own ? kinds[r->optim].names[i] : outer_names[i - n_own];
        if (flat != NULL) {
            lt_param_buffer_place(&o->moments[i], t, flat);
        }
    }
    o->sumsq = lt_arena_take(a, sizeof *o->sumsq, LT_ARENA_ALIGN);
    o->muon_scratch = lt_arena_take(a, (size_t)scratch_count(r, t) * sizeof(float), LT_ARENA_ALIGN);
    if (o->owners.shards != NULL) {
        const size_t whole = LT_OWNERS_BUFFERS * (size_t)o->owners.room,
                     exchange = (size_t)lt_owners_scratch(&o->owners);
        o->muon_whole = lt_arena_take(a, whole * sizeof(float), LT_ARENA_ALIGN);
        o->muon_exchange = lt_arena_take(a, exchange * sizeof(float), LT_ARENA_ALIGN);
    }
}

/* Muon orthogonalises whole matrices, so a box must hold whole matrices. */
static lt_err check_matrices(const lt_param_table *t) {
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        const lt_box *boxes = lt_param_boxes(t, p);
        for (int b = 0; p->matrix && b < p->n_boxes; b++) {
            for (int d = p->n_dims - 2; d < p->n_dims; d++) {
                if (boxes[b].extent[d] != p->shape[d]) {
                    LT_FAIL(LT_ERR_UNSUPPORTED,
                            "optimiser muon: of %s, %lld of %lld indices of dimension %d are held "
                            "here; Muon needs whole matrices",
                            p->name, (long long)boxes[b].extent[d], (long long)p->shape[d], d);
                }
            }
        }
    }
    return LT_OK;
}

/* Whether each matrix is gathered on one rank. */
static bool has_owners(const lt_recipe *r, const lt_shards *shards) {
    return r->optim == LT_OPTIM_MUON && shards != NULL && shards->level > 0;
}

lt_err lt_optimiser_measure(size_t *bytes, const lt_recipe *r, const lt_param_table *t,
                            const lt_shards *shards) {
    lt_optimiser o = {0};
    lt_arena a = {0};
    LT_TRY(has_owners(r, shards) ? lt_owners_open(&o.owners, shards, NULL, NULL) : LT_OK);
    carve(&o, r, t, &a);
    *bytes = a.used_bytes;
    lt_owners_close(&o.owners);
    return LT_OK;
}

size_t lt_optimiser_state_bytes(const lt_recipe *r, const lt_param_table *t) {
    size_t bytes = lt_param_buffer_bytes(t, LT_F32);
    for (int i = 0; i < count_moments(r); i++) {
        bytes += lt_param_buffer_bytes(t, moment_dtype(r, i));
    }
    return bytes;
}

lt_err lt_optimiser_open(lt_optimiser *o, const lt_recipe *r, lt_model *m, lt_queue *queue) {
    const lt_optimiser_share all = {&m->table, &m->master,
                                    m->options.dtype != LT_F32 ? &m->weights : NULL, NULL};
    return lt_optimiser_open_share(o, r, m, &all, queue);
}

lt_err lt_optimiser_open_share(lt_optimiser *o, const lt_recipe *r, lt_model *m,
                               const lt_optimiser_share *share, lt_queue *queue) {
    void *host = NULL;
    *o = (lt_optimiser){.recipe = r, .model = m, .share = *share, .queue = queue};
    LT_ASSERT(share->master->base != NULL && share->master->dtype == LT_F32);
    LT_ASSERT((share->copy != NULL) == (m->options.dtype != LT_F32));
    LT_ASSERT(lt_model_has_master(m));
    LT_ASSERT(r->moments == 0 || r->optim == LT_OPTIM_ADAMW || r->optim == LT_OPTIM_ADEMAMIX);
    if (has_owners(r, share->shards)) {
        LT_TRY(lt_owners_open(&o->owners, share->shards, m->backend, queue));
    } else {
        LT_TRY(r->optim == LT_OPTIM_MUON ? check_matrices(share->table) : LT_OK);
    }
    for (int i = 0; i < count_moments(r); i++) {
        LT_TRY(lt_param_buffer_open(&o->moments[i], share->table, moment_dtype(r, i)));
    }
    carve(o, r, share->table, &o->arena);
    LT_TRY(lt_arena_place(&o->arena, m->device, "optimiser"));
    carve(o, r, share->table, &o->arena);
    LT_TRY(m->backend->host_alloc(m->device, &host, sizeof *o->host_sumsq, "sum of squares"));
    o->host_sumsq = host;
    return LT_OK;
}

void lt_optimiser_close(lt_optimiser *o) {
    if (o->model != NULL) {
        lt_arena_release(&o->arena, o->model->device);
    }
    for (int i = 0; i < LT_OPTIM_MAX_MOMENTS; i++) {
        lt_param_buffer_close(&o->moments[i]);
    }
    if (o->host_sumsq != NULL) {
        o->model->backend->host_release(o->model->device, o->host_sumsq, sizeof *o->host_sumsq);
    }
    lt_owners_close(&o->owners);
    *o = (lt_optimiser){0};
}

lt_outer_state lt_optimiser_outer(lt_optimiser *o) {
    const int first = o->n_moments - LT_OPTIM_OUTER;
    LT_ASSERT(o->recipe->sites > 1);
    return (lt_outer_state){&o->moments[first], &o->moments[first + 1]};
}

/* The arguments of a step that are the same for every parameter. */
typedef struct {
    const lt_ops *ops;
    const lt_param_buffer *gradients;
    const lt_step_plan *plan;
    float grad_scale, decay;
} step_ctx;

/* Elements [local, local + count) of the held part of a parameter; whole: index of the first in the
 * whole. */
typedef struct {
    const lt_param *param;
    int64_t local, count, whole;
} piece;

static lt_tensor flat(const lt_param_buffer *b, const piece *p) {
    char *data = lt_param_data(b, p->param);
    return lt_tensor_1d(data + (size_t)p->local * lt_dtype_bytes(b->dtype), b->dtype, p->count);
}

static lt_tensor low_copy(const lt_optimiser *o, const piece *p) {
    return o->share.copy == NULL ? (lt_tensor){0} : flat(o->share.copy, p);
}

static lt_err step_adamw(lt_optimiser *o, const step_ctx *c, const piece *p) {
    const lt_recipe *r = o->recipe;
    return c->ops->adamw(o->queue, &(lt_adamw_args){.p = flat(o->share.master, p),
                                                    .g = flat(c->gradients, p),
                                                    .m = flat(&o->moments[0], p),
                                                    .v = flat(&o->moments[1], p),
                                                    .copy = low_copy(o, p),
                                                    .lr = (float)c->plan->lr,
                                                    .beta1 = (float)r->beta1,
                                                    .beta2 = (float)r->beta2,
                                                    .eps = (float)r->eps,
                                                    .decay = c->decay,
                                                    .grad_scale = c->grad_scale,
                                                    .step = c->plan->step,
                                                    .first = p->param->whole_at + p->whole,
                                                    .seed = (uint64_t)r->seed});
}

static lt_err step_ademamix(lt_optimiser *o, const step_ctx *c, const piece *p) {
    const lt_recipe *r = o->recipe;
    return c->ops->ademamix(o->queue, &(lt_ademamix_args){.p = flat(o->share.master, p),
                                                          .g = flat(c->gradients, p),
                                                          .m1 = flat(&o->moments[0], p),
                                                          .v = flat(&o->moments[1], p),
                                                          .m2 = flat(&o->moments[2], p),
                                                          .copy = low_copy(o, p),
                                                          .lr = (float)c->plan->lr,
                                                          .beta1 = (float)r->beta1,
                                                          .beta2 = (float)r->beta2,
                                                          .beta3 = (float)c->plan->mix_beta3,
                                                          .alpha = (float)c->plan->mix_alpha,
                                                          .eps = (float)r->eps,
                                                          .decay = c->decay,
                                                          .grad_scale = c->grad_scale,
                                                          .step = c->plan->step,
                                                          .first = p->param->whole_at + p->whole,
                                                          .seed = (uint64_t)r->seed});
}

static lt_err step_lion(lt_optimiser *o, const step_ctx *c, const piece *p) {
    const lt_recipe *r = o->recipe;
    return c->ops->lion(o->queue, &(lt_lion_args){.p = flat(o->share.master, p),
                                                  .g = flat(c->gradients, p),
                                                  .m = flat(&o->moments[0], p),
                                                  .copy = low_copy(o, p),
                                                  .lr = (float)c->plan->lr,
                                                  .beta1 = (float)r->beta1,
                                                  .beta2 = (float)r->beta2,
                                                  .decay = c->decay,
                                                  .grad_scale = c->grad_scale});
}

static lt_dtype muon_products(const lt_recipe *r, const lt_model *m) {
    const bool in_16 = r->muon_products == LT_MUON_PRODUCTS_MODEL
                           ? m->options.dtype != LT_F32
                           : r->muon_products == LT_MUON_PRODUCTS_BF16;
    return in_16 ? LT_BF16 : LT_F32;
}

/* Arguments of one matrix's update; the caller adds its copy. Its size follows Jordan's max(1, rows
 * / cols)^0.5. */
static lt_muon_args muon_args(const lt_optimiser *o, const step_ctx *c, int64_t rows, int64_t cols,
                              float *p, float *g, float *m) {
    const lt_recipe *r = o->recipe;
    return (lt_muon_args){
        .p = lt_tensor_2d(p, LT_F32, rows, cols),
        .g = lt_tensor_2d(g, LT_F32, rows, cols),
        .m = lt_tensor_2d(m, LT_F32, rows, cols),
        .scratch = lt_tensor_1d(o->muon_scratch, LT_F32, lt_muon_scratch_count(rows, cols)),
        .lr = (float)c->plan->muon_lr,
        .momentum = (float)r->muon_momentum,
        .decay = c->decay,
        .scale = sqrtf(fmaxf(1.0f, (float)rows / (float)cols)),
        .grad_scale = c->grad_scale,
        .steps = r->muon_steps,
        .nesterov = true,
        .products = muon_products(r, o->model)};
}

static lt_err step_muon(lt_optimiser *o, const step_ctx *c, const lt_param *p) {
    const int64_t cols = p->shape[p->n_dims - 1], matrices = lt_param_matrix_count(p);

    for (int64_t i = 0; i < matrices; i++) {
        int64_t rows, at = lt_param_matrix_at(p, i, &rows);
        lt_muon_args a = muon_args(o, c, rows, cols,
                                   (float *)lt_param_data(o->share.master, p) + at,
                                   (float *)lt_param_data(c->gradients, p) + at,
                                   (float *)lt_param_data(&o->moments[0], p) + at);
        if (o->share.copy != NULL) {
            a.copy = lt_tensor_2d((uint16_t *)lt_param_data(o->share.copy, p) + at,
                                  o->share.copy->dtype, rows, cols);
        }
        LT_TRY(c->ops->muon(o->queue, &a));
    }
    return LT_OK;
}

/* Update this rank's matrix of the round, gathered from all ranks' slices and scattered again. */
static lt_err step_owned(lt_optimiser *o, step_ctx *c, int round) {
    const lt_param_table *t = o->share.table;
    const lt_owned *own = lt_owners_own(&o->owners, round);
    const int64_t size = own->rows * own->cols;
    float *g = o->muon_whole, *m = g + size, *p = m + size;
    const lt_param_buffer *in[] = {c->gradients, &o->moments[0], o->share.master};
    LT_TRY(lt_owners_gather(&o->owners, round, g, o->muon_exchange, t, in, 3));
    if (own->param >= 0) {
        const lt_muon_args a = muon_args(o, c, own->rows, own->cols, p, g, m);
        LT_TRY(c->ops->muon(o->queue, &a));
    }
    return lt_owners_scatter(&o->owners, round, m, o->muon_exchange, t, in + 1, 2);
}

static lt_err step_owners(lt_optimiser *o, step_ctx *c) {
    const lt_param_table *t = o->share.table;
    for (int round = 0; round < o->owners.n_rounds; round++) {
        const lt_owned *own = lt_owners_own(&o->owners, round);
        const bool decays = own->param >= 0 && t->params[own->param].decays;
        c->decay = decays ? (float)o->recipe->decay : 0.0f;
        LT_TRY(step_owned(o, c, round));
    }
    for (int i = 0; o->share.copy != NULL && i < t->n_params; i++) {
        const piece all = {&t->params[i], 0, t->params[i].local_count, 0};
        if (all.param->matrix && all.count > 0) {
            LT_TRY(c->ops->cast(o->queue, &(lt_cast_args){.y = low_copy(o, &all),
                                                          .x = flat(o->share.master, &all)}));
        }
    }
    return LT_OK;
}

/* Update the held part of a parameter in one call or, if stochastic rounding depends on the
 * position, in one call per range that is contiguous in the whole. */
static lt_err step_elements(lt_optimiser *o, const step_ctx *c, const lt_param *p) {
    const int64_t kind = o->recipe->optim;
    for (int64_t at = 0; at < p->local_count;) {
        int64_t run;
        piece part = {p, at, p->local_count - at, 0};
        part.whole = lt_param_whole_index(o->share.table, p, at, &run);
        if (o->moments[0].dtype == LT_BF16) {
            part.count = run;
        }
        LT_TRY(kind == LT_OPTIM_ADEMAMIX ? step_ademamix(o, c, &part)
               : kind == LT_OPTIM_LION   ? step_lion(o, c, &part)
                                         : step_adamw(o, c, &part));
        at += part.count;
    }
    return LT_OK;
}

lt_err lt_optimiser_sumsq(lt_optimiser *o, const lt_param_buffer *gradients) {
    const lt_backend *be = o->model->backend;
    LT_ASSERT(gradients->flat != NULL); /* For parts see norm.h. */
    const lt_sumsq_args a = {
        .out = lt_tensor_1d(o->sumsq, LT_F64, 1),
        .x = lt_tensor_1d(gradients->flat, LT_F32, o->share.table->n_elements)};
    LT_TRY(be->ops->sumsq(o->queue, &a));
    return be->download(o->queue, o->host_sumsq, o->sumsq, sizeof *o->sumsq);
}

static bool ends_unit(const lt_param_table *t, int param) {
    return param + 1 == t->n_params || t->params[param + 1].unit != t->params[param].unit;
}

static lt_err tell_updated(const lt_optimiser *o, int unit) {
    const bool tells = o->updated != NULL && o->owners.shards == NULL && !o->gathers_late;
    return tells ? o->updated(o->of, unit) : LT_OK;
}

lt_err lt_optimiser_step(lt_optimiser *o, const lt_param_buffer *gradients, float grad_scale,
                         const lt_step_plan *plan) {
    const lt_recipe *r = o->recipe;
    step_ctx c = {.ops = o->model->backend->ops,
                  .gradients = gradients,
                  .plan = plan,
                  .grad_scale = grad_scale};

    for (int i = 0; i < o->share.table->n_params; i++) {
        const lt_param *p = &o->share.table->params[i];
        c.decay = p->decays ? (float)r->decay : 0.0f;
        if (o->owners.shards != NULL && p->matrix) {
            continue; /* After the others, in rounds. */
        }
        LT_TRY(r->optim == LT_OPTIM_MUON && p->matrix ? step_muon(o, &c, p)
                                                      : step_elements(o, &c, p));
        LT_TRY(ends_unit(o->share.table, i) ? tell_updated(o, p->unit) : LT_OK);
    }
    LT_TRY(o->owners.shards != NULL ? step_owners(o, &c) : LT_OK);
    o->model->version++;
    return LT_OK;
}
