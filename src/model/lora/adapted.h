/* adapted.h: functions that passes and linear layers (exec.c) call because a model may have
 * adapters (lora.h). For a matrix without adapters, each function does nothing. */
#ifndef LT_MODEL_ADAPTED_H
#define LT_MODEL_ADAPTED_H

#include "model/blocks/exec.h"
#include "model/lora/lora.h"

/* From now on products include the adapters of r's model, if it has any. run must outlive r. */
void lt_lora_attach(lt_exec *r, lt_lora_run *run);
bool lt_lora_has(const lt_exec *r, lt_param_kind kind, int layer);
/* Call it before a batch: if adapters have changed, derive their factors from the weights anew
 * (dora.c), for one layer or all. With ranks of tp, all ranks call it. */
LT_MUST_USE lt_err lt_lora_refresh(lt_exec *r);
LT_MUST_USE lt_err lt_lora_refresh_layer(lt_exec *r, int layer);
/* The bias that the product with the base adds: bias, or none if lt_lora_forward adds it. */
lt_tensor lt_lora_early_bias(const lt_exec *r, lt_tensor bias, lt_param_kind kind, int layer);
/* Whether the product with the base and those of the adapter can be one op (matmul_lora): not
 * with DoRA, nor if rows have different adapters. */
bool lt_lora_joins(const lt_exec *r, lt_param_kind kind, int layer);
/* This op: y = base + s (x A^T) B^T; and dx = base + du A, with the du that lt_lora_gradients has
 * computed. */
LT_MUST_USE lt_err lt_lora_product(lt_exec *r, const lt_matmul_args *base, lt_param_kind kind,
                                   int layer);
LT_MUST_USE lt_err lt_lora_product_back(lt_exec *r, const lt_matmul_args *base, lt_param_kind kind,
                                        int layer);
/* y += s (x A^T) B^T, after the product with the base; DoRA: y = c (y + s (x A^T) B^T) + bias. */
LT_MUST_USE lt_err lt_lora_forward(lt_exec *r, lt_tensor y, lt_tensor x, lt_tensor bias,
                                   lt_param_kind kind, int layer);
/* As lt_lora_forward, but without DoRA; x has only columns of the matrix, from `first` on. */
LT_MUST_USE lt_err lt_lora_forward_columns(lt_exec *r, lt_tensor y, lt_tensor x, int64_t first,
                                           lt_param_kind kind, int layer);
/* The gradients of the adapters: stored, or added if `add`. Call it before dx is written, which may
 * overwrite x. *dy becomes the gradient of the product with the base. */
LT_MUST_USE lt_err lt_lora_gradients(lt_exec *r, lt_tensor *dy, lt_tensor x, lt_param_kind kind,
                                     int layer, bool add);
/* dx += du A, with the du that lt_lora_gradients of the same layer has computed. */
LT_MUST_USE lt_err lt_lora_backward(lt_exec *r, lt_tensor dx, lt_param_kind kind, int layer);

/* The same three for experts, whose rows expert_start divides (block_moe.c). x: columns of each
 * matrix from `first` on. Gradients are stored if r->fresh, otherwise added. */
LT_MUST_USE lt_err lt_lora_experts_forward(lt_exec *r, lt_tensor y, lt_tensor x,
                                           lt_tensor expert_start, int64_t first,
                                           lt_param_kind kind, int layer);
LT_MUST_USE lt_err lt_lora_experts_gradients(lt_exec *r, lt_tensor dy, lt_tensor x,
                                             lt_tensor expert_start, lt_param_kind kind, int layer);
LT_MUST_USE lt_err lt_lora_experts_backward(lt_exec *r, lt_tensor dx, lt_tensor expert_start,
                                            lt_param_kind kind, int layer);

/* y (rows, C) += scale * s A[ids] B^T, after the embedding; and the gradients of A and B, stored
 * if r->fresh, otherwise added. */
LT_MUST_USE lt_err lt_lora_embedding_fwd(lt_exec *r, lt_tensor y, lt_tensor ids, float scale);
LT_MUST_USE lt_err lt_lora_embedding_bwd(lt_exec *r, lt_tensor dy, lt_tensor ids, float scale);
bool lt_lora_has_embedding(const lt_exec *r);
/* Zero the gradients of the head's adapter, for a batch none of whose rows reach it. */
LT_MUST_USE lt_err lt_lora_zero_head(lt_exec *r);

/* The score head that is trained beside adapters, or its bias, in one of their buffers. */
lt_tensor lt_lora_score(const lt_lora *l, lt_param_kind kind, const lt_param_buffer *b);

#endif
