/* generative.c: see generative.h. A task is a row: how its prompts are written and how a response
 * is scored. */
#include "align/generative.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "align/python_random.h"
#include "base/error.h"
#include "base/json.h"
#include "base/option.h"
#include "data/check/gsm8k.h"
#include "data/check/ifeval.h"
#include "data/text_reader.h"
#include "serve/api/json_out.h"

#define FEWSHOT_SEED 1234 /* The harness's. */

typedef enum { WRONG, RIGHT, UNKNOWN } outcome;

typedef struct {
    json_t **lines;
    int64_t n, room;
} file_lines;

/* A mean that grows: of questions, or of instructions. */
typedef struct {
    int64_t n, right;
} share;

typedef struct task task;
typedef struct {
    const lt_generative_options *o;
    const task *task;
    file_lines questions, examples;
    char **responses; /* (questions.n) */
    lt_python_random random;
    lt_punkt *punkt; /* ifeval: NULL: not there. */
    share shares[LT_GENERATIVE_SCORES];
    int64_t unscored, next, done, tokens;
    FILE *outputs;
} evaluation;

struct task {
    const char *name;
    const char *scores[LT_GENERATIVE_SCORES];
    int n_scores;
    const char *required; /* Members of a line, with commas between. */
    const char *stops;    /* JSON. */
    int64_t max_tokens;   /* The harness's. */
    bool has_shots;
    void (*prompt)(evaluation *v, int64_t question, lt_json_out *out);
    lt_err (*score)(evaluation *v, const json_t *line, const char *text, size_t n, json_t *scores);
};

static const char *member(const json_t *line, const char *key) {
    return json_string_value(json_object_get(line, key));
}

static void put(lt_json_out *o, const char *text) {
    lt_out_raw(o, text, strlen(text));
}

static json_t *count(evaluation *v, int score, outcome x) {
    if (x != UNKNOWN) {
        v->shares[score].n++;
        v->shares[score].right += x == RIGHT;
    }
    return x == UNKNOWN ? json_null() : json_boolean(x == RIGHT);
}

static void add(evaluation *v, int score, outcome x, json_t *scores) {
    json_object_set_new(scores, v->task->scores[score], count(v, score, x));
}

/* ---- GSM8K ---- */

static void gsm8k_prompt(evaluation *v, int64_t question, lt_json_out *out) {
    int64_t drawn[LT_GENERATIVE_SHOTS];
    if (v->o->shots > 0) {
        lt_python_random_sample(&v->random, v->examples.n, v->o->shots, drawn);
    }
    for (int64_t i = 0; i < v->o->shots; i++) {
        const json_t *example = v->examples.lines[drawn[i]];
        put(out, "Question: ");
        put(out, member(example, "question"));
        put(out, "\nAnswer: ");
        put(out, member(example, "answer"));
        put(out, "\n\n");
    }
    put(out, "Question: ");
    put(out, member(v->questions.lines[question], "question"));
    put(out, "\nAnswer:");
}

static lt_err gsm8k_score(evaluation *v, const json_t *line, const char *text, size_t n,
                          json_t *scores) {
    const char *gold = member(line, "answer");
    for (int f = 0; f < LT_GSM8K_FILTERS; f++) {
        const bool right = lt_gsm8k_right((lt_gsm8k_filter)f, text, n, gold, strlen(gold));
        add(v, f, right ? RIGHT : WRONG, scores);
    }
    return LT_OK;
}

/* ---- IFEval ---- */

static void ifeval_prompt(evaluation *v, int64_t question, lt_json_out *out) {
    put(out, member(v->questions.lines[question], "prompt"));
}

/* All of a prompt's instructions: one that is not followed decides; else one that is unknown. */
static outcome both(outcome all, lt_ifeval_outcome one) {
    return all == WRONG || one == LT_IFEVAL_NO          ? WRONG
           : all == UNKNOWN || one == LT_IFEVAL_UNKNOWN ? UNKNOWN
                                                        : RIGHT;
}

/* A prompt with an unknown instruction counts nowhere, even if another is not followed: else only
 * the wrong ones of such prompts would count. */
