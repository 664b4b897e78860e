/* verb_completion.c: `lateen completion verbs | flags VERB | values VERB --FLAG`, which
 * tools/completion.sh calls. It prints one word per line. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/verb.h"
#include "cli/verbs.h"

const lt_option_table lt_verb_completion_options = {.title = "completion"};

static const lt_option_table *options_of(const char *verb) {
    for (size_t i = 0; i < lt_n_verbs; i++) {
        if (strcmp(lt_verbs[i].name, verb) == 0) {
            return lt_verbs[i].options;
        }
    }
    return NULL;
}

static void print_values(const lt_option_table *t, const char *flag) {
    for (size_t i = 0; i < t->n_rows; i++) {
        const lt_option *row = &t->rows[i];
        if (row->type != LT_OPTION_ENUM || strncmp(flag, "--", 2) != 0 ||
            strcmp(row->name, flag + 2) != 0) {
            continue;
        }
        for (const char *p = row->unit; *p != '\0'; p++) {
            putchar(*p == '|' ? '\n' : *p);
        }
        putchar('\n');
    }
}

int lt_verb_completion(int argc, char **argv);
int lt_verb_completion(int argc, char **argv) {
    static const char usage[] = "completion verbs | flags VERB | values VERB --FLAG";
    static const char prose[] = "Print the words that complete a command line: the verbs, the "
                                "flags of a verb, or the choices of a flag, one word a line.\nbash "
                                "loads it from tools/completion.sh, which `make install` "
                                "puts into share/bash-completion.";
    const lt_option_table *t = argc > 2 ? options_of(argv[2]) : NULL;
    const char *words[1];
    int n = 0, status = LT_EXIT_DONE;

    if (argc == 2 && strcmp(argv[1], "verbs") == 0) {
        for (size_t i = 0; i < lt_n_verbs; i++) {
            printf("%s\n", lt_verbs[i].name);
        }
        return LT_EXIT_DONE;
    }
    if (argc == 3 && strcmp(argv[1], "flags") == 0) {
        for (size_t i = 0; t != NULL && i < t->n_rows; i++) {
            printf("--%s\n", t->rows[i].name);
        }
        for (size_t i = 0; t != NULL && i < t->n_shorts; i++) {
            printf("--%s\n", t->shorts[i].name);
        }
        return LT_EXIT_DONE;
    }
    if (argc == 4 && strcmp(argv[1], "values") == 0) {
        if (t != NULL) {
            print_values(t, argv[3]);
        }
        return LT_EXIT_DONE;
    }
    if (argc > 1 && argv[1][0] == '-' &&
        !lt_verb_parse(&lt_verb_completion_options, NULL, 2, argv, usage, prose, words, 1, &n,
                       &status)) {
        return status;
    }
    return lt_verb_fail(lt_error_set(
        LT_ERR_ARG, "completion takes verbs, flags or values; usage: lateen %s", usage));
}
