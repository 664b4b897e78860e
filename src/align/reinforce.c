/* reinforce.c: see reinforce.h. */
#include "align/reinforce.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"

#define QUESTIONS_STREAM 0x726c /* Stream of the seed that gives the seeds of questions. */

int64_t lt_reinforce_steps_a_draw(const lt_reinforce *r) {
    return r->o.updates * r->o.passes;
}

bool lt_reinforce_draws_next(const lt_reinforce *r) {
    return r->within == 0;
}

lt_err lt_reinforce_open(lt_reinforce *r, const lt_reinforce_options *o, lt_problems *problems,
                         lt_rewards *rewards, const lt_answerer *answerer) {
    *r = (lt_reinforce){.o = *o, .problems = problems, .rewards = rewards, .answerer = *answerer};
    if (o->group < 2 || o->group > LT_REINFORCE_GROUP || o->answers < o->group ||
        o->answers % o->group != 0) {
        LT_FAIL(LT_ERR_ARG,
                "%lld answers a step on each rank cannot be divided into groups of %lld; a group "
                "has 2 to %d",
                (long long)o->answers, (long long)o->group, LT_REINFORCE_GROUP);
    }
    LT_ASSERT(o->updates > 0 && o->passes > 0 && problems->n > 0);
    r->n_drawn = o->updates * o->answers;
    r->drawn = calloc((size_t)r->n_drawn, sizeof *r->drawn);
    r->parts = calloc((size_t)lt_rewards_count(rewards), sizeof *r->parts);
    if (r->drawn == NULL || r->parts == NULL) {
        LT_FAIL(LT_ERR_OOM, "%lld answers", (long long)r->n_drawn);
    }
    return LT_OK;
}

/* The result of one call of the engine, before groups with equal rewards, which teach nothing, are
 * removed. */
typedef struct lt_reinforce_round {
    int64_t questions, group, answers;
    bool greedy;
    const lt_problem **problems; /* (answers) of each answer */
    lt_question *asked;          /* (questions) */
    lt_answer *given;            /* (answers) */
    char **texts;                /* (answers) */
    double *rewards, *parts;     /* (answers), (answers, rewards) */
    int64_t first, end;          /* The range of questions that this rank asks. */
    lt_shared_answers shared;    /* Received from other ranks. */
} round_of;

static void round_close(round_of *k) {
    for (int64_t i = 0; i < k->answers && k->texts != NULL; i++) {
        free(k->texts[i]);
    }
    free(k->problems);
    free(k->asked);
    free(k->given);
    free(k->texts);
    free(k->rewards);
    free(k->parts);
    free(k->shared.ids);
    free(k->shared.logp);
}

static void forget_round(lt_reinforce *r) {
    if (r->round != NULL) {
        round_close(r->round);
        free(r->round);
        r->round = NULL;
    }
}

static void forget(lt_drawn *d) {
    free(d->text);
    free(d->old);
    free(d->ref);
    free(d->answer.ids);
    free(d->answer.logp);
    *d = (lt_drawn){0};
}

void lt_reinforce_close(lt_reinforce *r) {
    forget_round(r);
    for (int64_t i = 0; i < r->n_drawn && r->drawn != NULL; i++) {
        forget(&r->drawn[i]);
    }
    free(r->drawn);
    free(r->parts);
    free(r->chosen.problems);
    free(r->chosen.passed);
    *r = (lt_reinforce){0};
}

/* ---- A draw ---- */

static lt_err round_open(round_of *k, const lt_reinforce *r, int64_t questions, int64_t group) {
    const size_t answers = (size_t)(questions * group);
    *k = (round_of){
        .questions = questions,
        .group = group,
        .answers = (int64_t)answers,
        .problems = calloc(answers, sizeof *k->problems),
        .asked = calloc((size_t)questions, sizeof *k->asked),
        .given = calloc(answers, sizeof *k->given),
        .texts = calloc(answers, sizeof *k->texts),
        .rewards = calloc(answers, sizeof *k->rewards),
        .parts = calloc(answers * (size_t)lt_rewards_count(r->rewards), sizeof *k->parts)};
    if (k->problems == NULL || k->asked == NULL || k->given == NULL || k->texts == NULL ||
        k->rewards == NULL || k->parts == NULL) {
        LT_FAIL(LT_ERR_OOM, "a draw of %lld answers", (long long)k->answers);
    }
    return LT_OK;
}

