/* config_rope.c: the rotary embedding of config.json, both ways, as transformers 5.23 understands
 * it (RotaryEmbeddingConfigMixin and the configuration classes):
 *
 *     rope_scaling      old; if it is an object that is not empty it decides, and rope_parameters
 *                       is not read
 *     rope_parameters   new: an object; for gemma3 one for full_attention and one for
 *                       sliding_attention
 *     rope_theta, partial_rotary_factor    beside them, for what they leave out;
 *                                          rope_local_base_freq: theta of gemma3's sliding layers
 *     original_max_position_embeddings     beside them it wins, inside them it comes next, then
 *                                          max_position_embeddings
 *     type              old spelling of rope_type
 *
 * Refused, because transformers ignores it, fails on it, or changed it between versions: part of a
 * head in a family that rotates whole ones; scaling of sliding layers; parameters by layer type
 * outside gemma3 and flat ones in it; keys that no rope_type has. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "model/family.h"
#include "model/blocks/exec.h"

static const char *const type_names[] = {
#define TYPE_NAME(name, type) type,
    LT_ROPE_MAP(TYPE_NAME)
#undef TYPE_NAME
};

/* The keys of a RoPE object. Those that belong to another rope_type have no effect in transformers,
 * nor here. */
static const char *const known_keys[] = {
    "rope_theta",       "rope_type",       "type",         "partial_rotary_factor",
    "factor",           "low_freq_factor", "long_factor",  "original_max_position_embeddings",
    "high_freq_factor", "beta_fast",       "beta_slow",    "attention_factor",
    "mscale_all_dim",   "mscale",          "short_factor", "truncate",
    "finetuned", /* A note by YaRN's authors. */
};

typedef struct {
    lt_model_spec *spec;
    const json_t *config, *rope;
    const char *what;
} reading;

static bool phi3(const lt_model_spec *s) {
    return lt_family_get(s->family)->rope_keys == LT_ROPE_KEYS_PHI3;
}

static bool by_type(const lt_model_spec *s) {
    return lt_family_get(s->family)->rope_keys == LT_ROPE_KEYS_BY_TYPE;
}

static lt_err check_keys(const reading *r) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)r->rope, key, value) {
        bool known = false;
        for (size_t i = 0; i < sizeof known_keys / sizeof *known_keys; i++) {
            known |= strcmp(key, known_keys[i]) == 0;
        }
        if (!known && !json_is_null(value)) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "%s: RoPE parameter '%s' is not known", r->what, key);
        }
    }
    return LT_OK;
}

static lt_err read_type(const reading *r, lt_rope_scaling *out) {
    char known[128] = "";
    const char *type = "default";
    LT_TRY(lt_json_str(r->rope, "type", &type, true, r->what));
    LT_TRY(lt_json_str(r->rope, "rope_type", &type, true, r->what));
    if (phi3(r->spec) && (strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0)) {
        type = "longrope"; /* The name in early Phi-3 files. */
    }
    for (int i = 0; i < LT_ROPE_COUNT; i++) {
        const size_t used = strlen(known);
        if (strcmp(type, type_names[i]) == 0) {
            *out = (lt_rope_scaling)i;
            return LT_OK;
        }
        (void)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "", type_names[i]);
    }
    LT_FAIL(LT_ERR_UNSUPPORTED, "%s: RoPE scaling '%s' is not supported; these are: %s", r->what,
            type, known);
}

static bool has(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return value != NULL && !json_is_null(value);
}

/* Only Phi-3 rotates part of a head; elsewhere transformers 5 rotates all of it, or fails, as
 * earlier versions do. */
static lt_err read_partial(const reading *r) {
    const lt_model_spec *s = r->spec;
    const int64_t head = s->head_dim > 0 ? s->head_dim : s->n_heads > 0 ? s->width / s->n_heads : 0;
    double part = 1;
    LT_TRY(lt_json_f64(r->config, "partial_rotary_factor", &part, true, r->what));
    LT_TRY(lt_json_f64(r->rope, "partial_rotary_factor", &part, true, r->what));
    const int64_t dim = (int64_t)((double)head * part);
    if (!(part > 0 && part <= 1) || dim < 2 || dim % 2 != 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s: partial_rotary_factor %g of a head of %lld: RoPE rotates pairs",
                r->what, part, (long long)head);
    }
    if (dim == head) {
        return LT_OK;
    }
    if (!phi3(s) && s->rope_scaling != LT_ROPE_PROPORTIONAL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: partial_rotary_factor %g; %s rotates whole heads", r->what,
                part, lt_family_name(s->family));
    }
    r->spec->rope_dim = dim;
    return LT_OK;
}

