/* nccl.c: a world whose buffers lie in the memory of GPUs: NCCL's transport. It stands beside a
 * world of host memory with the same ranks (threads, shm.c, mpi.c), the host world, which carries
 * NCCL's ids and, with options.check, what each rank calls: NCCL itself neither compares calls nor
 * names the rank that is missing.
 *
 * A CALL     its caller marks where its own queue is (`before`); the worker, which alone calls
 *            NCCL, lets the world's queue follow that mark, queues the work, and marks its end
 *            (`done`).
 *
 *     QUEUED ──its turn──▶ steps: NCCL calls, own sums ──▶ ISSUED ──done has passed──▶ DONE
 *
 *            Once a call is ISSUED, later calls have their turn: the device does them one after
 *            another.
 * STEPS      Communicators are non-blocking, so a step of NCCL's may still be in progress when it
 *            returns; the next step waits until it is done. Nothing here blocks, and the deadline
 *            of the call covers all its steps.
 * SUMS       of F32 and BF16: piece by piece, each rank receives its shard of every member, adds
 *            in F32 in the order of the members, and rounds once; then shards are exchanged. Whole
 *            numbers: NCCL's own sums, which are exact. Other types, and MAX and MIN of floats,
 *            whose NaN NCCL may lose: every rank receives all, and the host reduces (sum.c); these
 *            are a few numbers a step. options.any_order: NCCL's own sums for all.
 * COPIES     A group whose members are on one machine and reach each other's GPUs has no
 *            communicator of NCCL's (peer.h); types other than F32 and BF16 are gathered and the
 *            host reduces them. If every group is of this kind, NCCL is not opened.
 * PAIRS      A send or receive has a communicator of two ranks and a queue of its own for each
 *            direction between two members, made at its first call, so that it delays nothing else.
 * FAILURES   On an error of NCCL, at the deadline, or when the host world fails, every communicator
 *            is aborted, by the thread that fails the world, which holds the lock so that no other
 *            thread is in NCCL. The host world is aborted too, and tells the other ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "comm/nccl_world.h"

#define POLL_US     20
#define STAGE_MIB   128                /* Buffer for data that was received and not yet added. */
#define PIECE_MOST  ((size_t)16 << 20) /* Largest piece of a shard in F32, in bytes. */
#define PIECE_LEAST ((size_t)1 << 20)
#define FINALIZE_S  5.0

/* ---- The state of NCCL and of the host world ------------------------------------------------- */

lt_err lt_nccl_state(const lt_nccl_world *w, lt_nccl_comm comm, bool *busy) {
    int state = LT_NCCL_SUCCESS;
    LT_TRY(lt_nccl_check(w->nccl, w->nccl->CommGetAsyncError(comm, &state), "state"));
    *busy = state == LT_NCCL_IN_PROGRESS;
    return lt_nccl_check(w->nccl, state, "a rank or the network has failed");
}

static lt_err heed_host(const lt_nccl_world *w) {
    const char *over = NULL;
    lt_err err = LT_OK;
    (void)pthread_mutex_lock(w->host->lock);
    over = w->host->failed == LT_OK && w->host->transport->over != NULL
               ? w->host->transport->over(w->host)
               : NULL;
    if (over != NULL) {
        lt_comm_fail(w->host, LT_ERR_REMOTE, over);
    }
    if (w->host->failed != LT_OK) {
        err = lt_error_set(LT_ERR_REMOTE, "%s", w->host->why);
    }
    (void)pthread_mutex_unlock(w->host->lock);
    return err;
}

lt_err lt_nccl_begin_on(lt_nccl_world *w, const lt_call *call, lt_queue *q) {
    const size_t place = lt_nccl_place(call);
    LT_TRY(w->follows[place] ? w->backend->moment_follow(q, w->before[place]) : LT_OK);
    return w->measured[place] ? w->backend->moment_mark(q, w->began[place]) : LT_OK;
}

