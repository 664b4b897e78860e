/* nccl_collective.c: a collective as NCCL calls and sums between them. See nccl.c. */
#include <string.h>

#include "base/error.h"
#include "comm/nccl_world.h"
#include "comm/piece.h"

static bool is_reduction(const lt_call *call) {
    return call->kind == LT_CALL_ALL_REDUCE || call->kind == LT_CALL_REDUCE_SCATTER;
}

typedef enum { BY_NCCL, BY_DEVICE, BY_HOST } who_sums;

/* Ranks whose GPUs copy directly have no NCCL communicator: peer_verbs.c sums F32 and BF16 among
 * them, and the host sums all other types. */
static who_sums sums_by(const lt_call *call) {
    const lt_dtype t = call->dtype;
    if (lt_nccl_group_of(call)->comm == NULL) {
        return BY_HOST;
    }
    if (t == LT_I64 || t == LT_I32 || t == LT_U8 || call->group->comm->options.any_order) {
        return BY_NCCL;
    }
    return call->op == LT_REDUCE_SUM && (t == LT_F32 || t == LT_BF16) ? BY_DEVICE : BY_HOST;
}

static int64_t piece_elements(const lt_nccl_world *w, const lt_call *call) {
    const size_t bytes = lt_dtype_bytes(call->dtype);
    return (int64_t)(w->piece_bytes / (bytes > sizeof(float) ? bytes : sizeof(float)));
}

/* The number of pieces of the largest shard, which is the first; if the host sums, of all
 * elements. */
static int64_t n_pieces(const lt_nccl_world *w, const lt_call *call) {
    const int64_t each = piece_elements(w, call), n = call->group->n;
    const int64_t all = call->kind == LT_CALL_ALL_REDUCE ? call->count : call->count * n;
    const int64_t largest = sums_by(call) == BY_HOST ? all : (all + n - 1) / n;
    return (largest + each - 1) / each;
}

/* What an exchange sends to and receives from each member, in bytes. */
typedef struct {
    const char *send;
    char *recv;
    size_t send_bytes, recv_bytes;
} exchange;

static exchange exchange_of(const lt_nccl_world *w, const lt_call *call, int i, int64_t step) {
    const size_t elem = lt_dtype_bytes(call->dtype);
    const int own = call->group->rank, n = call->group->n;
    int64_t first, own_first, send_at = 0, recv_at = 0;
    if (call->kind == LT_CALL_ALL_TO_ALL) {
        for (int j = 0; j < i; j++) {
            send_at += call->send_counts[j];
            recv_at += call->recv_counts[j];
        }
        return (exchange){lt_piece_element(call->src, send_at, call->dtype),
                          lt_piece_element(call->dst, recv_at, call->dtype),
                          (size_t)call->send_counts[i] * elem, (size_t)call->recv_counts[i] * elem};
    }
    if (step >= n_pieces(w, call)) { /* The shards of the result are gathered last. */
        first = lt_comm_shard(call->count, n, i);
        own_first = lt_comm_shard(call->count, n, own);
        return (exchange){lt_piece_element(call->dst, own_first, call->dtype),
                          lt_piece_element(call->dst, first, call->dtype),
                          (size_t)(lt_comm_shard(call->count, n, own + 1) - own_first) * elem,
                          (size_t)(lt_comm_shard(call->count, n, i + 1) - first) * elem};
    }
    const int64_t each = piece_elements(w, call);
    const lt_piece piece = lt_piece_of(call, i, step, each),
                   mine = lt_piece_of(call, own, step, each);
    return (exchange){lt_piece_element(call->src, piece.first, call->dtype),
                      w->stage + (size_t)i * w->piece_bytes, (size_t)piece.count * elem,
                      (size_t)mine.count * elem};
}

/* Do all sends and receives as one NCCL group. */
static lt_err exchange_all(lt_nccl_world *w, const lt_call *call, int64_t step) {
    const lt_nccl_library *m = w->nccl;
    const lt_group *g = call->group;
    const lt_nccl_comm comm = ((lt_nccl_group *)g->shared)->comm;
    void *stream = w->backend->native(w->queue);
    int failed = LT_NCCL_SUCCESS, r;
    LT_TRY(lt_nccl_check(m, m->GroupStart(), "group"));
    for (int i = 0; i < g->n; i++) {
        const exchange e = exchange_of(w, call, i, step);
        if (i == g->rank) {
            continue;
        }
        r = e.send_bytes > 0 ? m->Send(e.send, e.send_bytes, LT_NCCL_UINT8, i, comm, stream)
                             : LT_NCCL_SUCCESS;
        failed = failed == LT_NCCL_SUCCESS || failed == LT_NCCL_IN_PROGRESS ? r : failed;
        r = e.recv_bytes > 0 ? m->Recv(e.recv, e.recv_bytes, LT_NCCL_UINT8, i, comm, stream)
                             : LT_NCCL_SUCCESS;
        failed = failed == LT_NCCL_SUCCESS || failed == LT_NCCL_IN_PROGRESS ? r : failed;
    }
    r = m->GroupEnd();
    LT_TRY(lt_nccl_check(m, failed, "send or receive"));
    w->settling = comm;
    return lt_nccl_check(m, r, "group");
}

