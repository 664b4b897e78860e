/* verb_serve.c: `lateen serve MODEL`: the OpenAI-compatible server. The options are rows of a
 * table; serve/api/api.h has the server. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/limits.h"
#include "cli/adapter_list.h"
#include "cli/beside.h"
#include "cli/opened.h"
#include "cli/serve_models.h"
#include "cli/verb.h"
#include "model/lora/lora_pool.h"
#include "serve/api/api.h"
#include "serve/api/openapi.h"
#include "tensor/backend.h"

#define SERVE_OPTIONS(X)                                                                           \
    LT_OPENED_OPTIONS(X)                                                                           \
    X(STR, host, "host", "127.0.0.1", 0, 1, "ADDRESS",                                             \
      "address to listen on; 0.0.0.0: reachable from other machines")                              \
    X(I64, port, "port", "8080", 0, 65535, "PORT", "port to listen on; 0: any free one")           \
    X(STR, alias, "alias", "", 0, 0, "NAME",                                                       \
      "the model's name in the API; empty: the name of its file")                                  \
    X(STR, models, "models", "", 0, 0, "FILE|NAME=PATH,...",                                       \
      "more models, loaded by the first request that names them; a YAML file gives each its "      \
      "options")                                                                                   \
    X(I64, models_memory, "models-memory", "0", 0, 1e15, "BYTES",                                  \
      "memory of all loaded models with their caches: those idle longest are unloaded; 0: no "     \
      "limit")                                                                                     \
    X(F64, models_idle_s, "models-idle-s", "0", 0, 1e9, "s",                                       \
      "unload a model that has had no request for this long; 0: never")                            \
    X(STR, api_key, "api-key", "", 0, 0, "KEYS",                                                   \
      "accepted keys, separated by commas; default: LATEEN_API_KEY of the environment")            \
    X(STR, api_key_file, "api-key-file", "", 0, 0, "FILE",                                         \
      "file of accepted keys, one a line; models=NAME,... after a key limits it to these "         \
      "models")                                                                                    \
    X(BOOL, auth, "auth", "true", 0, 0, "",                                                        \
      "--no-auth: serve without keys on purpose; otherwise a server without keys on a reachable "  \
      "address warns")                                                                             \
    X(STR, tls_cert, "tls-cert", "", 0, 0, "FILE",                                                 \
      "serve HTTPS: PEM file of the certificate and its intermediate certificates; read again "    \
      "when it changes")                                                                           \
    X(STR, tls_key, "tls-key", "", 0, 0, "FILE",                                                   \
      "PEM file of the certificate's key, without a password")                                     \
    X(STR, allowed_hosts, "allowed-hosts", "", 0, 0, "NAMES",                                      \
      "host names that clients may use, separated by commas; *: any. Addresses, localhost and "    \
      "names without dots are always allowed without keys")                                        \
    X(STR, cors, "cors", "", 0, 0, "ORIGINS",                                                      \
      "origins whose pages may call from a browser, separated by commas; *: all")                  \
    X(STR, allowed_origins, "allowed-origins", "", 0, 0, "ORIGINS", "the same as --cors")          \
    X(STR, chat_template, "chat-template", "", 0, 0, "FILE|NAME",                                  \
      "Jinja file, or chatml, llama3, gemma, ...; empty: the model's own")                         \
    X(TEXT, defaults, "defaults", "", 0, 0, "JSON",                                                \
      "default fields of requests, such as {\"temperature\": 0.6, \"max_tokens\": "                \
      "512}")                                                                                      \
    LT_GENERATION_CONFIG_OPTION(X)                                                                 \
    X(BOOL, any_model, "any-model", "false", 0, 0, "",                                             \
      "answer requests for any model name; otherwise an unknown name is 404")                      \
    X(I64, max_running, "max-running", "256", 1, 65536, "N", "most sequences in one step")         \
    X(I64, max_waiting, "max-waiting", "4096", 1, 1e6, "N",                                        \
      "most requests that may queue; beyond that, 429")                                            \
    X(I64, context, "context", "0", 0, 1e9, "N", "most tokens of a sequence; 0: the model's")      \
    X(BOOL, context_shift, "context-shift", "false", 0, 0, "",                                     \
      "an answer that reaches the end of the context drops its oldest tokens and continues; "      \
      "requests may give n_keep and n_discard")                                                    \
    X(I64, step_tokens, "step-tokens", "0", 0, 1e7, "N",                                           \
      "most tokens of one step; 0: the engine's choice")                                           \
    X(I64, page_tokens, "page-tokens", "0", 0, 4096, "N",                                          \
      "tokens of a page of the cache; 0: the engine's choice")                                     \
    X(I64, cache_bytes, "cache-bytes", "0", 0, 1e15, "BYTES",                                      \
      "memory of keys and values; 0: what the running sequences need, at most half of free "       \
      "memory")                                                                                    \
    X(I64, prefix_cache_bytes, "prefix-cache-bytes", "0", 0, 1e15, "BYTES",                        \
      "how much of that memory prompts no longer in use may keep; 0: all")                         \
    X(I64, cache_host, "cache-host", "0", 0, 1e15, "BYTES",                                        \
      "host memory to which the pages of prompts no longer in use move when the GPU needs "        \
      "their memory, and from which they are read back; 0: none")                                  \
    X(STR, cache_disk, "cache-disk", "", 0, 0, "DIR",                                              \
      "folder to which the pages of prompts no longer in use move when their memory is "           \
      "needed, and from which they are read back, also after a restart; on a GPU by way of "       \
      "--cache-host")                                                                              \
    X(I64, cache_disk_bytes, "cache-disk-bytes", "10GiB", 1, 1e16, "BYTES",                        \
      "most bytes of these pages on the disk")                                                     \
    X(ENUM, cache_dtype, "cache-dtype", "model", 0, 0, LT_OPENED_CACHE_TYPES,                      \
      "type of keys and values; model: the model's compute type; fp8: e4m3; q8_0, q4_0: a scale "  \
      "for each 32 values. auto, f32, f16, fp8_e4m3: other names")                                 \
    X(ENUM, cache_k, "cache-type-k", "cache-dtype", 0, 0, "cache-dtype|" LT_OPENED_CACHE_TYPES,    \
      "type of keys alone")                                                                        \
    X(ENUM, cache_v, "cache-type-v", "cache-dtype", 0, 0, "cache-dtype|" LT_OPENED_CACHE_TYPES,    \
      "type of values alone")                                                                      \
    X(BOOL, prefix_cache, "prefix-cache", "true", 0, 0, "",                                        \
      "prompts with the same beginning share its keys and values")                                 \
    X(BOOL, prefix_cache_by_key, "prefix-cache-by-key", "false", 0, 0, "",                         \
      "share only among requests with the same API key; a request's cache_salt always separates "  \
      "them")                                                                                      \
    X(ENUM, unknown_fields, "unknown-fields", "refuse", 0, 0, "refuse|warn|ignore",                \
      "what to do with fields of a request that this server does not know")                        \
    X(BOOL, deterministic, "deterministic", "false", 0, 0, "",                                     \
      "a request's tokens do not depend on the other requests, bit for bit")                       \
    LT_BESIDE_OPTIONS(X)                                                                           \
    X(STR, lora, "lora", "", 0, 0, "NAME=PATH",                                                    \
      "adapter that requests may choose by its name: a PEFT folder, a GGUF of adapters, or where " \
      "to fetch one; may be given many times, or with commas between")                             \
    X(I64, max_loras, "max-loras", "0", 0, LT_LORA_POOL_MOST, "N",                                 \
      "adapters in memory at once; others are loaded again when requests name them; 0: all that "  \
      "are given, and at least 4 with --lora-updating")                                            \
    X(I64, max_lora_rank, "max-lora-rank", "0", 0, 4096, "R",                                      \
      "largest rank of an adapter; each adapter takes the memory of this rank. 0: the "            \
      "largest of those given, and at least 16 with --lora-updating")                              \
    X(BOOL, lora_updating, "lora-updating", "false", 0, 0, "",                                     \
      "clients may load adapters from paths of this machine, and unload them: "                    \
      "/v1/load_lora_adapter, /v1/unload_lora_adapter")                                            \
    X(ENUM, speculate, "speculate", "none", 0, 0, LT_SPECULATE_CHOICES, LT_SPECULATE_HELP)         \
    X(STR, draft, "draft", "", 0, 0, "PATH", LT_DRAFT_HELP)                                        \
    X(I64, draft_tokens, "draft-tokens", "0", 0, 8, "N",                                           \
      "tokens of each draft; 0: as many as pay, by measured times and acceptance")                 \
    X(I64, draft_branches, "draft-branches", "0", 0, LT_DRAFT_BRANCHES, "N",                       \
      LT_DRAFT_BRANCHES_HELP)                                                                      \
    X(I64, think_budget, "think-budget", "-1", -1, 1e9, "N",                                       \
      "most tokens of reasoning, unless the request gives its own number; -1: no limit")           \
    X(I64, store_entries, "store-entries", "1024", 0, 1e9, "N",                                    \
      "most responses, chat completions and threads kept for later; 0: none")                      \
    X(I64, store_bytes, "store-bytes", "64MiB", 0, 1e13, "BYTES", "most memory that they take")    \
    X(F64, store_s, "store-s", "3600", 0, 1e9, "s",                                                \
      "time after the last use until they are forgotten")                                          \
    X(STR, slot_save_path, "slot-save-path", "", 0, 0, "DIR",                                      \
      "folder where clients may save the keys and values of texts, and restore them; all pages "   \
      "of "                                                                                        \
      "a model some of whose layers have a sliding window are kept")                               \
    X(STR, state, "state", "", 0, 0, "DIR",                                                        \
      "folder of files and batches, which outlive the server; empty: /v1/files, /v1/uploads and "  \
      "/v1/batches are refused")                                                                   \
    X(I64, files, "files", "1000", 1, 1e6, "N", "most files of an API key")                        \
    X(I64, files_bytes, "files-bytes", "4GiB", 1, 1e15, "BYTES", "most bytes of them together")    \
    X(I64, upload_s, "upload-s", "3600", 1, 1e9, "s",                                              \
      "time in which an upload in parts must be complete")                                         \
    X(I64, batches, "batches", "100", 1, 1e6, "N", "most unfinished batches of an API key")        \
    X(I64, batch_lines, "batch-lines", "50000", 1, 1e8, "N", "most lines of a batch")              \
    X(I64, batch_tokens, "batch-tokens", "-1", -1, 1e6, "N",                                       \
      "most tokens of batches in a step that also has tokens of other requests; -1: none on a "    \
      "CPU, 32 on a GPU")                                                                          \
    X(STR, fine_tuning, "fine-tuning", "", 0, 0, "DIR",                                            \
      "folder of jobs of fine-tuning, and of files without --state; empty: /v1/fine_tuning is "    \
      "refused")                                                                                   \
    X(I64, fine_tuning_jobs, "fine-tuning-jobs", "0", 0, 1000, "N",                                \
      "most jobs that train at once, or that Slurm has; 0: 1, under Slurm 64")                     \
    X(I64, fine_tuning_waiting, "fine-tuning-waiting", "10", 1, 1e6, "N",                          \
      "most jobs of an API key that have not ended")                                               \
    X(I64, fine_tuning_bytes, "fine-tuning-bytes", "4GiB", 1, 1e15, "BYTES",                       \
      "most bytes of the models that an API key's jobs have made")                                 \
    X(I64, fine_tuning_rank, "fine-tuning-rank", "16", 1, 1024, "R",                               \
      "rank of the adapters that jobs train")                                                      \
    X(STR, fine_tuning_device, "fine-tuning-device", "cpu", 0, 1, LT_DEVICE_NAMES,                 \
      "where jobs train: a GPU that this server leaves free, or CPUs")                             \
    X(I64, fine_tuning_threads, "fine-tuning-threads", "0", 0, 4096, "N",                          \
      "threads of a job on CPUs, at the lowest priority; 0: half of the cores; under Slurm the "   \
      "cores of a job, 0: 8")                                                                      \
    X(ENUM, fine_tuning_submit, "fine-tuning-submit", "here", 0, 0, "here|slurm",                  \
      "where jobs train: as processes of this machine, or as jobs of Slurm, whose nodes share "    \
      "DIR "                                                                                       \
      "and the model's files")                                                                     \
    X(STR, fine_tuning_sbatch, "fine-tuning-sbatch", "", 0, 0, "OPTIONS",                          \
      "further options of sbatch, such as '--partition=gpu --time=2:00:00'")                       \
    X(I64, max_connections, "max-connections", "4096", 1, 1e6, "N", "most open connections")       \
    X(I64, max_body, "max-body", "32MiB", 1024, 1e10, "BYTES", "largest body of a request")        \
    X(I64, max_bodies, "max-bodies", "0", 0, 1e12, "BYTES",                                        \
      "memory of the bodies of all incoming requests; 0: an eighth of free memory, at most 256 "   \
      "MiB")                                                                                       \
    X(F64, request_s, "request-s", "30", 0.01, 1e6, "s", "time for a whole request to arrive")     \
    X(F64, idle_s, "idle-s", "75", 0.01, 1e6, "s", "time that a connection may idle")              \
    X(F64, write_s, "write-s", "30", 0.01, 1e6, "s",                                               \
      "time that a client may take to read a part of its answer")                                  \
    X(F64, drain_s, "drain-s", "30", 0, 1e6, "s",                                                  \
      "time for running requests to end after SIGTERM")                                            \
    X(ENUM, describe, "describe", "no", 0, 0, "no|openapi|fields",                                 \
      "print the fields of requests, as OpenAPI or Markdown, and exit")                            \
    X(BOOL, quiet, "quiet", "false", 0, 0, "", "print errors only")

typedef struct {
    SERVE_OPTIONS(LT_OPTION_FIELD)
} serve_options;
#define LT_OPTION_STRUCT serve_options
static const lt_option rows[] = {SERVE_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_serve_options = LT_OPTION_TABLE("serve", rows);

typedef struct {
    const serve_options *o;
    const char *model;
    lt_served served;
    lt_serve_models others;  /* --models */
    lt_server_model *models; /* MODEL comes first, if it is given. */
} job;

