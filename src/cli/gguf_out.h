/* gguf_out.h: writes a GGUF file with its tokenizer, for quantize and convert. */
#ifndef LT_CLI_GGUF_OUT_H
#define LT_CLI_GGUF_OUT_H

#include "lateen/model.h"
#include "model/files/gguf_save.h"

/* Fails unless a new model can be written there: the name must be free, and the folder of a file
 * must exist. Call it before the model is read. */
LT_MUST_USE lt_err lt_cli_check_new(const char *to);

/* tokenizer "": the model's own. If the model is a folder without a tokenizer, or only llama2.c's
 * .bin, the file gets no tokenizer, with a warning. */
LT_MUST_USE lt_err lt_cli_write_gguf(const lt_model *m, const char *model_path,
                                     const char *tokenizer, const char *to, lt_gguf_mix mix);

#endif
