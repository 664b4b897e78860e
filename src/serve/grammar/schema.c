/* grammar/schema.c: JSON schemas (draft 2020-12 and the notations of older drafts) as trees;
 * grammar/schema.h has an overview.
 *
 * HONOURED   type, enum, const; $ref, $dynamicRef, $anchor, $id within the document; allOf, anyOf,
 *            oneOf, not, if; dependentRequired, dependentSchemas, dependencies; properties,
 *            required, additionalProperties, patternProperties, propertyNames, minProperties,
 *            maxProperties, unevaluatedProperties; items, prefixItems, contains, minContains,
 *            maxContains, minItems, maxItems, unevaluatedItems; minLength, uniqueItems of scalars,
 *            maxLength, pattern, format; minimum, maximum, exclusive ones, multipleOf
 * IGNORED    descriptions (title, description, default, examples), formats that no draft lists, and
 *            keywords that no draft knows
 * REFUSED    by keyword and place: with UNSUPPORTED what a mask cannot enforce, with LIMIT what
 *            would take too long.
 *
 * Every generated text is valid, but some valid texts are not generated: properties come in the
 * schema's order, then others; an object that lists properties without mentioning others has no
 * others; a schema without type has the types to which its keywords apply; numbers with bounds have
 * no exponent, integers no point; names of members have no escapes where none are needed. White
 * space between tokens is free within reason. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "serve/grammar/schema.h"

lt_err lt_gschema_refuse(const lt_gschema_reader *r, const char *key, const char *why) {
    char where[400];
    LT_FAIL(LT_ERR_UNSUPPORTED, "schema: '%s' %s%sis not supported (at %s)", key, why,
            why[0] != 0 ? " " : "", lt_gdoc_pointer(r->doc, r->at, where, sizeof where));
}

lt_err lt_gschema_wrong(const lt_gschema_reader *r, const char *key, const char *what) {
    char where[400];
    LT_FAIL(LT_ERR_FORMAT, "schema: '%s' %s (at %s)", key, what,
            lt_gdoc_pointer(r->doc, r->at, where, sizeof where));
}

static lt_err check_shapes(const lt_gschema_reader *r, const json_t *s) {
    static const struct {
        const char *key;
        json_type type;
        const char *wrong;
    } rows[] = {{"properties", JSON_OBJECT, "is not an object of schemas"},
                {"patternProperties", JSON_OBJECT, "is not an object of schemas"},
                {"$defs", JSON_OBJECT, "is not an object of schemas"},
                {"definitions", JSON_OBJECT, "is not an object of schemas"},
                {"dependencies", JSON_OBJECT, "is not an object"},
                {"dependentRequired", JSON_OBJECT, "is not an object of lists"},
                {"dependentSchemas", JSON_OBJECT, "is not an object of schemas"},
                {"required", JSON_ARRAY, "is not a list of names"},
                {"allOf", JSON_ARRAY, "is not a list"},
                {"anyOf", JSON_ARRAY, "is not a list"},
                {"oneOf", JSON_ARRAY, "is not a list"},
                {"prefixItems", JSON_ARRAY, "is not a list"},
                {"format", JSON_STRING, "is not a string"},
                {"$ref", JSON_STRING, "is not a string"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const json_t *v = lt_gschema_get(s, rows[i].key);
        if (v != NULL && json_typeof(v) != rows[i].type) {
            return lt_gschema_wrong(r, rows[i].key, rows[i].wrong);
        }
    }
    return LT_OK;
}

lt_err lt_gschema_check(const lt_gschema_reader *r, const json_t *s) {
    static const char *const numbers[] = {"minimum", "maximum"};
    static const char *const strict[] = {"exclusiveMinimum", "exclusiveMaximum"};
    static const char *const schemas[] = {"propertyNames",
                                          "additionalProperties",
                                          "not",
                                          "contains",
                                          "unevaluatedItems",
                                          "if",
                                          "then",
                                          "else",
                                          "unevaluatedProperties"};
    const json_t *step = lt_gschema_get(s, "multipleOf"), *v;
    LT_TRY(check_shapes(r, s));
    if (step != NULL && !(json_number_value(step) > 0)) {
        return lt_gschema_wrong(r, "multipleOf", "is not a number over 0");
    }
    for (size_t i = 0; i < 2; i++) {
        v = lt_gschema_get(s, numbers[i]);
        if (v != NULL && !json_is_number(v)) {
            return lt_gschema_wrong(r, numbers[i], "is not a number");
        }
        v = lt_gschema_get(s, strict[i]);
        if (v != NULL && !json_is_number(v) && !json_is_boolean(v)) {
            return lt_gschema_wrong(r, strict[i], "is not a number");
        }
    }
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        v = lt_gschema_get(s, schemas[i]);
        if (v != NULL && !json_is_object(v) && !json_is_boolean(v)) {
            return lt_gschema_wrong(r, schemas[i], "is not a schema");
        }
    }
    return LT_OK;
}

lt_err lt_gschema_count(const lt_gschema_reader *r, const json_t *s, const char *key,
                        int64_t *out) {
    const json_t *v = lt_gschema_get(s, key);
    const double x = json_number_value(v);
    if (v == NULL) {
        return LT_OK;
    }
    if (!json_is_number(v) || x < 0 || x != floor(x)) {
        return lt_gschema_wrong(r, key, "is not a whole number from 0");
    }
    *out = x > 1e9 ? 1000000000 : (int64_t)x;
    return LT_OK;
}

/* ---- Shapes as trees ---- */

