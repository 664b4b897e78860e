/* exec.c: linear layers and norms in terms of ops. A linear layer keeps its weight as (out, in), so
 * forward multiplies by its transpose. */
#include "model/lora/adapted.h"
#include "model/files/decoded.h"
#include "model/blocks/deferred.h"
#include "model/blocks/fp8.h"
#include "model/lora/lora_pool.h"

#include <stdlib.h>
#include <string.h>

#include "model/layer.h"

lt_err lt_exec_open(lt_exec *r, const lt_model *m, lt_queue *queue) {
    *r = (lt_exec){.model = m,
                   .spec = &m->spec,
                   .device = m->device,
                   .backend = m->backend,
                   .ops = m->backend->ops,
                   .dtype = m->options.dtype,
                   .queue = queue,
                   .own_queue = queue == NULL,
                   .n_tp = 1};
    return r->own_queue ? m->backend->queue_open(m->device, &r->queue) : LT_OK;
}

void lt_exec_close(lt_exec *r) {
    if (r->queue != NULL && r->own_queue) {
        r->backend->queue_close(r->queue);
    }
    free(r->watch);
    *r = (lt_exec){0};
}

/* Ops between two readings of the stopwatch: op i runs from mark 2 i to 2 i + 1. */
#define WATCH_OPS 8192
struct lt_watch {
    int64_t n;
    int ops[WATCH_OPS];
};

lt_err lt_exec_times(lt_exec *r) {
    struct lt_watch *w = r->watch;
    for (int64_t i = 0; w != NULL && i < w->n; i++) {
        double seconds = 0.0;
        LT_TRY(r->backend->between(r->queue, 2 * i, 2 * i + 1, &seconds));
        r->seconds[w->ops[i]] += seconds;
    }
    if (w != NULL) {
        w->n = 0;
    }
    return LT_OK;
}

lt_err lt_exec_watch(lt_exec *r, bool on) {
    memset(r->seconds, 0, sizeof r->seconds);
    memset(r->calls, 0, sizeof r->calls);
    memset(r->least, 0, sizeof r->least);
    free(r->watch);
    r->watch = on ? calloc(1, sizeof *r->watch) : NULL;
    if (on && r->watch == NULL) {
        LT_FAIL(LT_ERR_OOM, "stopwatch");
    }
    return LT_OK;
}

lt_err lt_exec_begin(lt_exec *r, int timed, const lt_cost *least) {
    struct lt_watch *w = r->watch;
    if (w != NULL) {
        r->least[timed].flops += least->flops;
        r->least[timed].bytes += least->bytes;
        if (r->backend->mark != NULL) {
            LT_TRY(w->n == WATCH_OPS ? lt_exec_times(r) : LT_OK);
            w->ops[w->n] = timed;
            LT_TRY(r->backend->mark(r->queue, 2 * w->n));
        }
    }
    r->started_ns = lt_clock_ns();
    return LT_OK;
}

lt_err lt_exec_before(lt_exec *r, lt_op op, const void *args) {
    const lt_cost least = r->watch != NULL ? lt_op_cost(op, args) : (lt_cost){0};
    return lt_exec_begin(r, (int)op, &least);
}

lt_err lt_exec_end(lt_exec *r, int timed) {
    r->calls[timed]++;
    if (r->watch != NULL && r->backend->mark != NULL) {
        return r->backend->mark(r->queue, 2 * r->watch->n++ + 1);
    }
    if (r->backend->mark == NULL) {
        r->seconds[timed] += (double)(lt_clock_ns() - r->started_ns) * 1e-9;
    }
    return LT_OK;
}

void lt_exec_verb_begin(const lt_exec *r, lt_group *g) {
    lt_comm_follow(lt_group_comm(g), r->queue);
}

lt_err lt_exec_verb_end(const lt_exec *r, lt_group *g, lt_comm_work work) {
    return lt_comm_order(lt_group_comm(g), work, r->queue);
}

