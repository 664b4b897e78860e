/* grammar/valid.c: decides whether a small value that a schema lists (enum, const) is valid under
 * another schema, by the semantics of JSON Schema. The result is "not known" for unevaluated...
 * keywords and for circular references. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "serve/grammar/language.h"
#include "serve/grammar/schema.h"

#define DEPTH 40

unsigned lt_gschema_type_of(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return LT_GTYPE_OBJECT;
    case JSON_ARRAY:
        return LT_GTYPE_ARRAY;
    case JSON_STRING:
        return LT_GTYPE_STRING;
    case JSON_INTEGER:
        return LT_GTYPE_WHOLE;
    case JSON_REAL:
        return json_real_value(v) == floor(json_real_value(v)) ? LT_GTYPE_WHOLE : LT_GTYPE_FRACTION;
    case JSON_TRUE:
        return LT_GTYPE_TRUE;
    case JSON_FALSE:
        return LT_GTYPE_FALSE;
    default:
        return LT_GTYPE_NULL;
    }
}

bool lt_gschema_equal(const json_t *a, const json_t *b) { /* As deep as jansson parses. */
    const char *key;
    json_t *v;
    size_t i;
    if (json_is_number(a) && json_is_number(b)) {
        return json_is_integer(a) && json_is_integer(b)
                   ? json_integer_value(a) == json_integer_value(b)
                   : json_number_value(a) == json_number_value(b);
    }
    if (json_typeof(a) != json_typeof(b)) {
        return false;
    }
    if (json_is_object(a)) {
        bool same = json_object_size(a) == json_object_size(b);
        json_object_foreach((json_t *)(uintptr_t)a, key, v) {
            const json_t *other = json_object_get(b, key);
            same = same && other != NULL && lt_gschema_equal(v, other);
        }
        return same;
    }
    if (json_is_array(a)) {
        bool same = json_array_size(a) == json_array_size(b);
        json_array_foreach(a, i, v) {
            same = same && lt_gschema_equal(v, json_array_get(b, i));
        }
        return same;
    }
    return json_equal(a, b);
}

/* ---- texts against patterns ---- */

lt_err lt_gschema_matches(const json_t *pattern, const char *text, size_t bytes, bool *out) {
    lt_gast g = {0};
    lt_gid body = -1;
    lt_err err = LT_OK;
    LT_TRY_DONE(lt_gregex_read(&g, json_string_value(pattern), json_string_length(pattern),
                               (lt_gregex_options){.search = true}, &body));
    LT_TRY_DONE(lt_glanguage_has(&g, body, text, bytes, out));
done:
    lt_gast_free(&g);
    return err;
}

static int matches(const json_t *pattern, const char *text, size_t bytes) {
    bool is = false;
    return json_is_string(pattern) && lt_gschema_matches(pattern, text, bytes, &is) == LT_OK ? is
                                                                                             : -1;
}

/* ---- keywords ---- */

/* Both hold: not known unless one fails. */
static int and (int a, int b) {
    return a == 0 || b == 0 ? 0 : a < 0 || b < 0 ? -1 : 1;
}

static int count_fits(lt_gschema_reader *r, const json_t *s, const char *min_key,
                      const char *max_key, int64_t n) {
    int64_t min = 0, max = LT_GINF;
    if (lt_gschema_count(r, s, min_key, &min) != LT_OK ||
        lt_gschema_count(r, s, max_key, &max) != LT_OK) {
        return -1;
    }
    return n >= min && n <= max;
}

static bool is_multiple(double x, double step) {
    const double times = x / step;
    return fabs(times - round(times)) <= 1e-9 * fmax(1, fabs(times)) && fabs(times) < 1e15;
}

