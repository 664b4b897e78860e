/* grammar/dfa.c: see grammar/dfa.h. */
#include "serve/grammar/dfa.h"

#include <stdlib.h>
#include <string.h>

#include "serve/grammar/nfa.h"

#ifndef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
#define NFA_STATES 1000000 /* Most states of one rule, including what is inlined into it. */
#define DFA_STATES 300000
/* Limit for a whole grammar, in members of subsets: it takes a fraction of a second. */
#define WORK_MAX 20000000
#else /* A small limit, because a fuzzer finds more with many small inputs. */
#define NFA_STATES 4000
#define DFA_STATES 400
#define WORK_MAX   4000
#endif
#define WRITE_OUT   6000 /* Most states of a counted repetition that is written out. */
#define SMALL_COUNT 12   /* Repetitions up to this count are written out if the body is small. */

bool lt_grow(void **data, size_t n, size_t *room, size_t each) {
    void *grown;
    size_t wanted = *room == 0 ? 32 : *room * 2;
    if (n < *room) {
        return true;
    }
    grown = realloc(*data, wanted * each);
    if (grown == NULL) {
        lt_error_set(LT_ERR_OOM, "grammar: %zu bytes", wanted * each);
        return false;
    }
    *data = grown;
    *room = wanted;
    return true;
}

void lt_gdfa_free(lt_gdfa *d) {
    free(d->states);
    free(d->edges);
    free(d->calls);
    *d = (lt_gdfa){0};
}

/* ---- sizes ---- */

static int32_t clip(int64_t x) {
    return x >= INT32_MAX - 1 ? INT32_MAX - 1 : (int32_t)x;
}

int32_t lt_gplan_size(const lt_gplan *p, lt_gid id, int depth) {
    const lt_gnode *n = &p->ast->nodes[id];
    int64_t total = 1;
    int32_t one;
    if (depth > 4 * LT_GRAMMAR_DEPTH) {
        return INT32_MAX - 1;
    }
    switch (n->kind) {
    case LT_GNODE_CHARS:
        return clip(8 * (int64_t)n->n);
    case LT_GNODE_BYTES:
        return n->n;
    case LT_GNODE_SEQ:
    case LT_GNODE_ALT:
        for (int32_t i = 0; i < n->n; i++) {
            one = lt_gplan_size(p, p->ast->kids[n->a + i], depth + 1);
            if (one == INT32_MAX) {
                return one;
            }
            total += one;
        }
        return clip(total);
    case LT_GNODE_REPEAT:
        one = lt_gplan_size(p, n->a, depth + 1);
        if (one == INT32_MAX) {
            return one;
        }
        total = (int64_t)one * (n->max == LT_GINF ? n->min + 1 : n->max);
        /* Otherwise it becomes a loop. */
        return clip(total > WRITE_OUT ? (int64_t)one + 2 : total);
    case LT_GNODE_RULE:
        return p->sizes[n->a];
    case LT_GNODE_AND:
    case LT_GNODE_MINUS:
        one = lt_gplan_size(p, n->a, depth + 1);
        total += one == INT32_MAX ? 0 : one;
        one = lt_gplan_size(p, n->n, depth + 1);
        return clip(total + (one == INT32_MAX ? 0 : one));
    case LT_GNODE_GRAPH:
        return n->max;
    case LT_GNODE_ERASE:
        return lt_gplan_size(p, n->a, depth + 1);
    case LT_GNODE_LENGTH:
        total = (int64_t)lt_gplan_size(p, n->a, depth + 1) *
                (n->max == LT_GINF ? n->min + 1 : n->max + 1);
        return clip(total);
    default:
        return 1;
    }
}

/* ---- Thompson ---- */

lt_err lt_gnfa_state(lt_gnfa *n, int32_t *out) {
    if (n->n_head >= NFA_STATES) {
        LT_FAIL(LT_ERR_LIMIT, "grammar: more than %d states", NFA_STATES);
    }
    if (!LT_GROW(n, head)) {
        return LT_ERR_OOM;
    }
    n->head[n->n_head] = -1;
    *out = (int32_t)n->n_head++;
    return LT_OK;
}

