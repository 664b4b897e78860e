/* checkpoint.c: see checkpoint.h for the format and the crash cases. */
#include "train/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "model/alloc.h"
#include "model/safetensors.h"

#define FORMAT_NAME        "lateen-checkpoint"
#define FORMAT_VERSION     1
#define MANIFEST           "manifest.json"
#define MANIFEST_BYTES_MAX ((size_t)16 << 20)
#define WEIGHTS_FILE       "weights.safetensors"

void lt_run_state_clear(lt_run_state *s) {
    json_decref(s->loader);
    json_decref(s->guard);
    json_decref(s->recipe);
    json_decref(s->data);
    *s = (lt_run_state){0};
}

/* Index of the first of n values that is not finite, or -1. The largest exponent field, as bits, is
 * found first: that vectorises. */
static int64_t first_not_finite(const void *values, lt_dtype dtype, int64_t n) {
    const uint16_t *low = values;
    const uint32_t *full = values;
    uint32_t worst = 0;

    LT_ASSERT(dtype == LT_F32 || dtype == LT_BF16);
    for (int64_t i = 0; dtype == LT_BF16 && i < n; i++) {
        const uint32_t exponent = low[i] & 0x7F80u;
        worst = exponent > worst ? exponent : worst;
    }
    for (int64_t i = 0; dtype == LT_F32 && i < n; i++) {
        const uint32_t exponent = full[i] & 0x7F800000u;
        worst = exponent > worst ? exponent : worst;
    }
    if (worst != (dtype == LT_F32 ? 0x7F800000u : 0x7F80u)) {
        return -1;
    }
    for (int64_t i = 0;; i++) {
        if ((dtype == LT_F32 ? full[i] & 0x7F800000u : low[i] & 0x7F80u) == worst) {
            return i;
        }
    }
}

static lt_err check_finite(const void *values, lt_dtype dtype, int64_t first, int64_t n,
                           const char *what, const char *param) {
    const int64_t at = first_not_finite(values, dtype, n);
    if (at >= 0) {
        LT_FAIL(LT_ERR_NUMERIC, "%s: element %lld of %s is not finite", what,
                (long long)(first + at), param);
    }
    return LT_OK;
}

/* ---- Writing ---- */

static lt_err list_file(json_t *files, const char *folder, const char *name, uint64_t hash) {
    char path[LT_PATH_BYTES], hex[24];
    lt_file_map map;
    LT_TRY(lt_path_join(path, folder, name));
    LT_TRY(lt_file_map_open(&map, path));
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hash);
    json_array_append_new(files, json_pack("{s:s, s:I, s:s}", "name", name, "bytes",
                                           (json_int_t)map.size_bytes, "xxh3", hex));
    lt_file_map_close(&map);
    return LT_OK;
}

/* One parameter of a buffer of the model's backend. */
typedef struct {
    const lt_model *model;
    const char *first, *file, *param;
    lt_dtype dtype;
} flat_part;

static lt_err fill_part(const void *ctx, void *dst, int64_t first, int64_t count) {
    const flat_part *p = ctx;
    const size_t each = lt_dtype_bytes(p->dtype);
    LT_TRY(lt_model_download(p->model, dst, p->first + (size_t)first * each, (size_t)count * each));
    return check_finite(dst, p->dtype, first, count, p->file, p->param);
}

/* One buffer as name.safetensors, parameter by parameter. */
static lt_err save_buffer(json_t *files, const char *folder, const char *name, const lt_model *m,
                          const lt_param_buffer *b) {
    const lt_param_table *t = &m->table;
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    uint64_t hash = 0;
    lt_safetensor_out *outs = calloc((size_t)t->n_params, sizeof *outs);
    flat_part *parts = calloc((size_t)t->n_params, sizeof *parts);

    if (outs == NULL || parts == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s/%s", folder, name);
    }
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        parts[i] = (flat_part){m, lt_param_data(b, p), name, p->name, b->dtype};
        outs[i] = (lt_safetensor_out){.name = p->name,
                                      .dtype = b->dtype,
                                      .n_dims = p->n_dims,
                                      .fill = fill_part,
                                      .ctx = &parts[i]};
        memcpy(outs[i].shape, p->shape, sizeof p->shape);
    }
    LT_TRY_DONE(lt_path_join(path, folder, name));
    LT_TRY_DONE(lt_safetensors_write(path, outs, (size_t)t->n_params, NULL, &hash));
    LT_TRY_DONE(list_file(files, folder, name, hash));
