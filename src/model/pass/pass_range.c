/* pass_range.c: the computation of a pass: embedding, layers, final norm, loss, and backward, in
 * ranges of layers over sets of activations. The parts are in block_*.c and loss.c.
 *
 *     load ──▶ forward [0, k) ── stream of layer k ──▶ forward [k, L) ── x_final ──▶ loss
 *              backward [0, k) ◀── gradient of it ──── backward [k, L) ◀──── dx ──────┘
 *
 * Between two layers of one range the sum of the residual stream and a block's branch is fused into
 * the next norm; at the end of a range it is a separate op. Both round the sum once, to the
 * model's type, and the norm reads the rounded sum, so dividing a pass into ranges changes no
 * bits. */
#include <math.h>
#include <string.h>

#include "model/lora/adapted.h"
#include "model/alloc.h"
#include "model/lora/dora.h"
#include "model/pass/pass_impl.h"
#include "model/blocks/tp.h"

static bool has_head(const lt_pass *p) {
    return p->end == p->exec.spec->n_layers;
}

static lt_norm final_norm(const lt_batch_acts *b) {
    return (lt_norm){LT_PARAM_FINAL_NORM, LT_PARAM_FINAL_NORM_BIAS, 0, b->mean_final,
                     b->rstd_final};
}

static int64_t capacity(const lt_exec *r, bool train) {
    const lt_model_spec *s = r->spec;
    const double rows = (double)(r->batch * r->seq);
    if (!train || s->n_experts == 0 || s->moe_capacity == 0) {
        return 0;
    }
    return (int64_t)ceil(s->moe_capacity * rows * (double)s->top_k / (double)s->n_experts);
}

static lt_err layer_fwd(lt_pass *p, int set, int layer, lt_tensor stream, bool train) {
    lt_exec *r = &p->exec;
    const lt_layer_acts *t = lt_pass_layer(p, set, layer);
    const lt_batch_acts *b = &p->sets[set].batch;
    r->fixed_order = p->options.exact;
    LT_TRY(lt_attention_block_fwd(r, layer, t, b, stream));
    LT_TRY(lt_mlp_block_fwd(r, layer, t, b, capacity(r, train)));
    p->recomputed_set = set;
    p->recomputed = layer;
    return LT_OK;
}

static int head_unit(const lt_pass *p) {
    return p->model->table.n_units - 1;
}

/* The stream before layer 0: with ranks of tp, this rank's rows of the sum over ranks. */
static lt_err embed(lt_pass *p, int set) {
    lt_exec *r = &p->exec;
    const lt_batch_acts *b = &p->sets[set].batch;
    const lt_tensor x = lt_pass_layer(p, set, 0)->x_in, y = r->n_tp > 1 ? b->branch : x;
    lt_open_span span;
    LT_TRY(lt_pass_enter(p, 0, LT_UNIT_WEIGHTS));
    LT_TRY(lt_timeline_begin(p->timeline, &span, LT_SPAN_EMBED, 0, 0));
    LT_TRY(lt_embedding_fwd(r, y, b->tokens));
    LT_TRY(lt_pass_leave(p, 0, LT_UNIT_WEIGHTS));
    LT_TRY(lt_tp_scatter(r, x, y));
    return lt_timeline_end(p->timeline, &span);
}

/* h_final = the final norm of x [+ add -> sum], for all rows. */
static lt_err normed(lt_pass *p, int set, lt_tensor x, lt_tensor add, lt_tensor sum) {
    const lt_batch_acts *b = &p->sets[set].batch;
    const lt_norm norm = final_norm(b);
    const lt_tensor own = lt_tp_own_rows(&p->exec, b->h_final);
    LT_TRY(lt_pass_enter(p, head_unit(p), LT_UNIT_WEIGHTS));
    LT_TRY(lt_final_norm_fwd(&p->exec, &norm, own, x, add, sum));
    return lt_tp_gather(&p->exec, b->h_final, own);
}

