/* cost.c: the minimum work of every op. Counting rules:
 *
 *   flops  a multiply-add is two; each of + - * / max, exp, log, tanh, erf, sqrt, rsqrt is one. The
 *          formula of ops.h is counted as it is written there, with common factors taken out once;
 *          work that a clever order avoids is not counted.
 *   bytes  each input is read once, each output written once, an accumulated output read and
 *          written. Scratch does not count: it may stay in cache. A gathered table counts the
 *          fewest rows that must be touched.
 *
 * Terms per row or smaller (one rsqrt per row) are kept if they are known exactly. Only shapes are
 * used, because the data may be on a device. So kv_len counts as S, doc_start as one document, a
 * dropped expert row as kept and an ignored label as counted. */
#include "tensor/cost.h"

#include "base/error.h"

static double count(const lt_tensor *t) {
    return (double)lt_tensor_count(t);
}

/* Bytes of an element; for a type with blocks, its share of a block. */
static double elem_bytes(lt_dtype dtype) {
    size_t bytes;
    const int64_t elems = lt_dtype_block(dtype, &bytes);
    return (double)bytes / (double)elems;
}

static double bytes(const lt_tensor *t) {
    return count(t) * elem_bytes(t->dtype);
}

/* Bytes of a tensor that is read and written. */
static double twice(const lt_tensor *t) {
    return 2.0 * bytes(t);
}

static double rows(const lt_tensor *t) {
    return count(t) / (double)t->shape[t->n_dims - 1];
}

static double least(double a, double b) {
    return a < b ? a : b;
}

static double sum4(double a, double b, double c, double d) {
    return a + b + c + d;
}

lt_cost lt_cost_matmul(double m, double n, double k, double a_bytes, double b_bytes,
                       double y_bytes) {
    return (lt_cost){2.0 * m * n * k, m * k * a_bytes + k * n * b_bytes + m * n * y_bytes};
}

lt_cost lt_cost_attention(double pairs, double n_rows, double keys, double heads, double kv_heads,
                          double head_dim, double elem_bytes, bool backward) {
    const double q_elems = n_rows * heads * head_dim, k_elems = keys * kv_heads * head_dim;
    /* Forward, per pair: 2 D for q k, 2 D for p v; scale, max, subtract, exp, sum. q, out; k, v;
     * lse. */
    lt_cost cost = {heads * pairs * (4.0 * head_dim + 5.0),
                    (2.0 * q_elems + 2.0 * k_elems) * elem_bytes + n_rows * heads * 4.0};
    if (backward) {
        /* Per pair: 2 D each for q k, dout v, dq, dk, dv; scale, subtract lse, exp, subtract
         * delta, times p, times scale. delta: 2 D per row. q, out, dout, dq; k, v, dk, dv;
         * lse. */
        cost.flops = heads * pairs * (10.0 * head_dim + 6.0) + 2.0 * q_elems;
        cost.bytes = (4.0 * q_elems + 4.0 * k_elems) * elem_bytes + n_rows * heads * 4.0;
    }
    return cost;
}

static lt_cost matmul(const lt_matmul_args *a) {
    const double m = (double)a->y.shape[0], n = (double)a->y.shape[1];
    const double k = (double)a->a.shape[a->trans_a ? 0 : 1];
    lt_cost cost = lt_cost_matmul(m, n, k, elem_bytes(a->a.dtype), elem_bytes(a->b.dtype),
                                  elem_bytes(a->y.dtype));
    if (a->bias.data != NULL) {
        cost.flops += m * n;
        cost.bytes += bytes(&a->bias);
    }
    if (a->accumulate) {
        cost.flops += m * n;
        cost.bytes += bytes(&a->y);
    }
    return cost;
}

