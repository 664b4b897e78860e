/* json_pull.c: see json_pull.h. Every step first checks that a byte is left, so no sentinel is
 * needed. */
#include "data/tokenizer/json_pull.h"

#include <stdlib.h>
#include <string.h>

#include "base/encoding.h"
#include "base/error.h"

#define MAX_DEPTH 128

lt_json_pull lt_json_pull_over(const char *text, size_t bytes, const char *name) {
    text = text != NULL ? text : ""; /* The text of an empty file may be NULL. */
    return (lt_json_pull){
        .start = text, .at = text, .end = text + bytes, .name = name, .fresh = true};
}

void lt_json_pull_close(lt_json_pull *j) {
    lt_text_free(&j->text);
}

static lt_err bad(const lt_json_pull *j, const char *what) {
    if (j->at >= j->end) {
        LT_FAIL(LT_ERR_FORMAT, "%s: ends at byte %zu where %s is due", j->name,
                (size_t)(j->end - j->start), what);
    }
    LT_FAIL(LT_ERR_FORMAT, "%s: byte %zu: %s is due, not '%c'", j->name, (size_t)(j->at - j->start),
            what, *j->at >= 32 && *j->at < 127 ? *j->at : '?');
}

static void skip_space(lt_json_pull *j) {
    while (j->at < j->end &&
           (*j->at == ' ' || *j->at == '\n' || *j->at == '\r' || *j->at == '\t')) {
        j->at++;
    }
}

char lt_json_pull_peek(lt_json_pull *j) {
    skip_space(j);
    if (j->at >= j->end) {
        return 0;
    }
    switch (*j->at) {
    case '{':
    case '[':
    case '"':
    case 't':
    case 'f':
    case 'n':
        return *j->at;
    default:
        return *j->at == '-' || (*j->at >= '0' && *j->at <= '9') ? '-' : 0;
    }
}

lt_err lt_json_pull_begin(lt_json_pull *j, char bracket) {
    skip_space(j);
    if (j->at >= j->end || *j->at != bracket) {
        return bad(j, bracket == '{' ? "an object" : "an array");
    }
    if (j->depth == MAX_DEPTH) {
        LT_FAIL(LT_ERR_LIMIT, "%s: nested deeper than %d", j->name, MAX_DEPTH);
    }
    j->depth++;
    j->at++;
    j->fresh = true;
    return LT_OK;
}

/* Step past a comma, or past the closing bracket (*more = false). */
static lt_err step(lt_json_pull *j, char closing, bool *more) {
    skip_space(j);
    if (j->at < j->end && *j->at == closing) {
        j->at++;
        j->depth--;
        j->fresh = false;
        *more = false;
        return LT_OK;
    }
    if (!j->fresh) {
        if (j->at >= j->end || *j->at != ',') {
            return bad(j, closing == '}' ? "',' or '}'" : "',' or ']'");
        }
        j->at++;
    }
    j->fresh = false;
    *more = true;
    return LT_OK;
}

lt_err lt_json_pull_key(lt_json_pull *j, lt_slice *key, bool *more) {
    LT_TRY(step(j, '}', more));
    if (!*more) {
        return LT_OK;
    }
    LT_TRY(lt_json_pull_string(j, key));
    skip_space(j);
    if (j->at >= j->end || *j->at != ':') {
        return bad(j, "':'");
    }
    j->at++;
    return LT_OK;
}

lt_err lt_json_pull_next(lt_json_pull *j, bool *more) {
    return step(j, ']', more);
}

/* Four hex digits at p, or -1. */
static int32_t hex4(const char *p, const char *end) {
    int32_t v = 0;
    if (end - p < 4) {
        return -1;
    }
    for (int i = 0; i < 4; i++) {
        const int h = lt_hex_digit(p[i]);
        if (h < 0) {
            return -1;
        }
        v = v << 4 | h;
    }
    return v;
}

/* j->at is at the backslash: append the character and step past the escape. */
static lt_err unescape(lt_json_pull *j) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *hit;
    int32_t unit, low;

    if (j->end - j->at < 2) {
        j->at = j->end;
        return bad(j, "an escape");
    }
    hit = j->at[1] != '\0' ? strchr(from, j->at[1]) : NULL;
    if (hit != NULL) {
        j->at += 2;
        return lt_text_put(&j->text, &to[hit - from], 1);
    }
    unit = j->at[1] == 'u' ? hex4(j->at + 2, j->end) : -1;
    if (unit < 0) {
        return bad(j, "an escape");
    }
    j->at += 6;
    if (unit < 0xD800 || unit > 0xDFFF) {
        return lt_text_put_cp(&j->text, (uint32_t)unit);
    }
    low = unit < 0xDC00 && j->end - j->at >= 6 && j->at[0] == '\\' && j->at[1] == 'u'
              ? hex4(j->at + 2, j->end)
              : -1;
    if (low < 0xDC00 || low > 0xDFFF) {
        j->lone.first = j->lone.n++ == 0 ? j->text.n : j->lone.first;
        return lt_text_put_cp(&j->text, LT_UNICODE_REPLACEMENT);
    }
    j->at += 6;
    return lt_text_put_cp(&j->text,
                          0x10000 + ((uint32_t)(unit - 0xD800) << 10) + (uint32_t)(low - 0xDC00));
}

/* The first byte from p on that ends a run of plain characters: a quote, a backslash or a control
 * character. */
static const char *plain_end(const char *p, const char *end) {
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;
    uint64_t w, q, b;
    while (end - p >= 8) {
        memcpy(&w, p, 8);
        q = w ^ (ones * '"');
        b = w ^ (ones * '\\');
        if ((((q - ones) & ~q) | ((b - ones) & ~b) | ((w - ones * 0x20) & ~w)) & highs) {
            break;
        }
        p += 8;
    }
    while (p < end && *p != '"' && *p != '\\' && (unsigned char)*p >= 0x20) {
        p++;
    }
    return p;
}

