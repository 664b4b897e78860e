/* algebra.c: linear equations, systems of two of them, and quadratic equations with whole roots.
 *
 * Every equation in the steps holds for the solution. The key of an equation is its coefficients;
 * which root is asked for does not count. */
#include <stdlib.h>

#include "base/error.h"
#include "data/make/kind.h"

/* Append c*name as the first term or a later one: "3x", " - x"; nothing for c = 0. */
static void term(lt_page_text *t, lt_num c, const char *name, bool first) {
    if (c == 0) {
        return;
    }
    lt_put(t, first ? (c < 0 ? "-" : "") : (c < 0 ? " - " : " + "));
    if (llabs(c) != 1 || name[0] == 0) {
        lt_say(t, "%lld", llabs(c));
    }
    lt_put(t, name);
}

/* "3x - 5", "-5", "0" */
static void line(lt_page_text *t, lt_num a, lt_num b) {
    term(t, a, "x", true);
    term(t, b, "", a == 0);
    if (a == 0 && b == 0) {
        lt_put(t, "0");
    }
}

/* "a = b" with both sides linear in x. */
static void sides(lt_page_text *t, lt_num a, lt_num b, lt_num c, lt_num d) {
    line(t, a, b);
    lt_put(t, " = ");
    line(t, c, d);
}

/* Append a number as an operand: -3 in brackets. */
static void operand(lt_page_text *t, lt_num x) {
    lt_say(t, x < 0 ? "(%lld)" : "%lld", x);
}

/* Draw a number that is not 0 and whose size is at most `most`. */
static lt_num some(lt_rng *r, lt_num most) {
    const lt_num x = lt_between(r, 1, most);
    return lt_pick(r, 2) == 0 ? -x : x;
}

/* LINEAR. v = a, b, c, d: ax + b = cx + d at levels 1 to 3; a(x + b) = cx + d at 4;
 * a(x + b) = c(x + d) + e at 5, with e in v[4]. */
enum { LA, LB, LC, LD, LE };

static bool draw_equation(lt_num *v, lt_rng *r, int level) {
    static const lt_num most[] = {9, 12, 12, 9, 9};
    const lt_num x = level == 1 ? lt_between(r, 1, 20) : lt_between(r, -30, 30);
    const lt_num m = most[level - 1];
    v[LA] = level == 1 ? lt_between(r, 2, m) : some(r, m);
    v[LB] = level == 1 ? lt_between(r, 1, 50) : some(r, level <= 3 ? 60 : 12);
    v[LC] = level <= 2 ? 0 : some(r, m);
    v[LE] = 0;
    if (v[LA] == v[LC]) {
        return false;
    }
    if (level <= 3) {
        v[LD] = v[LA] * x + v[LB] - v[LC] * x;
    } else if (level == 4) {
        v[LD] = v[LA] * (x + v[LB]) - v[LC] * x;
    } else { /* The solution is a fraction. */
        v[LD] = some(r, 12);
        v[LE] = some(r, 40);
    }
    return level <= 2 || llabs(v[LD]) <= 400;
}

static void draw_linear(lt_draft *d, lt_rng *r) {
    while (!draw_equation(d->v, r, d->level)) {}
    lt_key(d, 5);
    d->key[5] = d->level >= 4; /* Brackets change the meaning of the coefficients. */
    d->n_key = 6;
}

static void bracket(lt_page_text *t, lt_num a, lt_num b) {
    if (llabs(a) != 1) {
        lt_say(t, "%lld", a);
    } else {
        lt_put(t, a < 0 ? "-" : "");
    }
    lt_put(t, "(");
    line(t, 1, b);
    lt_put(t, ")");
}

static void equation(lt_page_text *t, const lt_draft *d) {
    const lt_num *v = d->v;
    if (d->level <= 3) {
        sides(t, v[LA], v[LB], v[LC], v[LD]);
        return;
    }
    bracket(t, v[LA], v[LB]);
    lt_put(t, " = ");
    if (d->level == 4) {
        line(t, v[LC], v[LD]);
    } else {
        bracket(t, v[LC], v[LD]);
        term(t, v[LE], "", false);
    }
}

/* "Add 5 to both sides: " */
static void moved(lt_page_text *t, lt_num c, const char *name) {
    lt_put(t, c < 0 ? "Add " : "Subtract ");
    term(t, llabs(c), name, true);
    lt_put(t, c < 0 ? " to both sides: " : " from both sides: ");
}

