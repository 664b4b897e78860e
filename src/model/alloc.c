/* alloc.c: weights lie in one backend allocation: [compute copy][F32 master if it is another buffer].
 *
 * Where the host can not see that memory, all traffic goes through one queue of the model's own, a piece at a time. */
#include "model/alloc.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/generation.h"
#include "model/held.h"
#include "tensor/ops.h"

struct lt_mover {
    pthread_mutex_t lock;
    lt_queue *queue;
    lt_err failed; /* First failure of lt_model_set, with its message. */
    char message[512];
};

static bool master_is_apart(const lt_model_options *o) {
    return o->dtype != LT_F32 && o->trainable;
}

size_t lt_model_weights_bytes(const lt_param_table *t, const lt_model_options *options) {
    const size_t n = (size_t)t->n_elements;
    return n * lt_dtype_bytes(options->dtype) + (master_is_apart(options) ? n * sizeof(float) : 0);
}

static lt_err open_mover(lt_model *m) {
    m->mover = calloc(1, sizeof *m->mover);
    if (m->mover == NULL) {
        LT_FAIL(LT_ERR_OOM, "model");
    }
    pthread_mutex_init(&m->mover->lock, NULL);
    return m->backend->queue_open(&m->mover->queue);
}

static void close_mover(lt_model *m) {
    if (m->mover != NULL) {
        if (m->mover->queue != NULL) {
            m->backend->queue_close(m->mover->queue);
        }
        pthread_mutex_destroy(&m->mover->lock);
        free(m->mover);
    }
}

lt_err lt_model_begin(lt_model **out, const lt_model_spec *spec, const lt_model_options *options) {
    static const lt_model_options plain = {.dtype = LT_F32};
    lt_err err = LT_OK;
    lt_model *m = calloc(1, sizeof *m);

    if (m == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "model");
    }
    m->spec = *spec;
    m->options = options != NULL ? *options : plain;
    m->backend = m->options.backend;
    if (m->backend == NULL) {
        LT_TRY_DONE(lt_device_backend(&m->backend, m->options.device));
    }
    if (m->options.dtype != LT_F32 && m->options.dtype != LT_BF16) {
        LT_FAIL_DONE(LT_ERR_ARG, "model: compute type %s is neither F32 nor BF16",
                     lt_dtype_name(m->options.dtype));
    }
    if (m->options.stored && (m->options.trainable ||
                              m->options.dtype != (m->backend->host_memory ? LT_F32 : LT_BF16))) {
        LT_FAIL_DONE(LT_ERR_ARG, "model: weights as stored are multiplied by F32 activations, on a "
                                 "device by BF16, and not trained");
    }
    LT_TRY_DONE(lt_model_spec_check(spec));
    LT_TRY_DONE(lt_param_table_open(&m->table, spec));
    LT_TRY_DONE(open_mover(m));
    *out = m;
    m = NULL;
done:
    lt_model_close(m);
    return err;
}

lt_err lt_model_place(lt_model *m) {
    void *memory = NULL;
    m->weights_bytes = lt_model_weights_bytes(&m->table, &m->options);
    LT_TRY(m->backend->alloc(&memory, m->weights_bytes, "weights"));
    m->weights = memory;
    if (m->options.dtype == LT_F32) {
        m->master = memory;
    } else if (m->options.trainable) {
        m->master = (float *)((char *)memory +
                              (size_t)m->table.n_elements * lt_dtype_bytes(m->options.dtype));
    }
    return LT_OK;
}

lt_err lt_model_alloc(lt_model **out, const lt_model_spec *spec, const lt_model_options *options) {
    lt_model *m = NULL;
    LT_TRY(lt_model_begin(&m, spec, options));
    const lt_err err = lt_model_place(m);
    if (err != LT_OK) {
        lt_model_close(m);
        return err;
    }
    *out = m;
    return LT_OK;
}

