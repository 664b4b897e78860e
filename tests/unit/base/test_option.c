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
    X(STR, data, "data.train", "", 0, 0, "", "mixture")                                            \
    X(STR, names, "names", "", 0, 0, "NAME,...", "several")

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
    assert_int_equal(lt_options_set(&table, &d, "optim.kind", "Muon", "flag"), LT_OK);
    assert_int_equal(d.kind, 1);
}

#define TEXT_OPTIONS(X) X(TEXT, prompt, "prompt", "none", 0, 0, "TEXT", "a prompt")
typedef struct {
    TEXT_OPTIONS(LT_OPTION_FIELD)
} text_options;
#undef LT_OPTION_STRUCT
#define LT_OPTION_STRUCT text_options
static const lt_option text_rows[] = {TEXT_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table text_table = LT_OPTION_TABLE("text", text_rows);

/* A text on the command line may have any length. */
static void texts(void **state) {
    static char word[3000], joined[sizeof word + 9];
    char *argv[] = {"text", "--prompt", word}, *one[] = {"text", joined};
    text_options o;
    bool help;
    int n;
    (void)state;
    memset(word, 'x', sizeof word - 1);
    snprintf(joined, sizeof joined, "--prompt=%s", word);
    lt_options_default(&text_table, &o);
    assert_string_equal(o.prompt, "none");
    assert_int_equal(lt_options_parse(&text_table, &o, 3, argv, NULL, 0, &n, &help), LT_OK);
    assert_string_equal(o.prompt, word);
    assert_int_equal(lt_options_parse(&text_table, &o, 2, one, NULL, 0, &n, &help), LT_OK);
    assert_ptr_equal(o.prompt, joined + 9);
    assert_int_equal(lt_options_set(&text_table, &o, "prompt", "", "t"), LT_OK);
    assert_string_equal(o.prompt, "");
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
    static const char *const names[] = {"model.width", "batch.size", "batch.sizes",
                                        "seed",        "n",          "optim.lr"};
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
                 {"model.w", NULL},
                 {"optim.xy", NULL}, /* Only the group is the same. */
                 {"optim.rl", "optim.lr"},
                 {"optimm.lr", "optim.lr"},
                 {"lr", "optim.lr"},
                 {"xy", NULL},
                 {"x", NULL},
                 {"sxxd", NULL}};
    char far[600];
    (void)state;
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        const char *got = lt_name_nearest(asked[i].name, names, 6);
        assert_true(got == asked[i].nearest || (got != NULL && asked[i].nearest != NULL));
        assert_true(got == NULL || strcmp(got, asked[i].nearest) == 0);
    }
    memset(far, 'x', sizeof far - 1);
    far[sizeof far - 1] = '\0';
    assert_null(lt_name_nearest(far, names, 6));
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

/* Values in a recipe have kinds; the text of a list with one element would look like that
 * element. */
static void kinds_are_checked(void **state) {
    static const struct {
        const char *yaml, *says; /* NULL: it is accepted. */
    } cases[] = {
        {"optim: {lr: [1]}", ": optim.lr is a list; it takes one value"},
        {"optim: {lr: [1, 2]}", ": optim.lr is a list; it takes one value"},
        {"optim: {lr: []}", ": optim.lr is an empty list; it takes one value"},
        {"optim: {lr: {}}", ": optim.lr is an empty mapping; it takes one value"},
        {"optim: {lr: null}", ": optim.lr is null; it takes one value, or is left out"},
        {"optim: {lr: true}", ": optim.lr: 'true' is not a number"},
        {"optim: {lr: {a: 1}}", ": unknown option 'optim.lr.a'"},
        {"steps: [5]", ": steps is a list"},
        {"steps: ~", ": steps is null"},
        {"steps: false", ": steps: 'false' is not a number"},
        {"resume: [true]", ": resume is a list"},
        {"resume: Null", ": resume is null"},
        {"resume: {}", ": resume is an empty mapping"},
        {"resume: \"true\"", NULL},
        {"optim: {kind: [lion]}", ": optim.kind is a list"},
        {"optim: {kind: NULL}", ": optim.kind is null"},
        {"optim: {kind: true}", ": optim.kind: 'true' is not one of adamw|muon|lion"},
        {"out: [a]", ": out is a list; it takes text"},
        {"out: [a, b]", ": out is a list"},
        {"out: {}", ": out is an empty mapping"},
        {"out: ~", ": out is null; it takes text, or is left out for its default"},
        {"out: False", ": out is true or false; it takes text, in quotes if that is meant"},
        {"out: 5", NULL},
        {"out: 'null'", NULL},
        {"out: \"false\"", NULL},
        {"out: truely", NULL},
        {"names: [a]", NULL},
        {"names: [a, b]", NULL},
        {"names: []", NULL},
        {"names: a,b", NULL},
        {"names: [a, null]", ": names is a list with a null; it takes text"},
        {"names: [~, a]", ": names is a list with a null"},
        {"names: {}", ": names is an empty mapping"},
        {"names: ['~']", NULL},
        {"names:", NULL},
    };
    char path[] = "/tmp/lt_kinds_XXXXXX", whole[256];
    const int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    (void)close(fd);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FILE *to = fopen(path, "we");
        demo d;
        assert_true(to != NULL && fputs(cases[i].yaml, to) >= 0 && fclose(to) == 0);
        lt_options_default(&table, &d);
        const lt_err err = lt_options_load_yaml(&table, &d, path);
        (void)snprintf(whole, sizeof whole, "%s:1%s", path,
                       cases[i].says != NULL ? cases[i].says : "");
        if ((err == LT_OK) != (cases[i].says == NULL) ||
            (err != LT_OK && strncmp(lt_error_message(), whole, strlen(whole)) != 0)) {
            fail_msg("%s: %s", cases[i].yaml, err != LT_OK ? lt_error_message() : "accepted");
        }
    }
    assert_int_equal(unlink(path), 0);
}

