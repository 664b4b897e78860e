/* A call of the device that fails ends a pass, a session or adapters with its error: every op,
 * transfer and fill of forward, backward, losses and log-probabilities, for models whose layers
 * differ most, is made to fail in turn. */
#include "unit/model/adapters.h"

#include "unit/failing_ops.h"

typedef struct {
    golden g;
    lt_pass_options options;
    lt_session *session;
    float *rows; /* (B, T, V) */
} bench;

static const char *const cases[] = {"llama3", "gpt2",    "gemma2",  "phi3",
                                    "switch", "gpt_oss", "apertus", "qwen3_moe"};

/* A pass is not used again after a failure. */
static lt_err with_pass(bench *b, lt_err (*run)(bench *b, lt_pass *p)) {
    lt_pass *p = NULL;
    failing.paused = true;
    must(lt_pass_open(&p, b->g.model, &b->options), b->g.name);
    failing.paused = false;
    const lt_err err = run(b, p);
    failing.paused = true;
    lt_pass_close(p);
    failing.paused = false;
    return err;
}

static lt_err train_once(bench *b, lt_pass *p) {
    lt_pass_result r;
    return lt_pass_train(p, &b->g.batch, 1.0f, &r);
}

static lt_err evaluate_once(bench *b, lt_pass *p) {
    lt_pass_result r;
    return lt_pass_eval(p, &b->g.batch, &r, b->rows);
}

static lt_err aim_once(bench *b, lt_pass *p) {
    LT_TRY(lt_pass_logprobs(p, 0, &b->g.batch, b->rows));
    return lt_pass_logprobs_backward(p, 0, b->rows, 1.0f);
}

static lt_err train(void *of) {
    return with_pass(of, train_once);
}

static lt_err evaluate(void *of) {
    return with_pass(of, evaluate_once);
}

static lt_err objective(void *of) {
    return with_pass(of, aim_once);
}

static lt_err converse(void *of) {
    bench *b = of;
    const int32_t *ids = b->g.batch.tokens;
    const int64_t seq = 0;
    int32_t best[4];
    lt_session_truncate(b->session, 0, 0);
    LT_TRY(lt_session_eval(b->session, 0, ids, 5, b->rows));
    LT_TRY(lt_session_step(b->session, &seq, ids + 5, 1, b->rows));
    LT_TRY(lt_session_eval_all(b->session, 0, ids + 6, 3, b->rows));
    return lt_session_score(b->session, 0, ids + 9, 4, ids + 10, b->rows, best);
}

static void open_bench(bench *b, const char *name, const lt_pass_options *o) {
    b->options = *o;
    failing_at(0);
    golden_open(&b->g, name, failing_backend(), LT_F32);
    b->rows = calloc((size_t)(b->g.batch.batch * b->g.batch.seq * b->g.model->spec.vocab_size),
                     sizeof *b->rows);
    assert_non_null(b->rows);
    b->options.batch = b->g.batch.batch;
    b->options.seq = b->g.batch.seq;
    b->options.loss_chunk_rows = 16;
}

static void close_bench(bench *b) {
    lt_session_close(b->session);
    golden_close(&b->g);
    free(b->rows);
    *b = (bench){.rows = NULL};
}

static void passes(void **state) {
    static const lt_recompute levels[] = {LT_RECOMPUTE_NONE, LT_RECOMPUTE_SELECTIVE,
                                          LT_RECOMPUTE_FULL};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench b = {.rows = NULL};
        open_bench(&b, cases[i],
                   &(lt_pass_options){.train = true, .recompute = levels[i % 3], .z_coef = 1e-4f});
        failing_each(train, &b, cases[i]);
        failing_each(evaluate, &b, cases[i]);
        close_bench(&b);
    }
}

static void log_probabilities(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        bench b = {.rows = NULL};
        open_bench(&b, cases[i],
                   &(lt_pass_options){.train = true, .weights = true, .keep_logits = i == 1});
        failing_each(objective, &b, cases[i]);
        close_bench(&b);
    }
}

static void adapters(void **state) {
    static const struct {
        const char *name;
        lt_lora_options options;
    } with[] = {{"llama3", {.rank = 2, .alpha = 2, .targets = LT_LORA_ALL}},
                {"qwen2", {.rank = 2, .alpha = 2, .dora = true, .targets = LT_LORA_ALL}},
                {"llama3", {.rank = 2, .alpha = 2, .dropout = 0.5, .targets = LT_LORA_ALL}},
                {"qwen3_moe", {.rank = 2, .alpha = 2, .targets = LT_LORA_ALL}}};
    (void)state;
    for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
        bench b = {.rows = NULL};
        lt_lora *l = NULL;
        char path[256];
        open_bench(&b, with[i].name, &(lt_pass_options){.train = true, .lora = with[i].options});
        lt_model_close(b.g.model);
        (void)snprintf(path, sizeof path, GOLDEN_ROOT "%s", b.g.name);
        b.g.model = open_base(path, failing_backend(), LT_F32);
        must(lt_lora_open(&l, b.g.model, &with[i].options, 1), "adapters");
        failing_each(train, &b, b.g.name);
        lt_lora_close(l);
        close_bench(&b);
    }
}

static void sessions(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench b = {.rows = NULL};
        open_bench(&b, cases[i], &(lt_pass_options){.train = false});
        must(lt_session_open(&b.session, b.g.model, 1, b.g.batch.seq), cases[i]);
        failing_each(converse, &b, cases[i]);
        close_bench(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(passes),
                                       cmocka_unit_test(log_probabilities),
                                       cmocka_unit_test(adapters), cmocka_unit_test(sessions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
