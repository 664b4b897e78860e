/* chat_options.h: the options of `lateen tokenize --chat`. */
#ifndef LT_CLI_CHAT_OPTIONS_H
#define LT_CLI_CHAT_OPTIONS_H

#include "base/option.h"

#define CHAT_OPTIONS(X)                                                                            \
    X(BOOL, on, "chat", "false", 0, 0, "",                                                         \
      "lines hold conversations, {\"messages\": [...], \"tools\": [...]} or another common "       \
      "shape, "                                                                                    \
      "which the chat template turns into text; training learns only what the assistant says "     \
      "(PREFIX.mask marks it)")                                                                    \
    X(STR, chat_template, "chat-template", "", 0, 0, "NAME|FILE",                                  \
      "conversations: use this template instead of the model's own; implies --chat")               \
    X(STR, messages, "messages-field", "messages", 0, 1, "name",                                   \
      "conversations: member that holds the list; with --prompt-field and --field, lines hold "    \
      "those two strings instead")                                                                 \
    X(ENUM, turns, "chat-turns", "all", 0, 0, "all|last",                                          \
      "conversations: which of the assistant's turns training learns")

typedef struct {
    CHAT_OPTIONS(LT_OPTION_FIELD)
} lt_chat_options;

#endif
