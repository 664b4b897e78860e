/* preference.h: makes an objective of `lateen train` (train/objective.h) of those of
 * lateen/align.h, which learn from files of preferences.
 *
 *     data.train, data.valid ──template──▶ rows ──values──▶ lt_align_pair, _scores, _single
 *
 * THE REFERENCE is the model as the run begins: model.init, with the adapters of lora.init if there
 * are any. For each row, the sum of its log-probabilities under the reference is computed once,
 * before the first step, and kept in RUN/data/reference-<hash of the rows>.safetensors with the
 * checksum of the weights. A resumed run reads the file, and refuses it if it is not the one that
 * the checkpoint names. New adapters change nothing before the first step. So if the run trains new
 * adapters, the reference is also the model with the adapters switched off, and missing sums can be
 * computed at any time.
 *
 * KTO's reference point comes from prompts with completions that do not belong to them: each prompt
 * is paired with the completion of the example before it in the file, within blocks of batch.size
 * examples, as in TRL. The point is the mean over the whole step on all ranks. */
#ifndef LT_ALIGN_PREFERENCE_H
#define LT_ALIGN_PREFERENCE_H

#include "align/preference_data.h"
#include "train/run.h"

/* Rows of one set, and the reference model's results for them. */
typedef struct {
    lt_preferences rows;
    /* (n * together): sums of log-probabilities; for KTO followed by those of the (n) mismatched
     * rows. NULL if the objective does not read them. */
    double *reference;
    int64_t n_reference;
    double point;               /* KTO's point of the current step or validation; else 0. */
    int64_t at, stride, offset; /* Examples drawn by this rank; example i is number i * stride +
                                 * offset of all. */
    bool shuffle;
    uint64_t seed;
} lt_preference_set;

typedef struct {
    const lt_align_objective *row;
    lt_align_options options;
    lt_preference_set train, valid; /* valid.rows.n 0: there is none. */
    /* Completions of a block whose prompts KTO exchanges to mismatch them. */
    int64_t block;
    float *logp;             /* Two rows of log-probabilities. */
    double *dlogp;           /* Derivatives with respect to them. */
    lt_step_rows mismatched; /* KTO's mismatched rows of a pass. */
    char was[2][17];         /* The checkpoint's checksums of the references; "": none. */
    lt_steps steps;          /* For an objective on steps. */
    int64_t seq;
} lt_preference_objective;

/* The objective that the recipe names, from the table of lateen/align.h. p must outlive the run,
 * which closes it. */
lt_objective lt_preference_open(lt_preference_objective *p, const lt_recipe *r);

/* Row `row` of a set as tokens and labels (seq each), -1 where there is no value. Row n * together
 * + i is the prompt of example i with another example's completion (KTO). A row of an objective on
 * scores has one label, where the head is read; one on steps has a label of 0 or 1 at the end of
 * each step. */
void lt_preference_row(const lt_preference_objective *p, const lt_preference_set *set,
                       const lt_model_spec *spec, int64_t row, int64_t seq, int32_t *tokens,
                       int32_t *labels);

/* Whether the objective compares a completion with another's prompt. */
bool lt_preference_is_kto(const lt_preference_objective *p);

/* Values (n, *used) of the n rows that rows->index names, as from lt_objective_values. Writes the
 * tokens and labels of `rows`. */
LT_MUST_USE lt_err lt_preference_values(const lt_preference_objective *p,
                                        const lt_preference_set *set, struct lt_training *t,
                                        const lt_row_batch *rows, int64_t n, const float **values,
                                        int64_t *used);
/* The log-probability of a completion: the ordered sum of its values. */
double lt_preference_sum(const float *values, int64_t n);

/* preference_reference.c: read or compute the reference's sums of a set; a collective call. name:
 * the set's, for messages. was: the checksum that the sums must have, or "". hex: their
 * checksum. */
LT_MUST_USE lt_err lt_preference_reference(lt_preference_objective *p, lt_preference_set *set,
                                           struct lt_training *t, const char *name, const char *was,
                                           char hex[17]);

#endif
