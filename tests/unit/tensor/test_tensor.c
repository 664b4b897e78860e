/* Element types, views, and conversions: every F16 and every BF16 number, both ways, against
 * definitions written from the formats and, if the CPU has it, against F16C. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lateen/tensor.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* IEEE 754 binary16 by definition; NaN for NaN. */
static double half_value(uint16_t h) {
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    const double sign = (h & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == 31) {
        return mantissa != 0 ? NAN : sign * INFINITY;
    }
    return exponent == 0 ? sign * ldexp(mantissa, -24)
                         : sign * ldexp(1024 + mantissa, exponent - 25);
}

static void f16_widens_and_comes_back(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const double want = half_value((uint16_t)h);
        const float got = lt_f16_to_f32((uint16_t)h);
        if (isnan(want)) {
            assert_true(isnan(got));
            assert_true(isnan(half_value(lt_f32_to_f16(got))));
            continue;
        }
        assert_true((double)got == want);
        assert_int_equal(signbit(got) != 0, (h & 0x8000) != 0);
        assert_int_equal(lt_f32_to_f16(got), h);
    }
}

/* Between neighbours a < b: the middle goes to the even one, any other number to the nearer
 * one. */
static void f16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7C00; h++) {
        const float a = lt_f16_to_f32((uint16_t)h);
        const float b = h + 1 == 0x7C00 ? 65536.0f : lt_f16_to_f32((uint16_t)(h + 1));
        /* The middle is exact: it has one bit more than F16. */
        const float middle = (float)(((double)a + (double)b) / 2.0);
        const uint16_t even = (uint16_t)(h + (h & 1));
        assert_int_equal(lt_f32_to_f16(middle), even);
        assert_int_equal(lt_f32_to_f16(-middle), even | 0x8000);
        assert_int_equal(lt_f32_to_f16(nextafterf(middle, 0.0f)), h);
        assert_int_equal(lt_f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
    }
    assert_int_equal(lt_f32_to_f16(1e30f), 0x7C00);
    assert_int_equal(lt_f32_to_f16(-INFINITY), 0xFC00);
    assert_int_equal(lt_f32_to_f16(1e-30f), 0);
}

static void bf16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const float x = lt_bf16_to_f32((uint16_t)h);
        assert_int_equal(bits_of(x), h << 16);
        if (isnan(x)) {
            assert_true(isnan(lt_bf16_to_f32(lt_f32_to_bf16(x))));
            assert_true(isnan(lt_bf16_to_f32(lt_f32_to_bf16(float_of((h << 16) | 1)))));
            continue;
        }
        assert_int_equal(lt_f32_to_bf16(x), h);
        /* Finite: test the bit patterns between it and the next one. */
        if ((h & 0x7F80) != 0x7F80) {
            assert_int_equal(lt_f32_to_bf16(float_of((h << 16) | 0x7FFF)), h);
            assert_int_equal(lt_f32_to_bf16(float_of((h << 16) | 0x8000)), h + (h & 1));
            assert_int_equal(lt_f32_to_bf16(float_of((h << 16) | 0x8001)), h + 1);
        }
    }
    /* A NaN whose only bits are low ones. */
    assert_true(isnan(lt_bf16_to_f32(lt_f32_to_bf16(float_of(0x7F800001)))));
}

#if defined(__x86_64__)
__attribute__((target("f16c"))) static uint16_t hardware_half(float x) {
    return (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
}
#endif

static void f16_equals_the_hardware(void **state) {
    (void)state;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("f16c")) {
        /* A prime step: 4.2 million patterns of every exponent. */
        for (uint64_t u = 0; u < UINT64_C(1) << 32; u += 1021) {
            const float x = float_of((uint32_t)u);
            assert_int_equal(lt_f32_to_f16(x), hardware_half(x));
        }
        return;
    }
#endif
    skip();
}

static void convert_takes_every_pair(void **state) {
    static const lt_dtype types[] = {LT_F32, LT_BF16, LT_F16, LT_F64};
    /* Exact in all four types. */
    const double values[] = {0.0, -1.5, 0.25, 3.0, -INFINITY, 96.0};
    unsigned char a[64], b[64];
    double back[6];
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        for (size_t j = 0; j < 4; j++) {
            lt_convert(a, types[i], values, LT_F64, 6);
            lt_convert(b, types[j], a, types[i], 6);
            lt_convert(back, LT_F64, b, types[j], 6);
            assert_memory_equal(back, values, sizeof values);
        }
    }
}

