/* layout.h: which part of a model a rank of a mesh holds, and which other ranks hold copies.
 *
 *   axis  what it divides                                       how
 *   pp    layers; the embeddings belong to the first stage,     consecutive layers, as evenly as
 *         the final norm and the head to the last; a tied       possible, unless told otherwise
 *         embedding belongs to both
 *   tp    heads of q, k, v, sinks and columns of attn_out;      rank t of n has the t-th of n equal
 *         rows of up (of gate and of up each) and columns of    runs; vocabularies need not divide
 *         down, in experts too; rows of embeddings and head     evenly
 *   ep    experts                                               likewise
 *   dp,   nothing of the model: these ranks hold copies.
 *   cp    ZeRO cuts them further (zero.h)
 *
 * An adapter (lora.h) is divided as its matrix is: the columns of A are divided as the columns of
 * the matrix, the rows of B as its rows. So each rank of tp has all of A where the rows of the
 * matrix are divided, and all of B where its columns are.
 *
 * If there are fewer key heads than ranks, neighbours hold the same key head. Norms, routers,
 * biases added after a sum over ranks, xIELU's scalars and learned positions are whole on every
 * rank of tp. Of the ranks that hold a box, one answers for it: it writes the box and counts it in
 * the gradient's norm. The box's gradients are summed over all of them. (Shoeybi et al. 2019,
 * arXiv:1909.08053; GShard, arXiv:2006.16668.) */
#ifndef LT_PARALLEL_LAYOUT_H
#define LT_PARALLEL_LAYOUT_H

#include "lateen/comm.h"
#include "model/params.h"
#include "parallel/stages.h"

typedef struct {
    const lt_model_spec *spec; /* Belongs to the caller; outlives the layout. */
    lt_mesh_shape shape;
    /* This rank's coordinate on each axis; edp: among the ranks with the same experts. */
    int pp, dp, cp, tp, ep, edp;
    bool layers[LT_MAX_LAYERS]; /* The layers that this rank holds. */
    bool embeds, heads;         /* Whether it holds the embeddings; the final norm and the head. */
    /* The first and last stage are on different ranks, so a tied embedding exists twice. */
    bool ends_apart;
    int64_t first_id, end_id;          /* Rows of the vocabulary, in embedding and head. */
    int64_t first_head, n_heads;       /* Heads of q. */
    int64_t first_kv_head, n_kv_heads; /* Heads of k and v. */
    int kv_copies;                     /* Ranks of tp that hold the same k and v heads. */
    int64_t first_expert, n_experts;
} lt_layout;

/* The layout of rank `rank` of the mesh. ARG: the model cannot be divided like this; the message
 * names the two numbers and the nearest size that fits. */
LT_MUST_USE lt_err lt_layout_open(lt_layout *out, const lt_model_spec *spec,
                                  const lt_mesh_shape *shape, int rank);

/* Give this rank the layers that `stages` assigns to it, instead of an even share; the ranks of
 * `stages` are those of pp. */
void lt_layout_place(lt_layout *l, const lt_stages *stages);

/* Where part i of n begins when `count` items are divided as evenly as possible. i = n: count. */
int64_t lt_share_first(int64_t count, int n, int i);

/* The part that is held, for lt_model_options and lt_param_table_open_part; it points to the
 * layout. */
lt_partition lt_layout_partition(const lt_layout *l);

/* Which ranks hold copies of a box, apart from those of dp and cp (for experts, of edp). */
typedef enum {
    LT_COPIES_NONE,
    LT_COPIES_TP = 1,     /* All ranks of tp. */
    LT_COPIES_KV = 2,     /* kv_copies neighbouring ranks of tp. */
    LT_COPIES_STAGES = 4, /* First and last stage, for a tied embedding. */
} lt_copies;
/* Which ranks hold copies of one of the layout's boxes of p, or of a box within it: a set of
 * lt_copies. */
unsigned lt_layout_copies(const lt_layout *l, const lt_param *p, const lt_box *box);
/* Whether p belongs to experts. If so, its gradients are summed over edp, not over dp x cp. */
bool lt_layout_expert(const lt_layout *l, const lt_param *p);
/* Whether this rank answers for the box, among the copies over tp and stages. Each of the dp x cp
 * (edp) replicas has one such rank. */
bool lt_layout_answers(const lt_layout *l, const lt_param *p, const lt_box *box);

#endif
