/* paged_forward_out.c: the results of a call: picks and logits of the wanted rows, some at a time;
 * hidden states. See paged_forward.h.
 *
 *     h_out of the wanted rows ─head─▶ logits, where the model is ─choose─▶ 12 or 172
 *     B per row
 *                                                                              └─▶ host
 *                                        └─────── rows that are asked for ─▶ host, softcapped
 *
 * at_hand: the rows whose logits exist; picks and logits of the same rows need the head only
 * once. For some rows, the options of their picks are known only after the picks of the previous
 * call have arrived. Their picks in the call itself are idle, and are made later (choose_late),
 * at the same positions. */
#include <math.h>
#include <string.h>

#include "model/infer/paged_forward_impl.h"

static lt_paged_forward_picks pick_at(const lt_paged_forward *f, int32_t *results) {
    const int64_t n = f->o.out_rows;
    return (lt_paged_forward_picks){results, results + n, results + 3 * n,
                                    (const float *)(results + 2 * n),
                                    (const float *)(results + (3 + LT_CHOOSE_TOP) * n)};
}

void lt_paged_forward_put_picks(lt_paged_forward *f, int64_t *at, int64_t n, int64_t all,
                                const int32_t *rows, const bool *choose, int32_t idle,
                                const double *how) {
    const lt_paged_forward_side *side = lt_paged_forward_side_of_call(f);
    int32_t *host = side->host_meta + *at;
    f->choose_rows = lt_tensor_1d(side->meta + *at, LT_I32, all);
    for (int64_t i = 0; i < all; i++) {
        host[i] = i >= n || (choose != NULL && !choose[i]) ? idle
                  : rows != NULL                           ? rows[i]
                                                           : (int32_t)(i % f->o.out_rows);
        f->any_top |= host[i] >= 0 && how[i * LT_CHOOSE_HOW_COUNT + LT_CHOOSE_N_TOP] > 0.0;
    }
    *at += all + (*at + all) % 2;
    f->how = lt_tensor_2d(side->meta + *at, LT_F64, all, LT_CHOOSE_HOW_COUNT);
    if (n > 0) {
        memcpy(side->host_meta + *at, how, (size_t)(n * LT_CHOOSE_HOW_COUNT) * sizeof *how);
    }
    *at += all * 2 * LT_CHOOSE_HOW_COUNT;
}

lt_err lt_paged_forward_head(lt_paged_forward *f, int64_t first, int64_t n) {
    lt_exec *r = &f->exec;
    return lt_linear_fwd(r, lt_tensor_2d(f->logits, LT_F32, n, lt_model_spec_outputs(r->spec)),
                         lt_tensor_rows(&f->h_out, first, n), lt_param_head(r->spec),
                         lt_param_head_bias(r->spec), 0);
}

lt_err lt_paged_forward_choose(lt_paged_forward *f, int64_t first, int64_t n, int64_t n_logits) {
    lt_exec *r = &f->exec;
    const int64_t all = f->o.out_rows;
    int32_t *to = lt_paged_forward_side_of_call(f)->chosen;
    return lt_exec_choose(
        r,
        &(lt_choose_args){
            .id = lt_tensor_1d(to, LT_I32, n),
            .rank = lt_tensor_1d(to + all, LT_I32, n),
            .logprob = lt_tensor_1d(to + 2 * all, LT_F32, n),
            .top_id = lt_tensor_2d(to + 3 * all, LT_I32, n, LT_CHOOSE_TOP),
            .top_logprob = lt_tensor_2d(to + (3 + LT_CHOOSE_TOP) * all, LT_F32, n, LT_CHOOSE_TOP),
            .logits = lt_tensor_2d(f->logits, LT_F32, n_logits, r->spec->vocab_size),
            .rows = lt_tensor_rows(&f->choose_rows, first, n),
            .how = lt_tensor_rows(&f->how, first, n),
            .penalties = f->penalty_states,
            .masks = f->masks,
            .late = r->late,
            .softcap = r->spec->final_softcap});
}

/* Make sure that the logits of the wanted rows [first, first + n) are on the device. */
static lt_err need_logits(lt_paged_forward *f, int64_t first, int64_t n) {
    LT_ASSERT(n > 0 && n <= f->o.out_rows && first + n <= f->o.max_out &&
              first % f->o.out_rows == 0);
    if (f->at_hand != first) {
        LT_TRY(lt_paged_forward_head(f, first, n));
        f->at_hand = first;
    }
    return LT_OK;
}

