/* loss.h: output head and cross-entropy, a chunk of rows at a time, so that all logits never exist
 * at once. */
#ifndef LT_MODEL_LOSS_H
#define LT_MODEL_LOSS_H

#include "model/pass/acts.h"

typedef struct {
    int64_t chunk_rows;
    /* (chunk_rows, V), or of this rank's words: the act dtype when training, F32 in evaluation. */
    lt_tensor logits;
    lt_tensor parts; /* (ranks of tp, chunk_rows, LT_XENT_PART) F32; absent without them. */
    lt_tensor whole; /* (chunk_rows, V) F32: of an exact pass with ranks of tp; else absent. */
    /* (B * T, V), or of this rank's words, the act dtype: logits of a batch that stay for its
     * backward pass (keep_logits); absent without. */
    lt_tensor kept;
} lt_loss;

/* Carve the chunk's logits. chunk_rows of o 0: about 32 MiB of them; ranks of tp, whose words are
 * not as many, have the same. n_words: of this rank. */
void lt_loss_carve(lt_loss *l, const lt_model_spec *s, lt_dtype dtype, const lt_pass_options *o,
                   int64_t n_words, lt_arena *a);

/* A teacher's distributions, with which rows are compared (the op distill): whole, from the head of
 * another model, or the most likely words of each. */
typedef struct {
    lt_exec *teacher;        /* NULL: ids and logp. */
    const lt_loss *loss;     /* The teacher's, of at least as many rows as a chunk, */
    const lt_batch_acts *of; /* and its activations of the same batch. */
    lt_tensor ids, logp;     /* (B * T, K) */
    float temperature, beta, label_share;
    bool rest;
} lt_loss_target;

typedef struct {
    /* (B * T), as b->labels: chunks without a counted label are skipped; NULL: none is (the results
     * are the same). */
    const int32_t *host_labels;
    int64_t head_rows; /* Of the batch (stage.h). */
    float grad_scale;  /* != 0: backward, too. */
    float z_coef;
    float temperature; /* Logits are divided by it, against labels; 0: 1. */
    bool weights;      /* Rows' gradients are multiplied by b->weights. */
    bool keep;         /* Without backward: leave the logits in lt_loss.kept as well. */
    bool kept;         /* Backward: they lie there, and are overwritten. Else they are computed. */
    const lt_loss_target *target; /* NULL: rows are compared with their labels. */
} lt_loss_how;

/* Loss of each row into b->loss_rows and argmax into b->best; backward: the head's gradient, and
 * b->dh = d/d(h_final). */
LT_MUST_USE lt_err lt_loss_run(lt_exec *r, const lt_loss *l, const lt_batch_acts *b,
                               const lt_loss_how *how);

/* Logits of rows [first, first + n) of the batch, F32, in the chunk's memory; n: at most
 * lt_loss_eval_rows. */
LT_MUST_USE lt_err lt_loss_logits(lt_exec *r, const lt_loss *l, const lt_batch_acts *b,
                                  int64_t first, int64_t n, lt_tensor *logits);
int64_t lt_loss_eval_rows(const lt_loss *l);

#endif
