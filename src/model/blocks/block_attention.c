/* block_attention.c: norm, q k v, their norms, rotation, attention, output projection; and the
 * backward pass.
 *
 * q, k and v come from one product and stay in its rows (layer.h has the columns). Attention reads
 * them in place as strided views. Without norms of q and k the rotation is in place too, and
 * backward undoes it on the gradients. With norms, the raw rows are kept as the norm's input and
 * the results go to qk; if the norms are of single heads, norm and rotation are one op
 * (qk_norm). */
#include "model/blocks/block.h"
#include "model/blocks/context.h"

#include "model/blocks/tp.h"

static lt_norm norm1(int layer, const lt_layer_acts *t) {
    return (lt_norm){LT_PARAM_NORM1, LT_PARAM_NORM1_BIAS, layer, t->mean1, t->rstd1};
}

static lt_norm post_norm(int layer, const lt_layer_acts *t) {
    return (lt_norm){LT_PARAM_POST_NORM1, LT_PARAM_KIND_COUNT, layer, {0}, t->rstd_post1};
}

/* The input of the product for q, k and v: the norm's result, or the stream itself. */
static lt_tensor qkv_input(const lt_exec *r, const lt_layer_spec *l, const lt_layer_acts *t) {
    return lt_block_input(r, l, t->h1, t->x_in);
}

/* The heads of q and k in x, which are adjacent. */
static lt_tensor qk_heads(const lt_layer_spec *l, const lt_tensor *x) {
    return lt_row_heads(x, 0, l->n_heads + l->n_kv_heads, l->head_dim);
}

/* The part of x that one norm normalises: the heads of q or of k, or all of them as one row. */
static lt_tensor normed(const lt_layer_spec *l, const lt_tensor *x, bool keys) {
    const int64_t first = keys ? lt_layer_q_cols(l) : 0;
    if (l->qk_norm_whole) {
        return lt_tensor_cols(x, first, keys ? lt_layer_k_cols(l) : lt_layer_q_cols(l));
    }
    return lt_row_heads(x, first, keys ? l->n_kv_heads : l->n_heads, l->head_dim);
}

/* rstd_qk of q's norm, and of k's, if it is a separate op. */
static lt_tensor rstd_of(const lt_exec *r, const lt_layer_spec *l, const lt_layer_acts *t,
                         bool keys) {
    const int64_t R = r->batch * r->seq, q = l->qk_norm_whole ? 1 : l->n_heads,
                  k = l->qk_norm_whole ? 1 : l->n_kv_heads;
    return keys ? lt_tensor_rows(&t->rstd_qk, R * q, R * k) : lt_tensor_rows(&t->rstd_qk, 0, R * q);
}

const lt_tensor *lt_attention_qk(const lt_layer_spec *l, const lt_layer_acts *t) {
    return l->qk_norm ? &t->qk : &t->qkv;
}

static lt_tensor rope_table(const lt_exec *r, const lt_layer_spec *l) {
    return l->rope == LT_LAYER_ROPE_LOCAL ? r->rope_local : r->rope;
}

/* Is the norm one over all heads, which are divided over ranks of tp? If several ranks hold the
 * same key head, each has a part of its gradient. The norm's backward pass is linear in the
 * gradient, so the average over all ranks is right for such heads, too. */
static bool spans_ranks(const lt_exec *r, const lt_layer_spec *l) {
    return l->qk_norm_whole && r->n_tp > 1;
}

static lt_err norm_fwd(lt_exec *r, const lt_layer_spec *l, int layer, const lt_layer_acts *t,
                       bool keys) {
    lt_rmsnorm_args a = {.y = normed(l, &t->qk, keys),
                         .x = normed(l, &t->qkv, keys),
                         .gain = lt_exec_weight(r, keys ? LT_PARAM_K_NORM : LT_PARAM_Q_NORM, layer),
                         .rstd = rstd_of(r, l, t, keys),
                         .eps = l->norm_eps,
                         .gain_offset = l->norm_gain_offset};
    if (spans_ranks(r, l)) {
        a.part = LT_NORM_MEASURE;
        LT_TRY(lt_exec_rmsnorm_fwd(r, &a));
        LT_TRY(lt_tp_mean(r, a.rstd));
        a.part = LT_NORM_GIVEN;
    }
    return lt_exec_rmsnorm_fwd(r, &a);
}

