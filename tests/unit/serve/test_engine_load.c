/* The engine under load: a thousand streams at once, a third of them cancelled at random moments:
 * the others give the same output as alone, every page and every byte is freed, and after a
 * warm-up the engine's threads allocate nothing. */
#include "unit/serve/fleet.h"

#include <malloc.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/clock.h"
#include "serve/engine_impl.h"

enum { V = 300, SEQ = 96, STREAMS = 1000, KINDS = 24 };

/* ---- Allocations of all threads except the test's own ---- */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS true
static atomic_long n_allocations;
static _Thread_local bool is_test;

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *p, size_t bytes);

static void count(void) {
    if (!is_test) {
        atomic_fetch_add_explicit(&n_allocations, 1, memory_order_relaxed);
    }
}

void *malloc(size_t bytes) {
    count();
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes) {
    count();
    return __libc_calloc(n, bytes);
}

void *realloc(void *p, size_t bytes) {
    count();
    return __libc_realloc(p, bytes);
}
#else
#define COUNTS_ALLOCATIONS false
static long n_allocations;
static bool is_test;
#endif

static lt_request kind_of_request(int64_t kind, int32_t *prompt) {
    lt_request r = lt_request_defaults();
    r.n_prompt = 3 + kind * 5 % 40;
    fill_prompt(prompt, r.n_prompt, V, (uint64_t)kind);
    r.prompt = prompt;
    r.max_tokens = 8 + kind * 7 % 40;
    r.logprobs = kind % 3 == 0 ? 5 : -1;
    r.prompt_logprobs = kind % 7 == 0 ? 1 : -1;
    r.n_choices = kind % 11 == 0 ? 3 : 1;
    r.priority = (int)(kind % 2);
    r.sampling.seed = (uint64_t)kind;
    r.sampling.top_p = kind % 2 == 0 ? 0.9 : 1.0;
    r.sampling.frequency = kind % 4 == 0 ? 0.5 : 0.0;
    return r;
}

static lt_engine_options options(void) {
    lt_engine_options o = lt_engine_defaults();
    o.max_running = 128;
    o.max_waiting = STREAMS;
    o.max_seq = SEQ;
    o.step_tokens = 192;
    o.deterministic = true;
    o.cache_bytes = 100 * 8192; /* 100 pages for 128 sequences of up to 6 pages. */
    return o;
}

/* Send all streams; a third is cancelled while events arrive. */
static void storm(lt_engine *e, answer *answers, const answer *alone, uint64_t seed) {
    static bool cancelled[STREAMS];
    lt_rng rng = {.seed = seed};
    int64_t left = STREAMS, n_cut = 0;
    memset(cancelled, 0, sizeof cancelled);
    for (int64_t i = 0; i < STREAMS; i++) {
        int32_t prompt[64];
        const lt_request r = kind_of_request(i % KINDS, prompt);
        send(e, &r, &answers[i]);
    }
    while (left > 0) {
        for (int k = 0; k < 8 && 3 * n_cut < STREAMS; k++) {
            const uint64_t i = lt_rng_below(&rng, STREAMS);
            if (!cancelled[i] && !answers[i].done) {
                lt_engine_cancel(e, answers[i].id);
                cancelled[i] = true;
                n_cut++;
            }
        }
        left -= receive(e, 0);
    }
    for (int64_t i = 0; i < STREAMS; i++) {
        const answer *want = &alone[i % KINDS];
        for (int s = 0; s < FLEET_CHOICES && want->choices[s].n > 0; s++) {
            if (!cancelled[i] || answers[i].choices[s].finish == want->choices[s].finish) {
                assert_equal(&answers[i].choices[s], &want->choices[s], "in the storm");
            } else {
                assert_int_equal(answers[i].choices[s].finish, LT_FINISH_CANCELLED);
            }
        }
    }
    assert_true(n_cut > STREAMS / 10);
}

static void a_thousand_streams(void **state) {
    static answer answers[STREAMS], alone[KINDS];
    lt_model *m = random_model(V, SEQ, LT_F32);
    lt_engine *e = NULL;
    lt_engine_options o = options();
    lt_engine_stats st;
    lt_event event;
    long before;
    size_t bytes;
    (void)state;
    must(lt_engine_open(&e, m, &o), "engine");
    for (int64_t i = 0; i < KINDS; i++) {
        int32_t prompt[64];
        const lt_request r = kind_of_request(i, prompt);
        send(e, &r, &alone[i]);
        receive_all(e, 1, 0);
    }
    storm(e, answers, alone, 1); /* The kernels' scratch memory grows to its final size. */
    (void)lt_engine_poll(e, &event, 1);
    before = n_allocations;
    bytes = mallinfo2().uordblks;
    for (uint64_t seed = 2; seed < 5; seed++) {
        storm(e, answers, alone, seed);
    }
    (void)lt_engine_poll(e, &event, 1); /* Frees the request that was reported last. */
    assert_int_equal(n_allocations, before);
    if (COUNTS_ALLOCATIONS) {
        assert_int_equal(mallinfo2().uordblks, bytes);
    }
    lt_engine_get_stats(e, &st);
    assert_int_equal(st.pages_used, 0);
    assert_int_equal(st.running + st.waiting, 0);
    assert_int_equal(st.finished + st.cancelled, 4 * STREAMS + KINDS);
    assert_true(st.cancelled > 0 && st.failed == 0);
    print_message("%lld steps, %lld tokens, %lld preemptions, %lld cancelled\n",
                  (long long)st.steps, (long long)st.new_tokens, (long long)st.preemptions,
                  (long long)st.cancelled);
    lt_engine_close(e);
    lt_model_close(m);
}

