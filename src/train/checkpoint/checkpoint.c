/* checkpoint.c: see checkpoint.h for the format and the crash cases. */
#include "train/checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "model/alloc.h"
#include "train/checkpoint/checkpoint_parts.h"

#define FORMAT_NAME   "lateen-checkpoint"
#define VERSION_WHOLE 1 /* There is one part. */
#define VERSION_PARTS 2 /* Files of boxes: see checkpoint_parts.h. */
#define WEIGHTS       "weights"
#define ENDING        ".safetensors"

void lt_run_state_clear(lt_run_state *s) {
    json_decref(s->loader);
    json_decref(s->guard);
    json_decref(s->recipe);
    json_decref(s->data);
    *s = (lt_run_state){0};
}

/* ---- Writing ---- */

/* files: with one part, the files that it wrote; with several, their manifests. */
static lt_err write_manifest(const char *folder, json_t *files, int n_parts, const lt_optimiser *o,
                             const lt_run_state *state) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES], optim[32], *text = NULL;
    const lt_option *row = NULL;
    json_t *root;

    for (size_t i = 0; i < lt_recipe_table.n_rows; i++) {
        row = strcmp(lt_recipe_table.rows[i].name, "optim.kind") == 0 ? &lt_recipe_table.rows[i]
                                                                      : row;
    }
    lt_option_text(row, o->recipe, optim, sizeof optim);
    root = json_pack("{s:s, s:i, s:I, s:I, s:I, s:b, s:f, s:s, s:O, s:O, s:O*, s:O*, s:O}",
                     "format", FORMAT_NAME, "version", n_parts > 1 ? VERSION_PARTS : VERSION_WHOLE,
                     "step", (json_int_t)state->step, "rows", (json_int_t)state->rows, "tokens",
                     (json_int_t)state->tokens, "good", !state->suspect, "loss", state->loss,
                     "optimiser", optim, "loader", state->loader, "guard", state->guard, "recipe",
                     state->recipe, "data", state->data, "files", files);
    if (root != NULL && n_parts > 1) {
        json_object_set_new(root, "parts", json_integer(n_parts));
    }
    if (root != NULL && o->recipe->sites > 1) {
        json_object_set_new(root, "outer_step", json_integer(state->outer_step));
    }
    text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    if (text == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: manifest", folder);
    }
    LT_TRY_DONE(lt_path_join(path, folder, LT_MANIFEST));
    LT_TRY_DONE(lt_file_write_atomic(path, text, strlen(text)));
done:
    json_decref(root);
    free(text);
    return err;
}

lt_err lt_checkpoint_aside(char path[LT_PATH_BYTES], const char *folder, int64_t step,
                           const lt_lease *lease) {
    char name[LT_CHECKPOINT_NAME_BYTES], suffix[32] = ".tmp";
    if (lease != NULL && lease->epoch > 0) {
        (void)snprintf(suffix, sizeof suffix, ".e%lld.tmp", (long long)lease->epoch);
    }
    lt_checkpoint_name(name, step, suffix);
    return lt_path_join(path, folder, name);
}

lt_err lt_checkpoint_begin(const char *folder, int64_t step, const lt_lease *lease) {
    char aside[LT_PATH_BYTES];
    LT_TRY(lt_lease_check(lease));
    LT_TRY(lt_file_make_dirs(folder));
    LT_TRY(lt_checkpoint_aside(aside, folder, step, lease));
    LT_TRY(lt_file_remove_tree(aside));
    return lt_file_make_dirs(aside);
}

/* Write the weights and moments of a part, and add the files to the list. */
static lt_err write_buffers(json_t *files, const char *aside, int part, int n_parts,
                            const lt_model *m, const lt_optimiser *o, const lt_part_boxes *boxes) {
    char name[LT_PART_NAME_BYTES];
    lt_part_file(name, WEIGHTS, part, n_parts, ENDING);
    LT_TRY(lt_part_write_buffer(files, aside, name, m, boxes, o->share.master));
    for (int i = 0; i < o->n_moments; i++) {
        lt_part_file(name, o->moment_names[i], part, n_parts, ENDING);
        LT_TRY(lt_part_write_buffer(files, aside, name, m, boxes, &o->moments[i]));
    }
    return LT_OK;
}

