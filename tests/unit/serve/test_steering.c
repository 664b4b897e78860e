/* Steering vectors: log-probabilities of a steered model against transformers' with a hook
 * (tools/make_guide_goldens.py), on each backend; rows of other requests keep their bits; pages
 * are shared only with the same steering; faulty files are refused by name. */
#include "unit/serve/fleet.h"

#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "model/files/safetensors.h"
#include "model/infer/steering.h"
#include "tensor/backend.h"

#define ROOT  "tests/golden/serve/guides/"
#define MODEL "tests/golden/model/llama3"
enum { N = 20 };

typedef struct {
    json_t *root;
    lt_model *model;
    lt_engine *engine;
    int32_t tokens[N];
} fixture;

static void open_fixture_on(fixture *f, bool deterministic, const lt_backend *b) {
    lt_engine_options o = lt_engine_defaults();
    *f = (fixture){.root = NULL};
    must(lt_json_load(&f->root, ROOT "steer.json", 1 << 20), "golden");
    must(lt_model_open(
             &f->model, MODEL,
             &(lt_model_options){.dtype = b != NULL ? LT_BF16 : LT_F32, .device = device_of(b)}),
         MODEL);
    must(lt_steering_open(f->model, "calm=" ROOT "calm.safetensors,odd=" ROOT "odd.safetensors"),
         "vectors");
    for (int i = 0; i < N; i++) {
        f->tokens[i] = (int32_t)json_integer_value(
            json_array_get(json_object_get(f->root, "tokens"), (size_t)i));
    }
    o.max_seq = 64;
    o.deterministic = deterministic;
    must(lt_engine_open(&f->engine, f->model, &o), "engine");
}

static void open_fixture(fixture *f, bool deterministic) {
    open_fixture_on(f, deterministic, NULL);
}

static void close_fixture(fixture *f) {
    lt_engine_close(f->engine);
    lt_model_close(f->model);
    json_decref(f->root);
}

static lt_request request_of(const fixture *f, const char *vector, double scale) {
    lt_request r = lt_request_defaults();
    r.prompt = f->tokens;
    r.n_prompt = N;
    r.max_tokens = 8;
    r.ignore_eos = true;
    r.logprobs = 3;
    r.sampling.temperature = 0;
    if (vector != NULL) {
        must(lt_steering_find(f->model->steering, vector, &r.steer), vector);
        r.steer_scale = (float)scale;
    }
    return r;
}

static void compare_with_a_hook(const lt_backend *b, double tolerance) {
    enum { CASES = 4 };
    static answer answers[CASES];
    fixture f;
    open_fixture_on(&f, false, b);
    for (int i = 0; i < CASES; i++) { /* All in one step. */
        const json_t *c = json_array_get(json_object_get(f.root, "cases"), (size_t)i);
        lt_request r = request_of(&f, json_string_value(json_object_get(c, "vector")),
                                  json_real_value(json_object_get(c, "scale")));
        r.prompt_logprobs = 0;
        send(f.engine, &r, &answers[i]);
    }
    receive_all(f.engine, CASES, 0);
    for (int i = 0; i < CASES; i++) {
        const json_t *want = json_object_get(
            json_array_get(json_object_get(f.root, "cases"), (size_t)i), "logprobs");
        for (int k = 1; k < N; k++) {
            const double x = json_real_value(json_array_get(want, (size_t)k - 1));
            if (!(fabs((double)answers[i].prompt_logprobs[k] - x) < tolerance)) {
                fail_msg("case %d, token %d: %.7g, expected %.7g", i, k,
                         (double)answers[i].prompt_logprobs[k], x);
            }
        }
    }
    close_fixture(&f);
}

static void logprobs_are_those_of_a_hook(void **state) {
    (void)state;
    compare_with_a_hook(NULL, 1e-4);
}

/* In 16 bits, whose rounding errors the random weights make visible. */
static void logprobs_on_a_gpu(void **state) {
    (void)state;
    if (gpu_backend() == NULL) {
        skip();
    }
    compare_with_a_hook(gpu_backend(), 0.1);
}

