/* bpe_cache.c: words to ids: the cache of recent words, and the first symbols of a word that is not in it.
 *
 * Text repeats itself: nine words of ten were seen a moment ago. So a word's ids are remembered, in two tables of a fixed size
 * that a thread owns:
 *
 *     SHORT  up to 15 bytes and 3 ids   32 bytes an entry, two to a cache line = one set, most recent first
 *     LONG   up to 31 bytes and 7 ids   64 bytes an entry, direct-mapped
 *
 * The key is the word itself, zero-padded, with its length in the last byte, so a hit is two (or four) 64-bit compares and no
 * hash can collide. lt_bpe_encode works in batches: it first computes every word's key and set and prefetches the line, then
 * resolves the words, so that the misses to the outer caches overlap. */
#include "data/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/bpe_merge.h"

#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION /* Set by libFuzzer: a cache a call would be all it does. */
#define SHORT_BITS 4
#define LONG_BITS  4
#else
#define SHORT_BITS 15 /* Sets of 64 bytes: 2 MiB. */
#define LONG_BITS  13 /* 512 KiB. */
#endif
#define SHORT_BYTES 15
#define LONG_BYTES  31
#define BATCH       32

typedef struct {
    uint64_t key[2];
    uint32_t ids[3], n;
} short_entry;

typedef struct {
    uint64_t key[4];
    uint32_t ids[7], n;
} long_entry;

struct lt_bpe_scratch {
    void *block;         /* Both tables; zero pages that nobody touches cost nothing. */
    short_entry *shorts; /* (2 << SHORT_BITS) in lines of 64 bytes */
    long_entry *longs;   /* (1 << LONG_BITS) */
    lt_bpe_list list;
    lt_text word;  /* A character with prefix and suffix. */
    lt_ids result; /* Of the word in hand. */
};

lt_err lt_bpe_scratch_open(lt_bpe_scratch **out) {
    const size_t short_bytes = sizeof(short_entry) << (SHORT_BITS + 1);
    const size_t long_bytes = sizeof(long_entry) << LONG_BITS;
    lt_bpe_scratch *s = calloc(1, sizeof *s);
    if (s != NULL) {
        s->block = calloc(1, short_bytes + long_bytes + 64);
    }
    if (s == NULL || s->block == NULL) {
        lt_bpe_scratch_close(s);
        LT_FAIL(LT_ERR_OOM, "word cache of a tokenizer");
    }
    s->shorts = (short_entry *)(((uintptr_t)s->block + 63) & ~(uintptr_t)63);
    s->longs = (long_entry *)((char *)s->shorts + short_bytes);
    *out = s;
    return LT_OK;
}

void lt_bpe_scratch_close(lt_bpe_scratch *s) {
    if (s == NULL) {
        return;
    }
    free(s->block);
    lt_bpe_list_free(&s->list);
    lt_text_free(&s->word);
    lt_ids_free(&s->result);
    free(s);
}

/* BYTES with every byte in the vocabulary, which is nearly all of them. False: some byte has no piece. */
static bool first_bytes(const lt_bpe *b, const uint8_t *p, size_t n, uint32_t *ids) {
    uint32_t missing = 0;
    for (size_t i = 0; i < n; i++) {
        ids[i] = b->byte_id[p[i]];
        missing |= ids[i];
    }
    return missing < LT_VOCAB_MAX;
}

/* The same with characters that are sure to become one symbol as that symbol, and the first pairs' merges. What is not well-formed UTF-8, or
 * has loose ends of it behind, stays bytes. */
