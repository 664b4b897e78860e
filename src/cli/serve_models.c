/* serve_models.c: see serve_models.h. */
#include "cli/serve_models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/yaml.h"

#define LT_OPTION_STRUCT lt_serve_model_options
static const lt_option option_rows[] = {SERVE_MODEL_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("a model of --models", option_rows);

/* The row of that name, which is added if it does not exist. */
static lt_err find_or_add(lt_serve_models *m, lt_serve_model **out, const char *name, size_t n,
                          const lt_serve_model_options *defaults, const char *origin) {
    lt_serve_model *rows;
    if (n == 0 || n >= sizeof rows->name || memchr(name, ',', n) != NULL) {
        LT_FAIL(LT_ERR_ARG, "%s: '%.*s' is not a name of a model: 1 to %zu bytes without a comma",
                origin, (int)(n < 80 ? n : 80), name, sizeof rows->name - 1);
    }
    for (size_t i = 0; i < m->n; i++) {
        if (strlen(m->rows[i].name) == n && memcmp(m->rows[i].name, name, n) == 0) {
            *out = &m->rows[i];
            return LT_OK;
        }
    }
    rows = realloc(m->rows, (m->n + 1) * sizeof *rows);
    if (rows == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: %zu models", origin, m->n + 1);
    }
    m->rows = rows;
    *out = &rows[m->n++];
    **out = (lt_serve_model){.o = *defaults};
    memcpy((*out)->name, name, n);
    return LT_OK;
}

/* NAME.OPTION: options have no dots, but names may. */
static lt_err read_entry(lt_serve_models *m, const lt_yaml_entry *e, const char *path,
                         const lt_serve_model_options *defaults) {
    const char *dot = strrchr(e->key, '.');
    char origin[LT_OPTION_STR_BYTES];
    lt_serve_model *row = NULL;

    snprintf(origin, sizeof origin, "%s:%d", path, e->line);
    if (dot == NULL) {
        LT_FAIL(LT_ERR_ARG, "%s: %s must be a mapping with the model's path", origin, e->key);
    }
    LT_TRY(find_or_add(m, &row, e->key, (size_t)(dot - e->key), defaults, origin));
    snprintf(origin, sizeof origin, "%s:%d: %s", path, e->line, row->name);
    return lt_options_set_yaml(&table, &row->o, dot + 1, e, origin);
}

static lt_err read_file(lt_serve_models *m, const char *path,
                        const lt_serve_model_options *defaults) {
    lt_err err = LT_OK;
    lt_yaml_entry *entries = NULL;
    size_t n = 0;

    LT_TRY_DONE(lt_yaml_load(&entries, &n, path));
    for (size_t i = 0; i < n; i++) {
        LT_TRY_DONE(read_entry(m, &entries[i], path, defaults));
    }
    for (size_t i = 0; i < m->n; i++) {
        if (m->rows[i].o.path[0] == '\0') {
            LT_FAIL_DONE(LT_ERR_ARG, "%s: the model %s has no path", path, m->rows[i].name);
        }
    }
    if (m->n == 0) {
        LT_FAIL_DONE(LT_ERR_ARG, "%s names no model", path);
    }
done:
    lt_yaml_free(entries, n);
    return err;
}

static lt_err read_list(lt_serve_models *m, const char *text,
                        const lt_serve_model_options *defaults) {
    while (*text != '\0') {
        const size_t n = strcspn(text, ","), name_n = strcspn(text, "=,");
        const size_t before = m->n;
        char path[LT_OPTION_STR_BYTES];
        lt_serve_model *row = NULL;

        if (name_n == n || name_n + 1 == n) {
            LT_FAIL(LT_ERR_ARG, "--models: '%.*s' is neither NAME=PATH nor a file that exists",
                    (int)n, text);
        }
        LT_TRY(find_or_add(m, &row, text, name_n, defaults, "--models"));
        if (m->n == before) {
            LT_FAIL(LT_ERR_ARG, "--models names '%s' twice", row->name);
        }
        snprintf(path, sizeof path, "%.*s", (int)(n - name_n - 1), text + name_n + 1);
        LT_TRY(lt_options_set(&table, &row->o, "path", path, "--models"));
        text += n + (text[n] == ',');
    }
    return LT_OK;
}

lt_err lt_serve_models_read(lt_serve_models *out, const char *text,
                            const lt_serve_model_options *defaults) {
    lt_err err = LT_OK;
    lt_serve_models m = {NULL, 0};
    const bool file = lt_path_has_suffix(text, ".yaml") || lt_path_has_suffix(text, ".yml") ||
                      lt_file_exists(text);
    LT_TRY_DONE(file ? read_file(&m, text, defaults) : read_list(&m, text, defaults));
    *out = m;
    m = (lt_serve_models){NULL, 0};
done:
    lt_serve_models_free(&m);
    return err;
}

void lt_serve_models_free(lt_serve_models *m) {
    free(m->rows);
    *m = (lt_serve_models){NULL, 0};
}

lt_err lt_serve_model_row(lt_serve_model *row, const lt_engine_options *engine,
                          lt_server_model *out) {
    const lt_serve_model_options *o = &row->o;
    lt_server_model m = {.name = row->name,
                         .aliases = o->alias,
                         .model = o->path,
                         .template = o->chat_template[0] != '\0' ? o->chat_template : NULL,
                         .engine = *engine,
                         .think_budget = (int)o->think_budget,
                         .idle_s = o->idle_s > 0 ? o->idle_s : -1,
                         .preload = o->preload,
                         .load = lt_served_load,
                         .unload = lt_served_unload,
                         .ctx = &row->served};
    row->served = (lt_served){.model = o->path,
                              .lora = "",
                              .tokenizer = o->tokenizer,
                              .steer = "",
                              .reward = "",
                              .reward_tokenizer = "",
                              .device = o->device,
                              .dtype = (lt_opened_dtype)o->dtype,
                              .threads = o->threads};
    m.engine.n_beside = 0; /* --second only applies to MODEL. */
    m.engine.max_running = o->max_running;
    m.engine.max_seq = o->context;
    m.engine.cache_bytes = o->cache_bytes;
    m.engine.cache_dtype = LT_OPENED_CACHE_PART(o->cache_k, o->cache_dtype);
    m.engine.value_dtype = LT_OPENED_CACHE_PART(o->cache_v, o->cache_dtype);
    m.engine.speculate = o->draft[0] != '\0'                       ? LT_SPECULATE_MODEL
                         : engine->speculate != LT_SPECULATE_NGRAM ? LT_SPECULATE_NONE
                                                                   : LT_SPECULATE_NGRAM;
    m.engine.draft_tokens = m.engine.speculate != LT_SPECULATE_NONE ? engine->draft_tokens : 0;
    m.engine.draft_branches = m.engine.speculate != LT_SPECULATE_NONE ? engine->draft_branches : 0;
    *out = m;
    return lt_served_draft(&row->served, &out->engine, o->draft);
}
