/* Evaluation against lm-evaluation-harness (tests/golden/eval/scores.json,
 * tools/make_eval_goldens.py): the requests that it makes from our questions, the log-probability
 * of each, the scores, and loglikelihood_rolling of a text. The model is stories260K. */
#include "unit/model/golden.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "lateen/tokenizer.h"
#include "train/eval/eval_items.h"
#include "train/eval/score.h"

#define DATA    "tests/golden/eval/"
#define STORIES "tests/golden/stories260k/"
/* Both sides compute in float; these are sums of some ten to forty log-probabilities. */
#define NEAR 2e-4

static void assert_near(double got, double want, double bound, const char *what) {
    if (!(fabs(got - want) <= bound)) {
        fail_msg("%s: %.9g, not %.9g", what, got, want);
    }
}

static lt_model *model;
static lt_tokenizer *tokenizer;
static json_t *scores;

static int open_all(void **state) {
    (void)state;
    must(lt_model_open(&model, STORIES "stories260K.bin", NULL), "model");
    must(lt_tokenizer_open(&tokenizer, STORIES "tok512.bin", NULL), "tokenizer");
    must(lt_json_load(&scores, DATA "scores.json", 1 << 20), "scores");
    return 0;
}

static int close_all(void **state) {
    (void)state;
    json_decref(scores);
    lt_tokenizer_close(tokenizer);
    lt_model_close(model);
    return 0;
}

static const struct {
    const char *theirs, *task, *data;
} tasks[] = {
    {"arc_easy", "arc_easy", DATA "arc_easy.jsonl"},
    {"arc_challenge", "arc_challenge", DATA "arc_challenge.jsonl"},
    {"piqa", "piqa", DATA "piqa.jsonl"},
    {"winogrande", "winogrande", DATA "winogrande.jsonl"},
    {"openbookqa", "openbookqa", DATA "openbook_qa.jsonl"},
    {"lambada_openai", "lambada", DATA "lambada_openai.jsonl"},
};

static const json_t *scores_of(const char *task, int shots) {
    const json_t *all = json_object_get(scores, "tasks");
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *t = json_array_get(all, i);
        if (strcmp(json_string_value(json_object_get(t, "task")), task) == 0 &&
            json_integer_value(json_object_get(t, "shots")) == shots) {
            return t;
        }
    }
    fail_msg("no scores of %s", task);
    return NULL;
}

/* Our questions from `first` on are those of the harness: word for word, and equally likely. */
static void same_requests(lt_scorer *s, const lt_eval_items *ours, int64_t first,
                          const json_t *theirs) {
    const json_t *items = json_object_get(theirs, "items");
    for (size_t i = 0; i < json_array_size(items); i++) {
        const lt_eval_item *item = &ours->items[first + (int64_t)i];
        const json_t *pairs = json_object_get(json_array_get(items, i), "pairs");
        assert_int_equal(item->n_pairs, json_array_size(pairs));
        for (int p = 0; p < item->n_pairs; p++) {
            const json_t *pair = json_array_get(pairs, (size_t)p);
            lt_score score;
            assert_string_equal(item->contexts[p], json_string_value(json_array_get(pair, 0)));
            assert_string_equal(item->continuations[p], json_string_value(json_array_get(pair, 1)));
            must(lt_score_pair(s, item->contexts[p], item->continuations[p], &score), "score");
            assert_near(score.log_prob, json_real_value(json_array_get(pair, 2)), NEAR,
                        item->continuations[p]);
            assert_int_equal(score.greedy, json_is_true(json_array_get(pair, 3)));
        }
    }
}

static double metric(const json_t *of, const char *name) {
    return json_real_value(json_object_get(json_object_get(of, "metrics"), name));
}

static lt_eval_options options(void) {
    return (lt_eval_options){.model = model, .tokenizer = tokenizer};
}