static bool first_sure(const lt_bpe *b, const uint8_t *p, size_t n, uint32_t *ids, size_t *n_ids) {
    uint32_t missing = 0;
    size_t out = 0, at = 0;
    while (at < n) {
        size_t size = p[at] < 0xC2 || p[at] >= 0xF0 ? 1 : p[at] < 0xE0 ? 2 : 3;
        uint32_t id = b->byte_id[p[at]];
        if (size > 1 && at + size <= n && (p[at + 1] & 0xC0) == 0x80 &&
            (size == 2 || (p[at + 2] & 0xC0) == 0x80) &&
            (at + size == n || (p[at + size] & 0xC0) != 0x80)) {
            const uint32_t cp = size == 2 ? (p[at] & 31u) << 6 | (p[at + 1] & 63u)
                                          : (p[at] & 15u) << 12 | (p[at + 1] & 63u) << 6 |
                                                (p[at + 2] & 63u);
            const uint32_t sure = size == 3 && cp < 0x800 ? LT_NO_ID : b->chars[cp];
            const uint32_t c = sure & ~LT_BPE_BY_BYTE_BEFORE;
            const bool ok = sure != LT_NO_ID &&
                            (sure == c || at == 0 ||
                             b->before_char[lt_bpe_before_char(p + at, size)] > c);
            id = ok ? c : id;
            size = ok ? size : 1;
        } else {
            size = 1;
        }
        missing |= id;
        ids[out++] = id;
        at += size;
    }
    if (missing >= LT_VOCAB_MAX) {
        return false;
    }
    *n_ids = out;
    return true;
}

/* CHARS (and BYTES with holes) as Hugging Face's merge_word: an unknown stays pending until a known symbol comes, and so
 * may pass byte-fallback symbols. */
typedef struct {
    uint32_t *ids;
    size_t n;
    bool pending, failed;
} symbols;

static void add_unknown(const lt_bpe *b, symbols *out) {
    if (b->unk == LT_NO_ID) {
        out->failed |= b->unk_missing;
        return;
    }
    if (out->pending && !b->fuse_unk) {
        out->ids[out->n++] = b->unk;
    }
    out->pending = true;
}

static void add_known(const lt_bpe *b, symbols *out, uint32_t id) {
    if (out->pending) {
        out->ids[out->n++] = b->unk;
        out->pending = false;
    }
    out->ids[out->n++] = id;
}

static bool add_fallback(const lt_bpe *b, symbols *out, const uint8_t *p, size_t n) {
    if (!b->byte_fallback) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (b->fallback_id[p[i]] == LT_NO_ID) {
            return false;
        }
    }
    for (size_t i = 0; i < n; i++) {
        out->ids[out->n++] = b->fallback_id[p[i]];
    }
    return true;
}

/* The piece of one character, dressed in the continuing prefix and end-of-word suffix where the model has them. */
static lt_err char_piece(const lt_bpe *b, lt_bpe_scratch *s, const uint8_t *p, size_t n, bool first,
                         bool last, uint32_t *id) {
    if (b->prefix[0] == '\0' && b->suffix[0] == '\0') {
        *id = lt_vocab_find(b->vocab, (const char *)p, n);
        return LT_OK;
    }
    s->word.n = 0;
    if (!first) {
        LT_TRY(lt_text_put(&s->word, b->prefix, strlen(b->prefix)));
    }
    LT_TRY(lt_text_put(&s->word, (const char *)p, n));
    if (last) {
        LT_TRY(lt_text_put(&s->word, b->suffix, strlen(b->suffix)));
    }
    *id = lt_vocab_find(b->vocab, s->word.data, s->word.n);
    return LT_OK;
}

static lt_err first_chars(const lt_bpe *b, lt_bpe_scratch *s, const uint8_t *p, size_t n,
                          uint32_t *ids, size_t *n_ids) {
    const bool dressed = b->prefix[0] != '\0' || b->suffix[0] != '\0';
    symbols out = {.ids = ids};
    size_t at = 0;
    while (at < n) {
        uint32_t id, cp;
        const size_t size = b->mode == LT_BPE_BYTES ? 1 : lt_utf8_decode(p + at, p + n, &cp);
        if (b->mode == LT_BPE_BYTES) {
            id = b->byte_id[p[at]];
        } else {
            LT_TRY(char_piece(b, s, p + at, size, at == 0, at + size == n, &id));
        }
        if (id != LT_NO_ID) {
            add_known(b, &out, id);
        } else if (!(dressed ? add_fallback(b, &out, (uint8_t *)s->word.data, s->word.n)
                             : add_fallback(b, &out, p + at, size))) {
            add_unknown(b, &out);
        }
        at += size;
    }
    if (out.failed) {
        LT_FAIL(LT_ERR_FORMAT, "a character is not in the vocabulary, nor is its unknown token");
    }
    if (out.pending) {
        out.ids[out.n++] = b->unk;
    }
    *n_ids = out.n;
    return LT_OK;
}