/* Counts are read before the call returns. */
static lt_err exchange_evenly(const lt_exec_verb *v, lt_comm_work *work) {
    int64_t counts[LT_COMM_MAX_RANKS];
    for (int i = 0; i < lt_group_size(v->group); i++) {
        counts[i] = v->count;
    }
    return lt_all_to_all(v->group, v->dst, counts, v->src, counts, v->dtype, work);
}

lt_err lt_exec_run_verb_now(lt_exec *r, const lt_exec_verb *v) {
    lt_comm_work work = r->begun;
    if (v->part == LT_EXEC_END) {
        return lt_exec_verb_end(r, v->group, work);
    }
    if (v->part == LT_EXEC_MEMBER) {
        return lt_comm_order_member(lt_group_comm(v->group), work, v->member, r->queue);
    }
    lt_exec_verb_begin(r, v->group);
    if (v->part == LT_EXEC_EARLY) {
        return lt_reduce_scatter_early(v->group, v->member, v->src, v->count, v->dtype);
    }
    switch (v->kind) {
    case LT_EXEC_GATHER:
        LT_TRY(lt_all_gather(v->group, v->dst, v->src, v->count, v->dtype, &work));
        break;
    case LT_EXEC_SCATTER:
        LT_TRY(
            lt_reduce_scatter(v->group, v->dst, v->src, v->count, v->dtype, LT_REDUCE_SUM, &work));
        break;
    case LT_EXEC_REDUCE:
        LT_TRY(lt_all_reduce(v->group, v->dst, v->src, v->count, v->dtype, v->op, &work));
        break;
    case LT_EXEC_EXCHANGE:
        LT_TRY(exchange_evenly(v, &work));
        break;
    }
    if (v->part != LT_EXEC_BEGIN) {
        return lt_exec_verb_end(r, v->group, work);
    }
    r->begun = work;
    return r->beside != NULL ? r->beside(r->beside_of) : LT_OK;
}

lt_err lt_exec_run_verb(lt_exec *r, const lt_exec_verb *v) {
    return r->between_pieces != NULL ? r->between_pieces(r->pass, v) : lt_exec_run_verb_now(r, v);
}

const char *lt_timed_name(int timed) {
    static const char *const verbs[] = {"tp all-gather", "tp reduce-scatter", "tp all-reduce"};
    return timed < LT_OP_COUNT ? lt_op_name((lt_op)timed) : verbs[timed - LT_OP_COUNT];
}

lt_layer_spec lt_exec_layer(const lt_exec *r, int layer) {
    return lt_layer_part(r->spec, layer, r->n_tp);
}

/* Index of a parameter, which the model must have. */
static int param_index(const lt_exec *r, lt_param_kind kind, int layer) {
    const lt_param_table *t = &r->model->table;
    const int index = lt_param_index(t, kind, layer);
    LT_ASSERT(index >= 0);
    return index;
}

/* A score head is trained beside adapters, in their buffers. */
static bool beside_adapters(const lt_exec *r, lt_param_kind kind) {
    return (kind == LT_PARAM_SCORE || kind == LT_PARAM_SCORE_BIAS) && r->lora != NULL;
}

const lt_stored_weight *lt_exec_stored(const lt_exec *r, lt_param_kind kind, int layer) {
    const lt_model *m = r->model;
    const int index = m->stored != NULL ? lt_param_index(&m->table, kind, layer) : -1;
    return index >= 0 && m->stored[index].n_ranges > 0 ? &m->stored[index] : NULL;
}

lt_tensor lt_exec_weight(const lt_exec *r, lt_param_kind kind, int layer) {
    if (beside_adapters(r, kind)) {
        return lt_lora_score(r->lora->lora, kind, &r->lora->lora->params->weights);
    }
    const lt_stored_weight *h = lt_exec_stored(r, kind, layer);
    if (h != NULL) {
        LT_ASSERT(h->n_ranges == 1); /* Several have no single view: see lt_linear_fwd. */
        return h->ranges[0].w;
    }
    return lt_param_view(&r->model->table, kind, layer, &r->model->weights);
}

