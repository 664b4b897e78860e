/* params.c: the parameter table. One function gives the shape of each kind; everything else
 * (offsets, counts, views) follows from it. */
#include "model/params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/family.h"
#include "model/layer.h"
#include "tensor/ops.h"

/* In the order of the table. Decay: matrices and embeddings. Matrix: parameters that Muon may
 * orthogonalise. */
static const struct {
    const char *name;
    bool in_layer, decays, matrix;
} kinds[LT_PARAM_KIND_COUNT] = {
    [LT_PARAM_EMBED] = {"embed", false, true, false},
    [LT_PARAM_POS_EMBED] = {"pos_embed", false, true, false},
    [LT_PARAM_NORM1] = {"norm1", true, false, false},
    [LT_PARAM_NORM1_BIAS] = {"norm1.bias", true, false, false},
    [LT_PARAM_QKV] = {"qkv", true, true, true},
    [LT_PARAM_QKV_BIAS] = {"qkv.bias", true, false, false},
    [LT_PARAM_Q_NORM] = {"q_norm", true, false, false},
    [LT_PARAM_K_NORM] = {"k_norm", true, false, false},
    [LT_PARAM_SINKS] = {"sinks", true, false, false},
    [LT_PARAM_ATTN_OUT] = {"attn_out", true, true, true},
    [LT_PARAM_ATTN_OUT_BIAS] = {"attn_out.bias", true, false, false},
    [LT_PARAM_POST_NORM1] = {"post_norm1", true, false, false},
    [LT_PARAM_NORM2] = {"norm2", true, false, false},
    [LT_PARAM_NORM2_BIAS] = {"norm2.bias", true, false, false},
    [LT_PARAM_ROUTER] = {"router", true, true, false},
    [LT_PARAM_ROUTER_BIAS] = {"router.bias", true, false, false},
    [LT_PARAM_UP] = {"up", true, true, true},
    [LT_PARAM_UP_BIAS] = {"up.bias", true, false, false},
    [LT_PARAM_XIELU] = {"xielu", true, false, false},
    [LT_PARAM_DOWN] = {"down", true, true, true},
    [LT_PARAM_DOWN_BIAS] = {"down.bias", true, false, false},
    [LT_PARAM_POST_NORM2] = {"post_norm2", true, false, false},
    [LT_PARAM_FINAL_NORM] = {"final_norm", false, false, false},
    [LT_PARAM_FINAL_NORM_BIAS] = {"final_norm.bias", false, false, false},
    [LT_PARAM_HEAD] = {"head", false, true, false},
    [LT_PARAM_SCORE] = {"score", false, true, false},
    [LT_PARAM_SCORE_BIAS] = {"score.bias", false, false, false},
};

static int dims(int64_t shape[3], bool present, int64_t d0, int64_t d1) {
    shape[0] = d0;
    shape[1] = d1;
    shape[2] = 0;
    return !present ? 0 : d1 == 0 ? 1 : 2;
}

/* The shape of a matrix of the MLP: with experts, E matrices. */
static int expert_dims(int64_t shape[3], const lt_layer_spec *l, int64_t d0, int64_t d1) {
    if (l->n_experts == 0) {
        return dims(shape, true, d0, d1);
    }
    shape[0] = l->n_experts;
    shape[1] = d0;
    shape[2] = d1;
    return 3;
}

/* The shape of a bias of the MLP: with experts, one for each. */
static int bias_dims(int64_t shape[3], const lt_layer_spec *l, int64_t d) {
    return l->n_experts > 0 ? dims(shape, l->mlp_bias, l->n_experts, d)
                            : dims(shape, l->mlp_bias, d, 0);
}

