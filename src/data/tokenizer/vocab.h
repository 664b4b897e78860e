/* vocab.h: the pieces of a vocabulary: id -> bytes, bytes -> id, and what kind of piece it is.
 *
 * Ids run from 0 to n - 1 and may have holes. Several ids may share the same bytes (lookup returns
 * the one that was indexed first); pieces that text can never become, like byte-fallback or control
 * pieces, are stored without being indexed. Read-only after loading, so threads share it. */
#ifndef LT_DATA_VOCAB_H
#define LT_DATA_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/tokenizer/unicode.h"
#include "lateen/base.h"

#define LT_NO_ID UINT32_MAX
#ifndef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
/* Ids fit in 20 bits; the largest public vocabulary has 262,144. */
#define LT_VOCAB_MAX (1u << 20)
#else /* With the limit above, one piece of a high id costs 18 MB of tables. GPT-2's special tokens
       * must fit. */
#define LT_VOCAB_MAX (1u << 16)
#endif
#define LT_PIECE_MAX (1u << 20) /* Bytes of one piece. */

enum {
    LT_PIECE_PRESENT = 1, /* The id is not a hole. */
    LT_PIECE_SPECIAL = 2, /* Left out when decoding text for people. */
    LT_PIECE_ADDED = 4,   /* Recognised in text before the model sees it. */
    LT_PIECE_BYTE = 8,    /* <0x0A>: stands for one raw byte. */
    LT_PIECE_UNUSED = 16, /* SentencePiece: may not be emitted. */
    /* Text may become this piece: lt_vocab_index_all adds it to the index. */
    LT_PIECE_TEXT = 64,
    /* Byte-level: some character stands for no byte, so the piece is its text. */
    LT_PIECE_LITERAL = 32,
    LT_PIECE_RENAMED = 128 /* An added token that is decoded to its normal form. */
};

typedef struct {
    uint32_t n, room; /* Ids in use; size of the arrays. */
    uint32_t *start;  /* (room) offset into text */
    uint32_t *bytes;  /* (room) */
    uint8_t *flags;   /* (room) LT_PIECE_* */
    lt_text text;
    uint64_t *slots; /* Open addressing: high half of the hash << 32 | id + 1; 0 is empty. */
    size_t mask, n_indexed;
} lt_vocab;

/* Give the id these bytes. An id that is already taken by other bytes, or at or above LT_VOCAB_MAX,
 * is FORMAT; the message begins with name. index: text may become this piece. */
LT_MUST_USE lt_err lt_vocab_put(lt_vocab *v, uint32_t id, const char *s, size_t n, unsigned flags,
                                bool index, const char *name);

/* Zeroed memory for a table, from the start of a cache line; NULL: out of memory. It is freed
 * with free(). */
void *lt_table_new(size_t bytes);

/* Reserve memory for this many ids and text bytes; optional. */
LT_MUST_USE lt_err lt_vocab_reserve(lt_vocab *v, size_t n_ids, size_t text_bytes);
void lt_vocab_free(lt_vocab *v);

uint32_t lt_vocab_find(const lt_vocab *v, const char *s, size_t n); /* LT_NO_ID if absent. */

/* Index all LT_PIECE_TEXT pieces at once, in the order of ids: several times faster than one by
 * one, because the cache misses overlap. *twice, which may be NULL, is an id with the same bytes
 * as an earlier id, or LT_NO_ID. */
LT_MUST_USE lt_err lt_vocab_index_all(lt_vocab *v, uint32_t *twice);

/* lt_vocab_find in steps, for callers with many lookups in progress: hash, and prefetch its slot;
 * later the most likely id (LT_NO_ID is certain), and prefetch the piece; later find. */
uint64_t lt_vocab_hash(const char *s, size_t n);
uint32_t lt_vocab_likely(const lt_vocab *v, uint64_t hash);
uint32_t lt_vocab_find_hashed(const lt_vocab *v, uint64_t hash, const char *s, size_t n);

static inline void lt_vocab_prefetch_slot(const lt_vocab *v, uint64_t hash) {
    __builtin_prefetch(&v->slots[hash & v->mask]);
}

static inline void lt_vocab_prefetch_piece(const lt_vocab *v, uint32_t id) {
    __builtin_prefetch(&v->start[id]);
    __builtin_prefetch(&v->bytes[id]);
}

static inline const char *lt_vocab_text(const lt_vocab *v, uint32_t id) {
    return v->text.data + v->start[id];
}

/* Whether s is "<0xHH>", and the raw byte. */
bool lt_piece_is_byte(const char *s, size_t n, uint8_t *byte);

#endif