static bool limits_a_key(const char *word) {
    return strncmp(word, "models=", 7) == 0;
}

static lt_err add_key(lt_server_options *s, const char *key) {
    if (s->n_keys == LT_SERVER_MAX_KEYS) {
        LT_FAIL(LT_ERR_LIMIT, "more than %d API keys", LT_SERVER_MAX_KEYS);
    }
    s->keys[s->n_keys++] = key;
    return LT_OK;
}

/* Add the keys of a comma-separated list, splitting the text in place. A list of models has commas,
 * too: what follows one would be taken for a key. */
static lt_err add_list(lt_server_options *s, char *text, const char *from) {
    char *rest = NULL;
    for (char *key = strtok_r(text, ", ", &rest); key != NULL; key = strtok_r(NULL, ", ", &rest)) {
        if (limits_a_key(key)) {
            LT_FAIL(LT_ERR_ARG, "%s: %s is for a line of --api-key-file, behind its key", from,
                    key);
        }
        LT_TRY(add_key(s, key));
    }
    return LT_OK;
}

/* Add the keys of a file's lines, splitting the text in place. models=NAME,... after a key names
 * the models that it may use. A third word is refused, because a space within the list would make
 * the rest of it a key for all models. */
static lt_err add_lines(lt_server_options *s, char *text, const char *file) {
    char *line;
    for (int n = 1; (line = strsep(&text, "\n")) != NULL; n++) {
        char *rest = NULL, *key = strtok_r(line, " \t\r", &rest),
             *models = strtok_r(NULL, " \t\r", &rest), *more = strtok_r(NULL, " \t\r", &rest);
        if (key == NULL) {
            continue;
        }
        if (limits_a_key(key)) {
            LT_FAIL(LT_ERR_ARG, "%s:%d: %s stands before its key", file, n, key);
        }
        if (more != NULL ||
            (models != NULL && (!limits_a_key(models) || models[strlen("models=")] == '\0'))) {
            LT_FAIL(LT_ERR_ARG,
                    "%s:%d: a line has one key, and behind it perhaps models=NAME,... without "
                    "spaces",
                    file, n);
        }
        LT_TRY(add_key(s, key));
        s->key_models[s->n_keys - 1] = models != NULL ? models + strlen("models=") : NULL;
    }
    return LT_OK;
}

