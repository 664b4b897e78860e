/* server.c: see server.h and api.h: open, load, run, drain, close, and functions that the endpoints
 * share. */
#include "serve/api/server.h"

#include <event2/thread.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/thread.h"
#include "serve/api/access.h"
#include "serve/api/files/batch.h"
#include "serve/api/models.h"
#include "serve/api/open_model.h"
#include "serve/api/files/tuning.h"
#include "serve/api/files/uploads.h"
#include "serve/http/tls.h"
#include "serve/api/reply.h"
#include "serve/api/route.h"
#include "serve/api/formats/chat_output.h"

#define POLL_ROUNDS 16                /* Then the loop serves its sockets again. */
#define BIG_REQUEST ((size_t)1 << 20) /* From this size in bytes, its memory is released at once. */
/* At most this many large requests wait to be read; then 429. */
#define MAX_POOLED 64

lt_server_options lt_server_defaults(void) {
    return (lt_server_options){.host = "127.0.0.1",
                               .port = 8080,
                               .aliases = "",
                               .cors = "",
                               .allowed_hosts = "",
                               .tls_cert = "",
                               .tls_key = "",
                               .max_connections = 4096,
                               .max_body_bytes = (int64_t)32 << 20,
                               .max_head_bytes = (int64_t)64 << 10,
                               .max_pending_bytes = (int64_t)1 << 20,
                               .request_s = 30,
                               .idle_s = 75,
                               .write_s = 30,
                               .drain_s = 30,
                               .max_files = 1000,
                               .max_files_bytes = (int64_t)4 << 30,
                               .upload_s = 3600,
                               .max_batches = 100,
                               .batch_lines = 50000,
                               .tuning = {.dir = "", .device = "cpu", .tokenizer = ""},
                               .store = {1024, (size_t)64 << 20, 3600},
                               .think_budget = -1,
                               .own_defaults = true,
                               .engine = lt_engine_defaults()};
}

/* ---- Shared by the endpoints ---- */

lt_server *lt_server_judge(lt_server *s) {
    return s->reward != NULL ? s->reward : s;
}

bool lt_server_has_model(const lt_server *s) {
    return s->slot != NULL ? s->slot->state == LT_MODEL_LOADED
                           : atomic_load(&s->state) == LT_SERVER_READY;
}

bool lt_server_next_alias(const char **rest, char *out, size_t room) {
    const char *at = *rest + strspn(*rest, ", ");
    const size_t n = strcspn(at, ",");
    size_t used = n;
    while (used > 0 && at[used - 1] == ' ') {
        used--;
    }
    *rest = at + n;
    snprintf(out, room, "%.*s", (int)(used < room ? used : room - 1), at);
    return used > 0;
}

bool lt_server_is_named(const lt_server *s, const char *name) {
    const char *rest = s->o.aliases;
    char alias[sizeof s->name];
    bool is = strcmp(name, s->name) == 0;
    while (!is && lt_server_next_alias(&rest, alias, sizeof alias)) {
        is = strcmp(name, alias) == 0;
    }
    return is;
}

bool lt_server_answers_to(const lt_server *s, const char *name) {
    return lt_server_is_named(s, name) || lt_adapter_set_know(s->adapters, name);
}

int64_t lt_server_context(const lt_server *s) {
    return s->context;
}

void lt_server_make_id(lt_server *s, const char *prefix, char out[48]) {
    const uint64_t n = atomic_fetch_add(&s->next_id, 1), salt = (uint64_t)s->created;
    snprintf(out, 48, "%s%016llx%08llx", prefix, (unsigned long long)lt_rng_mix(n ^ salt << 24),
             (unsigned long long)(lt_rng_mix(salt + n) & 0xFFFFFFFF));
}

void lt_server_ask(const lt_server *s, lt_api_params *a) {
    lt_api_params_defaults(a);
    lt_server_preset(s, a);
}

void lt_server_preset(const lt_server *s, lt_api_params *a) {
    lt_api_error e;
    const bool ok = lt_api_params_preset(a, s->own, &e) && lt_api_params_preset(a, s->preset, &e);
    LT_ASSERT(ok); /* Both were checked when they were read. */
    (void)ok;
}

int lt_server_count(const lt_server *front) {
    return front->models != NULL ? lt_models_count(front->models) : 1;
}

