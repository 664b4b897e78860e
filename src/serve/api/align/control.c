/* control.c: see control.h. */
#include "serve/api/align/control.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/option.h"
#include "data/text_utf8.h"
#include "data/tokenizer/bpe.h"
#include "serve/api/align/borders.h"
#include "serve/api/reply.h"
#include "serve/api/formats/chat_output.h"
#include "serve/api/progress.h"

#define TRIALS_KEPT 64 /* In the report. */
#define FOLDS       16
#define LOOK_EVERY  16 /* Interval in tokens between checks for repetition. */

static const lt_field fields[] = {LT_STR("control", control.name),
                                  LT_I64("max_tokens", control.budget, 0, 1e9),
                                  LT_I64("min_tokens", control.min_tokens, 0, 1e9),
                                  LT_STR("wait", control.wait),
                                  LT_F64("threshold", control.threshold, 0, 1),
                                  LT_STR("mean", control.mean),
                                  LT_JSON("border", control.border),
                                  LT_I64("every", control.every, 1, 1e9),
                                  LT_I64("agree", control.agree, 2, TRIALS_KEPT),
                                  LT_STR("probe", control.probe),
                                  LT_I64("probe_tokens", control.probe_tokens, 1, 1024),
                                  LT_F64("alpha", control.alpha, 1e-3, 1),
                                  LT_F64("delta", control.delta, 0, 1e6),
                                  LT_F64("repetition", control.repetition, 0, 1),
                                  LT_I64("window", control.window, 8, 1024),
                                  LT_I64("folds", control.folds, 0, FOLDS)};
const lt_field_table lt_fields_reasoning = LT_FIELD_TABLE(fields, "control");

/* ---- Methods ---- */

typedef enum { BUDGET, DEER, PROBE, ENTROPY } method;

typedef struct {
    const char *name, *probe;
    const char *const *reads; /* Fields besides control and max_tokens; NULL at the end. */
    /* Trials take place at borders instead of after a number of tokens. */
    bool at_borders;
    bool closes; /* A trial closes the reasoning and measures the entropy of the next token. */
} method_row;

static const method_row methods[] = {
    [BUDGET] = {"budget", NULL, (const char *const[]){"min_tokens", "wait", NULL}, false, false},
    [DEER] = {"deer", "\n**Final Answer**\n\\boxed{",
              (const char *const[]){"threshold", "mean", "border", "probe", "probe_tokens", NULL},
              true, false},
    [PROBE] = {"probe",
               "... Oh, I suddenly got the answer to the whole problem, **Final Answer**\n\n\\[ "
               "\\boxed{",
               (const char *const[]){"every", "agree", "probe", "probe_tokens", NULL}, false,
               false},
    [ENTROPY] = {"entropy", "\n",
                 (const char *const[]){"alpha", "delta", "repetition", "window", "folds", "border",
                                       "probe", NULL},
                 true, true}};

typedef struct {
    int64_t at, tokens; /* Number of output tokens before it, and of its own. */
    double confidence;
    char *answer;             /* NULL: it did not end. */
    double entropy, variance; /* For a method that closes. */
} trial;

/* A discarded path: the text continues as if it had not existed. */
typedef struct {
    /* Number of output tokens before it, including earlier paths, and of its own. */
    int64_t at, tokens;
    char *text;
} path;

/* The text runs; was cancelled, to stop it, for a trial or to be folded back; has reached the mark
 * that closes its reasoning; waits for a trial; runs on without further trials. */
typedef enum { RUNS, STOPS, FOLDS_BACK, CLOSES, TRIES, OVER } phase;

