/* pipeline.h: a rank of a pipeline at work: its passes, one a chunk of layers, and the walk along
 * its row of the schedule's table.
 *
 *     lt_pipeline_open(&p, model, &options, &stages, mesh->pp, micros, n)
 *     lt_pipeline_train(p, batches, n, scale, &sum)    a step's forward and backward passes
 *     lt_pipeline_gradients(p)                         of the rank's layers
 *
 *     receive ─▶ buffer ─copy─▶ a set's stream ─ forward ─▶ its end ─▶ send
 *     send ◀─ the set's dx ◀─ backward ─ a set's dx ◀─copy─ buffer ◀─ receive
 *
 * Receives are posted one operation ahead of their use, sends as soon as there is something to
 * send, and neither is waited for before it must be: a receive when its operation begins, a send
 * when its set of activations is to be used again. So ranks that wait for each other can not stand
 * still, which lt_schedule_check has shown of the table.
 *
 * Each rank sees the batches of all micro-batches (tokens, positions and documents are needed in
 * every layer). Losses and labels come from the rank of the last stage, auxiliary losses of experts
 * from every rank for its own layers. Gradients have the bits of one rank that trains on the same
 * micro-batches in order, except a tied embedding's, whose two parts are added at the end. */
#ifndef LT_PARALLEL_PIPELINE_H
#define LT_PARALLEL_PIPELINE_H

#include "lateen/comm.h"
#include "model/pass.h"
#include "parallel/stages.h"

typedef struct lt_pipeline lt_pipeline;

/* Of the last step, on this rank. */
typedef struct {
    double step_s, busy_s; /* busy: the operations of the row. */
    int64_t micros, sent_bytes;
} lt_pipeline_times;

/* options: of one rank (layers and sets are set here). group: the ranks of pp, in order. micros:
 * the numbers of micro-batches that steps will have. The tables are made and checked here. */
LT_MUST_USE lt_err lt_pipeline_open(lt_pipeline **out, lt_model *m, const lt_pass_options *options,
                                    const lt_stages *stages, lt_group *group, const int64_t *micros,
                                    int n_micros);
void lt_pipeline_close(lt_pipeline *p);
/* What open would take on a rank of the pipeline. */
LT_MUST_USE lt_err lt_pipeline_measure(lt_pass_memory *out, const lt_model_spec *spec,
                                       lt_dtype dtype, const lt_pass_options *options,
                                       const lt_stages *stages, int rank, const int64_t *micros,
                                       int n_micros);

/* A collective call: forward and backward of n micro-batches, n among those of open. Gradients
 * begin anew. Adds to *sum what this rank knows. */
LT_MUST_USE lt_err lt_pipeline_train(lt_pipeline *p, const lt_pass_batch *batches, int64_t n,
                                     float grad_scale, lt_pass_result *sum);
/* A collective call: losses of a batch, on the rank of the last stage; loss_rows likewise. */
LT_MUST_USE lt_err lt_pipeline_eval(lt_pipeline *p, const lt_pass_batch *b, lt_pass_result *r,
                                    float *loss_rows);

/* F32, of the units that the rank's stages have. */
const lt_param_buffer *lt_pipeline_gradients(const lt_pipeline *p);
/* Its passes, at most a layer each; returns their number. */
int lt_pipeline_passes(const lt_pipeline *p, lt_pass *passes[LT_MAX_LAYERS]);
struct lt_queue *lt_pipeline_queue(const lt_pipeline *p); /* Idle between calls. */
lt_pipeline_times lt_pipeline_last(const lt_pipeline *p);
/* Mean seconds of an operation of a chunk, over all training steps; 0: there was none. */
double lt_pipeline_op_s(const lt_pipeline *p, int chunk, lt_schedule_op_kind kind);

#endif
