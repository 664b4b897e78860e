/* answer.h: finds the answer in what a model wrote.
 *
 * Only the text after the last </think> counts; a text whose <think> is not closed has no answer.
 * In it, the first of these that occurs is taken, and of several of one kind the last one:
 *
 *     \boxed{...}            braces are matched          MATH
 *     <answer>...</answer>                               R1-style templates
 *     #### ...               to the end of the line      GSM8K
 *     Answer: ...            also "the answer is ...", any case, to the end of the line
 *     the last line that is not empty                    no mark: refused by strict checkers
 *
 * Markdown emphasis, quotes and a full stop around it are removed. */
#ifndef LT_DATA_CHECK_ANSWER_H
#define LT_DATA_CHECK_ANSWER_H

#include <stdbool.h>
#include <stddef.h>

typedef enum {
    LT_ANSWER_NONE, /* Empty, or the thinking has no end. */
    LT_ANSWER_BOXED,
    LT_ANSWER_TAG,
    LT_ANSWER_HASHES,
    LT_ANSWER_PHRASE,
    LT_ANSWER_LINE
} lt_answer_mark;

/* text[*begin .. *end) is the answer. */
lt_answer_mark lt_answer_find(const char *text, size_t n, size_t *begin, size_t *end);

/* Shrink a range by white space, emphasis, quotes and a full stop at its ends. */
void lt_answer_trim(const char *text, size_t *begin, size_t *end);

#endif
