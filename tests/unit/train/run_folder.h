/* run_folder.h: small runs, each in its own folder, for tests of what a run publishes and resumes
 * from. */
#ifndef TESTS_TRAIN_RUN_FOLDER_H
#define TESTS_TRAIN_RUN_FOLDER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "train/run.h"
#include "unit/device.h"

#define RUN_TOKENS 4000
#define RUN_IDS    61 /* Of a vocabulary of 64: three rows of the embedding are never read. */

static char run_root[] = "/tmp/lateen-runs-XXXXXX";

static inline void must(lt_err err, const char *what) {
    if (err != LT_OK) {
        fail_msg("%s: %s", what, lt_error_message());
    }
}

static inline void run_path(char path[LT_PATH_BYTES], const char *name) {
    (void)snprintf(path, LT_PATH_BYTES, "%s/%s", run_root, name);
}

/* Write an llm.c shard of n tokens, which depend on `salt`. */
static inline void run_shard(const char *name, int n, int salt) {
    char path[LT_PATH_BYTES];
    int32_t header[256] = {20240520, 1, n};
    FILE *f;
    run_path(path, name);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(header, sizeof header, 1, f), 1);
    for (int i = 0; i < n; i++) {
        const uint16_t id = (uint16_t)((i * i / 7 + i + salt) % RUN_IDS);
        assert_int_equal(fwrite(&id, sizeof id, 1, f), 1);
    }
    fclose(f);
}

static inline void run_set(lt_recipe *r, const char *name, const char *value) {
    must(lt_options_set(&lt_recipe_table, r, name, value, "test"), name);
}

/* A recipe with options "name=value name=value ..." on top of a small one, in run folder `out`;
 * free() it. */
static inline lt_recipe *run_recipe(const char *out, const char *options) {
    lt_recipe *r = calloc(1, sizeof *r);
    char path[LT_PATH_BYTES], *copy = strdup(options), *next = NULL;
    assert_non_null(r);
    lt_options_default(&lt_recipe_table, r);
    run_path(path, out);
    run_set(r, "out", path);
    run_path(path, "shard.bin");
    run_set(r, "data.train", path);
    run_set(r, "data.seq", "16");
    run_set(r, "model.vocab", "64");
    run_set(r, "model.layers", "1");
    run_set(r, "model.width", "16");
    run_set(r, "model.heads", "2");
    run_set(r, "batch.size", "4");
    run_set(r, "lr.schedule", "constant");
    run_set(r, "threads", "1");
    run_set(r, "export", "false");
    run_set(r, "log.plain_every", "1000");
    assert_non_null(copy);
    for (char *w = strtok_r(copy, " ", &next); w != NULL; w = strtok_r(NULL, " ", &next)) {
        char *equals = strchr(w, '=');
        assert_non_null(equals);
        *equals = '\0';
        run_set(r, w, equals + 1);
    }
    free(copy);
    return r;
}

static inline lt_err run_train(const char *out, const char *options, const lt_backend *be) {
    lt_recipe *r = run_recipe(out, options);
    const lt_err err = lt_run_training(r, device_of(be != NULL ? be : lt_backend_cpu()));
    free(r);
    return err;
}

static inline void says(const char *text) {
    if (strstr(lt_error_message(), text) == NULL) {
        fail_msg("'%s' is not in: %s", text, lt_error_message());
    }
}

/* Check which steps have checkpoints, oldest first. */
static inline void run_holds(const char *out, const char *want) {
    char path[LT_PATH_BYTES], name[256], text[256] = "";
    int64_t *steps = NULL;
    size_t n = 0;
    (void)snprintf(name, sizeof name, "%s/checkpoints", out);
    run_path(path, name);
    must(lt_checkpoint_list(&steps, &n, path), path);
    for (size_t i = n; i > 0; i--) {
        const size_t used = strlen(text);
        (void)snprintf(text + used, sizeof text - used, "%s%lld", used > 0 ? " " : "",
                       (long long)steps[i - 1]);
    }
    free(steps);
    if (strcmp(text, want) != 0) {
        fail_msg("%s holds %s, not %s; last message: %s", out, text, want, lt_error_message());
    }
}

static inline bool run_has(const char *out, const char *file) {
    char path[LT_PATH_BYTES], name[256];
    (void)snprintf(name, sizeof name, "%s/%s", out, file);
    run_path(path, name);
    return lt_file_exists(path);
}

/* Lines of metrics.jsonl of one kind. */
static inline json_t *run_lines(const char *out, const char *kind) {
    char path[LT_PATH_BYTES], name[256], *line = NULL;
    size_t room = 0;
    json_t *all = json_array();
    FILE *f;
    (void)snprintf(name, sizeof name, "%s/metrics.jsonl", out);
    run_path(path, name);
    f = fopen(path, "r");
    assert_non_null(f);
    while (getline(&line, &room, f) > 0) {
        json_t *row = json_loads(line, 0, NULL);
        assert_non_null(row);
        if (strcmp(json_string_value(json_object_get(row, "kind")), kind) == 0) {
            json_array_append(all, row);
        }
        json_decref(row);
    }
    free(line);
    fclose(f);
    return all;
}

static inline int run_root_make(void **state) {
    (void)state;
    if (mkdtemp(run_root) == NULL) {
        return -1;
    }
    run_shard("shard.bin", RUN_TOKENS, 0);
    return 0;
}

static inline int run_root_remove(void **state) {
    (void)state;
    return lt_file_remove_tree(run_root) == LT_OK ? 0 : -1;
}

#endif