static lt_err new_edge(lt_gnfa *n, int32_t from, lt_gnedge e) {
    if (!LT_GROW(n, edges)) {
        return LT_ERR_OOM;
    }
    e.next = n->head[from];
    n->head[from] = (int32_t)n->n_edges;
    n->edges[n->n_edges++] = e;
    return LT_OK;
}

lt_err lt_gnfa_bytes(lt_gnfa *n, int32_t from, int lo, int hi, int32_t to) {
    return new_edge(
        n, from,
        (lt_gnedge){.kind = LT_GEDGE_BYTES, .lo = (uint8_t)lo, .hi = (uint8_t)hi, .to = to});
}

/* Code points lo..hi with encodings of len bytes, as sequences of byte ranges: they are split until
 * all bytes vary independently. */
static lt_err utf8_range(lt_gnfa *n, int32_t from, uint32_t lo, uint32_t hi, int len, int32_t to) {
    static const uint8_t lead[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    /* The last `tail` bytes must cover 80 to BF completely. */
    for (int tail = len - 1; tail > 0; tail--) {
        const uint32_t mask = (1u << (6 * tail)) - 1;
        if ((lo & ~mask) == (hi & ~mask)) {
            continue;
        }
        if ((lo & mask) != 0) {
            LT_TRY(utf8_range(n, from, lo, lo | mask, len, to));
            return utf8_range(n, from, (lo | mask) + 1, hi, len, to);
        }
        if ((hi & mask) != mask) {
            LT_TRY(utf8_range(n, from, lo, (hi & ~mask) - 1, len, to));
            return utf8_range(n, from, hi & ~mask, hi, len, to);
        }
    }
    for (int i = 0; i < len; i++) {
        const int shift = 6 * (len - 1 - i);
        const uint32_t a = i == 0 ? (lo >> shift) | lead[len] : ((lo >> shift) & 0x3F) | 0x80;
        const uint32_t b = i == 0 ? (hi >> shift) | lead[len] : ((hi >> shift) & 0x3F) | 0x80;
        int32_t next = to;
        LT_TRY(i + 1 < len ? lt_gnfa_state(n, &next) : LT_OK);
        LT_TRY(lt_gnfa_bytes(n, from, (int)a, (int)b, next));
        from = next;
    }
    return LT_OK;
}

static lt_err char_edges(lt_gnfa *n, int32_t from, lt_grange r, int32_t to) {
    static const uint32_t last[4] = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};
    for (int len = 1; len <= 4; len++) {
        const uint32_t first = len == 1 ? 0 : last[len - 2] + 1;
        const uint32_t lo = r.lo > first ? r.lo : first,
                       hi = r.hi < last[len - 1] ? r.hi : last[len - 1];
        if (lo > hi) {
            continue;
        }
        LT_TRY(len == 1 ? lt_gnfa_bytes(n, from, (int)lo, (int)hi, to)
                        : utf8_range(n, from, lo, hi, len, to));
    }
    return LT_OK;
}

lt_err lt_gnfa_empty(lt_gnfa *n, int32_t from, int32_t to) {
    return new_edge(n, from, (lt_gnedge){.kind = LT_GEDGE_EMPTY, .to = to});
}

static lt_err new_loop(lt_gplan *p, lt_gid body, int32_t min, int32_t max, int32_t *out) {
    for (size_t i = 0; i < p->n_loops; i++) {
        if (p->loops[i].body == body && p->loops[i].min == min && p->loops[i].max == max) {
            *out = (int32_t)i;
            return LT_OK;
        }
    }
    if (!LT_GROW(p, loops)) {
        return LT_ERR_OOM;
    }
    p->loops[p->n_loops] = (lt_gloop){.body = body, .min = min, .max = max, .rule = -1};
    *out = (int32_t)p->n_loops++;
    return LT_OK;
}

static lt_err build(lt_gbuilder *b, lt_gid id, int32_t from, int32_t to);