lt_err lt_checkpoint_write_part(const char *folder, int64_t step, int part, int n_parts,
                                const lt_model *m, const lt_optimiser *o, const lt_layout *layout,
                                const lt_lease *lease) {
    const lt_part_boxes boxes = {o->share.table, layout};
    lt_err err = LT_OK;
    char aside[LT_PATH_BYTES];
    json_t *files = json_array();

    LT_ASSERT(n_parts > 1 && n_parts <= LT_MAX_PARTS && part >= 0 && part < n_parts);
    LT_TRY_DONE(lt_checkpoint_aside(aside, folder, step, lease));
    LT_TRY_DONE(write_buffers(files, aside, part, n_parts, m, o, &boxes));
    LT_TRY_DONE(lt_part_write_manifest(aside, files, part, n_parts, &boxes));
done:
    json_decref(files);
    return err;
}

/* List the parts' manifests, after checking that all exist and cover every parameter once, as a
 * reader will. */
static lt_err list_parts(json_t *files, const char *aside, int n_parts, const lt_model *m) {
    lt_stored stored;
    LT_TRY(lt_stored_open(&stored, aside, n_parts, &m->table));
    lt_stored_close(&stored);
    for (int part = 0; part < n_parts; part++) {
        char name[LT_PART_NAME_BYTES], path[LT_PATH_BYTES];
        lt_file_map map;
        lt_part_file(name, "part", part, n_parts, ".json");
        LT_TRY(lt_path_join(path, aside, name));
        LT_TRY(lt_file_map_open(&map, path));
        const uint64_t hash = XXH3_64bits(map.data, map.size_bytes);
        lt_file_map_close(&map);
        LT_TRY(lt_part_list_file(files, aside, name, hash));
    }
    return LT_OK;
}

/* Give the complete folder its name. One that has it already was broken and skipped at resume: both
 * change places at once, because an attempt that was replaced meanwhile has no `aside` any more and
 * must not touch the one that its successor wrote. Some network file systems cannot do that. */
static lt_err rename_whole(const char *aside, const char *path) {
    if (rename(aside, path) == 0) {
        return LT_OK;
    }
    if ((errno == ENOTEMPTY || errno == EEXIST) &&
        renameat2(AT_FDCWD, aside, AT_FDCWD, path, RENAME_EXCHANGE) == 0) {
        return lt_checkpoint_remove(aside);
    }
    if (errno == EINVAL || errno == ENOSYS) {
        LT_TRY(lt_checkpoint_remove(path));
        if (rename(aside, path) == 0) {
            return LT_OK;
        }
    }
    LT_FAIL(LT_ERR_IO, "rename %s to %s: %s", aside, path, strerror(errno));
}

lt_err lt_checkpoint_take_name(const char *folder, int64_t step, const lt_lease *lease) {
    char path[LT_PATH_BYTES], aside[LT_PATH_BYTES];
    LT_TRY(lt_checkpoint_aside(aside, folder, step, lease));
    LT_TRY(lt_checkpoint_path(path, folder, step));
    LT_TRY(lt_file_sync_dir(aside));
    LT_TRY(lt_lease_check(lease)); /* Checked last, when the folder is complete: see lease.h. */
    LT_TRY(rename_whole(aside, path));
    return lt_file_sync_dir(folder);
}

/* Write config.json and the manifest, and give the folder its new name. */
static lt_err publish(const char *folder, json_t *files, int n_parts, const lt_model *m,
                      const lt_optimiser *o, const lt_run_state *state, const lt_lease *lease) {
    char path[LT_PATH_BYTES], aside[LT_PATH_BYTES];
    LT_TRY(lt_checkpoint_aside(aside, folder, state->step, lease));
    LT_TRY(lt_path_join(path, aside, "config.json"));
    LT_TRY(lt_model_spec_write(&m->spec, LT_F32, path));
    LT_TRY(write_manifest(aside, files, n_parts, o, state));
    return lt_checkpoint_take_name(folder, state->step, lease);
}

