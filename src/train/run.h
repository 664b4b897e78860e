/* run.h: one training run: the objects that it owns, and its parts. Its loop is lt_run_training
 * (run.c). */
#ifndef LT_TRAIN_RUN_H
#define LT_TRAIN_RUN_H

#include "base/file.h"
#include "base/log.h"
#include "lateen/data.h"
#include "lateen/tokenizer.h"
#include "model/pass/pass.h"
#include "parallel/pipeline.h"
#include "parallel/world.h"
#include "parallel/zero.h"
#include "platform/copy/shard_cache.h"
#include "train/chat_data.h"
#include "train/checkpoint/checkpoint.h"
#include "train/diloco.h"
#include "train/recipe/fit.h"
#include "train/watch/guard.h"
#include "train/invariant.h"
#include "train/report/live.h"
#include "train/recipe/memory.h"
#include "train/report/metrics.h"
#include "train/checkpoint/mirror.h"
#include "train/mixture.h"
#include "train/objective.h"
#include "train/optimiser.h"
#include "train/recipe/recipe.h"
#include "train/record.h"
#include "train/watch/replay.h"
#include "train/watch/replicas.h"
#include "train/report/report.h"
#include "train/rows.h"
#include "train/checkpoint/snapshot.h"
#include "train/checkpoint/saver.h"
#include "train/report/times.h"
#include "train/report/tensorboard.h"
#include "tensor/backend.h"

#define LT_CURVE_ROOM 2048

/* Rows of tokens in one arena, which are cut into micro-batches. */
typedef struct lt_step_rows {
    lt_arena arena;
    lt_row_batch batch; /* Room for the largest step. */
} lt_step_rows;

/* Memory for an objective's values, (rows of a pass, seq) each. With cp, tokens, positions and
 * own_labels hold this rank's part of a row; labels and values hold whole rows, and `own` holds
 * the values that the ranks of cp send each other. */
typedef struct {
    int32_t *tokens, *labels, *positions, *own_labels;
    float *values, *dvalues, *own;
} lt_objective_room;

/* The rows of a step, drawn while the previous one computes. */
typedef struct lt_draw {
    lt_step_rows rows;
    bool drawn;
    uint64_t seen; /* Number of the run's rows before these. */
    lt_step_plan plan;
    int64_t n_rows;     /* Rows of the step for this rank. */
    int64_t staged;     /* Rows already given to the pass. */
    lt_row_place place; /* The position after these rows, for a checkpoint of this step. */
    double wait_s;
} lt_draw;

