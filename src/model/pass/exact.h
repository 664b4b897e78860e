/* exact.h: a pass whose log-probabilities have the bits of a deterministic engine's.
 *
 * Reinforcement learning weighs a token by the ratio of two probabilities: under the trained
 * weights, and under those with which it was drawn. If trainer and engine compute with the same
 * weights in a different order, this ratio is not 1 although nothing has changed. In an exact
 * pass every number of the forward pass that depends on an order of sums is computed as the
 * engine computes it with `deterministic`:
 *
 *     products       fixed_order: a row has the same bits for every number of rows
 *     attention      the engine's op over pages of keys and values, with fixed_order. The pass's
 *                    own op runs before it for the statistics that backward reads; its result is
 *                    replaced
 *     log-softmax    the sampler's (logits.h), instead of the op xent's
 *
 * Norms, rotations, activations and sums are functions of one row in both. Backward is not
 * changed. Exact passes run in F32 on CPUs, and also in BF16 on GPUs. Attention runs twice, and
 * products are as slow as those of few rows. Rows that are shared (shared.h) have the same bits,
 * because the bits of a row do not depend on its position. The same is true of experts, as long
 * as none drops rows: router, choice, products and weighted sum are functions of one row.
 *
 *     tp   the ranks add the parts of a layer's sums in the order of ranks (lateen/comm.h), and
 *          so does an engine that is told their number (lt_engine_options.tp); the logits of all
 *          tokens are gathered for the log-softmax
 *     cp   the bits of a token depend on its own query and on all keys and values before it.
 *     Ulysses has whole
 *          rows of some heads. With gather and ring, the keys and values of all ranks are written
 *          to the pages, and this rank's two pieces of a row are two sequences over the same
 *          pages */
#ifndef LT_MODEL_EXACT_H
#define LT_MODEL_EXACT_H

#include "model/pass/acts.h"
#include "model/pass/pass.h"

typedef struct lt_exact {
    lt_tensor k_pages, v_pages; /* (pages, LT_EXACT_PAGE, G, D), of the activations' type */
    /* The positions of a batch's rows in the pages: slots, table, q_start and kv_len of
     * lt_attention_paged_args, one after the other, I32, on the device and on the host. */
    lt_tensor words;
    int32_t *host_words;
    lt_tensor slots, table, q_start, kv_len; /* Views of words. */
    int64_t batch, seq;                      /* Shape of the batch that words describe. */
    int64_t q_max, whole; /* Tokens of a sequence's queries, and of a whole row. */
    bool sent;            /* The device has host_words. */
    /* On a GPU, log-probabilities come from the op choose: its arguments for each row, on the
     * device and on the host, and its results. */
    lt_tensor pick, how, id, rank, logprob, top_id, top_logprob;
    int32_t *host_pick; /* (R) */
    double *host_how;   /* (R, LT_CHOOSE_HOW_COUNT) */
} lt_exact;

#define LT_EXACT_PAGE 16

/* UNSUPPORTED: options that an exact pass cannot be combined with. */
LT_MUST_USE lt_err lt_exact_check(const lt_model *m, const lt_pass_options *o);
/* Take the memory for the largest batch; without o->exact none. dtype: of the activations. */
void lt_exact_carve(lt_exact *e, const lt_model_spec *s, lt_dtype dtype, const lt_pass_options *o,
                    lt_arena *a);
/* The same on the host. */
size_t lt_exact_host_bytes(const lt_pass_options *o);
LT_MUST_USE lt_err lt_exact_open(lt_exact *e, const lt_pass_options *o);
void lt_exact_close(lt_exact *e);
/* Set the positions of a batch's rows; call it for each batch. context: the ranks that divide
 * them; NULL: none. */
void lt_exact_shape(lt_exact *e, int64_t batch, int64_t seq, const struct lt_context *context);

/* Attention of rows that are completely on this rank. In an exact pass the engine's result
 * replaces the op's. */
LT_MUST_USE lt_err lt_exact_attention_fwd(lt_exec *r, const lt_attention_args *a);
/* The two halves of an exact pass's attention. Write keys and values (B, T, heads, D) to the
 * pages: those of all whole rows or, with ring, those of the rank `source`. Then compute
 * attention for the queries of this rank. */
LT_MUST_USE lt_err lt_exact_write(lt_exec *r, lt_tensor k, lt_tensor v, int source);
LT_MUST_USE lt_err lt_exact_attend(lt_exec *r, const lt_attention_args *a);
/* For the rows [first, first + n) of a batch with F32 logits: -ln p(label), 0 for rows without a
 * label, and the most likely ids. labels (n): on the host. softcap: that of the logits, which may
 * be overwritten; 0: none. */
LT_MUST_USE lt_err lt_exact_losses(lt_exec *r, lt_tensor logits, int64_t first,
                                   const int32_t *labels, lt_tensor loss, lt_tensor best);

#endif
