/* gguf_tokenizer.h: writes a tokenizer as GGUF metadata (tokenizer.ggml.*), as llama.cpp's
 * converter does. */
#ifndef LT_DATA_GGUF_TOKENIZER_H
#define LT_DATA_GGUF_TOKENIZER_H

#include "data/gguf_write.h"

/* path: a Hugging Face folder or tokenizer.json (byte-level BPE, or BPE with byte fallback), a GGUF
 * (copied), or llama2.c's tokenizer.bin. The arrays get exactly n_ids entries: a model's vocabulary
 * may be larger than its tokenizer's. UNSUPPORTED: GGUF cannot express it. ends (n_ends): the
 * model's ids that end a text. Those that neither the tokenizer nor llama.cpp (by name) knows
 * become eot_token_id and eom_token_id if these are free. */
LT_MUST_USE lt_err lt_gguf_put_tokenizer(lt_gguf_out *o, const char *path, int64_t n_ids,
                                         const int32_t *ends, int n_ends);

#endif
