/* answer.c: see answer.h. */
#include "data/check/answer.h"

#include <string.h>
#include <strings.h>

#include "data/check/chars.h"
#include "data/think_marks.h"

/* The last occurrence of word in text[from..n), or n. fold: case is ignored. */
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

void lt_answer_trim(const char *text, size_t *begin, size_t *end) {
    while (*begin < *end && lt_is_one_of(text[*begin], " \t\r\n*_`\"")) {
        (*begin)++;
    }
    while (*end > *begin && lt_is_one_of(text[*end - 1], " \t\r\n*_`\".;!")) {
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

/* Find \boxed{...}; a box that is not closed does not count. */
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

static size_t skip_around(const char *text, size_t at, size_t end) {
    while (at < end && lt_is_one_of(text[at], " \t\r\n*_")) {
        at++;
    }
    return at;
}

/* From text[at] to the end of the line, or the next line if nothing else is on this one. */
static void rest_of_line(const char *text, size_t at, size_t n, size_t *begin, size_t *end) {
    *begin = at;
    *end = line_end(text, at, n);
    if (*end < n && skip_around(text, at, *end) == *end) {
        *begin = skip_around(text, *end, n);
        *end = line_end(text, *begin, n);
    }
}

static bool hashes(const char *text, size_t from, size_t n, size_t *begin, size_t *end) {
    const size_t at = last_of(text, from, n, "####", false);
    if (at < n) {
        *begin = at + 4;
        *end = line_end(text, at, n);
    }
    return at < n;
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
            if ((at > from && lt_is_letter(text[at - 1])) ||
                (at + len < n && lt_is_letter(words[w][len - 1]) && lt_is_letter(text[at + len]))) {
                continue; /* Part of a longer word. */
            }
            if (!found || at + len > best) {
                best = at + len;
                found = true;
            }
            break;
        }
    }
    if (found) {
        rest_of_line(text, best, n, begin, end);
    }
    return found;
}

static bool tag(const char *text, size_t from, size_t n, size_t *begin, size_t *end) {
    for (size_t before = n;;) {
        const size_t at = last_of(text, from, before, "<answer>", false);
        const char *close = at < before ? memmem(text + at, n - at, "</answer>", 9) : NULL;
        if (at == before) {
            return false;
        }
        if (close != NULL) {
            *begin = at + 8;
            *end = (size_t)(close - text);
            return true;
        }
        before = at;
    }
}

static bool last_line(const char *text, size_t from, size_t n, size_t *begin, size_t *end) {
    size_t close = n, at;
    while (close > from && lt_is_one_of(text[close - 1], " \t\r\n")) {
        close--;
    }
    at = last_of(text, from, close, "\n", false);
    *begin = at < close ? at + 1 : from;
    *end = close;
    return close > from;
}

/* A number: digits, with commas between groups, a decimal point between digits, and "-" in
 * front. */
static bool last_number(const char *text, size_t from, size_t n, size_t *begin, size_t *end) {
    size_t at;
    while (n > from && !lt_is_digit(text[n - 1])) {
        n--;
    }
    at = n;
    while (at > from &&
           (lt_is_digit(text[at - 1]) || ((text[at - 1] == ',' || text[at - 1] == '.') &&
                                          at - 1 > from && lt_is_digit(text[at - 2])))) {
        at--;
    }
    if (at > from && text[at - 1] == '.') { /* .5 */
        at--;
    }
    *begin = at > from && text[at - 1] == '-' ? at - 1 : at;
    *end = n;
    return n > from;
}

static lt_answer_mark find(const char *text, size_t from, size_t n, unsigned allowed, size_t *begin,
                           size_t *end) {
    size_t b = 0, e = 0;
    lt_answer_mark mark = LT_ANSWER_NONE;
#define ALLOWED(mark) ((allowed & LT_ANSWER_BIT(mark)) != 0)
    if (ALLOWED(LT_ANSWER_BOXED) && boxed(text, from, n, begin, end)) {
        return LT_ANSWER_BOXED;
    }
    if (ALLOWED(LT_ANSWER_TAG) && tag(text, from, n, begin, end)) {
        return LT_ANSWER_TAG;
    }
    if (ALLOWED(LT_ANSWER_HASHES) && hashes(text, from, n, begin, end)) {
        mark = LT_ANSWER_HASHES;
    }
    if (ALLOWED(LT_ANSWER_PHRASE) && phrase(text, from, n, &b, &e) &&
        (mark == LT_ANSWER_NONE || b > *end)) {
        *begin = b;
        *end = e;
        mark = LT_ANSWER_PHRASE;
    }
    if (mark == LT_ANSWER_NONE && ALLOWED(LT_ANSWER_LINE) && last_line(text, from, n, begin, end)) {
        mark = LT_ANSWER_LINE;
    }
    if (mark == LT_ANSWER_NONE && ALLOWED(LT_ANSWER_NUMBER) &&
        last_number(text, from, n, begin, end)) {
        mark = LT_ANSWER_NUMBER;
    }
#undef ALLOWED
    return mark;
}

lt_answer_mark lt_answer_find(const char *text, size_t n, unsigned allowed, size_t *begin,
                              size_t *end) {
    const size_t from = lt_think_end(text, n);
    lt_answer_mark mark = LT_ANSWER_NONE;

    *begin = *end = 0;
    if (from == n) {
        return LT_ANSWER_NONE;
    }
    mark = find(text, from, n, allowed, begin, end);
    lt_answer_trim(text, begin, end);
    return *begin < *end ? mark : LT_ANSWER_NONE;
}