typedef struct lt_training {
    lt_recipe recipe;
    struct lt_together *together; /* Runs that share model and passes with this one (together.h), */
    int member;                   /* and its index among them. NULL: there are none. */
    lt_device *device;
    lt_device *own_device; /* Closed with the run; NULL: the device belongs to the caller. */
    char checkpoints[LT_PATH_BYTES], metrics_path[LT_PATH_BYTES], exit_path[LT_PATH_BYTES];
    /* Lease of the run folder; ranks that do not lead only know its epoch. */
    lt_lease lease;
    lt_tokenizer *tokenizer; /* NULL: none given. */
    lt_tokenizer_info tokenizer_info;
    lt_chat_source chat; /* For conversations; template NULL: there are none. */
    /* (vocab_size): bytes of text per token; NULL without a tokenizer. */
    int32_t *token_bytes;
    lt_model_spec spec; /* Spec of the model; the world's layout points to it. */
    /* The parts of the model, and of its adapters, with which passes compute and that this rank
     * keeps. Unused if this rank holds and keeps everything. */
    lt_rank_parts parts;
    lt_model *model; /* The model on which passes run, */
    /* and the one that the optimiser and checkpoints use; they differ only with ZeRO or
     * adapters. */
    lt_model *trained;
    /* Adapters that are trained beside the model; NULL: the model itself is trained. */
    lt_lora *lora;
    /* This rank's slices of the model that the adapters are trained beside; NULL: it has the
     * whole model. */
    lt_model *kept;
    lt_model *whole;     /* All weights at once, see lt_objective_open_whole; NULL: not needed. */
    lt_lora *whole_lora; /* Its adapters; NULL: none. */
    lt_shards shards;
    lt_zero zero;
    lt_pass *pass;           /* NULL: the layers belong to a pipeline. */
    lt_stages stages;        /* Stages of the pipeline. */
    lt_pipeline *pipeline;   /* NULL: there is none. */
    lt_pass_batch *batches;  /* Batches of a step, for the pipeline. */
    lt_pipeline_times piped; /* Times of all the pipeline's steps. */
    int64_t n_piped;         /* Number of those steps. */
    lt_invariant invariant;
    lt_optimiser optimiser;
    lt_diloco diloco;                        /* State of a run of several sites. */
    lt_mixture train_mixture, valid_mixture; /* Loader options point into them. */
    lt_shard_cache *shard_cache;             /* data.cache; NULL: no shard is streamed. */
    lt_loader *loader;
    lt_loader_options valid_options; /* Options of a validation; n_sources 0: there is none. */
    const lt_objective *objective;   /* NULL: the mean loss of the labels. */
    lt_objective_room objective_room;
    lt_row_source held_out; /* An objective's validation rows. */
    int64_t n_held_out;     /* Examples of held_out; 0: there are none. */
    size_t objective_bytes; /* Bytes that the objective holds on the host. */
    lt_draw draws[2];       /* Draws of this step and the next, alternating. */
    lt_step_rows valid_rows;
    lt_row_source source; /* The source of the steps' rows. */
    lt_row_place place;   /* The position after the last complete step. */
    lt_guard guard;
    lt_ranks ranks;                /* Zeroed: this rank is alone, and leads. */
    lt_world *world;               /* Belongs to the caller; NULL, or without ranks: one rank. */
    lt_rank_records *rank_records; /* NULL: this rank is alone, or the caller combines records. */
    lt_times times;
    lt_saver saver;
    lt_mirror mirror;
    lt_replicas replicas;
    lt_replay replay;
    int64_t first_step; /* First step of this process. */
    lt_metrics metrics;
    lt_page *page;
    lt_live *live;               /* NULL: metrics.listen is empty. */
    lt_tensorboard *tensorboard; /* NULL: log.tensorboard is off. */
    lt_goodput goodput;          /* Where the time of the run goes; kept by the leading rank. */
    lt_progress progress;
    lt_run_state state;
    char resume_path[LT_PATH_BYTES]; /* The checkpoint to resume from; "": a new run. */
    /* It is the newest checkpoint of this run, so an older one is taken if it is broken. */
    bool resume_newest;
    /* The run had diverged: resume from this step or an earlier one (health.c); INT64_MAX: it had
     * not. */
    int64_t back_to;
    lt_snapshots snapshots; /* In the memory of the nodes. */
    json_t *changes;        /* Options that differ from the checkpoint's, see resume.c. */
    json_t *compared;       /* The differences from this recipe. */
    int64_t n_allowed;      /* Changes that only allow_change permitted. */
    json_t *data;           /* Fingerprints of the data, see data/fingerprint.h. */
    int64_t micro;          /* Rows of one pass. */
    int64_t saved_step;   /* Step of the newest checkpoint, published or being written; -1: none. */
    int64_t applied_step; /* Step of the last update: since then the weights are the same. */
    bool dead;            /* The last step's gradient was exactly 0, its loss was not. */
    bool save_late;       /* A checkpoint is due, and waits for a finite loss. */
    bool undrawn;         /* The rows of the step after state.step could not be drawn. */
    int64_t sampled_step; /* Step of the newest sample and validation, -1: none. */
    int64_t evaluated_step;
    double flops_per_token, peak_flops;
    double start_s, energy_start_j; /* The device's energy counter; < 0: it has none. */
    /* Resident bytes when the run began, and bytes that the tokenizer added. */
    size_t program_bytes, tokenizer_bytes;
    lt_pass_memory pass_memory; /* Memory of the pass, as measured. */
    bool keep_logits;           /* Its logits stay for the backward pass (lt_fit_keep_logits). */
    lt_memory_plan memory;
    double loss_last;
    /* Losses of this process, for the curve at the end: means of losses_each steps, and the next
     * mean so far. */
    double losses[LT_CURVE_ROOM], losses_open;
    int64_t n_losses, losses_each, losses_in_open;
} lt_training;

/* open_model.c: the model of a run. */
/* The model that a recipe trains, with the sizes from its tokenizer or model.init, as opening the
 * run would find it. */
