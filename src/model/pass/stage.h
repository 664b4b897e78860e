/* stage.h: transfers batches to the device and losses back, in parallel with the computation.
 *
 *     put      host rows ──copied──▶ slot's host memory ──own queue──▶ staging on the device;
 *              any time, up to LT_STAGE_SLOTS ahead
 *     take     staging ──pass's queue──▶ the batch's tensors, whose addresses a recorded graph has
 *     fetch    loss, argmax, aux losses ──pass's queue──▶ slot's host memory
 *     collect  waits, then adds up on the host, in the order of the rows, in double: the same sums
 *              on every backend
 *
 * A slot is put, taken, fetched and collected, in this order, and slots are used one after the
 * other. In addition, sets of activations have two slots each, which are used in turn: send and
 * receive may come between a put and its take, and a set's next batch may be sent while the
 * results of the previous one are being transferred.
 *
 * The head needs to run only for rows whose label counts, which the labels of a prompt do not. In
 * a packed batch such rows come first: its labels, weights, losses and argmax are stored in this
 * order, on the host and on the device, and `order` tells which row of the batch each belongs to.
 * The head runs for the first head_rows of them. All other tensors of a batch keep the batch's
 * own order. A batch in which nearly all labels count is not packed.
 *
 * A batch that is sent may have shared rows (shared.h). Then the slot has 1 row of R tokens. If it
 * is packed, `places` tells which token of the batch each label belongs to. */
#ifndef LT_MODEL_STAGE_H
#define LT_MODEL_STAGE_H

#include "model/pass/acts.h"

#define LT_STAGE_SLOTS 8 /* A step of fewer micro-batches than this waits once, at its end. */
/* Fields of a batch, each with 4 bytes per row; documents, order and weights only if it has them.
 * The rows of an order are followed by head_rows. */
enum {
    LT_STAGE_TOKENS,
    LT_STAGE_LABELS,
    LT_STAGE_POSITIONS,
    LT_STAGE_DOC_START,
    LT_STAGE_ORDER,
    LT_STAGE_WEIGHTS,
    LT_STAGE_FIELDS
};

typedef struct lt_stage_slot {
    /* (rows) each, host; in the order of LT_STAGE_TOKENS and the following. */
    int32_t *ids[LT_STAGE_FIELDS];
    float *weights; /* The last of them, with its own type. */
    float *loss;    /* (rows) */
    int32_t *best;  /* (rows) */
    float *aux;     /* (L, 2) */
    /* (1): number of labels that count, or the sum of their weights. */
    float *n_labels;
    int64_t *rows_of;               /* (joins) */
    int64_t batch, seq;             /* Shape of the rows that are computed. */
    int64_t given_batch, given_seq; /* Shape of the batch. */
    uint64_t first_row, row_step;
    bool has_documents, has_weights;
    int64_t head_rows; /* batch * seq if not packed. */
    bool shares;
    int32_t *shared; /* Tables of shared.h, in slots of sets. */
    int64_t needed;  /* Tokens for which rows are computed. */
    /* (rows), for a packed batch: the token of the batch whose label, weight and loss are at this
     * place; -1: none. */
    int32_t *places;
    /* Only in slots of sets. sent: the moment at which the pass's queue has read the batch, if
     * is_sent; NULL if work runs immediately. fetched: the batch's results are being
     * transferred. */
    lt_moment *sent;
    bool is_sent, fetched;
} lt_stage_slot;

/* Options of a stage. */
typedef struct {
    const lt_model_spec *spec;
    int64_t rows;
    int64_t first_layer, n_layers; /* Layers with auxiliary losses; n_layers 0: none. */
    bool loss;                     /* The pass has the head: rows have losses. */
    int n_sets;                    /* Sets, with two slots each, for lt_stage_send. */
    int joins;                     /* Adapters with separate rows; 0: none. */
    bool weights;
    bool packs;  /* Batches may be packed, */
    bool shares; /* and those that are sent may have shared rows, */
    int n_tp;    /* of which each of this many ranks gets some. */
    /* head_rows of batches that are put takes few values, each of which needs a graph. */
    bool on_device;
} lt_stage_options;