lt_err lt_json_pull_string(lt_json_pull *j, lt_slice *out) {
    const char *begin;

    skip_space(j);
    if (j->at >= j->end || *j->at != '"') {
        return bad(j, "a string");
    }
    begin = ++j->at;
    j->lone = (lt_lone_escapes){0};
    j->at = plain_end(j->at, j->end);
    if (j->at < j->end && *j->at == '"') {
        *out = (lt_slice){begin, (size_t)(j->at - begin)};
        j->at++;
        return LT_OK;
    }
    j->text.n = 0;
    for (;;) {
        LT_TRY(lt_text_put(&j->text, begin, (size_t)(j->at - begin)));
        if (j->at >= j->end) {
            return bad(j, "'\"'");
        }
        if (*j->at == '"') {
            break;
        }
        if (*j->at != '\\') {
            return bad(j, "an escaped control character");
        }
        LT_TRY(unescape(j));
        begin = j->at;
        j->at = plain_end(j->at, j->end);
    }
    j->at++;
    LT_TRY(lt_text_reserve(&j->text, 1)); /* So that data is not NULL for an empty string. */
    *out = (lt_slice){j->text.data, j->text.n};
    return LT_OK;
}

lt_err lt_json_pull_i64(lt_json_pull *j, int64_t *out) {
    double v;
    const char *p;
    bool negative = false;
    int64_t whole = 0;

    skip_space(j);
    p = j->at;
    if (p < j->end && *p == '-') {
        negative = true;
        p++;
    }
    if (p >= j->end || *p < '0' || *p > '9') {
        return bad(j, "a whole number");
    }
    while (p < j->end && *p >= '0' && *p <= '9' && whole < INT64_MAX / 10 - 1) {
        whole = whole * 10 + (*p++ - '0');
    }
    if (p < j->end && (*p == '.' || *p == 'e' || *p == 'E' || (*p >= '0' && *p <= '9'))) {
        LT_TRY(lt_json_pull_f64(j, &v));
        if (!(v >= -0x1p62 && v <= 0x1p62) || (double)(int64_t)v != v) {
            LT_FAIL(LT_ERR_FORMAT, "%s: byte %zu: %g is not a whole number", j->name,
                    (size_t)(j->at - j->start), v);
        }
        *out = (int64_t)v;
        return LT_OK;
    }
    j->at = p;
    *out = negative ? -whole : whole;
    return LT_OK;
}

lt_err lt_json_pull_f64(lt_json_pull *j, double *out) {
    char digits[64], *stop = NULL;
    size_t n = 0;

    skip_space(j);
    while (j->at + n < j->end && n < sizeof digits - 1 && j->at[n] != '\0' &&
           strchr("+-.0123456789eE", j->at[n]) != NULL) {
        digits[n] = j->at[n];
        n++;
    }
    digits[n] = '\0';
    if (n == 0 || digits[0] == '+' || digits[0] == '.') {
        return bad(j, "a number");
    }
    *out = strtod(digits, &stop);
    if (*stop != '\0') {
        return bad(j, "a number");
    }
    j->at += n;
    return LT_OK;
}

static bool take_word(lt_json_pull *j, const char *word) {
    const size_t n = strlen(word);
    if ((size_t)(j->end - j->at) < n || memcmp(j->at, word, n) != 0) {
        return false;
    }
    j->at += n;
    return true;
}

lt_err lt_json_pull_bool(lt_json_pull *j, bool *out) {
    skip_space(j);
    *out = take_word(j, "true");
    return *out || take_word(j, "false") ? LT_OK : bad(j, "true or false");
}

/* Skip one scalar, or one bracket; the caller counts brackets. */
static lt_err skip_scalar(lt_json_pull *j) {
    lt_slice ignored;
    double v;
    switch (lt_json_pull_peek(j)) {
    case '"':
        return lt_json_pull_string(j, &ignored);
    case '-':
        return lt_json_pull_f64(j, &v);
    case 't':
        return take_word(j, "true") ? LT_OK : bad(j, "a value");
    case 'f':
        return take_word(j, "false") ? LT_OK : bad(j, "a value");
    case 'n':
        return take_word(j, "null") ? LT_OK : bad(j, "a value");
    default:
        return bad(j, "a value");
    }
}

lt_err lt_json_pull_skip(lt_json_pull *j, lt_slice *out) {
    const int floor = j->depth;
    char closing[MAX_DEPTH + 1];
    const char *begin;
    lt_slice key;
    bool more = true;

    skip_space(j);
    begin = j->at;
    do { /* Each iteration takes one scalar or one opening bracket, then any closing ones. */
        const char kind = lt_json_pull_peek(j);
        if (kind == '{' || kind == '[') {
            LT_TRY(lt_json_pull_begin(j, kind));
            closing[j->depth] = kind == '{' ? '}' : ']';
        } else {
            LT_TRY(skip_scalar(j));
        }
        while (j->depth > floor) {
            LT_TRY(closing[j->depth] == '}' ? lt_json_pull_key(j, &key, &more)
                                            : lt_json_pull_next(j, &more));
            if (more) {
                break;
            }
        }
    } while (j->depth > floor);
    j->fresh = false;
    if (out != NULL) {
        *out = (lt_slice){begin, (size_t)(j->at - begin)};
    }
    return LT_OK;
}

lt_err lt_json_pull_end(lt_json_pull *j) {
    skip_space(j);
    return j->at == j->end ? LT_OK : bad(j, "the end");
}

bool lt_slice_is(lt_slice s, const char *text) {
    return s.n == strlen(text) && memcmp(s.data, text, s.n) == 0;
}
