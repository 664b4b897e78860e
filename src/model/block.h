/* block.h: the two halves of a transformer layer, forward and backward, over tensors of acts.h.
 *
 * Residual stream: a half reads x, and what it adds to x is left in b->branch; the addition itself
 * is fused into the next norm, which is why each half starts with the norm that adds the previous
 * branch. Backward keeps the gradient of the stream in b->dx. */
#ifndef LT_MODEL_BLOCK_H
#define LT_MODEL_BLOCK_H

#include "model/acts.h"

/* Attention half. stream absent: x_in already holds the input (layer 0, recompute); else x_in =
 * stream + branch. */
lt_err lt_attention_block_fwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                              lt_tensor stream);
lt_err lt_attention_block_bwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                              lt_recompute level);

/* Its parts, which a session runs with a cache between them: x_in -> qkv, q and k normed and
 * rotated; att -> branch. */
lt_err lt_attention_qkv_fwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                            lt_tensor stream);
lt_err lt_attention_out_fwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b);
/* Where q and k lie after their norm and rotation: qk if the spec norms them, else qkv. */
const lt_tensor *lt_attention_qk(const lt_exec *r, const lt_layer_acts *t);

/* MLP half, dense or with experts: x_mid = x_in + branch; the result is in branch. capacity: of an
 * expert, 0 dropless. */
lt_err lt_mlp_block_fwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                        int64_t capacity);
/* aux_scale: what the two auxiliary losses of the router are multiplied by, beside their
 * coefficients and the batch's n_labels. */
lt_err lt_mlp_block_bwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                        lt_recompute level, float aux_scale);

/* The experts' part of it: h2 -> y; dy -> dh (written). */
lt_err lt_moe_fwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                  lt_tensor y, int64_t capacity);
lt_err lt_moe_bwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                  lt_tensor dy, lt_recompute level, float aux_scale);

#endif
