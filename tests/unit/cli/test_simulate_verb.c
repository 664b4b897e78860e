/* `lateen simulate` beside closed forms: Daly's interval between saves and his expected time of a
 * run whose failures are exponential (Daly 2006, doi:10.1016/j.future.2004.11.016), sums that the
 * printed parts must have, and what contradicts itself. */
#include "unit/cli/verb_run.h"

#include <math.h>

int lt_verb_simulate(int argc, char **argv);

static const double mtbf_s = 3 * 3600.0, save_s = 60, restart_s = 300;
#define PLAIN "simulate --mtbf 3 --save 60 --restart 300 --days 20 --async false "

/* The time for one interval of work is e^(R/M) M (e^((tau + delta)/M) - 1). */
static double ettr(double interval_s) {
    return interval_s / (exp(restart_s / mtbf_s) * mtbf_s * expm1((interval_s + save_s) / mtbf_s));
}

static double daly(void) {
    const double x = sqrt(save_s / (2 * mtbf_s));
    return sqrt(2 * save_s * mtbf_s) * (1 + x / 3 + x * x / 9) - save_s;
}

static void share_is(double is, double want, double within) {
    if (!(fabs(is - want) <= within)) {
        fail_msg("%.9g, not %.9g", is, want);
    }
}

static void closed_forms(void **state) {
    static const double intervals_min[] = {0, 5, 60};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        char words[300];
        const double interval_s = i == 0 ? daly() : intervals_min[i] * 60;
        snprintf(words, sizeof words, PLAIN "--runs 300 --json --interval %g", intervals_min[i]);
        json_t *r = run_json(lt_verb_simulate, words);
        share_is(number_at(r, "interval_s"), interval_s, 1e-3);
        share_is(number_at(r, "ettr_closed_form"), ettr(interval_s), 1e-6);
        share_is(number_at(r, "ettr_mean"), ettr(interval_s), 0.01);
        near_at(r, "runs", 300);
        const double days = number_at(r, "wall_days_mean");
        share_is(days, 20 / ettr(interval_s), 0.3);
        share_is(number_at(r, "failures_mean"), days * 8, 0.05 * days * 8); /* One in 3 h. */
        share_is(number_at(r, "save_h_mean"), 20 * 86400 / interval_s * save_s / 3600,
                 0.1 * 20 * 24 * save_s / interval_s);
        /* What is not productive is lost, restarts, saves or waits. */
        share_is((days - 20) * 24,
                 number_at(r, "lost_work_h_mean") + number_at(r, "restart_h_mean") +
                     number_at(r, "save_h_mean") + number_at(r, "wait_h_mean"),
                 0.5);
        assert_true(number_at(r, "ettr_p5") <= number_at(r, "ettr_p50") &&
                    number_at(r, "ettr_p50") <= number_at(r, "ettr_p95"));
        assert_true(number_at(r, "wall_days_p95") > days);
        json_decref(r);
    }
}

static void what_is_printed(void **state) {
    char want[200];
    (void)state;
    ran r = run_verb(lt_verb_simulate, PLAIN "--runs 50");
    assert_int_equal(r.status, LT_EXIT_DONE);
    assert_int_equal(strncmp(r.out, "20.0 days of work take 2", 24), 0);
    assert_non_null(strstr(r.out, "(one every 3.00 h)"));
    snprintf(
        want, sizeof want,
        "save every %.1f min (60.0 s, durable 0.0 s later), restart 300 s, 0 spare nodes, 50 runs",
        daly() / 60);
    assert_non_null(strstr(r.out, want));
    snprintf(want, sizeof want,
             "closed form (exponential failures, no shortage of nodes): ETTR %.1f %%",
             100 * ettr(daly()));
    assert_non_null(strstr(r.out, want));
    ran_close(&r);
    r = run_verb(lt_verb_simulate, PLAIN "--runs 50 --shape 0.7");
    assert_null(strstr(r.out, "closed form"));
    ran_close(&r);
    json_t *a = run_json(lt_verb_simulate, PLAIN "--runs 50 --json --seed 4");
    json_t *b = run_json(lt_verb_simulate, PLAIN "--runs 50 --json --seed 4");
    json_t *c = run_json(lt_verb_simulate, PLAIN "--runs 50 --json --seed 5");
    assert_true(json_equal(a, b));
    assert_false(json_equal(a, c));
    json_decref(a);
    json_decref(b);
    json_decref(c);
}

/* A cluster gives what the options do not. */
static void a_cluster(void **state) {
    (void)state;
    json_t *all = run_json(lt_verb_simulate,
                           "simulate --cluster h100-24k --days 2 --runs 20 --json --save 5");
    json_t *half = run_json(lt_verb_simulate, "simulate --cluster h100-24k --gpus 12288 --days 2 "
                                              "--runs 20 --json --save 5");
    /* Half of the GPUs fail half as often. */
    assert_true(number_at(half, "failures_mean") < 0.7 * number_at(all, "failures_mean"));
    assert_true(number_at(half, "ettr_mean") > number_at(all, "ettr_mean"));
    json_decref(all);
    json_decref(half);
    run_refused(lt_verb_simulate, "simulate --cluster h100-24k --gpus 1000000", LT_EXIT_USAGE,
                "--gpus 1000000 contradicts cluster ");
    run_refused(lt_verb_simulate, "simulate --cluster no-such", LT_EXIT_FAILED, "no-such");
}

static void what_contradicts_itself(void **state) {
    static const struct {
        const char *options, *why;
    } rows[] = {
        {"", "simulate needs --cluster, or all of --mtbf, --save and --restart"},
        {"--mtbf 3 --save 60", "simulate needs --cluster"},
        {"--mtbf 3 --restart 60", "simulate needs --cluster"},
        {"--save 3 --restart 60", "simulate needs --cluster"},
        {"--mtbf 3 --save 60 --restart 5 --recoveries f", "--restart contradicts --recoveries"},
        {"--mtbf 3 --save 60 --restart 0 --recoveries f", "--restart contradicts --recoveries"},
        {"--mtbf 3 --save 60 --recoveries f --every 5 --interval 5",
         "--every and --interval contradict each other"},
        {"--mtbf 3 --save 60 --restart 5 --every 5", "--every needs --recoveries"},
        {"--mtbf 3 --save 60 --restart 5 --compare f", "--compare needs --recoveries"},
        {"--mtbf 3 --save 0 --restart 5",
         "saves that cost nothing (--save 0) have no best interval"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char words[300];
        snprintf(words, sizeof words, "simulate%s%s", rows[i].options[0] != '\0' ? " " : "",
                 rows[i].options);
        run_refused(lt_verb_simulate, words, LT_EXIT_USAGE, rows[i].why);
    }
    json_t *r = run_json(lt_verb_simulate,
                         "simulate --mtbf 3 --save 0 --restart 5 --interval 10 --runs 5 --json");
    near_at(r, "interval_s", 600);
    near_at(r, "save_h_mean", 0);
    json_decref(r);
    run_refused(lt_verb_simulate, "simulate --mtbf 3 --save 60 --recoveries /no/such",
                LT_EXIT_FAILED, "/no/such");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_forms),
        cmocka_unit_test(what_is_printed),
        cmocka_unit_test(a_cluster),
        cmocka_unit_test(what_contradicts_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
