/* grammar/negate.c: the negation of a schema: one of its keywords fails. Each failing keyword is
 * written as a schema of its own, which is then an alternative like any other:
 *
 *     minimum 3        a number, exclusiveMaximum 3
 *     type string      one of the other types
 *     minItems 2       an array, maxItems 1
 *     required [a]     an object without a
 *     properties {a: S}    an object with an a that is not S
 *     items S          an array that contains what is not S
 *     anyOf [A, B]     neither A nor B
 *     if A then B      A and not B, or ...
 *
 * Members with "\001" are internal: types (a mask), not (values), not_pattern, not_multiple, some
 * (a member exists that additionalProperties, patternProperties or propertyNames do not allow).
 * uniqueItems, unevaluated... and format, which not all readers assert, are not negated. That
 * removes an alternative, so nothing invalid is produced; if no other is left, the schema is
 * refused. */
#include <stdlib.h>
#include <string.h>

#include "serve/grammar/schema.h"

typedef struct {
    lt_gschema_reader *r;
    lt_galternatives alts;
    int32_t index;
} negation;

/* Add an alternative: a schema made here. */
static lt_err made(negation *n, json_t *schema) {
    const json_t *kept = NULL;
    LT_TRY(lt_gschema_make(n->r, schema, &kept));
    return lt_galternative(n->r, &n->alts, &(lt_glit){kept, false}, 1, n->index, true);
}

static lt_err both(negation *n, const json_t *a, bool not_a, const json_t *b, bool not_b) {
    const lt_glit l[] = {{a, not_a}, {b, not_b}};
    return lt_galternative(n->r, &n->alts, l, b != NULL ? 2 : 1, n->index, true);
}

static json_t *in(const json_t *v) {
    return json_incref((json_t *)(uintptr_t)v);
}

/* ---- Keywords ---- */

static lt_err not_types(negation *n, const json_t *s) {
    static const char *const names[] = {"null",   "boolean", "integer", "number",
                                        "string", "array",   "object"};
    static const unsigned bits[] = {LT_GTYPE_NULL,   LT_GTYPE_TRUE | LT_GTYPE_FALSE,
                                    LT_GTYPE_WHOLE,  LT_GTYPE_NUMBER,
                                    LT_GTYPE_STRING, LT_GTYPE_ARRAY,
                                    LT_GTYPE_OBJECT};
    const json_t *type = lt_gschema_get(s, "type");
    unsigned left = LT_GTYPE_ANY;
    for (size_t i = 0; type != NULL && i < sizeof bits / sizeof *bits; i++) {
        const json_t *v;
        size_t k;
        bool is = json_is_string(type) && strcmp(json_string_value(type), names[i]) == 0;
        json_array_foreach(type, k, v) {
            is = is || (json_is_string(v) && strcmp(json_string_value(v), names[i]) == 0);
        }
        left &= is ? ~bits[i] : LT_GTYPE_ANY;
    }
    return type != NULL && left != 0 ? made(n, json_pack("{s:i}", "\001types", (int)left)) : LT_OK;
}

static lt_err not_values(negation *n, const json_t *s) {
    const json_t *list = json_object_get(s, "enum"), *one = json_object_get(s, "const");
    if (json_is_array(list)) {
        LT_TRY(made(n, json_pack("{s:O}", "\001not", list)));
    }
    return one != NULL ? made(n, json_pack("{s:[O]}", "\001not", one)) : LT_OK;
}

static lt_err not_bound(negation *n, const json_t *s, const char *key, const char *strict_key,
                        const char *other, const char *other_strict) {
    const json_t *plain = lt_gschema_get(s, key), *strict = lt_gschema_get(s, strict_key);
    if (json_is_number(plain)) {
        LT_TRY(made(n, json_pack("{s:s,s:O}", "type", "number",
                                 json_is_true(strict) ? other : other_strict, plain)));
    }
    return json_is_number(strict) ? made(n, json_pack("{s:s,s:O}", "type", "number", other, strict))
                                  : LT_OK;
}

static lt_err not_counts(negation *n, const json_t *s, const char *type, const char *min_key,
                         const char *max_key) {
    int64_t min = 0, max = LT_GINF;
    LT_TRY(lt_gschema_count(n->r, s, min_key, &min));
    LT_TRY(lt_gschema_count(n->r, s, max_key, &max));
    if (min > 0) {
        LT_TRY(made(n, json_pack("{s:s,s:I}", "type", type, max_key, (json_int_t)min - 1)));
    }
    return max < LT_GINF
               ? made(n, json_pack("{s:s,s:I}", "type", type, min_key, (json_int_t)max + 1))
               : LT_OK;
}

