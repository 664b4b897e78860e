/* Linear layers in 8-bit floats: results are close to those without them, have the same bits
 * with any recompute level, number of threads and device memory, and always use the current
 * weights. */
#include "unit/model/golden.h"

#include "model/blocks/fp8.h"

static const lt_backend *(*const backends[])(void) = {lt_backend_ref, lt_backend_cpu};
static const struct how {
    lt_fp8_recipe recipe;
    bool wgrad;
} plain, recipes[] = {{LT_FP8_BLOCKWISE, false},
                      {LT_FP8_TENSORWISE, false},
                      {LT_FP8_BLOCKWISE, true},
                      {LT_FP8_TENSORWISE, true}};
#define N_RECIPES 4

static lt_pass *open_pass(golden *g, struct how how, lt_recompute recompute) {
    lt_pass *p = NULL;
    const lt_pass_options o = {.batch = g->batch.batch,
                               .seq = g->batch.seq,
                               .train = true,
                               .recompute = recompute,
                               .fp8 = how.recipe,
                               .fp8_wgrad = how.wgrad,
                               .loss_chunk_rows = 16};
    must(lt_pass_open(&p, g->model, &o), g->name);
    return p;
}

static float *gradients_of(golden *g, struct how how, lt_recompute recompute, lt_pass_result *r) {
    const size_t bytes = (size_t)g->model->table.n_elements * sizeof(float);
    float *copy = malloc(bytes);
    lt_pass *p = open_pass(g, how, recompute);
    assert_non_null(copy);
    must(lt_pass_train(p, &g->batch, 0.25f, r), g->name);
    memcpy(copy, lt_param_floats(lt_pass_gradients(p)), bytes);
    lt_pass_close(p);
    return copy;
}

/* |a - b| / |b| as a norm over all parameters. */
static double off(const float *a, const float *b, int64_t n) {
    double apart = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        apart += pow((double)a[i] - (double)b[i], 2);
        norm += pow((double)b[i], 2);
    }
    return sqrt(apart / norm);
}

/* An E4M3 number is off by 2.6 % (root mean square), a product of two by 3.7 %, and there are
 * four in a row in each of two layers of strong random weights, and in the backward pass:
 * gradients are off by 8 to 25 % of their norm, most in models with experts, which are not
 * compared. */
static void close_to_f32(void **state) {
    (void)state;
    for (int i = 0; i < N_GOLDEN_CASES * N_RECIPES * 2; i++) {
        const struct how how = recipes[i % N_RECIPES];
        golden g;
        lt_pass_result a, b;
        float *eight, *full;
        golden_open(&g, golden_cases[i / 2 / N_RECIPES], backends[i / N_RECIPES % 2](), LT_F32);
        eight = gradients_of(&g, how, LT_RECOMPUTE_NONE, &a);
        full = gradients_of(&g, plain, LT_RECOMPUTE_NONE, &b);
        if (!(fabs(a.loss_sum - b.loss_sum) <= 0.03 * b.loss_sum) || a.loss_sum == b.loss_sum) {
            fail_msg("%s: loss %.5f in 8 bits, %.5f in F32", g.name, a.loss_sum, b.loss_sum);
        }
        const double d = off(eight, full, g.model->table.n_elements);
        if (g.model->spec.n_experts == 0 && !(d > 0.01 && d < 0.3)) {
            fail_msg("%s: gradient off by %.3f of its norm", g.name, d);
        }
        free(eight);
        free(full);
        golden_close(&g);
    }
}

