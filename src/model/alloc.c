/* alloc.c: weights lie in one backend allocation: [compute copy][F32 master if it is another
 * buffer].
 *
 * If the host cannot access that memory, values are sent through lanes, each with a piece of pinned
 * memory and a queue. A thread takes a free lane, converts or copies values into its piece, sends
 * the piece, and waits only for that; meanwhile other threads fill their pieces:
 *
 *     file's map ──threads: convert, check, copy──▶ pinned pieces ──copy engine──▶ weights
 *
 * The driver would stage an upload from other memory on one thread; in pieces of 8 KB this took 5 s
 * for the 2.5 GB of a 1B model. */
#include "model/alloc.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/thread.h"
#include "model/infer/generation.h"
#include "model/files/stored_weights.h"
#include "model/lora/lora_pool.h"
#include "model/files/source.h"
#include "model/infer/steering.h"
#include "tensor/ops.h"

#define LEAST_BYTES ((size_t)1 << 20) /* From this size on, a matrix is sent over several lanes. */
#define MAX_LANES   16                /* Number of threads with which the bus is the limit. */

typedef struct {
    /* This and the piece are opened by the first thread that takes the lane. */
    lt_queue *queue;
    unsigned char *piece; /* (LT_MODEL_PIECE_BYTES) */
    bool taken;
} lane;

struct lt_mover {
    pthread_mutex_t lock;
    pthread_cond_t given;
    lane lanes[MAX_LANES];
    lt_queue *queue;   /* For everything else. */
    lt_failure failed; /* The first failure of lt_model_set, which several threads may call. */
};

static bool master_is_apart(const lt_model_options *o) {
    return o->dtype != LT_F32 && o->trainable;
}

size_t lt_model_weights_bytes(const lt_param_table *t, const lt_model_options *options) {
    const size_t n = options->elsewhere ? 0 : (size_t)t->n_elements;
    return n * lt_dtype_bytes(options->dtype) + (master_is_apart(options) ? n * sizeof(float) : 0);
}

bool lt_model_has_master(const lt_model *m) {
    return m->options.dtype == LT_F32 || m->options.trainable;
}

static lt_err open_mover(lt_model *m) {
    m->mover = calloc(1, sizeof *m->mover);
    if (m->mover == NULL) {
        LT_FAIL(LT_ERR_OOM, "model");
    }
    pthread_mutex_init(&m->mover->lock, NULL);
    pthread_cond_init(&m->mover->given, NULL);
    return m->backend->queue_open(m->device, &m->mover->queue);
}

static void close_lanes(const lt_model *m) {
    for (int i = 0; i < MAX_LANES; i++) {
        lane *l = &m->mover->lanes[i];
        if (l->queue != NULL) {
            m->backend->queue_close(l->queue);
        }
        if (l->piece != NULL) {
            m->backend->host_release(m->device, l->piece, LT_MODEL_PIECE_BYTES);
        }
    }
}

static void give_lane(const lt_model *m, lane *l) {
    pthread_mutex_lock(&m->mover->lock);
    l->taken = false;
    pthread_cond_signal(&m->mover->given);
    pthread_mutex_unlock(&m->mover->lock);
}

/* Opened by the thread that took the lane: lanes open in parallel. */
static lt_err open_lane(const lt_model *m, lane *l) {
    void *piece = NULL;
    if (l->piece == NULL) {
        LT_TRY(m->backend->host_alloc(m->device, &piece, LT_MODEL_PIECE_BYTES,
                                      "weights on their way"));
        l->piece = piece;
    }
    return l->queue != NULL ? LT_OK : m->backend->queue_open(m->device, &l->queue);
}

static lt_err take_lane(const lt_model *m, lane **out) {
    struct lt_mover *v = m->mover;
    lt_err err;
    lane *l = NULL;
    pthread_mutex_lock(&v->lock);
    for (int i = 0; l == NULL; i = (i + 1) % MAX_LANES) {
        l = v->lanes[i].taken ? NULL : &v->lanes[i];
        if (l == NULL && i == MAX_LANES - 1) {
            pthread_cond_wait(&v->given, &v->lock);
        }
    }
    l->taken = true;
    pthread_mutex_unlock(&v->lock);
    err = open_lane(m, l);
    if (err != LT_OK) {
        give_lane(m, l);
        return err;
    }
    *out = l;
    return LT_OK;
}