/* Whether the option was given with an empty value, e.g. from an unset variable in a script. The
 * value alone does not show this, since its default is empty, too. */
static bool given_empty(int argc, char **argv, const char *flag) {
    const size_t n = strlen(flag);
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const bool same = strncmp(argv[i], flag, n) == 0;
        if (same && ((argv[i][n] == '=' && argv[i][n + 1] == '\0') ||
                     (argv[i][n] == '\0' && i + 1 < argc && argv[i + 1][0] == '\0'))) {
            return true;
        }
    }
    return false;
}

/* An option for keys that gives none is refused, because the server would be open to everyone. */
static lt_err read_keys(lt_server_options *s, serve_options *o, char **file, int argc,
                        char **argv) {
    const char *variable = getenv("LATEEN_API_KEY");
    const bool named = o->api_key[0] != '\0';
    size_t n = 0;
    if (given_empty(argc, argv, "--api-key") || given_empty(argc, argv, "--api_key") ||
        given_empty(argc, argv, "--api-key-file") || given_empty(argc, argv, "--api_key_file")) {
        LT_FAIL(LT_ERR_ARG, "--api-key is empty: give a key, or --no-auth to serve without one");
    }
    if (!named && o->api_key_file[0] == '\0' && variable != NULL && o->auth) {
        if (snprintf(o->api_key, sizeof o->api_key, "%s", variable) >= (int)sizeof o->api_key) {
            LT_FAIL(LT_ERR_LIMIT, "LATEEN_API_KEY: over %zu bytes", sizeof o->api_key - 1);
        }
    }
    LT_TRY(add_list(s, o->api_key, named ? "--api-key" : "LATEEN_API_KEY"));
    if (s->n_keys == 0 && (named || (variable != NULL && o->auth && o->api_key_file[0] == '\0'))) {
        LT_FAIL(LT_ERR_ARG, "%s contains no key; --no-auth serves without one",
                named ? "--api-key" : "LATEEN_API_KEY");
    }
    if (o->api_key_file[0] == '\0') {
        return LT_OK;
    }
    LT_TRY(lt_file_read(file, &n, o->api_key_file, 1 << 20));
    n = (size_t)s->n_keys;
    LT_TRY(add_lines(s, *file, o->api_key_file));
    if ((size_t)s->n_keys == n) {
        LT_FAIL(LT_ERR_ARG, "--api-key-file %s contains no key", o->api_key_file);
    }
    return LT_OK;
}

