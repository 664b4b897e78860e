/* grammar/cache.c: configurations, stepped by bytes and masked by tokens; see grammar/impl.h.
 *
 * MASK     1. Plain tokens (grammar/vocab.c). If the same configuration follows after each of some
 *             number of plain characters, plain tokens up to that length are allowed without a
 *             check. Within a string without a length limit the configuration returns to itself,
 *             so all plain tokens are allowed.
 *          2. The other tokens, by a walk of their trie that skips subtrees which do not fit.
 *          Both are done once for a configuration; afterwards the mask is copied. */
#include "serve/grammar/impl.h"

#include <stdlib.h>
#include <string.h>

#ifndef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
/* Most (state, stack) pairs of one configuration; a grammar that needs more is too ambiguous. */
#define MAX_ITEMS 2048
#else
#define MAX_ITEMS 128
#endif
#define N_CELLS        (2 * MAX_ITEMS) /* A power of two. */
#define FEW_ITEMS      16
#define MAX_CONFIGS    50000
#define MAX_FRAMES     1000000
#define MAX_ROWS_BYTES ((size_t)128 << 20)
#define MAX_MASK_BYTES ((size_t)128 << 20)
#define FEW_IDS        1024 /* Masks with at most this many ids are stored as ids. */
#define UNKNOWN        (-2)

/* ---- stacks ---- */

static uint32_t mix(uint32_t h, int32_t x) {
    h = (h ^ (uint32_t)x) * 0x9E3779B1u;
    return h ^ (h >> 15);
}

static uint32_t hash_frame(const lt_gframe *f) {
    return mix(mix(mix(mix(17, f->ret), f->loop), f->count), f->parent);
}

static lt_err grow_table(int32_t **table, size_t *cells) {
    const size_t n = *cells == 0 ? 1024 : *cells * 2;
    int32_t *t = malloc(n * sizeof *t);
    if (t == NULL) {
        LT_FAIL(LT_ERR_OOM, "grammar: table of %zu", n);
    }
    memset(t, 0xFF, n * sizeof *t);
    free(*table);
    *table = t;
    *cells = n;
    return LT_OK;
}

static lt_err frame_of(lt_gcache *c, lt_gframe f, int32_t *out) {
    size_t at;
    if (c->n_frames * 2 >= c->frame_cells) {
        LT_TRY(grow_table(&c->frame_table, &c->frame_cells));
        for (size_t i = 0; i < c->n_frames; i++) {
            at = hash_frame(&c->frames[i]) & (c->frame_cells - 1);
            while (c->frame_table[at] >= 0) {
                at = (at + 1) & (c->frame_cells - 1);
            }
            c->frame_table[at] = (int32_t)i;
        }
    }
    at = hash_frame(&f) & (c->frame_cells - 1);
    for (; c->frame_table[at] >= 0; at = (at + 1) & (c->frame_cells - 1)) {
        const lt_gframe *g = &c->frames[c->frame_table[at]];
        if (g->ret == f.ret && g->loop == f.loop && g->count == f.count && g->parent == f.parent) {
            *out = c->frame_table[at];
            return LT_OK;
        }
    }
    if (c->n_frames >= MAX_FRAMES * 2) {
        LT_FAIL(LT_ERR_LIMIT, "grammar: stacks of %zu frames", c->n_frames);
    }
    if (!LT_GROW(c, frames)) {
        return LT_ERR_OOM;
    }
    c->frames[c->n_frames] = f;
    c->frame_table[at] = (int32_t)c->n_frames;
    *out = (int32_t)c->n_frames++;
    return LT_OK;
}

/* ---- configurations ---- */

/* The cell of an item of the work list, or the free one where it belongs. */
static lt_gcell *cell_of(const lt_gcache *c, int32_t state, int32_t stack) {
    size_t at = mix(mix(17, state), stack) & (N_CELLS - 1);
    for (; c->cells[at].list == c->n_lists; at = (at + 1) & (N_CELLS - 1)) {
        const lt_gitem *w = &c->work[c->cells[at].item];
        if (w->state == state && w->stack == stack) {
            break;
        }
    }
    return &c->cells[at];
}

