/* context_ring.c: context parallelism by a ring (context.h).
 *
 * In step i of n, rank r attends to the keys of rank s = r - i (mod n), while these are sent on to
 * rank r + 1. Which of them are visible depends on the positions of the pieces of queries and keys:
 *
 *     s == r    pieces r, 2n-1-r against themselves: causal, as if they were neighbours
 *     s < r     all queries see piece s, none sees piece 2n-1-s
 *     s > r     queries of piece 2n-1-r see both pieces, those of piece r none
 *
 * so every step but the first costs half of the whole square on every rank. Windows and documents
 * become a first visible key a query, counted in the keys of the step. The backward pass sends the
 * keys round again; dk and dv travel with them in F32, one rank behind, and arrive at their own
 * rank in the last step. */
#include "model/blocks/context.h"

#include "base/error.h"
#include "model/pass/exact.h"

/* Keys and values of one rank: columns of k, then of v. */
typedef struct {
    int64_t B, T, heads, d, v_d, k, v, all;
} sizes;

static sizes sizes_of(const lt_exec *r, const lt_attention_args *a) {
    sizes s = {.B = r->batch,
               .T = r->seq,
               .heads = a->k.shape[2],
               .d = a->k.shape[3],
               .v_d = a->v.shape[3]};
    s.k = s.heads * s.d;
    s.v = s.heads * s.v_d;
    s.all = s.k + s.v;
    return s;
}

/* Which queries attend to which keys in the step with the keys of rank `source`. */
typedef struct {
    int64_t q_first, q_count, k_count; /* Tokens of this rank's queries, of the source's keys. */
    bool causal;
} pair;

static pair pair_of(const lt_context *c, const sizes *s, int source) {
    const int64_t half = s->T / 2;
    return source == c->rank  ? (pair){0, s->T, s->T, true}
           : source < c->rank ? (pair){0, s->T, half, false}
                              : (pair){half, half, s->T, false};
}

static int source_of(const lt_context *c, int step) {
    return (c->rank - step + c->n) % c->n;
}

/* First visible key of each of the step's queries among the keys of `source`; absent if neither
 * windows nor documents hide any. */
static lt_err starts_of(lt_exec *r, const lt_attention_args *a, const sizes *s, const pair *p,
                        int source, lt_tensor *out) {
    const lt_context *c = r->context;
    lt_attention_starts_args x = {.y = lt_tensor_2d(c->starts, LT_I32, s->B, p->q_count),
                                  .window = a->window,
                                  .piece = s->T / 2,
                                  .q_first = p->q_first};
    *out = (lt_tensor){0};
    if (a->doc_start.data == NULL && a->window == 0) {
        return LT_OK;
    }
    if (a->doc_start.data != NULL) {
        x.doc_start = lt_context_cols(&a->doc_start, p->q_first, p->q_count);
    }
    for (int half = 0; half < 2; half++) {
        x.q_piece[half] = lt_context_piece(c->n, c->rank, half);
        x.k_piece[half] = lt_context_piece(c->n, source, half);
    }
    *out = x.y;
    return lt_exec_attention_starts(r, &x);
}

/* The step's call: queries, keys and masks. out and lse are this rank's whole rows, or parts. */
static lt_err step_args(lt_exec *r, lt_attention_args *out, const lt_attention_args *a,
                        const sizes *s, const pair *p, int source, const lt_tensor *kv) {
    const lt_tensor keys = lt_context_tokens(kv, 0, p->k_count);
    lt_attention_args x = *a;
    LT_TRY(starts_of(r, a, s, p, source, &x.doc_start));
    x.q = lt_context_tokens(&a->q, p->q_first, p->q_count);
    x.k = lt_context_heads(&keys, 0, s->heads, s->d);
    x.v = lt_context_heads(&keys, s->k, s->heads, s->v_d);
    x.sinks = (lt_tensor){0};
    x.window = 0;
    x.causal = p->causal;
    *out = x;
    return LT_OK;
}

/* k and v of this rank into `to` (B, T, k + v). */
static lt_err pack(lt_exec *r, const lt_attention_args *a, const sizes *s, void *to) {
    const lt_tensor rows = lt_context_block(to, r->dtype, s->B, s->T, s->all);
    LT_TRY(lt_context_copy(r, lt_context_cols(&rows, 0, s->k), lt_context_rows(&a->k)));
    return lt_context_copy(r, lt_context_cols(&rows, s->k, s->v), lt_context_rows(&a->v));
}

