/* context_gather.c: context parallelism with gathered keys and values (context.h).
 *
 * Rank r holds pieces r and 2n - 1 - r. The first halves of all ranks are pieces 0 to n - 1, in the
 * order of the ranks; the second halves are the others. Queries of a first half see no key of a
 * second half, so halves are transferred one by one, each while attention to the other is computed:
 *
 *     forward    gather of first halves
 *                gather of second halves    │ attention of the first half's queries
 *                                             attention of the second half's queries
 *     backward   gather of both halves      │ gradient of attention's output, before the call
 *                                             attention of the second half's queries
 *                sums of keys' gradients,   │ attention of the first half's queries
 *                second halves
 *                sums, first halves
 *
 * Gradients are summed in F32: first those of the two halves here, then those of all ranks.
 *
 * A half is one call of the attention op with fewer queries than keys. The last key is the last
 * query's own, so masks by window and by document need no change. */
#include "model/blocks/context.h"

#include "base/error.h"
#include "model/pass/exact.h"

/* Keys and values of one layer: columns of k, then of v. A half has `piece` tokens of each row. */
typedef struct {
    int64_t B, piece, heads, d, k, v, all; /* k, v: columns; all: k + v. */
    int64_t count;                         /* Elements of a half. */
} sizes;

static sizes sizes_of(const lt_exec *r, const lt_attention_args *a) {
    sizes s = {.B = r->batch, .piece = r->seq / 2, .heads = a->k.shape[2], .d = a->k.shape[3]};
    s.k = s.heads * s.d;
    s.v = a->v.shape[2] * a->v.shape[3];
    s.all = s.k + s.v;
    s.count = s.B * s.piece * s.all;
    return s;
}

/* Block i of memory that holds the halves one after another. */
static lt_tensor block(const sizes *s, void *memory, lt_dtype dtype, int64_t i) {
    char *const at = (char *)memory + (size_t)(i * s->count) * lt_dtype_bytes(dtype);
    return lt_context_block(at, dtype, s->B, s->piece, s->all);
}

static lt_tensor whole_rows(const lt_exec *r, const sizes *s, void *memory) {
    return lt_context_block(memory, r->dtype, s->B, 2 * r->context->n * s->piece, s->all);
}

/* The tokens of a piece of whole rows. */
static lt_tensor piece_at(const sizes *s, const lt_tensor *whole, int64_t piece) {
    return lt_context_tokens(whole, piece * s->piece, s->piece);
}

static lt_tensor keys_before(const sizes *s, const lt_tensor *whole, int64_t end) {
    const lt_tensor rows = lt_context_tokens(whole, 0, end);
    return lt_context_heads(&rows, 0, s->heads, s->d);
}

static lt_tensor values_before(const sizes *s, const lt_tensor *whole, int64_t end) {
    const lt_tensor rows = lt_context_tokens(whole, 0, end);
    return lt_context_heads(&rows, s->k, s->heads, s->v / s->heads);
}

/* ---- Transfers ---- */

/* Whether computation can continue during a verb. */
static bool has_queues(const lt_exec *r) {
    return r->backend->moment_open != NULL;
}

static lt_err begin(lt_exec *r, lt_exec_verb v) {
    v.part = has_queues(r) ? LT_EXEC_BEGIN : LT_EXEC_WHOLE;
    return lt_exec_run_verb(r, &v);
}

static lt_err end(lt_exec *r, lt_exec_verb v) {
    v.part = LT_EXEC_END;
    return has_queues(r) ? lt_exec_run_verb(r, &v) : LT_OK;
}

/* Copy this rank's keys and values of a half, so that they are adjacent. */
static lt_err take_half(lt_exec *r, const lt_attention_args *a, const sizes *s, int half) {
    const lt_tensor mine = block(s, r->context->mine, r->dtype, half), k = lt_context_rows(&a->k),
                    v = lt_context_rows(&a->v);
    LT_TRY(lt_context_copy(r, lt_context_cols(&mine, 0, s->k), piece_at(s, &k, half)));
    return lt_context_copy(r, lt_context_cols(&mine, s->k, s->v), piece_at(s, &v, half));
}

static lt_exec_verb gather_half(const lt_exec *r, const sizes *s, int half) {
    const lt_context *c = r->context;
    return (lt_exec_verb){.kind = LT_EXEC_GATHER,
                          .group = c->group,
                          .dst = block(s, c->received, r->dtype, half * c->n).data,
                          .src = block(s, c->mine, r->dtype, half).data,
                          .count = s->count,
                          .dtype = r->dtype};
}

