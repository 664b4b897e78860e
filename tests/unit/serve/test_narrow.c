/* Ids that a request itself rules out, against bit masks worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "serve/narrow.h"

#define V 70 /* Not a multiple of 32. */

static bool has(const uint32_t *mask, int id) {
    return (mask[id / 32] >> (id % 32) & 1) != 0;
}

static void fill(uint32_t *mask) {
    memset(mask, 0, 3 * sizeof *mask);
    for (int id = 0; id < V; id++) {
        mask[id / 32] |= 1U << (id % 32);
    }
}

static int count(const uint32_t *mask) {
    int n = 0;
    for (int id = 0; id < 96; id++) {
        n += has(mask, id);
    }
    return n;
}

static void only_allowed_ids(void **state) {
    static const int32_t ids[] = {0, 31, 32, 69, 69};
    const lt_request r = {.allowed = ids, .n_allowed = 5};
    uint32_t bits[3], mask[3];
    (void)state;
    lt_narrow_allow(&r, bits, V);
    fill(mask);
    lt_narrow(&r, bits, NULL, 0, mask, V);
    assert_int_equal(count(mask), 4);
    assert_true(has(mask, 0) && has(mask, 31) && has(mask, 32) && has(mask, 69));
}

static void bad_words(void **state) {
    static const int32_t bad[] = {5, 7, 8, 7, 8, 9, 69}, said[] = {1, 7, 8};
    static const int64_t ends[] = {1, 3, 6, 7}; /* 5 | 7 8 | 7 8 9 | 69 */
    const lt_request r = {.bad = bad, .bad_ends = ends, .n_bad = 4};
    uint32_t mask[3];
    (void)state;
    fill(mask);
    lt_narrow(&r, NULL, said, 0, mask, V);
    assert_true(!has(mask, 5) && !has(mask, 69) && has(mask, 8) && has(mask, 9) &&
                count(mask) == V - 2);
    fill(mask);
    lt_narrow(&r, NULL, said, 2, mask, V); /* After 1 7. */
    assert_true(!has(mask, 8) && has(mask, 9) && count(mask) == V - 3);
    fill(mask);
    lt_narrow(&r, NULL, said, 3, mask, V); /* After 1 7 8. */
    assert_true(has(mask, 8) && !has(mask, 9) && count(mask) == V - 3);
    memset(mask, 0, sizeof mask); /* A grammar allows only bad words. */
    mask[0] = 1U << 5;
    mask[2] = 1U << 5;
    lt_narrow(&r, NULL, said, 3, mask, V);
    assert_true(has(mask, 5) && has(mask, 69) && count(mask) == 2);
    mask[0] |= 1U << 6;
    lt_narrow(&r, NULL, said, 3, mask, V);
    assert_true(has(mask, 6) && count(mask) == 1);
}

static void impossible_masks(void **state) {
    static const int32_t outside[] = {V}, ending[] = {2}, fine[] = {2, 3};
    static const int64_t none[] = {0}, one[] = {1};
    const lt_ends ends = {.ids = {2}, .n = 1};
    (void)state;
    lt_request r = {.allowed = outside, .n_allowed = 1};
    assert_int_equal(lt_narrow_check(&r, &ends, V), LT_ERR_ARG);
    r = (lt_request){.allowed = ending, .n_allowed = 1};
    assert_int_equal(lt_narrow_check(&r, &ends, V), LT_OK);
    r.min_tokens = 1;
    assert_int_equal(lt_narrow_check(&r, &ends, V), LT_ERR_ARG);
    r = (lt_request){.allowed = fine, .n_allowed = 2, .min_tokens = 1};
    assert_int_equal(lt_narrow_check(&r, &ends, V), LT_OK);
    r.grammar = (const lt_grammar *)&r;
    assert_int_equal(lt_narrow_check(&r, &ends, V), LT_ERR_ARG);
    r = (lt_request){.bad = fine, .bad_ends = none, .n_bad = 1};
    assert_int_equal(lt_narrow_check(&r, &ends, V), LT_ERR_ARG);
    r.bad_ends = one;
    assert_int_equal(lt_narrow_check(&r, &ends, V), LT_OK);
    r.bad = outside;
    assert_int_equal(lt_narrow_check(&r, &ends, V), LT_ERR_ARG);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(only_allowed_ids),
                                       cmocka_unit_test(bad_words),
                                       cmocka_unit_test(impossible_masks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