lt_err lt_nccl_end_on(lt_nccl_world *w, lt_call *call, lt_queue *q) {
    const size_t place = lt_nccl_place(call);
    call->phase = LT_CALL_ISSUED;
    LT_TRY(w->measured[place] ? w->backend->moment_mark(q, w->ended[place]) : LT_OK);
    return w->backend->moment_mark(q, w->done[place]);
}

/* ---- Pairs ----------------------------------------------------------------------------------- */

/* The sender makes a NCCL id, and the host world carries it to the receiver. */
static lt_err link_begin(lt_nccl_world *w, const lt_call *call, lt_nccl_link *l) {
    lt_group *twin = lt_nccl_group_of(call)->twin;
    LT_TRY(w->nccl == NULL ? lt_nccl_load(&w->nccl) : LT_OK);
    LT_TRY(w->backend->queue_open(w->device, &l->queue));
    l->state = LINK_ID;
    if (call->kind == LT_CALL_RECV) {
        return lt_recv(twin, call->peer, &l->id, sizeof l->id, LT_U8, &l->exchange);
    }
    LT_TRY(lt_nccl_check(w->nccl, w->nccl->GetUniqueId(&l->id), "id"));
    return lt_send(twin, call->peer, &l->id, sizeof l->id, LT_U8, &l->exchange);
}

static lt_err link_advance(lt_nccl_world *w, const lt_call *call, lt_nccl_link *l) {
    bool busy = false;
    if (l->state == LINK_NEW) {
        LT_TRY(link_begin(w, call, l));
    }
    if (l->state == LINK_ID && lt_comm_done(w->host, l->exchange)) {
        lt_nccl_config config = lt_nccl_config_make(w->nccl, call->group->name);
        LT_TRY(lt_comm_wait(w->host, l->exchange));
        LT_TRY(lt_nccl_check(
            w->nccl,
            w->nccl->CommInitRankConfig(&l->comm, 2, l->id, call->kind == LT_CALL_RECV, &config),
            "communicator of two ranks"));
        l->state = LINK_INIT;
    }
    if (l->state == LINK_INIT) {
        LT_TRY(lt_nccl_state(w, l->comm, &busy));
        l->state = busy ? LINK_INIT : LINK_READY;
    }
    return LT_OK;
}

static lt_nccl_link *link_of(const lt_call *call) {
    return &lt_nccl_group_of(call)->links[2 * call->peer + (call->kind == LT_CALL_RECV)];
}

static lt_err pair(lt_nccl_world *w, lt_call *call) {
    const bool receives = call->kind == LT_CALL_RECV;
    lt_nccl_link *l = link_of(call);
    const size_t bytes = (size_t)call->count * lt_dtype_bytes(call->dtype);
    bool busy = false;
    if (call->phase == 0) {
        LT_TRY(link_advance(w, call, l));
        if (l->state != LINK_READY) {
            return LT_OK;
        }
        LT_TRY(lt_nccl_begin_on(w, call, l->queue));
        call->phase = 1;
        if (bytes > 0) {
            void *stream = w->backend->native(l->queue);
            const int r = receives
                              ? w->nccl->Recv(call->dst, bytes, LT_NCCL_UINT8, 0, l->comm, stream)
                              : w->nccl->Send(call->src, bytes, LT_NCCL_UINT8, 1, l->comm, stream);
            LT_TRY(lt_nccl_check(w->nccl, r, lt_call_kind_name(call->kind)));
        }
    }
    LT_TRY(lt_nccl_state(w, l->comm, &busy));
    if (busy) {
        return LT_OK;
    }
    return lt_nccl_end_on(w, call, l->queue);
}

static bool is_pair(const lt_call *call) {
    return call->kind == LT_CALL_SEND || call->kind == LT_CALL_RECV;
}

/* ---- Copies between GPUs of this machine (peer.h) -------------------------------------------- */

static bool by_copies(const lt_nccl_world *w, const lt_call *call) {
    return is_pair(call) ? lt_peers_lane(w->peers, call->group, call->peer) >= 0
                         : lt_nccl_group_of(call)->comm == NULL && lt_peers_serve(w->peers, call);
}

