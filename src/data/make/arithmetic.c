/* arithmetic.c: sums, differences, products and quotients of whole numbers by the methods taught at
 * school; expressions, reduced one operation at a time; fractions.
 *
 * The key has the operands of a commutative operation in ascending order. The key of an expression
 * is its text. */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/error.h"
#include "data/make/kind.h"

static const char *const places[] = {"Ones",      "Tens",          "Hundreds",
                                     "Thousands", "Ten thousands", "Hundred thousands",
                                     "Millions",  "Ten millions",  "Hundred millions",
                                     "Billions"};

enum { A, B };

static const char *const add_words[] = {"What is {a} + {b}?", "Add {a} and {b}.",
                                        "Compute {a} + {b}.", "What is the sum of {a} and {b}?",
                                        "{a} + {b} = ?"};
static const char *const subtract_words[] = {"What is {a} - {b}?", "Subtract {b} from {a}.",
                                             "Compute {a} - {b}.", "What is {a} minus {b}?",
                                             "{a} - {b} = ?"};
static const char *const multiply_words[] = {
    "What is {a} * {b}?", "Multiply {a} by {b}.", "Compute {a} * {b}.",
    "What is the product of {a} and {b}?", "{a} * {b} = ?"};
static const char *const divide_words[] = {"What is {a} / {b}?", "Divide {a} by {b}.",
                                           "Compute {a} / {b}.",
                                           "How many times does {b} go into {a}?", "{a} / {b} = ?"};
static const char *const remainder_words[] = {"What is the remainder when {a} is divided by {b}?",
                                              "Find the remainder of {a} divided by {b}.",
                                              "What remains when {a} is divided by {b}?"};

static void ask(lt_page *p, lt_rng *r, const char *const *words, int n, const lt_draft *d) {
    const lt_slots s = {.numbers = {{d->v[A], 1}, {d->v[B], 1}}};
    lt_fill(&p->question, words[lt_pick(r, n)], &s);
    lt_param(p, "a", d->v[A]);
    lt_param(p, "b", d->v[B]);
}

static void swap_operands(lt_draft *d) {
    const lt_num a = d->v[A];
    d->v[A] = d->v[B];
    d->v[B] = a;
}

static void key_sorted(lt_draft *d) {
    lt_key(d, 2);
    if (d->key[0] > d->key[1]) {
        d->key[0] = d->v[B];
        d->key[1] = d->v[A];
    }
}

/* Draw the operands of sums and differences. */
static void draw_terms(lt_draft *d, lt_rng *r) {
    static const int low[] = {1, 2, 3, 4, 6}, high[] = {2, 3, 4, 6, 9};
    const int at = d->level - 1;
    d->v[A] = lt_digits(r, high[at]);
    d->v[B] = lt_digits(r, (int)lt_between(r, low[at], high[at]));
    if (lt_pick(r, 2) == 0) {
        swap_operands(d);
    }
}

static void draw_add(lt_draft *d, lt_rng *r) {
    draw_terms(d, r);
    key_sorted(d);
}

/* Below level 2 no number is negative. */
static void draw_subtract(lt_draft *d, lt_rng *r) {
    draw_terms(d, r);
    if (d->v[A] < d->v[B] && (d->level < 2 || lt_pick(r, 2) == 0)) {
        swap_operands(d);
    }
    lt_key(d, 2);
}

static void write_add(const lt_draft *d, lt_page *p, lt_rng *r) {
    lt_num a = d->v[A], b = d->v[B], carry = 0;
    ask(p, r, add_words, LT_COUNT(add_words), d);
    for (int place = 0; a > 0 || b > 0; place++, a /= 10, b /= 10) {
        const lt_num sum = a % 10 + b % 10 + carry;
        lt_say(&p->steps,
               carry > 0 ? "%s: %lld + %lld + 1 = %lld, write %lld"
                         : "%s: %lld + %lld = %lld, write %lld",
               places[place], a % 10, b % 10, sum, sum % 10);
        carry = sum / 10;
        lt_put(&p->steps, carry > 0 ? ", carry 1.\n" : ".\n");
    }
    lt_put(&p->steps, carry > 0 ? "Write the carry 1 in front.\n" : "");
    lt_say(&p->steps, "So %lld + %lld = %lld.\n", d->v[A], d->v[B], d->v[A] + d->v[B]);
    lt_say(&p->answer, "%lld", d->v[A] + d->v[B]);
}

