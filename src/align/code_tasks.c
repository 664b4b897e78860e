/* code_tasks.c: see code_tasks.h. */
#include "align/code_tasks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static const char *member(const json_t *line, const char *key) {
    return json_string_value(json_object_get(line, key));
}

static void put(lt_json_out *o, const char *text) {
    lt_out_raw(o, text, strlen(text));
}

/* MBPP's published file has "text", and its sanitized form "prompt". */
static const char *task_of(const json_t *line) {
    const char *text = member(line, "text");
    return text != NULL ? text : member(line, "prompt");
}

/* The tests that a prompt shows are statements; those that judge an answer may be pairs, too. */
static lt_err check_shown(const json_t *tests) {
    for (size_t i = 0; i < json_array_size(tests); i++) {
        if (!json_is_string(json_array_get(tests, i))) {
            LT_FAIL(LT_ERR_FORMAT, "\"test_list\"[%zu] is not a text", i);
        }
    }
    return json_array_size(tests) > 0
               ? LT_OK
               : lt_error_set(LT_ERR_FORMAT, "\"test_list\" is not a list of tests");
}

lt_err lt_code_check(lt_code_kind kind, const json_t *line) {
    static const char *const tests[] = {[LT_CODE_HUMANEVAL] = "test", [LT_CODE_MBPP] = "test_list"};
    const char *prompt = kind == LT_CODE_HUMANEVAL ? member(line, "prompt") : task_of(line);
    if (prompt == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "no \"%s\"", kind == LT_CODE_HUMANEVAL ? "prompt" : "text");
    }
    if (json_object_get(line, tests[kind]) == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "no \"%s\"", tests[kind]);
    }
    LT_TRY(kind == LT_CODE_MBPP ? check_shown(json_object_get(line, "test_list")) : LT_OK);
    return lt_unit_tests_check(line);
}

static void humaneval_prompt(const json_t *line, bool chat, lt_json_out *out) {
    if (chat) {
        put(out, "Write a solution to the following problem and make sure that it passes the "
                 "tests:\n```python\n");
    }
    put(out, member(line, "prompt"));
    put(out, chat ? "\n```" : "");
}

static void mbpp_prompt(const json_t *line, bool chat, lt_json_out *out) {
    const json_t *tests = json_object_get(line, "test_list");
    put(out, "You are an expert Python programmer, and here is your task:");
    put(out, chat ? "\n" : " ");
    put(out, task_of(line));
    put(out, chat ? "\nYour code should pass these tests:\n"
                  : " Your code should pass these tests:\n\n");
    for (size_t i = 0; i < json_array_size(tests); i++) {
        put(out, i > 0 ? "\n" : "");
        put(out, json_string_value(json_array_get(tests, i)));
    }
    put(out, chat ? "" : "\n[BEGIN]\n");
}

void lt_code_prompt(lt_code_kind kind, const json_t *line, bool chat, lt_json_out *out) {
    (kind == LT_CODE_HUMANEVAL ? humaneval_prompt : mbpp_prompt)(line, chat, out);
}

void lt_code_example(const json_t *line, lt_json_out *out) {
    mbpp_prompt(line, false, out);
    put(out, member(line, "code"));
    put(out, "\n[DONE]\n\n");
}

/* The program in a response. The caller frees *made; *code may point into it. */
static lt_err code_of(lt_code_kind kind, bool chat, lt_tested *out, const char *response,
                      char **made) {
    if (chat) {
        out->code = lt_unit_code(response, &out->bytes);
        return LT_OK;
    }
    if (kind == LT_CODE_MBPP) {
        const char *done = strstr(response, "[DONE]");
        out->code = response;
        out->bytes = done != NULL ? (size_t)(done - response) : strlen(response);
        return LT_OK;
    }
    const int n = asprintf(made, "%s%s", member(out->problem, "prompt"), response);
    if (n < 0) {
        *made = NULL;
        LT_FAIL(LT_ERR_OOM, "a program of a response");
    }
    out->code = *made;
    out->bytes = (size_t)n;
    return LT_OK;
}

lt_err lt_code_judge(lt_code_kind kind, const lt_unit_tests_options *o, bool chat,
                     json_t *const *questions, int64_t samples, char *const *responses, int64_t n,
                     lt_unit_verdict *out) {
    lt_tested *answers = calloc((size_t)n, sizeof *answers);
    char **made = calloc((size_t)n, sizeof *made);
    lt_err err = LT_OK;
    if (answers == NULL || made == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%lld responses to judge", (long long)n);
    }
    for (int64_t i = 0; i < n; i++) {
        answers[i].problem = questions[i / samples];
        LT_TRY_DONE(code_of(kind, chat, &answers[i], responses[i], &made[i]));
    }
    LT_TRY_DONE(lt_unit_tests_run(o, answers, n, out));
done:
    for (int64_t i = 0; made != NULL && i < n; i++) {
        free(made[i]);
    }
    free(made);
    free(answers);
    return err;
}
