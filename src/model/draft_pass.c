/* draft_pass.c: the forward pass of a draft head: see draft_head.h.
 *
 * What the model hands over is fused at once, so that a slot keeps C numbers and not 3 C. That is a
 * product with 3 C * C weights a step; one layer of the model has about four times as many. The
 * matrices of 2 C and 3 C columns are kept as
 * halves and thirds, whose products are added, so nothing is written side by side first.
 *
 * Memory is the host's, so rows are gathered and scattered by the host; the products, norms and
 * attention are the backend's ops. Nothing is allocated after open. */
#include <stdlib.h>
#include <string.h>

#include "model/acts.h"
#include "model/draft_head_impl.h"
#include "model/exec.h"
#include "tensor/cached.h"

struct lt_draft_pass {
    const lt_draft_head *head;
    lt_draft_pass_options o;
    lt_exec exec;
    lt_arena arena;
    lt_tensor states;       /* (target_rows, C) F32: the sum of fc's thirds */
    lt_tensor fused;        /* (n_pages * page_tokens, C) the pool, by slot */
    lt_tensor keys, values; /* (n_pages, page_tokens, G, D) */
    lt_tensor rope;         /* (max_seq, columns, 2) F32 */
    lt_tensor token, hidden, token_normed, hidden_normed; /* (max_rows, C) */
    lt_tensor qkv, att, branch, sum, up, act;             /* (max_rows, ..) */
    lt_tensor last, last_normed; /* (max_out, C) of the wanted rows of the last call */
    lt_tensor logits;            /* (max_out, Vd) F32 */
};

static void pass_carve(lt_draft_pass *p, lt_arena *a) {
    const lt_model_spec *s = &p->head->spec;
    const lt_draft_pass_options *o = &p->o;
    const lt_dtype type = p->head->target->options.dtype;
    const int64_t C = s->width, R = o->max_rows, H = s->n_heads, G = s->n_kv_heads, D = s->head_dim;
    lt_tensor *const of_width[] = {&p->token,         &p->hidden, &p->token_normed,
                                   &p->hidden_normed, &p->branch, &p->sum};
    const size_t n_kept = (size_t)(o->n_pages * o->page_tokens * G * D);
    p->states = lt_tensor_take(a, LT_F32, o->target_rows, C, 0);
    p->fused = lt_tensor_take(a, type, o->n_pages * o->page_tokens, C, 0);
    p->keys = lt_tensor_4d(
        lt_arena_take(a, lt_dtype_row_bytes(o->cache_dtype, (int64_t)n_kept), LT_ARENA_ALIGN),
        o->cache_dtype, o->n_pages, o->page_tokens, G, D);
    p->values = lt_tensor_4d(
        lt_arena_take(a, lt_dtype_row_bytes(o->value_dtype, (int64_t)n_kept), LT_ARENA_ALIGN),
        o->value_dtype, o->n_pages, o->page_tokens, G, D);
    p->rope = lt_tensor_take(a, LT_F32, o->max_seq, lt_rope_columns(s), 2);
    for (size_t i = 0; i < sizeof of_width / sizeof *of_width; i++) {
        *of_width[i] = lt_tensor_take(a, type, R, C, 0);
    }
    p->qkv = lt_tensor_take(a, type, R, (H + 2 * G) * D, 0);
    p->att = lt_tensor_take(a, type, R, H * D, 0);
    p->up = lt_tensor_take(a, type, R, 2 * s->ffn_width, 0);
    p->act = lt_tensor_take(a, type, R, s->ffn_width, 0);
    p->last = lt_tensor_take(a, type, o->max_out, C, 0);
    p->last_normed = lt_tensor_take(a, type, o->max_out, C, 0);
    p->logits = lt_tensor_take(a, LT_F32, o->max_out, p->head->vocab_size, 0);
}

lt_err lt_draft_pass_open(lt_draft_pass **out, const lt_draft_head *h,
                          const lt_draft_pass_options *o) {
    lt_err err = LT_OK;
    const lt_dtype types[] = {o->cache_dtype, o->value_dtype};
    lt_draft_pass *p = NULL;
    for (int i = 0; i < 2; i++) {
        const char *why = lt_cached_refusal(types[i], h->spec.head_dim);
        if (why != NULL) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "the draft head's %s in %s, heads of %lld dimensions: %s",
                    i == 0 ? "keys" : "values", lt_dtype_name(types[i]),
                    (long long)h->spec.head_dim, why);
        }
    }
    p = calloc(1, sizeof *p);
    if (p == NULL) {
        LT_FAIL(LT_ERR_OOM, "a draft head's pass");
    }
    p->head = h;
    p->o = *o;
    LT_TRY_DONE(lt_exec_open(&p->exec, h->target, NULL));
    p->exec.fixed_order = o->fixed_order;
    pass_carve(p, &p->arena);
    LT_TRY_DONE(lt_arena_open(&p->arena, "a draft head's pass"));
    pass_carve(p, &p->arena);
    LT_TRY_DONE(lt_rope_table(p->rope.data, &h->spec, o->max_seq, false, 0));
    *out = p;
    p = NULL;
