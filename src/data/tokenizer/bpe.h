/* bpe.h: byte-pair encoding: a word becomes symbols, and the best-ranked adjacent pair is merged
 * until none is left.
 *
 * One engine serves three kinds of vocabulary, which differ in the first symbols and in the
 * handling of characters that the vocabulary lacks:
 *     BYTES  one symbol per byte                      byte-level vocabularies, tiktoken ranks
 *     CHARS  one symbol per character, HF's rules     byte fallback and <unk> before merging
 *     SPM    one symbol per character (SentencePiece) byte fallback and <unk> after merging
 * Of equal ranks, the leftmost pair is merged first. lt_bpe is read-only after loading;
 * lt_bpe_scratch belongs to one thread. */
#ifndef LT_DATA_BPE_H
#define LT_DATA_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/vocab.h"
#include "lateen/tokenizer.h"

typedef enum { LT_BPE_BYTES, LT_BPE_CHARS, LT_BPE_SPM } lt_bpe_mode;

typedef struct {
    lt_bpe_mode mode;
    const lt_vocab *vocab;
    /* A word that is a piece becomes that piece, regardless of the merges. */
    bool ignore_merges;
    bool fuse_unk;      /* Adjacent unknown characters become one <unk>. */
    bool byte_fallback; /* Unknown characters become their <0xHH> pieces. */
    uint32_t unk;       /* LT_NO_ID: unknown characters are dropped, or */
    /* are an error, because the file names an <unk> that is not a piece. */
    bool unk_missing;
    uint32_t byte_id[256];     /* BYTES: the piece of a byte. */
    uint32_t fallback_id[256]; /* <0x00> .. <0xFF> */
    /* CHARS: text before inner characters, and after the last one; "": none. */
    char prefix[32], suffix[32];

    /* Buckets of LT_BPE_BUCKET slots: complement of left << 44 | right << 24 | merge; 0 is
     * empty. */
    uint64_t *pairs;
    size_t mask, n_pairs; /* Index of the last bucket; number of pairs. */
    int shift;
    uint32_t *merge_to;   /* (n_merges) the piece that a merge makes; NULL: the merge's number. */
    uint32_t *merge_rank; /* (n_merges) may have equal entries; NULL: the merge's number. */
    uint32_t n_merges;
    /* (65536) BYTES: merge of two neighbouring bytes, LT_NO_ID for none; NULL in a small
     * vocabulary. */
    uint32_t *byte_pair;
    /* (65536) BYTES: the symbol that a character of 2 or 3 bytes always becomes, LT_NO_ID: none;
     * may be NULL. */
    uint32_t *chars;
    /* (65536 + 262144) lowest rank of a merge that would split a character, by its first bytes and
     * the byte before it. */
    uint32_t *before_char;
    /* SPM: characters that occur in pieces but are not pieces; their ids count from
     * phantom_base. */
    lt_vocab phantom;
    uint32_t phantom_base;
} lt_bpe;

typedef struct {
    const uint8_t *p;
    size_t n;
} lt_span;

/* Flag in chars: only if before_char's rank is above the symbol's. */
#define LT_BPE_BY_BYTE_BEFORE 0x80000000u

/* Index in before_char of a character of 2 or 3 bytes at p, which follows another byte. */
static inline size_t lt_bpe_before_char(const uint8_t *p, size_t size) {
    return size == 2 ? (size_t)p[0] << 8 | p[-1]
                     : 65536 + ((size_t)(p[0] & 15) << 14 | (size_t)(p[1] & 63) << 8 | p[-1]);
}

typedef struct lt_bpe_scratch lt_bpe_scratch;

/* Allocate a table for n pairs; then call lt_bpe_add_pair for each. A pair that is added again gets
 * the later merge. */
LT_MUST_USE lt_err lt_bpe_reserve_pairs(lt_bpe *b, size_t n);
LT_MUST_USE lt_err lt_bpe_add_pair(lt_bpe *b, uint32_t left, uint32_t right, uint32_t merge);

/* Add the pairs of a vocabulary without a merge list: each piece of at least two symbols, cut in
 * every way into two pieces. order lists the n mergeable ids, best first; rank has equal numbers
 * for merges of equal priority; NULL: no two are equal. */
LT_MUST_USE lt_err lt_bpe_derive_pairs(lt_bpe *b, const uint32_t *order, const uint32_t *rank,
                                       uint32_t n);

