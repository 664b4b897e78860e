/* context.c: how sequences are divided, and the code that the three ways of attention share
 * (context.h). */
#include "model/blocks/context.h"

#include <string.h>

#include "base/error.h"
#include "model/layer.h"
#include "model/pass/exact.h"
#include "model/pass/shared.h"

/* ---- Opening ---- */

/* Ulysses: the number of ranks divides the heads of q, and it divides the heads of k or they divide
 * it. */
static lt_err check_heads(const lt_model_spec *s, int n, int n_tp) {
    for (int64_t i = 0; i < s->n_layers; i++) {
        const lt_layer_spec l = lt_layer_part(s, i, n_tp);
        if (l.n_heads % n != 0 || (l.n_kv_heads % n != 0 && n % l.n_kv_heads != 0)) {
            LT_FAIL(LT_ERR_ARG,
                    "context parallelism by ulysses: %d ranks do not divide the %lld heads and "
                    "%lld key heads of layer %lld; ring and gather do not need that",
                    n, (long long)l.n_heads, (long long)l.n_kv_heads, (long long)i);
        }
    }
    return LT_OK;
}

lt_err lt_context_check(const lt_model_spec *s, const lt_pass_options *o) {
    const int n = o->context.group != NULL ? lt_group_size(o->context.group) : 1;
    if (n == 1) {
        return LT_OK;
    }
    LT_ASSERT(o->context.kind < LT_CONTEXT_KIND_COUNT);
    if (o->seq % 2 != 0) {
        LT_FAIL(LT_ERR_ARG,
                "context parallelism: sequences of %lld tokens do not divide into %d pieces for %d "
                "ranks; %lld do",
                (long long)(o->seq * n), 2 * n, n, (long long)((o->seq + 1) * n));
    }
    if (o->context.kind == LT_CONTEXT_ULYSSES) {
        LT_TRY(check_heads(s, n, lt_pass_n_tp(o)));
    }
    return LT_OK;
}

/* The widest rows of any layer. */
typedef struct {
    int64_t heads, q, kv, att;
} widths;

static widths widest(const lt_model_spec *s) {
    widths w = {0};
    for (int64_t i = 0; i < s->n_layers; i++) {
        const lt_layer_spec l = lt_model_layer(s, i);
        const int64_t kv = lt_layer_k_cols(&l) + lt_layer_v_cols(&l);
        w.heads = l.n_heads > w.heads ? l.n_heads : w.heads;
        w.q = lt_layer_q_cols(&l) > w.q ? lt_layer_q_cols(&l) : w.q;
        w.kv = kv > w.kv ? kv : w.kv;
        w.att = lt_layer_att_cols(&l) > w.att ? lt_layer_att_cols(&l) : w.att;
    }
    return w;
}

static void *take(lt_arena *a, int64_t count, size_t element_bytes) {
    return lt_arena_take(a, (size_t)count * element_bytes, LT_ARENA_ALIGN);
}

static void carve_ulysses(lt_context *c, const widths *w, int64_t rows, size_t e,
                          const lt_pass_options *o, lt_arena *a) {
    const int n = lt_group_size(o->context.group);
    /* Columns of one rank's heads; a key head that several ranks read is sent to each. */
    const int64_t qkv = w->q / n + w->kv, out = 2 * (w->att / n);
    const int64_t most = qkv > out ? qkv : out;
    c->sent = take(a, n * rows * most, e);
    c->received = take(a, n * rows * most, e);
    c->whole = take(a, n * rows * qkv, e);
    c->out = take(a, n * rows * w->att / n, e);
    if (o->train) {
        c->dwhole = take(a, n * rows * qkv, e);
        c->dout = take(a, n * rows * w->att / n, e);
    }
    c->all_starts = take(a, n * rows, sizeof(int32_t));
}

static void carve_ring(lt_context *c, const widths *w, int64_t rows, size_t e,
                       const lt_pass_options *o, lt_arena *a) {
    c->mine = take(a, rows * w->kv, e);
    c->received = take(a, rows * w->kv, e);
    c->out = take(a, rows * w->att, e);
    c->acc = take(a, rows * w->att, sizeof(float));
    c->lse = take(a, rows * w->heads, sizeof(float));
    c->starts = take(a, rows, sizeof(int32_t));
    if (o->train) {
        c->part = take(a, rows * (w->q + w->kv), e);
        c->dq_acc = take(a, rows * w->q, sizeof(float));
        c->travel[0] = take(a, rows * w->kv, sizeof(float));
        c->travel[1] = take(a, rows * w->kv, sizeof(float));
    }
}