int lt_param_shape(const lt_model_spec *s, lt_param_kind kind, int64_t layer, int64_t shape[3]) {
    const lt_layer_spec l = lt_model_layer(s, kinds[kind].in_layer ? layer : 0);
    const int64_t qkv = lt_layer_qkv_cols(&l), up = lt_layer_up_rows(&l);
    const bool layer_norm = s->norm == LT_NORM_LAYER;

    switch (kind) {
    case LT_PARAM_EMBED:
        return dims(shape, true, s->vocab_size, s->width);
    case LT_PARAM_HEAD:
        return dims(shape, !s->tied && s->n_scores == 0, s->vocab_size, s->width);
    case LT_PARAM_SCORE:
        return dims(shape, s->n_scores > 0, s->n_scores, s->width);
    case LT_PARAM_SCORE_BIAS:
        return dims(shape, s->score_bias, s->n_scores, 0);
    case LT_PARAM_POS_EMBED:
        return dims(shape, s->pos == LT_POS_LEARNED, s->max_seq, s->width);
    case LT_PARAM_NORM1:
    case LT_PARAM_NORM2:
        return dims(shape, l.pre_norms, s->width, 0);
    case LT_PARAM_NORM1_BIAS:
    case LT_PARAM_NORM2_BIAS:
        return dims(shape, l.pre_norms && layer_norm, s->width, 0);
    case LT_PARAM_FINAL_NORM:
        return dims(shape, true, s->width, 0);
    case LT_PARAM_FINAL_NORM_BIAS:
        return dims(shape, layer_norm, s->width, 0);
    case LT_PARAM_POST_NORM1:
    case LT_PARAM_POST_NORM2:
        return dims(shape, l.post_norms, s->width, 0);
    case LT_PARAM_QKV:
        return dims(shape, true, qkv, s->width);
    case LT_PARAM_QKV_BIAS:
        return dims(shape, l.qkv_bias, qkv, 0);
    case LT_PARAM_Q_NORM:
        return dims(shape, l.qk_norm, l.qk_norm_whole ? lt_layer_q_cols(&l) : l.head_dim, 0);
    case LT_PARAM_K_NORM:
        return dims(shape, l.qk_norm, l.qk_norm_whole ? lt_layer_k_cols(&l) : l.head_dim, 0);
    case LT_PARAM_SINKS:
        return dims(shape, l.sinks, l.n_heads, 0);
    case LT_PARAM_ATTN_OUT:
        return dims(shape, true, s->width, lt_layer_att_cols(&l));
    case LT_PARAM_ATTN_OUT_BIAS:
        return dims(shape, l.attn_out_bias, s->width, 0);
    case LT_PARAM_ROUTER:
        return dims(shape, l.n_experts > 0, l.n_experts, s->width);
    case LT_PARAM_ROUTER_BIAS:
        return dims(shape, l.router_bias, l.n_experts, 0);
    case LT_PARAM_UP:
        return expert_dims(shape, &l, up, s->width);
    case LT_PARAM_UP_BIAS:
        return bias_dims(shape, &l, up);
    case LT_PARAM_XIELU:
        return dims(shape, l.act == LT_ACT_XIELU, 2, 0);
    case LT_PARAM_DOWN:
        return expert_dims(shape, &l, s->width, l.ffn_width);
    case LT_PARAM_DOWN_BIAS:
        return bias_dims(shape, &l, s->width);
    case LT_PARAM_KIND_COUNT:
        break;
    }
    LT_ASSERT(!"a parameter kind");
    return 0;
}

bool lt_param_in_layer(lt_param_kind kind) {
    LT_ASSERT(kind >= 0 && kind < LT_PARAM_KIND_COUNT);
    return kinds[kind].in_layer;
}

/* Muon's author found it better to orthogonalise queries, keys and values separately (Jordan
 * 2024). In models of transformers they are separate parameters for PyTorch's Muon, and so are
 * gate and up. */
static void set_blocks(lt_param *p, const lt_model_spec *spec) {
    static const lt_param_part qkv[] = {LT_PART_Q, LT_PART_K, LT_PART_V},
                               up[] = {LT_PART_GATE, LT_PART_UP}, all[] = {LT_PART_ALL};
    const lt_param_part *parts = p->kind == LT_PARAM_QKV ? qkv : p->kind == LT_PARAM_UP ? up : all;
    const int n = p->kind == LT_PARAM_QKV ? 3 : p->kind == LT_PARAM_UP ? 2 : 1;
    for (int i = 0; i < n; i++) {
        int64_t from, count;
        lt_part_rows(spec, p, parts[i], &from, &count);
        if (count > 0) {
            p->block_rows[p->n_blocks++] = count;
        }
    }
}

int64_t lt_param_matrix_count(const lt_param *p) {
    return p->matrix ? p->n_blocks *
                           (p->local_count / (p->shape[p->n_dims - 2] * p->shape[p->n_dims - 1]))
                     : 0;
}

