/* Guidance by a negative prompt: greedy texts and log-probabilities are those of the formula
 * applied to transformers' logits (tools/make_guide_goldens.py), alone, among others and with
 * few pages; the same bits each time, also of a text that is continued; no page is held
 * afterwards. */
#include "serve/mix.h"
#include "unit/serve/fleet.h"

#define MODEL "tests/golden/model/llama3"
enum { CASES = 5, TOKENS = 20 };

typedef struct {
    int32_t prompt[64], negative[64], want[TOKENS];
    double logprobs[TOKENS];
    lt_request r;
} guided;

static json_t *goldens;
static guided cases[CASES];

static int open_all(void **state) {
    (void)state;
    must(lt_json_load(&goldens, "tests/golden/serve/guides/guidance.json", 1 << 20), "golden");
    for (size_t i = 0; i < CASES; i++) {
        guided *g = &cases[i];
        const json_t *row = json_array_get(goldens, i);
        g->r = lt_request_defaults();
        g->r.prompt = g->prompt;
        g->r.n_prompt = read_ids(json_object_get(row, "prompt"), g->prompt);
        g->r.max_tokens = read_ids(json_object_get(row, "tokens"), g->want);
        assert_int_equal(g->r.max_tokens, TOKENS);
        g->r.ignore_eos = true;
        g->r.logprobs = 2;
        g->r.sampling.temperature = 0;
        g->r.guidance = (lt_guidance){
            .on = true,
            .prompt = g->negative,
            .n_prompt = read_ids(json_object_get(row, "negative"), g->negative),
            .scale = (float)json_number_value(json_object_get(row, "scale")),
            .plausibility = (float)json_number_value(json_object_get(row, "plausibility"))};
        for (size_t k = 0; k < TOKENS; k++) {
            g->logprobs[k] = json_real_value(json_array_get(json_object_get(row, "logprobs"), k));
        }
    }
    return 0;
}

static int close_all(void **state) {
    (void)state;
    json_decref(goldens);
    return 0;
}

static void check_case(const guided *g, const answer *a) {
    const continuation *c = &a->choices[0];
    assert_true(a->done && c->finish == LT_FINISH_LENGTH && c->n == TOKENS);
    assert_memory_equal(c->ids, g->want, sizeof g->want);
    for (int k = 0; k < TOKENS; k++) {
        assert_true(fabs((double)c->logprobs[k] - g->logprobs[k]) < 2e-4);
    }
}

static lt_engine *open_engine(const lt_model *m, int64_t pages, bool speculate) {
    lt_engine_options o = lt_engine_defaults();
    lt_engine *e = NULL;
    o.max_seq = m->spec.max_seq < 64 ? m->spec.max_seq : 64;
    o.page_tokens = 16;
    o.deterministic = true;
    o.speculate = speculate;
    o.cache_bytes = pages > 0 ? bytes_of_pages(m, &o, pages) : 0;
    must(lt_engine_open(&e, m, &o), "engine");
    return e;
}

static void texts_are_those_of_the_formula(void **state) {
    static answer answers[CASES];
    lt_model *m = NULL;
    lt_engine *e;
    (void)state;
    must(lt_model_open(&m, MODEL, NULL), MODEL);
    e = open_engine(m, 0, false);
    for (int i = 0; i < CASES; i++) {
        send(e, &cases[i].r, &answers[i]);
        receive_all(e, 1, 0);
        check_case(&cases[i], &answers[i]);
    }
    assert_no_page_held(e);
    lt_engine_close(e);
    lt_model_close(m);
}

static void scale_one_on(const lt_backend *b) {
    static answer plain, same;
    lt_request r = cases[0].r;
    lt_model *m = NULL;
    lt_engine *e;
    must(lt_model_open(
             &m, MODEL,
             &(lt_model_options){.dtype = b != NULL ? LT_BF16 : LT_F32, .device = device_of(b)}),
         MODEL);
    e = open_engine(m, 0, false);
    r.sampling.temperature = 1;
    r.sampling.seed = 5;
    r.guidance.scale = 1;
    send(e, &r, &same);
    r.guidance.on = false;
    send(e, &r, &plain);
    receive_all(e, 2, 0);
    assert_same(&plain.choices[0], &same.choices[0], "scale 1");
    assert_no_page_held(e);
    lt_engine_close(e);
    lt_model_close(m);
}

