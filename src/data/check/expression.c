/* expression.c: see expression.h. Four stages of rewriting the text, a shunting yard, and exact
 * values.
 *
 * OPERATORS by precedence: + - (1), * / (2), ~ negation (3), ^ power, from the right (4),
 * & addition of a mixed number's fraction (5), # square root (6); % is written behind its operand.
 */
#include "data/check/expression.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/rng.h"
#include "data/check/chars.h"
#include "data/check/exact.h"

#define PI 1 /* The code that replaces \pi; it is a variable. */
/* The code of a narrow or fixed space, which groups digits or separates. */
#define NARROW       2
#define N_POINTS     4
#define MAX_EXPONENT 99999

typedef struct {
    const char *from, *to;
} spelling;

/* The first row that matches counts. */
static const spelling spellings[] = {
    {"\\left", ""},
    {"\\right", ""},
    {"\\displaystyle", ""},
    {"\\dfrac", "\\frac"},
    {"\\tfrac", "\\frac"},
    {"\\cdot", "*"},
    {"\\times", "*"},
    {"\\div", "/"},
    {"\\pi", "\1"},
    {"\\sqrt", "#"},
    {"\\quad", " "},
    {"\\%", "%"},
    {"\\$", ""},
    {"$", ""},
    {"\\,", "\2"},
    {"\\!", ""},
    {"\\;", " "},
    {"\\:", " "},
    {"\\ ", " "},
    {"\\(", ""},
    {"\\)", ""},
    {"\\[", ""},
    {"\\]", ""},
    {"{,}", ","},
    {"**", "^"},
    {" per cent", "%"},
    {"per cent", "%"},
    {"percent", "%"},
    {" per ", "/"},
    {"\u2212", "-"},
    {"\u2013", "-"},
    {"\u00d7", "*"},
    {"\u00f7", "/"},
    {"\u00b7", "*"},
    {"\u22c5", "*"},
    {"\u03c0", "\1"},
    {"\u00bd", "&(1/2)"},
    {"\u00bc", "&(1/4)"},
    {"\u00be", "&(3/4)"},
    {"\u00b2", "^2"},
    {"\u00b3", "^3"},
    {"\u20ac", ""},
    {"\u00a3", ""},
    {"\u00a0", "\2"},
    {"\u2009", "\2"},
    {"\u202f", "\2"},
    {"\t", " "},
    {"\n", " "},
    {"\r", " "},
};

static const spelling wrappers[] = {
    {"\\text{", " "},  {"\\mathrm{", " "}, {"\\mbox{", " "},
    {"\\textbf{", ""}, {"\\mathbf{", ""},  {"\\boxed{", ""},
};

/* Units by their standard spelling; words in the singular. */
static const spelling units[] = {
    {"kilometer", "km"}, {"kilometre", "km"},  {"km", "km"},         {"meter", "m"},
    {"metre", "m"},      {"m", "m"},           {"centimeter", "cm"}, {"centimetre", "cm"},
    {"cm", "cm"},        {"millimeter", "mm"}, {"millimetre", "mm"}, {"mm", "mm"},
    {"kilogram", "kg"},  {"kg", "kg"},         {"gram", "g"},        {"g", "g"},
    {"milligram", "mg"}, {"mg", "mg"},         {"liter", "L"},       {"litre", "L"},
    {"l", "L"},          {"L", "L"},           {"milliliter", "mL"}, {"millilitre", "mL"},
    {"ml", "mL"},        {"mL", "mL"},         {"hour", "h"},        {"hr", "h"},
    {"h", "h"},          {"minute", "min"},    {"min", "min"},       {"second", "s"},
    {"sec", "s"},        {"s", "s"},           {"day", "d"},         {"dollar", "dollar"},
    {"kph", "km/h"},     {"kmh", "km/h"},
};

static const struct {
    const char *word;
    int exponent;
} scales[] = {{"hundred", 2}, {"thousand", 3}, {"million", 6}, {"billion", 9}, {"trillion", 12}};

