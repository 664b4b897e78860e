/* Objectives: TRL's own code, or the paper's definition, gives the same losses and gradients
 * (goldens by tools/make_align_goldens.py), every row's gradients are its finite differences, and
 * bad data and options are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "lateen/align.h"

#define GOLDENS    "tests/golden/align/"
#define MAX_TOKENS 8
#define MAX_VALUES 32

typedef struct {
    float logp[MAX_TOKENS], ref[MAX_TOKENS];
    double dlogp[MAX_TOKENS], want[MAX_TOKENS];
    lt_align_side side;
} completion;

static lt_align_side side(const float *logp, const float *ref, double *dlogp, int64_t n) {
    return (lt_align_side){.logp = logp, .ref = ref, .dlogp = dlogp, .n = n};
}

static const lt_align_objective *row_of(const char *name) {
    const lt_align_objective *row = NULL;
    assert_int_equal(lt_align_find(&row, name), LT_OK);
    return row;
}

/* Which rows of the table a golden has covered. */
static int seen_rows;

static void mark(const lt_align_objective *row) {
    size_t n;
    seen_rows |= 1 << (row - lt_align_objectives(&n));
}

static void close_to(const char *what, double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance * fmax(1, fabs(want)))) {
        fail_msg("%s: got %.12g, want %.12g", what, got, want);
    }
}

static double next(FILE *f) {
    double x = NAN;
    assert_int_equal(fscanf(f, "%lf", &x), 1);
    return x;
}

static void completion_read(completion *c, int64_t n, FILE *f) {
    assert_in_range((uintmax_t)n, 1, MAX_TOKENS);
    c->side = side(c->logp, c->ref, c->dlogp, n);
    for (int64_t i = 0; i < n; i++) {
        c->logp[i] = (float)next(f);
    }
    for (int64_t i = 0; i < n; i++) {
        c->ref[i] = (float)next(f);
    }
    for (int64_t i = 0; i < n; i++) {
        c->want[i] = next(f);
    }
}

static double sum_of(const float *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)x[i];
    }
    return sum;
}

/* Compute the loss again if only the sums of the reference are known. */
static void sums_of_references_suffice(const lt_align_objective *row, const lt_align_options *o,
                                       const completion *c, const completion *r, double want) {
    const double sums[2] = {sum_of(c->ref, c->side.n), sum_of(r->ref, r->side.n)};
    lt_align_side chosen = c->side, rejected = r->side;
    double loss = NAN;
    chosen.ref = rejected.ref = NULL;
    chosen.ref_sum = &sums[0];
    rejected.ref_sum = &sums[1];
    assert_int_equal(lt_align_pair(row, o, &chosen, &rejected, &loss), LT_OK);
    close_to(row->name, loss, want, 1e-9);
}

static void trl_agrees(void **state) {
    FILE *f = fopen(GOLDENS "pairs.txt", "r");
    char name[32];
    int n_pairs = 0;
    (void)state;
    assert_non_null(f);
    for (; fscanf(f, "%31s", name) == 1; n_pairs++) {
        const lt_align_objective *row = row_of(name);
        lt_align_options o = {0};
        completion c, r;
        double loss = NAN, want;
        int64_t n_chosen, n_rejected;
        o.beta = next(f);
        o.smoothing = next(f);
        o.margin = next(f);
        n_chosen = (int64_t)next(f);
        n_rejected = (int64_t)next(f);
        want = next(f);
        completion_read(&c, n_chosen, f);
        completion_read(&r, n_rejected, f);
        assert_int_equal(lt_align_pair(row, &o, &c.side, &r.side, &loss), LT_OK);
        close_to(name, loss, want, 1e-5);
        for (int64_t i = 0; i < n_chosen; i++) {
            close_to(name, c.dlogp[i], c.want[i], 1e-5);
        }
        for (int64_t i = 0; i < n_rejected; i++) {
            close_to(name, r.dlogp[i], r.want[i], 1e-5);
        }
        mark(row);
        sums_of_references_suffice(row, &o, &c, &r, loss);
    }
    fclose(f);
    assert_int_equal(n_pairs, 27);
}