static void yaml_is_flattened(void **state) {
    const char *text = "a: 1\nb:\n  c: [x, y]\n  d:\n    e: 'q'\nl:\n  - k: 1\n  - k: 2\n"
                       "m: []\nn: {}\no:\n  p: []\n  q: 3\n";
    static const char *const want[][2] = {{"a", "1"},     {"b.c", "x,y"}, {"b.d.e", "q"},
                                          {"l.0.k", "1"}, {"l.1.k", "2"}, {"m", ""},
                                          {"n", ""},      {"o.p", ""},    {"o.q", "3"}};
    lt_yaml_entry *rows_read;
    size_t n;
    (void)state;
    assert_int_equal(lt_yaml_parse(&rows_read, &n, text, strlen(text), "t"), LT_OK);
    assert_int_equal(n, sizeof want / sizeof *want);
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

static lt_err parse(demo *d, char **argv, int *n, const char **positional, bool *help) {
    int argc = 0;
    while (argv[argc] != NULL) {
        argc++;
    }
    lt_options_default(&table, d);
    return lt_options_parse(&table, d, argc, argv, positional, 2, n, help);
}

static void flags_in_every_form(void **state) {
    char *forms[][6] = {{"demo", "--resume", "--steps", "7", NULL},
                        {"demo", "--resume=no", "--steps=7", NULL},
                        {"demo", "--resume", "false", "a", NULL},
                        {"demo", "--resume", "true", "a", NULL},
                        {"demo", "--resume", "other", "-", NULL},
                        {"demo", "--no-resume", "--", "--steps", "-x", NULL},
                        {"demo", "a", "-h", NULL},
                        {"demo", "--help", "--nonsense", NULL},
                        {"demo", "--optim-kind", "muon", NULL}};
    const char *positional[2];
    bool help;
    int n;
    demo d;
    (void)state;
    assert_int_equal(parse(&d, forms[0], &n, positional, &help), LT_OK);
    assert_true(d.resume && d.steps == 7 && n == 0 && !help);
    assert_int_equal(parse(&d, forms[1], &n, positional, &help), LT_OK);
    assert_true(!d.resume && d.steps == 7);
    assert_int_equal(parse(&d, forms[2], &n, positional, &help), LT_OK);
    assert_true(!d.resume && n == 1);
    assert_int_equal(parse(&d, forms[3], &n, positional, &help), LT_OK);
    assert_true(d.resume && n == 1);
    assert_int_equal(parse(&d, forms[4], &n, positional, &help), LT_OK);
    assert_true(d.resume && n == 2); /* "-" alone is an argument. */
    assert_string_equal(positional[0], "other");
    assert_string_equal(positional[1], "-");
    assert_int_equal(parse(&d, forms[5], &n, positional, &help), LT_OK);
    assert_true(!d.resume && n == 2);
    assert_string_equal(positional[0], "--steps");
    assert_int_equal(parse(&d, forms[6], &n, positional, &help), LT_OK);
    assert_true(help);
    assert_int_equal(parse(&d, forms[7], &n, positional, &help), LT_OK);
    assert_true(help);
    assert_int_equal(parse(&d, forms[8], &n, positional, &help), LT_ERR_ARG);
}

typedef struct {
    char from[LT_OPTION_STR_BYTES];
    int64_t n;
} bare_options;
#undef LT_OPTION_STRUCT
#define LT_OPTION_STRUCT bare_options
static const lt_option bare_rows[] = {
    LT_OPTION_ROW(STR, from, "from", "auto", 0, 1, "", "", LT_OPTION_BARE)
        LT_OPTION_ROW(I64, n, "n", "1", 0, 9, "", "")};
static const lt_option_table bare_table = LT_OPTION_TABLE("bare", bare_rows);

/* A flag that may have no value then means its default, whatever a recipe says. */
static void flags_without_value(void **state) {
    static char *forms[][5] = {{"x", "--from", "--n", "3", NULL},
                               {"x", "--n", "3", "--from", NULL},
                               {"x", "--from", "there", "--n", "3"},
                               {"x", "--from=there", "--n=3", NULL}};
    static const char *const wanted[] = {"auto", "auto", "there", "there"};
    static const int counts[] = {4, 4, 5, 3};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        bare_options o = {.from = "recipe", .n = 1};
        const char *positional[1];
        bool help;
        int n;
        assert_int_equal(
            lt_options_parse(&bare_table, &o, counts[i], forms[i], positional, 1, &n, &help),
            LT_OK);
        assert_string_equal(o.from, wanted[i]);
        assert_int_equal(o.n, 3);
        assert_int_equal(n, 0);
    }
}

