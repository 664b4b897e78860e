/* lora_config.c: adapter_config.json, as PEFT 0.21 writes it.
 *
 * One table says how each key of PEFT's LoraConfig is treated. There are three kinds:
 *
 *     READ    by separate code, below or where adapters are trained (lora_dropout)
 *     ANY     without effect on the results of trained adapters
 *     OFF     refused unless it is null, false, 0 or empty
 *
 * A key that is not in the table is refused unless it is null. test_lora_config.c compares the
 * table with PEFT's own list of keys.
 *
 * Which modules have adapters, of which rank and alpha, is decided as in PEFT. target_modules is a
 * list of names or ends of names, a regular expression of the whole name, or all-linear.
 * exclude_modules removes some, and modules_to_save removes modules with all that is in them.
 * layers_to_transform and layers_pattern restrict the layers, which are the first number in a name,
 * unless a list has the whole name. rank_pattern and alpha_pattern have regular expressions of
 * names or of their ends; the first that matches is used.
 *
 * A model that computes with adapters as with a part of itself (lt_lora_open) has them in all
 * layers, of one rank and one alpha. Training refuses a folder that differs. If adapters are only
 * used or merged, the folder is read as even adapters that compute the same (lt_lora_load_uneven).
 * A server's places (lora_pool.h) take ranks and layers from the tensors. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/option.h"
#include "model/lora/lora.h"
#include "model/names.h"

#define CONFIG_BYTES ((size_t)4 << 20)
#define MATCH_LIMIT  100000 /* Steps of an expression over one name; 100 are usual. */

/* ---- Keys ---- */

typedef enum { READ, ANY, OFF } rule;

static const struct {
    const char *key;
    rule rule;
} rules[] = {
    {"peft_type", READ},
    {"base_model_name_or_path", READ},
    {"r", READ},
    {"lora_alpha", READ},
    {"use_rslora", READ},
    {"use_dora", READ},
    {"lora_dropout", READ},
    {"target_modules", READ},
    {"exclude_modules", READ},
    {"layers_to_transform", READ},
    {"layers_pattern", READ},
    {"rank_pattern", READ},
    {"alpha_pattern", READ},
    {"target_parameters", READ},
    {"modules_to_save", READ},
    {"init_lora_weights", READ},
    {"bias", READ},
    /* With these, the adapter would compute another function. */
    {"lora_bias", OFF},
    {"use_qalora", OFF},
    {"use_bdlora", OFF},
    {"arrow_config", OFF},
    {"kasa_config", OFF},
    {"velora_config", OFF}, /* A setting of the backward pass. */
    {"monteclora_config", OFF},
    {"alora_invocation_tokens", OFF},
    {"layer_replication", OFF},
    {"trainable_token_indices", OFF},
    {"ensure_weight_tying", OFF}, /* One adapter for embedding and head. */
    {"megatron_config", OFF},     /* Its layers are parts of matrices. */
    {"enable_lora", OFF},         /* PEFT 0.2: parts of one matrix. */
    /* Where the initial numbers came from: init_lora_weights decides. */
    {"loftq_config", ANY},
    {"eva_config", ANY},
    {"corda_config", ANY},
    {"lora_ga_config", ANY},
    /* How PEFT runs the adapter; labels. */
    {"qalora_group_size", ANY}, /* Belongs to use_qalora. */
    {"megatron_core", ANY},     /* Belongs to megatron_config. */
    /* The orientation of matrices in the base's file, which the family's row gives. */
    {"fan_in_fan_out", ANY},
    {"runtime_config", ANY},
    {"merge_weights", ANY}, /* PEFT 0.2. */
    {"inference_mode", ANY},
    {"task_type", ANY}, /* The tensors show which head there is. */
    {"auto_mapping", ANY},
    /* Belongs to the name of the base; the caller decides which base is opened. */
    {"revision", ANY},
    {"peft_version", ANY},
};

static bool allowed(const char *key, const json_t *value) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (strcmp(rules[i].key, key) == 0) {
            return rules[i].rule == READ || rules[i].rule == ANY ||
                   (rules[i].rule == OFF && lt_json_is_off(value));
        }
    }
    return json_is_null(value);
}

static bool is_known(const char *key) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (strcmp(rules[i].key, key) == 0) {
            return true;
        }
    }
    return false;
}

