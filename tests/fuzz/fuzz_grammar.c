/* Fuzz target: the first byte chooses GBNF, regular expression, JSON schema or choice; a grammar
 * that compiles is followed for a few steps under its masks. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/grammar/grammar.h"

#define END     2 /* </s> */
#define SPECIAL 4 /* Ids 0..3; a grammar may name those that do not end a text. */
#define PAIRS   8
#define N_IDS   (SPECIAL + 256 + PAIRS)

static void put_entry(char **p, const unsigned char *s, size_t n, int rank) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint32_t x = (uint32_t)s[0] << 16 | (n > 1 ? (uint32_t)s[1] << 8 : 0);
    *p += sprintf(*p, "%s{\"rank\":%d,\"token_bytes\":\"%c%c%c=\"}", rank > 0 ? "," : "", rank,
                  digits[x >> 18], digits[x >> 12 & 63], n > 1 ? digits[x >> 6 & 63] : '=');
}

/* All single bytes and a few longer tokens, as a tekken.json, in which special tokens have small
 * ids. */
static lt_grammar_vocab *open_vocab(void) {
    static const char *const pairs[PAIRS] = {"{\"", "\"}", "ab", "aa",
                                             "12",  "\":", "[]", "\xC3\xB6"};
    static char text[16384];
    char *p = text;
    lt_tokenizer *t = NULL;
    lt_grammar_vocab *v = NULL;
    const int32_t end = END;
    p += sprintf(p,
                 "{\"config\":{\"pattern\":\"\\\\S+|\\\\s+\",\"default_vocab_size\":%d,"
                 "\"default_num_special_tokens\":%d},\"special_tokens\":["
                 "{\"rank\":0,\"token_str\":\"<unk>\"},{\"rank\":1,\"token_str\":\"<s>\"},"
                 "{\"rank\":2,\"token_str\":\"</s>\"},{\"rank\":3,\"token_str\":\"<a>\"}],"
                 "\"vocab\":[",
                 N_IDS, SPECIAL);
    for (int b = 0; b < 256; b++) {
        const unsigned char c = (unsigned char)b;
        put_entry(&p, &c, 1, b);
    }
    for (int i = 0; i < PAIRS; i++) {
        put_entry(&p, (const unsigned char *)pairs[i], 2, 256 + i);
    }
    p += sprintf(p, "]}");
    if (lt_tokenizer_open_memory(&t, text, (size_t)(p - text), "tekken.json", NULL) != LT_OK ||
        lt_grammar_vocab_open(&v, t, &end, 1) != LT_OK) {
        fprintf(stderr, "%s\n", lt_error_message());
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
    uint32_t bits[(N_IDS + 31) / 32];
    uint32_t dice = (uint32_t)size;
    v = v != NULL ? v : open_vocab();
    if (size == 0 || size > 2048 ||
        lt_grammar_open(&g, v, kinds[data[0] % 4], (const char *)data + 1, size - 1) != LT_OK) {
        return 0;
    }
    if (lt_grammar_state_open(&s, g) == LT_OK) {
        for (int i = 0; i < 12 && lt_grammar_mask(s, bits, N_IDS) == LT_OK; i++) {
            int id = -1;
            for (int k = 0; k < N_IDS && id < 0; k++) {
                /* The first allowed id, from a start that changes. */
                const int at = (int)((dice + (uint32_t)k) % N_IDS);
                id = (bits[at / 32] >> (at % 32) & 1) != 0 ? at : -1;
            }
            dice = dice * 1103515245u + 12345u;
            if (id < 0 || lt_grammar_accept(s, id) != LT_OK) {
                fprintf(stderr, "step %d, id %d: %s\n", i, id, lt_error_message());
                abort(); /* A dead end, or an id that the mask allows and accept refuses. */
            }
            if (id == END) {
                break;
            }
        }
    }
    lt_grammar_state_close(s);
    lt_grammar_close(g);
    return 0;
}