/* Whether a call reads what an earlier, unfinished call writes. Its sends have a queue of their
 * own. */
static bool reads_what_comes(const lt_call *call) {
    const lt_comm *c = call->group->comm;
    const char *src = call->src,
               *src_end = src != NULL ? src + lt_call_side_bytes(call, false) : src;
    for (uint64_t k = c->finished + 1; k < call->number && src != NULL; k++) {
        const lt_call *other = &c->calls[k % LT_COMM_AHEAD];
        const char *dst = other->dst;
        if (other->state != LT_CALL_DONE && dst != NULL && dst < src_end &&
            src < dst + lt_call_side_bytes(other, true)) {
            return true;
        }
    }
    return false;
}

lt_err lt_nccl_sends_follow(lt_nccl_world *w, const lt_call *call) {
    const size_t place = lt_nccl_place(call);
    LT_TRY(reads_what_comes(call) ? lt_peers_sends_follow(w->peers, w->queue) : LT_OK);
    return w->follows[place] ? w->backend->moment_follow(lt_peer_sends(w->peers), w->before[place])
                             : LT_OK;
}

/* Queue a whole call. */
static lt_err copy_call(lt_nccl_world *w, lt_call *call) {
    const size_t place = lt_nccl_place(call);
    lt_queue *q = w->queue;
    if (is_pair(call)) {
        lt_nccl_link *l = link_of(call);
        LT_TRY(l->queue == NULL ? w->backend->queue_open(w->device, &l->queue) : LT_OK);
        q = l->queue;
    }
    if (is_pair(call)) {
        const int lane = lt_peers_lane(w->peers, call->group, call->peer);
        LT_TRY(lt_nccl_begin_on(w, call, q));
        LT_TRY(lt_peers_pair(w->peers, call, lane, q));
        return lt_nccl_end_on(w, call, q);
    }
    LT_TRY(lt_nccl_begin_on(w, call, lt_peer_sends(w->peers))); /* The sends are queued first. */
    LT_TRY(lt_nccl_sends_follow(w, call));
    LT_TRY(w->follows[place] ? w->backend->moment_follow(q, w->before[place]) : LT_OK);
    LT_TRY(lt_peers_collective(w->peers, call, &(lt_peer_place){q, w->sum}));
    return lt_nccl_end_on(w, call, q);
}

/* ---- The transport --------------------------------------------------------------------------- */

static lt_err begin(lt_call *call, bool has_turn) {
    lt_nccl_world *w = lt_nccl_world_of(call);
    const size_t place = lt_nccl_place(call);
    w->follows[place] = call->group->comm->queue != NULL;
    w->checked[place] = true;
    w->measured[place] = w->measures;
    LT_TRY(w->follows[place] ? w->backend->moment_mark(call->group->comm->queue, w->before[place])
                             : LT_OK);
    LT_TRY(call->group->comm->options.check && !is_pair(call) ? lt_nccl_check_begin(w, call)
                                                              : LT_OK);
    return has_turn && by_copies(w, call) ? copy_call(w, call) : LT_OK;
}

static lt_err early(const lt_call *call) {
    lt_nccl_world *w = call->group->comm->world;
    const lt_peer_place behind = {call->group->comm->queue, w->sum};
    return behind.q != NULL && by_copies(w, call) ? lt_peers_early(w->peers, call, &behind) : LT_OK;
}

static lt_err order(lt_call *call, int member, lt_queue *q) {
    lt_nccl_world *w = lt_nccl_world_of(call);
    if (member >= 0 && call->kind == LT_CALL_ALL_GATHER && by_copies(w, call)) {
        return lt_peers_follow(w->peers, call, member, q);
    }
    return w->backend->moment_follow(q, w->done[lt_nccl_place(call)]);
}

