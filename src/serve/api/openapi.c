/* openapi.c: see openapi.h. Paths come from route.c, fields from the tables by which requests are
 * read. This file adds only what these lack: a line about each endpoint, and the schema of fields
 * that are more than a number, a string or a boolean. */
#include "serve/api/openapi.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "lateen/base.h"
#include "serve/api/route.h"

#define TABLES(X)                                                                                  \
    X(chat)                                                                                        \
    X(chat_update)                                                                                 \
    X(completions)                                                                                 \
    X(alignment)                                                                                   \
    X(reasoning)                                                                                   \
    X(responses)                                                                                   \
    X(messages)                                                                                    \
    X(embeddings)                                                                                  \
    X(score)                                                                                       \
    X(rerank)                                                                                      \
    X(classify)                                                                                    \
    X(pooling)                                                                                     \
    X(upload_create)                                                                               \
    X(upload_complete)                                                                             \
    X(batch_create)                                                                                \
    X(tuning_create)                                                                               \
    X(lora_load)                                                                                   \
    X(lora_unload)                                                                                 \
    X(infill)                                                                                      \
    X(completion)                                                                                  \
    X(tokenize)                                                                                    \
    X(detokenize)                                                                                  \
    X(apply_template)                                                                              \
    X(slot_action)                                                                                 \
    X(ollama_chat)                                                                                 \
    X(ollama_generate)                                                                             \
    X(ollama_options)                                                                              \
    X(ollama_embed)                                                                                \
    X(ollama_embeddings)                                                                           \
    X(ollama_show)                                                                                 \
    X(model_load)
#define DECLARE(name) extern const lt_field_table lt_fields_##name;
TABLES(DECLARE)
#undef DECLARE

#define SSE    "text/event-stream"
#define NDJSON "application/x-ndjson"

