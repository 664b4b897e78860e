/* How tokens are chosen: each sampler's draws against the exact distribution of a simple
 * implementation in double (chi-square), the functions for whole rows against loops, penalties
 * and log-probabilities against their definitions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "model/infer/sampler.h"
#include "tensor/backend.h"

enum { BIG = 131072 };

typedef struct {
    lt_sampler p;
    lt_arena arena;
} scratch;

static void open_scratch(scratch *s, int64_t vocab_size) {
    *s = (scratch){.p = {.vocab_size = vocab_size}};
    lt_sampler_carve(&s->p, &s->arena);
    assert_int_equal(lt_arena_open(&s->arena, "sampler"), LT_OK);
    lt_sampler_carve(&s->p, &s->arena);
}

static lt_sampling plain(void) {
    return lt_sampling_defaults();
}

static void fill_logits(float *x, int64_t n, double deviation, uint64_t seed) {
    lt_rng rng = {.seed = seed};
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)(deviation * lt_rng_normal(&rng));
    }
}

static int32_t pick(scratch *s, const float *x, const lt_sampler_args *a) {
    lt_pick out;
    assert_int_equal(lt_sampler_pick(&s->p, x, a, &out), LT_OK);
    return out.id;
}

/* ---- The simple implementation ---- */

typedef struct {
    double p, key;
    int64_t id;
} item;

static int by_key(const void *a, const void *b) {
    const item *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : (x->id > y->id) - (x->id < y->id);
}

static int64_t keep_mass(item *c, int64_t n, double share) {
    double total = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        total += c[i].p;
    }
    for (int64_t i = 0; i < n; i++) {
        sum += c[i].p;
        if (sum >= share * total) {
            return i + 1;
        }
    }
    return n;
}