static lt_err measure(lt_comm *c, bool on, bool in_place) {
    lt_nccl_world *w = c->world;
    w->measures = on;
    w->origin_ns = 0;
    if (on && in_place) {
        LT_TRY(w->backend->sync(w->queue));
        LT_TRY(w->backend->moment_mark(w->queue, w->origin));
        LT_TRY(w->backend->sync(w->queue));
        w->origin_ns = lt_clock_ns();
    }
    return LT_OK;
}

static bool took(const lt_call *call, uint64_t *from_ns, uint64_t *to_ns) {
    const lt_nccl_world *w = lt_nccl_world_of(call);
    const size_t place = lt_nccl_place(call);
    double seconds, since_s = 0.0;
    if (!w->measured[place] || w->backend->moment_between(w->device, w->began[place],
                                                          w->ended[place], &seconds) != LT_OK) {
        return false;
    }
    if (w->origin_ns > 0 &&
        w->backend->moment_between(w->device, w->origin, w->ended[place], &since_s) == LT_OK) {
        *to_ns = w->origin_ns + (uint64_t)((since_s > 0.0 ? since_s : 0.0) * 1e9);
    }
    *from_ns = *to_ns - (uint64_t)(seconds * 1e9);
    return true;
}

static lt_err advance_call(lt_nccl_world *w, lt_call *call, bool *done) {
    bool passed = false, same = false, busy = false;
    LT_TRY(heed_host(w));
    LT_TRY(lt_nccl_check_advance(w, call, &same));
    if (call->phase < LT_CALL_ISSUED) {
        LT_TRY(by_copies(w, call) ? copy_call(w, call)
               : is_pair(call)    ? pair(w, call)
                                  : lt_nccl_collective(w, call));
    }
    if (call->phase == LT_CALL_ISSUED) {
        const lt_nccl_comm comm = is_pair(call) ? link_of(call)->comm
                                                : lt_nccl_group_of(call)->comm;
        LT_TRY(comm != NULL ? lt_nccl_state(w, comm, &busy) : LT_OK);
        LT_TRY(w->backend->moment_passed(w->device, w->done[lt_nccl_place(call)], &passed));
    }
    *done = passed && same;
    /* Data that a world sends after its end belongs to no call (peer.h, THE END). */
    return *done ? heed_host(w) : LT_OK;
}

static lt_advance advance(lt_call *call) {
    bool done = false;
    const lt_err err = advance_call(lt_nccl_world_of(call), call, &done);
    return err != LT_OK ? LT_ADVANCE_FAILED : done ? LT_ADVANCE_DONE : LT_ADVANCE_WAITING;
}

static void missing(const lt_call *call, char *out, size_t out_bytes) {
    if (is_pair(call)) {
        (void)snprintf(out, out_bytes, "rank %d did not come", call->group->ranks[call->peer]);
        return;
    }
    if (call->phase == LT_CALL_ISSUED && lt_nccl_group_of(call)->comm == NULL &&
        lt_peers_missing(lt_nccl_world_of(call)->peers, call, out, out_bytes)) {
        return;
    }
    lt_comm *host = lt_nccl_world_of(call)->host;
    const lt_comm_work k = lt_nccl_world_of(call)->exchanges[lt_nccl_place(call)];
    const lt_call *asks = &host->calls[k % LT_COMM_AHEAD];
    (void)snprintf(out, out_bytes, "NCCL does not end it, and does not say for whom it waits");
    (void)pthread_mutex_lock(host->lock);
    if (!lt_nccl_world_of(call)->checked[lt_nccl_place(call)] && asks->number == k &&
        asks->state == LT_CALL_STARTED) {
        host->transport->missing(asks, out, out_bytes);
    } else if (host->failed != LT_OK) { /* The exchange missed its own deadline just now. */
        (void)snprintf(out, out_bytes, "the ranks cannot be asked: %s", host->why);
    }
    (void)pthread_mutex_unlock(host->lock);
}

