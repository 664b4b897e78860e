/* Experiments: grids multiplied out by hand, cells in their order, prompts as experiment_task.c
 * draws them, Wilson's intervals by the equation that defines them, the summary of given results,
 * and runs of a small model that resume. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "align/experiment.h"
#include "base/error.h"
#include "base/json.h"
#include "lateen/model.h"
#include "lateen/tokenizer.h"

static char root[] = "/tmp/lateen-experiment-XXXXXX";

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

static void close_to(double got, double want) {
    if (!(fabs(got - want) <= 1e-9 * fmax(1.0, fabs(want)))) {
        fail_msg("got %.12g, want %.12g", got, want);
    }
}

static void put_file(char path[LT_PATH_BYTES], const char *name, const char *text) {
    (void)snprintf(path, LT_PATH_BYTES, "%s/%s", root, name);
    must(lt_file_write_atomic(path, text, strlen(text)));
}

/* Open `text` with what every file needs, unless the test is about that. */
static lt_err open_text(lt_experiment *e, const char *text) {
    char path[LT_PATH_BYTES];
    put_file(path, "e.yaml", text);
    return lt_experiment_open(e, path, root);
}

#define MODEL   "model: m\n"
#define SEEDS   "seeds: [3, 5]\n"
#define TASKS   "tasks:\n  - {name: t, make: arithmetic, count: 3}\n"
#define METHODS "methods:\n  - {name: plain}\n"

/* ---- Grids ---- */

static void grids_are_multiplied_out(void **state) {
    static const char *const want[] = {
        "{}",
        "{\"n\":1,\"temperature\":0.5}",
        "{\"n\":2,\"temperature\":0.5}",
        "{\"n\":4,\"temperature\":0.5}",
        "{\"n\":1,\"temperature\":1.0}",
        "{\"n\":2,\"temperature\":1.0}",
        "{\"n\":4,\"temperature\":1.0}",
    };
    lt_experiment e;
    (void)state;
    must(open_text(&e, MODEL SEEDS TASKS
                   "request: {max_tokens: 8, stop: \"a, b\", top_p: 0.5}\n"
                   "methods:\n"
                   "  - {name: plain, max_tokens: 9}\n"
                   "  - {name: best, alignment: {method: best_of_n, n: [1, 2, 4], reward: gold},\n"
                   "     temperature: [0.5, 1.0]}\n"));
    assert_int_equal(e.n_configs, 7);
    for (int i = 0; i < 7; i++) {
        const lt_experiment_config *c = &e.configs[i];
        const json_t *alignment = json_object_get(c->request, "alignment");
        char *text = json_dumps(c->parameters, JSON_COMPACT | JSON_SORT_KEYS);
        assert_string_equal(text, want[i]);
        free(text);
        assert_string_equal(c->method, i == 0 ? "plain" : "best");
        assert_true(c->gold == (i > 0));
        assert_null(json_object_get(c->request, "name"));
        assert_int_equal(json_integer_value(json_object_get(c->request, "max_tokens")),
                         i == 0 ? 9 : 8);
        assert_string_equal(json_string_value(json_object_get(c->request, "stop")), "a, b");
        assert_true(json_real_value(json_object_get(c->request, "top_p")) == 0.5);
        if (i > 0) {
            const double t = json_real_value(json_object_get(c->request, "temperature"));
            const int64_t n = json_integer_value(json_object_get(alignment, "n"));
            assert_true(t == (i > 3 ? 1.0 : 0.5));
            assert_int_equal(n, 1 << (i - 1) % 3);
        }
    }
    assert_int_equal(e.n_cells, 7 * 2 * 3); /* Methods, seeds, problems. */
    assert_int_equal(e.n_seeds, 2);
    assert_true(e.seeds[0] == 3 && e.seeds[1] == 5);
    assert_int_equal(e.max_running, 64);
    assert_false(e.chat);
    lt_experiment_close(&e);
}

/* Types of values in a file: what is not a number, true or false is a text. */
static void values_have_types(void **state) {
    static const struct {
        const char *text, *json;
    } rows[] = {
        {"true", "true"},         {"false", "false"},   {"7", "7"},         {"-7", "-7"},
        {"0.5", "0.5"},           {"1e3", "1000.0"},    {"inf", "\"inf\""}, {"7b", "\"7b\""},
        {"\"1,x\"", "\"1,x\""},   {"\"1,\"", "\"1,\""}, {"nan", "\"nan\""}, {"\"\"", "\"\""},
        {"\"1,,2\"", "\"1,,2\""}, {"0x10", "\"0x10\""}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512], *got;
        lt_experiment e;
        (void)snprintf(text, sizeof text, MODEL SEEDS TASKS METHODS "request: {x: %s}\n",
                       rows[i].text);
        must(open_text(&e, text));
        assert_int_equal(e.n_configs, 1);
        got = json_dumps(json_object_get(e.configs[0].request, "x"), JSON_ENCODE_ANY);
        assert_string_equal(got, rows[i].json);
        free(got);
        lt_experiment_close(&e);
    }
}

