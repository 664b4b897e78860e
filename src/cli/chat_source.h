/* chat_source.h: the conversations of `lateen tokenize --chat`: options, template and their
 * hash. */
#ifndef LT_CLI_CHAT_SOURCE_H
#define LT_CLI_CHAT_SOURCE_H

#include "base/option.h"
#include "data/chat_rows.h"

#define CHAT_SOURCE_OPTIONS(X)                                                                     \
    X(BOOL, on, "chat", "false", 0, 0, "",                                                         \
      "lines hold conversations, {\"messages\": [...], \"tools\": [...]}, which the chat "         \
      "template turns into text; training learns only what the assistant says (PREFIX.mask marks " \
      "it)")                                                                                       \
    X(STR, chat_template, "chat-template", "", 0, 0, "NAME|FILE",                                  \
      "conversations: use this template instead of the model's own; implies --chat")               \
    X(STR, messages, "messages-field", "messages", 0, 1, "name",                                   \
      "conversations: member that holds the list; with --prompt-field and --field, lines hold "    \
      "those two strings instead")                                                                 \
    X(ENUM, turns, "chat-turns", "all", 0, 0, "all|last",                                          \
      "conversations: which of the assistant's turns training learns")

typedef struct {
    CHAT_SOURCE_OPTIONS(LT_OPTION_FIELD)
} lt_chat_source_options;

typedef struct {
    bool on;
    lt_chat_rows rows;
    lt_chat_template *template;
    uint64_t hash; /* Of template and options. */
} lt_chat_source;

/* prompt, answer: the members of --prompt-field and --field, used when prompt is not empty.
 * tokenizer_path: where the model's template is looked for. out->on says whether conversations were
 * requested. Close it also after a failure. */
LT_MUST_USE lt_err lt_chat_source_open(lt_chat_source *out, const lt_chat_source_options *o,
                                       const char *prompt, const char *answer,
                                       const lt_tokenizer *t, const char *tokenizer_path);
void lt_chat_source_close(lt_chat_source *c);

#endif