/* This rank's own part of an exchange, which NCCL does not move. */
static lt_err copy_own(const lt_nccl_world *w, const lt_call *call) {
    const exchange e = exchange_of(w, call, call->group->rank, 0);
    return e.send != e.recv && e.send_bytes > 0
               ? w->backend->copy(w->queue, e.recv, e.send, e.send_bytes)
               : LT_OK;
}

/* Add the members' received pieces in F32, in the order of the members, and round once. */
static lt_err add_piece(lt_nccl_world *w, const lt_call *call, int64_t k) {
    const int own = call->group->rank;
    const lt_piece piece = lt_piece_of(call, own, k, piece_elements(w, call));
    void *terms[LT_COMM_MAX_RANKS];
    if (piece.count == 0) {
        return LT_OK;
    }
    for (int i = 0; i < call->group->n; i++) {
        terms[i] = i == own ? lt_piece_element(call->src, piece.first, call->dtype)
                            : w->stage + (size_t)i * w->piece_bytes;
    }
    return lt_piece_add(w->backend, w->queue, call, piece, terms, w->sum);
}

/* Gather every member's elements of piece k on all ranks, and copy them to the host. */
static lt_err gather_piece(lt_nccl_world *w, const lt_call *call, int64_t k) {
    const lt_nccl_library *m = w->nccl;
    const int64_t each = piece_elements(w, call), n = call->group->n,
                  all = call->kind == LT_CALL_ALL_REDUCE ? call->count : call->count * n,
                  count = all - k * each < each ? all - k * each : each;
    const lt_nccl_comm comm = lt_nccl_group_of(call)->comm;
    if (comm == NULL) {
        lt_call gather = *call;
        LT_TRY(lt_nccl_sends_follow(w, call));
        gather.kind = LT_CALL_ALL_GATHER;
        gather.src = lt_piece_element(call->src, k * each, call->dtype);
        gather.dst = w->stage;
        gather.count = count;
        return lt_peers_collective(w->peers, &gather, &(lt_peer_place){.q = w->queue});
    }
    w->settling = comm;
    return lt_nccl_check(m,
                         m->AllGather(lt_piece_element(call->src, k * each, call->dtype), w->stage,
                                      (size_t)count * lt_dtype_bytes(call->dtype), LT_NCCL_UINT8,
                                      comm, w->backend->native(w->queue)),
                         "all_gather");
}

static lt_err bring_down(lt_nccl_world *w, const lt_call *call, int64_t k) {
    const int64_t each = piece_elements(w, call), n = call->group->n,
                  all = call->kind == LT_CALL_ALL_REDUCE ? call->count : call->count * n,
                  count = all - k * each < each ? all - k * each : each;
    LT_TRY(w->backend->download(w->queue, w->pinned, w->stage,
                                (size_t)(n * count) * lt_dtype_bytes(call->dtype)));
    w->on_host = true;
    return w->backend->moment_mark(w->queue, w->down);
}

/* The piece has arrived on the host: reduce it, and copy this rank's part to the device. */
static lt_err reduce_on_host(lt_nccl_world *w, const lt_call *call, int64_t k) {
    const void *srcs[LT_COMM_MAX_RANKS];
    const size_t elem = lt_dtype_bytes(call->dtype);
    const int own = call->group->rank, n = call->group->n;
    const bool whole = call->kind == LT_CALL_ALL_REDUCE;
    const int64_t each = piece_elements(w, call), all = whole ? call->count : call->count * n,
                  first = k * each, count = all - first < each ? all - first : each;
    const int64_t from = whole ? 0 : own * call->count, to = from + (whole ? all : call->count);
    const int64_t begin = first > from ? first : from,
                  end = first + count < to ? first + count : to;
    for (int i = 0; i < n; i++) {
        srcs[i] = w->pinned + (size_t)(i * count) * elem;
    }
    lt_comm_reduce(w->pinned, srcs, n, count, call->dtype, call->op);
    return begin < end ? w->backend->upload(w->queue,
                                            lt_piece_element(call->dst, begin - from, call->dtype),
                                            w->pinned + (size_t)(begin - first) * elem,
                                            (size_t)(end - begin) * elem)
                       : LT_OK;
}