/* *stream: the stream to which the branch of layer end - 1 must be added. */
static lt_err layers_fwd(lt_pass *p, int set, int first, int end, bool train, lt_tensor *stream) {
    *stream = (lt_tensor){0};
    if (first == 0) {
        LT_TRY(embed(p, set));
    }
    for (int layer = first; layer < end; layer++) {
        lt_open_span span;
        LT_TRY(lt_pass_enter(p, 1 + layer, LT_UNIT_WEIGHTS));
        LT_TRY(lt_timeline_begin(p->timeline, &span, LT_SPAN_FORWARD, layer, 0));
        LT_TRY(layer_fwd(p, set, layer, *stream, train));
        LT_TRY(lt_timeline_end(p->timeline, &span));
        LT_TRY(lt_pass_leave(p, 1 + layer, LT_UNIT_WEIGHTS));
        *stream = lt_pass_layer(p, set, layer)->x_mid;
    }
    return LT_OK;
}

lt_err lt_pass_forward_all(lt_pass *p, int set, bool train) {
    const lt_batch_acts *b = &p->sets[set].batch;
    lt_tensor stream;
    LT_ASSERT(p->first == 0 && has_head(p));
    LT_TRY(layers_fwd(p, set, 0, p->end, train, &stream));
    return normed(p, set, stream, lt_tp_own_rows(&p->exec, b->branch), b->x_final);
}

/* Whether lt_linear_bwd computes this gradient, so that it may be stored the first time. Experts'
 * gradients are always added to: on a GPU, storing zeros for an expert without tokens costs
 * registers in the product. */
static bool made_by_product(const lt_pass *pass, const lt_param *p) {
    const lt_model_spec *s = pass->exec.spec;
    return (p->matrix && !p->experts) || p->kind == LT_PARAM_ROUTER || p->kind == LT_PARAM_HEAD ||
           p->kind == LT_PARAM_SCORE || (p->kind == LT_PARAM_EMBED && s->tied && has_head(pass));
}

/* The number of layers, from layer 0 on, that have the same parameters at the same positions, and
 * whose gradients are at equal distances, so that one call zeroes a piece of each; *stride: that
 * distance, in elements. */
static int even_layers(const lt_param_table *t, const lt_param_buffer *g, int64_t *stride) {
    const lt_unit *first = &t->units[1];
    const int n_layers = t->n_units - 2;
    *stride = n_layers > 1 ? (float *)g->base[2] - (float *)g->base[1] : 0;
    for (int layer = 1; layer < n_layers; layer++) {
        const lt_unit *unit = &t->units[1 + layer];
        const float *const base = g->base[1 + layer], *const before = g->base[layer];
        if (unit->n_params != first->n_params || base == NULL || before == NULL ||
            base - before != *stride) {
            return 1;
        }
        for (int i = 0; i < unit->n_params; i++) {
            const lt_param *a = &t->params[first->first_param + i],
                           *b = &t->params[unit->first_param + i];
            if (a->kind != b->kind || a->at != b->at || a->local_count != b->local_count) {
                return 1;
            }
        }
    }
    return n_layers;
}

/* Zero all gradients of a unit that no product computes, adjacent ones in one call; and those of
 * the n - 1 units after it, at distances of stride elements. */
static lt_err zero_unit(lt_pass *p, int unit, int n, int64_t stride) {
    const lt_exec *r = &p->exec;
    const lt_param_table *t = &p->model->table;
    const int last_param = t->units[unit].first_param + t->units[unit].n_params;
    for (int i = t->units[unit].first_param, end; i < last_param; i = end) {
        const lt_param *first = &t->params[i];
        const bool skip = made_by_product(p, first);
        float *const data = lt_param_data(&r->gradients, first);
        for (end = i + 1; end < last_param && !skip && !made_by_product(p, &t->params[end]);
             end++) {}
        if (!skip && data != NULL) {
            const lt_param *last = &t->params[end - 1];
            const int64_t count = last->at + last->local_count - first->at;
            LT_TRY(r->backend->zero_pieces(r->queue, data, (size_t)count * sizeof(float),
                                           (size_t)(n > 1 ? stride : count) * sizeof(float), n));
        }
    }
    return LT_OK;
}

static lt_err zero_others(lt_pass *p) {
    const lt_param_table *t = &p->model->table;
    int64_t stride;
    const int n_even = even_layers(t, &p->exec.gradients, &stride);
    for (int unit = 0; unit < t->n_units; unit++) {
        const bool layer = t->units[unit].layer >= 0;
        if (!layer || unit == 1 || n_even == 1) {
            LT_TRY(zero_unit(p, unit, unit == 1 ? n_even : 1, stride));
        }
    }
    return LT_OK;
}

