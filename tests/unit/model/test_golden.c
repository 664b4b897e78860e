/* Every family against Hugging Face transformers (goldens: tools/make_model_goldens.py, float64):
 * loss of each row, logits, every gradient tensor, on the reference backend and on the fast one;
 * ten AdamW steps on the fast one.
 *
 * Tolerances, relative to the largest element of a tensor: F32 rounds each of about 30 stages
 * between embedding and loss at 2^-24, and the goldens themselves contain F32 norms and rotary
 * tables; less than 2e-6 was seen. Ten steps of Adam divide by gradients near zero, which
 * amplifies: the updates agree within 2 % of their norm, losses within 2e-4. The gradient of the
 * keys' bias is zero (without RoPE) except for rounding, because it shifts all logits of a
 * softmax by the same amount; it is left out. */
#include "unit/model/golden.h"
#include "base/file.h"
#include "lateen/model.h"
#include "model/files/source.h"

#define TOLERANCE 5e-6

static const lt_backend *(*const backends[])(void) = {lt_backend_ref, lt_backend_cpu};

static void check_eval(golden *g) {
    const double *expected = golden_data(g, "loss_rows");
    float rows[64];
    lt_pass_result r;
    lt_pass *p = golden_pass(g, LT_RECOMPUTE_NONE);
    double sum = 0;

    must(lt_pass_eval(p, &g->batch, &r, rows), g->name);
    for (int64_t i = 0; i < g->batch.batch * g->batch.seq; i++) {
        sum += expected[i];
        if (fabs((double)rows[i] - expected[i]) > TOLERANCE * 10) {
            fail_msg("%s on %s: loss of row %d is %.7f, expected %.7f", g->name,
                     g->model->backend->name, (int)i, (double)rows[i], expected[i]);
        }
    }
    assert_true(fabs(r.loss_sum - sum) <= TOLERANCE * sum);
    assert_int_equal(r.n_labels, 45);
    lt_pass_close(p);
}

static void check_logits(golden *g) {
    const float *expected = golden_data(g, "logits");
    const int64_t T = g->batch.seq, V = g->model->spec.vocab_size;
    static float logits[64 * 64];
    lt_session *s = NULL;

    if (g->batch.doc_start != NULL) {
        return; /* A session holds one document. */
    }
    must(lt_session_open(&s, g->model, g->batch.batch, T), g->name);
    for (int64_t b = 0; b < g->batch.batch; b++) {
        double d;
        must(lt_session_eval_all(s, b, g->batch.tokens + b * T, T, logits), g->name);
        d = distance(logits, expected + b * T * V, T * V);
        if (!(d <= TOLERANCE)) {
            fail_msg("%s on %s: logits differ by %.3g", g->name, g->model->backend->name, d);
        }
    }
    lt_session_close(s);
}

static void check_gradients(golden *g) {
    const double *losses = golden_data(g, "losses"), *aux = golden_data(g, "aux");
    lt_model *expected = golden_model(g->name, "/grads", g->model->backend, LT_F32);
    lt_pass *p = golden_pass(g, LT_RECOMPUTE_NONE);
    lt_pass_result r;

    must(lt_pass_train(p, &g->batch, 1, &r), g->name);
    assert_true(fabs(r.loss_sum / (double)r.n_labels - losses[0]) <= TOLERANCE * losses[0]);
    if (aux != NULL) {
        assert_true(fabs(r.aux_sum - aux[0]) <= 1e-5 * aux[0] &&
                    fabs(r.z_sum - aux[1]) <= 1e-5 * aux[1]);
    }
    assert_params_near(&g->model->table, lt_param_floats(lt_pass_gradients(p)),
                       lt_param_floats(&expected->master), TOLERANCE, g->name);
    lt_pass_close(p);
    lt_model_close(expected);
}

