/* narrow.c: see narrow.h. A bad word is a list of ids; its last id is excluded if the output ends
 * with the ids before it. */
#include "serve/narrow.h"

#include <string.h>

#include "base/error.h"

static lt_err check_ids(const char *what, const int32_t *ids, int64_t n, int64_t vocab_size) {
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab_size) {
            LT_FAIL(LT_ERR_ARG, "%s: token %d at %lld is outside [0, %lld)", what, (int)ids[i],
                    (long long)i, (long long)vocab_size);
        }
    }
    return LT_OK;
}

static bool is_ending(const lt_request *r, const lt_ends *ends, int32_t id) {
    for (int64_t i = 0; i < ends->n; i++) {
        if (ends->ids[i] == id) {
            return true;
        }
    }
    for (int64_t i = 0; i < r->n_stop_ids; i++) {
        if (r->stop_ids[i] == id) {
            return true;
        }
    }
    return false;
}

lt_err lt_narrow_check(const lt_request *r, const lt_ends *ends, int64_t vocab_size) {
    bool goes_on = r->n_allowed == 0 || r->min_tokens == 0;
    if (r->n_allowed > 0 && r->grammar != NULL) {
        LT_FAIL(LT_ERR_ARG,
                "a list of allowed tokens and a form of the answer, or tools, cannot be combined");
    }
    LT_TRY(check_ids("allowed tokens", r->allowed, r->n_allowed, vocab_size));
    for (int64_t i = 0; i < r->n_allowed && !goes_on; i++) {
        goes_on = !is_ending(r, ends, r->allowed[i]);
    }
    if (!goes_on) {
        LT_FAIL(LT_ERR_ARG,
                "only tokens that end the text are allowed, but none may before "
                "min_tokens %lld",
                (long long)r->min_tokens);
    }
    if (r->n_bad > LT_NARROW_BAD) {
        LT_FAIL(LT_ERR_ARG, "%lld bad words: %d are possible", (long long)r->n_bad, LT_NARROW_BAD);
    }
    for (int64_t i = 0, at = 0; i < r->n_bad; at = r->bad_ends[i++]) {
        if (r->bad_ends[i] <= at) {
            LT_FAIL(LT_ERR_ARG, "bad word %lld has no token", (long long)i);
        }
        LT_TRY(check_ids("bad words", r->bad + at, r->bad_ends[i] - at, vocab_size));
    }
    return LT_OK;
}

void lt_narrow_allow(const lt_request *r, uint32_t *bits, int64_t vocab_size) {
    memset(bits, 0, (size_t)((vocab_size + 31) / 32) * sizeof *bits);
    for (int64_t i = 0; i < r->n_allowed; i++) {
        bits[r->allowed[i] / 32] |= 1U << (r->allowed[i] % 32);
    }
}

static bool is_empty(const uint32_t *mask, int64_t vocab_size) {
    for (int64_t i = 0; i < (vocab_size + 31) / 32; i++) {
        if (mask[i] != 0) {
            return false;
        }
    }
    return true;
}

void lt_narrow(const lt_request *r, const uint32_t *allowed, const int32_t *output,
               int64_t n_output, uint32_t *mask, int64_t vocab_size) {
    int32_t out[LT_NARROW_BAD];
    int64_t n_out = 0;

    for (int64_t i = 0; allowed != NULL && i < (vocab_size + 31) / 32; i++) {
        mask[i] &= allowed[i];
    }
    for (int64_t i = 0, at = 0; i < r->n_bad; at = r->bad_ends[i++]) {
        const int64_t before = r->bad_ends[i] - at - 1;
        const int32_t last = r->bad[r->bad_ends[i] - 1];
        if (before <= n_output && (mask[last / 32] >> (last % 32) & 1) != 0 &&
            memcmp(output + n_output - before, r->bad + at, (size_t)before * sizeof *output) == 0) {
            mask[last / 32] &= ~(1U << (last % 32));
            out[n_out++] = last;
        }
    }
    if (n_out > 0 && is_empty(mask, vocab_size)) {
        for (int64_t i = 0; i < n_out; i++) {
            mask[out[i] / 32] |= 1U << (out[i] % 32);
        }
    }
}
