/* checker.c: one function for each kind; see checker.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/check/checker.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <pcre2.h>

#include "base/error.h"
#include "base/option.h"
#include "data/check/chars.h"
#include "data/check/expression.h"

#define MATCH_LIMIT 1000000 /* Steps of PCRE2, so that matching a hostile answer ends. */
#define HEAP_KIB    20000

/* Where the items of a list stand in its text. */
typedef struct {
    size_t begin[LT_CHECK_ITEMS], end[LT_CHECK_ITEMS];
    size_t n;
} items;

struct lt_checker {
    lt_check_kind kind;
    char gold[LT_CHECK_GOLD_BYTES];
    size_t n;
    items list;
    lt_expression number;
    pcre2_code *regex;
};

static const char *const names[] = {
#define CHECK_NAME(code, name) name,
    LT_CHECK_MAP(CHECK_NAME)};

const char *lt_check_name(lt_check_kind kind) {
    LT_ASSERT(kind < LT_CHECK_COUNT);
    return names[kind];
}

lt_err lt_check_kind_find(lt_check_kind *out, const char *name) {
    const char *near;
    for (int k = 0; k < LT_CHECK_COUNT; k++) {
        if (strcmp(names[k], name) == 0) {
            *out = (lt_check_kind)k;
            return LT_OK;
        }
    }
    near = lt_name_nearest(name, names, LT_CHECK_COUNT);
    LT_FAIL(LT_ERR_ARG, "no kind of checker is named \"%s\"%s%s", name,
            near != NULL ? "; did you mean " : "", near != NULL ? near : "");
}

/* Compare one side of an equation. */
static lt_err side_equal(bool *right, const lt_expression *gold, const char *text, size_t n,
                         bool words, lt_expression *room) {
    *right = lt_expression_read(room, text, n, gold) && lt_expression_units(gold, room, words);
    return *right ? lt_expression_equal(right, gold, room) : LT_OK;
}

/* Whether a text looks like a name: x, x_1, f(x), angle A. Every other side of an equation is
 * checked. */
static bool is_name(const char *text, size_t n) {
    bool letters = false;
    for (size_t i = 0; i < n; i++) {
        if (strchr("+-*/^<>!~:", text[i]) != NULL ||
            (lt_is_digit(text[i]) && (i == 0 || strchr("_{", text[i - 1]) == NULL))) {
            return false;
        }
        letters = letters || lt_is_letter(text[i]);
    }
    return letters;
}

static lt_err number_equal(bool *right, const lt_expression *gold, const char *text, size_t n,
                           bool words) {
    lt_expression *room = malloc(sizeof *room);
    lt_err err = LT_OK;
    if (room == NULL) {
        LT_FAIL(LT_ERR_OOM, "an answer");
    }
    *right = true;
    for (size_t from = 0; *right && from <= n;) {
        const char *equals = memchr(text + from, '=', n - from);
        const size_t to = equals != NULL ? (size_t)(equals - text) : n;
        if (equals == NULL || !is_name(text + from, to - from)) {
            LT_TRY_DONE(side_equal(right, gold, text + from, to - from, words, room));
        }
        from = to + 1;
    }
done:
    free(room);
    return err;
}

/* Whether the bytes are equal when each run of white space counts as one space. */
static bool text_equal(const char *a, size_t n, const char *b, size_t m) {
    static const char blank[] = " \t\r\n";
    size_t i = 0, j = 0;
    while (i < n || j < m) {
        const bool gap_a = i < n && lt_is_one_of(a[i], blank);
        const bool gap_b = j < m && lt_is_one_of(b[j], blank);
        if (gap_a != gap_b || i == n || j == m) {
            return false;
        }
        if (!gap_a) {
            if (a[i++] != b[j++]) {
                return false;
            }
            continue;
        }
        while (i < n && lt_is_one_of(a[i], blank)) {
            i++;
        }
        while (j < m && lt_is_one_of(b[j], blank)) {
            j++;
        }
    }
    return true;
}

static void item_trim(const char *text, size_t *begin, size_t *end) {
    lt_answer_trim(text, begin, end);
    if (*end - *begin >= 2 && text[*begin] == '\'' && text[*end - 1] == '\'') {
        (*begin)++;
        (*end)--;
    }
}