#define TENS "1,2,3,4,5,6,7,8,9,10,"

static void files_say_what_is_wrong(void **state) {
    static const struct {
        const char *text, *says;
        lt_err err;
    } rows[] = {
        {SEEDS TASKS METHODS, "no model", LT_ERR_ARG},
        {MODEL SEEDS METHODS, "no tasks", LT_ERR_ARG},
        {MODEL SEEDS TASKS, "no methods", LT_ERR_ARG},
        {MODEL SEEDS TASKS METHODS "x: 1\n", "no key is named 'x'", LT_ERR_ARG},
        {MODEL SEEDS TASKS METHODS "chat: 1\n", "chat must be true or false", LT_ERR_ARG},
        {MODEL SEEDS TASKS METHODS "max_running: 0\n", "max_running must be 1", LT_ERR_ARG},
        {MODEL SEEDS TASKS METHODS "max_running: 65537\n", "max_running must be 1", LT_ERR_ARG},
        {MODEL TASKS METHODS "seeds: [1, 2.5]\n", "seeds must be 1 to 64 whole", LT_ERR_ARG},
        {MODEL TASKS METHODS "seeds: 2.5\n", "seeds must be 1 to 64 whole", LT_ERR_ARG},
        {MODEL TASKS METHODS "seeds: [" TENS TENS TENS TENS TENS TENS "61,62,63,64,65]\n",
         "seeds must be 1 to 64 whole", LT_ERR_ARG},
        {MODEL TASKS METHODS "seeds: x\n", "seeds must be 1 to 64 whole", LT_ERR_ARG},
        {MODEL TASKS METHODS "seeds: [1, 2, 1]\n", "seeds: 1 is listed twice", LT_ERR_ARG},
        {MODEL SEEDS TASKS METHODS "  - {name: plain}\n", "are named 'plain'", LT_ERR_ARG},
        {MODEL SEEDS TASKS METHODS "  - {top_p: 1}\n", "methods.1 has no name", LT_ERR_ARG},
        {MODEL SEEDS TASKS "  - {name: t, make: arithmetic}\n" METHODS, "tasks are named 't'",
         LT_ERR_ARG},
        {"models:\n  - {name: a, path: x}\n  - {name: a, path: y}\n" SEEDS TASKS METHODS,
         "models are named 'a'", LT_ERR_ARG},
        {"models:\n  - {name: a}\n" SEEDS TASKS METHODS, "models.0 has no path", LT_ERR_ARG},
        {"models:\n  - {path: a, at: b}\n" SEEDS TASKS METHODS, "models: no key is named 'at'",
         LT_ERR_ARG},
        {MODEL SEEDS TASKS "methods:\n  - {name: a, a: [1,2], b: [1,2], c: [1,2], d: [1,2], e: "
                           "[1,2], f: [1,2], g: [1,2], h: [1,2], i: [1,2]}\n",
         "more than", LT_ERR_LIMIT},
        {MODEL SEEDS METHODS "tasks:\n  - {make: arithmetic, file: x}\n", "either 'make' or 'file'",
         LT_ERR_ARG},
        {MODEL SEEDS METHODS "tasks:\n  - {name: x}\n", "either 'make' or 'file'", LT_ERR_ARG},
        {MODEL SEEDS METHODS "tasks:\n  - {make: arithmetic, split: test}\n", "split test",
         LT_ERR_ARG},
        {MODEL SEEDS METHODS "tasks:\n  - {make: arithmetic, count: 0}\n", "count must be 1",
         LT_ERR_ARG},
        {MODEL SEEDS METHODS "tasks:\n  - {make: arithmetic, count: 100001}\n", "count must be 1",
         LT_ERR_ARG},
        {MODEL SEEDS METHODS "tasks:\n  - {make: arithmetic, shots: 65}\n", "shots 0 to 64",
         LT_ERR_ARG},
        {MODEL SEEDS METHODS "tasks:\n  - {make: arithmetic, shots: -1}\n", "shots 0 to 64",
         LT_ERR_ARG},
        {MODEL SEEDS METHODS "tasks:\n  - {make: arithmetic, first: -1}\n", "first at least 0",
         LT_ERR_ARG},
        {MODEL SEEDS METHODS "tasks:\n  - {make: arithmetic, level: 0}\n", "level 1 to",
         LT_ERR_ARG},
        {MODEL SEEDS METHODS "tasks:\n  - {make: arithmetic, level: 2-1}\n", "level 1 to",
         LT_ERR_ARG},
        {MODEL SEEDS METHODS "tasks:\n  - {make: arithmetic, level: 1-99}\n", "level 1 to",
         LT_ERR_ARG},
        {MODEL SEEDS METHODS "tasks:\n  - {make: arithmetic, level: x}\n", "level 1 to",
         LT_ERR_ARG},
        {MODEL SEEDS METHODS "tasks:\n  - {file: /nosuch}\n", "/nosuch: No such file", LT_ERR_IO},
    };
    lt_experiment e;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const lt_err err = open_text(&e, rows[i].text);
        if (err != rows[i].err || strstr(lt_error_message(), rows[i].says) == NULL) {
            fail_msg("%s: %d, '%s'", rows[i].text, (int)err, lt_error_message());
        }
        lt_experiment_close(&e);
    }
    must(open_text(&e, MODEL SEEDS TASKS METHODS "  - {name: plain, top_p: [0.5, 1]}\n"
                                                 "max_running: 65536\nchat: true\n"));
    assert_int_equal(e.n_configs, 3); /* The same name with other parameters. */
    assert_true(e.chat && e.max_running == 65536);
    lt_experiment_close(&e);
    must(open_text(&e, MODEL TASKS METHODS));
    assert_true(e.n_seeds == 1 && e.seeds[0] == 0);
    lt_experiment_close(&e);
    must(open_text(&e, MODEL TASKS METHODS "seeds: 7\n"));
    assert_true(e.n_seeds == 1 && e.seeds[0] == 7);
    lt_experiment_close(&e);
}