/* A text of at most LT_EXPRESSION_BYTES that is being built. */
typedef struct {
    char *data;
    size_t n;
    bool full;
} line;

static void put(line *to, const char *text, size_t n) {
    if (to->n + n + 1 > LT_EXPRESSION_BYTES) {
        to->full = true;
        return;
    }
    memcpy(to->data + to->n, text, n);
    to->n += n;
    to->data[to->n] = 0;
}

/* Stage 1: bring each sign to one spelling. A 0 byte or other unknown text remains and fails
 * later. */
static bool respell(char *out, const char *text, size_t n) {
    line to = {.data = out};
    bool unwrap[LT_EXPRESSION_BYTES]; /* For each open brace, whether it is removed. */
    size_t depth = 0;
    out[0] = 0;
    for (size_t i = 0; i < n && !to.full;) {
        size_t step = 0;
        for (size_t w = 0; w < sizeof wrappers / sizeof *wrappers && step == 0; w++) {
            const size_t len = strlen(wrappers[w].from);
            if (len <= n - i && memcmp(text + i, wrappers[w].from, len) == 0) {
                put(&to, wrappers[w].to, strlen(wrappers[w].to));
                step = len;
                if (depth == LT_EXPRESSION_BYTES) {
                    return false;
                }
                unwrap[depth++] = true;
            }
        }
        for (size_t s = 0; s < sizeof spellings / sizeof *spellings && step == 0; s++) {
            const size_t len = strlen(spellings[s].from);
            if (len <= n - i && memcmp(text + i, spellings[s].from, len) == 0) {
                put(&to, spellings[s].to, strlen(spellings[s].to));
                step = len;
            }
        }
        if (step == 0) {
            bool drop = false;
            if (text[i] >= 0 && text[i] < 32) {
                return false; /* Control characters; some of them are our own codes. */
            }
            if (text[i] == '{') {
                if (depth == LT_EXPRESSION_BYTES) {
                    return false;
                }
                unwrap[depth++] = false;
            } else if (text[i] == '}' && depth > 0) {
                drop = unwrap[--depth];
            }
            put(&to, text + i, drop ? 0 : 1);
            step = 1;
        }
        i += step;
    }
    for (size_t i = 0; i < depth; i++) {
        if (unwrap[i]) {
            return false; /* \boxed{4 is only the beginning of an answer. */
        }
    }
    for (size_t i = 0; i < to.n; i++) {
        if (out[i] == NARROW) {
            out[i] = i > 0 && lt_is_digit(out[i - 1]) && lt_is_digit(out[i + 1]) ? ',' : ' ';
        }
    }
    return !to.full;
}

/* Read one argument of \frac at *at: {...} or one digit or letter. */
static bool argument(const char *text, size_t *at, size_t *begin, size_t *end) {
    int depth = 1;
    while (text[*at] == ' ') {
        (*at)++;
    }
    if (lt_is_digit(text[*at]) || lt_is_letter(text[*at])) {
        *begin = (*at)++;
        *end = *at;
        return true;
    }
    if (text[*at] != '{') {
        return false;
    }
    *begin = *at + 1;
    for (size_t i = *begin; text[i] != 0; i++) {
        depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
        if (depth == 0) {
            *end = i;
            *at = i + 1;
            return true;
        }
    }
    return false;
}

static bool all_digits(const char *text, size_t begin, size_t end) {
    for (size_t i = begin; i < end; i++) {
        if (!lt_is_digit(text[i])) {
            return false;
        }
    }
    return begin < end;
}

/* Whether a whole number that may begin a mixed number ends before text[at]. */
static bool whole_before(const char *text, size_t at) {
    while (at > 0 && text[at - 1] == ' ') {
        at--;
    }
    if (at == 0 || !lt_is_digit(text[at - 1])) {
        return false;
    }
    while (at > 0 && lt_is_digit(text[at - 1])) {
        at--;
    }
    return at == 0 || strchr(".^/,", text[at - 1]) == NULL;
}

