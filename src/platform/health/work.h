/* work.h: what the tests of cores and of GPUs share. */
#ifndef LT_PLATFORM_HEALTH_WORK_H
#define LT_PLATFORM_HEALTH_WORK_H

#include "tensor/backend.h"

/* Compute known products (known.h) of this side and operand type on the device for so many seconds,
 * at least one; with seconds 0 a single one. Adds to *products those done and to *wrong the sums
 * with other bits. */
LT_MUST_USE lt_err lt_known_run(lt_device *device, lt_dtype dtype, int64_t side, double seconds,
                                double *products, double *wrong);

/* Patterns for memory: zeros, ones, alternating bits twice, and a word that depends on its index,
 * which finds addresses that meet. */
#define LT_PATTERNS 5
uint64_t lt_pattern_word(int pattern, uint64_t index);

/* work_gpu.c: copy to the device and back: rates in GB/s; *wrong: words that changed. Bytes is a
 * multiple of 8. */
LT_MUST_USE lt_err lt_copies_run(lt_device *device, size_t bytes, double *up_gbps,
                                 double *down_gbps, double *wrong);
/* Write each pattern into so many bytes of the device's memory, and count the words that do not
 * keep it. */
LT_MUST_USE lt_err lt_patterns_run(lt_device *device, size_t bytes, double *wrong);

#endif