/* Refuse with "FILE: KEY is VALUE" and the reason. */
static lt_err refuse(const char *path, const char *key, const json_t *value, const char *why) {
    char text[128];
    const size_t n = json_dumpb(value, text, sizeof text - 1, JSON_ENCODE_ANY);
    text[n < sizeof text ? n : sizeof text - 1] = '\0';
    LT_FAIL(LT_ERR_UNSUPPORTED, "%s: %s is %s: %s", path, key, text, why);
}

static lt_err check_keys(const json_t *config, const char *path) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)config, key, value) {
        if (!allowed(key, value)) {
            return refuse(path, key, value,
                          is_known(key) ? "not supported" : "not a key that is known here");
        }
    }
    return LT_OK;
}

/* Whether an initialisation leaves the base unchanged. The others change the base, and their
 * adapters are meaningless without this change. */
static bool keeps_base(const json_t *init) {
    static const char *const kept[] = {"gaussian", "eva", "orthogonal", "mica"};
    const char *name = json_string_value(init);
    for (size_t i = 0; name != NULL && i < sizeof kept / sizeof *kept; i++) {
        if (strcmp(name, kept[i]) == 0) {
            return true;
        }
    }
    return init == NULL || json_is_null(init) || json_is_boolean(init);
}

/* Why weights that are trained whole are not read, and what to do. */
#define MERGE_FIRST                                                                                \
    "weights of the model itself were trained, which need a separate model: lateen "               \
    "convert ADAPTER FOLDER writes it"

/* Check `bias`. Biases are trained whole. */
static lt_err check_bias(const json_t *config, bool whole, const char *path) {
    static const char *const known[] = {"none", "all", "lora_only", NULL};
    const json_t *value = json_object_get(config, "bias");
    const char *text = json_string_value(value);
    if (value == NULL || json_is_null(value)) {
        return LT_OK;
    }
    if (text == NULL || !lt_name_is_one_of(text, known)) {
        return refuse(path, "bias", value, "none, all and lora_only are known");
    }
    return whole || strcmp(text, "none") == 0 ? LT_OK : refuse(path, "bias", value, MERGE_FIRST);
}

/* Modules that are trained whole: the score head, for which PEFT has two names; others are accepted
 * for merging. */
static lt_err check_saved(const json_t *config, const lt_model_spec *spec, bool whole,
                          const char *path) {
    const json_t *list = json_object_get(config, "modules_to_save");
    if (!json_is_array(list) && !lt_json_is_off(list)) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: modules_to_save is not a list of names", path);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        const bool is_score = name != NULL &&
                              (strcmp(name, "score") == 0 || strcmp(name, "classifier") == 0);
        if (is_score ? spec->n_scores == 0 : name == NULL) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "%s: modules_to_save has '%s', and the model has no score head", path,
                    name != NULL ? name : "?");
        }
        if (!is_score && !whole) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "%s: modules_to_save has '%s': " MERGE_FIRST, path, name);
        }
    }
    return LT_OK;
}

static lt_err check_config(const json_t *config, const lt_model_spec *spec, bool whole,
                           const char *path) {
    const json_t *init = json_object_get(config, "init_lora_weights");
    const char *type = NULL;
    LT_TRY(lt_json_str(config, "peft_type", &type, false, path));
    if (strcmp(type, "LORA") != 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: peft_type is \"%s\": only LORA is read", path, type);
    }
    LT_TRY(check_keys(config, path));
    LT_TRY(check_bias(config, whole, path));
    LT_TRY(check_saved(config, spec, whole, path));
    return keeps_base(init) ? LT_OK
                            : refuse(path, "init_lora_weights", init,
                                     "it changes the base, so the adapter alone is not enough");
}

lt_err lt_lora_check_folder(const char *folder) {
    static const char *const files[] = {LT_LORA_CONFIG, LT_LORA_WEIGHTS};
    char path[LT_PATH_BYTES];
    for (int i = 0; i < 2; i++) {
        LT_TRY(lt_path_join(path, folder, files[i]));
        if (!lt_file_has_name(path)) {
            LT_FAIL(
                LT_ERR_NOT_FOUND,
                "%s is not an adapter: %s is not there (PEFT's folder is read, with " LT_LORA_CONFIG
                " and " LT_LORA_WEIGHTS ")",
                folder, path);
        }
    }
    return LT_OK;
}

