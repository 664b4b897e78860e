/* grammar/language.c: see grammar/language.h. */
#include "serve/grammar/language.h"

#include <stdlib.h>
#include <string.h>

/* The automaton of a tree without recursive calls. */
static lt_err automaton(lt_gast *g, lt_gid node, lt_gdfa *out) {
    lt_gplan plan = {.ast = g};
    lt_err err = LT_OK;
    plan.inlined = malloc(g->n_rules + 1);
    plan.sizes = calloc(g->n_rules + 1, sizeof *plan.sizes);
    if (plan.inlined == NULL || plan.sizes == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "schema: a pattern");
    }
    memset(plan.inlined, 1, g->n_rules + 1);
    plan.work = g->work;
    LT_TRY_DONE(lt_gdfa_regular(out, &plan, node));
    g->work = plan.work;
done:
    free(plan.inlined);
    free(plan.sizes);
    free(plan.loops);
    return err;
}

lt_err lt_glanguage_has(lt_gast *g, lt_gid node, const char *text, size_t bytes, bool *out) {
    lt_gdfa d = {0};
    int32_t at = 0;
    LT_TRY(automaton(g, node, &d));
    for (size_t i = 0; i < bytes && at >= 0; i++) {
        const uint8_t c = (uint8_t)text[i];
        const lt_gstate s = d.states[at];
        at = -1;
        for (int32_t k = 0; k < s.n_edges; k++) {
            const lt_gedge *e = &d.edges[s.edge + k];
            at = e->lo <= c && c <= e->hi ? e->to : at;
        }
    }
    *out = at >= 0 && d.states[at].accept;
    lt_gdfa_free(&d);
    return LT_OK;
}

/* States from which an accepting one can be reached. */
static void mark_live(const lt_gdfa *d, bool *live) {
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = d->n_states; i-- > 0;) {
            const lt_gstate *s = &d->states[i];
            bool is = s->accept;
            for (int32_t k = 0; k < s->n_edges && !is; k++) {
                is = live[d->edges[s->edge + k].to];
            }
            changed = changed || is != live[i];
            live[i] = is;
        }
    }
}

/* Sum over the edges of state i, whose targets all have counts: -1 means infinitely many. */
static int64_t sum_of(const lt_gdfa *d, size_t i, const bool *live, int64_t most,
                      const int64_t *counts) {
    const lt_gstate *s = &d->states[i];
    int64_t sum = s->accept;
    for (int32_t k = 0; k < s->n_edges; k++) {
        const lt_gedge *e = &d->edges[s->edge + k];
        if (live[e->to]) {
            const int64_t width = e->hi - e->lo + 1;
            if (counts[e->to] < 0 || counts[e->to] > most / width) {
                return most;
            }
            sum = sum + width * counts[e->to] > most ? most : sum + width * counts[e->to];
        }
    }
    return sum;
}

lt_err lt_gdfa_counts(const lt_gdfa *d, int64_t most, int64_t *out) {
    const size_t n = d->n_states;
    bool *live = calloc(n + 1, sizeof *live), changed = true;
    if (live == NULL) {
        LT_FAIL(LT_ERR_OOM, "grammar: %zu states", n);
    }
    mark_live(d, live);
    for (size_t i = 0; i < n; i++) {
        out[i] = live[i] ? -1 : 0;
    }
    /* Start from the ends: a state is counted when all its targets are. The remaining states lead
     * to a loop and have infinitely many texts. Later states are mostly nearer to the end, so few
     * rounds suffice. */
    while (changed) {
        changed = false;
        for (size_t i = n; i-- > 0;) {
            const lt_gstate *s = &d->states[i];
            bool ready = out[i] < 0;
            for (int32_t k = 0; k < s->n_edges && ready; k++) {
                ready = out[d->edges[s->edge + k].to] >= 0;
            }
            if (ready) {
                out[i] = sum_of(d, i, live, most, out);
                changed = true;
            }
        }
    }
    for (size_t i = 0; i < n; i++) {
        out[i] = out[i] < 0 ? most : out[i];
    }
    free(live);
    return LT_OK;
}

lt_err lt_glanguage_count(lt_gast *g, lt_gid node, int64_t most, size_t *out) {
    lt_gdfa d = {0};
    lt_err err = LT_OK;
    int64_t *counts = NULL;
    LT_TRY(automaton(g, node, &d));
    counts = calloc(d.n_states + 1, sizeof *counts);
    if (counts == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "grammar: %zu states", d.n_states);
    }
    LT_TRY_DONE(lt_gdfa_counts(&d, most, counts));
    *out = (size_t)counts[0];
done:
    free(counts);
    lt_gdfa_free(&d);
    return err;
}

/* The value of a text between quotes. */
static json_t *unquoted(const char *text, size_t n) {
    char *quoted = malloc(n + 3);
    json_t *out = NULL;
    if (quoted != NULL) {
        quoted[0] = quoted[n + 1] = '"';
        memcpy(quoted + 1, text, n);
        out = json_loadb(quoted, n + 2, JSON_DECODE_ANY, NULL);
    }
    free(quoted);
    return out;
}

lt_err lt_glanguage_list(lt_gast *g, lt_gid node, size_t most, json_t **out) {
    enum { LONGEST = 4096 };
    struct level {
        int32_t state, edge;
        int byte; /* The current byte of that edge; 256: none. */
    } *path = calloc(LONGEST + 1, sizeof *path);
    char *text = malloc(LONGEST + 1);
    lt_gdfa d = {0};
    size_t depth = 0;
    lt_err err = LT_OK;
    int64_t *counts = NULL;
    *out = json_array();
    if (path == NULL || text == NULL || *out == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "schema: names");
    }
    LT_TRY_DONE(automaton(g, node, &d));
    counts = calloc(d.n_states + 1, sizeof *counts);
    if (counts == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "grammar: %zu states", d.n_states);
    }
    LT_TRY_DONE(lt_gdfa_counts(&d, LT_GINF, counts));
    path[0] = (struct level){0, -1, 256};
    for (;;) { /* Depth first; a level is left after the last byte of its last edge. */
        struct level *l = &path[depth];
        const lt_gstate *s = &d.states[l->state];
        if (l->edge < 0 && s->accept && json_array_size(*out) < most) {
            json_array_append_new(*out, unquoted(text, depth));
        }
        if (l->edge >= 0 && l->byte < d.edges[s->edge + l->edge].hi) {
            l->byte++;
        } else if (++l->edge < s->n_edges) {
            l->byte = d.edges[s->edge + l->edge].lo;
        } else if (depth-- == 0) {
            break;
        } else {
            continue;
        }
        const int32_t to = d.edges[s->edge + l->edge].to;
        if (counts[to] > 0 && depth + 1 < LONGEST) {
            text[depth++] = (char)l->byte;
            path[depth] = (struct level){to, -1, 256};
        }
    }
done:
    lt_gdfa_free(&d);
    free(counts);
    free(path);
    free(text);
    return err;
}
