/* grammar_schema.c: JSON schemas (draft 2020-12, the part that masks can honour) as trees.
 *
 * HONOURED   type, enum, const, $ref (within the document) with $defs, anyOf, oneOf (of alternatives that exclude each other), allOf (merged), nullable;
 *            properties, required, additionalProperties, patternProperties, propertyNames, minProperties, maxProperties (of maps);
 *            items, prefixItems, minItems, maxItems; minLength, maxLength, pattern, format (date-time date time duration email hostname ipv4 ipv6
 *            uri uuid); minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf (whole numbers; 10^-k)
 * IGNORED    what only describes: title, description, default, examples, formats not listed, ...
 * REFUSED    by name, with UNSUPPORTED: what would change the language otherwise (not, if, contains, uniqueItems, ...).
 *
 * What is produced is always valid; some valid texts are not produced: properties come in the schema's order, then others; an object that
 * lists properties and says nothing of others has no others; a schema without type has the types its keywords speak of; numbers with
 * bounds have no exponent. White space between tokens is free within reason. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/grammar_schema.h"

#define MAX_PROPERTIES 2000

typedef struct {
    lt_gast *g;
    const json_t *root;
    json_t *kept; /* Array: merged schemas, which live until the end. */
    int depth;
    /* $refs met, as rules, to be defined. */
    struct {
        int32_t rule;
        const json_t *schema;
    } * pending;
    size_t n_pending, pending_room;
} reader;

static lt_err schema(reader *r, const json_t *s, lt_gid *out);

static lt_err refuse(const char *what) {
    LT_FAIL(LT_ERR_UNSUPPORTED, "schema: '%s' is not supported", what);
}

static lt_err wrong(const char *key, const char *what) {
    LT_FAIL(LT_ERR_FORMAT, "schema: '%s' %s", key, what);
}

/* A count; *out stays when absent. */
static lt_err count(const json_t *s, const char *key, int64_t *out) {
    const json_t *v = json_object_get(s, key);
    const double x = json_number_value(v);
    if (v == NULL) {
        return LT_OK;
    }
    if (!json_is_number(v) || x < 0 || x != floor(x)) {
        return wrong(key, "is not a whole number from 0");
    }
    *out = x > 1e9 ? 1000000000 : (int64_t)x;
    return LT_OK;
}

/* ---- references ---- */

static lt_err reference(reader *r, const char *ref, lt_gid *out) {
    const json_t *target = NULL;
    int32_t rule;
    LT_TRY(lt_gschema_resolve(r->root, ref, &target));
    rule = lt_gast_rule(r->g, ref, strlen(ref));
    LT_TRY(lt_gast_check(r->g));
    if (r->g->rules[rule].body < 0) {
        const size_t n = r->n_pending;
        if (n == r->pending_room) {
            const size_t room = n == 0 ? 16 : 2 * n;
            void *grown = realloc(r->pending, room * sizeof *r->pending);
            if (grown == NULL) {
                LT_FAIL(LT_ERR_OOM, "schema: %zu references", n);
            }
            r->pending = grown;
            r->pending_room = room;
        }
        r->pending[n].rule = rule;
        r->pending[n].schema = target;
        r->n_pending++;
        lt_gast_define(r->g, rule, lt_gast_empty(r->g)); /* Until define_pending comes to it. */
    }
    *out = lt_gast_ref(r->g, rule);
    return LT_OK;
}

static lt_err define_pending(reader *r) {
    for (size_t i = 0; i < r->n_pending; i++) {
        lt_gid body = -1;
        const int32_t rule = r->pending[i].rule;
        LT_TRY(schema(r, r->pending[i].schema, &body));
        lt_gast_define(r->g, rule, body);
    }
    return LT_OK;
}

/* a with b's constraints (NULL: a with its own allOf and $ref written in), kept until the end. */
static lt_err merged(reader *r, const json_t *a, const json_t *b, const json_t **out) {
    json_t *both = json_object();
    if (both == NULL || json_array_append_new(r->kept, both) != 0) {
        LT_FAIL(LT_ERR_OOM, "schema: merging");
    }
    LT_TRY(lt_gschema_merge(r->root, both, a));
    LT_TRY(b != NULL ? lt_gschema_merge(r->root, both, b) : LT_OK);
    *out = both;
    return LT_OK;
}

