/* grammar/expand.c: expands the literals of a term into shapes.
 *
 * A pending shape takes its literals one by one. What a schema states directly (types, bounds,
 * members) is written into the shape. Schemas that must hold as well ($ref, allOf) become further
 * literals. anyOf, oneOf, if, dependencies and negations are choices between lists of literals.
 * When no literal is left, a copy of the shape continues with each alternative of the smallest
 * choice. Lists grow at their heads, so a copy is a few words. Shapes without a value are dropped
 * as soon as that is known.
 *
 * oneOf means alternative i and none of the others; "not" is written only for those that i does not
 * already exclude. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/grammar/dfa.h"
#include "serve/grammar/schema.h"

#ifndef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
/* Most literals written for a document; this takes some tenths of a second. */
#define MAX_WORK   600000
#define MAX_SHAPES 3000 /* Most shapes of one term. */
#else
#define MAX_WORK   3000
#define MAX_SHAPES 50
#endif
#define MAX_CHAIN 300 /* Most literals of one shape. */

/* ---- Small things ---- */

const json_t *lt_gschema_get(const json_t *s, const char *key) {
    const json_t *v = json_object_get(s, key);
    return json_is_null(v) ? NULL : v;
}

static lt_err push(lt_gschema_reader *r, const lt_gpart **list, lt_gpart part) {
    lt_gpart *p = lt_gpool_take(&r->pool, sizeof *p);
    if (p == NULL) {
        return LT_ERR_LIMIT;
    }
    *p = part;
    p->next = *list;
    *list = p;
    return LT_OK;
}

static void restrict_types(lt_gpending *p, unsigned types) {
    p->shape.types &= types;
    p->shape.typed = true;
    p->dead = p->dead || p->shape.types == 0;
}

static lt_err later(lt_gschema_reader *r, lt_gpending *p, lt_glit lit, int32_t parent, bool quiet) {
    lt_gtodo *t = lt_gpool_take(&r->pool, sizeof *t);
    if (t == NULL) {
        return LT_ERR_LIMIT;
    }
    *t = (lt_gtodo){p->todo, lit, parent, quiet};
    p->todo = t;
    return LT_OK;
}

lt_err lt_galternative(lt_gschema_reader *r, lt_galternatives *a, const lt_glit *lits, size_t n,
                       int32_t parent, bool quiet) {
    lt_gpending one = {0};
    if (!lt_grow((void **)&a->v, a->n, &a->room, sizeof *a->v)) {
        return LT_ERR_OOM;
    }
    for (size_t i = n; i-- > 0;) {
        LT_TRY(later(r, &one, lits[i], parent, quiet));
    }
    a->v[a->n++] = one.todo;
    return LT_OK;
}

lt_err lt_gchoose(lt_gschema_reader *r, lt_gpending *p, lt_galternatives *a) {
    lt_gchoice *c;
    if (a->n == 0) {
        p->dead = true;
        return LT_OK;
    }
    if (a->n == 1) { /* There is no choice: its literals are added. */
        for (const lt_gtodo *t = a->v[0]; t != NULL; t = t->next) {
            LT_TRY(later(r, p, t->lit, t->parent, t->quiet));
        }
        return LT_OK;
    }
    c = lt_gpool_take(&r->pool, sizeof *c);
    if (c == NULL) {
        return LT_ERR_LIMIT;
    }
    c->alternatives = lt_gpool_take(&r->pool, a->n * sizeof *a->v);
    if (c->alternatives == NULL) {
        return LT_ERR_LIMIT;
    }
    memcpy(c->alternatives, a->v, a->n * sizeof *a->v);
    c->n = a->n;
    c->next = p->choices;
    p->choices = c;
    return LT_OK;
}

/* ---- What a schema says at once ---- */

