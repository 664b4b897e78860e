/* Every key of config.json against its effect in transformers (golden:
 * tools/make_config_keys.py): a value that changes a model's output there changes the spec here
 * or is refused; one that changes nothing is ignored or refused, and never changes the
 * arithmetic. Every key of a family's class is known. A missing key has the default of
 * transformers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "model/blocks/exec.h"
#include "model/family.h"
#include "model/files/safetensors.h"
#include "model/files/source.h"

#define GOLDEN "tests/golden/config_keys.json"

static lt_err read_with(lt_model_spec *spec, const json_t *base, const char *key, json_t *value) {
    json_t *config = json_deep_copy(base);
    lt_err err;
    (void)json_object_set(config, key, value);
    err = lt_config_read(spec, config, key);
    json_decref(config);
    return err;
}

/* Fields that do not affect the output: ends of texts, initial weights, additional losses; tied,
 * which the weights decide (below), and biases, without which a file is refused when it is
 * opened. A bound on the length of texts does not affect the arithmetic if positions are not
 * learned, and in transformers it has no effect at all. */
static void forget_what_says_nothing(lt_model_spec *s) {
    s->bos_id = s->pad_id = -1;
    s->eos = (lt_ends){.n = 0};
    s->init_std = s->moe_aux_coef = s->moe_z_coef = 0;
    s->tied = s->qkv_bias = s->attn_out_bias = s->mlp_bias = false;
    s->max_seq = 0;
}

/* Two original contexts of yarn may give the same rotation if no frequency lies between their two
 * ranges. */
static bool rotates_alike(const lt_model_spec *a, const lt_model_spec *b) {
    enum { POSITIONS = 64, NUMBERS = POSITIONS * 64 };
    static float x[NUMBERS], y[NUMBERS];
    const int64_t n = POSITIONS * lt_rope_columns(a) * 2;
    if (a->rope_scaling != LT_ROPE_YARN || b->rope_scaling != LT_ROPE_YARN ||
        lt_rope_columns(a) != lt_rope_columns(b) || n > NUMBERS) {
        return false;
    }
    assert_int_equal(lt_rope_table(x, a, POSITIONS, false, POSITIONS), LT_OK);
    assert_int_equal(lt_rope_table(y, b, POSITIONS, false, POSITIONS), LT_OK);
    return memcmp(x, y, (size_t)n * sizeof *x) == 0;
}

static bool same_arithmetic(lt_model_spec a, lt_model_spec b) {
    a.rope_original_seq = rotates_alike(&a, &b) ? b.rope_original_seq : a.rope_original_seq;
    forget_what_says_nothing(&a);
    forget_what_says_nothing(&b);
    return memcmp(&a, &b, sizeof a) == 0;
}

static void check_family(const char *type, const json_t *golden) {
    const json_t *base = json_object_get(golden, "base");
    lt_model_spec own, spec;
    const char *key;
    json_t *row;
    size_t i;
    assert_int_equal(lt_config_read(&own, base, type), LT_OK);
    json_array_foreach(json_object_get(golden, "own"), i, row) {
        if (lt_config_key_use(own.family, json_string_value(row)) == LT_CONFIG_UNKNOWN) {
            fail_msg("%s: '%s' of its class is unknown", type, json_string_value(row));
        }
    }
    json_object_foreach(json_object_get(golden, "keys"), key, row) {
        const char *outcome = json_string_value(json_object_get(row, "outcome"));
        const lt_err err = read_with(&spec, base, key, json_object_get(row, "value"));
        const bool changed = err == LT_OK && !same_arithmetic(own, spec);
        if (strcmp(outcome, "differs") == 0 && err == LT_OK && !changed &&
            strcmp(key, "tie_word_embeddings") != 0 && strcmp(key, "attention_bias") != 0) {
            fail_msg("%s: '%s' changes the model in transformers and nothing here", type, key);
        }
        if (strcmp(outcome, "same") == 0 && changed) {
            fail_msg("%s: '%s' changes nothing in transformers and the model here", type, key);
        }
    }
}