static void abort_comm(const lt_nccl_world *w, lt_nccl_comm *comm) {
    if (*comm != NULL) {
        (void)w->nccl->CommAbort(*comm);
        *comm = NULL;
    }
}

static void abort_all(lt_comm *c) {
    lt_nccl_world *w = c->world;
    lt_comm_abort(w->host, c->why); /* The other ranks learn it before any queue is released. */
    lt_peers_abort(w->peers);
    for (lt_group *g = c->groups; g != NULL; g = g->next) {
        lt_nccl_group *s = g->shared;
        if (s != NULL) {
            abort_comm(w, &s->comm);
            for (int i = 0; i < 2 * g->n; i++) {
                abort_comm(w, &s->links[i].comm);
            }
        }
    }
}

/* ---- Opening and closing --------------------------------------------------------------------- */

static void destroy(const lt_nccl_world *w, lt_nccl_comm comm, bool failed) {
    const double until_s = lt_clock_s() + FINALIZE_S;
    bool busy = true;
    if (comm == NULL) {
        return;
    }
    if (failed || w->nccl->CommFinalize(comm) > LT_NCCL_IN_PROGRESS) {
        (void)w->nccl->CommAbort(comm);
        return;
    }
    while (lt_nccl_state(w, comm, &busy) == LT_OK && busy && lt_clock_s() < until_s) {
        (void)usleep(POLL_US);
    }
    (void)(busy ? w->nccl->CommAbort(comm) : w->nccl->CommDestroy(comm));
}

/* The links of a group in one order on all its ranks, by sender and then by receiver: NCCL
 * finalises a communicator only when both its ranks ask for it, so two ranks that began with
 * different links would wait for each other. */
static void destroy_links(lt_group *g, bool failed) {
    const lt_nccl_world *w = g->comm->world;
    const lt_nccl_group *s = g->shared;
    for (int from = 0; from < g->n; from++) {
        for (int to = 0; to < g->n; to++) {
            if (from == g->rank || to == g->rank) {
                const lt_nccl_link *l = &s->links[from == g->rank ? 2 * to : 2 * from + 1];
                destroy(w, l->comm, failed);
                if (l->queue != NULL) {
                    (void)w->backend->sync(l->queue);
                    w->backend->queue_close(l->queue);
                }
            }
        }
    }
}

static void group_free(lt_group *g) {
    const bool failed = g->comm->failed != LT_OK;
    lt_nccl_group *s = g->shared;
    if (s == NULL) {
        return;
    }
    if (s->links != NULL) {
        destroy_links(g, failed);
    }
    destroy(g->comm->world, s->comm, failed);
    free(s->links);
    free(s);
    g->shared = NULL;
}

/* Wait until the communicator exists, or the deadline has passed. */
static lt_err wait_for_comm(const lt_nccl_world *w, const lt_group *g, lt_nccl_comm comm) {
    const double deadline_s = g->comm->options.deadline_s, until_s = lt_clock_s() + deadline_s;
    bool busy = true;
    for (;;) {
        LT_TRY(heed_host(w));
        LT_TRY(lt_nccl_state(w, comm, &busy));
        if (!busy) {
            return LT_OK;
        }
        if (lt_clock_s() > until_s) {
            LT_FAIL(LT_ERR_REMOTE, "NCCL: group %s of %d members was not made within %.3g s",
                    g->name, g->n, deadline_s);
        }
        (void)usleep(POLL_US);
    }
}

/* Members whose GPUs copy directly need no communicator, unless NCCL may choose the order of
 * sums. */
