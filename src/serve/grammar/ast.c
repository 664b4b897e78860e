/* grammar/ast.c: see grammar/ast.h. */
#include "serve/grammar/ast.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Make room for `more` elements after n. False, which is also recorded, if there is no memory. */
static bool reserve(lt_gast *g, void **data, size_t n, size_t *room, size_t more, size_t each) {
    size_t wanted = *room == 0 ? 64 : *room;
    void *grown;
    if (g->failed || n + more > LT_GRAMMAR_NODES * (size_t)8) {
        g->failed = true;
        return false;
    }
    if (n + more <= *room) {
        return true;
    }
    while (wanted < n + more) {
        wanted *= 2;
    }
    grown = realloc(*data, wanted * each);
    if (grown == NULL) {
        g->failed = true;
        return false;
    }
    *data = grown;
    *room = wanted;
    return true;
}

#define RESERVE(g, what, more)                                                                     \
    reserve((g), (void **)&(g)->what, (g)->n_##what, &(g)->what##_room, (more), sizeof *(g)->what)

void lt_gast_free(lt_gast *g) {
    for (size_t i = 0; i < g->n_rules; i++) {
        free(g->rules[i].name);
    }
    free(g->nodes);
    free(g->kids);
    free(g->ranges);
    free(g->bytes);
    free(g->arcs);
    free(g->rules);
    free(g->named);
    *g = (lt_gast){0};
}

lt_err lt_gast_check(const lt_gast *g) {
    if (g->failed) {
        LT_FAIL(LT_ERR_LIMIT, "grammar: too large (%zu nodes, %zu ranges so far) or out of memory",
                g->n_nodes, g->n_ranges);
    }
    return LT_OK;
}

static lt_gid new_node(lt_gast *g, lt_gnode node) {
    if (g->n_nodes >= LT_GRAMMAR_NODES || !RESERVE(g, nodes, 1)) {
        g->failed = true;
        return -1;
    }
    g->nodes[g->n_nodes] = node;
    return (lt_gid)g->n_nodes++;
}

lt_gid lt_gast_empty(lt_gast *g) {
    return new_node(g, (lt_gnode){.kind = LT_GNODE_EMPTY});
}

lt_gid lt_gast_never(lt_gast *g) {
    return new_node(g, (lt_gnode){.kind = LT_GNODE_NEVER});
}

lt_gid lt_gast_bytes(lt_gast *g, const char *s, size_t n) {
    const lt_gnode node = {.kind = LT_GNODE_BYTES, .a = (int32_t)g->n_bytes, .n = (int32_t)n};
    if (n == 0) {
        return lt_gast_empty(g);
    }
    if (!RESERVE(g, bytes, n)) {
        return -1;
    }
    memcpy(g->bytes + g->n_bytes, s, n);
    g->n_bytes += n;
    return new_node(g, node);
}

lt_gid lt_gast_text(lt_gast *g, const char *s) {
    return lt_gast_bytes(g, s, strlen(s));
}

lt_gid lt_gast_byte(lt_gast *g, int lo, int hi) {
    return new_node(g, (lt_gnode){.kind = LT_GNODE_BYTE, .a = lo, .n = hi});
}

static int by_lo(const void *a, const void *b) {
    const lt_grange *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

static void put_range(lt_gast *g, uint32_t lo, uint32_t hi) {
    g->failed = g->failed || g->n_ranges + 2 > LT_GRAMMAR_RANGES;
    if (lo <= hi && !g->failed && RESERVE(g, ranges, 2)) {
        if (lo < 0xD800 && hi > 0xDFFF) { /* Surrogates are excluded. */
            g->ranges[g->n_ranges++] = (lt_grange){lo, 0xD7FF};
            lo = 0xE000;
        } else if (lo >= 0xD800 && lo <= 0xDFFF) {
            lo = 0xE000;
        }
        hi = hi >= 0xD800 && hi <= 0xDFFF ? 0xD7FF : hi;
        if (lo <= hi) {
            g->ranges[g->n_ranges++] = (lt_grange){lo, hi};
        }
    }
}

lt_gid lt_gast_chars(lt_gast *g, const lt_grange *ranges, size_t n, bool negated) {
    const size_t first = g->n_ranges;
    lt_grange *sorted = malloc((n + 1) * sizeof *sorted);
    uint32_t next = 0; /* The first code point that is in no earlier range. */
    if (sorted == NULL) {
        g->failed = true;
        return -1;
    }
    if (n > 0) {
        memcpy(sorted, ranges, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, by_lo);
    }
    for (size_t i = 0; i < n; i++) {
        const uint32_t lo = sorted[i].lo > next ? sorted[i].lo : next;
        if (sorted[i].hi < next || sorted[i].lo > sorted[i].hi) {
            continue;
        }
        if (negated && sorted[i].lo > next) {
            put_range(g, next, sorted[i].lo - 1);
        } else if (!negated) {
            put_range(g, lo, sorted[i].hi);
        }
        next = sorted[i].hi + 1;
    }
    if (negated && next <= 0x10FFFF) {
        put_range(g, next, 0x10FFFF);
    }
    free(sorted);
    if (g->n_ranges == first) {
        return lt_gast_never(g);
    }
    return new_node(g, (lt_gnode){.kind = LT_GNODE_CHARS,
                                  .a = (int32_t)first,
                                  .n = (int32_t)(g->n_ranges - first)});
}

lt_gid lt_gast_char_range(lt_gast *g, uint32_t lo, uint32_t hi) {
    const lt_grange r = {lo, hi};
    return lt_gast_chars(g, &r, 1, false);
}

lt_gid lt_gast_list(lt_gast *g, lt_gkind kind, const lt_gid *kids, size_t n) {
    const lt_gnode node = {.kind = kind, .a = (int32_t)g->n_kids, .n = (int32_t)n};
    if (n == 0) {
        return kind == LT_GNODE_SEQ ? lt_gast_empty(g) : lt_gast_never(g);
    }
    if (n == 1) {
        return kids[0];
    }
    if (!RESERVE(g, kids, n)) {
        return -1;
    }
    for (size_t i = 0; i < n; i++) {
        if (kids[i] < 0) {
            g->failed = true;
            return -1;
        }
        g->kids[g->n_kids++] = kids[i];
    }
    return new_node(g, node);
}

lt_gid lt_gast_seq2(lt_gast *g, lt_gid a, lt_gid b) {
    return lt_gast_list(g, LT_GNODE_SEQ, (const lt_gid[]){a, b}, 2);
}

lt_gid lt_gast_seq3(lt_gast *g, lt_gid a, lt_gid b, lt_gid c) {
    return lt_gast_list(g, LT_GNODE_SEQ, (const lt_gid[]){a, b, c}, 3);
}

lt_gid lt_gast_alt2(lt_gast *g, lt_gid a, lt_gid b) {
    return lt_gast_list(g, LT_GNODE_ALT, (const lt_gid[]){a, b}, 2);
}

lt_gid lt_gast_repeat(lt_gast *g, lt_gid kid, int32_t min, int32_t max) {
    LT_ASSERT(min >= 0);
    if (kid < 0) {
        g->failed = true;
        return -1;
    }
    if (max < min) {
        return lt_gast_never(g);
    }
    if (max == 0) {
        return lt_gast_empty(g);
    }
    return min == 1 && max == 1
               ? kid
               : new_node(g, (lt_gnode){.kind = LT_GNODE_REPEAT, .a = kid, .min = min, .max = max});
}

lt_gid lt_gast_pair(lt_gast *g, lt_gkind kind, lt_gid a, lt_gid b) {
    if (a < 0 || b < 0) {
        g->failed = true;
        return -1;
    }
    return new_node(g, (lt_gnode){.kind = kind, .a = a, .n = b});
}

lt_gid lt_gast_ref(lt_gast *g, int32_t rule) {
    return rule < 0 ? -1 : new_node(g, (lt_gnode){.kind = LT_GNODE_RULE, .a = rule});
}

void lt_gast_arc(lt_gast *g, int32_t from, int lo, int hi, int32_t to) {
    if (RESERVE(g, arcs, 1)) {
        g->arcs[g->n_arcs++] = (lt_garc){from, to, (uint8_t)lo, (uint8_t)hi};
    }
}

void lt_gast_accept(lt_gast *g, int32_t state) {
    lt_gast_arc(g, state, 0, 0, -1);
}

lt_gid lt_gast_graph(lt_gast *g, int32_t first, int32_t n_states) {
    return new_node(g, (lt_gnode){.kind = LT_GNODE_GRAPH,
                                  .a = first,
                                  .n = (int32_t)g->n_arcs - first,
                                  .max = n_states});
}

lt_gid lt_gast_length(lt_gast *g, lt_gid kid, lt_gid character, int32_t min, int32_t max) {
    if (kid < 0 || character < 0) {
        g->failed = true;
        return -1;
    }
    return new_node(
        g, (lt_gnode){.kind = LT_GNODE_LENGTH, .a = kid, .n = character, .min = min, .max = max});
}

lt_gid lt_gast_erase(lt_gast *g, lt_gid kid) {
    if (kid < 0) {
        g->failed = true;
        return -1;
    }
    return new_node(g, (lt_gnode){.kind = LT_GNODE_ERASE, .a = kid});
}

int32_t lt_gast_new_rule(lt_gast *g, lt_gid body) {
    if (!RESERVE(g, rules, 1)) {
        return -1;
    }
    g->rules[g->n_rules] = (lt_grule){.body = body};
    return (int32_t)g->n_rules++;
}

/* A function, because making the body may grow and move the table of rules. */
void lt_gast_define(lt_gast *g, int32_t rule, lt_gid body) {
    if (rule >= 0) {
        g->rules[rule].body = body;
    }
}

/* The slot in `named` of a rule with this name, or the free slot for it. */
static size_t place_of(const lt_gast *g, const char *name, size_t n) {
    size_t at = XXH3_64bits(name, n) & (g->named_room - 1);
    for (; g->named[at] >= 0; at = (at + 1) & (g->named_room - 1)) {
        const char *known = g->rules[g->named[at]].name;
        if (strlen(known) == n && memcmp(known, name, n) == 0) {
            break;
        }
    }
    return at;
}

/* Make room for one more name: the table is at most half full. */
static bool name_room(lt_gast *g) {
    const size_t room = g->named_room == 0 ? 64 : 2 * g->named_room;
    int32_t *const old = g->named;
    const size_t n_old = g->named_room;
    if (2 * (g->n_named + 1) <= g->named_room) {
        return true;
    }
    g->named = malloc(room * sizeof *g->named);
    if (g->named == NULL) {
        g->named = old;
        g->failed = true;
        return false;
    }
    g->named_room = room;
    memset(g->named, 0xFF, room * sizeof *g->named);
    for (size_t i = 0; i < n_old; i++) {
        if (old[i] >= 0) {
            const char *name = g->rules[old[i]].name;
            g->named[place_of(g, name, strlen(name))] = old[i];
        }
    }
    free(old);
    return true;
}

int32_t lt_gast_rule(lt_gast *g, const char *name, size_t n) {
    int32_t rule;
    size_t at;
    if (!name_room(g)) {
        return -1;
    }
    at = place_of(g, name, n);
    if (g->named[at] >= 0) {
        return g->named[at];
    }
    rule = lt_gast_new_rule(g, -1);
    if (rule >= 0) {
        g->rules[rule].name = strndup(name, n);
        if (g->rules[rule].name == NULL) {
            g->failed = true;
            return -1;
        }
        g->named[at] = rule;
        g->n_named++;
    }
    return rule;
}

void lt_gids_push(lt_gast *g, lt_gids *l, lt_gid id) {
    if (reserve(g, (void **)&l->v, l->n, &l->room, 1, sizeof *l->v)) {
        l->v[l->n++] = id;
    }
}
