/* grammar/terms.c: sets of literals as numbers, so that each set has one rule; the memory of one
 * document. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/grammar/dfa.h"
#include "serve/grammar/schema.h"

#define MAX_TERMS 200000

/* ---- memory ---- */

#define BLOCK_BYTES ((size_t)64 << 10)
#define POOL_BYTES  ((size_t)256 << 20)

struct lt_gblock {
    lt_gblock *next;
    size_t used, room, total; /* total: of this block and all earlier ones. */
    max_align_t data[];
};

void *lt_gpool_take(lt_gpool *p, size_t bytes) {
    const size_t each = (bytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) *
                        sizeof(max_align_t);
    lt_gblock *b = p->blocks;
    void *out;
    if (b == NULL || b->room - b->used < each) {
        const size_t room = each > BLOCK_BYTES ? each : BLOCK_BYTES;
        const size_t total = room + (b != NULL ? b->total : 0);
        b = total > POOL_BYTES ? NULL : malloc(sizeof *b + room);
        if (b == NULL) {
            lt_error_set(LT_ERR_LIMIT, "schema: its shapes take over %zu bytes", total - room);
            return NULL;
        }
        *b = (lt_gblock){.next = p->blocks, .room = room, .total = total};
        p->blocks = b;
    }
    out = (unsigned char *)b->data + b->used;
    b->used += each;
    return memset(out, 0, bytes);
}

void lt_gpool_close(lt_gpool *p) {
    while (p->blocks != NULL) {
        lt_gblock *next = p->blocks->next;
        free(p->blocks);
        p->blocks = next;
    }
}

lt_err lt_gschema_make(lt_gschema_reader *r, json_t *made, const json_t **out) {
    char *text = made != NULL ? json_dumps(made, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_t *known = text != NULL ? json_object_get(r->known, text) : NULL;
    bool ok = text != NULL;
    if (ok && known == NULL) {
        ok = json_object_set(r->known, text, made) == 0;
        known = made;
    }
    free(text);
    *out = known;
    json_decref(made); /* `known` holds a reference. */
    if (!ok) {
        LT_FAIL(LT_ERR_OOM, "schema: merging");
    }
    return LT_OK;
}

/* ---- terms ---- */

static int by_literal(const void *a, const void *b) {
    const lt_glit *x = a, *y = b;
    const uintptr_t p = (uintptr_t)x->s, q = (uintptr_t)y->s;
    return p != q ? (p > q) - (p < q) : x->not -y->not ;
}

/* A schema with only a $ref stands for its target. */
static lt_err follow(lt_gschema_reader *r, const json_t **s) {
    for (int i = 0; i < 16 && json_object_size(*s) == 1; i++) {
        const json_t *ref = json_object_get(*s, "$ref");
        if (!json_is_string(ref)) {
            break;
        }
        r->at = *s;
        LT_TRY(lt_gdoc_resolve(r->doc, *s, json_string_value(ref), false, s));
    }
    return LT_OK;
}

/* Remove literals without effect; *never: no value satisfies one of them. */
static lt_err tidy(lt_gschema_reader *r, const lt_glit *lits, size_t n, lt_glit *out, size_t *n_out,
                   bool *never) {
    *n_out = 0;
    *never = false;
    for (size_t i = 0; i < n; i++) {
        lt_glit l = lits[i];
        LT_TRY(follow(r, &l.s));
        if (json_is_boolean(l.s)) {
            *never = *never || json_is_true(l.s) == l.not ;
        } else if (json_is_object(l.s) && json_object_size(l.s) == 0) {
            *never = *never || l.not ;
        } else {
            out[(*n_out)++] = l;
        }
    }
    qsort(out, *n_out, sizeof *out, by_literal);
    size_t kept = 0;
    for (size_t i = 0; i < *n_out; i++) {
        if (kept > 0 && out[kept - 1].s == out[i].s) {
            *never = *never || out[kept - 1].not != out[i].not ;
        }
        if (kept == 0 || by_literal(&out[kept - 1], &out[i]) != 0) {
            out[kept++] = out[i];
        }
    }
    *n_out = kept;
    return LT_OK;
}

static uint64_t hash_of(const lt_glit *l, size_t n) {
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ (uintptr_t)l[i].s ^ (uint64_t)l[i].not ) * 1099511628211u;
        h ^= h >> 29;
    }
    return h;
}

