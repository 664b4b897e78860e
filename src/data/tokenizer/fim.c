/* tokenizer/fim.c: finds the tokens with which a model fills in the middle of a text: those that
 * a GGUF names by key, otherwise special tokens with the names that models use (the same as in
 * llama.cpp). In Llama's file they are called "▁<PRE>", with SentencePiece's space. */
#include <string.h>

#include "data/tokenizer/impl.h"

#define DEEPSEEK(name) "<\xEF\xBD\x9C" name "\xEF\xBD\x9C>"
#define SPACE          "\xE2\x96\x81"

static const char *const names[LT_FIM_COUNT][9] = {
    [LT_FIM_PREFIX] = {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>",
                       DEEPSEEK("fim" SPACE "begin"), "<PRE>", SPACE "<PRE>", "<|code_prefix|>",
                       "<|prefix|>"},
    [LT_FIM_SUFFIX] = {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>",
                       DEEPSEEK("fim" SPACE "hole"), "<SUF>", SPACE "<SUF>", "<|code_suffix|>",
                       "<|suffix|>"},
    [LT_FIM_MIDDLE] = {"<|fim_middle|>", "<fim-middle>", "<fim_middle>",
                       DEEPSEEK("fim" SPACE "end"), "<MID>", SPACE "<MID>", "<|code_middle|>",
                       "<|middle|>"},
    [LT_FIM_REPOSITORY] = {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"},
    [LT_FIM_FILE] = {"<|file_sep|>"},
    [LT_FIM_PAD] = {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>"}};

lt_tokenizer_fim lt_tokenizer_find_fim(const lt_tokenizer *t) {
    lt_tokenizer_fim fim;
    for (int i = 0; i < LT_FIM_COUNT; i++) {
        fim.ids[i] = t->from_gguf ? t->fim.ids[i] : LT_NO_ID;
        for (const char *const *p = names[i]; fim.ids[i] == LT_NO_ID && *p != NULL; p++) {
            const uint32_t id = lt_tokenizer_find(t, *p, strlen(*p));
            fim.ids[i] = id != LT_NO_ID && lt_tokenizer_is_special(t, id) ? id : LT_NO_ID;
        }
    }
    return fim;
}