#define SPM_UNKNOWN (LT_VOCAB_MAX - 1) /* A symbol that takes part in no pair. */

static void first_spm(const lt_bpe *b, const uint8_t *p, size_t n, uint32_t *ids, size_t *n_ids) {
    size_t n_out = 0;
    for (size_t at = 0; at < n;) {
        uint32_t cp, id;
        const size_t size = lt_utf8_decode(p + at, p + n, &cp);
        id = lt_vocab_find(b->vocab, (const char *)p + at, size);
        if (id == LT_NO_ID) {
            id = lt_vocab_find(&b->phantom, (const char *)p + at, size);
            id = id == LT_NO_ID ? SPM_UNKNOWN : id + b->phantom_base;
        }
        ids[n_out++] = id;
        at += size;
    }
    *n_ids = n_out;
}

/* Replace what is no piece by byte pieces or <unk>; the symbols' texts, one after another, are the word. */
static lt_err finish_spm(const lt_bpe *b, const uint8_t *p, size_t n, const uint32_t *ids,
                         size_t n_ids, lt_ids *out) {
    size_t at = 0;
    LT_TRY(lt_ids_reserve(out, n));
    for (size_t i = 0; i < n_ids; i++) {
        uint32_t cp;
        symbols fallback = {.ids = out->data + out->n};
        if (ids[i] < b->phantom_base) {
            out->data[out->n++] = ids[i];
            at += b->vocab->bytes[ids[i]];
            continue;
        }
        LT_ASSERT(at < n);
        const size_t size = lt_utf8_decode(p + at, p + n, &cp);
        if (add_fallback(b, &fallback, p + at, size)) {
            out->n += fallback.n;
        } else if (b->unk != LT_NO_ID &&
                   !(b->fuse_unk && out->n > 0 && out->data[out->n - 1] == b->unk)) {
            out->data[out->n++] = b->unk;
        }
        at += size;
    }
    return LT_OK;
}

/* ids[0..n) hold the first symbols: merge them where they are or, when many, in the list. */
static lt_err merge_symbols(const lt_bpe *b, lt_bpe_scratch *s, uint32_t *ids, size_t n,
                            const uint8_t *bytes, size_t *left) {
    uint32_t merge[LT_BPE_SMALL];
    if (n <= 1) {
        *left = n;
        return LT_OK;
    }
    if (n > LT_BPE_SMALL) {
        return lt_bpe_merge_list(b, &s->list, n, left); /* ids are the list's. */
    }
    for (size_t i = 0; i + 1 < n; i++) {
        merge[i] = bytes != NULL && b->byte_pair != NULL
                       ? b->byte_pair[bytes[i] << 8 | bytes[i + 1]]
                       : lt_bpe_find_pair(b, ids[i], ids[i + 1]);
    }
    *left = lt_bpe_merge_small(b, ids, merge, n);
    return LT_OK;
}

/* Ids that n bytes in n_words words can become: one a byte, and the byte pieces of affixes where those are spelled out. */
static size_t most_symbols(const lt_bpe *b, size_t n, size_t n_words) {
    return b->byte_fallback ? n * (1 + strlen(b->prefix)) + n_words * strlen(b->suffix) : n;
}

