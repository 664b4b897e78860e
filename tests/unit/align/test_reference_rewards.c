/* Rewards of a reference model's completions: the lines of the file that QRPO reads, an interrupted
 * command that continues, and files that it must not continue with or replace. */
#include "unit/align/runs.h"

#include <math.h>

#include "align/reference_rewards.h"

enum { N = 3, TOKENS = 8, PROMPTS = 4 };

/* The first line has no completion; the others have one, as a text, as messages, and at the end of
 * a conversation. */
static const char asked[] =
    "{\"question\": \"Hi\", \"topic\": 1}\n"
    "{\"prompt\": \"2+2?\", \"completion\": \"4\", \"label\": true, \"topic\": 2}\n"
    "{\"prompt\": \"why\", \"completion\": [{\"role\": \"assistant\", \"content\": \"\"}]}\n"
    "{\"messages\": [{\"role\": \"user\", \"content\": \"2+2?\"}, {\"role\": \"assistant\", "
    "\"content\": \"4\"}]}\n";

typedef struct {
    lt_tokenizer *tokenizer;
    lt_chat_source source;
    lt_problems problems;
    lt_model *model;
    lt_rollouts *rollouts;
    lt_rewards *rewards;
    lt_reference_rewards_options o;
    lt_reference_rewards_stats stats;
    char out[LT_PATH_BYTES];
} command;

/* The reward of a completion is its number of tokens over TOKENS. */
static void command_open(command *c, const char *lines, const char *out) {
    static char path[LT_PATH_BYTES];
    *c = (command){.tokenizer = NULL};
    write_file("asked.jsonl", lines);
    run_path(path, "asked.jsonl");
    run_path(c->out, out);
    must(lt_tokenizer_open(&c->tokenizer, MODEL, NULL), MODEL);
    must(lt_chat_source_open(&c->source, &(lt_chat_source_options){.tokenizer = c->tokenizer,
                                                                   .tokenizer_path = MODEL,
                                                                   .template = "",
                                                                   .option = "template",
                                                                   .messages = "messages"}),
         MODEL);
    must(lt_problems_read(&c->problems, path,
                          &(lt_problems_options){.source = &c->source, .longest = 64}),
         path);
    must(lt_model_open(&c->model, MODEL, NULL), MODEL);
    must(lt_rollouts_open(&c->rollouts, c->model,
                          &(lt_rollout_options){.max_tokens = TOKENS,
                                                .max_seq = 72,
                                                .questions = PROMPTS,
                                                .running = 4,
                                                .temperature = 1.0}),
         "rollouts");
    must(lt_rewards_open(&c->rewards, &(lt_reward_options){.sum = "length",
                                                           .command = "",
                                                           .max_tokens = TOKENS,
                                                           .tokenizer = c->tokenizer}),
         "rewards");
    c->o = (lt_reference_rewards_options){.out = c->out,
                                          .problems = &c->problems,
                                          .rewards = c->rewards,
                                          .rollouts = c->rollouts,
                                          .tokenizer = c->tokenizer,
                                          .n = N,
                                          .prompts = 2,
                                          .seed = 5,
                                          .identity = 7};
}

static void command_close(command *c) {
    lt_rewards_close(c->rewards);
    lt_rollouts_close(c->rollouts);
    lt_model_close(c->model);
    lt_problems_close(&c->problems);
    lt_chat_source_close(&c->source);
    lt_tokenizer_close(c->tokenizer);
}

/* The text of a file in run_root, and its size. */
static char *text_of(const char *name, size_t *bytes) {
    char path[LT_PATH_BYTES], *text = NULL;
    run_path(path, name);
    must(lt_file_read(&text, bytes, path, 1 << 20), path);
    return text;
}

static bool is_there(const char *name) {
    char path[LT_PATH_BYTES];
    run_path(path, name);
    return lt_file_exists(path);
}

static json_t *lines_of(const char *name) {
    size_t bytes;
    char *text = text_of(name, &bytes), *rest = NULL;
    json_t *all = json_array();
    for (char *w = strtok_r(text, "\n", &rest); w != NULL; w = strtok_r(NULL, "\n", &rest)) {
        json_t *line = json_loads(w, 0, NULL);
        assert_non_null(line);
        json_array_append_new(all, line);
    }
    free(text);
    return all;
}

static double reward_of(const json_t *line) {
    return json_real_value(json_object_get(line, "reward"));
}

