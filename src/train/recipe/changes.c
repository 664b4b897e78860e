/* changes.c: compares the effective recipe with that of the checkpoint from which a run resumes
 * (changes.h). */
#include "train/recipe/changes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/yaml.h"
#include "train/checkpoint/checkpoint.h"

/* ---- Recipes as JSON ---- */

static bool named(const char *const *names, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

json_t *lt_recipe_json(const lt_recipe *r) {
    char text[LT_OPTION_STR_BYTES];
    json_t *all = json_object();
    for (size_t i = 0; i < lt_recipe_table.n_rows; i++) {
        const lt_option *row = &lt_recipe_table.rows[i];
        if ((row->flags & LT_RECIPE_ONCE) == 0) {
            lt_option_text(row, r, text, sizeof text);
            json_object_set_new(all, row->name, json_string(text));
        }
    }
    return all;
}

/* Read recipe.yaml of an older run as such an object. Unknown keys belong to options that no longer
 * exist. */
static lt_err recipe_from_yaml(json_t **out, const char *path) {
    lt_yaml_entry *entries = NULL;
    size_t n = 0;
    LT_TRY(lt_yaml_load(&entries, &n, path));
    *out = json_object();
    for (size_t i = 0; i < n; i++) {
        const lt_option *row = lt_option_find(&lt_recipe_table, entries[i].key);
        if (row != NULL) {
            json_object_set_new(*out, row->name, json_string(entries[i].value));
        }
    }
    lt_yaml_free(entries, n);
    return LT_OK;
}

/* The recipe that wrote a checkpoint; *resolved false: with the values as given. NULL: not
 * known. */
lt_err lt_changes_recipe_of(json_t **out, json_t **data, bool *resolved, const char *checkpoint) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    json_t *manifest = NULL;

    *out = *data = NULL;
    *resolved = true;
    LT_TRY(lt_path_join(path, checkpoint, LT_MANIFEST));
    LT_TRY(lt_json_load(&manifest, path, LT_MANIFEST_BYTES_MAX));
    *out = json_incref(json_object_get(manifest, "recipe"));
    *data = json_incref(json_object_get(manifest, "data"));
    LT_TRY_DONE(lt_path_join(path, checkpoint, "../../recipe.yaml"));
    if (*out == NULL && lt_file_exists(path)) {
        *resolved = false;
        if (recipe_from_yaml(out, path) != LT_OK) {
            err = lt_error_prefix(LT_ERR_STATE, "the recipe of %s cannot be read", checkpoint);
            goto done;
        }
    }
done:
    json_decref(manifest);
    return err;
}

/* ---- Comparison ---- */

/* Whether the list "a,b" has the name; '-' and '_' are equal, as in flags. */
bool lt_changes_allowed(const char *list, const lt_option *row) {
    char copy[LT_OPTION_STR_BYTES], *next = NULL;
    snprintf(copy, sizeof copy, "%s", list);
    for (char *w = strtok_r(copy, ", ", &next); w != NULL; w = strtok_r(NULL, ", ", &next)) {
        if (lt_option_find(&lt_recipe_table, w) == row) {
            return true;
        }
    }
    return false;
}

lt_err lt_changes_check_allowed(const char *list) {
    char copy[LT_OPTION_STR_BYTES], *next = NULL;
    const lt_option *row;
    snprintf(copy, sizeof copy, "%s", list);
    for (char *w = strtok_r(copy, ", ", &next); w != NULL; w = strtok_r(NULL, ", ", &next)) {
        LT_TRY(lt_option_need(&row, &lt_recipe_table, w, "allow_change"));
    }
    return LT_OK;
}

/* Whether two mixtures have the same number of sources and the same shares. Paths may differ,
 * because contents are compared. */
static bool same_weights(const char *a, const char *b) {
    lt_mixture *x = calloc(2, sizeof *x);
    bool same = x != NULL && lt_mixture_parse(&x[0], a, "data") == LT_OK &&
                lt_mixture_parse(&x[1], b, "data") == LT_OK && x[0].n_sources == x[1].n_sources;
    for (int64_t i = 0; same && i < x[0].n_sources; i++) {
        same = x[0].sources[i].weight == x[1].sources[i].weight;
    }
    free(x);
    return same;
}

/* Whether it is data that is compared by content later, so that another path is not a change. */
static bool is_sealed(const lt_option *row, const char *then, const char *now, const json_t *data) {
    if (strcmp(row->name, "data.train") == 0) {
        return json_object_get(data, "train") != NULL && same_weights(then, now);
    }
    if (strcmp(row->name, "data.tokenizer") == 0) {
        return json_object_get(data, "tokenizer") != NULL && now[0] != '\0';
    }
    return false;
}

