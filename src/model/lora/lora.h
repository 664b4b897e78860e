/* lora.h: adapters beside linear layers (Hu et al. 2021, "LoRA", arXiv:2106.09685).
 *
 *     y = x W^T + s (x A^T) B^T          A (r, in), B (out, r), s = alpha / r, or alpha / sqrt(r)
 *                                        (Kalajdzievski 2023, rsLoRA, arXiv:2312.03732)
 *
 * W, the base, is not changed: it has no gradients and no optimiser state. The modules of a
 * Hugging Face model that we keep in one matrix (q, k and v; gate and up) have an adapter each,
 * as in a PEFT folder. Their A's are stacked, for one product:
 *
 *     x (R, in) ──A (3 r, in)──▶ u (R, 3 r), times s
 *                                │ columns of q ──B_q──▶ added to the columns of q in y
 *                                │ columns of k ──B_k──▶            of k
 *                                └ columns of v ──B_v──▶            of v
 *
 * Backward, with u and du = s dy B computed again for each batch, in scratch that all layers share:
 *     dB = dy^T u     dA = du^T x     dx = dy W + du A
 *
 * The parameters, in the order of the table; the unit of a layer is the base's (params.h):
 *     layers.N.qkv.lora_a (3 r, C), .lora_b ((H + 2G) D, r)       attn_out, up, down likewise
 *     embed.lora_a (V, r), .lora_b (C, r); head.lora_a (r, C), .lora_b (V, r)    if asked for
 *     score (n_scores, C)                                         a score head only
 *     layers.N.qkv.lora_m ((H + 2G) D), ...                      DoRA only (dora.h)
 * The experts of a layer have separate adapters of one rank; A and B have a leading dimension, and
 * gate and up are one module, as in transformers (PEFT's target_parameters):
 *     layers.N.up.lora_a (E, r, C), .lora_b (E, 2 F, r); down likewise
 * An embedding has an adapter only if a target names it: y = W[id] + s A[id] B^T; in a new one A
 * (V, r) is zero and B random, as in PEFT. The same applies to the output head; if it is tied,
 * its adapter changes the head and not the embedding, and vice versa.
 *
 * A score head is trained whole, as PEFT does for SEQ_CLS (modules_to_save): that of the adapters
 * replaces the base's, and begins with its values.
 *
 * Every linear layer of a pass, a session or an engine goes through lt_linear_fwd and _bwd, which
 * call the functions of adapted.h if a model has adapters. Training can have several at once,
 * each with its own rows (lt_pass_join); serving can have many: lora_pool.h. */
#ifndef LT_MODEL_LORA_H
#define LT_MODEL_LORA_H

#include "base/arena.h"
#include "model/family.h"
#include "model/files/safetensors.h"
#include "tensor/ops.h"

/* The divisor of alpha in the factor of an adapter. */
typedef enum { LT_LORA_BY_RANK, LT_LORA_BY_ROOT } lt_lora_scaling;
#define LT_LORA_SCALINGS "rank|sqrt"
/* How the base model is kept (decoded.h); the values after AS_STORED are the block types to encode
 * it in. AUTO: AS_STORED if the file has block types that allow training of adapters, otherwise
 * DTYPE. */
typedef enum { LT_LORA_BASE_AUTO, LT_LORA_BASE_DTYPE, LT_LORA_BASE_AS_STORED } lt_lora_base;
#define LT_LORA_BASES       "auto|dtype|as_stored|nf4|nf4_double|q4_0|q5_0|q8_0|q4_k|q5_k|q6_k"
#define LT_LORA_ALL         "all-linear"
#define LT_LORA_LAYER_KINDS 4 /* qkv, attn_out, up, down */
#define LT_LORA_TOP_KINDS   2 /* The embedding and the head, after all layers. */
#define LT_LORA_PARTS       3 /* q, k and v */

