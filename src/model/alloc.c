/* alloc.c: weights lie in one backend allocation: [compute copy][F32 master if it is another buffer]. */
#include "model/alloc.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/thread.h"
#include "tensor/backend.h"

static bool master_is_apart(const lt_model_options *o) {
    return o->dtype != LT_F32 && o->trainable;
}

size_t lt_model_weights_bytes(const lt_param_table *t, const lt_model_options *options) {
    const size_t n = (size_t)t->n_elements;
    return n * lt_dtype_bytes(options->dtype) + (master_is_apart(options) ? n * sizeof(float) : 0);
}

lt_err lt_model_alloc(lt_model **out, const lt_model_spec *spec, const lt_model_options *options) {
    static const lt_model_options plain = {.dtype = LT_F32};
    lt_err err = LT_OK;
    lt_model *m = calloc(1, sizeof *m);
    void *memory = NULL;

    if (m == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "model");
    }
    m->spec = *spec;
    m->options = options != NULL ? *options : plain;
    m->backend = lt_backend_cpu();
    if (m->options.dtype != LT_F32 && m->options.dtype != LT_BF16) {
        LT_FAIL_DONE(LT_ERR_ARG, "model: compute type %s is neither F32 nor BF16",
                     lt_dtype_name(m->options.dtype));
    }
    LT_TRY_DONE(lt_model_spec_check(spec));
    LT_TRY_DONE(lt_param_table_open(&m->table, spec));
    m->weights_bytes = lt_model_weights_bytes(&m->table, &m->options);
    LT_TRY_DONE(m->backend->alloc(&memory, m->weights_bytes, "weights"));
    m->weights = memory;
    if (m->options.dtype == LT_F32) {
        m->master = memory;
    } else if (m->options.trainable) {
        m->master = (float *)((char *)memory +
                              (size_t)m->table.n_elements * lt_dtype_bytes(m->options.dtype));
    }
    *out = m;
    m = NULL;
done:
    lt_model_close(m);
    return err;
}

void lt_model_close(lt_model *m) {
    if (m == NULL) {
        return;
    }
    if (m->weights != NULL) {
        m->backend->release(m->weights, m->weights_bytes);
    }
    lt_param_table_close(&m->table);
    free(m);
}

const lt_model_spec *lt_model_get_spec(const lt_model *m) {
    return &m->spec;
}

void lt_model_set(lt_model *m, int64_t first, const float *values, int64_t count) {
    LT_ASSERT(first >= 0 && count >= 0 && first + count <= m->table.n_elements);
    LT_ASSERT(m->backend->host_memory);
    if (m->master != NULL) {
        memcpy(m->master + first, values, (size_t)count * sizeof *values);
    }
    if (m->options.dtype == LT_BF16) {
        lt_convert((uint16_t *)m->weights + first, LT_BF16, values, LT_F32, (size_t)count);
    }
}

#define SYNC_CHUNK ((int64_t)1 << 16)

static void sync_chunk(void *ctx, size_t i) {
    lt_model *m = ctx;
    const int64_t first = (int64_t)i * SYNC_CHUNK, left = m->table.n_elements - first;
    lt_convert((uint16_t *)m->weights + first, LT_BF16, m->master + first, LT_F32,
               (size_t)(left < SYNC_CHUNK ? left : SYNC_CHUNK));
}

void lt_model_sync_weights(lt_model *m) {
    if (m->options.dtype == LT_BF16 && m->master != NULL) {
        lt_parallel_for((size_t)((m->table.n_elements + SYNC_CHUNK - 1) / SYNC_CHUNK), sync_chunk,
                        m);
    }
}