void lt_model_close(lt_model *m) {
    if (m == NULL) {
        return;
    }
    lt_held_close(m);
    lt_generation_close(m);
    if (m->weights != NULL) {
        m->backend->release(m->weights, m->weights_bytes);
    }
    close_mover(m);
    lt_param_table_close(&m->table);
    free(m);
}

const lt_model_spec *lt_model_get_spec(const lt_model *m) {
    return &m->spec;
}

lt_err lt_model_upload(const lt_model *m, void *dst, const void *host, size_t bytes) {
    lt_err err;
    pthread_mutex_lock(&m->mover->lock);
    err = m->backend->upload(m->mover->queue, dst, host, bytes);
    err = err == LT_OK ? m->backend->sync(m->mover->queue) : err;
    pthread_mutex_unlock(&m->mover->lock);
    return err;
}

lt_err lt_model_download(const lt_model *m, void *host, const void *src, size_t bytes) {
    lt_err err;
    pthread_mutex_lock(&m->mover->lock);
    err = m->backend->download(m->mover->queue, host, src, bytes);
    err = err == LT_OK ? m->backend->sync(m->mover->queue) : err;
    pthread_mutex_unlock(&m->mover->lock);
    return err;
}

/* Keep a failure that its thread can not return. */
static void note_failure(lt_model *m, lt_err err) {
    pthread_mutex_lock(&m->mover->lock);
    if (err != LT_OK && m->mover->failed == LT_OK) {
        m->mover->failed = err;
        strncpy(m->mover->message, lt_error_message(), sizeof m->mover->message - 1);
    }
    pthread_mutex_unlock(&m->mover->lock);
}

#define SET_CHUNK 4096 /* Elements rounded on the stack on their way to a device. */

static lt_err set_on_device(lt_model *m, int64_t first, const float *values, int64_t count) {
    uint16_t rounded[SET_CHUNK];
    if (m->master != NULL) {
        LT_TRY(lt_model_upload(m, m->master + first, values, (size_t)count * sizeof *values));
    }
    for (int64_t i = 0; m->options.dtype == LT_BF16 && m->master == NULL && i < count;
         i += SET_CHUNK) {
        const int64_t n = count - i < SET_CHUNK ? count - i : SET_CHUNK;
        lt_convert(rounded, LT_BF16, values + i, LT_F32, (size_t)n);
        LT_TRY(lt_model_upload(m, (uint16_t *)m->weights + first + i, rounded,
                               (size_t)n * sizeof *rounded));
    }
    return LT_OK;
}

void lt_model_set(lt_model *m, int64_t first, const float *values, int64_t count) {
    LT_ASSERT(first >= 0 && count >= 0 && first + count <= m->table.n_elements);
    if (!m->backend->host_memory) {
        note_failure(m, set_on_device(m, first, values, count));
        return;
    }
    if (m->master != NULL) {
        memcpy(m->master + first, values, (size_t)count * sizeof *values);
    }
    if (m->options.dtype == LT_BF16) {
        lt_convert((uint16_t *)m->weights + first, LT_BF16, values, LT_F32, (size_t)count);
    }
}

lt_err lt_model_sync_weights(lt_model *m) {
    const int64_t n = m->table.n_elements;
    if (m->options.dtype != LT_BF16 || m->master == NULL) {
        return LT_OK;
    }
    LT_TRY(m->backend->ops->cast(m->mover->queue,
                                 &(lt_cast_args){.y = lt_tensor_1d(m->weights, LT_BF16, n),
                                                 .x = lt_tensor_1d(m->master, LT_F32, n)}));
    return m->backend->sync(m->mover->queue);
}

/* On a device the compute copy is made there, of the whole master at once. */
lt_err lt_model_settle(lt_model *m) {
    if (m->mover->failed != LT_OK) {
        return lt_error_set(m->mover->failed, "%s", m->mover->message);
    }
    return m->backend->host_memory ? LT_OK : lt_model_sync_weights(m);
}
