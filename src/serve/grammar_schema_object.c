/* grammar_schema_object.c: objects of schemas.
 *
 * Properties come in the schema's order, each a rule; then required members that no schema lists; then others. What a member's value must satisfy
 * is, of each schema that rules the object, its property and the patterns that the name matches, or else additionalProperties. The names of
 * other members are cut into pieces by the patterns that they match; each piece has one term for its values. A piece of few names becomes properties.
 * No name comes twice: those of properties are not in the pieces, and grammar_names.c keeps the others apart.
 *
 *     after(i, c, e)   what may follow when members before i are settled, c of them written; built from the last i. c is counted only where
 *                      minProperties or maxProperties ask for it. e: which of the demands "some member is ..." (what is left of a schema that must
 *                      not hold) are met; those that others meet are met first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/grammar_dfa.h"
#include "serve/grammar_language.h"
#include "serve/grammar_schema.h"

#define MAX_PROPERTIES 4000
#define MAX_COUNTED    60000 /* after(i, c) of one object. */
#define MAX_PIECES     64
#define MAX_DEMANDS    3
#define FEW_NAMES      40 /* A piece of at most so many names is written out. */

typedef struct {
    const char *name;
    bool required;
    int32_t term;
    lt_gid pair;
    unsigned meets;              /* Demands that any value of it meets, as bits. */
    lt_gid meeting[MAX_DEMANDS]; /* The pair with values that meet this one; -1: none, or any. */
} member;

typedef struct {
    member *v;
    size_t n, room;
    json_t *index; /* Name to number. */
} members;

/* Names beside the properties that match the same patterns. */
typedef struct {
    lt_gid names;
    const json_t *matched[MAX_PIECES]; /* Patterns, by their texts. */
    size_t n_matched;
} piece;

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