static lt_err build_repeat(lt_gbuilder *b, const lt_gnode *r, int32_t from, int32_t to) {
    const int32_t size = lt_gplan_size(b->p, r->a, 0);
    const int32_t copies = r->max == LT_GINF ? r->min : r->max;
    int32_t at = from, next, loop;
    if (copies > SMALL_COUNT &&
        (int64_t)size * copies > (b->regular ? 30 * WRITE_OUT : WRITE_OUT)) {
        if (b->regular) {
            LT_FAIL(LT_ERR_LIMIT,
                    "grammar: a repetition of up to %d times where it has to be written out",
                    copies);
        }
        LT_TRY(new_loop(b->p, r->a, r->min, r->max, &loop));
        return new_edge(b->n, from, (lt_gnedge){.kind = LT_GEDGE_CALL, .callee = ~loop, .to = to});
    }
    for (int32_t i = 0; i < copies; i++) {
        if (i >= r->min) {
            LT_TRY(lt_gnfa_empty(b->n, at, to));
        }
        LT_TRY(lt_gnfa_state(b->n, &next));
        LT_TRY(build(b, r->a, at, next));
        at = next;
    }
    if (r->max == LT_GINF) { /* It needs its own state, because nothing may lead back to `from`. */
        LT_TRY(lt_gnfa_state(b->n, &next));
        LT_TRY(lt_gnfa_empty(b->n, at, next));
        LT_TRY(build(b, r->a, next, next));
        at = next;
    }
    return lt_gnfa_empty(b->n, at, to);
}

static lt_err determinise(lt_gdfa *out, lt_gplan *p, const lt_gnfa *n, int32_t start,
                          int32_t final);

lt_err lt_gbuild_apart(lt_gbuilder *b, lt_gid id, lt_gdfa *out) {
    lt_err err = LT_OK;
    lt_gnfa n = {0};
    lt_gbuilder inner = {.p = b->p, .n = &n, .regular = true, .depth = b->depth};
    int32_t start, final;
    LT_TRY_DONE(lt_gnfa_state(&n, &start));
    LT_TRY_DONE(lt_gnfa_state(&n, &final));
    LT_TRY_DONE(build(&inner, id, start, final));
    LT_TRY_DONE(determinise(out, b->p, &n, start, final));
done:
    free(n.head);
    free(n.edges);
    return err;
}

static lt_err build_rule(lt_gbuilder *b, int32_t rule, int32_t from, int32_t to) {
    if (b->p->inlined[rule] || (b->regular && b->p->sizes[rule] < INT32_MAX)) {
        return build(b, b->p->ast->rules[rule].body, from, to);
    }
    if (b->regular) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "grammar: a recursive rule where only a regular one can stand");
    }
    return new_edge(b->n, from, (lt_gnedge){.kind = LT_GEDGE_CALL, .callee = rule, .to = to});
}

static lt_err build_list(lt_gbuilder *b, const lt_gnode *n, int32_t from, int32_t to) {
    for (int32_t i = 0; i < n->n; i++) {
        const lt_gid kid = b->p->ast->kids[n->a + i];
        int32_t next = to;
        if (n->kind == LT_GNODE_SEQ && i + 1 < n->n) {
            LT_TRY(lt_gnfa_state(b->n, &next));
        }
        LT_TRY(build(b, kid, from, next));
        from = n->kind == LT_GNODE_SEQ ? next : from;
    }
    return LT_OK;
}

static lt_err build_node(lt_gbuilder *b, const lt_gnode *n, int32_t from, int32_t to) {
    int32_t next;
    switch (n->kind) {
    case LT_GNODE_EMPTY:
        return lt_gnfa_empty(b->n, from, to);
    case LT_GNODE_NEVER:
        return LT_OK;
    case LT_GNODE_CHARS:
        for (int32_t i = 0; i < n->n; i++) {
            LT_TRY(char_edges(b->n, from, b->p->ast->ranges[n->a + i], to));
        }
        return LT_OK;
    case LT_GNODE_BYTES:
        for (int32_t i = 0; i < n->n; i++) {
            const int byte = b->p->ast->bytes[n->a + i];
            next = to;
            LT_TRY(i + 1 < n->n ? lt_gnfa_state(b->n, &next) : LT_OK);
            LT_TRY(lt_gnfa_bytes(b->n, from, byte, byte, next));
            from = next;
        }
        return LT_OK;
    case LT_GNODE_BYTE:
        return lt_gnfa_bytes(b->n, from, n->a, n->n, to);
    case LT_GNODE_SEQ:
    case LT_GNODE_ALT:
        return build_list(b, n, from, to);
    case LT_GNODE_REPEAT:
        return build_repeat(b, n, from, to);
    case LT_GNODE_RULE:
        return build_rule(b, n->a, from, to);
    case LT_GNODE_AND:
    case LT_GNODE_MINUS:
        return lt_gbuild_pair(b, n, from, to);
    case LT_GNODE_GRAPH:
        return lt_gbuild_graph(b, n, from, to);
    case LT_GNODE_ERASE:
        return lt_gbuild_erased(b, n->a, from, to);
    case LT_GNODE_LENGTH:
        return lt_gbuild_length(b, n, from, to);
    }
    return LT_OK;
}

