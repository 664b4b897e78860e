/* Background requests on an engine: others take their places at once and run without them; they
 * resume and give, bit for bit, the output that they give alone; and they take no place in the
 * queue. */
#include "unit/serve/fleet.h"

enum { N_BEHIND = 5, LONG = 240, SHORT = 100 };

static lt_engine_options two_places(void) {
    lt_engine_options o = lt_engine_defaults();
    o.deterministic = true;
    o.max_running = 2;
    o.max_waiting = 0;
    o.max_seq = 256;
    return o;
}

static lt_request request(int32_t *prompt, int64_t i, int64_t n, bool background) {
    lt_request r = lt_request_defaults();
    fill_prompt(prompt, 8, 97, (uint64_t)i);
    r.prompt = prompt;
    r.n_prompt = 8;
    r.max_tokens = n;
    r.ignore_eos = true;
    r.logprobs = 0;
    r.sampling.seed = (uint64_t)i;
    r.background = background;
    return r;
}

static int64_t count_tokens(const answer *a, int64_t n) {
    int64_t tokens = 0;
    for (int64_t i = 0; i < n; i++) {
        tokens += a[i].n_tokens;
    }
    return tokens;
}

static void others_run_as_if_alone(void **state) {
    static answer behind[N_BEHIND], alone, first[2];
    lt_model *m = random_model(97, 256, LT_F32);
    lt_engine_options o = two_places();
    lt_engine *e = NULL;
    int32_t prompt[8];
    int64_t n_done = 0, before;
    (void)state;

    must(lt_engine_open(&e, m, &o), "engine");
    for (int64_t i = 0; i < N_BEHIND; i++) { /* There are only two places, and no queue. */
        const lt_request r = request(prompt, i, LONG, true);
        send(e, &r, &behind[i]);
    }
    while (count_tokens(behind, N_BEHIND) < 20) {
        n_done += receive(e, 0);
    }
    for (int64_t i = 0; i < 2; i++) {
        const lt_request r = request(prompt, 50 + i, SHORT, false);
        send(e, &r, &first[i]);
    }
    while (first[0].n_tokens == 0) {
        n_done += receive(e, 0);
    }
    before = count_tokens(behind, N_BEHIND);
    while (!first[0].done || !first[1].done) {
        n_done += receive(e, 0);
    }
    /* Some events came in the same call as the first and the last of the others. If they ran
     * together, there would be 200 more. */
    assert_in_range(count_tokens(behind, N_BEHIND) - before, 0, FLEET_EVENTS + 8);
    receive_all(e, N_BEHIND + 2 - n_done, 0);
    for (int64_t i = 0; i < N_BEHIND; i++) {
        const lt_request r = request(prompt, i, LONG, false);
        send(e, &r, &alone);
        receive_all(e, 1, 0);
        assert_equal(&behind[i].choices[0], &alone.choices[0], "in the background");
    }
    lt_engine_close(e);
    lt_model_close(m);
}

/* background_tokens lets them continue beside others. */
static void some_may_continue(void **state) {
    static answer behind, other;
    lt_model *m = random_model(97, 256, LT_F32);
    lt_engine_options o = two_places();
    lt_engine *e = NULL;
    int32_t prompt[8];
    lt_engine_stats stats;
    lt_request r;
    (void)state;

    o.background_tokens = 1;
    must(lt_engine_open(&e, m, &o), "engine");
    must(lt_engine_hold(e, LT_HOLD_FINISH), "hold"); /* Both begin in the same step. */
    r = request(prompt, 1, LONG, true);
    send(e, &r, &behind);
    r = request(prompt, 2, SHORT, false);
    send(e, &r, &other);
    must(lt_engine_refresh(e, NULL), "refresh");
    receive_all(e, 2, 0);
    lt_engine_get_stats(e, &stats);
    assert_in_range(stats.steps, LONG, LONG + 20); /* One after the other: LONG + SHORT. */
    lt_engine_close(e);
    lt_model_close(m);
}

static void the_queue_is_for_others(void **state) {
    static answer behind[2], others[2], refused;
    lt_model *m = random_model(97, 256, LT_F32);
    lt_engine_options o = two_places();
    lt_engine *e = NULL;
    int32_t prompt[8];
    lt_request r;
    (void)state;

    must(lt_engine_open(&e, m, &o), "engine");
    for (int64_t i = 0; i < 2; i++) {
        r = request(prompt, i, LONG, true);
        send(e, &r, &behind[i]);
    }
    while (count_tokens(behind, 2) < 4) {
        receive(e, 0);
    }
    for (int64_t i = 0; i < 2; i++) {
        r = request(prompt, i, LONG, false);
        send(e, &r, &others[i]);
    }
    while (others[0].n_tokens == 0 || others[1].n_tokens == 0) {
        receive(e, 0);
    }
    r = request(prompt, 9, SHORT, false);
    assert_int_equal(lt_engine_submit(e, &r, &refused, &refused.id), LT_ERR_LIMIT);
    receive_all(e, 4, 0);
    lt_engine_close(e);
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_run_as_if_alone),
        cmocka_unit_test(some_may_continue),
        cmocka_unit_test(the_queue_is_for_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
