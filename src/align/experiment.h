/* experiment.h: measures methods of alignment at inference: methods x parameters x models x tasks,
 * each with several seeds and problems, on the engine of this process.
 *
 *     FILE.yaml ─ lt_experiment_open ─▶ cells: (model, task, method, seed, problem)
 *                                         │ lt_experiment_run: one request of /v1/completions or
 *                                         │ /v1/chat/completions each, through the server's own
 *                                         ▼ handlers; the checker judges the answer
 *     OUT/results.jsonl   a line a cell: right or wrong, tokens, score, divergence, text
 *     OUT/summary.jsonl   a line a (model, task, method): means and their intervals
 *     OUT/report.html     curves, self-contained
 *
 * The methods are the server's: the fields under a method of the file become those of a request, so
 * every field of docs/serve-fields.md may be varied. A list of numbers is a grid: each of its
 * values makes a separate configuration.
 *
 * RESUME    A line of results is written by one call and begins with its cell's number. A run that
 *           was killed resumes with the cells that have no line; a line that was cut off is
 *           removed. The engine is deterministic and each cell has its own seed, so the results do
 *           not depend on when the run was killed: at the end they are sorted, and have the same
 *           bytes.
 * SEEDS     A cell's request has the seed hash(seed, problem), so methods with the same seed get
 *           the same first candidates (common random numbers). */
#ifndef LT_ALIGN_EXPERIMENT_H
#define LT_ALIGN_EXPERIMENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/file.h"
#include "data/check/checker.h"

#define LT_EXPERIMENT_SEEDS 64
#define LT_EXPERIMENT_CELLS ((int64_t)20000000) /* Most cells; more are refused. */

typedef struct {
    char *name, *path, *tokenizer; /* tokenizer "": the model's own. */
} lt_experiment_model;

typedef struct {
    char *prompt; /* The text to complete, with its examples; or the messages of a chat, as JSON. */
    char *answer;
    lt_check_kind checker;
} lt_experiment_problem;

typedef struct {
    char *name;
    bool strict; /* Only marked answers count (LT_ANSWER_STRICT). */
    lt_experiment_problem *problems;
    int64_t n_problems;
} lt_experiment_task;

/* One configuration of a method. */
typedef struct {
    char *method;       /* Its name in the file. */
    json_t *parameters; /* Those of the combination, an object; {}: none. */
    json_t *request;    /* Fields of its requests. */
    bool gold;          /* Its reward is whether the answer is right: {"check": ...}. */
} lt_experiment_config;

typedef struct {
    bool done, right;
    bool scored;      /* score and kl are set. */
    int32_t tokens;   /* Total tokens of all candidates and trials. */
    double score, kl; /* Score and divergence of the answer that was kept; kl in nats. */
} lt_experiment_cell;

typedef struct {
    char out[LT_PATH_BYTES];
    bool chat;
    int64_t max_running; /* Most sequences that the engine runs at once. */
    lt_experiment_model *models;
    lt_experiment_task *tasks;
    lt_experiment_config *configs;
    int64_t n_models, n_tasks, n_configs, n_seeds;
    int64_t seeds[LT_EXPERIMENT_SEEDS];
    uint64_t hash;             /* Hash of everything that determines the results. */
    lt_experiment_cell *cells; /* (n_cells), by lt_experiment_index. */
    int64_t n_cells, n_done;
} lt_experiment;

/* The coordinates of a cell; LT_EXPERIMENT_CELLS bounds it. */
typedef struct {
    int64_t model, task, config, seed, problem;
} lt_experiment_place;
int64_t lt_experiment_index(const lt_experiment *e, const lt_experiment_place *p);
lt_experiment_place lt_experiment_place_of(const lt_experiment *e, int64_t cell);

/* Read the file and make the problems. out: the folder for results; NULL: the one that the file
 * names. Free with lt_experiment_close, also after a failure. */
LT_MUST_USE lt_err lt_experiment_open(lt_experiment *e, const char *path, const char *out);
void lt_experiment_close(lt_experiment *e);

/* Refuse keys that nothing reads (ARG). known: names, ended by NULL. */
LT_MUST_USE lt_err lt_experiment_check_keys(const json_t *object, const char *const *known,
                                            const char *where);

/* The problems of a task from the rows under "tasks.I.": experiment_task.c. */
LT_MUST_USE lt_err lt_experiment_read_task(lt_experiment_task *t, const json_t *task, bool chat,
                                           const char *where);

/* A model for the server that runs the cells; ctx is the caller's. */
typedef struct lt_model lt_model;
typedef struct lt_tokenizer lt_tokenizer;
typedef struct {
    lt_err (*load)(void *ctx, const lt_experiment_model *m, lt_model **model, lt_tokenizer **t);
    void (*unload)(void *ctx);
    void (*progress)(void *ctx, int64_t done, int64_t of); /* May be NULL. */
    void *ctx;
} lt_experiment_host;

/* Run the cells that have no result yet, write each result as it arrives, then summary and
 * report. */
LT_MUST_USE lt_err lt_experiment_run(lt_experiment *e, const lt_experiment_host *host);

/* Read the results in the folder, and write their summary and report. */
LT_MUST_USE lt_err lt_experiment_read(lt_experiment *e);
/* Write summary and report of the finished cells. */
LT_MUST_USE lt_err lt_experiment_report(const lt_experiment *e);

/* The share of right answers of n problems, each asked `seeds` times, with a 95 % interval:
 * Wilson's, for the effective number of independent answers, which follows from the variance
 * between problems. right (n): how many of a problem's answers are right. */
typedef struct {
    double mean, low, high;
} lt_experiment_share;
lt_experiment_share lt_experiment_share_of(const int32_t *right, int64_t n, int64_t seeds);

#endif
