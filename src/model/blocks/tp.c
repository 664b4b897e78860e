/* tp.c: see tp.h. */
#include "model/blocks/tp.h"

#include "model/blocks/expert.h"
#include "model/layer.h"

lt_tp_run lt_tp_run_of(int64_t rows, int n, int rank) {
    const int64_t each = (rows + n - 1) / n, first = each * rank, left = rows - first;
    return (lt_tp_run){each, first, left > each ? each : left > 0 ? left : 0};
}

/* With more than (n - 1)^2 rows every rank has at least one. */
static bool each_has_rows(int64_t batch, int64_t seq, int n) {
    for (int64_t b = 1; b <= batch && b * seq <= (int64_t)(n - 1) * (n - 1); b++) {
        if (lt_tp_run_of(b * seq, n, n - 1).count == 0) {
            return false;
        }
    }
    return true;
}

lt_err lt_tp_check_rows(int64_t batch, int64_t seq, int n) {
    int64_t fits = seq;
    while (!each_has_rows(batch, fits, n)) {
        fits++;
    }
    if (fits != seq) {
        LT_FAIL(
            LT_ERR_ARG,
            "pass: sequences of %lld tokens leave one of the %d ranks of tp without a row; %lld "
            "tokens do not",
            (long long)seq, n, (long long)fits);
    }
    return LT_OK;
}

/* ---- Joining ---- */

static lt_err check_held(const lt_exec *r, lt_param_kind kind, int layer, int64_t count) {
    const lt_param_table *t = &r->model->table;
    const int i = lt_param_index(t, kind, layer);
    if (i >= 0 && t->params[i].local_count > 0 && t->params[i].local_count != count) {
        LT_FAIL(LT_ERR_ARG, "%s: %lld elements are held here, and rank %d of %d of tp has %lld",
                t->params[i].name, (long long)t->params[i].local_count, r->tp_rank, r->n_tp,
                (long long)count);
    }
    return LT_OK;
}

static lt_err check_layer(const lt_exec *r, int layer) {
    const lt_layer_spec l = lt_exec_layer(r, layer);
    const int n_ep = r->experts != NULL ? r->experts->n : 1;
    const int64_t C = r->spec->width, E = l.n_experts > 0 ? l.n_experts / n_ep : 1;
    LT_TRY(check_held(r, LT_PARAM_NORM1, layer, C));
    LT_TRY(check_held(r, LT_PARAM_QKV, layer, lt_layer_qkv_cols(&l) * C));
    LT_TRY(check_held(r, LT_PARAM_ATTN_OUT, layer, lt_layer_att_cols(&l) * C));
    LT_TRY(check_held(r, LT_PARAM_UP, layer, E * lt_layer_up_rows(&l) * C));
    return check_held(r, LT_PARAM_DOWN, layer, E * l.ffn_width * C);
}

lt_err lt_tp_join(lt_exec *r, lt_group *tp) {
    const lt_param_table *t = &r->model->table;
    const lt_param *embed = &t->params[lt_param_index(t, LT_PARAM_EMBED, 0)];
    const int head = lt_param_index(t, LT_PARAM_HEAD, 0);
    const lt_param *words = embed->local_count > 0 || head < 0 ? embed : &t->params[head];
    if (tp != NULL && lt_group_size(tp) > 1) {
        r->tp = tp;
        r->n_tp = lt_group_size(tp);
        r->tp_rank = lt_group_rank(tp);
    }
    for (int layer = 0; layer < r->spec->n_layers; layer++) {
        LT_TRY(check_layer(r, layer));
    }
    if (words->local_count > 0) {
        r->first_id = lt_param_boxes(t, words)[0].first[0];
    }
    return LT_OK;
}

/* ---- Verbs ---- */

lt_tensor lt_tp_own_rows(const lt_exec *r, lt_tensor all) {
    if (r->n_tp == 1) {
        return all;
    }
    const lt_tp_run run = lt_tp_run_of(all.shape[0], r->n_tp, r->tp_rank);
    return lt_tensor_rows(&all, run.first, run.count);
}

