/* Rewards: each row of the table gives the reward that its help text describes; sums; bad
 * options; and a reward command that ends, hangs, or answers with something that is not a
 * reward. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "align/reward.h"
#include "base/clock.h"
#include "base/error.h"

#define LIMIT 20

static lt_tokenizer *tokenizer;

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

static void fails(lt_err got, lt_err want, const char *says) {
    if (got != want || strstr(lt_error_message(), says) == NULL) {
        fail_msg("got %d, wanted %d; '%s' in: %s", (int)got, (int)want, says, lt_error_message());
    }
}

static lt_reward_options options_of(const char *sum) {
    return (lt_reward_options){
        .sum = sum, .command = "", .max_tokens = LIMIT, .tokenizer = tokenizer};
}

/* A problem with a numeric answer and a schema. */
static void problem_open(lt_problem *p) {
    *p = (lt_problem){.path = "p.jsonl", .line_number = 7};
    p->line = json_pack("{s:s, s:{s:s, s:{s:{s:s}}, s:[s], s:b}}", "answer", "42", "schema", "type",
                        "object", "properties", "a", "type", "integer", "required", "a",
                        "additionalProperties", 0);
    assert_non_null(p->line);
    must(lt_checker_open(&p->checker, LT_CHECK_NUMBER, "42", 2));
}

static void problem_close(lt_problem *p) {
    json_decref(p->line);
    lt_checker_close(p->checker);
}

/* Judge one text. */
static lt_err judge(const lt_reward_options *o, const char *text, int64_t n, bool ended,
                    double *out) {
    lt_problem problem;
    const lt_problem *problems[1] = {&problem};
    lt_tokenizer_scratch *scratch = NULL;
    lt_ids ids = {0};
    lt_rewards *r = NULL;
    lt_answer a = {.ended = ended};
    lt_err err;
    problem_open(&problem);
    must(lt_tokenizer_scratch_open(&scratch, tokenizer));
    must(lt_tokenizer_encode(tokenizer, scratch, text, strlen(text), LT_ENCODE_PLAIN, &ids));
    a.ids = (int32_t *)ids.data;
    a.n = n > 0 ? n : (int64_t)ids.n + ended;
    err = lt_rewards_open(&r, o);
    if (err == LT_OK) {
        err = lt_rewards_judge(r, problems, &a, &text, 1, out, NULL);
    }
    lt_rewards_close(r);
    lt_ids_free(&ids);
    lt_tokenizer_scratch_close(scratch);
    problem_close(&problem);
    return err;
}

static void each_row_gives_its_reward(void **state) {
    static const struct {
        const char *sum, *text;
        int64_t n, soft;
        bool ended;
        double want;
    } rows[] = {
        {"answer", "The answer is 42.", 0, 0, true, 1},
        {"answer", "The answer is 43.", 0, 0, true, 0},
        {"answer", "42", 0, 0, true, 0}, /* Without a mark. */
        {"found", "The answer is 43.", 0, 0, true, 1},
        {"found", "no", 0, 0, true, 0},
        {"think", "<think>\nso\n</think>\n42", 0, 0, true, 1},
        {"think", " \n<think>so</think>42", 0, 0, true, 1},
        {"think", " so</think>42", 0, 0, true, 1}, /* The template opened the reasoning. */
        {"think", "<think>so</think> ", 0, 0, true, 0},
        {"think", "[THINK]so[/THINK]42", 0, 0, true, 1},
        {"think", "so</thought>42", 0, 0, true, 1},
        {"think", "[THINK]so[/THINK]", 0, 0, true, 0},
        {"think", "a[THINK]so[/THINK]42", 0, 0, true, 0},
        {"think", "<think>so 42", 0, 0, true, 0},
        {"think", "a<think>so</think>42", 0, 0, true, 0},
        {"think", "<think>so</think>4</think>2", 0, 0, true, 0},
        {"think", "<think><think>so</think>42", 0, 0, true, 0},
        {"schema", "{\"a\": 5}", 0, 0, true, 1},
        {"schema", "{\"a\": 5", 0, 0, false, 0},
        {"schema", "{\"b\": 5}", 0, 0, true, 0},
        {"schema", "{\"a\": \"5\"}", 0, 0, true, 0},
        {"ended", "x", 0, 0, true, 1},
        {"ended", "x", 0, 0, false, 0},
        {"length", "x", 5, 0, true, 0.25},
        {"overlong", "x", 12, 8, true, 0},
        {"overlong", "x", 16, 8, true, -0.5},
        {"overlong", "x", 20, 8, false, -1},
        {"answer:2, length:-0.5,found:0.25", "#### 42", 4, 0, true, 2 - 0.1 + 0.25},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_reward_options o = options_of(rows[i].sum);
        double got = NAN;
        o.soft_tokens = rows[i].soft;
        must(judge(&o, rows[i].text, rows[i].n, rows[i].ended, &got));
        if (!(fabs(got - rows[i].want) < 1e-12)) {
            fail_msg("%s of '%s': %g, not %g", rows[i].sum, rows[i].text, got, rows[i].want);
        }
    }
}

