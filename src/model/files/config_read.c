/* config_read.c: config.json of a Hugging Face folder -> lt_model_spec.
 *
 * Plain keys follow the family's table. Two things do not fit a key: the rotary embedding
 * (config_rope.c) and sliding windows (layer_types, or a pattern). The file of a model for texts
 * and pictures has a text_config, which is read.
 * config_keys.c treats every other key. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "model/family.h"
#include "model/layer.h"
#include "tensor/ops.h"

/* Some configs list a label for each of 100,000 classes. */
#define MAX_CONFIG_BYTES ((size_t)64 << 20)

static const struct {
    const char *text;
    lt_act_kind act;
} act_names[] = {
#define ACT_NAME(name, text) {text, LT_ACT_##name},
    LT_ACT_MAP(ACT_NAME)
#undef ACT_NAME
        {"gelu_new", LT_ACT_GELU_TANH},
    {"gelu_fast", LT_ACT_GELU_TANH},
    {"gelu_python", LT_ACT_GELU},
    {"gelu_python_tanh", LT_ACT_GELU_TANH},
    {"gelu_accurate", LT_ACT_GELU_TANH},
    {"swish", LT_ACT_SILU},
};

static lt_err read_act(int *out, const json_t *config, const char *key, const char *what) {
    const char *text = NULL;
    LT_TRY(lt_json_str(config, key, &text, true, what));
    if (text == NULL) {
        return LT_OK;
    }
    for (size_t i = 0; i < sizeof act_names / sizeof act_names[0]; i++) {
        if (strcmp(text, act_names[i].text) == 0) {
            *out = (int)act_names[i].act;
            return LT_OK;
        }
    }
    LT_FAIL(LT_ERR_UNSUPPORTED, "%s: activation '%s' (%s) is not supported", what, text, key);
}

static lt_err read_id(int64_t *out, const json_t *config, const char *key, const char *what) {
    const json_t *value = json_object_get(config, key);
    if (value == NULL) {
        return LT_OK;
    }
    if (json_is_array(value)) {
        value = json_array_get(value, 0);
    }
    if (value == NULL || json_is_null(value)) {
        *out = -1;
        return LT_OK;
    }
    if (!json_is_integer(value)) {
        LT_FAIL(LT_ERR_FORMAT, "%s: '%s' is not a token id", what, key);
    }
    *out = (int64_t)json_integer_value(value);
    return LT_OK;
}

/* One id of a list, or the only one; -1 means none. */
static lt_err add_end(lt_ends *e, const json_t *value, const char *key, const char *what) {
    if (!json_is_integer(value) || json_integer_value(value) > INT32_MAX) {
        LT_FAIL(LT_ERR_FORMAT, "%s: '%s' is neither a token id nor a list of them", what, key);
    }
    if (!lt_ends_add(e, json_integer_value(value))) {
        LT_FAIL(LT_ERR_LIMIT, "%s: '%s' has more than %d ids", what, key, LT_MAX_ENDS);
    }
    return LT_OK;
}

lt_err lt_config_ends(lt_ends *out, const json_t *config, const char *key, const char *what) {
    const json_t *value = json_object_get(config, key);
    lt_ends ends = {.n = 0};
    if (value == NULL) {
        return LT_OK;
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        LT_TRY(add_end(&ends, json_array_get(value, i), key, what));
    }
    if (!json_is_array(value) && !json_is_null(value)) {
        LT_TRY(add_end(&ends, value, key, what));
    }
    *out = ends;
    return LT_OK;
}

static lt_err read_factor(float *factor, const json_t *config, const char *key, const char *what) {
    double real = (double)*factor;
    LT_TRY(lt_json_f64(config, key, &real, true, what));
    *factor = (float)real;
    if (json_object_get(config, key) != NULL && !(*factor > 0)) {
        LT_FAIL(LT_ERR_FORMAT, "%s: '%s' is %g, not a number above 0", what, key, real);
    }
    return LT_OK;
}

