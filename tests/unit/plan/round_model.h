/* round_model.h: a small dense model for the machine of round.h, and its sizes. */
#ifndef LT_TEST_PLAN_ROUND_MODEL_H
#define LT_TEST_PLAN_ROUND_MODEL_H

#include "unit/plan/round.h"

static const double layers = 4, width = 1024, tokens = 2048, heads = 16, kv_heads = 4, head = 64,
                    ffn = 4096, vocab = 32000;

static inline lt_plan_model dense(void) {
    return (lt_plan_model){.name = "dense",
                           .n_layers = 4,
                           .width = 1024,
                           .n_heads = 16,
                           .n_kv_heads = 4,
                           .head_dim = 64,
                           .ffn_width = 4096,
                           .vocab_size = 32000,
                           .max_seq = 2048,
                           .n_attn = 4,
                           .n_dense = 4,
                           .gated = true};
}

#endif
