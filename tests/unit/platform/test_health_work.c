/* The work with which `lateen health --tier 2` tests cores and GPUs: the known product is correct
 * on the device of this machine (tests/emu/run: the emulated GPU), and a single wrong bit is
 * noticed. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "lateen/device.h"
#include "platform/health/checks.h"
#include "platform/health/facts.h"
#include "platform/health/known.h"
#include "platform/health/work.h"
#include "tensor/ops.h"

#define SIDE (2 * LT_KNOWN_PERIOD)

/* Computed with whole numbers. */
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

/* A processor that computes one of its products wrongly, and memory that loses a bit of one
 * word. */
static struct {
    lt_backend backend;
    lt_ops ops;
    const lt_backend *right;
    int products, wrong_product;
    int downloads, wrong_download;
} bad;

static lt_err bad_matmul(lt_queue *q, const lt_matmul_args *a) {
    const lt_err err = bad.right->ops->matmul(q, a);
    if (++bad.products == bad.wrong_product) {
        ((float *)a->y.data)[LT_KNOWN_PERIOD + 3] += 1.0f;
    }
    return err;
}

static lt_err bad_download(lt_queue *q, void *to, const void *from, size_t bytes) {
    const lt_err err = bad.right->download(q, to, from, bytes);
    if (++bad.downloads == bad.wrong_download) {
        ((uint64_t *)to)[bytes / sizeof(uint64_t) - 1] ^= 1u << 7;
    }
    return err;
}

static lt_device *bad_device(int wrong_product, int wrong_download) {
    lt_device *device = NULL;
    assert_int_equal(lt_device_open(&device, LT_DEVICE_CPU, LT_DEVICE_DEFAULT), LT_OK);
    bad.right = device->backend;
    bad.backend = *device->backend;
    bad.ops = *device->backend->ops;
    bad.ops.matmul = bad_matmul;
    bad.backend.ops = &bad.ops;
    bad.backend.download = bad_download;
    bad.products = bad.downloads = 0;
    bad.wrong_product = wrong_product;
    bad.wrong_download = wrong_download;
    device->backend = &bad.backend;
    return device;
}

static void bad_close(lt_device *device) {
    device->backend = bad.right;
    lt_device_close(device);
}

/* With a duration, sums of 64 products each, at least one sum; without it a single product. */
static void test_wrong_products_are_counted(void **state) {
    lt_device *device = bad_device(2, 0);
    double products = 5.0, wrong = 7.0; /* Both are added to. */
    (void)state;
    for (int call = 1; call <= 3; call++) {
        assert_int_equal(lt_known_run(device, LT_F32, SIDE, 0.0, &products, &wrong), LT_OK);
        assert_true(products == 5.0 + call);
        assert_true(wrong == (call < 2 ? 7.0 : 8.0));
    }
    bad_close(device);
    device = bad_device(LT_KNOWN_ROUNDS - 1, 0); /* One product of the first sum. */
    products = wrong = 0.0;
    assert_int_equal(lt_known_run(device, LT_F32, LT_KNOWN_PERIOD, 1e-9, &products, &wrong), LT_OK);
    assert_true(products == LT_KNOWN_ROUNDS && wrong == 1.0);
    bad_close(device);
}

/* Five patterns, each of which is read back once; four copies, the last of which is compared. */
static void test_lost_bits_are_counted(void **state) {
    double wrong = 3.0, up = 0.0, down = 0.0;
    lt_device *device = bad_device(0, LT_PATTERNS);
    (void)state;
    assert_int_equal(lt_patterns_run(device, 1, &wrong), LT_OK); /* At least one piece. */
    assert_int_equal(bad.downloads, LT_PATTERNS);
    assert_true(wrong == 4.0);
    bad_close(device);
    device = bad_device(0, 4);
    assert_int_equal(lt_copies_run(device, 4096, &up, &down, &wrong), LT_OK);
    assert_int_equal(bad.downloads, 4);
    assert_true(wrong == 5.0);
    bad_close(device);
}

/* The last pattern is splitmix64 (Vigna 2015) of the index plus the pattern's number. */
static void test_patterns(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 3; i++) {
        assert_true(lt_pattern_word(0, i) == 0);
        assert_true(lt_pattern_word(1, i) == 0xFFFFFFFFFFFFFFFFu);
        assert_true(lt_pattern_word(2, i) == 0x5555555555555555u);
        assert_true(lt_pattern_word(3, i) == 0xAAAAAAAAAAAAAAAAu);
    }
    assert_true(lt_pattern_word(4, 0) == 0x6E73E372E2338ACAu);
    assert_true(lt_pattern_word(4, 1) == 0x63033B0CA389C35Au);
    assert_true(lt_pattern_word(4, 1000) == 0xC8E28BFE16044686u);
}

/* Number of facts of one check, and their sum. */
static int facts_of(const lt_facts *f, lt_health_check_id check, double *sum) {
    int n = 0;
    *sum = 0.0;
    for (int i = 0; i < f->n; i++) {
        if (f->facts[i].check == check) {
            *sum += f->facts[i].value;
            n++;
        }
    }
    return n;
}

/* Tier 3 on the host: a fact for each core on which this process may run, under its number. Rates
 * are in gigabytes and in 10^9 operations: one core of today reaches 1 to 5,000 of them per
 * second. */
static void test_each_core_works(void **state) {
    lt_facts f = {0};
    lt_limits l;
    cpu_set_t allowed;
    double sum;
    int next = 0;
    (void)state;
    lt_limits_read(&l);
    assert_true(l.available_bytes != LT_LIMIT_UNKNOWN);
    /* Two pieces and a part of one. */
    const lt_work_plan plan = {.burn_s = 0.02, .memory_share = 0x14p20 / (double)l.available_bytes};
    assert_int_equal(lt_facts_of_cores(&f, &plan), LT_OK);
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    const int n_cores = CPU_COUNT(&allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        char object[16];
        if (!CPU_ISSET((size_t)cpu, &allowed)) {
            continue;
        }
        snprintf(object, sizeof object, "cpu%d", cpu);
        while (next < f.n && f.facts[next].check != LT_CHECK_CPU_PRODUCTS) {
            next++;
        }
        assert_true(next < f.n);
        assert_string_equal(f.facts[next++].object, object);
    }
    assert_int_equal(facts_of(&f, LT_CHECK_CPU_PRODUCTS, &sum), n_cores);
    assert_true(sum == 0.0);
    assert_int_equal(facts_of(&f, LT_CHECK_MEM_PATTERNS, &sum), 1);
    assert_true(sum == 0.0);
    assert_int_equal(facts_of(&f, LT_CHECK_CPU_COPY, &sum), 1);
    assert_true(sum > 0.1 && sum < 10000.0);
    assert_int_equal(facts_of(&f, LT_CHECK_CPU_FLOPS, &sum), 1);
    assert_true(sum > 0.5 && sum < 5000.0 * n_cores);
    lt_facts_clear(&f);
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
    /* A machine that computes wrongly, or does not keep what is written, is useless. */
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
                                       cmocka_unit_test(test_wrong_products_are_counted),
                                       cmocka_unit_test(test_lost_bits_are_counted),
                                       cmocka_unit_test(test_patterns),
                                       cmocka_unit_test(test_each_core_works),
                                       cmocka_unit_test(test_levels_decide_by_side)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
