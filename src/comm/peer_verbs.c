/* peer_verbs.c: collectives, sends and receives as sequences of pieces; see peer.h. */
#include "base/error.h"
#include "comm/peer.h"
#include "comm/piece.h"
#include "tensor/ops.h"

_Static_assert(LT_PEER_MOST <= LT_SUM_MOST, "a sum of all ranks of a machine is one op");

static bool sums_here(const lt_call *call) {
    return call->op == LT_REDUCE_SUM && (call->dtype == LT_F32 || call->dtype == LT_BF16);
}

bool lt_peers_serve(const lt_peers *p, const lt_call *call) {
    const bool sums = call->kind == LT_CALL_ALL_REDUCE || call->kind == LT_CALL_REDUCE_SCATTER;
    return lt_peers_reach(p, call->group) && (!sums || sums_here(call));
}

/* Bytes of piece k of a message that is divided into pieces of `each` bytes. */
static size_t piece_bytes(size_t bytes, int64_t k, size_t each) {
    const size_t first = (size_t)k * each;
    return first >= bytes ? 0 : bytes - first < each ? bytes - first : each;
}

/* A call in progress. */
typedef struct {
    lt_peers *p;
    const lt_backend *backend;
    const lt_call *call;
    const lt_group *g;
    lt_queue *q;
    float *scratch;
    int64_t each; /* Elements of a piece of a sum. */
} work;

static lt_err put(const work *w, int member, const char *src, size_t bytes) {
    return bytes > 0 ? lt_peer_put(w->p, w->g->ranks[member], 0, src, bytes, NULL) : LT_OK;
}

/* Copy the next piece from a member to dst; dst NULL: discard it. */
static lt_err take(const work *w, int member, char *dst, size_t bytes, lt_queue *q) {
    const int rank = w->g->ranks[member];
    char *slot;
    if (bytes == 0) {
        return LT_OK;
    }
    LT_TRY(lt_peer_await(w->p, rank, 0, q, &slot));
    LT_TRY(dst != NULL ? w->backend->copy(q, dst, slot, bytes) : LT_OK);
    return lt_peer_free(w->p, rank, 0, q);
}

/* The member i + 1 places after this one. */
static int other(const work *w, int i) {
    return (w->g->rank + 1 + i) % w->g->n;
}

/* ---- Movements ------------------------------------------------------------------------------- */

typedef struct {
    const char *send;
    char *recv;
    size_t send_bytes, recv_bytes;
} exchange;

#define BARRIER_BYTES 4 /* The contents do not matter. */

static exchange exchange_with(const work *w, int member) {
    const lt_call *call = w->call;
    const size_t elem = lt_dtype_bytes(call->dtype), all = (size_t)call->count * elem;
    const int own = call->group->rank;
    int64_t send_at = 0, recv_at = 0;
    switch (call->kind) {
    case LT_CALL_BARRIER:
        return (exchange){(const char *)w->scratch, NULL, BARRIER_BYTES, BARRIER_BYTES};
    case LT_CALL_BROADCAST:
        return (exchange){call->src, call->dst, own == call->peer ? all : 0,
                          member == call->peer ? all : 0};
    case LT_CALL_ALL_GATHER:
        return (exchange){call->src, lt_piece_element(call->dst, member * call->count, call->dtype),
                          all, all};
    default:
        break;
    }
    for (int j = 0; j < member; j++) {
        send_at += call->send_counts[j];
        recv_at += call->recv_counts[j];
    }
    return (exchange){lt_piece_element(call->src, send_at, call->dtype),
                      lt_piece_element(call->dst, recv_at, call->dtype),
                      (size_t)call->send_counts[member] * elem,
                      (size_t)call->recv_counts[member] * elem};
}

static lt_err put_all(const work *w, int member) {
    const exchange e = exchange_with(w, member);
    const size_t each = lt_peer_slot_bytes(w->p, 0);
    for (int64_t k = 0; (size_t)k * each < e.send_bytes; k++) {
        LT_TRY(put(w, member, e.send + (size_t)k * each, piece_bytes(e.send_bytes, k, each)));
    }
    return LT_OK;
}

static lt_err take_all(const work *w, int member, lt_queue *q) {
    const exchange e = exchange_with(w, member);
    const size_t each = lt_peer_slot_bytes(w->p, 0);
    for (int64_t k = 0; (size_t)k * each < e.recv_bytes; k++) {
        LT_TRY(take(w, member, e.recv != NULL ? e.recv + (size_t)k * each : NULL,
                    piece_bytes(e.recv_bytes, k, each), q));
    }
    return w->call->kind == LT_CALL_ALL_GATHER /* Only all_gather is followed member by member. */
               ? lt_peer_has_come(w->p, w->call->number, w->g->ranks[member], q)
               : LT_OK;
}

