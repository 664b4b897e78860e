/* Rows that are shared (shared.h): the tables of small batches, worked out by hand; and passes
 * that share rows against passes that do not, on the CPU and, if there is one, on the GPU.
 *
 * Log-probabilities are computed by the same products, but with other numbers of rows: 1e-5.
 * Gradients of a prompt are added up before a product instead of after it: 5e-6 of the largest;
 * on a GPU, whose products of F32 are those of test_cuda.c, 2e-5. */
#include "unit/model/golden.h"

#include "base/rng.h"
#include "model/alloc.h"
#include "model/family.h"
#include "model/pass/pass_impl.h"

/* ---- Tables ---- */

typedef struct {
    lt_pass_batch b;
    int32_t memory[5 * 64 + 1], tokens[64], labels[64];
} small;

/* Labels are 1 where `learnt` has an x. */
static lt_pass_batch *batch_of(small *s, int64_t batch, int64_t seq, const char *tokens,
                               const char *learnt) {
    for (int64_t i = 0; i < batch * seq; i++) {
        s->tokens[i] = tokens[i];
        s->labels[i] = learnt[i] == 'x' ? 1 : -1;
    }
    s->b = (lt_pass_batch){.batch = batch, .seq = seq, .tokens = s->tokens, .labels = s->labels};
    return &s->b;
}

