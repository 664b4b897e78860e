/* api_params.h: the parameters of a request: one struct for all endpoints, filled from JSON by one
 * table per endpoint.
 *
 * A table row names a field, how it is read and where it is stored. So each field is honoured,
 * accepted because it does not change the answer (NOTHING), accepted with certain values only
 * (ONLY), or refused by name (REFUSED). A field without a row is refused, with the nearest name,
 * unless `unknown` says otherwise. null always counts as absent. docs/serve.md lists the tables. */
#ifndef LT_SERVE_API_PARAMS_H
#define LT_SERVE_API_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lateen/base.h"
#include "lateen/serve.h"
#include "serve/api/json_out.h"

/* Why a request is refused: the HTTP status and OpenAI's error object. */
typedef struct {
    int status;
    const char *type, *code; /* code NULL: null. */
    char param[64];          /* "": null. */
    char message[512];
    int retry_after_s;  /* 0: the header is not sent. */
    const char *detail; /* Anthropic's error_code; NULL: none. */
    /* If a prompt exceeds the context, both lengths; 0: another error. */
    int64_t n_prompt, n_context;
} lt_api_error;

/* Fill *e and return false, so that a reader ends with `return lt_api_refuse(...)`. */
bool lt_api_refuse(lt_api_error *e, const char *param, const char *fmt, ...) LT_PRINTF(3, 4);
/* The same with the last error of this thread (lt_error_message), without its paths, which the log
 * then has. */
bool lt_api_refuse_error(lt_api_error *e, const char *param, lt_err err);
bool lt_api_refuse_oom(lt_api_error *e);
/* In place: of each absolute path of two names or more, only the last name. Where files lie on the
 * server's machine does not concern clients. */
void lt_api_hide_paths(char *text);

#define LT_API_PARAMS_BREAKERS 32 /* Most sequence breakers of DRY. */
#define LT_API_PARAMS_STOPS    32 /* OpenAI allows 4, but agents send more. */

typedef struct lt_body lt_body; /* worker_pool.h: a tree that another thread frees. */

/* Treatment of an unknown field: refuse the request, or ignore the field, with or without a warning
 * in the log. */
typedef enum { LT_UNKNOWN_REFUSE, LT_UNKNOWN_WARN, LT_UNKNOWN_IGNORE } lt_unknown_fields;

/* The fields of all endpoints. JSON members point into the request's tree, which the parameters
 * own. */
