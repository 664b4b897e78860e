/* chat_format.h: how a conversation becomes the text a chat model was taught. A table of the common
 * formats; the full template language of tokenizer_config.json belongs to the server. */
#ifndef LT_DATA_CHAT_FORMAT_H
#define LT_DATA_CHAT_FORMAT_H

#include <stdbool.h>

#include "lateen/base.h"

typedef struct {
    const char *name;  /* "chatml" */
    const char *mark;  /* A text that only this format's templates contain. */
    const char *begin; /* Before the first message. */
    const char *system_open, *system_close;
    const char *user_open, *user_close;
    const char *answer_open, *answer_close; /* answer_open is also what asks for an answer. */
    const char *system_default;             /* NULL: no system message unless given. */
} lt_chat_format;

/* By name; NULL when there is none. */
const lt_chat_format *lt_chat_format_find(const char *name);
/* By the marks a template text contains; NULL when none fits. */
const lt_chat_format *lt_chat_format_detect(const char *template_text);
/* "chatml|llama3|..." */
const char *lt_chat_format_names(void);

#endif
