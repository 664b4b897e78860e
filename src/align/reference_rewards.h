/* reference_rewards.h: what QRPO needs of the reference model: several completions that it draws
 * for each prompt, and their rewards (`lateen align rewards`).
 *
 *     problems ──n completions each──▶ rewards ──▶ lines of OUT, which lateen train reads
 *
 * A line of the input with a completion of its own (`completion`, or the assistant's turns at the
 * end of `messages`) becomes one line; one without becomes a line for each completion that was
 * drawn. Lines of OUT:
 *
 *     {"prompt": [messages], "completion": [message], "reward": 0.5, "ref_rewards": [...],
 *      "quantile": 0.75, ...}
 *
 * and the further members of the input's line. quantile is the share of the ref_rewards that are at
 * most the reward. It is there for human readers; training computes its own.
 *
 * RESUMED   Lines go to OUT.part, and OUT.state.json says how many of its bytes and prompts are
 * complete, with a checksum of the inputs and options. An interrupted command resumes there, and
 * its file has the same bytes as that of an uninterrupted one. At the end OUT.part is renamed. */
#ifndef LT_ALIGN_REFERENCE_REWARDS_H
#define LT_ALIGN_REFERENCE_REWARDS_H

#include "align/problems.h"
#include "align/reward.h"
#include "align/rollout.h"

typedef struct {
    const char *out;
    const lt_problems *problems;
    lt_rewards *rewards;
    lt_rollouts *rollouts; /* Draws from the reference model. */
    const lt_tokenizer *tokenizer;
    int64_t n;       /* Completions per prompt. */
    int64_t prompts; /* Prompts whose completions are drawn together. */
    uint64_t seed;
    uint64_t identity; /* A checksum of model and options, which must be the same to resume. */
    void (*progress)(void *ctx, int64_t done, int64_t all); /* In prompts. May be NULL. */
    void *ctx;
} lt_reference_rewards_options;

typedef struct {
    int64_t prompts, kept, lines; /* kept: prompts of an earlier start. */
    double reward_sum;            /* Sum over the completions that this start drew, */
    int64_t drawn;                /* and their number. */
} lt_reference_rewards_stats;

/* STATE: OUT exists, or OUT.part belongs to something else. */
LT_MUST_USE lt_err lt_reference_rewards_run(const lt_reference_rewards_options *o,
                                            lt_reference_rewards_stats *stats);

#endif