static lt_err connect_group(lt_group *g) {
    lt_nccl_world *w = g->comm->world;
    lt_nccl_group *s = g->shared;
    lt_nccl_config config;
    lt_nccl_id id = {{0}};
    lt_err err = LT_OK;
    if (lt_peers_reach(w->peers, g) && !g->comm->options.any_order) {
        return LT_OK;
    }
    LT_TRY(w->nccl == NULL ? lt_nccl_load(&w->nccl) : LT_OK);
    config = lt_nccl_config_make(w->nccl, g->name);
    if (g->rank == 0) {
        LT_TRY(lt_nccl_check(w->nccl, w->nccl->GetUniqueId(&id), "id"));
    }
    LT_TRY(lt_broadcast(s->twin, &id, sizeof id, LT_U8, 0, NULL));
    LT_TRY_DONE(lt_nccl_check(w->nccl,
                              w->nccl->CommInitRankConfig(&s->comm, g->n, id, g->rank, &config),
                              "communicator"));
    LT_TRY_DONE(wait_for_comm(w, g, s->comm));
done:
    if (err != LT_OK && s->comm != NULL) {
        (void)w->nccl->CommAbort(s->comm);
        s->comm = NULL;
    }
    return err;
}

static lt_err meet_peers(lt_nccl_world *w, const lt_comm_options *o) {
    LT_TRY(w->peers != NULL ? lt_peers_meet(w->peers, w->host, o->nccl_only) : LT_OK);
    /* NCCL's kernels will run beside the passes, so they share the GPU. */
    if (!lt_peers_all(w->peers)) {
        w->backend->share(w->device);
    }
    return LT_OK;
}

/* Groups are connected in the reverse order of their opening, which is the same on all ranks. */
lt_err lt_comm_connect(lt_comm *c) {
    LT_TRY(c->options.connect_late ? meet_peers(c->world, &c->options) : LT_OK);
    for (lt_group *g = c->groups; g != NULL; g = g->next) {
        const lt_nccl_group *s = g->shared;
        LT_TRY(g->n > 1 && s->comm == NULL ? connect_group(g) : LT_OK);
    }
    return LT_OK;
}

static lt_err group_open(lt_group *g) {
    lt_nccl_world *w = g->comm->world;
    lt_err err = LT_OK;
    lt_nccl_group *s = calloc(1, sizeof *s);
    if (s == NULL || (s->links = calloc(2 * (size_t)g->n, sizeof *s->links)) == NULL) {
        free(s);
        LT_FAIL(LT_ERR_OOM, "group %s", g->name);
    }
    g->shared = s;
    LT_TRY_DONE(lt_group_open(&s->twin, w->host, g->name, g->ranks, g->n));
    LT_TRY_DONE(g->comm->options.connect_late ? LT_OK : connect_group(g));
done:
    if (err != LT_OK) {
        group_free(g);
    }
    return err;
}

static void world_free(lt_nccl_world *w) {
    const lt_backend *b = w->backend;
    for (int i = 0; b->moment_open != NULL && i < LT_COMM_AHEAD; i++) {
        b->moment_close(w->device, w->before[i]);
        b->moment_close(w->device, w->done[i]);
        b->moment_close(w->device, w->began[i]);
        b->moment_close(w->device, w->ended[i]);
    }
    if (b->moment_open != NULL) {
        b->moment_close(w->device, w->down);
        b->moment_close(w->device, w->origin);
        if (w->queue != NULL) {
            (void)b->sync(w->queue);
            lt_peers_close(w->peers);
            b->queue_close(w->queue);
        }
        b->release(w->device, w->stage, (size_t)w->host->size * w->piece_bytes);
        b->release(w->device, w->sum, w->piece_bytes);
        if (w->pinned != NULL) {
            b->host_release(w->device, w->pinned, (size_t)w->host->size * w->piece_bytes);
        }
    }
    free(w->own);
    free(w->theirs);
    free(w->counts);
    free(w);
}

static void close_world(lt_comm *c) {
    world_free(c->world);
}

const lt_transport lt_transport_nccl = {.name = "nccl",
                                        .poll_us = POLL_US,
                                        .group_open = group_open,
                                        .group_close = group_free,
                                        .begin = begin,
                                        .early = early,
                                        .order = order,
                                        .measure = measure,
                                        .took = took,
                                        .advance = advance,
                                        .missing = missing,
                                        .abort = abort_all,
                                        .close = close_world};