lt_tensor lt_exec_gradient(const lt_exec *r, lt_param_kind kind, int layer) {
    const lt_tensor apart = lt_deferred_gradient(r, kind, layer);
    return apart.data != NULL         ? apart
           : beside_adapters(r, kind) ? lt_lora_score(r->lora->lora, kind, &r->lora->gradients)
                                      : lt_param_view(&r->model->table, kind, layer, &r->gradients);
}

/* The kinds that ops need in F32, in the order of a layer's copies. */
static const lt_param_kind f32_kinds[] = {LT_PARAM_XIELU, LT_PARAM_SINKS};
#define N_F32_KINDS ((int)(sizeof f32_kinds / sizeof *f32_kinds))

/* Elements of the first n of these kinds in a layer. */
static int64_t f32_before(const lt_model_spec *spec, int n) {
    int64_t sum = 0, shape[3];
    for (int i = 0; i < n; i++) {
        sum += lt_param_shape(spec, f32_kinds[i], 0, shape) > 0 ? shape[0] : 0;
    }
    return sum;
}

int64_t lt_exec_f32_count(const lt_model_spec *spec) {
    return f32_before(spec, N_F32_KINDS);
}

int64_t lt_exec_f32_at(const lt_model_spec *spec, lt_param_kind kind, int layer) {
    for (int i = 0; i < N_F32_KINDS; i++) {
        if (f32_kinds[i] == kind) {
            return layer * lt_exec_f32_count(spec) + f32_before(spec, i);
        }
    }
    return -1;
}

static lt_tensor f32_copy(const lt_exec *r, const float *copies, int which, int layer) {
    int64_t shape[3];
    const int n_dims = lt_param_shape(r->spec, f32_kinds[which], 0, shape);
    const int64_t at = layer * lt_exec_f32_count(r->spec) + f32_before(r->spec, which);
    return n_dims == 0 ? (lt_tensor){0}
                       : lt_tensor_1d((void *)(uintptr_t)(copies + at), LT_F32, shape[0]);
}

static lt_tensor f32_of(const lt_exec *r, int which, int layer) {
    const lt_model *m = r->model;
    const lt_param_kind kind = f32_kinds[which];
    LT_ASSERT(r->f32 != NULL || lt_model_has_master(m) || m->table.index[kind] < 0);
    return r->f32 != NULL ? f32_copy(r, r->f32, which, layer)
                          : lt_param_view(&m->table, kind, layer, &m->master);
}

lt_tensor lt_exec_xielu(const lt_exec *r, int layer) {
    return f32_of(r, 0, layer);
}

lt_tensor lt_exec_sinks(const lt_exec *r, int layer) {
    return f32_of(r, 1, layer);
}

lt_err lt_exec_copy_f32(lt_exec *r, float *device) {
    for (int layer = 0; layer < r->spec->n_layers; layer++) {
        for (int i = 0; i < N_F32_KINDS; i++) {
            const lt_tensor y = f32_copy(r, device, i, layer),
                            x = lt_exec_weight(r, f32_kinds[i], layer);
            LT_TRY(y.data != NULL ? lt_exec_cast(r, &(lt_cast_args){.y = y, .x = x}) : LT_OK);
        }
    }
    r->f32 = device;
    return LT_OK;
}

lt_tensor lt_row_heads(const lt_tensor *x, int64_t first, int64_t count, int64_t d) {
    const lt_tensor cols = lt_tensor_cols(x, first, count * d);
    return lt_tensor_split_last(&cols, count, d);
}

lt_tensor lt_heads(const lt_exec *r, const lt_tensor *x, int64_t first, int64_t count, int64_t d) {
    const int64_t row = x->stride[0];
    const lt_tensor cols = lt_tensor_cols(x, first, count * d);
    LT_ASSERT(x->n_dims == 2 && x->shape[0] == r->batch * r->seq);
    return (lt_tensor){.data = cols.data,
                       .n_dims = 4,
                       .dtype = x->dtype,
                       .shape = {r->batch, r->seq, count, d},
                       .stride = {r->seq * row, row, d, 1}};
}

