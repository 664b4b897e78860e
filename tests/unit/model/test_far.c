/* Models on a device whose memory the host cannot access, with queued work and recorded graphs:
 * every family has the bits of the CPU. */
#include "unit/model/far.h"
#include "unit/model/golden.h"

#include "model/alloc.h"

static lt_model *open_on(const char *name, const lt_backend *backend, lt_dtype dtype) {
    char path[256];
    lt_model *m = NULL;
    (void)snprintf(path, sizeof path, GOLDEN_ROOT "%s", name);
    must(lt_model_open(
             &m, path,
             &(lt_model_options){.dtype = dtype, .trainable = true, .device = device_of(backend)}),
         path);
    return m;
}

/* Four passes over the golden batch: eager, recorded, replayed with another batch staged
 * ahead. */
static float *train_on(golden *g, lt_model *m, lt_recompute recompute, lt_pass_result *sum) {
    const size_t bytes = (size_t)m->table.n_elements * sizeof(float);
    const lt_pass_options o = {.batch = g->batch.batch,
                               .seq = g->batch.seq,
                               .train = true,
                               .recompute = recompute,
                               .loss_chunk_rows = 16};
    float *gradients = malloc(bytes);
    lt_pass_result eval = {0};
    lt_pass *p = NULL;

    *sum = (lt_pass_result){0};
    must(lt_pass_open(&p, m, &o), g->name);
    for (int i = 0; i < 2; i++) {
        lt_pass_result one;
        must(lt_pass_train(p, &g->batch, 0.25f, &one), g->name);
        sum->loss_sum += one.loss_sum;
    }
    must(lt_pass_stage(p, &g->batch), g->name);
    must(lt_pass_stage(p, &g->batch), g->name);
    assert_true(lt_pass_full(p));
    must(lt_pass_train_staged(p, 0.25f), g->name);
    must(lt_pass_eval(p, &g->batch, &eval, NULL), g->name);
    must(lt_pass_train_staged(p, 0.25f), g->name);
    must(lt_pass_collect(p, sum), g->name);
    sum->loss_sum += eval.loss_sum;
    assert_int_equal(lt_pass_graphs(p), m->backend->graph_begin != NULL ? 1 : 0);
    must(lt_model_download(m, gradients, lt_param_floats(lt_pass_gradients(p)), bytes), g->name);
    lt_pass_close(p);
    return gradients;
}

static void family(void **state) {
    for (int i = 0; i < 6; i++) {
        const lt_dtype dtype = i % 2 != 0 ? LT_BF16 : LT_F32;
        golden g;
        lt_pass_result near_sum, far_sum;
        float *near_grads, *far_grads;
        lt_model *far;
        golden_open(&g, *state, lt_backend_cpu(), dtype);
        far = open_on(*state, far_backend(), dtype);
        near_grads = train_on(&g, g.model, (lt_recompute)(i / 2), &near_sum);
        far_grads = train_on(&g, far, (lt_recompute)(i / 2), &far_sum);
        assert_true(near_sum.loss_sum == far_sum.loss_sum &&
                    near_sum.n_correct == far_sum.n_correct &&
                    near_sum.aux_sum == far_sum.aux_sum && near_sum.z_sum == far_sum.z_sum);
        assert_memory_equal(near_grads, far_grads,
                            (size_t)far->table.n_elements * sizeof *far_grads);
        free(near_grads);
        free(far_grads);
        lt_model_close(far);
        golden_close(&g);
    }
}

static void session_and_file(void **state) {
    static const int32_t ids[] = {1, 5, 9, 2, 7, 7, 3};
    static float near_logits[4096], far_logits[4096];
    char folder[] = "/tmp/lateen-far-XXXXXX", path[64], command[96];
    lt_model *near_model = open_on("apertus", lt_backend_cpu(), LT_BF16),
             *far = open_on("apertus", far_backend(), LT_BF16), *again = NULL;
    lt_model *const models[] = {near_model, far};
    float *const logits[] = {near_logits, far_logits};
    const size_t bytes = (size_t)near_model->spec.vocab_size * sizeof(float);
    (void)state;

    assert_true(bytes <= sizeof near_logits);
    for (int i = 0; i < 2; i++) {
        lt_session *s = NULL;
        must(lt_session_open(&s, models[i], 2, 16), "session");
        must(lt_session_eval(s, 1, ids, 6, NULL), "prompt");
        must(lt_session_step(s, (const int64_t[]){1}, ids + 6, 1, logits[i]), "step");
        lt_session_close(s);
    }
    assert_memory_equal(near_logits, far_logits, bytes);

    assert_non_null(mkdtemp(folder));
    must(lt_model_save(far, folder, LT_BF16, 0), "save");
    must(lt_model_open(&again, folder, &(lt_model_options){.dtype = LT_BF16}), "open again");
    for (int i = 0; i < again->table.n_params; i++) {
        const lt_param *p = &again->table.params[i];
        assert_memory_equal((const uint16_t *)again->weights.flat + p->whole_at,
                            (const uint16_t *)near_model->weights.flat + p->whole_at,
                            (size_t)p->count * sizeof(uint16_t));
    }
    (void)snprintf(path, sizeof path, "%s", folder);
    (void)snprintf(command, sizeof command, "rm -r %s", path);
    assert_int_equal(system(command), 0);
    lt_model_close(again);
    lt_model_close(far);
    lt_model_close(near_model);
}

static void random_weights(void **state) {
    lt_model_spec spec;
    lt_model *near_model = open_on("gpt2", lt_backend_cpu(), LT_F32), *far = NULL, *cpu = NULL;
    float *weights;
    (void)state;
    spec = near_model->spec;
    must(lt_model_create(&cpu, &spec, &(lt_model_options){.dtype = LT_F32}, 7), "create");
    must(lt_model_create(&far, &spec,
                         &(lt_model_options){.dtype = LT_F32, .device = device_of(far_backend())},
                         7),
         "create");
    weights = malloc((size_t)cpu->table.n_elements * sizeof *weights);
    must(lt_model_download(far, weights, lt_param_floats(&far->master),
                           (size_t)cpu->table.n_elements * sizeof *weights),
         "download");
    assert_memory_equal(weights, lt_param_floats(&cpu->master),
                        (size_t)cpu->table.n_elements * sizeof *weights);
    free(weights);
    lt_model_close(cpu);
    lt_model_close(far);
    lt_model_close(near_model);
}

int main(void) {
    struct CMUnitTest tests[N_GOLDEN_CASES + 2];
    for (int i = 0; i < N_GOLDEN_CASES; i++) {
        tests[i] = (struct CMUnitTest){.name = golden_cases[i],
                                       .test_func = family,
                                       .initial_state = (void *)(uintptr_t)golden_cases[i]};
    }
    tests[N_GOLDEN_CASES] = (struct CMUnitTest)cmocka_unit_test(session_and_file);
    tests[N_GOLDEN_CASES + 1] = (struct CMUnitTest)cmocka_unit_test(random_weights);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
