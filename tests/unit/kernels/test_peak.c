/* The peak that MFU is a share of, when it was measured on a busy machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

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

/* Measured while others had the cores: a step passes it. */
static void a_peak_too_low_is_measured_again(void **state) {
    double peak = 1e3, share = -1.0;
    (void)state;
    assert_int_equal(lt_matmul_peak_share(&share, &peak, 1e4, device_of(lt_backend_cpu()), LT_F32),
                     LT_OK);
    assert_true(peak > 1e6); /* A megaflop a second: whatever this machine is. */
    assert_true(share == 1e4 / peak);
}

static void a_share_is_at_most_1(void **state) {
    double peak = 1e3, share = -1.0;
    (void)state;
    assert_int_equal(lt_matmul_peak_share(&share, &peak, 1e18, device_of(lt_backend_cpu()), LT_F32),
                     LT_OK);
    assert_true(share == 1.0 && peak == 1e18);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_share_is_of_the_peak),
        cmocka_unit_test(a_peak_too_low_is_measured_again),
        cmocka_unit_test(a_share_is_at_most_1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
