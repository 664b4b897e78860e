/* grammar_schema_scalar.c: strings and numbers of schemas. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/grammar_schema.h"

/* ---- strings ---- */

lt_err lt_gschema_string_content(lt_gschema_reader *r, const json_t *s, lt_gid *out) {
    const json_t *pattern = json_object_get(s, "pattern"), *format = json_object_get(s, "format");
    int64_t min = 0, max = LT_GINF;
    const char *known = json_is_string(format) ? lt_gschema_format(json_string_value(format))
                                               : NULL;
    lt_gid more = -1, length;

    LT_TRY(lt_gschema_count(s, "minLength", &min));
    LT_TRY(lt_gschema_count(s, "maxLength", &max));
    if (max < min) {
        *out = lt_gast_never(r->g);
        return LT_OK;
    }
    *out = -1;
    if (pattern != NULL) {
        if (!json_is_string(pattern)) {
            return lt_gschema_wrong("pattern", "is not a string");
        }
        LT_TRY(lt_gregex_read(r->g, json_string_value(pattern), json_string_length(pattern), true,
                              true, out));
    }
    if (known != NULL) {
        LT_TRY(lt_gregex_read(r->g, known, strlen(known), true, true, &more));
        *out = *out < 0 ? more : lt_gast_pair(r->g, LT_GNODE_AND, *out, more);
    }
    if (*out < 0 || min > 0 || max != LT_GINF) {
        length = lt_gast_repeat(r->g, lt_gjson_char(r->g), (int32_t)min, (int32_t)max);
        *out = *out < 0 ? length : lt_gast_pair(r->g, LT_GNODE_AND, *out, length);
    }
    return LT_OK;
}

lt_err lt_gschema_string(lt_gschema_reader *r, const json_t *s, lt_gid *out) {
    LT_TRY(lt_gschema_string_content(r, s, out));
    *out = lt_gjson_quoted(r->g, *out);
    return LT_OK;
}

/* ---- numbers ---- */

/* Decimal notation without exponent; false: more than 18 digits on a side. */
static bool decimal(const json_t *v, char *out, size_t room) {
    const double x = json_number_value(v);
    if (json_is_integer(v)) {
        snprintf(out, room, "%lld", (long long)json_integer_value(v));
        return llabs(json_integer_value(v)) < 1000000000000000000;
    }
    if (fabs(x) >= 1e18) {
        return false;
    }
    for (int precision = 0; precision <= 18; precision++) {
        snprintf(out, room, "%.*f", precision, x);
        if (strtod(out, NULL) == x) {
            return true;
        }
    }
    return true; /* Below 1e-18: as near as our numbers go. */
}

/* The tighter of the two ways to write a bound; draft 4's boolean exclusiveMinimum too. */
static lt_err bound(const json_t *s, const char *key, const char *strict_key, bool lower,
                    char *text, size_t room, lt_gbound *out) {
    const json_t *plain = json_object_get(s, key), *strict = json_object_get(s, strict_key);
    const json_t *v = plain;
    bool is_strict = json_is_true(strict);
    if (json_is_number(strict)) {
        const double a = json_number_value(strict), b = json_number_value(plain);
        if (plain == NULL || (lower ? a >= b : a <= b)) {
            v = strict;
            is_strict = true;
        }
    }
    *out = (lt_gbound){NULL, false};
    if (v == NULL) {
        return LT_OK;
    }
    if (!json_is_number(v)) {
        return lt_gschema_wrong(key, "is not a number");
    }
    if (decimal(v, text, room)) {
        *out = (lt_gbound){strcmp(text, "-0") == 0 ? "0" : text, is_strict};
        return LT_OK;
    }
    if ((json_number_value(v) < 0) == lower) {
        return LT_OK; /* Beyond all that we write. */
    }
    return lt_gschema_refuse("a bound of more than 18 digits");
}

