/* group_read.c: reads the field "alignment" of a request: its tables, and the fields that each
 * method reads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/option.h"
#include "model/infer/steering.h"
#include "serve/api/align/blocks.h"
#include "serve/api/align/group_impl.h"
#include "serve/api/align/guide.h"
#include "serve/api/align/judge.h"

/* With a larger value, more than LT_GROUP_MOST candidates have a probability under 1e-12. */
#define MU_MOST 64

static const lt_field fields[] = {
    LT_STR("method", group.method),
    LT_I64("n", group.n, 1, LT_GROUP_MOST),
    LT_F64("temperature", group.temperature, 0, 1e300),
    LT_F64("mu", group.mu, 0, MU_MOST),
    LT_F64("threshold", group.threshold, -1e300, 1e300),
    LT_F64("tail", group.tail, 0, 1),
    LT_F64("half_tail", group.half_tail, 0, 1e300),
    LT_JSON("reward", group.reward),
    LT_STR("extract", group.extract),
    LT_STR("aggregate", group.aggregate),
    LT_F64("keep", group.keep, 0, 1),
    LT_I64("every", group.every, 1, 1e9),
    LT_I64("width", group.width, 1, LT_GROUP_MOST),
    LT_I64("window", group.window, 1, 1e9),
    LT_I64("warmup", group.warmup, 1, LT_GROUP_MOST),
    LT_F64("eta", group.eta, 0, 1),
    LT_F64("tau", group.tau, 0, 1),
    LT_I64("round", group.round, 1, LT_GROUP_MOST),
    LT_I64("seed", group.seed, -0x1p63, 0x1p63),
    LT_BOOL("return_candidates", group.candidates),
    LT_BOOL("return_confidence", group.confidences),
    LT_JSON("border", group.border),
    LT_F64("length_penalty", length_penalty, -LT_BEAM_PENALTY, LT_BEAM_PENALTY),
    LT_JSON("early_stopping", early_stopping),
    LT_STR("vector", vector),
    LT_F64("scale", scale, -LT_STEERING_SCALE, LT_STEERING_SCALE),
    LT_JSON("negative", negative),
    LT_STR("criterion", criterion),
    LT_STR("amateur", amateur),
    LT_STR("expert", expert),
    LT_STR("anti", anti),
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

static const lt_group_method methods[] = {
    {.name = "best_of_n"},
    {.name = "soft_best_of_n"},
    {.name = "best_of_poisson"},
    {.name = "best_of_tails"},
    {.name = "rejection"},
    {.name = "self_consistency"},
    {.name = "speculative_rejection", .rule = "best_of_n", .halves = true},
    {.name = "deepconf", .rule = "self_consistency", .confidence = true},
    {.name = "beam", .rule = "best_of_n", .beam = true},
    {.name = "tournament", .rule = "best_of_n", .tournament = true},
    {.name = "blockwise", .guide = lt_blocks_read},
    {.name = "watermark", .guide = lt_guide_watermark},
    {.name = "steer", .guide = lt_guide_steer},
    {.name = "guidance", .guide = lt_guide_negative},
    {.name = "contrastive", .guide = lt_guide_contrastive},
    {.name = "dexperts", .guide = lt_guide_experts},
    {.name = "proxy_tuning", .guide = lt_guide_experts},
};

const lt_group_score_row lt_group_scores[] = {
    [LT_SCORE_MEAN_LOGPROB] = {"mean_logprob", 0, false},
    [LT_SCORE_LOGPROB] = {"logprob", 0, false},
    [LT_SCORE_PROBABILITY] = {"probability", 0, true},
    [LT_SCORE_CONFIDENCE] = {"confidence", LT_ENGINE_TOP, true},
    [LT_SCORE_REWARD] = {"reward", 0, false},
    [LT_SCORE_CHECK] = {"check", 0, true},
    [LT_SCORE_BEAM] = {"beam", 0, false},
    [LT_SCORE_WINS] = {"wins", 0, false}};

/* ---- The request ---- */

/* The method that the request names; NULL: it is refused. */
static const lt_group_method *find_method(const lt_api_params *a, lt_api_error *e) {
    const char *name = a->group.method;
    return lt_api_params_row(name, "alignment.method", methods, sizeof *methods,
                             sizeof methods / sizeof *methods, e);
}

/* "reward": the name of a score, or {"check": kind, "answer": text}: 1 if the checker accepts the
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
    for (int i = 0; name != NULL && i < LT_SCORE_CHECK; i++) {
        if (strcmp(lt_group_scores[i].name, name) == 0) {
            g->score = (lt_group_score)i;
            return i != LT_SCORE_REWARD || lt_judge_read(j, e);
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
    g->score = LT_SCORE_CHECK;
    return true;
}

/* The score of a method that takes no reward, else the usual one. */
static lt_group_score own_score(const lt_group_method *m) {
    return m->beam         ? LT_SCORE_BEAM
           : m->tournament ? LT_SCORE_WINS
           : m->confidence ? LT_SCORE_CONFIDENCE
                           : LT_SCORE_MEAN_LOGPROB;
}

static bool judges_steps(const lt_group *g, const lt_reply *j) {
    return g->score == LT_SCORE_REWARD && lt_judge_has_steps(j->server);
}

static bool check_fields_of(const lt_group *g, const lt_reply *j, lt_api_error *e) {
    const lt_api_params *a = &j->params;
    const unsigned rule = g->rule->reads;
    const bool steps = judges_steps(g, j);
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
              {"warmup", g->method->confidence, false},
              {"eta", g->method->confidence, false},
              {"tau", g->method->confidence, false},
              {"round", g->method->confidence, false},
              {"keep", g->method->halves, false},
              {"every", g->method->halves, false},
              {"window", g->score == LT_SCORE_CONFIDENCE, false},
              {"length_penalty", g->method->beam, false},
              {"early_stopping", g->method->beam, false},
              {"criterion", g->method->tournament, false},
              {"aggregate", steps, false},
              {"border", steps, false},
              {"reward", own_score(g->method) == LT_SCORE_MEAN_LOGPROB, false},
              {"seed", !g->method->beam, false},
              {"return_candidates", true, false},
              {"return_confidence", !g->method->beam, false}};
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
    snprintf(by, sizeof by, "method %s and reward %s", g->method->name,
             lt_group_scores[g->score].name);
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
        if (g->score != LT_SCORE_PROBABILITY && g->score != LT_SCORE_CHECK && !judges_steps(g, j)) {
            return lt_api_refuse(e, "alignment.reward",
                                 "method best_of_tails needs a reward in [0, 1]: probability, a "
                                 "check, or a process reward model");
        }
    }
    if (g->rule->groups && g->scored && !lt_group_scores[g->score].positive &&
        !judges_steps(g, j)) {
        return lt_api_refuse(e, "alignment.reward",
                             "'alignment.reward' = %s may be negative, so it cannot weigh votes; "
                             "probability, confidence and checks can",
                             lt_group_scores[g->score].name);
    }
    if (g->method->halves && a->group.keep <= 0) {
        return lt_api_refuse(e, "alignment.keep", "'alignment.keep' is 0: none would be left");
    }
    if (g->method->halves && g->score == LT_SCORE_CHECK) {
        return lt_api_refuse(e, "alignment.reward",
                             "method speculative_rejection scores texts before their end; checks "
                             "judge whole texts");
    }
    if (g->method->confidence && a->group.eta <= 0) {
        return lt_api_refuse(e, "alignment.eta", "'alignment.eta' is 0: no candidate would vote");
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
    g->score = own_score(g->method);
    g->scored = g->method->confidence;
    if (g->method->tournament && !lt_tournament_check(j, e)) {
        return false;
    }
    return read_reward(g, j, e) && check_fields_of(g, j, e) && read_extract(g, a, e) &&
           read_options(g, j, e);
}