/* Probabilities of all ids after the request's cuts, in order. */
static void exact(const float *x, int64_t n, const lt_sampling *how, double *q) {
    item *c = malloc((size_t)n * sizeof *c);
    double high = -INFINITY, total = 0, most = 0;
    int64_t m = n;
    for (int64_t i = 0; i < n; i++) {
        high = fmax(high, (double)x[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        c[i] = (item){exp(((double)x[i] - high) / how->temperature), -(double)x[i], i};
        q[i] = 0;
    }
    qsort(c, (size_t)m, sizeof *c, by_key);
    if (how->top_k > 0) {
        m = how->top_k < m ? how->top_k : m;
    }
    if (how->typical_p < 1) {
        double h = 0, sum = 0;
        for (int64_t i = 0; i < m; i++) {
            sum += c[i].p;
        }
        for (int64_t i = 0; i < m; i++) {
            h -= c[i].p > 0 ? c[i].p / sum * log(c[i].p / sum) : 0;
        }
        for (int64_t i = 0; i < m; i++) {
            c[i].key = fabs(-log(c[i].p / sum) - h);
        }
        qsort(c, (size_t)m, sizeof *c, by_key);
        m = keep_mass(c, m, how->typical_p);
        for (int64_t i = 0; i < m; i++) {
            c[i].key = -c[i].p;
        }
        qsort(c, (size_t)m, sizeof *c, by_key);
    }
    if (how->top_p < 1) {
        m = keep_mass(c, m, how->top_p);
    }
    for (int64_t i = 0; i < m; i++) { /* Relative to the most likely id that is left. */
        most = fmax(most, c[i].p);
    }
    for (int64_t i = 0; i < m; i++) {
        c[i].p = c[i].p >= how->min_p * most ? c[i].p : 0;
        total += c[i].p;
    }
    for (int64_t i = 0; i < m; i++) {
        q[c[i].id] = c[i].p / total * (1 - how->xtc_probability);
    }
    if (how->xtc_probability > 0) { /* The ids are sorted by falling probability. */
        int64_t first = 0;
        double rest = 0;
        while (first + 1 < m && c[first + 1].p / total >= how->xtc_threshold) {
            first++;
        }
        for (int64_t i = first; i < m; i++) {
            rest += c[i].p;
        }
        for (int64_t i = first; i < m; i++) {
            q[c[i].id] += c[i].p / rest * how->xtc_probability;
        }
    }
    free(c);
}

/* Compare draws at n_draws positions with q: Pearson's statistic as a normal deviate (Wilson and
 * Hilferty 1931). Rare ids are one class. */
static double deviate(scratch *s, const float *x, int64_t n, const lt_sampling *how,
                      const double *q, int64_t n_draws) {
    int64_t *seen = calloc((size_t)n, sizeof *seen), rare_seen = 0, classes = 0;
    double chi = 0, rare = 0, df;
    for (int64_t i = 0; i < n_draws; i++) {
        const lt_sampler_args a = {
            .how = how, .n_output = 0, .choice = (int32_t)i, .forced = -1, .n_top = -1};
        const int32_t id = pick(s, x, &a);
        assert_true(q[id] > 0); /* An id that was cut is never drawn. */
        seen[id]++;
    }
    for (int64_t i = 0; i < n; i++) {
        const double want = q[i] * (double)n_draws;
        if (want < 8) {
            rare += want;
            rare_seen += seen[i];
        } else {
            chi += ((double)seen[i] - want) * ((double)seen[i] - want) / want;
            classes++;
        }
    }
    if (rare > 8) {
        chi += ((double)rare_seen - rare) * ((double)rare_seen - rare) / rare;
        classes++;
    }
    free(seen);
    df = (double)(classes - 1);
    return df < 1 ? 0 : (cbrt(chi / df) - (1 - 2 / (9 * df))) / sqrt(2 / (9 * df));
}

static void draws_have_the_exact_distribution(void **state) {
    static const struct {
        const char *name;
        lt_sampling how;
    } cases[] = {
        {"plain", {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1}},
        {"cold", {.temperature = 0.3, .top_p = 1, .typical_p = 1, .repetition = 1}},
        {"hot", {.temperature = 3, .top_p = 1, .typical_p = 1, .repetition = 1}},
        {"top-k", {.temperature = 1, .top_k = 7, .top_p = 1, .typical_p = 1, .repetition = 1}},
        {"top-p", {.temperature = 1, .top_p = 0.7, .typical_p = 1, .repetition = 1}},
        {"min-p", {.temperature = 1, .top_p = 1, .min_p = 0.1, .typical_p = 1, .repetition = 1}},
        {"typical", {.temperature = 1, .top_p = 1, .typical_p = 0.6, .repetition = 1}},
        {"xtc",
         {.temperature = 1,
          .top_p = 1,
          .typical_p = 1,
          .repetition = 1,
          .xtc_probability = 0.4,
          .xtc_threshold = 0.03}},
        {"xtc, always",
         {.temperature = 0.7,
          .top_p = 1,
          .typical_p = 1,
          .repetition = 1,
          .xtc_probability = 1,
          .xtc_threshold = 0.1}},
        {"xtc of one choice",
         {.temperature = 1,
          .top_p = 1,
          .typical_p = 1,
          .repetition = 1,
          .xtc_probability = 1,
          .xtc_threshold = 0.51}},
        {"xtc behind the others",
         {.temperature = 1.5,
          .top_k = 40,
          .top_p = 0.8,
          .min_p = 0.03,
          .typical_p = 1,
          .repetition = 1,
          .xtc_probability = 0.5,
          .xtc_threshold = 0.05}},
        {"min-p behind typical, which cuts the best ids",
         {.temperature = 1, .top_p = 1, .min_p = 0.5, .typical_p = 0.2, .repetition = 1}},
        {"all",
         {.temperature = 1.5,
          .top_k = 30,
          .top_p = 0.9,
          .min_p = 0.03,
          .typical_p = 0.9,
          .repetition = 1}},
    };
    static const int64_t sizes[] = {3, 61, 700, 5000};
    (void)state;
    for (size_t v = 0; v < sizeof sizes / sizeof *sizes; v++) {
        const int64_t n = sizes[v];
        float *x = malloc((size_t)n * sizeof *x);
        double *q = malloc((size_t)n * sizeof *q);
        scratch s;
        open_scratch(&s, n);
        fill_logits(x, n, 2.0, (uint64_t)n);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            lt_sampling how = cases[i].how;
            how.seed = 11;
            exact(x, n, &how, q);
            const double z = deviate(&s, x, n, &how, q, n > 1000 ? 4000 : 20000);
            /* By chance this happens once in 150,000; the seeds are fixed. */
            if (!(fabs(z) < 4.5)) {
                fail_msg("%s of %lld ids: %.1f standard deviations off", cases[i].name,
                         (long long)n, z);
            }
        }
        lt_arena_close(&s.arena);
        free(x);
        free(q);
    }
}

/* ---- DRY ---- */

static bool is_in(const int32_t *list, int64_t n, int32_t id) {
    for (int64_t i = 0; i < n; i++) {
        if (list[i] == id) {
            return true;
        }
    }
    return false;
}

/* The penalty of an id, from the definition: the longest text that ends both what precedes the
 * next token and what preceded the same id earlier, and contains no breaker. */
static double dry_exact(const int32_t *t, int64_t n, const lt_sampling *how, int32_t id) {
    int64_t longest = 0;
    if (is_in(how->dry_breakers, how->n_dry_breakers, id)) {
        return 0;
    }
    for (int64_t at = 1; at < n; at++) { /* id was at `at`. */
        int64_t m = 0;
        while (t[at] == id && m < at && m < 50 && t[at - 1 - m] == t[n - 1 - m] &&
               !is_in(how->dry_breakers, how->n_dry_breakers, t[n - 1 - m])) {
            m++;
        }
        longest = m > longest ? m : longest;
    }
    return longest > 0 && longest >= how->dry_allowed
               ? how->dry_multiplier * pow(how->dry_base, (double)(longest - how->dry_allowed))
               : 0;
}

static void repeats_are_penalised_as_dry_defines(void **state) {
    enum { V = 9, N = 160 };
    static const int32_t breakers[] = {4, 7};
    int32_t tokens[N];
    float x[V];
    scratch s;
    int64_t n_paid = 0;
    lt_rng rng = {.seed = 5};
    (void)state;
    open_scratch(&s, V);
    for (int round = 0; round < 3000; round++) {
        const int64_t n = 1 + (int64_t)(lt_rng_uniform(&rng) * N),
                      letters = 1 + (int64_t)(lt_rng_uniform(&rng) * V),
                      last = round % 4 == 0   ? n / 2
                             : round % 4 == 1 ? 2 * N
                                              : -1;
        lt_sampling how = plain();
        lt_sampler_args a = {.how = &how, .tokens = tokens, .n_output = n / 3, .forced = -1};
        const int64_t from = last >= 0 && last < n ? n - last : 0;
        a.n_prompt = n - a.n_output;
        a.n_top = -1;
        how.temperature = 0;
        how.dry_multiplier = 0.8;
        how.dry_base = 1.75;
        how.dry_allowed = round % 5;
        how.dry_last_n = last;
        how.dry_breakers = breakers;
        how.n_dry_breakers = round % 3;
        for (int64_t i = 0; i < n; i++) {
            tokens[i] = (int32_t)(lt_rng_uniform(&rng) * (double)letters);
        }
        fill_logits(x, V, 1.0, (uint64_t)round);
        (void)pick(&s, x, &a);
        for (int32_t id = 0; id < V; id++) {
            const double paid = n > from ? dry_exact(tokens + from, n - from, &how, id) : 0;
            assert_true(fabs((double)s.p.work[id] - ((double)x[id] - paid)) <= 1e-6 * (1 + paid));
            n_paid += paid > 0;
        }
    }
    assert_true(n_paid > 3000);
    lt_arena_close(&s.arena);
}

/* "a b c, a b": c gets multiplier * base^(2 - 2); after "x a b c, x a b" one power more; a
 * breaker in between leaves only what follows it. */
static void dry_by_hand(void **state) {
    static const struct {
        int32_t tokens[8];
        int n;
        double paid;
    } cases[] = {{{0, 1, 2, 3, 0, 1}, 6, 0.5},
                 {{5, 0, 1, 2, 5, 0, 1}, 7, 1.0},
                 {{5, 4, 1, 2, 5, 4, 1}, 7, 0.0},
                 {{1, 2, 3, 1}, 4, 0.0}};
    static const int32_t breaker = 4;
    const float x[6] = {0};
    scratch s;
    (void)state;
    open_scratch(&s, 6);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_sampling how = plain();
        const lt_sampler_args a = {.how = &how,
                                   .tokens = cases[i].tokens,
                                   .n_prompt = cases[i].n,
                                   .forced = -1,
                                   .n_top = -1};
        how.dry_multiplier = 0.5;
        how.dry_base = 2;
        how.dry_allowed = 2;
        how.dry_last_n = -1;
        how.dry_breakers = &breaker;
        how.n_dry_breakers = 1;
        (void)pick(&s, x, &a);
        assert_true((double)s.p.work[2] == -cases[i].paid);
    }
    lt_arena_close(&s.arena);
}

