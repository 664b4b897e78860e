/* punkt_words.c: words as NLTK's word_tokenize splits them: sentences, then a list of substitutions
 * that put spaces around everything that counts as a word, in NLTK's order. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/check/punkt.h"

#define CURLY_OPEN  "\xc2\xab\xe2\x80\x9c\xe2\x80\x98\xe2\x80\x9e"
#define CURLY_CLOSE "\xc2\xbb\xe2\x80\x9d\xe2\x80\x99"

static const struct {
    const char *pattern, *replacement;
} steps[] = {
    /* Quotes at the beginning. */
    {"([" CURLY_OPEN "]|[`]+)", " $1 "},
    {"^\"", "``"},
    {"(``)", " $1 "},
    {"([ \\(\\[{<])(\"|\\'{2})", "$1 `` "},
    {"(?i)(?<!\\w)(\\')(?!(?:re|ve|ll|m|t|s|d|n)\\b)(?=\\w)", "$1 "},
    /* Punctuation. */
    {"([^\\.])(\\.)([\\]\\)}>\"\\'" CURLY_CLOSE " ]*+)\\s*$", "$1 $2 $3 "},
    {"([:,])([^\\d])", " $1 $2"},
    {"([:,])$", " $1 "},
    {"\\.{2,}", " $0 "},
    {"[;@#$%&]", " $0 "},
    {"[\\x{2012}-\\x{2015}]", " $0 "},
    {"([^\\.])(\\.)([\\]\\)}>\"\\']*)\\s*$", "$1 $2$3 "},
    {"[?!]", " $0 "},
    {"([^'])' ", "$1 ' "},
    {"[*]", " $0 "},
    {"[\\]\\[\\(\\)\\{\\}\\<\\>]", " $0 "},
    {"--", " -- "},
    {"^|\\z", " "}, /* A space at both ends. */
    /* Quotes at the end, and contractions. */
    {"([" CURLY_CLOSE "])", " $1 "},
    {"''", " '' "},
    {"\"", " '' "},
    {"\\s+", " "},
    {"([^' ])('[sS]|'[mM]|'[dD]|') ", "$1 $2 "},
    {"([^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) ", "$1 $2 "},
    {"(?i)\\b(can)(not)\\b", " $1 $2 "},
    {"(?i)\\b(d)('ye)\\b", " $1 $2 "},
    {"(?i)\\b(gim)(me)\\b", " $1 $2 "},
    {"(?i)\\b(gon)(na)\\b", " $1 $2 "},
    {"(?i)\\b(got)(ta)\\b", " $1 $2 "},
    {"(?i)\\b(lem)(me)\\b", " $1 $2 "},
    {"(?i)\\b(more)('n)\\b", " $1 $2 "},
    {"(?i)\\b(wan)(na)(?=\\s)", " $1 $2 "},
    {"(?i) ('t)(is)\\b", " $1 $2 "},
    {"(?i) ('t)(was)\\b", " $1 $2 "},
};

/* str.isupper: there are letters, and none is lower-case. */
static bool count_capital(void *ctx, lt_span word) {
    int64_t n = 0;
    if (lt_re_count(&n, "(?s)^[^\\p{Ll}\\p{Lt}]*\\p{Lu}[^\\p{Ll}\\p{Lt}]*\\z", word, 0, 1) ==
        LT_OK) {
        *(int64_t *)ctx += n;
    }
    return true;
}

static lt_err count_sentence(void *ctx, lt_span sentence) {
    lt_span text = sentence;
    char *made = NULL;
    lt_err err = LT_OK;
    for (size_t i = 0; i < sizeof steps / sizeof *steps && err == LT_OK; i++) {
        char *next = NULL;
        size_t n = 0;
        err = lt_re_replace(&next, &n, steps[i].pattern, steps[i].replacement, text);
        free(made);
        made = next;
        text = (lt_span){next, n};
    }
    err = err == LT_OK ? lt_re_each("\\S+", text, 0, count_capital, ctx) : err;
    free(made);
    return err;
}

lt_err lt_punkt_count_capital(const lt_punkt *p, lt_span text, int64_t *words) {
    *words = 0;
    return lt_punkt_each(p, text, count_sentence, words);
}