float lt_embedding_scale(const lt_exec *r) {
    const float scale = r->spec->embed_scale;
    return r->dtype == LT_BF16 && r->spec->embed_scale_rounded
               ? lt_bf16_to_f32(lt_f32_to_bf16(scale))
               : scale;
}

lt_err lt_embedding_fwd(lt_exec *r, lt_tensor y, lt_tensor ids) {
    const lt_stored_weight *h = lt_exec_stored(r, LT_PARAM_EMBED, 0);
    const lt_weight_range *range = h != NULL && h->n_ranges == 1 ? &h->ranges[0] : NULL;
    LT_TRY(lt_exec_embed_fwd(
        r, &(lt_embed_args){.y = y,
                            .table = lt_exec_weight(r, LT_PARAM_EMBED, 0),
                            .ids = ids,
                            .pos_table = lt_exec_weight(r, LT_PARAM_POS_EMBED, 0),
                            .positions = r->positions,
                            .late = r->late,
                            .scale = lt_embedding_scale(r),
                            .part = r->n_tp > 1,
                            .first = r->first_id,
                            .table_packed = range != NULL ? range->packed : NULL,
                            .table_scales = range != NULL ? range->scales : (lt_tensor){0}}));
    return lt_lora_embedding_fwd(r, y, ids, lt_embedding_scale(r));
}

/* The product that computes the columns of y for one range of the weight's rows. */
static lt_matmul_args product_of_range(const lt_exec *r, lt_tensor y, lt_tensor x, lt_tensor bias,
                                       const lt_weight_range *range) {
    const int64_t rows = range->w.shape[0];
    return (lt_matmul_args){
        .y = lt_tensor_cols(&y, range->first_row, rows),
        .a = x,
        .b = range->w,
        .bias = bias.data == NULL ? bias : lt_tensor_rows(&bias, range->first_row, rows),
        .trans_b = true,
        .fixed_order = r->fixed_order,
        .b_packed = range->packed};
}

static bool in_fp8(const lt_exec *r, int index) {
    return r->fp8 != NULL && lt_fp8_takes(&r->model->table.params[index]);
}

static bool has_bias(const lt_exec *r, lt_param_kind bias) {
    const bool summed = bias == LT_PARAM_ATTN_OUT_BIAS || bias == LT_PARAM_DOWN_BIAS;
    return bias != LT_PARAM_KIND_COUNT && (!summed || r->tp_rank == 0);
}

lt_tensor lt_exec_bias(const lt_exec *r, lt_param_kind kind, int layer) {
    return has_bias(r, kind) ? lt_exec_weight(r, kind, layer) : (lt_tensor){0};
}

lt_tensor lt_exec_bias_gradient(const lt_exec *r, lt_param_kind kind, int layer) {
    return has_bias(r, kind) ? lt_exec_gradient(r, kind, layer) : (lt_tensor){0};
}

/* Whether the matrix is one tensor that a product reads as a whole. */
static bool is_whole(const lt_exec *r, int index) {
    return !lt_decoded_has(r, index) && !in_fp8(r, index) &&
           (r->model->stored == NULL || r->model->stored[index].n_ranges == 0);
}

static lt_matmul_args whole_product(const lt_exec *r, lt_tensor y, lt_tensor x, lt_tensor bias,
                                    lt_param_kind kind, int layer) {
    const int index = param_index(r, kind, layer);
    return product_of_range(
        r, y, x, bias,
        &(lt_weight_range){.w = lt_exec_weight(r, kind, layer),
                           .packed = r->packed != NULL ? r->packed[index] : NULL});
}

lt_err lt_linear_base(lt_exec *r, lt_tensor y, lt_tensor x, lt_tensor bias, lt_param_kind kind,
                      int layer) {
    const lt_model *m = r->model;
    const int index = param_index(r, kind, layer);
    if (lt_decoded_has(r, index)) {
        return lt_decoded_forward(r, index, y, x, bias);
    }
    if (is_whole(r, index)) {
        const lt_matmul_args product = whole_product(r, y, x, bias, kind, layer);
        return lt_exec_matmul(r, &product);
    }
    for (int i = 0; i < m->stored[index].n_ranges; i++) {
        const lt_matmul_args product = product_of_range(r, y, x, bias, &m->stored[index].ranges[i]);
        LT_TRY(lt_exec_matmul(r, &product));
    }
    return LT_OK;
}

