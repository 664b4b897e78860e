/* ollama.h: Ollama's /api in two files: generation (ollama.c), and model information and embeddings
 * (ollama_info.c). */
#ifndef LT_SERVE_OLLAMA_H
#define LT_SERVE_OLLAMA_H

#include "serve/api/reply.h"
#include "serve/api/formats/chat_output.h"
#include "serve/api/models.h"

/* Write a time in Ollama's format. */
void lt_ollama_when(lt_json_out *o, double unix_s);
/* Check that a model is named, and that it is the served one, with or without ":latest". */
bool lt_ollama_check_model(const lt_server *s, lt_api_params *a, lt_api_error *e);
/* The model that the name means, with or without ":latest"; NULL: none. */
lt_model_slot *lt_ollama_find(const lt_models *m, const char *name);
/* keep_alive: seconds until an idle model is unloaded; < 0: it stays. */
bool lt_ollama_keep_alive(const json_t *value, double *seconds, lt_api_error *e);
/* Whether the body has no prompt for this handler, and thus only loads or unloads a model. */
bool lt_ollama_asks_nothing(void (*handler)(lt_call *call), const json_t *body);
/* Answer such a request: reason "load" or "unload". */
void lt_ollama_answer_loaded(lt_call *call, const char *model, bool chat, const char *reason);

#endif
