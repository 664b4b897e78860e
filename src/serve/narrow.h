/* narrow.h: ids that a request itself excludes, in addition to its grammar: all but the allowed
 * ones, and those that would complete a bad word. */
#ifndef LT_SERVE_NARROW_H
#define LT_SERVE_NARROW_H

#include <stdbool.h>
#include <stdint.h>

#include "lateen/serve.h"

#define LT_NARROW_BAD 4096 /* Most spellings of bad words. */

static inline bool lt_narrows(const lt_request *r) {
    return r->n_allowed > 0 || r->n_bad > 0;
}

/* ARG: ids outside the vocabulary, too many bad words, allowed ids together with a grammar, or only
 * endings allowed although min_tokens forbids them. */
LT_MUST_USE lt_err lt_narrow_check(const lt_request *r, const lt_ends *ends, int64_t vocab_size);
/* Bits of the allowed ids: ceil(V / 32) words. */
void lt_narrow_allow(const lt_request *r, uint32_t *bits, int64_t vocab_size);
/* Remove the excluded ids from the mask of the token after `output`. allowed: from lt_narrow_allow,
 * or NULL. If every remaining id would complete a bad word, they are kept. */
void lt_narrow(const lt_request *r, const uint32_t *allowed, const int32_t *output,
               int64_t n_output, uint32_t *mask, int64_t vocab_size);

#endif