/* Stage 2: \frac{a}{b} to ((a)/(b)); the last one first, so that its arguments hold no other. */
static bool fractions(char *text) {
    for (int round = 0; round < LT_EXPRESSION_TOKENS; round++) {
        char out[LT_EXPRESSION_BYTES];
        line to = {.data = out};
        const char *last = NULL;
        size_t at, a0, a1, b0, b1;
        for (const char *p = strstr(text, "\\frac"); p != NULL; p = strstr(p + 1, "\\frac")) {
            last = p;
        }
        if (last == NULL) {
            return true;
        }
        at = (size_t)(last - text) + 5;
        if (!argument(text, &at, &a0, &a1) || !argument(text, &at, &b0, &b1)) {
            return false;
        }
        put(&to, text, (size_t)(last - text));
        if (all_digits(text, a0, a1) && all_digits(text, b0, b1) &&
            whole_before(text, (size_t)(last - text))) {
            put(&to, "&", 1);
        }
        put(&to, "((", 2);
        put(&to, text + a0, a1 - a0);
        put(&to, ")/(", 3);
        put(&to, text + b0, b1 - b0);
        put(&to, "))", 2);
        put(&to, text + at, strlen(text + at));
        if (to.full) {
            return false;
        }
        memcpy(text, out, to.n + 1);
    }
    return false;
}

/* Stage 3: "2 1/2" to "2&(1/2)". */
static bool mixed(char *text) {
    char out[LT_EXPRESSION_BYTES];
    line to = {.data = out};
    out[0] = 0;
    for (size_t i = 0; text[i] != 0;) {
        size_t top = i, slash, end;
        while (lt_is_digit(text[top])) {
            top++;
        }
        slash = top;
        end = slash + 1;
        while (top > i && text[slash] == '/' && lt_is_digit(text[end])) {
            end++;
        }
        if (end > slash + 1 && text[end] != '.' && i > 0 && text[i - 1] == ' ' &&
            whole_before(text, i)) {
            put(&to, "&(", 2);
            put(&to, text + i, end - i);
            put(&to, ")", 1);
            i = end;
        } else {
            end = top > i ? top : i + 1;
            put(&to, text + i, end - i);
            i = end;
        }
    }
    memcpy(text, out, to.n + 1);
    return !to.full;
}

/* Append one word of a unit in its standard spelling; *known: it is in the table. */
static void unit_word(line *to, const char *word, size_t n, bool *known) {
    const size_t singular = n > 3 && word[n - 1] == 's' ? n - 1 : n;
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        const size_t len = strlen(units[u].from);
        const bool same = len >= 3 ? strncasecmp(word, units[u].from, len) == 0
                                   : strncmp(word, units[u].from, len) == 0;
        if (same &&
            (len == singular || len == n || (len == n - 1 && len > 1 && word[len] == 's'))) {
            put(to, units[u].to, strlen(units[u].to));
            *known = true;
            return;
        }
    }
    put(to, word, singular);
    *known = false;
}

/* The standard spelling of a unit; *known: each word of it is in the table. */
static void unit_standard(char out[LT_EXPRESSION_UNIT], const char *text, size_t n, bool *known) {
    char room[LT_EXPRESSION_BYTES];
    line to = {.data = room};
    room[0] = 0;
    *known = true;
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && lt_is_letter(text[end])) {
            end++;
        }
        if (end > i) {
            bool this_known = false;
            unit_word(&to, text + i, end - i, &this_known);
            *known = *known && this_known;
            i = end;
        } else {
            put(&to, text + i, 1);
            i++;
        }
    }
    if (to.n >= LT_EXPRESSION_UNIT) {
        to.n = LT_EXPRESSION_UNIT - 1; /* No unit of a problem is that long: it equals none. */
    }
    memcpy(out, room, to.n);
    out[to.n] = 0;
}

