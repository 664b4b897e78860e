/* models.c: see models.h. */
#include "serve/api/models.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/log.h"
#include "model/alloc.h"
#include "serve/api/files/batch.h"
#include "serve/api/open_model.h"
#include "serve/api/reply.h"

#define RETRY_S      5.0 /* After the first failure; doubled with each further one, */
#define RETRY_MOST_S 300.0
#define MIB(bytes)   ((double)(bytes) / 1048576.0)

struct lt_models {
    lt_server *front;
    lt_model_slot *slots;
    int n;
    int64_t budget; /* In bytes; INT64_MAX: unlimited. */
    struct event *on_turn, *on_worked;
    uint64_t n_asked;
    bool stopped, told_ready;
    /* Used by the thread while it works. */
    bool working, has_thread;
    pthread_t thread;
    /* Model to load when all that are UNLOADING have been closed; NULL: none. */
    lt_model_slot *next;
    lt_err err;
};

/* ---- What a model needs ---- */

static int64_t loaded_bytes(const lt_server *s) {
    lt_engine_cache c;
    lt_engine_get_cache(s->engine, &c);
    return (int64_t)lt_model_bytes(s->model) + c.pages * c.page_bytes +
           (s->reward != NULL ? loaded_bytes(s->reward) : 0);
}

/* Before it is first loaded: the size of the files and, with a budget, of the largest cache. */
static int64_t guessed_bytes(const lt_models *m, const lt_server *s) {
    const lt_engine_options *e = &s->o.engine;
    const int64_t share = m->budget < INT64_MAX ? e->cache_most : 0;
    return lt_server_weights_bytes(s) + (e->cache_bytes > 0 ? e->cache_bytes : share);
}

/* ---- States ---- */

static bool is_idle(const lt_model_slot *slot) {
    return slot->n_held == 0 && slot->server->n_replies == 0;
}

double lt_model_slot_expires(const lt_model_slot *slot) {
    const double now = lt_clock_s();
    const double from = is_idle(slot) ? slot->used_s : now;
    return slot->keep_s < 0 ? -1.0 : lt_clock_unix_s() + from + slot->keep_s - now;
}

static void ask_turn(lt_models *m) {
    event_active(m->on_turn, EV_TIMEOUT, 0);
}

static void tell_all(lt_model_slot *slot, const lt_api_error *e) {
    lt_fifo waiting = slot->waiting;
    lt_models_call *w;
    slot->waiting = (lt_fifo){NULL, NULL};
    slot->n_waiting = 0;
    while ((w = (lt_models_call *)lt_fifo_pop(&waiting)) != NULL) {
        w->told(w, e);
    }
}

static void say_failed(const lt_model_slot *slot, lt_api_error *e) {
    const double wait_s = slot->retry_s - lt_clock_s();
    *e = (lt_api_error){.status = 500, .type = "server_error", .code = "model_load_failed"};
    snprintf(e->param, sizeof e->param, "model");
    snprintf(e->message, sizeof e->message,
             "the model '%.100s' could not be loaded: %s; the first request after %.0f s tries "
             "again",
             slot->server->name, slot->why, wait_s > 1 ? wait_s : 1);
}

static void fail(lt_models *m, lt_model_slot *slot, const char *why) {
    double wait_s = RETRY_S;
    lt_server *front = m->front;
    lt_api_error e;

    for (int i = 0; i < slot->n_failures && wait_s < RETRY_MOST_S; i++) {
        wait_s *= 2;
    }
    slot->n_failures++;
    slot->retry_s = lt_clock_s() + (wait_s < RETRY_MOST_S ? wait_s : RETRY_MOST_S);
    slot->state = LT_MODEL_FAILED;
    slot->wanted = false;
    snprintf(slot->why, sizeof slot->why, "%s", why);
    lt_api_hide_paths(slot->why);
    lt_log_error("serve: %s could not be loaded: %s", slot->server->name, why);
    if (slot->must) {
        snprintf(front->why_failed, sizeof front->why_failed, "%s", why);
        atomic_store(&front->state, LT_SERVER_FAILED);
        event_base_loopbreak(front->base);
    }
    say_failed(slot, &e);
    tell_all(slot, &e);
}

/* ---- The thread that loads and unloads ---- */