/* One row for each handler. */
static const struct {
    void (*handler)(lt_call *call);
    const char *name, *says, *stream; /* stream: the type of an answer in parts; NULL: none. */
    const lt_field_table *fields;     /* NULL: no body. */
    const char *parameter;            /* Parameter at the end of the path; NULL: none. */
} calls[] = {
    {lt_api_chat, "chat", "OpenAI's chat completions", SSE, &lt_fields_chat, NULL},
    {lt_api_chat_tokens, "chat_tokens", "Tokens of a chat request's prompt", NULL, &lt_fields_chat,
     NULL},
    {lt_api_chat_list, "chat_list", "Stored chat completions", NULL, NULL, NULL},
    {lt_api_chat_get, "chat_get", "A chat completion that was stored", NULL, NULL, "completion_id"},
    {lt_api_chat_update, "chat_update", "Replace its metadata", NULL, &lt_fields_chat_update,
     "completion_id"},
    {lt_api_chat_delete, "chat_delete", "Forget it", NULL, NULL, "completion_id"},
    {lt_api_completions, "completions", "OpenAI's completions", SSE, &lt_fields_completions, NULL},
    {lt_api_responses, "responses", "OpenAI's responses", SSE, &lt_fields_responses, NULL},
    {lt_api_response_tokens, "response_tokens", "Tokens of such a request's prompt", NULL,
     &lt_fields_responses, NULL},
    {lt_api_response_get, "response_get", "A response that was kept", NULL, NULL, "response_id"},
    {lt_api_response_delete, "response_delete", "Forget a response", NULL, NULL, "response_id"},
    {lt_api_messages, "messages", "Anthropic's messages", SSE, &lt_fields_messages, NULL},
    {lt_api_count_tokens, "count_tokens", "Tokens of such a request's prompt", NULL,
     &lt_fields_messages, NULL},
    {lt_api_embeddings, "embeddings", "OpenAI's embeddings", NULL, &lt_fields_embeddings, NULL},
    {lt_api_score, "score", "Scores of pairs of texts", NULL, &lt_fields_score, NULL},
    {lt_api_rerank, "rerank", "Documents in the order of their relevance", NULL, &lt_fields_rerank,
     NULL},
    {lt_api_classify, "classify", "Labels of texts", NULL, &lt_fields_classify, NULL},
    {lt_api_pooling, "pooling", "What a model says of texts, as numbers", NULL, &lt_fields_pooling,
     NULL},
    {lt_api_file_create, "file_create", "Upload a file, as a form", NULL, NULL, NULL},
    {lt_api_file_list, "file_list", "Files that are kept", NULL, NULL, NULL},
    {lt_api_file_get, "file_get", "A file", NULL, NULL, "file_id"},
    {lt_api_file_delete, "file_delete", "Delete a file", NULL, NULL, "file_id"},
    {lt_api_upload_create, "upload_create", "Begin to upload a file in parts", NULL,
     &lt_fields_upload_create, NULL},
    {lt_api_batch_create, "batch_create", "Answer the requests of a file in the background", NULL,
     &lt_fields_batch_create, NULL},
    {lt_api_batch_list, "batch_list", "Batches", NULL, NULL, NULL},
    {lt_api_batch_get, "batch_get", "A batch", NULL, NULL, "batch_id"},
    {lt_api_tuning_create, "tuning_create", "Train an adapter of the model", NULL,
     &lt_fields_tuning_create, NULL},
    {lt_api_tuning_list, "tuning_list", "Jobs of fine-tuning", NULL, NULL, NULL},
    {lt_api_tuning_get, "tuning_get", "A job of fine-tuning", NULL, NULL, "fine_tuning_job_id"},
    {lt_api_model_delete, "model_delete", "Delete a model that fine-tuning has made", NULL, NULL,
     "model"},
    {lt_api_completion, "completion", "llama-server's completion", SSE, &lt_fields_completion,
     NULL},
    {lt_api_ollama_chat, "ollama_chat", "Ollama's chat", NDJSON, &lt_fields_ollama_chat, NULL},
    {lt_api_ollama_generate, "ollama_generate", "Ollama's generate", NDJSON,
     &lt_fields_ollama_generate, NULL},
    {lt_api_ollama_embed, "ollama_embed", "Ollama's embed", NULL, &lt_fields_ollama_embed, NULL},
    {lt_api_ollama_embeddings, "ollama_embeddings", "Ollama's embeddings", NULL,
     &lt_fields_ollama_embeddings, NULL},
    {lt_api_ollama_tags, "ollama_tags", "Ollama's list of models", NULL, NULL, NULL},
    {lt_api_ollama_ps, "ollama_ps", "Ollama's running models", NULL, NULL, NULL},
    {lt_api_ollama_show, "ollama_show", "About the model, as Ollama tells it", NULL,
     &lt_fields_ollama_show, NULL},
    {lt_api_infill, "infill", "What stands between two texts", SSE, &lt_fields_infill, NULL},
    {lt_api_props, "props", "llama-server's properties", NULL, NULL, NULL},
    {lt_api_slots, "slots", "llama-server's slots", NULL, NULL, NULL},
    {lt_api_slot_action, "slot_action", "Save, restore or erase the pages of a text", NULL,
     &lt_fields_slot_action, "id_slot"},
    {lt_api_tokenize, "tokenize", "Text to ids", NULL, &lt_fields_tokenize, NULL},
    {lt_api_tokenizer_info, "tokenizer_info", "What the tokenizer is", NULL, NULL, NULL},
    {lt_api_detokenize, "detokenize", "Ids to text", NULL, &lt_fields_detokenize, NULL},
    {lt_api_apply_template, "apply_template", "Messages to a prompt", NULL,
     &lt_fields_apply_template, NULL},
    {lt_api_lora_load, "lora_load", "Name one more adapter, as in vLLM", NULL, &lt_fields_lora_load,
     NULL},
    {lt_api_lora_unload, "lora_unload", "Forget an adapter's name", NULL, &lt_fields_lora_unload,
     NULL},
    {lt_api_lora_list, "lora_list", "Adapters and their scales, as llama-server tells them", NULL,
     NULL, NULL},
    {lt_api_lora_scale, "lora_scale", "Scales of requests that name no adapter", NULL, NULL, NULL},
    {lt_api_models, "models", "The model that is served", NULL, NULL, NULL},
    {lt_api_model, "model", "The model that is served", NULL, NULL, "model"},
    {lt_api_model_load, "model_load", "Load one of several models", NULL, &lt_fields_model_load,
     NULL},
    {lt_api_model_unload, "model_unload", "Unload it once it is idle", NULL, &lt_fields_model_load,
     NULL},
    {lt_api_health, "health", "Whether it is ready", NULL, NULL, NULL},
    {lt_api_version, "version", "Its version", NULL, NULL, NULL},
    {lt_api_openapi, "openapi", "This description", NULL, NULL, NULL},
    {lt_api_status_json, "status", "Numbers of the status page", NULL, NULL, NULL}};
