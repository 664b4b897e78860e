/* gguf_save.h: a model as a GGUF file that llama.cpp, and Lateen, run. */
#ifndef LT_MODEL_GGUF_SAVE_H
#define LT_MODEL_GGUF_SAVE_H

#include "model/files/gguf_types.h"

/* The model was opened in F32 on the host. tokenizer: see data/tokenizer/gguf_tokenizer.h; "": the
 * file has none. UNSUPPORTED: GGUF has no architecture for the family. */
LT_MUST_USE lt_err lt_model_save_gguf(const lt_model *m, const char *path, const char *tokenizer,
                                      lt_gguf_mix mix);

#endif
