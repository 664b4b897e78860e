/* models.h: several models in one server. Each has a separate struct lt_server, which shares loop,
 * connections, worker pool, store and files with the server that listens (its front); the first
 * model's is the front itself. A request's body names the model (route.c); a call whose model is
 * not loaded waits here.
 *
 *   UNLOADED ──a call, or preload──▶ LOADING ──▶ LOADED ──room for another, or idle──▶ UNLOADING
 *       ▲                               └──▶ FAILED: calls get the reason until retry_s      │
 *       └────────────────────────────────────────────────────────────────────────────────────┘
 *
 * MEMORY    A model counts with its weights and its cache; before its first loading, with the bytes
 *           of its files and, where there is a budget, the largest cache that it may get. Where the
 *           models together would exceed the budget, those that have been idle longest are unloaded
 *           first. If all are busy, new calls to the one used least recently wait until it is idle,
 *           so that a busy model cannot keep another one out.
 * THREADS   All functions run on the loop's thread. One thread at a time loads and unloads, one
 *           model after the other; a loaded model's engine has its own.
 * FAILURE   A model that cannot be loaded is tried again by the first call after 5 s, doubled with
 *           each failure up to 5 minutes. */
#ifndef LT_SERVE_MODELS_H
#define LT_SERVE_MODELS_H

#include "serve/api/server.h"
#include "serve/fifo.h"

typedef struct lt_models lt_models;

typedef enum {
    LT_MODEL_UNLOADED,
    LT_MODEL_LOADING,
    LT_MODEL_LOADED,
    LT_MODEL_UNLOADING,
    LT_MODEL_FAILED
} lt_model_state;

/* One of the models, with the fields that other files may read. */
typedef struct lt_model_slot {
    lt_server *server;
    const lt_server_model *options;
    lt_model_state state;
    bool leaving; /* New calls wait, because other models need its memory. */
    bool wanted;  /* It is loaded without a call. */
    bool must;    /* The server ends if it cannot be loaded. */
    lt_fifo waiting;
    int64_t n_waiting, n_held; /* n_held: calls that use it on the worker pool. */
    uint64_t asked;            /* Order in which models wait to be loaded. */
    double used_s;             /* When its last call began or ended. */
    double keep_s;             /* Time without a call until it is unloaded; < 0: it stays. */
    int64_t bytes;             /* Known from loading it, or estimated. */
    char why[320];             /* FAILED */
    double retry_s;
    int n_failures;
    uint64_t n_loads, n_unloads;
} lt_model_slot;

/* A call that waits for its model. */
typedef struct lt_models_call {
    lt_fifo_link link;
    /* Called when the model is loaded (e NULL), or when the call cannot be answered. */
    void (*told)(struct lt_models_call *w, const lt_api_error *e);
} lt_models_call;

/* The front's options name the models. Fails if two have the same name, or a path does not
 * exist. */
LT_MUST_USE lt_err lt_models_open(lt_models **out, lt_server *front);
void lt_models_begin(lt_models *m); /* Load the models that are to be loaded at the start. */
/* End the loading thread and the engines, so that replies may be freed. Accepts NULL. */
void lt_models_stop(lt_models *m);
void lt_models_close(lt_models *m); /* Accepts NULL. */

int lt_models_count(const lt_models *m);
lt_model_slot *lt_models_at(const lt_models *m, int i);
/* Find it by name or alias; NULL: there is none. */
lt_model_slot *lt_models_find(const lt_models *m, const char *name);
/* Whether a model that is loaded at the start is not yet loaded. */
bool lt_models_starting(const lt_models *m);
int64_t lt_models_replies(const lt_models *m); /* Number of answers in progress, of all models. */

/* Whether a call of this model may begin now; its time of use is recorded. */
bool lt_models_ready(lt_model_slot *slot);
/* Make the call wait. False: it cannot, and e says why. */
bool lt_models_wait(lt_models *m, lt_model_slot *slot, lt_models_call *w, lt_api_error *e);
/* The client of a waiting call has gone. False: the call no longer waits. */
bool lt_models_give_up(lt_models *m, lt_models_call *w);
/* Answer every waiting call with e. */
void lt_models_refuse_waiting(lt_models *m, const lt_api_error *e);
/* Between these two, a call uses the model on the worker pool. */
void lt_models_hold(lt_model_slot *slot);
void lt_models_release(lt_models *m, lt_model_slot *slot);
/* An answer of the server's model has ended. */
void lt_models_ended(lt_models *m, lt_server *s);

/* Load it, or unload it once it is idle. Both only begin the work. */
void lt_models_load(lt_models *m, lt_model_slot *slot);
void lt_models_unload(lt_models *m, lt_model_slot *slot);
/* When it is unloaded if no call comes, in Unix seconds; < 0: never. */
double lt_model_slot_expires(const lt_model_slot *slot);

#endif
