/* The head runs only for rows whose label counts (stage.h): labels of -1 against the same labels
 * with weights of 0, for which every row is computed. It compares losses of rows, gradients,
 * log-probabilities and their gradients, on the CPU and on a GPU if there is one, where passes
 * are recorded.
 *
 * Losses of counted rows are sums of the same products in the same order or in other blocks: 1e-5;
 * gradients add the same numbers, with zeros between or without: 5e-6 of the largest; on a GPU,
 * whose products of F32 are those of test_cuda.c, 2e-5. */
#include "unit/model/golden.h"

#include "model/alloc.h"
#include "model/family.h"
#include "model/pass/pass_impl.h"

enum { B = 2, T = 136, ROWS = B * T, VOCAB = 300 };

typedef struct {
    int32_t tokens[ROWS], all[ROWS], some[ROWS];
    float weights[ROWS], any[ROWS]; /* any: the same where labels count. */
    lt_pass_batch whole, masked, weighted;
    int64_t counted;
} batches;

/* In each row of the batch the last `answer` labels count, except for every third. */
static void make(batches *b, int64_t answer) {
    *b = (batches){0};
    for (int64_t i = 0; i < ROWS; i++) {
        const bool counts = i % T >= T - answer && i % 3 != 0;
        b->tokens[i] = (int32_t)(i * 7919 % VOCAB);
        b->all[i] = (int32_t)((i * 104729 + answer) % VOCAB);
        b->some[i] = counts ? b->all[i] : -1;
        b->any[i] = 0.5f + 0.25f * (float)(i % 5);
        b->weights[i] = counts ? b->any[i] : 0.0f;
        b->counted += counts;
    }
    b->whole = (lt_pass_batch){.batch = B, .seq = T, .tokens = b->tokens, .labels = b->all};
    b->masked = b->weighted = b->whole;
    b->masked.labels = b->some;
    b->masked.weights = b->any;
    b->weighted.weights = b->weights;
}

static void gradients(lt_pass *p, float *out) {
    const lt_model *m = p->model;
    /* A model's copies have a queue of their own. */
    must(p->exec.backend->sync(lt_pass_queue(p)), "wait");
    must(lt_model_download(m, out, lt_param_floats(lt_pass_gradients(p)),
                           lt_param_buffer_bytes(&m->table, LT_F32)),
         "gradients");
}

static void train(lt_pass *p, const lt_pass_batch *b, lt_pass_result *r, float *out) {
    must(lt_pass_zero_gradients(p), "zero");
    must(lt_pass_train(p, b, 0.25f, r), "train");
    gradients(p, out);
}

/* What an objective returns: a number for each row, also for those that do not count. */
static void objective(lt_pass *p, const lt_pass_batch *b, const float *dlogprobs, float *logprobs,
                      float *out) {
    must(lt_pass_zero_gradients(p), "zero");
    must(lt_pass_logprobs(p, 0, b, logprobs), "logprobs");
    must(lt_pass_logprobs_backward(p, 0, dlogprobs, 0.5f), "backward");
    gradients(p, out);
}

static void compare(lt_pass *p, const batches *b, int64_t head_rows, float *got, float *want,
                    double tolerance) {
    const lt_param_table *t = &p->model->table;
    float loss[ROWS], whole[ROWS], d[ROWS];
    lt_pass_result r, w;

    must(lt_pass_eval(p, &b->masked, &r, loss), "eval");
    assert_int_equal(p->sets[0].head_rows, head_rows);
    must(lt_pass_eval(p, &b->weighted, &w, whole), "eval with weights");
    assert_int_equal(p->sets[0].head_rows, ROWS);
    assert_int_equal(r.n_labels, b->counted);
    for (int64_t i = 0; i < ROWS; i++) {
        const float expected = b->weights[i] > 0.0f ? whole[i] : 0.0f;
        if (fabsf(loss[i] - expected) > 1e-5f * fmaxf(1.0f, expected)) {
            fail_msg("row %lld: loss %.7g, not %.7g", (long long)i, (double)loss[i],
                     (double)expected);
        }
    }
    assert_true(fabs(r.loss_sum - w.loss_sum) <= 1e-5 * w.loss_sum);

    train(p, &b->weighted, &w, want);
    for (int again = 0; again < 3; again++) { /* On a GPU: run, recorded, replayed. */
        /* A batch whose gradients are left in all scratch memory. */
        if (again != 1) {
            must(lt_pass_train(p, &b->whole, 1.0f, &r), "another batch");
        }
        train(p, &b->masked, &r, got);
        assert_true(fabs(r.loss_sum - w.loss_sum) <= 1e-5 * w.loss_sum);
        assert_params_near(t, got, want, tolerance, "gradients");
    }

    for (int64_t i = 0; i < ROWS; i++) {
        d[i] = b->weights[i] * (float)(i % 11 - 5);
    }
    objective(p, &b->weighted, d, whole, want);
    for (int64_t i = 0; i < ROWS; i++) {
        d[i] += b->weights[i] > 0.0f ? 0.0f : 7.0f; /* No row needs these. */
    }
    objective(p, &b->masked, d, loss, got);
    for (int64_t i = 0; i < ROWS; i++) {
        const float expected = b->weights[i] > 0.0f ? whole[i] : 0.0f;
        assert_true(fabsf(loss[i] - expected) <= 1e-5f * fmaxf(1.0f, -expected));
    }
    assert_params_near(t, got, want, tolerance, "gradients of log-probabilities");
}

