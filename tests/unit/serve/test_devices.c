/* Several devices in one process, each driven by a thread of its own: each trains a model and
 * serves another while its neighbour does the same, with the bits that it has alone. Two CPU
 * devices with thread pools of their own; a GPU and a CPU device, if there is a GPU; two GPUs, if
 * there are two (tests/emu: LATEEN_EMU_DEVICES=2). */
#include "unit/serve/fleet.h"

#include <pthread.h>
#include <sched.h>

#include "base/thread.h"
#include "model/alloc.h"
#include "model/pass/pass.h"
#include "tensor/ops.h"
#include "train/optimiser.h"

enum { V = 200, SEQ = 64, BATCH = 2, ROW = 16, STEPS = 6, REQUESTS = 5, TOKENS = 20, TURNS = 2 };
enum { MOST_PARAMS = 1 << 17 };

/* The work of a device, and its results. A thread other than the test's own must not end the
 * test, so it records the failure. */
typedef struct {
    lt_device *device;
    uint64_t seed;
    lt_dtype dtype;
    pthread_barrier_t *start; /* NULL: the device is alone. */
    lt_err err;
    char message[512];
    double losses[STEPS];
    size_t weights_bytes;
    int64_t n_events;
    unsigned char weights[MOST_PARAMS * sizeof(float)];
    int32_t ids[REQUESTS][TOKENS];
    float logprobs[REQUESTS][TOKENS];
    int64_t n[REQUESTS];
} work;

static lt_err make_model(lt_model **out, const work *w, bool trainable) {
    const lt_model_spec spec = {.family = LT_FAMILY_LLAMA,
                                .n_layers = 2,
                                .width = 64,
                                .n_heads = 4,
                                .n_kv_heads = 2,
                                .head_dim = 16,
                                .ffn_width = 96,
                                .vocab_size = V,
                                .max_seq = SEQ,
                                .norm_eps = 1e-5f,
                                .act = LT_ACT_SILU,
                                .gated = true,
                                .embed_scale = 1.0f,
                                .pos = LT_POS_ROPE,
                                .rope_theta = 10000,
                                .bos_id = 1,
                                .eos = {.ids = {2}, .n = 1},
                                .pad_id = -1,
                                .init_std = 0.15f};
    return lt_model_create(
        out, &spec,
        &(lt_model_options){.dtype = w->dtype, .trainable = trainable, .device = w->device},
        w->seed);
}

static lt_err train_steps(work *w, lt_model *m, lt_pass *pass, lt_optimiser *optimiser,
                          const lt_recipe *r) {
    for (int64_t step = 0; step < STEPS; step++) {
        int32_t tokens[BATCH * ROW], labels[BATCH * ROW];
        const lt_pass_batch b = {.batch = BATCH, .seq = ROW, .tokens = tokens, .labels = labels};
        const lt_step_plan plan = lt_recipe_plan(r, step + 1, 0);
        lt_pass_result result = {0};
        for (int k = 0; k < BATCH * ROW; k++) {
            tokens[k] = (int32_t)(lt_rng_mix(w->seed * 7919 + (uint64_t)(step * 1000 + k)) % V);
            labels[k] = (int32_t)(lt_rng_mix(w->seed * 104729 + (uint64_t)(step * 1000 + k)) % V);
        }
        LT_TRY(lt_pass_zero_gradients(pass));
        LT_TRY(lt_pass_train(pass, &b, 1.0f / (BATCH * ROW), &result));
        LT_TRY(lt_optimiser_sumsq(optimiser, lt_pass_gradients(pass)));
        LT_TRY(lt_optimiser_step(optimiser, lt_pass_gradients(pass), 1.0f, &plan));
        w->losses[step] = result.loss_sum;
    }
    LT_TRY(m->backend->sync(lt_pass_queue(pass)));
    w->weights_bytes = lt_param_buffer_bytes(&m->table, w->dtype);
    if (w->weights_bytes > sizeof w->weights) {
        LT_FAIL(LT_ERR_LIMIT, "%zu bytes of weights", w->weights_bytes);
    }
    return lt_model_download(m, w->weights, m->memory, w->weights_bytes);
}

