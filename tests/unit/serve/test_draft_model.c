/* Drafts of a draft model: the rule that accepts them against plain sampling and closed forms,
 * for every cut of the distribution; the joint distribution of an engine's texts against that of
 * the model, by enumeration; predictions; refusals. (test_engine.c tests that texts of a
 * deterministic engine keep every bit.) */
#define FLEET_CHOICES 128
#include "unit/serve/fleet.h"

#include "model/infer/sampler.h"

/* The 0.9999 quantile of chi-square (Wilson and Hilferty). */
static double most_chi_square(int degrees) {
    const double root = 1 - 2.0 / (9 * degrees) + 3.72 * sqrt(2.0 / (9 * degrees));
    return degrees * root * root * root;
}

/* ---- The rule ---- */

enum { IDS = 12, DRAWS = 50000 };

typedef struct {
    const char *name;
    lt_sampling how;
    bool masked;
    int n_others; /* Proposals in addition to the first. */
} rule_case;

static void softmax(const float *logits, double temperature, int n, double *p) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        p[i] = exp((double)logits[i] / temperature);
        sum += p[i];
    }
    for (int i = 0; i < n; i++) {
        p[i] /= sum;
    }
}

/* Count samples of the rule and plain samples; returns the share of draft tokens that was
 * accepted. */
static double count_draws(const rule_case *c, const float *p, const float *q, int64_t *ruled,
                          int64_t *plain) {
    static const int32_t text[] = {3, 4, 4, 5};
    static const uint32_t mask = 0xDF7; /* Without 3 and 9. */
    lt_sampler s = {0};
    int64_t n_accepted = 0;
    must(lt_sampler_open(&s, IDS), "sampler");
    for (int32_t i = 0; i < DRAWS; i++) {
        float proposed[IDS];
        int32_t taken[LT_DRAFT_BRANCHES];
        int n = 0;
        lt_pick pick;
        lt_sampler_args a = {.how = &c->how,
                             .tokens = text,
                             .n_prompt = 1,
                             .n_output = 3,
                             .choice = i,
                             .forced = -1,
                             .n_top = -1};
        must(lt_sampler_propose(&s, q, &a, proposed, &a.proposal), "propose");
        assert_true(proposed[a.proposal] > 0);
        taken[n++] = a.proposal;
        while (n <= c->n_others) {
            int32_t id;
            must(lt_sampler_propose_other(&s, q, &a, proposed, taken, n, &id), "another");
            if (id < 0) { /* The cuts left no other. */
                break;
            }
            assert_true(proposed[id] > 0);
            taken[n++] = id;
        }
        a.others = taken + 1;
        a.n_others = n - 1;
        a.mask = c->masked ? &mask : NULL; /* The draft does not know of it. */
        a.proposed = proposed;
        must(lt_sampler_pick(&s, p, &a, &pick), "pick");
        ruled[pick.id]++;
        for (int k = 0; k < n; k++) {
            n_accepted += pick.id == taken[k];
        }
        a.proposed = NULL;
        a.choice = i + DRAWS;
        must(lt_sampler_pick(&s, p, &a, &pick), "pick");
        plain[pick.id]++;
    }
    lt_sampler_close(&s);
    return (double)n_accepted / DRAWS;
}

