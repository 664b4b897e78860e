/* Fuzz target: a command line. Its words, separated by NUL or newline, go to the table of
 * training recipes and to a small one with every type; an accepted value must be within its
 * bounds and must read back from its text. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/option.h"
#include "train/recipe/recipe.h"

#define OPTIONS(X)                                                                                 \
    X(BOOL, on, "on", "false", 0, 0, "", "a flag")                                                 \
    X(I64, count, "count", "3", -5, 1000, "", "a number")                                          \
    X(F64, rate, "rate", "0.5", -1, 1e6, "", "a real number")                                      \
    X(STR, name, "name", "x", 0, 1, "", "a word")                                                  \
    X(ENUM, kind, "a.kind", "one", 0, 0, "one|two|three", "a choice")

typedef struct {
    OPTIONS(LT_OPTION_FIELD)
} options;
#define LT_OPTION_STRUCT options
static const lt_option rows[] = {OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("fuzz", rows);

#define MAX_WORDS 64

static void check(const lt_option_table *t, void *obj, size_t obj_bytes, int argc, char **argv) {
    const char *positional[4];
    char text[4096], *copy;
    bool help = false;
    int n = 0;
    lt_options_default(t, obj);
    if (lt_options_parse(t, obj, argc, argv, positional, 4, &n, &help) != LT_OK) {
        if (lt_error_message()[0] == '\0') {
            abort();
        }
        return;
    }
    copy = malloc(obj_bytes);
    memcpy(copy, obj, obj_bytes);
    for (size_t i = 0; i < t->n_rows && !help; i++) {
        lt_option_text(&t->rows[i], obj, text, sizeof text);
        if (t->rows[i].type == LT_OPTION_STR) {
            continue; /* An option that may be absent is not printed when empty. */
        }
        if (lt_options_set(t, obj, t->rows[i].name, text, "again") != LT_OK) {
            fprintf(stderr, "%s\n", lt_error_message());
            abort();
        }
    }
    if (memcmp(copy, obj, obj_bytes) != 0) {
        abort();
    }
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static lt_recipe recipe;
    static options small;
    char *text = malloc(size + 1), *argv[MAX_WORDS + 1];
    int argc = 1;
    memcpy(text, data, size);
    text[size] = '\0';
    argv[0] = (char *)"fuzz";
    for (size_t at = 0; at < size && argc < MAX_WORDS;) {
        argv[argc++] = text + at;
        while (at < size && text[at] != '\0' && text[at] != '\n') {
            at++;
        }
        text[at++] = '\0';
    }
    argv[argc] = NULL;
    check(&table, &small, sizeof small, argc, argv);
    check(&lt_recipe_table, &recipe, sizeof recipe, argc, argv);
    free(text);
    return 0;
}