/* The original context: beside the object, in it, or the context itself. */
static lt_err read_original(const reading *r) {
    lt_model_spec *s = r->spec;
    s->rope_original_seq = phi3(s) ? 4096 : (double)s->max_seq;
    if (!phi3(s)) {
        LT_TRY(lt_json_f64(r->rope, "original_max_position_embeddings", &s->rope_original_seq, true,
                           r->what));
    }
    return by_type(s) ? LT_OK
                      : lt_json_f64(r->config, "original_max_position_embeddings",
                                    &s->rope_original_seq, true, r->what);
}

/* null, but not a missing key, means the context divided by the original one. */
static lt_err read_factor(const reading *r, bool optional) {
    lt_model_spec *s = r->spec;
    s->rope_factor = (double)s->max_seq / s->rope_original_seq;
    if (json_object_get(r->rope, "factor") == NULL && !optional) {
        LT_FAIL(LT_ERR_NOT_FOUND, "%s: RoPE scaling '%s' without 'factor'", r->what,
                type_names[s->rope_scaling]);
    }
    return lt_json_f64(r->rope, "factor", &s->rope_factor, true, r->what);
}

static double mscale(double factor, double by) {
    return factor <= 1 ? 1 : 0.1 * by * log(factor) + 1;
}

static lt_err read_yarn(const reading *r) {
    lt_model_spec *s = r->spec;
    double by = 0, all = 0, fast = 0, slow = 0;
    bool truncate = true;
    LT_TRY(read_factor(r, false));
    LT_TRY(lt_json_f64(r->rope, "mscale", &by, true, r->what));
    LT_TRY(lt_json_f64(r->rope, "mscale_all_dim", &all, true, r->what));
    LT_TRY(lt_json_f64(r->rope, "beta_fast", &fast, true, r->what));
    LT_TRY(lt_json_f64(r->rope, "beta_slow", &slow, true, r->what));
    LT_TRY(lt_json_bool(r->rope, "truncate", &truncate, true, r->what));
    if (!truncate && by_type(s)) { /* transformers looks for it elsewhere. */
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: yarn without truncation by layer type", r->what);
    }
    s->rope_beta_fast = fast != 0 ? fast : 32;
    s->rope_beta_slow = slow != 0 ? slow : 1;
    s->rope_truncate = truncate;
    s->rope_attention_factor = by != 0 && all != 0
                                   ? mscale(s->rope_factor, by) / mscale(s->rope_factor, all)
                                   : mscale(s->rope_factor, 1);
    return lt_json_f64(r->rope, "attention_factor", &s->rope_attention_factor, true, r->what);
}

static lt_err read_factors(const reading *r, const char *key, float *out) {
    const json_t *list = json_object_get(r->rope, key);
    const int64_t head = r->spec->head_dim > 0 ? r->spec->head_dim
                                               : r->spec->width / r->spec->n_heads,
                  n = (r->spec->rope_dim > 0 ? r->spec->rope_dim : head) / 2;
    if (!json_is_array(list) || (int64_t)json_array_size(list) != n || n > LT_MAX_ROPE_FACTORS) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: '%s' has %zu numbers, not one for each of %lld pairs (%d at most)", r->what,
                key, json_array_size(list), (long long)n, LT_MAX_ROPE_FACTORS);
    }
    for (int64_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        out[i] = (float)json_number_value(value);
        if (!json_is_number(value) || !(out[i] > 0 && out[i] <= 1e6f)) {
            LT_FAIL(LT_ERR_FORMAT, "%s: '%s'[%lld] is not a number above 0", r->what, key,
                    (long long)i);
        }
    }
    return LT_OK;
}

static lt_err read_longrope(const reading *r) {
    lt_model_spec *s = r->spec;
    LT_TRY(read_factor(r, true));
    s->rope_attention_factor = s->rope_factor <= 1
                                   ? 1
                                   : sqrt(1 + log(s->rope_factor) / log(s->rope_original_seq));
    LT_TRY(lt_json_f64(r->rope, "attention_factor", &s->rope_attention_factor, true, r->what));
    LT_TRY(read_factors(r, "short_factor", s->rope_short));
    return read_factors(r, "long_factor", s->rope_long);
}

static lt_err read_scaling(const reading *r) {
    lt_model_spec *s = r->spec;
    switch (s->rope_scaling) {
    case LT_ROPE_LINEAR:
    case LT_ROPE_DYNAMIC:
        return lt_json_f64(r->rope, "factor", &s->rope_factor, false, r->what);
    case LT_ROPE_LLAMA3:
        LT_TRY(read_original(r));
        LT_TRY(lt_json_f64(r->rope, "factor", &s->rope_factor, false, r->what));
        LT_TRY(lt_json_f64(r->rope, "low_freq_factor", &s->rope_low_freq, false, r->what));
        return lt_json_f64(r->rope, "high_freq_factor", &s->rope_high_freq, false, r->what);
    case LT_ROPE_YARN:
        LT_TRY(read_original(r));
        return read_yarn(r);
    case LT_ROPE_LONGROPE:
        LT_TRY(read_original(r));
        return read_longrope(r);
    case LT_ROPE_PROPORTIONAL:
        return lt_json_f64(r->rope, "factor", &s->rope_factor, true, r->what);
    default:
        return LT_OK;
    }
}