static void the_rule_keeps_the_distribution(void **state) {
    static const float p[IDS] = {1, 2, 0, -1, 0.5f, 3, 2.5f, -2, 1, 0, 1.5f, 2};
    static const float qs[3][IDS] = {{1, 2, 0, -1, 0.5f, 3, 2.5f, -2, 1, 0, 1.5f, 2},
                                     {0, 2.5f, 1, -1, 0, 2, 3, -1, 1, 0.5f, 1, 1},
                                     {4, -3, 3, 5, 0, -4, -3, 2, 1, 3, -2, 0}};
    rule_case cases[] = {
        {.name = "plain"}, {.name = "temperature"}, {.name = "top_k"},
        {.name = "top_p"}, {.name = "min_p"},       {.name = "typical_p"},
        {.name = "xtc"},   {.name = "penalties"},   {.name = "mask", .masked = true},
        {.n_others = 1},   {.n_others = 3},         {.n_others = 3},
        {.n_others = 2},   {.n_others = 3}};
    const int n_cases = (int)(sizeof cases / sizeof cases[0]);
    (void)state;
    for (int i = 0; i < n_cases; i++) {
        cases[i].how = lt_sampling_defaults();
    }
    cases[1].how.temperature = 0.6;
    cases[2].how.top_k = 4;
    cases[3].how.top_p = 0.7;
    cases[4].how.min_p = 0.2;
    cases[5].how.typical_p = 0.6;
    cases[6].how.xtc_probability = 0.5;
    cases[6].how.xtc_threshold = 0.1;
    cases[7].how.presence = 1.0;
    cases[7].how.repetition = 1.3;
    for (int i = 9; i < n_cases; i++) {
        cases[i].name = "others";
    }
    cases[10].how.temperature = 0.6;
    cases[11].how.top_k = 3; /* All of q is proposed. */
    cases[12].masked = true;
    for (int k = 0; k < 3 * n_cases; k++) {
        const rule_case *c = &cases[k / 3];
        const float *q = qs[k % 3];
        int64_t ruled[IDS] = {0}, plain[IDS] = {0};
        double x = 0, want[IDS], other[IDS], overlap = 0;
        int degrees = -1;
        const double accepted = count_draws(c, p, q, ruled, plain);
        softmax(p, c->how.temperature, IDS, want);
        softmax(q, c->how.temperature, IDS, other);
        for (int i = 0; i < IDS; i++) {
            const double both = (double)(ruled[i] + plain[i]), off = (double)(ruled[i] - plain[i]);
            const double sd = sqrt(want[i] * (1 - want[i]) * DRAWS);
            overlap += fmin(want[i], other[i]);
            if (both > 0) { /* Two samples of equal size. */
                x += off * off / both;
                degrees++;
            }
            if ((k / 3 < 2 || k / 3 == 9 || k / 3 == 10) &&
                fabs((double)ruled[i] - want[i] * DRAWS) > 5 * sd) {
                fail_msg("%s, draft %d: id %d came %lld times, not %.0f", c->name, k % 3, i,
                         (long long)ruled[i], want[i] * DRAWS);
            }
        }
        if (degrees < 1 || x > most_chi_square(degrees)) {
            fail_msg("%s, draft %d: chi-square %.1f of %d degrees", c->name, k % 3, x, degrees);
        }
        if (k / 3 < 2 && fabs(accepted - overlap) > 5 * sqrt(0.25 / DRAWS)) {
            fail_msg("%s, draft %d: %.4f accepted, not %.4f", c->name, k % 3, accepted, overlap);
        }
    }
}

/* Without a distribution the draft model samples with the request's own random numbers. */
static void drafts_without_a_distribution_use_the_requests_random_numbers(void **state) {
    static const float p[IDS] = {1, 2, 0, -1, 0.5f, 3, 2.5f, -2, 1, 0, 1.5f, 2};
    const lt_sampling how = lt_sampling_defaults();
    lt_sampler s = {0};
    (void)state;
    must(lt_sampler_open(&s, IDS), "sampler");
    for (int32_t i = 0; i < 1000; i++) {
        const lt_sampler_args a = {.how = &how, .choice = i, .forced = -1, .n_top = -1};
        lt_pick pick;
        int32_t id;
        must(lt_sampler_propose(&s, p, &a, NULL, &id), "propose");
        must(lt_sampler_pick(&s, p, &a, &pick), "pick");
        assert_int_equal(id, pick.id);
    }
    lt_sampler_close(&s);
}

/* ---- Texts ---- */

enum { V = 9, TOKENS = 3, CELLS = V * V * V, AT_ONCE = 4 };

static lt_model *model_of_seed(uint64_t seed, int64_t vocab_size) {
    lt_model *like = random_model(vocab_size, 64, LT_F32), *m = NULL;
    lt_model_spec spec = *lt_model_get_spec(like);
    spec.n_layers = 1;
    must(lt_model_create(&m, &spec, &(lt_model_options){.dtype = LT_F32, .device = device_of(NULL)},
                         seed),
         "model");
    lt_model_close(like);
    return m;
}

/* What the sampler leaves of a row: presence penalty, temperature, nucleus, as defined in the
 * papers. */
static void law_of(const float *logits, const lt_sampling *how, const int32_t *output, int n,
                   double *p) {
    float x[V];
    double mass = 0, kept = 0;
    bool in[V] = {false};
    for (int i = 0; i < V; i++) {
        x[i] = logits[i];
        for (int k = 0; k < n; k++) {
            x[i] = output[k] == i ? logits[i] - (float)how->presence : x[i];
        }
    }
    softmax(x, how->temperature, V, p);
    while (mass < how->top_p && mass < 1 - 1e-12) {
        int best = -1;
        for (int i = 0; i < V; i++) {
            best = !in[i] && (best < 0 || p[i] > p[best]) ? i : best;
        }
        in[best] = true;
        mass += p[best];
    }
    for (int i = 0; i < V; i++) {
        kept += in[i] ? p[i] : 0;
    }
    for (int i = 0; i < V; i++) {
        p[i] = in[i] ? p[i] / kept : 0;
    }
}