static void tasks_of_lines(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++) {
        const json_t *want = scores_of(tasks[i].theirs, 0);
        const lt_eval_options o = options();
        lt_eval_items items = {0};
        lt_eval_metric kind;
        lt_eval_task_result r;
        lt_scorer s = {0};
        double p;

        must(lt_eval_items_read(&items, &kind, tasks[i].task, tasks[i].data, 0, 0), tasks[i].task);
        must(lt_scorer_open(&s, &o), "scorer");
        assert_int_equal(items.n, json_array_size(json_object_get(want, "items")));
        same_requests(&s, &items, 0, want);
        lt_scorer_close(&s);
        lt_eval_items_free(&items);

        must(lt_eval_task(&r, &o, tasks[i].task, tasks[i].data), tasks[i].task);
        p = metric(want, "acc");
        assert_near(r.accuracy, p, 1e-9, tasks[i].task);
        assert_near(r.accuracy_stderr, sqrt(p * (1.0 - p) / ((double)r.items - 1.0)), 1e-9,
                    tasks[i].task); /* The harness's mean_stderr. */
        if (json_object_get(json_object_get(want, "metrics"), "acc_norm") != NULL) {
            assert_near(r.accuracy_normalised, metric(want, "acc_norm"), 1e-9, tasks[i].task);
        } else {
            assert_true(isnan(r.accuracy_normalised));
        }
        if (json_object_get(json_object_get(want, "metrics"), "perplexity") != NULL) {
            assert_near(r.perplexity / metric(want, "perplexity"), 1.0, 1e-3, tasks[i].task);
        } else {
            assert_true(isnan(r.perplexity));
        }
    }
}

/* Subjects are in the order of their names; the harness has them as two tasks. */
static void mmlu(void **state) {
    (void)state;
    for (int shots = 0; shots <= 2; shots += 2) {
        const json_t *cats = scores_of("mmlu_anatomy", shots),
                     *park = scores_of("mmlu_jurisprudence", shots);
        lt_eval_options o = options();
        lt_eval_items items = {0};
        lt_eval_metric kind;
        lt_eval_task_result r;
        lt_scorer s = {0};

        o.shots = shots;
        must(lt_eval_items_read(&items, &kind, "mmlu", DATA "mmlu", 0, shots), "mmlu");
        assert_int_equal(items.n, 7);
        must(lt_scorer_open(&s, &o), "scorer");
        same_requests(&s, &items, 0, cats);
        same_requests(&s, &items, 3, park);
        lt_scorer_close(&s);
        lt_eval_items_free(&items);
        must(lt_eval_task(&r, &o, "mmlu", DATA "mmlu"), "mmlu");
        assert_near(r.accuracy, (3 * metric(cats, "acc") + 4 * metric(park, "acc")) / 7.0, 1e-9,
                    "mmlu");
        assert_true(isnan(r.accuracy_normalised));
    }
}

/* The same files in a tar, compressed with gzip. */
static void mmlu_in_a_tar(void **state) {
    char folder[] = "/tmp/lateen-eval-XXXXXX", path[64], command[256];
    lt_eval_items plain = {0}, packed = {0};
    lt_eval_metric kind;
    (void)state;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/mmlu.tar.gz", folder);
    /* With pax records of times, whose names end like those of the files. */
    (void)snprintf(command, sizeof command, "tar --format=pax -C %s -czf %s mmlu", DATA, path);
    assert_int_equal(system(command), 0);
    must(lt_eval_items_read(&plain, &kind, "mmlu", DATA "mmlu", 0, 2), "folder");
    must(lt_eval_items_read(&packed, &kind, "mmlu", path, 0, 2), "tar");
    assert_int_equal(plain.n, packed.n);
    for (int64_t i = 0; i < plain.n; i++) {
        assert_int_equal(plain.items[i].gold, packed.items[i].gold);
        assert_string_equal(plain.items[i].contexts[3], packed.items[i].contexts[3]);
    }
    lt_eval_items_free(&packed);
    must(lt_eval_items_read(&packed, &kind, "mmlu", path, 4, 2), "limit");
    assert_int_equal(packed.n, 4);
    lt_eval_items_free(&packed);
    lt_eval_items_free(&plain);
    must(lt_file_remove_tree(folder), folder);
}