/* Stage 4: remove the words after a number. *exponent: that of a scale word among them. */
static void cut_unit(lt_expression *x, const lt_expression *like, int *exponent) {
    size_t n = strlen(x->text), from = n, begin;
    char unit[LT_EXPRESSION_UNIT];
    bool known = false, spaced;
    size_t letters = 0;
    while (from > 0 && strchr("0123456789)%}", x->text[from - 1]) == NULL) {
        from--;
    }
    begin = from;
    while (x->text[begin] == ' ') {
        begin++;
    }
    if (from == 0 || !lt_is_letter(x->text[begin])) {
        return;
    }
    for (size_t i = begin; i < n; i++) {
        letters += lt_is_letter(x->text[i]);
        if (!lt_is_letter(x->text[i]) && strchr(" /", x->text[i]) == NULL) {
            return;
        }
    }
    for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
        const size_t len = strlen(scales[s].word);
        if (strncasecmp(x->text + begin, scales[s].word, len) == 0 &&
            !lt_is_letter(x->text[begin + len])) {
            *exponent = scales[s].exponent;
            x->text[from] = 0;
            for (begin += len; x->text[begin] == ' '; begin++) {}
            unit_standard(x->unit, x->text + begin, n - begin, &x->unit_known);
            return;
        }
    }
    spaced = begin > from;
    unit_standard(unit, x->text + begin, n - begin, &known);
    if (like != NULL && like->has_variables) {
        return;
    }
    if ((like != NULL && like->unit[0] != 0 && strcmp(like->unit, unit) == 0) || spaced ||
        letters >= 3 || (known && letters >= 2)) {
        memcpy(x->unit, unit, sizeof unit);
        x->unit_known = known;
        x->text[from] = 0;
    }
}

static int precedence(char op) {
    static const char order[] = "(+-*/~^&#";
    static const char level[] = {0, 1, 1, 2, 2, 3, 4, 5, 6};
    const char *at = strchr(order, op);
    LT_ASSERT(op != 0 && at != NULL);
    return level[at - order];
}

/* The end of the number that begins at text[i], or i if none does. For 1.5e3, *exponent is 3 and
 * *mantissa the end of 1.5. */
static size_t number_end(const char *text, size_t i, int *exponent, size_t *mantissa) {
    const size_t begin = i;
    size_t end, group;
    while (lt_is_digit(text[i])) {
        i++;
    }
    group = i - begin;
    if (text[i] == ',') {
        if (group == 0 || group > 3 || text[begin] == '0') {
            return begin;
        }
        while (text[i] == ',') {
            if (!lt_is_digit(text[i + 1]) || !lt_is_digit(text[i + 2]) ||
                !lt_is_digit(text[i + 3]) || lt_is_digit(text[i + 4])) {
                return begin;
            }
            i += 4;
        }
    }
    if (text[i] == '.') {
        i++;
        if (group == 0 && !lt_is_digit(text[i])) {
            return begin;
        }
        while (lt_is_digit(text[i])) {
            i++;
        }
    }
    end = i;
    *exponent = 0;
    *mantissa = i;
    if (end > begin && (text[i] == 'e' || text[i] == 'E')) {
        const bool negative = text[i + 1] == '-';
        int value = 0;
        i += 1u + (negative || text[i + 1] == '+');
        if (lt_is_digit(text[i])) {
            for (; lt_is_digit(text[i]) && value <= MAX_EXPONENT; i++) {
                value = 10 * value + (text[i] - '0');
            }
            *exponent = negative ? -value : value;
            end = lt_is_digit(text[i]) ? begin : i;
        }
    }
    return end;
}

typedef struct {
    lt_expression *x;
    char ops[LT_EXPRESSION_TOKENS];
    int n_ops;
    bool full;
} yard;

static void emit(yard *y, lt_expression_token t) {
    if (y->x->n_tokens == LT_EXPRESSION_TOKENS) {
        y->full = true;
        return;
    }
    y->x->tokens[y->x->n_tokens++] = t;
}

static void push(yard *y, char op) {
    if (y->n_ops == LT_EXPRESSION_TOKENS) {
        y->full = true;
        return;
    }
    y->ops[y->n_ops++] = op;
}

