/* draft_head_impl.h: shared by the reader of a draft head (draft_head.c) and its pass
 * (draft_pass.c). */
#ifndef LT_MODEL_DRAFT_HEAD_IMPL_H
#define LT_MODEL_DRAFT_HEAD_IMPL_H

#include "base/arena.h"
#include "model/infer/draft_head.h"

#define LT_DRAFT_HEAD_STATES 3 /* Hidden states of the model that the head fuses. */

/* A matrix (out, in) of the model's type, and the same in the layout that the backend's products
 * prefer. */
typedef struct {
    lt_tensor w;
    void *packed; /* NULL: not packed. */
} lt_draft_matrix;

typedef struct {
    /* For an EAGLE-3 head. */
    lt_draft_matrix qkv_token, qkv_hidden; /* ((H + 2 G) D, C) of embedding and hidden state */
    /* For a layer of multi-token prediction. */
    lt_draft_matrix join_token, join_hidden; /* (C, C) of embedding and hidden state */
    lt_draft_matrix qkv;                     /* ((H + 2 G) D, C) */
    lt_tensor qkv_bias, norm_attn;           /* ((H + 2 G) D), (C) F32 */
    /* For both. */
    lt_draft_matrix attn_out, up, down; /* (C, H D), (2 F, C) gate and up, (C, F) */
    lt_tensor norm_token, norm_hidden, norm_mlp, norm_last; /* (C) F32 */
} lt_draft_layer;

struct lt_draft_head {
    const lt_model *target;
    lt_model_spec spec; /* Spec of one layer; vocab_size is the model's. */
    int64_t vocab_size; /* Vd */
    /* It is layers of multi-token prediction; otherwise an EAGLE-3 head. */
    bool is_mtp;
    int reads[LT_DRAFT_HEAD_STATES]; /* Layers of the model whose inputs an EAGLE-3 head reads. */
    lt_arena arena;                  /* In the backend's memory. */
    int64_t n_layers;                /* 1 for an EAGLE-3 head. */
    lt_draft_layer layer[LT_DRAFT_HEAD_LAYERS];
    /* For an EAGLE-3 head; otherwise embedding and head are the model's. */
    lt_draft_matrix fuse[LT_DRAFT_HEAD_STATES]; /* (C, C) */
    lt_draft_matrix head;                       /* (Vd, C) */
    lt_tensor embed;                            /* (V, C); absent: the model's */
    int32_t *ids;                               /* (Vd) ids of the model, in host memory */
};

#endif
