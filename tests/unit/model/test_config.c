/* Specs: config.json read and written, refusals, counts. Configurations as transformers 5.23 writes
 * them, shortened. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "model/family.h"
#include "tensor/ops.h"

#define SIZES                                                                                      \
    "\"vocab_size\": 96, \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": "  \
    "6, \"num_attention_heads\": 4"

static lt_err parse(lt_model_spec *spec, const char *text) {
    json_t *config = NULL;
    lt_err err = lt_json_parse(&config, text, strlen(text), "config.json");
    if (err == LT_OK) {
        err = lt_config_read(spec, config, "config.json");
    }
    json_decref(config);
    return err;
}

static void reads_both_rope_spellings(void **state) {
    lt_model_spec a, b;
    (void)state;
    assert_int_equal(
        parse(&a,
              "{\"model_type\": \"llama\", " SIZES ", \"rope_theta\": 500000.0, \"rope_scaling\": "
              "{\"rope_type\": \"llama3\", \"factor\": 8.0, "
              "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
              "\"original_max_position_embeddings\": 8192}, \"eos_token_id\": [7, 8]}"),
        LT_OK);
    assert_int_equal(
        parse(&b, "{\"model_type\": \"llama\", " SIZES
                  ", \"rope_parameters\": {\"rope_theta\": 500000.0, \"rope_type\": "
                  "\"llama3\", \"factor\": 8.0, "
                  "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                  "\"original_max_position_embeddings\": 8192}, \"eos_token_id\": [7, 8, 7]}"),
        LT_OK);
    assert_true(a.eos.n == 2 && a.eos.ids[0] == 7 && a.eos.ids[1] == 8);
    assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(a.rope_scaling, LT_ROPE_LLAMA3);
    assert_int_equal(a.head_dim, 8);
    assert_int_equal(a.n_kv_heads, 4);
}

/* What a file says about RoPE replaces all scaling that a family has by default (apertus,
 * gpt_oss): the rotation is that of a llama with the same parameters. */
static void rope_parameters_replace_those_of_the_family(void **state) {
    static const char *const
        families[] = {"apertus", "gpt_oss", "qwen3", "mistral"},
        *const kinds[] = {"\"rope_type\": \"default\"",
                          "\"rope_type\": \"linear\", \"factor\": 2.0",
                          "\"rope_type\": \"dynamic\", \"factor\": 2.0",
                          "\"rope_type\": \"proportional\"",
                          "\"rope_type\": \"llama3\", \"factor\": 2.0, \"low_freq_factor\": 1.0, "
                          "\"high_freq_factor\": 4.0, "
                          "\"original_max_position_embeddings\": 64",
                          "\"rope_type\": \"yarn\", \"factor\": 2.0, "
                          "\"original_max_position_embeddings\": 64"};
    (void)state;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            lt_model_spec of[2];
            for (int i = 0; i < 2; i++) {
                char text[512];
                (void)snprintf(text, sizeof text,
                               "{\"model_type\": \"%s\", " SIZES
                               ", \"num_key_value_heads\": 2, \"head_dim\": 8, "
                               "\"max_position_embeddings\": 128, "
                               "\"rope_parameters\": {\"rope_theta\": 1e4, %s}}",
                               i == 0 ? "llama" : families[f], kinds[k]);
                if (parse(&of[i], text) != LT_OK) {
                    fail_msg("%s: %s", families[f], lt_error_message());
                }
            }
            const char *lost = lt_config_rope_lost(&of[0], &of[1]);
            if (lost != NULL || of[0].rope_attention_factor != of[1].rope_attention_factor) {
                fail_msg("%s with %s: %s is the family's", families[f], kinds[k],
                         lost != NULL ? lost : "rope_attention_factor");
            }
            assert_true(of[0].rope_factor == of[1].rope_factor);
            assert_true(of[0].rope_truncate == of[1].rope_truncate);
        }
    }
}

