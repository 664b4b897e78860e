/* Grammars of other programs: what Lark itself accepts and refuses (tests/golden/lark,
 * tools/make_lark.py), what llama.cpp does (tests/golden/serve/gbnf.json, tools/make_gbnf.py), and
 * the messages for grammars of Lark that are not supported. */
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
#include "serve/grammar/grammar.h"
#include "serve/grammar/ast.h"

static lt_tokenizer *tokenizer;
static lt_grammar_vocab *vocab;

/* One token per byte. */
static int open_vocab(void **state) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char text[256 * 12], *p = text;
    (void)state;
    for (int b = 0; b < 256; b++) {
        p += sprintf(p, "%c%c== %d\n", digits[b >> 2], digits[(b & 3) << 4], b);
    }
    return lt_tokenizer_open_memory(&tokenizer, text, (size_t)(p - text), "bytes.tiktoken",
                                    &(lt_tokenizer_options){.pattern = "gpt2"}) != LT_OK ||
           lt_grammar_vocab_open(&vocab, tokenizer, NULL, 0) != LT_OK;
}

static int close_vocab(void **state) {
    (void)state;
    lt_grammar_vocab_close(vocab);
    lt_tokenizer_close(tokenizer);
    return 0;
}

static bool accepts(const lt_grammar *g, const char *text, size_t n) {
    lt_grammar_state *s = NULL;
    bool is = true;
    assert_int_equal(lt_grammar_state_open(&s, g), LT_OK);
    for (size_t i = 0; is && i < n; i++) {
        is = lt_grammar_accept(s, (unsigned char)text[i]) == LT_OK;
    }
    is = is && lt_grammar_accepting(s);
    lt_grammar_state_close(s);
    return is;
}

static int check(const lt_grammar *g, const json_t *texts, bool want) {
    size_t i;
    json_t *text;
    int wrong = 0;
    json_array_foreach(texts, i, text) {
        if (accepts(g, json_string_value(text), json_string_length(text)) != want) {
            print_message("%s: '%s'\n", want ? "not accepted" : "accepted",
                          json_string_value(text));
            wrong++;
        }
    }
    return wrong;
}

static void as_told(const char *path, size_t at_least, bool lark) {
    json_t *cases = json_load_file(path, 0, NULL), *one;
    size_t i;
    int wrong = 0;
    assert_true(json_array_size(cases) >= at_least);
    json_array_foreach(cases, i, one) {
        const char *text = json_string_value(json_object_get(one, "grammar"));
        lt_grammar *g = NULL;
        assert_int_equal(lt_glark_is(text, strlen(text)), lark);
        if (lt_grammar_open(&g, vocab, LT_GRAMMAR_GBNF, text, strlen(text)) != LT_OK) {
            fail_msg("%s: %s", text, lt_error_message());
        }
        wrong += check(g, json_object_get(one, "accept"), true) +
                 check(g, json_object_get(one, "refuse"), false);
        lt_grammar_close(g);
    }
    assert_int_equal(wrong, 0);
    json_decref(cases);
}

static void as_lark_does(void **state) {
    (void)state;
    as_told("tests/golden/lark/cases.json", 6, true);
}

static void as_llama_cpp_does(void **state) {
    (void)state;
    as_told("tests/golden/serve/gbnf.json", 100, false);
}

/* Which notation a grammar is in, and what is wrong with it. */
static void other_notations(void **state) {
    static const char *const gbnf[] = {"root ::= \"a\"", "# start: x\nroot ::= x\nx ::= \"a: b\"",
                                       "my-rule ::= \"a\"\nroot ::= my-rule", ""};
    static const struct {
        const char *text;
        lt_err err;
        const char *says;
    } rows[] = {{"begin: \"a\"", LT_ERR_FORMAT, "'start'"},
                {"start: a", LT_ERR_FORMAT, "'a'"},
                {"start: \"a", LT_ERR_FORMAT, "Lark grammar:1: a string"},
                {"start: /a", LT_ERR_FORMAT, "regular expression that is not closed"},
                {"start: (\"a\"", LT_ERR_FORMAT, "group"},
                {"start: \"a\")", LT_ERR_FORMAT, "without its beginning"},
                {"start: \"a\"\nstart: \"b\"", LT_ERR_FORMAT, "twice"},
                {"start: A\nA: b\nb: \"x\"", LT_ERR_FORMAT, "Lark grammar:2: a terminal"},
                {"start: \"a\"~3..1", LT_ERR_FORMAT, "repetition"},
                {"start: \"b\"..\"a\"", LT_ERR_FORMAT, "range"},
                {"start: /a/i", LT_ERR_UNSUPPORTED, "flag"},
                {"start: /a(?=b)/", LT_ERR_UNSUPPORTED, "look"},
                {"start: pair{\"a\"}", LT_ERR_UNSUPPORTED, "template"},
                {"%import common.NOTHING\nstart: NOTHING", LT_ERR_UNSUPPORTED, "import"},
                {"%import other.WS\nstart: WS", LT_ERR_UNSUPPORTED, "import"},
                {"%declare A\nstart: A", LT_ERR_UNSUPPORTED, "directive"},
                {"start: a\na: b \"x\" | \"y\"\nb: a", LT_ERR_UNSUPPORTED, "left recursion"},
                {"start: start \"x\"", LT_ERR_FORMAT, "text"}};
    lt_grammar *g = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof gbnf / sizeof *gbnf; i++) {
        assert_false(lt_glark_is(gbnf[i], strlen(gbnf[i])));
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const lt_err err = lt_grammar_open(&g, vocab, LT_GRAMMAR_GBNF, rows[i].text,
                                           strlen(rows[i].text));
        if (err != rows[i].err || strstr(lt_error_message(), rows[i].says) == NULL) {
            fail_msg("%s: %d, %s", rows[i].text, (int)err, lt_error_message());
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_lark_does),
                                       cmocka_unit_test(as_llama_cpp_does),
                                       cmocka_unit_test(other_notations)};
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
