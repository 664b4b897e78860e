/* mirror.h: checkpoints that are copied to another place while the run goes on (checkpoint.mirror),
 * so that it can go on elsewhere when its machine and its disk are gone.
 *
 *     RUN/checkpoints/step-N/...  ──▶  MIRROR/checkpoints/step-N/...      manifest.json last
 *
 * A checkpoint of the mirror is complete if it has a manifest: every other file was written before
 * it, and is deleted after it. So a reader never takes a checkpoint of which a part is missing,
 * whenever the copy was interrupted. The checksums in the manifest show whether the files are as
 * they were written.
 *
 *     IDLE ── published ──▶ CLEARING ──▶ SENDING ──▶ ENDING ──▶ IDLE, or the next one
 *                           rank 0:      each rank    rank 0: the manifest;
 *                           another      its files    then old ones are deleted
 *                           manifest of
 *                           this step
 *
 * A thread of each rank does the work of a phase. Its state goes into the record of each step, so
 * all ranks change phases after the same step, as with the saver (saver.h), and none of them
 * waits. While a checkpoint is sent, the run folder keeps it; of those that are published
 * meanwhile, only the newest is sent next.
 *
 * Failures never end the run. The copy itself repeats a request (lateen/copy.h), and a phase is
 * repeated after growing waits. Then the checkpoint is given up, which is reported and counted, and
 * the next one is tried. */
#ifndef LT_TRAIN_MIRROR_H
#define LT_TRAIN_MIRROR_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/error.h"
#include "base/file.h"

struct lt_training;

/* Connections of a copy to the mirror. They are few: each holds a part in memory, and the run also
 * needs cores and network. */
#define LT_MIRROR_CONNECTIONS 4
#define LT_MIRROR_PART_BYTES  ((int64_t)8 << 20)
#define LT_MIRROR_BYTES       ((size_t)LT_MIRROR_CONNECTIONS * (size_t)LT_MIRROR_PART_BYTES)

typedef enum {
    LT_MIRROR_IDLE,
    LT_MIRROR_CLEARING,
    LT_MIRROR_SENDING,
    LT_MIRROR_ENDING
} lt_mirror_phase;

/* The state of a rank's thread. The largest of all ranks decides. */
typedef enum {
    LT_MIRROR_DONE,
    LT_MIRROR_THERE, /* The mirror already has the whole checkpoint. */
    LT_MIRROR_FAILED,
    LT_MIRROR_RUNS
} lt_mirror_news;

typedef struct {
    char place[LT_PATH_BYTES]; /* "MIRROR/checkpoints/"; "": there is no mirror. */
    lt_mirror_phase phase;     /* The same on all ranks, as are */
    atomic_llong step;         /* the step that is being sent, -1: none, */
    atomic_llong next;         /* and the next one to be sent, -1: none. */
    /* The newest step that the mirror has completely, as rank 0 knows; -1: none. */
    int64_t sent;
    int part, n_parts; /* Which of the step's files this rank sends. */
    pthread_t thread;
    bool has_thread;
    atomic_bool done;  /* The thread has ended. */
    atomic_bool stop;  /* The thread must end now, */
    atomic_bool hurry; /* or after its present attempt has failed. */
    lt_err err;
    bool there;
    lt_mirror_news news;                  /* Of this phase. */
    atomic_llong done_bytes, total_bytes; /* Of this phase's copy. */
    int64_t moved_bytes, n_retries;       /* Of this step, by this rank. */
    double start_s;
    int64_t n_sent, n_failed; /* Checkpoints since the run began. */
} lt_mirror;

/* Every rank calls it, the leading one first: checks that the mirror exists and can be written. A
 * failure names checkpoint.mirror. */
LT_MUST_USE lt_err lt_mirror_open(struct lt_training *t);
/* Waits for this rank's thread, which is told to stop. */
void lt_mirror_close(struct lt_training *t);

/* Called by the leading rank before it chooses a checkpoint of the run folder: fetch the mirror's
 * newest complete checkpoint, if it is newer than all in the run folder. */
LT_MUST_USE lt_err lt_mirror_fetch(struct lt_training *t);

/* A checkpoint of this step is in the run folder. All ranks call this after the same step. */
LT_MUST_USE lt_err lt_mirror_publish(struct lt_training *t, int64_t step);
/* Called for the record of a step, and after the records were exchanged. */
lt_mirror_news lt_mirror_look(struct lt_training *t);
LT_MUST_USE lt_err lt_mirror_advance(struct lt_training *t, lt_mirror_news news);
/* A collective call: returns when the newest checkpoint is in the mirror, or was abandoned.
 * patient: after as many attempts as during the run; otherwise after one. */
LT_MUST_USE lt_err lt_mirror_wait(struct lt_training *t, bool patient);

#endif