static lt_err types_of(const lt_gschema_reader *r, const json_t *type, unsigned *out) {
    static const struct {
        const char *name;
        unsigned bits;
    } rows[] = {{"null", LT_GTYPE_NULL},     {"boolean", LT_GTYPE_TRUE | LT_GTYPE_FALSE},
                {"integer", LT_GTYPE_WHOLE}, {"number", LT_GTYPE_NUMBER},
                {"string", LT_GTYPE_STRING}, {"array", LT_GTYPE_ARRAY},
                {"object", LT_GTYPE_OBJECT}};
    const size_t n = json_is_array(type) ? json_array_size(type) : 1;
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_is_array(type) ? json_array_get(type, i) : type);
        unsigned bits = 0;
        for (size_t k = 0; name != NULL && k < sizeof rows / sizeof *rows; k++) {
            bits = strcmp(rows[k].name, name) == 0 ? rows[k].bits : bits;
        }
        if (name != NULL && strcmp(name, "any") == 0 && lt_gdoc_draft(r->doc) == 3) {
            bits = LT_GTYPE_ANY;
        }
        if (name == NULL) {
            return lt_gschema_wrong(r, "type", "is neither a string nor a list of them");
        }
        if (bits == 0) {
            char where[400];
            LT_FAIL(LT_ERR_FORMAT, "schema: there is no type '%.100s' (%s)", name,
                    lt_gdoc_pointer(r->doc, r->at, where, sizeof where));
        }
        *out |= bits;
    }
    return LT_OK;
}

/* Intersect the list of values with another list. */
static lt_err only_values(lt_gschema_reader *r, lt_gpending *p, const json_t *list) {
    json_t *both, *v, *w;
    size_t i, k;
    if (p->shape.values == NULL) {
        p->shape.values = list;
    } else {
        both = json_array();
        json_array_foreach(list, i, v) {
            json_array_foreach(p->shape.values, k, w) {
                if (lt_gschema_equal(v, w)) {
                    json_array_append(both, v);
                    break;
                }
            }
        }
        if (both == NULL || json_array_append_new(r->kept, both) != 0) {
            LT_FAIL(LT_ERR_OOM, "schema: values");
        }
        p->shape.values = both;
    }
    unsigned types = 0;
    json_array_foreach(p->shape.values, i, v) {
        types |= lt_gschema_type_of(v);
    }
    restrict_types(p, types);
    return LT_OK;
}

static lt_err generic(lt_gschema_reader *r, lt_gpending *p, const json_t *s) {
    const json_t *type = lt_gschema_get(s, "type"), *list = json_object_get(s, "enum");
    json_t *one = json_object_get(s, "const");
    const json_t *mask = json_object_get(s, "\001types"), *not = json_object_get(s, "\001not");
    unsigned types;
    size_t i;
    json_t *v;
    if (type != NULL) {
        LT_TRY(types_of(r, type, &types));
        restrict_types(p, types);
    }
    if (list != NULL) {
        if (!json_is_array(list)) {
            return lt_gschema_wrong(r, "enum", "is not a list");
        }
        LT_TRY(only_values(r, p, list));
    }
    if (one != NULL) {
        list = json_pack("[O]", one);
        if (list == NULL || json_array_append_new(r->kept, (json_t *)(uintptr_t)list) != 0) {
            LT_FAIL(LT_ERR_OOM, "schema: values");
        }
        LT_TRY(only_values(r, p, list));
    }
    if (mask != NULL) {
        restrict_types(p, (unsigned)json_integer_value(mask));
    }
    json_array_foreach(not, i, v) {
        const unsigned of = lt_gschema_type_of(v);
        if ((of & (LT_GTYPE_NULL | LT_GTYPE_TRUE | LT_GTYPE_FALSE)) != 0) {
            restrict_types(p, LT_GTYPE_ANY & ~of);
        } else {
            LT_TRY(push(r, &p->shape.excluded, (lt_gpart){.v = v, .owner = s}));
        }
    }
    return LT_OK;
}

static void bound(lt_gshape_bound *b, const json_t *v, bool strict, bool lower) {
    const double x = json_number_value(v), y = json_number_value(b->v);
    if (!json_is_number(v)) {
        return;
    }
    if (b->v == NULL || (lower ? x > y : x < y) || (x == y && strict)) {
        *b = (lt_gshape_bound){v, strict};
    }
}

