/* Tokenizers from small files in memory: parts of tokenizer.json, other formats, streaming, and bad
 * input, which always gives one clear error. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "lateen/tokenizer.h"

#define TINY(extra, vocab, merges)                                                                 \
    "{\"added_tokens\": [{\"id\": 8, \"content\": \"<s>\", \"special\": true}" extra               \
    "], \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, "               \
    "\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": " vocab     \
    ", \"merges\": " merges "}}"

#define VOCAB                                                                                      \
    "{\"a\": 0, \"b\": 1, \"\\u0120\": 2, \"ab\": 3, \"\\u0120ab\": 4, \"\xC3\xA3\": 5, "          \
    "\"\xC4\xA3\": 6, \"\xC4\xA4\": 7}"
#define MERGES "[\"a b\", [\"\\u0120\", \"ab\"]]"

static lt_err open_text(lt_tokenizer **t, const char *json) {
    return lt_tokenizer_open_memory(t, json, strlen(json), "tiny.json", NULL);
}

static void expect(const lt_tokenizer *t, const char *text, unsigned flags, const uint32_t *want,
                   size_t n) {
    lt_tokenizer_scratch *s = NULL;
    lt_ids ids = {0};
    assert_int_equal(lt_tokenizer_scratch_open(&s, t), LT_OK);
    assert_int_equal(lt_tokenizer_encode(t, s, text, strlen(text), flags, &ids), LT_OK);
    assert_int_equal(ids.n, n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(ids.data[i], want[i]);
    }
    lt_ids_free(&ids);
    lt_tokenizer_scratch_close(s);
}

static void merges_and_special_tokens(void **state) {
    lt_tokenizer *t = NULL;
    (void)state;
    assert_int_equal(open_text(&t, TINY("", VOCAB, MERGES)), LT_OK);
    expect(t, "ab ab", 0, (uint32_t[]){3, 4}, 2);
    expect(t, "ba", 0, (uint32_t[]){1, 0}, 2);
    expect(t, "", 3, NULL, 0);
    expect(t, "ab<s>b", LT_ENCODE_PARSE_SPECIAL, (uint32_t[]){3, 8, 1}, 3);
    /* There are no pieces for < s >, so they vanish, as in the reference. */
    expect(t, "ab<s>b", 0, (uint32_t[]){3, 1}, 2);
    assert_int_equal(lt_tokenizer_find(t, "<s>", 3), 8);
    assert_int_equal(lt_tokenizer_describe(t).bos, 8);
    assert_true(lt_tokenizer_is_special(t, 8));
    lt_tokenizer_close(t);
}

/* The tokenizers package numbers added tokens after the vocabulary, whatever the file says, and
 * gives one the id of a piece with the same text. */
static void ids_of_added_tokens(void **state) {
    static const char more[] = ", {\"id\": 20, \"content\": \"q\"}, {\"id\": 30, \"content\": "
                               "\"ab\"}, {\"id\": 40, \"content\": \"r\"}";
    char json[1024];
    lt_tokenizer *t = NULL;
    (void)state;
    snprintf(json, sizeof json, TINY("%s", VOCAB, MERGES), more);
    assert_int_equal(open_text(&t, json), LT_OK);
    assert_int_equal(lt_tokenizer_find(t, "q", 1), 9);
    assert_int_equal(lt_tokenizer_find(t, "ab", 2), 3);
    assert_int_equal(lt_tokenizer_find(t, "r", 1), 10);
    assert_int_equal(lt_tokenizer_describe(t).n_ids, 11);
    lt_tokenizer_close(t);
}

