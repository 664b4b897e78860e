/* sampler.c: one token from one row of logits. Candidates are cut down before they are sorted: what
 * top_k drops is found by selection, and a token less likely than (1 - top_p) / V can not belong to
 * the nucleus, since all such tokens together weigh less than what it leaves out. */
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/rng.h"
#include "lateen/generate.h"

typedef struct {
    float p; /* Logit, then weight relative to the best. */
    int32_t id;
} candidate;

struct lt_sampler {
    int64_t vocab_size;
    candidate *candidates;
    const uint32_t *seen;
    float *held_back; /* Logits after `repetition`. */
};

lt_err lt_sampler_open(lt_sampler **out, int64_t vocab_size) {
    lt_sampler *s = calloc(1, sizeof *s);
    LT_ASSERT(vocab_size > 0);
    if (s != NULL) {
        s->vocab_size = vocab_size;
        s->candidates = malloc((size_t)vocab_size * sizeof *s->candidates);
    }
    if (s == NULL || s->candidates == NULL) {
        lt_sampler_close(s);
        LT_FAIL(LT_ERR_OOM, "sampler for %lld tokens", (long long)vocab_size);
    }
    *out = s;
    return LT_OK;
}

void lt_sampler_close(lt_sampler *s) {
    if (s != NULL) {
        free(s->candidates);
        free(s->held_back);
        free(s);
    }
}

void lt_sampler_look_at(lt_sampler *s, const uint32_t *seen) {
    s->seen = seen;
}

/* A copy of the logits in which what was seen is less likely. */
static lt_err hold_back(lt_sampler *s, const float **logits, double by) {
    const float *from = *logits;
    if (s->held_back == NULL) {
        s->held_back = malloc((size_t)s->vocab_size * sizeof *s->held_back);
    }
    if (s->held_back == NULL) {
        LT_FAIL(LT_ERR_OOM, "sampler for %lld tokens", (long long)s->vocab_size);
    }
    for (int64_t i = 0; i < s->vocab_size; i++) {
        const bool seen = (s->seen[i / 32] >> (i % 32) & 1) != 0;
        s->held_back[i] = !seen         ? from[i]
                          : from[i] > 0 ? (float)((double)from[i] / by)
                                        : (float)((double)from[i] * by);
    }
    *logits = s->held_back;
    return LT_OK;
}

/* Likelier first, then lower id: a total order, so that results never depend on the sorting
 * method. */
static int compare(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->p != y->p) {
        return x->p > y->p ? -1 : 1;
    }
    return (x->id > y->id) - (x->id < y->id);
}

/* Bring the k best of n to the front, in any order (Hoare's selection). */
static void select_best(candidate *c, int64_t n, int64_t k) {
    int64_t low = 0, high = n - 1;
    while (low < high) {
        const candidate pivot = c[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (compare(&c[i], &pivot) < 0) {
                i++;
            }
            while (compare(&c[j], &pivot) > 0) {
                j--;
            }
            if (i <= j) {
                const candidate swap = c[i];
                c[i++] = c[j];
                c[j--] = swap;
            }
        }
        if (k - 1 <= j) {
            high = j;
        } else if (k - 1 >= i) {
            low = i;
        } else {
            return;
        }
    }
}

/* Smallest prefix of the sorted candidates with at least share top_p of total. */
static int64_t nucleus(const candidate *c, int64_t n, double total, double top_p) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)c[i].p;
        if (sum >= top_p * total) {
            return i + 1;
        }
    }
    return n;
}

static double sum_weights(const candidate *c, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)c[i].p;
    }
    return sum;
}

/* Candidates as weights exp((logit - best) / temperature), cut by top_k; returns how many. */
static int64_t gather(lt_sampler *s, const float *logits, const lt_sampling *how, float best) {
    candidate *c = s->candidates;
    int64_t n = s->vocab_size;
    for (int64_t i = 0; i < n; i++) {
        c[i] = (candidate){logits[i], (int32_t)i};
    }
    if (how->top_k > 0 && how->top_k < n) {
        select_best(c, n, how->top_k);
        n = how->top_k;
    }
    for (int64_t i = 0; i < n; i++) {
        c[i].p = (float)exp(((double)c[i].p - (double)best) / how->temperature);
    }
    return n;
}

/* Drop what top_p and min_p exclude; returns how many candidates stay. */
static int64_t cut(candidate *c, int64_t n, const lt_sampling *how) {
    const double total = sum_weights(c, n);
    double least = how->min_p; /* Weights are relative to the best, which has 1. */
    int64_t kept = 0;

    if (how->top_p < 1.0) {
        const double floor_p = (1.0 - how->top_p) * total / (double)n;
        for (int64_t i = 0; i < n; i++) {
            if ((double)c[i].p >= floor_p) {
                c[kept++] = c[i];
            }
        }
        qsort(c, (size_t)kept, sizeof *c, compare);
        n = nucleus(c, kept, total, how->top_p);
        kept = 0;
    }
    for (int64_t i = 0; i < n; i++) {
        if ((double)c[i].p >= least) {
            c[kept++] = c[i];
        }
    }
    return kept;
}

lt_err lt_sampler_pick(lt_sampler *s, const float *logits, const lt_sampling *how,
                       uint64_t position, int32_t *id) {
    int64_t best = 0, n;
    double draw;
    lt_rng rng = {.seed = how->seed, .stream = 0x53414d50, .position = position}; /* "SAMP" */

    if (s->seen != NULL && how->repetition > 0.0 && how->repetition != 1.0) {
        LT_TRY(hold_back(s, &logits, how->repetition));
    }
    for (int64_t i = 0; i < s->vocab_size; i++) {
        if (isnan(logits[i])) {
            LT_FAIL(LT_ERR_NUMERIC, "logit of token %lld is not a number", (long long)i);
        }
        best = logits[i] > logits[best] ? i : best;
    }
    *id = (int32_t)best;
    if (how->temperature <= 0.0 || isinf(logits[best])) {
        return LT_OK;
    }
    n = cut(s->candidates, gather(s, logits, how, logits[best]), how);
    draw = lt_rng_uniform(&rng) * sum_weights(s->candidates, n);
    for (int64_t i = 0; i < n; i++) {
        draw -= (double)s->candidates[i].p;
        if (draw < 0.0) {
            *id = s->candidates[i].id;
            return LT_OK;
        }
    }
    *id = n > 0 ? s->candidates[n - 1].id : *id; /* Rounding left a crumb of the draw. */
    return LT_OK;
}
