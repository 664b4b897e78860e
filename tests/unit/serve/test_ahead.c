/* Steps queued ahead of the host, on a device that does nothing before it is waited for: requests
 * of all kinds give the same output as with one step at a time, bit for bit, while others arrive,
 * end, fork, are cancelled and preempted; the engine queues ahead when it can; and a failing
 * device ends only the requests in its queue. */
#include "unit/serve/fleet.h"
#include "unit/serve/kinds.h"

#include "lateen/tokenizer.h"
#include "serve/grammar/grammar.h"
#include "unit/lazy_device.h"

enum { V = 300, WIDE = 1500, SEQ = 96, N = 80, PAGE_BYTES = 8192 };

static lt_engine_options options(bool ahead) {
    lt_engine_options o = lt_engine_defaults();
    o.ahead = ahead;
    o.deterministic = true;
    o.max_running = 20;
    o.max_waiting = N;
    o.max_seq = SEQ;
    o.step_tokens = 50;
    return o;
}

/* In addition to the kinds: prompts that begin alike, early ends, optional thinking, embeddings.
 * alone: only what the device chooses. */
static lt_request some_request(int64_t i, int32_t *prompt, bool alone, const lt_grammar *g) {
    static const int64_t own[] = {0, 1, 2, 8, 10, 12, 14, 15};
    static const int32_t stops[] = {20, 30, 40, 50, 60, 70, 80, 90, 100, 110};
    static const int32_t end[] = {5, 6}, begin[] = {120};
    const int64_t kind = alone ? own[i % 8] : i % KINDS;
    lt_request r = request_of(i / KINDS * KINDS + kind, prompt, V, g);
    if (i % 4 == 1) {
        r.stop_ids = stops;
        r.n_stop_ids = sizeof stops / sizeof *stops;
    }
    if (i % 5 == 0) {
        fill_prompt(prompt, r.n_prompt, V, 1);
    }
    if (kind >= 14) { /* A budget of 0 to 12 tokens, if it thinks at all. */
        r.think_end = end;
        r.n_think_end = 2;
        r.think_begin = begin;
        r.n_think_begin = i % 32 < 16;
        r.think_budget = i % 5 * 3;
    }
    if (i % 19 == 18 && !alone) {
        r.embed = true;
        r.max_tokens = r.min_tokens = 0;
        r.n_choices = 1;
        r.prompt_logprobs = -1;
        /* The context is shifted once or several times. */
    } else if (i % 9 == 4 && r.n_choices == 1) {
        r.shift = (lt_shift){.on = true, .keep = i % 4 - 1, .discard = i % 2 * 9};
        r.max_tokens = SEQ + 4;
        r.min_tokens = r.ignore_eos ? SEQ : r.min_tokens;
    }
    return r;
}

/* Requests arrive while others run. cut: some have choices or the whole request cancelled after a
 * few tokens. */
static void traffic(lt_engine *e, answer *answers, uint64_t seed, bool cut, bool alone,
                    const lt_grammar *g) {
    lt_rng rng = {.seed = seed};
    int64_t n_sent = 0, n_done = 0;
    bool cancelled[N] = {false};
    while (n_done < N) {
        for (uint64_t k = n_sent == n_done ? 3 : lt_rng_below(&rng, 8); k > 0 && n_sent < N; k--) {
            int32_t prompt[64];
            const lt_request r = some_request(n_sent, prompt, alone, g);
            send(e, &r, &answers[n_sent++]);
        }
        for (int64_t i = 0; cut && i < n_sent; i++) {
            if (i % 7 == 3 && !cancelled[i] && !answers[i].done && answers[i].n_tokens > i % 5) {
                cancelled[i] = true;
                if (i % 2 == 0) {
                    lt_engine_cancel(e, answers[i].id);
                } else {
                    lt_engine_cancel_choice(e, answers[i].id, 0);
                }
            }
        }
        n_done += receive(e, 64);
    }
}

