/* Models with a score head: values at the last token that is not padding, and gradients of
 * Bradley-Terry's loss, against transformers' LlamaForSequenceClassification in float64
 * (tools/make_objective_goldens.py); files both ways; what such a model refuses. */
#include "unit/model/golden.h"

#include "base/file.h"
#include "model/alloc.h"
#include "model/files/gguf_save.h"
#include "model/pass/score_ends.h"
#include "unit/score_golden.h"

enum { ROOM = 256 };

static void open_on(score_golden *f, const lt_backend *be, lt_dtype dtype) {
    score_golden_open(
        f, &(lt_model_options){.dtype = dtype, .trainable = true, .device = device_of(be)});
}

static void near(double got, double want, double tolerance, const char *what) {
    if (!(fabs(got - want) <= tolerance * fmax(1.0, fabs(want)))) {
        fail_msg("%s: %.9g, expected %.9g", what, got, want);
    }
}

/* Values of a session, token by token and at once. */
static void values_of_a_session(void **state) {
    score_golden f;
    lt_session *s = NULL;
    float all[ROOM], last;
    (void)state;
    open_on(&f, lt_backend_cpu(), LT_F32);
    assert_int_equal(lt_model_get_spec(f.model)->n_scores, 1);
    must(lt_session_open(&s, f.model, 2, f.seq), "session");
    for (int row = 0; row < 2; row++) {
        const int32_t *ids = f.tokens + row * f.seq;
        const int64_t end = lt_model_score_at(&f.model->spec, ids, f.seq);
        assert_int_equal(end, f.ends[row]);
        must(lt_session_eval_all(s, row, ids, f.seq, all), "all values");
        near((double)all[end], f.values[row], 2e-5, "value at the end");
        lt_session_truncate(s, row, 0);
        must(lt_session_eval(s, row, ids, end + 1, &last), "last value");
        near((double)last, f.values[row], 2e-5, "last value");
    }
    assert_int_equal(lt_session_score(s, 0, f.tokens, 1, f.tokens, all, (int32_t *)&last),
                     LT_ERR_UNSUPPORTED);
    lt_session_close(s);
    score_golden_close(&f);
}

static void reads_the_end(void **state) {
    const lt_model_spec padded = {.pad_id = 3}, none = {.pad_id = -1};
    const int32_t ids[] = {3, 5, 6, 3, 3};
    (void)state;
    assert_int_equal(lt_model_score_at(&padded, ids, 5), 2);
    assert_int_equal(lt_model_score_at(&padded, ids, 1), 0);
    assert_int_equal(lt_model_score_at(&none, ids, 5), 4);
}

/* Loss and gradients when row 0 is preferred to row 1. */
static void bradley_terry(const lt_backend *be, lt_dtype dtype, lt_recompute level) {
    const double tolerance = dtype == LT_BF16 ? 0.06 : 2e-5;
    score_golden f;
    lt_pass *pass = NULL;
    lt_model *want = NULL;
    float values[ROOM], d[ROOM] = {0}, *ours;
    int32_t labels[ROOM];
    open_on(&f, be, dtype);
    for (int64_t i = 0; i < 2 * f.seq; i++) {
        labels[i] = i % f.seq == f.ends[i / f.seq] ? 0 : -1;
    }
    must(lt_pass_open(
             &pass, f.model,
             &(lt_pass_options){
                 .batch = 2, .seq = f.seq, .train = true, .recompute = level, .weights = true}),
         "pass");
    const lt_pass_batch b = {.batch = 2, .seq = f.seq, .tokens = f.tokens, .labels = labels};
    for (int i = 0; i < 2; i++) {
        must(lt_pass_zero_gradients(pass), "gradients");
        must(lt_pass_logprobs(pass, 0, &b, values), "values");
        const double r[2] = {(double)values[f.ends[0]], (double)values[f.seq + f.ends[1]]};
        near(r[0], f.values[0], tolerance, "chosen");
        near(r[1], f.values[1], tolerance, "rejected");
        near(log1p(exp(r[1] - r[0])), *(const double *)score_golden_data(&f, "loss"), tolerance,
             "loss");
        d[f.ends[0]] = (float)(-1.0 / (1.0 + exp(r[0] - r[1])));
        d[f.seq + f.ends[1]] = -d[f.ends[0]];
        must(lt_pass_logprobs_backward(pass, 0, d, 1.0f), "backward");
    }
    const size_t bytes = lt_param_buffer_bytes(&f.model->table, LT_F32);
    ours = malloc(bytes);
    assert_non_null(ours);
    must(lt_model_download(f.model, ours, lt_param_floats(lt_pass_gradients(pass)), bytes), "sum");
    must(lt_model_open(&want, SCORE_ROOT "bradley_terry",
                       &(lt_model_options){.dtype = LT_F32, .trainable = true}),
         "gradients");
    assert_params_near(&f.model->table, ours, lt_param_floats(&want->master), tolerance,
                       "bradley_terry");
    free(ours);
    lt_model_close(want);
    lt_pass_close(pass);
    score_golden_close(&f);
}

