/* lora_dropout.h: dropout of the input of adapters in training, as in PEFT:
 *
 *     y = x W^T + s (d(x) A^T) B^T        d(x) = m x / (1 - p), m 0 with probability p, or 1
 *
 * Each module draws its own masks, even q, k and v, which read the same x. An element of a mask is
 * a function of the seed, the module, the row of the run, the position in the row and the column.
 * So it is the same in the forward pass, in a recomputed layer and in the backward pass, on any
 * number of ranks, and in a resumed run. Ranks of tp that have some columns of x, and ranks of cp
 * that have some positions, draw their parts of the whole mask. Evaluation has no dropout. */
#ifndef LT_MODEL_LORA_DROPOUT_H
#define LT_MODEL_LORA_DROPOUT_H

#include "model/lora/adapted.h"

/* y = d(x), or y += d(x) if add, with the mask of a part of the site. Both are (rows, columns
 * held here), of one type; rows are those of r's batch. They are other rows of the run in each
 * batch, so a pass with dropout is not recorded. */
LT_MUST_USE lt_err lt_lora_drop(lt_exec *r, const lt_lora_site *s, int part, lt_tensor y,
                                lt_tensor x, bool add);

#endif
