/* Every family on a GPU (skipped without one): losses and gradients against the goldens (Hugging
 * Face transformers in float64), the same bits twice, the same bits for every level of recompute,
 * eager and as a recorded graph, whole or in pieces between callbacks; in BF16 close to the CPU's
 * BF16.
 *
 * Tolerances, relative to the largest element of a tensor. F32: as on the CPU (test_golden.c),
 * doubled, since sums run in other orders. BF16 is measured against the CPU's BF16: on an H100 its
 * gradients are 0.9 to 1.3 times as far from F32, those of Switch, whose ReLU has a kink, 1.9
 * times. */
#include "unit/model/golden.h"

#include "model/alloc.h"

#define TOLERANCE_F32 2e-5
#define WORSE_BF16    3.0

static const lt_backend *gpu;

static lt_model *open_on(const char *name, const char *part, const lt_backend *backend,
                         lt_dtype dtype) {
    char path[256];
    lt_model *m = NULL;
    (void)snprintf(path, sizeof path, GOLDEN_ROOT "%s%s", name, part);
    must(lt_model_open(
             &m, path,
             &(lt_model_options){.dtype = dtype, .trainable = true, .device = device_of(backend)}),
         path);
    return m;
}

/* Gradients of the golden batch after `passes` passes over it: the first runs eagerly, later ones
 * are recorded. */
static float *gradients(const golden *g, lt_model *m, lt_recompute recompute, int passes,
                        bool eager, lt_pass_result *r) {
    const size_t bytes = (size_t)m->table.n_elements * sizeof(float);
    const lt_pass_options o = {.batch = g->batch.batch,
                               .seq = g->batch.seq,
                               .train = true,
                               .recompute = recompute,
                               .eager = eager};
    float *out = malloc(bytes);
    lt_pass *p = NULL;
    must(lt_pass_open(&p, m, &o), g->name);
    for (int i = 0; i < passes; i++) {
        must(lt_pass_zero_gradients(p), g->name);
        must(lt_pass_train(p, &g->batch, 1.0f, r), g->name);
    }
    must(lt_model_download(m, out, lt_param_floats(lt_pass_gradients(p)), bytes), g->name);
    lt_pass_close(p);
    return out;
}

static void check_f32(golden *g, lt_model *m) {
    const double *losses = golden_data(g, "losses");
    lt_model *expected = open_on(g->name, "/grads", lt_backend_cpu(), LT_F32);
    lt_pass_result r;
    float *ours = gradients(g, m, LT_RECOMPUTE_NONE, 1, true, &r);
    const double loss = r.loss_sum / (double)r.n_labels;
    if (fabs(loss - losses[0]) > TOLERANCE_F32 * losses[0]) {
        fail_msg("%s: loss %.7f, expected %.7f", g->name, loss, losses[0]);
    }
    assert_params_near(&m->table, ours, lt_param_floats(&expected->master), TOLERANCE_F32, g->name);
    free(ours);
    lt_model_close(expected);
}

static void check_bits(golden *g, lt_model *m) {
    const size_t bytes = (size_t)m->table.n_elements * sizeof(float);
    lt_pass_result r, again;
    float *one = gradients(g, m, LT_RECOMPUTE_NONE, 1, true, &r);
    /* With LATEEN_TEST_ALL=1 every level, eager and recorded; otherwise two of the six
     * combinations; core: one of these two, in turn, in both types. */
    static int n_checked;
    const int each = getenv("LATEEN_TEST_ALL") != NULL ? 1 : 4, turn = n_checked++ / 2 % 2;
    for (int i = core_only() ? 4 * turn : 0; i < (core_only() ? 4 * turn + 1 : 6); i += each) {
        float *other = gradients(g, m, (lt_recompute)(i % 3), 3, i < 3, &again);
        if (memcmp(one, other, bytes) != 0 || r.loss_sum != again.loss_sum) {
            fail_msg("%s in %s: other bits with recompute %d, %s", g->name,
                     lt_dtype_name(m->options.dtype), i % 3, i < 3 ? "eager" : "recorded");
        }
        free(other);
    }
    free(one);
}