/* The output of a cancelled choice must be the beginning of the complete one. */
static void compare(answer *got, answer *want, int64_t i) {
    char what[32];
    (void)snprintf(what, sizeof what, "request %lld", (long long)i);
    assert_int_equal(got->n_prompt_told, want->n_prompt_told);
    assert_memory_equal(got->prompt_logprobs, want->prompt_logprobs, sizeof got->prompt_logprobs);
    assert_memory_equal(got->embedding, want->embedding, sizeof got->embedding);
    for (int s = 0; s < FLEET_CHOICES; s++) {
        continuation *a = &got->choices[s], *b = &want->choices[s];
        if (a->finish == LT_FINISH_CANCELLED) {
            assert_true(a->n <= b->n && i % 7 == 3);
            b->n = a->n;
            b->finish = a->finish;
        }
        assert_equal(a, b, what);
        assert_memory_equal(a->tops, b->tops, (size_t)a->n * sizeof *a->tops);
    }
}

static lt_engine_stats run(const lt_model *m, lt_engine_options o, answer *answers, uint64_t seed,
                           bool cut, bool alone, const lt_grammar *g) {
    lt_engine_stats stats;
    lt_engine *e = NULL;
    must(lt_engine_open(&e, m, &o), "engine");
    lazy.n_left = 0;
    traffic(e, answers, seed, cut, alone, g);
    lt_engine_get_stats(e, &stats);
    lt_engine_close(e);
    assert_int_equal(stats.pages_used, 0);
    assert_int_equal(stats.running + stats.waiting + stats.failed, 0);
    return stats;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SEEDS 3 /* An emulated GPU is ten times as slow, and the code paths are the same. */
#else
#define SEEDS 6
#endif

static void says_the_same(const lt_model *m, bool alone) {
    static answer one_by_one[N], want[N], got[N];
    int64_t n_preempted = 0, n_cached = 0, n_steps = 0, n_ahead = 0;
    (void)run(m, options(false), one_by_one, 1, false, alone, NULL);
    assert_int_equal(lazy.n_left, 0);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        lt_engine_options o = options(true);
        lt_engine_stats stats;
        o.step_tokens = seed % 2 == 0 ? 24 : 80;
        o.cache_bytes = seed % 4 < 2 ? 9 * PAGE_BYTES : 0;
        o.warm = (lt_warm)(seed % 3);
        lazy.hasty = seed % 3 == 0;
        stats = run(m, o, got, seed, true, alone, NULL);
        n_steps += stats.steps;
        n_ahead += stats.steps_ahead;
        n_preempted += stats.preemptions;
        n_cached += stats.cached_tokens;
        memcpy(want, one_by_one, sizeof want);
        for (int64_t i = 0; i < N; i++) {
            compare(&got[i], &want[i], i);
        }
    }
    lazy.hasty = false;
    print_message("%lld steps, %lld of them with another behind, %lld preemptions\n",
                  (long long)n_steps, (long long)n_ahead, (long long)n_preempted);
    assert_true(n_ahead > n_steps / 2);
    assert_true(n_preempted > (SEEDS < 6 ? 0 : 10) && n_cached > 0);
}

static void all_kinds_give_the_same_output_ahead(void **state) {
    (void)state;
    for (int graphs = 0; graphs < 2; graphs++) {
        lt_model *m = random_model_on(V, SEQ, LT_F32, 0.0f, lazy_device(graphs));
        if (SEEDS == 6 || graphs == 0) {
            says_the_same(m, false);
        }
        if (SEEDS == 6 || graphs == 1) {
            says_the_same(m, true);
        }
        lt_model_close(m);
    }
}

/* The CPU's engine, whose host chooses, and a device with the same arithmetic: tokens are equal,
 * log-probabilities up to the rounding of a sum of exponentials. */