static lt_err grow_table(lt_gschema_reader *r) {
    const size_t cells = r->cells == 0 ? 256 : 2 * r->cells;
    int32_t *t = malloc(cells * sizeof *t);
    if (t == NULL) {
        LT_FAIL(LT_ERR_OOM, "schema: %zu terms", r->n_terms);
    }
    memset(t, 0xFF, cells * sizeof *t);
    for (size_t i = 0; i < r->n_terms; i++) {
        size_t at = (size_t)hash_of(r->terms[i].lits, r->terms[i].n) & (cells - 1);
        while (t[at] >= 0) {
            at = (at + 1) & (cells - 1);
        }
        t[at] = (int32_t)i;
    }
    free(r->table);
    r->table = t;
    r->cells = cells;
    return LT_OK;
}

/* The term of tidy literals; the term "never" has an impossible literal: NULL. */
static lt_err intern(lt_gschema_reader *r, const lt_glit *lits, size_t n, int32_t *out) {
    lt_gterm t = {.n = n, .rule = -1};
    size_t at;
    if (r->n_terms * 2 >= r->cells) {
        LT_TRY(grow_table(r));
    }
    at = (size_t)hash_of(lits, n) & (r->cells - 1);
    for (; r->table[at] >= 0; at = (at + 1) & (r->cells - 1)) {
        const lt_gterm *known = &r->terms[r->table[at]];
        size_t same = 0;
        while (known->n == n && same < n && by_literal(&known->lits[same], &lits[same]) == 0) {
            same++;
        }
        if (known->n == n && same == n) {
            *out = r->table[at];
            return LT_OK;
        }
    }
    if (r->n_terms >= MAX_TERMS) {
        LT_FAIL(LT_ERR_LIMIT, "schema: more than %d different sets of constraints", MAX_TERMS);
    }
    t.lits = lt_gpool_take(&r->pool, (n + 1) * sizeof *t.lits);
    if (t.lits == NULL || !lt_grow((void **)&r->terms, r->n_terms, &r->terms_room, sizeof t)) {
        return LT_ERR_LIMIT;
    }
    if (n > 0) {
        memcpy(t.lits, lits, n * sizeof *lits);
    }
    r->table[at] = (int32_t)r->n_terms;
    *out = (int32_t)r->n_terms;
    r->terms[r->n_terms++] = t;
    return LT_OK;
}

lt_err lt_gterm_of(lt_gschema_reader *r, const lt_glit *lits, size_t n, int32_t *out) {
    lt_err err = LT_OK;
    bool never = false;
    lt_glit *tidied = calloc(n + 1, sizeof *tidied);
    size_t n_tidied = 0;
    if (tidied == NULL) {
        LT_FAIL(LT_ERR_OOM, "schema: %zu constraints", n);
    }
    if (r->n_terms == 0) {
        const lt_glit nothing = {0};
        LT_TRY_DONE(intern(r, NULL, 0, out));
        LT_TRY_DONE(intern(r, &nothing, 1, out));
        r->terms[LT_GTERM_NEVER].expanded = true;
        r->terms[LT_GTERM_NEVER].possible = -1;
    }
    LT_TRY_DONE(tidy(r, lits, n, tidied, &n_tidied, &never));
    *out = LT_GTERM_NEVER;
    if (!never) {
        LT_TRY_DONE(intern(r, tidied, n_tidied, out));
    }
done:
    free(tidied);
    return err;
}

lt_err lt_gterm_shapes(lt_gschema_reader *r, int32_t term, const lt_gshape **out) {
    if (!r->terms[term].expanded) {
        const lt_gshape *shapes = NULL;
        /* The table of terms may move while others are created. */
        LT_TRY(lt_gexpand(r, r->terms[term].lits, r->terms[term].n, &shapes));
        r->terms[term].shapes = shapes;
        r->terms[term].expanded = true;
    }
    *out = r->terms[term].shapes;
    return LT_OK;
}

lt_err lt_gterm_rule(lt_gschema_reader *r, int32_t term, lt_gid *out) {
    if (term == LT_GTERM_ANY) {
        *out = lt_gjson_value(r->g);
        return LT_OK;
    }
    if (term == LT_GTERM_NEVER) {
        *out = lt_gast_never(r->g);
        return LT_OK;
    }
    if (r->terms[term].rule < 0) {
        /* Empty until it is defined. */
        r->terms[term].rule = lt_gast_new_rule(r->g, lt_gast_empty(r->g));
        if (!lt_grow((void **)&r->todo, r->n_todo, &r->todo_room, sizeof *r->todo)) {
            return LT_ERR_OOM;
        }
        r->todo[r->n_todo++] = term;
    }
    *out = lt_gast_ref(r->g, r->terms[term].rule);
    return lt_gast_check(r->g);
}