int64_t lt_param_matrix_at(const lt_param *p, int64_t index, int64_t *rows) {
    int64_t row = index / p->n_blocks * p->shape[p->n_dims - 2];
    for (int i = 0; i < index % p->n_blocks; i++) {
        row += p->block_rows[i];
    }
    *rows = p->block_rows[index % p->n_blocks];
    return row * p->shape[p->n_dims - 1];
}

lt_param_kind lt_param_head(const lt_model_spec *s) {
    return s->n_scores > 0 ? LT_PARAM_SCORE : s->tied ? LT_PARAM_EMBED : LT_PARAM_HEAD;
}

lt_param_kind lt_param_head_bias(const lt_model_spec *s) {
    return s->score_bias ? LT_PARAM_SCORE_BIAS : LT_PARAM_KIND_COUNT;
}

/* The unit that a kind belongs to. */
static int unit_of(const lt_param_table *t, lt_param_kind kind, int layer) {
    return kinds[kind].in_layer                                   ? 1 + layer
           : kind == LT_PARAM_EMBED || kind == LT_PARAM_POS_EMBED ? 0
                                                                  : t->n_units - 1;
}

int lt_param_index(const lt_param_table *t, lt_param_kind kind, int layer) {
    int unit;
    LT_ASSERT(kind >= 0 && kind < LT_PARAM_KIND_COUNT);
    unit = unit_of(t, kind, layer);
    LT_ASSERT(unit >= 0 && unit < t->n_units);
    return t->index[unit * LT_PARAM_KIND_COUNT + (int)kind];
}

static int64_t padded(int64_t count) {
    return (count + LT_PARAM_ALIGN - 1) / LT_PARAM_ALIGN * LT_PARAM_ALIGN;
}

/* Whether a kind has a slice for each expert, if a layer has experts. */
static bool of_experts(lt_param_kind kind) {
    return kind == LT_PARAM_UP || kind == LT_PARAM_UP_BIAS || kind == LT_PARAM_DOWN ||
           kind == LT_PARAM_DOWN_BIAS;
}

int lt_param_table_add(lt_param_table *t, const lt_param *whole) {
    lt_unit *unit = &t->units[whole->unit];
    lt_param *p = &t->params[t->n_params];
    *p = *whole;
    p->number = t->n_params;
    p->whole_at = t->whole_elements;
    p->count = 1;
    for (int i = 0; i < p->n_dims; i++) {
        p->count *= p->shape[i];
    }
    if (unit->n_params++ == 0) {
        unit->first_param = t->n_params;
    }
    t->whole_elements += padded(p->count);
    return t->n_params++;
}

/* Add a parameter with its whole shape, if the model has it. */
static void add(lt_param_table *t, const lt_model_spec *spec, lt_param_kind kind, int layer) {
    const int unit = unit_of(t, kind, layer);
    lt_param p = {.kind = kind,
                  .layer = layer,
                  .unit = unit,
                  .decays = kinds[kind].decays,
                  .matrix = kinds[kind].matrix};
    p.n_dims = lt_param_shape(spec, kind, layer, p.shape);
    p.experts = of_experts(kind) && lt_model_layer(spec, layer).n_experts > 0;
    if (p.n_dims == 0) {
        return;
    }
    if (p.matrix) {
        set_blocks(&p, spec);
    }
    if (layer < 0) {
        (void)snprintf(p.name, sizeof p.name, "%s", kinds[kind].name);
    } else {
        (void)snprintf(p.name, sizeof p.name, "layers.%d.%s", layer, kinds[kind].name);
    }
    t->index[unit * LT_PARAM_KIND_COUNT + (int)kind] = lt_param_table_add(t, &p);
}

static void add_all(lt_param_table *t, const lt_model_spec *spec) {
    add(t, spec, LT_PARAM_EMBED, -1);
    add(t, spec, LT_PARAM_POS_EMBED, -1);
    for (int layer = 0; layer < spec->n_layers; layer++) {
        for (int kind = 0; kind < LT_PARAM_KIND_COUNT; kind++) {
            if (kinds[kind].in_layer) {
                add(t, spec, (lt_param_kind)kind, layer);
            }
        }
    }
    add(t, spec, LT_PARAM_FINAL_NORM, -1);
    add(t, spec, LT_PARAM_FINAL_NORM_BIAS, -1);
    add(t, spec, LT_PARAM_HEAD, -1);
    add(t, spec, LT_PARAM_SCORE, -1);
    add(t, spec, LT_PARAM_SCORE_BIAS, -1);
}

