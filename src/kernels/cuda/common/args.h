/* args.h: definitions for headers of kernel arguments. The host's compiler and NVRTC both read such
 * a header, so that a struct which a launcher fills and a kernel reads stands once. Both sides
 * include it by its path from src/, and both check the struct's size.
 *
 * Pointers to elements: the kernel's element type is a word of its specialisation (DTYPE, OUT); the
 * host has only addresses.
 *
 * Such a header also computes dynamic shared memory: the launcher requests that number of bytes,
 * and the kernel asserts that its layout ends there. */
#ifndef LT_KERNELS_CUDA_COMMON_ARGS_H
#define LT_KERNELS_CUDA_COMMON_ARGS_H

#ifdef __CUDACC_RTC__
#define LT_ELEM(type) type
#else
#include <assert.h>
#define LT_ELEM(type) void
#endif

#endif