typedef struct {
    int64_t rank; /* 0: no adapters. */
    double alpha;
    lt_lora_scaling scaling;
    /* Train the length of each row of a weight separately from its direction (dora.h). */
    bool dora;
    double dropout; /* In training: the share of the adapters' input that is 0 (lora_dropout.h). */
    /* Modules, "q_proj,v_proj,...", by the ends of their names as in PEFT; LT_LORA_ALL: all
     * modules of layers. */
    const char *targets;
    /* Weights that were trained whole, in the file, replace the base's (lt_lora_replace). Only
     * for merging, because otherwise the base may have other users. */
    bool whole;
} lt_lora_options;

/* The adapter of one module. */
typedef struct {
    const lt_name_row *name;   /* The module's weight. */
    int64_t first_row, n_rows; /* Its rows in our matrix. */
    int64_t b_row;             /* Its first row in lora_b. */
    /* The same, for the parts of both that are held here. */
    struct {
        int64_t first_row, n_rows, b_row;
    } held;
} lt_lora_part;

/* The adapters beside one of our matrices. */
typedef struct {
    int a, b, m;       /* Indexes among the parameters; -1: there are none. m: DoRA only. */
    int64_t m_at;      /* Index of its first row in lt_dora's vectors. */
    int64_t n_experts; /* Above 0: A and B have this many matrices, one after the other. */
    int n_parts;
    lt_lora_part parts[LT_LORA_PARTS];
} lt_lora_site;

/* Whether the site has an adapter with magnitudes (DoRA). False for NULL. */
static inline bool lt_lora_has_magnitudes(const lt_lora_site *s) {
    return s != NULL && s->n_parts > 0 && s->m >= 0;
}

/* Sizes that determine the memory in addition to the parameters. */
typedef struct {
    int64_t columns; /* Columns of the widest u. */
    /* Rows of u for each row of a batch: one for each of its experts, or 1. */
    int64_t places;
    int64_t in;           /* The most columns of a matrix with adapters. */
    int64_t width;        /* DoRA: the most rows of a matrix. */
    int64_t n_magnitudes; /* DoRA: number of magnitudes of all matrices. */
} lt_lora_sizes;

/* The adapters that there are, for measuring before there are weights. */
typedef struct {
    lt_param_table table;
    lt_lora_site *sites; /* (lt_lora_n_sites) */
    lt_lora_sizes sizes;
    int n_modules;
} lt_lora_plan;
/* (n_layers, LT_LORA_LAYER_KINDS), then LT_LORA_TOP_KINDS. */
int lt_lora_n_sites(const lt_model_spec *spec);
/* The site of the embedding or of the head (EMBED, HEAD); n_parts 0: it has no adapter. */
lt_lora_site *lt_lora_top_of(lt_lora_site *sites, const lt_model_spec *spec, lt_param_kind kind);

/* model, adapters: the parts of both that are held here; NULL: all. ARG: a target is not a module;
 * the message names the modules. UNSUPPORTED: DoRA of experts. */
LT_MUST_USE lt_err lt_lora_plan_open(lt_lora_plan *out, const lt_model_spec *spec,
                                     const lt_lora_options *o, const lt_partition *model,
                                     const lt_partition *adapters);
/* Adapters of one rank beside every linear layer that may have one, for serving (lora_pool.h):
 * experts have none, and neither has a score head. */
LT_MUST_USE lt_err lt_lora_plan_all(lt_lora_plan *out, const lt_model_spec *spec, int64_t rank);
void lt_lora_plan_close(lt_lora_plan *p);
/* The site of a matrix; NULL: it has none. */
const lt_lora_site *lt_lora_site_of(const lt_lora_site *sites, lt_param_kind kind, int layer);

/* The numbers that DoRA derives from base and adapters (dora.h); without DoRA it has no
 * memory. */
