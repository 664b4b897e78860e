/* grammar/escape.h: one character of a literal or class in GBNF and Lark: itself, or a backslash
 * and a name, or \xHH, \uHHHH, \UHHHHHHHH. */
#ifndef LT_SERVE_GRAMMAR_ESCAPE_H
#define LT_SERVE_GRAMMAR_ESCAPE_H

#include <stdint.h>

/* Read the character at *p (< end) and advance *p. names, meanings: the characters that may follow
 * a backslash, and the meaning of each. Returns NULL, or what is wrong. */
const char *lt_gescape_read(const uint8_t **p, const uint8_t *end, const char *names,
                            const char *meanings, uint32_t *cp);

#endif
