/* grammar.c: the interface of grammar.h: open, states, masks. */
#include "serve/grammar/impl.h"

#include <stdlib.h>
#include <string.h>

lt_err lt_grammar_read(lt_gast *ast, const lt_grammar_vocab *v, lt_grammar_kind kind,
                       const char *text, size_t bytes) {
    lt_gid body;
    switch (kind) {
    case LT_GRAMMAR_GBNF:
        return lt_glark_is(text, bytes) ? lt_glark_read(ast, text, bytes)
                                        : lt_gbnf_read(ast, v, text, bytes);
    case LT_GRAMMAR_REGEX:
        LT_TRY(lt_gregex_read(ast, text, bytes, (lt_gregex_options){0}, &body));
        ast->root = lt_gast_new_rule(ast, body);
        return LT_OK;
    case LT_GRAMMAR_SCHEMA:
        return lt_gschema_read(ast, text, bytes);
    case LT_GRAMMAR_JSON:
        return lt_gjson_read(ast);
    case LT_GRAMMAR_CHOICE:
        return lt_gchoice_read(ast, text, bytes);
    }
    LT_FAIL(LT_ERR_ARG, "grammar of kind %d", (int)kind);
}

lt_err lt_grammar_open_tree(lt_grammar **out, const lt_grammar_vocab *v, lt_gast *ast) {
    lt_err err = LT_OK;
    lt_grammar *g = calloc(1, sizeof *g);

    if (g == NULL) {
        LT_FAIL(LT_ERR_OOM, "grammar");
    }
    g->vocab = v;
    atomic_init(&g->n_owners, 1);
    pthread_mutex_init(&g->lock, NULL);
    g->scratch = calloc((size_t)v->n_words + 1, sizeof *g->scratch);
    if (g->scratch == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "grammar: a mask of %lld tokens", (long long)v->n_ids);
    }
    LT_TRY_DONE(lt_gprogram_compile(&g->program, ast));
    LT_TRY_DONE(lt_gcache_open(g));
    *out = g;
    g = NULL;
done:
    lt_grammar_close(g);
    return err;
}

lt_err lt_grammar_open(lt_grammar **out, const lt_grammar_vocab *v, lt_grammar_kind kind,
                       const char *text, size_t bytes) {
    return lt_grammar_open_until(out, v, kind, text, bytes, NULL);
}

lt_err lt_grammar_open_until(lt_grammar **out, const lt_grammar_vocab *v, lt_grammar_kind kind,
                             const char *text, size_t bytes, const atomic_bool *stop) {
    lt_gast ast = {.stop = stop};
    lt_err err = lt_grammar_read(&ast, v, kind, text, bytes);
    if (err == LT_OK) {
        err = lt_grammar_open_tree(out, v, &ast);
    }
    lt_gast_free(&ast);
    return err;
}

lt_grammar *lt_grammar_hold(lt_grammar *g) {
    atomic_fetch_add(&g->n_owners, 1);
    return g;
}

size_t lt_grammar_bytes(lt_grammar *g) {
    const lt_gdfa *d = &g->program.d;
    const lt_gcache *c = &g->cache;
    size_t bytes = sizeof *g + (size_t)g->vocab->n_words * sizeof *g->scratch;
    pthread_mutex_lock(&g->lock);
    bytes += d->states_room *
                 (sizeof *d->states + sizeof *g->program.tail + sizeof *g->program.plain +
                  sizeof *g->program.marks + sizeof *g->program.counts) +
             d->edges_room * sizeof *d->edges + d->calls_room * sizeof *d->calls +
             3 * g->program.n_loops * sizeof *g->program.loop_min;
    bytes += c->frames_room * sizeof *c->frames + c->frame_cells * sizeof *c->frame_table +
             c->items_room * sizeof *c->items + c->configs_room * sizeof *c->configs +
             c->config_cells * sizeof *c->config_table +
             c->n_rows * (size_t)g->program.n_classes * sizeof *c->rows + c->mask_bytes +
             c->work_room * sizeof *c->work;
    pthread_mutex_unlock(&g->lock);
    return bytes;
}