typedef struct {
    lt_tensor factors, inverse; /* (n_magnitudes) F32: c, and sqrt(in) / ||W + s B A||. */
    /* (n_magnitudes) F32: m, if ranks keep slices of it; lt_zero_gather writes it. */
    lt_tensor magnitudes;
    lt_tensor rows; /* Some rows of W + s B A, F32. */
    lt_arena arena;
    /* (n_layers): one more than the version of the adapters from which the layer's factors and
     * inverse were derived; 0: they have not yet been derived. */
    uint64_t *derived;
} lt_dora;

typedef struct lt_lora {
    lt_lora_options options;
    char *targets; /* The memory of options.targets. */
    float scale;
    uint64_t seed;           /* Seed of new values, and of dropout. */
    lt_model *base;          /* NULL: the base is closed. */
    const lt_model *weights; /* The base, or the slices of its weights that this rank keeps. */
    /* The adapters' weights, and a score head: a model of the base's spec whose table has only
     * these. */
    lt_model *params;
    /* The trained parameters: params, or the slices of them that this rank keeps
     * (parallel/shards.h). */
    lt_model *trained;
    lt_lora_site *sites;
    lt_lora_sizes sizes;
    int n_modules;
    lt_dora dora;
} lt_lora;

/* Put new adapters beside the linear layers of a model, which must outlive them: A uniform in
 * +- 1 / sqrt(in) (PEFT's Kaiming uniform with a = sqrt 5), B zero. From then on the model computes
 * with them. Each number is a function of (seed, name, index). */
LT_MUST_USE lt_err lt_lora_open(lt_lora **out, lt_model *base, const lt_lora_options *o,
                                uint64_t seed);
/* The same beside a part of a model, as ranks of a mesh have it. model: the part of the base. held:
 * the part of the adapters with which this rank computes; NULL: all. kept: the part that it trains,
 * from which all ranks gather the parts that they hold, so lora->params is zero until then; NULL:
 * the same as held. All values are those of the whole, except that the magnitudes of DoRA are
 * zero until they are loaded or lt_pass_begin_magnitudes sets them. UNSUPPORTED: a score head
 * whose weights are not held here. */
typedef struct {
    const lt_partition *model, *held, *kept;
    const lt_model *weights; /* The base's weights that are held here; NULL: the base has them. */
} lt_lora_parts;
LT_MUST_USE lt_err lt_lora_open_parts(lt_lora **out, lt_model *base, const lt_lora_options *o,
                                      uint64_t seed, const lt_lora_parts *parts);
/* Accepts NULL. The base, unless it is already closed, then computes without adapters. */
void lt_lora_close(lt_lora *l);
/* Passes and sessions that are opened on the base from now on compute with these of its adapters;
 * NULL: with none. In this way a base can have several: lt_lora_open needs a base that computes
 * with none. */
void lt_lora_use(lt_model *base, lt_lora *l);
/* Check whether these adapters can share a batch with others (lt_pass_join). UNSUPPORTED: they
 * cannot; the message says why. */
LT_MUST_USE lt_err lt_lora_check_shared(const lt_lora *l);

/* Bytes that adapters hold in addition to their parameters. */
size_t lt_lora_derived_bytes(const lt_lora_options *o, const lt_lora_sizes *z);

/* Give the weights of the base, in F32 on the host, the values that it computes with, and leave
 * adapters that change nothing: B is zero, and DoRA's magnitudes are those of these weights. */
LT_MUST_USE lt_err lt_lora_merge(lt_lora *l);

/* The name of a part's module, "model.layers.0.self_attn.q_proj". */
void lt_lora_module(char out[LT_FOREIGN_NAME_BYTES], const lt_lora_part *part, int layer);
/* The same without the parts that all layers share, as short as is unique: "q_proj". */
void lt_lora_short_name(char out[LT_FOREIGN_NAME_BYTES], const lt_model_spec *spec,
                        const lt_name_row *row);
/* Whether a module may have an adapter. Modules of layers may; the embedding and the head may if
 * a target names them. */
