/* grammar/schema_array.c: arrays of schemas.
 *
 * For each schema that applies to the array, item i must satisfy its place in prefixItems, or else
 * items. Without contains, the places are written from the last one to the first, then a
 * repetition. With contains, each item either matches it or does not, which a grid counts: at(i, c)
 * is what may follow when i items are written, c of which match; i stops counting after all places
 * and bounds. */
#include <stdlib.h>
#include <string.h>

#include "serve/grammar/language.h"
#include "serve/grammar/schema.h"

#define MAX_PLACES 2000
#define MAX_GRID   20000

lt_gid lt_gschema_named(lt_gschema_reader *r, lt_gid body) {
    return lt_gast_ref(r->g, lt_gast_new_rule(r->g, body));
}

lt_gid lt_gschema_comma(lt_gschema_reader *r) {
    const lt_gid ws = lt_gjson_space(r->g);
    return lt_gast_seq3(r->g, ws, lt_gast_text(r->g, ","), ws);
}

lt_gid lt_gschema_more(lt_gschema_reader *r, lt_gid item, int64_t n, int64_t min, int64_t max) {
    lt_gast *g = r->g;
    const int64_t lo = min > n ? min - n : 0, hi = max == LT_GINF ? LT_GINF : max - n;
    const lt_gid next = lt_gast_seq2(g, lt_gschema_comma(r), item);
    lt_gid some;
    if (n > 0) {
        return lt_gast_repeat(g, next, (int32_t)lo, (int32_t)hi);
    }
    if (hi <= 0) {
        return lt_gast_empty(g);
    }
    some = lt_gast_seq2(g, item,
                        lt_gast_repeat(g, next, (int32_t)(lo > 0 ? lo - 1 : 0),
                                       hi == LT_GINF ? LT_GINF : (int32_t)hi - 1));
    return lo > 0 ? some : lt_gast_repeat(g, some, 0, 1);
}

/* ---- What rules an item ---- */

static const json_t *places_of(const json_t *s, const json_t **rest) {
    const json_t *items = lt_gschema_get(s, "items");
    /* Draft 7's tuple. */
    *rest = json_is_array(items) ? lt_gschema_get(s, "additionalItems") : items;
    return json_is_array(items) ? items : lt_gschema_get(s, "prefixItems");
}

/* The number of positions for which some schema has a separate schema. */
static int64_t n_places(const lt_gshape *s) {
    int64_t n = 0;
    const json_t *rest;
    for (const lt_gpart *p = s->lists; p != NULL; p = p->next) {
        const int64_t own = (int64_t)json_array_size(places_of(p->owner, &rest));
        n = own > n ? own : n;
    }
    return n;
}

/* unevaluatedItems: whether a schema within `u` applies to position i. */
static lt_err evaluated(lt_gschema_reader *r, const lt_gshape *s, const lt_gpart *u, int64_t i,
                        bool *out) {
    const json_t *rest;
    *out = false;
    for (const lt_gpart *p = s->lists; p != NULL && !*out; p = p->next) {
        const json_t *places = places_of(p->owner, &rest);
        *out = !p->quiet && lt_gschema_within(s, p->lit, u->lit) &&
               (rest != NULL || i < (int64_t)json_array_size(places));
    }
    for (const lt_gpart *c = s->contains; c != NULL && !*out; c = c->next) {
        if (lt_gschema_within(s, c->lit, u->lit)) {
            return lt_gschema_refuse(r, "unevaluatedItems", "beside contains");
        }
    }
    return LT_OK;
}

/* The term of item i (that of the last place and one more: all behind), with the kinds of contains
 * that it is (bits) and is not. */
static lt_err item_term(lt_gschema_reader *r, const lt_gshape *s, int64_t i, unsigned kinds,
                        int32_t *out) {
    lt_glit *lits = NULL;
    size_t n = 0, room = 0;
    const json_t *rest;
    lt_err err = LT_OK;
#define PUT(schema, negated)                                                                       \
    do {                                                                                           \
        if (!lt_grow((void **)&lits, n, &room, sizeof *lits)) {                                    \
            err = LT_ERR_OOM;                                                                      \
            goto done;                                                                             \
        }                                                                                          \
        lits[n++] = (lt_glit){(schema), (negated)};                                                \
    } while (0)
    for (const lt_gpart *p = s->lists; p != NULL; p = p->next) {
        const json_t *places = places_of(p->owner, &rest);
        const json_t *own = i < (int64_t)json_array_size(places) ? json_array_get(places, (size_t)i)
                                                                 : rest;
        if (own != NULL) {
            PUT(own, false);
        }
    }
    for (const lt_gpart *u = s->unevaluated; u != NULL; u = u->next) {
        bool is = true;
        LT_TRY_DONE(u->not ? evaluated(r, s, u, i, &is) : LT_OK);
        if (!is) {
            PUT(u->v, false);
        }
    }
    for (const lt_gpart *c = s->contains; c != NULL; c = c->next, kinds >>= 1) {
        PUT(c->v, (kinds & 1) == 0);
    }
#undef PUT
    LT_TRY_DONE(lt_gterm_of(r, lits, n, out));
done:
    free(lits);
    return err;
}

