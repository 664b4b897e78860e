/* tune.h: the winners that the tuner remembers, for sgemm.c. */
#ifndef LT_KERNELS_CUDA_SGEMM_TUNE_H
#define LT_KERNELS_CUDA_SGEMM_TUNE_H

#include "kernels/cuda/sgemm/sgemm.h"

/* True, with *out filled, if this GPU's tune file has a winner for the class of this product with
 * this copy, and the product can use it (blocks that share K need a workspace, and stages of K). */
bool lt_sgemm_tune_find(lt_cuda *c, const lt_sgemm_args *a, lt_sgemm_copy copy, lt_sgemm_tile *out);

#endif
