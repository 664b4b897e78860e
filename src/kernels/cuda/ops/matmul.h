/* matmul.h: what the entries of matmul's list have in common. */
#ifndef LT_KERNELS_CUDA_MATMUL_H
#define LT_KERNELS_CUDA_MATMUL_H

#include "kernels/cuda/gemm/experts_args.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/ops/launch.h"

bool lt_matmul_empty(const lt_matmul_args *a);    /* y has no elements. */
int64_t lt_matmul_depth(const lt_matmul_args *a); /* K. */
/* The number of the type in kernels: 0 none, 1 F32, 2 BF16, 3 F16. */
int lt_matmul_bias_type(const lt_tensor *bias);
/* NULL, or why this is not a plain product: b is only packed, a tensor is not 2-D, or a type has
 * no kernels. */
const char *lt_matmul_refuse_types(const lt_matmul_args *a);
/* The last dimension has stride 1, or one element. */
bool lt_matmul_dense(const lt_tensor *t);

/* A product that lt_gemm_refusal does not refuse, in the queue's scratch memory. fixed_order: as in
 * lt_matmul_args. */
LT_MUST_USE lt_err lt_cuda_gemm_run(lt_queue *q, const lt_gemm_args *g, bool fixed_order);

/* At most 8 rows (matmul_gemv.c). */
const char *lt_cuda_gemv_refuse(const void *args, const lt_device *device);
int lt_cuda_gemv_split(int64_t n, int64_t k, int n_sms); /* Warps that share K. */
lt_err lt_cuda_gemv_run(lt_queue *q, const void *args);
/* Few rows of experts. */
const char *lt_cuda_gemv_grouped_refuse(const void *args, const lt_device *device);
lt_err lt_cuda_gemv_grouped_run(lt_queue *q, const void *args);

/* Few rows of experts with their gathering and the gated activation (fuse_experts.c). gates: the
 * product of the gates alone, a = the rows before they are gathered; factors: the first expert's
 * matrix of factors; unfused: the first product as it runs by itself, whose order of sums is
 * kept. */
typedef struct {
    const lt_moe_gather_args *gather;
    const lt_act_args *act;
    const lt_matmul_grouped_args *unfused;
    lt_matmul_grouped_args gates;
    const void *factors;
} lt_experts_up;
lt_experts_up_args lt_cuda_experts_up_args(const lt_experts_up *up);

bool lt_cuda_gemv_up_takes(const lt_queue *q, const lt_experts_up *up);
/* launch false: only fetch the kernel. */
LT_MUST_USE lt_err lt_cuda_gemv_up_run(lt_queue *q, const lt_experts_up *up, bool launch);

#endif