static void scores_agree(void **state) {
    FILE *f = fopen(GOLDENS "scores.txt", "r");
    int n = 0;
    double margin;
    (void)state;
    assert_non_null(f);
    for (; fscanf(f, "%lf", &margin) == 1; n++) {
        const lt_align_options o = {.margin = margin, .center = next(f)};
        const double c = next(f), r = next(f), loss = next(f), dc = next(f), dr = next(f);
        lt_align_value v;
        assert_int_equal(lt_align_scores(row_of("reward"), &o, c, r, &v), LT_OK);
        close_to("reward", v.loss, loss, 1e-11);
        close_to("reward", v.dchosen, dc, 1e-11);
        close_to("reward", v.drejected, dr, 1e-11);
    }
    fclose(f);
    assert_int_equal(n, 6);
    mark(row_of("reward"));
}

/* Cross entropy: the loss of a step is minus the log-probability of its label.
 * tests/e2e/preference_truth.py compares it with TRL on a model. */
static void steps_are_cross_entropy(void **state) {
    const float logp[] = {-0.5f, 0.0f, -2.25f}, bad[] = {-1.0f, 0.5f};
    const lt_align_options none = {0}, beta = {.beta = 0.1};
    double d[3] = {0}, loss = NAN;
    (void)state;
    assert_int_equal(lt_align_steps(row_of("prm"), &none, logp, 3, &loss, d), LT_OK);
    assert_true(loss == 2.75 && d[0] == -1 && d[1] == -1 && d[2] == -1);
    mark(row_of("prm"));
    assert_int_equal(lt_align_steps(row_of("prm"), &none, logp, 3, &loss, NULL), LT_OK);
    assert_int_equal(lt_align_steps(row_of("prm"), &none, logp, 0, &loss, d), LT_ERR_FORMAT);
    assert_int_equal(lt_align_steps(row_of("prm"), &none, bad, 2, &loss, d), LT_ERR_NUMERIC);
    assert_non_null(strstr(lt_error_message(), "step 1 has log-probability 0.5"));
    assert_int_equal(lt_align_steps(row_of("prm"), &beta, logp, 3, &loss, d), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "prm has no option beta"));
    assert_int_equal(lt_align_steps(row_of("dpo"), &beta, logp, 3, &loss, d), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "not over steps of completions"));
}

static void singles_agree(void **state) {
    FILE *f = fopen(GOLDENS "singles.txt", "r");
    char name[32];
    int n_singles = 0;
    (void)state;
    assert_non_null(f);
    for (; fscanf(f, "%31s", name) == 1; n_singles++) {
        lt_align_options o = {0};
        lt_align_sample s = {0};
        completion c;
        double loss = NAN, want, mismatched[MAX_VALUES];
        int64_t n, n_mismatched;
        o.beta = next(f);
        o.good = next(f);
        o.bad = next(f);
        s.good = next(f) > 0;
        s.quantile = next(f);
        s.n_refs = (int64_t)next(f);
        n_mismatched = (int64_t)next(f);
        n = (int64_t)next(f);
        want = next(f);
        assert_in_range((uintmax_t)n_mismatched, 0, MAX_VALUES);
        for (int64_t i = 0; i < n_mismatched; i++) {
            mismatched[i] = next(f);
        }
        if (n_mismatched > 0) {
            assert_int_equal(lt_align_kto_point(mismatched, n_mismatched, &s.point), LT_OK);
        }
        completion_read(&c, n, f);
        s.side = c.side;
        assert_int_equal(lt_align_single(row_of(name), &o, &s, &loss), LT_OK);
        close_to(name, loss, want, 1e-7);
        for (int64_t i = 0; i < n; i++) {
            close_to(name, c.dlogp[i], c.want[i], 1e-7);
        }
        mark(row_of(name));
    }
    fclose(f);
    assert_int_equal(n_singles, 64);
}

