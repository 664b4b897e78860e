/* decode_q.h: the entry of embed_fwd's list that reads rows of block types in the format of
 * files. */
#ifndef LT_KERNELS_CUDA_DECODE_Q_H
#define LT_KERNELS_CUDA_DECODE_Q_H

#include "kernels/cuda/ops/launch.h"

const char *lt_cuda_decode_q_refuse(const void *args, const lt_device *device);
lt_err lt_cuda_decode_q_run(lt_queue *q, const void *args);

#endif
