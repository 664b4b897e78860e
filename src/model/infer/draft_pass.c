/* draft_pass.c: the forward pass of a draft head: see draft_head.h.
 *
 * The hidden states that the model gives an EAGLE-3 head are fused at once, so that a slot keeps C
 * numbers instead of 3 C. This is a product with 3 C * C weights each step; one layer of the model
 * has about four times as many. The matrices of 2 C and 3 C columns are kept as halves and thirds,
 * whose products are added, so their inputs need not be copied next to each other.
 *
 *     hidden   a table with rows of C numbers. The first rows belong to the pool's slots and are
 *              written like keys; `last` of each row of the last call follows. A row of a call
 *              looks up its hidden state by number, as a token looks up its embedding
 *     meta     one block of I32 for each call, written on the host and uploaded
 *
 * All work uses the queue of the model's forward pass, so calls are in order without further waits,
 * and hidden states are fused inside the model's graphs. The calls themselves are not recorded:
 * they have few ops. Only chosen tokens, or logits, come to the host. Nothing is allocated after
 * open. */
#include <stdlib.h>
#include <string.h>

#include "model/pass/acts.h"
#include "model/alloc.h"
#include "model/infer/draft_head_impl.h"
#include "model/blocks/exec.h"
#include "tensor/cached.h"

#define ROW_PIECE 256 /* Most columns of a row of hidden states that kv_write takes as one head. */

struct lt_draft_pass {
    const lt_draft_head *head;
    lt_draft_pass_options o;
    lt_exec exec;
    lt_arena arena;
    int64_t n_slots;
    lt_tensor states, rounded; /* (target_rows, C) the sum of fc's thirds, F32; the same to keep */
    lt_tensor table;           /* (n_slots + max_rows, C) hidden states */
    lt_tensor keys[LT_DRAFT_HEAD_LAYERS], values[LT_DRAFT_HEAD_LAYERS]; /* (n_pages, page_tokens,
                                                                         * G, D) of each layer */
    lt_tensor rope;                                       /* (max_seq, columns, 2) F32 */
    lt_tensor token, hidden, token_normed, hidden_normed; /* (max_rows, C) */
    lt_tensor joined;                                     /* (max_rows, C) of an MTP layer */
    lt_tensor qkv, att, branch, sum, up, act;             /* (max_rows, ..) */
    lt_tensor out;    /* (max_out, C) what the wanted rows' logits are computed from */
    lt_tensor logits; /* (max_out, Vd) F32 */
    lt_tensor chosen; /* (max_out) I32 */
    int32_t *meta, *host_meta, *host_chosen;
    float *host_logits;
    int64_t n_out;
    bool busy; /* The last call may still be reading host_meta. */
};

/* The metadata of the call, as the device sees it. */
typedef struct {
    lt_tensor ids, positions, slots, hidden; /* (R) */
    lt_tensor q_start, kv_len, table;
    lt_tensor out_rows, choose_rows; /* (n_out) */
    lt_tensor how;                   /* (n_out, LT_CHOOSE_HOW_COUNT) F64 */
    int64_t q_max, kv_max;
} call_data;

static int64_t max_pages(const lt_draft_pass *p) {
    return (p->o.max_seq + p->o.page_tokens - 1) / p->o.page_tokens;
}

/* I32 words of the metadata of the largest call; one more keeps `how` aligned. */
static size_t meta_words(const lt_draft_pass *p) {
    const lt_draft_pass_options *o = &p->o;
    return (size_t)(4 * o->max_rows + o->max_seqs * (2 + max_pages(p)) + 1 +
                    o->max_out * (2 + 2 * LT_CHOOSE_HOW_COUNT) + 1);
}

static lt_tensor take_pages(const lt_draft_pass *p, lt_arena *a, lt_dtype type) {
    const lt_model_spec *s = &p->head->spec;
    const int64_t n = p->n_slots * s->n_kv_heads * s->head_dim;
    void *data = lt_arena_take(a, lt_dtype_row_bytes(type, n), LT_ARENA_ALIGN);
    return lt_tensor_4d(data, type, p->o.n_pages, p->o.page_tokens, s->n_kv_heads, s->head_dim);
}

