/* ifeval.h: does a response follow an instruction? The checkers of IFEval (Zhou et al. 2023,
 * arXiv:2311.07911) by lm-evaluation-harness's rules (its task ifeval, version 4).
 *
 *     strict    the response follows it
 *     loose     it, or it without its first line, its last line or both, each also without
 *               asterisks
 *
 * A response of white space only follows nothing. number_sentences and capital_word_frequency need
 * NLTK's parameters (punkt.h); without them they are UNKNOWN. So are always response_language,
 * english_capital and english_lowercase, for which the harness asks langdetect, which draws at
 * random; and an instruction whose argument is missing or cannot be used, for which the harness
 * draws one at random. */
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

/* A line of the data: instruction_id_list names instructions, and kwargs has an object for each, of
 * which the members that the instruction reads have its types. A member that is missing or null is
 * allowed. FORMAT: which member is not as it must be; NOT_FOUND: no instruction has that name. */
LT_MUST_USE lt_err lt_ifeval_line_check(const json_t *line);

/* Of a line that was checked. id: "punctuation:no_comma"; arguments: its kwargs, an object. text:
 * valid UTF-8. punkt may be NULL. NOT_FOUND: no instruction has that name; FORMAT: a keyword is
 * no regular expression. */
LT_MUST_USE lt_err lt_ifeval_check(lt_ifeval_verdict *out, const char *id, const json_t *arguments,
                                   const char *text, size_t n, const lt_punkt *punkt);

#endif