static lt_err numbers(lt_gschema_reader *r, lt_gpending *p, const json_t *s) {
    const json_t *low = lt_gschema_get(s, "minimum"), *high = lt_gschema_get(s, "maximum"),
                 *above = lt_gschema_get(s, "exclusiveMinimum"),
                 *below = lt_gschema_get(s, "exclusiveMaximum"),
                 *step = lt_gschema_get(s, "multipleOf"),
                 *not_step = json_object_get(s, "\001not_multiple");
    if (low == NULL && high == NULL && above == NULL && below == NULL && step == NULL &&
        not_step == NULL) {
        return LT_OK;
    }
    p->shape.spoken |= LT_GTYPE_NUMBER;
    bound(&p->shape.low, low, json_is_true(above), true); /* true: the keyword's form in draft 4. */
    bound(&p->shape.low, above, true, true);
    bound(&p->shape.high, high, json_is_true(below), false);
    bound(&p->shape.high, below, true, false);
    if (step != NULL) {
        LT_TRY(push(r, &p->shape.multiples, (lt_gpart){.v = step, .owner = s}));
    }
    return not_step == NULL
               ? LT_OK
               : push(r, &p->shape.multiples, (lt_gpart){.v = not_step, .owner = s, .not = true});
}

/* A pair of counts that narrow those of the shape. */
static lt_err counts(lt_gschema_reader *r, const json_t *s, const char *min_key,
                     const char *max_key, int64_t *min, int64_t *max, bool *any) {
    int64_t lo = 0, hi = LT_GINF;
    LT_TRY(lt_gschema_count(r, s, min_key, &lo));
    LT_TRY(lt_gschema_count(r, s, max_key, &hi));
    *any = *any || lt_gschema_get(s, min_key) != NULL || lt_gschema_get(s, max_key) != NULL;
    *min = lo > *min ? lo : *min;
    *max = hi < *max ? hi : *max;
    return LT_OK;
}

static lt_err strings(lt_gschema_reader *r, lt_gpending *p, const json_t *s) {
    const json_t *pattern = lt_gschema_get(s, "pattern"), *format = lt_gschema_get(s, "format"),
                 *not = json_object_get(s, "\001not_pattern");
    bool spoken = pattern != NULL || format != NULL;
    LT_TRY(counts(r, s, "minLength", "maxLength", &p->shape.min_length, &p->shape.max_length,
                  &spoken));
    p->shape.spoken |= spoken ? LT_GTYPE_STRING : 0;
    if (pattern != NULL && !json_is_string(pattern)) {
        return lt_gschema_wrong(r, "pattern", "is not a string");
    }
    if (pattern != NULL) {
        LT_TRY(push(r, &p->shape.strings, (lt_gpart){.v = pattern, .owner = s}));
    }
    if (not != NULL) {
        LT_TRY(push(r, &p->shape.strings, (lt_gpart){.v = not, .owner = s, .not = true}));
    }
    if (format != NULL) { /* quiet marks a format. */
        LT_TRY(push(r, &p->shape.strings, (lt_gpart){.v = format, .owner = s, .quiet = true}));
    }
    return LT_OK;
}

static lt_err arrays(lt_gschema_reader *r, lt_gpending *p, const json_t *s, int32_t index,
                     bool quiet) {
    const json_t *contains = lt_gschema_get(s, "contains"),
                 *rest = lt_gschema_get(s, "unevaluatedItems");
    bool spoken = contains != NULL || rest != NULL;
    LT_TRY(counts(r, s, "minItems", "maxItems", &p->shape.min_items, &p->shape.max_items, &spoken));
    if (lt_gschema_get(s, "items") != NULL || lt_gschema_get(s, "prefixItems") != NULL) {
        spoken = true;
        LT_TRY(push(r, &p->shape.lists, (lt_gpart){.owner = s, .lit = index, .quiet = quiet}));
    }
    if (contains != NULL) {
        lt_gpart c = {.v = contains, .owner = s, .lit = index, .min = 1, .max = LT_GINF};
        LT_TRY(lt_gschema_count(r, s, "minContains", &c.min));
        LT_TRY(lt_gschema_count(r, s, "maxContains", &c.max));
        LT_TRY(push(r, &p->shape.contains, c));
    }
    if (rest != NULL) {
        LT_TRY(push(r, &p->shape.unevaluated,
                    (lt_gpart){.v = rest, .owner = s, .lit = index, .not = true}));
    }
    if (json_is_true(json_object_get(s, "uniqueItems"))) {
        spoken = true;
        LT_TRY(push(r, &p->shape.unique, (lt_gpart){.owner = s}));
    }
    p->shape.spoken |= spoken ? LT_GTYPE_ARRAY : 0;
    return LT_OK;
}

