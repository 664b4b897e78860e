/* args.h: what headers of kernel arguments need. Such a header is read by the host's compiler and
 * by NVRTC, so that a struct which a launcher fills and a kernel reads stands once. Both sides
 * include it by its path from src/, and both check the struct's size.
 *
 * Pointers to elements: the kernel's element type is a word of its specialisation (DTYPE, OUT), the
 * host has addresses only.
 *
 * Dynamic shared memory, too, is computed by such a header: the launcher asks for that number, and
 * the kernel asserts that the places it divides it into end there. */
#ifndef LT_KERNELS_CUDA_COMMON_ARGS_H
#define LT_KERNELS_CUDA_COMMON_ARGS_H

#ifdef __CUDACC_RTC__
#define LT_ELEM(type) type
#else
#include <assert.h>
#define LT_ELEM(type) void
#endif

#endif