struct lt_control {
    method method;
    phase phase;
    bool geometric;
    lt_borders borders;
    lt_border_tail tail;
    bool inside;         /* The previous token was inside the reasoning, */
    bool begun;          /* which has words; a border before them would end an empty thought. */
    lt_ids out;          /* The text's tokens so far, without discarded paths. */
    lt_ids borders_seen; /* Number of borders before each token. */
    lt_ids probe, end;
    /* A budget with a minimum: the closing mark stops the engine (stop_ids), and `wait` is appended
     * instead. */
    bool guards;
    lt_ids wait, stop_ids;
    int64_t n_waits;
    bool closes_by_brace;
    lt_part part;     /* The running trial. */
    int64_t n_said;   /* Its tokens. */
    lt_json_out text; /* Text of its answer. */
    double sum;       /* Sum of its tokens' probabilities, or of their logarithms. */
    int depth;
    bool closed;
    trial trials[TRIALS_KEPT]; /* The newest, as a ring. */
    int64_t n_trials, tokens;
    lt_settling settling;
    double entropy; /* The entropy measured by the trial. */
    path cuts[FOLDS + 1];
    int n_cuts;
    /* Number of tokens that the reasoning could still have had when a rule ended it. */
    int64_t saved_most;
    const char *stopped_by;
};

/* ---- The request ---- */

static bool find_method(lt_control *k, const char *name, lt_api_error *e) {
    const method_row *m = lt_api_params_row(name, "reasoning.control", methods, sizeof *methods,
                                            sizeof methods / sizeof *methods, e);
    if (m == NULL) {
        return false;
    }
    k->method = (method)(m - methods);
    return true;
}

/* Refuse fields that the method does not read: they would have no effect. */
static bool check_reads(const lt_control *k, const lt_api_params *a, lt_api_error *e) {
    /* The fields after control and max_tokens. */
    for (size_t i = 2; i < sizeof fields / sizeof *fields; i++) {
        const json_t *given = json_object_get(a->reasoning, fields[i].name);
        bool reads = given == NULL || json_is_null(given);
        for (const char *const *name = methods[k->method].reads; *name != NULL; name++) {
            reads = reads || strcmp(*name, fields[i].name) == 0;
        }
        if (!reads) {
            char param[64];
            snprintf(param, sizeof param, "reasoning.%s", fields[i].name);
            return lt_api_refuse(e, param, "'%s' has no effect with control %s", param,
                                 methods[k->method].name);
        }
    }
    return true;
}

static bool read_trial(lt_control *k, lt_reply *j, lt_api_error *e) {
    const lt_api_params *a = &j->params;
    const char *probe = a->control.probe != NULL ? a->control.probe : methods[k->method].probe;
    const char *close = lt_parse_closing(&j->server->marks);
    const size_t n = strlen(probe);
    /* The text that a trial appends to the text so far, or after the closing mark. */
    lt_ids behind = {0};
    bool ok;
    if (n == 0 && !methods[k->method].closes) {
        return lt_api_refuse(e, "reasoning.probe", "'reasoning.probe' is empty");
    }
    if (a->control.mean != NULL && strcmp(a->control.mean, "arithmetic") != 0 &&
        strcmp(a->control.mean, "geometric") != 0) {
        return lt_api_refuse(e, "reasoning.mean",
                             "'reasoning.mean' = %.40s; it may be arithmetic or geometric",
                             a->control.mean);
    }
    k->geometric = a->control.mean != NULL && strcmp(a->control.mean, "geometric") == 0;
    k->closes_by_brace = n > 0 && probe[n - 1] == '{';
    ok = lt_server_encode(j->server, probe, n, 0, &behind, e) &&
         lt_server_encode(j->server, close, strlen(close), LT_ENCODE_PARSE_SPECIAL, &k->end, e);
    if (ok &&
        ((methods[k->method].closes && lt_ids_append(&k->probe, k->end.data, k->end.n) != LT_OK) ||
         lt_ids_append(&k->probe, behind.data, behind.n) != LT_OK)) {
        ok = lt_api_refuse_oom(e);
    }
    lt_ids_free(&behind);
    return ok &&
           lt_borders_read(&k->borders, a->control.border, LT_BORDER_USUAL, "reasoning.border", e);
}

/* The least number of tokens of reasoning (budget forcing: Muennighoff et al. 2025,
 * arXiv:2501.19393). */
