/* fuse.h: small ops of a step that is being recorded become part of the product beside them
 * (gemm/gemv_ring.cu).
 *
 * While a graph is recorded, an op that may begin or continue a pattern is HELD. The op that
 * completes the pattern or does not fit it, or the end of the graph, releases the held ops: as one
 * kernel where gemv_ring.cu accepts the product, otherwise op by op. Patterns (parts in brackets
 * may be absent):
 *
 *     [rmsnorm y, sum = x + add]  matmul a = y     few rows times weights (N, K), 16-bit or blocks
 *                                 matmul  act_fwd x = its y    gated: SiLU or GELU's tanh form
 *                                 matmul  rope of its y, in place  kv_write
 *                                                              y = heads of q, k, v
 *
 *     moe_gather_fwd  matmul_grouped [matmul_grouped] a = its y    few rows of experts
 *                     act_fwd x = their y                       gated
 *
 * After any other product, rotation and pages are a separate kernel (rope.cu), and gemm_few.cu and
 * gemm_q_sm90.cu include a gated activation.
 *
 * Every tensor that the ops would have written is written, with the same bits, whether it is read
 * later or not. Ops whose results overlap memory that other ops of the kernel still read are not
 * fused, because blocks do not wait for each other.
 *
 * Positions, slots and the table of rotations are read before the kernels before are done, so no op
 * of a step may write them.
 *
 * Outside of a recording nothing is held: the same patterns only fetch their kernels, which cannot
 * be compiled during a recording. So a step runs once before it is recorded. LATEEN_CUDA_FUSE=off
 * disables fusion. By default, as many rows are fused as made an H100 faster (fuse.c); =all: up to
 * LT_FUSE_ROWS. Products of this many rows have gemv.cu's bits, and those of blocks
 * gemm_q_ring.cu's, whether they are fused or not. */
#ifndef LT_KERNELS_CUDA_FUSE_H
#define LT_KERNELS_CUDA_FUSE_H

#include "kernels/cuda/ops/launch.h"

#define LT_FUSE_ROWS 8
/* Most rows of products with an activation in gemm_few.cu and gemm_q_sm90.cu. */
#define LT_FUSE_ACT_ROWS 64

/* Most rows of a product that is fused, by its weights: 16-bit, or packed blocks. */
typedef struct {
    int plain, packed;
} lt_fuse_rows;

/* Ops that one kernel may stand for. */
typedef struct {
    lt_fuse_rows most;
    bool has_norm, has_product, has_act, has_rope, has_kv, has_gather;
    lt_rmsnorm_args norm;
    lt_matmul_args product;
    lt_act_args act;
    lt_rope_args rope;
    lt_kv_write_args kv;
    lt_moe_gather_args gather;
    int n_experts; /* Products of experts: of gates and factors together, or of each. */
    lt_matmul_grouped_args experts[2];
} lt_fuse_ops;

typedef struct lt_fuse {
    bool off, records;
    lt_fuse_rows most;
    int most_expert_rows; /* of x, with packed blocks */
    lt_fuse_ops held;
    int64_t n_fused; /* Kernels that replace more than one op. */
} lt_fuse;

/* Offer an op. *taken: it is held (args are copied) or done; otherwise the caller runs it. Ops held
 * before may be released first. lists: the backend's. */
LT_MUST_USE lt_err lt_fuse_offer(lt_queue *q, const lt_op_list *lists, lt_op op, const void *args,
                                 bool *taken);
/* Release the held ops, because something else follows. */
LT_MUST_USE lt_err lt_fuse_flush(lt_queue *q, const lt_op_list *lists);
/* A recording begins or ends. */
LT_MUST_USE lt_err lt_fuse_record(lt_queue *q, const lt_op_list *lists, bool records);

/* Whether they share no element; and one kernel for the ops that f holds (gemv_ring.c). */
bool lt_fuse_apart(const lt_tensor *a, const lt_tensor *b);
bool lt_cuda_ring_takes(const lt_fuse_ops *f, const lt_cuda_info *info);
/* launch false: only fetch the kernel. */
LT_MUST_USE lt_err lt_cuda_ring_run(lt_queue *q, const lt_fuse_ops *f, bool launch);
/* In matmul.c: gemm_few.cu, or gemm_q_sm90.cu, followed by a gated activation. */
bool lt_cuda_few_gated_takes(const lt_queue *q, const lt_matmul_args *a, const lt_act_args *act);
LT_MUST_USE lt_err lt_cuda_few_gated_run(lt_queue *q, const lt_matmul_args *a,
                                         const lt_act_args *act, bool launch);
/* In fuse_experts.c: rows of experts, gathered, times their first matrices, and the activation. */
bool lt_cuda_experts_up_takes(const lt_queue *q, const lt_fuse_ops *f);
LT_MUST_USE lt_err lt_cuda_experts_up_run(lt_queue *q, const lt_fuse_ops *f, bool launch);
/* In pointwise.c: the rotation in place and the copy to the pages as one kernel. */
bool lt_cuda_rope_kv_takes(const lt_rope_args *a, const lt_kv_write_args *w);
LT_MUST_USE lt_err lt_cuda_rope_kv_run(lt_queue *q, const lt_rope_args *a,
                                       const lt_kv_write_args *w, bool launch);

#endif