static void a_full_queue_refuses(void **state) {
    static answer answers[64];
    lt_model *m = random_model(V, SEQ, LT_F32);
    lt_engine *e = NULL;
    lt_engine_options o = options();
    int64_t n = 0;
    int32_t prompt[64];
    const lt_request r = kind_of_request(1, prompt);
    lt_err err = LT_OK;
    (void)state;
    o.max_running = 2;
    o.max_waiting = 3;
    must(lt_engine_open(&e, m, &o), "engine");
    while (err == LT_OK && n < 60) { /* Faster than two slots can serve. */
        answers[n] = (answer){0};
        err = lt_engine_submit(e, &r, &answers[n], &answers[n].id);
        n += err == LT_OK;
    }
    assert_int_equal(err, LT_ERR_LIMIT);
    receive_all(e, n, 0);
    send(e, &r, &answers[0]); /* There is room again. */
    receive_all(e, 1, 0);
    lt_engine_close(e);
    lt_model_close(m);
}

static void cancelling_is_prompt_and_harmless(void **state) {
    static answer a, b;
    lt_model *m = random_model(V, 4096, LT_F32);
    lt_engine *e = NULL;
    lt_engine_options o = lt_engine_defaults();
    lt_engine_stats st;
    int32_t prompt[64];
    lt_request r = kind_of_request(1, prompt);
    (void)state;
    o.max_running = 4;
    must(lt_engine_open(&e, m, &o), "engine");
    r.max_tokens = 200;
    r.ignore_eos = true;
    r.n_choices = 3;
    send(e, &r, &a);
    while (a.n_tokens < 9) {
        (void)receive(e, 0);
    }
    lt_engine_cancel_choice(e, a.id, 0); /* The others continue. */
    while (a.choices[0].finish == LT_FINISH_NONE) {
        (void)receive(e, 0);
    }
    assert_int_equal(a.choices[0].finish, LT_FINISH_CANCELLED);
    assert_false(a.done);
    lt_engine_cancel(e, a.id);
    lt_engine_cancel(e, a.id + 12345);
    lt_engine_cancel_choice(e, a.id, 77);
    receive_all(e, 1, 0);
    lt_engine_cancel(e, a.id); /* It is done, so this has no effect. */
    assert_true(a.n_tokens < 500);
    send(e, &r, &b);
    lt_engine_cancel(e, b.id); /* Perhaps before its first step. */
    receive_all(e, 1, 0);
    assert_int_equal(b.choices[2].finish, LT_FINISH_CANCELLED);
    lt_engine_get_stats(e, &st);
    assert_int_equal(st.pages_used, 0);
    lt_engine_close(e);
    must(lt_engine_open(&e, m, &o), "engine");
    send(e, &r, &a); /* Closing cancels what runs. */
    lt_engine_close(e);
    lt_model_close(m);
}

/* Two requests that the engine's thread cancels: first one, then a choice of the other. */
typedef struct {
    uint64_t one, other;
} two_answers;

static void cancel_both(lt_engine *e, void *arg) {
    const two_answers *ids = arg;
    lt_engine_cancel(e, ids->one);
    lt_engine_cancel_choice(e, ids->other, 0);
}

static void cancel_another_choice(lt_engine *e, void *arg) {
    const two_answers *ids = arg;
    lt_engine_cancel_choice(e, ids->other, 1);
}

/* A step takes over the list of cancellations, then answers questions, then ends the requests in
 * the list. A question that cancels another choice of a job in this list must not lose the job
 * after it. */
static void a_later_cancellation_loses_none(void **state) {
    static answer one, other;
    two_answers ids;
    lt_model *m = random_model(V, 4096, LT_F32);
    lt_engine *e = NULL;
    const lt_engine_options o = lt_engine_defaults();
    int32_t prompt[64];
    lt_request r = kind_of_request(1, prompt);
    (void)state;
    must(lt_engine_open(&e, m, &o), "engine");
    r.max_tokens = 200;
    r.ignore_eos = true;
    r.n_choices = 3;
    send(e, &r, &one);
    send(e, &r, &other);
    while (one.n_tokens < 9 || other.n_tokens < 9) {
        (void)receive(e, 0);
    }
    ids = (two_answers){.one = one.id, .other = other.id};
    lt_engine_ask(e, cancel_both, &ids);           /* The step after this one takes them over. */
    lt_engine_ask(e, cancel_another_choice, &ids); /* It comes while that step runs. */
    receive_all(e, 2, 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(one.choices[i].finish, LT_FINISH_CANCELLED);
        assert_int_equal(other.choices[i].finish, i < 2 ? LT_FINISH_CANCELLED : LT_FINISH_LENGTH);
    }
    lt_engine_close(e);
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_later_cancellation_loses_none),
        cmocka_unit_test(a_thousand_streams),
        cmocka_unit_test(a_full_queue_refuses),
        cmocka_unit_test(cancelling_is_prompt_and_harmless),
    };
    is_test = true;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
