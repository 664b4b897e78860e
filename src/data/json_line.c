/* json_line.c: see json_line.h. A cursor walks the line; values other than the wanted member are
 * only validated. Nested values are walked with a stack of bits (object or array) instead of
 * recursion. */
#include "data/json_line.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/encoding.h"
#include "base/error.h"
#include "data/text_utf8.h"

typedef struct {
    const unsigned char *start, *p, *end;
} cursor;

/* A string literal: the text between the quotes. */
typedef struct {
    const unsigned char *p;
    size_t bytes;
    bool escaped;
} literal;

lt_err lt_text_buffer_reserve(lt_text_buffer *b, size_t bytes) {
    size_t room = b->room < 256 ? 256 : b->room;
    char *grown;
    if (bytes <= b->room) {
        return LT_OK;
    }
    while (room < bytes) {
        room += room / 2;
    }
    grown = realloc(b->data, room);
    if (grown == NULL) {
        LT_FAIL(LT_ERR_OOM, "a document of %zu bytes", bytes);
    }
    b->data = grown;
    b->room = room;
    return LT_OK;
}

void lt_text_buffer_free(lt_text_buffer *b) {
    free(b->data);
    *b = (lt_text_buffer){0};
}

static lt_err bad(const cursor *c, const char *why) {
    LT_FAIL(LT_ERR_FORMAT, "column %zu: %s", (size_t)(c->p - c->start) + 1,
            c->p == c->end ? "the line ends inside JSON" : why);
}

static void skip_space(cursor *c) {
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\t' || *c->p == '\r' || *c->p == '\n')) {
        c->p++;
    }
}

static bool at(const cursor *c, char wanted) {
    return c->p < c->end && *c->p == (unsigned char)wanted;
}

/* Validate the escape after a backslash and move past it. */
static lt_err scan_escape(cursor *c) {
    if (c->p == c->end || memchr("\"\\/bfnrtu", *c->p, 9) == NULL) {
        return bad(c, "unknown escape in a string");
    }
    if (*c->p++ != 'u') {
        return LT_OK;
    }
    for (int i = 0; i < 4; i++, c->p++) {
        if (c->p == c->end || lt_hex_digit(*c->p) < 0) {
            return bad(c, "\\u needs four hexadecimal digits");
        }
    }
    return LT_OK;
}

static lt_err scan_string(cursor *c, literal *out) {
    if (!at(c, '"')) {
        return bad(c, "a string was expected");
    }
    c->p++;
    *out = (literal){.p = c->p};
    for (;;) {
        const unsigned char *p = c->p;
        while (p < c->end && *p != '"' && *p != '\\' && *p >= 0x20) {
            p++;
        }
        c->p = p;
        if (p == c->end || *p < 0x20) {
            return bad(c, "control character in a string");
        }
        if (*p == '"') {
            out->bytes = (size_t)(p - out->p);
            c->p++;
            return LT_OK;
        }
        out->escaped = true;
        c->p++;
        LT_TRY(scan_escape(c));
    }
}

static size_t scan_digits(cursor *c) {
    const unsigned char *from = c->p;
    while (c->p < c->end && *c->p >= '0' && *c->p <= '9') {
        c->p++;
    }
    return (size_t)(c->p - from);
}

static lt_err scan_number(cursor *c) {
    if (at(c, '-')) {
        c->p++;
    }
    if (at(c, '0')) {
        c->p++;
    } else if (scan_digits(c) == 0) {
        return bad(c, "not a JSON value");
    }
    if (at(c, '.')) {
        c->p++;
        if (scan_digits(c) == 0) {
            return bad(c, "digits were expected after the decimal point");
        }
    }
    if (at(c, 'e') || at(c, 'E')) {
        c->p++;
        if (at(c, '+') || at(c, '-')) {
            c->p++;
        }
        if (scan_digits(c) == 0) {
            return bad(c, "digits were expected in the exponent");
        }
    }
    return LT_OK;
}

static lt_err scan_scalar(cursor *c) {
    static const char *const words[] = {"true", "false", "null"};
    literal unused;
    if (at(c, '"')) {
        return scan_string(c, &unused);
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t len = strlen(words[i]);
        if ((size_t)(c->end - c->p) >= len && memcmp(c->p, words[i], len) == 0) {
            c->p += len;
            return LT_OK;
        }
    }
    return scan_number(c);
}

static lt_err scan_key(cursor *c, literal *key) {
    skip_space(c);
    LT_TRY(scan_string(c, key));
    skip_space(c);
    if (!at(c, ':')) {
        return bad(c, "':' was expected");
    }
    c->p++;
    return LT_OK;
}

