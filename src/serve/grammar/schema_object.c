/* grammar/schema_object.c: objects of schemas, with their members in order: properties as the
 * schema lists them, then required members that are not among them, then others.
 *
 *     after(i, c, e)   what may follow when members before i are settled, c of them written; built
 *                      from the last i. c is counted only where minProperties or maxProperties ask
 *                      for it. e: which demands are met; those that others meet are met first. */
#include <stdlib.h>
#include <string.h>

#include "serve/grammar/schema_object.h"

#define MAX_COUNTED 60000 /* Most states after(i, c, e) of one object. */

/* ---- In order ---- */

typedef struct {
    lt_gschema_reader *r;
    const lt_gmembers *m;
    const lt_gothers *rest;
    int64_t min, max;
    bool counted;
    int64_t top;       /* Counts go from 0 to this. */
    unsigned demanded; /* All demands, as bits. */
} order;

/* What may follow all members if c were written and the demands e are met. */
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
    hi = hi > o->rest->most ? o->rest->most : hi; /* At most as many as there are names. */
    if (lo > hi) {
        return lt_gast_never(g);
    }
    for (int bit = 0; bit < LT_GDEMANDS; bit++) {
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

/* Member i, in all ways that can continue; before: what precedes it (a comma). */
static lt_gid write_member(const order *o, size_t i, int64_t c, unsigned e, const lt_gid *after,
                           bool with_comma) {
    lt_gast *g = o->r->g;
    const lt_gmember *m = &o->m->v[i];
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
    for (int bit = 0; bit < LT_GDEMANDS; bit++) {
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

/* Compute one row of after(i, c, e) from that of i + 1, in place; *first: nothing was written
 * yet. */
static void row(const order *o, size_t i, lt_gid *after, lt_gid *first) {
    lt_gast *g = o->r->g;
    const bool required = o->m->v[i].required;
    const lt_gid one = write_member(o, i, 0, 0, after, false);
    const int64_t n = (o->top + 1) * (o->demanded + 1);
    *first = required ? one : lt_gast_alt2(g, one, lt_gschema_named(o->r, *first));
    if (n == 1 && !o->counted && !required) { /* As below, but with one copy of the rest. */
        after[0] = lt_gschema_named(
            o->r,
            lt_gast_seq2(
                g,
                lt_gast_repeat(g, lt_gast_seq2(g, lt_gschema_comma(o->r), o->m->v[i].pair), 0, 1),
                after[0]));
        return;
    }
    /* In ascending order of counts, since each needs the one above. */
    for (int64_t k = 0; k < n && !g->failed; k++) {
        const lt_gid with = write_member(o, i, k / (o->demanded + 1),
                                         (unsigned)(k % (o->demanded + 1)), after, true);
        /* No later count reads after[k]. */
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

/* Remove impossible members; *never: one of them is required. */
static lt_err settle_members(lt_gschema_reader *r, const lt_gshape *s, lt_gmembers *m,
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
            r,
            lt_gmember_pair(r, lt_gjson_content(r->g, m->v[i].name, strlen(m->v[i].name)), value));
        LT_TRY(lt_gmember_meet(r, s, &m->v[kept]));
        *n_required += m->v[kept++].required;
    }
    m->n = kept;
    return LT_OK;
}

/* others_too: members that are not listed are allowed. */
static lt_err body_of(lt_gschema_reader *r, const lt_gshape *s, lt_gmembers *m, lt_gid *out,
                      bool *others_too) {
    lt_gothers rest;
    order o = {.r = r, .m = m, .rest = &rest, .min = s->min_members, .max = s->max_members};
    int64_t n_required, total;
    bool never;
    for (const lt_gpart *p = s->some; p != NULL; p = p->next) {
        if (o.demanded >> (LT_GDEMANDS - 1) != 0) {
            return lt_gschema_refuse(r, "not", "of what rules other members, four times at once,");
        }
        o.demanded = o.demanded << 1 | 1;
    }
    LT_TRY(lt_gmembers_list(r, s, m));
    LT_TRY(lt_gmembers_others(r, s, m, &rest));
    *others_too = rest.all >= 0;
    LT_TRY(settle_members(r, s, m, &n_required, &never));
    total = rest.most + (int64_t)m->n;
    o.max = o.max >= total ? LT_GINF : o.max;
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
    lt_gmembers m = {.index = json_object()};
    lt_gid body = -1;
    bool others_too = false;
    lt_err err = LT_OK;
    if (m.index == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "schema: an object");
    }
    LT_TRY_DONE(body_of(r, s, &m, &body, &others_too));
    body = lt_gast_seq3(g, ws, body, ws);
    *out = lt_gast_seq3(g, lt_gast_text(g, "{"), others_too ? lt_gjson_unique(g, body) : body,
                        lt_gast_text(g, "}"));
done:
    free(m.v);
    json_decref(m.index);
    return err;
}
