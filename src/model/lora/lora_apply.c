/* lora_apply.c: the products of adapters, forward and backward (lora.h, adapted.h). */
#include "base/error.h"
#include "model/pass/acts.h"
#include "model/lora/adapted.h"
#include "model/lora/dora.h"
#include "model/lora/lora_dropout.h"

void lt_lora_carve(lt_lora_run *run, const lt_lora_options *o, const lt_lora_sizes *z, int64_t rows,
                   lt_dtype dtype, bool backward, lt_arena *a) {
    const int64_t places = rows * z->places;
    run->u = lt_tensor_take(a, dtype, places, z->columns, 0);
    run->du = backward ? lt_tensor_take(a, dtype, places, z->columns, 0) : (lt_tensor){0};
    run->x = backward && o->dropout > 0.0 ? lt_tensor_take(a, dtype, rows, z->in, 0)
                                          : (lt_tensor){0};
    if (!o->dora) {
        return;
    }
    run->rstd = lt_tensor_take(a, LT_F32, rows, 0, 0);
    run->zeros = lt_tensor_take(a, dtype, rows, 1, 0);
    run->zero_row = lt_tensor_take(a, dtype, 1, z->width, 0);
    if (backward) {
        run->mean = lt_tensor_take(a, LT_F32, rows, 0, 0);
        run->z = lt_tensor_take(a, dtype, rows, z->width, 0);
        run->dz = lt_tensor_take(a, dtype, rows, z->width, 0);
        run->dc = lt_tensor_take(a, LT_F32, 2, z->width, 0);
    }
}

void lt_lora_attach(lt_exec *r, lt_lora_run *run) {
    run->lora = r->model->lora;
    r->lora = run->lora != NULL ? run : NULL;
}

/* The site of the embedding or head; NULL: it has no adapter. */
static const lt_lora_site *top_site(const lt_exec *r, lt_param_kind kind) {
    const lt_lora_site *s = r->lora != NULL ? lt_lora_top_of(r->lora->lora->sites, r->spec, kind)
                                            : NULL;
    return s != NULL && s->n_parts > 0 ? s : NULL;
}

/* A linear layer of the kind EMBED is a tied head. */
static const lt_lora_site *site_of(const lt_exec *r, lt_param_kind kind, int layer) {
    return r->lora == NULL ? NULL
           : kind == LT_PARAM_HEAD || kind == LT_PARAM_EMBED
               ? top_site(r, LT_PARAM_HEAD)
               : lt_lora_site_of(r->lora->lora->sites, kind, layer);
}

bool lt_lora_has(const lt_exec *r, lt_param_kind kind, int layer) {
    for (const lt_lora_run *run = r->lora; run != NULL; run = run->next) {
        if (lt_lora_site_of(run->lora->sites, kind, layer) != NULL) {
            return true;
        }
    }
    return false;
}

lt_tensor lt_lora_view(const lt_exec *r, const lt_param_buffer *b, int index) {
    const lt_param *p = &r->lora->lora->params->table.params[index];
    return lt_tensor_2d(lt_param_data(b, p), b->dtype, p->local_shape[0], p->local_shape[1]);
}

lt_tensor lt_lora_columns(const lt_tensor *y, const lt_lora_part *part) {
    return lt_tensor_cols(y, part->held.first_row, part->held.n_rows);
}

/* The first `rows` rows and the columns of a site, of u or du, contiguous. */
static lt_tensor scratch_of(const lt_exec *r, const lt_tensor *t, const lt_lora_site *s,
                            int64_t rows) {
    LT_ASSERT(t->data != NULL && rows <= t->shape[0]);
    return lt_tensor_2d(t->data, t->dtype, rows, s->n_parts * r->lora->lora->options.rank);
}

static lt_err times_scale(lt_exec *r, lt_tensor t) {
    const float scale = r->lora->lora->scale;
    return scale == 1.0f ? LT_OK : lt_exec_add(r, &(lt_add_args){.y = t, .a = t, .alpha = scale});
}

