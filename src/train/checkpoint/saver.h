/* saver.h: checkpoints that are written while the run goes on (checkpoint.async).
 *
 *     step N      ── the state is copied to host memory ── steps N + 1, N + 2, ...
 *     thread                 └─ write own files ─────────── all have written ── publish, prune
 *
 * The copy has the master weights and moments that this rank writes. On CPUs it is made at once; on
 * a GPU a queue of its own makes it beside the next step's passes, and the next update waits for
 * it. From then on a thread needs nothing of the run. It writes as a save that waits does
 * (checkpoint.h), so every crash case is the same: until the folder has its name, the checkpoint
 * before it counts.
 *
 *     IDLE ── start ──▶ WRITING ── no rank's thread runs ──▶ PUBLISHING ── nor does this ──▶ IDLE
 *                                  (of several parts)         rank 0's thread
 *
 * No thread calls other ranks. The record of each step says whether a thread still runs, so all
 * ranks go to the next phase after the same step; lt_saver_wait does so at once. A failure of a
 * thread is the failure of the step that finds it. A new save waits for the one before. */
#ifndef LT_TRAIN_SAVER_H
#define LT_TRAIN_SAVER_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/error.h"
#include "train/checkpoint/checkpoint.h"

struct lt_training;

typedef enum { LT_SAVER_IDLE, LT_SAVER_WRITING, LT_SAVER_PUBLISHING } lt_saver_phase;

typedef struct {
    /* Memory of the copy; NULL: this rank writes nothing, or saves are synchronous. */
    void *memory;
    size_t bytes;
    lt_param_buffer master;
    lt_queue *queue; /* The queue that copies; NULL: in host memory. */
    bool copying;    /* The passes' queue does not yet wait for the copy. */
    /* The source of the writes: the run's own objects, with the copy instead of their buffers. */
    lt_model model;
    lt_optimiser optimiser;
    lt_run_state state;
    lt_saver_phase phase; /* The same on all ranks. */
    double start_s;
    pthread_t thread;
    bool has_thread;
    atomic_bool done; /* The thread has ended, with this result. */
    lt_err err;
    lt_failure failure;
} lt_saver;

/* Bytes of the copy on this rank. r and table: of the optimiser's share; shards NULL: one rank. */
size_t lt_saver_bytes(const lt_recipe *r, const lt_param_table *table, const lt_shards *shards);

/* The optimiser must be open. */
LT_MUST_USE lt_err lt_saver_open(struct lt_training *t);
void lt_saver_close(struct lt_training *t); /* Waits for this rank's thread. */

/* Save the current state; the leading rank has completed t->state. The saver must be idle; if the
 * model is divided, the folder must exist. */
LT_MUST_USE lt_err lt_saver_start(struct lt_training *t);
/* Called before an update, which must not change what is being copied. */
LT_MUST_USE lt_err lt_saver_before_update(struct lt_training *t);
/* Fill in a rank's part of the record of a step: whether its thread runs. Returns the thread's
 * failure, if it has failed. */
LT_MUST_USE lt_err lt_saver_look(struct lt_training *t, bool *runs);
/* Called after the records were exchanged. any_runs: some rank's thread is still running. */
LT_MUST_USE lt_err lt_saver_advance(struct lt_training *t, bool any_runs);
/* A collective call: returns when the checkpoint that is being written is published. */
LT_MUST_USE lt_err lt_saver_wait(struct lt_training *t);
/* Waits only for this rank's thread, before the rank reads the checkpoints. */
void lt_saver_settle(struct lt_training *t);

#endif
