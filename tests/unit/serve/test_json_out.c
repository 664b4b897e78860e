/* jansson must read back the same values that the JSON writer wrote. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>

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

/* Texts of every length near the steps in which the buffer grows, and near the 512 bytes that
 * formatted ones fit in: unchanged, and followed by a 0. */
static void lengths(void **state) {
    static char text[1100];
    (void)state;
    memset(text, 'x', sizeof text - 1);
    for (int n = 250; n < 1030; n++) {
        lt_json_out raw = {0}, formatted = {0};
        lt_out_raw(&raw, text, (size_t)n - 1);
        lt_out_raw(&raw, "y", 1);
        lt_out_rawf(&formatted, "%.*s%c", n - 1, text, 'y');
        assert_true(raw.n == (size_t)n && formatted.n == (size_t)n);
        assert_memory_equal(raw.data, formatted.data, (size_t)n + 1);
        assert_true(raw.data[n - 1] == 'y' && raw.data[n] == '\0');
        /* Doubled from 256 on, and no further than needed. */
        assert_true(raw.room >= (size_t)n + 1 && (raw.room == 256 || raw.room / 2 < (size_t)n + 1));
        lt_out_clear(&raw);
        assert_int_equal(raw.n, 0);
        lt_out_free(&raw);
        lt_out_free(&formatted);
        assert_null(raw.data);
    }
}

/* Every kind of value, and its text. */
static void kinds_of_values(void **state) {
    json_t *tree = json_loads("{\"a\": [1, null, \"\\u00e9\"]}", 0, NULL), *word = json_string("w");
    lt_json_out o = {0};
    (void)state;
    lt_out_open(&o, '{');
    lt_out_key_value(&o, "tree", tree);
    lt_out_key_value(&o, "none", NULL);
    lt_out_key_value(&o, "word", word);
    lt_out_key_str(&o, "s", NULL);
    lt_out_key_str(&o, "t", "");
    lt_out_key_bool(&o, "yes", true);
    lt_out_key_bool(&o, "no", false);
    lt_out_key_real(&o, "inf", (double)INFINITY);
    lt_out_key_real(&o, "r", -0.125);
    lt_out_key_int(&o, "z", 0);
    lt_out_key_open(&o, "l", '[');
    lt_out_real(&o, 1e300);
    lt_out_bool(&o, true);
    lt_out_text(&o, "x");
    lt_out_text(&o, NULL);
    lt_out_value(&o, word);
    lt_out_shut(&o, ']');
    lt_out_shut(&o, '}');
    assert_false(o.failed);
    assert_string_equal(o.data,
                        "{\"tree\":{\"a\":[1,null,\"\xC3\xA9\"]},\"none\":null,\"word\":\"w\","
                        "\"s\":null,\"t\":\"\",\"yes\":true,\"no\":false,\"inf\":null,"
                        "\"r\":-0.125,\"z\":0,\"l\":[1e+300,true,\"x\",null,\"w\"]}");
    o.failed = true; /* After a failure nothing is written until it is cleared. */
    lt_out_int(&o, 1);
    assert_true(o.failed && o.data[o.n - 1] == '}');
    lt_out_clear(&o);
    lt_out_int(&o, -7);
    assert_string_equal(o.data, "-7");
    assert_false(o.failed);
    lt_out_free(&o);
    json_decref(tree);
    json_decref(word);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ints), cmocka_unit_test(strings),
                                       cmocka_unit_test(lengths),
                                       cmocka_unit_test(kinds_of_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
