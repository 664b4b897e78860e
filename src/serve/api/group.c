/* group.c: see group.h. */
#include "serve/api/group.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/option.h"
#include "data/check/checker.h"
#include "data/text_utf8.h"
#include "lateen/select.h"
#include "model/steering.h"
#include "serve/api/blocks.h"
#include "serve/api/confidence.h"
#include "serve/api/guide.h"
#include "serve/api/judge.h"
#include "serve/api/tournament.h"
#include "serve/api/reply.h"

#define MOST        128  /* Candidates, as for 'n' and 'best_of'. */
#define MU_MOST     64   /* More than MOST candidates have a probability under 1e-12 then. */
#define ANSWER_MOST 4096 /* Bytes of an extracted answer. */

static const lt_field fields[] = {
    LT_STR("method", group.method),
    LT_I64("n", group.n, 1, MOST),
    LT_F64("temperature", group.temperature, 0, 1e300),
    LT_F64("mu", group.mu, 0, MU_MOST),
    LT_F64("threshold", group.threshold, -1e300, 1e300),
    LT_F64("tail", group.tail, 0, 1),
    LT_F64("half_tail", group.half_tail, 0, 1e300),
    LT_JSON("reward", group.reward),
    LT_STR("extract", group.extract),
    LT_F64("keep", group.keep, 0, 1),
    LT_I64("every", group.every, 1, 1e9),
    LT_I64("window", group.window, 1, 1e9),
    LT_I64("seed", group.seed, -0x1p63, 0x1p63),
    LT_BOOL("return_candidates", group.candidates),
    LT_F64("length_penalty", length_penalty, -LT_BEAM_PENALTY, LT_BEAM_PENALTY),
    LT_JSON("early_stopping", early_stopping),
    LT_STR("vector", vector),
    LT_F64("scale", scale, -LT_STEERING_SCALE, LT_STEERING_SCALE),
    LT_JSON("negative", negative),
    LT_STR("criterion", criterion),
    LT_F64("plausibility", plausibility, 0, 1),
    LT_STR("scheme", mark.scheme),
    LT_STR("key", mark.key),
    LT_F64("gamma", mark.gamma, 0, 1),
    LT_F64("delta", mark.delta, 0, 1000),
    LT_I64("context", mark.context, 1, LT_WATERMARK_CONTEXT),
    LT_I64("length", mark.length, 1, LT_WATERMARK_LENGTH)};
const lt_field_table lt_fields_alignment = LT_FIELD_TABLE(fields, "method");

static const lt_field check_fields[] = {
    LT_STR("check", group.check), LT_STR("answer", group.answer), LT_BOOL("strict", group.strict)};

/* ---- Methods and scores: two tables ---- */

typedef struct {
    const char *name, *rule;                     /* rule NULL: of the same name. */
    bool halves;                                 /* The worst are cut on the way. */
    bool beam;                                   /* The candidates are what a beam search finds. */
    bool tournament;                             /* The served model judges them, two by two. */
    const char *why_not;                         /* Not NULL: it is refused, for this reason. */
    bool (*guide)(lt_reply *j, lt_api_error *e); /* Not NULL: it has no group, see guide.h. */
} method;

static const method methods[] = {
    {.name = "best_of_n"},
    {.name = "soft_best_of_n"},
    {.name = "best_of_poisson"},
    {.name = "best_of_tails"},
    {.name = "rejection"},
    {.name = "self_consistency"},
    {.name = "speculative_rejection", .rule = "best_of_n", .halves = true},
    {.name = "beam", .rule = "best_of_n", .beam = true},
    {.name = "tournament", .rule = "best_of_n", .tournament = true},
    {.name = "blockwise", .guide = lt_blocks_read},
    {.name = "watermark", .guide = lt_guide_watermark},
    {.name = "steer", .guide = lt_guide_steer},
    {.name = "guidance", .guide = lt_guide_negative},
    {.name = "contrastive", .why_not = "it needs a second model beside the served one"},
};

