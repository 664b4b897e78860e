/* Reductions by hand: the order of sums, one rounding of 16 bits, integers that wrap around, and a
 * NaN that no maximum drops; where shards begin. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "comm/call.h"

enum { N = 2 * 2048 + 5 }; /* Two blocks, and a remainder. */

/* In F32 (1e8 + 1) - 1e8 is 0, and 1 in another order: element i has one order or the other. */
static void sums_have_the_order_of_members(void **state) {
    static float a[N], b[N], c[N], out[N];
    const void *const srcs[] = {a, b, c};
    (void)state;
    for (int dst = 0; dst < 4; dst++) { /* The result may replace any source. */
        float *const to = dst == 0 ? out : dst == 1 ? a : dst == 2 ? b : c;
        for (int i = 0; i < N; i++) {
            a[i] = 1e8f;
            b[i] = i % 3 == 0 ? -1e8f : 1.0f;
            c[i] = i % 3 == 0 ? 1.0f + (float)i : -1e8f;
        }
        lt_comm_reduce(to, srcs, 3, N, LT_F32, LT_REDUCE_SUM);
        for (int i = 0; i < N; i++) {
            assert_true(to[i] == (i % 3 == 0 ? 1.0f + (float)i : 0.0f));
        }
    }
    lt_comm_reduce(out, srcs, 1, N, LT_F32, LT_REDUCE_SUM);
    assert_memory_equal(out, a, sizeof out);
}

/* BF16 has no number between 256 and 258, F16 none between 2048 and 2050: adding 1 twice must
 * count. */
static void sixteen_bits_are_rounded_once(void **state) {
    static uint16_t a[N], b[N], c[N];
    const void *const srcs[] = {a, b, c};
    (void)state;
    for (int half = 0; half < 2; half++) {
        const uint16_t one = half ? 0x3c00 : 0x3f80, many = half ? 0x6800 : 0x4380,
                       want = half ? 0x6801 : 0x4381, minus_two = 0xc000;
        for (int i = 0; i < N; i++) {
            a[i] = many;
            b[i] = i % 2 == 0 ? one : 0;
            c[i] = i % 2 == 0 ? one : minus_two;
        }
        lt_comm_reduce(c, srcs, 3, N, half ? LT_F16 : LT_BF16, LT_REDUCE_SUM);
        for (int i = 0; i < N; i++) {
            assert_int_equal(c[i], i % 2 == 0 ? want : half ? 0x67fe : 0x437e);
        }
    }
}

static void extremes_keep_a_nan(void **state) {
    static const float rows[][3] = {
        {1, 2, 3},   {3, 2, 1},   {-1, -3, -2}, {NAN, 1, 2},
        {1, NAN, 2}, {1, 2, NAN}, {0, 0, 0},    {INFINITY, 5, -INFINITY}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const float most = fmaxf(fmaxf(rows[i][0], rows[i][1]), rows[i][2]),
                    least = fminf(fminf(rows[i][0], rows[i][1]), rows[i][2]);
        const bool nan = isnan(rows[i][0]) || isnan(rows[i][1]) || isnan(rows[i][2]);
        for (int min = 0; min < 2; min++) {
            const void *const srcs[] = {&rows[i][0], &rows[i][1], &rows[i][2]};
            const double wide[] = {(double)rows[i][0], (double)rows[i][1], (double)rows[i][2]};
            const void *const wides[] = {&wide[0], &wide[1], &wide[2]};
            float out = 77;
            double wide_out = 77;
            lt_comm_reduce(&out, srcs, 3, 1, LT_F32, min ? LT_REDUCE_MIN : LT_REDUCE_MAX);
            lt_comm_reduce(&wide_out, wides, 3, 1, LT_F64, min ? LT_REDUCE_MIN : LT_REDUCE_MAX);
            assert_true(nan ? isnan(out) : out == (min ? least : most));
            assert_true(nan ? isnan(wide_out) : wide_out == (double)(min ? least : most));
        }
    }
}

static void types_that_are_not_widened(void **state) {
    const double d[] = {1.0, 0x1p-40, 0x1p-45};
    const int64_t l[] = {INT64_MAX, 1, -3};
    const int32_t s[] = {INT32_MAX, 1, -3};
    const uint8_t u[] = {200, 100, 7};
    double d_out[3];
    int64_t l_out[3];
    int32_t s_out[3];
    uint8_t u_out[3];
    (void)state;
    for (int op = LT_REDUCE_SUM; op <= LT_REDUCE_MIN; op++) {
        lt_comm_reduce(&d_out[op], (const void *const[]){&d[0], &d[1], &d[2]}, 3, 1, LT_F64,
                       (lt_reduce)op);
        lt_comm_reduce(&l_out[op], (const void *const[]){&l[0], &l[1], &l[2]}, 3, 1, LT_I64,
                       (lt_reduce)op);
        lt_comm_reduce(&s_out[op], (const void *const[]){&s[0], &s[1], &s[2]}, 3, 1, LT_I32,
                       (lt_reduce)op);
        lt_comm_reduce(&u_out[op], (const void *const[]){&u[0], &u[1], &u[2]}, 3, 1, LT_U8,
                       (lt_reduce)op);
    }
    assert_true(d_out[LT_REDUCE_SUM] == 1.0 + 0x1p-40 + 0x1p-45);
    assert_true(d_out[LT_REDUCE_MAX] == 1.0 && d_out[LT_REDUCE_MIN] == 0x1p-45);
    assert_true(l_out[LT_REDUCE_SUM] == INT64_MAX - 2); /* It wraps around, and back. */
    assert_true(l_out[LT_REDUCE_MAX] == INT64_MAX && l_out[LT_REDUCE_MIN] == -3);
    assert_true(s_out[LT_REDUCE_SUM] == INT32_MAX - 2);
    assert_true(s_out[LT_REDUCE_MAX] == INT32_MAX && s_out[LT_REDUCE_MIN] == -3);
    assert_int_equal(u_out[LT_REDUCE_SUM], 307 - 256);
    assert_true(u_out[LT_REDUCE_MAX] == 200 && u_out[LT_REDUCE_MIN] == 7);
}

/* All shards except the last have the same size; the last may be short, or empty, like others
 * before it. */
static void shards(void **state) {
    static const struct {
        int64_t count;
        int n;
        int64_t begin[6];
    } rows[] = {{10, 4, {0, 3, 6, 9, 10}},
                {12, 4, {0, 3, 6, 9, 12}},
                {2, 4, {0, 1, 2, 2, 2}},
                {0, 3, {0, 0, 0, 0}},
                {7, 1, {0, 7}},
                {9, 4, {0, 3, 6, 9, 9}}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int k = 0; k <= rows[i].n; k++) {
            assert_int_equal(lt_comm_shard(rows[i].count, rows[i].n, k), rows[i].begin[k]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_have_the_order_of_members),
        cmocka_unit_test(sixteen_bits_are_rounded_once), cmocka_unit_test(extremes_keep_a_nan),
        cmocka_unit_test(types_that_are_not_widened), cmocka_unit_test(shards)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
