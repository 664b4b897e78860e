/* objective.h: where an objective other than the mean loss of the labels enters a training step.
 *
 * An objective sees the VALUES at a row's labels: the log-probability of each label or, with a
 * score head, the score there. From the values of some rows it computes a loss and the derivatives
 * of the loss by the values; the pass computes gradients from them, and knows no objective.
 *
 *     rows of a step ──pass──▶ values ──loss()──▶ loss, derivatives ──pass──▶ gradients
 *
 * PLUG IN   Fill an lt_objective and give it to lt_run_training_with. Its functions are called so:
 *
 *     open     once, with model and pass open and the weights those of model.init: fill t->source,
 *              the rows to train on, and t->held_out, those to validate on, if there are any
 *     data     once: put into t->data what identifies the data, and compare it with that of the
 *              checkpoint from which the run goes on
 *     start    once, on all ranks together, with the weights of the first step; t->state.step
 *              says whether these are still those of model.init
 *     each step:
 *       begin    once, on all ranks together, with this rank's rows of the step, before the first
 *                of its micro-batches: for work that needs all of them, or values of other rows
 *       aim      before the values of a micro-batch are computed: compares its rows with something
 *                other than their labels (lt_pass_aim); values are then minus the divergences
 *       loss     for each micro-batch in order: adds to the record, and writes derivatives
 *
 * The update follows the gradient of loss_sum / weight_sum, both summed over the micro-batches and
 * ranks of a step. So an objective over pairs adds the pairs' losses and their number; one that
 * computes the parts of a mean itself adds a weight of 1 once, on one rank.
 *
 * ROWS are those of the source, which numbers them as it likes (lt_row_batch.index). An example is
 * lt_recipe_together consecutive rows, which share a micro-batch; batch.size counts examples. No
 * value after a row's last label is needed, so a pass ends at the last label of its longest row.
 * Each validation draws held_out from its first row on: its seek gets NULL.
 *
 * STATISTICS   loss() adds to objective[] (summed over ranks) and raises most[] (the largest of
 * them) of the record; report() computes numbers from them, which become a line of metrics.jsonl:
 * of kind `kind` for a step, with "_eval" appended for a validation. */
#ifndef LT_TRAIN_OBJECTIVE_H
#define LT_TRAIN_OBJECTIVE_H

#include "train/report/metrics.h"
#include "train/record.h"
#include "train/rows.h"

struct lt_training;

#define LT_OBJECTIVE_METRICS     24 /* Most metrics of one objective. */
#define LT_OBJECTIVE_BRIEF_BYTES 64

/* Some rows and their values. */
typedef struct {
    int64_t n, seq;
    const int64_t *index;  /* (n): the numbers that the source gave the rows. */
    const int32_t *labels; /* (n, seq): -1 if there is no value. */
    const float *values;   /* (n, seq): 0 if there is no label. */
    /* (n, seq), zeros, to be written. NULL: only the loss is needed, of a validation or of the
     * previous step's rows. */
    float *dvalues;
} lt_objective_part;

typedef struct lt_objective {
    void *of;
    /* The rows of a step depend on the previous update, so they are not drawn ahead. */
    bool draws_late;
    const char *kind;
    const lt_metric *metrics; /* (n_metrics); the first is the step. */
    int n_metrics;
    lt_err (*open)(void *of, struct lt_training *t);
    lt_err (*data)(void *of, struct lt_training *t, const json_t *then); /* NULL: a new run. */
    lt_err (*start)(void *of, struct lt_training *t);                    /* NULL: no-op. */
    /* held_out: for a validation, whose rows have only their index. NULL: no-op. */
    lt_err (*begin)(void *of, struct lt_training *t, const lt_row_batch *rows, int64_t n,
                    bool held_out);
    /* index: of the batch's rows. NULL: no-op. */
    lt_err (*aim)(void *of, struct lt_training *t, const lt_pass_batch *b, const int64_t *index);
    lt_err (*loss)(void *of, const lt_objective_part *part, bool held_out, lt_step_record *sum);
    void (*report)(const void *of, const lt_step_record *sum, double *values, bool *present);
    /* A validation other than the loss of validation rows. NULL: that loss. */
    lt_err (*evaluate)(void *of, struct lt_training *t);
    /* Whether the run may stop after the current step, and a checkpoint be made. If not, both wait.
     * NULL: always. */
    bool (*whole)(const void *of);
    /* Text for the progress line. NULL: none. */
    void (*brief)(const void *of, char out[LT_OBJECTIVE_BRIEF_BYTES]);
    /* Called at the end of the run, with the model still open, and also if the run did not open.
     * NULL: no-op. */
    void (*close)(void *of);
} lt_objective;

