/* vocab.c: see vocab.h. The index keeps 32 bits of hash beside the id, so a probe seldom touches
 * the text. */
#define XXH_INLINE_ALL
#include "data/tokenizer/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "base/error.h"

#define HUGE_PAGE ((size_t)2 << 20)

/* Allocate a table in huge pages, if the system has them: 4 MiB then cost 2 page faults, not
 * 1,024. */
void *lt_table_new(size_t bytes) {
    const size_t align = bytes < HUGE_PAGE ? 64 : HUGE_PAGE;
    void *p = aligned_alloc(align, (bytes + align - 1) / align * align);
    if (p != NULL) {
        if (align == HUGE_PAGE) {
            (void)madvise(p, bytes, MADV_HUGEPAGE); /* A hint; small pages work too. */
        }
        memset(p, 0, bytes);
    }
    return p;
}

static lt_err grow_ids(lt_vocab *v, size_t need) {
    size_t room = v->room == 0 ? 1024 : v->room;
    uint32_t *start, *bytes;
    uint8_t *flags;
    if (need <= v->room) {
        return LT_OK;
    }
    while (room < need) {
        room *= 2;
    }
    start = realloc(v->start, room * sizeof *start);
    v->start = start != NULL ? start : v->start;
    bytes = realloc(v->bytes, room * sizeof *bytes);
    v->bytes = bytes != NULL ? bytes : v->bytes;
    flags = realloc(v->flags, room);
    v->flags = flags != NULL ? flags : v->flags;
    if (start == NULL || bytes == NULL || flags == NULL) {
        LT_FAIL(LT_ERR_OOM, "vocabulary of %zu ids", room);
    }
    memset(start + v->room, 0, (room - v->room) * sizeof *start);
    memset(bytes + v->room, 0, (room - v->room) * sizeof *bytes);
    memset(flags + v->room, 0, room - v->room);
    v->room = (uint32_t)room;
    return LT_OK;
}

static void place(uint64_t *slots, size_t mask, uint64_t hash, uint32_t id) {
    size_t at = hash & mask;
    while (slots[at] != 0) {
        at = (at + 1) & mask;
    }
    slots[at] = (hash >> 32) << 32 | (id + 1);
}

static lt_err grow_index(lt_vocab *v, size_t n) {
    size_t room = 1024;
    uint64_t *slots;
    while (room < 2 * n) {
        room *= 2;
    }
    if (v->slots != NULL && room <= v->mask + 1) {
        return LT_OK;
    }
    slots = lt_table_new(room * sizeof *slots);
    if (slots == NULL) {
        LT_FAIL(LT_ERR_OOM, "index of %zu pieces", n);
    }
    for (size_t i = 0; v->slots != NULL && i <= v->mask; i++) {
        if (v->slots[i] != 0) {
            const uint32_t id = (uint32_t)v->slots[i] - 1;
            place(slots, room - 1, XXH3_64bits(lt_vocab_text(v, id), v->bytes[id]), id);
        }
    }
    free(v->slots);
    v->slots = slots;
    v->mask = room - 1;
    return LT_OK;
}

lt_err lt_vocab_reserve(lt_vocab *v, size_t n_ids, size_t text_bytes) {
    n_ids = n_ids < LT_VOCAB_MAX ? n_ids : LT_VOCAB_MAX;
    LT_TRY(grow_ids(v, n_ids));
    LT_TRY(grow_index(v, n_ids));
    return lt_text_reserve(&v->text, text_bytes);
}

uint64_t lt_vocab_hash(const char *s, size_t n) {
    return XXH3_64bits(s, n);
}

uint32_t lt_vocab_likely(const lt_vocab *v, uint64_t hash) {
    for (size_t at = hash & v->mask; v->slots[at] != 0; at = (at + 1) & v->mask) {
        if (v->slots[at] >> 32 == hash >> 32) {
            return (uint32_t)v->slots[at] - 1;
        }
    }
    return LT_NO_ID;
}

/* The slot of this piece, or the empty one where it would go. */
static size_t slot_of(const lt_vocab *v, uint64_t hash, const char *s, size_t n) {
    size_t at = hash & v->mask;
    for (; v->slots[at] != 0; at = (at + 1) & v->mask) {
        if (v->slots[at] >> 32 == hash >> 32) {
            const uint32_t id = (uint32_t)v->slots[at] - 1;
            if (v->bytes[id] == n && memcmp(lt_vocab_text(v, id), s, n) == 0) {
                break;
            }
        }
    }
    return at;
}

