/* Which peak MFU is a share of, where the peak was measured while the machine was busy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "kernels/peak.h"
#include "unit/device.h"

static void a_share_is_of_the_peak(void **state) {
    double peak = 4e9, share = -1.0;
    (void)state;
    assert_int_equal(lt_matmul_peak_share(&share, &peak, 1e9, device_of(lt_backend_cpu()), LT_F32),
                     LT_OK);
    assert_true(share == 0.25 && peak == 4e9);
}

/* It was measured while other processes used the cores, and a step exceeds it. */
static void a_peak_too_low_is_measured_again(void **state) {
    double peak = 1e3, share = -1.0;
    (void)state;
    assert_int_equal(lt_matmul_peak_share(&share, &peak, 1e4, device_of(lt_backend_cpu()), LT_F32),
                     LT_OK);
    assert_true(peak > 1e6); /* A megaflop a second, on any machine. */
    assert_true(share == 1e4 / peak);
}

static void a_share_is_at_most_1(void **state) {
    double peak = 1e3, share = -1.0;
    (void)state;
    assert_int_equal(lt_matmul_peak_share(&share, &peak, 1e18, device_of(lt_backend_cpu()), LT_F32),
                     LT_OK);
    assert_true(share == 1.0 && peak == 1e18);
}

/* The peak in the environment is used as it is; what is not a number is refused, and nothing is
 * measured. */
static void a_known_peak_is_not_measured(void **state) {
    static const char *const none[] = {"", "fast", "0", "-3", "7x", "inf", "nan", "1e400"};
    double peak = 0.0;
    (void)state;
    setenv("LATEEN_PEAK_GFLOPS", "0.25", 1);
    assert_int_equal(lt_matmul_peak_known(&peak, device_of(lt_backend_cpu()), LT_F32), LT_OK);
    assert_true(peak == 2.5e8);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        char want[80];
        (void)snprintf(want, sizeof want, "LATEEN_PEAK_GFLOPS is '%s', not a number above 0",
                       none[i]);
        setenv("LATEEN_PEAK_GFLOPS", none[i], 1);
        assert_int_equal(lt_matmul_peak_known(&peak, device_of(lt_backend_cpu()), LT_F32),
                         LT_ERR_ARG);
        assert_non_null(strstr(lt_error_message(), want));
    }
    unsetenv("LATEEN_PEAK_GFLOPS");
    assert_int_equal(lt_matmul_peak_known(&peak, device_of(lt_backend_cpu()), LT_F32), LT_OK);
    assert_true(peak > 2.5e8); /* A quarter of a GFLOP/s, on any machine. */
}

/* A device with 3 MiB: three matrices of 512 x 512 fit, those of 1024 do not. */
static size_t in_use, largest;
static lt_err alloc_little(lt_device *d, void **out, size_t bytes, const char *what) {
    (void)d;
    if (in_use + bytes > 3 << 20) {
        return lt_error_set(LT_ERR_OOM, "%s: %zu bytes", what, bytes);
    }
    in_use += bytes;
    largest = bytes > largest ? bytes : largest;
    *out = calloc(1, bytes);
    return *out != NULL ? LT_OK : LT_ERR_OOM;
}
static void release_little(lt_device *d, void *data, size_t bytes) {
    (void)d;
    in_use -= bytes;
    free(data);
}
static lt_err alloc_nothing(lt_device *d, void **out, size_t bytes, const char *what) {
    (void)d;
    (void)out;
    return lt_error_set(LT_ERR_OOM, "%s: %zu bytes", what, bytes);
}

static void sizes_that_fit_are_measured(void **state) {
    static lt_backend little;
    double peak = 0.0;
    (void)state;
    little = *lt_backend_cpu();
    little.host_memory = false; /* All sizes, as on a GPU. */
    little.alloc = alloc_little;
    little.release = release_little;
    assert_int_equal(lt_matmul_peak(&peak, device_of(&little), LT_F32), LT_OK);
    assert_true(peak > 1e6);
    assert_int_equal(largest, 512 * 512 * 4);
    assert_int_equal(in_use, 0);
    little.alloc = alloc_nothing;
    assert_int_equal(lt_matmul_peak(&peak, device_of(&little), LT_F32), LT_ERR_OOM);
    assert_non_null(strstr(lt_error_message(), "peak measurement: 262144 bytes"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_share_is_of_the_peak),
        cmocka_unit_test(a_peak_too_low_is_measured_again),
        cmocka_unit_test(a_share_is_at_most_1),
        cmocka_unit_test(a_known_peak_is_not_measured),
        cmocka_unit_test(sizes_that_fit_are_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