static void pass_carve(lt_draft_pass *p, lt_arena *a) {
    const lt_model_spec *s = &p->head->spec;
    const lt_draft_pass_options *o = &p->o;
    const lt_dtype type = p->head->target->options.dtype;
    const int64_t C = s->width, R = o->max_rows, H = s->n_heads, G = s->n_kv_heads, D = s->head_dim;
    lt_tensor *const of_width[] = {&p->token, &p->hidden, &p->token_normed, &p->hidden_normed,
                                   &p->branch};
    p->n_slots = o->n_pages * o->page_tokens;
    p->states = lt_tensor_take(a, LT_F32, o->target_rows, C, 0);
    p->rounded = lt_tensor_take(a, type, o->target_rows, C, 0);
    p->table = lt_tensor_take(a, type, p->n_slots + R, C, 0);
    for (int64_t i = 0; i < p->head->n_layers; i++) {
        p->keys[i] = take_pages(p, a, o->cache_dtype);
        p->values[i] = take_pages(p, a, o->value_dtype);
    }
    p->rope = lt_tensor_take(a, LT_F32, o->max_seq, lt_rope_columns(s), 2);
    for (size_t i = 0; i < sizeof of_width / sizeof *of_width; i++) {
        *of_width[i] = lt_tensor_take(a, type, R, C, 0);
    }
    /* `last` of an EAGLE-3 head is the sum itself. */
    p->sum = p->head->is_mtp ? lt_tensor_take(a, type, R, C, 0)
                             : lt_tensor_rows(&p->table, p->n_slots, R);
    p->joined = p->head->is_mtp ? lt_tensor_take(a, type, R, C, 0) : (lt_tensor){0};
    p->qkv = lt_tensor_take(a, type, R, (H + 2 * G) * D, 0);
    p->att = lt_tensor_take(a, type, R, H * D, 0);
    p->up = lt_tensor_take(a, type, R, 2 * s->ffn_width, 0);
    p->act = lt_tensor_take(a, type, R, s->ffn_width, 0);
    p->out = lt_tensor_take(a, type, o->max_out, C, 0);
    p->logits = lt_tensor_take(a, LT_F32, o->max_out, p->head->vocab_size, 0);
    p->chosen = lt_tensor_take(a, LT_I32, o->max_out, 0, 0);
    p->meta = lt_arena_take(a, meta_words(p) * sizeof *p->meta, LT_ARENA_ALIGN);
}

static size_t logits_bytes(const lt_draft_pass *p) {
    return (size_t)(p->o.max_out * p->head->vocab_size) * sizeof *p->host_logits;
}

static size_t chosen_bytes(const lt_draft_pass *p) {
    return (size_t)p->o.max_out * sizeof *p->host_chosen;
}

static lt_err open_host(lt_draft_pass *p) {
    const lt_model *m = p->head->target;
    LT_TRY(m->backend->host_alloc(m->device, (void **)&p->host_meta,
                                  meta_words(p) * sizeof *p->host_meta, "a draft head's calls"));
    return m->backend->host_alloc(m->device, (void **)&p->host_chosen, chosen_bytes(p),
                                  "draft tokens");
}

static void close_host(lt_draft_pass *p) {
    const lt_model *m = p->head->target;
    m->backend->host_release(m->device, p->host_meta, meta_words(p) * sizeof *p->host_meta);
    m->backend->host_release(m->device, p->host_chosen, chosen_bytes(p));
    if (p->host_logits != NULL) {
        m->backend->host_release(m->device, p->host_logits, logits_bytes(p));
    }
}