/* Compute the probability of every continuation of the prompt by TOKENS tokens. */
static void enumerate(const lt_model *m, const int32_t *prompt, int n_prompt,
                      const lt_sampling *how, double *law) {
    lt_session *s = NULL;
    float logits[V];
    must(lt_session_open(&s, m, 1, 64), "session");
    for (int cell = 0; cell < CELLS; cell++) {
        const int32_t text[] = {cell / (V * V), cell / V % V, cell % V};
        double p[V];
        law[cell] = 1;
        for (int n = 0; n < TOKENS; n++) {
            int32_t all[16];
            memcpy(all, prompt, (size_t)n_prompt * sizeof *all);
            memcpy(all + n_prompt, text, (size_t)n * sizeof *all);
            lt_session_truncate(s, 0, 0);
            must(lt_session_eval(s, 0, all, n_prompt + n, logits), "logits");
            law_of(logits, how, text, n, p);
            law[cell] *= p[text[n]];
        }
    }
    lt_session_close(s);
}

/* Count texts by cell; returns the share of draft tokens that was accepted. */
static double sample(const lt_model *m, const lt_model *draft, const lt_request *r, int branches,
                     int n, int64_t *counts) {
    static answer answers[AT_ONCE];
    lt_engine_options o = lt_engine_defaults();
    lt_engine_stats stats;
    lt_engine *e = NULL;
    o.max_seq = 32;
    o.max_running = 32;
    o.max_waiting = 2048;
    o.speculate = LT_SPECULATE_MODEL;
    o.draft = &draft;
    o.draft_tokens = 2;
    o.draft_branches = branches;
    must(lt_engine_open(&e, m, &o), "engine");
    for (int k = 0; k < n / FLEET_CHOICES; k += AT_ONCE) {
        lt_request one = *r;
        one.n_choices = FLEET_CHOICES;
        for (int i = 0; i < AT_ONCE; i++) {
            one.sampling.seed = (uint64_t)(k + i);
            send(e, &one, &answers[i]);
        }
        receive_all(e, AT_ONCE, 0);
        for (int c = 0; c < AT_ONCE * FLEET_CHOICES; c++) {
            const int32_t *t = answers[c / FLEET_CHOICES].choices[c % FLEET_CHOICES].ids;
            counts[(t[0] * V + t[1]) * V + t[2]]++;
        }
    }
    lt_engine_get_stats(e, &stats);
    assert_no_page_held(e);
    lt_engine_close(e);
    assert_true(stats.drafted > n); /* Of 2 places for each text. */
    assert_true(branches == 1 || stats.branch_accepted > n / 20);
    assert_int_equal(stats.accepted_at[0] + stats.accepted_at[1], stats.accepted);
    return (double)stats.accepted / (double)stats.drafted;
}

static void texts_have_the_distribution_of_the_model(void **state) {
    static const int32_t prompt[] = {1, 5, 3, 8, 2};
    lt_model *m = model_of_seed(7, V), *draft = model_of_seed(8, V);
    (void)state;
    for (int i = 0; i < 4; i++) { /* Without and with branches. */
        static double law[CELLS];
        int64_t counts[CELLS] = {0};
        lt_request r = lt_request_defaults();
        const int n = (i % 2 == 0 ? 98 : 20) * 1024;
        double x = 0, rest = 0, n_rest = 0, accepted;
        int degrees = -1;
        r.prompt = prompt;
        r.n_prompt = 5;
        r.max_tokens = TOKENS + 1;
        r.ignore_eos = true;
        if (i % 2 == 1) {
            r.sampling.temperature = 0.7;
            r.sampling.top_p = 0.8;
            r.sampling.presence = 0.5;
        }
        enumerate(m, prompt, 5, &r.sampling, law);
        accepted = sample(m, draft, &r, i < 2 ? 1 : i == 2 ? 2 : 4, n, counts);
        assert_true(accepted > (i < 2 ? 0.1 : 0.05) && accepted < 0.95);
        for (int c = 0; c < CELLS; c++) {
            const double expected = law[c] * n, off = (double)counts[c] - expected;
            assert_true(law[c] > 0 || counts[c] == 0);
            x += expected >= 5 ? off * off / expected : 0;
            degrees += expected >= 5;
            rest += expected >= 5 ? 0 : expected;
            n_rest += expected >= 5 ? 0 : (double)counts[c];
        }
        x += rest >= 5 ? (n_rest - rest) * (n_rest - rest) / rest : 0;
        degrees += rest >= 5;
        if (degrees < 10 || x > most_chi_square(degrees)) {
            fail_msg("case %d: chi-square %.1f of %d degrees", i, x, degrees);
        }
    }
    lt_model_close(m);
    lt_model_close(draft);
}

