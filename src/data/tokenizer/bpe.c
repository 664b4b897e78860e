/* bpe.c: the pair table and the merge loops; see bpe.h. The word cache before them is bpe_cache.c.
 *
 * MERGING a word of n symbols. Words are short (5 bytes on average), so up to SMALL symbols live on
 * the stack: an array of pair ranks is searched for its minimum, the pair is merged by shifting,
 * two ranks are looked up again: O(n * merges) with a tiny constant. Longer words (a megabyte of
 * one letter is one word) are left to bpe_long.c. */
#include "data/tokenizer/bpe.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/bpe_merge.h"

lt_err lt_ids_reserve(lt_ids *ids, size_t extra) {
    size_t room = ids->room < 64 ? 64 : ids->room;
    uint32_t *grown;
    if (extra <= ids->room - ids->n) {
        return LT_OK;
    }
    while (room - ids->n < extra) {
        if (room > SIZE_MAX / 16) {
            LT_FAIL(LT_ERR_OOM, "%zu token ids", room);
        }
        room *= 2;
    }
    grown = realloc(ids->data, room * sizeof *grown);
    if (grown == NULL) {
        LT_FAIL(LT_ERR_OOM, "%zu token ids", room);
    }
    ids->data = grown;
    ids->room = room;
    return LT_OK;
}

void lt_ids_free(lt_ids *ids) {
    free(ids->data);
    *ids = (lt_ids){0};
}

/* The slot of the pair, or the first free one from its home bucket on. */
static uint64_t *slot_for(lt_bpe *b, uint64_t pair) {
    for (const uint64_t *bucket = lt_bpe_home(b, pair);; bucket = lt_bpe_next_bucket(b, bucket)) {
        for (size_t i = 0; i < LT_BPE_BUCKET; i++) {
            if (bucket[i] == 0 || ~bucket[i] >> 24 == pair) {
                return &b->pairs[(size_t)(bucket - b->pairs) + i];
            }
        }
    }
}

lt_err lt_bpe_reserve_pairs(lt_bpe *b, size_t n) {
    int bits = 8;
    lt_bpe next = *b;

    while (((size_t)LT_BPE_BUCKET << bits) < 2 * n) {
        bits++;
    }
    if (b->pairs != NULL && ((size_t)1 << bits) <= b->mask + 1) {
        return LT_OK;
    }
    next.pairs = lt_table_new((LT_BPE_BUCKET * sizeof *next.pairs) << bits);
    if (next.pairs == NULL) {
        LT_FAIL(LT_ERR_OOM, "table of %zu BPE pairs", n);
    }
    next.mask = ((size_t)1 << bits) - 1;
    next.shift = 64 - bits;
    for (size_t i = 0; b->pairs != NULL && i < LT_BPE_BUCKET * (b->mask + 1); i++) {
        if (b->pairs[i] != 0) {
            *slot_for(&next, ~b->pairs[i] >> 24) = b->pairs[i];
        }
    }
    free(b->pairs);
    *b = next;
    return LT_OK;
}

lt_err lt_bpe_add_pair(lt_bpe *b, uint32_t left, uint32_t right, uint32_t merge) {
    const uint64_t pair = lt_bpe_pair(left, right);
    uint64_t *slot;

    LT_ASSERT(left < LT_VOCAB_MAX && right < LT_VOCAB_MAX);
    if (merge >= LT_BPE_NO_MERGE) {
        LT_FAIL(LT_ERR_LIMIT, "more than %u BPE merges", LT_BPE_NO_MERGE - 1);
    }
    LT_TRY(lt_bpe_reserve_pairs(b, b->n_pairs + 1));
    slot = slot_for(b, pair);
    b->n_pairs += *slot == 0;
    *slot = ~(pair << 24 | merge);
    return LT_OK;
}

/* The symbol with the text of half of a piece: a piece, or in SPM a character that is not a
 * piece. */
static lt_err half_symbol(lt_bpe *b, const char *s, size_t n, bool whole_char, uint32_t *out) {
    uint32_t id = lt_vocab_find(b->vocab, s, n);
    if (id == LT_NO_ID && whole_char && b->mode == LT_BPE_SPM) {
        id = lt_vocab_find(&b->phantom, s, n);
        if (id == LT_NO_ID && b->phantom_base + b->phantom.n + 1 < LT_VOCAB_MAX - 1) {
            id = b->phantom.n;
            LT_TRY(lt_vocab_put(&b->phantom, id, s, n, 0, true, "characters"));
        }
        id = id == LT_NO_ID ? id : id + b->phantom_base;
    }
    *out = id;
    return LT_OK;
}

