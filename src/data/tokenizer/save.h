/* tokenizer/save.h: writes the tokenizer in a GGUF's metadata as the files of a Hugging Face
 * folder. */
#ifndef LT_DATA_TOKENIZER_SAVE_H
#define LT_DATA_TOKENIZER_SAVE_H

#include "lateen/base.h"

/* Write FOLDER/tokenizer.json and FOLDER/tokenizer_config.json (special tokens, chat template).
 * For byte-level BPE ("gpt2") and SentencePiece BPE ("llama"). UNSUPPORTED: these files cannot
 * express the tokenizer; NOT_FOUND: the GGUF has none. Nothing is written then. */
LT_MUST_USE lt_err lt_tokenizer_save(const char *gguf_path, const char *folder);

#endif