typedef enum {
    MEAN_LOGPROB,
    LOGPROB,
    PROBABILITY,
    CONFIDENCE,
    REWARD,
    CHECK,
    BEAM,
    WINS
} score_kind;

static const struct {
    const char *name;
    int top;       /* Alternatives that the engine must report with each token. */
    bool positive; /* Never negative: may be a weight of votes. */
} scores[] = {[MEAN_LOGPROB] = {"mean_logprob", 0, false},
              [LOGPROB] = {"logprob", 0, false},
              [PROBABILITY] = {"probability", 0, true},
              [CONFIDENCE] = {"confidence", LT_ENGINE_TOP, true},
              [REWARD] = {"reward", 0, false},
              [CHECK] = {"check", 0, true},
              [BEAM] = {"beam", 0, false},
              [WINS] = {"wins", 0, false}};

typedef struct {
    bool ended, cut;
    double score, probability;
    int32_t answer;           /* Which of the group's answers; -1: none. */
    lt_confidence confidence; /* Of its tokens, while the score asks for it. */
    double *partial;          /* (n_partial) its score after each `every` tokens. */
    int64_t n_partial;
    lt_part part; /* Its text on its way through the reward model. */
} candidate;

typedef struct {
    lt_checker *checker; /* Takes every text whose answer is equal to it. */
    char *text;
} answer;

struct lt_group {
    const method *method;
    const lt_select_rule *rule;
    lt_select_options o;
    score_kind score;
    bool scored; /* Votes only: weighted by the score. */
    lt_check_kind extract;
    lt_checker *check; /* Of the reward. */
    uint64_t seed;
    int64_t n, next_cut;   /* next_cut: tokens of each candidate at which the worst are cut. */
    int64_t reward_tokens; /* Read by the reward model. */
    const char *stopped_by;
    lt_tournament *tournament; /* Once all candidates have ended. */
    candidate *candidates;     /* (n) */
    answer *answers;           /* (n_answers) */
    int n_answers;
    lt_selection kept; /* chosen: among all candidates. */
};

/* ---- The request ---- */

/* The method that the request names; NULL: it is refused. */
static const method *find_method(const lt_api_params *a, lt_api_error *e) {
    const char *name = a->group.method;
    const method *m = lt_api_params_row(name, "alignment.method", methods, sizeof *methods,
                                        sizeof methods / sizeof *methods, e);
    if (m != NULL && m->why_not != NULL) {
        lt_api_refuse(e, "alignment.method", "'alignment.method' = %s is not supported here: %s",
                      name, m->why_not);
        return NULL;
    }
    return m;
}

/* "reward": the name of a score, or {"check": kind, "answer": text}: 1 where the checker takes the
 * candidate's answer, else 0. */
static bool read_reward(lt_group *g, lt_reply *j, lt_api_error *e) {
    lt_api_params *a = &j->params;
    const json_t *reward = a->group.reward;
    const char *name = json_string_value(reward);
    lt_check_kind kind;
    lt_err err;
    if (reward == NULL) {
        return true;
    }
    g->scored = true;
    for (int i = 0; name != NULL && i < CHECK; i++) {
        if (strcmp(scores[i].name, name) == 0) {
            g->score = (score_kind)i;
            return i != REWARD || lt_judge_check(j, e);
        }
    }
    if (!json_is_object(reward)) {
        return lt_api_refuse(e, "alignment.reward",
                             "'alignment.reward' may be mean_logprob, logprob, probability, "
                             "confidence, reward or an object with 'check' and 'answer'");
    }
    if (!lt_api_params_object(a, reward, check_fields, sizeof check_fields / sizeof *check_fields,
                              "alignment.reward.", e)) {
        return false;
    }
    if (a->group.check == NULL || a->group.answer == NULL) {
        return lt_api_refuse(e, "alignment.reward",
                             "'alignment.reward' needs both 'check' and 'answer'");
    }
    err = lt_check_kind_find(&kind, a->group.check);
    if (err != LT_OK) {
        return lt_api_refuse_error(e, "alignment.reward.check", err);
    }
    err = lt_checker_open(&g->check, kind, a->group.answer, strlen(a->group.answer));
    if (err != LT_OK) {
        return lt_api_refuse_error(e, "alignment.reward.answer", err);
    }
    g->score = CHECK;
    return true;
}

