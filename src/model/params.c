/* params.c: the parameter table. One function gives the shape of each kind; everything else
 * (offsets, counts, views) follows from it. */
#include "model/params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tensor/ops.h"

/* In table order. Decay: matrices and embeddings. Matrix: what Muon may orthogonalise. */
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
    [LT_PARAM_ATTN_OUT] = {"attn_out", true, true, true},
    [LT_PARAM_ATTN_OUT_BIAS] = {"attn_out.bias", true, false, false},
    [LT_PARAM_POST_NORM1] = {"post_norm1", true, false, false},
    [LT_PARAM_NORM2] = {"norm2", true, false, false},
    [LT_PARAM_NORM2_BIAS] = {"norm2.bias", true, false, false},
    [LT_PARAM_ROUTER] = {"router", true, true, false},
    [LT_PARAM_UP] = {"up", true, true, true},
    [LT_PARAM_UP_BIAS] = {"up.bias", true, false, false},
    [LT_PARAM_XIELU] = {"xielu", true, false, false},
    [LT_PARAM_DOWN] = {"down", true, true, true},
    [LT_PARAM_DOWN_BIAS] = {"down.bias", true, false, false},
    [LT_PARAM_POST_NORM2] = {"post_norm2", true, false, false},
    [LT_PARAM_FINAL_NORM] = {"final_norm", false, false, false},
    [LT_PARAM_FINAL_NORM_BIAS] = {"final_norm.bias", false, false, false},
    [LT_PARAM_HEAD] = {"head", false, true, false},
};

static int dims(int64_t shape[3], bool present, int64_t d0, int64_t d1) {
    shape[0] = d0;
    shape[1] = d1;
    shape[2] = 0;
    return !present ? 0 : d1 == 0 ? 1 : 2;
}

/* A matrix of the MLP: with experts, E of them. */
static int expert_dims(int64_t shape[3], const lt_model_spec *s, int64_t d0, int64_t d1) {
    if (s->n_experts == 0) {
        return dims(shape, true, d0, d1);
    }
    shape[0] = s->n_experts;
    shape[1] = d0;
    shape[2] = d1;
    return 3;
}