/* Insert all items of the work list into the table; those of earlier lists are no longer valid. */
static lt_err fill_table(lt_gcache *c) {
    if (c->cells == NULL) {
        c->cells = calloc(N_CELLS, sizeof *c->cells);
        if (c->cells == NULL) {
            LT_FAIL(LT_ERR_OOM, "grammar: table of %d", N_CELLS);
        }
    }
    if (++c->n_lists == 0) {
        memset(c->cells, 0, N_CELLS * sizeof *c->cells);
        c->n_lists = 1;
    }
    for (size_t i = 0; i < c->n_work; i++) {
        *cell_of(c, c->work[i].state, c->work[i].stack) = (lt_gcell){c->n_lists, (int32_t)i};
    }
    return LT_OK;
}

/* Add an item to the work list, unless it is there. A short list is searched; a longer one has a
 * table. */
static lt_err visit(lt_gcache *c, int32_t state, int32_t stack) {
    lt_gcell *cell = NULL;
    if (c->n_work > FEW_ITEMS) {
        cell = cell_of(c, state, stack);
        if (cell->list == c->n_lists) {
            return LT_OK;
        }
    }
    for (size_t i = 0; cell == NULL && i < c->n_work; i++) {
        if (c->work[i].state == state && c->work[i].stack == stack) {
            return LT_OK;
        }
    }
    if (c->n_work >= MAX_ITEMS) {
        LT_FAIL(LT_ERR_LIMIT, "grammar: more than %d ways to read the text so far", MAX_ITEMS);
    }
    if (!LT_GROW(c, work)) {
        return LT_ERR_OOM;
    }
    if (cell != NULL) {
        *cell = (lt_gcell){c->n_lists, (int32_t)c->n_work};
    }
    c->work[c->n_work++] = (lt_gitem){state, stack};
    return c->n_work == FEW_ITEMS + 1 ? fill_table(c) : LT_OK;
}

/* The rule at the top of the stack has ended. */
static lt_err finish_rule(const lt_gprogram *p, lt_gcache *c, int32_t stack) {
    const lt_gframe f = c->frames[stack];
    int32_t count = f.count + 1, again;
    if (stack == 0) {
        c->work_accept = true;
        return LT_OK;
    }
    if (f.loop < 0) {
        return visit(c, f.ret, f.parent);
    }
    if (count >= p->loop_min[f.loop]) {
        LT_TRY(visit(c, f.ret, f.parent));
    }
    if (count < p->loop_max[f.loop]) {
        count = p->loop_max[f.loop] == LT_GINF && count > p->loop_min[f.loop] ? p->loop_min[f.loop]
                                                                              : count;
        LT_TRY(frame_of(c, (lt_gframe){f.ret, f.loop, count, f.parent}, &again));
        return visit(c, p->loop_start[f.loop], again);
    }
    return LT_OK;
}

static lt_err call(const lt_gprogram *p, lt_gcache *c, lt_gcall to, int32_t stack) {
    const int32_t loop = to.callee < 0 ? ~to.callee : -1;
    int32_t inner = stack;
    if (loop >= 0 && p->loop_min[loop] == 0) {
        LT_TRY(visit(c, to.to, stack));
    }
    if (loop >= 0 || !p->tail[to.to]) {
        LT_TRY(frame_of(c, (lt_gframe){to.to, loop, 0, stack}, &inner));
    }
    return visit(c, loop >= 0 ? p->loop_start[loop] : to.callee, inner);
}

static int by_item(const void *a, const void *b) {
    const lt_gitem *x = a, *y = b;
    return x->state != y->state ? (x->state > y->state) - (x->state < y->state)
                                : (x->stack > y->stack) - (x->stack < y->stack);
}

static uint32_t hash_items(const lt_gitem *v, size_t n, bool accept, unsigned marks) {
    uint32_t h = marks * 2 + accept;
    for (size_t i = 0; i < n; i++) {
        h = mix(mix(h, v[i].state), v[i].stack);
    }
    return h;
}

static unsigned marks_of(const lt_gconfig *f) {
    return (f->in_names ? LT_GMARK_NAMES : 0u) | (f->starts_json ? LT_GMARK_JSON : 0u) |
           (f->starts_unique ? LT_GMARK_UNIQUE : 0u);
}

/* The configuration of everything that the work list reaches without reading a byte; -1: nothing
 * can follow, and the text may not end. */
