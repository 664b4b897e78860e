/* sampler.c: see sampler.h. */
#include "model/infer/sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"

/* Streams of random numbers; the choice's index is in the bits above them. */
#define PICK_STREAM   0x5049434Bull /* "PICK": the draws. */
#define XTC_STREAM    0x585443ull   /* "XTC": whether XTC is applied. */
#define DRAFT_STREAM  0x44524146ull /* "DRAF": draws of a draft model, */
#define ACCEPT_STREAM 0x41434350ull /* "ACCP": whether these are accepted. */
/* Longest repetition that counts: longer ones are not penalised more, so the power stays
 * finite. */
#define DRY_LONGEST 50

void lt_sampler_carve(lt_sampler *p, lt_arena *a) {
    const size_t n = (size_t)p->vocab_size;
    LT_ASSERT(p->vocab_size > 0);
    p->work = lt_arena_take(a, n * sizeof *p->work, LT_ARENA_ALIGN);
    p->candidates = lt_arena_take(a, n * sizeof *p->candidates, LT_ARENA_ALIGN);
    p->order = lt_arena_take(a, n * sizeof *p->order, LT_ARENA_ALIGN);
    p->weights = lt_arena_take(a, n * sizeof *p->weights, LT_ARENA_ALIGN);
    p->sums = lt_arena_take(a, (n / LT_LOGITS_BLOCK + 1) * sizeof *p->sums, LT_ARENA_ALIGN);
    p->stamp = lt_arena_take(a, n * sizeof *p->stamp, LT_ARENA_ALIGN);
    p->count = lt_arena_take(a, n * sizeof *p->count, LT_ARENA_ALIGN);
    p->seen = lt_arena_take(a, n * sizeof *p->seen, LT_ARENA_ALIGN);
}

lt_err lt_sampler_open(lt_sampler *p, int64_t vocab_size) {
    *p = (lt_sampler){.vocab_size = vocab_size};
    lt_sampler_carve(p, &p->own);
    LT_TRY(lt_arena_open(&p->own, "a sampler"));
    lt_sampler_carve(p, &p->own);
    return LT_OK;
}

void lt_sampler_close(lt_sampler *p) {
    lt_arena_close(&p->own);
}

/* ---- Options ---- */

lt_sampling lt_sampling_defaults(void) {
    return (lt_sampling){.temperature = 1.0, .top_p = 1.0, .typical_p = 1.0, .repetition = 1.0};
}

static lt_err check_range(const char *name, double x, double low, double high) {
    if (!(x >= low && x <= high)) { /* This includes NaN. */
        LT_FAIL(LT_ERR_ARG, "%s %g is outside [%g, %g]", name, x, low, high);
    }
    return LT_OK;
}

static bool replaces_draw(const lt_sampling *s) {
    return s->watermark.scheme == LT_WATERMARK_GUMBEL ||
           s->watermark.scheme == LT_WATERMARK_EXPONENTIAL;
}