static lt_err ifeval_score(evaluation *v, const json_t *line, const char *text, size_t n,
                           json_t *scores) {
    static const outcome outcomes[] = {
        [LT_IFEVAL_NO] = WRONG, [LT_IFEVAL_YES] = RIGHT, [LT_IFEVAL_UNKNOWN] = UNKNOWN};
    const json_t *ids = json_object_get(line, "instruction_id_list");
    const json_t *arguments = json_object_get(line, "kwargs");
    json_t *list = json_array();
    outcome strict = RIGHT, loose = RIGHT;
    int64_t unknown = 0;

    json_object_set_new(scores, "instructions", list);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        lt_ifeval_verdict verdict;
        LT_TRY(lt_ifeval_check(&verdict, json_string_value(json_array_get(ids, i)),
                               json_array_get(arguments, i), text, n, v->punkt));
        strict = both(strict, verdict.strict);
        loose = both(loose, verdict.loose);
        json_array_append_new(list, json_pack("{s:O, s:o, s:o}", "id", json_array_get(ids, i),
                                              "strict", count(v, 1, outcomes[verdict.strict]),
                                              "loose", count(v, 3, outcomes[verdict.loose])));
        unknown += verdict.strict == LT_IFEVAL_UNKNOWN;
    }
    v->unscored += unknown;
    add(v, 0, unknown > 0 ? UNKNOWN : strict, scores);
    add(v, 2, unknown > 0 ? UNKNOWN : loose, scores);
    return LT_OK;
}

/* ---- The table ---- */

static const task tasks[] = {
    {"gsm8k",
     {"exact_match,strict-match", "exact_match,flexible-extract"},
     2,
     "question,answer",
     "[\"Question:\",\"</s>\",\"<|im_end|>\"]",
     256,
     true,
     gsm8k_prompt,
     gsm8k_score},
    {"ifeval",
     {"prompt_level_strict_acc", "inst_level_strict_acc", "prompt_level_loose_acc",
      "inst_level_loose_acc"},
     4,
     "prompt",
     NULL,
     1280,
     false,
     ifeval_prompt,
     ifeval_score},
};

static const task *find_task(const char *name) {
    return lt_name_find(name, tasks, sizeof *tasks, sizeof tasks / sizeof *tasks);
}

bool lt_generative_has(const char *name) {
    return find_task(name) != NULL;
}

/* ---- Files ---- */

static void lines_free(file_lines *f) {
    for (int64_t i = 0; i < f->n; i++) {
        json_decref(f->lines[i]);
    }
    free(f->lines);
}

static lt_err add_line(file_lines *f, json_t *line, const char *path) {
    if (f->n == f->room) {
        const int64_t room = f->room > 0 ? 2 * f->room : 256;
        json_t **more = realloc(f->lines, (size_t)room * sizeof *more);
        if (more == NULL) {
            LT_FAIL(LT_ERR_OOM, "%s: %lld lines", path, (long long)room);
        }
        f->lines = more;
        f->room = room;
    }
    f->lines[f->n++] = line;
    return LT_OK;
}

/* Each member is a text. */
static lt_err check_members(const json_t *line, const char *required, const char *where) {
    while (*required != '\0') {
        char key[32];
        const size_t n = strcspn(required, ",");
        snprintf(key, sizeof key, "%.*s", (int)n, required);
        if (member(line, key) == NULL) {
            LT_FAIL(LT_ERR_FORMAT, "%s: no text \"%s\"", where, key);
        }
        required += n + (required[n] == ',');
    }
    return LT_OK;
}

static lt_err read_lines(file_lines *out, const char *path, const char *required, int64_t limit) {
    static const lt_text_options options = {
        .format = LT_TEXT_PLAIN, .split_on = "line", .utf8 = LT_UTF8_FAIL};
    lt_text_reader *reader = NULL;
    lt_text_record record;
    lt_err err = LT_OK;
    bool more = true;

    LT_TRY_DONE(lt_text_reader_open(&reader, path, &options));
    while (limit == 0 || out->n < limit) {
        char where[LT_ERROR_MESSAGE_BYTES / 2];
        json_t *line = NULL;
        LT_TRY_DONE(lt_text_reader_next(reader, &record, &more));
        if (!more) {
            break;
        }
        snprintf(where, sizeof where, "%.300s:%llu", path, (unsigned long long)record.line);
        LT_TRY_DONE(lt_json_parse(&line, record.data, record.bytes, where));
        LT_TRY_DONE(add_line(out, line, path));
        LT_TRY_DONE(check_members(line, required, where));
    }
    if (out->n == 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: no line", path);
    }
done:
    lt_text_reader_close(reader);
    return err;
}

/* ---- Responses ---- */

