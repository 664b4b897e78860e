/* shared.c: see shared.h. */
#include "model/pass/shared.h"

#include <string.h>

#include "base/error.h"
#include "model/blocks/context.h"
#include "model/layer.h"
#include "model/pass/exact.h"

/* Gathering costs about a fiftieth of a pass, so a sixteenth of the rows must be saved. */
#define LEAST_SAVED 16

/* ---- Tables ---- */

lt_shared_tables lt_shared_tables_in(int32_t *memory, int64_t n_tokens, int64_t rows) {
    lt_shared_tables t = {.spread = memory};
    t.first = t.spread + n_tokens;
    t.tokens = t.first + n_tokens;
    t.start = t.tokens + n_tokens;
    t.place = t.start + rows + 1;
    return t;
}

/* Positions of the first label of a row that counts, and after the last one. */
static void labels_of(const lt_pass_batch *b, int64_t row, int64_t *first, int64_t *end) {
    const int32_t *labels = b->labels + row * b->seq;
    *first = *end = 0;
    for (int64_t t = b->seq; t > 0 && *end == 0; t--) {
        *end = labels[t - 1] >= 0 ? t : 0;
    }
    while (*first < *end && labels[*first] < 0) {
        ++*first;
    }
}

/* Number of tokens, at most `most`, at the beginning of a row that equal those of the previous
 * row. */
static int64_t common(const lt_pass_batch *b, int64_t row, int64_t most) {
    const int32_t *own = b->tokens + row * b->seq, *before = own - b->seq;
    int64_t n = 0;
    while (n < most && own[n] == before[n]) {
        n++;
    }
    return n;
}

/* Set the row of each token, and the first token of each row; returns the number of rows. */
static int64_t number_rows(const lt_shared_tables *t, const lt_pass_batch *b) {
    int64_t n = 0, end_before = 0;
    for (int64_t row = 0; row < b->batch; row++) {
        int32_t *spread = t->spread + row * b->seq, *first = t->first + row * b->seq;
        int64_t first_label, end, shared;
        labels_of(b, row, &first_label, &end);
        shared = common(b, row, first_label < end_before ? first_label : end_before);
        for (int64_t i = 0; i < b->seq; i++) {
            const bool is_new = i >= shared && i < end;
            spread[i] = is_new ? (int32_t)n++ : i < shared ? spread[i - b->seq] : -1;
            first[i] = is_new ? spread[i] : -1;
        }
        end_before = end;
    }
    return n;
}

/* List the tokens of each row, by a counting sort. */
static void list_tokens(const lt_shared_tables *t, int64_t n_tokens, int64_t rows) {
    memset(t->start, 0, (size_t)(rows + 1) * sizeof *t->start);
    memset(t->place, 0xFF, (size_t)rows * sizeof *t->place);
    for (int64_t i = 0; i < n_tokens; i++) {
        if (t->spread[i] >= 0) {
            t->start[t->spread[i] + 1]++;
        }
        if (t->first[i] >= 0) {
            t->place[t->first[i]] = (int32_t)i;
        }
    }
    for (int64_t row = 0; row < rows; row++) {
        t->start[row + 1] += t->start[row];
    }
    for (int64_t i = 0; i < n_tokens; i++) { /* start[row] moves to the end of the row; */
        if (t->spread[i] >= 0) {
            t->tokens[t->start[t->spread[i]]++] = (int32_t)i;
        }
    }
    for (int64_t row = rows; row > 0; row--) { /* then each is set back to the beginning. */
        t->start[row] = t->start[row - 1];
    }
    t->start[0] = 0;
}

int64_t lt_shared_plan(int32_t *memory, const lt_pass_batch *b, int64_t step) {
    const int64_t n_tokens = b->batch * b->seq;
    lt_shared_tables t = lt_shared_tables_in(memory, n_tokens, 0);
    const int64_t rows = (number_rows(&t, b) + step - 1) / step * step;
    if (rows == 0 || rows > n_tokens - n_tokens / LEAST_SAVED) {
        return 0;
    }
    t = lt_shared_tables_in(memory, n_tokens, rows);
    list_tokens(&t, n_tokens, rows);
    return rows;
}