/* With several members, take from each on its own queue: these queues wait for q, and q then waits
 * for all of them. */
static lt_err take_from_all(const work *w) {
    const int n = w->g->n - 1, n_queues = n < LT_PEER_TAKES ? n : LT_PEER_TAKES;
    LT_TRY(w->backend->moment_mark(w->q, lt_peer_moment(w->p, 0)));
    for (int i = 0; n_queues > 1 && i < n_queues; i++) {
        LT_TRY(w->backend->moment_follow(lt_peer_takes(w->p, i), lt_peer_moment(w->p, 0)));
    }
    for (int i = 0; i < n; i++) {
        lt_queue *q = n_queues > 1 ? lt_peer_takes(w->p, i % n_queues) : w->q;
        LT_TRY(take_all(w, other(w, n - 1 - i), q));
    }
    for (int i = 0; n_queues > 1 && i < n_queues; i++) {
        LT_TRY(w->backend->moment_mark(lt_peer_takes(w->p, i), lt_peer_moment(w->p, i)));
        LT_TRY(w->backend->moment_follow(w->q, lt_peer_moment(w->p, i)));
    }
    return LT_OK;
}

/* In step i each rank sends to the member i places after it and takes from the one i places before
 * it, so that each GPU receives from one rank at a time. */
static lt_err exchange_all(const work *w) {
    const exchange own = exchange_with(w, w->g->rank);
    if (own.recv != NULL && own.send != own.recv && own.send_bytes > 0) {
        LT_TRY(w->backend->copy(w->q, own.recv, own.send, own.send_bytes));
    }
    for (int i = 0; i < w->g->n - 1; i++) {
        const exchange e = exchange_with(w, other(w, i));
        lt_peer_expect(w->p, w->call->number, w->g->ranks[other(w, i)], e.recv_bytes > 0);
    }
    for (int i = 0; i < w->g->n - 1; i++) {
        LT_TRY(put_all(w, other(w, i)));
    }
    return take_from_all(w);
}

/* ---- Sums ------------------------------------------------------------------------------------ */

static lt_piece shard_piece(const work *w, int member, int64_t k) {
    return lt_piece_of(w->call, member, k, w->each);
}

/* The largest shard is the first. */
static int64_t n_pieces(const work *w) {
    const lt_call *call = w->call;
    const int64_t largest = call->kind == LT_CALL_ALL_REDUCE
                                ? lt_comm_shard(call->count, w->g->n, 1)
                                : call->count;
    return (largest + w->each - 1) / w->each;
}

static size_t bytes_of(const work *w, lt_piece s) {
    return (size_t)s.count * lt_dtype_bytes(w->call->dtype);
}

static lt_err put_shard(const work *w, int member, int64_t k) {
    const lt_piece s = shard_piece(w, member, k);
    return put(w, member, lt_piece_element(w->call->src, s.first, w->call->dtype), bytes_of(w, s));
}

/* Send each member the piece of its shard, unless it was sent early. */
static lt_err put_raw(const work *w, int64_t k) {
    for (int i = 0; i < w->g->n - 1; i++) {
        LT_TRY(k < *lt_peer_early(w->p, w->g->ranks[other(w, i)]) ? LT_OK
                                                                  : put_shard(w, other(w, i), k));
    }
    return LT_OK;
}

/* Add the members' pieces of this rank's shard, in the order of the members. */
static lt_err add_raw(const work *w, int64_t k) {
    const lt_call *call = w->call;
    const int n = w->g->n, own = w->g->rank;
    const lt_piece s = shard_piece(w, own, k);
    void *terms[LT_PEER_MOST];
    char *slot;
    if (s.count == 0) {
        return LT_OK;
    }
    for (int i = 0; i < n; i++) {
        slot = lt_piece_element(call->src, s.first, call->dtype);
        LT_TRY(i != own ? lt_peer_await(w->p, w->g->ranks[i], 0, w->q, &slot) : LT_OK);
        terms[i] = slot;
    }
    LT_TRY(lt_piece_add(w->backend, w->q, call, s, terms, w->scratch));
    for (int i = 0; i < n; i++) {
        LT_TRY(i != own ? lt_peer_free(w->p, w->g->ranks[i], 0, w->q) : LT_OK);
    }
    return LT_OK;
}

/* The sends wait for moment 0. */
static lt_err sends_follow(lt_peers *p) {
    return lt_peer_backend(p)->moment_follow(lt_peer_sends(p), lt_peer_moment(p, 0));
}

lt_err lt_peers_sends_follow(lt_peers *p, lt_queue *q) {
    LT_TRY(lt_peer_backend(p)->moment_mark(q, lt_peer_moment(p, 0)));
    return sends_follow(p);
}

