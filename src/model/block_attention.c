/* block_attention.c: norm, q k v, per-head norms, rotation, attention, output projection; and the
 * way back.
 *
 * q, k and v come from one product and stay in its rows: heads [0, H) of a row are q, [H, H + G) k,
 * [H + G, H + 2G) v. Attention reads them in place as strided views. Without per-head norms the
 * rotation is in place too, and backward undoes it on the gradients; with them, the raw rows are
 * kept (the norm's input) and q, k go to qk, through norm and rotation in one op (qk_norm). */
#include "model/block.h"

static lt_norm norm1(int layer, const lt_layer_acts *t) {
    return (lt_norm){LT_PARAM_NORM1, LT_PARAM_NORM1_BIAS, layer, t->mean1, t->rstd1};
}

static lt_norm post_norm(int layer, const lt_layer_acts *t) {
    return (lt_norm){LT_PARAM_POST_NORM1, LT_PARAM_KIND_COUNT, layer, {0}, t->rstd_post1};
}

/* (R, count, D): heads of each row, for the ops that work a row at a time. */
static lt_tensor row_heads(const lt_exec *r, const lt_tensor *x, int64_t first, int64_t count) {
    const int64_t d = r->spec->head_dim;
    const lt_tensor cols = lt_tensor_cols(x, first * d, count * d);
    return lt_tensor_split_last(&cols, count, d);
}

const lt_tensor *lt_attention_qk(const lt_exec *r, const lt_layer_acts *t) {
    return r->spec->qk_norm ? &t->qk : &t->qkv;
}

/* rstd_qk of q's heads, and of k's, where their norm is an op of its own. */
static lt_tensor rstd_of(const lt_exec *r, const lt_layer_acts *t, bool keys) {
    const int64_t R = r->batch * r->seq, H = r->spec->n_heads, G = r->spec->n_kv_heads;
    return keys ? lt_tensor_rows(&t->rstd_qk, R * H, R * G) : lt_tensor_rows(&t->rstd_qk, 0, R * H);
}

static lt_tensor rope_table(const lt_exec *r, int layer) {
    return lt_model_layer_window(r->spec, layer) > 0 ? r->rope_local : r->rope;
}

/* Norm and rotation are one op where the spec has both, of whole heads. */
static bool norm_and_rotate(const lt_exec *r) {
    return r->spec->qk_norm && r->spec->pos == LT_POS_ROPE &&
           2 * lt_rope_columns(r->spec) == r->spec->head_dim;
}

static lt_err norm_fwd(lt_exec *r, int layer, const lt_layer_acts *t, bool keys) {
    const int64_t H = r->spec->n_heads, first = keys ? H : 0;
    const int64_t count = keys ? r->spec->n_kv_heads : H;
    return lt_exec_rmsnorm_fwd(
        r, &(lt_rmsnorm_args){
               .y = row_heads(r, &t->qk, first, count),
               .x = row_heads(r, &t->qkv, first, count),
               .gain = lt_exec_weight(r, keys ? LT_PARAM_K_NORM : LT_PARAM_Q_NORM, layer),
               .rstd = rstd_of(r, t, keys),
               .eps = r->spec->norm_eps,
               .gain_offset = r->spec->norm_gain_offset});
}

static lt_err rotate(lt_exec *r, int layer, const lt_tensor *qk, bool inverse) {
    const lt_tensor heads = row_heads(r, qk, 0, r->spec->n_heads + r->spec->n_kv_heads);
    if (r->spec->pos != LT_POS_ROPE) {
        return LT_OK;
    }
    return lt_exec_rope(r, &(lt_rope_args){.y = heads,
                                           .x = heads,
                                           .positions = r->positions,
                                           .table = rope_table(r, layer),
                                           .inverse = inverse});
}