static void the_device_says_what_the_host_says(const lt_model *on_device, const lt_model *on_host,
                                               const lt_grammar *g) {
    static answer want[N], got[N];
    (void)run(on_host, options(false), want, 1, false, false, g);
    (void)run(on_device, options(true), got, 1, false, false, g);
    for (int64_t i = 0; i < N; i++) {
        for (int s = 0; s < FLEET_CHOICES; s++) {
            const continuation *a = &got[i].choices[s], *b = &want[i].choices[s];
            char what[32];
            (void)snprintf(what, sizeof what, "request %lld", (long long)i);
            assert_same(a, b, what);
            assert_memory_equal(a->tops, b->tops, (size_t)a->n * sizeof *a->tops);
            for (int64_t k = 0; k < a->n; k++) {
                assert_true(fabsf(a->logprobs[k] - b->logprobs[k]) < 1e-5f);
            }
        }
    }
}

static void the_device_chooses_like_the_host(void **state) {
    lt_model *on_device = random_model_on(V, SEQ, LT_F32, 0.0f, lazy_device(true));
    lt_model *on_host = random_model_on(V, SEQ, LT_F32, 0.0f, NULL);
    (void)state;
    the_device_says_what_the_host_says(on_device, on_host, NULL);
    lt_model_close(on_device);
    lt_model_close(on_host);
}

static void grammars_ahead(void **state) {
    static const char folder[] = "tests/golden/stories260k/";
    static const char rule[] = "(Tom|Lily)( and (Tom|Lily))* (ran|sat)[.!]";
    static answer one_by_one[N], want[N], got[N];
    char path[128];
    lt_tokenizer *t = NULL;
    lt_grammar_vocab *v = NULL;
    lt_grammar *g = NULL;
    lt_model *m = NULL, *on_host = NULL;
    lt_engine_stats stats;
    (void)state;
    (void)snprintf(path, sizeof path, "%sstories260K.bin", folder);
    must(lt_model_open(&m, path, &(lt_model_options){.device = device_of(lazy_device(true))}),
         path);
    must(lt_model_open(&on_host, path, NULL), path);
    (void)snprintf(path, sizeof path, "%stok512.bin", folder);
    must(lt_tokenizer_open(&t, path, NULL), path);
    must(lt_grammar_vocab_open(&v, t, NULL, 0), "vocabulary");
    must(lt_grammar_open(&g, v, LT_GRAMMAR_REGEX, rule, sizeof rule - 1), rule);
    (void)run(m, options(false), one_by_one, 1, false, false, g);
    for (int hasty = SEEDS < 6; hasty < 2; hasty++) {
        memcpy(want, one_by_one, sizeof want);
        lazy.hasty = hasty;
        stats = run(m, options(true), got, 1, true, false, g);
        assert_true(stats.steps_ahead > stats.steps / 2);
        for (int64_t i = 0; i < N; i++) {
            compare(&got[i], &want[i], i);
        }
    }
    lazy.hasty = false;
    the_device_says_what_the_host_says(m, on_host, g);
    lt_model_close(m);
    lt_model_close(on_host);
    lt_grammar_close(g);
    lt_grammar_vocab_close(v);
    lt_tokenizer_close(t);
}

static lt_request plain(const int32_t *prompt, int64_t max_tokens) {
    lt_request r = lt_request_defaults();
    r.prompt = prompt;
    r.n_prompt = 4;
    r.max_tokens = max_tokens;
    r.ignore_eos = true;
    return r;
}

/* As long as one request has its tokens chosen by the host, because it has more biases than a
 * penalty state can hold, no step goes ahead; before and after it each step does, and so it does
 * beside other requests. */