/* Send `from` to the next rank and receive `to` from the previous one; the queue waits with both
 * handles. */
typedef struct {
    lt_comm_work sent, received;
} exchange;

static lt_err pass_on(lt_exec *r, void *to, const void *from, int64_t count, lt_dtype dtype,
                      exchange *x) {
    const lt_context *c = r->context;
    const int next = (c->rank + 1) % c->n, before = (c->rank + c->n - 1) % c->n;
    lt_exec_verb_begin(r, c->group);
    LT_TRY(lt_recv(c->group, before, to, count, dtype, &x->received));
    return lt_send(c->group, next, from, count, dtype, &x->sent);
}

static lt_err wait_for(lt_exec *r, const exchange *x) {
    LT_TRY(lt_exec_verb_end(r, r->context->group, x->sent));
    return lt_exec_verb_end(r, r->context->group, x->received);
}

static void swap(void **a, void **b) {
    void *const x = *a;
    *a = *b;
    *b = x;
}

/* ---- Forward ---- */

static lt_err merge(lt_exec *r, const lt_tensor *acc, const lt_tensor *lse, const pair *p,
                    const lt_attention_args *part, bool first, const lt_tensor *sinks) {
    return lt_exec_attention_merge(
        r, &(lt_attention_merge_args){.out = lt_context_tokens(acc, p->q_first, p->q_count),
                                      .lse = lt_context_cols(lse, p->q_first, p->q_count),
                                      .part = part->out,
                                      .part_lse = part->lse,
                                      .sinks = *sinks,
                                      .first = first});
}

lt_err lt_context_ring_fwd(lt_exec *r, const lt_attention_args *a) {
    lt_context *c = r->context;
    const sizes s = sizes_of(r, a);
    const int64_t count = s.B * s.T * s.all, H = a->q.shape[2];
    void *here = c->mine, *coming = c->received;
    const lt_tensor acc = lt_tensor_4d(c->acc, LT_F32, s.B, s.T, H, s.v_d);
    const lt_tensor part = lt_tensor_4d(c->out, r->dtype, s.B, s.T, H, s.v_d), none = {0};

    LT_TRY(pack(r, a, &s, here));
    for (int step = 0; step < c->n; step++) {
        const int source = source_of(c, step);
        const pair p = pair_of(c, &s, source);
        const lt_tensor kv = lt_context_block(here, r->dtype, s.B, s.T, s.all);
        lt_attention_args x;
        exchange way = {0};
        LT_TRY(step_args(r, &x, a, &s, &p, source, &kv));
        x.out = lt_context_tokens(&part, p.q_first, p.q_count);
        x.lse = lt_context_lines(&a->lse, c->lse, p.q_count);
        if (step < c->n - 1) {
            LT_TRY(pass_on(r, coming, here, count, r->dtype, &way));
        }
        LT_TRY(lt_exec_attention_fwd(r, &x));
        LT_TRY(r->exact == NULL
                   ? LT_OK
                   : lt_exact_write(r, lt_context_heads(&kv, 0, s.heads, a->k.shape[3]),
                                    lt_context_heads(&kv, s.k, s.heads, s.v_d), source));
        /* A sink is one more logit of every query: it counts in the step that all queries see. */
        LT_TRY(merge(r, &acc, &a->lse, &p, &x, step == 0, step == 0 ? &a->sinks : &none));
        LT_TRY(step < c->n - 1 ? wait_for(r, &way) : LT_OK);
        swap(&here, &coming);
    }
    /* In an exact pass the engine's result replaces the merged one. */
    return r->exact != NULL ? lt_exact_attend(r, a) : lt_context_copy(r, a->out, acc);
}

/* ---- Backward ---- */

