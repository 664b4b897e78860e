/* Fuzz target: the first byte chooses GBNF, regular expression, schema or choice; what compiles is walked a few steps under its masks. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "serve/grammar.h"

static lt_grammar_vocab *open_vocab(void) {
    static const char *const b64[] = {
        "YQ==", "Yg==", "eyI=", "Ig==", "fQ==", "MQ==", "W10=", "w7Y=", "Og==", "LA==", "YWI="};
    char text[512] = "";
    lt_tokenizer *t = NULL;
    lt_grammar_vocab *v = NULL;
    const int32_t end = 0;
    for (int i = 0; i < 11; i++) {
        char line[32];
        line[0] = 0;
        strcat(line, b64[i]);
        strcat(line, i < 10 ? (char[]){' ', (char)('0' + i), '\n', 0} : " 10\n");
        strcat(text, line);
    }
    if (lt_tokenizer_open_memory(&t, text, strlen(text), "fuzz.tiktoken",
                                 &(lt_tokenizer_options){.pattern = "gpt2"}) != LT_OK ||
        lt_grammar_vocab_open(&v, t, &end, 1) != LT_OK) {
        abort();
    }
    lt_tokenizer_close(t);
    return v;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static lt_grammar_vocab *v = NULL;
    static const lt_grammar_kind kinds[] = {LT_GRAMMAR_GBNF, LT_GRAMMAR_REGEX, LT_GRAMMAR_SCHEMA,
                                            LT_GRAMMAR_CHOICE};
    lt_grammar *g = NULL;
    lt_grammar_state *s = NULL;
    uint32_t bits[1];
    v = v != NULL ? v : open_vocab();
    if (size == 0 || size > 2048 ||
        lt_grammar_open(&g, v, kinds[data[0] % 4], (const char *)data + 1, size - 1) != LT_OK) {
        return 0;
    }
    if (lt_grammar_state_open(&s, g) == LT_OK) {
        for (int i = 0; i < 12 && lt_grammar_mask(s, bits, 11) == LT_OK && bits[0] != 0; i++) {
            const int id = 31 - __builtin_clz(bits[0]);
            if (lt_grammar_accept(s, id) != LT_OK) {
                abort(); /* A mask that accept contradicts. */
            }
            if (id == 0) {
                break;
            }
        }
    }
    lt_grammar_state_close(s);
    lt_grammar_close(g);
    return 0;
}