static lt_exec_verb gather_both(const lt_exec *r, const sizes *s) {
    const lt_context *c = r->context;
    return (lt_exec_verb){.kind = LT_EXEC_GATHER,
                          .group = c->group,
                          .dst = c->received,
                          .src = c->mine,
                          .count = 2 * s->count,
                          .dtype = r->dtype};
}

/* Copy one half of every rank's keys and values to its place in whole rows. In the received memory,
 * the half of rank i is block first + i step. */
static lt_err join_half(lt_exec *r, const sizes *s, int half, int first, int step) {
    const lt_context *c = r->context;
    const lt_tensor whole = whole_rows(r, s, c->whole);
    for (int i = 0; i < c->n; i++) {
        LT_TRY(lt_context_copy(r, piece_at(s, &whole, lt_context_piece(c->n, i, half)),
                               block(s, c->received, r->dtype, first + i * step)));
    }
    return LT_OK;
}

static lt_exec_verb sum_half(const lt_exec *r, const sizes *s, int half) {
    const lt_context *c = r->context;
    return (lt_exec_verb){.kind = LT_EXEC_SCATTER,
                          .group = c->group,
                          .dst = block(s, c->mine, LT_F32, half).data,
                          .src = block(s, c->received, LT_F32, half * c->n).data,
                          .count = s->count,
                          .dtype = LT_F32};
}

/* ---- Attention of a half ---- */

/* Lines (B, H, T) of this rank, those of a half. */
static lt_tensor lines(const sizes *s, const lt_tensor *x, int half) {
    return lt_context_cols(x, half * s->piece, s->piece);
}

/* Keys that the queries of a half may see. */
static int64_t end_of(const lt_context *c, const sizes *s, int half) {
    return (lt_context_piece(c->n, c->rank, half) + 1) * s->piece;
}

/* The call for a half: its queries, and the keys before its end. Its lse has no gaps, so it must be
 * copied from or to that of `a`. */
static lt_err half_of(lt_exec *r, lt_attention_args *out, const lt_attention_args *a,
                      const sizes *s, int half) {
    const lt_context *c = r->context;
    const lt_tensor whole = whole_rows(r, s, c->whole);
    lt_attention_args p = *a;
    p.q = piece_at(s, &a->q, half);
    p.out = piece_at(s, &a->out, half);
    p.lse = lt_context_lines(&a->lse, c->lse, s->piece);
    p.k = keys_before(s, &whole, end_of(c, s, half));
    p.v = values_before(s, &whole, end_of(c, s, half));
    LT_TRY(lt_context_some_starts(r, &p.doc_start, c->starts, &a->doc_start, half * s->piece,
                                  s->piece));
    *out = p;
    return LT_OK;
}

static lt_err half_fwd(lt_exec *r, const lt_attention_args *a, const sizes *s, int half) {
    lt_attention_args p;
    LT_TRY(half_of(r, &p, a, s, half));
    LT_TRY(lt_exec_attention_fwd(r, &p));
    return lt_context_copy(r, lines(s, &a->lse, half), p.lse);
}

/* In an exact pass the result is replaced by the engine's. */
static lt_err attend_again(lt_exec *r, const lt_attention_args *a, const sizes *s) {
    const lt_tensor whole = whole_rows(r, s, r->context->whole);
    const int64_t end = 2 * r->context->n * s->piece;
    LT_TRY(lt_exact_write(r, keys_before(s, &whole, end), values_before(s, &whole, end), 0));
    return lt_exact_attend(r, a);
}

lt_err lt_context_gather_fwd(lt_exec *r, const lt_attention_args *a) {
    const sizes s = sizes_of(r, a);
    const lt_exec_verb first = gather_half(r, &s, 0), second = gather_half(r, &s, 1);
    LT_TRY(take_half(r, a, &s, 0));
    LT_TRY(take_half(r, a, &s, 1));
    LT_TRY(lt_exec_run_verb(r, &first));
    LT_TRY(begin(r, second));
    LT_TRY(join_half(r, &s, 0, 0, 1));
    LT_TRY(half_fwd(r, a, &s, 0));
    LT_TRY(end(r, second));
    LT_TRY(join_half(r, &s, 1, r->context->n, 1));
    LT_TRY(half_fwd(r, a, &s, 1));
    return r->exact != NULL ? attend_again(r, a, &s) : LT_OK;
}