static void write_subtract(const lt_draft *d, lt_page *p, lt_rng *r) {
    const bool swap = d->v[A] < d->v[B];
    lt_num a = swap ? d->v[B] : d->v[A], b = swap ? d->v[A] : d->v[B], borrow = 0;
    const lt_num difference = a - b;
    ask(p, r, subtract_words, LT_COUNT(subtract_words), d);
    if (swap) {
        lt_say(&p->steps, "%lld is larger than %lld, so compute %lld - %lld and change the sign.\n",
               a, b, a, b);
    }
    for (int place = 0; a > 0; place++, a /= 10, b /= 10) {
        lt_num top = a % 10;
        lt_say(&p->steps, "%s: ", places[place]);
        if (borrow > 0) {
            lt_say(&p->steps, "%lld - 1 = %lld, ", top, top - 1);
            top--;
        }
        borrow = top < b % 10;
        if (borrow > 0) {
            lt_say(&p->steps, "borrow: %lld + 10 = %lld, ", top, top + 10);
            top += 10;
        }
        lt_say(&p->steps, "%lld - %lld = %lld, write %lld.\n", top, b % 10, top - b % 10,
               top - b % 10);
    }
    if (swap) {
        lt_say(&p->steps, "So %lld - %lld = %lld.\n", d->v[B], d->v[A], difference);
    }
    lt_say(&p->steps, "So %lld - %lld = %lld.\n", d->v[A], d->v[B], d->v[A] - d->v[B]);
    lt_say(&p->answer, "%lld", d->v[A] - d->v[B]);
}

static void draw_multiply(lt_draft *d, lt_rng *r) {
    static const int first[] = {1, 2, 2, 3, 4}, low[] = {2, 2, 3, 3, 3}, high[] = {3, 2, 3, 3, 4};
    const int at = d->level - 1;
    d->v[A] = d->level == 1 ? lt_between(r, 2, 9) : lt_digits(r, first[at]);
    d->v[B] = lt_digits(r, (int)lt_between(r, low[at], high[at]));
    if (lt_pick(r, 2) == 0) {
        swap_operands(d);
    }
    key_sorted(d);
}

static lt_num power_of_ten(int n) {
    lt_num power = 1;
    while (n-- > 0) {
        power *= 10;
    }
    return power;
}

/* The power of ten of the first digit of a: 2 for 345. */
static int first_place(lt_num a) {
    int place = 0;
    while (power_of_ten(place + 1) <= a) {
        place++;
    }
    return place;
}

/* Write a * digit, one digit of a at a time: "300 * 6 = 1800, 40 * 6 = 240, 1800 + 240 =
 * 2040." */
static void times_digit(lt_page_text *t, lt_num a, lt_num digit) {
    lt_num sum = 0;
    for (int place = first_place(a); place >= 0; place--) {
        const lt_num part = a / power_of_ten(place) % 10 * power_of_ten(place);
        if (part == 0) {
            continue;
        }
        lt_say(t, sum > 0 ? ", %lld * %lld = %lld" : "%lld * %lld = %lld", part, digit,
               part * digit);
        if (sum > 0) {
            lt_say(t, ", %lld + %lld = %lld", sum, part * digit, sum + part * digit);
        }
        sum += part * digit;
    }
    lt_put(t, ".\n");
}

static void write_multiply(const lt_draft *d, lt_page *p, lt_rng *r) {
    const bool swap = d->v[A] < d->v[B];
    const lt_num a = swap ? d->v[B] : d->v[A], b = swap ? d->v[A] : d->v[B];
    lt_num sum = 0;
    int place = 0;
    ask(p, r, multiply_words, LT_COUNT(multiply_words), d);
    for (lt_num rest = b; rest > 0; rest /= 10, place++) {
        const lt_num digit = rest % 10, part = digit * power_of_ten(place);
        if (digit == 0) {
            continue;
        }
        lt_say(&p->steps, "%lld * %lld: ", a, digit);
        times_digit(&p->steps, a, digit);
        if (place > 0) {
            lt_say(&p->steps, "So %lld * %lld = %lld.\n", a, part, a * part);
        }
        if (sum > 0) {
            lt_say(&p->steps, "%lld + %lld = %lld.\n", sum, a * part, sum + a * part);
        }
        sum += a * part;
    }
    lt_say(&p->steps, "So %lld * %lld = %lld.\n", d->v[A], d->v[B], sum);
    lt_say(&p->answer, "%lld", sum);
}

