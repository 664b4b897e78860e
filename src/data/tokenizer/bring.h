/* tokenizer/bring.h: a model's tokenizer, beside weights that are written anew. */
#ifndef LT_DATA_TOKENIZER_BRING_H
#define LT_DATA_TOKENIZER_BRING_H

#include "lateen/base.h"

/* Put the tokenizer of `from` into a Hugging Face folder: from another such folder its files, chat
 * template included; a tokenizer.json as it is; of a .gguf what lt_tokenizer_save makes of it.
 * UNSUPPORTED: another kind of file. */
LT_MUST_USE lt_err lt_tokenizer_bring(const char *from, const char *folder);

#endif
