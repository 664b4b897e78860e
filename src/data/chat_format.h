/* chat_format.h: how a conversation becomes the text format that a chat model was trained on: a
 * table of the common formats. chat_template.h renders templates in the full language of
 * tokenizer_config.json. */
#ifndef LT_DATA_CHAT_FORMAT_H
#define LT_DATA_CHAT_FORMAT_H

#include <stdbool.h>

#include "lateen/base.h"

typedef struct {
    const char *name;  /* "chatml" */
    const char *mark;  /* A text that only this format's templates contain. */
    const char *begin; /* Text before the first message. */
    const char *system_open, *system_close;
    const char *user_open, *user_close;
    const char *answer_open, *answer_close; /* answer_open is also the generation prompt. */
    const char *system_default;             /* NULL: no system message unless given. */
} lt_chat_format;

/* Find a format by name; NULL: unknown. */
const lt_chat_format *lt_chat_format_find(const char *name);
/* Find the format whose mark the template text contains; NULL: none. */
const lt_chat_format *lt_chat_format_detect(const char *template_text);
/* "chatml|llama3|..." */
const char *lt_chat_format_names(void);

#endif