/* A draw depends on (seed, sample, position) and on nothing else. */
static void draws_are_a_function_of_seed_sample_position(void **state) {
    static float x[1000];
    scratch s;
    int64_t differ[3] = {0};
    (void)state;
    open_scratch(&s, 1000);
    fill_logits(x, 1000, 1.0, 1);
    for (int64_t i = 0; i < 200; i++) {
        lt_sampling how = plain();
        lt_sampler_args a = {.how = &how, .forced = -1, .n_top = -1, .n_output = 0};
        int32_t first, tokens[256] = {0};
        a.tokens = tokens;
        a.n_output = i;
        how.seed = 5;
        first = pick(&s, x, &a);
        assert_int_equal(pick(&s, x, &a), first);
        a.choice = 1;
        differ[0] += pick(&s, x, &a) != first;
        a.choice = 0;
        how.seed = 6;
        differ[1] += pick(&s, x, &a) != first;
        how.seed = 5;
        a.n_output = i + 1;
        differ[2] += pick(&s, x, &a) != first;
    }
    for (int i = 0; i < 3; i++) {
        assert_true(differ[i] > 180);
    }
    lt_arena_close(&s.arena);
}

static void greedy_and_what_changes_it(void **state) {
    float x[40];
    const int32_t tokens[] = {7, 7, 3, 9, 9, 9, 4};
    const int32_t banned[] = {20};
    const lt_logit_bias bias[] = {{12, 50}, {13, -100}};
    uint32_t mask[2] = {1u << 5 | 1u << 30, 0};
    lt_sampling how = plain();
    lt_sampler_args a = {
        .how = &how, .tokens = tokens, .n_prompt = 3, .n_output = 4, .forced = -1, .n_top = -1};
    scratch s;
    (void)state;
    open_scratch(&s, 40);
    for (int i = 0; i < 40; i++) {
        x[i] = (float)(i % 11);
    }
    how.temperature = 0;
    assert_int_equal(pick(&s, x, &a), 10); /* The lowest id of ties: 10, 21, 32. */
    x[20] = 30;
    assert_int_equal(pick(&s, x, &a), 20);
    a.banned = banned;
    a.n_banned = 1;
    assert_int_equal(pick(&s, x, &a), 10);
    how.bias = bias;
    how.n_bias = 2;
    assert_int_equal(pick(&s, x, &a), 12);
    a.mask = mask;
    assert_int_equal(pick(&s, x, &a), 30); /* 30 has 8, 5 has 5. */
    a.forced = 2;
    assert_int_equal(pick(&s, x, &a), 2);
    lt_arena_close(&s.arena);
}

