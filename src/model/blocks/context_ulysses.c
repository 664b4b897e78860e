/* context_ulysses.c: context parallelism by heads (context.h).
 *
 *     q, k, v: some tokens of all heads ─ all-to-all ─▶ all tokens of some heads ─▶ attention
 *         ─ all-to-all ─▶ out: some tokens of all heads
 *
 * Rank j of n works on heads [j H/n, (j + 1) H/n) of q and on the key heads that these read; with
 * fewer key heads than ranks, several ranks read the same one, and the gradients that they send
 * back are added up in the order of the ranks. The log-sum-exps stay on the rank that computed
 * them: (B, H/n, n T) instead of (B, H, T). The backward pass sends q, k, v and out again. */
#include "model/blocks/context.h"

#include "base/error.h"
#include "model/pass/exact.h"

/* Sizes of one layer: the columns of one rank's q, k and v side by side, and of its out. */
typedef struct {
    int64_t B, T, heads, kv_heads, d, v_d; /* heads, kv_heads: of one rank. */
    int64_t group;                         /* Ranks that read the same key head. */
    int64_t q, k, v, all, att;
} sizes;

static sizes sizes_of(const lt_exec *r, const lt_attention_args *a) {
    const int n = r->context->n;
    const int64_t G = a->k.shape[2];
    sizes s = {.B = r->batch, .T = r->seq, .d = a->q.shape[3], .v_d = a->v.shape[3]};
    s.heads = a->q.shape[2] / n;
    s.kv_heads = G < n ? 1 : G / n;
    s.group = G < n ? n / G : 1;
    s.q = s.heads * s.d;
    s.k = s.kv_heads * s.d;
    s.v = s.kv_heads * s.v_d;
    s.all = s.q + s.k + s.v;
    s.att = s.heads * s.v_d;
    return s;
}

/* The rows sent to or received from rank `rank`: (B, T, width). */
static lt_tensor block_of(const sizes *s, void *by_rank, lt_dtype dtype, int rank, int64_t width) {
    char *const data = (char *)by_rank +
                       (size_t)(rank * s->B * s->T * width) * lt_dtype_bytes(dtype);
    return lt_context_block(data, dtype, s->B, s->T, width);
}

/* The same number of elements to each. */
static lt_err exchange(lt_exec *r, void *dst, const void *src, int64_t count) {
    return lt_exec_run_verb(r, &(lt_exec_verb){.kind = LT_EXEC_EXCHANGE,
                                               .group = r->context->group,
                                               .dst = dst,
                                               .src = src,
                                               .count = count,
                                               .dtype = r->dtype});
}

/* Columns of rank `rank` in the rows of q, k or v: its heads, in all of this rank's rows. */
static lt_tensor heads_of(const lt_tensor *x, int64_t first_head, int64_t n_heads) {
    const lt_tensor rows = lt_context_rows(x);
    return lt_context_cols(&rows, first_head * x->shape[3], n_heads * x->shape[3]);
}

static int64_t first_kv(const sizes *s, int rank) {
    return rank / s->group * s->kv_heads;
}

/* All tokens of this rank's heads: (B, n T, q + k + v). */
static lt_err send_qkv(lt_exec *r, const lt_attention_args *a, const sizes *s, lt_tensor *whole) {
    lt_context *c = r->context;
    for (int j = 0; j < c->n; j++) {
        const lt_tensor to = block_of(s, c->sent, r->dtype, j, s->all);
        LT_TRY(lt_context_copy(r, lt_context_cols(&to, 0, s->q),
                               heads_of(&a->q, j * s->heads, s->heads)));
        LT_TRY(lt_context_copy(r, lt_context_cols(&to, s->q, s->k),
                               heads_of(&a->k, first_kv(s, j), s->kv_heads)));
        LT_TRY(lt_context_copy(r, lt_context_cols(&to, s->q + s->k, s->v),
                               heads_of(&a->v, first_kv(s, j), s->kv_heads)));
    }
    LT_TRY(exchange(r, c->received, c->sent, s->B * s->T * s->all));
    *whole = lt_context_block(c->whole, r->dtype, s->B, c->n * s->T, s->all);
    return lt_context_join(r, *whole, c->received, r->dtype);
}

/* The call on whole sequences; starts: before anything else uses c->received. */
static lt_attention_args whole_of(const lt_exec *r, const lt_attention_args *a, const sizes *s,
                                  const lt_tensor *whole, const lt_tensor *starts) {
    const lt_context *c = r->context;
    const lt_tensor out = lt_context_block(c->out, r->dtype, s->B, c->n * s->T, s->att);
    lt_attention_args w = *a;
    w.q = lt_context_heads(whole, 0, s->heads, s->d);
    w.k = lt_context_heads(whole, s->q, s->kv_heads, s->d);
    w.v = lt_context_heads(whole, s->q + s->k, s->kv_heads, s->v_d);
    w.out = lt_context_heads(&out, 0, s->heads, s->v_d);
    w.lse = lt_tensor_3d(a->lse.data, LT_F32, s->B, s->heads, c->n * s->T);
    w.doc_start = *starts;
    if (a->sinks.data != NULL) {
        w.sinks = lt_context_cols(&a->sinks, c->rank * s->heads, s->heads);
    }
    return w;
}

