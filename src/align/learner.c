/* learner.c: see learner.h. */
#include "align/learner.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/thread.h"

/* ---- Opening ---- */

static lt_err read_mixture(lt_learner *l, lt_problems *out, lt_mixture *m, const char *paths,
                           const char *option) {
    const lt_recipe *r = &l->t->recipe;
    const lt_problems_options o = {.source = &l->t->chat,
                                   .longest = r->seq - r->rl_tokens,
                                   .bad_rows = (lt_bad_rows)r->bad_rows,
                                   .too_long = (lt_too_long)r->too_long};
    LT_TRY(lt_mixture_parse(m, paths, option));
    for (int64_t i = 0; i < m->n_sources; i++) {
        const lt_loader_source *s = &m->sources[i];
        if (s->weight != 1.0) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "%s:%g: weights with reinforcement learning: not supported",
                    s->path, s->weight);
        }
        LT_TRY(lt_problems_read(out, s->path, &o));
    }
    lt_log_info("%s: %" PRId64 " problems, %" PRId64 " left out", option, out->n, out->left_out);
    return LT_OK;
}

static lt_err read_problems(lt_learner *l) {
    lt_training *t = l->t;
    const lt_recipe *r = &t->recipe;
    if (t->chat.template == NULL) {
        LT_FAIL(LT_ERR_ARG, "%s: problems are JSON lines, in files named .jsonl", r->train);
    }
    LT_TRY(read_mixture(l, &l->problems, &t->train_mixture, r->train, "data.train"));
    return r->valid[0] == '\0'
               ? LT_OK
               : read_mixture(l, &l->held_out, &t->valid_mixture, r->valid, "data.valid");
}

/* The reference: the model with which the run began. If the run trains adapters, it is the base
 * model with them switched off. */
static lt_err open_reference(lt_learner *l) {
    lt_training *t = l->t;
    const lt_model_options how = {.dtype = t->model->options.dtype, .device = t->device};
    if (t->recipe.rl_kl <= 0.0 || t->lora != NULL) {
        return LT_OK;
    }
    LT_TRY(lt_model_open(&l->reference, t->recipe.init, &how));
    LT_TRY(lt_objective_open_beside(t, &l->reference_pass, l->reference, true));
    lt_pass_set_temperature(l->reference_pass, (float)t->recipe.rl_temperature);
    return LT_OK;
}

static lt_err open_engine(lt_learner *l, const lt_reinforce_options *o) {
    const lt_model *whole;
    if (l->answerer.draw != NULL) {
        return LT_OK;
    }
    LT_TRY(lt_objective_open_whole(l->t, l->t->recipe.rl_staleness > 0, &whole));
    LT_TRY(lt_rollouts_open(&l->rollouts, whole,
                            &(lt_rollout_options){.max_tokens = o->max_tokens,
                                                  .max_seq = o->max_seq,
                                                  .questions = o->updates * o->answers / o->group,
                                                  .running = o->running,
                                                  .temperature = l->t->recipe.rl_temperature,
                                                  .ends = o->ends,
                                                  .exact = o->exact,
                                                  .tp = lt_training_tp(l->t)}));
    lt_objective_opened_whole(l->t);
    l->answerer = (lt_answerer){l->rollouts, lt_rollouts_draw};
    if (l->t->device->backend->host_memory) {
        l->t->objective_bytes += lt_rollouts_cache_bytes(l->rollouts);
    }
    return LT_OK;
}

static lt_err open_rewards(lt_learner *l, const lt_reinforce_options *o) {
    const lt_recipe *r = &l->t->recipe;
    const lt_reward_options how = {.sum = r->rl_rewards,
                                   .command = r->rl_command,
                                   .command_limit_s = r->rl_command_limit,
                                   .max_tokens = o->max_tokens,
                                   .soft_tokens = r->rl_soft,
                                   .model = r->rl_reward_model,
                                   .device = l->t->device,
                                   .longest = 2 * r->seq,
                                   .tests = {.kind = (lt_sandbox_kind)r->rl_sandbox,
                                             .limit_s = r->rl_test_limit,
                                             .memory_bytes = r->rl_test_memory << 20,
                                             .parallel = r->rl_test_parallel > 0
                                                             ? (int)r->rl_test_parallel
                                                             : lt_thread_count(),
                                             .program = "/proc/self/exe"},
                                   .tokenizer = o->tokenizer};
    const lt_err err = lt_rewards_open(&l->rewards, &how);
    if (err != LT_OK) {
        return lt_error_prefix(err, "rl.rewards");
    }
    l->t->objective_bytes += lt_rewards_bytes(l->rewards);
    LT_TRY(lt_rewards_check(l->rewards, &l->problems));
    return lt_rewards_check(l->rewards, &l->held_out);
}