static void adamw(golden *g, lt_pass *p, float *m, float *v, int64_t step, float grad_scale) {
    const lt_param_table *t = &g->model->table;
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *q = &t->params[i];
        const lt_adamw_args a = {
            .p = lt_tensor_1d(lt_param_floats(&g->model->master) + q->whole_at, LT_F32, q->count),
            .g = lt_tensor_1d(lt_param_floats(lt_pass_gradients(p)) + q->whole_at, LT_F32,
                              q->count),
            .m = lt_tensor_1d(m + q->whole_at, LT_F32, q->count),
            .v = lt_tensor_1d(v + q->whole_at, LT_F32, q->count),
            .lr = 1e-3f,
            .beta1 = 0.9f,
            .beta2 = 0.95f,
            .eps = 1e-8f,
            .decay = q->decays ? 0.1f : 0.0f,
            .grad_scale = grad_scale,
            .step = step};
        must(g->model->backend->ops->adamw(NULL, &a), g->name);
    }
}

static double norm_of_difference(const float *a, const float *b, const float *c, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = (double)a[i] - (double)b[i] - (double)c[i];
        sum += d * d;
    }
    return sqrt(sum);
}

/* The bias of k shifts all logits of a row by the same amount, so its gradient is zero except for
 * rounding, which AdamW turns into whole steps: this third of qkv.bias is meaningless. Take our
 * values in place of the golden ones there. */
static void forget_key_bias(const golden *g, const lt_param *q, const float *before, float *delta) {
    const lt_model_spec *spec = &g->model->spec;
    const int64_t from = q->whole_at + spec->n_heads * spec->head_dim;
    for (int64_t i = from; i < from + spec->n_kv_heads * spec->head_dim; i++) {
        delta[i] = lt_param_floats(&g->model->master)[i] - before[i];
    }
}

static void check_steps(golden *g) {
    const double *losses = golden_data(g, "losses");
    const lt_param_table *t = &g->model->table;
    lt_model *delta = golden_model(g->name, "/delta", g->model->backend, LT_F32);
    float *before = calloc((size_t)t->n_elements, sizeof *before),
          *zero = calloc((size_t)t->n_elements, sizeof *zero);
    float *m = calloc((size_t)t->n_elements, sizeof *m),
          *v = calloc((size_t)t->n_elements, sizeof *v);
    lt_pass *p = golden_pass(g, LT_RECOMPUTE_SELECTIVE);
    lt_pass_result r;

    memcpy(before, lt_param_floats(&g->model->master), (size_t)t->n_elements * sizeof *before);
    for (int64_t step = 1; step <= 11; step++) {
        must(lt_pass_zero_gradients(p), g->name);
        must(lt_pass_train(p, &g->batch, 1, &r), g->name);
        if (fabs(r.loss_sum / (double)r.n_labels - losses[step - 1]) > 2e-4) {
            fail_msg("%s on %s: loss of step %d is %.6f, expected %.6f", g->name,
                     g->model->backend->name, (int)step, r.loss_sum / (double)r.n_labels,
                     losses[step - 1]);
        }
        if (step <= 10) {
            adamw(g, p, m, v, step, 1.0f / (float)r.n_labels);
        }
    }
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *q = &t->params[i];
        if (q->kind == LT_PARAM_QKV_BIAS) {
            forget_key_bias(g, q, before, lt_param_floats(&delta->master));
        }
        const double off = norm_of_difference(
            lt_param_floats(&g->model->master) + q->whole_at, before + q->whole_at,
            lt_param_floats(&delta->master) + q->whole_at, q->count);
        const double whole = norm_of_difference(lt_param_floats(&delta->master) + q->whole_at, zero,
                                                zero, q->count);
        if (!(off <= 0.02 * whole)) {
            fail_msg("%s: %s moved by %.4g off its golden way of %.4g in ten steps", g->name,
                     q->name, off, whole);
        }
    }
    lt_pass_close(p);
    lt_model_close(delta);
    free(before);
    free(zero);
    free(m);
    free(v);
}

