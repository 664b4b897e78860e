/* alloc.c: weights lie in one backend allocation: [compute copy][F32 master if it is another buffer].
 *
 * Where the host can not see that memory, what goes there takes lanes: a piece of pinned memory and a queue each. Whoever brings values takes a free lane, converts or
 * copies them into its piece, sends that, and waits for it alone, so threads that fill hide the wait of those that send:
 *
 *     file's map ──threads: convert, check, copy──▶ pinned pieces ──copy engine──▶ weights
 *
 * An upload from other memory would be staged by the driver, on one thread, and 8 KB at a time took 5 s for the 2.5 GB of a 1B model. */
#include "model/alloc.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/thread.h"
#include "model/generation.h"
#include "model/held.h"
#include "tensor/ops.h"

#define PIECE_BYTES ((size_t)1 << 20) /* Pinning takes 0.45 ms of each. */
#define MAX_LANES   8                 /* As many as it takes to be bound by the bus. */

typedef struct {
    lt_queue *queue;
    unsigned char *piece;
    bool taken;
} lane;

/* The first of several threads' failures. */
typedef struct {
    lt_err err;
    char message[512];
} failure;

struct lt_mover {
    pthread_mutex_t lock;
    pthread_cond_t given;
    lane lanes[MAX_LANES]; /* Opened when first wanted, n_lanes of them. */
    int n_lanes;
    unsigned char *pinned; /* Their pieces. */
    lt_queue *queue;       /* Everything else. */
    failure failed;        /* Of lt_model_set. */
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
    pthread_cond_init(&m->mover->given, NULL);
    return m->backend->queue_open(&m->mover->queue);
}

static void close_lanes(const lt_model *m) {
    struct lt_mover *v = m->mover;
    for (int i = 0; i < v->n_lanes; i++) {
        m->backend->queue_close(v->lanes[i].queue);
    }
    v->n_lanes = 0;
    if (v->pinned != NULL) {
        m->backend->host_release(v->pinned, MAX_LANES * PIECE_BYTES);
        v->pinned = NULL;
    }
}

/* Under the lock. */
static lt_err open_lanes(const lt_model *m) {
    const int threads = lt_thread_count(), n = threads < MAX_LANES ? threads : MAX_LANES;
    void *pinned = NULL;
    LT_TRY(m->backend->host_alloc(&pinned, MAX_LANES * PIECE_BYTES, "weights on their way"));
    m->mover->pinned = pinned;
    for (int i = 0; i < n; i++) {
        lane *l = &m->mover->lanes[i];
        *l = (lane){.piece = m->mover->pinned + (size_t)i * PIECE_BYTES};
        LT_TRY(m->backend->queue_open(&l->queue));
        m->mover->n_lanes++;
    }
    return LT_OK;
}

static lt_err take_lane(const lt_model *m, lane **out) {
    struct lt_mover *v = m->mover;
    lt_err err = LT_OK;
    *out = NULL;
    pthread_mutex_lock(&v->lock);
    if (v->n_lanes == 0) {
        err = open_lanes(m);
        if (err != LT_OK) {
            close_lanes(m);
        }
    }
    while (err == LT_OK && *out == NULL) {
        for (int i = 0; i < v->n_lanes && *out == NULL; i++) {
            *out = v->lanes[i].taken ? NULL : &v->lanes[i];
        }
        if (*out == NULL) {
            pthread_cond_wait(&v->given, &v->lock);
        }
    }
    if (*out != NULL) {
        (*out)->taken = true;
    }
    pthread_mutex_unlock(&v->lock);
    return err;
}

static void give_lane(const lt_model *m, lane *l) {
    pthread_mutex_lock(&m->mover->lock);
    l->taken = false;
    pthread_cond_signal(&m->mover->given);
    pthread_mutex_unlock(&m->mover->lock);
}

/* What lies in the lane's piece. */
static lt_err send_piece(const lt_model *m, const lane *l, void *dst, size_t bytes) {
    LT_TRY(m->backend->upload(l->queue, dst, l->piece, bytes));
    return m->backend->sync(l->queue);
}

