/* acts.h: the activations of a batch. One table lists every tensor of a layer, with its shape and
 * when it is dropped; the carve functions place them.
 *
 *     kept per layer   tensors that backward reads and recompute does not compute again
 *     shared           one buffer for all layers: tensors that recompute computes again, and all
 *                      tensors in evaluation
 *
 * Recompute runs the same ops on the same stored inputs, so it writes the same bits.
 *
 * The ops and their tensors (dense layer; * only if the spec has it):
 *
 *     x_in ─norm1─▶ h1 ─qkv─▶ qkv ─qk_norm* and rope─▶ qk ─▶ attention ─▶ att, lse
 *         att ─attn_out─▶ proj* ─post_norm1*─▶ branch
 *     x_mid = x_in + branch ─norm2─▶ h2 ─up─▶ up ─act─▶ act ─down─▶ mlp* ─post_norm2*─▶ branch
 *     next x_in = x_mid + branch
 *
 * With experts:
 *
 *     h2 ─router─▶ logits ─route─▶ probs, experts, weights, slots
 *     h2 ─gather─▶ xg ─▶ up ─▶ act ─▶ down ─combine─▶ mlp* or branch
 *
 * Backward reuses buffers whose contents it has consumed: d(act) is stored in act, d(up) in up,
 * d(xg) in xg.
 *
 * If ranks of tp share the layers (tp.h), S rows of the batch are this rank's: those of the
 * stream and of the sums that a half adds to it. Gathered or summed tensors have all R rows, in
 * memory for P rows. H, G and F are this rank's. */
#ifndef LT_MODEL_ACTS_H
#define LT_MODEL_ACTS_H

#include "base/arena.h"
#include "model/pass/pass.h"
#include "model/blocks/exec.h"

/* The level of recompute from which a tensor is shared by all layers. LT_KEEP_NOTHING: no backward
 * pass follows. */
#define LT_KEEP_NOTHING (LT_RECOMPUTE_FULL + 1)
#define LT_CHEAP        LT_RECOMPUTE_SELECTIVE
#define LT_COSTLY       LT_RECOMPUTE_FULL
#define LT_INPUT        LT_KEEP_NOTHING

/* name, shared from level, present if, dtype, shape (trailing 0: fewer dimensions). R rows, N = R *
 * max(K, 1) rows of experts, M rows that the experts held here may receive (without ranks of ep:
 * N); S rows of this rank, P rows rounded up to a multiple of the ranks (without tp, both are
 * R). */
#define LT_LAYER_ACTS(X)                                                                           \
    X(x_in, LT_INPUT, true, dtype, S, C, 0)                                                        \
    X(mean1, LT_COSTLY, l->pre_norms &&layer_norm, LT_F32, S, 0, 0)                                \
    X(rstd1, LT_COSTLY, l->pre_norms, LT_F32, S, 0, 0)                                             \
    X(h1, LT_CHEAP, l->pre_norms || divided, dtype, P, C, 0)                                       \
    X(qkv, LT_COSTLY, true, dtype, R, lt_layer_qkv_cols(l), 0)                                     \
    X(qk, LT_CHEAP, l->qk_norm, dtype, R, lt_layer_qk_cols(l), 0)                                  \
    X(rstd_qk, LT_COSTLY, l->qk_norm, LT_F32, R *(H + G), 0, 0)                                    \
    X(att, LT_COSTLY, true, dtype, R, lt_layer_att_cols(l), 0)                                     \
    X(lse, LT_COSTLY, true, LT_F32, B, H, T)                                                       \
    X(proj, LT_COSTLY, l->post_norms, dtype, S, C, 0)                                              \
    X(rstd_post1, LT_COSTLY, l->post_norms, LT_F32, S, 0, 0)                                       \
    X(x_mid, LT_COSTLY, true, dtype, S, C, 0)                                                      \
    X(mean2, LT_COSTLY, l->pre_norms &&layer_norm, LT_F32, S, 0, 0)                                \
    X(rstd2, LT_COSTLY, l->pre_norms, LT_F32, S, 0, 0)                                             \
    X(h2, LT_CHEAP, l->pre_norms || divided, dtype, P, C, 0)                                       \
    X(logits, LT_COSTLY, E > 0, LT_F32, P, E, 0)                                                   \
    X(probs, LT_COSTLY, E > 0, LT_F32, R, E, 0)                                                    \
    X(experts, LT_COSTLY, E > 0, LT_I32, R, K, 0)                                                  \
    X(weights, LT_COSTLY, E > 0, LT_F32, R, K, 0)                                                  \
    X(slot_row, LT_COSTLY, E > 0, LT_I32, N, 0, 0)                                                 \
    X(expert_start, LT_COSTLY, E > 0, LT_I32, E + 1, 0, 0)                                         \
    X(expert_count, LT_COSTLY, E > 0 && n_ep > 1, LT_I32, E, 0, 0)                                 \
    X(here_start, LT_COSTLY, E > 0 && n_ep > 1, LT_I32, E / n_ep + 1, 0, 0)                        \
    X(xg, LT_CHEAP, E > 0, dtype, M, C, 0)                                                         \
    X(up, LT_COSTLY, true, dtype, M, lt_layer_up_rows(l), 0)                                       \
    X(act, LT_CHEAP, true, dtype, M, F, 0)                                                         \
    X(down, LT_COSTLY, E > 0, dtype, N, C, 0)                                                      \
    X(mlp, LT_COSTLY, l->post_norms, dtype, S, C, 0)                                               \
    X(rstd_post2, LT_COSTLY, l->post_norms, LT_F32, S, 0, 0)

