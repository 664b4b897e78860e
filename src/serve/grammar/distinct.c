/* grammar/distinct.c: see grammar/distinct.h. */
#include "serve/grammar/distinct.h"

#include <stdlib.h>
#include <string.h>

#include "serve/grammar/impl.h"

/* Kinds of containers: objects with names that the schema does not list, lists of distinct items,
 * and all others; and an entry. */
typedef enum { OBJECT, UNIQUE, OTHER, ENTRY } entry_kind;

struct lt_gentry {
    lt_gentry *next; /* The entry before it, or around it. */
    int32_t n_owners;
    entry_kind kind;
    size_t n;
    char text[];
};

/* ---- The list of what is open ---- */

static void drop(lt_gentry *e) {
    while (e != NULL && --e->n_owners == 0) {
        lt_gentry *next = e->next;
        free(e);
        e = next;
    }
}

static void push(lt_gdistinct *d, entry_kind kind, const char *text, size_t n) {
    lt_gentry *e = malloc(sizeof *e + n);
    if (e == NULL) {
        d->failed = true;
        return;
    }
    *e = (lt_gentry){.next = d->open, .n_owners = 1, .kind = kind, .n = n};
    if (n > 0) {
        memcpy(e->text, text, n);
    }
    d->open = e; /* It now owns what d owned. */
}

static void pop(lt_gdistinct *d) {
    lt_gentry *e = d->open;
    d->open = e->next;
    if (d->open != NULL) {
        d->open->n_owners++;
    }
    drop(e);
}

static const lt_gentry *container(const lt_gdistinct *d) {
    const lt_gentry *e = d->open;
    while (e != NULL && e->kind == ENTRY) {
        e = e->next;
    }
    return e;
}

static void collect(lt_gdistinct *d, uint8_t byte) {
    if (!lt_grow((void **)&d->text, d->n, &d->room, 1)) {
        d->failed = true;
        return;
    }
    d->text[d->n++] = (char)byte;
}

static bool has(const lt_gdistinct *d, const char *text, size_t n) {
    for (const lt_gentry *e = d->open; e != NULL && e->kind == ENTRY; e = e->next) {
        if (e->n == n && memcmp(e->text, text, n) == 0) {
            return true;
        }
    }
    return false;
}

/* The entry is complete. */
static void complete(lt_gdistinct *d) {
    d->repeats = has(d, d->text, d->n);
    d->collects = false;
    push(d, ENTRY, d->text, d->n);
}

/* ---- Life ---- */

void lt_gdistinct_close(lt_gdistinct *d) {
    drop(d->open);
    free(d->text);
    *d = (lt_gdistinct){0};
}

void lt_gdistinct_reset(lt_gdistinct *d) {
    char *text = d->text;
    const size_t room = d->room;
    drop(d->open);
    *d = (lt_gdistinct){.text = text, .room = room};
}

void lt_gdistinct_copy(lt_gdistinct *dst, const lt_gdistinct *src) {
    char *text = dst->text;
    size_t room = dst->room;
    if (src->open != NULL) {
        src->open->n_owners++;
    }
    drop(dst->open);
    *dst = *src;
    if (src->n > room) {
        char *grown = realloc(text, src->room);
        dst->failed = dst->failed || grown == NULL;
        dst->n = grown == NULL ? 0 : src->n;
        room = grown == NULL ? room : src->room;
        text = grown == NULL ? text : grown;
    }
    if (dst->n > 0) {
        memcpy(text, src->text, dst->n);
    }
    dst->text = text;
    dst->room = room;
}

/* ---- Bytes ---- */

