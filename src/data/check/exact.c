/* exact.c: schoolbook arithmetic on limbs of 32 bits; see exact.h. */
#include "data/check/exact.h"

#include <string.h>

#include "base/error.h"

#define MAX_EXPONENT 1024

static void int_set(lt_exact_int *x, uint64_t value) {
    x->n = 0;
    for (; value != 0; value >>= 32) {
        x->d[x->n++] = (uint32_t)value;
    }
}

static void int_copy(lt_exact_int *to, const lt_exact_int *from) {
    to->n = from->n;
    memmove(to->d, from->d, from->n * sizeof *from->d);
}

static int int_compare(const lt_exact_int *a, const lt_exact_int *b) {
    if (a->n != b->n) {
        return a->n < b->n ? -1 : 1;
    }
    for (uint32_t i = a->n; i-- > 0;) {
        if (a->d[i] != b->d[i]) {
            return a->d[i] < b->d[i] ? -1 : 1;
        }
    }
    return 0;
}

/* Drop the highest limbs that are 0. */
static void int_trim(lt_exact_int *x) {
    while (x->n > 0 && x->d[x->n - 1] == 0) {
        x->n--;
    }
}

/* x = x * factor + add */
static bool int_scale(lt_exact_int *x, uint32_t factor, uint32_t add) {
    uint64_t carry = add;
    for (uint32_t i = 0; i < x->n; i++) {
        carry += (uint64_t)x->d[i] * factor;
        x->d[i] = (uint32_t)carry;
        carry >>= 32;
    }
    if (carry != 0) {
        if (x->n == LT_EXACT_LIMBS) {
            return false;
        }
        x->d[x->n++] = (uint32_t)carry;
    }
    int_trim(x);
    return true;
}

static bool int_mul(lt_exact_int *out, const lt_exact_int *a, const lt_exact_int *b) {
    uint32_t d[LT_EXACT_LIMBS + 1] = {0};
    if (a->n == 0 || b->n == 0) {
        out->n = 0;
        return true;
    }
    if (a->n + b->n > LT_EXACT_LIMBS + 1) {
        return false;
    }
    for (uint32_t i = 0; i < a->n; i++) {
        uint64_t carry = 0;
        for (uint32_t j = 0; j < b->n; j++) {
            carry += (uint64_t)a->d[i] * b->d[j] + d[i + j];
            d[i + j] = (uint32_t)carry;
            carry >>= 32;
        }
        d[i + b->n] = (uint32_t)carry;
    }
    out->n = a->n + b->n;
    while (out->n > 0 && d[out->n - 1] == 0) {
        out->n--;
    }
    if (out->n > LT_EXACT_LIMBS) {
        return false;
    }
    memcpy(out->d, d, out->n * sizeof *d);
    return true;
}

static bool int_add(lt_exact_int *out, const lt_exact_int *a, const lt_exact_int *b) {
    const uint32_t n = a->n > b->n ? a->n : b->n;
    uint64_t carry = 0;
    uint32_t i = 0;
    for (; i < n; i++) {
        carry += (i < a->n ? a->d[i] : 0u);
        carry += (i < b->n ? b->d[i] : 0u);
        out->d[i] = (uint32_t)carry;
        carry >>= 32;
    }
    if (carry != 0) {
        if (i == LT_EXACT_LIMBS) {
            return false;
        }
        out->d[i++] = (uint32_t)carry;
    }
    out->n = i;
    return true;
}

/* a >= b */
static void int_sub(lt_exact_int *out, const lt_exact_int *a, const lt_exact_int *b) {
    const uint32_t n = a->n;
    int64_t borrow = 0;
    for (uint32_t i = 0; i < n; i++) {
        borrow += (int64_t)a->d[i] - (i < b->n ? b->d[i] : 0);
        out->d[i] = (uint32_t)borrow;
        borrow >>= 32;
    }
    LT_ASSERT(borrow == 0);
    out->n = n;
    int_trim(out);
}

