/* resume.c: chooses the checkpoint that a run resumes from, and checks that its data is unchanged.
 *
 *   in memory         a snapshot that all ranks have agreed on (snapshot.h) and that is newer than
 *                     every checkpoint of the run folder
 *   resume   auto     the newest whole checkpoint of the run folder; after a divergence the one
 *                     that health.c chose
 *            FOLDER   that one. Newer checkpoints of the run folder are renamed to step-N.left. If
 *                     the same command runs again (a job that was put back in the queue), it goes
 *                     on from the newest, whose manifest has this very recipe, `resume` included
 *            none     there must be no checkpoint
 *            With auto, a newer one of checkpoint.mirror is brought into the run folder first.
 *
 * Before anything is loaded, the effective recipe is compared with that of the checkpoint
 * (changes.h); when the data is open, its contents are (data/fingerprint.h), and so are models that
 * the run reads and no checkpoint holds: the base of adapters, a teacher, a reference, a reward
 * model. Every change is a line of metrics.jsonl ("change"), and the recipe that it replaces goes
 * to RUN/history/. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/json.h"
#include "data/fingerprint.h"
#include "data/tokenize.h"
#include "train/adapters.h"
#include "train/recipe/changes.h"
#include "train/run.h"

#define METRICS_BYTES_MAX   ((size_t)4 << 30)
#define TOKENIZER_BYTES_MAX ((off_t)64 << 20)

/* The folder that `resume` selects, or "" for a new run. */
static lt_err choose(lt_training *t) {
    const char *how = t->recipe.resume;
    const bool is_path = strcmp(how, "auto") != 0 && strcmp(how, "none") != 0;
    char path[LT_PATH_BYTES];
    json_t *then = NULL, *data = NULL;
    int64_t newest = -1;
    bool resolved;

    t->resume_path[0] = '\0';
    t->resume_newest = !is_path;
    t->back_to = INT64_MAX;
    if (strcmp(how, "auto") == 0) {
        LT_TRY(lt_training_find_back(t));
    }
    if (lt_ranks_lead(&t->ranks) && t->snapshots.from < 0) {
        LT_TRY(lt_mirror_fetch(t));
    }
    LT_TRY(lt_checkpoint_newest(&newest, t->checkpoints,
                                t->back_to == INT64_MAX ? INT64_MAX : t->back_to + 1, false));
    if (newest >= 0) {
        LT_TRY(lt_checkpoint_path(path, t->checkpoints, newest));
    }
    if (is_path && newest >= 0 && lt_changes_recipe_of(&then, &data, &resolved, path) == LT_OK) {
        t->resume_newest = lt_changes_same_command(t, then);
    }
    json_decref(then);
    json_decref(data);
    /* The checkpoint belongs to an earlier attempt under the same launcher. */
    if (t->snapshots.from > newest) {
        t->resume_newest = false;
        return lt_checkpoint_path(t->resume_path, t->snapshots.memory.set, t->snapshots.from);
    }
    if (strcmp(how, "none") != 0 && (newest >= 0 || is_path)) {
        snprintf(t->resume_path, sizeof t->resume_path, "%s", t->resume_newest ? path : how);
    }
    return LT_OK;
}

/* The run does not resume from a damaged checkpoint; the one before it is compared when it is
 * loaded. */
static lt_err compare_whole(lt_training *t, json_t *then, const json_t *data, bool resolved) {
    const lt_err err = lt_changes_compare(t, then, data, resolved, t->resume_path);
    lt_failure refusal;
    if (err == LT_OK) {
        t->compared = json_incref(then);
        return LT_OK;
    }
    lt_failure_keep(&refusal, err);
    if (err == LT_ERR_STATE && t->resume_newest && lt_checkpoint_verify(t->resume_path) != LT_OK) {
        json_array_clear(t->changes);
        t->n_allowed = 0;
        return LT_OK;
    }
    return lt_failure_raise(&refusal);
}

