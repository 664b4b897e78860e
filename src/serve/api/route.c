/* route.c: see route.h. */
#include "serve/api/route.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "data/text_utf8.h"
#include "serve/api/access.h"
#include "serve/api/aside.h"
#include "serve/api/reply.h"

#define MAX_ORIGIN     200 /* Bytes: with an id of that length, lt_call.extra holds all lines. */
#define MAX_REQUEST_ID 128
/* Size of a large body; a smaller one takes a few milliseconds. */
#define ASIDE_BYTES ((size_t)256 << 10)

enum {
    OPEN = 1,   /* No key is required. */
    READY = 2,  /* 503 while the model loads. */
    WORK = 4,   /* 503 while the server ends. */
    PREFIX = 8, /* The route is a prefix of the path. */
    FORM = 16,  /* Its handler always runs on the worker pool, and reads the body itself. */
    MODEL = 32, /* The request may name one of several models. */
    TEXT = READY | WORK | MODEL
};

static const struct {
    const char *method, *path;
    void (*handler)(lt_call *call);
    lt_flavour flavour;
    unsigned flags;
} routes[] = {
    {"GET", "/v1/chat/completions/", lt_api_chat_get, LT_FLAVOUR_OPENAI, READY | PREFIX},
    {"POST", "/v1/chat/completions/", lt_api_chat_update, LT_FLAVOUR_OPENAI, READY | PREFIX},
    {"DELETE", "/v1/chat/completions/", lt_api_chat_delete, LT_FLAVOUR_OPENAI, READY | PREFIX},
    {"GET", "/v1/chat/completions", lt_api_chat_list, LT_FLAVOUR_OPENAI, READY},
    {"POST", "/v1/chat/completions", lt_api_chat, LT_FLAVOUR_OPENAI, TEXT},
    {"POST", "/chat/completions", lt_api_chat, LT_FLAVOUR_OPENAI, TEXT},
    {"POST", "/v1/chat/completions/input_tokens", lt_api_chat_tokens, LT_FLAVOUR_OPENAI, TEXT},
    {"POST", "/chat/completions/input_tokens", lt_api_chat_tokens, LT_FLAVOUR_OPENAI, TEXT},
    {"POST", "/v1/completions", lt_api_completions, LT_FLAVOUR_OPENAI, TEXT},
    {"POST", "/v1/responses", lt_api_responses, LT_FLAVOUR_OPENAI, TEXT},
    {"POST", "/responses", lt_api_responses, LT_FLAVOUR_OPENAI, TEXT},
    {"GET", "/v1/responses/", lt_api_response_get, LT_FLAVOUR_OPENAI, READY | PREFIX},
    {"DELETE", "/v1/responses/", lt_api_response_delete, LT_FLAVOUR_OPENAI, READY | PREFIX},
    {"POST", "/v1/responses/", lt_api_response_cancel, LT_FLAVOUR_OPENAI, READY | PREFIX},
    {"POST", "/v1/responses/input_tokens", lt_api_response_tokens, LT_FLAVOUR_OPENAI, TEXT},
    {"POST", "/v1/messages", lt_api_messages, LT_FLAVOUR_ANTHROPIC, TEXT},
    {"POST", "/v1/messages/count_tokens", lt_api_count_tokens, LT_FLAVOUR_ANTHROPIC, TEXT},
    {"POST", "/v1/files", lt_api_file_create, LT_FLAVOUR_OPENAI, FORM | WORK},
    {"GET", "/v1/files", lt_api_file_list, LT_FLAVOUR_OPENAI, 0},
    {"GET", "/v1/files/", lt_api_file_get, LT_FLAVOUR_OPENAI, PREFIX},
    {"DELETE", "/v1/files/", lt_api_file_delete, LT_FLAVOUR_OPENAI, PREFIX},
    {"POST", "/v1/uploads", lt_api_upload_create, LT_FLAVOUR_OPENAI, WORK},
    {"POST", "/v1/uploads/", lt_api_upload_change, LT_FLAVOUR_OPENAI, PREFIX | FORM | WORK},
    {"POST", "/v1/batches", lt_api_batch_create, LT_FLAVOUR_OPENAI, WORK},
    {"GET", "/v1/batches", lt_api_batch_list, LT_FLAVOUR_OPENAI, 0},
    {"GET", "/v1/batches/", lt_api_batch_get, LT_FLAVOUR_OPENAI, PREFIX},
    {"POST", "/v1/batches/", lt_api_batch_cancel, LT_FLAVOUR_OPENAI, PREFIX},
    {"POST", "/v1/fine_tuning/jobs", lt_api_tuning_create, LT_FLAVOUR_OPENAI, READY | WORK},
    {"GET", "/v1/fine_tuning/jobs", lt_api_tuning_list, LT_FLAVOUR_OPENAI, READY},
    {"GET", "/v1/fine_tuning/jobs/", lt_api_tuning_get, LT_FLAVOUR_OPENAI, READY | PREFIX},
    {"POST", "/v1/fine_tuning/jobs/", lt_api_tuning_change, LT_FLAVOUR_OPENAI,
     READY | WORK | PREFIX},
    {"POST", "/v1/embeddings", lt_api_embeddings, LT_FLAVOUR_OPENAI, TEXT},
    {"POST", "/embeddings", lt_api_embeddings, LT_FLAVOUR_OPENAI, TEXT},
    {"POST", "/v1/score", lt_api_score, LT_FLAVOUR_OPENAI, TEXT},
    {"POST", "/score", lt_api_score, LT_FLAVOUR_OPENAI, TEXT},
    {"POST", "/v1/rerank", lt_api_rerank, LT_FLAVOUR_OPENAI, TEXT},
    {"POST", "/v2/rerank", lt_api_rerank, LT_FLAVOUR_OPENAI, TEXT},
    {"POST", "/rerank", lt_api_rerank, LT_FLAVOUR_OPENAI, TEXT},
    {"POST", "/classify", lt_api_classify, LT_FLAVOUR_OPENAI, TEXT},
    {"POST", "/pooling", lt_api_pooling, LT_FLAVOUR_OPENAI, TEXT},
    {"POST", "/infill", lt_api_infill, LT_FLAVOUR_LLAMA, TEXT},
    {"POST", "/completion", lt_api_completion, LT_FLAVOUR_LLAMA, TEXT},
    {"POST", "/completions", lt_api_completion, LT_FLAVOUR_LLAMA, TEXT},
    {"POST", "/api/chat", lt_api_ollama_chat, LT_FLAVOUR_OLLAMA, TEXT},
    {"POST", "/api/generate", lt_api_ollama_generate, LT_FLAVOUR_OLLAMA, TEXT},
    {"POST", "/api/embed", lt_api_ollama_embed, LT_FLAVOUR_OLLAMA, TEXT},
    {"POST", "/api/embeddings", lt_api_ollama_embeddings, LT_FLAVOUR_OLLAMA, TEXT},
    {"GET", "/api/tags", lt_api_ollama_tags, LT_FLAVOUR_OLLAMA, READY},
    {"GET", "/api/ps", lt_api_ollama_ps, LT_FLAVOUR_OLLAMA, READY},
    {"POST", "/api/show", lt_api_ollama_show, LT_FLAVOUR_OLLAMA, READY | MODEL},
    {"GET", "/api/version", lt_api_version, LT_FLAVOUR_OLLAMA, OPEN},
    {"POST", "/api/pull", lt_api_ollama_refuse, LT_FLAVOUR_OLLAMA, 0},
    {"POST", "/api/push", lt_api_ollama_refuse, LT_FLAVOUR_OLLAMA, 0},
    {"POST", "/api/create", lt_api_ollama_refuse, LT_FLAVOUR_OLLAMA, 0},
    {"POST", "/api/copy", lt_api_ollama_refuse, LT_FLAVOUR_OLLAMA, 0},
    {"DELETE", "/api/delete", lt_api_ollama_refuse, LT_FLAVOUR_OLLAMA, 0},
    {"POST", "/api/blobs/", lt_api_ollama_refuse, LT_FLAVOUR_OLLAMA, PREFIX},
    {"GET", "/props", lt_api_props, LT_FLAVOUR_LLAMA, READY | MODEL},
    {"GET", "/slots", lt_api_slots, LT_FLAVOUR_LLAMA, READY | MODEL},
    {"POST", "/slots/", lt_api_slot_action, LT_FLAVOUR_LLAMA, FORM | READY | WORK | PREFIX},
    {"POST", "/tokenize", lt_api_tokenize, LT_FLAVOUR_LLAMA, READY | MODEL},
    {"GET", "/tokenizer_info", lt_api_tokenizer_info, LT_FLAVOUR_OPENAI, READY | MODEL},
    {"POST", "/detokenize", lt_api_detokenize, LT_FLAVOUR_LLAMA, READY | MODEL},
    {"POST", "/apply-template", lt_api_apply_template, LT_FLAVOUR_LLAMA, READY | MODEL},
    {"POST", "/v1/load_lora_adapter", lt_api_lora_load, LT_FLAVOUR_OPENAI, FORM | READY | WORK},
    {"POST", "/v1/unload_lora_adapter", lt_api_lora_unload, LT_FLAVOUR_OPENAI, READY | WORK},
    {"GET", "/lora-adapters", lt_api_lora_list, LT_FLAVOUR_LLAMA, READY},
    {"POST", "/lora-adapters", lt_api_lora_scale, LT_FLAVOUR_LLAMA, READY | WORK},
    {"GET", "/v1/models", lt_api_models, LT_FLAVOUR_OPENAI, READY},
    {"GET", "/models", lt_api_models, LT_FLAVOUR_OPENAI, READY},
    {"GET", "/v1/models/", lt_api_model, LT_FLAVOUR_OPENAI, READY | PREFIX},
    {"DELETE", "/v1/models/", lt_api_model_delete, LT_FLAVOUR_OPENAI, READY | PREFIX},
    {"POST", "/models/load", lt_api_model_load, LT_FLAVOUR_LLAMA, WORK},
    {"POST", "/models/unload", lt_api_model_unload, LT_FLAVOUR_LLAMA, WORK},
    {"GET", "/health", lt_api_health, LT_FLAVOUR_OPENAI, OPEN},
    {"GET", "/ping", lt_api_health, LT_FLAVOUR_OPENAI, OPEN},
    {"POST", "/ping", lt_api_health, LT_FLAVOUR_OPENAI, OPEN},
    {"GET", "/v1/health", lt_api_health, LT_FLAVOUR_OPENAI, OPEN},
    {"GET", "/openapi.json", lt_api_openapi, LT_FLAVOUR_OPENAI, OPEN},
    {"GET", "/version", lt_api_version, LT_FLAVOUR_OPENAI, OPEN},
    {"GET", "/metrics", lt_api_metrics, LT_FLAVOUR_OPENAI, READY},
    {"GET", "/status.json", lt_api_status_json, LT_FLAVOUR_OPENAI, 0},
    {"GET", "/", lt_api_chat_page, LT_FLAVOUR_OPENAI, OPEN},
    {"GET", "/index.html", lt_api_chat_page, LT_FLAVOUR_OPENAI, OPEN},
    {"GET", "/status", lt_api_status_page, LT_FLAVOUR_OPENAI, OPEN},
};
#define N_ROUTES ((int)(sizeof routes / sizeof *routes))

