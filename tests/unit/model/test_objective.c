/* Objectives over log-probabilities: weights per token, and DPO as a few lines outside the pass,
 * against PyTorch and transformers in float64 (tools/make_objective_goldens.py); any objective
 * against finite differences. F32 and BF16, each recompute level; on the CPU and, if there is
 * one, on the GPU.
 *
 * F32 tolerance as in test_golden.c and test_cuda.c. The BF16 tolerance is what eight bits allow
 * after two layers: errors of gradients were at most 0.039 of the largest element. */
#include "unit/model/golden.h"

#include "model/alloc.h"

#define BETA 0.3
#define ROOT "tests/golden/objective/"

static const char *const cases[] = {"llama3", "gemma3"};
enum { N_CASES = 2, ROOM = 256 };

typedef struct {
    golden g; /* Model and batch. */
    lt_safetensors file;
    lt_model *model;
    lt_pass *pass;
    double tolerance;
} objective;

static const void *data_of(const objective *o, const char *name) {
    const lt_safetensor *t = lt_safetensors_find(&o->file, name);
    assert_non_null(t);
    return t->data;
}

static void objective_open(objective *o, const char *name, const lt_backend *be, lt_dtype dtype,
                           lt_recompute level) {
    char path[256];
    *o = (objective){.tolerance = dtype == LT_BF16 ? 0.06 : 2e-5};
    golden_open(&o->g, name, lt_backend_cpu(), LT_F32);
    (void)snprintf(path, sizeof path, ROOT "%s/golden.safetensors", name);
    must(lt_safetensors_open(&o->file, path), path);
    (void)snprintf(path, sizeof path, GOLDEN_ROOT "%s", name);
    must(lt_model_open(
             &o->model, path,
             &(lt_model_options){.dtype = dtype, .trainable = true, .device = device_of(be)}),
         path);
    must(lt_pass_open(&o->pass, o->model,
                      &(lt_pass_options){.batch = o->g.batch.batch,
                                         .seq = o->g.batch.seq,
                                         .train = true,
                                         .recompute = level,
                                         .loss_chunk_rows = 16,
                                         .weights = true}),
         path);
    must(lt_pass_zero_gradients(o->pass), path);
}

static void objective_close(objective *o) {
    lt_pass_close(o->pass);
    lt_model_close(o->model);
    lt_safetensors_close(&o->file);
    golden_close(&o->g);
}

/* Compare the pass's gradients with those in ROOT/name/part. */
static void expect_gradients(const objective *o, const char *part) {
    const size_t bytes = lt_param_buffer_bytes(&o->model->table, LT_F32);
    char path[256];
    lt_model *want = NULL;
    float *ours = malloc(bytes);
    assert_non_null(ours);
    (void)snprintf(path, sizeof path, ROOT "%s/%s", o->g.name, part);
    /* A model's copies have a queue of their own. */
    must(o->model->backend->sync(lt_pass_queue(o->pass)), path);
    must(lt_model_open(&want, path, &(lt_model_options){.dtype = LT_F32, .trainable = true}), path);
    must(lt_model_download(o->model, ours, lt_param_floats(lt_pass_gradients(o->pass)), bytes),
         path);
    assert_params_near(&o->model->table, ours, lt_param_floats(&want->master), o->tolerance, path);
    free(ours);
    lt_model_close(want);
}

static void near(double got, double want, double tolerance, const char *what) {
    if (!(fabs(got - want) <= tolerance * fmax(1.0, fabs(want)))) {
        fail_msg("%s: %.9g, expected %.9g", what, got, want);
    }
}

