/* Problems that reinforcement learning asks: the ids of each form of a line, skipped lines, and
 * what identifies the problems of a run; and recipes of reinforcement learning that contradict
 * themselves. */
#include "unit/align/runs.h"

#include "align/learner.h"
#include "data/chat_source.h"

/* ---- Lines ---- */

typedef struct {
    lt_tokenizer *tokenizer;
    lt_chat_source source;
    lt_problems problems;
} lines;

/* template: a file of run_root; "": the model's own. */
static lt_err lines_open_by(lines *l, const char *template, const char *text,
                            lt_problems_options o) {
    static char path[LT_PATH_BYTES];
    *l = (lines){.tokenizer = NULL};
    write_file("p.jsonl", text);
    run_path(path, "p.jsonl");
    must(lt_tokenizer_open(&l->tokenizer, MODEL, NULL), MODEL);
    must(lt_chat_source_open(&l->source, &(lt_chat_source_options){.tokenizer = l->tokenizer,
                                                                   .tokenizer_path = MODEL,
                                                                   .template = template,
                                                                   .option = "template",
                                                                   .messages = "messages"}),
         MODEL);
    o.source = &l->source;
    o.longest = o.longest > 0 ? o.longest : 64;
    return lt_problems_read(&l->problems, path, &o);
}

static lt_err lines_open(lines *l, const char *text, lt_problems_options o) {
    return lines_open_by(l, "", text, o);
}

static void lines_close(lines *l) {
    lt_problems_close(&l->problems);
    lt_chat_source_close(&l->source);
    lt_tokenizer_close(l->tokenizer);
}

static void expect_prompt(const lines *l, int64_t i, const char *want) {
    const lt_problem *p = &l->problems.items[i];
    char *text = NULL;
    size_t bytes;
    must(lt_tokenizer_decode(l->tokenizer, (const uint32_t *)p->prompt, (size_t)p->n_prompt, false,
                             &text, &bytes),
         "prompt");
    assert_string_equal(text, want);
    free(text);
}

/* Each form that problems.h lists gives the same question, with the opening of the answer. */
static void shapes_of_a_question(void **state) {
    static const char text[] =
        "{\"prompt\": \"Hi\"}\n"
        "\n"
        "{\"question\": \"Hi\", \"answer\": \"5\"}\n"
        " \t\n"
        "{\"text\": \"Hi\", \"answer\": \"x.*\", \"checker\": \"regex\"}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"prompt\": \"no\"}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", "
        "\"content\": \"yes\"}]}\n"
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n";
    static const uint64_t numbers[] = {1, 3, 5, 6, 7, 8};
    lines l;
    bool right = false;
    (void)state;
    must(lines_open(&l, text, (lt_problems_options){.bad_rows = LT_BAD_ROWS_FAIL}), "lines");
    assert_true(l.problems.n == 6 && l.problems.left_out == 0);
    for (int64_t i = 0; i < 6; i++) {
        expect_prompt(&l, i, "<s><|user|>Hi<|end|><|assistant|>");
        assert_true(l.problems.items[i].line_number == numbers[i]);
        assert_true((l.problems.items[i].checker != NULL) == (i == 1 || i == 2));
    }
    must(lt_checker_run(l.problems.items[2].checker, "xyz", 3, LT_ANSWER_LENIENT, &right, NULL),
         "regex");
    assert_true(right);
    must(lt_checker_run(l.problems.items[1].checker, "6", 1, LT_ANSWER_LENIENT, &right, NULL),
         "number");
    assert_false(right);
    lt_problems_close(&l.problems);
    assert_true(l.problems.items == NULL && l.problems.n == 0 && l.problems.hash == 0);
    lines_close(&l); /* Closing it twice is allowed. */
}

/* The assistant's turns at the end are not part of the question; earlier ones are. */
static void turns_of_a_conversation(void **state) {
    static const char *const roles[] = {"user", "assistant", "user", "assistant", "assistant"};
    static const size_t want[] = {1, 1, 3, 3, 3};
    (void)state;
    for (size_t n = 1; n <= 5; n++) {
        json_t *messages = json_array(), *line, *got;
        for (size_t i = 0; i < n; i++) {
            json_array_append_new(messages,
                                  json_pack("{s:s, s:s}", "role", roles[i], "content", "x"));
        }
        line = json_pack("{s:o}", "messages", messages);
        got = lt_problem_messages(line);
        assert_int_equal(json_array_size(got), want[n - 1]);
        assert_int_equal(json_array_size(messages), n); /* The line was not changed. */
        json_decref(got);
        json_decref(line);
    }
    json_t *line = json_pack("{s:[{s:s}]}", "messages", "role", "assistant"), *got;
    got = lt_problem_messages(line);
    assert_int_equal(json_array_size(got), 0);
    json_decref(got);
    json_decref(line);
}