static lt_cost embed_fwd(const lt_embed_args *a) {
    const double row = (double)a->y.shape[1], n = (double)a->y.shape[0];
    const double table_rows = least(n, (double)a->table.shape[0]);
    lt_cost cost = {n * row,
                    bytes(&a->y) + bytes(&a->ids) + table_rows * row * elem_bytes(a->table.dtype)};
    if (a->pos_table.data != NULL) {
        cost.flops += n * row;
        cost.bytes += least(n, (double)a->pos_table.shape[0]) * row *
                          elem_bytes(a->pos_table.dtype) +
                      bytes(&a->positions);
    }
    return cost;
}

static lt_cost embed_bwd(const lt_embed_bwd_args *a) {
    const double row = (double)a->dy.shape[1], n = (double)a->dy.shape[0];
    lt_cost cost = {0.0, bytes(&a->dy)};
    if (a->dtable.data != NULL) { /* Times scale, plus; the touched rows are read and written. */
        cost.flops += 2.0 * n * row;
        cost.bytes += bytes(&a->ids) + 2.0 * least(n, (double)a->dtable.shape[0]) * row *
                                           elem_bytes(a->dtable.dtype);
    }
    if (a->dpos_table.data != NULL) {
        cost.flops += n * row;
        cost.bytes += bytes(&a->positions) + 2.0 * least(n, (double)a->dpos_table.shape[0]) * row *
                                                 elem_bytes(a->dpos_table.dtype);
    }
    return cost;
}

/* Per element: square and sum 2, times rstd, times gain. Per row: mean, plus eps, rsqrt. */
static lt_cost rmsnorm_fwd(const lt_rmsnorm_args *a) {
    const double n = count(&a->x), adds = a->add.data != NULL ? 1.0 : 0.0;
    return (lt_cost){n * (4.0 + adds) + rows(&a->x) * 3.0,
                     sum4(bytes(&a->x), bytes(&a->add), bytes(&a->sum), bytes(&a->y)) +
                         bytes(&a->gain) + bytes(&a->rstd)};
}

/* Per element: n = x rstd, g = dy w, sum g n 2, dgain 2, g - n m 2, times rstd. */
static lt_cost rmsnorm_bwd(const lt_rmsnorm_bwd_args *a) {
    const double n = count(&a->x);
    return (lt_cost){n * (9.0 + (a->add_dx ? 1.0 : 0.0)) + rows(&a->x),
                     sum4(bytes(&a->x), bytes(&a->dy), a->add_dx ? twice(&a->dx) : bytes(&a->dx),
                          twice(&a->dgain)) +
                         bytes(&a->gain) + bytes(&a->rstd)};
}

/* Per element: sum, minus mean, square and sum 2, times rstd, times gain, plus bias. Per row: two
 * means, plus eps, rsqrt. */
static lt_cost layernorm_fwd(const lt_layernorm_args *a) {
    const double n = count(&a->x), adds = a->add.data != NULL ? 1.0 : 0.0;
    return (lt_cost){n * (7.0 + adds) + rows(&a->x) * 4.0,
                     sum4(bytes(&a->x), bytes(&a->add), bytes(&a->sum), bytes(&a->y)) +
                         sum4(bytes(&a->gain), bytes(&a->bias), bytes(&a->mean), bytes(&a->rstd))};
}

/* Per element: n 2, g = dy w, sum g, sum g n 2, dgain 2, dbias, g - mean - n m 3, times rstd. */
static lt_cost layernorm_bwd(const lt_layernorm_bwd_args *a) {
    const double n = count(&a->x);
    return (lt_cost){n * (13.0 + (a->add_dx ? 1.0 : 0.0)) + 2.0 * rows(&a->x),
                     sum4(bytes(&a->x), bytes(&a->dy), a->add_dx ? twice(&a->dx) : bytes(&a->dx),
                          twice(&a->dgain)) +
                         sum4(twice(&a->dbias), bytes(&a->gain), bytes(&a->mean), bytes(&a->rstd))};
}

