/* generation.h: what a model's own files say of generating with it: which tokens end a text, and
 * how tokens are chosen where nobody says.
 *
 *     generation_config.json                            the tree as it is: saved again as it was,
 *                                                       whatever else stands in it
 *     GGUF  lateen.generation_config                    that tree as text, over it:
 *           general.sampling.temp, .top_k, .top_p, ...  llama.cpp's keys, which other programs edit
 *
 * Its eos_token_id takes precedence over config.json's in generating, as in transformers; training
 * and saving keep both apart. A faulty file or field is told in the log and left out: weights are
 * of use without it. */
#ifndef LT_MODEL_GENERATION_H
#define LT_MODEL_GENERATION_H

#include "data/gguf.h"
#include "data/gguf_write.h"
#include "model/params.h"

/* A folder's generation_config.json, if there is one. */
LT_MUST_USE lt_err lt_generation_read(lt_model *m, const char *folder);
LT_MUST_USE lt_err lt_generation_read_gguf(lt_model *m, const lt_gguf *g);

/* Write it into a folder, or a GGUF's metadata. Ids that it does not name are the spec's. */
LT_MUST_USE lt_err lt_generation_write(const lt_model *m, const char *folder);
LT_MUST_USE lt_err lt_generation_put_gguf(const lt_model *m, lt_gguf_out *o);

void lt_generation_close(lt_model *m);

#endif