static void recompute_and_threads_change_no_bit(void **state) {
    const int threads = lt_thread_count();
    (void)state;
    for (int i = 0; i < N_GOLDEN_CASES * N_RECIPES * 2; i++) {
        golden g;
        lt_pass_result r, again;
        float *one, *other;
        golden_open(&g, golden_cases[i / 2 / N_RECIPES], lt_backend_cpu(),
                    i / N_RECIPES % 2 != 0 ? LT_BF16 : LT_F32);
        lt_thread_set_count(1);
        one = gradients_of(&g, recipes[i % N_RECIPES], LT_RECOMPUTE_NONE, &r);
        lt_thread_set_count(2);
        for (int level = LT_RECOMPUTE_NONE; level <= LT_RECOMPUTE_FULL; level++) {
            other = gradients_of(&g, recipes[i % N_RECIPES], (lt_recompute)level, &again);
            assert_true(r.loss_sum == again.loss_sum);
            for (int j = 0; j < g.model->table.n_params; j++) { /* Gaps belong to no parameter. */
                const lt_param *p = &g.model->table.params[j];
                assert_memory_equal(one + p->whole_at, other + p->whole_at,
                                    (size_t)p->count * sizeof *one);
            }
            free(other);
        }
        free(one);
        golden_close(&g);
    }
    lt_thread_set_count(threads);
}

/* Weights are cast again when their version has changed, and only then; evaluation and smaller
 * batches use the same casts. */
static void casts_follow_the_weights(void **state) {
    (void)state;
    golden g;
    lt_pass_result before, stale, after, fresh;
    lt_pass *p, *q;
    golden_open(&g, "llama3", lt_backend_cpu(), LT_F32);
    p = open_pass(&g, recipes[0], LT_RECOMPUTE_NONE);
    must(lt_pass_eval(p, &g.batch, &before, NULL), g.name);
    for (int i = 0; i < g.model->table.n_params; i++) {
        const lt_param *w = &g.model->table.params[i];
        for (int64_t j = 0; lt_fp8_takes(w) && j < w->count; j++) {
            lt_param_floats(&g.model->master)[w->whole_at + j] *= 1.5f;
        }
    }
    must(lt_pass_eval(p, &g.batch, &stale, NULL), g.name);
    assert_true(stale.loss_sum == before.loss_sum);
    g.model->version++;
    must(lt_pass_train(p, &g.batch, 1.0f, &after), g.name);
    q = open_pass(&g, recipes[0], LT_RECOMPUTE_NONE);
    must(lt_pass_eval(q, &g.batch, &fresh, NULL), g.name);
    assert_true(after.loss_sum == fresh.loss_sum && after.loss_sum != before.loss_sum);
    g.batch.batch = 1;
    must(lt_pass_eval(p, &g.batch, &after, NULL), g.name);
    must(lt_pass_eval(q, &g.batch, &fresh, NULL), g.name);
    assert_true(after.loss_sum == fresh.loss_sum);
    lt_pass_close(p);
    lt_pass_close(q);
    golden_close(&g);
}

/* Both layouts of each matrix with padded rows and their scales, and the widest rows of a
 * batch. */
static void memory_is_announced(void **state) {
    (void)state;
    golden g;
    lt_pass_memory none, eight;
    lt_pass_options o = {.batch = 2, .seq = 24, .train = true};
    int64_t least = 0;
    golden_open(&g, "apertus", lt_backend_cpu(), LT_BF16);
    must(lt_pass_measure(&none, &g.model->spec, LT_BF16, &o), g.name);
    o.fp8 = LT_FP8_BLOCKWISE;
    must(lt_pass_measure(&eight, &g.model->spec, LT_BF16, &o), g.name);
    for (int i = 0; i < g.model->table.n_params; i++) {
        const lt_param *w = &g.model->table.params[i];
        least += lt_fp8_takes(w) ? 2 * w->count : 0;
    }
    assert_int_equal(none.fp8_bytes, 0);
    assert_true(eight.fp8_bytes > (size_t)least);
    eight.fp8_bytes = 0;
    assert_memory_equal(&none, &eight, sizeof none);
    golden_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(close_to_f32),
        cmocka_unit_test(recompute_and_threads_change_no_bit),
        cmocka_unit_test(casts_follow_the_weights),
        cmocka_unit_test(memory_is_announced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
