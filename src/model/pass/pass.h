/* pass.h: forward, or forward and backward, over a batch of (B, T) tokens, for training and
 * evaluation.
 *
 * Buffers are carved at open; the pass allocates nothing. Activations are kept in the model's
 * compute type. Recompute: NONE keeps everything; SELECTIVE drops tensors that are cheap to
 * compute again (norm outputs, activation outputs); FULL keeps only each layer's input. All three
 * give the same gradients, bit for bit. */
#ifndef LT_MODEL_PASS_H
#define LT_MODEL_PASS_H

#include "lateen/comm.h"
#include "model/lora/lora.h"

typedef enum { LT_RECOMPUTE_NONE, LT_RECOMPUTE_SELECTIVE, LT_RECOMPUTE_FULL } lt_recompute;

/* How linear layers multiply (fp8.h): in the weights' type, or in 8-bit floats with a scale for 128
 * numbers or one for a whole tensor. */
typedef enum { LT_FP8_NONE, LT_FP8_BLOCKWISE, LT_FP8_TENSORWISE } lt_fp8_recipe;
#define LT_FP8_CHOICES "none|blockwise|tensorwise"

/* Callbacks for weights and gradients that are present only while they are used (parallel/zero.h):
 * enter is called before a unit's weights, its gradients or both are used, and leave afterwards,
 * when its gradients are complete for this batch. Other units may be entered in between. A tied
 * embedding, unit 0, is entered by the head and by the embedding; its gradients are left once. A
 * unit that lt_pass_defers is left without its gradients, and entered again when they are computed.
 * Only the calls that `enters` and `leaves` name are made, because each ends a piece of a
 * recorded pass. */
enum { LT_UNIT_WEIGHTS = 1, LT_UNIT_GRADIENTS = 2 };
typedef struct {
    void *of;
    lt_err (*enter)(void *of, int unit, unsigned what);
    lt_err (*leave)(void *of, int unit, unsigned what);
    /* The pass has begun a transfer between the ranks of tp beside which it computes: collectives
     * for which no rank waits yet may be called after it. NULL: there are none. */
    lt_err (*beside)(void *of);
    unsigned enters, leaves; /* LT_UNIT_*: the calls that the callbacks handle. */
} lt_pass_units;

/* How the ranks of a group divide the tokens of each sequence (context.h). */
typedef enum {
    LT_CONTEXT_GATHER,
    LT_CONTEXT_ULYSSES,
    LT_CONTEXT_RING,
    LT_CONTEXT_KIND_COUNT
} lt_context_kind;
#define LT_CONTEXT_CHOICES "gather|ulysses|ring"

typedef struct {
    lt_group *group; /* NULL, or a group of one rank: sequences are whole. */
    lt_context_kind kind;
} lt_context_options;

typedef struct {
    int64_t batch, seq; /* B, T: the largest batch of the pass. T counts this rank's tokens. */
    bool train;         /* Also carve gradients and the memory that backward needs. */
    lt_recompute recompute;
    float z_coef; /* z-loss on the output logits; 0: none. */
    /* Rows of a chunk of logits; 0: chosen so that a chunk has about 128 MiB, or, on a device, 1
     * GiB, or 256 MiB there if layers are computed again (LT_RECOMPUTE_FULL). */
    int64_t loss_chunk_rows;
    /* The backend's memory is on a device; open sets it, measure takes it as given. */
    bool on_device;
    bool eager; /* Record no graphs. */
    /* The queue on which the pass computes, e.g. after another pass of the same rank; it outlives
     * this one. NULL: the pass opens a queue. */
    lt_queue *queue;
    lt_fp8_recipe fp8;
    bool fp8_wgrad; /* Gradients of weights, too. */
    bool weights;   /* Batches may have weights; lt_pass_logprobs_backward needs this. */
    bool masks;     /* Many labels may be -1: the head does not run for such rows (stage.h). */
    /* Tokens that rows of a loaded batch have in common are computed once, and tokens after the
     * last label of a row are not computed (shared.h). */
    bool shares;
    /* Logits are kept from lt_pass_logprobs to lt_pass_objective, in memory for a whole batch, so
     * that they are not computed a second time. The gradients have the same bits. */
    bool keep_logits;
    bool exact; /* Log-probabilities with the bits of an engine's (exact.h). */
    int n_sets; /* Batches in flight between lt_pass_load and the end of backward; 0: 1. */
    /* A stage of a pipeline runs the layers [first_layer, end_layer), with the embedding before
     * layer 0 and the head after the last; end_layer 0: all. */
    int first_layer, end_layer;
    /* The part that the model holds (lt_model_options); open sets it, measure takes it as given.
     * NULL: all. */
    const lt_partition *partition;
    /* Gradients of weight matrices are left to lt_pass_backward_weights. */
    bool split_backward;
    /* The caller provides the memory of the gradients, unit by unit (lt_pass_bring_gradients); the
     * caller keeps the model's F32 master, so that the model needs none. */
    bool gradients_elsewhere, master_elsewhere;
    lt_context_options context;
    /* Tensor and sequence parallelism (tp.h): the ranks that share every layer with this one, whose
     * model is the part of it that src/parallel/layout.h gives. They call the same functions with
     * the same batches, and get the same results. NULL, or a group of one: none. */
    lt_group *tp;
    /* Ranks that divide the experts of each layer (expert.h), whose models hold their part of them;
     * NULL, or a group of one: none. experts_host: the same ranks, for numbers in host memory;
     * NULL: experts, if that serves host memory. expert_room: the most rows that a rank's experts
     * may receive, as a multiple of its own rows; 0: any number. */
    lt_group *experts, *experts_host;
    double expert_room;
    /* rank 0: the model is trained. Otherwise its adapters are trained, and the model has no
     * gradients; open sets it to those of the model, and measure takes it as given.
     * lora_partition, the part of them that is held, is treated like `partition`. */
    lt_lora_options lora;
    const lt_partition *lora_partition;
    /* Above 0: that many adapters join the pass after its opening (lt_pass_join), and are trained
     * together; the model has no gradients. */
    int joins;
    /* The model is opened with `decoded`: there is memory for some rows of its weights. As with
     * lora, open sets it. */
    bool decoded;
} lt_pass_options;