static void assert_ids(const int32_t *got, const int32_t *want, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++) {
        if (got[i] != want[i]) {
            fail_msg("%s[%lld] = %d, not %d", what, (long long)i, (int)got[i], (int)want[i]);
        }
    }
}
#define ASSERT_IDS(got, ...)                                                                       \
    do {                                                                                           \
        static const int32_t want[] = {__VA_ARGS__};                                               \
        assert_ids(got, want, (int64_t)(sizeof want / sizeof *want), #got);                        \
    } while (0)

/* Two answers to a prompt of three tokens and one to another, whose first two tokens are the
 * same. A token of a row with a label, as the last of a prompt is, is not shared; what follows
 * the last label is not needed, nor is a row without labels. */
static void tables_of_three_rows(void **state) {
    small s;
    lt_shared_tables t;
    (void)state;
    batch_of(&s, 4, 6,
             "abcpq."
             "abcrst"
             "abxy.."
             "zz....",
             "  xx  "
             "  xxx "
             " xx   "
             "      ");
    assert_int_equal(lt_shared_plan(s.memory, &s.b, 1), 9);
    t = lt_shared_tables_in(s.memory, 24, 9);
    ASSERT_IDS(t.spread, 0, 1, 2, 3, -1, -1, 0, 1, 4, 5, 6, -1, 0, 7, 8, -1, -1, -1, -1, -1, -1, -1,
               -1, -1);
    ASSERT_IDS(t.first, 0, 1, 2, 3, -1, -1, -1, -1, 4, 5, 6, -1, -1, 7, 8, -1, -1, -1, -1, -1, -1,
               -1, -1, -1);
    ASSERT_IDS(t.tokens, 0, 6, 12, 1, 7, 2, 3, 8, 9, 10, 13, 14);
    ASSERT_IDS(t.start, 0, 3, 5, 6, 7, 8, 9, 10, 11, 12);
    ASSERT_IDS(t.place, 0, 1, 2, 3, 8, 9, 10, 13, 14);
    /* Rounded up to whole tiles. */
    assert_int_equal(lt_shared_plan(s.memory, &s.b, 4), 12);
    t = lt_shared_tables_in(s.memory, 24, 12);
    ASSERT_IDS(t.start, 0, 3, 5, 6, 7, 8, 9, 10, 11, 12, 12, 12, 12);
    ASSERT_IDS(t.place, 0, 1, 2, 3, 8, 9, 10, 13, 14, -1, -1, -1);
}

/* The second row shares a token that has a label in the first one, and none that follows the last
 * label of the first one. */
static void labels_of_the_row_before(void **state) {
    small s;
    lt_shared_tables t;
    (void)state;
    batch_of(&s, 2, 6,
             "abcde."
             "abcdef",
             " xx   "
             "    xx");
    assert_int_equal(lt_shared_plan(s.memory, &s.b, 1), 6);
    t = lt_shared_tables_in(s.memory, 12, 6);
    ASSERT_IDS(t.spread, 0, 1, 2, -1, -1, -1, 0, 1, 2, 3, 4, 5);
    ASSERT_IDS(t.place, 0, 1, 2, 9, 10, 11);
}

/* Sharing less than a sixteenth saves nothing. */
static void few_rows_are_not_shared(void **state) {
    small s;
    (void)state;
    batch_of(&s, 2, 16,
             "abcdefghijklmnop"
             "abcdefghijklmnop",
             " xxxxxxxxxxxxxxx"
             " xxxxxxxxxxxxxxx");
    assert_int_equal(lt_shared_plan(s.memory, &s.b, 1), 0);
    batch_of(&s, 2, 16,
             "abcdefghijklmnop"
             "abcdefghijklmnop",
             "  xxxxxxxxxxxxxx"
             "  xxxxxxxxxxxxxx");
    assert_int_equal(lt_shared_plan(s.memory, &s.b, 1), 30);
    assert_int_equal(lt_shared_plan(s.memory, &s.b, 16), 0); /* 32, in whole tiles. */
    batch_of(&s, 2, 16,
             "abcdefghijklmnop"
             "abcdefghijklmnop",
             "                "
             "                ");
    assert_int_equal(lt_shared_plan(s.memory, &s.b, 1), 0);
}

/* ---- Passes ---- */

enum { B = 6, T = 96, CUT = 90, N = B * T, VOCAB = 300, COPIES = 3 };

typedef struct {
    int32_t tokens[N], labels[N];
    float d[N];
    lt_pass_batch b;
} batch;

/* Groups of three answers to prompts of 37 and of 60 tokens; answers of 8 to 30 tokens. */
static void make(batch *x) {
    static const int64_t prompts[] = {37, 60}, answers[] = {30, 8, 21, 9, 30, 13};
    *x = (batch){.b = {.batch = B, .seq = T}};
    for (int64_t row = 0; row < B; row++) {
        const int64_t prompt = prompts[row / COPIES], end = prompt + answers[row];
        for (int64_t t = 0; t < T; t++) {
            const int64_t i = row * T + t, key = t < prompt ? row / COPIES : 10 + row;
            x->tokens[i] = t < end ? (int32_t)((t * 7919 + key * 104729) % VOCAB) : 0;
            x->labels[i] = -1;
        }
        for (int64_t t = prompt; t < end; t++) {
            x->labels[row * T + t - 1] = x->tokens[row * T + t];
            x->d[row * T + t - 1] = (float)((row * T + t) % 11 - 5) / 8.0f;
        }
    }
    x->b.tokens = x->tokens;
    x->b.labels = x->labels;
}

typedef struct {
    float logprobs[N], losses[N], *gradients;
    lt_pass_result eval;
    int64_t rows;
} outcome;

/* Batches of other shapes run before, so that their gradients are left in all scratch memory: one
 * row, and the same rows with less padding, so that as many are computed. */
static void run(lt_pass *p, const batch *x, outcome *out) {
    static int32_t tokens[N], labels[N];
    const lt_param_buffer *g = lt_pass_gradients(p);
    lt_pass_batch one = x->b, cut = {B, CUT, tokens, labels, NULL, NULL, NULL, NULL, 0, 0};
    one.batch = 1;
    must(lt_pass_logprobs(p, 0, &one, out->logprobs), "one row");
    must(lt_pass_logprobs_backward(p, 0, x->d, 1.0f), "backward of one row");
    for (int64_t i = 0; i < B * CUT; i++) {
        tokens[i] = x->tokens[i / CUT * T + i % CUT];
        labels[i] = x->labels[i / CUT * T + i % CUT];
    }
    must(lt_pass_logprobs(p, 0, &cut, out->logprobs), "shorter rows");
    must(lt_pass_logprobs_backward(p, 0, x->d, 1.0f), "backward of shorter rows");
    must(lt_pass_eval(p, &x->b, &out->eval, out->losses), "eval");
    must(lt_pass_zero_gradients(p), "zero");
    must(lt_pass_logprobs(p, 0, &x->b, out->logprobs), "log-probabilities");
    out->rows = p->shared.rows;
    must(lt_pass_logprobs_backward(p, 0, x->d, 0.5f), "backward");
    /* A model's copies have a queue of their own. */
    must(p->exec.backend->sync(lt_pass_queue(p)), "wait");
    must(lt_model_download(p->model, out->gradients, lt_param_floats(g),
                           lt_param_buffer_bytes(&p->model->table, LT_F32)),
         "gradients");
}

static void outcome_of(lt_model *m, lt_pass_options o, bool shares, const batch *x, outcome *out) {
    lt_pass *p = NULL;
    o.shares = shares;
    must(lt_pass_open(&p, m, &o), "pass");
    out->gradients = malloc(lt_param_buffer_bytes(&m->table, LT_F32));
    assert_true(out->gradients != NULL);
    run(p, x, out);
    lt_pass_close(p);
}

static void compare(lt_model *m, const lt_pass_options *o, int64_t rows, double tolerance) {
    static batch x;
    static outcome want, got;
    make(&x);
    outcome_of(m, *o, false, &x, &want);
    outcome_of(m, *o, true, &x, &got);
    assert_int_equal(want.rows, 0);
    assert_int_equal(got.rows, rows);
    for (int64_t i = 0; i < N; i++) {
        const float error = 1e-5f * fmaxf(1.0f, -want.logprobs[i]);
        if (fabsf(got.logprobs[i] - want.logprobs[i]) > error ||
            (x.labels[i] >= 0 && fabsf(got.losses[i] - want.losses[i]) > error)) {
            fail_msg("token %lld: log-probability %.7g, not %.7g; loss %.7g, not %.7g",
                     (long long)i, (double)got.logprobs[i], (double)want.logprobs[i],
                     (double)got.losses[i], (double)want.losses[i]);
        }
    }
    assert_int_equal(got.eval.n_labels, want.eval.n_labels);
    assert_true(fabs(got.eval.loss_sum - want.eval.loss_sum) <= 1e-5 * fabs(want.eval.loss_sum));
    assert_params_near(&m->table, got.gradients, want.gradients, tolerance, "gradients");
    free(want.gradients);
    free(got.gradients);
}

/* A small model. The attention of the families differs: GPT-2 has learned positions and biases;
 * Apertus normalises q and k, which are then separate from v; Gemma 2 has windows and soft
 * caps. */
static lt_model *model_of(lt_family family, int64_t n_scores, const lt_backend *be) {
    lt_model_spec s = lt_family_get(family)->preset;
    lt_model *m = NULL;
    s.n_layers = be->host_memory ? 2 : 1; /* An emulated GPU is slow. */
    s.width = 64;
    s.n_heads = 4;
    s.n_kv_heads = family == LT_FAMILY_GPT2 ? 4 : 2;
    s.head_dim = 16;
    s.ffn_width = 96;
    s.vocab_size = VOCAB;
    s.n_scores = n_scores;
    s.max_seq = T;
    s.window = s.window > 0 ? 24 : 0;
    s.embed_scale = family == LT_FAMILY_GEMMA2 ? 8.0f : s.embed_scale;
    must(lt_model_create(
             &m, &s,
             &(lt_model_options){.dtype = LT_F32, .trainable = true, .device = device_of(be)}, 1),
         be->name);
    return m;
}

/* A head with one score, whose rows are not packed. */
static void scores_on(const lt_backend *be, int64_t rows, double tolerance) {
    lt_model *m = model_of(LT_FAMILY_APERTUS, 1, be);
    const lt_pass_options o = {.batch = B, .seq = T, .train = true, .weights = true, .masks = true};
    compare(m, &o, rows, tolerance);
    lt_model_close(m);
}

/* Rows: 36 + 59 tokens of prompts, and in each row the last token of the prompt and the answer
 * without its last token, which follows the last label: 36 + 59 + 6 + 111 - 6 = 206. On a GPU,
 * which may be emulated, each family has one level of recomputation. */
static void on(const lt_backend *be, int64_t rows, double tolerance) {
    static const lt_family families[] = {LT_FAMILY_GPT2, LT_FAMILY_APERTUS, LT_FAMILY_GEMMA2};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        lt_model *m = model_of(families[i], 0, be);
        for (lt_recompute level = LT_RECOMPUTE_NONE; level <= LT_RECOMPUTE_FULL; level++) {
            const lt_pass_options o = {.batch = B,
                                       .seq = T,
                                       .train = true,
                                       .recompute = level,
                                       .loss_chunk_rows = 48,
                                       .weights = true,
                                       .masks = true,
                                       .keep_logits = level == LT_RECOMPUTE_NONE};
            if (be->host_memory || (size_t)level == i) {
                compare(m, &o, rows, tolerance);
            }
        }
        lt_model_close(m);
    }
}