/* Make the picks of wanted rows [first, first + n) on the device. */
static lt_err need_picks(lt_paged_forward *f, int64_t first, int64_t n) {
    LT_TRY(need_logits(f, first, n));
    if (f->chosen_first != first) {
        LT_TRY(lt_paged_forward_choose(f, first, n, n));
        f->chosen_first = first;
    }
    return LT_OK;
}

static lt_err download_picks(lt_paged_forward *f, lt_queue *q) {
    const lt_paged_forward_side *side = lt_paged_forward_side_of_call(f);
    return f->exec.backend->download(q, side->host_chosen, side->chosen,
                                     lt_paged_forward_chosen_bytes(&f->o, f->any_top));
}

static lt_err fetch_picks(lt_paged_forward *f, lt_paged_forward_picks *out) {
    *out = pick_at(f, lt_paged_forward_side_of_call(f)->host_chosen);
    LT_TRY(download_picks(f, f->exec.queue));
    return lt_paged_forward_sync(f);
}

lt_err lt_paged_forward_read_picks(lt_paged_forward *f, int64_t first, int64_t n,
                                   lt_paged_forward_picks *out) {
    LT_TRY(need_picks(f, first, n));
    return fetch_picks(f, out);
}

lt_err lt_paged_forward_send_picks(lt_paged_forward *f, int64_t n) {
    const lt_backend *b = f->exec.backend;
    LT_TRY(n > 0 ? need_picks(f, 0, n) : LT_OK);
    LT_TRY(b->order(f->down, f->exec.queue));
    LT_TRY(n > 0 ? download_picks(f, f->down) : LT_OK);
    LT_TRY(b->mark != NULL ? b->mark(f->down, f->turn) : LT_OK);
    f->sides[f->turn].sent = true;
    return LT_OK;
}

lt_err lt_paged_forward_take_picks(lt_paged_forward *f, lt_paged_forward_picks *out) {
    const lt_backend *b = f->exec.backend;
    const int first = f->sides[1 - f->turn].sent ? 1 - f->turn : f->turn;
    lt_paged_forward_side *side = &f->sides[first];
    LT_ASSERT(side->sent);
    *out = pick_at(f, side->host_chosen);
    side->sent = false;
    LT_TRY(b->reach != NULL ? b->reach(f->down, first) : LT_OK);
    side->busy = false;
    f->n_waited = side->call > f->n_waited ? side->call : f->n_waited;
    return LT_OK;
}

uint32_t *lt_paged_forward_masks(lt_paged_forward *f) {
    return f->host_masks;
}

/* Keep the rows of turn 0 in the picks that start at word `at` of the metadata, and append those of
 * each further turn at *end. Returns the number of turns. */
static int64_t put_turns(lt_paged_forward *f, int64_t at, int64_t *end, int64_t n,
                         const int32_t *turn) {
    int32_t *const host = lt_paged_forward_side_of_call(f)->host_meta, *const rows = host + at;
    int64_t n_turns = 1;
    for (int64_t i = 0; turn != NULL && i < n; i++) {
        n_turns = rows[i] >= 0 && turn[i] >= n_turns ? turn[i] + 1 : n_turns;
    }
    LT_ASSERT(n_turns <= f->o.few_rows);
    for (int64_t t = n_turns - 1; t >= 0 && n_turns > 1; t--) {
        int32_t *to = t > 0 ? host + *end + (t - 1) * n : rows;
        for (int64_t i = 0; i < n; i++) {
            to[i] = turn[i] == t ? rows[i] : LT_CHOOSE_SKIP;
        }
    }
    *end += (n_turns - 1) * n;
    return n_turns;
}

/* Make n further picks from the logits that exist. Their rows, options and masks are uploaded
 * while the call may still run. */
static lt_err choose_beside(lt_paged_forward *f, int64_t n, const int32_t *rows, const bool *choose,
                            const double *how, const int32_t *turn, int64_t n_masks) {
    const lt_exec *r = &f->exec;
    const lt_paged_forward_side *side = lt_paged_forward_side_of_call(f);
    const int64_t from = lt_paged_forward_call_words(f);
    const lt_tensor own_rows = f->choose_rows, own_how = f->how;
    int64_t at = from, more, n_turns;
    lt_err err;
    LT_ASSERT(n > 0 && n <= f->o.out_rows && n_masks <= f->o.out_rows && f->at_hand >= 0);
    lt_paged_forward_put_picks(f, &at, n, n, rows, choose, LT_CHOOSE_SKIP, how);
    more = at;
    n_turns = put_turns(f, from, &at, n, turn);
    err = r->backend->upload(f->up, side->meta + from, side->host_meta + from,
                             (size_t)(at - from) * sizeof *side->meta);
    if (err == LT_OK && n_masks > 0) {
        err = r->backend->upload(f->up, f->masks.data, f->host_masks,
                                 (size_t)(n_masks * f->masks.shape[1]) * sizeof *f->host_masks);
    }
    err = err == LT_OK ? r->backend->order(r->queue, f->up) : err;
    err = err == LT_OK ? lt_paged_forward_choose(f, 0, n, f->o.out_rows) : err;
    for (int64_t t = 1; err == LT_OK && t < n_turns; t++) {
        f->choose_rows = lt_tensor_1d(side->meta + more + (t - 1) * n, LT_I32, n);
        err = lt_paged_forward_choose(f, 0, n, f->o.out_rows);
    }
    f->choose_rows = own_rows; /* Those of a later chunk are still needed. */
    f->how = own_how;
    return err;
}