static void close_mover(lt_model *m) {
    if (m->mover != NULL) {
        close_lanes(m);
        if (m->mover->queue != NULL) {
            m->backend->queue_close(m->mover->queue);
        }
        pthread_cond_destroy(&m->mover->given);
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

/* Bytes on their way, in pieces. */
typedef struct {
    const lt_model *m;
    unsigned char *dst;
    const unsigned char *host;
    size_t bytes;
    failure failed;
} sending;

static lt_err copy_piece(const sending *s, size_t at) {
    const size_t n = s->bytes - at < PIECE_BYTES ? s->bytes - at : PIECE_BYTES;
    lt_err err;
    lane *l;
    LT_TRY(take_lane(s->m, &l));
    memcpy(l->piece, s->host + at, n);
    err = send_piece(s->m, l, s->dst + at, n);
    give_lane(s->m, l);
    return err;
}

static void note_failure(const lt_model *m, failure *f, lt_err err) {
    pthread_mutex_lock(&m->mover->lock);
    if (err != LT_OK && f->err == LT_OK) {
        f->err = err;
        (void)snprintf(f->message, sizeof f->message, "%s", lt_error_message());
    }
    pthread_mutex_unlock(&m->mover->lock);
}

static lt_err tell_failure(const failure *f) {
    return f->err == LT_OK ? LT_OK : lt_error_set(f->err, "%s", f->message);
}

static void send_one(void *ctx, size_t i) {
    sending *s = ctx;
    note_failure(s->m, &s->failed, copy_piece(s, i * PIECE_BYTES));
}

lt_err lt_model_upload(const lt_model *m, void *dst, const void *host, size_t bytes) {
    sending s = {.m = m, .dst = dst, .host = host, .bytes = bytes};
    if (m->backend->host_memory) {
        memcpy(dst, host, bytes);
        return LT_OK;
    }
    lt_parallel_for((bytes + PIECE_BYTES - 1) / PIECE_BYTES, send_one, &s);
    return tell_failure(&s.failed);
}

lt_err lt_model_download(const lt_model *m, void *host, const void *src, size_t bytes) {
    lt_err err;
    pthread_mutex_lock(&m->mover->lock);
    err = m->backend->download(m->mover->queue, host, src, bytes);
    err = err == LT_OK ? m->backend->sync(m->mover->queue) : err;
    pthread_mutex_unlock(&m->mover->lock);
    return err;
}

/* Values of a type into the master if there is one, else into the compute copy, a piece at a time. */
static lt_err set_on_device(lt_model *m, int64_t first, const void *values, lt_dtype from,
                            int64_t count) {
    const lt_dtype to = m->master != NULL ? LT_F32 : m->options.dtype;
    const int64_t bytes = (int64_t)lt_dtype_bytes(to), most = (int64_t)PIECE_BYTES / bytes;
    unsigned char *const dst = m->master != NULL ? (void *)m->master : m->weights;
    for (int64_t i = 0; i < count; i += most) {
        const int64_t n = count - i < most ? count - i : most;
        lt_err err;
        lane *l;
        LT_TRY(take_lane(m, &l));
        lt_convert(l->piece, to, (const unsigned char *)values + i * (int64_t)lt_dtype_bytes(from),
                   from, (size_t)n);
        err = send_piece(m, l, dst + (first + i) * bytes, (size_t)(n * bytes));
        give_lane(m, l);
        LT_TRY(err);
    }
    return LT_OK;
}

void lt_model_set(lt_model *m, int64_t first, const void *values, lt_dtype type, int64_t count) {
    LT_ASSERT(first >= 0 && count >= 0 && first + count <= m->table.n_elements);
    if (!m->backend->host_memory) {
        note_failure(m, &m->mover->failed, set_on_device(m, first, values, type, count));
        return;
    }
    if (m->master != NULL) {
        lt_convert(m->master + first, LT_F32, values, type, (size_t)count);
    }
    if (m->options.dtype == LT_BF16) {
        lt_convert((uint16_t *)m->weights + first, LT_BF16, values, type, (size_t)count);
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
    LT_TRY(tell_failure(&m->mover->failed));
    return m->backend->host_memory ? LT_OK : lt_model_sync_weights(m);
}
