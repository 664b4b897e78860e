/* adapter_config.json against PEFT (golden: tools/make_lora_config_goldens.py): every key that
 * PEFT writes is known here, and its default is accepted; a value that would change what the
 * adapter computes is refused with file, key and value, and so is an unknown key; and each
 * configuration gives the same modules the same ranks and alphas. */
#include "unit/model/adapters.h"

#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "model/family.h"

#define SFT    "tests/golden/sft"
#define GOLDEN "tests/golden/lora_config.json"

typedef struct {
    char folder[32], path[LT_PATH_BYTES];
    lt_model *base;
    json_t *golden;
} room;

static void enter(room *r) {
    *r = (room){.folder = "/tmp/lateen-lora-XXXXXX"};
    assert_non_null(mkdtemp(r->folder));
    must(lt_path_join(r->path, r->folder, "adapter_config.json"), r->folder);
    r->base = open_base(SFT, lt_backend_cpu(), LT_F32);
    must(lt_json_load(&r->golden, GOLDEN, (size_t)1 << 20), GOLDEN);
}

static void leave(room *r) {
    assert_int_equal(lt_file_remove_tree(r->folder), LT_OK);
    lt_model_close(r->base);
    json_decref(r->golden);
}

/* Write PEFT's defaults for q_proj with one key changed to the folder. Takes value. */
static void write_with(const room *r, const char *key, json_t *value) {
    json_t *config = json_deep_copy(json_object_get(r->golden, "defaults"));
    char *text;
    assert_int_equal(json_object_set_new(config, "target_modules", json_pack("[s]", "q_proj")), 0);
    assert_int_equal(json_object_set_new(config, key, value), 0);
    text = json_dumps(config, 0);
    must(lt_file_write_atomic(r->path, text, strlen(text)), r->path);
    free(text);
    json_decref(config);
}

static lt_err read_it(const room *r, lt_lora_config *c) {
    return lt_lora_config_read(c, r->folder, &r->base->spec);
}

static void defaults_are_read(void **state) {
    const char *key;
    json_t *value;
    lt_lora_config c;
    room r;
    (void)state;
    enter(&r);
    write_with(&r, "r", json_integer(3));
    must(read_it(&r, &c), "defaults");
    assert_int_equal(c.options.rank, 3);
    assert_true(c.options.alpha == 8.0 && c.dropout == 0.0 && !c.options.dora);
    assert_int_equal(c.options.scaling, LT_LORA_BY_RANK);
    assert_string_equal(c.options.targets, "q_proj");
    lt_lora_config_close(&c);
    /* A key is known if it is not refused as unknown. */
    json_object_foreach(json_object_get(r.golden, "defaults"), key, value) {
        write_with(&r, key, json_pack("{s:i}", "odd", 1));
        if (read_it(&r, &c) == LT_OK) {
            lt_lora_config_close(&c);
        } else if (strstr(lt_error_message(), "not a key") != NULL) {
            fail_msg("%s: %s", key, lt_error_message());
        }
    }
    leave(&r);
}

/* Each key of PEFT's with a value other than its default: refused with these words; NULL:
 * read. */