/* Number of tokens of a whole sequence, of which `seq` are this rank's. */
int64_t lt_pass_whole_seq(const lt_pass_options *o);

/* Whether a pass with these options has memory for the logits of a batch: not a stage without the
 * head, nor for a score head, whose few values are cheap. */
bool lt_pass_keeps_logits(const lt_pass_options *o, const lt_model_spec *s);

static inline int lt_pass_n_tp(const lt_pass_options *o) {
    return o->tp != NULL ? lt_group_size(o->tp) : 1;
}

static inline int lt_pass_n_ep(const lt_pass_options *o) {
    return o->experts != NULL ? lt_group_size(o->experts) : 1;
}

/* One batch in host memory. If sequences are divided, it has this rank's tokens (lt_context_take),
 * with positions and document starts in the whole sequence. Labels of -1 do not count. doc_start,
 * positions: NULL when each row is one document from position 0. weights: NULL, or the weight of
 * each label's loss, of any sign. */
typedef struct {
    int64_t batch, seq;
    const int32_t *tokens, *labels, *doc_start, *positions; /* (B, T) each */
    const float *weights;                                   /* (B, T) */
    /* (options.joins): the number of rows of each adapter, in this order, in total B; NULL
     * without joins. */
    const int64_t *rows_of;
    /* The rows of the run that these are, for dropout's masks: row k of the batch is row
     * first_row + k row_step of the run. */
    uint64_t first_row, row_step;
} lt_pass_batch;

typedef struct {
    /* Cross-entropy in nats, summed over labels that count, each times its weight; without z and
     * aux terms. */
    double loss_sum;
    /* Sum of the weights of labels that count; without weights, their number. */
    double weight_sum;
    int64_t n_labels;
    int64_t n_correct; /* argmax == label. */
    /* MoE: sum over layers of the unscaled load-balancing and router z losses. */
    double aux_sum, z_sum;
} lt_pass_result;

typedef struct lt_pass lt_pass;

LT_MUST_USE lt_err lt_pass_open(lt_pass **out, lt_model *m, const lt_pass_options *o);
void lt_pass_close(lt_pass *p);

/* Memory that open would allocate, by kind, without allocating it (for the planner). */
typedef struct {
    size_t activations_bytes, gradients_bytes, logits_bytes, scratch_bytes;
    size_t fp8_bytes;  /* Weights in 8 bits, in both orders, and the rows of one product. */
    size_t host_bytes; /* On the host: batches and results that are transferred. */
} lt_pass_memory;
LT_MUST_USE lt_err lt_pass_measure(lt_pass_memory *out, const lt_model_spec *spec, lt_dtype dtype,
                                   const lt_pass_options *o);

/* Forward only. loss_rows (B * T) F32, host, optional: each label's loss, without weight; 0 for
 * ignored labels. */
LT_MUST_USE lt_err lt_pass_eval(lt_pass *p, const lt_pass_batch *b, lt_pass_result *r,
                                float *loss_rows);