done:
    free(outs);
    free(parts);
    return err;
}

static void moment_file(char name[64], const char *moment) {
    snprintf(name, 64, "%s.safetensors", moment);
}

static lt_err write_manifest(const char *folder, json_t *files, const lt_optimiser *o,
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
                     "format", FORMAT_NAME, "version", FORMAT_VERSION, "step",
                     (json_int_t)state->step, "rows", (json_int_t)state->rows, "tokens",
                     (json_int_t)state->tokens, "good", !state->suspect, "loss", state->loss,
                     "optimiser", optim, "loader", state->loader, "guard", state->guard, "recipe",
                     state->recipe, "data", state->data, "files", files);
    text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    if (text == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: manifest", folder);
    }
    LT_TRY_DONE(lt_path_join(path, folder, MANIFEST));
    LT_TRY_DONE(lt_file_write_atomic(path, text, strlen(text)));
done:
    json_decref(root);
    free(text);
    return err;
}

static lt_err write_all(const char *aside, const lt_model *m, const lt_optimiser *o,
                        const lt_run_state *state) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES], name[64];
    json_t *files = json_array();

    LT_TRY_DONE(lt_file_remove_tree(aside));
    LT_TRY_DONE(lt_file_make_dirs(aside));
    LT_TRY_DONE(save_buffer(files, aside, WEIGHTS_FILE, m, &m->master));
    for (int i = 0; i < o->n_moments; i++) {
        moment_file(name, o->moment_names[i]);
        LT_TRY_DONE(save_buffer(files, aside, name, m, &o->moments[i]));
    }
    LT_TRY_DONE(lt_path_join(path, aside, "config.json"));
    LT_TRY_DONE(lt_model_spec_write(&m->spec, LT_F32, path));
    LT_TRY_DONE(write_manifest(aside, files, o, state));
    LT_TRY_DONE(lt_file_sync_dir(aside));
done:
    json_decref(files);
    return err;
}

lt_err lt_checkpoint_save(const char *folder, const lt_model *m, const lt_optimiser *o,
                          const lt_run_state *state) {
    lt_err err = LT_OK;
    char name[LT_CHECKPOINT_NAME_BYTES], path[LT_PATH_BYTES], aside[LT_PATH_BYTES];

    LT_TRY(lt_file_make_dirs(folder));
    lt_checkpoint_name(name, state->step, "");
    LT_TRY(lt_path_join(path, folder, name));
    lt_checkpoint_name(name, state->step, ".tmp");
    LT_TRY(lt_path_join(aside, folder, name));
    LT_TRY_DONE(write_all(aside, m, o, state));
    if (lt_file_exists(path)) { /* A broken one that was passed over at resume. */
        LT_TRY_DONE(lt_checkpoint_remove(path));
    }
    if (rename(aside, path) != 0) {
        LT_FAIL_DONE(LT_ERR_IO, "rename %s to %s: %s", aside, path, strerror(errno));
    }
    LT_TRY_DONE(lt_file_sync_dir(folder));
done:
    /* A full disk must not stay full of a half checkpoint; the first message is the one that
     * counts. */
    if (err != LT_OK) {
        lt_failure failure;
        lt_failure_keep(&failure, err);
        if (lt_file_remove_tree(aside) != LT_OK) {
            lt_log_warn("%s", lt_error_message());
        }
        return lt_error_prefix(lt_failure_raise(&failure), "checkpoint of step %lld not saved",
                               (long long)state->step);
    }
    return LT_OK;
}