/* A file may have either name of a key, or both with the same value (attribute_map of
 * transformers). */
static void reads_keys_of_two_names(void **state) {
    static const char *const files[][4] = {
        {"{\"model_type\": \"gpt2\", \"vocab_size\": 96, \"n_embd\": 32, \"n_layer\": 6, "
         "\"n_head\": 4, \"n_positions\": 77}",
         "{\"model_type\": \"gpt2\", " SIZES ", \"n_inner\": 128, "
         "\"max_position_embeddings\": 77}",
         "{\"model_type\": \"gpt2\", " SIZES ", \"n_head\": 8, \"n_positions\": 77}",
         "num_attention_heads"},
        {"{\"model_type\": \"mixtral\", " SIZES
         ", \"num_key_value_heads\": 2, \"num_local_experts\": 3}",
         "{\"model_type\": \"mixtral\", " SIZES ", \"num_key_value_heads\": 2, \"num_experts\": 3}",
         "{\"model_type\": \"mixtral\", " SIZES
         ", \"num_key_value_heads\": 2, \"num_experts\": 3, \"num_local_experts\": 4}",
         "num_local_experts"},
    };
    lt_model_spec a, b;
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        assert_int_equal(parse(&a, files[i][0]), LT_OK);
        assert_int_equal(parse(&b, files[i][1]), LT_OK);
        assert_memory_equal(&a, &b, sizeof a);
        assert_int_equal(parse(&b, files[i][2]), LT_ERR_UNSUPPORTED);
        assert_non_null(strstr(lt_error_message(), files[i][3]));
    }
    assert_true(a.n_experts == 3);
}

/* Classes of transformers 5.24 with a score head, by family; the other families have none. */
static void names_score_heads(void **state) {
    static const struct {
        const char *golden, *architecture;
    } cases[] = {{"gpt2", "GPT2ForSequenceClassification"},
                 {"llama3", "LlamaForSequenceClassification"},
                 {"qwen2", "Qwen2ForSequenceClassification"},
                 {"qwen3", "Qwen3ForSequenceClassification"},
                 {"gemma2", "Gemma2ForSequenceClassification"},
                 {"gemma3", "Gemma3TextForSequenceClassification"},
                 {"mixtral", "MixtralForSequenceClassification"},
                 {"mistral", "MistralForSequenceClassification"},
                 {"phi3", "Phi3ForSequenceClassification"},
                 {"olmo2", "Olmo2ForSequenceClassification"},
                 {"smollm3", "SmolLM3ForSequenceClassification"},
                 {"qwen3_moe", "Qwen3MoeForSequenceClassification"},
                 {"gpt_oss", "GptOssForSequenceClassification"}};
    char path[] = "/tmp/lateen-config-XXXXXX", source[256];
    lt_model_spec a, b;
    (void)state;
    assert_true(mkstemp(path) >= 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *config = NULL;
        const char *name = NULL;
        (void)snprintf(source, sizeof source, "tests/golden/model/%s/config.json", cases[i].golden);
        assert_int_equal(lt_model_spec_read(&a, source), LT_OK);
        lt_model_spec_add_scores(&a, 3, false);
        assert_int_equal(lt_model_spec_write(&a, LT_F32, path), LT_OK);
        assert_int_equal(lt_model_spec_read(&b, path), LT_OK);
        assert_true(b.n_scores == 3 && !b.tied && lt_model_spec_outputs(&b) == 3);
        assert_int_equal(lt_json_load(&config, path, 1 << 20), LT_OK);
        name = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
        assert_string_equal(name, cases[i].architecture);
        json_decref(config);
    }
    (void)remove(path);
    assert_int_equal(parse(&a, "{\"model_type\": \"llama\", " SIZES
                               ", \"architectures\": [\"LlamaForSequenceClassification\"]}"),
                     LT_OK);
    assert_int_equal(a.n_scores, 2); /* transformers' default. */
    assert_int_equal(parse(&a, "{\"model_type\": \"llama\", " SIZES ", \"num_labels\": 1, "
                               "\"architectures\": [\"LlamaForSequenceClassification\"]}"),
                     LT_OK);
    assert_int_equal(a.n_scores, 1);
}