/* UNSUPPORTED: an option or a mesh (NULL: one rank) does not work with the objective. A recipe
 * without an objective passes. */
LT_MUST_USE lt_err lt_objective_check(const lt_recipe *r, const lt_mesh_shape *mesh);

/* Whether an engine draws answers from the model that is trained. */
bool lt_objective_draws(const lt_recipe *r);

/* Memory for values and rows of one pass. */
LT_MUST_USE lt_err lt_objective_open(struct lt_training *t);
void lt_objective_close(struct lt_training *t);

/* Values of n rows of `rows` from `first` on, (n, *seq), without gradients; valid until the next
 * call of a function of this header. n: at most the rows of a pass; 0: this rank only takes part in
 * a pass of other ranks (lt_objective_passes). They are computed as in training, but experts drop
 * no token. Each rank that has a part of the pass gets whole rows. */
LT_MUST_USE lt_err lt_objective_values(struct lt_training *t, const lt_row_batch *rows,
                                       int64_t first, int64_t n, const float **values,
                                       int64_t *seq);

/* Calls some(of, i) for passes i of [0, n) of this rank, then some(of, -1) as long as a rank that
 * needs this one in its passes has more (mesh.zero 3, ep). Each call computes values once. */
typedef lt_err (*lt_objective_some)(void *of, int64_t pass);
LT_MUST_USE lt_err lt_objective_passes(struct lt_training *t, int64_t n, lt_objective_some some,
                                       void *of);

/* Forward and backward passes of a step's n rows; their results go to *sum. */
LT_MUST_USE lt_err lt_objective_run(struct lt_training *t, const lt_row_batch *rows, int64_t n,
                                    float grad_scale, lt_step_record *sum);
/* The loss of n rows under the current weights. */
LT_MUST_USE lt_err lt_objective_probe(struct lt_training *t, const lt_row_batch *rows, int64_t n,
                                      lt_step_record *sum);
/* The loss of all validation rows, and their metrics. */
LT_MUST_USE lt_err lt_objective_evaluate(struct lt_training *t);
/* Write the metrics of a step. */
LT_MUST_USE lt_err lt_objective_tell(struct lt_training *t, const lt_step_record *sum, bool eval);

/* Sums over the ranks that divide the rows of a step, in place; ranks with the same rows have the
 * same numbers. A collective call of all. */
LT_MUST_USE lt_err lt_objective_sum(const struct lt_training *t, double *numbers, int64_t n);
/* Whether `yes` holds on all ranks of the mesh. */
LT_MUST_USE lt_err lt_objective_all(const struct lt_training *t, bool *yes);

/* The ranks with the same rows, which can divide work that each would otherwise do; NULL: only this
 * one. A collective call. The group lives as long as the world. */
LT_MUST_USE lt_err lt_objective_open_sharers(const struct lt_training *t, lt_group **out);

/* Open a pass without gradients over another model (a teacher, a reference), which is whole on this
 * rank, for the run's rows. It computes on the queue of the run's pass, in chunks of as many
 * logits. alone: this rank computes whole rows; else its tokens of them, as in a pass of the run.
 * Its memory on the host is announced. */
LT_MUST_USE lt_err lt_objective_open_beside(struct lt_training *t, lt_pass **out, lt_model *m,
                                            bool alone);

/* The model for code that reads all weights, such as an engine that draws answers. It is that of
 * the passes, or a second one with room for all weights: where the first has a part of them (tp,
 * pp, ep) or keeps none between passes (mesh.zero 3), or where the code reads them while updates go
 * on (`apart`). Of a model that is whole, on which adapters are trained, there is no second one:
 * apart, it has second adapters, with which it computes until lt_objective_opened_whole, which the
 * caller calls when what reads them is open. lt_objective_bring_whole is a collective call: it
 * waits for the last update and copies its weights into the second model or adapters, if there are
 * any. They stay until the next update; with `apart`, until the next such call. */
LT_MUST_USE lt_err lt_objective_open_whole(struct lt_training *t, bool apart, const lt_model **out);
void lt_objective_opened_whole(struct lt_training *t);
LT_MUST_USE lt_err lt_objective_bring_whole(struct lt_training *t);

#endif
