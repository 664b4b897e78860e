/* reward.h: the reward of an answer to a problem: a weighted sum of single rewards.
 *
 *     "answer:1,think:0.2,overlong"        names of the table; a weight is 1 if not given
 *
 *     answer    1 if the problem's checker accepts the answer, else 0. The answer is found by a
 *               mark (data/check/answer.h)
 *     found     1 if an answer, right or wrong, follows a mark
 *     think     1 if the text is one <think>...</think> followed by something; or other marks of
 *               reasoning (data/think_marks.h)
 *     schema    1 if the text matches the JSON schema of the problem
 *     ended     1 if the model ended the answer before the limit
 *     length    tokens of the answer / limit: give it a negative weight
 *     overlong  DAPO's penalty (Yu et al. 2025, arXiv:2503.14476, equation 13): 0 up to
 *               limit - soft tokens, from there on down to -1 at the limit
 *     model     the score of a reward model: reward_model.h
 *     command   given by a program: reward_command.h
 *     unit_tests, unit_tests_share
 *               1 if the code of the answer passes all tests of the problem, else 0; and the share
 *               of the tests that it passes: unit_tests.h
 *
 * A line that the program gets:
 *
 *     {"id": 3, "completion": "...", "tokens": 17, "ended": true, "problem": {the line}}
 */
#ifndef LT_ALIGN_REWARD_H
#define LT_ALIGN_REWARD_H

#include "align/problems.h"
#include "align/rollout.h"
#include "align/unit_tests.h"

typedef struct {
    const char *sum;             /* As above; only names of the table. */
    const char *command;         /* For `command`; "": none. The string must outlive the rewards. */
    double command_limit_s;      /* For one line. */
    int64_t max_tokens;          /* Most tokens of an answer. */
    int64_t soft_tokens;         /* For `overlong`: over 0, at most max_tokens. */
    const char *model;           /* For `model`: its path; NULL or "": none. */
    lt_device *device;           /* Its device, */
    int64_t longest;             /* and the most tokens of a text that it reads. */
    lt_unit_tests_options tests; /* For `unit_tests` and `unit_tests_share`; program NULL: none. */
    const lt_tokenizer *tokenizer;
} lt_reward_options;

typedef struct lt_rewards lt_rewards;

/* ARG: a name that is not in the table or is given twice, a weight of 0, an option that a name
 * needs and that is missing, or an option that no name reads. Free with lt_rewards_close, which
 * accepts NULL. */
LT_MUST_USE lt_err lt_rewards_open(lt_rewards **out, const lt_reward_options *o);
void lt_rewards_close(lt_rewards *r);

/* Check that every problem has the members that the rewards read. FORMAT names the first that does
 * not. */
LT_MUST_USE lt_err lt_rewards_check(const lt_rewards *r, const lt_problems *problems);

/* Rewards (n) of n answers; answer i is one to problems[i]. texts (n): the answers' texts without
 * the token that ended them. parts: NULL, or (n, lt_rewards_count) each single reward before it is
 * weighted. */
LT_MUST_USE lt_err lt_rewards_judge(lt_rewards *r, const lt_problem *const *problems,
                                    const lt_answer *answers, const char *const *texts, int64_t n,
                                    double *rewards, double *parts);

/* Host memory of the rewards: that of the reward model. */
size_t lt_rewards_bytes(const lt_rewards *r);

int lt_rewards_count(const lt_rewards *r);
const char *lt_rewards_name(const lt_rewards *r, int i);

#endif
