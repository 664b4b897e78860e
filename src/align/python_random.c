/* python_random.c: see python_random.h. */
#include "align/python_random.h"

#include <stdbool.h>

#include "base/error.h"

#define N 624
#define M 397

static void init(lt_python_random *r, uint32_t seed) {
    r->state[0] = seed;
    for (uint32_t i = 1; i < N; i++) {
        r->state[i] = 1812433253u * (r->state[i - 1] ^ r->state[i - 1] >> 30) + i;
    }
    r->at = N;
}

/* init_by_array with one word, as Python's seed(int) does. */
void lt_python_random_seed(lt_python_random *r, uint32_t seed) {
    uint32_t *s = r->state, i = 1;
    init(r, 19650218u);
    for (int k = 0; k < N; k++) {
        s[i] = (s[i] ^ (s[i - 1] ^ s[i - 1] >> 30) * 1664525u) + seed;
        if (++i == N) {
            s[0] = s[N - 1];
            i = 1;
        }
    }
    for (int k = 0; k < N - 1; k++) {
        s[i] = (s[i] ^ (s[i - 1] ^ s[i - 1] >> 30) * 1566083941u) - i;
        if (++i == N) {
            s[0] = s[N - 1];
            i = 1;
        }
    }
    s[0] = 0x80000000u;
}

static uint32_t next(lt_python_random *r) {
    uint32_t y;
    if (r->at == N) {
        for (int i = 0; i < N; i++) {
            y = (r->state[i] & 0x80000000u) | (r->state[(i + 1) % N] & 0x7FFFFFFFu);
            r->state[i] = r->state[(i + M) % N] ^ y >> 1 ^ (y & 1 ? 0x9908B0DFu : 0);
        }
        r->at = 0;
    }
    y = r->state[r->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9D2C5680u;
    y ^= y << 15 & 0xEFC60000u;
    return y ^ y >> 18;
}

/* _randbelow_with_getrandbits; n < 2^32. */
static int64_t below(lt_python_random *r, int64_t n) {
    int bits = 0;
    int64_t x;
    while (n >> bits != 0) {
        bits++;
    }
    do {
        x = next(r) >> (32 - bits);
    } while (x >= n);
    return x;
}

/* Python copies a small population into a pool, and for a large one remembers what it has drawn. */
static bool uses_pool(int64_t n, int64_t k) {
    int64_t most = 21, power = 1;
    while (k > 5 && power < 3 * k) { /* 4 ** ceil(log(3 k, 4)) */
        power *= 4;
    }
    most += k > 5 ? power : 0;
    return n <= most;
}

void lt_python_random_sample(lt_python_random *r, int64_t n, int64_t k, int64_t *out) {
    int64_t pool[512];
    LT_ASSERT(k >= 1 && k <= n && k <= 64 && n < (int64_t)1 << 32);
    if (uses_pool(n, k)) {
        for (int64_t i = 0; i < n; i++) {
            pool[i] = i;
        }
        for (int64_t i = 0; i < k; i++) {
            const int64_t j = below(r, n - i);
            out[i] = pool[j];
            pool[j] = pool[n - i - 1];
        }
        return;
    }
    for (int64_t i = 0; i < k; i++) {
        bool taken = true;
        while (taken) {
            out[i] = below(r, n);
            taken = false;
            for (int64_t j = 0; j < i; j++) {
                taken = taken || out[j] == out[i];
            }
        }
    }
}