static lt_err objects(lt_gschema_reader *r, lt_gpending *p, const json_t *s, int32_t index,
                      bool quiet) {
    const json_t *required = lt_gschema_get(s, "required"),
                 *names = lt_gschema_get(s, "propertyNames"),
                 *rest = lt_gschema_get(s, "unevaluatedProperties"),
                 *some = json_object_get(s, "\001some"), *v;
    bool spoken = required != NULL || names != NULL || rest != NULL;
    size_t i;
    LT_TRY(counts(r, s, "minProperties", "maxProperties", &p->shape.min_members,
                  &p->shape.max_members, &spoken));
    if (lt_gschema_get(s, "properties") != NULL || lt_gschema_get(s, "patternProperties") != NULL ||
        lt_gschema_get(s, "additionalProperties") != NULL) {
        spoken = true;
        LT_TRY(push(r, &p->shape.objects, (lt_gpart){.owner = s, .lit = index, .quiet = quiet}));
    }
    json_array_foreach(required, i, v) {
        if (!json_is_string(v)) {
            return lt_gschema_wrong(r, "required", "holds something that is not a string");
        }
        LT_TRY(push(r, &p->shape.required, (lt_gpart){.v = v, .owner = s}));
    }
    if (names != NULL) {
        LT_TRY(push(r, &p->shape.names, (lt_gpart){.v = names, .owner = s}));
    }
    if (rest != NULL) {
        LT_TRY(push(r, &p->shape.unevaluated, (lt_gpart){.v = rest, .owner = s, .lit = index}));
    }
    if (some != NULL) {
        LT_TRY(push(r, &p->shape.some, (lt_gpart){.v = some, .owner = s}));
    }
    p->shape.spoken |= spoken ? LT_GTYPE_OBJECT : 0;
    return LT_OK;
}

/* ---- What holds with it, and choices ---- */

static lt_err reference(lt_gschema_reader *r, lt_gpending *p, const json_t *s, int32_t index,
                        bool quiet) {
    static const struct {
        const char *key;
        bool dynamic;
    } keys[] = {{"$ref", false}, {"$dynamicRef", true}, {"$recursiveRef", false}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *ref = lt_gschema_get(s, keys[i].key), *to = NULL;
        if (ref == NULL) {
            continue;
        }
        if (!json_is_string(ref)) {
            return lt_gschema_wrong(r, keys[i].key, "is not a string");
        }
        LT_TRY(lt_gdoc_resolve(r->doc, s, json_string_value(ref), keys[i].dynamic, &to));
        LT_TRY(later(r, p, (lt_glit){to, false}, index, quiet));
    }
    return LT_OK;
}

/* Whether both may hold; false is certain. */
static lt_err together(lt_gschema_reader *r, const json_t *a, const json_t *b, bool *out) {
    const lt_glit both[] = {{a, false}, {b, false}};
    int32_t term = 0;
    LT_TRY(lt_gterm_of(r, both, 2, &term));
    return lt_gterm_possible(r, term, 3, out);
}

static lt_err one_of(lt_gschema_reader *r, lt_gpending *p, const json_t *list, int32_t index,
                     bool quiet) {
    lt_galternatives alts = {0};
    lt_err err = LT_OK;
    const size_t n = json_array_size(list);
    lt_glit *lits = calloc(n + 1, sizeof *lits);
    bool *beside = calloc(n * n + 1, sizeof *beside);
    if (lits == NULL || beside == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "schema: oneOf of %zu", n);
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t k = i + 1; k < n; k++) {
            LT_TRY_DONE(
                together(r, json_array_get(list, i), json_array_get(list, k), &beside[i * n + k]));
            beside[k * n + i] = beside[i * n + k];
        }
    }
    for (size_t i = 0; i < n; i++) {
        size_t m = 0;
        lits[m++] = (lt_glit){json_array_get(list, i), false};
        for (size_t k = 0; k < n; k++) {
            if (beside[i * n + k]) {
                lits[m++] = (lt_glit){json_array_get(list, k), true};
            }
        }
        LT_TRY_DONE(lt_galternative(r, &alts, lits, m, index, quiet));
    }
    LT_TRY_DONE(lt_gchoose(r, p, &alts));
done:
    free(alts.v);
    free(lits);
    free(beside);
    return err;
}

static lt_err any_of(lt_gschema_reader *r, lt_gpending *p, const json_t *list, int32_t index,
                     bool quiet) {
    lt_galternatives alts = {0};
    lt_err err = LT_OK;
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        const lt_glit l = {v, false};
        LT_TRY_DONE(lt_galternative(r, &alts, &l, 1, index, quiet));
    }
    LT_TRY_DONE(lt_gchoose(r, p, &alts));
