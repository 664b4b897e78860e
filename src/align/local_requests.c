/* local_requests.c: see local_requests.h. */
#include "align/local_requests.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "serve/api/api.h"

typedef struct {
    const lt_local_requests *a;
    lt_server *server;
    int64_t n_flights;
    bool all;      /* There are no further questions. */
    bool starting; /* start_more is running: answers that arrive meanwhile do not call it. */
    lt_failure failure;
} asking;

typedef struct {
    asking *of;
    int64_t question;
} flight;

static void stop(asking *s, lt_err err) {
    if (s->failure.err == LT_OK) {
        lt_failure_keep(&s->failure, err);
    }
    lt_server_stop(s->server);
}

static void start_more(asking *s);

static lt_err refused(const asking *s, int64_t question, const json_t *answer) {
    const json_t *error = json_object_get(answer, "error");
    const char *why = json_string_value(json_object_get(error, "message"));
    char name[200];
    s->a->name(s->a->ctx, question, name, sizeof name);
    return lt_error_set(LT_ERR_ARG, "%s: %s", name, why != NULL ? why : "no answer");
}

static void answered(void *ctx, int status, const char *body, size_t n) {
    flight *f = ctx;
    asking *s = f->of;
    const int64_t question = f->question;
    const bool ending = lt_server_is_ending(s->server);
    json_t *answer = lt_json_loadb(body, n, JSON_ALLOW_NUL, NULL);
    lt_err err = LT_OK;

    free(f);
    s->n_flights--;
    if (status == 200 && s->failure.err == LT_OK) {
        err = s->a->take(s->a->ctx, question, answer);
    } else if (status != 200 && !(status == 503 && ending)) { /* 503: it was stopped. */
        err = refused(s, question, answer);
    }
    json_decref(answer);
    if (err != LT_OK) {
        stop(s, err);
    }
    if (!s->starting) {
        start_more(s);
    }
}

static void start_one(asking *s, int64_t question) {
    flight *f = malloc(sizeof *f);
    char *body = s->a->body(s->a->ctx, question);
    lt_err err;

    if (f == NULL || body == NULL) {
        free(f);
        free(body);
        stop(s, lt_error_set(LT_ERR_OOM, "a request"));
        return;
    }
    *f = (flight){s, question};
    s->n_flights++;
    err = lt_server_post(s->server, s->a->path, body, strlen(body), answered, f);
    if (err != LT_OK) {
        free(f);
        s->n_flights--;
        stop(s, err);
    }
}

/* As many requests at a time as the engine runs sequences; their other candidates wait in its
 * queue. */
static void start_more(asking *s) {
    s->starting = true;
    while (!s->all && s->n_flights < s->a->max_running && s->failure.err == LT_OK &&
           !lt_server_is_ending(s->server)) {
        const int64_t question = s->a->next(s->a->ctx);
        s->all = question < 0;
        if (!s->all) {
            start_one(s, question);
        }
    }
    s->starting = false;
    if (s->n_flights == 0 && !lt_server_is_ending(s->server)) {
        lt_server_stop(s->server);
    }
}

static void ready(void *ctx, lt_server *s) {
    (void)s;
    start_more(ctx);
}

static lt_err load(void *ctx, lt_model **model, lt_tokenizer **tokenizer) {
    const asking *s = ctx;
    return s->a->load(s->a->ctx, model, tokenizer);
}

static lt_err load_reward(void *ctx, lt_model **model, lt_tokenizer **tokenizer) {
    const asking *s = ctx;
    return s->a->load_reward(s->a->ctx, model, tokenizer);
}

lt_err lt_local_requests_run(const lt_local_requests *a) {
    asking s = {.a = a};
    lt_server_options o = lt_server_defaults();
    lt_err err = LT_OK;

    o.host = NULL;
    o.model = a->model;
    o.load = load;
    o.load_reward = a->load_reward != NULL ? load_reward : NULL;
    o.reward = a->reward;
    o.engine.beside = a->beside;
    o.engine.n_beside = a->n_beside;
    o.engine.speculate = a->speculate;
    o.engine.draft = a->draft;
    o.second = a->second;
    o.ready = ready;
    o.ctx = &s;
    o.quiet = true;
    o.own_defaults = false;
    o.engine.deterministic = a->deterministic;
    o.engine.max_running = a->max_running;
    o.engine.max_waiting = 1 << 16; /* A request has at most 128 candidates. */
    LT_TRY_DONE(lt_server_open(&s.server, &o));
    LT_TRY_DONE(lt_server_run(s.server));
    if (s.failure.err != LT_OK) {
        err = lt_failure_raise(&s.failure);
    } else if (!s.all || s.n_flights > 0) {
        LT_FAIL_DONE(LT_ERR_INTERRUPTED, "stopped before all requests were answered");
    }
done:
    lt_server_close(s.server);
    return err;
}