#define N_CALLS (sizeof calls / sizeof *calls)

/* JSON schemas of fields that are read as JSON; others may be anything. */
static const struct {
    const char *name, *schema;
} shapes[] = {
    {"lora", "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"id\":{\"type\":"
             "[\"integer\",\"string\"]},\"scale\":{\"type\":\"number\"}},\"required\":[\"id\","
             "\"scale\"]}}"},
    {"messages", "{\"type\":\"array\",\"items\":{\"type\":\"object\"}}"},
    {"tools", "{\"type\":\"array\",\"items\":{\"type\":\"object\"}}"},
    {"tool_choice", "{\"type\":[\"string\",\"object\"]}"},
    {"response_format", "{\"type\":\"object\"}"},
    {"stream_options", "{\"type\":\"object\"}"},
    {"border", "{\"type\":[\"string\",\"array\"],\"items\":{\"type\":\"string\"}}"},
    {"alignment", "{\"$ref\":\"#/components/schemas/alignment\"}"},
    {"output_expires_after", "{\"type\":\"object\"}"},
    {"expires_after", "{\"type\":\"object\"}"},
    {"part_ids", "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}"},
    {"reward", "{\"type\":[\"string\",\"object\"]}"},
    {"chat_template_kwargs", "{\"type\":\"object\"}"},
    {"metadata", "{\"type\":\"object\"}"},
    {"options", "{\"$ref\":\"#/components/schemas/ollama_options\"}"},
    {"format", "{\"type\":[\"string\",\"object\"]}"},
    {"think", "{\"type\":[\"boolean\",\"string\"]}"},
    {"text", "{\"type\":\"object\"}"},
    {"reasoning", "{\"type\":\"object\"}"},
    {"thinking", "{\"type\":\"object\"}"},
    {"thread", "{\"type\":\"object\"}"},
    {"context_management", "{\"type\":\"object\"}"},
    {"output_config", "{\"type\":\"object\"}"},
    {"include", "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}"},
    {"store", "{\"type\":\"boolean\"}"},
    {"enable_thinking", "{\"type\":\"boolean\"}"},
    {"stop", "{\"type\":[\"string\",\"array\"],\"items\":{\"type\":\"string\"}}"},
    {"stop_sequences", "{\"type\":[\"string\",\"array\"],\"items\":{\"type\":\"string\"}}"},
    {"stop_token_ids", "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}"},
    {"allowed_token_ids", "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}"},
    {"bad_words", "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}"},
    {"tokens", "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}"},
    {"context", "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}"},
    {"logit_bias", "{\"type\":[\"object\",\"array\"]}"},
    {"guided_choice", "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}"},
    {"structured_outputs", "{\"type\":\"object\"}"},
    {"queries", "{\"type\":[\"string\",\"array\"]}"},
    {"documents", "{\"type\":[\"string\",\"array\"]}"},
    {"text_1", "{\"type\":[\"string\",\"array\"]}"},
    {"text_2", "{\"type\":[\"string\",\"array\"]}"},
    {"data_1", "{\"type\":[\"string\",\"array\"]}"},
    {"data_2", "{\"type\":[\"string\",\"array\"]}"},
    {"query", "{\"type\":\"string\"}"},
    {"negative", "{\"type\":[\"string\",\"array\"]}"},
    {"early_stopping", "{\"type\":[\"boolean\",\"string\"]}"},
    {"input", "{\"type\":[\"string\",\"array\"]}"},
    {"system", "{\"type\":[\"string\",\"array\"]}"},
    {"logprobs", "{\"type\":[\"boolean\",\"integer\"]}"}};

static void put_raw(lt_json_out *o, const char *json) {
    lt_out_raw(o, json, strlen(json));
    o->comma = true;
}

/* ---- One field ---- */

