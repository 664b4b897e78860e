/* grammar/product.c: nodes built from complete automata: the intersection or difference of two, one
 * restricted to a number of characters, one with its anchors erased, and one that a reader wrote
 * out. */
#include <stdlib.h>
#include <string.h>

#include "serve/grammar/nfa.h"

/* Where the byte lo leads from this state (-1: nowhere); *hi is lowered to the last byte with the
 * same target. *at advances through the state's edges as lo rises. */
static int32_t run_from(const lt_gdfa *d, int32_t state, int lo, int32_t *at, int *hi) {
    const int32_t n = state >= 0 ? d->states[state].n_edges : 0;
    const lt_gedge *e = n > 0 ? d->edges + d->states[state].edge : NULL;
    int end = 255;
    int32_t to = -1;
    while (*at < n && e[*at].hi < lo) {
        (*at)++;
    }
    if (*at < n) {
        to = e[*at].lo <= lo ? e[*at].to : -1;
        end = e[*at].lo <= lo ? e[*at].hi : e[*at].lo - 1;
    }
    *hi = end < *hi ? end : *hi;
    return to;
}

typedef struct {
    int32_t x, y, state;
} product_state;

/* The state of (x, y) in the automaton that is built, created if new. The table has open addressing
 * and a power of two of slots. */
static lt_err product_find(lt_gnfa *n, product_state **list, size_t *n_list, size_t *room,
                           int32_t **table, size_t *cells, int32_t x, int32_t y, int32_t *out) {
    size_t at;
    if (*n_list * 2 >= *cells) {
        const size_t grown = *cells == 0 ? 256 : *cells * 2;
        free(*table);
        *table = malloc(grown * sizeof **table);
        if (*table == NULL) {
            LT_FAIL(LT_ERR_OOM, "grammar: product of %zu states", *n_list);
        }
        memset(*table, 0xFF, grown * sizeof **table);
        *cells = grown;
        for (size_t i = 0; i < *n_list; i++) {
            at = ((size_t)(*list)[i].x * 31 + (size_t)((*list)[i].y + 1) * 2654435761u) &
                 (grown - 1);
            while ((*table)[at] >= 0) {
                at = (at + 1) & (grown - 1);
            }
            (*table)[at] = (int32_t)i;
        }
    }
    at = ((size_t)x * 31 + (size_t)(y + 1) * 2654435761u) & (*cells - 1);
    while ((*table)[at] >= 0) {
        const product_state *s = &(*list)[(*table)[at]];
        if (s->x == x && s->y == y) {
            *out = s->state;
            return LT_OK;
        }
        at = (at + 1) & (*cells - 1);
    }
    if (!lt_grow((void **)list, *n_list, room, sizeof **list)) {
        return LT_ERR_OOM;
    }
    LT_TRY(lt_gnfa_state(n, out));
    (*table)[at] = (int32_t)*n_list;
    (*list)[(*n_list)++] = (product_state){x, y, *out};
    return LT_OK;
}

/* Walk both automata at once, and write the pairs into b's. MINUS: the second may have no state (y
 * -1). */
static lt_err build_product(lt_gbuilder *b, const lt_gdfa *x, const lt_gdfa *y, bool minus,
                            int32_t from, int32_t to) {
    lt_err err = LT_OK;
    product_state *list = NULL;
    int32_t *table = NULL, at, next;
    size_t n_list = 0, room = 0, cells = 0;

    LT_TRY_DONE(product_find(b->n, &list, &n_list, &room, &table, &cells, 0, 0, &at));
    LT_TRY_DONE(lt_gnfa_empty(b->n, from, at));
    for (size_t i = 0; i < n_list; i++) {
        const product_state s = list[i];
        const bool second = s.y >= 0 && y->states[s.y].accept;
        if (x->states[s.x].accept && second != minus) {
            LT_TRY_DONE(lt_gnfa_empty(b->n, s.state, to));
        }
        int32_t ex = 0, ey = 0;
        for (int lo = 0, hi = 255; lo < 256; lo = hi + 1, hi = 255) {
            const int32_t tx = run_from(x, s.x, lo, &ex, &hi);
            const int32_t ty = run_from(y, s.y, lo, &ey, &hi);
            if (tx >= 0 && (ty >= 0 || minus)) {
                LT_TRY_DONE(
                    product_find(b->n, &list, &n_list, &room, &table, &cells, tx, ty, &next));
                LT_TRY_DONE(lt_gnfa_bytes(b->n, s.state, lo, hi, next));
            }
        }
    }
done:
    free(list);
    free(table);
    return err;
}

lt_err lt_gbuild_pair(lt_gbuilder *b, const lt_gnode *n, int32_t from, int32_t to) {
    lt_err err = LT_OK;
    lt_gdfa x = {0}, y = {0};
    LT_TRY_DONE(lt_gbuild_apart(b, n->a, &x));
    LT_TRY_DONE(lt_gbuild_apart(b, n->n, &y));
    LT_TRY_DONE(build_product(b, &x, &y, n->kind == LT_GNODE_MINUS, from, to));
done:
    lt_gdfa_free(&x);
    lt_gdfa_free(&y);
    return err;
}

