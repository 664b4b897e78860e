/* lora_pool_impl.h: the internals of lora_pool.h: places and their weights (lora_pool.c), DoRA's
 * factors (lora_pool_dora.c). */
#ifndef LT_MODEL_LORA_POOL_IMPL_H
#define LT_MODEL_LORA_POOL_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "model/lora/dora.h"
#include "model/lora/lora_pool.h"
#include "tensor/backend.h"

typedef struct {
    atomic_int holds;
    atomic_uint_fast64_t digest;
    atomic_bool scaled; /* Its factors are not all 1. */
} lt_lora_place;

/* DoRA: the factors of all places, and the memory for deriving them, which one thread at a time
 * uses. */
typedef struct {
    bool on, has_offsets; /* The model has biases. */
    float *data;          /* (places, vectors, sizes.n_magnitudes), in the backend's memory. */
    pthread_mutex_t lock;
    lt_exec exec;
    lt_arena scratch;
    lt_tensor w;    /* (rows, in) of the model's type: decoded rows of a matrix */
    lt_tensor rows; /* (rows, in) F32: the same rows of W + s B A */
    lt_tensor a, b; /* (rank, in), (rows, rank) F32 */
    lt_tensor mean; /* (rows) F32 */
    lt_tensor ids;  /* (rows) I32 */
} lt_lora_pool_dora;

struct lt_lora_pool {
    lt_model *model;
    lt_lora_plan plan;
    int64_t most, rank; /* The largest rank of an adapter; the same, rounded up. */
    int32_t n;
    lt_lora_place *places; /* (n) */
    uint16_t *ranks;       /* (n, sites, LT_LORA_PARTS) as in lt_lora_image */
    /* (n, elements of the plan) in the model's type, in the backend's memory. */
    void *data;
    lt_lora_pool_dora *dora; /* NULL: the pool has no memory for magnitudes. */
};

/* An adapter of one module, scale B A, as in its files. */
typedef struct {
    const lt_lora_site *site;
    int index; /* Index of the part. */
    int64_t rank;
    float scale;
    const float *a, *b; /* (rank, in), (rows, rank) */
} lt_dora_part;

LT_MUST_USE lt_err lt_lora_pool_open_dora(lt_lora_pool *p);
void lt_lora_pool_close_dora(lt_lora_pool *p);
/* Bytes of a place; 0: there is no DoRA. */
size_t lt_lora_pool_dora_bytes(const lt_lora_pool *p);
/* Make factors that change nothing; *out stays NULL if the pool has no memory for factors. */
LT_MUST_USE lt_err lt_lora_pool_begin_factors(const lt_lora_pool *p, float **out);
/* Compute c (rows) = m / ||W + scale B A|| for the rows of a part. */
LT_MUST_USE lt_err lt_lora_pool_derive(const lt_lora_pool *p, float *c, const lt_dora_part *part,
                                       const float *m);
/* Write (1 - c) bias after all c. */
LT_MUST_USE lt_err lt_lora_pool_find_offsets(const lt_lora_pool *p, float *factors);
LT_MUST_USE lt_err lt_lora_pool_fill_factors(lt_lora_pool *p, int32_t place, const float *factors);
/* y = c y + (1 - c) bias, of the rows that have an adapter. */
LT_MUST_USE lt_err lt_lora_pool_scale(lt_exec *r, const lt_lora_site *s, lt_param_kind kind,
                                      lt_tensor y);

#endif
