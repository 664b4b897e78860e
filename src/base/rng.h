/* rng.h: counter-based random numbers (Philox 4x32-10, Salmon et al. 2011, "Parallel Random
 * Numbers: As Easy as 1, 2, 3"). A draw is a pure function of (seed, stream, position): only the
 * position must be saved, any position can be drawn directly, and threads share no state. */
#ifndef LT_BASE_RNG_H
#define LT_BASE_RNG_H

#include <stdint.h>

/* Four independent 32-bit words at (seed, stream, position). */
void lt_rng_block(uint32_t out[4], uint64_t seed, uint64_t stream, uint64_t position);

/* A cursor over one stream, for sequential use; copying it copies the position. */
typedef struct {
    uint64_t seed, stream, position;
} lt_rng;

uint64_t lt_rng_u64(lt_rng *r);
uint64_t lt_rng_below(lt_rng *r, uint64_t n); /* Uniform in [0, n), unbiased; n > 0. */
double lt_rng_uniform(lt_rng *r);             /* [0, 1), 53 bits. */
/* Mean 0, variance 1 (Box-Muller, one number per call). */
double lt_rng_normal(lt_rng *r);

/* The place of item i of n in shuffle number `epoch`: a format-preserving Feistel network over [0,
 * n), which needs no table. */
uint64_t lt_rng_permute(uint64_t i, uint64_t n, uint64_t seed, uint64_t epoch);

/* splitmix64's finaliser: a cheap 64-bit mixing function for hashes and seeds. */
uint64_t lt_rng_mix(uint64_t x);

#endif
