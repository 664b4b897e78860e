/* call.h: one call of a verb on its way, and what a transport does with it.
 *
 *     verb ──▶ QUEUED ──its turn──▶ STARTED ──transport says so──▶ DONE
 *                                      └─deadline, abort, mismatch──▶ FAILED, and the world with it
 *
 * A rank's calls stand in a ring; its worker, one thread, moves them on. Collectives have their
 * turn one after the other, in the order of their calls. A send or receive has its turn when no
 * earlier one of the same direction between the same two members is under way. The worker holds the
 * lock of the world but while it moves data. */
#ifndef LT_COMM_CALL_H
#define LT_COMM_CALL_H

#include <pthread.h>

#include "comm/record.h"
#include "lateen/comm.h"

typedef struct lt_call lt_call;
typedef struct lt_transport lt_transport;

struct lt_group {
    lt_comm *comm;
    lt_group *next; /* Of the groups of its rank. */
    char name[LT_COMM_NAME];
    int rank, n;
    int *ranks;                /* (n): members' ranks in the world. */
    uint64_t seq;              /* Collectives called so far. */
    uint64_t *sent, *received; /* (n): calls so far to and from each member. */
    void *shared;              /* The transport's. */
};

struct lt_call {
    lt_call_kind kind;
    lt_call_state state;
    lt_group *group;
    void *dst;
    const void *src;
    int64_t count;
    lt_dtype dtype;
    lt_reduce op;
    int peer; /* Root of a broadcast, the other member of a send or receive; else -1. */
    const int64_t *send_counts, *recv_counts; /* all_to_all: (n) each, in the ring's own memory. */
    uint64_t number;                          /* Among the calls of its rank, from 1. */
    uint64_t seq; /* Among the collectives of the group, or of the pair. */
    uint64_t started_ns;
    int phase; /* The transport's. */
};

typedef enum { LT_ADVANCE_WAITING, LT_ADVANCE_DONE, LT_ADVANCE_FAILED } lt_advance;

struct lt_transport {
    const char *name;
    int poll_us; /* > 0: nothing wakes the worker when others move, so it looks this often. */
    /* The group's shared part is made, or found; group_close is called where there is one. Without
     * the lock. */
    lt_err (*group_open)(lt_group *g);
    void (*group_close)(lt_group *g);
    /* As far as it goes without waiting; with the lock held, which it may give back meanwhile. A
     * failure leaves its message in lt_error_message. */
    lt_advance (*advance)(lt_call *call);
    /* Which members a waiting call waits for: "rank 2 (at 16)" ..., into out. With the lock
     * held. */
    void (*missing)(const lt_call *call, char *out, size_t out_bytes);
    /* Tell every rank that can be told that the world has ended. With the lock held. */
    void (*abort)(lt_comm *c);
    void (*close)(lt_comm *c);
};

struct lt_comm {
    int rank, size;
    const lt_transport *transport;
    void *world; /* The transport's. */
    lt_comm_options options;
    lt_group *groups;
    pthread_mutex_t *lock; /* The world's, where ranks are threads; else this rank's own. */
    pthread_mutex_t own_lock;
    pthread_cond_t work;   /* For the worker: there may be something to do. */
    pthread_cond_t change; /* For callers: a call is done, or has failed. */
    pthread_t worker;
    bool has_worker, closing;
    lt_call calls[LT_COMM_AHEAD]; /* Call k in place k % LT_COMM_AHEAD. */
    int64_t *counts;              /* (LT_COMM_AHEAD, 2, size) */
    uint64_t issued, finished;    /* All calls up to `finished` are done. */
    /* Workers of the world that move data now: after a failure nobody gets his buffers back before
     * there are none. */
    int *moving;
    int own_moving;
    lt_err failed; /* LT_OK, or why every call fails. */
    char why[LT_COMM_WHY];
    lt_records records;
};

/* A rank's end of a world of `transport`, with its worker; lock and moving are the world's, NULL
 * for a rank that shares neither. */
LT_MUST_USE lt_err lt_comm_begin(lt_comm **out, const lt_transport *t, void *world, int rank,
                                 int size, const lt_comm_options *o, pthread_mutex_t *lock,
                                 int *moving);
/* With the lock held: the world has ended. The first reason stands. */
void lt_comm_fail(lt_comm *c, lt_err err, const char *reason);
/* The bytes of a call's src, or of what it receives. */
size_t lt_call_bytes(const lt_call *call);

/* sum.c: dst[i] = reduction of srcs[0][i] ... srcs[n - 1][i], in this order, in F32 (F64 of F64,
 * whole numbers as they are), rounded once. dst may be any of the sources. A NaN is kept by MAX and
 * MIN too. */
bool lt_comm_can_reduce(lt_dtype dtype);
void lt_comm_reduce(void *dst, const void *const *srcs, int n, int64_t count, lt_dtype dtype,
                    lt_reduce op);
/* Where shard i of n of `count` elements begins: all but the last have the same size. */
int64_t lt_comm_shard(int64_t count, int n, int i);

extern const lt_transport lt_transport_thread, lt_transport_shm, lt_transport_mpi;

#endif
