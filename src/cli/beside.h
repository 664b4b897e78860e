/* beside.h: models beside the one that is served, whose logits requests may blend into its own:
 * `lateen serve MODEL --second NAME=MODEL,...`. */
#ifndef LT_CLI_BESIDE_H
#define LT_CLI_BESIDE_H

#include "cli/opened.h"
#include "lateen/serve.h"

typedef struct {
    int n;
    char names[LT_ENGINE_BESIDE][64];
    char paths[LT_ENGINE_BESIDE][LT_PATH_BYTES];
    const char *name_list[LT_ENGINE_BESIDE];
    lt_opened opened[LT_ENGINE_BESIDE];
    const lt_model *models[LT_ENGINE_BESIDE];
} lt_beside;

/* "NAME=MODEL,..." or "MODEL", whose name is "second". ARG: a name that is missing, too long or
 * there twice; more than LT_ENGINE_BESIDE. */
LT_MUST_USE lt_err lt_beside_read(lt_beside *b, const char *text);
/* Open the models. UNSUPPORTED: one of them has another tokenizer than `tokenizer`, and which token
 * differs. tokenizer_path: a file for those that have none. */
LT_MUST_USE lt_err lt_beside_open(lt_beside *b, const lt_tokenizer *tokenizer,
                                  const char *tokenizer_path, lt_opened_dtype dtype,
                                  const char *device, int64_t threads);
void lt_beside_close(lt_beside *b);

#endif
