/* Several adapters of one model, trained by one pass: gradients and losses of each are those of a
 * pass over its rows alone, for adapters with different ranks, scales and modules, for batches in
 * which one of them has no rows, for each level of recompute, and recorded on a GPU if there is
 * one. What is not supported is refused by name. */
#include "unit/model/adapters.h"

enum { N = 3, ROWS = 6, SEQ = 24 };

/* F32 sums of products with different shapes, and BF16 ones. */
#define TOLERANCE_F32  1e-5
#define TOLERANCE_BF16 0.03

static const lt_lora_options options[N] = {
    {.rank = 3, .alpha = 4.5, .targets = LT_LORA_ALL},
    {.rank = 8, .alpha = 8, .scaling = LT_LORA_BY_ROOT, .targets = "q_proj,v_proj,down_proj"},
    {.rank = 1, .alpha = 1, .targets = "k_proj,o_proj"}};
/* Rows of each adapter in the two batches of a step. */
static const int64_t divisions[2][N] = {{2, 3, 1}, {1, 0, 2}};

static int32_t tokens[2][ROWS * SEQ], labels[2][ROWS * SEQ];

static void make_rows(int64_t n_words) {
    for (int b = 0; b < 2; b++) {
        for (int i = 0; i < ROWS * SEQ; i++) {
            tokens[b][i] = (int32_t)(lt_rng_mix((uint64_t)(b * ROWS * SEQ + i)) %
                                     (uint64_t)n_words);
            labels[b][i] = i % 5 == 0 ? -1 : (int32_t)((tokens[b][i] * 7 + 1) % n_words);
        }
    }
}

/* Batch b; which: the rows of one adapter, -1: all. */
static lt_pass_batch batch_of(int b, int which) {
    int64_t first = 0, n = which < 0 ? 0 : divisions[b][which];
    for (int i = 0; i < N; i++) {
        first += i < which ? divisions[b][i] : 0;
        n += which < 0 ? divisions[b][i] : 0;
    }
    return (lt_pass_batch){.batch = n,
                           .seq = SEQ,
                           .tokens = tokens[b] + first * SEQ,
                           .labels = labels[b] + first * SEQ,
                           .rows_of = which < 0 ? divisions[b] : NULL};
}

static lt_pass *pass_of(lt_model *m, int joins, lt_recompute recompute) {
    lt_pass *p = NULL;
    must(lt_pass_open(&p, m,
                      &(lt_pass_options){.batch = ROWS,
                                         .seq = SEQ,
                                         .train = true,
                                         .recompute = recompute,
                                         .loss_chunk_rows = 16,
                                         .joins = joins}),
         "pass");
    return p;
}

static float *copy_of(const lt_lora *l, const lt_param_buffer *gradients) {
    const size_t bytes = lt_param_buffer_bytes(&l->params->table, LT_F32);
    float *out = malloc(bytes);
    assert_non_null(out);
    must(lt_model_download(l->base, out, lt_param_floats(gradients), bytes), "gradients");
    return out;
}

static float *alone(lt_model *m, lt_lora *l, int which, lt_pass_result *r, double *loss) {
    lt_pass_result one;
    lt_pass *p;
    float *out;
    lt_lora_use(m, l);
    p = pass_of(m, 0, LT_RECOMPUTE_NONE);
    must(lt_pass_zero_gradients(p), "zero");
    *r = (lt_pass_result){0};
    for (int b = 0; b < 2; b++) {
        const lt_pass_batch rows = batch_of(b, which);
        if (rows.batch > 0) {
            must(lt_pass_train(p, &rows, 0.25f, &one), "train");
            r->loss_sum += one.loss_sum;
            r->n_labels += one.n_labels;
        }
    }
    out = copy_of(l, lt_pass_gradients(p));
    const lt_pass_batch rows = batch_of(0, which);
    must(lt_pass_eval(p, &rows, &one, NULL), "eval");
    *loss = one.loss_sum;
    lt_pass_close(p);
    lt_lora_use(m, NULL);
    return out;
}

/* steps: how often the two batches are run; a GPU records them, and only the last run counts. */
static void together(lt_model *m, lt_lora *l[N], lt_recompute recompute, int steps,
                     double tolerance, float *const want[N], const lt_pass_result sums[N],
                     const double losses[N]) {
    lt_pass *p = pass_of(m, N, recompute);
    for (int i = 0; i < N; i++) {
        must(lt_pass_join(p, l[i],
                          divisions[0][i] > divisions[1][i] ? divisions[0][i] : divisions[1][i]),
             "join");
    }
    for (int step = 0; step < steps; step++) {
        lt_pass_result got[N] = {0};
        must(lt_pass_zero_gradients(p), "zero");
        for (int b = 0; b < 2; b++) {
            const lt_pass_batch rows = batch_of(b, -1);
            must(lt_pass_stage(p, &rows), "stage");
            must(lt_pass_train_staged(p, 0.25f), "train");
        }
        must(lt_pass_collect_each(p, got), "collect");
        for (int i = 0; i < N; i++) {
            assert_int_equal(got[i].n_labels, sums[i].n_labels);
            assert_true(fabs(got[i].loss_sum - sums[i].loss_sum) < tolerance * sums[i].loss_sum);
        }
    }
    for (int i = 0; i < N; i++) {
        const lt_pass_batch mine = batch_of(0, i);
        int64_t rows_of[N] = {0};
        lt_pass_batch b = mine;
        lt_pass_result r;
        float *got = copy_of(l[i], lt_pass_gradients_of(p, i));
        assert_params_near(&l[i]->params->table, got, want[i], tolerance, "together");
        free(got);
        rows_of[i] = b.batch;
        b.rows_of = rows_of;
        must(lt_pass_eval(p, &b, &r, NULL), "eval");
        assert_true(fabs(r.loss_sum - losses[i]) < tolerance * losses[i]);
    }
    lt_pass_close(p);
}

