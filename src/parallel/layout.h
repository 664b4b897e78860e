/* layout.h: which part of a model a rank of a mesh holds, and who else holds the same.
 *
 *   axis  what it divides                                       how
 *   pp    layers; the embeddings belong to the first stage,     consecutive layers, as evenly as
 *         the final norm and the head to the last; a tied       possible, unless told otherwise
 *         embedding stands at both
 *   tp    heads of q, k, v, sinks and columns of attn_out;      rank t of n has the t-th of n equal
 *         rows of up (of gate and of up each) and columns of    runs; vocabularies need not divide
 *         down, in experts too; rows of embeddings and head     evenly
 *   ep    experts                                               likewise
 *   dp,   nothing of the model: these ranks hold copies.
 *   cp    ZeRO cuts them further (zero.h)
 *
 * Where there are fewer key heads than ranks, neighbours hold the same key head. Norms, routers,
 * biases behind a sum over ranks, xIELU's scalars and learned positions are whole on every rank of
 * tp. A box that several ranks hold is written, and counted in the gradient's norm, by the one that
 * answers for it; its gradients are summed over all that hold it. (Shoeybi et al. 2019,
 * arXiv:1909.08053; GShard, arXiv:2006.16668.) */
#ifndef LT_PARALLEL_LAYOUT_H
#define LT_PARALLEL_LAYOUT_H

#include "lateen/comm.h"
#include "model/params.h"
#include "parallel/stages.h"

typedef struct {
    const lt_model_spec *spec; /* The caller's; outlives the layout. */
    lt_mesh_shape shape;
    int pp, dp, cp, tp, ep, edp; /* This rank's place on each axis, and among the ranks
                                        * with the same experts. */
    bool layers[LT_MAX_LAYERS];  /* Those this rank holds. */
    bool embeds, heads;          /* It holds the embeddings; the final norm and the head. */
    bool ends_apart; /* First and last stage are different ranks': a tied embedding stands twice. */
    int64_t first_word, end_word;      /* Rows of embedding and head: of the vocabulary. */
    int64_t first_head, n_heads;       /* Of q. */
    int64_t first_kv_head, n_kv_heads; /* Of k and v. */
    int kv_copies;                     /* Ranks of tp that hold the same k and v heads. */
    int64_t first_expert, n_experts;
} lt_layout;

/* Rank `rank` of the mesh. ARG: the model does not divide so; the message names the two numbers and
 * the nearest size that fits. */
LT_MUST_USE lt_err lt_layout_open(lt_layout *out, const lt_model_spec *spec,
                                  const lt_mesh_shape *shape, int rank);

/* The layers that `stages` gives to this rank, in the place of an even share in one piece; its
 * ranks are those of pp. */
void lt_layout_place(lt_layout *l, const lt_stages *stages);

/* Part i of n of `count` things, as evenly as possible: where it begins. i = n: count. */
int64_t lt_share_first(int64_t count, int n, int i);

/* What is held, for lt_model_options and lt_param_table_open_part; it points to the layout. */
lt_partition lt_layout_partition(const lt_layout *l);

/* Over which ranks copies of a box stand, beside dp and cp (and of experts, beside edp). */
typedef enum {
    LT_COPIES_NONE,
    LT_COPIES_TP = 1,     /* All ranks of tp. */
    LT_COPIES_KV = 2,     /* kv_copies neighbours of tp. */
    LT_COPIES_STAGES = 4, /* First and last stage: a tied embedding. */
} lt_copies;
/* Box `box` of those that the layout gives for p. */
unsigned lt_layout_copies(const lt_layout *l, const lt_param *p, int box);
/* Is it an expert's, so that its gradients are summed over edp and not over dp x cp? */
bool lt_layout_expert(const lt_layout *l, const lt_param *p);
/* Of the copies of a box over tp and stages, is this rank's the one that counts? Each of the dp x
 * cp (edp) copies has one such. */
bool lt_layout_answers(const lt_layout *l, const lt_param *p, int box);
/* The same of a box that lies in one of those that the layout gives. */
bool lt_layout_answers_at(const lt_layout *l, const lt_param *p, const lt_box *box);

#endif