/* The products with A: one that all parts of a site share or, with dropout, one for each part,
 * which reads its own x. */
static int n_products(const lt_exec *r, const lt_lora_site *s) {
    return r->lora->drop.on ? s->n_parts : 1;
}

/* The columns of u or du, or the rows of A, of a product. */
static lt_tensor columns_of(const lt_exec *r, const lt_tensor *u, int product) {
    const int64_t rank = r->lora->lora->options.rank;
    return r->lora->drop.on ? lt_tensor_cols(u, product * rank, rank) : *u;
}

static lt_tensor rows_of(const lt_exec *r, const lt_tensor *a, int product) {
    const int64_t rank = r->lora->lora->options.rank;
    return r->lora->drop.on ? lt_tensor_rows(a, product * rank, rank) : *a;
}

/* Scratch with the shape of x. */
static lt_tensor like(const lt_exec *r, const lt_tensor *x) {
    const lt_tensor *t = &r->lora->x;
    LT_ASSERT(t->data != NULL && x->shape[0] <= t->shape[0] && x->shape[1] <= t->shape[1]);
    return lt_tensor_2d(t->data, t->dtype, x->shape[0], x->shape[1]);
}

/* The input of a product with A: x or, in scratch, x after dropout. */
static lt_err input_of(lt_exec *r, const lt_lora_site *s, lt_tensor x, int product,
                       lt_tensor *out) {
    *out = r->lora->drop.on ? like(r, &x) : x;
    return r->lora->drop.on ? lt_lora_drop(r, s, product, *out, x, false) : LT_OK;
}

/* u = s x A^T, with the columns of A from `first` on, as many as x has. */
static lt_err down_columns(lt_exec *r, const lt_lora_site *s, lt_tensor u, lt_tensor x,
                           int64_t first) {
    const lt_tensor a = lt_lora_view(r, &r->lora->lora->params->weights, s->a);
    for (int i = 0; i < n_products(r, s); i++) {
        lt_tensor input;
        const lt_tensor rows = rows_of(r, &a, i);
        LT_TRY(input_of(r, s, x, i, &input));
        LT_TRY(lt_exec_matmul(r, &(lt_matmul_args){.y = columns_of(r, &u, i),
                                                   .a = input,
                                                   .b = lt_tensor_cols(&rows, first, x.shape[1]),
                                                   .trans_b = true,
                                                   .fixed_order = r->fixed_order}));
    }
    return times_scale(r, u);
}

static lt_err down(lt_exec *r, const lt_lora_site *s, lt_tensor u, lt_tensor x) {
    return down_columns(r, s, u, x, 0);
}

/* y += u B^T, with u in scratch. */
static lt_err up(lt_exec *r, const lt_lora_site *s, lt_tensor y, lt_tensor u) {
    const int64_t rank = r->lora->lora->options.rank;
    const lt_tensor b = lt_lora_view(r, &r->lora->lora->params->weights, s->b);
    for (int i = 0; i < s->n_parts; i++) {
        const lt_lora_part *p = &s->parts[i];
        LT_TRY(lt_exec_matmul(
            r, &(lt_matmul_args){.y = lt_lora_columns(&y, p),
                                 .a = lt_tensor_cols(&u, i * rank, rank),
                                 .b = lt_tensor_rows(&b, p->held.b_row, p->held.n_rows),
                                 .trans_b = true,
                                 .accumulate = true,
                                 .fixed_order = r->fixed_order}));
    }
    return LT_OK;
}

lt_tensor lt_lora_early_bias(const lt_exec *r, lt_tensor bias, lt_param_kind kind, int layer) {
    return lt_lora_has_magnitudes(site_of(r, kind, layer)) ? (lt_tensor){0} : bias;
}

/* The rows of a matrix that the adapters of r->lora compute with. */
static lt_tensor own_rows(const lt_exec *r, lt_tensor x) {
    const lt_lora_run *run = r->lora;
    return run->divides ? lt_tensor_rows(&x, run->first_row, run->n_rows) : x;
}