/* ---- strings ---- */

static lt_err string_content(reader *r, const json_t *s, lt_gid *out) {
    const json_t *pattern = json_object_get(s, "pattern"), *format = json_object_get(s, "format");
    int64_t min = 0, max = LT_GINF;
    const char *known = json_is_string(format) ? lt_gschema_format(json_string_value(format))
                                               : NULL;
    lt_gid more = -1, length;

    LT_TRY(count(s, "minLength", &min));
    LT_TRY(count(s, "maxLength", &max));
    if (max < min) {
        *out = lt_gast_never(r->g);
        return LT_OK;
    }
    *out = -1;
    if (pattern != NULL) {
        if (!json_is_string(pattern)) {
            return wrong("pattern", "is not a string");
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

static lt_err string_type(reader *r, const json_t *s, lt_gid *out) {
    LT_TRY(string_content(r, s, out));
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
        return wrong(key, "is not a number");
    }
    if (decimal(v, text, room)) {
        *out = (lt_gbound){strcmp(text, "-0") == 0 ? "0" : text, is_strict};
        return LT_OK;
    }
    if ((json_number_value(v) < 0) == lower) {
        return LT_OK; /* Beyond all that we write. */
    }
    return refuse("a bound of more than 18 digits");
}

/* Multiples of n as rules by remainder: r0 -> digit r..., the empty text at remainder 0. */
static lt_err multiples(reader *r, int64_t n, lt_gid *out) {
    lt_gast *g = r->g;
    int32_t first = -1;
    lt_gids alts = {0};
    if (n < 1 || n > 1000) {
        return refuse("multipleOf over 1000");
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
static lt_err few_multiples(reader *r, int64_t n, lt_gbound lo, lt_gbound hi, lt_gid *out) {
    enum { MOST = 5000 };
    lt_gids alts = {0};
    double low = lo.text != NULL ? strtod(lo.text, NULL) : 0;
    double high = hi.text != NULL ? strtod(hi.text, NULL) : 0;
    int64_t first, last;
    if (n < 1 || lo.text == NULL || hi.text == NULL || (high - low) / (double)n > MOST ||
        fabs(low) > 1e15 || fabs(high) > 1e15) {
        return refuse("multipleOf beside one bound, or bounds far apart");
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

static lt_err number_type(reader *r, const json_t *s, bool whole, lt_gid *out) {
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
            return refuse("multipleOf that is no whole number");
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
            return refuse("multipleOf that is neither whole nor 10^-k");
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

/* ---- arrays ---- */

static lt_gid comma(reader *r) {
    const lt_gid ws = lt_gjson_space(r->g);
    return lt_gast_seq3(r->g, ws, lt_gast_text(r->g, ","), ws);
}

/* More items of one kind behind n of them: between min and max in all. */
static lt_gid more_items(reader *r, lt_gid item, int64_t n, int64_t min, int64_t max) {
    lt_gast *g = r->g;
    const int64_t lo = min > n ? min - n : 0, hi = max == LT_GINF ? LT_GINF : max - n;
    const lt_gid next = lt_gast_seq2(g, comma(r), item);
    lt_gid some;
    if (n > 0) {
        return lt_gast_repeat(g, next, (int32_t)lo, (int32_t)hi);
    }
    if (hi <= 0) {
        return lt_gast_empty(g);
    }
    some = lt_gast_seq2(g, item,
                        lt_gast_repeat(g, next, (int32_t)(lo > 0 ? lo - 1 : 0),
                                       hi == LT_GINF ? LT_GINF : (int32_t)hi - 1));
    return lo > 0 ? some : lt_gast_repeat(g, some, 0, 1);
}

static lt_err array_type(reader *r, const json_t *s, lt_gid *out) {
    lt_gast *g = r->g;
    const json_t *items = json_object_get(s, "items"), *prefix = json_object_get(s, "prefixItems");
    const lt_gid ws = lt_gjson_space(g);
    int64_t min = 0, max = LT_GINF;
    lt_gid item = -1, tail, body;
    if (json_is_array(items)) { /* Draft 7's tuple. */
        prefix = items;
        items = json_object_get(s, "additionalItems");
    }
    const int64_t n = (int64_t)json_array_size(prefix);
    LT_TRY(count(s, "minItems", &min));
    LT_TRY(count(s, "maxItems", &max));
    if (json_is_false(items)) {
        max = max < n ? max : n;
    } else if (items != NULL) {
        LT_TRY(schema(r, items, &item));
        item = lt_gast_ref(g, lt_gast_new_rule(g, item));
    } else {
        item = lt_gjson_value(g);
    }
    if (min > max) {
        *out = lt_gast_never(g);
        return LT_OK;
    }
    body = item < 0 ? lt_gast_empty(g) : more_items(r, item, n, min, max > n || n == 0 ? max : n);
    for (int64_t i = n - 1; i >= 0; i--) { /* From the last: each may be where the array ends. */
        lt_gid one = -1;
        LT_TRY(schema(r, json_array_get(prefix, (size_t)i), &one));
        tail = lt_gast_seq2(g, i > 0 ? lt_gast_seq2(g, comma(r), one) : one, body);
        body = i >= max ? lt_gast_empty(g) : i >= min ? lt_gast_repeat(g, tail, 0, 1) : tail;
        if (g->failed) {
            return lt_gast_check(g);
        }
    }
    *out = lt_gast_list(g, LT_GNODE_SEQ,
                        (const lt_gid[]){lt_gast_text(g, "["), ws, body, ws, lt_gast_text(g, "]")},
                        5);
    return LT_OK;
}

/* ---- objects ---- */

static bool is_required(const json_t *s, const char *key) {
    return lt_gschema_has(json_object_get(s, "required"), key);
}

static lt_gid pair_of(reader *r, lt_gid key, lt_gid value) {
    const lt_gid ws = lt_gjson_space(r->g);
    return lt_gast_list(
        r->g, LT_GNODE_SEQ,
        (const lt_gid[]){lt_gjson_quoted(r->g, key), ws, lt_gast_text(r->g, ":"), ws, value}, 5);
}

enum { PATTERNS = 3 }; /* Of patternProperties beside others; each doubles what a key may be. */

/* Keys, and what they may be: patternProperties and propertyNames as languages of keys. */
typedef struct {
    const json_t *schemas[PATTERNS];
    lt_gid keys[PATTERNS];
    size_t n;
    lt_gid names; /* propertyNames; -1: any. */
} key_rules;

/* propertyNames: a schema of strings. */
static lt_err name_rule(reader *r, const json_t *s, lt_gid *out) {
    const json_t *names = json_object_get(s, "propertyNames"), *list, *v;
    lt_gids alts = {0};
    size_t i;
    *out = -1;
    if (names == NULL || json_is_true(names)) {
        return LT_OK;
    }
    if (json_is_string(json_object_get(names, "$ref")) && json_object_size(names) == 1) {
        LT_TRY(
            lt_gschema_resolve(r->root, json_string_value(json_object_get(names, "$ref")), &names));
    }
    list = json_object_get(names, "enum");
    if (list == NULL) {
        const char *type = json_string_value(json_object_get(names, "type"));
        if (json_is_false(names) || json_object_get(names, "const") != NULL ||
            json_object_get(names, "anyOf") != NULL || json_object_get(names, "allOf") != NULL ||
            json_object_get(names, "oneOf") != NULL || json_object_get(names, "not") != NULL ||
            json_object_get(names, "$ref") != NULL ||
            (type == NULL ? json_object_get(names, "type") != NULL : strcmp(type, "string") != 0)) {
            return refuse("propertyNames other than enum, pattern, format and lengths");
        }
        return string_content(r, names, out);
    }
    json_array_foreach(list, i, v) {
        if (json_is_string(v)) {
            lt_gids_push(r->g, &alts,
                         lt_gjson_content(r->g, json_string_value(v), json_string_length(v)));
        }
    }
    *out = lt_gast_list(r->g, LT_GNODE_ALT, alts.v, alts.n);
    free(alts.v);
    return LT_OK;
}

static lt_err read_key_rules(reader *r, const json_t *s, key_rules *k) {
    const json_t *patterns = json_object_get(s, "patternProperties");
    const char *pattern;
    json_t *value;
    k->n = 0;
    if (json_object_size(patterns) > PATTERNS) {
        return refuse("patternProperties with more than 3 patterns");
    }
    json_object_foreach((json_t *)(uintptr_t)patterns, pattern, value) {
        LT_TRY(lt_gregex_read(r->g, pattern, strlen(pattern), true, true, &k->keys[k->n]));
        k->schemas[k->n++] = value;
    }
    return name_rule(r, s, &k->names);
}

/* Pairs of a key with the value that a schema (NULL: any that a pattern allows) and the patterns which the key matches ask for: an alternative for each
 * set of patterns. */
static lt_err ruled_pair(reader *r, const key_rules *k, lt_gid key, const json_t *value,
                         lt_gid *out) {
    lt_gast *g = r->g;
    lt_gids alts = {0};
    lt_err err = LT_OK;
    for (unsigned set = value == NULL ? 1 : 0; set < 1U << k->n; set++) {
        lt_gid one = key, v = -1;
        const json_t *all = value;
        for (size_t i = 0; i < k->n; i++) {
            const bool in = (set >> i & 1) != 0;
            one = lt_gast_pair(g, in ? LT_GNODE_AND : LT_GNODE_MINUS, one, k->keys[i]);
            if (in && all == NULL) {
                all = k->schemas[i];
            } else if (in) {
                LT_TRY_DONE(merged(r, all, k->schemas[i], &all));
            }
        }
        LT_TRY_DONE(schema(r, all, &v));
        lt_gids_push(
            g, &alts,
            pair_of(r, k->names >= 0 ? lt_gast_pair(g, LT_GNODE_AND, one, k->names) : one, v));
    }
    *out = alts.n == 0   ? -1
           : alts.n == 1 ? alts.v[0]
                         : lt_gast_list(g, LT_GNODE_ALT, alts.v, alts.n);
done:
    free(alts.v);
    return err;
}

/* Members beside the properties: by pattern, then whatever additionalProperties says. *out -1: none. */
static lt_err other_members(reader *r, const json_t *s, const key_rules *k, lt_gid *out) {
    lt_gast *g = r->g;
    const json_t *properties = json_object_get(s, "properties");
    const json_t *additional = json_object_get(s, "additionalProperties");
    const bool closed = additional == NULL ? json_object_size(properties) > 0 || k->n > 0
                                           : json_is_false(additional);
    lt_gids names = {0};
    const char *key;
    json_t *value;
    lt_gid other = lt_gast_repeat(g, lt_gjson_char(g), 0, LT_GINF);

    json_object_foreach((json_t *)(uintptr_t)properties, key, value) {
        lt_gids_push(g, &names, lt_gjson_content(g, key, strlen(key)));
    }
    if (names.n > 0) {
        other = lt_gast_pair(g, LT_GNODE_MINUS, other,
                             lt_gast_list(g, LT_GNODE_ALT, names.v, names.n));
    }
    free(names.v);
    *out = -1;
    if (closed) {
        LT_TRY(ruled_pair(r, k, other, NULL, out));
    } else if (k->n == 0) {
        LT_TRY(ruled_pair(r, k, other, additional != NULL ? additional : json_true(), out));
    } else {
        lt_gid by_pattern = -1, v = -1;
        LT_TRY(ruled_pair(r, k, other, NULL, &by_pattern));
        for (size_t i = 0; i < k->n; i++) {
            other = lt_gast_pair(g, LT_GNODE_MINUS, other, k->keys[i]);
        }
        other = k->names >= 0 ? lt_gast_pair(g, LT_GNODE_AND, other, k->names) : other;
        LT_TRY(schema(r, additional != NULL ? additional : json_true(), &v));
        *out = lt_gast_alt2(g, by_pattern, pair_of(r, other, v));
    }
    if (*out >= 0) {
        *out = lt_gast_ref(g, lt_gast_new_rule(g, *out));
    }
    return LT_OK;
}

typedef struct {
    lt_gid pair;
    bool required;
} member;

/* properties, and required names that are not among them. */
static lt_err members_of(reader *r, const json_t *s, const key_rules *k, member *m, size_t *n) {
    lt_gast *g = r->g;
    const json_t *properties = json_object_get(s, "properties"),
                 *additional = json_object_get(s, "additionalProperties");
    const char *key;
    json_t *value;
    size_t i;
    lt_gid pair = -1;
    *n = 0;
    json_object_foreach((json_t *)(uintptr_t)properties, key, value) {
        LT_TRY(ruled_pair(r, k, lt_gjson_content(g, key, strlen(key)), value, &pair));
        m[*n].pair = lt_gast_ref(g, lt_gast_new_rule(g, pair));
        m[(*n)++].required = is_required(s, key);
    }
    json_array_foreach(json_object_get(s, "required"), i, value) {
        if (!json_is_string(value)) {
            return wrong("required", "holds something that is not a string");
        }
        if (json_object_get(properties, json_string_value(value)) == NULL) {
            if (k->n > 0) {
                return refuse("required of a key that patternProperties rule");
            }
            LT_TRY(ruled_pair(
                r, k, lt_gjson_content(g, json_string_value(value), json_string_length(value)),
                additional != NULL ? additional : json_true(), &m[*n].pair));
            m[(*n)++].required = true;
        }
    }
    return LT_OK;
}

/* after[i]: what may follow when members before i are settled and something was written; first[i]: when nothing was. Built from the last
 * member, each a rule, so that the whole grows with the number of members. */
static lt_gid chain(reader *r, const member *m, size_t n, lt_gid other, int64_t min, int64_t max) {
    lt_gast *g = r->g;
    lt_gid after = lt_gast_empty(g), first = lt_gast_empty(g);
    if (other >= 0) {
        after = more_items(r, other, n > 0 ? 1 : 0, 0, LT_GINF);
        first = more_items(r, other, 0, n == 0 ? min : 0, n == 0 ? max : LT_GINF);
        after = n > 0 ? after : first;
    }
    for (size_t i = n; i-- > 0 && !g->failed;) {
        const lt_gid rest = lt_gast_ref(g, lt_gast_new_rule(g, after));
        const lt_gid next = lt_gast_seq2(g, comma(r), m[i].pair);
        first = m[i].required ? lt_gast_seq2(g, m[i].pair, rest)
                              : lt_gast_alt2(g, lt_gast_seq2(g, m[i].pair, rest),
                                             lt_gast_ref(g, lt_gast_new_rule(g, first)));
        after = lt_gast_seq2(g, m[i].required ? next : lt_gast_repeat(g, next, 0, 1), rest);
    }
    return first;
}

static lt_err object_type(reader *r, const json_t *s, lt_gid *out) {
    lt_gast *g = r->g;
    const size_t room = json_object_size(json_object_get(s, "properties")) +
                        json_array_size(json_object_get(s, "required")) + 1;
    const lt_gid ws = lt_gjson_space(g);
    int64_t min = 0, max = LT_GINF, n_required = 0;
    size_t n = 0;
    lt_gid other = -1, body;
    key_rules rules;
    member *m = calloc(room, sizeof *m);
    lt_err err = LT_OK;

    if (m == NULL || room > MAX_PROPERTIES) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "schema: an object of more than %d properties", MAX_PROPERTIES);
    }
    LT_TRY_DONE(count(s, "minProperties", &min));
    LT_TRY_DONE(count(s, "maxProperties", &max));
    LT_TRY_DONE(read_key_rules(r, s, &rules));
    LT_TRY_DONE(members_of(r, s, &rules, m, &n));
    LT_TRY_DONE(other_members(r, s, &rules, &other));
    for (size_t i = 0; i < n; i++) {
        n_required += m[i].required;
    }
    if (n > 0 && (min > n_required || (max < (int64_t)n || (other >= 0 && max != LT_GINF)))) {
        err = refuse("minProperties or maxProperties beside properties");
        goto done;
    }
    body = chain(r, m, n, other, min, max);
    *out = n == 0 && other < 0 && min > 0
               ? lt_gast_never(g)
               : lt_gast_list(
                     g, LT_GNODE_SEQ,
                     (const lt_gid[]){lt_gast_text(g, "{"), ws, body, ws, lt_gast_text(g, "}")}, 5);
done:
    free(m);
    return err;
}

/* ---- schemas ---- */

static lt_err check_keywords(const json_t *s) {
    static const char *const refused[] = {
        "not",          "if",          "contains",      "dependentRequired", "dependentSchemas",
        "dependencies", "$dynamicRef", "$recursiveRef", "unevaluatedItems"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const json_t *v = json_object_get(s, refused[i]);
        if (v != NULL && !(strcmp(refused[i], "if") == 0 && json_object_get(s, "then") == NULL &&
                           json_object_get(s, "else") == NULL)) {
            return refuse(refused[i]);
        }
    }
    if (json_is_true(json_object_get(s, "uniqueItems"))) {
        return refuse("uniqueItems");
    }
    if (json_object_get(s, "unevaluatedProperties") != NULL &&
        !json_is_true(json_object_get(s, "unevaluatedProperties"))) {
        return refuse("unevaluatedProperties");
    }
    return LT_OK;
}

static lt_err one_type(reader *r, const json_t *s, const char *type, lt_gid *out) {
    if (strcmp(type, "object") == 0) {
        return object_type(r, s, out);
    }
    if (strcmp(type, "array") == 0) {
        return array_type(r, s, out);
    }
    if (strcmp(type, "string") == 0) {
        return string_type(r, s, out);
    }
    if (strcmp(type, "number") == 0 || strcmp(type, "integer") == 0) {
        return number_type(r, s, type[0] == 'i', out);
    }
    if (strcmp(type, "boolean") == 0) {
        *out = lt_gast_alt2(r->g, lt_gast_text(r->g, "true"), lt_gast_text(r->g, "false"));
        return LT_OK;
    }
    if (strcmp(type, "null") == 0) {
        *out = lt_gast_text(r->g, "null");
        return LT_OK;
    }
    LT_FAIL(LT_ERR_FORMAT, "schema: there is no type '%.100s'", type);
}

/* The types a schema without "type" speaks of; an empty list: any value. */
static json_t *guess_types(const json_t *s) {
    static const struct {
        const char *key, *type;
    } rows[] = {{"properties", "object"},
                {"required", "object"},
                {"additionalProperties", "object"},
                {"patternProperties", "object"},
                {"propertyNames", "object"},
                {"minProperties", "object"},
                {"maxProperties", "object"},
                {"items", "array"},
                {"prefixItems", "array"},
                {"minItems", "array"},
                {"maxItems", "array"},
                {"minLength", "string"},
                {"maxLength", "string"},
                {"pattern", "string"},
                {"format", "string"},
                {"minimum", "number"},
                {"maximum", "number"},
                {"exclusiveMinimum", "number"},
                {"exclusiveMaximum", "number"},
                {"multipleOf", "number"}};
    json_t *types = json_array();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (json_object_get(s, rows[i].key) != NULL && !lt_gschema_has(types, rows[i].type)) {
            json_array_append_new(types, json_string(rows[i].type));
        }
    }
    return types;
}

json_t *lt_gschema_produced(const json_t *s) {
    const json_t *type = json_object_get(s, "type");
    json_t *types = type != NULL ? lt_gschema_types(type) : guess_types(s);
    if (json_is_true(json_object_get(s, "nullable"))) {
        json_array_append_new(types, json_string("null"));
    }
    return types;
}

static lt_err typed(reader *r, const json_t *s, lt_gid *out) {
    const json_t *type = json_object_get(s, "type");
    json_t *types = lt_gschema_produced(s), *t;
    lt_gids alts = {0};
    lt_err err = LT_OK;
    size_t i;
    if (type == NULL && json_array_size(types) == 0) {
        *out = lt_gjson_value(r->g);
        goto done;
    }
    json_array_foreach(types, i, t) {
        lt_gid one = -1;
        if (!json_is_string(t)) {
            err = wrong("type", "is neither a string nor a list of them");
            goto done;
        }
        LT_TRY_DONE(one_type(r, s, json_string_value(t), &one));
        lt_gids_push(r->g, &alts, one);
    }
    *out = lt_gast_list(r->g, LT_GNODE_ALT, alts.v, alts.n);
done:
    free(alts.v);
    json_decref(types);
    return err;
}

static bool of_type(const json_t *v, const char *type) {
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return strcmp(type, "object") == 0;
    case JSON_ARRAY:
        return strcmp(type, "array") == 0;
    case JSON_STRING:
        return strcmp(type, "string") == 0;
    case JSON_INTEGER:
        return strcmp(type, "integer") == 0 || strcmp(type, "number") == 0;
    case JSON_REAL:
        return strcmp(type, "number") == 0 ||
               (strcmp(type, "integer") == 0 && json_real_value(v) == floor(json_real_value(v)));
    case JSON_NULL:
        return strcmp(type, "null") == 0;
    default:
        return strcmp(type, "boolean") == 0;
    }
}

bool lt_gschema_value_fits(const json_t *value, const json_t *type) {
    json_t *types = lt_gschema_types(type), *t;
    bool fits = false;
    size_t i;
    json_array_foreach(types, i, t) {
        fits = fits || (json_is_string(t) && of_type(value, json_string_value(t)));
    }
    json_decref(types);
    return fits;
}

/* A keyword of the list stands beside. */
static bool any_of(const json_t *s, const char *const *keys) {
    while (*keys != NULL && json_object_get(s, *keys) == NULL) {
        keys++;
    }
    return *keys != NULL;
}

/* One value of an enum, if the keywords beside it allow it. */
static lt_err value_of(reader *r, const json_t *s, const json_t *v, lt_gid *out) {
    static const char *const strings[] = {"pattern", "format", "minLength", "maxLength", NULL};
    static const char *const numbers[] = {"minimum",          "maximum",    "exclusiveMinimum",
                                          "exclusiveMaximum", "multipleOf", NULL};
    static const char *const others[] = {"properties",    "required",      "additionalProperties",
                                         "items",         "prefixItems",   "patternProperties",
                                         "minProperties", "maxProperties", "propertyNames",
                                         "minItems",      "maxItems",      NULL};
    lt_gid rule = -1;
    *out = lt_gjson_literal(r->g, v);
    if (json_is_string(v) && any_of(s, strings)) {
        LT_TRY(string_type(r, s, &rule));
    } else if (json_is_number(v) && any_of(s, numbers)) {
        if (json_object_get(s, "multipleOf") != NULL) {
            return refuse("multipleOf beside enum or const");
        }
        LT_TRY(number_type(r, s, json_is_integer(v), &rule));
    } else if ((json_is_object(v) || json_is_array(v)) && any_of(s, others)) {
        return refuse("enum or const of objects or arrays beside what rules them");
    }
    *out = rule >= 0 ? lt_gast_pair(r->g, LT_GNODE_AND, *out, rule) : *out;
    return LT_OK;
}

/* enum or const: the values that the keywords beside allow. */
static lt_err values(reader *r, const json_t *s, lt_gid *out) {
    const json_t *type = json_object_get(s, "type"), *one = json_object_get(s, "const"), *v;
    json_t *list = json_object_get(s, "enum") != NULL ? json_incref(json_object_get(s, "enum"))
                                                      : json_pack("[O]", one);
    lt_gids alts = {0};
    lt_err err = LT_OK;
    size_t i;
    if (!json_is_array(list)) {
        err = wrong("enum", "is not a list");
        goto done;
    }
    json_array_foreach(list, i, v) {
        lt_gid value = -1;
        if ((type == NULL || lt_gschema_value_fits(v, type)) &&
            (one == NULL || json_equal(v, one))) {
            LT_TRY_DONE(value_of(r, s, v, &value));
            lt_gids_push(r->g, &alts, value);
        }
    }
    *out = lt_gast_list(r->g, LT_GNODE_ALT, alts.v, alts.n);
done:
    free(alts.v);
    json_decref(list);
    return err;
}

/* No two alternatives of a oneOf may hold at once: a mask does not count them. */
static lt_err check_apart(reader *r, const json_t *list) {
    const size_t n = json_array_size(list);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < n; k++) {
            if (i != k &&
                !lt_gschema_apart(r->root, json_array_get(list, i), json_array_get(list, k), 0)) {
                return refuse("oneOf whose alternatives may hold at once (use anyOf)");
            }
        }
    }
    return LT_OK;
}

/* anyOf or oneOf: each alternative with the keywords beside. */
static lt_err alternatives(reader *r, const json_t *s, const char *key, lt_gid *out) {
    const json_t *list = json_object_get(s, key);
    json_t *base = json_copy((json_t *)(uintptr_t)s), *all = json_array(), *v;
    lt_gids alts = {0};
    lt_err err = LT_OK;
    size_t i;
    if (base == NULL || all == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "schema: %s", key);
    }
    json_object_del(base, key);
    if (!json_is_array(list)) {
        err = wrong(key, "is not a list");
        goto done;
    }
    json_array_foreach(list, i, v) {
        const json_t *both = v;
        if (json_object_size(base) > 0) {
            LT_TRY_DONE(merged(r, base, v, &both));
        }
        if (json_array_append(all, (json_t *)(uintptr_t)both) != 0) {
            LT_FAIL_DONE(LT_ERR_OOM, "schema: %s", key);
        }
    }
    if (strcmp(key, "oneOf") == 0) {
        LT_TRY_DONE(check_apart(r, all));
    }
    json_array_foreach(all, i, v) {
        lt_gid one = -1;
        LT_TRY_DONE(schema(r, v, &one));
        lt_gids_push(r->g, &alts, one);
    }
    *out = lt_gast_list(r->g, LT_GNODE_ALT, alts.v, alts.n);
done:
    free(alts.v);
    json_decref(base);
    json_decref(all);
    return err;
}

