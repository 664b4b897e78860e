/* grammar/schema_scalar.c: strings and numbers of schemas.
 *
 * STRINGS   All patterns, formats and lengths together are the intersection of their automata.
 *           Where something is excluded, or several constraints apply, each text has only one
 *           spelling; otherwise an excluded text could return with an escape (A as \u0041).
 * NUMBERS   Bounds become digits (grammar/json.c). multipleOf is an automaton over the remainder of
 *           the digits read so far, in units of the divisor's last digit: 0.25 is 25 hundredths,
 *           and 3.5 is 350 of them. The arithmetic on the decimal texts is exact: a checker that
 *           divides doubles may differ. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/grammar/schema.h"

#define MAX_REMAINDERS 2000 /* Most remainders of a divisor without its trailing zeros. */
#define MAX_LISTED     5000 /* Multiples between two bounds, written out. */

/* ---- strings ---- */

static lt_gid both(lt_gschema_reader *r, lt_gid a, lt_gid b) {
    return a < 0 ? b : lt_gast_pair(r->g, LT_GNODE_AND, a, b);
}

static lt_err format_rule(lt_gschema_reader *r, const char *const *patterns, lt_gid *out) {
    const lt_gregex_options o = {.search = true, .json = true};
    lt_gid all = lt_gast_never(r->g), one = -1;
    for (; *patterns != NULL; patterns++) {
        LT_TRY(lt_gregex_read(r->g, *patterns, strlen(*patterns), o, &one));
        all = lt_gast_alt2(r->g, all, one);
    }
    *out = both(r, *out, all);
    return LT_OK;
}

/* pattern, format, or a pattern that must not match. */
static lt_err string_rule(lt_gschema_reader *r, const lt_gpart *p, lt_gid *out) {
    const char *text = json_string_value(p->v);
    const lt_gregex_options o = {.search = true, .json = true, .wide = p->not };
    lt_gid one = -1;
    r->at = p->owner;
    if (p->quiet) { /* Formats that no draft lists are only descriptions. */
        const char *const *known = lt_gschema_format(text);
        return known != NULL ? format_rule(r, known, out) : LT_OK;
    }
    LT_TRY(lt_gregex_read(r->g, text, json_string_length(p->v), o, &one));
    if (p->not ) {
        const lt_gid all = lt_gast_repeat(r->g, lt_gjson_plain(r->g), 0, LT_GINF);
        *out = lt_gast_pair(r->g, LT_GNODE_MINUS, *out < 0 ? all : *out, one);
    } else {
        *out = both(r, *out, one);
    }
    return LT_OK;
}

lt_err lt_gschema_content(lt_gschema_reader *r, const lt_gshape *s, bool plain, lt_gid *out) {
    lt_gast *g = r->g;
    lt_gids texts = {0};
    bool excludes = false;
    const json_t *v;
    size_t i;
    *out = -1;
    if (s->values != NULL) {
        json_array_foreach(s->values, i, v) {
            if (json_is_string(v)) {
                lt_gids_push(g, &texts,
                             lt_gjson_content(g, json_string_value(v), json_string_length(v)));
            }
        }
        *out = lt_gast_list(g, LT_GNODE_ALT, texts.v, texts.n);
        free(texts.v);
        return LT_OK;
    }
    for (const lt_gpart *p = s->strings; p != NULL; p = p->next) {
        LT_TRY(string_rule(r, p, out));
    }
    for (const lt_gpart *p = s->excluded; p != NULL; p = p->next) {
        if (json_is_string(p->v)) {
            excludes = true;
            lt_gids_push(g, &texts,
                         lt_gjson_content(g, json_string_value(p->v), json_string_length(p->v)));
        }
    }
    if (*out < 0) {
        const lt_gid any = plain || excludes ? lt_gjson_plain(g) : lt_gjson_char(g);
        *out = lt_gast_repeat(g, any, (int32_t)s->min_length, (int32_t)s->max_length);
    } else if (s->min_length > 0 || s->max_length != LT_GINF) {
        *out = lt_gast_length(g, *out, lt_gjson_plain(g), (int32_t)s->min_length,
                              (int32_t)s->max_length);
    }
    if (excludes) {
        *out = lt_gast_pair(g, LT_GNODE_MINUS, *out,
                            lt_gast_list(g, LT_GNODE_ALT, texts.v, texts.n));
    }
    free(texts.v);
    return lt_gast_check(g);
}

