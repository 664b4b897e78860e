/* reward.c: see reward.h. */
#include "align/reward.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "align/reward_command.h"
#include "align/reward_model.h"
#include "base/error.h"
#include "base/option.h"
#include "data/think_marks.h"
#include "serve/grammar/grammar.h"

#define MOST 11 /* Most names in a sum. */

/* One answer with its problem. */
typedef struct {
    const lt_rewards *r;
    const lt_problem *problem;
    const lt_answer *answer;
    const char *text;
    const lt_unit_verdict *tests; /* NULL: no reward reads the tests. */
} judged;

typedef struct {
    const char *name;
    bool checker, schema, soft, model, command, tests; /* What the reward reads. */
    lt_err (*value)(const judged *j, double *out);     /* NULL: of model and command. */
} reward_row;

typedef struct {
    const reward_row *row;
    double weight;
} term;

struct lt_rewards {
    lt_reward_options o;
    term terms[MOST];
    int n_terms;
    lt_reward_model *model;
    lt_reward_command *command;
    lt_grammar_vocab *vocabulary; /* NULL: no reward reads a schema. */
};

/* ---- The table ---- */

static lt_err answer_value(const judged *j, double *out) {
    bool right = false;
    LT_TRY(lt_checker_run(j->problem->checker, j->text, strlen(j->text), LT_ANSWER_STRICT, &right,
                          NULL));
    *out = right;
    return LT_OK;
}

static lt_err found_value(const judged *j, double *out) {
    size_t begin, end;
    *out = lt_answer_find(j->text, strlen(j->text), LT_ANSWER_STRICT, &begin, &end) !=
           LT_ANSWER_NONE;
    return LT_OK;
}

/* The position of `what` in a text that contains it exactly once; otherwise NULL. */
static const char *once(const char *text, const char *what) {
    const char *at = strstr(text, what);
    return at != NULL && strstr(at + strlen(what), what) == NULL ? at : NULL;
}

/* The marks whose closing mark is in the text; if there are none, the usual ones. */
static const lt_think_mark *marks_of(const char *text) {
    int i = 0;
    while (i < LT_THINK_USUAL && strstr(text, lt_think_marks[i].close) == NULL) {
        i++;
    }
    return &lt_think_marks[i];
}

/* The template may have written the opening mark. */
static lt_err think_value(const judged *j, double *out) {
    static const char space[] = " \t\r\n";
    const lt_think_mark *m = marks_of(j->text);
    const char *begin = j->text + strspn(j->text, space), *opened = strstr(j->text, m->open);
    const char *end = once(j->text, m->close);
    const size_t len = strlen(m->close);
    *out = end != NULL &&
           (opened == NULL || (opened == begin && once(j->text, m->open) == begin)) &&
           end[len + strspn(end + len, space)] != '\0';
    return LT_OK;
}

static lt_err open_schema(lt_grammar **out, const judged *j) {
    char *text = json_dumps(json_object_get(j->problem->line, "schema"), JSON_COMPACT);
    lt_err err;
    if (text == NULL) {
        LT_FAIL(LT_ERR_OOM, "schema of a problem");
    }
    err = lt_grammar_open(out, j->r->vocabulary, LT_GRAMMAR_SCHEMA, text, strlen(text));
    free(text);
    return err != LT_OK ? lt_error_prefix(err, "%s:%llu: schema", j->problem->path,
                                          (unsigned long long)j->problem->line_number)
                        : LT_OK;
}

/* 1 if the schema's grammar accepts the tokens of the answer, as the engine would constrain
 * them. */
static lt_err schema_value(const judged *j, double *out) {
    const int64_t n = j->answer->n - j->answer->ended;
    lt_grammar_state *state = NULL;
    lt_grammar *grammar = NULL;
    lt_err err = LT_OK;
    bool matches = true;
    LT_TRY_DONE(open_schema(&grammar, j));
    LT_TRY_DONE(lt_grammar_state_open(&state, grammar));
    for (int64_t i = 0; i < n && matches; i++) {
        const lt_err one = lt_grammar_accept(state, j->answer->ids[i]);
        if (one == LT_ERR_OOM) {
            LT_TRY_DONE(one);
        }
        matches = one == LT_OK;
    }
    *out = matches && lt_grammar_accepting(state);
done:
    lt_grammar_state_close(state);
    lt_grammar_close(grammar);
    return err;
}

