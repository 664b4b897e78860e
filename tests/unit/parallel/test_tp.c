/* Tensor and sequence parallelism: ranks as threads that share every layer. Losses, argmaxes and
 * the gradient of every tensor against Hugging Face transformers (tests/golden/model), with as many
 * ranks as heads, fewer key heads than ranks, all levels of recompute; against one rank for
 * vocabularies and rows that do not divide evenly, BF16, objectives and evaluation.
 *
 * F32 tolerances are those of one rank (test_golden.c): a sum over n ranks adds n - 1 roundings to
 * a product whose own sum has K of them, in another order. BF16: a rank's part of a product is
 * rounded before the sum, which makes the error of that product at most sqrt(n + 1) times that of
 * one rounding, and the error of the whole, since other roundings do not change, less than twice
 * as large. */
#include "unit/model/golden.h"

#include "model/family.h"
#include "parallel/layout.h"

#define TOLERANCE 5e-6

typedef struct {
    /* The model of a folder; or NULL: the model of spec, with weights drawn from a seed. */
    const char *path;
    const lt_model_spec *spec;
    const lt_backend *backend;
    lt_model_options model;
    lt_pass_options pass;
    lt_pass_batch batch;
    float grad_scale;
    /* The results of all ranks together. */
    lt_param_table whole;
    float *gradients; /* (whole_elements). */
    float loss_rows[512];
    lt_pass_result result, eval;
} job;

static lt_err open_part(lt_model **m, const job *j, const lt_partition *partition) {
    lt_model_options o = j->model;
    o.partition = partition;
    LT_TRY(j->path != NULL ? lt_model_open(m, j->path, &o) : lt_model_create(m, j->spec, &o, 5));
    (*m)->device = device_of(j->backend);
    (*m)->backend = j->backend;
    return LT_OK;
}

/* Put local gradients in their places in the whole, with zeros elsewhere: what several ranks hold
 * is then summed with what one has. */
static lt_err sum_gradients(job *j, lt_group *g, const lt_model *m, const lt_pass *p) {
    const lt_param_table *t = &m->table;
    const size_t bytes = (size_t)j->whole.whole_elements * sizeof(float);
    float *all = calloc(1, bytes);
    lt_err err = LT_OK;
    if (all == NULL) {
        LT_FAIL(LT_ERR_OOM, "gradients");
    }
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *q = &t->params[i];
        const float *data = lt_param_data(lt_pass_gradients(p), q);
        for (int64_t at = 0, run; at < q->local_count; at += run) {
            const int64_t to = q->whole_at + lt_param_whole_index(t, q, at, &run);
            memcpy(all + to, data + at, (size_t)run * sizeof *all);
        }
    }
    if (lt_group_size(g) > 1) {
        err = lt_all_reduce(g, all, all, j->whole.whole_elements, LT_F32, LT_REDUCE_SUM, NULL);
    }
    if (lt_group_rank(g) == 0) {
        memcpy(j->gradients, all, bytes);
    }
    free(all);
    return err;
}

/* Check that all ranks have the same results, to the bit. */
static lt_err same_on_all(lt_group *g, const double *mine) {
    double all[5 * 16];
    LT_TRY(lt_all_gather(g, all, mine, 5, LT_F64, NULL));
    if (memcmp(all + 5 * lt_group_rank(g), all, 5 * sizeof *all) != 0) {
        LT_FAIL(LT_ERR_NUMERIC, "loss %.17g of rank 0, %.17g here", all[0], mine[0]);
    }
    return LT_OK;
}