bool lt_route_at(int i, lt_route_info *out) {
    if (i >= N_ROUTES) {
        return false;
    }
    *out = (lt_route_info){.method = routes[i].method,
                           .path = routes[i].path,
                           .handler = routes[i].handler,
                           .prefix = (routes[i].flags & PREFIX) != 0,
                           .open = (routes[i].flags & OPEN) != 0};
    return true;
}

/* ---- Errors ---- */

static const char *anthropic_type(int status) {
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 529:
        return "overloaded_error";
    default:
        return status < 500 ? "invalid_request_error" : "api_error";
    }
}

/* For Anthropic's clients, 529 means a full or starting server, and 429 that their own quota is
 * used up. */
int lt_error_status(lt_flavour flavour, const lt_api_error *e) {
    const bool full = e->status == 503 || (e->code != NULL && strcmp(e->code, "queue_full") == 0);
    return flavour == LT_FLAVOUR_ANTHROPIC && full ? 529 : e->status;
}

/* "request-id: ...\r\n" */
static void put_request_id(lt_json_out *o, const char *extra) {
    const char *id = extra != NULL ? strchr(extra, ' ') : NULL;
    lt_out_key(o, "request_id");
    if (id != NULL) {
        lt_out_str(o, id + 1, strcspn(id + 1, "\r"));
    } else {
        lt_out_null(o);
    }
}