lt_err lt_exec_add_piece(lt_exec *r, lt_tensor y, int i) {
    const int64_t n = lt_tensor_count(&y);
    const lt_tensor total = lt_tensor_1d(r->total.data, LT_F32, n);
    lt_sum_args a = {.y = i + 1 < r->pieces ? total : lt_tensor_1d(y.data, y.dtype, n),
                     .x = {lt_tensor_1d(r->piece.data, y.dtype, n)},
                     .n = 1};
    LT_ASSERT(lt_tensor_contiguous(&y) && y.dtype == r->piece.dtype && i < r->pieces);
    LT_ASSERT(n <= lt_tensor_count(&r->piece));
    if (i > 0) {
        a.part = total;
    }
    return lt_exec_sum(r, &a);
}

/* Compute the product in the order of ranks of tp that each have some columns of x and of the
 * matrix (exec.pieces). */
static lt_err product_in_pieces(lt_exec *r, lt_tensor y, lt_tensor x, lt_tensor bias,
                                lt_param_kind kind, int layer) {
    const lt_tensor w = lt_exec_weight(r, kind, layer), none = {0};
    const int64_t each = x.shape[1] / r->pieces;
    LT_ASSERT(x.shape[1] % r->pieces == 0 && is_whole(r, param_index(r, kind, layer)));
    for (int i = 0; i < r->pieces; i++) {
        const lt_tensor piece = lt_tensor_rows(&r->piece, 0, y.shape[0]),
                        some = lt_tensor_cols(&x, i * each, each);
        LT_TRY(lt_exec_matmul(r, &(lt_matmul_args){.y = piece,
                                                   .a = some,
                                                   .b = lt_tensor_cols(&w, i * each, each),
                                                   .bias = i == 0 ? bias : none,
                                                   .trans_b = true,
                                                   .fixed_order = r->fixed_order}));
        LT_TRY(lt_lora_forward_columns(r, piece, some, i * each, kind, layer));
        LT_TRY(lt_exec_add_piece(r, y, i));
    }
    return LT_OK;
}

lt_err lt_linear_fwd(lt_exec *r, lt_tensor y, lt_tensor x, lt_param_kind kind, lt_param_kind bias,
                     int layer) {
    const int index = param_index(r, kind, layer);
    const lt_tensor b = lt_exec_bias(r, bias, layer);

    if (r->pieces > 1 && (kind == LT_PARAM_ATTN_OUT || kind == LT_PARAM_DOWN)) {
        return product_in_pieces(r, y, x, b, kind, layer);
    }
    if (in_fp8(r, index)) {
        return lt_fp8_forward(r, index, y, x, b);
    }
    if (lt_lora_joins(r, kind, layer) && is_whole(r, index)) {
        const lt_matmul_args product = whole_product(r, y, x, b, kind, layer);
        return lt_lora_product(r, &product, kind, layer);
    }
    LT_TRY(lt_linear_base(r, y, x, lt_lora_early_bias(r, b, kind, layer), kind, layer));
    LT_TRY(lt_lora_rows_forward(r, y, x, kind, layer));
    return lt_lora_forward(r, y, x, b, kind, layer);
}

/* Whether there is a gradient to add to. */
static bool adds(lt_exec *r, lt_param_kind kind) {
    const bool head = kind == LT_PARAM_HEAD || kind == LT_PARAM_EMBED || kind == LT_PARAM_SCORE,
               again = !r->fresh || (head && r->head_stored);
    r->head_stored = r->head_stored || head;
    return again;
}

bool lt_linear_is_plain(const lt_exec *r, lt_param_kind kind, int layer) {
    return is_whole(r, param_index(r, kind, layer)) && !lt_lora_has(r, kind, layer) &&
           !lt_lora_rows_have(r, kind, layer);
}

