/* The order of a step's rows on a GPU: requests that begin with the same page are adjacent,
 * whenever they arrived, and give the output that they give alone; on a host, rows are in the
 * order of arrival. */
#include "unit/serve/fleet.h"

#include "serve/engine_impl.h"

enum { V = 300, PAGE = 16, SHARED = 2 * PAGE, PROMPT = SHARED + 3, NEW = 6, N = 4 };

static void ask(lt_engine *e, const int32_t *prompt, int64_t n_new, answer *a) {
    lt_request r = lt_request_defaults();
    r.prompt = prompt;
    r.n_prompt = PROMPT;
    r.max_tokens = n_new;
    r.ignore_eos = true;
    r.sampling.temperature = 0;
    send(e, &r, a);
}

/* Two prompts that are in the cache, then four requests that begin with one or the other in turn;
 * place: the place of each in the last step. */
static void in_turn(const lt_backend *backend, bool ahead, const int32_t place[N]) {
    static answer answers[N], alone[N];
    uint64_t version;
    int32_t prompts[N][PROMPT];
    lt_engine_options o = lt_engine_defaults();
    lt_engine *e = NULL;
    lt_model *m = random_model_on(V, 64, LT_BF16, 0.0f, backend);
    o.max_running = N;
    o.max_seq = 64;
    o.page_tokens = PAGE;
    o.ahead = ahead;
    o.deterministic = true;
    must(lt_engine_open(&e, m, &o), "engine");
    for (int i = 0; i < N; i++) {
        fill_prompt(prompts[i], SHARED, V, (uint64_t)(i % 2));
        fill_prompt(prompts[i] + SHARED, PROMPT - SHARED, V, (uint64_t)i + 10);
    }
    for (int i = 0; i < N; i++) { /* The first two leave their pages to the others. */
        ask(e, prompts[i], NEW, &alone[i]);
        receive_all(e, 1, 0);
    }
    must(lt_engine_hold(e, LT_HOLD_FINISH), "hold");
    for (int i = 0; i < N; i++) {
        ask(e, prompts[i], NEW, &answers[i]);
    }
    must(lt_engine_refresh(e, &version), "go on");
    receive_all(e, N, 0);
    must(lt_engine_hold(e, LT_HOLD_FINISH), "hold"); /* No step runs now. */
    for (int i = 0; i < N; i++) {
        assert_int_equal(answers[i].cached_tokens, SHARED);
        assert_int_equal(e->room.item_at[i], place[i]);
        assert_equal(&answers[i].choices[0], &alone[i].choices[0], "alone and beside others");
    }
    lt_engine_close(e);
    lt_model_close(m);
}

static void on_a_gpu(void **state) {
    (void)state;
    if (gpu_backend() == NULL) {
        skip();
    }
    in_turn(gpu_backend(), false, (const int32_t[N]){0, 2, 1, 3});
    in_turn(gpu_backend(), true, (const int32_t[N]){0, 2, 1, 3});
}

static void on_a_host(void **state) {
    (void)state;
    in_turn(NULL, false, (const int32_t[N]){0, 1, 2, 3});
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(on_a_gpu), cmocka_unit_test(on_a_host)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
