/* verb_completion.c: what tools/completion.sh asks: `lateen completion verbs | flags VERB | values VERB --FLAG`. One word a line. */
#include <stdio.h>
#include <string.h>

#include "cli/verb.h"
#include "cli/verbs.h"

const lt_option_table lt_verb_completion_options = {"completion", NULL, 0};

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
    const lt_option_table *t = argc > 2 ? options_of(argv[2]) : NULL;

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
        return LT_EXIT_DONE;
    }
    if (argc == 4 && strcmp(argv[1], "values") == 0) {
        if (t != NULL) {
            print_values(t, argv[3]);
        }
        return LT_EXIT_DONE;
    }
    fprintf(stderr, "usage: lateen completion verbs | flags VERB | values VERB --FLAG\n");
    return LT_EXIT_USAGE;
}
