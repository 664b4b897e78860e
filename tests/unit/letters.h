/* letters.h: for tests, a tokenizer whose ids are the letters of a string: id i is letters[i].
 * Special tokens have the ids behind them; if <s> is the first one, it begins texts. Include it
 * after cmocka.h. */
#ifndef TESTS_LETTERS_H
#define TESTS_LETTERS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "lateen/tokenizer.h"

/* specials: NULL at the end. */
static inline lt_tokenizer *letter_tokenizer_with(const char *letters,
                                                  const char *const *specials) {
    const int n = (int)strlen(letters);
    const bool begins = specials[0] != NULL && strcmp(specials[0], "<s>") == 0;
    json_t *vocab = json_object(), *added = json_array(), *post = json_null();
    lt_tokenizer *t = NULL;
    for (int i = 0; i < n; i++) {
        const char piece[2] = {letters[i], '\0'};
        json_object_set_new(vocab, piece, json_integer(i));
    }
    for (int i = 0; specials[i] != NULL; i++) {
        json_array_append_new(added, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", n + i,
                                               "content", specials[i], "single_word", 0, "lstrip",
                                               0, "rstrip", 0, "normalized", 0, "special", 1));
    }
    if (begins) {
        post = json_pack("{s:s, s:[{s:{s:s, s:i}}, {s:{s:s, s:i}}], s:[{s:{s:s, s:i}}, {s:{s:s, "
                         "s:i}}], s:{s:{s:s, s:[i], s:[s]}}}",
                         "type", "TemplateProcessing", "single", "SpecialToken", "id", "<s>",
                         "type_id", 0, "Sequence", "id", "A", "type_id", 0, "pair", "Sequence",
                         "id", "A", "type_id", 0, "Sequence", "id", "B", "type_id", 1,
                         "special_tokens", "<s>", "id", "<s>", "ids", n, "tokens", "<s>");
    }
    json_t *root = json_pack("{s:s, s:o, s:n, s:n, s:o, s:{s:s}, s:{s:s, s:o, s:[]}}", "version",
                             "1.0", "added_tokens", added, "normalizer", "pre_tokenizer",
                             "post_processor", post, "decoder", "type", "Fuse", "model", "type",
                             "BPE", "vocab", vocab, "merges");
    char *text = json_dumps(root, 0);
    if (text == NULL ||
        lt_tokenizer_open_memory(&t, text, strlen(text), "tokenizer.json", NULL) != LT_OK) {
        fail_msg("tokenizer: %s", lt_error_message());
    }
    free(text);
    json_decref(root);
    return t;
}

static const char *const letters_begin[] = {"<s>", "<x>", NULL};
static const char *const letters_alone[] = {NULL};

static inline lt_tokenizer *letter_tokenizer_that(const char *letters, bool begins) {
    return letter_tokenizer_with(letters, begins ? letters_begin : letters_alone);
}

static inline lt_tokenizer *letter_tokenizer(const char *letters) {
    return letter_tokenizer_with(letters, letters_alone);
}

#endif