/* Everything that changes the results changes the hash; the folder and the name of a model do
 * not. */
static void the_hash_covers_what_changes_results(void **state) {
    static const char *const same[] = {MODEL SEEDS TASKS METHODS,
                                       "models:\n  - {name: other, path: m}\n" SEEDS TASKS METHODS,
                                       MODEL SEEDS TASKS METHODS "max_running: 3\n"},
                             *const other[] = {
                                 "model: n\n" SEEDS TASKS METHODS,
                                 MODEL "seeds: [3, 6]\n" TASKS METHODS,
                                 MODEL SEEDS TASKS METHODS "  - {name: two, top_p: 1}\n",
                                 MODEL SEEDS TASKS METHODS "request: {top_p: 1}\n",
                                 MODEL SEEDS "tasks:\n  - {name: t, make: arithmetic, count: 3, "
                                             "seed: 1}\n" METHODS,
                             };
    lt_experiment e;
    uint64_t hash;
    (void)state;
    must(open_text(&e, same[0]));
    hash = e.hash;
    lt_experiment_close(&e);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        must(open_text(&e, same[i]));
        assert_true(e.hash == hash);
        lt_experiment_close(&e);
    }
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        must(open_text(&e, other[i]));
        assert_true(e.hash != hash);
        lt_experiment_close(&e);
    }
}

/* ---- Problems ---- */

#define LINE(q, a)                                                                                 \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"" q "\"}], \"answer\": \"" a              \
    "\", \"checker\": \"number\"}\n"

static void prompts_are_drawn(void **state) {
    static const char *const completions[] = {
        "Question: q1\nAnswer: The answer is 1.\n\nQuestion: q2\nAnswer: The answer is 2.\n\n"
        "Question: q3\nAnswer:",
        "Question: q1\nAnswer: The answer is 1.\n\nQuestion: q2\nAnswer: The answer is 2.\n\n"
        "Question: q4\nAnswer:"};
    static const char *const roles[] = {"user", "assistant", "user", "assistant", "user"};
    static const char *const said[] = {"q1", "The answer is 1.", "q2", "The answer is 2.", "q3"};
    char path[LT_PATH_BYTES], text[LT_PATH_BYTES + 512];
    lt_experiment e;
    json_t *chat = NULL;
    (void)state;
    put_file(path, "lines.jsonl", LINE("q1", "1") LINE("q2", "2") LINE("q3", "3") LINE("q4", "4"));
    (void)snprintf(text, sizeof text, MODEL METHODS "tasks:\n  - {file: %s, shots: 2}\n", path);
    must(open_text(&e, text));
    assert_int_equal(e.tasks[0].n_problems, 2);
    assert_string_equal(e.tasks[0].name, path);
    assert_false(e.tasks[0].strict);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(e.tasks[0].problems[i].prompt, completions[i]);
        assert_string_equal(e.tasks[0].problems[i].answer, i == 0 ? "3" : "4");
        assert_int_equal(e.tasks[0].problems[i].checker, LT_CHECK_NUMBER);
    }
    lt_experiment_close(&e);
    (void)snprintf(text, sizeof text,
                   MODEL METHODS "chat: true\ntasks:\n  - {file: %s, shots: 2, count: 1, "
                                 "strict: true, name: x}\n",
                   path);
    must(open_text(&e, text));
    assert_int_equal(e.tasks[0].n_problems, 1);
    assert_true(e.tasks[0].strict);
    assert_string_equal(e.tasks[0].name, "x");
    must(lt_json_parse(&chat, e.tasks[0].problems[0].prompt, strlen(e.tasks[0].problems[0].prompt),
                       "prompt"));
    assert_int_equal(json_array_size(chat), 5);
    for (size_t i = 0; i < 5; i++) {
        const json_t *one = json_array_get(chat, i);
        assert_string_equal(json_string_value(json_object_get(one, "role")), roles[i]);
        assert_string_equal(json_string_value(json_object_get(one, "content")), said[i]);
    }
    json_decref(chat);
    lt_experiment_close(&e);
}