/* A draft model with the same weights is always right, whatever its distribution is used for; it
 * may have fewer ids; texts that requested it have no drafts, or keep the text of their seed. */
static void requests_choose_their_drafts(void **state) {
    static answer drafted, none, fixed, plain, again;
    const int32_t prompt[] = {1, 5, 3, 8, 2};
    lt_model *m = model_of_seed(7, 64), *small = model_of_seed(9, 40);
    const lt_model *drafts[] = {NULL, m, small};
    (void)state;
    for (int i = 0; i < 3; i++) {
        lt_engine_options o = lt_engine_defaults();
        lt_request r = lt_request_defaults();
        lt_engine_stats stats[4];
        lt_engine *e = NULL;
        o.max_seq = 64;
        o.draft = i > 0 ? &drafts[i] : NULL;
        o.speculate = i > 0 ? LT_SPECULATE_MODEL : LT_SPECULATE_NONE;
        o.draft_tokens = i > 0 ? 3 : 0;
        must(lt_engine_open(&e, m, &o), "engine");
        r.prompt = prompt;
        r.n_prompt = 5;
        r.max_tokens = 40;
        r.ignore_eos = true;
        for (int k = 0; k < 4; k++) {
            r.most_drafts = k == 1 ? 0 : LT_DRAFT_MOST;
            r.fixed_text = k == 2;
            r.sampling.temperature = k == 3 ? 0 : 1;
            send(e, &r,
                 i == 0   ? (k == 3 ? &again : &plain)
                 : k == 0 ? &drafted
                 : k == 1 ? &none
                 : k == 2 ? &fixed
                          : &drafted);
            receive_all(e, 1, 0);
            lt_engine_get_stats(e, &stats[k]);
        }
        lt_engine_close(e);
        if (i == 0) {
            continue;
        }
        assert_equal(&none.choices[0], &plain.choices[0], "no drafts");
        assert_equal(&fixed.choices[0], &plain.choices[0], "a fixed text");
        assert_equal(&drafted.choices[0], &again.choices[0], "the likeliest tokens");
        assert_true(stats[0].drafted > 25 && stats[1].drafted == stats[0].drafted &&
                    stats[2].drafted > stats[1].drafted);
        /* The rounding of few and of many rows differs, which is rarely seen in a text. */
        assert_true(i == 2 || stats[3].accepted > stats[3].drafted * 9 / 10);
    }
    lt_model_close(m);
    lt_model_close(small);
}

/* The draft model reads long prompts in pieces of at most LT_DRAFT_ROWS, and reads again what it
 * needs of one that other requests left in the prefix cache. */
static void long_prompts_are_read_in_pieces(void **state) {
    enum { N = 3, PROMPT = 300 };
    static answer plain[N], drafted[N];
    static int32_t prompt[N][PROMPT];
    lt_model *m = random_model(64, 512, LT_F32);
    const lt_model *draft = m;
    (void)state;
    for (int i = 0; i < N; i++) {
        fill_prompt(prompt[i], PROMPT, 64, 5);
        prompt[i][PROMPT / 2] = i == 2 ? 7 : prompt[i][PROMPT / 2]; /* Two are the same. */
    }
    for (int pass = 0; pass < 2; pass++) {
        lt_engine_options o = lt_engine_defaults();
        lt_engine_stats stats;
        lt_engine *e = NULL;
        o.max_seq = 400;
        o.deterministic = true;
        o.draft = pass == 1 ? &draft : NULL;
        o.speculate = pass == 1 ? LT_SPECULATE_MODEL : LT_SPECULATE_NONE;
        o.draft_tokens = pass == 1 ? 4 : 0;
        must(lt_engine_open(&e, m, &o), "engine");
        for (int i = 0; i < N; i++) {
            lt_request r = lt_request_defaults();
            r.prompt = prompt[i];
            r.n_prompt = PROMPT;
            r.max_tokens = 60;
            r.ignore_eos = true;
            send(e, &r, pass == 0 ? &plain[i] : &drafted[i]);
        }
        receive_all(e, N, 0);
        lt_engine_get_stats(e, &stats);
        assert_true(pass == 0 ||
                    (stats.drafted > N * 20 && stats.accepted > stats.drafted * 9 / 10));
        assert_no_page_held(e);
        lt_engine_close(e);
    }
    for (int i = 0; i < N; i++) {
        assert_equal(&drafted[i].choices[0], &plain[i].choices[0], "a long prompt");
    }
    lt_model_close(m);
}