/* The largest difference of a parameter's gradients in two models, relative to their length;
 * *worst: the parameter. */
static double apart(const golden *g, lt_model *m, lt_model *cpu, const char **worst) {
    lt_pass_result r, expected;
    float *ours = gradients(g, m, LT_RECOMPUTE_NONE, 1, true, &r),
          *theirs = gradients(g, cpu, LT_RECOMPUTE_NONE, 1, true, &expected);
    double most = 0.0;
    assert_true(fabs(r.loss_sum - expected.loss_sum) <= 0.01 * expected.loss_sum);
    for (int i = 0; i < m->table.n_params; i++) {
        const lt_param *q = &m->table.params[i];
        double off = 0.0, whole = 0.0;
        for (int64_t j = q->whole_at; j < q->whole_at + q->count; j++) {
            off += pow((double)ours[j] - (double)theirs[j], 2);
            whole += pow((double)theirs[j], 2);
        }
        /* The gradient of the keys' bias is rounding alone. */
        if (!(sqrt(off) <= most * sqrt(whole)) && q->kind != LT_PARAM_QKV_BIAS) {
            most = sqrt(off / whole);
            *worst = q->name;
        }
    }
    free(ours);
    free(theirs);
    return most;
}

/* The GPU's BF16 is about as far from F32 as the CPU's: both round at the same places, but not
 * always in the same direction. */
static void compare_bf16(const golden *g, lt_model *m, lt_model *cpu, const char *how) {
    const char *worst = "", *worst_cpu = "";
    const double off = apart(g, m, g->model, &worst), usual = apart(g, cpu, g->model, &worst_cpu);
    if (!(off <= WORSE_BF16 * usual)) {
        fail_msg("%s%s: %s is %.3g of its length off F32's, on the CPU %s %.3g", g->name, how,
                 worst, off, worst_cpu, usual);
    }
}

/* A row that rounding sends to another expert changes whole gradients (on an H100 one of
 * Mixtral's: by 0.27 of the router's). So experts are compared with all of them chosen and none
 * full, where this cannot happen. */
static void check_bf16(golden *g, lt_model *m) {
    lt_model *cpu = open_on(g->name, "", lt_backend_cpu(), LT_BF16);
    lt_model *const all[] = {m, cpu, g->model};
    const lt_model_spec spec = m->spec;
    for (int i = 0; i < 3 && spec.n_experts > 0; i++) {
        all[i]->spec.top_k = spec.n_experts;
        all[i]->spec.moe_capacity = 0.0;
    }
    compare_bf16(g, m, cpu, spec.n_experts > 0 ? ", all experts" : "");
    m->spec = g->model->spec = spec;
    lt_model_close(cpu);
}

static void family(void **state) {
    static int n_families;
    if (gpu == NULL) {
        skip();
    }
    n_families++;
    for (int i = 0; i < 2; i++) {
        const lt_dtype dtype = i != 0 ? LT_BF16 : LT_F32;
        golden g;
        lt_model *m;
        golden_open(&g, *state, lt_backend_cpu(), LT_F32);
        m = open_on(*state, "", gpu, dtype);
        if (dtype == LT_F32) {
            check_f32(&g, m);
        } else {
            check_bf16(&g, m);
        }
        if (!core_only() || n_families % 2 == i) { /* Core: each family in one of the types. */
            check_bits(&g, m);
        }
        lt_model_close(m);
        golden_close(&g);
    }
}