static void *work(void *arg) {
    lt_models *m = arg;
    for (int i = 0; i < m->n; i++) {
        if (m->slots[i].state == LT_MODEL_UNLOADING) {
            lt_server_close_model(m->slots[i].server);
        }
    }
    if (m->next != NULL) {
        lt_server *s = m->next->server;
        const double begun_s = lt_clock_s();
        m->err = lt_server_load(s);
        if (m->err != LT_OK) {
            snprintf(s->why_failed, sizeof s->why_failed, "%s", lt_error_message());
            lt_server_close_model(s);
        }
        s->load_s = lt_clock_s() - begun_s;
    }
    event_active(m->on_worked, 0, 0);
    return NULL;
}

static void begin_work(lt_models *m) {
    m->working = true;
    m->err = LT_OK;
    m->has_thread = pthread_create(&m->thread, NULL, work, m) == 0;
    if (!m->has_thread) {
        (void)work(m);
    }
}

static void unload(lt_model_slot *slot, const char *why) {
    slot->state = LT_MODEL_UNLOADING;
    slot->keep_s = slot->options->idle_s;
    slot->n_unloads++;
    lt_server_deafen(slot->server);
    if (!slot->server->o.quiet) {
        lt_log_info("serve: %s is unloaded: %s", slot->server->name, why);
    }
}

static void end_load(lt_models *m, lt_model_slot *slot) {
    char why[256];
    if (m->err != LT_OK) {
        fail(m, slot, slot->server->why_failed);
        return;
    }
    slot->bytes = loaded_bytes(slot->server);
    if (slot->bytes > m->budget) {
        snprintf(why, sizeof why, "it takes %.1f MiB, and --models-memory is %.1f MiB",
                 MIB(slot->bytes), MIB(m->budget));
        lt_server_close_model(slot->server);
        fail(m, slot, why);
        return;
    }
    if (!lt_server_listen(slot->server)) {
        lt_server_close_model(slot->server);
        fail(m, slot, "no event for the engine");
        return;
    }
    slot->state = LT_MODEL_LOADED;
    slot->wanted = slot->must = false;
    slot->n_failures = 0;
    slot->n_loads++;
    slot->used_s = lt_clock_s();
    if (!slot->server->o.quiet) {
        lt_log_info("serve: %s is loaded after %.3f s: %.1f MiB", slot->server->name,
                    slot->server->load_s, MIB(slot->bytes));
    }
    tell_all(slot, NULL); /* Before the next turn, which might give the memory to another model. */
}

/* Call `ready` once, when the models that load at the start are loaded. */
static void tell_ready(lt_models *m) {
    lt_server *front = m->front;
    if (!m->told_ready && !lt_models_starting(m) &&
        atomic_load(&front->state) != LT_SERVER_FAILED) {
        m->told_ready = true;
        if (front->o.ready != NULL) {
            front->o.ready(front->o.ctx, front);
        }
    }
}

static void on_worked(evutil_socket_t fd, short what, void *arg) {
    lt_models *m = arg;
    lt_model_slot *next = m->next;
    (void)fd;
    (void)what;

    if (m->has_thread) {
        pthread_join(m->thread, NULL);
    }
    m->working = m->has_thread = false;
    m->next = NULL;
    for (int i = 0; i < m->n; i++) {
        if (m->slots[i].state == LT_MODEL_UNLOADING) {
            m->slots[i].state = LT_MODEL_UNLOADED;
        }
    }
    if (next != NULL && !m->stopped) {
        end_load(m, next);
        tell_ready(m);
    }
    ask_turn(m);
}

/* ---- Turns: what to unload and what to load next ---- */

static int64_t used_bytes(const lt_models *m) {
    int64_t bytes = 0;
    for (int i = 0; i < m->n; i++) {
        bytes += m->slots[i].state == LT_MODEL_LOADED ? m->slots[i].bytes : 0;
    }
    return bytes;
}

/* The loaded model that was used least recently, idle or busy, and is not yet leaving. */
static lt_model_slot *oldest(const lt_models *m, bool idle) {
    lt_model_slot *found = NULL;
    for (int i = 0; i < m->n; i++) {
        lt_model_slot *s = &m->slots[i];
        if (s->state == LT_MODEL_LOADED && !s->leaving && is_idle(s) == idle &&
            (found == NULL || s->used_s < found->used_s)) {
            found = s;
        }
    }
    return found;
}

/* Unload idle models until `need` more bytes fit. False: busy models must end first; they are
 * marked as leaving. */
