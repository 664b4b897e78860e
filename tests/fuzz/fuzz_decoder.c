/* Fuzz target: up to 8 decoder steps in any order, and tokens for them. A decoder that is told
 * together with the last token that it is the last must give the same text as one that is told
 * afterwards; the text must be UTF-8, and a stream that continues after other text must not
 * fail. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/decode_chain.h"
#include "data/tokenizer/regex.h"

#define STEPS 8

static const char *const words[] = {
    "a",   "\xE2\x96\x81", "<0x41>", "<0xE2>",   "<0x96>",   "<0x81>",
    "##b", "</w>",         "<pad>",  "|",        " ",        "",
    "n't", " ' ",          "do not", "\xC3\xA9", "\xC4\xA0", "b",
    "ab",  "<0x0a>",       "<0x+1>", "aa",       "."};
#define N_WORDS (sizeof words / sizeof *words)

static lt_text text_of(const char *s) {
    return (lt_text){.data = (char *)(uintptr_t)s, .n = strlen(s)};
}

/* False: the text exceeds its bound. */
static bool run(const lt_decode_op *ops, int n, const uint8_t *data, size_t size, bool apart,
                bool behind, lt_text *out) {
    lt_decode_chain *c = calloc(1, sizeof *c);
    lt_err err = LT_OK;
    lt_decode_chain_open(c, ops, n);
    if (behind) {
        lt_decode_chain_continue(c);
    }
    for (size_t i = 0; i < size && err == LT_OK; i++) {
        const char *w = words[data[i] % N_WORDS];
        err = lt_decode_chain_apply(c, w, strlen(w), !apart && i + 1 == size, out);
    }
    if ((apart || size == 0) && err == LT_OK) {
        err = lt_decode_chain_apply(c, NULL, 0, true, out);
    }
    if (err != LT_OK && err != LT_ERR_LIMIT) {
        abort();
    }
    lt_decode_chain_close(c);
    free(c);
    return err == LT_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static lt_regex *regex[2];
    lt_decode_op ops[STEPS] = {0};
    lt_text once = {0}, apart = {0}, behind = {0};
    int n = 0;
    if (regex[0] == NULL &&
        (lt_regex_open(&regex[0], "a*", 2, LT_REGEX_ONIGURUMA, "fuzz") != LT_OK ||
         lt_regex_open(&regex[1], "\\b.", 3, LT_REGEX_ONIGURUMA, "fuzz") != LT_OK)) {
        abort();
    }
    if (size == 0 || size > 100) {
        return 0;
    }
    n = data[0] % (STEPS + 1);
    data++;
    size--;
    for (int i = 0; i < n && size >= 3; i++, data += 3, size -= 3) {
        const char *from = words[data[1] % N_WORDS];
        ops[i] = (lt_decode_op){.kind = (lt_decode_kind)(data[0] % (LT_DECODE_BYTE_LEVEL + 1)),
                                .from = text_of(from),
                                .to = text_of(words[data[2] % N_WORDS]),
                                .prepend = data[2] & 1,
                                .cleanup = data[2] >> 1 & 1,
                                .start = data[2] >> 2 & 3,
                                .stop = data[2] >> 4 & 3};
        if ((ops[i].kind == LT_DECODE_METASPACE || ops[i].kind == LT_DECODE_STRIP) &&
            from[0] == '\0') {
            ops[i].from = text_of(" "); /* One character: the reader makes sure of it. */
        }
        if (ops[i].kind == LT_DECODE_REPLACE && (from[0] == '\0' || (data[2] & 64) != 0)) {
            ops[i].regex = regex[data[2] >> 7];
        }
    }
    const bool fits = run(ops, n, data, size, false, false, &once) &
                      run(ops, n, data, size, true, false, &apart);
    (void)run(ops, n, data, size, true, true, &behind);
    if (fits && (once.n != apart.n || (once.n > 0 && memcmp(once.data, apart.data, once.n) != 0) ||
                 (once.n > 0 && lt_utf8_valid_prefix(once.data, once.n) != once.n))) {
        abort();
    }
    lt_text_free(&once);
    lt_text_free(&apart);
    lt_text_free(&behind);
    return 0;
}
