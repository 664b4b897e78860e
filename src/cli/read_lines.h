/* read_lines.h: reads lists of numbers and files of lines for several verbs. */
#ifndef LT_CLI_READ_LINES_H
#define LT_CLI_READ_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "lateen/base.h"

/* Read the first number of a list such as "1,4,16" and move *list past it and its comma. False: the
 * list does not begin with an integer, and *list is unchanged. */
bool lt_cli_next_number(const char **list, long long *out);

/* Called with a line, which ended with '\n' or at the end of the file. where: "NAME, line N", for
 * messages. */
typedef lt_err (*lt_cli_line_fn)(void *ctx, const char *where, const char *text, size_t n);

/* Call `each` for every line of f that is not blank. name: the file's. */
LT_MUST_USE lt_err lt_cli_each_line(FILE *f, const char *name, lt_cli_line_fn each, void *ctx);

#endif