static lt_err load_config(json_t **out, const char *folder) {
    char path[LT_PATH_BYTES];
    LT_TRY(lt_path_join(path, folder, LT_LORA_CONFIG));
    return lt_json_load(out, path, CONFIG_BYTES);
}

/* with_experts: adapters of experts are read; whole: so are weights that are trained whole. */
static lt_err load_checked(json_t **out, const char *folder, const lt_model_spec *spec,
                           bool with_experts, bool whole) {
    char path[LT_PATH_BYTES];
    json_t *config = NULL;
    lt_err err;
    LT_TRY(lt_path_join(path, folder, LT_LORA_CONFIG));
    LT_TRY(load_config(&config, folder));
    err = check_config(config, spec, whole, path);
    const json_t *experts = json_object_get(config, "target_parameters");
    if (err == LT_OK && !with_experts && !lt_json_is_off(experts)) {
        err = refuse(path, "target_parameters", experts, "not supported for requests");
    }
    if (err != LT_OK) {
        json_decref(config);
        return err;
    }
    *out = config;
    return LT_OK;
}

lt_err lt_lora_config_load(json_t **out, const char *folder, const lt_model_spec *spec,
                           bool whole) {
    return load_checked(out, folder, spec, false, whole);
}

/* ---- Modules ---- */

/* Whether the expression matches the whole name. key: the key that has it, for messages. */
static lt_err match_all(bool *out, const char *expression, const char *name, const char *key,
                        const char *path) {
    int why = 0, hit = 0;
    size_t at = 0;
    char message[128] = "";
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)expression, PCRE2_ZERO_TERMINATED,
                                     PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_UTF, &why, &at,
                                     NULL);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    if (code != NULL && data != NULL && context != NULL) {
        pcre2_set_match_limit(context, MATCH_LIMIT);
        hit = why = pcre2_match(code, (PCRE2_SPTR)name, strlen(name), 0, 0, data, context);
    }
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
    *out = hit >= 0;
    if (code == NULL || (hit < 0 && hit != PCRE2_ERROR_NOMATCH)) {
        pcre2_code_free(code);
        pcre2_get_error_message(why, (PCRE2_UCHAR *)message, sizeof message);
        LT_FAIL(LT_ERR_FORMAT, "%s: %s: expression '%s': %s", path, key, expression, message);
    }
    pcre2_code_free(code);
    return LT_OK;
}

/* Whether a list of names or ends of names, or an expression, names this module. */
static lt_err names_module(bool *out, const json_t *value, const char *module, const char *key,
                           const char *path) {
    const char *expression = json_string_value(value);
    const json_t *target;
    size_t i;
    *out = false;
    if (lt_json_is_off(value) || (expression != NULL && expression[0] == '\0')) {
        return LT_OK;
    }
    if (expression != NULL) {
        return match_all(out, expression, module, key, path);
    }
    if (!json_is_array(value)) {
        return refuse(path, key, value, "neither a list of names nor an expression");
    }
    json_array_foreach(value, i, target) {
        const char *name = json_string_value(target);
        if (name == NULL) {
            return refuse(path, key, value, "a list with an element that is not a name");
        }
        *out = *out || lt_lora_target_is(name, strlen(name), module);
    }
    return LT_OK;
}

/* Whether the module, or one that contains it, is in modules_to_save. Such a module has no
 * adapter. */
static lt_err is_saved(bool *out, const json_t *config, const char *module, const char *path) {
    static const char key[] = "modules_to_save";
    const json_t *list = json_object_get(config, key);
    *out = false;
    for (size_t i = 0; i < json_array_size(list) && !*out; i++) {
        const char *name = json_string_value(json_array_get(list, i));
        char expression[LT_FOREIGN_NAME_BYTES * 2];
        if (name == NULL || snprintf(expression, sizeof expression, "(|.*\\.)(%s)(|\\..*)", name) >=
                                (int)sizeof expression) {
            return refuse(path, key, list,
                          "a list with an element that is not the name of a module");
        }
        LT_TRY(match_all(out, expression, module, key, path));
    }
    return LT_OK;
}

