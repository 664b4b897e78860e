/* aside.c: see aside.h.
 *
 *   small ─────────────────────▶ read on the loop ─┐
 *   large ─▶ read on the pool ─────────────────────┴▶ model loaded? ─▶ handler: small on the loop,
 *                                                        └─ waits ──▶           large on the pool
 *
 * With one model, a large call is read and handled on the pool in one go. */
#include "serve/api/aside.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "serve/api/access.h"
#include "serve/api/listing.h"
#include "serve/api/models.h"
#include "serve/api/formats/ollama.h"
#include "serve/api/reply.h"
#include "serve/api/route.h"

/* A call that outlives its event; it is answered, or its reply started, on the loop. */
typedef struct {
    lt_pool_job job;
    lt_models_call wait;
    lt_disconnect_listener listener;
    lt_call call;
    /* Without the connection's texts, which may be freed while the call waits. */
    lt_http_request request;
    lt_outcome outcome;
    char tail[64], query[128]; /* The parts of the request's texts that handlers of forms read. */
    char *text;                /* Text of the body. */
    lt_aside_how how;
    lt_model_slot *slot; /* Server of its model, once that was chosen among several. */
    bool by_model;       /* The model is chosen after the body was read. */
    bool large;
    bool waits; /* It waits for its model. */
    bool gone;  /* The client has gone. */
} aside;

static void aside_free(aside *a) {
    lt_server *front = lt_server_front(a->call.server);
    const size_t bytes = a->request.body_bytes;
    lt_out_free(&a->outcome.body);
    lt_body_free(a->call.body);
    free(a->text);
    free(a);
    lt_worker_pool_give_back(front->pool, bytes);
    front->n_pooled--;
    lt_server_ended(front);
}

/* ---- On the worker pool ---- */

/* Read the body; false: out of memory, and the outcome says so. */
static bool read_body(aside *a) {
    a->call.body = lt_body_open(a->call.server->pool, a->text, a->request.body_bytes);
    free(a->text);
    a->text = NULL;
    if (a->call.body == NULL) {
        const lt_api_error e = {.status = 503, .type = "server_error", .message = "out of memory"};
        lt_call_error(&a->call, &e);
    }
    return a->call.body != NULL;
}

static void work(lt_pool_job *job) {
    aside *a = (aside *)job;
    a->call.request = &a->request;
    a->call.outcome = &a->outcome;
    if (a->how.form) {
        a->request.body = a->text != NULL ? a->text : "";
    } else if (a->call.body == NULL && !read_body(a)) {
        return;
    }
    if (!a->by_model || a->slot != NULL) {
        a->how.handler(&a->call);
        lt_body_free(a->call.body); /* If the handler did not use it. */
        a->call.body = NULL;
    }
}

/* ---- On the loop ---- */

/* Answer it with e. */
static void refuse(aside *a, const lt_api_error *e) {
    lt_http_set_user(a->call.conn, NULL);
    lt_http_release_body(a->call.conn);
    a->call.request = &a->request;
    lt_call_error(&a->call, e);
    aside_free(a);
}

static void to_pool(aside *a) {
    lt_server *front = lt_server_front(a->call.server);
    const lt_err err = lt_worker_pool_submit(front->pool, &a->job);
    lt_api_error e;
    if (err == LT_OK) {
        return;
    }
    front->metrics.refused += !a->call.background;
    lt_api_refuse_error(&e, NULL, err);
    if (a->slot != NULL) {
        lt_models_release(front->models, a->slot);
    }
    refuse(a, &e);
}

/* ---- One of several models ---- */

static bool is_reward(const lt_server *front, const char *name) {
    return lt_server_has_model(front) && front->reward != NULL &&
           strcmp(front->reward->name, name) == 0;
}

