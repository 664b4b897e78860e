/* curriculum.h: chooses by difficulty which problems reinforcement learning asks next.
 *
 *     OPEN    If a member of the problems gives their difficulty, the easiest come first. After t
 *             of T steps the share c(t) = min(1, sqrt(t (1 - c0^2) / T + c0^2)) of the problems is
 *             open (Platanios et al. 2019, "Competence-based Curriculum Learning",
 *             arXiv:1903.09848, equation 7). A problem is open if the share of easier problems is
 *             below c(t), so all of equal difficulty open together.
 *     WEIGHT  1, or by the pass rate s of earlier answers to the problem:
 *                 failed     1 - s      Kimi k1.5, arXiv:2501.12599, "prioritized sampling"
 *                 learnable  s (1 - s)  Foster et al. 2025, arXiv:2502.12272, "learnability"
 *             s = (passed + 1) / (answers + 2), the mean of a Beta distribution that begins
 *             uniform. Both counts are halved before each new group is added, because the model
 *             changes. No weight becomes 0, and a problem that was never asked has s = 1/2.
 *     DRAW    The questions of a draw are open problems, drawn without repetition and with
 *             probabilities in proportion to their weights: those with the largest keys log(u) /
 *             weight (Efraimidis and Spirakis 2006). u is a function of (seed, number of the first
 *             question of the draw, problem). If a draw has more questions than there are open
 *             problems, they are asked again.
 *
 * The state is the counts of all problems. All ranks have the same state, so they choose the same
 * problems. */
#ifndef LT_ALIGN_CURRICULUM_H
#define LT_ALIGN_CURRICULUM_H

#include "align/problems.h"

typedef enum { LT_PREFER_NONE, LT_PREFER_FAILED, LT_PREFER_LEARNABLE } lt_prefer;
#define LT_PREFERS "none|failed|learnable" /* Their names. */

typedef struct {
    /* Name of the member with the difficulty, a number. With '-' before the name, large numbers are
     * easy. Empty: all problems are open. */
    const char *member;
    double start;  /* c0, in (0, 1]. */
    int64_t steps; /* T */
    lt_prefer prefer;
    double pass; /* An answer passes if its reward is at least this. */
    uint64_t seed;
} lt_curriculum_options;

/* Number of answers to a problem, halved as above. */
typedef struct {
    double passed, answers;
} lt_curriculum_count;

typedef struct {
    lt_curriculum_options o; /* The string `member` belongs to the caller. */
    int64_t n;
    uint64_t problems_hash;
    double *easier;              /* (n): share of the problems that are easier. */
    lt_curriculum_count *counts; /* (n) */
    bool *asked;                 /* (n) in this draw. */
} lt_curriculum;

/* Whether there is one. Without it, questions come in the order of permutations (reinforce.h). */
bool lt_curriculum_is_asked(const lt_curriculum_options *o);
/* FORMAT: a problem has no number of that name; the message has its file and line. Close it also
 * after a failure. */
LT_MUST_USE lt_err lt_curriculum_open(lt_curriculum *c, const lt_curriculum_options *o,
                                      const lt_problems *problems);
void lt_curriculum_close(lt_curriculum *c); /* Accepts a zeroed one. */

/* c(t): the share of the problems that are open after this many steps. */
double lt_curriculum_share(const lt_curriculum *c, int64_t step);
/* Number of problems that are then open. */
int64_t lt_curriculum_n_open(const lt_curriculum *c, int64_t step);
/* The pass rate s of a problem, and its weight. */
double lt_curriculum_rate(const lt_curriculum *c, int64_t problem);
double lt_curriculum_weight(const lt_curriculum *c, int64_t problem);

/* A draw begins: all open problems may be asked. */
void lt_curriculum_begin(lt_curriculum *c);
/* The problems of the next n questions. `first`: the first question's number in the run. */
LT_MUST_USE lt_err lt_curriculum_pick(lt_curriculum *c, int64_t step, int64_t first, int64_t n,
                                      int64_t *problems);
/* A problem got `answers` answers, of which `passed` passed. */
void lt_curriculum_learn(lt_curriculum *c, int64_t problem, double passed, double answers);

/* The state, for a checkpoint; NULL: out of memory. lt_curriculum_seek starts anew, with a warning,
 * if `from` is NULL or is the state of other problems. */
json_t *lt_curriculum_print(const lt_curriculum *c);
LT_MUST_USE lt_err lt_curriculum_seek(lt_curriculum *c, const json_t *from);

#endif