static lt_err build(lt_gbuilder *b, lt_gid id, int32_t from, int32_t to) {
    const lt_gnode n = b->p->ast->nodes[id];
    lt_err err;
    if (b->depth > 8 * LT_GRAMMAR_DEPTH) {
        LT_FAIL(LT_ERR_LIMIT, "grammar: nested too deep");
    }
    b->depth++;
    err = build_node(b, &n, from, to);
    b->depth--;
    return err;
}

/* ---- subsets ---- */

typedef struct {
    const lt_gnfa *n;
    lt_gdfa *d;
    int32_t final;
    int32_t *members; /* Members of all subsets, one subset after another, each sorted. */
    size_t n_members, members_room;
    size_t *first; /* First member of subset i, with one extra entry at the end. */
    size_t n_first, first_room;
    int32_t *table; /* Hash table of the subsets, with open addressing. */
    size_t cells;
    lt_gnedge *bytes; /* The byte edges of the current subset, sorted by their first byte. */
    size_t n_bytes, bytes_room;
    uint32_t *mark, stamp; /* Per NFA state: whether this closure has reached it. */
    int32_t *set;          /* The subset under construction. */
    size_t n_set;
    uint64_t *work;
} subsets;

static int by_number(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void add(subsets *s, int32_t state) {
    if (s->mark[state] != s->stamp) {
        s->mark[state] = s->stamp;
        s->set[s->n_set++] = state;
    }
}

static void begin_set(subsets *s) {
    s->stamp++;
    s->n_set = 0;
}

static uint32_t hash_set(const int32_t *v, size_t n) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ (uint32_t)v[i]) * 16777619u;
        h ^= h >> 15;
    }
    return h;
}

static lt_err rehash(subsets *s) {
    const size_t n = s->d->n_states, grown = s->cells == 0 ? 256 : s->cells * 2;
    free(s->table);
    s->table = malloc(grown * sizeof *s->table);
    if (s->table == NULL) {
        LT_FAIL(LT_ERR_OOM, "grammar: %zu states", n);
    }
    memset(s->table, 0xFF, grown * sizeof *s->table);
    s->cells = grown;
    for (size_t i = 0; i < n; i++) {
        size_t at = hash_set(s->members + s->first[i], s->first[i + 1] - s->first[i]) & (grown - 1);
        while (s->table[at] >= 0) {
            at = (at + 1) & (grown - 1);
        }
        s->table[at] = (int32_t)i;
    }
    return LT_OK;
}

/* Close the set under empty edges and find its state, which is created if new. An empty set has no
 * state: -1. */