/* Whether s[0..n) is exactly one character. */
static bool is_one_char(const char *s, size_t n) {
    uint32_t cp;
    return n > 0 && lt_utf8_decode((const uint8_t *)s, (const uint8_t *)s + n, &cp) == n;
}

static lt_err derive_piece(lt_bpe *b, uint32_t id, uint32_t merge) {
    const char *s = lt_vocab_text(b->vocab, id);
    const size_t n = b->vocab->bytes[id];
    const bool bytes = b->mode == LT_BPE_BYTES;

    for (size_t cut = 1; cut < n; cut++) {
        uint32_t left, right;
        if (!bytes && ((uint8_t)s[cut] & 0xC0) == 0x80) {
            continue; /* This position is inside a character. */
        }
        LT_TRY(half_symbol(b, s, cut, !bytes && is_one_char(s, cut), &left));
        if (left == LT_NO_ID) {
            continue;
        }
        LT_TRY(half_symbol(b, s + cut, n - cut, !bytes && is_one_char(s + cut, n - cut), &right));
        if (right != LT_NO_ID) {
            LT_TRY(lt_bpe_add_pair(b, left, right, merge));
        }
    }
    return LT_OK;
}

lt_err lt_bpe_derive_pairs(lt_bpe *b, const uint32_t *order, const uint32_t *rank, uint32_t n) {
    b->phantom_base = b->vocab->n;
    LT_TRY(lt_bpe_reserve_pairs(b, (size_t)b->vocab->n * 2));
    b->merge_to = malloc((n + 1) * sizeof *b->merge_to);
    b->merge_rank = rank != NULL ? malloc((n + 1) * sizeof *b->merge_rank) : NULL;
    if (b->merge_to == NULL || (rank != NULL && b->merge_rank == NULL)) {
        LT_FAIL(LT_ERR_OOM, "%u BPE merges", n);
    }
    for (uint32_t i = 0; i < n; i++) {
        b->merge_to[i] = order[i];
        if (rank != NULL) {
            b->merge_rank[i] = rank[i];
        }
        LT_TRY(derive_piece(b, order[i], i));
    }
    b->n_merges = n;
    return LT_OK;
}

lt_err lt_bpe_finish(lt_bpe *b) {
    LT_TRY(lt_bpe_reserve_pairs(b, 1));
    if (b->mode != LT_BPE_BYTES || b->n_pairs < 32768 || b->byte_pair != NULL) {
        return LT_OK; /* A small table of pairs is as fast as one of byte pairs. */
    }
    b->byte_pair = malloc(65536 * sizeof *b->byte_pair);
    if (b->byte_pair == NULL) {
        LT_FAIL(LT_ERR_OOM, "table of BPE byte pairs");
    }
    for (uint32_t i = 0; i < 65536; i++) {
        const uint32_t left = b->byte_id[i >> 8], right = b->byte_id[i & 255];
        b->byte_pair[i] = left == LT_NO_ID || right == LT_NO_ID ? LT_NO_ID
                                                                : lt_bpe_find_pair(b, left, right);
    }
    return LT_OK;
}

void lt_bpe_free(lt_bpe *b) {
    free(b->pairs);
    free(b->merge_to);
    free(b->merge_rank);
    free(b->byte_pair);
    free(b->chars);
    free(b->before_char);
    lt_vocab_free(&b->phantom);
    b->pairs = NULL;
    b->merge_to = b->merge_rank = b->byte_pair = b->chars = b->before_char = NULL;
}

#define PLACE_BITS 6 /* LT_BPE_SMALL places; a merge's number has 24 bits, so a key has 30. */
#define NO_PAIR    (int32_t)(LT_BPE_NO_MERGE << PLACE_BITS) /* Keys from here on are no pairs. */
#define LANES      2
#define NOWHERE    UINT8_MAX
static_assert(1 << PLACE_BITS == LT_BPE_SMALL, "a place fits its bits");

/* A pair as one number: the smallest number is the best merge, and of equal merges the
 * leftmost. */
static inline int32_t pair_key(uint32_t merge, size_t place) {
    return (int32_t)(merge << PLACE_BITS | (uint32_t)place);
}

