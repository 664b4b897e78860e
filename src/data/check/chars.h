/* chars.h: classes of ASCII characters, used to read answers. */
#ifndef LT_DATA_CHECK_CHARS_H
#define LT_DATA_CHECK_CHARS_H

#include <stdbool.h>
#include <string.h>

static inline bool lt_is_digit(char c) {
    return c >= '0' && c <= '9';
}

static inline bool lt_is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Whether c is in set. A 0 byte is in no set. */
static inline bool lt_is_one_of(char c, const char *set) {
    return c != 0 && strchr(set, c) != NULL;
}

#endif
