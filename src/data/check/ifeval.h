/* ifeval.h: decides whether a response follows an instruction: the checkers of IFEval (Zhou et
 * al. 2023, arXiv:2311.07911) by lm-evaluation-harness's rules (its task ifeval, version 4).
 *
 *     strict    the response follows it
 *     loose     it, or it without its first line, its last line or both, each also without
 *               asterisks
 *
 * A response that is only white space follows no instruction. number_sentences and
 * capital_word_frequency need NLTK's parameters (punkt.h); without them they are UNKNOWN. Three
 * more are always UNKNOWN: response_language, english_capital and english_lowercase, for which the
 * harness calls langdetect, whose results are random. So is an instruction whose argument is
 * missing or cannot be used, for which the harness draws one at random. */
#ifndef LT_DATA_CHECK_IFEVAL_H
#define LT_DATA_CHECK_IFEVAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "data/check/punkt.h"
#include "lateen/base.h"

typedef enum { LT_IFEVAL_NO, LT_IFEVAL_YES, LT_IFEVAL_UNKNOWN } lt_ifeval_outcome;

typedef struct {
    lt_ifeval_outcome strict, loose;
} lt_ifeval_verdict;

/* Check a line of the data: instruction_id_list names instructions, and kwargs has an object for
 * each, whose members must have the types that the instruction reads. A member may be missing or
 * null. FORMAT names a member of a wrong type; NOT_FOUND: no instruction has that name. */
LT_MUST_USE lt_err lt_ifeval_line_check(const json_t *line);

/* Call it for a line that has been checked. id: e.g. "punctuation:no_comma"; arguments: its
 * kwargs, an object. text: valid UTF-8. punkt may be NULL. NOT_FOUND: no instruction has that
 * name; FORMAT: a keyword is not a regular expression. */
LT_MUST_USE lt_err lt_ifeval_check(lt_ifeval_verdict *out, const char *id, const json_t *arguments,
                                   const char *text, size_t n, const lt_punkt *punkt);

#endif