static bool check_fields_of(const lt_group *g, const lt_api_params *a, lt_api_error *e) {
    const unsigned rule = g->rule->reads;
    const struct {
        const char *name;
        bool read, needed;
    } of[] = {{"n", (rule & LT_SELECT_MU) == 0, true},
              {"temperature", (rule & LT_SELECT_TEMPERATURE) != 0, true},
              {"mu", (rule & LT_SELECT_MU) != 0, true},
              {"threshold", (rule & LT_SELECT_THRESHOLD) != 0, true},
              {"tail", (rule & LT_SELECT_TAIL) != 0, false},
              {"half_tail", (rule & LT_SELECT_TAIL) != 0, false},
              {"extract", g->rule->groups, false},
              {"keep", g->method->halves, false},
              {"every", g->method->halves, false},
              {"window", g->score == CONFIDENCE, false},
              {"length_penalty", g->method->beam, false},
              {"early_stopping", g->method->beam, false},
              {"criterion", g->method->tournament, false},
              {"reward", !g->method->beam && !g->method->tournament, false},
              {"seed", !g->method->beam, false},
              {"return_candidates", true, false}};
    const char *reads[sizeof of / sizeof *of + 1], *needs[sizeof of / sizeof *of + 1];
    int n_reads = 0, n_needs = 0;
    char by[96];
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        if (of[i].read) {
            reads[n_reads++] = of[i].name;
        }
        if (of[i].read && of[i].needed) {
            needs[n_needs++] = of[i].name;
        }
    }
    reads[n_reads] = needs[n_needs] = NULL;
    snprintf(by, sizeof by, "method %s and reward %s", g->method->name, scores[g->score].name);
    return lt_guide_fields(a->alignment, reads, needs, by, e);
}

static bool read_extract(lt_group *g, const lt_api_params *a, lt_api_error *e) {
    lt_err err;
    g->extract = LT_CHECK_TEXT;
    if (a->group.extract == NULL) {
        return true;
    }
    err = lt_check_kind_find(&g->extract, a->group.extract);
    if (err != LT_OK) {
        return lt_api_refuse_error(e, "alignment.extract", err);
    }
    return g->extract != LT_CHECK_REGEX ||
           lt_api_refuse(e, "alignment.extract",
                         "'alignment.extract' = regex cannot tell whether two answers are equal");
}

static bool read_options(lt_group *g, lt_reply *j, lt_api_error *e) {
    const lt_api_params *a = &j->params;
    const unsigned reads = g->rule->reads;
    lt_err err;
    if (reads & LT_SELECT_TEMPERATURE) {
        g->o.temperature = a->group.temperature;
    }
    if (reads & LT_SELECT_MU) {
        g->o.mu = a->group.mu;
    }
    if (reads & LT_SELECT_THRESHOLD) {
        g->o.threshold = a->group.threshold;
    }
    if (reads & LT_SELECT_TAIL) {
        g->o.tail = a->group.tail;
        g->o.half_tail = a->group.half_tail;
        if (g->score != PROBABILITY && g->score != CHECK) {
            return lt_api_refuse(e, "alignment.reward",
                                 "method best_of_tails needs a reward in [0, 1]: probability or a "
                                 "check");
        }
    }
    if (g->rule->groups && g->scored && !scores[g->score].positive) {
        return lt_api_refuse(e, "alignment.reward",
                             "'alignment.reward' = %s may be negative, so it cannot weigh votes; "
                             "probability, confidence and checks can",
                             scores[g->score].name);
    }
    if (g->method->halves && a->group.keep <= 0) {
        return lt_api_refuse(e, "alignment.keep", "'alignment.keep' is 0: none would be left");
    }
    if (g->method->halves && (g->score == CHECK || g->score == REWARD)) {
        return lt_api_refuse(e, "alignment.reward",
                             "method speculative_rejection scores texts before their end; checks "
                             "and the reward model judge whole texts");
    }
    err = lt_select_check(g->rule, &g->o);
    return err == LT_OK || lt_api_refuse_error(e, "alignment", err);
}

