/* context_gather.c: context parallelism with gathered keys and values (context.h).
 *
 *     forward     k, v here ─ all-gather ─▶ k, v of whole sequences;  for each of the two pieces of
 *                 queries: attention to the keys before the piece's end
 *     backward    the same gather; dk, dv of both pieces, added up in F32 ─ reduce-scatter ─▶ dk,
 *                 dv of the keys that are held here
 *
 * A piece is the attention op with fewer queries than keys, whose last key is the last query's own:
 * masks by window and by document need no change. */
#include "model/blocks/context.h"

#include "base/error.h"

/* Keys and values of one layer: columns of k, then of v. */
typedef struct {
    int64_t B, T, heads, d, k, v, all; /* k, v: columns; all: k + v. */
} sizes;

static sizes sizes_of(const lt_exec *r, const lt_attention_args *a) {
    sizes s = {.B = r->batch, .T = r->seq, .heads = a->k.shape[2], .d = a->k.shape[3]};
    s.k = s.heads * s.d;
    s.v = a->v.shape[2] * a->v.shape[3];
    s.all = s.k + s.v;
    return s;
}

static lt_tensor keys_before(const sizes *s, const lt_tensor *whole, int64_t end) {
    const lt_tensor rows = lt_context_tokens(whole, 0, end);
    return lt_context_heads(&rows, 0, s->heads, s->d);
}

static lt_tensor values_before(const sizes *s, const lt_tensor *whole, int64_t end) {
    const lt_tensor rows = lt_context_tokens(whole, 0, end);
    return lt_context_heads(&rows, s->k, s->heads, s->v / s->heads);
}

static lt_err gather(lt_exec *r, const lt_attention_args *a, const sizes *s, lt_tensor *whole) {
    lt_context *c = r->context;
    const lt_tensor mine = lt_context_block(c->mine, r->dtype, s->B, s->T, s->all);
    const lt_exec_verb all = {.kind = LT_EXEC_GATHER,
                              .group = c->group,
                              .dst = c->received,
                              .src = c->mine,
                              .count = s->B * s->T * s->all,
                              .dtype = r->dtype};
    LT_TRY(lt_context_copy(r, lt_context_cols(&mine, 0, s->k), lt_context_rows(&a->k)));
    LT_TRY(lt_context_copy(r, lt_context_cols(&mine, s->k, s->v), lt_context_rows(&a->v)));
    LT_TRY(lt_exec_run_verb(r, &all));
    *whole = lt_context_block(c->whole, r->dtype, s->B, c->n * s->T, s->all);
    return lt_context_join(r, *whole, c->received, r->dtype);
}

/* Lines (B, H, T) of this rank, the piece's. */
static lt_tensor lines(const lt_tensor *x, int64_t first, int64_t n) {
    return lt_context_cols(x, first, n);
}

/* The call for piece `half`: its queries, and the keys before its end. Its lse has no gaps: it is
 * to be copied from or to a's. */
static lt_err piece_of(lt_exec *r, lt_attention_args *out, const lt_attention_args *a,
                       const sizes *s, const lt_tensor *whole, int half) {
    const lt_context *c = r->context;
    const int64_t piece = s->T / 2, first = half * piece;
    const int64_t end = (lt_context_piece(c->n, c->rank, half) + 1) * piece;
    lt_attention_args p = *a;
    p.q = lt_context_tokens(&a->q, first, piece);
    p.out = lt_context_tokens(&a->out, first, piece);
    p.lse = lt_context_lines(&a->lse, c->lse, piece);
    p.k = keys_before(s, whole, end);
    p.v = values_before(s, whole, end);
    LT_TRY(lt_context_some_starts(r, &p.doc_start, c->starts, &a->doc_start, first, piece));
    *out = p;
    return LT_OK;
}

lt_err lt_context_gather_fwd(lt_exec *r, const lt_attention_args *a) {
    const sizes s = sizes_of(r, a);
    lt_tensor whole;
    LT_TRY(gather(r, a, &s, &whole));
    for (int half = 0; half < 2; half++) {
        lt_attention_args p;
        LT_TRY(piece_of(r, &p, a, &s, &whole, half));
        LT_TRY(lt_exec_attention_fwd(r, &p));
        LT_TRY(lt_context_copy(r, lines(&a->lse, half * s.T / 2, s.T / 2), p.lse));
    }
    return LT_OK;
}

