/* python_text.c: see python_text.h. Regular expressions are PCRE2's with Unicode properties: \w is
 * a letter, a number or _, as in Python; \s lacks the separators U+001C to U+001F. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/check/python_text.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/unicode.h"

#define MATCH_LIMIT 10000000

static lt_err compile(pcre2_code **out, const char *pattern, unsigned flags) {
    const uint32_t options = PCRE2_UTF | PCRE2_UCP |
                             ((flags & LT_RE_CASELESS) != 0 ? PCRE2_CASELESS : 0) |
                             ((flags & LT_RE_MULTILINE) != 0 ? PCRE2_MULTILINE : 0);
    int code = 0;
    PCRE2_SIZE column = 0;
    *out = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &code, &column, NULL);
    if (*out == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "\"%.100s\" is not a regular expression: error %d at %zu", pattern,
                code, (size_t)column + 1);
    }
    return LT_OK;
}

lt_err lt_re_each(const char *pattern, lt_span text, unsigned flags,
                  bool (*each)(void *ctx, lt_span match), void *ctx) {
    PCRE2_SIZE at = 0;
    pcre2_code *re = NULL;
    pcre2_match_data *data = NULL;
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    lt_err err = LT_OK;

    /* Without a pattern, one that does not compile is used. */
    pattern = pattern != NULL ? pattern : "(";
    LT_TRY_DONE(compile(&re, pattern, flags));
    data = pcre2_match_data_create_from_pattern(re, NULL);
    if (data == NULL || limits == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "a match of \"%.100s\"", pattern);
    }
    pcre2_set_match_limit(limits, MATCH_LIMIT);
    while (at <= text.n) {
        const int n = pcre2_match(re, (PCRE2_SPTR)text.data, text.n, at,
                                  at > 0 ? PCRE2_NO_UTF_CHECK : 0, data, limits);
        const PCRE2_SIZE *v = pcre2_get_ovector_pointer(data);
        if (n == PCRE2_ERROR_NOMATCH) {
            break;
        }
        if (n < 0) {
            LT_FAIL_DONE(LT_ERR_LIMIT, "matching \"%.100s\": error %d", pattern, n);
        }
        if (!each(ctx, (lt_span){text.data + v[0], v[1] - v[0]})) {
            break;
        }
        at = v[1];
        if (v[1] == v[0]) { /* An empty match: continue after the next character. */
            do {
                at++;
            } while (at < text.n && ((unsigned char)text.data[at] & 0xC0) == 0x80);
        }
    }
done:
    pcre2_match_context_free(limits);
    pcre2_match_data_free(data);
    pcre2_code_free(re);
    return err;
}

lt_err lt_re_replace(char **out, size_t *n, const char *pattern, const char *replacement,
                     lt_span text) {
    int did;
    PCRE2_SIZE room = 2 * text.n + 64;
    pcre2_code *re = NULL;
    char *made = NULL;
    lt_err err = LT_OK;

    LT_TRY_DONE(compile(&re, pattern, 0));
    do { /* Repeated with the size that PCRE2 asks for. */
        char *more = realloc(made, room + 1);
        if (more == NULL) {
            LT_FAIL_DONE(LT_ERR_OOM, "a text of %zu bytes", (size_t)room);
        }
        made = more;
        *n = room;
        did = pcre2_substitute(re, (PCRE2_SPTR)text.data, text.n, 0,
                               PCRE2_SUBSTITUTE_GLOBAL | PCRE2_SUBSTITUTE_OVERFLOW_LENGTH, NULL,
                               NULL, (PCRE2_SPTR)replacement, PCRE2_ZERO_TERMINATED,
                               (PCRE2_UCHAR *)made, n);
        room = *n + 1;
    } while (did == PCRE2_ERROR_NOMEMORY);
    if (did < 0) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "replacing \"%.100s\": error %d", pattern, did);
    }
    made[*n] = '\0';
    *out = made;
    made = NULL;
done:
    free(made);
    pcre2_code_free(re);
    return err;
}

typedef struct {
    int64_t n, most;
} counter;

static bool count(void *ctx, lt_span match) {
    counter *c = ctx;
    (void)match;
    return ++c->n < c->most;
}