/* Lay answers out in the rows for validation, which reinforcement learning does not use. */

/* Lay answers out in the rows meant for validation, which reinforcement learning does not use. */
static const lt_row_batch *lay_out(lt_learner *l, const lt_drawn *all, int64_t n) {
    const lt_row_batch *rows = &l->t->valid_rows.batch;
    LT_ASSERT(n <= l->t->micro);
    for (int64_t i = 0; i < n; i++) {
        lt_reinforce_row(&all[i], &rows->ids, i);
    }
    return rows;
}

/* Log-probabilities of n answers under the weights that drew them, computed by the run's own
 * pass. */
static lt_err score_old(lt_learner *l, lt_drawn *all, int64_t n) {
    const float *values;
    int64_t seq;
    LT_TRY(lt_objective_values(l->t, lay_out(l, all, n), 0, n, &values, &seq));
    for (int64_t i = 0; i < n; i++) {
        LT_TRY(lt_reinforce_keep_old(&l->r, &all[i], values + i * seq));
    }
    return LT_OK;
}

/* The same under the reference: a second model, which this rank runs alone, or the run's own pass
 * with the adapters switched off. */
static lt_err score_reference(lt_learner *l, lt_drawn *all, int64_t n) {
    lt_training *t = l->t;
    const lt_row_batch *rows = lay_out(l, all, n);
    const lt_batch *b = &rows->ids;
    const lt_pass_batch batch = {
        .batch = n, .seq = b->seq, .tokens = b->tokens, .labels = b->labels};
    const float *values = t->objective_room.values;
    int64_t seq = b->seq;
    lt_err err;
    if (l->reference_pass != NULL) {
        err = lt_pass_logprobs(l->reference_pass, 0, &batch, t->objective_room.values);
    } else {
        lt_training_use_adapters(t, false);
        err = lt_objective_values(t, rows, 0, n, &values, &seq);
        lt_training_use_adapters(t, true);
    }
    for (int64_t i = 0; err == LT_OK && i < n; i++) {
        err = lt_reinforce_keep_ref(&all[i], values + i * seq);
    }
    return err;
}

/* One of these for answers [first, end) of the draw. */
static lt_err score(lt_learner *l, int64_t first, int64_t end,
                    lt_err (*some)(lt_learner *l, lt_drawn *all, int64_t n)) {
    const int64_t micro = l->t->micro;
    for (int64_t at = first; at < end; at += micro) {
        LT_TRY(some(l, &l->r.drawn[at], end - at < micro ? end - at : micro));
    }
    return LT_OK;
}

/* All ranks with the same rows hold the second model, and each scores a part of the answers. */
static lt_err share_reference(lt_learner *l) {
    lt_reinforce *r = &l->r;
    int64_t first, end, total = 0;
    float *all;
    lt_err err = LT_OK;
    lt_share_part(r->o.sharers, r->n_drawn, &first, &end);
    LT_TRY(score(l, first, end, score_reference));
    if (r->o.sharers == NULL) {
        return LT_OK;
    }
    for (int64_t i = 0; i < r->n_drawn; i++) {
        total += r->drawn[i].answer.n;
    }
    all = calloc((size_t)total + 1, sizeof *all);
    if (all == NULL) {
        LT_FAIL(LT_ERR_OOM, "log-probabilities of %" PRId64 " tokens", total);
    }
    for (int64_t i = 0, at = 0; i < end; at += r->drawn[i++].answer.n) {
        if (i >= first) {
            memcpy(all + at, r->drawn[i].ref, (size_t)r->drawn[i].answer.n * sizeof *all);
        }
    }
    err = lt_share_words(r->o.sharers, all, total);
    for (int64_t i = 0, at = 0; err == LT_OK && i < r->n_drawn; at += r->drawn[i++].answer.n) {
        err = lt_reinforce_set_ref(&r->drawn[i], all + at);
    }
    free(all);
    return err;
}