static void the_same_on_the_cpu(void **state) {
    (void)state;
    on(lt_backend_cpu(), 208, 5e-6); /* In tiles of 16. */
    scores_on(lt_backend_cpu(), 208, 5e-6);
}

static void the_same_on_the_gpu(void **state) {
    (void)state;
    if (gpu_backend() == NULL) {
        skip();
    }
    on(gpu_backend(), 256, 2e-5); /* In tiles of 128. */
    scores_on(gpu_backend(), 256, 2e-5);
}

/* Documents of a packed batch are not shared, and a teacher's rows are in the order of the batch.
 * Dropout and several adapters identify a row by its place; a stage of a pipeline holds no
 * labels, or no tokens; experts count their load. */
static void some_rows_are_not_shared(void **state) {
    static batch x;
    static int32_t documents[N];
    static float logprobs[N];
    lt_model *m = model_of(LT_FAMILY_APERTUS, 0, lt_backend_cpu());
    lt_pass *p = NULL;
    const lt_pass_options o = {
        .batch = B, .seq = T, .weights = true, .masks = true, .shares = true};
    lt_pass_options refused[] = {o, o, o, o};
    lt_model_spec experts = *lt_model_get_spec(m);
    (void)state;
    experts.n_experts = 4;
    experts.top_k = 2;
    make(&x);
    must(lt_pass_open(&p, m, &o), "pass");
    must(lt_pass_logprobs(p, 0, &x.b, logprobs), "shared");
    assert_int_equal(p->shared.rows, 208);
    assert_int_equal(lt_pass_shared(p).needed, 3 * 37 + 3 * 60 + 111 - 6);
    x.b.doc_start = documents;
    must(lt_pass_logprobs(p, 0, &x.b, logprobs), "with documents");
    assert_int_equal(p->shared.rows, 0);
    assert_int_equal(lt_pass_shared(p).tokens, 2 * N);
    assert_int_equal(lt_pass_shared(p).needed, 3 * 37 + 3 * 60 + 111 - 6 + N);
    assert_int_equal(lt_pass_shared(p).rows, 208 + N);
    x.b.doc_start = NULL;
    lt_pass_aim(p, &(lt_pass_target){.temperature = 1.0f});
    must(lt_pass_load(p, 0, &x.b), "load for a teacher");
    assert_int_equal(p->shared.rows, 0);
    lt_pass_aim(p, NULL);
    lt_pass_close(p);
    refused[0].lora.dropout = 0.1;
    refused[1].joins = 2;
    refused[2].first_layer = 1;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const lt_model_spec *s = i == 3 ? &experts : lt_model_get_spec(m);
        lt_pass_options without = refused[i];
        lt_pass_memory with, want;
        without.shares = false;
        must(lt_pass_measure(&with, s, LT_F32, &refused[i]), "measure");
        must(lt_pass_measure(&want, s, LT_F32, &without), "measure");
        assert_int_equal(with.scratch_bytes, want.scratch_bytes);
    }
    lt_model_close(m);
}