/* null means none, even if the family has a default; 0 would be a division by zero. */
static lt_err read_cap(float *cap, const json_t *config, const char *key, const char *what) {
    const json_t *value = json_object_get(config, key);
    double real = (double)*cap;
    LT_TRY(lt_json_f64(config, key, &real, true, what));
    *cap = json_is_null(value) ? 0 : (float)real;
    if (value != NULL && !json_is_null(value) && !(*cap > 0)) {
        LT_FAIL(LT_ERR_FORMAT, "%s: '%s' is %g, not a number above 0 or null", what, key, real);
    }
    return LT_OK;
}

static lt_err read_key(lt_model_spec *spec, const lt_config_key *row, const json_t *config,
                       const char *what) {
    const bool by_alias = row->alias != NULL && json_object_get(config, row->key) == NULL &&
                          json_object_get(config, row->alias) != NULL;
    const char *const key = by_alias ? row->alias : row->key;
    void *field = (char *)spec + row->offset;
    double real;
    switch (row->type) {
    case LT_KEY_I64:
        return lt_json_i64(config, key, field, !row->required, what);
    case LT_KEY_BOOL:
        return lt_json_bool(config, key, field, !row->required, what);
    case LT_KEY_F32:
        real = (double)*(float *)field;
        LT_TRY(lt_json_f64(config, key, &real, !row->required, what));
        *(float *)field = (float)real;
        return LT_OK;
    case LT_KEY_FACTOR:
        return read_factor(field, config, key, what);
    case LT_KEY_F64:
        return lt_json_f64(config, key, field, !row->required, what);
    case LT_KEY_CAP:
        return read_cap(field, config, key, what);
    case LT_KEY_INV_SQRT:
        real = 256;
        LT_TRY(lt_json_f64(config, key, &real, true, what));
        *(float *)field = (float)(1 / sqrt(real));
        return LT_OK;
    case LT_KEY_SCALED:
        *(float *)field = json_is_false(json_object_get(config, key)) ? 1 : *(float *)field;
        return LT_OK;
    case LT_KEY_ACT:
        return read_act(field, config, key, what);
    case LT_KEY_ID:
        return read_id(field, config, key, what);
    case LT_KEY_IDS:
        return lt_config_ends(field, config, key, what);
    }
    return LT_OK;
}

/* layer_types: which layers slide. If every window_every-th layer is global, the period expresses
 * this. */
static lt_err read_layer_types(lt_model_spec *spec, const json_t *types, const char *what) {
    const int64_t n = (int64_t)json_array_size(types);
    int64_t n_local = 0;
    bool local[LT_MAX_LAYERS] = {false};

    if (n != spec->n_layers || n > LT_MAX_LAYERS) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %lld layer_types for %lld layers", what, (long long)n,
                (long long)spec->n_layers);
    }
    for (int64_t i = 0; i < n; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        if (type == NULL ||
            (strcmp(type, "full_attention") != 0 && strcmp(type, "sliding_attention") != 0)) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "%s: layer type '%s' of layer %lld", what,
                    type ? type : "?", (long long)i);
        }
        local[i] = strcmp(type, "sliding_attention") == 0;
        n_local += local[i];
    }
    if (n_local > 0 && spec->window == 0) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: %lld layers of layer_types slide, but sliding_window is null or "
                "use_sliding_window is not true",
                what, (long long)n_local);
    }
    lt_layers_set_windows(spec, local);
    return LT_OK;
}

/* no_rope_layers: for each layer, 1 if it rotates. Without this key, every
 * no_rope_layer_interval-th layer does not. */
static lt_err read_no_rope(lt_model_spec *spec, const json_t *config, const char *what) {
    const json_t *list = json_object_get(config, "no_rope_layers");
    const int64_t n = (int64_t)json_array_size(list);
    int64_t every = 4;
    LT_TRY(lt_json_i64(config, "no_rope_layer_interval", &every, true, what));
    if (every < 1) {
        LT_FAIL(LT_ERR_FORMAT, "%s: a no_rope_layer_interval of %lld", what, (long long)every);
    }
    if (json_is_array(list) && n < spec->n_layers) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %lld no_rope_layers for %lld layers", what, (long long)n,
                (long long)spec->n_layers);
    }
    for (int64_t i = 0; i < spec->n_layers && i < LT_MAX_LAYERS; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        if (value != NULL && !json_is_integer(value)) {
            LT_FAIL(LT_ERR_FORMAT, "%s: no_rope_layers[%lld] is not 0 or 1", what, (long long)i);
        }
        spec->no_rope[i] = value != NULL ? json_integer_value(value) == 0 : (i + 1) % every == 0;
    }
    return LT_OK;
}