bool lt_group_read(lt_reply *j, lt_api_error *e) {
    lt_request *r = &j->request;
    const lt_group_method *m;
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
    g->n = g->n < LT_GROUP_MOST ? g->n : LT_GROUP_MOST;
    g->next_cut = j->params.group.every;
    g->until = m->confidence && j->params.group.warmup < g->n ? j->params.group.warmup : g->n;
    g->least = -INFINITY;
    g->stopped_by = "end";
    g->candidates = calloc((size_t)g->n, sizeof *g->candidates);
    g->answers = calloc((size_t)g->n, sizeof *g->answers);
    if (g->candidates == NULL || g->answers == NULL) {
        return lt_api_refuse_oom(e);
    }
    for (int64_t i = 0; i < g->n; i++) {
        g->candidates[i].answer = -1;
        g->candidates[i].whole.of = &g->candidates[i];
    }
    r->n_choices = g->n;
    if (m->beam && !lt_guide_set_beam(j, "method beam", e)) {
        return false;
    }
    if (j->params.group.confidences) {
        j->params.group.candidates = true;
        r->logprobs = LT_ENGINE_TOP;
    }
    r->logprobs = r->logprobs > lt_group_scores[g->score].top ? r->logprobs
                                                              : lt_group_scores[g->score].top;
    return true;
}