static void flags_that_are_refused(void **state) {
    char long_flag[200] = "--",
         *forms[][5] = {{"demo", "--steps", NULL},    {"demo", "a", "b", "c", NULL},
                        {"demo", "-s", "3", NULL},    {"demo", "--no-steps", NULL},
                        {"demo", "--no-stepz", NULL}, {"demo", "--no-resume=true", NULL},
                        {"demo", long_flag, NULL}};
    static const char *const says[] = {"--steps needs a value", "unexpected argument 'c'",
                                       "unknown flag '-s'",     "unknown option 'no-steps'",
                                       "unknown option",        "unknown option",
                                       "flag of 128 characters"};
    const char *positional[2];
    bool help;
    int n;
    demo d;
    (void)state;
    memset(long_flag + 2, 'x', 128);
    for (size_t i = 0; i < sizeof says / sizeof *says; i++) {
        assert_int_equal(parse(&d, forms[i], &n, positional, &help), LT_ERR_ARG);
        if (strstr(lt_error_message(), says[i]) == NULL) {
            fail_msg("%s, not %s", lt_error_message(), says[i]);
        }
    }
    long_flag[2 + 127] = '\0'; /* The longest name that fits is still looked up. */
    assert_int_equal(parse(&d, forms[6], &n, positional, &help), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "unknown option 'xxx"));
}