static void keys_do_what_they_do_in_transformers(void **state) {
    json_t *golden = NULL, *family;
    const char *type;
    int n = 0;
    (void)state;
    lt_log_set_level(LT_LOG_ERROR);
    assert_int_equal(lt_json_load(&golden, GOLDEN, (size_t)1 << 22), LT_OK);
    json_object_foreach(golden, type, family) {
        check_family(type, family);
        n++;
    }
    assert_int_equal(n, LT_FAMILY_COUNT - 1); /* The class of Switch is our own. */
    json_decref(golden);
}

/* A refusal names the key and its value. */
static void refusals_name_key_and_value(void **state) {
    static const struct {
        const char *type, *key, *value, *words;
    } cases[] = {
        {"llama", "is_causal", "false", "'is_causal' is false"},
        {"qwen2", "use_mrope", "true", "use_mrope"},
        {"llama", "sliding_window", "5", "'sliding_window' is 5"},
        {"mistral", "sliding_window", "0", "sliding_window of 0"},
        {"mistral", "layer_types",
         "[\"full_attention\", \"sliding_attention\", \"full_attention\"]", "layer"},
        {"gpt2", "hidden_size", "48", "'hidden_size' and 'n_embd'"},
        {"gemma2", "attn_logit_softcapping", "0.0", "attn_logit_softcapping"},
        {"gemma3_text", "use_bidirectional_attention", "true", "use_bidirectional_attention"},
        {"qwen3", "quantization_config", "{\"bits\": 4}", "quantization_config"},
        {"llama", "partial_rotary_factor", "0.5", "partial_rotary_factor 0.5"},
        {"llama", "rope_parameters", "{\"rope_type\": \"linear\", \"factor\": 2.0, \"twist\": 1}",
         "twist"},
        {"gemma3_text", "rope_parameters", "{\"rope_type\": \"default\"}", "layer type"},
        {"llama", "rope_parameters", "\"llama3\"", "rope_parameters is not an object"},
        {"llama", "rope_scaling", "[8.0]", "rope_scaling is not an object"},
        {"llama", "rope_scaling", "2.0", "rope_scaling is not an object"},
        {"gemma3_text", "rope_parameters", "{\"full_attention\": 1e6}", "full_attention is no"},
        {"gemma3_text", "rope_parameters", "{\"sliding_attention\": \"default\"}",
         "sliding_attention is not an object"},
        {"phi3", "rope_parameters", "{\"rope_type\": \"llama3\", \"factor\": 2.0}", "llama3"},
        {"llama", "rope_theta", "\"big\"", "rope_theta"},
        {"llama", "rope_scaling", "{\"rope_type\": \"spiral\"}",
         "RoPE scaling 'spiral' is not supported; these are: default, linear, llama3, yarn, "
         "dynamic, longrope, proportional"},
        {"llama", "rope_scaling", "{\"rope_type\": \"yarn\"}", "'yarn' without 'factor'"},
        {"llama", "rope_scaling", "{\"rope_type\": \"linear\"}", "factor"},
        {"gemma3_text", "rope_parameters",
         "{\"sliding_attention\": {\"rope_type\": \"linear\", \"factor\": 2.0}}",
         "RoPE scaling 'linear' on sliding-window layers"},
        {"gemma3_text", "rope_scaling", "{\"type\": \"linear\", \"factor\": 2.0}",
         "it reads rope_type only"},
        {"gemma3_text", "rope_parameters",
         "{\"full_attention\": {\"rope_type\": \"yarn\", \"factor\": 2.0, \"truncate\": false}}",
         "yarn without truncation by layer type"},
        {"phi3", "rope_parameters", /* A head has four pairs. */
         "{\"rope_type\": \"longrope\", \"short_factor\": [1, 1, 1], \"long_factor\": [1, 1, 1, "
         "1]}",
         "'short_factor' has 3 numbers, not one for each of 4 pairs"},
        {"phi3", "rope_parameters",
         "{\"rope_type\": \"longrope\", \"short_factor\": [1, 1, 1, 1], \"long_factor\": [1, 1, "
         "1, 0]}",
         "'long_factor'[3] is not a number above 0"},
        {"phi3", "rope_parameters",
         "{\"rope_type\": \"longrope\", \"short_factor\": [\"1\", 1, 1, 1], \"long_factor\": [1, "
         "1, 1, 1]}",
         "'short_factor'[0] is not a number above 0"},
        {"phi3", "rope_parameters", "{\"rope_type\": \"default\", \"partial_rotary_factor\": 0.1}",
         "partial_rotary_factor 0.1 of a head of 8: RoPE rotates pairs"},
        {"phi3", "rope_parameters", "{\"rope_type\": \"default\", \"partial_rotary_factor\": 1.5}",
         "partial_rotary_factor 1.5 of a head of 8"},
    };
    json_t *golden = NULL;
    (void)state;
    assert_int_equal(lt_json_load(&golden, GOLDEN, (size_t)1 << 22), LT_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const json_t *base = json_object_get(json_object_get(golden, cases[i].type), "base");
        json_t *value = json_loads(cases[i].value, JSON_DECODE_ANY, NULL);
        lt_model_spec spec;
        assert_non_null(value);
        if (read_with(&spec, base, cases[i].key, value) == LT_OK ||
            strstr(lt_error_message(), cases[i].words) == NULL) {
            fail_msg("%s: '%s' %s: %s", cases[i].type, cases[i].key, cases[i].value,
                     lt_error_message());
        }
        json_decref(value);
    }
    json_decref(golden);
}