static bool make_room(lt_models *m, int64_t need) {
    int64_t used = used_bytes(m);
    lt_model_slot *s;

    while (used > m->budget - need && (s = oldest(m, true)) != NULL) {
        used -= s->bytes;
        unload(s, "others need its memory");
    }
    if (used <= m->budget - need) {
        return true;
    }
    while (used > m->budget - need && (s = oldest(m, false)) != NULL) {
        used -= s->bytes;
        s->leaving = true;
    }
    return false;
}

static lt_model_slot *first_asked(const lt_models *m) {
    lt_model_slot *first = NULL;
    for (int i = 0; i < m->n; i++) {
        lt_model_slot *s = &m->slots[i];
        if (s->state == LT_MODEL_UNLOADED && (s->wanted || s->n_waiting > 0) &&
            (first == NULL || s->asked < first->asked)) {
            first = s;
        }
    }
    return first;
}

static void choose_next(lt_models *m) {
    lt_model_slot *next = first_asked(m);
    char why[256];

    if (next == NULL) {
        (void)make_room(m, 0); /* One may be larger than expected. */
        return;
    }
    if (next->bytes > m->budget) {
        snprintf(why, sizeof why, "it needs %.1f MiB, and --models-memory is %.1f MiB",
                 MIB(next->bytes), MIB(m->budget));
        fail(m, next, why);
        ask_turn(m);
    } else if (make_room(m, next->bytes)) {
        next->state = LT_MODEL_LOADING;
        m->next = next;
    }
}

/* Unload models whose idle time is over, and set the timer for the next. */
static void expire(lt_models *m) {
    const double now = lt_clock_s();
    double wait_s = -1.0;

    for (int i = 0; i < m->n; i++) {
        lt_model_slot *s = &m->slots[i];
        const double left_s = s->used_s + s->keep_s - now;
        s->leaving = false;
        if (s->state != LT_MODEL_LOADED || s->keep_s < 0 || !is_idle(s) || s->n_waiting > 0) {
            continue;
        }
        if (left_s <= 0) {
            unload(s, "it was idle");
        } else if (wait_s < 0 || left_s < wait_s) {
            wait_s = left_s;
        }
    }
    if (wait_s >= 0) {
        const struct timeval wait = lt_clock_span(wait_s + 0.001);
        event_add(m->on_turn, &wait);
    }
}

static bool has_unloading(const lt_models *m) {
    for (int i = 0; i < m->n; i++) {
        if (m->slots[i].state == LT_MODEL_UNLOADING) {
            return true;
        }
    }
    return false;
}

static void on_turn(evutil_socket_t fd, short what, void *arg) {
    lt_models *m = arg;
    (void)fd;
    (void)what;

    if (m->working || m->stopped) {
        return; /* This is called again when the work ends. */
    }
    expire(m);
    choose_next(m);
    if (m->next != NULL || has_unloading(m)) {
        begin_work(m);
    }
    /* Calls that waited for a model that need not be unloaded any more. */
    for (int i = 0; i < m->n; i++) {
        if (m->slots[i].state == LT_MODEL_LOADED && !m->slots[i].leaving) {
            tell_all(&m->slots[i], NULL);
        }
    }
}

/* ---- Calls ---- */

bool lt_models_ready(lt_model_slot *slot) {
    if (slot->state != LT_MODEL_LOADED || slot->leaving) {
        return false;
    }
    slot->used_s = lt_clock_s();
    return true;
}

static void ask_for(lt_models *m, lt_model_slot *slot) {
    if (slot->n_waiting == 0 && !slot->wanted) {
        slot->asked = ++m->n_asked;
    }
    if (slot->state == LT_MODEL_FAILED) {
        slot->state = LT_MODEL_UNLOADED;
    }
    ask_turn(m);
}

bool lt_models_wait(lt_models *m, lt_model_slot *slot, lt_models_call *w, lt_api_error *e) {
    const int64_t most = slot->server->o.engine.max_waiting;
    if (slot->state == LT_MODEL_FAILED && lt_clock_s() < slot->retry_s) {
        say_failed(slot, e);
        return false;
    }
    if (slot->n_waiting >= most) {
        *e = (lt_api_error){.status = 429, .type = "rate_limit_error", .code = "queue_full"};
        snprintf(e->message, sizeof e->message,
                 "%lld requests wait for the model '%.100s' to be loaded; try again later",
                 (long long)most, slot->server->name);
        return false;
    }
    ask_for(m, slot);
    lt_fifo_push(&slot->waiting, &w->link);
    slot->n_waiting++;
    return true;
}