/* The same for byte-level ranks (tiktoken): every indexed id can be merged, and its number is its
 * rank. See bpe_load.c. */
LT_MUST_USE lt_err lt_bpe_derive_ranks(lt_bpe *b);

/* Last step of loading: build the tables that follow from the others. */
LT_MUST_USE lt_err lt_bpe_finish(lt_bpe *b);
void lt_bpe_free(lt_bpe *b);

LT_MUST_USE lt_err lt_bpe_scratch_open(lt_bpe_scratch **out);
void lt_bpe_scratch_close(lt_bpe_scratch *s);

/* Append the ids of each word. floor is where the text's ids begin in *out (SentencePiece joins
 * unknowns no further back). Bytes after a word may be read, up to readable_end. */
LT_MUST_USE lt_err lt_bpe_encode(const lt_bpe *b, lt_bpe_scratch *s, const lt_span *words,
                                 size_t n_words, const uint8_t *readable_end, size_t floor,
                                 lt_ids *out);

#define LT_BPE_BUCKET   4         /* Slots per bucket: half a cache line. */
#define LT_BPE_NO_MERGE 0xFFFFFFu /* The merge that an empty slot yields. */

static inline uint64_t lt_bpe_pair(uint32_t left, uint32_t right) {
    return (uint64_t)left << 20 | right;
}

/* The bucket where the search for a pair begins. */
static inline const uint64_t *lt_bpe_home(const lt_bpe *b, uint64_t pair) {
    return b->pairs + LT_BPE_BUCKET * (size_t)((pair * 0x9E3779B97F4A7C15u) >> b->shift);
}

static inline const uint64_t *lt_bpe_next_bucket(const lt_bpe *b, const uint64_t *bucket) {
    return bucket == b->pairs + LT_BPE_BUCKET * b->mask ? b->pairs : bucket + LT_BPE_BUCKET;
}

/* The merge of a pair, searched from its home bucket on, or LT_BPE_NO_MERGE. Whether a pair is
 * found is unpredictable, so the code does not branch on it: the pair's bits are removed from all
 * four slots, and the smallest result is the merge if one matches. The search goes to the next
 * bucket only if this one is full and lacks the pair. */
static inline uint32_t lt_bpe_find_from(const lt_bpe *b, const uint64_t *slot, uint64_t pair) {
    const uint64_t wanted = ~(pair << 24);
    for (;; slot = lt_bpe_next_bucket(b, slot)) {
        const uint64_t s0 = slot[0] ^ wanted, s1 = slot[1] ^ wanted;
        const uint64_t s2 = slot[2] ^ wanted, s3 = slot[3] ^ wanted;
        const uint64_t low = s0 < s1 ? s0 : s1, high = s2 < s3 ? s2 : s3;
        const uint64_t least = low < high ? low : high;
        int last = (least < LT_BPE_NO_MERGE) | (slot[LT_BPE_BUCKET - 1] == 0);
        /* Makes the compiler keep this one branch, which is nearly always taken, instead of one for
         * each condition. */
        __asm__("" : "+r"(last));
        if (last) {
            return (uint32_t)(least < LT_BPE_NO_MERGE ? least : LT_BPE_NO_MERGE);
        }
    }
}

static inline uint32_t lt_bpe_find_pair(const lt_bpe *b, uint32_t left, uint32_t right) {
    const uint64_t pair = lt_bpe_pair(left, right);
    const uint32_t merge = lt_bpe_find_from(b, lt_bpe_home(b, pair), pair);
    return merge == LT_BPE_NO_MERGE ? LT_NO_ID : merge;
}

/* Prefetch the data that the search for the pair reads. */
static inline void lt_bpe_fetch_pair(const lt_bpe *b, uint32_t left, uint32_t right) {
    __builtin_prefetch(lt_bpe_home(b, lt_bpe_pair(left, right)));
}

LT_MUST_USE lt_err lt_ids_reserve(lt_ids *ids, size_t extra);

/* Append data[0..n), which must not be part of *ids. Inline, because tokenizers append single
 * ids. */
LT_MUST_USE static inline lt_err lt_ids_append(lt_ids *ids, const uint32_t *data, size_t n) {
    LT_TRY(lt_ids_reserve(ids, n));
    if (n > 0) { /* Without ids, data may be NULL. */
        memcpy(ids->data + ids->n, data, n * sizeof *data);
        ids->n += n;
    }
    return LT_OK;
}

#endif