static lt_err keep(evaluation *v, int64_t question, const char *text, size_t n) {
    const json_t *line = v->questions.lines[question];
    json_t *row, *scores = json_object();
    lt_err err = v->task->score(v, line, text, n, scores);

    if (err == LT_OK && v->outputs != NULL) {
        row = json_pack("{s:I, s:o, s:O}", "question", (json_int_t)question, "response",
                        json_stringn(text, n), "scores", scores);
        if (row == NULL || json_dumpf(row, v->outputs, JSON_COMPACT) != 0 ||
            fputc('\n', v->outputs) == EOF) {
            err = lt_error_set(LT_ERR_IO, "%s: %s", v->o->outputs, strerror(errno));
        }
        json_decref(row);
    }
    json_decref(scores);
    v->done++;
    if (v->o->progress != NULL) {
        v->o->progress(v->o->ctx, v->done, v->questions.n);
    }
    return err;
}

static lt_err read_responses(evaluation *v) {
    file_lines f = {0};
    lt_err err = read_lines(&f, v->o->responses, "response", 0);
    if (err == LT_OK && f.n < v->questions.n) {
        err = lt_error_set(LT_ERR_FORMAT, "%s: %lld responses to %lld questions", v->o->responses,
                           (long long)f.n, (long long)v->questions.n);
    }
    for (int64_t i = 0; i < v->questions.n && err == LT_OK; i++) {
        const json_t *text = json_object_get(f.lines[i], "response");
        err = keep(v, i, json_string_value(text), json_string_length(text));
    }
    lines_free(&f);
    return err;
}

/* ---- Asking ---- */

static int64_t next_question(void *ctx) {
    evaluation *v = ctx;
    return v->next < v->questions.n ? v->next++ : -1;
}

/* Does the request draw its tokens, so that answers are not greedy? */
static bool is_drawn(const json_t *request) {
    return json_object_get(request, "temperature") != NULL ||
           json_object_get(request, "alignment") != NULL;
}

static void put_fields(lt_json_out *o, const json_t *request) {
    const char *key;
    const json_t *value;
    json_object_foreach((json_t *)request, key, value) {
        lt_out_key_value(o, key, value);
    }
}

/* Questions are asked in their order, so the examples are drawn in the harness's. */
static char *body_of(void *ctx, int64_t question) {
    evaluation *v = ctx;
    lt_json_out prompt = {0}, o = {0};
    const int64_t most = v->o->max_tokens > 0 ? v->o->max_tokens : v->task->max_tokens;

    v->task->prompt(v, question, &prompt);
    lt_out_open(&o, '{');
    lt_out_key(&o, v->o->chat ? "messages" : "prompt");
    if (v->o->chat) {
        lt_out_open(&o, '[');
        lt_out_open(&o, '{');
        lt_out_key_str(&o, "role", "user");
        lt_out_key(&o, "content");
        lt_out_str(&o, prompt.data, prompt.n);
        lt_out_shut(&o, '}');
        lt_out_shut(&o, ']');
    } else {
        lt_out_str(&o, prompt.data, prompt.n);
    }
    lt_out_key_int(&o, "max_tokens", most);
    if (!is_drawn(v->o->request)) {
        lt_out_key_int(&o, "temperature", 0);
    }
    put_fields(&o, v->o->request);
    if (v->task->stops != NULL && json_object_get(v->o->request, "stop") == NULL) {
        lt_out_key(&o, "stop");
        lt_out_raw(&o, v->task->stops, strlen(v->task->stops));
    }
    lt_out_shut(&o, '}');
    if (prompt.failed || o.failed) {
        lt_out_free(&o);
    }
    lt_out_free(&prompt);
    return o.data;
}

/* Scored at the end, in the order of the questions. */
static lt_err take(void *ctx, int64_t question, const json_t *answer) {
    evaluation *v = ctx;
    const json_t *choice = json_array_get(json_object_get(answer, "choices"), 0);
    const char *text = v->o->chat ? member(json_object_get(choice, "message"), "content")
                                  : member(choice, "text");
    v->tokens += json_integer_value(
        json_object_get(json_object_get(answer, "usage"), "completion_tokens"));
    v->responses[question] = strdup(text != NULL ? text : "");
    if (v->responses[question] == NULL) {
        LT_FAIL(LT_ERR_OOM, "a response");
    }
    if (v->o->progress != NULL) {
        v->o->progress(v->o->ctx, ++v->done, v->questions.n);
    }
    return LT_OK;
}

static void name(void *ctx, int64_t question, char *out, size_t room) {
    const evaluation *v = ctx;
    snprintf(out, room, "%s: question %lld", v->task->name, (long long)question + 1);
}

