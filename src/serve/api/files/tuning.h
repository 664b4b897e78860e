/* tuning.h: /v1/fine_tuning/jobs: `lateen train`, in a separate process, trains adapters of the
 * served model for tenants, and the server serves them when they are done. Jobs are kept on disk
 * and survive the end of the server at any moment.
 *
 *     from                 to            when
 *     created              VALIDATING
 *     VALIDATING           QUEUED        every line of its files is right
 *     QUEUED               RUNNING       fewer than --fine-tuning-jobs trainers run
 *     RUNNING              SUCCEEDED     the trainer has ended well
 *     RUNNING              QUEUED        the trainer died of a signal or its device, fewer than
 *                                        three times: it goes on from its newest checkpoint
 *     QUEUED, RUNNING      PAUSED        its owner pauses it; the trainer saves and ends
 *     PAUSED               QUEUED        its owner resumes it
 *     any that has not ended   CANCELLED its owner cancels it; the trainer is killed
 *     VALIDATING, RUNNING  FAILED        a line is wrong, or the trainer fails
 * After a restart a job that was VALIDATING is so again, and one that was RUNNING is QUEUED.
 * With --fine-tuning-submit slurm, trainers are jobs of Slurm (tuning_slurm.c), and then
 *     QUEUED               RUNNING       Slurm's job begins
 *     RUNNING              QUEUED        it queues again by itself: it reached its time limit, was
 *                                        preempted or lost its node
 *     QUEUED, RUNNING      CANCELLED     somebody else cancels it
 * and a restart changes nothing.
 *
 *     DIR/ftjob-ID/job.json       the job; written at each change of its state
 *     DIR/ftjob-ID/events.jsonl   what happened, a line each, as clients see it
 *     DIR/ftjob-ID/train.jsonl    its data, as `lateen train` reads them; valid.jsonl;
 *                                 template.jinja
 *     DIR/ftjob-ID/run            the run folder: run/adapter, and run/adapters/step-N of its
 *                                 newest checkpoints
 *     DIR/ftjob-ID/log            what the trainer says
 *     DIR/ftjob-ID/job.sbatch     Slurm's script of it
 *
 * PROCESSES  A trainer has the lowest priority and a separate session. When the server dies, the
 * kernel sends it SIGTERM, on which it saves and ends. The next server starts a trainer for the
 * job only when the run folder's lock is free (platform/agent/lease.h), so that two never run.
 * EVENTS     Each step in metrics.jsonl becomes an event once: the last event of the file tells
 * which steps have one.
 * NAMES      ft:BASE:SUFFIX:ID, and ft:BASE:SUFFIX:ID:ckpt-step-N of a checkpoint, are owned
 * adapters (adapters.h). Such a model may be the base of another job, which begins with its
 * numbers.
 * DISK       An ended job keeps only its adapters and metrics.
 *
 * Everything is on the loop's thread, except that lines are checked on the worker pool, a slice at
 * a time. */
#ifndef LT_SERVE_TUNING_H
#define LT_SERVE_TUNING_H

#include <sys/types.h>

#include "platform/cluster/queue.h"
#include "platform/command.h"
#include "serve/api/files/files.h"
#include "serve/api/server.h"

#define LT_TUNING_SUFFIX 64 /* OpenAI's limit in characters. */

typedef enum {
    LT_TUNING_VALIDATING,
    LT_TUNING_QUEUED,
    LT_TUNING_RUNNING,
    LT_TUNING_PAUSED,
    LT_TUNING_SUCCEEDED,
    LT_TUNING_FAILED,
    LT_TUNING_CANCELLED,
    LT_TUNING_STATES
} lt_tuning_state;

typedef struct lt_tunings lt_tunings;
typedef struct lt_tuning lt_tuning;
typedef struct lt_tuning_check lt_tuning_check; /* The running check of its files. */

typedef enum { LT_TUNING_SBATCH, LT_TUNING_SCANCEL, LT_TUNING_SACCT } lt_tuning_call;

