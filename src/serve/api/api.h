/* api.h: the interface of the server: open, run, close. `lateen serve` adds a table of options. */
#ifndef LT_SERVE_API_H
#define LT_SERVE_API_H

#include <stdbool.h>
#include <stdint.h>

#include "lateen/serve.h"
#include "lateen/tokenizer.h"
#include "serve/api/stored/store.h"

#define LT_SERVER_MAX_KEYS 64

typedef struct lt_server lt_server;

/* One of a server's several models (models.h). */
typedef struct {
    const char *name, *aliases; /* Aliases are separated by commas; "": none. */
    const char *model;          /* Path. */
    const char *template;       /* As of lt_server_options. */
    lt_engine_options engine;
    int think_budget;
    double idle_s; /* Time without a request until it is unloaded; < 0: it stays. */
    bool preload;  /* Loaded at the start, not by the first request. */
    bool must;     /* With preload: the server ends if the model cannot be loaded. */
    /* As of lt_server_options; each model is closed before it is opened again. */
    lt_err (*load)(void *ctx, lt_model **model, lt_tokenizer **tokenizer);
    void (*unload)(void *ctx);
    void *ctx;
} lt_server_model;

/* Fine-tuning of the server's model: tuning.h. */
typedef struct {
    const char *dir; /* Folder of jobs; "": there are none. */
    /* Most jobs that run at once; most unfinished jobs of an API key. jobs 0: 1, with Slurm 64. */
    int64_t jobs, waiting;
    int64_t bytes;         /* Most bytes on disk of the ended jobs of an API key. */
    int64_t rank;          /* Rank of new adapters. */
    const char *device;    /* Device on which they are trained, */
    int64_t threads;       /* and the threads of a job; 0: half of the cores, with Slurm 8. */
    bool slurm;            /* Trainers are jobs of Slurm, */
    const char *sbatch;    /* with these further options, separated by blanks. */
    const char *tokenizer; /* As for the server's model; "": the model's own. */
} lt_tuning_options;

typedef struct {
    /* Name or address; IPv6 with brackets or without. NULL: clients cannot connect, and requests
     * come from lt_server_post. */
    const char *host;
    int port;                       /* 0: any free port. */
    const char *model;              /* Path: for /props, and a place to look for a chat template. */
    const char *name;               /* Name that clients use; NULL: the last part of the path. */
    const char *aliases;            /* Further names, separated by commas; "": none. */
    const char *template;           /* A chat template's name or file; NULL: the model's own. */
    const char *tls_cert, *tls_key; /* PEM files; "": plain HTTP. */
    const char *keys[LT_SERVER_MAX_KEYS];
    /* The models that the key may use, separated by commas; NULL: all. */
    const char *key_models[LT_SERVER_MAX_KEYS];
    int n_keys;
    bool no_auth;              /* There are deliberately no keys: do not warn. */
    const char *allowed_hosts; /* Host names of the server, comma-separated; "": see access.h. */
    const char *cors;          /* "": none; "*"; or origins separated by commas. */
    /* JSON object of sampling fields for requests that do not name them; NULL: none. */
    const char *defaults;
    bool own_defaults;  /* generation_config.json (a GGUF's general.sampling) gives the defaults. */
    int unknown_fields; /* lt_unknown_fields of api_params.h. */
    const char *const *lora; /* (n_lora) adapters: "NAME=PATH", or "PATH". */
    int n_lora;
    /* Most adapters in memory at once; largest rank of A. 0: chosen. */
    int64_t max_loras, max_lora_rank;
    bool lora_updating;       /* Clients may load and unload adapters. */
    bool prefix_cache_by_key; /* Requests with different keys share no pages of the prefix cache. */
    /* A text that reaches the end of the context drops its oldest tokens. */
    bool context_shift;
    bool any_model; /* Answer whichever model a request names. */
    int64_t max_connections, max_body_bytes, max_bodies_bytes, max_head_bytes, max_pending_bytes;
    double request_s, idle_s, write_s, drain_s;
    lt_store_options store; /* How responses and threads are kept. */
    const char *state;      /* Folder of files and batches, which outlive the server; "": none. */
    /* Folder in which clients may store pages of texts; "" or NULL: none. */
    const char *pages_folder;
    int64_t max_files, max_files_bytes, max_batches; /* Limits per API key. */
    /* Time in which all parts of an upload must arrive. */
    int64_t upload_s;
    int64_t batch_lines; /* Most lines of one batch. */
    lt_tuning_options tuning;
    lt_engine_options engine;
    int think_budget; /* Tokens of reasoning for requests that name no budget; -1: no limit. */
    /* Opens the model and its tokenizer, on a thread of its own. */
    lt_err (*load)(void *ctx, lt_model **model, lt_tokenizer **tokenizer);
    /* Called when the server has closed both; frees the rest of what load has opened. May be
     * NULL. */
    void (*unload)(void *ctx);
    /* Opens a reward model beside it in the same way; NULL: there is none. */
    lt_err (*load_reward)(void *ctx, lt_model **model, lt_tokenizer **tokenizer);
    const char *reward; /* Path of the reward model. */
    /* Several models, of which the first answers requests that name none; NULL: there is one, as
     * above says. With them, load, unload, ctx, model, name, aliases, template, engine and
     * think_budget are of each. */
    const lt_server_model *models;
    int n_models;
    int64_t models_bytes; /* Most memory of all loaded models together; 0: no limit. */
    /* Names of engine.beside, (engine.n_beside); `load` opens those models. */
    const char *const *second;
    /* Called on the loop's thread once the model is ready (with several: once each model that is
     * loaded at the start is loaded, or has failed); may be NULL. */
    void (*ready)(void *ctx, lt_server *s);
    /* Called on the compiler's thread before each grammar; may be NULL. */
    void (*before_compile)(void *ctx);
    void *ctx;
    bool quiet;
} lt_server_options;

lt_server_options lt_server_defaults(void);

/* Bind the port and begin to load the model. The strings of options must outlive the server. */
LT_MUST_USE lt_err lt_server_open(lt_server **out, const lt_server_options *options);
int lt_server_port(const lt_server *s);
/* "http://127.0.0.1:8080"; an IPv6 host stands in brackets. */
void lt_server_url(const lt_server *s, char *out, size_t n);

/* Make a request from within this process: POST the body (n bytes, malloc'ed, which is taken over)
 * to a path such as "/v1/chat/completions". To be called on the loop's thread, on which `answered`
 * is then called once, perhaps before this returns; its body is valid until it returns. The server
 * must be ready, and must not be closed before the answer. OOM is the only error. */
typedef void lt_server_answered(void *ctx, int status, const char *body, size_t n);
LT_MUST_USE lt_err lt_server_post(lt_server *s, const char *path, char *body, size_t n,
                                  lt_server_answered *answered, void *ctx);

/* The server is draining: no more requests should be made. */
bool lt_server_is_ending(const lt_server *s);

/* Serve until SIGTERM or SIGINT has drained, lt_server_stop was called, or loading failed (its
 * error). */
LT_MUST_USE lt_err lt_server_run(lt_server *s);
/* End as on SIGTERM. Can be called on any thread. */
void lt_server_stop(lt_server *s);
void lt_server_close(lt_server *s); /* Accepts NULL. */

#endif
