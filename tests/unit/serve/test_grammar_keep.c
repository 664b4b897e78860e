/* The cache of grammars: an entry is found by its whole key; if there are too many or they are
 * too large together, the least recently used is dropped first; a grammar in use stays valid. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "serve/grammar/keep.h"
#include "unit/letters.h"

static lt_grammar_vocab *vocabulary;

static void must(lt_err err, const char *what) {
    if (err != LT_OK) {
        fail_msg("%s: %s", what, lt_error_message());
    }
}

static lt_grammar *make(const char *form) {
    lt_grammar *g = NULL;
    must(lt_grammar_open(&g, vocabulary, LT_GRAMMAR_REGEX, form, strlen(form)), form);
    return g;
}

/* Like a compiler: its own reference is released when its request is done. */
static void put(lt_grammar_keep *k, const char *form) {
    lt_grammar *g = make(form);
    lt_grammar_keep_put(k, form, strlen(form), g);
    lt_grammar_close(g);
}

static bool has(lt_grammar_keep *k, const char *form) {
    lt_grammar *g = lt_grammar_keep_find(k, form, strlen(form));
    lt_grammar_close(g);
    return g != NULL;
}

static int64_t kept_bytes(lt_grammar_keep *k) {
    lt_grammar_keep_stats s;
    lt_grammar_keep_get_stats(k, &s);
    return s.bytes;
}

static void the_longest_unused_goes(void **state) {
    lt_grammar_keep *k = NULL;
    lt_grammar_keep_stats s;
    int64_t three;
    (void)state;
    must(lt_grammar_keep_open(&k, SIZE_MAX), "keep");
    put(k, "[ab]{1}");
    put(k, "[ab]{2}");
    put(k, "[ab]{3}");
    three = kept_bytes(k);
    lt_grammar_keep_close(k);

    must(lt_grammar_keep_open(&k, (size_t)(three + three / 6)), "keep");
    put(k, "[ab]{1}");
    put(k, "[ab]{2}");
    put(k, "[ab]{3}");
    put(k, "[ab]{3}"); /* It is there. */
    assert_true(has(k, "[ab]{1}"));
    put(k, "[ab]{4}");
    assert_true(has(k, "[ab]{1}") && !has(k, "[ab]{2}") && has(k, "[ab]{3}") && has(k, "[ab]{4}"));
    assert_false(has(k, "[ab]{"));
    assert_true(kept_bytes(k) <= three + three / 6);
    lt_grammar_keep_get_stats(k, &s);
    assert_int_equal(s.n, 3);
    assert_int_equal(s.made, 5);
    assert_int_equal(s.found, 4);
    lt_grammar_keep_close(k);
}

/* The automata of grammars grow while texts are generated: a grammar that was small when it was
 * compiled may be too large later. */
static void growth_counts(void **state) {
    uint32_t bits[2];
    lt_grammar_keep *k = NULL;
    lt_grammar_state *at = NULL;
    lt_grammar *g = make("[a-z ]{1,400}");
    size_t small, large;
    (void)state;
    small = lt_grammar_bytes(g);
    must(lt_grammar_keep_open(&k, 4 * small), "keep");
    lt_grammar_keep_put(k, "long", 4, g);
    must(lt_grammar_state_open(&at, g), "state");
    for (int i = 0; i < 300; i++) {
        must(lt_grammar_mask(at, bits, 64), "mask");
        must(lt_grammar_accept(at, 30), "accept");
    }
    large = lt_grammar_bytes(g);
    assert_true(large > 4 * small);
    put(k, "[ab]{2}");
    assert_false(has(k, "long"));
    must(lt_grammar_mask(at, bits, 64), "it is still held");
    lt_grammar_state_close(at);
    lt_grammar_close(g);
    lt_grammar_keep_close(k);
}

static void the_cache_is_bounded(void **state) {
    lt_grammar_keep *k = NULL;
    lt_grammar_keep_stats s;
    char key[16];
    lt_grammar *g = make("[ab]");
    (void)state;
    must(lt_grammar_keep_open(&k, SIZE_MAX), "keep");
    for (int i = 0; i < 300; i++) {
        const int n = snprintf(key, sizeof key, "%d", i);
        lt_grammar_keep_put(k, key, (size_t)n, g);
    }
    lt_grammar_keep_get_stats(k, &s);
    assert_int_equal(s.n, 256);
    assert_false(has(k, "43"));
    assert_true(has(k, "44") && has(k, "299"));
    lt_grammar_keep_close(k);
    must(lt_grammar_keep_open(&k, 0), "keep");
    lt_grammar_keep_put(k, "x", 1, g);
    assert_false(has(k, "x"));
    lt_grammar_keep_close(k);
    lt_grammar_close(g);
}

static int open_vocabulary(void **state) {
    lt_tokenizer *t = letter_tokenizer(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 .");
    (void)state;
    must(lt_grammar_vocab_open(&vocabulary, t, NULL, 0), "vocabulary");
    lt_tokenizer_close(t);
    return 0;
}

static int close_vocabulary(void **state) {
    (void)state;
    lt_grammar_vocab_close(vocabulary);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_unused_goes),
        cmocka_unit_test(growth_counts),
        cmocka_unit_test(the_cache_is_bounded),
    };
    return cmocka_run_group_tests(tests, open_vocabulary, close_vocabulary);
}
