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

#define LT_SERVER_SIGNALS 3 /* That end a server: SIGTERM, SIGINT, SIGHUP. */

struct lt_server {
    lt_server_options o;
    /* Several models: models.h. models is the front's; the others' front is the server that
     * listens. */
    struct lt_models *models;
    struct lt_model_slot *slot; /* This server's; NULL: there is one model. */
    struct lt_server *front;    /* NULL: this one listens. */
    struct event_base *base;
    lt_http *http;
    struct lt_tls *tls; /* NULL: plain. */
    struct event *on_engine, *on_loaded, *on_drained, *on_signals[LT_SERVER_SIGNALS];

    /* Set by the loading thread before state becomes READY; read-only afterwards. */
    _Atomic lt_server_state state;
    char why_failed[512];
    lt_model *model;
    lt_tokenizer *tokenizer;
    lt_tokenizer_info vocabulary;
    lt_chat_template *template;
    const char *template_source; /* "option", "model", "tokens" (known by them), or "none". */
    lt_parse_marks marks;        /* Marks of the template. */
    lt_ends ends;                /* Tokens that end an answer. */
    lt_engine *engine;
    bool last_pooling;        /* Embeddings are of the last token (1_Pooling/config.json). */
    lt_steps steps;           /* Of a process reward model, what stands behind a step. */
    json_t *labels;           /* id2label of a model with a score head; NULL: none. */
    char name[256];           /* As reported by /v1/models. */
    int64_t context;          /* Tokens of one sequence at most. */
    size_t most_prompt_bytes; /* A longer text cannot fit in the context. */
    double load_s, model_s;   /* From the start to ready; to a model and its tokenizer. */

    /* A reward model beside the served one, which judges texts; NULL: none. Only what is above, its
     * scratch, its engine's event and its own address are set: it answers no requests. */
    struct lt_server *reward;
    struct lt_adapter_set *adapters; /* adapters.h; NULL: requests choose none. */

    /* The loop's; the others'. */
    lt_tokenizer_scratch *scratch, *scratch_pool[LT_WORKER_POOL_THREADS];
    lt_compiler *compiler;
    lt_worker_pool *pool;
    int n_pool_threads;
    int64_t n_pooled;           /* Calls that it has. */
    lt_store *store;            /* Responses and threads that clients may refer to. */
    int state_lock;             /* Descriptor of the folder of state; -1: there is none. */
    struct lt_files *files;     /* files.h; NULL: the server has no folder of state. */
    struct lt_uploads *uploads; /* uploads.h; NULL likewise. */
    struct lt_batches *batches; /* batch.h; NULL likewise. */
    struct lt_tunings *tunings; /* tuning.h; NULL: no job of fine-tuning can be made. */
    int tuning_lock;            /* As state_lock, of another folder of jobs. */
    lt_seal_key seal;           /* Key for callers without an API key. */
    int64_t created;            /* Unix seconds. */
    atomic_uint_fast64_t next_id;
    uint64_t salt_seed; /* Seed of lt_server_cache_salt. */
    double started_s;
    lt_reply *replies; /* All that are not freed yet. */
    int64_t n_replies;
    bool draining;
    char weights_type[LT_SOURCE_TYPE_BYTES]; /* Of its files, "Q4_K_M"; "": not known. */
    json_t *own;    /* Defaults of the model's generation_config.json; set by the loading thread. */
    json_t *preset; /* --defaults: fields of requests that do not name them; NULL: none. */
    lt_metrics metrics;
    lt_event *events; /* One poll's. */
    lt_json_out line; /* An event of a stream, on its way out. */
};

/* The user data of a connection (lt_http_set_user): a part of whatever answers on it, called when
 * its client disconnects. */
typedef struct lt_disconnect_listener {
    void (*disconnected)(struct lt_disconnect_listener *listener);
} lt_disconnect_listener;

/* What the loop must do after a handler that ran on the worker pool. */
typedef struct {
    int status; /* With the body: the answer; 0: none. */
    lt_json_out body;
    bool error;
    lt_reply *reply; /* To be started. */
} lt_outcome;

