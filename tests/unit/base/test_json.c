/* Members of JSON objects by type, whole numbers in any spelling, and numbers beyond 64 bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/json.h"

static json_t *parse(const char *text) {
    json_t *root = NULL;
    if (lt_json_parse(&root, text, strlen(text), "t") != LT_OK) {
        fail_msg("%s: %s", text, lt_error_message());
    }
    return root;
}

static void members(void **state) {
    json_t *o = parse(
        "{\"i\": 7, \"whole\": 8192.0, \"e\": 1e4, \"r\": 2.5, \"b\": true, \"f\": false, "
        "\"s\": \"text\", \"n\": null, \"low\": -4611686018427387904.0, "
        "\"high\": 4611686018427387904.0, \"over\": 1e19, \"under\": -1e19}");
    int64_t i = -1;
    double d = -1.0;
    bool b = false;
    const char *s = "kept";
    (void)state;
    assert_int_equal(lt_json_i64(o, "i", &i, false, "t"), LT_OK);
    assert_int_equal(i, 7);
    assert_int_equal(lt_json_i64(o, "whole", &i, false, "t"), LT_OK);
    assert_int_equal(i, 8192);
    assert_int_equal(lt_json_i64(o, "e", &i, false, "t"), LT_OK);
    assert_int_equal(i, 10000);
    assert_int_equal(lt_json_i64(o, "low", &i, false, "t"), LT_OK);
    assert_int_equal(i, INT64_C(-4611686018427387904));
    assert_int_equal(lt_json_i64(o, "high", &i, false, "t"), LT_OK);
    assert_int_equal(i, INT64_C(4611686018427387904));
    assert_int_equal(lt_json_i64(o, "r", &i, false, "t"), LT_ERR_FORMAT);
    assert_string_equal(lt_error_message(), "t: 'r' is not a whole number");
    assert_int_equal(lt_json_i64(o, "over", &i, false, "t"), LT_ERR_FORMAT);
    assert_int_equal(lt_json_i64(o, "under", &i, false, "t"), LT_ERR_FORMAT);
    assert_int_equal(lt_json_i64(o, "s", &i, true, "t"), LT_ERR_FORMAT);
    assert_int_equal(lt_json_f64(o, "r", &d, false, "t"), LT_OK);
    assert_true(d == 2.5);
    assert_int_equal(lt_json_f64(o, "i", &d, false, "t"), LT_OK);
    assert_true(d == 7.0);
    assert_int_equal(lt_json_f64(o, "b", &d, false, "t"), LT_ERR_FORMAT);
    assert_string_equal(lt_error_message(), "t: 'b' is not a number");
    assert_int_equal(lt_json_bool(o, "b", &b, false, "t"), LT_OK);
    assert_true(b);
    assert_int_equal(lt_json_bool(o, "f", &b, false, "t"), LT_OK);
    assert_false(b);
    assert_int_equal(lt_json_bool(o, "i", &b, false, "t"), LT_ERR_FORMAT);
    assert_string_equal(lt_error_message(), "t: 'i' is not true or false");
    assert_int_equal(lt_json_str(o, "s", &s, false, "t"), LT_OK);
    assert_string_equal(s, "text");
    assert_int_equal(lt_json_str(o, "i", &s, false, "t"), LT_ERR_FORMAT);
    assert_string_equal(lt_error_message(), "t: 'i' is not a string");
    json_decref(o);
}

/* Missing and null members: an error if the member is required, else the old value stays. */
static void absent(void **state) {
    static const char *const keys[] = {"n", "none"};
    json_t *o = parse("{\"n\": null}");
    (void)state;
    for (int k = 0; k < 2; k++) {
        int64_t i = 5;
        double d = 5.0;
        bool b = true;
        const char *s = "kept";
        assert_int_equal(lt_json_i64(o, keys[k], &i, true, "t"), LT_OK);
        assert_int_equal(lt_json_f64(o, keys[k], &d, true, "t"), LT_OK);
        assert_int_equal(lt_json_bool(o, keys[k], &b, true, "t"), LT_OK);
        assert_int_equal(lt_json_str(o, keys[k], &s, true, "t"), LT_OK);
        assert_true(i == 5 && d == 5.0 && b && strcmp(s, "kept") == 0);
        assert_int_equal(lt_json_i64(o, keys[k], &i, false, "t"), LT_ERR_NOT_FOUND);
        assert_int_equal(lt_json_f64(o, keys[k], &d, false, "t"), LT_ERR_NOT_FOUND);
        assert_int_equal(lt_json_bool(o, keys[k], &b, false, "t"), LT_ERR_NOT_FOUND);
        assert_int_equal(lt_json_str(o, keys[k], &s, false, "what"), LT_ERR_NOT_FOUND);
        assert_non_null(strstr(lt_error_message(), keys[k]));
        assert_memory_equal(lt_error_message(), "what: key '", 11);
    }
    json_decref(o);
}

static double number(json_t *list, size_t i) {
    return json_number_value(json_array_get(list, i));
}

/* Whole numbers of 19 digits and more become floats if 64 bits cannot hold them; the text of
 * strings stays unchanged, and so do numbers that were not whole. */