lt_err lt_gschema_string(lt_gschema_reader *r, const lt_gshape *s, lt_gid *out) {
    LT_TRY(lt_gschema_content(r, s, false, out));
    *out = lt_gjson_quoted(r->g, *out);
    return LT_OK;
}

/* ---- bounds ---- */

/* Decimal notation without exponent; false: it has more than 18 digits before the point, and is not
 * exact. */
static bool decimal(const json_t *v, char *out, size_t room) {
    const double x = json_number_value(v);
    if (json_is_integer(v)) {
        (void)snprintf(out, room, "%lld", (long long)json_integer_value(v));
        return true;
    }
    if (fabs(x) >= 1e18) {
        return false;
    }
    for (int places = 0; places <= 18; places++) {
        (void)snprintf(out, room, "%.*f", places, x);
        if (strtod(out, NULL) == x) {
            break;
        }
    }
    return true; /* Below 1e-18 this is the nearest number that can be written. */
}

static lt_err bound_of(lt_gschema_reader *r, const lt_gshape_bound *b, bool lower, char *text,
                       size_t room, lt_gbound *out) {
    *out = (lt_gbound){NULL, false};
    if (b->v == NULL) {
        return LT_OK;
    }
    if (decimal(b->v, text, room)) {
        *out = (lt_gbound){strcmp(text, "-0") == 0 ? "0" : text, b->strict};
        return LT_OK;
    }
    if ((json_number_value(b->v) < 0) == lower) {
        return LT_OK; /* Beyond all numbers that can be written. */
    }
    return lt_gschema_refuse(r, lower ? "minimum" : "maximum", "of more than 18 digits");
}

/* ---- multiples ---- */

/* v = whole * 10^-places, without trailing zeros; false: that is not possible. */
static bool fixed_point(const json_t *v, int64_t *whole, int *places) {
    char text[64];
    const char *point;
    if (!decimal(v, text, sizeof text) || strlen(text) > 30) {
        return false;
    }
    point = strchr(text, '.');
    *places = point != NULL ? (int)strlen(point + 1) : 0;
    *whole = 0;
    for (const char *p = text; *p != 0; p++) {
        if (*p != '.' && *whole > (INT64_MAX - 9) / 10) {
            return false;
        }
        *whole = *p == '.' ? *whole : *whole * 10 + (*p - '0');
    }
    while (*places > 0 && *whole % 10 == 0) {
        *whole /= 10;
        (*places)--;
    }
    return *whole > 0;
}

/* States of the automaton of multiples of n * 10^-k: integer parts with remainder 0..n-1, and those
 * after the point, by the number of digits. */
typedef struct {
    lt_gast *g;
    int64_t n;
    int k;
    int32_t first; /* Its first arc. */
} multiples;

static int32_t whole_state(int64_t rest) {
    return (int32_t)(3 + rest);
}

/* After the point: j digits read; k + 1: only zeros from here. */
static int32_t place_state(const multiples *m, int j, int64_t rest) {
    return (int32_t)(3 + m->n * (j + 1) + rest);
}

static bool divides(const multiples *m, int j, int64_t rest) {
    for (; j < m->k; j++) {
        rest = rest * 10 % m->n;
    }
    return rest == 0;
}

static void digits_from(const multiples *m, int32_t from, int64_t rest, int first, int j) {
    for (int d = first; d < 10; d++) {
        const int64_t next = (rest * 10 + d) % m->n;
        lt_gast_arc(m->g, from, '0' + d, '0' + d,
                    j < 0 ? whole_state(next) : place_state(m, j, next));
    }
}

/* An optional sign; 0 or digits; a fraction of at most k digits, and zeros. States 0 (start), 1
 * (after the sign), 2 (a single zero). */
