/* Hexadecimal digits, percent-encoding and UTF-8. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/encoding.h"

static void hex(void **state) {
    static const char digits[] = "0123456789abcdef", upper[] = "0123456789ABCDEF";
    unsigned char bytes[256], back[256];
    char text[513];
    int n = 0;
    (void)state;
    for (int c = -128; c < 256; c++) {
        const char *low = c > 0 ? strchr(digits, c) : NULL, *high = c > 0 ? strchr(upper, c) : NULL;
        const int want = low != NULL    ? (int)(low - digits)
                         : high != NULL ? (int)(high - upper)
                                        : -1;
        assert_int_equal(lt_hex_digit(c), want);
        n += want >= 0;
    }
    assert_int_equal(n, 22);
    for (int i = 0; i < 256; i++) {
        bytes[i] = (unsigned char)i;
    }
    lt_hex_write(text, bytes, sizeof bytes);
    assert_memory_equal(text, "00010203", 8);
    assert_string_equal(text + 504, "fcfdfeff");
    lt_hex_read(back, text, sizeof back);
    assert_memory_equal(back, bytes, sizeof back);
    lt_hex_read(back, "aFfA", 2);
    assert_memory_equal(back, "\xaf\xfa", 2);
    assert_true(lt_hex_is(text, 512) && lt_hex_is("", 0));
    assert_false(lt_hex_is(text, 511) || lt_hex_is(text, 513) || lt_hex_is("aF", 2));
    assert_false(lt_hex_is("ag", 2));
}

static void percent(void **state) {
    static const struct {
        const char *text, *plain, *plus;
        size_t room;
        lt_percent_result result;
    } rows[] = {
        {"", "", "", 1, LT_PERCENT_STRICT},
        {"a+b%2Bc%20", "a+b+c ", "a b+c ", 7, LT_PERCENT_STRICT},
        {"a+b%2Bc%20", "a+b+c", "a b+c", 6, LT_PERCENT_CUT},
        {"%e6%97%A5", "日", "日", 4, LT_PERCENT_STRICT},
        {"%2541", "%41", "%41", 8, LT_PERCENT_STRICT},
        {"%", "%", "%", 8, LT_PERCENT_LITERAL},
        {"%4", "%4", "%4", 8, LT_PERCENT_LITERAL},
        {"%4g%41", "%4gA", "%4gA", 8, LT_PERCENT_LITERAL},
        {"%g4%%41", "%g4%A", "%g4%A", 8, LT_PERCENT_LITERAL},
        {"%0x41", "%0x41", "%0x41", 8, LT_PERCENT_LITERAL},
        {"%00%01", "%00\x01", "%00\x01", 8, LT_PERCENT_LITERAL},
        {"%zab", "%z", "%z", 3, LT_PERCENT_CUT},
        {"a", "", "", 1, LT_PERCENT_CUT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const size_t n = strlen(rows[i].text);
        for (int plus = 0; plus < 2; plus++) {
            const char *want = plus ? rows[i].plus : rows[i].plain;
            char out[16], own[16];
            assert_int_equal(lt_percent_decode(out, rows[i].room, rows[i].text, n, plus),
                             rows[i].result);
            assert_string_equal(out, want);
            (void)snprintf(own, sizeof own, "%s", rows[i].text); /* In place. */
            assert_int_equal(lt_percent_decode(own, rows[i].room, own, n, plus), rows[i].result);
            assert_string_equal(own, want);
        }
    }
    char out[8]; /* Digits after the end do not count. */
    assert_int_equal(lt_percent_decode(out, sizeof out, "%41", 2, false), LT_PERCENT_LITERAL);
    assert_string_equal(out, "%4");
}

static void utf8(void **state) {
    static const struct {
        uint32_t cp;
        const char *text;
    } rows[] = {{0x41, "A"},
                {0x7F, "\x7F"},
                {0x80, "\xC2\x80"},
                {0x7FF, "\xDF\xBF"},
                {0x800, "\xE0\xA0\x80"},
                {0xFFFF, "\xEF\xBF\xBF"},
                {0x10000, "\xF0\x90\x80\x80"},
                {0x10FFFF, "\xF4\x8F\xBF\xBF"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char out[4];
        const size_t n = lt_utf8_encode(rows[i].cp, out);
        assert_int_equal(n, strlen(rows[i].text));
        assert_memory_equal(out, rows[i].text, n);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(hex), cmocka_unit_test(percent),
                                       cmocka_unit_test(utf8)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
