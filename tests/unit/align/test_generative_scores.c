/* Scores of stored responses: means and standard errors of gsm8k, ifeval and problems against
 * values counted by hand from the rules of the harness, and files that do not match. No model is
 * asked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "align/generative.h"
#include "base/error.h"
#include "base/file.h"

static char folder[] = "/tmp/lateen-scores-XXXXXX";
static char data[LT_PATH_BYTES], responses[LT_PATH_BYTES], outputs[LT_PATH_BYTES],
    examples[LT_PATH_BYTES];

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) == NULL || lt_path_join(data, folder, "data.jsonl") != LT_OK ||
           lt_path_join(responses, folder, "responses.jsonl") != LT_OK ||
           lt_path_join(examples, folder, "examples.jsonl") != LT_OK ||
           lt_path_join(outputs, folder, "outputs.jsonl") != LT_OK;
}

static int remove_folder(void **state) {
    (void)state;
    return lt_file_remove_tree(folder) != LT_OK;
}

static lt_generative_options of(const char *task, const char *questions, const char *answers) {
    assert_int_equal(lt_file_write_atomic(data, questions, strlen(questions)), LT_OK);
    assert_int_equal(lt_file_write_atomic(responses, answers, strlen(answers)), LT_OK);
    return (lt_generative_options){
        .task = task, .data = data, .responses = responses, .samples = 1, .k = {1}, .n_k = 1};
}

static void near_to(double x, double want) {
    if (!(fabs(x - want) < 1e-12)) {
        fail_msg("%.15g, not %.15g", x, want);
    }
}

/* `right` of n: their mean, and its standard error, sqrt(p (1 - p) / (n - 1)). */
static void scored(const lt_generative_result *r, int i, const char *name, int right, int n) {
    const double p = (double)right / n;
    assert_non_null(strstr(r->scores[i].name, name));
    assert_int_equal(r->scores[i].of, n);
    near_to(r->scores[i].mean, p);
    near_to(r->scores[i].error, n > 1 ? sqrt(p * (1 - p) / (n - 1)) : 0);
}

#define SUM "{\"question\": \"2 + 3?\", \"answer\": \"It is five.\\n#### 5\"}\n"

static void sums(void **state) {
    lt_generative_result r;
    lt_generative_options o = of("gsm8k", SUM SUM SUM SUM,
                                 "{\"response\": \"so\\n#### 5\"}\n{\"response\": \"it is 5.\"}\n"
                                 "{\"response\": \"#### 6\"}\n{\"response\": \"none\"}\n");
    char *text = NULL;
    size_t bytes, lines = 0;
    (void)state;
    o.outputs = outputs;
    assert_int_equal(lt_generative_run(&r, &o), LT_OK);
    assert_int_equal(r.questions, 4);
    assert_int_equal(r.n, 2);
    scored(&r, 0, "strict", 1, 4);
    scored(&r, 1, "flexible", 2, 4);
    assert_int_equal(lt_file_read(&text, &bytes, outputs, 1 << 20), LT_OK);
    for (const char *p = text; *p != '\0'; p++) {
        lines += *p == '\n';
    }
    assert_int_equal(lines, 4);
    free(text);
    o.limit = 1;
    assert_int_equal(lt_generative_run(&r, &o), LT_OK);
    assert_int_equal(r.questions, 1);
    scored(&r, 0, "strict", 1, 1);
}

#define ASK(ids, kwargs)                                                                           \
    "{\"prompt\": \"p\", \"instruction_id_list\": [" ids "], \"kwargs\": [" kwargs "]}\n"
#define NO_COMMA "\"punctuation:no_comma\""

/* A prompt is followed if all its instructions are. In the loose score a text also counts without
 * its first line. A prompt with an instruction that needs NLTK's data, which are not available
 * here, does not count. */
static void instructions(void **state) {
    lt_generative_result r;
    const lt_generative_options o = of(
        "ifeval",
        ASK(NO_COMMA, "{}") ASK(NO_COMMA ", \"keywords:existence\"", "{}, {\"keywords\": [\"x\"]}")
            ASK(NO_COMMA, "{}") ASK(NO_COMMA ", \"length_constraints:number_sentences\"",
                                    "{}, {\"num_sentences\": 1, \"relation\": \"at least\"}")
                ASK(NO_COMMA ", \"length_constraints:number_sentences\"",
                    "{}, {\"num_sentences\": 1, \"relation\": \"at least\"}"),
        "{\"response\": \"fine\"}\n{\"response\": \"x, y\"}\n{\"response\": \"a, b\\nfine\"}\n"
        "{\"response\": \"fine\"}\n{\"response\": \"a, b\"}\n");
    (void)state;
    assert_int_equal(lt_generative_run(&r, &o), LT_OK);
    assert_int_equal(r.n, 4);
    assert_int_equal(r.unscored, 2);
    scored(&r, 0, "prompt", 1, 3);
    scored(&r, 1, "inst", 3, 6);
    scored(&r, 2, "prompt", 2, 3);
    scored(&r, 3, "inst", 4, 6);
}

