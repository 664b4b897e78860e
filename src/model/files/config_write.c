/* config_write.c: lt_model_spec -> config.json, as transformers 5 writes it.
 *
 * At the end it reads back what it wrote: a spec that its family's config.json cannot express (e.g.
 * a window in a Llama) is refused rather than changed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "model/family.h"
#include "tensor/ops.h"

static const char *const act_texts[] = {
#define ACT_TEXT(name, text) text,
    LT_ACT_MAP(ACT_TEXT)
#undef ACT_TEXT
};

/* The shortest decimal that reads back as the same float: 1e-05, not 9.99999975e-06. */
json_t *lt_config_float(float x) {
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, (double)x);
        if (strtof(text, NULL) == x) {
            break;
        }
    }
    return json_real(strtod(text, NULL));
}

json_t *lt_config_ends_json(const lt_ends *e) {
    json_t *list;
    if (e->n <= 1) {
        return e->n == 0 ? json_null() : json_integer(e->ids[0]);
    }
    list = json_array();
    for (int i = 0; i < e->n; i++) {
        (void)json_array_append_new(list, json_integer(e->ids[i]));
    }
    return list;
}

static json_t *key_value(const lt_model_spec *spec, const lt_config_key *row) {
    const void *field = (const char *)spec + row->offset;
    switch (row->type) {
    case LT_KEY_I64:
        return json_integer(*(const int64_t *)field);
    case LT_KEY_BOOL:
        return json_boolean(*(const bool *)field);
    case LT_KEY_F32:
        return lt_config_float(*(const float *)field);
    case LT_KEY_FACTOR:
        return lt_config_float(*(const float *)field > 0 ? *(const float *)field : 1.0f);
    case LT_KEY_F64:
        return json_real(*(const double *)field);
    case LT_KEY_ID:
        return *(const int64_t *)field < 0 ? json_null() : json_integer(*(const int64_t *)field);
    case LT_KEY_IDS:
        return lt_config_ends_json(field);
    case LT_KEY_ACT: {
        const lt_act_kind act = (lt_act_kind) * (const int *)field;
        if (act == LT_ACT_GELU_TANH && lt_family_get(spec->family)->gelu_new) {
            return json_string("gelu_new");
        }
        return json_string(act_texts[act]);
    }
    case LT_KEY_CAP: /* transformers divides by what is not null. */
        return *(const float *)field > 0 ? lt_config_float(*(const float *)field) : json_null();
    case LT_KEY_INV_SQRT: {
        const double x = *(const float *)field > 0 ? (double)*(const float *)field
                                                   : 1 / sqrt((double)spec->head_dim);
        return json_integer((json_int_t)llround(1 / (x * x)));
    }
    case LT_KEY_SCALED:
        return lt_model_layer(spec, 0).attn_scale == 1.0f ? json_false() : NULL;
    }
    return NULL;
}

static void write_window(const lt_model_spec *spec, lt_window_keys keys, json_t *config) {
    json_t *types;
    if (keys == LT_WINDOW_NONE) {
        return;
    }
    /* For these families transformers makes the mask of sliding layers even if no layer slides, and
     * needs a number for it: its own default, if the spec has none. */
    if (spec->window > 0 || keys != LT_WINDOW_PATTERN) {
        (void)json_object_set_new(config, "sliding_window",
                                  spec->window > 0 ? json_integer(spec->window) : json_null());
    }
    if (keys == LT_WINDOW_SWITCHED) {
        (void)json_object_set_new(config, "use_sliding_window", json_boolean(spec->window > 0));
    }
    if (keys == LT_WINDOW_ALL || keys == LT_WINDOW_SWITCHED) {
        return;
    }
    if (keys == LT_WINDOW_OPTIONAL) {
        (void)json_object_set_new(config, "use_sliding_window", json_boolean(spec->window > 0));
        (void)json_object_set_new(config, "max_window_layers",
                                  json_integer(spec->window > 0 ? 0 : spec->n_layers));
    }
    types = json_array();
    for (int64_t layer = 0; layer < spec->n_layers; layer++) {
        (void)json_array_append_new(types, json_string(lt_model_layer(spec, layer).window > 0
                                                           ? "sliding_attention"
                                                           : "full_attention"));
    }
    (void)json_object_set_new(config, "layer_types", types);
}

