/* bpe_cache.c: encodes words as ids: the cache of recent words, and the encoding of words that
 * are not in it.
 *
 * Text repeats itself: nine words in ten have occurred shortly before. So the ids of words are
 * kept in two tables of a fixed size, which belong to a thread:
 *
 *     SHORT  up to 15 bytes and 3 ids   32 bytes an entry, two to a cache line = one set, most
 *            recent first
 *     LONG   up to 31 bytes and 7 ids   64 bytes an entry, direct-mapped
 *
 * The key is the word itself, zero-padded, with its length in the last byte, so a hit takes two (or
 * four) 64-bit comparisons, and no two words can collide. All tables are larger than the
 * first-level cache, so lt_bpe_encode works in batches of words, and each step prefetches what the
 * next one reads:
 *
 *     keys ──▶ sets ──▶ words not there: long slot, vocabulary's slot
 *         ──▶ still not there: first symbols ──▶ merging (bpe_lanes.c)
 *
 * and then resolves the words in order, as if one by one; the earlier steps only make results known
 * sooner. */
#include "data/tokenizer/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/bpe_merge.h"

/* Set by libFuzzer: setting up a cache for each call would take all the time. */
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
#define SHORT_BITS 4
#define LONG_BITS  4
#else
#define SHORT_BITS 15 /* Sets of 64 bytes: 2 MiB. */
#define LONG_BITS  13 /* 512 KiB. */
#endif
#define SHORT_BYTES 15
#define LONG_BYTES  31
#define LONG_IDS    7
#define BATCH       LT_BPE_LANES

typedef struct {
    uint64_t key[2];
    uint32_t ids[3], n;
} short_entry;

typedef struct {
    uint64_t key[4];
    uint32_t ids[LONG_IDS], n;
} long_entry;

/* A word that is not among the short ones. */
typedef struct {
    const uint8_t *p;
    size_t n;
    uint64_t key[4], hash; /* Key in the long table; hash in the vocabulary. */
    bool known;            /* Its ids are in its lane. */
    lt_bpe_lane lane;
} missed;

struct lt_bpe_scratch {
    short_entry *shorts; /* (2 << SHORT_BITS) in lines of 64 bytes */
    long_entry *longs;   /* (1 << LONG_BITS) */
    lt_bpe_word word;
    missed missed[BATCH];
};

lt_err lt_bpe_scratch_open(lt_bpe_scratch **out) {
    lt_bpe_scratch *s = calloc(1, sizeof *s);
    if (s != NULL) {
        s->shorts = lt_table_new(sizeof *s->shorts << (SHORT_BITS + 1));
        s->longs = lt_table_new(sizeof *s->longs << LONG_BITS);
    }
    if (s == NULL || s->shorts == NULL || s->longs == NULL) {
        lt_bpe_scratch_close(s);
        LT_FAIL(LT_ERR_OOM, "word cache of a tokenizer");
    }
    *out = s;
    return LT_OK;
}

void lt_bpe_scratch_close(lt_bpe_scratch *s) {
    if (s == NULL) {
        return;
    }
    free(s->shorts);
    free(s->longs);
    lt_bpe_word_free(&s->word);
    free(s);
}

