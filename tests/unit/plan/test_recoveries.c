/* Recoveries that a launcher measured, as the simulation reads them: the slope against SciPy's
 * theilslopes, the two-sample test against its ks_2samp(method="exact") (SciPy 1.17), and the
 * cost of a failure against closed forms and a simulation in NumPy. */
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

#include "base/error.h"
#include "plan/recoveries.h"

#define STEP 0.1033333333333333

static void close_to(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) {
        fail_msg("got %.12g, want %.12g +- %.2g", got, want, tolerance);
    }
}

/* Write a recovery whose phases before the last take 0.1, 0.2, ... 0.6 seconds. */
static void put(FILE *f, const char *kind, double recompute, int lost, const char *without) {
    for (int i = 0; i < LT_RECOVERY_PHASES; i++) {
        if (strcmp(lt_recovery_names[i], without) == 0) {
            continue;
        }
        fprintf(f, "{\"event\":\"phase\",\"phase\":\"%s\",\"seconds\":%.9g}\n",
                lt_recovery_names[i], i == LT_RECOVERY_RECOMPUTE ? recompute : 0.1 * (i + 1));
        if (i == LT_RECOVERY_DETECT) {
            fprintf(f, "{\"event\":\"fault\",\"kind\":\"%s\",\"rank\":1}\n", kind);
        }
    }
    fprintf(f, "{\"event\":\"recovered\",\"seconds\":9,\"step\":7,\"steps_lost\":%d}\n", lost);
}

static const int lost[] = {3, 8, 0, 5, 9, 1};
static const double again[] = {0.42, 0.93, 0.11, 0.58, 3.0, 0.22};

static FILE *begin(char path[64]) {
    (void)snprintf(path, 64, "/tmp/lateen-recoveries-XXXXXX");
    return fdopen(mkstemp(path), "w");
}

static lt_err load(lt_plan_recoveries *r, FILE *f, const char *path) {
    lt_err err;
    fclose(f);
    err = lt_plan_recoveries_load(r, path);
    unlink(path);
    return err;
}

static void recoveries_are_read(void **state) {
    char path[64];
    FILE *f = begin(path);
    lt_plan_recoveries r;
    double values[6];
    (void)state;
    fputs("{\"event\":\"start\",\"ranks\":2}\n\n", f);
    for (size_t i = 0; i < 6; i++) {
        put(f, "killed", again[i], lost[i], "");
        put(f, "grow", 100.0, 2, ""); /* It is not a fault. */
        /* It is interrupted by the next one. */
        fputs("{\"event\":\"phase\",\"phase\":\"detect\",\"seconds\":50}\n", f);
    }
    assert_int_equal(load(&r, f, path), LT_OK);
    assert_int_equal(r.n, 6);
    close_to(r.step_s, STEP, 1e-12);
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(r.all[i].steps_lost, lost[i]);
        close_to(r.all[i].seconds, 2.1 + again[i], 1e-12);
        close_to(r.all[i].restart_s, 2.1 + again[i] - (lost[i] + 1) * STEP, 1e-12);
    }
    close_to(r.restart_s, 2.1 + (5.26 - 32 * STEP) / 6, 1e-12);
    lt_plan_recoveries_sorted(values, &r, LT_RECOVERY_RECOMPUTE);
    assert_true(values[0] == 0.11 && values[3] == 0.58 && values[5] == 3.0);
    lt_plan_recoveries_sorted(values, &r, LT_RECOVERY_PHASES);
    close_to(values[5], 5.1, 1e-12);
    lt_plan_recoveries_close(&r);
}

static void the_step_time_is_unknown_if_all_lost_the_same(void **state) {
    char path[64];
    FILE *f = begin(path);
    lt_plan_recoveries r;
    (void)state;
    put(f, "killed", 0.4, 3, "");
    put(f, "silent", 0.6, 3, "");
    assert_int_equal(load(&r, f, path), LT_OK);
    assert_true(r.n == 2 && r.step_s == 0.0);
    close_to(r.all[1].restart_s, 2.7, 1e-12);
    lt_plan_recoveries_close(&r);
}