/* Validate and skip a value of any kind. */
static lt_err scan_value(cursor *c) {
    /* Bit d: level d is an object, not an array. */
    uint64_t objects[LT_JSON_LINE_DEPTH / 64 + 1] = {0};
    size_t depth = 0;
    literal key;

    for (;;) {
        skip_space(c);
        if (at(c, '{') || at(c, '[')) { /* Go down, unless it is empty. */
            const bool object = *c->p++ == '{';
            skip_space(c);
            if (!at(c, object ? '}' : ']')) {
                if (++depth >= LT_JSON_LINE_DEPTH) {
                    LT_FAIL(LT_ERR_LIMIT, "column %zu: nested deeper than %d",
                            (size_t)(c->p - c->start), LT_JSON_LINE_DEPTH);
                }
                objects[depth / 64] &= ~((uint64_t)1 << depth % 64);
                objects[depth / 64] |= (uint64_t)object << depth % 64;
                if (object) {
                    LT_TRY(scan_key(c, &key));
                }
                continue;
            }
            c->p++;
        } else {
            LT_TRY(scan_scalar(c));
        }
        /* After a value comes a comma, or the ends of all levels that close here. */
        for (;; depth--) {
            bool object;
            if (depth == 0) {
                return LT_OK;
            }
            object = (objects[depth / 64] >> depth % 64 & 1) != 0;
            skip_space(c);
            if (at(c, ',')) {
                c->p++;
                if (object) {
                    LT_TRY(scan_key(c, &key));
                }
                break;
            }
            if (!at(c, object ? '}' : ']')) {
                return bad(c, object ? "',' or '}' was expected" : "',' or ']' was expected");
            }
            c->p++;
        }
    }
}

static uint32_t hex4(const unsigned char *p) {
    uint32_t x = 0;
    for (int i = 0; i < 4; i++) {
        x = x << 4 | (uint32_t)lt_hex_digit(p[i]);
    }
    return x;
}

/* Decode \uXXXX with p after the u, and a low surrogate after it. A lone surrogate becomes
 * U+FFFD. */
static const unsigned char *unescape_unicode(char **to, const unsigned char *p,
                                             const unsigned char *end, bool *is_lone) {
    uint32_t x = hex4(p);
    p += 4;
    if (x >= 0xD800 && x < 0xDC00 && end - p >= 6 && p[0] == '\\' && p[1] == 'u') {
        const uint32_t low = hex4(p + 2);
        if (low >= 0xDC00 && low < 0xE000) {
            x = 0x10000 + ((x - 0xD800) << 10) + (low - 0xDC00);
            p += 6;
        }
    }
    *is_lone = x >= 0xD800 && x < 0xE000;
    *to += lt_utf8_encode(*is_lone ? 0xFFFD : x, *to);
    return p;
}

/* Write the literal's text to `to`, which holds at least s->bytes: no escape is shorter than its
 * text. */
static lt_err unescape(char *to, size_t *bytes, const cursor *c, const literal *s,
                       lt_lone_escapes *lone) {
    const unsigned char *p = s->p, *end = s->p + s->bytes;
    char *start = to;
    bool is_lone;
    while (p < end) {
        static const char from[] = "\"\\/bfnrt", plain[] = "\"\\/\b\f\n\r\t";
        const unsigned char *slash = memchr(p, '\\', (size_t)(end - p));
        const size_t run = (size_t)((slash != NULL ? slash : end) - p);
        memcpy(to, p, run);
        to += run;
        p += run;
        if (p == end) {
            break;
        }
        if (p[1] != 'u') {
            *to++ = plain[strchr(from, p[1]) - from];
            p += 2;
            continue;
        }
        slash = p;
        p = unescape_unicode(&to, p + 2, end, &is_lone);
        if (is_lone && lone != NULL) {
            lone->first = lone->n++ == 0 ? (size_t)(slash - c->start) : lone->first;
        } else if (is_lone) {
            LT_FAIL(LT_ERR_FORMAT, "column %zu: lone surrogate %.6s",
                    (size_t)(slash - c->start) + 1, (const char *)slash);
        }
    }
    *bytes = (size_t)(to - start);
    return LT_OK;
}

/* Whether the key is the wanted field. A key with escapes, which is rare, is first decoded into
 * the buffer. */