static void each_key_flipped(void **state) {
    static const struct {
        const char *key, *value, *words;
    } cases[] = {
        {"peft_type", "\"LOHA\"", "peft_type is \"LOHA\""},
        {"task_type", "\"SEQ_CLS\"", NULL},
        {"auto_mapping", "{\"base_model_class\": \"LlamaForCausalLM\"}", NULL},
        {"peft_version", "\"0.18.0\"", NULL},
        {"base_model_name_or_path", "\"some/model\"", NULL},
        {"revision", "\"v2\"", NULL},
        {"inference_mode", "false", NULL},
        {"fan_in_fan_out", "true", NULL},
        {"bias", "\"lora_only\"", "bias is \"lora_only\": weights of the model itself"},
        {"bias", "\"some\"", "bias is \"some\": none, all and lora_only are known"},
        {"bias", "null", NULL},
        {"modules_to_save", "[\"lm_head\"]", "modules_to_save has 'lm_head'"},
        {"modules_to_save", "\"lm_head\"", "modules_to_save is not a list"},
        {"init_lora_weights", "false", NULL},
        {"init_lora_weights", "\"gaussian\"", NULL},
        {"init_lora_weights", "\"eva\"", NULL},
        {"init_lora_weights", "\"orthogonal\"", NULL},
        {"init_lora_weights", "\"mica\"", NULL},
        {"init_lora_weights", "\"pissa_niter_4\"", "init_lora_weights is \"pissa_niter_4\""},
        {"init_lora_weights", "\"olora\"", "changes the base"},
        {"init_lora_weights", "\"corda\"", "changes the base"},
        {"init_lora_weights", "\"loftq\"", "changes the base"},
        {"init_lora_weights", "\"lora_ga\"", "changes the base"},
        {"layers_pattern", "\"layers\"", NULL}, /* The pattern of layers_to_transform. */
        {"layers_to_transform", "0", "q_proj has adapters in 1 of 2"},
        {"layers_to_transform", "[0, 1]", NULL},
        {"megatron_config", "{\"tp\": 2}", "megatron_config is {\"tp\": 2}"},
        {"megatron_core", "\"other\"", NULL},
        {"trainable_token_indices", "[1, 2]", "trainable_token_indices is [1, 2]"},
        {"loftq_config", "{\"loftq_bits\": 4}", NULL},
        {"eva_config", "{\"rho\": 2.0}", NULL},
        {"corda_config", "{\"verbose\": true}", NULL},
        {"lora_ga_config", "{\"scale\": \"unit\"}", NULL},
        {"velora_config", "{\"num_groups\": 64}", "velora_config is {\"num_groups\": 64}"},
        {"alora_invocation_tokens", "[5]", "alora_invocation_tokens is [5]"},
        {"use_qalora", "true", "use_qalora is true: not supported"},
        {"qalora_group_size", "32", NULL},
        {"monteclora_config", "{\"num_samples\": 8}", "monteclora_config is"},
        {"layer_replication", "[[0, 2], [1, 2]]", "layer_replication is [[0, 2], [1, 2]]"},
        {"runtime_config", "{\"ephemeral_gpu_offload\": true}", NULL},
        {"lora_bias", "true", "lora_bias is true"},
        {"target_parameters", "[\"mlp.experts.down_proj\"]", "target_parameters has more than"},
        {"use_bdlora", "{\"nblocks\": 2}", "use_bdlora is {\"nblocks\": 2}"},
        {"arrow_config", "{\"top_k\": 3}", "arrow_config is {\"top_k\": 3}"},
        {"kasa_config", "{\"beta\": 0.5}", "kasa_config is"},
        {"ensure_weight_tying", "true", "ensure_weight_tying is true"},
        {"enable_lora", "[true, false]", "enable_lora is [true, false]"},
        {"merge_weights", "true", NULL},
        {"target_modules", "\"(q_proj\"", "target_modules: expression '(q_proj': "},
        {"target_modules", "7", "target_modules is 7"},
        {"target_modules", "[7]", "target_modules is [7]"},
        {"target_modules", "\".*q_pro\"", "names no module"},
        {"exclude_modules", "\".*q_proj\"", "names no module"},
        {"alpha_pattern", "{\"layers.1.*\": 3}",
         "model.layers.1.self_attn.q_proj has rank 8 and alpha 3, others have 8 and 8"},
        {"rank_pattern", "{\"q_proj\": \"4\"}", "rank_pattern is \"4\": not a rank"},
        {"alpha_pattern", "{\"q_proj\": null}", "alpha_pattern is null: not a number"},
        {"rank_pattern", "{\"q_proj\": 0}", "r = 0"},
        {"new_in_peft_1", "false", "new_in_peft_1 is false: not a key that is known here"},
        {"new_in_peft_1", "null", NULL},
    };
    room r;
    (void)state;
    enter(&r);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_lora_config c;
        write_with(&r, cases[i].key, json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        const lt_err err = read_it(&r, &c);
        if (err == LT_OK) {
            lt_lora_config_close(&c);
        }
        if ((err == LT_OK) != (cases[i].words == NULL)) {
            fail_msg("%s %s: %s", cases[i].key, cases[i].value,
                     err == LT_OK ? "read" : lt_error_message());
        }
        if (err != LT_OK && (strstr(lt_error_message(), cases[i].words) == NULL ||
                             strstr(lt_error_message(), r.path) == NULL)) {
            fail_msg("'%s' is not in: %s", cases[i].words, lt_error_message());
        }
    }
    leave(&r);
}