/* Only three ids, so that rows begin alike by chance, and some are equal; any labels, or none. */
static void draw(batch *x, lt_rng *r) {
    const int64_t n_rows = 1 + (int64_t)lt_rng_below(r, B), seq = 2 + (int64_t)lt_rng_below(r, 31);
    *x = (batch){.b = {.batch = n_rows, .seq = seq, .tokens = x->tokens, .labels = x->labels}};
    for (int64_t row = 0; row < n_rows; row++) {
        const int64_t alike = row > 0 ? (int64_t)lt_rng_below(r, (uint64_t)seq + 1) : 0;
        const uint64_t often = lt_rng_below(r, 8); /* 0: no labels. */
        for (int64_t t = 0; t < seq; t++) {
            const int64_t i = row * seq + t;
            x->tokens[i] = t < alike ? x->tokens[i - seq] : (int32_t)lt_rng_below(r, 3);
            x->labels[i] = lt_rng_below(r, 8) < often && t >= alike / 2
                               ? (int32_t)lt_rng_below(r, 3)
                               : -1;
            x->d[i] = x->labels[i] >= 0 ? (float)lt_rng_below(r, 9) - 4.0f : 0.0f;
        }
    }
}

static void objective(lt_pass *p, const batch *x, float *logprobs, float *gradients) {
    must(lt_pass_zero_gradients(p), "zero");
    must(lt_pass_logprobs(p, 0, &x->b, logprobs), "log-probabilities");
    must(lt_pass_logprobs_backward(p, 0, x->d, 1.0f), "backward");
    must(lt_model_download(p->model, gradients, lt_param_floats(lt_pass_gradients(p)),
                           lt_param_buffer_bytes(&p->model->table, LT_F32)),
         "gradients");
}