bool lt_models_give_up(lt_models *m, lt_models_call *w) {
    for (int i = 0; i < m->n; i++) {
        if (lt_fifo_take_out(&m->slots[i].waiting, &w->link)) {
            m->slots[i].n_waiting--;
            ask_turn(m); /* Another model need not be unloaded for it. */
            return true;
        }
    }
    return false;
}

void lt_models_refuse_waiting(lt_models *m, const lt_api_error *e) {
    for (int i = 0; i < m->n; i++) {
        tell_all(&m->slots[i], e);
    }
}

void lt_models_hold(lt_model_slot *slot) {
    slot->n_held++;
}

static void used(lt_models *m, lt_model_slot *slot) {
    slot->used_s = lt_clock_s();
    if (is_idle(slot)) {
        ask_turn(m);
    }
}

void lt_models_release(lt_models *m, lt_model_slot *slot) {
    slot->n_held--;
    used(m, slot);
}

void lt_models_ended(lt_models *m, lt_server *s) {
    if (s->slot != NULL) {
        used(m, s->slot);
    }
}

void lt_models_load(lt_models *m, lt_model_slot *slot) {
    if (slot->state != LT_MODEL_LOADED && slot->state != LT_MODEL_LOADING) {
        ask_for(m, slot);
        slot->wanted = true;
    }
}

void lt_models_unload(lt_models *m, lt_model_slot *slot) {
    slot->wanted = false;
    if (slot->state == LT_MODEL_LOADED || slot->state == LT_MODEL_LOADING) {
        slot->keep_s = 0;
        ask_turn(m);
    }
}

/* ---- All of them ---- */

int lt_models_count(const lt_models *m) {
    return m->n;
}

lt_model_slot *lt_models_at(const lt_models *m, int i) {
    return &m->slots[i];
}

lt_model_slot *lt_models_find(const lt_models *m, const char *name) {
    for (int i = 0; i < m->n; i++) {
        if (lt_server_answers_to(m->slots[i].server, name)) {
            return &m->slots[i];
        }
    }
    return NULL;
}

bool lt_models_starting(const lt_models *m) {
    for (int i = 0; i < m->n; i++) {
        if (m->slots[i].wanted && m->slots[i].n_loads == 0) {
            return true;
        }
    }
    return false;
}

int64_t lt_models_replies(const lt_models *m) {
    int64_t n = 0;
    for (int i = 0; i < m->n; i++) {
        n += m->slots[i].server->n_replies;
    }
    return n;
}

/* ---- Open, close ---- */

/* Open a model's own parts, and share the front's. */
static lt_err open_part(lt_model_slot *slot, lt_server *front) {
    const lt_server_model *o = slot->options;
    lt_server *s = calloc(1, sizeof *s);
    uint64_t first_id = 0;

    slot->server = s;
    if (s == NULL) {
        LT_FAIL(LT_ERR_OOM, "server: the model %s", o->name);
    }
    s->o = front->o;
    s->o.load_reward = NULL;
    s->front = front;
    s->base = front->base;
    s->http = front->http;
    s->pool = front->pool;
    s->n_pool_threads = front->n_pool_threads;
    s->store = front->store;
    s->files = front->files;
    s->uploads = front->uploads;
    s->batches = front->batches;
    s->seal = front->seal;
    s->created = front->created;
    s->started_s = front->started_s;
    s->salt_seed = front->salt_seed;
    s->preset = front->preset;
    s->state_lock = -1;
    if (getrandom(&first_id, sizeof first_id, 0) != (ssize_t)sizeof first_id) {
        first_id = lt_clock_ns();
    }
    atomic_init(&s->next_id, first_id);
    lt_metrics_init(&s->metrics);
    s->events = calloc(LT_SERVER_POLL_EVENTS, sizeof *s->events);
    if (s->events == NULL) {
        LT_FAIL(LT_ERR_OOM, "server: the model %s", o->name);
    }
    return LT_OK;
}

static void take_options(lt_server *s, const lt_server_model *o) {
    s->o.name = o->name;
    s->o.aliases = o->aliases;
    s->o.model = o->model;
    s->o.template = o->template;
    s->o.engine = o->engine;
    s->o.think_budget = o->think_budget;
    s->o.load = o->load;
    s->o.unload = o->unload;
    s->o.ctx = o->ctx;
    lt_server_name_it(s);
}