/* Draw v[A] / v[B]; the level gives the number of digits of divisor and quotient. */
static void draw_quotient(lt_draft *d, lt_rng *r, bool exact) {
    static const int divisor[] = {1, 1, 2, 2, 3}, low[] = {2, 3, 2, 3, 3}, high[] = {3, 4, 3, 4, 4};
    const int at = d->level - 1;
    const lt_num b = d->level <= 2 ? lt_between(r, 2, 9) : lt_digits(r, divisor[at]);
    const lt_num q = lt_digits(r, (int)lt_between(r, low[at], high[at]));
    d->v[A] = q * b + (exact ? 0 : lt_between(r, 0, b - 1));
    d->v[B] = b;
    lt_key(d, 2);
}

static void draw_divide(lt_draft *d, lt_rng *r) {
    draw_quotient(d, r, true);
}

static void draw_remainder(lt_draft *d, lt_rng *r) {
    draw_quotient(d, r, false);
}

static void long_division(lt_page_text *t, lt_num a, lt_num b) {
    lt_num rest = 0;
    bool begun = false;
    for (int place = first_place(a); place >= 0; place--) {
        const lt_num digit = a / power_of_ten(place) % 10;
        rest = 10 * rest + digit;
        if (!begun && rest < b && place > 0) {
            continue;
        }
        if (begun) {
            lt_say(t, "Bring down %lld: %lld. ", digit, rest);
        } else {
            lt_say(t, "Begin with %lld. ", rest);
        }
        begun = true;
        lt_say(t, "%lld * %lld = %lld, %lld - %lld = %lld, write %lld.\n", rest / b, b,
               rest / b * b, rest, rest / b * b, rest % b, rest / b);
        rest %= b;
    }
}

static void write_divide(const lt_draft *d, lt_page *p, lt_rng *r) {
    ask(p, r, divide_words, LT_COUNT(divide_words), d);
    long_division(&p->steps, d->v[A], d->v[B]);
    lt_say(&p->steps, "So %lld / %lld = %lld.\n", d->v[A], d->v[B], d->v[A] / d->v[B]);
    lt_say(&p->answer, "%lld", d->v[A] / d->v[B]);
}

static void write_remainder(const lt_draft *d, lt_page *p, lt_rng *r) {
    const lt_num q = d->v[A] / d->v[B], rest = d->v[A] % d->v[B];
    ask(p, r, remainder_words, LT_COUNT(remainder_words), d);
    long_division(&p->steps, d->v[A], d->v[B]);
    lt_say(&p->steps, "So %lld = %lld * %lld + %lld, and the remainder is %lld.\n", d->v[A], q,
           d->v[B], rest, rest);
    lt_say(&p->answer, "%lld", rest);
}

/* Expressions: leaves 0 .. n, then operations, each of which joins two neighbours. v holds n, the
 * leaves (numerator and denominator), and the sign and the two operands of each operation. */
#define MAX_OPS  5
#define MAX_NODE (2 * MAX_OPS + 1)
#define TEXT     160
#define MAX_TERM 100000 /* Largest intermediate value. */

typedef struct {
    int n_ops;
    lt_fraction value[MAX_NODE];
    int op[MAX_NODE];
    int left[MAX_NODE], right[MAX_NODE], first[MAX_NODE]; /* first: the leftmost leaf. */
    bool done[MAX_NODE];                                  /* A leaf, or reduced. */
} tree;

static void tree_of(tree *t, const lt_draft *d) {
    const lt_num *v = d->v;
    const int leaves = (int)*v + 1;
    t->n_ops = (int)*v++;
    LT_ASSERT(leaves <= MAX_OPS + 1);
    for (int i = 0; i < leaves; i++, v += 2) {
        t->value[i] = (lt_fraction){v[0], v[1]};
        t->first[i] = i;
        t->done[i] = true;
    }
    for (int i = leaves; i < leaves + t->n_ops; i++, v += 3) {
        t->op[i] = (int)v[0];
        t->left[i] = (int)v[1];
        t->right[i] = (int)v[2];
        t->first[i] = t->first[t->left[i]];
        t->done[i] = false;
    }
}

static bool apply(lt_fraction *out, int op, lt_fraction a, lt_fraction b) {
    if (op == '/' && b.n == 0) {
        return false;
    }
    *out = op == '+'   ? lt_fraction_add(a, b)
           : op == '-' ? lt_fraction_sub(a, b)
           : op == '*' ? lt_fraction_mul(a, b)
                       : lt_fraction_div(a, b);
    return llabs(out->n) <= MAX_TERM && out->d <= MAX_TERM / 100;
}