typedef struct {
    json_t *root;
    lt_unknown_fields unknown;
    const char *cache_salt, *cache_retention;
    double keep_s; /* lt_request.keep_s */
    lt_body *body; /* Owner of the tree; NULL: the parameters. */
    const char *model;
    /* What to continue or to embed. */
    const json_t *messages, *prompt, *input, *system, *tools, *tool_choice, *content, *tokens,
        *metadata, *cache_control;
    const char *instructions, *suffix, *previous_id;
    const char *input_prefix, *input_suffix; /* For /infill. */
    const json_t *input_extra;
    const json_t *store, *include, *thread, *context_management;
    const char *truncation, *verbosity, *summary;
    /* How the answer is sent. */
    bool stream, echo, parallel_tools, include_usage, continuous_usage;
    const json_t *stream_options;
    int64_t n, best_of;
    /* How tokens are chosen. */
    double temperature, top_p, min_p, typical_p, repetition, frequency, presence;
    int64_t top_k, seed, max_tokens, max_completion_tokens, min_tokens, priority, repeat_last_n;
    double dry_multiplier, dry_base, xtc_probability, xtc_threshold;
    int64_t dry_allowed, dry_last_n;
    bool ignore_eos, use_beam_search;
    bool speculate;           /* false: no draft tokens. */
    int64_t most_drafts;      /* Most draft tokens at a time. */
    const json_t *prediction; /* The expected answer. */
    double length_penalty;
    int64_t n_keep, n_discard; /* For --context-shift: as in lt_shift. */
    const json_t *early_stopping;
    const json_t *lora; /* Adapters and their scales. */
    const json_t *logit_bias, *stop, *stop_ids, *dry_breakers, *allowed_ids, *bad_words;
    /* Tokens to keep at the end of the prompt; -1: as many as fit; below -1: all. */
    int64_t truncate_prompt;
    bool include_stop;
    const json_t *format, *options; /* Ollama's. */
    bool raw, truncate;
    int64_t num_ctx;
    /* What is reported. */
    const json_t *logprobs;
    int64_t top_logprobs, prompt_logprobs, n_probs;
    const json_t *response_fields;
    bool timings_per_token, verbose;
    bool skip_special, return_ids, tokens_as_ids;
    /* Form of the answer. */
    const json_t *response_format, *text, *json_schema, *structured, *choice;
    const char *format_name; /* Name of the field with response_format; NULL: that name. */
    const char *grammar, *regex;
    /* Templates and reasoning. */
    const json_t *template_kwargs, *reasoning, *thinking, *enable_thinking;
    const char *reasoning_effort, *chat_template, *reasoning_format;
    int64_t thinking_budget, max_tool_calls;
    bool add_generation_prompt, continue_final, include_reasoning;
    /* One answer of several candidates: the object, and its fields. */
    const json_t *alignment;
    struct {
        const char *method, *extract, *check, *answer, *aggregate;
        const json_t *reward, *border;
        double temperature, mu, threshold, tail, half_tail, keep, eta, tau;
        int64_t n, every, window, seed, warmup, round, width;
        bool candidates, strict, confidences;
    } group;
    struct { /* For method watermark. */
        const char *scheme, *key;
        double gamma, delta;
        int64_t context, length;
    } mark;
    struct { /* For /score, /rerank, /classify and /pooling. */
        const json_t *queries, *documents;
        const char *task;
        int64_t top_n, n_queries;
        bool activate, with_documents, generation;
    } judge;
    const char *vector; /* For method steer; scale: for guidance, too. */
    double scale, plausibility;
    const json_t *negative;              /* For method guidance. */
    const char *criterion;               /* For method tournament. */
    const char *amateur, *expert, *anti; /* Models beside the served one. */
    /* Control of the reasoning: the fields of the object `reasoning` of a chat. */
    struct {
        const char *name, *mean, *probe, *wait;
        const json_t *border;
        double threshold, alpha, delta, repetition;
        int64_t budget, min_tokens, every, agree, probe_tokens, window, folds;
    } control;
    /* For /v1/load_lora_adapter and /v1/unload_lora_adapter. */
    const char *lora_name, *lora_path;
    const char *filename; /* For /slots/ID and uploads. */
    bool load_inplace;
    /* Batches. */
    const char *input_file, *endpoint, *completion_window;
    const json_t *output_expires;
    /* Uploads. */
    const char *purpose, *mime_type, *md5;
    const json_t *part_ids;
    int64_t file_bytes;
    /* Fine-tuning. */
    const char *training_file, *validation_file, *suffix_name;
    const json_t *hyperparameters, *tuning_method;
    /* Embeddings, tokenizing. */
    const char *encoding_format;
    int64_t dimensions;
    bool add_special, parse_special, with_pieces; /* add_special: also for texts as prompts. */
} lt_api_params;

typedef enum {
    LT_FIELD_BOOL,
    LT_FIELD_I64,
    LT_FIELD_F64,
    LT_FIELD_STR,
    LT_FIELD_JSON,
    LT_FIELD_NOTHING, /* Accepted without effect. */
    LT_FIELD_ONLY,    /* Accepted with one of the values of `note`: JSON texts separated by '|'. */
    LT_FIELD_REFUSED  /* note: the reason. */
} lt_field_type;

typedef struct {
    const char *name;
    lt_field_type type;
    size_t offset;
    double min, max; /* Inclusive. */
    const char *note;
} lt_field;

/* The fields of an endpoint's requests. required: names separated by commas. */
typedef struct {
    const lt_field *rows;
    size_t n;
    const char *required;
} lt_field_table;
#define LT_FIELD_TABLE(array, needed)                                                              \
    { array, sizeof array / sizeof *array, needed }