static lt_gid multiples_of(lt_gast *g, int64_t n, int k) {
    multiples m = {.g = g, .n = n, .k = k, .first = (int32_t)g->n_arcs};
    lt_gast_arc(g, 0, '-', '-', 1);
    for (int32_t from = 0; from < 2; from++) {
        lt_gast_arc(g, from, '0', '0', 2);
        digits_from(&m, from, 0, 1, -1);
    }
    lt_gast_accept(g, 2);
    lt_gast_arc(g, 2, '.', '.', place_state(&m, 0, 0));
    for (int64_t rest = 0; rest < n && !g->failed; rest++) {
        digits_from(&m, whole_state(rest), rest, 0, -1);
        lt_gast_arc(g, whole_state(rest), '.', '.', place_state(&m, 0, rest));
        if (divides(&m, 0, rest)) {
            lt_gast_accept(g, whole_state(rest));
        }
        for (int j = 0; j < k; j++) {
            digits_from(&m, place_state(&m, j, rest), rest, 0, j + 1);
            if (j > 0 && divides(&m, j, rest)) {
                lt_gast_accept(g, place_state(&m, j, rest));
            }
        }
        lt_gast_arc(g, place_state(&m, k, rest), '0', '0', place_state(&m, k + 1, rest));
        lt_gast_arc(g, place_state(&m, k + 1, rest), '0', '0', place_state(&m, k + 1, rest));
        if (rest == 0) {
            lt_gast_accept(g, place_state(&m, k + 1, rest));
            if (k > 0) {
                lt_gast_accept(g, place_state(&m, k, rest));
            }
        }
    }
    return lt_gast_graph(g, m.first, (int32_t)(3 + n * (k + 3)));
}

/* Multiples of n * 10^zeros: those of n, then `zeros` zeros; or 0. */
static lt_gid with_zeros(lt_gast *g, int64_t n, int zeros) {
    const lt_gid digit = lt_gast_byte(g, '0', '9');
    const lt_gid some = lt_gast_list(g, LT_GNODE_SEQ,
                                     (const lt_gid[]){lt_gast_repeat(g, lt_gast_text(g, "-"), 0, 1),
                                                      lt_gast_byte(g, '1', '9'),
                                                      lt_gast_repeat(g, digit, 0, LT_GINF)},
                                     3);
    const lt_gid base = lt_gast_pair(g, LT_GNODE_AND, multiples_of(g, n, 0), some);
    const lt_gid fraction = lt_gast_repeat(
        g,
        lt_gast_seq2(g, lt_gast_text(g, "."), lt_gast_repeat(g, lt_gast_text(g, "0"), 1, LT_GINF)),
        0, 1);
    const lt_gid zero = lt_gast_seq2(g, lt_gast_repeat(g, lt_gast_text(g, "-"), 0, 1),
                                     lt_gast_text(g, "0"));
    return lt_gast_seq2(
        g,
        lt_gast_alt2(g, zero,
                     lt_gast_seq2(g, base, lt_gast_repeat(g, lt_gast_text(g, "0"), zeros, zeros))),
        fraction);
}

/* Multiples between two bounds, written out, for divisors with too many remainders. */
static lt_err listed(lt_gschema_reader *r, const lt_gshape *s, int64_t n, int k, lt_gid *out) {
    const double scale = pow(10, k), low = json_number_value(s->low.v) * scale,
                 high = json_number_value(s->high.v) * scale;
    lt_gids alts = {0};
    int64_t first, last;
    if (s->low.v == NULL || s->high.v == NULL || (high - low) / (double)n > MAX_LISTED ||
        fabs(low) > 1e15 || fabs(high) > 1e15) {
        char why[160];
        (void)snprintf(why, sizeof why,
                       "of %lld remainders (at most %d) without bounds near each other",
                       (long long)n, MAX_REMAINDERS);
        return lt_gschema_refuse(r, "multipleOf", why);
    }
    first = (int64_t)ceil(low / (double)n) - 1; /* The bounds are checked separately. */
    last = (int64_t)floor(high / (double)n) + 1;
    for (int64_t i = first; i <= last; i++) {
        char digits[32], text[64];
        const int64_t v = llabs(i * n);
        const int len = snprintf(digits, sizeof digits, "%0*lld", k < 18 ? k + 1 : 19,
                                 (long long)v);
        (void)snprintf(text, sizeof text, "%s%.*s%s%s", i < 0 ? "-" : "", len - k, digits,
                       k > 0 ? "." : "", digits + (len - k));
        lt_gids_push(r->g, &alts, lt_gast_text(r->g, text));
    }
    *out = lt_gast_list(r->g, LT_GNODE_ALT, alts.v, alts.n);
    free(alts.v);
    return LT_OK;
}

