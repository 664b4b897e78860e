/* block_moe.c: a mixture of experts instead of the MLP. The router chooses top_k experts a row; the
 * chosen rows are gathered in expert order, each expert's rows go through its own two matrices, and
 * combine weighs and adds them back.
 *
 * The number of rows of each expert stays on the device: the grouped products read expert_start
 * there. Between them, the activation runs over all R * K places; those beyond expert_start[E]
 * (rows dropped for capacity) hold old values, and their results are never read.
 *
 * Ranks of tp have columns of every expert. Each sends its own rows through the router, and all
 * choose from the gathered logits. The gradient of the weight that a row gives an expert is known
 * only after the parts of all ranks have been summed.
 *
 * Ranks that divide the experts (expert.h) send the gathered rows to the ranks that hold their
 * experts before the products, and get the results back after them; `here` are the layer's tensors
 * as the products see them. */
#include "model/blocks/block.h"

#include "model/files/decoded.h"
#include "model/lora/adapted.h"
#include "model/blocks/expert.h"
#include "model/blocks/tp.h"

static lt_err product(lt_exec *r, const lt_layer_acts *t, lt_tensor y, lt_tensor x, lt_tensor w) {
    return lt_exec_matmul_grouped(r, &(lt_matmul_grouped_args){.y = y,
                                                               .a = x,
                                                               .b = w,
                                                               .expert_start = t->expert_start,
                                                               .trans_b = true,
                                                               .fixed_order = r->fixed_order});
}

/* The same with the matrices of one range, whose results are some columns of y. */
static lt_err range_product(lt_exec *r, const lt_layer_acts *t, lt_tensor y, lt_tensor x,
                            const lt_weight_range *range) {
    const int64_t n = range->n_experts, rows = range->w.shape[0] / n, cols = range->w.shape[1];
    lt_tensor b = range->w;
    b.n_dims = 3;
    b.shape[0] = n, b.shape[1] = rows, b.shape[2] = cols;
    b.stride[0] = rows * cols, b.stride[1] = cols, b.stride[2] = 1;
    return lt_exec_matmul_grouped(
        r, &(lt_matmul_grouped_args){
               .y = lt_tensor_cols(&y, range->first_row, rows),
               .a = x,
               .b = b,
               .expert_start = t->expert_start,
               .trans_b = true,
               .fixed_order = r->fixed_order,
               .b_packed = range->packed,
               .packed_step = range->packed == NULL
                                  ? 0
                                  : r->backend->matmul_pack_bytes(r->device, &range->w, true) /
                                        (size_t)n,
               .b_each = range->each});
}

static lt_err all_products(lt_exec *r, int layer, const lt_layer_acts *t, lt_param_kind kind,
                           lt_tensor y, lt_tensor x) {
    const lt_stored_weight *h = lt_exec_stored(r, kind, layer);
    const int index = lt_param_index(&r->model->table, kind, layer);
    if (h == NULL) {
        return product(r, t, y, x, lt_exec_weight(r, kind, layer));
    }
    if (lt_decoded_has(r, index)) {
        return lt_decoded_experts_forward(r, index, y, x, t->expert_start);
    }
    for (int i = 0; i < h->n_ranges; i++) {
        LT_TRY(range_product(r, t, y, x, &h->ranges[i]));
    }
    return LT_OK;
}

static lt_err add_bias(lt_exec *r, int layer, const lt_layer_acts *t, lt_param_kind bias,
                       lt_tensor y) {
    const lt_tensor b = lt_exec_bias(r, bias, layer);
    return b.data == NULL
               ? LT_OK
               : lt_exec_moe_bias_fwd(
                     r, &(lt_moe_bias_args){.y = y, .bias = b, .expert_start = t->expert_start});
}

/* y rows of each expert = its x rows times the transpose of its matrix [+ its bias]. */
static lt_err experts_fwd(lt_exec *r, int layer, const lt_layer_acts *t, lt_param_kind kind,
                          lt_param_kind bias, lt_tensor y, lt_tensor x) {
    LT_TRY(all_products(r, layer, t, kind, y, x));
    LT_TRY(lt_lora_experts_forward(r, y, x, t->expert_start, 0, kind, layer));
    return add_bias(r, layer, t, bias, y);
}

/* dw += dy^T x of each expert (the gradient of an expert that no row chose is left unchanged;
 * if adapters are trained, theirs are computed instead), dbias likewise, then dx = dy w; dx may be
 * x. */