/* Forward and backward; gradients += grad_scale * d(sum of losses, z-losses included, each times
 * its weight [+ aux terms times the sum of weights])/d(parameters). */
LT_MUST_USE lt_err lt_pass_train(lt_pass *p, const lt_pass_batch *b, float grad_scale,
                                 lt_pass_result *r);

/* The same in pieces, so that the host prepares one batch while the device computes another:
 *
 *     lt_pass_stage(p, &next)         check, copy and send a batch; at most LT_PASS_AHEAD in
 *                                     advance
 *     lt_pass_train_staged(p, scale)  queue forward and backward of the oldest staged batch
 *     lt_pass_collect(p, &sum)        wait for all that is queued; add up the results since the
 *                                     last collect
 *
 * From the second batch of the same shape (and scale, and whether it is the first of a step) on,
 * a pass on a backend with graphs runs a recorded graph of everything between the batch and the
 * gradients; with callbacks and verbs between ranks, graphs of the pieces between them. */
#define LT_PASS_AHEAD 2
LT_MUST_USE lt_err lt_pass_stage(lt_pass *p, const lt_pass_batch *b);
/* Number of batches that are staged and not yet trained on. */
int lt_pass_staged(const lt_pass *p);
/* Whether no further batch can be staged before one is trained on or collected. */
bool lt_pass_full(const lt_pass *p);
LT_MUST_USE lt_err lt_pass_train_staged(lt_pass *p, float grad_scale);
LT_MUST_USE lt_err lt_pass_collect(lt_pass *p, lt_pass_result *r);

/* Several adapters of one model, trained by one pass: the rows go through the model together, and
 * each adapter computes with its own rows,
 *
 *     rows      | adapter 0 | adapter 1     | adapter 2 |      rows_of = {2, 3, 2}
 *     model     └──────────── x W^T, once ──────────────┘
 *     adapters    s0 x A0 B0    s1 x A1 B1    s2 x A2 B2
 *
 * so that the gradients of each are those of its rows alone. join: l, an adapter of the pass's
 * model, becomes the next of options.joins adapters, with at most max_rows rows of a batch;
 * UNSUPPORTED: lt_lora_check_shared. All must join before the first batch. The first batch after
 * lt_pass_zero_gradients must have rows of each adapter whose gradients are read afterwards.
 * lt_pass_train_staged, lt_pass_eval and the functions of a pass in parts take such batches. A
 * stage of a pipeline has only the gradients of its own layers. All adapters must outlive the
 * pass. */
LT_MUST_USE lt_err lt_pass_join(lt_pass *p, lt_lora *l, int64_t max_rows);
/* Bytes that a joined adapter takes. */
size_t lt_pass_join_bytes(const lt_pass *p, int which);
/* The gradients of one of them, like lt_pass_gradients; and lt_pass_collect with a sum for each:
 * sums (options.joins). */
const lt_param_buffer *lt_pass_gradients_of(const lt_pass *p, int which);
/* gradients_elsewhere: as lt_pass_bring_gradients; products store all of them. */
void lt_pass_bring_gradients_of(lt_pass *p, int which, int unit, float *base);
/* Whether it has rows in the current batch. If not, its gradients are not changed. */
bool lt_pass_has_rows_of(const lt_pass *p, int which);
LT_MUST_USE lt_err lt_pass_collect_each(lt_pass *p, lt_pass_result *sums);

/* A pass in parts: ranges of layers over sets of activations. A batch is loaded into a set, and
 * owns it to the end of its backward pass; other sets may be worked on between any two calls, so
 * a stage of a pipeline, and several micro-batches in flight, are only different orders of calls:
 *
 *     lt_pass_load(p, set, &batch)
 *     lt_pass_forward(p, set, 0, end)            the embedding, then layers [0, end)
 *        lt_pass_stream(p, set, end)             the input of the next layer, or of the head: to be
 *                                                sent or, in another stage, to receive into
 *     lt_pass_loss(p, set, scale)                final norm, head, losses; backward unless scale 0
 *     lt_pass_backward(p, set, first, end, scale)  layers end - 1 .. first, and of layer 0
 *                                                the embedding
 *        lt_pass_stream_gradient(p, set)         gradient of the input of layer end before the
 *                                                call, of layer first after it
 *     lt_pass_result_of(p, set, &r, loss_rows)   waits; adds to *r
 *
 * Gradients are added as lt_pass_train adds them: the sum of the parts has the bits of the whole,
 * if each layer sees the batches in the same order. scale is the same in all calls of a batch.
 * After lt_pass_zero_gradients, the backward pass of each layer must run once before its gradients
 * are read. lt_pass_eval and lt_pass_train use set 0, which must then be free. */
