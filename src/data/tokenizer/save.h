/* tokenizer/save.h: the tokenizer in a GGUF's metadata as the files of a Hugging Face folder. */
#ifndef LT_DATA_TOKENIZER_SAVE_H
#define LT_DATA_TOKENIZER_SAVE_H

#include "lateen/base.h"

/* Write FOLDER/tokenizer.json and FOLDER/tokenizer_config.json (special tokens, chat template).
 * Byte-level BPE ("gpt2") and SentencePiece BPE ("llama"); what these files cannot say, or no
 * tokenizer in the GGUF: UNSUPPORTED, NOT_FOUND, and nothing is written. */
LT_MUST_USE lt_err lt_tokenizer_save(const char *gguf_path, const char *folder);

#endif