static void beyond_64_bits(void **state) {
    json_t *a = parse("[12345678901234567890123, 1, 9223372036854775808, -9223372036854775809, "
                      "9223372036854775807, 0.1234567890123456789012, 1e3, "
                      "12345678901234567890e-19, 1.5e-12345678901234567890, "
                      "\"12345678901234567890\", \"a\\\"12345678901234567890\\\\\", "
                      "12345678901234567890.5]");
    (void)state;
    assert_int_equal(json_array_size(a), 12);
    assert_true(number(a, 0) == 12345678901234567890123.0);
    assert_int_equal(json_integer_value(json_array_get(a, 1)), 1);
    assert_true(number(a, 2) == 9223372036854775808.0);
    assert_true(number(a, 3) == -9223372036854775808.0);
    assert_true(number(a, 4) == 9223372036854775807.0);
    assert_true(number(a, 5) == 0.1234567890123456789012);
    assert_true(number(a, 6) == 1000.0);
    assert_true(number(a, 7) > 1.2345 && number(a, 7) < 1.2346);
    assert_true(number(a, 8) == 0.0);
    assert_string_equal(json_string_value(json_array_get(a, 9)), "12345678901234567890");
    assert_string_equal(json_string_value(json_array_get(a, 10)), "a\"12345678901234567890\\");
    assert_true(number(a, 11) == 12345678901234567890.5);
    json_decref(a);
    a = parse("[99999999999999999999]");
    assert_true(number(a, 0) == 99999999999999999999.0);
    json_decref(a);
    a = parse("{\"a\": 1234567890123456789}"); /* 19 digits that fit stay whole. */
    assert_true(json_is_integer(json_object_get(a, "a")));
    json_decref(a);
}

/* Exact loading keeps every digit of integers beyond 64 bits, and dumping writes them again; the
 * texts are those of Python's json.dumps(json.loads(x), separators=(",", ":")). */
static void keeps_digits(void **state) {
    static const char text[] =
        "{\"u64\":18446744073709551615,\"low\":-9223372036854775808,"
        "\"lower\":-9223372036854775809,\"top\":9223372036854775807,"
        "\"above\":9223372036854775808,\"id\":[123456789012345678901234567890,1234567890123456789],"
        "\"text\":\"18446744073709551615\",\"real\":18446744073709551615.5,"
        "\"18446744073709551615\":0}";
    json_t *root = lt_json_loadb_exact(text, strlen(text), 0, NULL);
    char *again;
    (void)state;
    assert_non_null(root);
    assert_string_equal(lt_json_long(json_object_get(root, "u64")), "18446744073709551615");
    assert_string_equal(lt_json_long(json_object_get(root, "lower")), "-9223372036854775809");
    assert_non_null(lt_json_long(json_object_get(root, "above")));
    assert_null(lt_json_long(json_object_get(root, "text")));
    assert_null(lt_json_long(json_object_get(root, "real")));
    assert_true(json_is_integer(json_object_get(root, "low")));
    assert_true(json_is_integer(json_object_get(root, "top")));
    assert_true(json_is_integer(json_array_get(json_object_get(root, "id"), 1)));
    json_object_set_new(root, "real", json_null());
    again = lt_json_dumps_exact(root, JSON_COMPACT | JSON_PRESERVE_ORDER);
    assert_string_equal(again,
                        "{\"u64\":18446744073709551615,\"low\":-9223372036854775808,"
                        "\"lower\":-9223372036854775809,\"top\":9223372036854775807,"
                        "\"above\":9223372036854775808,\"id\":[123456789012345678901234567890,"
                        "1234567890123456789],\"text\":\"18446744073709551615\",\"real\":null,"
                        "\"18446744073709551615\":0}");
    free(again);
    json_decref(root);
    /* What only looks like a kept integer stays a string: few digits, more text after the digits,
     * a key. */
    root = json_pack("{s:s, s:s, s:i}", "a", LT_JSON_LONG "12", "b",
                     LT_JSON_LONG "18446744073709551615x", LT_JSON_LONG "18446744073709551615", 1);
    again = lt_json_dumps_exact(root, JSON_COMPACT | JSON_PRESERVE_ORDER);
    assert_string_equal(again,
                        "{\"a\":\"" LT_JSON_LONG "12\",\"b\":\"" LT_JSON_LONG
                        "18446744073709551615x\",\"" LT_JSON_LONG "18446744073709551615\":1}");
    free(again);
    json_decref(root);
}

/* A number that ends the text, and digits after the end of the text. */
static void ends_where_the_text_ends(void **state) {
    static const char text[] = "1234567890123456789012345";
    json_t *root = lt_json_loadb(text, 20, JSON_DECODE_ANY, NULL);
    (void)state;
    assert_true(json_is_real(root) && json_real_value(root) == 12345678901234567890.0);
    json_decref(root);
}

static void refused(const char *text, const char *says) {
    json_t *root = NULL;
    assert_int_equal(lt_json_parse(&root, text, strlen(text), "f.json"), LT_ERR_FORMAT);
    if (strstr(lt_error_message(), says) == NULL) {
        fail_msg("%s: '%s', not '%s'", text, lt_error_message(), says);
    }
    assert_null(root);
}

static void broken(void **state) {
    json_error_t why;
    json_t *root;
    (void)state;
    refused("{\n \"a\": 1,\n \"a\": 2}", "f.json:3:");
    refused("[1, 2", "f.json:1:");
    refused("[123456789012345678901, }", "f.json:1:");
    refused("", "f.json:1:0:");
    assert_int_equal(lt_json_load(&root, "no-such-file.json", 100), LT_ERR_NOT_FOUND);
    assert_int_equal(lt_json_load(&root, "VERSION", 1), LT_ERR_LIMIT);
    assert_null(lt_json_loadb("[", 1, 0, &why));
    assert_int_equal(why.line, 1);
    assert_null(lt_json_loadb("[", 1, 0, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(members),
                                       cmocka_unit_test(absent),
                                       cmocka_unit_test(beyond_64_bits),
                                       cmocka_unit_test(keeps_digits),
                                       cmocka_unit_test(ends_where_the_text_ends),
                                       cmocka_unit_test(broken)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