static void every_row_has_goldens(void **state) {
    size_t n;
    (void)state;
    (void)lt_align_objectives(&n);
    assert_int_equal(seen_rows, (1 << n) - 1);
}

/* New values, exact in binary, so that a step of 2^-10 is exact, too. */
static void completion_draw(completion *c, int64_t n, int salt) {
    c->side = side(c->logp, c->ref, c->dlogp, n);
    for (int i = 0; i < n; i++) {
        c->logp[i] = -0.125f - 0.0625f * (float)((7 * i + 5 * salt) % 23);
        c->ref[i] = -0.25f - 0.0625f * (float)((11 * i + 3 * salt) % 19);
    }
}

static void check_differences(const lt_align_objective *row, const lt_align_options *o) {
    const float step = 0x1p-10f;
    for (int which = 0; which < 2; which++) {
        completion c, r;
        double base, up, down;
        completion_draw(&c, 5, 1);
        completion_draw(&r, 3, 2);
        for (int i = 0; i < (which == 0 ? 5 : 3); i++) {
            completion *moved = which == 0 ? &c : &r;
            double grad;
            const float at = moved->logp[i];
            assert_int_equal(lt_align_pair(row, o, &c.side, &r.side, &base), LT_OK);
            grad = moved->dlogp[i];
            moved->logp[i] = at + step;
            assert_int_equal(lt_align_pair(row, o, &c.side, &r.side, &up), LT_OK);
            moved->logp[i] = at - step;
            assert_int_equal(lt_align_pair(row, o, &c.side, &r.side, &down), LT_OK);
            moved->logp[i] = at;
            close_to(row->name, (up - down) / (2 * (double)step), grad, 2e-5);
        }
    }
}

static void gradients_are_finite_differences(void **state) {
    size_t n;
    const lt_align_objective *rows = lt_align_objectives(&n);
    (void)state;
    for (size_t i = 0; i < n; i++) {
        for (int options = 0; options < 8 && rows[i].given == LT_ALIGN_PAIR; options++) {
            const lt_align_options o = {.beta = options & 1 ? 1.5 : 0.1,
                                        .smoothing = options & 2 && rows[i].smoothing ? 0.2 : 0,
                                        .margin = options & 4 && rows[i].margin ? 0.75 : 0};
            check_differences(&rows[i], &o);
        }
    }
}

static double single_loss(const lt_align_objective *row, const lt_align_options *o,
                          const lt_align_sample *s) {
    double loss = NAN;
    assert_int_equal(lt_align_single(row, o, s, &loss), LT_OK);
    return loss;
}

static void gradients_of_singles_are_finite_differences(void **state) {
    const float step = 0x1p-10f;
    size_t n;
    const lt_align_objective *rows = lt_align_objectives(&n);
    (void)state;
    for (size_t i = 0; i < n; i++) {
        for (int options = 0; options < 8 && rows[i].given == LT_ALIGN_SINGLE; options++) {
            const lt_align_options o = {.beta = options & 1 ? 0.75 : 0.2,
                                        .good = rows[i].weights ? 1.25 : 0,
                                        .bad = rows[i].weights ? 0.5 : 0};
            lt_align_sample s = {.good = (options & 2) != 0,
                                 .point = options & 4 ? 0.375 : 0,
                                 .quantile = options & 4 ? 0.25 : 0.75,
                                 .n_refs = 4};
            completion c;
            completion_draw(&c, 3, 1);
            s.side = c.side;
            for (int t = 0; t < 3; t++) {
                const float at = c.logp[t];
                double grad, up, down;
                (void)single_loss(&rows[i], &o, &s);
                grad = c.dlogp[t];
                c.logp[t] = at + step;
                up = single_loss(&rows[i], &o, &s);
                c.logp[t] = at - step;
                down = single_loss(&rows[i], &o, &s);
                c.logp[t] = at;
                close_to(rows[i].name, (up - down) / (2 * (double)step), grad, 2e-5);
            }
        }
    }
}