LT_MUST_USE lt_err lt_pass_load(lt_pass *p, int set, const lt_pass_batch *b);
LT_MUST_USE lt_err lt_pass_forward(lt_pass *p, int set, int first, int end);
/* For a batch without a backward pass: experts drop no token. */
LT_MUST_USE lt_err lt_pass_forward_eval(lt_pass *p, int set, int first, int end);
LT_MUST_USE lt_err lt_pass_loss(lt_pass *p, int set, float grad_scale);
LT_MUST_USE lt_err lt_pass_backward(lt_pass *p, int set, int first, int end, float grad_scale);
/* With split_backward: compute the gradients that lt_pass_backward of these layers has deferred,
 * if it was the last call for this set. */
LT_MUST_USE lt_err lt_pass_backward_weights(lt_pass *p, int set, int first, int end);
/* (rows, C) of the model's type, in the backend's memory. layer: one of the pass's, or its
 * end. */
lt_tensor lt_pass_stream(const lt_pass *p, int set, int layer);
/* The number of its rows for a batch of this shape: all, or those of this rank of tp. */
int64_t lt_pass_stream_rows(const lt_pass *p, int64_t batch, int64_t seq);
lt_tensor lt_pass_stream_gradient(const lt_pass *p, int set);
LT_MUST_USE lt_err lt_pass_result_of(lt_pass *p, int set, lt_pass_result *r, float *loss_rows);
/* The same in two parts: queue the results, and add them when the queue has been waited for, before
 * the set has been loaded twice again; with options.joins, to a sum for each adapter: r (joins). */
typedef struct lt_stage_slot lt_pass_fetched;
LT_MUST_USE lt_err lt_pass_fetch_of(lt_pass *p, int set, lt_pass_fetched **out);
void lt_pass_add_fetched(const lt_pass *p, lt_pass_fetched *f, lt_pass_result *r);

/* Objectives over log-probabilities. logprobs: load, forward, and return ln p(label | the tokens
 * before it) for each position (B, T), in host memory, 0 if the label is ignored; for a model
 * with a score head, the value of each position that has any label. backward: gradients +=
 * grad_scale * d(objective)/d(parameters), with d(objective)/d(logprob) (B, T) given by the
 * caller, for the batch in the set; aux terms as in lt_pass_train, no z-loss. Any objective can
 * be computed between the two calls; batches whose log-probabilities it combines are in several
 * sets, or are rows of one. */
LT_MUST_USE lt_err lt_pass_logprobs(lt_pass *p, int set, const lt_pass_batch *b, float *logprobs);
/* Only the last part of it, after forward: labels are those of the batch. */
LT_MUST_USE lt_err lt_pass_logprobs_of(lt_pass *p, int set, const int32_t *labels, float *logprobs);
/* Log-probabilities of the base, with its adapters switched off. */
LT_MUST_USE lt_err lt_pass_logprobs_base(lt_pass *p, int set, const lt_pass_batch *b,
                                         float *logprobs);
/* Its first half, used instead of lt_pass_loss when layers go backward range by range. */
LT_MUST_USE lt_err lt_pass_objective(lt_pass *p, int set, const float *dlogprobs, float grad_scale);
LT_MUST_USE lt_err lt_pass_logprobs_backward(lt_pass *p, int set, const float *dlogprobs,
                                             float grad_scale);

/* From now on losses and log-probabilities of labels are those of softmax(logits / temperature),
 * for tokens that were drawn at a temperature other than 1. temperature > 0. */
void lt_pass_set_temperature(lt_pass *p, float temperature);

/* A teacher's distributions in place of labels: the loss of a row that has a label is its
 * divergence from the teacher's (the op distill, tensor/ops.h), and the negative divergence takes
 * the place of its log-probability above. Then
 *
 *     lt_pass_read(teacher, &batch)    forward, up to the head's input
 *     lt_pass_aim(p, &target)          from now on; NULL: labels again
 *     lt_pass_logprobs(p, 0, &batch, values), lt_pass_logprobs_backward(p, 0, dvalues, scale)
 *
 * The teacher is a pass of one set, which runs on the queue of p and whose chunks of logits have at
 * least as many rows (loss_chunk_rows = lt_pass_chunk_rows(p)); it does not share rows, and holds
 * the batch until its next call. Alternatively its most likely tokens are given: ids, logp (at
 * least B * T, K) in the backend's memory, as for the op. Not with ranks of tp. */