/* What both pieces give to the keys of whole sequences, in F32 and by rank: into c->received. The
 * first piece's keys are the first of the second's. */
static lt_err add_pieces(lt_exec *r, const sizes *s, const lt_tensor *first,
                         const lt_tensor *second) {
    const lt_context *c = r->context;
    const int64_t piece = s->T / 2;
    const int ends[2] = {lt_context_piece(c->n, c->rank, 0), lt_context_piece(c->n, c->rank, 1)};
    float *const by_rank = c->received;
    for (int i = 0; i < 2 * c->n; i++) {
        const int rank = i < c->n ? i : 2 * c->n - 1 - i;
        const lt_tensor rows = lt_context_block(by_rank + rank * s->B * s->T * s->all, LT_F32, s->B,
                                                s->T, s->all);
        const lt_tensor y = lt_context_tokens(&rows, i < c->n ? 0 : piece, piece);
        const bool both = i <= ends[0], any = i <= ends[1];
        const lt_tensor *const from = any ? second : NULL;
        lt_add_args add = {.y = y, .alpha = any ? 1.0f : 0.0f, .beta = 1.0f};
        add.a = from != NULL ? lt_context_tokens(from, i * piece, piece) : y;
        if (both) {
            add.b = lt_context_tokens(first, i * piece, piece);
        }
        if (any) {
            LT_TRY(lt_exec_add(r, &add));
            continue;
        }
        for (int64_t b = 0; b < s->B; b++) { /* Keys that no query here sees. */
            float *const at = (float *)y.data + b * y.stride[0];
            LT_TRY(r->backend->zero(r->queue, at, (size_t)(piece * s->all) * sizeof(float)));
        }
    }
    return LT_OK;
}

lt_err lt_context_gather_bwd(lt_exec *r, const lt_attention_bwd_args *a) {
    lt_context *c = r->context;
    const sizes s = sizes_of(r, &a->fwd);
    const int64_t piece = s.T / 2, count = s.B * s.T * s.all;
    const lt_tensor parts[2] = {lt_context_block(c->part, r->dtype, s.B, c->n * s.T, s.all),
                                lt_context_block(c->dwhole, r->dtype, s.B, c->n * s.T, s.all)};
    const lt_tensor mine = lt_context_block(c->mine, LT_F32, s.B, s.T, s.all);
    const lt_exec_verb sum = {.kind = LT_EXEC_SCATTER,
                              .group = c->group,
                              .dst = c->mine,
                              .src = c->received,
                              .count = count,
                              .dtype = LT_F32};
    lt_tensor whole;
    LT_TRY(gather(r, &a->fwd, &s, &whole));
    for (int half = 0; half < 2; half++) {
        const int64_t end = (lt_context_piece(c->n, c->rank, half) + 1) * piece;
        lt_attention_bwd_args p = *a;
        LT_TRY(piece_of(r, &p.fwd, &a->fwd, &s, &whole, half));
        LT_TRY(lt_context_copy(r, p.fwd.lse, lines(&a->fwd.lse, half * piece, piece)));
        p.dq = lt_context_tokens(&a->dq, half * piece, piece);
        p.dout = lt_context_tokens(&a->dout, half * piece, piece);
        p.delta = lt_context_lines(&a->delta, a->delta.data, piece);
        p.dk = keys_before(&s, &parts[half], end);
        p.dv = values_before(&s, &parts[half], end);
        LT_TRY(lt_exec_attention_bwd(r, &p));
    }
    LT_TRY(add_pieces(r, &s, &parts[0], &parts[1]));
    LT_TRY(lt_exec_run_verb(r, &sum));
    LT_TRY(lt_context_copy(r, lt_context_rows(&a->dk), lt_context_cols(&mine, 0, s.k)));
    return lt_context_copy(r, lt_context_rows(&a->dv), lt_context_cols(&mine, s.k, s.v));
}