/* One object: theta, type and what the type needs. */
static lt_err read_object(const reading *r) {
    lt_model_spec *s = r->spec;
    /* The presets of apertus and gpt_oss scale. If the file has any key of RoPE, it decides
     * everything. */
    s->rope_factor = 1;
    s->rope_low_freq = s->rope_high_freq = s->rope_original_seq = 0;
    s->rope_beta_fast = s->rope_beta_slow = s->rope_attention_factor = 0;
    s->rope_truncate = false;
    LT_TRY(check_keys(r));
    LT_TRY(lt_json_f64(r->rope, "rope_theta", &s->rope_theta, true, r->what));
    LT_TRY(read_type(r, &s->rope_scaling));
    LT_TRY(read_partial(r));
    if (phi3(s) && s->rope_scaling != LT_ROPE_PLAIN && s->rope_scaling != LT_ROPE_LONGROPE) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: RoPE scaling '%s' in a phi3, which has default and longrope", r->what,
                type_names[s->rope_scaling]);
    }
    return read_scaling(r);
}

/* An object; null counts as absent. */
static lt_err check_object(const json_t *in, const char *key, const char *what) {
    const json_t *value = json_object_get(in, key);
    if (value != NULL && !json_is_null(value) && !json_is_object(value)) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %s is not an object", what, key);
    }
    return LT_OK;
}

/* gemma3: {full_attention, sliding_attention}; rope_scaling overrides the first. */
static lt_err read_by_layer_type(reading r, const json_t *parameters, const json_t *scaling) {
    lt_model_spec *s = r.spec;
    const json_t *local = json_object_get(parameters, "sliding_attention"), *value;
    json_t *full = json_object_get(parameters, "full_attention");
    lt_rope_scaling kind = LT_ROPE_PLAIN;
    const char *key;
    lt_err err;

    json_object_foreach((json_t *)(uintptr_t)parameters, key, value) {
        if (strcmp(key, "full_attention") != 0 && strcmp(key, "sliding_attention") != 0) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "%s: rope_parameters.%s: those of a gemma3 go by layer type", r.what, key);
        }
    }
    LT_TRY(check_object(parameters, "full_attention", r.what));
    LT_TRY(check_object(parameters, "sliding_attention", r.what));
    if (json_is_object(local)) {
        r.rope = local;
        LT_TRY(check_keys(&r));
        LT_TRY(lt_json_f64(local, "rope_theta", &s->rope_theta_local, true, r.what));
        LT_TRY(read_type(&r, &kind));
        if (kind != LT_ROPE_PLAIN) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "%s: RoPE scaling '%s' on sliding-window layers", r.what,
                    type_names[kind]);
        }
    }
    if (has(scaling, "type") && !has(scaling, "rope_type")) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: rope_scaling.type of a gemma3: it reads rope_type only",
                r.what);
    }
    full = json_is_object(full) ? json_deep_copy(full) : json_object();
    (void)json_object_update(full, (json_t *)(uintptr_t)scaling);
    r.rope = full;
    err = read_object(&r);
    json_decref(full);
    return err;
}

lt_err lt_config_read_rope(lt_model_spec *spec, const json_t *config, const char *what) {
    const json_t *parameters = json_object_get(config, "rope_parameters"),
                 *scaling = json_object_get(config, "rope_scaling");
    reading r = {spec, config, NULL, what};
    double theta = spec->rope_theta;

    LT_TRY(check_object(config, "rope_parameters", what));
    LT_TRY(check_object(config, "rope_scaling", what));
    LT_TRY(lt_json_f64(config, "rope_theta", &theta, true, what));
    scaling = json_object_size(scaling) > 0 ? scaling : NULL;
    parameters = json_is_object(parameters) ? parameters : NULL;
    if (by_type(spec)) {
        spec->rope_theta = theta;
        LT_TRY(lt_json_f64(config, "rope_local_base_freq", &spec->rope_theta_local, true, what));
        return read_by_layer_type(r, parameters, scaling);
    }
    r.rope = scaling != NULL ? scaling : parameters;
    if (has(r.rope, "full_attention") || has(r.rope, "sliding_attention")) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: rope_parameters by layer type; %s has one set for all",
                what, lt_family_name(spec->family));
    }
    if (r.rope == NULL && spec->rope_scaling != LT_ROPE_PLAIN) { /* The preset: base and scaling. */
        if (theta != spec->rope_theta) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "%s: rope_theta %g without rope_parameters: transformers 5 takes %g and 4 this",
                    what, theta, spec->rope_theta);
        }
        return read_partial(&r);
    }
    spec->rope_theta = theta;
    return read_object(&r);
}