void lt_context_carve(lt_context *c, const lt_model_spec *s, lt_dtype dtype,
                      const lt_pass_options *o, lt_arena *a) {
    const int n = o->context.group != NULL ? lt_group_size(o->context.group) : 1;
    const int64_t rows = o->batch * o->seq;
    const size_t e = lt_dtype_bytes(dtype);
    const widths w = widest(s);
    if (n == 1) {
        return;
    }
    switch (o->context.kind) {
    case LT_CONTEXT_ULYSSES:
        carve_ulysses(c, &w, rows, e, o, a);
        break;
    case LT_CONTEXT_RING:
        carve_ring(c, &w, rows, e, o, a);
        break;
    default: /* Gather. Gradients are summed from F32 values. */
        c->mine = take(a, rows * w.kv, sizeof(float));
        c->received = take(a, n * rows * w.kv, sizeof(float));
        c->whole = take(a, n * rows * w.kv, e);
        c->lse = take(a, rows / 2 * w.heads, sizeof(float));
        c->starts = take(a, rows / 2, sizeof(int32_t));
        if (o->train) {
            c->dwhole = take(a, n * rows * w.kv, e);
            c->part = take(a, n * rows * w.kv, e);
        }
    }
}

void lt_context_set(lt_context *c, const lt_pass_options *o) {
    c->group = o->context.group;
    c->kind = o->context.kind;
    c->n = lt_group_size(c->group);
    c->rank = lt_group_rank(c->group);
}

void lt_context_take(void *rows, int64_t n_rows, int64_t seq, int n, int rank) {
    const int64_t piece = seq / (2 * n);
    int32_t *const values = rows;
    LT_ASSERT(seq % (2 * n) == 0);
    for (int64_t row = 0; row < n_rows; row++) {
        for (int half = 0; half < 2; half++) {
            /* It never moves backwards, so that nothing is overwritten before it is read. */
            memmove(values + (row * 2 + half) * piece,
                    values + row * seq + lt_context_piece(n, rank, half) * piece,
                    (size_t)piece * sizeof *values);
        }
    }
}

void lt_context_put(void *rows, const void *by_rank, int64_t n_rows, int64_t seq, int n) {
    const int64_t piece = seq / (2 * n);
    const int32_t *from = by_rank;
    int32_t *const values = rows;
    LT_ASSERT(seq % (2 * n) == 0);
    for (int64_t i = 0; i < n * n_rows * 2; i++, from += piece) {
        const int rank = (int)(i / (2 * n_rows)), half = (int)(i % 2);
        const int64_t row = i / 2 % n_rows;
        memcpy(values + row * seq + lt_context_piece(n, rank, half) * piece, from,
               (size_t)piece * sizeof *values);
    }
}

/* ---- Views and copies ---- */

lt_tensor lt_context_rows(const lt_tensor *x) {
    lt_tensor y = *x;
    LT_ASSERT(x->n_dims == 4 && x->stride[3] == 1 && x->stride[2] == x->shape[3]);
    y.n_dims = 3;
    y.shape[2] = x->shape[2] * x->shape[3];
    y.stride[2] = 1;
    return y;
}

lt_tensor lt_context_block(void *data, lt_dtype dtype, int64_t B, int64_t T, int64_t W) {
    return lt_tensor_3d(data, dtype, B, T, W);
}

static lt_tensor narrow(const lt_tensor *x, int d, int64_t first, int64_t n) {
    lt_tensor y = *x;
    LT_ASSERT(first >= 0 && n >= 0 && first + n <= x->shape[d]);
    y.data = (char *)x->data + (size_t)(first * x->stride[d]) * lt_dtype_bytes(x->dtype);
    y.shape[d] = n;
    return y;
}

lt_tensor lt_context_cols(const lt_tensor *x, int64_t first, int64_t n) {
    return narrow(x, x->n_dims - 1, first, n);
}

lt_tensor lt_context_tokens(const lt_tensor *x, int64_t first, int64_t n) {
    return narrow(x, 1, first, n);
}

lt_tensor lt_context_heads(const lt_tensor *x, int64_t first, int64_t heads, int64_t d) {
    lt_tensor y = lt_context_cols(x, first, heads * d);
    LT_ASSERT(x->n_dims == 3 && x->stride[2] == 1);
    y.n_dims = 4;
    y.shape[2] = heads, y.shape[3] = d;
    y.stride[2] = d, y.stride[3] = 1;
    return y;
}

lt_err lt_context_copy(lt_exec *r, lt_tensor y, lt_tensor x) {
    return lt_exec_cast(r, &(lt_cast_args){.y = y, .x = x});
}

lt_tensor lt_context_lines(const lt_tensor *of, void *data, int64_t n) {
    return lt_tensor_3d(data, LT_F32, of->shape[0], of->shape[1], n);
}