LT_MUST_USE lt_err lt_training_spec(lt_model_spec *out, const lt_recipe *r);
LT_MUST_USE lt_err lt_training_open_model(lt_training *t);
/* A collective call: the checksum of the model of the run, not of its adapters (checksum.h). */
LT_MUST_USE lt_err lt_training_checksum(uint64_t *out, const lt_training *t);
/* Why mesh.zero 2 and 3 do not work with this pipeline; NULL: they do. */
const char *lt_training_zero_refused(const lt_recipe *r, const lt_model_spec *spec);
/* err, with the name of its option in the message: a missing path may be that of any option. */
lt_err lt_training_about(const char *option, lt_err err);
/* Open the tokenizer of the recipe, which may be that of model.init; lt_tokenizer_close it. */
LT_MUST_USE lt_err lt_training_open_tokenizer(lt_tokenizer **out, const lt_recipe *r);
extern const lt_tokenizer_info lt_training_no_tokenizer;

/* open.c: everything else from the recipe to the first step. */
/* Bytes of an lt_step_rows; memory for one, to be freed with lt_arena_close of its arena. */
size_t lt_step_rows_bytes(int64_t batch, int64_t seq, bool weights);
LT_MUST_USE lt_err lt_step_rows_open(lt_step_rows *s, int64_t batch, int64_t seq, bool weights);
LT_MUST_USE lt_err lt_training_open(lt_training *t, const lt_recipe *r, lt_device *device);
/* How a run is opened as one rank of several, or with the rows of another source instead of the
 * recipe's data.train. The source must outlive the run. A rank that does not lead writes no log,
 * metrics or page, and holds no lock. */
typedef struct {
    lt_ranks ranks;
    lt_world *world;               /* NULL: alone. It stays the caller's. */
    const lt_row_source *rows;     /* NULL: the loader over data.train. Of this rank's rows. */
    const lt_objective *objective; /* Brings its own rows; NULL: the mean loss of the labels. */
    /* Epoch of the lease that the leading rank has taken; it passes 0. */
    int64_t epoch;
    const lt_snapshots *snapshots; /* NULL: none. */
    struct lt_together *together;  /* It is run `member` of these; NULL: alone. */
    int member;
} lt_training_with;
LT_MUST_USE lt_err lt_training_open_with(lt_training *t, const lt_recipe *r, lt_device *device,
                                         const lt_training_with *with);
/* All ranks of a world call it: the leading one opens first, locks the folder and cleans it up;
 * then the others read it. A world without ranks means a run of one rank. */
LT_MUST_USE lt_err lt_training_open_ranks(lt_training *t, const lt_recipe *r, lt_device *device,
                                          lt_world *world, const lt_objective *objective);
/* lt_training_open_ranks in parts, for runs that share a world (together.c), which then connects
 * its GPUs. in_turn: the leading rank opens first, then the others. The next asks whether all
 * have loaded the checkpoint of the same step; if not, those that loaded a later one must open
 * again. The last does what the ranks do together before the first step. */
LT_MUST_USE lt_err lt_training_open_in_turn(lt_training *t, const lt_recipe *r, lt_device *device,
                                            lt_world *world, const lt_training_with *common);
LT_MUST_USE lt_err lt_training_agree_on_step(const lt_training *t, const lt_world *w, bool *same);
LT_MUST_USE lt_err lt_training_begin(lt_training *t);
/* The run that opened the model and the pass: this one, or the first of the runs trained
 * together. */
const lt_training *lt_training_host(const lt_training *t);
lt_pass_options lt_training_pass_options(const lt_training *t);
int lt_training_dp(const lt_training *t);          /* Ranks that share the rows of a step; */
int lt_training_dp_rank(const lt_training *t);     /* the place of this rank among them; */
int lt_training_cp(const lt_training *t);          /* ranks that share the tokens of a row; */
int lt_training_tp(const lt_training *t);          /* ranks that share every layer. */
int lt_training_shares(const lt_training *t);      /* lt_training_dp of all sites together. */
bool lt_training_has_ranks(const lt_training *t);  /* There are other ranks. */
lt_board *lt_training_board(const lt_training *t); /* NULL: no launcher watches this rank. */
/* Passes into which a rank divides its rows of a step where batch.micro does not say: in a pipeline
 * as many as keep its bubble under a fifth of the step. */
