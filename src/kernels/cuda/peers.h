/* peers.h: memory of a GPU into which other ranks of this machine write with their copy engines,
 * and words in it by which streams wait for each other. An allocation is named by a handle; another
 * process maps it (the driver's interprocess memory), and another device of this process gets
 * access to it. See tensor/backend.h, memory_share. comm/peer.h uses it. */
#ifndef LT_KERNELS_CUDA_PEERS_H
#define LT_KERNELS_CUDA_PEERS_H

#include "kernels/cuda/runtime.h"
#include "tensor/backend.h"

LT_MUST_USE lt_err lt_cuda_memory_share(lt_cuda *c, void *data, lt_memory_handle *out);
/* UNSUPPORTED: the handle is of another machine, or the driver gives no access. */
LT_MUST_USE lt_err lt_cuda_memory_reach(lt_cuda *c, const lt_memory_handle *h, void **out);
void lt_cuda_memory_leave(lt_cuda *c, const lt_memory_handle *h, void *data);
LT_MUST_USE lt_err lt_cuda_flag_set(lt_cuda *c, CUstream s, uint32_t *word, uint32_t value);
LT_MUST_USE lt_err lt_cuda_flag_wait(lt_cuda *c, CUstream s, uint32_t *word, uint32_t value);

#endif