static void lines_say_what_is_wrong(void **state) {
    static const struct {
        const char *lines, *more, *says;
    } rows[] = {
        {LINE("q", "1"), ", shots: 1", "no problem after 1 examples"},
        {LINE("q", "1") "{\"answer\": \"1\", \"checker\": \"number\"}\n", "",
         "bad.jsonl:2 needs 'messages' or 'prompt'"},
        {"{\"prompt\": \"q\", \"checker\": \"number\"}\n", "", "'answer' and 'checker'"},
        {"{\"prompt\": \"q\", \"answer\": \"1\"}\n", "", "'answer' and 'checker'"},
        {"{\"prompt\": \"q\", \"answer\": \"1\", \"checker\": \"number\"}\n", ", shots: 1",
         "cannot be combined with shots or chat"},
        {"{\"prompt\": \"q\", \"answer\": \"1\", \"checker\": \"nosuch\"}\n", "", "nosuch"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[LT_PATH_BYTES], text[LT_PATH_BYTES + 512];
        lt_experiment e;
        put_file(path, "bad.jsonl", rows[i].lines);
        (void)snprintf(text, sizeof text, MODEL METHODS "tasks:\n  - {file: %s%s}\n", path,
                       rows[i].more);
        assert_int_not_equal(open_text(&e, text), LT_OK);
        if (strstr(lt_error_message(), rows[i].says) == NULL) {
            fail_msg("'%s', not '%s'", lt_error_message(), rows[i].says);
        }
        lt_experiment_close(&e);
    }
}

/* Problems of a range are those of a task that begins with it; examples are not among them, and
 * show their steps if the task says so. */
static void problems_are_made(void **state) {
    lt_experiment e;
    (void)state;
    must(
        open_text(&e, MODEL METHODS
                  "tasks:\n  - {name: all, make: arithmetic, count: 6}\n"
                  "  - {name: tail, make: arithmetic, count: 2, first: 4}\n"
                  "  - {name: shots, make: arithmetic, count: 6, shots: 2}\n"
                  "  - {name: steps, make: arithmetic, count: 6, shots: 2, steps: true}\n"
                  "  - {name: train, make: arithmetic, count: 6, split: train}\n"
                  "  - {name: held, make: arithmetic, count: 6, split: held-out, level: 1}\n"
                  "  - {name: hard, make: arithmetic, count: 6, level: 1-3}\n"
                  "  - {name: usual, make: arithmetic}\n"
                  "  - {name: behind, make: arithmetic, count: 2, split: train, first: 100000}\n"));
    assert_int_equal(e.tasks[7].n_problems, 100);
    /* Examples are the training problems after the first 100,000. */
    for (int i = 0; i < 2; i++) {
        const char *example = e.tasks[8].problems[i].prompt;
        assert_non_null(strstr(e.tasks[2].problems[0].prompt, example));
    }
    for (int i = 0; i < 6; i++) {
        const char *plain = e.tasks[0].problems[i].prompt, *shot = e.tasks[2].problems[i].prompt;
        const char *steps = e.tasks[3].problems[i].prompt;
        assert_string_equal(e.tasks[5].problems[i].prompt, plain);
        assert_string_equal(shot + strlen(shot) - strlen(plain), plain);
        assert_string_equal(steps + strlen(steps) - strlen(plain), plain);
        assert_true(strlen(steps) > strlen(shot)); /* Steps are written. */
        assert_string_equal(e.tasks[2].problems[i].answer, e.tasks[0].problems[i].answer);
        assert_true(strncmp(plain, "Question: ", 10) == 0);
    }
    for (int i = 0; i < 2; i++) {
        assert_string_equal(e.tasks[1].problems[i].prompt, e.tasks[0].problems[4 + i].prompt);
    }
    assert_string_not_equal(e.tasks[4].problems[0].prompt, e.tasks[0].problems[0].prompt);
    assert_true(strcmp(e.tasks[6].problems[0].prompt, e.tasks[0].problems[0].prompt) != 0 ||
                strcmp(e.tasks[6].problems[1].prompt, e.tasks[0].problems[1].prompt) != 0 ||
                strcmp(e.tasks[6].problems[2].prompt, e.tasks[0].problems[2].prompt) != 0);
    lt_experiment_close(&e);
}

/* ---- Cells ---- */

/* Two models, tasks of 2 and 3 problems, two methods, two seeds. */
#define CELLS                                                                                      \
    "models:\n  - {name: a, path: m}\n  - {name: b, path: n}\n" SEEDS                              \
    "tasks:\n  - {name: t, make: arithmetic, count: 2}\n"                                          \
    "  - {name: u, make: arithmetic, count: 3}\n"                                                  \
    "methods:\n  - {name: plain}\n  - {name: other}\n"

static void cells_are_in_order(void **state) {
    lt_experiment e;
    int64_t at = 0;
    (void)state;
    must(open_text(&e, CELLS));
    assert_int_equal(e.n_cells, 2 * (2 + 3) * 2 * 2);
    for (int64_t model = 0; model < 2; model++) {
        for (int64_t task = 0; task < 2; task++) {
            for (int64_t config = 0; config < 2; config++) {
                for (int64_t seed = 0; seed < 2; seed++) {
                    for (int64_t problem = 0; problem < 2 + task; problem++, at++) {
                        const lt_experiment_place p = {model, task, config, seed, problem},
                                                  q = lt_experiment_place_of(&e, at);
                        assert_int_equal(lt_experiment_index(&e, &p), at);
                        assert_memory_equal(&p, &q, sizeof p);
                    }
                }
            }
        }
    }
    lt_experiment_close(&e);
}

/* The bounds of Wilson's interval are the shares q with (p - q)^2 = z^2 q (1 - q) / n: here n is
 * the number of independent answers that would be equally certain. */
static void intervals_are_those_of_wilson(void **state) {
    static const struct {
        int32_t right[8];
        int64_t n, seeds;
        double mean, answers;
    } rows[] = {
        {{1, 1, 0, 1}, 4, 1, 0.75, 3}, /* p (1 - p) / (variance / n) = n - 1. */
        {{1, 1, 1, 1}, 4, 1, 1, 4},    /* No variance: 1 answer per problem. */
        {{0, 0, 0}, 3, 2, 0, 3},       /* No variance: 1 answer per problem. */
        {{1, 1, 1}, 3, 2, 0.5, 3},
        {{0, 2}, 2, 2, 0.5, 1}, /* 0.25 / (0.5 / 2). */
        /* The formula gives 399, but there were only 40. */
        {{5, 5, 5, 4}, 4, 10, 0.475, 40},
        {{8, 2, 5, 9}, 4, 10, 0.6, 0.24 / 0.025}, /* Variance 0.1. */
        {{1}, 1, 2, 0.5, 1},
    };
    const double z = 1.959963984540054;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const double p = rows[i].mean;
        const lt_experiment_share s = lt_experiment_share_of(rows[i].right, rows[i].n,
                                                             rows[i].seeds);
        close_to(s.mean, p);
        for (int k = 0; k < 2; k++) {
            const double q = k == 0 ? s.low : s.high;
            close_to((p - q) * (p - q), z * z * q * (1 - q) / rows[i].answers);
        }
        assert_true(s.low >= 0 && s.high <= 1 && s.low <= p && p <= s.high && s.low < s.high);
    }
    const lt_experiment_share none = lt_experiment_share_of(NULL, 0, 3);
    assert_true(none.mean == 0 && none.low == 0 && none.high == 1);
}

