/* times.h: where the time of a step goes, on each rank and on all of them.
 *
 *     lt_times_begin(t, step)            a step begins: is it measured, or traced?
 *     lt_times_note(t, &record, start)   after the passes: how long this rank waited and computed
 *     lt_times_end(t, step)              the step is over; of a traced one RUN/trace-step-N.json
 *
 *     step = computing + exposed communication. Computing is all that this rank does itself, rows
 *     and messages of the host included. Exposed is the time that the queue of its passes (on CPUs:
 *     the rank) waited for transfers; other transfers run beside the computing:
 *     hidden = 1 - exposed / transfers. The compute-to-communication ratio is computing /
 *     transfers.
 *
 * Steps with a line of metrics are measured (log.every). The ranks' own times come together in the
 * record of each step; the leading rank adds them up by rank. The rank that computes longest is the
 * slowest: all others wait for it. */
#ifndef LT_TRAIN_TIMES_H
#define LT_TRAIN_TIMES_H

#include "parallel/world.h"
#include "tensor/timeline.h"
#include "train/record.h"
#include "train/watch/stragglers.h"

/* In the run folder, with `layout: auto`: the prediction for the chosen layout. */
#define LT_LAYOUT_FILE "layout.json"

struct lt_training;

/* Sums over the measured steps of one rank, without the first step of a process. */
typedef struct {
    int64_t steps;
    double compute_s, comm_s, transfer_s;
    double announced_bytes, peak_bytes;
} lt_rank_times;

typedef struct {
    lt_timeline line; /* Timeline of this rank. */
    bool measured, traced;
    bool listens;                          /* The worlds report their waits. */
    lt_comm_work first_host, first_device; /* Calls of a traced step come after these. */
    /* Free memory of the device before the run allocated any; 0: not known. */
    double left_bytes;
    double peak_bytes; /* At the last query. */
    /* Predicted times of a step; steps 0: there is no prediction. */
    lt_rank_times predicted;
    double predicted_bubble_s; /* Part of predicted.comm_s. */
} lt_times;

/* The records of all ranks: the `of` of an lt_ranks. */
typedef struct {
    lt_world *world;
    int n;
    lt_step_record *all;  /* (n): the newest record of each rank. */
    lt_rank_times *times; /* (n): sums over the records. */
    int slowest;          /* Slowest rank of the newest measured step. */
    int64_t every;        /* Steps from one measured step to the next. */
    lt_stragglers stragglers;
    bool judged; /* A window of the straggler detection ended with this step. */
} lt_rank_records;

LT_MUST_USE lt_err lt_rank_records_open(lt_rank_records **out, lt_world *w, const lt_recipe *r);
void lt_rank_records_close(lt_rank_records *r); /* Accepts NULL. */
/* lt_ranks.combine: each rank receives every record, and combines them in the order of the
 * ranks. */
LT_MUST_USE lt_err lt_rank_records_combine(void *of, lt_step_record *record);

/* The passes must be open. */
void lt_times_open(struct lt_training *t);
void lt_times_close(struct lt_training *t);
LT_MUST_USE lt_err lt_times_begin(struct lt_training *t, int64_t step);
/* The queue of the passes has been synced. */
LT_MUST_USE lt_err lt_times_note(struct lt_training *t, lt_step_record *r, double start_s);
/* A collective call if the step is traced. */
LT_MUST_USE lt_err lt_times_end(struct lt_training *t, int64_t step);
/* Work other than steps follows, whose waits are not measured. */
LT_MUST_USE lt_err lt_times_pause(struct lt_training *t);
/* A host phase of a step, if steps are traced. */
LT_MUST_USE lt_err lt_times_phase(struct lt_training *t, lt_open_span *s, lt_span_kind kind);

/* Called on the leading rank: the prediction in LT_LAYOUT_FILE for this run's layout becomes the
 * line {"kind": "plan"} of the metrics, and is printed beside the measurement. */
LT_MUST_USE lt_err lt_times_predict(struct lt_training *t);
/* Called on the leading rank: write the line {"kind": "ranks"} of the metrics and, at the end of a
 * run, print the table. A run of one rank writes neither. */
LT_MUST_USE lt_err lt_times_tell(struct lt_training *t, bool table);

/* trace.c. A collective call: writes all ranks' spans and transfers of the step to one file in the
 * trace event format, for Perfetto and Chrome. */
LT_MUST_USE lt_err lt_trace_write(struct lt_training *t, int64_t step);

#endif