static uint64_t mix(uint64_t a, uint64_t b) {
    const uint64_t h = (a ^ (b * 0xC2B2AE3D27D4EB4Fu)) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

/* The first n < 8 * words bytes at p, then zeros, and n in the last byte. */
static inline void word_key(const uint8_t *p, size_t n, const uint8_t *readable_end, size_t words,
                            uint64_t *key) {
    /* Ones, then zeros: a window of them masks n bytes. */
    static const uint64_t all[8] = {~0ull, ~0ull, ~0ull, ~0ull};
    uint64_t mask[4];
    if ((size_t)(readable_end - p) >= 8 * words) {
        memcpy(mask, (const char *)all + 32 - n, 8 * words);
        memcpy(key, p, 8 * words);
        for (size_t i = 0; i < words; i++) {
            key[i] &= mask[i];
        }
    } else {
        memset(key, 0, 8 * words);
        memcpy(key, p, n);
    }
    key[words - 1] |= (uint64_t)n << 56;
}

static short_entry *short_set(const lt_bpe_scratch *s, const uint64_t key[2]) {
    return s->shorts + 2 * (mix(key[0], key[1]) >> (64 - SHORT_BITS));
}

static long_entry *long_slot(const lt_bpe_scratch *s, const uint64_t key[4]) {
    return s->longs + (mix(mix(key[0], key[1]), mix(key[2], key[3])) >> (64 - LONG_BITS));
}

/* Append ids. SentencePiece joins unknowns across words, too. */
static void put_ids(const lt_bpe *b, lt_ids *out, size_t floor, const uint32_t *ids, size_t n) {
    if (b->mode == LT_BPE_SPM && b->fuse_unk && n > 0 && ids[0] == b->unk && out->n > floor &&
        out->data[out->n - 1] == b->unk) {
        ids++;
        n--;
    }
    memcpy(out->data + out->n, ids, n * sizeof *ids);
    out->n += n;
}

/* Look up a word that is not in the short table. The long table takes words that are longer or have
 * more ids. */
static lt_err encode_long(const lt_bpe *b, lt_bpe_scratch *s, const missed *m, lt_ids *out,
                          size_t floor) {
    long_entry *slot = long_slot(s, m->key);
    const uint32_t *ids = m->lane.ids;
    size_t n = m->lane.n;

    if (memcmp(slot->key, m->key, sizeof m->key) == 0) {
        put_ids(b, out, floor, slot->ids, slot->n);
        return LT_OK;
    }
    if (!m->known) {
        LT_TRY(lt_bpe_encode_word(b, &s->word, m->p, m->n));
        ids = s->word.result.data;
        n = s->word.result.n;
    }
    if (n <= LONG_IDS) {
        memcpy(slot->key, m->key, sizeof m->key);
        memcpy(slot->ids, ids, n * sizeof *ids);
        slot->n = (uint32_t)n;
    }
    put_ids(b, out, floor, ids, n);
    return LT_OK;
}

/* Encode a word that is too long for both tables. */
static lt_err encode_longest(const lt_bpe *b, lt_bpe_scratch *s, lt_span word, lt_ids *out,
                             size_t floor) {
    LT_TRY(lt_bpe_encode_word(b, &s->word, word.p, word.n));
    put_ids(b, out, floor, s->word.result.data, s->word.result.n);
    return LT_OK;
}

static lt_err miss_short(const lt_bpe *b, lt_bpe_scratch *s, const missed *m, const uint64_t key[2],
                         short_entry *set, lt_ids *out, size_t floor) {
    const size_t before = out->n;
    LT_TRY(encode_long(b, s, m, out, floor));
    if (out->n - before <= 3 &&
        (b->mode != LT_BPE_SPM || before == floor || out->data[before - 1] != b->unk)) {
        /* Not after an <unk>, with which this word's first id may have been joined. */
        set[1] = set[0];
        set[0] = (short_entry){.key = {key[0], key[1]}, .n = (uint32_t)(out->n - before)};
        memcpy(set[0].ids, out->data + before, (out->n - before) * sizeof *out->data);
    }
    return LT_OK;
}

static inline bool same(const short_entry *e, const uint64_t key[2]) {
    return e->key[0] == key[0] && e->key[1] == key[1];
}

/* Append the ids of a word of up to 15 bytes that is in its set. */
static inline void hit_short(const lt_bpe *b, short_entry *set, const uint64_t key[2], lt_ids *out,
                             size_t floor) {
    if (!same(&set[0], key)) {
        const short_entry hit = set[1];
        set[1] = set[0];
        set[0] = hit;
    } else if (set[0].n == 1 && b->mode != LT_BPE_SPM) {
        out->data[out->n++] = set[0].ids[0];
        return;
    }
    put_ids(b, out, floor, set[0].ids, set[0].n);
}

static missed *miss(lt_bpe_scratch *s, size_t i, lt_span word, const uint8_t *readable_end) {
    missed *m = &s->missed[i];
    m->p = word.p;
    m->n = word.n;
    m->known = false;
    word_key(word.p, word.n, readable_end, 4, m->key);
    return m;
}

/* Find the ids of all words that are in no table, side by side. */
static void encode_ahead(const lt_bpe *b, lt_bpe_scratch *s, missed *const *words, size_t n) {
    lt_bpe_lane *lanes[BATCH];
    size_t n_lanes = 0;
    for (size_t i = 0; i < n; i++) {
        __builtin_prefetch(long_slot(s, words[i]->key));
        if (b->ignore_merges) {
            words[i]->hash = lt_vocab_hash((const char *)words[i]->p, words[i]->n);
            lt_vocab_prefetch_slot(b->vocab, words[i]->hash);
        }
    }
    for (size_t i = 0; i < n; i++) {
        missed *m = words[i];
        uint32_t id = LT_NO_ID;
        if (memcmp(long_slot(s, m->key)->key, m->key, sizeof m->key) == 0) {
            continue;
        }
        if (b->ignore_merges && (id = lt_vocab_likely(b->vocab, m->hash)) != LT_NO_ID) {
            lt_vocab_prefetch_piece(b->vocab, id);
        } else if (lt_bpe_lane_start(b, &m->lane, m->p, m->n)) {
            m->known = true;
            lanes[n_lanes++] = &m->lane;
        }
    }
    lt_bpe_merge_lanes(b, lanes, n_lanes);
}

static lt_err encode_batch(const lt_bpe *b, lt_bpe_scratch *s, const lt_span *words, size_t n,
                           const uint8_t *readable_end, lt_ids *out, size_t floor) {
    uint64_t keys[BATCH][2];
    short_entry *sets[BATCH];
    missed *ahead[BATCH], *of[BATCH];
    size_t bytes = 0, n_ahead = 0;

    LT_ASSERT(n <= BATCH);
    for (size_t i = 0; i < n; i++) {
        bytes += words[i].n;
        if (words[i].n <= SHORT_BYTES) {
            word_key(words[i].p, words[i].n, readable_end, 2, keys[i]);
            sets[i] = short_set(s, keys[i]);
            __builtin_prefetch(sets[i]);
        }
    }
    LT_TRY(lt_ids_reserve(out, lt_bpe_most_symbols(b, bytes, n)));
    for (size_t i = 0; i < n; i++) {
        of[i] = NULL;
        if (words[i].n <= LONG_BYTES &&
            (words[i].n > SHORT_BYTES ||
             (!same(&sets[i][0], keys[i]) && !same(&sets[i][1], keys[i])))) {
            of[i] = ahead[n_ahead++] = miss(s, i, words[i], readable_end);
        }
    }
    if (n_ahead > 0 && lt_bpe_has_lanes(b)) {
        encode_ahead(b, s, ahead, n_ahead);
    }
    for (size_t i = 0; i < n; i++) {
        if (words[i].n > LONG_BYTES) {
            LT_TRY(encode_longest(b, s, words[i], out, floor));
        } else if (words[i].n > SHORT_BYTES) {
            LT_TRY(encode_long(b, s, of[i], out, floor));
        } else if (same(&sets[i][0], keys[i]) || same(&sets[i][1], keys[i])) {
            hit_short(b, sets[i], keys[i], out, floor);
        } else {
            LT_TRY(miss_short(b, s, of[i] != NULL ? of[i] : miss(s, i, words[i], readable_end),
                              keys[i], sets[i], out, floor));
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