lt_server *lt_server_at(lt_server *front, int i) {
    return front->models != NULL ? lt_models_at(front->models, i)->server : front;
}

void lt_server_refuse_model(const lt_server *front, const char *owner, const char *name,
                            lt_api_error *e) {
    char names[300] = "";
    int n = 0;
    for (int i = 0; front->models != NULL && i < lt_models_count(front->models); i++) {
        const lt_server *s = lt_models_at(front->models, i)->server;
        const size_t used = strlen(names);
        if (used < sizeof names - 100 && lt_access_may_use(s, owner)) {
            snprintf(names + used, sizeof names - used, "%s'%.80s'", n++ > 0 ? ", " : "", s->name);
        }
    }
    if (front->models == NULL) {
        snprintf(names, sizeof names, "'%.150s'", front->name);
    }
    lt_api_refuse(e, "model", "the model '%.100s' is not served here; %s %s", name, names,
                  n > 1 ? "are" : "is");
    e->status = 404;
    e->type = "not_found_error";
    e->code = "model_not_found";
}

bool lt_server_check_model(const lt_server *s, const lt_api_params *a, lt_api_error *e) {
    if (a->model == NULL || a->model[0] == '\0' || s->o.any_model ||
        lt_server_answers_to(s, a->model)) {
        return true;
    }
    lt_server_refuse_model(s, "", a->model, e);
    return false;
}

bool lt_server_may_fit(const lt_server *s, size_t bytes, const char *param, lt_api_error *e) {
    if (bytes <= s->most_prompt_bytes) {
        return true;
    }
    lt_api_refuse(e, param,
                  "the prompt of %zu bytes exceeds the available context size of %lld tokens",
                  bytes, (long long)s->context);
    e->code = "context_length_exceeded";
    return false;
}

bool lt_server_seal_key(const lt_server *s, const char *owner, lt_seal_key *out) {
    *out = s->seal;
    return owner[0] == '\0' || lt_seal_key_make(out, owner) == LT_OK;
}

/* The salt is hashed together with a secret number, so that nobody can search for a salt that
 * collides with another's. 0: the request shares pages with all others. */
uint64_t lt_server_cache_salt(const lt_server *s, const char *owner, const char *salt) {
    const bool by_key = s->o.prefix_cache_by_key && owner != NULL && owner[0] != '\0';
    uint64_t hash = s->salt_seed;
    if (salt == NULL && !by_key) {
        return 0;
    }
    if (by_key) {
        hash = XXH3_64bits_withSeed(owner, strlen(owner) + 1, hash);
    }
    if (salt != NULL) {
        hash = XXH3_64bits_withSeed(salt, strlen(salt), ~hash);
    }
    return hash | 1;
}

/* Working memory of a long text is not kept. */
static void renew_scratch(const lt_server *s, lt_tokenizer_scratch **scratch) {
    lt_tokenizer_scratch *fresh = NULL;
    if (lt_tokenizer_scratch_open(&fresh, s->tokenizer) == LT_OK) {
        lt_tokenizer_scratch_close(*scratch);
        *scratch = fresh;
    }
}

bool lt_server_encode(lt_server *s, const char *text, size_t n, unsigned flags, lt_ids *out,
                      lt_api_error *e) {
    const int thread = lt_worker_pool_thread(s->pool);
    lt_tokenizer_scratch **scratch = thread >= 0 ? &s->scratch_pool[thread] : &s->scratch;
    const lt_err err = lt_tokenizer_encode(s->tokenizer, *scratch, text, n, flags, out);
    const bool ok = err == LT_OK || lt_api_refuse_error(e, NULL, err);
    if (n > BIG_REQUEST) {
        renew_scratch(s, scratch);
    }
    return ok;
}

/* Half of the cores, so that streams continue if the model runs on them, too. */
static int pool_threads(void) {
    const int half = lt_thread_count() / 2;
    return half < 1 ? 1 : half > LT_WORKER_POOL_THREADS ? LT_WORKER_POOL_THREADS : half;
}

/* ---- Loading, on its own thread ---- */

static void *load_thread(void *arg) {
    lt_server *s = arg;
    const lt_err err = lt_server_load(s);
    if (err != LT_OK) {
        snprintf(s->why_failed, sizeof s->why_failed, "%s", lt_error_message());
    }
    s->load_s = lt_clock_s() - s->started_s;
    atomic_store(&s->state, err == LT_OK ? LT_SERVER_READY : LT_SERVER_FAILED);
    event_active(s->on_loaded, 0, 0);
    return NULL;
}

