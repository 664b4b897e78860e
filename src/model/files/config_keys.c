/* config_keys.c: how keys of config.json are treated that no table of families.c reads.
 *
 * Three kinds, measured with transformers 5.23 on small models of every family
 * (tools/make_config_keys.py; test_config_keys.c holds this table to it):
 *
 *     A key that changes the output of a model but cannot be expressed in the spec is refused,
 *     unless it has the value that stands for "no".
 *     A key that does not change the output of a model is ignored.
 *     A key that is known neither here nor to transformers' class of the family is ignored, with a
 *     warning that names it.
 *
 * Dropout and the router's noise belong to the second kind: they act only in training, and here
 * models have none. So does dtype: weights keep the type of their file, and --dtype selects the
 * type of computation. Keys of windows and chunks matter even in families without them, because
 * transformers' caches read them. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "model/family.h"

#define BIT(family)  (1u << LT_FAMILY_##family)
#define ALL_FAMILIES (~0u)
#define GEMMAS       (BIT(GEMMA2) | BIT(GEMMA3))
#define QWENS        (BIT(QWEN2) | BIT(QWEN3))
/* Their models have no windows. */
#define FULL (BIT(GPT2) | BIT(LLAMA) | BIT(APERTUS) | BIT(SWITCH) | BIT(OLMO2) | BIT(GRANITE))

typedef enum {
    PASSED,     /* Has no effect. */
    READ,       /* Read by its own code: config_read.c, config_rope.c. */
    ONLY_FALSE, /* Only false, null, 0, or empty. */
    ONLY_TRUE,  /* true or null. */
    ONLY_NULL,
    ONLY_FULL,  /* A list of full_attention. */
    ONLY_MXFP4, /* null, or quant_method mxfp4. */
} rule;