/* The object's fields, whatever the method is. */
static bool read_object(lt_api_params *a, lt_api_error *e) {
    if (!json_is_object(a->alignment)) {
        return lt_api_refuse(e, "alignment", "'alignment' must be an object with a method");
    }
    return lt_api_params_object(a, a->alignment, fields, sizeof fields / sizeof *fields,
                                "alignment.", e) &&
           (a->group.method != NULL ||
            lt_api_refuse(e, "alignment.method", "'alignment.method' is missing"));
}

static bool read_group(lt_group *g, lt_reply *j, lt_api_error *e) {
    lt_api_params *a = &j->params;
    const char *rule = g->method->rule != NULL ? g->method->rule : g->method->name;
    if (a->n > 1 || a->best_of > 1) {
        return lt_api_refuse(e, a->n > 1 ? "n" : "best_of",
                             "'alignment' returns one answer; the number of candidates is "
                             "'alignment.n'");
    }
    if (a->echo) {
        return lt_api_refuse(e, "echo", "'echo' and 'alignment' exclude each other");
    }
    if (lt_select_find(&g->rule, rule) != LT_OK) {
        return lt_api_refuse_error(e, "alignment.method", LT_ERR_NOT_FOUND);
    }
    g->score = g->method->beam ? BEAM : g->method->tournament ? WINS : MEAN_LOGPROB;
    if (g->method->tournament && !lt_tournament_check(j, e)) {
        return false;
    }
    return read_reward(g, j, e) && check_fields_of(g, a, e) && read_extract(g, a, e) &&
           read_options(g, j, e);
}

bool lt_group_read(lt_reply *j, lt_api_error *e) {
    lt_request *r = &j->request;
    const method *m;
    lt_group *g;
    if (j->params.alignment == NULL) {
        return true;
    }
    m = read_object(&j->params, e) ? find_method(&j->params, e) : NULL;
    if (m == NULL || m->guide != NULL) {
        return m != NULL && m->guide(j, e);
    }
    g = calloc(1, sizeof *g);
    if (g == NULL) {
        return lt_api_refuse_oom(e);
    }
    g->method = m;
    j->group = g;
    if (!read_group(g, j, e)) {
        return false;
    }
    g->seed = j->params.group.seed != -1 ? (uint64_t)j->params.group.seed : r->sampling.seed;
    g->n = lt_select_draws(g->rule, &g->o, j->params.group.n, g->seed);
    g->n = g->n < MOST ? g->n : MOST;
    g->next_cut = j->params.group.every;
    g->stopped_by = "end";
    g->candidates = calloc((size_t)g->n, sizeof *g->candidates);
    g->answers = calloc((size_t)g->n, sizeof *g->answers);
    if (g->candidates == NULL || g->answers == NULL) {
        return lt_api_refuse_oom(e);
    }
    for (int64_t i = 0; i < g->n; i++) {
        g->candidates[i].answer = -1;
    }
    r->n_choices = g->n;
    if (m->beam && !lt_guide_set_beam(j, "method beam", e)) {
        return false;
    }
    r->logprobs = r->logprobs > scores[g->score].top ? r->logprobs : scores[g->score].top;
    return true;
}

