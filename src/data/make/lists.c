/* lists.c: sequences of operations on a list of whole numbers: sort, keep, add, rotate, ..., and at
 * the end perhaps the sum, the count or the largest. Each step shows the list that an operation
 * makes.
 *
 * An operation is a row of a table: a sentence and a function. The key is the list and the
 * operations; the question at the end does not count. */
#include <string.h>

#include "base/error.h"
#include "data/make/kind.h"

#define MAX_ITEMS 10
#define MAX_OPS   5

typedef struct {
    lt_num x[2 * MAX_ITEMS];
    int n;
} list;

typedef struct {
    const char *name;     /* In the parameters: "keep_above". */
    const char *sentence; /* {a} is the operand. */
    lt_num low, high;     /* The operand is drawn from here; both 0: it has none. */
    bool place;           /* The operand must be below the length of the list. */
    void (*run)(list *l, lt_num a);
} operation;

static void sort_up(list *l, lt_num a) {
    (void)a;
    for (int i = 1; i < l->n; i++) {
        const lt_num x = l->x[i];
        int at = i;
        for (; at > 0 && l->x[at - 1] > x; at--) {
            l->x[at] = l->x[at - 1];
        }
        l->x[at] = x;
    }
}

static void reverse(list *l, lt_num a) {
    (void)a;
    for (int i = 0; i < l->n / 2; i++) {
        const lt_num x = l->x[i];
        l->x[i] = l->x[l->n - 1 - i];
        l->x[l->n - 1 - i] = x;
    }
}

static void sort_down(list *l, lt_num a) {
    sort_up(l, a);
    reverse(l, a);
}

#define KEEP(name, condition)                                                                      \
    static void name(list *l, lt_num a) {                                                          \
        int n = 0;                                                                                 \
        for (int i = 0; i < l->n; i++) {                                                           \
            const lt_num x = l->x[i];                                                              \
            if (condition) {                                                                       \
                l->x[n++] = x;                                                                     \
            }                                                                                      \
        }                                                                                          \
        (void)a;                                                                                   \
        l->n = n;                                                                                  \
    }
KEEP(keep_even, x % 2 == 0)
KEEP(keep_odd, x % 2 != 0)
KEEP(keep_above, x > a)
KEEP(keep_below, x < a)
KEEP(keep_multiples, x % a == 0)
KEEP(take_first, i < a)
KEEP(drop_first, i >= a)
KEEP(every_second, i % 2 == 0)

static void take_last(list *l, lt_num a) {
    if (l->n > a) {
        drop_first(l, l->n - a);
    }
}

static void unique(list *l, lt_num a) {
    int n = 0;
    (void)a;
    for (int i = 0; i < l->n; i++) {
        bool seen = false;
        for (int j = 0; j < n && !seen; j++) {
            seen = l->x[j] == l->x[i];
        }
        if (!seen) {
            l->x[n++] = l->x[i];
        }
    }
    l->n = n;
}

static void add_each(list *l, lt_num a) {
    for (int i = 0; i < l->n; i++) {
        l->x[i] += a;
    }
}

static void multiply_each(list *l, lt_num a) {
    for (int i = 0; i < l->n; i++) {
        l->x[i] *= a;
    }
}

static void rotate(list *l, lt_num a) {
    const list old = *l;
    for (int i = 0; i < l->n; i++) {
        l->x[i] = old.x[(i + a) % l->n];
    }
}

static void swap_ends(list *l, lt_num a) {
    const lt_num x = l->n > 0 ? l->x[0] : 0;
    (void)a;
    if (l->n > 0) {
        l->x[0] = l->x[l->n - 1];
        l->x[l->n - 1] = x;
    }
}

static void append(list *l, lt_num a) {
    l->x[l->n++] = a;
}

static void differences(list *l, lt_num a) {
    (void)a;
    for (int i = 0; i + 1 < l->n; i++) {
        l->x[i] = l->x[i + 1] - l->x[i];
    }
    l->n -= l->n > 0;
}

static void running_sums(list *l, lt_num a) {
    (void)a;
    for (int i = 1; i < l->n; i++) {
        l->x[i] += l->x[i - 1];
    }
}

/* In the order of the lowest level that uses the row; see in_use. */
static const operation operations[] = {
    {"sort_up", "Sort it in increasing order", 0, 0, false, sort_up},
    {"reverse", "Reverse it", 0, 0, false, reverse},
    {"keep_even", "Keep only the even numbers", 0, 0, false, keep_even},
    {"keep_odd", "Keep only the odd numbers", 0, 0, false, keep_odd},
    {"add", "Add {a} to each number", 1, 20, false, add_each},
    {"take_first", "Keep the first {a} numbers", 2, 6, true, take_first},
    {"sort_down", "Sort it in decreasing order", 0, 0, false, sort_down},
    {"keep_above", "Keep only the numbers greater than {a}", 5, 60, false, keep_above},
    {"keep_below", "Keep only the numbers less than {a}", 30, 90, false, keep_below},
    {"multiply", "Multiply each number by {a}", 2, 9, false, multiply_each},
    {"append", "Append {a} at the end", 1, 99, false, append},
    {"swap_ends", "Swap the first and the last number", 0, 0, false, swap_ends},
    {"unique", "Remove repeated numbers and keep the first of each", 0, 0, false, unique},
    {"drop_first", "Remove the first {a} numbers", 2, 3, true, drop_first},
    {"take_last", "Keep the last {a} numbers", 2, 6, true, take_last},
    {"every_second", "Keep every second number, beginning with the first", 0, 0, false,
     every_second},
    {"rotate", "Move the first {a} numbers to the end, in the same order", 2, 4, true, rotate},
    {"keep_multiples", "Keep only the multiples of {a}", 3, 5, false, keep_multiples},
    {"differences", "Replace it by the differences of neighbours, each number minus the one before",
     0, 0, false, differences},
    {"running_sums", "Replace each number by the sum of the numbers up to it", 0, 0, false,
     running_sums},
};