lt_err lt_linear_bwd_input(lt_exec *r, lt_tensor dx, lt_tensor dy, lt_param_kind kind, int layer) {
    LT_ASSERT(lt_linear_is_plain(r, kind, layer));
    return lt_exec_matmul(r,
                          &(lt_matmul_args){.y = dx, .a = dy, .b = lt_exec_weight(r, kind, layer)});
}

lt_err lt_linear_bwd(lt_exec *r, lt_tensor dx, lt_tensor dy, lt_tensor x, lt_param_kind kind,
                     lt_param_kind bias, int layer, bool add_dx) {
    const lt_tensor dw = lt_exec_gradient(r, kind, layer);
    const lt_tensor dbias = lt_exec_bias_gradient(r, bias, layer);
    const int index = param_index(r, kind, layer);
    const bool add_dw = adds(r, kind);
    bool kept = false;
    if (dbias.data != NULL) {
        LT_TRY(lt_exec_colsum(r, &(lt_colsum_args){.y = dbias, .x = dy}));
    }
    if (in_fp8(r, index)) {
        return lt_fp8_backward(
            r, index, &(lt_fp8_backward_args){dw, dx, dy, x, .add_dw = add_dw, .add_dx = add_dx});
    }
    LT_TRY(lt_lora_gradients(r, &dy, x, kind, layer, add_dw));
    LT_TRY(lt_deferred_keep(r, kind, layer, dy, x, &kept));
    if (!kept && dw.data != NULL) {
        LT_TRY(lt_exec_matmul(
            r, &(lt_matmul_args){.y = dw, .a = dy, .b = x, .trans_a = true, .accumulate = add_dw}));
    }
    if (dx.data == NULL) {
        return LT_OK;
    }
    if (lt_decoded_has(r, index)) {
        LT_TRY(lt_decoded_backward(r, index, dx, dy, add_dx));
        return lt_lora_backward(r, dx, kind, layer);
    }
    const lt_matmul_args product = {
        .y = dx, .a = dy, .b = lt_exec_weight(r, kind, layer), .accumulate = add_dx};
    if (lt_lora_joins(r, kind, layer)) {
        return lt_lora_product_back(r, &product, kind, layer);
    }
    LT_TRY(lt_exec_matmul(r, &product));
    return lt_lora_backward(r, dx, kind, layer);
}

/* Whether product and activation are separate ops, because something comes between them. */
static bool apart_from_act(const lt_exec *r, lt_param_kind kind, int layer) {
    return in_fp8(r, param_index(r, kind, layer)) || lt_lora_has(r, kind, layer) ||
           lt_lora_rows_have(r, kind, layer);
}

lt_err lt_linear_act_fwd(lt_exec *r, lt_tensor y, lt_tensor x, lt_tensor in, lt_param_kind kind,
                         lt_param_kind bias, int layer) {
    const lt_tensor none = {0};
    const int index = param_index(r, kind, layer);
    /* Weights in runs of block types go through lt_linear_fwd. */
    LT_ASSERT(r->model->stored == NULL);
    if (apart_from_act(r, kind, layer)) {
        LT_TRY(lt_linear_fwd(r, x, in, kind, bias, layer));
        return lt_exec_act_fwd(r,
                               &(lt_act_args){.y = y, .x = x, .kind = (lt_act_kind)r->spec->act});
    }
    return lt_exec_matmul_act(
        r, &(lt_matmul_act_args){
               .y = y,
               .x = x,
               .a = in,
               .b = lt_exec_weight(r, kind, layer),
               .bias = bias == LT_PARAM_KIND_COUNT ? none : lt_exec_weight(r, bias, layer),
               .kind = (lt_act_kind)r->spec->act,
               .trans_b = true,
               .fixed_order = r->fixed_order,
               .b_packed = r->packed != NULL ? r->packed[index] : NULL});
}