lt_err lt_training_compare(lt_training *t) {
    lt_err err = LT_OK;
    json_t *then = NULL, *data = NULL;
    bool resolved = true;

    t->changes = json_array();
    LT_TRY_DONE(lt_changes_check_allowed(t->recipe.allow_change));
    LT_TRY_DONE(choose(t));
    if (t->resume_path[0] == '\0') {
        goto done;
    }
    err = lt_changes_recipe_of(&then, &data, &resolved, t->resume_path);
    if (err != LT_OK && err != LT_ERR_STATE && t->resume_newest) {
        err = LT_OK;
        goto done; /* Loading will report what is wrong with it, and choose an older one. */
    }
    if (err != LT_OK) {
        err = lt_error_prefix(err, "resume");
        goto done;
    }
    if (then != NULL) {
        LT_TRY_DONE(compare_whole(t, then, data, resolved));
    } else {
        lt_log_warn("%s: it does not say with which recipe it was made, so it was not compared",
                    t->resume_path);
    }
done:
    json_decref(then);
    json_decref(data);
    return err;
}

/* ---- Data ---- */

static lt_err fingerprint_all(json_t **out, const lt_loader *l, int64_t n_sources, bool whole) {
    *out = json_array();
    for (int64_t i = 0; i < n_sources; i++) {
        json_t *one = NULL;
        LT_TRY(lt_fingerprint_source(&one, l, i, whole));
        json_array_append_new(*out, one);
    }
    return LT_OK;
}

static lt_err compare_fingerprints(const json_t *then, const json_t *now, const lt_loader *l,
                                   const char *option) {
    if (json_array_size(then) != json_array_size(now)) {
        return LT_OK; /* It is another mixture, which was compared as text. */
    }
    for (size_t i = 0; i < json_array_size(now); i++) {
        LT_TRY(lt_fingerprint_compare(json_array_get(then, i), json_array_get(now, i), l,
                                      (int64_t)i, option));
    }
    return LT_OK;
}

bool lt_training_has_changed(const lt_training *t, const char *name) {
    size_t i;
    json_t *change;
    json_array_foreach(t->changes, i, change) {
        if (strcmp(json_string_value(json_object_get(change, "name")), name) == 0) {
            return true;
        }
    }
    return false;
}

/* If a file is large (a GGUF with its weights), the vocabulary is hashed, as it is for a folder,
 * rather than every byte. */
static const char *hashed_path(const char *tokenizer) {
    struct stat st;
    return stat(tokenizer, &st) == 0 && st.st_size > TOKENIZER_BYTES_MAX ? "." : tokenizer;
}

static lt_err check_tokenizer(const lt_training *t, const json_t *then, const char *hex) {
    const char *was = json_string_value(json_object_get(then, "tokenizer"));
    const lt_option *row = lt_option_find(&lt_recipe_table, "data.tokenizer");
    if (was != NULL && strcmp(was, hex) != 0 && !lt_changes_allowed(t->recipe.allow_change, row)) {
        LT_FAIL(LT_ERR_STATE,
                "data.tokenizer: %s has changed since the checkpoint: its checksum was %s, now %s; "
                "to continue with it, give --allow-change data.tokenizer",
                t->recipe.tokenizer, was, hex);
    }
    return LT_OK;
}

lt_err lt_training_compare_base(lt_training *t) {
    const char *was = json_string_value(json_object_get(t->state.data, "base_checksum"));
    char hex[17];
    uint64_t sum;
    if (t->lora == NULL) {
        return LT_OK;
    }
    if (lt_training_host(t) != t) {
        const json_t *known = json_object_get(lt_training_host(t)->data, "base_checksum");
        snprintf(hex, sizeof hex, "%s", json_string_value(known));
    } else {
        LT_TRY(lt_training_checksum(&sum, t));
        snprintf(hex, sizeof hex, "%016" PRIx64, sum);
    }
    json_object_set_new(t->data, "base_checksum", json_string(hex));
    if (was != NULL && strcmp(was, hex) != 0) {
        LT_FAIL(LT_ERR_STATE,
                "model.init: %s has changed since the checkpoint: the checksum of its weights was "
                "%s, now %s; adapters are meaningless with another model",
                t->recipe.init, was, hex);
    }
    return LT_OK;
}

