/* batch.h: /v1/batches: many requests in a file, answered in the background (lt_request.background)
 * and kept on disk, so that a batch survives the end of the server, at any moment.
 *
 *     from                       to             when
 *     created                    VALIDATING
 *     VALIDATING                 IN_PROGRESS    all lines are validated
 *     IN_PROGRESS                FINALIZING     all lines are answered
 *     VALIDATING, IN_PROGRESS    CANCELLING     its owner cancels it
 *     CANCELLING                 FINALIZING     none of its requests runs
 *     VALIDATING, IN_PROGRESS    FINALIZING     its time is over
 *     FINALIZING                 COMPLETED, CANCELLED or EXPIRED, as it came there
 *     any of these               FAILED         its input has no line or is gone, or its results
 *                                               cannot be kept
 * After a restart, a batch that was CANCELLING is so again, and any other that had not ended is
 * VALIDATING again.
 *
 *     DIR/batches/batch_ID.json        the batch; written when it begins, is cancelled, and ends
 *     DIR/files/file-batch_ID-output   answers, a line each, appended as they come
 *     DIR/files/file-batch_ID-errors   lines that have no good answer, likewise
 *
 * A line of results is one write(2) and carries the number of its line of the input. After a
 * restart the results say which lines were answered: a line cut off at the end of a file is removed
 * and its request runs again; the others do not. So each line of the input is answered exactly once
 * in the two files, whenever the server died. They become files of /v1/files when the batch ends.
 *
 * Validation reads the input a slice at a time; a line that cannot be a request goes to the
 * errors. The requests then enter through the endpoints' own handlers, on connections without a
 * socket (http.h), a few more at a time than the engine can run: batches take turns, line by line.
 *
 * Everything is on the loop's thread, except the end of a batch, which syncs files on the worker
 * pool. */
#ifndef LT_SERVE_BATCH_H
#define LT_SERVE_BATCH_H

#include "serve/api/files/files.h"
#include "serve/api/server.h"

typedef enum {
    LT_BATCH_VALIDATING,
    LT_BATCH_IN_PROGRESS,
    LT_BATCH_FINALIZING,
    LT_BATCH_COMPLETED,
    LT_BATCH_EXPIRED,
    LT_BATCH_CANCELLING,
    LT_BATCH_CANCELLED,
    LT_BATCH_FAILED,
    LT_BATCH_STATES
} lt_batch_state;

typedef enum { LT_LINE_TO_DO, LT_LINE_RUNS, LT_LINE_DONE, LT_LINE_BLANK } lt_batch_line_state;

typedef struct lt_batches lt_batches;
typedef struct lt_batch lt_batch;

/* State of a running batch, until it has ended; NULL in others. */
typedef struct lt_batch_work lt_batch_work;

struct lt_batch {
    lt_batches *all;
    char id[48], owner[LT_OWNER_NAME_BYTES];
    const char *endpoint; /* From lt_batch_endpoint_find. */
    char input[LT_FILE_ID_BYTES], window[16];
    json_t *metadata; /* NULL: none. */
    int64_t order_us; /* Unix microseconds of its creation: the order of batches. */
    int64_t output_s; /* Its results expire this long after they are made; 0: never. */
    lt_batch_state state;
    int64_t times[LT_BATCH_STATES]; /* Unix time in seconds of each state; 0: not reached. */
    int64_t window_s, expires;      /* window_s: the time from creation to expiry; of a new batch */
    int64_t total, completed, failed; /* Numbers of lines. */
    bool has_output, has_errors;      /* Whether there are files of results. */
    char why[300];                    /* Reason for FAILED. */
    lt_batch_work *work;
    lt_batch *next; /* The batch created next. */
};

/* Open the batches in the server's folder of state; unfinished ones continue once the model is
 * loaded. */