static lt_err run_rank(lt_comm *c, void *ctx) {
    job *const j = ctx;
    const lt_mesh_shape shape = {1, 1, 1, lt_comm_size(c), 1};
    lt_layout layout = {0};
    lt_mesh mesh;
    lt_model *m = NULL;
    lt_pass *p = NULL;
    lt_pass_options o = j->pass;
    lt_pass_result r, e;
    float rows[512];
    lt_err err = LT_OK;

    lt_thread_set_count(1);
    LT_TRY_DONE(lt_mesh_open(&mesh, c, &shape, 0));
    LT_TRY_DONE(lt_layout_open(&layout, j->spec, &shape, lt_comm_rank(c)));
    const lt_partition partition = lt_layout_partition(&layout);
    LT_TRY_DONE(open_part(&m, j, shape.tp > 1 ? &partition : NULL));
    o.tp = mesh.tp;
    LT_TRY_DONE(lt_pass_open(&p, m, &o));
    LT_TRY_DONE(lt_pass_eval(p, &j->batch, &e, rows));
    LT_TRY_DONE(lt_pass_zero_gradients(p));
    LT_TRY_DONE(lt_pass_train(p, &j->batch, j->grad_scale, &r));
    LT_TRY_DONE(sum_gradients(j, mesh.tp, m, p));
    LT_TRY_DONE(same_on_all(
        mesh.tp, (double[]){r.loss_sum, e.loss_sum, (double)r.n_correct, r.aux_sum, r.z_sum}));
    if (lt_comm_rank(c) == 0) {
        j->result = r;
        j->eval = e;
        memcpy(j->loss_rows, rows, sizeof rows);
    }
done:
    lt_pass_close(p);
    lt_model_close(m);
    return err;
}

static void run(job *j, int n, const char *what) {
    j->gradients = calloc((size_t)j->whole.whole_elements, sizeof *j->gradients);
    assert_non_null(j->gradients);
    must(lt_comm_run_threads(n, &(lt_comm_options){.deadline_s = 60}, run_rank, j), what);
}

static void near_gradients(const job *got, const float *want, double tolerance, const char *what) {
    for (int i = 0; i < got->whole.n_params; i++) {
        const lt_param *p = &got->whole.params[i];
        const double d = distance(got->gradients + p->whole_at, want + p->whole_at, p->count);
        if (!(d <= tolerance)) {
            fail_msg("%s: the gradient of %s differs by %.3g of its largest element, tolerance "
                     "%.3g",
                     what, p->name, d, tolerance);
        }
    }
}

/* ---- Against transformers ---- */

static void family_on(const char *name, const lt_backend *backend, int n, lt_recompute recompute) {
    char path[128], what[160];
    golden g;
    golden_open(&g, name, backend, LT_F32);
    lt_model *expected = golden_model(name, "/grads", backend, LT_F32);
    const double *rows = golden_data(&g, "loss_rows"), *losses = golden_data(&g, "losses"),
                 *aux = golden_data(&g, "aux");
    job j = {.path = path,
             .spec = &g.model->spec,
             .backend = backend,
             .model = {.dtype = LT_F32, .trainable = true},
             .pass = {.batch = g.batch.batch,
                      .seq = g.batch.seq,
                      .train = true,
                      .recompute = recompute,
                      .loss_chunk_rows = 16},
             .batch = g.batch,
             .grad_scale = 1.0f};
    (void)snprintf(path, sizeof path, GOLDEN_ROOT "%s", name);
    (void)snprintf(what, sizeof what, "%s on %s, tp=%d, recompute %d", name, backend->name, n,
                   (int)recompute);
    must(lt_param_table_open(&j.whole, j.spec), what);
    run(&j, n, what);
    near_gradients(&j, lt_param_floats(&expected->master), TOLERANCE, what);
    for (int64_t i = 0; i < g.batch.batch * g.batch.seq; i++) {
        if (!(fabs((double)j.loss_rows[i] - rows[i]) <= TOLERANCE * 10)) {
            fail_msg("%s: loss of row %d is %.7f, expected %.7f", what, (int)i,
                     (double)j.loss_rows[i], rows[i]);
        }
    }
    assert_true(fabs(j.result.loss_sum / (double)j.result.n_labels - losses[0]) <=
                TOLERANCE * losses[0]);
    if (aux != NULL) {
        assert_true(fabs(j.result.aux_sum - aux[0]) <= 1e-5 * aux[0] &&
                    fabs(j.result.z_sum - aux[1]) <= 1e-5 * aux[1]);
    }
    free(j.gradients);
    lt_param_table_close(&j.whole);
    lt_model_close(expected);
    golden_close(&g);
}

static void family(void **state) {
    const char *name = *state;
    static const int sizes[] = {2, 4};
    for (int i = 0; i < 2; i++) {
        family_on(name, lt_backend_ref(), sizes[i], LT_RECOMPUTE_NONE);
        for (int level = LT_RECOMPUTE_NONE; level <= LT_RECOMPUTE_FULL; level++) {
            family_on(name, lt_backend_cpu(), sizes[i], (lt_recompute)level);
        }
    }
}

/* ---- Against one rank ---- */

