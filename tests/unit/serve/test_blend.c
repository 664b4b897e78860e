/* Logits of several models in one text: greedy texts, log-probabilities and the distribution of
 * the first token are those of the formula applied to transformers' logits
 * (tools/make_blend_goldens.py), alone, among others and with few pages; the same bits each time,
 * also of a text that is continued; no page is held afterwards. */
#define FLEET_CHOICES 128
#include "unit/serve/fleet.h"

#define SERVED "tests/golden/model/llama3"
enum { CASES = 6, TOKENS = 16, V = 64, BESIDE = 2 };
static const char *const names[BESIDE] = {"tests/golden/model/qwen3", "tests/golden/model/mistral"};

typedef struct {
    int32_t prompt[64], want[TOKENS];
    double logprobs[TOKENS], law[V];
    lt_request r;
} blended;

static blended cases[CASES];
static lt_model *served, *beside[BESIDE];

static void read_numbers(const json_t *list, double *out, size_t n) {
    assert_int_equal(json_array_size(list), n);
    for (size_t i = 0; i < n; i++) {
        out[i] = json_number_value(json_array_get(list, i));
    }
}

static int open_all(void **state) {
    json_t *goldens;
    (void)state;
    must(lt_json_load(&goldens, "tests/golden/serve/guides/blend.json", 1 << 20), "golden");
    for (size_t i = 0; i < CASES; i++) {
        blended *b = &cases[i];
        const json_t *row = json_array_get(goldens, i), *models = json_object_get(row, "models");
        b->r = lt_request_defaults();
        b->r.prompt = b->prompt;
        b->r.n_prompt = read_ids(json_object_get(row, "prompt"), b->prompt);
        b->r.max_tokens = read_ids(json_object_get(row, "tokens"), b->want);
        b->r.ignore_eos = true;
        b->r.logprobs = 2;
        b->r.sampling.temperature = 0;
        b->r.blend.n = (int)json_array_size(models);
        b->r.blend.own = (float)json_number_value(json_object_get(row, "own"));
        b->r.blend.plausibility = (float)json_number_value(json_object_get(row, "plausibility"));
        for (size_t k = 0; k < json_array_size(models); k++) {
            const json_t *weights = json_object_get(row, "weights");
            b->r.blend.model[k] = (int)json_integer_value(json_array_get(models, k));
            b->r.blend.weight[k] = (float)json_number_value(json_array_get(weights, k));
        }
        read_numbers(json_object_get(row, "logprobs"), b->logprobs, TOKENS);
        read_numbers(json_object_get(row, "law"), b->law, V);
    }
    json_decref(goldens);
    must(lt_model_open(&served, SERVED, NULL), SERVED);
    for (int k = 0; k < BESIDE; k++) {
        must(lt_model_open(&beside[k], names[k], NULL), names[k]);
    }
    return 0;
}

static int close_all(void **state) {
    (void)state;
    lt_model_close(served);
    lt_model_close(beside[0]);
    lt_model_close(beside[1]);
    return 0;
}

static lt_engine *open_engine(int64_t pages, bool speculate, int64_t step_tokens) {
    lt_engine_options o = lt_engine_defaults();
    lt_engine *e = NULL;
    o.max_seq = 64;
    o.max_running = 128;
    o.step_tokens = step_tokens;
    o.page_tokens = 16;
    o.deterministic = true;
    o.speculate = speculate;
    o.beside = (const lt_model *const *)beside;
    o.n_beside = BESIDE;
    o.cache_bytes = pages > 0 ? bytes_of_pages(served, &o, pages) : 0;
    must(lt_engine_open(&e, served, &o), "engine");
    return e;
}

static void check_case(const blended *b, const continuation *c) {
    assert_true(c->finish == LT_FINISH_LENGTH && c->n == TOKENS);
    assert_memory_equal(c->ids, b->want, sizeof b->want);
    for (int k = 0; k < TOKENS; k++) {
        assert_true(fabs((double)c->logprobs[k] - b->logprobs[k]) < 2e-4);
    }
}

