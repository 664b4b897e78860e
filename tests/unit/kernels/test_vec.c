/* test_vec.c: the functions of kernels/cpu/isa/vec.h against double, in the portable build (the
 * source is the same for all instruction sets), and with NaN, infinities and the ends of their
 * ranges. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "kernels/cpu/features.h"
#include "kernels/cpu/isa/vec.h"
#include "kernels/registry.h"

/* The largest error over [low, high], in units of the last place of the result. */
#define WORST_ULP(low, high, call, exact)                                                          \
    double worst = 0.0;                                                                            \
    for (double at = (low); at < (high); at += ((high) - (low)) / 200000.0) {                      \
        const float x = (float)at;                                                                 \
        const double want = (exact);                                                               \
        const double ulp = fmax(fabs(want), 0x1p-126) * 0x1p-23;                                   \
        const vf got = (call);                                                                     \
        worst = fmax(worst, fabs((double)got[0] - want) / ulp);                                    \
    }

static void exponential(void **state) {
    (void)state;
    WORST_ULP(-87.0, 88.0, v_exp(v_set(x)), exp((double)x))
    assert_true(worst <= 2.0);
    assert_true(v_exp(v_set(-INFINITY))[0] == 0.0f && v_exp(v_set(-1000.0f))[0] == 0.0f);
    assert_true(v_exp(v_set(0.0f))[0] == 1.0f);
    assert_true(isnan(v_exp(v_set(NAN))[0]));
}

static void hyperbolic_tangent(void **state) {
    (void)state;
    WORST_ULP(-12.0, 12.0, v_tanh(v_set(x)), tanh((double)x))
    assert_true(worst <= 4.0);
    assert_true(v_tanh(v_set(INFINITY))[0] == 1.0f && v_tanh(v_set(-INFINITY))[0] == -1.0f);
    assert_true(isnan(v_tanh(v_set(NAN))[0]));
}

static void logistic(void **state) {
    (void)state;
    WORST_ULP(-80.0, 80.0, v_sigmoid(v_set(x)), 1.0 / (1.0 + exp(-(double)x)))
    assert_true(worst <= 4.0);
    assert_true(isnan(v_sigmoid(v_set(NAN))[0]));
}

static void normal_distribution(void **state) {
    double worst = 0.0;
    (void)state;
    for (double at = -9.0; at < 9.0; at += 1e-4) {
        const float x = (float)at;
        vf density;
        const vf got = v_phi(v_set(x), &density);
        worst = fmax(worst, fabs((double)got[0] - 0.5 * erfc(-(double)x * sqrt(0.5))));
        assert_true(fabs((double)density[0] - exp(-0.5 * (double)x * (double)x)) < 1e-6);
    }
    assert_true(worst <= 2e-7);
}

static void rounding_to_bf16(void **state) {
    (void)state;
    /* Every bit pattern, and points near the middle of its interval. */
    for (uint32_t high = 0; high < 65536; high++) {
        const uint32_t bits[4] = {high << 16, high << 16 | 0x7FFFu, high << 16 | 0x8000u,
                                  high << 16 | 0x8001u};
        vf x;
        memcpy(&x, bits, sizeof bits);
        const vh got = v_to_bf16(x);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(got[i], lt_f32_to_bf16(x[i]));
        }
    }
}

/* The same patterns and their neighbours through the kernel of each instruction set: they must
 * agree, because one reads what another wrote, NaNs included. */
static void casts_of_every_set(void **state) {
    enum { PATTERNS = 65536, POINTS = 8, COUNT = PATTERNS * POINTS };
    static const uint32_t low[POINTS] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x4000, 0xC000};
    static float x[COUNT], back[COUNT];
    static uint16_t y[COUNT];
    const lt_op_list list = lt_registry_list(lt_backend_cpu(), LT_OP_cast);
    int n_run = 0;
    (void)state;
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint32_t bits = i / POINTS << 16 | low[i % POINTS];
        memcpy(&x[i], &bits, sizeof bits);
    }
    const lt_cast_args narrow = {.y = lt_tensor_1d(y, LT_BF16, COUNT),
                                 .x = lt_tensor_1d(x, LT_F32, COUNT)},
                       widen = {.y = lt_tensor_1d(back, LT_F32, COUNT),
                                .x = lt_tensor_1d(y, LT_BF16, COUNT)};
    for (int at = 0; at < list.n_impls; at++) {
        const lt_op_impl *impl = &list.impls[at];
        if (impl->refuse != NULL && impl->refuse(&narrow, NULL) != NULL) {
            continue;
        }
        memset(y, 0xA5, sizeof y);
        memset(back, 0xA5, sizeof back);
        assert_int_equal(impl->run(NULL, &narrow), LT_OK);
        assert_int_equal(impl->run(NULL, &widen), LT_OK);
        for (int i = 0; i < COUNT; i++) {
            uint32_t bits;
            memcpy(&bits, &back[i], sizeof bits);
            assert_int_equal(y[i], lt_f32_to_bf16(x[i]));
            assert_int_equal(bits, (uint32_t)y[i] << 16);
        }
        n_run++;
    }
    /* The portable one and all up to this CPU's; the reference. */
    assert_int_equal(n_run, 2 + (int)lt_cpu_features_get()->isa);
}

static void transposition(void **state) {
    vf x[VEC];
    (void)state;
    for (int i = 0; i < VEC; i++) {
        for (int j = 0; j < VEC; j++) {
            x[i][j] = (float)(i * VEC + j);
        }
    }
    v_transpose(x);
    for (int i = 0; i < VEC; i++) {
        for (int j = 0; j < VEC; j++) {
            assert_true(x[i][j] == (float)(j * VEC + i));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponential),      cmocka_unit_test(hyperbolic_tangent),
        cmocka_unit_test(logistic),         cmocka_unit_test(normal_distribution),
        cmocka_unit_test(rounding_to_bf16), cmocka_unit_test(casts_of_every_set),
        cmocka_unit_test(transposition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