/* Layers without experts: those of mlp_only_layers, and all but every decoder_sparse_step-th. If
 * there are none, their width is ignored. */
static lt_err read_dense(lt_model_spec *spec, const json_t *config, const char *what) {
    const json_t *list = json_object_get(config, "mlp_only_layers");
    int64_t step = 1, n = 0;
    LT_TRY(lt_json_i64(config, "decoder_sparse_step", &step, true, what));
    LT_TRY(lt_json_i64(config, "intermediate_size", &spec->dense_ffn_width, true, what));
    if (step < 1) {
        LT_FAIL(LT_ERR_FORMAT, "%s: a decoder_sparse_step of %lld", what, (long long)step);
    }
    for (int64_t i = 0; i < spec->n_layers && i < LT_MAX_LAYERS; i++) {
        spec->dense[i] = (i + 1) % step != 0;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        if (!json_is_integer(value)) {
            LT_FAIL(LT_ERR_FORMAT, "%s: mlp_only_layers[%zu] is not the index of a layer", what, i);
        }
        const json_int_t layer = json_integer_value(value); /* Others name no layer. */
        if (layer >= 0 && layer < spec->n_layers && layer < LT_MAX_LAYERS) {
            spec->dense[layer] = true;
        }
    }
    for (int64_t i = 0; i < spec->n_layers && i < LT_MAX_LAYERS; i++) {
        spec->dense[i] = spec->dense[i] && spec->n_experts > 0;
        n += spec->dense[i] || spec->n_experts == 0;
    }
    spec->dense_ffn_width = n > 0 ? spec->dense_ffn_width : 0;
    return LT_OK;
}

/* Some layer has a window other than the given one. */
static bool some_see_all(const lt_model_spec *spec, int64_t window) {
    bool some = false;
    for (int64_t i = 0; i < spec->n_layers; i++) {
        some = some || lt_model_layer(spec, i).window != window;
    }
    return some;
}

static lt_err read_window(lt_model_spec *spec, const lt_family_row *row, const json_t *config,
                          const char *what) {
    const lt_window_keys keys = row->window_keys;
    const json_t *types = json_object_get(config, "layer_types");
    const bool optional = keys == LT_WINDOW_OPTIONAL || keys == LT_WINDOW_SWITCHED;
    bool used = !optional;
    int64_t first_local = row->used_after;

    if (keys == LT_WINDOW_NONE) {
        return LT_OK;
    }
    spec->window = row->used_window > 0 ? row->used_window : spec->window;
    if (json_is_null(json_object_get(config, "sliding_window"))) {
        spec->window = 0;
    }
    LT_TRY(lt_json_i64(config, "sliding_window", &spec->window, true, what));
    if (optional) {
        LT_TRY(lt_json_bool(config, "use_sliding_window", &used, true, what));
    }
    if (!used) {
        spec->window = spec->window_every = 0;
        return json_is_array(types) ? read_layer_types(spec, types, what) : LT_OK;
    }
    if (spec->window < 1 && json_is_integer(json_object_get(config, "sliding_window"))) {
        LT_FAIL(LT_ERR_FORMAT, "%s: a sliding_window of %lld tokens", what,
                (long long)spec->window);
    }
    if (json_is_array(types)) {
        const int64_t window = spec->window;
        LT_TRY(read_layer_types(spec, types, what));
        if ((keys == LT_WINDOW_ALL || keys == LT_WINDOW_SWITCHED) && some_see_all(spec, window)) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "%s: layer_types and sliding_window of a %s contradict",
                    what, lt_family_name(spec->family));
        }
        return LT_OK;
    }
    if (keys == LT_WINDOW_PATTERN) {
        if (row->window_pattern_key) {
            LT_TRY(lt_json_i64(config, "sliding_window_pattern", &spec->window_every, true, what));
        }
        if (spec->window_every < 1) {
            LT_FAIL(LT_ERR_FORMAT, "%s: a sliding_window_pattern of %lld", what,
                    (long long)spec->window_every);
        }
        if (spec->window_every == 1) { /* Every layer sees all. */
            spec->window = spec->window_every = 0;
        }
        spec->window_every = spec->window_every > spec->n_layers ? 0 : spec->window_every;
    } else if (row->no_rope_keys) { /* The layers that do not rotate have it. */
        if (spec->window > 0 && spec->n_layers <= LT_MAX_LAYERS) {
            lt_layers_set_windows(spec, spec->no_rope);
        }
    } else if (keys == LT_WINDOW_OPTIONAL) {
        LT_TRY(lt_json_i64(config, "max_window_layers", &first_local, true, what));
        if (first_local >= spec->n_layers) {
            spec->window = 0;
        }
        for (int64_t i = 0; i < first_local && spec->window > 0 && i < LT_MAX_LAYERS; i++) {
            spec->no_window[i] = true;
        }
    }
    return LT_OK;
}