void lt_error_write(lt_json_out *o, lt_flavour flavour, const char *extra, const lt_api_error *e) {
    char message[3 * sizeof e->message], param[3 * sizeof e->param];
    const size_t n = lt_utf8_replace_invalid(message, e->message, strlen(e->message));
    const size_t param_n = lt_utf8_replace_invalid(param, e->param, strlen(e->param));

    lt_out_open(o, '{');
    if (flavour == LT_FLAVOUR_OLLAMA) {
        lt_out_key(o, "error");
        lt_out_str(o, message, n);
        lt_out_shut(o, '}');
        return;
    }
    if (flavour == LT_FLAVOUR_ANTHROPIC) {
        lt_out_key_str(o, "type", "error");
    }
    lt_out_key_open(o, "error", '{');
    lt_out_key(o, "message");
    lt_out_str(o, message, n);
    lt_out_key_str(o, "type",
                   flavour == LT_FLAVOUR_ANTHROPIC ? anthropic_type(lt_error_status(flavour, e))
                                                   : e->type);
    if (flavour != LT_FLAVOUR_ANTHROPIC) {
        lt_out_key(o, "param");
        if (param_n > 0) {
            lt_out_str(o, param, param_n);
        } else {
            lt_out_null(o);
        }
        if (flavour == LT_FLAVOUR_LLAMA) {
            lt_out_key_int(o, "code", e->status);
        } else {
            lt_out_key_str(o, "code", e->code);
        }
        if (e->n_context > 0) { /* llama-server's clients use these to shorten their history. */
            lt_out_key_int(o, "n_prompt_tokens", e->n_prompt);
            lt_out_key_int(o, "n_ctx", e->n_context);
        }
    } else if (e->detail != NULL) {
        lt_out_key_open(o, "details", '{');
        lt_out_key_str(o, "error_code", e->detail);
        lt_out_shut(o, '}');
    }
    lt_out_shut(o, '}');
    if (flavour == LT_FLAVOUR_ANTHROPIC) {
        put_request_id(o, extra);
    }
    lt_out_shut(o, '}');
}

