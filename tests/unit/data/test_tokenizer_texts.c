/* What single ids add to a text, for each decoder of a tokenizer.json and for SentencePiece's
 * rules. The expected texts are what the tokenizers package decodes for [first, id] behind what it
 * decodes for [first]; in a longer text, also for an end-of-word suffix. */
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

#define MARK "\xE2\x96\x81"

static lt_tokenizer *open_json(const char *decoder, const char *vocab) {
    char text[2048];
    lt_tokenizer *t = NULL;
    snprintf(text, sizeof text,
             "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": ["
             "{\"id\": 0, \"content\": \"<s>\", \"single_word\": false, \"lstrip\": false, "
             "\"rstrip\": false, \"normalized\": false, \"special\": true}], "
             "\"normalizer\": null, \"pre_tokenizer\": null, \"post_processor\": null, "
             "\"decoder\": %s, \"model\": {\"type\": \"BPE\", \"dropout\": null, "
             "\"unk_token\": null, \"continuing_subword_prefix\": null, "
             "\"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, "
             "\"vocab\": {\"<s>\": 0, %s}, \"merges\": []}}",
             decoder, vocab);
    if (lt_tokenizer_open_memory(&t, text, strlen(text), "tokenizer.json", NULL) != LT_OK) {
        fail_msg("%s: %s", decoder, lt_error_message());
    }
    return t;
}

static void expect(const lt_tokenizer *t, const char *what, uint32_t id, const char *want) {
    size_t n = 0;
    const char *text = lt_tokenizer_text(t, id, &n);
    if (text == NULL || n != strlen(want) || memcmp(text, want, n) != 0) {
        fail_msg("%s: id %u is \"%.*s\", not \"%s\"", what, id, (int)n, text, want);
    }
}

static void decoders(void **state) {
    static const struct {
        const char *decoder, *vocab, *want[4]; /* Of ids 1, 2, .. */
    } rows[] = {{"{\"type\": \"Metaspace\", \"replacement\": \"" MARK
                 "\", \"prepend_scheme\": \"always\", "
                 "\"split\": true}",
                 "\"" MARK "cat\": 1, \"s\": 2, \"" MARK MARK "\": 3",
                 {" cat", "s", "  "}},
                {"{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": "
                 "{\"String\": \"" MARK "\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, "
                 "{\"type\": \"Fuse\"}, {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, "
                 "\"stop\": 0}]}",
                 "\"" MARK "cat\": 1, \"<0x0A>\": 2, \"a" MARK "b\": 3",
                 {" cat", "\n", "a b"}},
                {"{\"type\": \"WordPiece\", \"prefix\": \"##\", \"cleanup\": false}",
                 "\"cat\": 1, \"##s\": 2, \",\": 3",
                 {" cat", "s", " ,"}},
                {"{\"type\": \"BPEDecoder\", \"suffix\": \"</w>\"}",
                 "\"cat</w>\": 1, \"ca\": 2",
                 {"cat ", "ca"}},
                {"{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
                 "\"use_regex\": true}",
                 "\"\xC4\xA0"
                 "cat\": 1, \"s\": 2",
                 {" cat", "s"}},
                {"null", "\"cat\": 1, \"s\": 2", {" cat", " s"}}};
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        lt_tokenizer *t = open_json(rows[r].decoder, rows[r].vocab);
        size_t n;
        for (uint32_t i = 0; i < 4 && rows[r].want[i] != NULL; i++) {
            expect(t, rows[r].decoder, i + 1, rows[r].want[i]);
        }
        expect(t, rows[r].decoder, 0, "<s>"); /* A special token is its name. */
        assert_null(lt_tokenizer_text(t, 99, &n));
        lt_tokenizer_close(t);
    }
}

/* In the middle of a text, the texts of ids follow one another. */
static void add_up(const lt_tokenizer *t, const uint32_t *ids, size_t n) {
    char *whole = NULL, sum[4096];
    size_t bytes = 0, at = 0, first = 0;
    assert_int_equal(lt_tokenizer_decode(t, ids, n, false, &whole, &bytes), LT_OK);
    for (size_t i = 1; i < n; i++) {
        size_t more = 0;
        const char *text = lt_tokenizer_text(t, ids[i], &more);
        assert_non_null(text);
        assert_true(at + more < sizeof sum);
        memcpy(sum + at, text, more);
        at += more;
    }
    assert_true(bytes >= at);
    first = bytes - at;
    if (memcmp(whole + first, sum, at) != 0) {
        fail_msg("\"%s\" does not end with \"%.*s\"", whole, (int)at, sum);
    }
    free(whole);
}

static void sentencepiece(void **state) {
    static const char text[] = "Lily said, \"Look!\"\n\xC3\xA9t\xC3\xA9 \xE5\xA4\xA9 two  spaces";
    lt_tokenizer *t = NULL;
    lt_tokenizer_scratch *s = NULL;
    lt_ids ids = {0};
    (void)state;
    assert_int_equal(lt_tokenizer_open(&t, "tests/golden/stories260k/tok512.bin", NULL), LT_OK);
    /* As llama2.c's tokenizer.bin has them. */
    expect(t, "tok512", 383, " there");
    expect(t, "tok512", 294, "at");
    expect(t, "tok512", 13, "\n");
    expect(t, "tok512", 410, " ");
    assert_int_equal(lt_tokenizer_scratch_open(&s, t), LT_OK);
    assert_int_equal(lt_tokenizer_encode(t, s, text, strlen(text), 0, &ids), LT_OK);
    add_up(t, ids.data, ids.n);
    lt_ids_free(&ids);
    lt_tokenizer_scratch_close(s);
    lt_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(decoders), cmocka_unit_test(sentencepiece)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
