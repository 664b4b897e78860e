/* scratch.h: working memory of the CPU kernels. Each calling thread has a set of buffers that grow
 * at first use and are kept until the thread ends, so that after the first, a training step
 * allocates nothing. A buffer is valid until the same thread asks for the same slot again. */
#ifndef LT_CPU_SCRATCH_H
#define LT_CPU_SCRATCH_H

#include "lateen/base.h"

typedef enum {
    LT_CPU_SLOT_A,       /* gemm: rows, packed or widened */
    LT_CPU_SLOT_B,       /* gemm: packed columns, one block per thread */
    LT_CPU_SLOT_C,       /* gemm: F32 sums of a BF16 result */
    LT_CPU_SLOT_PARTIAL, /* partial sums of reductions */
    LT_CPU_SLOT_TILES,   /* attention: per-thread tiles */
    LT_CPU_SLOT_TURNS,   /* gemm: counters that assign blocks to threads */
    LT_CPU_SLOT_WIDE_A,  /* matmul_scaled: the operands, widened */
    LT_CPU_SLOT_WIDE_B,
    LT_CPU_SLOT_COUNT
} lt_cpu_slot;

/* At least `bytes` bytes, 64-byte aligned, with undefined contents. */
LT_MUST_USE lt_err lt_cpu_scratch(void *out, lt_cpu_slot slot, size_t bytes);

#endif