static lt_err experts_bwd(lt_exec *r, int layer, const lt_layer_acts *t, lt_param_kind kind,
                          lt_param_kind bias, lt_tensor dx, lt_tensor dy, lt_tensor x) {
    const lt_tensor dw = lt_exec_gradient(r, kind, layer),
                    dbias = lt_exec_bias_gradient(r, bias, layer);
    if (dbias.data != NULL) {
        LT_TRY(lt_exec_moe_bias_bwd(
            r, &(lt_moe_bias_bwd_args){.dbias = dbias, .dy = dy, .expert_start = t->expert_start}));
    }
    LT_TRY(lt_lora_experts_gradients(r, dy, x, t->expert_start, kind, layer));
    if (dw.data != NULL) {
        LT_TRY(lt_exec_matmul_grouped(r, &(lt_matmul_grouped_args){.y = dw,
                                                                   .a = dy,
                                                                   .b = x,
                                                                   .expert_start = t->expert_start,
                                                                   .weights = true,
                                                                   .accumulate = true}));
    }
    const int index = lt_param_index(&r->model->table, kind, layer);
    if (lt_decoded_has(r, index)) {
        LT_TRY(lt_decoded_experts_backward(r, index, dx, dy, t->expert_start));
    } else {
        const lt_tensor w = lt_exec_weight(r, kind, layer);
        LT_TRY(lt_exec_matmul_grouped(
            r,
            &(lt_matmul_grouped_args){.y = dx, .a = dy, .b = w, .expert_start = t->expert_start}));
    }
    return lt_lora_experts_backward(r, dx, t->expert_start, kind, layer);
}

static lt_err gather(lt_exec *r, const lt_layer_spec *l, const lt_layer_acts *t, lt_tensor h) {
    return lt_exec_moe_gather_fwd(r, &(lt_moe_gather_args){.y = lt_experts_own_rows(r, t),
                                                           .x = h,
                                                           .slot_row = t->slot_row,
                                                           .expert_start = t->expert_start,
                                                           .top_k = l->top_k});
}

static lt_err combine(lt_exec *r, const lt_layer_acts *t, lt_tensor y) {
    return lt_exec_moe_combine_fwd(r, &(lt_moe_combine_args){.y = y,
                                                             .x = t->down,
                                                             .weights = t->weights,
                                                             .slot_row = t->slot_row,
                                                             .expert_start = t->expert_start});
}

/* The second product and what follows, as ranks of tp compute it that have some columns of every
 * expert each (exec.pieces). */
static lt_err down_in_pieces(lt_exec *r, int layer, const lt_layer_acts *t, lt_tensor y) {
    const lt_tensor w = lt_exec_weight(r, LT_PARAM_DOWN, layer);
    const int64_t each = t->act.shape[1] / r->pieces;
    LT_ASSERT(each * r->pieces == t->act.shape[1] && r->experts == NULL);
    for (int i = 0; i < r->pieces; i++) {
        const lt_tensor x = lt_tensor_cols(&t->act, i * each, each);
        LT_TRY(product(r, t, t->down, x, lt_tensor_cols(&w, i * each, each)));
        LT_TRY(lt_lora_experts_forward(r, t->down, x, t->expert_start, i * each, LT_PARAM_DOWN,
                                       layer));
        LT_TRY(i > 0 ? LT_OK : add_bias(r, layer, t, LT_PARAM_DOWN_BIAS, t->down));
        LT_TRY(combine(r, t, lt_tensor_rows(&r->piece, 0, y.shape[0])));
        LT_TRY(lt_exec_add_piece(r, y, i));
    }
    return LT_OK;
}

lt_err lt_moe_fwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                  lt_tensor h, lt_tensor y, int64_t capacity) {
    const lt_layer_spec l = lt_exec_layer(r, layer);
    const lt_tensor aux = b->aux.data == NULL
                              ? (lt_tensor){0}
                              : lt_tensor_1d((float *)b->aux.data + 2 * layer, LT_F32, 2);

    LT_TRY(lt_linear_fwd(r, lt_tp_own_rows(r, t->logits), lt_tp_own_rows(r, h), LT_PARAM_ROUTER,
                         LT_PARAM_ROUTER_BIAS, layer));
    LT_TRY(lt_tp_gather(r, t->logits, lt_tp_own_rows(r, t->logits)));
    LT_TRY(lt_exec_moe_route_fwd(r, &(lt_moe_route_args){.probs = t->probs,
                                                         .experts = t->experts,
                                                         .weights = t->weights,
                                                         .slot_row = t->slot_row,
                                                         .expert_start = t->expert_start,
                                                         .aux = aux,
                                                         .logits = t->logits,
                                                         .capacity = capacity,
                                                         .normalise = l.moe_normalise}));
    LT_TRY(gather(r, &l, t, h));
    LT_TRY(lt_experts_meet(r, layer, t));
    const lt_layer_acts here = lt_experts_here(r, t);
    LT_TRY(lt_experts_send(r, t, here.xg, lt_experts_own_rows(r, t)));
    LT_TRY(experts_fwd(r, layer, &here, LT_PARAM_UP, LT_PARAM_UP_BIAS, here.up, here.xg));
    LT_TRY(lt_mlp_activate(r, &l, layer, &here));
    if (r->pieces > 1) {
        return down_in_pieces(r, layer, t, y);
    }
    LT_TRY(experts_fwd(r, layer, &here, LT_PARAM_DOWN, LT_PARAM_DOWN_BIAS, here.down, here.act));
    LT_TRY(lt_experts_return(r, t, t->down, here.down));
    return combine(r, t, y);
}