static lt_err rotate(lt_exec *r, const lt_layer_spec *l, const lt_tensor *qk, bool inverse) {
    const lt_tensor heads = qk_heads(l, qk);
    if (l->rope == LT_LAYER_ROPE_NONE) {
        return LT_OK;
    }
    return lt_exec_rope(r, &(lt_rope_args){.y = heads,
                                           .x = heads,
                                           .positions = r->positions,
                                           .table = rope_table(r, l),
                                           .inverse = inverse});
}

/* q and k of qkv as attention needs them: normalised to qk, and rotated. */
static lt_err qk_fwd(lt_exec *r, const lt_layer_spec *l, int layer, const lt_layer_acts *t) {
    if (lt_layer_norm_rotates(r->spec, l)) {
        return lt_exec_qk_norm_fwd(
            r, &(lt_qk_norm_args){.y = qk_heads(l, &t->qk),
                                  .x = qk_heads(l, &t->qkv),
                                  .positions = r->positions,
                                  .table = rope_table(r, l),
                                  .q_gain = lt_exec_weight(r, LT_PARAM_Q_NORM, layer),
                                  .k_gain = lt_exec_weight(r, LT_PARAM_K_NORM, layer),
                                  .rstd = t->rstd_qk,
                                  .eps = l->norm_eps,
                                  .gain_offset = l->norm_gain_offset,
                                  .n_q = l->n_heads});
    }
    if (l->qk_norm) {
        LT_TRY(norm_fwd(r, l, layer, t, false));
        LT_TRY(norm_fwd(r, l, layer, t, true));
    }
    return rotate(r, l, lt_attention_qk(l, t), false);
}

static lt_tensor q_of(const lt_exec *r, const lt_layer_spec *l, const lt_tensor *x) {
    return lt_heads(r, x, 0, l->n_heads, l->head_dim);
}

static lt_tensor k_of(const lt_exec *r, const lt_layer_spec *l, const lt_tensor *x) {
    return lt_heads(r, x, lt_layer_q_cols(l), l->n_kv_heads, l->head_dim);
}

static lt_tensor v_of(const lt_exec *r, const lt_layer_spec *l, const lt_tensor *x) {
    return lt_heads(r, x, lt_layer_qk_cols(l), l->n_kv_heads, l->value_dim);
}

static lt_attention_args attention_args(const lt_exec *r, const lt_layer_spec *l, int layer,
                                        const lt_layer_acts *t) {
    const lt_tensor *qk = lt_attention_qk(l, t);
    return (lt_attention_args){.out = lt_heads(r, &t->att, 0, l->n_heads, l->value_dim),
                               .lse = t->lse,
                               .q = q_of(r, l, qk),
                               .k = k_of(r, l, qk),
                               .v = v_of(r, l, &t->qkv),
                               .doc_start = r->doc_start,
                               .sinks = lt_exec_sinks(r, layer),
                               .scale = l->attn_scale,
                               .softcap = l->attn_softcap,
                               .window = l->window,
                               .causal = true};
}

lt_err lt_attention_qkv_fwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                            lt_tensor stream) {
    const lt_layer_spec l = lt_exec_layer(r, layer);
    const lt_norm norm = norm1(layer, t);
    LT_TRY(lt_block_begin_fwd(r, &l, &norm, t->h1, t->x_in, stream, b->branch));
    LT_TRY(lt_tp_linear_fwd_gathered(r, t->qkv, qkv_input(r, &l, t),
                                     lt_block_own_input(r, &l, t->h1, t->x_in), LT_PARAM_QKV,
                                     LT_PARAM_QKV_BIAS, layer));
    return qk_fwd(r, &l, layer, t);
}

lt_err lt_attention_out_fwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b) {
    const lt_layer_spec l = lt_exec_layer(r, layer);
    const lt_norm post = post_norm(layer, t);
    LT_TRY(lt_tp_linear_fwd_scattered(r, lt_block_output(r, &l, b->branch, t->proj), t->att,
                                      LT_PARAM_ATTN_OUT, LT_PARAM_ATTN_OUT_BIAS, layer));
    return lt_block_end_fwd(r, &l, &post, b->branch, t->proj);
}

lt_err lt_attention_block_fwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                              lt_tensor stream) {
    const lt_layer_spec l = lt_exec_layer(r, layer);
    LT_TRY(lt_attention_qkv_fwd(r, layer, t, b, stream));
    const lt_attention_args args = attention_args(r, &l, layer, t);
    LT_TRY(lt_context_attention_fwd(r, &args));
    return lt_attention_out_fwd(r, layer, t, b);
}

