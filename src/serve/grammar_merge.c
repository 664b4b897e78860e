/* grammar_merge.c: schemas that hold together ($ref, allOf, keywords beside anyOf) as one schema. Where two keywords cannot be joined, the
 * answer is UNSUPPORTED, by name. */
#include <stdlib.h>
#include <string.h>

#include "serve/grammar_schema.h"

lt_err lt_gschema_resolve(const json_t *root, const char *ref, const json_t **out) {
    const json_t *at = root;
    const char *p = ref;
    if (*p++ != '#') {
        LT_FAIL(LT_ERR_UNSUPPORTED, "schema: $ref '%.200s' is not within the document", ref);
    }
    while (*p == '/' && at != NULL) {
        char key[512];
        size_t n = 0;
        p++;
        while (*p != 0 && *p != '/' && n + 1 < sizeof key) {
            char c = *p++;
            if (c == '~' && (*p == '0' || *p == '1')) {
                c = *p++ == '0' ? '~' : '/';
            } else if (c == '%' && p[0] != 0 && p[1] != 0) {
                const char code[3] = {p[0], p[1], 0};
                c = (char)strtol(code, NULL, 16);
                p += 2;
            }
            key[n++] = c;
        }
        key[n] = 0;
        at = json_is_array(at) ? json_array_get(at, (size_t)strtoul(key, NULL, 10))
                               : json_object_get(at, key);
    }
    if (*p != 0 || at == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "schema: $ref '%.200s' leads nowhere", ref);
    }
    *out = at;
    return LT_OK;
}

/* ---- merging (allOf, and keywords beside anyOf or $ref) ---- */

static lt_err oom(bool failed) {
    if (failed) {
        LT_FAIL(LT_ERR_OOM, "schema: merging");
    }
    return LT_OK;
}

/* The values of an array that are in the other (numbers by value). */
static json_t *intersect(const json_t *a, const json_t *b) {
    json_t *both = json_array(), *x, *y;
    size_t i, k;
    json_array_foreach(a, i, x) {
        json_array_foreach(b, k, y) {
            if (json_equal(x, y)) {
                json_array_append(both, x);
                break;
            }
        }
    }
    return both;
}

/* type as an array; "number" holds "integer". */
json_t *lt_gschema_types(const json_t *t) {
    json_t *list = json_is_array(t) ? json_copy((json_t *)(uintptr_t)t) : json_array();
    if (json_is_string(t)) {
        json_array_append(list, (json_t *)(uintptr_t)t);
    }
    return list;
}

bool lt_gschema_has(const json_t *list, const char *text) {
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        if (json_is_string(v) && strcmp(json_string_value(v), text) == 0) {
            return true;
        }
    }
    return false;
}

static json_t *intersect_types(const json_t *a, const json_t *b) {
    json_t *x = lt_gschema_types(a), *y = lt_gschema_types(b), *both = intersect(x, y);
    if (!lt_gschema_has(both, "integer") && !lt_gschema_has(both, "number") &&
        ((lt_gschema_has(x, "integer") && lt_gschema_has(y, "number")) ||
         (lt_gschema_has(x, "number") && lt_gschema_has(y, "integer")))) {
        json_array_append_new(both, json_string("integer"));
    }
    json_decref(x);
    json_decref(y);
    return both;
}

/* {"allOf": [a, b]}, resolved when it is read. */
static json_t *both_of(const json_t *a, const json_t *b) {
    return json_pack("{s:[O,O]}", "allOf", (json_t *)(uintptr_t)a, (json_t *)(uintptr_t)b);
}

static lt_err merge_properties(json_t *into, const char *key, const json_t *from) {
    json_t *have = json_object_get(into, key),
           *joined = have != NULL ? json_copy(have) : json_object();
    const char *name;
    json_t *value;
    bool failed = joined == NULL;
    json_object_foreach((json_t *)(uintptr_t)from, name, value) {
        json_t *old = json_object_get(joined, name);
        failed = failed ||
                 json_object_set_new(joined, name,
                                     old != NULL ? both_of(old, value) : json_incref(value)) != 0;
    }
    failed = failed || json_object_set_new(into, key, joined) != 0;
    return oom(failed);
}