lt_err lt_param_table_begin(lt_param_table *t, int64_t n_layers, int n_max) {
    *t = (lt_param_table){.n_units = (int)n_layers + 2};
    t->params = calloc((size_t)n_max, sizeof *t->params);
    t->units = calloc((size_t)t->n_units, sizeof *t->units);
    t->index = malloc((size_t)t->n_units * LT_PARAM_KIND_COUNT * sizeof *t->index);
    if (t->params == NULL || t->units == NULL || t->index == NULL) {
        LT_FAIL(LT_ERR_OOM, "parameter table of %d rows", n_max);
    }
    for (int i = 0; i < t->n_units * LT_PARAM_KIND_COUNT; i++) {
        t->index[i] = -1;
    }
    for (int i = 0; i < t->n_units; i++) {
        t->units[i].layer = i > 0 && i < t->n_units - 1 ? i - 1 : -1;
    }
    return LT_OK;
}

/* ---- What is held here ---- */

static lt_err check_boxes(const lt_param *p, const lt_box *boxes) {
    lt_box both;
    for (int i = 0; i < p->n_boxes; i++) {
        for (int d = 0; d < p->n_dims; d++) {
            const lt_box *b = &boxes[i];
            if (b->first[d] < 0 || b->extent[d] < 1 || b->extent[d] > p->shape[d] - b->first[d]) {
                LT_FAIL(LT_ERR_ARG, "%s: box %d holds [%lld, %lld + %lld) of %lld in dimension %d",
                        p->name, i, (long long)b->first[d], (long long)b->first[d],
                        (long long)b->extent[d], (long long)p->shape[d], d);
            }
        }
        for (int j = 0; j < i; j++) {
            if (lt_box_intersect(&both, &boxes[i], &boxes[j], p->n_dims)) {
                LT_FAIL(LT_ERR_ARG, "%s: boxes %d and %d overlap", p->name, j, i);
            }
        }
    }
    return LT_OK;
}

/* Consecutive boxes with the same single index in the first dimension form a group: the rows of
 * gate and up of one expert. Returns the first box of the next group, and the group's shape. */
static int group_of(const lt_param *p, const lt_box *boxes, int from,
                    int64_t shape[LT_PARAM_DIMS]) {
    int i = from + 1;
    memcpy(shape, boxes[from].extent, sizeof boxes[from].extent);
    while (p->experts && shape[0] == 1 && i < p->n_boxes && boxes[i].extent[0] == 1 &&
           boxes[i].first[0] == boxes[from].first[0] && boxes[i].extent[2] == shape[2]) {
        shape[1] += boxes[i++].extent[1];
    }
    return i;
}

/* The shape of the boxes as one tensor, if they agree in all dimensions but the first, in which
 * they add up. Otherwise it is the number of elements. */
static void shape_locally(lt_param *p, const lt_box *boxes) {
    int64_t shape[LT_PARAM_DIMS] = {0};
    bool alike = true;
    p->local_count = 0;
    for (int i = 0; i < p->n_boxes; i++) {
        p->local_count += lt_box_count(&boxes[i], p->n_dims);
    }
    memset(p->local_shape, 0, sizeof p->local_shape);
    p->local_dims = p->n_dims;
    for (int i = 0, next; i < p->n_boxes; i = next) {
        next = group_of(p, boxes, i, shape);
        for (int d = 1; d < p->n_dims; d++) {
            alike = alike && (i == 0 || shape[d] == p->local_shape[d]);
            p->local_shape[d] = shape[d];
        }
        p->local_shape[0] += shape[0];
    }
    if (!alike) {
        p->local_dims = 1;
        p->local_shape[0] = p->local_count;
    }
}