/* A head that scores tokens, and the separator that ends a step. */
static void reads_token_scores(void **state) {
    char path[] = "/tmp/lateen-config-XXXXXX";
    lt_model_spec a, b;
    (void)state;
    assert_true(mkstemp(path) >= 0);
    assert_int_equal(lt_model_spec_read(&a, "tests/golden/prm/model/config.json"), LT_OK);
    assert_true(lt_model_spec_is_process(&a) && a.score_bias && a.step_separator[0] == '\0');
    assert_false(lt_model_spec_gives_values(&a));
    strcpy(a.step_separator, "\n\n");
    a.score_bias = false;
    assert_int_equal(lt_model_spec_write(&a, LT_F32, path), LT_OK);
    assert_int_equal(lt_model_spec_read(&b, path), LT_OK);
    assert_true(lt_model_spec_is_process(&b) && !b.score_bias);
    assert_string_equal(b.step_separator, "\n\n");
    (void)remove(path);
    /* A key that is read is not called unknown. */
    assert_int_equal(lt_config_key_use(LT_FAMILY_LLAMA, "step_separator"), LT_CONFIG_READ);
    assert_int_equal(lt_config_key_use(LT_FAMILY_LLAMA, "token_classification_bias"),
                     LT_CONFIG_READ);
    assert_int_equal(parse(&a, "{\"model_type\": \"llama\", " SIZES ", \"num_labels\": 3, "
                               "\"architectures\": [\"LlamaForTokenClassification\"]}"),
                     LT_OK);
    assert_true(a.n_scores == 3 && a.token_scores && !lt_model_spec_is_process(&a));
    assert_int_equal(lt_model_spec_read(&a, "tests/golden/prm_head/model/config.json"), LT_OK);
    assert_true(lt_model_spec_is_process(&a) && a.score_bias && a.score_ends == 2);
    assert_true(a.n_scores == a.width && lt_model_spec_says(&a) == 2);
    assert_string_equal(a.step_separator, "<extra_0>");
    assert_int_equal(lt_model_spec_write(&a, LT_F32, "/dev/null"), LT_ERR_UNSUPPORTED);
    assert_int_equal(parse(&a, "{\"model_type\": \"llama\", " SIZES ", \"num_labels\": 3, "
                               "\"step_separator\": \"!\", "
                               "\"architectures\": [\"LlamaForProcessRewardModel\"]}"),
                     LT_OK);
    assert_true(a.score_ends == 3 && !lt_model_spec_is_process(&a));
    assert_string_equal(a.step_separator, "!");
    assert_int_equal(parse(&a, "{\"model_type\": \"llama\", " SIZES ", \"num_labels\": 0, "
                               "\"architectures\": [\"LlamaForProcessRewardModel\"]}"),
                     LT_ERR_UNSUPPORTED);
    assert_int_equal(parse(&a, "{\"model_type\": \"llama\", " SIZES ", \"step_separator\": 3, "
                               "\"architectures\": [\"LlamaForTokenClassification\"]}"),
                     LT_ERR_FORMAT);
    assert_int_equal(lt_model_spec_read(&a, "tests/golden/model/gpt2/config.json"), LT_OK);
    lt_model_spec_add_scores(&a, 3, true);
    assert_int_equal(lt_model_spec_check(&a), LT_ERR_UNSUPPORTED);
}

