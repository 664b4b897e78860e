/* params.h: the parameters of a model as one flat buffer.
 *
 * The table lists every parameter with its place in the flat buffer. Weights, F32 master, gradients
 * and optimiser moments are buffers with the same element offsets, so an optimiser walks them flat
 * and a checkpoint names them one by one.
 *
 * Ours, in order (N = layer):                                         shape
 *   embed                                                             (V, C)
 *   pos_embed                    learned positions only               (max_seq, C)
 *   layers.N.norm1[, .bias]      before attention                     (C)
 *   layers.N.qkv[, .bias]        rows: H*D of q, G*D of k, G*D of v   ((H + 2G) D, C)
 *   layers.N.q_norm, .k_norm     qk_norm only                         (D)
 *   layers.N.attn_out[, .bias]                                        (C, H D)
 *   layers.N.post_norm1          post_norms only                      (C)
 *   layers.N.norm2[, .bias]      before the MLP                       (C)
 *   layers.N.router              MoE only                             (E, C)
 *   layers.N.up[, .bias]         gated: rows gate F, then up F        (F or 2F, C), MoE: (E, F or 2F, C)
 *   layers.N.xielu               xIELU only: p, n                     (2)
 *   layers.N.down[, .bias]                                            (C, F), MoE: (E, C, F)
 *   layers.N.post_norm2          post_norms only                      (C)
 *   final_norm[, .bias]                                               (C)
 *   head                         untied only                          (V, C)
 * Every offset is a multiple of LT_PARAM_ALIGN elements; the gaps are zero and stay zero. */
#ifndef LT_MODEL_PARAMS_H
#define LT_MODEL_PARAMS_H

#include "lateen/model.h"

#define LT_PARAM_ALIGN      16 /* Elements: 64 bytes of F32. */
#define LT_PARAM_NAME_BYTES 48
#define LT_MAX_PARAM_KINDS  32

typedef enum {
    LT_PARAM_EMBED,
    LT_PARAM_POS_EMBED,
    LT_PARAM_NORM1,
    LT_PARAM_NORM1_BIAS,
    LT_PARAM_QKV,
    LT_PARAM_QKV_BIAS,
    LT_PARAM_Q_NORM,
    LT_PARAM_K_NORM,
    LT_PARAM_ATTN_OUT,
    LT_PARAM_ATTN_OUT_BIAS,
    LT_PARAM_POST_NORM1,
    LT_PARAM_NORM2,
    LT_PARAM_NORM2_BIAS,
    LT_PARAM_ROUTER,
    LT_PARAM_UP,
    LT_PARAM_UP_BIAS,
    LT_PARAM_XIELU,
    LT_PARAM_DOWN,
    LT_PARAM_DOWN_BIAS,
    LT_PARAM_POST_NORM2,
    LT_PARAM_FINAL_NORM,
    LT_PARAM_FINAL_NORM_BIAS,
    LT_PARAM_HEAD,
    LT_PARAM_KIND_COUNT
} lt_param_kind;

typedef struct {
    char name[LT_PARAM_NAME_BYTES];
    lt_param_kind kind;
    int layer; /* -1: not in a layer. */
    int n_dims;
    int64_t shape[3];
    int64_t offset, count; /* Elements, in every flat buffer. */
    /* Weight decay applies: matrices and embeddings, not norms, biases, xIELU scalars. */
    bool decays;
    /* A hidden 2-D matrix (or E of them): Muon's kind. Not embeddings, router, head. */
    bool matrix;
} lt_param;

typedef struct {
    lt_param *params;
    int n_params;
    int64_t n_elements;             /* Length of a flat buffer, gaps included. */
    int index[LT_PARAM_KIND_COUNT]; /* Of a kind outside layers, or of layer 0; -1: absent. */
    int layer_stride; /* params[index[kind] + layer * layer_stride] is that kind in that layer. */
} lt_param_table;

/* Shape of a parameter kind under a spec (of one layer): returns the number of dimensions, 0 when
 * the spec has no such parameter. */
int lt_param_shape(const lt_model_spec *spec, lt_param_kind kind, int64_t shape[3]);
bool lt_param_in_layer(lt_param_kind kind);
int64_t lt_model_layer_window(const lt_model_spec *spec,
                              int64_t layer); /* 0: the layer sees everything before it. */
float lt_model_attn_scale(const lt_model_spec *spec);

LT_MUST_USE lt_err lt_param_table_open(lt_param_table *out, const lt_model_spec *spec);
void lt_param_table_close(lt_param_table *t);
const lt_param *lt_param_find(const lt_param_table *t, const char *name); /* NULL: none. */

/* A view of a parameter in a flat buffer of the given type; absent kinds give data NULL. layer is
 * ignored outside layers. */
lt_tensor lt_param_view(const lt_param_table *t, lt_param_kind kind, int layer, void *flat,
                        lt_dtype dtype);

/* A weight matrix in its file's own type (held.h): runs of rows [first_row, first_row +
 * w.shape[0]). packed: in the backend's layout, or NULL; w.data is NULL where only that is left. */
#define LT_HELD_RUNS 3
typedef struct {
    lt_tensor w;
    const void *packed;
    int64_t first_row;
} lt_weight_run;
typedef struct {
    int n_runs; /* 0: the parameter lies in the flat buffer. */
    lt_weight_run runs[LT_HELD_RUNS];
} lt_held;

/* Leave held parameters out of the flat layout: they have no offset any more. */
void lt_param_table_skip_held(lt_param_table *t, const lt_held *held);

struct lt_model {
    lt_model_spec spec;
    lt_param_table table;
    lt_model_options options;
    const struct lt_backend *backend;
    /* (n_elements) F32; NULL when BF16 and not trainable. The backend's memory, as weights. */
    float *master;
    void *weights;          /* (n_elements) in options.dtype; == master when F32. */
    struct lt_mover *mover; /* alloc.c: to and from the host. */
    uint64_t version; /* Grows when training changes weights, for who keeps what is made of them. */
    struct lt_filling *filling; /* weights.c: weights that come in beside; NULL: all are there. */
    size_t weights_bytes;       /* All memory of the weights, as carved. */
    lt_held *held; /* (n_params), NULL unless options.stored, on a device only with blocks. */
    struct lt_source *held_source;   /* What held points into, mapped. */
    void *held_copies, *held_packed; /* The backend's memory. */
    size_t held_copies_bytes, held_packed_bytes;
    struct json_t *generation; /* generation.h: the tree, NULL: none; where it is from; its ids. */
    char *generation_from;
    lt_ends generation_ends;
};

#endif