static int number_fits(const json_t *s, const json_t *v) {
    const double x = json_number_value(v);
    const json_t *low = lt_gschema_get(s, "minimum"), *high = lt_gschema_get(s, "maximum"),
                 *above = lt_gschema_get(s, "exclusiveMinimum"),
                 *below = lt_gschema_get(s, "exclusiveMaximum"),
                 *step = lt_gschema_get(s, "multipleOf"),
                 *not_step = json_object_get(s, "\001not_multiple");
    if ((low != NULL &&
         (x < json_number_value(low) || (json_is_true(above) && x == json_number_value(low)))) ||
        (high != NULL &&
         (x > json_number_value(high) || (json_is_true(below) && x == json_number_value(high)))) ||
        (json_is_number(above) && x <= json_number_value(above)) ||
        (json_is_number(below) && x >= json_number_value(below))) {
        return 0;
    }
    return (step == NULL || is_multiple(x, json_number_value(step))) &&
           (not_step == NULL || !is_multiple(x, json_number_value(not_step)));
}

static int string_fits(lt_gschema_reader *r, const json_t *s, const json_t *v) {
    const char *text = json_string_value(v);
    const json_t *format = lt_gschema_get(s, "format"), *pattern = lt_gschema_get(s, "pattern");
    int64_t n = 0;
    int fits;
    for (size_t i = 0; i < json_string_length(v); i++) {
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    }
    fits = count_fits(r, s, "minLength", "maxLength", n);
    if (pattern != NULL) {
        fits = and(fits, matches(pattern, text, json_string_length(v)));
    }
    if (json_is_string(format)) {
        const char *const *known = lt_gschema_format(json_string_value(format));
        bool is = known == NULL;
        for (; known != NULL && *known != NULL && !is; known++) {
            json_t *one = json_string(*known);
            is = one != NULL && matches(one, text, json_string_length(v)) == 1;
            json_decref(one);
        }
        fits = is ? fits : and(fits, -1); /* Our formats are subsets of the true ones. */
    }
    return fits;
}

static int array_fits(lt_gschema_reader *r, const json_t *s, const json_t *v, int depth) {
    const json_t *items = lt_gschema_get(s, "items"), *prefix = lt_gschema_get(s, "prefixItems"),
                 *contains = lt_gschema_get(s, "contains"), *item;
    int fits = count_fits(r, s, "minItems", "maxItems", (int64_t)json_array_size(v));
    int64_t n = 0, min = 1, max = LT_GINF;
    bool unknown = false;
    size_t i;
    if (json_is_array(items)) {
        prefix = items;
        items = lt_gschema_get(s, "additionalItems");
    }
    json_array_foreach(v, i, item) {
        const json_t *rule = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
        fits = rule != NULL ? and(fits, lt_gschema_valid(r, rule, item, depth)) : fits;
        if (contains != NULL) {
            const int has = lt_gschema_valid(r, contains, item, depth);
            n += has == 1;
            unknown = unknown || has < 0;
        }
        for (size_t k = 0; k < i && json_is_true(json_object_get(s, "uniqueItems")); k++) {
            fits = lt_gschema_equal(item, json_array_get(v, k)) ? 0 : fits;
        }
    }
    if (contains != NULL) {
        if (lt_gschema_count(r, s, "minContains", &min) != LT_OK ||
            lt_gschema_count(r, s, "maxContains", &max) != LT_OK || unknown) {
            return and(fits, -1);
        }
        fits = and(fits, n >= min && n <= max);
    }
    return fits;
}