static void refused(const char *text, lt_err want, const char *because) {
    char path[64];
    FILE *f = begin(path);
    lt_plan_recoveries r;
    fputs(text, f);
    if (load(&r, f, path) != want) {
        fail_msg("%s: %s", text, lt_error_message());
    }
    if (strstr(lt_error_message(), because) == NULL) {
        fail_msg("'%s' lacks '%s'", lt_error_message(), because);
    }
    lt_plan_recoveries_close(&r);
}

static void incomplete_recoveries_are_refused(void **state) {
    lt_plan_recoveries r;
    (void)state;
    for (int i = 0; i < LT_RECOVERY_PHASES; i++) { /* Each phase is required. */
        char path[64], want[64];
        FILE *f = begin(path);
        put(f, "killed", 1.0, 1, lt_recovery_names[i]);
        (void)snprintf(want, sizeof want, "lacks phase '%s'", lt_recovery_names[i]);
        assert_int_equal(load(&r, f, path), LT_ERR_FORMAT);
        assert_non_null(strstr(lt_error_message(), want));
        lt_plan_recoveries_close(&r);
    }
    refused("", LT_ERR_NOT_FOUND, "holds no recovery");
    refused("{\"event\":\"end\",\"status\":0}\n", LT_ERR_NOT_FOUND, "holds no recovery");
    refused("{\"step\":1,\"loss\":2}\n", LT_ERR_NOT_FOUND, "line 1: key 'event' is missing");
    refused("\n{\"event\":\"phase\",\"phase\":\"nap\",\"seconds\":1}\n", LT_ERR_FORMAT,
            "line 2: no phase of a recovery is called 'nap'");
    refused("{\"event\":\"phase\",\"phase\":\"load\",\"seconds\":-1}\n", LT_ERR_FORMAT,
            "phase 'load' of -1 seconds");
    refused("no JSON\n", LT_ERR_FORMAT, "line 1");
    assert_int_equal(lt_plan_recoveries_load(&r, "no/such/file"), LT_ERR_NOT_FOUND);
    lt_plan_recoveries_close(&r);
}

static void the_test_equals_scipy(void **state) {
    static const double a[] = {0.12, 0.35, 0.41, 0.58, 0.77, 0.93, 1.4};
    static const double b[] = {0.05, 0.2, 0.36, 0.9, 1.1, 1.2, 1.5, 1.6, 2.2, 2.5, 3.0};
    static const double ties[] = {0.35, 0.35, 0.93};
    static const struct {
        double d;
        int64_t n, m;
        double p;
    } rows[] = {{0.4935064935064935, 7, 11, 0.173202614379085},
                {0.4, 20, 20, 0.08105771161340149},
                {0.615, 40, 25, 5.657842147772264e-06},
                {0.14, 100, 60, 0.4204035860375043},
                {0.4, 5, 300, 0.3202428749838528},
                {0.0, 3, 4, 1.0},
                {1.0, 2, 2, 1.0 / 3.0}}; /* Two of the six orders. */
    double p;
    (void)state;
    close_to(lt_plan_ks(a, 7, b, 11), rows[0].d, 1e-15);
    close_to(lt_plan_ks(b, 11, a, 7), rows[0].d, 1e-15);
    assert_true(lt_plan_ks(a, 7, a, 7) == 0.0);
    close_to(lt_plan_ks(a, 7, ties, 3), 2.0 / 3.0 - 2.0 / 7.0, 1e-15);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(lt_plan_ks_p(&p, rows[i].d, rows[i].n, rows[i].m), LT_OK);
        close_to(p, rows[i].p, 1e-12);
    }
}

