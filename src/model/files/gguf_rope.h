/* gguf_rope.h: the rotary embedding in a GGUF's metadata and tensors. */
#ifndef LT_MODEL_GGUF_ROPE_H
#define LT_MODEL_GGUF_ROPE_H

#include "data/gguf.h"
#include "data/gguf_write.h"
#include "lateen/model.h"

/* Metadata keys after "<arch>."; the last two, which complement rope_freqs.weight, are Lateen's own
 * and optional for other readers. */
#define LT_GGUF_ROPE_ORIGINAL "rope.scaling.original_context_length"
#define LT_GGUF_ROPE_LOW      "rope.scaling.low_freq_factor"
#define LT_GGUF_ROPE_HIGH     "rope.scaling.high_freq_factor"

/* Into a spec that has its sizes and the family's preset. */
LT_MUST_USE lt_err lt_gguf_read_rope(lt_model_spec *spec, const lt_gguf *g, const char *arch);

/* What GGUF cannot express of it; NULL: nothing. */
const char *lt_gguf_rope_inexpressible(const lt_model_spec *spec);
/* Whether yarn's beta_fast and beta_slow are not 32 and 1, and that has an effect. */
bool lt_gguf_rope_has_other_betas(const lt_model_spec *spec);
/* Whether the key of yarn's attention factor, which llama.cpp applies to all layers, is written for
 * a model whose layers with windows have their own rotary embedding. */
bool lt_gguf_rope_factor_spreads(const lt_model_spec *spec);
void lt_gguf_put_rope(const lt_model_spec *spec, const char *arch, lt_gguf_out *o);
/* The name of its tensor `which`, 0 or 1, whose numbers are written to out (LT_MAX_ROPE_FACTORS);
 * NULL: there is none. */
const char *lt_gguf_rope_tensor(const lt_model_spec *spec, int which, float *out);

#endif