/* The problem that question i of the run asks. */
static const lt_problem *problem_of(const lt_reinforce *r, int64_t i) {
    const uint64_t n = (uint64_t)r->problems->n;
    const uint64_t place = lt_rng_permute((uint64_t)i % n, n, r->o.seed, (uint64_t)i / n);
    return &r->problems->items[place];
}

static uint64_t seed_of(const lt_reinforce *r, int64_t i) {
    lt_rng seeds = {.seed = r->o.seed, .stream = QUESTIONS_STREAM, .position = (uint64_t)i};
    return lt_rng_u64(&seeds);
}

/* Set question i of a round to this problem. */
static void ask(round_of *k, int64_t i, const lt_problem *p, uint64_t seed) {
    k->asked[i] = (lt_question){p->prompt, p->n_prompt, seed};
    for (int64_t c = 0; c < k->group; c++) {
        k->problems[i * k->group + c] = p;
    }
}

/* Read the texts of answers [first, end). */
static lt_err read_texts(const lt_reinforce *r, round_of *k, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++) {
        LT_TRY(lt_answer_text(&k->texts[i], &k->given[i], r->o.tokenizer));
    }
    return LT_OK;
}

static void count_round(const round_of *k, lt_draw_stats *sum) {
    for (int64_t i = 0; i < k->answers; i++) {
        sum->reward += k->rewards[i];
        sum->reward_sq += k->rewards[i] * k->rewards[i];
        sum->tokens += (double)k->given[i].n;
        sum->ended += k->given[i].ended;
    }
    sum->answers += (double)k->answers;
    sum->groups += (double)k->questions;
}

/* Answers to this rank's part of the questions of a round, and their rewards. */
static lt_err run_part(lt_reinforce *r, round_of *k, lt_draw_stats *sum) {
    lt_share_part(r->o.sharers, k->questions, &k->first, &k->end);
    const lt_rollout_args asked = {k->asked + k->first, k->end - k->first, k->group, k->greedy};
    const int64_t at = k->first * k->group, n = asked.n * k->group;
    lt_rollout_stats stats = {0};
    double start_s;
    if (n == 0) {
        return LT_OK;
    }
    LT_TRY(r->answerer.draw(r->answerer.of, &asked, k->given + at, &stats));
    sum->refresh_s += stats.refresh_s;
    sum->draw_s += stats.draw_s;
    start_s = lt_clock_s();
    LT_TRY(read_texts(r, k, at, at + n));
    LT_TRY(lt_rewards_judge(r->rewards, k->problems + at, k->given + at,
                            (const char *const *)k->texts + at, n, k->rewards + at,
                            k->parts + at * lt_rewards_count(r->rewards)));
    sum->judge_s += lt_clock_s() - start_s;
    return LT_OK;
}

/* Exchange the answers and rewards of a round. This rank has its part of them, or failed with err.
 * Adds to *sum. A collective call of the ranks with the same questions. */
static lt_err share_round(lt_reinforce *r, round_of *k, lt_draw_stats *sum, lt_err err) {
    k->shared = (lt_shared_answers){.answers = k->given,
                                    .n = k->answers,
                                    .first = k->first * k->group,
                                    .end = k->end * k->group,
                                    .rewards = k->rewards,
                                    .parts = k->parts,
                                    .n_parts = lt_rewards_count(r->rewards)};
    LT_TRY(lt_share_answers(r->o.sharers, &k->shared, err));
    LT_TRY(read_texts(r, k, 0, k->shared.first));
    LT_TRY(read_texts(r, k, k->shared.end, k->answers));
    count_round(k, sum);
    return LT_OK;
}

