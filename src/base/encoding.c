/* encoding.c: see encoding.h. */
#include "base/encoding.h"

#include <string.h>

static const char digits[] = "0123456789abcdef";

void lt_hex_write(char *out, const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * n] = '\0';
}

void lt_hex_read(unsigned char *out, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const int high = lt_hex_digit(text[2 * i]), low = lt_hex_digit(text[2 * i + 1]);
        LT_ASSERT(high >= 0 && low >= 0);
        out[i] = (unsigned char)(high << 4 | low);
    }
}

bool lt_hex_is(const char *text, size_t n) {
    return strlen(text) == n && strspn(text, digits) == n;
}

size_t lt_utf8_mark_bytes(const void *text, size_t n) {
    const bool marked = n >= LT_UTF8_MARK_BYTES &&
                        memcmp(text, LT_UTF8_MARK, LT_UTF8_MARK_BYTES) == 0;
    return marked ? LT_UTF8_MARK_BYTES : 0;
}

lt_percent_result lt_percent_decode(char *out, size_t room, const char *from, size_t n, bool plus) {
    lt_percent_result result = LT_PERCENT_STRICT;
    size_t put = 0;
    LT_ASSERT(room > 0);
    for (size_t i = 0; i < n; i++) {
        char c = plus && from[i] == '+' ? ' ' : from[i];
        if (put + 1 == room) {
            result = LT_PERCENT_CUT;
            break;
        }
        if (c == '%') {
            const int high = n - i > 2 ? lt_hex_digit(from[i + 1]) : -1;
            const int low = high >= 0 ? lt_hex_digit(from[i + 2]) : -1;
            if (low >= 0 && (high | low) != 0) {
                c = (char)(high << 4 | low);
                i += 2;
            } else {
                result = LT_PERCENT_LITERAL;
            }
        }
        out[put++] = c;
    }
    out[put] = '\0';
    return result;
}
