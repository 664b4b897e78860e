/* loss.h: output head and cross-entropy, a chunk of rows at a time, so that all logits never exist
 * at once. */
#ifndef LT_MODEL_LOSS_H
#define LT_MODEL_LOSS_H

#include "model/pass/acts.h"

typedef struct {
    int64_t chunk_rows;
    /* (chunk_rows, V), or this rank's part of V: the act dtype in training, F32 in evaluation. */
    lt_tensor logits;
    lt_tensor parts; /* (ranks of tp, chunk_rows, LT_XENT_PART) F32; absent without tp. */
    /* (chunk_rows, V) F32: for an exact pass with ranks of tp; otherwise absent. */
    lt_tensor whole;
    /* (B * T, V), or this rank's part of V, in the act dtype: logits of a batch that are kept for
     * its backward pass (keep_logits); otherwise absent. */
    lt_tensor kept;
} lt_loss;

/* Carve the chunk's logits. Its number of rows does not depend on the ranks of tp, which have a
 * part of the vocabulary each. n_ids: the tokens of the vocabulary that this rank has. */
void lt_loss_carve(lt_loss *l, const lt_model_spec *s, lt_dtype dtype, const lt_pass_options *o,
                   int64_t n_ids, lt_arena *a);

/* A teacher's distributions, with which rows are compared (the op distill): whole ones, from the
 * head of another model, or the most likely tokens of each. */
typedef struct {
    lt_exec *teacher;        /* NULL: ids and logp. */
    const lt_loss *loss;     /* The teacher's, of at least as many rows as a chunk, */
    const lt_batch_acts *of; /* and its activations of the same batch. */
    lt_tensor ids, logp;     /* (B * T, K) */
    float temperature, beta, label_share;
    bool rest;
} lt_loss_target;

typedef struct {
    /* (B * T), as b->labels: chunks without a label that counts are skipped; NULL: no chunk is
     * skipped (the results are the same). */
    const int32_t *host_labels;
    int64_t head_rows; /* Rows for which the head runs (stage.h). */
    float grad_scale;  /* If not 0, run backward, too. */
    float z_coef;
    float temperature; /* Logits are divided by it, against labels; 0: 1. */
    bool weights;      /* Rows' gradients are multiplied by b->weights. */
    bool keep;         /* Without backward: store the logits in lt_loss.kept, too. */
    /* Backward: the logits are there, and are overwritten; otherwise they are computed. */
    bool kept;
    const lt_loss_target *target; /* NULL: rows are compared with their labels. */
} lt_loss_how;

/* Write the loss of each row to b->loss_rows and its argmax to b->best; backward: compute the
 * head's gradient, and b->dh = d/d(h_final). */
LT_MUST_USE lt_err lt_loss_run(lt_exec *r, const lt_loss *l, const lt_batch_acts *b,
                               const lt_loss_how *how);

/* Compute logits of rows [first, first + n) of the batch, F32, in the chunk's memory; n: at most
 * lt_loss_eval_rows. */
LT_MUST_USE lt_err lt_loss_logits(lt_exec *r, const lt_loss *l, const lt_batch_acts *b,
                                  int64_t first, int64_t n, lt_tensor *logits);
int64_t lt_loss_eval_rows(const lt_loss *l);

#endif