static const char *shape_of(const char *name) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (strcmp(shapes[i].name, name) == 0) {
            return shapes[i].schema;
        }
    }
    return NULL;
}

static bool is_whole(double x) {
    return x >= -0x1p53 && x <= 0x1p53 && x == (double)(int64_t)x;
}

static void put_bound(lt_json_out *o, const char *key, double x) {
    if (is_whole(x)) {
        lt_out_key_int(o, key, (int64_t)x);
    } else if (x > -0x1p60 && x < 0x1p60) {
        lt_out_key_real(o, key, x);
    }
}

static void put_type(lt_json_out *o, const char *type) {
    lt_out_key_open(o, "type", '[');
    lt_out_text(o, type);
    lt_out_text(o, "null");
    lt_out_shut(o, ']');
}

/* The values of ONLY: JSON texts separated by bars. */
static void put_values(lt_json_out *o, const char *note) {
    lt_out_key_open(o, "enum", '[');
    for (const char *p = note; *p != '\0';) {
        const size_t n = strcspn(p, "|");
        lt_out_raw(o, ",", o->comma ? 1 : 0);
        lt_out_raw(o, p, n);
        o->comma = true;
        p += n + (p[n] == '|');
    }
    if (strcmp(note, "null") != 0) {
        lt_out_null(o);
    }
    lt_out_shut(o, ']');
}

static void put_field(lt_json_out *o, const lt_field *f) {
    const char *shape = shape_of(f->name);
    lt_out_key(o, f->name);
    if (f->type == LT_FIELD_JSON && shape != NULL) {
        lt_out_raw(o, "{\"anyOf\":[", 10);
        lt_out_raw(o, shape, strlen(shape));
        put_raw(o, ",{\"type\":\"null\"}]}");
        return;
    }
    lt_out_open(o, '{');
    switch (f->type) {
    case LT_FIELD_BOOL:
        put_type(o, "boolean");
        break;
    case LT_FIELD_STR:
        put_type(o, "string");
        break;
    case LT_FIELD_I64:
    case LT_FIELD_F64:
        put_type(o, f->type == LT_FIELD_I64 ? "integer" : "number");
        put_bound(o, "minimum", f->min);
        put_bound(o, "maximum", f->max);
        break;
    case LT_FIELD_NOTHING:
        lt_out_key_str(o, "description", "accepted: no part of the answer depends on it");
        break;
    case LT_FIELD_ONLY:
        put_values(o, f->note);
        break;
    case LT_FIELD_JSON:
    case LT_FIELD_REFUSED:
        break;
    }
    lt_out_shut(o, '}');
}

/* ---- Schemas ---- */

static void put_required(lt_json_out *o, const char *names) {
    if (names[0] == '\0') {
        return;
    }
    lt_out_key_open(o, "required", '[');
    while (*names != '\0') {
        const size_t n = strcspn(names, ",");
        lt_out_str(o, names, n);
        names += n + (names[n] == ',');
    }
    lt_out_shut(o, ']');
}

static void put_table(lt_json_out *o, const char *name, const lt_field_table *t) {
    lt_out_key_open(o, name, '{');
    lt_out_key_str(o, "type", "object");
    lt_out_key_open(o, "properties", '{');
    for (size_t i = 0; i < t->n; i++) {
        if (t->rows[i].type != LT_FIELD_REFUSED) {
            put_field(o, &t->rows[i]);
        }
    }
    lt_out_shut(o, '}');
    put_required(o, t->required);
    lt_out_key_bool(o, "additionalProperties", false);
    lt_out_shut(o, '}');
}

static void put_components(lt_json_out *o) {
    lt_out_key_open(o, "components", '{');
    lt_out_key_open(o, "schemas", '{');
#define PUT(name) put_table(o, #name, &lt_fields_##name);
    TABLES(PUT)
#undef PUT
    lt_out_key(o, "error");
    put_raw(o, "{\"type\":\"object\",\"properties\":{\"error\":{\"type\":[\"object\",\"string\"]}},"
               "\"required\":[\"error\"]}");
    lt_out_shut(o, '}');
    lt_out_key(o, "securitySchemes");
    put_raw(o, "{\"bearer\":{\"type\":\"http\",\"scheme\":\"bearer\"},\"key\":{\"type\":\"apiKey\","
               "\"in\":\"header\",\"name\":\"x-api-key\"}}");
    lt_out_shut(o, '}');
}