static void write_linear(const lt_draft *d, lt_page *p, lt_rng *r) {
    static const char *const words[] = {"Solve for x: {A}", "Find x if {A}.", "Solve {A} for x.",
                                        "What is x if {A}?"};
    const lt_num *v = d->v;
    lt_num a = v[LA], b = d->level >= 4 ? v[LA] * v[LB] : v[LB], c = v[LC];
    lt_num e = d->level == 5 ? v[LC] * v[LD] + v[LE] : v[LD];
    char text[96];
    lt_page_text whole = {text, 0, sizeof text};
    equation(&whole, d);
    lt_fill(&p->question, words[lt_pick(r, LT_COUNT(words))], &(lt_slots){.words = {text}});
    lt_param_text(p, "equation", text);
    if (d->level >= 4) {
        lt_put(&p->steps, "Multiply out: ");
        sides(&p->steps, a, b, c, e);
        lt_put(&p->steps, ".\n");
    }
    if (c != 0) {
        moved(&p->steps, c, "x");
        a -= c;
        sides(&p->steps, a, b, 0, e);
        lt_put(&p->steps, ".\n");
    }
    if (b != 0) {
        moved(&p->steps, b, "");
        sides(&p->steps, a, 0, 0, e - b);
        lt_put(&p->steps, ".\n");
        e -= b;
    }
    if (a != 1) {
        lt_say(&p->steps, "Divide both sides by %lld: x = %lld/", a, e);
        operand(&p->steps, a);
        if (lt_gcd(e, a) > 1 || a < 0) {
            lt_put(&p->steps, " = ");
            lt_put_fraction(&p->steps, lt_fraction_of(e, a));
        }
        lt_put(&p->steps, ".\n");
    }
    lt_put_fraction(&p->answer, lt_fraction_of(e, a));
}

/* SYSTEM. v = a1, b1, c1, a2, b2, c2, x, y. */
static void draw_system(lt_draft *d, lt_rng *r) {
    static const lt_num most[] = {3, 4, 6, 9, 12};
    const lt_num m = most[d->level - 1], solution = d->level <= 2 ? 12 : 20;
    lt_num *v = d->v;
    v[6] = d->level == 1 ? lt_between(r, 1, solution) : some(r, solution);
    v[7] = d->level == 1 ? lt_between(r, 1, solution) : some(r, solution);
    do {
        for (int i = 0; i < 2; i++) {
            v[3 * i] = d->level == 1 ? lt_between(r, 1, m) : some(r, m);
            v[3 * i + 1] = d->level == 1 ? lt_between(r, 1, m) : some(r, m);
            v[3 * i + 2] = v[3 * i] * v[6] + v[3 * i + 1] * v[7];
        }
    } while (v[0] * v[4] == v[3] * v[1]);
    lt_key(d, 6);
}

static void two_terms(lt_page_text *t, lt_num a, lt_num b, lt_num c) {
    term(t, a, "x", true);
    term(t, b, "y", a == 0);
    lt_say(t, " = %lld", c);
}

static void write_system(const lt_draft *d, lt_page *p, lt_rng *r) {
    static const char *const words[] = {
        "Solve for x and y: {A} and {B}. Give the answer as (x, y).",
        "Find (x, y) such that {A} and {B}.", "Two equations hold: {A} and {B}. What is (x, y)?"};
    const lt_num *v = d->v;
    const lt_num both = llabs(v[1]) / lt_gcd(v[1], v[4]) * llabs(v[4]);
    const lt_num m1 = both / v[1], m2 = both / v[4], a = v[0] * m1 - v[3] * m2;
    const lt_num c = v[2] * m1 - v[5] * m2, rest = v[2] - v[0] * v[6];
    char first[48], second[48];
    lt_page_text one = {first, 0, sizeof first}, two = {second, 0, sizeof second};
    two_terms(&one, v[0], v[1], v[2]);
    two_terms(&two, v[3], v[4], v[5]);
    lt_fill(&p->question, words[lt_pick(r, LT_COUNT(words))],
            &(lt_slots){.words = {first, second}});
    lt_param_text(p, "first", first);
    lt_param_text(p, "second", second);
    for (int i = 0; i < 2; i++) {
        const lt_num m = i == 0 ? m1 : m2;
        if (m != 1) {
            lt_say(&p->steps, "Multiply the %s equation by %lld: ", i == 0 ? "first" : "second", m);
            two_terms(&p->steps, v[3 * i] * m, v[3 * i + 1] * m, v[3 * i + 2] * m);
            lt_put(&p->steps, ".\n");
        }
    }
    lt_say(&p->steps, "Subtract the second from the first: %lld - ", v[0] * m1);
    operand(&p->steps, v[3] * m2);
    lt_say(&p->steps, " = %lld and %lld - ", a, v[2] * m1);
    operand(&p->steps, v[5] * m2);
    lt_say(&p->steps, " = %lld, so ", c);
    sides(&p->steps, a, 0, 0, c);
    lt_put(&p->steps, ".\n");
    if (a != 1) {
        lt_say(&p->steps, "x = %lld/", c);
        operand(&p->steps, a);
        lt_say(&p->steps, " = %lld.\n", v[6]);
    }
    lt_say(&p->steps, "Put x into the first equation: %lld * ", v[0]);
    operand(&p->steps, v[6]);
    lt_say(&p->steps, " = %lld, so ", v[0] * v[6]);
    term(&p->steps, v[1], "y", true);
    lt_say(&p->steps, " = %lld - ", v[2]);
    operand(&p->steps, v[0] * v[6]);
    lt_say(&p->steps, " = %lld", rest);
    if (v[1] != 1) {
        lt_say(&p->steps, " and y = %lld/", rest);
        operand(&p->steps, v[1]);
        lt_say(&p->steps, " = %lld", v[7]);
    }
    lt_put(&p->steps, ".\n");
    lt_say(&p->answer, "(%lld, %lld)", v[6], v[7]);
}

