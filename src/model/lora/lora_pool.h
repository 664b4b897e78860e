/* lora_pool.h: many adapters at once beside one model, for serving (Chen et al. 2023, "Punica",
 * arXiv:2310.18547; Sheng et al. 2023, "S-LoRA", arXiv:2311.03285). The model is not changed.
 *
 * A pool has a fixed number of places. A place holds one adapter, or several that a request adds
 * up, as weights of one shape: the plan of lora.h with the pool's rank and every linear layer that
 * may have an adapter, except that B is stored (r, out), which suits few rows. Modules and layers
 * that an adapter lacks, and the missing rows of a smaller rank, are zero. Its factor, alpha / r or
 * alpha / sqrt(r), is part of its B.
 *
 *     data ─▶ | place 0: A and B of all layers | place 1 | ... |
 *
 * In a call of the paged forward, rows that have an adapter come first, in the order of their
 * places, so that all adapters of a module are two grouped products (the op matmul_grouped), in
 * which a place is an expert. A module is left out if no row's adapter has it, and the products
 * have the largest rank that any of the adapters uses there:
 *
 *     x rows   of place 0 │ of place 0 │ of place 2 │ .. │ without an adapter
 *                    └──A of place 0──┘ └──A of 2──┘        (not read)
 *     u (rows, rank), times the scale of each row, where a request has one other than 1
 *                    └──B of place 0──┘ └──B of 2──┘──▶ added to the columns of the module in y
 *
 * On a GPU, steps of single tokens and deterministic calls use another op (lora_add), in which each
 * row reads the adapter of its own place. With few rows and many adapters, latency dominates: it
 * launches fewer kernels, and such a step can be recorded. Its ranks are the largest that any call
 * has used so far, since a recorded step keeps them; when they grow, steps are recorded again. On a
 * CPU, steps of single tokens use it, too, but not deterministic calls, which compute prompts and
 * single tokens in one way.
 *
 * So a row's bits depend neither on the other rows of a deterministic call nor on the places.
 *
 * DORA      An adapter with magnitudes (dora.h) computes y = c (W x + s B A x) + bias. c, one
 *           number per row of W, is derived when the adapter is read, from W as the model has it;
 *           its place holds s c B. The op lora_scale multiplies the result of the base, W x +
 *           bias, by c and adds (1 - c) bias, before the product with A and B is added. c depends
 *           on the scale, so a request's scale is part of the contents of such a place. Other
 *           places have c = 1. */
#ifndef LT_MODEL_LORA_POOL_H
#define LT_MODEL_LORA_POOL_H

#include "model/blocks/exec.h"
#include "model/lora/lora.h"

#define LT_LORA_POOL_MOST 1024   /* Most places. */
#define LT_LORA_SCALE     1000.0 /* The largest absolute scale of a request. */

typedef struct lt_lora_pool lt_lora_pool;

/* Make places for adapters of at most this rank beside a model, which closes them; a paged forward
 * pass that is opened later computes with them. dora: with memory for DoRA's factors. OOM: the
 * message has the bytes. */
LT_MUST_USE lt_err lt_lora_pool_open(lt_model *m, int32_t n_places, int64_t rank, bool dora);
void lt_lora_pool_close(lt_lora_pool *p); /* Called by lt_model_close. Accepts NULL. */

int32_t lt_lora_pool_places(const lt_lora_pool *p);  /* p may be NULL. */
int64_t lt_lora_pool_rank(const lt_lora_pool *p);    /* The largest rank of an adapter. */
int64_t lt_lora_pool_columns(const lt_lora_pool *p); /* The same, as columns of u. */
size_t lt_lora_pool_place_bytes(const lt_lora_pool *p);

/* ---- Loading, from any thread ---- */

/* Adapters whose products are added up, each times a scale: PEFT folders and GGUF files. */
typedef struct {
    const char *path;
    float scale;
} lt_lora_source;

