/* pass.h: one forward, or forward and backward, over a batch of (B, T) tokens: what training and
 * evaluation run.
 *
 * Buffers are carved at open; the pass allocates nothing. Activations are kept in the model's
 * compute type. Recompute: NONE keeps everything; SELECTIVE drops what is cheap to redo (norm
 * outputs, activation outputs); FULL keeps only each layer's input. All three give the same
 * gradients, bit for bit. */
#ifndef LT_MODEL_PASS_H
#define LT_MODEL_PASS_H

#include "model/params.h"

typedef enum { LT_RECOMPUTE_NONE, LT_RECOMPUTE_SELECTIVE, LT_RECOMPUTE_FULL } lt_recompute;

/* How linear layers multiply (fp8.h): in the weights' type, or in 8-bit floats with a scale for 128
 * numbers or one for a whole tensor. */
typedef enum { LT_FP8_NONE, LT_FP8_BLOCKWISE, LT_FP8_TENSORWISE } lt_fp8_recipe;
#define LT_FP8_CHOICES "none|blockwise|tensorwise"

typedef struct {
    int64_t batch, seq; /* B, T: the most a pass will see. */
    bool train;         /* Also carve gradients and what backward needs. */
    lt_recompute recompute;
    float z_coef; /* z-loss on the output logits; 0: none. */
    /* Rows of logits held at once; 0: chosen so that a chunk is about 32 MiB, on a device 1 GiB. */
    int64_t loss_chunk_rows;
    bool on_device; /* The backend's memory is a device's; open sets it, measure believes it. */
    bool eager;     /* Record no graphs. */
    lt_fp8_recipe fp8;
    bool fp8_wgrad; /* Gradients of weights, too. */
} lt_pass_options;

/* One batch, host memory. labels -1: not counted. doc_start, positions: NULL when each row is one
 * document from position 0. */
typedef struct {
    int64_t batch, seq;
    const int32_t *tokens, *labels, *doc_start, *positions; /* (B, T) each */
} lt_pass_batch;

typedef struct {
    double loss_sum; /* Cross-entropy summed over counted labels, nats; without z and aux terms. */
    int64_t n_labels;
    int64_t n_correct; /* argmax == label. */
    double aux_sum,
        z_sum; /* MoE: sum over layers of the unscaled load-balancing and router z losses. */
} lt_pass_result;

typedef struct lt_pass lt_pass;

LT_MUST_USE lt_err lt_pass_open(lt_pass **out, lt_model *m, const lt_pass_options *o);
void lt_pass_close(lt_pass *p);

/* What open would take, by kind, without taking it (the planner's and doctor's view). */
typedef struct {
    size_t activations_bytes, gradients_bytes, logits_bytes, scratch_bytes;
    size_t fp8_bytes;  /* Weights in 8 bits, both ways, and one product's rows. */
    size_t host_bytes; /* On the host: batches and results on their way. */
} lt_pass_memory;
LT_MUST_USE lt_err lt_pass_measure(lt_pass_memory *out, const lt_model_spec *spec, lt_dtype dtype,
                                   const lt_pass_options *o);

/* Forward only. loss_rows (B * T) F32, host, optional: each label's loss (0 where ignored). */
LT_MUST_USE lt_err lt_pass_eval(lt_pass *p, const lt_pass_batch *b, lt_pass_result *r,
                                float *loss_rows);

/* Forward and backward; gradients += grad_scale * d(sum of losses [+ aux terms weighted by the
 * number of labels])/d(parameters). */
LT_MUST_USE lt_err lt_pass_train(lt_pass *p, const lt_pass_batch *b, float grad_scale,
                                 lt_pass_result *r);

/* The same in pieces, so that the host prepares one batch while the device computes another:
 *
 *     lt_pass_stage(p, &next)         checked, copied and on its way; at most LT_PASS_AHEAD before
 *                                     their turn
 *     lt_pass_train_staged(p, scale)  queue forward and backward of the oldest staged batch
 *     lt_pass_collect(p, &sum)        wait for all that is queued; add up the results since the
 *                                     last collect
 *
 * From its second batch of a shape (and scale, and first of a step or not) on, a pass on a backend
 * with graphs runs a recorded graph of everything between the batch and the gradients. */
#define LT_PASS_AHEAD 2
LT_MUST_USE lt_err lt_pass_stage(lt_pass *p, const lt_pass_batch *b);
int lt_pass_staged(const lt_pass *p); /* Batches staged and not yet trained on. */
/* No room to stage another before one is trained on, or collected. */
bool lt_pass_full(const lt_pass *p);
LT_MUST_USE lt_err lt_pass_train_staged(lt_pass *p, float grad_scale);
LT_MUST_USE lt_err lt_pass_collect(lt_pass *p, lt_pass_result *r);

/* F32 over the model's table, the backend's memory. */
const lt_param_buffer *lt_pass_gradients(const lt_pass *p);
/* The next batch to train on begins anew: what products make is stored, not added, the rest is
 * zeroed first. Until then the old gradients stand. */
LT_MUST_USE lt_err lt_pass_zero_gradients(lt_pass *p);
struct lt_queue *lt_pass_queue(const lt_pass *p); /* What computes the gradients. */
int64_t lt_pass_graphs(const lt_pass *p);         /* Recorded so far. */

/* Time, calls and least work of each op since open or the last watch. A backend whose work is
 * queued is timed only while watched, eagerly, with its own stopwatch; one that works at once
 * always, by the clock. */
typedef struct {
    double seconds, flops, bytes;
    int64_t calls;
} lt_pass_op_time;
LT_MUST_USE lt_err lt_pass_watch(lt_pass *p, bool on);
LT_MUST_USE lt_err lt_pass_profile(lt_pass *p, lt_pass_op_time *times); /* (LT_OP_COUNT) */

#endif
