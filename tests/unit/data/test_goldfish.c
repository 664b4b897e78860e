/* Goldfish loss: the table equals that of torch, the hashes follow the definition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/rng.h"
#include "data/goldfish.h"

static void the_table_equals_that_of_torch(void **state) {
    char *text = NULL;
    uint64_t golden[66], sum = 0, fold = 0;
    uint32_t *table = malloc(LT_GOLDFISH_TABLE * sizeof *table);
    (void)state;
    assert_non_null(table);
    assert_int_equal(lt_file_read(&text, NULL, "tests/golden/data/goldfish_table.u64", 1 << 20),
                     LT_OK);
    memcpy(golden, text, sizeof golden);
    lt_goldfish_table(table);
    for (size_t i = 0; i < LT_GOLDFISH_TABLE; i++) {
        sum += table[i];
        fold ^= table[i] * (2 * (uint64_t)i + 1);
        assert_true(i >= 64 || table[i] == golden[i]);
    }
    assert_int_equal(sum, golden[64]);
    assert_int_equal(fold, golden[65]);
    free(text);
    free(table);
}

/* Against the definition written out, for windows that do and do not divide the row. */
static void windows_equal_the_definition(void **state) {
    static const int64_t widths[] = {1, 2, 7, 50, 100};
    enum { N = 333 };
    int32_t labels[N];
    bool dropped[N];
    uint32_t *table = malloc(LT_GOLDFISH_TABLE * sizeof *table);
    (void)state;
    assert_non_null(table);
    lt_goldfish_table(table);
    for (int i = 0; i < N; i++) {
        labels[i] = (int32_t)(lt_rng_mix((uint64_t)i) % 131072);
    }
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        const int64_t h = widths[w];
        lt_goldfish *g = NULL;
        int n_dropped = 0;
        assert_int_equal(lt_goldfish_open(&g, 4, h), LT_OK);
        for (int64_t n = h > 1 ? h - 1 : 1; n <= N; n += 37) {
            lt_goldfish_mark(g, dropped, labels, n);
            for (int64_t t = 0; t < n; t++) {
                uint64_t product = 1;
                int64_t key;
                for (int64_t i = t - h + 1; i <= t && t >= h - 1; i++) {
                    product *= (uint64_t)labels[i];
                }
                key = (int64_t)product % LT_GOLDFISH_TABLE;
                key = key < 0 ? key + LT_GOLDFISH_TABLE : key;
                assert_int_equal(dropped[t], t >= h - 1 && (double)table[key] * 0x1p-24 < 0.25);
                n_dropped += dropped[t];
            }
        }
        assert_true(n_dropped > 0);
        lt_goldfish_close(g);
    }
    free(table);
}

/* A label whose number in the table is exactly 1/k stays, as torch.rand(...) < 1/k has it. With h
 * = 1 the label's id is its place in the table. */
static void a_number_at_the_bound_stays_a_label(void **state) {
    uint32_t *table = malloc(LT_GOLDFISH_TABLE * sizeof *table);
    int n_at_bound = 0;
    (void)state;
    assert_non_null(table);
    lt_goldfish_table(table);
    for (uint32_t k = 2; k <= 1 << 14; k *= 2) {
        lt_goldfish *g = NULL;
        assert_int_equal(lt_goldfish_open(&g, k, 1), LT_OK);
        for (int32_t id = 0; id < LT_GOLDFISH_TABLE; id++) {
            const uint32_t bound = (1u << 24) / k;
            bool dropped;
            if (table[id] + 1 < bound || table[id] > bound) {
                continue;
            }
            lt_goldfish_mark(g, &dropped, &id, 1);
            assert_int_equal(dropped, table[id] < bound);
            n_at_bound += table[id] == bound;
        }
        lt_goldfish_close(g);
    }
    assert_true(n_at_bound > 0);
    free(table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_equals_that_of_torch),
        cmocka_unit_test(windows_equal_the_definition),
        cmocka_unit_test(a_number_at_the_bound_stays_a_label),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