#define LT_API_PARAMS_AT(member) offsetof(lt_api_params, member)
#define LT_BOOL(name, member)                                                                      \
    { name, LT_FIELD_BOOL, LT_API_PARAMS_AT(member), 0, 0, NULL }
#define LT_I64(name, member, min, max)                                                             \
    { name, LT_FIELD_I64, LT_API_PARAMS_AT(member), min, max, NULL }
#define LT_F64(name, member, min, max)                                                             \
    { name, LT_FIELD_F64, LT_API_PARAMS_AT(member), min, max, NULL }
#define LT_STR(name, member)                                                                       \
    { name, LT_FIELD_STR, LT_API_PARAMS_AT(member), 0, 0, NULL }
#define LT_JSON(name, member)                                                                      \
    { name, LT_FIELD_JSON, LT_API_PARAMS_AT(member), 0, 0, NULL }
#define LT_NOTHING(name)                                                                           \
    { name, LT_FIELD_NOTHING, 0, 0, 0, NULL }
#define LT_ONLY(name, values)                                                                      \
    { name, LT_FIELD_ONLY, 0, 0, 0, values }
#define LT_REFUSED(name, why)                                                                      \
    { name, LT_FIELD_REFUSED, 0, 0, 0, why }

/* llama-server's settings of samplers that do not exist here, at values that switch them off. Its
 * clients send all of them. */
#define LT_FIELDS_IDLE                                                                             \
    LT_NOTHING("mirostat_tau"), LT_NOTHING("mirostat_eta"), LT_NOTHING("dynatemp_exponent")

/* Fields that chat, completions, responses and the native completion share: how tokens are chosen,
 * and the extensions of other servers. */
#define LT_FIELDS_SAMPLING                                                                         \
    LT_F64("temperature", temperature, 0, 100), LT_F64("top_p", top_p, 0, 1),                      \
        LT_I64("top_k", top_k, -1, 1e9), LT_F64("min_p", min_p, 0, 1),                             \
        LT_F64("typical_p", typical_p, 0, 1), LT_F64("typ_p", typical_p, 0, 1),                    \
        LT_F64("repetition_penalty", repetition, 1e-3, 100),                                       \
        LT_F64("repeat_penalty", repetition, 1e-3, 100),                                           \
        LT_F64("frequency_penalty", frequency, -2, 2),                                             \
        LT_F64("presence_penalty", presence, -2, 2), LT_I64("seed", seed, -0x1p63, 0x1p63),        \
        LT_JSON("logit_bias", logit_bias), LT_JSON("stop", stop),                                  \
        LT_JSON("stop_token_ids", stop_ids), LT_I64("min_tokens", min_tokens, 0, 1e9),             \
        LT_BOOL("ignore_eos", ignore_eos), LT_BOOL("include_stop_str_in_output", include_stop),    \
        LT_I64("priority", priority, -1e6, 1e6), LT_BOOL("skip_special_tokens", skip_special),     \
        LT_BOOL("return_tokens", return_ids), LT_BOOL("return_token_ids", return_ids),             \
        LT_STR("grammar", grammar), LT_STR("guided_grammar", grammar),                             \
        LT_STR("guided_regex", regex), LT_JSON("guided_json", json_schema),                        \
        LT_JSON("guided_choice", choice), LT_JSON("structured_outputs", structured),               \
        LT_JSON("json_schema", json_schema), LT_I64("n_predict", max_tokens, -2, 1e9),             \
        LT_NOTHING("cache_prompt"), LT_STR("cache_salt", cache_salt), LT_NOTHING("request_id"),    \
        LT_NOTHING("id_slot"), LT_NOTHING("return_progress"), LT_BOOL("verbose", verbose),         \
        LT_BOOL("timings_per_token", timings_per_token), LT_NOTHING("n_cache_reuse"),              \
        LT_NOTHING("spaces_between_special_tokens"), LT_ONLY("guided_decoding_backend", "null"),   \
        LT_F64("length_penalty", length_penalty, -LT_BEAM_PENALTY, LT_BEAM_PENALTY),               \
        LT_JSON("early_stopping", early_stopping), LT_BOOL("use_beam_search", use_beam_search),    \
        LT_ONLY("mirostat", "0|0.0"), LT_ONLY("dynatemp_range", "0|0.0"),                          \
        LT_F64("dry_multiplier", dry_multiplier, 0, 1e6), LT_F64("dry_base", dry_base, 1, 1e3),    \
        LT_I64("dry_allowed_length", dry_allowed, 0, 1e9),                                         \
        LT_I64("dry_penalty_last_n", dry_last_n, -1, 1e9),                                         \
        LT_JSON("dry_sequence_breakers", dry_breakers),                                            \
        LT_F64("xtc_probability", xtc_probability, 0, 1),                                          \
        LT_F64("xtc_threshold", xtc_threshold, 0, 1), LT_JSON("lora", lora),                       \
        LT_BOOL("speculate", speculate), LT_I64("speculative.n_max", most_drafts, 0, 1e9),         \
        LT_I64("n_keep", n_keep, -1, 1e9), LT_I64("n_discard", n_discard, 0, 1e9),                 \
        LT_ONLY("logits_processors", "[]"), LT_JSON("bad_words", bad_words),                       \
        LT_JSON("allowed_token_ids", allowed_ids),                                                 \
        LT_I64("truncate_prompt_tokens", truncate_prompt, -1, 1e9),                                \
        LT_ONLY("truncation_side", "\"left\""),                                                    \
        LT_BOOL("return_tokens_as_token_ids", tokens_as_ids),                                      \
        LT_ONLY("top_n_sigma", "-1|-1.0|0|0.0"), LT_ONLY("tfs_z", "1|1.0"), LT_FIELDS_IDLE,        \
        LT_I64("repeat_last_n", repeat_last_n, -1, 1e9)

