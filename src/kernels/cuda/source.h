/* source.h: the text of the kernels: embedded in the binary, or read from the folder
 * LATEEN_KERNEL_DIR, so that kernels can be edited without a build.
 *
 * A kernel is named by its path below src/kernels/cuda, e.g. "rmsnorm.cu" or "sgemm/sgemm.cu". Its
 * #include "..." lines name other texts by path from the same root ("common/ptx.cuh"); they are
 * found in the same place. Headers of arguments, which the host includes too, are named by path
 * from src/ ("kernels/cuda/gemm/gemv_args.h"). */
#ifndef LT_KERNELS_CUDA_SOURCE_H
#define LT_KERNELS_CUDA_SOURCE_H

#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

#define LT_SOURCE_MAX_FILES 16 /* A kernel and everything it includes. */

/* A kernel's text and the texts it includes, transitively; part 0 is the kernel. Free with
 * lt_source_close. */
typedef struct {
    int n_parts;
    const char *name[LT_SOURCE_MAX_FILES]; /* Owned. */
    const char *text[LT_SOURCE_MAX_FILES]; /* 0-terminated; owned. */
    uint64_t hash;                         /* Hash of all names and texts. */
} lt_source;

LT_MUST_USE lt_err lt_source_open(lt_source *out, const char *name);
void lt_source_close(lt_source *s); /* Accepts a zeroed one. */

/* Name of the i-th embedded text, or NULL past the last, so that all of them can be listed. */
const char *lt_source_name(size_t i);

#endif