static void fill(lt_server_options *s, const serve_options *o) {
    s->host = o->host;
    s->port = (int)o->port;
    s->name = o->alias;
    s->template = o->chat_template[0] != '\0' ? o->chat_template : NULL;
    s->cors = o->cors[0] != '\0' ? o->cors : o->allowed_origins;
    s->allowed_hosts = o->allowed_hosts;
    s->tls_cert = o->tls_cert;
    s->tls_key = o->tls_key;
    s->no_auth = !o->auth;
    s->max_bodies_bytes = o->max_bodies;
    s->defaults = o->defaults;
    s->own_defaults = o->generation_config == 0;
    s->context_shift = o->context_shift;
    s->any_model = o->any_model;
    s->max_connections = o->max_connections;
    s->max_body_bytes = o->max_body;
    s->request_s = o->request_s;
    s->idle_s = o->idle_s;
    s->write_s = o->write_s;
    s->drain_s = o->drain_s;
    s->store = (lt_store_options){o->store_entries, (size_t)o->store_bytes, o->store_s};
    s->state = o->state;
    s->pages_folder = o->slot_save_path;
    s->engine.whole_pages = o->slot_save_path[0] != '\0';
    s->max_files = o->files;
    s->max_files_bytes = o->files_bytes;
    s->upload_s = o->upload_s;
    s->max_batches = o->batches;
    s->batch_lines = o->batch_lines;
    s->tuning = (lt_tuning_options){.dir = o->fine_tuning,
                                    .jobs = o->fine_tuning_jobs,
                                    .waiting = o->fine_tuning_waiting,
                                    .bytes = o->fine_tuning_bytes,
                                    .rank = o->fine_tuning_rank,
                                    .device = o->fine_tuning_device,
                                    .threads = o->fine_tuning_threads,
                                    .slurm = o->fine_tuning_submit == 1,
                                    .sbatch = o->fine_tuning_sbatch,
                                    .tokenizer = o->tokenizer};
    s->engine.background_tokens = o->batch_tokens;
    s->think_budget = (int)o->think_budget;
    s->quiet = o->quiet;
    s->engine.max_running = o->max_running;
    s->engine.max_waiting = o->max_waiting;
    s->engine.max_seq = o->context;
    s->engine.step_tokens = o->step_tokens > 0 ? o->step_tokens : s->engine.step_tokens;
    s->engine.page_tokens = o->page_tokens > 0 ? o->page_tokens : s->engine.page_tokens;
    s->engine.cache_bytes = o->cache_bytes;
    s->engine.unused_bytes = o->prefix_cache_bytes;
    s->engine.host_bytes = o->cache_host;
    s->engine.disk = o->cache_disk[0] != '\0' ? o->cache_disk : NULL;
    s->engine.disk_bytes = o->cache_disk_bytes;
    s->engine.cache_dtype = LT_OPENED_CACHE_PART(o->cache_k, o->cache_dtype);
    s->engine.value_dtype = LT_OPENED_CACHE_PART(o->cache_v, o->cache_dtype);
    s->engine.prefix_cache = o->prefix_cache;
    s->engine.warm = LT_WARM_FIRST;
    s->unknown_fields = o->unknown_fields;
    s->prefix_cache_by_key = o->prefix_cache_by_key;
    s->max_loras = o->max_loras;
    s->max_lora_rank = o->max_lora_rank;
    s->lora_updating = o->lora_updating;
    s->engine.deterministic = o->deterministic;
    s->engine.speculate = (lt_speculate)o->speculate;
    s->engine.draft_tokens = o->draft_tokens;
    s->engine.draft_branches = o->draft_branches;
}