static lt_err not_scalars(negation *n, const json_t *s) {
    const json_t *step = lt_gschema_get(s, "multipleOf"), *pattern = lt_gschema_get(s, "pattern");
    LT_TRY(not_bound(n, s, "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"));
    LT_TRY(not_bound(n, s, "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"));
    if (step != NULL) {
        LT_TRY(made(n, json_pack("{s:s,s:O}", "type", "number", "\001not_multiple", step)));
    }
    LT_TRY(not_counts(n, s, "string", "minLength", "maxLength"));
    if (pattern != NULL) {
        LT_TRY(made(n, json_pack("{s:s,s:O}", "type", "string", "\001not_pattern", pattern)));
    }
    n->alts.dropped = n->alts.dropped || lt_gschema_get(s, "format") != NULL;
    return LT_OK;
}

static lt_err not_contains(negation *n, const json_t *s) {
    const json_t *contains = lt_gschema_get(s, "contains");
    int64_t min = 1, max = LT_GINF;
    if (contains == NULL) {
        return LT_OK;
    }
    LT_TRY(lt_gschema_count(n->r, s, "minContains", &min));
    LT_TRY(lt_gschema_count(n->r, s, "maxContains", &max));
    if (min > 0) {
        LT_TRY(made(n, json_pack("{s:s,s:O,s:i,s:I}", "type", "array", "contains", contains,
                                 "minContains", 0, "maxContains", (json_int_t)min - 1)));
    }
    return max < LT_GINF ? made(n, json_pack("{s:s,s:O,s:I}", "type", "array", "contains", contains,
                                             "minContains", (json_int_t)max + 1))
                         : LT_OK;
}

static lt_err not_items(negation *n, const json_t *s) {
    const json_t *items = lt_gschema_get(s, "items"), *prefix = lt_gschema_get(s, "prefixItems");
    if (json_is_array(items)) {
        prefix = items;
        items = lt_gschema_get(s, "additionalItems");
    }
    const size_t n_prefix = json_array_size(prefix);
    for (size_t i = 0; i < n_prefix; i++) {
        json_t *list = json_array();
        for (size_t k = 0; list != NULL && k < i; k++) {
            json_array_append_new(list, json_true());
        }
        json_array_append_new(list, json_pack("{s:O}", "not", json_array_get(prefix, i)));
        LT_TRY(made(n, json_pack("{s:s,s:I,s:o}", "type", "array", "minItems", (json_int_t)i + 1,
                                 "prefixItems", list)));
    }
    if (json_is_false(items)) {
        LT_TRY(
            made(n, json_pack("{s:s,s:I}", "type", "array", "minItems", (json_int_t)n_prefix + 1)));
    } else if (items != NULL && !json_is_true(items) && n_prefix == 0) {
        LT_TRY(made(n, json_pack("{s:s,s:{s:O}}", "type", "array", "contains", "not", items)));
    }
    n->alts.dropped = n->alts.dropped || (json_is_object(items) && n_prefix > 0) ||
                      json_is_true(json_object_get(s, "uniqueItems")) ||
                      lt_gschema_get(s, "unevaluatedItems") != NULL;
    return LT_OK;
}

/* Some member violates its schemas: `some` holds these. */
static lt_err not_others(negation *n, const json_t *s) {
    json_t *own = (json_t *)(uintptr_t)lt_gschema_get(s, "properties"),
           *patterns = (json_t *)(uintptr_t)lt_gschema_get(s, "patternProperties");
    const json_t *more = lt_gschema_get(s, "additionalProperties"),
                 *names = lt_gschema_get(s, "propertyNames");
    const char *key;
    json_t *v;
    if (more != NULL && !json_is_true(more)) {
        LT_TRY(made(n, json_pack("{s:s,s:{s:{s:O},s:O*,s:O*}}", "type", "object", "\001some",
                                 "value", "not", more, "properties", own, "patterns", patterns)));
    }
    json_object_foreach(patterns, key, v) {
        LT_TRY(made(n, json_pack("{s:s,s:{s:{s:O},s:s}}", "type", "object", "\001some", "value",
                                 "not", v, "pattern", key)));
    }
    if (names != NULL && !json_is_true(names)) {
        LT_TRY(made(n, json_pack("{s:s,s:{s:b,s:O}}", "type", "object", "\001some", "value", 1,
                                 "names", names)));
    }
    n->alts.dropped = n->alts.dropped || lt_gschema_get(s, "unevaluatedProperties") != NULL;
    return LT_OK;
}

static lt_err not_members(negation *n, const json_t *s) {
    const json_t *v;
    const char *key;
    size_t i;
    json_array_foreach(lt_gschema_get(s, "required"), i, v) {
        if (!json_is_string(v)) {
            return lt_gschema_wrong(n->r, "required", "holds something that is not a string");
        }
        LT_TRY(made(n, json_pack("{s:s,s:{s:b}}", "type", "object", "properties",
                                 json_string_value(v), 0)));
    }
    json_object_foreach((json_t *)(uintptr_t)lt_gschema_get(s, "properties"), key, v) {
        if (!json_is_true(v) && !(json_is_object(v) && json_object_size(v) == 0)) {
            LT_TRY(made(n, json_pack("{s:s,s:[s],s:{s:{s:o}}}", "type", "object", "required", key,
                                     "properties", key, "not", in(v))));
        }
    }
    LT_TRY(not_others(n, s));
    return not_counts(n, s, "object", "minProperties", "maxProperties");
}

