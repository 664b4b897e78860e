/* generation.h: the settings for generation in a model's files: which tokens end a text, and the
 * sampling defaults.
 *
 *     generation_config.json                            the tree, which is saved again unchanged,
 *                                                       including unknown members
 *     GGUF  lateen.generation_config                    that tree as text, over it:
 *           general.sampling.temp, .top_k, .top_p, ...  llama.cpp's keys, which other programs edit
 *
 * Its eos_token_id takes precedence over config.json's in generation, as in transformers; training
 * and saving keep the two separate. A faulty file or field is reported in the log and ignored,
 * because the weights are usable without it. */
#ifndef LT_MODEL_GENERATION_H
#define LT_MODEL_GENERATION_H

#include "data/gguf.h"
#include "data/gguf_write.h"
#include "model/params.h"

/* A folder's generation_config.json, if there is one. */
LT_MUST_USE lt_err lt_generation_read(lt_model *m, const char *folder);
LT_MUST_USE lt_err lt_generation_read_gguf(lt_model *m, const lt_gguf *g);

/* Write the settings to a folder, or to a GGUF's metadata. Ids that they do not name are the
 * spec's. */
LT_MUST_USE lt_err lt_generation_write(const lt_model *m, const char *folder);
LT_MUST_USE lt_err lt_generation_put_gguf(const lt_model *m, lt_gguf_out *o);

/* Copy the settings of another model's files. */
LT_MUST_USE lt_err lt_generation_copy(lt_model *m, const lt_model *from);
void lt_generation_close(lt_model *m);

#endif