/* q and k of qkv as attention wants them: normed to qk, rotated. */
static lt_err qk_fwd(lt_exec *r, int layer, const lt_layer_acts *t) {
    const int64_t H = r->spec->n_heads, G = r->spec->n_kv_heads;
    if (norm_and_rotate(r)) {
        return lt_exec_qk_norm_fwd(
            r, &(lt_qk_norm_args){.y = row_heads(r, &t->qk, 0, H + G),
                                  .x = row_heads(r, &t->qkv, 0, H + G),
                                  .positions = r->positions,
                                  .table = rope_table(r, layer),
                                  .q_gain = lt_exec_weight(r, LT_PARAM_Q_NORM, layer),
                                  .k_gain = lt_exec_weight(r, LT_PARAM_K_NORM, layer),
                                  .rstd = t->rstd_qk,
                                  .eps = r->spec->norm_eps,
                                  .gain_offset = r->spec->norm_gain_offset,
                                  .n_q = H});
    }
    if (r->spec->qk_norm) {
        LT_TRY(norm_fwd(r, layer, t, false));
        LT_TRY(norm_fwd(r, layer, t, true));
    }
    return rotate(r, layer, lt_attention_qk(r, t), false);
}

static lt_attention_args attention_args(const lt_exec *r, int layer, const lt_layer_acts *t) {
    const int64_t H = r->spec->n_heads, G = r->spec->n_kv_heads;
    const lt_tensor *qk = lt_attention_qk(r, t);
    return (lt_attention_args){.out = lt_heads(r, &t->att, 0, H),
                               .lse = t->lse,
                               .q = lt_heads(r, qk, 0, H),
                               .k = lt_heads(r, qk, H, G),
                               .v = lt_heads(r, &t->qkv, H + G, G),
                               .doc_start = r->doc_start,
                               .scale = lt_model_attn_scale(r->spec),
                               .softcap = r->spec->attn_softcap,
                               .window = lt_model_layer_window(r->spec, layer),
                               .causal = true};
}

lt_err lt_attention_qkv_fwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                            lt_tensor stream) {
    const lt_norm norm = norm1(layer, t);
    const lt_tensor none = {0};
    if (stream.data == NULL) {
        LT_TRY(lt_norm_fwd(r, &norm, t->h1, t->x_in, none, none));
    } else {
        LT_TRY(lt_norm_fwd(r, &norm, t->h1, stream, b->branch, t->x_in));
    }
    LT_TRY(lt_linear_fwd(r, t->qkv, t->h1, LT_PARAM_QKV, LT_PARAM_QKV_BIAS, layer));
    return qk_fwd(r, layer, t);
}

lt_err lt_attention_out_fwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b) {
    const lt_tensor none = {0};
    if (!r->spec->post_norms) {
        return lt_linear_fwd(r, b->branch, t->att, LT_PARAM_ATTN_OUT, LT_PARAM_ATTN_OUT_BIAS,
                             layer);
    }
    const lt_norm post = post_norm(layer, t);
    LT_TRY(lt_linear_fwd(r, t->proj, t->att, LT_PARAM_ATTN_OUT, LT_PARAM_ATTN_OUT_BIAS, layer));
    return lt_norm_fwd(r, &post, b->branch, t->proj, none, none);
}

lt_err lt_attention_block_fwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                              lt_tensor stream) {
    LT_TRY(lt_attention_qkv_fwd(r, layer, t, b, stream));
    const lt_attention_args args = attention_args(r, layer, t);
    LT_TRY(lt_exec_attention_fwd(r, &args));
    return lt_attention_out_fwd(r, layer, t, b);
}

static lt_err norm_bwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_tensor *dqkv,
                       bool keys) {
    const lt_param_kind gain = keys ? LT_PARAM_K_NORM : LT_PARAM_Q_NORM;
    const int64_t H = r->spec->n_heads, first = keys ? H : 0;
    const int64_t count = keys ? r->spec->n_kv_heads : H;
    const lt_tensor d = row_heads(r, dqkv, first, count);
    return lt_exec_rmsnorm_bwd(r, &(lt_rmsnorm_bwd_args){.dx = d,
                                                         .dy = d,
                                                         .x = row_heads(r, &t->qkv, first, count),
                                                         .dgain = lt_exec_gradient(r, gain, layer),
                                                         .gain = lt_exec_weight(r, gain, layer),
                                                         .rstd = rstd_of(r, t, keys),
                                                         .gain_offset = r->spec->norm_gain_offset});
}

