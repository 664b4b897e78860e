/* adapters.h: adapters that requests choose by name; model/lora/lora_pool.h holds their numbers.
 *
 *     names    each adapter of --lora or loaded since: its name, path and number
 *     places   of the pool, in memory: each of one adapter, or of several that a request adds up
 *
 * A request names adapters by its model, as vLLM's clients do, or by its list `lora` of {id,
 * scale}, as llama-server's do; a request that names none gets the scales of /lora-adapters, which
 * are 0 at first.
 *
 *     lt_adapter_set_choose ─▶ lt_adapter_set_take: in a place: held ─▶ the reply goes on
 *                                    │  in none: the place that nobody holds and that was used
 *                                    │      longest ago is filled by the worker pool ─┐
 *                                    │  all are held ──▶ it waits for one             │
 *                                    └──▶ the reply waits ◀──lt_reply_adapted─────────┘
 *
 * OWNED    An adapter of fine-tuning (tuning.h) belongs to the API key whose job made it. To
 *          requests of other keys it does not exist.
 * HELD     A place keeps its contents while a reply holds it, or a request of the engine does. So a
 *          request keeps its adapter until it ends, whatever is loaded or unloaded meanwhile.
 * FAIR     While a reply waits for a place and none is free, the place that was filled first takes
 *          no new requests until it has got another adapter.
 * THREADS  Names may be read and changed by any thread, under the lock; everything else is the
 *          loop's. The worker pool reads files and fills a place that is LOADING. */
#ifndef LT_SERVE_ADAPTERS_H
#define LT_SERVE_ADAPTERS_H

#include <stdbool.h>
#include <stdint.h>

#include "platform/telemetry/exposition.h"
#include "serve/api/api_params.h"
#include "serve/fifo.h"

#define LT_ADAPTERS_MOST       4096 /* Most names. */
#define LT_ADAPTERS_OF_REQUEST 8    /* Most adapters that one request adds up. */

typedef struct lt_adapter_set lt_adapter_set;
struct lt_server;
struct lt_reply;

typedef struct {
    int64_t number;
    float scale;
    bool dora; /* The scale is part of the contents of a place. */
} lt_adapter_use;

/* The part of a reply. */
typedef struct {
    lt_fifo_link link;
    lt_adapter_use uses[LT_ADAPTERS_OF_REQUEST]; /* In ascending order of their numbers. */
    int n;
    int32_t place; /* From 1, held; 0: none. */
    bool waits;
    const char *name; /* The adapter that the request names as its model; NULL: none. */
} lt_adapter_choice;

/* Take the names from the server's options; folders are not read yet. *out is not set if there are
 * none and none can be loaded later. */
LT_MUST_USE lt_err lt_adapter_set_open(lt_adapter_set **out, struct lt_server *s);
void lt_adapter_set_close(lt_adapter_set *a); /* Accepts NULL, as all below do. */
/* Open the places beside the server's model, before its engine opens; every adapter is read. */
LT_MUST_USE lt_err lt_adapter_set_load(lt_adapter_set *a);
/* Call it before the model is closed; the names are kept. Waits for a place that is being
 * filled. */
void lt_adapter_set_unload(lt_adapter_set *a);

/* Whether the name is known, whoever owns it. */
bool lt_adapter_set_know(lt_adapter_set *a, const char *name);

/* Read and check the adapters that the reply's request asks for. */
bool lt_adapter_set_choose(struct lt_reply *j, lt_api_error *e);
/* Hold a place for them. WAIT: lt_reply_adapted is called later. REFUSED: e says why. */
typedef enum { LT_ADAPTER_TAKEN, LT_ADAPTER_WAIT, LT_ADAPTER_REFUSED } lt_adapter_take;
lt_adapter_take lt_adapter_set_take(struct lt_reply *j, lt_api_error *e);
/* Release its place, or stop waiting for one. A reply that was never started has neither. */
void lt_adapter_set_drop(struct lt_reply *j);

/* Add a name. inplace: the name may be known, and gets another path. The folder is read to check
 * it. Call it from any thread but the loop's, which it would delay. */
bool lt_adapter_set_add(lt_adapter_set *a, const char *name, const char *folder, bool inplace,
                        lt_api_error *e);
bool lt_adapter_set_remove(lt_adapter_set *a, const char *name, lt_api_error *e);
/* One that is owned, whose name is new; its folder is read by the first request that needs it.
 * owner: one of the server's keys, or "", which is every caller's where there are none; NULL:
 * nobody's. LIMIT: there are too many. */
LT_MUST_USE lt_err lt_adapter_set_own(lt_adapter_set *a, const char *name, const char *folder,
                                      const char *owner);
void lt_adapter_set_disown(lt_adapter_set *a, const char *name); /* Forget it. */
/* Set the scales of requests that name no adapter: a list of {id, scale}; the others get 0. */
bool lt_adapter_set_set_scales(lt_adapter_set *a, const json_t *list, lt_api_error *e);

/* The list for llama-server's /lora-adapters, without owned adapters. */
void lt_adapter_set_write(lt_adapter_set *a, lt_json_out *o);
/* Write the entries of /v1/models for a caller, as vLLM does; name NULL: all. False: the caller may
 * see no adapter of this name. */
bool lt_adapter_set_write_models(lt_adapter_set *a, lt_json_out *o, const char *name,
                                 const char *owner);
/* "lora": [{id, scale}, ...] of a reply. */
void lt_adapter_set_write_uses(const lt_adapter_choice *c, lt_json_out *o);
void lt_adapter_set_metrics(lt_adapter_set *a, lt_expo *o);

#endif
