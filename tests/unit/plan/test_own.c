/* Predictions of our own training runs: bytes equal to those that the measured runs reported
 * (bench/results, written by the machines that ran them), step times within 5 % of the measured
 * ones; each row is also predicted by a fit without it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "plan/own.h"
#include "train/recipe/fit.h"
#include "train/recipe/shapes.h"

#define MAX_POINTS 16
#define WITHIN     0.05

typedef struct {
    char name[64];
    lt_own_run run;
    double step_s, announced_gib;
    json_int_t announced_bytes;
} measured;

static const char *text(const json_t *row, const char *key) {
    const char *s = json_string_value(json_object_get(row, key));
    return s != NULL ? s : "";
}

/* Make the run of a row as `lateen bench train` builds it. */
static void read_row(measured *m, const json_t *row) {
    const lt_train_shape *shape = lt_train_shape_find(text(row, "shape"));
    lt_recipe *r = &m->run.recipe;
    assert_non_null(shape);
    lt_options_default(&lt_recipe_table, r);
    r->seq = json_integer_value(json_object_get(row, "seq"));
    r->batch = r->micro = json_integer_value(json_object_get(row, "batch"));
    r->moments = strcmp(text(row, "moments"), "bf16") == 0;
    if (strcmp(text(row, "fp8"), "tensorwise") == 0) {
        r->fp8 = LT_FP8_TENSORWISE;
        r->fp8_wgrad = json_is_true(json_object_get(row, "fp8_wgrad"));
    }
    m->run.spec = lt_train_shape_spec(shape, r->seq);
    m->run.dtype = LT_BF16;
    m->run.pass = lt_fit_pass_options(r, true);
    m->run.micros = 1;
    m->step_s = json_number_value(json_object_get(row, "step_s"));
    m->announced_gib = json_number_value(json_object_get(row, "announced_gib"));
    m->announced_bytes = json_integer_value(json_object_get(row, "announced_bytes"));
    snprintf(m->name, sizeof m->name, "%s batch %d%s%s", shape->name, (int)r->batch,
             r->fp8 != 0 ? " fp8" : "", r->moments != 0 ? " moments bf16" : "");
}

static size_t read_rows(measured *all, const char *path) {
    json_error_t e;
    json_t *root = json_load_file(path, 0, &e);
    const json_t *rows = json_object_get(root, "rows");
    const size_t n = json_array_size(rows);
    assert_true(n > 2 && n <= MAX_POINTS);
    for (size_t i = 0; i < n; i++) {
        read_row(&all[i], json_array_get(rows, i));
    }
    json_decref(root);
    return n;
}

static void bytes_are_those_announced(void **state) {
    static const char *const files[] = {"bench/results/train_h100.json",
                                        "bench/results/h200/train.json"};
    static measured all[MAX_POINTS];
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        const size_t n = read_rows(all, files[f]);
        for (size_t i = 0; i < n; i++) {
            const measured *m = &all[i];
            lt_memory_plan p;
            assert_int_equal(lt_memory_buffers(&p, &m->run.recipe, &m->run.spec, m->run.dtype,
                                               &m->run.pass, NULL, NULL),
                             LT_OK);
            if (m->announced_bytes > 0 && (json_int_t)p.device_bytes != m->announced_bytes) {
                fail_msg("%s %s: %zu bytes, the run announced %lld", files[f], m->name,
                         p.device_bytes, (long long)m->announced_bytes);
            }
            if (m->announced_bytes == 0 &&
                fabs((double)p.device_bytes / 0x1p30 - m->announced_gib) > 0.051) {
                fail_msg("%s %s: %.3f GiB, the run announced %.2f", files[f], m->name,
                         (double)p.device_bytes / 0x1p30, m->announced_gib);
            }
        }
    }
}

static double off(const measured *m, const lt_plan_gpu *gpu, const lt_own_rates *rates) {
    lt_dry_step step;
    assert_int_equal(lt_own_step(&step, &m->run, gpu, rates), LT_OK);
    return step.step_s / m->step_s - 1.0;
}

/* The shipped efficiencies are those of the fit; each row is predicted from all rows, and from
 * all others. */
static void steps_of(const char *path, const char *kind) {
    static measured all[MAX_POINTS];
    lt_own_point points[MAX_POINTS];
    lt_own_rates shipped, fitted, unseen;
    lt_plan_gpu gpu;
    const size_t n = read_rows(all, path);

    assert_int_equal(lt_plan_gpu_find(&gpu, kind), LT_OK);
    assert_int_equal(lt_own_rates_find(&shipped, kind), LT_OK);
    assert_true(shipped.measured);
    for (size_t i = 0; i < n; i++) {
        points[i] = (lt_own_point){&all[i].run, all[i].step_s};
    }
    assert_int_equal(lt_own_fit(&fitted, &gpu, points, n), LT_OK);
    print_message("%s: {gemm: %.3f, attention: %.3f, memory: %.3f}\n", kind, fitted.gemm,
                  fitted.attention, fitted.memory);
    assert_true(fabs(shipped.gemm - fitted.gemm) < 0.001);
    assert_true(fabs(shipped.attention - fitted.attention) < 0.001);
    assert_true(fabs(shipped.memory - fitted.memory) < 0.001);
    for (size_t i = 0; i < n; i++) {
        const lt_own_point left = points[i];
        double seen, blind;
        points[i] = points[n - 1];
        assert_int_equal(lt_own_fit(&unseen, &gpu, points, n - 1), LT_OK);
        points[i] = left;
        seen = off(&all[i], &gpu, &shipped);
        blind = off(&all[i], &gpu, &unseen);
        print_message("  %-28s measured %.4f s: %+.1f %%, unseen %+.1f %%\n", all[i].name,
                      all[i].step_s, 100.0 * seen, 100.0 * blind);
        if (fabs(seen) > WITHIN || fabs(blind) > WITHIN) {
            fail_msg("%s on %s: %+.1f %%, unseen %+.1f %%", all[i].name, kind, 100.0 * seen,
                     100.0 * blind);
        }
    }
}

