/* call.h: one call of a verb while it is in progress, and the interface of a transport.
 *
 *     verb ──▶ QUEUED ──its turn──▶ STARTED ──transport says so──▶ DONE
 *                                      └─deadline, abort, mismatch──▶ FAILED, and the world with it
 *
 * A rank's calls are kept in a ring; its worker, one thread, advances them. Collectives have their
 * turn one after another, in the order of their calls. A send or receive has its turn when no
 * earlier one of the same direction between the same two members is in progress. The worker holds
 * the lock of the world except while it moves data. */
#ifndef LT_COMM_CALL_H
#define LT_COMM_CALL_H

#include <pthread.h>

#include "comm/record.h"
#include "lateen/comm.h"

typedef struct lt_call lt_call;
typedef struct lt_transport lt_transport;

struct lt_group {
    lt_comm *comm;
    lt_group *next; /* The next group of the same rank. */
    char name[LT_COMM_NAME];
    int rank, n;
    int *ranks;                /* (n): members' ranks in the world. */
    uint64_t seq;              /* Collectives called so far. */
    uint64_t *sent, *received; /* (n): number of calls so far to and from each member. */
    void *shared;              /* Used by the transport only. */
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
    int peer; /* Root of a broadcast, or the other member of a send or receive; otherwise -1. */
    const int64_t *send_counts, *recv_counts; /* all_to_all: (n) each, in the ring's own memory. */
    /* Number of the call among those of its rank, from 1. */
    uint64_t number;
    /* Number of the call among the group's collectives, or among the calls of the pair. */
    uint64_t seq;
    uint64_t started_ns;
    /* Used by the transport only. A call that has reached LT_CALL_ISSUED delays no later call. */
    int phase;
};
#define LT_CALL_ISSUED 1000

typedef enum { LT_ADVANCE_WAITING, LT_ADVANCE_DONE, LT_ADVANCE_FAILED } lt_advance;

struct lt_transport {
    const char *name;
    /* > 0: polling interval of the worker, which other ranks' progress does not wake. */
    int poll_us;
    /* Create or find the part that the group's members share. If there is a group_close, it is
     * called later. Called without the lock. */
    lt_err (*group_open)(lt_group *g);
    void (*group_close)(lt_group *g);
    /* Called on the caller's thread when a call is made; it may reach LT_CALL_ISSUED here. NULL:
     * no-op. Called with the lock held. */
    lt_err (*begin)(lt_call *call, bool has_turn);
    /* See lt_reduce_scatter_early: such a call will follow, and would have its turn; peer is the
     * member. NULL: no-op. Called with the lock held. */
    lt_err (*early)(const lt_call *call);
    /* Let q continue when the call, which has reached LT_CALL_ISSUED, is done; with a member other
     * than -1 as soon as the data that an all_gather brings from it are there, or later. NULL:
     * there are no queues. Called with the lock held. */
    lt_err (*order)(lt_call *call, int member, lt_queue *q);
    /* Start or stop measuring later calls; see lt_comm_measure. NULL: all calls are timed by the
     * host's clock. Called with the lock held. */
    lt_err (*measure)(lt_comm *c, bool on, bool in_place);
    /* When a finished call was in progress; false: it was not measured. NULL: from started_ns until
     * now. Called with the lock held. */
    bool (*took)(const lt_call *call, uint64_t *from_ns, uint64_t *to_ns);
    /* Advance the call as far as possible without waiting. Called with the lock held, which it may
     * release meanwhile. A failure leaves its message in lt_error_message. */
    lt_advance (*advance)(lt_call *call);
    /* Write the members that a call waits for to out: "rank 2 (at 16)" ... Called with the lock
     * held. */
    void (*missing)(const lt_call *call, char *out, size_t out_bytes);
    /* Tell every reachable rank that the world has ended. Called with the lock held. */
    void (*abort)(lt_comm *c);
    /* If another rank has ended the world, its reason, else NULL; never waits. NULL: calls find
     * out. */
    const char *(*over)(const lt_comm *c);
    void (*close)(lt_comm *c);
};

struct lt_comm {
    int rank, size;
    const lt_transport *transport;
    void *world; /* Used by the transport only. */
    lt_comm_options options;
    lt_queue *queue; /* Verbs wait for the work that this queue holds; NULL: they do not wait. */
    lt_group *groups;
    /* The world's lock if its ranks are threads; otherwise this rank's own. */
    pthread_mutex_t *lock;
    pthread_mutex_t own_lock;
    pthread_cond_t work;   /* For the worker: there may be something to do. */
    pthread_cond_t change; /* For callers: a call is done, or has failed. */
    pthread_t worker;
    bool has_worker, closing;
    lt_call calls[LT_COMM_AHEAD]; /* Call k is in slot k % LT_COMM_AHEAD. */
    int64_t *counts;              /* (LT_COMM_AHEAD, 2, size) */
    uint64_t issued, finished;    /* All calls up to `finished` are done. */
    /* Number of workers of the world that are moving data. After a failure, callers get their
     * buffers back only when it is 0. */
    int *moving;
    int own_moving;
    lt_err failed; /* LT_OK, or why every call fails. */
    char why[LT_COMM_WHY];
    lt_records records;
    lt_timeline *timeline; /* Records how long callers wait; NULL: nothing is recorded. */
    double moved_s;        /* See lt_comm_moved. */
    uint64_t moved_until_ns;
};

/* times.c: a call has ended: record the time, and count its duration. */
void lt_comm_note_end(lt_comm *c, const lt_call *call);

/* Create a rank's comm in a world of `transport`, and start its worker. lock and moving belong to
 * the world; they are NULL for a rank that shares neither. */
LT_MUST_USE lt_err lt_comm_begin(lt_comm **out, const lt_transport *t, void *world, int rank,
                                 int size, const lt_comm_options *o, pthread_mutex_t *lock,
                                 int *moving);
/* Record that the world has ended; the first reason is kept. Called with the lock held. */
void lt_comm_fail(lt_comm *c, lt_err err, const char *reason);
/* The bytes of a call's src, or of the data that it receives. */
size_t lt_call_bytes(const lt_call *call);
/* The bytes at its src, or at its dst. */
size_t lt_call_side_bytes(const lt_call *call, bool dst);

/* sum.c: dst[i] = reduction of srcs[0][i] ... srcs[n - 1][i], in this order, in F32 (F64 for F64,
 * integers in their own type), rounded once. dst may be any of the sources. MAX and MIN keep a NaN,
 * too. */
bool lt_comm_can_reduce(lt_dtype dtype);
void lt_comm_reduce(void *dst, const void *const *srcs, int n, int64_t count, lt_dtype dtype,
                    lt_reduce op);
/* Where shard i of n of `count` elements begins. All but the last have the same size. */
int64_t lt_comm_shard(int64_t count, int n, int i);

extern const lt_transport lt_transport_thread, lt_transport_shm, lt_transport_tcp, lt_transport_mpi,
    lt_transport_nccl;

#endif