static void penalties_as_defined(void **state) {
    enum { N = 12 };
    const float x[N] = {1, -1, 2, 3, -2, 0, 0.5f, 4, 1, 2, 3, -3};
    const int32_t tokens[] = {1, 7, 7, /* output */ 7, 4, 9, 9};
    lt_sampling how = plain();
    const lt_sampler_args a = {
        .how = &how, .tokens = tokens, .n_prompt = 3, .n_output = 4, .forced = -1, .n_top = -1};
    const double count[N] = {[7] = 1, [4] = 1, [9] = 2};
    const bool seen[N] = {[1] = true, [7] = true, [4] = true, [9] = true};
    scratch s;
    (void)state;
    open_scratch(&s, N);
    how.repetition = 1.3;
    how.frequency = 0.4;
    how.presence = 0.25;
    (void)pick(&s, x, &a);
    for (int i = 0; i < N; i++) {
        double want = (double)x[i];
        want = !seen[i] ? want : want > 0 ? want / 1.3 : want * 1.3;
        want -= 0.4 * count[i] + (count[i] > 0 ? 0.25 : 0);
        assert_true(fabs((double)s.p.work[i] - want) < 1e-6);
    }
    lt_arena_close(&s.arena);
}

static void log_probabilities_are_those_of_the_model(void **state) {
    enum { N = 1000 };
    static float x[N];
    lt_sampling how = plain();
    lt_sampler_args a = {.how = &how, .forced = -1, .n_top = 20};
    lt_pick out;
    scratch s;
    double sum = 0;
    (void)state;
    open_scratch(&s, N);
    fill_logits(x, N, 3.0, 4);
    how.temperature = 0.2;
    how.top_k = 3;
    for (int i = 0; i < N; i++) {
        sum += exp((double)x[i]);
    }
    assert_int_equal(lt_sampler_pick(&s.p, x, &a, &out), LT_OK);
    assert_true(fabs((double)out.logprob - ((double)x[out.id] - log(sum))) < 1e-5);
    assert_int_equal(out.n_top, 20);
    for (int i = 0; i < 20; i++) {
        int rank = 0;
        assert_true(fabs((double)out.top[i].p - ((double)x[out.top[i].id] - log(sum))) < 1e-5);
        for (int k = 0; k < N; k++) {
            rank += x[k] > x[out.top[i].id];
        }
        assert_int_equal(rank, i);
    }
    lt_arena_close(&s.arena);
}