void lt_grammar_close(lt_grammar *g) {
    if (g == NULL || atomic_fetch_sub(&g->n_owners, 1) > 1) {
        return;
    }
    LT_ASSERT(g->states == NULL);
    lt_gcache_free(&g->cache);
    lt_gprogram_free(&g->program);
    pthread_mutex_destroy(&g->lock);
    lt_gdistinct_close(&g->trial);
    free(g->scratch);
    free(g);
}

lt_err lt_grammar_state_open(lt_grammar_state **out, const lt_grammar *grammar) {
    /* The cast is safe: the cache grows, but the language does not change. */
    lt_grammar *g = (lt_grammar *)(uintptr_t)grammar;
    lt_grammar_state *s = calloc(1, sizeof *s);
    if (s == NULL) {
        LT_FAIL(LT_ERR_OOM, "grammar state");
    }
    s->g = g;
    pthread_mutex_lock(&g->lock);
    s->config = g->cache.start;
    s->next = g->states;
    if (g->states != NULL) {
        g->states->before = s;
    }
    g->states = s;
    pthread_mutex_unlock(&g->lock);
    *out = s;
    return LT_OK;
}

void lt_grammar_state_close(lt_grammar_state *s) {
    if (s == NULL) {
        return;
    }
    pthread_mutex_lock(&s->g->lock);
    *(s->before != NULL ? &s->before->next : &s->g->states) = s->next;
    if (s->next != NULL) {
        s->next->before = s->before;
    }
    lt_gdistinct_close(&s->distinct); /* Called under the lock, because copies share parts of it. */
    pthread_mutex_unlock(&s->g->lock);
    free(s);
}

void lt_grammar_state_copy(lt_grammar_state *dst, const lt_grammar_state *src) {
    LT_ASSERT(dst->g == src->g);
    pthread_mutex_lock(&dst->g->lock);
    dst->config = src->config;
    dst->ended = src->ended;
    lt_gdistinct_copy(&dst->distinct, &src->distinct);
    pthread_mutex_unlock(&dst->g->lock);
}

void lt_grammar_state_reset(lt_grammar_state *s) {
    pthread_mutex_lock(&s->g->lock);
    s->config = s->g->cache.start;
    s->ended = false;
    lt_gdistinct_reset(&s->distinct);
    pthread_mutex_unlock(&s->g->lock);
}

static void set_ends(const lt_grammar_vocab *v, uint32_t *bits, int64_t n_ids) {
    for (size_t i = 0; i < v->n_ends; i++) {
        if (v->ends[i] < n_ids) {
            bits[v->ends[i] / 32] |= UINT32_C(1) << (v->ends[i] % 32);
        }
    }
}

static void copy_mask(const lt_grammar *g, int32_t config, uint32_t *bits, int64_t n_ids) {
    const lt_gconfig *c = &g->cache.configs[config];
    const int64_t words = (n_ids + 31) / 32,
                  known = g->vocab->n_words < words ? g->vocab->n_words : words;
    const int32_t *ids = c->mask;
    if ((size_t)c->n_mask <= 1024) { /* The form in which grammar/cache.c stores them. */
        memset(bits, 0, (size_t)words * sizeof *bits);
        for (int32_t i = 0; i < c->n_mask; i++) {
            if (ids[i] < n_ids) {
                bits[ids[i] / 32] |= UINT32_C(1) << (ids[i] % 32);
            }
        }
        return;
    }
    memcpy(bits, c->mask, (size_t)known * sizeof *bits);
    memset(bits + known, 0, (size_t)(words - known) * sizeof *bits);
    if (n_ids % 32 != 0) {
        bits[words - 1] &= (UINT32_C(1) << (n_ids % 32)) - 1;
    }
}

lt_err lt_grammar_mask(lt_grammar_state *s, uint32_t *bits, int64_t n_ids) {
    lt_err err = LT_OK;
    if (s->ended) {
        memset(bits, 0, (size_t)((n_ids + 31) / 32) * sizeof *bits);
        set_ends(s->g->vocab, bits, n_ids);
        return LT_OK;
    }
    pthread_mutex_lock(&s->g->lock);
    LT_TRY_DONE(lt_gcache_trim(s->g));
    LT_TRY_DONE(lt_gcache_mask(s->g, s->config));
    copy_mask(s->g, s->config, bits, n_ids);
    if (s->g->program.has_names) {
        LT_TRY_DONE(lt_gdistinct_mask(s->g, &s->distinct, s->config, bits, n_ids));
    }
done:
    pthread_mutex_unlock(&s->g->lock);
    return err;
}