/* ---- Results ---- */

static void put_results(const lt_experiment *e, const char *lines) {
    char path[LT_PATH_BYTES], text[4096];
    (void)snprintf(text, sizeof text, "{\"experiment\":\"%016" PRIx64 "\",\"cells\":40}\n%s",
                   e->hash, lines);
    put_file(path, "results.jsonl", text);
}

static double at(const json_t *row, const char *key, size_t i) {
    return json_number_value(json_array_get(json_object_get(row, key), i));
}

/* Model a, task t, method plain: problem 0 has right answers of 5 and 7 tokens; problem 1 has a
 * right one of 4 and a wrong one of 10. The second method lacks a seed. */
static void summaries_are_worked_out(void **state) {
    lt_experiment e;
    char path[LT_PATH_BYTES], *text = NULL, *next = NULL, *line;
    size_t n = 0, rows = 0;
    (void)state;
    must(open_text(&e, CELLS));
    put_results(&e, "{\"cell\":0,\"right\":true,\"tokens\":5,\"score\":1,\"kl\":0.5}\n"
                    "{\"cell\":2,\"right\":true,\"tokens\":7,\"score\":2,\"kl\":0.25}\n"
                    "{\"cell\":3,\"right\":false,\"tokens\":10,\"score\":0,\"kl\":0}\n"
                    "{\"cell\":1,\"right\":true,\"tokens\":4,\"score\":3,\"kl\":0.25}\n"
                    "{\"cell\":4,\"right\":true,\"tokens\":4}\n"
                    "{\"cell\":6,\"right\":true,\"tokens\":8}\n"
                    "{\"cell\":5,\"right\":true,\"tokens\":1");
    must(lt_experiment_read(&e));
    assert_int_equal(e.n_done, 6); /* The last line was cut off. */
    assert_false(e.cells[5].done);
    (void)snprintf(path, sizeof path, "%s/summary.jsonl", root);
    must(lt_file_read(&text, &n, path, 1 << 20));
    for (line = strtok_r(text, "\n", &next); line != NULL; line = strtok_r(NULL, "\n", &next)) {
        json_t *row = NULL;
        must(lt_json_parse(&row, line, strlen(line), path));
        assert_string_equal(json_string_value(json_object_get(row, "model")), rows < 4 ? "a" : "b");
        assert_string_equal(json_string_value(json_object_get(row, "task")),
                            rows / 2 % 2 == 0 ? "t" : "u");
        assert_string_equal(json_string_value(json_object_get(row, "method")),
                            rows % 2 == 0 ? "plain" : "other");
        assert_int_equal(json_integer_value(json_object_get(row, "problems")), rows == 0   ? 2
                                                                               : rows == 1 ? 1
                                                                                           : 0);
        assert_int_equal(json_integer_value(json_object_get(row, "seeds")), 2);
        /* Tokens 6 and 7, scores 1.5 and 1.5; the variance of the tokens is 0.5. */
        if (rows == 0) {
            close_to(at(row, "accuracy", 0), 0.75);
            close_to(at(row, "tokens", 0), 6.5);
            close_to(at(row, "tokens", 1), 6.5 - 1.959963984540054 * 0.5);
            close_to(at(row, "tokens", 2), 6.5 + 1.959963984540054 * 0.5);
            close_to(at(row, "score", 0), 1.5);
            close_to(at(row, "score", 1), 1.5);
            close_to(json_number_value(json_object_get(row, "kl")), 0.25);
        } else {
            assert_null(json_object_get(row, "score"));
            assert_null(json_object_get(row, "kl"));
        }
        if (rows == 1) {
            close_to(at(row, "accuracy", 0), 1.0);
            close_to(at(row, "tokens", 0), 6.0);
            close_to(at(row, "tokens", 1), 6.0); /* One problem has no interval. */
        }
        json_decref(row);
        rows++;
    }
    assert_int_equal(rows, 8);
    free(text);
    lt_experiment_close(&e);
}

