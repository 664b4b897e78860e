/* bpe_chars.c: finds out which characters of two and three bytes can be symbols from the start of
 * merging, instead of their bytes.
 *
 * In most scripts a character has three bytes, so most merges of a word only put the bytes of
 * characters together. They can be skipped if they are certain to happen. The ranks that training
 * makes are monotone: a piece's rank is above those of its halves. Encoding then merges in the
 * order of ranks, and a character C becomes one symbol whatever surrounds it, unless an earlier
 * merge crosses its ends while it is still in parts. Such a merge makes a piece that ends in a part
 * of a character (" \xe0\xa4"), or begins with one. So C is certain if these conditions hold:
 *
 *     C = b0 b1 b2, by (b0 b1) = q, then (q b2)      ends[b0] > rank q     ends[b0 b1] > rank C
 *                                                    begins[b2] > rank C
 *               or by (b1 b2) = q, then (b0 q)       ends[b0] > rank C     begins[b2] > rank q
 *                                                    begins[b1 b2] > rank C
 *     C = b0 b1                                      ends[b0] > rank C     begins[b1] > rank C
 *
 * where ends[y] is the least rank of a longer piece whose last, unfinished character is y, and
 * begins[x] that of a longer piece that begins with x, the end of a character. The rank on the
 * right is that of the merge that consumes the part; a crossing merge of a lower rank would come
 * first. A merge with the whole C has a rank above C's, so it does not come earlier.
 *
 * ends is kept for each byte before y, because many pieces consist of a space, or one frequent
 * letter, and the beginning of a character, and do not matter after other bytes. So encoding a word
 * compares only one rank for each such character.
 *
 * Of the non-ASCII characters of UDHR (the Universal Declaration of Human Rights), in o200k, 14 %
 * have no symbol, some 7 % are never certain, and the others depend on the byte before them. A
 * character that is not certain is encoded from its bytes. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/bpe_load.h"

#define N_CHARS 65536
#define N_HEADS 1024 /* Possible first two bytes of characters of three bytes. */

/* Least ranks; LT_NO_ID: no such piece. */
typedef struct {
    uint32_t ends_2[256][256], ends_3[N_HEADS][256]; /* [y][byte before it] */
    uint32_t begins_1[256], begins_2[65536];
} edges;

static bool is_rest(uint8_t byte) {
    return (byte & 0xC0) == 0x80;
}

static size_t head(const uint8_t *p) {
    return (size_t)(p[0] & 15) << 6 | (p[1] & 63);
}

static void least(uint32_t *rank, uint32_t other) {
    *rank = other < *rank ? other : *rank;
}

static uint32_t least_of(const uint32_t ranks[256]) {
    uint32_t out = LT_NO_ID;
    for (int i = 0; i < 256; i++) {
        least(&out, ranks[i]);
    }
    return out;
}

static void note_piece(edges *e, const uint8_t *p, uint32_t n, uint32_t rank) {
    const uint8_t *end = p + n;
    if (end[-1] >= 0xC2) {
        least(&e->ends_2[end[-1]][end[-2]], rank);
    } else if (n > 2 && is_rest(end[-1]) && end[-2] >= 0xE0 && end[-2] < 0xF0) {
        least(&e->ends_3[head(end - 2)][end[-3]], rank);
    }
    if (is_rest(p[0]) && !is_rest(p[1])) {
        least(&e->begins_1[p[0]], rank);
    } else if (n > 2 && is_rest(p[0]) && is_rest(p[1]) && !is_rest(p[2])) {
        least(&e->begins_2[p[0] << 8 | p[1]], rank);
    }
}

static uint32_t passes(uint32_t c, uint32_t least_before) {
    return least_before > c ? c : c | LT_BPE_BY_BYTE_BEFORE;
}

static uint32_t char_of_2(const lt_bpe *b, const edges *e, const uint8_t *p,
                          const uint32_t *least_before) {
    const uint32_t c = b->byte_pair[p[0] << 8 | p[1]];
    return c != LT_NO_ID && e->begins_1[p[1]] > c ? passes(c, least_before[p[0]]) : LT_NO_ID;
}

