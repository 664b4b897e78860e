/* tokenizer/bring.h: copies a model's tokenizer beside newly written weights. */
#ifndef LT_DATA_TOKENIZER_BRING_H
#define LT_DATA_TOKENIZER_BRING_H

#include "lateen/base.h"

/* Put the tokenizer of `from` into a Hugging Face folder: the files of another such folder, chat
 * template included; a tokenizer.json unchanged; or the result of lt_tokenizer_save for a .gguf.
 * UNSUPPORTED: another kind of file. */
LT_MUST_USE lt_err lt_tokenizer_bring(const char *from, const char *folder);

#endif