/* Whether a list has the whole name. */
static bool lists(const json_t *list, const char *module) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name != NULL && strcmp(name, module) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether layers_pattern allows the word before a layer's number. */
static lt_err allows_word(bool *out, const json_t *pattern, const char *word, const char *path) {
    static const char key[] = "layers_pattern";
    *out = lt_json_is_off(pattern) || (json_is_string(pattern) && json_string_length(pattern) == 0);
    if (json_is_string(pattern) && !*out) {
        return match_all(out, json_string_value(pattern), word, key, path);
    }
    for (size_t i = 0; i < json_array_size(pattern) && !*out; i++) {
        const char *one = json_string_value(json_array_get(pattern, i));
        LT_TRY(match_all(out, one != NULL ? one : "", word, key, path));
    }
    return LT_OK;
}

/* Whether the module is in a layer of layers_to_transform. The layer is the first number in its
 * name that follows a word and a dot; layers_pattern names the word. */
static lt_err in_layers(bool *out, const json_t *config, const char *module, const char *path) {
    const json_t *layers = json_object_get(config, "layers_to_transform"),
                 *targets = json_object_get(config, "target_modules");
    const char *number = strpbrk(module, "0123456789"), *word;
    char before[LT_FOREIGN_NAME_BYTES];
    bool is_listed = false;
    *out = layers == NULL || json_is_null(layers) ||
           (json_is_array(layers) && json_array_size(layers) == 0);
    if (!*out && !json_is_array(targets)) {
        return refuse(path, "layers_to_transform", layers, "target_modules is not a list");
    }
    *out = *out || lists(targets, module);
    if (*out || number == NULL) {
        return LT_OK;
    }
    const json_int_t layer = strtoll(number, NULL, 10);
    is_listed = json_is_integer(layers) && json_integer_value(layers) == layer;
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const json_t *one = json_array_get(layers, i);
        is_listed = is_listed || (json_is_integer(one) && json_integer_value(one) == layer);
    }
    for (word = number - 1; word > module && word[-1] != '.'; word--) {}
    (void)snprintf(before, sizeof before, "%.*s", (int)(number - 1 - word), word);
    LT_TRY(allows_word(out, json_object_get(config, "layers_pattern"), before, path));
    *out = *out && is_listed;
    return LT_OK;
}

static bool is_all_linear(const json_t *config) {
    const char *text = json_string_value(json_object_get(config, "target_modules"));
    return text != NULL && strcmp(text, LT_LORA_ALL) == 0;
}

/* The value that a pattern has for a module; NULL: none. */
static lt_err pattern_value(const json_t **out, const json_t *config, const char *key,
                            const char *module, const char *path) {
    const char *name;
    json_t *value;
    *out = NULL;
    json_object_foreach(json_object_get(config, key), name, value) {
        char expression[LT_FOREIGN_NAME_BYTES * 2];
        bool hit;
        if (snprintf(expression, sizeof expression, "(.*\\.)?(%s)", name) >=
            (int)sizeof expression) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "%s: %s has a key of %zu bytes", path, key, strlen(name));
        }
        LT_TRY(match_all(&hit, expression, module, key, path));
        if (hit) {
            *out = value;
            return LT_OK;
        }
    }
    return LT_OK;
}

lt_err lt_lora_config_module(lt_lora_module_config *out, const json_t *config, const char *module,
                             bool linear, const char *path) {
    const json_t *targets = json_object_get(config, "target_modules"), *rank, *alpha;
    bool here = linear, left_out = false, saved = false, in = true;
    out->rank = 0;
    LT_TRY(lt_json_i64(config, "r", &out->rank, false, path));
    LT_TRY(lt_json_f64(config, "lora_alpha", &out->alpha, false, path));
    if (!is_all_linear(config)) {
        LT_TRY(names_module(&here, targets, module, "target_modules", path));
    }
    LT_TRY(names_module(&left_out, json_object_get(config, "exclude_modules"), module,
                        "exclude_modules", path));
    LT_TRY(is_saved(&saved, config, module, path));
    LT_TRY(in_layers(&in, config, module, path));
    LT_TRY(pattern_value(&rank, config, "rank_pattern", module, path));
    LT_TRY(pattern_value(&alpha, config, "alpha_pattern", module, path));
    if (rank != NULL && !json_is_integer(rank)) {
        return refuse(path, "rank_pattern", rank, "not a rank");
    }
    if (alpha != NULL && !json_is_number(alpha)) {
        return refuse(path, "alpha_pattern", alpha, "not a number");
    }
    out->rank = rank != NULL ? json_integer_value(rank) : out->rank;
    out->alpha = alpha != NULL ? json_number_value(alpha) : out->alpha;
    if (out->rank < 1) {
        LT_FAIL(LT_ERR_FORMAT, "%s: r = %lld", path, (long long)out->rank);
    }
    out->has = here && in && !left_out && !saved;
    return LT_OK;
}