/* If only first tokens have labels, the gradients of q and k are 0 except for rounding. So an
 * error is compared with the parameter's largest gradient or, if that is more, with a thousandth
 * of the largest gradient of all. */
static void assert_near_all(const lt_param_table *t, const float *got, const float *want, int k) {
    const int64_t n = (int64_t)(lt_param_buffer_bytes(t, LT_F32) / sizeof(float));
    const double least = 1e-3 * max_abs(want, n);
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        const double largest = max_abs(want + p->whole_at, p->count);
        const double scale = fmax(largest, least),
                     error = largest * distance(got + p->whole_at, want + p->whole_at, p->count);
        if (!(error <= 1e-5 * scale)) {
            fail_msg("batch %d: the gradient of %s is off by %.3g of %.3g", k, p->name, error,
                     scale);
        }
    }
}

/* The same two passes for all batches, so that each finds what the previous ones left. */
static void drawn_batches(void **state) {
    static batch x;
    static float want[N], got[N];
    lt_model *m = model_of(LT_FAMILY_APERTUS, 0, lt_backend_cpu());
    const size_t bytes = lt_param_buffer_bytes(&m->table, LT_F32);
    float *wanted = malloc(bytes), *gradients = malloc(bytes);
    lt_pass *apart = NULL, *shared = NULL;
    lt_pass_options o = {.batch = B, .seq = T, .train = true, .weights = true, .masks = true};
    lt_rng r = {.seed = 20261129};
    int n_shared = 0;
    (void)state;
    assert_true(wanted != NULL && gradients != NULL);
    must(lt_pass_open(&apart, m, &o), "pass");
    o.shares = true;
    must(lt_pass_open(&shared, m, &o), "pass that shares");
    for (int k = 0; k < 60; k++) {
        draw(&x, &r);
        objective(apart, &x, want, wanted);
        objective(shared, &x, got, gradients);
        n_shared += shared->shared.rows > 0;
        for (int64_t i = 0; i < x.b.batch * x.b.seq; i++) {
            if (fabsf(got[i] - want[i]) > 1e-5f * fmaxf(1.0f, -want[i])) {
                fail_msg("batch %d, token %lld: %.7g, not %.7g", k, (long long)i, (double)got[i],
                         (double)want[i]);
            }
        }
        assert_near_all(&m->table, gradients, wanted, k);
    }
    assert_in_range(n_shared, 20, 55);
    lt_pass_close(apart);
    lt_pass_close(shared);
    lt_model_close(m);
    free(wanted);
    free(gradients);
}

/* 16 rows leave the last of five ranks of tp without one. */
static void each_rank_has_rows(void **state) {
    static const struct {
        int n_tp;
        bool shares;
    } cases[] = {{1, true}, {4, true}, {5, false}};
    const lt_backend *be = lt_backend_cpu();
    const lt_model_spec spec = {.n_layers = 1};
    lt_exec r = {.backend = be, .device = device_of(be)};
    small s;
    (void)state;
    batch_of(&s, 2, 16,
             "abcdefgh........"
             "abcdefij........",
             "      xx        "
             "      xx        ");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const lt_stage_options o = {.spec = &spec,
                                    .rows = 32,
                                    .loss = true,
                                    .n_sets = 1,
                                    .shares = true,
                                    .n_tp = cases[i].n_tp};
        const lt_stage_slot *slot;
        lt_stage stage = {0};
        must(lt_stage_open(&stage, r.device, &o), "stage");
        must(lt_stage_fill(&stage, &r, 0, &s.b, &slot), "fill");
        assert_int_equal(slot->shares, cases[i].shares);
        assert_int_equal(slot->batch * slot->seq, cases[i].shares ? 16 : 32);
        lt_stage_close(&stage);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_of_three_rows),    cmocka_unit_test(labels_of_the_row_before),
        cmocka_unit_test(few_rows_are_not_shared), cmocka_unit_test(some_rows_are_not_shared),
        cmocka_unit_test(each_rank_has_rows),      cmocka_unit_test(drawn_batches),
        cmocka_unit_test(the_same_on_the_cpu),     cmocka_unit_test(the_same_on_the_gpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