/* Reading stops at a line that is not a result: the rest is cut off, and asked again. */
static void results_end_at_a_bad_line(void **state) {
    static const struct {
        const char *lines;
        int64_t done;
    } rows[] = {
        {"", 0},
        {"{\"cell\":39,\"right\":true,\"tokens\":1}\n", 1},
        {"{\"cell\":40,\"right\":true,\"tokens\":1}\n", 0},
        {"{\"cell\":-1,\"right\":true,\"tokens\":1}\n", 0},
        {"{\"cell\":\"1\",\"right\":true,\"tokens\":1}\n", 0},
        {"{\"cell\":1,\"tokens\":1}\n{\"cell\":1,\"tokens\":1}\n{\"cell\":2,\"tokens\":1}\n", 1},
        {"{\"cell\":1,\"tokens\":1}\nx\n{\"cell\":2,\"tokens\":1}\n", 1},
    };
    lt_experiment e;
    char path[LT_PATH_BYTES];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *text = NULL, *again = NULL;
        size_t n = 0, m = 0;
        must(open_text(&e, CELLS));
        put_results(&e, rows[i].lines);
        must(lt_experiment_read(&e));
        assert_int_equal(e.n_done, rows[i].done);
        lt_experiment_close(&e);
        (void)snprintf(path, sizeof path, "%s/results.jsonl", root);
        must(lt_file_read(&text, &n, path, 1 << 20));
        must(open_text(&e, CELLS));
        must(lt_experiment_read(&e)); /* What is left is complete. */
        assert_int_equal(e.n_done, rows[i].done);
        lt_experiment_close(&e);
        must(lt_file_read(&again, &m, path, 1 << 20));
        assert_string_equal(text, again);
        int64_t lines = 0;
        for (size_t k = 0; k < n; k++) {
            lines += text[k] == '\n';
        }
        assert_int_equal(lines, 1 + rows[i].done);
        assert_true(text[n - 1] == '\n');
        free(text);
        free(again);
    }
    must(open_text(&e, CELLS));
    e.hash++;
    assert_int_equal(lt_experiment_read(&e), LT_ERR_STATE);
    assert_non_null(strstr(lt_error_message(), "results of another experiment"));
    lt_experiment_close(&e);
}

/* ---- Runs ---- */

/* Opens tests/golden/sft for each model, which the server then owns, and counts the models. */
typedef struct {
    int loads, unloads, n_told;
    int64_t told[64], of;
} opened;

static lt_err load(void *ctx, const lt_experiment_model *m, lt_model **model, lt_tokenizer **t) {
    ((opened *)ctx)->loads++;
    LT_TRY(lt_model_open(model, m->path, &(lt_model_options){.dtype = LT_F32}));
    return lt_tokenizer_open(t, m->path, NULL);
}