LT_MUST_USE lt_err lt_batches_open(lt_batches **out, lt_server *s);
void lt_batches_begin(lt_batches *b); /* The model is loaded. Accepts NULL. */
/* Stop: abandon running requests, which run again after the next start. Accepts NULL. */
void lt_batches_stop(lt_batches *b);
void lt_batches_close(lt_batches *b); /* It must have been stopped. Accepts NULL. */

/* Begin a batch. *asked has endpoint, input, window, window_s, metadata, output_s and owner.
 * NULL: *e says why. */
lt_batch *lt_batch_create(lt_batches *b, const lt_batch *asked, lt_api_error *e);
lt_batch *lt_batch_find(const lt_batches *b, const char *id, const char *owner);
lt_batch *lt_batch_first(const lt_batches *b); /* The oldest. */
bool lt_batch_cancel(lt_batch *t, lt_api_error *e);
/* Write it as clients see it. */
void lt_batch_write(lt_json_out *o, const lt_batch *t);
/* Add its metrics to /metrics. */
void lt_batches_metrics(lt_batches *b, lt_expo *e);

/* ---- Between batch.c (what is on disk) and batch_run.c (what runs) ---- */

/* A request that is being answered. */
typedef struct lt_flight {
    lt_batch *batch;
    int64_t line; /* From 0. */
    lt_http_conn *conn;
    char *custom_id;
    struct lt_flight *next, *prev;
} lt_flight;

struct lt_batch_work {
    lt_batch *batch;
    /* The API key under which it runs; NULL: no key of the server is its owner's. */
    const char *key;
    bool held; /* The input is held: lt_files_get. */
    lt_file_map input;
    int64_t n_lines;
    unsigned char *states; /* (n_lines) lt_batch_line_state */
    size_t *begins;        /* (n_lines + 1) of those that were validated */
    int64_t n_valid;       /* Lines that were validated. */
    int64_t next;          /* No line before it is still to do. */
    int64_t n_runs;
    uint64_t *ids; /* Hashes of custom ids while they are validated; n_ids is a power of two. */
    size_t n_ids;
    int fds[2];          /* Results: output, errors. */
    int64_t sizes[2];    /* Bytes of whole lines in them. */
    lt_batch_state ends; /* FINALIZING: the state that follows. */
    lt_pool_job job;     /* FINALIZING: the job on the worker pool. */
    bool submitted;      /* The pool has it. */
    int64_t n_rest;      /* Lines that were not answered. */
    int64_t n_more;      /* Lines that were not validated. */
    lt_err job_err;
    char job_message[300];
};

struct lt_batches {
    lt_server *server;
    lt_files *files;
    char dir[LT_PATH_BYTES];
    lt_batch *first;
    lt_batch *turn; /* The batch that starts the next line; NULL: the first. */
    lt_flight *flights;
    int64_t n_flights;
    bool runs;
    bool pause; /* Waits until the next second because something was full. */
    /* If results cannot be stored, the pause lasts until until_s (lt_clock_s), and the next is
     * twice as long. 0: they can. */
    double until_s, pause_s;
    struct event *on_turn, *on_second;
    uint64_t completed, failed; /* Numbers of lines since the start. */
};

/* batch.c: write a batch's file; begin its results, or continue those on disk. */
LT_MUST_USE lt_err lt_batch_save(const lt_batch *t);
LT_MUST_USE lt_err lt_batch_work_open(lt_batch *t);
void lt_batch_work_close(lt_batch *t);
/* which: as fds. */
void lt_batch_result_id(const lt_batch *t, int which, char id[LT_FILE_ID_BYTES]);
/* Append to the results, whole lines or not at all. */
LT_MUST_USE lt_err lt_batch_append(lt_batch *t, int which, const char *text, size_t n);
void lt_batch_come_to(lt_batch *t, lt_batch_state state);
bool lt_batch_has_ended(const lt_batch *t);

/* batch_run.c: look for work soon. */
void lt_batches_wake(lt_batches *b);

#endif