/* ---- The loop's events ---- */

static void on_engine(evutil_socket_t fd, short what, void *arg) {
    lt_server *s = arg;
    (void)fd;
    (void)what;
    for (int round = 0; round < POLL_ROUNDS; round++) {
        const int64_t n = lt_engine_poll(s->engine, s->events, LT_SERVER_POLL_EVENTS);
        for (int64_t i = 0; i < n; i++) {
            lt_reply_event(&s->events[i]);
        }
        if (n < LT_SERVER_POLL_EVENTS) {
            break;
        }
    }
}

static bool listen_to_engine(lt_server *s, struct event_base *base) {
    s->on_engine = event_new(base, lt_engine_fd(s->engine), EV_READ | EV_PERSIST, on_engine, s);
    return s->on_engine != NULL && event_add(s->on_engine, NULL) == 0;
}

bool lt_server_listen(lt_server *s) {
    return listen_to_engine(s, s->base) &&
           (s->reward == NULL || listen_to_engine(s->reward, s->base));
}

void lt_server_deafen(lt_server *s) {
    if (s->on_engine != NULL) {
        event_free(s->on_engine);
        s->on_engine = NULL;
    }
    if (s->reward != NULL) {
        lt_server_deafen(s->reward);
    }
}

static void on_loaded(evutil_socket_t fd, short what, void *arg) {
    lt_server *s = arg;
    (void)fd;
    (void)what;
    if (atomic_load(&s->state) != LT_SERVER_READY) {
        event_base_loopbreak(s->base);
        return;
    }
    if (!lt_server_listen(s)) {
        atomic_store(&s->state, LT_SERVER_FAILED);
        snprintf(s->why_failed, sizeof s->why_failed, "no event for the engine");
        event_base_loopbreak(s->base);
        return;
    }
    lt_batches_begin(s->batches);
    lt_tunings_begin(s->tunings);
    if (s->o.ready != NULL) {
        s->o.ready(s->o.ctx, s);
    }
    if (!s->o.quiet && s->o.host != NULL) {
        char url[300];
        lt_server_url(s, url, sizeof url);
        lt_log_info("serve: %s is ready after %.3f s, %.3f of it for the model: %s", s->name,
                    s->load_s, s->model_s, url);
    }
}

/* Requests under way, of all models. */
static int64_t count_requests(const lt_server *s) {
    return s->n_pooled + (s->models != NULL ? lt_models_replies(s->models) : s->n_replies);
}

static void fail_replies(lt_server *s, const lt_api_error *e) {
    for (lt_reply *j = s->replies; j != NULL; j = j->next) {
        lt_reply_fail(j, e);
    }
}

/* All replies have ended: wait a moment until the last bytes are sent. */
static void on_drained(evutil_socket_t fd, short what, void *arg) {
    lt_server *s = arg;
    const struct timeval moment = {.tv_usec = 100000};
    const int64_t n = count_requests(s);
    (void)fd;
    if ((what & EV_TIMEOUT) != 0 && n > 0) {
        lt_api_error e = {.status = 503, .type = "server_error"};
        lt_log_warn("serve: %lld requests did not finish within %g s and are cancelled",
                    (long long)n, s->o.drain_s);
        snprintf(e.message, sizeof e.message,
                 "the server is ending, and the request did not finish within %g s", s->o.drain_s);
        for (int i = 0; i < lt_server_count(s); i++) {
            fail_replies(lt_server_at(s, i), &e);
        }
        if (s->models != NULL) {
            lt_models_refuse_waiting(s->models, &e);
        }
    }
    event_base_loopexit(s->base, &moment);
}

void lt_server_ended(lt_server *s) {
    lt_server *front = lt_server_front(s);
    if (front->models != NULL) {
        lt_models_ended(front->models, s);
    }
    if (front->draining && count_requests(front) == 0) {
        event_active(front->on_drained, 0, 0);
    }
}

static void drain(lt_server *s) {
    const struct timeval deadline = lt_clock_span(s->o.drain_s);

    if (s->draining) {
        event_base_loopbreak(s->base); /* A second signal ends it at once. */
        return;
    }
    s->draining = true;
    lt_batches_stop(s->batches);
    lt_tunings_stop(s->tunings);
    if (!s->o.quiet) {
        lt_log_info("serve: ending: %lld requests may run for up to %g s",
                    (long long)count_requests(s), s->o.drain_s);
    }
    event_add(s->on_drained, &deadline);
    lt_server_ended(s);
}