static void binary(yard *y, char op) {
    const int mine = precedence(op);
    while (y->n_ops > 0 && (precedence(y->ops[y->n_ops - 1]) > mine ||
                            (precedence(y->ops[y->n_ops - 1]) == mine && op != '^'))) {
        emit(y, (lt_expression_token){.op = y->ops[--y->n_ops]});
    }
    push(y, op);
}

static bool close_group(yard *y) {
    while (y->n_ops > 0 && y->ops[y->n_ops - 1] != '(') {
        emit(y, (lt_expression_token){.op = y->ops[--y->n_ops]});
    }
    if (y->n_ops == 0) {
        return false;
    }
    y->n_ops--;
    return true;
}

/* Read the token at text[*at]. *wants: an operand must come next. False: this token is not allowed
 * here. */
static bool token(yard *y, size_t *at, bool *wants) {
    const char *text = y->x->text;
    const char c = text[*at];
    int exponent = 0;
    size_t mantissa = *at;
    const size_t end = number_end(text, *at, &exponent, &mantissa);

    if (end > *at) {
        if (!*wants) {
            return false;
        }
        emit(y, (lt_expression_token){.op = '0',
                                      .begin = (unsigned short)*at,
                                      .end = (unsigned short)mantissa,
                                      .exponent = exponent});
        *wants = false;
        *at = end;
        return true;
    }
    (*at)++;
    if (c == ' ' || (c == '&' && *wants)) { /* A fraction without a whole number before it. */
        return true;
    }
    if (lt_is_letter(c) || c == PI || c == '(' || c == '{' || c == '#') {
        if (lt_is_letter(c) && lt_is_letter(text[*at]) && lt_is_letter(text[*at + 1])) {
            return false; /* A word. */
        }
        if (!*wants) {
            binary(y, '*');
        }
        *wants = c == '(' || c == '{' || c == '#';
        if (*wants) {
            push(y, c == '{' ? '(' : c);
        } else {
            y->x->has_variables = true;
            emit(y, (lt_expression_token){.op = 'x', .variable = (unsigned char)c});
        }
        return true;
    }
    if (*wants) {
        if (c == '-') {
            push(y, '~');
        }
        return c == '-' || c == '+';
    }
    if (c == ')' || c == '}') {
        return close_group(y);
    }
    if (c == '%') {
        emit(y, (lt_expression_token){.op = '%'});
        return true;
    }
    *wants = true;
    if (lt_is_one_of(c, "+-*/^&")) {
        binary(y, c);
        return true;
    }
    return false;
}

static bool compile(lt_expression *x, int exponent) {
    yard y = {.x = x};
    bool wants = true;
    for (size_t at = 0; x->text[at] != 0;) {
        if (!token(&y, &at, &wants) || y.full) {
            return false;
        }
    }
    while (y.n_ops > 0) {
        if (y.ops[y.n_ops - 1] == '(') {
            return false;
        }
        emit(&y, (lt_expression_token){.op = y.ops[--y.n_ops]});
    }
    if (exponent != 0 && x->n_tokens > 0) { /* "2.5 million" */
        if (x->n_tokens != 1 || x->tokens[0].op != '0') {
            return false;
        }
        x->tokens[0].exponent += exponent;
    }
    return !wants && !y.full;
}

bool lt_expression_read(lt_expression *out, const char *text, size_t n, const lt_expression *like) {
    const char *equals;
    int exponent = 0;
    out->n_tokens = 0;
    out->has_variables = false;
    out->unit[0] = 0;
    out->unit_known = false;
    if (n >= LT_EXPRESSION_BYTES || !respell(out->text, text, n) || !fractions(out->text) ||
        !mixed(out->text)) {
        return false;
    }
    equals = strrchr(out->text, '=');
    if (equals != NULL) {
        if (equals == out->text || strchr("<>!~:\\", equals[-1]) != NULL || equals[-1] < 0) {
            return false; /* An inequality. */
        }
        memmove(out->text, equals + 1, strlen(equals + 1) + 1);
    }
    cut_unit(out, like, &exponent);
    return compile(out, exponent);
}

