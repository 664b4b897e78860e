/* steps.h: divides an answer into the steps that a process reward model judges.
 *
 *     "1 + 1 = 2." "2 + 2 = 4."  ──▶  ids of a step, ids of the separator, ids of a step, ...
 *                                                               ▲ the step is judged here
 *
 * Step and separator are encoded separately, as by TRL's PRMTrainer, so that no token spans both.
 * The scores of the steps, which are probabilities that a step is good, are combined into one score
 * of the answer. */
#ifndef LT_DATA_STEPS_H
#define LT_DATA_STEPS_H

#include "lateen/tokenizer.h"

/* A separator; read-only, so that threads share it. */
typedef struct {
    const lt_tokenizer *tokenizer;
    const char *text; /* The caller's text, or "\n" if it gave none. */
    size_t bytes;
    lt_ids ids;
} lt_steps;

/* text "": a line break, which is TRL's default. Close it also after a failure. */
LT_MUST_USE lt_err lt_steps_open(lt_steps *out, const lt_tokenizer *t, lt_tokenizer_scratch *s,
                                 const char *text);
void lt_steps_close(lt_steps *s);

/* Append a step and the separator. */
LT_MUST_USE lt_err lt_steps_add(const lt_steps *s, lt_tokenizer_scratch *scratch, const char *step,
                                size_t bytes, lt_ids *ids);

/* The text between the steps of an answer that a model wrote: the separator, or an empty line if
 * the separator is a special token, which answers do not contain. */
const char *lt_steps_border(const lt_steps *s);

/* The next step of *text, which ends at the first of n borders (n may be 0) or at the end of the
 * text. White space alone is not a step and is skipped. *text moves past the step and its border.
 * False: no step is left. */
bool lt_steps_next(const char **text, size_t *bytes, const char *const *borders,
                   const size_t *lengths, int n, const char **step, size_t *step_bytes);

/* How the scores of an answer's steps become its score. */
#define LT_STEPS_FOLD_MAP(X)                                                                       \
    X(min)     /* Math-Shepherd, Wang et al. 2024, arXiv:2312.08935 */                             \
    X(product) /* Lightman et al. 2023, arXiv:2305.20050 */                                        \
    X(last)                                                                                        \
    X(mean)
#define LT_STEPS_FOLD_ENUM(name) LT_STEPS_##name,
typedef enum { LT_STEPS_FOLD_MAP(LT_STEPS_FOLD_ENUM) LT_STEPS_FOLDS } lt_steps_fold_kind;
extern const char *const lt_steps_fold_names[LT_STEPS_FOLDS];
/* The score of an answer whose n steps have these scores. n 0: the score is 0. */
double lt_steps_fold(lt_steps_fold_kind kind, const double *scores, int64_t n);

/* The probability that a step is good: the softmax of the head's two values, of which the second
 * stands for "good". */
double lt_steps_score(const float values[2]);

#endif