static inline int64_t lt_training_passes(const lt_mesh_shape *s) {
    return s->pp > 1 ? 4 * s->pp : 1;
}
/* Rank 0 does not keep all that a checkpoint needs; and it lacks weights that a pass needs. */
bool lt_training_is_divided(const lt_training *t);
bool lt_training_is_whole_nowhere(const lt_training *t);
/* Cut n whole rows to this rank's tokens, in place: afterwards each row has seq / cp tokens. */
void lt_training_take_tokens(const lt_training *t, lt_row_batch *b, int64_t n);
/* n rows cut by lt_training_take_tokens, from row `first` on, in the form that a pass takes. */
lt_pass_batch lt_training_slice(const lt_training *t, const lt_row_batch *b, int64_t first,
                                int64_t n);
/* Write into b which rows of the run it holds; seen: rows of the run before this step. */
void lt_training_number(const lt_training *t, lt_pass_batch *b, uint64_t seen, int64_t first);
/* If several ranks have seen the same rows, one reports them: zero what another rank reports. */
void lt_training_tell_once(const lt_training *t, lt_step_record *r);
void lt_training_close(lt_training *t);
lt_queue *lt_training_queue(const lt_training *t); /* The queue on which gradients are computed. */
/* The pass, or those of the pipeline's chunks; returns their number. */
int lt_training_passes_of(const lt_training *t, lt_pass *passes[LT_MAX_LAYERS]);
/* Bytes of gradients and scratch of one of several adapters in these passes. */
size_t lt_training_join_bytes(const lt_training *t);
/* All passes compute with the adapters, or, for a while, without. */
void lt_training_use_adapters(lt_training *t, bool on);
/* All passes compute log-probabilities at this temperature. */
void lt_training_set_temperature(lt_training *t, float temperature);

/* pipeline.c: a run whose layers are divided among the stages of a pipeline. */
bool lt_training_has_pipeline(const lt_training *t);
/* Assign layers to ranks; the model's shape is known. */
LT_MUST_USE lt_err lt_training_place_stages(lt_training *t);
/* Set model.dtype where it is auto; before lt_adapters_resolve. */
LT_MUST_USE lt_err lt_training_resolve_dtype(lt_recipe *r, bool on_device);
/* Sets pass_memory; before the model is opened. */
LT_MUST_USE lt_err lt_training_measure_pipeline(lt_training *t, lt_dtype dtype,
                                                const lt_pass_options *o);
LT_MUST_USE lt_err lt_training_open_pipeline(lt_training *t, const lt_pass_options *o);
/* Forward and backward passes of micro-batches cut from rows [0, n_rows) of a step; seen: rows of
 * the run before them. */
LT_MUST_USE lt_err lt_training_run_pipeline(lt_training *t, const lt_row_batch *rows, uint64_t seen,
                                            int64_t n_rows, float grad_scale, lt_pass_result *sum);
/* The same for the n micro-batches in t->batches. */
LT_MUST_USE lt_err lt_training_run_batches(lt_training *t, int64_t n, float grad_scale,
                                           lt_pass_result *sum);
/* A collective call: writes each rank's bubble, as computed from the schedule and as measured, to
 * log and metrics. */
LT_MUST_USE lt_err lt_training_tell_pipeline(lt_training *t);

/* step.c: one optimiser step. */
typedef struct {
    lt_step_plan plan;
    lt_step_record record; /* Record of all ranks. */
    lt_step_decision decision;
    double start_s, step_s;
    lt_open_span span; /* The step, in a trace. */
} lt_step_outcome;
LT_MUST_USE lt_err lt_training_step(lt_training *t, lt_step_outcome *out);
/* lt_training_step in parts, for a caller that computes the gradients (together_step.c): the rows
 * of the step, in lt_training_draw; after its last pass the sums over ranks, the squares of the
 * gradients and the next rows; the results of the passes, when the queue is done; and what
 * follows from them. err is the error with which an earlier part failed. */
LT_MUST_USE lt_err lt_training_step_begin(lt_training *t, lt_step_outcome *out);
LT_MUST_USE lt_err lt_training_step_ahead(lt_training *t);
LT_MUST_USE lt_err lt_training_step_add(lt_training *t, lt_step_outcome *out,
                                        const lt_pass_result *r);