lt_err lt_checkpoint_publish(const char *folder, int n_parts, const lt_model *m,
                             const lt_optimiser *o, const lt_run_state *state,
                             const lt_lease *lease) {
    lt_err err = LT_OK;
    char aside[LT_PATH_BYTES];
    json_t *files = json_array();

    LT_ASSERT(n_parts > 1 && n_parts <= LT_MAX_PARTS);
    LT_TRY_DONE(lt_checkpoint_aside(aside, folder, state->step, lease));
    LT_TRY_DONE(list_parts(files, aside, n_parts, m));
    LT_TRY_DONE(publish(folder, files, n_parts, m, o, state, lease));
done:
    json_decref(files);
    return err;
}

static lt_err save_whole(const char *folder, const lt_model *m, const lt_optimiser *o,
                         const lt_run_state *state, const lt_lease *lease) {
    const lt_part_boxes all = {o->share.table, NULL};
    lt_err err = LT_OK;
    char aside[LT_PATH_BYTES];
    json_t *files = json_array();

    LT_ASSERT(lt_param_table_is_whole(o->share.table));
    LT_TRY_DONE(lt_checkpoint_begin(folder, state->step, lease));
    LT_TRY_DONE(lt_checkpoint_aside(aside, folder, state->step, lease));
    LT_TRY_DONE(write_buffers(files, aside, 0, 1, m, o, &all));
    LT_TRY_DONE(publish(folder, files, 1, m, o, state, lease));
done:
    json_decref(files);
    return err;
}

void lt_checkpoint_abandon(const char *folder, int64_t step, const lt_lease *lease) {
    char aside[LT_PATH_BYTES];
    if (lt_checkpoint_aside(aside, folder, step, lease) != LT_OK ||
        lt_file_remove_tree(aside) != LT_OK) {
        lt_log_warn("%s", lt_error_message());
    }
}

lt_err lt_checkpoint_give_up(const char *folder, int64_t step, const lt_lease *lease, lt_err err) {
    lt_failure failure;
    lt_failure_keep(&failure, err);
    lt_checkpoint_abandon(folder, step, lease);
    return lt_error_prefix(lt_failure_raise(&failure), "checkpoint of step %lld not saved",
                           (long long)step);
}

lt_err lt_checkpoint_save(const char *folder, const lt_model *m, const lt_optimiser *o,
                          const lt_run_state *state, const lt_lease *lease) {
    const lt_err err = save_whole(folder, m, o, state, lease);
    return err == LT_OK ? LT_OK : lt_checkpoint_give_up(folder, state->step, lease, err);
}

/* ---- Reading ---- */

/* n_parts: 0 if one part wrote all files and has no manifest of its own. */
static lt_err check_header(int *n_parts, const json_t *root, const char *path) {
    const char *format = NULL;
    int64_t version = 0, parts = 0;
    LT_TRY(lt_json_str(root, "format", &format, false, path));
    LT_TRY(lt_json_i64(root, "version", &version, false, path));
    if (strcmp(format, FORMAT_NAME) != 0 || version < VERSION_WHOLE || version > VERSION_PARTS) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: format %s version %lld; this program reads %s version %d to %d", path, format,
                (long long)version, FORMAT_NAME, VERSION_WHOLE, VERSION_PARTS);
    }
    if (json_array_size(json_object_get(root, "files")) == 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s: no files listed", path);
    }
    if (version == VERSION_PARTS) {
        LT_TRY(lt_json_i64(root, "parts", &parts, false, path));
        if (parts < 2 || parts > LT_MAX_PARTS ||
            json_array_size(json_object_get(root, "files")) != (size_t)parts) {
            LT_FAIL(LT_ERR_FORMAT, "%s: %lld parts and %zu files", path, (long long)parts,
                    json_array_size(json_object_get(root, "files")));
        }
    }
    *n_parts = (int)parts;
    return LT_OK;
}