void lt_call_json(lt_call *call, int status, lt_json_out *body) {
    if (call->outcome != NULL) {
        call->outcome->status = status;
        call->outcome->body = *body;
        *body = (lt_json_out){0};
        return;
    }
    if (body->failed) {
        static const char text[] = "{\"error\":{\"message\":\"out of memory\"}}";
        lt_http_reply(call->conn, 503, "application/json", call->extra, text, sizeof text - 1);
    } else {
        lt_http_reply(call->conn, status, "application/json", call->extra, body->data, body->n);
    }
    lt_out_free(body);
}

void lt_call_success(lt_call *call) {
    lt_json_out o = {0};
    lt_out_open(&o, '{');
    lt_out_key_bool(&o, "success", true);
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
}

void lt_call_error(lt_call *call, const lt_api_error *e) {
    lt_json_out o = {0};
    const size_t n = strlen(call->extra);
    if (e->retry_after_s > 0) {
        snprintf(call->extra + n, sizeof call->extra - n, "Retry-After: %d\r\n", e->retry_after_s);
    }
    if (call->outcome != NULL) {
        call->outcome->error = true;
    } else {
        lt_server_front(call->server)->metrics.http_errors += !call->background;
    }
    lt_error_write(&o, call->flavour, call->extra, e);
    lt_call_json(call, lt_error_status(call->flavour, e), &o);
}

