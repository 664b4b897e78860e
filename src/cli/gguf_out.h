/* gguf_out.h: writes a GGUF file with its tokenizer, for quantize and convert. */
#ifndef LT_CLI_GGUF_OUT_H
#define LT_CLI_GGUF_OUT_H

#include "lateen/model.h"
#include "model/files/gguf_save.h"

/* Fails unless a new model can be written there: nothing has this name, and a file's folder
 * exists. Known before the model is read. */
LT_MUST_USE lt_err lt_cli_check_new(const char *to);

/* tokenizer "": the model's own. A folder without one, or llama2.c's .bin alone, gives a file
 * without tokenizer, with a warning. */
LT_MUST_USE lt_err lt_cli_write_gguf(const lt_model *m, const char *model_path,
                                     const char *tokenizer, const char *to, lt_gguf_mix mix);

#endif
