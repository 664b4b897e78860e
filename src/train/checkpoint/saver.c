/* saver.c: see saver.h. */
#include "train/checkpoint/saver.h"

#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "train/run.h"

/* Whether this rank writes files of a checkpoint. */
static bool writes(const lt_recipe *r, const lt_shards *shards) {
    const lt_world *w = shards != NULL ? shards->world : NULL;
    int n_parts;
    if (w == NULL) {
        return true;
    }
    return r->zero > 0 || lt_world_is_divided(w) ? lt_shards_part(shards, &n_parts) >= 0
                                                 : w->rank == 0;
}

size_t lt_saver_bytes(const lt_recipe *r, const lt_param_table *table, const lt_shards *shards) {
    return r->save_async && writes(r, shards) ? lt_optimiser_state_bytes(r, table) : 0;
}

static const lt_shards *shards_of(const lt_training *t) {
    return lt_training_has_ranks(t) ? &t->shards : NULL;
}

/* Place the buffers of the copy, one after another. */
static lt_err place_copy(lt_saver *s, const lt_optimiser *o) {
    const lt_param_table *table = o->share.table;
    char *at = s->memory;
    LT_TRY(lt_param_buffer_open(&s->master, table, LT_F32));
    lt_param_buffer_place(&s->master, table, at);
    at += lt_param_buffer_bytes(table, LT_F32);
    s->optimiser = *o;
    s->optimiser.share.master = &s->master;
    memset(s->optimiser.moments, 0, sizeof s->optimiser.moments);
    for (int i = 0; i < o->n_moments; i++) {
        LT_TRY(lt_param_buffer_open(&s->optimiser.moments[i], table, o->moments[i].dtype));
        lt_param_buffer_place(&s->optimiser.moments[i], table, at);
        at += lt_param_buffer_bytes(table, o->moments[i].dtype);
    }
    LT_ASSERT((size_t)(at - (char *)s->memory) == s->bytes);
    return LT_OK;
}

lt_err lt_saver_open(lt_training *t) {
    lt_saver *s = &t->saver;
    const lt_backend *be = t->device->backend;
    s->bytes = lt_saver_bytes(&t->recipe, t->optimiser.share.table, shards_of(t));
    if (s->bytes == 0) {
        return LT_OK;
    }
    LT_TRY(be->host_alloc(t->device, &s->memory, s->bytes, "copy for checkpoints"));
    LT_TRY(be->host_memory ? LT_OK : be->queue_open(t->device, &s->queue));
    return place_copy(s, &t->optimiser);
}

/* ---- The thread ---- */

static lt_err write_files(lt_training *t) {
    lt_saver *s = &t->saver;
    int n_parts;
    LT_TRY(s->queue != NULL ? t->device->backend->sync(s->queue) : LT_OK);
    if (!lt_training_is_divided(t)) {
        return lt_checkpoint_save(t->checkpoints, &s->model, &s->optimiser, &s->state, &t->lease);
    }
    const int part = lt_shards_part(&t->shards, &n_parts);
    return lt_checkpoint_write_part(t->checkpoints, s->state.step, part, n_parts, &s->model,
                                    &s->optimiser, &t->world->layout, &t->lease);
}

static lt_err publish(lt_training *t) {
    lt_saver *s = &t->saver;
    lt_err err;
    int n_parts;
    (void)lt_shards_part(&t->shards, &n_parts);
    err = lt_checkpoint_publish(t->checkpoints, n_parts, &s->model, &s->optimiser, &s->state,
                                &t->lease);
    return err == LT_OK ? LT_OK
                        : lt_checkpoint_give_up(t->checkpoints, s->state.step, &t->lease, err);
}

static void *work(void *arg) {
    lt_training *t = arg;
    lt_saver *s = &t->saver;
    const bool whole = !lt_training_is_divided(t);
    lt_err err = s->phase == LT_SAVER_WRITING ? write_files(t) : publish(t);
    if (err == LT_OK && (whole || s->phase == LT_SAVER_PUBLISHING)) {
        err = lt_training_prune(t);
    }
    s->err = err;
    lt_failure_keep(&s->failure, err);
    atomic_store(&s->done, true);
    return NULL;
}

static lt_err begin_thread(lt_training *t) {
    lt_saver *s = &t->saver;
    int e;
    atomic_store(&s->done, false);
    e = pthread_create(&s->thread, NULL, work, t);
    if (e != 0) {
        LT_FAIL(LT_ERR_OOM, "thread of a checkpoint: %s", strerror(e));
    }
    s->has_thread = true;
    return LT_OK;
}

/* Wait for the thread, if there is one; its failure becomes this thread's. */
static lt_err end_thread(lt_saver *s) {
    if (!s->has_thread) {
        return LT_OK;
    }
    (void)pthread_join(s->thread, NULL);
    s->has_thread = false;
    return s->err != LT_OK ? lt_failure_raise(&s->failure) : LT_OK;
}