/* One question of the subject two_words with this answer in the last field. */
static lt_err mmlu_of(lt_eval_items *items, const char *folder, const char *answer) {
    char path[96], text[256];
    lt_eval_metric kind;
    *items = (lt_eval_items){0};
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, i == 0 ? "dev" : "test");
        must(lt_file_make_dirs(path), path);
    }
    (void)snprintf(path, sizeof path, "%s/test/two_words_test.csv", folder);
    (void)snprintf(text, sizeof text,
                   "question,choice0,choice1,choice2,choice3,answer\n"
                   "\"What, \"\"now\"\"?\",a,b,\"c,d\",e,%s\n",
                   answer);
    must(lt_file_write_atomic(path, text, strlen(text)), path);
    return lt_eval_items_read(items, &kind, "mmlu", folder, 0, 0);
}

/* The prompt of Hendrycks' evaluation, and the answers that a file may give. */
static void answers_of_mmlu(void **state) {
    static const struct {
        const char *answer;
        int gold; /* -1: refused. */
    } rows[] = {{"0", 0},  {"3", 3}, {"A", 0},  {"D", 3},   {"4", -1},  {"E", -1},
                {"a", -1}, {"", -1}, {"-", -1}, {"AB", -1}, {"00", -1}, {"A ", -1}};
    char folder[] = "/tmp/lateen-eval-XXXXXX";
    (void)state;
    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_eval_items items;
        const lt_err err = mmlu_of(&items, folder, rows[i].answer);
        if ((err == LT_OK) != (rows[i].gold >= 0)) {
            fail_msg("answer '%s': %d, %s", rows[i].answer, (int)err, lt_error_message());
        }
        if (err != LT_OK) {
            assert_non_null(strstr(lt_error_message(), "two_words_test.csv: answer '"));
            assert_non_null(strstr(lt_error_message(), "' is none of 0 to 3 or A to D"));
        } else {
            assert_true(items.n == 1 && items.items[0].gold == rows[i].gold);
            assert_int_equal(items.items[0].n_pairs, 4);
            for (int k = 0; k < 4; k++) {
                const char want[] = {' ', (char)('A' + k), '\0'};
                assert_string_equal(items.items[0].continuations[k], want);
                assert_string_equal(
                    items.items[0].contexts[k],
                    "The following are multiple choice questions (with answers) about two words."
                    "\n\nWhat, \"now\"?\nA. a\nB. b\nC. c,d\nD. e\nAnswer:");
            }
        }
        lt_eval_items_free(&items);
    }
    must(lt_file_remove_tree(folder), folder);
}

/* Read test/s_test.csv with this text, and dev/s_dev.csv if examples is not NULL. */
static lt_err mmlu_files(lt_eval_items *items, const char *text, const char *examples, int shots) {
    char folder[] = "/tmp/lateen-eval-XXXXXX", path[96];
    lt_eval_metric kind;
    lt_err err;
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, i == 0 ? "dev" : "test");
        must(lt_file_make_dirs(path), path);
    }
    (void)snprintf(path, sizeof path, "%s/test/s_test.csv", folder);
    must(lt_file_write_atomic(path, text, strlen(text)), path);
    if (examples != NULL) {
        (void)snprintf(path, sizeof path, "%s/dev/s_dev.csv", folder);
        must(lt_file_write_atomic(path, examples, strlen(examples)), path);
    }
    *items = (lt_eval_items){0};
    err = lt_eval_items_read(items, &kind, "mmlu", folder, 0, shots);
    must(lt_file_remove_tree(folder), folder);
    return err;
}