/* Does an object have keys that constrain, beside this one? */
static bool has_siblings(const json_t *s, const char *but) {
    static const char *const plain[] = {"title",    "description", "default",  "examples",
                                        "$defs",    "definitions", "$schema",  "$id",
                                        "$comment", "deprecated",  "readOnly", "writeOnly"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)s, key, value) {
        bool counts = strcmp(key, but) != 0;
        for (size_t i = 0; i < sizeof plain / sizeof *plain && counts; i++) {
            counts = strcmp(key, plain[i]) != 0;
        }
        if (counts) {
            return true;
        }
    }
    return false;
}

static lt_err schema_object(reader *r, const json_t *s, lt_gid *out) {
    const json_t *ref = json_object_get(s, "$ref"), *whole = NULL;
    LT_TRY(check_keywords(s));
    if (json_is_string(ref) && !has_siblings(s, "$ref")) {
        return reference(r, json_string_value(ref), out);
    }
    if (ref != NULL || json_object_get(s, "allOf") != NULL) {
        LT_TRY(merged(r, s, NULL, &whole));
        return schema(r, whole, out);
    }
    if (json_object_get(s, "anyOf") != NULL) {
        return alternatives(r, s, "anyOf", out);
    }
    if (json_object_get(s, "oneOf") != NULL) {
        return alternatives(r, s, "oneOf", out);
    }
    if (json_object_get(s, "enum") != NULL || json_object_get(s, "const") != NULL) {
        return values(r, s, out);
    }
    return typed(r, s, out);
}