static void goes_ahead_when_it_can(void **state) {
    static const int32_t prompts[2][4] = {{5, 6, 7, 8}, {9, 10, 11, 12}};
    static lt_logit_bias many[LT_PENALTY_BIASES + 100];
    static answer a, b;
    lt_model *m = random_model_on(V, SEQ, LT_F32, 0.0f, lazy_device(true));
    const lt_engine_options o = options(true);
    lt_request r = plain(prompts[0], 80);
    lt_engine *e = NULL;
    (void)state;
    must(lt_engine_open(&e, m, &o), "engine");
    lazy.n_left = 0;
    send(e, &r, &a);
    receive_all(e, 1, 0);
    lt_engine_close(e);
    assert_int_equal(a.choices[0].n, 80);
    assert_int_equal(lazy.n_left, 79); /* No step follows the last one. */
    lt_model_close(m);
    m = random_model_on(WIDE, SEQ, LT_F32, 0.0f, lazy_device(true));
    for (int32_t i = 0; i < LT_PENALTY_BIASES + 100; i++) {
        many[i] = (lt_logit_bias){i, (float)(i % 7)};
    }
    for (int kind = 0; kind < 6; kind++) {
        must(lt_engine_open(&e, m, &o), "engine");
        lazy.n_left = 0;
        r = plain(prompts[0], 80);
        send(e, &r, &a);
        r = plain(prompts[1], 30);
        r.sampling.presence = kind == 0 ? 0.5 : 0.0;
        r.sampling.typical_p = kind == 1 ? 0.5 : 1.0;
        r.min_tokens = kind == 2 ? 10 : 0;
        r.prompt_logprobs = kind == 3 ? 2 : -1;
        r.think_budget = kind == 4 ? 9 : -1;
        r.think_end = prompts[0];
        r.n_think_end = kind == 4 ? 2 : 0;
        r.sampling.bias = many;
        r.sampling.n_bias = kind == 5 ? LT_PENALTY_BIASES + 100 : 7;
        send(e, &r, &b);
        receive_all(e, 2, 0);
        lt_engine_close(e);
        assert_int_equal(b.choices[0].n, 30);
        assert_in_range(lazy.n_left, kind == 5 ? 45 : 79, kind == 5 ? 60 : 81);
    }
    lt_model_close(m);
}

/* More penalty states begin in a step than fit in one transfer, in slots that other requests have
 * just left: each request gives the output that it gives alone. */
static void many_penalty_states_begin_at_once(void **state) {
    enum { MANY = 60, PROMPT = 70 };
    static answer want[MANY], got[MANY];
    static lt_logit_bias biases[40];
    lt_model *m = random_model_on(V, SEQ, LT_F32, 0.0f, lazy_device(true));
    lt_engine_options o = options(true);
    (void)state;
    o.step_tokens = 2000;
    for (int32_t i = 0; i < 40; i++) {
        biases[i] = (lt_logit_bias){7 * i, (float)(i % 3)};
    }
    for (int alone = 1; alone >= 0; alone--) {
        lt_engine *e = NULL;
        int64_t n_left = 0;
        must(lt_engine_open(&e, m, &o), "engine");
        for (int i = 0; i < MANY; i++) {
            int32_t prompt[PROMPT];
            lt_request r = plain(prompt, 5 + i % 3);
            fill_prompt(prompt, PROMPT, V, (uint64_t)i);
            r.n_prompt = PROMPT;
            r.sampling.repetition = 1.5;
            r.sampling.bias = biases;
            r.sampling.n_bias = 40;
            r.sampling.seed = (uint64_t)i;
            send(e, &r, alone > 0 ? &want[i] : &got[i]);
            n_left++;
            if (alone > 0) {
                receive_all(e, 1, 0);
                n_left = 0;
            }
        }
        receive_all(e, n_left, 0);
        lt_engine_close(e);
    }
    for (int i = 0; i < MANY; i++) {
        assert_equal(&got[i].choices[0], &want[i].choices[0], "beside others");
    }
    lt_model_close(m);
}

/* Requests that end by themselves leave unused rows behind; the last of them a whole step.
 * Closing the engine in between is harmless. */
