/* pipeline.h: one rank of a pipeline: its passes, one per chunk of layers, and the walk along its
 * row of the schedule's table.
 *
 *     lt_pipeline_open(&p, model, &options, &stages, mesh->pp, micros, n)
 *     lt_pipeline_train(p, batches, n, scale, &sum)    a step's forward and backward passes
 *     lt_pipeline_gradients(p)                         of the rank's layers
 *
 *     receive ─▶ buffer ─copy─▶ a set's stream ─ forward ─▶ its end ─▶ send
 *     send ◀─ the set's dx ◀─ backward ─ a set's dx ◀─copy─ buffer ◀─ receive
 *
 * Receives are posted one operation ahead of their use, sends as soon as the data are ready. Each
 * is waited for as late as possible: a receive when its operation begins, a send when its set of
 * activations is used again. So ranks cannot deadlock; lt_schedule_check has verified this for the
 * table.
 *
 * Each rank sees the batches of all micro-batches (tokens, positions and documents are needed in
 * every layer). Losses and labels come from the rank of the last stage, auxiliary losses of experts
 * from every rank for its own layers. Gradients have the same bits as those of one rank that trains
 * on the same micro-batches in order, except for a tied embedding, whose two parts are added at the
 * end. */
#ifndef LT_PARALLEL_PIPELINE_H
#define LT_PARALLEL_PIPELINE_H

#include "lateen/comm.h"
#include "model/pass/pass.h"
#include "parallel/stages.h"

typedef struct lt_pipeline lt_pipeline;

/* Figures of the last step, on this rank. */
typedef struct {
    double step_s, busy_s; /* busy: in the operations of the row. */
    int64_t micros, sent_bytes;
} lt_pipeline_times;

/* options: those of one rank (layers and sets are set here). group: the ranks of pp, in order.
 * micros: the numbers of micro-batches that the steps will have. The tables are made and checked
 * here. */
LT_MUST_USE lt_err lt_pipeline_open(lt_pipeline **out, lt_model *m, const lt_pass_options *options,
                                    const lt_stages *stages, lt_group *group, const int64_t *micros,
                                    int n_micros);
void lt_pipeline_close(lt_pipeline *p);
/* options.joins: adapters join all passes of the rank (lt_pass_join), and live as long as it
 * does. */
LT_MUST_USE lt_err lt_pipeline_join(lt_pipeline *p, lt_lora *l, int64_t max_rows);
size_t lt_pipeline_join_bytes(const lt_pipeline *p, int which);
/* The memory that open would take on a rank of the pipeline. */
LT_MUST_USE lt_err lt_pipeline_measure(lt_pass_memory *out, const lt_model_spec *spec,
                                       lt_dtype dtype, const lt_pass_options *options,
                                       const lt_stages *stages, int rank, const int64_t *micros,
                                       int n_micros);

/* A collective call: forward and backward of n micro-batches; n must be in `micros`. Gradients
 * start from zero. Adds this rank's results to *sum; with options.joins, those of each adapter to
 * its own: sum (joins). */
LT_MUST_USE lt_err lt_pipeline_train(lt_pipeline *p, const lt_pass_batch *batches, int64_t n,
                                     float grad_scale, lt_pass_result *sum);
/* A collective call: losses of a batch, and loss_rows, on the rank of the last stage. */
LT_MUST_USE lt_err lt_pipeline_eval(lt_pipeline *p, const lt_pass_batch *b, lt_pass_result *r,
                                    float *loss_rows);

/* call: called before a micro-batch goes backward through a chunk of layers; NULL: not called.
 * drop: called after micro-batches whose gradients do not count. If both are given, those
 * micro-batches call the passes' other callbacks, too, which may provide the memory of weights and
 * gradients. */
typedef struct {
    lt_err (*call)(void *of, int chunk);
    lt_err (*drop)(void *of);
    void *of;
} lt_pipeline_begins;
void lt_pipeline_tell_begins(lt_pipeline *p, lt_pipeline_begins begins);

/* Called after the last layer of a micro-batch instead of lt_pass_loss: runs the head of a set and
 * its backward pass. call NULL: lt_pass_loss. */
typedef struct {
    lt_err (*call)(void *of, lt_pass *pass, int set, int64_t micro, float grad_scale);
    void *of;
} lt_pipeline_head;
void lt_pipeline_set_head(lt_pipeline *p, lt_pipeline_head head);
/* The rank of pp with the head. */
int lt_pipeline_head_rank(const lt_pipeline *p);

/* From now on operations and their layers are spans of t (lt_pass_trace). */
void lt_pipeline_trace(lt_pipeline *p, lt_timeline *t);
/* Gradients in F32 of the units in the rank's stages: of a model, or of one of several adapters. */
const lt_param_buffer *lt_pipeline_gradients(const lt_pipeline *p);
const lt_param_buffer *lt_pipeline_gradients_of(const lt_pipeline *p, int which);
/* The rank's passes, at most one per layer; returns their number. */
int lt_pipeline_passes(const lt_pipeline *p, lt_pass *passes[LT_MAX_LAYERS]);
struct lt_queue *lt_pipeline_queue(const lt_pipeline *p); /* Idle between calls. */
lt_pipeline_times lt_pipeline_last(const lt_pipeline *p);
/* Mean seconds of a chunk's operation over all training steps; 0: there was none. */
double lt_pipeline_op_s(const lt_pipeline *p, int chunk, lt_schedule_op_kind kind);

#endif