/* Replace 0 and "family" in an older recipe.yaml by the values that they meant. */
static void resolve_old(lt_recipe *old, const lt_training *t) {
    const lt_model_spec *s = &t->model->spec;
    lt_model_spec spec;
    (void)!lt_chat_data_resolve(old);
    old->dtype = old->dtype == LT_RECIPE_DTYPE_AUTO ? t->recipe.dtype : old->dtype;
    if (old->init[0] != '\0' || old->config[0] != '\0') { /* Its sizes had no effect. */
        lt_recipe_resolve(old, s);
    } else if (lt_recipe_spec(&spec, old,
                              t->tokenizer != NULL ? (int64_t)t->tokenizer_info.n_ids : 0,
                              s->bos_id, lt_model_spec_eos(s), s->pad_id) == LT_OK) {
        lt_recipe_resolve(old, &spec);
    }
}

typedef struct {
    char fields[1024], names[512]; /* "seed was 1, now 2; ..." and "seed,..." */
} refusals;

static void append(char *out, size_t room, const char *separator, const char *text) {
    const size_t used = strlen(out);
    (void)snprintf(out + used, room - used, "%s%s", used > 0 ? separator : "", text);
}

static void refuse(refusals *f, const lt_option *row, const char *then, const char *now) {
    char text[512];
    (void)snprintf(text, sizeof text, "%s was %.200s, now %.200s", row->name,
                   then[0] != '\0' ? then : "empty", now[0] != '\0' ? now : "empty");
    append(f->fields, sizeof f->fields, "; ", text);
    append(f->names, sizeof f->names, ",", row->name);
}

/* Compare one row: a difference is noted in t->changes if it is allowed, otherwise in *f. */
static void compare_row(lt_training *t, const lt_option *row, const lt_recipe *old,
                        const json_t *raw, const json_t *data, refusals *f) {
    static const char *const places[] = {"out", "resume"};
    const bool may = (row->flags & LT_RECIPE_MAY_CHANGE) != 0;
    const char *written = json_string_value(json_object_get(raw, row->name));
    char then[LT_OPTION_STR_BYTES], now[LT_OPTION_STR_BYTES];
    bool allowed;

    lt_option_text(row, old, then, sizeof then);
    lt_option_text(row, &t->recipe, now, sizeof now);
    if (written != NULL) { /* The value is outside today's range: print it as written. */
        lt_recipe *probe = malloc(sizeof *probe);
        if (probe != NULL &&
            lt_options_set(&lt_recipe_table, probe, row->name, written, "") != LT_OK) {
            snprintf(then, sizeof then, "%s", written);
        }
        free(probe);
    }
    if (strcmp(then, now) == 0 || named(places, 2, row->name) || is_sealed(row, then, now, data)) {
        return;
    }
    allowed = lt_changes_allowed(t->recipe.allow_change, row);
    if (!may && !allowed) {
        refuse(f, row, then, now);
        return;
    }
    t->n_allowed += !may;
    lt_log_info("%s was %s, now %s%s", row->name, then, now, may ? "" : " (allow_change)");
    json_array_append_new(t->changes, json_pack("{s:s, s:s, s:s, s:b}", "name", row->name, "from",
                                                then, "to", now, "allowed", !may));
}

lt_err lt_changes_compare(lt_training *t, const json_t *then, const json_t *data, bool resolved,
                          const char *checkpoint) {
    refusals f = {"", ""};
    lt_recipe *old = malloc(sizeof *old);

    if (old == NULL) {
        LT_FAIL(LT_ERR_OOM, "recipe");
    }
    lt_options_default(&lt_recipe_table, old);
    for (size_t i = 0; i < lt_recipe_table.n_rows; i++) {
        const lt_option *row = &lt_recipe_table.rows[i];
        const char *text = json_string_value(json_object_get(then, row->name));
        if (text != NULL) { /* Values that no longer parse are compared as text. */
            (void)!lt_options_set(&lt_recipe_table, old, row->name, text, checkpoint);
        }
    }
    if (!resolved) {
        resolve_old(old, t);
    }
    json_array_clear(t->changes);
    t->n_allowed = 0;
    for (size_t i = 0; i < lt_recipe_table.n_rows; i++) {
        const lt_option *row = &lt_recipe_table.rows[i];
        if ((row->flags & LT_RECIPE_ONCE) == 0) {
            compare_row(t, row, old, then, data, &f);
        }
    }
    free(old);
    if (f.names[0] != '\0') {
        LT_FAIL(LT_ERR_STATE,
                "%s was made with another recipe: %s. Give the old values or, to continue with the "
                "new ones, --allow-change %s",
                checkpoint, f.fields, f.names);
    }
    return LT_OK;
}

/* Whether this is the command that wrote the newest checkpoint; where and how it computes does not
 * matter. */
bool lt_changes_same_command(const lt_training *t, const json_t *then) {
    static const char *const places[] = {"device", "threads", "page", "metrics.listen"};
    const size_t n_places = sizeof places / sizeof *places;
    const char *name;
    json_t *value, *now = lt_recipe_json(&t->recipe);
    bool same = then != NULL;
    json_object_foreach(now, name, value) {
        same = same &&
               (named(places, n_places, name) || json_equal(value, json_object_get(then, name)));
    }
    json_decref(now);
    return same;
}