/* Restarts take no time or a second; ten steps of a second between saves. */
static lt_plan_sim_result simulated(double mtbf_s, const lt_plan_recoveries *r, lt_plan_sim *s) {
    lt_plan_sim_result out;
    *s = (lt_plan_sim){.mtbf_s = mtbf_s,
                       .restart_s = r->restart_s,
                       .recoveries = r,
                       .interval_s = 10.0,
                       .work_s = 20000.0 * mtbf_s / 100.0,
                       .weibull_shape = 1,
                       .runs = 100,
                       .seed = 3};
    assert_int_equal(lt_plan_simulate(s, &out), LT_OK);
    assert_true(out.n_lost > 5000 && out.n_lost <= LT_PLAN_SIM_LOST);
    return out;
}

static double mean_of(const lt_plan_sim_result *r) {
    double sum = 0.0;
    for (int64_t i = 0; i < r->n_lost; i++) {
        assert_true(i == 0 || r->lost_s[i - 1] <= r->lost_s[i]);
        sum += r->lost_s[i];
    }
    return sum / (double)r->n_lost;
}

static void a_failure_costs_its_restart_and_its_steps(void **state) {
    lt_plan_recovery all[] = {
        {.restart_s = 0.0}, {.restart_s = 1.0}, {.restart_s = 0.0}, {.restart_s = 1.0}};
    const lt_plan_recoveries r = {.all = all, .n = 4, .step_s = 1.0, .restart_s = 0.5};
    lt_plan_sim s;
    (void)state;
    /* Failures are rare: they happen at any of the ten steps, and whole steps are repeated. */
    lt_plan_sim_result out = simulated(10000.0, &r, &s);
    close_to(mean_of(&out), 0.5 + 5.5, 0.1);
    close_to(out.ettr_mean / lt_plan_ettr_exact(10000.0, 0.0, 0.5, 10.0), 1.0, 1e-3);
    for (int64_t i = 0; i < out.n_lost; i++) {
        assert_true(out.lost_s[i] == floor(out.lost_s[i]) && out.lost_s[i] >= 1.0 &&
                    out.lost_s[i] <= 11.0);
    }
    close_to(out.lost_s[out.n_lost - 1], 11.0, 0.0);
    free(out.lost_s);
}

static void failures_while_steps_are_repeated(void **state) {
    lt_plan_recovery all[] = {{.restart_s = 0.0}};
    const lt_plan_recoveries r = {.all = all, .n = 1, .step_s = 1.0};
    lt_plan_sim s;
    (void)state;
    /* Three failures per interval: only the last one of a chain counts, up to the furthest step.
     * 5.504: 300,000 chains in NumPy; 3.33 if each failure counted for itself. */
    lt_plan_sim_result out = simulated(10.0 / 3.0, &r, &s);
    close_to(mean_of(&out), 5.504, 0.06);
    free(out.lost_s);
}

/* A restart that takes as long as the time between failures is often interrupted, but is not
 * drawn less often for that: the measured restarts are already those that were completed. */
static void long_restarts_are_drawn_as_often(void **state) {
    lt_plan_recovery all[] = {{.restart_s = 0.0}, {.restart_s = 50.0}};
    const lt_plan_recoveries r = {.all = all, .n = 2, .step_s = 10.0, .restart_s = 25.0};
    lt_plan_sim s;
    int64_t n_long = 0;
    (void)state;
    lt_plan_sim_result out = simulated(50.0, &r, &s); /* A save after each step. */
    for (int64_t i = 0; i < out.n_lost; i++) {
        assert_true(out.lost_s[i] == 10.0 || out.lost_s[i] == 60.0);
        n_long += out.lost_s[i] == 60.0;
    }
    close_to((double)n_long / (double)out.n_lost, 0.5, 0.02);
    free(out.lost_s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recoveries_are_read),
        cmocka_unit_test(the_step_time_is_unknown_if_all_lost_the_same),
        cmocka_unit_test(incomplete_recoveries_are_refused),
        cmocka_unit_test(the_test_equals_scipy),
        cmocka_unit_test(a_failure_costs_its_restart_and_its_steps),
        cmocka_unit_test(long_restarts_are_drawn_as_often),
        cmocka_unit_test(failures_while_steps_are_repeated)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
