/* reinforce.h: reinforcement learning: which questions a step asks, the rewards of the answers, and
 * the loss of their tokens.
 *
 *     problems ──questions──▶ rollouts ──answers──▶ rewards ──▶ advantages of each group
 *                                                                   │
 *     rows of a step ◀── answers of this step                       ▼
 *         └──▶ the trainer's log-probabilities ──▶ lt_align_policy ──▶ their gradients
 *
 * A DRAW is the result of one call of the engine: `updates` times the answers of an optimiser step.
 * Each of these steps learns from its own part of the draw; the draw is gone through `passes`
 * times. With one step a draw, every ratio is exactly 1. Otherwise the trainer computes the
 * log-probabilities under the weights that drew before the first of these steps, and later ones are
 * off policy.
 *
 * QUESTIONS come in the order of a permutation of the problems, a new one each time all have been
 * asked, or as a curriculum chooses them (curriculum.h). The answers to question i of a run are
 * drawn with a seed that is a function of (seed, i), so the same seed gives the same questions and
 * answers, and a run that resumes between two draws has the bits of one that was never stopped. The
 * state is the number of questions, the number of steps, and the curriculum's state. */
#ifndef LT_ALIGN_REINFORCE_H
#define LT_ALIGN_REINFORCE_H

#include "align/curriculum.h"
#include "align/problems.h"
#include "align/reward.h"
#include "align/rollout.h"
#include "align/share.h"
#include "lateen/align.h"
#include "lateen/data.h"

#define LT_REINFORCE_GROUP 512 /* Most answers of a group. */

typedef struct {
    lt_align_policy_options policy;
    lt_align_advantage advantage;
    int64_t answers;  /* Answers of an optimiser step on this rank: a multiple of group. */
    int64_t group;    /* Answers to each question. */
    int64_t updates;  /* Steps whose answers are drawn together. */
    int64_t passes;   /* How often the run learns from each answer. */
    int64_t resample; /* Most further draws for groups whose rewards are all equal. */
    bool drop_cut;    /* The run does not learn from answers that reached the limit. */
    int64_t max_tokens, max_seq, running;
    /* Ranks that divide the questions of a step; each asks the same number. Question i of this rank
     * is question i * ranks + rank of the run. */
    int64_t ranks, rank;
    lt_group *sharers; /* Ranks with the same questions, which divide them; NULL: none. */
    uint64_t seed;
    bool exact;
    lt_ends ends;
    const lt_tokenizer *tokenizer;
} lt_reinforce_options;

/* One answer of a draw, and the values computed for it. */
typedef struct {
    const lt_problem *problem;
    lt_answer answer;
    double reward, advantage;
    char *text;
    /* (n): under the weights that drew it, and under the reference; NULL: not needed. */
    float *old, *ref;
} lt_drawn;

/* Statistics of a draw: sums over its answers and groups, on all ranks, and the times of this
 * rank. */
typedef struct {
    double answers, groups;
    double reward, reward_sq; /* Rewards, and their squares. */
    double equal;             /* Groups whose rewards are all equal. */
    double tokens, ended;     /* Number of tokens; of answers that the model ended. */
    /* The largest |logp - the engine's logp|, if the trainer computed logp after the draw. */
    double mismatch_most;
    double refresh_s, draw_s, judge_s;
} lt_draw_stats;
#define LT_DRAW_SUMS 7 /* The first of them. */

/* Sums over the losses of some answers. */
typedef struct {
    lt_align_policy_stats policy;
    double entropy_sum;   /* Minus the log-probabilities: its mean estimates the entropy, nats. */
    double mismatch_most; /* As above, of weights that are still those of the draw. */
} lt_learn_stats;

/* The source of answers: lt_rollouts_draw, or a test. */
typedef struct {
    void *of;
    lt_err (*draw)(void *of, const lt_rollout_args *asked, lt_answer *answers,
                   lt_rollout_stats *stats);
} lt_answerer;