static void reads_gemma_layers(void **state) {
    lt_model_spec s;
    (void)state;
    assert_int_equal(
        parse(
            &s,
            "{\"model_type\": \"gemma3_text\", " SIZES
            ", \"head_dim\": 8, \"sliding_window\": 8, \"query_pre_attn_scalar\": 16, "
            "\"layer_types\": "
            "[\"sliding_attention\", \"sliding_attention\", \"full_attention\", "
            "\"sliding_attention\", "
            "\"sliding_attention\", \"full_attention\"], \"rope_parameters\": {\"full_attention\": "
            "{\"rope_theta\": 1000000.0, \"rope_type\": \"linear\", \"factor\": 8.0}, "
            "\"sliding_attention\": {\"rope_theta\": 10000.0, \"rope_type\": \"default\"}}}"),
        LT_OK);
    assert_int_equal(s.window, 8);
    assert_int_equal(s.window_every, 3);
    assert_int_equal(lt_model_layer(&s, 1).window, 8);
    assert_int_equal(lt_model_layer(&s, 2).window, 0);
    assert_true(s.rope_theta_local == 10000.0 && s.rope_theta == 1e6 &&
                s.rope_scaling == LT_ROPE_LINEAR);
    assert_true(lt_model_layer(&s, 0).attn_scale == 0.25f);
    assert_true(s.embed_scale > 5.656f && s.embed_scale < 5.657f);
}

/* Gemma 2 as it was published: no layer_types; null removes a cap, which an absent key keeps. */
static void reads_gemma2(void **state) {
    lt_model_spec s;
    (void)state;
    assert_int_equal(parse(&s, "{\"model_type\": \"gemma2\", " SIZES
                               ", \"head_dim\": 8, \"sliding_window\": 4096, "
                               "\"query_pre_attn_scalar\": 144, \"attn_logit_softcapping\": null, "
                               "\"hidden_act\": \"gelu_pytorch_tanh\", "
                               "\"hidden_activation\": \"gelu_pytorch_tanh\"}"),
                     LT_OK);
    assert_true(s.attn_softcap == 0 && s.final_softcap == 30);
    assert_int_equal(lt_model_layer(&s, 0).window, 4096);
    assert_int_equal(lt_model_layer(&s, 1).window, 0);
    assert_int_equal(lt_model_layer(&s, 2).window, 4096);
    assert_true(s.post_norms && !s.qk_norm && s.norm_gain_offset == 1 && s.tied);
    assert_true(lt_model_layer(&s, 0).attn_scale == 1.0f / 12.0f);
}

/* A file that does not mention a window has the default of transformers: none for Mixtral and
 * Phi-3, 4,096 tokens for Mistral. 0 means no window. */
static void windows_that_files_do_not_mention(void **state) {
    lt_model_spec s;
    (void)state;
    assert_int_equal(parse(&s, "{\"model_type\": \"mixtral\", " SIZES
                               ", \"num_key_value_heads\": 2, \"num_local_experts\": 4}"),
                     LT_OK);
    assert_int_equal(s.window, 0);
    assert_int_equal(parse(&s, "{\"model_type\": \"phi3\", " SIZES "}"), LT_OK);
    assert_int_equal(s.window, 0);
    assert_int_equal(
        parse(&s, "{\"model_type\": \"mistral\", " SIZES ", \"num_key_value_heads\": 2}"), LT_OK);
    assert_int_equal(s.window, 4096);
    assert_int_equal(parse(&s, "{\"model_type\": \"mistral\", " SIZES ", \"sliding_window\": 0}"),
                     LT_ERR_FORMAT);
}

/* transformers creates the mask of Gemma 2's sliding layers whatever layer_types says: with a
 * null sliding_window it fails, without the key it uses its default. */
static void no_window_is_null(const lt_model_spec *of) {
    char folder[] = "/tmp/lateen-test-XXXXXX", path[LT_PATH_BYTES];
    lt_model_spec s = *of, back;
    json_t *config;
    s.window = s.window_every = 0;
    memset(s.no_window, 0, sizeof s.no_window);
    assert_non_null(mkdtemp(folder));
    assert_int_equal(lt_path_join(path, folder, "config.json"), LT_OK);
    assert_int_equal(lt_model_spec_write(&s, LT_F32, path), LT_OK);
    assert_int_equal(lt_json_load(&config, path, 1 << 20), LT_OK);
    assert_int_equal(json_array_size(json_object_get(config, "layer_types")), s.n_layers);
    assert_null(json_object_get(config, "sliding_window"));
    json_decref(config);
    assert_int_equal(lt_model_spec_read(&back, path), LT_OK);
    assert_int_equal(lt_model_layer(&back, 0).window, 0);
    (void)unlink(path);
    (void)rmdir(folder);
}

