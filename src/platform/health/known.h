/* known.h: a matrix product whose bits are known beforehand.
 *
 * All elements of a (side, K) and b (side, K) are whole numbers from -2 to 2, so that every partial
 * sum of y = a b^T is a whole number below 2^24, which fp32 holds exactly: y has the same bits in
 * any order of summation, on any processor, from fp32 or bf16 operands. Rows repeat after PERIOD,
 * so y consists of equal tiles. The first tile is compared with a checksum that was computed
 * elsewhere (tools/make_health_golden.py), and the others with the first. A product may be
 * accumulated ROUNDS times into y, and each element of the sum is ROUNDS times that of one product.
 * */
#ifndef LT_PLATFORM_HEALTH_KNOWN_H
#define LT_PLATFORM_HEALTH_KNOWN_H

#include <stdbool.h>
#include <stdint.h>

#include "lateen/tensor.h"

#define LT_KNOWN_PERIOD 256
#define LT_KNOWN_K      512
#define LT_KNOWN_ROUNDS 64 /* The largest sum is 4 * 512 * 64 = 2^17. */
/* SHA-256 of the first tile of the product, (256, 256) in fp32, little-endian. */
#define LT_KNOWN_SHA256 "0036f56220007e06b7fdcaf7c356acbed261d86f35f967d42b822366def68ec7"

/* Fill `side` rows (a multiple of the period) of a or b, (side, K), of F32 or BF16. */
void lt_known_fill(void *out, lt_dtype dtype, int64_t side, bool is_b);
/* *holds: y (side, side) F32, the sum of `rounds` products, has the known bits. Fails only if
 * memory is exhausted. */
LT_MUST_USE lt_err lt_known_check(bool *holds, const float *y, int64_t side, int rounds);

#endif