void lt_exact_set(lt_exact *out, int64_t value) {
    out->negative = value < 0;
    int_set(&out->num, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
    int_set(&out->den, 1);
}

bool lt_exact_decimal(lt_exact *out, const char *digits, size_t n, int64_t exponent) {
    bool fits = true, fraction = false;
    out->negative = false;
    out->num.n = 0;
    int_set(&out->den, 1);
    for (size_t i = 0; i < n && fits; i++) {
        if (digits[i] == '.') {
            fraction = true;
        } else if (digits[i] != ',') {
            fits = int_scale(&out->num, 10, (uint32_t)(digits[i] - '0'));
            exponent -= fraction;
        }
    }
    if (exponent < -LT_EXACT_BITS || exponent > LT_EXACT_BITS) {
        return false;
    }
    for (; fits && exponent > 0; exponent--) {
        fits = int_scale(&out->num, 10, 0);
    }
    for (; fits && exponent < 0; exponent++) {
        fits = int_scale(&out->den, 10, 0);
    }
    return fits;
}

static bool add_signed(lt_exact *out, const lt_exact *a, const lt_exact *b, bool b_negative) {
    lt_exact_int left, right;
    bool negative = a->negative;
    if (int_compare(&a->den, &b->den) == 0) {
        int_copy(&left, &a->num);
        int_copy(&right, &b->num);
        int_copy(&out->den, &a->den);
    } else if (!int_mul(&left, &a->num, &b->den) || !int_mul(&right, &b->num, &a->den) ||
               !int_mul(&out->den, &a->den, &b->den)) {
        return false;
    }
    if (negative == b_negative) {
        if (!int_add(&out->num, &left, &right)) {
            return false;
        }
    } else if (int_compare(&left, &right) >= 0) {
        int_sub(&out->num, &left, &right);
    } else {
        int_sub(&out->num, &right, &left);
        negative = b_negative;
    }
    out->negative = negative && out->num.n > 0;
    return true;
}

bool lt_exact_add(lt_exact *out, const lt_exact *a, const lt_exact *b) {
    return add_signed(out, a, b, b->negative);
}

bool lt_exact_sub(lt_exact *out, const lt_exact *a, const lt_exact *b) {
    return add_signed(out, a, b, b->num.n > 0 && !b->negative);
}

bool lt_exact_mul(lt_exact *out, const lt_exact *a, const lt_exact *b) {
    const bool negative = a->negative != b->negative;
    if (!int_mul(&out->num, &a->num, &b->num) || !int_mul(&out->den, &a->den, &b->den)) {
        return false;
    }
    out->negative = negative && out->num.n > 0;
    return true;
}

bool lt_exact_div(lt_exact *out, const lt_exact *a, const lt_exact *b) {
    lt_exact inverse;
    if (b->num.n == 0) {
        return false;
    }
    inverse.negative = b->negative;
    int_copy(&inverse.num, &b->den);
    int_copy(&inverse.den, &b->num);
    return lt_exact_mul(out, a, &inverse);
}

bool lt_exact_pow(lt_exact *out, const lt_exact *a, const lt_exact *exponent) {
    lt_exact base = *a, one, power = *exponent;
    uint32_t times = 0;
    lt_exact_set(&one, 1);
    for (; times <= MAX_EXPONENT; times++) { /* Find the integer; the fraction is not reduced. */
        lt_exact candidate;
        bool same = false;
        lt_exact_set(&candidate, exponent->negative ? -(int64_t)times : (int64_t)times);
        if (!lt_exact_equal(&power, &candidate, &same)) {
            return false;
        }
        if (same) {
            break;
        }
    }
    if (times > MAX_EXPONENT) {
        return false;
    }
    if (power.negative && !lt_exact_div(&base, &one, &base)) {
        return false;
    }
    *out = one;
    for (uint32_t bit = 1024; bit > 0; bit >>= 1) {
        if (!lt_exact_mul(out, out, out) || ((times & bit) && !lt_exact_mul(out, out, &base))) {
            return false;
        }
    }
    return true;
}

/* Replace a square below 2^64 by its root; false: it is not one. */
static bool int_root(lt_exact_int *x) {
    const uint64_t value = (x->n > 0 ? x->d[0] : 0) |
                           (x->n > 1 ? (uint64_t)x->d[1] << 32 : UINT64_C(0));
    uint64_t root = 0;
    if (x->n > 2) {
        return false;
    }
    for (uint64_t bit = UINT64_C(1) << 31; bit > 0; bit >>= 1) {
        if ((root | bit) * (root | bit) <= value) {
            root |= bit;
        }
    }
    int_set(x, root);
    return root * root == value;
}

bool lt_exact_sqrt(lt_exact *out, const lt_exact *a) {
    *out = *a;
    return !a->negative && int_root(&out->num) && int_root(&out->den);
}

bool lt_exact_equal(const lt_exact *a, const lt_exact *b, bool *equal) {
    lt_exact_int left, right;
    if (a->negative != b->negative) {
        *equal = false;
        return true;
    }
    if (!int_mul(&left, &a->num, &b->den) || !int_mul(&right, &b->num, &a->den)) {
        return false;
    }
    *equal = int_compare(&left, &right) == 0;
    return true;
}