static bool read_least(lt_control *k, lt_reply *j, lt_api_error *e) {
    const lt_api_params *a = &j->params;
    const char *wait = a->control.wait != NULL ? a->control.wait : "Wait";
    const char *close = lt_parse_closing(&j->server->marks);
    if (a->control.wait != NULL && a->control.min_tokens == 0) {
        return lt_api_refuse(e, "reasoning.wait",
                             "'reasoning.wait' has no effect without 'reasoning.min_tokens'");
    }
    if (a->control.min_tokens == 0) {
        return true;
    }
    if (a->thinking_budget >= 0 && a->thinking_budget < a->control.min_tokens) {
        return lt_api_refuse(e, "reasoning.min_tokens",
                             "'reasoning.min_tokens' is %lld, over the budget of %lld",
                             (long long)a->control.min_tokens, (long long)a->thinking_budget);
    }
    if (!lt_server_encode(j->server, wait, strlen(wait), 0, &k->wait, e) ||
        !lt_server_encode(j->server, close, strlen(close), LT_ENCODE_PARSE_SPECIAL, &k->end, e)) {
        return false;
    }
    if (k->end.n != 1 || k->wait.n == 0) {
        return lt_api_refuse(e, k->wait.n == 0 ? "reasoning.wait" : "reasoning.min_tokens",
                             k->wait.n == 0 ? "'reasoning.wait' is empty"
                                            : "'reasoning.min_tokens' is not supported for this "
                                              "model: the mark that ends its reasoning is %zu "
                                              "tokens",
                             k->end.n);
    }
    k->guards = true;
    return true;
}

static bool read_control(lt_control *k, lt_reply *j, lt_api_error *e) {
    lt_api_params *a = &j->params;
    if (!lt_api_params_object(a, a->reasoning, fields, sizeof fields / sizeof *fields, "reasoning.",
                              e)) {
        return false;
    }
    if (a->control.name == NULL) {
        return lt_api_refuse(e, "reasoning.control", "'reasoning.control' is missing");
    }
    if (!find_method(k, a->control.name, e) || !check_reads(k, a, e)) {
        return false;
    }
    if (k->method == BUDGET && a->control.budget < 0 && a->control.min_tokens == 0) {
        return lt_api_refuse(e, "reasoning.max_tokens",
                             "control budget needs 'reasoning.max_tokens' or "
                             "'reasoning.min_tokens'");
    }
    if (a->control.budget >= 0) {
        if (a->thinking_budget >= 0) {
            return lt_api_refuse(e, "reasoning.max_tokens",
                                 "'reasoning.max_tokens' and 'thinking_budget' are the same limit: "
                                 "give one of them");
        }
        a->thinking_budget = a->control.budget;
    }
    if (lt_parse_closing(&j->server->marks) == NULL) {
        return lt_api_refuse(e, "reasoning",
                             "'reasoning' is not supported for this model's format: it has no mark "
                             "that ends the reasoning");
    }
    if (k->method == BUDGET && !read_least(k, j, e)) {
        return false;
    }
    if (k->method == BUDGET && !k->guards) {
        return true;
    }
    if (a->n > 1 || a->alignment != NULL || a->prompt_logprobs >= 0) {
        const char *what = a->n > 1 ? "n" : a->alignment != NULL ? "alignment" : "prompt_logprobs";
        return lt_api_refuse(e, what, "'%s' and 'reasoning.control' = %s exclude each other", what,
                             methods[k->method].name);
    }
    return k->method == BUDGET || read_trial(k, j, e);
}

/* "control": "deepconf" is the method of that name, which compares several texts: the object is
 * read as that of 'alignment', with its budget of reasoning as 'thinking_budget'. */