done:
    lt_draft_pass_close(p);
    return err;
}

void lt_draft_pass_close(lt_draft_pass *p) {
    if (p == NULL) {
        return;
    }
    lt_exec_close(&p->exec);
    lt_arena_close(&p->arena);
    free(p);
}

static lt_err product(lt_draft_pass *p, lt_tensor y, lt_tensor x, const lt_draft_matrix *m,
                      bool add) {
    return lt_exec_matmul(&p->exec, &(lt_matmul_args){.y = y,
                                                      .a = x,
                                                      .b = m->w,
                                                      .trans_b = true,
                                                      .accumulate = add,
                                                      .fixed_order = p->o.fixed_order,
                                                      .b_packed = m->packed});
}

/* y = norm(x [+ add -> sum]) */
static lt_err norm(lt_draft_pass *p, lt_tensor y, lt_tensor x, lt_tensor gain, lt_tensor add,
                   lt_tensor sum) {
    return lt_exec_rmsnorm_fwd(
        &p->exec,
        &(lt_rmsnorm_args){
            .y = y, .x = x, .add = add, .sum = sum, .gain = gain, .eps = p->head->spec.norm_eps});
}

/* ---- What the model hands over ---- */

static void *row_of(const lt_tensor *t, int64_t row) {
    const lt_tensor one = lt_tensor_rows(t, row, 1);
    return one.data;
}

static size_t row_bytes(const lt_draft_pass *p) {
    return (size_t)p->head->spec.width * lt_dtype_bytes(p->fused.dtype);
}

lt_err lt_draft_pass_listen(lt_draft_pass *p, int layer, lt_tensor x, lt_tensor slots) {
    const int64_t n = x.shape[0];
    const lt_tensor states = lt_tensor_rows(&p->states, 0, n);
    const int32_t *slot = slots.data;
    int which = 0;
    LT_ASSERT(n <= p->o.target_rows);
    while (which < LT_DRAFT_HEAD_STATES && p->head->layers[which] != layer) {
        which++;
    }
    if (which == LT_DRAFT_HEAD_STATES) {
        return LT_OK;
    }
    LT_TRY(product(p, states, x, &p->head->fuse[which], which > 0));
    if (which < LT_DRAFT_HEAD_STATES - 1) {
        return LT_OK;
    }
    for (int64_t r = 0; r < n; r++) {
        if (slot[r] >= 0) {
            lt_convert(row_of(&p->fused, slot[r]), p->fused.dtype, row_of(&states, r), LT_F32,
                       (size_t)p->head->spec.width);
        }
    }
    return LT_OK;
}

static void copy_rows(const lt_tensor *t, int64_t dst, int64_t src) {
    const lt_tensor to = lt_tensor_rows(t, dst, 1), from = lt_tensor_rows(t, src, 1);
    memcpy(to.data, from.data, lt_dtype_row_bytes(t->dtype, lt_tensor_count(&to)));
}

lt_err lt_draft_pass_copy_page(lt_draft_pass *p, int64_t dst, int64_t src) {
    const size_t bytes = (size_t)p->o.page_tokens * row_bytes(p);
    copy_rows(&p->keys, dst, src);
    copy_rows(&p->values, dst, src);
    memcpy(row_of(&p->fused, dst * p->o.page_tokens), row_of(&p->fused, src * p->o.page_tokens),
           bytes);
    return LT_OK;
}

/* ---- The head ---- */

/* The embedding of the rows' tokens, and the hidden states that come with them. */
static lt_err gather(lt_draft_pass *p, const lt_paged_forward_rows *w, const int32_t *hidden) {
    const lt_tensor token = lt_tensor_rows(&p->token, 0, w->n_rows),
                    ids = lt_tensor_1d((void *)(uintptr_t)w->ids, LT_I32, w->n_rows);
    for (int64_t r = 0; r < w->n_rows; r++) {
        const void *from = hidden[r] >= 0 ? row_of(&p->fused, hidden[r])
                                          : row_of(&p->last, -1 - (int64_t)hidden[r]);
        memcpy(row_of(&p->hidden, r), from, row_bytes(p));
    }
    return p->head->embed.data == NULL
               ? lt_embedding_fwd(&p->exec, token, ids)
               : lt_exec_embed_fwd(
                     &p->exec, &(lt_embed_args){
                                   .y = token, .table = p->head->embed, .ids = ids, .scale = 1.0f});
}