/* Split at commas outside brackets, and at " and ". False: too many items. */
static bool split(items *out, const char *text, size_t n) {
    size_t begin = 0, end = n, from;
    int depth = 0;
    bool bracketed = false;
    out->n = 0;
    lt_answer_trim(text, &begin, &end);
    if (end - begin >= 4 && text[begin] == '\\' && text[end - 2] == '\\') { /* \{ ... \} */
        begin += 2;
        end -= 2;
        bracketed = true;
    } else if (end - begin >= 2 && lt_is_one_of(text[begin], "[({") &&
               lt_is_one_of(text[end - 1], "])}")) {
        begin++;
        end--;
        bracketed = true;
    }
    from = begin;
    for (size_t i = begin; i <= end; i++) {
        const bool last = i == end;
        const bool joint = !last && depth == 0 && end - i > 5 && memcmp(text + i, " and ", 5) == 0;
        if (!last) {
            depth += lt_is_one_of(text[i], "[({") - lt_is_one_of(text[i], "])}");
        }
        if (!last && !joint && (text[i] != ',' || depth != 0)) {
            continue;
        }
        if (out->n == LT_CHECK_ITEMS) {
            return false;
        }
        out->begin[out->n] = from;
        out->end[out->n] = i;
        item_trim(text, &out->begin[out->n], &out->end[out->n]);
        from = joint ? i + 5 : i + 1;
        /* "a, b, and c": the comma before "and" leaves an empty item. */
        out->n += !(joint && out->begin[out->n] == out->end[out->n]);
        i += joint ? 4 : 0; /* Words joined twice share a space: "a and and b". */
    }
    if (bracketed && out->n == 1 && out->begin[0] == out->end[0]) {
        out->n = 0;
    }
    return true;
}

static lt_err list_equal(const lt_checker *c, const char *text, size_t n_text, bool words,
                         bool *right) {
    const items *gold = &c->list;
    items ours;
    lt_expression *x = malloc(sizeof *x);
    lt_err err = LT_OK;
    if (x == NULL) {
        LT_FAIL(LT_ERR_OOM, "an item of a list");
    }
    *right = split(&ours, text, n_text) && gold->n == ours.n;
    for (size_t i = 0; i < gold->n && *right; i++) {
        const char *a = c->gold + gold->begin[i], *b = text + ours.begin[i];
        const size_t n = gold->end[i] - gold->begin[i], m = ours.end[i] - ours.begin[i];
        if (lt_expression_read(x, a, n, NULL) && !x->has_variables) {
            LT_TRY_DONE(number_equal(right, x, b, m, words));
        } else {
            *right = text_equal(a, n, b, m);
        }
    }
done:
    free(x);
    return err;
}

/* One letter: "B", "(B)", "B) text", "B. text", "option B"; another "(C)" after it is refused. */
static bool choice_equal(char gold, const char *text, size_t n) {
    static const char *const words[] = {"option", "choice", "answer"};
    size_t begin = 0, end = n;
    bool open;
    char found;
    for (size_t w = 0; w < sizeof words / sizeof *words; w++) {
        const size_t len = strlen(words[w]);
        if (end - begin > len && strncasecmp(text + begin, words[w], len) == 0 &&
            !lt_is_letter(text[begin + len])) {
            begin += len;
            lt_answer_trim(text, &begin, &end);
        }
    }
    if (end - begin > 7 && memcmp(text + begin, "\\text{", 6) == 0 && text[end - 1] == '}') {
        begin += 6;
        end--;
    }
    open = begin < end && text[begin] == '(';
    begin += open;
    if (begin == end || !lt_is_letter(text[begin])) {
        return false;
    }
    found = text[begin++];
    if (begin < end && strchr(open ? ")" : ").:", text[begin]) == NULL) {
        return false;
    }
    if (open && begin == end) {
        return false;
    }
    for (size_t i = begin; i + 2 < end; i++) {
        if (text[i] == '(' && lt_is_letter(text[i + 1]) && text[i + 2] == ')') {
            return false;
        }
    }
    return (found | 32) == (gold | 32);
}

static lt_err regex_equal(const lt_checker *c, const char *text, size_t n, bool *right) {
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(c->regex, NULL);
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    lt_err err = LT_OK;
    if (data == NULL || limits == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "a match of a regular expression");
    }
    pcre2_set_match_limit(limits, MATCH_LIMIT);
    pcre2_set_heap_limit(limits, HEAP_KIB);
    *right = pcre2_match(c->regex, (PCRE2_SPTR)text, n, 0, PCRE2_ANCHORED | PCRE2_ENDANCHORED, data,
                         limits) > 0;