void lt_api_params_defaults(lt_api_params *a); /* OpenAI's: temperature 1, n 1, ... */
/* Override them with the server's defaults (an object of sampling fields and max_tokens, or NULL);
 * its tree must outlive the parameters. */
bool lt_api_params_preset(lt_api_params *a, const json_t *preset, lt_api_error *e);
void lt_api_params_free(lt_api_params *a);

/* Parse the body (a JSON object) by the table. False: *e is the answer. */
bool lt_api_params_read(lt_api_params *a, const lt_field *rows, size_t n_rows, const char *body,
                        size_t bytes, lt_api_error *e);
/* The same with a parsed body, which the parameters take over. */
bool lt_api_params_read_body(lt_api_params *a, const lt_field *rows, size_t n_rows, lt_body *body,
                             lt_api_error *e);
/* Read a nested object (stream_options, ...) by a table of fields. `where` is the prefix of
 * parameter names in messages. */
bool lt_api_params_object(lt_api_params *a, const json_t *object, const lt_field *rows,
                          size_t n_rows, const char *where, lt_api_error *e);

/* Parse the body as a JSON object, which the caller releases; NULL: see *e. A body with more than
 * LT_BODY_VALUES values is refused, because each takes about 100 bytes of memory. */
#define LT_BODY_VALUES ((size_t)4 << 20)
json_t *lt_body_parse(const char *body, size_t bytes, lt_api_error *e);

/* The name that the request uses for a field, among synonyms (NULL at the end); the first if it
 * uses none. */
const char *lt_api_params_said(const lt_api_params *a, const char *const *names);

/* The row of a table (base/option.h: its first member is its name) that the text of a field names;
 * NULL: *e says that there is none, and suggests a near name. */
const void *lt_api_params_row(const char *text, const char *param, const void *rows,
                              size_t row_bytes, size_t n, lt_api_error *e);

/* A string, or a list of at most `most` strings, as n pointers into the tree. */
bool lt_api_params_strings(const json_t *value, const char *param, const char **texts,
                           size_t *lengths, int most, int *n, lt_api_error *e);

#endif