static void answer_error(lt_call *call, int status, const char *type, const char *code,
                         const char *message) {
    lt_api_error e = {.status = status, .type = type, .code = code};
    e.retry_after_s = status == 503 ? 1 : 0;
    snprintf(e.message, sizeof e.message, "%s", message);
    lt_call_error(call, &e);
}

/* ---- The request's id ---- */

/* Whether a client's id is printable, and short enough for a line of a log. */
static bool plain_id(const char *id) {
    const size_t n = id != NULL ? strlen(id) : 0;
    for (size_t i = 0; i < n; i++) {
        if (id[i] < 0x20 || id[i] > 0x7E) {
            return false;
        }
    }
    return n > 0 && n <= MAX_REQUEST_ID;
}

/* The client's own id, otherwise ours, which the answer's id contains. OpenAI's clients show it as
 * _request_id; Anthropic's read another header. */
static void put_id(lt_call *call) {
    const bool anthropic = call->flavour == LT_FLAVOUR_ANTHROPIC;
    const char *own = lt_http_header_get(call->request->head, "x-request-id");

    own = own == NULL && anthropic ? lt_http_header_get(call->request->head, "request-id") : own;
    lt_server_make_id(call->server, "", call->id);
    snprintf(call->extra, sizeof call->extra, "%s: %s\r\n",
             anthropic ? "request-id" : "x-request-id", plain_id(own) ? own : call->id);
}

/* ---- CORS ---- */

/* False: its page may not call the server. */
static bool put_cors(lt_call *call) {
    const lt_server *s = call->server;
    const char *origin = lt_http_header_get(call->request->head, "origin");
    const bool any = strcmp(s->o.cors, "*") == 0;
    const size_t n = strlen(call->extra);

    if (origin == NULL || strlen(origin) > MAX_ORIGIN || !lt_access_cors(s, origin)) {
        return false;
    }
    snprintf(call->extra + n, sizeof call->extra - n,
             "Access-Control-Allow-Origin: %s\r\n%s"
             "Access-Control-Expose-Headers: Retry-After, %s\r\n",
             any ? "*" : origin, any ? "" : "Vary: Origin\r\n",
             call->flavour == LT_FLAVOUR_ANTHROPIC ? "request-id" : "x-request-id");
    return true;
}

/* A browser asks before a page may call. All headers that the page wants to send are allowed,
 * because vendors' clients send about a dozen of their own. */
static void answer_preflight(lt_call *call, bool allowed) {
    char headers[2048];
    const char *asked = lt_http_header_get(call->request->head, "access-control-request-headers");
    if (asked == NULL || strlen(asked) > 1024) {
        asked = "authorization, content-type, x-api-key";
    }
    snprintf(headers, sizeof headers,
             "%sAccess-Control-Allow-Methods: GET, POST, OPTIONS\r\n"
             "Access-Control-Allow-Headers: %s\r\nAccess-Control-Max-Age: 600\r\n",
             call->extra, asked);
    lt_http_reply(call->conn, 204, NULL, allowed ? headers : call->extra, NULL, 0);
}

/* ---- Dispatch ---- */

static bool path_fits(int i, const char *path) {
    const size_t n = strlen(routes[i].path);
    return (routes[i].flags & PREFIX) != 0 ? strncmp(path, routes[i].path, n) == 0
                                           : strcmp(path, routes[i].path) == 0;
}

/* The route, or -1; methods collects the methods that the path allows, each once: a path may fit
 * a prefix, too. No method's name is part of another's. */
static int find_route(const lt_http_request *r, char *methods, size_t n) {
    int found = -1;
    methods[0] = '\0';
    for (int i = 0; i < N_ROUTES; i++) {
        if (!path_fits(i, r->path)) {
            continue;
        }
        if (strstr(methods, routes[i].method) == NULL) {
            snprintf(methods + strlen(methods), n - strlen(methods), "%s%s",
                     methods[0] != '\0' ? ", " : "", routes[i].method);
        }
        if (strcmp(r->method, routes[i].method) == 0 ||
            (strcmp(r->method, "HEAD") == 0 && strcmp(routes[i].method, "GET") == 0)) {
            found = i;
        }
    }
    return found;
}