/* The prompt and the completion are lists of one message each. */
static void expect_messages(const json_t *line, const char *prompt, const char *completion) {
    const json_t *asks = json_array_get(json_object_get(line, "prompt"), 0);
    const json_t *answers = json_array_get(json_object_get(line, "completion"), 0);
    assert_int_equal(json_array_size(json_object_get(line, "prompt")), 1);
    assert_int_equal(json_array_size(json_object_get(line, "completion")), 1);
    assert_string_equal(json_string_value(json_object_get(asks, "role")), "user");
    assert_string_equal(json_string_value(json_object_get(asks, "content")), prompt);
    assert_string_equal(json_string_value(json_object_get(answers, "role")), "assistant");
    if (completion != NULL) {
        assert_string_equal(json_string_value(json_object_get(answers, "content")), completion);
    }
}

/* The quantile of a line is the share of the N other rewards that are at most its own. */
static void expect_quantile(const json_t *line) {
    const json_t *refs = json_object_get(line, "ref_rewards");
    int at_most = 0;
    assert_int_equal(json_array_size(refs), N);
    for (size_t i = 0; i < N; i++) {
        const double one = json_real_value(json_array_get(refs, i)) * TOKENS;
        assert_true(one >= 1.0 && one <= TOKENS && one == floor(one));
        at_most += one <= reward_of(line) * TOKENS;
    }
    assert_true(json_real_value(json_object_get(line, "quantile")) == (double)at_most / N);
}

static void lines_for_qrpo(void **state) {
    static const char *const left_out[] = {"messages", "question", "label"};
    command c;
    double sum = 0.0;
    (void)state;
    command_open(&c, asked, "lines.jsonl");
    must(lt_reference_rewards_run(&c.o, &c.stats), "lines");
    json_t *lines = lines_of("lines.jsonl"), *line;
    size_t i;
    assert_int_equal(json_array_size(lines), N + 3);
    json_array_foreach(lines, i, line) {
        expect_quantile(line);
        for (size_t k = 0; k < 3; k++) {
            assert_null(json_object_get(line, left_out[k]));
        }
        if (i < N) { /* A line for each completion that was drawn for the first prompt. */
            expect_messages(line, "Hi", NULL);
            assert_int_equal(json_integer_value(json_object_get(line, "topic")), 1);
            assert_true(json_equal(json_object_get(line, "reward"),
                                   json_array_get(json_object_get(line, "ref_rewards"), i)));
        }
        for (size_t k = 0; k < N && (i == 0 || i >= N); k++) {
            sum += json_real_value(json_array_get(json_object_get(line, "ref_rewards"), k));
        }
    }
    /* "4" is one token, and another one ends it; the empty completion has only the latter. */
    expect_messages(json_array_get(lines, N), "2+2?", "4");
    assert_true(reward_of(json_array_get(lines, N)) == 2.0 / TOKENS);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(lines, N), "topic")), 2);
    expect_messages(json_array_get(lines, N + 1), "why", "");
    assert_true(reward_of(json_array_get(lines, N + 1)) == 1.0 / TOKENS);
    expect_messages(json_array_get(lines, N + 2), "2+2?", "4");
    assert_true(reward_of(json_array_get(lines, N + 2)) == 2.0 / TOKENS);
    assert_true(c.stats.prompts == PROMPTS && c.stats.kept == 0 && c.stats.lines == N + 3);
    assert_true(c.stats.drawn == PROMPTS * N && fabs(c.stats.reward_sum - sum) < 1e-9);
    assert_false(is_there("lines.jsonl.part") || is_there("lines.jsonl.state.json"));
    json_decref(lines);
    command_close(&c);
}

/* Prompts with the same text have completions of their own, and another seed gives others. */
static void completions_depend_on_seed_and_place(void **state) {
    static const char twice[] = "{\"question\": \"Hi\"}\n{\"question\": \"Hi\"}\n";
    command c;
    json_t *lines[2];
    (void)state;
    for (int run = 0; run < 2; run++) {
        const char *name = run == 0 ? "seed5.jsonl" : "seed6.jsonl";
        command_open(&c, twice, name);
        c.o.seed += (uint64_t)run;
        must(lt_reference_rewards_run(&c.o, &c.stats), name);
        lines[run] = lines_of(name);
        assert_int_equal(json_array_size(lines[run]), 2 * N);
        command_close(&c);
    }
    const json_t *a = json_array_get(lines[0], 0);
    assert_false(json_equal(json_object_get(a, "completion"),
                            json_object_get(json_array_get(lines[0], N), "completion")));
    assert_false(json_equal(json_object_get(a, "completion"),
                            json_object_get(json_array_get(lines[1], 0), "completion")));
    json_decref(lines[0]);
    json_decref(lines[1]);
}