/* Log a group of answers, and the means of the draw's rewards. */
static lt_err tell_answers(const lt_learner *l) {
    const lt_drawn *first = l->r.drawn;
    json_t *answers = json_array(), *means = json_object();
    for (int64_t i = 0; i < l->r.o.group; i++) {
        json_array_append_new(
            answers, json_pack("{s:s, s:f}", "text", first[i].text, "reward", first[i].reward));
    }
    for (int i = 0; i < lt_rewards_count(l->rewards); i++) {
        json_object_set_new(means, lt_rewards_name(l->rewards, i), json_real(l->r.parts[i]));
    }
    return lt_metrics_put(
        &l->t->metrics,
        json_pack("{s:s, s:I, s:s, s:I, s:o, s:o}", "kind", "answers", "step",
                  (json_int_t)(l->t->state.step + 1), "file", first->problem->path, "line",
                  (json_int_t)first->problem->line_number, "rewards", means, "answers", answers));
}

/* Get the answers of this step: those drawn ahead, or draw them now. */
static lt_err draw_answers(lt_learner *l) {
    const double start_s = lt_clock_s();
    double brought_s;
    if (l->ahead.pending) {
        return lt_ahead_take(&l->ahead, &l->r);
    }
    LT_TRY(lt_objective_bring_whole(l->t));
    brought_s = lt_clock_s() - start_s;
    LT_TRY(lt_reinforce_draw(&l->r));
    l->r.draw.refresh_s += brought_s;
    return LT_OK;
}

/* Draw the answers of the next draw ahead, with the weights at the beginning of these steps; not if
 * a checkpoint is due after one of the steps. */
static lt_err draw_ahead(lt_learner *l) {
    const lt_recipe *r = &l->t->recipe;
    const int64_t before = l->t->state.step, end = before + lt_reinforce_steps_a_draw(&l->r);
    if (r->rl_staleness == 0 || end >= r->steps || end / r->save_every > before / r->save_every) {
        return LT_OK;
    }
    LT_TRY(lt_objective_bring_whole(l->t));
    return lt_ahead_begin(&l->ahead, &l->r);
}

/* Sum the counts of passed answers over all ranks. */
static lt_err learn_rates(lt_learner *l) {
    lt_reinforce *r = &l->r;
    if (r->curriculum == NULL) {
        return LT_OK;
    }
    LT_TRY(lt_objective_sum(l->t, r->chosen.passed, r->chosen.n));
    lt_reinforce_learn_rates(r);
    return LT_OK;
}

static lt_err draw(lt_learner *l) {
    lt_reinforce *r = &l->r;
    const bool old = lt_reinforce_steps_a_draw(r) > 1, reference = r->o.policy.kl > 0.0;
    const int64_t step = l->t->state.step + 1, every = l->t->recipe.sample_every;
    r->done = step - 1;
    LT_TRY(draw_answers(l));
    LT_TRY(old ? score(l, 0, r->n_drawn, score_old) : LT_OK);
    if (reference) {
        LT_TRY(l->reference_pass != NULL ? share_reference(l)
                                         : score(l, 0, r->n_drawn, score_reference));
    }
    return step == 1 || (every > 0 && step % every == 0) ? tell_answers(l) : LT_OK;
}

/* Sum over all ranks, and find whether one of them has failed; `err` is this rank's result. The
 * sums of a draw are the first members of lt_draw_stats. */
static lt_err sum_over_ranks(lt_learner *l, bool drew, lt_err err) {
    lt_reinforce *r = &l->r;
    double all[LT_DRAW_SUMS + 2] = {0};
    double *const sums = &r->draw.answers;
    lt_failure own;
    lt_failure_keep(&own, err);
    if (drew) {
        memcpy(all, sums, LT_DRAW_SUMS * sizeof *all);
    }
    all[LT_DRAW_SUMS] = err == LT_OK ? (double)lt_reinforce_tokens(r) : 0.0;
    all[LT_DRAW_SUMS + 1] = err != LT_OK;
    LT_TRY(lt_objective_sum(l->t, all, LT_DRAW_SUMS + 2));
    if (err != LT_OK) {
        return lt_failure_raise(&own);
    }
    if (all[LT_DRAW_SUMS + 1] > 0.0) {
        LT_FAIL(LT_ERR_REMOTE, "another rank could not draw its answers");
    }
    if (drew) {
        memcpy(sums, all, LT_DRAW_SUMS * sizeof *all);
    }
    r->step = (lt_align_step){.completions = r->o.answers * r->o.ranks,
                              .tokens = (int64_t)all[LT_DRAW_SUMS]};
    return LT_OK;
}