/* Compute the rotary table on the host and upload it. */
static lt_err fill_rope(lt_draft_pass *p) {
    const lt_model *m = p->head->target;
    const size_t n = (size_t)lt_tensor_count(&p->rope);
    lt_err err = LT_OK;
    float *table = calloc(n, sizeof *table);
    if (table == NULL) {
        LT_FAIL(LT_ERR_OOM, "a draft head's rotary table");
    }
    LT_TRY_DONE(lt_rope_table(table, &p->head->spec, p->o.max_seq, false, 0));
    LT_TRY_DONE(lt_model_upload(m, p->rope.data, table, n * sizeof *table));
done:
    free(table);
    return err;
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
    pass_carve(p, &p->arena);
    LT_TRY_DONE(lt_arena_place(&p->arena, h->target->device, "a draft head's pass"));
    pass_carve(p, &p->arena);
    LT_TRY_DONE(open_host(p));
    LT_TRY_DONE(fill_rope(p));
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
    close_host(p);
    lt_arena_release(&p->arena, p->head->target->device);
    free(p);
}

lt_err lt_draft_pass_follow(lt_draft_pass *p, const lt_exec *r) {
    LT_TRY(lt_exec_open(&p->exec, p->head->target, r->queue));
    p->exec.packed = r->packed;
    p->exec.fixed_order = p->o.fixed_order;
    return LT_OK;
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

/* The pool's hidden states as pages, whose rows are cut into heads. */
static lt_tensor table_pages(const lt_draft_pass *p) {
    const int64_t C = p->head->spec.width;
    int64_t n = (C + ROW_PIECE - 1) / ROW_PIECE;
    while (C % n != 0) {
        n++;
    }
    return lt_tensor_4d(p->table.data, p->table.dtype, p->o.n_pages, p->o.page_tokens, n, C / n);
}

/* Write the rows of x to their slots. The op writes keys and values; here both are the same. */
static lt_err keep(lt_draft_pass *p, lt_tensor x, lt_tensor slots) {
    const lt_tensor pages = table_pages(p);
    const lt_tensor rows = lt_row_heads(&x, 0, pages.shape[2], pages.shape[3]);
    return lt_exec_kv_write(
        &p->exec, &(lt_kv_write_args){
                      .k_pages = pages, .v_pages = pages, .k = rows, .v = rows, .slots = slots});
}

lt_err lt_draft_pass_listen(lt_draft_pass *p, int layer, lt_tensor x, lt_tensor slots) {
    const int64_t n = x.shape[0];
    const lt_tensor states = lt_tensor_rows(&p->states, 0, n),
                    rounded = lt_tensor_rows(&p->rounded, 0, n);
    int which = 0;
    LT_ASSERT(n <= p->o.target_rows);
    if (p->head->is_mtp) {
        return layer == p->head->target->spec.n_layers ? keep(p, x, slots) : LT_OK;
    }
    while (which < LT_DRAFT_HEAD_STATES && p->head->reads[which] != layer) {
        which++;
    }
    if (which == LT_DRAFT_HEAD_STATES) {
        return LT_OK;
    }
    LT_TRY(product(p, states, x, &p->head->fuse[which], which > 0));
    if (which < LT_DRAFT_HEAD_STATES - 1) {
        return LT_OK;
    }
    LT_TRY(lt_exec_cast(&p->exec, &(lt_cast_args){.y = rounded, .x = states}));
    return keep(p, rounded, slots);
}

static lt_err copy_rows(lt_draft_pass *p, const lt_tensor *t, int64_t dst, int64_t src, int64_t n) {
    const lt_tensor to = lt_tensor_rows(t, dst * n, n), from = lt_tensor_rows(t, src * n, n);
    return p->exec.backend->copy(p->exec.queue, to.data, from.data,
                                 lt_dtype_row_bytes(t->dtype, lt_tensor_count(&to)));
}

lt_err lt_draft_pass_copy_page(lt_draft_pass *p, int64_t dst, int64_t src) {
    for (int64_t i = 0; i < p->head->n_layers; i++) {
        LT_TRY(copy_rows(p, &p->keys[i], dst, src, 1));
        LT_TRY(copy_rows(p, &p->values[i], dst, src, 1));
    }
    return copy_rows(p, &p->table, dst, src, p->o.page_tokens);
}

/* ---- Metadata ---- */

/* Append n values to those to be uploaded; the tensor is their place on the device. values NULL: 0,
 * 1, .. */
static lt_tensor put(lt_draft_pass *p, int64_t *at, const int32_t *values, int64_t n) {
    const lt_tensor t = lt_tensor_1d(p->meta + *at, LT_I32, n);
    for (int64_t i = 0; i < n; i++) {
        p->host_meta[*at + i] = values != NULL ? values[i] : (int32_t)i;
    }
    *at += n;
    return t;
}

/* Position in the table of `last` of row k of the last call. */
static int32_t number_of(const lt_draft_pass *p, int32_t hidden) {
    return hidden >= 0 ? hidden : (int32_t)(p->n_slots - 1 - hidden);
}

static lt_err upload(lt_draft_pass *p, call_data *c, const lt_paged_forward_rows *w,
                     const int32_t *hidden) {
    const lt_backend *b = p->exec.backend;
    int64_t at = 0;
    if (p->busy) {
        LT_TRY(b->sync(p->exec.queue));
    }
    c->ids = put(p, &at, w->ids, w->n_rows);
    c->positions = put(p, &at, w->positions, w->n_rows);
    c->slots = put(p, &at, w->slots, w->n_rows);
    c->hidden = put(p, &at, hidden, w->n_rows);
    for (int64_t r = 0; r < w->n_rows; r++) {
        p->host_meta[at - w->n_rows + r] = number_of(p, hidden[r]);
    }
    c->q_start = put(p, &at, w->q_start, w->n_seqs + 1);
    c->kv_len = put(p, &at, w->kv_len, w->n_seqs);
    c->table = put(p, &at, w->table, w->n_seqs * w->max_pages);
    c->table = lt_tensor_2d(c->table.data, LT_I32, w->n_seqs, w->max_pages);
    c->out_rows = put(p, &at, w->out_rows, w->n_out);
    c->choose_rows = put(p, &at, NULL, w->n_choose);
    at += at % 2;
    c->how = lt_tensor_2d(p->meta + at, LT_F64, w->n_choose, LT_CHOOSE_HOW_COUNT);
    if (w->n_choose > 0) {
        memcpy(p->host_meta + at, w->how, (size_t)lt_tensor_count(&c->how) * sizeof *w->how);
    }
    at += 2 * lt_tensor_count(&c->how);
    c->q_max = w->q_max;
    c->kv_max = w->kv_max;
    p->busy = true;
    return b->upload(p->exec.queue, p->meta, p->host_meta, (size_t)at * sizeof *p->meta);
}

/* ---- The head ---- */

/* y = the rows of a table that ids name. */
static lt_err look_up(lt_draft_pass *p, lt_tensor y, lt_tensor table, lt_tensor ids) {
    return lt_exec_embed_fwd(&p->exec,
                             &(lt_embed_args){.y = y, .table = table, .ids = ids, .scale = 1.0f});
}

/* The embedding of the rows' tokens, and the hidden states that come with them. */
static lt_err gather(lt_draft_pass *p, const call_data *c) {
    const int64_t R = c->ids.shape[0];
    const lt_tensor token = lt_tensor_rows(&p->token, 0, R);
    LT_TRY(look_up(p, lt_tensor_rows(&p->hidden, 0, R), p->table, c->hidden));
    return p->head->embed.data == NULL ? lt_embedding_fwd(&p->exec, token, c->ids)
                                       : look_up(p, token, p->head->embed, c->ids);
}

static lt_err attend(lt_draft_pass *p, const call_data *c, int64_t layer) {
    const lt_layer_spec l = lt_model_layer(&p->head->spec, 0);
    const int64_t R = c->ids.shape[0], H = l.n_heads, G = l.n_kv_heads, D = l.head_dim;
    const lt_tensor qkv = lt_tensor_rows(&p->qkv, 0, R), att = lt_tensor_rows(&p->att, 0, R),
                    turned = lt_row_heads(&qkv, 0, H + G, D);
    LT_TRY(lt_exec_rope(
        &p->exec,
        &(lt_rope_args){.y = turned, .x = turned, .positions = c->positions, .table = p->rope}));
    LT_TRY(
        lt_exec_kv_write(&p->exec, &(lt_kv_write_args){.k_pages = p->keys[layer],
                                                       .v_pages = p->values[layer],
                                                       .k = lt_row_heads(&qkv, H * D, G, D),
                                                       .v = lt_row_heads(&qkv, (H + G) * D, G, D),
                                                       .slots = c->slots}));
    return lt_exec_attention_paged(&p->exec,
                                   &(lt_attention_paged_args){.out = lt_row_heads(&att, 0, H, D),
                                                              .q = lt_row_heads(&qkv, 0, H, D),
                                                              .k_pages = p->keys[layer],
                                                              .v_pages = p->values[layer],
                                                              .table = c->table,
                                                              .q_start = c->q_start,
                                                              .kv_len = c->kv_len,
                                                              .scale = l.attn_scale,
                                                              .q_max = c->q_max,
                                                              .kv_max = c->kv_max,
                                                              .fixed_order = p->o.fixed_order});
}

/* Queries, keys and values of the rows; *stream is what the layer adds to. */
static lt_err enter(lt_draft_pass *p, const lt_draft_layer *w, int64_t R, lt_tensor *stream) {
    const lt_tensor none = {0}, hidden = lt_tensor_rows(&p->hidden, 0, R),
                    qkv = lt_tensor_rows(&p->qkv, 0, R),
                    token_normed = lt_tensor_rows(&p->token_normed, 0, R),
                    hidden_normed = lt_tensor_rows(&p->hidden_normed, 0, R);
    LT_TRY(norm(p, token_normed, lt_tensor_rows(&p->token, 0, R), w->norm_token, none, none));
    LT_TRY(norm(p, hidden_normed, hidden, w->norm_hidden, none, none));
    if (!p->head->is_mtp) {
        *stream = hidden;
        LT_TRY(product(p, qkv, token_normed, &w->qkv_token, false));
        return product(p, qkv, hidden_normed, &w->qkv_hidden, true);
    }
    *stream = lt_tensor_rows(&p->joined, 0, R);
    LT_TRY(product(p, *stream, token_normed, &w->join_token, false));
    LT_TRY(product(p, *stream, hidden_normed, &w->join_hidden, true));
    LT_TRY(norm(p, token_normed, *stream, w->norm_attn, none, none));
    return lt_exec_matmul(&p->exec, &(lt_matmul_args){.y = qkv,
                                                      .a = token_normed,
                                                      .b = w->qkv.w,
                                                      .bias = w->qkv_bias,
                                                      .trans_b = true,
                                                      .fixed_order = p->o.fixed_order,
                                                      .b_packed = w->qkv.packed});
}

static lt_err run_layer(lt_draft_pass *p, const call_data *c, int64_t layer) {
    const lt_draft_layer *w = &p->head->layer[layer];
    const int64_t R = c->ids.shape[0];
    const lt_layer_spec l = lt_model_layer(&p->head->spec, 0);
    const lt_tensor branch = lt_tensor_rows(&p->branch, 0, R), sum = lt_tensor_rows(&p->sum, 0, R),
                    hidden_normed = lt_tensor_rows(&p->hidden_normed, 0, R),
                    up = lt_tensor_rows(&p->up, 0, R), act = lt_tensor_rows(&p->act, 0, R);
    lt_tensor stream;
    LT_TRY(enter(p, w, R, &stream));
    LT_TRY(attend(p, c, layer));
    LT_TRY(product(p, branch, lt_tensor_rows(&p->att, 0, R), &w->attn_out, false));
    LT_TRY(norm(p, hidden_normed, stream, w->norm_mlp, branch, sum));
    LT_TRY(product(p, up, hidden_normed, &w->up, false));
    LT_TRY(lt_exec_act_fwd(
        &p->exec, &(lt_act_args){.y = act, .x = up, .kind = (lt_act_kind)l.act, .gated = true}));
    LT_TRY(product(p, branch, act, &w->down, false));
    return lt_exec_add(
        &p->exec, &(lt_add_args){.y = sum, .a = sum, .b = branch, .alpha = 1.0f, .beta = 1.0f});
}

/* Tokens of the wanted rows, from their logits. */
static lt_err choose(lt_draft_pass *p, const call_data *c) {
    const int64_t n = c->choose_rows.shape[0];
    return lt_exec_choose(&p->exec, &(lt_choose_args){.id = lt_tensor_rows(&p->chosen, 0, n),
                                                      .logits = lt_tensor_rows(&p->logits, 0, n),
                                                      .rows = c->choose_rows,
                                                      .how = c->how});
}

/* Compute `last` of the rows, and the logits of the wanted ones. In an EAGLE-3 head `last` is the
 * input of its last norm; in an MTP layer it is the norm's output, as that of the model's final
 * norm is. */
static lt_err finish(lt_draft_pass *p, const call_data *c, int64_t layer) {
    const lt_draft_head *h = p->head;
    const int64_t n = c->out_rows.shape[0], R = c->ids.shape[0];
    const lt_tensor none = {0}, gain = h->layer[layer].norm_last,
                    sum = lt_tensor_rows(&p->sum, 0, R),
                    last = lt_tensor_rows(&p->table, p->n_slots, R),
                    out = lt_tensor_rows(&p->out, 0, n), logits = lt_tensor_rows(&p->logits, 0, n),
                    before = lt_tensor_rows(&p->branch, 0, n);
    if (h->is_mtp && (n > 0 || layer + 1 < h->n_layers)) { /* Else no call reads `last`. */
        LT_TRY(norm(p, last, sum, gain, none, none));
    }
    if (n == 0) {
        return LT_OK;
    }
    if (h->is_mtp) {
        LT_TRY(look_up(p, out, last, c->out_rows));
        return lt_linear_fwd(&p->exec, logits, out, lt_param_head(p->exec.spec),
                             lt_param_head_bias(p->exec.spec), 0);
    }
    LT_TRY(look_up(p, before, sum, c->out_rows));
    LT_TRY(norm(p, out, before, gain, none, none));
    return product(p, logits, out, &h->head, false);
}

lt_err lt_draft_pass_run(lt_draft_pass *p, int64_t layer, const lt_paged_forward_rows *rows,
                         const int32_t *hidden) {
    const int64_t n = rows->n_out;
    call_data c;
    LT_ASSERT(layer >= 0 && layer < p->head->n_layers);
    LT_ASSERT(rows->n_rows > 0 && rows->n_rows <= p->o.max_rows && n <= p->o.max_out &&
              rows->n_seqs <= p->o.max_seqs && (rows->n_choose == 0 || rows->n_choose == n));
    p->exec.batch = rows->n_rows;
    p->exec.seq = 1;
    p->n_out = n;
    LT_TRY(upload(p, &c, rows, hidden));
    LT_TRY(gather(p, &c));
    LT_TRY(run_layer(p, &c, layer));
    LT_TRY(finish(p, &c, layer));
    return rows->n_choose > 0 ? choose(p, &c) : LT_OK;
}

lt_err lt_draft_pass_wait(lt_draft_pass *p) {
    p->busy = false;
    return p->exec.backend->sync(p->exec.queue);
}

/* The i-th warm-up call: drafts of 1, 2, 4, .. texts, then longer and longer texts to catch up
 * with. False: there is none. */
static bool idle_shape(const lt_draft_pass *p, int64_t i, int64_t *seqs, int64_t *rows) {
    const int64_t most = p->o.max_out < p->o.max_seqs ? p->o.max_out : p->o.max_seqs,
                  longest = p->o.max_rows < p->o.max_seq ? p->o.max_rows : p->o.max_seq;
    *rows = 1;
    for (*seqs = 1; *seqs < most; *seqs = 2 * *seqs < most ? 2 * *seqs : most) {
        if (i-- == 0) {
            return true;
        }
    }
    *seqs = 1;
    for (*rows = 2; *rows < longest; *rows *= 2) {
        if (i-- == 0) {
            return true;
        }
    }
    *rows = longest;
    return i == 0;
}

/* A warm-up call: its rows belong to no text, read page 0 and write nothing. */
static lt_err run_idle(lt_draft_pass *p, int32_t *words, int64_t n, int64_t each) {
    const int64_t rows = n * each, pages = (each + p->o.page_tokens - 1) / p->o.page_tokens,
                  n_out = each == 1 ? n : 1;
    int32_t *const ids = words, *const positions = ids + rows, *const slots = positions + rows,
                   *const hidden = slots + rows, *const q_start = hidden + rows,
                   *const kv_len = q_start + n + 1, *const out_rows = kv_len + n,
                   *const table = out_rows + n_out;
    double how[LT_CHOOSE_HOW_COUNT] = {0, 0, 1, 0, 0, -1, LT_CHOOSE_PLAIN};
    for (int64_t r = 0; r < rows; r++) {
        positions[r] = (int32_t)(r % each);
        slots[r] = -1;
    }
    for (int64_t s = 0; s < n; s++) {
        q_start[s + 1] = (int32_t)((s + 1) * each);
        kv_len[s] = (int32_t)each;
        out_rows[each == 1 ? s : 0] = (int32_t)((s + 1) * each - 1);
    }
    LT_TRY(lt_draft_pass_run(p, 0,
                             &(lt_paged_forward_rows){.n_rows = rows,
                                                      .n_seqs = n,
                                                      .n_out = n_out,
                                                      .n_choose = n_out == 1,
                                                      .q_max = each,
                                                      .kv_max = each,
                                                      .max_pages = pages,
                                                      .ids = ids,
                                                      .positions = positions,
                                                      .slots = slots,
                                                      .q_start = q_start,
                                                      .kv_len = kv_len,
                                                      .table = table,
                                                      .out_rows = out_rows,
                                                      .how = how},
                             hidden));
    return lt_draft_pass_wait(p);
}

lt_err lt_draft_pass_warm(lt_draft_pass *p, int64_t i, bool *more) {
    lt_err err;
    int64_t n, each, pages;
    int32_t *words;
    *more = p->exec.backend->graph_begin != NULL && idle_shape(p, i, &n, &each);
    if (!*more) {
        return LT_OK;
    }
    pages = (each + p->o.page_tokens - 1) / p->o.page_tokens;
    words = calloc((size_t)(n * (4 * each + 3 + pages) + 1), sizeof *words);
    if (words == NULL) {
        LT_FAIL(LT_ERR_OOM, "metadata of idle calls");
    }
    err = run_idle(p, words, n, each);
    free(words);
    return err;
}

lt_err lt_draft_pass_logits(lt_draft_pass *p, const float **logits) {
    const lt_model *m = p->head->target;
    *logits = p->logits.data;
    if (m->backend->host_memory) {
        return lt_draft_pass_wait(p);
    }
    if (p->host_logits == NULL) {
        LT_TRY(m->backend->host_alloc(m->device, (void **)&p->host_logits, logits_bytes(p),
                                      "logits of a draft head"));
    }
    *logits = p->host_logits;
    LT_TRY(m->backend->download(p->exec.queue, p->host_logits, p->logits.data,
                                (size_t)(p->n_out * p->head->vocab_size) * sizeof **logits));
    return lt_draft_pass_wait(p);
}

lt_err lt_draft_pass_chosen(lt_draft_pass *p, const int32_t **ids) {
    LT_TRY(p->exec.backend->download(p->exec.queue, p->host_chosen, p->chosen.data,
                                     (size_t)p->n_out * sizeof **ids));
    LT_TRY(lt_draft_pass_wait(p));
    for (int64_t i = 0; i < p->n_out; i++) {
        const int32_t id = p->host_chosen[i];
        p->host_chosen[i] = id >= 0 ? p->head->ids[id] : id;
    }
    *ids = p->host_chosen;
    return LT_OK;
}