/* A hyperparameter that is "auto" is 0 until the lines have been counted. */
struct lt_tuning {
    lt_tunings *all;
    char id[48], owner[LT_OWNER_NAME_BYTES];
    char model[256]; /* Named by the request: the served model, or one made by a job. */
    /* Folder below DIR of the adapter with which training begins; "": a new one. */
    char from[160];
    char training[LT_FILE_ID_BYTES], validation[LT_FILE_ID_BYTES]; /* Ids of files; "": none. */
    char suffix[LT_TUNING_SUFFIX + 1];
    bool pairs; /* Method dpo. */
    int64_t seed, epochs, batch;
    double multiplier, beta;
    json_t *metadata;                    /* NULL: none. */
    int64_t state;                       /* lt_tuning_state */
    int64_t order_us, created, finished; /* Unix; finished 0: not yet. */
    /* Known when the lines are checked. */
    int64_t examples, tokens, longest, held_out, steps;
    int64_t deaths; /* Number of its trainers that have died. */
    int64_t bytes;  /* Bytes on disk, once it has ended. */
    bool deleted;   /* The owner has deleted the model. */
    /* FAILED. */
    char why[400], code[32], param[24];
    int64_t line; /* Line of the file with the error, from 1; 0: none. */
    /* Trained by Slurm. */
    int64_t slurm_job;    /* Number of the Slurm job; 0: not known. */
    bool slurm_ending;    /* That job is cancelled until Slurm reports its end. */
    char slurm_told[300]; /* The last event's text about it. */

    /* Not on disk. */
    lt_tuning_check *check;
    pid_t trainer;          /* 0: no trainer runs. */
    lt_command call;        /* The Slurm command that runs for this job, */
    lt_tuning_call calling; /* and its kind. */
    double slurm_known_s;   /* When the number became known. */
    double slurm_next_s;    /* sbatch is not tried again before this time. */
    double started_s;
    int64_t step, first_step; /* Newest step; the step at which this trainer began. */
    int64_t told, told_valid; /* Last steps of training and of validation that have an event. */
    int64_t n_events;
    int64_t read_at;  /* Number of bytes of metrics.jsonl that were read, */
    uint64_t read_of; /* and the inode of that file. */
    int64_t saved[8]; /* (n_saved) steps of the checkpoints whose adapters are served */
    int n_saved;
    lt_tuning *next; /* Created later. */
};

struct lt_tunings {
    lt_server *server;
    char dir[LT_PATH_BYTES];
    lt_tuning *first;
    struct event *on_time;
    bool runs;
    /* Slurm. */
    lt_queue_words words;        /* Further options of sbatch. */
    char program[LT_PATH_BYTES]; /* Path of this program. */
    lt_command squeue;
    double squeue_s;    /* When squeue was started last. */
    bool squeue_failed; /* The last squeue failed. */
    bool squeue_seen;   /* squeue has answered this server. */
};

/* Open the jobs of the server's folder and name their adapters; lt_tunings_begin continues them
 * once the model is loaded. */
LT_MUST_USE lt_err lt_tunings_open(lt_tunings **out, lt_server *s);
void lt_tunings_begin(lt_tunings *f); /* Accepts NULL. */
/* Stop: trainers save and end, but are not waited for. Accepts NULL. */
void lt_tunings_stop(lt_tunings *f);
/* It must have been stopped, and the worker pool too. Accepts NULL. */
void lt_tunings_close(lt_tunings *f);

/* Create a job. *asked has the request's fields, and owner and from. NULL: *e says why. */
lt_tuning *lt_tuning_create(lt_tunings *f, const lt_tuning *asked, lt_api_error *e);
lt_tuning *lt_tuning_find(const lt_tunings *f, const char *id, const char *owner);
bool lt_tuning_cancel(lt_tuning *t, lt_api_error *e);
bool lt_tuning_pause(lt_tuning *t, lt_api_error *e);
bool lt_tuning_resume(lt_tuning *t, lt_api_error *e);

/* Unix time in seconds at which this checkpoint was written; 0: it is gone. */
int64_t lt_tuning_saved_at(const lt_tuning *t, int64_t step);
/* The job that made the model of this name. *step: -1, or the step of the checkpoint. */
lt_tuning *lt_tuning_of_model(const lt_tunings *f, const char *name, const char *owner,
                              int64_t *step);
bool lt_tuning_delete_model(lt_tuning *t, int64_t step, lt_api_error *e);
/* The folder below DIR of its adapter; step -1: of the final adapter. */
void lt_tuning_adapter(const lt_tuning *t, int64_t step, char out[160]);

/* Write the job as clients see it. */
void lt_tuning_write(lt_json_out *o, const lt_tuning *t);
void lt_tunings_metrics(const lt_tunings *f, lt_expo *e);

/* ---- Between tuning.c (what is on disk), tuning_models.c (adapters), tuning_check.c (lines),
 * tuning_run.c (trainers) and tuning_slurm.c (trainers by Slurm) ---- */