/* Check a member against properties, patternProperties, additionalProperties, propertyNames. */
static int member_fits(lt_gschema_reader *r, const json_t *s, const char *key, const json_t *v,
                       int depth) {
    const json_t *own = json_object_get(lt_gschema_get(s, "properties"), key),
                 *names = lt_gschema_get(s, "propertyNames"),
                 *more = lt_gschema_get(s, "additionalProperties");
    int fits = own != NULL ? lt_gschema_valid(r, own, v, depth) : 1;
    bool ruled = own != NULL;
    const char *pattern;
    json_t *rule, *name;
    json_object_foreach((json_t *)(uintptr_t)lt_gschema_get(s, "patternProperties"), pattern,
                        rule) {
        json_t *text = json_string(pattern);
        const int is = matches(text, key, strlen(key));
        json_decref(text);
        fits = is == 0  ? fits
               : is < 0 ? and(fits, -1)
                        : and(fits, lt_gschema_valid(r, rule, v, depth));
        ruled = ruled || is != 0;
    }
    if (!ruled && more != NULL) {
        fits = and(fits, lt_gschema_valid(r, more, v, depth));
    }
    if (names != NULL) {
        name = json_string(key);
        fits = and(fits, lt_gschema_valid(r, names, name, depth));
        json_decref(name);
    }
    return fits;
}

static int object_fits(lt_gschema_reader *r, const json_t *s, const json_t *v, int depth) {
    static const char *const depend[] = {"dependencies", "dependentRequired", "dependentSchemas"};
    int fits = count_fits(r, s, "minProperties", "maxProperties", (int64_t)json_object_size(v));
    const char *key;
    json_t *item;
    size_t i;
    json_array_foreach(lt_gschema_get(s, "required"), i, item) {
        fits = json_object_get(v, json_is_string(item) ? json_string_value(item) : "") == NULL
                   ? 0
                   : fits;
    }
    json_object_foreach((json_t *)(uintptr_t)v, key, item) {
        fits = and(fits, member_fits(r, s, key, item, depth));
    }
    for (i = 0; i < 3; i++) {
        json_object_foreach((json_t *)(uintptr_t)lt_gschema_get(s, depend[i]), key, item) {
            if (json_object_get(v, key) == NULL) {
                continue;
            }
            json_t *asks = json_is_array(item)    ? json_pack("{s:O}", "required", item)
                           : json_is_string(item) ? json_pack("{s:[O]}", "required", item)
                                                  : json_incref(item);
            fits = and(fits, lt_gschema_valid(r, asks, v, depth));
            json_decref(asks);
        }
    }
    return fits;
}

static int logic_fits(lt_gschema_reader *r, const json_t *s, const json_t *v, int depth) {
    const json_t *one = lt_gschema_get(s, "oneOf"), *any = lt_gschema_get(s, "anyOf"), *k,
                 *not = lt_gschema_get(s, "not"), *test = lt_gschema_get(s, "if"), *next;
    int fits = 1, is, n_true = 0, n_open = 0;
    size_t i;
    json_array_foreach(lt_gschema_get(s, "allOf"), i, k) {
        fits = and(fits, lt_gschema_valid(r, k, v, depth));
    }
    json_array_foreach(any, i, k) {
        is = lt_gschema_valid(r, k, v, depth);
        n_true += is == 1;
        n_open += is < 0;
    }
    fits = any == NULL || n_true > 0 ? fits : and(fits, n_open > 0 ? -1 : 0);
    n_true = n_open = 0;
    json_array_foreach(one, i, k) {
        is = lt_gschema_valid(r, k, v, depth);
        n_true += is == 1;
        n_open += is < 0;
    }
    if (one != NULL) {
        fits = and(fits, n_true > 1 ? 0 : n_open > 0 ? -1 : n_true == 1);
    }
    if (not != NULL) {
        is = lt_gschema_valid(r, not, v, depth);
        fits = and(fits, is < 0 ? -1 : !is);
    }
    if (test != NULL) {
        is = lt_gschema_valid(r, test, v, depth);
        next = lt_gschema_get(s, is == 1 ? "then" : "else");
        fits = is < 0         ? and(fits, -1)
               : next != NULL ? and(fits, lt_gschema_valid(r, next, v, depth))
                              : fits;
    }
    return fits;
}

