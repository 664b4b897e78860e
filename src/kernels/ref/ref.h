/* ref.h: the reference: every op of LT_OP_MAP as lt_ref_<op>(queue, args), in scalar C with double
 * accumulation. It is the specification against which the fast implementations are checked, and the
 * last entry in the lists of every backend on host memory. It accepts everything that ops.h allows,
 * and F64 in place of any floating type. */
#ifndef LT_KERNELS_REF_REF_H
#define LT_KERNELS_REF_REF_H

#include "kernels/registry.h"
#include "tensor/ops.h"

#define LT_REF_DECLARE(name, args) lt_err lt_ref_##name(lt_queue *q, const args *a);
LT_OP_MAP(LT_REF_DECLARE)
#undef LT_REF_DECLARE

/* qdot.c: matmul whose b is of a block type. */
lt_err lt_ref_matmul_quant(lt_queue *q, const lt_matmul_args *a);

extern const lt_op_list lt_ref_lists[LT_OP_COUNT]; /* One entry per op, named "ref". */

#endif