typedef struct {
    const lt_backend *backend;
    lt_queue *queue; /* Copies to the device. */
    lt_arena host;   /* Memory from host_alloc. */
    lt_stage_options options;
    lt_stage_slot slots[LT_STAGE_SLOTS]; /* Batches that are put. */
    lt_stage_slot *set_slots;            /* (n_sets, 2): batches that are sent. */
    int *turns;                          /* (n_sets): the slot of a set's batch. */
    bool in_order;                       /* The next batches are not packed. */
    int32_t *device[2][LT_STAGE_FIELDS]; /* (rows) each */
    float *device_labels[2];
    /* Counts of batches in the first LT_STAGE_SLOTS, which are used in turn. */
    int64_t n_put, n_taken, n_collected;
} lt_stage;

/* Take device memory: staging of two batches. */
void lt_stage_carve(lt_stage *s, const lt_stage_options *o, lt_arena *a);
/* Bytes of host memory. */
size_t lt_stage_host_bytes(const lt_stage_options *o);
LT_MUST_USE lt_err lt_stage_open(lt_stage *s, lt_device *device, const lt_stage_options *o);
void lt_stage_close(lt_stage *s);

/* Whether no other batch can be put. */
bool lt_stage_full(const lt_stage *s);
/* Copy a checked batch and start its transfer. */
LT_MUST_USE lt_err lt_stage_put(lt_stage *s, const lt_pass_batch *b);
/* The oldest batch that has been put and not taken; NULL: none. */
const lt_stage_slot *lt_stage_next(const lt_stage *s);
LT_MUST_USE lt_err lt_stage_take(lt_stage *s, lt_exec *r, const lt_batch_acts *to);
/* Queue the transfer of the results of the batch taken last. */
LT_MUST_USE lt_err lt_stage_fetch(lt_stage *s, lt_exec *r, const lt_batch_acts *from);
/* Wait for all results that were fetched and add them to *sum; with joins, the results of each
 * adapter's rows to its own sum: sum (joins). */
LT_MUST_USE lt_err lt_stage_collect(lt_stage *s, lt_exec *r, lt_pass_result *sum);

/* The same of one set: copy a checked batch to its next slot, and then send that to the device;
 * results into *sum, and the loss of each token of the batch into losses if not NULL. */
LT_MUST_USE lt_err lt_stage_fill(lt_stage *s, lt_exec *r, int set, const lt_pass_batch *b,
                                 const lt_stage_slot **slot);
LT_MUST_USE lt_err lt_stage_send(lt_stage *s, lt_exec *r, int set, const lt_batch_acts *to);
/* Labels of the set's batch, on the host, in the device's order. */
const int32_t *lt_stage_labels(const lt_stage *s, int set);
/* Tokens of the set's batch as it was given, and of each of its rows. */
int64_t lt_stage_tokens(const lt_stage *s, int set);
int64_t lt_stage_seq(const lt_stage *s, int set);
/* The rows of each adapter in it, (joins). */
const int64_t *lt_stage_rows_of(const lt_stage *s, int set);
/* Replace the weights of the batch by others, F32, one per token of it, times factor. */
LT_MUST_USE lt_err lt_stage_send_weights(lt_stage *s, lt_exec *r, int set, const float *weights,
                                         float factor, const lt_batch_acts *to);
LT_MUST_USE lt_err lt_stage_receive(lt_stage *s, lt_exec *r, int set, const lt_batch_acts *from,
                                    lt_pass_result *sum, float *losses);
/* The same in two parts. fetch_set queues the transfer of the results; add_set adds them, after a
 * wait for the queue and before the set's batch after the next is sent; add_each those of each
 * adapter's rows to its own sum: sums (joins). */
LT_MUST_USE lt_err lt_stage_fetch_set(lt_stage *s, lt_exec *r, int set, const lt_batch_acts *from,
                                      lt_stage_slot **slot);
void lt_stage_add_set(const lt_stage *s, lt_stage_slot *slot, lt_pass_result *sum);
void lt_stage_add_each(const lt_stage *s, lt_stage_slot *slot, lt_pass_result *sums);

#endif
