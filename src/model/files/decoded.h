/* decoded.h: linear layers whose weights are kept in a block type or in 16 bits (stored_weights.h),
 * and decoded to numbers before each product, for training adapters of a quantised model (Dettmers
 * et al. 2023, "QLoRA", arXiv:2305.14314). Only for models that are opened with `decoded`.
 *
 *     rows of W ──decode──▶ scratch (rows, K) of the model's type ──product──▶ columns of y
 *                                                                 ──product──▶ dx, summed
 *
 * On a host, scratch holds LT_DECODED_ELEMENTS numbers; on a device the largest matrix of a layer,
 * because large products are faster there. So the model is never held completely in that type. A
 * matrix that fits is one product, with the same bits as if the decoded numbers were the weights;
 * for larger ones, such as a large output head, dx is summed over pieces of rows.
 *
 * Of experts, whole matrices are decoded: as many at once as fit into scratch, which has room for
 * those of a layer on a device and for one at least on a host, where experts without rows are left
 * out. Their products have the same bits, too. */
#ifndef LT_MODEL_DECODED_H
#define LT_MODEL_DECODED_H

#include "base/arena.h"
#include "model/blocks/exec.h"

#define LT_DECODED_ELEMENTS ((int64_t)4 << 20)

/* Take the scratch of a model with this table; with an arena without memory, measure it. */
void lt_decoded_carve(lt_exec *r, const lt_param_table *t, lt_dtype dtype, bool on_device,
                      lt_arena *a);

/* Whether this parameter is one of those matrices. */
bool lt_decoded_has(const lt_exec *r, int index);
/* Rows [first, first + n) of a linear layer's weight: a view of it, or decoded numbers, which are
 * valid until the next call; n is then at most LT_DECODED_ELEMENTS / K, or 1. */
LT_MUST_USE lt_err lt_decoded_rows(lt_exec *r, lt_tensor *out, lt_param_kind kind, int layer,
                                   int64_t first, int64_t n);

/* y = x w^T [+ bias]; dx [+]= dy w */
LT_MUST_USE lt_err lt_decoded_forward(lt_exec *r, int index, lt_tensor y, lt_tensor x,
                                      lt_tensor bias);
LT_MUST_USE lt_err lt_decoded_backward(lt_exec *r, int index, lt_tensor dx, lt_tensor dy,
                                       bool add_dx);

/* A matrix of a layer's experts: rows of y, in expert order, = rows of x times those of their
 * expert; rows of dx = rows of dy times its matrix. expert_start: as in lt_matmul_grouped_args. */
LT_MUST_USE lt_err lt_decoded_experts_forward(lt_exec *r, int index, lt_tensor y, lt_tensor x,
                                              lt_tensor expert_start);
LT_MUST_USE lt_err lt_decoded_experts_backward(lt_exec *r, int index, lt_tensor dx, lt_tensor dy,
                                               lt_tensor expert_start);

#endif