static lt_err train(work *w) {
    lt_err err = LT_OK;
    lt_model *m = NULL;
    lt_pass *pass = NULL;
    lt_optimiser optimiser = {0};
    lt_recipe *r = calloc(1, sizeof *r);
    if (r == NULL) {
        LT_FAIL(LT_ERR_OOM, "recipe");
    }
    lt_options_default(&lt_recipe_table, r);
    r->lr = 1e-2;
    r->warmup = 0;
    LT_TRY_DONE(make_model(&m, w, true));
    LT_TRY_DONE(
        lt_pass_open(&pass, m, &(lt_pass_options){.batch = BATCH, .seq = ROW, .train = true}));
    LT_TRY_DONE(lt_optimiser_open(&optimiser, r, m, lt_pass_queue(pass)));
    LT_TRY_DONE(train_steps(w, m, pass, &optimiser, r));
done:
    if (m != NULL) {
        lt_optimiser_close(&optimiser);
    }
    lt_pass_close(pass);
    lt_model_close(m);
    free(r);
    return err;
}

static lt_err take(work *w, const lt_event *e, int64_t *n_done) {
    const int64_t i = (int64_t)(uintptr_t)e->user - 1;
    if (e->kind == LT_EVENT_TOKEN && w->n[i] < TOKENS) {
        w->ids[i][w->n[i]] = e->id;
        w->logprobs[i][w->n[i]++] = e->logprob;
    }
    if (e->kind == LT_EVENT_CHOICE && e->failure != LT_OK) {
        LT_FAIL(e->failure, "request %lld failed", (long long)i);
    }
    *n_done += e->kind == LT_EVENT_DONE;
    return LT_OK;
}

static lt_err ask(work *w, lt_engine *e) {
    lt_event events[16];
    int64_t n_done = 0;
    for (int64_t i = 0; i < REQUESTS; i++) {
        int32_t prompt[12];
        uint64_t id;
        const lt_request r = {.prompt = prompt,
                              .n_prompt = 3 + i,
                              .n_choices = 1,
                              .max_tokens = TOKENS,
                              .ignore_eos = true,
                              .think_budget = -1,
                              .sampling = {.temperature = i % 2 == 0 ? 0.0 : 0.9,
                                           .top_p = 1.0,
                                           .repetition = 1.0,
                                           .seed = w->seed + (uint64_t)i}};
        fill_prompt(prompt, 3 + i, V, w->seed * 31 + (uint64_t)i);
        LT_TRY(lt_engine_submit(e, &r, (void *)(uintptr_t)(i + 1), &id));
    }
    while (n_done < REQUESTS) {
        struct pollfd p = {.fd = lt_engine_fd(e), .events = POLLIN};
        if (poll(&p, 1, 60000) != 1) {
            LT_FAIL(LT_ERR_STATE, "the engine returns no event for 60 s");
        }
        const int64_t n = lt_engine_poll(e, events, 16);
        for (int64_t i = 0; i < n; i++) {
            LT_TRY(take(w, &events[i], &n_done));
        }
    }
    return LT_OK;
}

static lt_err serve(work *w) {
    lt_err err = LT_OK;
    lt_model *m = NULL;
    lt_engine *e = NULL;
    lt_engine_options o = lt_engine_defaults();
    o.max_running = 8;
    o.max_seq = SEQ;
    o.step_tokens = 16;
    o.deterministic = true; /* Which requests share a step does not depend on the device. */
    w->seed += 100;         /* A model other than the one that is trained. */
    LT_TRY_DONE(make_model(&m, w, false));
    LT_TRY_DONE(lt_engine_open(&e, m, &o));
    LT_TRY_DONE(ask(w, e));
done:
    w->seed -= 100;
    lt_engine_close(e);
    lt_model_close(m);
    return err;
}

static void *drive(void *arg) {
    work *w = arg;
    const bool serves_first = w->seed % 2 == 0; /* So that training runs beside serving. */
    if (w->start != NULL) {
        (void)pthread_barrier_wait(w->start);
    }
    w->err = serves_first ? serve(w) : train(w);
    w->err = w->err != LT_OK ? w->err : serves_first ? train(w) : serve(w);
    if (w->err != LT_OK) {
        (void)snprintf(w->message, sizeof w->message, "%s", lt_error_message());
    }
    return NULL;
}