static lt_err schema(reader *r, const json_t *s, lt_gid *out) {
    lt_err err;
    if (json_is_true(s)) {
        *out = lt_gjson_value(r->g);
        return LT_OK;
    }
    if (json_is_false(s)) {
        *out = lt_gast_never(r->g);
        return LT_OK;
    }
    if (!json_is_object(s)) {
        LT_FAIL(LT_ERR_FORMAT, "schema: a schema is an object, true or false");
    }
    if (r->depth > LT_GRAMMAR_DEPTH) {
        LT_FAIL(LT_ERR_LIMIT, "schema: nested deeper than %d", LT_GRAMMAR_DEPTH);
    }
    r->depth++;
    err = schema_object(r, s, out);
    r->depth--;
    return err != LT_OK ? err : lt_gast_check(r->g);
}

lt_err lt_gschema_tree(lt_gast *g, const json_t *root, const json_t *s, lt_gid *out) {
    lt_err err = LT_OK;
    reader r = {.g = g, .root = root, .kept = json_array()};
    LT_TRY_DONE(schema(&r, s, out));
    LT_TRY_DONE(define_pending(&r));
done:
    json_decref(r.kept);
    free(r.pending);
    return err;
}

lt_err lt_gschema_read(lt_gast *g, const char *text, size_t bytes) {
    json_t *root = json_loadb(text, bytes, JSON_DECODE_ANY, NULL);
    lt_gid body = -1;
    lt_err err;
    if (root == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "schema: not JSON");
    }
    err = lt_gschema_tree(g, root, root, &body);
    if (err == LT_OK) {
        g->root = lt_gast_new_rule(g, body);
    }
    json_decref(root);
    return err;
}