/* ---- Attention ---- */

bool lt_shared_possible(const lt_pass_options *o, const lt_model_spec *s) {
    const bool whole = o->first_layer == 0 && (o->end_layer == 0 || o->end_layer == s->n_layers);
    return o->shares && whole && s->n_experts == 0 && lt_pass_whole_seq(o) == o->seq;
}

void lt_shared_carve(lt_shared *x, const lt_model_spec *s, lt_dtype dtype, const lt_pass_options *o,
                     lt_arena *a) {
    const size_t tokens = (size_t)(o->batch * o->seq) * lt_dtype_bytes(dtype);
    int64_t qkv = 0, att = 0;
    for (int64_t i = 0; i < s->n_layers; i++) {
        const lt_layer_spec l = lt_layer_part(s, i, lt_pass_n_tp(o));
        qkv = lt_layer_qkv_cols(&l) > qkv ? lt_layer_qkv_cols(&l) : qkv;
        att = lt_layer_att_cols(&l) > att ? lt_layer_att_cols(&l) : att;
    }
    x->qkv = lt_arena_take(a, tokens * (size_t)qkv, LT_ARENA_ALIGN);
    x->out = lt_arena_take(a, tokens * (size_t)att, LT_ARENA_ALIGN);
    if (o->train) {
        x->dqkv = lt_arena_take(a, tokens * (size_t)qkv, LT_ARENA_ALIGN);
        x->dout = lt_arena_take(a, tokens * (size_t)att, LT_ARENA_ALIGN);
    }
}

/* A table on the device. */
static lt_tensor ids(int32_t *table, int64_t n) {
    return lt_tensor_1d(table, LT_I32, n);
}

/* Heads (1, R, H, D) or (B, T, H, D) as rows of H D columns. */
static lt_tensor rows_of(const lt_tensor *x) {
    const lt_tensor r = lt_context_rows(x);
    lt_tensor rows = lt_tensor_2d(r.data, r.dtype, r.shape[0] * r.shape[1], r.shape[2]);
    rows.stride[0] = r.stride[1];
    return rows;
}

/* The pieces, as wide as possible, in which q, k and v are gathered, which may be adjacent in the
 * rows of one tensor; returns their number. */
static int pieces_of(lt_tensor out[3], const lt_tensor *q, const lt_tensor *k, const lt_tensor *v) {
    const lt_tensor all[3] = {rows_of(q), rows_of(k), rows_of(v)};
    int n = 0;
    for (int i = 0; i < 3; i++) {
        lt_tensor *last = n > 0 ? &out[n - 1] : NULL;
        const size_t bytes = lt_dtype_bytes(all[i].dtype);
        if (last != NULL && last->stride[0] == all[i].stride[0] &&
            (char *)last->data + (size_t)last->shape[1] * bytes == all[i].data) {
            last->shape[1] += all[i].shape[1];
        } else {
            out[n++] = all[i];
        }
    }
    return n;
}

static lt_err gather(lt_exec *r, lt_tensor y, lt_tensor x, lt_tensor index, lt_tensor start) {
    return lt_exec_gather_rows(
        r, &(lt_gather_rows_args){.y = y, .x = x, .index = index, .start = start});
}

/* Rows of `memory` in which q, k and v of a token are adjacent, and views of their heads. */
typedef struct {
    lt_tensor rows, q, k, v;
} side_by_side;

static side_by_side beside(const lt_shared *x, void *memory, const lt_attention_args *a) {
    const int64_t d = a->q.shape[3], v_d = a->v.shape[3];
    const int64_t q = a->q.shape[2] * d, k = a->k.shape[2] * d, v = a->v.shape[2] * v_d;
    const lt_tensor all = lt_context_block(memory, a->q.dtype, x->batch, x->seq, q + k + v);
    return (side_by_side){
        .rows = lt_tensor_2d(memory, a->q.dtype, x->batch * x->seq, q + k + v),
        .q = lt_context_heads(&all, 0, a->q.shape[2], d),
        .k = lt_context_heads(&all, q, a->k.shape[2], d),
        .v = lt_context_heads(&all, q + k, a->v.shape[2], v_d),
    };
}

