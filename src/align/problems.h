/* problems.h: the problems that reinforcement learning asks: one JSON object a line.
 *
 *     messages   a conversation; the assistant's turns at its end are left out. Or any shape of
 *                data/chat_shape.h; or prompt, question or text: the text of one message of the
 *                user
 *     answer     the true answer, and
 *     checker    how answers are compared with it: data/check/checker.h. As `lateen data make`
 *                writes them
 *     schema     a JSON schema that answers must match
 *     tests, test_list, test
 *                unit tests of the code in an answer: unit_tests.h
 *
 * Further members are kept for a reward command. Lines that cannot be asked are named with file,
 * line and reason, the first LT_PROBLEMS_TOLD of them. */
#ifndef LT_ALIGN_PROBLEMS_H
#define LT_ALIGN_PROBLEMS_H

#include <jansson.h>

#include "data/chat_source.h"
#include "data/check/checker.h"
#include "data/conversations.h"

#define LT_PROBLEMS_TOLD 10

typedef struct {
    json_t *line;
    lt_checker *checker; /* NULL: the line has no answer. */
    int32_t *prompt;     /* (n_prompt) ids of the question, with the opening of an answer. */
    int64_t n_prompt;
    uint64_t line_number;
    const char *path; /* Belongs to the caller. */
} lt_problem;

typedef struct {
    lt_problem *items;
    int64_t n, room, left_out;
    uint64_t hash; /* Hash of the used ids and lines, in their order. */
} lt_problems;

typedef struct {
    const lt_chat_source *source;
    int64_t longest; /* Most tokens of a question: the length of a row minus the answer. */
    lt_bad_rows bad_rows;
    lt_too_long too_long; /* CUT is not possible, and means SKIP. */
} lt_problems_options;

/* Append the problems of a file, plain, .gz or .zst. FORMAT: none can be asked; the message says
 * how many lines were omitted, and why the first one was. */
LT_MUST_USE lt_err lt_problems_read(lt_problems *p, const char *path, const lt_problems_options *o);
/* A new reference to the messages of a problem's line, without the assistant's turns at the end.
 * NULL: out of memory. */
json_t *lt_problem_messages(const json_t *line);
void lt_problems_close(lt_problems *p); /* Accepts a zeroed one. */

#endif
