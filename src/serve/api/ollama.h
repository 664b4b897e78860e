/* ollama.h: Ollama's /api in two files: generation (api/ollama.c); model information and embeddings
 * (api/ollama_info.c). */
#ifndef LT_SERVE_OLLAMA_H
#define LT_SERVE_OLLAMA_H

#include "serve/api/reply.h"
#include "serve/api/chat_output.h"

/* A time as Ollama writes it. */
void lt_ollama_when(lt_json_out *o, double unix_s);
/* Is a model named, and is it the served one, with or without ":latest"? */
bool lt_ollama_check_model(const lt_server *s, lt_api_params *a, lt_api_error *e);

#endif