static void impossible_choices_are_errors(void **state) {
    float x[5] = {1, 2, NAN, 3, 4};
    uint32_t mask = 0;
    lt_sampling how = plain();
    lt_sampler_args a = {.how = &how, .forced = -1, .n_top = -1};
    lt_pick out;
    scratch s;
    (void)state;
    open_scratch(&s, 5);
    assert_int_equal(lt_sampler_pick(&s.p, x, &a, &out), LT_ERR_NUMERIC);
    x[2] = -INFINITY;
    assert_int_equal(lt_sampler_pick(&s.p, x, &a, &out), LT_OK);
    a.mask = &mask;
    assert_int_equal(lt_sampler_pick(&s.p, x, &a, &out), LT_ERR_NUMERIC);
    mask = 1u << 2; /* The only id that is allowed is impossible. */
    assert_int_equal(lt_sampler_pick(&s.p, x, &a, &out), LT_ERR_NUMERIC);
    how.top_p = 0; /* Only the best id. */
    a.mask = NULL;
    assert_int_equal(pick(&s, x, &a), 4);
    lt_arena_close(&s.arena);
}

/* ---- The ops of devices ---- */

enum { N = 3000, TOKENS = 60 };

/* What a request may ask for, and the tokens before the next one. */
typedef struct {
    lt_sampling how;
    lt_sampler_args a;
    lt_logit_bias bias[7];
    int32_t tokens[TOKENS], endings[3];
    uint32_t mask[(N + 31) / 32];
} asked;

static void ask_options(asked *q, int64_t i, lt_rng *rng) {
    const double top_p[] = {1, 0.95, 0.5, 1}, min_p[] = {0, 0, 0.02}, t[] = {0, 0.5, 1, 2};
    const int64_t top_k[] = {0, 1, 20, 300, N};
    q->how = plain();
    q->a = (lt_sampler_args){
        .how = &q->how, .forced = -1, .n_output = i, .choice = (int32_t)(i % 3)};
    q->how.seed = 77;
    q->how.temperature = t[lt_rng_below(rng, 4)];
    q->how.top_k = top_k[lt_rng_below(rng, 5)];
    q->how.top_p = top_p[lt_rng_below(rng, 4)];
    q->how.min_p = min_p[lt_rng_below(rng, 3)];
    q->a.n_top = (int)lt_rng_below(rng, 22) - 1;
}