done:
    pcre2_match_context_free(limits);
    pcre2_match_data_free(data);
    return err;
}

static lt_err open_gold(lt_checker *c) {
    int code = 0;
    PCRE2_SIZE column = 0;
    PCRE2_UCHAR why[128] = "";

    if (c->kind == LT_CHECK_NUMBER && !lt_expression_read(&c->number, c->gold, c->n, NULL)) {
        LT_FAIL(LT_ERR_FORMAT, "\"%.200s\" is not a number or an expression", c->gold);
    }
    if (c->kind == LT_CHECK_LIST && !split(&c->list, c->gold, c->n)) {
        LT_FAIL(LT_ERR_LIMIT, "a list of more than %d items: \"%.200s...\"", LT_CHECK_ITEMS,
                c->gold);
    }
    if (c->kind == LT_CHECK_CHOICE && (c->n != 1 || !lt_is_letter(c->gold[0]))) {
        LT_FAIL(LT_ERR_FORMAT, "a choice is one letter, not \"%.200s\"", c->gold);
    }
    if (c->kind == LT_CHECK_REGEX) {
        c->regex = pcre2_compile((PCRE2_SPTR)c->gold, c->n, PCRE2_UTF | PCRE2_UCP, &code, &column,
                                 NULL);
        if (c->regex == NULL) {
            (void)pcre2_get_error_message(code, why, sizeof why);
            LT_FAIL(LT_ERR_FORMAT, "regular expression \"%.200s\", column %zu: %s", c->gold,
                    (size_t)column + 1, (const char *)why);
        }
    }
    return LT_OK;
}

lt_err lt_checker_open(lt_checker **out, lt_check_kind kind, const char *gold, size_t n) {
    lt_checker *c = NULL;
    lt_err err = LT_OK;

    LT_ASSERT(kind < LT_CHECK_COUNT);
    if (n >= LT_CHECK_GOLD_BYTES) {
        LT_FAIL(LT_ERR_LIMIT, "an answer of %zu bytes; at most %d", n, LT_CHECK_GOLD_BYTES - 1);
    }
    c = calloc(1, sizeof *c);
    if (c == NULL) {
        LT_FAIL(LT_ERR_OOM, "a checker");
    }
    c->kind = kind;
    c->n = n;
    memcpy(c->gold, gold, n);
    LT_TRY_DONE(open_gold(c));
    *out = c;
    c = NULL;
done:
    lt_checker_close(c);
    return err;
}

void lt_checker_close(lt_checker *c) {
    if (c != NULL) {
        pcre2_code_free(c->regex);
        free(c);
    }
}

lt_err lt_checker_judge(const lt_checker *c, const char *answer, size_t n, unsigned allowed,
                        bool *right) {
    const bool words = (allowed & LT_ANSWER_BIT(LT_ANSWER_WORD)) != 0;
    switch (c->kind) {
    case LT_CHECK_NUMBER:
        return number_equal(right, &c->number, answer, n, words);
    case LT_CHECK_LIST:
        return list_equal(c, answer, n, words, right);
    case LT_CHECK_TEXT: {
        size_t from = 0, to = c->n, begin = 0, end = n;
        lt_answer_trim(c->gold, &from, &to);
        item_trim(answer, &begin, &end);
        *right = text_equal(c->gold + from, to - from, answer + begin, end - begin);
        return LT_OK;
    }
    case LT_CHECK_CHOICE:
        *right = choice_equal(c->gold[0], answer, n);
        return LT_OK;
    case LT_CHECK_REGEX:
        return regex_equal(c, answer, n, right);
    case LT_CHECK_COUNT:
        break;
    }
    LT_ASSERT(false);
    return LT_OK;
}

lt_err lt_checker_run(const lt_checker *c, const char *text, size_t n, unsigned allowed,
                      bool *right, lt_answer_mark *mark) {
    size_t begin, end;
    const lt_answer_mark found = lt_answer_find(text, n, allowed, &begin, &end);

    *right = false;
    if (mark != NULL) {
        *mark = found;
    }
    return found == LT_ANSWER_NONE ? LT_OK
                                   : lt_checker_judge(c, text + begin, end - begin, allowed, right);
}