bool lt_lora_is_module(const lt_name_row *row);
/* transformers' name of the module of all experts of a layer, of kind UP or DOWN:
 * model.layers.%L.mlp.experts.gate_up_proj, .down_proj; NULL: the family has no such module. */
const lt_name_row *lt_lora_expert_row(const lt_model_spec *spec, lt_param_kind kind);
bool lt_lora_is_top(const lt_name_row *row);
/* Whether a target, as in PEFT, is the name of this module or the end of its name. */
bool lt_lora_target_is(const char *target, size_t length, const char *module);

/* ---- Files of PEFT (lora_config.c, lora_files.c) ---- */

/* Size of a list of the modules that a file adapts: "q_proj,v_proj". */
#define LT_LORA_TARGETS_BYTES 4096

#define LT_LORA_CONFIG  "adapter_config.json"
#define LT_LORA_WEIGHTS "adapter_model.safetensors"
/* Name of a module's matrix A or B. */
#define LT_LORA_TENSOR       "base_model.model.%s.lora_%c.weight"
#define LT_LORA_EMBEDDING    "base_model.model.%s.lora_embedding_%c"
#define LT_LORA_TENSOR_BYTES (LT_FOREIGN_NAME_BYTES + 48)

/* Read adapter_config.json. Close the result. UNSUPPORTED: it has a setting that we would not
 * honour (ranks that differ, modules that are saved whole, ...). */
typedef struct {
    lt_lora_options options;
    char *targets;  /* The memory of options.targets. */
    double dropout; /* Dropout in training; inference has none. */
    bool uneven;    /* Ranks, alphas or layers differ; see below. */
} lt_lora_config;
LT_MUST_USE lt_err lt_lora_config_read(lt_lora_config *out, const char *folder,
                                       const lt_model_spec *spec);
/* The same if ranks and alphas may differ from module to module, and modules may have adapters
 * in some layers only: `uneven` says whether they do. The options are then those of even adapters
 * that compute the same: the largest rank, and a scale of 1. lt_lora_load_uneven reads them. whole:
 * modules_to_save and bias may name weights that are trained whole, as options.whole says. */
LT_MUST_USE lt_err lt_lora_config_read_uneven(lt_lora_config *out, const char *folder,
                                              const lt_model_spec *spec, bool whole);
/* Only the tree of adapter_config.json, for a reader that takes ranks and layers from the tensors:
 * UNSUPPORTED as above, except that ranks may differ and layers may be missing. whole: as above.
 * Free with json_decref. */
LT_MUST_USE lt_err lt_lora_config_load(json_t **out, const char *folder, const lt_model_spec *spec,
                                       bool whole);
/* The settings of such a tree for one module, such as "model.layers.0.self_attn.q_proj". linear:
 * all-linear includes it. path: the file, for messages. FORMAT: a malformed regular expression. */
typedef struct {
    bool has; /* The module has an adapter. */
    int64_t rank;
    double alpha;
} lt_lora_module_config;
LT_MUST_USE lt_err lt_lora_config_module(lt_lora_module_config *out, const json_t *config,
                                         const char *module, bool linear, const char *path);
/* The score head in the folder, as of PEFT's SEQ_CLS and TOKEN_CLS: n_scores and token_scores of
 * the options with which the base is opened; n_scores 0: none. */
LT_MUST_USE lt_err lt_lora_scores_of(lt_model_options *out, const char *folder);
/* use_dora */
LT_MUST_USE lt_err lt_lora_dora_of(bool *dora, const char *folder);
/* base_model_name_or_path, or ""; free it. */
LT_MUST_USE lt_err lt_lora_base_of(char **out, const char *folder);
void lt_lora_config_close(lt_lora_config *c);
bool lt_lora_is_folder(const char *path); /* Whether it is the folder of an adapter. */
/* NOT_FOUND: one of its two files is missing. */
LT_MUST_USE lt_err lt_lora_check_folder(const char *folder);