/* Its rule; *out -1: no item is possible there. */
static lt_err item_rule(lt_gschema_reader *r, const lt_gshape *s, int64_t i, unsigned kinds,
                        lt_gid *out) {
    int32_t term = 0;
    bool possible = false;
    *out = -1;
    LT_TRY(item_term(r, s, i, kinds, &term));
    LT_TRY(lt_gterm_possible(r, term, 3, &possible));
    return possible ? lt_gterm_rule(r, term, out) : LT_OK;
}

/* ---- Without contains ---- */

static lt_err plain_items(lt_gschema_reader *r, const lt_gshape *s, lt_gid *out) {
    lt_gast *g = r->g;
    const int64_t n = n_places(s), min = s->min_items;
    int64_t max = s->max_items;
    lt_gid item = -1, body;
    lt_gid *one = calloc((size_t)n + 1, sizeof *one);
    lt_err err = LT_OK;
    if (one == NULL || n > MAX_PLACES) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "schema: an array of %lld places of its own", (long long)n);
    }
    LT_TRY_DONE(item_rule(r, s, n, 0, &item));
    max = item < 0 && max > n ? n : max;
    for (int64_t i = 0; i < n; i++) { /* The array ends where no item is possible. */
        LT_TRY_DONE(item_rule(r, s, i, 0, &one[i]));
        max = one[i] < 0 && max > i ? i : max;
    }
    if (min > max) {
        *out = lt_gast_never(g);
        goto done;
    }
    body = item < 0 || max < n ? lt_gast_empty(g) : lt_gschema_more(r, item, n, min, max);
    /* From the last to the first: the array may end at each. */
    for (int64_t i = n - 1; i >= 0; i--) {
        if (i >= max) {
            body = lt_gast_empty(g);
            continue;
        }
        body = lt_gast_seq2(g, i > 0 ? lt_gast_seq2(g, lt_gschema_comma(r), one[i]) : one[i], body);
        body = i >= min ? lt_gast_repeat(g, body, 0, 1) : body;
    }
    *out = body;
done:
    free(one);
    return err;
}

/* ---- With contains ---- */

enum { KINDS = 2 }; /* Most `contains` at the same time. */

typedef struct {
    lt_gschema_reader *r;
    const lt_gshape *s;
    /* Rows [0, places] of the grid; the last one represents all further ones. */
    int64_t places;
    int64_t tops[KINDS]; /* Counts go from 0 to these. */
    bool bounded[KINDS]; /* More than the top is too many. */
    int64_t mins[KINDS];
    size_t n_kinds;
    lt_gid items[1 << KINDS]; /* The items of the current row. */
} grid;

static lt_err grid_row(grid *o, int64_t i) {
    const int64_t n = n_places(o->s);
    for (unsigned kinds = 0; kinds < 1u << o->n_kinds; kinds++) {
        LT_TRY(item_rule(o->r, o->s, i < n ? i : n, kinds, &o->items[kinds]));
    }
    return LT_OK;
}

/* Compute at(i, c, d) from the next row. */
static lt_gid grid_cell(grid *o, int64_t i, const int64_t c[KINDS], const int32_t *next,
                        int64_t width) {
    lt_gast *g = o->r->g;
    lt_gids alts = {0};
    bool done = i >= o->s->min_items;
    lt_gid out;
    for (size_t k = 0; k < o->n_kinds; k++) {
        done = done && c[k] >= o->mins[k];
    }
    if (done) {
        lt_gids_push(g, &alts, lt_gast_empty(g));
    }
    for (unsigned kinds = 0; kinds < 1u << o->n_kinds; kinds++) {
        int64_t to[KINDS] = {0};
        bool fits = o->items[kinds] >= 0 && i < o->s->max_items;
        for (size_t k = 0; k < o->n_kinds; k++) {
            to[k] = c[k] + ((kinds >> k & 1) != 0);
            fits = fits && !(to[k] > o->tops[k] && o->bounded[k]);
            to[k] = to[k] > o->tops[k] ? o->tops[k] : to[k];
        }
        if (fits) {
            const lt_gid rest = lt_gast_ref(g, next[to[0] * width + to[1]]);
            lt_gids_push(g, &alts,
                         i > 0 ? lt_gast_seq3(g, lt_gschema_comma(o->r), o->items[kinds], rest)
                               : lt_gast_seq2(g, o->items[kinds], rest));
        }
    }
    out = lt_gast_list(g, LT_GNODE_ALT, alts.v, alts.n);
    free(alts.v);
    return out;
}

