/* fp8.h: linear layers that multiply 8-bit floats: which tensors are cast, where and when.
 *
 *     recipe      x, forward       dy, backward     weights           products
 *     blockwise   E4M3, 1 x 128    E4M3, 1 x 128    E4M3, 128 x 128   sums over 128 of K, which are
 *                                                                     then scaled and added in F32
 *     tensorwise  E4M3, 1 scale    E5M2, 1 scale    E4M3, 1 scale     whole sums on tensor cores
 *
 * Which: q k v, the attention's output, up and down: the 2-D matrices of a layer. Embedding, output
 * head, router and experts stay as they are. Gradients of weights (dy^T x) are computed from the
 * unrounded activations, unless `wgrad` is set: then dy^T and x^T are cast, too, blockwise by 1 x
 * 128 (dy) and 128 x 128 (x) along the tokens, and their product is added to the F32 gradient.
 *
 *     weights   once an optimiser step, as stored for y = x w^T and transposed for dx = dy w, since
 *               tensor cores take K-contiguous operands only
 *     x, dy     at each product, into memory that all products share. Recomputed rows come from the
 *               same stored tensors, so recompute gives the same bits. dy is read once for both of
 *               its casts
 *
 * Ranks of tp (tp.h) have parts of these matrices and use the scales of the whole: the scale of a
 * tensor is the largest of all ranks', and blocks must not be cut.
 *
 * Weights, activations and gradients are stored as without 8-bit products, so checkpoints do not
 * differ. Evaluation in a pass rounds as training does; generation does not. */
#ifndef LT_MODEL_FP8_H
#define LT_MODEL_FP8_H

#include "base/arena.h"
#include "model/pass/pass.h"
#include "model/blocks/exec.h"

/* A weight (N, K) as it is stored, for y = x w^T, and its transpose (K, N), for dx = dy w; rows are
 * aligned to 16 bytes. */
typedef struct {
    lt_tensor w, w_scale, t, t_scale;
} lt_fp8_weight;

typedef struct lt_fp8 {
    lt_fp8_recipe recipe;
    lt_fp8_weight *weights; /* (n_params), by index in the table; absent if it is not cast. */
    void *x;                /* Codes of the largest x or dy. */
    float *x_scale;
    bool wgrad;
    void *dy_t, *x_t; /* With wgrad: the codes of dy and x transposed. */
    float *dy_t_scale, *x_t_scale;
    int64_t rows;
    bool cast;        /* The weights have been cast, */
    uint64_t version; /* those of this lt_model.version. */
} lt_fp8;

/* ARG: the part of a matrix on a rank of tp cuts blocks of 128 x 128. */
LT_MUST_USE lt_err lt_fp8_check(const lt_param_table *t, lt_fp8_recipe recipe);

/* Whether this parameter's product is one of those. */
bool lt_fp8_takes(const lt_param *p);

/* Carve the memory of a pass. weights: (n_params), or NULL to measure. Takes nothing with
 * LT_FP8_NONE. */
void lt_fp8_carve(lt_fp8 *f, const lt_param_table *t, const lt_pass_options *o, lt_arena *a);

/* Cast the weights unless the current version is cast already. Call it before a pass, outside of
 * recorded work. */
LT_MUST_USE lt_err lt_fp8_refresh(lt_exec *r, lt_fp8 *f);

/* y = x w^T [+ bias]. */
LT_MUST_USE lt_err lt_fp8_forward(lt_exec *r, int index, lt_tensor y, lt_tensor x, lt_tensor bias);
/* dw [+]= dy^T x, then dx [+]= dy w unless dx is absent; dx may be x. */
typedef struct {
    lt_tensor dw, dx, dy, x;
    bool add_dw, add_dx;
} lt_fp8_backward_args;
LT_MUST_USE lt_err lt_fp8_backward(lt_exec *r, int index, const lt_fp8_backward_args *a);

#endif
