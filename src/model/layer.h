/* layer.h: sizes that follow from a layer's record (lt_layer_spec of lateen/model.h).
 *
 * q, k and v of a token are adjacent in one row:
 *
 *     columns   [0, q)           n_heads heads of head_dim       q_cols
 *               [q, q + k)       n_kv_heads heads of head_dim    k_cols
 *               [q + k, qkv)     n_kv_heads heads of value_dim   v_cols */
#ifndef LT_MODEL_LAYER_H
#define LT_MODEL_LAYER_H

#include "lateen/model.h"

static inline int64_t lt_layer_q_cols(const lt_layer_spec *l) {
    return l->n_heads * l->head_dim;
}

static inline int64_t lt_layer_k_cols(const lt_layer_spec *l) {
    return l->n_kv_heads * l->head_dim;
}

static inline int64_t lt_layer_v_cols(const lt_layer_spec *l) {
    return l->n_kv_heads * l->value_dim;
}

static inline int64_t lt_layer_qk_cols(const lt_layer_spec *l) {
    return lt_layer_q_cols(l) + lt_layer_k_cols(l);
}

static inline int64_t lt_layer_qkv_cols(const lt_layer_spec *l) {
    return lt_layer_qk_cols(l) + lt_layer_v_cols(l);
}

/* Columns of the result of attention: n_heads heads of value_dim. */
static inline int64_t lt_layer_att_cols(const lt_layer_spec *l) {
    return l->n_heads * l->value_dim;
}

/* Rows of the first matrix of the MLP: gate and up, or up alone. */
static inline int64_t lt_layer_up_rows(const lt_layer_spec *l) {
    return l->gated ? 2 * l->ffn_width : l->ffn_width;
}

/* The part of a layer that each of tp ranks computes: its heads and its columns of the MLP; one
 * key head if there are fewer of them than ranks. tp 1: the whole layer. */
lt_layer_spec lt_layer_part(const lt_model_spec *spec, int64_t layer, int tp);

/* The divisor of logits: 1 if the spec has none. */
static inline float lt_model_logit_divisor(const lt_model_spec *spec) {
    return spec->logit_divisor > 0 && spec->n_scores == 0 ? spec->logit_divisor : 1.0f;
}

/* Whether all layers have the same parameters and activations, of the same sizes. */
bool lt_layers_alike(const lt_model_spec *spec);

/* The window of the layers if all of them have one; otherwise 0. */
int64_t lt_layers_window(const lt_model_spec *spec);

/* Describe which of the n_layers layers have the window spec->window: by a period if that
 * suffices, otherwise layer by layer. If none has it, there is no window. */
void lt_layers_set_windows(lt_model_spec *spec, const bool *local);

/* Whether norm and rotation of q and k are one op: norms of single heads, all of whose columns
 * rotate. */
bool lt_layer_norm_rotates(const lt_model_spec *spec, const lt_layer_spec *l);

#endif