/* Any pattern of layer_types, and Qwen's max_window_layers, with which the first layers see all
 * tokens (transformers' Qwen2Config). */
static void windows_of_any_layers(void **state) {
    static const int64_t listed[] = {0, 9, 0, 0, 9, 9}, behind[] = {0, 0, 9, 9, 9, 9};
    lt_model_spec s;
    (void)state;
    assert_int_equal(parse(&s, "{\"model_type\": \"gemma2\", " SIZES
                               ", \"head_dim\": 8, \"sliding_window\": 9, \"layer_types\": "
                               "[\"full_attention\", \"sliding_attention\", \"full_attention\", "
                               "\"full_attention\", \"sliding_attention\", "
                               "\"sliding_attention\"]}"),
                     LT_OK);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(lt_model_layer(&s, i).window, listed[i]);
    }
    assert_int_equal(lt_model_spec_writable(&s), LT_OK);
    no_window_is_null(&s);
    assert_int_equal(parse(&s, "{\"model_type\": \"qwen2\", " SIZES
                               ", \"num_key_value_heads\": 2, \"use_sliding_window\": true, "
                               "\"sliding_window\": 9, \"max_window_layers\": 2}"),
                     LT_OK);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(lt_model_layer(&s, i).window, behind[i]);
    }
    assert_int_equal(lt_model_spec_writable(&s), LT_OK);
}

/* Files that use a window and leave out the keys beside it: transformers' defaults are 4,096 tokens
 * and, for Qwen2 and Qwen3, 28 layers before the first that slides. SmolLM3's windows are in the
 * layers that do not rotate. A Gemma 3 whose pattern is 1 has no layer that slides. Each of these
 * models can be written, too. */
static void windows_that_files_only_switch_on(void **state) {
    static const struct {
        const char *config;
        int64_t windows[6];
    } cases[] = {
        {"{\"model_type\": \"qwen2\", " SIZES ", \"use_sliding_window\": true, "
         "\"num_key_value_heads\": 2, \"sliding_window\": 9}",
         {0, 0, 0, 0, 0, 0}},
        {"{\"model_type\": \"qwen3\", " SIZES ", \"use_sliding_window\": true, "
         "\"num_key_value_heads\": 2, \"max_window_layers\": 4}",
         {0, 0, 0, 0, 4096, 4096}},
        {"{\"model_type\": \"qwen3\", " SIZES ", \"num_key_value_heads\": 2}", {0}},
        {"{\"model_type\": \"qwen3_moe\", " SIZES ", \"use_sliding_window\": true}",
         {4096, 4096, 4096, 4096, 4096, 4096}},
        {"{\"model_type\": \"smollm3\", " SIZES ", \"use_sliding_window\": true, "
         "\"sliding_window\": 9, \"no_rope_layers\": [1, 0, 1, 1, 0, 0]}",
         {0, 9, 0, 0, 9, 9}},
        {"{\"model_type\": \"smollm3\", " SIZES ", \"use_sliding_window\": true, "
         "\"no_rope_layer_interval\": 2}",
         {0}},
        {"{\"model_type\": \"gemma3_text\", " SIZES ", \"num_key_value_heads\": 2, "
         "\"sliding_window_pattern\": 1}",
         {0}},
    };
    lt_model_spec s;
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        if (parse(&s, cases[k].config) != LT_OK || lt_model_spec_writable(&s) != LT_OK) {
            fail_msg("%s: %s", cases[k].config, lt_error_message());
        }
        for (int i = 0; i < 6; i++) {
            if (lt_model_layer(&s, i).window != cases[k].windows[i]) {
                fail_msg("%s: the window of layer %d is %d", cases[k].config, i,
                         (int)lt_model_layer(&s, i).window);
            }
        }
    }
}

