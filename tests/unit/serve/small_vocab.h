/* small_vocab.h: a vocabulary of all single bytes and some longer tokens, and grammars over it, for
 * the tests of grammars. */
#ifndef LT_TESTS_SMALL_VOCAB_H
#define LT_TESTS_SMALL_VOCAB_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "serve/grammar/grammar.h"

/* All single bytes, and some longer tokens, as a .tiktoken file; the last id ends a text. */
static const char *const more[] = {
    "ab",    "abc",        "aa",
    "bb",    "\"a",        "\":",
    "\": ",  "{\"",        "\"}",
    "},",    "tr",         "true",
    "nul",   "null",       "12",
    "123",   "-1",         "0.",
    "ö",     "\xC3\xB6\"", "  ",
    "\n ",   "a\"",        "yes",
    "no",    "xyzzy",      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "2026-", "END"};
#define N_MORE (sizeof more / sizeof *more)
#define N_IDS  (256 + (int)N_MORE)

static lt_tokenizer *tokenizer;
static lt_grammar_vocab *vocab;

static void put_line(char **p, const unsigned char *s, size_t n, int rank) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        const uint32_t x = (uint32_t)s[i] << 16 | (i + 1 < n ? (uint32_t)s[i + 1] << 8 : 0) |
                           (i + 2 < n ? s[i + 2] : 0);
        *(*p)++ = digits[x >> 18];
        *(*p)++ = digits[x >> 12 & 63];
        *(*p)++ = i + 1 < n ? digits[x >> 6 & 63] : '=';
        *(*p)++ = i + 2 < n ? digits[x & 63] : '=';
    }
    *p += sprintf(*p, " %d\n", rank);
}

static int open_vocab(void **state) {
    char *text = malloc(1 << 16), *p = text;
    const int32_t end = N_IDS - 1;
    (void)state;
    for (int b = 0; b < 256; b++) {
        const unsigned char c = (unsigned char)b;
        put_line(&p, &c, 1, b);
    }
    for (size_t i = 0; i < N_MORE; i++) {
        put_line(&p, (const unsigned char *)more[i], strlen(more[i]), 256 + (int)i);
    }
    if (lt_tokenizer_open_memory(&tokenizer, text, (size_t)(p - text), "small.tiktoken",
                                 &(lt_tokenizer_options){.pattern = "gpt2"}) != LT_OK ||
        lt_grammar_vocab_open(&vocab, tokenizer, &end, 1) != LT_OK) {
        print_message("%s\n", lt_error_message());
        return 1;
    }
    free(text);
    return 0;
}

static int close_vocab(void **state) {
    (void)state;
    lt_grammar_vocab_close(vocab);
    lt_tokenizer_close(tokenizer);
    return 0;
}

static lt_grammar *open_grammar(lt_grammar_kind kind, const char *text) {
    lt_grammar *g = NULL;
    if (lt_grammar_open(&g, vocab, kind, text, strlen(text)) != LT_OK) {
        fail_msg("%s: %s", text, lt_error_message());
    }
    return g;
}

/* Feed bytes by their single-byte tokens. */
static bool feed(lt_grammar_state *s, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (lt_grammar_accept(s, (unsigned char)text[i]) != LT_OK) {
            return false;
        }
    }
    return true;
}

static bool accepts(const lt_grammar *g, const char *text) {
    lt_grammar_state *s = NULL;
    bool is;
    assert_int_equal(lt_grammar_state_open(&s, g), LT_OK);
    is = feed(s, text, strlen(text)) && lt_grammar_accepting(s);
    lt_grammar_state_close(s);
    return is;
}

static void expect(lt_grammar_kind kind, const char *text, const char *const *yes,
                   const char *const *no) {
    lt_grammar *g = open_grammar(kind, text);
    for (; *yes != NULL; yes++) {
        if (!accepts(g, *yes)) {
            fail_msg("%s does not accept %s", text, *yes);
        }
    }
    for (; *no != NULL; no++) {
        if (accepts(g, *no)) {
            fail_msg("%s accepts %s", text, *no);
        }
    }
    lt_grammar_close(g);
}
#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

#endif