static void run(work *all, int n, bool together) {
    pthread_t threads[4];
    pthread_barrier_t start;
    assert_int_equal(pthread_barrier_init(&start, NULL, (unsigned)n), 0);
    for (int i = 0; i < n; i++) {
        all[i].start = together ? &start : NULL;
        assert_int_equal(pthread_create(&threads[i], NULL, drive, &all[i]), 0);
        if (!together) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
        }
    }
    for (int i = 0; together && i < n; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    (void)pthread_barrier_destroy(&start);
    for (int i = 0; i < n; i++) {
        if (all[i].err != LT_OK) {
            fail_msg("device %d: %s", i, all[i].message);
        }
    }
}

static void compare(const work *got, const work *want, int device) {
    if (memcmp(got->losses, want->losses, sizeof want->losses) != 0) {
        fail_msg("device %d: losses are not those it has alone", device);
    }
    assert_true(want->weights_bytes > 0 && got->weights_bytes == want->weights_bytes);
    if (memcmp(got->weights, want->weights, want->weights_bytes) != 0) {
        fail_msg("device %d: weights are not those it has alone", device);
    }
    for (int i = 0; i < REQUESTS; i++) {
        assert_int_equal(want->n[i], TOKENS);
        assert_int_equal(got->n[i], TOKENS);
        if (memcmp(got->ids[i], want->ids[i], sizeof want->ids[i]) != 0 ||
            memcmp(got->logprobs[i], want->logprobs[i], sizeof want->logprobs[i]) != 0) {
            fail_msg("device %d, request %d: tokens are not those it has alone", device, i);
        }
    }
}

static void together_as_alone(lt_device *const *devices, int n, lt_dtype dtype) {
    work *alone = calloc((size_t)n, sizeof *alone), *beside = calloc((size_t)n, sizeof *beside);
    assert_non_null(alone);
    assert_non_null(beside);
    for (int i = 0; i < n; i++) {
        alone[i] = (work){.device = devices[i], .seed = (uint64_t)i + 1, .dtype = dtype};
    }
    run(alone, n, false);
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < n; i++) {
            beside[i] = (work){.device = devices[i], .seed = (uint64_t)i + 1, .dtype = dtype};
        }
        run(beside, n, true);
        for (int i = 0; i < n; i++) {
            compare(&beside[i], &alone[i], i);
        }
    }
    free(alone);
    free(beside);
}

/* The most threads of a parallel loop: under ThreadSanitizer, which does not know OpenMP's pool,
 * OMP_NUM_THREADS is 1. */
static int threads_most(int n) {
    return lt_thread_count() < n ? lt_thread_count() : n;
}

static void two_cpus(void **state) {
    const lt_dtype types[] = {LT_F32, LT_BF16};
    (void)state;
    for (int i = 0; i < 2; i++) {
        lt_device *devices[2] = {NULL};
        must(lt_device_open_cpu(&devices[0], threads_most(2), ""), "a device");
        must(lt_device_open_cpu(&devices[1], threads_most(3), ""), "another device");
        together_as_alone(devices, 2, types[i]);
        lt_device_close(devices[1]);
        lt_device_close(devices[0]);
    }
}

static void a_gpu_beside_a_cpu(void **state) {
    lt_device *devices[2] = {NULL};
    (void)state;
    if (lt_device_open(&devices[0], LT_DEVICE_CUDA, 0) != LT_OK) {
        skip();
    }
    must(lt_device_open_cpu(&devices[1], threads_most(2), ""), "a CPU device");
    together_as_alone(devices, 2, LT_BF16);
    lt_device_close(devices[1]);
    lt_device_close(devices[0]);
}

static void two_gpus(void **state) {
    lt_device *devices[2] = {NULL};
    (void)state;
    if (lt_device_open(&devices[1], LT_DEVICE_CUDA, 1) != LT_OK) {
        skip();
    }
    must(lt_device_open(&devices[0], LT_DEVICE_CUDA, 0), "GPU 0");
    together_as_alone(devices, 2, LT_BF16);
    lt_device_close(devices[1]);
    lt_device_close(devices[0]);
}