/* ---- Paths ---- */

static int call_of(const lt_route_info *r) {
    for (size_t i = 0; i < N_CALLS; i++) {
        if (calls[i].handler == r->handler) {
            return (int)i;
        }
    }
    return -1; /* Pages, metrics, and refused endpoints. */
}

static void put_method(lt_json_out *o, const char *method) {
    char lower[8];
    size_t n = strlen(method);
    n = n < sizeof lower - 1 ? n : sizeof lower - 1;
    for (size_t i = 0; i < n; i++) {
        lower[i] = (char)(method[i] | 32);
    }
    lower[n] = '\0';
    lt_out_key_open(o, lower, '{');
}

static void put_responses(lt_json_out *o, const char *stream) {
    lt_out_key_open(o, "responses", '{');
    lt_out_key_open(o, "200", '{');
    lt_out_key_str(o, "description", "the answer");
    lt_out_key_open(o, "content", '{');
    lt_out_key(o, "application/json");
    put_raw(o, "{\"schema\":{\"type\":\"object\"}}");
    if (stream != NULL) {
        lt_out_key(o, stream);
        put_raw(o, "{\"schema\":{\"type\":\"string\"}}");
    }
    lt_out_shut(o, '}');
    lt_out_shut(o, '}');
    lt_out_key(o, "default");
    put_raw(o, "{\"description\":\"an error, in the shape of the endpoint's clients\",\"content\":{"
               "\"application/json\":{\"schema\":{\"$ref\":\"#/components/schemas/error\"}}}}");
    lt_out_shut(o, '}');
}

/* The only bodies that are not JSON: a file, and a part of one. */
static const char form[] =
    "{\"required\":true,\"content\":{\"multipart/form-data\":{\"schema\":{\"type\":\"object\","
    "\"properties\":{\"file\":{\"type\":\"string\",\"format\":\"binary\"},\"purpose\":{\"enum\":["
    "\"batch\",\"fine-tune\"]},\"expires_after[anchor]\":{\"enum\":[\"created_at\"]},"
    "\"expires_after[seconds]\":{\"type\":\"integer\",\"minimum\":3600,\"maximum\":2592000}},"
    "\"required\":[\"file\",\"purpose\"]}}}}";