static void unload(void *ctx) {
    ((opened *)ctx)->unloads++;
}

static void progress(void *ctx, int64_t done, int64_t of) {
    opened *o = ctx;
    o->told[o->n_told++] = done;
    o->of = of;
}

/* No text gives the answer to the second problem. */
#define ASK                                                                                        \
    "{\"prompt\": \"Hello\", \"answer\": \"(.|\\\\n)*\", \"checker\": \"regex\"}\n"                \
    "{\"prompt\": \"What is\", \"answer\": \"never said\", \"checker\": \"regex\"}\n"
#define RUN                                                                                        \
    "models:\n  - {name: a, path: tests/golden/sft}\n  - {name: b, path: "                         \
    "tests/golden/sft}\n" SEEDS                                                                    \
    "request: {max_tokens: 4}\nmax_running: 3\nmethods:\n  - {name: plain}\n"                      \
    "  - {name: best, alignment: {method: best_of_n, n: 2}}\n"                                     \
    "  - {name: gold, alignment: {method: best_of_n, n: 2, reward: gold}}\n"

static lt_err run(opened *o, lt_experiment *e) {
    char path[LT_PATH_BYTES], text[LT_PATH_BYTES + 1024];
    const lt_experiment_host host = {load, unload, progress, o};
    *o = (opened){.loads = 0};
    put_file(path, "ask.jsonl", ASK);
    (void)snprintf(text, sizeof text, RUN "tasks:\n  - {name: t, file: %s}\n", path);
    must(open_text(e, text));
    return lt_experiment_run(e, &host);
}

static void remove_results(void) {
    char path[LT_PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/results.jsonl", root);
    (void)unlink(path);
}

static char *results(void) {
    char path[LT_PATH_BYTES], *text = NULL;
    size_t n = 0;
    (void)snprintf(path, sizeof path, "%s/results.jsonl", root);
    must(lt_file_read(&text, &n, path, 1 << 20));
    return text;
}

/* Write lines of the results in reverse order, without the last `less`. */
static void put_backwards(const char *whole, int less) {
    char path[LT_PATH_BYTES], *copy = strdup(whole), *next = NULL, *lines[64], text[32768];
    int n = 0;
    for (char *w = strtok_r(copy, "\n", &next); w != NULL; w = strtok_r(NULL, "\n", &next)) {
        lines[n++] = w;
    }
    (void)snprintf(text, sizeof text, "%s\n", lines[0]);
    for (int i = n - 1 - less; i > 0; i--) {
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), "%s\n", lines[i]);
    }
    put_file(path, "results.jsonl", text);
    free(copy);
}

/* 2 models, 3 methods, 2 seeds, 2 problems: 24 cells. However many results exist already, and in
 * whatever order, the run ends with the same bytes; a model is opened only if it is asked. */
static void runs_resume(void **state) {
    static const struct { int less, loads; } rows[] = {{0, 0}, {1, 1}, {12, 1}, {13, 2}, {24, 2}};
    static opened o;
    lt_experiment e;
    char *whole, *copy, *next = NULL;
    int64_t cell = 0;
    (void)state;
    remove_results();
    must(run(&o, &e));
    assert_int_equal(e.n_cells, 24);
    assert_int_equal(e.n_done, 24);
    assert_int_equal(o.loads, 2);
    assert_true(o.n_told == 24 && o.of == 24);
    for (int i = 0; i < 24; i++) {
        assert_int_equal(o.told[i], i + 1);
    }
    lt_experiment_close(&e);
    whole = results();
    copy = strdup(whole);
    strtok_r(copy, "\n", &next);
    for (char *w = strtok_r(NULL, "\n", &next); w != NULL;
         w = strtok_r(NULL, "\n", &next), cell++) {
        json_t *row = NULL;
        const int64_t in = cell % 12; /* Within a model: method, seed, problem. */
        must(lt_json_parse(&row, w, strlen(w), "results"));
        const json_t *tokens = json_object_get(row, "tokens"), *kl = json_object_get(row, "kl");
        assert_int_equal(json_integer_value(json_object_get(row, "cell")), cell);
        assert_string_equal(json_string_value(json_object_get(row, "model")),
                            cell < 12 ? "a" : "b");
        assert_string_equal(json_string_value(json_object_get(row, "method")), in < 4   ? "plain"
                                                                               : in < 8 ? "best"
                                                                                        : "gold");
        assert_int_equal(json_integer_value(json_object_get(row, "seed")), in / 2 % 2 == 0 ? 3 : 5);
        assert_int_equal(json_integer_value(json_object_get(row, "problem")), in % 2);
        assert_true(json_is_true(json_object_get(row, "right")) == (in % 2 == 0));
        assert_in_range(json_integer_value(tokens), 1, in < 4 ? 4 : 8);
        assert_true((kl != NULL) == (in >= 4));
        /* log n - (n - 1) / n; all answers with the same reward are equally likely. */
        if (kl != NULL) {
            close_to(json_number_value(kl), in < 8 ? log(2) - 0.5 : 0.0);
        }
        if (in >= 8) { /* The true answer has the highest reward. */
            assert_true(json_number_value(json_object_get(row, "score")) == (in % 2 == 0));
        }
        json_decref(row);
    }
    assert_int_equal(cell, 24);
    free(copy);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *again;
        put_backwards(whole, rows[i].less);
        must(run(&o, &e));
        assert_int_equal(o.loads, rows[i].loads);
        assert_int_equal(o.unloads, rows[i].loads);
        assert_int_equal(o.n_told, rows[i].less);
        assert_true(rows[i].less == 0 || o.told[0] == 25 - rows[i].less);
        lt_experiment_close(&e);
        again = results();
        assert_string_equal(again, whole);
        free(again);
    }
    free(whole);
}