/* timed: LT_TIMED_*; for a verb in two parts it covers the wait for its end. whole: elements of all
 * ranks' buffers. */
static lt_err run(lt_exec *r, int timed, int64_t whole, lt_exec_verb v) {
    const double sent = (double)(r->n_tp - 1) / r->n_tp * (double)whole;
    const lt_cost least = {.bytes = sent * (double)lt_dtype_bytes(v.dtype)};
    v.group = r->tp;
    if (v.part == LT_EXEC_BEGIN || v.part == LT_EXEC_EARLY) {
        return lt_exec_run_verb(r, &v);
    }
    LT_TRY(lt_exec_begin(r, timed, &least));
    LT_TRY(lt_exec_run_verb(r, &v));
    return lt_exec_end(r, timed);
}

static lt_err copy(const lt_exec *r, lt_tensor to, lt_tensor from) {
    LT_ASSERT(lt_tensor_count(&to) == lt_tensor_count(&from));
    return r->backend->copy(r->queue, to.data, from.data,
                            (size_t)lt_tensor_count(&to) * lt_dtype_bytes(to.dtype));
}

/* Elements of a whole run of rows. */
static int64_t run_count(const lt_exec *r, const lt_tensor *all) {
    LT_ASSERT(all->n_dims == 2 && all->stride[0] == all->shape[1]);
    return lt_tp_run_of(all->shape[0], r->n_tp, 0).each * all->shape[1];
}

static lt_err gather(lt_exec *r, lt_tensor all, lt_exec_verb_part part) {
    const int64_t count = run_count(r, &all);
    return run(r, LT_TIMED_GATHER, count * r->n_tp,
               (lt_exec_verb){.kind = LT_EXEC_GATHER,
                              .part = part,
                              .dst = all.data,
                              .src = lt_tp_own_rows(r, all).data,
                              .count = count,
                              .dtype = all.dtype});
}

/* Wait for the rows of one member of a gather that has begun; for the last member, wait for the end
 * of the gather. i: order of arrival, 1 to n - 1. */
static lt_err gather_next(lt_exec *r, lt_tensor all, int i, int member) {
    return i == r->n_tp - 1 ? gather(r, all, LT_EXEC_END)
                            : run(r, LT_TIMED_GATHER, 0,
                                  (lt_exec_verb){.kind = LT_EXEC_GATHER,
                                                 .part = LT_EXEC_MEMBER,
                                                 .dtype = all.dtype,
                                                 .member = member});
}

static lt_err scatter(lt_exec *r, lt_tensor all, lt_exec_verb_part part) {
    const int64_t count = run_count(r, &all);
    return run(r, LT_TIMED_SCATTER, count * r->n_tp,
               (lt_exec_verb){.kind = LT_EXEC_SCATTER,
                              .part = part,
                              .dst = lt_tp_own_rows(r, all).data,
                              .src = all.data,
                              .count = count,
                              .dtype = all.dtype});
}

/* The rows of a member, which a scatter of `all` will send to it, are complete. */
static lt_err send_early(lt_exec *r, lt_tensor all, int member) {
    const int64_t count = run_count(r, &all);
    return run(r, LT_TIMED_SCATTER, 0,
               (lt_exec_verb){.kind = LT_EXEC_SCATTER,
                              .part = LT_EXEC_EARLY,
                              .src = all.data,
                              .count = count,
                              .dtype = all.dtype,
                              .member = member});
}

static lt_err put_own(lt_exec *r, lt_tensor all, lt_tensor own) {
    const lt_tensor place = lt_tp_own_rows(r, all);
    return own.data == place.data ? LT_OK : copy(r, place, own);
}

lt_err lt_tp_gather(lt_exec *r, lt_tensor all, lt_tensor own) {
    if (r->n_tp == 1) {
        LT_ASSERT(own.data == all.data);
        return LT_OK;
    }
    LT_TRY(put_own(r, all, own));
    return gather(r, all, LT_EXEC_WHOLE);
}