static size_t piece_of(size_t n_ranks) {
    const size_t each = ((size_t)lt_transfer_mib(STAGE_MIB) << 20) / n_ranks / 16 * 16;
    return each > PIECE_MOST ? PIECE_MOST : each < PIECE_LEAST ? PIECE_LEAST : each;
}

lt_comm_memory lt_comm_device_measure(int n_ranks) {
    const size_t n = (size_t)n_ranks, piece = piece_of(n);
    return n_ranks > 1 ? (lt_comm_memory){(n + 1) * piece + lt_peers_bytes(n_ranks), n * piece}
                       : (lt_comm_memory){0};
}

static lt_err reserve(lt_nccl_world *w) {
    const size_t n = (size_t)w->host->size, ring = LT_COMM_AHEAD * n * LT_NCCL_HEADER_WORDS;
    void *stage = NULL, *sum = NULL, *pinned = NULL;
    w->piece_bytes = piece_of(n);
    for (int i = 0; i < LT_COMM_AHEAD; i++) {
        LT_TRY(w->backend->moment_open(w->device, &w->before[i], false));
        LT_TRY(w->backend->moment_open(w->device, &w->done[i], false));
        LT_TRY(w->backend->moment_open(w->device, &w->began[i], true));
        LT_TRY(w->backend->moment_open(w->device, &w->ended[i], true));
    }
    LT_TRY(w->backend->moment_open(w->device, &w->down, false));
    LT_TRY(w->backend->moment_open(w->device, &w->origin, true));
    LT_TRY(w->backend->queue_open_first(w->device, &w->queue));
    LT_TRY(w->backend->alloc(w->device, &stage, n * w->piece_bytes, "sums over ranks"));
    w->stage = stage;
    LT_TRY(w->backend->alloc(w->device, &sum, w->piece_bytes, "sums over ranks"));
    w->sum = sum;
    LT_TRY(w->backend->host_alloc(w->device, &pinned, n * w->piece_bytes, "sums over ranks"));
    w->pinned = pinned;
    w->own = calloc(ring, sizeof *w->own);
    w->theirs = calloc(ring, sizeof *w->theirs);
    w->counts = calloc(n, sizeof *w->counts);
    if (w->own == NULL || w->theirs == NULL || w->counts == NULL) {
        LT_FAIL(LT_ERR_OOM, "headers of %zu ranks", n);
    }
    return LT_OK;
}

lt_err lt_comm_open_device(lt_comm **out, lt_comm *host, lt_device *device,
                           const lt_comm_options *o) {
    lt_err err = LT_OK;
    lt_comm_options options = o != NULL ? *o : host->options;
    lt_nccl_world *w = calloc(1, sizeof *w);

    if (w == NULL) {
        LT_FAIL(LT_ERR_OOM, "NCCL");
    }
    *w = (lt_nccl_world){.host = host, .device = device, .backend = device->backend};
    if (w->backend->moment_open == NULL) {
        LT_FAIL_DONE(LT_ERR_ARG, "device %s has no queues: its buffers belong to the host world",
                     w->backend->name);
    }
    options.epoch = host->options.epoch;
    /* NCCL's records go to a folder beside those of the host world. */
    if (options.record_dir != NULL) {
        LT_TRY_DONE(lt_path_join(w->records, options.record_dir, LT_RECORDS_DEVICE));
        options.record_dir = w->records;
    }
    if (options.deadline_s == 0.0) {
        options.deadline_s = host->options.deadline_s;
    }
    LT_TRY_DONE(reserve(w));
    LT_TRY_DONE(host->size > 1 ? lt_peers_open(&w->peers, host, device) : LT_OK);
    LT_TRY_DONE(options.connect_late ? LT_OK : meet_peers(w, &options));
    LT_TRY_DONE(
        lt_comm_begin(out, &lt_transport_nccl, w, host->rank, host->size, &options, NULL, NULL));
    w = NULL;
done:
    if (w != NULL) {
        world_free(w);
    }
    return err;
}