lt_err lt_context_some_starts(lt_exec *r, lt_tensor *out, int32_t *memory, const lt_tensor *starts,
                              int64_t first, int64_t n) {
    *out = *starts;
    if (starts->data == NULL) {
        return LT_OK;
    }
    *out = lt_tensor_2d(memory, LT_I32, starts->shape[0], n);
    for (int64_t b = 0; b < starts->shape[0]; b++) {
        const int32_t *const from = (const int32_t *)starts->data + b * starts->stride[0] + first;
        LT_TRY(r->backend->copy(r->queue, memory + b * n, from, (size_t)n * sizeof *from));
    }
    return LT_OK;
}

/* Between (n, B, T, W) and (B, n T, W). */
static lt_err exchange(lt_exec *r, lt_tensor whole, void *by_rank, lt_dtype dtype, bool join) {
    const lt_context *c = r->context;
    const int64_t B = whole.shape[0], T = whole.shape[1] / c->n, W = whole.shape[2], piece = T / 2;
    for (int s = 0; s < c->n; s++) {
        char *const from = (char *)by_rank + (size_t)(s * B * T * W) * lt_dtype_bytes(dtype);
        const lt_tensor rows = lt_context_block(from, dtype, B, T, W);
        for (int half = 0; half < 2; half++) {
            const lt_tensor here = lt_context_tokens(&rows, half * piece, piece);
            const lt_tensor there = lt_context_tokens(
                &whole, lt_context_piece(c->n, s, half) * piece, piece);
            LT_TRY(join ? lt_context_copy(r, there, here) : lt_context_copy(r, here, there));
        }
    }
    return LT_OK;
}

lt_err lt_context_join(lt_exec *r, lt_tensor whole, void *by_rank, lt_dtype dtype) {
    return exchange(r, whole, by_rank, dtype, true);
}

lt_err lt_context_part(lt_exec *r, void *by_rank, lt_dtype dtype, lt_tensor whole) {
    return exchange(r, whole, by_rank, dtype, false);
}

lt_err lt_context_starts(lt_exec *r, lt_tensor *out) {
    lt_context *c = r->context;
    const int64_t B = r->batch, T = r->seq, piece = T / 2;
    int32_t *const by_rank = c->received;
    const lt_exec_verb all = {.kind = LT_EXEC_GATHER,
                              .group = c->group,
                              .dst = by_rank,
                              .src = r->doc_start.data,
                              .count = B * T,
                              .dtype = LT_I32};
    *out = (lt_tensor){0};
    if (r->doc_start.data == NULL) {
        return LT_OK;
    }
    LT_TRY(lt_exec_run_verb(r, &all));
    for (int s = 0; s < c->n; s++) {
        for (int64_t b = 0; b < B; b++) {
            for (int half = 0; half < 2; half++) {
                int32_t *to = c->all_starts + b * c->n * T;
                LT_TRY(r->backend->copy(r->queue, to + lt_context_piece(c->n, s, half) * piece,
                                        by_rank + (s * B + b) * T + half * piece,
                                        (size_t)piece * sizeof *to));
            }
        }
    }
    *out = lt_tensor_2d(c->all_starts, LT_I32, B, c->n * T);
    return LT_OK;
}

/* ---- Which way ---- */

lt_err lt_context_attention_fwd(lt_exec *r, const lt_attention_args *a) {
    if (r->shared != NULL) {
        return lt_shared_attention_fwd(r, a);
    }
    if (r->context == NULL) {
        return lt_exact_attention_fwd(r, a);
    }
    return r->context->kind == LT_CONTEXT_ULYSSES ? lt_context_ulysses_fwd(r, a)
           : r->context->kind == LT_CONTEXT_RING  ? lt_context_ring_fwd(r, a)
                                                  : lt_context_gather_fwd(r, a);
}

lt_err lt_context_attention_bwd(lt_exec *r, const lt_attention_bwd_args *a) {
    if (r->shared != NULL) {
        return lt_shared_attention_bwd(r, a);
    }
    if (r->context == NULL) {
        return lt_exec_attention_bwd(r, a);
    }
    return r->context->kind == LT_CONTEXT_ULYSSES ? lt_context_ulysses_bwd(r, a)
           : r->context->kind == LT_CONTEXT_RING  ? lt_context_ring_bwd(r, a)
                                                  : lt_context_gather_bwd(r, a);
}

/* Only one verb is in progress at a time, with verbs of tp in between. */
lt_err lt_context_attention_begin(lt_exec *r, const lt_attention_args *a) {
    return r->shared == NULL && r->context != NULL && r->context->kind == LT_CONTEXT_GATHER &&
                   r->n_tp == 1
               ? lt_context_gather_begin(r, a)
               : LT_OK;
}
