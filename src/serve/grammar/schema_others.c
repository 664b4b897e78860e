/* grammar/schema_others.c: members that are not listed. Their names are divided into pieces by the
 * patterns that they match; each piece has one term for its values. A piece of few names becomes
 * properties.
 *
 * A demand comes from additionalProperties, patternProperties or propertyNames in a schema that
 * must not hold: some member to whose name the keyword applies has a value that the schema does not
 * allow. A listed member or another one may meet it. */
#include <stdlib.h>
#include <string.h>

#include "serve/grammar/language.h"
#include "serve/grammar/schema_object.h"

#define FEW_NAMES 40 /* A piece with at most this many names is written out. */

/* ---- Other names ---- */

/* Divide the pieces by one more pattern. */
static lt_err cut(lt_gschema_reader *r, lt_gpiece *pieces, size_t *n, const char *pattern,
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
            if (*n >= LT_GPIECES) {
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

/* All names that are not listed, as one piece; propertyNames is applied. */
static lt_err free_names(lt_gschema_reader *r, const lt_gshape *s, const lt_gmembers *m,
                         lt_gid *out) {
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

static lt_err cut_names(lt_gschema_reader *r, const lt_gshape *s, lt_gpiece *pieces, size_t *n) {
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
            if (json_object_size(seen) >= LT_GPIECES) {
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

/* Whether members that no keyword mentions are excluded: if properties are listed, and nothing is
 * said about others. */
static bool is_closed(const lt_gshape *s, const lt_gmembers *m) {
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

/* Whether a member of this name counts. */
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
lt_err lt_gmember_meet(lt_gschema_reader *r, const lt_gshape *s, lt_gmember *m) {
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
                r, lt_gmember_pair(r, lt_gjson_content(r->g, m->name, strlen(m->name)), rule));
        }
    }
    return LT_OK;
}

/* The names of a piece that count. */
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
        *out = -1; /* Only listed members meet this demand. */
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

/* Append other members of a piece that meet a demand to alts. */
static lt_err piece_meets(lt_gschema_reader *r, const json_t *demand, const lt_gpiece *p,
                          int32_t term, lt_gids *alts) {
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
        lt_gids_push(r->g, alts, lt_gmember_pair(r, lt_gjson_name(r->g, names), value));
    }
    return LT_OK;
}

/* One piece: written out as members if it has few names, otherwise as a rule in alts[0], with
 * members that meet demand i in alts[i + 1]. */
static lt_err piece_members(lt_gschema_reader *r, const lt_gshape *s, const lt_gpiece *p,
                            lt_gmembers *m, lt_gids *alts, lt_gothers *out) {
    int32_t term = 0;
    lt_gid value = -1;
    size_t n = 0;
    bool possible = false;
    int bit = 0;
    LT_TRY(lt_gmember_term(r, s, NULL, p, &term));
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
            err = err != LT_OK ? err : lt_gmembers_add(r, s, m, json_string_value(name), false);
        }
        json_decref(list);
        return err;
    }
    out->most = out->most + (int64_t)n > LT_GINF ? LT_GINF : out->most + (int64_t)n;
    for (const lt_gpart *d = s->some; d != NULL; d = d->next) {
        LT_TRY(piece_meets(r, d->v, p, term, &alts[1 + bit++]));
    }
    LT_TRY(lt_gterm_rule(r, term, &value));
    lt_gids_push(r->g, &alts[0], lt_gmember_pair(r, lt_gjson_name(r->g, p->names), value));
    return LT_OK;
}

/* Names that propertyNames lists, in its order. */
static lt_err listed_names(lt_gschema_reader *r, const lt_gshape *s, lt_gmembers *m) {
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
            LT_TRY(json_is_string(v) ? lt_gmembers_add(r, s, m, json_string_value(v), false)
                                     : LT_OK);
        }
    }
    return LT_OK;
}

lt_err lt_gmembers_others(lt_gschema_reader *r, const lt_gshape *s, lt_gmembers *m,
                          lt_gothers *out) {
    const bool closed = is_closed(s, m);
    lt_gpiece *pieces = calloc(LT_GPIECES + 1, sizeof *pieces);
    lt_gids alts[LT_GDEMANDS + 1] = {0};
    size_t n = 1;
    lt_err err = LT_OK;
    *out = (lt_gothers){-1, {-1, -1, -1}, 0};
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
    for (int i = 0; i <= LT_GDEMANDS; i++) {
        if (alts[i].n > 0) {
            *(i == 0 ? &out->all : &out->meeting[i - 1]) = lt_gschema_named(
                r, lt_gast_list(r->g, LT_GNODE_ALT, alts[i].v, alts[i].n));
        }
    }
done:
    for (int i = 0; i <= LT_GDEMANDS; i++) {
        free(alts[i].v);
    }
    free(pieces);
    return err;
}