static lt_err load_state(lt_run_state *state, const json_t *manifest, const char *path) {
    int64_t rows = 0, tokens = 0;
    bool good = true;
    LT_TRY(lt_json_bool(manifest, "good", &good, true, path));
    LT_TRY(lt_json_f64(manifest, "loss", &state->loss, true, path));
    LT_TRY(lt_json_i64(manifest, "outer_step", &state->outer_step, true, path));
    state->suspect = !good;
    LT_TRY(lt_json_i64(manifest, "step", &state->step, false, path));
    LT_TRY(lt_json_i64(manifest, "rows", &rows, false, path));
    LT_TRY(lt_json_i64(manifest, "tokens", &tokens, false, path));
    if (state->step < 0 || rows < 0 || tokens < 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s: step %lld, %lld rows, %lld tokens", path,
                (long long)state->step, (long long)rows, (long long)tokens);
    }
    state->rows = (uint64_t)rows;
    state->tokens = (uint64_t)tokens;
    state->loader = json_incref(json_object_get(manifest, "loader"));
    state->guard = json_incref(json_object_get(manifest, "guard"));
    /* Older checkpoints have none. */
    state->recipe = json_incref(json_object_get(manifest, "recipe"));
    state->data = json_incref(json_object_get(manifest, "data"));
    if (state->loader == NULL || state->guard == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "%s: manifest without loader or guard state", path);
    }
    return LT_OK;
}

lt_err lt_checkpoint_parse(lt_run_state *state, const char *text, size_t bytes, const char *path) {
    lt_err err = LT_OK;
    json_t *root = NULL;
    const json_t *files;
    int n_parts;

    LT_TRY_DONE(lt_json_parse(&root, text, bytes, path));
    LT_TRY_DONE(check_header(&n_parts, root, path));
    files = json_object_get(root, "files");
    for (size_t i = 0; i < json_array_size(files); i++) {
        LT_TRY_DONE(lt_part_check_entry(json_array_get(files, i), path));
    }
    LT_TRY_DONE(load_state(state, root, path));
done:
    json_decref(root);
    return err;
}

static lt_err read_manifest(json_t **out, int *n_parts, const char *folder) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    const json_t *files;
    json_t *root = NULL;

    LT_TRY(lt_path_join(path, folder, LT_MANIFEST));
    LT_TRY(lt_json_load(&root, path, LT_MANIFEST_BYTES_MAX));
    LT_TRY_DONE(check_header(n_parts, root, path));
    files = json_object_get(root, "files");
    for (size_t i = 0; i < json_array_size(files); i++) {
        LT_TRY_DONE(lt_part_check_file(folder, json_array_get(files, i)));
    }
    *out = root;
    root = NULL;
done:
    json_decref(root);
    return err;
}

lt_err lt_checkpoint_load(const char *path, lt_model *m, lt_optimiser *o, lt_run_state *state) {
    lt_err err = LT_OK;
    lt_run_state loaded = {0};
    lt_stored stored = {0};
    json_t *manifest = NULL;
    char name[LT_PART_NAME_BYTES];
    int n_parts = 0;

    LT_TRY_DONE(read_manifest(&manifest, &n_parts, path));
    LT_TRY_DONE(load_state(&loaded, manifest, path));
    LT_TRY_DONE(lt_stored_open(&stored, path, n_parts, o->share.table));
    LT_TRY_DONE(lt_stored_verify(&stored));
    LT_TRY_DONE(lt_stored_load(&stored, WEIGHTS, m, o->share.table, o->share.master));
    for (int i = 0; i < o->n_moments; i++) {
        char file[LT_PATH_BYTES];
        lt_part_file(name, o->moment_names[i], 0, stored.n_parts, ENDING);
        LT_TRY_DONE(lt_path_join(file, path, name));
        if (!lt_file_exists(file)) {
            LT_FAIL_DONE(LT_ERR_STATE, "%s was written by optimiser %s, which keeps no '%s'", path,
                         json_string_value(json_object_get(manifest, "optimiser")),
                         o->moment_names[i]);
        }
        LT_TRY_DONE(lt_stored_load(&stored, o->moment_names[i], m, o->share.table, &o->moments[i]));
    }
    LT_TRY_DONE(lt_model_sync_weights(m));
    m->version++;
    lt_run_state_clear(state);
    *state = loaded;
    loaded = (lt_run_state){0};
done:
    lt_stored_close(&stored);
    lt_run_state_clear(&loaded);
    json_decref(manifest);
    return err;
}