static bool read_as_group(lt_api_params *a, lt_api_error *e) {
    const json_t *budget = json_object_get(a->reasoning, "max_tokens");
    json_t *o;
    if (a->alignment != NULL) {
        return lt_api_refuse(e, "alignment",
                             "'alignment' and 'reasoning.control' = deepconf "
                             "exclude each other");
    }
    if (budget != NULL && !json_is_null(budget)) {
        if (!json_is_integer(budget) || json_integer_value(budget) < 0) {
            return lt_api_refuse(e, "reasoning.max_tokens",
                                 "'reasoning.max_tokens' must be a whole number from 0");
        }
        a->thinking_budget = json_integer_value(budget);
    }
    o = json_copy((json_t *)a->reasoning);
    if (o == NULL || json_object_set(o, "method", json_object_get(o, "control")) != 0 ||
        json_object_set_new(a->root, "alignment", o) != 0) {
        return lt_api_refuse_oom(e);
    }
    json_object_del(o, "control");
    json_object_del(o, "max_tokens");
    a->alignment = o;
    return true;
}

bool lt_control_read(lt_reply *j, lt_api_error *e) {
    const json_t *reasoning = j->params.reasoning;
    const char *name = json_string_value(json_object_get(reasoning, "control"));
    if (reasoning == NULL) {
        return true;
    }
    if (!json_is_object(reasoning)) {
        return lt_api_refuse(e, "reasoning", "'reasoning' must be an object with a control");
    }
    if (name != NULL && strcmp(name, "deepconf") == 0) {
        return read_as_group(&j->params, e);
    }
    j->control = calloc(1, sizeof *j->control);
    if (j->control == NULL) {
        return lt_api_refuse_oom(e);
    }
    j->control->stopped_by = "end";
    return read_control(j->control, j, e);
}

void lt_control_free(lt_control *k) {
    if (k == NULL) {
        return;
    }
    for (int i = 0; i < TRIALS_KEPT; i++) {
        free(k->trials[i].answer);
    }
    for (int i = 0; i < k->n_cuts; i++) {
        free(k->cuts[i].text);
    }
    lt_ids_free(&k->borders_seen);
    lt_ids_free(&k->out);
    lt_ids_free(&k->probe);
    lt_ids_free(&k->end);
    lt_ids_free(&k->wait);
    lt_ids_free(&k->stop_ids);
    lt_out_free(&k->text);
    free(k);
}

/* ---- Places ---- */

static bool reasons(const lt_reply_choice *c) {
    const lt_chat_output *s = c->state;
    return s != NULL ? lt_parser_in_reasoning(s->parser) : c->reply->listen.opened;
}

/* Whether there is room for the mark that ends the reasoning and a token of the answer, and in the
 * context for a trial. */
static bool has_room(const lt_reply *j, const lt_control *k) {
    const lt_part *p = &j->parts[0];
    const int64_t most = p->most_tokens - (int64_t)k->out.n;
    return most > (int64_t)k->end.n + 1 &&
           (int64_t)(p->prompt.n + k->out.n + k->probe.n) + j->params.control.probe_tokens <=
               lt_server_context(j->server);
}

/* Whether the last tokens repeat themselves and the reasoning can still be folded back. */
static bool repeats(const lt_reply *j, const lt_control *k) {
    const int64_t n = (int64_t)k->out.n, window = j->params.control.window;
    return k->method == ENTROPY && n >= window && n % LOOK_EVERY == 0 &&
           j->parts[0].most_tokens - n > (int64_t)k->end.n + 1 &&
           lt_repetition(k->out.data + n - window, window, NULL) > j->params.control.repetition;
}

static bool has_words(const char *text, size_t n) {
    bool found = false;
    for (size_t i = 0; i < n && !found; i++) {
        found = !isspace((unsigned char)text[i]);
    }
    return found;
}