static void session(void **state) {
    static const int32_t ids[] = {1, 5, 9, 2, 7, 7, 3};
    static float logits[2][4096];
    const lt_backend *const on[] = {lt_backend_cpu(), gpu};
    if (gpu == NULL) {
        skip();
    }
    (void)state;
    for (int c = 0; c < N_GOLDEN_CASES; c++) {
        int64_t vocab = 0;
        for (int i = 0; i < 2; i++) {
            lt_model *m = open_on(golden_cases[c], "", on[i], LT_F32);
            lt_session *s = NULL;
            vocab = m->spec.vocab_size;
            must(lt_session_open(&s, m, 2, 8), golden_cases[c]);
            must(lt_session_eval(s, 1, ids, 6, NULL), golden_cases[c]);
            must(lt_session_step(s, (const int64_t[]){1}, ids + 6, 1, logits[i]), golden_cases[c]);
            lt_session_close(s);
            lt_model_close(m);
        }
        if (!(distance(logits[1], logits[0], vocab) <= TOLERANCE_F32)) {
            fail_msg("%s: logits of a step are %.3g off the CPU's", golden_cases[c],
                     distance(logits[1], logits[0], vocab));
        }
    }
}

/* Kinds of RoPE other than those of the families: rotation of parts of heads, tables by length.
 * Prompts and single tokens, against transformers (test_rope.c). */
static void rope(void **state) {
    enum { V = 32, PROMPT = 12, END = 22, LONG = 17 };
    static const char *const cases[] = {"dynamic",    "longrope", "proportional",
                                        "yarn_betas", "phi3",     "phi3_plain"};
    static float logits[LONG * V];
    if (gpu == NULL) {
        skip();
    }
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char name[64], path[128];
        lt_safetensors g = {0};
        lt_session *s = NULL;
        (void)snprintf(name, sizeof name, "../rope/%s", cases[c]);
        (void)snprintf(path, sizeof path, GOLDEN_ROOT "%s/golden.safetensors", name);
        lt_model *m = open_on(name, "", gpu, LT_F32);
        must(lt_safetensors_open(&g, path), path);
        const int32_t *ids = (const int32_t *)(const void *)lt_safetensors_find(&g, "tokens")->data;
        const float *whole = (const float *)(const void *)lt_safetensors_find(&g, "whole_17")->data,
                    *grown = (const float *)(const void *)lt_safetensors_find(&g, "grown")->data;
        must(lt_session_open(&s, m, 2, 40), name);
        must(lt_session_eval_all(s, 1, ids, LONG, logits), name);
        assert_true(distance(logits, whole, LONG * V) <= TOLERANCE_F32);
        must(lt_session_eval(s, 0, ids, PROMPT, logits), name);
        for (int n = PROMPT; n < END; n++) {
            if (!(distance(logits, grown + (n - 1) * V, V) <= TOLERANCE_F32)) {
                fail_msg("%s: logits behind token %d are %.3g off", cases[c], n,
                         distance(logits, grown + (n - 1) * V, V));
            }
            must(lt_session_step(s, (const int64_t[]){0}, ids + n, 1, logits), name);
        }
        lt_session_close(s);
        lt_safetensors_close(&g);
        lt_model_close(m);
    }
}

/* ---- Callbacks ---- */

typedef struct {
    lt_pass *pass;
    const lt_model *model;
    /* Gradients of each unit, copied on the device at the moment the pass leaves the unit. */
    float *copies;
    char calls[512];
} told;

static lt_err enter_unit(void *of, int unit, unsigned what) {
    told *t = of;
    const size_t at = strlen(t->calls);
    (void)snprintf(t->calls + at, sizeof t->calls - at, "+%d:%u ", unit, what);
    return LT_OK;
}

static lt_err leave_unit(void *of, int unit, unsigned what) {
    told *t = of;
    const lt_param_buffer *g = lt_pass_gradients(t->pass);
    const size_t at = strlen(t->calls);
    (void)snprintf(t->calls + at, sizeof t->calls - at, "-%d:%u ", unit, what);
    return t->model->backend->copy(
        lt_pass_queue(t->pass), t->copies + ((float *)g->base[unit] - lt_param_floats(g)),
        g->base[unit], (size_t)t->model->table.units[unit].n_elements * sizeof(float));
}