static bool tight(int op) {
    return op == '*' || op == '/';
}

/* The text of the whole expression, built from the leaves up. */
static void tree_text(const tree *t, char text[MAX_NODE][TEXT]) {
    const int root = 2 * t->n_ops;
    lt_page_text out;
    for (int i = 0; i <= root; i++) {
        out = (lt_page_text){text[i], 0, TEXT};
        if (t->done[i]) {
            lt_put_fraction(&out, t->value[i]);
            continue;
        }
        for (int side = 0; side < 2; side++) {
            const int c = side == 0 ? t->left[i] : t->right[i];
            const bool bracket = t->done[c] ? (t->value[c].n < 0 && t->first[c] > 0) ||
                                                  (t->value[c].d != 1 && tight(t->op[i]))
                                            : tight(t->op[c]) < tight(t->op[i]) ||
                                                  (side == 1 && tight(t->op[c]) == tight(t->op[i]));
            if (side == 1) {
                const char sign[] = {' ', (char)t->op[i], ' ', 0};
                lt_put(&out, sign);
            }
            lt_put(&out, bracket ? "(" : "");
            lt_put(&out, text[c]);
            lt_put(&out, bracket ? ")" : "");
        }
    }
}

/* Reduce the leftmost operation whose operands are numbers. False: too large, or a division by 0.
 */
static bool tree_reduce(tree *t) {
    int at = -1;
    for (int i = t->n_ops + 1; i <= 2 * t->n_ops; i++) {
        if (!t->done[i] && t->done[t->left[i]] && t->done[t->right[i]] &&
            (at < 0 || t->first[i] < t->first[at])) {
            at = i;
        }
    }
    LT_ASSERT(at >= 0);
    t->done[at] = true;
    return apply(&t->value[at], t->op[at], t->value[t->left[at]], t->value[t->right[at]]);
}

static bool draw_tree(lt_draft *d, lt_rng *r) {
    static const int ops[] = {2, 3, 3, 4, 5};
    static const char signs[] = "+-*/";
    const int n = ops[d->level - 1];
    const bool fractions = d->level >= 4;
    int open[MAX_OPS + 1], n_open = n + 1;
    lt_num *v = d->v;
    tree t;
    *v++ = n;
    for (int i = 0; i <= n; i++) {
        lt_fraction leaf = {lt_between(r, 1, d->level == 1 ? 9 : 12), 1};
        if (fractions && lt_pick(r, 3) == 0) {
            leaf = lt_fraction_of(leaf.n, lt_between(r, 2, 8));
        }
        *v++ = leaf.n;
        *v++ = leaf.d;
        open[i] = i;
    }
    for (int i = 0; i < n; i++) {
        const int at = lt_pick(r, n_open - 1);
        *v++ = signs[lt_pick(r, fractions ? 4 : 3)];
        *v++ = open[at];
        *v++ = open[at + 1];
        open[at] = n + 1 + i;
        n_open--;
        memmove(open + at + 1, open + at + 2, (size_t)(n_open - at - 1) * sizeof *open);
    }
    tree_of(&t, d);
    for (int i = 0; i < n; i++) {
        if (!tree_reduce(&t)) {
            return false;
        }
    }
    return true;
}

static void draw_expression(lt_draft *d, lt_rng *r) {
    char text[MAX_NODE][TEXT];
    tree t;
    while (!draw_tree(d, r)) {}
    tree_of(&t, d);
    tree_text(&t, text);
    d->key[0] = (lt_num)XXH3_64bits(text[2 * t.n_ops], strlen(text[2 * t.n_ops]));
    d->n_key = 1;
}

static void write_expression(const lt_draft *d, lt_page *p, lt_rng *r) {
    static const char *const words[] = {"What is {A}?", "Compute {A}.", "Evaluate {A}.",
                                        "Find the value of {A}."};
    char text[MAX_NODE][TEXT];
    char *whole = text[2 * (int)d->v[0]];
    tree t;
    tree_of(&t, d);
    tree_text(&t, text);
    lt_fill(&p->question, words[lt_pick(r, LT_COUNT(words))], &(lt_slots){.words = {whole}});
    lt_param_text(p, "expression", whole);
    for (int i = 0; i < t.n_ops; i++) {
        lt_say(&p->steps, i == 0 ? "%s\n" : "= %s\n", whole);
        (void)tree_reduce(&t);
        tree_text(&t, text);
    }
    lt_say(&p->steps, "= %s\n", whole);
    lt_put(&p->answer, whole);
}

