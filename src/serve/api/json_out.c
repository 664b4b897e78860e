/* json_out.c: see json_out.h. */
#include "serve/api/json_out.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"

void lt_out_free(lt_json_out *o) {
    free(o->data);
    *o = (lt_json_out){0};
}

void lt_out_clear(lt_json_out *o) {
    o->n = 0;
    o->comma = false;
    o->failed = false;
}

/* Room for n more bytes and a 0. */
static bool reserve(lt_json_out *o, size_t n) {
    size_t room = o->room > 0 ? o->room : 256;
    char *grown;
    if (o->failed) {
        return false;
    }
    if (o->n + n + 1 <= o->room) {
        return true;
    }
    while (room < o->n + n + 1) {
        room *= 2;
    }
    grown = realloc(o->data, room);
    if (grown == NULL) {
        o->failed = true;
        return false;
    }
    o->data = grown;
    o->room = room;
    return true;
}

void lt_out_raw(lt_json_out *o, const char *text, size_t n) {
    if (reserve(o, n)) {
        memcpy(o->data + o->n, text, n);
        o->n += n;
        o->data[o->n] = '\0';
    }
}

void lt_out_rawf(lt_json_out *o, const char *fmt, ...) {
    char small[512];
    va_list args;
    int n;
    va_start(args, fmt);
    n = vsnprintf(small, sizeof small, fmt, args);
    va_end(args);
    if (n < 0) {
        o->failed = true;
        return;
    }
    if ((size_t)n < sizeof small) {
        lt_out_raw(o, small, (size_t)n);
        return;
    }
    if (reserve(o, (size_t)n)) {
        va_start(args, fmt);
        vsnprintf(o->data + o->n, (size_t)n + 1, fmt, args);
        va_end(args);
        o->n += (size_t)n;
    }
}

static void comma(lt_json_out *o) {
    if (o->comma) {
        lt_out_raw(o, ",", 1);
    }
    o->comma = true;
}

void lt_out_open(lt_json_out *o, char bracket) {
    comma(o);
    lt_out_raw(o, &bracket, 1);
    o->comma = false;
}

void lt_out_shut(lt_json_out *o, char bracket) {
    lt_out_raw(o, &bracket, 1);
    o->comma = true;
}

/* Write it between quotes. A run of plain bytes is copied at once. */
static void quoted(lt_json_out *o, const char *text, size_t n) {
    static const char hex[] = "0123456789abcdef";
    size_t from = 0;

    lt_out_raw(o, "\"", 1);
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        char escape[6] = {'\\', 0, '0', '0', 0, 0};
        size_t escape_n = 2;
        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7F) {
            continue;
        }
        switch (c) {
        case '"':
        case '\\':
            escape[1] = (char)c;
            break;
        case '\n':
            escape[1] = 'n';
            break;
        case '\r':
            escape[1] = 'r';
            break;
        case '\t':
            escape[1] = 't';
            break;
        default:
            escape[1] = 'u';
            escape[4] = hex[c >> 4];
            escape[5] = hex[c & 15];
            escape_n = 6;
        }
        lt_out_raw(o, text + from, i - from);
        lt_out_raw(o, escape, escape_n);
        from = i + 1;
    }
    lt_out_raw(o, text + from, n - from);
    lt_out_raw(o, "\"", 1);
}

void lt_out_key(lt_json_out *o, const char *key) {
    comma(o);
    quoted(o, key, strlen(key));
    lt_out_raw(o, ":", 1);
    o->comma = false;
}

void lt_out_str(lt_json_out *o, const char *text, size_t n) {
    comma(o);
    quoted(o, text, n);
}

void lt_out_text(lt_json_out *o, const char *text) {
    if (text == NULL) {
        lt_out_null(o);
        return;
    }
    lt_out_str(o, text, strlen(text));
}

void lt_out_int(lt_json_out *o, int64_t value) {
    /* Digits are written without printf, which is ten times slower; each event of a stream has
     * several numbers. */
    char digits[24], *at = digits + sizeof digits;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    comma(o);
    do {
        *--at = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (value < 0) {
        *--at = '-';
    }
    lt_out_raw(o, at, (size_t)(digits + sizeof digits - at));
}

void lt_out_real(lt_json_out *o, double value) {
    if (!isfinite(value)) {
        lt_out_null(o);
        return;
    }
    comma(o);
    lt_out_rawf(o, "%.9g", value);
}

void lt_out_bool(lt_json_out *o, bool value) {
    comma(o);
    lt_out_raw(o, value ? "true" : "false", value ? 4 : 5);
}

void lt_out_null(lt_json_out *o) {
    comma(o);
    lt_out_raw(o, "null", 4);
}

void lt_out_value(lt_json_out *o, const json_t *value) {
    char *text;
    if (value == NULL) {
        lt_out_null(o);
        return;
    }
    comma(o);
    text = lt_json_dumps_exact(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text != NULL) {
        lt_out_raw(o, text, strlen(text));
    }
    o->failed = o->failed || text == NULL;
    free(text);
}

void lt_out_key_str(lt_json_out *o, const char *key, const char *text) {
    lt_out_key(o, key);
    lt_out_text(o, text);
}

void lt_out_key_int(lt_json_out *o, const char *key, int64_t value) {
    lt_out_key(o, key);
    lt_out_int(o, value);
}

void lt_out_key_real(lt_json_out *o, const char *key, double value) {
    lt_out_key(o, key);
    lt_out_real(o, value);
}

void lt_out_key_bool(lt_json_out *o, const char *key, bool value) {
    lt_out_key(o, key);
    lt_out_bool(o, value);
}

void lt_out_key_null(lt_json_out *o, const char *key) {
    lt_out_key(o, key);
    lt_out_null(o);
}

void lt_out_key_open(lt_json_out *o, const char *key, char bracket) {
    lt_out_key(o, key);
    lt_out_open(o, bracket);
}

void lt_out_key_value(lt_json_out *o, const char *key, const json_t *value) {
    lt_out_key(o, key);
    lt_out_value(o, value);
}