/* ---- Reading ---- */

typedef struct {
    const char *name, *xxh3;
    int64_t bytes;
} file_claim;

/* What the manifest says of a file. Its name is a name: a path could lead anywhere. */
static lt_err read_claim(file_claim *c, const json_t *entry, const char *what) {
    *c = (file_claim){0};
    LT_TRY(lt_json_str(entry, "name", &c->name, false, what));
    LT_TRY(lt_json_i64(entry, "bytes", &c->bytes, false, what));
    LT_TRY(lt_json_str(entry, "xxh3", &c->xxh3, false, what));
    if (strchr(c->name, '/') != NULL) {
        LT_FAIL(LT_ERR_FORMAT, "%s: file name '%s' leads out of its folder", what, c->name);
    }
    return LT_OK;
}

static lt_err check_file(const char *folder, const json_t *entry) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES], hex[24];
    file_claim claim;
    lt_file_map map = {0};

    LT_TRY(read_claim(&claim, entry, folder));
    LT_TRY(lt_path_join(path, folder, claim.name));
    LT_TRY(lt_file_map_open(&map, path));
    if ((int64_t)map.size_bytes != claim.bytes) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s has %zu bytes, its manifest says %lld", path,
                     map.size_bytes, (long long)claim.bytes);
    }
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)XXH3_64bits(map.data, map.size_bytes));
    if (strcmp(hex, claim.xxh3) != 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s has checksum %s, its manifest says %s", path, hex,
                     claim.xxh3);
    }
done:
    lt_file_map_close(&map);
    return err;
}

static lt_err check_header(const json_t *root, const char *path) {
    const char *format = NULL;
    int64_t version = 0;
    LT_TRY(lt_json_str(root, "format", &format, false, path));
    LT_TRY(lt_json_i64(root, "version", &version, false, path));
    if (strcmp(format, FORMAT_NAME) != 0 || version != FORMAT_VERSION) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: format %s version %lld; this program reads %s version %d",
                path, format, (long long)version, FORMAT_NAME, FORMAT_VERSION);
    }
    if (json_array_size(json_object_get(root, "files")) == 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s: no files listed", path);
    }
    return LT_OK;
}

static lt_err load_state(lt_run_state *state, const json_t *manifest, const char *path) {
    int64_t rows = 0, tokens = 0;
    bool good = true;
    LT_TRY(lt_json_bool(manifest, "good", &good, true, path));
    LT_TRY(lt_json_f64(manifest, "loss", &state->loss, true, path));
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
    state->recipe = json_incref(json_object_get(manifest, "recipe")); /* Older ones have none. */
    state->data = json_incref(json_object_get(manifest, "data"));
    if (state->loader == NULL || state->guard == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "%s: manifest without loader or guard state", path);
    }
    return LT_OK;
}

lt_err lt_checkpoint_parse(lt_run_state *state, const char *text, size_t bytes, const char *path) {
    lt_err err = LT_OK;
    file_claim claim;
    json_t *root = NULL;
    const json_t *files;

    LT_TRY_DONE(lt_json_parse(&root, text, bytes, path));
    LT_TRY_DONE(check_header(root, path));
    files = json_object_get(root, "files");
    for (size_t i = 0; i < json_array_size(files); i++) {
        LT_TRY_DONE(read_claim(&claim, json_array_get(files, i), path));
    }
    LT_TRY_DONE(load_state(state, root, path));
done:
    json_decref(root);
    return err;
}

static lt_err read_manifest(json_t **out, const char *folder) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    const json_t *files;
    json_t *root = NULL;

    LT_TRY(lt_path_join(path, folder, MANIFEST));
    LT_TRY(lt_json_load(&root, path, MANIFEST_BYTES_MAX));
    LT_TRY_DONE(check_header(root, path));
    files = json_object_get(root, "files");
    for (size_t i = 0; i < json_array_size(files); i++) {
        LT_TRY_DONE(check_file(folder, json_array_get(files, i)));
    }
    *out = root;
    root = NULL;