#define PROBLEM                                                                                    \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "         \
    "\"content\": \"The answer is 5.\"}], \"task_id\": \"t\", \"answer\": \"5\", \"checker\": "    \
    "\"number\"}\n"
#define SAYS(x) "{\"response\": \"The answer is " #x ".\"}\n"

/* pass@2 of 4 answers of which one is right: 1 - C(3, 2) / C(4, 2) = 1/2; of three, 1. By votes
 * of two: 5 and 5 win, a single 5 of two shares. */
static void problems(void **state) {
    lt_generative_result r;
    lt_generative_options o = of(
        "problems", PROBLEM PROBLEM,
        SAYS(5) SAYS(4) SAYS(4) SAYS(4) SAYS(4) SAYS(5)
            SAYS(5) "{\"completion\": \"The answer is 5.\", \"task_id\": \"t\"}\n");
    (void)state;
    o.samples = 4;
    o.k[1] = 2;
    o.n_k = 2;
    assert_int_equal(lt_generative_run(&r, &o), LT_OK);
    assert_int_equal(r.questions, 2);
    assert_int_equal(r.n, 4);
    assert_string_equal(r.scores[0].name, "pass@1");
    assert_string_equal(r.scores[1].name, "pass@2");
    assert_string_equal(r.scores[2].name, "maj@1");
    assert_string_equal(r.scores[3].name, "maj@2");
    near_to(r.scores[0].mean, (0.25 + 0.75) / 2);
    near_to(r.scores[1].mean, (0.5 + 1) / 2);
    near_to(r.scores[2].mean, (0.25 + 0.75) / 2);
    near_to(r.scores[3].mean, (3 * 0.5 / 6 + (3 + 3 * 0.5) / 6) / 2);
    near_to(r.scores[0].error, 0.25); /* For 1/4 and 3/4: half their distance. */
}

static void refuses(const lt_generative_options *o, const char *why) {
    lt_generative_result r;
    assert_int_not_equal(lt_generative_run(&r, o), LT_OK);
    if (strstr(lt_error_message(), why) == NULL) {
        fail_msg("%s: not '%s' but '%s'", o->task, why, lt_error_message());
    }
}

static void what_does_not_fit_is_refused(void **state) {
    lt_generative_options o = of("gsm8k", SUM SUM SUM,
                                 "{\"response\": \"5\"}\n{\"response\": \"5\"}\n");
    (void)state;
    refuses(&o, "responses.jsonl: 2 responses to 3 questions");
    o.shots = 1;
    refuses(&o, "gsm8k: shots need --examples, a file of solved problems");
    assert_int_equal(lt_file_write_atomic(examples, SUM SUM, strlen(SUM SUM)), LT_OK);
    o.examples = examples;
    o.shots = 3;
    refuses(&o, "3 shots of 2 solved problems; at most 64");
    o = of("gsm8k", "{\"question\": \"q\"}\n", "{\"response\": \"5\"}\n");
    refuses(&o, "answer");
    o = of("gsm8k", SUM, "{\"responses\": \"5\"}\n");
    refuses(&o, "response");
    o = of("ifeval", ASK(NO_COMMA, "{}"), "{\"response\": \"5\"}\n");
    o.shots = 1;
    refuses(&o, "ifeval: the task has no solved examples: --shots must be 0");
    o = of("problems", PROBLEM, SAYS(5) "{\"completion\": \"5\", \"task_id\": \"u\"}\n");
    o.samples = 2;
    refuses(&o, "line 2: its \"task_id\" is not that of question 1 (2 lines to each)");
    o = of("problems", PROBLEM PROBLEM, SAYS(5) "{}\n");
    refuses(&o, "line 2: no \"response\" or \"completion\" to question 2 (1 lines to each)");
    o.samples = 2;
    o.responses = NULL;
    refuses(&o, "2 samples of greedy answers are all equal: --request must have a temperature");
    o = of("problems", PROBLEM "{\"messages\": [], \"answer\": \"5\", \"checker\": \"number\"}\n",
           "");
    refuses(&o, "question 2");
    o = of("humaneval", "{\"prompt\": \"p\", \"test\": \"t\", \"entry_point\": 3}\n", SAYS(5));
    refuses(&o, "data.jsonl:1: no text \"entry_point\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums), cmocka_unit_test(instructions),
                                       cmocka_unit_test(problems),
                                       cmocka_unit_test(what_does_not_fit_is_refused)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
