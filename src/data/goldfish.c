/* goldfish.c: see goldfish.h.
 *
 * torch.rand on a CPU draws one word of a Mersenne Twister (MT19937, Matsumoto & Nishimura 1998)
 * for each element and keeps its low 24 bits as a fraction, so the entries are integers below 2^24,
 * and only "u < 1/k" is needed: one bit per entry, 125 KB, which stays in the second-level cache.
 * (1/k in float or in double makes no difference: no multiple of 2^-24 lies between.)
 *
 * Products over a sliding window: dividing the oldest label out is impossible modulo 2^64 (even
 * numbers have no inverse), and h products for each label are slow. The trick of van Herk and of
 * Gil and Werman needs three: cut the labels into blocks of h; a window is the tail of one block
 * times the head of the next. */
#include "data/goldfish.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define TABLE_SEED    2971215073u /* Fibonacci number 47, a prime: as in the reference. */
#define MT_WORDS      624
#define MT_MIDDLE     397
#define FRACTION_BITS 24

struct lt_goldfish {
    int64_t h;
    uint64_t *tail; /* (h) products of the previous block from index i to its end. */
    uint64_t drop[LT_GOLDFISH_TABLE / 64 + 1];
};

static void twist(uint32_t mt[MT_WORDS]) {
    for (int i = 0; i < MT_WORDS; i++) {
        const uint32_t y = (mt[i] & 0x80000000u) | (mt[(i + 1) % MT_WORDS] & 0x7FFFFFFFu);
        mt[i] = mt[(i + MT_MIDDLE) % MT_WORDS] ^ (y >> 1) ^ ((y & 1) != 0 ? 0x9908B0DFu : 0);
    }
}

void lt_goldfish_table(uint32_t *out_2p24) {
    uint32_t mt[MT_WORDS] = {TABLE_SEED};
    for (uint32_t i = 1; i < MT_WORDS; i++) {
        mt[i] = 1812433253u * (mt[i - 1] ^ (mt[i - 1] >> 30)) + i;
    }
    for (size_t i = 0; i < LT_GOLDFISH_TABLE; i++) {
        uint32_t y;
        if (i % MT_WORDS == 0) {
            twist(mt);
        }
        y = mt[i % MT_WORDS];
        y ^= y >> 11;
        y ^= y << 7 & 0x9D2C5680u;
        y ^= y << 15 & 0xEFC60000u;
        y ^= y >> 18;
        out_2p24[i] = y & (((uint32_t)1 << FRACTION_BITS) - 1);
    }
}

lt_err lt_goldfish_open(lt_goldfish **out, int64_t k, int64_t h) {
    lt_err err = LT_OK;
    uint32_t *table = malloc(LT_GOLDFISH_TABLE * sizeof *table);
    lt_goldfish *g = calloc(1, sizeof *g);

    LT_ASSERT(k >= 1 && h >= 1);
    if (g == NULL || table == NULL || (g->tail = malloc((size_t)h * sizeof *g->tail)) == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "Goldfish table, h = %lld", (long long)h);
    }
    g->h = h;
    lt_goldfish_table(table);
    for (size_t i = 0; i < LT_GOLDFISH_TABLE; i++) {
        if ((uint64_t)table[i] * (uint64_t)k < (uint64_t)1 << FRACTION_BITS) {
            g->drop[i / 64] |= (uint64_t)1 << i % 64;
        }
    }
    *out = g;
    g = NULL;
done:
    free(table);
    lt_goldfish_close(g);
    return err;
}

void lt_goldfish_close(lt_goldfish *g) {
    if (g != NULL) {
        free(g->tail);
        free(g);
    }
}

static bool drops(const lt_goldfish *g, uint64_t product) {
    int64_t key = (int64_t)product % LT_GOLDFISH_TABLE;
    key += key < 0 ? LT_GOLDFISH_TABLE : 0;
    return (g->drop[key / 64] >> key % 64 & 1) != 0;
}

void lt_goldfish_mark(lt_goldfish *g, bool *dropped, const int32_t *labels, int64_t n) {
    const int64_t h = g->h;
    for (int64_t first = 0; first < n; first += h) {
        const int64_t count = n - first < h ? n - first : h;
        uint64_t head = 1, tail = 1;
        for (int64_t i = 0; i < count; i++) { /* The window that ends at first + i. */
            head *= (uint64_t)(int64_t)labels[first + i];
            if (i == h - 1) {
                dropped[first + i] = drops(g, head);
            } else {
                dropped[first + i] = first > 0 && drops(g, head * g->tail[i + 1]);
            }
        }
        for (int64_t i = count - 1; count == h && i >= 0; i--) {
            tail *= (uint64_t)(int64_t)labels[first + i];
            g->tail[i] = tail;
        }
    }
}
