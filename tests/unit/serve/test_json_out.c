/* jansson must read back the same values that the JSON writer wrote. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <string.h>

#include "serve/api/json_out.h"

static void ints(void **state) {
    static const int64_t values[] = {0, 1, -1, 9, 10, -10, 1234567890123, INT64_MAX, INT64_MIN};
    lt_json_out o = {0};
    json_t *back;
    (void)state;
    lt_out_open(&o, '[');
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        lt_out_int(&o, values[i]);
    }
    lt_out_shut(&o, ']');
    back = json_loadb(o.data, o.n, 0, NULL);
    assert_non_null(back);
    assert_int_equal(json_array_size(back), sizeof values / sizeof *values);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        assert_true(json_integer_value(json_array_get(back, i)) == values[i]);
    }
    json_decref(back);
    lt_out_free(&o);
}

static void strings(void **state) {
    char all[128 + 8];
    lt_json_out o = {0};
    json_t *back;
    size_t n = 0;
    (void)state;
    for (int c = 0; c < 128; c++) {
        all[n++] = (char)c;
    }
    memcpy(all + n, "\xC3\xB6\xF0\x9F\x98\x80", 6);
    n += 6;
    lt_out_open(&o, '{');
    lt_out_key(&o, "a\"\\\n");
    lt_out_str(&o, all, n);
    lt_out_key_null(&o, "b");
    lt_out_key_real(&o, "c", 0.1);
    lt_out_shut(&o, '}');
    back = json_loadb(o.data, o.n, JSON_ALLOW_NUL, NULL);
    assert_non_null(back);
    assert_int_equal(json_string_length(json_object_get(back, "a\"\\\n")), n);
    assert_memory_equal(json_string_value(json_object_get(back, "a\"\\\n")), all, n);
    assert_true(json_is_null(json_object_get(back, "b")));
    assert_true(json_real_value(json_object_get(back, "c")) == 0.1);
    json_decref(back);
    lt_out_free(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ints), cmocka_unit_test(strings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