static lt_err multiple(lt_gschema_reader *r, const lt_gshape *s, const lt_gpart *p, lt_gid *out) {
    int64_t n = 0;
    int k = 0, zeros = 0;
    r->at = p->owner;
    if (!fixed_point(p->v, &n, &k)) {
        return lt_gschema_refuse(r, "multipleOf", "of more than 18 digits");
    }
    while (k == 0 && n % 10 == 0) {
        n /= 10;
        zeros++;
    }
    if (n * (k + 3) > 3 * MAX_REMAINDERS) {
        for (; zeros > 0; zeros--) {
            n *= 10;
        }
        return p->not ? lt_gschema_refuse(r, "multipleOf", "so large within what must not hold")
                      : listed(r, s, n, k, out);
    }
    *out = zeros > 0 ? with_zeros(r->g, n, zeros) : multiples_of(r->g, n, k);
    return LT_OK;
}

/* ---- numbers ---- */

/* The spellings of one number without exponent. */
static lt_gid spellings(lt_gast *g, const json_t *v) {
    char text[64];
    const lt_gid zeros = lt_gast_repeat(g, lt_gast_text(g, "0"), 1, LT_GINF);
    if (!decimal(v, text, sizeof text)) {
        return lt_gast_never(g); /* Beyond all that we write. */
    }
    const bool zero = json_number_value(v) == 0;
    const lt_gid tail = strchr(text, '.') != NULL
                            ? lt_gast_repeat(g, zeros, 0, 1)
                            : lt_gast_repeat(g, lt_gast_seq2(g, lt_gast_text(g, "."), zeros), 0, 1);
    return lt_gast_seq3(g, lt_gast_repeat(g, lt_gast_text(g, "-"), 0, zero ? 1 : 0),
                        lt_gast_text(g, zero ? "0" : text), tail);
}

/* A fraction that is not zero, with no more digits than a double distinguishes. */
static lt_gid fractions(lt_gast *g) {
    const lt_gid digit = lt_gast_byte(g, '0', '9');
    return lt_gast_list(g, LT_GNODE_SEQ,
                        (const lt_gid[]){lt_gast_repeat(g, lt_gast_text(g, "-"), 0, 1),
                                         lt_gast_repeat(g, digit, 1, 9), lt_gast_text(g, "."),
                                         lt_gast_repeat(g, digit, 0, 5), lt_gast_byte(g, '1', '9')},
                        5);
}

/* Numbers with a point that a double represents to the last digit, because readers take others for
 * integers. */
static lt_gid exact(lt_gast *g) {
    const lt_gid digit = lt_gast_byte(g, '0', '9');
    const lt_gid sign = lt_gast_repeat(g, lt_gast_text(g, "-"), 0, 1);
    return lt_gast_seq2(
        g, sign,
        lt_gast_alt2(g, lt_gast_repeat(g, digit, 1, LT_GINF),
                     lt_gast_seq3(g, lt_gast_repeat(g, digit, 1, 8), lt_gast_text(g, "."),
                                  lt_gast_repeat(g, digit, 1, 7))));
}

lt_err lt_gschema_number(lt_gschema_reader *r, const lt_gshape *s, lt_gid *out) {
    lt_gast *g = r->g;
    char low[400], high[400];
    const bool whole = (s->types & LT_GTYPE_NUMBER) == LT_GTYPE_WHOLE;
    const bool fraction = (s->types & LT_GTYPE_NUMBER) == LT_GTYPE_FRACTION;
    bool excludes = false;
    lt_gbound lo, hi;
    LT_TRY(bound_of(r, &s->low, true, low, sizeof low, &lo));
    LT_TRY(bound_of(r, &s->high, false, high, sizeof high, &hi));
    for (const lt_gpart *p = s->excluded; p != NULL; p = p->next) {
        excludes = excludes || json_is_number(p->v);
    }
    *out = s->low.v == NULL && s->high.v == NULL && s->multiples == NULL && !excludes && !fraction
               ? lt_gjson_number(g, whole)
               : lt_gjson_range(g, lo, hi, whole);
    if (fraction) {
        *out = lt_gast_pair(g, LT_GNODE_AND, *out, fractions(g));
    } else if (s->multiples != NULL && !whole) {
        *out = lt_gast_pair(g, LT_GNODE_AND, *out, exact(g));
    }
    for (const lt_gpart *p = s->multiples; p != NULL; p = p->next) {
        lt_gid one = -1;
        LT_TRY(multiple(r, s, p, &one));
        *out = lt_gast_pair(g, p->not ? LT_GNODE_MINUS : LT_GNODE_AND, *out, one);
    }
    for (const lt_gpart *p = s->excluded; p != NULL; p = p->next) {
        if (json_is_number(p->v)) {
            *out = lt_gast_pair(g, LT_GNODE_MINUS, *out, spellings(g, p->v));
        }
    }
    return lt_gast_check(g);
}