/* Send the contents of the lane's piece. */
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
    if (m->options.device == NULL) {
        LT_TRY_DONE(lt_device_open(&m->own_device, LT_DEVICE_CPU, LT_DEVICE_DEFAULT));
    }
    LT_TRY_DONE(m->own_device != NULL ? LT_OK : lt_device_ready(m->options.device));
    m->device = m->own_device != NULL ? m->own_device : m->options.device;
    m->backend = m->device->backend;
    if (m->options.dtype != LT_F32 && m->options.dtype != LT_BF16) {
        LT_FAIL_DONE(LT_ERR_ARG, "model: compute type %s is neither F32 nor BF16",
                     lt_dtype_name(m->options.dtype));
    }
    if (m->options.stored && m->options.trainable) {
        LT_FAIL_DONE(LT_ERR_ARG, "model: weights as stored cannot be trained");
    }
    if (m->options.decoded && !m->options.stored) {
        LT_FAIL_DONE(LT_ERR_ARG, "model: decoded weights that are not stored");
    }
    if (m->options.stored) {
        m->options.dtype = m->backend->host_memory ? LT_F32 : LT_BF16;
    }
    LT_TRY_DONE(lt_model_spec_check(spec));
    if (m->options.stored && !m->options.decoded && m->options.partition != NULL) {
        LT_FAIL_DONE(LT_ERR_UNSUPPORTED, "model: only decoded weights can be held in part");
    }
    LT_TRY_DONE(lt_param_table_open_part(&m->table, spec, m->options.partition));
    LT_TRY_DONE(open_mover(m));
    *out = m;
    m = NULL;
done:
    lt_model_close(m);
    return err;
}