LT_MUST_USE lt_err lt_training_step_end(lt_training *t, lt_step_outcome *out, lt_err err);
static inline const lt_draw *lt_training_draw(const lt_training *t) {
    return &t->draws[(t->state.step + 1) % 2];
}
/* Scale of every gradient of a pass: 1 / (labels of a full micro-batch). */
double lt_training_gradient_scale(const lt_training *t);
/* Go on after this step, if it is a later one: its rows and all earlier ones are skipped. */
LT_MUST_USE lt_err lt_training_skip(lt_training *t, int64_t step);
/* May the run stop, and a checkpoint be made, after the current step? */
bool lt_training_is_whole(const lt_training *t);
/* A collective call: the weights that this rank trains have changed; send them to all ranks. */
LT_MUST_USE lt_err lt_training_gather(lt_training *t);
/* Losses of a batch, without gradients; only the rank that reports them gets them. */
LT_MUST_USE lt_err lt_training_eval(lt_training *t, const lt_pass_batch *b, lt_pass_result *r);
/* The gradients over the table of the model, while this rank computes them. */
const lt_param_buffer *lt_training_pass_gradients(const lt_training *t);
/* The gradients of the last step, summed over all ranks, as a buffer over the table of the
 * optimiser's share. */
const lt_param_buffer *lt_training_gradients(const lt_training *t);
/* Evaluate the current weights on rows of the last step, over all ranks. record->rows 0: there was
 * no step. */
LT_MUST_USE lt_err lt_training_probe(lt_training *t, lt_step_record *record);

/* resume.c. compare: choose the checkpoint to resume from, and refuse a recipe that contradicts it;
 * called with the model open and nothing loaded. resume: load it. */
LT_MUST_USE lt_err lt_training_compare(lt_training *t);
LT_MUST_USE lt_err lt_training_resume(lt_training *t);
/* A collective call when all ranks are open: the weights beside which adapters are trained, which
 * no checkpoint holds, must be those of the loaded one. */
LT_MUST_USE lt_err lt_training_compare_base(lt_training *t);
/* Has this start changed an option? allow_or: returns err, but for STATE a warning if allow_change
 * names the option, else err with a message that proposes allow_change. */
bool lt_training_has_changed(const lt_training *t, const char *name);
LT_MUST_USE lt_err lt_training_allow_or(const lt_training *t, const char *name, lt_err err);
/* For lt_objective.data: note under `name`, for later manifests, what identifies a part of the data
 * now. True: the loaded checkpoint has something else there. */
bool lt_training_note(lt_training *t, const json_t *then, const char *name, const char *now);
/* The same for the model at a path, which the option names and which no checkpoint holds. STATE if
 * the loaded checkpoint has another one. */
LT_MUST_USE lt_err lt_training_note_model(lt_training *t, const json_t *then, const char *option,
                                          const char *path);
LT_MUST_USE lt_err lt_training_leave_branch(lt_training *t, int64_t step);
LT_MUST_USE lt_err lt_training_write_recipe(const lt_training *t);
LT_MUST_USE lt_err lt_training_tell_changes(lt_training *t); /* Into metrics.jsonl. */
/* history.c. A free name RUN/history/NAME-NNN.SUFFIX. */
LT_MUST_USE lt_err lt_training_history_path(const lt_training *t, char path[LT_PATH_BYTES],
                                            const char *name, const char *suffix);

/* health.c: judge: may a checkpoint be made of the current weights? *publish false: not now; the
 * reason was logged. The other function ends a run that cannot go on: it adds to the message
 * which checkpoint to resume from, and records it for the next start. */
LT_MUST_USE lt_err lt_training_judge(lt_training *t, bool *publish);
lt_err lt_training_give_up(lt_training *t);
/* After a run ended like this: t->back_to, the latest step to resume from; then, once nothing can
 * refuse the start any more, rename the newer checkpoints. */
LT_MUST_USE lt_err lt_training_find_back(lt_training *t);
LT_MUST_USE lt_err lt_training_go_back(lt_training *t);

/* evaluate.c: validation, and a sample of text. Each writes a line of metrics. check: if there is
 * nothing to validate on, fails before the first step instead of hours later. */
LT_MUST_USE lt_err lt_training_check_validation(lt_training *t);
/* Does any of the ranks that a pass needs still have rows? Then all run a pass: weights are
 * gathered from ranks that divide them, and rows are sent to ranks that divide the experts. */
