/* tp.h: tensor and sequence parallelism of a pass: the ranks of a group share every layer.
 *
 * Between two halves of a layer each rank holds some rows of the batch (sequence parallelism,
 * Korthikanti et al. 2022, arXiv:2205.05198); inside a half it works on all rows with its heads and
 * its columns of the MLP (Shoeybi et al. 2019, arXiv:1909.08053):
 *
 *     own rows      x ──norm──▶ h │                        │ branch ──▶ x + branch
 *                              gather                   scatter
 *     all rows                    └▶ qkv ─ attention ─ out ┘
 *                                    own heads          a part of the sum
 *
 * gather is an all-gather of rows; scatter is a reduce-scatter: each rank gets its rows of the sum
 * of all ranks' parts. In the backward pass the two change places. So a layer sends four times R C
 * (n - 1) / n elements forward and as much backward. A parameter that several ranks hold (norms,
 * routers, biases after a sum, gains of q and k, xIELU's scalars) gets a part of its gradient on
 * each rank: the sum over the group is the gradient. The first rank adds a bias after a sum.
 *
 *     embedding   rank i holds some rows of the vocabulary, and gives 0 for other ids; scatter
 *     head, loss  each rank computes its words of all rows; what the softmax needs of each part, 16
 *                 bytes a row, is gathered and summed in the order of the ranks, so all get the
 *                 same bits
 *     experts     each rank holds some columns of all of them. The router sees this rank's rows;
 *                 its logits are gathered, so all ranks choose alike; gradients of the experts'
 *                 weights are summed
 *
 * ROWS      R rows are cut into n runs of ceil(R / n), the last ones shorter; each rank has at
 *           least one. A tensor of all rows has room for n whole runs, so a rank's run is already
 *           in its place there and the verbs work in place. Rows from R on are never read.
 * MEMORY    If products' inputs are kept (recompute: none), they are kept gathered; with selective
 *           recompute they are gathered again in the backward pass. */
#ifndef LT_MODEL_TP_H
#define LT_MODEL_TP_H

#include "model/blocks/exec.h"

/* `rows` rows divided into n runs. */
typedef struct {
    int64_t each, first, count; /* Rows of a whole run; the first row and the count of a rank's. */
} lt_tp_run;
lt_tp_run lt_tp_run_of(int64_t rows, int n, int rank);

/* ARG unless rows of `seq` tokens, 1 to `batch` of them together, give each of n ranks some; the
 * message names a length that does. */
LT_MUST_USE lt_err lt_tp_check_rows(int64_t batch, int64_t seq, int n);
/* Join the group: from now on the pass computes this rank's part. The model holds that part
 * (src/parallel/layout.h), or ARG. */
LT_MUST_USE lt_err lt_tp_join(lt_exec *r, lt_group *tp);

/* Own rows of a tensor of all rows; the tensor itself without a group. */
lt_tensor lt_tp_own_rows(const lt_exec *r, lt_tensor all);

/* Without a group each of these does nothing, and `own` is `all`. Otherwise `own` may be this
 * rank's rows of `all`, or lie elsewhere. gather: all = the rows of every rank's `own`. scatter:
 * own = this rank's rows of the sum of every rank's `all`, whose other rows become undefined. */
LT_MUST_USE lt_err lt_tp_gather(lt_exec *r, lt_tensor all, lt_tensor own);
LT_MUST_USE lt_err lt_tp_scatter(lt_exec *r, lt_tensor own, lt_tensor all);
/* Linear layers that overlap with a verb: if they are plain (lt_linear_is_plain) and the device has
 * queues, rows are transferred between the ranks while products run that do not need them.
 *
 *     fwd_gathered   all = every rank's own; meanwhile y of this rank's rows, then of each other
 *                    rank's, as they arrive
 *     fwd_scattered  y of the others' rows, which are sent to them; meanwhile y of this rank's
 *                    rows. A scatter of y must follow (lt_tp_scatter)
 *     bwd_gathered   all = every rank's own; meanwhile dx and dw of this rank's rows, then of each
 *                    other rank's, as they arrive. dx may be x: then it is computed last
 *     bwd_scattered  dx of the others' rows, which are sent to them; meanwhile dx of this rank's
 *                    rows, and dw. This rank's rows of dx then hold the sum of every rank's
 *
 * Without a group they are lt_linear_fwd and lt_linear_bwd. */
LT_MUST_USE lt_err lt_tp_linear_fwd_gathered(lt_exec *r, lt_tensor y, lt_tensor all, lt_tensor own,
                                             lt_param_kind kind, lt_param_kind bias, int layer);
LT_MUST_USE lt_err lt_tp_linear_fwd_scattered(lt_exec *r, lt_tensor y, lt_tensor x,
                                              lt_param_kind kind, lt_param_kind bias, int layer);
LT_MUST_USE lt_err lt_tp_linear_bwd_gathered(lt_exec *r, lt_tensor dx, lt_tensor all, lt_tensor own,
                                             lt_tensor x, lt_param_kind kind, lt_param_kind bias,
                                             int layer);
LT_MUST_USE lt_err lt_tp_linear_bwd_scattered(lt_exec *r, lt_tensor dx, lt_tensor dy, lt_tensor x,
                                              lt_param_kind kind, lt_param_kind bias, int layer);

/* x = the sum over all ranks, contiguous. */
LT_MUST_USE lt_err lt_tp_sum(lt_exec *r, lt_tensor x);
/* The same, divided by the number of ranks. */
LT_MUST_USE lt_err lt_tp_mean(lt_exec *r, lt_tensor x);
/* x = the maximum over all ranks. */
LT_MUST_USE lt_err lt_tp_max(lt_exec *r, lt_tensor x);
/* x (n, ...), contiguous: x[i] = rank i's x[i]. */
LT_MUST_USE lt_err lt_tp_share(lt_exec *r, lt_tensor x);

#endif