/* Numbers in their usual spelling. */
static lt_gid one_way(lt_gast *g, lt_gid numbers) {
    const lt_gid digit = lt_gast_byte(g, '0', '9');
    const lt_gid fraction = lt_gast_seq3(g, lt_gast_text(g, "."), lt_gast_repeat(g, digit, 0, 6),
                                         lt_gast_byte(g, '1', '9'));
    const lt_gid form = lt_gast_seq3(g, lt_gast_repeat(g, lt_gast_text(g, "-"), 0, 1),
                                     lt_gast_repeat(g, digit, 1, 18),
                                     lt_gast_repeat(g, fraction, 0, 1));
    const lt_gid long_ones = lt_gast_list(
        g, LT_GNODE_SEQ,
        (const lt_gid[]){lt_gast_repeat(g, lt_gast_text(g, "-"), 0, 1),
                         lt_gast_repeat(g, digit, 9, LT_GINF), lt_gast_text(g, "."),
                         lt_gast_repeat(g, digit, 0, LT_GINF)},
        4);
    numbers = lt_gast_pair(g, LT_GNODE_AND, numbers, form);
    numbers = lt_gast_pair(g, LT_GNODE_MINUS, numbers, lt_gast_text(g, "-0"));
    return lt_gast_pair(g, LT_GNODE_MINUS, numbers, long_ones);
}

/* Values of a list, each once; integers without a point. */
static lt_err listed_once(lt_gschema_reader *r, const lt_gshape *s, lt_gids *alts) {
    const json_t *v;
    size_t i;
    json_array_foreach(s->values, i, v) {
        bool again = false;
        for (size_t k = 0; k < i; k++) {
            again = again || lt_gschema_equal(v, json_array_get(s->values, k));
        }
        if (again) {
            continue;
        }
        if (json_is_real(v) && json_real_value(v) == floor(json_real_value(v)) &&
            fabs(json_real_value(v)) < 1e15) {
            char text[40];
            (void)snprintf(text, sizeof text, "%.0f", json_real_value(v));
            lt_gids_push(r->g, alts, lt_gast_text(r->g, text));
        } else {
            lt_gids_push(r->g, alts, lt_gjson_literal(r->g, v));
        }
    }
    return LT_OK;
}

lt_err lt_gschema_scalar(lt_gschema_reader *r, const lt_gshape *shape, lt_gid *out) {
    static const struct {
        unsigned bit;
        const char *text;
    } words[] = {{LT_GTYPE_NULL, "null"}, {LT_GTYPE_TRUE, "true"}, {LT_GTYPE_FALSE, "false"}};
    lt_gshape s = *shape;
    lt_gids alts = {0};
    lt_err err = LT_OK;
    lt_gid one = -1;
    *out = -1;
    s.types &= !s.typed && s.spoken != 0 ? s.spoken : LT_GTYPE_ANY;
    if ((s.types & (LT_GTYPE_ARRAY | LT_GTYPE_OBJECT)) != 0) {
        return LT_OK;
    }
    if (s.values != NULL) {
        LT_TRY_DONE(listed_once(r, &s, &alts));
        s.types = 0;
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if ((s.types & words[i].bit) != 0) {
            lt_gids_push(r->g, &alts, lt_gast_text(r->g, words[i].text));
        }
    }
    if ((s.types & LT_GTYPE_STRING) != 0) {
        LT_TRY_DONE(lt_gschema_content(r, &s, true, &one));
        lt_gids_push(r->g, &alts, lt_gjson_quoted(r->g, one));
    }
    if ((s.types & LT_GTYPE_NUMBER) != 0) {
        LT_TRY_DONE(lt_gschema_number(r, &s, &one));
        lt_gids_push(r->g, &alts, one_way(r->g, one));
    }
    *out = lt_gast_list(r->g, LT_GNODE_ALT, alts.v, alts.n);
    LT_TRY_DONE(lt_gast_check(r->g));
done:
    free(alts.v);
    return err;
}
