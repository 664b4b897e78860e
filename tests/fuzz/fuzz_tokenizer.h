/* fuzz_tokenizer.h: open a tokenizer from bytes; if it opens, put hostile text through it. */
#ifndef FUZZ_TOKENIZER_H
#define FUZZ_TOKENIZER_H

#include <stdlib.h>

#include "lateen/tokenizer.h"

static void fuzz_tokenizer(const uint8_t *data, size_t size, const char *name) {
    static const char text[] = "Hello  w\xC3\xB6rld 123\n\n <s>\xE4\xB8\xAD\xFF\xE2\x96\x81 it's "
                               "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                               "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                               "\xF0\x9F\x98\x80\xCC\x81 <|endoftext|>";
    lt_tokenizer *t = NULL;
    lt_tokenizer_scratch *s = NULL;
    lt_ids ids = {0};
    char *back = NULL;
    size_t n;
    if (lt_tokenizer_open_memory(&t, data, size, name, NULL) != LT_OK) {
        return;
    }
    if (lt_tokenizer_scratch_open(&s, t) == LT_OK) {
        for (unsigned flags = 0; flags < 4; flags += 3) {
            if (lt_tokenizer_encode(t, s, text, sizeof text - 1, flags, &ids) != LT_OK) {
                break;
            }
        }
        if (lt_tokenizer_decode(t, ids.data, ids.n, false, &back, &n) == LT_OK) {
            free(back);
        }
    }
    lt_ids_free(&ids);
    lt_tokenizer_scratch_close(s);
    lt_tokenizer_close(t);
}

#endif