/* If nohup made the process ignore SIGHUP, it stays ignored. */
static const int ending_signals[LT_SERVER_SIGNALS] = {SIGTERM, SIGINT, SIGHUP};

static bool is_ignored(int number) {
    struct sigaction now;
    return sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

static void on_signal(evutil_socket_t fd, short what, void *arg) {
    (void)fd;
    (void)what;
    drain(arg);
}

static void on_gone(void *ctx, lt_http_conn *c, void *user) {
    (void)ctx;
    (void)c;
    if (user != NULL) {
        ((lt_disconnect_listener *)user)->disconnected(user);
    }
}

/* ---- Open, run, close ---- */

/* A wrong default is an error at the start instead of one in every request. */
static lt_err read_preset(lt_server *s) {
    lt_api_error e = {0};
    lt_api_params a;
    if (s->o.defaults == NULL || s->o.defaults[0] == '\0') {
        return LT_OK;
    }
    s->preset = lt_body_parse(s->o.defaults, strlen(s->o.defaults), &e);
    lt_api_params_defaults(&a);
    if (s->preset == NULL || !lt_api_params_preset(&a, s->preset, &e)) {
        LT_FAIL(LT_ERR_ARG, "--defaults: %s", e.message);
    }
    return LT_OK;
}

static lt_err open_events(lt_server *s) {
    if (evthread_use_pthreads() != 0) {
        LT_FAIL(LT_ERR_OOM, "server: libevent was built without threads");
    }
    s->base = event_base_new();
    s->events = calloc(LT_SERVER_POLL_EVENTS, sizeof *s->events);
    if (s->base == NULL || s->events == NULL) {
        LT_FAIL(LT_ERR_OOM, "server");
    }
    s->on_loaded = event_new(s->base, -1, EV_PERSIST, on_loaded, s);
    s->on_drained = event_new(s->base, -1, 0, on_drained, s);
    if (s->on_loaded == NULL || s->on_drained == NULL) {
        LT_FAIL(LT_ERR_OOM, "server: events");
    }
    for (int i = 0; i < LT_SERVER_SIGNALS; i++) {
        s->on_signals[i] = evsignal_new(s->base, ending_signals[i], on_signal, s);
        if (s->on_signals[i] == NULL ||
            (!is_ignored(ending_signals[i]) && event_add(s->on_signals[i], NULL) != 0)) {
            LT_FAIL(LT_ERR_OOM, "server: events");
        }
    }
    /* While another thread still loads the model, requests are answered and the pool releases their
     * memory, so the pool is opened first. */
    s->n_pool_threads = pool_threads();
    return lt_worker_pool_open(&s->pool, s->base, s->n_pool_threads, MAX_POOLED);
}

/* Limit for all bodies that are being read; by default an eighth of the memory of this process, at
 * most 256 MiB. One body always fits. */
static size_t bodies_bytes(const lt_server *s) {
    const uint64_t most = (uint64_t)256 << 20;
    uint64_t bytes = (uint64_t)s->o.max_bodies_bytes;
    if (bytes == 0) {
        lt_limits l;
        lt_limits_read(&l);
        bytes = l.available_bytes / 8 < most ? l.available_bytes / 8 : most;
    }
    return (size_t)(bytes > (uint64_t)s->o.max_body_bytes ? bytes : (uint64_t)s->o.max_body_bytes);
}

/* Check that the models named for keys exist. */
static lt_err check_key_models(lt_server *s) {
    for (int k = 0; k < s->o.n_keys; k++) {
        const char *rest = s->o.key_models[k] != NULL ? s->o.key_models[k] : "";
        char name[256];
        while (lt_server_next_alias(&rest, name, sizeof name)) {
            int i = 0;
            while (i < lt_server_count(s) && !lt_server_is_named(lt_server_at(s, i), name)) {
                i++;
            }
            if (i == lt_server_count(s)) {
                LT_FAIL(LT_ERR_ARG, "API key %d is for the model '%s', which is not served", k + 1,
                        name);
            }
        }
    }
    return LT_OK;
}

/* Only one server may write to a folder. option: its name in messages. */
static lt_err lock_folder(int *lock, const char *folder, const char *option) {
    char path[LT_PATH_BYTES];
    LT_TRY(lt_file_make_dirs(folder));
    LT_TRY(lt_path_join(path, folder, "lock"));
    *lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (*lock < 0 || flock(*lock, LOCK_EX | LOCK_NB) != 0) {
        LT_FAIL(LT_ERR_STATE, "%s %s: %s", option, folder,
                errno == EWOULDBLOCK ? "another server uses it" : strerror(errno));
    }
    return LT_OK;
}

/* Files and batches of earlier runs. Without a folder of their own they are in that of fine-tuning,
 * which needs files. */
static lt_err open_state(lt_server *s) {
    const char *tuning = s->o.tuning.dir;
    if (s->o.state == NULL || s->o.state[0] == '\0') {
        s->o.state = tuning;
    }
    if (s->o.state[0] == '\0') {
        return LT_OK;
    }
    LT_TRY(lock_folder(&s->state_lock, s->o.state, "--state"));
    if (tuning[0] != '\0' && strcmp(tuning, s->o.state) != 0) {
        LT_TRY(lock_folder(&s->tuning_lock, tuning, "--fine-tuning"));
    }
    LT_TRY(lt_files_open(&s->files, &(lt_files_options){.dir = s->o.state,
                                                        .max_files = s->o.max_files,
                                                        .max_bytes = s->o.max_files_bytes}));
    LT_TRY(lt_uploads_open(&s->uploads, &(lt_uploads_options){.dir = s->o.state,
                                                              .files = s->files,
                                                              .max_uploads = s->o.max_files,
                                                              .max_bytes = s->o.max_files_bytes,
                                                              .pending_s = s->o.upload_s}));
    return lt_batches_open(&s->batches, s);
}

lt_err lt_server_open(lt_server **out, const lt_server_options *options) {
    lt_err err = LT_OK;
    lt_server *s = calloc(1, sizeof *s);
    uint64_t first_id = 0;
    lt_http_options h;

    if (s == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "server");
    }
    s->o = *options;
    s->state_lock = s->tuning_lock = -1;
    s->started_s = lt_clock_s();
    s->created = (int64_t)lt_clock_unix_s();
    if (getrandom(&first_id, sizeof first_id, 0) != (ssize_t)sizeof first_id) {
        first_id = lt_clock_ns();
    }
    atomic_init(&s->next_id, first_id);
    if (getrandom(&s->salt_seed, sizeof s->salt_seed, 0) != (ssize_t)sizeof s->salt_seed) {
        s->salt_seed = lt_rng_mix(first_id);
    }
    lt_server_name_it(s);
    lt_metrics_init(&s->metrics);
    LT_TRY_DONE(lt_access_check_options(&s->o));
    LT_TRY_DONE(read_preset(s));
    LT_TRY_DONE(open_events(s));
    LT_TRY_DONE(lt_store_open(&s->store, &s->o.store));
    LT_TRY_DONE(lt_seal_key_make(&s->seal, ""));
    LT_TRY_DONE(open_state(s));
    LT_TRY_DONE(s->o.models != NULL ? lt_models_open(&s->models, s) : LT_OK);
    LT_TRY_DONE(check_key_models(s));
    LT_TRY_DONE(lt_adapter_set_open(&s->adapters, s));
    LT_TRY_DONE(lt_tunings_open(&s->tunings, s));
    signal(SIGPIPE, SIG_IGN);
    if (s->o.tls_cert[0] != '\0') {
        LT_TRY_DONE(lt_tls_open(&s->tls, s->base, s->o.tls_cert, s->o.tls_key));
    }
    h = (lt_http_options){.host = s->o.host,
                          .port = s->o.port,
                          .tls = s->tls,
                          .max_connections = (int)s->o.max_connections,
                          .max_head_bytes = (size_t)s->o.max_head_bytes,
                          .max_body_bytes = (size_t)s->o.max_body_bytes,
                          .max_bodies_bytes = bodies_bytes(s),
                          .max_pending_bytes = (size_t)s->o.max_pending_bytes,
                          .request_s = s->o.request_s,
                          .idle_s = s->o.idle_s,
                          .write_s = s->o.write_s,
                          .ctx = s,
                          .on_head = lt_route_head,
                          .on_request = lt_route_request,
                          .on_gone = on_gone,
                          .on_bad = lt_route_bad};
    LT_TRY_DONE(lt_http_open(&s->http, s->base, &h));
    *out = s;
    s = NULL;
done:
    lt_server_close(s);
    return err;
}