static void write_dense(const lt_model_spec *spec, json_t *config) {
    json_t *list = json_array();
    for (int64_t i = 0; i < spec->n_layers; i++) {
        if (spec->n_experts > 0 && lt_model_layer(spec, i).n_experts == 0) {
            (void)json_array_append_new(list, json_integer(i));
        }
    }
    (void)json_object_set_new(config, "mlp_only_layers", list);
    (void)json_object_set_new(config, "decoder_sparse_step", json_integer(1));
    if (spec->dense_ffn_width > 0) {
        (void)json_object_set_new(config, "intermediate_size", json_integer(spec->dense_ffn_width));
    }
}

/* GemmaForCausalLM becomes GemmaForSequenceClassification, unless the family's row has another
 * beginning of the name. transformers does not have such a class for every family. */
static void write_scores(const lt_model_spec *spec, json_t *config) {
    const lt_family_row *row = lt_family_get(spec->family);
    const char *const start = row->score_start != NULL ? row->score_start : row->architecture;
    const char *const ending = strstr(start, "ForCausalLM") != NULL ? strstr(start, "ForCausalLM")
                                                                    : strstr(start, "LMHeadModel");
    const int n = ending != NULL ? (int)(ending - start) : (int)strlen(start);
    json_t *names = json_object(), *ids = json_object();
    for (int64_t i = 0; i < spec->n_scores; i++) {
        char id[24], label[32];
        (void)snprintf(id, sizeof id, "%lld", (long long)i);
        (void)snprintf(label, sizeof label, "LABEL_%lld", (long long)i);
        (void)json_object_set_new(names, id, json_string(label));
        (void)json_object_set_new(ids, label, json_integer(i));
    }
    char architecture[96];
    (void)snprintf(architecture, sizeof architecture, "%.*s%s", n, start,
                   spec->token_scores ? LT_TOKEN_SCORE_ARCHITECTURE : LT_SCORE_ARCHITECTURE);
    (void)json_object_set_new(config, "architectures", json_pack("[s]", architecture));
    (void)json_object_set_new(config, "id2label", names);
    (void)json_object_set_new(config, "label2id", ids);
    if (spec->token_scores && !spec->score_bias) {
        (void)json_object_set_new(config, "token_classification_bias", json_false());
    }
    if (spec->step_separator[0] != '\0') {
        (void)json_object_set_new(config, "step_separator", json_string(spec->step_separator));
    }
}

static void write_config(const lt_model_spec *spec, lt_dtype dtype, json_t *config) {
    const lt_family_row *row = lt_family_get(spec->family);
    const char *type = dtype == LT_BF16 ? "bfloat16" : dtype == LT_F16 ? "float16" : "float32";
    (void)json_object_set_new(config, "architectures", json_pack("[s]", row->architecture));
    (void)json_object_set_new(config, "model_type", json_string(row->model_type));
    (void)json_object_set_new(config, "dtype", json_string(type));
    for (int i = 0; i < row->n_keys; i++) {
        (void)json_object_set_new(config, row->keys[i].key, key_value(spec, &row->keys[i]));
    }
    if (spec->pos == LT_POS_ROPE) {
        lt_config_write_rope(spec, config);
    }
    write_window(spec, row->window_keys, config);
    if (row->dense_keys) {
        write_dense(spec, config);
    }
    if (row->no_rope_keys) {
        json_t *rotates = json_array();
        for (int64_t i = 0; i < spec->n_layers; i++) {
            (void)json_array_append_new(
                rotates, json_integer(lt_model_layer(spec, i).rope != LT_LAYER_ROPE_NONE));
        }
        (void)json_object_set_new(config, "no_rope_layers", rotates);
    }
    if (spec->n_scores > 0) {
        write_scores(spec, config);
    }
    (void)json_object_set_new(config, "use_cache", json_true());
}

