/* Beam search: texts and scores are those of transformers' generate
 * (tools/make_guide_goldens.py), alone, among others, and with so few pages that beams are
 * preempted; the same bits each time; no page is held afterwards. What cannot be combined with it
 * is refused. */
#define FLEET_CHOICES 8
#include "unit/serve/fleet.h"

#define MODEL "tests/golden/model/llama3"
enum { CASES = 8, MOST = 8 };

typedef struct {
    int32_t prompt[64], eos[MOST];
    const json_t *row;
    lt_request r;
} search;

static json_t *goldens;
static search searches[CASES];

static int open_all(void **state) {
    (void)state;
    must(lt_json_load(&goldens, "tests/golden/serve/guides/beam.json", 1 << 20), "golden");
    assert_int_equal(json_array_size(goldens), CASES);
    for (size_t i = 0; i < CASES; i++) {
        search *s = &searches[i];
        const json_t *early;
        s->row = json_array_get(goldens, i);
        early = json_object_get(s->row, "early_stopping");
        s->r = lt_request_defaults();
        s->r.prompt = s->prompt;
        s->r.n_prompt = read_ids(json_object_get(s->row, "prompt"), s->prompt);
        s->r.stop_ids = s->eos;
        s->r.n_stop_ids = read_ids(json_object_get(s->row, "eos"), s->eos);
        s->r.ignore_eos = true;
        s->r.max_tokens = json_integer_value(json_object_get(s->row, "max_tokens"));
        s->r.n_choices = json_integer_value(json_object_get(s->row, "width"));
        s->r.logprobs = 2;
        s->r.beam = (lt_beam_search){
            .on = true,
            .length_penalty = json_number_value(json_object_get(s->row, "length_penalty")),
            .stop = json_is_true(early)     ? LT_BEAM_FIRST
                    : json_is_string(early) ? LT_BEAM_NEVER
                                            : LT_BEAM_USUAL};
    }
    return 0;
}

static int close_all(void **state) {
    (void)state;
    json_decref(goldens);
    return 0;
}

static double score_of(const continuation *c, double penalty) {
    double sum = 0;
    for (int64_t i = 0; i < c->n; i++) {
        sum += (double)c->logprobs[i];
    }
    return sum / pow((double)c->n, penalty);
}

static void check_search(const search *s, const answer *a) {
    const json_t *tokens = json_object_get(s->row, "tokens"),
                 *scores = json_object_get(s->row, "scores");
    assert_true(a->done);
    for (size_t k = 0; k < json_array_size(tokens); k++) {
        const continuation *c = &a->choices[k];
        int32_t want[FLEET_TOKENS];
        const int64_t n = read_ids(json_array_get(tokens, k), want);
        const bool ends = c->finish == LT_FINISH_STOP_ID;
        const double score = score_of(c, s->r.beam.length_penalty);
        assert_int_equal(c->n, n);
        assert_memory_equal(c->ids, want, (size_t)n * sizeof *want);
        assert_true(ends || (c->finish == LT_FINISH_LENGTH && n == s->r.max_tokens));
        assert_true(fabs(score - json_real_value(json_array_get(scores, k))) <
                    1e-4 * (1 + fabs(score)));
    }
}

static lt_engine *open_engine(const lt_model *m, int64_t pages, int64_t max_running,
                              bool speculate) {
    lt_engine_options o = lt_engine_defaults();
    lt_engine *e = NULL;
    o.max_seq = 48;
    o.page_tokens = 16;
    o.deterministic = true;
    o.max_running = max_running;
    o.speculate = speculate;
    o.cache_bytes = pages > 0 ? bytes_of_pages(m, &o, pages) : 0;
    must(lt_engine_open(&e, m, &o), "engine");
    return e;
}

static void texts_are_those_of_transformers(void **state) {
    static answer answers[CASES];
    lt_model *m = NULL;
    lt_engine *e;
    (void)state;
    must(lt_model_open(&m, MODEL, NULL), MODEL);
    e = open_engine(m, 0, 64, false);
    for (int i = 0; i < CASES; i++) {
        send(e, &searches[i].r, &answers[i]);
        receive_all(e, 1, 0);
        check_search(&searches[i], &answers[i]);
    }
    assert_no_page_held(e);
    lt_engine_close(e);
    lt_model_close(m);
}