/* The model with this name; NULL: e says why the call may not use it. */
static lt_model_slot *choose(const lt_call *call, const char *name, lt_api_error *e) {
    const lt_server *front = call->server;
    lt_model_slot *slot = lt_models_at(front->models, 0);

    if (name != NULL && name[0] != '\0') {
        lt_model_slot *named = lt_models_find(front->models, name);
        if (named == NULL && call->flavour == LT_FLAVOUR_OLLAMA) {
            named = lt_ollama_find(front->models, name);
        }
        if (named == NULL && is_reward(front, name)) {
            named = slot; /* The reward model belongs to the first model's server. */
        }
        if (named == NULL && !front->o.any_model) {
            lt_server_refuse_model(front, call->owner, name, e);
            return NULL;
        }
        slot = named != NULL ? named : slot;
    } else if (call->flavour == LT_FLAVOUR_OLLAMA) {
        lt_api_refuse(e, "model", "model is required");
        return NULL;
    }
    return lt_access_check_model(slot->server, call->owner, e) ? slot : NULL;
}

static lt_model_slot *choose_by_body(const lt_call *call, lt_api_error *e) {
    const json_t *root = call->body->root;
    const char *name = json_string_value(json_object_get(root, "model"));
    if (root == NULL) {
        *e = call->body->error;
        return NULL;
    }
    if (name == NULL && call->flavour == LT_FLAVOUR_OLLAMA) {
        name = json_string_value(json_object_get(root, "name"));
    }
    return choose(call, name, e);
}

/* Apply the request's keep_alive (Ollama). False: the call was answered, or e says what is wrong.
 * handler: the call's; NULL: one that needs the text, as large calls do. */
static bool keep_as_asked(lt_call *call, void (*handler)(lt_call *call), lt_model_slot *slot,
                          lt_api_error *e) {
    const json_t *root = call->body->root;
    const json_t *asked = json_object_get(root, "keep_alive");
    double keep_s = slot->keep_s;

    if (call->flavour != LT_FLAVOUR_OLLAMA || asked == NULL || json_is_null(asked)) {
        return true;
    }
    if (!lt_ollama_keep_alive(asked, &keep_s, e)) {
        return false;
    }
    if (keep_s == 0 && lt_ollama_asks_nothing(handler, root)) {
        lt_models_unload(call->server->models, slot);
        lt_ollama_answer_loaded(call, json_string_value(json_object_get(root, "model")),
                                handler == lt_api_ollama_chat, "unload");
        return false;
    }
    slot->keep_s = keep_s;
    return true;
}

/* The model is loaded: call the handler. */
static void handle(aside *a) {
    a->call.server = a->slot->server;
    if (a->large) {
        lt_models_hold(a->slot);
        to_pool(a);
        return;
    }
    lt_http_set_user(a->call.conn, NULL);
    lt_http_release_body(a->call.conn);
    a->call.request = &a->request;
    a->how.handler(&a->call);
    aside_free(a);
}

static void told(lt_models_call *w, const lt_api_error *e) {
    aside *a = (aside *)((char *)w - offsetof(aside, wait));
    a->waits = false;
    if (e != NULL) {
        refuse(a, e);
    } else {
        handle(a);
    }
}

/* The body of a large call has been read, or the model of a small one is not loaded. */
static void begin(aside *a) {
    lt_models *m = a->call.server->models;
    lt_api_error e;

    if (a->slot == NULL) {
        a->slot = choose_by_body(&a->call, &e);
    }
    if (a->slot == NULL || (a->large && !keep_as_asked(&a->call, NULL, a->slot, &e))) {
        refuse(a, &e);
    } else if (lt_models_ready(a->slot)) {
        handle(a);
    } else {
        a->wait.told = told;
        a->waits = lt_models_wait(m, a->slot, &a->wait, &e);
        if (!a->waits) {
            refuse(a, &e);
        }
    }
}

/* ---- Calls begin and end ---- */

/* Send the answer that the handler has made on the pool. */
static void end(aside *a) {
    lt_outcome *o = &a->outcome;
    if (a->gone && o->reply != NULL) {
        lt_reply_free(o->reply);
    } else if (!a->gone) {
        lt_http_set_user(a->call.conn, NULL);
        lt_http_release_body(a->call.conn);
        if (o->reply != NULL) {
            lt_reply_start(&a->call, o->reply);
        } else {
            lt_server_front(a->call.server)->metrics.http_errors += o->error && !a->call.background;
            lt_call_json(&a->call, o->status, &o->body);
        }
    }
    if (a->slot != NULL) {
        lt_models_release(lt_server_front(a->call.server)->models, a->slot);
    }
    aside_free(a);
}