void lt_group_free(lt_group *g) {
    if (g == NULL) {
        return;
    }
    for (int64_t i = 0; g->candidates != NULL && i < g->n; i++) {
        lt_confidence_free(&g->candidates[i].confidence);
        free(g->candidates[i].partial);
    }
    for (int i = 0; i < g->n_answers; i++) {
        lt_checker_close(g->answers[i].checker);
        free(g->answers[i].text);
    }
    lt_checker_close(g->check);
    lt_tournament_close(g->tournament);
    free(g->candidates);
    free(g->answers);
    free(g);
}

/* ---- Scores ---- */

static double mean_logprob(const lt_reply_choice *c) {
    return c->new_tokens > 0 ? c->logprob_sum / (double)c->new_tokens : 0;
}

/* The text that is judged: what the formatter calls the answer, without the reasoning. */
static void text_of(lt_reply_choice *c, lt_json_out *text) {
    if (c->reply->formatter->answer != NULL) {
        c->reply->formatter->answer(c, text);
    } else {
        lt_out_raw(text, c->text.data != NULL ? c->text.data : "", c->text.n);
    }
}

static bool takes(const lt_checker *checker, const lt_json_out *text, bool strict) {
    bool right = false;
    const lt_err err = lt_checker_run(checker, text->data != NULL ? text->data : "", text->n,
                                      strict ? LT_ANSWER_STRICT : LT_ANSWER_LENIENT, &right, NULL);
    return err == LT_OK && right;
}

static double score_of(const lt_group *g, lt_reply_choice *c, const candidate *k,
                       const lt_json_out *text) {
    switch (g->score) {
    case MEAN_LOGPROB:
        return mean_logprob(c);
    case LOGPROB:
        return c->logprob_sum;
    case PROBABILITY:
        return exp(mean_logprob(c));
    case CONFIDENCE:
        return lt_confidence_of(&k->confidence);
    case BEAM:
        return c->logprob_sum / pow((double)c->new_tokens, c->reply->params.length_penalty);
    case REWARD: /* Known when the text has been judged. */
    case WINS:
        return 0;
    case CHECK:
        break;
    }
    return takes(g->check, text, c->reply->params.group.strict) ? 1 : 0;
}

/* Which of the group's answers the text gives; a new one if it equals none before. */
static int32_t answer_of(lt_group *g, const lt_json_out *text) {
    size_t begin = 0, end = 0;
    const char *data = text->data != NULL ? text->data : "";
    answer *a = &g->answers[g->n_answers];
    for (int i = 0; i < g->n_answers; i++) {
        if (takes(g->answers[i].checker, text, false)) {
            return i;
        }
    }
    if (lt_answer_find(data, text->n, LT_ANSWER_LENIENT, &begin, &end) == LT_ANSWER_NONE ||
        end == begin || end - begin > ANSWER_MOST ||
        lt_checker_open(&a->checker, g->extract, data + begin, end - begin) != LT_OK) {
        return -1;
    }
    if (!takes(a->checker, text, false)) { /* It is not even equal to itself. */
        lt_checker_close(a->checker);
        *a = (answer){0};
        return -1;
    }
    a->text = malloc(3 * (end - begin) + 1);
    if (a->text != NULL) {
        a->text[lt_utf8_replace_invalid(a->text, data + begin, end - begin)] = '\0';
    }
    return g->n_answers++;
}

/* ---- While it runs ---- */

static void cut(lt_reply_choice *c, candidate *k) {
    k->cut = true;
    c->ended = true;
    c->finish = LT_FINISH_CANCELLED;
    lt_engine_cancel_choice(c->reply->server->engine, c->part->id, c->choice);
}

/* Are all that are left at least this long, or ended? */
static bool all_have(const lt_group *g, const lt_part *p, int64_t tokens) {
    for (int64_t i = 0; i < g->n; i++) {
        const candidate *k = &g->candidates[i];
        if (!k->cut && !k->ended && p->choices[i].new_tokens < tokens) {
            return false;
        }
    }
    return true;
}