/* Penalties, bias, bans, a mask, typical, a forced id: each of them in some of the cases. */
static void ask_more(asked *q, int64_t n, lt_rng *rng) {
    const double typical[] = {1, 1, 1, 0.9, 0.3}, repetition[] = {1, 1, 1.3, 0.7};
    q->a.tokens = q->tokens;
    q->a.n_prompt = (int64_t)lt_rng_below(rng, TOKENS / 2) + 1;
    q->a.n_output = (int64_t)lt_rng_below(rng, TOKENS / 2);
    for (int i = 0; i < TOKENS; i++) {
        q->tokens[i] = (int32_t)lt_rng_below(rng, (uint64_t)(n < 20 ? n : 20));
    }
    q->how.typical_p = typical[lt_rng_below(rng, 5)];
    q->how.repetition = repetition[lt_rng_below(rng, 4)];
    q->how.frequency = lt_rng_below(rng, 2) == 0 ? 0.37 : 0.0;
    q->how.presence = lt_rng_below(rng, 2) == 0 ? -0.21 : 0.0;
    q->how.bias = q->bias;
    q->how.n_bias = lt_rng_below(rng, 3) == 0 ? (int64_t)lt_rng_below(rng, 8) : 0;
    q->how.n_bias = q->how.n_bias < n ? q->how.n_bias : n;
    for (int64_t i = 0; i < q->how.n_bias; i++) { /* Each id occurs once. */
        q->bias[i] = (lt_logit_bias){(int32_t)(i * n / q->how.n_bias), (float)lt_rng_normal(rng)};
    }
    for (int i = 0; i < 3; i++) {
        q->endings[i] = (int32_t)lt_rng_below(rng, (uint64_t)n);
    }
    q->a.banned = q->endings;
    q->a.n_banned = lt_rng_below(rng, 3) == 0 ? 3 : 0;
    for (int64_t i = 0; i < (n + 31) / 32; i++) {
        q->mask[i] = (uint32_t)lt_rng_below(rng, 1ull << 32);
    }
    q->a.mask = lt_rng_below(rng, 3) == 0 ? q->mask : NULL;
    q->a.forced = lt_rng_below(rng, 9) == 0 ? (int32_t)lt_rng_below(rng, (uint64_t)n) : -1;
}

/* One pick of the op. */
typedef struct {
    double how[LT_CHOOSE_HOW_COUNT];
    int32_t id, rank, top_id[LT_CHOOSE_TOP], late[3];
    float logprob, top_logprob[LT_CHOOSE_TOP];
} op_room;

/* As a device is told: first what is known; the last token, which it may have chosen itself,
 * comes with the pick. */
static lt_choose_args tell_op(scratch *s, const asked *q, int64_t i, float *x, int64_t n,
                              op_room *r) {
    static int32_t penalties[N + LT_PENALTY_BIASES], edits[2 * (N + LT_PENALTY_BIASES)], starts[2],
        slot, row;
    const lt_backend *cpu = lt_backend_cpu();
    lt_sampler_args known = q->a;
    lt_sampler_as_op(&q->a, r->how);
    if (lt_sampler_needs_penalty_state(&q->a)) {
        if (i % 2 == 0 && known.n_output > 0) {
            known.n_output--;
            r->how[LT_CHOOSE_NEW] = i % 4 == 0 ? q->tokens[known.n_prompt + known.n_output] : -3.0;
            r->late[2] = q->tokens[known.n_prompt + known.n_output];
        }
        r->how[LT_CHOOSE_SLOT] = 0.0;
        starts[1] = (int32_t)lt_sampler_penalty_state(&s->p, &known, q->endings, 3, edits);
        const lt_penalty_set_args penalty = {
            .penalties = lt_tensor_2d(penalties, LT_I32, 1, n + LT_PENALTY_BIASES),
            .slots = lt_tensor_1d(&slot, LT_I32, 1),
            .starts = lt_tensor_1d(starts, LT_I32, 2),
            .edits = lt_tensor_2d(edits, LT_I32, starts[1], 2)};
        assert_int_equal(cpu->ops->penalty_set(NULL, &penalty), LT_OK);
    }
    r->how[LT_CHOOSE_MASK] = q->a.mask != NULL ? 0.0 : -1.0;
    return (lt_choose_args){
        .id = lt_tensor_1d(&r->id, LT_I32, 1),
        .rank = lt_tensor_1d(&r->rank, LT_I32, 1),
        .logprob = lt_tensor_1d(&r->logprob, LT_F32, 1),
        .top_id = lt_tensor_2d(r->top_id, LT_I32, 1, LT_CHOOSE_TOP),
        .top_logprob = lt_tensor_2d(r->top_logprob, LT_F32, 1, LT_CHOOSE_TOP),
        .logits = lt_tensor_2d(x, LT_F32, 1, n),
        .rows = lt_tensor_1d(&row, LT_I32, 1),
        .how = lt_tensor_2d(r->how, LT_F64, 1, LT_CHOOSE_HOW_COUNT),
        .penalties = lt_tensor_2d(penalties, LT_I32, 1, n + LT_PENALTY_BIASES),
        .masks = lt_tensor_2d((void *)(uintptr_t)q->mask, LT_I32, 1, (n + 31) / 32),
        .late = lt_tensor_1d(r->late, LT_I32, 3)};
}