lt_err lt_pass_bring_gradients(lt_pass *p, int unit, float *base, bool clear) {
    const bool adapters = p->lora.lora != NULL; /* Products compute all of their gradients. */
    LT_ASSERT(p->options.gradients_elsewhere);
    (adapters ? &p->lora.gradients : &p->exec.gradients)->base[unit] = base;
    return clear && base != NULL && !adapters ? zero_unit(p, unit, 1, 0) : LT_OK;
}

/* Products compute all gradients of adapters, but not that of the bias of a head beside them. */
static lt_err zero_beside_adapters(lt_exec *r) {
    const lt_tensor bias = lt_exec_bias_gradient(r, lt_param_head_bias(r->spec), 0);
    return bias.data == NULL ? LT_OK
                             : r->backend->zero(r->queue, bias.data,
                                                (size_t)lt_tensor_count(&bias) * sizeof(float));
}

static lt_err begin_gradients(lt_pass *p) {
    LT_ASSERT(p->options.train);
    if (p->zero_due) {
        LT_TRY(p->exec.lora == NULL ? zero_others(p) : zero_beside_adapters(&p->exec));
        p->zero_due = false;
    }
    return LT_OK;
}

static const lt_loss_target *target_of(const lt_pass *p) {
    return p->aimed ? &p->target : NULL;
}

/* From h_final to losses; backward: to dx after the last layer. */
static lt_err head_run(lt_pass *p, int set, const lt_loss_how *how) {
    lt_exec *r = &p->exec;
    const lt_batch_acts *b = &p->sets[set].batch;
    const lt_norm norm = final_norm(b);
    bool *stored = &p->stored[r->spec->n_layers];

    r->fixed_order = p->options.exact && how->grad_scale == 0;
    r->fresh = !*stored;
    r->head_stored = false;
    LT_TRY(lt_loss_run(r, &p->loss, b, how));
    if (how->grad_scale == 0) {
        return LT_OK;
    }
    *stored = true;
    const lt_tensor dh = lt_tp_own_rows(r, b->dh);
    LT_TRY(lt_tp_scatter(r, dh, b->dh));
    return lt_final_norm_bwd(r, &norm, b->dx, dh, b->x_final);
}

/* The same, with its unit entered and, if the embedding is the head, that of the embedding. A
 * stage without the first layer then has all gradients of the embedding that it computes; the
 * head's adapter is in its own unit. */
static lt_err head(lt_pass *p, int set, const lt_loss_how *how) {
    const bool tied = p->exec.spec->tied, adapters = p->lora.lora != NULL || p->n_joined > 0,
               of_table = p->first > 0 && !adapters;
    const unsigned what = LT_UNIT_WEIGHTS | (how->grad_scale != 0 ? LT_UNIT_GRADIENTS : 0);
    lt_open_span span;
    LT_TRY(lt_pass_enter(p, head_unit(p), what));
    LT_TRY(tied ? lt_pass_enter(p, 0, what) : LT_OK);
    LT_TRY(lt_timeline_begin(p->timeline, &span, LT_SPAN_HEAD, 0, 0));
    LT_TRY(head_run(p, set, how));
    LT_TRY(lt_timeline_end(p->timeline, &span));
    LT_TRY(lt_pass_leave(p, head_unit(p), what));
    return tied ? lt_pass_leave(p, 0, of_table ? what : LT_UNIT_WEIGHTS) : LT_OK;
}

/* The gradient of the embedding itself. */
static lt_err table_bwd(lt_exec *r, const lt_batch_acts *b, lt_tensor dy) {
    return lt_exec_embed_bwd(
        r, &(lt_embed_bwd_args){.dtable = lt_exec_gradient(r, LT_PARAM_EMBED, 0),
                                .dpos_table = lt_exec_gradient(r, LT_PARAM_POS_EMBED, 0),
                                .dy = dy,
                                .ids = b->tokens,
                                .positions = r->positions,
                                .scale = lt_embedding_scale(r),
                                .part = r->n_tp > 1,
                                .first = r->first_id});
}