typedef struct {
#define LT_ACT_FIELD(name, level, present, dtype, d0, d1, d2) lt_tensor name;
    LT_LAYER_ACTS(LT_ACT_FIELD)
#undef LT_ACT_FIELD
} lt_layer_acts;

/* All tensors of a batch except those kept per layer. Tensors of backward are absent in
 * evaluation. */
typedef struct {
    /* Owned by a set: the inputs of a batch, and the tensors that are kept until its backward
     * pass. */
    lt_tensor tokens, labels, positions, doc_start; /* (B * T) I32; doc_start (B, T) */
    lt_tensor weights;                              /* (R) F32, if the pass takes weights. */
    lt_tensor order;  /* (R + 1) I32: the order of labels, weights, loss_rows and best (stage.h). */
    lt_tensor shared; /* Tables of shared.h, if the pass shares rows. */
    lt_tensor x_final, h_final, mean_final, rstd_final;
    lt_tensor aux;             /* (L, 2) F32 with experts. */
    lt_tensor n_labels;        /* (1) F32: counted labels of the batch, the weight of aux losses. */
    lt_tensor loss_rows, best; /* (R) F32, I32 */
    lt_tensor dx;              /* (S, C): gradient of the residual stream. */
    /* Scratch that all sets share; its contents do not outlive a range of layers. */
    /* (R, C), of which only this rank's rows are used outside a half: the sum that a half adds to
     * the residual stream; the gradient of a norm's output. */
    lt_tensor branch, dh;
    lt_tensor dqkv, datt, delta;
    /* Experts: (N, C), (R, K), (R, E), (R, E) when BF16. */
    lt_tensor ddown, dweights, dlogits, dlogits_cast;
} lt_batch_acts;

typedef struct {
    int64_t batch, seq; /* B, T: R = B T rows. */
    /* For attention, if rows are shared (shared.h): B and T of the batch as it was given;
     * otherwise 0. */
    int64_t given_batch, given_seq;
    bool shares; /* Batches may have shared rows. */
    lt_dtype dtype;
    bool backward;
    int level;          /* lt_recompute, or LT_KEEP_NOTHING */
    bool weights;       /* Rows have weights, in addition to labels. */
    bool packs;         /* Batches may be packed (stage.h). */
    int n_ep;           /* Ranks that divide the experts; 0: 1. */
    int64_t most_rows;  /* Rows that a batch of any of these ranks may have; 0: B * T. */
    double expert_room; /* expert.h */
    int n_tp, tp_rank;  /* Ranks that share the layers, and the index of this one; n_tp 0: 1. */
} lt_acts_shape;

/* The activations of one batch in flight: its own tensors, and views of the scratch that the sets
 * of a pass share. A batch lives in a set from its first layer to the end of its backward pass. */
typedef struct {
    lt_layer_acts *layers; /* The layers of the pass, the first at [0]. */
    lt_batch_acts batch;
    lt_arena own;         /* A part of the pass's arena. */
    int64_t n_batch, seq; /* The shape for which it is carved. */
    int64_t given_batch, given_seq;
    bool has_documents, has_weights;
    int64_t head_rows; /* Rows for which the head runs (stage.h). */
} lt_acts_set;

/* Take every tensor from the arenas: first with a NULL base to measure, then to place, and again
 * with a smaller B or T to run a smaller batch in the same memory. Carve first the tensors that
 * sets share, then those that a set owns, for n_layers layers. */
void lt_acts_carve_shared(lt_layer_acts *layer, lt_batch_acts *batch, const lt_model_spec *s,
                          const lt_acts_shape *shape, lt_arena *a);
void lt_acts_carve_own(lt_acts_set *set, const lt_layer_acts *shared_layer,
                       const lt_batch_acts *shared_batch, int64_t first_layer, int64_t n_layers,
                       const lt_model_spec *s, const lt_acts_shape *shape, lt_arena *a);
/* LT_KEEP_NOTHING only: space for any layer; lt_acts_view makes views of it for one of them. */
void lt_acts_carve_one(lt_layer_acts *room, const lt_model_spec *s, const lt_acts_shape *shape,
                       lt_arena *a);
void lt_acts_view(lt_layer_acts *layer, const lt_layer_acts *room, const lt_model_spec *s,
                  int64_t index, const lt_acts_shape *shape);
void lt_batch_carve(lt_batch_acts *t, const lt_model_spec *s, const lt_acts_shape *shape,
                    lt_arena *a);

/* Take one contiguous tensor; d1 or d2 is 0 if it has fewer dimensions. */
lt_tensor lt_tensor_take(lt_arena *a, lt_dtype dtype, int64_t d0, int64_t d1, int64_t d2);

/* Allocate what an arena measured on a device, and rewind it. */
LT_MUST_USE lt_err lt_arena_place(lt_arena *a, lt_device *device, const char *name);
void lt_arena_release(lt_arena *a, lt_device *device);

/* The activations of a layer after the last call of a pass, for tests and tools: those that the
 * recompute level keeps. */
const lt_layer_acts *lt_pass_layer_acts(const lt_pass *p, int layer);
const lt_batch_acts *lt_pass_batch_acts(const lt_pass *p);

#endif