static lt_err ended_value(const judged *j, double *out) {
    *out = j->answer->ended;
    return LT_OK;
}

static lt_err length_value(const judged *j, double *out) {
    *out = (double)j->answer->n / (double)j->r->o.max_tokens;
    return LT_OK;
}

static lt_err overlong_value(const judged *j, double *out) {
    const int64_t from = j->r->o.max_tokens - j->r->o.soft_tokens;
    *out = j->answer->n <= from ? 0.0
                                : -(double)(j->answer->n - from) / (double)j->r->o.soft_tokens;
    return LT_OK;
}

static lt_err unit_tests_value(const judged *j, double *out) {
    *out = j->tests->passed == j->tests->total;
    return LT_OK;
}

static lt_err unit_tests_share_value(const judged *j, double *out) {
    *out = (double)j->tests->passed / (double)j->tests->total;
    return LT_OK;
}

static const reward_row table[] = {
    {"answer", .checker = true, .value = answer_value},
    {"found", .value = found_value},
    {"think", .value = think_value},
    {"schema", .schema = true, .value = schema_value},
    {"ended", .value = ended_value},
    {"length", .value = length_value},
    {"overlong", .soft = true, .value = overlong_value},
    {"model", .model = true},
    {"command", .command = true},
    {"unit_tests", .tests = true, .value = unit_tests_value},
    {"unit_tests_share", .tests = true, .value = unit_tests_share_value},
};
#define N_ROWS (sizeof table / sizeof *table)

/* ---- The sum ---- */

static lt_err add_term(lt_rewards *r, char *word) {
    char *colon = strrchr(word, ':'), *end = NULL, hint[LT_NAME_HINT_BYTES];
    double weight = 1.0;
    const reward_row *row;
    if (colon != NULL) {
        *colon = '\0';
        weight = strtod(colon + 1, &end);
        if (end == colon + 1 || *end != '\0' || !isfinite(weight) || weight == 0.0) {
            LT_FAIL(LT_ERR_ARG, "reward '%s' has the weight '%s'; a weight is a number, not 0",
                    word, colon + 1);
        }
    }
    row = lt_name_find(word, table, sizeof *table, N_ROWS);
    if (row == NULL) {
        LT_FAIL(LT_ERR_ARG, "reward '%s' does not exist%s", word,
                lt_name_hint(hint, word, table, sizeof *table, N_ROWS));
    }
    for (int i = 0; i < r->n_terms; i++) {
        if (r->terms[i].row == row) {
            LT_FAIL(LT_ERR_ARG, "reward '%s' is given twice", word);
        }
    }
    LT_ASSERT(r->n_terms < MOST);
    r->terms[r->n_terms++] = (term){row, weight};
    return LT_OK;
}

static lt_err read_sum(lt_rewards *r, const char *sum) {
    char text[LT_OPTION_STR_BYTES], *next = text, *word;
    snprintf(text, sizeof text, "%s", sum);
    while ((word = strsep(&next, ",")) != NULL) {
        LT_TRY(add_term(r, word + strspn(word, " ")));
    }
    return LT_OK;
}

static bool reads(const lt_rewards *r, size_t offset) {
    bool any = false;
    for (int i = 0; i < r->n_terms; i++) {
        any = any || *(const bool *)((const char *)r->terms[i].row + offset);
    }
    return any;
}
#define READS(r, member) reads(r, offsetof(reward_row, member))

static lt_err check_options(const lt_rewards *r) {
    const lt_reward_options *o = &r->o;
    if (READS(r, command) != (o->command[0] != '\0')) {
        LT_FAIL(LT_ERR_ARG, READS(r, command) ? "reward 'command' needs a command"
                                              : "a command is given, but no reward 'command'");
    }
    if (READS(r, model) != (o->model != NULL && o->model[0] != '\0')) {
        LT_FAIL(LT_ERR_ARG, READS(r, model) ? "reward 'model' needs a reward model"
                                            : "a reward model is given, but no reward 'model'");
    }
    if (READS(r, tests) && o->tests.program == NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "rewards 'unit_tests' and 'unit_tests_share' are for training "
                                    "(rl.rewards)");
    }
    if (READS(r, soft) != (o->soft_tokens > 0) || o->soft_tokens > o->max_tokens) {
        LT_FAIL(LT_ERR_ARG, "%lld tokens for reward 'overlong', of answers of at most %lld%s",
                (long long)o->soft_tokens, (long long)o->max_tokens,
                READS(r, soft) ? "" : "; the reward is not in the sum");
    }
    return LT_OK;
}

