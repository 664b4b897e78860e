/* tiny.h: models of two layers with random weights, for tests of stored weights. */
#ifndef TESTS_MODEL_TINY_H
#define TESTS_MODEL_TINY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "lateen/model.h"
#include "tensor/ops.h"

static inline lt_model *tiny_llama(int64_t width, int64_t ffn_width, int64_t vocab_size,
                                   int64_t max_seq, bool tied) {
    const lt_model_spec s = {.family = LT_FAMILY_LLAMA,
                             .n_layers = 2,
                             .width = width,
                             .n_heads = 4,
                             .n_kv_heads = 2,
                             .head_dim = width / 4,
                             .ffn_width = ffn_width,
                             .vocab_size = vocab_size,
                             .max_seq = max_seq,
                             .norm = LT_NORM_RMS,
                             .norm_eps = 1e-5f,
                             .act = LT_ACT_SILU,
                             .gated = true,
                             .tied = tied,
                             .embed_scale = 1,
                             .pos = LT_POS_ROPE,
                             .rope_theta = 10000,
                             .bos_id = -1,
                             .pad_id = -1,
                             .init_std = 0.08f};
    lt_model *m = NULL;
    if (lt_model_create(&m, &s, NULL, 3) != LT_OK) {
        fail_msg("model: %s", lt_error_message());
    }
    return m;
}

/* Experts of 2 ffn_width + width rows. */
static inline lt_model *tiny_mixture(lt_family family, int64_t width, int64_t ffn_width,
                                     int64_t vocab_size, int64_t n_experts, int64_t top_k) {
    const lt_model_spec s = {.family = family,
                             .n_layers = 2,
                             .width = width,
                             .n_heads = 4,
                             .n_kv_heads = 2,
                             .head_dim = width / 4,
                             .ffn_width = ffn_width,
                             .vocab_size = vocab_size,
                             .max_seq = 128,
                             .norm = LT_NORM_RMS,
                             .norm_eps = 1e-5f,
                             .act = LT_ACT_SILU,
                             .gated = true,
                             .qk_norm = family == LT_FAMILY_QWEN3_MOE,
                             .embed_scale = 1,
                             .pos = LT_POS_ROPE,
                             .rope_theta = 10000,
                             .n_experts = n_experts,
                             .top_k = top_k,
                             .moe_normalise = true,
                             .bos_id = -1,
                             .pad_id = -1,
                             .init_std = 0.08f};
    lt_model *m = NULL;
    if (lt_model_create(&m, &s, NULL, 5) != LT_OK) {
        fail_msg("model: %s", lt_error_message());
    }
    return m;
}

#endif