lt_err lt_context_ulysses_fwd(lt_exec *r, const lt_attention_args *a) {
    lt_context *c = r->context;
    const sizes s = sizes_of(r, a);
    lt_attention_args w;
    lt_tensor whole, starts, out;
    LT_TRY(lt_context_starts(r, &starts));
    LT_TRY(send_qkv(r, a, &s, &whole));
    w = whole_of(r, a, &s, &whole, &starts);
    LT_TRY(lt_exact_attention_fwd(r, &w));
    out = lt_context_rows(&w.out);
    LT_TRY(lt_context_part(r, c->sent, r->dtype, out));
    LT_TRY(exchange(r, c->received, c->sent, s.B * s.T * s.att));
    for (int j = 0; j < c->n; j++) {
        LT_TRY(lt_context_copy(r, heads_of(&a->out, j * s.heads, s.heads),
                               block_of(&s, c->received, r->dtype, j, s.att)));
    }
    return LT_OK;
}

/* out and dout of all tokens of this rank's heads. */
static lt_err send_out(lt_exec *r, const lt_attention_bwd_args *a, const sizes *s) {
    lt_context *c = r->context;
    for (int which = 0; which < 2; which++) {
        const lt_tensor *const x = which == 0 ? &a->fwd.out : &a->dout;
        void *const to = which == 0 ? c->out : c->dout;
        for (int j = 0; j < c->n; j++) {
            LT_TRY(lt_context_copy(r, block_of(s, c->sent, r->dtype, j, s->att),
                                   heads_of(x, j * s->heads, s->heads)));
        }
        LT_TRY(exchange(r, c->received, c->sent, s->B * s->T * s->att));
        LT_TRY(lt_context_join(r, lt_context_block(to, r->dtype, s->B, c->n * s->T, s->att),
                               c->received, r->dtype));
    }
    return LT_OK;
}

/* Take what the ranks send back for this rank's tokens. For a key head that several ranks read, the
 * first rank's part is stored and the others' are added. */
static lt_err take_gradients(lt_exec *r, const lt_attention_bwd_args *a, const sizes *s) {
    lt_context *c = r->context;
    for (int j = 0; j < c->n; j++) {
        const lt_tensor from = block_of(s, c->received, r->dtype, j, s->all);
        const bool adds = j % s->group != 0;
        const lt_tensor dk = heads_of(&a->dk, first_kv(s, j), s->kv_heads),
                        dv = heads_of(&a->dv, first_kv(s, j), s->kv_heads), none = {0};
        LT_TRY(lt_context_copy(r, heads_of(&a->dq, j * s->heads, s->heads),
                               lt_context_cols(&from, 0, s->q)));
        LT_TRY(lt_exec_add(r, &(lt_add_args){.y = dk,
                                             .a = lt_context_cols(&from, s->q, s->k),
                                             .b = adds ? dk : none,
                                             .alpha = 1.0f,
                                             .beta = 1.0f}));
        LT_TRY(lt_exec_add(r, &(lt_add_args){.y = dv,
                                             .a = lt_context_cols(&from, s->q + s->k, s->v),
                                             .b = adds ? dv : none,
                                             .alpha = 1.0f,
                                             .beta = 1.0f}));
    }
    return LT_OK;
}

lt_err lt_context_ulysses_bwd(lt_exec *r, const lt_attention_bwd_args *a) {
    lt_context *c = r->context;
    const sizes s = sizes_of(r, &a->fwd);
    lt_attention_bwd_args w = *a;
    lt_tensor whole, dwhole, dout, starts;
    LT_TRY(lt_context_starts(r, &starts));
    LT_TRY(send_qkv(r, &a->fwd, &s, &whole));
    LT_TRY(send_out(r, a, &s));
    dwhole = lt_context_block(c->dwhole, r->dtype, s.B, c->n * s.T, s.all);
    dout = lt_context_block(c->dout, r->dtype, s.B, c->n * s.T, s.att);
    w.fwd = whole_of(r, &a->fwd, &s, &whole, &starts);
    w.dq = lt_context_heads(&dwhole, 0, s.heads, s.d);
    w.dk = lt_context_heads(&dwhole, s.q, s.kv_heads, s.d);
    w.dv = lt_context_heads(&dwhole, s.q + s.k, s.kv_heads, s.v_d);
    w.dout = lt_context_heads(&dout, 0, s.heads, s.v_d);
    w.delta = lt_tensor_3d(a->delta.data, LT_F32, s.B, s.heads, c->n * s.T);
    if (a->dsinks.data != NULL) {
        w.dsinks = lt_context_cols(&a->dsinks, c->rank * s.heads, s.heads);
    }
    LT_TRY(lt_exec_attention_bwd(r, &w));
    LT_TRY(lt_context_part(r, c->sent, r->dtype, dwhole));
    LT_TRY(exchange(r, c->received, c->sent, s.B * s.T * s.all));
    return take_gradients(r, a, &s);
}