/* Gradients of q and k behind rotation and norm to those of qkv, in place. */
static lt_err qk_bwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_tensor *dqkv) {
    const int64_t H = r->spec->n_heads, G = r->spec->n_kv_heads;
    const lt_tensor d = row_heads(r, dqkv, 0, H + G);
    if (norm_and_rotate(r)) {
        return lt_exec_qk_norm_bwd(
            r, &(lt_qk_norm_bwd_args){.dx = d,
                                      .dq_gain = lt_exec_gradient(r, LT_PARAM_Q_NORM, layer),
                                      .dk_gain = lt_exec_gradient(r, LT_PARAM_K_NORM, layer),
                                      .dy = d,
                                      .x = row_heads(r, &t->qkv, 0, H + G),
                                      .positions = r->positions,
                                      .table = rope_table(r, layer),
                                      .q_gain = lt_exec_weight(r, LT_PARAM_Q_NORM, layer),
                                      .k_gain = lt_exec_weight(r, LT_PARAM_K_NORM, layer),
                                      .rstd = t->rstd_qk,
                                      .gain_offset = r->spec->norm_gain_offset,
                                      .n_q = H});
    }
    LT_TRY(rotate(r, layer, dqkv, true));
    if (!r->spec->qk_norm) {
        return LT_OK;
    }
    LT_TRY(norm_bwd(r, layer, t, dqkv, false));
    return norm_bwd(r, layer, t, dqkv, true);
}

/* Gradient of the output projection's result: the stream's own, or through the post norm. */
static lt_err out_bwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b) {
    lt_tensor dproj = b->dx;
    if (r->spec->post_norms) {
        const lt_norm post = post_norm(layer, t);
        dproj = b->branch;
        LT_TRY(lt_norm_bwd(r, &post, dproj, b->dx, t->proj, false));
    }
    return lt_linear_bwd(r, b->datt, dproj, t->att, LT_PARAM_ATTN_OUT, LT_PARAM_ATTN_OUT_BIAS,
                         layer, false);
}

lt_err lt_attention_block_bwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                              lt_recompute level) {
    const int64_t H = r->spec->n_heads, G = r->spec->n_kv_heads;
    const lt_norm norm = norm1(layer, t);
    const lt_tensor none = {0};

    /* Redo what was dropped: h1, and q and k behind their norm. */
    if (level == LT_RECOMPUTE_SELECTIVE) {
        LT_TRY(lt_norm_fwd(r, &norm, t->h1, t->x_in, none, none));
        LT_TRY(r->spec->qk_norm ? qk_fwd(r, layer, t) : LT_OK);
    }
    LT_TRY(out_bwd(r, layer, t, b));
    LT_TRY(lt_exec_attention_bwd(r, &(lt_attention_bwd_args){.dq = lt_heads(r, &b->dqkv, 0, H),
                                                             .dk = lt_heads(r, &b->dqkv, H, G),
                                                             .dv = lt_heads(r, &b->dqkv, H + G, G),
                                                             .delta = b->delta,
                                                             .dout = lt_heads(r, &b->datt, 0, H),
                                                             .fwd = attention_args(r, layer, t)}));
    LT_TRY(qk_bwd(r, layer, t, &b->dqkv));
    LT_TRY(lt_linear_bwd(r, b->dh, b->dqkv, t->h1, LT_PARAM_QKV, LT_PARAM_QKV_BIAS, layer, false));
    return lt_norm_bwd(r, &norm, b->dx, b->dh, t->x_in, true);
}