/* Copy the numbers of an answer that are needed after the engine's are freed. */
static lt_err keep_answer(lt_drawn *d, round_of *k, int64_t i, double advantage) {
    const lt_answer *a = &k->given[i];
    const size_t n = (size_t)a->n;
    forget(d);
    *d = (lt_drawn){.problem = k->problems[i],
                    .answer = {.n = a->n, .ended = a->ended},
                    .reward = k->rewards[i],
                    .advantage = advantage,
                    .text = k->texts[i]};
    k->texts[i] = NULL;
    d->answer.ids = malloc(n * sizeof *d->answer.ids);
    d->answer.logp = malloc(n * sizeof *d->answer.logp);
    if (d->answer.ids == NULL || d->answer.logp == NULL) {
        LT_FAIL(LT_ERR_OOM, "an answer of %zu tokens", n);
    }
    memcpy(d->answer.ids, a->ids, n * sizeof *a->ids);
    memcpy(d->answer.logp, a->logp, n * sizeof *a->logp);
    return LT_OK;
}

/* Move the groups of a round into the draw, starting at answer *have. Groups that teach nothing are
 * moved only in the last round. */
static lt_err take_groups(lt_reinforce *r, round_of *k, bool last, int64_t *have) {
    const int64_t group = r->o.group;
    for (int64_t g = 0; g < k->questions; g++) {
        double advantages[LT_REINFORCE_GROUP];
        bool same;
        LT_TRY(
            lt_align_advantages(r->o.advantage, k->rewards + g * group, group, advantages, &same));
        r->draw.equal += same;
        if (same && !last) {
            continue;
        }
        for (int64_t c = 0; c < group; c++) {
            LT_TRY(keep_answer(&r->drawn[*have + c], k, g * group + c, advantages[c]));
        }
        *have += group;
    }
    return LT_OK;
}

/* Make room for n more questions of a draw. */
static lt_err reserve_chosen(lt_reinforce *r, int64_t n) {
    const int64_t room = r->chosen.n + n;
    int64_t *problems;
    double *passed;
    if (room <= r->chosen.room) {
        return LT_OK;
    }
    problems = realloc(r->chosen.problems, (size_t)room * sizeof *problems);
    r->chosen.problems = problems != NULL ? problems : r->chosen.problems;
    passed = realloc(r->chosen.passed, (size_t)room * sizeof *passed);
    r->chosen.passed = passed != NULL ? passed : r->chosen.passed;
    if (problems == NULL || passed == NULL) {
        LT_FAIL(LT_ERR_OOM, "%lld questions", (long long)room);
    }
    r->chosen.room = room;
    return LT_OK;
}

/* The curriculum chooses the questions of a round, in the same way on all ranks. */
static lt_err choose_problems(lt_reinforce *r, int64_t questions) {
    const int64_t n = questions * r->o.ranks, at = r->chosen.n;
    if (r->curriculum == NULL) {
        return LT_OK;
    }
    LT_TRY(reserve_chosen(r, n));
    LT_TRY(lt_curriculum_pick(r->curriculum, r->done, r->asked * r->o.ranks, n,
                              r->chosen.problems + at));
    memset(r->chosen.passed + at, 0, (size_t)n * sizeof *r->chosen.passed);
    r->chosen.n += n;
    return LT_OK;
}

/* Index in r->chosen of question i of this rank in the newest round, which has n questions. */
static int64_t chosen_at(const lt_reinforce *r, int64_t i, int64_t n) {
    return r->chosen.n - (n - i) * r->o.ranks + r->o.rank;
}

static void count_passed(lt_reinforce *r, const round_of *k) {
    for (int64_t i = 0; r->curriculum != NULL && i < k->answers; i++) {
        r->chosen.passed[chosen_at(r, i / k->group, k->questions)] += k->rewards[i] >=
                                                                      r->curriculum->o.pass;
    }
}

void lt_reinforce_learn_rates(lt_reinforce *r) {
    for (int64_t i = 0; i < r->chosen.n; i++) {
        lt_curriculum_learn(r->curriculum, r->chosen.problems[i], r->chosen.passed[i],
                            (double)r->o.group);
    }
}

/* Ask as many questions as there are missing groups. */
static lt_err ask_round(lt_reinforce *r, round_of *k, int64_t have) {
    LT_TRY(round_open(k, r, (r->n_drawn - have) / r->o.group, r->o.group));
    LT_TRY(choose_problems(r, k->questions));
    for (int64_t i = 0; i < k->questions; i++, r->asked++) {
        const int64_t which = r->asked * r->o.ranks + r->o.rank;
        ask(k, i,
            r->curriculum == NULL
                ? problem_of(r, which)
                : &r->problems->items[r->chosen.problems[chosen_at(r, i, k->questions)]],
            seed_of(r, which));
    }
    return run_part(r, k, &r->draw);
}

