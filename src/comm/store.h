/* store.h: a small server over TCP at which the ranks of a run meet: rendezvous, epochs, liveness.
 * No training data passes through it. `lateen launch` runs the server; each rank is a client.
 *
 * PROTOCOL, version 1. All numbers are little-endian. The client speaks first. A request is a frame
 *
 *     u32 n            bytes after this word: 32 + k + v
 *     u8  op           lt_comm_store_op
 *     u8  0
 *     u16 k            bytes of the key, at most LT_STORE_KEY
 *     u32 v            bytes of the value, at most LT_STORE_VALUE
 *     u64 epoch        job attempt << 32 | generation
 *     i64 number
 *     u32 wait_ms      how long the server may wait before it answers
 *     u32 0
 *     k bytes key, v bytes value
 *
 * and its reply
 *
 *     u32 n            24 + v
 *     u8  status       lt_comm_store_status
 *     u8  0, u16 0
 *     u32 v
 *     u64 version
 *     i64 number
 *     v bytes value
 *
 *     op       request                                   reply
 *     HELLO    key: the run's token; value: "lateen      OK. Every connection begins with it
 *              store 1"; number: the rank, -1: none
 *     SET      key, value                                OK, version
 *     GET      key, wait_ms                              OK, value, version; TIMEOUT
 *     WATCH    key, number: a version, wait_ms           the same, once the version is larger
 *     ADD      key, number                               OK, number: the sum; the value is its 8
 *                                                        bytes
 *     BARRIER  key, number: ranks 0 to number - 1,       OK once all have come; TIMEOUT, value:
 *              wait_ms                                   "rank 2, rank 3"; this arrival is undone
 *     BEAT     wait_ms                                   none. This connection is the rank's
 *                                                        heartbeat: a rank without another BEAT
 *                                                        within wait_ms counts as silent; 0: it
 *                                                        sends none, and only its end is noticed
 *     BYE                                                OK. The rank ends in good order
 *
 * When the server is told why the world has ended, it sends that text with status SAYS to every
 * heartbeat connection, and answers GET, WATCH and BARRIER with it where they would wait.
 * The state of rank R is the value of the key "life/R": "alive", "silent", "left" or "dead"; only
 * the server writes keys that begin with "life/".
 *
 * EPOCHS     Keys belong to an epoch. The server has one; a request of an older one is answered
 *            with OLD, of a newer one with AHEAD. A new epoch begins with no keys and no clients.
 * BOUNDS     LT_STORE_KEYS keys of LT_STORE_BYTES together; a connection holds at most one request
 *            and one reply; LT_STORE_STRANGERS connections that have not said HELLO, each for 5 s,
 *            with one short frame; two connections per rank, and a few more. Whatever exceeds a
 *            bound is answered with FULL, or its connection is closed. A frame that breaks the
 *            protocol closes its connection.
 * TOKEN      Whoever has the token may do everything, so it is passed in the environment, which
 *            only the same user can read. It is compared in constant time. Nothing is encrypted: on
 *            several machines, whoever can read their network's packets can read the token, too. */
#ifndef LT_COMM_STORE_H
#define LT_COMM_STORE_H

#include <stdbool.h>

#include "lateen/base.h"

#define LT_STORE_KEY       128
#define LT_STORE_VALUE     65536
#define LT_STORE_KEYS      4096
#define LT_STORE_BYTES     ((size_t)16 << 20)
#define LT_STORE_STRANGERS 64
#define LT_STORE_TOKEN     65 /* Bytes of a token, with its terminating zero. */
#define LT_STORE_ADDRESS   280
#define LT_STORE_NOTICE    512

#define LT_STORE_OP_MAP(X) X(HELLO) X(SET) X(GET) X(WATCH) X(ADD) X(BARRIER) X(BEAT) X(BYE)
typedef enum {
    LT_STORE_NONE,
#define LT_STORE_OP_ENUM(op) LT_STORE_##op,
    LT_STORE_OP_MAP(LT_STORE_OP_ENUM)
#undef LT_STORE_OP_ENUM
        LT_STORE_OPS
} lt_comm_store_op;

