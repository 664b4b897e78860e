/* grammar/json.c: see grammar/json.h. Numbers have at most 18 digits on each side of the decimal
 * point, so that a sampler cannot generate digits endlessly. */
#include "serve/grammar/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/tokenizer/unicode.h"

#define DIGITS 18

/* ---- strings ---- */

lt_gid lt_gjson_class(lt_gast *g, const lt_grange *ranges, size_t n, bool negated) {
    static const char escapes[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const size_t first = g->n_ranges;
    const lt_gid all = lt_gast_chars(g, ranges, n, negated);
    const size_t last = g->n_ranges;
    lt_gids alts = {0};
    lt_grange *raw = malloc((last - first + 1) * 3 * sizeof *raw);
    size_t n_raw = 0;
    lt_gid out;

    if (raw == NULL || all < 0) {
        free(raw);
        g->failed = true;
        return -1;
    }
    for (size_t i = first; i < last; i++) {
        lt_grange r = g->ranges[i];
        for (uint32_t c = r.lo; c <= r.hi && c < 0x80; c++) {
            char text[8];
            const char *known = c != 0 ? strchr(escapes, (int)c) : NULL;
            if (c >= 0x20 && known == NULL) {
                continue;
            }
            if (known != NULL) {
                snprintf(text, sizeof text, "\\%c", letters[known - escapes]);
                lt_gids_push(g, &alts, lt_gast_text(g, text));
            } else {
                snprintf(text, sizeof text, "\\u%04x", c);
                lt_gids_push(g, &alts, lt_gast_text(g, text));
            }
        }
        /* Without controls, the quote and the backslash. */
        r.lo = r.lo < 0x20 ? 0x20 : r.lo;
        for (const char *cut = "\"\\"; *cut != 0; cut++) {
            const uint32_t c = (uint32_t)*cut;
            if (r.lo <= c && c <= r.hi) {
                if (r.lo < c) {
                    raw[n_raw++] = (lt_grange){r.lo, c - 1};
                }
                r.lo = c + 1;
            }
        }
        if (r.lo <= r.hi) {
            raw[n_raw++] = r;
        }
    }
    if (n_raw > 0) {
        lt_gids_push(g, &alts, lt_gast_chars(g, raw, n_raw, false));
    }
    out = lt_gast_list(g, LT_GNODE_ALT, alts.v, alts.n);
    free(alts.v);
    free(raw);
    return out;
}

static lt_gid hex(lt_gast *g, const char *set) { /* "09af": pairs of bounds; in both cases. */
    lt_grange r[8];
    size_t n = 0;
    for (; *set != 0; set += 2) {
        r[n++] = (lt_grange){(uint32_t)set[0], (uint32_t)set[1]};
        if (set[0] >= 'a') {
            r[n++] = (lt_grange){(uint32_t)set[0] - 32, (uint32_t)set[1] - 32};
        }
    }
    return lt_gast_chars(g, r, n, false);
}

/* Kept as a rule, since hundreds of strings share it. */
lt_gid lt_gjson_char(lt_gast *g) {
    const int32_t rule = lt_gast_rule(g, "json char", 9);
    static const lt_grange not_raw[] = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
    static const lt_grange simple[] = {{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', 'b'},
                                       {'f', 'f'}, {'n', 'n'},   {'r', 'r'}, {'t', 't'}};
    lt_gid digit, two, bmp, pair;
    if (rule < 0 || g->rules[rule].body >= 0) {
        return lt_gast_ref(g, rule);
    }
    digit = hex(g, "09af");
    two = lt_gast_seq2(g, digit, digit);
    /* \uXXXX that is not a surrogate, or a pair of surrogates. */
    bmp = lt_gast_alt2(g, lt_gast_seq3(g, hex(g, "09acef"), digit, two),
                       lt_gast_seq3(g, hex(g, "dd"), hex(g, "07"), two));
    pair = lt_gast_list(g, LT_GNODE_SEQ,
                        (const lt_gid[]){hex(g, "dd"), hex(g, "89ab"), two, lt_gast_text(g, "\\u"),
                                         hex(g, "dd"), hex(g, "cf"), two},
                        7);
    lt_gast_define(
        g, rule,
        lt_gast_list(g, LT_GNODE_ALT,
                     (const lt_gid[]){
                         lt_gast_chars(g, not_raw, 3, true),
                         lt_gast_seq2(g, lt_gast_text(g, "\\"), lt_gast_chars(g, simple, 8, false)),
                         lt_gast_seq2(g, lt_gast_text(g, "\\u"), lt_gast_alt2(g, bmp, pair))},
                     3));
    return lt_gast_ref(g, rule);
}

lt_gid lt_gjson_plain(lt_gast *g) {
    const int32_t rule = lt_gast_rule(g, "json plain", 10);
    if (rule >= 0 && g->rules[rule].body < 0) {
        lt_gast_define(g, rule, lt_gjson_class(g, NULL, 0, true));
    }
    return lt_gast_ref(g, rule);
}

/* A separate rule, whose beginning is marked. */
static lt_gid marked(lt_gast *g, lt_gid body, bool names, bool json, bool unique) {
    const int32_t rule = lt_gast_new_rule(g, body);
    if (rule >= 0) {
        g->rules[rule].keep = true;
        g->rules[rule].names = names;
        g->rules[rule].json = json;
        g->rules[rule].unique = unique;
    }
    return lt_gast_ref(g, rule);
}

lt_gid lt_gjson_name(lt_gast *g, lt_gid content) {
    return marked(g, content, true, false, false);
}

lt_gid lt_gjson_text(lt_gast *g, lt_gid value) {
    return marked(g, value, false, true, false);
}

lt_gid lt_gjson_unique(lt_gast *g, lt_gid items) {
    return marked(g, items, false, false, true);
}

lt_gid lt_gjson_content(lt_gast *g, const char *s, size_t n) {
    const uint8_t *p = (const uint8_t *)s, *end = p + n;
    lt_gids kids = {0};
    lt_gid out;
    while (p < end) {
        const uint8_t *from = p;
        lt_grange r;
        while (p < end && *p >= 0x20 && *p != '"' && *p != '\\') {
            p++;
        }
        if (p > from) {
            lt_gids_push(g, &kids, lt_gast_bytes(g, (const char *)from, (size_t)(p - from)));
        } else {
            r = (lt_grange){*p, *p};
            lt_gids_push(g, &kids, lt_gjson_class(g, &r, 1, false));
            p++;
        }
    }
    out = lt_gast_list(g, LT_GNODE_SEQ, kids.v, kids.n);
    free(kids.v);
    return out;
}

lt_gid lt_gjson_quoted(lt_gast *g, lt_gid content) {
    const lt_gid quote = lt_gast_text(g, "\"");
    return lt_gast_seq3(g, quote, content, quote);
}

static lt_gid any_string(lt_gast *g) {
    return lt_gjson_quoted(g, lt_gast_repeat(g, lt_gjson_char(g), 0, LT_GINF));
}

/* ---- numbers ---- */

static lt_gid digits(lt_gast *g, int32_t min, int32_t max) {
    return lt_gast_repeat(g, lt_gast_byte(g, '0', '9'), min, max);
}

static lt_gid whole_part(lt_gast *g) {
    return lt_gast_alt2(g, lt_gast_text(g, "0"),
                        lt_gast_seq2(g, lt_gast_byte(g, '1', '9'), digits(g, 0, DIGITS - 1)));
}

static lt_gid optional(lt_gast *g, lt_gid kid) {
    return lt_gast_repeat(g, kid, 0, 1);
}

static lt_gid fraction(lt_gast *g) {
    return lt_gast_seq2(g, lt_gast_text(g, "."), digits(g, 1, DIGITS));
}

lt_gid lt_gjson_number(lt_gast *g, bool whole) {
    static const lt_grange e[] = {{'e', 'e'}, {'E', 'E'}}, sign[] = {{'+', '+'}, {'-', '-'}};
    const lt_gid minus = optional(g, lt_gast_text(g, "-"));
    lt_gid exponent;
    if (whole) {
        return lt_gast_seq2(g, minus, whole_part(g));
    }
    exponent = lt_gast_seq3(g, lt_gast_chars(g, e, 2, false),
                            optional(g, lt_gast_chars(g, sign, 2, false)), digits(g, 1, 3));
    return lt_gast_list(
        g, LT_GNODE_SEQ,
        (const lt_gid[]){minus, whole_part(g), optional(g, fraction(g)), optional(g, exponent)}, 4);
}

/* Digits d[0..n) as strings of n digits that are at least (at most, if down) this one. */
static lt_gid same_length(lt_gast *g, const char *d, size_t n, bool up, bool leading) {
    lt_gids alts = {0};
    lt_gid out;
    for (size_t i = 0; i <= n; i++) { /* Equal before i and beyond at i (i = n: equal). */
        const int lo = up                           ? d[i] + 1
                       : leading && i == 0 && n > 1 ? '1'
                                                    : '0',
                  hi = up ? '9' : d[i] - 1;
        if (i == n) {
            lt_gids_push(g, &alts, lt_gast_bytes(g, d, n));
        } else if (lo <= hi) {
            lt_gids_push(g, &alts,
                         lt_gast_seq3(g, lt_gast_bytes(g, d, i), lt_gast_byte(g, lo, hi),
                                      digits(g, (int32_t)(n - i - 1), (int32_t)(n - i - 1))));
        }
    }
    out = lt_gast_list(g, LT_GNODE_ALT, alts.v, alts.n);
    free(alts.v);
    return out;
}

/* Integer parts above (below, if !up) d, excluding d itself. */
static lt_gid beyond_whole(lt_gast *g, const char *d, size_t n, bool up) {
    const lt_gid equal_or = same_length(g, d, n, up, true), equal = lt_gast_bytes(g, d, n);
    lt_gid other;
    if (up) {
        other = n < DIGITS
                    ? lt_gast_seq2(g, lt_gast_byte(g, '1', '9'), digits(g, (int32_t)n, DIGITS - 1))
                    : lt_gast_never(g);
    } else {
        other = n > 1 ? lt_gast_alt2(g, lt_gast_text(g, "0"),
                                     lt_gast_seq2(g, lt_gast_byte(g, '1', '9'),
                                                  digits(g, 0, (int32_t)n - 2)))
                      : lt_gast_never(g);
    }
    return lt_gast_pair(g, LT_GNODE_MINUS, lt_gast_alt2(g, equal_or, other), equal);
}

/* room: digits beyond F that a double still tells apart.
 * What may follow the whole part of the bound itself, so that the value is not below (above) I.F: a
 * fraction, or nothing. */
static lt_gid fraction_beyond(lt_gast *g, const char *f, size_t n, bool up, bool strict,
                              size_t room) {
    lt_gids alts = {0};
    const lt_gid zeros = lt_gast_repeat(g, lt_gast_text(g, "0"), 0, (int32_t)room);
    lt_gid out;
    for (size_t i = 0; i < n; i++) { /* Equal before i and beyond at i. */
        const int lo = up ? f[i] + 1 : '0', hi = up ? '9' : f[i] - 1;
        if (lo <= hi) {
            lt_gids_push(
                g, &alts,
                lt_gast_list(g, LT_GNODE_SEQ,
                             (const lt_gid[]){lt_gast_text(g, "."), lt_gast_bytes(g, f, i),
                                              lt_gast_byte(g, lo, hi), digits(g, 0, (int32_t)room)},
                             4));
        }
        /* A shorter fraction than F is below it, because F does not end in zero. */
        if (!up && i > 0) {
            lt_gids_push(g, &alts, lt_gast_seq2(g, lt_gast_text(g, "."), lt_gast_bytes(g, f, i)));
        }
    }
    if (!up && n > 0) {
        lt_gids_push(g, &alts, lt_gast_empty(g));
    }
    if (!strict) { /* Equal, followed by any number of zeros. */
        lt_gids_push(g, &alts,
                     n > 0 ? lt_gast_seq3(g, lt_gast_text(g, "."), lt_gast_bytes(g, f, n), zeros)
                           : optional(g, lt_gast_seq3(g, lt_gast_text(g, "."), lt_gast_text(g, "0"),
                                                      zeros)));
    }
    if (up) { /* Equal, followed by digits that are not all zeros. */
        lt_gids_push(
            g, &alts,
            lt_gast_list(g, LT_GNODE_SEQ,
                         (const lt_gid[]){lt_gast_text(g, "."), lt_gast_bytes(g, f, n), zeros,
                                          lt_gast_byte(g, '1', '9'), digits(g, 0, (int32_t)room)},
                         5));
    }
    out = lt_gast_list(g, LT_GNODE_ALT, alts.v, alts.n);
    free(alts.v);
    return out;
}

/* Unsigned numbers on one side of |bound|. */
static lt_gid half(lt_gast *g, const char *bound, bool up, bool strict, bool whole) {
    const char *point = strchr(bound, '.');
    const size_t n = point != NULL ? (size_t)(point - bound) : strlen(bound);
    const char *f = point != NULL ? point + 1 : "";
    size_t n_f = strlen(f);
    const lt_gid beyond = beyond_whole(g, bound, n, up), equal = lt_gast_bytes(g, bound, n);
    while (n_f > 0 && f[n_f - 1] == '0') {
        n_f--;
    }
    if (whole) {
        const bool with = n_f == 0 ? !strict : !up; /* With bound 2.5, 2 is below and not above. */
        return with ? lt_gast_alt2(g, beyond, equal) : beyond;
    }
    return lt_gast_alt2(
        g,
        lt_gast_seq2(g, beyond,
                     optional(g, lt_gast_seq2(g, lt_gast_text(g, "."),
                                              digits(g, 1, n < 14 ? 15 - (int32_t)n : 1)))),
        lt_gast_seq2(g, equal,
                     fraction_beyond(g, f, n_f, up, strict, n_f + n < 15 ? 15 - n_f - n : 0)));
}

static bool is_negative(lt_gbound b) {
    return b.text != NULL && b.text[0] == '-';
}

/* Unsigned numbers between two unsigned bounds. */
static lt_gid between(lt_gast *g, lt_gbound lo, lt_gbound hi, bool whole) {
    lt_gid all = whole ? whole_part(g) : lt_gast_seq2(g, whole_part(g), optional(g, fraction(g)));
    if (lo.text != NULL) {
        all = half(g, lo.text, true, lo.strict, whole);
    }
    return hi.text == NULL
               ? all
               : lt_gast_pair(g, LT_GNODE_AND, all, half(g, hi.text, false, hi.strict, whole));
}

lt_gid lt_gjson_range(lt_gast *g, lt_gbound lo, lt_gbound hi, bool whole) {
    const lt_gbound zero = {"0", false}, above_zero = {"0", true};
    lt_gids alts = {0};
    lt_gid out;
    if (!is_negative(hi)) {
        lt_gids_push(g, &alts,
                     between(g, is_negative(lo) || lo.text == NULL ? zero : lo, hi, whole));
    }
    if (is_negative(lo) || lo.text == NULL) {
        const lt_gbound a = is_negative(hi) ? (lt_gbound){hi.text + 1, hi.strict} : above_zero;
        const lt_gbound b = is_negative(lo) ? (lt_gbound){lo.text + 1, lo.strict}
                                            : (lt_gbound){NULL, false};
        lt_gids_push(g, &alts, lt_gast_seq2(g, lt_gast_text(g, "-"), between(g, a, b, whole)));
    }
    out = lt_gast_list(g, LT_GNODE_ALT, alts.v, alts.n);
    free(alts.v);
    return out;
}

/* ---- values ---- */

lt_gid lt_gjson_space(lt_gast *g) {
    const int32_t rule = lt_gast_rule(g, "json space", 10);
    static const lt_grange blanks[] = {{' ', ' '}, {'\t', '\t'}};
    if (rule >= 0 && g->rules[rule].body < 0) {
        const lt_gid line = lt_gast_seq3(
            g, optional(g, lt_gast_text(g, "\r")), lt_gast_text(g, "\n"),
            lt_gast_repeat(g, lt_gast_chars(g, blanks, 2, false), 0, 32));
        lt_gast_define(g, rule, optional(g, lt_gast_alt2(g, lt_gast_text(g, " "), line)));
        g->rules[rule].keep = true;
    }
    return lt_gast_ref(g, rule);
}

/* open (item (, item)*)? close */
static lt_gid listed(lt_gast *g, const char *open, lt_gid item, const char *close, bool unique) {
    const lt_gid ws = lt_gjson_space(g);
    const lt_gid more = lt_gast_list(g, LT_GNODE_SEQ,
                                     (const lt_gid[]){ws, lt_gast_text(g, ","), ws, item}, 4);
    const lt_gid items = lt_gast_seq3(g, item, lt_gast_repeat(g, more, 0, LT_GINF), ws);
    const lt_gid body = lt_gast_seq2(g, ws, optional(g, items));
    return lt_gast_seq3(g, lt_gast_text(g, open), unique ? lt_gjson_unique(g, body) : body,
                        lt_gast_text(g, close));
}

lt_gid lt_gjson_object(lt_gast *g) {
    const int32_t rule = lt_gast_rule(g, "json object", 11);
    if (rule >= 0 && g->rules[rule].body < 0) {
        const lt_gid ws = lt_gjson_space(g);
        const lt_gid name = lt_gjson_quoted(
            g, lt_gjson_name(g, lt_gast_repeat(g, lt_gjson_plain(g), 0, LT_GINF)));
        /* It exists before its body, since it is recursive. */
        lt_gast_define(g, rule, lt_gast_ref(g, rule));
        lt_gast_define(
            g, rule,
            listed(g, "{",
                   lt_gast_list(
                       g, LT_GNODE_SEQ,
                       (const lt_gid[]){name, ws, lt_gast_text(g, ":"), ws, lt_gjson_value(g)}, 5),
                   "}", true));
    }
    return lt_gast_ref(g, rule);
}

lt_gid lt_gjson_array(lt_gast *g) {
    const int32_t rule = lt_gast_rule(g, "json array", 10);
    if (rule >= 0 && g->rules[rule].body < 0) {
        lt_gast_define(g, rule, lt_gast_ref(g, rule)); /* Known while it is made. */
        lt_gast_define(g, rule, listed(g, "[", lt_gjson_value(g), "]", false));
    }
    return lt_gast_ref(g, rule);
}

lt_gid lt_gjson_value(lt_gast *g) {
    const int32_t rule = lt_gast_rule(g, "json value", 10);
    if (rule >= 0 && g->rules[rule].body < 0) {
        lt_gast_define(g, rule, lt_gast_ref(g, rule)); /* Known while it is made. */
        lt_gast_define(
            g, rule,
            lt_gast_list(g, LT_GNODE_ALT,
                         (const lt_gid[]){lt_gjson_object(g), lt_gjson_array(g), any_string(g),
                                          lt_gjson_number(g, false), lt_gast_text(g, "true"),
                                          lt_gast_text(g, "false"), lt_gast_text(g, "null")},
                         7));
    }
    return lt_gast_ref(g, rule);
}

static lt_gid literal_list(lt_gast *g, const json_t *value) {
    const bool object = json_is_object(value);
    const lt_gid ws = lt_gjson_space(g);
    lt_gids kids = {0};
    const char *key;
    json_t *item;
    size_t i = 0;
    lt_gid out;
    lt_gids_push(g, &kids, lt_gast_text(g, object ? "{" : "["));
    lt_gids_push(g, &kids, ws);
    if (object) {
        json_object_foreach((json_t *)(uintptr_t)value, key, item) {
            if (i++ > 0) {
                lt_gids_push(g, &kids, lt_gast_seq3(g, ws, lt_gast_text(g, ","), ws));
            }
            lt_gids_push(g, &kids, lt_gjson_quoted(g, lt_gjson_content(g, key, strlen(key))));
            lt_gids_push(g, &kids, lt_gast_seq3(g, ws, lt_gast_text(g, ":"), ws));
            lt_gids_push(g, &kids, lt_gjson_literal(g, item));
        }
    } else {
        json_array_foreach(value, i, item) {
            if (i > 0) {
                lt_gids_push(g, &kids, lt_gast_seq3(g, ws, lt_gast_text(g, ","), ws));
            }
            lt_gids_push(g, &kids, lt_gjson_literal(g, item));
        }
    }
    lt_gids_push(g, &kids, ws);
    lt_gids_push(g, &kids, lt_gast_text(g, object ? "}" : "]"));
    out = lt_gast_list(g, LT_GNODE_SEQ, kids.v, kids.n);
    free(kids.v);
    return out;
}

/* The shortest notation that reads back as this number; integers with and without a decimal
 * point. */
static lt_gid literal_real(lt_gast *g, double x) {
    char text[40], whole[40];
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x) {
            break;
        }
    }
    if (x != floor(x) || fabs(x) >= 1e15) {
        return lt_gast_text(g, text);
    }
    (void)snprintf(whole, sizeof whole, "%.0f", x);
    return lt_gast_seq2(g, lt_gast_text(g, whole), optional(g, lt_gast_text(g, ".0")));
}