static inline int32_t find_key(const lt_bpe *b, uint32_t left, uint32_t right, size_t place) {
    const uint64_t pair = lt_bpe_pair(left, right);
    return pair_key(lt_bpe_find_from(b, lt_bpe_home(b, pair), pair), place);
}

static inline int32_t least(const int32_t *keys, size_t n) {
    int32_t a = NO_PAIR, b = NO_PAIR;
    /* Two independent chains, so that one can proceed while the other waits for its
     * comparison. */
    for (size_t i = 0; i < n; i += 2) {
        a = keys[i] < a ? keys[i] : a;
        b = keys[i + 1] < b ? keys[i + 1] : b;
        __asm__(""
                : "+r"(a),
                  "+r"(b)); /* Keeps GCC from vectorising: a wide load would wait for the narrow
                             * stores before it. */
    }
    return a < b ? a : b;
}

/* Merge where no ranks are equal, and the number of a merge is its rank. Symbols keep their
 * places and are chained; the key of a pair is stored at its left symbol. */
static size_t merge_chained(const lt_bpe *b, uint32_t *ids, const uint32_t *merge, size_t n) {
    int32_t keys[LT_BPE_SMALL];
    uint8_t next[LT_BPE_SMALL], prev[LT_BPE_SMALL];
    size_t left = 0;

    for (size_t i = 0; i < n; i++) {
        keys[i] = i + 1 < n && merge[i] != LT_NO_ID ? pair_key(merge[i], i) : NO_PAIR;
        next[i] = (uint8_t)(i + 1 < n ? i + 1 : NOWHERE);
        prev[i] = (uint8_t)(i > 0 ? i - 1 : NOWHERE);
    }
    for (size_t i = n; i % LANES != 0; i++) {
        keys[i] = NO_PAIR;
    }
    for (int32_t best; (best = least(keys, n)) < NO_PAIR;) {
        const size_t at = (size_t)best & (LT_BPE_SMALL - 1), gone = next[at];
        const size_t before = prev[at], after = next[gone];
        ids[at] = lt_bpe_piece_of(b, (uint32_t)best >> PLACE_BITS);
        next[at] = (uint8_t)after;
        keys[gone] = NO_PAIR;
        if (after != NOWHERE) {
            prev[after] = (uint8_t)at;
        }
        if (before != NOWHERE && after != NOWHERE) {
            keys[before] = find_key(b, ids[before], ids[at], before);
            keys[at] = find_key(b, ids[at], ids[after], at);
        } else if (before != NOWHERE) {
            keys[before] = find_key(b, ids[before], ids[at], before);
            keys[at] = NO_PAIR;
        } else {
            keys[at] = after == NOWHERE ? NO_PAIR : find_key(b, ids[at], ids[after], at);
        }
    }
    for (size_t i = 0; i != NOWHERE; i = next[i]) {
        ids[left++] = ids[i];
    }
    return left;
}

/* Merge where ranks may be equal: ranks are looked up, and the arrays are closed up after each
 * merge. */
static size_t merge_ranked(const lt_bpe *b, uint32_t *ids, uint32_t *merge, size_t n) {
    for (;;) {
        uint32_t best = LT_NO_ID;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const uint32_t rank = lt_bpe_rank_of(b, merge[i]);
            at = rank < best ? i : at;
            best = rank < best ? rank : best;
        }
        if (best == LT_NO_ID) {
            return n;
        }
        ids[at] = lt_bpe_piece_of(b, merge[at]);
        n--;
        for (size_t i = at + 1; i < n; i++) {
            ids[i] = ids[i + 1];
        }
        for (size_t i = at; i + 1 < n; i++) {
            merge[i] = merge[i + 1];
        }
        if (at > 0) {
            merge[at - 1] = lt_bpe_find_pair(b, ids[at - 1], ids[at]);
        }
        if (at + 1 < n) {
            merge[at] = lt_bpe_find_pair(b, ids[at], ids[at + 1]);
        }
    }
}

size_t lt_bpe_merge_small(const lt_bpe *b, uint32_t *ids, uint32_t *merge, size_t n) {
    LT_ASSERT(n >= 1 && n <= LT_BPE_SMALL);
    return b->merge_rank == NULL ? merge_chained(b, ids, merge, n) : merge_ranked(b, ids, merge, n);
}