static lt_err grid_open(grid *o) {
    const lt_gshape *s = o->s;
    for (const lt_gpart *c = s->contains; c != NULL; c = c->next, o->n_kinds++) {
        if (o->n_kinds == KINDS) {
            o->r->at = c->owner;
            return lt_gschema_refuse(o->r, "contains", "more than twice in what holds together");
        }
        o->mins[o->n_kinds] = c->min;
        o->bounded[o->n_kinds] = c->max != LT_GINF;
        o->tops[o->n_kinds] = c->max != LT_GINF ? c->max : c->min;
    }
    o->places = n_places(s);
    o->places = o->places > 1 ? o->places : 1; /* The first item has no comma before it. */
    o->places = s->min_items > o->places ? s->min_items : o->places;
    o->places = s->max_items != LT_GINF && s->max_items > o->places ? s->max_items : o->places;
    if ((o->places + 1) * (o->tops[0] + 1) * (o->tops[1] + 1) > MAX_GRID) {
        LT_FAIL(LT_ERR_LIMIT,
                "schema: contains beside arrays of %lld items: more than %d to keep count of",
                (long long)o->places, MAX_GRID);
    }
    return LT_OK;
}

static lt_err counted_items(lt_gschema_reader *r, const lt_gshape *s, lt_gid *out) {
    grid o = {.r = r, .s = s};
    lt_err err = LT_OK;
    int32_t *rules = NULL;
    LT_TRY(grid_open(&o));
    const int64_t width = o.tops[1] + 1, cells = (o.tops[0] + 1) * width;
    rules = calloc((size_t)((o.places + 1) * cells), sizeof *rules);
    if (rules == NULL) {
        LT_FAIL(LT_ERR_OOM, "schema: an array");
    }
    for (int64_t i = 0; i < (o.places + 1) * cells; i++) {
        rules[i] = lt_gast_new_rule(r->g, lt_gast_never(r->g));
    }
    LT_TRY_DONE(lt_gast_check(r->g));
    for (int64_t i = 0; i <= o.places; i++) {
        const bool last = i == o.places; /* The row of all later items leads to itself. */
        LT_TRY_DONE(grid_row(&o, i));
        for (int64_t k = 0; k < cells; k++) {
            const int64_t c[KINDS] = {k / width, k % width};
            lt_gast_define(r->g, rules[i * cells + k],
                           grid_cell(&o, i, c, rules + (last ? i : i + 1) * cells, width));
        }
    }
    *out = lt_gast_ref(r->g, rules[0]);
done:
    free(rules);
    return err;
}

/* ---- uniqueItems ---- */

/* Distinct items: texts, numbers and words, each with one spelling. */
static lt_err unique_items(lt_gschema_reader *r, const lt_gshape *s, lt_gid *out) {
    lt_gast *g = r->g;
    const lt_gshape *shapes = NULL;
    lt_gids alts = {0};
    lt_err err = LT_OK;
    int64_t max = s->max_items;
    size_t n = 0;
    int32_t term = 0;
    lt_gid one = -1;
    r->at = s->unique->owner;
    if (s->contains != NULL || n_places(s) > 0) {
        return lt_gschema_refuse(r, "uniqueItems", "beside contains or prefixItems");
    }
    LT_TRY(item_term(r, s, 0, 0, &term));
    LT_TRY(lt_gterm_shapes(r, term, &shapes));
    for (; shapes != NULL; shapes = shapes->next) {
        LT_TRY_DONE(lt_gschema_scalar(r, shapes, &one));
        if (one < 0) {
            r->at = s->unique->owner;
            err = lt_gschema_refuse(r, "uniqueItems", "of objects or lists");
            goto done;
        }
        lt_gids_push(g, &alts, one);
    }
    one = lt_gast_list(g, LT_GNODE_ALT, alts.v, alts.n);
    LT_TRY_DONE(lt_gast_check(g));
    LT_TRY_DONE(lt_glanguage_count(g, one, 1000000, &n));
    max = n < 1000000 && (int64_t)n < max ? (int64_t)n : max;
    *out = s->min_items > max || n == 0
               ? (s->min_items > 0 ? lt_gast_never(g) : lt_gast_empty(g))
               : lt_gschema_more(r, lt_gjson_name(g, one), 0, s->min_items, max);
done:
    free(alts.v);
    return err;
}

lt_err lt_gschema_array(lt_gschema_reader *r, const lt_gshape *s, lt_gid *out) {
    lt_gast *g = r->g;
    const lt_gid ws = lt_gjson_space(g);
    const bool unique = s->unique != NULL && s->max_items > 1;
    lt_gid body = -1;
    LT_TRY(unique                ? unique_items(r, s, &body)
           : s->contains != NULL ? counted_items(r, s, &body)
                                 : plain_items(r, s, &body));
    body = lt_gast_seq3(g, ws, body, ws);
    *out = lt_gast_seq3(g, lt_gast_text(g, "["), unique ? lt_gjson_unique(g, body) : body,
                        lt_gast_text(g, "]"));
    return lt_gast_check(g);
}
