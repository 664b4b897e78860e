/* Young, Daly, the exact expression and the first-order ETTR against a published table of test
 * vectors; the event simulation against the exact expression; spares against the binomial
 * distribution; Llama 3's 419 interruptions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "lateen/plan.h"

static void close_to(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) {
        fail_msg("got %.6g, want %.6g +- %.2g", got, want, tolerance);
    }
}

typedef struct {
    double gpus, rate, save_s, restart_s, mtbf_h, young_min, first, daly_min, exact;
} vector;

static const vector vectors[] = {{16384, 6.50e-3, 300, 300, 1.80, 32.9, .696, 29.6, .693},
                                 {16384, 6.50e-3, 60, 300, 1.80, 14.7, .829, 14.0, .831},
                                 {16384, 6.50e-3, 10, 300, 1.80, 6.0, .901, 5.9, .903},
                                 {16384, 6.50e-3, 10, 60, 1.80, 6.0, .937, 5.9, .937},
                                 {16384, 3.79e-3, 300, 300, 3.09, 43.1, .768, 39.8, .765},
                                 {16384, 3.79e-3, 60, 300, 3.09, 19.3, .876, 18.6, .876},
                                 {16384, 3.79e-3, 10, 60, 3.09, 7.9, .953, 7.8, .953},
                                 {100000, 3.79e-3, 300, 300, 0.51, 17.4, .426, 14.3, .450},
                                 {100000, 3.79e-3, 60, 300, 0.51, 7.8, .627, 7.1, .649},
                                 {100000, 3.79e-3, 10, 300, 0.51, 3.2, .744, 3.1, .763},
                                 {100000, 3.79e-3, 10, 60, 0.51, 3.2, .869, 3.1, .870},
                                 {131072, 6.50e-3, 300, 300, 0.23, 11.6, .140, 8.5, .253},
                                 {131072, 6.50e-3, 60, 300, 0.23, 5.2, .367, 4.6, .458},
                                 {131072, 6.50e-3, 10, 60, 0.23, 2.1, .786, 2.0, .790},
                                 {131072, 2.34e-3, 10, 60, 0.63, 3.5, .885, 3.4, .885}};

static void the_table_is_reproduced(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        const vector *v = &vectors[i];
        const double mtbf = 86400.0 / (v->gpus / 8.0 * v->rate),
                     young = lt_plan_young_s(mtbf, v->save_s);
        const double daly = lt_plan_daly_s(mtbf, v->save_s);
        close_to(mtbf / 3600.0, v->mtbf_h, 0.0051);
        close_to(young / 60.0, v->young_min, 0.051);
        close_to(daly / 60.0, v->daly_min, 0.051);
        close_to(lt_plan_ettr_first_order(mtbf, v->save_s, v->restart_s, young), v->first, 0.00051);
        close_to(lt_plan_ettr_exact(mtbf, v->save_s, v->restart_s, daly), v->exact, 0.00051);
    }
}

static void daly_is_the_brute_force_optimum(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        const vector *v = &vectors[i];
        const double mtbf = 86400.0 / (v->gpus / 8.0 * v->rate),
                     daly = lt_plan_daly_s(mtbf, v->save_s);
        double best = 0;
        for (double tau = 1; tau < 4.0 * mtbf; tau *= 1.01) {
            best = fmax(best, lt_plan_ettr_exact(mtbf, v->save_s, v->restart_s, tau));
        }
        close_to(lt_plan_ettr_exact(mtbf, v->save_s, v->restart_s, daly), best, 0.001);
    }
}

static void simulation_agrees_with_the_exact_form(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i += 2) {
        const vector *v = &vectors[i];
        const double mtbf = 86400.0 / (v->gpus / 8.0 * v->rate),
                     tau = lt_plan_daly_s(mtbf, v->save_s);
        const lt_plan_sim s = {.mtbf_s = mtbf,
                               .save_s = v->save_s,
                               .restart_s = v->restart_s,
                               .interval_s = tau,
                               .work_s = 4000.0 * tau,
                               .weibull_shape = 1,
                               .runs = 60,
                               .seed = 7};
        lt_plan_sim_result r;
        assert_int_equal(lt_plan_simulate(&s, &r), LT_OK);
        close_to(r.ettr_mean / lt_plan_ettr_exact(mtbf, v->save_s, v->restart_s, tau), 1.0, 0.01);
        assert_true(r.ettr_p5 <= r.ettr_p50 && r.ettr_p50 <= r.ettr_p95);
    }
}

static void llama3_is_interrupted_419_times(void **state) {
    lt_plan_cluster c;
    (void)state;
    assert_int_equal(lt_plan_cluster_load(&c, "h100-24k"), LT_OK);
    close_to(lt_plan_cluster_failures_per_s(&c, 16384) * 54 * 86400, 419, sqrt(419));
}

static void spares_cover_the_quantile(void **state) {
    (void)state;
    assert_int_equal(lt_plan_spares(2048, 0, 86400, 0.99), 0);
    /* 2,048 nodes, 3.79e-3 failures a day, a day of repair: 7.7 are away on average; the 99 %
     * quantile of a binomial near Poisson(7.7) is 15. */
    assert_int_equal(lt_plan_spares(2048, 3.79e-3 / 86400, 86400, 0.99), 15);
    assert_true(lt_plan_spares(12500, 3.79e-3 / 86400, 86400, 0.999) >
                lt_plan_spares(12500, 3.79e-3 / 86400, 86400, 0.9));
}

static void shortage_of_spares_costs_time(void **state) {
    lt_plan_sim s = {.mtbf_s = 3600,
                     .save_s = 5,
                     .restart_s = 60,
                     .interval_s = 200,
                     .work_s = 86400 * 5.0,
                     .weibull_shape = 1,
                     .runs = 20,
                     .seed = 3,
                     .repair_s = 86400,
                     .spares = 0};
    lt_plan_sim_result none, many, again;
    (void)state;
    assert_int_equal(lt_plan_simulate(&s, &none), LT_OK);
    s.spares = 60;
    assert_int_equal(lt_plan_simulate(&s, &many), LT_OK);
    assert_int_equal(lt_plan_simulate(&s, &again), LT_OK);
    assert_true(none.wait_h_mean > 100 && many.wait_h_mean < 1);
    assert_true(many.ettr_mean == again.ettr_mean); /* The same seed gives the same run. */
    /* Failures in clusters, with the same MTBF. */
    s.weibull_shape = 0.6;
    assert_int_equal(lt_plan_simulate(&s, &again), LT_OK);
    assert_true(again.failures_mean > 0);
}

static void endless_runs_are_refused(void **state) {
    lt_plan_sim s = {.mtbf_s = 60,
                     .save_s = 5,
                     .restart_s = 6000,
                     .interval_s = 2000,
                     .work_s = 86400,
                     .weibull_shape = 1,
                     .runs = 2};
    lt_plan_sim_result r;
    (void)state;
    assert_int_equal(lt_plan_simulate(&s, &r), LT_ERR_LIMIT);
    s.mtbf_s = 0;
    assert_int_equal(lt_plan_simulate(&s, &r), LT_ERR_ARG);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_table_is_reproduced),
                                       cmocka_unit_test(daly_is_the_brute_force_optimum),
                                       cmocka_unit_test(simulation_agrees_with_the_exact_form),
                                       cmocka_unit_test(llama3_is_interrupted_419_times),
                                       cmocka_unit_test(spares_cover_the_quantile),
                                       cmocka_unit_test(shortage_of_spares_costs_time),
                                       cmocka_unit_test(endless_runs_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