void lt_control_token(lt_reply_choice *c, int32_t id, const char *text, size_t n) {
    lt_reply *j = c->reply;
    lt_control *k = j->control;
    const uint32_t one = (uint32_t)id;
    bool place, repeated, was_inside;
    if ((k->method == BUDGET && !k->guards) || k->phase != RUNS) {
        return;
    }
    if (lt_ids_append(&k->out, &one, 1) != LT_OK) {
        k->phase = OVER; /* Out of memory: the text continues without control. */
        return;
    }
    was_inside = k->out.n == 1 ? j->listen.opened : k->inside;
    k->inside = reasons(c);
    if (!k->inside || k->method == BUDGET) {
        return;
    }
    k->begun = k->begun || (was_inside && has_words(text, n)); /* The mark itself is not a word. */
    if (methods[k->method].at_borders) {
        const uint32_t before = (uint32_t)k->out.n;
        place = lt_borders_met(&k->borders, &k->tail, text, n) && k->begun &&
                lt_ids_append(&k->borders_seen, &before, 1) == LT_OK;
    } else {
        place = (int64_t)k->out.n % j->params.control.every == 0;
    }
    repeated = repeats(j, k);
    if (repeated || (place && has_room(j, k))) {
        k->phase = repeated ? FOLDS_BACK : STOPS;
        lt_engine_cancel(j->server->engine, c->part->id);
    }
}

bool lt_control_stopped(const lt_part *p) {
    const lt_control *k = p->reply->control;
    return k != NULL && (k->phase == STOPS || k->phase == FOLDS_BACK || k->phase == CLOSES);
}

/* ---- Going on ---- */

/* This may free the reply. */
static void go_on(lt_reply *j, phase next) {
    lt_control *k = j->control;
    lt_api_error e = {0};
    k->phase = next;
    if (j->conn == NULL || j->failed) {
        lt_reply_part_done(&j->parts[0]);
    } else if (!lt_reply_resume(&j->parts[0], &k->out, &e)) {
        lt_reply_fail(j, &e);
        lt_reply_part_done(&j->parts[0]);
    }
}

/* The reasoning ends: the text gets the closing mark, as if the model had written it. */
static void end_reasoning(lt_reply *j, const char *why) {
    lt_control *k = j->control;
    lt_reply_choice *c = &j->parts[0].choices[0];
    k->stopped_by = why;
    k->saved_most = j->parts[0].most_tokens - (int64_t)k->out.n;
    if (lt_ids_append(&k->out, k->end.data, k->end.n) == LT_OK) {
        for (size_t i = 0; i < k->end.n; i++) {
            lt_reply_put_token(c, (int32_t)k->end.data[i]);
        }
    }
    go_on(j, OVER);
}

/* ---- A least number of tokens ---- */

lt_err lt_control_shape(lt_control *k, lt_request *r) {
    if (k == NULL || !k->guards || k->phase == OVER) {
        return LT_OK;
    }
    if (k->stop_ids.n == 0) {
        LT_TRY(lt_ids_append(&k->stop_ids, (const uint32_t *)r->stop_ids, (size_t)r->n_stop_ids));
        LT_TRY(lt_ids_append(&k->stop_ids, k->end.data, k->end.n));
    }
    r->stop_ids = (const int32_t *)k->stop_ids.data;
    r->n_stop_ids = (int64_t)k->stop_ids.n;
    return LT_OK;
}

bool lt_control_closes(const lt_part *p, const lt_event *ev) {
    lt_control *k = p->reply->control;
    if (k == NULL || !k->guards || k->phase != RUNS || ev->finish != LT_FINISH_STOP_ID ||
        (uint32_t)ev->id != k->end.data[0]) {
        return false;
    }
    k->phase = CLOSES;
    return true;
}

/* The model closes its reasoning: allow it if the reasoning is long enough, otherwise continue with
 * `wait`. */
static void close_or_wait(lt_reply *j) {
    lt_control *k = j->control;
    lt_part *p = &j->parts[0];
    lt_reply_choice *c = &p->choices[0];
    const bool inside = reasons(c);
    const int64_t n = (int64_t)k->out.n, room = p->most_tokens - n;
    const bool waits = inside && n < j->params.control.min_tokens && room > (int64_t)k->wait.n;
    const lt_ids *put = waits ? &k->wait : &k->end;
    k->n_waits += waits;
    k->phase = OVER; /* Appended text is not checked. */
    for (size_t i = 0; i < put->n; i++) {
        lt_reply_put_token(c, (int32_t)put->data[i]);
    }
    if (room > (int64_t)put->n && lt_ids_append(&k->out, put->data, put->n) == LT_OK) {
        go_on(j, waits || !inside ? RUNS : OVER);
        return;
    }
    lt_reply_choice_over(p, &(lt_event){.kind = LT_EVENT_CHOICE, .finish = LT_FINISH_LENGTH});
    lt_reply_part_done(p);
}

