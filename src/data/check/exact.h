/* exact.h: rational numbers of at most LT_EXACT_BITS bits on each side, without rounding.
 *
 * A checker that compares floats accepts 0.3333 for 1/3 or refuses 0.1 + 0.2 for 0.3. Here a number
 * is sign * num / den with integers of many limbs. Fractions are not reduced: two are equal when
 * their cross products are, which needs multiplication only. If a result would not fit, the
 * function returns false, and the caller must not decide anything from it. */
#ifndef LT_DATA_CHECK_EXACT_H
#define LT_DATA_CHECK_EXACT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LT_EXACT_LIMBS 256
#define LT_EXACT_BITS  (32 * LT_EXACT_LIMBS)

/* An integer >= 0; d[0] is the lowest limb, d[n - 1] is not 0; n = 0: zero. */
typedef struct {
    uint32_t n;
    uint32_t d[LT_EXACT_LIMBS];
} lt_exact_int;

typedef struct {
    bool negative; /* Never true for zero. */
    lt_exact_int num, den;
} lt_exact;

void lt_exact_set(lt_exact *out, int64_t value);
/* The number digits[0..n) times 10^exponent. The digits may contain one '.' anywhere, and ',' is
 * skipped. */
bool lt_exact_decimal(lt_exact *out, const char *digits, size_t n, int64_t exponent);

/* out may be a or b. False: too many bits, or a division by 0; *out is then undefined. */
bool lt_exact_add(lt_exact *out, const lt_exact *a, const lt_exact *b);
bool lt_exact_sub(lt_exact *out, const lt_exact *a, const lt_exact *b);
bool lt_exact_mul(lt_exact *out, const lt_exact *a, const lt_exact *b);
bool lt_exact_div(lt_exact *out, const lt_exact *a, const lt_exact *b);
/* The exponent must be an integer of at most 1024 in absolute value. */
bool lt_exact_pow(lt_exact *out, const lt_exact *a, const lt_exact *exponent);
/* False unless num and den are squares below 2^64. */
bool lt_exact_sqrt(lt_exact *out, const lt_exact *a);

/* *equal is written when true is returned; false: the products have too many bits. */
bool lt_exact_equal(const lt_exact *a, const lt_exact *b, bool *equal);

#endif