static uint32_t char_of_3(const lt_bpe *b, const edges *e, const uint8_t *p,
                          const uint32_t *least_before, uint32_t least_before_head) {
    const uint32_t front = b->byte_pair[p[0] << 8 | p[1]], back = b->byte_pair[p[1] << 8 | p[2]];
    uint32_t c = LT_NO_ID;
    if (front < back) {
        c = lt_bpe_find_pair(b, front, b->byte_id[p[2]]);
        return c != LT_NO_ID && e->begins_1[p[2]] > c ? passes(c, least_before_head) : LT_NO_ID;
    }
    if (back != LT_NO_ID) {
        c = lt_bpe_find_pair(b, b->byte_id[p[0]], back);
    }
    return c != LT_NO_ID && least_before[p[0]] > c && e->begins_1[p[2]] > back &&
                   e->begins_2[p[1] << 8 | p[2]] > c
               ? c
               : LT_NO_ID;
}

/* If a merge splits the first two bytes of a character before they are merged, the character is
 * split, whatever C is: rank 0 expresses this. */
static void fold_heads(const lt_bpe *b, edges *e) {
    for (uint32_t h = 0; h < N_HEADS; h++) {
        const uint32_t b0 = 0xE0 | h >> 6, front = b->byte_pair[b0 << 8 | 0x80 | (h & 63)];
        for (int before = 0; before < 256; before++) {
            if (e->ends_2[b0][before] <= front) {
                e->ends_3[h][before] = 0;
            }
        }
    }
}

static void find_all(lt_bpe *b, const edges *e) {
    uint32_t least_before[256], least_before_head = LT_NO_ID;
    for (int i = 0; i < 256; i++) {
        least_before[i] = least_of(e->ends_2[i]);
    }
    for (uint32_t cp = 0x80; cp < N_CHARS; cp++) {
        const uint8_t two[2] = {(uint8_t)(0xC0 | (cp >> 6 & 31)), (uint8_t)(0x80 | (cp & 63))};
        const uint8_t three[3] = {(uint8_t)(0xE0 | cp >> 12), (uint8_t)(0x80 | (cp >> 6 & 63)),
                                  (uint8_t)(0x80 | (cp & 63))};
        if (cp >= 0x800 && cp % 64 == 0) {
            least_before_head = least_of(e->ends_3[head(three)]);
        }
        if (cp < 0xD800 || cp >= 0xE000) {
            b->chars[cp] = cp < 0x800 ? char_of_2(b, e, two, least_before)
                                      : char_of_3(b, e, three, least_before, least_before_head);
        }
    }
}

lt_err lt_bpe_find_chars(lt_bpe *b) {
    const lt_vocab *v = b->vocab;
    edges *e = malloc(sizeof *e);
    b->chars = malloc(N_CHARS * sizeof *b->chars);
    b->before_char = malloc(sizeof e->ends_2 + sizeof e->ends_3);
    if (e == NULL || b->chars == NULL || b->before_char == NULL) {
        free(e);
        LT_FAIL(LT_ERR_OOM, "table of a tokenizer's characters");
    }
    memset(e, 0xFF, sizeof *e);
    memset(b->chars, 0xFF, N_CHARS * sizeof *b->chars);
    for (uint32_t id = 0; id < v->n; id++) {
        if ((v->flags[id] & LT_PIECE_TEXT) != 0 && v->bytes[id] > 1) {
            note_piece(e, (const uint8_t *)lt_vocab_text(v, id), v->bytes[id], id);
        }
    }
    fold_heads(b, e);
    find_all(b, e);
    memcpy(b->before_char, e->ends_2, sizeof e->ends_2);
    memcpy(b->before_char + 65536, e->ends_3, sizeof e->ends_3);
    free(e);
    return LT_OK;
}