/* If no token ends a text, each beam gets one token in each step except the last, whose tokens
 * only end texts. */
static void tokens_are_counted(void **state) {
    static answer a;
    lt_request r = searches[3].r;
    lt_engine_stats stats;
    lt_model *m = NULL;
    lt_engine *e;
    (void)state;
    must(lt_model_open(&m, MODEL, NULL), MODEL);
    e = open_engine(m, 0, 64, false);
    r.n_stop_ids = 0;
    send(e, &r, &a);
    receive_all(e, 1, 0);
    lt_engine_get_stats(e, &stats);
    assert_int_equal(stats.new_tokens, r.n_choices * (r.max_tokens - 1));
    for (int64_t i = 0; i < r.n_choices; i++) {
        assert_int_equal(a.choices[i].n, r.max_tokens);
    }
    lt_engine_close(e);
    lt_model_close(m);
}

/* All at once, twice, beside sampled texts, with few places and hardly more pages than the widest
 * search needs: beams are preempted and wait for each other. The bits are those of each search
 * alone. */
static void searches_share_a_small_pool(void **state) {
    enum { OTHERS = 6 };
    static answer alone[CASES], both[2][CASES], others[2][OTHERS];
    lt_engine_stats stats;
    lt_model *m = NULL;
    lt_engine *e;
    (void)state;
    must(lt_model_open(&m, MODEL, NULL), MODEL);
    e = open_engine(m, 0, 64, false);
    for (int i = 0; i < CASES; i++) {
        send(e, &searches[i].r, &alone[i]);
        receive_all(e, 1, 0);
    }
    lt_engine_close(e);
    for (int speculate = 0; speculate < 2; speculate++) {
        e = open_engine(m, 8 * 4, 24, speculate == 1);
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < CASES; i++) {
                send(e, &searches[i].r, &both[round][i]);
            }
            for (int i = 0; i < OTHERS; i++) {
                lt_request r = lt_request_defaults();
                r.prompt = searches[i].prompt;
                r.n_prompt = 5;
                r.n_choices = 3;
                r.max_tokens = 40;
                r.ignore_eos = true;
                r.sampling.seed = (uint64_t)i;
                send(e, &r, &others[round][i]);
            }
        }
        receive_all(e, 2 * (CASES + OTHERS), 0);
        for (int i = 0; i < 2 * CASES; i++) {
            const answer *a = &both[i / CASES][i % CASES];
            check_search(&searches[i % CASES], a);
            for (int64_t k = 0; k < searches[i % CASES].r.n_choices; k++) {
                const continuation *c = &a->choices[k], *want = &alone[i % CASES].choices[k];
                assert_same(c, want, "among others");
                assert_memory_equal(c->logprobs, want->logprobs, (size_t)c->n * sizeof(float));
                assert_memory_equal(c->tops, want->tops, (size_t)c->n * sizeof *c->tops);
            }
        }
        lt_engine_get_stats(e, &stats);
        assert_true(stats.preemptions > 0); /* Otherwise the test proves little. */
        assert_no_page_held(e);
        lt_engine_close(e);
    }
    lt_model_close(m);
}

/* Nothing else runs: if all that run wait for beams without pages, the last ones give up
 * theirs. */
static void searches_do_not_block_each_other(void **state) {
    enum { N = 24, WIDEST = 6 };
    static answer answers[N];
    lt_engine_stats stats;
    lt_model *m = NULL;
    lt_engine *e;
    (void)state;
    must(lt_model_open(&m, MODEL, NULL), MODEL);
    e = open_engine(m, 8 * 4, 64, false);
    for (int i = 0; i < N; i++) {
        send(e, &searches[i % 3 == 2 ? i % CASES : WIDEST].r, &answers[i]);
    }
    receive_all(e, N, 0);
    for (int i = 0; i < N; i++) {
        check_search(&searches[i % 3 == 2 ? i % CASES : WIDEST], &answers[i]);
    }
    lt_engine_get_stats(e, &stats);
    assert_true(stats.preemptions > 0);
    assert_no_page_held(e);
    lt_engine_close(e);
    lt_model_close(m);
}