/* ---- tie_word_embeddings ---- */

enum { V = 61, N = 9 };
#define FOLDER "/tmp/lateen-test-tying"

static void must(lt_err err, const char *what) {
    if (err != LT_OK) {
        fail_msg("%s: %s", what, lt_error_message());
    }
}

static lt_model_spec small(bool tied) {
    lt_model_spec s = lt_family_get(LT_FAMILY_LLAMA)->preset;
    s.n_layers = 1;
    s.width = 16;
    s.n_heads = s.n_kv_heads = 2;
    s.head_dim = 8;
    s.ffn_width = 24;
    s.vocab_size = V;
    s.max_seq = 16;
    s.tied = tied;
    s.init_std = 0.3f;
    return s;
}

static void logits_of(lt_model *m, float *out) {
    static const int32_t ids[N] = {3, 14, 15, 9, 26, 5, 35, 8, 60};
    lt_session *s = NULL;
    must(lt_session_open(&s, m, 1, N), "session");
    must(lt_session_eval_all(s, 0, ids, N, out), "logits");
    lt_session_close(s);
}

/* Write the weights of the folder again: the embedding under the given names, of which NULL is
 * none; a separate head stays. */
static void rename_embedding(const char *first, const char *second) {
    lt_safetensors file = {0};
    lt_safetensor_out out[32];
    lt_safetensor_memory memory[32];
    size_t n = 0;
    must(lt_safetensors_open(&file, FOLDER "/model.safetensors"), "open");
    for (size_t i = 0; i < file.n_tensors; i++) {
        const lt_safetensor *t = &file.tensors[i];
        const bool embed = strcmp(t->name, "model.embed_tokens.weight") == 0;
        const char *const names[2] = {embed ? first : t->name, embed ? second : NULL};
        for (int k = 0; k < 2; k++) {
            if (names[k] != NULL) {
                memory[n] = (lt_safetensor_memory){t->data, sizeof(float)};
                out[n] = (lt_safetensor_out){.name = names[k],
                                             .dtype = t->dtype,
                                             .n_dims = t->n_dims,
                                             .fill = lt_safetensor_fill_memory,
                                             .ctx = &memory[n]};
                memcpy(out[n].shape, t->shape, sizeof out[n].shape);
                n++;
            }
        }
    }
    must(lt_safetensors_write(FOLDER "/other.safetensors", out, n, NULL, NULL), "write");
    lt_safetensors_close(&file);
    assert_int_equal(rename(FOLDER "/other.safetensors", FOLDER "/model.safetensors"), 0);
}