/* The site of the matrix; NULL: it has no adapter, or the adapters of r->lora have no rows. */
static const lt_lora_site *site_with_rows(const lt_exec *r, lt_param_kind kind, int layer) {
    return r->lora->divides && r->lora->n_rows == 0 ? NULL : site_of(r, kind, layer);
}

static lt_err forward(lt_exec *r, lt_tensor y, lt_tensor x, lt_tensor bias, lt_param_kind kind,
                      int layer) {
    const lt_lora_site *s = site_with_rows(r, kind, layer);
    if (s == NULL) {
        return LT_OK;
    }
    y = own_rows(r, y);
    x = own_rows(r, x);
    const lt_tensor u = scratch_of(r, &r->lora->u, s, x.shape[0]);
    LT_TRY(down(r, s, u, x));
    LT_TRY(up(r, s, y, u));
    return lt_lora_has_magnitudes(s) ? lt_dora_scale(r, s, y, bias) : LT_OK;
}

bool lt_lora_joins(const lt_exec *r, lt_param_kind kind, int layer) {
    const lt_lora_site *s = site_of(r, kind, layer);
    return s != NULL && !lt_lora_has_magnitudes(s) && r->lora->next == NULL && !r->lora->divides &&
           !r->lora->drop.on;
}

lt_err lt_lora_product(lt_exec *r, const lt_matmul_args *base, lt_param_kind kind, int layer) {
    const lt_lora_site *s = site_of(r, kind, layer);
    const lt_tensor u = scratch_of(r, &r->lora->u, s, base->a.shape[0]);
    lt_matmul_lora_args call = {.base = *base,
                                .u = u,
                                .v = lt_lora_view(r, &r->lora->lora->params->weights, s->b),
                                .n_parts = s->n_parts};
    for (int i = 0; i < s->n_parts; i++) {
        const lt_lora_part *p = &s->parts[i];
        call.parts[i] = (lt_lora_add_part){p->held.first_row, p->held.b_row, p->held.n_rows};
    }
    LT_TRY(down(r, s, u, base->a));
    return lt_exec_matmul_lora(r, &call);
}

lt_err lt_lora_product_back(lt_exec *r, const lt_matmul_args *base, lt_param_kind kind, int layer) {
    const lt_lora_site *s = site_of(r, kind, layer);
    const lt_tensor dx = base->y;
    return lt_exec_matmul_lora(
        r, &(lt_matmul_lora_args){.base = *base,
                                  .u = scratch_of(r, &r->lora->du, s, dx.shape[0]),
                                  .v = lt_lora_view(r, &r->lora->lora->params->weights, s->a),
                                  .n_parts = 1,
                                  .parts = {{0, 0, dx.shape[1]}}});
}

lt_err lt_lora_forward(lt_exec *r, lt_tensor y, lt_tensor x, lt_tensor bias, lt_param_kind kind,
                       int layer) {
    lt_lora_run *const first = r->lora;
    lt_err err = LT_OK;
    for (; r->lora != NULL && err == LT_OK; r->lora = r->lora->next) {
        err = forward(r, y, x, bias, kind, layer);
    }
    r->lora = first;
    return err;
}

lt_err lt_lora_forward_columns(lt_exec *r, lt_tensor y, lt_tensor x, int64_t first,
                               lt_param_kind kind, int layer) {
    const lt_lora_site *s = site_of(r, kind, layer);
    if (s == NULL) {
        return LT_OK;
    }
    const lt_tensor u = scratch_of(r, &r->lora->u, s, x.shape[0]);
    LT_ASSERT(!lt_lora_has_magnitudes(s) && r->lora->next == NULL && !r->lora->divides);
    LT_TRY(down_columns(r, s, u, x, first));
    return up(r, s, y, u);
}