static lt_err merge_key(json_t *into, const char *key, json_t *value) {
    static const char *const larger[] = {"minimum", "exclusiveMinimum", "minLength", "minItems",
                                         "minProperties"};
    static const char *const smaller[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems",
                                          "maxProperties"};
    json_t *old = json_object_get(into, key);
    if (strcmp(key, "properties") == 0 || strcmp(key, "patternProperties") == 0 ||
        strcmp(key, "$defs") == 0 || strcmp(key, "definitions") == 0) {
        return merge_properties(into, key, value);
    }
    if (old == NULL || json_equal(old, value)) {
        return oom(json_object_set(into, key, value) != 0);
    }
    for (size_t i = 0; i < sizeof larger / sizeof *larger; i++) {
        if (strcmp(key, larger[i]) == 0 || strcmp(key, smaller[i]) == 0) {
            const bool more = json_number_value(value) > json_number_value(old);
            return oom(more == (strcmp(key, larger[i]) == 0) &&
                       json_object_set(into, key, value) != 0);
        }
    }
    if (strcmp(key, "type") == 0) {
        return oom(json_object_set_new(into, key, intersect_types(old, value)) != 0);
    }
    if (strcmp(key, "enum") == 0) {
        return oom(json_object_set_new(into, key, intersect(old, value)) != 0);
    }
    if (strcmp(key, "required") == 0) {
        json_t *all = json_copy(old), *v;
        size_t i;
        json_array_foreach(value, i, v) {
            if (!lt_gschema_has(all, json_string_value(v) != NULL ? json_string_value(v) : "")) {
                json_array_append(all, v);
            }
        }
        return oom(json_object_set_new(into, key, all) != 0);
    }
    if (strcmp(key, "items") == 0 || strcmp(key, "additionalProperties") == 0) {
        return oom(json_object_set_new(into, key,
                                       json_is_false(old) || json_is_false(value)
                                           ? json_false()
                                           : both_of(old, value)) != 0);
    }
    if (strcmp(key, "title") == 0 || strcmp(key, "description") == 0 ||
        strcmp(key, "default") == 0 || strcmp(key, "examples") == 0 ||
        strcmp(key, "$comment") == 0 || strcmp(key, "$schema") == 0 || strcmp(key, "$id") == 0) {
        return LT_OK;
    }
    LT_FAIL(LT_ERR_UNSUPPORTED, "schema: two different '%s' in one allOf", key);
}

/* Properties of one side that the other does not list must satisfy its additionalProperties as well. */
static lt_err cross_additional(json_t *into, const json_t *from) {
    const json_t *theirs = json_object_get(from, "additionalProperties"),
                 *listed = json_object_get(from, "properties");
    json_t *ours = json_object_get(into, "additionalProperties"),
           *old = json_object_get(into, "properties");
    const char *name;
    json_t *value, *fresh = json_object();
    bool failed = fresh == NULL;
    if ((json_object_get(into, "items") != NULL) != (json_object_get(from, "items") != NULL) &&
        (json_object_get(into, "prefixItems") != NULL ||
         json_object_get(from, "prefixItems") != NULL)) {
        json_decref(fresh);
        LT_FAIL(LT_ERR_UNSUPPORTED, "schema: items and prefixItems in different parts of an allOf");
    }
    json_object_foreach(old, name, value) {
        const bool plain = theirs == NULL || json_is_true(theirs) ||
                           json_object_get(listed, name) != NULL;
        failed = failed ||
                 json_object_set_new(fresh, name,
                                     plain ? json_incref(value) : both_of(value, theirs)) != 0;
    }
    json_object_foreach((json_t *)(uintptr_t)listed, name, value) {
        if (json_object_get(old, name) == NULL && ours != NULL && !json_is_true(ours)) {
            failed = failed || json_object_set(fresh, name, ours) != 0;
        }
    }
    if (json_object_size(fresh) > 0) {
        failed = failed || json_object_set(into, "properties", fresh) != 0;
    }
    json_decref(fresh);
    return oom(failed);
}

static lt_err merge_into(const json_t *root, json_t *into, const json_t *from, int depth) {
    const json_t *target = NULL;
    const char *key;
    json_t *value, *part;
    size_t i;
    if (depth > LT_GRAMMAR_DEPTH) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "schema: allOf that leads to itself");
    }
    if (json_is_true(from)) {
        return LT_OK;
    }
    if (json_is_false(from)) {
        return oom(json_object_set_new(into, "enum", json_array()) != 0);
    }
    LT_TRY(lt_gschema_shapes(from));
    LT_TRY(cross_additional(into, from));
    json_object_foreach((json_t *)(uintptr_t)from, key, value) {
        if (strcmp(key, "allOf") != 0 && strcmp(key, "$ref") != 0) {
            LT_TRY(merge_key(into, key, value));
        }
    }
    /* Its own keywords are known now: additionalProperties does not see what these bring. */
    json_array_foreach(json_object_get(from, "allOf"), i, part) {
        LT_TRY(merge_into(root, into, part, depth + 1));
    }
    if (json_is_string(json_object_get(from, "$ref"))) {
        LT_TRY(lt_gschema_resolve(root, json_string_value(json_object_get(from, "$ref")), &target));
        LT_TRY(merge_into(root, into, target, depth + 1));
    }
    return LT_OK;
}

lt_err lt_gschema_merge(const json_t *root, json_t *into, const json_t *from) {
    return merge_into(root, into, from, 0);
}
