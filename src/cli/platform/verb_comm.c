/* verb_comm.c: `lateen comm blame DIR`: explains why a run of several ranks ended. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/verb.h"
#include "lateen/comm.h"

#define TEXT_BYTES 16384

static const lt_option rows[] = {{.name = NULL}};
const lt_option_table lt_verb_comm_options = {.title = "comm blame", .rows = rows, .n_rows = 0};

static const char prose[] =
    "Read the records that the ranks of a run left in DIR when it failed (rank-N.jsonl), and say\n"
    "which ranks left none, in which calls the others wait, which ranks never made them, and\n"
    "which made a different call.\n";

int lt_verb_comm(int argc, char **argv) {
    const char *dir = NULL;
    char text[TEXT_BYTES];
    int status, n_positional, unused = 0;
    const bool blame = argc > 1 && strcmp(argv[1], "blame") == 0;
    const bool help = argc > 1 && strcmp(argv[1], "--help") == 0;

    if (!blame && !help) {
        (void)fprintf(stderr, "usage: lateen comm blame DIR\n");
        return LT_EXIT_USAGE;
    }
    if (!lt_verb_parse(&lt_verb_comm_options, &unused, argc - blame, argv + blame, "comm blame DIR",
                       prose, &dir, 1, &n_positional, &status)) {
        return status;
    }
    if (n_positional != 1) {
        (void)fprintf(stderr, "usage: lateen comm blame DIR\n");
        return LT_EXIT_USAGE;
    }
    if (lt_comm_blame(dir, text, sizeof text) != LT_OK) {
        return lt_verb_fail(LT_ERR_IO);
    }
    (void)fputs(text, stdout);
    return LT_EXIT_DONE;
}