lt_err lt_tp_scatter(lt_exec *r, lt_tensor own, lt_tensor all) {
    if (r->n_tp == 1) {
        LT_ASSERT(own.data == all.data);
        return LT_OK;
    }
    const lt_tensor place = lt_tp_own_rows(r, all);
    LT_TRY(scatter(r, all, LT_EXEC_WHOLE));
    return own.data == place.data ? LT_OK : copy(r, own, place);
}

/* ---- Linear layers beside a verb ---- */

static bool overlaps(const lt_exec *r, lt_param_kind kind, int layer) {
    return r->backend->moment_open != NULL && lt_linear_is_plain(r, kind, layer);
}

/* y = product of the rows of a run of x: a layer's forward product, or that of its input's gradient
 * (back). */
static lt_err product(lt_exec *r, lt_tensor y, lt_tensor x, lt_tp_run rows, lt_param_kind kind,
                      lt_param_kind bias, int layer, bool back) {
    const lt_tensor y_run = lt_tensor_rows(&y, rows.first, rows.count),
                    x_run = lt_tensor_rows(&x, rows.first, rows.count);
    return back ? lt_linear_bwd_input(r, y_run, x_run, kind, layer)
                : lt_linear_fwd(r, y_run, x_run, kind, bias, layer);
}

/* The weight's gradient from the rows of a run. more: it is added to that from other rows. */
static lt_err weight_gradient(lt_exec *r, lt_tensor dy, lt_tensor x, lt_tp_run rows,
                              lt_param_kind kind, lt_param_kind bias, int layer, bool more) {
    const lt_tensor none = {0};
    const bool fresh = r->fresh;
    lt_err err;
    r->fresh = fresh && !more;
    err = lt_linear_bwd(r, none, lt_tensor_rows(&dy, rows.first, rows.count),
                        lt_tensor_rows(&x, rows.first, rows.count), kind, bias, layer, false);
    r->fresh = fresh;
    return err;
}

/* The member whose rows a gather delivers as the i-th, from 1; 0: this rank. */
static int coming(const lt_exec *r, int i) {
    return (r->tp_rank - i + r->n_tp) % r->n_tp;
}

/* The rows of every other member are sent as soon as they are complete; this rank's are computed
 * last. */
static lt_err product_then_scatter(lt_exec *r, lt_tensor y, lt_tensor x, lt_param_kind kind,
                                   lt_param_kind bias, int layer, bool back) {
    for (int i = 1; i <= r->n_tp; i++) {
        const int member = (r->tp_rank + i) % r->n_tp;
        LT_TRY(
            product(r, y, x, lt_tp_run_of(y.shape[0], r->n_tp, member), kind, bias, layer, back));
        LT_TRY(member != r->tp_rank ? send_early(r, y, member) : LT_OK);
    }
    return LT_OK;
}

lt_err lt_tp_linear_fwd_gathered(lt_exec *r, lt_tensor y, lt_tensor all, lt_tensor own,
                                 lt_param_kind kind, lt_param_kind bias, int layer) {
    if (r->n_tp == 1 || !overlaps(r, kind, layer)) {
        LT_TRY(lt_tp_gather(r, all, own));
        return lt_linear_fwd(r, y, all, kind, bias, layer);
    }
    LT_TRY(put_own(r, all, own));
    LT_TRY(gather(r, all, LT_EXEC_BEGIN));
    for (int i = 0; i < r->n_tp; i++) {
        const lt_tp_run rows = lt_tp_run_of(all.shape[0], r->n_tp, coming(r, i));
        LT_TRY(i > 0 ? gather_next(r, all, i, coming(r, i)) : LT_OK);
        LT_TRY(product(r, y, all, rows, kind, bias, layer, false));
    }
    return LT_OK;
}

lt_err lt_tp_linear_fwd_scattered(lt_exec *r, lt_tensor y, lt_tensor x, lt_param_kind kind,
                                  lt_param_kind bias, int layer) {
    return r->n_tp > 1 && overlaps(r, kind, layer)
               ? product_then_scatter(r, y, x, kind, bias, layer, false)
               : lt_linear_fwd(r, y, x, kind, bias, layer);
}