static void lines_that_are_left_out(void **state) {
    static const char text[] = "{\"prompt\": \"Hi\"}\n[1]\n{\n{\"prompt\": 5}\n"
                               "{\"prompt\": \"a\", \"answer\": \"x\", \"checker\": \"nosuch\"}\n"
                               "{\"prompt\": \"a\", \"answer\": 7}\n"
                               "{\"prompt\": \"What is this long question about?\"}\n"
                               "{\"prompt\": \"Ho\"}\n";
    static const struct {
        lt_bad_rows bad;
        lt_too_long too_long;
        int64_t longest, n, left_out;
        lt_err err;
        const char *says;
    } rows[] = {
        {LT_BAD_ROWS_SKIP, LT_TOO_LONG_FAIL, 64, 3, 5, LT_OK, NULL},
        {LT_BAD_ROWS_SKIP, LT_TOO_LONG_SKIP, 8, 2, 6, LT_OK, NULL},
        {LT_BAD_ROWS_SKIP, LT_TOO_LONG_CUT, 8, 2, 6, LT_OK, NULL},
        {LT_BAD_ROWS_SKIP, LT_TOO_LONG_FAIL, 8, 0, 0, LT_ERR_LIMIT, "p.jsonl:7: the question has"},
        {LT_BAD_ROWS_FAIL, LT_TOO_LONG_SKIP, 64, 0, 0, LT_ERR_FORMAT,
         "p.jsonl:2: a JSON object was expected"},
        {LT_BAD_ROWS_SKIP, LT_TOO_LONG_SKIP, 1, 0, 8, LT_ERR_FORMAT,
         "no problem to ask: 8 lines were left out, the first for this reason: line 1: the "
         "question"},
    };
    lines l;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const lt_err err = lines_open(&l, text,
                                      (lt_problems_options){.bad_rows = rows[i].bad,
                                                            .too_long = rows[i].too_long,
                                                            .longest = rows[i].longest});
        if (err != rows[i].err) {
            fail_msg("row %zu: %d, %s", i, (int)err, lt_error_message());
        }
        if (err == LT_OK) {
            assert_int_equal(l.problems.n, rows[i].n);
            assert_int_equal(l.problems.left_out, rows[i].left_out);
            expect_prompt(&l, rows[i].n - 1, "<s><|user|>Ho<|end|><|assistant|>");
        } else {
            says(rows[i].says);
        }
        lines_close(&l);
    }
    must(lines_open(&l, "{\"prompt\": \"Hi\"}\n", (lt_problems_options){.longest = 64}), "Hi");
    const int64_t n = l.problems.items[0].n_prompt;
    lines_close(&l);
    must(lines_open(&l, "{\"prompt\": \"Hi\"}\n",
                    (lt_problems_options){.longest = n, .too_long = LT_TOO_LONG_FAIL}),
         "exactly as long");
    lines_close(&l);
    assert_int_equal(
        lines_open(&l, "{\"prompt\": \"Hi\"}\n",
                   (lt_problems_options){.longest = n - 1, .too_long = LT_TOO_LONG_FAIL}),
        LT_ERR_LIMIT);
    lines_close(&l);
}

/* The hash covers the questions and their order. A file may have many lines. */
static void the_hash_is_of_the_lines(void **state) {
#define ONE "{\"prompt\": \"Hi\", \"level\": 1}\n"
#define TWO "{\"prompt\": \"Ho\", \"level\": 2}\n"
    static const char *const texts[] = {ONE TWO, TWO ONE, ONE, ONE ONE,
                                        ONE "{\"prompt\": \"Ho\", \"level\": 3}\n"};
    enum { N = sizeof texts / sizeof *texts };
    uint64_t hashes[N];
    static char many[64 * 400];
    lines l;
    (void)state;
    for (int i = 0; i < N; i++) {
        must(lines_open(&l, texts[i], (lt_problems_options){.longest = 64}), "lines");
        hashes[i] = l.problems.hash;
        lines_close(&l);
        for (int k = 0; k < i; k++) {
            assert_true(hashes[i] != hashes[k]);
        }
    }
    must(lines_open(&l, ONE "[1]\n\n" TWO, (lt_problems_options){.longest = 64}), "lines");
    assert_true(l.problems.hash == hashes[0]); /* Skipped lines do not count. */
    lines_close(&l);
    for (int i = 0; i < 400; i++) {
        (void)snprintf(many + strlen(many), sizeof many - strlen(many),
                       "{\"prompt\": \"Hi\", \"level\": %d}\n", i);
    }
    must(lines_open(&l, many, (lt_problems_options){.longest = 64}), "many");
    assert_int_equal(l.problems.n, 400);
    for (int64_t i = 0; i < 400; i++) {
        assert_int_equal(json_integer_value(json_object_get(l.problems.items[i].line, "level")), i);
    }
    lines_close(&l);
}