lt_err lt_sampling_check(const lt_sampling *s, int64_t vocab_size) {
    LT_TRY(check_range("temperature", s->temperature, 0.0, 1e6));
    LT_TRY(check_range("top_k", (double)s->top_k, 0.0, 0x1p62));
    LT_TRY(check_range("top_p", s->top_p, 0.0, 1.0));
    LT_TRY(check_range("min_p", s->min_p, 0.0, 1.0));
    LT_TRY(check_range("typical_p", s->typical_p, 0.0, 1.0));
    LT_TRY(check_range("repetition penalty", s->repetition, 1e-3, 1e3));
    LT_TRY(check_range("frequency penalty", s->frequency, -1e3, 1e3));
    LT_TRY(check_range("presence penalty", s->presence, -1e3, 1e3));
    LT_TRY(check_range("penalty window", (double)s->penalty_window, 0.0, 0x1p62));
    LT_TRY(check_range("DRY multiplier", s->dry_multiplier, 0.0, 1e6));
    LT_TRY(check_range("DRY base", s->dry_base, s->dry_multiplier > 0.0 ? 1.0 : 0.0, 1e3));
    LT_TRY(check_range("DRY allowed length", (double)s->dry_allowed, 0.0, 0x1p31));
    LT_TRY(check_range("XTC probability", s->xtc_probability, 0.0, 1.0));
    LT_TRY(check_range("XTC threshold", s->xtc_threshold, 0.0, 1.0));
    LT_TRY(lt_watermark_check(&s->watermark));
    if (replaces_draw(s) && s->temperature <= 0.0) {
        LT_FAIL(LT_ERR_ARG,
                "temperature 0 draws nothing, so a watermark of the draws would have no effect");
    }
    for (int64_t i = 0; i < s->n_bias; i++) {
        if (s->bias[i].id < 0 || s->bias[i].id >= vocab_size) {
            LT_FAIL(LT_ERR_ARG, "logit bias: token %d at %lld is outside [0, %lld)",
                    (int)s->bias[i].id, (long long)i, (long long)vocab_size);
        }
        LT_TRY(check_range("logit bias", (double)s->bias[i].bias, (double)-LT_BIAS_MOST,
                           (double)LT_BIAS_MOST));
    }
    return LT_OK;
}

static int by_id(const void *a, const void *b) {
    const lt_logit_bias *x = a, *y = b;
    return x->id != y->id ? (x->id < y->id ? -1 : 1) : (x->bias > y->bias) - (x->bias < y->bias);
}

int64_t lt_sampling_merge_bias(lt_logit_bias *bias, int64_t n) {
    int64_t kept = 0;
    if (n > 0) {
        qsort(bias, (size_t)n, sizeof *bias, by_id);
    }
    for (int64_t i = 0; i < n; i++) {
        if (kept > 0 && bias[kept - 1].id == bias[i].id) {
            const float low = fminf(bias[kept - 1].bias, bias[i].bias);
            const float sum = bias[kept - 1].bias + bias[i].bias;
            /* A token that is excluded stays excluded. */
            bias[kept - 1].bias = low <= -LT_BIAS_MOST
                                      ? -LT_BIAS_MOST
                                      : fminf(fmaxf(sum, -LT_BIAS_MOST), LT_BIAS_MOST);
        } else {
            bias[kept++] = bias[i];
        }
    }
    return kept;
}

/* ---- One row ---- */

lt_err lt_sampler_failure(bool nan) {
    return nan ? lt_error_set(LT_ERR_NUMERIC, "a logit is not a number")
               : lt_error_set(LT_ERR_NUMERIC, "no token may be chosen: all are excluded");
}

/* Find the best id. NUMERIC: a logit is NaN, or all are -inf. */
static lt_err find_best(const float *logits, int64_t n, int32_t *best) {
    if (!lt_logits_best(logits, n, best)) {
        int64_t id = 0;
        while (id < n && !isnan(logits[id])) {
            id++;
        }
        LT_FAIL(LT_ERR_NUMERIC, "the logit of token %lld is not a number", (long long)id);
    }
    return logits[*best] == -INFINITY ? lt_sampler_failure(false) : LT_OK;
}

/* Log-probability and rank of id, the n_top most likely ids, and the entropy. scratch: (n) */
static void report(const float *logits, int64_t n, int n_top, bool entropy, float high,
                   lt_candidate *scratch, lt_pick *out) {
    const double lse = lt_logits_lse(logits, n, high);
    LT_ASSERT(n_top <= LT_CHOOSE_TOP);
    out->logprob = (float)((double)logits[out->id] - lse);
    out->rank = (int32_t)lt_logits_count_above(logits, n, logits[out->id]);
    out->entropy = entropy ? (float)lt_logits_entropy(logits, n, lse) : 0;
    out->n_top = (int)lt_logits_top(logits, n, n_top, scratch);
    lt_candidates_sort(scratch, out->n_top, out->n_top);
    for (int i = 0; i < out->n_top; i++) {
        out->top[i] = (lt_candidate){(float)((double)scratch[i].p - lse), scratch[i].id};
    }
}

