/* generation.c: see generation.h. */
#include "model/infer/generation.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "lateen/generate.h"
#include "model/family.h"
#include "model/files/source.h"

#define FILE_NAME  "generation_config.json"
#define GGUF_TEXT  "lateen.generation_config"
#define FILE_BYTES ((size_t)1 << 20)

/* A field of generation_config.json: its name in Lateen's options and requests (NULL: kept but not
 * applied) and in GGUF (NULL: none). */
static const struct {
    const char *key, *name, *gguf;
    bool whole;
    double min, max;
} fields[] = {
    {"temperature", "temperature", "general.sampling.temp", false, 0, 100},
    {"top_k", "top_k", "general.sampling.top_k", true, -1, 1e9},
    {"top_p", "top_p", "general.sampling.top_p", false, 0, 1},
    {"min_p", "min_p", "general.sampling.min_p", false, 0, 1},
    {"typical_p", "typical_p", NULL, false, 0, 1},
    {"repetition_penalty", "repetition_penalty", "general.sampling.penalty_repeat", false, 1e-3,
     100},
    {"max_new_tokens", "max_tokens", NULL, true, 1, 1e9},
    {"sampling_sequence", NULL, "general.sampling.sequence", false, 0, 0},
    {"penalty_last_n", NULL, "general.sampling.penalty_last_n", true, 0, 0},
    {"xtc_probability", NULL, "general.sampling.xtc_probability", false, 0, 0},
    {"xtc_threshold", NULL, "general.sampling.xtc_threshold", false, 0, 0},
    {"mirostat", NULL, "general.sampling.mirostat", true, 0, 0},
    {"mirostat_tau", NULL, "general.sampling.mirostat_tau", false, 0, 0},
    {"mirostat_eta", NULL, "general.sampling.mirostat_eta", false, 0, 0},
};
#define N_FIELDS (sizeof fields / sizeof *fields)

/* Fields that would change a text and are not supported, unless they have their neutral value. */
static const struct {
    const char *key;
    double neutral;
} passed_over[] = {{"num_beams", 1},
                   {"num_beam_groups", 1},
                   {"no_repeat_ngram_size", 0},
                   {"encoder_repetition_penalty", 1},
                   {"diversity_penalty", 0},
                   {"guidance_scale", 1},
                   {"epsilon_cutoff", 0},
                   {"eta_cutoff", 0},
                   {"penalty_alpha", 0},
                   {"min_new_tokens", 0},
                   {"min_length", 0},
                   {"suppress_tokens", 0},
                   {"begin_suppress_tokens", 0},
                   {"forced_bos_token_id", 0},
                   {"forced_eos_token_id", 0},
                   {"bad_words_ids", 0},
                   {"sequence_bias", 0},
                   {"stop_strings", 0},
                   {"xtc_probability", 0},
                   {"mirostat", 0}};

/* ---- Ends ---- */

bool lt_ends_has(const lt_ends *e, int64_t id) {
    for (int i = 0; i < e->n; i++) {
        if (e->ids[i] == id) {
            return true;
        }
    }
    return false;
}

bool lt_ends_add(lt_ends *e, int64_t id) {
    if (id < 0 || id > INT32_MAX || lt_ends_has(e, id)) {
        return true;
    }
    if (e->n == LT_MAX_ENDS) {
        return false;
    }
    e->ids[e->n++] = (int32_t)id;
    return true;
}

/* Add ids that the vocabulary has: a family's default may lie outside. */
static void add_within(lt_ends *e, int64_t id, int64_t vocab_size) {
    if (id < vocab_size) {
        (void)lt_ends_add(e, id);
    }
}

void lt_model_ends(const lt_model *m, const lt_tokenizer *t, lt_ends *out) {
    const lt_ends *own = m->generation_ends.n > 0 ? &m->generation_ends : &m->spec.eos;
    out->n = 0;
    for (int i = 0; i < own->n; i++) {
        add_within(out, own->ids[i], m->spec.vocab_size);
    }
    if (t != NULL) {
        const lt_tokenizer_info info = lt_tokenizer_describe(t);
        for (size_t i = 0; i < info.n_ends; i++) {
            add_within(out, info.ends[i], m->spec.vocab_size);
        }
    }
}

/* ---- Reading ---- */