#define HEADER   "question,choice0,choice1,choice2,choice3,answer\n"
#define ONE      "q1,a,b,c,d,A\n"
#define TWO      "q2,a,b,c,d,1\n"
#define PREAMBLE "The following are multiple choice questions (with answers) about s.\n\n"
#define CHOICES  "\nA. a\nB. b\nC. c\nD. d\nAnswer:"

/* Every record is a question, except for a header and blank lines. The files in the paper's own
 * tar have no header. */
static void records_of_mmlu(void **state) {
    static const char *const same[] = {HEADER ONE TWO, ONE TWO, HEADER "\n" ONE "\r\n\n" TWO "\n\n",
                                       ONE "q2,a,b,c,d,1"};
    lt_eval_items items;
    (void)state;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        must(mmlu_files(&items, same[i], NULL, 0), same[i]);
        assert_int_equal(items.n, 2);
        assert_string_equal(items.items[0].contexts[0], PREAMBLE "q1" CHOICES);
        assert_string_equal(items.items[1].contexts[0], PREAMBLE "q2" CHOICES);
        assert_int_equal(items.items[0].gold, 0);
        assert_int_equal(items.items[1].gold, 1);
        lt_eval_items_free(&items);
    }
}

/* A record that is not a question is reported; reading does not simply end there. */
static void broken_records_of_mmlu(void **state) {
    static const struct {
        const char *text, *says;
    } rows[] = {{HEADER ONE "q2,a,b,c,1\n" ONE, "s_test.csv: record 3 has 5 fields, not 6"},
                {HEADER ONE "q2, or so,a,b,c,d,1\n", "s_test.csv: record 3 has 7 fields, not 6"},
                {ONE "\"q2\" then,a,b,c,d,1\n", "s_test.csv: record 2 has 1 fields, not 6"},
                {ONE HEADER, "s_test.csv: answer 'answer' is none of"},
                {"question,choice0,choice1,choice2,answer\n" ONE, "record 1 has 5 fields, not 6"},
                {HEADER, "no <subject>_test.csv with questions"}};
    lt_eval_items items;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(mmlu_files(&items, rows[i].text, NULL, 0), LT_ERR_FORMAT);
        if (strstr(lt_error_message(), rows[i].says) == NULL) {
            fail_msg("'%s' does not say '%s'", lt_error_message(), rows[i].says);
        }
        lt_eval_items_free(&items);
    }
}

/* A prompt of 128 KiB with its closing zero fits; one more byte is refused, and so are examples
 * that leave too little. */
static void long_prompts_of_mmlu(void **state) {
    enum { ROOM = 1 << 17, REST = sizeof PREAMBLE CHOICES - 1 };
    static char question[ROOM], text[2 * ROOM];
    lt_eval_items items;
    (void)state;
    memset(question, 'x', ROOM - 1 - REST);
    (void)snprintf(text, sizeof text, "%s,a,b,c,d,1\n", question);
    must(mmlu_files(&items, text, NULL, 0), "fits");
    assert_int_equal(strlen(items.items[0].contexts[0]), ROOM - 1);
    lt_eval_items_free(&items);
    assert_int_equal(mmlu_files(&items, text, ONE, 1), LT_ERR_LIMIT);
    lt_eval_items_free(&items);
    question[ROOM - 1 - REST] = 'x';
    (void)snprintf(text, sizeof text, "%s,a,b,c,d,1\n", question);
    assert_int_equal(mmlu_files(&items, text, NULL, 0), LT_ERR_LIMIT);
    assert_non_null(strstr(lt_error_message(), "a prompt of more than 131072 bytes"));
    lt_eval_items_free(&items);
}