typedef struct {
    double score;
    int64_t index;
} ranked;

static int worst_first(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    return x->score != y->score ? (x->score > y->score) - (x->score < y->score)
                                : (x->index < y->index) - (x->index > y->index);
}

/* Speculative rejection (Sun et al. 2024, arXiv:2410.20290): of those that are left, ended ones
 * too, the share `keep` with the best scores at this length goes on, however far each has come
 * since. Of equal scores the later goes. */
static void cut_worst(lt_group *g, lt_part *p) {
    ranked left[MOST];
    const int64_t round = g->next_cut / p->reply->params.group.every;
    int64_t n = 0, n_cut;
    for (int64_t i = 0; i < g->n; i++) {
        candidate *k = &g->candidates[i];
        if (!k->cut) {
            left[n++] = (ranked){k->n_partial >= round ? k->partial[round - 1] : k->score, i};
        }
    }
    n_cut = n - (int64_t)ceil(p->reply->params.group.keep * (double)n);
    qsort(left, (size_t)n, sizeof *left, worst_first);
    for (int64_t i = 0; i < n_cut; i++) {
        candidate *k = &g->candidates[left[i].index];
        if (k->ended) {
            k->cut = true;
        } else {
            cut(&p->choices[left[i].index], k);
        }
    }
}

/* A candidate that was behind may make more than one cut due when it ends. Nothing is cut when no
 * candidate runs any more. */
static void cut_where_due(lt_reply *j) {
    lt_group *g = j->group;
    lt_part *p = &j->parts[0];
    bool running = true;
    while (running && all_have(g, p, g->next_cut)) {
        running = false;
        for (int64_t i = 0; i < g->n; i++) {
            running |= !g->candidates[i].cut && !g->candidates[i].ended;
        }
        if (running) {
            cut_worst(g, p);
            g->next_cut += j->params.group.every;
        }
    }
}

/* False: out of memory; then the candidate's score at its end counts instead. */
static bool keep_partial(candidate *k, double score) {
    double *more = realloc(k->partial, (size_t)(k->n_partial + 1) * sizeof *more);
    if (more == NULL) {
        return false;
    }
    k->partial = more;
    k->partial[k->n_partial++] = score;
    return true;
}

void lt_group_token(lt_reply_choice *c, const lt_event *ev) {
    lt_group *g = c->reply->group;
    candidate *k = &g->candidates[c->choice];
    if (g->score == CONFIDENCE) {
        lt_confidence_add(&k->confidence, ev, c->reply->params.group.window);
    }
    if (!g->method->halves || c->new_tokens % c->reply->params.group.every != 0) {
        return;
    }
    if (keep_partial(k, score_of(g, c, k, NULL))) {
        cut_where_due(c->reply);
    }
}

static bool decided(const lt_group *g) {
    double score[MOST];
    int32_t answers[MOST];
    bool ended[MOST];
    for (int64_t i = 0; i < g->n; i++) {
        score[i] = g->candidates[i].score;
        answers[i] = g->candidates[i].answer;
        ended[i] = g->candidates[i].ended;
    }
    return lt_select_decided(g->rule, &g->o, g->rule->groups && !g->scored ? NULL : score, answers,
                             ended, g->n);
}

/* The candidate's score is known. */
static void settle(lt_reply_choice *c, candidate *k) {
    lt_group *g = c->reply->group;
    k->ended = true;
    if (g->method->halves) {
        cut_where_due(c->reply);
    }
    if (!decided(g)) {
        return;
    }
    for (int64_t i = 0; i < g->n; i++) {
        if (!g->candidates[i].ended && !g->candidates[i].cut) {
            g->stopped_by = g->rule->groups ? "majority" : "accepted";
            cut(&c->part->choices[i], &g->candidates[i]);
        }
    }
}

