/* adapters_impl.h: the internals of adapters.h: names (adapters.c), places (adapter_places.c). */
#ifndef LT_SERVE_ADAPTERS_IMPL_H
#define LT_SERVE_ADAPTERS_IMPL_H

#include <pthread.h>

#include "base/file.h"
#include "model/lora/lora_pool.h"
#include "serve/api/reply.h"

typedef struct {
    char name[256], path[LT_PATH_BYTES];
    int64_t number;
    float scale; /* Scale for requests that name no adapter. */
    bool dora;   /* It has magnitudes; false until it was read. */
    int64_t created;
    /* An adapter of a fine-tuning job: only its owner's requests may use it, and the first of them
     * reads it. owner NULL: none of the server's keys is its owner's. */
    bool owned;
    const char *owner;
} lt_adapter;

typedef enum { LT_PLACE_EMPTY, LT_PLACE_LOADING, LT_PLACE_FILLED } lt_place_state;

typedef struct {
    lt_place_state state;
    lt_adapter_use uses[LT_ADAPTERS_OF_REQUEST];
    int n;
    bool leaving; /* Takes no new requests. */
    uint64_t used, filled;
} lt_adapter_place;

struct lt_adapter_set {
    lt_server *server;
    lt_lora_pool *pool;
    struct event *on_retry;
    lt_adapter_place *places; /* (n_places) */
    int32_t n_places;
    uint64_t clock; /* Counter of uses. */
    lt_fifo waiting;
    uint64_t n_loads, n_load_failures;
    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t idle;
    lt_adapter **names;
    size_t n_names;
    int64_t n_numbers;
    bool loaded;         /* There is a pool. */
    uint64_t generation; /* Grows when the model is unloaded; from 1. */
    int n_readers;       /* Number of threads that read folders for the pool, or fill a place. */
};

/* Called with the lock held; NULL: there is none. */
lt_adapter *lt_adapter_of_number(const lt_adapter_set *a, int64_t number);
/* Tries each waiting reply again, in order; runs when on_retry fires. */
void lt_adapter_set_retry(evutil_socket_t fd, short what, void *adapters);
/* Between these two calls a thread reads folders for the pool, which is kept meanwhile. False: the
 * model is not loaded, or was unloaded since this generation (0: any). */
bool lt_adapter_set_begin_read(lt_adapter_set *a, uint64_t generation);
void lt_adapter_set_end_read(lt_adapter_set *a);

#endif
