/* chat_source.h: how conversations become ids and masks: by a tokenizer, a template (the model's
 * own, a file's, or a common format's) and a choice of the turns that are labels. A hash covers all
 * of these but the tokenizer. */
#ifndef LT_DATA_CHAT_SOURCE_H
#define LT_DATA_CHAT_SOURCE_H

#include "data/chat_rows.h"

typedef struct {
    const lt_tokenizer *tokenizer;
    const char *tokenizer_path; /* The model's template is searched for in or beside it. */
    const char *template;       /* A file, or a name of chat_format.h; "": the model's own. */
    const char *option;         /* The option that gives the template, for messages. */
    const char *messages;       /* As in lt_chat_rows. */
    const char *prompt, *answer;
    bool last_only;
} lt_chat_source_options;

typedef struct {
    lt_chat_rows rows;
    lt_chat_template *template;
    uint64_t hash; /* Hash of template and options. */
} lt_chat_source;

/* The strings of *o, except for those of `rows`, need not outlive the call. Close it also after a
 * failure. NOT_FOUND: the model has no template, or there is no such file. */
LT_MUST_USE lt_err lt_chat_source_open(lt_chat_source *out, const lt_chat_source_options *o);
void lt_chat_source_close(lt_chat_source *c);

#endif
