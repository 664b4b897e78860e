/* params.h: the parameters of a model: their whole shapes, which parts of them are held here, and
 * where these lie.
 *
 * A parameter is described by its whole shape and by boxes: the ranges of indices, one per
 * dimension, that this table holds. One box is the usual case; none means that the parameter is
 * absent (it belongs to another pipeline stage); q, k and v rows of some heads are three, and a
 * flat range of elements, as ZeRO cuts it, is at most five. The boxes are stored one after the
 * other, each row-major. Initialisation, loading, saving, optimiser, norm and checkpoints use
 * only this description, so a part that is initialised or loaded alone has the same bits as the
 * slice of the whole.
 *
 * Units: the embeddings, each layer, and the head (with the final norm) are a unit each. A
 * parameter has its place within its unit, and a buffer (weights, F32 master, gradients, a moment
 * of the optimiser) has a base pointer for each unit, so that a unit can be sharded, gathered,
 * duplicated or absent. By default all units are contiguous in one allocation:
 *
 *     flat ─▶ | embeddings | layer 0 | layer 1 | ... | head |        base[unit] = flat + unit.at
 *                            ▲ at: norm1, qkv, attn_out, ...
 *
 * Ours, in order (N = layer):                                         shape
 *   embed                                                             (V, C)
 *   pos_embed                    learned positions only               (max_seq, C)
 *   layers.N.norm1[, .bias]      before attention; pre-norms only     (C)
 *   layers.N.qkv[, .bias]        rows: H*D of q, G*D of k, G*D of v   ((H + 2G) D, C)
 *   layers.N.q_norm, .k_norm     qk_norm only; or of all heads        (D); (H D), (G D)
 *   layers.N.sinks               sinks only                           (H)
 *   layers.N.attn_out[, .bias]                                        (C, H D)
 *   layers.N.post_norm1          post_norms only                      (C)
 *   layers.N.norm2[, .bias]      before the MLP; pre-norms only       (C)
 *   layers.N.router[, .bias]     MoE only                             (E, C)
 *   layers.N.up[, .bias]         gated: rows gate F, then up F        (F or 2F, C),
 *                                                                     MoE: (E, F or 2F, C)
 *                                its bias                             (F or 2F), MoE: (E, F or 2F)
 *   layers.N.xielu               xIELU only: p, n                     (2)
 *   layers.N.down[, .bias]                                            (C, F), MoE: (E, C, F)
 *                                its bias                             (C), MoE: (E, C)
 *   layers.N.post_norm2          post_norms only                      (C)
 *   final_norm[, .bias]                                               (C)
 *   head                         untied only, no score head           (V, C)
 *   score[, .bias]               a score head only; its bias          (n_scores, C)
 *                                of token_scores only                 (n_scores)
 * Every place is a multiple of LT_PARAM_ALIGN elements; the gaps are zero and stay zero. */
#ifndef LT_MODEL_PARAMS_H
#define LT_MODEL_PARAMS_H

#include "lateen/model.h"
#include "model/box.h"

#define LT_PARAM_ALIGN      16 /* Elements: 64 bytes of F32. */
#define LT_PARAM_NAME_BYTES 48

typedef enum {
    LT_PARAM_EMBED,
    LT_PARAM_POS_EMBED,
    LT_PARAM_NORM1,
    LT_PARAM_NORM1_BIAS,
    LT_PARAM_QKV,
    LT_PARAM_QKV_BIAS,
    LT_PARAM_Q_NORM,
    LT_PARAM_K_NORM,
    LT_PARAM_SINKS,
    LT_PARAM_ATTN_OUT,
    LT_PARAM_ATTN_OUT_BIAS,
    LT_PARAM_POST_NORM1,
    LT_PARAM_NORM2,
    LT_PARAM_NORM2_BIAS,
    LT_PARAM_ROUTER,
    LT_PARAM_ROUTER_BIAS,
    LT_PARAM_UP,
    LT_PARAM_UP_BIAS,
    LT_PARAM_XIELU,
    LT_PARAM_DOWN,
    LT_PARAM_DOWN_BIAS,
    LT_PARAM_POST_NORM2,
    LT_PARAM_FINAL_NORM,
    LT_PARAM_FINAL_NORM_BIAS,
    LT_PARAM_HEAD,
    LT_PARAM_SCORE,
    LT_PARAM_SCORE_BIAS,
    LT_PARAM_KIND_COUNT
} lt_param_kind;