static lt_err one_call(lt_nccl_world *w, const lt_call *call) {
    const lt_nccl_library *m = w->nccl;
    const lt_nccl_comm comm = lt_nccl_group_of(call)->comm;
    void *stream = w->backend->native(w->queue);
    const size_t count = (size_t)call->count, bytes = count * lt_dtype_bytes(call->dtype);
    const int type = lt_nccl_type(call->dtype), op = call->op == LT_REDUCE_SUM   ? LT_NCCL_SUM
                                                     : call->op == LT_REDUCE_MAX ? LT_NCCL_MAX
                                                                                 : LT_NCCL_MIN;
    int r;
    w->settling = comm;
    switch (call->kind) {
    case LT_CALL_ALL_REDUCE:
        r = m->AllReduce(call->src, call->dst, count, type, op, comm, stream);
        break;
    case LT_CALL_REDUCE_SCATTER:
        r = m->ReduceScatter(call->src, call->dst, count, type, op, comm, stream);
        break;
    case LT_CALL_ALL_GATHER:
        r = m->AllGather(call->src, call->dst, bytes, LT_NCCL_UINT8, comm, stream);
        break;
    case LT_CALL_BROADCAST:
        r = m->Broadcast(call->src, call->dst, bytes, LT_NCCL_UINT8, call->peer, comm, stream);
        break;
    default: /* A barrier: a reduction whose result is not read. */
        r = m->AllReduce(w->sum, w->sum, 1, LT_NCCL_INT32, LT_NCCL_MAX, comm, stream);
        break;
    }
    return lt_nccl_check(m, r, lt_call_kind_name(call->kind));
}

/* The number of NCCL's steps; end_step queues the work that follows a step. */
static int64_t count_steps(const lt_nccl_world *w, const lt_call *call) {
    if (is_reduction(call) && call->count == 0) {
        return 0;
    }
    if (is_reduction(call) && sums_by(call) != BY_NCCL) {
        return n_pieces(w, call) + (sums_by(call) == BY_DEVICE && call->kind == LT_CALL_ALL_REDUCE);
    }
    return call->kind != LT_CALL_BARRIER && lt_call_bytes(call) == 0 &&
                   call->kind != LT_CALL_ALL_TO_ALL
               ? 0
               : 1;
}

static lt_err begin_step(lt_nccl_world *w, const lt_call *call) {
    if (call->kind == LT_CALL_ALL_TO_ALL) {
        LT_TRY(copy_own(w, call));
        return exchange_all(w, call, 0);
    }
    if (is_reduction(call) && sums_by(call) == BY_DEVICE) {
        return exchange_all(w, call, w->step);
    }
    return is_reduction(call) && sums_by(call) == BY_HOST ? gather_piece(w, call, w->step)
                                                          : one_call(w, call);
}

static lt_err end_step(lt_nccl_world *w, const lt_call *call) {
    if (is_reduction(call) && sums_by(call) == BY_DEVICE && w->step < n_pieces(w, call)) {
        return add_piece(w, call, w->step);
    }
    return is_reduction(call) && sums_by(call) == BY_HOST ? bring_down(w, call, w->step) : LT_OK;
}

/* Queue the steps, one after another, until one stays in progress. */
lt_err lt_nccl_collective(lt_nccl_world *w, lt_call *call) {
    bool busy = false;
    if (call->phase == 0) {
        LT_TRY(lt_nccl_begin_on(w, call, w->queue));
        w->step = 0;
        w->n_steps = count_steps(w, call);
        w->settling = NULL;
        w->on_host = false;
        call->phase = 1;
        if (w->n_steps > 0) {
            LT_TRY(begin_step(w, call));
        }
    }
    while (w->step < w->n_steps) {
        if (w->settling != NULL) {
            LT_TRY(lt_nccl_state(w, w->settling, &busy));
            if (busy) {
                return LT_OK;
            }
            w->settling = NULL;
        }
        if (!w->on_host) {
            LT_TRY(end_step(w, call));
        }
        if (w->on_host) {
            bool there;
            LT_TRY(w->backend->moment_passed(w->device, w->down, &there));
            if (!there) {
                return LT_OK;
            }
            w->on_host = false;
            LT_TRY(reduce_on_host(w, call, w->step));
            if (w->step + 1 < w->n_steps) { /* The next piece uses the same buffer. */
                LT_TRY(w->backend->sync(w->queue));
            }
        }
        w->step++;
        if (w->step < w->n_steps) {
            LT_TRY(begin_step(w, call));
        }
    }
    return lt_nccl_end_on(w, call, w->queue);
}