/* A field that only another kind of RoPE reads (a GGUF has defaults for yarn) is no reason to
 * refuse. */
static void fields_of_another_rope(void **state) {
    lt_model_spec s;
    (void)state;
    assert_int_equal(parse(&s, "{\"model_type\": \"llama\", " SIZES
                               ", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}}"),
                     LT_OK);
    s.rope_beta_fast = 32;
    s.rope_beta_slow = 1;
    s.rope_truncate = !s.rope_truncate;
    assert_int_equal(lt_model_spec_writable(&s), LT_OK);
    s.rope_scaling = LT_ROPE_YARN;
    s.rope_original_seq = 16;
    assert_int_equal(lt_model_spec_writable(&s), LT_OK);
}

/* (i + 1) % decoder_sparse_step != 0, or i in mlp_only_layers: the layer has no experts
 * (transformers' Qwen3MoeDecoderLayer). */
static void layers_without_experts(void **state) {
    static const int64_t experts[] = {0, 4, 0, 0};
    char folder[] = "/tmp/lateen-test-XXXXXX", path[LT_PATH_BYTES];
    lt_model_spec s, back;
    (void)state;
    assert_int_equal(
        parse(&s,
              "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 96, \"hidden_size\": 32, "
              "\"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
              "\"head_dim\": 8, \"num_experts\": 4, \"num_experts_per_tok\": 2, "
              "\"moe_intermediate_size\": 24, \"intermediate_size\": 40, "
              "\"decoder_sparse_step\": 2, \"mlp_only_layers\": [3, 9]}"),
        LT_OK);
    assert_non_null(mkdtemp(folder));
    assert_int_equal(lt_path_join(path, folder, "config.json"), LT_OK);
    assert_int_equal(lt_model_spec_write(&s, LT_F32, path), LT_OK);
    assert_int_equal(lt_model_spec_read(&back, path), LT_OK);
    for (int i = 0; i < 4; i++) {
        const lt_layer_spec l = lt_model_layer(&s, i), b = lt_model_layer(&back, i);
        assert_int_equal(l.n_experts, experts[i]);
        assert_int_equal(l.ffn_width, experts[i] > 0 ? 24 : 40);
        assert_true(b.n_experts == l.n_experts && b.ffn_width == l.ffn_width);
    }
    /* Embedding and head; in each layer norms, attention, then experts and router, or one MLP. */
    const int64_t attention = 2 * 32 + 2 * 8 + (4 + 2 * 2) * 8 * 32 + 32 * 32;
    const int64_t moe = 4 * 32 + 4 * 3 * 24 * 32, mlp = 3 * 40 * 32;
    assert_int_equal(lt_model_spec_params(&s), 2 * 96 * 32 + 32 + 4 * attention + moe + 3 * mlp);
    assert_int_equal(lt_model_spec_active_params(&s),
                     96 * 32 + 32 + 4 * attention + moe - 2 * 3 * 24 * 32 + 3 * mlp);
    assert_int_equal(lt_file_remove_tree(folder), LT_OK);
}