static const struct {
    const char *key;
    rule rule;
    unsigned families;
} rules[] = {
    /* Attention other than over earlier tokens. */
    {"is_causal", ONLY_TRUE, ALL_FAMILIES},
    {"use_bidirectional_attention", ONLY_FALSE, ALL_FAMILIES},
    {"add_cross_attention", ONLY_FALSE, ALL_FAMILIES},
    {"attention_chunk_size", ONLY_NULL, ALL_FAMILIES},
    {"kv_sharing_modes", ONLY_NULL, ALL_FAMILIES},
    {"alibi", ONLY_FALSE, ALL_FAMILIES},
    {"use_mrope", ONLY_FALSE, ALL_FAMILIES},
    {"scale_attn_by_inverse_layer_idx", ONLY_FALSE, ~BIT(GPT2)},
    {"sliding_window", ONLY_NULL, FULL}, /* Its cache would drop tokens. */
    {"layer_types", ONLY_FULL, FULL},
    /* Other weights, other layers. */
    {"quantization_config", ONLY_MXFP4, BIT(GPT_OSS)}, /* Its tensors are decoded. */
    {"quantization_config", ONLY_NULL, ALL_FAMILIES},
    {"compression_config", ONLY_NULL, ALL_FAMILIES},
    {"quantization", ONLY_NULL, ALL_FAMILIES}, /* MLX's key. */
    {"per_layer_config", ONLY_NULL, ALL_FAMILIES},
    {"fusion_config", ONLY_NULL, ALL_FAMILIES},
    {"transformers_weights", ONLY_NULL, ALL_FAMILIES},
    {"pruned_heads", ONLY_FALSE, ALL_FAMILIES},
    {"is_encoder_decoder", ONLY_FALSE, ALL_FAMILIES},
    {"text_config", ONLY_NULL, ALL_FAMILIES},
    {"vision_config", ONLY_NULL, ALL_FAMILIES},
    /* Read by code of its own. */
    {"model_type", READ, ALL_FAMILIES},
    {"architectures", READ, ALL_FAMILIES},
    {"id2label", READ, ALL_FAMILIES},
    {"num_labels", READ, ALL_FAMILIES},
    {"token_classification_bias", READ, ALL_FAMILIES}, /* transformers' where it has one. */
    /* Lateen's key, for a model that judges steps. */
    {"step_separator", READ, ALL_FAMILIES},
    {"rope_parameters", READ, ~BIT(GPT2)},
    {"rope_scaling", READ, ~BIT(GPT2)},
    {"rope_theta", READ, ~BIT(GPT2)},
    {"partial_rotary_factor", READ, ~BIT(GPT2)},
    {"original_max_position_embeddings", READ, ~BIT(GPT2)},
    {"rope_local_base_freq", READ, BIT(GEMMA3)},
    {"sliding_window", READ, ALL_FAMILIES},
    {"layer_types", READ, ALL_FAMILIES},
    {"sliding_window_pattern", READ, BIT(GEMMA3)},
    {"use_sliding_window", READ, QWENS | BIT(SMOLLM3) | BIT(QWEN3_MOE)},
    {"no_rope_layers", READ, BIT(SMOLLM3)},
    {"no_rope_layer_interval", READ, BIT(SMOLLM3)},
    {"max_window_layers", READ, QWENS},
    {"num_nextn_predict_layers", READ, BIT(QWEN2)}, /* draft_head.c: MiMo's. */
    {"decoder_sparse_step", READ, BIT(QWEN3_MOE)},
    {"mlp_only_layers", READ, BIT(QWEN3_MOE)},
    {"intermediate_size", READ, BIT(QWEN3_MOE)},
    /* Without effect. */
    {"attn_logit_softcapping", PASSED, BIT(GEMMA3)}, /* transformers' gemma3 has none. */
    {"_sliding_window_pattern", PASSED, GEMMAS},
    {"sliding_window_pattern", PASSED, BIT(GEMMA2)}, /* Every second layer. */
    {"hidden_act", PASSED, GEMMAS | BIT(GPT_OSS)},
    {"initial_context_length", PASSED, BIT(GPT_OSS)}, /* As OpenAI's files have it beside. */
    {"experts_per_token", PASSED, BIT(GPT_OSS)},
    {"image_token_id", PASSED, BIT(GEMMA3)},
    {"mm_tokens_per_image", PASSED, BIT(GEMMA3)},
    {"attention_dropout", PASSED, ALL_FAMILIES},
    {"attn_pdrop", PASSED, BIT(GPT2)},
    {"embd_pdrop", PASSED, BIT(GPT2) | BIT(PHI3)},
    {"resid_pdrop", PASSED, BIT(GPT2) | BIT(PHI3)},
    {"hidden_dropout", PASSED, BIT(GPT2)},
    {"max_window_layers", PASSED, BIT(SMOLLM3) | BIT(QWEN3_MOE)},
    {"router_jitter_noise", PASSED, BIT(MIXTRAL)},
    {"output_router_logits", PASSED, BIT(MIXTRAL) | BIT(QWEN3_MOE) | BIT(GPT_OSS)},
    {"reorder_and_upcast_attn", PASSED, BIT(GPT2)}, /* Attention is in F32 here. */
    {"n_ctx", PASSED, BIT(GPT2)},
    {"head_dim", PASSED, BIT(GPT2)},
    {"classifier_dropout", PASSED, BIT(GPT2)},
    {"summary_activation", PASSED, BIT(GPT2)},
    {"summary_first_dropout", PASSED, BIT(GPT2)},
    {"summary_last_dropout", PASSED, BIT(GPT2)},
    {"summary_proj_to_labels", PASSED, BIT(GPT2)},
    {"summary_type", PASSED, BIT(GPT2)},
    {"summary_use_proj", PASSED, BIT(GPT2)},
    {"task_specific_params", PASSED, ALL_FAMILIES},
    {"pretraining_tp", PASSED, ALL_FAMILIES}, /* The same products in pieces. */
    {"attention_bias", PASSED, BIT(QWEN2) | BIT(MIXTRAL) | BIT(MISTRAL) | BIT(PHI3)},
    {"mlp_bias", PASSED, ~(BIT(LLAMA) | BIT(SMOLLM3) | BIT(GRANITE))},
    {"original_max_position_embeddings", PASSED, BIT(GPT2)},
    {"auto_map", PASSED, ALL_FAMILIES},
    {"chunk_size_feed_forward", PASSED, ALL_FAMILIES},
    {"distributed_config", PASSED, ALL_FAMILIES},
    {"dtype", PASSED, ALL_FAMILIES},
    {"torch_dtype", PASSED, ALL_FAMILIES},
    {"gradient_checkpointing", PASSED, ALL_FAMILIES},
    {"label2id", PASSED, ALL_FAMILIES},
    {"_num_labels", PASSED, ALL_FAMILIES},
    {"is_decoder", PASSED, ALL_FAMILIES},
    {"_name_or_path", PASSED, ALL_FAMILIES},
    {"output_attentions", PASSED, ALL_FAMILIES},
    {"output_hidden_states", PASSED, ALL_FAMILIES},
    {"output_past", PASSED, ALL_FAMILIES},
    {"problem_type", PASSED, ALL_FAMILIES},
    {"return_dict", PASSED, ALL_FAMILIES},
    {"sep_token_id", PASSED, ALL_FAMILIES},
    {"torchscript", PASSED, ALL_FAMILIES},
    {"transformers_version", PASSED, ALL_FAMILIES},
    {"use_cache", PASSED, ALL_FAMILIES},
};
#define N_RULES (sizeof rules / sizeof *rules)

