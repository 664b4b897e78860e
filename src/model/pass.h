/* pass.h: one forward, or forward and backward, over a batch of (B, T) tokens: what training and evaluation run.
 *
 * Buffers are carved at open; the pass allocates nothing. Activations are kept in the model's compute type. Recompute: NONE keeps
 * everything; SELECTIVE drops what is cheap to redo (norm outputs, activation outputs); FULL keeps only each layer's input. All
 * three give the same gradients, bit for bit. */
#ifndef LT_MODEL_PASS_H
#define LT_MODEL_PASS_H

#include "model/params.h"

typedef enum { LT_RECOMPUTE_NONE, LT_RECOMPUTE_SELECTIVE, LT_RECOMPUTE_FULL } lt_recompute;

typedef struct {
    int64_t batch, seq; /* B, T: the most a pass will see. */
    bool train;         /* Also carve gradients and what backward needs. */
    lt_recompute recompute;
    float z_coef; /* z-loss on the output logits; 0: none. */
    int64_t
        loss_chunk_rows; /* Rows of logits held at once; 0: chosen so that a chunk is about 32 MiB. */
} lt_pass_options;

/* One batch, host memory. labels -1: not counted. doc_start, positions: NULL when each row is one document from position 0. */
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
} lt_pass_memory;
LT_MUST_USE lt_err lt_pass_measure(lt_pass_memory *out, const lt_model_spec *spec, lt_dtype dtype,
                                   const lt_pass_options *o);

/* Forward only. loss_rows (B * T) F32, host, optional: each label's loss (0 where ignored). */
LT_MUST_USE lt_err lt_pass_eval(lt_pass *p, const lt_pass_batch *b, lt_pass_result *r,
                                float *loss_rows);

/* Forward and backward; gradients += grad_scale * d(sum of losses [+ aux terms weighted by the number of labels])/d(parameters). */
LT_MUST_USE lt_err lt_pass_train(lt_pass *p, const lt_pass_batch *b, float grad_scale,
                                 lt_pass_result *r);

float *lt_pass_gradients(lt_pass *p); /* (n_elements) F32, the model's flat layout. */
LT_MUST_USE lt_err lt_pass_zero_gradients(lt_pass *p);

/* Seconds spent in each op since open: for the table of shares; times (LT_OP_COUNT), calls likewise. */
void lt_pass_profile(const lt_pass *p, double *seconds, int64_t *calls);

#endif
