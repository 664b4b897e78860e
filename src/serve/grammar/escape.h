/* grammar/escape.h: one character of a literal or class, as GBNF and Lark write it: itself, or a
 * backslash and a name, or \xHH, \uHHHH, \UHHHHHHHH. */
#ifndef LT_SERVE_GRAMMAR_ESCAPE_H
#define LT_SERVE_GRAMMAR_ESCAPE_H

#include <stdint.h>

/* Read the character at *p (< end) and advance *p. names, meanings: the characters that may follow
 * a backslash, and what each stands for. Returns NULL, or what is wrong with the character. */
const char *lt_gescape_read(const uint8_t **p, const uint8_t *end, const char *names,
                            const char *meanings, uint32_t *cp);

#endif