static lt_err settle(lt_grammar *g, int32_t *out) {
    const lt_gprogram *p = &g->program;
    lt_gcache *c = &g->cache;
    size_t n = 0, at;

    for (size_t i = 0; i < c->n_work; i++) {
        const lt_gitem item = c->work[i];
        const lt_gstate *s = &p->d.states[item.state];
        if (s->accept) {
            LT_TRY(finish_rule(p, c, item.stack));
        }
        for (int32_t k = 0; k < s->n_calls; k++) {
            LT_TRY(call(p, c, p->d.calls[s->call + k], item.stack));
        }
    }
    for (size_t i = 0; i < c->n_work; i++) { /* Keep only states that read bytes. */
        c->work_marks |= p->marks[c->work[i].state];
        if (p->d.states[c->work[i].state].n_edges > 0) {
            c->work[n++] = c->work[i];
        }
    }
    *out = -1;
    if (n == 0 && !c->work_accept) {
        return LT_OK;
    }
    if (n > 0) {
        qsort(c->work, n, sizeof *c->work, by_item);
    }
    if (c->n_configs * 2 >= c->config_cells) {
        LT_TRY(grow_table(&c->config_table, &c->config_cells));
        for (size_t i = 0; i < c->n_configs; i++) {
            const lt_gconfig *f = &c->configs[i];
            at = hash_items(c->items + f->item, (size_t)f->n_items, f->accept, marks_of(f)) &
                 (c->config_cells - 1);
            while (c->config_table[at] >= 0) {
                at = (at + 1) & (c->config_cells - 1);
            }
            c->config_table[at] = (int32_t)i;
        }
    }
    at = hash_items(c->work, n, c->work_accept, c->work_marks) & (c->config_cells - 1);
    for (; c->config_table[at] >= 0; at = (at + 1) & (c->config_cells - 1)) {
        const lt_gconfig *f = &c->configs[c->config_table[at]];
        if (f->accept == c->work_accept && marks_of(f) == c->work_marks &&
            (size_t)f->n_items == n &&
            (n == 0 || memcmp(c->items + f->item, c->work, n * sizeof *c->work) == 0)) {
            *out = c->config_table[at];
            return LT_OK;
        }
    }
    if (!LT_GROW(c, configs)) {
        return LT_ERR_OOM;
    }
    c->configs[c->n_configs] = (lt_gconfig){.item = c->n_items,
                                            .n_items = (int32_t)n,
                                            .accept = c->work_accept,
                                            .in_names = (c->work_marks & LT_GMARK_NAMES) != 0,
                                            .starts_json = (c->work_marks & LT_GMARK_JSON) != 0,
                                            .starts_unique = (c->work_marks & LT_GMARK_UNIQUE) != 0,
                                            .row = -1,
                                            .n_mask = -1};
    for (size_t i = 0; i < n; i++) {
        if (!LT_GROW(c, items)) {
            return LT_ERR_OOM;
        }
        c->items[c->n_items++] = c->work[i];
    }
    c->config_table[at] = (int32_t)c->n_configs;
    *out = (int32_t)c->n_configs++;
    return LT_OK;
}

static void begin(lt_gcache *c) {
    c->n_work = 0;
    c->work_accept = false;
    c->work_marks = 0;
}

