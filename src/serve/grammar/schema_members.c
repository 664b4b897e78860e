/* grammar/schema_members.c: the members of an object that a schema lists, and the schemas that
 * apply to each: for each schema of the object, its property and the patterns that the name
 * matches, or else additionalProperties; then unevaluatedProperties. */
#include <stdlib.h>
#include <string.h>

#include "serve/grammar/language.h"
#include "serve/grammar/schema_object.h"

#define MAX_PROPERTIES 4000

/* ---- What rules a member ---- */

bool lt_gschema_within(const lt_gshape *s, int32_t inner, int32_t outer) {
    for (const lt_gdone *d = s->done; d != NULL && inner >= outer; d = d->next) {
        if (d->index == inner && inner != outer) {
            inner = d->parent;
        }
    }
    return inner == outer;
}

typedef struct {
    lt_glit *v;
    size_t n, room;
} literals;

static lt_err put(literals *l, const json_t *s) {
    if (!lt_grow((void **)&l->v, l->n, &l->room, sizeof *l->v)) {
        return LT_ERR_OOM;
    }
    l->v[l->n++] = (lt_glit){s, false};
    return LT_OK;
}

static bool in_list(const json_t *const *list, size_t n, const char *text) {
    for (size_t i = 0; i < n; i++) {
        if (strcmp(json_string_value(list[i]), text) == 0) {
            return true;
        }
    }
    return false;
}

/* The subschemas that a schema applies to a member: with this name, or (NULL) with the names that
 * match these patterns. */
static lt_err ruled_by(const json_t *s, const char *name, const lt_gpiece *p, literals *out,
                       bool *evaluated) {
    const json_t *own = name != NULL ? json_object_get(lt_gschema_get(s, "properties"), name)
                                     : NULL,
                 *more = lt_gschema_get(s, "additionalProperties");
    const char *pattern;
    json_t *rule;
    bool ruled = own != NULL;
    LT_TRY(own != NULL ? put(out, own) : LT_OK);
    json_object_foreach((json_t *)(uintptr_t)lt_gschema_get(s, "patternProperties"), pattern,
                        rule) {
        bool is = false;
        if (name != NULL) {
            json_t *text = json_string(pattern);
            const lt_err err = text != NULL ? lt_gschema_matches(text, name, strlen(name), &is)
                                            : LT_ERR_OOM;
            json_decref(text);
            LT_TRY(err);
        } else {
            is = in_list(p->matched, p->n_matched, pattern);
        }
        ruled = ruled || is;
        LT_TRY(is ? put(out, rule) : LT_OK);
    }
    LT_TRY(!ruled && more != NULL ? put(out, more) : LT_OK);
    *evaluated = ruled || more != NULL;
    return LT_OK;
}

/* All subschemas that apply to a member, as a term. */
lt_err lt_gmember_term(lt_gschema_reader *r, const lt_gshape *s, const char *name,
                       const lt_gpiece *p, int32_t *out) {
    literals l = {0};
    lt_err err = LT_OK;
    bool any = false;
    for (const lt_gpart *g = s->objects; g != NULL; g = g->next) {
        LT_TRY_DONE(ruled_by(g->owner, name, p, &l, &any));
    }
    for (const lt_gpart *u = s->unevaluated; u != NULL; u = u->next) {
        literals scratch = {0};
        bool evaluated = false;
        for (const lt_gpart *g = s->objects; g != NULL && !evaluated && !u->not ; g = g->next) {
            if (!g->quiet && lt_gschema_within(s, g->lit, u->lit)) {
                err = ruled_by(g->owner, name, p, &scratch, &evaluated);
            }
        }
        free(scratch.v);
        LT_TRY_DONE(err);
        LT_TRY_DONE(u->not || evaluated ? LT_OK : put(&l, u->v));
    }
    LT_TRY_DONE(lt_gterm_of(r, l.v, l.n, out));
done:
    free(l.v);
    return err;
}

/* Whether propertyNames allows one name: 0 no, 1 yes. */
static lt_err name_fits(lt_gschema_reader *r, const lt_gshape *s, const char *name, bool *out) {
    *out = true;
    for (const lt_gpart *p = s->names; p != NULL && *out; p = p->next) {
        json_t *text = json_string(name);
        const int fits = text != NULL ? lt_gschema_valid(r, p->v, text, 0) : -1;
        json_decref(text);
        if (fits < 0) {
            r->at = p->owner;
            return lt_gschema_refuse(r, "propertyNames", "of a kind that cannot be checked");
        }
        *out = fits > 0;
    }
    return LT_OK;
}