static void a_scale_of_one_changes_nothing(void **state) {
    (void)state;
    scale_one_on(NULL);
}

static void a_scale_of_one_on_a_gpu(void **state) {
    (void)state;
    if (gpu_backend() == NULL) {
        skip();
    }
    scale_one_on(gpu_backend());
}

/* Both sequences of each request, preempted or not, and texts that are continued after any number
 * of tokens. */
static void requests_keep_their_bits(void **state) {
    enum { OTHERS = 8 };
    static answer alone[CASES], among[2][CASES], others[OTHERS], rest;
    static int32_t prompt[64 + TOKENS];
    lt_engine_stats stats;
    uint64_t version;
    lt_model *m = NULL;
    (void)state;
    must(lt_model_open(&m, MODEL, NULL), MODEL);
    for (int few = 0; few < 2; few++) {
        lt_engine *e = open_engine(m, few ? 16 : 0, few);
        if (few) { /* All begin at once, so that pages are few whatever the order of threads. */
            must(lt_engine_hold(e, LT_HOLD_FINISH), "hold");
        }
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < CASES; i++) {
                send(e, &cases[i].r, few ? &among[round][i] : &alone[i]);
                if (!few) {
                    receive_all(e, 1, 0);
                }
            }
        }
        for (int i = 0; i < OTHERS && few; i++) {
            lt_request r = lt_request_defaults();
            r.prompt = cases[i % CASES].prompt;
            r.n_prompt = 5;
            r.max_tokens = 40;
            r.ignore_eos = true;
            send(e, &r, &others[i]);
        }
        if (few) {
            must(lt_engine_refresh(e, &version), "go on");
            receive_all(e, 2 * CASES + OTHERS, 0);
        }
        lt_engine_get_stats(e, &stats);
        assert_true(!few || stats.preemptions > 0);
        assert_no_page_held(e);
        for (int i = 0; i < 2 * CASES && few; i++) {
            const continuation *c = &among[i / CASES][i % CASES].choices[0];
            assert_same(c, &alone[i % CASES].choices[0], "among others");
            assert_memory_equal(c->logprobs, alone[i % CASES].choices[0].logprobs,
                                TOKENS * sizeof(float));
        }
        for (int given = 1; given < TOKENS && !few; given += 6) {
            lt_request r = cases[1].r;
            memcpy(prompt, r.prompt, (size_t)r.n_prompt * sizeof *prompt);
            memcpy(prompt + r.n_prompt, alone[1].choices[0].ids, (size_t)given * sizeof *prompt);
            r.prompt = prompt;
            r.n_prompt += given;
            r.n_given = given;
            send(e, &r, &rest);
            receive_all(e, 1, 0);
            assert_int_equal(rest.choices[0].n, TOKENS - given);
            assert_memory_equal(rest.choices[0].ids, alone[1].choices[0].ids + given,
                                (size_t)(TOKENS - given) * sizeof(int32_t));
            assert_memory_equal(rest.choices[0].logprobs, alone[1].choices[0].logprobs + given,
                                (size_t)(TOKENS - given) * sizeof(float));
        }
        lt_engine_close(e);
    }
    lt_model_close(m);
}

/* GPT-2 with a final norm that gives every row 1 in its first place, where the head's row for id
 * `out` (the head is the embedding) has `value`. */
static void guide_without(int32_t out, float value, lt_request r, answer *a) {
    lt_model *m = NULL;
    lt_engine *e;
    must(lt_model_open(&m, "tests/golden/model/gpt2", NULL), "gpt2");
    float *gain = lt_param_view(&m->table, LT_PARAM_FINAL_NORM, 0, &m->weights).data;
    float *bias = lt_param_view(&m->table, LT_PARAM_FINAL_NORM_BIAS, 0, &m->weights).data;
    const lt_tensor head = lt_param_view(&m->table, LT_PARAM_EMBED, 0, &m->weights);
    gain[0] = 0;
    bias[0] = 1;
    ((float *)head.data)[out * head.shape[1]] = value;
    e = open_engine(m, 0, false);
    send(e, &r, a);
    receive_all(e, 1, 0);
    lt_engine_close(e);
    lt_model_close(m);
}

