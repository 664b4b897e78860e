/* cost.h: the least work of an op: floating-point operations, and bytes through memory when each
 * input is read once and each output is written once. There is one formula per op, which the
 * bench (% of the bound) and the planner read. */
#ifndef LT_TENSOR_COST_H
#define LT_TENSOR_COST_H

#include "tensor/ops.h"

typedef struct {
    double flops; /* A multiply-add counts two; exp, tanh, rsqrt count one. */
    double bytes;
} lt_cost;

/* The cost of one call. args is the op's argument struct. */
lt_cost lt_op_cost(lt_op op, const void *args);

/* The underlying formulas, which the planner uses without tensors. elem_bytes: width of an
 * element. */
lt_cost lt_cost_matmul(double m, double n, double k, double a_bytes, double b_bytes,
                       double y_bytes);
/* pairs: number of visible (query, key) pairs of one head, e.g. T * S, or about T * S / 2 if
 * causal. */
lt_cost lt_cost_attention(double pairs, double rows, double keys, double heads, double kv_heads,
                          double head_dim, double elem_bytes, bool backward);

#endif