/* ---- Threads and cores ---- */

typedef struct {
    lt_device *device;
    int n_threads; /* Of its loops, after an op; and on how many cores they may run. */
    int n_cores;
} loop;

static void *loop_of(void *arg) {
    loop *l = arg;
    cpu_set_t cores;
    float x[4] = {0};
    lt_queue *q = NULL;
    const lt_backend *b = l->device->backend;
    if (b->queue_open(l->device, &q) == LT_OK && b->zero(q, x, sizeof x) == LT_OK) {
        l->n_threads = lt_thread_count();
        l->n_cores = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : -1;
    }
    b->queue_close(q);
    return NULL;
}

static loop loop_on(lt_device *d) {
    loop l = {.device = d};
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, loop_of, &l), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    return l;
}

static void threads_and_cores(void **state) {
    lt_device *five = NULL, *one = NULL, *plain = NULL;
    cpu_set_t mine;
    char core[24];
    int first = 0;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
    while (!CPU_ISSET((size_t)first, &mine)) {
        first++;
    }
    (void)snprintf(core, sizeof core, "cpu:%d", first);
    const int had = lt_thread_count(), many = had > 1 ? 5 : 1; /* As in threads_most. */
    must(lt_device_open_cpu(&five, many, ""), "5 threads");
    must(lt_device_open_named(&one, core), core);
    must(lt_device_open(&plain, LT_DEVICE_CPU, 0), "plain");
    assert_int_equal(loop_on(five).n_threads, many);
    assert_int_equal(loop_on(five).n_cores, CPU_COUNT(&mine));
    assert_int_equal(loop_on(one).n_threads, 1);
    assert_int_equal(loop_on(one).n_cores, 1);
    /* One thread that drives one device after the other: a device without threads of its own
     * restores those that the thread had. */
    lt_device *const order[] = {five, one, plain, one, five, plain};
    const int threads[] = {many, 1, had, 1, many, had};
    for (int i = 0; i < 6; i++) {
        loop l = {.device = order[i]};
        (void)loop_of(&l);
        assert_int_equal(l.n_threads, threads[i]);
        assert_int_equal(l.n_cores, order[i] == one ? 1 : CPU_COUNT(&mine));
    }
    lt_device_close(plain);
    lt_device_close(one);
    lt_device_close(five);
}

static void wrong_names(void **state) {
    static const struct {
        const char *name, *says;
    } wrong[] = {{"gpu", "device 'gpu' is not one of cpu[:CORES]|cuda[:N]|auto"},
                 {"", "is not one of"},
                 {"cuda:", "device 'cuda:' is not one of"},
                 {"cuda:-1", "device 'cuda:-1' is not one of"},
                 {"cuda:1x", "device 'cuda:1x' is not one of"},
                 {"cuda:123456", "device 'cuda:123456' is not one of"},
                 {"cuda0", "device 'cuda0' is not one of"},
                 {"cpu:", "device 'cpu:' is not one of"},
                 {"cpu:x", "cores 'x': a list like 0-3,8"},
                 {"cpu:0,", "cores '0,'"},
                 {"cpu:3-1", "cores '3-1'"},
                 {"cpu:-1", "cores '-1'"},
                 {"cpu:0-", "cores '0-'"},
                 {"cpu:99999999999999999999", "cores '99999999999999999999'"},
                 {"cpu:1023", "core 1023 is not one that this process may use"}};
    lt_device *d = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_not_equal(lt_device_open_named(&d, wrong[i].name), LT_OK);
        assert_null(d);
        if (strstr(lt_error_message(), wrong[i].says) == NULL) {
            fail_msg("'%s': '%s' is not in: %s", wrong[i].name, wrong[i].says, lt_error_message());
        }
    }
    assert_int_equal(lt_device_open_cpu(&d, -1, ""), LT_ERR_ARG);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_cpus), cmocka_unit_test(a_gpu_beside_a_cpu),
        cmocka_unit_test(two_gpus), cmocka_unit_test(threads_and_cores),
        cmocka_unit_test(wrong_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
