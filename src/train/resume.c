/* resume.c: what a run goes on from, whether it may, and what is kept of what was before.
 *
 *   resume   auto     the newest whole checkpoint of the run folder; behind a divergence the one that health.c chose
 *            FOLDER   that one. Checkpoints of the run folder behind it are renamed to step-N.left. The same command again (a job that was put back in the queue) goes on
 *                     from the newest: its manifest has this very recipe, `resume` included
 *            none     there must be no checkpoint
 *
 * Before anything is loaded, the effective recipe is compared with that of the checkpoint, name by name. The table says what may change
 * (LT_RECIPE_MAY_CHANGE); any other difference is refused unless allow_change names it. Data is compared by content (data/seal.h), not by path. Every change is a line of
 * metrics.jsonl ("change"), and the recipe that it replaces goes to RUN/history/. A checkpoint from before manifests had a recipe is compared with the
 * recipe.yaml of its run folder. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/yaml.h"
#include "data/seal.h"
#include "data/tokenize.h"
#include "train/run.h"

#define MANIFEST_BYTES_MAX ((size_t)16 << 20)
#define RECIPE_BYTES_MAX   ((size_t)1 << 20)
#define METRICS_BYTES_MAX  ((size_t)4 << 30)
#define HISTORY_MAX        100000

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

/* recipe.yaml of an older run as such an object; unknown keys are of options that there are no more. */
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

/* The recipe that wrote a checkpoint; *resolved false: as it was given. NULL: nothing tells. */
static lt_err recipe_of(json_t **out, json_t **data, bool *resolved, const char *checkpoint) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    json_t *manifest = NULL;

    *out = *data = NULL;
    *resolved = true;
    LT_TRY(lt_path_join(path, checkpoint, "manifest.json"));
    LT_TRY(lt_json_load(&manifest, path, MANIFEST_BYTES_MAX));
    *out = json_incref(json_object_get(manifest, "recipe"));
    *data = json_incref(json_object_get(manifest, "data"));
    LT_TRY_DONE(lt_path_join(path, checkpoint, "../../recipe.yaml"));
    if (*out == NULL && lt_file_exists(path)) {
        *resolved = false;
        LT_TRY_DONE(recipe_from_yaml(out, path));
    }
done:
    json_decref(manifest);
    return err;
}

/* ---- Comparison ---- */

/* Does the list "a,b" hold the name? '-' and '_' are equal, as in flags. */
static bool is_allowed(const char *list, const lt_option *row) {
    char copy[LT_OPTION_STR_BYTES], *next = NULL;
    snprintf(copy, sizeof copy, "%s", list);
    for (char *w = strtok_r(copy, ", ", &next); w != NULL; w = strtok_r(NULL, ", ", &next)) {
        if (lt_option_find(&lt_recipe_table, w) == row) {
            return true;
        }
    }
    return false;
}

static lt_err check_allowed_names(const char *list) {
    char copy[LT_OPTION_STR_BYTES], *next = NULL;
    const lt_option *row;
    snprintf(copy, sizeof copy, "%s", list);
    for (char *w = strtok_r(copy, ", ", &next); w != NULL; w = strtok_r(NULL, ", ", &next)) {
        LT_TRY(lt_option_need(&row, &lt_recipe_table, w, "allow_change"));
    }
    return LT_OK;
}

/* Two mixtures with as many sources in the same shares. Their paths may differ where contents are compared. */
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

/* Compared by content later: another path is no change. */
static bool is_sealed(const lt_option *row, const char *then, const char *now, const json_t *data) {
    if (strcmp(row->name, "data.train") == 0) {
        return json_object_get(data, "train") != NULL && same_weights(then, now);
    }
    if (strcmp(row->name, "data.tokenizer") == 0) {
        return json_object_get(data, "tokenizer") != NULL && now[0] != '\0';
    }
    return false;
}