/* ---- Writing ---- */

static void put(json_t *rope, const char *key, double value) {
    (void)json_object_set_new(rope, key, json_real(value));
}

static void put_factors(json_t *rope, const char *key, const float *factors, int64_t n) {
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) {
        (void)json_array_append_new(list, lt_config_float(factors[i]));
    }
    (void)json_object_set_new(rope, key, list);
}

static json_t *rope_object(const lt_model_spec *s, double theta, lt_rope_scaling scaling) {
    json_t *rope = json_object();
    (void)json_object_set_new(rope, "rope_type", json_string(type_names[scaling]));
    put(rope, "rope_theta", theta);
    if (lt_rope_dim(s) != s->head_dim || phi3(s)) {
        put(rope, "partial_rotary_factor", (double)lt_rope_dim(s) / (double)s->head_dim);
    }
    if (scaling != LT_ROPE_PLAIN) {
        put(rope, "factor", s->rope_factor);
    }
    if (scaling == LT_ROPE_LLAMA3) {
        put(rope, "low_freq_factor", s->rope_low_freq);
        put(rope, "high_freq_factor", s->rope_high_freq);
    }
    if (scaling == LT_ROPE_YARN) {
        put(rope, "beta_fast", s->rope_beta_fast);
        put(rope, "beta_slow", s->rope_beta_slow);
        (void)json_object_set_new(rope, "truncate", json_boolean(s->rope_truncate));
    }
    if (scaling == LT_ROPE_LONGROPE) {
        put_factors(rope, "short_factor", s->rope_short, lt_rope_columns(s));
        put_factors(rope, "long_factor", s->rope_long, lt_rope_columns(s));
    }
    if (scaling == LT_ROPE_YARN || scaling == LT_ROPE_LONGROPE) {
        put(rope, "attention_factor", s->rope_attention_factor);
    }
    if (scaling == LT_ROPE_YARN || scaling == LT_ROPE_LONGROPE || scaling == LT_ROPE_LLAMA3) {
        (void)json_object_set_new(rope, "original_max_position_embeddings",
                                  json_integer((json_int_t)s->rope_original_seq));
    }
    return rope;
}

void lt_config_write_rope(const lt_model_spec *spec, json_t *config) {
    json_t *rope = rope_object(spec, spec->rope_theta, spec->rope_scaling);
    if (spec->rope_theta_local != 0) {
        rope = json_pack("{s:o, s:o}", "full_attention", rope, "sliding_attention",
                         rope_object(spec, spec->rope_theta_local, LT_ROPE_PLAIN));
    }
    (void)json_object_set_new(config, "rope_parameters", rope);
    if (phi3(spec)) { /* It reads no other. */
        (void)json_object_set_new(config, "original_max_position_embeddings",
                                  json_integer(spec->rope_scaling == LT_ROPE_LONGROPE
                                                   ? (json_int_t)spec->rope_original_seq
                                                   : (json_int_t)spec->max_seq));
    }
}

const char *lt_config_rope_lost(const lt_model_spec *a, const lt_model_spec *b) {
    const int64_t n = a->rope_scaling == LT_ROPE_LONGROPE ? lt_rope_columns(a) : 0;
    if (a->pos != LT_POS_ROPE) {
        return NULL;
    }
#define SAME(name)                                                                                 \
    do {                                                                                           \
        if (a->name != b->name) {                                                                  \
            return #name;                                                                          \
        }                                                                                          \
    } while (0)
    SAME(rope_theta);
    SAME(rope_theta_local);
    SAME(rope_scaling);
    if (lt_rope_dim(a) != lt_rope_dim(b)) {
        return "rope_dim";
    }
    if (a->rope_scaling != LT_ROPE_PLAIN) {
        SAME(rope_factor);
        SAME(rope_low_freq);
        SAME(rope_high_freq);
        SAME(rope_original_seq);
        SAME(rope_attention_factor);
    }
    if (a->rope_scaling == LT_ROPE_YARN) {
        SAME(rope_beta_fast);
        SAME(rope_beta_slow);
        SAME(rope_truncate);
    }
#undef SAME
    return memcmp(a->rope_short, b->rope_short, (size_t)n * sizeof *a->rope_short) != 0 ||
                   memcmp(a->rope_long, b->rope_long, (size_t)n * sizeof *a->rope_long) != 0
               ? "rope_factors"
               : NULL;
}