/* Bytes that a rotation reads in addition to its rows. */
static double angle_bytes(const lt_tensor *x, const lt_tensor *positions, const lt_tensor *table) {
    const double table_rows = least((double)x->shape[0], (double)table->shape[0]);
    return bytes(positions) + table_rows * (double)table->shape[1] * 2.0 * elem_bytes(table->dtype);
}

/* Per pair: four products, two sums. The table counts as many rows as positions can differ. */
static lt_cost rope(const lt_rope_args *a) {
    const double pairs = rows(&a->x) * (double)a->table.shape[1];
    return (lt_cost){6.0 * pairs,
                     bytes(&a->x) + bytes(&a->y) + angle_bytes(&a->x, &a->positions, &a->table)};
}

/* rmsnorm and rope, without storing and reading the row between them. */
static lt_cost qk_norm_fwd(const lt_qk_norm_args *a) {
    const double n = count(&a->x), pairs = rows(&a->x) * (double)a->table.shape[1];
    return (lt_cost){n * 4.0 + rows(&a->x) * 3.0 + 6.0 * pairs,
                     bytes(&a->x) + bytes(&a->y) + angle_bytes(&a->x, &a->positions, &a->table) +
                         bytes(&a->q_gain) + bytes(&a->k_gain) + bytes(&a->rstd)};
}

static lt_cost qk_norm_bwd(const lt_qk_norm_bwd_args *a) {
    const double n = count(&a->x), pairs = rows(&a->x) * (double)a->table.shape[1];
    return (lt_cost){
        n * 9.0 + rows(&a->x) + 6.0 * pairs,
        bytes(&a->x) + bytes(&a->dy) + bytes(&a->dx) +
            angle_bytes(&a->x, &a->positions, &a->table) +
            sum4(twice(&a->dq_gain), twice(&a->dk_gain), bytes(&a->q_gain), bytes(&a->k_gain)) +
            bytes(&a->rstd)};
}

/* Visible (query, key) pairs of all sequences, for one head. */
static double visible_pairs(const lt_attention_args *a) {
    const int64_t n_t = a->q.shape[1], n_s = a->k.shape[1];
    double pairs = 0.0;
    for (int64_t t = 0; t < n_t; t++) {
        const int64_t pos = n_s - n_t + t;
        const int64_t to = a->causal && pos + 1 < n_s ? pos + 1 : n_s;
        const int64_t from = a->window > 0 && pos - a->window + 1 > 0 ? pos - a->window + 1 : 0;
        pairs += to > from ? (double)(to - from) : 0.0;
    }
    return pairs * (double)a->q.shape[0];
}

static lt_cost attention(const lt_attention_args *a, bool backward) {
    const double elem = elem_bytes(a->q.dtype);
    const double n_rows = (double)(a->q.shape[0] * a->q.shape[1]);
    const double keys = (double)(a->k.shape[0] * a->k.shape[1]);
    lt_cost cost = lt_cost_attention(visible_pairs(a), n_rows, keys, (double)a->q.shape[2],
                                     (double)a->k.shape[2], (double)a->q.shape[3], elem, backward);
    if (!backward && a->lse.data == NULL) {
        cost.bytes -= n_rows * (double)a->q.shape[2] * 4.0;
    }
    return cost;
}

/* Flops of f(x), and of f(x) with f'(x), per element. */
static const struct {
    double fwd, bwd;
} act_flops[LT_ACT_COUNT] = {
    [LT_ACT_GELU_TANH] = {8, 16},
    [LT_ACT_GELU] = {5, 10},
    [LT_ACT_SILU] = {4, 8},
    [LT_ACT_RELU] = {1, 1},
    [LT_ACT_RELU2] = {2, 3},
    [LT_ACT_XIELU] = {6, 10},
    [LT_ACT_SWIGLU_CLAMPED] = {8, 14},
};

static lt_cost act_fwd(const lt_act_args *a) {
    const double gate = a->gated ? 1.0 : 0.0;
    return (lt_cost){count(&a->y) * (act_flops[a->kind].fwd + gate), bytes(&a->x) + bytes(&a->y)};
}