/* The schema without what combines others, which are literals of their own, and without excluded
 * values. NULL: nothing of it counts. */
static lt_err own_keywords(lt_gschema_reader *r, const json_t *s, const json_t **out) {
    static const char *const others[] = {"allOf",
                                         "anyOf",
                                         "oneOf",
                                         "not",
                                         "if",
                                         "dependencies",
                                         "$ref",
                                         "$dynamicRef",
                                         "dependentRequired",
                                         "\001not",
                                         "$recursiveRef",
                                         "dependentSchemas"};
    *out = NULL;
    if (lt_gdoc_draft(r->doc) <= 7 && lt_gschema_get(s, "$ref") != NULL) {
        return LT_OK; /* What stands beside it is ignored. */
    }
    json_t *own = json_copy((json_t *)(uintptr_t)s);
    for (size_t i = 0; own != NULL && i < sizeof others / sizeof *others; i++) {
        (void)json_object_del(own, others[i]);
    }
    return lt_gschema_make(r, own, out);
}

/* Excluded values that are objects or lists are accepted only if other keywords do not permit them
 * anyway. */
static lt_err check_excluded(lt_gschema_reader *r, const lt_gshape *s) {
    for (const lt_gpart *p = s->excluded; p != NULL; p = p->next) {
        const unsigned of = lt_gschema_type_of(p->v);
        bool possible = (of & (LT_GTYPE_ARRAY | LT_GTYPE_OBJECT) & s->types) != 0;
        for (const lt_gdone *d = s->done; d != NULL && possible; d = d->next) {
            const json_t *own = NULL;
            LT_TRY(d->lit.not ? LT_OK : own_keywords(r, d->lit.s, &own));
            possible = own == NULL || lt_gschema_valid(r, own, p->v, 0) != 0;
        }
        if (possible) {
            return lt_gschema_refuse(r, "not", "of an enum or const with objects or arrays");
        }
    }
    return LT_OK;
}

static lt_err of_values(lt_gschema_reader *r, const lt_gshape *s, lt_gids *alts) {
    json_t *v;
    size_t i;
    json_array_foreach(s->values, i, v) {
        lt_gids_push(r->g, alts, lt_gjson_literal(r->g, v));
    }
    return lt_gast_check(r->g);
}