lt_err lt_paged_forward_choose_late(lt_paged_forward *f, int64_t first, int64_t n,
                                    const bool *choose, const double *how, const int32_t *turn,
                                    int64_t n_masks) {
    LT_TRY(need_picks(f, first, n));
    return choose_beside(f, n, NULL, choose, how, turn, n_masks);
}

lt_err lt_paged_forward_choose_more(lt_paged_forward *f, int64_t n, const int32_t *rows,
                                    const double *how, int64_t n_masks,
                                    lt_paged_forward_picks *out) {
    const lt_err err = choose_beside(f, n, rows, NULL, how, NULL, n_masks);
    f->chosen_first = -1;
    return err == LT_OK ? fetch_picks(f, out) : err;
}

/* Copy rows [from, to) of the logits at hand to the host. */
static lt_err fetch_rows(lt_paged_forward *f, int64_t from, int64_t to) {
    const lt_exec *r = &f->exec;
    const int64_t V = lt_model_spec_outputs(r->spec);
    return from == to
               ? LT_OK
               : r->backend->download(r->queue, f->host_logits + from * V, f->logits + from * V,
                                      (size_t)((to - from) * V) * sizeof *f->logits);
}

lt_err lt_paged_forward_logits(lt_paged_forward *f, int64_t first, int64_t n, const bool *wanted,
                               float *const **logits) {
    lt_exec *r = &f->exec;
    const int64_t V = lt_model_spec_outputs(r->spec);
    const float cap = r->spec->n_scores == 0 ? r->spec->final_softcap : 0.0f;
    int64_t from = 0; /* The first of consecutive rows that are copied together. */

    LT_TRY(need_logits(f, first, n));
    LT_TRY(r->backend->host_memory ? LT_OK : lt_paged_forward_host_logits(f));
    for (int64_t i = 0; i < n; i++) {
        const bool mine = wanted == NULL || wanted[i];
        f->host_rows[i] = !mine ? NULL
                                : (r->backend->host_memory ? f->logits : f->host_logits) + i * V;
        if (!mine || i + 1 == n) {
            LT_TRY(r->backend->host_memory ? LT_OK : fetch_rows(f, from, mine ? n : i));
            from = i + 1;
        }
    }
    LT_TRY(lt_paged_forward_sync(f));
    for (int64_t i = 0; cap > 0 && i < n; i++) {
        for (int64_t v = 0; f->host_rows[i] != NULL && v < V; v++) {
            f->host_rows[i][v] = cap * tanhf(f->host_rows[i][v] / cap);
        }
    }
    if (cap > 0 && r->backend->host_memory) { /* They are no longer the output of the head. */
        f->at_hand = f->chosen_first = -1;
    }
    *logits = f->host_rows;
    return LT_OK;
}

lt_err lt_paged_forward_hidden(lt_paged_forward *f, int64_t first, int64_t n, float *hidden) {
    lt_exec *r = &f->exec;
    const int64_t C = r->spec->width;
    const float by = lt_model_logit_divisor(r->spec);
    for (int64_t i = 0; i < n; i += f->o.out_rows) {
        const int64_t count = n - i < f->o.out_rows ? n - i : f->o.out_rows;
        const lt_tensor y = lt_tensor_rows(&f->out_f32, 0, count);
        LT_TRY(lt_exec_cast(
            r, &(lt_cast_args){.y = y, .x = lt_tensor_rows(&f->h_out, first + i, count)}));
        if (by != 1.0f) { /* Undo the head's divisor. */
            LT_TRY(lt_exec_add(r, &(lt_add_args){.y = y, .a = y, .alpha = by}));
        }
        LT_TRY(r->backend->download(r->queue, hidden + i * C, f->out_f32.data,
                                    (size_t)(count * C) * sizeof *hidden));
        LT_TRY(lt_paged_forward_sync(f));
    }
    return LT_OK;
}