static void steps_on_h100(void **state) {
    (void)state;
    steps_of("bench/results/train_h100.json", "h100-sxm");
}

static void steps_on_h200(void **state) {
    (void)state;
    steps_of("bench/results/h200/train.json", "h200");
}

static double measured_ms(const char *pass, const char *shape) {
    json_error_t e;
    json_t *root = json_load_file("bench/results/kernels_attention_h100.json", 0, &e);
    const json_t *rows = json_object_get(root, "rows");
    double ms = 0.0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        if (strcmp(text(row, "name"), pass) == 0 && strcmp(text(row, "shape"), shape) == 0) {
            ms = json_number_value(json_object_get(row, "ms"));
        }
    }
    json_decref(root);
    assert_true(ms > 0.0);
    return ms;
}

/* Wider heads need less time in the ratio measured on an H100: rows of 4,096 tokens, 2,048
 * columns in heads of 64, 128 and 256. */
static void wide_heads_are_as_quick_as_measured(void **state) {
    static measured m;
    static const char *const shapes[] = {"b4 s4096 h32 d64 causal", "b4 s4096 h16 d128 causal",
                                         "b4 s4096 h8 d256 causal"};
    json_t *row = json_pack("{s:s, s:i, s:i}", "shape", "llama-1b", "seq", 4096, "batch", 4);
    lt_dry_step steps[3];
    lt_own_rates rates;
    lt_plan_gpu gpu;
    (void)state;
    read_row(&m, row);
    json_decref(row);
    assert_int_equal(lt_plan_gpu_find(&gpu, "h100-sxm"), LT_OK);
    assert_int_equal(lt_own_rates_find(&rates, "h100-sxm"), LT_OK);
    for (int i = 0; i < 3; i++) {
        m.run.spec.head_dim = 64 << i;
        m.run.spec.n_heads = m.run.spec.n_kv_heads = 32 >> i;
        assert_int_equal(lt_own_step(&steps[i], &m.run, &gpu, &rates), LT_OK);
        const double forward = steps[i].ops_s[LT_OP_attention_fwd] /
                               steps[0].ops_s[LT_OP_attention_fwd],
                     backward = steps[i].ops_s[LT_OP_attention_bwd] /
                                steps[0].ops_s[LT_OP_attention_bwd];
        assert_true(
            fabs(forward * measured_ms("forward", shapes[0]) / measured_ms("forward", shapes[i]) -
                 1.0) < 0.02);
        assert_true(fabs(backward * measured_ms("backward", shapes[0]) /
                             measured_ms("backward", shapes[i]) -
                         1.0) < 0.02);
    }
}

/* A dry step queues what a real one does: the calls that were counted in a step on an H200. */
static void a_dry_step_queues_the_ops_of_a_real_one(void **state) {
    static measured all[MAX_POINTS];
    json_error_t e;
    json_t *root = json_load_file("bench/results/h200/train.json", 0, &e);
    const size_t n = read_rows(all, "bench/results/h200/train.json");
    lt_own_rates rates;
    lt_plan_gpu gpu;
    (void)state;
    assert_int_equal(lt_plan_gpu_find(&gpu, "h200"), LT_OK);
    assert_int_equal(lt_own_rates_find(&rates, "h200"), LT_OK);
    for (size_t i = 0; i < n; i++) {
        const json_t *ops = json_object_get(json_array_get(json_object_get(root, "rows"), i),
                                            "ops");
        lt_dry_step step;
        assert_int_equal(lt_own_step(&step, &all[i].run, &gpu, &rates), LT_OK);
        assert_true(json_array_size(ops) > 8);
        for (size_t k = 0; k < json_array_size(ops); k++) {
            const json_t *op = json_array_get(ops, k);
            int found = 0;
            while (found < LT_OP_COUNT && strcmp(lt_op_name((lt_op)found), text(op, "op")) != 0) {
                found++;
            }
            assert_true(found < LT_OP_COUNT);
            assert_int_equal(step.calls[found], json_integer_value(json_object_get(op, "calls")));
        }
    }
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_are_those_announced),
                                       cmocka_unit_test(a_dry_step_queues_the_ops_of_a_real_one),
                                       cmocka_unit_test(wide_heads_are_as_quick_as_measured),
                                       cmocka_unit_test(steps_on_h100),
                                       cmocka_unit_test(steps_on_h200)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
