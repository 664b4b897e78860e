/* record.h: the results of one step, and the decisions that follow from them.
 *
 *     this rank's losses, labels, squares of gradients, stop request, error ──▶ lt_step_record
 *                                                 │ combine: one record of all ranks (lt_ranks)
 *                                                 ▼
 *     recipe, guard, step ──────────────────▶ lt_step_decide ──▶ apply or skip, scale, clip,
 *                                                                give up, validate, sample,
 *                                                                save, stop
 *
 * Decisions are pure functions of the combined record, the recipe and a state that is the same on
 * every rank, so all ranks decide the same. Nothing else decides about a step. */
#ifndef LT_TRAIN_RECORD_H
#define LT_TRAIN_RECORD_H

#include <stdbool.h>

#include "train/watch/guard.h"

/* Fields of a record: name, how the values of ranks are combined, description. All are F64, which
 * holds counts below 2^53 exactly, so that a record is one short vector that is gathered. */
#define LT_STEP_RECORD_MAP(X)                                                                      \
    X(ranks, SUM, "ranks whose work this is")                                                      \
    X(rows, SUM, "rows")                                                                           \
    X(tokens, SUM, "tokens of the rows")                                                           \
    X(labels, SUM, "counted labels")                                                               \
    X(weight_sum, SUM, "their weights; without weights their number")                              \
    X(loss_sum, SUM, "their losses, each times its weight, nats")                                  \
    X(correct, SUM, "labels that had the largest logit")                                           \
    X(bytes, SUM, "bytes of text the labels stand for; 0: not known")                              \
    X(aux_sum, SUM, "load-balancing losses of experts")                                            \
    X(router_z_sum, SUM, "router z-losses")                                                        \
    X(sumsq, SUM, "squares of the gradients that this rank answers for")                           \
    X(wait_s, MAX, "waited for rows")                                                              \
    X(comm_s, MAX, "waited for transfers between ranks (times.h)")                                 \
    X(transfer_s, MAX, "transfers were under way")                                                 \
    X(compute_s, MAX, "computed; 0: the step was not measured")                                    \
    X(announced_bytes, MAX, "memory announced")                                                    \
    X(peak_bytes, MAX, "memory used at most")                                                      \
    X(first, MAX, "it was the first step of the process")                                          \
    X(saving, MAX, "1: a thread writes a checkpoint (saver.h)")                                    \
    X(mirror, MAX, "an lt_mirror_news (mirror.h)")                                                 \
    X(late, MAX, "1: a round of the sites is not complete (diloco.h)")                             \
    X(sent_bytes, SUM, "left for other sites in that round")                                       \
    X(received_bytes, SUM, "read of other sites in that round")                                    \
    X(stop, MAX, "a stop was asked: a signal's number or LT_STOP_FILE; 0: none")                   \
    X(epoch, MAX, "of the lease of the run folder, from the rank that has it, when the run opens") \
    X(error, MAX, "an lt_err; LT_OK: none")

/* Numbers that only the objective interprets (objective.h): sums, and maxima. */
#define LT_OBJECTIVE_SUMS 16
#define LT_OBJECTIVE_MOST 4

typedef struct {
#define LT_STEP_RECORD_FIELD(name, how, help) double name;
    LT_STEP_RECORD_MAP(LT_STEP_RECORD_FIELD)
#undef LT_STEP_RECORD_FIELD
    double objective[LT_OBJECTIVE_SUMS];
    double most[LT_OBJECTIVE_MOST]; /* At least 0. */
} lt_step_record;

#define LT_STOP_FILE 1000 /* Larger than every signal number. */
const char *lt_stop_text(int stop);

/* `into` becomes the record of both. Ranks are combined in their order, so that all get the same
 * bits. */
void lt_step_record_combine(lt_step_record *into, const lt_step_record *other);

/* The other ranks of a run. combine NULL: there are none; otherwise it replaces *record by that of
 * all ranks, the same on each. Rank 0 leads: it alone holds the lock, writes logs, metrics and
 * page, and prunes. */
typedef struct {
    int rank;
    void *of;
    lt_err (*combine)(void *of, lt_step_record *record);
} lt_ranks;
static inline bool lt_ranks_lead(const lt_ranks *r) {
    return r->rank == 0;
}
/* err: this rank's failure, which the others learn. Returns it, or REMOTE if another rank has
 * failed. */
LT_MUST_USE lt_err lt_ranks_combine(const lt_ranks *r, lt_step_record *record, lt_err err);

/* The state in addition to the record, the same on every rank. */
typedef struct {
    const lt_recipe *recipe;
    const lt_guard *guard;
    int64_t step;        /* The step of the record. */
    double summed_scale; /* The gradients are the sum over labels times this factor. */
    bool save_late;      /* A checkpoint has been due since an earlier step. */
    bool whole;          /* The run may stop here, and a checkpoint may be made. */
} lt_step_facts;

typedef struct lt_step_decision {
    double loss, grad_norm; /* Mean over labels. */
    double grad_scale;      /* Factor for the summed gradients: for mean and clipping. */
    bool apply;             /* Apply the update; if not, `why` says why not. */
    char why[160];
    bool dead; /* The gradient is exactly 0, but the loss is not. */
    bool give_up;
    bool validate, sample, save;
    bool save_late; /* A checkpoint is due, but is deferred. */
    int stop;       /* Stop after all this; 0: continue. */
} lt_step_decision;

void lt_step_decide(lt_step_decision *d, const lt_step_record *r, const lt_step_facts *f);

/* Whether a checkpoint may be made of weights that gave `probe` on rows of the last step. */
typedef struct {
    double loss;
    bool publish; /* False: only at a later step. */
    bool suspect; /* Published, but the run seems to have diverged. */
} lt_publish_decision;
void lt_publish_decide(lt_publish_decision *d, const lt_step_record *probe, const lt_guard *guard,
                       bool dead);

#endif
