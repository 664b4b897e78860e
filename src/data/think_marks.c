/* think_marks.c: see think_marks.h. */
#include "data/think_marks.h"

#include <string.h>

const lt_think_mark lt_think_marks[LT_THINK_MARKS] = {
    {"<|channel|>analysis<|message|>", "<|channel|>final<|message|>"},   /* gpt-oss. */
    {"[THINK]", "[/THINK]"},                                             /* Magistral. */
    {"<|inner_prefix|>", "<|inner_suffix|>"},                            /* Apertus. */
    {"<seed:think>", "</seed:think>"},                                   /* Seed-OSS. */
    {"\xE2\x97\x81think\xE2\x96\xB7", "\xE2\x97\x81/think\xE2\x96\xB7"}, /* Kimi. */
    {"<thought>", "</thought>"},                                         /* EXAONE Deep. */
    {"<think>", "</think>"}};

/* The text after the last `word` in text[0..n); NULL: the word does not occur. */
static const char *behind_last(const char *text, size_t n, const char *word) {
    const size_t len = strlen(word);
    const char *last = NULL;
    for (const char *at = text; (at = memmem(at, n - (size_t)(at - text), word, len)) != NULL;) {
        at += len;
        last = at;
    }
    return last;
}

size_t lt_think_end(const char *text, size_t n) {
    size_t end = 0;
    for (int i = 0; i < LT_THINK_MARKS; i++) {
        const char *opened = behind_last(text, n, lt_think_marks[i].open),
                   *closed = behind_last(text, n, lt_think_marks[i].close);
        if (opened != NULL && (closed == NULL || closed < opened)) {
            return n;
        }
        end = closed != NULL && (size_t)(closed - text) > end ? (size_t)(closed - text) : end;
    }
    return end;
}
