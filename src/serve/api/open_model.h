/* open_model.h: the model of a server: named, opened with its tokenizer, template, engine and
 * compiler of grammars, and closed again. Opening and closing may run on any thread while no
 * request uses the model. */
#ifndef LT_SERVE_OPEN_MODEL_H
#define LT_SERVE_OPEN_MODEL_H

#include "serve/api/server.h"

/* One poll of an engine returns at most this many events (lt_server.events). */
#define LT_SERVER_POLL_EVENTS 256

/* Set the name that clients use: from the options, otherwise the last part of the model's path. */
void lt_server_name_it(lt_server *s);
/* Open the model, and the reward model if there is one. After a failure, lt_server_close_model
 * frees what was opened. */
LT_MUST_USE lt_err lt_server_load(lt_server *s);
/* End the engine and the compiler: they send no more events, and replies may be freed. */
void lt_server_stop_model(lt_server *s);
/* Free everything that lt_server_load has opened; it may be called again. */
void lt_server_close_model(lt_server *s);

#endif