/* Encode a word that no cache knows into s->result. */
static lt_err encode_word(const lt_bpe *b, lt_bpe_scratch *s, const uint8_t *p, size_t n) {
    uint32_t small[LT_BPE_SMALL], *ids = small;
    const uint8_t *bytes = NULL;
    size_t n_ids = n;
    const size_t room = most_symbols(b, n, 1);

    s->result.n = 0;
    if (b->ignore_merges) {
        const uint32_t id = lt_vocab_find(b->vocab, (const char *)p, n);
        if (id != LT_NO_ID) {
            LT_TRY(lt_ids_reserve(&s->result, 1));
            s->result.data[s->result.n++] = id;
            return LT_OK;
        }
    }
    if (room > LT_BPE_SMALL) {
        LT_TRY(lt_bpe_list_reserve(&s->list, room));
        ids = s->list.ids;
    }
    if (b->mode == LT_BPE_SPM) {
        first_spm(b, p, n, ids, &n_ids);
    } else if (b->chars != NULL && first_sure(b, p, n, ids, &n_ids)) {
        bytes = n_ids == n ? p : NULL;
    } else if (b->mode == LT_BPE_BYTES && first_bytes(b, p, n, ids)) {
        bytes = p;
    } else {
        LT_TRY(first_chars(b, s, p, n, ids, &n_ids));
    }
    if (n_ids <= LT_BPE_SMALL && ids != small) { /* Many bytes, few characters. */
        memcpy(small, ids, n_ids * sizeof *small);
        ids = small;
    }
    LT_TRY(merge_symbols(b, s, ids, n_ids, bytes, &n_ids));
    if (b->mode == LT_BPE_SPM) {
        return finish_spm(b, p, n, ids, n_ids, &s->result);
    }
    LT_TRY(lt_ids_reserve(&s->result, n_ids));
    memcpy(s->result.data, ids, n_ids * sizeof *ids);
    s->result.n = n_ids;
    return LT_OK;
}

