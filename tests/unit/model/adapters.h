/* adapters.h: golden models with adapters whose every number counts. */
#ifndef TESTS_MODEL_ADAPTERS_H
#define TESTS_MODEL_ADAPTERS_H

#include "unit/model/golden.h"

#include "base/rng.h"
#include "model/alloc.h"
#include "model/lora.h"

static const lt_lora_options adapters_of_all = {.rank = 3, .alpha = 4.5, .targets = LT_LORA_ALL};

static inline lt_model *open_base(const char *path, const lt_backend *backend, lt_dtype dtype) {
    lt_model *m = NULL;
    must(lt_model_open(&m, path, &(lt_model_options){.dtype = dtype, .device = device_of(backend)}),
         path);
    return m;
}

/* B is zero in new adapters; here everything is some number. */
static inline void fill(lt_lora *l) {
    const lt_param_table *t = &l->params->table;
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        for (int64_t k = 0; k < p->count; k++) {
            const uint64_t r = lt_rng_mix((uint64_t)(p->whole_at + k) * 77);
            const float near = p->n_dims == 1 ? 1.0f : 0.0f; /* Of magnitudes. */
            const float x = near + ((float)(r >> 40) * 0x1p-24f - 0.5f) * 0.3f;
            lt_model_set(l->params, p, k, &x, LT_F32, 1);
        }
    }
    must(lt_model_settle(l->params), "settle");
    l->params->version++;
}

/* Gradients of the adapters after `passes` batches, of which the last counts. */
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
