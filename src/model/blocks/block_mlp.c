/* block_mlp.c: norm, up, activation, down; or experts (block_moe.c) instead of the last three. */
#include "model/blocks/block.h"

#include "model/blocks/tp.h"

static lt_norm norm2(int layer, const lt_layer_acts *t) {
    return (lt_norm){LT_PARAM_NORM2, LT_PARAM_NORM2_BIAS, layer, t->mean2, t->rstd2};
}

static lt_norm post_norm(int layer, const lt_layer_acts *t) {
    return (lt_norm){LT_PARAM_POST_NORM2, LT_PARAM_KIND_COUNT, layer, {0}, t->rstd_post2};
}

/* The input of the first matrix: the norm's result, or the stream itself. */
static lt_tensor up_input(const lt_exec *r, const lt_layer_spec *l, const lt_layer_acts *t) {
    return lt_block_input(r, l, t->h2, t->x_mid);
}

lt_err lt_mlp_activate(lt_exec *r, const lt_layer_spec *l, int layer, const lt_layer_acts *t) {
    return lt_exec_act_fwd(r, &(lt_act_args){.y = t->act,
                                             .x = t->up,
                                             .xielu_params = lt_exec_xielu(r, layer),
                                             .kind = (lt_act_kind)l->act,
                                             .gated = l->gated,
                                             .alpha = l->swiglu_alpha,
                                             .limit = l->swiglu_limit});
}

lt_err lt_mlp_activate_bwd(lt_exec *r, const lt_layer_spec *l, int layer, const lt_layer_acts *t) {
    return lt_exec_act_bwd(
        r, &(lt_act_bwd_args){.dx = t->up,
                              .dy = t->act,
                              .x = t->up,
                              .xielu_params = lt_exec_xielu(r, layer),
                              .dxielu_params = lt_exec_gradient(r, LT_PARAM_XIELU, layer),
                              .kind = (lt_act_kind)l->act,
                              .gated = l->gated,
                              .alpha = l->swiglu_alpha,
                              .limit = l->swiglu_limit});
}

/* Whether product and activation can be one op: if the activation needs only its input. */
static bool plain(const lt_exec *r, const lt_layer_spec *l) {
    return !l->gated && l->act != LT_ACT_XIELU && r->model->stored == NULL;
}
static lt_err up_fwd(lt_exec *r, const lt_layer_spec *l, int layer, const lt_layer_acts *t) {
    const lt_tensor h = up_input(r, l, t);
    if (plain(r, l)) {
        LT_TRY(lt_block_gather(r, l, t->h2, t->x_mid));
        return lt_linear_act_fwd(r, t->act, t->up, h, LT_PARAM_UP, LT_PARAM_UP_BIAS, layer);
    }
    LT_TRY(lt_tp_linear_fwd_gathered(r, t->up, h, lt_block_own_input(r, l, t->h2, t->x_mid),
                                     LT_PARAM_UP, LT_PARAM_UP_BIAS, layer));
    return lt_mlp_activate(r, l, layer, t);
}

lt_err lt_mlp_block_fwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                        int64_t capacity) {
    const lt_layer_spec l = lt_exec_layer(r, layer);
    const lt_norm norm = norm2(layer, t), post = post_norm(layer, t);
    const lt_tensor y = lt_block_output(r, &l, b->branch, t->mlp);

    LT_TRY(lt_block_begin_fwd(r, &l, &norm, t->h2, t->x_mid, t->x_in, b->branch));
    if (l.n_experts > 0) {
        LT_TRY(lt_block_gather(r, &l, t->h2, t->x_mid));
        LT_TRY(lt_moe_fwd(r, layer, t, b, up_input(r, &l, t), y, capacity));
    } else {
        LT_TRY(up_fwd(r, &l, layer, t));
        LT_TRY(lt_tp_linear_fwd_scattered(r, y, t->act, LT_PARAM_DOWN, LT_PARAM_DOWN_BIAS, layer));
    }
    return lt_block_end_fwd(r, &l, &post, b->branch, t->mlp);
}

/* d(act) overwrites act, and d(up) overwrites up, or act if one op makes both; their contents are
 * no longer needed by then. own: rows of dy that are held here. */
static lt_err dense_bwd(lt_exec *r, const lt_layer_spec *l, int layer, const lt_layer_acts *t,
                        const lt_batch_acts *b, lt_tensor own, lt_recompute level) {
    const lt_tensor h = up_input(r, l, t);
    lt_tensor dy = own;
    if (level == LT_RECOMPUTE_SELECTIVE) {
        LT_TRY(lt_mlp_activate(r, l, layer, t));
    }
    if (plain(r, l)) {
        LT_TRY(lt_block_gather_bwd(r, b, &dy));
        LT_TRY(lt_linear_act_bwd(r, t->act, dy, t->act, t->up, LT_PARAM_DOWN, LT_PARAM_DOWN_BIAS,
                                 layer));
        return lt_tp_linear_bwd_scattered(r, b->dh, t->act, h, LT_PARAM_UP, LT_PARAM_UP_BIAS,
                                          layer);
    }
    LT_TRY(lt_tp_linear_bwd_gathered(r, t->act, r->n_tp > 1 ? b->branch : own, own, t->act,
                                     LT_PARAM_DOWN, LT_PARAM_DOWN_BIAS, layer));
    LT_TRY(lt_mlp_activate_bwd(r, l, layer, t));
    return lt_tp_linear_bwd_scattered(r, b->dh, t->up, h, LT_PARAM_UP, LT_PARAM_UP_BIAS, layer);
}

lt_err lt_mlp_block_bwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                        lt_recompute level, float aux_scale) {
    const lt_layer_spec l = lt_exec_layer(r, layer);
    const lt_norm norm = norm2(layer, t), post = post_norm(layer, t);
    lt_tensor dy = b->dx;

    if (level == LT_RECOMPUTE_SELECTIVE) {
        LT_TRY(lt_block_again(r, &l, &norm, t->h2, t->x_mid));
    }
    LT_TRY(lt_block_end_bwd(r, &l, &post, b, t->mlp, &dy));
    if (l.n_experts > 0) {
        LT_TRY(lt_block_gather_bwd(r, b, &dy));
        LT_TRY(lt_moe_bwd(r, layer, t, b, up_input(r, &l, t), dy, level, aux_scale));
    } else {
        LT_TRY(dense_bwd(r, &l, layer, t, b, dy, level));
    }
    return lt_block_begin_bwd(r, &l, &norm, b, t->x_mid);
}