/* Thousands of options on rows of all kinds. */
static void the_op_picks_the_same(void **state) {
    enum { TRIES = 3000 };
    static float x[N];
    static asked q;
    int64_t n_none = 0;
    lt_rng rng = {.seed = 31};
    scratch s;
    (void)state;
    open_scratch(&s, N);
    for (int64_t i = 0; i < TRIES; i++) {
        const int64_t n = 1 + (int64_t)lt_rng_below(&rng, N);
        op_room r = {0};
        lt_pick out;
        lt_err err;
        fill_logits(x, n, i % 4 == 0 ? 1.0 : 4.0, (uint64_t)i);
        for (int64_t k = 0; k < n && i % 5 == 0; k++) { /* Ties. */
            x[k] = rintf(x[k]);
        }
        x[lt_rng_below(&rng, (uint64_t)n)] = i % 7 == 0 && n > 1 ? -INFINITY : 3.0f;
        ask_options(&q, i, &rng);
        if (i % 3 > 0) {
            ask_more(&q, n, &rng);
        }
        s.p.vocab_size = n;
        err = lt_sampler_pick(&s.p, x, &q.a, &out);
        const lt_choose_args op = tell_op(&s, &q, i, x, n, &r);
        assert_int_equal(lt_backend_cpu()->ops->choose(NULL, &op), LT_OK);
        n_none += err != LT_OK;
        assert_int_equal(r.id, err == LT_OK ? out.id : LT_CHOOSE_NONE);
        for (int k = 0; err == LT_OK && q.a.n_top >= 0 && k < LT_CHOOSE_TOP; k++) {
            assert_int_equal(r.top_id[k], k < out.n_top ? out.top[k].id : -1);
            assert_true(k >= out.n_top ||
                        fabs((double)r.top_logprob[k] - (double)out.top[k].p) < 1e-5);
        }
        /* Two of -inf have no distance: NAN. */
        assert_true(err != LT_OK || q.a.n_top < 0 ||
                    (r.rank == out.rank && !(fabsf(r.logprob - out.logprob) > 1e-5f)));
    }
    assert_true(n_none < TRIES / 20);
    s.p.vocab_size = N;
    lt_arena_close(&s.arena);
}

static void what_penalty_state_can_not_hold_runs_on_the_host(void **state) {
    lt_sampling how = plain();
    (void)state;
    assert_true(lt_sampler_suits_op(&how, 131072));
    assert_false(lt_sampler_suits_op(&how, 1 << 20));
    how.n_bias = LT_PENALTY_BIASES - 1;
    assert_true(lt_sampler_suits_op(&how, 16));
    how.n_bias = LT_PENALTY_BIASES;
    assert_false(lt_sampler_suits_op(&how, 16));
}

/* ---- Rows ---- */

static void rows_equal_loops(void **state) {
    static float x[3001], y[3001];
    static lt_candidate c[3001], scratch_candidates[3001];
    static double sums[16];
    (void)state;
    for (int64_t n = 1; n <= 3001; n = n < 40 ? n + 1 : n * 3 + 1) {
        double total = 0;
        int32_t best;
        int64_t above = 0, want = 0, k = n / 3 + 1;
        fill_logits(x, n, 4.0, (uint64_t)n);
        x[n / 2] = -INFINITY;
        assert_true(lt_logits_best(x, n, &best));
        for (int64_t i = 0; i < n; i++) {
            want = x[i] > x[want] ? i : want;
            above += x[i] > 0.5f;
        }
        assert_int_equal(best, n > 1 ? want : 0);
        assert_int_equal(lt_logits_count_above(x, n, 0.5f), above);
        assert_int_equal(lt_logits_collect(x, n, 0.5f, c), above);
        (void)lt_logits_exp(x, n, x[want] > -INFINITY ? x[want] : 0, 0.7f, y, sums);
        for (int64_t i = 0; i < n; i++) {
            const double e = exp(((double)x[i] - (x[want] > -INFINITY ? (double)x[want] : 0)) *
                                 (double)0.7f);
            total += e;
            assert_true(fabs((double)y[i] - e) <= e * 0x1p-19 + 1e-37);
        }
        for (int64_t i = 0; i < n; i += LT_LOGITS_BLOCK) {
            total -= sums[i / LT_LOGITS_BLOCK];
        }
        assert_true(fabs(total) < 1e-4 * (double)n);
        k = lt_logits_top(x, n, k, c);
        lt_candidates_by_id(c, k, scratch_candidates);
        for (int64_t i = 1; i < k; i++) {
            assert_true(c[i - 1].id < c[i].id);
        }
        lt_candidates_sort(c, k, k);
        for (int64_t i = 0; i < k; i++) {
            assert_int_equal(lt_logits_count_above(x, n, c[i].p), i);
        }
    }
    x[7] = NAN;
    assert_false(lt_logits_best(x, 20, &(int32_t){0}));
}