static lt_err end_set(subsets *s, int32_t *out) {
    size_t at;
    bool accept = false;
    for (size_t i = 0; i < s->n_set; i++) {
        for (int32_t e = s->n->head[s->set[i]]; e >= 0; e = s->n->edges[e].next) {
            if (s->n->edges[e].kind == LT_GEDGE_EMPTY) {
                add(s, s->n->edges[e].to);
            }
        }
        accept = accept || s->set[i] == s->final;
    }
    *out = -1;
    if (s->n_set == 0) {
        return LT_OK;
    }
    *s->work += s->n_set;
    qsort(s->set, s->n_set, sizeof *s->set, by_number);
    if (s->d->n_states * 2 >= s->cells) {
        LT_TRY(rehash(s));
    }
    at = hash_set(s->set, s->n_set) & (s->cells - 1);
    for (; s->table[at] >= 0; at = (at + 1) & (s->cells - 1)) {
        const int32_t i = s->table[at];
        if (s->first[i + 1] - s->first[i] == s->n_set &&
            memcmp(s->members + s->first[i], s->set, s->n_set * sizeof *s->set) == 0) {
            *out = i;
            return LT_OK;
        }
    }
    if (s->d->n_states >= DFA_STATES || s->n_members + s->n_set > (size_t)64 << 20) {
        LT_FAIL(LT_ERR_LIMIT, "grammar: more than %d states in one rule", DFA_STATES);
    }
    while (s->n_members + s->n_set > s->members_room) {
        size_t n = s->members_room; /* Grow it as if it were full. */
        if (!lt_grow((void **)&s->members, n, &s->members_room, sizeof *s->members)) {
            return LT_ERR_OOM;
        }
    }
    if (!LT_GROW(s, first) || !LT_GROW(s->d, states)) {
        return LT_ERR_OOM;
    }
    memcpy(s->members + s->n_members, s->set, s->n_set * sizeof *s->set);
    s->n_members += s->n_set;
    s->first[s->n_first++] = s->n_members;
    *out = (int32_t)s->d->n_states;
    s->table[at] = *out;
    s->d->states[s->d->n_states++] = (lt_gstate){.accept = accept};
    return LT_OK;
}

static int by_first_byte(const void *a, const void *b) {
    return ((const lt_gnedge *)a)->lo - ((const lt_gnedge *)b)->lo;
}

/* Collect the byte edges of a state's members, and the points at which they divide 0..255. */
static lt_err collect_bytes(subsets *s, int32_t state, bool cut[257]) {
    s->n_bytes = 0;
    for (size_t i = s->first[state]; i < s->first[state + 1]; i++) {
        for (int32_t e = s->n->head[s->members[i]]; e >= 0; e = s->n->edges[e].next) {
            if (s->n->edges[e].kind == LT_GEDGE_BYTES) {
                if (!LT_GROW(s, bytes)) {
                    return LT_ERR_OOM;
                }
                s->bytes[s->n_bytes++] = s->n->edges[e];
                cut[s->n->edges[e].lo] = true;
                cut[s->n->edges[e].hi + 1] = true;
            }
        }
    }
    if (s->n_bytes > 1) {
        qsort(s->bytes, s->n_bytes, sizeof *s->bytes, by_first_byte);
    }
    return LT_OK;
}

/* Byte edges of a state: cut 0..255 where any member's edges begin or end, one target set for each
 * piece. Edges become active at their first byte and are dropped after their last, so of a class of
 * hundreds of ranges (\p{L}) each range is handled a few times and not once for each piece. */
static lt_err byte_edges(subsets *s, int32_t state) {
    bool cut[257] = {false};
    int32_t to, before = -1;
    /* bytes[0, n_live) cover the piece; bytes[next, ) start after it. */
    size_t n_live = 0, next = 0;
    s->d->states[state].edge = (int32_t)s->d->n_edges;
    LT_TRY(collect_bytes(s, state, cut));
    cut[256] = true;
    for (int lo = 0, hi; lo < 256; lo = hi + 1) {
        /* It ends at 256 at the latest. */
        const bool *end = memchr(cut + lo + 1, true, (size_t)(256 - lo));
        size_t kept = 0;
        hi = (int)(end - cut) - 1;
        *s->work += s->first[state + 1] - s->first[state];
        if (*s->work > WORK_MAX) {
            LT_FAIL(LT_ERR_LIMIT,
                    "grammar: its automaton would take too long to make; the largest rule has %zu "
                    "states so far",
                    s->d->n_states);
        }
        while (next < s->n_bytes && s->bytes[next].lo <= lo) {
            s->bytes[n_live++] = s->bytes[next++];
        }
        begin_set(s);
        for (size_t i = 0; i < n_live; i++) {
            if (s->bytes[i].hi >= hi) {
                s->bytes[kept++] = s->bytes[i];
                add(s, s->bytes[i].to);
            }
        }
        n_live = kept;
        LT_TRY(end_set(s, &to));
        if (to >= 0 && to == before && s->d->edges[s->d->n_edges - 1].hi + 1 == lo) {
            s->d->edges[s->d->n_edges - 1].hi = (uint8_t)hi;
            continue;
        }
        before = to;
        if (to >= 0) {
            if (!LT_GROW(s->d, edges)) {
                return LT_ERR_OOM;
            }
            s->d->edges[s->d->n_edges++] = (lt_gedge){(uint8_t)lo, (uint8_t)hi, to};
            s->d->states[state].n_edges++;
        }
    }
    return LT_OK;
}