static void no_route(lt_call *call, const char *methods) {
    char message[400];
    const size_t n = strlen(call->extra);
    if (methods[0] == '\0') {
        snprintf(message, sizeof message, "there is no %.200s here", call->request->path);
        answer_error(call, 404, "not_found_error", "not_found", message);
        return;
    }
    snprintf(call->extra + n, sizeof call->extra - n, "Allow: %s\r\n", methods);
    snprintf(message, sizeof message, "%.200s is for %s, not %.40s", call->request->path, methods,
             call->request->method);
    answer_error(call, 405, "invalid_request_error", "method_not_allowed", message);
}

/* A compressed body is not supported. */
static bool check_coding(lt_call *call) {
    const char *coding = lt_http_header_get(call->request->head, "content-encoding");
    char message[200];
    if (coding == NULL || coding[0] == '\0' || strcasecmp(coding, "identity") == 0) {
        return true;
    }
    snprintf(message, sizeof message,
             "Content-Encoding: %.60s is not supported here: send the body uncompressed", coding);
    answer_error(call, 415, "invalid_request_error", "unsupported_content_encoding", message);
    return false;
}

static bool check_state(lt_call *call, unsigned flags) {
    lt_server *s = call->server;
    if ((flags & READY) != 0 && atomic_load(&s->state) != LT_SERVER_READY) {
        answer_error(call, 503, "unavailable_error", "loading", "the model is being loaded");
        return false;
    }
    if ((flags & WORK) != 0 && s->draining) {
        answer_error(call, 503, "unavailable_error", "ending", "the server is ending");
        return false;
    }
    return true;
}

bool lt_call_read(lt_call *call, lt_api_params *a, const lt_field *rows, size_t n_rows,
                  lt_api_error *e) {
    lt_body *body = call->body;
    call->body = NULL;
    a->unknown = (lt_unknown_fields)call->server->o.unknown_fields;
    return body != NULL ? lt_api_params_read_body(a, rows, n_rows, body, e)
                        : lt_api_params_read(a, rows, n_rows, call->request->body,
                                             call->request->body_bytes, e);
}

/* ---- The door ---- */

/* The client's API: from route i, or from a path without a route. */
static lt_flavour flavour_of(int i, const char *path) {
    if (i >= 0) {
        return routes[i].flavour;
    }
    return path == NULL                             ? LT_FLAVOUR_OPENAI
           : strncmp(path, "/v1/messages", 12) == 0 ? LT_FLAVOUR_ANTHROPIC
           : strncmp(path, "/api/", 5) == 0         ? LT_FLAVOUR_OLLAMA
                                                    : LT_FLAVOUR_OPENAI;
}

/* A request that could not be parsed is answered like any other: with its id, and with CORS headers
 * for pages that may call. */
void lt_route_bad(void *server, lt_http_refusal *r) {
    lt_server *s = server;
    const lt_http_request request = {.head = r->head};
    lt_call call = {.server = s, .request = &request, .owner = ""};
    lt_json_out o = {0};
    lt_api_error e = {.status = r->status, .type = "invalid_request_error"};

    if (r->status == 503) {
        e.type = "server_error";
        e.code = "overloaded";
    }
    call.flavour = flavour_of(-1, r->head->target);
    put_id(&call);
    (void)put_cors(&call);
    snprintf(r->extra, sizeof r->extra, "%s%s", call.extra,
             r->status == 503 ? "Retry-After: 1\r\n" : "");
    snprintf(e.message, sizeof e.message, "%s", r->why);
    s->metrics.http_requests += !r->counted;
    s->metrics.http_errors++;
    lt_error_write(&o, call.flavour, call.extra, &e);
    snprintf(r->body, sizeof r->body, "%s", o.data != NULL ? o.data : "");
    lt_out_free(&o);
}