lt_gid lt_gjson_literal(lt_gast *g, const json_t *value) { /* As deep as jansson parses. */
    char *text;
    lt_gid out;
    if (json_is_object(value) || json_is_array(value)) {
        return literal_list(g, value);
    }
    if (json_is_string(value)) {
        return lt_gjson_quoted(
            g, lt_gjson_content(g, json_string_value(value), json_string_length(value)));
    }
    if (json_is_real(value)) {
        return literal_real(g, json_real_value(value));
    }
    text = json_dumps(value, JSON_ENCODE_ANY);
    out = text != NULL ? lt_gast_text(g, text) : -1;
    g->failed = g->failed || text == NULL;
    free(text);
    return out;
}

lt_err lt_gjson_read(lt_gast *g) {
    g->root = lt_gast_new_rule(g, lt_gjson_text(g, lt_gjson_object(g)));
    return LT_OK;
}

lt_err lt_gchoice_read(lt_gast *g, const char *text, size_t bytes) {
    json_t *list = NULL;
    lt_gids alts = {0};
    lt_err err = LT_OK;
    size_t i;
    json_t *item;
    list = lt_json_loadb(text, bytes, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    if (!json_is_array(list) || json_array_size(list) == 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "choice: not an array of one or more strings");
    }
    json_array_foreach(list, i, item) {
        if (!json_is_string(item)) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "choice: item %zu is not a string", i);
        }
        lt_gids_push(g, &alts, lt_gast_bytes(g, json_string_value(item), json_string_length(item)));
    }
    g->root = lt_gast_new_rule(g, lt_gast_list(g, LT_GNODE_ALT, alts.v, alts.n));
done:
    free(alts.v);
    json_decref(list);
    return err;
}