/* As many worked examples as requested; none of the questions is among them. */
static void examples_of_mmlu(void **state) {
    lt_eval_items items;
    (void)state;
    must(mmlu_files(&items, TWO, HEADER ONE TWO, 1), "one");
    assert_string_equal(items.items[0].contexts[3], PREAMBLE "q1" CHOICES " A\n\nq2" CHOICES);
    lt_eval_items_free(&items);
    must(mmlu_files(&items, TWO, ONE TWO, 2), "two");
    assert_string_equal(items.items[0].contexts[3],
                        PREAMBLE "q1" CHOICES " A\n\nq2" CHOICES " B\n\nq2" CHOICES);
    lt_eval_items_free(&items);
    assert_int_equal(mmlu_files(&items, TWO, HEADER ONE TWO, 3), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "s_dev.csv has 2 worked examples, not the 3"));
    lt_eval_items_free(&items);
    assert_int_equal(mmlu_files(&items, TWO, NULL, 1), LT_ERR_NOT_FOUND);
    assert_non_null(strstr(lt_error_message(), "no s_dev.csv, which has the 1 worked examples"));
    lt_eval_items_free(&items);
    assert_int_equal(mmlu_files(&items, TWO, ONE "q2,a\n", 2), LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), "s_dev.csv: record 2 has 2 fields, not 6"));
    lt_eval_items_free(&items);
}

static void a_text(void **state) {
    static const char *const paths[] = {DATA "prose.txt"};
    (void)state;
    for (int short_windows = 0; short_windows < 2; short_windows++) {
        const double want = json_real_value(
            json_object_get(scores, short_windows ? "rolling_64" : "rolling"));
        const double bytes = (double)json_integer_value(json_object_get(scores, "bytes"));
        lt_eval_options o = options();
        lt_eval_text_result r;
        o.seq = short_windows ? 64 : 0;
        must(lt_eval_text(&r, &o, paths, 1), "text");
        assert_near(r.loss * (double)r.tokens / -want, 1.0, 1e-5, "nats of a text");
        assert_int_equal(r.bytes, bytes);
        assert_int_equal(r.documents, 1);
        assert_near(r.bits_per_byte, -want / log(2.0) / bytes, 1e-5, "bits per byte");
        assert_near(log(r.perplexity), r.loss, 1e-12, "perplexity");
    }
}

/* Each document is scored separately: one that occurs three times has the loss of one. */
static void several_texts(void **state) {
    static const char *const paths[] = {DATA "prose.txt", DATA "prose.txt", DATA "prose.txt"};
    lt_eval_options o = options();
    lt_eval_text_result one, r;
    (void)state;
    o.seq = 64;
    must(lt_eval_text(&one, &o, paths, 1), "one text");
    must(lt_eval_text(&r, &o, paths, 3), "three texts");
    assert_int_equal(r.documents, 3);
    assert_int_equal(r.tokens, 3 * one.tokens);
    assert_int_equal(r.bytes, 3 * one.bytes);
    assert_near(r.loss / one.loss, 1.0, 1e-12, "mean loss");
    assert_near(r.bits_per_byte / one.bits_per_byte, 1.0, 1e-12, "bits per byte");
    o.limit = 2;
    must(lt_eval_text(&r, &o, paths, 3), "two of three texts");
    assert_int_equal(r.documents, 2);
    assert_int_equal(r.tokens, 2 * one.tokens);
}

/* A question that does not fit ends the evaluation: there is no score for it. */
static void long_questions_are_reported(void **state) {
    lt_eval_options o = options();
    lt_eval_task_result r;
    (void)state;
    o.seq = 2;
    assert_int_equal(lt_eval_task(&r, &o, tasks[0].task, tasks[0].data), LT_ERR_LIMIT);
    assert_non_null(strstr(lt_error_message(), "sequences have 2"));
}

static void refused(const char *task, const char *line, const char *says) {
    char path[] = "/tmp/lateen-eval-XXXXXX";
    const lt_eval_options o = options();
    lt_eval_task_result r;
    FILE *f = fdopen(mkstemp(path), "w");
    assert_non_null(f);
    fputs(line, f);
    fclose(f);
    assert_int_not_equal(lt_eval_task(&r, &o, task, path), LT_OK);
    if (strstr(lt_error_message(), says) == NULL) {
        fail_msg("%s: '%s', not '%s'", line, lt_error_message(), says);
    }
    remove(path);
}