/* The page contains the summary, and the questions. */
static void pages_hold_the_results(void **state) {
    char path[LT_PATH_BYTES], *page = NULL, *begin;
    size_t n = 0;
    lt_experiment e;
    json_t *data, *configuration, *one;
    (void)state;
    must(open_text(&e, CELLS));
    put_results(&e, "{\"cell\":0,\"right\":true,\"tokens\":5,\"score\":1,\"kl\":0.5}\n"
                    "{\"cell\":2,\"right\":true,\"tokens\":7,\"score\":2,\"kl\":0.25}\n"
                    "{\"cell\":4,\"right\":true,\"tokens\":5,\"score\":1,\"kl\":2}\n"
                    "{\"cell\":6,\"right\":false,\"tokens\":7,\"score\":2,\"kl\":4}\n");
    must(lt_experiment_read(&e));
    (void)snprintf(path, sizeof path, "%s/report.html", root);
    must(lt_file_read(&page, &n, path, 1 << 24));
    begin = strstr(page, "{\"title\"");
    assert_non_null(begin);
    data = json_loads(begin, JSON_DISABLE_EOF_CHECK, NULL);
    assert_non_null(data);
    assert_string_equal(json_string_value(json_object_get(data, "title")), root);
    assert_int_equal(json_integer_value(json_object_get(data, "done")), 4);
    assert_int_equal(json_integer_value(json_object_get(data, "cells")), 40);
    assert_int_equal(json_array_size(json_object_get(data, "rows")), 8);
    one = json_array_get(json_object_get(data, "rows"), 0);
    close_to(json_number_value(json_object_get(one, "kl")), 0.375);
    one = json_array_get(json_object_get(data, "rows"), 1);
    close_to(json_number_value(json_object_get(one, "kl")), 3.0);
    close_to(at(one, "accuracy", 0), 0.5);
    configuration = json_object_get(data, "configuration");
    assert_int_equal(json_array_size(json_object_get(configuration, "seeds")), 2);
    assert_int_equal(at(configuration, "seeds", 1), 5);
    assert_int_equal(json_array_size(json_object_get(configuration, "requests")), 2);
    one = json_array_get(json_object_get(configuration, "requests"), 1);
    assert_string_equal(json_string_value(json_object_get(one, "method")), "other");
    assert_true(json_is_object(json_object_get(one, "request")));
    assert_int_equal(json_array_size(json_object_get(configuration, "examples")), 2);
    one = json_array_get(json_object_get(configuration, "examples"), 1);
    assert_string_equal(json_string_value(json_object_get(one, "task")), "u");
    assert_string_equal(json_string_value(json_object_get(one, "prompt")),
                        e.tasks[1].problems[0].prompt);
    assert_string_equal(json_string_value(json_object_get(one, "answer")),
                        e.tasks[1].problems[0].answer);
    json_decref(data);
    free(page);
    lt_experiment_close(&e);
}

static int make_root(void **state) {
    (void)state;
    return mkdtemp(root) != NULL ? 0 : -1;
}

static int remove_root(void **state) {
    char command[sizeof root + 16];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grids_are_multiplied_out),
        cmocka_unit_test(values_have_types),
        cmocka_unit_test(files_say_what_is_wrong),
        cmocka_unit_test(the_hash_covers_what_changes_results),
        cmocka_unit_test(prompts_are_drawn),
        cmocka_unit_test(lines_say_what_is_wrong),
        cmocka_unit_test(problems_are_made),
        cmocka_unit_test(cells_are_in_order),
        cmocka_unit_test(intervals_are_those_of_wilson),
        cmocka_unit_test(summaries_are_worked_out),
        cmocka_unit_test(results_end_at_a_bad_line),
        cmocka_unit_test(pages_hold_the_results),
        cmocka_unit_test(runs_resume),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