static void early_ends(void **state) {
    static answer free_run[8], answers[8];
    int32_t prompts[8][4];
    lt_model *m = random_model_on(V, SEQ, LT_F32, 0.0f, lazy_device(false));
    lt_engine_options o = options(true);
    lt_engine_stats stats;
    lt_engine *e = NULL;
    (void)state;
    must(lt_engine_open(&e, m, &o), "engine");
    for (int stop = -1; stop < 40; stop += 7) {
        for (int i = 0; i < 8; i++) {
            lt_request r;
            fill_prompt(prompts[i], 4, V, (uint64_t)i);
            r = plain(prompts[i], 60);
            r.sampling.seed = (uint64_t)i;
            r.stop_ids = &free_run[i].choices[0].ids[stop < 0 ? 0 : stop];
            r.n_stop_ids = stop >= 0;
            send(e, &r, stop < 0 ? &free_run[i] : &answers[i]);
        }
        receive_all(e, 8, 0);
        for (int i = 0; i < 8 && stop >= 0; i++) {
            const continuation *c = &answers[i].choices[0], *all = &free_run[i].choices[0];
            int64_t first = 0;
            while (all->ids[first] != all->ids[stop]) {
                first++;
            }
            assert_int_equal(c->n, first + 1);
            assert_int_equal(c->finish, LT_FINISH_STOP_ID);
            assert_memory_equal(c->ids, all->ids, (size_t)c->n * sizeof *c->ids);
        }
    }
    lt_engine_get_stats(e, &stats);
    assert_int_equal(stats.pages_used, 0);
    for (int i = 0; i < 8; i++) {
        const lt_request r = plain(prompts[i], 60);
        send(e, &r, &answers[i]);
    }
    while (answers[0].n_tokens < 5) {
        (void)receive(e, 0);
    }
    lt_engine_close(e);
    lt_model_close(m);
}

/* The device fails at one wait or another, or refuses a transfer: all requests in the engine are
 * told, and later ones are served. */
static void a_failure_ends_only_queued_requests(void **state) {
    enum { MANY = 6 };
    static answer want[MANY], got[MANY];
    int32_t prompts[MANY][4];
    lt_model *m = random_model_on(V, SEQ, LT_F32, 0.0f, lazy_device(true));
    const lt_engine_options o = options(true);
    lt_engine *e = NULL;
    int64_t n_failed = 0;
    (void)state;
    must(lt_engine_open(&e, m, &o), "engine");
    for (int64_t at = 0; at < 48; at++) {
        const int64_t fail_in = at / 2;
        for (int again = 0; again < 2; again++) {
            lt_engine_stats stats;
            /* The engine's thread sleeps. */
            lazy.fail_in = again == 0 && at % 2 == 0 ? fail_in : 0;
            lazy.refuse_in = again == 0 && at % 2 == 1 ? fail_in : 0;
            for (int i = 0; i < MANY; i++) {
                lt_request r;
                fill_prompt(prompts[i], 4, V, (uint64_t)i);
                r = plain(prompts[i], 10 + 2 * i);
                r.n_choices = i == 1 ? 3 : 1;
                r.sampling.presence = fail_in % 3 == 1 && i == 2 ? 0.5 : 0.0;
                r.sampling.seed = (uint64_t)fail_in;
                r.think_budget = i == 3 ? 2 : -1; /* Choices on the host. */
                r.think_end = prompts[0];
                r.n_think_end = i == 3 ? 2 : 0;
                send(e, &r, again == 0 ? &got[i] : &want[i]);
            }
            receive_all(e, MANY, 0);
            lt_engine_get_stats(e, &stats);
            assert_int_equal(stats.pages_used, 0);
        }
        for (int i = 0; i < MANY; i++) {
            for (int s = 0; s < FLEET_CHOICES; s++) {
                continuation *a = &got[i].choices[s], *b = &want[i].choices[s];
                assert_true(b->n == 0 || b->finish == LT_FINISH_LENGTH);
                n_failed += a->finish == LT_FINISH_FAILED;
                if (a->finish == LT_FINISH_FAILED) {
                    assert_int_equal(a->failure, LT_ERR_IO);
                    b->n = a->n;
                    b->finish = a->finish;
                }
                assert_equal(a, b, "beside a failure");
            }
        }
    }
    lazy.fail_in = lazy.refuse_in = 0;
    assert_true(n_failed > 80);
    lt_engine_close(e);
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_kinds_give_the_same_output_ahead),
        cmocka_unit_test(the_device_chooses_like_the_host),
        cmocka_unit_test(grammars_ahead),
        cmocka_unit_test(goes_ahead_when_it_can),
        cmocka_unit_test(many_penalty_states_begin_at_once),
        cmocka_unit_test(early_ends),
        cmocka_unit_test(a_failure_ends_only_queued_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
