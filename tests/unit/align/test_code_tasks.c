/* HumanEval and MBPP: the prompts of lm-evaluation-harness (its humaneval, mbpp, humaneval_instruct
 * and mbpp_instruct), the programs in responses, and lines that are not questions; problems with
 * checkers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "align/code_tasks.h"
#include "align/problem_task.h"
#include "base/error.h"
#include "unit/sandbox_program.h"

static lt_unit_tests_options options = {
    .limit_s = 120, .memory_bytes = (int64_t)512 << 20, .parallel = 2, .program = "/proc/self/exe"};

static const char humaneval[] =
    "{\"prompt\": \"def add(a, b):\\n    \\\"\\\"\\\"Sum.\\\"\\\"\\\"\\n\", \"entry_point\": "
    "\"add\", "
    "\"test\": \"def check(candidate):\\n    assert candidate(2, 3) == 5\\n\"}",
                  mbpp[] = "{\"text\": \"Write a function to add.\", \"code\": \"def add(a, b):\\n"
                           "    return a + b\", \"test_list\": [\"assert add(1, 2) == 3\", "
                           "\"assert add(0, 0) == 0\", \"assert add(-1, 1) == 0\"]}";

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

static json_t *parse(const char *text) {
    json_t *line = json_loads(text, 0, NULL);
    assert_non_null(line);
    return line;
}

static void prompts(void **state) {
#define TESTS "assert add(1, 2) == 3\nassert add(0, 0) == 0\nassert add(-1, 1) == 0"
    static const struct {
        lt_code_kind kind;
        bool chat;
        const char *line, *want;
    } rows[] = {
        {LT_CODE_HUMANEVAL, false, humaneval, "def add(a, b):\n    \"\"\"Sum.\"\"\"\n"},
        {LT_CODE_HUMANEVAL, true, humaneval,
         "Write a solution to the following problem and make sure that it passes the "
         "tests:\n```python\ndef add(a, b):\n    \"\"\"Sum.\"\"\"\n\n```"},
        {LT_CODE_MBPP, false, mbpp,
         "You are an expert Python programmer, and here is your task: Write a function to add. "
         "Your code should pass these tests:\n\n" TESTS "\n[BEGIN]\n"},
        {LT_CODE_MBPP, true, mbpp,
         "You are an expert Python programmer, and here is your task:\nWrite a function to add.\n"
         "Your code should pass these tests:\n" TESTS},
        /* The sanitized file has "prompt" for "text". */
        {LT_CODE_MBPP, false, "{\"prompt\": \"Add.\", \"test_list\": [\"assert f() == 1\"]}",
         "You are an expert Python programmer, and here is your task: Add. Your code should pass "
         "these tests:\n\nassert f() == 1\n[BEGIN]\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *line = parse(rows[i].line);
        lt_json_out out = {0};
        must(lt_code_check(rows[i].kind, line));
        lt_code_prompt(rows[i].kind, line, rows[i].chat, &out);
        assert_int_equal(out.n, strlen(rows[i].want));
        assert_memory_equal(out.data, rows[i].want, out.n);
        lt_out_free(&out);
        json_decref(line);
    }
}

static void solved_examples(void **state) {
    static const char want[] =
        "You are an expert Python programmer, and here is your task: Write a function to add. "
        "Your code should pass these tests:\n\n" TESTS "\n[BEGIN]\ndef add(a, b):\n    return a + b"
        "\n[DONE]\n\n";
    json_t *line = parse(mbpp);
    lt_json_out out = {0};
    (void)state;
    lt_code_example(line, &out);
    assert_int_equal(out.n, strlen(want));
    assert_memory_equal(out.data, want, out.n);
    lt_out_free(&out);
    json_decref(line);
}

