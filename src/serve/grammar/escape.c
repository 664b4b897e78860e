/* grammar/escape.c: see grammar/escape.h. */
#include "serve/grammar/escape.h"

#include <ctype.h>
#include <string.h>

#include "data/tokenizer/unicode.h"

const char *lt_gescape_read(const uint8_t **p, const uint8_t *end, const char *names,
                            const char *meanings, uint32_t *cp) {
    const char *known;
    int digits;
    if (**p != '\\') {
        *p += lt_utf8_decode(*p, end, cp);
        return NULL;
    }
    if (++*p == end) {
        return "a backslash without a character";
    }
    known = **p != 0 ? strchr(names, **p) : NULL;
    digits = **p == 'x' ? 2 : **p == 'u' ? 4 : **p == 'U' ? 8 : 0;
    ++*p;
    if (known != NULL) {
        *cp = (uint32_t)(unsigned char)meanings[known - names];
        return NULL;
    }
    *cp = 0;
    for (int i = 0; i < digits; i++, ++*p) {
        if (*p == end || !isxdigit(**p)) {
            return "a malformed hexadecimal escape";
        }
        *cp = *cp * 16 + (uint32_t)(**p <= '9' ? **p - '0' : (**p | 32) - 'a' + 10);
    }
    return digits > 0 && *cp <= 0x10FFFF && !(*cp >= 0xD800 && *cp < 0xE000) ? NULL
                                                                             : "an unknown escape";
}