static lt_err hold(lt_param *p, lt_box_list *list, const lt_partition *partition) {
    lt_box whole = {.first = {0}};
    p->first_box = list->n;
    memcpy(whole.extent, p->shape, sizeof p->shape);
    LT_TRY(partition == NULL ? lt_box_add(list, &whole)
                             : partition->boxes(partition->ctx, p, list));
    p->n_boxes = list->n - p->first_box;
    LT_ASSERT(p->n_boxes >= 0);
    LT_TRY(check_boxes(p, list->boxes + p->first_box));
    shape_locally(p, list->boxes + p->first_box);
    LT_ASSERT(p->local_count <= p->count);
    return LT_OK;
}

/* Place parameters within the units, and the units one after the other. */
static void place_units(lt_param_table *t, const lt_stored_weight *weights,
                        const lt_partition *partition) {
    t->n_elements = 0;
    for (int u = 0; u < t->n_units; u++) {
        lt_unit *unit = &t->units[u];
        unit->at = t->n_elements;
        unit->n_elements = 0;
        for (int i = unit->first_param; i < unit->first_param + unit->n_params; i++) {
            lt_param *p = &t->params[i];
            const bool stored = weights != NULL && weights[i].n_ranges > 0;
            LT_ASSERT(p->unit == u);
            p->at = stored ? -1 : unit->n_elements;
            unit->n_elements += stored ? 0 : padded(p->local_count);
        }
        if (partition != NULL && partition->room != NULL) {
            const int64_t room = partition->room(partition->ctx, u, unit->n_elements);
            LT_ASSERT(room >= unit->n_elements && room % LT_PARAM_ALIGN == 0);
            unit->n_elements = room;
        }
        t->n_elements += unit->n_elements;
    }
}

lt_err lt_param_table_end(lt_param_table *t, const lt_partition *partition) {
    lt_err err = LT_OK;
    lt_box_list list = {0};
    for (int i = 0; i < t->n_params && err == LT_OK; i++) {
        err = hold(&t->params[i], &list, partition);
    }
    if (err != LT_OK) {
        free(list.boxes);
        return err;
    }
    place_units(t, NULL, partition);
    LT_ASSERT(partition != NULL || t->n_elements == t->whole_elements);
    t->boxes = list.boxes;
    t->n_boxes = list.n;
    return LT_OK;
}

lt_err lt_param_table_open_part(lt_param_table *out, const lt_model_spec *spec,
                                const lt_partition *partition) {
    lt_err err = LT_OK;
    lt_param_table t = {0};

    LT_TRY(lt_model_spec_check(spec));
    LT_TRY_DONE(
        lt_param_table_begin(&t, spec->n_layers, LT_PARAM_KIND_COUNT * (int)(spec->n_layers + 1)));
    add_all(&t, spec);
    LT_TRY_DONE(lt_param_table_end(&t, partition));
    *out = t;
    t = (lt_param_table){0};
done:
    lt_param_table_close(&t);
    return err;
}

lt_err lt_param_table_open(lt_param_table *out, const lt_model_spec *spec) {
    return lt_param_table_open_part(out, spec, NULL);
}

void lt_param_table_skip_stored(lt_param_table *t, const lt_stored_weight *weights,
                                const lt_partition *partition) {
    place_units(t, weights, partition);
}

void lt_param_table_close(lt_param_table *t) {
    free(t->params);
    free(t->units);
    free(t->boxes);
    free(t->index);
    *t = (lt_param_table){0};
}

const lt_param *lt_param_find(const lt_param_table *t, const char *name) {
    for (int i = 0; i < t->n_params; i++) {
        if (strcmp(t->params[i].name, name) == 0) {
            return &t->params[i];
        }
    }
    return NULL;
}

bool lt_param_table_is_whole(const lt_param_table *t) {
    for (int i = 0; i < t->n_params; i++) {
        if (t->params[i].n_boxes != 1 || t->params[i].local_count != t->params[i].count) {
            return false;
        }
    }
    return true;
}

const lt_box *lt_param_boxes(const lt_param_table *t, const lt_param *p) {
    return t->boxes + p->first_box;
}

int64_t lt_param_whole_index(const lt_param_table *t, const lt_param *p, int64_t local,
                             int64_t *run) {
    LT_ASSERT(local < p->local_count);
    return lt_box_whole_index(lt_param_boxes(t, p), p->n_boxes, p->n_dims, p->shape, local, run);
}