done:
    free(alts.v);
    return err;
}

static lt_err if_then(lt_gschema_reader *r, lt_gpending *p, const json_t *s, int32_t index,
                      bool quiet) {
    const json_t *test = lt_gschema_get(s, "if"), *then = lt_gschema_get(s, "then"),
                 *otherwise = lt_gschema_get(s, "else");
    const lt_glit yes[] = {{test, false}, {then, false}}, no[] = {{test, true}, {otherwise, false}};
    lt_galternatives alts = {0};
    lt_err err = LT_OK;
    if (test == NULL || (then == NULL && otherwise == NULL)) {
        return LT_OK;
    }
    LT_TRY_DONE(lt_galternative(r, &alts, yes, then != NULL ? 2 : 1, index, quiet));
    LT_TRY_DONE(lt_galternative(r, &alts, no, otherwise != NULL ? 2 : 1, index, quiet));
    LT_TRY_DONE(lt_gchoose(r, p, &alts));
done:
    free(alts.v);
    return err;
}

/* Either the member is absent, or what it requires holds. */
static lt_err dependency(lt_gschema_reader *r, lt_gpending *p, const char *key, json_t *brings,
                         int32_t index, bool quiet) {
    const json_t *absent = NULL, *present = NULL;
    lt_galternatives alts = {0};
    lt_err err = LT_OK;
    lt_glit with[2];
    size_t n = 1;
    LT_TRY(lt_gschema_make(r, json_pack("{s:{s:b}}", "properties", key, 0), &absent));
    if (json_is_object(brings) || json_is_boolean(brings)) {
        LT_TRY(lt_gschema_make(r, json_pack("{s:[s]}", "required", key), &present));
        with[n++] = (lt_glit){brings, false};
    } else {
        json_t *names = json_is_array(brings) ? json_copy(brings) : json_pack("[O]", brings);
        if (names == NULL || json_array_append_new(names, json_string(key)) != 0) {
            json_decref(names);
            LT_FAIL(LT_ERR_OOM, "schema: dependencies");
        }
        LT_TRY(lt_gschema_make(r, json_pack("{s:o}", "required", names), &present));
    }
    with[0] = (lt_glit){present, false};
    LT_TRY_DONE(lt_galternative(r, &alts, &(lt_glit){absent, false}, 1, index, true));
    LT_TRY_DONE(lt_galternative(r, &alts, with, n, index, quiet));
    LT_TRY_DONE(lt_gchoose(r, p, &alts));
done:
    free(alts.v);
    return err;
}

static lt_err logic(lt_gschema_reader *r, lt_gpending *p, const json_t *s, int32_t index,
                    bool quiet) {
    static const char *const depend[] = {"dependencies", "dependentRequired", "dependentSchemas"};
    const json_t *all = lt_gschema_get(s, "allOf"), *any = lt_gschema_get(s, "anyOf"),
                 *one = lt_gschema_get(s, "oneOf"), *not = lt_gschema_get(s, "not");
    const char *key;
    json_t *v;
    if (not != NULL) {
        LT_TRY(later(r, p, (lt_glit){not, true}, index, true));
    }
    LT_TRY(any != NULL ? any_of(r, p, any, index, quiet) : LT_OK);
    LT_TRY(one != NULL ? one_of(r, p, one, index, quiet) : LT_OK);
    LT_TRY(if_then(r, p, s, index, quiet));
    for (size_t i = 0; i < sizeof depend / sizeof *depend; i++) {
        json_object_foreach((json_t *)(uintptr_t)lt_gschema_get(s, depend[i]), key, v) {
            p->shape.spoken |= LT_GTYPE_OBJECT;
            LT_TRY(dependency(r, p, key, v, index, quiet));
        }
    }
    LT_TRY(reference(r, p, s, index, quiet));
    for (size_t i = json_array_size(all); i-- > 0;) { /* The first comes first. */
        LT_TRY(later(r, p, (lt_glit){json_array_get(all, i), false}, index, quiet));
    }
    return LT_OK;
}