LT_MUST_USE lt_err lt_training_any_rows(const lt_training *t, bool *rows);
LT_MUST_USE lt_err lt_training_evaluate(lt_training *t);
LT_MUST_USE lt_err lt_training_sample(lt_training *t);
/* Does a sample answer its prompt as a user's message, because the model learns conversations? */
bool lt_training_sample_answers(const lt_training *t);
/* Tokens of a sample's session. */
LT_MUST_USE lt_err lt_training_sample_room(const lt_training *t, int64_t *room);

/* tell.c: reports of the leading rank. energy: joules counted by the device; < 0: it does not
 * count. */
LT_MUST_USE lt_err lt_training_tell(lt_training *t, const lt_step_outcome *o);
LT_MUST_USE lt_err lt_training_tell_end(lt_training *t);
LT_MUST_USE lt_err lt_training_report(const lt_training *t); /* RUN/report.html */
double lt_training_energy(const lt_training *t);
/* Count the time since the last mark as this kind (goodput.h). */
void lt_training_spend(lt_training *t, lt_goodput_kind kind);
LT_MUST_USE lt_err lt_training_tell_goodput(lt_training *t); /* Into metrics.jsonl. */

/* save.c. save: a checkpoint of the current state, unless there is one; with checkpoint.async it
 * may still be written when the call returns (saver.h). export, a collective call: RUN/model; where
 * the model is divided, from the checkpoint of this very step. */
LT_MUST_USE lt_err lt_training_save(lt_training *t);
/* The leading rank: remove the checkpoints that checkpoint.keep_last and keep_every do not keep. */
LT_MUST_USE lt_err lt_training_prune(lt_training *t);
/* Write the position in the rows and the guard's state, as JSON, into the run state. */
LT_MUST_USE lt_err lt_training_gather_state(lt_training *t);
/* Wait for all ranks; REMOTE if one of them has failed. err: this rank's failure, which it
 * returns. */
LT_MUST_USE lt_err lt_training_meet(lt_training *t, lt_err err);
/* snapshot.c: agree before the run is opened; snapshot after each step, which took step_s. */
LT_MUST_USE lt_err lt_training_agree(lt_snapshots *s, const lt_world *w);
LT_MUST_USE lt_err lt_training_snapshot(lt_training *t, double step_s);
LT_MUST_USE lt_err lt_training_export(lt_training *t);
const char *lt_training_product(const lt_training *t); /* Its folder: "model", or "adapter". */

/* run.c. stop_asked: the stop request of this rank: a signal's number, LT_STOP_FILE or 0. ask_stop,
 * a collective call: the stop request of any rank, outside a step. settle: waits for queued updates
 * before another queue reads the weights. */
int lt_training_stop_asked(const lt_training *t);
LT_MUST_USE lt_err lt_training_ask_stop(const lt_training *t, int *stop);
LT_MUST_USE lt_err lt_training_settle(lt_training *t);
/* The parts of a run, for a caller that takes its steps (together.c). sample_first: the work before
 * the first step. follow: does what was decided after a step, and sets *slow if that took long.
 * finish: ends a complete run. stop: ends a run that was asked to stop, and returns INTERRUPTED.
 * note_end: writes err to the log. or_replaced: returns err, but REPLACED if the run now belongs to
 * a later attempt: that one removes and changes files, which explains any failure of this one. */
LT_MUST_USE lt_err lt_training_sample_first(lt_training *t);
LT_MUST_USE lt_err lt_training_follow(lt_training *t, const lt_step_decision *d, bool *slow);
LT_MUST_USE lt_err lt_training_finish(lt_training *t);
LT_MUST_USE lt_err lt_training_stop(lt_training *t, int why);
void lt_training_note_end(lt_err err);
lt_err lt_training_or_replaced(const lt_training *t, lt_err err);
/* Calls run(of), which opens a world and closes it; and again if the world failed and the launcher
 * keeps ranks for the next one. Stop signals are obeyed from here on. */
LT_MUST_USE lt_err lt_training_in_worlds(lt_err (*run)(const void *of), const void *of);
/* device NULL: the recipe's, opened here. */
LT_MUST_USE lt_err lt_run_training(const lt_recipe *r, lt_device *device);
/* The same with an objective, which stays the caller's; NULL: none. */
LT_MUST_USE lt_err lt_run_training_with(const lt_recipe *r, lt_device *device,
                                        const lt_objective *objective);

#endif
