/* unit_tests.h: how many of a problem's tests an answer passes, run in the sandbox.
 *
 *     answer ──last closed ``` block──▶ code ┐
 *     problem ────────────────────▶ tests ──┴▶ unit_tests.py in a sandbox ──▶ 1 or 0 for each test
 *
 * Members of a problem, one of:
 *     tests or test_list    texts, each a statement of Python's: "assert f(2) == 4". They may have
 *                           test_setup_code, a text, and test_imports, a list of texts: MBPP
 *     test and entry_point  Python that defines check(candidate), and the name of the function that
 *                           is the candidate: HumanEval. `prompt` stands before the answer
 *     tests                 objects {"input": text, "output": text}: the answer is a program, which
 *                           runs once for each. `language`: python (the default), c or sh. Output
 *                           is compared without white space at the ends of lines and of the text,
 *                           and the exit status must be 0
 *
 * The judge (unit_tests.py) keeps the tests, and the socket for verdicts, away from the process
 * that runs the answer: an answer can fail a test but can neither skip it nor write its verdict.
 * All tests of an answer share one sandbox and its limits; tests that a limit cut off count as
 * failed. */
#ifndef LT_ALIGN_UNIT_TESTS_H
#define LT_ALIGN_UNIT_TESTS_H

#include <jansson.h>
#include <stdbool.h>

#include "platform/sandbox/sandbox.h"

typedef struct {
    lt_sandbox_kind kind;
    double limit_s;       /* For all tests of an answer, in wall clock time. */
    int64_t memory_bytes; /* Most memory of a process. */
    int parallel;         /* Answers tested at once. */
    const char *program;  /* The program lateen: see jobs.h. */
} lt_unit_tests_options;

/* An answer to be tested. */
typedef struct {
    const json_t *problem;
    const char *code; /* (bytes); NULL: it has none, and passes nothing. */
    size_t bytes;
} lt_tested;

typedef struct {
    int64_t passed, total;
} lt_unit_verdict;

/* The code of an answer in Markdown: its last closed block between ```. NULL: there is none. */
const char *lt_unit_code(const char *text, size_t *bytes);

/* FORMAT: the problem has no tests, or malformed ones; the message names the member. */
LT_MUST_USE lt_err lt_unit_tests_check(const json_t *problem);

/* Check that the sandbox works here, and that Python is installed. Errors are those of
 * lt_sandbox_run. */
LT_MUST_USE lt_err lt_unit_tests_probe(const lt_unit_tests_options *o);

LT_MUST_USE lt_err lt_unit_tests_run(const lt_unit_tests_options *o, const lt_tested *answers,
                                     int64_t n, lt_unit_verdict *out);

#endif