/* The hash covers the ids, to the last one: another template gives other ids for the same line. */
static void the_hash_is_of_the_ids(void **state) {
    static const char *const templates[] = {
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}why",
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}wer"};
    uint64_t hashes[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        char path[LT_PATH_BYTES];
        lines l;
        write_file("template.jinja", templates[i]);
        run_path(path, "template.jinja");
        must(lines_open_by(&l, path, "{\"prompt\": \"Which of these words?\"}\n",
                           (lt_problems_options){.longest = 64}),
             path);
        hashes[i] = l.problems.hash;
        lines_close(&l);
    }
    assert_true(hashes[0] != hashes[1]);
}

/* ---- Recipes ---- */

static void recipes_that_contradict(void **state) {
    static const struct {
        const char *options, *says; /* NULL: accepted. */
    } rows[] = {
        {"", NULL},
        {"data.seq=64 rl.tokens=63", NULL},
        {"data.seq=64 rl.tokens=64", "rl.tokens = 64 leaves no room for a question"},
        {"steps=12 rl.updates=2 rl.passes=3", NULL},
        {"steps=13 rl.updates=2 rl.passes=3", "steps = 13 is not a multiple of the 6 steps"},
        {"steps=12 rl.updates=5", "not a multiple of the 5 steps"},
        {"batch.ramp=4@0,8@9", "batch.ramp = 4@0,8@9 with reinforcement learning"},
        {"data.shuffle=none", "data.shuffle = none with reinforcement learning"},
        {"rl.kl=0.1 lora.rank=2", NULL},
        {"rl.kl=0.1 lora.init=x", "rl.kl = 0.1 with lora.init"},
        {"lora.init=x", NULL},
        {"rl.temperature=0.5", NULL},
        {"rl.temperature=0.5 rl.exact=true", "rl.temperature = 0.5 with rl.exact"},
        {"rl.temperature=0.5 rl.correction=token-mask", "rl.temperature = 0.5 with rl.correction"},
        {"rl.exact=true rl.correction=token-mask", NULL},
        {"rl.staleness=1 rl.correction=token-mask", NULL},
        {"rl.staleness=1", "rl.correction = none"},
        {"rl.staleness=1 rl.correction=token-mask rl.updates=2", NULL},
        {"rl.staleness=1 rl.correction=token-mask rl.passes=2", NULL},
        {"rl.staleness=1 rl.correction=token-mask lora.rank=1", NULL},
        {"rl.staleness=1 rl.correction=token-mask lora.init=x", NULL},
        {"rl.staleness=1 rl.correction=token-mask checkpoint.every=0", "checkpoint.every = 0"},
        {"lora.rank=1 rl.updates=2 checkpoint.every=0 steps=4", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char options[256];
        (void)snprintf(
            options, sizeof options,
            "objective.kind=grpo steps=12 checkpoint.every=2 data.seq=64 rl.tokens=16 %s",
            rows[i].options);
        lt_recipe *r = run_recipe("recipe", options);
        const lt_err err = lt_reinforce_check_recipe(r);
        if ((err == LT_OK) != (rows[i].says == NULL)) {
            fail_msg("%s: %d, %s", rows[i].options, (int)err, lt_error_message());
        }
        if (rows[i].says != NULL) {
            says(rows[i].says);
        }
        free(r);
    }
}

/* Without rl.curriculum_steps all problems are open after half of the run. */
static void curricula_of_recipes(void **state) {
    static const struct {
        const char *options;
        int64_t steps;
        bool asked;
    } rows[] = {
        {"steps=10", 5, false},
        {"steps=11 rl.curriculum=level", 6, true},
        {"steps=10 rl.curriculum=level rl.curriculum_steps=3", 3, true},
        {"steps=1 rl.prefer=failed", 1, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_recipe *r = run_recipe("curriculum", rows[i].options);
        const lt_curriculum_options o = lt_reinforce_curriculum(r);
        assert_int_equal(o.steps, rows[i].steps);
        assert_true(lt_curriculum_is_asked(&o) == rows[i].asked);
        free(r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_of_a_question),    cmocka_unit_test(turns_of_a_conversation),
        cmocka_unit_test(lines_that_are_left_out), cmocka_unit_test(the_hash_is_of_the_lines),
        cmocka_unit_test(the_hash_is_of_the_ids),  cmocka_unit_test(recipes_that_contradict),
        cmocka_unit_test(curricula_of_recipes),
    };
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
