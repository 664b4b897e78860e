/* pick.c: see pick.h. */
#include "serve/pick.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"

#define PICK_STREAM                                                                                \
    0x5049434Bull /* "PICK": the draws' stream of random numbers; the sample is above it. */

typedef struct {
    float score;
    int32_t at;
} scored;

void lt_picker_carve(lt_picker *p, lt_arena *a) {
    const size_t n = (size_t)p->vocab_size;
    LT_ASSERT(p->vocab_size > 0);
    p->work = lt_arena_take(a, n * sizeof *p->work, LT_ARENA_ALIGN);
    p->candidates = lt_arena_take(a, n * sizeof *p->candidates, LT_ARENA_ALIGN);
    p->order = lt_arena_take(a, n * sizeof(scored), LT_ARENA_ALIGN);
    p->stamp = lt_arena_take(a, n * sizeof *p->stamp, LT_ARENA_ALIGN);
    p->count = lt_arena_take(a, n * sizeof *p->count, LT_ARENA_ALIGN);
    p->seen = lt_arena_take(a, n * sizeof *p->seen, LT_ARENA_ALIGN);
}

/* Likelier first, then lower id. */
static int compare(const void *a, const void *b) {
    const lt_candidate *x = a, *y = b;
    if (x->p != y->p) {
        return x->p > y->p ? -1 : 1;
    }
    return (x->id > y->id) - (x->id < y->id);
}

