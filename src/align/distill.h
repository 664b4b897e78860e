/* distill.h: distillation as a training objective (train/objective.h): it moves the student's
 * distribution of each learnt token towards a teacher's.
 *
 *     data.train ──▶ conversations (dialogues.h) ─────────────────────────┐
 *        └─ distill.on_policy: question ──student's engine──▶ its answer ─┴─▶ rows of a step
 *                                                                             │ aim
 *     distill.teacher: a forward pass of the teacher on them    ──▶ divergence of each place
 *     distill.logprobs: its top-k for these conversations (teacher_logprobs.h) ─┘
 *
 * The loss of a step is the mean of the losses of its learnt tokens on all ranks (the op distill,
 * tensor/ops.h), as in TRL's GKDTrainer.
 *
 * ON POLICY   (GKD, Agarwal et al. 2024, arXiv:2306.13649, algorithm 1.) If an example is on
 *             policy, its conversation is cut before the last answer, and the student writes a new
 *             answer with the weights of the step. Whether example i of a run is on policy, and the
 *             seed of its answer, are functions of (seed, i), so a resumed run takes the same steps
 *             as one that was never stopped. A conversation whose question leaves no room for an
 *             answer is learnt as it stands.
 *
 * INDEX OF A ROW   conversation i of data.train: i; of data.valid: -1 - i; answer i of a step: i
 * and the number of conversations. */
#ifndef LT_ALIGN_DISTILL_H
#define LT_ALIGN_DISTILL_H

#include "align/rollout.h"
#include "align/share.h"
#include "align/teacher_logprobs.h"
#include "train/run.h"

typedef struct {
    lt_dialogues dialogues;
    lt_teacher_logprobs files; /* n 0: the teacher computes beside the run. */
} lt_distill_set;

typedef struct {
    lt_training *t;              /* NULL before it is open. */
    lt_distill_set train, valid; /* valid.dialogues.n 0: there is none. */
    lt_pass_target target;
    lt_model *teacher; /* NULL: its distributions are read from files. */
    lt_arena targets;  /* The distributions of a pass, in the backend's memory, */
    int32_t *ids;      /* and on the host, where they are gathered: (rows of a pass, k). */
    float *logp;
    lt_rollouts *rollouts; /* NULL: all is off policy. */
    lt_group *sharers;     /* Ranks of the same rows, which share its answers out; NULL: none. */
    int64_t at;            /* Examples of this rank since the beginning of the run. */
    int64_t at_held_out;
    int32_t *row_ids; /* (seq) */
    bool *learnt;
    /* What a step asks, by row; n_prompt 0: the row is off policy. */
    lt_question *questions; /* (rows of a step) */
    bool *ended;            /* (rows of a step) the model ended the answer. */
    lt_answer *answers;     /* (rows of a step) in the order of the questions. */
    double draw_s;          /* Time that drawing them took, in seconds. */
} lt_distill;

/* The objective of a recipe. The lt_distill must be zeroed, and must outlive the run. */
lt_objective lt_distill_objective(lt_distill *d, const lt_recipe *r);

/* UNSUPPORTED: the teacher's model or tokenizer does not have the student's vocabulary. A tokenizer
 * that is NULL is not compared. */
LT_MUST_USE lt_err lt_distill_check_teacher(const lt_model *student, const lt_tokenizer *own,
                                            const lt_model *teacher, const lt_tokenizer *its,
                                            const char *name);

#endif
