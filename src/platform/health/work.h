/* work.h: what the tests of cores and of GPUs share. */
#ifndef LT_PLATFORM_HEALTH_WORK_H
#define LT_PLATFORM_HEALTH_WORK_H

#include "tensor/backend.h"

/* Compute known products (known.h) of this side and operand type on the device for this many
 * seconds, at least one; with seconds 0 exactly one. Adds the number of products to *products, and
 * that of sums with wrong bits to *wrong. */
LT_MUST_USE lt_err lt_known_run(lt_device *device, lt_dtype dtype, int64_t side, double seconds,
                                double *products, double *wrong);

/* Patterns for memory: zeros, ones, two with alternating bits, and words that depend on their
 * index, which reveal addresses that map to the same cell. */
#define LT_PATTERNS 5
uint64_t lt_pattern_word(int pattern, uint64_t index);

/* work_gpu.c: copy to the device and back: rates in GB/s; *wrong: number of words that changed.
 * bytes is a multiple of 8. */
LT_MUST_USE lt_err lt_copies_run(lt_device *device, size_t bytes, double *up_gbps,
                                 double *down_gbps, double *wrong);
/* Write each pattern into this many bytes of the device's memory, and count the words that
 * change. */
LT_MUST_USE lt_err lt_patterns_run(lt_device *device, size_t bytes, double *wrong);

#endif