static lt_err holds(lt_gschema_reader *r, lt_gpending *p, const json_t *s, int32_t index,
                    bool quiet) {
    const int draft = lt_gdoc_draft(r->doc);
    LT_TRY(lt_gschema_check(r, s));
    if (draft <= 7 && lt_gschema_get(s, "$ref") != NULL) { /* What stands beside it is ignored. */
        return reference(r, p, s, index, quiet);
    }
    LT_TRY(generic(r, p, s));
    LT_TRY(numbers(r, p, s));
    LT_TRY(strings(r, p, s));
    LT_TRY(arrays(r, p, s, index, quiet));
    LT_TRY(objects(r, p, s, index, quiet));
    return logic(r, p, s, index, quiet);
}

/* ---- Pending shapes ---- */

/* Whether the schema has already been added to the shape: in this form or (dead) in the opposite
 * one. */
static bool was_done(lt_gpending *p, const lt_gtodo *t) {
    for (const lt_gdone *d = p->shape.done; d != NULL; d = d->next) {
        if (d->lit.s == t->lit.s) {
            p->dead = d->lit.not != t->lit.not ;
            return true;
        }
    }
    return false;
}

/* Add the next literal to the shape. */
static lt_err step(lt_gschema_reader *r, lt_gpending *p) {
    const lt_gtodo *t = p->todo;
    lt_gdone *d;
    p->todo = t->next;
    if (json_is_boolean(t->lit.s)) {
        p->dead = p->dead || json_is_true(t->lit.s) == t->lit.not ;
        return LT_OK;
    }
    r->at = t->lit.s;
    if (!json_is_object(t->lit.s)) {
        LT_FAIL(LT_ERR_FORMAT, "schema: a schema is an object, true or false");
    }
    if (was_done(p, t)) {
        return LT_OK;
    }
    d = lt_gpool_take(&r->pool, sizeof *d);
    if (d == NULL) {
        return LT_ERR_LIMIT;
    }
    *d = (lt_gdone){p->shape.done, t->lit, p->shape.done != NULL ? p->shape.done->index + 1 : 0,
                    t->parent};
    p->shape.done = d;
    if (++r->work > MAX_WORK || d->index > MAX_CHAIN) {
        char where[400];
        LT_FAIL(LT_ERR_LIMIT,
                "schema: the constraints that apply together at %s have too many combinations "
                "(%llu examined)",
                lt_gdoc_pointer(r->doc, r->at, where, sizeof where), (unsigned long long)r->work);
    }
    return t->lit.not ? lt_gnegate(r, p, t->lit.s, d->index)
                      : holds(r, p, t->lit.s, d->index, t->quiet);
}

/* Whether a schema constrains only the type and the possible values, which the shape already
 * has. */
static bool only_lists(const json_t *s) {
    static const char *const known[] = {"type",        "enum",     "const",    "title",
                                        "description", "default",  "examples", "$comment",
                                        "deprecated",  "readOnly", "writeOnly"};
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)s, key, v) {
        size_t i = 0;
        while (i < sizeof known / sizeof *known && strcmp(known[i], key) != 0) {
            i++;
        }
        if (i == sizeof known / sizeof *known) {
            return false;
        }
    }
    return true;
}

/* Keep the values of a list that the literals allow. */
static lt_err filter_values(lt_gschema_reader *r, lt_gpending *p) {
    json_t *left = json_array(), *v;
    bool unknown = false;
    size_t i;
    if (left == NULL || json_array_append_new(r->kept, left) != 0) {
        LT_FAIL(LT_ERR_OOM, "schema: values");
    }
    json_array_foreach(p->shape.values, i, v) {
        bool fits = (lt_gschema_type_of(v) & p->shape.types) != 0;
        for (const lt_gdone *d = p->shape.done; d != NULL && fits; d = d->next) {
            const int valid = !d->lit.not &&only_lists(d->lit.s)
                                  ? 1
                                  : lt_gschema_valid(r, d->lit.s, v, 0);
            unknown = unknown || valid < 0; /* Omitted, to be safe. */
            fits = valid >= 0 && (valid == 0) == d->lit.not ;
        }
        if (fits) {
            json_array_append(left, v);
        }
    }
    p->shape.values = left;
    p->dead = json_array_size(left) == 0;
    if (p->dead && unknown) {
        return lt_gschema_refuse(r, "enum or const", "beside what cannot be checked");
    }
    return LT_OK;
}