/* A request while its handler runs: on the loop, or on the worker pool where it is large. */
typedef struct {
    lt_server *server;
    lt_http_conn *conn;
    const lt_http_request *request;
    const char *tail; /* The path behind the route's prefix, "" for exact routes. */
    lt_flavour flavour;
    const char *owner; /* The API key of the call; "": none is required. */
    char id[48];       /* The request's id; the answer's id is a prefix and this. */
    char extra[512];   /* Header lines that every answer carries: the request's id, CORS. */
    bool background;   /* lt_request.background. */
    double arrived_s;
    lt_body *body;       /* Read already; NULL: request->body is to be read. */
    lt_outcome *outcome; /* The handler runs on the worker pool; NULL: on the loop. */
} lt_call;

/* Read the body by the table of fields: lt_api_params_read. */
bool lt_call_read(lt_call *call, lt_api_params *a, const lt_field *rows, size_t n_rows,
                  lt_api_error *e);

/* ---- Complete answers ---- */

void lt_call_json(lt_call *call, int status, lt_json_out *body);
/* Answer {"success": true}, as llama-server does where there is nothing else to tell. */
void lt_call_success(lt_call *call);
void lt_call_error(lt_call *call, const lt_api_error *e);
/* The error object in the flavour's shape, appended to o. extra: the answer's header lines, of
 * which the first tells the request's id. */
void lt_error_write(lt_json_out *o, lt_flavour flavour, const char *extra, const lt_api_error *e);
/* The HTTP status that the clients of the API expect. */
int lt_error_status(lt_flavour flavour, const lt_api_error *e);

/* ---- What several endpoints need ---- */

/* The server that listens. */
static inline lt_server *lt_server_front(lt_server *s) {
    return s->front != NULL ? s->front : s;
}
/* Where the files of its model lie, which o.model may name by an address. After loading. */
const char *lt_server_files(const lt_server *s);
/* The same at any time: before loading, where an earlier program has brought them. "": not here. */
void lt_server_find_files(const lt_server *s, char out[LT_PATH_BYTES]);
/* Bytes of those with weights; 0: they are not here. */
int64_t lt_server_weights_bytes(const lt_server *s);
/* Its model may be used and described. */
bool lt_server_has_model(const lt_server *s);
/* The servers of all models, this front first. */
int lt_server_count(const lt_server *front);
lt_server *lt_server_at(lt_server *front, int i);
/* No model that the owner may use has this name: 404, and the message lists those there are. */
void lt_server_refuse_model(const lt_server *front, const char *owner, const char *name,
                            lt_api_error *e);
/* The name is the model's, or one of its aliases; the second: or that of an adapter of it. */
bool lt_server_is_named(const lt_server *s, const char *name);
bool lt_server_answers_to(const lt_server *s, const char *name);
/* The next of a list with commas between, and move *rest behind it; false: there is none. */
bool lt_server_next_alias(const char **rest, char *out, size_t room);
/* Hear the engine's events, or no longer. False: out of memory. */
bool lt_server_listen(lt_server *s);
void lt_server_deafen(lt_server *s);
/* The server whose model judges texts: the reward model's, or s. */
lt_server *lt_server_judge(lt_server *s);
int64_t lt_server_context(const lt_server *s); /* Tokens of one sequence at most. */
/* "chatcmpl-" + 24 hexadecimal digits. */
void lt_server_make_id(lt_server *s, const char *prefix, char out[48]);
/* Initialise a request before its body is read: OpenAI's defaults, overridden by the server's. */
void lt_server_ask(const lt_server *s, lt_api_params *a);
/* Only the server's defaults: those of the model's files, overridden by --defaults. */
void lt_server_preset(const lt_server *s, lt_api_params *a);
/* The request's model field names the served one, or --any-model. */
bool lt_server_check_model(const lt_server *s, const lt_api_params *a, lt_api_error *e);
/* May a text of this size fit in the context? Checked before encoding, because encoding megabytes
 * would delay all streams. */
bool lt_server_may_fit(const lt_server *s, size_t bytes, const char *param, lt_api_error *e);
/* The salt of prompts that may share pages with this call: by the request's cache_salt (NULL:
 * none), and by the key with --prefix-cache-by-key. */
uint64_t lt_server_cache_salt(const lt_server *s, const char *owner, const char *salt);
/* The key that seals texts for an owner. False: out of memory. */
bool lt_server_seal_key(const lt_server *s, const char *owner, lt_seal_key *out);
/* Called when a reply or call has ended; a draining server ends with the last one. */
void lt_server_ended(lt_server *s);
/* Text to ids with the server's scratch; append to *out. */
bool lt_server_encode(lt_server *s, const char *text, size_t n, unsigned flags, lt_ids *out,
                      lt_api_error *e);

#endif
