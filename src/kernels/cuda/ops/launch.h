/* launch.h: what the launchers of the GPU's ops share: the queue, its scratch memory, and how an argument struct becomes -D words.
 *
 * Each op's launchers are the entries of its ordered list (backend.c): refuse() says why a kernel does not take the arguments, run() queues
 * it. They look at tensors' shapes, never at their contents. */
#ifndef LT_KERNELS_CUDA_LAUNCH_H
#define LT_KERNELS_CUDA_LAUNCH_H

#include "kernels/cuda/runtime.h"
#include "kernels/registry.h"

struct lt_queue {
    lt_cuda *gpu;
    CUstream stream;
    void *scratch; /* Partial sums; grows to the largest wish, then stays. */
    size_t scratch_bytes;
    void *sgemm_workspace; /* NULL until the first product. */
    CUevent passed;        /* For order: NULL until the first. */
    CUevent *marks;        /* Of the stopwatch; grows. */
    int64_t n_marks;
};

/* Device memory that is free until the next op of this queue. Growing waits for the queue; steady state never grows. */
LT_MUST_USE lt_err lt_cuda_scratch(lt_queue *q, size_t bytes, void **out);

#define LT_CUDA_DEFINES_BYTES 160
#define LT_CUDA_DIV_UP(n, d)  (((n) + (d)-1) / (d))

/* "fp32", "bf16", "fp16"; NULL for types the kernels do not know. */
const char *lt_cuda_dtype_word(lt_dtype dtype);
/* NULL, or why this tensor is not one the row kernels take: "x: type", "x: not contiguous". Absent tensors pass. */
const char *lt_cuda_refuse_rows(const lt_tensor *const *tensors, int n, lt_dtype act);
/* Elements a thread moves at once: 16 bytes' worth when every present tensor is 16-byte aligned and `width` is a multiple, else 1. */
int lt_cuda_piece(const lt_tensor *const *tensors, int n, lt_dtype act, int64_t width);
int64_t lt_cuda_width(const lt_tensor *t); /* Of the last dimension. */
int64_t lt_cuda_rows(const lt_tensor *t);  /* Of all others. */

/* Get the kernel and launch it with n blocks of `threads`. */
LT_MUST_USE lt_err lt_cuda_run(lt_queue *q, const char *file, const char *entry,
                               const char *defines, int64_t blocks, int blocks_y, int threads,
                               void **args);

/* One list an op this backend has; the rest have none and say UNSUPPORTED. */
#define LT_CUDA_OWN_OPS(X)                                                                         \
    X(embed_fwd)                                                                                   \
    X(embed_bwd)                                                                                   \
    X(rmsnorm_fwd)                                                                                 \
    X(rmsnorm_bwd)                                                                                 \
    X(layernorm_fwd)                                                                               \
    X(layernorm_bwd)                                                                               \
    X(rope)                                                                                        \
    X(act_fwd) X(act_bwd) X(add) X(xent) X(adamw) X(ademamix) X(sumsq) X(cast) X(colsum) X(matmul)
#define LT_CUDA_LIST_DECLARE(op)                                                                   \
    extern const lt_op_impl lt_cuda_##op##_impls[LT_REGISTRY_MAX_IMPLS];
LT_CUDA_OWN_OPS(LT_CUDA_LIST_DECLARE)

#endif
