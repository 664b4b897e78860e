/* Fuzz target: a pattern (up to the first newline) and a text for it; matches must advance and
 * stay inside the text. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static lt_regex_scratch *s = NULL;
    const uint8_t *line = size > 0 ? memchr(data, '\n', size) : NULL;
    const char *text = line != NULL ? (const char *)line + 1 : "aB1 \xC3\xA9\n";
    const size_t n = line != NULL ? size - (size_t)(line + 1 - data) : 7;
    lt_regex *r = NULL;
    lt_regex_cursor at = {0};
    size_t last = 0, begin = 0, end = 0, count = 0;
    bool found = true;
    if (s == NULL && lt_regex_scratch_open(&s) != LT_OK) {
        abort();
    }
    if (size > 512 || lt_utf8_valid_prefix(text, n) != n ||
        lt_regex_open(&r, (const char *)data, line != NULL ? (size_t)(line - data) : size,
                      (lt_regex_dialect)(size & 1), "fuzz") != LT_OK) {
        return 0;
    }
    (void)lt_regex_may_be_empty(r);
    while (found && lt_regex_next(r, s, text, n, &at, &found, &begin, &end) == LT_OK && found) {
        if (begin > end || end > n || end < last || ++count > 2 * n + 2) {
            abort();
        }
        last = end;
    }
    lt_regex_close(r);
    return 0;
}