/* Compute the gradient of m; *dy becomes that of z, which is computed again. u: that of x. */
static lt_err magnitudes(lt_exec *r, const lt_lora_site *s, lt_tensor *dy, lt_tensor x, lt_tensor u,
                         lt_param_kind kind, int layer) {
    const lt_tensor z = lt_tensor_2d(r->lora->z.data, r->lora->z.dtype, dy->shape[0], dy->shape[1]);
    LT_TRY(lt_linear_base(r, z, x, (lt_tensor){0}, kind, layer));
    LT_TRY(up(r, s, z, u));
    return lt_dora_gradient(r, s, dy);
}

static lt_err gradients(lt_exec *r, lt_tensor *all_dy, lt_tensor x, lt_param_kind kind, int layer,
                        bool add) {
    const lt_lora_site *s = site_with_rows(r, kind, layer);
    if (s == NULL) {
        return LT_OK;
    }
    lt_tensor own_dy = own_rows(r, *all_dy), *dy = r->lora->divides ? &own_dy : all_dy;
    x = own_rows(r, x);
    const int64_t rank = r->lora->lora->options.rank;
    const lt_tensor u = scratch_of(r, &r->lora->u, s, x.shape[0]),
                    du = scratch_of(r, &r->lora->du, s, x.shape[0]),
                    b = lt_lora_view(r, &r->lora->lora->params->weights, s->b),
                    da = lt_lora_view(r, &r->lora->gradients, s->a),
                    db = lt_lora_view(r, &r->lora->gradients, s->b);
    LT_TRY(down(r, s, u, x));
    LT_TRY(lt_lora_has_magnitudes(s) ? magnitudes(r, s, dy, x, u, kind, layer) : LT_OK);
    for (int i = 0; i < s->n_parts; i++) {
        const lt_lora_part *p = &s->parts[i];
        const lt_tensor part = lt_lora_columns(dy, p);
        LT_TRY(lt_exec_matmul(
            r, &(lt_matmul_args){.y = lt_tensor_rows(&db, p->held.b_row, p->held.n_rows),
                                 .a = part,
                                 .b = lt_tensor_cols(&u, i * rank, rank),
                                 .trans_a = true,
                                 .accumulate = add}));
        LT_TRY(lt_exec_matmul(
            r, &(lt_matmul_args){.y = lt_tensor_cols(&du, i * rank, rank),
                                 .a = part,
                                 .b = lt_tensor_rows(&b, p->held.b_row, p->held.n_rows)}));
    }
    LT_TRY(times_scale(r, du));
    for (int i = 0; i < n_products(r, s); i++) {
        lt_tensor input;
        LT_TRY(input_of(r, s, x, i, &input));
        LT_TRY(lt_exec_matmul(r, &(lt_matmul_args){.y = rows_of(r, &da, i),
                                                   .a = columns_of(r, &du, i),
                                                   .b = input,
                                                   .trans_a = true,
                                                   .accumulate = add}));
    }
    return LT_OK;
}

lt_err lt_lora_gradients(lt_exec *r, lt_tensor *dy, lt_tensor x, lt_param_kind kind, int layer,
                         bool add) {
    lt_lora_run *const first = r->lora;
    lt_err err = LT_OK;
    for (; r->lora != NULL && err == LT_OK; r->lora = r->lora->next) {
        err = gradients(r, dy, x, kind, layer, add);
    }
    r->lora = first;
    return err;
}

static lt_err backward(lt_exec *r, lt_tensor dx, lt_param_kind kind, int layer) {
    const lt_lora_site *s = site_with_rows(r, kind, layer);
    if (s == NULL) {
        return LT_OK;
    }
    dx = own_rows(r, dx);
    const lt_tensor du = scratch_of(r, &r->lora->du, s, dx.shape[0]),
                    a = lt_lora_view(r, &r->lora->lora->params->weights, s->a);
    for (int i = 0; i < n_products(r, s); i++) {
        const lt_tensor to = r->lora->drop.on ? like(r, &dx) : dx;
        LT_TRY(lt_exec_matmul(r, &(lt_matmul_args){.y = to,
                                                   .a = columns_of(r, &du, i),
                                                   .b = rows_of(r, &a, i),
                                                   .accumulate = !r->lora->drop.on}));
        LT_TRY(r->lora->drop.on ? lt_lora_drop(r, s, i, dx, to, true) : LT_OK);
    }
    return LT_OK;
}

