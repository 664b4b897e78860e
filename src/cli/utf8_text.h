/* utf8_text.h: the option --invalid-utf8, for text from the command line, a prompt file or a
 * pipe. */
#ifndef LT_CLI_UTF8_TEXT_H
#define LT_CLI_UTF8_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/text_utf8.h"
#include "data/tokenizer/unicode.h"
#include "lateen/base.h"

#define LT_UTF8_OPTION(X)                                                                          \
    X(ENUM, utf8, "invalid-utf8", "replace", 0, 0, "replace|fail",                                 \
      "text that is not UTF-8: replace each such part by U+FFFD and report how many there were, "  \
      "or refuse it")

/* Counts of replacements in a stream of texts. */
typedef struct {
    uint64_t parts, lone, texts; /* lone: the parts that were lone surrogate escapes. */
    uint64_t line;               /* Position of the first part: line of its text, and byte in it. */
    size_t byte;
} lt_utf8_tally;

/* No-op if *text is valid UTF-8 and there are no lone escapes. Otherwise, fails with FORMAT if
 * `fails` is set; if not, *text and *n become a repaired copy in *room, 0-terminated, and the
 * replaced parts are added to the tally. *lone (may be NULL) are the lone surrogate escapes of the
 * JSON that *text is or came from: they are counted here and replaced by the caller. The message
 * names what and line (0: none). */
LT_MUST_USE lt_err lt_utf8_mend(const char *what, uint64_t line, bool fails, const char **text,
                                size_t *n, const lt_lone_escapes *lone, lt_text *room,
                                lt_utf8_tally *tally);

/* Report the tally in the log, unless it is empty. */
void lt_utf8_tell(const char *what, const lt_utf8_tally *tally);

/* The same for one text, reported at once: *text is a 0-terminated string. */
LT_MUST_USE lt_err lt_utf8_mend_one(const char *what, bool fails, const char **text, lt_text *room);

#endif