static void every_family_survives_its_file(void **state) {
    char folder[] = "/tmp/lateen-test-XXXXXX", path[LT_PATH_BYTES];
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(lt_path_join(path, folder, "config.json"), LT_OK);
    for (int family = 0; family < LT_FAMILY_COUNT; family++) {
        lt_model_spec s = lt_family_get((lt_family)family)->preset, back;
        s.n_layers = 6;
        s.width = 32;
        s.n_heads = 4;
        s.n_kv_heads = family == LT_FAMILY_GPT2 ? 4 : 2;
        s.head_dim = 8;
        s.ffn_width = 48;
        s.vocab_size = 96;
        s.max_seq = 64;
        lt_model_spec_derive(&s);
        s.attn_scale = family == LT_FAMILY_GPT2 ? 1 : s.attn_scale; /* scale_attn_weights. */
        assert_int_equal(lt_model_spec_write(&s, LT_F32, path), LT_OK);
        assert_int_equal(lt_model_spec_read(&back, path), LT_OK);
        assert_int_equal(lt_model_spec_params(&s), lt_model_spec_params(&back));
        assert_true(s.norm_eps == back.norm_eps && s.rope_theta == back.rope_theta &&
                    s.act == back.act);
    }
    assert_int_equal(lt_file_remove_tree(folder), LT_OK);
}

/* google/gemma-3-4b-it's config.json: text_config has what differs from transformers'
 * Gemma3TextConfig. What holds for the whole file is not lost. */
static void reads_the_text_part_of_a_wrapper(void **state) {
    static const char gemma[] = "{\"model_type\": \"gemma3\", \"eos_token_id\": [1, 106], "
                                "\"image_token_index\": 262144, \"vision_config\": {}, %s"
                                "\"text_config\": {\"hidden_size\": 2560, "
                                "\"intermediate_size\": 10240, \"model_type\": \"gemma3_text\", "
                                "\"num_hidden_layers\": 34, \"rope_scaling\": {\"factor\": 8.0, "
                                "\"rope_type\": \"linear\"}, \"sliding_window\": 1024}}";
    char text[1024];
    lt_model_spec s;
    (void)state;
    (void)snprintf(text, sizeof text, gemma, "");
    assert_int_equal(parse(&s, text), LT_OK);
    assert_true(s.family == LT_FAMILY_GEMMA3 && s.width == 2560 && s.ffn_width == 10240);
    assert_true(s.n_layers == 34 && s.n_heads == 8 && s.n_kv_heads == 4 && s.head_dim == 256);
    assert_true(s.vocab_size == 262208 && s.rope_theta == 1e6 && s.rope_factor == 8);
    assert_true(s.eos.n == 2 && s.eos.ids[1] == 106 && s.tied);
    assert_int_equal(lt_model_layer(&s, 4).window, 1024);
    assert_int_equal(lt_model_layer(&s, 5).window, 0);
    (void)snprintf(text, sizeof text, gemma, "\"quantization_config\": {\"bits\": 4}, ");
    assert_int_equal(parse(&s, text), LT_ERR_UNSUPPORTED);
    assert_non_null(strstr(lt_error_message(), "quantization_config"));
    assert_int_equal(parse(&s, "{\"model_type\": \"gemma3\", " SIZES "}"), LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), "text_config"));
}

static void refuses_what_it_can_not_run(void **state) {
    lt_model_spec s = lt_family_get(LT_FAMILY_LLAMA)->preset;
    (void)state;
    assert_int_equal(parse(&s, "{\"model_type\": \"mamba\"}"), LT_ERR_UNSUPPORTED);
    assert_non_null(strstr(lt_error_message(), "apertus"));
    assert_int_equal(parse(&s, "{\"model_type\": \"llama\", \"vocab_size\": 3}"), LT_ERR_NOT_FOUND);
    assert_int_equal(parse(&s, "[]"), LT_ERR_FORMAT);
    assert_int_equal(
        parse(&s, "{\"model_type\": \"llama\", " SIZES ", \"num_key_value_heads\": 3}"),
        LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), "4 heads"));
    assert_int_equal(
        parse(&s, "{\"model_type\": \"llama\", " SIZES ", \"head_dim\": 1000000000000}"),
        LT_ERR_FORMAT);
    assert_int_equal(
        parse(&s, "{\"model_type\": \"llama\", " SIZES ", \"rope_scaling\": {\"type\": \"yarn\"}}"),
        LT_ERR_NOT_FOUND); /* The factor is missing. */
    assert_int_equal(parse(&s, "{\"model_type\": \"llama\", " SIZES ", \"hidden_act\": \"mish\"}"),
                     LT_ERR_UNSUPPORTED);
    assert_int_equal(parse(&s, "{\"model_type\": \"llama\", " SIZES "}"), LT_OK);
    s.window = 16; /* A Llama's config.json has no key for it. */
    assert_int_equal(lt_model_spec_write(&s, LT_F32, "/tmp/lateen-never-written.json"),
                     LT_ERR_UNSUPPORTED);
    assert_non_null(strstr(lt_error_message(), "window"));
}