/* Plain: times dy. Gated: dy up f', dy f. */
static lt_cost act_bwd(const lt_act_bwd_args *a) {
    const double gate = a->gated ? 3.0 : 1.0;
    return (lt_cost){count(&a->dy) * (act_flops[a->kind].bwd + gate),
                     bytes(&a->dy) + bytes(&a->x) + bytes(&a->dx)};
}

/* Per logit: max, minus max, exp, sum; with gradient: minus lse, exp, times; softcap: divide,
 * tanh, times. */
static lt_cost xent(const lt_xent_args *a) {
    const double grad = a->grad_scale != 0.0f && a->part.data == NULL ? 1.0 : 0.0,
                 cap = a->softcap > 0.0f ? 1.0 : 0.0;
    return (lt_cost){count(&a->logits) * (4.0 + 3.0 * grad + 3.0 * cap + 3.0 * grad * cap),
                     bytes(&a->logits) * (1.0 + grad) + bytes(&a->labels) + bytes(&a->loss) +
                         bytes(&a->lse) + bytes(&a->best) + grad * bytes(&a->weights) +
                         bytes(&a->part) + bytes(&a->parts)};
}

/* Per logit of the student: max, minus, exp, sum, minus and times the logarithm of the ratio;
 * with gradient 4 more. Per logit of the teacher: max, minus, exp, sum. Rows are counted as if
 * all had a label. */
static lt_cost distill(const lt_distill_args *a) {
    const double grad = a->grad_scale != 0.0f ? 1.0 : 0.0;
    return (lt_cost){count(&a->logits) * (7.0 + 4.0 * grad) + 4.0 * count(&a->teacher),
                     bytes(&a->logits) * (1.0 + grad) + bytes(&a->teacher) + bytes(&a->ids) +
                         bytes(&a->logp) + bytes(&a->labels) + bytes(&a->loss) +
                         grad * bytes(&a->weights)};
}

/* Whole rows are written. */
static lt_cost penalty_set(const lt_penalty_set_args *a) {
    return (lt_cost){0.0, count(&a->slots) * (double)a->penalties.shape[1] * 4.0 +
                              2.0 * bytes(&a->edits) + bytes(&a->starts) + bytes(&a->slots)};
}

/* Each pick reads its row of logits once, and its row of penalties. Per logit: max, minus, exp,
 * sum. */
static lt_cost choose(const lt_choose_args *a) {
    const double read = count(&a->rows) * (double)a->logits.shape[1];
    return (lt_cost){4.0 * read, read * elem_bytes(a->logits.dtype) + bytes(&a->how) +
                                     (a->penalties.data != NULL ? 4.0 * read : 0.0) +
                                     bytes(&a->id) + bytes(&a->logprob) + bytes(&a->rank) +
                                     bytes(&a->top_id) + bytes(&a->top_logprob)};
}

/* Per logit: softmax 5 (max, minus, exp, sum, divide); choosing 1 for each of K; aux: 2. */
static lt_cost moe_route_fwd(const lt_moe_route_args *a) {
    const double k = (double)a->experts.shape[1], aux = a->aux.data != NULL ? 2.0 : 0.0;
    return (lt_cost){
        count(&a->logits) * (5.0 + k + aux),
        sum4(bytes(&a->logits), bytes(&a->probs), bytes(&a->experts), bytes(&a->weights)) +
            bytes(&a->slot_row) + bytes(&a->expert_start) + bytes(&a->aux)};
}

static lt_cost moe_route_bwd(const lt_moe_route_bwd_args *a) {
    return (lt_cost){
        8.0 * count(&a->logits) + 4.0 * count(&a->dweights),
        sum4(bytes(&a->logits), bytes(&a->probs), bytes(&a->dlogits), bytes(&a->weights)) +
            bytes(&a->dweights) + bytes(&a->experts)};
}