/* The schemas by which one schema rules a member: of this name, or (NULL) of those names that match these patterns. */
static lt_err ruled_by(const json_t *s, const char *name, const piece *p, literals *out,
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

/* All schemas that rule a member, as a term. */
static lt_err member_term(lt_gschema_reader *r, const lt_gshape *s, const char *name,
                          const piece *p, int32_t *out) {
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

/* propertyNames for one name: 0 no, 1 yes. */
static lt_err name_fits(lt_gschema_reader *r, const lt_gshape *s, const char *name, bool *out) {
    *out = true;
    for (const lt_gpart *p = s->names; p != NULL && *out; p = p->next) {
        json_t *text = json_string(name);
        const int fits = text != NULL ? lt_gschema_valid(r, p->v, text, 0) : -1;
        json_decref(text);
        if (fits < 0) {
            r->at = p->owner;
            return lt_gschema_refuse(r, "propertyNames", "of a kind that can not be checked");
        }
        *out = fits > 0;
    }
    return LT_OK;
}

static lt_err named_term(lt_gschema_reader *r, const lt_gshape *s, const char *name, int32_t *out) {
    bool fits = true;
    LT_TRY(name_fits(r, s, name, &fits));
    *out = LT_GTERM_NEVER;
    return fits ? member_term(r, s, name, NULL, out) : LT_OK;
}

/* ---- Possible at all? ---- */

static lt_err object_possible(lt_gschema_reader *r, const lt_gshape *s, int depth, bool *out) {
    *out = true;
    for (const lt_gpart *p = s->required; p != NULL && *out; p = p->next) {
        int32_t term = 0;
        LT_TRY(named_term(r, s, json_string_value(p->v), &term));
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

static lt_err add_member(lt_gschema_reader *r, const lt_gshape *s, members *m, const char *name,
                         bool required) {
    json_t *known = json_object_get(m->index, name);
    if (known != NULL) {
        member *old = &m->v[json_integer_value(known)];
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
    /* The index keeps the name: a shape's may go. */
    m->v[m->n] = (member){.name = json_object_iter_key(json_object_iter_at(m->index, name)),
                          .required = required};
    return named_term(r, s, name, &m->v[m->n++].term);
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

static lt_err listed_members(lt_gschema_reader *r, const lt_gshape *s, members *m) {
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
            LT_TRY_DONE(add_member(r, s, m, key, false));
        }
    }
    for (size_t i = 0; i < n_required; i++) {
        LT_TRY_DONE(add_member(r, s, m, json_string_value(required[i]->v), true));
    }
done:
    free(groups);
    free(required);
    return err;
}

static lt_gid pair_of(lt_gschema_reader *r, lt_gid key, lt_gid value) {
    const lt_gid ws = lt_gjson_space(r->g);
    return lt_gast_list(
        r->g, LT_GNODE_SEQ,
        (const lt_gid[]){lt_gjson_quoted(r->g, key), ws, lt_gast_text(r->g, ":"), ws, value}, 5);
}

/* ---- Other names ---- */

/* Cut the pieces by one more pattern. */
static lt_err cut(lt_gschema_reader *r, piece *pieces, size_t *n, const char *pattern,
                  const json_t *text) {
    const size_t before = *n;
    lt_gregex_options o = {.search = true, .json = true};
    lt_gid names = -1, perhaps = -1;
    LT_TRY(lt_gregex_read(r->g, pattern, strlen(pattern), o, &names));
    o.wide = true;
    LT_TRY(lt_gregex_read(r->g, pattern, strlen(pattern), o, &perhaps));
    for (size_t i = 0; i < before; i++) {
        const lt_gid in = lt_gast_pair(r->g, LT_GNODE_AND, pieces[i].names, names),
                     out = lt_gast_pair(r->g, LT_GNODE_MINUS, pieces[i].names, perhaps);
        size_t n_in = 0, n_out = 0;
        LT_TRY(lt_gast_check(r->g));
        LT_TRY(lt_glanguage_count(r->g, in, 1, &n_in));
        LT_TRY(lt_glanguage_count(r->g, out, 1, &n_out));
        if (n_in > 0 && n_out > 0) {
            if (*n >= MAX_PIECES) {
                return lt_gschema_refuse(r, "patternProperties",
                                         "that cut names into over 64 kinds");
            }
            pieces[*n] = pieces[i];
            pieces[(*n)++].names = out;
        }
        if (n_in > 0) {
            pieces[i].names = in;
            pieces[i].matched[pieces[i].n_matched++] = text;
        }
    }
    return LT_OK;
}

/* All names that are not listed, in one piece; propertyNames applied. */
static lt_err free_names(lt_gschema_reader *r, const lt_gshape *s, const members *m, lt_gid *out) {
    lt_gast *g = r->g;
    lt_gids names = {0};
    *out = lt_gast_repeat(g, lt_gjson_plain(g), 0, LT_GINF);
    for (const lt_gpart *p = s->names; p != NULL; p = p->next) {
        const lt_glit l = {p->v, false};
        const lt_gshape *shapes = NULL;
        lt_gids alts = {0};
        lt_err err = LT_OK;
        int32_t term = 0;
        LT_TRY(lt_gterm_of(r, &l, 1, &term));
        if (term == LT_GTERM_ANY) {
            continue;
        }
        LT_TRY(lt_gterm_shapes(r, term, &shapes));
        for (; shapes != NULL && err == LT_OK; shapes = shapes->next) {
            lt_gid content = -1;
            if ((shapes->types & LT_GTYPE_STRING) != 0) {
                err = lt_gschema_content(r, shapes, true, &content);
                lt_gids_push(g, &alts, content);
            }
        }
        *out = lt_gast_pair(g, LT_GNODE_AND, *out, lt_gast_list(g, LT_GNODE_ALT, alts.v, alts.n));
        free(alts.v);
        LT_TRY(err);
    }
    for (size_t i = 0; i < m->n; i++) {
        lt_gids_push(g, &names, lt_gjson_content(g, m->v[i].name, strlen(m->v[i].name)));
    }
    if (names.n > 0) {
        *out = lt_gast_pair(g, LT_GNODE_MINUS, *out,
                            lt_gast_list(g, LT_GNODE_ALT, names.v, names.n));
    }
    free(names.v);
    return lt_gast_check(g);
}

static lt_err cut_names(lt_gschema_reader *r, const lt_gshape *s, piece *pieces, size_t *n) {
    json_t *seen = json_object();
    lt_err err = LT_OK;
    for (const lt_gpart *g = s->objects; g != NULL; g = g->next) {
        const char *pattern;
        json_t *rule;
        json_object_foreach((json_t *)(uintptr_t)lt_gschema_get(g->owner, "patternProperties"),
                            pattern, rule) {
            json_t *text = json_object_get(seen, pattern);
            r->at = g->owner;
            if (text != NULL) {
                continue;
            }
            text = json_string(pattern);
            if (text == NULL || json_object_set(seen, pattern, text) != 0 ||
                json_array_append_new(r->kept, text) != 0) {
                LT_FAIL_DONE(LT_ERR_OOM, "schema: patterns");
            }
            if (json_object_size(seen) >= MAX_PIECES) {
                err = lt_gschema_refuse(r, "patternProperties", "of over 63 patterns");
                goto done;
            }
            LT_TRY_DONE(cut(r, pieces, n, pattern, text));
        }
    }
done:
    json_decref(seen);
    return err;
}

/* Are members that nothing speaks of left out? Where properties are listed and nothing is said of others. */
static bool is_closed(const lt_gshape *s, const members *m) {
    bool lists = false;
    for (const lt_gpart *g = s->objects; g != NULL; g = g->next) {
        if (lt_gschema_get(g->owner, "additionalProperties") != NULL) {
            return false;
        }
        lists = lists || (!g->quiet &&
                          (json_object_size(lt_gschema_get(g->owner, "properties")) > 0 ||
                           json_object_size(lt_gschema_get(g->owner, "patternProperties")) > 0));
    }
    for (const lt_gpart *u = s->unevaluated; u != NULL; u = u->next) {
        lists = lists && u->not ;
    }
    return lists && s->min_members <= (int64_t)m->n;
}

/* ---- Demands ---- */

/* Does a member of this name count? */
static lt_err demand_names(lt_gschema_reader *r, const json_t *demand, const char *name,
                           bool *out) {
    const json_t *pattern = json_object_get(demand, "pattern"),
                 *names = json_object_get(demand, "names");
    const char *key;
    json_t *rule, *text;
    *out = true;
    if (pattern != NULL) {
        return lt_gschema_matches(pattern, name, strlen(name), out);
    }
    if (names != NULL) {
        text = json_string(name);
        *out = lt_gschema_valid(r, names, text, 0) == 0;
        json_decref(text);
        return LT_OK;
    }
    *out = json_object_get(json_object_get(demand, "properties"), name) == NULL;
    json_object_foreach(json_object_get(demand, "patterns"), key, rule) {
        bool is = false;
        text = json_string(key);
        const lt_err err = lt_gschema_matches(text, name, strlen(name), &is);
        json_decref(text);
        LT_TRY(err);
        *out = *out && !is;
    }
    return LT_OK;
}

/* Which demands a listed member meets. */
static lt_err meet(lt_gschema_reader *r, const lt_gshape *s, member *m) {
    int bit = 0;
    for (const lt_gpart *p = s->some; p != NULL; p = p->next, bit++) {
        const json_t *value = json_object_get(p->v, "value");
        const lt_gterm *of = &r->terms[m->term];
        lt_glit lits[40];
        bool counts = false, possible = false;
        int32_t term = 0;
        lt_gid rule = -1;
        m->meeting[bit] = -1;
        LT_TRY(demand_names(r, p->v, m->name, &counts));
        if (!counts || of->n >= 39) {
            continue;
        }
        memcpy(lits, of->lits, of->n * sizeof *lits);
        lits[of->n] = (lt_glit){value, false};
        LT_TRY(lt_gterm_of(r, lits, of->n + 1, &term));
        if (term == m->term) {
            m->meets |= 1u << bit;
            continue;
        }
        LT_TRY(lt_gterm_possible(r, term, 3, &possible));
        if (possible) {
            LT_TRY(lt_gterm_rule(r, term, &rule));
            m->meeting[bit] = lt_gschema_named(
                r, pair_of(r, lt_gjson_content(r->g, m->name, strlen(m->name)), rule));
        }
    }
    return LT_OK;
}

/* Those names of a piece that count. */
static lt_err demanded_names(lt_gschema_reader *r, const json_t *demand, lt_gid names,
                             lt_gid *out) {
    const json_t *pattern = json_object_get(demand, "pattern");
    lt_gregex_options o = {.search = true, .json = true};
    lt_gast *g = r->g;
    const char *key;
    json_t *rule;
    lt_gid one = -1;
    if (pattern != NULL) {
        LT_TRY(lt_gregex_read(g, json_string_value(pattern), json_string_length(pattern), o, &one));
        *out = lt_gast_pair(g, LT_GNODE_AND, names, one);
        return LT_OK;
    }
    if (json_object_get(demand, "names") != NULL) {
        *out = -1; /* Only listed members meet this one. */
        return LT_OK;
    }
    o.wide = true;
    *out = names;
    json_object_foreach(json_object_get(demand, "properties"), key, rule) {
        *out = lt_gast_pair(g, LT_GNODE_MINUS, *out, lt_gjson_content(g, key, strlen(key)));
    }
    json_object_foreach(json_object_get(demand, "patterns"), key, rule) {
        LT_TRY(lt_gregex_read(g, key, strlen(key), o, &one));
        *out = lt_gast_pair(g, LT_GNODE_MINUS, *out, one);
    }
    return LT_OK;
}

/* Other members of a piece that meet a demand, into alts. */
static lt_err piece_meets(lt_gschema_reader *r, const json_t *demand, const piece *p, int32_t term,
                          lt_gids *alts) {
    const lt_gterm *of = &r->terms[term];
    lt_glit lits[40];
    lt_gid names = -1, value = -1;
    size_t n = 0;
    bool possible = false;
    int32_t both = 0;
    LT_TRY(demanded_names(r, demand, p->names, &names));
    if (names < 0 || of->n >= 39) {
        return LT_OK;
    }
    memcpy(lits, of->lits, of->n * sizeof *lits);
    lits[of->n] = (lt_glit){json_object_get(demand, "value"), false};
    LT_TRY(lt_gterm_of(r, lits, of->n + 1, &both));
    LT_TRY(lt_gterm_possible(r, both, 3, &possible));
    LT_TRY(lt_glanguage_count(r->g, names, FEW_NAMES + 1, &n));
    if (possible && n > FEW_NAMES) {
        LT_TRY(lt_gterm_rule(r, both, &value));
        lt_gids_push(r->g, alts, pair_of(r, lt_gjson_name(r->g, names), value));
    }
    return LT_OK;
}

/* Members beside the listed ones. */
typedef struct {
    lt_gid all;                  /* -1: none. */
    lt_gid meeting[MAX_DEMANDS]; /* Those that meet a demand; -1: none. */
    int64_t most;                /* Names that there are. */
} others;

/* One piece: written out as members when it has few names, else a rule into alts[0], those that meet demand i into alts[i + 1]. */
static lt_err piece_members(lt_gschema_reader *r, const lt_gshape *s, const piece *p, members *m,
                            lt_gids *alts, others *out) {
    int32_t term = 0;
    lt_gid value = -1;
    size_t n = 0;
    bool possible = false;
    int bit = 0;
    LT_TRY(member_term(r, s, NULL, p, &term));
    LT_TRY(lt_gterm_possible(r, term, 3, &possible));
    if (!possible) {
        return LT_OK;
    }
    LT_TRY(lt_glanguage_count(r->g, p->names, LT_GINF, &n));
    if (n <= FEW_NAMES) {
        json_t *list = NULL, *name;
        size_t i;
        lt_err err = lt_glanguage_list(r->g, p->names, FEW_NAMES, &list);
        json_array_foreach(list, i, name) {
            err = err != LT_OK ? err : add_member(r, s, m, json_string_value(name), false);
        }
        json_decref(list);
        return err;
    }
    out->most = out->most + (int64_t)n > LT_GINF ? LT_GINF : out->most + (int64_t)n;
    for (const lt_gpart *d = s->some; d != NULL; d = d->next) {
        LT_TRY(piece_meets(r, d->v, p, term, &alts[1 + bit++]));
    }
    LT_TRY(lt_gterm_rule(r, term, &value));
    lt_gids_push(r->g, &alts[0], pair_of(r, lt_gjson_name(r->g, p->names), value));
    return LT_OK;
}

/* Names that propertyNames lists, in its order. */
static lt_err listed_names(lt_gschema_reader *r, const lt_gshape *s, members *m) {
    for (const lt_gpart *p = s->names; p != NULL; p = p->next) {
        const lt_glit l = {p->v, false};
        const lt_gshape *shapes = NULL;
        const json_t *v;
        size_t i;
        int32_t term = 0;
        LT_TRY(lt_gterm_of(r, &l, 1, &term));
        LT_TRY(lt_gterm_shapes(r, term, &shapes));
        if (shapes == NULL || shapes->next != NULL) {
            continue;
        }
        json_array_foreach(shapes->values, i, v) {
            LT_TRY(json_is_string(v) ? add_member(r, s, m, json_string_value(v), false) : LT_OK);
        }
    }
    return LT_OK;
}

static lt_err other_members(lt_gschema_reader *r, const lt_gshape *s, members *m, others *out) {
    const bool closed = is_closed(s, m);
    piece *pieces = calloc(MAX_PIECES + 1, sizeof *pieces);
    lt_gids alts[MAX_DEMANDS + 1] = {0};
    size_t n = 1;
    lt_err err = LT_OK;
    *out = (others){-1, {-1, -1, -1}, 0};
    if (pieces == NULL) {
        LT_FAIL(LT_ERR_OOM, "schema: an object");
    }
    LT_TRY_DONE(closed ? LT_OK : listed_names(r, s, m));
    LT_TRY_DONE(free_names(r, s, m, &pieces[0].names));
    LT_TRY_DONE(cut_names(r, s, pieces, &n));
    for (size_t i = 0; i < n; i++) {
        if (!closed || pieces[i].n_matched > 0) {
            LT_TRY_DONE(piece_members(r, s, &pieces[i], m, alts, out));
        }
    }
    for (int i = 0; i <= MAX_DEMANDS; i++) {
        if (alts[i].n > 0) {
            *(i == 0 ? &out->all : &out->meeting[i - 1]) = lt_gschema_named(
                r, lt_gast_list(r->g, LT_GNODE_ALT, alts[i].v, alts[i].n));
        }
    }
done:
    for (int i = 0; i <= MAX_DEMANDS; i++) {
        free(alts[i].v);
    }
    free(pieces);
    return err;
}

/* ---- In order ---- */

typedef struct {
    lt_gschema_reader *r;
    const members *m;
    const others *rest;
    int64_t min, max;
    bool counted;
    int64_t top;       /* Counts go from 0 to this. */
    unsigned demanded; /* All demands, as bits. */
} order;

/* What may follow all members when c were written and the demands e met. */
static lt_gid tail(const order *o, int64_t c, unsigned e, bool some) {
    lt_gast *g = o->r->g;
    const int64_t done = o->counted ? c : 0;
    int64_t lo = o->min > done ? o->min - done : 0;
    int64_t hi = o->max == LT_GINF ? LT_GINF : o->max - done;
    lt_gid out = lt_gast_empty(g);
    if (!o->counted) {
        lo = 0;
        hi = LT_GINF;
    }
    for (int bit = 0; bit < MAX_DEMANDS; bit++) {
        const lt_gid meeting = o->rest->meeting[bit];
        if ((o->demanded & ~e & 1u << bit) == 0) {
            continue;
        }
        if (meeting < 0 || hi <= 0) {
            return lt_gast_never(g);
        }
        out = lt_gast_seq2(g, out,
                           some ? lt_gast_seq2(g, lt_gschema_comma(o->r), meeting) : meeting);
        some = true;
        lo = lo > 0 ? lo - 1 : 0;
        hi = hi == LT_GINF ? hi : hi - 1;
    }
    if (o->rest->all < 0 || hi <= 0) {
        return lo > 0 || hi < 0 ? lt_gast_never(g) : out;
    }
    return lt_gast_seq2(
        g, out,
        some ? lt_gschema_more(o->r, o->rest->all, 1, lo + 1, hi == LT_GINF ? hi : hi + 1)
             : lt_gschema_more(o->r, o->rest->all, 0, lo, hi));
}

/* Member i, in all ways that lead on; before: what stands before it (a comma). */
static lt_gid write_member(const order *o, size_t i, int64_t c, unsigned e, const lt_gid *after,
                           bool with_comma) {
    lt_gast *g = o->r->g;
    const member *m = &o->m->v[i];
    const bool full = o->counted && o->max != LT_GINF;
    int64_t to = o->counted ? c + 1 : 0;
    lt_gids alts = {0};
    lt_gid out;
    if (to > o->top && full) {
        return lt_gast_never(g);
    }
    to = to > o->top ? o->top : to;
    const lt_gid *next = after + to * (o->demanded + 1);
    const lt_gid comma = with_comma ? lt_gschema_comma(o->r) : lt_gast_empty(g);
    lt_gids_push(g, &alts, lt_gast_seq3(g, comma, m->pair, next[e | m->meets]));
    for (int bit = 0; bit < MAX_DEMANDS; bit++) {
        if ((o->demanded & 1u << bit) != 0 && ((e | m->meets) & 1u << bit) == 0 &&
            m->meeting[bit] >= 0) {
            lt_gids_push(g, &alts,
                         lt_gast_seq3(g, comma, m->meeting[bit], next[e | m->meets | 1u << bit]));
        }
    }
    out = lt_gast_list(g, LT_GNODE_ALT, alts.v, alts.n);
    free(alts.v);
    return out;
}

/* One row of after(i, c, e) from that of i + 1, in place; *first: nothing written yet. */
static void row(const order *o, size_t i, lt_gid *after, lt_gid *first) {
    lt_gast *g = o->r->g;
    const bool required = o->m->v[i].required;
    const lt_gid one = write_member(o, i, 0, 0, after, false);
    const int64_t n = (o->top + 1) * (o->demanded + 1);
    *first = required ? one : lt_gast_alt2(g, one, lt_gschema_named(o->r, *first));
    if (n == 1 && !o->counted && !required) { /* As below, with one copy of the rest. */
        after[0] = lt_gschema_named(
            o->r,
            lt_gast_seq2(
                g,
                lt_gast_repeat(g, lt_gast_seq2(g, lt_gschema_comma(o->r), o->m->v[i].pair), 0, 1),
                after[0]));
        return;
    }
    for (int64_t k = 0; k < n && !g->failed; k++) { /* Counts upward: each needs the one above. */
        const lt_gid with = write_member(o, i, k / (o->demanded + 1),
                                         (unsigned)(k % (o->demanded + 1)), after, true);
        /* after[k] itself is read by none behind it. */
        after[k] = required ? with : lt_gast_alt2(g, with, after[k]);
    }
    for (int64_t k = 0; k < n && !g->failed; k++) {
        after[k] = lt_gschema_named(o->r, after[k]);
    }
}

static lt_err chain(const order *o, lt_gid *out) {
    const int64_t n = (o->top + 1) * (o->demanded + 1);
    lt_gid *after = calloc((size_t)n, sizeof *after), first;
    if (after == NULL) {
        LT_FAIL(LT_ERR_OOM, "schema: an object");
    }
    for (int64_t k = 0; k < n; k++) {
        after[k] = lt_gschema_named(
            o->r, tail(o, k / (o->demanded + 1), (unsigned)(k % (o->demanded + 1)), true));
    }
    first = tail(o, 0, 0, false);
    for (size_t i = o->m->n; i-- > 0 && !o->r->g->failed;) {
        row(o, i, after, &first);
    }
    *out = first;
    free(after);
    return lt_gast_check(o->r->g);
}

/* Members that can not be go; *never: one of them is required. */
static lt_err settle_members(lt_gschema_reader *r, const lt_gshape *s, members *m,
                             int64_t *n_required, bool *never) {
    size_t kept = 0;
    *n_required = 0;
    *never = false;
    for (size_t i = 0; i < m->n; i++) {
        bool possible = false;
        lt_gid value = -1;
        LT_TRY(lt_gterm_possible(r, m->v[i].term, 3, &possible));
        *never = *never || (!possible && m->v[i].required);
        if (!possible) {
            continue;
        }
        m->v[kept] = m->v[i];
        LT_TRY(lt_gterm_rule(r, m->v[i].term, &value));
        m->v[kept].pair = lt_gschema_named(
            r, pair_of(r, lt_gjson_content(r->g, m->v[i].name, strlen(m->v[i].name)), value));
        LT_TRY(meet(r, s, &m->v[kept]));
        *n_required += m->v[kept++].required;
    }
    m->n = kept;
    return LT_OK;
}

static lt_err body_of(lt_gschema_reader *r, const lt_gshape *s, members *m, lt_gid *out) {
    others rest;
    order o = {.r = r, .m = m, .rest = &rest, .min = s->min_members, .max = s->max_members};
    int64_t n_required, total;
    bool never;
    for (const lt_gpart *p = s->some; p != NULL; p = p->next) {
        if (o.demanded >> (MAX_DEMANDS - 1) != 0) {
            return lt_gschema_refuse(r, "not", "of what rules other members, four times at once,");
        }
        o.demanded = o.demanded << 1 | 1;
    }
    LT_TRY(listed_members(r, s, m));
    LT_TRY(other_members(r, s, m, &rest));
    LT_TRY(settle_members(r, s, m, &n_required, &never));
    total = rest.most + (int64_t)m->n;
    o.max = o.max >= total ? LT_GINF : o.max;
    if (o.max == LT_GINF && rest.most < LT_GINF && rest.all >= 0) {
        o.max = total; /* No more names than there are. */
    }
    *out = lt_gast_never(r->g);
    if (never || o.min > o.max || o.min > total || n_required > o.max) {
        return LT_OK;
    }
    o.counted = o.min > n_required || o.max != LT_GINF;
    o.top = !o.counted ? 0 : o.max != LT_GINF ? o.max : o.min;
    o.top = o.top > (int64_t)m->n ? (int64_t)m->n : o.top;
    if ((o.top + 1) * ((int64_t)m->n + 1) * (o.demanded + 1) > MAX_COUNTED) {
        LT_FAIL(
            LT_ERR_LIMIT,
            "schema: minProperties or maxProperties of %lld beside %zu properties: more than %d",
            (long long)o.top, m->n, MAX_COUNTED);
    }
    return chain(&o, out);
}

lt_err lt_gschema_object(lt_gschema_reader *r, const lt_gshape *s, lt_gid *out) {
    lt_gast *g = r->g;
    const lt_gid ws = lt_gjson_space(g);
    members m = {.index = json_object()};
    lt_gid body = -1;
    lt_err err = LT_OK;
    if (m.index == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "schema: an object");
    }
    LT_TRY_DONE(body_of(r, s, &m, &body));
    *out = lt_gast_list(g, LT_GNODE_SEQ,
                        (const lt_gid[]){lt_gast_text(g, "{"), ws, body, ws, lt_gast_text(g, "}")},
                        5);
done:
    free(m.v);
    json_decref(m.index);
    return err;
}