/* ---- All modules alike ---- */

typedef struct {
    const json_t *config;
    const lt_model_spec *spec;
    const char *path;
    char targets[LT_LORA_TARGETS_BYTES];
    lt_lora_module_config of_all;
    /* of_all has the rank and alpha of the modules so far; if they are uneven, the largest
     * rank. */
    bool any;
    /* Whether ranks, alphas and layers may differ, and whether they do. */
    bool may_differ, uneven;
    bool some_without; /* At least one linear module has no adapter in any layer. */
} reading;

/* Check that ranks and alphas of all modules are the same, unless they may differ. */
static lt_err compare(reading *r, const char *module, const lt_lora_module_config *one) {
    const bool same = !r->any || (one->rank == r->of_all.rank && one->alpha == r->of_all.alpha);
    if (!same && r->may_differ) {
        r->uneven = true;
        r->of_all.rank = one->rank > r->of_all.rank ? one->rank : r->of_all.rank;
        return LT_OK;
    }
    if (!same) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: by rank_pattern and alpha_pattern %s has rank %lld and alpha %g, others have "
                "%lld and %g: not supported for training",
                r->path, module, (long long)one->rank, one->alpha, (long long)r->of_all.rank,
                r->of_all.alpha);
    }
    r->of_all = *one;
    r->any = true;
    return LT_OK;
}

static void add_target(reading *r, const lt_name_row *row) {
    char name[LT_FOREIGN_NAME_BYTES];
    lt_lora_short_name(name, r->spec, row);
    (void)snprintf(r->targets + strlen(r->targets), sizeof r->targets - strlen(r->targets), "%s%s",
                   r->targets[0] != '\0' ? "," : "", name);
}

/* Add the module of this name if it has adapters, which must be in all layers. */
static lt_err add_row(reading *r, const lt_name_row *row) {
    char module[LT_FOREIGN_NAME_BYTES];
    int64_t n = 0;
    for (int64_t layer = 0; layer < r->spec->n_layers; layer++) {
        lt_lora_module_config one;
        lt_lora_module(module, &(lt_lora_part){.name = row}, (int)layer);
        LT_TRY(lt_lora_config_module(&one, r->config, module, lt_lora_is_module(row), r->path));
        LT_TRY(one.has ? compare(r, module, &one) : LT_OK);
        n += one.has;
    }
    if (n > 0 && n < r->spec->n_layers && r->may_differ) {
        r->uneven = true;
    } else if (n > 0 && n < r->spec->n_layers) {
        lt_lora_short_name(module, r->spec, row);
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: %s has adapters in %lld of %lld layers: not supported for training", r->path,
                module, (long long)n, (long long)r->spec->n_layers);
    }
    if (n > 0) {
        add_target(r, row);
    }
    r->some_without = r->some_without || (n == 0 && lt_lora_is_module(row));
    return LT_OK;
}

/* Add the experts' modules of one kind if target_parameters names them in every layer. */
static lt_err add_experts(reading *r, lt_param_kind kind, size_t *found) {
    const json_t *list = json_object_get(r->config, "target_parameters");
    const lt_name_row *row = lt_lora_expert_row(r->spec, kind);
    lt_lora_module_config one;
    bool in_all = row != NULL;
    for (int64_t layer = 0; layer < r->spec->n_layers && in_all; layer++) {
        char module[LT_FOREIGN_NAME_BYTES];
        lt_lora_module(module, &(lt_lora_part){.name = row}, (int)layer);
        LT_TRY(names_module(&in_all, list, module, "target_parameters", r->path));
        LT_TRY(in_all ? lt_lora_config_module(&one, r->config, module, false, r->path) : LT_OK);
        LT_TRY(in_all ? compare(r, module, &one) : LT_OK);
    }
    if (in_all) {
        add_target(r, row);
        (*found)++;
    }
    return LT_OK;
}