lt_err lt_lora_backward(lt_exec *r, lt_tensor dx, lt_param_kind kind, int layer) {
    lt_lora_run *const first = r->lora;
    lt_err err = LT_OK;
    for (; r->lora != NULL && err == LT_OK; r->lora = r->lora->next) {
        err = backward(r, dx, kind, layer);
    }
    r->lora = first;
    return err;
}

/* ---- Experts ---- */

/* A or B of the experts that are here, or their gradients. */
static lt_tensor of_experts(const lt_exec *r, const lt_param_buffer *b, int index) {
    const lt_param *p = &r->lora->lora->params->table.params[index];
    return lt_tensor_3d(lt_param_data(b, p), b->dtype, p->local_shape[0], p->local_shape[1],
                        p->local_shape[2]);
}

/* u = s x A^T with the A of each row's expert, from column `first` on, as many as x has. */
static lt_err experts_down(lt_exec *r, const lt_lora_site *s, lt_tensor u, lt_tensor x,
                           lt_tensor expert_start, int64_t first) {
    const lt_tensor a = of_experts(r, &r->lora->lora->params->weights, s->a);
    LT_TRY(lt_exec_matmul_grouped(
        r, &(lt_matmul_grouped_args){.y = u,
                                     .a = x,
                                     .b = lt_tensor_cols(&a, first, x.shape[1]),
                                     .expert_start = expert_start,
                                     .trans_b = true,
                                     .fixed_order = r->fixed_order}));
    return times_scale(r, u);
}

lt_err lt_lora_experts_forward(lt_exec *r, lt_tensor y, lt_tensor x, lt_tensor expert_start,
                               int64_t first, lt_param_kind kind, int layer) {
    const lt_lora_site *s = site_of(r, kind, layer);
    if (s == NULL) {
        return LT_OK;
    }
    const lt_tensor u = scratch_of(r, &r->lora->u, s, x.shape[0]);
    LT_TRY(experts_down(r, s, u, x, expert_start, first));
    return lt_exec_matmul_grouped(
        r, &(lt_matmul_grouped_args){.y = y,
                                     .a = u,
                                     .b = of_experts(r, &r->lora->lora->params->weights, s->b),
                                     .expert_start = expert_start,
                                     .trans_b = true,
                                     .accumulate = true,
                                     .fixed_order = r->fixed_order});
}

static lt_err zero(lt_exec *r, lt_tensor t) {
    return r->backend->zero(r->queue, t.data,
                            (size_t)lt_tensor_count(&t) * lt_dtype_bytes(t.dtype));
}

/* gradient += left^T right of each expert's rows; r->fresh: those of experts without rows are
 * zero. */
static lt_err experts_gradient(lt_exec *r, lt_tensor gradient, lt_tensor left, lt_tensor right,
                               lt_tensor expert_start) {
    LT_TRY(r->fresh ? zero(r, gradient) : LT_OK);
    return lt_exec_matmul_grouped(r, &(lt_matmul_grouped_args){.y = gradient,
                                                               .a = left,
                                                               .b = right,
                                                               .expert_start = expert_start,
                                                               .weights = true,
                                                               .accumulate = true});
}

lt_err lt_lora_experts_gradients(lt_exec *r, lt_tensor dy, lt_tensor x, lt_tensor expert_start,
                                 lt_param_kind kind, int layer) {
    const lt_lora_site *s = site_of(r, kind, layer);
    if (s == NULL) {
        return LT_OK;
    }
    const lt_tensor u = scratch_of(r, &r->lora->u, s, x.shape[0]),
                    du = scratch_of(r, &r->lora->du, s, x.shape[0]);
    LT_TRY(experts_down(r, s, u, x, expert_start, 0));
    LT_TRY(experts_gradient(r, of_experts(r, &r->lora->gradients, s->b), dy, u, expert_start));
    LT_TRY(lt_exec_matmul_grouped(
        r, &(lt_matmul_grouped_args){.y = du,
                                     .a = dy,
                                     .b = of_experts(r, &r->lora->lora->params->weights, s->b),
                                     .expert_start = expert_start}));
    LT_TRY(times_scale(r, du));
    return experts_gradient(r, of_experts(r, &r->lora->gradients, s->a), du, x, expert_start);
}

