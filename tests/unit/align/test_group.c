/* Advantages in a group and estimators of the divergence, against closed forms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

#include "lateen/align.h"

static void close_to(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) {
        fail_msg("got %.12g, want %.12g", got, want);
    }
}

/* Rewards 1 2 3 6: mean 3, sum of squares 14, standard deviation sqrt(14/3). */
static void advantages_are_the_closed_forms(void **state) {
    const double r[4] = {1, 2, 3, 6}, others[4] = {11. / 3, 10. / 3, 3, 2};
    double a[4];
    bool equal = true;
    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(lt_align_advantages(LT_ALIGN_GRPO, r, 4, a, &equal), LT_OK);
        close_to(a[i], (r[i] - 3) / (sqrt(14. / 3) + 1e-4), 1e-14);
        assert_false(equal);
        assert_int_equal(lt_align_advantages(LT_ALIGN_DR_GRPO, r, 4, a, &equal), LT_OK);
        close_to(a[i], r[i] - 3, 1e-14);
        assert_int_equal(lt_align_advantages(LT_ALIGN_RLOO, r, 4, a, &equal), LT_OK);
        close_to(a[i], r[i] - others[i], 1e-14);
    }
}

/* 4e15 and one more: 0.5 / (sqrt(0.5) + 1e-4). The difference of their squares would not have
 * these digits. */
static void large_rewards_keep_their_spread(void **state) {
    const double r[2] = {4e15, 4e15 + 1};
    double a[2];
    bool equal = true;
    (void)state;
    assert_int_equal(lt_align_advantages(LT_ALIGN_GRPO, r, 2, a, &equal), LT_OK);
    close_to(a[0], -0.5 / (sqrt(0.5) + 1e-4), 1e-14);
    close_to(a[1], 0.5 / (sqrt(0.5) + 1e-4), 1e-14);
    assert_false(equal);
}

/* Three times 0.1 has a mean that is not 0.1, but the advantages must be 0. */
static void degenerate_groups(void **state) {
    const double same[3] = {0.1, 0.1, 0.1}, bad[2] = {1, NAN}, far[2] = {1e300, -1e300};
    for (int kind = 0; kind < LT_ALIGN_ADVANTAGES; kind++) {
        double a[3] = {7, 7, 7};
        bool equal = false;
        const lt_align_advantage k = (lt_align_advantage)kind;
        assert_int_equal(lt_align_advantages(k, bad, 0, a, &equal), LT_ERR_FORMAT);
        assert_non_null(strstr(lt_error_message(), "0 completions"));
        assert_int_equal(lt_align_advantages(k, same, 1, a, &equal), LT_ERR_FORMAT);
        assert_int_equal(lt_align_advantages(k, bad, 2, a, &equal), LT_ERR_NUMERIC);
        assert_non_null(strstr(lt_error_message(), "reward 1 of a group of 2"));
        assert_int_equal(lt_align_advantages(k, far, 2, a, &equal), LT_ERR_NUMERIC);
        assert_true(a[0] == 7 && !equal);
        assert_int_equal(lt_align_advantages(k, same, 3, a, &equal), LT_OK);
        assert_true(a[0] == 0 && a[1] == 0 && a[2] == 0 && equal);
    }
    (void)state;
}

/* Over a whole distribution the means of k1 and k3 are the divergence; derivatives agree with
 * finite differences. By enumeration of four tokens. */
static void kl_estimators(void **state) {
    const double p[4] = {.1, .2, .3, .4}, q[4] = {.4, .3, .2, .1};
    double kl = 0, mean[LT_ALIGN_KLS] = {0}, v, d, up, down, unused;
    (void)state;
    for (int t = 0; t < 4; t++) {
        kl += p[t] * log(p[t] / q[t]);
        for (int k = 0; k < LT_ALIGN_KLS; k++) {
            const lt_align_kl_kind kind = (lt_align_kl_kind)k;
            const double lp = log(p[t]), lq = log(q[t]);
            assert_int_equal(lt_align_kl(kind, lp, lq, &v, &d), LT_OK);
            mean[k] += p[t] * v;
            assert_int_equal(lt_align_kl(kind, lp + 1e-5, lq, &up, &unused), LT_OK);
            assert_int_equal(lt_align_kl(kind, lp - 1e-5, lq, &down, &unused), LT_OK);
            close_to((up - down) / 2e-5, d, 1e-8);
            assert_true(k == LT_ALIGN_K1 || v > 0);
        }
    }
    close_to(mean[LT_ALIGN_K1], kl, 1e-14);
    close_to(mean[LT_ALIGN_K3], kl, 1e-14);
    assert_int_equal(lt_align_kl(LT_ALIGN_K2, -1, -3, &v, &d), LT_OK);
    close_to(v, 2, 0);
    close_to(d, 2, 0);
    assert_int_equal(lt_align_kl(LT_ALIGN_K3, -1e4, -1, &v, &d), LT_ERR_NUMERIC);
    assert_int_equal(lt_align_kl(LT_ALIGN_K1, NAN, -1, &v, &d), LT_ERR_NUMERIC);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(advantages_are_the_closed_forms),
        cmocka_unit_test(large_rewards_keep_their_spread),
        cmocka_unit_test(degenerate_groups),
        cmocka_unit_test(kl_estimators),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
