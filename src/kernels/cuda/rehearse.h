/* rehearse.h: kernels that are missing are compiled before they are wanted, several at once.
 *
 *     begin ─▶ this thread's ops: launches do nothing, kernels that the disk cache has are loaded, those that are missing noted
 *           ─▶ end: children of fork compile them into the cache ─▶ the same ops in earnest, which find them there
 *
 * NVRTC compiles one program at a time in a process, whatever the threads, so a start with an empty cache took the sum of some 75 compilations, 20 s. Children compile and leave;
 * they touch neither the GPU nor a thread. What fails in them fails again, with its message, where the kernel is wanted.
 *
 * All launches are left out, not only those of missing kernels: one that ran behind one that did not would read what nobody wrote. So an op that is rehearsed must decide nothing by what is
 * in device memory; cuBLASLt's products are left out likewise (cublas.c). Transfers and allocations are real. */
#ifndef LT_KERNELS_CUDA_REHEARSE_H
#define LT_KERNELS_CUDA_REHEARSE_H

#include <stdbool.h>
#include <stdint.h>

#include "lateen/base.h"

/* Of the calling thread; not nested. */
void lt_rehearse_begin(void);
bool lt_rehearsing(void);
int64_t lt_rehearse_missing(void); /* Noted so far. */
void lt_rehearse_end(void);

/* *missing: the cache does not have the kernel, which is noted. */
LT_MUST_USE lt_err lt_rehearse_note(bool *missing, const char *file, const char *defines,
                                    const char *arch);

#endif