/* Bring the k best of n to the front, in any order (Hoare's selection). */
static void select_best(lt_candidate *c, int64_t n, int64_t k) {
    int64_t low = 0, high = n - 1;
    while (low < high) {
        const lt_candidate pivot = c[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (compare(&c[i], &pivot) < 0) {
                i++;
            }
            while (compare(&c[j], &pivot) > 0) {
                j--;
            }
            if (i <= j) {
                const lt_candidate swap = c[i];
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

/* The best id; NUMERIC when a logit is NaN or all are -inf. */
static lt_err find_best(const float *logits, int64_t n, int32_t *best) {
    int64_t at = 0;
    float high = -INFINITY;
    bool nan = false;
    for (int64_t i = 0; i < n; i++) {
        nan |= logits[i] != logits[i];
        if (logits[i] > high) {
            high = logits[i];
            at = i;
        }
    }
    if (nan || high == -INFINITY) {
        LT_FAIL(LT_ERR_NUMERIC,
                nan ? "a logit is not a number" : "no token may be chosen: all are excluded");
    }
    *best = (int32_t)at;
    return LT_OK;
}

static double log_sum_exp(const float *logits, int64_t n, float high) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)expf(logits[i] - high);
    }
    return (double)high + log(sum);
}

/* The k likeliest, sorted: most ids fail the comparison with the last of them. */
static int top_of(const float *logits, int64_t n, int k, lt_candidate *top) {
    int count = 0;
    for (int64_t i = 0; i < n; i++) {
        const lt_candidate c = {logits[i], (int32_t)i};
        int at;
        if (count == k && !(c.p > top[k - 1].p)) {
            continue;
        }
        at = count < k ? count++ : k - 1;
        for (; at > 0 && c.p > top[at - 1].p; at--) {
            top[at] = top[at - 1];
        }
        top[at] = c;
    }
    return count;
}

static void report(const float *logits, int64_t n, int32_t id, int n_top, float high,
                   lt_pick *out) {
    const double lse = log_sum_exp(logits, n, high);
    LT_ASSERT(n_top <= LT_ENGINE_TOP);
    out->logprob = (float)((double)logits[id] - lse);
    out->n_top = n_top > 0 ? top_of(logits, n, n_top, out->top) : 0;
    for (int i = 0; i < out->n_top; i++) {
        out->top[i].p = (float)((double)out->top[i].p - lse);
    }
    out->rank = 0;
    for (int64_t i = 0; i < n; i++) {
        out->rank += logits[i] > logits[id];
    }
}

lt_err lt_pick_logprob(const float *logits, int64_t vocab_size, int32_t id, int n_top,
                       lt_pick *out) {
    int32_t best;
    LT_TRY(find_best(logits, vocab_size, &best));
    *out = (lt_pick){.id = id};
    report(logits, vocab_size, id, n_top, logits[best], out);
    return LT_OK;
}

static void see(lt_picker *p, int32_t id, uint32_t times, int64_t *n_seen) {
    if (p->stamp[id] != p->now) {
        p->stamp[id] = p->now;
        p->count[id] = 0;
        p->seen[(*n_seen)++] = id;
    }
    p->count[id] += times;
}

/* Repetition: of all that was seen, once each; frequency and presence: of the output. */
static void penalise(lt_picker *p, const lt_pick_args *a) {
    const lt_serve_sampling *how = a->how;
    int64_t n_seen = 0;
    if (++p->now == 0) { /* The stamps of 2^32 picks ago. */
        memset(p->stamp, 0, (size_t)p->vocab_size * sizeof *p->stamp);
        p->now = 1;
    }
    for (int64_t i = 0; i < a->n_prompt && how->repetition != 1.0; i++) {
        see(p, a->tokens[i], 0, &n_seen);
    }
    for (int64_t i = 0; i < a->n_output; i++) {
        see(p, a->tokens[a->n_prompt + i], 1, &n_seen);
    }
    for (int64_t i = 0; i < n_seen; i++) {
        const int32_t id = p->seen[i];
        double x = (double)p->work[id];
        x = x > 0.0 ? x / how->repetition : x * how->repetition;
        x -= how->frequency * (double)p->count[id];
        x -= p->count[id] > 0 ? how->presence : 0.0;
        p->work[id] = (float)x;
    }
}

static bool penalises(const lt_serve_sampling *how) {
    return how->repetition != 1.0 || how->frequency != 0.0 || how->presence != 0.0;
}

/* Logits as the request wants them: the row itself when it wants nothing. */
static const float *adjust(lt_picker *p, const float *logits, const lt_pick_args *a) {
    const int64_t n = p->vocab_size;
    float *work = p->work;
    if (a->mask == NULL && a->how->n_bias == 0 && a->n_banned == 0 && !penalises(a->how)) {
        return logits;
    }
    memcpy(work, logits, (size_t)n * sizeof *work);
    for (int64_t i = 0; i < n && a->mask != NULL; i += 32) {
        const uint32_t bits = a->mask[i / 32];
        for (int64_t j = i; bits != UINT32_MAX && j < i + 32 && j < n; j++) {
            work[j] = bits >> (j - i) & 1u ? work[j] : -INFINITY;
        }
    }
    for (int64_t i = 0; i < a->how->n_bias; i++) {
        work[a->how->bias[i].id] += a->how->bias[i].bias;
    }
    for (int64_t i = 0; i < a->n_banned; i++) {
        work[a->banned[i]] = -INFINITY;
    }
    if (penalises(a->how)) {
        penalise(p, a);
    }
    return work;
}

static double sum_weights(const lt_candidate *c, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)c[i].p;
    }
    return sum;
}

/* Candidates as weights exp((logit - best) / temperature), the top_k of them; how many. */
static int64_t gather(lt_picker *p, const float *logits, const lt_serve_sampling *how, float best) {
    lt_candidate *c = p->candidates;
    const float scale = (float)(1.0 / how->temperature);
    int64_t n = 0;
    for (int64_t i = 0; i < p->vocab_size; i++) {
        if (logits[i] > -INFINITY) {
            c[n++] = (lt_candidate){logits[i], (int32_t)i};
        }
    }
    if (how->top_k > 0 && how->top_k < n) {
        select_best(c, n, how->top_k);
        n = how->top_k;
    }
    for (int64_t i = 0; i < n; i++) {
        c[i].p = expf((c[i].p - best) * scale);
    }
    return n;
}

/* Smallest prefix of the candidates with at least `share` of total. */
static int64_t prefix(const lt_candidate *c, int64_t n, double total, double share) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)c[i].p;
        if (sum >= share * total) {
            return i + 1;
        }
    }
    return n;
}

