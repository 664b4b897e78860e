/* fuzz_tokenizer.h: opens a tokenizer from bytes; if it opens, it must encode hostile text. */
#ifndef FUZZ_TOKENIZER_H
#define FUZZ_TOKENIZER_H

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "lateen/tokenizer.h"

/* Decode every id, and some twice, because decoders act on neighbours. */
static void fuzz_decode(const lt_tokenizer *t) {
    const uint32_t most = lt_tokenizer_describe(t).n_ids;
    uint32_t ids[64];
    for (int skip = 0; skip < 2; skip++) {
        char *back = NULL;
        size_t n = 0, bytes = 0;
        for (uint32_t id = 0; id < most && n < 60; id++) {
            ids[n++] = id;
            ids[n++] = id * 7 % most;
        }
        if (lt_tokenizer_decode(t, ids, n, skip != 0, &back, &bytes) == LT_OK) {
            if (strlen(back) > bytes) {
                abort();
            }
            free(back);
        }
    }
}

/* The mask of a span in the middle of valid text. */
static void fuzz_mask(const lt_tokenizer *t, lt_tokenizer_scratch *s) {
    static const char text[] = "\xEF\xAC\x81x <s>a b\xC2\xBD it's";
    const lt_text_span spans[2] = {{1, 6}, {8, 12}};
    lt_ids ids = {0};
    unsigned char *mask = NULL;
    if (lt_tokenizer_encode_masked(t, s, text, sizeof text - 1, LT_ENCODE_DEFAULT, spans, 2, &ids,
                                   &mask) == LT_OK) {
        for (size_t i = 0; i < ids.n; i++) {
            if (mask[i] > 1) {
                abort();
            }
        }
    }
    free(mask);
    lt_ids_free(&ids);
}

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
    lt_log_set_level(LT_LOG_ERROR);
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
        fuzz_decode(t);
        fuzz_mask(t, s);
    }
    lt_ids_free(&ids);
    lt_tokenizer_scratch_close(s);
    lt_tokenizer_close(t);
}

#endif