/* An answer that agrees with its prediction has it as a draft; another one is not changed by
 * it. */
static void predictions_are_drafts(void **state) {
    static answer plain, told, wrong;
    const int32_t prompt[] = {1, 5, 3, 8, 2};
    lt_model *m = model_of_seed(7, 64);
    lt_engine_options o = lt_engine_defaults();
    lt_request r = lt_request_defaults();
    lt_engine_stats stats;
    lt_engine *e = NULL;
    (void)state;
    o.max_seq = 64;
    o.deterministic = true;
    o.draft_tokens = 4;
    o.speculate = LT_SPECULATE_NGRAM;
    must(lt_engine_open(&e, m, &o), "engine");
    r.prompt = prompt;
    r.n_prompt = 5;
    r.max_tokens = 40;
    r.ignore_eos = true;
    r.sampling.seed = 3;
    r.most_drafts = 0;
    send(e, &r, &plain);
    receive_all(e, 1, 0);
    r.most_drafts = LT_DRAFT_MOST;
    r.predicted = plain.choices[0].ids;
    r.n_predicted = 40;
    send(e, &r, &told);
    receive_all(e, 1, 0);
    lt_engine_get_stats(e, &stats);
    assert_equal(&told.choices[0], &plain.choices[0], "predicted");
    assert_true(stats.accepted == stats.drafted && stats.drafted >= 30);
    assert_true(told.drafted == stats.drafted && told.accepted == stats.accepted);
    r.sampling.seed = 4;
    send(e, &r, &wrong);
    receive_all(e, 1, 0);
    r.n_predicted = 0;
    send(e, &r, &told);
    receive_all(e, 1, 0);
    assert_equal(&told.choices[0], &wrong.choices[0], "another text");
    r.n_predicted = 1;
    r.predicted = &(int32_t){64};
    assert_int_equal(lt_engine_submit(e, &r, NULL, &told.id), LT_ERR_ARG);
    lt_engine_close(e);
    lt_model_close(m);
}

static void refuses(const lt_model *m, const lt_engine_options *o, lt_err want, const char *name) {
    lt_engine *e = NULL;
    if (lt_engine_open(&e, m, o) != want || strstr(lt_error_message(), name) == NULL) {
        fail_msg("'%s' is not '%s'", lt_error_message(), name);
    }
}

static void what_cannot_be_is_refused(void **state) {
    lt_model *m = model_of_seed(7, 64), *short_one = NULL;
    const lt_model *draft = m;
    lt_engine_options o = lt_engine_defaults();
    (void)state;
    o.max_seq = 64;
    o.speculate = LT_SPECULATE_MODEL;
    refuses(m, &o, LT_ERR_ARG, "there is no draft model");
    o.speculate = LT_SPECULATE_NGRAM;
    o.draft = &draft;
    refuses(m, &o, LT_ERR_ARG, "a draft model, but other drafts");
    must(lt_model_open(&short_one, "tests/golden/model/gpt2", NULL), "gpt2");
    o.speculate = LT_SPECULATE_MODEL;
    draft = short_one;
    o.max_seq = lt_model_get_spec(short_one)->max_seq + 1;
    refuses(m, &o, LT_ERR_UNSUPPORTED, "positions for");
    lt_model_close(m);
    lt_model_close(short_one);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rule_keeps_the_distribution),
        cmocka_unit_test(drafts_without_a_distribution_use_the_requests_random_numbers),
        cmocka_unit_test(texts_have_the_distribution_of_the_model),
        cmocka_unit_test(requests_choose_their_drafts),
        cmocka_unit_test(long_prompts_are_read_in_pieces),
        cmocka_unit_test(predictions_are_drafts),
        cmocka_unit_test(what_cannot_be_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
