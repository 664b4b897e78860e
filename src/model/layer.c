/* layer.c: derives the record of a layer from the fields that all layers share and the patterns
 * in which they differ: windows (window_every, no_window), layers without rotation (no_rope),
 * layers without experts (dense). */
#include "model/layer.h"

#include <math.h>

#include "base/error.h"
#include "model/blocks/exec.h"

static int64_t window_of(const lt_model_spec *s, int64_t layer) {
    const bool global = s->no_window[layer] ||
                        (s->window_every > 0 && (layer + 1) % s->window_every == 0);
    return global ? 0 : s->window;
}

int64_t lt_layers_window(const lt_model_spec *s) {
    bool all = s->window > 0;
    for (int64_t i = 0; i < s->n_layers; i++) {
        all = all && window_of(s, i) > 0;
    }
    return all ? s->window : 0;
}

void lt_layers_set_windows(lt_model_spec *s, const bool *local) {
    int64_t n_local = 0, every = 0;
    bool periodic = true;
    for (int64_t i = 0; i < s->n_layers; i++) {
        n_local += local[i];
        every = every == 0 && !local[i] ? i + 1 : every; /* The first global layer. */
    }
    if (n_local == 0) {
        s->window = every = 0;
    }
    for (int64_t i = 0; i < s->n_layers && every > 0; i++) {
        periodic = periodic && local[i] == ((i + 1) % every != 0);
    }
    for (int64_t i = 0; i < s->n_layers && !periodic; i++) {
        s->no_window[i] = !local[i];
    }
    s->window_every = periodic ? every : 0;
}

static lt_layer_rope rope_of(const lt_model_spec *s, int64_t layer) {
    if (s->pos != LT_POS_ROPE || s->no_rope[layer]) {
        return LT_LAYER_ROPE_NONE;
    }
    return window_of(s, layer) > 0 ? LT_LAYER_ROPE_LOCAL : LT_LAYER_ROPE_MAIN;
}

bool lt_layers_alike(const lt_model_spec *s) {
    for (int64_t i = 0; s->n_experts > 0 && i < s->n_layers; i++) {
        if (s->dense[i]) {
            return false;
        }
    }
    return true;
}

lt_layer_spec lt_model_layer(const lt_model_spec *s, int64_t layer) {
    LT_ASSERT(layer >= 0 && layer < LT_MAX_LAYERS);
    const bool experts = s->n_experts > 0 && !s->dense[layer];
    const float scale = s->attn_scale > 0 ? s->attn_scale : (float)(1 / sqrt((double)s->head_dim));
    return (lt_layer_spec){
        .mixer = LT_MIXER_ATTENTION,
        .n_heads = s->n_heads,
        .n_kv_heads = s->n_kv_heads,
        .head_dim = s->head_dim,
        .value_dim = s->head_dim,
        .attn_scale = s->attn_scale_by_layer ? scale / (float)(layer + 1) : scale,
        .attn_softcap = s->attn_softcap,
        .window = window_of(s, layer),
        .rope = rope_of(s, layer),
        .sinks = s->sinks,
        .qkv_bias = s->qkv_bias,
        .attn_out_bias = s->attn_out_bias,
        .norm = s->norm,
        .norm_eps = s->norm_eps,
        .norm_gain_offset = s->norm_gain_offset,
        .pre_norms = !s->no_pre_norms,
        .post_norms = s->post_norms,
        .qk_norm = s->qk_norm,
        .qk_norm_whole = s->qk_norm && s->qk_norm_whole,
        .act = s->act,
        .gated = s->gated,
        .swiglu_alpha = s->swiglu_alpha,
        .swiglu_limit = s->swiglu_limit,
        .mlp_bias = s->mlp_bias,
        .ffn_width = experts || s->dense_ffn_width == 0 ? s->ffn_width : s->dense_ffn_width,
        .n_experts = experts ? s->n_experts : 0,
        .top_k = experts ? s->top_k : 0,
        .moe_normalise = s->moe_normalise,
        .router_bias = experts && s->router_bias,
        .moe_capacity = s->moe_capacity,
        .residual_scale = s->residual_scale > 0 ? s->residual_scale : 1.0f};
}

lt_layer_spec lt_layer_part(const lt_model_spec *s, int64_t layer, int tp) {
    lt_layer_spec l = lt_model_layer(s, layer);
    LT_ASSERT(l.n_heads % tp == 0 && l.ffn_width % tp == 0);
    l.n_heads /= tp;
    l.n_kv_heads = l.n_kv_heads > tp ? l.n_kv_heads / tp : tp > 1 ? 1 : l.n_kv_heads;
    l.ffn_width /= tp;
    return l;
}

bool lt_layer_norm_rotates(const lt_model_spec *s, const lt_layer_spec *l) {
    return l->qk_norm && !l->qk_norm_whole && l->rope != LT_LAYER_ROPE_NONE &&
           2 * lt_rope_columns(s) == l->head_dim;
}