#define LT_TUNING_NAME_BYTES   256
#define LT_TUNING_EVENTS_BYTES ((size_t)64 << 20) /* Most bytes of events.jsonl. */
void lt_tuning_name(const lt_tuning *t, int64_t step, char out[LT_TUNING_NAME_BYTES]);
bool lt_tuning_has_ended(const lt_tuning *t); /* SUCCEEDED, FAILED or CANCELLED. */
/* A file of the job. */
LT_MUST_USE lt_err lt_tuning_path(const lt_tuning *t, const char *name, char out[LT_PATH_BYTES]);
LT_MUST_USE lt_err lt_tuning_save(const lt_tuning *t);
/* Id of the file of its metrics among /v1/files. */
void lt_tuning_result_id(const lt_tuning *t, char id[LT_FILE_ID_BYTES]);
/* Serve its adapter, or that of a checkpoint. */
void lt_tuning_own(lt_tuning *t, int64_t step);
/* Enter a state and write it to disk; an event reports it. A failure to write is logged. */
void lt_tuning_come_to(lt_tuning *t, lt_tuning_state state);
void lt_tuning_fail(lt_tuning *t, const char *code, const char *param, int64_t line,
                    const char *why);
/* Append an event; data: members of its "data", or NULL. */
void lt_tuning_tell(lt_tuning *t, const char *level, const char *type, const lt_json_out *data,
                    const char *fmt, ...) LT_PRINTF(5, 6);
/* Remove the files that an ended job does not need, and record the size of the others. */
void lt_tuning_tidy(lt_tuning *t);
/* The metrics of a step in metrics.jsonl; NAN: absent. */
typedef struct {
    int64_t step;
    double loss, accuracy, valid_loss, valid_accuracy;
} lt_tuning_step;
/* malloc'ed, ordered by step; NULL: none. */
lt_tuning_step *lt_tuning_steps(const lt_tuning *t, size_t *n);
/* A member of an object, unless the value is NAN. */
void lt_tuning_put_known(lt_json_out *o, const char *key, double value);
/* Add the metrics of a line of metrics.jsonl. False: it has none of a training or validation
 * step. */
bool lt_tuning_step_read(lt_tuning_step *s, const char *line, size_t n);
/* Name the adapters of its new checkpoints, and forget those that are gone. */
void lt_tuning_name_saved(lt_tuning *t);

/* Check the job's files; it then becomes QUEUED or FAILED. */
void lt_tuning_begin_check(lt_tuning *t);
void lt_tuning_end_check(lt_tuning *t);  /* Abandon the check. Accepts a job without one. */
void lt_tuning_drop_check(lt_tuning *t); /* The same when the worker pool has stopped. */

void lt_tunings_wake(lt_tunings *f); /* Look for work soon. */
void lt_tuning_stop_trainer(lt_tuning *t, int signal);
/* Whether it has a trainer, or a Slurm job that has not ended. */
bool lt_tuning_is_trained(const lt_tuning *t);
/* A trainer begins; it continues from the last event. */
void lt_tuning_has_begun(lt_tuning *t);
/* Its trainer has succeeded; or failed, and the last line of its log follows `ended`. */
void lt_tuning_succeed(lt_tuning *t);
void lt_tuning_fail_by_log(lt_tuning *t, const char *ended);
/* How often in a row trainers may die without a fault of the job. */
#define LT_TUNING_MOST_DEATHS 3

/* Check that Slurm can train jobs, and open what is needed. */
LT_MUST_USE lt_err lt_tunings_open_slurm(lt_tunings *f);
/* Submit a job. words: arguments after `lateen train`, ended by NULL. */
LT_MUST_USE lt_err lt_tuning_submit(lt_tuning *t, const char *const *words);
/* Whether it may be submitted now. */
bool lt_tuning_may_submit(const lt_tuning *t);
/* Cores per trainer. */
int64_t lt_tunings_slurm_cores(const lt_tunings *f);
/* Whether this server does not yet know which jobs an earlier one submitted. */
bool lt_tunings_seek(const lt_tunings *f);
/* Ask Slurm about all jobs, and handle its answers; never waits. */
void lt_tunings_ask_slurm(lt_tunings *f);
void lt_tunings_close_slurm(lt_tunings *f);
/* Read what its trainer has written since the last time. */
void lt_tuning_read_run(lt_tuning *t);

#endif