lt_err lt_rewards_open(lt_rewards **out, const lt_reward_options *o) {
    lt_err err = LT_OK;
    lt_rewards *r = calloc(1, sizeof *r);
    if (r == NULL) {
        LT_FAIL(LT_ERR_OOM, "rewards");
    }
    r->o = *o;
    LT_TRY_DONE(read_sum(r, o->sum));
    LT_TRY_DONE(check_options(r));
    if (READS(r, schema)) {
        LT_TRY_DONE(lt_grammar_vocab_open(&r->vocabulary, o->tokenizer, NULL, 0));
    }
    if (READS(r, tests)) {
        LT_TRY_DONE(lt_unit_tests_probe(&o->tests));
    }
    if (READS(r, model)) {
        LT_TRY_DONE(lt_reward_model_open(&r->model, o->model, o->device, o->longest));
    }
    if (READS(r, command)) {
        LT_TRY_DONE(lt_reward_command_open(&r->command, o->command, o->command_limit_s));
    }
    *out = r;
    r = NULL;
done:
    lt_rewards_close(r);
    return err;
}

void lt_rewards_close(lt_rewards *r) {
    if (r == NULL) {
        return;
    }
    lt_reward_model_close(r->model);
    lt_reward_command_close(r->command);
    lt_grammar_vocab_close(r->vocabulary);
    free(r);
}

size_t lt_rewards_bytes(const lt_rewards *r) {
    return r->model != NULL ? lt_reward_model_bytes(r->model) : 0;
}

int lt_rewards_count(const lt_rewards *r) {
    return r->n_terms;
}

const char *lt_rewards_name(const lt_rewards *r, int i) {
    return r->terms[i].row->name;
}

lt_err lt_rewards_check(const lt_rewards *r, const lt_problems *problems) {
    for (int64_t i = 0; i < problems->n; i++) {
        const lt_problem *p = &problems->items[i];
        const bool answer = READS(r, checker) && p->checker == NULL;
        if (answer || (READS(r, schema) && !json_is_object(json_object_get(p->line, "schema")))) {
            LT_FAIL(LT_ERR_FORMAT, "%s:%llu: no \"%s\", which a reward reads", p->path,
                    (unsigned long long)p->line_number, answer ? "answer" : "schema");
        }
        if (READS(r, tests) && lt_unit_tests_check(p->line) != LT_OK) {
            return lt_error_prefix(LT_ERR_FORMAT, "%s:%llu: unit tests", p->path,
                                   (unsigned long long)p->line_number);
        }
    }
    return LT_OK;
}

/* ---- Judging ---- */

static lt_err write_line(FILE *to, int64_t id, const judged *j) {
    char *problem = json_dumps(j->problem->line, JSON_COMPACT);
    json_t *text = json_string(j->text);
    char *completion = text != NULL ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
    const bool ok = problem != NULL && completion != NULL;
    if (ok) {
        fprintf(to, "{\"id\": %lld, \"completion\": %s, \"tokens\": %lld, \"ended\": %s, ",
                (long long)id, completion, (long long)j->answer->n,
                j->answer->ended ? "true" : "false");
        fprintf(to, "\"problem\": %s}\n", problem);
    }
    json_decref(text);
    free(problem);
    free(completion);
    return ok ? LT_OK : lt_error_set(LT_ERR_OOM, "line for the reward command");
}

