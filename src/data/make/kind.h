/* kind.h: the interface between a kind of problem and the rest of this folder.
 *
 * A kind is a table of tasks. A task has two functions. `draw` chooses the parameters of a problem
 * for a level; it is cheap, because it is called until the parameters fall into the split that was
 * asked for. `write` then writes the question, the steps, the answer and the parameters, and draws
 * what does not count as a parameter: names of people, the wording.
 *
 * The hash of (kind, task, key) decides the split. Two problems are the same if their keys are
 * equal: a key has the operands of a sum in ascending order, and a price but not what was
 * bought. */
#ifndef LT_DATA_MAKE_KIND_H
#define LT_DATA_MAKE_KIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rng.h"
#include "lateen/make.h"

typedef long long lt_num; /* The type of every number of a problem, so that %lld prints it. */

#define LT_DRAFT_VALUES 64

typedef struct {
    int level;
    lt_num v[LT_DRAFT_VALUES];   /* The parameters; each task defines their meaning. */
    lt_num key[LT_DRAFT_VALUES]; /* The first n_key are hashed. */
    int n_key;
} lt_draft;

/* A text under construction, in a buffer that is large enough for the longest problem, which is
 * asserted. */
typedef struct {
    char *data;
    size_t n, room;
} lt_page_text;

typedef struct {
    lt_page_text question, steps, answer;
    lt_page_text problem; /* The members of the JSON object, without its braces. */
    const char *checker;
} lt_page;

typedef struct {
    const char *name;
    int level_min, level_max;
    const char *checker;
    void (*draw)(lt_draft *d, lt_rng *r);
    void (*write)(const lt_draft *d, lt_page *p, lt_rng *r);
} lt_task;

typedef struct {
    const lt_task *tasks;
    int n_tasks;
} lt_kind;

/* The kinds: each has a file, and a text that says what it makes. "all" takes them in this
 * order. */
#define LT_KIND_MAP(X)                                                                             \
    X(arithmetic, "whole numbers of up to nine digits, expressions with brackets, fractions")      \
    X(algebra, "linear equations, systems of two, quadratic equations with whole roots")           \
    X(units, "conversions, rates, percentages; word problems about prices, shares and work")       \
    X(logic, "who is taller, who sits where, who tells the truth, who owns what, what follows")    \
    X(lists, "operations on a list of numbers, then the list, its sum, count or extremes")         \
    X(strings, "operations on the letters of a word, or on some words")

#define LT_KIND_DECLARE(name, summary) extern const lt_kind lt_kind_##name;
LT_KIND_MAP(LT_KIND_DECLARE)

/* Append to a text. lt_say formats like printf; lt_put appends a plain text. */
void lt_say(lt_page_text *t, const char *format, ...) LT_PRINTF(2, 3);
void lt_put(lt_page_text *t, const char *text);

/* Words and numbers for a template. {a} to {h} stand for the numbers, {A} to {H} for the words;
 * lt_fill copies the rest. */
typedef struct {
    lt_num n, d; /* d > 0; lowest terms. */
} lt_fraction;

typedef struct {
    lt_fraction numbers[8];
    const char *words[8];
} lt_slots;

void lt_fill(lt_page_text *t, const char *template, const lt_slots *s);

/* Append one member "name": value to the parameters. These functions write the commas between
 * members. lt_param_begin writes the name and `open`, and the caller writes the rest of the
 * value. */
void lt_param_begin(lt_page *p, const char *name, const char *open);
void lt_param(lt_page *p, const char *name, lt_num value);
void lt_param_text(lt_page *p, const char *name, const char *value);
void lt_param_list(lt_page *p, const char *name, const lt_num *values, int n);

/* Exact fractions. Values of problems are small, so that no product overflows. */
lt_fraction lt_fraction_of(lt_num n, lt_num d); /* d != 0 */
lt_fraction lt_fraction_add(lt_fraction a, lt_fraction b);
lt_fraction lt_fraction_sub(lt_fraction a, lt_fraction b);
lt_fraction lt_fraction_mul(lt_fraction a, lt_fraction b);
lt_fraction lt_fraction_div(lt_fraction a, lt_fraction b);
lt_num lt_gcd(lt_num a, lt_num b); /* At least 0. */
/* Whether it is a decimal of at most six places. */
bool lt_fraction_ends(lt_fraction q);
void lt_put_decimal(lt_page_text *t, lt_fraction q);  /* 2.5 if it ends, otherwise 7/3. */
void lt_put_fraction(lt_page_text *t, lt_fraction q); /* 5/2; 3 */

/* ---- Random draws ---- */
lt_num lt_between(lt_rng *r, lt_num low, lt_num high); /* Both ends included. */
lt_num lt_digits(lt_rng *r, int n);                    /* A number of n digits, uniform. */
int lt_pick(lt_rng *r, int n);                         /* 0 .. n - 1 */
void lt_distinct(lt_rng *r, int n, int of, int *out);  /* n different numbers below of <= 64. */

/* Set v to n and n different numbers below `of`; the key is all of them. */
void lt_draw_distinct(lt_draft *d, lt_rng *r, int n, int of);

/* Take the first n values as the key. */
void lt_key(lt_draft *d, int n);

/* ---- Words ---- */
#define LT_N_NAMES 40
extern const char *const lt_names[LT_N_NAMES];

#define LT_COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

#endif
