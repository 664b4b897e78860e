/* Makers and checkers of problems agree: the answer of each problem, marked in each way, is right
 * by its own checker, and the answer of another problem is not, unless it is the same.
 * tests/e2e/data_make.py tests that the answers are true. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "data/check/checker.h"
#include "lateen/make.h"

#define N 1200

static bool judge(const char *checker, const char *gold, const char *text) {
    lt_checker *c = NULL;
    lt_check_kind kind;
    bool right = false;
    assert_int_equal(lt_check_kind_find(&kind, checker), LT_OK);
    if (lt_checker_open(&c, kind, gold, strlen(gold)) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    assert_int_equal(lt_checker_run(c, text, strlen(text), LT_ANSWER_STRICT, &right, NULL), LT_OK);
    lt_checker_close(c);
    return right;
}

static void answers_pass_their_checker(void **state) {
    static const char *const marks[] = {"The answer is %s.", "\\boxed{%s}", "so\n#### %s"};
    const lt_make_options o = {.kind = "all", .seed = 3, .level_min = 1, .level_max = 5};
    char text[2048], last[1024] = "";
    lt_maker *m = NULL;
    int refused = 0;
    (void)state;
    assert_int_equal(lt_maker_open(&m, &o), LT_OK);
    for (uint64_t i = 0; i < N; i++) {
        lt_made p;
        assert_int_equal(lt_maker_problem(m, i, &p), LT_OK);
        for (size_t k = 0; k < sizeof marks / sizeof *marks; k++) {
            (void)snprintf(text, sizeof text, "<think>\n%s</think>\n\n", p.steps);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
            (void)snprintf(text + strlen(text), sizeof text - strlen(text), marks[k], p.answer);
#pragma GCC diagnostic pop
            if (!judge(p.checker, p.answer, text)) {
                fail_msg("%s/%s: %s refuses %s", p.kind, p.task, p.checker, text);
            }
        }
        (void)snprintf(text, sizeof text, "The answer is %s.", last);
        refused += i > 0 && !judge(p.checker, p.answer, text);
        (void)snprintf(last, sizeof last, "%s", p.answer);
    }
    assert_true(refused > N - N / 50);
    lt_maker_close(m);
}

/* Problem i does not depend on the problems made before it. */
static void order_does_not_matter(void **state) {
    const lt_make_options o = {.kind = "all", .seed = 9, .level_min = 1, .level_max = 5};
    static char forth[60][8192];
    lt_maker *m = NULL, *other = NULL;
    const char *line;
    size_t n;
    (void)state;
    assert_int_equal(lt_maker_open(&m, &o), LT_OK);
    assert_int_equal(lt_maker_open(&other, &o), LT_OK);
    for (uint64_t i = 0; i < 60; i++) {
        assert_int_equal(lt_maker_line(m, i, &line, &n, NULL), LT_OK);
        assert_true(n < sizeof forth[i]);
        memcpy(forth[i], line, n + 1);
    }
    for (uint64_t i = 60; i-- > 0;) {
        assert_int_equal(lt_maker_line(i % 2 == 0 ? m : other, i, &line, &n, NULL), LT_OK);
        assert_string_equal(line, forth[i]);
    }
    lt_maker_close(m);
    lt_maker_close(other);
}

/* The text of a problem must not change: a data set can be made again from its seed. */
static void the_text_of_a_problem_is_fixed(void **state) {
    const lt_make_options o = {.kind = "arithmetic", .seed = 1, .level_min = 2, .level_max = 2};
    lt_maker *m = NULL;
    lt_made p;
    (void)state;
    assert_int_equal(lt_maker_open(&m, &o), LT_OK);
    assert_int_equal(lt_maker_problem(m, 7, &p), LT_OK);
    assert_string_equal(p.question, "Find the remainder of 58318 divided by 6.");
    assert_string_equal(p.answer, "4");
    assert_string_equal(p.problem, "{\"a\": 58318, \"b\": 6}");
    assert_true(p.key == 0xa1c3ccf9cb8ad176);
    lt_maker_close(m);
}

/* The whole text of every kind: question, steps and answer as they are written in a line (FNV-1a
 * of 1,200 lines). A changed text is a changed data set, and changes this number. */
static void the_text_of_every_kind_is_fixed(void **state) {
    const lt_make_options o = {.kind = "all", .seed = 2, .level_min = 1, .level_max = 5};
    uint64_t hash = 0xcbf29ce484222325;
    lt_maker *m = NULL;
    const char *line;
    size_t n;
    (void)state;
    assert_int_equal(lt_maker_open(&m, &o), LT_OK);
    for (uint64_t i = 0; i < N; i++) {
        assert_int_equal(lt_maker_line(m, i, &line, &n, NULL), LT_OK);
        for (size_t k = 0; k < n; k++) {
            hash = (hash ^ (unsigned char)line[k]) * 0x100000001b3;
        }
    }
    lt_maker_close(m);
    if (hash != 0x3dc89d864e21614d) {
        fail_msg("0x%llx", (unsigned long long)hash);
    }
}

static void bad_options(void **state) {
    lt_make_options o = {.kind = "logik", .level_min = 1, .level_max = 5};
    lt_maker *m = NULL;
    size_t n;
    (void)state;
    assert_int_equal(lt_maker_open(&m, &o), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "did you mean 'logic'?"));
    o.kind = "logic";
    o.level_max = 6;
    assert_int_equal(lt_maker_open(&m, &o), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "levels are 1 to 5"));
    assert_int_equal(m == NULL, 1);
    assert_string_equal(lt_make_kinds(&n)[0].name, "arithmetic");
    assert_int_equal(n, 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_pass_their_checker),
        cmocka_unit_test(order_does_not_matter),
        cmocka_unit_test(the_text_of_a_problem_is_fixed),
        cmocka_unit_test(the_text_of_every_kind_is_fixed),
        cmocka_unit_test(bad_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
