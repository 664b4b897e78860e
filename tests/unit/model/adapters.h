/* adapters.h: golden models with adapters, all of whose numbers have an effect. */
#ifndef TESTS_MODEL_ADAPTERS_H
#define TESTS_MODEL_ADAPTERS_H

#include "unit/model/golden.h"

#include "base/rng.h"
#include "model/alloc.h"
#include "model/lora/lora.h"
#include "tensor/block.h"

static const lt_lora_options adapters_of_all = {.rank = 3, .alpha = 4.5, .targets = LT_LORA_ALL};

static inline lt_model *open_base(const char *path, const lt_backend *backend, lt_dtype dtype) {
    lt_model *m = NULL;
    must(lt_model_open(&m, path, &(lt_model_options){.dtype = dtype, .device = device_of(backend)}),
         path);
    /* The losses that tests compare have no terms of the router, and no row is dropped. */
    m->spec.moe_aux_coef = m->spec.moe_z_coef = 0.0f;
    m->spec.moe_capacity = 0.0;
    return m;
}

/* Rows of a range of experts, together; free them. p: the parameter, whose numbers are `all`. */
static inline float *of_experts(const lt_param *p, const lt_weight_range *range, const float *all) {
    const int64_t cols = range->w.shape[1], own = range->w.shape[0] / range->n_experts;
    float *out = malloc((size_t)(range->w.shape[0] * cols) * sizeof *out);
    assert_non_null(out);
    for (int64_t e = 0; e < range->n_experts; e++) {
        memcpy(out + e * own * cols, all + (e * p->local_shape[1] + range->first_row) * cols,
               (size_t)(own * cols) * sizeof *out);
    }
    return out;
}

/* And back. */
static inline void to_experts(const lt_param *p, const lt_weight_range *range, float *all,
                              const float *rows) {
    const int64_t cols = range->w.shape[1], own = range->w.shape[0] / range->n_experts;
    for (int64_t e = 0; e < range->n_experts; e++) {
        memcpy(all + (e * p->local_shape[1] + range->first_row) * cols, rows + e * own * cols,
               (size_t)(own * cols) * sizeof *all);
    }
}

/* Replace the weights of plain, which has them in F32, by the numbers that the blocks of m stand
 * for. */
static inline void replace_by_blocks(lt_model *plain, const lt_model *m) {
    for (int i = 0; i < m->table.n_params; i++) {
        const lt_param *p = &m->table.params[i];
        for (int j = 0; j < m->stored[i].n_ranges; j++) {
            const lt_weight_range *range = &m->stored[i].ranges[j];
            const lt_dtype type = range->w.dtype;
            size_t bytes;
            const int64_t block = lt_dtype_block(type, &bytes);
            if (!lt_dtype_is_block(type)) {
                continue;
            }
            const int64_t n = range->w.shape[0] * range->w.shape[1], n_blocks = n / block;
            float *const all = lt_param_data(&plain->master, &plain->table.params[i]),
                         *w = all + range->first_row * range->w.shape[1],
                         *const experts = range->n_experts > 0 ? of_experts(p, range, all) : NULL;
            w = experts != NULL ? experts : w;
            void *once = malloc((size_t)n_blocks * 512), *twice = malloc((size_t)n_blocks * bytes);
            float *scales = malloc((size_t)lt_nf4_scales_count(n_blocks) * sizeof *scales);
            assert_true(once != NULL && twice != NULL && scales != NULL);
            if (type == LT_NF4_DOUBLE) {
                lt_block_encode(once, LT_NF4, w, (size_t)n);
                lt_nf4_double_encode(twice, scales, once, n_blocks);
                lt_nf4_double_decode(w, twice, scales, 0, n_blocks);
            } else {
                lt_block_encode(once, type, w, (size_t)n);
                lt_block_decode(w, type, once, (size_t)n);
            }
            if (experts != NULL) {
                to_experts(p, range, all, experts);
            }
            free(once);
            free(twice);
            free(scales);
            free(experts);
        }
    }
}

/* In new adapters B is zero; here every number is random. */
static inline void fill(lt_lora *l) {
    const lt_param_table *t = &l->params->table;
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        for (int64_t k = 0; k < p->count; k++) {
            const uint64_t r = lt_rng_mix((uint64_t)(p->whole_at + k) * 77);
            const float near = p->n_dims == 1 ? 1.0f : 0.0f; /* For magnitudes. */
            const float x = near + ((float)(r >> 40) * 0x1p-24f - 0.5f) * 0.3f;
            lt_model_set(l->params, p, k, &x, LT_F32, 1);
        }
    }
    must(lt_model_settle(l->params), "settle");
    l->params->version++;
}

/* Gradients of the adapters after `passes` batches; only those of the last count. */
static inline float *gradients(lt_model *m, const lt_pass_batch *b, lt_recompute recompute,
                               int passes) {
    const size_t bytes = lt_param_buffer_bytes(&m->lora->params->table, LT_F32);
    lt_pass *p = NULL;
    lt_pass_result r;
    float *out = malloc(bytes);
    assert_non_null(out);
    must(lt_pass_open(&p, m,
                      &(lt_pass_options){
                          .batch = b->batch, .seq = b->seq, .train = true, .recompute = recompute}),
         "pass");
    for (int i = 0; i < passes; i++) {
        must(lt_pass_zero_gradients(p), "zero");
        must(lt_pass_train(p, b, 1.0f, &r), "train");
    }
    must(lt_model_download(m, out, lt_param_floats(lt_pass_gradients(p)), bytes), "gradients");
    lt_pass_close(p);
    return out;
}

#endif