/* Fields that must be equal after writing and reading. */
/* clang-format off */
#define SAME_FIELDS(X)                                                                             \
    X(n_layers) X(width) X(n_heads) X(n_kv_heads) X(head_dim) X(ffn_width)                         \
    X(vocab_size) X(n_scores) X(token_scores) X(score_bias) X(max_seq) X(norm) X(norm_eps)         \
    X(score_ends)                                                                                  \
    X(norm_gain_offset) X(post_norms)                                                              \
    X(qk_norm) X(act) X(gated) X(qkv_bias) X(attn_out_bias) X(mlp_bias)                            \
    X(tied) X(embed_scale) X(attn_softcap) X(final_softcap) X(pos) X(window)                       \
    X(window_every) X(n_experts) X(top_k) X(moe_normalise) X(moe_capacity) X(no_pre_norms)         \
    X(qk_norm_whole) X(residual_scale) X(logit_divisor) X(sinks) X(router_bias)    \
    X(swiglu_alpha) X(swiglu_limit)
/* clang-format on */

static const char *lost_field(const lt_model_spec *a, const lt_model_spec *b) {
#define SAME_FIELD(name)                                                                           \
    if (a->name != b->name) {                                                                      \
        return #name;                                                                              \
    }
    SAME_FIELDS(SAME_FIELD)
#undef SAME_FIELD
    if (lt_config_rope_lost(a, b) != NULL) {
        return lt_config_rope_lost(a, b);
    }
    for (int64_t i = 0; i < a->n_layers; i++) {
        if (a->no_rope[i] != b->no_rope[i]) {
            return "no_rope";
        }
        if (lt_model_layer(a, i).window != lt_model_layer(b, i).window) {
            return "window";
        }
        if (lt_model_layer(a, i).n_experts != lt_model_layer(b, i).n_experts ||
            lt_model_layer(a, i).ffn_width != lt_model_layer(b, i).ffn_width) {
            return "layers without experts";
        }
        if (lt_model_layer(a, i).attn_scale != lt_model_layer(b, i).attn_scale) {
            return "attn_scale";
        }
    }
    return NULL;
}

/* config.json of a spec that it can say; `what` leads the message. */
static lt_err make_config(json_t **out, const lt_model_spec *spec, lt_dtype dtype,
                          const char *what) {
    lt_err err = LT_OK;
    json_t *config = NULL;
    const char *lost;
    lt_model_spec back;

    LT_TRY(lt_model_spec_check(spec));
    config = json_object();
    if (config == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s", what);
    }
    write_config(spec, dtype, config);
    LT_TRY_DONE(lt_config_read(&back, config, what));
    lost = lost_field(spec, &back);
    if (lost != NULL) {
        LT_FAIL_DONE(LT_ERR_UNSUPPORTED,
                     "%s: config.json of family %s cannot express this model's %s", what,
                     lt_family_name(spec->family), lost);
    }
    *out = config;
    config = NULL;
done:
    json_decref(config);
    return err;
}

lt_err lt_model_spec_writable(const lt_model_spec *spec) {
    json_t *config = NULL;
    LT_TRY(make_config(&config, spec, LT_F32, "this model cannot be saved"));
    json_decref(config);
    return LT_OK;
}

lt_err lt_model_spec_write(const lt_model_spec *spec, lt_dtype dtype, const char *config_path) {
    if (spec->score_ends > 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: a score head of two layers is read, and never written",
                config_path);
    }
    lt_err err = LT_OK;
    json_t *config = NULL;
    char *text = NULL;

    LT_TRY_DONE(make_config(&config, spec, dtype, config_path));
    text = json_dumps(config, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    if (text == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s", config_path);
    }
    LT_TRY_DONE(lt_file_write_atomic(config_path, text, strlen(text)));
done:
    free(text);
    json_decref(config);
    return err;
}
