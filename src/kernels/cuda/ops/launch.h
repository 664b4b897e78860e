/* launch.h: shared by the launchers of the GPU's ops: the queue, its scratch memory, and how an
 * argument struct becomes -D words.
 *
 * Each op's launchers are the entries of its ordered list (backend.c): refuse() says why a kernel
 * does not accept the arguments, run() queues it. They look at the shapes of tensors, never at
 * their contents. */
#ifndef LT_KERNELS_CUDA_LAUNCH_H
#define LT_KERNELS_CUDA_LAUNCH_H

#include "kernels/cuda/cublas.h"
#include "kernels/cuda/runtime.h"
#include "kernels/registry.h"
#include "kernels/cuda/common/view_args.h"

struct lt_queue {
    lt_device *device; /* First: lt_queue_device. */
    lt_cuda *gpu;      /* The device's. */
    CUstream stream;
    /* LT_CUDA_COUNTER_BYTES of counters, then memory that ops share; it grows to the largest
     * request, and never shrinks. */
    void *scratch;
    size_t scratch_bytes;
    void *outgrown[64]; /* Former scratch memory, which recorded graphs may still use. */
    int n_outgrown;
    /* Weights of block types in 16 bits, for products of many rows; NULL until the first. */
    void *wide;
    size_t wide_bytes;
    void *sgemm_workspace; /* NULL until the first product. */
    CUevent passed;        /* For order: NULL until the first. */
    CUevent *marks;        /* Events of the stopwatch; the array grows. */
    int64_t n_marks;
    lt_cublas *cublas;    /* NULL until the first product that is its. */
    struct lt_fuse *fuse; /* Ops held back while a graph is recorded (fuse.h). */
};

#define LT_CUDA_COUNTER_BYTES 256 /* Zero between ops: attention's tile counters. */
/* Device memory that is free until the next op of this queue. Growing waits for the queue; steady
 * state never grows. */
LT_MUST_USE lt_err lt_cuda_scratch(lt_queue *q, size_t bytes, void **out);
/* The same with the counters before it: *out has bytes + LT_CUDA_COUNTER_BYTES. */
LT_MUST_USE lt_err lt_cuda_scratch_counted(lt_queue *q, size_t bytes, void **out);
/* Device memory for operands widened to 16 or 32 bits, apart from the scratch, which their product
 * takes: free until the next op that asks. Growing waits. */
LT_MUST_USE lt_err lt_cuda_wide(lt_queue *q, size_t bytes, void **out);

/* The GPU of a device: refusals ask it what it can. */
const lt_cuda_info *lt_cuda_device_info(const lt_device *d);
lt_cuda *lt_cuda_device_gpu(const lt_device *d);

#define LT_CUDA_DEFINES_BYTES 160
#define LT_CUDA_DIV_UP(n, d)  (((n) + (d)-1) / (d))

/* "fp32", "bf16", "fp16"; NULL for types the kernels do not know. */
const char *lt_cuda_dtype_word(lt_dtype dtype);
/* NULL, or why the row kernels do not accept one of these tensors: "x: type", "columns not
 * contiguous". Absent tensors pass. */
const char *lt_cuda_refuse_rows(const lt_tensor *const *tensors, int n, lt_dtype act);
/* Elements a thread moves at once: 16 bytes' worth when every present tensor is 16-byte aligned and
 * `width` is a multiple, else 1. */
int lt_cuda_piece(const lt_tensor *const *tensors, int n, lt_dtype act, int64_t width);
lt_cuda_row_shape lt_cuda_row_shape_of(const lt_tensor *t);
lt_cuda_view lt_cuda_view_of(const lt_tensor *t); /* An absent tensor's is zero. */
bool lt_cuda_all_contiguous(const lt_tensor *const *tensors, int n);

int64_t lt_cuda_width(const lt_tensor *t); /* Size of the last dimension. */
int64_t lt_cuda_rows(const lt_tensor *t);  /* Product of all other sizes. */

/* The -D words of kernels that give a team of threads to a row: a warp where it has up to 4 pieces
 * a lane, else a block. rows: the tensors whose rows they are, of one width; *blocks: of a launch
 * over `count` rows. */
#define LT_CUDA_TEAM_WORDS   "DTYPE=%s W=%d TEAM=%d"
#define LT_CUDA_TEAM_THREADS 256
void lt_cuda_team_defines(char out[LT_CUDA_DEFINES_BYTES], const lt_tensor *const *rows, int n,
                          int64_t count, int64_t *blocks);

/* Get the kernel and launch it with n blocks of `threads`. */
LT_MUST_USE lt_err lt_cuda_run(lt_queue *q, const char *file, const char *entry,
                               const char *defines, int64_t blocks, int blocks_y, int threads,
                               void **args);
/* The same for a kernel that begins with wait_for_others (common/early.cuh): it starts while the
 * kernels before it still run. */
LT_MUST_USE lt_err lt_cuda_run_early(lt_queue *q, const char *file, const char *entry,
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
    X(qk_norm_fwd)                                                                                 \
    X(qk_norm_bwd)                                                                                 \
    X(act_fwd)                                                                                     \
    X(act_bwd)                                                                                     \
    X(add)                                                                                         \
    X(sum)                                                                                         \
    X(gather_rows)                                                                                 \
    X(xent)                                                                                        \
    X(distill)                                                                                     \
    X(penalty_set)                                                                                 \
    X(choose)                                                                                      \
    X(adamw)                                                                                       \
    X(ademamix)                                                                                    \
    X(sumsq)                                                                                       \
    X(cast)                                                                                        \
    X(drop)                                                                                        \
    X(colsum)                                                                                      \
    X(matmul)                                                                                      \
    X(matmul_pack)                                                                                 \
    X(attention_fwd)                                                                               \
    X(attention_bwd)                                                                               \
    X(attention_merge)                                                                             \
    X(attention_starts)                                                                            \
    X(lion)                                                                                        \
    X(clip)                                                                                        \
    X(hash)                                                                                        \
    X(muon)                                                                                        \
    X(attention_paged)                                                                             \
    X(kv_write)                                                                                    \
    X(matmul_grouped)                                                                              \
    X(lora_add)                                                                                    \
    X(lora_scale)                                                                                  \
    X(matmul_lora)                                                                                 \
    X(matmul_act)                                                                                  \
    X(moe_route_fwd)                                                                               \
    X(moe_route_bwd)                                                                               \
    X(moe_gather_fwd)                                                                              \
    X(moe_gather_bwd)                                                                              \
    X(moe_combine_fwd)                                                                             \
    X(moe_combine_bwd)                                                                             \
    X(moe_bias_fwd)                                                                                \
    X(moe_bias_bwd)                                                                                \
    X(cast_scaled)                                                                                 \
    X(matmul_scaled)
#define LT_CUDA_LIST_DECLARE(op)                                                                   \
    extern const lt_op_impl lt_cuda_##op##_impls[LT_REGISTRY_MAX_IMPLS];
LT_CUDA_OWN_OPS(LT_CUDA_LIST_DECLARE)

#endif