static void broken_questions(void **state) {
    (void)state;
    refused("nonsense", "", "unknown task 'nonsense'");
    refused("piqa", "", "no question of task piqa");
    refused("piqa", "\n\n", "no question of task piqa");
    refused("piqa", "{\"query\": \"a\", \"choices\": [\"b\", \"c\"], \"gold\": 2}\n",
            "gold is 2 of 2 choices");
    refused("piqa", "{\"query\": \"a\", \"choices\": [\"b\", \"c\"], \"gold\": -1}\n",
            "gold is -1 of 2 choices");
    refused("piqa", "{\"query\": \"a\", \"choices\": [\"b\", 3], \"gold\": 0}\n",
            "choice 1 is not a text");
    refused("winogrande",
            "{\"context_options\": [\"b\", 3], \"continuation\": \"c\", \"gold\": 0}\n",
            "context 1 is not a text");
    refused("piqa", "{\"choices\": [\"b\"], \"gold\": 0}\n", "query");
    refused("lambada", "{\"context\": \"b\"}\n", "continuation");
    refused("piqa",
            "{\"query\": \"q\", \"choices\": "
            "[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\"], \"gold\": 0}\n",
            "more than 8 choices");
}

/* The message has the line number, also after valid lines. */
static void broken_lines_are_named(void **state) {
#define GOOD "{\"query\": \"a\", \"choices\": [\"b\", \"c\"], \"gold\": 1}\n"
    (void)state;
    refused("piqa", "{\n", ":1");
    refused("piqa", GOOD GOOD "{\n" GOOD, ":3");
    refused("piqa", GOOD "{\"query\": \"a\", \"choices\": [\"b\"], \"gold\": 1}\n",
            ":2: gold is 1 of 1 choices");
    refused("piqa", "{\"query\": \"a\", \"choices\": [\"b\"]}\n", "gold");
}

/* A task may have any number of questions, and each keeps its own texts. */
static void many_questions(void **state) {
    lt_eval_items all = {0};
    lt_eval_item *one = NULL;
    (void)state;
    for (int i = 0; i < 1500; i++) {
        char text[16];
        (void)snprintf(text, sizeof text, "%d", i);
        assert_int_equal(lt_eval_items_add(&all, &one), LT_OK);
        assert_int_equal(one->n_pairs, 0);
        assert_int_equal(lt_eval_item_pair(one, text, "x"), LT_OK);
    }
    assert_int_equal(all.n, 1500);
    for (int i = 0; i < 1500; i++) {
        assert_int_equal(atoi(all.items[i].contexts[0]), i);
    }
    lt_eval_items_free(&all);
    assert_true(all.items == NULL && all.n == 0 && all.room == 0);
}

/* A pair that is longer than the sequence loses its beginning; an empty context is BOS; at least
 * one token of context is kept. */
static void pairs_at_the_limits(void **state) {
    lt_eval_options o = options();
    lt_scorer whole = {0}, cut = {0};
    lt_score a, b;
    (void)state;
    must(lt_scorer_open(&whole, &o), "scorer");
    o.seq = 8;
    must(lt_scorer_open(&cut, &o), "scorer");
    must(lt_score_pair(&whole, "the little girl", " was happy", &a), "whole");
    must(lt_score_pair(&cut, "One day, the sun was very big and the little girl", " was happy", &b),
         "cut");
    assert_int_equal(a.n_tokens, b.n_tokens);
    assert_true(a.n_tokens >= 2);
    must(lt_score_pair(&whole, "", "Once", &a), "no context");
    assert_true(a.log_prob < 0.0 && a.log_prob > -3.0); /* BOS is followed by Once. */
    assert_true(a.greedy);
    assert_int_not_equal(lt_score_pair(&whole, "Once", "", &a), LT_OK);
    assert_int_not_equal(
        lt_score_pair(&cut, "Once", " upon a time there was a little girl named Lily", &a), LT_OK);
    lt_scorer_close(&whole);
    lt_scorer_close(&cut);
    o.seq = 1;
    assert_int_not_equal(lt_scorer_open(&cut, &o), LT_OK);
    lt_scorer_close(&cut);
    o.seq = 513; /* The model takes 512. */
    assert_int_not_equal(lt_scorer_open(&cut, &o), LT_OK);
    lt_scorer_close(&cut);
}