/* ---- Interrupted commands ---- */

typedef struct {
    char *part[PROMPTS + 1], *state[PROMPTS + 1];
    size_t part_bytes[PROMPTS + 1], state_bytes[PROMPTS + 1];
    int64_t calls;
} kept;

/* Keep what an interruption after this prompt would leave. */
static void keep(void *ctx, int64_t done, int64_t all) {
    kept *k = ctx;
    assert_true(all == PROMPTS && done == ++k->calls);
    k->part[done] = text_of("whole.jsonl.part", &k->part_bytes[done]);
    k->state[done] = text_of("whole.jsonl.state.json", &k->state_bytes[done]);
}

static void put(const char *name, const char *text, size_t bytes) {
    char path[LT_PATH_BYTES];
    run_path(path, name);
    must(lt_file_write_atomic(path, text, bytes), path);
}

/* As after an interruption: a line that was begun after the last state is in the file, too. */
static void put_interrupted(const kept *k, int64_t done, const char *begun) {
    char *text = NULL;
    const int n = asprintf(&text, "%s%s", k->part[done], begun);
    assert_true(n > 0);
    put("again.jsonl.part", text, (size_t)n);
    put("again.jsonl.state.json", k->state[done], k->state_bytes[done]);
    free(text);
}

static void an_interrupted_command_continues(void **state) {
    command c;
    kept k = {.calls = 0};
    size_t whole_bytes, bytes;
    char path[LT_PATH_BYTES], *whole;
    (void)state;
    command_open(&c, asked, "whole.jsonl");
    c.o.prompts = 1;
    c.o.progress = keep;
    c.o.ctx = &k;
    must(lt_reference_rewards_run(&c.o, &c.stats), "whole");
    assert_int_equal(k.calls, PROMPTS);
    whole = text_of("whole.jsonl", &whole_bytes);
    run_path(c.out, "again.jsonl");
    run_path(path, "again.jsonl");
    c.o.progress = NULL;
    for (int64_t done = 1; done <= PROMPTS; done++) {
        put_interrupted(&k, done, "{\"prompt\": [{\"ro");
        must(lt_reference_rewards_run(&c.o, &c.stats), "again");
        char *again = text_of("again.jsonl", &bytes);
        assert_int_equal(bytes, whole_bytes);
        assert_memory_equal(again, whole, bytes);
        assert_true(c.stats.kept == done && c.stats.prompts == PROMPTS);
        assert_true(c.stats.lines == N + 3 && c.stats.drawn == (PROMPTS - done) * N);
        free(again);
        /* The file is complete: it is not replaced. */
        assert_int_equal(lt_reference_rewards_run(&c.o, &c.stats), LT_ERR_STATE);
        says("again.jsonl exists already");
        assert_int_equal(remove(path), 0);
    }
    /* A part that has lost some of its complete lines. */
    put_interrupted(&k, 2, "");
    put("again.jsonl.part", k.part[2], k.part_bytes[2] - 1);
    assert_int_equal(lt_reference_rewards_run(&c.o, &c.stats), LT_ERR_STATE);
    says("again.jsonl.part has ");
    assert_false(is_there("again.jsonl"));
    for (int64_t done = 1; done <= PROMPTS; done++) {
        free(k.part[done]);
        free(k.state[done]);
    }
    free(whole);
    command_close(&c);
}

/* A reward that fails ends the command before the file is complete. The prompts before it are
 * kept. */
static void a_reward_that_fails(void **state) {
    command c;
    (void)state;
    command_open(&c, asked, "failed.jsonl");
    lt_rewards_close(c.rewards);
    /* The first prompt has three completions. */
    must(lt_rewards_open(&c.rewards,
                         &(lt_reward_options){.sum = "command",
                                              .command = "for i in 1 2 3; do read -r l; echo 1; "
                                                         "done; read -r l; exit 3",
                                              .command_limit_s = 60,
                                              .max_tokens = TOKENS,
                                              .tokenizer = c.tokenizer}),
         "rewards");
    c.o.rewards = c.rewards;
    c.o.prompts = 1;
    assert_int_equal(lt_reference_rewards_run(&c.o, &c.stats), LT_ERR_IO);
    says("ended with status 3 at answer 1 of 4");
    assert_false(is_there("failed.jsonl"));
    lt_rewards_close(c.rewards);
    must(lt_rewards_open(&c.rewards, &(lt_reward_options){.sum = "length",
                                                          .command = "",
                                                          .max_tokens = TOKENS,
                                                          .tokenizer = c.tokenizer}),
         "rewards");
    c.o.rewards = c.rewards;
    must(lt_reference_rewards_run(&c.o, &c.stats), "again");
    assert_true(c.stats.kept == 1 && c.stats.lines == N + 3);
    command_close(&c);
}

