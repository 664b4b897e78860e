/* nccl_world.h: private declarations of NCCL's transport, for nccl.c (the transport, and its
 * description), nccl_collective.c (the steps of a collective) and nccl_check.c (what the other
 * ranks call). */
#ifndef LT_COMM_NCCL_WORLD_H
#define LT_COMM_NCCL_WORLD_H

#include "base/file.h"
#include "comm/call.h"
#include "comm/nccl_library.h"
#include "comm/peer.h"
#include "tensor/backend.h"

#define LT_NCCL_HEADER_WORDS 8 /* Number of words in which a rank describes a call. */

typedef enum { LINK_NEW, LINK_ID, LINK_INIT, LINK_READY } link_state;

/* One direction of a pair of ranks. */
typedef struct {
    link_state state;
    lt_nccl_id id;
    lt_comm_work exchange; /* The exchange of the NCCL id in the host world. */
    lt_nccl_comm comm;
    lt_queue *queue;
} lt_nccl_link;

typedef struct {
    lt_nccl_comm comm;   /* NULL: all members' GPUs copy directly. */
    lt_group *twin;      /* The same group in the host world. */
    lt_nccl_link *links; /* (n, 2): the link to each member, and the one from it. */
} lt_nccl_group;

typedef struct {
    const lt_nccl_library *nccl; /* NULL until something needs NCCL. */
    lt_comm *host;
    lt_device *device;
    const lt_backend *backend;
    lt_queue *queue;
    lt_peers *peers;             /* Copies between GPUs of this machine. */
    char records[LT_PATH_BYTES]; /* options.record_dir */
    lt_moment *before[LT_COMM_AHEAD], *done[LT_COMM_AHEAD];
    bool follows[LT_COMM_AHEAD];
    /* lt_comm_measure: the calls that are timed, from `began` to `ended`. The moment `origin`
     * relates them to origin_ns on the host's clock; 0: there is none. */
    bool measures, measured[LT_COMM_AHEAD];
    lt_moment *began[LT_COMM_AHEAD], *ended[LT_COMM_AHEAD], *origin;
    uint64_t origin_ns;
    /* State of the collective that has its turn. */
    int64_t step, n_steps;
    lt_nccl_comm settling; /* NULL: no step of NCCL is in progress. */
    bool on_host;          /* It waits until a piece has been copied to the host. */
    lt_moment *down;
    char *stage;  /* (n, piece) on the device. */
    float *sum;   /* (piece) F32 on the device. */
    char *pinned; /* (n, piece) on the host. */
    size_t piece_bytes;
    /* options.check: headers sent to and received from each member, by the slot of the call. */
    int64_t *own, *theirs, *counts; /* (AHEAD, size, LT_NCCL_HEADER_WORDS) twice; (size) */
    lt_comm_work exchanges[LT_COMM_AHEAD];
    bool checked[LT_COMM_AHEAD];
} lt_nccl_world;

static inline lt_nccl_world *lt_nccl_world_of(const lt_call *call) {
    return call->group->comm->world;
}

static inline size_t lt_nccl_place(const lt_call *call) {
    return call->number % LT_COMM_AHEAD;
}

static inline lt_nccl_group *lt_nccl_group_of(const lt_call *call) {
    return call->group->shared;
}

/* NCCL's failure, if any; *busy: its last call is still in progress. */
lt_err lt_nccl_state(const lt_nccl_world *w, lt_nccl_comm comm, bool *busy);
/* Mark where a call begins on q, after the work that its caller had queued, and where it ends. */
lt_err lt_nccl_begin_on(lt_nccl_world *w, const lt_call *call, lt_queue *q);
lt_err lt_nccl_end_on(lt_nccl_world *w, lt_call *call, lt_queue *q);

/* The sends of peer.h wait for the work that the caller had queued, and for earlier calls that
 * write this call's source. */
lt_err lt_nccl_sends_follow(lt_nccl_world *w, const lt_call *call);

/* nccl_check.c: tell the other ranks what this rank calls. *done: they make the same call. */
lt_err lt_nccl_check_begin(lt_nccl_world *w, const lt_call *call);
lt_err lt_nccl_check_advance(lt_nccl_world *w, const lt_call *call, bool *done);

/* nccl_collective.c: queue the steps of a collective until one stays in progress; its phase becomes
 * LT_CALL_ISSUED with its last step. */
lt_err lt_nccl_collective(lt_nccl_world *w, lt_call *call);

#endif