/* The values of an older recipe.yaml as they worked: sizes that 0 or "family" stood for. */
static void resolve_old(lt_recipe *old, const lt_training *t) {
    const lt_model_spec *s = &t->model->spec;
    lt_model_spec spec;
    if (old->init[0] != '\0' || old->config[0] != '\0') { /* Its sizes were not looked at. */
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

/* One row: noted in t->changes when it differs and may, in *f when it may not. */
static void compare_row(lt_training *t, const lt_option *row, const lt_recipe *old,
                        const json_t *raw, const json_t *data, refusals *f) {
    static const char *const places[] = {"out", "resume"};
    const bool may = (row->flags & LT_RECIPE_MAY_CHANGE) != 0;
    const char *written = json_string_value(json_object_get(raw, row->name));
    char then[LT_OPTION_STR_BYTES], now[LT_OPTION_STR_BYTES];
    bool allowed;

    lt_option_text(row, old, then, sizeof then);
    lt_option_text(row, &t->recipe, now, sizeof now);
    if (written != NULL) { /* Out of today's range: as it was written. */
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
    allowed = is_allowed(t->recipe.allow_change, row);
    if (!may && !allowed) {
        refuse(f, row, then, now);
        return;
    }
    t->n_allowed += !may;
    lt_log_info("%s was %s, now %s%s", row->name, then, now, may ? "" : " (allow_change)");
    json_array_append_new(t->changes, json_pack("{s:s, s:s, s:s, s:b}", "name", row->name, "from",
                                                then, "to", now, "allowed", !may));
}

static lt_err compare(lt_training *t, const json_t *then, const json_t *data, bool resolved,
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
        if (text != NULL) { /* What does not parse today is compared as text. */
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
        LT_FAIL(
            LT_ERR_STATE,
            "%s was made with another recipe: %s. Give the old values; or, to go on with the new "
            "ones, --allow-change %s",
            checkpoint, f.fields, f.names);
    }
    return LT_OK;
}

/* Is this the command that wrote the newest checkpoint? Where and how it computes does not matter. */
static bool is_same_command(const lt_training *t, const json_t *then) {
    static const char *const places[] = {"device", "threads", "page"};
    const char *name;
    json_t *value, *now = lt_recipe_json(&t->recipe);
    bool same = then != NULL;
    json_object_foreach(now, name, value) {
        same = same && (named(places, 3, name) || json_equal(value, json_object_get(then, name)));
    }
    json_decref(now);
    return same;
}

/* Where `resume` leads: a folder, or "" when the run is new. */
static lt_err choose(lt_training *t) {
    const char *how = t->recipe.resume;
    const bool is_path = strcmp(how, "auto") != 0 && strcmp(how, "none") != 0;
    char path[LT_PATH_BYTES];
    json_t *then = NULL, *data = NULL;
    int64_t newest = -1;
    bool resolved;

    t->resume_path[0] = '\0';
    t->resume_newest = !is_path;
    if (strcmp(how, "auto") == 0) {
        LT_TRY(lt_training_go_back(t));
    }
    LT_TRY(lt_checkpoint_newest(&newest, t->checkpoints, INT64_MAX, false));
    if (newest >= 0) {
        LT_TRY(lt_checkpoint_path(path, t->checkpoints, newest));
    }
    if (is_path && newest >= 0 && recipe_of(&then, &data, &resolved, path) == LT_OK) {
        t->resume_newest = is_same_command(t, then);
    }
    json_decref(then);
    json_decref(data);
    if (strcmp(how, "none") != 0 && (newest >= 0 || is_path)) {
        snprintf(t->resume_path, sizeof t->resume_path, "%s", t->resume_newest ? path : how);
    }
    return LT_OK;
}

lt_err lt_training_compare(lt_training *t) {
    lt_err err = LT_OK;
    json_t *then = NULL, *data = NULL;
    bool resolved = true;

    t->changes = json_array();
    LT_TRY_DONE(check_allowed_names(t->recipe.allow_change));
    LT_TRY_DONE(lt_checkpoint_prune(t->checkpoints, INT64_MAX, 0)); /* Leftovers of a crash only. */
    LT_TRY_DONE(choose(t));
    if (t->resume_path[0] == '\0') {
        goto done;
    }
    err = recipe_of(&then, &data, &resolved, t->resume_path);
    if (err != LT_OK && t->resume_newest) {
        err = LT_OK;
        goto done; /* Loading says what is wrong with it, and takes an older one. */
    }
    if (err != LT_OK) {
        err = lt_error_prefix(err, "resume");
        goto done;
    }
    if (then != NULL) {
        LT_TRY_DONE(compare(t, then, data, resolved, t->resume_path));
        t->compared = json_incref(then);
    }
done:
    json_decref(then);
    json_decref(data);
    return err;
}

/* ---- Data ---- */

static lt_err seal_all(json_t **out, const lt_loader *l, int64_t n_sources, bool whole) {
    *out = json_array();
    for (int64_t i = 0; i < n_sources; i++) {
        json_t *one = NULL;
        LT_TRY(lt_seal_source(&one, l, i, whole));
        json_array_append_new(*out, one);
    }
    return LT_OK;
}

static lt_err compare_seals(const json_t *then, const json_t *now, const lt_loader *l,
                            const char *option) {
    if (json_array_size(then) != json_array_size(now)) {
        return LT_OK; /* Another mixture, which was compared as text. */
    }
    for (size_t i = 0; i < json_array_size(now); i++) {
        LT_TRY(lt_seal_compare(json_array_get(then, i), json_array_get(now, i), l, (int64_t)i,
                               option));
    }
    return LT_OK;
}

static bool has_changed(const lt_training *t, const char *name) {
    size_t i;
    json_t *change;
    json_array_foreach(t->changes, i, change) {
        if (strcmp(json_string_value(json_object_get(change, "name")), name) == 0) {
            return true;
        }
    }
    return false;
}

static lt_err check_tokenizer(const lt_training *t, const json_t *then, const char *hex) {
    const char *was = json_string_value(json_object_get(then, "tokenizer"));
    const lt_option *row = lt_option_find(&lt_recipe_table, "data.tokenizer");
    if (was != NULL && strcmp(was, hex) != 0 && !is_allowed(t->recipe.allow_change, row)) {
        LT_FAIL(
            LT_ERR_STATE,
            "data.tokenizer: %s has changed since the checkpoint: its checksum was %s, now %s; to "
            "go on with it, --allow-change data.tokenizer",
            t->recipe.tokenizer, was, hex);
    }
    return LT_OK;
}

static lt_err allow_or(const lt_training *t, const char *name, lt_err err) {
    char message[900];
    if (err != LT_ERR_STATE) {
        return err;
    }
    snprintf(message, sizeof message, "%s", lt_error_message());
    if (is_allowed(t->recipe.allow_change, lt_option_find(&lt_recipe_table, name))) {
        lt_log_warn("%s (allow_change)", message);
        return LT_OK;
    }
    LT_FAIL(LT_ERR_STATE, "%s; to go on with it, --allow-change %s", message, name);
}

/* What the data is now, for the manifests to come; and whether it is what the loaded checkpoint's was. */
static lt_err seal_data(lt_training *t, const json_t *then) {
    lt_err err = LT_OK;
    lt_loader *valid = NULL;
    json_t *seals = NULL;
    char hex[17];
    uint64_t hash = 0;

    t->data = json_object();
    LT_TRY_DONE(seal_all(&seals, t->loader, t->train_mixture.n_sources, t->recipe.verify));
    json_object_set_new(t->data, "train", seals);
    LT_TRY_DONE(
        allow_or(t, "data.train",
                 compare_seals(json_object_get(then, "train"), seals, t->loader, "data.train")));
    if (t->recipe.valid[0] != '\0') {
        LT_TRY_DONE(lt_loader_open(&valid, &t->valid_options));
        LT_TRY_DONE(seal_all(&seals, valid, t->valid_mixture.n_sources, t->recipe.verify));
        json_object_set_new(t->data, "valid", seals);
    }
    if (valid != NULL && !has_changed(t, "data.valid")) {
        LT_TRY_DONE(
            allow_or(t, "data.valid",
                     compare_seals(json_object_get(then, "valid"), seals, valid, "data.valid")));
    }
    if (t->tokenizer != NULL) {
        LT_TRY_DONE(lt_tokenize_hash(&hash, t->tokenizer, t->recipe.tokenizer));
        snprintf(hex, sizeof hex, "%016" PRIx64, hash);
        json_object_set_new(t->data, "tokenizer", json_string(hex));
        LT_TRY_DONE(check_tokenizer(t, then, hex));
    }
done:
    lt_loader_close(valid);
    return err;
}

/* ---- Going on ---- */

/* Put loader and guard where the loaded checkpoint left them. */
static lt_err restore(lt_training *t) {
    lt_err err = LT_OK;
    char *text = json_dumps(t->state.loader, JSON_COMPACT);
    lt_loader_state state;

    if (text == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "loader state");
    }
    LT_TRY_DONE(lt_loader_state_parse(&state, text, strlen(text)));
    err = lt_loader_set_state(t->loader, &state);
    if (err == LT_ERR_STATE && t->recipe.allow_change[0] != '\0') {
        lt_log_warn(
            "the rows are other ones than before (allow_change): they begin at their first");
        err = LT_OK;
    }
    LT_TRY_DONE(err);
    LT_TRY_DONE(lt_guard_load(&t->guard, t->state.guard, "checkpoint"));
    t->saved_step = t->applied_step = t->state.step;
    lt_log_info("resumed at step %lld (%llu rows, %llu tokens seen)", (long long)t->state.step,
                (unsigned long long)t->state.rows, (unsigned long long)t->state.tokens);
    if (t->state.suspect) {
        lt_log_warn(
            "this checkpoint is not good: its loss was %.4g, the best %.4g; an older one can "
            "be chosen with --resume FOLDER",
            t->state.loss, t->guard.best);
    }
    if (t->state.step > t->recipe.steps) {
        lt_log_warn("steps = %lld, but %lld are done already", (long long)t->recipe.steps,
                    (long long)t->state.step);
    }
done:
    free(text);
    return err;
}

static lt_err refuse_checkpoints(const lt_training *t) {
    int64_t *steps = NULL;
    size_t n = 0;
    LT_TRY(lt_checkpoint_list(&steps, &n, t->checkpoints));
    free(steps);
    if (n > 0) {
        LT_FAIL(LT_ERR_STATE,
                "resume = none, but %s holds %zu checkpoints: choose another --out, or remove that "
                "folder",
                t->checkpoints, n);
    }
    return LT_OK;
}

static lt_err load_newest(lt_training *t) {
    int64_t n_broken = 0;
    const lt_err err = lt_checkpoint_load_newest(t->checkpoints, t->model, &t->optimiser, &t->state,
                                                 &n_broken);
    if (err == LT_ERR_NOT_FOUND && n_broken > 0) {
        LT_FAIL(LT_ERR_FORMAT,
                "all %lld checkpoints under %s are broken (see above); --resume none and another "
                "--out begin anew",
                (long long)n_broken, t->checkpoints);
    }
    LT_TRY(err);
    if (n_broken > 0) { /* They must not count as the newest when old ones are removed. */
        LT_TRY(lt_checkpoint_set_aside(t->checkpoints, t->state.step, ".broken"));
    }
    return LT_OK;
}

/* The branch's lines of metrics go to the history: going on drops them. */
lt_err lt_training_leave_branch(lt_training *t, int64_t step) {
    char path[LT_PATH_BYTES];
    LT_TRY(lt_training_history_path(t, path, "metrics", "jsonl"));
    if (lt_file_exists(t->metrics_path)) {
        LT_TRY(lt_file_copy(t->metrics_path, path, METRICS_BYTES_MAX));
    }
    return lt_checkpoint_set_aside(t->checkpoints, step, ".left");
}

lt_err lt_training_resume(lt_training *t) {
    int64_t newest = -1;

    if (strcmp(t->recipe.resume, "none") == 0) {
        LT_TRY(refuse_checkpoints(t));
    }
    if (t->resume_path[0] == '\0') {
        return seal_data(t, NULL); /* A new run. */
    }
    if (t->resume_newest) {
        LT_TRY(load_newest(t));
    } else {
        LT_TRY(lt_checkpoint_load(t->resume_path, t->model, &t->optimiser, &t->state));
    }
    if (t->state.recipe != NULL && !json_equal(t->state.recipe, t->compared)) { /* An older one. */
        LT_TRY(compare(t, t->state.recipe, t->state.data, true, t->checkpoints));
    }
    LT_TRY(seal_data(t, t->state.data));
    LT_TRY(restore(t));
    LT_TRY(lt_checkpoint_newest(&newest, t->checkpoints, INT64_MAX, false));
    return newest > t->state.step ? lt_training_leave_branch(t, t->state.step) : LT_OK;
}

/* ---- History ---- */

lt_err lt_training_history_path(const lt_training *t, char path[LT_PATH_BYTES], const char *name,
                                const char *suffix) {
    char folder[LT_PATH_BYTES], file[64];
    LT_TRY(lt_path_join(folder, t->recipe.out, "history"));
    LT_TRY(lt_file_make_dirs(folder));
    for (int i = 0; i < HISTORY_MAX; i++) {
        (void)snprintf(file, sizeof file, "%s-%03d.%s", name, i, suffix);
        LT_TRY(lt_path_join(path, folder, file));
        if (!lt_file_exists(path)) {
            return LT_OK;
        }
    }
    LT_FAIL(LT_ERR_LIMIT, "%s holds %d files already", folder, HISTORY_MAX);
}

/* The recipe.yaml that another one will replace, with the step up to which it was in force. */
static lt_err keep_old_recipe(const lt_training *t, const char *path, const char *text) {
    lt_err err = LT_OK;
    char kept[LT_PATH_BYTES], *old = NULL, *all = NULL;
    size_t bytes = 0, room;

    if (!lt_file_exists(path)) {
        return LT_OK;
    }
    LT_TRY_DONE(lt_file_read(&old, &bytes, path, RECIPE_BYTES_MAX));
    if (strcmp(old, text) == 0) {
        goto done;
    }
    room = bytes + 64;
    all = malloc(room);
    if (all == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s", path);
    }
    snprintf(all, room, "# In force until step %lld.\n%s", (long long)t->state.step, old);
    LT_TRY_DONE(lt_training_history_path(t, kept, "recipe", "yaml"));
    LT_TRY_DONE(lt_file_write_atomic(kept, all, strlen(all)));
done:
    free(old);
    free(all);
    return err;
}

lt_err lt_training_write_recipe(const lt_training *t) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    lt_recipe *r = malloc(sizeof *r);
    FILE *to = open_memstream(&text, &bytes);

    if (to == NULL || r == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "recipe");
    }
    *r = t->recipe;
    r->allow_change[0] = '\0';
    lt_options_dump_yaml(&lt_recipe_table, r, to);
    fclose(to);
    to = NULL;
    LT_TRY_DONE(lt_path_join(path, t->recipe.out, "recipe.yaml"));
    LT_TRY_DONE(keep_old_recipe(t, path, text));
    LT_TRY_DONE(lt_file_write_atomic(path, text, bytes));
done:
    if (to != NULL) {
        fclose(to);
    }
    free(text);
    free(r);
    return err;
}

lt_err lt_training_tell_changes(lt_training *t) {
    size_t i;
    json_t *change;
    json_array_foreach(t->changes, i, change) {
        json_t *line = json_pack("{s:s, s:I}", "kind", "change", "step", (json_int_t)t->state.step);
        json_object_update(line, change);
        LT_TRY(lt_metrics_put(&t->metrics, line));
    }
    return LT_OK;
}