/* Read the short names of the modules that have adapters, and the settings that they share. */
static lt_err read_modules(reading *r) {
    const lt_family_row *family = lt_family_get(r->spec->family);
    const json_t *parameters = json_object_get(r->config, "target_parameters");
    size_t found = 0;
    for (int i = 0; i < family->n_names; i++) {
        const lt_name_row *row = &family->names[i];
        LT_TRY(lt_lora_is_module(row) || lt_lora_is_top(row) ? add_row(r, row) : LT_OK);
    }
    LT_TRY(add_experts(r, LT_PARAM_UP, &found));
    LT_TRY(add_experts(r, LT_PARAM_DOWN, &found));
    if (found < json_array_size(parameters) ||
        (!json_is_array(parameters) && !lt_json_is_off(parameters))) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: target_parameters has more than the experts' gate_up_proj and down_proj of "
                "all layers, as mixtral and qwen3_moe have them",
                r->path);
    }
    if (r->targets[0] == '\0') {
        LT_FAIL(LT_ERR_FORMAT, "%s: target_modules names no module of %s that can have adapters",
                r->path, lt_family_name(r->spec->family));
    }
    if (r->uneven && found > 0) {
        LT_FAIL(
            LT_ERR_UNSUPPORTED,
            "%s: ranks, alphas or layers of adapters differ, and experts have some: not supported",
            r->path);
    }
    if (is_all_linear(r->config) && !r->some_without) {
        (void)snprintf(r->targets, sizeof r->targets, "%s", LT_LORA_ALL);
    }
    return LT_OK;
}

static lt_err config_read(lt_lora_config *out, const char *folder, const lt_model_spec *spec,
                          bool may_differ, bool whole) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    json_t *config = NULL;
    bool rs = false, dora = false;
    lt_lora_config c = {.targets = NULL};
    reading r = {.spec = spec, .path = path, .may_differ = may_differ};

    LT_TRY(lt_path_join(path, folder, LT_LORA_CONFIG));
    LT_TRY_DONE(load_checked(&config, folder, spec, true, whole));
    r.config = config;
    LT_TRY_DONE(lt_json_bool(config, "use_rslora", &rs, true, path));
    LT_TRY_DONE(lt_json_bool(config, "use_dora", &dora, true, path));
    LT_TRY_DONE(lt_json_f64(config, "lora_dropout", &c.dropout, true, path));
    LT_TRY_DONE(read_modules(&r));
    c.targets = strdup(r.targets);
    if (c.targets == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s", path);
    }
    c.options = (lt_lora_options){.rank = r.of_all.rank,
                                  .alpha = r.of_all.alpha,
                                  .scaling = rs ? LT_LORA_BY_ROOT : LT_LORA_BY_RANK,
                                  .dora = dora,
                                  .targets = c.targets,
                                  .whole = whole};
    c.uneven = r.uneven;
    /* The scale is 1: lt_lora_load_uneven multiplies each module's B by its scale. */
    if (r.uneven) {
        c.options.alpha = rs ? sqrt((double)c.options.rank) : (double)c.options.rank;
    }
    *out = c;
    c = (lt_lora_config){.targets = NULL};
done:
    lt_lora_config_close(&c);
    json_decref(config);
    return err;
}

lt_err lt_lora_config_read(lt_lora_config *out, const char *folder, const lt_model_spec *spec) {
    return config_read(out, folder, spec, false, false);
}

lt_err lt_lora_config_read_uneven(lt_lora_config *out, const char *folder,
                                  const lt_model_spec *spec, bool whole) {
    return config_read(out, folder, spec, true, whole);
}

lt_err lt_lora_dora_of(bool *dora, const char *folder) {
    json_t *config = NULL;
    lt_err err;
    *dora = false;
    LT_TRY(load_config(&config, folder));
    err = lt_json_bool(config, "use_dora", dora, true, folder);
    json_decref(config);
    return err;
}

lt_err lt_lora_base_of(char **out, const char *folder) {
    json_t *config = NULL;
    const char *base;
    LT_TRY(load_config(&config, folder));
    base = json_string_value(json_object_get(config, "base_model_name_or_path"));
    *out = strdup(base != NULL ? base : "");
    json_decref(config);
    return *out != NULL ? LT_OK : lt_error_set(LT_ERR_OOM, "%s", folder);
}

void lt_lora_config_close(lt_lora_config *c) {
    free(c->targets);
    *c = (lt_lora_config){.targets = NULL};
}

bool lt_lora_is_folder(const char *path) {
    char config[LT_PATH_BYTES];
    return lt_path_join(config, path, LT_LORA_CONFIG) == LT_OK && lt_file_exists(config);
}