static uint64_t mix(uint64_t a, uint64_t b) {
    const uint64_t h = (a ^ (b * 0xC2B2AE3D27D4EB4Fu)) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

/* The first n <= 15 bytes at p as two words, the length in the last byte. */
static inline void short_key(const uint8_t *p, size_t n, const uint8_t *readable_end,
                             uint64_t key[2]) {
    uint8_t padded[16] = {0};
    if ((size_t)(readable_end - p) >= 16) {
        memcpy(key, p, 16);
        if (n <= 8) {
            key[0] = n == 8 ? key[0] : key[0] & ((1ull << 8 * n) - 1);
            key[1] = 0;
        } else {
            key[1] &= (1ull << 8 * (n - 8)) - 1;
        }
    } else {
        memcpy(padded, p, n);
        memcpy(key, padded, 16);
    }
    key[1] |= (uint64_t)n << 56;
}

static void long_key(const uint8_t *p, size_t n, uint64_t key[4]) {
    uint8_t padded[32] = {0};
    memcpy(padded, p, n);
    padded[31] = (uint8_t)n;
    memcpy(key, padded, 32);
}

static short_entry *short_set(const lt_bpe_scratch *s, const uint64_t key[2]) {
    return s->shorts + 2 * (mix(key[0], key[1]) >> (64 - SHORT_BITS));
}

static long_entry *long_slot(const lt_bpe_scratch *s, const uint64_t key[4]) {
    return s->longs + (mix(mix(key[0], key[1]), mix(key[2], key[3])) >> (64 - LONG_BITS));
}

/* SentencePiece joins unknowns across words too. */
static void put_ids(const lt_bpe *b, lt_ids *out, size_t floor, const uint32_t *ids, size_t n) {
    if (b->mode == LT_BPE_SPM && b->fuse_unk && n > 0 && ids[0] == b->unk && out->n > floor &&
        out->data[out->n - 1] == b->unk) {
        ids++;
        n--;
    }
    memcpy(out->data + out->n, ids, n * sizeof *ids);
    out->n += n;
}

/* A word that is not in the short table: the long table takes what is longer or has more ids. */
static lt_err encode_long(const lt_bpe *b, lt_bpe_scratch *s, lt_span word, lt_ids *out,
                          size_t floor) {
    uint64_t key[4];
    long_entry *slot;

    if (word.n > LONG_BYTES) {
        LT_TRY(encode_word(b, s, word.p, word.n));
        put_ids(b, out, floor, s->result.data, s->result.n);
        return LT_OK;
    }
    long_key(word.p, word.n, key);
    slot = long_slot(s, key);
    if (memcmp(slot->key, key, sizeof key) == 0) {
        put_ids(b, out, floor, slot->ids, slot->n);
        return LT_OK;
    }
    LT_TRY(encode_word(b, s, word.p, word.n));
    if (s->result.n <= 7) {
        memcpy(slot->key, key, sizeof key);
        memcpy(slot->ids, s->result.data, s->result.n * sizeof *slot->ids);
        slot->n = (uint32_t)s->result.n;
    }
    put_ids(b, out, floor, s->result.data, s->result.n);
    return LT_OK;
}

static lt_err miss_short(const lt_bpe *b, lt_bpe_scratch *s, lt_span word, const uint64_t key[2],
                         short_entry *set, lt_ids *out, size_t floor) {
    const size_t before = out->n;
    LT_TRY(encode_long(b, s, word, out, floor));
    if (out->n - before <= 3 &&
        (b->mode != LT_BPE_SPM || before == floor || out->data[before - 1] != b->unk)) {
        set[1] =
            set[0]; /* Not behind an <unk>, with which this word's first id may have been joined. */
        set[0] = (short_entry){.key = {key[0], key[1]}, .n = (uint32_t)(out->n - before)};
        memcpy(set[0].ids, out->data + before, (out->n - before) * sizeof *out->data);
    }
    return LT_OK;
}

static lt_err encode_short(const lt_bpe *b, lt_bpe_scratch *s, lt_span word, const uint64_t key[2],
                           short_entry *set, lt_ids *out, size_t floor) {
    if (set[0].key[0] == key[0] && set[0].key[1] == key[1]) {
        if (set[0].n == 1 && b->mode != LT_BPE_SPM) {
            out->data[out->n++] = set[0].ids[0];
            return LT_OK;
        }
    } else if (set[1].key[0] == key[0] && set[1].key[1] == key[1]) {
        const short_entry hit = set[1];
        set[1] = set[0];
        set[0] = hit;
    } else {
        return miss_short(b, s, word, key, set, out, floor);
    }
    put_ids(b, out, floor, set[0].ids, set[0].n);
    return LT_OK;
}

static lt_err encode_batch(const lt_bpe *b, lt_bpe_scratch *s, const lt_span *words, size_t n,
                           const uint8_t *readable_end, lt_ids *out, size_t floor) {
    uint64_t keys[BATCH][2];
    short_entry *sets[BATCH];
    size_t bytes = 0;

    LT_ASSERT(n <= BATCH);
    for (size_t i = 0; i < n; i++) {
        bytes += words[i].n;
        if (words[i].n <= SHORT_BYTES) {
            short_key(words[i].p, words[i].n, readable_end, keys[i]);
            sets[i] = short_set(s, keys[i]);
            __builtin_prefetch(sets[i]);
        }
    }
    LT_TRY(lt_ids_reserve(out, most_symbols(b, bytes, n)));
    for (size_t i = 0; i < n; i++) {
        if (words[i].n <= SHORT_BYTES) {
            LT_TRY(encode_short(b, s, words[i], keys[i], sets[i], out, floor));
        } else {
            LT_TRY(encode_long(b, s, words[i], out, floor));
        }
    }
    return LT_OK;
}

lt_err lt_bpe_encode(const lt_bpe *b, lt_bpe_scratch *s, const lt_span *words, size_t n_words,
                     const uint8_t *readable_end, size_t floor, lt_ids *out) {
    for (size_t i = 0; i < n_words; i += BATCH) {
        const size_t n = n_words - i < BATCH ? n_words - i : BATCH;
        LT_TRY(encode_batch(b, s, words + i, n, readable_end, out, floor));
    }
    return LT_OK;
}
