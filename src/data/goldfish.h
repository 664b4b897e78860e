/* goldfish.h: the Goldfish loss (Hans et al. 2024, arXiv:2406.10209) with the hash table that
 * Apertus used: some labels of a row are left out of the loss, so that no passage can be memorised
 * verbatim.
 *
 *     table   1,000,003 floats u_i: torch.rand of a CPU generator seeded with 2971215073
 *     key_t   labels[t-h+1] * ... * labels[t] as wrapping int64, modulo 1,000,003, never negative
 *     drop t  if u[key_t] < 1/k; the first h - 1 labels of a row are always kept
 *
 * The result is bit-equal to that definition: tests/golden/data/rows_*.i32 come from Megatron's
 * code. */
#ifndef LT_DATA_GOLDFISH_H
#define LT_DATA_GOLDFISH_H

#include <stdbool.h>
#include <stdint.h>

#include "lateen/base.h"

#define LT_GOLDFISH_TABLE 1000003

typedef struct lt_goldfish lt_goldfish;

/* k >= 1: one label in k is dropped; h >= 1: number of labels in a key. Free with
 * lt_goldfish_close. */
LT_MUST_USE lt_err lt_goldfish_open(lt_goldfish **out, int64_t k, int64_t h);
void lt_goldfish_close(lt_goldfish *g); /* Accepts NULL. */

/* Set dropped[t] to true if label t of the n is left out. Not thread-safe. */
void lt_goldfish_mark(lt_goldfish *g, bool *dropped, const int32_t *labels, int64_t n);

/* The table's entries, in units of 2^-24; the test needs them. */
void lt_goldfish_table(uint32_t *out_2p24);

#endif