lt_err lt_gmember_named(lt_gschema_reader *r, const lt_gshape *s, const char *name, int32_t *out) {
    bool fits = true;
    LT_TRY(name_fits(r, s, name, &fits));
    *out = LT_GTERM_NEVER;
    return fits ? lt_gmember_term(r, s, name, NULL, out) : LT_OK;
}

/* ---- Possible at all? ---- */

static lt_err object_possible(lt_gschema_reader *r, const lt_gshape *s, int depth, bool *out) {
    *out = true;
    for (const lt_gpart *p = s->required; p != NULL && *out; p = p->next) {
        int32_t term = 0;
        LT_TRY(lt_gmember_named(r, s, json_string_value(p->v), &term));
        LT_TRY(lt_gterm_possible(r, term, depth - 1, out));
    }
    return LT_OK;
}

lt_err lt_gterm_possible(lt_gschema_reader *r, int32_t term, int depth, bool *out) {
    const lt_gshape *shapes = NULL;
    *out = r->terms[term].possible >= 0;
    if (depth <= 0 || r->terms[term].possible != 0 || r->terms[term].open) {
        return LT_OK;
    }
    r->terms[term].open = true;
    LT_TRY(lt_gterm_shapes(r, term, &shapes));
    *out = false;
    for (const lt_gshape *s = shapes; s != NULL && !*out; s = s->next) {
        *out = (s->types & ~(unsigned)LT_GTYPE_OBJECT) != 0;
        if (!*out) {
            LT_TRY(object_possible(r, s, depth, out));
        }
    }
    r->terms[term].open = false;
    r->terms[term].possible = *out ? 1 : -1;
    return LT_OK;
}

/* ---- Members ---- */

lt_err lt_gmembers_add(lt_gschema_reader *r, const lt_gshape *s, lt_gmembers *m, const char *name,
                       bool required) {
    json_t *known = json_object_get(m->index, name);
    if (known != NULL) {
        lt_gmember *old = &m->v[json_integer_value(known)];
        old->required = old->required || required;
        return LT_OK;
    }
    if (m->n >= MAX_PROPERTIES) {
        LT_FAIL(LT_ERR_LIMIT, "schema: an object of more than %d properties", MAX_PROPERTIES);
    }
    if (!lt_grow((void **)&m->v, m->n, &m->room, sizeof *m->v) ||
        json_object_set_new(m->index, name, json_integer((json_int_t)m->n)) != 0) {
        return LT_ERR_OOM;
    }
    /* The index keeps the name, since a shape's may be freed. */
    m->v[m->n] = (lt_gmember){.name = json_object_iter_key(json_object_iter_at(m->index, name)),
                              .required = required};
    return lt_gmember_named(r, s, name, &m->v[m->n++].term);
}

/* The parts of a list, first to last. */
static const lt_gpart **in_order(const lt_gpart *list, size_t *n) {
    const lt_gpart **v;
    *n = 0;
    for (const lt_gpart *p = list; p != NULL; p = p->next) {
        (*n)++;
    }
    v = calloc(*n + 1, sizeof *v);
    for (size_t i = *n; v != NULL && i-- > 0; list = list->next) {
        v[i] = list;
    }
    return v;
}

lt_err lt_gmembers_list(lt_gschema_reader *r, const lt_gshape *s, lt_gmembers *m) {
    size_t n_groups, n_required;
    const lt_gpart **groups = in_order(s->objects, &n_groups),
                   **required = in_order(s->required, &n_required);
    lt_err err = LT_OK;
    const char *key;
    json_t *v;
    if (groups == NULL || required == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "schema: an object");
    }
    for (size_t i = 0; i < n_groups; i++) {
        json_object_foreach((json_t *)(uintptr_t)lt_gschema_get(groups[i]->owner, "properties"),
                            key, v) {
            LT_TRY_DONE(lt_gmembers_add(r, s, m, key, false));
        }
    }
    for (size_t i = 0; i < n_required; i++) {
        LT_TRY_DONE(lt_gmembers_add(r, s, m, json_string_value(required[i]->v), true));
    }
done:
    free(groups);
    free(required);
    return err;
}

lt_gid lt_gmember_pair(lt_gschema_reader *r, lt_gid key, lt_gid value) {
    const lt_gid ws = lt_gjson_space(r->g);
    return lt_gast_list(
        r->g, LT_GNODE_SEQ,
        (const lt_gid[]){lt_gjson_quoted(r->g, key), ws, lt_gast_text(r->g, ":"), ws, value}, 5);
}