/* How many rows each level uses. */
static const int in_use[] = {6, 12, LT_COUNT(operations), LT_COUNT(operations),
                             LT_COUNT(operations)};

enum { WHOLE, SUM, COUNT, LARGEST, SMALLEST, ENDS };

static const struct {
    const char *name, *question;
} ends[ENDS] = {{"list", "What is the resulting list?"},
                {"sum", "What is the sum of the resulting list?"},
                {"count", "How many numbers does the resulting list have?"},
                {"largest", "What is the largest number of the resulting list?"},
                {"smallest", "What is the smallest number of the resulting list?"}};

/* v = n, numbers, number of operations, operations and operands, end. */
typedef struct {
    list l;
    int n_ops, end;
    const lt_num *ops;
} program;

static void program_of(program *p, const lt_draft *d) {
    p->l.n = (int)d->v[0];
    memcpy(p->l.x, d->v + 1, (size_t)p->l.n * sizeof *d->v);
    p->n_ops = (int)d->v[1 + p->l.n];
    p->ops = d->v + 2 + p->l.n;
    p->end = (int)p->ops[2 * p->n_ops];
}

static void draw_program(lt_draft *d, lt_rng *r) {
    const int level = d->level, n = (int)lt_between(r, 3 + level / 2, 5 + level);
    program p;
    LT_ASSERT(n <= MAX_ITEMS && level <= MAX_OPS);
    do {
        int at = 0;
        d->v[at++] = n;
        for (int i = 0; i < n; i++) {
            d->v[at++] = lt_between(r, 1, level == 1 ? 30 : 99);
        }
        d->v[at++] = level;
        for (int i = 0, last = -1; i < level; i++) {
            int op;
            do {
                op = lt_pick(r, in_use[level - 1]);
            } while (op == last);
            last = op;
            d->v[at++] = op;
            d->v[at++] = operations[op].high > 0
                             ? lt_between(r, operations[op].low, operations[op].high)
                             : 0;
        }
        d->v[at++] = lt_pick(r, 2) == 0 ? WHOLE : SUM + lt_pick(r, ENDS - 1);
        lt_key(d, at - 1);
        program_of(&p, d);
        for (int i = 0; i < p.n_ops && p.l.n > 1; i++) {
            const operation *o = &operations[p.ops[2 * i]];
            p.l.n = o->place && p.ops[2 * i + 1] >= p.l.n ? 0 : p.l.n;
            o->run(&p.l, p.ops[2 * i + 1]);
        }
    } while (p.l.n < 2); /* Every step must leave something. */
}

static void show(lt_page_text *t, const list *l) {
    lt_put(t, "[");
    for (int i = 0; i < l->n; i++) {
        lt_say(t, i > 0 ? ", %lld" : "%lld", l->x[i]);
    }
    lt_put(t, "]");
}

static void finish(lt_page *p, const list *l, int end) {
    lt_num result = l->x[0];
    if (end == WHOLE) {
        show(&p->answer, l);
        p->checker = "list";
        return;
    }
    for (int i = 1; i < l->n; i++) {
        if (end == SUM) {
            lt_say(&p->steps, "%lld + %lld = %lld.\n", result, l->x[i], result + l->x[i]);
            result += l->x[i];
        } else if (end == LARGEST ? l->x[i] > result : l->x[i] < result) {
            result = l->x[i];
        }
    }
    result = end == COUNT ? l->n : result;
    if (end != SUM) {
        lt_say(&p->steps,
               end == COUNT     ? "It has %lld numbers.\n"
               : end == LARGEST ? "The largest is %lld.\n"
                                : "The smallest is %lld.\n",
               result);
    }
    lt_say(&p->answer, "%lld", result);
}

static void write_program(const lt_draft *d, lt_page *p, lt_rng *r) {
    static const char *const begin[] = {"Start with the list ", "Take the list ",
                                        "Here is a list of numbers: "};
    program g;
    program_of(&g, d);
    lt_put(&p->question, begin[lt_pick(r, LT_COUNT(begin))]);
    show(&p->question, &g.l);
    lt_put(&p->question, ". ");
    lt_param_list(p, "list", g.l.x, g.l.n);
    lt_param_begin(p, "operations", "[");
    for (int i = 0; i < g.n_ops; i++) {
        const operation *o = &operations[g.ops[2 * i]];
        const lt_num a = g.ops[2 * i + 1];
        const lt_slots s = {.numbers = {{a, 1}}};
        lt_fill(&p->question, o->sentence, &s);
        lt_put(&p->question, ". ");
        lt_say(&p->problem, "%s[\"%s\", %lld]", i > 0 ? ", " : "", o->name, a);
        o->run(&g.l, a);
        lt_fill(&p->steps, o->sentence, &s);
        lt_put(&p->steps, ": ");
        show(&p->steps, &g.l);
        lt_put(&p->steps, ".\n");
    }
    lt_put(&p->problem, "]");
    lt_param_text(p, "asked", ends[g.end].name);
    lt_put(&p->question, ends[g.end].question);
    finish(p, &g.l, g.end);
}

static const lt_task tasks[] = {{"program", 1, 5, "number", draw_program, write_program}};

const lt_kind lt_kind_lists = {tasks, LT_COUNT(tasks)};