static lt_err embedding_bwd(lt_pass *p, const lt_batch_acts *b) {
    lt_exec *r = &p->exec;
    const lt_tensor dy = r->n_tp > 1 ? b->branch : b->dx;
    lt_open_span span;
    if (r->lora != NULL && !lt_lora_has_embedding(r)) {
        return LT_OK; /* The embedding is not trained. */
    }
    LT_TRY(lt_pass_enter(p, 0, LT_UNIT_GRADIENTS));
    LT_TRY(lt_timeline_begin(p->timeline, &span, LT_SPAN_EMBED_BACKWARD, 0, 0));
    LT_TRY(lt_tp_gather(r, dy, b->dx));
    LT_TRY(r->lora != NULL ? lt_lora_embedding_bwd(r, dy, b->tokens, lt_embedding_scale(r))
                           : table_bwd(r, b, dy));
    LT_TRY(lt_timeline_end(p->timeline, &span));
    return lt_pass_leave(p, 0, LT_UNIT_GRADIENTS);
}

/* From dx after layer end - 1 to dx before layer first, or to the embedding. */
static lt_err layers_bwd(lt_pass *p, int set, int first, int end, float aux_scale) {
    lt_exec *r = &p->exec;
    const lt_batch_acts *b = &p->sets[set].batch;
    const lt_recompute level = p->options.recompute;

    if (p->deferred.n_layers > 0) {
        lt_deferred_begin(&p->deferred, set, first, end);
    }
    for (int layer = end - 1; layer >= first; layer--) {
        const lt_layer_acts *t = lt_pass_layer(p, set, layer);
        /* If products of weights are deferred, the gradients are complete after those. */
        const bool defers = lt_pass_defers(p, 1 + layer);
        lt_open_span span;
        LT_TRY(lt_pass_enter(p, 1 + layer, LT_UNIT_WEIGHTS | LT_UNIT_GRADIENTS));
        LT_TRY(lt_timeline_begin(p->timeline, &span, LT_SPAN_BACKWARD, layer, 0));
        if (level == LT_RECOMPUTE_FULL && (p->recomputed != layer || p->recomputed_set != set)) {
            LT_TRY(layer_fwd(p, set, layer, (lt_tensor){0}, true));
        }
        /* Everything on which log-probabilities depend has been computed. */
        r->fixed_order = false;
        r->fresh = !p->stored[layer];
        r->deferred = defers ? &p->deferred : NULL;
        LT_TRY(lt_mlp_block_bwd(r, layer, t, b, level, aux_scale));
        LT_TRY(lt_attention_block_bwd(r, layer, t, b, level));
        r->deferred = NULL;
        p->stored[layer] = true;
        p->recomputed = -1; /* Backward overwrites tensors that it has read. */
        LT_TRY(lt_timeline_end(p->timeline, &span));
        LT_TRY(lt_pass_leave(p, 1 + layer,
                             defers ? LT_UNIT_WEIGHTS : LT_UNIT_WEIGHTS | LT_UNIT_GRADIENTS));
    }
    return first > 0 ? LT_OK : embedding_bwd(p, b);
}

lt_err lt_pass_refresh(lt_pass *p) {
    LT_TRY(lt_fp8_refresh(&p->exec, &p->fp8));
    return p->units != NULL && (p->units->enters & LT_UNIT_WEIGHTS) != 0
               ? LT_OK /* lt_pass_derive does this, unit by unit. */
               : lt_lora_refresh(&p->exec);
}

lt_err lt_pass_derive(lt_pass *p, int unit) {
    return unit > 0 && unit < head_unit(p) ? lt_lora_refresh_layer(&p->exec, unit - 1) : LT_OK;
}

lt_err lt_pass_begin_magnitudes(lt_pass *p) {
    for (int layer = p->first; layer < p->end; layer++) {
        LT_TRY(lt_pass_enter(p, 1 + layer, LT_UNIT_WEIGHTS));
        LT_TRY(lt_dora_begin(&p->exec, layer));
        LT_TRY(lt_pass_leave(p, 1 + layer, LT_UNIT_WEIGHTS));
    }
    return lt_model_settle(p->model->lora->trained);
}