/* Two fractions and an operation: v = n1, d1, n2, d2, op. */
static void draw_fractions(lt_draft *d, lt_rng *r) {
    static const lt_num high[] = {6, 9, 12, 20, 50};
    const lt_num most = high[d->level - 1];
    for (int i = 0; i < 2; i++) {
        lt_fraction q;
        do {
            const lt_num den = lt_between(r, 2, most);
            q = lt_fraction_of(lt_between(r, 1, 2 * den), den);
        } while (q.d == 1);
        d->v[2 * i] = q.n;
        d->v[2 * i + 1] = q.d;
    }
    d->v[4] = "+-*/"[lt_pick(r, 4)];
    lt_key(d, 5);
    if ((d->v[4] == '+' || d->v[4] == '*') &&
        (d->v[0] > d->v[2] || (d->v[0] == d->v[2] && d->v[1] > d->v[3]))) {
        memcpy(d->key, d->v + 2, 2 * sizeof *d->v);
        memcpy(d->key + 2, d->v, 2 * sizeof *d->v);
    }
}

static void lowest_terms(lt_page_text *t, lt_num n, lt_num d) {
    if (lt_gcd(n, d) > 1) {
        lt_say(t, "Divide both by %lld: %lld/%lld = ", lt_gcd(n, d), n, d);
        lt_put_fraction(t, lt_fraction_of(n, d));
        lt_put(t, ".\n");
    }
}

static void write_fractions(const lt_draft *d, lt_page *p, lt_rng *r) {
    static const char *const words[] = {"What is {A}? Give a fraction in lowest terms.",
                                        "Compute {A} as a fraction in lowest terms.",
                                        "Work out {A}. Write the result in lowest terms."};
    const lt_num a = d->v[0], b = d->v[1], x = d->v[2], y = d->v[3];
    const char op = (char)d->v[4];
    const lt_fraction left = {a, b}, right = {x, y};
    lt_fraction result;
    char expression[64];
    lt_page_text e = {expression, 0, sizeof expression};
    (void)apply(&result, op, left, right);
    lt_say(&e, tight(op) ? "(%lld/%lld) %c (%lld/%lld)" : "%lld/%lld %c %lld/%lld", a, b, op, x, y);
    lt_fill(&p->question, words[lt_pick(r, LT_COUNT(words))], &(lt_slots){.words = {expression}});
    lt_param_text(p, "expression", expression);
    if (op == '/') {
        lt_say(&p->steps, "Dividing by %lld/%lld is multiplying by %lld/%lld.\n", x, y, y, x);
        lt_say(&p->steps, "%lld * %lld = %lld and %lld * %lld = %lld, so %s = %lld/%lld.\n", a, y,
               a * y, b, x, b * x, expression, a * y, b * x);
        lowest_terms(&p->steps, a * y, b * x);
    } else if (op == '*') {
        lt_say(&p->steps, "%lld * %lld = %lld and %lld * %lld = %lld, so %s = %lld/%lld.\n", a, x,
               a * x, b, y, b * y, expression, a * x, b * y);
        lowest_terms(&p->steps, a * x, b * y);
    } else {
        const lt_num both = b / lt_gcd(b, y) * y, n1 = a * (both / b), n2 = x * (both / y);
        const lt_num n = op == '+' ? n1 + n2 : n1 - n2;
        lt_say(&p->steps, "The common denominator of %lld and %lld is %lld.\n", b, y, both);
        lt_say(&p->steps, "%lld/%lld = %lld/%lld and %lld/%lld = %lld/%lld.\n", a, b, n1, both, x,
               y, n2, both);
        lt_say(&p->steps, "%lld %c %lld = %lld, so %s = %lld/%lld.\n", n1, op, n2, n, expression, n,
               both);
        lowest_terms(&p->steps, n, both);
    }
    lt_put_fraction(&p->answer, result);
}

static const lt_task tasks[] = {
    {"add", 1, 5, "number", draw_add, write_add},
    {"subtract", 1, 5, "number", draw_subtract, write_subtract},
    {"multiply", 1, 5, "number", draw_multiply, write_multiply},
    {"divide", 1, 5, "number", draw_divide, write_divide},
    {"remainder", 1, 5, "number", draw_remainder, write_remainder},
    {"expression", 1, 5, "number", draw_expression, write_expression},
    {"fractions", 2, 5, "number", draw_fractions, write_fractions},
};

const lt_kind lt_kind_arithmetic = {tasks, LT_COUNT(tasks)};
