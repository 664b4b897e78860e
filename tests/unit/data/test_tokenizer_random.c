/* Small random tokenizer.json files with every part in many combinations: the ids, with and without
 * special tokens, and the decoded text must equal those of Hugging Face's package, stored in
 * tests/golden/tokenizer/random.jsonl (tools/diff_tokenizer_json.py --golden). */
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
#include "data/tokenizer/impl.h"

#define GOLDEN "tests/golden/tokenizer/"

/* want is null if the package fails; then we must fail, too. */
static void check_ids(const lt_tokenizer *t, lt_tokenizer_scratch *s, const json_t *text,
                      unsigned flags, const json_t *want, size_t line) {
    lt_ids ids = {0};
    const lt_err err = lt_tokenizer_encode(t, s, json_string_value(text), json_string_length(text),
                                           flags | LT_ENCODE_FIT, &ids);
    if (json_is_null(want)) {
        assert_int_not_equal(err, LT_OK);
        lt_ids_free(&ids);
        return;
    }
    assert_int_equal(err, LT_OK);
    if (ids.n != json_array_size(want)) {
        print_error("line %zu: %zu ids for '%s', not %zu\n", line, ids.n, json_string_value(text),
                    json_array_size(want));
    }
    assert_int_equal(ids.n, json_array_size(want));
    for (size_t i = 0; i < ids.n; i++) {
        assert_int_equal(ids.data[i], json_integer_value(json_array_get(want, i)));
    }
    lt_ids_free(&ids);
}

static void check_text(const lt_tokenizer *t, const json_t *row, bool skip_special,
                       const json_t *want) {
    uint32_t ids[4096];
    const size_t n = json_array_size(row);
    char *text = NULL;
    size_t bytes;
    if (json_is_null(want) || n > sizeof ids / sizeof *ids) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        ids[i] = (uint32_t)json_integer_value(json_array_get(row, i));
    }
    assert_int_equal(lt_tokenizer_decode(t, ids, n, skip_special, &text, &bytes), LT_OK);
    assert_int_equal(bytes, json_string_length(want));
    assert_memory_equal(text, json_string_value(want), bytes);
    free(text);
}

static void check_line(const json_t *o, size_t line) {
    const json_t *json = json_object_get(o, "json"), *texts = json_object_get(o, "texts");
    const json_t *rows = json_object_get(o, "rows"), *decoded = json_object_get(o, "decoded");
    lt_tokenizer *t = NULL;
    lt_tokenizer_scratch *s = NULL;
    assert_int_equal(lt_tokenizer_open_memory(&t, json_string_value(json), json_string_length(json),
                                              "random.json", NULL),
                     LT_OK);
    assert_int_equal(lt_tokenizer_scratch_open(&s, t), LT_OK);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        check_ids(t, s, json_array_get(texts, i), LT_ENCODE_DEFAULT,
                  json_array_get(json_object_get(o, "ids"), i), line);
        check_ids(t, s, json_array_get(texts, i), LT_ENCODE_PLAIN,
                  json_array_get(json_object_get(o, "plain"), i), line);
    }
    for (size_t i = 0; i < json_array_size(rows); i++) {
        for (size_t skip = 0; skip < 2; skip++) {
            check_text(t, json_array_get(rows, i), skip == 1,
                       json_array_get(json_array_get(decoded, skip), i));
        }
    }
    lt_tokenizer_scratch_close(s);
    lt_tokenizer_close(t);
}

/* One line of sentencepiece.jsonl: a model in base64. */
static void check_model(const json_t *o, size_t line) {
    const json_t *model = json_object_get(o, "model"), *texts = json_object_get(o, "texts");
    const json_t *rows = json_object_get(o, "rows");
    lt_tokenizer *t = NULL;
    lt_tokenizer_scratch *s = NULL;
    lt_text raw = {0};
    assert_int_equal(
        lt_base64_decode(json_string_value(model), json_string_length(model), &raw, "model"),
        LT_OK);
    /* Field 4, which is not the denormalizer's, is ignored whatever it contains. */
    assert_int_equal(lt_text_put(&raw, "\x22\x03\x12\x01z", 5), LT_OK);
    assert_int_equal(lt_tokenizer_open_memory(&t, raw.data, raw.n, "random.model", NULL), LT_OK);
    assert_int_equal(lt_tokenizer_scratch_open(&s, t), LT_OK);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        check_ids(t, s, json_array_get(texts, i), LT_ENCODE_PLAIN,
                  json_array_get(json_object_get(o, "ids"), i), line);
    }
    for (size_t i = 0; i < json_array_size(rows); i++) {
        check_text(t, json_array_get(rows, i), true,
                   json_array_get(json_object_get(o, "decoded"), i));
    }
    lt_text_free(&raw);
    lt_tokenizer_scratch_close(s);
    lt_tokenizer_close(t);
}

