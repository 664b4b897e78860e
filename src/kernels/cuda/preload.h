/* preload.h: missing kernels are compiled before they are needed, several at once.
 *
 *     begin ─▶ this thread's ops: launches do nothing, kernels in the disk cache are loaded,
 *              and missing ones are noted
 *           ─▶ end: forked children compile them into the cache, in the order of the notes
 *               ─▶ the same ops run
 *
 * NVRTC compiles one program at a time in a process, however many threads there are, so a start
 * with an empty cache took the sum of some 100 compilations, 20 s. Children compile and exit; they
 * touch neither the GPU nor a thread. A kernel whose compilation fails in a child fails again, with
 * its message, where it is needed. `end` waits only for the first kernels, those of the first
 * steps. The children then go on with the others, and a launch of one that is not ready waits for
 * that one alone.
 *
 * All launches are left out, not only those of missing kernels: a kernel that ran after one that
 * did not run would read memory that was never written. So an op that is preloaded must not decide
 * by the contents of device memory; cuBLASLt's products are left out, too (cublas.c). Transfers and
 * allocations are real. */
#ifndef LT_KERNELS_CUDA_PRELOAD_H
#define LT_KERNELS_CUDA_PRELOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/runtime.h"

/* From now on the calling thread's launches on this GPU only note which kernels are missing.
 * Calls do not nest. What the thread does on other GPUs runs. */
void lt_preload_begin(const lt_cuda *gpu);
bool lt_is_preloading(const lt_cuda *gpu);
int64_t lt_preload_missing(void); /* How many have been noted so far. */
/* Compile what was noted, and return when the first n_first of them have been tried; children go on
 * with the rest. */
void lt_preload_end(int64_t n_first);
/* Are children compiling, for any GPU? The CPU, and the cache of kernels that GPUs of one
 * architecture share, belong to the process. */
bool lt_preload_compiling(void);

/* Return when no child is going to compile this kernel any more. */
void lt_preload_await(const char *file, const char *defines, const char *arch);

/* *missing: the cache does not have the kernel, which is noted. */
LT_MUST_USE lt_err lt_preload_note(bool *missing, const char *file, const char *defines,
                                   const char *arch);

#endif