/* At KTO's reference point the loss is half of its weight; QRPO's best log-ratio is its target
 * over beta. */
static void closed_forms_of_singles(void **state) {
    const float logp = -1, ref = -1.5f;
    double grad = NAN, q = NAN, point = NAN;
    const double refs[4] = {1, 2, 2, 5}, down[2] = {-3, 1};
    static const struct {
        double q, normal;
    } tails[] = {{0.99, 2.3263478740408408},
                 {0.999, 3.0902323061678132},
                 {0.9999, 3.7190164854556804},
                 {0.0001, -3.7190164854556804}};
    lt_align_sample s = {.side = side(&logp, &ref, &grad, 1),
                         .good = true,
                         .point = 0.5,
                         .quantile = 0.5,
                         .n_refs = 4};
    const lt_align_options weights = {.beta = 2, .good = 3, .bad = 1}, beta = {.beta = 1};
    (void)state;
    close_to("kto", single_loss(row_of("kto"), &weights, &s), 1.5, 1e-15);
    close_to("kto", grad, -1.5, 1e-15);
    /* Z = e - 1 at beta 1, exp(1/2) for the normal distribution, whose median is 0; 1/2 of the
     * logarithm. */
    close_to("qrpo", single_loss(row_of("qrpo"), &beta, &s), pow(0.5 - log(exp(1) - 1) - 0.5, 2),
             1e-15);
    close_to("qrpo_normal", single_loss(row_of("qrpo_normal"), &beta, &s), 1, 1e-12);
    close_to("qrpo_log", single_loss(row_of("qrpo_log"), &beta, &s), 0.25, 1e-15);
    s.n_refs = 10000; /* Quantiles of the normal distribution, from tables. */
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        s.quantile = tails[i].q;
        close_to("qrpo_normal", single_loss(row_of("qrpo_normal"), &beta, &s),
                 pow(tails[i].normal - 1, 2), 1e-11);
    }
    s.n_refs = 1; /* Enough for a quantile of 0 or 1; KTO reads none. */
    s.quantile = 1;
    close_to("qrpo_log", single_loss(row_of("qrpo_log"), &beta, &s), pow(log(2) - 0.5, 2), 1e-15);
    s.n_refs = 0;
    s.quantile = NAN;
    close_to("kto", single_loss(row_of("kto"), &weights, &s), 1.5, 1e-15);
    assert_int_equal(lt_align_quantile(2, refs, 4, &q), LT_OK);
    assert_true(q == 0.75);
    assert_int_equal(lt_align_quantile(0.5, refs, 4, &q), LT_OK);
    assert_true(q == 0);
    assert_int_equal(lt_align_quantile(5, refs, 4, &q), LT_OK);
    assert_true(q == 1);
    assert_int_equal(lt_align_kto_point(down, 2, &point), LT_OK);
    assert_true(point == 0);
}

/* dpo: log 2 and -+ b/2 for the same text; IPO: (1/2b)^2; simpo: log(1 + exp margin). */
static void same_text_on_both_sides(void **state) {
    const lt_align_options o = {.beta = 0.5}, target = {.beta = 0.5, .margin = 0.75};
    completion c, r;
    double loss;
    (void)state;
    completion_draw(&c, 4, 1);
    completion_draw(&r, 4, 1);
    assert_int_equal(lt_align_pair(row_of("dpo"), &o, &c.side, &r.side, &loss), LT_OK);
    close_to("dpo", loss, log(2), 1e-15);
    close_to("dpo", c.dlogp[2], -0.25, 1e-15);
    close_to("dpo", r.dlogp[2], 0.25, 1e-15);
    assert_int_equal(lt_align_pair(row_of("ipo"), &o, &c.side, &r.side, &loss), LT_OK);
    close_to("ipo", loss, 1, 1e-15);
    assert_int_equal(lt_align_pair(row_of("simpo"), &target, &c.side, &r.side, &loss), LT_OK);
    close_to("simpo", loss, log1p(exp(0.75)), 1e-15);
}

