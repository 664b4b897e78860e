/* preload.h: kernels that are missing are compiled before they are wanted, several at once.
 *
 *     begin ─▶ this thread's ops: launches do nothing, kernels that the disk cache has are loaded,
 *     those that are missing are noted
 *           ─▶ end: children of fork compile them into the cache, the first ones noted first
 *               ─▶ the same ops in earnest
 *
 * NVRTC compiles one program at a time in a process, whatever the threads, so a start with an empty
 * cache took the sum of some 100 compilations, 20 s. Children compile and leave; they touch neither
 * the GPU nor a thread. A kernel whose compilation fails in a child fails again, with its message,
 * where it is wanted. End waits only for the first kernels, those of the first steps: the children
 * go on with the others behind it, and whoever wants one of those before it is there waits for that
 * one alone.
 *
 * All launches are left out, not only those of missing kernels: one that ran behind one that did
 * not would read memory that nobody has written. So an op that is preloaded must decide nothing by
 * what is in device memory; cuBLASLt's products are left out likewise (cublas.c). Transfers and
 * allocations are real. */
#ifndef LT_KERNELS_CUDA_PRELOAD_H
#define LT_KERNELS_CUDA_PRELOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/runtime.h"

/* From now on the launches of the calling thread on this GPU only note which kernels are missing.
 * Calls do not nest. What the thread does on another GPU is run. */
void lt_preload_begin(const lt_cuda *gpu);
bool lt_is_preloading(const lt_cuda *gpu);
int64_t lt_preload_missing(void); /* Noted so far. */
/* Compile what was noted, and return when the first n_first of them have been tried; children go on
 * with the rest. */
void lt_preload_end(int64_t n_first);
/* Children are at work, whoever preloaded: the processor and the cache of kernels, which GPUs of
 * one architecture share, are the process's. */
bool lt_preload_compiling(void);

/* Return when no child is going to compile this kernel any more. */
void lt_preload_await(const char *file, const char *defines, const char *arch);

/* *missing: the cache does not have the kernel, which is noted. */
LT_MUST_USE lt_err lt_preload_note(bool *missing, const char *file, const char *defines,
                                   const char *arch);

#endif
