/* lora_gguf.h: adapters in llama.cpp's form, one GGUF file (its convert_lora_to_gguf.py and
 * llama-adapter.cpp):
 *
 *     general.type "adapter", adapter.type "lora", general.architecture, adapter.lora.alpha (F32)
 *     <weight of the model>.lora_a    dims {in, r}       e.g. blk.0.attn_q.weight.lora_a
 *     <weight of the model>.lora_b    dims {r, out}      rows of q and k as the weight's
 *
 * A module computes with alpha / r, or with 1 if alpha is 0; there is one alpha for the file. So
 * rsLoRA is written with alpha sqrt(r). The format cannot hold DoRA or a score head. */
#ifndef LT_MODEL_LORA_GGUF_H
#define LT_MODEL_LORA_GGUF_H

#include "data/gguf.h"
#include "model/lora/lora.h"

#define LT_LORA_GGUF_NAME_BYTES (LT_FOREIGN_NAME_BYTES + 16)

/* Whether this is a GGUF file of adapters. */
bool lt_lora_is_gguf(const char *path);
bool lt_lora_gguf_holds(const lt_gguf *g); /* The same for an open file. */
/* Whether the path has the name of a GGUF file (x.gguf), which need not exist. Any other path is
 * that of a PEFT folder. */
bool lt_lora_is_gguf_path(const char *path);
/* Read rank, alpha and targets; close the result as that of a folder. UNSUPPORTED: another
 * architecture or kind of adapter, modules in some layers only, ranks that differ. */
LT_MUST_USE lt_err lt_lora_gguf_config_read(lt_lora_config *out, const char *path,
                                            const lt_model_spec *spec);
/* Read the tensors into adapters of the same options. FORMAT: one is missing, has another shape,
 * is not finite, or belongs to no adapter. */
LT_MUST_USE lt_err lt_lora_gguf_load(lt_lora *l, const char *path);
/* Write the file, tensors in F32, from adapters on the host. UNSUPPORTED: the format cannot hold
 * something, which the message names. */
LT_MUST_USE lt_err lt_lora_gguf_save(const lt_lora *l, const char *path);

/* ---- For a reader that takes ranks and layers from the tensors (lora_pool.h) ---- */

/* UNSUPPORTED: it is not a file of adapters for models of this family. */
LT_MUST_USE lt_err lt_lora_gguf_check(const lt_gguf *g, const lt_model_spec *spec);
/* The name of A or B (letter 'a' or 'b') of a part; param: A's among the adapters' parameters.
 * false: the matrix is not a separate weight in a GGUF. */
bool lt_lora_gguf_name(char out[LT_LORA_GGUF_NAME_BYTES], const lt_model *base,
                       const lt_param *param, const lt_lora_part *p, char letter);
/* A (rank, in) and B (rows, rank) of a part that has a name, B's rows in the order of ours. Free
 * both with free(), after an error, too. FORMAT: as lt_lora_gguf_load. */
LT_MUST_USE lt_err lt_lora_gguf_values(float **a, float **b, const lt_gguf *g, const lt_model *base,
                                       const lt_param *param, const lt_lora_part *p, int64_t rank);

#endif