typedef struct lt_reinforce {
    lt_reinforce_options o;
    lt_problems *problems; /* Belongs to the caller, as do the next two. */
    lt_rewards *rewards;
    lt_curriculum *curriculum; /* Set by the caller after lt_reinforce_open; NULL: none. */
    lt_answerer answerer;
    lt_drawn *drawn; /* (updates * answers) */
    int64_t n_drawn;
    int64_t asked; /* Questions of this rank since the beginning of the run. */
    int64_t done;  /* Steps of the run before this draw: set by the caller for the curriculum. */
    /* With a curriculum: the questions of the draw on all ranks, in order, with the problem of
     * each, and how many of this rank's answers to it passed. */
    struct {
        int64_t *problems;
        double *passed;
        int64_t n, room;
    } chosen;
    struct lt_reinforce_round *round; /* Between draw_own and draw_others. */
    int64_t within;                   /* Number of finished steps of this draw. */
    lt_draw_stats draw;
    double *parts;      /* (lt_rewards_count): means over the draw. */
    lt_align_step step; /* Totals of the current step. */
} lt_reinforce;

/* ARG: an option is out of range. Close it also after a failure. */
LT_MUST_USE lt_err lt_reinforce_open(lt_reinforce *r, const lt_reinforce_options *o,
                                     lt_problems *problems, lt_rewards *rewards,
                                     const lt_answerer *answerer);
void lt_reinforce_close(lt_reinforce *r);

int64_t lt_reinforce_steps_a_draw(const lt_reinforce *r);
/* Whether the next step draws, so that its weights are those of the draw. */
bool lt_reinforce_draws_next(const lt_reinforce *r);

/* Draw, judge, and compute the advantages. A collective call of o.sharers. */
LT_MUST_USE lt_err lt_reinforce_draw(lt_reinforce *r);
/* The same in two parts. The first draws and judges this rank's share, and calls no other rank. The
 * second gets the shares of the others, and draws again for o.resample; err is the result of the
 * first. Each call of draw_own needs one of draw_others, also after a failure. */
LT_MUST_USE lt_err lt_reinforce_draw_own(lt_reinforce *r);
LT_MUST_USE lt_err lt_reinforce_draw_others(lt_reinforce *r, lt_err err);
/* Tell the curriculum how many answers passed; r->chosen has been summed over all ranks. */
void lt_reinforce_learn_rates(lt_reinforce *r);

/* The rewards of one greedy answer to each problem of this rank's share of the first `most` of some
 * problems. The state of the run is not changed. */
LT_MUST_USE lt_err lt_reinforce_evaluate(lt_reinforce *r, const lt_problems *problems, int64_t most,
                                         lt_draw_stats *out);

/* The answers of the current step: answer i of it, in [0, answers). */
lt_drawn *lt_reinforce_answer(const lt_reinforce *r, int64_t i);

/* Write row `row`: the question, the answer, and then padding without labels. Labels are the
 * answer's tokens. */
void lt_reinforce_row(const lt_drawn *d, const lt_batch *to, int64_t row);

/* The tokens of the current step that this rank learns from. r->step has the totals of all ranks,
 * which the caller sets before the first loss. */
int64_t lt_reinforce_tokens(const lt_reinforce *r);

/* Add the loss of an answer of the step to *loss, and write its derivatives; logp and dlogp (seq)
 * lie as lt_reinforce_row lays a row out. dlogp NULL: only the loss is computed, and *stats does
 * not change. */
LT_MUST_USE lt_err lt_reinforce_loss(const lt_reinforce *r, const lt_drawn *d, const float *logp,
                                     float *dlogp, double *loss, lt_learn_stats *stats);

/* Keep the log-probabilities (seq) of an answer's row under the weights that drew it (old) or under
 * the reference. */
LT_MUST_USE lt_err lt_reinforce_keep_old(lt_reinforce *r, lt_drawn *d, const float *logp);
LT_MUST_USE lt_err lt_reinforce_keep_ref(lt_drawn *d, const float *logp);
/* The same of the answer's tokens alone (n), which another rank has scored. */
LT_MUST_USE lt_err lt_reinforce_set_ref(lt_drawn *d, const float *logp);

void lt_reinforce_end(lt_reinforce *r); /* The step has ended. */

#endif