static void gradients_of_a_pair(void **state) {
    (void)state;
    for (int level = 0; level < 3; level++) {
        bradley_terry(lt_backend_cpu(), LT_F32, (lt_recompute)level);
        bradley_terry(lt_backend_cpu(), LT_BF16, (lt_recompute)level);
    }
    bradley_terry(lt_backend_ref(), LT_F32, LT_RECOMPUTE_NONE);
}

static void on_the_gpu(void **state) {
    const lt_backend *gpu = gpu_backend();
    (void)state;
    if (gpu == NULL) {
        skip();
    }
    bradley_terry(gpu, LT_F32, LT_RECOMPUTE_NONE);
    bradley_terry(gpu, LT_BF16, LT_RECOMPUTE_SELECTIVE);
}

/* A saved folder is the same model. */
static void saved_and_opened(void **state) {
    char folder[] = "/tmp/lateen-score-XXXXXX", path[300];
    score_golden f;
    lt_model *again = NULL;
    lt_pass *pass = NULL;
    (void)state;
    assert_non_null(mkdtemp(folder));
    open_on(&f, lt_backend_cpu(), LT_F32);
    must(lt_model_save(f.model, folder, LT_F32, 0), folder);
    must(lt_model_open(&again, folder, NULL), folder);
    assert_memory_equal(&again->spec, &f.model->spec, sizeof again->spec);
    assert_memory_equal(again->weights.flat, f.model->weights.flat,
                        lt_param_buffer_bytes(&again->table, LT_F32));
    (void)snprintf(path, sizeof path, "%s/x.gguf", folder);
    assert_int_equal(lt_model_save_gguf(f.model, path, NULL, LT_GGUF_MIX_F32), LT_ERR_UNSUPPORTED);
    assert_int_equal(
        lt_pass_open(&pass, again, &(lt_pass_options){.batch = 1, .seq = 8, .train = true}), LT_OK);
    lt_pass_close(pass);
    again->spec.n_scores = 2;
    assert_int_equal(
        lt_pass_open(&pass, again, &(lt_pass_options){.batch = 1, .seq = 8, .train = true}),
        LT_ERR_UNSUPPORTED);
    again->spec.n_scores = 1;
    lt_model_close(again);
    score_golden_close(&f);
    must(lt_file_remove_tree(folder), folder);
}

/* A language model, tied or not, gets a score head: the rest is unchanged; the seed decides the
 * head. */
static void a_language_model_gets_a_score_head(void **state) {
    static const char *const names[] = {"llama3", "gemma3", "gpt2"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        char path[256];
        lt_model *plain = NULL, *scored[3] = {NULL};
        (void)snprintf(path, sizeof path, GOLDEN_ROOT "%s", names[i]);
        must(lt_model_open(&plain, path, NULL), path);
        for (int k = 0; k < 3; k++) {
            must(lt_model_open(&scored[k], path,
                               &(lt_model_options){.n_scores = 1, .score_seed = k == 2 ? 8 : 7}),
                 path);
        }
        const lt_param_table *t = &scored[0]->table;
        const lt_param *head = lt_param_find(t, "score");
        assert_null(lt_param_find(t, "head"));
        assert_non_null(head);
        assert_true(head->count == plain->spec.width && head->decays && !head->matrix);
        const size_t bytes = lt_param_buffer_bytes(t, LT_F32);
        const float *a = scored[0]->weights.flat, *b = scored[1]->weights.flat,
                    *c = scored[2]->weights.flat;
        assert_memory_equal(a, b, bytes);
        assert_memory_not_equal(lt_param_data(&scored[0]->weights, head),
                                lt_param_data(&scored[2]->weights, head),
                                (size_t)head->count * sizeof *c);
        const lt_param *first = lt_param_find(t, "embed");
        assert_memory_equal(lt_param_data(&scored[0]->weights, first),
                            lt_param_data(&plain->weights, first),
                            (size_t)first->count * sizeof *a);
        for (int k = 0; k < 3; k++) {
            lt_model_close(scored[k]);
        }
        lt_model_close(plain);
    }
}