/* Every BF16 number, against PyTorch (tools/make_fp8_goldens.py). */
static void eight_bits_as_torch(void **state) {
    enum { N = 65536 };
    static uint8_t code[2][N];
    static float value[2][256];
    FILE *f = fopen("tests/golden/fp8.bin", "rb");
    (void)state;
    assert_non_null(f);
    assert_int_equal(fread(code, sizeof code, 1, f), 1);
    assert_int_equal(fread(value, sizeof value, 1, f), 1);
    fclose(f);
    for (int e5m2 = 0; e5m2 < 2; e5m2++) {
        for (uint32_t i = 0; i < N; i++) {
            const float x = lt_bf16_to_f32((uint16_t)i);
            const uint8_t got = lt_f32_to_f8(x, e5m2 != 0);
            if (isnan(x)) {
                assert_true(isnan(value[e5m2][code[e5m2][i]]) && (got & 0x7F) == 0x7F);
            } else {
                assert_int_equal(got, code[e5m2][i]);
            }
        }
        for (int i = 0; i < 256; i++) {
            const float got = lt_f8_to_f32((uint8_t)i, e5m2 != 0);
            assert_true(isnan(got) ? isnan(value[e5m2][i])
                                   : bits_of(got) == bits_of(value[e5m2][i]));
        }
    }
}

/* The least power of two that brings amax into the type's range. */
static void scales_are_the_least_power(void **state) {
    (void)state;
    for (int e5m2 = 0; e5m2 < 2; e5m2++) {
        const float most = e5m2 ? LT_E5M2_MAX : LT_E4M3_MAX;
        for (uint32_t u = 1; u < 0x7F800000u; u += 0x1357Fu) {
            float inverse;
            const float amax = float_of(u), scale = lt_scale_of(amax, e5m2 != 0, &inverse);
            assert_true(scale * inverse == 1.0f);
            assert_int_equal(bits_of(scale) & 0x7FFFFFu, 0);
            assert_true(amax * inverse <= most);
            assert_true(scale == 0x1p-126f || amax * inverse * 2.0f > most);
        }
        assert_true(lt_scale_of(most, e5m2 != 0, &(float){0}) == 1.0f);
        assert_true(lt_scale_of(0.0f, e5m2 != 0, &(float){0}) == 0x1p-126f);
        assert_true(isnan(lt_scale_of(INFINITY, e5m2 != 0, &(float){0})));
        assert_true(isnan(lt_scale_of(NAN, e5m2 != 0, &(float){0})));
    }
}

static void names_go_both_ways(void **state) {
    lt_dtype dtype = LT_F32;
    (void)state;
    for (int i = 0; i < LT_DTYPE_PLAIN_COUNT; i++) {
        assert_true(lt_dtype_from_name(&dtype, lt_dtype_name((lt_dtype)i)));
        assert_int_equal(dtype, i);
    }
    assert_false(lt_dtype_from_name(&dtype, "F8"));
    assert_false(lt_dtype_from_name(&dtype, "Q4_0"));
    assert_int_equal(lt_dtype_bytes(LT_BF16), 2);
    assert_int_equal(lt_dtype_bytes(LT_I64), 8);
}

static void views_cut_and_split(void **state) {
    float data[4 * 6];
    const lt_tensor t = lt_tensor_2d(data, LT_F32, 4, 6), absent = {0};
    const lt_tensor cols = lt_tensor_cols(&t, 2, 4), rows = lt_tensor_rows(&t, 1, 2);
    const lt_tensor split = lt_tensor_split_last(&cols, 2, 2);
    (void)state;
    assert_int_equal(lt_tensor_count(&t), 24);
    assert_int_equal(lt_tensor_count(&absent), 0);
    assert_true(lt_tensor_contiguous(&t));
    assert_false(lt_tensor_contiguous(&cols));
    assert_true(lt_tensor_contiguous(&rows));
    assert_ptr_equal(cols.data, data + 2);
    assert_int_equal(cols.shape[1], 4);
    assert_int_equal(cols.stride[0], 6);
    assert_ptr_equal(rows.data, data + 6);
    assert_int_equal(split.n_dims, 3);
    assert_int_equal(split.stride[0], 6);
    assert_int_equal(split.stride[1], 2);
    assert_int_equal(split.stride[2], 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_widens_and_comes_back),   cmocka_unit_test(f16_rounds_to_nearest_even),
        cmocka_unit_test(bf16_rounds_to_nearest_even), cmocka_unit_test(f16_equals_the_hardware),
        cmocka_unit_test(convert_takes_every_pair),    cmocka_unit_test(eight_bits_as_torch),
        cmocka_unit_test(scales_are_the_least_power),  cmocka_unit_test(names_go_both_ways),
        cmocka_unit_test(views_cut_and_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