static void family(void **state) {
    const char *name = *state;
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        golden g;
        golden_open(&g, name, backends[i](), LT_F32);
        check_eval(&g);
        check_logits(&g);
        check_gradients(&g);
        if (i > 0) { /* Another test compares the optimiser's ops with the reference. */
            check_steps(&g);
        }
        golden_close(&g);
    }
}

/* Distance of the golden logits from those of the model in this folder. */
static double logits_off(const char *folder, const lt_model *m) {
    static float logits[24 * 64];
    lt_safetensors file;
    lt_session *s = NULL;
    must(lt_safetensors_open(&file, GOLDEN_ROOT "gpt_oss_mxfp4/golden.safetensors"), folder);
    must(lt_session_open(&s, m, 1, 24), folder);
    must(lt_session_eval_all(s, 0, (const void *)lt_safetensors_find(&file, "tokens")->data, 24,
                             logits),
         folder);
    const double d = distance(logits, (const void *)lt_safetensors_find(&file, "logits")->data,
                              (int64_t)24 * 64);
    lt_session_close(s);
    lt_safetensors_close(&file);
    return d;
}

/* Files of OpenAI: experts in 4-bit blocks, decoded as transformers does; a file without the
 * scales is refused, and the message names them. */
static void mxfp4(void **state) {
    static const char folder[] = GOLDEN_ROOT "gpt_oss_mxfp4";
    lt_model *m = NULL;
    (void)state;
    must(lt_model_open(&m, folder, NULL), folder);
    const double d = logits_off(folder, m);
    if (!(d <= TOLERANCE)) {
        fail_msg("%s: logits differ by %.3g", folder, d);
    }
    lt_model_close(m);
}

/* The same file as stored: experts are kept in Q5_0 with the same values, and their products round
 * activations to 8 bits. With the wrong row or scale for any expert, logits differ by 0.1 or
 * more. */
static void mxfp4_as_stored(void **state) {
    static const char folder[] = GOLDEN_ROOT "gpt_oss_mxfp4";
    lt_model *m = NULL;
    (void)state;
    must(lt_model_open(&m, folder, &(lt_model_options){.stored = true}), folder);
    for (int layer = 0; layer < 2; layer++) {
        for (int k = 0; k < 2; k++) {
            const lt_param_kind kind = k == 0 ? LT_PARAM_UP : LT_PARAM_DOWN;
            const lt_stored_weight *h = &m->stored[lt_param_index(&m->table, kind, layer)];
            assert_int_equal(h->n_ranges, 1);
            assert_int_equal(h->ranges[0].n_experts, 4);
            assert_int_equal(h->ranges[0].w.dtype, LT_Q5_0);
        }
    }
    const double d = logits_off(folder, m);
    if (!(d > 0.0 && d <= 0.03)) {
        fail_msg("%s as stored: logits differ by %.3g", folder, d);
    }
    lt_model_close(m);
}

/* The text part of a model for texts and pictures (tools/make_wrapped_golden.py). Its folder has
 * the names of both parts; those of the vision tower are not reported as unread. */
static void wrapped(void **state) {
    static const char folder[] = "tests/golden/wrapped";
    static float logits[20 * 48];
    lt_safetensors file;
    lt_model *m = NULL;
    lt_session *s = NULL;
    lt_source source = {0};
    lt_model_spec spec;
    const char *first;
    (void)state;
    must(lt_safetensors_open(&file, "tests/golden/wrapped/golden.safetensors"), folder);
    must(lt_model_open(&m, folder, NULL), folder);
    must(lt_session_open(&s, m, 1, 20), folder);
    must(lt_session_eval_all(s, 0, (const void *)lt_safetensors_find(&file, "tokens")->data, 20,
                             logits),
         folder);
    const double d = distance(logits, (const void *)lt_safetensors_find(&file, "logits")->data,
                              (int64_t)20 * 48);
    if (!(d <= TOLERANCE)) {
        fail_msg("%s: logits differ by %.3g", folder, d);
    }
    must(lt_weight_source_open(&source, &spec, folder), folder);
    assert_int_equal(lt_source_unread(&source, &spec, &m->table, &first), 0);
    lt_weight_source_close(&source);
    lt_session_close(s);
    lt_model_close(m);
    lt_safetensors_close(&file);
}