/* A path in the file system must exist; an address to be fetched has a scheme. */
static lt_err check_path(const lt_server_model *o) {
    if (strstr(o->model, "://") == NULL && !lt_file_exists(o->model)) {
        LT_FAIL(LT_ERR_NOT_FOUND, "model %s: %s: no such file or folder", o->name, o->model);
    }
    return LT_OK;
}

static lt_err check_names(const lt_models *m, const lt_model_slot *slot) {
    const char *rest = slot->server->o.aliases;
    char name[sizeof slot->server->name];
    snprintf(name, sizeof name, "%s", slot->server->name);
    do {
        for (const lt_model_slot *other = m->slots; other < slot; other++) {
            if (lt_server_is_named(other->server, name)) {
                LT_FAIL(LT_ERR_ARG, "two models answer to the name '%s': %s and %s", name,
                        other->server->o.model, slot->server->o.model);
            }
        }
    } while (lt_server_next_alias(&rest, name, sizeof name));
    return LT_OK;
}

/* The caches of all models share half of the budget, or of the memory that is free now. On a GPU
 * without a budget, each cache takes half of what is free when it is made. */
static int64_t cache_share(const lt_models *m) {
    lt_limits l;
    if (m->budget < INT64_MAX) {
        return m->budget / 2 / m->n;
    }
    lt_limits_read(&l);
    return (int64_t)(l.available_bytes / 2) / m->n;
}

static lt_err open_slot(lt_models *m, int i, int64_t share) {
    lt_server *front = m->front;
    lt_model_slot *slot = &m->slots[i];
    slot->options = &front->o.models[i];
    LT_TRY(check_path(slot->options));
    if (i == 0) {
        slot->server = front;
    } else {
        LT_TRY(open_part(slot, front));
    }
    slot->server->slot = slot;
    take_options(slot->server, slot->options);
    slot->server->o.engine.cache_most = share;
    slot->wanted = slot->options->preload;
    slot->must = slot->options->must;
    slot->asked = ++m->n_asked;
    slot->keep_s = slot->options->idle_s;
    slot->bytes = guessed_bytes(m, slot->server);
    return check_names(m, slot);
}

lt_err lt_models_open(lt_models **out, lt_server *front) {
    lt_err err = LT_OK;
    const lt_server_options *o = &front->o;
    lt_models *m = calloc(1, sizeof *m);

    if (m == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "server: models");
    }
    m->front = front;
    m->n = o->n_models;
    m->budget = o->models_bytes > 0 ? o->models_bytes : INT64_MAX;
    m->slots = calloc((size_t)m->n, sizeof *m->slots);
    m->on_turn = event_new(front->base, -1, 0, on_turn, m);
    m->on_worked = event_new(front->base, -1, EV_PERSIST, on_worked, m);
    if (m->slots == NULL || m->on_turn == NULL || m->on_worked == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "server: models");
    }
    const int64_t share = cache_share(m);
    for (int i = 0; i < m->n; i++) {
        LT_TRY_DONE(open_slot(m, i, share));
    }
    *out = m;
    m = NULL;
done:
    lt_models_close(m);
    return err;
}

void lt_models_begin(lt_models *m) {
    lt_batches_begin(m->front->batches);
    tell_ready(m);
    ask_turn(m);
}

void lt_models_stop(lt_models *m) {
    if (m == NULL) {
        return;
    }
    m->stopped = true;
    if (m->has_thread) {
        pthread_join(m->thread, NULL);
        m->has_thread = false;
    }
    for (int i = 0; i < m->n; i++) {
        lt_server_stop_model(m->slots[i].server);
    }
}

static void close_part(lt_server *s) {
    if (s == NULL) {
        return;
    }
    lt_server_close_model(s);
    lt_out_free(&s->line);
    free(s->events);
    free(s);
}

void lt_models_close(lt_models *m) {
    if (m == NULL) {
        return;
    }
    for (int i = 1; m->slots != NULL && i < m->n; i++) {
        close_part(m->slots[i].server);
    }
    if (m->on_turn != NULL) {
        event_free(m->on_turn);
    }
    if (m->on_worked != NULL) {
        event_free(m->on_worked);
    }
    free(m->slots);
    free(m);
}
