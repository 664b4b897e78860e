/* rng.c: Philox 4x32-10, checked against the published known-answer vectors in test_rng.c. */
#include "base/rng.h"

#include <math.h>

#include "base/error.h"

#define PHILOX_M0     0xD2511F53u /* Multipliers and Weyl constants of the paper, table 2. */
#define PHILOX_M1     0xCD9E8D57u
#define PHILOX_W0     0x9E3779B9u
#define PHILOX_W1     0xBB67AE85u
#define PHILOX_ROUNDS 10

void lt_rng_block(uint32_t out[4], uint64_t seed, uint64_t stream, uint64_t position) {
    uint32_t c0 = (uint32_t)position, c1 = (uint32_t)(position >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const uint64_t p0 = (uint64_t)PHILOX_M0 * c0;
        const uint64_t p1 = (uint64_t)PHILOX_M1 * c2;
        const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        const uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

uint64_t lt_rng_u64(lt_rng *r) {
    uint32_t w[4];
    lt_rng_block(w, r->seed, r->stream, r->position++);
    return (uint64_t)w[1] << 32 | w[0];
}

uint64_t lt_rng_below(lt_rng *r, uint64_t n) {
    uint64_t reject_under, x;
    LT_ASSERT(n > 0);
    reject_under = (0 - n) % n; /* 2^64 mod n: draws below it would favour small results. */
    do {
        x = lt_rng_u64(r);
    } while (x < reject_under);
    return x % n;
}

double lt_rng_uniform(lt_rng *r) {
    return (double)(lt_rng_u64(r) >> 11) * 0x1p-53;
}

double lt_rng_normal(lt_rng *r) {
    uint32_t w[4];
    double u, v;
    lt_rng_block(w, r->seed, r->stream, r->position++);
    u = ((double)((uint64_t)w[1] << 32 | w[0]) + 1.0) * 0x1p-64; /* (0, 1]: the log is finite. */
    v = (double)((uint64_t)w[3] << 32 | w[2]) * 0x1p-64;
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586476925 * v);
}

uint64_t lt_rng_mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

uint64_t lt_rng_permute(uint64_t i, uint64_t n, uint64_t seed, uint64_t epoch) {
    unsigned half_bits = 1;
    uint64_t mask;
    LT_ASSERT(n > 0 && i < n);
    while (half_bits < 32 && (uint64_t)1 << (2 * half_bits) < n) {
        half_bits++;
    }
    mask = ((uint64_t)1 << half_bits) - 1;
    do { /* Cycle walking: the network permutes a power of four < 4n; repeat until inside [0, n). */
        uint64_t left = i >> half_bits, right = i & mask;
        for (uint64_t round = 0; round < 6; round++) {
            const uint64_t f = lt_rng_mix(right ^ lt_rng_mix(seed ^ lt_rng_mix(epoch * 8 + round)));
            const uint64_t next = left ^ (f & mask);
            left = right;
            right = next;
        }
        i = left << half_bits | right;
    } while (i >= n);
    return i;
}