/* Calls of a state: one per callee, with its targets together. */
static lt_err call_edges(subsets *s, int32_t state) {
    int32_t to;
    s->d->states[state].call = (int32_t)s->d->n_calls;
    for (size_t i = s->first[state]; i < s->first[state + 1]; i++) {
        for (int32_t e = s->n->head[s->members[i]]; e >= 0; e = s->n->edges[e].next) {
            const int32_t callee = s->n->edges[e].callee;
            bool known = s->n->edges[e].kind != LT_GEDGE_CALL;
            for (int32_t c = 0; c < s->d->states[state].n_calls; c++) {
                known = known || s->d->calls[s->d->states[state].call + c].callee == callee;
            }
            if (known) {
                continue;
            }
            begin_set(s);
            for (size_t k = s->first[state]; k < s->first[state + 1]; k++) {
                for (int32_t f = s->n->head[s->members[k]]; f >= 0; f = s->n->edges[f].next) {
                    if (s->n->edges[f].kind == LT_GEDGE_CALL && s->n->edges[f].callee == callee) {
                        add(s, s->n->edges[f].to);
                    }
                }
            }
            LT_TRY(end_set(s, &to));
            if (!LT_GROW(s->d, calls)) {
                return LT_ERR_OOM;
            }
            s->d->calls[s->d->n_calls++] = (lt_gcall){callee, to};
            s->d->states[state].n_calls++;
        }
    }
    return LT_OK;
}

static lt_err determinise(lt_gdfa *out, lt_gplan *p, const lt_gnfa *n, int32_t start,
                          int32_t final) {
    lt_err err = LT_OK;
    subsets s = {.n = n, .d = out, .final = final, .work = &p->work};
    int32_t first;

    *out = (lt_gdfa){0};
    s.mark = calloc(n->n_head, sizeof *s.mark);
    s.set = malloc(n->n_head * sizeof *s.set);
    if (s.mark == NULL || s.set == NULL || !LT_GROW(&s, first)) {
        LT_FAIL_DONE(LT_ERR_OOM, "grammar: %zu states", n->n_head);
    }
    s.first[s.n_first++] = 0;
    begin_set(&s);
    add(&s, start);
    LT_TRY_DONE(end_set(&s, &first));
    for (int32_t i = 0; i < (int32_t)out->n_states; i++) {
        if (p->ast->stop != NULL && atomic_load_explicit(p->ast->stop, memory_order_relaxed)) {
            LT_FAIL_DONE(LT_ERR_STATE, "grammar: given up after %zu states", out->n_states);
        }
        LT_TRY_DONE(byte_edges(&s, i));
        LT_TRY_DONE(call_edges(&s, i));
    }
done:
    free(s.members);
    free(s.bytes);
    free(s.first);
    free(s.table);
    free(s.mark);
    free(s.set);
    if (err != LT_OK) {
        lt_gdfa_free(out);
    }
    return err;
}

static lt_err make(lt_gdfa *out, lt_gplan *p, lt_gid node, bool regular) {
    lt_err err = LT_OK;
    lt_gnfa n = {0};
    lt_gbuilder b = {.p = p, .n = &n, .regular = regular};
    int32_t start, final;
    LT_TRY_DONE(lt_gnfa_state(&n, &start));
    LT_TRY_DONE(lt_gnfa_state(&n, &final));
    LT_TRY_DONE(build(&b, node, start, final));
    LT_TRY_DONE(determinise(out, p, &n, start, final));
done:
    free(n.head);
    free(n.edges);
    return err;
}

lt_err lt_gdfa_build(lt_gdfa *out, lt_gplan *p, lt_gid node) {
    return make(out, p, node, false);
}

lt_err lt_gdfa_regular(lt_gdfa *out, lt_gplan *p, lt_gid node) {
    return make(out, p, node, true);
}
