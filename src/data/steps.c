/* steps.c: see steps.h. */
#include "data/steps.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/bpe.h"

lt_err lt_steps_open(lt_steps *out, const lt_tokenizer *t, lt_tokenizer_scratch *s,
                     const char *text) {
    *out = (lt_steps){.tokenizer = t, .text = text[0] != '\0' ? text : "\n"};
    out->bytes = strlen(out->text);
    LT_TRY(lt_tokenizer_encode(t, s, out->text, out->bytes, LT_ENCODE_PARSE_SPECIAL, &out->ids));
    if (out->ids.n == 0) {
        LT_FAIL(LT_ERR_ARG, "the separator of steps, \"%s\", has no token", out->text);
    }
    return LT_OK;
}

void lt_steps_close(lt_steps *s) {
    lt_ids_free(&s->ids);
}

lt_err lt_steps_add(const lt_steps *s, lt_tokenizer_scratch *scratch, const char *step,
                    size_t bytes, lt_ids *ids) {
    LT_TRY(lt_tokenizer_encode(s->tokenizer, scratch, step, bytes, LT_ENCODE_PARSE_SPECIAL, ids));
    return lt_ids_append(ids, s->ids.data, s->ids.n);
}

const char *lt_steps_border(const lt_steps *s) {
    return s->ids.n == 1 && lt_tokenizer_is_special(s->tokenizer, s->ids.data[0]) ? "\n\n"
                                                                                  : s->text;
}

static bool is_blank(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (strchr(" \t\r\n", text[i]) == NULL) {
            return false;
        }
    }
    return true;
}

/* Length up to the first border, whose own length is *border; without a border, the whole
 * length. */
static size_t up_to_border(const char *text, size_t bytes, const char *const *borders,
                           const size_t *lengths, int n, size_t *border) {
    size_t end = bytes;
    *border = 0;
    for (int i = 0; i < n; i++) {
        const char *at = memmem(text, end, borders[i], lengths[i]);
        if (at != NULL) {
            end = (size_t)(at - text);
            *border = lengths[i];
        }
    }
    return end;
}

bool lt_steps_next(const char **text, size_t *bytes, const char *const *borders,
                   const size_t *lengths, int n, const char **step, size_t *step_bytes) {
    while (*bytes > 0) {
        size_t border;
        *step = *text;
        *step_bytes = up_to_border(*text, *bytes, borders, lengths, n, &border);
        *text += *step_bytes + border;
        *bytes -= *step_bytes + border;
        if (!is_blank(*step, *step_bytes)) {
            return true;
        }
    }
    return false;
}

#define FOLD_NAME(name) #name,
const char *const lt_steps_fold_names[LT_STEPS_FOLDS] = {LT_STEPS_FOLD_MAP(FOLD_NAME)};

double lt_steps_fold(lt_steps_fold_kind kind, const double *scores, int64_t n) {
    double least = n > 0 ? scores[0] : 0, product = 1, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        least = fmin(least, scores[i]);
        product *= scores[i];
        sum += scores[i];
    }
    return n == 0                     ? 0
           : kind == LT_STEPS_min     ? least
           : kind == LT_STEPS_product ? product
           : kind == LT_STEPS_last    ? scores[n - 1]
                                      : sum / (double)n;
}

double lt_steps_score(const float values[2]) {
    return 1 / (1 + exp((double)values[0] - (double)values[1]));
}
