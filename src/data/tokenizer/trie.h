/* trie.h: a byte trie for longest-match and all-prefixes searches: added tokens, Unigram pieces.
 *
 * Edges live in one hash table keyed by (node, byte), 8 bytes each: (node << 8 | byte) << 24 |
 * child. Up to 2^24 nodes. */
#ifndef LT_DATA_TRIE_H
#define LT_DATA_TRIE_H

#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

#define LT_TRIE_NONE UINT32_MAX

typedef struct {
    uint64_t *edges; /* 0 is empty, because the root (node 0) is never a child. */
    size_t mask, n_edges;
    uint32_t *value; /* (n_nodes) LT_TRIE_NONE: no key ends here. */
    uint32_t n_nodes, room;
    uint8_t first[256]; /* 1: a key begins with this byte. */
    int n_first;        /* Number of distinct first bytes. */
    uint8_t only_first; /* The first byte if n_first is 1. */
} lt_trie;

/* Add a key; a key added twice keeps its first value. */
LT_MUST_USE lt_err lt_trie_add(lt_trie *t, const char *key, size_t n, uint32_t value);
void lt_trie_free(lt_trie *t);

/* Child of node by byte, or 0. */
static inline uint32_t lt_trie_step(const lt_trie *t, uint32_t node, uint8_t byte) {
    const uint64_t key = (uint64_t)node << 8 | byte;
    size_t at = (size_t)((key * 0x9E3779B97F4A7C15u) >> 20) & t->mask;
    while (t->edges[at] != 0) {
        if (t->edges[at] >> 24 == key) {
            return (uint32_t)(t->edges[at] & 0xFFFFFF);
        }
        at = (at + 1) & t->mask;
    }
    return 0;
}

/* Find the longest key that is a prefix of s[0..n): its length (0: there is none) and value. */
size_t lt_trie_longest(const lt_trie *t, const uint8_t *s, size_t n, uint32_t *value);

#endif