/* Whether a parameter belongs to the model, or to the adapter of one of its parameters (lora.h). */
typedef enum { LT_PARAM_OWN, LT_PARAM_LORA_A, LT_PARAM_LORA_B, LT_PARAM_LORA_M } lt_param_role;

#define LT_PARAM_RUNS 3
/* The most matrices that are stacked in a parameter. */
#define LT_PARAM_BLOCKS 3

/* Rows [first, first + count) of a matrix. */
typedef struct {
    int64_t first, count;
} lt_param_run;

typedef struct {
    char name[LT_PARAM_NAME_BYTES];
    lt_param_kind kind; /* For an adapter's parameter, the kind of its matrix. */
    lt_param_role role;
    int layer; /* -1: not in a layer. */
    /* For B and the magnitudes of an adapter: the rows of the matrix to which their rows belong. */
    lt_param_run runs[LT_PARAM_RUNS];
    int n_runs;
    /* The whole shape. */
    int n_dims;
    int64_t shape[LT_PARAM_DIMS];
    int64_t count;
    int number; /* The parameter's index in the table. */
    /* Index of its first element in the layout of the whole model, independent of what is held
     * here: the key of the optimiser's stochastic rounding and of the norm's partial sums. */
    int64_t whole_at;
    /* The part that is held here. local_shape: the shape of the boxes taken together, if they
     * form a tensor; otherwise local_dims is 1. */
    int n_boxes, first_box; /* In the table's list. */
    int local_dims;
    int64_t local_shape[LT_PARAM_DIMS], local_count;
    int unit;
    /* Position in the unit, in elements; -1: it is not in buffers (stored_weights.h). */
    int64_t at;
    /* Weight decay applies: matrices and embeddings, not norms, biases, xIELU scalars. */
    bool decays;
    /* A hidden 2-D matrix (or E of them), which Muon can train: not embeddings, router or head.
     * It consists of n_blocks stacked matrices: queries, keys and values; gate and up.
     * block_rows: their rows, whose sum is shape[n_dims - 2]. */
    bool matrix;
    int n_blocks;
    int64_t block_rows[LT_PARAM_BLOCKS];
    bool experts; /* The first dimension is the expert. */
} lt_param;

/* The embeddings (unit 0), a layer (unit 1 + layer), or final norm and head (the last). */
typedef struct {
    int layer; /* -1: not a layer. */
    int first_param, n_params;
    int64_t n_elements; /* Elements that are held here, gaps included; 0: the unit is absent. */
    int64_t at;         /* Position in a buffer whose units follow one another. */
} lt_unit;

typedef struct {
    lt_param *params;
    int n_params;
    lt_unit *units;
    int n_units;
    lt_box *boxes;
    int n_boxes;
    /* (n_units, LT_PARAM_KIND_COUNT): index of a kind in a unit, or -1. */
    int *index;
    int64_t n_elements;     /* Length of a flat buffer of what is held here, gaps included. */
    int64_t whole_elements; /* Elements of the whole model. */
} lt_param_table;

/* A partition: a function that lists the boxes held of a parameter, whose whole shape is filled in,
 * in their order in memory. They must not overlap, and none may be empty. */
typedef struct lt_partition {
    lt_err (*boxes)(const void *ctx, const lt_param *whole, lt_box_list *out);
    const void *ctx;
    /* The elements that a unit takes in a buffer, gaps included, at least `held`, those of the
     * table. Ranks may need room for the parts of other ranks. NULL: `held`. */
    int64_t (*room)(const void *ctx, int unit, int64_t held);
} lt_partition;