lt_err lt_training_allow_or(const lt_training *t, const char *name, lt_err err) {
    char message[900];
    if (err != LT_ERR_STATE) {
        return err;
    }
    snprintf(message, sizeof message, "%s", lt_error_message());
    if (lt_changes_allowed(t->recipe.allow_change, lt_option_find(&lt_recipe_table, name))) {
        lt_log_warn("%s (allow_change)", message);
        return LT_OK;
    }
    LT_FAIL(LT_ERR_STATE, "%s; to continue with it, give --allow-change %s", message, name);
}

bool lt_training_note(lt_training *t, const json_t *then, const char *name, const char *now) {
    const char *was = json_string_value(json_object_get(then, name));
    json_object_set_new(t->data, name, json_string(now));
    return was != NULL && strcmp(was, now) != 0;
}

lt_err lt_training_note_model(lt_training *t, const json_t *then, const char *option,
                              const char *path) {
    char hex[LT_FINGERPRINT_HEX];
    LT_TRY(lt_fingerprint_model(hex, path));
    if (!lt_training_note(t, then, option, hex)) {
        return LT_OK;
    }
    return lt_training_allow_or(
        t, option,
        lt_error_set(LT_ERR_STATE,
                     "%s: the model at %s has changed since the checkpoint: the checksum of its "
                     "files was %s, now %s",
                     option, path, json_string_value(json_object_get(then, option)), hex));
}

/* The shards of a loader. */
static lt_err fingerprint_loader(lt_training *t, const json_t *then) {
    lt_err err = LT_OK;
    lt_loader *valid = NULL;
    json_t *fingerprints = NULL;

    LT_TRY_DONE(
        fingerprint_all(&fingerprints, t->loader, t->train_mixture.n_sources, t->recipe.verify));
    json_object_set_new(t->data, "train", fingerprints);
    LT_TRY_DONE(lt_training_allow_or(t, "data.train",
                                     compare_fingerprints(json_object_get(then, "train"),
                                                          fingerprints, t->loader, "data.train")));
    if (t->recipe.valid[0] != '\0') {
        LT_TRY_DONE(lt_loader_open(&valid, &t->valid_options));
        LT_TRY_DONE(
            fingerprint_all(&fingerprints, valid, t->valid_mixture.n_sources, t->recipe.verify));
        json_object_set_new(t->data, "valid", fingerprints);
    }
    if (valid != NULL && !lt_training_has_changed(t, "data.valid")) {
        LT_TRY_DONE(lt_training_allow_or(t, "data.valid",
                                         compare_fingerprints(json_object_get(then, "valid"),
                                                              fingerprints, valid, "data.valid")));
    }
done:
    lt_loader_close(valid);
    return err;
}

/* Fingerprint the data for later manifests, and compare it with the loaded checkpoint's. */
static lt_err fingerprint_data(lt_training *t, const json_t *then) {
    char hex[17];
    uint64_t hash = 0;

    t->data = json_object();
    LT_TRY(lt_training_has_ranks(t) ? LT_OK : lt_training_compare_base(t));
    LT_TRY(t->objective != NULL ? t->objective->data(t->objective->of, t, then)
                                : fingerprint_loader(t, then));
    if (t->tokenizer == NULL) {
        return LT_OK;
    }
    LT_TRY(lt_tokenize_hash(&hash, t->tokenizer, hashed_path(t->recipe.tokenizer)));
    snprintf(hex, sizeof hex, "%016" PRIx64, hash);
    json_object_set_new(t->data, "tokenizer", json_string(hex));
    return check_tokenizer(t, then, hex);
}

/* ---- Going on ---- */

/* Restore the positions of rows and guard from the loaded checkpoint. */
static lt_err restore(lt_training *t) {
    lt_err err = t->source.seek(t->source.of, t->state.loader);

    if (err == LT_ERR_STATE && t->recipe.allow_change[0] != '\0') {
        lt_log_warn("the rows differ from those before (allow_change): they start from the first");
        err = LT_OK;
    }
    LT_TRY(err);
    LT_TRY(lt_guard_load(&t->guard, t->state.guard, "checkpoint"));
    /* With other data or another loss, the old best value is meaningless. */
    if (t->n_allowed > 0) {
        t->guard.best = INFINITY;
        t->guard.spread = 0.0;
    }
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
    return LT_OK;
}