static lt_err of_types(lt_gschema_reader *r, lt_gshape *s, lt_gids *alts) {
    static const struct {
        unsigned bit;
        const char *text;
    } words[] = {{LT_GTYPE_NULL, "null"}, {LT_GTYPE_TRUE, "true"}, {LT_GTYPE_FALSE, "false"}};
    static const struct {
        unsigned bits;
        lt_err (*write)(lt_gschema_reader *, const lt_gshape *, lt_gid *);
    } rows[] = {{LT_GTYPE_OBJECT, lt_gschema_object},
                {LT_GTYPE_ARRAY, lt_gschema_array},
                {LT_GTYPE_STRING, lt_gschema_string},
                {LT_GTYPE_NUMBER, lt_gschema_number}};
    LT_TRY(check_excluded(r, s));
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if ((s->types & words[i].bit) != 0) {
            lt_gids_push(r->g, alts, lt_gast_text(r->g, words[i].text));
        }
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_gid one = -1;
        if ((s->types & rows[i].bits) != 0) {
            LT_TRY(rows[i].write(r, s, &one));
            lt_gids_push(r->g, alts, one);
        }
    }
    return lt_gast_check(r->g);
}

static lt_err define(lt_gschema_reader *r, int32_t term) {
    const lt_gshape *shapes = NULL;
    lt_gids alts = {0};
    lt_err err = LT_OK;
    LT_TRY_DONE(lt_gterm_shapes(r, term, &shapes));
    for (; shapes != NULL; shapes = shapes->next) {
        lt_gshape s = *shapes;
        if (s.values != NULL) {
            LT_TRY_DONE(of_values(r, &s, &alts));
            continue;
        }
        if (!s.typed && s.spoken == 0 && s.excluded == NULL) {
            lt_gids_push(r->g, &alts, lt_gjson_value(r->g));
            continue;
        }
        s.types &= !s.typed && s.spoken != 0 ? s.spoken : LT_GTYPE_ANY;
        LT_TRY_DONE(of_types(r, &s, &alts));
    }
    lt_gast_define(r->g, r->terms[term].rule, lt_gast_list(r->g, LT_GNODE_ALT, alts.v, alts.n));
done:
    free(alts.v);
    return err;
}

static lt_err read_all(lt_gschema_reader *r, const json_t *s, lt_gid *out) {
    const lt_glit whole = {s, false};
    int32_t term = 0;
    if (r->known == NULL || r->kept == NULL) {
        LT_FAIL(LT_ERR_OOM, "schema");
    }
    if (!json_is_object(s) && !json_is_boolean(s)) {
        LT_FAIL(LT_ERR_FORMAT, "schema: a schema is an object, true or false");
    }
    LT_TRY(lt_gdoc_open(&r->doc, r->root));
    LT_TRY(lt_gterm_of(r, &whole, 1, &term));
    LT_TRY(lt_gterm_rule(r, term, out));
    for (size_t i = 0; i < r->n_todo; i++) {
        if (r->g->stop != NULL && atomic_load_explicit(r->g->stop, memory_order_relaxed)) {
            LT_FAIL(LT_ERR_STATE, "schema: given up");
        }
        LT_TRY(define(r, r->todo[i]));
    }
    return lt_gast_check(r->g);
}

lt_err lt_gschema_tree(lt_gast *g, const json_t *root, const json_t *s, lt_gid *out) {
    lt_gschema_reader r = {
        .g = g, .root = root, .at = s, .kept = json_array(), .known = json_object()};
    const lt_err err = read_all(&r, s, out);
    *out = err == LT_OK ? lt_gjson_text(g, *out) : -1;
    json_decref(r.kept);
    json_decref(r.known);
    lt_gdoc_close(r.doc);
    lt_gpool_close(&r.pool);
    free(r.terms);
    free(r.table);
    free(r.todo);
    return err;
}

lt_err lt_gschema_read(lt_gast *g, const char *text, size_t bytes) {
    json_error_t why;
    json_t *root = lt_json_loadb(text, bytes, JSON_DECODE_ANY, &why);
    lt_gid body = -1;
    lt_err err;
    if (root == NULL && json_error_code(&why) == json_error_null_character) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "schema: '\\u0000' in a text is not supported");
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