void lt_saver_settle(lt_training *t) {
    lt_saver *s = &t->saver;
    if (end_thread(s) != LT_OK) {
        lt_log_warn("%s", lt_error_message());
    }
}

void lt_saver_close(lt_training *t) {
    lt_saver *s = &t->saver;
    lt_saver_settle(t);
    if (s->queue != NULL) {
        t->device->backend->queue_close(s->queue);
    }
    if (s->memory != NULL) {
        t->device->backend->host_release(t->device, s->memory, s->bytes);
    }
    lt_param_buffer_close(&s->master);
    for (int i = 0; i < LT_OPTIM_MAX_MOMENTS; i++) {
        lt_param_buffer_close(&s->optimiser.moments[i]);
    }
    lt_run_state_clear(&s->state);
}

/* ---- The copy ---- */

static lt_err copy_buffer(lt_training *t, const lt_param_buffer *to, const lt_param_buffer *from) {
    const lt_saver *s = &t->saver;
    const lt_param_table *table = t->optimiser.share.table;
    const size_t each = lt_dtype_bytes(from->dtype);
    for (int u = 0; u < table->n_units; u++) {
        const size_t bytes = (size_t)table->units[u].n_elements * each;
        if (bytes > 0 && from->base[u] != NULL && s->queue != NULL) {
            LT_TRY(t->device->backend->download(s->queue, to->base[u], from->base[u], bytes));
        } else if (bytes > 0 && from->base[u] != NULL) {
            memcpy(to->base[u], from->base[u], bytes);
        }
    }
    return LT_OK;
}

static lt_err copy_all(lt_training *t) {
    lt_saver *s = &t->saver;
    const lt_backend *be = t->device->backend;
    if (s->queue != NULL) {
        LT_TRY(be->order(s->queue, lt_training_queue(t)));
        s->copying = true;
    }
    LT_TRY(copy_buffer(t, &s->master, t->optimiser.share.master));
    for (int i = 0; i < t->optimiser.n_moments; i++) {
        LT_TRY(copy_buffer(t, &s->optimiser.moments[i], &t->optimiser.moments[i]));
    }
    /* The thread writes from host memory. */
    s->model = *t->trained;
    s->model.backend = lt_backend_cpu();
    return LT_OK;
}

lt_err lt_saver_before_update(lt_training *t) {
    lt_saver *s = &t->saver;
    if (!s->copying) {
        return LT_OK;
    }
    s->copying = false;
    return t->device->backend->order(lt_training_queue(t), s->queue);
}

/* ---- Phases ---- */

static void keep_state(lt_saver *s, const lt_run_state *state) {
    lt_run_state_clear(&s->state);
    s->state = *state;
    json_incref(s->state.loader);
    json_incref(s->state.guard);
    json_incref(s->state.recipe);
    json_incref(s->state.data);
}

lt_err lt_saver_start(lt_training *t) {
    lt_saver *s = &t->saver;
    LT_ASSERT(s->phase == LT_SAVER_IDLE && !s->has_thread);
    keep_state(s, &t->state);
    s->phase = LT_SAVER_WRITING;
    s->start_s = lt_clock_s();
    if (s->memory == NULL) {
        return LT_OK;
    }
    LT_TRY(copy_all(t));
    lt_log_debug("step %lld: copied for a checkpoint in %.3f s", (long long)t->state.step,
                 lt_clock_s() - s->start_s);
    return begin_thread(t);
}

lt_err lt_saver_look(lt_training *t, bool *runs) {
    lt_saver *s = &t->saver;
    *runs = s->has_thread && !atomic_load(&s->done);
    return *runs ? LT_OK : end_thread(s);
}

lt_err lt_saver_advance(lt_training *t, bool any_runs) {
    lt_saver *s = &t->saver;
    if (s->phase == LT_SAVER_IDLE || any_runs) {
        return LT_OK;
    }
    if (s->phase == LT_SAVER_WRITING && lt_training_is_divided(t)) {
        s->phase = LT_SAVER_PUBLISHING;
        return lt_ranks_lead(&t->ranks) ? begin_thread(t) : LT_OK;
    }
    s->phase = LT_SAVER_IDLE;
    lt_live_saved(t->live, s->state.step);
    lt_log_debug("step %lld: checkpoint within %.2f s", (long long)s->state.step,
                 lt_clock_s() - s->start_s);
    return lt_mirror_publish(t, s->state.step);
}

lt_err lt_saver_wait(lt_training *t) {
    lt_saver *s = &t->saver;
    while (s->phase != LT_SAVER_IDLE) {
        lt_step_record record = {0};
        LT_TRY(lt_ranks_combine(&t->ranks, &record, end_thread(s)));
        LT_TRY(lt_saver_advance(t, false));
    }
    return LT_OK;
}