/* A copy of the folder, in which `change` has changed the bytes of the weights' file. */
static void changed_copy(char *folder, void (*change)(char *bytes, size_t n)) {
    char path[LT_PATH_BYTES], *bytes;
    size_t n;
    assert_non_null(mkdtemp(folder));
    must(lt_file_read(&bytes, &n, GOLDEN_ROOT "gpt_oss_mxfp4/config.json", 1 << 20), "config");
    must(lt_path_join(path, folder, "config.json"), path);
    must(lt_file_write_atomic(path, bytes, n), path);
    free(bytes);
    must(lt_file_read(&bytes, &n, GOLDEN_ROOT "gpt_oss_mxfp4/model.safetensors", 1 << 24), "file");
    change(bytes, n);
    must(lt_path_join(path, folder, "model.safetensors"), path);
    must(lt_file_write_atomic(path, bytes, n), path);
    free(bytes);
}

#define SCALES "model.layers.1.mlp.experts.down_proj_scales"

static void rename_scales(char *bytes, size_t n) {
    char *at = memmem(bytes, n, SCALES, sizeof SCALES - 1);
    assert_non_null(at);
    at[sizeof SCALES - 2] = 'z';
}

static void mxfp4_without_scales(void **state) {
    char folder[] = "/tmp/lateen-mxfp4-XXXXXX";
    lt_model *m = NULL;
    (void)state;
    changed_copy(folder, rename_scales);
    assert_int_equal(lt_model_open(&m, folder, NULL), LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), SCALES));
    must(lt_file_remove_tree(folder), folder);
}

static void raise_scale(char *bytes, size_t n) {
    lt_safetensors file;
    must(lt_safetensors_open(&file, GOLDEN_ROOT "gpt_oss_mxfp4/model.safetensors"), "weights");
    char *at = memmem(bytes, n, lt_safetensors_find(&file, SCALES)->data, (size_t)4 * 32);
    assert_non_null(at);
    at[70] = (char)200;
    lt_safetensors_close(&file);
}

/* A scale of 2^73 has no place in Q5_0; widened weights can have it. */
static void mxfp4_with_a_large_scale(void **state) {
    char folder[] = "/tmp/lateen-mxfp4-XXXXXX";
    lt_model *m = NULL;
    (void)state;
    changed_copy(folder, raise_scale);
    assert_int_equal(lt_model_open(&m, folder, &(lt_model_options){.stored = true}),
                     LT_ERR_UNSUPPORTED);
    assert_non_null(strstr(lt_error_message(), "2^73"));
    assert_non_null(strstr(lt_error_message(), "layers.1"));
    must(lt_model_open(&m, folder, NULL), folder);
    lt_model_close(m);
    must(lt_file_remove_tree(folder), folder);
}

int main(void) {
    struct CMUnitTest tests[N_GOLDEN_CASES + 5];
    for (int i = 0; i < N_GOLDEN_CASES; i++) {
        tests[i] = (struct CMUnitTest){.name = golden_cases[i],
                                       .test_func = family,
                                       .initial_state = (void *)(uintptr_t)golden_cases[i]};
    }
    tests[N_GOLDEN_CASES] = (struct CMUnitTest)cmocka_unit_test(mxfp4);
    tests[N_GOLDEN_CASES + 1] = (struct CMUnitTest)cmocka_unit_test(mxfp4_without_scales);
    tests[N_GOLDEN_CASES + 2] = (struct CMUnitTest)cmocka_unit_test(wrapped);
    tests[N_GOLDEN_CASES + 3] = (struct CMUnitTest)cmocka_unit_test(mxfp4_as_stored);
    tests[N_GOLDEN_CASES + 4] = (struct CMUnitTest)cmocka_unit_test(mxfp4_with_a_large_scale);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