done:
    json_decref(root);
    return err;
}

static lt_err load_buffer(const char *folder, const char *name, const lt_model *m,
                          const lt_param_buffer *b) {
    const lt_param_table *t = &m->table;
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    lt_safetensors s = {0};

    LT_TRY(lt_path_join(path, folder, name));
    LT_TRY(lt_safetensors_open(&s, path));
    if (s.n_tensors != (size_t)t->n_params) {
        LT_FAIL_DONE(LT_ERR_STATE, "%s holds %zu parameters, this model has %d", path, s.n_tensors,
                     t->n_params);
    }
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        const lt_safetensor *found = lt_safetensors_find(&s, p->name);
        if (found != NULL && found->dtype != b->dtype) {
            LT_FAIL_DONE(LT_ERR_STATE, "%s: parameter %s is stored as %s, this run keeps it as %s",
                         path, p->name, lt_dtype_name(found->dtype), lt_dtype_name(b->dtype));
        }
        if (found == NULL || found->n_dims != p->n_dims ||
            memcmp(found->shape, p->shape, (size_t)p->n_dims * sizeof *p->shape) != 0) {
            LT_FAIL_DONE(LT_ERR_STATE, "%s: parameter %s is %s in this model", path, p->name,
                         found == NULL ? "not there, but" : "of another shape");
        }
        LT_TRY_DONE(check_finite(found->data, b->dtype, 0, p->count, path, p->name));
        LT_TRY_DONE(lt_model_upload(m, lt_param_data(b, p), found->data, found->bytes));
    }
done:
    lt_safetensors_close(&s);
    return err;
}

lt_err lt_checkpoint_load(const char *path, lt_model *m, lt_optimiser *o, lt_run_state *state) {
    lt_err err = LT_OK;
    lt_run_state loaded = {0};
    json_t *manifest = NULL;
    char name[64];

    LT_TRY_DONE(read_manifest(&manifest, path));
    LT_TRY_DONE(load_state(&loaded, manifest, path));
    LT_TRY_DONE(load_buffer(path, WEIGHTS_FILE, m, &m->master));
    for (int i = 0; i < o->n_moments; i++) {
        char file[LT_PATH_BYTES];
        moment_file(name, o->moment_names[i]);
        LT_TRY_DONE(lt_path_join(file, path, name));
        if (!lt_file_exists(file)) {
            LT_FAIL_DONE(LT_ERR_STATE, "%s was written by optimiser %s, which keeps no '%s'", path,
                         json_string_value(json_object_get(manifest, "optimiser")),
                         o->moment_names[i]);
        }
        LT_TRY_DONE(load_buffer(path, name, m, &o->moments[i]));
    }
    LT_TRY_DONE(lt_model_sync_weights(m));
    m->version++;
    lt_run_state_clear(state);
    *state = loaded;
    loaded = (lt_run_state){0};
done:
    lt_run_state_clear(&loaded);
    json_decref(manifest);
    return err;
}

lt_err lt_checkpoint_load_newest(const char *folder, lt_model *m, lt_optimiser *o,
                                 lt_run_state *state, int64_t *n_broken) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    int64_t *steps = NULL;
    size_t n = 0;

    *n_broken = 0;
    LT_TRY_DONE(lt_checkpoint_list(&steps, &n, folder));
    for (size_t i = 0; i < n; i++) {
        LT_TRY_DONE(lt_checkpoint_path(path, folder, steps[i]));
        err = lt_checkpoint_load(path, m, o, state);
        if (err == LT_OK || err == LT_ERR_STATE || err == LT_ERR_OOM) {
            goto done; /* Another model's checkpoint is the user's mistake, not a broken file. */
        }
        lt_log_warn("checkpoint %s is broken and skipped: %s", path, lt_error_message());
        *n_broken += 1;
    }
    LT_FAIL_DONE(LT_ERR_NOT_FOUND, "no whole checkpoint under %s", folder);
done:
    free(steps);
    return err;
}