/* Read adapter_model.safetensors into lora->trained, of adapters of the same options. FORMAT: a
 * tensor is missing, has another shape, is not finite, or belongs to no adapter. */
LT_MUST_USE lt_err lt_lora_load(lt_lora *l, const char *folder);
/* The same into new adapters whose options lt_lora_config_read_uneven found: A is padded with
 * rows of zeros up to the rank, and B with columns of zeros and multiplied by the module's scale.
 * A module without adapters in a layer keeps a B of zeros. They are not equivalent for further
 * training: their gradients differ. */
LT_MUST_USE lt_err lt_lora_load_uneven(lt_lora *l, const char *folder);
/* Replace the base's weights (F32, on the host) by a tensor of such a file that was trained whole.
 * FORMAT: the base has no such weights. UNSUPPORTED: embedding and output head are one matrix, and
 * the file has two. */
LT_MUST_USE lt_err lt_lora_replace(const lt_lora *l, const lt_safetensors *file, const char *path,
                                   const char *name);
/* Read the (rows, cols) numbers of a tensor of such a file; cols 0: (rows). Free them with
 * free(). */
LT_MUST_USE lt_err lt_lora_values(float **out, const lt_safetensors *file, const char *path,
                                  const char *name, int64_t rows, int64_t cols);
/* x (rows, cols) times factor, as (cols, rows); free with free(). */
LT_MUST_USE lt_err lt_lora_transpose(float **out, const float *x, int64_t rows, int64_t cols,
                                     float factor);
/* Write both files, tensors in F32. base: the value of base_model_name_or_path. */
LT_MUST_USE lt_err lt_lora_save(const lt_lora *l, const char *folder, const char *base);
/* The same with values in host memory, (whole_elements) F32 in the order of lt_param.whole_at, for
 * adapters of which this rank holds a part. */
LT_MUST_USE lt_err lt_lora_write(const lt_lora *l, const float *values, const char *folder,
                                 const char *base);
/* Set those of elements [first, first + count) of the whole parameter that are held, in any table
 * that has it at the same index. */
void lt_lora_set(lt_model *m, const lt_param *whole, int64_t first, const float *values,
                 int64_t count);

/* ---- Computing ---- */

/* Dropout of a batch: its row k is row first_row + k row_step of the run. */
typedef struct {
    bool on;
    uint64_t first_row, row_step;
} lt_lora_dropping;

/* The state of a pass or a session for computing with adapters. In a list, each computes with its
 * own rows (lt_pass_join); a single one computes with all rows. */
typedef struct lt_lora_run {
    const lt_lora *lora;
    struct lt_lora_run *next;
    /* It computes with the n_rows rows from first_row on, and other runs with other rows. */
    bool divides;
    int64_t first_row, n_rows; /* Rows of the next calls; n_rows 0: none. */
    lt_param_buffer gradients; /* F32 over the adapters' table; without units in inference. */
    lt_lora_dropping drop;     /* Dropout of the next batch. */
    /* For dropout in training: (rows, in) of the model's type, the input after dropout. */
    lt_tensor x;
    lt_tensor u, du; /* (rows, columns) of the model's type; du only in training. */
    /* DoRA. (rows) F32 each, for its norms (dora.c); (rows, 1) and (1, width): zeros of the model's
     * type, if the base has biases. For training: (rows, width), the product before its rows are
     * multiplied, and its gradient; (2, width) F32. */
    lt_tensor rstd, mean, zeros, zero_row, z, dz, dc;
} lt_lora_run;

/* Take the scratch for `rows` rows of a batch: with an arena without memory, measure it. */
void lt_lora_carve(lt_lora_run *run, const lt_lora_options *o, const lt_lora_sizes *z, int64_t rows,
                   lt_dtype dtype, bool backward, lt_arena *a);

#endif
