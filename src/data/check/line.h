/* line.h: judges the answers in one JSON object: those that models gave to a problem of `lateen
 * data make`, or of any file with the members
 *
 *     answer       the true answer                     checker   number, list, text, choice, regex
 *     completions  the texts of the answers, a list; or
 *     completion   one text; or
 *     messages     a conversation, whose last message is the assistant's: its content is the text
 *
 * The first of the last three that is present counts. */
#ifndef LT_DATA_CHECK_LINE_H
#define LT_DATA_CHECK_LINE_H

#include <jansson.h>
#include <stdbool.h>

#include "data/check/answer.h"
#include "data/check/score.h"
#include "lateen/base.h"

typedef struct {
    int n;                                 /* Number of answers, at least 1. */
    bool right[LT_SCORE_ANSWERS];          /* (n) */
    lt_answer_mark mark[LT_SCORE_ANSWERS]; /* (n) how each was found; NONE: it was not. */
    int n_right, n_found;
    int n_classes; /* Number of classes of equal answers. */
    int counts[LT_SCORE_ANSWERS];
    bool class_right[LT_SCORE_ANSWERS];
} lt_check_verdict;

/* Judge a line by the marks allowed. NOT_FOUND or FORMAT: a member is missing or has another type,
 * the checker is unknown, or the true answer does not fit its kind; LIMIT: more than
 * LT_SCORE_ANSWERS answers. The caller adds file and line. */
LT_MUST_USE lt_err lt_check_line(lt_check_verdict *out, const json_t *line, unsigned allowed);

#endif