/* Alone and among others, steered and not; from the prefix cache and without it. */
static void requests_keep_their_bits(void **state) {
    enum { KINDS = 3, EACH = 5 };
    static const struct {
        const char *vector;
        double scale;
    } kinds[KINDS] = {{NULL, 0}, {"calm", -2}, {"odd", 3}};
    static answer alone[KINDS], among[KINDS * EACH];
    fixture f;
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        lt_request r;
        open_fixture(&f, true);
        r = request_of(&f, kinds[k].vector, kinds[k].scale);
        send(f.engine, &r, &alone[k]);
        receive_all(f.engine, 1, 0);
        close_fixture(&f);
    }
    assert_true(
        memcmp(alone[0].choices[0].logprobs, alone[1].choices[0].logprobs, 8 * sizeof(float)) != 0);
    assert_true(
        memcmp(alone[0].choices[0].logprobs, alone[2].choices[0].logprobs, 8 * sizeof(float)) != 0);
    open_fixture(&f, true);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < KINDS * EACH; i++) {
            lt_request r = request_of(&f, kinds[i % KINDS].vector, kinds[i % KINDS].scale);
            send(f.engine, &r, &among[i]);
        }
        receive_all(f.engine, KINDS * EACH, 0);
        for (int i = 0; i < KINDS * EACH; i++) {
            assert_same(&among[i].choices[0], &alone[i % KINDS].choices[0], "among others");
            assert_memory_equal(among[i].choices[0].logprobs, alone[i % KINDS].choices[0].logprobs,
                                8 * sizeof(float));
            assert_true(round == 0 || among[i].cached_tokens == 16);
        }
    }
    close_fixture(&f);
}

static void write_vector(const char *path, const char *name, int64_t n, float value) {
    float x[64];
    const lt_safetensor_memory memory = {x, sizeof *x};
    const lt_safetensor_out t = {.name = name,
                                 .dtype = LT_F32,
                                 .n_dims = 1,
                                 .shape = {n},
                                 .fill = lt_safetensor_fill_memory,
                                 .ctx = &memory};
    for (int i = 0; i < 64; i++) {
        x[i] = value;
    }
    must(lt_safetensors_write(path, &t, 1, NULL, NULL), path);
}

static void faults_are_reported(void **state) {
    static const struct {
        const char *tensor;
        int64_t n;
        float value;
        lt_err err;
        const char *words;
    } files[] = {{"direction.2", 32, 1, LT_ERR_FORMAT, "N from 0 to 1"},
                 {"direction.0", 31, 1, LT_ERR_FORMAT, "31 numbers"},
                 {"direction.x", 32, 1, LT_ERR_FORMAT, "direction.x"},
                 {"direction.1x", 32, 1, LT_ERR_FORMAT, "direction.1x"},
                 {"direction.", 32, 1, LT_ERR_FORMAT, "direction."},
                 {"direction.-1", 32, 1, LT_ERR_FORMAT, "direction.-1"},
                 {"directions.1", 32, 1, LT_ERR_FORMAT, "directions.1"},
                 {"direction.0", 32, INFINITY, LT_ERR_FORMAT, "not finite"}};
    static const struct {
        const char *what, *words;
    } names[] = {{"calm", "NAME=FILE"},
                 {"=x", "NAME=FILE"},
                 {"", "no NAME=FILE"},
                 {"a=" ROOT "calm.safetensors,a=" ROOT "calm.safetensors", "twice"}};
    char path[256], what[300];
    fixture f;
    lt_request r;
    uint64_t id;
    (void)state;
    open_fixture(&f, false);
    (void)snprintf(path, sizeof path, "/tmp/lateen-steer-%d.safetensors", (int)getpid());
    (void)snprintf(what, sizeof what, "v=%s", path);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        write_vector(path, files[i].tensor, files[i].n, files[i].value);
        assert_int_equal(lt_steering_open(f.model, what), files[i].err);
        assert_non_null(strstr(lt_error_message(), files[i].words));
    }
    (void)unlink(path);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(lt_steering_open(f.model, names[i].what), LT_ERR_ARG);
        assert_non_null(strstr(lt_error_message(), names[i].words));
    }
    assert_int_equal(lt_steering_count(f.model->steering), 2); /* These stay. */
    r = request_of(&f, "calm", 1);
    assert_int_equal(lt_steering_find(f.model->steering, "clam", &r.steer), LT_ERR_NOT_FOUND);
    assert_non_null(strstr(lt_error_message(), "calm"));
    r.steer = 3;
    assert_int_equal(lt_engine_submit(f.engine, &r, NULL, &id), LT_ERR_ARG);
    r.steer = 1;
    r.steer_scale = NAN;
    assert_int_equal(lt_engine_submit(f.engine, &r, NULL, &id), LT_ERR_ARG);
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logprobs_are_those_of_a_hook),
        cmocka_unit_test(logprobs_on_a_gpu),
        cmocka_unit_test(requests_keep_their_bits),
        cmocka_unit_test(faults_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