/* The contents of a place, in host memory. */
typedef struct {
    void *data;
    uint16_t *ranks; /* (sites, LT_LORA_PARTS) rows of A that each module uses */
    /* DoRA's c and (1 - c) bias of all rows; NULL: the pool has no memory for them. */
    float *factors;
    bool dora;       /* At least one c is not 1. */
    uint64_t digest; /* Digest of the numbers. */
} lt_lora_image;

/* Read adapters. FORMAT, UNSUPPORTED, NOT_FOUND: as for lt_lora_config_load and lt_lora_load, and
 * in lora_gguf.h; ranks may differ among modules, and modules and layers may be missing.
 * UNSUPPORTED, too: the sum of the ranks is more than the pool's; one of several adapters has
 * magnitudes, or the pool has no room for them. */
LT_MUST_USE lt_err lt_lora_image_open(lt_lora_image *out, const lt_lora_pool *p,
                                      const lt_lora_source *sources, int n);
void lt_lora_image_close(lt_lora_image *i);

/* The largest rank of a module in a folder or file; 0: it has no adapter. */
LT_MUST_USE lt_err lt_lora_rank_of(int64_t *rank, const char *path);

/* Fill a place that no request holds. */
LT_MUST_USE lt_err lt_lora_pool_fill(lt_lora_pool *p, int32_t place, const lt_lora_image *i);
/* The digest of the contents of a place. */
uint64_t lt_lora_pool_digest(const lt_lora_pool *p, int32_t place);

/* Whether it holds an adapter with magnitudes, whose rows have the scale 1. */
bool lt_lora_pool_has_factors(const lt_lora_pool *p, int32_t place);

/* A place that is held keeps its contents. Accepted requests hold a place until they are done. */
void lt_lora_pool_hold(lt_lora_pool *p, int32_t place);
void lt_lora_pool_release(lt_lora_pool *p, int32_t place);
int lt_lora_pool_holds(const lt_lora_pool *p, int32_t place); /* How many times. */

/* ---- Computing ---- */

/* The rows of a call, in the form that the products need. */
typedef struct lt_lora_rows {
    const lt_lora_pool *pool;
    int64_t n; /* The first n rows have an adapter; 0: none has. */
    /* lora_add computes all modules of a matrix; otherwise products are grouped. */
    bool by_place;
    lt_tensor scale; /* F32, one per row; by_place: (rows); grouped: (n), absent: all are 1 */
    uint16_t *ranks; /* (sites, LT_LORA_PARTS) the most that these rows' adapters use, rounded up */
    uint16_t *most;  /* The same for all calls so far; a recorded step uses these. */
    bool dora, any_dora; /* A row's adapter has magnitudes: in this call, and in any call. */
    int64_t growths;     /* Calls so far that changed `most` or any_dora. */
    /* For grouped products. */
    lt_tensor start;  /* (places + 1) I32: rows of each place */
    lt_tensor number; /* (n) I32: 0, 1, 2, ...; only with scale. */
    lt_tensor u, us;  /* (max rows, the pool's rank) of the model's type; us: u times scale */
    /* For by_place, or with magnitudes. */
    lt_tensor place; /* (rows) I32, -1: the row has no adapter */
    lt_tensor sums;  /* (max rows, LT_LORA_PARTS times the pool's rank) F32: lora_add's u */
} lt_lora_rows;

/* Open and close the rows of a forward pass of the model, whose pool may be NULL. */
LT_MUST_USE lt_err lt_lora_rows_open(lt_lora_rows *r, const lt_lora_pool *pool);
void lt_lora_rows_close(lt_lora_rows *r);
/* Set the ranks for rows of these places; start (places + 1). */
void lt_lora_rows_choose(lt_lora_rows *r, const int32_t *start);
/* Whether rows of this call have an adapter beside the matrix. */
bool lt_lora_rows_have(const lt_exec *r, lt_param_kind kind, int layer);
/* y += the products of the rows' adapters, after the product with the base. */
LT_MUST_USE lt_err lt_lora_rows_forward(lt_exec *r, lt_tensor y, lt_tensor x, lt_param_kind kind,
                                        int layer);

#endif