static void lines_that_are_not_questions(void **state) {
    static const struct {
        lt_code_kind kind;
        const char *line, *says;
    } rows[] = {
        {LT_CODE_HUMANEVAL, "{\"text\": \"a\", \"test\": \"\", \"entry_point\": \"f\"}",
         "no \"prompt\""},
        {LT_CODE_HUMANEVAL, "{\"prompt\": 5, \"test\": \"\", \"entry_point\": \"f\"}",
         "no \"prompt\""},
        {LT_CODE_HUMANEVAL, "{\"prompt\": \"a\", \"test_list\": [\"assert f()\"]}", "no \"test\""},
        {LT_CODE_HUMANEVAL, "{\"prompt\": \"a\", \"test\": \"\"}", "entry_point"},
        {LT_CODE_MBPP, "{\"test_list\": [\"assert f()\"]}", "no \"text\""},
        {LT_CODE_MBPP, "{\"text\": \"a\", \"test\": \"\", \"entry_point\": \"f\"}",
         "no \"test_list\""},
        {LT_CODE_MBPP, "{\"text\": \"a\", \"test_list\": []}", "\"test_list\" is not a list"},
        {LT_CODE_MBPP, "{\"text\": \"a\", \"test_list\": \"assert f()\"}",
         "\"test_list\" is not a list"},
        {LT_CODE_MBPP, "{\"text\": \"a\", \"test_list\": [\"assert f()\", 5]}",
         "\"test_list\"[1] is not a text"},
        /* Pairs, which can be run, but not shown; and tests of another name beside them. */
        {LT_CODE_MBPP, "{\"text\": \"a\", \"test_list\": [{\"input\": \"\", \"output\": \"\"}]}",
         "\"test_list\"[0] is not a text"},
        {LT_CODE_MBPP, "{\"text\": \"a\", \"test_list\": [5], \"tests\": [\"assert f()\"]}",
         "\"test_list\"[0] is not a text"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *line = parse(rows[i].line);
        if (lt_code_check(rows[i].kind, line) == LT_OK ||
            strstr(lt_error_message(), rows[i].says) == NULL) {
            fail_msg("%s: '%s' is not in: %s", rows[i].line, rows[i].says, lt_error_message());
        }
        json_decref(line);
    }
}

/* Two responses to each question. */
static void programs_in_responses(void **state) {
    static const struct {
        lt_code_kind kind;
        bool chat;
        const char *responses[4];
        int64_t passed[4];
    } rows[] = {
        /* The response continues the prompt. */
        {LT_CODE_HUMANEVAL,
         false,
         {"    return a + b\n", "    return a\n", "    return b + a", ""},
         {1, 0, 1, 0}},
        {LT_CODE_MBPP,
         false,
         {"def add(a, b):\n    return a + b\n[DONE]\nnot Python", "def add(a, b):\n    return 0\n",
          "def add(a, b):\n    return 3\n", "[DONE]def add(a, b):\n    return a + b\n"},
         {3, 2, 1, 0}},
        {LT_CODE_MBPP,
         true,
         {"Sure:\n```python\ndef add(a, b):\n    return a + b\n```\n",
          "def add(a, b):\n    return a + b\n", "```\ndef add(a, b):\n    return 3\n```",
          "```\nx\n```\n```python\ndef add(a, b):\n    return a + b\n```\n"},
         {3, 0, 1, 3}},
        {LT_CODE_HUMANEVAL,
         true,
         {"```python\ndef add(a, b):\n    return a + b\n```", "    return a + b\n",
          "```python\ndef add(a, b):\n    return a - b\n```", "none"},
         {1, 0, 0, 0}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *line = parse(rows[i].kind == LT_CODE_MBPP ? mbpp : humaneval),
               *questions[2] = {line, line};
        lt_unit_verdict got[4];
        char *responses[4];
        for (int k = 0; k < 4; k++) {
            responses[k] = strdup(rows[i].responses[k]);
            assert_non_null(responses[k]);
        }
        must(lt_code_judge(rows[i].kind, &options, rows[i].chat, questions, 2, responses, 4, got));
        for (int k = 0; k < 4; k++) {
            if (got[k].passed != rows[i].passed[k] ||
                got[k].total != (rows[i].kind == LT_CODE_MBPP ? 3 : 1)) {
                fail_msg("%s: %lld of %lld passed", responses[k], (long long)got[k].passed,
                         (long long)got[k].total);
            }
            free(responses[k]);
        }
        json_decref(line);
    }
}

/* Response i belongs to question i / samples. */
static void each_question_has_its_samples(void **state) {
    json_t *questions[2] = {
        parse("{\"text\": \"a\", \"test_list\": [\"assert f() == 1\"]}"),
        parse("{\"text\": \"b\", \"test_list\": [\"assert f() == 2\", \"assert f() > 0\"]}")};
    char one[] = "def f():\n    return 1\n", two[] = "def f():\n    return 2\n";
    char *const responses[4] = {one, two, one, two};
    static const int64_t passed[4] = {1, 0, 1, 2}, total[4] = {1, 1, 2, 2};
    lt_unit_verdict got[4];
    (void)state;
    must(lt_code_judge(LT_CODE_MBPP, &options, false, questions, 2, responses, 4, got));
    for (int k = 0; k < 4; k++) {
        assert_true(got[k].passed == passed[k] && got[k].total == total[k]);
    }
    /* Without a program that runs the sandbox there is no verdict. */
    lt_unit_tests_options none = options;
    none.program = "/none/lateen";
    assert_int_not_equal(lt_code_judge(LT_CODE_MBPP, &none, false, questions, 2, responses, 4, got),
                         LT_OK);
    json_decref(questions[0]);
    json_decref(questions[1]);
}

/* ---- Problems with checkers ---- */

static void problems_with_checkers(void **state) {
    static const char text[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", "
        "\"content\": \"yes?\"}, {\"role\": \"user\", \"content\": \"6 times 7?\"}, {\"role\": "
        "\"assistant\", \"content\": \"42\"}], \"answer\": \"42\", \"checker\": \"number\", "
        "\"completion\": \"old\"}";
    char right[] = "<think>Is it 41?</think>The answer is 42.", wrong[] = "The answer is 41.";
    char *const texts[] = {right, wrong};
    static const char asked[] = "6 times 7?\n"; /* The user's last message, and a newline. */
    json_t *line = parse(text), *judged = NULL, *message, *second = NULL;
    lt_check_verdict verdict;
    lt_json_out out = {0};
    (void)state;
    must(lt_problem_task_check(line));
    lt_problem_task_prompt(line, &out);
    assert_int_equal(out.n, strlen(asked));
    assert_memory_equal(out.data, asked, out.n);
    lt_out_free(&out);
    must(lt_problem_task_judge(&judged, &verdict, line, texts, 2));
    assert_true(verdict.n == 2 && verdict.right[0] && !verdict.right[1]);
    must(lt_problem_task_judge(&second, &verdict, line, texts + 1, 1));
    assert_true(verdict.n == 1 && !verdict.right[0]);
    assert_int_equal(json_array_size(json_object_get(second, "right")), 1);
    const json_t *list = json_object_get(judged, "right");
    assert_true(json_array_size(list) == 2 && json_is_true(json_array_get(list, 0)) &&
                json_is_false(json_array_get(list, 1)));
    list = json_object_get(judged, "completions");
    assert_string_equal(json_string_value(json_array_get(list, 0)), right);
    assert_string_equal(json_string_value(json_array_get(list, 1)), wrong);
    assert_null(json_object_get(judged, "completion"));
    assert_non_null(json_object_get(line, "completion")); /* The line itself is as it was. */
    json_decref(judged);
    json_decref(second);
    json_decref(line);
    /* What the server returns in a separate member is put back. */
    message = parse("{\"reasoning_content\": \"so\", \"content\": \"42\"}");
    char *whole = lt_problem_task_text(message);
    assert_string_equal(whole, "<think>so</think>42");
    free(whole);
    json_object_del(message, "reasoning_content");
    whole = lt_problem_task_text(message);
    assert_string_equal(whole, "42");
    free(whole);
    json_object_set_new(message, "content", json_null());
    whole = lt_problem_task_text(message);
    assert_string_equal(whole, "");
    free(whole);
    json_decref(message);
}

static void lines_that_are_not_problems(void **state) {
    static const struct {
        const char *line, *says;
    } rows[] = {
        {"{\"answer\": \"42\"}", "has no text of a user to answer"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}], \"answer\": \"42\"}",
         "has no text of a user to answer"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": []}], \"answer\": \"42\"}",
         "has no text of a user to answer"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", "answer"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"answer\": \"(\", "
         "\"checker\": \"regex\"}",
         "missing closing parenthesis"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *line = parse(rows[i].line);
        if (lt_problem_task_check(line) == LT_OK ||
            strstr(lt_error_message(), rows[i].says) == NULL) {
            fail_msg("%s: '%s' is not in: %s", rows[i].line, rows[i].says, lt_error_message());
        }
        json_decref(line);
    }
}

/* The kind of sandbox that this machine allows: namespaces if possible. */
static int prepare(void **state) {
    (void)state;
    options.kind = LT_SANDBOX_NAMESPACES;
    if (lt_unit_tests_probe(&options) != LT_OK) {
        options.kind = LT_SANDBOX_RLIMITS;
    }
    return lt_unit_tests_probe(&options) == LT_OK ? 0 : -1;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts),
        cmocka_unit_test(solved_examples),
        cmocka_unit_test(lines_that_are_not_questions),
        cmocka_unit_test(programs_in_responses),
        cmocka_unit_test(each_question_has_its_samples),
        cmocka_unit_test(problems_with_checkers),
        cmocka_unit_test(lines_that_are_not_problems),
    };
    if (is_sandbox_program(argc, argv)) {
        return be_sandbox_program(argv);
    }
    return cmocka_run_group_tests(tests, prepare, NULL);
}