/* Bytes of slots times width elements of t. */
static double slot_bytes(const lt_tensor *slot_row, const lt_tensor *t) {
    return (double)slot_row->shape[0] * (double)t->shape[1] * elem_bytes(t->dtype);
}

static lt_cost moe_gather_fwd(const lt_moe_gather_args *a) {
    return (lt_cost){0.0, bytes(&a->x) + slot_bytes(&a->slot_row, &a->y) + bytes(&a->slot_row)};
}

static lt_cost moe_gather_bwd(const lt_moe_gather_bwd_args *a) {
    return (lt_cost){(double)a->slot_row.shape[0] * (double)a->dy.shape[1],
                     slot_bytes(&a->slot_row, &a->dy) + bytes(&a->slot_row) +
                         (a->add_dx ? twice(&a->dx) : bytes(&a->dx))};
}

static lt_cost moe_combine_fwd(const lt_moe_combine_args *a) {
    return (lt_cost){2.0 * (double)a->slot_row.shape[0] * (double)a->y.shape[1],
                     slot_bytes(&a->slot_row, &a->x) + bytes(&a->slot_row) + bytes(&a->weights) +
                         bytes(&a->y)};
}

static lt_cost moe_combine_bwd(const lt_moe_combine_bwd_args *a) {
    return (lt_cost){3.0 * (double)a->slot_row.shape[0] * (double)a->dy.shape[1],
                     slot_bytes(&a->slot_row, &a->x) + slot_bytes(&a->slot_row, &a->dx) +
                         bytes(&a->dy) + bytes(&a->slot_row) + bytes(&a->weights) +
                         bytes(&a->dweights)};
}

static lt_cost moe_bias_fwd(const lt_moe_bias_args *a) {
    return (lt_cost){count(&a->y), twice(&a->y) + bytes(&a->bias) + bytes(&a->expert_start)};
}

static lt_cost moe_bias_bwd(const lt_moe_bias_bwd_args *a) {
    return (lt_cost){count(&a->dy), bytes(&a->dy) + twice(&a->dbias) + bytes(&a->expert_start)};
}

static lt_cost matmul_grouped(const lt_matmul_grouped_args *a) {
    const double inner = a->weights ? (double)a->b.shape[1] : (double)a->y.shape[1];
    return (lt_cost){2.0 * count(&a->a) * inner,
                     bytes(&a->a) + bytes(&a->b) + (a->accumulate ? twice(&a->y) : bytes(&a->y))};
}

static lt_cost matmul_lora(const lt_matmul_lora_args *a) {
    lt_cost cost = matmul(&a->base);
    cost.flops += 2.0 * count(&a->base.y) * count(&a->u) / (double)a->n_parts /
                  (double)a->u.shape[0];
    cost.bytes += bytes(&a->u) + bytes(&a->v);
    return cost;
}

/* A comparison and a product; the random words are not counted. */
static lt_cost drop(const lt_drop_args *a) {
    return (lt_cost){(a->add ? 3.0 : 2.0) * count(&a->x),
                     bytes(&a->x) + (a->add ? twice(&a->y) : bytes(&a->y))};
}

/* As many adapters are read as possible: all rows have one, each a different one. */
static lt_cost lora_add(const lt_lora_add_args *a) {
    const double n = (double)a->x.shape[0], places = (double)a->a.shape[0],
                 adapters = n < places ? n : places;
    double columns = 0.0;
    for (int i = 0; i < a->n_parts; i++) {
        columns += (double)a->parts[i].columns;
    }
    const double numbers = count(&a->a) / places + (double)a->b.shape[1] * columns;
    return (lt_cost){2.0 * n * numbers, adapters * numbers * (double)lt_dtype_bytes(a->x.dtype) +
                                            bytes(&a->x) + twice(&a->u) + bytes(&a->place) +
                                            bytes(&a->scale) +
                                            2.0 * n * columns * (double)lt_dtype_bytes(a->y.dtype)};
}

/* A product and a sum. The factors and offsets of every row are read, at most those of all
 * places. */