static lt_err key_matches(bool *same, lt_text_buffer *buffer, const cursor *c, const literal *key,
                          const char *field) {
    const size_t field_bytes = strlen(field);
    size_t bytes = key->bytes;
    const void *text = key->p;
    lt_lone_escapes lone = {0};
    if (key->escaped) {
        LT_TRY(lt_text_buffer_reserve(buffer, key->bytes));
        LT_TRY(unescape(buffer->data, &bytes, c, key, &lone));
        text = buffer->data;
    }
    *same = bytes == field_bytes && memcmp(text, field, bytes) == 0;
    return LT_OK;
}

lt_err lt_json_line_string(lt_text_buffer *out, size_t *out_bytes, const char *line, size_t bytes,
                           const char *field, lt_lone_escapes *lone) {
    const unsigned char *start = (const unsigned char *)line;
    cursor c = {.start = start, .p = start, .end = start + bytes};
    literal key, value = {0}; /* The string of the field's last occurrence. */
    /* Position of the last occurrence if it is neither a string nor null. */
    const unsigned char *other = NULL;
    bool more;

    skip_space(&c);
    if (!at(&c, '{')) {
        LT_FAIL(LT_ERR_FORMAT, "column %zu: a JSON object was expected",
                (size_t)(c.p - c.start) + 1);
    }
    c.p++;
    skip_space(&c);
    more = !at(&c, '}');
    while (more) {
        bool same;
        LT_TRY(scan_key(&c, &key));
        LT_TRY(key_matches(&same, out, &c, &key, field));
        skip_space(&c);
        if (same) {
            value.p = NULL;
            other = at(&c, '"') || at(&c, 'n') ? NULL : c.p;
        }
        LT_TRY(same && at(&c, '"') ? scan_string(&c, &value) : scan_value(&c));
        skip_space(&c);
        more = at(&c, ',');
        if (!more && !at(&c, '}')) {
            return bad(&c, "',' or '}' was expected");
        }
        c.p += more;
    }
    c.p++;
    skip_space(&c);
    if (c.p != c.end) {
        LT_FAIL(LT_ERR_FORMAT, "column %zu: text after the JSON object",
                (size_t)(c.p - c.start) + 1);
    }
    if (other != NULL) {
        LT_FAIL(LT_ERR_FORMAT, "column %zu: '%s' is not a string", (size_t)(other - c.start) + 1,
                field);
    }
    if (value.p == NULL) {
        LT_FAIL(LT_ERR_NOT_FOUND, "no member '%s'", field);
    }
    LT_TRY(lt_text_buffer_reserve(out, value.bytes + 1));
    if (lone != NULL) {
        *lone = (lt_lone_escapes){0};
    }
    return unescape(out->data, out_bytes, &c, &value, lone);
}

/* The code unit of "\uXXXX" at p; UINT32_MAX: there is none. */
static uint32_t unicode_escape(const unsigned char *p, const unsigned char *end) {
    if (end - p < 6 || p[0] != '\\' || p[1] != 'u') {
        return UINT32_MAX;
    }
    for (int i = 2; i < 6; i++) {
        if (lt_hex_digit(p[i]) < 0) {
            return UINT32_MAX;
        }
    }
    return hex4(p + 2);
}

/* The first lone surrogate escape from p on, or NULL. */
static const unsigned char *next_lone(const unsigned char *p, const unsigned char *end) {
    while ((p = memchr(p, '\\', (size_t)(end - p))) != NULL) {
        const uint32_t x = unicode_escape(p, end);
        const uint32_t low = x >> 10 == 0xD800 >> 10 ? unicode_escape(p + 6, end) : 0;
        size_t bytes_here = x == UINT32_MAX ? 2 : 6;
        if (low >= 0xDC00 && low < 0xE000) {
            bytes_here = 12;
        } else if (x >= 0xD800 && x < 0xE000) {
            return p;
        }
        p += (size_t)(end - p) < bytes_here ? (size_t)(end - p) : bytes_here;
    }
    return NULL;
}

lt_lone_escapes lt_json_line_lone(const char *line, size_t bytes) {
    const unsigned char *const start = (const unsigned char *)line, *const end = start + bytes;
    lt_lone_escapes lone = {0};
    for (const unsigned char *p = next_lone(start, end); p != NULL; p = next_lone(p + 6, end)) {
        lone.first = lone.n++ == 0 ? (size_t)(p - start) : lone.first;
    }
    return lone;
}

void lt_json_line_replace_lone(char *line, size_t bytes) {
    const unsigned char *const start = (const unsigned char *)line, *const end = start + bytes;
    for (const unsigned char *p = next_lone(start, end); p != NULL; p = next_lone(p + 6, end)) {
        memcpy(line + (p - start) + 2, "fffd", 4);
    }
}
