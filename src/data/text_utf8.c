/* text_utf8.c: see text_utf8.h. Text is mostly ASCII, so eight bytes are checked at a time while no
 * high bit is set. */
#include "data/text_utf8.h"

#include <stdint.h>
#include <string.h>

#define HIGH_BITS 0x8080808080808080u

/* Length of the valid sequence at p (end - p >= 1), or 0 with *bad set to the length of the maximal
 * invalid part: the bytes that could have begun a sequence, at least one. */
static size_t sequence_bytes(const unsigned char *p, const unsigned char *end, size_t *bad) {
    const unsigned char lead = p[0];
    unsigned char least = 0x80, most = 0xBF; /* Allowed range of the second byte. */
    size_t len;

    *bad = 1;
    if (lead < 0x80) {
        return 1;
    }
    if (lead < 0xC2 || lead > 0xF4) {
        return 0;
    }
    len = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : least; /* Lower values are overlong. */
    /* Higher ones: surrogates, or above U+10FFFF. */
    most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : most;
    for (size_t i = 1; i < len; i++) {
        if (p + i == end || p[i] < least || p[i] > most) {
            *bad = i;
            return 0;
        }
        least = 0x80;
        most = 0xBF;
    }
    return len;
}

/* End of the valid bytes that start at p; *bad as above if that is before the end. */
static const unsigned char *valid_run(const unsigned char *p, const unsigned char *end,
                                      size_t *bad) {
    while (p < end) {
        size_t len;
        while (end - p >= 8) {
            uint64_t word;
            memcpy(&word, p, sizeof word);
            if ((word & HIGH_BITS) != 0) {
                break;
            }
            p += 8;
        }
        if (p == end) {
            break;
        }
        len = sequence_bytes(p, end, bad);
        if (len == 0) {
            break;
        }
        p += len;
    }
    return p;
}

size_t lt_utf8_valid_prefix(const char *text, size_t bytes) {
    const unsigned char *start = (const unsigned char *)text;
    size_t bad;
    return (size_t)(valid_run(start, start + bytes, &bad) - start);
}

size_t lt_utf8_replace_invalid(char *to, const char *text, size_t bytes) {
    const unsigned char *p = (const unsigned char *)text, *end = p + bytes;
    size_t put = 0;
    while (p < end) {
        size_t bad = 0;
        const unsigned char *stop = valid_run(p, end, &bad);
        if (to != NULL) {
            memcpy(to + put, p, (size_t)(stop - p));
        }
        put += (size_t)(stop - p);
        p = stop;
        if (p < end) {
            if (to != NULL) {
                memcpy(to + put, LT_UTF8_REPLACEMENT, LT_UTF8_REPLACEMENT_BYTES);
            }
            put += LT_UTF8_REPLACEMENT_BYTES;
            p += bad;
        }
    }
    return put;
}

size_t lt_utf8_count_invalid(const char *text, size_t bytes, size_t *first) {
    const unsigned char *const start = (const unsigned char *)text, *const end = start + bytes;
    const unsigned char *p = start;
    size_t n = 0;
    for (;;) {
        size_t bad = 0;
        p = valid_run(p, end, &bad);
        if (p == end) {
            return n;
        }
        if (n++ == 0) {
            *first = (size_t)(p - start);
        }
        p += bad;
    }
}