/* Shape of a parameter kind under a spec, in layer `layer` if it is in layers: returns the number
 * of dimensions, 0 if there is no such parameter. */
int lt_param_shape(const lt_model_spec *spec, lt_param_kind kind, int64_t layer,
                   int64_t shape[LT_PARAM_DIMS]);
bool lt_param_in_layer(lt_param_kind kind);
/* Number of single matrices of a parameter of which whole matrices are held here: its blocks, for
 * each expert if there are experts. */
int64_t lt_param_matrix_count(const lt_param *p);
/* Matrix `index` of these: its rows, and its first element among those that are held. */
int64_t lt_param_matrix_at(const lt_param *p, int64_t index, int64_t *rows);
/* The matrix of the output head: the embedding's if they are tied, or that of a score head. */
lt_param_kind lt_param_head(const lt_model_spec *spec);
/* Its bias; LT_PARAM_KIND_COUNT: it has none. */
lt_param_kind lt_param_head_bias(const lt_model_spec *spec);

/* The table of the whole model. */
LT_MUST_USE lt_err lt_param_table_open(lt_param_table *out, const lt_model_spec *spec);
/* The table of the parts that `partition` lists; NULL: the whole, each parameter in one box. ARG:
 * a box that is empty, lies outside its parameter or overlaps another. */
LT_MUST_USE lt_err lt_param_table_open_part(lt_param_table *out, const lt_model_spec *spec,
                                            const lt_partition *partition);
void lt_param_table_close(lt_param_table *t);
/* A table of other parameters (lora.c): begin one for at most n_max of them; add each with its
 * name, kind, layer, unit, shape and flags for the optimiser, unit after unit; end it, which
 * places them. add returns the index, which lt_param_index does not find. Close the table also
 * after a failure. */
LT_MUST_USE lt_err lt_param_table_begin(lt_param_table *t, int64_t n_layers, int n_max);
int lt_param_table_add(lt_param_table *t, const lt_param *whole);
LT_MUST_USE lt_err lt_param_table_end(lt_param_table *t, const lt_partition *partition);
const lt_param *lt_param_find(const lt_param_table *t, const char *name); /* NULL: none. */
/* Index of a kind (in a layer, if it is in layers) among the parameters; -1: there is none. */
int lt_param_index(const lt_param_table *t, lt_param_kind kind, int layer);
bool lt_param_table_is_whole(const lt_param_table *t);

/* Boxes of a parameter, in their order in memory. */
const lt_box *lt_param_boxes(const lt_param_table *t, const lt_param *p);
/* Index in the whole of element `local` of the held part; *run: number of elements from there on
 * that are contiguous in the whole, too. */
int64_t lt_param_whole_index(const lt_param_table *t, const lt_param *p, int64_t local,
                             int64_t *run);

/* One number for each element of a table, unit by unit: weights, master, gradients or a moment. */
typedef struct {
    lt_dtype dtype;
    void **base; /* (n_units): the current address of a unit's elements; NULL: not here. */
    void *flat;  /* All units follow one another from here on; NULL: they are separate. */
} lt_param_buffer;

/* Open a buffer without memory: every unit is absent. Close it with lt_param_buffer_close, which
 * does not free the memory of units. */
LT_MUST_USE lt_err lt_param_buffer_open(lt_param_buffer *b, const lt_param_table *t,
                                        lt_dtype dtype);
void lt_param_buffer_close(lt_param_buffer *b);
size_t lt_param_buffer_bytes(const lt_param_table *t, lt_dtype dtype);
/* Place all units of the table in one allocation of lt_param_buffer_bytes. */
void lt_param_buffer_place(lt_param_buffer *b, const lt_param_table *t, void *flat);
/* The held part of a parameter; NULL: nothing, or its unit is not here. */
void *lt_param_data(const lt_param_buffer *b, const lt_param *p);
/* The flat buffer as F32, for code that processes all units at once. */
float *lt_param_floats(const lt_param_buffer *b);

/* A view of a parameter in a buffer, in its local shape; absent kinds, units and buffers (base
 * NULL) give data NULL. layer is ignored outside layers. */
