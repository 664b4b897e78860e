/* letters.h: for tests, a tokenizer whose ids are the letters of a string: id i is letters[i].
 * Include it after cmocka.h. */
#ifndef TESTS_LETTERS_H
#define TESTS_LETTERS_H

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "lateen/tokenizer.h"

static inline lt_tokenizer *letter_tokenizer(const char *letters) {
    json_t *vocab = json_object();
    lt_tokenizer *t = NULL;
    for (int i = 0; letters[i] != '\0'; i++) {
        const char piece[2] = {letters[i], '\0'};
        json_object_set_new(vocab, piece, json_integer(i));
    }
    json_t *root = json_pack("{s:s, s:[], s:n, s:n, s:n, s:{s:s}, s:{s:s, s:o, s:[]}}", "version",
                             "1.0", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                             "decoder", "type", "Fuse", "model", "type", "BPE", "vocab", vocab,
                             "merges");
    char *text = json_dumps(root, 0);
    if (lt_tokenizer_open_memory(&t, text, strlen(text), "tokenizer.json", NULL) != LT_OK) {
        fail_msg("tokenizer: %s", lt_error_message());
    }
    free(text);
    json_decref(root);
    return t;
}

#endif
