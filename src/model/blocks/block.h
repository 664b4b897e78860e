/* block.h: the two halves of a transformer layer, forward and backward, over tensors of acts.h.
 *
 * Residual stream: a half reads x and leaves what it adds to x in b->branch. The addition is fused
 * into the next norm, so each half starts with the norm that adds the previous branch. Backward
 * keeps the gradient of the stream in b->dx. */
#ifndef LT_MODEL_BLOCK_H
#define LT_MODEL_BLOCK_H

#include "model/pass/acts.h"
#include "model/layer.h"

/* Attention half. stream absent: x_in already has the input (layer 0, recompute); otherwise x_in =
 * stream + branch. */
lt_err lt_attention_block_fwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                              lt_tensor stream);
lt_err lt_attention_block_bwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                              lt_recompute level);

/* The same in two parts, between which a session uses its cache: x_in -> qkv, with q and k
 * normalised and rotated; and att -> branch. */
lt_err lt_attention_qkv_fwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                            lt_tensor stream);
lt_err lt_attention_out_fwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b);
/* The tensor with q and k after norm and rotation: qk if the layer normalises them, else qkv. */
const lt_tensor *lt_attention_qk(const lt_layer_spec *l, const lt_layer_acts *t);

/* MLP half, dense or with experts: x_mid = x_in + branch; the result is in branch. capacity: an
 * expert's capacity; 0: dropless. */
lt_err lt_mlp_block_fwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                        int64_t capacity);
/* aux_scale: factor of the router's two auxiliary losses, in addition to their coefficients and the
 * batch's n_labels. */
lt_err lt_mlp_block_bwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                        lt_recompute level, float aux_scale);

/* The experts' part: h -> y; dy -> dh (written). */
lt_err lt_moe_fwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                  lt_tensor h, lt_tensor y, int64_t capacity);
lt_err lt_moe_bwd(lt_exec *r, int layer, const lt_layer_acts *t, const lt_batch_acts *b,
                  lt_tensor h, lt_tensor dy, lt_recompute level, float aux_scale);

/* The activation of dense or MoE layers, up -> act, and its backward pass, from act to up. */
lt_err lt_mlp_activate(lt_exec *r, const lt_layer_spec *l, int layer, const lt_layer_acts *t);
lt_err lt_mlp_activate_bwd(lt_exec *r, const lt_layer_spec *l, int layer, const lt_layer_acts *t);

/* Shared by both halves (block.c). Begin: x = stream + branch, unless stream is absent and x
 * already holds its value; h = norm(x) if the layer has pre-norms. With tp these have this rank's
 * rows, and gather, or lt_tp_linear_fwd, brings the others from own_input. Input: what the half's
 * first product reads, h or x. Output: where its last product writes. End: branch = what is added
 * to the stream, from y if the layer has post-norms; else branch holds it already. */
lt_err lt_block_begin_fwd(lt_exec *r, const lt_layer_spec *l, const lt_norm *norm, lt_tensor h,
                          lt_tensor x, lt_tensor stream, lt_tensor branch);
lt_tensor lt_block_own_input(const lt_exec *r, const lt_layer_spec *l, lt_tensor h, lt_tensor x);
lt_err lt_block_gather(lt_exec *r, const lt_layer_spec *l, lt_tensor h, lt_tensor x);
lt_tensor lt_block_input(const lt_exec *r, const lt_layer_spec *l, lt_tensor h, lt_tensor x);
lt_tensor lt_block_output(const lt_exec *r, const lt_layer_spec *l, lt_tensor branch, lt_tensor y);
lt_err lt_block_end_fwd(lt_exec *r, const lt_layer_spec *l, const lt_norm *post, lt_tensor branch,
                        lt_tensor y);
/* Backward. Again: recompute the input if it was dropped. End: *dy = the gradient of the half's
 * result before norm and scale, for this rank's rows, in b->dx or b->branch; gather: for all rows.
 * Begin: b->dx += the gradient of the stream through b->dh, for this rank's rows. */
lt_err lt_block_again(lt_exec *r, const lt_layer_spec *l, const lt_norm *norm, lt_tensor h,
                      lt_tensor x);
lt_err lt_block_end_bwd(lt_exec *r, const lt_layer_spec *l, const lt_norm *post,
                        const lt_batch_acts *b, lt_tensor y, lt_tensor *dy);
lt_err lt_block_gather_bwd(lt_exec *r, const lt_batch_acts *b, lt_tensor *dy);
lt_err lt_block_begin_bwd(lt_exec *r, const lt_layer_spec *l, const lt_norm *norm,
                          const lt_batch_acts *b, lt_tensor x);

#endif
