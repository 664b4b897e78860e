/* A model with a score head in the engine: its values are those of transformers
 * (tools/make_objective_goldens.py), on each backend, alone and in a batch, computed or from the
 * prefix cache, with the same bits; what it cannot do is refused. */
#include "unit/serve/fleet.h"

#include "unit/score_golden.h"

typedef struct {
    score_golden golden;
    lt_engine *engine;
} fixture;

static void open_fixture(fixture *f, const lt_backend *b) {
    lt_engine_options o = lt_engine_defaults();
    score_golden_open(&f->golden, &(lt_model_options){.dtype = b != NULL ? LT_BF16 : LT_F32,
                                                      .device = device_of(b)});
    o.max_seq = 64;
    o.deterministic = true;
    must(lt_engine_open(&f->engine, f->golden.model, &o), "engine");
}

static void close_fixture(fixture *f) {
    lt_engine_close(f->engine);
    score_golden_close(&f->golden);
}

static lt_request request_of(const fixture *f, int row) {
    lt_request r = lt_request_defaults();
    r.prompt = f->golden.tokens + row * f->golden.seq;
    r.n_prompt = f->golden.ends[row] + 1;
    r.max_tokens = 0;
    r.embed = r.score = true;
    return r;
}

static void compare(const lt_backend *b, double tolerance) {
    static answer answers[2];
    fixture f;
    open_fixture(&f, b);
    for (int i = 0; i < 2; i++) {
        const lt_request r = request_of(&f, i);
        send(f.engine, &r, &answers[i]);
    }
    receive_all(f.engine, 2, 1);
    for (int i = 0; i < 2; i++) {
        const double got = (double)answers[i].embedding[0];
        assert_int_equal(answers[i].choices[0].finish, LT_FINISH_LENGTH);
        if (!(fabs(got - f.golden.values[i]) < tolerance)) {
            fail_msg("row %d: %.8g, expected %.8g", i, got, f.golden.values[i]);
        }
    }
    close_fixture(&f);
}

static void values_are_those_of_transformers(void **state) {
    (void)state;
    compare(NULL, 1e-5);
}

static void values_on_a_gpu(void **state) {
    (void)state;
    if (gpu_backend() == NULL) {
        skip();
    }
    compare(gpu_backend(), 0.02);
}

static void values_keep_their_bits(void **state) {
    enum { N = 24 };
    static answer alone[2], among[N];
    lt_engine_stats stats;
    fixture f;
    (void)state;
    open_fixture(&f, NULL);
    for (int i = 0; i < 2; i++) {
        const lt_request r = request_of(&f, i);
        send(f.engine, &r, &alone[i]);
        receive_all(f.engine, 1, 1);
    }
    for (int i = 0; i < N; i++) { /* Some ask for embeddings. */
        lt_request r = request_of(&f, i % 2);
        r.score = i % 5 != 4;
        send(f.engine, &r, &among[i]);
    }
    receive_all(f.engine, N, 0);
    for (int i = 0; i < N; i++) {
        double length = 0;
        if (i % 5 != 4) {
            assert_memory_equal(among[i].embedding, alone[i % 2].embedding, sizeof(float));
            continue;
        }
        for (int64_t c = 0; c < lt_model_get_spec(f.golden.model)->width; c++) {
            length += (double)among[i].embedding[c] * (double)among[i].embedding[c];
        }
        assert_true(fabs(length - 1) < 1e-5);
    }
    lt_engine_get_stats(f.engine, &stats);
    assert_true(stats.cached_tokens > 0);
    assert_int_equal(stats.pages_used, 0);
    close_fixture(&f);
}

/* Several tokens of a text, in steps of the engine that end between them: the value of a token
 * has the bits that it has at the end of a text. */
static void values_of_several_tokens(void **state) {
    enum { MOST = 64 };
    static answer several, alone[MOST];
    int32_t at[MOST];
    lt_engine_options o = lt_engine_defaults();
    lt_engine_stats stats;
    fixture f;
    lt_request r;
    (void)state;
    score_golden_open(&f.golden, &(lt_model_options){.dtype = LT_F32});
    o.max_seq = 64;
    o.deterministic = true;
    o.step_tokens = 5;
    must(lt_engine_open(&f.engine, f.golden.model, &o), "engine");
    r = request_of(&f, 0);
    for (int i = 0; i < r.n_prompt; i++) { /* Then their pages are in the prefix cache. */
        lt_request one = r;
        at[i] = i;
        one.n_prompt = i + 1;
        send(f.engine, &one, &alone[i]);
        receive_all(f.engine, 1, 1);
    }
    r.score_at = at;
    r.n_score_at = r.n_prompt;
    send(f.engine, &r, &several);
    receive_all(f.engine, 1, r.n_score_at);
    for (int i = 0; i < r.n_prompt; i++) {
        assert_memory_equal(&several.embedding[i], alone[i].embedding, sizeof(float));
    }
    r.score_at = at + 2; /* Not from the first token on. */
    r.n_score_at = r.n_prompt - 2;
    send(f.engine, &r, &several);
    receive_all(f.engine, 1, r.n_score_at);
    assert_memory_equal(several.embedding, alone[2].embedding, sizeof(float));
    lt_engine_get_stats(f.engine, &stats);
    assert_int_equal(stats.pages_used, 0);
    close_fixture(&f);
}

static void bad_tokens_are_refused(void **state) {
    static const struct {
        int32_t at[2];
        int64_t n;
        const char *says;
    } cases[] = {{{-1, 0}, 1, "scores at token -1"},
                 {{3, 3}, 2, "scores at token 3"},
                 {{0, 1000}, 2, "scores at token 1000"},
                 {{0, 1}, 2, "must be the prompt's last"}};
    fixture f;
    uint64_t id;
    (void)state;
    open_fixture(&f, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_request r = request_of(&f, 0);
        r.score_at = cases[i].at;
        r.n_score_at = cases[i].n;
        assert_int_equal(lt_engine_submit(f.engine, &r, NULL, &id), LT_ERR_ARG);
        assert_non_null(strstr(lt_error_message(), cases[i].says));
    }
    close_fixture(&f);
}

static void text_is_refused(void **state) {
    lt_model *m;
    lt_engine *e = NULL;
    lt_request r;
    fixture f;
    uint64_t id;
    (void)state;
    open_fixture(&f, NULL);
    r = request_of(&f, 0);
    r.embed = false;
    r.max_tokens = 4;
    assert_int_equal(lt_engine_submit(f.engine, &r, NULL, &id), LT_ERR_UNSUPPORTED);
    assert_non_null(strstr(lt_error_message(), "score head"));
    r = request_of(&f, 0);
    r.prompt_logprobs = 0;
    assert_int_equal(lt_engine_submit(f.engine, &r, NULL, &id), LT_ERR_UNSUPPORTED);
    m = random_model(64, 64, LT_F32);
    must(lt_engine_open(&e, m, NULL), "engine");
    r = request_of(&f, 0);
    assert_int_equal(lt_engine_submit(e, &r, NULL, &id), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "no score head"));
    lt_engine_close(e);
    lt_model_close(m);
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_transformers),
        cmocka_unit_test(values_on_a_gpu),
        cmocka_unit_test(values_keep_their_bits),
        cmocka_unit_test(values_of_several_tokens),
        cmocka_unit_test(bad_tokens_are_refused),
        cmocka_unit_test(text_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