static void warn_of_equal(const lt_learner *l) {
    const lt_draw_stats *d = &l->r.draw;
    if (d->equal >= d->groups) {
        lt_log_warn(
            "step %" PRId64
            ": in each of the %.0f groups all rewards are equal: these answers teach nothing",
            l->t->state.step + 1, d->groups);
    }
}

static lt_err next(void *of, int64_t n, lt_row_batch *out) {
    lt_learner *l = of;
    bool draws;
    LT_ASSERT(n == l->r.o.answers);
    if (l->began) {
        lt_reinforce_end(&l->r);
    }
    l->began = true;
    draws = lt_reinforce_draws_next(&l->r);
    LT_TRY(sum_over_ranks(l, draws, draws ? draw(l) : LT_OK));
    if (draws) {
        warn_of_equal(l);
        LT_TRY(learn_rates(l));
        LT_TRY(draw_ahead(l));
    }
    for (int64_t i = 0; i < n; i++) {
        out->index[i] = i;
        lt_reinforce_row(lt_reinforce_answer(&l->r, i), &out->ids, i);
    }
    return LT_OK;
}

/* The place counts the questions of all ranks, so that a run can resume with another number of
 * them. */
static void place(const void *of, lt_row_place *out) {
    const lt_reinforce *r = &((const lt_learner *)of)->r;
    out->row = r->asked * r->o.ranks;
}

static json_t *print(const void *of, const lt_row_place *p) {
    const lt_reinforce *r = &((const lt_learner *)of)->r;
    return json_pack("{s:I, s:o*}", "asked", (json_int_t)p->row, "curriculum",
                     r->curriculum != NULL ? lt_curriculum_print(r->curriculum) : NULL);
}

static lt_err seek(void *of, const json_t *from) {
    lt_reinforce *r = &((lt_learner *)of)->r;
    LT_TRY(lt_json_i64(from, "asked", &r->asked, false, "questions"));
    r->asked = (r->asked + r->o.ranks - 1) / r->o.ranks;
    return r->curriculum != NULL
               ? lt_curriculum_seek(r->curriculum, json_object_get(from, "curriculum"))
               : LT_OK;
}

/* ---- The objective ---- */

static lt_err open_curriculum(lt_learner *l) {
    const lt_curriculum_options o = lt_reinforce_curriculum(&l->t->recipe);
    if (!lt_curriculum_is_asked(&o)) {
        return LT_OK;
    }
    LT_TRY(lt_curriculum_open(&l->curriculum, &o, &l->problems));
    l->r.curriculum = &l->curriculum;
    return LT_OK;
}

static lt_err learner_open(void *of, lt_training *t) {
    lt_learner *l = of;
    lt_reinforce_options o;
    l->t = t;
    LT_TRY(lt_reinforce_check_recipe(&t->recipe));
    LT_TRY(lt_reinforce_read(&o, t));
    LT_TRY(lt_objective_open_sharers(t, &o.sharers));
    LT_TRY(read_problems(l));
    LT_TRY(open_rewards(l, &o));
    LT_TRY(open_reference(l));
    const int threads = lt_thread_count(), own = threads > 1 ? threads / 2 : 1;
    /* The engine inherits settings of the thread that opens it. */
    if (t->recipe.rl_staleness > 0) {
        lt_thread_set_count(own);
    }
    /* Opened last, because its cache takes up to half of the remaining memory. */
    LT_TRY(open_engine(l, &o));
    lt_training_set_temperature(t, (float)t->recipe.rl_temperature);
    t->source = (lt_row_source){
        .of = l, .next = next, .place = place, .print = print, .seek = seek};
    LT_TRY(lt_reinforce_open(&l->r, &o, &l->problems, l->rewards, &l->answerer));
    LT_TRY(open_curriculum(l));
    if (t->recipe.rl_staleness > 0) {
        lt_thread_set_count(threads > own ? threads - own : 1);
        LT_TRY(lt_ahead_open(&l->ahead, &l->r, own));
    }
    return LT_OK;
}

static void learner_close(void *of) {
    lt_learner *l = of;
    lt_ahead_close(&l->ahead);
    lt_reinforce_close(&l->r);
    lt_rollouts_close(l->rollouts);
    lt_rewards_close(l->rewards);
    lt_curriculum_close(&l->curriculum);
    lt_problems_close(&l->problems);
    lt_problems_close(&l->held_out);
    lt_pass_close(l->reference_pass);
    lt_model_close(l->reference);
    *l = (lt_learner){0};
}