static void put_operation(lt_json_out *o, const lt_route_info *r, int i, int number) {
    char id[96], ref[128];
    const lt_field_table *fields = calls[i].fields;

    put_method(o, r->method);
    snprintf(id, sizeof id, "%s_%d", calls[i].name, number);
    lt_out_key_str(o, "operationId", id);
    lt_out_key_str(o, "summary", calls[i].says);
    if (r->open) { /* No key is required. */
        lt_out_key_open(o, "security", '[');
        lt_out_shut(o, ']');
    }
    if (r->prefix) {
        lt_out_key_open(o, "parameters", '[');
        lt_out_rawf(o,
                    "{\"name\":\"%s\",\"in\":\"path\",\"required\":true,\"schema\":{\"type\":"
                    "\"string\"}}",
                    calls[i].parameter);
        lt_out_shut(o, ']');
    }
    if (fields != NULL) {
#define REF(name)                                                                                  \
    if (fields == &lt_fields_##name) {                                                             \
        snprintf(ref, sizeof ref, "{\"schema\":{\"$ref\":\"#/components/schemas/" #name "\"}}");   \
    }
        ref[0] = '\0';
        TABLES(REF)
#undef REF
        lt_out_key_open(o, "requestBody", '{');
        lt_out_key_bool(o, "required", true);
        lt_out_key_open(o, "content", '{');
        lt_out_key(o, "application/json");
        put_raw(o, ref);
        lt_out_shut(o, '}');
        lt_out_shut(o, '}');
    }
    if (calls[i].handler == lt_api_file_create) {
        lt_out_key(o, "requestBody");
        put_raw(o, form);
    }
    put_responses(o, calls[i].stream);
    lt_out_shut(o, '}');
}

/* All methods of one path are adjacent. */
static void put_path(lt_json_out *o, int first) {
    lt_route_info r, other;
    char path[200];

    lt_route_at(first, &r);
    snprintf(path, sizeof path, "%s%s%s%s", r.path, r.prefix ? "{" : "",
             r.prefix ? calls[call_of(&r)].parameter : "", r.prefix ? "}" : "");
    lt_out_key_open(o, path, '{');
    for (int i = first; lt_route_at(i, &other); i++) {
        const int call = call_of(&other);
        if (call >= 0 && strcmp(other.path, r.path) == 0) {
            put_operation(o, &other, call, i);
        }
    }
    lt_out_shut(o, '}');
}

/* The query parameters of a list. */
static const char list_query[] = ",{\"name\":\"limit\",\"in\":\"query\",\"schema\":{\"type\":"
                                 "\"integer\",\"minimum\":1,\"maximum\":"
                                 "100}},{\"name\":\"order\",\"in\":\"query\",\"schema\":{\"enum\":["
                                 "\"asc\",\"desc\"]}},{\"name\":"
                                 "\"after\",\"in\":\"query\",\"schema\":{\"type\":\"string\"}}";

static const char form_of_part[] =
    "\"multipart/form-data\":{\"schema\":{\"type\":\"object\",\"properties\":{\"data\":{"
    "\"type\":\"string\",\"format\":\"binary\"}},\"required\":[\"data\"]}}";
static const char end_of_upload[] =
    "\"application/json\":{\"schema\":{\"$ref\":\"#/components/schemas/upload_complete\"}}";

/* A call after an id: path{parameter}/tail, which the id's prefix route answers. query: its other
 * parameters, with a comma before each, or "". content: of its body; NULL: it has none. */
static void put_below(lt_json_out *o, const char *method, const char *path, const char *parameter,
                      const char *tail, const char *query, const char *content, const char *name,
                      const char *says) {
    lt_out_raw(o, ",", 1);
    lt_out_rawf(o, "\"%s{%s}/%s\":{\"%s\":{\"operationId\":\"%s\",\"summary\":\"%s\",", path,
                parameter, tail, method, name, says);
    lt_out_rawf(o,
                "\"parameters\":[{\"name\":\"%s\",\"in\":\"path\",\"required\":true,\"schema\":{"
                "\"type\":\"string\"}}%s]",
                parameter, query);
    o->comma = true;
    if (content != NULL) {
        lt_out_rawf(o, ",\"requestBody\":{\"required\":true,\"content\":{%s}}", content);
    }
    put_responses(o, NULL);
    put_raw(o, "}}");
}

/* The paths after the id of a fine-tuning job. */
static const struct {
    const char *method, *path, *query, *name, *says;
} of_jobs[] = {
    {"get", "events", list_query, "tuning_events", "What happened to a job of fine-tuning"},
    {"get", "checkpoints", list_query, "tuning_checkpoints", "Its newest checkpoints"},
    {"post", "cancel", "", "tuning_cancel", "Cancel it"},
    {"post", "pause", "", "tuning_pause", "Let it save and end, to be resumed"},
    {"post", "resume", "", "tuning_resume", "Let it go on"}};

static void put_paths(lt_json_out *o) {
    lt_route_info r, before;
    lt_out_key_open(o, "paths", '{');
    for (int i = 0; lt_route_at(i, &r); i++) {
        bool told = call_of(&r) < 0;
        for (int k = 0; k < i && !told; k++) {
            lt_route_at(k, &before);
            told = strcmp(before.path, r.path) == 0 && call_of(&before) >= 0;
        }
        if (!told) {
            put_path(o, i);
        }
    }
    put_below(o, "get", "/v1/responses/", "response_id", "input_items", list_query, NULL,
              "response_items", "The items that a kept response answered");
    put_below(o, "get", "/v1/chat/completions/", "completion_id", "messages", list_query, NULL,
              "chat_messages", "The messages that a stored chat completion answered");
    put_below(o, "get", "/v1/files/", "file_id", "content", "", NULL, "file_content",
              "The file's content");
    put_below(o, "post", "/v1/uploads/", "upload_id", "parts", "", form_of_part, "upload_part",
              "Send a part of an upload");
    put_below(o, "post", "/v1/uploads/", "upload_id", "complete", "", end_of_upload,
              "upload_complete", "Make a file of the parts");
    put_below(o, "post", "/v1/uploads/", "upload_id", "cancel", "", NULL, "upload_cancel",
              "Cancel an upload");
    put_below(o, "post", "/v1/batches/", "batch_id", "cancel", "", NULL, "batch_cancel",
              "Cancel a batch");
    for (size_t i = 0; i < sizeof of_jobs / sizeof *of_jobs; i++) {
        put_below(o, of_jobs[i].method, "/v1/fine_tuning/jobs/", "fine_tuning_job_id",
                  of_jobs[i].path, of_jobs[i].query, NULL, of_jobs[i].name, of_jobs[i].says);
    }
    lt_out_shut(o, '}');
}

void lt_openapi_write(lt_json_out *o) {
    lt_out_open(o, '{');
    lt_out_key_str(o, "openapi", "3.1.0");
    lt_out_key_open(o, "info", '{');
    lt_out_key_str(o, "title", "lateen serve");
    lt_out_key_str(o, "version", lt_version());
    lt_out_key_str(o, "description",
                   "A language model behind the APIs of OpenAI, Anthropic, llama-server, vLLM and "
                   "Ollama. A field that is null counts as absent.");
    lt_out_shut(o, '}');
    lt_out_key(o, "security");
    put_raw(o, "[{},{\"bearer\":[]},{\"key\":[]}]");
    put_paths(o);
    put_components(o);
    lt_out_shut(o, '}');
}

void lt_api_openapi(lt_call *call) {
    lt_json_out o = {0};
    lt_openapi_write(&o);
    lt_call_json(call, 200, &o);
}

/* ---- Markdown ---- */

static void put_kind(lt_json_out *o, const lt_field *f) {
    static const char *const kinds[] = {"boolean", "integer", "number", "string", "JSON"};
    char low[32], high[32];
    switch (f->type) {
    case LT_FIELD_I64:
    case LT_FIELD_F64:
        snprintf(low, sizeof low, "%.10g", f->min);
        snprintf(high, sizeof high, "%.10g", f->max);
        lt_out_rawf(o, "%s, %s to %s | honoured", kinds[f->type], low, high);
        break;
    case LT_FIELD_NOTHING:
        lt_out_rawf(o, " | accepted");
        break;
    case LT_FIELD_ONLY:
        lt_out_rawf(o, "`");
        for (const char *p = f->note; *p != '\0'; p++) {
            lt_out_rawf(o, *p == '|' ? "`, `" : "%c", *p);
        }
        lt_out_rawf(o, "` | only this value");
        break;
    case LT_FIELD_REFUSED:
        lt_out_rawf(o, " | refused: %s", f->note);
        break;
    default:
        lt_out_rawf(o, "%s | honoured", kinds[f->type]);
        break;
    }
}

static void put_markdown(lt_json_out *o, const char *name, const lt_field_table *t) {
    lt_route_info r;
    lt_out_rawf(o, "\n## ");
    bool first = true;
    for (int i = 0; lt_route_at(i, &r); i++) {
        const int call = call_of(&r);
        if (call >= 0 && calls[call].fields == t && strcmp(r.method, "POST") == 0) {
            lt_out_rawf(o, "%s%s", first ? "" : ", ", r.path);
            first = false;
        }
    }
    lt_out_rawf(o, "%s\n\n| field | value | use |\n| --- | --- | --- |\n", first ? name : "");
    for (size_t i = 0; i < t->n; i++) {
        lt_out_rawf(o, "| %s | ", t->rows[i].name);
        put_kind(o, &t->rows[i]);
        lt_out_rawf(o, " |\n");
    }
}

void lt_fields_markdown(lt_json_out *o) {
    lt_out_rawf(
        o,
        "# Fields of the server's requests\n\nThis page is written by `lateen serve --describe "
        "fields` from the tables by which requests are read; `--describe openapi` and "
        "`/openapi.json` contain the same.\nAn *honoured* field has the effect that its API "
        "defines. An *accepted* field is ignored, because no part of the answer depends on it. A "
        "*refused* field, and any field that is not listed,\nis answered with 400 and its name. A "
        "field that is null counts as absent.\n");
#define PUT(name) put_markdown(o, #name, &lt_fields_##name);
    TABLES(PUT)
#undef PUT
}