/* Take the answers of a round; err: the result of asking. */
static lt_err take_round(lt_reinforce *r, round_of *k, bool last, int64_t *have, lt_err err) {
    const int n = lt_rewards_count(r->rewards);
    LT_TRY(share_round(r, k, &r->draw, err));
    count_passed(r, k);
    for (int64_t i = 0; i < k->answers * n; i++) {
        r->parts[i % n] += k->parts[i];
    }
    return take_groups(r, k, last, have);
}

lt_err lt_reinforce_draw_own(lt_reinforce *r) {
    LT_ASSERT(lt_reinforce_draws_next(r) && r->round == NULL);
    r->draw = (lt_draw_stats){0};
    r->chosen.n = 0;
    if (r->curriculum != NULL) {
        lt_curriculum_begin(r->curriculum);
    }
    memset(r->parts, 0, (size_t)lt_rewards_count(r->rewards) * sizeof *r->parts);
    r->round = calloc(1, sizeof *r->round);
    if (r->round == NULL) {
        LT_FAIL(LT_ERR_OOM, "a draw");
    }
    return ask_round(r, r->round, 0);
}

lt_err lt_reinforce_draw_others(lt_reinforce *r, lt_err err) {
    int64_t have = 0;
    if (r->round == NULL) { /* The others wait until the deadline of the call. */
        return err;
    }
    err = take_round(r, r->round, r->o.resample == 0, &have, err);
    for (int64_t round = 1; err == LT_OK && have < r->n_drawn; round++) {
        round_close(r->round);
        err = ask_round(r, r->round, have);
        err = take_round(r, r->round, round == r->o.resample, &have, err);
    }
    for (int i = 0; err == LT_OK && i < lt_rewards_count(r->rewards); i++) {
        r->parts[i] /= r->draw.answers;
    }
    forget_round(r);
    return err;
}

lt_err lt_reinforce_draw(lt_reinforce *r) {
    return lt_reinforce_draw_others(r, lt_reinforce_draw_own(r));
}

lt_err lt_reinforce_evaluate(lt_reinforce *r, const lt_problems *problems, int64_t most,
                             lt_draw_stats *out) {
    const int64_t n = most < problems->n ? most : problems->n;
    const int64_t all = (n - r->o.rank + r->o.ranks - 1) / r->o.ranks; /* Questions of this rank. */
    const int64_t at_once = r->n_drawn / r->o.group;
    lt_err err = LT_OK;
    *out = (lt_draw_stats){0};
    for (int64_t first = 0; first < all && err == LT_OK; first += at_once) {
        round_of k = {0};
        err = round_open(&k, r, all - first < at_once ? all - first : at_once, 1);
        for (int64_t i = 0; err == LT_OK && i < k.questions; i++) {
            ask(&k, i, &problems->items[(first + i) * r->o.ranks + r->o.rank], 0);
        }
        k.greedy = true;
        err = err == LT_OK ? share_round(r, &k, out, run_part(r, &k, out)) : err;
        round_close(&k);
    }
    return err;
}

/* ---- A step ---- */

lt_drawn *lt_reinforce_answer(const lt_reinforce *r, int64_t i) {
    LT_ASSERT(i >= 0 && i < r->o.answers);
    return &r->drawn[r->within % r->o.updates * r->o.answers + i];
}

void lt_reinforce_row(const lt_drawn *d, const lt_batch *to, int64_t row) {
    const lt_problem *p = d->problem;
    const int64_t n = p->n_prompt + d->answer.n, at = row * to->seq;
    LT_ASSERT(n <= to->seq + 1);
    for (int64_t i = 0; i < to->seq; i++) {
        const int64_t next = i + 1 - p->n_prompt; /* Index within the answer. */
        to->tokens[at + i] = i < p->n_prompt ? p->prompt[i] : i < n ? d->answer.ids[next - 1] : 0;
        to->labels[at + i] = next >= 0 && next < d->answer.n ? d->answer.ids[next] : -1;
        to->doc_start[at + i] = 0;
        to->positions[at + i] = (int32_t)i;
    }
}