lt_tensor lt_param_view(const lt_param_table *t, lt_param_kind kind, int layer,
                        const lt_param_buffer *b);

/* A weight matrix in its file's own type (stored_weights.h): ranges of rows [first_row, first_row +
 * w.shape[0]). packed: in the backend's layout, or NULL; w.data is NULL if only the packed form
 * is left. n_experts > 0: w and packed hold the matrices of that many experts, one below the other,
 * and the range is rows [first_row, first_row + w.shape[0] / n_experts) of each expert's. each: on
 * a host, the matrix of each expert where the file has one tensor for each; w.data is then the
 * first of them. */
#define LT_STORED_RANGES 3
typedef struct {
    lt_tensor w;
    const void *packed;
    lt_tensor scales; /* F32, for NF4_DOUBLE; otherwise absent. */
    int64_t first_row, n_experts;
    const unsigned char *const *each; /* (n_experts), in lt_model.stored_each; NULL: see w. */
    size_t at; /* For slices (stored_weights.h): where it begins among the blocks of its unit. */
} lt_weight_range;
typedef struct {
    int n_ranges; /* 0: the parameter is in the flat buffer. */
    lt_weight_range ranges[LT_STORED_RANGES];
} lt_stored_weight;

/* Leave stored weights out of the layout, so that they have no place in buffers. partition: that
 * of the table, for the size of its units; NULL: none. */
void lt_param_table_skip_stored(lt_param_table *t, const lt_stored_weight *weights,
                                const lt_partition *partition);

struct lt_model {
    lt_model_spec spec;
    lt_param_table table;
    lt_model_options options;
    lt_device *device; /* options.device, or own_device. */
    /* Closed with the model; NULL: the device belongs to the caller. */
    lt_device *own_device;
    const struct lt_backend *backend; /* The backend of the device. */
    /* F32, in the backend's memory, like weights; without memory if BF16 and not trainable. */
    lt_param_buffer master;
    lt_param_buffer weights; /* In options.dtype; the same memory as master if that is F32. */
    void *memory;            /* The memory of both, one allocation. */
    struct lt_mover *mover;  /* alloc.c: transfers to and from the host. */
    /* Grows when training changes weights, so that derived data can be refreshed. */
    uint64_t version;
    /* lora.h: the adapters with which it computes, which it does not own; NULL: none. */
    struct lt_lora *lora;
    struct lt_steering *steering;   /* steering.h: vectors that serving may add; NULL: none. */
    struct lt_lora_pool *lora_pool; /* lora_pool.h: adapters that requests choose; NULL: none. */
    /* weights.c: weights that are being loaded; NULL: all are loaded. */
    struct lt_filling *filling;
    size_t weights_bytes; /* Bytes of all memory of the weights. */
    /* (n_params); NULL unless options.stored, and, on a device, unless the file has blocks. */
    lt_stored_weight *stored;
    const unsigned char **stored_each;   /* The experts of ranges whose matrices lie apart. */
    struct lt_source *stored_source;     /* The mapped source into which stored points. */
    void *stored_copies, *stored_packed; /* In the backend's memory. */
    size_t stored_copies_bytes, stored_packed_bytes;
    /* Slices of blocks that ranks divide; NULL: blocks are whole. */
    struct lt_stored_slices *slices;
    float *score_ends; /* score_ends.h: (spec.score_ends, n_scores), then the bias; or NULL. */
    /* For options.decoded: 0, 1, ... I32, in the backend's memory (decoded.h). */
    void *row_numbers;
    size_t row_numbers_bytes;
    struct json_t *generation; /* generation.h: the tree, NULL: none; its origin; its ids. */
    char *generation_from;
    /* The folder of its tokenizer and template on this machine, set by code that fetched the
     * model or opened it beside adapters (cli/opened.h); NULL: it was not set. */
    char *files;
    lt_ends generation_ends;
};

/* Whether it has a master; F32 weights are their own master. */
bool lt_model_has_master(const lt_model *m);

#endif