static bool is_in(const int32_t *ids, size_t n, int32_t id) {
    size_t i = 0;
    while (i < n && ids[i] != id) {
        i++;
    }
    return i < n;
}

/* A logit of -inf in both rows, whose difference is not a number. A difference of two log_softmax
 * only shifts with their sums, so the greedy text is that of a model with a finite logit there,
 * if the request excludes the id. */
static void a_token_that_both_rule_out_is_not_chosen(void **state) {
    static const int32_t text[] = {11, 4, 43, 33, 38, 35, 18, 26};
    static answer free, barred, ruled_out;
    lt_logit_bias never = {.bias = -LT_BIAS_MOST};
    lt_request r = cases[0].r;
    (void)state;
    r.prompt = text;
    r.n_prompt = 5;
    r.max_tokens = 12;
    r.guidance.prompt = text + 5;
    r.guidance.n_prompt = 3;
    r.guidance.plausibility = 0;
    guide_without(1, 0, r, &free);
    /* An id of the answer that is in no prompt, because its embedding will not be finite. */
    int at = 0;
    while (at < 12 && is_in(text, sizeof text / sizeof *text, free.choices[0].ids[at])) {
        at++;
    }
    assert_true(at < 12);
    const int32_t out = free.choices[0].ids[at];
    guide_without(out, -INFINITY, r, &ruled_out);
    never.id = out;
    r.sampling.bias = &never;
    r.sampling.n_bias = 1;
    guide_without(out, 0, r, &barred);
    assert_int_equal(barred.choices[0].n, 12);
    assert_same(&barred.choices[0], &ruled_out.choices[0], "ruled out by both");
}

/* The term added for a model that rules a token out is never NaN. */
static void a_term_of_a_mixture_is_finite_or_excludes(void **state) {
    (void)state;
    assert_true(lt_mix_term(0.5, -3, -1) == -1.5 && lt_mix_term(-2, -3, -1) == 6);
    assert_true(lt_mix_term(0.5, -(double)INFINITY, -1) == -(double)INFINITY);
    assert_true(lt_mix_term(-2, -(double)INFINITY, -1) == 2);
    assert_true(lt_mix_term(0, -(double)INFINITY, -1) == 0);
}

static void a_cancelled_request_leaves_nothing(void **state) {
    static answer answers[2];
    lt_model *m = NULL;
    lt_engine *e;
    (void)state;
    must(lt_model_open(&m, MODEL, NULL), MODEL);
    e = open_engine(m, 0, false);
    for (int k = 0; k < 60; k++) {
        send(e, &cases[k % CASES].r, &answers[0]);
        send(e, &cases[(k + 1) % CASES].r, &answers[1]);
        usleep((unsigned)(k * 29 % 500));
        lt_engine_cancel(e, answers[0].id);
        receive_all(e, 2, 0);
        check_case(&cases[(k + 1) % CASES], &answers[1]);
    }
    assert_no_page_held(e);
    lt_engine_close(e);
    lt_model_close(m);
}

static void faults_are_refused(void **state) {
    lt_request r[6];
    lt_model *m = NULL;
    lt_engine *e;
    uint64_t id;
    (void)state;
    must(lt_model_open(&m, MODEL, NULL), MODEL);
    e = open_engine(m, 0, false);
    for (int i = 0; i < 6; i++) {
        r[i] = cases[0].r;
    }
    r[0].n_choices = 2;
    r[1].guidance.scale = NAN;
    r[2].guidance.plausibility = 1.5f;
    r[3].beam.on = true;
    r[4].max_tokens = 56; /* 9 and 56 tokens of 64. */
    cases[0].negative[1] = 1000;
    for (int i = 0; i < 6; i++) {
        assert_int_equal(lt_engine_submit(e, &r[i], NULL, &id), LT_ERR_ARG);
    }
    cases[0].negative[1] = 26;
    lt_engine_close(e);
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_those_of_the_formula),
        cmocka_unit_test(a_scale_of_one_changes_nothing),
        cmocka_unit_test(a_scale_of_one_on_a_gpu),
        cmocka_unit_test(requests_keep_their_bits),
        cmocka_unit_test(a_token_that_both_rule_out_is_not_chosen),
        cmocka_unit_test(a_term_of_a_mixture_is_finite_or_excludes),
        cmocka_unit_test(a_cancelled_request_leaves_nothing),
        cmocka_unit_test(faults_are_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