typedef enum {
    LT_STORE_OK,
    LT_STORE_TIMEOUT,
    LT_STORE_REFUSED, /* A wrong token, a key that only the server writes, or an invalid op. */
    LT_STORE_OLD,
    LT_STORE_AHEAD,
    LT_STORE_FULL,
    LT_STORE_SAYS, /* Why the world has ended. */
    LT_STORE_STATUSES
} lt_comm_store_status;

/* ---- The server: a thread of this process ------------------------------------------------------
 */
typedef struct lt_comm_store_server lt_comm_store_server;
typedef enum { LT_LIFE_NONE, LT_LIFE_ALIVE, LT_LIFE_SILENT, LT_LIFE_LEFT, LT_LIFE_DEAD } lt_life;

/* Listens at host:port ("127.0.0.1", 0: any free port) for ranks 0 to n_ranks - 1. */
LT_MUST_USE lt_err lt_comm_store_server_open(lt_comm_store_server **out, const char *host, int port,
                                             int n_ranks, const char *token, uint64_t epoch);
void lt_comm_store_server_close(lt_comm_store_server *s);                /* Accepts NULL. */
const char *lt_comm_store_server_address(const lt_comm_store_server *s); /* "127.0.0.1:4711" */
/* Forget all keys, answer OLD to all waiting clients, and close their connections. */
void lt_comm_store_server_begin(lt_comm_store_server *s, uint64_t epoch);
lt_life lt_comm_store_server_life(lt_comm_store_server *s, int rank);
/* The value of a key that a client has set. False: there is none, or it is larger than room. */
bool lt_comm_store_server_peek(lt_comm_store_server *s, const char *key, void *value, size_t room,
                               size_t *bytes, uint64_t *version);
/* Tell every rank why the world has ended. */
void lt_comm_store_server_notice(lt_comm_store_server *s, const char *text);

/* 32 random bytes as text. */
LT_MUST_USE lt_err lt_comm_store_token(char out[LT_STORE_TOKEN]);
/* Every byte is compared, so the time does not reveal where the first difference is. */
bool lt_comm_store_is_token(const char *token, const char *given);

/* ---- A client ----------------------------------------------------------------------------------
 * One request at a time; calls of several threads wait for each other. REMOTE: the server is gone,
 * or a deadline has passed; STATE: another epoch; ARG: refused; LIMIT: the store is full. */
typedef struct lt_comm_store lt_comm_store;
LT_MUST_USE lt_err lt_comm_store_open(lt_comm_store **out, const char *address, const char *token,
                                      int rank, uint64_t epoch, double deadline_s);
/* This machine's address, as the server sees it. */
LT_MUST_USE lt_err lt_comm_store_here(const lt_comm_store *s, char out[LT_STORE_ADDRESS]);
/* From now on the server knows that this rank is alive: a thread sends a BEAT every every_s seconds
 * (0: none). on_notice is called once, on that thread, when the server says why the world has
 * ended, or when the server itself is gone. */
LT_MUST_USE lt_err lt_comm_store_live(lt_comm_store *s, double every_s, double silent_s,
                                      void (*on_notice)(void *ctx, const char *text), void *ctx);
/* Sends BYE to the server. Accepts NULL. */
void lt_comm_store_close(lt_comm_store *s);

LT_MUST_USE lt_err lt_comm_store_set(lt_comm_store *s, const char *key, const void *value,
                                     size_t bytes);
/* Waits until the key has a value; LIMIT if that is larger than `room` bytes. */
LT_MUST_USE lt_err lt_comm_store_get(lt_comm_store *s, const char *key, void *value, size_t room,
                                     size_t *bytes, double deadline_s);
/* Waits until the key's version is larger than *version (0: any), then stores the new version
 * there. */
LT_MUST_USE lt_err lt_comm_store_watch(lt_comm_store *s, const char *key, uint64_t *version,
                                       void *value, size_t room, size_t *bytes, double deadline_s);
/* Fails if the server has said why the world has ended. Does not wait for anything else. */
LT_MUST_USE lt_err lt_comm_store_heed(lt_comm_store *s);
LT_MUST_USE lt_err lt_comm_store_add(lt_comm_store *s, const char *key, int64_t number,
                                     int64_t *sum);
/* Waits until ranks 0 to n - 1 have arrived; a key can be used repeatedly. */
LT_MUST_USE lt_err lt_comm_store_barrier(lt_comm_store *s, const char *key, int n,
                                         double deadline_s);

#endif