/* Remove types that have no values left. */
static lt_err settle(lt_gschema_reader *r, lt_gpending *p) {
    lt_gshape *s = &p->shape;
    const double low = json_number_value(s->low.v), high = json_number_value(s->high.v);
    if (s->low.v != NULL && s->high.v != NULL &&
        (low > high || (low == high && (s->low.strict || s->high.strict)))) {
        s->types &= ~(unsigned)LT_GTYPE_NUMBER;
    }
    if (s->min_length > s->max_length) {
        s->types &= ~(unsigned)LT_GTYPE_STRING;
    }
    if (s->min_items > s->max_items) {
        s->types &= ~(unsigned)LT_GTYPE_ARRAY;
    }
    if (s->min_members > s->max_members) {
        s->types &= ~(unsigned)LT_GTYPE_OBJECT;
    }
    for (const lt_gpart *p1 = s->required; p1 != NULL; p1 = p1->next) {
        for (const lt_gpart *g = s->objects; g != NULL; g = g->next) {
            if (json_is_false(json_object_get(lt_gschema_get(g->owner, "properties"),
                                              json_string_value(p1->v)))) {
                s->types &= ~(unsigned)LT_GTYPE_OBJECT;
            }
        }
    }
    p->dead = p->dead || s->types == 0;
    return !p->dead && s->values != NULL ? filter_values(r, p) : LT_OK;
}

/* Take the smallest choice from the list. */
static lt_err take_choice(lt_gschema_reader *r, lt_gpending *p, const lt_gchoice **out) {
    const lt_gchoice *best = p->choices, *list = p->choices;
    for (const lt_gchoice *c = list; c != NULL; c = c->next) {
        best = c->n < best->n ? c : best;
    }
    p->choices = best->next;
    for (const lt_gchoice *c = list; c != best; c = c->next) {
        lt_gchoice *copy = lt_gpool_take(&r->pool, sizeof *copy);
        if (copy == NULL) {
            return LT_ERR_LIMIT;
        }
        *copy = *c;
        copy->next = p->choices;
        p->choices = copy;
    }
    *out = best;
    return LT_OK;
}

typedef struct {
    lt_gpending *v;
    size_t n, room;
} pile;

static lt_err branch(lt_gschema_reader *r, pile *l, lt_gpending p) {
    const lt_gchoice *c = NULL;
    LT_TRY(take_choice(r, &p, &c));
    for (size_t i = c->n; i-- > 0;) { /* The first is pushed last, so that it comes off first. */
        if (!lt_grow((void **)&l->v, l->n, &l->room, sizeof *l->v)) {
            return LT_ERR_OOM;
        }
        p.todo = c->alternatives[i];
        l->v[l->n++] = p;
    }
    return LT_OK;
}

lt_err lt_gexpand(lt_gschema_reader *r, const lt_glit *lits, size_t n, const lt_gshape **out) {
    const lt_gshape **end = out;
    lt_err err = LT_OK;
    size_t n_shapes = 0;
    pile l = {0};
    lt_gpending p = {.shape = {.types = LT_GTYPE_ANY,
                               .max_length = LT_GINF,
                               .max_items = LT_GINF,
                               .max_members = LT_GINF}};
    for (size_t i = n; i-- > 0;) {
        LT_TRY_DONE(later(r, &p, lits[i], -1, lits[i].not ));
    }
    if (!lt_grow((void **)&l.v, l.n, &l.room, sizeof *l.v)) {
        err = LT_ERR_OOM;
        goto done;
    }
    l.v[l.n++] = p;
    *out = NULL;
    while (l.n > 0) {
        lt_gshape *shape;
        p = l.v[--l.n];
        while (!p.dead && p.todo != NULL) {
            LT_TRY_DONE(step(r, &p));
        }
        LT_TRY_DONE(p.dead ? LT_OK : settle(r, &p));
        if (p.dead || p.choices != NULL) {
            LT_TRY_DONE(p.dead ? LT_OK : branch(r, &l, p));
            continue;
        }
        shape = lt_gpool_take(&r->pool, sizeof *shape);
        if (shape == NULL || ++n_shapes > MAX_SHAPES) {
            LT_FAIL_DONE(LT_ERR_LIMIT,
                         "schema: more than %d ways to satisfy constraints that apply together",
                         MAX_SHAPES);
        }
        *shape = p.shape;
        *end = shape;
        end = (const lt_gshape **)&shape->next;
    }
done:
    free(l.v);
    return err;
}