/* The tree is the model's from now on; its ids count unless they are no ids. */
static void take_tree(lt_model *m, json_t *tree, const char *what) {
    m->generation = tree;
    if (lt_config_ends(&m->generation_ends, tree, "eos_token_id", what) != LT_OK) {
        lt_log_warn("%s: it is left out, and config.json's ids end a text", lt_error_message());
    }
    for (int i = 0; i < m->generation_ends.n; i++) {
        if (m->generation_ends.ids[i] >= m->spec.vocab_size) {
            lt_log_warn("%s: 'eos_token_id': token %d is not in the vocabulary of %lld", what,
                        m->generation_ends.ids[i], (long long)m->spec.vocab_size);
        }
    }
}

static lt_err keep_path(lt_model *m, const char *path) {
    m->generation_from = strdup(path);
    return m->generation_from != NULL ? LT_OK : lt_error_set(LT_ERR_OOM, "%s", path);
}

lt_err lt_generation_read(lt_model *m, const char *folder) {
    char path[LT_PATH_BYTES];
    json_t *tree = NULL;

    LT_TRY(lt_path_join(path, folder, FILE_NAME));
    if (!lt_file_has_name(path)) {
        return LT_OK;
    }
    LT_TRY(keep_path(m, path));
    if (lt_json_load(&tree, path, FILE_BYTES) != LT_OK) {
        lt_log_warn("%s: it is left out: config.json's ids end a text", lt_error_message());
        return LT_OK;
    }
    if (!json_is_object(tree)) {
        lt_log_warn("%s is not an object: it is left out", path);
        json_decref(tree);
        return LT_OK;
    }
    take_tree(m, tree, path);
    return LT_OK;
}

static json_t *gguf_value(const lt_gguf *g, const char *key) {
    const lt_gguf_kv *kv = lt_gguf_find(g, key);
    lt_gguf_str text;
    int64_t whole;
    double real;
    if (kv == NULL) {
        return NULL;
    }
    if (lt_gguf_get_str(g, key, &text) == LT_OK) {
        return json_stringn(text.data, text.bytes);
    }
    if (kv->type != LT_GGUF_F32 && kv->type != LT_GGUF_F64 &&
        lt_gguf_get_i64(g, key, &whole) == LT_OK) {
        return json_integer(whole);
    }
    return lt_gguf_get_f64(g, key, &real) == LT_OK ? lt_config_float((float)real) : NULL;
}

lt_err lt_generation_read_gguf(lt_model *m, const lt_gguf *g) {
    json_t *tree = NULL;
    lt_gguf_str text;

    if (lt_gguf_get_str(g, GGUF_TEXT, &text) == LT_OK &&
        lt_json_parse(&tree, text.data, text.bytes, GGUF_TEXT) != LT_OK) {
        lt_log_warn("%s: %s: it is left out", g->name, lt_error_message());
    }
    if (tree != NULL && !json_is_object(tree)) {
        json_decref(tree);
        tree = NULL;
    }
    for (size_t i = 0; i < N_FIELDS; i++) {
        json_t *value = fields[i].gguf != NULL ? gguf_value(g, fields[i].gguf) : NULL;
        if (value != NULL) {
            tree = tree != NULL ? tree : json_object();
            json_object_set_new(tree, fields[i].key, value);
        }
    }
    if (tree != NULL) {
        LT_TRY(keep_path(m, g->name));
        take_tree(m, tree, m->generation_from);
    }
    return LT_OK;
}

lt_err lt_generation_copy(lt_model *m, const lt_model *from) {
    if (from->generation == NULL) {
        return LT_OK;
    }
    LT_ASSERT(m->generation == NULL && m->generation_from == NULL);
    m->generation_from = strdup(from->generation_from);
    if (m->generation_from == NULL) {
        LT_FAIL(LT_ERR_OOM, "generation_config.json");
    }
    m->generation = json_incref(from->generation);
    m->generation_ends = from->generation_ends;
    return LT_OK;
}

void lt_generation_close(lt_model *m) {
    json_decref(m->generation);
    free(m->generation_from);
}

/* ---- Defaults ---- */

static void refuse_value(const lt_model *m, size_t field, const json_t *value) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    lt_log_warn("%s: '%s' is %.60s; it must be a %snumber from %g to %g: it is left out",
                m->generation_from, fields[field].key, text != NULL ? text : "?",
                fields[field].whole ? "whole " : "", fields[field].min, fields[field].max);
    free(text);
}