/* A head of two layers: W ReLU(v) + b, by hand; without a second layer the values are copied. */
static void the_second_layer_of_a_head(void **state) {
    float of_head[] = {1, 2, 3, -1, 0, 0.5F, /* W (2, 3) */ 0.5F, -2 /* b */};
    const lt_model two = {.spec = {.n_scores = 3, .score_ends = 2}, .score_ends = of_head},
                   one = {.spec = {.n_scores = 3}};
    const float values[] = {2, -5, 4};
    float out[3];
    (void)state;
    lt_score_ends_of(&two, values, out);
    assert_true(out[0] == 0.5F + 2 + 12 && out[1] == -2 - 2 + 2);
    lt_score_ends_of(&one, values, out);
    assert_memory_equal(out, values, sizeof values);
}

#define HEAD "tests/golden/prm_head/model"

/* Replace a text of the same length in the header of the weights, and open the model. */
static lt_err open_renamed(const char *name, const char *instead, float number) {
    static const char folder[] = "/tmp/lateen-test-score-ends";
    char config[LT_PATH_BYTES], weights[LT_PATH_BYTES], *data = NULL, *at;
    lt_safetensors file;
    lt_model *m = NULL;
    size_t bytes;
    lt_err err;
    must(lt_file_make_dirs(folder), folder);
    must(lt_path_join(config, folder, "config.json"), folder);
    must(lt_path_join(weights, folder, "model.safetensors"), folder);
    must(lt_file_copy(HEAD "/config.json", config, 1 << 20), config);
    must(lt_file_read(&data, &bytes, HEAD "/model.safetensors", 1 << 22), HEAD);
    assert_int_equal(strlen(name), strlen(instead));
    at = memmem(data, bytes, name, strlen(name));
    assert_non_null(at);
    memcpy(at, instead, strlen(name));
    must(lt_safetensors_parse(&file, data, bytes, weights), weights);
    if (number != 0.0F) { /* The last element of the second layer's bias. */
        const lt_safetensor *bias = lt_safetensors_find(&file, "score.2.bias");
        unsigned char *last = (unsigned char *)(uintptr_t)bias->data + bias->bytes;
        assert_true(bias->dtype == LT_F32 || bias->dtype == LT_BF16);
        lt_convert(last - lt_dtype_bytes(bias->dtype), bias->dtype, &number, LT_F32, 1);
    }
    lt_safetensors_close(&file);
    must(lt_file_write_atomic(weights, data, bytes), weights);
    free(data);
    err = lt_model_open(&m, folder, NULL);
    lt_model_close(m);
    must(lt_file_remove_tree(folder), folder);
    return err;
}

static void damaged_second_layers(void **state) {
    static const struct {
        const char *name, *instead;
        float number;
        const char *says; /* NULL: the model is opened. */
    } rows[] = {
        {"score.2.bias", "score.2.bias", 0, NULL},
        {"score.2.bias", "score.2.bias", 1, NULL},
        {"score.2.bias", "score.2.bias", NAN, "score.2.bias: element 1 is not finite"},
        {"score.2.bias", "score.2.bias", INFINITY, "score.2.bias: element 1 is not finite"},
        {"score.2.bias", "score.2.bios", 0, "score.2.bi"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const lt_err err = open_renamed(rows[i].name, rows[i].instead, rows[i].number);
        if ((err == LT_OK) != (rows[i].says == NULL) ||
            (err != LT_OK && strstr(lt_error_message(), rows[i].says) == NULL)) {
            fail_msg("row %zu: %d, %s", i, (int)err, lt_error_message());
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_of_a_session),
                                       cmocka_unit_test(reads_the_end),
                                       cmocka_unit_test(gradients_of_a_pair),
                                       cmocka_unit_test(on_the_gpu),
                                       cmocka_unit_test(saved_and_opened),
                                       cmocka_unit_test(a_language_model_gets_a_score_head),
                                       cmocka_unit_test(the_second_layer_of_a_head),
                                       cmocka_unit_test(damaged_second_layers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