/* A gradient of weights that is deferred is one product of all rows. */
lt_err lt_tp_linear_bwd_gathered(lt_exec *r, lt_tensor dx, lt_tensor all, lt_tensor own,
                                 lt_tensor x, lt_param_kind kind, lt_param_kind bias, int layer) {
    const bool in_place = dx.data == x.data, whole = r->deferred != NULL;
    const lt_tensor none = {0};
    if (r->n_tp == 1 || !overlaps(r, kind, layer)) {
        LT_TRY(lt_tp_gather(r, all, own));
        return lt_linear_bwd(r, dx, all, x, kind, bias, layer, false);
    }
    LT_TRY(put_own(r, all, own));
    LT_TRY(gather(r, all, LT_EXEC_BEGIN));
    for (int i = 0; i < r->n_tp; i++) {
        const lt_tp_run rows = lt_tp_run_of(all.shape[0], r->n_tp, coming(r, i));
        LT_TRY(i > 0 ? gather_next(r, all, i, coming(r, i)) : LT_OK);
        LT_TRY(in_place ? LT_OK : product(r, dx, all, rows, kind, bias, layer, true));
        LT_TRY(whole ? LT_OK : weight_gradient(r, all, x, rows, kind, bias, layer, i > 0));
    }
    LT_TRY(whole ? lt_linear_bwd(r, none, all, x, kind, bias, layer, false) : LT_OK);
    return in_place ? lt_linear_bwd_input(r, dx, all, kind, layer) : LT_OK;
}

lt_err lt_tp_linear_bwd_scattered(lt_exec *r, lt_tensor dx, lt_tensor dy, lt_tensor x,
                                  lt_param_kind kind, lt_param_kind bias, int layer) {
    const lt_tensor none = {0};
    if (r->n_tp == 1 || !overlaps(r, kind, layer)) {
        LT_TRY(lt_linear_bwd(r, dx, dy, x, kind, bias, layer, false));
        return lt_tp_scatter(r, lt_tp_own_rows(r, dx), dx);
    }
    LT_TRY(product_then_scatter(r, dx, dy, kind, bias, layer, true));
    LT_TRY(scatter(r, dx, LT_EXEC_BEGIN));
    LT_TRY(lt_linear_bwd(r, none, dy, x, kind, bias, layer, false));
    return scatter(r, dx, LT_EXEC_END);
}

/* ---- Sums ---- */

static lt_err reduce(lt_exec *r, lt_tensor x, lt_reduce op) {
    const int64_t count = lt_tensor_count(&x);
    return r->n_tp == 1 ? LT_OK
                        : run(r, LT_TIMED_SUM, 2 * count,
                              (lt_exec_verb){.kind = LT_EXEC_REDUCE,
                                             .dst = x.data,
                                             .src = x.data,
                                             .count = count,
                                             .dtype = x.dtype,
                                             .op = op});
}

lt_err lt_tp_sum(lt_exec *r, lt_tensor x) {
    return reduce(r, x, LT_REDUCE_SUM);
}

lt_err lt_tp_mean(lt_exec *r, lt_tensor x) {
    LT_TRY(lt_tp_sum(r, x));
    return lt_exec_add(r, &(lt_add_args){.y = x, .a = x, .alpha = 1.0f / (float)r->n_tp});
}

lt_err lt_tp_max(lt_exec *r, lt_tensor x) {
    return reduce(r, x, LT_REDUCE_MAX);
}

lt_err lt_tp_share(lt_exec *r, lt_tensor x) {
    if (r->n_tp == 1) {
        return LT_OK;
    }
    const int64_t count = lt_tensor_count(&x) / r->n_tp;
    const char *own = (const char *)x.data + (size_t)(count * r->tp_rank) * lt_dtype_bytes(x.dtype);
    LT_ASSERT(x.shape[0] == r->n_tp);
    return run(
        r, LT_TIMED_GATHER, count * r->n_tp,
        (lt_exec_verb){
            .kind = LT_EXEC_GATHER, .dst = x.data, .src = own, .count = count, .dtype = x.dtype});
}
