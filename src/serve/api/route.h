/* route.h: maps a method and a path to a handler, and handles keys, CORS, readiness and common
 * errors. */
#ifndef LT_SERVE_ROUTE_H
#define LT_SERVE_ROUTE_H

#include "serve/api/server.h"

/* Description of route i, for openapi.c; false: there are fewer. */
typedef struct {
    const char *method, *path;
    void (*handler)(lt_call *call);
    bool prefix, open; /* prefix: the path continues; open: no key is required. */
} lt_route_info;
bool lt_route_at(int i, lt_route_info *out);

/* Check a request when its headers have arrived. One that is not allowed, or calls an unknown path,
 * is answered (false), and its body is not read. */
bool lt_route_head(void *server, lt_http_conn *c, const lt_http_request *r);
void lt_route_request(void *server, lt_http_conn *c, const lt_http_request *r);
/* A request by the server itself on a connection without a socket (http.h): POST to the path, as
 * the owner. */
void lt_route_inner(lt_server *s, lt_http_conn *c, const char *path, const char *owner,
                    bool background);
void lt_route_bad(void *server, lt_http_refusal *r);

/* Every endpoint has one handler, in the file of its family. */
#define LT_HANDLER_MAP(X)                                                                          \
    X(chat) /* formats/chat.c */                                                                   \
    X(chat_tokens)                                                                                 \
    X(chat_list) /* stored/stored_chat.c */                                                        \
    X(chat_get)                                                                                    \
    X(chat_update)                                                                                 \
    X(chat_delete)                                                                                 \
    X(completions) /* formats/completions.c */                                                     \
    X(responses)   /* formats/responses.c */                                                       \
    X(response_tokens)                                                                             \
    X(response_get) /* stored/stored.c */                                                          \
    X(response_delete)                                                                             \
    X(response_cancel)                                                                             \
    X(messages) /* formats/messages.c */                                                           \
    X(count_tokens)                                                                                \
    X(file_create) /* files/file_calls.c */                                                        \
    X(file_list)                                                                                   \
    X(file_get)                                                                                    \
    X(file_delete)                                                                                 \
    X(upload_create) /* files/upload_calls.c */                                                    \
    X(upload_change)                                                                               \
    X(batch_create) /* files/batch_calls.c */                                                      \
    X(batch_list)                                                                                  \
    X(batch_get)                                                                                   \
    X(batch_cancel)                                                                                \
    X(tuning_create) /* files/tuning_calls.c */                                                    \
    X(tuning_list)                                                                                 \
    X(tuning_get)                                                                                  \
    X(tuning_change)                                                                               \
    X(model_delete)                                                                                \
    X(embeddings) /* formats/embeddings.c */                                                       \
    X(score)      /* formats/scores.c */                                                           \
    X(rerank)                                                                                      \
    X(classify)                                                                                    \
    X(pooling)                                                                                     \
    X(infill) /* formats/native.c */                                                               \
    X(completion)                                                                                  \
    X(ollama_chat) /* formats/ollama.c */                                                          \
    X(ollama_generate)                                                                             \
    X(ollama_embed) /* formats/ollama_info.c */                                                    \
    X(ollama_embeddings)                                                                           \
    X(ollama_tags)                                                                                 \
    X(ollama_ps)                                                                                   \
    X(ollama_show)                                                                                 \
    X(ollama_refuse)                                                                               \
    X(props)                                                                                       \
    X(slots)                                                                                       \
    X(slot_action) /* slot_calls.c */                                                              \
    X(tokenize)    /* formats/tokens.c */                                                          \
    X(tokenizer_info)                                                                              \
    X(detokenize)                                                                                  \
    X(apply_template)                                                                              \
    X(lora_load) /* adapter_calls.c */                                                             \
    X(lora_unload)                                                                                 \
    X(lora_list)                                                                                   \
    X(lora_scale)                                                                                  \
    X(models) /* info.c */                                                                         \
    X(model)                                                                                       \
    X(model_load) /* model_calls.c */                                                              \
    X(model_unload)                                                                                \
    X(health)                                                                                      \
    X(openapi) /* openapi.c */                                                                     \
    X(version)                                                                                     \
    X(metrics)                                                                                     \
    X(status_json)                                                                                 \
    X(chat_page) /* web.c */                                                                       \
    X(status_page)

#define LT_HANDLER_DECLARE(name) void lt_api_##name(lt_call *call);
LT_HANDLER_MAP(LT_HANDLER_DECLARE)
#undef LT_HANDLER_DECLARE

#endif
