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