lt_err lt_pass_compute(lt_pass *p, const int32_t *labels, float grad_scale) {
    const lt_loss_how how = {.target = target_of(p),
                             .temperature = p->temperature,
                             .host_labels = labels,
                             .grad_scale = grad_scale,
                             .z_coef = p->options.z_coef,
                             .head_rows = p->sets[0].head_rows,
                             .weights = p->sets[0].has_weights};
    LT_TRY(begin_gradients(p));
    LT_TRY(lt_pass_forward_all(p, 0, true));
    LT_TRY(head(p, 0, &how));
    return layers_bwd(p, 0, 0, p->end, grad_scale);
}

lt_err lt_pass_eval(lt_pass *p, const lt_pass_batch *b, lt_pass_result *result, float *loss_rows) {
    lt_exec *r = &p->exec;
    lt_loss_how how = {.target = target_of(p), .temperature = p->temperature};
    *result = (lt_pass_result){0};
    LT_TRY(lt_pass_read(p, b));
    how.host_labels = lt_stage_labels(&p->stage, 0);
    how.head_rows = p->sets[0].head_rows;
    LT_TRY(head(p, 0, &how));
    return lt_stage_receive(&p->stage, r, 0, &p->sets[0].batch, result, loss_rows);
}

/* ---- A pass in parts ---- */

/* Let the context work on this set, whose batch is loaded. */
static lt_batch_acts *use_set(lt_pass *p, int set) {
    lt_acts_set *acts = &p->sets[set];
    LT_ASSERT(set >= 0 && set < p->stage.options.n_sets && acts->n_batch > 0);
    lt_pass_shape_set(p, set,
                      &(lt_pass_shape){acts->n_batch, acts->seq, acts->given_batch, acts->given_seq,
                                       acts->has_documents});
    lt_pass_divide(p, lt_stage_rows_of(&p->stage, set), acts->seq);
    p->lora.drop = p->drops[set];
    return &acts->batch;
}

lt_err lt_pass_load(lt_pass *p, int set, const lt_pass_batch *b) {
    const lt_stage_slot *slot;
    lt_pass_shape shape;
    LT_ASSERT(set >= 0 && set < p->stage.options.n_sets);
    LT_TRY(lt_pass_check_batch(p, b));
    LT_TRY(lt_stage_fill(&p->stage, &p->exec, set, b, &slot));
    shape = (lt_pass_shape){
        .batch = slot->batch, .seq = slot->seq, .has_documents = slot->has_documents};
    if (slot->shares) {
        shape.given_batch = b->batch;
        shape.given_seq = b->seq;
    }
    lt_pass_shape_set(p, set, &shape);
    lt_pass_divide(p, b->rows_of, b->seq);
    p->sets[set].has_weights = b->weights != NULL;
    p->drops[set] = (lt_lora_dropping){false, b->first_row, b->row_step};
    p->lora.drop.on = false;
    if (p->recomputed_set == set) {
        p->recomputed = -1;
    }
    p->kept_set = p->kept_set == set ? -1 : p->kept_set;
    if (p->stage.options.shares) {
        p->shares.tokens += b->batch * b->seq;
        p->shares.needed += slot->needed;
        p->shares.rows += slot->batch * slot->seq;
    }
    p->sets[set].head_rows = slot->head_rows;
    return lt_stage_send(&p->stage, &p->exec, set, &p->sets[set].batch);
}

lt_tensor lt_pass_stream(const lt_pass *p, int set, int layer) {
    return layer == p->end ? p->sets[set].batch.x_final : lt_pass_layer(p, set, layer)->x_in;
}

int64_t lt_pass_stream_rows(const lt_pass *p, int64_t batch, int64_t seq) {
    return lt_tp_run_of(batch * seq, p->exec.n_tp, p->exec.tp_rank).count;
}

lt_tensor lt_pass_stream_gradient(const lt_pass *p, int set) {
    LT_ASSERT(p->options.train);
    return p->sets[set].batch.dx;
}

