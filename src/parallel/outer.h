/* outer.h: the arithmetic of an outer step, which brings together the parameters of sites that
 * train apart (DiLoCo, Douillard et al. 2023, arXiv:2311.08105, algorithm 1).
 *
 *     delta_k = outer - own_k                       of site k, encoded and sent
 *     mean    = the mean of the deltas of the sites that are present, as they were decoded
 *     momentum = mu momentum + mean                 SGD, Nesterov's momentum, as PyTorch's
 *     outer   = outer - lr (mean + mu momentum)
 *     own_k   = share own_k + (1 - share) outer     share 0 where no inner steps lie between
 *
 * ENCODING  n numbers become one F32 scale for each LT_OUTER_BLOCK of them, then their codes; with
 *           32 bits the numbers alone. The last block may be short. Decoded numbers are summed in
 *           F32, so all sites get the same bits.
 *     8 bits    scale = largest magnitude / 127; code = the nearest integer
 *     4 bits    a sign and three bits of exponent (E3M0), as in Streaming DiLoCo
 *               (arXiv:2501.18512): scale = largest magnitude; code c stands for the magnitude
 *               scale * 2^(c - 7), code 0 for 0, and the nearest one is chosen. A byte holds two
 *               codes, the first in its low half
 * ERROR     of a number whose block has the largest magnitude m: at most m / 254 with 8 bits; with
 *           4 bits at most a third of the number, and at most m / 128 for numbers below m / 64.
 *           Rounding errors are not carried over to the next round. */
#ifndef LT_PARALLEL_OUTER_H
#define LT_PARALLEL_OUTER_H

#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

#define LT_OUTER_BLOCK 128

typedef enum { LT_OUTER_32, LT_OUTER_8, LT_OUTER_4 } lt_outer_bits;
#define LT_OUTER_BITS_CHOICES "32|8|4" /* In the order of lt_outer_bits. */

/* Bytes of n encoded numbers: a multiple of 4. */
size_t lt_outer_bytes(lt_outer_bits bits, int64_t n);
/* Encode the differences outer - own of n numbers into out, which has room for lt_outer_bytes.
 * Fails with NUMERIC if a difference is not finite. */
LT_MUST_USE lt_err lt_outer_encode(void *out, lt_outer_bits bits, const float *outer,
                                   const float *own, int64_t n);
/* sum (n) += the numbers encoded in `in`. */
void lt_outer_add(float *sum, lt_outer_bits bits, const void *in, int64_t n);

/* sum: the sum of n_sites deltas. outer and momentum are changed. */
void lt_outer_step(float *outer, float *momentum, const float *sum, int n_sites, float lr, float mu,
                   int64_t n);
/* own = share * own + (1 - share) * outer; a share of 0 copies. */
void lt_outer_merge(float *own, const float *outer, float share, int64_t n);

#endif
