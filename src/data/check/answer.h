/* answer.h: finds the answer in a text that a model wrote.
 *
 * Only the text after the last </think> counts, or another mark that ends reasoning
 * (data/think_marks.h); a text whose reasoning is not closed has no answer. In it, the first of
 * these that occurs is taken, and of several of one kind the last one:
 *
 *     BOXED    \boxed{...}           braces are matched; one that is not closed does not count. As
 *                                    in Hendrycks' MATH and verl
 *     TAG      <answer>...</answer>  one that is not closed does not count. R1-style templates
 *     HASHES   #### ...              to the end of the line: GSM8K
 *     PHRASE   Answer: ...           also "the answer is ...", any case, to the end of the line, or
 *                                    the next line if nothing else is on this one
 *     LINE     the last line that is not empty
 *     NUMBER   the last number, with its sign and without a unit or a percent sign: the flexible
 *              extraction of lm-evaluation-harness and verl for GSM8K
 *
 * Of HASHES and PHRASE, the later one counts, because "####" is also a heading of Markdown.
 *
 * THE WHOLE ANSWER COUNTS. Everything up to the end of a mark is the answer: "#### 42 is wrong" has
 * the answer "42 is wrong", which no number equals. The regular expressions with which GSM8K is
 * usually scored take the 42. Text before a mark or after its end is not read.
 *
 * Which of the marks may be used is the caller's choice. Markdown emphasis, quotes and a full stop
 * around the answer are removed. */
#ifndef LT_DATA_CHECK_ANSWER_H
#define LT_DATA_CHECK_ANSWER_H

#include <stdbool.h>
#include <stddef.h>

typedef enum {
    LT_ANSWER_NONE, /* Empty, no allowed mark, or the reasoning has no end. */
    LT_ANSWER_BOXED,
    LT_ANSWER_TAG,
    LT_ANSWER_HASHES,
    LT_ANSWER_PHRASE,
    LT_ANSWER_LINE,
    LT_ANSWER_NUMBER,
    LT_ANSWER_WORD /* Not a mark: see LT_ANSWER_LENIENT. */
} lt_answer_mark;

/* Sets of marks. LENIENT also takes a number followed by one word that is not a known unit: "42
 * apples". */
#define LT_ANSWER_BIT(mark) (1u << (mark))
#define LT_ANSWER_STRICT                                                                           \
    (LT_ANSWER_BIT(LT_ANSWER_BOXED) | LT_ANSWER_BIT(LT_ANSWER_TAG) |                               \
     LT_ANSWER_BIT(LT_ANSWER_HASHES) | LT_ANSWER_BIT(LT_ANSWER_PHRASE))
#define LT_ANSWER_LENIENT                                                                          \
    (LT_ANSWER_STRICT | LT_ANSWER_BIT(LT_ANSWER_LINE) | LT_ANSWER_BIT(LT_ANSWER_WORD))
#define LT_ANSWER_LAST_NUMBER LT_ANSWER_BIT(LT_ANSWER_NUMBER)

/* Find the answer, text[*begin .. *end), by the marks allowed. */
lt_answer_mark lt_answer_find(const char *text, size_t n, unsigned allowed, size_t *begin,
                              size_t *end);

/* Remove white space, emphasis, quotes and a full stop from the ends of a range. */
void lt_answer_trim(const char *text, size_t *begin, size_t *end);

#endif