/* Check that the problems, the reference and the reward model are those of the checkpoint. */
static lt_err learner_data(void *of, lt_training *t, const json_t *then) {
    const lt_learner *l = of;
    const lt_recipe *r = &t->recipe;
    char hash[17];
    LT_TRY(l->reference != NULL ? lt_training_note_model(t, then, "model.init", r->init) : LT_OK);
    LT_TRY(r->rl_reward_model[0] != '\0'
               ? lt_training_note_model(t, then, "rl.reward_model", r->rl_reward_model)
               : LT_OK);
    snprintf(hash, sizeof hash, "%016" PRIx64, l->problems.hash);
    if (!lt_training_note(t, then, "train", hash)) {
        return LT_OK;
    }
    return lt_training_allow_or(
        t, "data.train",
        lt_error_set(LT_ERR_STATE,
                     "data.train: the problems of %s have changed since the checkpoint",
                     t->recipe.train));
}

/* Numbers of the record: sums over losses. */
enum { SUM_TOKENS, SUM_ENTROPY, SUM_LOW, SUM_HIGH, SUM_OFF, SUM_KL };
enum { MOST_RATIO, MOST_MISMATCH };

static void add_stats(lt_step_record *sum, const lt_learn_stats *s) {
    sum->objective[SUM_TOKENS] += (double)s->policy.tokens;
    sum->objective[SUM_ENTROPY] += s->entropy_sum;
    sum->objective[SUM_LOW] += (double)s->policy.clipped_low;
    sum->objective[SUM_HIGH] += (double)s->policy.clipped_high;
    sum->objective[SUM_OFF] += (double)s->policy.off_policy;
    sum->objective[SUM_KL] += s->policy.kl_sum;
    sum->most[MOST_RATIO] = fmax(sum->most[MOST_RATIO], s->policy.ratio_max);
    sum->most[MOST_MISMATCH] = fmax(sum->most[MOST_MISMATCH], s->mismatch_most);
}

/* The loss of a step is the sum over its answers on all ranks. The weights sum to 1, so it is not
 * divided again. */
static lt_err learner_loss(void *of, const lt_objective_part *part, bool held_out,
                           lt_step_record *sum) {
    lt_learner *l = of;
    lt_learn_stats stats = {.mismatch_most = l->r.draw.mismatch_most};
    LT_ASSERT(!held_out);
    for (int64_t i = 0; i < part->n; i++) {
        const lt_drawn *d = lt_reinforce_answer(&l->r, part->index[i]);
        const int64_t at = i * part->seq;
        float *slopes = part->dvalues != NULL ? part->dvalues + at : NULL;
        LT_TRY(lt_reinforce_loss(&l->r, d, part->values + at, slopes, &sum->loss_sum, &stats));
        sum->weight_sum += part->index[i] == 0 && l->r.o.rank == 0 ? 1.0 : 0.0;
    }
    add_stats(sum, &stats);
    return LT_OK;
}

static double mean_reward(const lt_draw_stats *d) {
    return d->reward / d->answers;
}

static void put_draw(double *values, const lt_draw_stats *d) {
    const double mean = mean_reward(d), square = d->reward_sq / d->answers;
    values[LT_RL_reward] = mean;
    values[LT_RL_reward_std] = sqrt(fmax(square - mean * mean, 0.0));
    values[LT_RL_equal_groups] = d->equal / d->groups;
    values[LT_RL_answer_tokens] = d->tokens / d->answers;
    values[LT_RL_ended] = d->ended / d->answers;
    values[LT_RL_rollout_s] = d->draw_s;
    values[LT_RL_refresh_s] = d->refresh_s;
    values[LT_RL_reward_s] = d->judge_s;
    values[LT_RL_rollout_tokens_per_s] = d->draw_s > 0.0 ? d->tokens / d->draw_s : 0.0;
    values[LT_RL_questions] = d->groups;
}

/* For the newest draw, which learn_rates has counted on all ranks. */
static void put_curriculum(double *values, bool *present, const lt_reinforce *r) {
    double passed = 0.0;
    for (int64_t i = 0; i < r->chosen.n; i++) {
        passed += r->chosen.passed[i];
    }
    present[LT_RL_passed] = present[LT_RL_open] = r->curriculum != NULL;
    if (r->curriculum != NULL) {
        values[LT_RL_passed] = passed / (double)(r->chosen.n * r->o.group);
        values[LT_RL_open] = (double)lt_curriculum_n_open(r->curriculum, r->done);
    }
}

