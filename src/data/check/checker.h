/* checker.h: decides whether an answer is right. Five kinds of checkers, for problems with a
 * known answer and for rewards of reinforcement learning.
 *
 * kind     gold                     right                                  wrong
 * number   "3/4", "90 km", "2x+1"   0.75, \frac34, 75%, 90, "x*2 + 1"       0.7500001, 90 m, 2x
 * list     "[1, 2, 3]", "Ann, Bob"  1, 2, 3; (1, 2, 3); "Ann and Bob"       [1, 3, 2], [1, 2]
 * text     "drow"                   drow, "drow", `drow`                    Drow, dro w
 * choice   "B"                      (B), b, B. Paris, option B              A or B, Bach
 * regex    a pattern of PCRE2       an answer that matches as a whole       a partial match
 *
 * The answer is found in the text by lt_answer_find, and all of it must be right. A percent sign is
 * part of the value: 25% is 1/4 and not 25. A unit may be left out; a wrong one is wrong. If the
 * true answer has no unit, a known one is accepted ("42 km") and other words are not ("42 apples"),
 * unless LT_ANSWER_WORD is allowed. An equation is right if its last side is, and each side before
 * it is right too or is a name: "x = 42" and "6 * 7 = 42", but not "41 = 42". Text is compared byte
 * by byte after each run of white space is replaced by one space. JSON schemas are not checked
 * here: the grammars that do so are in src/serve, which src/data may not include. */
#ifndef LT_DATA_CHECK_CHECKER_H
#define LT_DATA_CHECK_CHECKER_H

#include <stdbool.h>
#include <stddef.h>

#include "data/check/answer.h"
#include "lateen/base.h"

#define LT_CHECK_GOLD_BYTES 4096
#define LT_CHECK_ITEMS      256 /* Items of a list. */

#define LT_CHECK_MAP(X)                                                                            \
    X(NUMBER, "number") X(LIST, "list") X(TEXT, "text") X(CHOICE, "choice") X(REGEX, "regex")

typedef enum {
#define LT_CHECK_ENUM(code, name) LT_CHECK_##code,
    LT_CHECK_MAP(LT_CHECK_ENUM)
#undef LT_CHECK_ENUM
        LT_CHECK_COUNT
} lt_check_kind;

typedef struct lt_checker lt_checker; /* Read-only: threads may share it. */

/* The name of a kind, and the kind of a name (ARG: unknown, with the nearest one). */
const char *lt_check_name(lt_check_kind kind);
LT_MUST_USE lt_err lt_check_kind_find(lt_check_kind *out, const char *name);

/* gold[0..n): the true answer, or the pattern. FORMAT: it does not fit the kind (a number that does
 * not parse, a choice that is not one letter, an error in a pattern, with its column); LIMIT:
 * longer than LT_CHECK_GOLD_BYTES or LT_CHECK_ITEMS. Free with lt_checker_close. */
LT_MUST_USE lt_err lt_checker_open(lt_checker **out, lt_check_kind kind, const char *gold,
                                   size_t n);
void lt_checker_close(lt_checker *c);

/* Check what a model wrote, text[0..n). allowed: the marks by which the answer is found,
 * LT_ANSWER_STRICT for rewards. *mark: the one that was used; mark may be NULL. OOM is the only
 * error: what a model writes is right or wrong. */
LT_MUST_USE lt_err lt_checker_run(const lt_checker *c, const char *text, size_t n, unsigned allowed,
                                  bool *right, lt_answer_mark *mark);

/* The same for an answer that lt_answer_find has found by these marks. */
LT_MUST_USE lt_err lt_checker_judge(const lt_checker *c, const char *answer, size_t n,
                                    unsigned allowed, bool *right);

#endif