static lt_tensor heads_in(const lt_shared *x, void *memory, const lt_tensor *like) {
    const int64_t heads = like->shape[2], d = like->shape[3];
    const lt_tensor all = lt_context_block(memory, like->dtype, x->batch, x->seq, heads * d);
    return lt_context_heads(&all, 0, heads, d);
}

/* Make the call for the batch as it was given, with q, k and v of its tokens. */
static lt_err call_of(lt_exec *r, const lt_attention_args *a, lt_attention_args *out) {
    const lt_shared *x = r->shared;
    const lt_shared_tables t = lt_shared_tables_in(x->memory, x->batch * x->seq, x->rows);
    const side_by_side qkv = beside(x, x->qkv, a);
    lt_tensor from[3];
    int64_t column = 0;
    const int n = pieces_of(from, &a->q, &a->k, &a->v);
    for (int i = 0; i < n; i++) {
        LT_TRY(gather(r, lt_tensor_cols(&qkv.rows, column, from[i].shape[1]), from[i],
                      ids(t.spread, x->batch * x->seq), (lt_tensor){0}));
        column += from[i].shape[1];
    }
    *out = *a;
    out->q = qkv.q;
    out->k = qkv.k;
    out->v = qkv.v;
    out->out = heads_in(x, x->out, &a->out);
    out->lse = lt_tensor_3d(a->lse.data, LT_F32, x->batch, a->q.shape[2], x->seq);
    return LT_OK;
}

lt_err lt_shared_attention_fwd(lt_exec *r, const lt_attention_args *a) {
    const lt_shared *x = r->shared;
    const lt_shared_tables t = lt_shared_tables_in(x->memory, x->batch * x->seq, x->rows);
    lt_attention_args whole;
    LT_TRY(call_of(r, a, &whole));
    LT_TRY(lt_exact_attention_fwd(r, &whole));
    return gather(r, rows_of(&a->out), rows_of(&whole.out), ids(t.place, x->rows), (lt_tensor){0});
}

lt_err lt_shared_attention_bwd(lt_exec *r, const lt_attention_bwd_args *a) {
    const lt_shared *x = r->shared;
    const int64_t n = x->batch * x->seq;
    const lt_shared_tables t = lt_shared_tables_in(x->memory, n, x->rows);
    const side_by_side d = beside(x, x->dqkv, &a->fwd);
    lt_attention_bwd_args whole = *a;
    lt_tensor to[3];
    int64_t column = 0;
    LT_TRY(call_of(r, &a->fwd, &whole.fwd));
    whole.dq = d.q;
    whole.dk = d.k;
    whole.dv = d.v;
    whole.dout = heads_in(x, x->dout, &a->dout);
    whole.delta = lt_tensor_3d(a->delta.data, LT_F32, x->batch, a->fwd.q.shape[2], x->seq);
    LT_TRY(
        gather(r, rows_of(&whole.fwd.out), rows_of(&a->fwd.out), ids(t.spread, n), (lt_tensor){0}));
    LT_TRY(gather(r, rows_of(&whole.dout), rows_of(&a->dout), ids(t.first, n), (lt_tensor){0}));
    LT_TRY(lt_exec_attention_bwd(r, &whole));
    const int pieces = pieces_of(to, &a->dq, &a->dk, &a->dv);
    for (int i = 0; i < pieces; i++) {
        LT_TRY(gather(r, to[i], lt_tensor_cols(&d.rows, column, to[i].shape[1]), ids(t.tokens, n),
                      ids(t.start, x->rows + 1)));
        column += to[i].shape[1];
    }
    return LT_OK;
}