/* Steps that each double a text: this ends in an error, before it uses all memory. */
static void texts_that_grow_without_end(void **state) {
    static const char head[] = "{\"added_tokens\":[],\"normalizer\":", middle[] = ",\"decoder\":",
                      step[] = "{\"type\":\"Replace\",\"pattern\":{"
                               "\"String\":\"a\"},\"content\":\"aa\"}",
                      tail[] = ",\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0,\"?\":1},"
                               "\"unk_token\":\"?\"}}";
    char steps[4096] = "", json[8192];
    lt_tokenizer *t = NULL;
    lt_tokenizer_scratch *s = NULL;
    lt_ids out = {0};
    (void)state;
    for (int i = 0; i < 32; i++) {
        strcat(strcat(steps, i > 0 ? "," : ""), step);
    }
    snprintf(json, sizeof json, "%s{\"type\":\"Sequence\",\"normalizers\":[%s]}%snull%s", head,
             steps, middle, tail);
    assert_int_equal(open_text(&t, json), LT_OK);
    assert_int_equal(lt_tokenizer_scratch_open(&s, t), LT_OK);
    assert_int_equal(lt_tokenizer_encode(t, s, "a", 1, LT_ENCODE_PLAIN, &out), LT_ERR_LIMIT);
    lt_ids_free(&out);
    lt_tokenizer_scratch_close(s);
    lt_tokenizer_close(t);
    /* The texts of all ids are made when the file is opened. */
    snprintf(json, sizeof json, "%snull%s{\"type\":\"Sequence\",\"decoders\":[%s]}%s", head, middle,
             steps, tail);
    assert_int_equal(open_text(&t, json), LT_ERR_LIMIT);
    assert_non_null(strstr(lt_error_message(), "the decoder makes more than"));
}

/* E3 81 82 is one character in three tokens (C3A3 is byte E3; U+0123 is byte 81, U+0124 byte
 * 82). */
static void streams_never_emit_half_a_character(void **state) {
    static const uint32_t ids[] = {0, 5, 6, 7, 1, 5, 0, 5};
    static const char *const parts[] = {"a",
                                        "",
                                        "",
                                        "\xE3\x81\x82",
                                        "b",
                                        "",
                                        "\xEF\xBF\xBD"
                                        "a",
                                        ""};
    lt_tokenizer *t = NULL;
    lt_tokenizer_stream *s = NULL;
    const char *text;
    char *all;
    size_t n;
    (void)state;
    assert_int_equal(open_text(&t, TINY("", VOCAB, MERGES)), LT_OK);
    assert_int_equal(lt_tokenizer_stream_open(&s, t, true), LT_OK);
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(lt_tokenizer_stream_put(s, ids[i], &text, &n), LT_OK);
        assert_string_equal(text, parts[i]);
    }
    assert_int_equal(lt_tokenizer_stream_finish(s, &text, &n), LT_OK);
    assert_string_equal(text, "\xEF\xBF\xBD");
    assert_int_equal(lt_tokenizer_stream_put(s, 10, &text, &n), LT_ERR_ARG);
    lt_tokenizer_stream_close(s);
    assert_int_equal(lt_tokenizer_decode(t, ids, 8, true, &all, &n), LT_OK);
    assert_string_equal(all, "a\xE3\x81\x82"
                             "b\xEF\xBF\xBD"
                             "a\xEF\xBF\xBD");
    free(all);
    lt_tokenizer_close(t);
}