/* Gradients of the step: dq is added to its sum, dk and dv to the tensors that are passed on. */
static lt_err step_bwd(lt_exec *r, const lt_attention_bwd_args *a, const sizes *s, int source,
                       const lt_tensor *kv, float *travel, bool first) {
    lt_context *c = r->context;
    const pair p = pair_of(c, s, source);
    const int64_t q_cols = a->dq.shape[2] * a->dq.shape[3];
    char *const after_q = (char *)c->part +
                          (size_t)(s->B * s->T * q_cols) * lt_dtype_bytes(r->dtype);
    const lt_tensor dq = lt_context_block(c->part, r->dtype, s->B, s->T, q_cols),
                    dkv = lt_context_block(after_q, r->dtype, s->B, s->T, s->all),
                    sum = lt_context_block(c->dq_acc, LT_F32, s->B, s->T, q_cols),
                    moving = lt_context_block(travel, LT_F32, s->B, s->T, s->all), none = {0};
    const lt_tensor dq_part = lt_context_tokens(&dq, p.q_first, p.q_count),
                    dq_sum = lt_context_tokens(&sum, p.q_first, p.q_count),
                    dkv_part = lt_context_tokens(&dkv, 0, p.k_count),
                    dkv_sum = lt_context_tokens(&moving, 0, p.k_count);
    lt_attention_bwd_args x = *a;

    LT_TRY(step_args(r, &x.fwd, &a->fwd, s, &p, source, kv));
    x.fwd.out = lt_context_tokens(&a->fwd.out, p.q_first, p.q_count);
    x.fwd.lse = lt_context_lines(&a->fwd.lse, c->lse, p.q_count);
    LT_TRY(lt_context_copy(r, x.fwd.lse, lt_context_cols(&a->fwd.lse, p.q_first, p.q_count)));
    x.dq = lt_context_heads(&dq_part, 0, a->dq.shape[2], a->dq.shape[3]);
    x.dk = lt_context_heads(&dkv_part, 0, s->heads, s->d);
    x.dv = lt_context_heads(&dkv_part, s->k, s->heads, s->v_d);
    x.dout = lt_context_tokens(&a->dout, p.q_first, p.q_count);
    x.delta = lt_context_lines(&a->delta, a->delta.data, p.q_count);
    if (first) { /* Once, by the call that sees all queries. */
        x.fwd.sinks = a->fwd.sinks;
    } else {
        x.dsinks = none;
    }
    LT_TRY(lt_exec_attention_bwd(r, &x));
    LT_TRY(lt_exec_add(
        r,
        &(lt_add_args){
            .y = dq_sum, .a = dq_part, .b = first ? none : dq_sum, .alpha = 1.0f, .beta = 1.0f}));
    return lt_exec_add(
        r,
        &(lt_add_args){
            .y = dkv_sum, .a = dkv_part, .b = first ? none : dkv_sum, .alpha = 1.0f, .beta = 1.0f});
}

lt_err lt_context_ring_bwd(lt_exec *r, const lt_attention_bwd_args *a) {
    lt_context *c = r->context;
    const sizes s = sizes_of(r, &a->fwd);
    const int64_t count = s.B * s.T * s.all, q_cols = a->dq.shape[2] * a->dq.shape[3];
    void *here = c->mine, *coming = c->received, *mine = c->travel[0], *theirs = c->travel[1];
    lt_tensor home;

    LT_TRY(pack(r, &a->fwd, &s, here));
    for (int step = 0; step < c->n; step++) {
        const lt_tensor kv = lt_context_block(here, r->dtype, s.B, s.T, s.all);
        exchange keys = {0}, gradients = {0};
        if (step < c->n - 1) {
            LT_TRY(pass_on(r, coming, here, count, r->dtype, &keys));
        }
        LT_TRY(step_bwd(r, a, &s, source_of(c, step), &kv, mine, step == 0));
        /* To the rank that has these keys next; in the last step this is their owner. */
        LT_TRY(pass_on(r, theirs, mine, count, LT_F32, &gradients));
        LT_TRY(step < c->n - 1 ? wait_for(r, &keys) : LT_OK);
        LT_TRY(wait_for(r, &gradients));
        swap(&here, &coming);
        swap(&mine, &theirs);
    }
    home = lt_context_block(mine, LT_F32, s.B, s.T, s.all);
    LT_TRY(lt_context_copy(r, lt_context_rows(&a->dq),
                           lt_context_block(c->dq_acc, LT_F32, s.B, s.T, q_cols)));
    LT_TRY(lt_context_copy(r, lt_context_rows(&a->dk), lt_context_cols(&home, 0, s.k)));
    return lt_context_copy(r, lt_context_rows(&a->dv), lt_context_cols(&home, s.k, s.v));
}