/* ---- Requests of this process ---- */

typedef struct {
    lt_http_conn *conn;
    lt_server_answered *answered;
    void *ctx;
} own_request;

static void own_answered(void *ctx, int status, const char *extra, const void *body, size_t n) {
    own_request *r = ctx;
    (void)extra;
    r->answered(r->ctx, status, body, n);
    lt_http_inner_close(r->conn);
    free(r);
}

lt_err lt_server_post(lt_server *s, const char *path, char *body, size_t n,
                      lt_server_answered *answered, void *ctx) {
    own_request *r = calloc(1, sizeof *r);
    if (r == NULL) {
        free(body);
        LT_FAIL(LT_ERR_OOM, "%s: a request of %zu bytes", path, n);
    }
    *r = (own_request){.answered = answered, .ctx = ctx};
    r->conn = lt_http_inner_open(s->http, body, n, own_answered, r);
    if (r->conn == NULL) {
        free(r);
        LT_FAIL(LT_ERR_OOM, "%s: a request of %zu bytes", path, n);
    }
    lt_route_inner(s, r->conn, path, "", false);
    return LT_OK;
}

bool lt_server_is_ending(const lt_server *s) {
    return s->draining;
}

int lt_server_port(const lt_server *s) {
    return lt_http_port(s->http);
}