/* Through the router: dh += dlogits W, dW += dlogits^T h. The products need one type, so BF16
 * rounds dlogits first. */
static lt_err router_bwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                         lt_tensor h, float aux_scale) {
    const lt_layer_spec l = lt_exec_layer(r, layer);
    LT_TRY(lt_exec_moe_route_bwd(
        r, &(lt_moe_route_bwd_args){.dlogits = b->dlogits,
                                    .dweights = b->dweights,
                                    .logits = t->logits,
                                    .probs = t->probs,
                                    .experts = t->experts,
                                    .weights = t->weights,
                                    .expert_start = t->expert_start,
                                    .aux_scale = b->n_labels,
                                    .aux_coef = r->spec->moe_aux_coef * aux_scale,
                                    .z_coef = r->spec->moe_z_coef * aux_scale,
                                    .normalise = l.moe_normalise}));
    if (b->dlogits_cast.data != b->dlogits.data) {
        LT_TRY(lt_exec_cast(r, &(lt_cast_args){.y = b->dlogits_cast, .x = b->dlogits}));
    }
    return lt_linear_bwd(r, lt_tp_own_rows(r, b->dh), lt_tp_own_rows(r, b->dlogits_cast),
                         lt_tp_own_rows(r, h), LT_PARAM_ROUTER, LT_PARAM_ROUTER_BIAS, layer, true);
}

lt_err lt_moe_bwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                  lt_tensor h, lt_tensor dy, lt_recompute level, float aux_scale) {
    const lt_layer_spec l = lt_exec_layer(r, layer);
    const lt_layer_acts here = lt_experts_here(r, t);
    const lt_tensor ddown = lt_experts_results(r, t, b->ddown);
    if (level == LT_RECOMPUTE_SELECTIVE) {
        LT_TRY(gather(r, &l, t, h));
        LT_TRY(lt_experts_send(r, t, here.xg, lt_experts_own_rows(r, t)));
        LT_TRY(lt_mlp_activate(r, &l, layer, &here));
    }
    LT_TRY(lt_exec_moe_combine_bwd(r, &(lt_moe_combine_bwd_args){.dx = b->ddown,
                                                                 .dweights = b->dweights,
                                                                 .dy = dy,
                                                                 .x = t->down,
                                                                 .weights = t->weights,
                                                                 .slot_row = t->slot_row,
                                                                 .expert_start = t->expert_start}));
    LT_TRY(lt_tp_sum(r, b->dweights));
    LT_TRY(lt_experts_send(r, t, ddown, b->ddown));
    LT_TRY(
        experts_bwd(r, layer, &here, LT_PARAM_DOWN, LT_PARAM_DOWN_BIAS, here.act, ddown, here.act));
    LT_TRY(lt_mlp_activate_bwd(r, &l, layer, &here));
    LT_TRY(experts_bwd(r, layer, &here, LT_PARAM_UP, LT_PARAM_UP_BIAS, here.xg, here.up, here.xg));
    LT_TRY(lt_experts_return(r, t, lt_experts_own_rows(r, t), here.xg));
    LT_TRY(lt_exec_moe_gather_bwd(r, &(lt_moe_gather_bwd_args){.dx = b->dh,
                                                               .dy = lt_experts_own_rows(r, t),
                                                               .slot_row = t->slot_row,
                                                               .expert_start = t->expert_start,
                                                               .top_k = l.top_k}));
    LT_TRY(lt_tp_scatter(r, lt_tp_own_rows(r, b->dh), b->dh));
    return router_bwd(r, layer, t, b, h, aux_scale);
}