static lt_err forward_range(lt_pass *p, int set, int first, int end, bool train) {
    lt_exec *r = &p->exec;
    /* It stays on until the backward pass. */
    p->drops[set].on = train && p->options.lora.dropout > 0.0;
    const lt_batch_acts *b = use_set(p, set);
    lt_tensor stream;
    LT_ASSERT(first >= p->first && first < end && end <= p->end);
    LT_TRY(lt_pass_refresh(p));
    LT_TRY(layers_fwd(p, set, first, end, train, &stream));
    return lt_exec_add(r, &(lt_add_args){.y = lt_pass_stream(p, set, end),
                                         .a = stream,
                                         .b = lt_tp_own_rows(r, b->branch),
                                         .alpha = 1.0f,
                                         .beta = 1.0f});
}

lt_err lt_pass_forward(lt_pass *p, int set, int first, int end) {
    return forward_range(p, set, first, end, p->options.train);
}

lt_err lt_pass_forward_eval(lt_pass *p, int set, int first, int end) {
    return forward_range(p, set, first, end, false);
}

/* keep: keep the logits for lt_pass_objective. */
static lt_err loss(lt_pass *p, int set, float grad_scale, bool keep) {
    const lt_batch_acts *b = use_set(p, set);
    const lt_tensor none = {0};
    const lt_loss_how how = {.target = target_of(p),
                             .temperature = p->temperature,
                             .host_labels = p->exec.exact != NULL ? lt_stage_labels(&p->stage, set)
                                                                  : NULL,
                             .grad_scale = grad_scale,
                             .z_coef = grad_scale != 0 ? p->options.z_coef : 0.0f,
                             .head_rows = p->sets[set].head_rows,
                             .keep = keep,
                             .weights = p->sets[set].has_weights};
    LT_ASSERT(has_head(p));
    if (grad_scale != 0) {
        LT_TRY(begin_gradients(p));
    }
    LT_TRY(normed(p, set, b->x_final, none, none));
    return head(p, set, &how);
}

lt_err lt_pass_loss(lt_pass *p, int set, float grad_scale) {
    return loss(p, set, grad_scale, false);
}

lt_err lt_pass_backward(lt_pass *p, int set, int first, int end, float grad_scale) {
    LT_ASSERT(first >= p->first && first < end && end <= p->end && grad_scale != 0);
    (void)use_set(p, set);
    LT_TRY(begin_gradients(p));
    return layers_bwd(p, set, first, end, grad_scale);
}

lt_err lt_pass_backward_weights(lt_pass *p, int set, int first, int end) {
    LT_ASSERT(p->options.split_backward && first >= p->first && first < end && end <= p->end);
    (void)use_set(p, set);
    for (int layer = end - 1; layer >= first; layer--) {
        lt_open_span span;
        if (!lt_pass_defers(p, 1 + layer)) {
            continue;
        }
        LT_TRY(lt_pass_enter(p, 1 + layer, LT_UNIT_GRADIENTS));
        LT_TRY(lt_timeline_begin(p->timeline, &span, LT_SPAN_WEIGHTS, layer, 0));
        LT_TRY(lt_deferred_run(&p->exec, &p->deferred, set, layer));
        LT_TRY(lt_timeline_end(p->timeline, &span));
        LT_TRY(lt_pass_leave(p, 1 + layer, LT_UNIT_GRADIENTS));
    }
    return LT_OK;
}

lt_err lt_pass_result_of(lt_pass *p, int set, lt_pass_result *r, float *loss_rows) {
    return lt_stage_receive(&p->stage, &p->exec, set, use_set(p, set), r, loss_rows);
}

lt_err lt_pass_fetch_of(lt_pass *p, int set, lt_pass_fetched **out) {
    return lt_stage_fetch_set(&p->stage, &p->exec, set, use_set(p, set), out);
}

void lt_pass_add_fetched(const lt_pass *p, lt_pass_fetched *f, lt_pass_result *r) {
    if (p->n_joined > 0) {
        lt_stage_add_each(&p->stage, f, r);
    } else {
        lt_stage_add_set(&p->stage, f, r);
    }
}

/* ---- Objectives over log-probabilities ---- */

lt_err lt_pass_logprobs_of(lt_pass *p, int set, const int32_t *labels, float *logprobs) {
    const bool scores = lt_model_spec_gives_values(p->exec.spec);
    const bool keep = lt_pass_keeps_logits(&p->options, p->exec.spec);
    const int64_t n = lt_stage_tokens(&p->stage, set);
    lt_pass_result r = {0};
    LT_TRY(loss(p, set, 0.0f, keep));
    p->kept_set = keep ? set : -1;
    LT_TRY(lt_pass_result_of(p, set, &r, logprobs));
    for (int64_t i = 0; i < n; i++) {
        logprobs[i] = labels[i] < 0 ? 0.0f : scores ? logprobs[i] : -logprobs[i];
    }
    return LT_OK;
}

