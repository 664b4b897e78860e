/* dora.h: DoRA (Liu et al. 2024, "Weight-Decomposed Low-Rank Adaptation", arXiv:2402.09353,
 * equation 5, as PEFT computes it): the direction and the length of each row of a weight are
 * trained separately.
 *
 *     z = x W^T + s (x A^T) B^T       as LoRA
 *     y = c z + bias                  c = m / ||W + s B A||, one number per row of W
 *
 * m (out) begins as ||W||, so new adapters change nothing. The backward pass treats the norm as a
 * constant (section 4.3 of the paper):
 *
 *     dz = c dy, from which the gradients of A, B and x follow as in LoRA
 *     dm = (column sums of dy z) / ||W + s B A||
 *
 * c is derived once for each version of the adapters, some rows of W + s B A at a time. z is not
 * kept: the backward pass computes it again, which costs one more product with W.
 *
 * On ranks of tp, c of a row of which several ranks have a part needs the norm of the whole row,
 * from the mean over the ranks of the means of squares. The sum of the ranks' parts of y, each
 * times c, is y, and that of their parts of dm is dm. With mesh.zero, a layer's c are derived
 * when its weights have been gathered (parallel/zero.h), from magnitudes that are gathered in
 * F32.
 *
 * Every step is one of the ops that all backends have. rmsnorm with LT_NORM_GIVEN takes the mean of
 * squares from the caller: given 0 and eps 1, it multiplies the columns of x by its gain, and its
 * backward pass, given a mean of 0, gives c dy and the column sums of dy z. */
#ifndef LT_MODEL_DORA_H
#define LT_MODEL_DORA_H

#include "model/lora/adapted.h"

/* The name of a module's magnitudes in PEFT's files. */
#define LT_DORA_TENSOR "base_model.model.%s.lora_magnitude_vector"

/* Allocate memory for the derived numbers. begin: set the magnitudes to those of the base, which
 * has all its weights. */
LT_MUST_USE lt_err lt_dora_open(lt_lora *l, lt_model *base, bool begin);
void lt_dora_close(lt_lora *l);
/* Set the magnitudes of a layer to those of its weights, which must be here, while B is still zero.
 * With ranks of tp, all ranks call it. The caller must call lt_model_settle(l->trained). */
LT_MUST_USE lt_err lt_dora_begin(lt_exec *r, int layer);
/* The same for all layers of a base that has all its weights; lt_model_settle is called. */
LT_MUST_USE lt_err lt_dora_begin_all(lt_lora *l, lt_model *base);

/* m of a matrix, for the rows that are here: (rows, 1) F32, for every type of weights. */
lt_tensor lt_dora_magnitudes(const lt_lora *l, const lt_lora_site *s);

/* y (rows, out) holds z, the product without bias. Multiply its adapted columns by c, then add the
 * bias to all columns. */
LT_MUST_USE lt_err lt_dora_scale(lt_exec *r, const lt_lora_site *s, lt_tensor y, lt_tensor bias);
/* Compute the gradient of m from dy and z, which is in r->lora->z; it is stored if r->fresh,
 * otherwise added. *dy becomes dz. */
LT_MUST_USE lt_err lt_dora_gradient(lt_exec *r, const lt_lora_site *s, lt_tensor *dy);

/* lora.c: a parameter of the adapters in one of their buffers, as a matrix. */
lt_tensor lt_lora_view(const lt_exec *r, const lt_param_buffer *b, int index);
/* The part of `part` among the columns of an output of its matrix. */
lt_tensor lt_lora_columns(const lt_tensor *y, const lt_lora_part *part);

#endif
