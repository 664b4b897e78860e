/* gsm8k.h: scores an answer to a problem of GSM8K as lm-evaluation-harness does (its task gsm8k,
 * version 3): a filter extracts a part of the answer, which must then equal the true one.
 *
 *     strict-match       the number after the first "#### "
 *     flexible-extract   the last thing that looks like a number, even "." or "$"
 *
 * Before the comparison both texts lose commas, dollar signs, everything up to the last "#### ",
 * and a full stop at the end; case does not count. An answer without a match is "[invalid]". */
#ifndef LT_DATA_CHECK_GSM8K_H
#define LT_DATA_CHECK_GSM8K_H

#include <stdbool.h>
#include <stddef.h>

typedef enum { LT_GSM8K_STRICT, LT_GSM8K_FLEXIBLE, LT_GSM8K_FILTERS } lt_gsm8k_filter;

const char *lt_gsm8k_filter_name(lt_gsm8k_filter filter);

/* gold: the problem's "answer", which ends with "#### N". */
bool lt_gsm8k_right(lt_gsm8k_filter filter, const char *text, size_t n, const char *gold,
                    size_t gold_n);

#endif
