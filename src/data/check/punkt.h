/* punkt.h: sentences and words as NLTK splits them (3.10), for checkers that must agree with it.
 *
 * Sentences: Punkt (Kiss and Strunk, Computational Linguistics 32, 2006). A full stop ends a
 * sentence unless the word before it is an abbreviation, an initial or a number, and the word after
 * it does not look like the beginning of one; the parameters come from NLTK's folder
 * tokenizers/punkt_tab/english. Words: NLTK's word_tokenize, a list of substitutions. */
#ifndef LT_DATA_CHECK_PUNKT_H
#define LT_DATA_CHECK_PUNKT_H

#include "data/check/python_text.h"

typedef struct lt_punkt lt_punkt; /* Read-only: threads may share it. */

/* Read the parameters. nltk_data: NLTK's data folder, which holds tokenizers/. */
LT_MUST_USE lt_err lt_punkt_open(lt_punkt **out, const char *nltk_data);
void lt_punkt_close(lt_punkt *p); /* Accepts NULL. */

/* Call with each sentence of the text, in order. */
LT_MUST_USE lt_err lt_punkt_each(const lt_punkt *p, lt_span text,
                                 lt_err (*each)(void *ctx, lt_span sentence), void *ctx);
LT_MUST_USE lt_err lt_punkt_count(const lt_punkt *p, lt_span text, int64_t *sentences);
/* Number of words of the text that are in capitals: those of word_tokenize for which str.isupper
 * is true. */
LT_MUST_USE lt_err lt_punkt_count_capital(const lt_punkt *p, lt_span text, int64_t *words);

#endif