/* A sigmoid that overflows would give NaN; for a very wrong pair the loss is linear. */
static void a_very_wrong_pair_is_linear(void **state) {
    const float far = -1e6f, near = -1.0f;
    double loss, grad;
    const lt_align_side c = side(&far, &near, &grad, 1), r = side(&near, &near, NULL, 1);
    (void)state;
    assert_int_equal(lt_align_pair(row_of("dpo"), &(lt_align_options){.beta = 1}, &c, &r, &loss),
                     LT_OK);
    close_to("dpo", loss, 999999, 1e-12);
    close_to("dpo", grad, -1, 1e-12);
}

static void refused(lt_err want, const char *text, const char *name, lt_align_options o,
                    const lt_align_side *c, const lt_align_side *r) {
    double loss = 42;
    assert_int_equal(lt_align_pair(row_of(name), &o, c, r, &loss), want);
    if (strstr(lt_error_message(), text) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", lt_error_message(), text);
    }
    assert_true(loss == 42);
}

static void refused_single(lt_err want, const char *text, const char *name, lt_align_options o,
                           lt_align_sample s) {
    double loss = 42;
    assert_int_equal(lt_align_single(row_of(name), &o, &s, &loss), want);
    if (strstr(lt_error_message(), text) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", lt_error_message(), text);
    }
    assert_true(loss == 42);
}

static void bad_singles_and_scores_are_refused(void **state) {
    const lt_align_options kto = {.beta = 0.1, .good = 1, .bad = 1}, beta = {.beta = 0.1};
    const double values[2] = {1, NAN};
    double out;
    completion c;
    lt_align_sample s = {.quantile = 0.5, .n_refs = 2};
    lt_align_sample bad;
    lt_align_value v;
    (void)state;
    completion_draw(&c, 2, 1);
    s.side = c.side;
    refused_single(LT_ERR_ARG, "kto: the weights of good and bad", "kto", beta, s);
    refused_single(LT_ERR_ARG, "good is -1", "kto", (lt_align_options){.beta = 1, .good = -1}, s);
    refused_single(LT_ERR_ARG, "qrpo has no option good", "qrpo", kto, s);
    refused_single(LT_ERR_ARG, "dpo is an objective over pairs of completions, not over single",
                   "dpo", beta, s);
    refused_single(LT_ERR_ARG, "reward is an objective over pairs of scores", "reward", beta, s);
    bad = s;
    bad.point = -0.5;
    refused_single(LT_ERR_ARG, "reference point is -0.5", "kto", kto, bad);
    bad = s;
    bad.quantile = 1.5;
    refused_single(LT_ERR_ARG, "quantile is 1.5", "qrpo", beta, bad);
    bad = s;
    bad.n_refs = 1;
    refused_single(LT_ERR_ARG, "1 rewards of the reference model; it needs 2", "qrpo_normal", beta,
                   bad);
    bad = s;
    bad.side.n = 0;
    refused_single(LT_ERR_FORMAT, "qrpo: the completion has 0 tokens", "qrpo", beta, bad);
    refused(LT_ERR_ARG, "kto is an objective over single completions", "kto", kto, &c.side,
            &c.side);
    assert_int_equal(lt_align_scores(row_of("reward"), &beta, 1, 0, &v), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "reward has no option beta"));
    assert_int_equal(lt_align_scores(row_of("reward"), &(lt_align_options){0}, NAN, 0, &v),
                     LT_ERR_NUMERIC);
    assert_int_equal(lt_align_kto_point(values, 2, &out), LT_ERR_NUMERIC);
    assert_int_equal(lt_align_kto_point(values, 0, &out), LT_ERR_FORMAT);
    assert_int_equal(lt_align_quantile(1, values, 2, &out), LT_ERR_NUMERIC);
    assert_int_equal(lt_align_quantile(NAN, values, 1, &out), LT_ERR_NUMERIC);
}

