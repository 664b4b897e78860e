/* answer.c: see answer.h. */
#include "data/check/answer.h"

#include <string.h>
#include <strings.h>

/* The last occurrence of word in text[from..n), or n. Case is ignored where fold. */
static size_t last_of(const char *text, size_t from, size_t n, const char *word, bool fold) {
    const size_t len = strlen(word);
    for (size_t i = n; i >= from + len; i--) {
        const char *at = text + i - len;
        if ((fold ? strncasecmp(at, word, len) : memcmp(at, word, len)) == 0) {
            return i - len;
        }
    }
    return n;
}

static size_t line_end(const char *text, size_t from, size_t n) {
    const char *nl = memchr(text + from, '\n', n - from);
    return nl != NULL ? (size_t)(nl - text) : n;
}

static bool letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

void lt_answer_trim(const char *text, size_t *begin, size_t *end) {
    static const char around[] = " \t\r\n*_`\"";
    while (*begin < *end && text[*begin] != 0 && strchr(around, text[*begin]) != NULL) {
        (*begin)++;
    }
    while (*end > *begin && text[*end - 1] != 0 &&
           (strchr(around, text[*end - 1]) != NULL || text[*end - 1] == '.' ||
            text[*end - 1] == ';' || text[*end - 1] == '!')) {
        (*end)--;
    }
    /* $42$ and \(42\) are mathematics; "$42" is an amount and remains. */
    if (*end - *begin >= 2 && text[*begin] == '$' && text[*end - 1] == '$') {
        (*begin)++;
        (*end)--;
    } else if (*end - *begin >= 4 && text[*begin] == '\\' &&
               (text[*begin + 1] == '(' || text[*begin + 1] == '[') && text[*end - 2] == '\\') {
        *begin += 2;
        *end -= 2;
    }
}

/* \boxed{...}; a box that is not closed is none. */
static bool boxed(const char *text, size_t from, size_t n, size_t *begin, size_t *end) {
    for (size_t before = n;;) {
        const size_t at = last_of(text, from, before, "\\boxed{", false);
        int depth = 1;
        if (at == before) {
            return false;
        }
        for (size_t i = at + 7; i < n; i++) {
            depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
            if (depth == 0) {
                *begin = at + 7;
                *end = i;
                return true;
            }
        }
        before = at;
    }
}

static bool phrase(const char *text, size_t from, size_t n, size_t *begin, size_t *end) {
    static const char *const words[] = {"answer is:", "answer is", "answer:", "answer**:"};
    size_t best = 0;
    bool found = false;
    for (size_t w = 0; w < sizeof words / sizeof *words; w++) {
        const size_t len = strlen(words[w]);
        for (size_t before = n;;) {
            const size_t at = last_of(text, from, before, words[w], true);
            if (at == before) {
                break;
            }
            before = at;
            if ((at > from && letter(text[at - 1])) ||
                (at + len < n && letter(words[w][len - 1]) && letter(text[at + len]))) {
                continue; /* Part of a longer word. */
            }
            if (!found || at + len > best) {
                best = at + len;
                found = true;
            }
            break;
        }
    }
    *begin = best;
    *end = found ? line_end(text, best, n) : 0;
    return found;
}

static lt_answer_mark find(const char *text, size_t from, size_t n, size_t *begin, size_t *end) {
    size_t at, close;
    if (boxed(text, from, n, begin, end)) {
        return LT_ANSWER_BOXED;
    }
    at = last_of(text, from, n, "<answer>", false);
    if (at < n) {
        const char *tag = memmem(text + at, n - at, "</answer>", 9);
        *begin = at + 8;
        *end = tag != NULL ? (size_t)(tag - text) : n;
        return LT_ANSWER_TAG;
    }
    at = last_of(text, from, n, "####", false);
    if (at < n) {
        *begin = at + 4;
        *end = line_end(text, at, n);
        return LT_ANSWER_HASHES;
    }
    if (phrase(text, from, n, begin, end)) {
        return LT_ANSWER_PHRASE;
    }
    close = n;
    while (close > from && strchr(" \t\r\n", text[close - 1]) != NULL && text[close - 1] != 0) {
        close--;
    }
    at = last_of(text, from, close, "\n", false);
    *begin = at < close ? at + 1 : from;
    *end = close;
    return close > from ? LT_ANSWER_LINE : LT_ANSWER_NONE;
}

lt_answer_mark lt_answer_find(const char *text, size_t n, size_t *begin, size_t *end) {
    const size_t closed = last_of(text, 0, n, "</think>", false);
    const size_t opened = last_of(text, 0, n, "<think>", false);
    lt_answer_mark mark = LT_ANSWER_NONE;

    *begin = *end = 0;
    if (opened < n && (closed == n || closed < opened)) {
        return LT_ANSWER_NONE;
    }
    mark = find(text, closed < n ? closed + 8 : 0, n, begin, end);
    lt_answer_trim(text, begin, end);
    return *begin < *end ? mark : LT_ANSWER_NONE;
}