/* ---- Folding back ---- */

/* As valid UTF-8; NULL: out of memory. */
static char *valid(const char *text, size_t n) {
    char *out = malloc(3 * n + 1);
    if (out != NULL) {
        out[lt_utf8_replace_invalid(out, text, n)] = '\0';
    }
    return out;
}

/* The text up to the step in which it began to repeat itself: up to the last border before, or up
 * to that place. */
static size_t fold_at(const lt_reply *j, const lt_control *k) {
    const int64_t window = j->params.control.window, from = (int64_t)k->out.n - window;
    int64_t first = 0;
    size_t i = k->borders_seen.n;
    lt_repetition(k->out.data + from, window, &first);
    while (i > 0 && (int64_t)k->borders_seen.data[i - 1] > from + first) {
        i--;
    }
    return i > 0 ? k->borders_seen.data[i - 1] : (size_t)(from + first);
}

/* The path is cut: what follows is written as if it had not been, with other draws. The client has
 * read it, so it stays in the answer and counts in every limit. Where nothing is drawn, the same
 * would follow again, so the reasoning ends there. */
static void fold_back(lt_reply *j) {
    lt_control *k = j->control;
    lt_part *p = &j->parts[0];
    const size_t keep = fold_at(j, k), n = k->out.n - keep;
    path *cut = &k->cuts[k->n_cuts++];
    char *text = NULL;
    size_t bytes = 0;
    *cut = (path){.at = p->choices[0].new_tokens - (int64_t)n, .tokens = (int64_t)n};
    if (lt_tokenizer_decode(j->server->tokenizer, k->out.data + keep, n, true, &text, &bytes) ==
        LT_OK) {
        cut->text = valid(text, bytes);
    }
    free(text);
    k->out.n = keep;
    while (k->borders_seen.n > 0 && k->borders_seen.data[k->borders_seen.n - 1] > keep) {
        k->borders_seen.n--;
    }
    k->tail.n = 0;
    p->most_tokens -= (int64_t)n;
    if (j->request.think_budget >= 0) {
        j->request.think_budget -= (int64_t)n < j->request.think_budget ? (int64_t)n
                                                                        : j->request.think_budget;
    }
    if (k->n_cuts <= j->params.control.folds && j->request.sampling.temperature > 0) {
        j->request.first_choice++;
        go_on(j, RUNS);
    } else {
        end_reasoning(j, "repeated");
    }
}

/* ---- Trials ---- */

void lt_control_stop(lt_reply *j) {
    lt_control *k = j->control;
    if (k->phase == CLOSES && j->conn != NULL && !j->failed) {
        close_or_wait(j);
        return;
    }
    if (k->phase == FOLDS_BACK && j->conn != NULL && !j->failed) {
        fold_back(j);
        return;
    }
    lt_request r = lt_request_defaults();
    lt_ids all = {0};
    lt_err err;
    k->phase = TRIES;
    lt_out_clear(&k->text);
    k->sum = 0;
    k->depth = 1;
    k->closed = false;
    k->n_said = 0;
    k->part = (lt_part){.reply = j};
    err = lt_ids_append(&all, j->parts[0].prompt.data, j->parts[0].prompt.n);
    err = err != LT_OK ? err : lt_ids_append(&all, k->out.data, k->out.n);
    err = err != LT_OK ? err : lt_ids_append(&all, k->probe.data, k->probe.n);
    if (err == LT_OK && j->conn != NULL && !j->failed) {
        r.prompt = (const int32_t *)all.data;
        r.n_prompt = (int64_t)all.n;
        r.max_tokens = methods[k->method].closes ? 1 : j->params.control.probe_tokens;
        r.logprobs = 0;
        r.entropy = methods[k->method].closes;
        r.sampling.temperature = 0;
        r.priority = (int)j->params.priority;
        r.background = j->request.background;
        r.adapter = j->request.adapter;
        r.adapter_scale = j->request.adapter_scale;
        r.cache_salt = lt_server_cache_salt(j->server, j->owner, j->params.cache_salt);
        err = lt_engine_submit(j->server->engine, &r, &k->part, &k->part.id);
        k->part.submitted = err == LT_OK;
    }
    lt_ids_free(&all);
    /* The queue is full, or the client has gone: continue without a trial. */
    if (!k->part.submitted) {
        if (err != LT_OK) {
            lt_log_warn("%s: no trial: %s", j->id, lt_error_message());
        }
        go_on(j, RUNS);
    }
}

