/* chat_data.h: conversations as training data: which sources of a mixture hold them, their shards,
 * and the template that a sample and the exported model use. */
#ifndef LT_TRAIN_CHAT_DATA_H
#define LT_TRAIN_CHAT_DATA_H

#include "data/chat_source.h"
#include "train/mixture.h"
#include "train/recipe/recipe.h"

/* Whether data.train or data.valid names files of conversations (JSON lines by their names). */
bool lt_recipe_has_chats(const lt_recipe *r);

/* Fill in what conversations imply: the tokenizer of model.init, and rows of whole documents. A
 * data.packing that was not given is set to the one in effect. */
LT_MUST_USE lt_err lt_chat_data_resolve(lt_recipe *r);

/* Open the template, and set how answers are found; *out is empty for a recipe without
 * conversations. Close it with lt_chat_source_close. */
LT_MUST_USE lt_err lt_chat_data_open(lt_chat_source *out, const lt_recipe *r,
                                     const lt_tokenizer *t);

/* Replace the paths of conversations in a mixture by those of their shards in OUT/data; missing
 * shards are made. option: the recipe's key, for messages. */
LT_MUST_USE lt_err lt_chat_data_read(lt_mixture *m, const char *option, const lt_recipe *r,
                                     const lt_chat_source *source);

#endif