static bool all_full(const json_t *types) {
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type == NULL || strcmp(type, "full_attention") != 0) {
            return false;
        }
    }
    return json_is_array(types) || json_is_null(types);
}

static bool is_mxfp4(const json_t *quantization) {
    const char *method = json_string_value(json_object_get(quantization, "quant_method"));
    return method != NULL && strcmp(method, "mxfp4") == 0;
}

static bool allowed(rule r, const json_t *value) {
    switch (r) {
    case ONLY_FALSE:
        return lt_json_is_off(value);
    case ONLY_TRUE:
        return json_is_true(value) || json_is_null(value);
    case ONLY_NULL:
        return json_is_null(value);
    case ONLY_FULL:
        return all_full(value);
    case ONLY_MXFP4:
        return json_is_null(value) || is_mxfp4(value);
    default:
        return true;
    }
}

/* Index of the key's rule in the family, the first of several; -1: there is none. */
static int rule_of(lt_family family, const char *key) {
    for (size_t i = 0; i < N_RULES; i++) {
        if ((rules[i].families >> family & 1) != 0 && strcmp(rules[i].key, key) == 0) {
            return (int)i;
        }
    }
    return -1;
}

/* The key of which this one is the alias in the family's table; NULL: none. */
static const char *aliased(const lt_family_row *row, const char *key) {
    for (int i = 0; i < row->n_keys; i++) {
        if (row->keys[i].alias != NULL && strcmp(row->keys[i].alias, key) == 0) {
            return row->keys[i].key;
        }
    }
    return NULL;
}

static bool in_table(const lt_family_row *row, const char *key) {
    for (int i = 0; i < row->n_keys; i++) {
        if (strcmp(row->keys[i].key, key) == 0) {
            return true;
        }
    }
    return false;
}

lt_config_use lt_config_key_use(lt_family family, const char *key) {
    const lt_family_row *row = lt_family_get(family);
    const int i = rule_of(family, key);
    if (in_table(row, key) || aliased(row, key) != NULL) {
        return LT_CONFIG_READ;
    }
    return i < 0                     ? LT_CONFIG_UNKNOWN
           : rules[i].rule == PASSED ? LT_CONFIG_PASSED
           : rules[i].rule == READ   ? LT_CONFIG_READ
                                     : LT_CONFIG_REFUSED;
}

lt_err lt_config_check_keys(lt_family family, const json_t *config, const char *what) {
    const lt_family_row *row = lt_family_get(family);
    char unknown[256] = "", text[128];
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)config, key, value) {
        const char *same = aliased(row, key);
        const json_t *other = same != NULL ? json_object_get(config, same) : NULL;
        const int i = rule_of(family, key);
        if (other != NULL && !json_equal(value, other)) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "%s: '%s' and '%s' mean the same, but differ", what, key,
                    same);
        }
        if (i >= 0 && !allowed(rules[i].rule, value)) {
            const size_t n = json_dumpb(value, text, sizeof text - 1, JSON_ENCODE_ANY);
            text[n < sizeof text ? n : sizeof text - 1] = '\0';
            LT_FAIL(LT_ERR_UNSUPPORTED, "%s: '%s' is %s, which is not supported for %s", what, key,
                    text, lt_family_name(family));
        }
        if (lt_config_key_use(family, key) == LT_CONFIG_UNKNOWN && !json_is_null(value)) {
            const size_t used = strlen(unknown);
            (void)snprintf(unknown + used, sizeof unknown - used, "%s%s", used > 0 ? ", " : "",
                           key);
        }
    }
    if (unknown[0] != '\0') {
        lt_log_warn("%s: ignored, because neither Lateen nor transformers knows them in a %s: %s",
                    what, lt_family_name(family), unknown);
    }
    return LT_OK;
}
