/* peer.h: transfers between GPUs of one machine by their copy engines. Unlike NCCL's, they have no
 * kernel that holds a multiprocessor while it moves data or waits, so products run beside them at
 * full speed. The world of nccl.c uses them among ranks that reach each other's memory; if all do,
 * NCCL is not opened. LATEEN_PEER_COPIES=0: NCCL does all.
 *
 * BOXES      Each rank has an allocation that its neighbours have mapped, with a box for each of
 *            them. A box has lanes: one for collectives, PAIR_LANES for sends and receives; a lane
 *            is a ring of SLOTS slots.
 *
 *     sender's queue                                    receiver's queue
 *     wait until the slot is freed (own word)
 *     copy piece k into slot k % SLOTS of the box  ───▶
 *     arrived, of the slot (receiver's word)       ───▶ wait until it has arrived (own word)
 *                                                       add or copy from the slot
 *                                                  ◀─── freed, of the slot (sender's word)
 *
 *            A word counts how often its slot was filled, or freed. Both sides count the pieces of
 *            a lane, so nothing else is sent, and the host queues a whole collective at once,
 *            without waiting. In step i of a collective each rank sends to the member i places
 *            after it, in pieces as large as a slot: a piece costs some microseconds in addition to
 *            its bytes, and two copies at a time are slower than one after the other. TAKES queues
 *            copy the pieces of different members out of the slots.
 * SUMS       are formed piece by piece in the order of the members, in F32, and rounded once: they
 *            have the bits of any other transport. The pieces of an all-reduce's two halves
 *            alternate: raw 0, raw 1, sum 0, raw 2, sum 1, ...
 * PAIRS      The lane of a group's sends between two ranks is its place among the groups that hold
 *            both, in the order of their opening; from PAIR_LANES on NCCL does them.
 * THE END    A world that fails first ends the host world, which each call checks before it counts
 *            as done. Then it sets all its own words so far ahead that no wait holds; what its
 *            queues send from then on is garbage. An allocation is freed when each neighbour has
 *            said that it will not write any more, or has died. */
#ifndef LT_COMM_PEER_H
#define LT_COMM_PEER_H

#include "comm/call.h"
#include "tensor/backend.h"

#define LT_PEER_SLOTS      2
#define LT_PEER_TAKES      3
#define LT_PEER_PAIR_LANES 3
#define LT_PEER_LANES      (1 + LT_PEER_PAIR_LANES)
#define LT_PEER_MOST       16 /* At most this many ranks on one machine. */

typedef struct lt_peers lt_peers;

/* Size in MiB of each transfer buffer: LATEEN_TRANSFER_MIB, or `usual` if that is not set; 0: it is
 * not a number of MiB. It must be the same on all ranks. */
long lt_transfer_mib(long usual);
/* Bytes of GPU memory for a world of n ranks. */
size_t lt_peers_bytes(int n_ranks);
/* Allocate this rank's boxes for a world of the ranks of `host`. */
LT_MUST_USE lt_err lt_peers_open(lt_peers **out, lt_comm *host, lt_device *device);
/* A collective call of the ranks of `host`: find out which ranks reach each other; before it, none
 * do. It also succeeds if none do. off: treat all as unreachable. */
LT_MUST_USE lt_err lt_peers_meet(lt_peers *p, lt_comm *host, bool off);
/* Waits a few seconds at most until no neighbour writes any more. Accepts NULL. */
void lt_peers_close(lt_peers *p);
/* Release every queue that waits for a neighbour. */
void lt_peers_abort(lt_peers *p);
/* Whether all ranks of the world, or of a group, reach each other; the same on all of them. */
bool lt_peers_all(const lt_peers *p);
bool lt_peers_reach(const lt_peers *p, const lt_group *g);

/* Queue a whole call: a collective's sums and receives on q, its sends on lt_peer_sends, for which
 * q waits at the end. scratch: a few bytes of device memory, which a barrier sends. */
typedef struct {
    lt_queue *q;
    float *scratch;
} lt_peer_place;
bool lt_peers_serve(const lt_peers *p, const lt_call *call);
LT_MUST_USE lt_err lt_peers_collective(lt_peers *p, const lt_call *call,
                                       const lt_peer_place *place);
/* Sends that are queued from now on wait for the work that q holds. */
LT_MUST_USE lt_err lt_peers_sends_follow(lt_peers *p, lt_queue *q);
/* q waits until a member's data of a queued all_gather have arrived. */
LT_MUST_USE lt_err lt_peers_follow(lt_peers *p, const lt_call *call, int member, lt_queue *q);
/* Put the first pieces that a later reduce_scatter sends to call->peer, after the work that
 * place->q holds: as many as a ring has room for, before the receiver has made the call. The call
 * itself puts the rest. */
LT_MUST_USE lt_err lt_peers_early(lt_peers *p, const lt_call *call, const lt_peer_place *place);
/* A send or receive; all of it on q. lane: lt_peers_lane of the group and member. */
LT_MUST_USE lt_err lt_peers_pair(lt_peers *p, const lt_call *call, int lane, lt_queue *q);
/* The lane of the sends between this rank and a member; -1: NCCL sends them. */
int lt_peers_lane(const lt_peers *p, const lt_group *g, int member);
/* The members whose pieces a queued collective still waits for, as "rank 2 did not come"; false if
 * there are none. */
bool lt_peers_missing(lt_peers *p, const lt_call *call, char *out, size_t out_bytes);

/* ---- peer.c, for peer_verbs.c: pieces ---- */
size_t lt_peer_slot_bytes(const lt_peers *p, int lane);
/* Copy a piece into the box at rank `to`. q NULL: lt_peer_sends. */
LT_MUST_USE lt_err lt_peer_put(lt_peers *p, int to, int lane, const void *src, size_t bytes,
                               lt_queue *q);
/* Number of pieces of lane 0 that were sent to `to` before their call was made. */
int64_t *lt_peer_early(lt_peers *p, int to);
/* q waits for the next piece from a rank; it stays at *out until lt_peer_free. */
LT_MUST_USE lt_err lt_peer_await(lt_peers *p, int from, int lane, lt_queue *q, char **out);
LT_MUST_USE lt_err lt_peer_free(lt_peers *p, int from, int lane, lt_queue *q);
/* Call `call` first waits for a piece of lane 0 from this rank, if for any. */
void lt_peer_expect(lt_peers *p, uint64_t call, int from, bool any);
/* The queue of a collective's sends; and queue i < LT_PEER_TAKES of its copies out of slots. */
lt_queue *lt_peer_sends(lt_peers *p);
lt_queue *lt_peer_takes(lt_peers *p, int i);
const lt_backend *lt_peer_backend(const lt_peers *p);
/* Moment i < LT_PEER_TAKES, with which one side of a collective waits for the other. */
lt_moment *lt_peer_moment(lt_peers *p, int i);
/* Mark that all data of a call from this rank have arrived. */
LT_MUST_USE lt_err lt_peer_has_come(lt_peers *p, uint64_t call, int from, lt_queue *q);

#endif