/* Number of an answer's tokens from which the model learns. */
static int64_t learnt(const lt_reinforce *r, const lt_drawn *d) {
    return r->o.drop_cut && !d->answer.ended ? 0 : d->answer.n;
}

int64_t lt_reinforce_tokens(const lt_reinforce *r) {
    int64_t tokens = 0;
    for (int64_t i = 0; i < r->o.answers; i++) {
        tokens += learnt(r, lt_reinforce_answer(r, i));
    }
    return tokens;
}

void lt_reinforce_end(lt_reinforce *r) {
    r->within = (r->within + 1) % lt_reinforce_steps_a_draw(r);
}

/* The largest difference between the engine's log-probabilities and the trainer's under the same
 * weights. */
static double mismatch_of(const lt_drawn *d, const float *logp) {
    double most = 0.0;
    for (int64_t t = 0; t < d->answer.n; t++) {
        most = fmax(most, fabs((double)logp[t] - (double)d->answer.logp[t]));
    }
    return most;
}

/* The values of the answer's tokens in its row. */
static const float *of_answer(const lt_drawn *d, const float *logp) {
    return logp + d->problem->n_prompt - 1;
}

/* Rounding may put the logarithm of a certain token above 0. */
static lt_err copy_logp(float **out, const float *from, const lt_drawn *d) {
    float *to = malloc((size_t)d->answer.n * sizeof *to);
    if (to == NULL) {
        LT_FAIL(LT_ERR_OOM, "log-probabilities of %lld tokens", (long long)d->answer.n);
    }
    for (int64_t t = 0; t < d->answer.n; t++) {
        to[t] = from[t] < 0.0f ? from[t] : 0.0f;
    }
    free(*out);
    *out = to;
    return LT_OK;
}

lt_err lt_reinforce_keep_old(lt_reinforce *r, lt_drawn *d, const float *logp) {
    LT_TRY(copy_logp(&d->old, of_answer(d, logp), d));
    r->draw.mismatch_most = fmax(r->draw.mismatch_most, mismatch_of(d, d->old));
    return LT_OK;
}

lt_err lt_reinforce_keep_ref(lt_drawn *d, const float *logp) {
    return copy_logp(&d->ref, of_answer(d, logp), d);
}

lt_err lt_reinforce_set_ref(lt_drawn *d, const float *logp) {
    return copy_logp(&d->ref, logp, d);
}

/* One answer in the form of lt_align_policy. */
static lt_align_rollout rollout_of(const lt_reinforce *r, const lt_drawn *d, const float *logp,
                                   double *dlogp) {
    return (lt_align_rollout){
        .logp = logp,
        .old = d->old,
        .ref = d->ref,
        .sampler = r->o.policy.correction != LT_ALIGN_NO_CORRECTION ? d->answer.logp : NULL,
        .dlogp = dlogp,
        .n = learnt(r, d),
        .advantage = d->advantage};
}

lt_err lt_reinforce_loss(const lt_reinforce *r, const lt_drawn *d, const float *logp, float *dlogp,
                         double *loss, lt_learn_stats *stats) {
    const int64_t n = d->answer.n;
    lt_align_policy_stats unused = {0};
    double *slopes = calloc((size_t)n, sizeof *slopes), part = 0.0;
    float *own = NULL;
    lt_err err = LT_OK;
    if (slopes == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "gradients of %lld tokens", (long long)n);
    }
    LT_TRY_DONE(copy_logp(&own, of_answer(d, logp), d));
    const lt_align_rollout one = rollout_of(r, d, own, slopes);
    LT_TRY_DONE(lt_align_policy(&r->o.policy, &r->step, &one, 1, &part,
                                dlogp != NULL ? &stats->policy : &unused));
    *loss += part;
    if (dlogp == NULL) {
        goto done;
    }
    for (int64_t t = 0; t < one.n; t++) {
        dlogp[d->problem->n_prompt - 1 + t] = (float)slopes[t];
        stats->entropy_sum -= (double)own[t];
    }
    if (d->old == NULL) { /* The weights are those that drew. */
        stats->mismatch_most = fmax(stats->mismatch_most, mismatch_of(d, own));
    }
done:
    free(slopes);
    free(own);
    return err;
}
