/* block_attention.c: norm, q k v, per-head norms, rotation, attention, output projection; and the way back.
 *
 * q, k and v come from one product and stay in its rows: heads [0, H) of a row are q, [H, H + G) k, [H + G, H + 2G) v. Attention
 * reads them in place as strided views. Without per-head norms the rotation is in place too, and backward undoes it on the gradients; with
 * them, the raw rows are kept (the norm's input) and q, k go to qk. */
#include "model/block.h"

static lt_norm norm1(int layer, const lt_layer_acts *t) {
    return (lt_norm){LT_PARAM_NORM1, LT_PARAM_NORM1_BIAS, layer, t->mean1, t->rstd1};
}

static lt_norm post_norm(int layer, const lt_layer_acts *t) {
    return (lt_norm){LT_PARAM_POST_NORM1, LT_PARAM_KIND_COUNT, layer, {0}, t->rstd_post1};
}

/* (R, count, D): heads of each row, for the ops that work a row at a time. */
static lt_tensor row_heads(const lt_run *r, const lt_tensor *x, int64_t first, int64_t count) {
    const int64_t d = r->spec->head_dim;
    const lt_tensor cols = lt_tensor_cols(x, first * d, count * d);
    return lt_tensor_split_last(&cols, count, d);
}

const lt_tensor *lt_attention_qk(const lt_run *r, const lt_layer_acts *t) {
    return r->spec->qk_norm ? &t->qk : &t->qkv;
}

static lt_err qk_norm_fwd(lt_run *r, int layer, const lt_layer_acts *t) {
    const int64_t H = r->spec->n_heads, G = r->spec->n_kv_heads;
    const lt_rmsnorm_args q = {.y = row_heads(r, &t->qk, 0, H),
                               .x = row_heads(r, &t->qkv, 0, H),
                               .gain = lt_run_weight(r, LT_PARAM_Q_NORM, layer),
                               .rstd = t->rstd_q,
                               .eps = r->spec->norm_eps,
                               .gain_offset = r->spec->norm_gain_offset};
    const lt_rmsnorm_args k = {.y = row_heads(r, &t->qk, H, G),
                               .x = row_heads(r, &t->qkv, H, G),
                               .gain = lt_run_weight(r, LT_PARAM_K_NORM, layer),
                               .rstd = t->rstd_k,
                               .eps = r->spec->norm_eps,
                               .gain_offset = r->spec->norm_gain_offset};
    LT_TRY(lt_run_rmsnorm_fwd(r, &q));
    return lt_run_rmsnorm_fwd(r, &k);
}

static lt_err rotate(lt_run *r, int layer, const lt_tensor *qk, bool inverse) {
    const bool local = lt_model_layer_window(r->spec, layer) > 0;
    const lt_tensor heads = row_heads(r, qk, 0, r->spec->n_heads + r->spec->n_kv_heads);
    if (r->spec->pos != LT_POS_ROPE) {
        return LT_OK;
    }
    return lt_run_rope(r, &(lt_rope_args){.y = heads,
                                          .x = heads,
                                          .positions = r->positions,
                                          .table = local ? r->rope_local : r->rope,
                                          .inverse = inverse});
}