/* part: gradients of whole rows' keys and values from the queries of this half. */
static lt_err half_bwd(lt_exec *r, const lt_attention_bwd_args *a, const sizes *s, int half,
                       const lt_tensor *part) {
    const int64_t end_key = end_of(r->context, s, half);
    lt_attention_bwd_args p = *a;
    LT_TRY(half_of(r, &p.fwd, &a->fwd, s, half));
    LT_TRY(lt_context_copy(r, p.fwd.lse, lines(s, &a->fwd.lse, half)));
    p.dq = piece_at(s, &a->dq, half);
    p.dout = piece_at(s, &a->dout, half);
    p.delta = lt_context_lines(&a->delta, a->delta.data, s->piece);
    p.dk = keys_before(s, part, end_key);
    p.dv = values_before(s, part, end_key);
    return lt_exec_attention_bwd(r, &p);
}

/* Gradients of the keys of the second halves from this rank's queries, in F32 and by rank. Only its
 * second half sees these keys. */
static lt_err add_second(lt_exec *r, const sizes *s, const lt_tensor *second) {
    const lt_context *c = r->context;
    for (int i = 0; i < c->n; i++) {
        const lt_tensor y = block(s, c->received, LT_F32, c->n + i);
        if (i >= c->rank) {
            const lt_tensor from = piece_at(s, second, lt_context_piece(c->n, i, 1));
            LT_TRY(lt_exec_add(r, &(lt_add_args){.y = y, .a = from, .alpha = 1.0f}));
        } else { /* Keys after those of this rank. */
            LT_TRY(r->backend->zero(r->queue, y.data, (size_t)s->count * sizeof(float)));
        }
    }
    return LT_OK;
}

/* The same for the first halves. The second half sees all of them, the first half those up to its
 * own. */
static lt_err add_first(lt_exec *r, const sizes *s, const lt_tensor *first,
                        const lt_tensor *second) {
    const lt_context *c = r->context;
    for (int i = 0; i < c->n; i++) {
        lt_add_args add = {.y = block(s, c->received, LT_F32, i),
                           .a = piece_at(s, second, i),
                           .alpha = 1.0f,
                           .beta = 1.0f};
        if (i <= c->rank) {
            add.b = piece_at(s, first, i);
        }
        LT_TRY(lt_exec_add(r, &add));
    }
    return LT_OK;
}

/* Write the sums of a half to dk and dv. */
static lt_err put_half(lt_exec *r, const lt_attention_bwd_args *a, const sizes *s, int half) {
    const lt_tensor sum = block(s, r->context->mine, LT_F32, half), dk = lt_context_rows(&a->dk),
                    dv = lt_context_rows(&a->dv);
    LT_TRY(lt_context_copy(r, piece_at(s, &dk, half), lt_context_cols(&sum, 0, s->k)));
    return lt_context_copy(r, piece_at(s, &dv, half), lt_context_cols(&sum, s->k, s->v));
}

lt_err lt_context_gather_begin(lt_exec *r, const lt_attention_args *a) {
    const sizes s = sizes_of(r, a);
    LT_TRY(take_half(r, a, &s, 0));
    LT_TRY(take_half(r, a, &s, 1));
    r->context->begun = true;
    return begin(r, gather_both(r, &s));
}

lt_err lt_context_gather_bwd(lt_exec *r, const lt_attention_bwd_args *a) {
    lt_context *c = r->context;
    const sizes s = sizes_of(r, &a->fwd);
    const lt_tensor first = whole_rows(r, &s, c->part), second = whole_rows(r, &s, c->dwhole);
    const lt_exec_verb sum_first = sum_half(r, &s, 0), sum_second = sum_half(r, &s, 1);
    LT_TRY(c->begun ? LT_OK : lt_context_gather_begin(r, &a->fwd));
    c->begun = false;
    LT_TRY(end(r, gather_both(r, &s)));
    LT_TRY(join_half(r, &s, 0, 0, 2));
    LT_TRY(join_half(r, &s, 1, 1, 2));
    LT_TRY(half_bwd(r, a, &s, 1, &second));
    LT_TRY(add_second(r, &s, &second));
    LT_TRY(begin(r, sum_second));
    LT_TRY(half_bwd(r, a, &s, 0, &first));
    LT_TRY(add_first(r, &s, &first, &second));
    LT_TRY(end(r, sum_second));
    LT_TRY(lt_exec_run_verb(r, &sum_first));
    LT_TRY(put_half(r, a, &s, 0));
    return put_half(r, a, &s, 1);
}
