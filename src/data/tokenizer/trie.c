/* trie.c: see trie.h. */
#include "data/tokenizer/trie.h"

#include <stdlib.h>

#include "base/error.h"

#define MAX_NODES (1u << 24)

static void place(uint64_t *edges, size_t mask, uint64_t edge) {
    size_t at = (size_t)(((edge >> 24) * 0x9E3779B97F4A7C15u) >> 20) & mask;
    while (edges[at] != 0) {
        at = (at + 1) & mask;
    }
    edges[at] = edge;
}

static lt_err grow_edges(lt_trie *t) {
    const size_t room = t->edges == NULL ? 256 : 2 * (t->mask + 1);
    uint64_t *edges;
    if (t->edges != NULL && 2 * (t->n_edges + 1) <= t->mask + 1) {
        return LT_OK;
    }
    edges = calloc(room, sizeof *edges);
    if (edges == NULL) {
        LT_FAIL(LT_ERR_OOM, "trie of %zu edges", room);
    }
    for (size_t i = 0; t->edges != NULL && i <= t->mask; i++) {
        if (t->edges[i] != 0) {
            place(edges, room - 1, t->edges[i]);
        }
    }
    free(t->edges);
    t->edges = edges;
    t->mask = room - 1;
    return LT_OK;
}

static lt_err new_node(lt_trie *t, uint32_t *out) {
    if (t->n_nodes == MAX_NODES) {
        LT_FAIL(LT_ERR_LIMIT, "trie of more than %u nodes", MAX_NODES);
    }
    if (t->n_nodes == t->room) {
        const uint32_t room = t->room == 0 ? 256 : 2 * t->room;
        uint32_t *grown = realloc(t->value, room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "trie of %u nodes", room);
        }
        t->value = grown;
        t->room = room;
    }
    t->value[t->n_nodes] = LT_TRIE_NONE;
    *out = t->n_nodes++;
    return LT_OK;
}

lt_err lt_trie_add(lt_trie *t, const char *key, size_t n, uint32_t value) {
    uint32_t node = 0;
    LT_ASSERT(n > 0);
    LT_TRY(grow_edges(t));
    if (t->n_nodes == 0) {
        LT_TRY(new_node(t, &node));
    }
    for (size_t i = 0; i < n; i++) {
        const uint8_t byte = (uint8_t)key[i];
        uint32_t child = lt_trie_step(t, node, byte);
        if (child == 0) {
            LT_TRY(grow_edges(t));
            LT_TRY(new_node(t, &child));
            place(t->edges, t->mask, ((uint64_t)node << 8 | byte) << 24 | child);
            t->n_edges++;
        }
        node = child;
    }
    if (t->value[node] == LT_TRIE_NONE) {
        t->value[node] = value;
    }
    if (t->first[(uint8_t)key[0]] == 0) {
        t->first[(uint8_t)key[0]] = 1;
        t->n_first++;
        t->only_first = (uint8_t)key[0];
    }
    return LT_OK;
}

size_t lt_trie_longest(const lt_trie *t, const uint8_t *s, size_t n, uint32_t *value) {
    size_t best = 0;
    uint32_t node = 0;
    for (size_t i = 0; i < n && t->edges != NULL; i++) {
        node = lt_trie_step(t, node, s[i]);
        if (node == 0) {
            break;
        }
        if (t->value[node] != LT_TRIE_NONE) {
            best = i + 1;
            *value = t->value[node];
        }
    }
    return best;
}

void lt_trie_free(lt_trie *t) {
    free(t->edges);
    free(t->value);
    *t = (lt_trie){0};
}
