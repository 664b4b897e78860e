/* grammar_oneof.c: can two alternatives of a oneOf hold at once? A mask can not count alternatives, so oneOf is served as anyOf, and only where
 * what one alternative produces can never be valid under another:
 *
 *     types that share no value; enum and const without a common value; ranges of numbers apart; for objects a property that the other requires
 *     and this one never writes, or always writes and the other forbids; or a property that one requires whose schemas exclude each other
 *
 * Not proven is not proven: then the schema is refused by name. */
#include <string.h>

#include "serve/grammar_schema.h"

#define DEPTH 6 /* Of properties within properties. */

static const json_t *resolved(const json_t *root, const json_t *s) {
    for (int i = 0; i < DEPTH && json_is_string(json_object_get(s, "$ref")); i++) {
        const json_t *to = NULL;
        if (lt_gschema_resolve(root, json_string_value(json_object_get(s, "$ref")), &to) != LT_OK) {
            break;
        }
        s = to;
    }
    return s;
}

static bool overlap_type(const json_t *types, const char *t) {
    return lt_gschema_has(types, t) ||
           (strcmp(t, "integer") == 0 && lt_gschema_has(types, "number")) ||
           (strcmp(t, "number") == 0 && lt_gschema_has(types, "integer"));
}

static const json_t *const_of(const json_t *s, size_t i) {
    const json_t *one = json_object_get(s, "const"), *many = json_object_get(s, "enum");
    return one != NULL ? (i == 0 ? one : NULL) : json_array_get(many, i);
}

/* Types of the values that are valid; an empty list: any. */
static json_t *types_of(const json_t *s) {
    static const char *const names[] = {"object", "array",   "string", "integer",
                                        "number", "boolean", "null"};
    json_t *types = lt_gschema_types(json_object_get(s, "type"));
    for (size_t i = 0; json_object_get(s, "type") == NULL && const_of(s, i) != NULL; i++) {
        for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
            json_t *name = json_string(names[k]);
            if (lt_gschema_value_fits(const_of(s, i), name) && !lt_gschema_has(types, names[k])) {
                json_array_append(types, name);
            }
            json_decref(name);
        }
    }
    return types;
}

static bool types_apart(const json_t *a, const json_t *b) {
    json_t *x = const_of(a, 0) != NULL ? types_of(a) : lt_gschema_produced(a), *y = types_of(b), *t;
    bool apart = json_array_size(x) > 0 && json_array_size(y) > 0;
    size_t i;
    json_array_foreach(x, i, t) {
        apart = apart && json_is_string(t) && !overlap_type(y, json_string_value(t));
    }
    json_decref(x);
    json_decref(y);
    return apart;
}

static bool equal(const json_t *a, const json_t *b) {
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b)
                                                  : json_equal(a, b);
}

/* Each of a's values is none of b's, or not of b's type. */
static bool values_apart(const json_t *a, const json_t *b) {
    const json_t *types = json_object_get(b, "type");
    if (const_of(a, 0) == NULL) {
        return false;
    }
    for (size_t i = 0; const_of(a, i) != NULL; i++) {
        bool possible = const_of(b, 0) == NULL;
        for (size_t k = 0; !possible && const_of(b, k) != NULL; k++) {
            possible = equal(const_of(a, i), const_of(b, k));
        }
        if (possible && (types == NULL || lt_gschema_value_fits(const_of(a, i), types))) {
            return false;
        }
    }
    return true;
}

static bool numbers_apart(const json_t *a, const json_t *b) {
    static const char *const lows[] = {"minimum", "exclusiveMinimum"};
    static const char *const highs[] = {"maximum", "exclusiveMaximum"};
    for (size_t i = 0; i < 4; i++) {
        const json_t *low = json_object_get(b, lows[i / 2]),
                     *high = json_object_get(a, highs[i % 2]);
        if (json_is_number(low) && json_is_number(high) &&
            (i == 0 ? json_number_value(high) < json_number_value(low)
                    : json_number_value(high) <= json_number_value(low))) {
            return true;
        }
    }
    return false;
}

/* Nothing but the listed properties: in what is produced, or in all that is valid. */
static bool closed(const json_t *s, bool by_production) {
    const json_t *more = json_object_get(s, "additionalProperties");
    return json_object_get(s, "patternProperties") == NULL &&
           (json_is_false(more) || (by_production && more == NULL &&
                                    json_object_size(json_object_get(s, "properties")) > 0));
}

static bool objects_apart(const json_t *root, const json_t *a, const json_t *b, int depth) {
    const json_t *pa = json_object_get(a, "properties"), *pb = json_object_get(b, "properties");
    const json_t *ra = json_object_get(a, "required"), *rb = json_object_get(b, "required"), *k;
    size_t i;
    json_array_foreach(rb, i, k) {
        const char *key = json_string_value(k);
        if (key != NULL && closed(a, true) && json_object_get(pa, key) == NULL &&
            !lt_gschema_has(ra, key)) {
            return true;
        }
    }
    for (int side = 0; side < 2; side++) {
        json_array_foreach(side == 0 ? ra : rb, i, k) {
            const char *key = json_string_value(k);
            const json_t *x = key != NULL ? json_object_get(pa, key) : NULL;
            const json_t *y = key != NULL ? json_object_get(pb, key) : NULL;
            if (key == NULL) {
                continue;
            }
            if ((side == 0 && y == NULL && closed(b, false)) ||
                (x != NULL && y != NULL && lt_gschema_apart(root, x, y, depth + 1))) {
                return true;
            }
        }
    }
    return false;
}

static bool only_type(const json_t *s, const char *type) {
    json_t *types = lt_gschema_produced(s);
    const bool is = json_array_size(types) == 1 && lt_gschema_has(types, type);
    json_decref(types);
    return is;
}

bool lt_gschema_apart(const json_t *root, const json_t *a, const json_t *b, int depth) {
    a = resolved(root, a);
    b = resolved(root, b);
    if (json_is_false(a) || json_is_false(b)) {
        return true;
    }
    if (depth > DEPTH || !json_is_object(a) || !json_is_object(b)) {
        return false;
    }
    if (types_apart(a, b) || values_apart(a, b)) {
        return true;
    }
    return (only_type(a, "object") && objects_apart(root, a, b, depth)) ||
           ((only_type(a, "number") || only_type(a, "integer")) &&
            (numbers_apart(a, b) || numbers_apart(b, a)));
}