/* Fill in a call from its headers; returns the route, or -1. */
static int open_call(lt_call *call, lt_server *s, lt_http_conn *c, const lt_http_request *r,
                     char *methods, size_t n) {
    const int i = find_route(r, methods, n);
    *call = (lt_call){.server = s, .conn = c, .request = r, .arrived_s = lt_clock_s()};
    call->flavour = flavour_of(i, r->path);
    call->tail = i >= 0 ? r->path + strlen(routes[i].path) : "";
    put_id(call);
    return i;
}

/* To its handler: now, on the worker pool, or once its model is loaded. Of calls with more of a
 * path only those that always run on the pool are put aside: the path is gone when the connection
 * is. */
static void dispatch(lt_call *call, int i) {
    const unsigned flags = routes[i].flags;
    const lt_aside_how how = {.handler = routes[i].handler, .form = (flags & FORM) != 0};
    const bool large = how.form ||
                       (call->request->body_bytes >= ASIDE_BYTES &&
                        (flags & (READY | PREFIX)) == READY && routes[i].method[0] == 'P');
    const size_t bytes = call->request->body_bytes; /* The body is freed once it is answered. */

    if ((flags & MODEL) != 0 && call->server->models != NULL) {
        lt_aside_by_model(call, &how, large);
    } else if (large) {
        lt_aside(call, &how);
    } else {
        how.handler(call);
        lt_worker_pool_give_back(call->server->pool, bytes);
    }
}

bool lt_route_head(void *server, lt_http_conn *c, const lt_http_request *r) {
    lt_call call;
    lt_access_refusal why;
    char methods[64];
    const int i = open_call(&call, server, c, r, methods, sizeof methods);
    const bool open = i >= 0 && (routes[i].flags & OPEN) != 0, allowed = put_cors(&call);

    call.server->metrics.http_requests++;
    lt_access_check(&call, open || strcmp(r->method, "OPTIONS") == 0, &why);
    if (why.status != 0) {
        answer_error(&call, why.status, why.type, why.code, why.message);
        return false;
    }
    if (strcmp(r->method, "OPTIONS") == 0) {
        answer_preflight(&call, allowed);
        return false;
    }
    if (!open && !lt_access_has_key(&call)) {
        const size_t n = strlen(call.extra);
        snprintf(call.extra + n, sizeof call.extra - n, "WWW-Authenticate: Bearer\r\n");
        answer_error(&call, 401, "authentication_error", "invalid_api_key",
                     "no valid API key: send it as 'Authorization: Bearer KEY'");
        return false;
    }
    if (i < 0) {
        no_route(&call, methods);
        return false;
    }
    return check_coding(&call) && check_state(&call, routes[i].flags);
}

void lt_route_request(void *server, lt_http_conn *c, const lt_http_request *r) {
    lt_call call;
    char methods[64];
    const int i = open_call(&call, server, c, r, methods, sizeof methods);

    (void)put_cors(&call);
    (void)lt_access_has_key(&call); /* A key is present, and this sets the owner. */
    LT_ASSERT(i >= 0);
    /* The server may have begun to end since the head arrived. */
    if (!check_state(&call, routes[i].flags)) {
        return;
    }
    dispatch(&call, i);
}

void lt_route_inner(lt_server *s, lt_http_conn *c, const char *path, const char *owner,
                    bool background) {
    const lt_http_request r = lt_http_inner_request(c, "POST", path);
    char methods[64];
    const int i = find_route(&r, methods, sizeof methods);
    lt_call call = {.server = s,
                    .conn = c,
                    .request = &r,
                    .tail = "",
                    .owner = owner,
                    .background = background,
                    .arrived_s = lt_clock_s()};

    LT_ASSERT(i >= 0 && routes[i].flavour == LT_FLAVOUR_OPENAI);
    lt_server_make_id(s, "", call.id);
    snprintf(call.extra, sizeof call.extra, "x-request-id: %s\r\n", call.id);
    dispatch(&call, i);
}