lt_err lt_linear_act_bwd(lt_exec *r, lt_tensor dx, lt_tensor dy, lt_tensor in, lt_tensor x,
                         lt_param_kind kind, lt_param_kind bias, int layer) {
    const lt_tensor none = {0};
    if (apart_from_act(r, kind, layer)) {
        LT_TRY(lt_linear_bwd(r, dx, dy, in, kind, bias, layer, false));
        return lt_exec_act_bwd(
            r, &(lt_act_bwd_args){.dx = dx, .dy = dx, .x = x, .kind = (lt_act_kind)r->spec->act});
    }
    LT_TRY(lt_linear_bwd(r, none, dy, in, kind, bias, layer, false));
    return lt_exec_matmul_act(r, &(lt_matmul_act_args){.y = dx,
                                                       .x = x,
                                                       .a = dy,
                                                       .b = lt_exec_weight(r, kind, layer),
                                                       .d = dx,
                                                       .kind = (lt_act_kind)r->spec->act,
                                                       .backward = true});
}

lt_err lt_norm_fwd(lt_exec *r, const lt_norm *n, lt_tensor y, lt_tensor x, lt_tensor add,
                   lt_tensor sum) {
    const lt_tensor gain = lt_exec_weight(r, n->gain, n->layer);
    if (r->spec->norm == LT_NORM_LAYER) {
        return lt_exec_layernorm_fwd(
            r, &(lt_layernorm_args){.y = y,
                                    .x = x,
                                    .add = add,
                                    .sum = sum,
                                    .gain = gain,
                                    .bias = lt_exec_weight(r, n->bias, n->layer),
                                    .mean = n->mean,
                                    .rstd = n->rstd,
                                    .eps = r->spec->norm_eps});
    }
    return lt_exec_rmsnorm_fwd(r, &(lt_rmsnorm_args){.y = y,
                                                     .x = x,
                                                     .add = add,
                                                     .sum = sum,
                                                     .gain = gain,
                                                     .rstd = n->rstd,
                                                     .eps = r->spec->norm_eps,
                                                     .gain_offset = r->spec->norm_gain_offset});
}

lt_err lt_norm_bwd(lt_exec *r, const lt_norm *n, lt_tensor dx, lt_tensor dy, lt_tensor x,
                   bool add_dx) {
    const lt_tensor gain = lt_exec_weight(r, n->gain, n->layer),
                    dgain = lt_exec_gradient(r, n->gain, n->layer);
    if (r->spec->norm == LT_NORM_LAYER) {
        return lt_exec_layernorm_bwd(
            r, &(lt_layernorm_bwd_args){.dx = dx,
                                        .dgain = dgain,
                                        .dbias = lt_exec_gradient(r, n->bias, n->layer),
                                        .dy = dy,
                                        .x = x,
                                        .gain = gain,
                                        .mean = n->mean,
                                        .rstd = n->rstd,
                                        .add_dx = add_dx});
    }
    return lt_exec_rmsnorm_bwd(r, &(lt_rmsnorm_bwd_args){.dx = dx,
                                                         .dgain = dgain,
                                                         .dy = dy,
                                                         .x = x,
                                                         .gain = gain,
                                                         .rstd = n->rstd,
                                                         .gain_offset = r->spec->norm_gain_offset,
                                                         .add_dx = add_dx});
}

static lt_err divide_logits(lt_exec *r, lt_tensor h) {
    const float by = lt_model_logit_divisor(r->spec);
    return by == 1.0f ? LT_OK : lt_exec_add(r, &(lt_add_args){.y = h, .a = h, .alpha = 1.0f / by});
}

lt_err lt_final_norm_fwd(lt_exec *r, const lt_norm *n, lt_tensor y, lt_tensor x, lt_tensor add,
                         lt_tensor sum) {
    LT_TRY(lt_norm_fwd(r, n, y, x, add, sum));
    return divide_logits(r, y);
}

lt_err lt_final_norm_bwd(lt_exec *r, const lt_norm *n, lt_tensor dx, lt_tensor dy, lt_tensor x) {
    LT_TRY(divide_logits(r, dy));
    return lt_norm_bwd(r, n, dx, dy, x, false);
}