/* Values that are read reach the options. */
static void values_arrive(void **state) {
    static const struct {
        const char *key, *value;
        double rank, alpha, dropout;
        lt_lora_scaling scaling;
        bool dora;
    } cases[] = {
        {"r", "6", 6, 8, 0, LT_LORA_BY_RANK, false},
        {"lora_alpha", "2.5", 8, 2.5, 0, LT_LORA_BY_RANK, false},
        {"lora_dropout", "0.25", 8, 8, 0.25, LT_LORA_BY_RANK, false},
        {"use_rslora", "true", 8, 8, 0, LT_LORA_BY_ROOT, false},
        {"use_dora", "true", 8, 8, 0, LT_LORA_BY_RANK, true},
        {"rank_pattern", "{\"q_proj\": 2}", 2, 8, 0, LT_LORA_BY_RANK, false},
        {"alpha_pattern", "{\".*attn.q_proj\": 3}", 8, 3, 0, LT_LORA_BY_RANK, false},
    };
    room r;
    (void)state;
    enter(&r);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_lora_config c;
        write_with(&r, cases[i].key, json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        must(read_it(&r, &c), cases[i].key);
        assert_true((double)c.options.rank == cases[i].rank && c.options.alpha == cases[i].alpha &&
                    c.dropout == cases[i].dropout);
        assert_true(c.options.scaling == cases[i].scaling && c.options.dora == cases[i].dora);
        lt_lora_config_close(&c);
    }
    leave(&r);
}

/* One module against PEFT's list. */
static void check_module(const json_t *row, const char *module, bool linear) {
    const json_t *want = json_object_get(json_object_get(row, "modules"), module);
    lt_lora_module_config c;
    must(lt_lora_config_module(&c, json_object_get(row, "options"), module, linear, GOLDEN),
         module);
    if (c.has != (want != NULL)) {
        char *text = json_dumps(json_object_get(row, "options"), 0);
        fail_msg("%s: %s has %s adapter", text, module, c.has ? "an" : "no");
    }
    if (c.has) {
        assert_int_equal(c.rank, json_integer_value(json_array_get(want, 0)));
        assert_true(c.alpha == json_number_value(json_array_get(want, 1)));
    }
}

static void modules_are_those_of_peft(void **state) {
    json_t *row;
    size_t i;
    room r;
    (void)state;
    enter(&r);
    const lt_family_row *family = lt_family_get(r.base->spec.family);
    json_array_foreach(json_object_get(r.golden, "cases"), i, row) {
        json_t *options = json_object_get(row, "options");
        assert_int_equal(json_object_set_new(options, "r", json_integer(4)), 0);
        assert_int_equal(json_object_set_new(options, "lora_alpha", json_integer(8)), 0);
        for (int k = 0; k < family->n_names; k++) {
            const lt_name_row *name = &family->names[k];
            for (int layer = 0; layer < (lt_lora_is_top(name) ? 1 : r.base->spec.n_layers);
                 layer++) {
                char module[LT_FOREIGN_NAME_BYTES];
                lt_lora_module(module, &(lt_lora_part){.name = name}, layer);
                if (lt_lora_is_module(name) || lt_lora_is_top(name)) {
                    check_module(row, module, lt_lora_is_module(name));
                }
            }
        }
    }
    assert_true(i >= 16);
    /* PEFT refuses a pattern that matches no layer. */
    lt_lora_module_config c;
    row = json_pack("{s:i, s:i, s:[s], s:[i], s:s}", "r", 4, "lora_alpha", 8, "target_modules",
                    "q_proj", "layers_to_transform", 1, "layers_pattern", "h");
    must(lt_lora_config_module(&c, row, "model.layers.1.self_attn.q_proj", true, "h"), "h");
    assert_false(c.has);
    json_decref(row);
    leave(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_read),
        cmocka_unit_test(each_key_flipped),
        cmocka_unit_test(values_arrive),
        cmocka_unit_test(modules_are_those_of_peft),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
