/* encoding.h: how bytes and characters are written as text: hexadecimal digits, percent-encoding
 * (RFC 3986) and UTF-8. */
#ifndef LT_BASE_ENCODING_H
#define LT_BASE_ENCODING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* The value of a hexadecimal digit in either case; -1: c is not one. */
static inline int lt_hex_digit(int c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Write bytes as 2 * n lower-case digits, followed by a 0. */
void lt_hex_write(char *out, const unsigned char *bytes, size_t n);
/* Decode 2 * n digits into n bytes; the caller has checked the digits. */
void lt_hex_read(unsigned char *out, const char *digits, size_t n);
/* Whether the text is exactly n lower-case digits. */
bool lt_hex_is(const char *text, size_t n);

typedef enum {
    LT_PERCENT_STRICT,  /* Every '%' was followed by two digits, not 00. */
    LT_PERCENT_LITERAL, /* Some '%' was not, and was copied unchanged. */
    LT_PERCENT_CUT      /* The text does not fit; out holds its beginning. */
} lt_percent_result;

/* Decode percent-encoding ("%41" to "A") in [from, from + n), and '+' to a space if `plus`, as in
 * HTML forms. out gets at most room - 1 bytes and a 0, and may be `from`. */
lt_percent_result lt_percent_decode(char *out, size_t room, const char *from, size_t n, bool plus);

/* The byte order mark, with which some programs begin a UTF-8 file. It is no part of the text. */
#define LT_UTF8_MARK       "\xEF\xBB\xBF"
#define LT_UTF8_MARK_BYTES ((size_t)3)
/* Bytes of the mark at the beginning of a file's n bytes, or 0. */
size_t lt_utf8_mark_bytes(const void *text, size_t n);

/* Write cp (a valid scalar value) at out, which has room for 4; returns the length. */
static inline size_t lt_utf8_encode(uint32_t cp, char *out) {
    LT_ASSERT(cp < 0x110000);
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

#endif