static void check_file(const char *path, size_t least) {
    char *data = NULL;
    size_t n = 0, line = 0;
    assert_int_equal(lt_file_read(&data, &n, path, 1 << 24), LT_OK);
    for (const char *p = data; p < data + n; line++) {
        const char *end = memchr(p, '\n', (size_t)(data + n - p));
        json_t *o;
        assert_non_null(end);
        o = json_loadb(p, (size_t)(end - p), JSON_ALLOW_NUL, NULL);
        assert_non_null(o);
        if (json_object_get(o, "model") != NULL) {
            check_model(o, line + 1);
        } else {
            check_line(o, line + 1);
        }
        json_decref(o);
        p = end + 1;
    }
    assert_true(line >= least);
    free(data);
}

static void every_part_of_tokenizer_json(void **state) {
    (void)state;
    check_file(GOLDEN "random.jsonl", 50);
}

/* Decoders in any sequence, ligatures before a Metaspace of first words, splits at empty matches:
 * each of these once gave another text or other ids. */
static void cases_once_wrong(void **state) {
    (void)state;
    check_file(GOLDEN "cases.jsonl", 40);
}

/* Models of all four types that Google's package trained (tools/diff_sentencepiece.py): their ids
 * and decoded texts. */
static void sentencepiece_models(void **state) {
    (void)state;
    check_file(GOLDEN "sentencepiece.jsonl", 16);
}

static lt_err read_number(double *out, const char *text) {
    lt_json_pull j = lt_json_pull_over(text, strlen(text), "number");
    const lt_err err = lt_json_pull_f64(&j, out);
    lt_json_pull_close(&j);
    return err;
}

static void numbers(void **state) {
    static const char *const bad[] = {"+1", ".5", "", "x", "1e", "--1", "1.2.3"};
    double x = 0.0;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(read_number(&x, bad[i]), LT_ERR_FORMAT);
    }
    assert_int_equal(read_number(&x, " -12.5e-1,"), LT_OK);
    assert_true(x == -1.25);
}

/* The charsmap of a model without normalization rules is empty. */
static void an_empty_charsmap_changes_nothing(void **state) {
    static const char json[] =
        "{\"added_tokens\":[],\"normalizer\":{\"type\":\"Precompiled\","
        "\"precompiled_charsmap\":\"\"},\"pre_tokenizer\":null,\"model\":{\"type\":\"BPE\","
        "\"vocab\":{\"a\":0},\"merges\":[]}}";
    lt_tokenizer *t = NULL;
    (void)state;
    assert_int_equal(lt_tokenizer_open_memory(&t, json, sizeof json - 1, "empty.json", NULL),
                     LT_OK);
    lt_tokenizer_close(t);
}

/* A vocabulary in which merged tokens form pairs of better rank than their own, so that the sweep
 * over one rank must stop early. The long word must be cut as its parts would be by the
 * definition: best rank first, leftmost first. */
static void long_words_of_an_odd_vocabulary(void **state) {
    static const char json[] =
        "{\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":null,\"model\":{\"type\":"
        "\"BPE\","
        "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"aba\":3,\"abab\":4,\"ba\":5,\"baab\":6},"
        "\"merges\":[\"ab a\",\"ab ab\",\"ba ab\",\"a b\",\"b a\"]}}";
    enum { N = 6000 };
    static char word[N];
    static uint32_t ids[N];
    static const uint32_t pairs[5][3] = {{2, 0, 3}, {2, 2, 4}, {5, 2, 6}, {0, 1, 2}, {1, 0, 5}};
    lt_tokenizer *t = NULL;
    lt_tokenizer_scratch *s = NULL;
    lt_ids got = {0};
    size_t n = N;
    uint32_t seed = 1;
    (void)state;
    for (size_t i = 0; i < N; i++) {
        seed = seed * 1664525u + 1013904223u;
        word[i] = (seed >> 24) % 2 == 0 ? 'a' : 'b';
        ids[i] = word[i] == 'b';
    }
    for (;;) {
        size_t at = n, best = 5;
        for (size_t i = 0; i + 1 < n; i++) {
            for (size_t k = 0; k < best; k++) {
                if (pairs[k][0] == ids[i] && pairs[k][1] == ids[i + 1]) {
                    best = k;
                    at = i;
                }
            }
        }
        if (at == n) {
            break;
        }
        ids[at] = pairs[best][2];
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
    assert_int_equal(lt_tokenizer_open_memory(&t, json, sizeof json - 1, "odd.json", NULL), LT_OK);
    assert_int_equal(lt_tokenizer_scratch_open(&s, t), LT_OK);
    assert_int_equal(lt_tokenizer_encode(t, s, word, N, LT_ENCODE_PLAIN, &got), LT_OK);
    assert_int_equal(got.n, n);
    assert_memory_equal(got.data, ids, n * sizeof *ids);
    lt_ids_free(&got);
    lt_tokenizer_scratch_close(s);
    lt_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_part_of_tokenizer_json),
        cmocka_unit_test(cases_once_wrong),
        cmocka_unit_test(sentencepiece_models),
        cmocka_unit_test(numbers),
        cmocka_unit_test(an_empty_charsmap_changes_nothing),
        cmocka_unit_test(long_words_of_an_odd_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
