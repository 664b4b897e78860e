/* The patterns of a tokenizer.json: their matches are those of Oniguruma, stored in
 * tests/golden/tokenizer/regex.jsonl (tools/diff_regex.py --golden); and the two dialects. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/unicode.h"

/* *out becomes the text with <> in the place of each match. */
static void replace(const lt_regex *r, lt_regex_scratch *s, const char *text, size_t n,
                    lt_text *out) {
    lt_regex_cursor at = {0};
    size_t last = 0, begin = 0, end = 0;
    bool found = true;
    out->n = 0;
    while (true) {
        assert_int_equal(lt_regex_next(r, s, text, n, &at, &found, &begin, &end), LT_OK);
        if (!found) {
            break;
        }
        assert_int_equal(lt_text_put(out, text + last, begin - last), LT_OK);
        assert_int_equal(lt_text_put(out, "<>", 2), LT_OK);
        last = end;
    }
    assert_int_equal(lt_text_put(out, text + last, n - last), LT_OK);
    assert_int_equal(lt_text_put(out, "", 1), LT_OK);
    out->n--;
}

static void check_line(const json_t *o, lt_regex_scratch *s) {
    const json_t *texts = json_object_get(o, "texts"), *want = json_object_get(o, "want");
    const char *pattern = json_string_value(json_object_get(o, "pattern"));
    const size_t n = json_string_length(json_object_get(o, "pattern"));
    lt_regex *r = NULL;
    lt_text out = {0};
    const lt_err err = lt_regex_open(&r, pattern, n, LT_REGEX_ONIGURUMA, "golden");
    if (json_is_null(want)) { /* We refuse it, and say so. */
        assert_int_not_equal(err, LT_OK);
        assert_non_null(strstr(lt_error_message(), "golden: pattern '"));
        return;
    }
    assert_int_equal(err, LT_OK);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i), *w = json_array_get(want, i);
        replace(r, s, json_string_value(text), json_string_length(text), &out);
        if (out.n != json_string_length(w) || memcmp(out.data, json_string_value(w), out.n) != 0) {
            fail_msg("%s on '%s': '%s', not '%s'", pattern, json_string_value(text), out.data,
                     json_string_value(w));
        }
    }
    lt_text_free(&out);
    lt_regex_close(r);
}

static void matches_of_oniguruma(void **state) {
    char *data = NULL;
    size_t n = 0, lines = 0;
    lt_regex_scratch *s = NULL;
    (void)state;
    assert_int_equal(lt_regex_scratch_open(&s), LT_OK);
    assert_int_equal(lt_file_read(&data, &n, "tests/golden/tokenizer/regex.jsonl", 1 << 24), LT_OK);
    for (const char *p = data; p < data + n; lines++) {
        const char *end = memchr(p, '\n', (size_t)(data + n - p));
        assert_non_null(end);
        json_t *o = json_loadb(p, (size_t)(end - p), JSON_ALLOW_NUL, NULL);
        assert_non_null(o);
        check_line(o, s);
        json_decref(o);
        p = end + 1;
    }
    assert_true(lines >= 150);
    free(data);
    lt_regex_scratch_close(s);
}

/* The same pattern in both dialects. The results are those of the packages tokenizers 0.23.3
 * (normalizers.Replace) and tiktoken 0.14.0 (which keeps only what matches). */
static void dialects(void **state) {
    static const struct {
        const char *pattern, *text, *oniguruma, *rust;
    } rows[] = {
        {"a{2}?", "aaa", "<>a<>", "<>a"},
        {"a{1,2}+", "aaa", "<>", "<><>"},
        {"b$", "b\nb", "<>\n<>", "b\n<>"},
        {"^b", "b\nb", "<>\n<>", "<>\nb"},
        {"a(?i)b|c", "aB C aC", "<> C <>", "<> <> a<>"},
        {"(?i)ss", "\xC3\x9F SS", "<> <>", "\xC3\x9F <>"},
        {"(?m)a.|^b", "a\nb", "<><>", "a\n<>"},
        {"\\w", "\xC2\xBD\xE2\x80\x8D", "<>\xE2\x80\x8D", "\xC2\xBD<>"},
        {"\\pL", "pLa", "<>a", "<><><>"},
    };
    lt_regex_scratch *s = NULL;
    lt_text out = {0};
    (void)state;
    assert_int_equal(lt_regex_scratch_open(&s), LT_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int d = 0; d < 2; d++) {
            lt_regex *r = NULL;
            assert_int_equal(lt_regex_open(&r, rows[i].pattern, strlen(rows[i].pattern),
                                           d == 0 ? LT_REGEX_ONIGURUMA : LT_REGEX_RUST, "row"),
                             LT_OK);
            replace(r, s, rows[i].text, strlen(rows[i].text), &out);
            assert_string_equal(out.data, d == 0 ? rows[i].oniguruma : rows[i].rust);
            lt_regex_close(r);
        }
    }
    lt_text_free(&out);
    lt_regex_scratch_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_of_oniguruma),
        cmocka_unit_test(dialects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
