/* server.h: the common base of all endpoints: the served model, the call being answered, the
 * metrics.
 *
 * One thread runs libevent's loop and everything in this room except the engine: HTTP, JSON,
 * templates, tokenization. For large requests, the last three run on the worker pool
 * (worker_pool.h). The engine's thread wakes the loop through a file descriptor. Another thread
 * opens the model, so that /health can answer "loading" from the first millisecond. */
#ifndef LT_SERVE_SERVER_H
#define LT_SERVE_SERVER_H

#include <event2/event.h>
#include <stdatomic.h>

#include "base/file.h"
#include "data/chat_template.h"
#include "data/steps.h"
#include "lateen/serve.h"
#include "lateen/tokenizer.h"
#include "model/files/source.h"
#include "serve/api/api.h"
#include "serve/api/worker_pool.h"
#include "serve/api/api_params.h"
#include "serve/api/compile.h"
#include "serve/http/http.h"
#include "serve/api/metrics.h"
#include "serve/parse.h"
#include "serve/api/stored/seal.h"
#include "serve/api/stored/store.h"

typedef struct lt_reply lt_reply;

/* The API of the client, which determines the format of errors. */
typedef enum {
    LT_FLAVOUR_OPENAI,
    LT_FLAVOUR_ANTHROPIC,
    LT_FLAVOUR_LLAMA,
    LT_FLAVOUR_OLLAMA
} lt_flavour;

typedef enum { LT_SERVER_LOADING, LT_SERVER_READY, LT_SERVER_FAILED } lt_server_state;

#define LT_SERVER_SIGNALS 3 /* Signals that end a server: SIGTERM, SIGINT, SIGHUP. */

struct lt_server {
    lt_server_options o;
    /* With several models: models.h. The front is the server that listens, and owns `models`. */
    struct lt_models *models;
    struct lt_model_slot *slot; /* The slot of this server; NULL: there is one model. */
    struct lt_server *front;    /* The server that listens; NULL: this one. */
    struct event_base *base;
    lt_http *http;
    struct lt_tls *tls; /* NULL: without TLS. */
    struct event *on_engine, *on_loaded, *on_drained, *on_signals[LT_SERVER_SIGNALS];

    /* Set by the loading thread before state becomes READY; read-only afterwards. */
    _Atomic lt_server_state state;
    char why_failed[512];
    lt_model *model;
    lt_tokenizer *tokenizer;
    lt_tokenizer_info vocabulary;
    lt_chat_template *template;
    /* "option", "model", "tokens" (recognised by its tokens), or "none". */
    const char *template_source;
    lt_parse_marks marks; /* Marks of the template. */
    char part_gap[16];    /* What stands between two parts of a content: see open_model.c. */
    lt_ends ends;         /* Tokens that end an answer. */
    lt_engine *engine;
    bool last_pooling;        /* Embeddings are those of the last token (1_Pooling/config.json). */
    lt_steps steps;           /* For a process reward model, what follows a step. */
    json_t *labels;           /* id2label of a model with a score head; NULL: none. */
    char name[256];           /* As reported by /v1/models. */
    int64_t context;          /* Most tokens of one sequence. */
    size_t most_prompt_bytes; /* A longer text cannot fit in the context. */
    /* Seconds from the start until ready; until the model and its tokenizer were loaded. */
    double load_s, model_s;

    /* A reward model beside the served one, which judges texts; NULL: none. Only the fields above,
     * its scratch, its engine's event and its own address are set: it answers no requests. */
    struct lt_server *reward;
    struct lt_adapter_set *adapters; /* adapters.h; NULL: requests cannot choose any. */

    /* For the loop's thread; for the others. */
    lt_tokenizer_scratch *scratch, *scratch_pool[LT_WORKER_POOL_THREADS];
    lt_compiler *compiler;
    lt_worker_pool *pool;
    int n_pool_threads;
    int64_t n_pooled;           /* Number of calls in it. */
    lt_store *store;            /* Stored responses and threads that clients may refer to. */
    int state_lock;             /* Descriptor of the folder of state; -1: there is none. */
    struct lt_files *files;     /* files.h; NULL: the server has no folder of state. */
    struct lt_uploads *uploads; /* uploads.h; NULL likewise. */
    struct lt_batches *batches; /* batch.h; NULL likewise. */
    struct lt_tunings *tunings; /* tuning.h; NULL: there are no fine-tuning jobs. */
    int tuning_lock;            /* As state_lock, for another folder of jobs. */
    lt_seal_key seal;           /* Key for callers without an API key. */
    int64_t created;            /* Unix seconds. */
    atomic_uint_fast64_t next_id;
    uint64_t salt_seed; /* Seed of lt_server_cache_salt. */
    double started_s;
    lt_reply *replies; /* All that are not yet freed. */
    int64_t n_replies;
    bool draining;
    /* Type of the weights in its files, "Q4_K_M"; "": not known. */
    char weights_type[LT_SOURCE_TYPE_BYTES];
    json_t *own;    /* Defaults of the model's generation_config.json; set by the loading thread. */
    json_t *preset; /* --defaults: fields for requests that do not name them; NULL: none. */
    lt_metrics metrics;
    lt_event *events; /* Of one poll. */
    lt_json_out line; /* An event of a stream that is being sent. */
};

