/* rounds.h: the verbs as rounds of messages between two ranks, for transports that can only send
 * and receive bytes (mpi.c, shm.c, tcp.c). Sums are computed here, in the order of the members
 * (sum.c), so they have the same bits as with the other transports.
 *
 * A collective is a sequence of rounds. In a round every pair of members exchanges at most one
 * piece each way; when all pieces of the round have arrived at a rank, it reduces them where needed
 * and begins the next round. Messages between two ranks with one tag are matched in the order they
 * were sent in, and a group has two tags of its own, for collectives and for sends and receives:
 *
 *     check            each member's call, as a header: only with options.check
 *     all_reduce       piece k of shard j of every src to member j, which reduces it into its dst;
 *                      then piece k of every reduced shard to all
 *     reduce_scatter   piece k of row j of every src to member j
 *     all_gather, broadcast, all_to_all   piece k of each message, straight to its place
 *     barrier          one byte */
#ifndef LT_COMM_ROUNDS_H
#define LT_COMM_ROUNDS_H

#include "comm/call.h"

/* The functions that move the bytes. A request is NULL when it is done; none of them blocks. */
typedef struct {
    lt_err (*send)(void *of, const void *data, size_t bytes, int rank, int tag, void **request);
    lt_err (*receive)(void *of, void *data, size_t bytes, int rank, int tag, void **request);
    /* When it is done, *request is NULL, and *bytes is the number of bytes received. */
    lt_err (*test)(void *of, void **request, size_t *bytes);
} lt_link;

typedef struct {
    void *request; /* NULL: there is none, or it is done. */
    int rank;      /* The other rank, in the world. */
    bool is_recv;
    size_t bytes;
} lt_transfer;

/* Describes a call for the checking mode. */
typedef struct {
    int64_t kind, seq, count, dtype, op, peer, to_you;
} lt_call_header;

typedef struct {
    const lt_link *link;
    void *of;
    int size;
    lt_transfer *transfers; /* (2 size): transfers of the collective in progress. */
    int n_transfers;
    int64_t round;
    /* Transfers of sends and receives, by the slot of the call. */
    lt_transfer pairs[LT_COMM_AHEAD];
    char *scratch;                /* (size, one piece): data to be reduced. */
    lt_call_header *own, *theirs; /* (size) each. */
} lt_rounds;

LT_MUST_USE lt_err lt_rounds_open(lt_rounds *w, const lt_link *link, void *of, int size);
void lt_rounds_close(lt_rounds *w);
/* Refuses a group whose tag another group of the rank has. */
LT_MUST_USE lt_err lt_rounds_group_open(lt_group *g);
lt_advance lt_rounds_advance(lt_rounds *w, lt_call *call); /* See lt_transport. */
/* The members that a call waits for; see lt_transport. */
void lt_rounds_missing(const lt_rounds *w, const lt_call *call, char *out, size_t out_bytes);

#endif