/* All answers at once, so that the program can work on them together. */
static lt_err ask_command(const lt_rewards *r, const judged *all, int64_t n, double *out) {
    char *lines = NULL;
    size_t bytes = 0;
    lt_err err = LT_OK;
    bool *given = calloc((size_t)n, sizeof *given);
    FILE *to = open_memstream(&lines, &bytes);
    if (given == NULL || to == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%lld lines for the reward command", (long long)n);
    }
    for (int64_t i = 0; i < n; i++) {
        LT_TRY_DONE(write_line(to, i, &all[i]));
    }
    if (fflush(to) != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "%lld lines for the reward command", (long long)n);
    }
    LT_TRY_DONE(lt_reward_command_ask(r->command, lines, bytes, n, out, given));
done:
    if (to != NULL) {
        fclose(to);
    }
    free(lines);
    free(given);
    return err; /* If the program had no opinion (given is false), the reward is 0. */
}

/* All answers in one batch of the reward model's engine. */
static lt_err ask_model(const lt_rewards *r, const judged *all, int64_t n, double *out) {
    json_t **conversations = calloc((size_t)n, sizeof *conversations);
    const char **texts = calloc((size_t)n, sizeof *texts);
    lt_err err = LT_OK;
    if (conversations == NULL || texts == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "texts of %lld answers", (long long)n);
    }
    for (int64_t i = 0; i < n; i++) {
        conversations[i] = lt_problem_messages(all[i].problem->line);
        texts[i] = all[i].text;
        if (conversations[i] == NULL) {
            LT_FAIL_DONE(LT_ERR_OOM, "messages of %lld answers", (long long)n);
        }
    }
    err = lt_reward_model_judge(r->model, (const json_t *const *)conversations, texts, n, out);
done:
    for (int64_t i = 0; conversations != NULL && i < n; i++) {
        json_decref(conversations[i]);
    }
    free(conversations);
    free(texts);
    return err;
}

/* Run the unit tests of all answers once, for both rewards that read them. */
static lt_err run_tests(const lt_rewards *r, judged *all, int64_t n, lt_unit_verdict **verdicts) {
    lt_tested *answers = calloc((size_t)n, sizeof *answers);
    lt_err err = LT_OK;
    *verdicts = calloc((size_t)n, sizeof **verdicts);
    if (answers == NULL || *verdicts == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "unit tests of %lld answers", (long long)n);
    }
    for (int64_t i = 0; i < n; i++) {
        answers[i].problem = all[i].problem->line;
        answers[i].code = lt_unit_code(all[i].text, &answers[i].bytes);
        all[i].tests = &(*verdicts)[i];
    }
    LT_TRY_DONE(lt_unit_tests_run(&r->o.tests, answers, n, *verdicts));
done:
    free(answers);
    return err;
}

/* One term of the sum, for all answers. */
static lt_err judge_term(const lt_rewards *r, const term *t, const judged *all, int64_t n,
                         double *out) {
    if (t->row->command || t->row->model) {
        return t->row->model ? ask_model(r, all, n, out) : ask_command(r, all, n, out);
    }
    for (int64_t i = 0; i < n; i++) {
        LT_TRY(t->row->value(&all[i], &out[i]));
    }
    return LT_OK;
}

lt_err lt_rewards_judge(lt_rewards *r, const lt_problem *const *problems, const lt_answer *answers,
                        const char *const *texts, int64_t n, double *rewards, double *parts) {
    lt_err err = LT_OK;
    lt_unit_verdict *verdicts = NULL;
    judged *all = calloc((size_t)n, sizeof *all);
    double *values = calloc((size_t)n, sizeof *values);
    if (all == NULL || values == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "rewards of %lld answers", (long long)n);
    }
    for (int64_t i = 0; i < n; i++) {
        all[i] = (judged){r, problems[i], &answers[i], texts[i], NULL};
        rewards[i] = 0.0;
    }
    LT_TRY_DONE(READS(r, tests) ? run_tests(r, all, n, &verdicts) : LT_OK);
    for (int k = 0; k < r->n_terms; k++) {
        LT_TRY_DONE(judge_term(r, &r->terms[k], all, n, values));
        for (int64_t i = 0; i < n; i++) {
            rewards[i] += r->terms[k].weight * values[i];
            if (parts != NULL) {
                parts[i * r->n_terms + k] = values[i];
            }
        }
    }
done:
    free(all);
    free(values);
    free(verdicts);
    return err;
}