/* Save a random model, set tied in its config.json, rename, and open it: returns its logits, and
 * whether it is tied then. */
static bool behind_the_file(bool tied, const char *first, const char *second, float *before,
                            float *after) {
    const lt_model_spec spec = small(tied);
    lt_model *m = NULL;
    json_t *config = NULL;
    must(lt_model_create(&m, &spec, NULL, 7), "create");
    must(lt_model_save(m, FOLDER, LT_F32, 0), "save");
    logits_of(m, before);
    lt_model_close(m);
    must(lt_json_load(&config, FOLDER "/config.json", 65536), "config");
    (void)json_object_set_new(config, "tie_word_embeddings", json_true());
    assert_int_equal(json_dump_file(config, FOLDER "/config.json", 0), 0);
    json_decref(config);
    rename_embedding(first, second);
    must(lt_model_open(&m, FOLDER, NULL), "open");
    const bool is_tied = lt_model_get_spec(m)->tied;
    logits_of(m, after);
    lt_model_close(m);
    must(lt_file_remove_tree(FOLDER), "remove");
    return is_tied;
}

/* What transformers 5.23 does with tie_word_embeddings and a head in the file, for Llama, Qwen 2
 * and 3, Gemma 2 and 3, Mixtral, Mistral and Apertus (its modeling_utils.py, tie_weights): a head
 * with other values is used, one with the same values is the embedding, and a head without an
 * embedding is both. */
static void a_head_in_the_file_is_used(void **state) {
    static const char embed[] = "model.embed_tokens.weight", head[] = "lm_head.weight";
    static float before[N * V], after[N * V];
    (void)state;
    assert_false(behind_the_file(false, embed, NULL, before, after));
    assert_memory_equal(before, after, sizeof before);
    assert_true(behind_the_file(true, embed, head, before, after));
    assert_memory_equal(before, after, sizeof before);
    assert_true(behind_the_file(true, head, NULL, before, after));
    assert_memory_equal(before, after, sizeof before);
}

/* Tensors that a file has beyond what its config.json describes are counted; those that files of
 * a family usually have besides weights, or under other names, are not. */
static void unused_tensors_are_reported(void **state) {
    static const char *const goldens[] = {"gpt2",    "llama_bias", "gemma3", "apertus", "mixtral",
                                          "phi3",    "mistral",    "switch", "olmo2",   "smollm3",
                                          "granite", "qwen3_moe",  "phi4",   "gpt_oss"};
    const char *first;
    char path[128];
    lt_param_table t;
    lt_model_spec spec;
    (void)state;
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        lt_source s = {0};
        (void)snprintf(path, sizeof path, "tests/golden/model/%s", goldens[i]);
        must(lt_weight_source_open(&s, &spec, path), path);
        must(lt_param_table_open(&t, &spec), path);
        assert_int_equal(lt_source_unread(&s, &spec, &t, &first), 0);
        lt_param_table_close(&t);
        if (strcmp(goldens[i], "llama_bias") == 0) { /* Two layers lose their biases. */
            spec.qkv_bias = spec.attn_out_bias = spec.mlp_bias = false;
            must(lt_param_table_open(&t, &spec), path);
            assert_int_equal(lt_source_unread(&s, &spec, &t, &first), 14);
            assert_non_null(strstr(first, "bias"));
            lt_param_table_close(&t);
        }
        if (strcmp(goldens[i], "phi3") == 0) { /* One of two layers. */
            spec.n_layers = 1;
            must(lt_param_table_open(&t, &spec), path);
            assert_int_equal(lt_source_unread(&s, &spec, &t, &first), 6);
            assert_non_null(strstr(first, "layers.1."));
            lt_param_table_close(&t);
        }
        lt_weight_source_close(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_do_what_they_do_in_transformers),
        cmocka_unit_test(refusals_name_key_and_value),
        cmocka_unit_test(a_head_in_the_file_is_used),
        cmocka_unit_test(unused_tensors_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