/* The value of a variable at a drawn point: 21 to 31 bits. */
static int64_t drawn(unsigned char variable, int point) {
    return (int64_t)((lt_rng_mix((uint64_t)variable * N_POINTS + (uint64_t)point) >> 33) |
                     (1u << 20));
}

typedef bool (*binary_op)(lt_exact *out, const lt_exact *a, const lt_exact *b);

static binary_op op_of(char op) {
    switch (op) {
    case '+':
    case '&':
        return lt_exact_add;
    case '-':
        return lt_exact_sub;
    case '*':
        return lt_exact_mul;
    case '/':
        return lt_exact_div;
    default:
        LT_ASSERT(op == '^');
        return lt_exact_pow;
    }
}

/* Write the value at a point to stack[0]. False: there is none, or it is too large. */
static bool evaluate(const lt_expression *x, int point, lt_exact *stack) {
    int n = 0;
    for (int i = 0; i < x->n_tokens; i++) {
        const lt_expression_token *t = &x->tokens[i];
        bool fits = true;
        if (t->op == '0') {
            fits = lt_exact_decimal(&stack[n++], x->text + t->begin, (size_t)(t->end - t->begin),
                                    t->exponent);
        } else if (t->op == 'x') {
            lt_exact_set(&stack[n++], drawn(t->variable, point));
        } else if (t->op == '~') {
            LT_ASSERT(n >= 1);
            stack[n - 1].negative = stack[n - 1].num.n > 0 && !stack[n - 1].negative;
        } else if (t->op == '#') {
            LT_ASSERT(n >= 1);
            fits = lt_exact_sqrt(&stack[n - 1], &stack[n - 1]);
        } else if (t->op == '%') {
            LT_ASSERT(n >= 1 && n <= LT_EXPRESSION_TOKENS);
            lt_exact_set(&stack[n], 100);
            fits = lt_exact_div(&stack[n - 1], &stack[n - 1], &stack[n]);
        } else {
            LT_ASSERT(n >= 2);
            n--;
            fits = op_of(t->op)(&stack[n - 1], &stack[n - 1], &stack[n]);
        }
        if (!fits) {
            return false;
        }
    }
    LT_ASSERT(n == 1);
    return true;
}

static bool same_spelling(const char *a, const char *b) {
    for (;;) {
        while (*a == ' ') {
            a++;
        }
        while (*b == ' ') {
            b++;
        }
        if (*a != *b) {
            return false;
        }
        if (*a == 0) {
            return true;
        }
        a++;
        b++;
    }
}

lt_err lt_expression_equal(bool *equal, const lt_expression *a, const lt_expression *b) {
    const int points = a->has_variables || b->has_variables ? N_POINTS : 1;
    const int room = (a->n_tokens > b->n_tokens ? a->n_tokens : b->n_tokens) + 2;
    lt_exact *left = malloc((size_t)room * sizeof *left);
    lt_exact *right = malloc((size_t)room * sizeof *right);

    if (left == NULL || right == NULL) {
        free(left);
        free(right);
        LT_FAIL(LT_ERR_OOM, "values of an expression of %d tokens", room - 2);
    }
    *equal = true;
    for (int p = 0; p < points && *equal; p++) {
        if (!evaluate(a, p, left) || !evaluate(b, p, right) ||
            !lt_exact_equal(&left[0], &right[0], equal)) {
            *equal = same_spelling(a->text, b->text);
        }
    }
    free(left);
    free(right);
    return LT_OK;
}

bool lt_expression_units(const lt_expression *truth, const lt_expression *answer, bool words) {
    if (truth->unit[0] == 0 || answer->unit[0] == 0) {
        return answer->unit[0] == 0 || answer->unit_known ||
               (words && strpbrk(answer->unit, " /") == NULL);
    }
    return strcmp(truth->unit, answer->unit) == 0;
}