static void a_cancelled_search_leaves_nothing(void **state) {
    static answer answers[CASES];
    lt_model *m = NULL;
    lt_engine *e;
    (void)state;
    must(lt_model_open(&m, MODEL, NULL), MODEL);
    e = open_engine(m, 0, 64, false);
    for (int k = 0; k < 60; k++) {
        for (int i = 0; i < 3; i++) {
            send(e, &searches[3 * (k % 2) + i].r, &answers[i]);
        }
        usleep((unsigned)(k * 37 % 500));
        lt_engine_cancel(e, answers[0].id);
        lt_engine_cancel_choice(e, answers[1].id, 1); /* And with it the others. */
        receive_all(e, 3, 0);
        check_search(&searches[3 * (k % 2) + 2], &answers[2]);
    }
    assert_no_page_held(e);
    lt_engine_close(e);
    lt_model_close(m);
}

/* On a device, in 16 bits: texts come in order of falling scores, and their log-probabilities are
 * those that the same texts have as prompts. */
static void texts_on_a_gpu(void **state) {
    static answer found[CASES], again;
    static int32_t prompt[128];
    lt_model *m = NULL;
    lt_engine *e;
    (void)state;
    if (gpu_backend() == NULL) {
        skip();
    }
    must(lt_model_open(&m, MODEL,
                       &(lt_model_options){.dtype = LT_BF16, .device = device_of(gpu_backend())}),
         MODEL);
    e = open_engine(m, 0, 64, false);
    for (int i = 0; i < CASES; i++) {
        send(e, &searches[i].r, &found[i]);
    }
    receive_all(e, CASES, 0);
    for (int i = 0; i < CASES; i++) {
        const search *s = &searches[i];
        for (int64_t k = 0; k < s->r.n_choices; k++) {
            const continuation *c = &found[i].choices[k];
            lt_request r = lt_request_defaults();
            assert_true(c->n > 0);
            assert_true(k == 0 || score_of(c, s->r.beam.length_penalty) <=
                                      score_of(c - 1, s->r.beam.length_penalty));
            memcpy(prompt, s->prompt, (size_t)s->r.n_prompt * sizeof *prompt);
            memcpy(prompt + s->r.n_prompt, c->ids, (size_t)c->n * sizeof *prompt);
            r.prompt = prompt;
            r.n_prompt = s->r.n_prompt + c->n;
            r.max_tokens = 1;
            r.prompt_logprobs = 0;
            send(e, &r, &again);
            receive_all(e, 1, 0);
            for (int64_t t = 0; t < c->n; t++) {
                assert_true(fabs((double)(c->logprobs[t] -
                                          again.prompt_logprobs[s->r.n_prompt + t])) < 0.1);
            }
        }
    }
    assert_no_page_held(e);
    lt_engine_close(e);
    lt_model_close(m);
}

static void what_cannot_be_combined_is_refused(void **state) {
    const lt_logit_bias bias = {1, 1};
    lt_request r[9];
    lt_model *m = NULL;
    lt_engine *e;
    uint64_t id;
    (void)state;
    must(lt_model_open(&m, MODEL, NULL), MODEL);
    e = open_engine(m, 8, 4, false);
    for (int i = 0; i < 9; i++) {
        r[i] = searches[0].r;
    }
    r[0].sampling.bias = &bias;
    r[0].sampling.n_bias = 1;
    r[1].sampling.repetition = 1.1;
    r[2].min_tokens = 1;
    r[3].n_given = 1;
    r[4].beam.length_penalty = NAN;
    r[5].n_choices = 20; /* And one ending. */
    r[6].n_choices = 5;  /* There are 4 places. */
    r[7].n_choices = 4;  /* 4 times 3 pages, of 8. */
    r[7].max_tokens = 30;
    r[8].sampling.watermark = lt_watermark_defaults(LT_WATERMARK_GREEN);
    for (int i = 0; i < 9; i++) {
        assert_int_equal(lt_engine_submit(e, &r[i], NULL, &id), LT_ERR_ARG);
        assert_non_null(strstr(lt_error_message(), "beam search"));
    }
    lt_engine_close(e);
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_those_of_transformers),
        cmocka_unit_test(tokens_are_counted),
        cmocka_unit_test(searches_share_a_small_pool),
        cmocka_unit_test(searches_do_not_block_each_other),
        cmocka_unit_test(a_cancelled_search_leaves_nothing),
        cmocka_unit_test(texts_on_a_gpu),
        cmocka_unit_test(what_cannot_be_combined_is_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