static lt_err put_sum(const work *w, int64_t k) {
    const lt_piece s = shard_piece(w, w->g->rank, k);
    LT_TRY(sends_follow(w->p));
    for (int i = 0; i < w->g->n - 1; i++) {
        LT_TRY(put(w, other(w, i), lt_piece_element(w->call->dst, s.first, w->call->dtype),
                   bytes_of(w, s)));
    }
    return LT_OK;
}

static lt_err take_sums(const work *w, int64_t k) {
    for (int i = w->g->n - 2; i >= 0; i--) {
        const lt_piece s = shard_piece(w, other(w, i), k);
        LT_TRY(take(w, other(w, i), lt_piece_element(w->call->dst, s.first, w->call->dtype),
                    bytes_of(w, s), w->q));
    }
    return LT_OK;
}

static lt_err reduce(const work *w) {
    const int64_t n = n_pieces(w);
    const bool all = w->call->kind == LT_CALL_ALL_REDUCE;
    const bool comes = shard_piece(w, w->g->rank, 0).count > 0;
    for (int i = 0; i < w->g->n - 1; i++) {
        lt_peer_expect(w->p, w->call->number, w->g->ranks[other(w, i)],
                       comes || (all && shard_piece(w, other(w, i), 0).count > 0));
    }
    for (int64_t k = 0; k < n + all; k++) {
        const bool sums = all && k > 0;
        LT_TRY(k < n ? put_raw(w, k) : LT_OK);
        LT_TRY(sums ? put_sum(w, k - 1) : LT_OK);
        LT_TRY(k < n ? add_raw(w, k) : LT_OK);
        LT_TRY(k < n && all ? w->backend->moment_mark(w->q, lt_peer_moment(w->p, 0)) : LT_OK);
        LT_TRY(sums ? take_sums(w, k - 1) : LT_OK);
    }
    for (int i = 0; i < w->g->n - 1; i++) {
        *lt_peer_early(w->p, w->g->ranks[other(w, i)]) = 0;
    }
    return LT_OK;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

static work work_of(lt_peers *p, const lt_call *call, const lt_peer_place *place) {
    return (work){.p = p,
                  .backend = lt_peer_backend(p),
                  .call = call,
                  .g = call->group,
                  .q = place->q,
                  .scratch = place->scratch,
                  .each = (int64_t)(lt_peer_slot_bytes(p, 0) / lt_dtype_bytes(call->dtype))};
}

static bool none_is_early(const work *w) {
    bool none = true;
    for (int i = 0; i < w->g->n - 1; i++) {
        none = none && *lt_peer_early(w->p, w->g->ranks[other(w, i)]) == 0;
    }
    return none;
}

lt_err lt_peers_early(lt_peers *p, const lt_call *call, const lt_peer_place *place) {
    const work w = work_of(p, call, place);
    int64_t *early = lt_peer_early(p, w.g->ranks[call->peer]);
    const int64_t most = n_pieces(&w) < LT_PEER_SLOTS ? n_pieces(&w) : LT_PEER_SLOTS;
    LT_ASSERT(*early == 0);
    LT_TRY(lt_peers_sends_follow(p, place->q));
    for (; *early < most; ++*early) {
        LT_TRY(put_shard(&w, call->peer, *early));
    }
    return LT_OK;
}

lt_err lt_peers_collective(lt_peers *p, const lt_call *call, const lt_peer_place *place) {
    const lt_backend *b = lt_peer_backend(p);
    const work w = work_of(p, call, place);
    LT_ASSERT(call->kind == LT_CALL_REDUCE_SCATTER || none_is_early(&w));
    LT_TRY(call->kind == LT_CALL_ALL_REDUCE || call->kind == LT_CALL_REDUCE_SCATTER
               ? reduce(&w)
               : exchange_all(&w));
    LT_TRY(b->moment_mark(lt_peer_sends(p), lt_peer_moment(p, 0)));
    return b->moment_follow(w.q, lt_peer_moment(p, 0));
}

lt_err lt_peers_pair(lt_peers *p, const lt_call *call, int lane, lt_queue *q) {
    const lt_backend *b = lt_peer_backend(p);
    const int rank = call->group->ranks[call->peer];
    const size_t bytes = (size_t)call->count * lt_dtype_bytes(call->dtype),
                 each = lt_peer_slot_bytes(p, lane);
    for (size_t at = 0; at < bytes; at += each) {
        const size_t piece = bytes - at < each ? bytes - at : each;
        char *slot;
        if (call->kind == LT_CALL_SEND) {
            LT_TRY(lt_peer_put(p, rank, lane, (const char *)call->src + at, piece, q));
            continue;
        }
        LT_TRY(lt_peer_await(p, rank, lane, q, &slot));
        LT_TRY(b->copy(q, (char *)call->dst + at, slot, piece));
        LT_TRY(lt_peer_free(p, rank, lane, q));
    }
    return LT_OK;
}