/* Apertus 8B: 8.053e9 parameters, 5.154e10 FLOPs per token at 4096 (research/training.md 1.1). */
static void counts_apertus_8b(void **state) {
    lt_model_spec s = lt_family_get(LT_FAMILY_APERTUS)->preset;
    (void)state;
    s.n_layers = 32;
    s.width = 4096;
    s.ffn_width = 21504;
    s.n_heads = 32;
    s.n_kv_heads = 8;
    s.head_dim = 128;
    s.vocab_size = 131072;
    assert_true((double)lt_model_spec_params(&s) / 8.053e9 > 0.9999 &&
                (double)lt_model_spec_params(&s) / 8.053e9 < 1.0001);
    assert_true(lt_model_spec_train_flops(&s, 4096) / 5.154e10 > 0.9999);
    assert_true(lt_model_spec_train_flops(&s, 4096) / 5.154e10 < 1.0001);
}

static void the_table_places_every_parameter(void **state) {
    (void)state;
    for (int family = 0; family < LT_FAMILY_COUNT; family++) {
        lt_model_spec s = lt_family_get((lt_family)family)->preset;
        lt_param_table t;
        int64_t end = 0, sum = 0;
        s.n_layers = 3;
        s.width = 24;
        s.n_heads = 2;
        s.n_kv_heads = 1;
        s.head_dim = 6;
        s.ffn_width = 10;
        s.vocab_size = 7;
        s.max_seq = 5;
        lt_model_spec_derive(&s);
        assert_int_equal(lt_param_table_open(&t, &s), LT_OK);
        for (int i = 0; i < t.n_params; i++) {
            const lt_param *p = &t.params[i];
            int64_t from, count;
            assert_true(p->whole_at >= end && p->whole_at % LT_PARAM_ALIGN == 0 &&
                        p->whole_at < end + LT_PARAM_ALIGN);
            assert_ptr_equal(lt_param_find(&t, p->name), p);
            lt_part_rows(&s, p, LT_PART_ALL, &from, &count);
            assert_int_equal(count, p->shape[p->experts ? 1 : 0]);
            end = p->whole_at + p->count;
            sum += p->count;
        }
        assert_int_equal(sum, lt_model_spec_params(&s));
        assert_null(lt_param_find(&t, "layers.3.qkv"));
        lt_param_table_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_both_rope_spellings),
        cmocka_unit_test(rope_parameters_replace_those_of_the_family),
        cmocka_unit_test(reads_keys_of_two_names),
        cmocka_unit_test(names_score_heads),
        cmocka_unit_test(reads_token_scores),
        cmocka_unit_test(reads_gemma_layers),
        cmocka_unit_test(reads_gemma2),
        cmocka_unit_test(windows_that_files_do_not_mention),
        cmocka_unit_test(windows_of_any_layers),
        cmocka_unit_test(windows_that_files_only_switch_on),
        cmocka_unit_test(fields_of_another_rope),
        cmocka_unit_test(layers_without_experts),
        cmocka_unit_test(every_family_survives_its_file),
        cmocka_unit_test(reads_the_text_part_of_a_wrapper),
        cmocka_unit_test(refuses_what_it_can_not_run),
        cmocka_unit_test(counts_apertus_8b),
        cmocka_unit_test(the_table_places_every_parameter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