static lt_cost lora_scale(const lt_lora_scale_args *a) {
    const double n = (double)a->y.shape[0], places = (double)a->factor.shape[0],
                 adapters = n < places ? n : places;
    return (lt_cost){2.0 * count(&a->y),
                     adapters / places * (bytes(&a->factor) + bytes(&a->offset)) + twice(&a->y) +
                         bytes(&a->place)};
}

/* g' 1, m 3, v 4, decay 1, m^ 1, v^ 1, sqrt, plus eps, divide, times lr, minus. */
static lt_cost adamw(const lt_adamw_args *a) {
    return (lt_cost){16.0 * count(&a->p),
                     bytes(&a->g) + twice(&a->p) + twice(&a->m) + twice(&a->v) + bytes(&a->copy)};
}

/* As AdamW, with m2 3 and alpha m2 2. */
static lt_cost ademamix(const lt_ademamix_args *a) {
    return (lt_cost){21.0 * count(&a->p),
                     bytes(&a->g) + bytes(&a->copy) +
                         sum4(twice(&a->p), twice(&a->m1), twice(&a->m2), twice(&a->v))};
}

/* g' 1, u 3, sign 1, decay 1, step 2, m 3. */
static lt_cost lion(const lt_lion_args *a) {
    return (lt_cost){11.0 * count(&a->p),
                     bytes(&a->g) + twice(&a->p) + twice(&a->m) + bytes(&a->copy)};
}

/* Per step: X X^T (symmetric, counted whole) and B X 2 S^2 L each, A A 2 S^3, b A + c A^2 3 S^2,
 * a X + 2 S L. Around the steps, per element: g' 1, m 2, u 2, norm 2, divide 1, decay 1, update
 * 2. */
static lt_cost muon(const lt_muon_args *a) {
    const double n = (double)a->p.shape[0], m = (double)a->p.shape[1];
    const double s = least(n, m), l = n + m - s;
    const double step = 4.0 * s * s * l + 2.0 * s * s * s + 3.0 * s * s + 2.0 * s * l;
    return (lt_cost){(double)a->steps * step + 11.0 * n * m,
                     bytes(&a->g) + twice(&a->p) + twice(&a->m) + bytes(&a->copy)};
}

static lt_cost sum(const lt_sum_args *a) {
    const double n = a->n + (a->part.data != NULL);
    lt_cost cost = {(n - 1.0) * count(&a->y), bytes(&a->y) + bytes(&a->part)};
    for (int k = 0; k < a->n; k++) {
        cost.bytes += bytes(&a->x[k]);
    }
    return cost;
}

static lt_cost gather_rows(const lt_gather_rows_args *a) {
    const double rows = (double)a->index.shape[0], width = (double)a->y.shape[1];
    return (lt_cost){(rows - (double)a->y.shape[0]) * width, rows * width * elem_bytes(a->x.dtype) +
                                                                 bytes(&a->y) + bytes(&a->index) +
                                                                 bytes(&a->start)};
}

static lt_cost add(const lt_add_args *a) {
    return (lt_cost){count(&a->y) * (a->b.data != NULL ? 3.0 : 1.0),
                     bytes(&a->y) + bytes(&a->a) + bytes(&a->b)};
}

static lt_cost colsum(const lt_colsum_args *a) {
    return (lt_cost){count(&a->x) + count(&a->y), bytes(&a->x) + twice(&a->y)};
}

static lt_cost matmul_act(const lt_matmul_act_args *a) {
    const lt_matmul_args product = {
        .y = a->y, .a = a->a, .b = a->b, .bias = a->bias, .trans_b = a->trans_b};
    lt_cost cost = matmul(&product);
    cost.flops += 8.0 * count(&a->y);
    cost.bytes += bytes(&a->x);
    return cost;
}

static lt_cost matmul_pack(const lt_matmul_pack_args *a) {
    return (lt_cost){0.0, twice(&a->b)};
}