static void texts_are_those_of_the_formula(void **state) {
    static answer a;
    lt_engine *e = open_engine(0, false, 0);
    (void)state;
    /* The second round takes the prompt from the prefix cache. */
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < CASES; i++) {
            send(e, &cases[i].r, &a);
            receive_all(e, 1, 0);
            check_case(&cases[i], &a.choices[0]);
            assert_true(a.cached_tokens == (round == 0 || cases[i].r.n_prompt < 17 ? 0 : 16));
        }
    }
    assert_no_page_held(e);
    lt_engine_close(e);
}

/* Plain requests and requests of other models leave no pages that one could share. */
static void pages_are_shared_with_the_same_models_only(void **state) {
    static answer a;
    lt_engine *e = open_engine(0, false, 0);
    lt_request plain = cases[3].r, one = cases[3].r;
    (void)state;
    plain.blend = (lt_blend){0};
    one.blend = (lt_blend){.n = 1, .model = {1}, .own = 1, .weight = {1}};
    for (const lt_request *r = &plain; r != NULL; r = r == &plain ? &one : NULL) {
        send(e, r, &a);
        receive_all(e, 1, 0);
        assert_int_equal(a.cached_tokens, 0);
    }
    send(e, &cases[3].r, &a);
    receive_all(e, 1, 0);
    assert_int_equal(a.cached_tokens, 0);
    check_case(&cases[3], &a.choices[0]);
    lt_engine_close(e);
}

/* The first tokens of 40 x 128 choices: chi-square against the distribution. */
static void draws_follow_the_distribution(void **state) {
    static answer a;
    lt_engine *e = open_engine(0, false, 0);
    (void)state;
    for (int i = 0; i < 3; i++) {
        int64_t counts[V] = {0};
        double x = 0, rest = 0, n_rest = 0;
        int degrees = -1;
        for (int k = 0; k < 40; k++) {
            lt_request r = cases[i].r;
            r.sampling.temperature = 1;
            r.sampling.seed = (uint64_t)k;
            r.n_choices = FLEET_CHOICES;
            r.max_tokens = 1;
            send(e, &r, &a);
            receive_all(e, 1, 0);
            for (int c = 0; c < FLEET_CHOICES; c++) {
                counts[a.choices[c].ids[0]]++;
            }
        }
        for (int id = 0; id < V; id++) { /* Rare ids count as one class. */
            const double expected = cases[i].law[id] * 40 * FLEET_CHOICES;
            const double off = (double)counts[id] - expected;
            assert_true(cases[i].law[id] > 0 || counts[id] == 0);
            if (expected >= 5) {
                x += off * off / expected;
                degrees++;
            } else {
                rest += expected;
                n_rest += (double)counts[id];
            }
        }
        if (rest >= 5) {
            x += (n_rest - rest) * (n_rest - rest) / rest;
            degrees++;
        }
        /* Its 0.9999 quantile is below this (Wilson and Hilferty). */
        const double root = 1 - 2.0 / (9 * degrees) + 3.72 * sqrt(2.0 / (9 * degrees));
        assert_true(degrees > 3 && x < degrees * root * root * root);
    }
    assert_no_page_held(e);
    lt_engine_close(e);
}

/* Prompts in pieces, preempted or not, with drafts for the others, and texts that are continued
 * after any number of tokens. */