static bool ends_in(const char *name, const char *end) {
    const size_t n = strlen(name), n_end = strlen(end);
    return n >= n_end && strcmp(name + n - n_end, end) == 0;
}

static lt_err read_separator(lt_model_spec *spec, const json_t *config, const char *usual,
                             const char *what) {
    const char *step = usual;
    LT_TRY(lt_json_str(config, "step_separator", &step, true, what));
    if (strlen(step) >= sizeof spec->step_separator) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: a step_separator of %zu bytes; at most %d are possible",
                what, strlen(step), LT_SEPARATOR_BYTES - 1);
    }
    (void)snprintf(spec->step_separator, sizeof spec->step_separator, "%s", step);
    return LT_OK;
}

/* Qwen2.5-Math-PRM: score.0 is square, score.2 gives two values, and <extra_0> ends a step. */
static lt_err read_two_layers(lt_model_spec *spec, const json_t *config, const char *what) {
    int64_t n = 2;
    LT_TRY(lt_json_i64(config, "num_labels", &n, true, what));
    if (n < 1 || n > 1024) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: num_labels is %lld; it may be 1 to 1024", what,
                (long long)n);
    }
    lt_model_spec_add_scores(spec, spec->width, true);
    spec->score_ends = n;
    return read_separator(spec, config, "<extra_0>", what);
}

/* A score head: transformers' ...ForSequenceClassification or ...ForTokenClassification, whose
 * number of labels is that of id2label, or num_labels, or 2. */
static lt_err read_scores(lt_model_spec *spec, const json_t *config, const char *what) {
    const json_t *list = json_object_get(config, "architectures"),
                 *labels = json_object_get(config, "id2label");
    const char *first = json_string_value(json_array_get(list, 0));
    const char *const name = first != NULL ? first : "";
    const bool of_tokens = ends_in(name, LT_TOKEN_SCORE_ARCHITECTURE);
    int64_t n_scores = 2;
    if (ends_in(name, "ForProcessRewardModel")) {
        return read_two_layers(spec, config, what);
    }
    if (!of_tokens && !ends_in(name, LT_SCORE_ARCHITECTURE)) {
        return LT_OK;
    }
    LT_TRY(lt_json_i64(config, "num_labels", &n_scores, true, what));
    lt_model_spec_add_scores(
        spec, json_object_size(labels) > 0 ? (int64_t)json_object_size(labels) : n_scores,
        of_tokens);
    if (of_tokens) {
        LT_TRY(lt_json_bool(config, "token_classification_bias", &spec->score_bias, true, what));
        LT_TRY(read_separator(spec, config, "", what));
    }
    return LT_OK;
}

