/* The option table: defaults, flags, YAML, ranges, suggestions, dump and read back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/option.h"
#include "base/yaml.h"

#define DEMO_OPTIONS(X)                                                                            \
    X(I64, steps, "steps", "100", 1, 1e15, "steps", "how long to train")                           \
    X(STR, out, "out", "runs/demo", 0, 1, "path", "run folder")                                    \
    X(BOOL, resume, "resume", "true", 0, 0, "", "go on from a checkpoint")                         \
    X(F64, lr, "optim.lr", "3e-4", 0, 10, "", "peak learning rate")                                \
    X(ENUM, kind, "optim.kind", "adamw", 0, 0, "adamw|muon|lion", "optimiser")                     \
    X(STR, data, "data.train", "", 0, 0, "", "mixture")

typedef struct {
    DEMO_OPTIONS(LT_OPTION_FIELD)
} demo;
#define LT_OPTION_STRUCT demo
static const lt_option rows[] = {DEMO_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("demo", rows);

static void defaults_and_flags(void **state) {
    char *argv[] = {"demo",        "file.yaml",    "--steps", "15B", "--optim.lr=1e-3",
                    "--no-resume", "--optim.kind", "lion"};
    const char *positional[1];
    bool help;
    int n;
    demo d;
    (void)state;
    lt_options_default(&table, &d);
    assert_int_equal(d.steps, 100);
    assert_true(d.resume);
    assert_string_equal(d.out, "runs/demo");
    assert_int_equal(lt_options_parse(&table, &d, 8, argv, positional, 1, &n, &help), LT_OK);
    assert_int_equal(n, 1);
    assert_string_equal(positional[0], "file.yaml");
    assert_int_equal(d.steps, 15000000000);
    assert_true(d.lr == 1e-3);
    assert_false(d.resume);
    assert_int_equal(d.kind, 2);
}

static void bad_values_are_refused(void **state) {
    demo d;
    (void)state;
    lt_options_default(&table, &d);
    assert_int_equal(lt_options_set(&table, &d, "steps", "0", "flag"), LT_ERR_ARG);
    assert_int_equal(lt_options_set(&table, &d, "steps", "1.5", "flag"), LT_ERR_ARG);
    assert_int_equal(lt_options_set(&table, &d, "steps", "x", "flag"), LT_ERR_ARG);
    assert_int_equal(lt_options_set(&table, &d, "optim.lr", "nan", "flag"), LT_ERR_ARG);
    assert_int_equal(lt_options_set(&table, &d, "optim.kind", "adam", "flag"), LT_ERR_ARG);
    assert_int_equal(lt_options_set(&table, &d, "out", "", "flag"), LT_ERR_ARG);
    assert_int_equal(lt_options_set(&table, &d, "optim.lrr", "1", "r.yaml:3"), LT_ERR_ARG);
    assert_string_equal(lt_error_message(),
                        "r.yaml:3: unknown option 'optim.lrr'; did you mean 'optim.lr'?");
    assert_int_equal(lt_options_set(&table, &d, "lr", "1", "flag"), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "'optim.lr'"));
    assert_int_equal(d.steps, 100);
}

static void nearest_names(void **state) {
    static const char *const names[] = {"model.width", "batch.size", "batch.sizes", "seed", "n"};
    static const struct {
        const char *name, *nearest;
    } asked[] = {{"model.widht", "model.width"},
                 {"widht", "model.width"},
                 {"batch.siz", "batch.size"},
                 {"batch.sizees", "batch.sizes"},
                 {"sedation", NULL},
                 {"see", "seed"},
                 {"", NULL},
                 {"foo", NULL},
                 {"nn", "n"},
                 {"model.wi", "model.width"},
                 {"model.w", NULL}};
    char far[600];
    (void)state;
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        const char *got = lt_name_nearest(asked[i].name, names, 5);
        assert_true(got == asked[i].nearest || (got != NULL && asked[i].nearest != NULL));
        assert_true(got == NULL || strcmp(got, asked[i].nearest) == 0);
    }
    memset(far, 'x', sizeof far - 1);
    far[sizeof far - 1] = '\0';
    assert_null(lt_name_nearest(far, names, 5));
}

static void dump_reads_back(void **state) {
    char path[] = "/tmp/lateen-option-XXXXXX";
    demo d, e;
    FILE *to;
    (void)state;
    lt_options_default(&table, &d);
    d.lr = 0.1 + 0.2;
    d.kind = 1;
    d.resume = false;
    snprintf(d.data, sizeof d.data, "a \"b\": c\\d,e");
    close(mkstemp(path));
    to = fopen(path, "w");
    lt_options_dump_yaml(&table, &d, to);
    fclose(to);
    lt_options_default(&table, &e);
    assert_int_equal(lt_options_load_yaml(&table, &e, path), LT_OK);
    assert_true(e.lr == d.lr);
    assert_int_equal(e.kind, 1);
    assert_false(e.resume);
    assert_string_equal(e.data, d.data);
    unlink(path);
}

static void yaml_is_flattened(void **state) {
    const char *text = "a: 1\nb:\n  c: [x, y]\n  d:\n    e: 'q'\nl:\n  - k: 1\n  - k: 2\n";
    static const char *const want[][2] = {
        {"a", "1"}, {"b.c", "x,y"}, {"b.d.e", "q"}, {"l.0.k", "1"}, {"l.1.k", "2"}};
    lt_yaml_entry *rows_read;
    size_t n;
    (void)state;
    assert_int_equal(lt_yaml_parse(&rows_read, &n, text, strlen(text), "t"), LT_OK);
    assert_int_equal(n, 5);
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(rows_read[i].key, want[i][0]);
        assert_string_equal(rows_read[i].value, want[i][1]);
    }
    lt_yaml_free(rows_read, n);
}

static void bad_yaml_is_refused(void **state) {
    static const char *const texts[] = {
        "- a\n",
        "a: 1\na: 2\n",
        "a: [1\n",
        "a: &x 1\nb: *x\n",
        "a: [[1]]\n",
        "just words\n",
        "{a: {b: {c: {d: {e: {f: {g: {h: {i: {j: {k: {l: {m: {n: {o: {p: {q: 1}}}}}}}}}}}}}}}}}\n"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        lt_yaml_entry *r = NULL;
        size_t n = 0;
        assert_int_not_equal(lt_yaml_parse(&r, &n, texts[i], strlen(texts[i]), "t"), LT_OK);
        assert_non_null(strstr(lt_error_message(), "t:"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_and_flags), cmocka_unit_test(bad_values_are_refused),
        cmocka_unit_test(nearest_names),      cmocka_unit_test(dump_reads_back),
        cmocka_unit_test(yaml_is_flattened),  cmocka_unit_test(bad_yaml_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