/* Heads for 2, 3 and 6 ranks; neither the vocabulary nor the rows divide evenly. */
static lt_model_spec odd_spec(lt_family family) {
    lt_model_spec s = lt_family_get(family)->preset;
    s.n_layers = 2;
    s.width = 24;
    s.n_heads = 6;
    s.n_kv_heads = 3;
    s.head_dim = 8;
    s.ffn_width = 36;
    s.vocab_size = 101;
    s.max_seq = 64;
    s.init_std = 0.2f;
    lt_model_spec_derive(&s);
    return s;
}

#define ODD_B 1
#define ODD_T 37
static int32_t odd_tokens[ODD_B * ODD_T], odd_labels[ODD_B * ODD_T];
static float odd_weights[ODD_B * ODD_T];

static job odd_job(const lt_model_spec *spec, lt_dtype dtype, bool weights) {
    for (int i = 0; i < ODD_B * ODD_T; i++) {
        odd_tokens[i] = (i * 7919) % 101;
        odd_labels[i] = i % 7 == 3 ? -1 : (i * 104729 + 5) % 101;
        odd_weights[i] = (float)(i % 5) - 1.5f;
    }
    return (job){.spec = spec,
                 .backend = lt_backend_cpu(),
                 .model = {.dtype = dtype, .trainable = true},
                 .pass = {.batch = ODD_B,
                          .seq = ODD_T,
                          .train = true,
                          .weights = weights,
                          .z_coef = 0.01f,
                          .recompute = LT_RECOMPUTE_SELECTIVE,
                          .loss_chunk_rows = 16},
                 .batch = {.batch = ODD_B,
                           .seq = ODD_T,
                           .tokens = odd_tokens,
                           .labels = odd_labels,
                           .weights = weights ? odd_weights : NULL},
                 .grad_scale = 0.25f};
}

static void odd_run(job *j, const lt_model_spec *spec, lt_dtype dtype, bool weights, int n) {
    *j = odd_job(spec, dtype, weights);
    must(lt_param_table_open(&j->whole, spec), "table");
    run(j, n, "odd sizes");
}

static void odd_close(job *j) {
    free(j->gradients);
    lt_param_table_close(&j->whole);
}

static void uneven_rows_and_words(void **state) {
    static const lt_family families[] = {LT_FAMILY_QWEN3, LT_FAMILY_GPT2, LT_FAMILY_GEMMA2,
                                         LT_FAMILY_APERTUS};
    static const int sizes[] = {2, 3, 6};
    (void)state;
    for (int i = 0; i < 4 * 3; i++) {
        lt_model_spec spec = odd_spec(families[i / 3]);
        char what[64];
        job one, many;
        spec.n_kv_heads = families[i / 3] == LT_FAMILY_GPT2 ? 6 : sizes[i % 3] == 2 ? 2 : 3;
        (void)snprintf(what, sizeof what, "%s, tp=%d", lt_family_name(spec.family), sizes[i % 3]);
        odd_run(&one, &spec, LT_F32, i % 2 == 0, 1);
        odd_run(&many, &spec, LT_F32, i % 2 == 0, sizes[i % 3]);
        near_gradients(&many, one.gradients, TOLERANCE, what);
        assert_true(fabs(many.result.loss_sum - one.result.loss_sum) <=
                    1e-5 * fabs(one.result.loss_sum));
        assert_true(many.result.n_correct == one.result.n_correct &&
                    many.result.n_labels == one.result.n_labels);
        odd_close(&one);
        odd_close(&many);
    }
}

static double off(const job *got, const job *want, const lt_param *p) {
    double sum = 0.0;
    for (int64_t i = p->whole_at; i < p->whole_at + p->count; i++) {
        const double d = (double)got->gradients[i] - (double)want->gradients[i];
        sum += d * d;
    }
    return sqrt(sum);
}

/* The error of each gradient against F32 is at most twice that of one rank. */
static void bf16_errs_as_one_rank_does(void **state) {
    static const int sizes[] = {3, 6};
    lt_model_spec spec = odd_spec(LT_FAMILY_QWEN3);
    job exact, one;
    (void)state;
    odd_run(&exact, &spec, LT_F32, false, 1);
    odd_run(&one, &spec, LT_BF16, false, 1);
    for (int k = 0; k < 2; k++) {
        job many;
        odd_run(&many, &spec, LT_BF16, false, sizes[k]);
        for (int i = 0; i < exact.whole.n_params; i++) {
            const lt_param *p = &exact.whole.params[i];
            const double mine = off(&many, &exact, p), theirs = off(&one, &exact, p);
            if (!(mine <= 2.0 * theirs)) {
                fail_msg("tp=%d, BF16: the gradient of %s errs by %.4g, on one rank by %.4g",
                         sizes[k], p->name, mine, theirs);
            }
        }
        odd_close(&many);
    }
    odd_close(&exact);
    odd_close(&one);
}