/* Copy an automaton's states and edges into b's, with anchors as empty edges. */
lt_err lt_gbuild_erased(lt_gbuilder *b, lt_gid kid, int32_t from, int32_t to) {
    lt_gdfa d = {0};
    int32_t at;
    lt_err err = LT_OK;
    LT_TRY_DONE(lt_gbuild_apart(b, kid, &d));
    const int32_t base = (int32_t)b->n->n_head;
    for (size_t i = 0; i < d.n_states; i++) {
        LT_TRY_DONE(lt_gnfa_state(b->n, &at));
    }
    LT_TRY_DONE(lt_gnfa_empty(b->n, from, base));
    for (size_t i = 0; i < d.n_states; i++) {
        const lt_gstate *s = &d.states[i];
        if (s->accept) {
            LT_TRY_DONE(lt_gnfa_empty(b->n, base + (int32_t)i, to));
        }
        for (int32_t k = 0; k < s->n_edges; k++) {
            const lt_gedge *e = &d.edges[s->edge + k];
            for (int c = e->lo; c <= e->hi; c++) {
                if (c == LT_GANCHOR_START || c == LT_GANCHOR_END) {
                    LT_TRY_DONE(lt_gnfa_empty(b->n, base + (int32_t)i, base + e->to));
                }
            }
            if (e->lo < LT_GANCHOR_START) {
                const int hi = e->hi < LT_GANCHOR_START ? e->hi : LT_GANCHOR_START - 1;
                LT_TRY_DONE(lt_gnfa_bytes(b->n, base + (int32_t)i, e->lo, hi, base + e->to));
            }
        }
    }
done:
    lt_gdfa_free(&d);
    return err;
}

/* Both automata at once. The second restarts at each of its ends, which are counted: a state is (x,
 * y, count). Without an upper limit, the count stops at the lower one. */
static lt_err build_counted(lt_gbuilder *b, const lt_gnode *n, const lt_gdfa *x, const lt_gdfa *y,
                            int32_t from, int32_t to) {
    lt_err err = LT_OK;
    product_state *list = NULL;
    int32_t *table = NULL, at, next;
    size_t n_list = 0, room = 0, cells = 0;
    const int32_t top = n->max == LT_GINF ? n->min : n->max, width = (int32_t)y->n_states;

    if ((int64_t)(top + 1) * width > INT32_MAX / 2) {
        LT_FAIL(LT_ERR_LIMIT, "grammar: texts of up to %d characters of a pattern", top);
    }
    LT_TRY_DONE(product_find(b->n, &list, &n_list, &room, &table, &cells, 0, 0, &at));
    LT_TRY_DONE(lt_gnfa_empty(b->n, from, at));
    for (size_t i = 0; i < n_list; i++) {
        const product_state s = list[i];
        const int32_t count = s.y / width, in = s.y % width;
        int32_t ex = 0, ey = 0;
        if (in == 0 && count >= n->min && x->states[s.x].accept) {
            LT_TRY_DONE(lt_gnfa_empty(b->n, s.state, to));
        }
        for (int lo = 0, hi = 255; lo < 256 && (in > 0 || count < top || n->max == LT_GINF);
             lo = hi + 1, hi = 255) {
            const int32_t tx = run_from(x, s.x, lo, &ex, &hi);
            const int32_t ty = run_from(y, in, lo, &ey, &hi);
            if (tx >= 0 && ty >= 0) {
                const int32_t more = count < top ? count + 1 : top;
                LT_TRY_DONE(product_find(b->n, &list, &n_list, &room, &table, &cells, tx,
                                         y->states[ty].accept ? more * width : count * width + ty,
                                         &next));
                LT_TRY_DONE(lt_gnfa_bytes(b->n, s.state, lo, hi, next));
            }
        }
    }
done:
    free(list);
    free(table);
    return err;
}

lt_err lt_gbuild_length(lt_gbuilder *b, const lt_gnode *n, int32_t from, int32_t to) {
    lt_err err = LT_OK;
    lt_gdfa x = {0}, y = {0};
    LT_TRY_DONE(lt_gbuild_apart(b, n->a, &x));
    LT_TRY_DONE(lt_gbuild_apart(b, n->n, &y));
    LT_TRY_DONE(build_counted(b, n, &x, &y, from, to));
done:
    lt_gdfa_free(&x);
    lt_gdfa_free(&y);
    return err;
}

lt_err lt_gbuild_graph(lt_gbuilder *b, const lt_gnode *n, int32_t from, int32_t to) {
    const int32_t base = (int32_t)b->n->n_head;
    int32_t at;
    for (int32_t i = 0; i < n->max; i++) {
        LT_TRY(lt_gnfa_state(b->n, &at));
    }
    for (int32_t i = 0; i < n->n; i++) {
        const lt_garc *a = &b->p->ast->arcs[n->a + i];
        LT_TRY(a->to < 0 ? lt_gnfa_empty(b->n, base + a->from, to)
                         : lt_gnfa_bytes(b->n, base + a->from, a->lo, a->hi, base + a->to));
    }
    return lt_gnfa_empty(b->n, from, base);
}