static void on(const lt_backend *be, int64_t step, double tolerance) {
    /* Some rows; fewer than before, so that old ones are left in place; none; nearly all. */
    static const int64_t answers[] = {96, 30, 0, T};
    lt_model_spec s = lt_family_get(LT_FAMILY_APERTUS)->preset;
    lt_model *m = NULL;
    lt_pass *p = NULL;
    batches b;
    float *got, *want;
    s.n_layers = 1;
    s.width = 64;
    s.n_heads = 4;
    s.n_kv_heads = 2;
    s.head_dim = 16;
    s.ffn_width = 96;
    s.vocab_size = VOCAB;
    must(lt_model_create(
             &m, &s,
             &(lt_model_options){.dtype = LT_F32, .trainable = true, .device = device_of(be)}, 1),
         be->name);
    must(lt_pass_open(&p, m,
                      &(lt_pass_options){.batch = B,
                                         .seq = T,
                                         .train = true,
                                         .loss_chunk_rows = 48,
                                         .weights = true,
                                         .masks = true}),
         be->name);
    got = malloc(lt_param_buffer_bytes(&m->table, LT_F32));
    want = malloc(lt_param_buffer_bytes(&m->table, LT_F32));
    assert_true(got != NULL && want != NULL);
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        int64_t head_rows;
        make(&b, answers[i]);
        head_rows = (b.counted + step - 1) / step * step;
        compare(p, &b, head_rows < ROWS ? head_rows : ROWS, got, want, tolerance);
    }
    free(got);
    free(want);
    lt_pass_close(p);
    lt_model_close(m);
}

static void the_same_on_the_cpu(void **state) {
    (void)state;
    on(lt_backend_cpu(), 16, 5e-6);
}

static void the_same_on_the_gpu(void **state) {
    (void)state;
    if (gpu_backend() == NULL) {
        skip();
    }
    on(gpu_backend(), 128, 2e-5);
}

/* On a device, a staged batch needs a graph for its number of rows, which is a multiple of 1/32
 * of the batch in tiles of 128; a batch that is passed directly needs none, and has as few rows
 * as tiles allow. */
static void rows_on_a_device(void **state) {
    enum { N = 8192, COUNTED = 1000 };
    static int32_t tokens[N], labels[N], room[LT_STAGE_FIELDS][N + 1];
    static unsigned char staging[(2 * LT_STAGE_FIELDS + 4) * (N + 64) * sizeof(int32_t)];
    const lt_backend *be = lt_backend_cpu();
    const lt_model_spec s = {.n_layers = 1};
    const lt_stage_options o = {.spec = &s,
                                .rows = N,
                                .loss = true,
                                .n_sets = 1,
                                .packs = true,
                                .n_tp = 1,
                                .on_device = true};
    const lt_pass_batch b = {.batch = 8, .seq = N / 8, .tokens = tokens, .labels = labels};
    lt_batch_acts to = {.tokens.data = room[0],
                        .labels.data = room[1],
                        .positions.data = room[2],
                        .order.data = room[LT_STAGE_ORDER]};
    lt_exec r = {.backend = be, .device = device_of(be)};
    lt_arena a = {.base = staging, .size_bytes = sizeof staging, .name = "staging"};
    const lt_stage_slot *slot;
    lt_stage stage = {0};
    (void)state;
    for (int64_t i = 0; i < N; i++) {
        labels[i] = i < COUNTED ? 1 : -1;
    }
    must(be->queue_open(r.device, &r.queue), "queue");
    must(lt_stage_open(&stage, r.device, &o), "stage");
    lt_stage_carve(&stage, &o, &a);
    must(lt_stage_put(&stage, &b), "put");
    assert_int_equal(lt_stage_next(&stage)->head_rows, 1152);
    must(lt_stage_fill(&stage, &r, 0, &b, &slot), "fill");
    must(lt_stage_send(&stage, &r, 0, &to), "send");
    assert_int_equal(slot->head_rows, 1024);
    lt_stage_close(&stage);
    be->queue_close(r.queue);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_on_a_device),
                                       cmocka_unit_test(the_same_on_the_cpu),
                                       cmocka_unit_test(the_same_on_the_gpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