static void bad_tokenizer_json_is_refused(void **state) {
    static const char *const cases[][2] = {
        {"{}", "model"},
        {"{\"model\": {\"type\": \"BPE\"}}", "vocabulary"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}}}", "merges"},
        {TINY("", VOCAB, "[\"a z\"]"), "'a' 'z'"},
        {TINY("", VOCAB, "[\"a  b\"]"), "merge 0"},
        {TINY("", VOCAB, "[[\"a\"]]"), "tiny.json"},
        {TINY("", VOCAB, "[\"b a\"]"), "lacks"},
        {TINY("", "{\"a\": 0, \"b\": 0}", "[]"), "duplicate id 0, of 'a' and 'b'"},
        {TINY("", "{\"a\": -1}", "[]"), "-1"},
        {TINY("", "{\"a\": 99999999999}", "[]"), "99999999999"},
        {TINY("", "{\"a\": 1.5}", "[]"), "whole"},
        {TINY("", "{}", "[]"), "empty"},
        {TINY(", {\"id\": 0, \"content\": \"q\"}", VOCAB, MERGES),
         "duplicate id 0, of 'a' and the added token 'q'"},
        {TINY(", {\"id\": 1}", VOCAB, MERGES), "added token 1"},
        {"{\"model\": {\"type\": \"Magic\", \"vocab\": {\"a\": 0}, \"merges\": []}}", "Magic"},
        {"{\"pre_tokenizer\": {\"type\": \"Magic\"}, \"model\": {\"vocab\": {\"a\": 0}, "
         "\"merges\": []}}",
         "Magic"},
        {"{\"normalizer\": {\"type\": \"Sequence\"}, \"model\": {\"vocab\": {\"a\": 0}, "
         "\"merges\": []}}",
         "Sequence"},
        {"{\"model\": {\"vocab\": {\"a\": 0", "ends at byte"},
        {"[1]", "not a tokenizer"},
        {"", "not a tokenizer"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_tokenizer *t = NULL;
        assert_int_not_equal(open_text(&t, cases[i][0]), LT_OK);
        assert_null(t);
        if (strstr(lt_error_message(), cases[i][1]) == NULL) {
            fail_msg("case %zu: %s", i, lt_error_message());
        }
    }
}

static void every_truncation_of_a_file_is_refused(void **state) {
    static const char json[] = TINY("", VOCAB, MERGES);
    (void)state;
    for (size_t n = 0; n + 1 < sizeof json - 1; n++) {
        lt_tokenizer *t = NULL;
        assert_int_not_equal(lt_tokenizer_open_memory(&t, json, n, "tiny.json", NULL), LT_OK);
        assert_null(t);
    }
}

static void bad_rank_files_are_refused(void **state) {
    static const char *const cases[] = {"YQ== 0\nYg==\n", "YQ== 0\nYQ== 1\n",   "Y!== 0\n",
                                        "YQ== x\n",       "YQ== 99999999999\n", "YQ== 0\nYg== 0\n",
                                        "YQ== 0\n" /* Most bytes are missing. */};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_tokenizer *t = NULL;
        assert_int_not_equal(
            lt_tokenizer_open_memory(&t, cases[i], strlen(cases[i]), "cl100k_base.tiktoken", NULL),
            LT_OK);
        assert_non_null(strstr(lt_error_message(), "cl100k_base.tiktoken"));
    }
}

/* The file of a known encoding that is cut at the end of a line is refused. With another name, or
 * with the pattern given, it is a vocabulary. */
static void a_rank_file_cut_at_a_line_is_refused(void **state) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const lt_tokenizer_options gpt2 = {.pattern = "gpt2"};
    lt_tokenizer *t = NULL;
    char text[256 * 10];
    size_t n = 0;
    (void)state;
    for (int i = 0; i < 256; i++) {
        n += (size_t)snprintf(text + n, sizeof text - n, "%c%c== %d\n", digits[i >> 2],
                              digits[(i & 3) << 4], i);
    }
    assert_int_equal(lt_tokenizer_open_memory(&t, text, n, "o200k_base.tiktoken", NULL),
                     LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), "cut short: 256 ranks, and o200k has 199998"));
    assert_int_equal(lt_tokenizer_open_memory(&t, text, n, "o200k_base.tiktoken", &gpt2), LT_OK);
    lt_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_and_special_tokens),
        cmocka_unit_test(a_rank_file_cut_at_a_line_is_refused),
        cmocka_unit_test(ids_of_added_tokens),
        cmocka_unit_test(texts_that_grow_without_end),
        cmocka_unit_test(streams_never_emit_half_a_character),
        cmocka_unit_test(bad_tokenizer_json_is_refused),
        cmocka_unit_test(every_truncation_of_a_file_is_refused),
        cmocka_unit_test(bad_rank_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
