/* cached.h: converts keys and values to the types of a cache (tensor/cached.h) and back, in
 * vectors. */
#ifndef LT_CPU_ISA_CACHED_H
#define LT_CPU_ISA_CACHED_H

#include "kernels/cpu/isa/vec.h"

/* The same as lt_cached_encode and lt_cached_decode, with the same bits. */
void LT_ISA_NAME(lt_cpu_cached_encode)(void *dst, lt_dtype type, const float *src, int64_t count);
void LT_ISA_NAME(lt_cpu_cached_decode)(float *dst, lt_dtype type, const void *src, int64_t count);

#endif