lt_err lt_lora_experts_backward(lt_exec *r, lt_tensor dx, lt_tensor expert_start,
                                lt_param_kind kind, int layer) {
    const lt_lora_site *s = site_of(r, kind, layer);
    if (s == NULL) {
        return LT_OK;
    }
    return lt_exec_matmul_grouped(
        r, &(lt_matmul_grouped_args){.y = dx,
                                     .a = scratch_of(r, &r->lora->du, s, dx.shape[0]),
                                     .b = of_experts(r, &r->lora->lora->params->weights, s->a),
                                     .expert_start = expert_start,
                                     .accumulate = true});
}

/* ---- The embedding and the head ---- */

bool lt_lora_has_embedding(const lt_exec *r) {
    return top_site(r, LT_PARAM_EMBED) != NULL;
}

/* u = scale A[ids]; rows of ids that another rank of tp holds are 0. */
static lt_err look_up(lt_exec *r, const lt_lora_site *s, lt_tensor u, lt_tensor ids, float scale) {
    return lt_exec_embed_fwd(
        r, &(lt_embed_args){.y = u,
                            .table = lt_lora_view(r, &r->lora->lora->params->weights, s->a),
                            .ids = ids,
                            .late = r->late,
                            .scale = scale,
                            .part = r->n_tp > 1,
                            .first = r->first_id});
}

lt_err lt_lora_embedding_fwd(lt_exec *r, lt_tensor y, lt_tensor ids, float scale) {
    const lt_lora_site *s = top_site(r, LT_PARAM_EMBED);
    if (s == NULL) {
        return LT_OK;
    }
    const lt_tensor u = scratch_of(r, &r->lora->u, s, y.shape[0]);
    LT_TRY(look_up(r, s, u, ids, scale * r->lora->lora->scale));
    return up(r, s, y, u);
}

lt_err lt_lora_embedding_bwd(lt_exec *r, lt_tensor dy, lt_tensor ids, float scale) {
    const lt_lora_site *s = top_site(r, LT_PARAM_EMBED);
    const lt_lora *l = r->lora->lora;
    const float factor = scale * l->scale;
    const lt_tensor u = scratch_of(r, &r->lora->u, s, dy.shape[0]),
                    du = scratch_of(r, &r->lora->du, s, dy.shape[0]),
                    da = lt_lora_view(r, &r->lora->gradients, s->a);
    LT_TRY(look_up(r, s, u, ids, factor));
    LT_TRY(lt_exec_matmul(r, &(lt_matmul_args){.y = lt_lora_view(r, &r->lora->gradients, s->b),
                                               .a = dy,
                                               .b = u,
                                               .trans_a = true,
                                               .accumulate = !r->fresh}));
    LT_TRY(lt_exec_matmul(
        r, &(lt_matmul_args){.y = du, .a = dy, .b = lt_lora_view(r, &l->params->weights, s->b)}));
    LT_TRY(r->fresh ? zero(r, da) : LT_OK);
    return lt_exec_embed_bwd(r, &(lt_embed_bwd_args){.dtable = da,
                                                     .dy = du,
                                                     .ids = ids,
                                                     .scale = factor,
                                                     .part = r->n_tp > 1,
                                                     .first = r->first_id});
}

lt_err lt_lora_zero_head(lt_exec *r) {
    const lt_lora_site *s = top_site(r, LT_PARAM_HEAD);
    if (s == NULL) {
        return LT_OK;
    }
    LT_TRY(zero(r, lt_lora_view(r, &r->lora->gradients, s->a)));
    return zero(r, lt_lora_view(r, &r->lora->gradients, s->b));
}