/* Verify the files that the manifest of a part lists. */
static lt_err verify_part(const char *folder, const char *manifest) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    json_t *root = NULL;
    const json_t *files;
    LT_TRY(lt_path_join(path, folder, manifest));
    LT_TRY(lt_json_load(&root, path, LT_MANIFEST_BYTES_MAX));
    files = json_object_get(root, "files");
    for (size_t i = 0; i < json_array_size(files); i++) {
        LT_TRY_DONE(lt_part_check_file(folder, json_array_get(files, i)));
    }
done:
    json_decref(root);
    return err;
}

lt_err lt_checkpoint_verify(const char *path) {
    lt_err err = LT_OK;
    json_t *manifest = NULL;
    const json_t *files;
    int n_parts = 0;
    LT_TRY(read_manifest(&manifest, &n_parts, path)); /* The listed files have been checked. */
    files = json_object_get(manifest, "files");
    for (size_t i = 0; i < (size_t)n_parts; i++) {
        const json_t *name = json_object_get(json_array_get(files, i), "name");
        LT_TRY_DONE(verify_part(path, json_string_value(name)));
    }
done:
    json_decref(manifest);
    return err;
}

bool lt_checkpoint_is(const char *path) {
    char manifest[LT_PATH_BYTES];
    json_t *root = NULL;
    int n_parts;
    const bool is = lt_path_join(manifest, path, LT_MANIFEST) == LT_OK &&
                    lt_file_exists(manifest) &&
                    lt_json_load(&root, manifest, LT_MANIFEST_BYTES_MAX) == LT_OK &&
                    check_header(&n_parts, root, manifest) == LT_OK;
    json_decref(root);
    return is;
}

lt_err lt_checkpoint_open_model(lt_model **out, const char *path) {
    const lt_model_options options = {.dtype = LT_F32, .trainable = true};
    lt_err err = LT_OK;
    char config[LT_PATH_BYTES];
    const char *rank;
    lt_model_spec spec;
    lt_model *m = NULL;
    lt_stored stored = {0};
    json_t *manifest = NULL;
    int n_parts = 0;

    LT_TRY_DONE(read_manifest(&manifest, &n_parts, path));
    rank = json_string_value(json_object_get(json_object_get(manifest, "recipe"), "lora.rank"));
    if (rank != NULL && strcmp(rank, "0") != 0) {
        LT_FAIL_DONE(LT_ERR_UNSUPPORTED,
                     "%s holds adapters, not a model: at its end a run writes them to OUT/adapter",
                     path);
    }
    LT_TRY_DONE(lt_path_join(config, path, "config.json"));
    LT_TRY_DONE(lt_model_spec_read(&spec, config));
    LT_TRY_DONE(lt_model_alloc(&m, &spec, &options));
    LT_TRY_DONE(lt_stored_open(&stored, path, n_parts, &m->table));
    LT_TRY_DONE(lt_stored_verify(&stored));
    LT_TRY_DONE(lt_stored_load(&stored, WEIGHTS, m, &m->table, &m->master));
    *out = m;
    m = NULL;
done:
    lt_stored_close(&stored);
    lt_model_close(m);
    json_decref(manifest);
    return err;
}

lt_err lt_checkpoint_load_newest(const char *folder, int64_t most, lt_model *m, lt_optimiser *o,
                                 lt_run_state *state, int64_t *n_broken) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    int64_t *steps = NULL;
    size_t n = 0;

    *n_broken = 0;
    LT_TRY_DONE(lt_checkpoint_list(&steps, &n, folder));
    for (size_t i = 0; i < n; i++) {
        if (steps[i] > most) {
            continue;
        }
        LT_TRY_DONE(lt_checkpoint_path(path, folder, steps[i]));
        err = lt_checkpoint_load(path, m, o, state);
        if (err == LT_OK || err == LT_ERR_STATE || err == LT_ERR_OOM) {
            /* Another model's checkpoint is a mistake of the user, not a damaged file. */
            goto done;
        }
        lt_log_warn("checkpoint %s is broken and skipped: %s", path, lt_error_message());
        *n_broken += 1;
    }
    LT_FAIL_DONE(LT_ERR_NOT_FOUND, "no whole checkpoint under %s", folder);
done:
    free(steps);
    return err;
}