static void bad_options(void **state) {
    static const struct {
        const char *sum, *command;
        int64_t soft;
        const char *says;
    } rows[] = {
        {"answr", "", 0, "is 'answer' meant"},
        {"answer,answer:2", "", 0, "given twice"},
        {"answer:x", "", 0, "weight 'x'"},
        {"answer:0", "", 0, "weight '0'"},
        {"answer:inf", "", 0, "weight 'inf'"},
        {"answer,", "", 0, "reward '' does not exist"},
        {"command", "", 0, "needs a command"},
        {"answer", "true", 0, "no reward 'command'"},
        {"overlong", "", 0, "0 tokens for reward 'overlong'"},
        {"overlong", "", LIMIT + 1, "21 tokens for reward 'overlong', of answers of at most 20"},
        {"answer", "", 3, "the reward is not in the sum"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_reward_options o = options_of(rows[i].sum);
        lt_rewards *r = NULL;
        o.command = rows[i].command;
        o.soft_tokens = rows[i].soft;
        fails(lt_rewards_open(&r, &o), LT_ERR_ARG, rows[i].says);
        assert_null(r);
    }
}

/* Problems that lack what a reward of the sum reads, which the message names. */
static void problems_are_checked(void **state) {
    static const struct {
        const char *sum, *line, *lacks; /* NULL: nothing is missing. */
        bool checker;
    } rows[] = {
        {"answer", "{}", "no \"answer\"", false},
        {"answer", "{}", NULL, true},
        {"found,length", "{}", NULL, false},
        {"schema", "{\"schema\": {}}", NULL, false},
        {"schema", "{\"schema\": 1}", "no \"schema\"", false},
        {"schema", "{}", "no \"schema\"", true},
        {"answer,schema", "{\"schema\": {}}", "no \"answer\"", false},
        {"answer,schema", "{}", "no \"schema\"", true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const lt_reward_options o = options_of(rows[i].sum);
        lt_problem items[2];
        const lt_problems all = {.items = items, .n = 2};
        lt_rewards *r = NULL;
        lt_err err;
        problem_open(&items[0]); /* It has both. */
        items[1] = (lt_problem){.path = "p.jsonl", .line_number = 8};
        items[1].line = json_loads(rows[i].line, 0, NULL);
        items[1].checker = rows[i].checker ? items[0].checker : NULL;
        must(lt_rewards_open(&r, &o));
        err = lt_rewards_check(r, &all);
        if (rows[i].lacks == NULL) {
            must(err);
        } else {
            fails(err, LT_ERR_FORMAT, rows[i].lacks);
            fails(err, LT_ERR_FORMAT, "p.jsonl:8: ");
        }
        lt_rewards_close(r);
        json_decref(items[1].line);
        problem_close(&items[0]);
    }
}

/* A JSON schema that cannot be compiled is refused, with its line number. */
static void bad_schemas_are_refused(void **state) {
    const lt_reward_options o = options_of("schema,length");
    lt_problem problem = {.path = "p.jsonl", .line_number = 7};
    const lt_problem *problems[1] = {&problem};
    const lt_answer a = {.n = 0};
    const char *text = "";
    lt_rewards *r = NULL;
    double got[1], parts[2];
    (void)state;
    problem.line = json_pack("{s:{s:s}}", "schema", "type", "nosuch");
    must(lt_rewards_open(&r, &o));
    assert_int_not_equal(lt_rewards_judge(r, problems, &a, &text, 1, got, parts), LT_OK);
    assert_non_null(strstr(lt_error_message(), "p.jsonl:7: schema"));
    lt_rewards_close(r);
    json_decref(problem.line);
}

/* Between the draws there is a file whose path is in the variable BETWEEN. A command that wants
 * to write something then waits for the file, and removes it after writing. */
static void between_draws(const char *command_text) {
    const char *path = getenv("BETWEEN");
    if (strstr(command_text, "$BETWEEN") == NULL) {
        return;
    }
    must(lt_file_write_atomic(path, "", 0));
    while (lt_file_exists(path)) {
        (void)usleep(1000);
    }
}

static int open_files(void) {
    int n = 0;
    for (int fd = 0; fd < 256; fd++) {
        n += fcntl(fd, F_GETFD) >= 0;
    }
    return n;
}

/* Run the command for two answers. */
static lt_err command(const char *text, double limit_s, double rewards[2]) {
    static int32_t ids[] = {9, 1};
    lt_problem problem;
    const lt_problem *problems[2] = {&problem, &problem};
    const char *const texts[2] = {"one \"quoted\"\n", "two"};
    const lt_answer answers[2] = {{.ids = ids, .n = 2, .ended = true}, {.ids = ids, .n = 1}};
    lt_reward_options o = options_of("command:2");
    lt_rewards *r = NULL;
    lt_err err;
    const int files = open_files();
    problem_open(&problem);
    o.command = text;
    o.command_limit_s = limit_s;
    err = lt_rewards_open(&r, &o);
    /* The program keeps running from one draw to the next. */
    for (int draw = 0; draw < 2 && err == LT_OK; draw++) {
        if (draw == 1) {
            between_draws(text);
        }
        err = lt_rewards_judge(r, problems, answers, texts, 2, rewards, NULL);
    }
    lt_rewards_close(r);
    problem_close(&problem);
    assert_int_equal(open_files(), files); /* Each pipe is closed, and nothing else. */
    return err;
}

#define ONE                                                                                        \
    "{\"id\": 0, \"completion\": \"one \\\"quoted\\\"\\n\", \"tokens\": 2, \"ended\": true, "      \
    "\"problem\": {\"answer\":\"42\",\"schema\":"

static void command_answers(void **state) {
    double got[2];
    (void)state;
    must(command("while read -r l; do echo 0.25; done", 10, got));
    must(command("kill -USR1 $$; kill -USR2 $$; while read -r l; do echo 0.25; done", 10, got));
    assert_true(got[0] == 0.5 && got[1] == 0.5);
    must(command(
        "while read -r a; read -r b; do echo '{\"reward\": -1, \"why\": \"x\"}'; echo null; "
        "done",
        10, got));
    assert_true(got[0] == -2 && got[1] == 0);
    must(command("while read -r l; do case \"$l\" in '" ONE "'*) echo 1;; *) echo 0;; esac; done",
                 10, got));
    assert_true(got[0] == 2 && got[1] == 0);
}

/* The case that hangs has a short limit. The limit of the others only must not end them first,
 * even if the machine is busy and the shell starts late. */
static void command_fails(void **state) {
    static const struct {
        const char *command;
        double limit_s;
        lt_err err;
        const char *says;
    } rows[] = {
        {"read -r l; echo 1; exit 3", 60, LT_ERR_IO, "ended with status 3 at answer 2 of 2"},
        {"read -r l; kill -9 $$", 60, LT_ERR_IO, "ended by signal 9 at answer 1 of 2"},
        {"no-such-program-here", 60, LT_ERR_IO, "ended with status 127 at answer 1 of 2"},
        {"read -r l; echo 1; exec sleep 60", 5, LT_ERR_IO, "gave no line for 5 s at answer 2 of 2"},
        {"while read -r l; do echo good; done", 60, LT_ERR_FORMAT,
         "said 'good' about answer 1 of 2; a reward is a number"},
        {"while read -r l; do echo '{\"score\": 1}'; done", 60, LT_ERR_FORMAT,
         "said '{\"score\": 1}'"},
        {"while read -r a; read -r b; do printf '1\n1\n1\n'; done", 60, LT_ERR_FORMAT,
         "after all 2 answers were judged"},
        {"read -r a; read -r b; printf '1\n1\n'; while [ ! -e $BETWEEN ]; do sleep 0.01; done; "
         "printf '1\n'; rm $BETWEEN; read -r a",
         60, LT_ERR_FORMAT, "wrote more lines than it was asked for"},
        {"read -r l; head -c 70000 /dev/zero | tr '\\0' 1; sleep 60", 60, LT_ERR_FORMAT,
         "a line of more than 65536 bytes"},
    };
    char between[] = "/tmp/lt_between_XXXXXX";
    double got[2];
    (void)state;
    assert_int_equal(close(mkstemp(between)), 0);
    assert_int_equal(unlink(between), 0);
    assert_int_equal(setenv("BETWEEN", between, 1), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const double start_s = lt_clock_s();
        fails(command(rows[i].command, rows[i].limit_s, got), rows[i].err, rows[i].says);
        assert_true(lt_clock_s() - start_s < 40); /* The command that hangs is killed. */
    }
}

/* More than any pipe holds, in both directions at once, to a program that reads everything first
 * and to one that does not. */
static void command_with_many_lines(void **state) {
    enum { N = 20000 };
    static lt_answer answers[N];
    static const lt_problem *problems[N];
    static const char *texts[N];
    static double rewards[N];
    static const char *const commands[] = {"while read -r l; do echo 1; done",
                                           "python3 -c 'import sys\nx = [next(sys.stdin) for _ in "
                                           "range(20000)]\nprint(*[len(l) % 7 for l "
                                           "in x], sep=\"\\n\", flush=True)\nsys.stdin.read()'"};
    lt_problem problem;
    (void)state;
    problem_open(&problem);
    for (int i = 0; i < N; i++) {
        answers[i] = (lt_answer){.n = 1};
        problems[i] = &problem;
        texts[i] = "text";
    }
    for (int k = 0; k < 2; k++) {
        lt_reward_options o = options_of("command");
        lt_rewards *r = NULL;
        o.command = commands[k];
        o.command_limit_s = 60;
        must(lt_rewards_open(&r, &o));
        must(lt_rewards_judge(r, problems, answers, texts, N, rewards, NULL));
        assert_true(rewards[N - 1] >= 0);
        lt_rewards_close(r);
    }
    problem_close(&problem);
}

static int open_tokenizer(void **state) {
    (void)state;
    return lt_tokenizer_open(&tokenizer, "tests/golden/sft", NULL) == LT_OK ? 0 : -1;
}

static int close_tokenizer(void **state) {
    (void)state;
    lt_tokenizer_close(tokenizer);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_row_gives_its_reward), cmocka_unit_test(problems_are_checked),
        cmocka_unit_test(bad_schemas_are_refused),   cmocka_unit_test(bad_options),
        cmocka_unit_test(command_answers),           cmocka_unit_test(command_fails),
        cmocka_unit_test(command_with_many_lines),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
