/* qdot.h: the dot product of a quantised row with 8-bit activations, as ggml's
 * ggml_vec_dot_<type>_generic defines it, bit for bit. */
#ifndef LT_KERNELS_REF_QDOT_H
#define LT_KERNELS_REF_QDOT_H

#include "tensor/block.h"

/* n elements, whole blocks of `type`; a holds the blocks of its partner. */
float lt_ref_qdot(lt_dtype type, const void *row, const lt_q8 *a, int64_t n);

#endif
