/* read_lines.c: see read_lines.h. */
#include "cli/read_lines.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"

bool lt_cli_next_number(const char **list, long long *out) {
    char *end;
    *out = strtoll(*list, &end, 10);
    if (end == *list || (*end != ',' && *end != '\0')) {
        return false;
    }
    *list = *end == ',' ? end + 1 : end;
    return true;
}

lt_err lt_cli_each_line(FILE *f, const char *name, lt_cli_line_fn each, void *ctx) {
    char *text = NULL, where[LT_PATH_BYTES + 32];
    size_t room = 0;
    lt_err err = LT_OK;
    ssize_t n;
    for (uint64_t line = 1; (n = getline(&text, &room, f)) >= 0; line++) {
        if (strspn(text, " \t\r\n") == (size_t)n) {
            continue;
        }
        (void)snprintf(where, sizeof where, "%s, line %llu", name, (unsigned long long)line);
        LT_TRY_DONE(each(ctx, where, text, (size_t)n));
    }
    if (ferror(f)) {
        LT_FAIL_DONE(LT_ERR_IO, "read %s: %s", name, strerror(errno));
    }
done:
    free(text);
    return err;
}