static void done(lt_pool_job *job) {
    aside *a = (aside *)job;
    a->call.outcome = NULL;
    if (a->by_model && a->slot == NULL && a->outcome.status == 0 && !a->gone) {
        begin(a);
    } else {
        end(a);
    }
}

static void gone(lt_disconnect_listener *listener) {
    aside *a = (aside *)((char *)listener - offsetof(aside, listener));
    lt_server *front = lt_server_front(a->call.server);
    const bool held = a->slot != NULL && !a->waits;
    a->gone = true;
    if (a->waits ? lt_models_give_up(front->models, &a->wait)
                 : lt_worker_pool_cancel(front->pool, &a->job)) {
        if (held) {
            lt_models_release(front->models, a->slot);
        }
        aside_free(a);
    }
}

/* Detach the call from its event. NULL: it was answered. */
static aside *take_over(lt_call *call, const lt_aside_how *how) {
    lt_server *s = call->server;
    const size_t bytes = call->request->body_bytes;
    aside *a = calloc(1, sizeof *a);
    lt_api_error e;

    if (a == NULL) {
        lt_api_refuse_oom(&e);
        lt_call_error(call, &e);
        return NULL;
    }
    *a = (aside){.job = {.bytes = bytes, .work = work, .done = done},
                 .listener = {gone},
                 .call = *call,
                 .request = {"POST", "", "", "", bytes, NULL},
                 .text = lt_http_take_body(call->conn),
                 .how = *how};
    snprintf(a->tail, sizeof a->tail, "%s", call->tail);
    snprintf(a->query, sizeof a->query, "%s", call->request->query);
    a->call.tail = a->tail;
    a->request.query = a->query;
    lt_server_front(s)->n_pooled++;
    lt_http_set_user(call->conn, &a->listener);
    return a;
}

void lt_aside(lt_call *call, const lt_aside_how *how) {
    aside *a = take_over(call, how);
    if (a != NULL) {
        to_pool(a);
    }
}

/* A call without a body does not load a model. */
static void handle_query(lt_call *call, const lt_aside_how *how) {
    char name[256];
    lt_api_error e;
    lt_model_slot *slot;

    (void)lt_query_value(call->request->query, "model", name, sizeof name);
    slot = choose(call, name, &e);
    if (slot == NULL || !lt_models_ready(slot)) {
        if (slot != NULL) {
            e = (lt_api_error){.status = 503, .type = "unavailable_error", .code = "not_loaded"};
            snprintf(e.message, sizeof e.message, "the model '%.100s' is not loaded",
                     slot->server->name);
        }
        lt_call_error(call, &e);
        return;
    }
    call->server = slot->server;
    how->handler(call);
}

static void wait_for(lt_call *call, const lt_aside_how *how, lt_model_slot *slot) {
    aside *a = take_over(call, how);
    if (a == NULL) {
        lt_body_free(call->body);
        return;
    }
    free(a->text); /* The text has been parsed. */
    a->text = NULL;
    a->by_model = true;
    a->slot = slot;
    begin(a);
}

static void handle_small(lt_call *call, const lt_aside_how *how) {
    lt_server *front = call->server;
    const size_t bytes = call->request->body_bytes;
    lt_api_error e = {0};
    lt_model_slot *slot = NULL;

    call->body = lt_body_open(front->pool, call->request->body, bytes);
    if (call->body == NULL) {
        lt_api_refuse_oom(&e);
    } else {
        slot = choose_by_body(call, &e);
    }
    if (slot == NULL || !keep_as_asked(call, how->handler, slot, &e)) {
        if (e.status != 0) {
            lt_call_error(call, &e);
        }
        lt_body_free(call->body);
    } else if (lt_models_ready(slot)) {
        call->server = slot->server;
        how->handler(call);
        lt_body_free(call->body); /* If the handler did not use it. */
        lt_worker_pool_give_back(front->pool, bytes);
    } else {
        wait_for(call, how, slot);
    }
}

void lt_aside_by_model(lt_call *call, const lt_aside_how *how, bool large) {
    aside *a;
    if (call->request->method[0] != 'P') {
        handle_query(call, how);
    } else if (!large) {
        handle_small(call, how);
    } else if ((a = take_over(call, how)) != NULL) {
        a->by_model = a->large = true;
        to_pool(a);
    }
}