static void weighted(const char *name, const lt_backend *be, lt_dtype dtype, lt_recompute level) {
    objective o;
    lt_pass_result r;
    double sum = 0.0;
    objective_open(&o, name, be, dtype, level);
    lt_pass_batch b = o.g.batch;
    b.weights = data_of(&o, "weights");
    for (int64_t i = 0; i < b.batch * b.seq; i++) {
        sum += b.labels[i] >= 0 ? (double)b.weights[i] : 0.0;
    }
    for (int i = 0; i < 3; i++) { /* On a GPU the third run is that of a recorded graph. */
        must(lt_pass_zero_gradients(o.pass), name);
        must(lt_pass_train(o.pass, &b, 1.0f, &r), name);
        near(r.loss_sum, *(const double *)data_of(&o, "weighted_loss"), o.tolerance, name);
        near(r.weight_sum, sum, 1e-12, name);
        expect_gradients(&o, "weighted");
    }
    objective_close(&o);
}

/* Direct preference optimisation: row 0 is chosen, row 1 rejected. The whole objective: */
static double dpo(const float *logprobs, const float *reference, int64_t seq, float *dlogprobs) {
    double margin = 0.0, slope;
    for (int64_t i = 0; i < seq; i++) {
        margin += (double)logprobs[i] - (double)reference[i];
        margin -= (double)logprobs[seq + i] - (double)reference[seq + i];
    }
    slope = BETA / (1.0 + exp(BETA * margin)); /* -d loss / d margin. */
    for (int64_t i = 0; i < seq; i++) {
        dlogprobs[i] = (float)-slope;
        dlogprobs[seq + i] = (float)slope;
    }
    return log1p(exp(-BETA * margin));
}

static void preference(const char *name, const lt_backend *be, lt_dtype dtype, lt_recompute level) {
    objective o;
    float logprobs[ROOM], dlogprobs[ROOM];
    double loss;
    objective_open(&o, name, be, dtype, level);
    const lt_pass_batch *b = &o.g.batch;
    const float *want = data_of(&o, "logprobs");
    assert_true(b->batch == 2 && b->batch * b->seq <= ROOM);

    must(lt_pass_logprobs(o.pass, 0, b, logprobs), name);
    loss = dpo(logprobs, data_of(&o, "reference"), b->seq, dlogprobs);
    must(lt_pass_logprobs_backward(o.pass, 0, dlogprobs, 1.0f), name);

    for (int64_t i = 0; i < b->batch * b->seq; i++) {
        near((double)logprobs[i], (double)want[i], o.tolerance, "log-probability");
        assert_true(b->labels[i] >= 0 || logprobs[i] == 0.0f);
    }
    near(loss, *(const double *)data_of(&o, "dpo_loss"), o.tolerance, "DPO's loss");
    expect_gradients(&o, "dpo");
    objective_close(&o);
}

static void weights_per_token(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES * 6; i++) {
        weighted(cases[i / 6], lt_backend_cpu(), i % 2 == 0 ? LT_F32 : LT_BF16,
                 (lt_recompute)(i / 2 % 3));
        weighted(cases[i / 6], lt_backend_ref(), LT_F32, (lt_recompute)(i / 2 % 3));
    }
}

static void dpo_in_a_few_lines(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES * 6; i++) {
        preference(cases[i / 6], lt_backend_cpu(), i % 2 == 0 ? LT_F32 : LT_BF16,
                   (lt_recompute)(i / 2 % 3));
    }
}

static void on_the_gpu(void **state) {
    const lt_backend *gpu = gpu_backend();
    (void)state;
    if (gpu == NULL) {
        skip();
    }
    for (int i = 0; i < N_CASES; i++) {
        for (int dtype = 0; dtype < 2; dtype++) {
            weighted(cases[i], gpu, dtype == 0 ? LT_F32 : LT_BF16, LT_RECOMPUTE_NONE);
            preference(cases[i], gpu, dtype == 0 ? LT_F32 : LT_BF16, LT_RECOMPUTE_SELECTIVE);
        }
    }
}

/* sum of c_i logp_i^2 / 2 over both sets: an objective that per-token weights could not
 * express. */