static int refers(lt_gschema_reader *r, const json_t *s, const json_t *v, int depth) {
    static const char *const keys[] = {"$ref", "$dynamicRef", "$recursiveRef"};
    int fits = 1;
    for (size_t i = 0; i < 3; i++) {
        const char *ref = json_string_value(lt_gschema_get(s, keys[i]));
        const json_t *to = NULL;
        if (ref != NULL) {
            fits = and(fits, lt_gdoc_resolve(r->doc, s, ref, i == 1, &to) == LT_OK
                                 ? lt_gschema_valid(r, to, v, depth)
                                 : -1);
        }
    }
    return fits;
}

static int typed_fits(const json_t *s, const json_t *v, unsigned of) {
    static const char *const names[] = {"null",   "boolean", "integer", "number",
                                        "string", "array",   "object"};
    static const unsigned bits[] = {LT_GTYPE_NULL,   LT_GTYPE_TRUE | LT_GTYPE_FALSE,
                                    LT_GTYPE_WHOLE,  LT_GTYPE_NUMBER,
                                    LT_GTYPE_STRING, LT_GTYPE_ARRAY,
                                    LT_GTYPE_OBJECT};
    const json_t *type = lt_gschema_get(s, "type"), *list = json_object_get(s, "enum"), *k,
                 *one = json_object_get(s, "const"), *not = json_object_get(s, "\001not"),
                 *mask = json_object_get(s, "\001types");
    bool fits = type == NULL, in_list = list == NULL;
    size_t m;
    for (size_t i = 0; type != NULL && i < sizeof bits / sizeof *bits; i++) {
        bool named = json_is_string(type) && strcmp(json_string_value(type), names[i]) == 0;
        json_array_foreach(type, m, k) {
            named = named || (json_is_string(k) && strcmp(json_string_value(k), names[i]) == 0);
        }
        fits = fits || (named && (bits[i] & of) != 0);
    }
    json_array_foreach(list, m, k) {
        in_list = in_list || lt_gschema_equal(k, v);
    }
    json_array_foreach(not, m, k) {
        fits = fits && !lt_gschema_equal(k, v);
    }
    return fits && in_list && (one == NULL || lt_gschema_equal(one, v)) &&
           (mask == NULL || ((unsigned)json_integer_value(mask) & of) != 0);
}

int lt_gschema_valid(lt_gschema_reader *r, const json_t *s, const json_t *v, int depth) {
    const unsigned of = lt_gschema_type_of(v);
    int fits;
    if (json_is_boolean(s)) {
        return json_is_true(s);
    }
    if (!json_is_object(s) || depth > DEPTH || s == NULL) {
        return -1;
    }
    depth++;
    fits = refers(r, s, v, depth);
    if (lt_gdoc_draft(r->doc) <= 7 && lt_gschema_get(s, "$ref") != NULL) {
        return fits;
    }
    fits = and(fits, typed_fits(s, v, of));
    if ((of & LT_GTYPE_NUMBER) != 0) {
        fits = and(fits, number_fits(s, v));
    } else if (of == LT_GTYPE_STRING) {
        const json_t *not = json_object_get(s, "\001not_pattern");
        const int is = not != NULL ? matches(not, json_string_value(v), json_string_length(v)) : 0;
        fits = and(fits, string_fits(r, s, v));
        fits = and(fits, is < 0 ? -1 : !is);
    } else if (of == LT_GTYPE_ARRAY) {
        fits = and(fits, array_fits(r, s, v, depth));
        fits = lt_gschema_get(s, "unevaluatedItems") != NULL ? and(fits, -1) : fits;
    } else if (of == LT_GTYPE_OBJECT) {
        fits = and(fits, object_fits(r, s, v, depth));
        fits = lt_gschema_get(s, "unevaluatedProperties") != NULL ||
                       json_object_get(s, "\001some") != NULL
                   ? and(fits, -1)
                   : fits;
    }
    return fits == 0 ? 0 : and(fits, logic_fits(r, s, v, depth));
}