static lt_err norm_bwd(lt_exec *r, const lt_layer_spec *l, int layer, const lt_layer_acts *t,
                       const lt_batch_acts *b, bool keys) {
    const lt_tensor *dqkv = &b->dqkv;
    const lt_param_kind gain = keys ? LT_PARAM_K_NORM : LT_PARAM_Q_NORM;
    const lt_tensor d = normed(l, dqkv, keys);
    lt_rmsnorm_bwd_args a = {.dx = d,
                             .dy = d,
                             .x = normed(l, &t->qkv, keys),
                             .dgain = lt_exec_gradient(r, gain, layer),
                             .gain = lt_exec_weight(r, gain, layer),
                             .rstd = rstd_of(r, l, t, keys),
                             .gain_offset = l->norm_gain_offset};
    if (spans_ranks(r, l)) { /* Attention's scratch has one number per row and head. */
        a.mean = lt_tensor_1d(b->delta.data, LT_F32, r->batch * r->seq);
        a.part = LT_NORM_MEASURE;
        LT_TRY(lt_exec_rmsnorm_bwd(r, &a));
        LT_TRY(lt_tp_mean(r, a.mean));
        a.part = LT_NORM_GIVEN;
    }
    return lt_exec_rmsnorm_bwd(r, &a);
}

/* Turn the gradients of q and k after norm and rotation into those of qkv, in place. */
static lt_err qk_bwd(lt_exec *r, const lt_layer_spec *l, int layer, const lt_layer_acts *t,
                     const lt_batch_acts *b) {
    const lt_tensor *dqkv = &b->dqkv;
    const lt_tensor d = qk_heads(l, dqkv);
    if (lt_layer_norm_rotates(r->spec, l)) {
        return lt_exec_qk_norm_bwd(
            r, &(lt_qk_norm_bwd_args){.dx = d,
                                      .dq_gain = lt_exec_gradient(r, LT_PARAM_Q_NORM, layer),
                                      .dk_gain = lt_exec_gradient(r, LT_PARAM_K_NORM, layer),
                                      .dy = d,
                                      .x = qk_heads(l, &t->qkv),
                                      .positions = r->positions,
                                      .table = rope_table(r, l),
                                      .q_gain = lt_exec_weight(r, LT_PARAM_Q_NORM, layer),
                                      .k_gain = lt_exec_weight(r, LT_PARAM_K_NORM, layer),
                                      .rstd = t->rstd_qk,
                                      .gain_offset = l->norm_gain_offset,
                                      .n_q = l->n_heads});
    }
    LT_TRY(rotate(r, l, dqkv, true));
    if (!l->qk_norm) {
        return LT_OK;
    }
    LT_TRY(norm_bwd(r, l, layer, t, b, false));
    return norm_bwd(r, l, layer, t, b, true);
}

lt_err lt_attention_block_bwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                              lt_recompute level) {
    const lt_layer_spec l = lt_exec_layer(r, layer);
    const lt_norm norm = norm1(layer, t), post = post_norm(layer, t);
    const lt_attention_args fwd = attention_args(r, &l, layer, t);
    lt_tensor dproj = b->dx;

    /* Recompute what was dropped: h1, and q and k after their norm. */
    if (level == LT_RECOMPUTE_SELECTIVE) {
        LT_TRY(lt_block_again(r, &l, &norm, t->h1, t->x_in));
        LT_TRY(l.qk_norm ? qk_fwd(r, &l, layer, t) : LT_OK);
    }
    LT_TRY(lt_context_attention_begin(r, &fwd));
    LT_TRY(lt_block_end_bwd(r, &l, &post, b, t->proj, &dproj));
    LT_TRY(lt_tp_linear_bwd_gathered(r, b->datt, r->n_tp > 1 ? b->branch : dproj, dproj, t->att,
                                     LT_PARAM_ATTN_OUT, LT_PARAM_ATTN_OUT_BIAS, layer));
    LT_TRY(lt_context_attention_bwd(
        r, &(lt_attention_bwd_args){.dq = q_of(r, &l, &b->dqkv),
                                    .dk = k_of(r, &l, &b->dqkv),
                                    .dv = v_of(r, &l, &b->dqkv),
                                    .dsinks = lt_exec_gradient(r, LT_PARAM_SINKS, layer),
                                    .delta = b->delta,
                                    .dout = lt_heads(r, &b->datt, 0, l.n_heads, l.value_dim),
                                    .fwd = fwd}));
    LT_TRY(qk_bwd(r, &l, layer, t, b));
    LT_TRY(lt_tp_linear_bwd_scattered(r, b->dh, b->dqkv, qkv_input(r, &l, t), LT_PARAM_QKV,
                                      LT_PARAM_QKV_BIAS, layer));
    return lt_block_begin_bwd(r, &l, &norm, b, t->x_in);
}