static void numbers(void **state) {
    static const struct {
        const char *text;
        double value;
    } rows_of[] = {{"2k", 2e3},      {"2M", 2e6},      {"2g", 2e9},         {"2B", 2e9},
                   {"2T", 2e12},     {"2KiB", 2048.0}, {"2MiB", 2097152.0}, {"1GiB", 0x1p30},
                   {"1TiB", 0x1p40}, {"1.5K", 1500.0}};
    static const char *const bools[] = {"false", "true", "No", "YES", "off", "On", "0", "1"};
    char longest[LT_OPTION_STR_BYTES + 1];
    demo d;
    (void)state;
    lt_options_default(&table, &d);
    for (size_t i = 0; i < sizeof rows_of / sizeof *rows_of; i++) {
        assert_int_equal(lt_options_set(&table, &d, "steps", rows_of[i].text, "t"), LT_OK);
        assert_true((double)d.steps == rows_of[i].value);
    }
    for (int i = 0; i < 8; i++) {
        assert_int_equal(lt_options_set(&table, &d, "resume", bools[i], "t"), LT_OK);
        assert_int_equal(d.resume, i % 2);
    }
    assert_int_equal(lt_options_set(&table, &d, "resume", "maybe", "t"), LT_ERR_ARG);
    /* The bounds themselves are allowed. */
    assert_int_equal(lt_options_set(&table, &d, "steps", "1", "t"), LT_OK);
    assert_int_equal(lt_options_set(&table, &d, "steps", "1e15", "t"), LT_OK);
    assert_int_equal(lt_options_set(&table, &d, "steps", "1000000000000001", "t"), LT_ERR_ARG);
    assert_string_equal(lt_error_message(),
                        "t: steps = 1000000000000001 is outside [1, 1e+15] steps");
    assert_int_equal(lt_options_set(&table, &d, "steps", "3 K", "t"), LT_ERR_ARG);
    assert_int_equal(lt_options_set(&table, &d, "steps", "K", "t"), LT_ERR_ARG);
    assert_int_equal(lt_options_set(&table, &d, "steps", "3.5", "t"), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "is not a whole number"));
    assert_int_equal(lt_options_set(&table, &d, "optim.lr", "10", "t"), LT_OK);
    assert_int_equal(lt_options_set(&table, &d, "optim.lr", "0", "t"), LT_OK);
    assert_int_equal(lt_options_set(&table, &d, "optim.lr", "10.01", "t"), LT_ERR_ARG);
    assert_int_equal(lt_options_set(&table, &d, "optim.kind", "mu", "t"), LT_ERR_ARG);
    assert_int_equal(lt_options_set(&table, &d, "optim.kind", "muons", "t"), LT_ERR_ARG);
    assert_int_equal(lt_options_set(&table, &d, "optim.kind", "adamw", "t"), LT_OK);
    assert_int_equal(d.kind, 0);
    memset(longest, 'x', sizeof longest);
    longest[LT_OPTION_STR_BYTES] = '\0';
    assert_int_equal(lt_options_set(&table, &d, "out", longest, "t"), LT_ERR_ARG);
    longest[LT_OPTION_STR_BYTES - 1] = '\0';
    assert_int_equal(lt_options_set(&table, &d, "out", longest, "t"), LT_OK);
    assert_int_equal(lt_options_set(&table, &d, "data.train", "", "t"), LT_OK);
}

/* Known distances (Damerau, optimal string alignment): the nearest name wins, the first one of
 * ties; beyond three edits, or one for each three characters, there is none. */
static void distances(void **state) {
    static const char *const names[] = {"kitten", "sitting", "flaw", "lawn", "abcd", "abce"};
    (void)state;
    assert_string_equal(lt_name_nearest("sittin", names, 6), "sitting");
    assert_string_equal(lt_name_nearest("mitten", names, 6), "kitten");
    assert_string_equal(lt_name_nearest("kittenabc", names, 6), "kitten");
    assert_null(lt_name_nearest("kittenabcd", names, 6));
    assert_string_equal(lt_name_nearest("law", names, 6), "flaw");
    assert_string_equal(lt_name_nearest("abcf", names, 6), "abcd");
    assert_string_equal(lt_name_nearest("acbe", names, 6), "abce"); /* One swap. */
    assert_null(lt_name_nearest("xbcx", names, 6));                 /* Half of it is wrong. */
    assert_null(lt_name_nearest("sixxixg", names, 6));
    assert_null(lt_name_nearest("kitten", names, 0));
}

static void lines_with_their_numbers(void **state) {
    char path[] = "/tmp/lateen-option-XXXXXX", says[128];
    demo d;
    FILE *to;
    (void)state;
    close(mkstemp(path));
    to = fopen(path, "w");
    fputs("steps: 5\noptim:\n  lr: 0.5\n  kindz: muon\n", to);
    fclose(to);
    lt_options_default(&table, &d);
    assert_int_equal(lt_options_load_yaml(&table, &d, path), LT_ERR_ARG);
    snprintf(says, sizeof says, "%s:4: unknown option 'optim.kindz'; did you mean 'optim.kind'?",
             path);
    assert_string_equal(lt_error_message(), says);
    assert_int_equal(d.steps, 5);
    assert_true(d.lr == 0.5);
    unlink(path);
    assert_int_equal(lt_options_load_yaml(&table, &d, path), LT_ERR_NOT_FOUND);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_and_flags),
        cmocka_unit_test(texts),
        cmocka_unit_test(bad_values_are_refused),
        cmocka_unit_test(nearest_names),
        cmocka_unit_test(dump_reads_back),
        cmocka_unit_test(kinds_are_checked),
        cmocka_unit_test(yaml_is_flattened),
        cmocka_unit_test(bad_yaml_is_refused),
        cmocka_unit_test(flags_in_every_form),
        cmocka_unit_test(flags_without_value),
        cmocka_unit_test(flags_that_are_refused),
        cmocka_unit_test(numbers),
        cmocka_unit_test(distances),
        cmocka_unit_test(lines_with_their_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