/* Three passes with callbacks; the third replays a recording unless eager. *calls: those of the
 * third. */
static float *told_gradients(const golden *g, lt_model *m, bool eager, char *calls) {
    const size_t bytes = (size_t)m->table.n_elements * sizeof(float);
    const lt_pass_options o = {
        .batch = g->batch.batch, .seq = g->batch.seq, .train = true, .eager = eager};
    told t = {.model = m};
    const lt_pass_units units = {&t,   enter_unit,      leave_unit,
                                 NULL, LT_UNIT_WEIGHTS, LT_UNIT_GRADIENTS};
    float *out = malloc(bytes), *copies = malloc(bytes);
    void *data = NULL;
    lt_pass_result r;
    must(m->backend->alloc(m->device, &data, bytes, "copies"), g->name);
    t.copies = data;
    must(lt_pass_open(&t.pass, m, &o), g->name);
    lt_pass_tell_units(t.pass, &units);
    for (int i = 0; i < 3; i++) {
        t.calls[0] = '\0';
        must(lt_pass_zero_gradients(t.pass), g->name);
        must(lt_pass_train(t.pass, &g->batch, 1.0f, &r), g->name);
    }
    must(lt_model_download(m, out, lt_param_floats(lt_pass_gradients(t.pass)), bytes), g->name);
    must(lt_model_download(m, copies, t.copies, bytes), g->name);
    if (memcmp(out, copies, bytes) != 0) {
        fail_msg("%s, %s: a unit was left before its gradients were complete", g->name,
                 eager ? "eager" : "recorded");
    }
    /* A piece before each unit that is entered, and after each that is left. */
    assert_true(eager ? lt_pass_graphs(t.pass) == 0 : lt_pass_graphs(t.pass) >= m->table.n_units);
    (void)snprintf(calls, sizeof t.calls, "%s", t.calls);
    lt_pass_close(t.pass);
    m->backend->release(m->device, data, bytes);
    free(copies);
    return out;
}

/* A pass with callbacks is recorded in pieces: before each call all earlier work is done, the
 * calls have the order of a pass that is not recorded, and the gradients have the same bits. gpt2
 * has a tied embedding. */
static void recorded_pieces_between_callbacks(void **state) {
    static const char *const names[] = {"gpt2", "llama3"};
    (void)state;
    if (gpu == NULL) {
        skip();
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char calls[2][sizeof((told *)0)->calls];
        golden g;
        golden_open(&g, names[i], lt_backend_cpu(), LT_F32);
        lt_model *m = open_on(names[i], "", gpu, LT_BF16);
        float *eager = told_gradients(&g, m, true, calls[0]),
              *recorded = told_gradients(&g, m, false, calls[1]);
        assert_memory_equal(eager, recorded, (size_t)m->table.n_elements * sizeof(float));
        assert_string_equal(calls[0], calls[1]);
        free(eager);
        free(recorded);
        lt_model_close(m);
        golden_close(&g);
    }
}

int main(void) {
    struct CMUnitTest tests[N_GOLDEN_CASES + 3];
    gpu = gpu_backend();
    if (gpu == NULL) {
        printf("# no GPU: %s\n", lt_error_message());
    }
    for (int i = 0; i < N_GOLDEN_CASES; i++) {
        tests[i] = (struct CMUnitTest){.name = golden_cases[i],
                                       .test_func = family,
                                       .initial_state = (void *)(uintptr_t)golden_cases[i]};
    }
    tests[N_GOLDEN_CASES] = (struct CMUnitTest)cmocka_unit_test(session);
    tests[N_GOLDEN_CASES + 1] = (struct CMUnitTest)cmocka_unit_test(rope);
    tests[N_GOLDEN_CASES + 2] = (struct CMUnitTest)cmocka_unit_test(
        recorded_pieces_between_callbacks);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