static lt_err attend(lt_draft_pass *p, const lt_paged_forward_rows *w) {
    const lt_layer_spec l = lt_model_layer(&p->head->spec, 0);
    const int64_t R = w->n_rows, H = l.n_heads, G = l.n_kv_heads, D = l.head_dim;
    const lt_tensor qkv = lt_tensor_rows(&p->qkv, 0, R), att = lt_tensor_rows(&p->att, 0, R),
                    turned = lt_row_heads(&qkv, 0, H + G, D);
    LT_TRY(lt_exec_rope(&p->exec, &(lt_rope_args){.y = turned,
                                                  .x = turned,
                                                  .positions = lt_tensor_1d(
                                                      (void *)(uintptr_t)w->positions, LT_I32, R),
                                                  .table = p->rope}));
    LT_TRY(lt_exec_kv_write(
        &p->exec,
        &(lt_kv_write_args){.k_pages = p->keys,
                            .v_pages = p->values,
                            .k = lt_row_heads(&qkv, H * D, G, D),
                            .v = lt_row_heads(&qkv, (H + G) * D, G, D),
                            .slots = lt_tensor_1d((void *)(uintptr_t)w->slots, LT_I32, R)}));
    return lt_exec_attention_paged(
        &p->exec,
        &(lt_attention_paged_args){
            .out = lt_row_heads(&att, 0, H, D),
            .q = lt_row_heads(&qkv, 0, H, D),
            .k_pages = p->keys,
            .v_pages = p->values,
            .table = lt_tensor_2d((void *)(uintptr_t)w->table, LT_I32, w->n_seqs, w->max_pages),
            .q_start = lt_tensor_1d((void *)(uintptr_t)w->q_start, LT_I32, w->n_seqs + 1),
            .kv_len = lt_tensor_1d((void *)(uintptr_t)w->kv_len, LT_I32, w->n_seqs),
            .scale = l.attn_scale,
            .q_max = w->q_max,
            .kv_max = w->kv_max,
            .fixed_order = p->o.fixed_order});
}

static lt_err layer(lt_draft_pass *p, const lt_paged_forward_rows *w) {
    const lt_draft_head *h = p->head;
    const int64_t R = w->n_rows;
    const lt_layer_spec l = lt_model_layer(&h->spec, 0);
    const lt_tensor none = {0}, hidden = lt_tensor_rows(&p->hidden, 0, R),
                    qkv = lt_tensor_rows(&p->qkv, 0, R), branch = lt_tensor_rows(&p->branch, 0, R),
                    sum = lt_tensor_rows(&p->sum, 0, R),
                    token_normed = lt_tensor_rows(&p->token_normed, 0, R),
                    hidden_normed = lt_tensor_rows(&p->hidden_normed, 0, R),
                    up = lt_tensor_rows(&p->up, 0, R), act = lt_tensor_rows(&p->act, 0, R);
    LT_TRY(norm(p, token_normed, lt_tensor_rows(&p->token, 0, R), h->norm_token, none, none));
    LT_TRY(norm(p, hidden_normed, hidden, h->norm_hidden, none, none));
    LT_TRY(product(p, qkv, token_normed, &h->qkv_token, false));
    LT_TRY(product(p, qkv, hidden_normed, &h->qkv_hidden, true));
    LT_TRY(attend(p, w));
    LT_TRY(product(p, branch, lt_tensor_rows(&p->att, 0, R), &h->attn_out, false));
    LT_TRY(norm(p, hidden_normed, hidden, h->norm_mlp, branch, sum));
    LT_TRY(product(p, up, hidden_normed, &h->up, false));
    LT_TRY(lt_exec_act_fwd(
        &p->exec, &(lt_act_args){.y = act, .x = up, .kind = (lt_act_kind)l.act, .gated = true}));
    LT_TRY(product(p, branch, act, &h->down, false));
    return lt_exec_add(
        &p->exec, &(lt_add_args){.y = sum, .a = sum, .b = branch, .alpha = 1.0f, .beta = 1.0f});
}

lt_err lt_draft_pass_run(lt_draft_pass *p, const lt_paged_forward_rows *rows,
                         const int32_t *hidden) {
    const int64_t n = rows->n_out;
    LT_ASSERT(rows->n_rows > 0 && rows->n_rows <= p->o.max_rows && n <= p->o.max_out &&
              rows->n_seqs <= p->o.max_seqs);
    p->exec.batch = rows->n_rows;
    p->exec.seq = 1;
    LT_TRY(gather(p, rows, hidden));
    LT_TRY(layer(p, rows));
    for (int64_t i = 0; i < n; i++) {
        memcpy(row_of(&p->last, i), row_of(&p->sum, rows->out_rows[i]), row_bytes(p));
    }
    if (n == 0) {
        return LT_OK;
    }
    const lt_tensor none = {0}, last = lt_tensor_rows(&p->last, 0, n),
                    normed = lt_tensor_rows(&p->last_normed, 0, n);
    LT_TRY(norm(p, normed, last, p->head->norm_last, none, none));
    return product(p, lt_tensor_rows(&p->logits, 0, n), normed, &p->head->head, false);
}

const float *lt_draft_pass_logits(const lt_draft_pass *p) {
    return p->logits.data;
}