/* The answer waits until the reward model has judged the text. */
static void begin_to_judge(lt_reply_choice *c, candidate *k, const lt_json_out *text) {
    lt_reply *j = c->reply;
    lt_api_error e = {0};
    if (lt_judge_submit(j, &k->part, text->data != NULL ? text->data : "", text->n, &e)) {
        j->parts_left++;
    } else {
        lt_reply_fail(j, &e);
    }
}

/* All candidates have ended: they meet. */
static void begin_tournament(lt_reply *j) {
    lt_group *g = j->group;
    lt_json_out *texts = calloc((size_t)g->n, sizeof *texts);
    lt_api_error e = {0};
    for (int64_t i = 0; texts != NULL && i < g->n; i++) {
        text_of(&j->parts[0].choices[i], &texts[i]);
    }
    if (texts == NULL ? !lt_api_refuse_oom(&e)
                      : !lt_tournament_open(&g->tournament, j, texts, g->n, &e)) {
        lt_reply_fail(j, &e);
    }
}

static bool all_ended(const lt_group *g) {
    for (int64_t i = 0; i < g->n; i++) {
        if (!g->candidates[i].ended) {
            return false;
        }
    }
    return true;
}

void lt_group_ended(lt_reply_choice *c) {
    lt_group *g = c->reply->group;
    candidate *k = &g->candidates[c->choice];
    lt_json_out text = {0};
    text_of(c, &text);
    k->answer = g->rule->groups ? answer_of(g, &text) : -1;
    if (g->score == REWARD) {
        begin_to_judge(c, k, &text);
    } else {
        k->score = score_of(g, c, k, &text);
        settle(c, k);
    }
    lt_out_free(&text);
    if (g->method->tournament && g->n > 1 && all_ended(g)) {
        begin_tournament(c->reply);
    }
}

static void on_match(lt_part *p, const lt_event *ev) {
    lt_reply *j = p->reply;
    lt_group *g = j->group;
    lt_api_error e = {0};
    const bool over = lt_tournament_event(g->tournament, p, ev, &e);
    if (e.status != 0) {
        lt_reply_fail(j, &e);
    }
    for (int64_t i = 0; over && i < g->n; i++) {
        g->candidates[i].score = (double)lt_tournament_wins(g->tournament, i);
    }
    if (ev->kind == LT_EVENT_DONE) {
        j->server->metrics.judge_tokens += (uint64_t)ev->prompt_tokens;
        lt_reply_let_go(j);
    }
}

void lt_group_judged(lt_part *p, const lt_event *ev) {
    lt_reply *j = p->reply;
    lt_group *g = j->group;
    if (g->tournament != NULL) {
        on_match(p, ev);
        return;
    }
    candidate *k = (candidate *)((char *)p - offsetof(candidate, part));
    if (lt_judge_event(j, ev, &k->score, &g->reward_tokens)) {
        if (!k->cut && j->conn != NULL && !j->failed) {
            settle(&j->parts[0].choices[k - g->candidates], k);
        }
        lt_reply_let_go(j);
    }
}

/* ---- The end ---- */

bool lt_group_keep(lt_reply *j, lt_api_error *e) {
    lt_group *g = j->group;
    double score[MOST], p[MOST];
    int32_t answers[MOST];
    int64_t index[MOST], n = 0, kept = 0;
    lt_metrics *m = &j->server->metrics;
    lt_err err;
    for (int64_t i = 0; i < g->n; i++) {
        if (g->candidates[i].ended && !g->candidates[i].cut) {
            score[n] = g->candidates[i].score;
            answers[n] = g->candidates[i].answer;
            index[n++] = i;
        }
    }
    err = lt_select(g->rule, &g->o, g->rule->groups && !g->scored ? NULL : score, answers, n,
                    g->seed, &g->kept, p);
    if (err != LT_OK) {
        return lt_api_refuse_error(e, "alignment", err);
    }
    for (int64_t i = 0; i < n; i++) {
        g->candidates[index[i]].probability = p[i];
    }
    if (n < g->n) { /* Some were cut, so the probabilities of those left say too little. */
        g->kept.kl = lt_select_kl(g->rule, &g->o, g->n);
    }
    g->kept.chosen = index[g->kept.chosen];
    j->parts[0].choices[g->kept.chosen].index = 0;
    kept = j->parts[0].choices[g->kept.chosen].new_tokens;
    m->group_kept += (uint64_t)kept;
    m->group_dropped += (uint64_t)(lt_reply_new_tokens(j) - kept);
    return true;
}