/* Entropies with a closed form: log n for n equal logits; for two logits the binary entropy;
 * excluded ids do not count. The entropy is that of the model's distribution, whatever the
 * temperature. */
static void entropies(void **state) {
    const double p = 1 / (1 + exp(-1.5)), binary = -p * log(p) - (1 - p) * log1p(-p);
    const float two[3] = {1.5F, -INFINITY, 0};
    float x[37];
    scratch s;
    lt_pick out;
    lt_sampling how = plain();
    const lt_sampler_args a = {.how = &how, .forced = -1, .entropy = true};
    (void)state;
    for (int i = 0; i < 37; i++) {
        x[i] = -4.25F;
    }
    assert_true(fabs(lt_logits_entropy(x, 37, lt_logits_lse(x, 37, x[0])) - log(37)) < 1e-6);
    assert_true(fabs(lt_logits_entropy(two, 3, lt_logits_lse(two, 3, 1.5F)) - binary) < 1e-6);
    x[5] = 400;
    assert_true(fabs(lt_logits_entropy(x, 37, lt_logits_lse(x, 37, 400))) < 1e-6);
    open_scratch(&s, 3);
    for (int i = 0; i < 3; i++) {
        how.temperature = (const double[]){0, 1, 3}[i];
        assert_int_equal(lt_sampler_pick(&s.p, two, &a, &out), LT_OK);
        assert_true(fabs((double)out.entropy - binary) < 1e-6);
    }
    lt_arena_close(&s.arena);
}

static void speed(void **state) {
    static float x[BIG];
    static const struct {
        const char *name;
        int64_t top_k;
        double temperature, top_p, min_p;
        int n_top;
    } cases[] = {{"greedy", 0, 0, 1, 0, -1},        {"temperature", 0, 1, 1, 0, -1},
                 {"top-k 40", 40, 1, 1, 0, -1},     {"top-p 0.95", 0, 1, 0.95, 0, -1},
                 {"min-p 0.05", 0, 1, 1, 0.05, -1}, {"20 log-probabilities", 0, 0, 1, 0, 20}};
    scratch s;
    (void)state;
    open_scratch(&s, BIG);
    fill_logits(x, BIG, 2.0, 9);
    for (int i = 0; i < 40; i++) {
        x[i * 3000 + 17] += 12; /* As peaked as those of a language model. */
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_sampling how = plain();
        lt_sampler_args a = {.how = &how, .forced = -1, .n_top = cases[i].n_top};
        double best = INFINITY;
        lt_pick out;
        how.temperature = cases[i].temperature;
        how.top_k = cases[i].top_k;
        how.top_p = cases[i].top_p;
        how.min_p = cases[i].min_p;
        for (int k = 0; k < 20; k++) {
            const double start = lt_clock_s();
            a.choice = k;
            assert_int_equal(lt_sampler_pick(&s.p, x, &a, &out), LT_OK);
            best = fmin(best, lt_clock_s() - start);
        }
        print_message("%-20s of %d: %.0f us\n", cases[i].name, BIG, best * 1e6);
    }
    lt_arena_close(&s.arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_have_the_exact_distribution),
        cmocka_unit_test(repeats_are_penalised_as_dry_defines),
        cmocka_unit_test(dry_by_hand),
        cmocka_unit_test(draws_are_a_function_of_seed_sample_position),
        cmocka_unit_test(greedy_and_what_changes_it),
        cmocka_unit_test(penalties_as_defined),
        cmocka_unit_test(log_probabilities_are_those_of_the_model),
        cmocka_unit_test(impossible_choices_are_errors),
        cmocka_unit_test(the_op_picks_the_same),
        cmocka_unit_test(what_penalty_state_can_not_hold_runs_on_the_host),
        cmocka_unit_test(rows_equal_loops),
        cmocka_unit_test(entropies),
        cmocka_unit_test(speed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