lt_err lt_re_count(int64_t *out, const char *pattern, lt_span text, unsigned flags, int64_t most) {
    counter c = {0, most};
    LT_TRY(lt_re_each(pattern, text, flags, count, &c));
    *out = c.n;
    return LT_OK;
}

/* Bytes of the white space, as str.isspace defines it, at the beginning of the text. */
static size_t space_at(const char *s, size_t n) {
    const unsigned char *u = (const unsigned char *)s;
    if (n > 0 && ((u[0] >= 0x09 && u[0] <= 0x0D) || (u[0] >= 0x1C && u[0] <= 0x20))) {
        return 1;
    }
    if (n > 1 && u[0] == 0xC2 && (u[1] == 0x85 || u[1] == 0xA0)) {
        return 2;
    }
    if (n > 2 &&
        ((u[0] == 0xE1 && u[1] == 0x9A && u[2] == 0x80) ||
         (u[0] == 0xE3 && u[1] == 0x80 && u[2] == 0x80) ||
         (u[0] == 0xE2 && u[1] == 0x81 && u[2] == 0x9F) ||
         (u[0] == 0xE2 && u[1] == 0x80 &&
          ((u[2] >= 0x80 && u[2] <= 0x8A) || u[2] == 0xA8 || u[2] == 0xA9 || u[2] == 0xAF)))) {
        return 3;
    }
    return 0;
}

lt_span lt_span_strip_left(lt_span s) {
    size_t width;
    while ((width = space_at(s.data, s.n)) > 0) {
        s.data += width;
        s.n -= width;
    }
    return s;
}

lt_span lt_span_strip(lt_span s) {
    s = lt_span_strip_left(s);
    while (s.n > 0) {
        size_t back = 1;
        while (back < 3 && back < s.n && ((unsigned char)s.data[s.n - back] & 0xC0) == 0x80) {
            back++;
        }
        if (space_at(s.data + s.n - back, back) != back) {
            break;
        }
        s.n -= back;
    }
    return s;
}

lt_span lt_span_strip_char(lt_span s, char c) {
    while (s.n > 0 && s.data[0] == c) {
        s.data++;
        s.n--;
    }
    while (s.n > 0 && s.data[s.n - 1] == c) {
        s.n--;
    }
    return s;
}

bool lt_span_begins(lt_span s, lt_span with) {
    return s.n >= with.n && memcmp(s.data, with.data, with.n) == 0;
}

bool lt_span_ends(lt_span s, lt_span with) {
    return s.n >= with.n && memcmp(s.data + s.n - with.n, with.data, with.n) == 0;
}

bool lt_span_same(lt_span a, lt_span b) {
    return a.n == b.n && memcmp(a.data, b.data, a.n) == 0;
}

bool lt_span_split(lt_span *rest, lt_span by, lt_span *part) {
    const char *found;
    if (rest->data == NULL) {
        return false;
    }
    found = memmem(rest->data, rest->n, by.data, by.n);
    *part = *rest;
    if (found == NULL) {
        *rest = (lt_span){NULL, 0};
        return true;
    }
    part->n = (size_t)(found - rest->data);
    rest->n -= part->n + by.n;
    rest->data = found + by.n;
    return true;
}

char *lt_span_lower(lt_span s, size_t *n) {
    lt_text out = {0};
    lt_err err = lt_text_put(&out, "", 0);
    for (size_t at = 0; at < s.n && err == LT_OK;) {
        uint32_t cp = 0;
        const uint32_t *lower;
        size_t count_n = 0;
        const size_t width = lt_utf8_decode((const uint8_t *)s.data + at,
                                            (const uint8_t *)s.data + s.n, &cp);
        at += width > 0 ? width : 1;
        lower = lt_unicode_lower(&cp, &count_n);
        for (size_t i = 0; i < count_n && err == LT_OK; i++) {
            err = lt_text_put_cp(&out, lower[i]);
        }
    }
    err = err == LT_OK ? lt_text_put(&out, "\0", 1) : err;
    if (err != LT_OK) {
        lt_text_free(&out);
        return NULL;
    }
    *n = out.n - 1;
    return out.data;
}
