/* small_spec.h: presets of families with small sizes. */
#ifndef TESTS_MODEL_SMALL_SPEC_H
#define TESTS_MODEL_SMALL_SPEC_H

#include <math.h>

#include "model/family.h"

/* A family's preset with small sizes. */
static inline lt_model_spec small(lt_family family) {
    lt_model_spec s = lt_family_get(family)->preset;
    s.n_layers = 3;
    s.width = 32;
    s.n_heads = 4;
    s.n_kv_heads = 2;
    s.head_dim = 8;
    s.ffn_width = 24;
    s.vocab_size = 61;
    s.max_seq = 64;
    s.init_std = 0.2f;
    if (family == LT_FAMILY_GEMMA3 || family == LT_FAMILY_GEMMA2) {
        s.window = 5;
        s.embed_scale = sqrtf(32.0f);
        s.attn_scale = 1.0f / sqrtf(8.0f);
    }
    return s;
}

#endif