int lt_param_shape(const lt_model_spec *s, lt_param_kind kind, int64_t shape[3]) {
    const int64_t q = s->n_heads * s->head_dim, qkv = q + 2 * s->n_kv_heads * s->head_dim;
    const int64_t up = s->gated ? 2 * s->ffn_width : s->ffn_width;
    const bool layer_norm = s->norm == LT_NORM_LAYER;
    const bool mlp_bias = s->mlp_bias && s->n_experts == 0;

    switch (kind) {
    case LT_PARAM_EMBED:
        return dims(shape, true, s->vocab_size, s->width);
    case LT_PARAM_HEAD:
        return dims(shape, !s->tied, s->vocab_size, s->width);
    case LT_PARAM_POS_EMBED:
        return dims(shape, s->pos == LT_POS_LEARNED, s->max_seq, s->width);
    case LT_PARAM_NORM1:
    case LT_PARAM_NORM2:
    case LT_PARAM_FINAL_NORM:
        return dims(shape, true, s->width, 0);
    case LT_PARAM_NORM1_BIAS:
    case LT_PARAM_NORM2_BIAS:
    case LT_PARAM_FINAL_NORM_BIAS:
        return dims(shape, layer_norm, s->width, 0);
    case LT_PARAM_POST_NORM1:
    case LT_PARAM_POST_NORM2:
        return dims(shape, s->post_norms, s->width, 0);
    case LT_PARAM_QKV:
        return dims(shape, true, qkv, s->width);
    case LT_PARAM_QKV_BIAS:
        return dims(shape, s->qkv_bias, qkv, 0);
    case LT_PARAM_Q_NORM:
    case LT_PARAM_K_NORM:
        return dims(shape, s->qk_norm, s->head_dim, 0);
    case LT_PARAM_ATTN_OUT:
        return dims(shape, true, s->width, q);
    case LT_PARAM_ATTN_OUT_BIAS:
        return dims(shape, s->attn_out_bias, s->width, 0);
    case LT_PARAM_ROUTER:
        return dims(shape, s->n_experts > 0, s->n_experts, s->width);
    case LT_PARAM_UP:
        return expert_dims(shape, s, up, s->width);
    case LT_PARAM_UP_BIAS:
        return dims(shape, mlp_bias, up, 0);
    case LT_PARAM_XIELU:
        return dims(shape, s->act == LT_ACT_XIELU, 2, 0);
    case LT_PARAM_DOWN:
        return expert_dims(shape, s, s->width, s->ffn_width);
    case LT_PARAM_DOWN_BIAS:
        return dims(shape, mlp_bias, s->width, 0);
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

static void add(lt_param_table *t, const lt_model_spec *spec, lt_param_kind kind, int layer) {
    lt_param p = {.kind = kind,
                  .layer = layer,
                  .offset = t->n_elements,
                  .count = 1,
                  .decays = kinds[kind].decays,
                  .matrix = kinds[kind].matrix};
    p.n_dims = lt_param_shape(spec, kind, p.shape);
    if (p.n_dims == 0) {
        return;
    }
    for (int i = 0; i < p.n_dims; i++) {
        p.count *= p.shape[i];
    }
    if (layer < 0) {
        (void)snprintf(p.name, sizeof p.name, "%s", kinds[kind].name);
    } else {
        (void)snprintf(p.name, sizeof p.name, "layers.%d.%s", layer, kinds[kind].name);
    }
    if (layer <= 0) {
        t->index[kind] = t->n_params;
    }
    t->params[t->n_params++] = p;
    t->n_elements += (p.count + LT_PARAM_ALIGN - 1) / LT_PARAM_ALIGN * LT_PARAM_ALIGN;
}

lt_err lt_param_table_open(lt_param_table *out, const lt_model_spec *spec) {
    lt_param_table t = {0};
    const int n_max = LT_PARAM_KIND_COUNT * (int)(spec->n_layers + 1);

    LT_TRY(lt_model_spec_check(spec));
    t.params = calloc((size_t)n_max, sizeof *t.params);
    if (t.params == NULL) {
        LT_FAIL(LT_ERR_OOM, "parameter table of %d rows", n_max);
    }
    for (int kind = 0; kind < LT_PARAM_KIND_COUNT; kind++) {
        t.index[kind] = -1;
    }
    add(&t, spec, LT_PARAM_EMBED, -1);
    add(&t, spec, LT_PARAM_POS_EMBED, -1);
    for (int layer = 0; layer < spec->n_layers; layer++) {
        const int first = t.n_params;
        for (int kind = 0; kind < LT_PARAM_KIND_COUNT; kind++) {
            if (kinds[kind].in_layer) {
                add(&t, spec, (lt_param_kind)kind, layer);
            }
        }
        t.layer_stride = t.n_params - first;
    }
    add(&t, spec, LT_PARAM_FINAL_NORM, -1);
    add(&t, spec, LT_PARAM_FINAL_NORM_BIAS, -1);
    add(&t, spec, LT_PARAM_HEAD, -1);
    *out = t;
    return LT_OK;
}

void lt_param_table_skip_held(lt_param_table *t, const lt_held *held) {
    t->n_elements = 0;
    for (int i = 0; i < t->n_params; i++) {
        lt_param *p = &t->params[i];
        p->offset = held[i].n_runs > 0 ? -1 : t->n_elements;
        if (held[i].n_runs == 0) {
            t->n_elements += (p->count + LT_PARAM_ALIGN - 1) / LT_PARAM_ALIGN * LT_PARAM_ALIGN;
        }
    }
}

void lt_param_table_close(lt_param_table *t) {
    free(t->params);
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

lt_tensor lt_param_view(const lt_param_table *t, lt_param_kind kind, int layer, void *flat,
                        lt_dtype dtype) {
    const lt_param *p;
    char *data;

    LT_ASSERT(kind >= 0 && kind < LT_PARAM_KIND_COUNT);
    if (t->index[kind] < 0 || flat == NULL) {
        return (lt_tensor){0};
    }
    p = &t->params[t->index[kind] + (kinds[kind].in_layer ? layer * t->layer_stride : 0)];
    LT_ASSERT(p->kind == kind && (p->layer < 0 || p->layer == layer));
    LT_ASSERT(p->offset >= 0); /* Not held. */
    data = (char *)flat + (size_t)p->offset * lt_dtype_bytes(dtype);
    return p->n_dims == 1   ? lt_tensor_1d(data, dtype, p->shape[0])
           : p->n_dims == 2 ? lt_tensor_2d(data, dtype, p->shape[0], p->shape[1])
                            : lt_tensor_3d(data, dtype, p->shape[0], p->shape[1], p->shape[2]);
}