void lt_server_url(const lt_server *s, char *out, size_t n) {
    const bool bare = strchr(s->o.host, ':') != NULL && s->o.host[0] != '[';
    snprintf(out, n, "http%s://%s%s%s:%d", s->tls != NULL ? "s" : "", bare ? "[" : "", s->o.host,
             bare ? "]" : "", lt_http_port(s->http));
}

lt_err lt_server_run(lt_server *s) {
    pthread_t loader;
    if (s->models != NULL) {
        atomic_store(&s->state, LT_SERVER_READY); /* Each model has its own state. */
        lt_models_begin(s->models);
        event_base_dispatch(s->base);
    } else if (pthread_create(&loader, NULL, load_thread, s) != 0) {
        LT_FAIL(LT_ERR_OOM, "server: cannot start the thread that loads the model");
    } else {
        event_base_dispatch(s->base);
        pthread_join(loader, NULL);
    }
    if (atomic_load(&s->state) == LT_SERVER_FAILED) {
        LT_FAIL(LT_ERR_STATE, "%s", s->why_failed);
    }
    return LT_OK;
}

void lt_server_stop(lt_server *s) {
    event_active(s->on_signals[0], EV_SIGNAL, 1);
}

static void free_replies(lt_server *s) {
    while (s->replies != NULL) {
        lt_reply_free(s->replies);
    }
}

void lt_server_close(lt_server *s) {
    if (s == NULL) {
        return;
    }
    lt_batches_stop(s->batches);
    lt_tunings_stop(s->tunings);
    lt_http_close(s->http); /* Every open answer is told that its client has gone. */
    lt_tls_close(s->tls);
    lt_worker_pool_stop(s->pool);
    lt_models_stop(s->models);
    lt_server_stop_model(s);
    s->draining = false;
    for (int i = 0; i < lt_server_count(s); i++) {
        free_replies(lt_server_at(s, i));
    }
    lt_models_close(s->models);
    lt_server_close_model(s);
    for (int i = 0; i < LT_SERVER_SIGNALS; i++) {
        if (s->on_signals[i] != NULL) {
            event_free(s->on_signals[i]);
        }
    }
    struct event *const events[] = {s->on_loaded, s->on_drained};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++) {
        if (events[i] != NULL) {
            event_free(events[i]);
        }
    }
    lt_tunings_close(s->tunings);
    lt_adapter_set_close(s->adapters);
    lt_worker_pool_close(s->pool);
    lt_store_close(s->store);
    lt_batches_close(s->batches);
    lt_uploads_close(s->uploads);
    lt_files_close(s->files);
    if (s->state_lock >= 0) {
        close(s->state_lock);
    }
    if (s->tuning_lock >= 0) {
        close(s->tuning_lock);
    }
    if (s->base != NULL) {
        event_base_free(s->base);
    }
    lt_out_free(&s->line);
    json_decref(s->preset);
    free(s->events);
    free(s);
}