/* The user data of a connection (lt_http_set_user): a part of whatever answers on it. It is called
 * when the client disconnects. */
typedef struct lt_disconnect_listener {
    void (*disconnected)(struct lt_disconnect_listener *listener);
} lt_disconnect_listener;

/* What the loop must do after a handler has run on the worker pool. */
typedef struct {
    int status; /* With the body: send it as the answer; 0: no. */
    lt_json_out body;
    bool error;
    lt_reply *reply; /* To be started. */
} lt_outcome;

/* A request while its handler runs: on the loop or, if it is large, on the worker pool. */
typedef struct {
    lt_server *server;
    lt_http_conn *conn;
    const lt_http_request *request;
    const char *tail; /* The path after the route's prefix; "" for exact routes. */
    lt_flavour flavour;
    const char *owner; /* The API key of the call; "": none is required. */
    char id[48];       /* The request's id; the answer's id is a prefix followed by this. */
    char extra[512];   /* Header lines of every answer: the request's id, CORS. */
    bool background;   /* lt_request.background. */
    double arrived_s;
    lt_body *body;       /* Already parsed; NULL: request->body has to be read. */
    lt_outcome *outcome; /* The handler runs on the worker pool; NULL: on the loop. */
} lt_call;

/* Read the body by the table of fields: lt_api_params_read. */
bool lt_call_read(lt_call *call, lt_api_params *a, const lt_field *rows, size_t n_rows,
                  lt_api_error *e);

/* ---- Complete answers ---- */

void lt_call_json(lt_call *call, int status, lt_json_out *body);
/* Answer {"success": true}, as llama-server does if there is nothing else to report. */
void lt_call_success(lt_call *call);
void lt_call_error(lt_call *call, const lt_api_error *e);
/* Append the error object in the flavour's format to o. extra: the answer's header lines, the first
 * of which has the request's id. */
void lt_error_write(lt_json_out *o, lt_flavour flavour, const char *extra, const lt_api_error *e);
/* The HTTP status that the API's clients expect. */
int lt_error_status(lt_flavour flavour, const lt_api_error *e);

/* ---- What several endpoints need ---- */

/* The server that listens. */
static inline lt_server *lt_server_front(lt_server *s) {
    return s->front != NULL ? s->front : s;
}
/* The path of the model's files, for which o.model may be an address. Valid after loading. */
const char *lt_server_files(const lt_server *s);
/* The same at any time: before loading, the path to which an earlier program fetched them. "": they
 * are not here. */
void lt_server_find_files(const lt_server *s, char out[LT_PATH_BYTES]);
/* Size of those with weights; 0: they are not here. */
int64_t lt_server_weights_bytes(const lt_server *s);
/* Whether its model may be used and described. */
bool lt_server_has_model(const lt_server *s);
/* Number of servers of all models; the front is the first. */
int lt_server_count(const lt_server *front);
lt_server *lt_server_at(lt_server *front, int i);
/* Answer 404: no model that the owner may use has this name. The message lists the existing
 * ones. */
void lt_server_refuse_model(const lt_server *front, const char *owner, const char *name,
                            lt_api_error *e);
/* Whether the name is the model's, or one of its aliases; the second: or that of one of its
 * adapters. */
bool lt_server_is_named(const lt_server *s, const char *name);
bool lt_server_answers_to(const lt_server *s, const char *name);
/* Read the next name of a comma-separated list, and move *rest past it; false: there is none. */
bool lt_server_next_alias(const char **rest, char *out, size_t room);
/* Start or stop handling the engine's events. False: out of memory. */
bool lt_server_listen(lt_server *s);
void lt_server_deafen(lt_server *s);
/* The server whose model judges texts: the reward model's, otherwise s. */
lt_server *lt_server_judge(lt_server *s);
int64_t lt_server_context(const lt_server *s); /* Tokens of one sequence at most. */
/* "chatcmpl-" + 24 hexadecimal digits. */
void lt_server_make_id(lt_server *s, const char *prefix, char out[48]);
/* Initialise a request before its body is read: OpenAI's defaults, overridden by the server's. */
void lt_server_ask(const lt_server *s, lt_api_params *a);
/* Only the server's defaults: those in the model's files, overridden by --defaults. */
void lt_server_preset(const lt_server *s, lt_api_params *a);
/* Whether the request's model field names the served one, or --any-model is set. */
bool lt_server_check_model(const lt_server *s, const lt_api_params *a, lt_api_error *e);
/* Whether a text of this size may fit in the context. It is checked before encoding, because
 * encoding megabytes would delay all streams. */
bool lt_server_may_fit(const lt_server *s, size_t bytes, const char *param, lt_api_error *e);
/* The salt of prompts that may share pages with this call: from the request's cache_salt (NULL:
 * none), and with --prefix-cache-by-key from the key. */
uint64_t lt_server_cache_salt(const lt_server *s, const char *owner, const char *salt);
/* The key that seals texts for an owner. False: out of memory. */
bool lt_server_seal_key(const lt_server *s, const char *owner, lt_seal_key *out);
/* Called when a reply or call has ended; a draining server ends with the last one. */
void lt_server_ended(lt_server *s);
/* Encode a text with the server's scratch, and append the ids to *out. */
bool lt_server_encode(lt_server *s, const char *text, size_t n, unsigned flags, lt_ids *out,
                      lt_api_error *e);

#endif