static void requests_keep_their_bits(void **state) {
    enum { OTHERS = 8 };
    static answer alone[CASES], among[2][CASES], others[OTHERS], rest;
    static int32_t prompt[64 + TOKENS];
    lt_engine_stats stats;
    (void)state;
    for (int few = 0; few < 2; few++) {
        lt_engine *e = open_engine(few ? 14 : 0, few, few ? 129 : 0);
        must(few ? lt_engine_hold(e, LT_HOLD_FINISH) : LT_OK, "hold"); /* All of them at once. */
        for (int round = 0; round < 1 + few; round++) {
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
        must(few ? lt_engine_refresh(e, NULL) : LT_OK, "refresh");
        receive_all(e, few ? 2 * CASES + OTHERS : 0, 0);
        lt_engine_get_stats(e, &stats);
        assert_true(!few || stats.preemptions > 0);
        assert_no_page_held(e);
        for (int i = 0; i < 2 * CASES && few; i++) {
            assert_equal(&among[i / CASES][i % CASES].choices[0], &alone[i % CASES].choices[0],
                         "among others");
        }
        for (int given = 1; given < TOKENS && !few; given += 6) {
            lt_request r = cases[2].r;
            memcpy(prompt, r.prompt, (size_t)r.n_prompt * sizeof *prompt);
            memcpy(prompt + r.n_prompt, alone[2].choices[0].ids, (size_t)given * sizeof *prompt);
            r.prompt = prompt;
            r.n_prompt += given;
            r.n_given = given;
            send(e, &r, &rest);
            receive_all(e, 1, 0);
            assert_int_equal(rest.choices[0].n, TOKENS - given);
            assert_memory_equal(rest.choices[0].ids, alone[2].choices[0].ids + given,
                                (size_t)(TOKENS - given) * sizeof(int32_t));
        }
        lt_engine_close(e);
    }
}

/* Several choices fork after a prompt that ends inside a page. */
static void forks_go_their_own_ways(void **state) {
    static answer all, one;
    lt_engine *e = open_engine(0, false, 0);
    lt_request r = cases[1].r;
    (void)state;
    r.sampling.temperature = 1;
    r.sampling.seed = 4;
    r.n_choices = 8;
    send(e, &r, &all);
    receive_all(e, 1, 0);
    for (int i = 0; i < 8; i++) {
        lt_request alone = r;
        alone.n_choices = 1;
        alone.first_choice = i;
        send(e, &alone, &one);
        receive_all(e, 1, 0);
        assert_equal(&one.choices[0], &all.choices[i], "a fork");
    }
    assert_no_page_held(e);
    lt_engine_close(e);
}

static void a_cancelled_request_leaves_nothing(void **state) {
    static answer answers[2];
    lt_engine *e = open_engine(0, false, 0);
    (void)state;
    for (int k = 0; k < 60; k++) {
        send(e, &cases[k % CASES].r, &answers[0]);
        send(e, &cases[(k + 1) % CASES].r, &answers[1]);
        usleep((unsigned)(k * 29 % 500));
        lt_engine_cancel(e, answers[0].id);
        receive_all(e, 2, 0);
        check_case(&cases[(k + 1) % CASES], &answers[1].choices[0]);
    }
    assert_no_page_held(e);
    lt_engine_close(e);
}

/* On a GPU, where logits are copied to the host: blends of the model with itself give the plain
 * text, also for forks, and beside plain requests that go ahead. */
static void blends_with_itself_on_a_gpu(void **state) {
    static answer plain, same[2], other;
    lt_engine_options o = lt_engine_defaults();
    lt_request r = cases[1].r;
    lt_engine *e = NULL;
    lt_model *m = NULL;
    (void)state;
    if (gpu_backend() == NULL) {
        skip();
    }
    must(lt_model_open(&m, SERVED,
                       &(lt_model_options){.dtype = LT_BF16, .device = device_of(gpu_backend())}),
         SERVED);
    o.max_seq = 64;
    o.max_running = 8;
    o.deterministic = true;
    o.beside = (const lt_model *const[]){m, m};
    o.n_beside = 2;
    must(lt_engine_open(&e, m, &o), "engine");
    r.n_choices = 2;
    r.blend = (lt_blend){0};
    send(e, &r, &plain);
    receive_all(e, 1, 0);
    for (int i = 0; i < 2; i++) {
        r.blend = i == 0 ? (lt_blend){.n = 2, .model = {0, 1}, .own = 1, .weight = {3, -3}}
                         : (lt_blend){.n = 1, .own = 2, .weight = {-1}, .plausibility = 0.1F};
        send(e, &r, &same[i]);
    }
    r.blend = (lt_blend){0};
    send(e, &r, &other);
    receive_all(e, 3, 0);
    for (int c = 0; c < 2; c++) {
        assert_same(&plain.choices[c], &same[0].choices[c], "experts that cancel out");
        assert_same(&plain.choices[c], &same[1].choices[c], "an amateur of its own");
        assert_same(&plain.choices[c], &other.choices[c], "a plain request beside blends");
    }
    assert_no_page_held(e);
    lt_engine_close(e);
    lt_model_close(m);
}

/* A second model that rules out one id (GPT-2, whose final norm gives every row 1 in its first
 * place, with -inf in the first place of the id's row of the head). With a negative weight the
 * sum would be +inf, and the id would win whatever the served model says about it: it counts as
 * log p - log p = 0, below the best of the others. */
static void what_an_amateur_rules_out_does_not_win(void **state) {
    static answer plain, mixed;
    lt_engine_options o = lt_engine_defaults();
    lt_request r = cases[0].r;
    lt_engine *e = NULL;
    lt_model *m = NULL;
    (void)state;
    must(lt_model_open(&m, "tests/golden/model/gpt2", NULL), "gpt2");
    float *gain = lt_param_view(&m->table, LT_PARAM_FINAL_NORM, 0, &m->weights).data;
    float *bias = lt_param_view(&m->table, LT_PARAM_FINAL_NORM_BIAS, 0, &m->weights).data;
    const lt_tensor head = lt_param_view(&m->table, LT_PARAM_EMBED, 0, &m->weights);
    gain[0] = 0;
    bias[0] = 1;
    o.max_seq = 32;
    o.max_running = 8;
    o.beside = (const lt_model *const[]){m};
    o.n_beside = 1;
    r.max_tokens = 1;
    r.blend = (lt_blend){.n = 1, .own = 1, .weight = {-1}};
    must(lt_engine_open(&e, served, &o), "engine");
    send(e, &r, &plain);
    receive_all(e, 1, 0);
    lt_engine_close(e);
    e = NULL;
    for (int32_t id = 0; id < V; id += 7) {
        bool asked = id == plain.choices[0].ids[0];
        for (int64_t i = 0; i < r.n_prompt; i++) {
            /* The embedding is tied, so the vector of this id is not finite. */
            asked |= r.prompt[i] == id;
        }
        if (!asked) {
            float *at = (float *)head.data + id * head.shape[1], kept = *at;
            *at = -INFINITY;
            must(lt_engine_open(&e, served, &o), "engine");
            send(e, &r, &mixed);
            receive_all(e, 1, 0);
            assert_same(&plain.choices[0], &mixed.choices[0], "an id that the amateur rules out");
            lt_engine_close(e);
            e = NULL;
            *at = kept;
        }
    }
    lt_model_close(m);
}

static void faults_are_refused(void **state) {
    lt_request r[7];
    lt_engine *e = open_engine(0, false, 0);
    uint64_t id;
    (void)state;
    for (int i = 0; i < 7; i++) {
        r[i] = cases[2].r;
    }
    r[0].blend.model[1] = BESIDE;
    r[1].blend.weight[0] = NAN;
    r[2].blend.plausibility = 1.5f;
    r[3].beam.on = true;
    r[4].guidance = (lt_guidance){.on = true, .scale = 1};
    r[5].blend.n = 3;
    r[6].blend.own = 1e6f;
    for (int i = 0; i < 7; i++) {
        assert_int_equal(lt_engine_submit(e, &r[i], NULL, &id), LT_ERR_ARG);
    }
    lt_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_those_of_the_formula),
        cmocka_unit_test(pages_are_shared_with_the_same_models_only),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(requests_keep_their_bits),
        cmocka_unit_test(forks_go_their_own_ways),
        cmocka_unit_test(a_cancelled_request_leaves_nothing),
        cmocka_unit_test(blends_with_itself_on_a_gpu),
        cmocka_unit_test(what_an_amateur_rules_out_does_not_win),
        cmocka_unit_test(faults_are_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
