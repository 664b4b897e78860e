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
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "serve/grammar_schema.h"

lt_err lt_gschema_refuse(const char *what) {
    LT_FAIL(LT_ERR_UNSUPPORTED, "schema: '%s' is not supported", what);
}

lt_err lt_gschema_wrong(const char *key, const char *what) {
    LT_FAIL(LT_ERR_FORMAT, "schema: '%s' %s", key, what);
}

lt_err lt_gschema_shapes(const json_t *s) {
    static const struct {
        const char *key;
        json_type type;
        const char *wrong;
    } rows[] = {{"properties", JSON_OBJECT, "is not an object of schemas"},
                {"patternProperties", JSON_OBJECT, "is not an object of schemas"},
                {"$defs", JSON_OBJECT, "is not an object of schemas"},
                {"definitions", JSON_OBJECT, "is not an object of schemas"},
                {"required", JSON_ARRAY, "is not a list of names"},
                {"allOf", JSON_ARRAY, "is not a list"},
                {"prefixItems", JSON_ARRAY, "is not a list"},
                {"format", JSON_STRING, "is not a string"},
                {"$ref", JSON_STRING, "is not a string"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const json_t *v = json_object_get(s, rows[i].key);
        if (v != NULL && !json_is_null(v) && json_typeof(v) != rows[i].type) {
            return lt_gschema_wrong(rows[i].key, rows[i].wrong);
        }
    }
    const json_t *names = json_object_get(s, "propertyNames");
    const json_t *multiple = json_object_get(s, "multipleOf");
    if (names != NULL && !json_is_object(names) && !json_is_boolean(names)) {
        return lt_gschema_wrong("propertyNames", "is not a schema");
    }
    if (multiple != NULL && !(json_number_value(multiple) > 0)) {
        return lt_gschema_wrong("multipleOf", "is not a number over 0");
    }
    return LT_OK;
}

/* A count; *out stays when absent. */
lt_err lt_gschema_count(const json_t *s, const char *key, int64_t *out) {
    const json_t *v = json_object_get(s, key);
    const double x = json_number_value(v);
    if (v == NULL) {
        return LT_OK;
    }
    if (!json_is_number(v) || x < 0 || x != floor(x)) {
        return lt_gschema_wrong(key, "is not a whole number from 0");
    }
    *out = x > 1e9 ? 1000000000 : (int64_t)x;
    return LT_OK;
}

/* ---- references ---- */

static lt_err reference(lt_gschema_reader *r, const char *ref, lt_gid *out) {
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

static lt_err define_pending(lt_gschema_reader *r) {
    for (size_t i = 0; i < r->n_pending; i++) {
        lt_gid body = -1;
        const int32_t rule = r->pending[i].rule;
        LT_TRY(lt_gschema_any(r, r->pending[i].schema, &body));
        lt_gast_define(r->g, rule, body);
    }
    return LT_OK;
}

/* a with b's constraints (NULL: a with its own allOf and $ref written in), kept until the end. */
lt_err lt_gschema_merged(lt_gschema_reader *r, const json_t *a, const json_t *b,
                         const json_t **out) {
    json_t *both = json_object();
    if (both == NULL || json_array_append_new(r->kept, both) != 0) {
        LT_FAIL(LT_ERR_OOM, "schema: merging");
    }
    LT_TRY(lt_gschema_merge(r->root, both, a));
    LT_TRY(b != NULL ? lt_gschema_merge(r->root, both, b) : LT_OK);
    *out = both;
    return LT_OK;
}

/* ---- schemas ---- */

static lt_err check_keywords(const json_t *s) {
    static const char *const refused[] = {
        "not",          "if",          "contains",      "dependentRequired", "dependentSchemas",
        "dependencies", "$dynamicRef", "$recursiveRef", "unevaluatedItems"};
    LT_TRY(lt_gschema_shapes(s));
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const json_t *v = json_object_get(s, refused[i]);
        if (v != NULL && !(strcmp(refused[i], "if") == 0 && json_object_get(s, "then") == NULL &&
                           json_object_get(s, "else") == NULL)) {
            return lt_gschema_refuse(refused[i]);
        }
    }
    if (json_is_true(json_object_get(s, "uniqueItems"))) {
        return lt_gschema_refuse("uniqueItems");
    }
    if (json_object_get(s, "unevaluatedProperties") != NULL &&
        !json_is_true(json_object_get(s, "unevaluatedProperties"))) {
        return lt_gschema_refuse("unevaluatedProperties");
    }
    return LT_OK;
}

static lt_err one_type(lt_gschema_reader *r, const json_t *s, const char *type, lt_gid *out) {
    if (strcmp(type, "object") == 0) {
        return lt_gschema_object(r, s, out);
    }
    if (strcmp(type, "array") == 0) {
        return lt_gschema_array(r, s, out);
    }
    if (strcmp(type, "string") == 0) {
        return lt_gschema_string(r, s, out);
    }
    if (strcmp(type, "number") == 0 || strcmp(type, "integer") == 0) {
        return lt_gschema_number(r, s, type[0] == 'i', out);
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

static lt_err typed(lt_gschema_reader *r, const json_t *s, lt_gid *out) {
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
            err = lt_gschema_wrong("type", "is neither a string nor a list of them");
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
static lt_err value_of(lt_gschema_reader *r, const json_t *s, const json_t *v, lt_gid *out) {
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
        LT_TRY(lt_gschema_string(r, s, &rule));
    } else if (json_is_number(v) && any_of(s, numbers)) {
        if (json_object_get(s, "multipleOf") != NULL) {
            return lt_gschema_refuse("multipleOf beside enum or const");
        }
        LT_TRY(lt_gschema_number(r, s, json_is_integer(v), &rule));
    } else if ((json_is_object(v) || json_is_array(v)) && any_of(s, others)) {
        return lt_gschema_refuse("enum or const of objects or arrays beside what rules them");
    }
    *out = rule >= 0 ? lt_gast_pair(r->g, LT_GNODE_AND, *out, rule) : *out;
    return LT_OK;
}

/* enum or const: the values that the keywords beside allow. */
static lt_err values(lt_gschema_reader *r, const json_t *s, lt_gid *out) {
    const json_t *type = json_object_get(s, "type"), *one = json_object_get(s, "const"), *v;
    json_t *list = json_object_get(s, "enum") != NULL ? json_incref(json_object_get(s, "enum"))
                                                      : json_pack("[O]", one);
    lt_gids alts = {0};
    lt_err err = LT_OK;
    size_t i;
    if (!json_is_array(list)) {
        err = lt_gschema_wrong("enum", "is not a list");
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
static lt_err check_apart(lt_gschema_reader *r, const json_t *list) {
    const size_t n = json_array_size(list);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < n; k++) {
            if (i != k &&
                !lt_gschema_apart(r->root, json_array_get(list, i), json_array_get(list, k), 0)) {
                return lt_gschema_refuse("oneOf whose alternatives may hold at once (use anyOf)");
            }
        }
    }
    return LT_OK;
}

/* anyOf or oneOf: each alternative with the keywords beside. */
static lt_err alternatives(lt_gschema_reader *r, const json_t *s, const char *key, lt_gid *out) {
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
        err = lt_gschema_wrong(key, "is not a list");
        goto done;
    }
    json_array_foreach(list, i, v) {
        const json_t *both = v;
        if (json_object_size(base) > 0) {
            LT_TRY_DONE(lt_gschema_merged(r, base, v, &both));
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
        LT_TRY_DONE(lt_gschema_any(r, v, &one));
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

static lt_err schema_object(lt_gschema_reader *r, const json_t *s, lt_gid *out) {
    const json_t *ref = json_object_get(s, "$ref"), *whole = NULL;
    LT_TRY(check_keywords(s));
    if (json_is_string(ref) && !has_siblings(s, "$ref")) {
        return reference(r, json_string_value(ref), out);
    }
    if (ref != NULL || json_object_get(s, "allOf") != NULL) {
        LT_TRY(lt_gschema_merged(r, s, NULL, &whole));
        return lt_gschema_any(r, whole, out);
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

lt_err lt_gschema_any(lt_gschema_reader *r, const json_t *s, lt_gid *out) {
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
    lt_gschema_reader r = {.g = g, .root = root, .kept = json_array()};
    LT_TRY_DONE(lt_gschema_any(&r, s, out));
    LT_TRY_DONE(define_pending(&r));
done:
    json_decref(r.kept);
    free(r.pending);
    return err;
}

lt_err lt_gschema_read(lt_gast *g, const char *text, size_t bytes) {
    json_error_t why;
    json_t *root = lt_json_loadb(text, bytes, JSON_DECODE_ANY, &why);
    lt_gid body = -1;
    lt_err err;
    if (root == NULL && json_error_code(&why) == json_error_null_character) {
        return lt_gschema_refuse("\\u0000 in a text");
    }
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