/* Multiples of n as rules by remainder: r0 -> digit r..., the empty text at remainder 0. */
static lt_err multiples(lt_gschema_reader *r, int64_t n, lt_gid *out) {
    lt_gast *g = r->g;
    int32_t first = -1;
    lt_gids alts = {0};
    if (n < 1 || n > 1000) {
        return lt_gschema_refuse("multipleOf over 1000");
    }
    for (int64_t i = 0; i < n; i++) {
        const int32_t rule = lt_gast_new_rule(g, lt_gast_never(g));
        first = i == 0 ? rule : first;
    }
    LT_TRY(lt_gast_check(g));
    for (int64_t i = 0; i < n; i++) {
        alts.n = 0;
        for (int d = 0; d < 10; d++) {
            lt_gids_push(g, &alts,
                         lt_gast_seq2(g, lt_gast_byte(g, '0' + d, '0' + d),
                                      lt_gast_ref(g, first + (int32_t)((i * 10 + d) % n))));
        }
        if (i == 0) {
            lt_gids_push(g, &alts, lt_gast_empty(g));
        }
        lt_gast_define(g, first + (int32_t)i, lt_gast_list(g, LT_GNODE_ALT, alts.v, alts.n));
    }
    alts.n = 0;
    lt_gids_push(g, &alts, lt_gast_text(g, "0"));
    for (int d = 1; d < 10; d++) {
        lt_gids_push(g, &alts,
                     lt_gast_seq3(g, lt_gast_repeat(g, lt_gast_text(g, "-"), 0, 1),
                                  lt_gast_byte(g, '0' + d, '0' + d),
                                  lt_gast_ref(g, first + (int32_t)(d % n))));
    }
    *out = lt_gast_list(g, LT_GNODE_ALT, alts.v, alts.n);
    free(alts.v);
    return LT_OK;
}

/* Multiples of n between two bounds, written out. */
static lt_err few_multiples(lt_gschema_reader *r, int64_t n, lt_gbound lo, lt_gbound hi,
                            lt_gid *out) {
    enum { MOST = 5000 };
    lt_gids alts = {0};
    double low = lo.text != NULL ? strtod(lo.text, NULL) : 0;
    double high = hi.text != NULL ? strtod(hi.text, NULL) : 0;
    int64_t first, last;
    if (n < 1 || lo.text == NULL || hi.text == NULL || (high - low) / (double)n > MOST ||
        fabs(low) > 1e15 || fabs(high) > 1e15) {
        return lt_gschema_refuse("multipleOf beside one bound, or bounds far apart");
    }
    first = (int64_t)ceil(low / (double)n);
    last = (int64_t)floor(high / (double)n);
    first += lo.strict && (double)(first * n) == low;
    last -= hi.strict && (double)(last * n) == high;
    for (int64_t i = first; i <= last; i++) {
        char text[32];
        (void)snprintf(text, sizeof text, "%lld", (long long)(i * n));
        lt_gids_push(r->g, &alts, lt_gast_text(r->g, text));
    }
    *out = lt_gast_list(r->g, LT_GNODE_ALT, alts.v, alts.n);
    free(alts.v);
    return LT_OK;
}

lt_err lt_gschema_number(lt_gschema_reader *r, const json_t *s, bool whole, lt_gid *out) {
    char lo_text[400], hi_text[400];
    lt_gbound lo, hi;
    const json_t *multiple = json_object_get(s, "multipleOf");
    const double step = json_number_value(multiple);
    LT_TRY(bound(s, "minimum", "exclusiveMinimum", true, lo_text, sizeof lo_text, &lo));
    LT_TRY(bound(s, "maximum", "exclusiveMaximum", false, hi_text, sizeof hi_text, &hi));
    if (multiple != NULL && step == 1) {
        whole = true;
    } else if (multiple != NULL && (whole || step == floor(step))) {
        if (step != floor(step)) {
            return lt_gschema_refuse("multipleOf that is no whole number");
        }
        return lo.text == NULL && hi.text == NULL ? multiples(r, (int64_t)step, out)
                                                  : few_multiples(r, (int64_t)step, lo, hi, out);
    }
    if (multiple != NULL && !whole) { /* 0.1, 0.01, ...: so many digits behind the point. */
        int places = 1;
        while (places < 10 && fabs(step * pow(10, places) - 1) > 1e-9) {
            places++;
        }
        if (places == 10) {
            return lt_gschema_refuse("multipleOf that is neither whole nor 10^-k");
        }
        const lt_gid digits = lt_gast_repeat(r->g, lt_gast_byte(r->g, '0', '9'), 1, places);
        const lt_gid cut = lt_gast_seq2(
            r->g, lt_gjson_number(r->g, true),
            lt_gast_repeat(r->g, lt_gast_seq2(r->g, lt_gast_text(r->g, "."), digits), 0, 1));
        *out = lo.text == NULL && hi.text == NULL
                   ? cut
                   : lt_gast_pair(r->g, LT_GNODE_AND, cut, lt_gjson_range(r->g, lo, hi, false));
        return LT_OK;
    }
    *out = lo.text == NULL && hi.text == NULL ? lt_gjson_number(r->g, whole)
                                              : lt_gjson_range(r->g, lo, hi, whole);
    return LT_OK;
}