static double squares(objective *o, const lt_pass_batch batches[2], float d[2][ROOM]) {
    double sum = 0.0;
    for (int set = 0; set < 2; set++) {
        must(lt_pass_logprobs(o->pass, set, &batches[set], d[set]), o->g.name);
        for (int64_t i = 0; i < batches[set].batch * batches[set].seq; i++) {
            const double c = i % 3 == 0 ? -0.5 : 1.0;
            sum += 0.5 * c * (double)d[set][i] * (double)d[set][i];
            d[set][i] *= (float)c;
        }
    }
    return sum;
}

/* Along its gradient the objective grows by the square of the gradient. Two micro-batches are in
 * flight: one objective depends on both, so their gradients come together. */
static void gradients_are_finite_differences(void **state) {
    const double h = 1e-3;
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        objective o;
        lt_pass_batch rows[2];
        float d[2][ROOM];
        double length = 0.0, above, below;
        objective_open(&o, cases[i], lt_backend_cpu(), LT_F32, LT_RECOMPUTE_NONE);
        lt_pass_close(o.pass);
        must(
            lt_pass_open(
                &o.pass, o.model,
                &(lt_pass_options){
                    .batch = 1, .seq = o.g.batch.seq, .train = true, .weights = true, .n_sets = 2}),
            cases[i]);
        for (int set = 0; set < 2; set++) {
            rows[set] = (lt_pass_batch){.batch = 1,
                                        .seq = o.g.batch.seq,
                                        .tokens = o.g.batch.tokens + set * o.g.batch.seq,
                                        .labels = o.g.batch.labels + set * o.g.batch.seq};
        }
        (void)squares(&o, rows, d);
        must(lt_pass_zero_gradients(o.pass), cases[i]);
        for (int set = 0; set < 2; set++) {
            must(lt_pass_logprobs_backward(o.pass, set, d[set], 1.0f), cases[i]);
        }
        float *w = lt_param_floats(&o.model->master);
        const float *g = lt_param_floats(lt_pass_gradients(o.pass));
        const int64_t n = o.model->table.n_elements;
        float *before = malloc((size_t)n * sizeof *before);
        assert_non_null(before);
        memcpy(before, w, (size_t)n * sizeof *before);
        for (int64_t k = 0; k < n; k++) {
            length += (double)g[k] * (double)g[k];
        }
        for (int64_t k = 0; k < n; k++) {
            w[k] = before[k] + (float)(h * (double)g[k] / sqrt(length));
        }
        above = squares(&o, rows, d);
        for (int64_t k = 0; k < n; k++) {
            w[k] = before[k] - (float)(h * (double)g[k] / sqrt(length));
        }
        below = squares(&o, rows, d);
        near((above - below) / (2.0 * h) / sqrt(length), 1.0, 2e-3, "slope along the gradient");
        free(before);
        objective_close(&o);
    }
}

static void refusals(void **state) {
    objective o;
    float nan[ROOM] = {0};
    lt_pass_result r;
    (void)state;
    objective_open(&o, cases[0], lt_backend_cpu(), LT_F32, LT_RECOMPUTE_NONE);
    lt_pass_batch b = o.g.batch;
    nan[3] = NAN;
    b.weights = nan;
    assert_int_equal(lt_pass_train(o.pass, &b, 1.0f, &r), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "row 0, column 3"));
    must(lt_pass_load(o.pass, 0, &o.g.batch), "load");
    assert_int_equal(lt_pass_objective(o.pass, 0, nan, 1.0f), LT_ERR_NUMERIC);
    lt_pass_close(o.pass);
    o.pass = golden_pass(&o.g, LT_RECOMPUTE_NONE);
    nan[3] = 0.0f;
    assert_int_equal(lt_pass_train(o.pass, &b, 1.0f, &r), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "opened without them"));
    objective_close(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_per_token), cmocka_unit_test(dpo_in_a_few_lines),
        cmocka_unit_test(on_the_gpu), cmocka_unit_test(gradients_are_finite_differences),
        cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
