/* bpe_lanes.c: merges many words side by side.
 *
 * Merging a word is a chain of dependent steps: find the best pair, look up two new pairs at random
 * places of a table of several megabytes, find the best pair again. If words were merged one after
 * another, half of the time would be spent waiting for these lookups. So the words of a batch that
 * are in no cache are merged in turn, one step of each. A step ends by prefetching the slots of its
 * new pairs, which have arrived when the word's next turn comes.
 *
 *     symbols of word 1 ── pairs ahead ── least, merge, pairs ahead ── least, merge, ...
 *     symbols of word 2 ──────── pairs ahead ── least, merge, pairs ahead ── ...
 *
 * No branch depends on the result of a lookup, because it is unpredictable, and a misprediction
 * costs as much as 60 instructions. The smallest key is taken over a fixed number of keys. The ends
 * of a word are symbols too, whose lookups find nothing.
 *
 * The order of merges within a word, and the keys (rank, place), smallest first, are those of
 * merge_chained in bpe.c. */
#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/bpe_merge.h"

#define PLACE_BITS 5
#define SHORT_LANE 16 /* Most words have at most so many places. */
#define NO_PAIR    (int32_t)(LT_BPE_NO_MERGE << PLACE_BITS) /* Keys from here on are no pairs. */
#define NO_SYMBOL  LT_NO_ID                                 /* The symbol at both ends. */
static_assert(LT_BPE_LANE + 2 <= 1 << PLACE_BITS, "a place fits its bits");

static inline int32_t pair_key(uint32_t merge, size_t place) {
    return (int32_t)(merge << PLACE_BITS | (uint32_t)place);
}

typedef int32_t four __attribute__((vector_size(16)));

static inline four lesser(four a, four b) {
    const four less = a < b;
    return (a & less) | (b & ~less);
}

static inline int32_t least_of(const int32_t *keys, int n) {
    four out, next;
    int32_t of[4];
    memcpy(&out, keys, sizeof out);
    for (int i = 4; i < n; i += 4) {
        memcpy(&next, keys + i, sizeof next);
        out = lesser(out, next);
    }
    memcpy(of, &out, sizeof of);
    of[0] = of[1] < of[0] ? of[1] : of[0];
    of[2] = of[3] < of[2] ? of[3] : of[2];
    return of[2] < of[0] ? of[2] : of[0];
}

/* The smallest key. It is taken over a fixed number of keys, so that the end of the loop is
 * predicted; most words are short. */
static inline int32_t least(const lt_bpe_lane *l) {
    return l->n < SHORT_LANE ? least_of(l->keys, SHORT_LANE) : least_of(l->keys, LT_BPE_LANE + 2);
}

/* Prefetch the slots of the pair of two neighbours. Pairs with an end have no slots; `nowhere`,
 * which is always in the cache, stands for them, chosen by a mask because a branch could be
 * mispredicted. */
static inline void ask(const lt_bpe *b, lt_bpe_lane *l, int which, uint32_t left, uint32_t right) {
    static const uint64_t nowhere[LT_BPE_BUCKET] = {0};
    const uint64_t pair = lt_bpe_pair(left, right);
    const uintptr_t inside = (uintptr_t)0 - (uintptr_t)((left != NO_SYMBOL) & (right != NO_SYMBOL));
    const uintptr_t home = ((uintptr_t)lt_bpe_home(b, pair) & inside) |
                           ((uintptr_t)nowhere & ~inside);
    l->pair[which] = pair;
    l->home[which] = (const uint64_t *)home;
    __builtin_prefetch(l->home[which]);
}

static void chain(const lt_bpe *b, lt_bpe_lane *l) {
    const size_t n = l->n;
    l->ids[0] = l->ids[n + 1] = NO_SYMBOL;
    for (size_t i = 0; i < LT_BPE_LANE + 2; i++) {
        l->next[i] = (uint8_t)(i + 1);
        l->prev[i] = (uint8_t)(i - 1);
        l->keys[i] = NO_PAIR;
    }
    for (size_t i = 1; i < n; i++) {
        lt_bpe_fetch_pair(b, l->ids[i], l->ids[i + 1]);
    }
}

static void rank_all(const lt_bpe *b, lt_bpe_lane *l) {
    for (size_t i = 1; i < l->n; i++) {
        const uint64_t pair = lt_bpe_pair(l->ids[i], l->ids[i + 1]);
        l->keys[i] = pair_key(lt_bpe_find_from(b, lt_bpe_home(b, pair), pair), i);
    }
}

/* Merge the best pair into one symbol, and prefetch the pairs with its new neighbours. False: there
 * is no pair. */
static inline bool step(const lt_bpe *b, lt_bpe_lane *l) {
    const int32_t best = least(l);
    const size_t at = (size_t)best & ((1 << PLACE_BITS) - 1), gone = l->next[at];
    if (best >= NO_PAIR) {
        return false;
    }
    const size_t before = l->prev[at], after = l->next[gone];
    const uint32_t id = lt_bpe_piece_of(b, (uint32_t)best >> PLACE_BITS);
    l->ids[at] = id;
    l->next[at] = (uint8_t)after;
    l->prev[after] = (uint8_t)at;
    l->keys[gone] = NO_PAIR;
    l->at[0] = (uint8_t)before;
    l->at[1] = (uint8_t)at;
    ask(b, l, 0, l->ids[before], id);
    ask(b, l, 1, id, l->ids[after]);
    return true;
}

/* Compute the keys of the pairs around the symbol that was merged last. */
static inline void rank(const lt_bpe *b, lt_bpe_lane *l) {
    for (int i = 0; i < 2; i++) {
        l->keys[l->at[i]] = pair_key(lt_bpe_find_from(b, l->home[i], l->pair[i]), l->at[i]);
    }
}

static void close_up(lt_bpe_lane *l) {
    size_t left = 0;
    for (size_t i = 1; l->ids[i] != NO_SYMBOL; i = l->next[i]) {
        l->ids[left++] = l->ids[i];
    }
    l->n = (uint8_t)left;
}

void lt_bpe_merge_lanes(const lt_bpe *b, lt_bpe_lane *const *lanes, size_t n_lanes) {
    lt_bpe_lane *open[LT_BPE_LANES];
    size_t n_open = 0;

    LT_ASSERT(n_lanes <= LT_BPE_LANES);
    for (size_t i = 0; i < n_lanes; i++) {
        chain(b, lanes[i]);
    }
    for (size_t i = 0; i < n_lanes; i++) {
        rank_all(b, lanes[i]);
        open[n_open++] = lanes[i];
    }
    while (n_open > 0) {
        size_t kept = 0;
        for (size_t i = 0; i < n_open; i++) {
            open[kept] = open[i];
            kept += step(b, open[i]);
        }
        n_open = kept;
        for (size_t i = 0; i < n_open;
             /* In a separate loop, because a wide load of keys would wait for the narrow stores
              * before it. */
             i++) {
            rank(b, open[i]);
        }
    }
    for (size_t i = 0; i < n_lanes; i++) {
        close_up(lanes[i]);
    }
}