typedef struct {
    lt_pass *teacher; /* NULL: ids and logp. */
    lt_tensor ids, logp;
    float temperature, beta, label_share;
    bool rest;
} lt_pass_target;
LT_MUST_USE lt_err lt_pass_read(lt_pass *p, const lt_pass_batch *b);
void lt_pass_aim(lt_pass *p, const lt_pass_target *t);
int64_t lt_pass_chunk_rows(const lt_pass *p);

/* The k most likely tokens at each position that has a label, in the form of the op distill: ids
 * (B * T, k) in ascending order, logp (B * T, k) the natural logarithms of their probabilities at
 * this temperature, in host memory. Other positions are not written. k: at most the
 * vocabulary. */
LT_MUST_USE lt_err lt_pass_top(lt_pass *p, const lt_pass_batch *b, int64_t k, float temperature,
                               int32_t *ids, float *logp);

/* F32 over the model's table, or that of its adapters, in the backend's memory; for a stage, only
 * its own units. With ranks of tp, parameters that several ranks hold have a part of their
 * gradient on each; the sum of the parts is the gradient. */
const lt_param_buffer *lt_pass_gradients(const lt_pass *p);
bool lt_pass_has_unit(const lt_pass *p, int unit); /* Whether it makes gradients of the unit. */
/* Whether its gradients are complete only after lt_pass_backward_weights. */
bool lt_pass_defers(const lt_pass *p, int unit);
/* Start new gradients with the next batch: results of products are stored, not added, and the rest
 * is zeroed first. Until then the old gradients remain. */
LT_MUST_USE lt_err lt_pass_zero_gradients(lt_pass *p);
/* Set the callbacks, before the first batch; units NULL: none. A recorded pass calls them in the
 * same way. */
void lt_pass_tell_units(lt_pass *p, const lt_pass_units *units);
/* Switch the adapters of a model off and on again, for batches without a backward pass. At first
 * they are on. */
void lt_pass_use_adapters(lt_pass *p, bool on);
/* Call it when the weights of a unit are present (lt_pass_units): derive the numbers that changed
 * adapters need from them. */
LT_MUST_USE lt_err lt_pass_derive(lt_pass *p, int unit);
/* Set the magnitudes of new adapters (dora.h) to those of the weights, if they were opened beside
 * a part of a model. A collective call of the ranks of tp, and of those that gather weights. */
LT_MUST_USE lt_err lt_pass_begin_magnitudes(lt_pass *p);
/* While a pass is mute it makes no callbacks: for batches whose gradients are dropped. */
void lt_pass_mute(lt_pass *p, bool on);
/* gradients_elsewhere: set the memory of a unit's gradients, NULL: none. Gradients that a batch
 * does not store are zeroed: immediately with `clear`, otherwise at the start of the next
 * batch. */
LT_MUST_USE lt_err lt_pass_bring_gradients(lt_pass *p, int unit, float *base, bool clear);
/* master_elsewhere: the F32 copies of the small parameters, lt_exec_f32_count for each layer, for
 * the caller to fill; NULL: the model has none, or has F32 weights. */
float *lt_pass_f32(lt_pass *p);
struct lt_queue *lt_pass_queue(const lt_pass *p); /* The queue on which gradients are computed. */
/* Graphs recorded so far; every piece is one. */
int64_t lt_pass_graphs(const lt_pass *p);
/* For the batches that were loaded into a pass that shares rows: their tokens, including padding;
 * those up to the last label of each row, whose results are the same as without sharing; and the
 * rows that were computed for them. A batch whose rows were not shared counts completely. For
 * other passes, 0. */
typedef struct {
    int64_t tokens, needed, rows;
} lt_pass_shares;
lt_pass_shares lt_pass_shared(const lt_pass *p);

/* From now on, record each layer's part of a batch as a span of t, whose queue is the pass's, and
 * use no graphs; NULL: stop. */
void lt_pass_trace(lt_pass *p, lt_timeline *t);

/* Time, calls and minimum work of each op, and of the collectives of tp (LT_TIMED_* of exec.h),
 * since open or the last watch. An asynchronous backend is timed only while watched, without
 * graphs, with its own stopwatch; a synchronous one always, with the clock. */
typedef struct {
    double seconds, flops, bytes;
    int64_t calls;
} lt_pass_op_time;
LT_MUST_USE lt_err lt_pass_watch(lt_pass *p, bool on);
LT_MUST_USE lt_err lt_pass_profile(lt_pass *p, lt_pass_op_time *times); /* (LT_TIMED_COUNT) */

#endif