static bool is_space(uint8_t byte) {
    return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

static void in_string(lt_gdistinct *d, uint8_t byte) {
    const bool ends = byte == '"' && !d->escaped;
    d->escaped = byte == '\\' && !d->escaped;
    if (!ends) {
        if (d->collects) {
            collect(d, byte);
        }
        return;
    }
    d->in_string = false;
    if (d->collects) {
        const lt_gentry *in = container(d);
        /* Items keep their quotes, which distinguish "1" from 1. */
        if (in != NULL && in->kind == UNIQUE) {
            collect(d, byte);
        }
        complete(d);
    }
}

/* Handle a byte outside strings. unique: the grammar begins members or items that must be
 * distinct. */
static void outside(lt_gdistinct *d, uint8_t byte, bool unique) {
    const lt_gentry *in = container(d);
    if (d->collects && (is_space(byte) || byte == ',' || byte == ']')) {
        complete(d); /* A number, or a word. */
    }
    if (is_space(byte)) {
        return;
    }
    if (byte == '{' || byte == '[') {
        push(d, !unique ? OTHER : byte == '{' ? OBJECT : UNIQUE, NULL, 0);
        d->expects = unique;
    } else if (byte == '}' || byte == ']') {
        while (d->open != NULL && d->open->kind == ENTRY) {
            pop(d);
        }
        if (d->open != NULL) {
            pop(d);
        }
        d->expects = false;
        d->active = d->open != NULL;
    } else if (byte == ',') {
        d->expects = in != NULL && in->kind != OTHER;
    } else if (byte == '"') {
        d->in_string = true;
        d->collects = d->expects;
        d->expects = false;
        d->n = 0;
        if (d->collects && in != NULL && in->kind == UNIQUE) {
            collect(d, byte);
        }
    } else if (d->expects && in != NULL && in->kind == UNIQUE) {
        d->collects = true;
        d->expects = false;
        d->n = 0;
        collect(d, byte);
    } else if (d->collects) {
        collect(d, byte);
    }
}

void lt_gdistinct_step(const lt_grammar *g, lt_gdistinct *d, int32_t from, uint8_t byte,
                       int32_t to) {
    const lt_gconfig *before = &g->cache.configs[from];
    d->repeats = false;
    if (before->starts_json && d->open == NULL) {
        d->active = true;
        d->in_string = d->escaped = d->expects = d->collects = false;
    }
    if (!d->active) {
        return;
    }
    if (d->in_string) {
        in_string(d, byte);
    } else {
        outside(d, byte, to >= 0 && g->cache.configs[to].starts_unique);
    }
    d->repeats = d->repeats && before->in_names;
}

/* ---- What can still be spelt ---- */

/* Whether the rule, starting in this state, matches the text. */
static bool runs_through(const lt_gprogram *p, int32_t state, const char *text, size_t n) {
    for (size_t i = 0; i < n && state >= 0; i++) {
        const uint8_t c = (uint8_t)text[i];
        const lt_gstate *s = &p->d.states[state];
        state = -1;
        for (int32_t k = 0; k < s->n_edges; k++) {
            const lt_gedge *e = &p->d.edges[s->edge + k];
            state = e->lo <= c && c <= e->hi ? e->to : state;
        }
    }
    return state >= 0 && p->d.states[state].accept;
}

/* How many of the `left` texts to which the state leads are not yet entries. */
static int64_t unspelt(const lt_grammar *g, const lt_gdistinct *d, int32_t state, int64_t left,
                       const char *text, size_t n) {
    for (const lt_gentry *e = d->open; e != NULL && e->kind == ENTRY; e = e->next) {
        left -= e->n >= n && memcmp(e->text, text, n) == 0 &&
                runs_through(&g->program, state, e->text + n, e->n - n);
    }
    return left;
}

/* Whether a state reads only bytes that end an entry. */
static bool only_ends(const lt_gprogram *p, int32_t state) {
    const lt_gstate *s = &p->d.states[state];
    bool is = true;
    for (int32_t k = 0; k < s->n_edges; k++) {
        const lt_gedge *e = &p->d.edges[s->edge + k];
        for (int c = e->lo; c <= e->hi && is; c++) {
            is = c == '"' || c == ',' || c == ']' || is_space((uint8_t)c);
        }
    }
    return is;
}

/* Whether there is an entry that begins with this text and is new: whether each rule that may be
 * spelling it has more texts than those already used. */
static bool is_live(const lt_grammar *g, const lt_gdistinct *d, int32_t config, const char *text,
                    size_t n) {
    const lt_gconfig *c = &g->cache.configs[config];
    if (!c->in_names) {
        return true;
    }
    for (int32_t i = 0; i < c->n_items; i++) {
        const int32_t state = g->cache.items[c->item + (size_t)i].state;
        int64_t left = g->program.counts[state];
        if (left < 0 && only_ends(&g->program, state)) { /* The entry may be complete. */
            left = !has(d, text, n);
            /* It is the name of a listed property, or one of many names. */
        } else if (left < 0 || left >= LT_GMANY) {
            return true;
        } else {
            left = unspelt(g, d, state, left, text, n);
        }
        if (left > 0) {
            return true;
        }
    }
    return false;
}

static lt_err follow(lt_grammar *g, lt_gdistinct *d, int32_t config, const uint8_t *bytes, size_t n,
                     bool *out) {
    *out = true;
    for (size_t i = 0; i < n && *out; i++) {
        const int32_t from = config;
        LT_TRY(lt_gcache_step(g, from, bytes[i], &config));
        if (config < 0) {
            *out = false;
            return LT_OK;
        }
        lt_gdistinct_step(g, d, from, bytes[i], config);
        *out = !d->repeats;
    }
    if (*out && d->collects) {
        *out = is_live(g, d, config, d->text, d->n);
    }
    if (d->failed) {
        LT_FAIL(LT_ERR_OOM, "grammar: names");
    }
    return LT_OK;
}

lt_err lt_gdistinct_allows(lt_grammar *g, const lt_gdistinct *d, int32_t config,
                           const uint8_t *bytes, size_t n, bool *out) {
    lt_gdistinct_copy(&g->trial, d);
    return follow(g, &g->trial, config, bytes, n, out);
}

/* ---- Masks ---- */

typedef struct {
    lt_grammar *g;
    lt_gdistinct *d;
    uint32_t *bits;
    int64_t n_ids;
} masking;

static void clear(const masking *m, int64_t id) {
    if (id < m->n_ids) {
        m->bits[id / 32] &= ~(UINT32_C(1) << (id % 32));
    }
}

static void clear_node(const masking *m, const lt_gtrie *t, const lt_gtrie_node *node) {
    for (int32_t k = 0; k < node->n_tokens; k++) {
        clear(m, t->ids[node->token + k]);
    }
}

static void clear_tree(const masking *m, const lt_gtrie *t, size_t at) {
    for (size_t i = at; i < (size_t)t->nodes[at].skip; i++) {
        clear_node(m, t, &t->nodes[i]);
    }
}

/* The node of `byte` among those that begin at `at` and end before `end`; end if there is none. */
static size_t child(const lt_gtrie *t, size_t at, size_t end, uint8_t byte) {
    while (at < end && t->nodes[at].byte != byte) {
        at = (size_t)t->nodes[at].skip;
    }
    return at < end ? at : end;
}

/* Remove tokens that continue this existing entry: those after which no new entry is possible, and
 * those that complete it. */
static lt_err unspell(const masking *m, const lt_gtrie *t, int32_t config, const lt_gentry *e) {
    static const char closers[] = "\",] \n\r\t";
    const bool item = e->n > 0 && e->text[0] == '"' && container(m->d)->kind == UNIQUE;
    size_t at = 0, end = t->n_nodes;
    for (size_t i = m->d->n; i < e->n; i++) {
        at = child(t, at, end, (uint8_t)e->text[i]);
        LT_TRY(lt_gcache_step(m->g, config, (uint8_t)e->text[i], &config));
        if (at == end || config < 0) {
            return LT_OK;
        }
        if (item && i + 1 == e->n) {
            clear_tree(m, t, at);
            return LT_OK;
        }
        if (t->nodes[at].n_tokens > 0 && !is_live(m->g, m->d, config, e->text, i + 1)) {
            clear_node(m, t, &t->nodes[at]);
        }
        end = (size_t)t->nodes[at].skip;
        at++;
    }
    for (const char *c = closers; *c != 0; c++) {
        const size_t node = child(t, at, end, (uint8_t)*c);
        if (node < end && (*c == '"') == (container(m->d)->kind == OBJECT)) {
            clear_tree(m, t, node);
        }
    }
    return LT_OK;
}

/* Test each token of the mask that is among these (NULL: each token). */
static lt_err ask(const masking *m, int32_t config, const uint32_t *among) {
    const lt_grammar_vocab *v = m->g->vocab;
    for (int64_t w = 0; w * 32 < m->n_ids; w++) {
        uint32_t left = m->bits[w] & (among != NULL ? among[w] : UINT32_MAX);
        for (; left != 0; left &= left - 1) {
            const int64_t id = w * 32 + __builtin_ctz(left);
            bool fits = true;
            if (id < m->n_ids && v->start[id + 1] > v->start[id]) {
                LT_TRY(lt_gdistinct_allows(m->g, m->d, config, v->bytes + v->start[id],
                                           v->start[id + 1] - v->start[id], &fits));
            }
            if (!fits) {
                clear(m, id);
            }
        }
    }
    return LT_OK;
}

lt_err lt_gdistinct_mask(lt_grammar *g, lt_gdistinct *d, int32_t config, uint32_t *bits,
                         int64_t n_ids) {
    const lt_grammar_vocab *v = g->vocab;
    const lt_gentry *in = container(d);
    const masking m = {g, d, bits, n_ids < v->n_ids ? n_ids : v->n_ids};
    if (d->failed) {
        LT_FAIL(LT_ERR_OOM, "grammar: names");
    }
    if (!d->active || in == NULL || in->kind == OTHER) {
        return LT_OK;
    }
    if (d->collects) {
        for (const lt_gentry *e = d->open; e->kind == ENTRY; e = e->next) {
            if (e->n >= d->n && memcmp(e->text, d->text, d->n) == 0) {
                LT_TRY(unspell(&m, &v->plain, config, e));
                LT_TRY(unspell(&m, &v->rest, config, e));
            }
        }
    } else if (d->expects && g->program.few_names && d->open->kind == ENTRY) {
        return ask(&m, config, NULL); /* A token may begin an entry that cannot end. */
    }
    return ask(&m, config, v->several);
}