/* 8-bit linear layers have the scales of the whole matrix: of blocks that shards do not cut, or
 * one per tensor, from the largest value on all ranks. The result is close to that of one rank: a
 * product that is summed in another order may be rounded to a neighbouring 8-bit number, which is
 * 1/16 away. */
static void eight_bits_as_on_one_rank(void **state) {
    lt_model_spec spec = odd_spec(LT_FAMILY_LLAMA);
    (void)state;
    spec.width = 128;
    spec.n_heads = spec.n_kv_heads = 4;
    spec.head_dim = 64;
    spec.ffn_width = 256;
    spec.init_std = 0.05f;
    lt_model_spec_derive(&spec);
    for (int i = 0; i < 4; i++) {
        job jobs[2];
        double apart = 0.0, norm = 0.0;
        for (int k = 0; k < 2; k++) {
            jobs[k] = odd_job(&spec, LT_F32, false);
            jobs[k].pass.fp8 = i < 2 ? LT_FP8_BLOCKWISE : LT_FP8_TENSORWISE;
            jobs[k].pass.fp8_wgrad = i % 2 != 0;
            must(lt_param_table_open(&jobs[k].whole, &spec), "table");
            run(&jobs[k], k + 1, "8 bits");
        }
        for (int64_t j = 0; j < jobs[0].whole.whole_elements; j++) {
            const double a = (double)jobs[1].gradients[j], b = (double)jobs[0].gradients[j];
            apart += (a - b) * (a - b);
            norm += b * b;
        }
        if (!(sqrt(apart / norm) <= 5e-3)) {
            fail_msg("8 bits, recipe %d: gradients differ by %.3g of their size", i,
                     sqrt(apart / norm));
        }
        odd_close(&jobs[0]);
        odd_close(&jobs[1]);
    }
    spec.ffn_width = 192;
    job cut = odd_job(&spec, LT_F32, false);
    cut.pass.fp8 = LT_FP8_BLOCKWISE;
    assert_int_equal(lt_comm_run_threads(2, &(lt_comm_options){.deadline_s = 60}, run_rank, &cut),
                     LT_ERR_ARG);
    /* Whichever rank fails first: it has the rows from the 0th or from the 96th on. */
    assert_non_null(strstr(lt_error_message(), "has 96 rows from the "));
    assert_non_null(strstr(lt_error_message(), "th on, which cut blocks of 128"));
}

/* A rank without a row, and heads that do not divide, are refused with both numbers. */
static void what_does_not_divide_is_refused(void **state) {
    lt_model_spec spec = odd_spec(LT_FAMILY_QWEN3);
    job j = odd_job(&spec, LT_F32, false);
    const lt_comm_options o = {.deadline_s = 60};
    (void)state;
    must(lt_param_table_open(&j.whole, &spec), "table");
    j.pass.seq = 5;
    assert_int_equal(lt_comm_run_threads(6, &o, run_rank, &j), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "sequences of 5 tokens leave one of the 6 ranks of "
                                               "tp without a row; 6 tokens do not"));
    assert_int_equal(lt_comm_run_threads(4, &o, run_rank, &j), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "tp=4 does not divide the model's 6 heads; tp=3 "
                                               "does"));
    lt_param_table_close(&j.whole);
}

int main(void) {
    struct CMUnitTest tests[N_GOLDEN_CASES + 4] = {
        [N_GOLDEN_CASES] = cmocka_unit_test(uneven_rows_and_words),
        cmocka_unit_test(bf16_errs_as_one_rank_does),
        cmocka_unit_test(eight_bits_as_on_one_rank),
        cmocka_unit_test(what_does_not_divide_is_refused)};
    for (int i = 0; i < N_GOLDEN_CASES; i++) {
        tests[i] = (struct CMUnitTest){.name = golden_cases[i],
                                       .test_func = family,
                                       .initial_state = (void *)(uintptr_t)golden_cases[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
