/* python_text.h: methods of Python's str, for checkers that must agree with Python. Texts are
 * UTF-8. */
#ifndef LT_DATA_CHECK_PYTHON_TEXT_H
#define LT_DATA_CHECK_PYTHON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

typedef struct {
    const char *data;
    size_t n;
} lt_span;

/* The flags of re that are needed; . does not match \n, as in Python. */
#define LT_RE_CASELESS  1u
#define LT_RE_MULTILINE 2u

/* len(re.findall(pattern, text)), at most `most`. FORMAT: not a regular expression; LIMIT: matching
 * takes too long. Classes such as \w are Unicode's. */
LT_MUST_USE lt_err lt_re_count(int64_t *out, const char *pattern, lt_span text, unsigned flags,
                               int64_t most);
/* Call with each match, in order, until it returns false. */
LT_MUST_USE lt_err lt_re_each(const char *pattern, lt_span text, unsigned flags,
                              bool (*each)(void *ctx, lt_span match), void *ctx);

/* re.sub(pattern, replacement, text), where $1 is the first group and $0 the whole match. The
 * result has n bytes and a 0; the caller frees it. */
LT_MUST_USE lt_err lt_re_replace(char **out, size_t *n, const char *pattern,
                                 const char *replacement, lt_span text);

/* str.strip(), str.lstrip(), and str.strip(c). */
lt_span lt_span_strip(lt_span s);
lt_span lt_span_strip_left(lt_span s);
lt_span lt_span_strip_char(lt_span s, char c);
bool lt_span_begins(lt_span s, lt_span with);
bool lt_span_ends(lt_span s, lt_span with);
bool lt_span_same(lt_span a, lt_span b);
/* The next element of rest.split(by), which is removed from *rest; false at the end. */
bool lt_span_split(lt_span *rest, lt_span by, lt_span *part);
/* str.lower(); malloc'ed. NULL: out of memory. */
char *lt_span_lower(lt_span s, size_t *n);

#define LT_SPAN_OF(literal)                                                                        \
    { literal, sizeof(literal) - 1 }
#define LT_SPAN(literal) (lt_span) LT_SPAN_OF(literal)

#endif