lt_err lt_model_place(lt_model *m) {
    const lt_param_table *t = &m->table;
    const size_t copy_bytes = lt_param_buffer_bytes(t, m->options.dtype);
    LT_TRY(lt_param_buffer_open(&m->weights, t, m->options.dtype));
    LT_TRY(lt_param_buffer_open(&m->master, t, LT_F32));
    if (m->options.elsewhere) {
        return LT_OK;
    }
    m->weights_bytes = lt_model_weights_bytes(t, &m->options);
    LT_TRY(m->backend->alloc(m->device, &m->memory, m->weights_bytes, "weights"));
    lt_param_buffer_place(&m->weights, t, m->memory);
    if (m->options.dtype == LT_F32) {
        lt_param_buffer_place(&m->master, t, m->memory);
    } else if (m->options.trainable) {
        lt_param_buffer_place(&m->master, t, (char *)m->memory + copy_bytes);
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
    (void)!lt_model_wait(m);
    if (m->lora != NULL) {
        m->lora->base = NULL; /* Its owner closes it later. */
    }
    lt_steering_close(m->steering);
    lt_lora_pool_close(m->lora_pool);
    lt_stored_weights_close(m);
    lt_generation_close(m);
    if (m->memory != NULL) {
        m->backend->release(m->device, m->memory, m->weights_bytes);
    }
    lt_param_buffer_close(&m->weights);
    lt_param_buffer_close(&m->master);
    close_mover(m);
    lt_param_table_close(&m->table);
    lt_device_close(m->own_device);
    free(m->files);
    free(m->score_ends);
    free(m);
}

size_t lt_model_bytes(const lt_model *m) {
    const bool mapped = m->backend->host_memory && m->stored_source != NULL;
    return m->weights_bytes + m->stored_copies_bytes + m->stored_packed_bytes +
           m->row_numbers_bytes +
           (mapped ? lt_stored_mapped_bytes(m->stored_source, &m->table) : 0);
}

size_t lt_model_host_bytes(const lt_model *m) {
    return m->backend->host_memory ? lt_model_bytes(m) : 0;
}

const char *lt_model_files(const lt_model *m) {
    return m->files;
}

const lt_model_spec *lt_model_get_spec(const lt_model *m) {
    return &m->spec;
}

uint64_t lt_model_version(const lt_model *m) {
    return m->version;
}

/* Bytes to be sent, in pieces. */
typedef struct {
    const lt_model *m;
    unsigned char *dst;
    const unsigned char *host;
    size_t bytes, step;
    lt_failure failed;
} sending;

static lt_err copy_piece(const sending *s, size_t at) {
    const size_t n = s->bytes - at < s->step ? s->bytes - at : s->step;
    lt_err err;
    lane *l;
    LT_TRY(take_lane(s->m, &l));
    memcpy(l->piece, s->host + at, n);
    err = send_piece(s->m, l, s->dst + at, n);
    give_lane(s->m, l);
    return err;
}

static void note_failure(const lt_model *m, lt_failure *f, lt_err err) {
    pthread_mutex_lock(&m->mover->lock);
    if (err != LT_OK && f->err == LT_OK) {
        lt_failure_keep(f, err);
    }
    pthread_mutex_unlock(&m->mover->lock);
}

static lt_err tell_failure(const lt_failure *f) {
    return lt_failure_raise(f);
}

static void send_one(void *ctx, size_t i) {
    sending *s = ctx;
    note_failure(s->m, &s->failed, copy_piece(s, i * s->step));
}

lt_err lt_model_upload(const lt_model *m, void *dst, const void *host, size_t bytes) {
    sending s = {.m = m, .dst = dst, .host = host, .bytes = bytes};
    if (m->backend->host_memory) {
        memcpy(dst, host, bytes);
        return LT_OK;
    }
    s.step = bytes / MAX_LANES < LEAST_BYTES ? LEAST_BYTES : bytes / MAX_LANES;
    s.step = s.step < LT_MODEL_PIECE_BYTES ? s.step : LT_MODEL_PIECE_BYTES;
    lt_parallel_for((bytes + s.step - 1) / s.step, send_one, &s);
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

/* BF16 values of any alignment. */
static bool all_finite(const unsigned char *x, size_t bytes) {
    uint16_t worst = 0; /* The largest exponent field: this loop is vectorised. */
    for (size_t i = 0; i < bytes; i += 2) {
        uint16_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7F80u;
        worst = bits > worst ? bits : worst;
    }
    return worst != 0x7F80u;
}

/* Values are copied right after they are checked, while they are in the first-level cache, because
 * loading from the page cache is limited by how fast the threads read. */
#define CHECKED_BYTES ((size_t)16 << 10)
static bool copy_finite(unsigned char *dst, const unsigned char *src, size_t bytes) {
    for (size_t at = 0; at < bytes; at += CHECKED_BYTES) {
        const size_t n = bytes - at < CHECKED_BYTES ? bytes - at : CHECKED_BYTES;
        if (!all_finite(src + at, n)) {
            return false;
        }
        memcpy(dst + at, src + at, n);
    }
    return true;
}

/* Write values of a type to the master if there is one, otherwise to the compute copy, one piece at
 * a time. finite: not NULL if the values are copied unchanged and must be checked. */
static lt_err set_on_device(lt_model *m, const lt_param *p, int64_t first, const void *values,
                            lt_dtype from, int64_t count, bool *finite) {
    const lt_param_buffer *b = lt_model_has_master(m) ? &m->master : &m->weights;
    const lt_dtype to = b->dtype;
    const int64_t bytes = (int64_t)lt_dtype_bytes(to), most = (int64_t)LT_MODEL_PIECE_BYTES / bytes;
    unsigned char *const dst = lt_param_data(b, p);
    for (int64_t i = 0; i < count; i += most) {
        const int64_t n = count - i < most ? count - i : most;
        lt_err err;
        lane *l;
        LT_TRY(take_lane(m, &l));
        const unsigned char *src = (const unsigned char *)values +
                                   i * (int64_t)lt_dtype_bytes(from);
        if (finite != NULL) {
            *finite = copy_finite(l->piece, src, (size_t)(n * bytes));
        } else {
            lt_convert(l->piece, to, src, from, (size_t)n);
        }
        err = finite == NULL || *finite
                  ? send_piece(m, l, dst + (first + i) * bytes, (size_t)(n * bytes))
                  : LT_OK;
        give_lane(m, l);
        LT_TRY(err);
        if (finite != NULL && !*finite) {
            break;
        }
    }
    return LT_OK;
}

void lt_model_set(lt_model *m, const lt_param *p, int64_t first, const void *values, lt_dtype type,
                  int64_t count) {
    LT_ASSERT(first >= 0 && count >= 0 && first + count <= p->local_count);
    if (count == 0) {
        return;
    }
    if (!m->backend->host_memory) {
        note_failure(m, &m->mover->failed, set_on_device(m, p, first, values, type, count, NULL));
        return;
    }
    if (lt_model_has_master(m)) {
        lt_convert((float *)lt_param_data(&m->master, p) + first, LT_F32, values, type,
                   (size_t)count);
    }
    if (m->options.dtype == LT_BF16) {
        lt_convert((uint16_t *)lt_param_data(&m->weights, p) + first, LT_BF16, values, type,
                   (size_t)count);
    }
}

bool lt_model_set_finite(lt_model *m, const lt_param *p, int64_t first, const void *values,
                         int64_t count) {
    bool finite = true;
    LT_ASSERT(first >= 0 && count > 0 && first + count <= p->local_count);
    LT_ASSERT(m->options.dtype == LT_BF16 && !lt_model_has_master(m));
    if (m->backend->host_memory) {
        return copy_finite((unsigned char *)lt_param_data(&m->weights, p) + 2 * first, values,
                           2 * (size_t)count);
    }
    note_failure(m, &m->mover->failed, set_on_device(m, p, first, values, LT_BF16, count, &finite));
    return finite;
}

lt_err lt_model_sync_weights(lt_model *m) {
    const int64_t n = m->table.n_elements;
    if (m->options.dtype != LT_BF16 || !lt_model_has_master(m) || n == 0) {
        return LT_OK;
    }
    LT_ASSERT(m->weights.flat != NULL && m->master.flat != NULL);
    LT_TRY(m->backend->ops->cast(m->mover->queue,
                                 &(lt_cast_args){.y = lt_tensor_1d(m->weights.flat, LT_BF16, n),
                                                 .x = lt_tensor_1d(m->master.flat, LT_F32, n)}));
    return m->backend->sync(m->mover->queue);
}

/* On a device the compute copy is made there, of the whole master at once. */
lt_err lt_model_settle(lt_model *m) {
    LT_TRY(tell_failure(&m->mover->failed));
    return m->backend->host_memory ? LT_OK : lt_model_sync_weights(m);
}