/* QUADRATIC. v = k, p, q: k(x - p)(x - q) = 0 with p < q. */
static void draw_quadratic(lt_draft *d, lt_rng *r) {
    static const lt_num most[] = {0, 20, 50, 30, 99}, lead[] = {1, 1, 1, 5, 9};
    const lt_num m = most[d->level - 1];
    lt_num *v = d->v;
    v[0] = lead[d->level - 1] > 1 ? lt_between(r, 2, lead[d->level - 1]) : 1;
    v[1] = lt_between(r, -m, m - 1);
    v[2] = lt_between(r, v[1] + 1, m);
    lt_key(d, 3);
}

static void square(lt_page_text *t, lt_num k, lt_num b, lt_num c) {
    term(t, k, "x^2", true);
    term(t, b, "x", false);
    term(t, c, "", false);
}

static void factor(lt_page_text *t, lt_num root) {
    if (root == 0) {
        lt_put(t, "x");
        return;
    }
    lt_put(t, "(");
    line(t, 1, -root);
    lt_put(t, ")");
}

static void write_quadratic(const lt_draft *d, lt_page *p, lt_rng *r) {
    static const struct {
        const char *name, *words[3];
    } asked[] = {{"both",
                  {"Solve {A}. List the roots in increasing order.",
                   "Find both roots of {A}, the smaller one first.",
                   "Which values of x satisfy {A}? List them in increasing order."}},
                 {"larger",
                  {"What is the larger root of {A}?", "Find the larger solution of {A}.",
                   "Solve {A} and give the larger root."}},
                 {"smaller",
                  {"What is the smaller root of {A}?", "Find the smaller solution of {A}.",
                   "Solve {A} and give the smaller root."}}};
    const lt_num k = d->v[0], low = d->v[1], high = d->v[2], b = -low - high, c = low * high;
    const int what = lt_pick(r, LT_COUNT(asked));
    char text[64];
    lt_page_text whole = {text, 0, sizeof text};
    square(&whole, k, k * b, k * c);
    lt_put(&whole, " = 0");
    lt_fill(&p->question, asked[what].words[lt_pick(r, 3)], &(lt_slots){.words = {text}});
    lt_param_text(p, "equation", text);
    lt_param_text(p, "asked", asked[what].name);
    if (k != 1) {
        lt_say(&p->steps, "Divide by %lld: ", k);
        square(&p->steps, 1, b, c);
        lt_put(&p->steps, " = 0.\n");
    }
    lt_say(&p->steps, "The roots have the sum %lld and the product %lld: %lld + ", -b, c, low);
    operand(&p->steps, high);
    lt_say(&p->steps, " = %lld and %lld * ", -b, low);
    operand(&p->steps, high);
    lt_say(&p->steps, " = %lld.\nSo ", c);
    square(&p->steps, 1, b, c);
    lt_put(&p->steps, " = ");
    /* "(x - 3)x" reads as a call; the bare x comes first. */
    factor(&p->steps, high == 0 ? high : low);
    factor(&p->steps, high == 0 ? low : high);
    lt_say(&p->steps, ", and the roots are %lld and %lld.\n", low, high);
    if (what == 0) {
        lt_say(&p->answer, "%lld, %lld", low, high);
        p->checker = "list";
    } else {
        lt_say(&p->answer, "%lld", what == 1 ? high : low);
    }
}

static const lt_task tasks[] = {
    {"linear", 1, 5, "number", draw_linear, write_linear},
    {"system", 1, 5, "list", draw_system, write_system},
    {"quadratic", 2, 5, "number", draw_quadratic, write_quadratic},
};

const lt_kind lt_kind_algebra = {tasks, LT_COUNT(tasks)};
