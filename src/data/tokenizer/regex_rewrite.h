/* regex_rewrite.h: a pattern of another dialect as PCRE2 understands it. */
#ifndef LT_DATA_REGEX_REWRITE_H
#define LT_DATA_REGEX_REWRITE_H

#include <stddef.h>

#include "data/tokenizer/regex.h"
#include "data/tokenizer/unicode.h"

/* Append the pattern, which is valid UTF-8, in PCRE2's syntax (with its options UTF, UCP and
 * MULTILINE) to *out. What is not understood is refused. Messages begin with name. */
LT_MUST_USE lt_err lt_regex_rewrite(const char *pattern, size_t n, lt_regex_dialect dialect,
                                    const char *name, lt_text *out);

#endif