lt_reply_choice *lt_group_kept(const lt_reply *j) {
    return &j->parts[0].choices[j->group->kept.chosen];
}

static void write_candidate(lt_json_out *o, const lt_reply *j, int64_t i) {
    const lt_group *g = j->group;
    const candidate *k = &g->candidates[i];
    lt_reply_choice *c = &j->parts[0].choices[i];
    lt_json_out text = {0};
    text_of(c, &text);
    lt_out_open(o, '{');
    lt_out_key_int(o, "index", i);
    lt_out_key(o, "text");
    lt_out_str(o, text.data != NULL ? text.data : "", text.n);
    if (k->ended) {
        lt_out_key_real(o, "score", k->score);
    } else {
        lt_out_key_null(o, "score");
    }
    lt_out_key_real(o, "probability", k->probability);
    if (g->rule->groups) {
        lt_out_key_str(o, "answer", k->answer >= 0 ? g->answers[k->answer].text : NULL);
    }
    lt_out_key_int(o, "tokens", c->new_tokens);
    lt_out_key_str(o, "finish_reason", k->cut ? "cut" : lt_finish_openai(c));
    lt_out_shut(o, '}');
    lt_out_free(&text);
}

void lt_group_write(lt_json_out *o, const lt_reply *j) {
    const lt_group *g = j->group;
    const candidate *kept = &g->candidates[g->kept.chosen];
    const int64_t tokens = lt_group_kept(j)->new_tokens;
    int64_t n_cut = 0;
    for (int64_t i = 0; i < g->n; i++) {
        n_cut += g->candidates[i].cut;
    }
    lt_out_key_open(o, "alignment", '{');
    lt_out_key_str(o, "method", g->method->name);
    lt_out_key_str(o, "reward", g->rule->groups && !g->scored ? NULL : scores[g->score].name);
    lt_out_key_int(o, "n", g->n);
    lt_out_key_int(o, "cut", n_cut);
    lt_out_key_str(o, "stopped_by", g->stopped_by);
    lt_out_key_int(o, "chosen", g->kept.chosen);
    lt_out_key_real(o, "score", kept->score);
    lt_out_key_real(o, "probability", g->kept.probability);
    if (g->method->beam) { /* Nothing is drawn. */
        lt_out_key_null(o, "kl_bound");
    } else {
        lt_out_key_real(o, "kl_bound", g->kept.kl);
    }
    if (g->rule->groups) {
        lt_out_key_str(o, "answer", kept->answer >= 0 ? g->answers[kept->answer].text : NULL);
    }
    lt_out_key_open(o, "tokens", '{');
    lt_out_key_int(o, "kept", tokens);
    lt_out_key_int(o, "dropped", lt_reply_new_tokens(j) - tokens);
    if (g->score == REWARD) {
        lt_out_key_int(o, "reward", g->reward_tokens);
    }
    if (g->tournament != NULL) {
        lt_out_key_int(o, "judge", lt_tournament_tokens(g->tournament));
    }
    lt_out_shut(o, '}');
    if (j->params.group.candidates) {
        lt_out_key_open(o, "candidates", '[');
        for (int64_t i = 0; i < g->n; i++) {
            write_candidate(o, j, i);
        }
        lt_out_shut(o, ']');
    }
    lt_out_shut(o, '}');
}
