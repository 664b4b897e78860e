/* lora_gguf.h: adapters as llama.cpp keeps them, one GGUF file (its convert_lora_to_gguf.py and
 * llama-adapter.cpp):
 *
 *     general.type "adapter", adapter.type "lora", general.architecture, adapter.lora.alpha (F32)
 *     <weight of the model>.lora_a    dims {in, r}       e.g. blk.0.attn_q.weight.lora_a
 *     <weight of the model>.lora_b    dims {r, out}      rows of q and k as the weight's
 *
 * A module computes with alpha / r, or with 1 where alpha is 0; there is one alpha for the file. So
 * rsLoRA is written with alpha sqrt(r). DoRA and a score head have no place in the format. */
#ifndef LT_MODEL_LORA_GGUF_H
#define LT_MODEL_LORA_GGUF_H

#include "model/lora.h"

/* Is this a GGUF file of adapters? */
bool lt_lora_is_gguf(const char *path);
/* Rank, alpha and targets; close it as one of a folder. UNSUPPORTED: another architecture or kind
 * of adapter, modules in some layers only, ranks that differ. */
LT_MUST_USE lt_err lt_lora_gguf_config_read(lt_lora_config *out, const char *path,
                                            const lt_model_spec *spec);
/* Read the tensors into adapters of the same options. FORMAT: one is missing, of another shape, not
 * finite, or of no adapter. */
LT_MUST_USE lt_err lt_lora_gguf_load(lt_lora *l, const char *path);
/* Write the file, tensors in F32, from adapters on the host. UNSUPPORTED: what has no place in it,
 * which the message names. */
LT_MUST_USE lt_err lt_lora_gguf_save(const lt_lora *l, const char *path);

#endif