static int compare_scored(const void *a, const void *b) {
    const scored *x = a, *y = b;
    if (x->score != y->score) {
        return x->score < y->score ? -1 : 1;
    }
    return (x->at > y->at) - (x->at < y->at);
}

/* Locally typical: those whose information is nearest to the entropy, up to typical_p of the mass. */
static int64_t cut_typical(lt_picker *p, int64_t n, double share) {
    lt_candidate *c = p->candidates;
    scored *order = p->order;
    const double total = sum_weights(c, n);
    double entropy = 0.0, sum = 0.0;
    int64_t kept = 0;

    for (int64_t i = 0; i < n; i++) {
        const double q = (double)c[i].p / total;
        entropy -= q > 0.0 ? q * log(q) : 0.0;
    }
    for (int64_t i = 0; i < n; i++) {
        const double q = (double)c[i].p / total;
        order[i] = (scored){q > 0.0 ? (float)fabs(-log(q) - entropy) : INFINITY, (int32_t)i};
    }
    qsort(order, (size_t)n, sizeof *order, compare_scored);
    while (kept < n && sum < share * total) {
        sum += (double)c[order[kept++].at].p;
    }
    for (int64_t i = kept; i < n; i++) {
        c[order[i].at].p = -1.0f; /* Leaves. */
    }
    kept = 0;
    for (int64_t i = 0; i < n; i++) {
        if (c[i].p >= 0.0f) {
            c[kept++] = c[i];
        }
    }
    return kept;
}

/* The nucleus: what is less likely than (1 - top_p) / n can not belong to it, since all such ids together weigh less than what it leaves out. */
static int64_t cut_nucleus(lt_candidate *c, int64_t n, double top_p) {
    const double total = sum_weights(c, n), least = (1.0 - top_p) * total / (double)n;
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        if ((double)c[i].p >= least) {
            c[kept++] = c[i];
        }
    }
    qsort(c, (size_t)kept, sizeof *c, compare);
    return prefix(c, kept, total, top_p);
}

static int64_t cut_least(lt_candidate *c, int64_t n, double least) {
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        if ((double)c[i].p >= least) { /* Weights are relative to the best, which has 1. */
            c[kept++] = c[i];
        }
    }
    return kept;
}

static int32_t draw(lt_picker *p, const float *logits, const lt_pick_args *a, int32_t best) {
    const lt_serve_sampling *how = a->how;
    lt_candidate *c = p->candidates;
    lt_rng rng = {.seed = how->seed,
                  .stream = PICK_STREAM | (uint64_t)a->sample << 32,
                  .position = (uint64_t)a->n_output};
    int64_t n = gather(p, logits, how, logits[best]);
    double left;

    n = how->typical_p < 1.0 ? cut_typical(p, n, how->typical_p) : n;
    n = how->top_p < 1.0 ? cut_nucleus(c, n, how->top_p) : n;
    n = how->min_p > 0.0 ? cut_least(c, n, how->min_p) : n;
    left = lt_rng_uniform(&rng) * sum_weights(c, n);
    for (int64_t i = 0; i < n; i++) {
        left -= (double)c[i].p;
        if (left < 0.0) {
            return c[i].id;
        }
    }
    return n > 0 ? c[n - 1].id : best; /* Rounding left a crumb of the draw. */
}

lt_err lt_pick_token(lt_picker *p, const float *logits, const lt_pick_args *a, lt_pick *out) {
    int32_t best, chosen;
    float high;
    const float *wanted;

    LT_TRY(find_best(logits, p->vocab_size, &best));
    high = logits[best];
    *out = (lt_pick){.id = a->forced};
    if (a->forced < 0) {
        wanted = adjust(p, logits, a);
        if (wanted != logits) {
            LT_TRY(find_best(wanted, p->vocab_size, &best));
        }
        chosen = a->how->temperature > 0.0 && isfinite(wanted[best]) ? draw(p, wanted, a, best)
                                                                     : best;
        out->id = chosen;
    }
    if (a->n_top >= 0) {
        report(logits, p->vocab_size, out->id, a->n_top, high, out);
    }
    return LT_OK;
}