/* Append text to the trial's answer, up to the end of that answer: the brace that closes the one at
 * the end of the probe, or else the end of the line. */
static void take_trial_text(lt_control *k, const char *text, size_t n) {
    for (size_t i = 0; i < n && !k->closed; i++) {
        if (k->closes_by_brace) {
            k->depth += (text[i] == '{') - (text[i] == '}');
            k->closed = k->depth == 0;
        } else {
            k->closed = text[i] == '\n' && k->text.n > 0;
        }
        if (!k->closed) {
            lt_out_raw(&k->text, &text[i], 1);
        }
    }
}

static void on_trial_token(lt_reply *j, const lt_event *ev) {
    lt_control *k = j->control;
    const char *piece;
    size_t n = 0;
    if (k->closed) {
        return;
    }
    k->sum += k->geometric ? (double)ev->logprob : exp((double)ev->logprob);
    k->n_said++;
    k->entropy = (double)ev->entropy;
    if (ev->finish != LT_FINISH_NONE) {
        k->closed = !k->closes_by_brace && k->text.n > 0;
        return;
    }
    piece = lt_tokenizer_text(j->server->tokenizer, (uint32_t)ev->id, &n);
    if (piece != NULL && !lt_tokenizer_is_special(j->server->tokenizer, (uint32_t)ev->id)) {
        take_trial_text(k, piece, n);
    }
    if (k->closed) {
        lt_engine_cancel(j->server->engine, k->part.id);
    }
}

/* The answer as valid UTF-8, without white space at its ends; NULL: out of memory. */
static char *trimmed(const lt_json_out *said) {
    char *text = valid(said->n > 0 ? said->data : "", said->n);
    size_t n, from;
    if (text == NULL) {
        return NULL;
    }
    n = strlen(text);
    from = strspn(text, " \t\r\n");
    while (n > from && strchr(" \t\r\n", text[n - 1]) != NULL) {
        n--;
    }
    memmove(text, text + from, n - from);
    text[n - from] = '\0';
    return text;
}

/* Whether the last `agree` trials give the same answer. */
static bool agreed(const lt_control *k, int64_t agree) {
    const char *last = k->trials[(k->n_trials - 1) % TRIALS_KEPT].answer;
    if (k->n_trials < agree || last == NULL || last[0] == '\0') {
        return false;
    }
    for (int64_t i = 2; i <= agree; i++) {
        const char *other = k->trials[(k->n_trials - i) % TRIALS_KEPT].answer;
        if (other == NULL || strcmp(other, last) != 0) {
            return false;
        }
    }
    return true;
}