static lt_err load(void *ctx, lt_model **model, lt_tokenizer **tokenizer) {
    const evaluation *v = ctx;
    return v->o->load(v->o->ctx, model, tokenizer);
}

static lt_err load_reward(void *ctx, lt_model **model, lt_tokenizer **tokenizer) {
    const evaluation *v = ctx;
    return v->o->load_reward(v->o->ctx, model, tokenizer);
}

static lt_err ask(evaluation *v) {
    const lt_generative_options *o = v->o;
    const lt_asking a = {.model = o->model,
                         .path = o->chat ? "/v1/chat/completions" : "/v1/completions",
                         .max_running = o->max_running,
                         .deterministic = true,
                         .load = load,
                         .load_reward = o->load_reward != NULL ? load_reward : NULL,
                         .reward = o->reward,
                         .beside = o->beside,
                         .second = o->second,
                         .n_beside = o->n_beside,
                         .next = next_question,
                         .body = body_of,
                         .take = take,
                         .name = name,
                         .ctx = v};
    v->responses = calloc((size_t)v->questions.n, sizeof *v->responses);
    if (v->responses == NULL) {
        LT_FAIL(LT_ERR_OOM, "%lld responses", (long long)v->questions.n);
    }
    LT_TRY(lt_ask_all(&a));
    v->done = 0;
    for (int64_t i = 0; i < v->questions.n; i++) {
        LT_TRY(keep(v, i, v->responses[i], strlen(v->responses[i])));
    }
    return LT_OK;
}

/* ---- The door ---- */

static lt_err open_files(evaluation *v) {
    const lt_generative_options *o = v->o;
    LT_TRY(read_lines(&v->questions, o->data, v->task->required, o->limit));
    if (o->shots > 0 && (!v->task->has_shots || o->examples == NULL)) {
        LT_FAIL(LT_ERR_ARG, "%s: %s", v->task->name,
                v->task->has_shots ? "shots need --examples, a file of solved problems"
                                   : "the task has no solved examples: --shots must be 0");
    }
    if (o->nltk != NULL) {
        LT_TRY(lt_punkt_open(&v->punkt, o->nltk));
    }
    if (o->shots > 0) {
        LT_TRY(read_lines(&v->examples, o->examples, v->task->required, 0));
    }
    if (o->shots > v->examples.n || o->shots > LT_GENERATIVE_SHOTS) {
        LT_FAIL(LT_ERR_ARG, "%lld shots of %lld solved problems; at most %d", (long long)o->shots,
                (long long)v->examples.n, LT_GENERATIVE_SHOTS);
    }
    if (o->outputs != NULL) {
        v->outputs = fopen(o->outputs, "we");
        if (v->outputs == NULL) {
            LT_FAIL(LT_ERR_IO, "%s: %s", o->outputs, strerror(errno));
        }
    }
    return LT_OK;
}

static void sum_up(const evaluation *v, lt_generative_result *out) {
    *out = (lt_generative_result){.task = v->task->name,
                                  .questions = v->questions.n,
                                  .tokens = (double)v->tokens / (double)v->questions.n,
                                  .n = v->task->n_scores,
                                  .unscored = v->unscored};
    for (int i = 0; i < out->n; i++) {
        const share *s = &v->shares[i];
        const double mean = s->n > 0 ? (double)s->right / (double)s->n : 0;
        out->scores[i].name = v->task->scores[i];
        out->scores[i].mean = mean;
        out->scores[i].error = s->n > 1 ? sqrt(mean * (1 - mean) / (double)(s->n - 1)) : 0;
        out->scores[i].of = s->n;
    }
}

lt_err lt_generative_run(lt_generative_result *out, const lt_generative_options *o) {
    evaluation v = {.o = o, .task = find_task(o->task)};
    lt_err err = LT_OK;

    LT_ASSERT(v.task != NULL);
    lt_python_random_seed(&v.random, FEWSHOT_SEED);
    LT_TRY_DONE(open_files(&v));
    LT_TRY_DONE(o->responses != NULL ? read_responses(&v) : ask(&v));
    sum_up(&v, out);
done:
    if (v.outputs != NULL && fclose(v.outputs) != 0 && err == LT_OK) {
        err = lt_error_set(LT_ERR_IO, "%s: %s", o->outputs, strerror(errno));
    }
    for (int64_t i = 0; v.responses != NULL && i < v.questions.n; i++) {
        free(v.responses[i]);
    }
    free(v.responses);
    lt_punkt_close(v.punkt);
    lines_free(&v.questions);
    lines_free(&v.examples);
    return err;
}
