/* Context shift against its rule, which is that of llama-server: when a sequence of maximum
 * length is to continue, the first `keep` tokens stay, half of those between them and the newest
 * token, or `discard` of them, are dropped, and the next token is that of a request whose prompt
 * is what is left. Here such requests are made one by one. */
#include "unit/serve/fleet.h"

enum { SEQ = 48, VOCAB = 64, NEW = 120 };

/* The next token of a prompt, with a limit of one. */
static int32_t next(lt_engine *e, const int32_t *tokens, int64_t n) {
    static answer a;
    lt_request r = lt_request_defaults();
    r.prompt = tokens;
    r.n_prompt = n;
    r.max_tokens = 1;
    r.ignore_eos = true;
    r.sampling.temperature = 0;
    send(e, &r, &a);
    receive_all(e, 1, 0);
    assert_int_equal(a.choices[0].n, 1);
    return a.choices[0].ids[0];
}

/* The text by the rule; returns how many tokens were dropped. */
static int64_t expected(lt_engine *e, const lt_request *r, int32_t *out, int64_t n_new) {
    int32_t window[SEQ];
    int64_t n = r->n_prompt, dropped = 0;
    memcpy(window, r->prompt, (size_t)n * sizeof *window);
    for (int64_t i = 0; i < n_new; i++) {
        if (n == SEQ) {
            const int64_t asked = r->shift.keep < 0 ? r->n_prompt : r->shift.keep;
            const int64_t keep = asked < n - 4 ? asked : n - 4;
            const int64_t between = n - 1 - keep;
            int64_t drop = r->shift.discard > 0 ? r->shift.discard : between / 2;
            drop = drop < between ? drop : between;
            memmove(window + keep, window + keep + drop,
                    (size_t)(n - keep - drop) * sizeof *window);
            n -= drop;
            dropped += drop;
        }
        out[i] = next(e, window, n);
        window[n++] = out[i];
    }
    return dropped;
}

static lt_engine *open_engine(const lt_model *m, bool prefix_cache) {
    lt_engine_options o = lt_engine_defaults();
    lt_engine *e = NULL;
    o.max_seq = SEQ;
    o.page_tokens = 16;
    o.max_running = 16;
    o.deterministic = true;
    o.prefix_cache = prefix_cache;
    must(lt_engine_open(&e, m, &o), "engine");
    return e;
}

static void texts_are_those_of_what_is_left(void **state) {
    static const struct {
        int64_t n_prompt, keep, discard;
    } cases[] = {{5, -1, 0}, {5, 0, 0},   {5, 3, 0},  {20, -1, 0}, {5, 44, 0},
                 {5, 45, 0}, {5, 99, 0},  {5, 3, 1},  {5, 3, 7},   {5, 3, 99},
                 {5, 43, 2}, {47, -1, 0}, {47, 8, 0}, {47, 0, 9},  {40, 16, 30}};
    enum { CASES = sizeof cases / sizeof *cases };
    static answer answers[CASES];
    static int32_t want[CASES][NEW], prompt[SEQ];
    lt_request r[CASES];
    lt_model *m = random_model(VOCAB, 4 * SEQ, LT_F32);
    (void)state;
    for (int i = 0; i < SEQ; i++) {
        prompt[i] = (int32_t)(3 + (i * i + 5 * i) % (VOCAB - 3));
    }
    lt_engine *e = open_engine(m, true);
    for (int i = 0; i < CASES; i++) {
        r[i] = lt_request_defaults();
        r[i].prompt = prompt;
        r[i].n_prompt = cases[i].n_prompt;
        r[i].max_tokens = NEW;
        r[i].ignore_eos = true;
        r[i].sampling.temperature = 0;
        r[i].shift = (lt_shift){.on = true, .keep = cases[i].keep, .discard = cases[i].discard};
        assert_true(expected(e, &r[i], want[i], NEW) > 0);
    }
    for (int cached = 0; cached < 2; cached++) {
        lt_engine_close(e);
        e = open_engine(m, cached == 1);
        for (int i = 0; i < CASES; i++) { /* All at once, with pages for 16 whole sequences. */
            send(e, &r[i], &answers[i]);
        }
        receive_all(e, CASES, 0);
        for (int i = 0; i < CASES; i++) {
            const continuation *c = &answers[i].choices[0];
            assert_int_equal(c->finish, LT_FINISH_LENGTH);
            assert_int_equal(c->n, NEW);
            for (int k = 0; k < NEW; k++) {
                if (c->ids[k] != want[i][k]) {
                    fail_msg("prompt %lld, keep %lld, discard %lld, cache %d: token %d is %d, not "
                             "%d",
                             (long long)cases[i].n_prompt, (long long)cases[i].keep,
                             (long long)cases[i].discard, cached, k, c->ids[k], want[i][k]);
                }
            }
        }
        assert_no_page_held(e);
    }
    lt_engine_close(e);
    lt_model_close(m);
}

/* Without context shift, a request that would not fit is refused. */
static void without_it_a_longer_text_is_refused(void **state) {
    static answer a;
    static const int32_t prompt[] = {5, 6, 7, 8};
    lt_model *m = random_model(VOCAB, 4 * SEQ, LT_F32);
    lt_engine *e = open_engine(m, true);
    lt_request r = lt_request_defaults();
    (void)state;
    r.prompt = prompt;
    r.n_prompt = 4;
    r.max_tokens = SEQ - 3;
    r.ignore_eos = true;
    assert_int_equal(lt_engine_submit(e, &r, &a, &a.id), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "exceed the 48 tokens of a sequence"));
    r.max_tokens = SEQ - 4;
    send(e, &r, &a);
    receive_all(e, 1, 0);
    assert_int_equal(a.choices[0].n, SEQ - 4);
    lt_engine_close(e);
    lt_model_close(m);
}

int main(void) {
    alarm(300);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_those_of_what_is_left),
        cmocka_unit_test(without_it_a_longer_text_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