static bool is_neutral(const json_t *v, double neutral) {
    return v == NULL || json_is_null(v) || json_is_false(v) ||
           (json_is_number(v) && json_number_value(v) == neutral) ||
           (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

static void tell_passed_over(const lt_model *m) {
    char names[512] = "";
    for (size_t i = 0; i < sizeof passed_over / sizeof *passed_over; i++) {
        const size_t used = strlen(names);
        if (!is_neutral(json_object_get(m->generation, passed_over[i].key),
                        passed_over[i].neutral)) {
            (void)snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "",
                           passed_over[i].key);
        }
    }
    if (names[0] != '\0') {
        lt_log_warn("%s: not applied here: %s", m->generation_from, names);
    }
}

static void set_default(lt_generation_defaults *d, const char *name, double value) {
    for (int i = 0; i < d->n; i++) {
        if (strcmp(d->rows[i].name, name) == 0) {
            d->rows[i].value = value;
            return;
        }
    }
    LT_ASSERT(d->n < LT_MAX_GENERATION_DEFAULTS);
    d->rows[d->n].name = name;
    d->rows[d->n++].value = value;
}

lt_generation_defaults lt_model_generation(const lt_model *m) {
    lt_generation_defaults d = {.from = m->generation_from != NULL ? m->generation_from : ""};
    const json_t *draws = json_object_get(m->generation, "do_sample");

    if (m->generation == NULL) {
        return d;
    }
    if (json_is_true(draws)) {
        set_default(&d, "temperature", 1); /* transformers' own, if the file names no other. */
    }
    for (size_t i = 0; i < N_FIELDS; i++) {
        const json_t *value = json_object_get(m->generation, fields[i].key);
        const double x = json_number_value(value);
        if (fields[i].name == NULL || value == NULL || json_is_null(value)) {
            continue;
        }
        if (!json_is_number(value) || (fields[i].whole && x != floor(x)) ||
            !(x >= fields[i].min && x <= fields[i].max)) {
            refuse_value(m, i, value);
            continue;
        }
        set_default(&d, fields[i].name, fields[i].whole && x < 0 ? 0 : x);
    }
    if (json_is_false(draws)) { /* transformers is then greedy, whatever else the file says. */
        set_default(&d, "temperature", 0);
    }
    tell_passed_over(m);
    return d;
}

/* ---- Writing ---- */

static json_t *copy_tree(const lt_model *m) {
    return m->generation != NULL ? json_deep_copy(m->generation) : json_object();
}

static void fill_id(json_t *tree, const char *key, json_t *value) {
    if (json_object_get(tree, key) != NULL || json_is_null(value)) {
        json_decref(value);
        return;
    }
    json_object_set_new(tree, key, value);
}

static json_t *id_json(int64_t id) {
    return id >= 0 ? json_integer(id) : json_null();
}

lt_err lt_generation_write(const lt_model *m, const char *folder) {
    lt_err err;
    char path[LT_PATH_BYTES], *text;
    json_t *tree = copy_tree(m);

    fill_id(tree, "bos_token_id", id_json(m->spec.bos_id));
    fill_id(tree, "eos_token_id", lt_config_ends_json(&m->spec.eos));
    fill_id(tree, "pad_token_id", id_json(m->spec.pad_id));
    text = json_dumps(tree, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_decref(tree);
    LT_TRY(lt_path_join(path, folder, FILE_NAME));
    err = text == NULL ? lt_error_set(LT_ERR_OOM, "%s", path)
                       : lt_file_write_atomic(path, text, strlen(text));
    free(text);
    return err;
}

lt_err lt_generation_put_gguf(const lt_model *m, lt_gguf_out *o) {
    char *text;
    lt_gguf_out_array(o, LT_GGUF_ENDS, LT_GGUF_I32, m->spec.eos.ids, (uint64_t)m->spec.eos.n);
    if (m->generation == NULL) {
        return LT_OK;
    }
    for (size_t i = 0; i < N_FIELDS; i++) {
        const json_t *value = json_object_get(m->generation, fields[i].key);
        if (fields[i].gguf == NULL || value == NULL) {
            continue;
        }
        if (json_is_string(value)) {
            lt_gguf_out_str(o, fields[i].gguf, json_string_value(value));
        } else if (json_is_number(value) && fields[i].whole) {
            lt_gguf_out_i32(o, fields[i].gguf, (int64_t)json_number_value(value));
        } else if (json_is_number(value)) {
            lt_gguf_out_f32(o, fields[i].gguf, json_number_value(value));
        }
    }
    text = json_dumps(m->generation, JSON_COMPACT | JSON_REAL_PRECISION(15));
    if (text == NULL) {
        LT_FAIL(LT_ERR_OOM, "generation_config.json as text");
    }
    lt_gguf_out_str(o, GGUF_TEXT, text);
    free(text);
    return LT_OK;
}
