/* inventory.h: compile every shipped kernel, without a GPU, and report its costs (`make kernels`).
 *
 * The launchers tell which specialisations ship (specs.h). A spill to local memory needs a line in
 * spills.txt, "file entry max-bytes reason"; otherwise the inventory fails. */
#ifndef LT_KERNELS_CUDA_INVENTORY_H
#define LT_KERNELS_CUDA_INVENTORY_H

#include <stdbool.h>
#include <stdio.h>

#include "lateen/base.h"

/* Compile each specialisation whose file contains `only` (NULL: all) for its architectures, or
 * for `arch` alone ("sm_90a"; NULL: all); with `sample`, only the first of those with the same
 * file, architecture and names of -D words. There is one process per thread (OMP_NUM_THREADS).
 * Print a table: registers, shared memory, stack, spills, code bytes. DEVICE if one does not
 * compile, or spills without a listed reason; all are tried first. Call it before other threads
 * run. */
LT_MUST_USE lt_err lt_cuda_inventory(FILE *to, const char *only, const char *arch, bool sample);

#endif
