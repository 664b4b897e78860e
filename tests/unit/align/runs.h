/* runs.h: small runs of the model of tests/golden/sft, which has a tokenizer and a template, for
 * tests of objectives. */
#ifndef TESTS_ALIGN_RUNS_H
#define TESTS_ALIGN_RUNS_H

#include "unit/train/run_folder.h"

#define MODEL "tests/golden/sft"

static inline void write_file(const char *name, const char *text) {
    char path[LT_PATH_BYTES];
    run_path(path, name);
    must(lt_file_write_atomic(path, text, strlen(text)), path);
}

/* Copy a model into a folder of the runs, with the tokenizer and the template of
 * tests/golden/sft. */
static inline void copy_model_folder(const char *name, const char *from) {
    const char *const files[][2] = {{from, "config.json"},
                                    {from, "model.safetensors"},
                                    {MODEL, "tokenizer.json"},
                                    {MODEL, "tokenizer_config.json"}};
    char folder[LT_PATH_BYTES], file[LT_PATH_BYTES], to[LT_PATH_BYTES];
    run_path(folder, name);
    must(lt_file_make_dirs(folder), folder);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        must(lt_path_join(file, files[i][0], files[i][1]), name);
        must(lt_path_join(to, folder, files[i][1]), name);
        must(lt_file_copy(file, to, 1 << 22), file);
    }
}

/* Invert the lowest bit of the last weight in the file of such a copy. */
static inline void change_model_folder(const char *name) {
    char folder[LT_PATH_BYTES], path[LT_PATH_BYTES], *bytes = NULL;
    size_t n;
    run_path(folder, name);
    must(lt_path_join(path, folder, "model.safetensors"), name);
    must(lt_file_read(&bytes, &n, path, 1 << 22), path);
    bytes[n - sizeof(float)] ^= 1;
    must(lt_file_write_atomic(path, bytes, n), path);
    free(bytes);
}

/* The recipe of run_folder.h for the model of tests/golden/sft, with the lines of a file. */
static inline lt_recipe *recipe_of(const char *out, const char *lines, const char *options) {
    static const char *const sizes[] = {"model.vocab", "model.layers", "model.width",
                                        "model.heads"};
    lt_recipe *r = run_recipe(out, options);
    char path[LT_PATH_BYTES];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        run_set(r, sizes[i], "0");
    }
    run_path(path, lines);
    run_set(r, "data.train", path);
    run_set(r, "model.init", MODEL);
    run_set(r, "sample.tokens", "0");
    run_set(r, "optim.decay", "0");
    return r;
}

#endif