static lt_cost attention_fwd(const lt_attention_args *a) {
    return attention(a, false);
}

static lt_cost attention_bwd(const lt_attention_bwd_args *a) {
    return attention(&a->fwd, true);
}

static lt_cost attention_merge(const lt_attention_merge_args *a) {
    return (lt_cost){
        (a->first ? 1.0 : 3.0) * count(&a->out),
        (a->first ? bytes(&a->out) + bytes(&a->lse) : twice(&a->out) + twice(&a->lse)) +
            bytes(&a->part) + bytes(&a->part_lse)};
}

static lt_cost attention_starts(const lt_attention_starts_args *a) {
    return (lt_cost){8.0 * count(&a->y), bytes(&a->y) + bytes(&a->doc_start)};
}

static lt_cost kv_write(const lt_kv_write_args *a) {
    const double elems = count(&a->k) + count(&a->v);
    return (lt_cost){0.0, elems * elem_bytes(a->k.dtype) +
                              count(&a->k) * elem_bytes(a->k_pages.dtype) +
                              count(&a->v) * elem_bytes(a->v_pages.dtype) + bytes(&a->slots)};
}

/* Every sequence is assumed to have q_max rows and kv_max keys. */
static lt_cost attention_paged(const lt_attention_paged_args *a) {
    const int64_t n = a->kv_len.shape[0];
    const lt_attention_args plain = {.q = {.n_dims = 4, .shape = {n, a->q_max, 1, 1}},
                                     .k = {.n_dims = 4, .shape = {n, a->kv_max, 1, 1}},
                                     .window = a->window,
                                     .causal = true};
    const double heads = (double)a->q.shape[1], d = (double)a->q.shape[2];
    lt_cost cost = lt_cost_attention(
        visible_pairs(&plain), 0.0, (double)(n * a->kv_max), heads, (double)a->k_pages.shape[2], d,
        0.5 * (elem_bytes(a->k_pages.dtype) + elem_bytes(a->v_pages.dtype)), false);
    cost.bytes += bytes(&a->q) + bytes(&a->out);
    return cost;
}

static lt_cost clip(const lt_clip_args *a) {
    return (lt_cost){4.0, bytes(&a->now) + bytes(&a->sumsq)};
}

static lt_cost sumsq(const lt_sumsq_args *a) {
    return (lt_cost){2.0 * count(&a->x), bytes(&a->x) + (a->accumulate ? 16.0 : 8.0)};
}

/* Its operations are on integers. */
static lt_cost hash(const lt_hash_args *a) {
    return (lt_cost){0.0, bytes(&a->x) + bytes(&a->pieces) + bytes(&a->out)};
}

static lt_cost cast(const lt_cast_args *a) {
    return (lt_cost){0.0, bytes(&a->x) + bytes(&a->y)};
}

/* Per element: largest magnitude, scale. */
static lt_cost cast_scaled(const lt_cast_scaled_args *a) {
    return (lt_cost){2.0 * count(&a->x), bytes(&a->x) + sum4(bytes(&a->y), bytes(&a->scale),
                                                             bytes(&a->t), bytes(&a->t_scale))};
}

static lt_cost matmul_scaled(const lt_matmul_scaled_args *a) {
    const lt_matmul_args product = {.y = a->y,
                                    .a = a->a,
                                    .b = a->b,
                                    .bias = a->bias,
                                    .trans_b = true,
                                    .accumulate = a->accumulate};
    lt_cost cost = matmul(&product);
    cost.bytes += bytes(&a->a_scale) + bytes(&a->b_scale);
    return cost;
}

lt_cost lt_op_cost(lt_op op, const void *args) {
    switch (op) {
#define COST_CASE(name, type)                                                                      \
    case LT_OP_##name:                                                                             \
        return name((const type *)args);
        LT_OP_MAP(COST_CASE)
#undef COST_CASE
    case LT_OP_COUNT:
        break;
    }
    LT_ASSERT(!"an op");
    return (lt_cost){0};
}