/* Options that a row of --models does not give are those of the command line. */
static lt_err read_models(job *j, lt_server_options *s) {
    const serve_options *o = j->o;
    lt_serve_model_options defaults = {.dtype = o->dtype,
                                       .threads = o->threads,
                                       .context = o->context,
                                       .cache_bytes = o->cache_bytes,
                                       .cache_dtype = o->cache_dtype,
                                       .cache_k = o->cache_k,
                                       .cache_v = o->cache_v,
                                       .max_running = o->max_running,
                                       .think_budget = o->think_budget,
                                       .idle_s = o->models_idle_s};
    memcpy(defaults.device, o->device, sizeof defaults.device);
    if (j->model[0] == '\0') { /* Otherwise they are MODEL's. */
        memcpy(defaults.tokenizer, o->tokenizer, sizeof defaults.tokenizer);
        memcpy(defaults.chat_template, o->chat_template, sizeof defaults.chat_template);
    }
    LT_TRY(lt_serve_models_read(&j->others, o->models, &defaults));
    j->models = calloc(j->others.n + 1, sizeof *j->models);
    if (j->models == NULL) {
        LT_FAIL(LT_ERR_OOM, "%zu models", j->others.n);
    }
    if (j->model[0] != '\0') {
        j->models[s->n_models++] = (lt_server_model){
            .name = s->name,
            .aliases = "",
            .model = j->model,
            .template = s->template,
            .engine = s->engine,
            .think_budget = s->think_budget,
            .idle_s = o->models_idle_s > 0 ? o->models_idle_s : -1,
            .preload = true,
            .must = true,
            .load = lt_served_load,
            .unload = lt_served_unload,
            .ctx = &j->served};
    } else if (o->alias[0] != '\0' || o->steer[0] != '\0' || o->reward[0] != '\0' ||
               o->second[0] != '\0' || o->draft[0] != '\0') {
        LT_FAIL(LT_ERR_ARG, "--alias, --steer, --reward, --second and --draft are for MODEL, which "
                            "is not given");
    }
    for (size_t i = 0; i < j->others.n; i++) {
        LT_TRY(lt_serve_model_row(&j->others.rows[i], &s->engine, &j->models[s->n_models++]));
    }
    s->models = j->models;
    s->models_bytes = o->models_memory;
    s->model = j->models[0].model;
    return LT_OK;
}