static lt_err not_dependencies(negation *n, const json_t *s) {
    static const char *const keys[] = {"dependencies", "dependentRequired", "dependentSchemas"};
    const char *key;
    json_t *v;
    for (size_t i = 0; i < 3; i++) {
        json_object_foreach((json_t *)(uintptr_t)lt_gschema_get(s, keys[i]), key, v) {
            json_t *not = json_is_array(v)    ? json_pack("{s:O}", "required", v)
                          : json_is_string(v) ? json_pack("{s:[O]}", "required", v)
                                              : in(v);
            LT_TRY(made(
                n, json_pack("{s:s,s:[s],s:o}", "type", "object", "required", key, "not", not )));
        }
    }
    return LT_OK;
}

/* oneOf fails if no schema holds, or two do. */
static lt_err not_one(negation *n, const json_t *list) {
    const size_t m = json_array_size(list);
    lt_err err = LT_OK;
    lt_glit *none = calloc(m + 1, sizeof *none);
    if (none == NULL) {
        LT_FAIL(LT_ERR_OOM, "schema: oneOf of %zu", m);
    }
    for (size_t i = 0; i < m; i++) {
        none[i] = (lt_glit){json_array_get(list, i), true};
    }
    LT_TRY_DONE(lt_galternative(n->r, &n->alts, none, m, n->index, true));
    for (size_t i = 0; i < m; i++) {
        for (size_t k = i + 1; k < m; k++) {
            LT_TRY_DONE(both(n, none[i].s, false, none[k].s, false));
        }
    }
done:
    free(none);
    return err;
}

static lt_err not_logic(negation *n, const json_t *s) {
    const json_t *any = lt_gschema_get(s, "anyOf"), *all = lt_gschema_get(s, "allOf"),
                 *one = lt_gschema_get(s, "oneOf"), *not = lt_gschema_get(s, "not"),
                 *test = lt_gschema_get(s, "if"), *then = lt_gschema_get(s, "then"),
                 *otherwise = lt_gschema_get(s, "else");
    const size_t m = json_array_size(any);
    lt_glit *none = calloc(m + 1, sizeof *none);
    lt_err err = LT_OK;
    if (none == NULL) {
        LT_FAIL(LT_ERR_OOM, "schema: anyOf of %zu", m);
    }
    for (size_t i = 0; i < m; i++) {
        none[i] = (lt_glit){json_array_get(any, i), true};
    }
    LT_TRY_DONE(any != NULL ? lt_galternative(n->r, &n->alts, none, m, n->index, true) : LT_OK);
    for (size_t i = 0; i < json_array_size(all); i++) {
        LT_TRY_DONE(both(n, json_array_get(all, i), true, NULL, false));
    }
    LT_TRY_DONE(one != NULL ? not_one(n, one) : LT_OK);
    LT_TRY_DONE(not != NULL ? both(n, not, false, NULL, false) : LT_OK);
    LT_TRY_DONE(test != NULL && then != NULL ? both(n, test, false, then, true) : LT_OK);
    LT_TRY_DONE(test != NULL && otherwise != NULL ? both(n, test, true, otherwise, true) : LT_OK);
done:
    free(none);
    return err;
}

static lt_err not_reference(negation *n, const json_t *s) {
    static const char *const keys[] = {"$ref", "$dynamicRef", "$recursiveRef"};
    for (size_t i = 0; i < 3; i++) {
        const char *ref = json_string_value(lt_gschema_get(s, keys[i]));
        const json_t *to = NULL;
        if (ref != NULL) {
            LT_TRY(lt_gdoc_resolve(n->r->doc, s, ref, i == 1, &to));
            LT_TRY(both(n, to, true, NULL, false));
        }
    }
    return LT_OK;
}

static lt_err all_keywords(negation *n, const json_t *s) {
    LT_TRY(not_reference(n, s));
    if (lt_gdoc_draft(n->r->doc) <= 7 && lt_gschema_get(s, "$ref") != NULL) {
        return LT_OK;
    }
    LT_TRY(not_types(n, s));
    LT_TRY(not_values(n, s));
    LT_TRY(not_scalars(n, s));
    LT_TRY(not_counts(n, s, "array", "minItems", "maxItems"));
    LT_TRY(not_contains(n, s));
    LT_TRY(not_items(n, s));
    LT_TRY(not_members(n, s));
    LT_TRY(not_dependencies(n, s));
    return not_logic(n, s);
}

lt_err lt_gnegate(lt_gschema_reader *r, lt_gpending *p, const json_t *s, int32_t index) {
    negation n = {.r = r, .index = index};
    lt_err err = LT_OK;
    LT_TRY_DONE(lt_gschema_check(r, s));
    LT_TRY_DONE(all_keywords(&n, s));
    if (n.alts.n == 0 && n.alts.dropped) {
        err = lt_gschema_refuse(r, "not", "of what only rules other members or items");
        goto done;
    }
    LT_TRY_DONE(lt_gchoose(r, p, &n.alts));
done:
    free(n.alts.v);
    return err;
}