static lt_err refuse_checkpoints(const lt_training *t) {
    int64_t *steps = NULL;
    size_t n = 0;
    LT_TRY(lt_checkpoint_list(&steps, &n, t->checkpoints));
    free(steps);
    if (n > 0) {
        LT_FAIL(
            LT_ERR_STATE,
            "resume = none, but %s holds %zu checkpoint%s: choose another --out, or remove that "
            "folder",
            t->checkpoints, n, n == 1 ? "" : "s");
    }
    return LT_OK;
}

static lt_err load_newest(lt_training *t, int64_t *n_broken) {
    const lt_err err = lt_checkpoint_load_newest(t->checkpoints, t->back_to, t->trained,
                                                 &t->optimiser, &t->state, n_broken);
    if (err == LT_ERR_NOT_FOUND && *n_broken > 0) {
        LT_FAIL(LT_ERR_FORMAT,
                "all %lld checkpoints under %s are broken (see above); --resume none and another "
                "--out start again",
                (long long)*n_broken, t->checkpoints);
    }
    return err;
}

/* Change the folder as a start requires, once nothing can refuse it any more. Broken checkpoints
 * must not count as the newest when old ones are removed. */
static lt_err set_aside(lt_training *t, int64_t n_broken) {
    LT_TRY(lt_checkpoint_prune(t->checkpoints, &(lt_checkpoint_keep){.last = INT64_MAX, .also = -1},
                               &t->lease)); /* Only leftovers of a crash. */
    LT_TRY(lt_training_go_back(t));
    if (n_broken > 0) {
        LT_TRY(lt_lease_check(&t->lease));
        LT_TRY(lt_checkpoint_set_aside(t->checkpoints, t->state.step, ".broken"));
    }
    return LT_OK;
}

/* The branch's lines of metrics move to the history, because resuming drops them. */
lt_err lt_training_leave_branch(lt_training *t, int64_t step) {
    char path[LT_PATH_BYTES];
    LT_TRY(lt_lease_check(&t->lease)); /* Newer checkpoints may belong to a later attempt. */
    LT_TRY(lt_training_history_path(t, path, "metrics", "jsonl"));
    if (lt_file_exists(t->metrics_path)) {
        LT_TRY(lt_file_copy(t->metrics_path, path, METRICS_BYTES_MAX));
    }
    return lt_checkpoint_set_aside(t->checkpoints, step, ".left");
}

lt_err lt_training_resume(lt_training *t) {
    int64_t newest = -1, n_broken = 0;

    if (strcmp(t->recipe.resume, "none") == 0 && t->snapshots.from < 0) {
        LT_TRY(refuse_checkpoints(t));
    }
    if (t->resume_path[0] == '\0') {
        LT_TRY(fingerprint_data(t, NULL)); /* A new run. */
        return set_aside(t, 0);
    }
    if (t->resume_newest) {
        LT_TRY(load_newest(t, &n_broken));
    } else {
        LT_TRY(lt_checkpoint_load(t->resume_path, t->trained, &t->optimiser, &t->state));
    }
    /* It is an older checkpoint. */
    if (t->state.recipe != NULL && !json_equal(t->state.recipe, t->compared)) {
        LT_TRY(lt_changes_compare(t, t->state.recipe, t->state.data, true, t->checkpoints));
    }
    LT_TRY(fingerprint_data(t, t->state.data));
    LT_TRY(restore(t));
    LT_TRY(set_aside(t, n_broken));
    if (t->resume_newest && lt_ranks_lead(&t->ranks)) {
        LT_TRY(lt_training_prune(t)); /* The last start may have ended between save and prune. */
    }
    LT_TRY(lt_checkpoint_newest(&newest, t->checkpoints, INT64_MAX, false));
    if (t->snapshots.from > newest) { /* A stop at this step must write it to disk. */
        t->saved_step = newest;
    }
    return newest > t->state.step ? lt_training_leave_branch(t, t->state.step) : LT_OK;
}