/* Refuse changed options that would have no effect. */
static lt_err check_idle(const serve_options *o) {
    const bool tunes = o->fine_tuning[0] != '\0', keeps = o->state[0] != '\0' || tunes;
    const lt_verb_use uses[] = {
        {"fine-tuning-jobs", tunes, "--fine-tuning"},
        {"fine-tuning-waiting", tunes, "--fine-tuning"},
        {"fine-tuning-bytes", tunes, "--fine-tuning"},
        {"fine-tuning-rank", tunes, "--fine-tuning"},
        {"fine-tuning-device", tunes, "--fine-tuning"},
        {"fine-tuning-threads", tunes, "--fine-tuning"},
        {"fine-tuning-submit", tunes, "--fine-tuning"},
        {"fine-tuning-sbatch", o->fine_tuning_submit == 1, "--fine-tuning-submit slurm"},
        {"files", keeps, "--state or --fine-tuning"},
        {"files-bytes", keeps, "--state or --fine-tuning"},
        {"upload-s", keeps, "--state or --fine-tuning"},
        {"batches", keeps, "--state or --fine-tuning"},
        {"batch-lines", keeps, "--state or --fine-tuning"},
        {"batch-tokens", keeps, "--state or --fine-tuning"},
        {"prefix-cache-bytes", o->prefix_cache, "--prefix-cache"},
        {"prefix-cache-by-key", o->prefix_cache, "--prefix-cache"},
        {"cache-disk-bytes", o->cache_disk[0] != '\0', "--cache-disk"},
        {"store-bytes", o->store_entries > 0, "--store-entries"},
        {"store-s", o->store_entries > 0, "--store-entries"},
        {"draft-tokens", o->speculate != 0 || o->models[0] != '\0', "--speculate"},
        {"draft-branches", o->speculate != 0 || o->models[0] != '\0', "--speculate"},
        {"models-memory", o->models[0] != '\0', "--models"},
        {"models-idle-s", o->models[0] != '\0', "--models"},
    };
    return lt_verb_idle(&lt_verb_serve_options, o, uses, sizeof uses / sizeof *uses);
}