/* Each option that determines the lines, and each number of the state that is out of range. */
static void a_part_of_something_else_is_refused(void **state) {
    static const char *const damaged[] = {
        "{\"key\": \"%.16s\", \"bytes\": -1, \"prompts\": 0, \"lines\": 0}",
        "{\"key\": \"%.16s\", \"bytes\": 0, \"prompts\": -1, \"lines\": 0}",
        "{\"key\": \"%.16s\", \"bytes\": 0, \"prompts\": 5, \"lines\": 0}",
        "{\"key\": \"%.15sx\", \"bytes\": 0, \"prompts\": 0, \"lines\": 0}"};
    command c;
    kept k = {.calls = 0};
    char text[256], path[LT_PATH_BYTES];
    (void)state;
    run_path(path, "whole.jsonl");
    (void)remove(path);
    command_open(&c, asked, "whole.jsonl");
    c.o.prompts = 1;
    c.o.progress = keep;
    c.o.ctx = &k;
    must(lt_reference_rewards_run(&c.o, &c.stats), "whole");
    c.o.progress = NULL;
    run_path(c.out, "other.jsonl");
    put("other.jsonl.part", k.part[1], k.part_bytes[1]);
    put("other.jsonl.state.json", k.state[1], k.state_bytes[1]);
    for (int i = 0; i < 4; i++) {
        lt_reference_rewards_options o = c.o;
        o.n += i == 0;
        o.prompts += i == 1;
        o.seed += i == 2;
        o.identity += i == 3;
        assert_int_equal(lt_reference_rewards_run(&o, &c.stats), LT_ERR_STATE);
        says("was made from other prompts, by another model or with other options");
    }
    const char *key = strstr(k.state[1], "\"key\": \"");
    assert_non_null(key);
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        (void)snprintf(text, sizeof text, damaged[i], key + strlen("\"key\": \""));
        put("other.jsonl.state.json", text, strlen(text));
        assert_int_equal(lt_reference_rewards_run(&c.o, &c.stats), LT_ERR_STATE);
        says("was made from other prompts");
    }
    (void)snprintf(text, sizeof text, "{\"key\": \"%.16s\", \"bytes\": 0, \"prompts\": 0}",
                   key + strlen("\"key\": \""));
    put("other.jsonl.state.json", text, strlen(text));
    assert_int_not_equal(lt_reference_rewards_run(&c.o, &c.stats), LT_OK);
    says("lines");
    assert_false(is_there("other.jsonl"));
    for (int64_t done = 1; done <= PROMPTS; done++) {
        free(k.part[done]);
        free(k.state[done]);
    }
    command_close(&c);
}

/* A line's completion that is not the assistant's text ends the command before it draws. */
static void completions_that_are_not_texts(void **state) {
    static const struct {
        const char *line, *says;
    } rows[] = {
        {"{\"prompt\": \"a\", \"completion\": 5}", "'completion' is neither a string"},
        {"{\"prompt\": \"a\", \"completion\": []}", "'completion' is neither a string"},
        {"{\"prompt\": \"a\", \"completion\": [{\"role\": \"user\", \"content\": \"b\"}]}",
         "'completion' is neither a string"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
         "\"content\": null}]}",
         "the answer in 'messages' is neither a string"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char lines[512];
        command c;
        (void)snprintf(lines, sizeof lines, "{\"prompt\": \"Hi\", \"completion\": null}\n%s\n",
                       rows[i].line);
        command_open(&c, lines, "bad.jsonl");
        assert_int_equal(lt_reference_rewards_run(&c.o, &c.stats), LT_ERR_FORMAT);
        says("asked.jsonl:2: ");
        says(rows[i].says);
        assert_false(is_there("bad.jsonl.part"));
        command_close(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_for_qrpo),
        cmocka_unit_test(completions_depend_on_seed_and_place),
        cmocka_unit_test(an_interrupted_command_continues),
        cmocka_unit_test(a_reward_that_fails),
        cmocka_unit_test(a_part_of_something_else_is_refused),
        cmocka_unit_test(completions_that_are_not_texts),
    };
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