/* null: as many as heads, even if the family's default is another number. */
static void read_no_kv_heads(lt_model_spec *spec, const json_t *config) {
    if (json_is_null(json_object_get(config, "num_key_value_heads"))) {
        spec->n_kv_heads = 0;
    }
}

static lt_err read_family(lt_model_spec *out, const lt_family_row *row, const json_t *config,
                          bool wrapped, const char *what) {
    lt_model_spec spec = row->preset;
    LT_TRY(lt_config_check_keys(spec.family, config, what));
    for (int i = 0; i < row->n_keys; i++) {
        lt_config_key key = row->keys[i];
        key.required = key.required && !wrapped;
        LT_TRY(read_key(&spec, &key, config, what));
    }
    read_no_kv_heads(&spec, config);
    if (spec.pos == LT_POS_ROPE) {
        LT_TRY(lt_config_read_rope(&spec, config, what));
    }
    LT_TRY(row->no_rope_keys ? read_no_rope(&spec, config, what) : LT_OK);
    LT_TRY(row->dense_keys ? read_dense(&spec, config, what) : LT_OK);
    LT_TRY(read_window(&spec, row, config, what));
    LT_TRY(read_scores(&spec, config, what));
    lt_model_spec_derive(&spec);
    if (lt_model_spec_check(&spec) != LT_OK) { /* The file is at fault, not the caller. */
        return lt_error_prefix(LT_ERR_FORMAT, "%s", what);
    }
    *out = spec;
    return LT_OK;
}

/* A model for texts and pictures: text_config describes the text part, and the keys beside it hold
 * for it where it has no others. */
static lt_err read_wrapped(lt_model_spec *out, const lt_family_row *row, const json_t *config,
                           const char *what) {
    static const char *const of_pictures[] = {
        "vision_config",   "text_config",       "mm_tokens_per_image", "boi_token_index",
        "eoi_token_index", "image_token_index", "architectures",
    };
    const json_t *text = json_object_get(config, "text_config");
    json_t *whole;
    lt_err err;
    if (!json_is_object(text)) {
        LT_FAIL(LT_ERR_FORMAT, "%s: a %s without text_config, an object", what, row->wrapper);
    }
    whole = json_copy((json_t *)(uintptr_t)config);
    for (size_t i = 0; i < sizeof of_pictures / sizeof *of_pictures; i++) {
        (void)json_object_del(whole, of_pictures[i]);
    }
    (void)json_object_update(whole, (json_t *)(uintptr_t)text);
    err = read_family(out, row, whole, true, what);
    json_decref(whole);
    return err;
}

lt_err lt_config_read(lt_model_spec *out, const json_t *config, const char *what) {
    const char *type = NULL;
    char known[256] = "";
    const lt_family_row *row = NULL;

    if (!json_is_object(config)) {
        LT_FAIL(LT_ERR_FORMAT, "%s: not an object", what);
    }
    LT_TRY(lt_json_str(config, "model_type", &type, false, what));
    for (int i = 0; i < LT_FAMILY_COUNT; i++) {
        const size_t used = strlen(known);
        const lt_family_row *candidate = lt_family_get((lt_family)i);
        if (candidate->wrapper != NULL && strcmp(candidate->wrapper, type) == 0) {
            return read_wrapped(out, candidate, config, what);
        }
        row = strcmp(candidate->model_type, type) == 0 ||
                      (candidate->alias != NULL && strcmp(candidate->alias, type) == 0)
                  ? candidate
                  : row;
        (void)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "",
                       candidate->model_type);
    }
    if (row == NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: model_type '%s' is not supported; these are: %s", what,
                type, known);
    }
    return read_family(out, row, config, false, what);
}

lt_err lt_model_spec_read(lt_model_spec *out, const char *config_path) {
    lt_err err;
    json_t *config = NULL;
    LT_TRY(lt_json_load(&config, config_path, MAX_CONFIG_BYTES));
    err = lt_config_read(out, config, config_path);
    json_decref(config);
    if (err != LT_OK && strstr(lt_error_message(), config_path) == NULL) {
        return lt_error_prefix(err, "%s", config_path);
    }
    return err;
}