static lt_err describe(bool openapi) {
    lt_json_out o = {0};
    if (openapi) {
        lt_openapi_write(&o);
        lt_out_raw(&o, "\n", 1);
    } else {
        lt_fields_markdown(&o);
    }
    if (o.failed) {
        lt_out_free(&o);
        LT_FAIL(LT_ERR_OOM, "a description");
    }
    fwrite(o.data, 1, o.n, stdout);
    lt_out_free(&o);
    return LT_OK;
}

/* Printed only now, so that a missing or refused model never seems to be served. */
static void print_url(void *ctx, lt_server *s) {
    char url[300];
    (void)ctx;
    lt_server_url(s, url, sizeof url);
    printf("%s\n", url);
    fflush(stdout);
}

static lt_err run(serve_options *o, const char *positional, int argc, char **argv) {
    lt_err err = LT_OK;
    lt_server_options options = lt_server_defaults();
    lt_server *s = NULL;
    lt_adapter_list adapters = {NULL, 0};
    char found[LT_PATH_BYTES], *keys = NULL;
    job j = {.o = o, .model = positional != NULL ? positional : o->model};

    if (o->describe != 0) {
        return describe(o->describe == 1);
    }
    if (j.model[0] == '\0' && o->models[0] == '\0') {
        LT_TRY_DONE(lt_opened_default_model(found, LT_DEFAULT_TALKS));
        j.model = found;
    }
    if (positional != NULL && o->model[0] != '\0') {
        LT_FAIL_DONE(LT_ERR_ARG, "MODEL and --model are the same option: give one of them; further "
                                 "models are --models NAME=PATH,...");
    }
    lt_limits_return_memory();
    fill(&options, o);
    options.model = j.model;
    j.served = LT_SERVED_OF(o, j.model, "");
    LT_TRY_DONE(lt_served_read(&j.served, o->second));
    LT_TRY_DONE(lt_served_draft(&j.served, &options.engine, o->draft));
    options.load = lt_served_load;
    options.unload = lt_served_unload;
    options.load_reward = o->reward[0] != '\0' ? lt_served_load_reward : NULL;
    options.reward = o->reward;
    options.engine.beside = j.served.beside.models;
    options.engine.n_beside = j.served.beside.n;
    options.second = j.served.beside.name_list;
    options.ready = print_url;
    options.ctx = &j.served;
    if (o->cors[0] != '\0' && o->allowed_origins[0] != '\0') {
        LT_FAIL_DONE(LT_ERR_ARG,
                     "--cors and --allowed-origins are the same option: give one of them");
    }
    if ((o->tls_cert[0] == '\0') != (o->tls_key[0] == '\0')) {
        LT_FAIL_DONE(LT_ERR_ARG, "--tls-cert and --tls-key must be given together");
    }
    LT_TRY_DONE(check_idle(o));
    if (o->models[0] != '\0') {
        LT_TRY_DONE(read_models(&j, &options));
    }
    if (o->slot_save_path[0] != '\0' && !lt_file_is_dir(o->slot_save_path)) {
        LT_FAIL_DONE(LT_ERR_ARG, "--slot-save-path: %s is not a folder", o->slot_save_path);
    }
    if (o->slot_save_path[0] != '\0' && o->models[0] != '\0') {
        LT_FAIL_DONE(LT_ERR_ARG, "--slot-save-path is for one model, not for --models");
    }
    if ((o->cache_disk[0] != '\0' || o->cache_host > 0) && o->models[0] != '\0') {
        LT_FAIL_DONE(LT_ERR_ARG, "--cache-disk and --cache-host are for one model, not for "
                                 "--models");
    }
    if (o->fine_tuning[0] != '\0' && o->models[0] != '\0') {
        LT_FAIL_DONE(LT_ERR_ARG, "--fine-tuning is for a server of one model, not with --models");
    }
    LT_TRY_DONE(read_keys(&options, o, &keys, argc, argv));
    LT_TRY_DONE(lt_adapter_list_read(&adapters, argc, argv));
    options.lora = (const char *const *)adapters.rows;
    options.n_lora = adapters.n;
    if (adapters.n == 0 && !o->lora_updating && o->fine_tuning[0] == '\0' &&
        (o->max_loras > 0 || o->max_lora_rank > 0)) {
        LT_FAIL_DONE(LT_ERR_ARG, "--max-loras and --max-lora-rank are for --lora, --lora-updating "
                                 "and --fine-tuning");
    }
    if (o->max_lora_rank > 0 && o->max_lora_rank < o->fine_tuning_rank &&
        o->fine_tuning[0] != '\0') {
        LT_FAIL_DONE(LT_ERR_ARG, "--max-lora-rank %lld is below --fine-tuning-rank %lld",
                     (long long)o->max_lora_rank, (long long)o->fine_tuning_rank);
    }
    lt_device_few_queues();
    LT_TRY_DONE(lt_server_open(&s, &options));
    LT_TRY_DONE(lt_server_run(s));
done:
    lt_server_close(s);
    lt_serve_models_free(&j.others);
    free(j.models);
    lt_adapter_list_free(&adapters);
    free(keys);
    return err;
}

int lt_verb_serve(int argc, char **argv);
int lt_verb_serve(int argc, char **argv) {
    static const char prose[] =
        "Serve a model to many users at once: OpenAI's API (chat, completions, responses, "
        "embeddings, models), Anthropic's messages, llama-server's completion; a chat page at / "
        "and the server's state at /status and /metrics. The address is printed when the model is "
        "ready; until then the port answers 503. SIGTERM lets running requests end. docs/serve.md "
        "has "
        "examples.";
    serve_options o;
    const char *positional[1] = {NULL};
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;

    if (!lt_verb_parse(&lt_verb_serve_options, &o, argc, argv, "serve [MODEL] [options]", prose,
                       positional, 1, &n, &status)) {
        return status;
    }
    err = run(&o, n > 0 ? positional[0] : NULL, argc, argv);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