static void bad_input_is_refused(void **state) {
    const lt_align_options ok = {.beta = 0.1};
    const float nan = NAN, over = 0.5f, zero = 0;
    const lt_align_objective *row = NULL;
    completion c, r;
    lt_align_side bad;
    (void)state;
    completion_draw(&c, 2, 1);
    completion_draw(&r, 2, 2);
    assert_int_equal(lt_align_find(&row, "dop"), LT_ERR_NOT_FOUND);
    assert_non_null(strstr(lt_error_message(), "\"dop\" does not exist; there are: dpo "));
    for (int i = 0; i < 3; i++) {
        const double beta = (double[]){0, -1, INFINITY}[i];
        refused(LT_ERR_ARG, "beta", "dpo", (lt_align_options){.beta = beta}, &c.side, &r.side);
    }
    refused(LT_ERR_ARG, "smoothing is 0.5", "dpo", (lt_align_options){.beta = 1, .smoothing = 0.5},
            &c.side, &r.side);
    refused(LT_ERR_ARG, "ipo has no option smoothing", "ipo",
            (lt_align_options){.beta = 1, .smoothing = 0.1}, &c.side, &r.side);
    refused(LT_ERR_ARG, "margin is -1", "simpo", (lt_align_options){.beta = 1, .margin = -1},
            &c.side, &r.side);
    refused(LT_ERR_ARG, "dpo has no option margin", "dpo",
            (lt_align_options){.beta = 1, .margin = 1}, &c.side, &r.side);
    bad = side(c.logp, c.ref, NULL, 0);
    refused(LT_ERR_FORMAT, "chosen completion has 0 tokens", "dpo", ok, &bad, &r.side);
    bad = side(c.logp, NULL, NULL, 2);
    refused(LT_ERR_ARG, "rejected completion has no log-prob", "dpo", ok, &c.side, &bad);
    bad = side(&nan, NULL, NULL, 1);
    refused(LT_ERR_NUMERIC, "token 0 of the rejected", "simpo", ok, &c.side, &bad);
    bad = side(&over, NULL, NULL, 1);
    refused(LT_ERR_NUMERIC, "0.5", "simpo", ok, &c.side, &bad);
    bad = side(&zero, NULL, NULL, 1);
    refused(LT_ERR_NUMERIC, "orpo: the loss", "orpo", ok, &c.side, &bad);
}

/* The rows of the table in the order that lateen/align.h lists and recipes rely on. */
static void names_in_order(void **state) {
    static const struct {
        const char *name;
        lt_align_given given;
    } listed[] = {
#define LISTED(name, given) {#name, LT_ALIGN_##given},
        LT_ALIGN_OBJECTIVE_MAP(LISTED)
#undef LISTED
    };
    size_t n;
    const lt_align_objective *row = lt_align_objectives(&n);
    (void)state;
    assert_int_equal(n, sizeof listed / sizeof *listed);
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(row[i].name, listed[i].name);
        assert_int_equal(row[i].given, listed[i].given);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_in_order),
        cmocka_unit_test(trl_agrees),
        cmocka_unit_test(scores_agree),
        cmocka_unit_test(steps_are_cross_entropy),
        cmocka_unit_test(singles_agree),
        cmocka_unit_test(every_row_has_goldens),
        cmocka_unit_test(gradients_are_finite_differences),
        cmocka_unit_test(gradients_of_singles_are_finite_differences),
        cmocka_unit_test(closed_forms_of_singles),
        cmocka_unit_test(same_text_on_both_sides),
        cmocka_unit_test(a_very_wrong_pair_is_linear),
        cmocka_unit_test(bad_input_is_refused),
        cmocka_unit_test(bad_singles_and_scores_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