uint32_t lt_vocab_find_hashed(const lt_vocab *v, uint64_t hash, const char *s, size_t n) {
    const uint64_t slot = v->slots[slot_of(v, hash, s, n)];
    return slot == 0 ? LT_NO_ID : (uint32_t)slot - 1;
}

uint32_t lt_vocab_find(const lt_vocab *v, const char *s, size_t n) {
    return v->slots == NULL ? LT_NO_ID : lt_vocab_find_hashed(v, XXH3_64bits(s, n), s, n);
}

/* Add a piece to the index. True: it was not yet there. */
static bool index_piece(lt_vocab *v, uint64_t hash, uint32_t id) {
    const size_t at = slot_of(v, hash, lt_vocab_text(v, id), v->bytes[id]);
    if (v->slots[at] != 0) {
        return false;
    }
    v->slots[at] = (hash >> 32) << 32 | (id + 1);
    v->n_indexed++;
    return true;
}

#define AHEAD 32 /* Lookups in progress. */

lt_err lt_vocab_index_all(lt_vocab *v, uint32_t *twice) {
    uint64_t hashes[AHEAD];
    if (twice != NULL) {
        *twice = LT_NO_ID;
    }
    LT_TRY(grow_index(v, (size_t)v->n + 1));
    for (uint32_t id = 0; id < v->n + AHEAD; id++) {
        if (id >= AHEAD && (v->flags[id - AHEAD] & LT_PIECE_TEXT) != 0 &&
            !index_piece(v, hashes[id % AHEAD], id - AHEAD) && twice != NULL) {
            *twice = id - AHEAD;
        }
        if (id < v->n) {
            hashes[id % AHEAD] = XXH3_64bits(lt_vocab_text(v, id), v->bytes[id]);
            lt_vocab_prefetch_slot(v, hashes[id % AHEAD]);
        }
    }
    return LT_OK;
}

lt_err lt_vocab_put(lt_vocab *v, uint32_t id, const char *s, size_t n, unsigned flags, bool index,
                    const char *name) {
    if (id >= LT_VOCAB_MAX) {
        LT_FAIL(LT_ERR_FORMAT, "%s: piece '%.*s' has id %u; ids below %u are accepted", name,
                (int)(n < 64 ? n : 64), s, id, LT_VOCAB_MAX);
    }
    if (n > LT_PIECE_MAX || v->text.n > UINT32_MAX - LT_PIECE_MAX) {
        LT_FAIL(LT_ERR_LIMIT, "%s: piece %u has %zu bytes", name, id, n);
    }
    LT_TRY(grow_ids(v, (size_t)id + 1));
    if ((v->flags[id] & LT_PIECE_PRESENT) != 0) {
        if (v->bytes[id] != n || memcmp(lt_vocab_text(v, id), s, n) != 0) {
            LT_FAIL(LT_ERR_FORMAT,
                    "%s: duplicate id %u, of '%.*s' and '%.*s'; is the file cut off?", name, id,
                    (int)(v->bytes[id] < 64 ? v->bytes[id] : 64), lt_vocab_text(v, id),
                    (int)(n < 64 ? n : 64), s);
        }
        v->flags[id] = (uint8_t)(v->flags[id] | flags);
        return LT_OK;
    }
    v->start[id] = (uint32_t)v->text.n;
    v->bytes[id] = (uint32_t)n;
    v->flags[id] = (uint8_t)(flags | LT_PIECE_PRESENT);
    v->n = id >= v->n ? id + 1 : v->n;
    LT_TRY(lt_text_reserve(&v->text, n + 1));
    LT_TRY(lt_text_put(&v->text, s, n));
    if (index) {
        LT_TRY(grow_index(v, v->n_indexed + 1));
        index_piece(v, XXH3_64bits(lt_vocab_text(v, id), n), id);
    }
    return LT_OK;
}

void lt_vocab_free(lt_vocab *v) {
    free(v->start);
    free(v->bytes);
    free(v->flags);
    free(v->slots);
    lt_text_free(&v->text);
    *v = (lt_vocab){0};
}

bool lt_piece_is_byte(const char *s, size_t n, uint8_t *byte) {
    static const char digits[] = "0123456789ABCDEF";
    const char *high, *low;
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>' || s[3] == '\0' || s[4] == '\0') {
        return false;
    }
    high = strchr(digits, s[3]);
    low = strchr(digits, s[4]);
    if (high == NULL || low == NULL) {
        return false;
    }
    *byte = (uint8_t)((high - digits) << 4 | (low - digits));
    return true;
}