static void learner_report(const void *of, const lt_step_record *sum, double *values,
                           bool *present) {
    const lt_learner *l = of;
    const double tokens = fmax(sum->objective[SUM_TOKENS], 1.0);
    const bool drew = l->r.within == 0;
    for (int i = 0; i < LT_RL_METRIC_COUNT; i++) {
        present[i] = i < LT_RL_rollout_s || drew;
    }
    present[LT_RL_kl] = l->r.o.policy.kl > 0.0;
    /* The engine reports probabilities at temperature 1. */
    present[LT_RL_mismatch] = drew && l->t->recipe.rl_temperature == 1.0 &&
                              l->t->recipe.rl_staleness == 0;
    present[LT_RL_entropy] = sum->objective[SUM_TOKENS] > 0.0;
    put_draw(values, &l->r.draw);
    values[LT_RL_entropy] = sum->objective[SUM_ENTROPY] / tokens;
    values[LT_RL_clipped_low] = sum->objective[SUM_LOW] / tokens;
    values[LT_RL_clipped_high] = sum->objective[SUM_HIGH] / tokens;
    values[LT_RL_off_policy] = sum->objective[SUM_OFF] / tokens;
    values[LT_RL_ratio_most] = sum->most[MOST_RATIO];
    values[LT_RL_kl] = sum->objective[SUM_KL] / tokens;
    values[LT_RL_mismatch] = sum->most[MOST_MISMATCH];
    put_curriculum(values, present, &l->r);
}

/* Evaluate greedy answers to the validation problems. */
static lt_err learner_evaluate(void *of, lt_training *t) {
    lt_learner *l = of;
    const int64_t most = t->recipe.eval_rows > 0 ? t->recipe.eval_rows : l->held_out.n;
    double values[LT_RL_METRIC_COUNT] = {0};
    bool present[LT_RL_METRIC_COUNT] = {false};
    lt_step_record record = {0};
    lt_draw_stats s = {0};
    lt_err err;
    if (l->held_out.n == 0 || t->evaluated_step == t->state.step) {
        return LT_OK;
    }
    lt_ahead_settle(&l->ahead); /* The engine is needed now. */
    LT_TRY(lt_objective_bring_whole(t));
    err = lt_failure_raise(&l->ahead.failure);
    err = err == LT_OK ? lt_reinforce_evaluate(&l->r, &l->held_out, most, &s) : err;
    LT_TRY(lt_ranks_combine(&t->ranks, &record, err));
    LT_TRY(lt_objective_sum(t, &s.answers, LT_DRAW_SUMS));
    t->evaluated_step = t->state.step;
    lt_log_info("step %" PRId64 ": held out: reward %.3f of %.0f greedy answers", t->state.step,
                mean_reward(&s), s.answers);
    for (int i = 0; i < LT_RL_METRIC_COUNT; i++) {
        present[i] = i < LT_RL_entropy || i >= LT_RL_rollout_s;
    }
    present[LT_RL_equal_groups] = present[LT_RL_passed] = present[LT_RL_open] = false;
    values[LT_RL_step] = (double)t->state.step;
    put_draw(values, &s);
    return lt_metrics_row(&t->metrics, "rl_eval", lt_rl_metrics, LT_RL_METRIC_COUNT, values,
                          present);
}

/* Evaluate the model before its first step. */
static lt_err learner_start(void *of, lt_training *t) {
    return t->state.step == 0 ? learner_evaluate(of, t) : LT_OK;
}

static bool learner_is_whole(const void *of) {
    const lt_learner *l = of;
    return !l->ahead.pending &&
           (!l->began || (l->r.within + 1) % lt_reinforce_steps_a_draw(&l->r) == 0);
}

static void learner_brief(const void *of, char out[LT_OBJECTIVE_BRIEF_BYTES]) {
    const lt_draw_stats *d = &((const lt_learner *)of)->r.draw;
    snprintf(out, LT_OBJECTIVE_BRIEF_BYTES, "  reward %.3f  length %.0f", mean_reward(d),
             d->tokens / d->answers);
}

lt_objective lt_learner_objective(lt_learner *l) {
    return (lt_objective){.of = l,
                          .draws_late = true,
                          .kind = "rl",
                          .metrics = lt_rl_metrics,
                          .n_metrics = LT_RL_METRIC_COUNT,
                          .open = learner_open,
                          .data = learner_data,
                          .start = learner_start,
                          .loss = learner_loss,
                          .report = learner_report,
                          .evaluate = learner_evaluate,
                          .whole = learner_is_whole,
                          .brief = learner_brief,
                          .close = learner_close};
}
