/* make.h: problems made by procedure, with worked steps, a final answer and a checker.
 *
 * Problem i of a seed is a pure function of (kind, options, seed, i), drawn from stream i of the
 * random numbers. So any range of problems can be made alone, in any order and on any number of
 * threads, with the same bits. A hash of a problem's parameters, without the seed and the wording,
 * decides whether it belongs to the training problems or to those held out: no problem is in both,
 * whatever the seeds.
 *
 *     lt_maker *m;
 *     lt_make_options o = {.kind = "arithmetic", .level_min = 1, .level_max = 3};
 *     LT_TRY(lt_maker_open(&m, &o));
 *     LT_TRY(lt_maker_problem(m, 7, &made));   made.question, made.answer, ...
 *
 * docs/data-make.md has an example of each kind. */
#ifndef LATEEN_MAKE_H
#define LATEEN_MAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

#define LT_MAKE_LEVELS 5  /* Levels of difficulty: 1 to 5. */
#define LT_MAKE_ONE_IN 20 /* One problem in this many is for validation. */

typedef enum { LT_MAKE_TRAIN, LT_MAKE_HELD_OUT } lt_make_split;

/* The kind of a line: a conversation for fine-tuning, or a document for pretraining. */
typedef enum { LT_MAKE_CHAT, LT_MAKE_TEXT } lt_make_form;

/* Where the worked steps are. */
typedef enum {
    /* In the member "reasoning_content" of the assistant's message; in the form TEXT, as PLAIN. */
    LT_MAKE_STEPS_REASONING,
    LT_MAKE_STEPS_THINK, /* In its content, between <think> and </think>. */
    LT_MAKE_STEPS_PLAIN, /* In its content, before the answer. */
    LT_MAKE_STEPS_NONE   /* Left out. */
} lt_make_steps;

/* How the answer is marked; src/data/check/answer.h reads each of them. */
typedef enum {
    LT_MAKE_MARK_PHRASE, /* The answer is 42. */
    LT_MAKE_MARK_BOXED,  /* \boxed{42} */
    LT_MAKE_MARK_HASHES  /* #### 42 */
} lt_make_mark;

typedef struct {
    const char *kind; /* A name of lt_make_kinds, or "all": kind i modulo their number. */
    uint64_t seed;
    lt_make_split split;
    int level_min, level_max; /* 1 to LT_MAKE_LEVELS; each problem draws one of them. */
    lt_make_form form;
    lt_make_steps steps;
    lt_make_mark mark;
} lt_make_options;

/* One problem. The texts are valid until the next call with the same maker. */
typedef struct {
    const char *kind, *task;
    int level;
    uint64_t key; /* The hash of the parameters. */
    const char *question, *steps;
    const char *answer;  /* Without a mark. */
    const char *checker; /* "number", "list", "text" or "choice": data/check/checker.h. */
    const char *problem; /* The parameters, a JSON object. */
} lt_made;

/* The names of the kinds, and what each makes. */
typedef struct {
    const char *name, *summary;
} lt_make_kind_name;
const lt_make_kind_name *lt_make_kinds(size_t *n);

typedef struct lt_maker lt_maker; /* One for each thread. */

/* ARG: a level out of range, or no such kind (the message suggests the nearest). Free with
 * lt_maker_close, which accepts NULL. */
LT_MUST_USE lt_err lt_maker_open(lt_maker **out, const lt_make_options *o);
void lt_maker_close(lt_maker *m);

/* Problem i. LIMIT: no parameters of this split were drawn within a bounded number of attempts. */
LT_MUST_USE lt_err lt_maker_problem(lt_maker *m, uint64_t i, lt_made *out);

/* Problem i as one line of JSON with its newline; *line is valid until the next call. *key may be
 * NULL. */
LT_MUST_USE lt_err lt_maker_line(lt_maker *m, uint64_t i, const char **line, size_t *bytes,
                                 uint64_t *key);

/* Treatment of a problem whose parameters occurred before in the same range. */
typedef enum {
    LT_MAKE_REPEATS_COUNT, /* It is written and counted. */
    LT_MAKE_REPEATS_DROP,  /* It is counted and left out. */
    LT_MAKE_REPEATS_IGNORE /* It is written; nothing is counted, and no memory is needed. */
} lt_make_repeats;

typedef struct {
    uint64_t written, repeats, bytes;
    double seconds;
} lt_make_totals;

/* Write problems first .. first + count - 1, in order, made on all threads. path: a file, which
 * appears when it is complete; NULL: standard output. progress may be NULL. Repeats are found by
 * their keys, which take at most 36 bytes of memory a problem. */
LT_MUST_USE lt_err lt_make_file(const lt_make_options *o, uint64_t first, uint64_t count,
                                lt_make_repeats repeats, const char *path,
                                void (*progress)(void *ctx, uint64_t done, uint64_t of), void *ctx,
                                lt_make_totals *totals);

#endif
