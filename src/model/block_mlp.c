/* block_mlp.c: norm, up, activation, down; or experts (block_moe.c) in the place of the last
 * three. */
#include "model/block.h"

static lt_norm norm2(int layer, const lt_layer_acts *t) {
    return (lt_norm){LT_PARAM_NORM2, LT_PARAM_NORM2_BIAS, layer, t->mean2, t->rstd2};
}

static lt_norm post_norm(int layer, const lt_layer_acts *t) {
    return (lt_norm){LT_PARAM_POST_NORM2, LT_PARAM_KIND_COUNT, layer, {0}, t->rstd_post2};
}

static lt_err activate(lt_exec *r, int layer, const lt_layer_acts *t) {
    return lt_exec_act_fwd(r, &(lt_act_args){.y = t->act,
                                             .x = t->up,
                                             .xielu_params = lt_exec_xielu(r, layer),
                                             .kind = (lt_act_kind)r->spec->act,
                                             .gated = r->spec->gated});
}

/* In one op where the activation needs nothing but its input. */
static bool plain(const lt_exec *r) {
    return !r->spec->gated && r->spec->act != LT_ACT_XIELU && r->model->held == NULL;
}
static lt_err up_fwd(lt_exec *r, int layer, const lt_layer_acts *t) {
    if (plain(r)) {
        return lt_linear_act_fwd(r, t->act, t->up, t->h2, LT_PARAM_UP, LT_PARAM_UP_BIAS, layer);
    }
    LT_TRY(lt_linear_fwd(r, t->up, t->h2, LT_PARAM_UP, LT_PARAM_UP_BIAS, layer));
    return activate(r, layer, t);
}

lt_err lt_mlp_block_fwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                        int64_t capacity) {
    const lt_norm norm = norm2(layer, t), post = post_norm(layer, t);
    const lt_tensor none = {0}, y = r->spec->post_norms ? t->mlp : b->branch;

    LT_TRY(lt_norm_fwd(r, &norm, t->h2, t->x_in, b->branch, t->x_mid));
    if (r->spec->n_experts > 0) {
        LT_TRY(lt_moe_fwd(r, layer, t, b, y, capacity));
    } else {
        LT_TRY(up_fwd(r, layer, t));
        LT_TRY(lt_linear_fwd(r, y, t->act, LT_PARAM_DOWN, LT_PARAM_DOWN_BIAS, layer));
    }
    return r->spec->post_norms ? lt_norm_fwd(r, &post, b->branch, t->mlp, none, none) : LT_OK;
}

/* d(act) goes where act was, d(up) where up was, or where act was where one op makes both: what was
 * there has been read for the last time by then. */
static lt_err dense_bwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                        lt_tensor dy, lt_recompute level) {
    if (level == LT_RECOMPUTE_SELECTIVE) {
        LT_TRY(activate(r, layer, t));
    }
    if (plain(r)) {
        LT_TRY(lt_linear_act_bwd(r, t->act, dy, t->act, t->up, LT_PARAM_DOWN, LT_PARAM_DOWN_BIAS,
                                 layer));
        return lt_linear_bwd(r, b->dh, t->act, t->h2, LT_PARAM_UP, LT_PARAM_UP_BIAS, layer, false);
    }
    LT_TRY(lt_linear_bwd(r, t->act, dy, t->act, LT_PARAM_DOWN, LT_PARAM_DOWN_BIAS, layer, false));
    LT_TRY(lt_exec_act_bwd(
        r, &(lt_act_bwd_args){.dx = t->up,
                              .dy = t->act,
                              .x = t->up,
                              .xielu_params = lt_exec_xielu(r, layer),
                              .dxielu_params = lt_exec_gradient(r, LT_PARAM_XIELU, layer),
                              .kind = (lt_act_kind)r->spec->act,
                              .gated = r->spec->gated}));
    return lt_linear_bwd(r, b->dh, t->up, t->h2, LT_PARAM_UP, LT_PARAM_UP_BIAS, layer, false);
}

lt_err lt_mlp_block_bwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                        lt_recompute level, float aux_scale) {
    const lt_norm norm = norm2(layer, t), post = post_norm(layer, t);
    const lt_tensor none = {0};
    lt_tensor dy = b->dx;

    if (level == LT_RECOMPUTE_SELECTIVE) {
        LT_TRY(lt_norm_fwd(r, &norm, t->h2, t->x_mid, none, none));
    }
    if (r->spec->post_norms) {
        dy = b->branch;
        LT_TRY(lt_norm_bwd(r, &post, dy, b->dx, t->mlp, false));
    }
    if (r->spec->n_experts > 0) {
        LT_TRY(lt_moe_bwd(r, layer, t, b, dy, level, aux_scale));
    } else {
        LT_TRY(dense_bwd(r, layer, t, b, dy, level));
    }
    return lt_norm_bwd(r, &norm, b->dx, b->dh, t->x_mid, true);
}
