/* expression.h: numbers and expressions as people and models write them, compared exactly.
 *
 * READS   1,234.50  -3  1.5e3  3/4  2 1/2  25%  2^10  (x + 1)^2  2x  \frac{3}{4}  2\frac12  \dfrac
 *         \sqrt{9}  \pi  \cdot \times \div \left \right \text{...}, ½, ×, ÷, − and digits grouped
 *         by commas, {,} or narrow spaces. "x = 5" is 5.
 *         thousand, million, billion and trillion multiply. Juxtaposition multiplies; a whole
 *         number before a fraction of whole numbers is added to it.
 * UNITS   Words after a number: "90 km", "5 apples". Spellings of the common units are equal (km/h
 *         = kilometres per hour). A single letter with no space before it is a variable.
 * PERCENT A percent sign is part of the value, not a unit: 25% is 1/4 and is not 25.
 * EQUAL   Without variables, values are compared as exact rationals. With variables, their values
 * at four random points are compared: two different
 *         rational functions of degree at most 64 agree there with a probability below 1e-28. An
 *         expression that cannot be evaluated (\sqrt{2}, more than 8192 bits) equals only an
 *         expression of the same spelling. */
#ifndef LT_DATA_CHECK_EXPRESSION_H
#define LT_DATA_CHECK_EXPRESSION_H

#include <stdbool.h>
#include <stddef.h>

#include "lateen/base.h"

#define LT_EXPRESSION_BYTES  4096
#define LT_EXPRESSION_TOKENS 256
#define LT_EXPRESSION_UNIT   64

typedef struct {
    char op; /* '0' number, 'x' variable, or an operator; see the .c file. */
    unsigned char variable;
    unsigned short begin, end; /* The digits of a number, in text. */
    int exponent;              /* Power of ten that a number is multiplied by. */
} lt_expression_token;

/* A compiled expression in reverse Polish order. */
typedef struct {
    char text[LT_EXPRESSION_BYTES];
    char unit[LT_EXPRESSION_UNIT]; /* In its standard spelling; "": none. */
    lt_expression_token tokens[LT_EXPRESSION_TOKENS];
    int n_tokens;
    bool has_variables;
    bool unit_known; /* Each word of the unit is in the table of units. */
} lt_expression;

/* Compile text[0..n). like: NULL, or the expression that this one will be compared with, which
 * decides between a unit and a variable where both are possible. False: not an expression. */
bool lt_expression_read(lt_expression *out, const char *text, size_t n, const lt_expression *like);

/* Whether the values are equal. The units are compared by lt_expression_units. OOM is the only
 * error. */
LT_MUST_USE lt_err lt_expression_equal(bool *equal, const lt_expression *a, const lt_expression *b);

/* Whether the unit of an answer agrees with that of the true answer. An answer may have none. If
 * the true answer has none, the other must have a known unit; with `words`, it may be any one
 * word. */
bool lt_expression_units(const lt_expression *truth, const lt_expression *answer, bool words);

#endif