lt_err lt_grammar_accept(lt_grammar_state *s, int32_t id) {
    const lt_grammar_vocab *v = s->g->vocab;
    lt_err err = LT_OK;
    int32_t at;

    if (id < 0 || id >= v->n_ids) {
        LT_FAIL(LT_ERR_ARG, "token %d of a vocabulary of %lld", id, (long long)v->n_ids);
    }
    pthread_mutex_lock(&s->g->lock);
    at = s->config;
    for (size_t i = 0; i < v->n_ends; i++) {
        if (v->ends[i] == id) {
            if (!s->g->cache.configs[at].accept && !s->ended) {
                LT_FAIL_DONE(LT_ERR_ARG, "token %d ends a text that the grammar does not end here",
                             id);
            }
            s->ended = true;
            goto done;
        }
    }
    LT_TRY_DONE(lt_gcache_trim(s->g));
    at = s->config;
    if (s->ended || v->start[id + 1] == v->start[id]) {
        LT_FAIL_DONE(LT_ERR_ARG, "token %d cannot follow by the grammar", id);
    }
    for (size_t i = v->start[id]; i < v->start[id + 1]; i++) {
        LT_TRY_DONE(lt_gcache_step(s->g, at, v->bytes[i], &at));
        if (at < 0) {
            LT_FAIL_DONE(LT_ERR_ARG, "token %d cannot follow by the grammar", id);
        }
    }
    if (s->g->program.has_names) {
        bool fits = true;
        LT_TRY_DONE(lt_gdistinct_allows(s->g, &s->distinct, s->config, v->bytes + v->start[id],
                                        v->start[id + 1] - v->start[id], &fits));
        if (!fits) {
            LT_FAIL_DONE(LT_ERR_ARG, "token %d repeats a name or an item", id);
        }
        lt_gdistinct_copy(&s->distinct, &s->g->trial);
    }
    s->config = at;
done:
    pthread_mutex_unlock(&s->g->lock);
    return err;
}

bool lt_grammar_done(const lt_grammar_state *s) {
    bool done;
    pthread_mutex_lock(&s->g->lock);
    done = s->ended ||
           (s->g->cache.configs[s->config].accept && s->g->cache.configs[s->config].n_items == 0);
    pthread_mutex_unlock(&s->g->lock);
    return done;
}

bool lt_grammar_accepting(const lt_grammar_state *s) {
    bool is;
    pthread_mutex_lock(&s->g->lock);
    is = s->ended || s->g->cache.configs[s->config].accept;
    pthread_mutex_unlock(&s->g->lock);
    return is;
}

/* The only byte that can follow, or -1. */
static int only_byte(const lt_grammar *g, int32_t config) {
    const lt_gconfig *c = &g->cache.configs[config];
    int byte = -1;
    for (int32_t i = 0; i < c->n_items; i++) {
        const lt_gstate *s = &g->program.d.states[g->cache.items[c->item + (size_t)i].state];
        for (int32_t k = 0; k < s->n_edges; k++) {
            const lt_gedge *e = &g->program.d.edges[s->edge + k];
            if (e->lo != e->hi || (byte >= 0 && byte != e->lo)) {
                return -1;
            }
            byte = e->lo;
        }
    }
    return c->accept ? -1 : byte;
}

size_t lt_grammar_forced(lt_grammar_state *s, char *out, size_t room) {
    size_t n = 0;
    int32_t at;
    pthread_mutex_lock(&s->g->lock);
    at = s->config;
    while (!s->ended && n < room) {
        const int byte = only_byte(s->g, at);
        if (byte < 0 || byte == 0xFF || lt_gcache_step(s->g, at, (uint8_t)byte, &at) != LT_OK ||
            at < 0) {
            break;
        }
        out[n++] = (char)byte;
    }
    pthread_mutex_unlock(&s->g->lock);
    return n;
}