static int32_t edge_to(const lt_gdfa *d, int32_t state, uint8_t byte) {
    const lt_gedge *e = d->edges + d->states[state].edge;
    int32_t lo = 0, hi = d->states[state].n_edges; /* The first edge with hi >= byte. */
    while (lo < hi) {
        const int32_t mid = (lo + hi) / 2;
        if (e[mid].hi < byte) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < d->states[state].n_edges && e[lo].lo <= byte ? e[lo].to : -1;
}

static lt_err compute_step(lt_grammar *g, int32_t config, uint8_t byte, int32_t *out) {
    lt_gcache *c = &g->cache;
    const size_t first = c->configs[config].item;
    begin(c);
    for (int32_t i = 0; i < c->configs[config].n_items; i++) {
        const lt_gitem item = c->items[first + (size_t)i];
        const int32_t to = edge_to(&g->program.d, item.state, byte);
        if (to >= 0) {
            LT_TRY(visit(c, to, item.stack));
        }
    }
    return settle(g, out);
}

static lt_err new_row(lt_grammar *g, int32_t config) {
    lt_gcache *c = &g->cache;
    const size_t width = (size_t)g->program.n_classes;
    if (!lt_grow((void **)&c->rows, c->n_rows, &c->rows_room, width * sizeof *c->rows)) {
        return LT_ERR_OOM;
    }
    for (size_t i = 0; i < width; i++) {
        c->rows[c->n_rows * width + i] = UNKNOWN;
    }
    c->configs[config].row = (int32_t)c->n_rows++;
    return LT_OK;
}

lt_err lt_gcache_step(lt_grammar *g, int32_t config, uint8_t byte, int32_t *out) {
    lt_gcache *c = &g->cache;
    const size_t width = (size_t)g->program.n_classes, class = g->program.classes[byte];
    if (c->configs[config].row < 0) {
        LT_TRY(new_row(g, config));
    }
    *out = c->rows[(size_t)c->configs[config].row * width + class];
    if (*out == UNKNOWN) {
        LT_TRY(compute_step(g, config, byte, out));
        c->rows[(size_t)c->configs[config].row * width + class] = *out;
    }
    return LT_OK;
}

/* ---- masks ---- */

typedef struct {
    uint8_t lo, hi;
} byte_range;

/* The UTF-8 encodings of plain characters, without the one-byte ones. */
static const byte_range plain_forms[][4] = {
    {{0x20, 0x21}},
    {{0x23, 0x5B}},
    {{0x5D, 0x7F}},
    {{0xC2, 0xDF}, {0x80, 0xBF}},
    {{0xE0, 0xE0}, {0xA0, 0xBF}, {0x80, 0xBF}},
    {{0xE1, 0xEC}, {0x80, 0xBF}, {0x80, 0xBF}},
    {{0xED, 0xED}, {0x80, 0x9F}, {0x80, 0xBF}},
    {{0xEE, 0xEF}, {0x80, 0xBF}, {0x80, 0xBF}},
    {{0xF0, 0xF0}, {0x90, 0xBF}, {0x80, 0xBF}, {0x80, 0xBF}},
    {{0xF1, 0xF3}, {0x80, 0xBF}, {0x80, 0xBF}, {0x80, 0xBF}},
    {{0xF4, 0xF4}, {0x80, 0x8F}, {0x80, 0xBF}, {0x80, 0xBF}}};

/* Where a state's plain characters lead: nowhere; to different places; not yet known. */
enum { PLAIN_NONE = -1, PLAIN_MIXED = -2, PLAIN_UNKNOWN = -3 };

/* Whether every text of this form leads from config to *to, which the first one sets. */
static lt_err leads_to(lt_grammar *g, int32_t config, const byte_range *form, int left, int32_t *to,
                       bool *same) {
    int class = -1;
    for (int b = form->lo; b <= form->hi && *same; b++) {
        int32_t next;
        if (g->program.classes[b] == class) {
            continue;
        }
        class = g->program.classes[b];
        LT_TRY(lt_gcache_step(g, config, (uint8_t)b, &next));
        if (next < 0) {
            *same = false;
        } else if (left > 1) {
            LT_TRY(leads_to(g, next, form + 1, left - 1, to, same)); /* At most 4 deep. */
        } else {
            *to = *to < 0 ? next : *to;
            *same = *to == next;
        }
    }
    return LT_OK;
}

/* Within one rule's automaton: where the texts of this form lead. *to: that state, or PLAIN_NONE if
 * none leads anywhere. False: they differ, or a call or the rule's end comes first. */
static bool form_leads_to(const lt_gdfa *d, int32_t state, const byte_range *form, int left,
                          int32_t *to) {
    int32_t last = -3;
    for (int b = form->lo; b <= form->hi; b++) {
        const int32_t next = edge_to(d, state, (uint8_t)b);
        int32_t end = PLAIN_UNKNOWN;
        if (next == last) {
            continue; /* Most bytes of a form have the same edge. */
        }
        last = next;
        if (next >= 0 && left > 1 &&
            (d->states[next].accept || d->states[next].n_calls > 0 ||
             !form_leads_to(d, next, form + 1, left - 1, &end))) { /* At most 4 deep. */
            return false;
        }
        end = next < 0 ? PLAIN_NONE : left == 1 ? next : end;
        if (*to == PLAIN_UNKNOWN) {
            *to = end;
        } else if (*to != end) {
            return false;
        }
    }
    return true;
}

/* Where any plain character leads from a state, within its automaton. */
static int32_t plain_state(lt_gprogram *p, int32_t state) {
    int32_t to = PLAIN_UNKNOWN;
    if (p->plain[state] != PLAIN_UNKNOWN) {
        return p->plain[state];
    }
    for (size_t i = 0; i < sizeof plain_forms / sizeof *plain_forms; i++) {
        int len = 1;
        while (len < 4 && plain_forms[i][len].hi != 0) {
            len++;
        }
        if (!form_leads_to(&p->d, state, plain_forms[i], len, &to)) {
            to = PLAIN_MIXED;
            break;
        }
    }
    return p->plain[state] = to;
}

/* As plain_next, if each item's automaton alone decides; *out PLAIN_MIXED: it does not. Most steps
 * within strings are decided in this way, without making the configurations within characters. */
static lt_err plain_by_states(lt_grammar *g, int32_t config, int32_t *out) {
    lt_gcache *c = &g->cache;
    const size_t first = c->configs[config].item;
    begin(c);
    for (int32_t i = 0; i < c->configs[config].n_items; i++) {
        const lt_gitem item = c->items[first + (size_t)i];
        const int32_t to = plain_state(&g->program, item.state);
        if (to == PLAIN_MIXED) {
            *out = PLAIN_MIXED;
            return LT_OK;
        }
        if (to >= 0) {
            LT_TRY(visit(c, to, item.stack));
        }
    }
    return settle(g, out);
}

static lt_err plain_next(lt_grammar *g, int32_t config, int32_t *out) {
    bool same = true;
    int32_t to = -1;
    if (!g->cache.configs[config].plain_known) {
        LT_TRY(plain_by_states(g, config, &to));
        if (to != PLAIN_MIXED) {
            g->cache.configs[config].plain_known = g->cache.configs[config].plain_sure = true;
            g->cache.configs[config].plain = to;
            *out = to;
            return LT_OK;
        }
        to = -1;
        for (size_t i = 0; i < sizeof plain_forms / sizeof *plain_forms && same; i++) {
            int len = 1;
            while (len < 4 && plain_forms[i][len].hi != 0) {
                len++;
            }
            LT_TRY(leads_to(g, config, plain_forms[i], len, &to, &same));
        }
        g->cache.configs[config].plain_known = true;
        g->cache.configs[config].plain = same ? to : -1;
    }
    *out = g->cache.configs[config].plain;
    return LT_OK;
}

/* How many plain characters may follow, whichever they are, at most as many as the longest plain
 * token has. *closed: no plain character can follow them. */
static lt_err plain_run(lt_grammar *g, int32_t config, int *chars, bool *closed) {
    int32_t at = config, next = -1;
    *chars = 0;
    *closed = true;
    for (;;) {
        LT_TRY(plain_next(g, at, &next));
        if (next == at || (next >= 0 && *chars + 1 >= g->vocab->max_chars)) {
            *chars = g->vocab->max_chars;
            return LT_OK;
        }
        if (next < 0) {
            break;
        }
        at = next;
        (*chars)++;
    }
    if (g->cache.configs[at].plain_sure) {
        return LT_OK; /* No plain character can follow. */
    }
    for (size_t i = 0; i < sizeof plain_forms / sizeof *plain_forms && *closed; i++) {
        for (int b = plain_forms[i][0].lo; b <= plain_forms[i][0].hi && *closed; b++) {
            LT_TRY(lt_gcache_step(g, at, (uint8_t)b, &next));
            *closed = next < 0;
        }
    }
    return LT_OK;
}

static lt_err walk(lt_grammar *g, const lt_gtrie *t, int32_t config, uint32_t *bits, int64_t *n) {
    int32_t path[LT_GTOKEN_BYTES + 1];
    const lt_gcache *c = &g->cache;
    const uint8_t *classes = g->program.classes;
    const size_t width = (size_t)g->program.n_classes;
    path[0] = config;
    for (size_t i = 0; i < t->n_nodes;) {
        const lt_gtrie_node *node = &t->nodes[i];
        const int32_t from = path[node->depth], row = c->configs[from].row;
        int32_t next = row >= 0 ? c->rows[(size_t)row * width + classes[node->byte]] : UNKNOWN;
        if (next == UNKNOWN) {
            LT_TRY(lt_gcache_step(g, from, node->byte, &next));
        }
        if (next < 0) {
            i = (size_t)node->skip;
            continue;
        }
        for (int32_t k = 0; k < node->n_tokens; k++) {
            const int32_t id = t->ids[node->token + k];
            bits[id / 32] |= UINT32_C(1) << (id % 32);
            (*n)++;
        }
        path[node->depth + 1] = next;
        i++;
    }
    return LT_OK;
}

static lt_err keep_mask(lt_grammar *g, int32_t config, const uint32_t *bits, int64_t n) {
    const size_t words = (size_t)g->vocab->n_words;
    const size_t bytes = n <= FEW_IDS ? ((size_t)n + 1) * sizeof(int32_t) : words * sizeof *bits;
    void *mask = malloc(bytes);
    int32_t *ids = mask;
    if (mask == NULL) {
        LT_FAIL(LT_ERR_OOM, "grammar: a mask of %zu bytes", bytes);
    }
    if (n > FEW_IDS) {
        memcpy(mask, bits, bytes);
    } else {
        for (size_t w = 0; w < words; w++) {
            for (uint32_t x = bits[w]; x != 0; x &= x - 1) {
                *ids++ = (int32_t)(w * 32) + __builtin_ctz(x);
            }
        }
    }
    g->cache.configs[config].mask = mask;
    g->cache.configs[config].n_mask = (int32_t)n;
    g->cache.mask_bytes += bytes;
    return LT_OK;
}

/* Many positions of a counted repetition are equivalent for the tokens of the second trie: if they
 * are far enough from both bounds, the one with the lowest count represents all. */
static lt_err alike(lt_grammar *g, int32_t config, int32_t *out) {
    lt_gcache *c = &g->cache;
    const lt_gprogram *p = &g->program;
    const lt_gconfig f = c->configs[config];
    const int32_t stack = f.n_items > 0 ? c->items[f.item].stack : 0;
    const int64_t reach = g->vocab->rest_reach;
    lt_gframe top = c->frames[stack];
    int32_t other;
    *out = config;
    if (stack == 0 || top.loop < 0 || top.count == 0 || f.accept || marks_of(&f) != 0) {
        return LT_OK;
    }
    for (int32_t i = 1; i < f.n_items; i++) {
        if (c->items[f.item + (size_t)i].stack != stack) {
            return LT_OK;
        }
    }
    const int64_t min = p->loop_min[top.loop], max = p->loop_max[top.loop];
    if (top.count + 1 + reach < min) {
        top.count = 0;
    } else if (top.count >= min && top.count + 1 + reach < max) {
        top.count = (int32_t)min;
    } else {
        return LT_OK;
    }
    LT_TRY(frame_of(c, top, &other));
    begin(c);
    for (int32_t i = 0; i < f.n_items; i++) {
        LT_TRY(visit(c, c->items[f.item + (size_t)i].state, other));
    }
    return settle(g, out);
}

/* Tokens of the second trie, from the configuration that represents this one. */
static lt_err rest_mask(lt_grammar *g, int32_t config, uint32_t *bits, int64_t *n) {
    const size_t words = (size_t)g->vocab->n_words;
    int32_t of = config;
    int64_t n_rest = 0;
    LT_TRY(alike(g, config, &of));
    if (of == config) {
        return walk(g, &g->vocab->rest, config, bits, n);
    }
    if (g->cache.configs[of].rest == NULL) {
        uint32_t *rest = calloc(words, sizeof *rest);
        lt_err err = rest == NULL ? LT_ERR_OOM : walk(g, &g->vocab->rest, of, rest, &n_rest);
        if (err != LT_OK) {
            free(rest);
            return err;
        }
        g->cache.configs[of].rest = rest;
        g->cache.configs[of].n_rest = (int32_t)n_rest;
        g->cache.mask_bytes += words * sizeof *rest;
    }
    for (size_t w = 0; w < words; w++) {
        bits[w] |= g->cache.configs[of].rest[w];
    }
    *n += g->cache.configs[of].n_rest;
    return LT_OK;
}

/* Tokens of the first trie. */
static lt_err plain_mask(lt_grammar *g, int32_t config, uint32_t *bits, int64_t *n) {
    const lt_grammar_vocab *v = g->vocab;
    int chars;
    bool closed;
    LT_TRY(plain_run(g, config, &chars, &closed));
    if (chars > 0 && (closed || chars >= v->max_chars)) {
        const int k = chars < LT_GPLAIN ? chars : LT_GPLAIN;
        memcpy(bits, v->up_to[k], (size_t)v->n_words * sizeof *bits);
        *n = v->n_up_to[k];
        for (size_t i = 0; i < v->n_longer && v->longer_chars[i] <= chars; i++) {
            bits[v->longer[i] / 32] |= UINT32_C(1) << (v->longer[i] % 32);
            (*n)++;
        }
        return LT_OK;
    }
    memset(bits, 0, (size_t)v->n_words * sizeof *bits);
    return chars > 0 || !closed ? walk(g, &v->plain, config, bits, n) : LT_OK;
}

lt_err lt_gcache_mask(lt_grammar *g, int32_t config) {
    const lt_grammar_vocab *v = g->vocab;
    uint32_t *bits = g->scratch;
    int64_t n = 0;

    if (g->cache.configs[config].n_mask >= 0) {
        return LT_OK;
    }
    LT_TRY(plain_mask(g, config, bits, &n));
    LT_TRY(rest_mask(g, config, bits, &n));
    if (g->cache.configs[config].accept) {
        for (size_t i = 0; i < v->n_ends; i++) {
            bits[v->ends[i] / 32] |= UINT32_C(1) << (v->ends[i] % 32);
            n++;
        }
    }
    return keep_mask(g, config, bits, n);
}

/* ---- life ---- */

void lt_gcache_free(lt_gcache *c) {
    for (size_t i = 0; i < c->n_configs; i++) {
        free(c->configs[i].mask);
        free(c->configs[i].rest);
    }
    free(c->frames);
    free(c->frame_table);
    free(c->items);
    free(c->configs);
    free(c->config_table);
    free(c->rows);
    free(c->work);
    free(c->cells);
    *c = (lt_gcache){0};
}

lt_err lt_gcache_open(lt_grammar *g) {
    int32_t bottom;
    g->cache = (lt_gcache){0};
    LT_TRY(frame_of(&g->cache, (lt_gframe){-1, -1, -1, -1}, &bottom));
    LT_ASSERT(bottom == 0);
    begin(&g->cache);
    LT_TRY(visit(&g->cache, g->program.start, 0));
    LT_TRY(settle(g, &g->cache.start));
    LT_ASSERT(g->cache.start >= 0);
    return LT_OK;
}

/* Move a stack of the old cache to the new one, from the bottom up. */
static lt_err move_stack(const lt_gcache *old, lt_gcache *c, int32_t stack, int32_t *out) {
    int32_t *path = NULL;
    size_t n = 0, room = 0;
    lt_err err = LT_OK;
    *out = 0;
    for (; stack != 0; stack = old->frames[stack].parent) {
        if (!lt_grow((void **)&path, n, &room, sizeof *path)) {
            err = LT_ERR_OOM;
            goto done;
        }
        path[n++] = stack;
    }
    while (n > 0) {
        lt_gframe f = old->frames[path[--n]];
        f.parent = *out;
        LT_TRY_DONE(frame_of(c, f, out));
    }
done:
    free(path);
    return err;
}

static lt_err move_state(lt_grammar *g, const lt_gcache *old, lt_grammar_state *s) {
    const lt_gconfig *f = &old->configs[s->config];
    begin(&g->cache);
    for (int32_t i = 0; i < f->n_items; i++) {
        const lt_gitem item = old->items[f->item + (size_t)i];
        int32_t stack;
        LT_TRY(move_stack(old, &g->cache, item.stack, &stack));
        LT_TRY(visit(&g->cache, item.state, stack));
    }
    g->cache.work_accept = f->accept;
    g->cache.work_marks = (uint8_t)marks_of(f);
    return settle(g, &s->config);
}

lt_err lt_gcache_trim(lt_grammar *g) {
    lt_gcache old = g->cache;
    lt_err err;
    if (old.n_configs < MAX_CONFIGS && old.n_frames < MAX_FRAMES &&
        old.mask_bytes < MAX_MASK_BYTES &&
        old.n_rows * (size_t)g->program.n_classes * sizeof *old.rows < MAX_ROWS_BYTES) {
        return LT_OK;
    }
    err = lt_gcache_open(g);
    for (lt_grammar_state *s = g->states; s != NULL && err == LT_OK; s = s->next) {
        err = move_state(g, &old, s);
    }
    lt_gcache_free(&old);
    return err;
}