static lt_attention_args attention_args(const lt_run *r, int layer, const lt_layer_acts *t) {
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

lt_err lt_attention_qkv_fwd(lt_run *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                            lt_tensor stream) {
    const lt_norm norm = norm1(layer, t);
    const lt_tensor none = {0};
    if (stream.data == NULL) {
        LT_TRY(lt_norm_fwd(r, &norm, t->h1, t->x_in, none, none));
    } else {
        LT_TRY(lt_norm_fwd(r, &norm, t->h1, stream, b->branch, t->x_in));
    }
    LT_TRY(lt_linear_fwd(r, t->qkv, t->h1, LT_PARAM_QKV, LT_PARAM_QKV_BIAS, layer));
    if (r->spec->qk_norm) {
        LT_TRY(qk_norm_fwd(r, layer, t));
    }
    return rotate(r, layer, lt_attention_qk(r, t), false);
}

lt_err lt_attention_out_fwd(lt_run *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b) {
    const lt_tensor none = {0};
    if (!r->spec->post_norms) {
        return lt_linear_fwd(r, b->branch, t->att, LT_PARAM_ATTN_OUT, LT_PARAM_ATTN_OUT_BIAS,
                             layer);
    }
    const lt_norm post = post_norm(layer, t);
    LT_TRY(lt_linear_fwd(r, t->proj, t->att, LT_PARAM_ATTN_OUT, LT_PARAM_ATTN_OUT_BIAS, layer));
    return lt_norm_fwd(r, &post, b->branch, t->proj, none, none);
}

lt_err lt_attention_block_fwd(lt_run *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                              lt_tensor stream) {
    LT_TRY(lt_attention_qkv_fwd(r, layer, t, b, stream));
    const lt_attention_args args = attention_args(r, layer, t);
    LT_TRY(lt_run_attention_fwd(r, &args));
    return lt_attention_out_fwd(r, layer, t, b);
}

static lt_err qk_norm_bwd(lt_run *r, int layer, const lt_layer_acts *t, const lt_tensor *dqkv) {
    const int64_t H = r->spec->n_heads, G = r->spec->n_kv_heads;
    const lt_tensor dq = row_heads(r, dqkv, 0, H), dk = row_heads(r, dqkv, H, G);
    LT_TRY(lt_run_rmsnorm_bwd(
        r, &(lt_rmsnorm_bwd_args){.dx = dq,
                                  .dy = dq,
                                  .x = row_heads(r, &t->qkv, 0, H),
                                  .dgain = lt_run_gradient(r, LT_PARAM_Q_NORM, layer),
                                  .gain = lt_run_weight(r, LT_PARAM_Q_NORM, layer),
                                  .rstd = t->rstd_q,
                                  .gain_offset = r->spec->norm_gain_offset}));
    return lt_run_rmsnorm_bwd(
        r, &(lt_rmsnorm_bwd_args){.dx = dk,
                                  .dy = dk,
                                  .x = row_heads(r, &t->qkv, H, G),
                                  .dgain = lt_run_gradient(r, LT_PARAM_K_NORM, layer),
                                  .gain = lt_run_weight(r, LT_PARAM_K_NORM, layer),
                                  .rstd = t->rstd_k,
                                  .gain_offset = r->spec->norm_gain_offset});
}

/* Gradient of the output projection's result: the stream's own, or through the post norm. */
static lt_err out_bwd(lt_run *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b) {
    lt_tensor dproj = b->dx;
    if (r->spec->post_norms) {
        const lt_norm post = post_norm(layer, t);
        dproj = b->branch;
        LT_TRY(lt_norm_bwd(r, &post, dproj, b->dx, t->proj, false));
    }
    return lt_linear_bwd(r, b->datt, dproj, t->att, LT_PARAM_ATTN_OUT, LT_PARAM_ATTN_OUT_BIAS,
                         layer, false);
}

lt_err lt_attention_block_bwd(lt_run *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                              lt_recompute level) {
    const int64_t H = r->spec->n_heads, G = r->spec->n_kv_heads;
    const lt_norm norm = norm1(layer, t);
    const lt_tensor none = {0};

    if (level ==
        LT_RECOMPUTE_SELECTIVE) { /* Redo what was dropped: h1, and q and k behind their norm. */
        LT_TRY(lt_norm_fwd(r, &norm, t->h1, t->x_in, none, none));
        if (r->spec->qk_norm) {
            LT_TRY(qk_norm_fwd(r, layer, t));
            LT_TRY(rotate(r, layer, &t->qk, false));
        }
    }
    LT_TRY(out_bwd(r, layer, t, b));
    LT_TRY(lt_run_attention_bwd(r, &(lt_attention_bwd_args){.dq = lt_heads(r, &b->dqkv, 0, H),
                                                            .dk = lt_heads(r, &b->dqkv, H, G),
                                                            .dv = lt_heads(r, &b->dqkv, H + G, G),
                                                            .delta = b->delta,
                                                            .dout = lt_heads(r, &b->datt, 0, H),
                                                            .fwd = attention_args(r, layer, t)}));
    LT_TRY(rotate(r, layer, &b->dqkv, true));
    if (r->spec->qk_norm) {
        LT_TRY(qk_norm_bwd(r, layer, t, &b->dqkv));
    }
    LT_TRY(lt_linear_bwd(r, b->dh, b->dqkv, t->h1, LT_PARAM_QKV, LT_PARAM_QKV_BIAS, layer, false));
    return lt_norm_bwd(r, &norm, b->dx, b->dh, t->x_in, true);
}