lt_err lt_pass_logprobs(lt_pass *p, int set, const lt_pass_batch *b, float *logprobs) {
    LT_TRY(lt_pass_load(p, set, b));
    LT_TRY(lt_pass_forward(p, set, p->first, p->end));
    return lt_pass_logprobs_of(p, set, b->labels, logprobs);
}

lt_err lt_pass_logprobs_base(lt_pass *p, int set, const lt_pass_batch *b, float *logprobs) {
    lt_err err;
    lt_pass_use_adapters(p, false);
    err = lt_pass_logprobs(p, set, b, logprobs);
    lt_pass_use_adapters(p, true);
    return err;
}

lt_err lt_pass_objective(lt_pass *p, int set, const float *dlogprobs, float grad_scale) {
    const lt_batch_acts *b = use_set(p, set);
    const lt_loss_how how = {.target = target_of(p),
                             .temperature = p->temperature,
                             .grad_scale = grad_scale,
                             .head_rows = p->sets[set].head_rows,
                             .kept = p->kept_set == set,
                             .weights = true};
    const int64_t n = lt_stage_tokens(&p->stage, set), seq = lt_stage_seq(&p->stage, set);

    LT_ASSERT(has_head(p) && grad_scale != 0);
    if (!p->options.weights) {
        LT_FAIL(LT_ERR_ARG, "gradients of log-probabilities in a pass opened without weights");
    }
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(dlogprobs[i])) {
            LT_FAIL(LT_ERR_NUMERIC, "gradient %g of the log-probability at row %lld, column %lld",
                    (double)dlogprobs[i], (long long)(i / seq), (long long)(i % seq));
        }
    }
    /* The loss of a label is the negative log-probability; a score has its own sign. */
    LT_TRY(lt_stage_send_weights(&p->stage, &p->exec, set, dlogprobs,
                                 lt_model_spec_gives_values(p->exec.spec) ? 1.0f : -1.0f, b));
    LT_TRY(begin_gradients(p));
    p->kept_set = how.kept ? -1 : p->kept_set; /* Gradients have replaced the logits. */
    return head(p, set, &how);
}

lt_err lt_pass_logprobs_backward(lt_pass *p, int set, const float *dlogprobs, float grad_scale) {
    LT_TRY(lt_pass_objective(p, set, dlogprobs, grad_scale));
    return lt_pass_backward(p, set, p->first, p->end, grad_scale);
}

void lt_pass_set_temperature(lt_pass *p, float temperature) {
    p->temperature = temperature;
}

/* ---- A teacher in place of labels ---- */

lt_err lt_pass_read(lt_pass *p, const lt_pass_batch *b) {
    LT_TRY(lt_pass_load(p, 0, b));
    LT_TRY(lt_pass_refresh(p));
    return lt_pass_forward_all(p, 0, false);
}

int64_t lt_pass_chunk_rows(const lt_pass *p) {
    return p->loss.chunk_rows;
}

void lt_pass_aim(lt_pass *p, const lt_pass_target *t) {
    p->aimed = t != NULL;
    p->stage.in_order = p->aimed; /* The teacher's rows are in order, too. */
    if (t == NULL) {
        return;
    }
    p->target = (lt_loss_target){.ids = t->ids,
                                 .logp = t->logp,
                                 .temperature = t->temperature,
                                 .beta = t->beta,
                                 .label_share = t->label_share,
                                 .rest = t->rest};
    LT_ASSERT(p->exec.n_tp == 1);
    if (t->teacher != NULL) {
        LT_ASSERT(!t->teacher->stage.options.shares);
        LT_ASSERT(lt_loss_eval_rows(&t->teacher->loss) >= p->loss.chunk_rows);
        p->target.teacher = &t->teacher->exec;
        p->target.loss = &t->teacher->loss;
        p->target.of = &t->teacher->sets[0].batch;
    }
}