lt_err lt_sampler_logprob(lt_sampler *p, const float *logits, int32_t id, int n_top, lt_pick *out) {
    int32_t best;
    LT_TRY(find_best(logits, p->vocab_size, &best));
    *out = (lt_pick){.id = id};
    report(logits, p->vocab_size, n_top, false, logits[best], p->candidates, out);
    return LT_OK;
}

/* Forget all ids that were seen. */
static void forget(lt_sampler *p) {
    if (++p->now == 0) { /* Stamps of 2^32 picks ago would count as new. */
        memset(p->stamp, 0, (size_t)p->vocab_size * sizeof *p->stamp);
        p->now = 1;
    }
}

/* The counters of an id. */
static uint32_t *see(lt_sampler *p, int32_t id, int64_t *n_seen) {
    if (p->stamp[id] != p->now) {
        p->stamp[id] = p->now;
        p->count[id] = 0;
        p->seen[(*n_seen)++] = id;
    }
    return &p->count[id];
}

/* Repetition: each id that was seen, once; frequency and presence: ids of the output, or of the
 * window. The operations are those of a device, each rounded: the compiler must not contract
 * them. */
static void penalise(lt_sampler *p, const lt_sampler_args *a) {
    const lt_sampling *how = a->how;
    const int64_t all = a->n_prompt + a->n_output;
    int64_t n_seen = 0, counted = a->n_output;
    forget(p);
    if (how->penalty_window > 0) {
        counted = how->penalty_window < all ? how->penalty_window : all;
    } else {
        for (int64_t i = 0; i < a->n_prompt && how->repetition != 1.0; i++) {
            (void)see(p, a->tokens[i], &n_seen);
        }
    }
    for (int64_t i = all - counted; i < all; i++) {
        *see(p, a->tokens[i], &n_seen) += 1;
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

static bool breaks(const lt_sampling *how, int32_t id) {
    for (int64_t i = 0; i < how->n_dry_breakers; i++) {
        if (how->dry_breakers[i] == id) {
            return true;
        }
    }
    return false;
}

/* For each earlier occurrence of the last token, measure how far the preceding tokens match; the
 * token that followed there is penalised by its longest match. */
static void penalise_repeats(lt_sampler *p, const lt_sampler_args *a) {
    const lt_sampling *how = a->how;
    const int64_t all = a->n_prompt + a->n_output,
                  n = how->dry_last_n >= 0 && how->dry_last_n < all ? how->dry_last_n : all;
    const int32_t *t = a->tokens + (all - n);
    int64_t n_seen = 0;
    if (n == 0 || breaks(how, t[n - 1])) {
        return;
    }
    forget(p);
    for (int64_t i = 0; i + 1 < n; i++) {
        uint32_t same = 1, *longest;
        if (t[i] != t[n - 1] || breaks(how, t[i + 1])) {
            continue;
        }
        while (same < DRY_LONGEST && same <= i && t[i - same] == t[n - 1 - same] &&
               !breaks(how, t[i - same])) {
            same++;
        }
        longest = see(p, t[i + 1], &n_seen);
        *longest = same > *longest ? same : *longest;
    }
    for (int64_t i = 0; i < n_seen; i++) {
        const int64_t over = p->count[p->seen[i]] - how->dry_allowed;
        if (over >= 0) {
            p->work[p->seen[i]] -= (float)(how->dry_multiplier * pow(how->dry_base, (double)over));
        }
    }
}

static bool penalises(const lt_sampling *how) {
    return how->repetition != 1.0 || how->frequency != 0.0 || how->presence != 0.0;
}

static bool marks(const lt_sampler_args *a, uint64_t *state) {
    return a->how->watermark.scheme != LT_WATERMARK_NONE &&
           lt_watermark_state(&a->how->watermark, a->tokens, a->n_prompt, a->n_output, a->how->seed,
                              a->choice, state);
}

static void add_to_green(lt_sampler *p, const lt_watermark *w, uint64_t state) {
    for (int64_t i = 0; i < p->vocab_size; i++) {
        p->work[i] += lt_watermark_uniform(state, (int32_t)i) < w->gamma ? (float)w->delta : 0.0f;
    }
}

/* The logits after the request's adjustments; the row itself if there are none. */
static const float *adjust(lt_sampler *p, const float *logits, const lt_sampler_args *a) {
    const int64_t n = p->vocab_size;
    float *work = p->work;
    uint64_t state = 0;
    const bool green = a->how->watermark.scheme == LT_WATERMARK_GREEN && marks(a, &state);
    if (!green && a->mask == NULL && a->how->n_bias == 0 && a->n_banned == 0 &&
        !penalises(a->how) && a->how->dry_multiplier == 0.0) {
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
    if (a->how->dry_multiplier != 0.0) {
        penalise_repeats(p, a);
    }
    if (green) {
        add_to_green(p, &a->how->watermark, state);
    }
    return work;
}

/* The factor by which logits are multiplied. It stays finite for temperatures under 1e-38, so that
 * the best logit, whose distance is 0, keeps the weight 1. */
static float scale_of(const lt_sampling *how) {
    return (float)fmin(1.0 / how->temperature, (double)FLT_MAX);
}

static double sum_weights(const lt_candidate *c, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)c[i].p;
    }
    return sum;
}

/* The candidates of a draw, by weight relative to the best, which has weight 1. total: their
 * weight, plus that of ids that are already known to be cut. */
typedef struct {
    lt_candidate *c;
    int64_t n;
    double total;
} pool;

/* Gather the top_k ids, or all ids that the later cuts might keep: an id less likely than (1 -
 * top_p) / V is not in the nucleus, because all such ids together weigh less than what the
 * nucleus leaves out. */
static pool gather(lt_sampler *p, const float *logits, const lt_sampling *how, float high) {
    const float scale = scale_of(how);
    const int64_t n = p->vocab_size;
    pool w = {.c = p->candidates};
    if (how->top_k > 0 && how->top_k < n) {
        w.n = lt_logits_top(logits, n, how->top_k, w.c);
        for (int64_t i = 0; i < w.n; i++) {
            w.c[i].p = expf((w.c[i].p - high) * scale);
        }
        w.total = sum_weights(w.c, w.n);
        return w;
    }
    w.total = lt_logits_exp(logits, n, high, scale, p->weights, NULL);
    const double least = how->typical_p < 1.0 ? 0.0
                         : how->top_p < 1.0   ? (1.0 - how->top_p) * w.total / (double)n
                                              : how->min_p;
    w.n = lt_logits_collect(p->weights, n, fmaxf((float)least, FLT_MIN), w.c);
    return w;
}

/* The largest weight of the candidates: 1, unless typical has cut the best id. */
static double heaviest(const pool *w) {
    double most = 0.0;
    for (int64_t i = 0; i < w->n; i++) {
        most = fmax(most, (double)w->c[i].p);
    }
    return most;
}

static void cut_least(pool *w, double least) {
    int64_t kept = 0;
    for (int64_t i = 0; i < w->n; i++) {
        if ((double)w->c[i].p >= least) {
            w->c[kept++] = w->c[i];
        }
    }
    w->n = kept;
}

/* Locally typical sampling: keep the ids whose information is nearest to the entropy, up to
 * typical_p of the mass. */
static void cut_typical(lt_sampler *p, pool *w, double share) {
    const double total = sum_weights(w->c, w->n);
    double entropy = 0.0, sum = 0.0;
    int64_t kept = 0;

    for (int64_t i = 0; i < w->n; i++) {
        const double q = (double)w->c[i].p / total;
        entropy -= q > 0.0 ? q * log(q) : 0.0;
    }
    for (int64_t i = 0; i < w->n; i++) {
        const double q = (double)w->c[i].p / total;
        p->order[i] = (lt_candidate){q > 0.0 ? -(float)fabs(-log(q) - entropy) : -INFINITY,
                                     (int32_t)i};
    }
    lt_heap_make(p->order, w->n);
    do {
        lt_heap_pop(p->order, w->n - kept);
        kept++;
        sum += (double)w->c[p->order[w->n - kept].id].p;
    } while (kept < w->n && sum < share * total);
    for (int64_t i = 0; i < w->n - kept; i++) { /* The rest of the heap is cut. */
        w->c[p->order[i].id].p = -1.0f;
    }
    cut_least(w, 0.0);
    w->total = sum;
}

/* Keep the nucleus: as many of the most likely ids as make up top_p of the mass. */
static void cut_nucleus(pool *w, double top_p) {
    double sum = 0.0;
    int64_t kept = 0;
    lt_heap_make(w->c, w->n);
    do { /* top_p 0 keeps only the best. */
        lt_heap_pop(w->c, w->n - kept);
        kept++;
        sum += (double)w->c[w->n - kept].p;
    } while (kept < w->n && sum < top_p * w->total);
    w->c += w->n - kept;
    w->n = kept;
}

static double uniform(const lt_sampler_args *a, uint64_t stream) {
    lt_rng rng = {.seed = a->how->seed,
                  .stream = stream | (uint64_t)a->choice << 32,
                  .position = (uint64_t)a->n_output};
    return lt_rng_uniform(&rng);
}

/* Exclude top choices (XTC): of those above the threshold only the last one is kept. */
static void cut_top_choices(pool *w, double threshold) {
    const double least = threshold * sum_weights(w->c, w->n);
    const lt_candidate *last = NULL;
    lt_candidate stays;
    int64_t kept = 0;
    for (int64_t i = 0; i < w->n; i++) {
        if ((double)w->c[i].p >= least && (last == NULL || lt_candidate_before(last, &w->c[i]))) {
            last = &w->c[i];
        }
    }
    if (last == NULL) {
        return;
    }
    stays = *last;
    for (int64_t i = 0; i < w->n; i++) {
        if ((double)w->c[i].p < least || w->c[i].id == stays.id) {
            w->c[kept++] = w->c[i];
        }
    }
    w->n = kept;
}

void lt_sampler_as_op(const lt_sampler_args *a, double how[LT_CHOOSE_HOW_COUNT]) {
    const lt_sampling *h = a->how;
    how[LT_CHOOSE_TEMPERATURE] = h->temperature;
    how[LT_CHOOSE_TOP_K] = (double)h->top_k;
    how[LT_CHOOSE_TOP_P] = h->top_p;
    how[LT_CHOOSE_MIN_P] = h->min_p;
    how[LT_CHOOSE_DRAW] = h->temperature > 0.0 ? uniform(a, PICK_STREAM) : 0.0;
    how[LT_CHOOSE_N_TOP] = (double)a->n_top;
    how[LT_CHOOSE_TYPICAL] = h->typical_p;
    how[LT_CHOOSE_REPETITION] = h->repetition;
    how[LT_CHOOSE_FREQUENCY] = h->frequency;
    how[LT_CHOOSE_PRESENCE] = h->presence;
    how[LT_CHOOSE_BANS] = a->n_banned > 0 ? 1.0 : 0.0;
    how[LT_CHOOSE_SLOT] = -1.0;
    how[LT_CHOOSE_NEW] = (double)LT_CHOOSE_NO_NEW;
    how[LT_CHOOSE_MASK] = -1.0;
    how[LT_CHOOSE_FORCED] = (double)a->forced;
}

bool lt_sampler_suits_op(const lt_sampling *how, int64_t max_tokens) {
    return how->n_bias < LT_PENALTY_BIASES && max_tokens <= LT_PENALTY_COUNT &&
           how->dry_multiplier == 0.0 && how->xtc_probability <= 0.0 &&
           (how->penalty_window == 0 || !penalises(how)) &&
           how->watermark.scheme == LT_WATERMARK_NONE;
}

bool lt_sampler_needs_penalty_state(const lt_sampler_args *a) {
    return penalises(a->how) || a->how->n_bias > 0 || a->n_banned > 0;
}

static void edit(int32_t *edits, int64_t at, int64_t place, const void *word) {
    edits[2 * at] = (int32_t)place;
    memcpy(&edits[2 * at + 1], word, sizeof *edits);
}

int64_t lt_sampler_penalty_state(lt_sampler *p, const lt_sampler_args *a, const int32_t *endings,
                                 int64_t n_endings, int32_t *edits) {
    const lt_sampling *how = a->how;
    int64_t n_seen = 0;
    LT_ASSERT(how->n_bias < LT_PENALTY_BIASES && a->n_output <= LT_PENALTY_COUNT);
    forget(p);
    for (int64_t i = 0; i < a->n_prompt && how->repetition != 1.0; i++) {
        *see(p, a->tokens[i], &n_seen) = (uint32_t)LT_PENALTY_PROMPT;
    }
    for (int64_t i = 0; i < a->n_output; i++) {
        *see(p, a->tokens[a->n_prompt + i], &n_seen) += 1;
    }
    for (int64_t i = 0; i < n_endings; i++) {
        *see(p, endings[i], &n_seen) |= (uint32_t)LT_PENALTY_END;
    }
    for (int64_t i = 0; i < how->n_bias; i++) {
        *see(p, how->bias[i].id, &n_seen) |= (uint32_t)(i + 1) << LT_PENALTY_BIAS_SHIFT;
    }
    for (int64_t i = 0; i < n_seen; i++) {
        edit(edits, i, p->seen[i], &p->count[p->seen[i]]);
    }
    for (int64_t i = 0; i < how->n_bias; i++) {
        edit(edits, n_seen + i, p->vocab_size + i + 1, &how->bias[i].bias);
    }
    return n_seen + how->n_bias;
}

/* Draw if nothing is cut: sum block by block, then id by id, up to the draw. */
static int32_t draw_of_all(lt_sampler *p, const float *logits, const lt_sampler_args *a,
                           int32_t best) {
    const float scale = scale_of(a->how);
    const int64_t n = p->vocab_size, n_blocks = (n + LT_LOGITS_BLOCK - 1) / LT_LOGITS_BLOCK;
    double left = uniform(a, PICK_STREAM) *
                  lt_logits_exp(logits, n, logits[best], scale, p->weights, p->sums);
    int64_t block = 0;

    while (block + 1 < n_blocks && left >= p->sums[block]) {
        left -= p->sums[block++];
    }
    for (int64_t i = block * LT_LOGITS_BLOCK; i < n; i++) {
        left -= (double)p->weights[i];
        if (left < 0.0) {
            return (int32_t)i;
        }
    }
    return best; /* Because of rounding, the sum stayed below the draw. */
}

/* The id with the largest u^(1/p), computed in logarithms; of equal ones the lowest. */
static int32_t draw_marked(const pool *w, uint64_t state, int32_t best) {
    double most = -INFINITY;
    for (int64_t i = 0; i < w->n; i++) {
        const double x = log(lt_watermark_uniform(state, w->c[i].id)) / (double)w->c[i].p;
        if (x > most || (x == most && w->c[i].id < best)) {
            most = x;
            best = w->c[i].id;
        }
    }
    return best;
}

static bool cuts_nothing(const lt_sampling *how) {
    return how->top_k == 0 && how->typical_p >= 1.0 && how->top_p >= 1.0 && how->min_p <= 0.0 &&
           how->xtc_probability <= 0.0;
}

/* The ids that may be drawn, in ascending order. */
static pool cut(lt_sampler *p, const float *logits, const lt_sampler_args *a, int32_t best) {
    const lt_sampling *how = a->how;
    pool w = gather(p, logits, how, logits[best]);
    if (how->typical_p < 1.0) {
        if (how->top_k > 0) { /* Equal weights are ordered by id. */
            lt_candidates_by_id(w.c, w.n, p->order);
        }
        cut_typical(p, &w, how->typical_p);
    }
    if (how->top_p < 1.0) {
        cut_nucleus(&w, how->top_p);
    }
    if (how->min_p > 0.0) {
        cut_least(&w, how->min_p * heaviest(&w));
    }
    if (how->xtc_probability > 0.0 && uniform(a, XTC_STREAM) < how->xtc_probability) {
        cut_top_choices(&w, how->xtc_threshold);
    }
    if (how->top_k > 0 || how->top_p < 1.0) {
        lt_candidates_by_id(w.c, w.n, p->order);
    }
    return w;
}

/* The candidate at which the running sum of weights exceeds the share u of their total. */
static int32_t draw_of(const pool *w, double u, int32_t best) {
    double left = u * sum_weights(w->c, w->n);
    for (int64_t i = 0; i < w->n; i++) {
        left -= (double)w->c[i].p;
        if (left < 0.0) {
            return w->c[i].id;
        }
    }
    return w->n > 0 ? w->c[w->n - 1].id : best;
}

/* The weight of an id among those that may be drawn. */
static double weight_of(const pool *w, int32_t id) {
    for (int64_t i = 0; i < w->n; i++) {
        if (w->c[i].id == id) {
            return (double)w->c[i].p;
        }
    }
    return 0.0;
}

/* The proposals, in the order in which they are tried. */
static int32_t proposal_at(const lt_sampler_args *a, int k) {
    return k == 0 ? a->proposal : a->others[k - 1];
}

/* The mass of q without its first n proposals. */
static double left_of_proposed(const lt_sampler_args *a, int n) {
    double left = 1.0;
    for (int k = 0; k < n; k++) {
        left -= (double)a->proposed[proposal_at(a, k)];
    }
    /* It has at least this mass, up to rounding. */
    return fmax(left, (double)a->proposed[proposal_at(a, n)]);
}

/* The weights become (p - q)+, where q is without the earlier proposals, and times the total of
 * the weights. A rejected proposal had less weight than q, so its weight is 0 from then on. */
static void take_away(pool *w, const lt_sampler_args *a, double total, double left) {
    for (int64_t i = 0; i < w->n; i++) {
        const double q = (double)a->proposed[w->c[i].id] / left;
        const double rest = (double)w->c[i].p - total * q;
        w->c[i].p = rest > 0.0 ? (float)rest : 0.0f;
    }
}

/* The first accepted proposal, or a draw from (p - q)+. Each proposal is tried with q without the
 * earlier proposals, and with the rest that these have left of p. If rounding leaves nothing of
 * the difference, p and q are equal, and a proposal is nearly always accepted. */
static int32_t accept_or_draw(pool *w, const lt_sampler_args *a, int32_t best) {
    for (int k = 0; k <= a->n_others; k++) {
        const int32_t id = proposal_at(a, k);
        const double total = sum_weights(w->c, w->n), left = left_of_proposed(a, k);
        const double q = (double)a->proposed[id] / left;
        if (uniform(a, (uint64_t)ACCEPT_STREAM + (uint64_t)k) * q * total < weight_of(w, id)) {
            return id;
        }
        take_away(w, a, total, left);
    }
    cut_least(w, FLT_MIN);
    return draw_of(w, uniform(a, PICK_STREAM), best);
}

static int32_t draw(lt_sampler *p, const float *logits, const lt_sampler_args *a, int32_t best) {
    uint64_t state = 0;
    const bool marked = replaces_draw(a->how) && marks(a, &state);
    pool w;
    if (!marked && a->proposed == NULL && cuts_nothing(a->how)) {
        return draw_of_all(p, logits, a, best);
    }
    w = cut(p, logits, a, best);
    return marked                ? draw_marked(&w, state, best)
           : a->proposed != NULL ? accept_or_draw(&w, a, best)
                                 : draw_of(&w, uniform(a, PICK_STREAM), best);
}

bool lt_sampler_draws(const lt_sampling *how) {
    return how->temperature > 0.0 && !replaces_draw(how);
}

/* *wanted: the logits after the request's adjustments; *best: the best of them; *high: the highest
 * logit of the model. */
static lt_err prepare(lt_sampler *p, const float *logits, const lt_sampler_args *a,
                      const float **wanted, int32_t *best, float *high) {
    LT_TRY(find_best(logits, p->vocab_size, best));
    *high = logits[*best];
    *wanted = a->forced < 0 ? adjust(p, logits, a) : logits;
    return *wanted != logits ? find_best(*wanted, p->vocab_size, best) : LT_OK;
}

static int32_t choose(lt_sampler *p, const float *wanted, const lt_sampler_args *a, int32_t best) {
    if (a->forced >= 0) {
        return a->forced;
    }
    return a->how->temperature > 0.0 && isfinite(wanted[best]) ? draw(p, wanted, a, best) : best;
}

lt_err lt_sampler_propose(lt_sampler *p, const float *logits, const lt_sampler_args *a,
                          float *proposed, int32_t *id) {
    const float *wanted;
    float high;
    int32_t best;
    double total;
    lt_candidate alone = {.p = 1.0f};
    pool w = {.c = &alone, .n = 1};
    LT_TRY(prepare(p, logits, a, &wanted, &best, &high));
    if (proposed == NULL) {
        *id = choose(p, wanted, a, best);
        return LT_OK;
    }
    alone.id = best;
    if (isfinite(wanted[best])) {
        w = cut(p, wanted, a, best);
    }
    *id = draw_of(&w, uniform(a, DRAFT_STREAM), best);
    total = sum_weights(w.c, w.n);
    memset(proposed, 0, (size_t)p->vocab_size * sizeof *proposed);
    for (int64_t i = 0; i < w.n; i++) {
        proposed[w.c[i].id] = (float)((double)w.c[i].p / total);
    }
    return LT_OK;
}

static bool among(const int32_t *ids, int n, int64_t id) {
    for (int i = 0; i < n; i++) {
        if (ids[i] == id) {
            return true;
        }
    }
    return false;
}

/* Draw from q without the ids that are taken. */
static int32_t draw_other(const float *q, int64_t n_ids, const int32_t *taken, int n, double u) {
    double left = 0.0;
    int32_t id = -1;
    for (int64_t i = 0; i < n_ids; i++) {
        left += among(taken, n, i) ? 0.0 : (double)q[i];
    }
    left *= u;
    for (int64_t i = 0; i < n_ids; i++) {
        if (q[i] > 0.0f && !among(taken, n, i)) {
            id = (int32_t)i;
            left -= (double)q[i];
            if (left < 0.0) {
                break;
            }
        }
    }
    return id;
}

lt_err lt_sampler_propose_other(lt_sampler *p, const float *logits, const lt_sampler_args *a,
                                const float *proposed, const int32_t *taken, int n, int32_t *id) {
    const float *wanted;
    float high;
    int32_t best;
    *id = -1;
    if (proposed != NULL) {
        *id = draw_other(proposed, p->vocab_size, taken, n,
                         uniform(a, (uint64_t)DRAFT_STREAM + (uint64_t)n));
        return LT_OK;
    }
    LT_TRY(prepare(p, logits, a, &wanted, &best, &high));
    for (int64_t i = 0; i < p->vocab_size; i++) {
        if (wanted[i] > -INFINITY && !among(taken, n, i) && (*id < 0 || wanted[i] > wanted[*id])) {
            *id = (int32_t)i;
        }
    }
    return LT_OK;
}

lt_err lt_sampler_pick(lt_sampler *p, const float *logits, const lt_sampler_args *a, lt_pick *out) {
    const float *wanted;
    float high;
    int32_t best;

    LT_TRY(prepare(p, logits, a, &wanted, &best, &high));
    *out = (lt_pick){.id = choose(p, wanted, a, best)};
    if (a->n_top >= 0) {
        report(logits, p->vocab_size, a->n_top, a->entropy, high, p->candidates, out);
    }
    return LT_OK;
}