static void on_backend(const lt_backend *backend, lt_dtype dtype, double tolerance, int steps) {
    static const char *const names[] = {"llama3", "gemma2"};
    const bool host = backend->host_memory;
    for (size_t k = 0; k < (host ? sizeof names / sizeof *names : 1); k++) {
        char path[256];
        lt_lora *l[N] = {NULL};
        float *want[N];
        lt_pass_result sums[N];
        double losses[N];
        (void)snprintf(path, sizeof path, GOLDEN_ROOT "%s", names[k]);
        lt_model *m = open_base(path, backend, dtype);
        make_rows(m->spec.vocab_size);
        for (int i = 0; i < N; i++) {
            lt_lora_use(m, NULL);
            must(lt_lora_open(&l[i], m, &options[i], (uint64_t)i), path);
            fill(l[i]);
            want[i] = alone(m, l[i], i, &sums[i], &losses[i]);
        }
        /* Each adapter has a different effect. */
        assert_true(fabs(losses[0] - losses[2]) > 1e-3);
        for (int level = LT_RECOMPUTE_NONE; level <= (host ? LT_RECOMPUTE_FULL : 0); level++) {
            together(m, l, (lt_recompute)level, steps, tolerance, want, sums, losses);
        }
        for (int i = 0; i < N; i++) {
            free(want[i]);
            lt_lora_close(l[i]);
        }
        lt_model_close(m);
    }
}

static void together_as_alone(void **state) {
    (void)state;
    on_backend(lt_backend_cpu(), LT_F32, TOLERANCE_F32, 1);
}

static void on_a_gpu(void **state) {
    (void)state;
    if (gpu_backend() == NULL) {
        skip();
    }
    on_backend(gpu_backend(), LT_F32, TOLERANCE_F32, 3);
    on_backend(gpu_backend(), LT_BF16, TOLERANCE_BF16, 3);
}

/* Bytes of gradients and scratch of an adapter in a pass with these options. */
static size_t bytes_in(lt_model *m, lt_lora *l, lt_pass_options o) {
    lt_pass *p = NULL;
    size_t bytes;
    o.batch = o.joins = 1;
    o.seq = SEQ;
    o.train = true;
    must(lt_pass_open(&p, m, &o), "pass");
    must(lt_pass_join(p, l, 1), "join");
    bytes = lt_pass_join_bytes(p, 0);
    lt_pass_close(p);
    return bytes;
}

/* A stage has memory for the gradients of its own layers, and none if the caller provides it. */
static void memory(void **state) {
    lt_lora *l = NULL;
    (void)state;
    lt_model *m = open_base(GOLDEN_ROOT "llama3", lt_backend_cpu(), LT_F32);
    must(lt_lora_open(&l, m, &options[0], 1), "adapters");
    lt_lora_use(m, NULL);
    const lt_param_table *t = &l->params->table;
    const size_t all = lt_param_buffer_bytes(t, LT_F32),
                 whole = bytes_in(m, l, (lt_pass_options){.end_layer = 0}),
                 first = bytes_in(m, l, (lt_pass_options){.end_layer = 1}),
                 elsewhere = bytes_in(m, l, (lt_pass_options){.gradients_elsewhere = true});
    assert_int_equal(whole - elsewhere, all);
    assert_int_equal(first - elsewhere, (size_t)t->units[1].n_elements * sizeof(float));
    lt_lora_close(l);
    lt_model_close(m);
}

static void refusals(void **state) {
    static const struct {
        const char *model, *targets, *says;
        bool dora;
    } cases[] = {{"llama3", LT_LORA_ALL, "DoRA (lora.dora)", true},
                 {"llama3", "q_proj,embed_tokens", "adapters of the embedding", false},
                 {"llama3", "q_proj,lm_head", "adapters of the output head", false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[256];
        lt_lora *l = NULL;
        lt_pass *p;
        (void)snprintf(path, sizeof path, GOLDEN_ROOT "%s", cases[i].model);
        lt_model *m = open_base(path, lt_backend_cpu(), LT_F32);
        must(lt_lora_open(
                 &l, m,
                 &(lt_lora_options){
                     .rank = 2, .alpha = 2, .targets = cases[i].targets, .dora = cases[i].dora},
                 1),
             path);
        lt_lora_use(m, NULL);
        p = pass_of(m, 2, LT_RECOMPUTE_NONE);
        assert_int_equal(lt_pass_join(p, l, 2), LT_ERR_UNSUPPORTED);
        assert_non_null(strstr(lt_error_message(), cases[i].says));
        lt_pass_close(p);
        lt_lora_close(l);
        lt_model_close(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(together_as_alone),
                                       cmocka_unit_test(on_a_gpu), cmocka_unit_test(memory),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
