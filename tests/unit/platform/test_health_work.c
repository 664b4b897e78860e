/* The work by which `lateen health --tier 2` judges cores and GPUs: the known product holds on the
 * device of this machine (tests/emu/run: the emulated GPU), and a single wrong bit is noticed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lateen/device.h"
#include "platform/health/checks.h"
#include "platform/health/known.h"
#include "platform/health/work.h"

#define SIDE (2 * LT_KNOWN_PERIOD)

/* By whole numbers. */
static float *product(int rounds) {
    const size_t in = (size_t)SIDE * LT_KNOWN_K;
    float *a = malloc(in * sizeof *a), *b = malloc(in * sizeof *b),
          *y = malloc((size_t)SIDE * SIDE * sizeof *y);
    assert_true(a != NULL && b != NULL && y != NULL);
    lt_known_fill(a, LT_F32, SIDE, false);
    lt_known_fill(b, LT_F32, SIDE, true);
    for (int i = 0; i < SIDE; i++) {
        for (int j = 0; j < SIDE; j++) {
            long sum = 0;
            for (int k = 0; k < LT_KNOWN_K; k++) {
                sum += (long)a[i * LT_KNOWN_K + k] * (long)b[j * LT_KNOWN_K + k];
            }
            y[i * SIDE + j] = (float)(sum * rounds);
        }
    }
    free(a);
    free(b);
    return y;
}

static bool holds(const float *y, int rounds) {
    bool answer = false;
    assert_int_equal(lt_known_check(&answer, y, SIDE, rounds), LT_OK);
    return answer;
}

static void test_every_bit_counts(void **state) {
    static const int places[] = {0, 255, 256, SIDE * 255 + 255, SIDE * 256, SIDE * SIDE - 1};
    float *y = product(1);
    (void)state;
    assert_true(holds(y, 1));
    for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
        for (int bit = 0; bit < 32; bit++) {
            uint32_t word;
            const float right = y[places[p]];
            memcpy(&word, &right, sizeof word);
            word ^= 1u << bit;
            memcpy(&y[places[p]], &word, sizeof word);
            assert_false(holds(y, 1));
            y[places[p]] = right;
        }
    }
    free(y);
}

static void test_sums_of_products(void **state) {
    float *y = product(LT_KNOWN_ROUNDS);
    (void)state;
    assert_true(holds(y, LT_KNOWN_ROUNDS));
    assert_false(holds(y, LT_KNOWN_ROUNDS - 1));
    y[7] += 1.0f;
    assert_false(holds(y, LT_KNOWN_ROUNDS));
    free(y);
}

static void test_device_computes_and_keeps(void **state) {
    static const lt_dtype types[] = {LT_F32, LT_BF16};
    double products = 0.0, wrong = 0.0, up = 0.0, down = 0.0;
    lt_device *device = NULL;
    (void)state;
    assert_int_equal(lt_device_open(&device, LT_DEVICE_AUTO, LT_DEVICE_DEFAULT), LT_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(lt_known_run(device, types[i], LT_KNOWN_PERIOD, 0.0, &products, &wrong),
                         LT_OK);
    }
    assert_int_equal(lt_copies_run(device, (size_t)1 << 20, &up, &down, &wrong), LT_OK);
    assert_int_equal(lt_patterns_run(device, (size_t)1 << 20, &wrong), LT_OK);
    assert_true(products == 2.0 && wrong == 0.0 && up > 0.0 && down > 0.0);
    lt_device_close(device);
}

static void test_levels_decide_by_side(void **state) {
    lt_check_levels *l = calloc(1, sizeof *l);
    double limit;
    (void)state;
    assert_non_null(l);
    assert_int_equal(lt_check_levels_load(l, ""), LT_OK);
    /* Above: the level itself is bad; below: it is good. */
    assert_int_equal(lt_check_judge(l, LT_CHECK_GPU_TEMPERATURE, 87.0, &limit), LT_HEALTH_WARN);
    assert_true(limit == 87.0);
    assert_int_equal(lt_check_judge(l, LT_CHECK_GPU_WIDTH, 1.0, &limit), LT_HEALTH_OK);
    assert_int_equal(lt_check_judge(l, LT_CHECK_GPU_WIDTH, 0.5, &limit), LT_HEALTH_WARN);
    assert_int_equal(lt_check_judge(l, LT_CHECK_GPU_WIDTH, 0.49, &limit), LT_HEALTH_DRAIN);
    /* A machine that computes wrong, or does not keep what is written, is worth nothing. */
    assert_int_equal(lt_check_judge(l, LT_CHECK_CPU_PRODUCTS, 1.0, &limit), LT_HEALTH_EVICT);
    assert_int_equal(lt_check_judge(l, LT_CHECK_GPU_PRODUCTS, 1.0, &limit), LT_HEALTH_EVICT);
    assert_int_equal(lt_check_judge(l, LT_CHECK_GPU_COPIES, 1.0, &limit), LT_HEALTH_EVICT);
    assert_int_equal(lt_check_judge(l, LT_CHECK_MEM_PATTERNS, 1.0, &limit), LT_HEALTH_EVICT);
    assert_int_equal(lt_check_judge(l, LT_CHECK_GPU_PATTERNS, 1.0, &limit), LT_HEALTH_EVICT);
    assert_int_equal(lt_check_judge(l, LT_CHECK_GPU_UPLOAD, 3.9, &limit), LT_HEALTH_DRAIN);
    assert_int_equal(lt_check_judge(l, LT_CHECK_GPU_IN_USE, 0.2, &limit), LT_HEALTH_DRAIN);
    assert_int_equal(lt_check_of_xid(79), LT_CHECK_XID_79);
    assert_int_equal(lt_check_of_xid(13), LT_CHECK_GPU_XID_OTHER);
    free(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_bit_counts),
                                       cmocka_unit_test(test_sums_of_products),
                                       cmocka_unit_test(test_device_computes_and_keeps),
                                       cmocka_unit_test(test_levels_decide_by_side)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