/* Log-probabilities of labels, from logits that transformers computed for the whole row (24
 * tokens). Phi-3's rotation changes after 16 positions, so a longer text runs in one call. */
static void tokens_from_any_one_on(void **state) {
    static const struct {
        const char *name;
        int64_t first[3];
    } cases[] = {{"llama3", {1, 20, 7}}, {"phi3", {20, 1, 23}}, {"qwen2", {23, 22, 1}}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        golden g;
        golden_open(&g, cases[i].name, lt_backend_cpu(), LT_F32);
        const int64_t n = g.batch.seq, vocab = lt_model_get_spec(g.model)->vocab_size;
        const lt_eval_options o = {.model = g.model};
        lt_scorer s = {.options = &o,
                       .seq = n - 1,
                       .cached = calloc((size_t)n, sizeof *s.cached),
                       .loss = calloc((size_t)n, sizeof *s.loss),
                       .best = calloc((size_t)n, sizeof *s.best)};
        must(lt_session_open(&s.session, g.model, 1, s.seq), "session");
        for (int row = 0; row < 2; row++) { /* The second row does not begin as the first one. */
            const int32_t *ids = g.batch.tokens + row * n;
            const float *logits = (const float *)golden_data(&g, "logits") + row * n * vocab;
            for (int k = 0; k < 3; k++) {
                const int64_t first = cases[i].first[k];
                double want = 0.0;
                bool greedy = true;
                lt_score got;
                for (int64_t t = first; t < n; t++) {
                    const float *z = logits + (t - 1) * vocab;
                    double sum = 0.0;
                    int64_t best = 0;
                    for (int64_t v = 0; v < vocab; v++) {
                        sum += exp((double)z[v]);
                        best = z[v] > z[best] ? v : best;
                    }
                    want += (double)z[ids[t]] - log(sum);
                    greedy = greedy && best == ids[t];
                }
                must(lt_score_tokens(&s, ids, n, first, &got), cases[i].name);
                assert_near(got.log_prob, want, NEAR, cases[i].name);
                assert_int_equal(got.greedy, greedy);
                assert_int_equal(got.n_tokens, n - first);
            }
        }
        lt_score none;
        must(lt_score_tokens(&s, g.batch.tokens, n, n, &none), "none");
        assert_true(none.log_prob == 0.0 && none.greedy && none.n_tokens == 0);
        lt_scorer_close(&s);
        golden_close(&g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tasks_of_lines),         cmocka_unit_test(mmlu),
        cmocka_unit_test(mmlu_in_a_tar),          cmocka_unit_test(answers_of_mmlu),
        cmocka_unit_test(records_of_mmlu),        cmocka_unit_test(broken_records_of_mmlu),
        cmocka_unit_test(examples_of_mmlu),       cmocka_unit_test(a_text),
        cmocka_unit_test(broken_questions),       cmocka_unit_test(broken_lines_are_named),
        cmocka_unit_test(many_questions),         cmocka_unit_test(pairs_at_the_limits),
        cmocka_unit_test(several_texts),          cmocka_unit_test(long_questions_are_reported),
        cmocka_unit_test(tokens_from_any_one_on), cmocka_unit_test(long_prompts_of_mmlu),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
