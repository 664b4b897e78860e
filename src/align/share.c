/* share.c: see share.h. Values are exchanged by sums of integers, so their bits do not change. */
#include "align/share.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "parallel/layout.h"

void lt_share_part(const lt_group *g, int64_t n, int64_t *first, int64_t *end) {
    const int members = g != NULL ? lt_group_size(g) : 1, rank = g != NULL ? lt_group_rank(g) : 0;
    *first = lt_share_first(n, members, rank);
    *end = lt_share_first(n, members, rank + 1);
}

lt_err lt_share_words(lt_group *g, void *words, int64_t n) {
    return g != NULL && n > 0 ? lt_all_reduce(g, words, words, n, LT_I32, LT_REDUCE_SUM, NULL)
                              : LT_OK;
}

/* Lengths and ends of all answers, and whether a rank has failed. */
static lt_err share_lengths(lt_group *g, lt_shared_answers *s, lt_err err, int64_t *total) {
    int32_t *numbers = calloc((size_t)(2 * s->n + 1), sizeof *numbers);
    lt_failure own;
    lt_err sent;
    lt_failure_keep(&own, numbers == NULL ? lt_error_set(LT_ERR_OOM, "lengths of answers") : err);
    if (numbers == NULL) { /* The others wait until the deadline of the call. */
        return lt_failure_raise(&own);
    }
    for (int64_t i = s->first; err == LT_OK && i < s->end; i++) {
        numbers[2 * i] = (int32_t)s->answers[i].n;
        numbers[2 * i + 1] = s->answers[i].ended;
    }
    numbers[2 * s->n] = err != LT_OK;
    sent = lt_share_words(g, numbers, 2 * s->n + 1);
    if (sent == LT_OK && err == LT_OK && numbers[2 * s->n] > 0) {
        sent = lt_error_set(LT_ERR_REMOTE, "another rank could not draw its answers");
    }
    for (int64_t i = 0; sent == LT_OK && i < s->n; i++) {
        s->answers[i].n = numbers[2 * i];
        s->answers[i].ended = numbers[2 * i + 1] != 0;
        *total += s->answers[i].n;
    }
    free(numbers);
    return err != LT_OK ? lt_failure_raise(&own) : sent;
}

lt_err lt_share_answers(lt_group *g, lt_shared_answers *s, lt_err err) {
    int64_t total = 0;
    if (g == NULL) {
        return err;
    }
    LT_TRY(share_lengths(g, s, err, &total));
    s->ids = calloc((size_t)total + 1, sizeof *s->ids);
    s->logp = calloc((size_t)total + 1, sizeof *s->logp);
    if (s->ids == NULL || s->logp == NULL) {
        LT_FAIL(LT_ERR_OOM, "answers of %lld tokens", (long long)total);
    }
    for (int64_t i = 0, at = 0; i < s->n; at += s->answers[i++].n) {
        lt_answer *a = &s->answers[i];
        if (i >= s->first && i < s->end) {
            memcpy(s->ids + at, a->ids, (size_t)a->n * sizeof *a->ids);
            memcpy(s->logp + at, a->logp, (size_t)a->n * sizeof *a->logp);
        }
        a->ids = s->ids + at;
        a->logp = s->logp + at;
    }
    LT_TRY(lt_share_words(g, s->ids, total));
    LT_TRY(lt_share_words(g, s->logp, total));
    if (s->rewards == NULL) {
        return LT_OK;
    }
    LT_TRY(lt_share_words(g, s->rewards, s->n * 2)); /* Two words each. */
    return lt_share_words(g, s->parts, s->n * s->n_parts * 2);
}
