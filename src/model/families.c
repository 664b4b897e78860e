/* families.c: the table of families. A row has the properties of one family: the constants of its
 * arithmetic, the keys of its config.json and the names of its tensors, as transformers 5 writes
 * them. Fields that a row does not set are zero: no bias, no window, dense, plain RoPE.
 *
 * SWITCH has no class in transformers: it is Lateen's decoder-only form of Fedus et al. 2021
 * (arXiv:2101.03961): a Llama-style block whose MLP is a top-1 mixture weighted by the chosen
 * probability itself, with a capacity factor, load-balancing and router z-loss; its keys are
 * ours. */
#include "model/family.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "model/layer.h"
#include "tensor/ops.h"

/* With an alias: if a file has both keys, transformers takes the one that comes last. */
#define KEY_ALIAS(name, type, field, alias)                                                        \
    { name, LT_KEY_##type, offsetof(lt_model_spec, field), false, alias }
#define NEEDED_ALIAS(name, type, field, alias)                                                     \
    { name, LT_KEY_##type, offsetof(lt_model_spec, field), true, alias }
#define KEY(name, type, field)    KEY_ALIAS(name, type, field, NULL)
#define NEEDED(name, type, field) NEEDED_ALIAS(name, type, field, NULL)
#define COUNT(rows)               ((int)(sizeof(rows) / sizeof((rows)[0])))

/* Keys that all families derived from Llama share. */
#define COMMON_KEYS SIZE_KEYS, NEEDED("intermediate_size", I64, ffn_width)
#define SIZE_KEYS                                                                                  \
    NEEDED("vocab_size", I64, vocab_size), NEEDED("hidden_size", I64, width),                      \
        NEEDED("num_hidden_layers", I64, n_layers), NEEDED("num_attention_heads", I64, n_heads),   \
        KEY("num_key_value_heads", I64, n_kv_heads), KEY("head_dim", I64, head_dim),               \
        KEY("max_position_embeddings", I64, max_seq), KEY("rms_norm_eps", F32, norm_eps),          \
        KEY("initializer_range", F32, init_std), KEY("tie_word_embeddings", BOOL, tied),           \
        KEY("bos_token_id", ID, bos_id), KEY("eos_token_id", IDS, eos),                            \
        KEY("pad_token_id", ID, pad_id)
#define ATTENTION_BIAS_KEYS                                                                        \
    KEY("attention_bias", BOOL, qkv_bias), KEY("attention_bias", BOOL, attn_out_bias)

static const lt_config_key gpt2_keys[] = {
    NEEDED("vocab_size", I64, vocab_size),
    NEEDED_ALIAS("n_embd", I64, width, "hidden_size"),
    NEEDED_ALIAS("n_layer", I64, n_layers, "num_hidden_layers"),
    NEEDED_ALIAS("n_head", I64, n_heads, "num_attention_heads"),
    KEY("n_inner", I64, ffn_width),
    KEY_ALIAS("n_positions", I64, max_seq, "max_position_embeddings"),
    KEY("layer_norm_epsilon", F32, norm_eps),
    KEY("activation_function", ACT, act),
    KEY("initializer_range", F32, init_std),
    KEY("tie_word_embeddings", BOOL, tied),
    KEY("bos_token_id", ID, bos_id),
    KEY("eos_token_id", IDS, eos),
    KEY("pad_token_id", ID, pad_id),
    KEY("scale_attn_weights", SCALED, attn_scale),
    KEY("scale_attn_by_inverse_layer_idx", BOOL, attn_scale_by_layer),
};
static const lt_config_key llama_keys[] = {
    COMMON_KEYS, ATTENTION_BIAS_KEYS, KEY("mlp_bias", BOOL, mlp_bias), KEY("hidden_act", ACT, act)};
static const lt_config_key qwen3_keys[] = {COMMON_KEYS, ATTENTION_BIAS_KEYS,
                                           KEY("hidden_act", ACT, act)};
static const lt_config_key gemma3_keys[] = {COMMON_KEYS, ATTENTION_BIAS_KEYS,
                                            KEY("hidden_activation", ACT, act),
                                            KEY("query_pre_attn_scalar", INV_SQRT, attn_scale),
                                            KEY("final_logit_softcapping", CAP, final_softcap)};
static const lt_config_key gemma2_keys[] = {COMMON_KEYS,
                                            ATTENTION_BIAS_KEYS,
                                            KEY("hidden_activation", ACT, act),
                                            KEY("query_pre_attn_scalar", INV_SQRT, attn_scale),
                                            KEY("attn_logit_softcapping", CAP, attn_softcap),
                                            KEY("final_logit_softcapping", CAP, final_softcap)};
static const lt_config_key mixtral_keys[] = {
    COMMON_KEYS, KEY("hidden_act", ACT, act),
    KEY_ALIAS("num_local_experts", I64, n_experts, "num_experts"),
    KEY("num_experts_per_tok", I64, top_k), KEY("router_aux_loss_coef", F32, moe_aux_coef)};
static const lt_config_key plain_keys[] = {COMMON_KEYS, KEY("hidden_act", ACT, act)};
static const lt_config_key granite_keys[] = {COMMON_KEYS,
                                             ATTENTION_BIAS_KEYS,
                                             KEY("mlp_bias", BOOL, mlp_bias),
                                             KEY("hidden_act", ACT, act),
                                             KEY("embedding_multiplier", FACTOR, embed_scale),
                                             KEY("attention_multiplier", FACTOR, attn_scale),
                                             KEY("residual_multiplier", FACTOR, residual_scale),
                                             KEY("logits_scaling", FACTOR, logit_divisor)};
static const lt_config_key qwen3_moe_keys[] = {
    SIZE_KEYS,
    ATTENTION_BIAS_KEYS,
    KEY("hidden_act", ACT, act),
    KEY("moe_intermediate_size", I64, ffn_width),
    KEY("num_experts", I64, n_experts),
    KEY_ALIAS("num_local_experts", I64, n_experts, "num_experts"),
    KEY("num_experts_per_tok", I64, top_k),
    KEY("norm_topk_prob", BOOL, moe_normalise),
    KEY("router_aux_loss_coef", F32, moe_aux_coef)};
static const lt_config_key gpt_oss_keys[] = {
    COMMON_KEYS,
    ATTENTION_BIAS_KEYS,
    KEY_ALIAS("num_local_experts", I64, n_experts, "num_experts"),
    KEY("num_experts_per_tok", I64, top_k),
    KEY("swiglu_alpha", FACTOR, swiglu_alpha),
    KEY("swiglu_limit", FACTOR, swiglu_limit),
    KEY("router_aux_loss_coef", F32, moe_aux_coef)};
static const lt_config_key switch_keys[] = {COMMON_KEYS,
                                            KEY("hidden_act", ACT, act),
                                            KEY("gated_mlp", BOOL, gated),
                                            KEY("num_local_experts", I64, n_experts),
                                            KEY("num_experts_per_tok", I64, top_k),
                                            KEY("norm_topk_prob", BOOL, moe_normalise),
                                            KEY("expert_capacity_factor", F64, moe_capacity),
                                            KEY("router_aux_loss_coef", F32, moe_aux_coef),
                                            KEY("router_z_loss_coef", F32, moe_z_coef)};

#define ALL(kind, name)                                                                            \
    { LT_PARAM_##kind, LT_PART_ALL, name, 0 }
#define TRANSPOSED(kind, name)                                                                     \
    { LT_PARAM_##kind, LT_PART_ALL, name, LT_FORM_TRANSPOSED }
#define PART(kind, part, name)                                                                     \
    { LT_PARAM_##kind, LT_PART_##part, name, 0 }
#define LAYER "model.layers.%L."

#define COMMON_NAMES                                                                               \
    ALL(EMBED, "model.embed_tokens.weight"), ALL(FINAL_NORM, "model.norm.weight"),                 \
        ALL(HEAD, "lm_head.weight"), ALL(SCORE, "score.weight"), ALL(SCORE_BIAS, "score.bias"),    \
        ALL(SCORE, "score.0.weight"), ALL(SCORE_BIAS, "score.0.bias")
#define ATTENTION_NAMES                                                                            \
    PART(QKV, Q, LAYER "self_attn.q_proj.weight"), PART(QKV, K, LAYER "self_attn.k_proj.weight"),  \
        PART(QKV, V, LAYER "self_attn.v_proj.weight"),                                             \
        PART(QKV_BIAS, Q, LAYER "self_attn.q_proj.bias"),                                          \
        PART(QKV_BIAS, K, LAYER "self_attn.k_proj.bias"),                                          \
        PART(QKV_BIAS, V, LAYER "self_attn.v_proj.bias"),                                          \
        ALL(Q_NORM, LAYER "self_attn.q_norm.weight"),                                              \
        ALL(K_NORM, LAYER "self_attn.k_norm.weight"),                                              \
        ALL(ATTN_OUT, LAYER "self_attn.o_proj.weight"),                                            \
        ALL(ATTN_OUT_BIAS, LAYER "self_attn.o_proj.bias")
#define MLP_NAMES                                                                                  \
    PART(UP, GATE, LAYER "mlp.gate_proj.weight"), PART(UP, UP, LAYER "mlp.up_proj.weight"),        \
        PART(UP_BIAS, GATE, LAYER "mlp.gate_proj.bias"),                                           \
        PART(UP_BIAS, UP, LAYER "mlp.up_proj.bias"), ALL(DOWN, LAYER "mlp.down_proj.weight"),      \
        ALL(DOWN_BIAS, LAYER "mlp.down_proj.bias")
#define NORM_NAMES                                                                                 \
    ALL(NORM1, LAYER "input_layernorm.weight"), ALL(NORM2, LAYER "post_attention_layernorm."       \
                                                                 "weight")

static const lt_name_row gpt2_names[] = {
    ALL(EMBED, "transformer.wte.weight"),
    ALL(POS_EMBED, "transformer.wpe.weight"),
    ALL(NORM1, "transformer.h.%L.ln_1.weight"),
    ALL(NORM1_BIAS, "transformer.h.%L.ln_1.bias"),
    TRANSPOSED(QKV, "transformer.h.%L.attn.c_attn.weight"),
    ALL(QKV_BIAS, "transformer.h.%L.attn.c_attn.bias"),
    TRANSPOSED(ATTN_OUT, "transformer.h.%L.attn.c_proj.weight"),
    ALL(ATTN_OUT_BIAS, "transformer.h.%L.attn.c_proj.bias"),
    ALL(NORM2, "transformer.h.%L.ln_2.weight"),
    ALL(NORM2_BIAS, "transformer.h.%L.ln_2.bias"),
    TRANSPOSED(UP, "transformer.h.%L.mlp.c_fc.weight"),
    ALL(UP_BIAS, "transformer.h.%L.mlp.c_fc.bias"),
    TRANSPOSED(DOWN, "transformer.h.%L.mlp.c_proj.weight"),
    ALL(DOWN_BIAS, "transformer.h.%L.mlp.c_proj.bias"),
    ALL(FINAL_NORM, "transformer.ln_f.weight"),
    ALL(FINAL_NORM_BIAS, "transformer.ln_f.bias"),
    ALL(HEAD, "lm_head.weight"),
    ALL(SCORE, "score.weight"),
    ALL(SCORE_BIAS, "score.bias"),
};
static const lt_name_row llama_names[] = {COMMON_NAMES, ATTENTION_NAMES, MLP_NAMES, NORM_NAMES};
static const lt_name_row gemma_names[] = {
    COMMON_NAMES,
    ATTENTION_NAMES,
    MLP_NAMES,
    ALL(NORM1, LAYER "input_layernorm.weight"),
    ALL(POST_NORM1, LAYER "post_attention_layernorm.weight"),
    ALL(NORM2, LAYER "pre_feedforward_layernorm.weight"),
    ALL(POST_NORM2, LAYER "post_feedforward_layernorm.weight"),
};
static const lt_name_row apertus_names[] = {
    COMMON_NAMES,
    ATTENTION_NAMES,
    MLP_NAMES,
    ALL(NORM1, LAYER "attention_layernorm.weight"),
    ALL(NORM2, LAYER "feedforward_layernorm.weight"),
    PART(XIELU, XIELU_P, LAYER "mlp.act_fn.alpha_p"),
    PART(XIELU, XIELU_N, LAYER "mlp.act_fn.alpha_n"),
};
static const lt_name_row mixtral_names[] = {
    COMMON_NAMES,
    ATTENTION_NAMES,
    NORM_NAMES,
    ALL(ROUTER, LAYER "block_sparse_moe.gate.weight"),
    PART(UP, GATE, LAYER "block_sparse_moe.experts.%E.w1.weight"),
    PART(UP, UP, LAYER "block_sparse_moe.experts.%E.w3.weight"),
    ALL(DOWN, LAYER "block_sparse_moe.experts.%E.w2.weight"),
};
static const lt_name_row phi3_names[] = {
    COMMON_NAMES,
    NORM_NAMES,
    ALL(QKV, LAYER "self_attn.qkv_proj.weight"),
    ALL(ATTN_OUT, LAYER "self_attn.o_proj.weight"),
    ALL(UP, LAYER "mlp.gate_up_proj.weight"),
    ALL(DOWN, LAYER "mlp.down_proj.weight"),
};
static const lt_name_row olmo2_names[] = {
    COMMON_NAMES,
    ATTENTION_NAMES,
    MLP_NAMES,
    ALL(POST_NORM1, LAYER "post_attention_layernorm.weight"),
    ALL(POST_NORM2, LAYER "post_feedforward_layernorm.weight"),
};
static const lt_name_row qwen3_moe_names[] = {
    COMMON_NAMES,
    ATTENTION_NAMES,
    MLP_NAMES,
    NORM_NAMES,
    ALL(ROUTER, LAYER "mlp.gate.weight"),
    PART(UP, GATE, LAYER "mlp.experts.%E.gate_proj.weight"),
    PART(UP, UP, LAYER "mlp.experts.%E.up_proj.weight"),
    ALL(DOWN, LAYER "mlp.experts.%E.down_proj.weight"),
};
#define FORMED(kind, name, form)                                                                   \
    { LT_PARAM_##kind, LT_PART_ALL, name, form }
static const lt_name_row gpt_oss_names[] = {
    COMMON_NAMES,
    ATTENTION_NAMES,
    NORM_NAMES,
    ALL(SINKS, LAYER "self_attn.sinks"),
    ALL(ROUTER, LAYER "mlp.router.weight"),
    ALL(ROUTER_BIAS, LAYER "mlp.router.bias"),
    FORMED(UP, LAYER "mlp.experts.gate_up_proj", LT_FORM_TRANSPOSED | LT_FORM_ALTERNATING),
    FORMED(UP_BIAS, LAYER "mlp.experts.gate_up_proj_bias", LT_FORM_ALTERNATING),
    TRANSPOSED(DOWN, LAYER "mlp.experts.down_proj"),
    ALL(DOWN_BIAS, LAYER "mlp.experts.down_proj_bias"),
    FORMED(UP, LAYER "mlp.experts.gate_up_proj_blocks", LT_FORM_MXFP4 | LT_FORM_ALTERNATING),
    FORMED(DOWN, LAYER "mlp.experts.down_proj_blocks", LT_FORM_MXFP4),
};
static const lt_name_row switch_names[] = {
    COMMON_NAMES,
    ATTENTION_NAMES,
    NORM_NAMES,
    ALL(ROUTER, LAYER "mlp.router.weight"),
    PART(UP, GATE, LAYER "mlp.experts.%E.gate_proj.weight"),
    PART(UP, UP, LAYER "mlp.experts.%E.up_proj.weight"),
    ALL(DOWN, LAYER "mlp.experts.%E.down_proj.weight"),
};

static const lt_constant_row gpt2_constants[] = {{"transformer.h.%L.attn.bias", false, 0},
                                                 {"transformer.h.%L.attn.masked_bias", false, 0}};
static const lt_constant_row rope_constants[] = {{LAYER "self_attn.rotary_emb.inv_freq", false, 0}};
/* The scales are read together with their blocks. */
static const lt_constant_row gpt_oss_constants[] = {
    {LAYER "self_attn.rotary_emb.inv_freq", false, 0},
    {LAYER "mlp.experts.gate_up_proj_scales", false, 0},
    {LAYER "mlp.experts.down_proj_scales", false, 0},
};
static const lt_constant_row apertus_constants[] = {
    {LAYER "self_attn.rotary_emb.inv_freq", false, 0},
    {LAYER "mlp.act_fn.beta", true, LT_XIELU_BETA},
    {LAYER "mlp.act_fn.eps", true, LT_XIELU_EPS},
};

/* Every fourth layer, for no_rope. */
#define FOURTH_OF_16(i) [(i) + 3] = true, [(i) + 7] = true, [(i) + 11] = true, [(i) + 15] = true
#define FOURTH_OF_64(i)                                                                            \
    FOURTH_OF_16(i), FOURTH_OF_16((i) + 16), FOURTH_OF_16((i) + 32), FOURTH_OF_16((i) + 48)
#define EVERY_FOURTH                                                                               \
    { FOURTH_OF_64(0), FOURTH_OF_64(64), FOURTH_OF_64(128), FOURTH_OF_64(192) }

#define YARN_32     1.3465735902799727 /* 1 + 0.1 ln 32 */
#define EOS(id)     .eos = {.ids = {id}, .n = 1}
#define NO_IDS      .bos_id = -1, .pad_id = -1
#define ROPE(theta) .pos = LT_POS_ROPE, .rope_theta = (theta), .rope_factor = 1
#define ROW(keys_, names_, constants_)                                                             \
    .keys = keys_, .n_keys = COUNT(keys_), .names = names_, .n_names = COUNT(names_),              \
    .constants = constants_, .n_constants = COUNT(constants_)

static const lt_family_row families[LT_FAMILY_COUNT] = {
    [LT_FAMILY_GPT2] = {"gpt2", "GPT2LMHeadModel", ROW(gpt2_keys, gpt2_names, gpt2_constants),
                        .prefix = "transformer.", .gelu_new = true, .ffn_four_widths = true,
                        .own_token_head = true, .gguf = {.architecture = "gpt2", .fused_qkv = true},
                        .preset = {.family = LT_FAMILY_GPT2,
                                   .norm = LT_NORM_LAYER,
                                   .norm_eps = 1e-5f,
                                   .act = LT_ACT_GELU_TANH,
                                   .qkv_bias = true,
                                   .attn_out_bias = true,
                                   .mlp_bias = true,
                                   .tied = true,
                                   .embed_scale = 1,
                                   .pos = LT_POS_LEARNED,
                                   .rope_factor = 1,
                                   .max_seq = 1024,
                                   .init_std = 0.02f,
                                   .bos_id = 50256,
                                   EOS(50256),
                                   .pad_id = -1}},
    [LT_FAMILY_LLAMA] = {"llama", "LlamaForCausalLM", ROW(llama_keys, llama_names, rope_constants),
                         .prefix = "model.",
                         .gguf = {.architecture = "llama",
                                  .with_experts = LT_FAMILY_MIXTRAL,
                                  .with_window = LT_FAMILY_MISTRAL,
                                  .window = LT_GGUF_WINDOW_NONE,
                                  .pairs = true},
                         .preset = {.family = LT_FAMILY_LLAMA,
                                    .norm_eps = 1e-6f,
                                    .act = LT_ACT_SILU,
                                    .gated = true,
                                    .embed_scale = 1,
                                    ROPE(10000),
                                    .max_seq = 2048,
                                    .init_std = 0.02f,
                                    .bos_id = 1,
                                    EOS(2),
                                    .pad_id = -1}},
    [LT_FAMILY_QWEN2] = {"qwen2", "Qwen2ForCausalLM", ROW(plain_keys, llama_names, rope_constants),
                         .alias = "mimo", .prefix = "model.", .window_keys = LT_WINDOW_OPTIONAL,
                         .used_window = 4096, .used_after = 28, .mtp_layers = true,
                         .gguf = {.architecture = "qwen2",
                                  .unread = LT_GGUF_UNREAD_ROPE | LT_GGUF_UNREAD_OUT_BIAS |
                                            LT_GGUF_UNREAD_HEAD | LT_GGUF_UNREAD_WINDOW},
                         .preset = {.family = LT_FAMILY_QWEN2,
                                    .norm_eps = 1e-6f,
                                    .act = LT_ACT_SILU,
                                    .gated = true,
                                    .qkv_bias = true,
                                    .embed_scale = 1,
                                    ROPE(10000),
                                    .max_seq = 32768,
                                    .n_kv_heads = 32,
                                    .init_std = 0.02f,
                                    NO_IDS}},
    [LT_FAMILY_QWEN3] = {"qwen3", "Qwen3ForCausalLM", ROW(qwen3_keys, llama_names, rope_constants),
                         .prefix = "model.", .window_keys = LT_WINDOW_OPTIONAL, .used_window = 4096,
                         .used_after = 28,
                         .gguf = {.architecture = "qwen3",
                                  .unread = LT_GGUF_UNREAD_ROPE | LT_GGUF_UNREAD_OUT_BIAS |
                                            LT_GGUF_UNREAD_WINDOW},
                         .preset = {.family = LT_FAMILY_QWEN3,
                                    .norm_eps = 1e-6f,
                                    .act = LT_ACT_SILU,
                                    .gated = true,
                                    .qk_norm = true,
                                    .head_dim = 128,
                                    .embed_scale = 1,
                                    ROPE(10000),
                                    .max_seq = 32768,
                                    .n_kv_heads = 32,
                                    .init_std = 0.02f,
                                    NO_IDS}},
    [LT_FAMILY_GEMMA2] = {"gemma2", "Gemma2ForCausalLM",
                          ROW(gemma2_keys, gemma_names, rope_constants), .prefix = "model.",
                          .window_keys = LT_WINDOW_PATTERN,
                          .gguf = {.architecture = "gemma2",
                                   .unread = LT_GGUF_UNREAD_ROPE | LT_GGUF_UNREAD_OUT_BIAS |
                                             LT_GGUF_UNREAD_OUTPUT,
                                   .window = LT_GGUF_WINDOW_KNOWN,
                                   .final_cap = true,
                                   .attn_cap = true,
                                   .by_width_layers = 46},
                          .preset = {.family = LT_FAMILY_GEMMA2,
                                     .embed_scale_rounded = true,
                                     .norm_eps = 1e-6f,
                                     .norm_gain_offset = 1,
                                     .post_norms = true,
                                     .act = LT_ACT_GELU_TANH,
                                     .gated = true,
                                     .tied = true,
                                     .n_kv_heads = 4,
                                     .head_dim = 256,
                                     .attn_softcap = 50,
                                     .final_softcap = 30,
                                     ROPE(10000),
                                     .max_seq = 8192,
                                     .init_std = 0.02f,
                                     .window = 4096,
                                     .window_every = 2,
                                     .bos_id = 2,
                                     EOS(1),
                                     .pad_id = 0}},
    [LT_FAMILY_GEMMA3] = {"gemma3_text", "Gemma3ForCausalLM",
                          ROW(gemma3_keys, gemma_names, rope_constants), .wrapper = "gemma3",
                          .wrapped_prefix = "language_model.", .prefix = "model.",
                          .score_start = "Gemma3Text", .window_keys = LT_WINDOW_PATTERN,
                          .window_pattern_key = true, .rope_keys = LT_ROPE_KEYS_BY_TYPE,
                          .gguf = {.architecture = "gemma3",
                                   .unread = LT_GGUF_UNREAD_ROPE | LT_GGUF_UNREAD_OUT_BIAS,
                                   .window = LT_GGUF_WINDOW_PERIOD,
                                   .final_cap = true,
                                   .by_width_layers = 62},
                          .preset = {.family = LT_FAMILY_GEMMA3,
                                     .n_layers = 26,
                                     .width = 2304,
                                     .n_heads = 8,
                                     .ffn_width = 9216,
                                     .vocab_size = 262208,
                                     .embed_scale_rounded = true,
                                     .norm_eps = 1e-6f,
                                     .norm_gain_offset = 1,
                                     .post_norms = true,
                                     .qk_norm = true,
                                     .act = LT_ACT_GELU_TANH,
                                     .gated = true,
                                     .tied = true,
                                     .n_kv_heads = 4,
                                     .head_dim = 256,
                                     ROPE(1e6),
                                     .rope_theta_local = 10000,
                                     .max_seq = 131072,
                                     .init_std = 0.02f,
                                     .window = 4096,
                                     .window_every = 6,
                                     .bos_id = 2,
                                     EOS(1),
                                     .pad_id = 0}},
    [LT_FAMILY_APERTUS] = {"apertus", "ApertusForCausalLM",
                           ROW(qwen3_keys, apertus_names, apertus_constants), .prefix = "model.",
                           .gguf = {.architecture = "apertus", .needs_output = true},
                           .preset = {.family = LT_FAMILY_APERTUS,
                                      .norm_eps = 1e-5f,
                                      .qk_norm = true,
                                      .act = LT_ACT_XIELU,
                                      .embed_scale = 1,
                                      .pos = LT_POS_ROPE,
                                      .rope_theta = 12e6,
                                      .rope_scaling = LT_ROPE_LLAMA3,
                                      .rope_factor = 8,
                                      .rope_low_freq = 1,
                                      .rope_high_freq = 4,
                                      .rope_original_seq = 8192,
                                      .max_seq = 65536,
                                      .init_std = 0.02f,
                                      .bos_id = 1,
                                      EOS(2),
                                      .pad_id = 3}},
    [LT_FAMILY_MIXTRAL] =
        {"mixtral", "MixtralForCausalLM", ROW(mixtral_keys, mixtral_names, rope_constants),
         .prefix = "model.", .window_keys = LT_WINDOW_ALL, .lora_experts = true,
         .gguf = {.architecture = "llama", .unread = LT_GGUF_UNREAD_WINDOW, .pairs = true},
         .preset = {.family = LT_FAMILY_MIXTRAL,
                    .norm_eps = 1e-5f,
                    .act = LT_ACT_SILU,
                    .gated = true,
                    .embed_scale = 1,
                    ROPE(1e6),
                    .max_seq = 131072,
                    .n_kv_heads = 8,
                    .init_std = 0.02f,
                    .n_experts = 8,
                    .top_k = 2,
                    .moe_normalise = true,
                    .moe_aux_coef = 0.001f,
                    .bos_id = 1,
                    EOS(2),
                    .pad_id = -1}},
    [LT_FAMILY_MISTRAL] =
        {"mistral", "MistralForCausalLM", ROW(plain_keys, llama_names, rope_constants),
         .prefix = "model.", .window_keys = LT_WINDOW_ALL,
         .gguf = {.architecture = "llama", .unread = LT_GGUF_UNREAD_WINDOW, .pairs = true},
         .preset = {.family = LT_FAMILY_MISTRAL,
                    .norm_eps = 1e-6f,
                    .act = LT_ACT_SILU,
                    .gated = true,
                    .embed_scale = 1,
                    ROPE(10000),
                    .max_seq = 131072,
                    .n_kv_heads = 8,
                    .window = 4096,
                    .init_std = 0.02f,
                    .bos_id = 1,
                    EOS(2),
                    .pad_id = -1}},
    [LT_FAMILY_PHI3] = {"phi3", "Phi3ForCausalLM", ROW(plain_keys, phi3_names, rope_constants),
                        .prefix = "model.", .window_keys = LT_WINDOW_ALL,
                        .rope_keys = LT_ROPE_KEYS_PHI3,
                        .gguf = {.architecture = "phi3",
                                 .unread = LT_GGUF_UNREAD_HEAD | LT_GGUF_UNREAD_WINDOW,
                                 .fused_qkv = true,
                                 .fused_up = true},
                        .preset = {.family = LT_FAMILY_PHI3,
                                   .rope_runs_again = true,
                                   .norm_eps = 1e-5f,
                                   .act = LT_ACT_SILU,
                                   .gated = true,
                                   .embed_scale = 1,
                                   ROPE(10000),
                                   .max_seq = 4096,
                                   .init_std = 0.02f,
                                   .bos_id = 1,
                                   EOS(32000),
                                   .pad_id = 32000}},
    [LT_FAMILY_OLMO2] = {"olmo2", "Olmo2ForCausalLM", ROW(qwen3_keys, olmo2_names, rope_constants),
                         .prefix = "model.",
                         .gguf = {.architecture = "olmo2",
                                  .needs_output = true,
                                  .unread = LT_GGUF_UNREAD_ROPE | LT_GGUF_UNREAD_OUT_BIAS |
                                            LT_GGUF_UNREAD_HEAD},
                         .preset = {.family = LT_FAMILY_OLMO2,
                                    .norm_eps = 1e-5f,
                                    .no_pre_norms = true,
                                    .post_norms = true,
                                    .qk_norm = true,
                                    .qk_norm_whole = true,
                                    .act = LT_ACT_SILU,
                                    .gated = true,
                                    .embed_scale = 1,
                                    ROPE(10000),
                                    .max_seq = 2048,
                                    .init_std = 0.02f,
                                    .bos_id = -1,
                                    EOS(50279),
                                    .pad_id = 1}},
    [LT_FAMILY_SMOLLM3] = {"smollm3", "SmolLM3ForCausalLM",
                           ROW(llama_keys, llama_names, rope_constants), .prefix = "model.",
                           .window_keys = LT_WINDOW_OPTIONAL, .no_rope_keys = true,
                           .gguf = {.architecture = "smollm3",
                                    .unread = LT_GGUF_UNREAD_ROPE | LT_GGUF_UNREAD_OUT_BIAS |
                                              LT_GGUF_UNREAD_MLP_BIAS,
                                    .pairs = true,
                                    .no_rope_every = 4},
                           .preset = {.family = LT_FAMILY_SMOLLM3,
                                      .norm_eps = 1e-6f,
                                      .act = LT_ACT_SILU,
                                      .gated = true,
                                      .tied = true,
                                      .embed_scale = 1,
                                      ROPE(2e6),
                                      .no_rope = EVERY_FOURTH,
                                      .n_kv_heads = 4,
                                      .max_seq = 32768,
                                      .init_std = 0.02f,
                                      .bos_id = 128000,
                                      EOS(128001),
                                      .pad_id = 128004}},
    [LT_FAMILY_GRANITE] = {"granite", "GraniteForCausalLM",
                           ROW(granite_keys, llama_names, rope_constants), .prefix = "model.",
                           .gguf = {.architecture = "granite", .pairs = true, .scales = true},
                           .preset = {.family = LT_FAMILY_GRANITE,
                                      .norm_eps = 1e-6f,
                                      .act = LT_ACT_SILU,
                                      .gated = true,
                                      .embed_scale = 1,
                                      .attn_scale = 1,
                                      .residual_scale = 1,
                                      .logit_divisor = 1,
                                      ROPE(10000),
                                      .max_seq = 2048,
                                      .init_std = 0.02f,
                                      .bos_id = 1,
                                      EOS(2),
                                      .pad_id = -1}},
    [LT_FAMILY_QWEN3_MOE] = {"qwen3_moe", "Qwen3MoeForCausalLM",
                             ROW(qwen3_moe_keys, qwen3_moe_names, rope_constants),
                             .prefix = "model.", .window_keys = LT_WINDOW_SWITCHED,
                             .used_window = 4096, .dense_keys = true, .lora_experts = true,
                             .gguf = {.architecture = "qwen3moe",
                                      .unread = LT_GGUF_UNREAD_ROPE | LT_GGUF_UNREAD_OUT_BIAS |
                                                LT_GGUF_UNREAD_WINDOW,
                                      .expert_ffn = true,
                                      .normalised = true},
                             .preset = {.family = LT_FAMILY_QWEN3_MOE,
                                        .norm_eps = 1e-6f,
                                        .act = LT_ACT_SILU,
                                        .gated = true,
                                        .qk_norm = true,
                                        .embed_scale = 1,
                                        ROPE(10000),
                                        .n_kv_heads = 4,
                                        .max_seq = 32768,
                                        .ffn_width = 768,
                                        .dense_ffn_width = 6144,
                                        .n_experts = 128,
                                        .top_k = 8,
                                        .moe_aux_coef = 0.001f,
                                        .init_std = 0.02f,
                                        NO_IDS}},
    [LT_FAMILY_GPT_OSS] = {"gpt_oss", "GptOssForCausalLM",
                           ROW(gpt_oss_keys, gpt_oss_names, gpt_oss_constants), .prefix = "model.",
                           .window_keys = LT_WINDOW_PATTERN,
                           .gguf = {.architecture = "gpt-oss",
                                    .needs_output = true,
                                    .needs_out_bias = true,
                                    .unread = LT_GGUF_UNREAD_ROPE,
                                    .window = LT_GGUF_WINDOW_KNOWN,
                                    .expert_ffn = true,
                                    .normalised = true,
                                    .norm2_is_post = true},
                           .preset = {.family = LT_FAMILY_GPT_OSS,
                                      .norm_eps = 1e-5f,
                                      .act = LT_ACT_SWIGLU_CLAMPED,
                                      .gated = true,
                                      .swiglu_alpha = 1.702f,
                                      .swiglu_limit = 7.0f,
                                      .qkv_bias = true,
                                      .attn_out_bias = true,
                                      .mlp_bias = true,
                                      .router_bias = true,
                                      .sinks = true,
                                      .embed_scale = 1,
                                      .pos = LT_POS_ROPE,
                                      .rope_theta = 150000,
                                      .rope_scaling = LT_ROPE_YARN,
                                      .rope_factor = 32,
                                      .rope_beta_fast = 32,
                                      .rope_beta_slow = 1,
                                      .rope_original_seq = 4096,
                                      .rope_attention_factor = YARN_32,
                                      .n_kv_heads = 8,
                                      .head_dim = 64,
                                      .max_seq = 131072,
                                      .window = 128,
                                      .window_every = 2,
                                      .n_experts = 128,
                                      .top_k = 4,
                                      .moe_normalise = true,
                                      .moe_aux_coef = 0.001f,
                                      .init_std = 0.02f,
                                      NO_IDS}},
    [LT_FAMILY_SWITCH] = {"switch", "LateenSwitchForCausalLM",
                          ROW(switch_keys, switch_names, rope_constants), .prefix = "model.",
                          .preset = {.family = LT_FAMILY_SWITCH,
                                     .norm_eps = 1e-5f,
                                     .act = LT_ACT_RELU,
                                     .embed_scale = 1,
                                     ROPE(10000),
                                     .max_seq = 2048,
                                     .init_std = 0.02f,
                                     .n_experts = 8,
                                     .top_k = 1,
                                     .moe_capacity = 1.25,
                                     .moe_aux_coef = 0.01f,
                                     .moe_z_coef = 0.001f,
                                     .bos_id = 1,
                                     EOS(2),
                                     .pad_id = -1}},
};

const lt_family_row *lt_family_get(lt_family family) {
    LT_ASSERT(family >= 0 && family < LT_FAMILY_COUNT);
    return &families[family];
}

const char *lt_family_name(lt_family family) {
    return lt_family_get(family)->model_type;
}

void lt_part_rows(const lt_model_spec *spec, const lt_param *param, lt_param_part part,
                  int64_t *from, int64_t *count) {
    const lt_layer_spec l = lt_model_layer(spec, param->layer >= 0 ? param->layer : 0);
    const int64_t q = lt_layer_q_cols(&l), k = lt_layer_k_cols(&l);

    *from = 0;
    *count = 0;
    switch (part) {
    case LT_PART_ALL:
        *count = param->shape[param->experts ? 1 : 0];
        break;
    case LT_PART_Q:
        *count = q;
        break;
    case LT_PART_K:
    case LT_PART_V:
        *from = part == LT_PART_K ? q : q + k;
        *count = part == LT_PART_K ? k : lt_layer_v_cols(&l);
        break;
    case LT_PART_GATE:
        *count = l.gated ? l.ffn_width : 0;
        break;
    case LT_PART_UP:
        *from = l.gated ? l.ffn_width : 0;
        *count = l.ffn_width;
        break;
    case LT_PART_XIELU_P:
    case LT_PART_XIELU_N:
        *from = part == LT_PART_XIELU_N;
        *count = 1;
        break;
    }
}

void lt_foreign_name(char out[LT_FOREIGN_NAME_BYTES], const char *pattern, int64_t layer,
                     int64_t expert) {
    size_t used = 0;
    for (const char *p = pattern; *p != '\0'; p++) {
        const size_t room = LT_FOREIGN_NAME_BYTES - used;
        int n = 1;
        if (p[0] == '%' && (p[1] == 'L' || p[1] == 'E')) {
            n = snprintf(out + used, room, "%lld", (long long)(p[1] == 'L' ? layer : expert));
            p++;
        } else {
            out[used] = *p;
        }
        LT_ASSERT(n > 0 && (size_t)n < room);
        used += (size_t)n;
    }
    out[used] = '\0';
}