static void on_trial_done(lt_reply *j) {
    lt_control *k = j->control;
    const int64_t n = k->n_said;
    const double mean = n > 0 ? k->sum / (double)n : 0;
    trial *t = &k->trials[k->n_trials++ % TRIALS_KEPT];
    const bool settled = methods[k->method].closes && n > 0 &&
                         lt_settling_add(&k->settling, k->entropy, j->params.control.alpha,
                                         j->params.control.delta);
    k->part.submitted = false;
    k->tokens += n;
    j->server->metrics.trial_tokens += (uint64_t)n;
    free(t->answer);
    *t = (trial){.at = (int64_t)k->out.n,
                 .tokens = n,
                 .confidence = n == 0         ? 0
                               : k->geometric ? exp(mean)
                                              : mean,
                 .answer = k->closed ? trimmed(&k->text) : NULL,
                 .entropy = k->entropy,
                 .variance = k->settling.variance};
    if (j->conn == NULL || j->failed) {
        go_on(j, OVER);
    } else if (k->method == DEER && t->answer != NULL && t->answer[0] != '\0' &&
               t->confidence > j->params.control.threshold) {
        end_reasoning(j, "confident");
    } else if (k->method == PROBE && agreed(k, j->params.control.agree)) {
        end_reasoning(j, "agreed");
    } else if (settled) {
        end_reasoning(j, "settled");
    } else {
        go_on(j, RUNS);
    }
}

bool lt_control_event(const lt_event *ev) {
    const lt_part *p = ev->user;
    lt_control *k = p->reply->control;
    if (k == NULL || p != &k->part) {
        return false;
    }
    if (ev->kind == LT_EVENT_TOKEN) {
        on_trial_token(p->reply, ev);
    } else if (ev->kind == LT_EVENT_DONE) {
        on_trial_done(p->reply);
    }
    return true;
}

void lt_control_cancel(lt_reply *j) {
    if (j->control != NULL && j->control->part.submitted) {
        lt_engine_cancel(j->server->engine, j->control->part.id);
    }
}

/* ---- The report ---- */

int64_t lt_control_tokens(const lt_reply *j) {
    return j->control != NULL ? j->control->tokens : 0;
}

static void write_trial(lt_json_out *o, const lt_control *k, const trial *t) {
    lt_out_open(o, '{');
    lt_out_key_int(o, "at", t->at);
    if (methods[k->method].closes) {
        lt_out_key_real(o, "entropy", t->entropy);
        lt_out_key_real(o, "variance", t->variance);
    } else {
        lt_out_key_int(o, "tokens", t->tokens);
        lt_out_key_real(o, "confidence", t->confidence);
        lt_out_key_str(o, "answer", t->answer);
    }
    lt_out_shut(o, '}');
}

static void write_cuts(lt_json_out *o, const lt_control *k) {
    lt_out_key_open(o, "cuts", '[');
    for (int i = 0; i < k->n_cuts; i++) {
        lt_out_open(o, '{');
        lt_out_key_int(o, "at", k->cuts[i].at);
        lt_out_key_int(o, "tokens", k->cuts[i].tokens);
        lt_out_key_str(o, "text", k->cuts[i].text);
        lt_out_shut(o, '}');
    }
    lt_out_shut(o, ']');
}

void lt_control_write(lt_json_out *o, const lt_reply *j) {
    const lt_control *k = j->control;
    const int64_t kept = k->n_trials < TRIALS_KEPT ? k->n_trials : TRIALS_KEPT;
    lt_out_key_open(o, "reasoning_control", '{');
    lt_out_key_str(o, "control", methods[k->method].name);
    lt_out_key_int(o, "reasoning_tokens", lt_reply_reasoning_tokens(j));
    if (k->guards) {
        lt_out_key_int(o, "waits", k->n_waits);
    }
    if (k->method != BUDGET) {
        lt_out_key_str(o, "stopped_by", k->stopped_by);
        lt_out_key_int(o, "saved_most", k->saved_most);
        lt_out_key_int(o, "trial_tokens", k->tokens);
        lt_out_key_int(o, "n_trials", k->n_trials);
        lt_out_key_open(o, "trials", '[');
        for (int64_t i = k->n_trials - kept; i < k->n_trials; i++) {
            write_trial(o, k, &k->trials[i % TRIALS_KEPT]);
        }
        lt_out_shut(o, ']');
    }
    if (k->method == ENTROPY) {
        write_cuts(o, k);
    }
    lt_out_shut(o, '}');
}
