/* serve_models.h: the models of `lateen serve --models`: NAME=PATH,... or a YAML file in which each
 * name has its options:
 *
 *     small: {path: models/small.gguf, alias: [gpt-4o-mini], preload: true}
 *     large: {path: models/large, context: 8192, dtype: bf16, idle-s: 600} */
#ifndef LT_CLI_SERVE_MODELS_H
#define LT_CLI_SERVE_MODELS_H

#include "base/option.h"
#include "cli/beside.h"
#include "serve/api/api.h"

#define SERVE_MODEL_OPTIONS(X)                                                                     \
    X(STR, path, "path", "", 0, 1, "PATH", "as MODEL")                                             \
    X(STR, alias, "alias", "", 0, 0, "NAME,...", "further names, separated by commas")             \
    X(STR, tokenizer, "tokenizer", "", 0, 0, "FILE", "empty: the model's own")                     \
    X(ENUM, dtype, "dtype", "stored", 0, 0, "stored|fp32|bf16", "as --dtype")                      \
    X(STR, device, "device", "auto", 0, 1, LT_DEVICE_NAMES, "as --device")                         \
    X(I64, threads, "threads", "0", 0, 4096, "N", "as --threads")                                  \
    X(I64, context, "context", "0", 0, 1e9, "N", "as --context")                                   \
    X(I64, cache_bytes, "cache-bytes", "0", 0, 1e15, "BYTES", "as --cache-bytes")                  \
    X(ENUM, cache_dtype, "cache-dtype", "model", 0, 0, LT_OPENED_CACHE_TYPES, "as --cache-dtype")  \
    X(ENUM, cache_k, "cache-type-k", "cache-dtype", 0, 0, "cache-dtype|" LT_OPENED_CACHE_TYPES,    \
      "as --cache-type-k")                                                                         \
    X(ENUM, cache_v, "cache-type-v", "cache-dtype", 0, 0, "cache-dtype|" LT_OPENED_CACHE_TYPES,    \
      "as --cache-type-v")                                                                         \
    X(I64, max_running, "max-running", "256", 1, 65536, "N", "as --max-running")                   \
    X(STR, chat_template, "chat-template", "", 0, 0, "FILE|NAME", "as --chat-template")            \
    X(I64, think_budget, "think-budget", "-1", -1, 1e9, "N", "as --think-budget")                  \
    X(STR, draft, "draft", "", 0, 0, "PATH", "as --draft: with it, --speculate is model")          \
    X(F64, idle_s, "idle-s", "0", 0, 1e9, "s", "as --models-idle-s")                               \
    X(BOOL, preload, "preload", "false", 0, 0, "", "load it at the start")

typedef struct {
    SERVE_MODEL_OPTIONS(LT_OPTION_FIELD)
} lt_serve_model_options;

typedef struct {
    char name[256];
    lt_serve_model_options o;
    lt_served served;
} lt_serve_model;

typedef struct {
    lt_serve_model *rows;
    size_t n;
} lt_serve_models;

/* Read the option's text. An option that a row does not give has its value in `defaults`. Free with
 * lt_serve_models_free. */
LT_MUST_USE lt_err lt_serve_models_read(lt_serve_models *out, const char *text,
                                        const lt_serve_model_options *defaults);
void lt_serve_models_free(lt_serve_models *m);

/* Fill *out, for the server, from the row, and the rest of the engine's options from `engine`,
 * except its draft model: a row has only its own. The row must outlive *out. */
LT_MUST_USE lt_err lt_serve_model_row(lt_serve_model *row, const lt_engine_options *engine,
                                      lt_server_model *out);

#endif
