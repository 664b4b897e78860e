/* mpi.c: ranks as processes that mpirun or srun started, through Open MPI, opened at run time. All
 * that is asked of MPI is to move bytes between two ranks: sums are our own, in the order of the
 * members (sum.c), so they have the bits of the other transports.
 *
 * A collective is a row of rounds. In a round every pair of members exchanges at most one piece
 * each way; when all of a rank's pieces of the round are there, it reduces what is to be reduced
 * and goes on. Messages are matched by MPI in the order they were sent in, and a group has a tag of
 * its own:
 *
 *     check            each member's call, as a header: only with options.check
 *     all_reduce       piece k of shard j of every src to member j, which reduces it into its dst;
 *                      then piece k of every reduced shard to all
 *     reduce_scatter   piece k of row j of every src to member j
 *     all_gather, broadcast, all_to_all   piece k of each message, straight to its place
 *     barrier          one byte
 *
 * MPI makes progress only while it is called, so the worker polls while calls are under way. It
 * cannot tell that a rank is dead or stopped; the deadline does. A failing rank tells the others
 * through a second communicator, on which each has a receive posted. After a failure MPI is not
 * finalised: it would wait for the rank that is gone.
 *
 * The declarations are those of Open MPI's binary interface, 4 and 5: handles are pointers. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "comm/call.h"

#define REDUCE_PIECE ((size_t)512 << 10) /* Bytes; n - 1 of them are held at once. */
#define MOVE_PIECE   ((size_t)64 << 20)  /* An MPI count is an int. */
#define POLL_US      50
#define ANY_SOURCE   (-1)
#define SERIALIZED   2
#define CONTROL_TAG  1

typedef struct {
    int source, tag, error, cancelled;
    size_t bytes;
} mpi_status;

#define MPI_FUNCTIONS(X)                                                                           \
    X(Init_thread, (int *argc, char ***argv, int wanted, int *given))                              \
    X(Initialized, (int *flag))                                                                    \
    X(Finalize, (void))                                                                            \
    X(Comm_rank, (void *comm, int *rank))                                                          \
    X(Comm_size, (void *comm, int *size))                                                          \
    X(Comm_dup, (void *comm, void **out))                                                          \
    X(Comm_set_errhandler, (void *comm, void *handler))                                            \
    X(Get_library_version, (char *text, int *length))                                              \
    X(Error_string, (int err, char *text, int *length))                                            \
    X(Isend,                                                                                       \
      (const void *data, int count, void *type, int to, int tag, void *comm, void **request))      \
    X(Irecv, (void *data, int count, void *type, int from, int tag, void *comm, void **request))   \
    X(Test, (void **request, int *done, mpi_status *status))                                       \
    X(Cancel, (void **request))                                                                    \
    X(Wait, (void **request, mpi_status *status))

typedef struct {
    void *library;
    void *byte, *world, *return_errors; /* MPI_BYTE, MPI_COMM_WORLD, MPI_ERRORS_RETURN */
#define MPI_FIELD(name, args) int(*name) args;
    MPI_FUNCTIONS(MPI_FIELD)
#undef MPI_FIELD
} mpi_library;

typedef struct {
    void *request; /* NULL: none, or done. */
    int rank;      /* The other end, in the world. */
    bool is_recv;
    size_t bytes;
} transfer;

/* What a call is, for the checking mode. */
typedef struct {
    int64_t kind, seq, count, dtype, op, peer, to_you;
} header;

typedef struct {
    mpi_library mpi;
    void *data, *control; /* Communicators. */
    transfer *transfers;  /* (2 size): of the collective under way. */
    int n_transfers;
    int64_t round;
    transfer pairs[LT_COMM_AHEAD]; /* Of sends and receives, in the place of the call. */
    size_t pair_bytes[LT_COMM_AHEAD];
    char *scratch; /* (size, REDUCE_PIECE) */
    header own[LT_COMM_MAX_RANKS], theirs[LT_COMM_MAX_RANKS];
    void *notice_request; /* The receive of another rank's reason. */
    char notice[LT_COMM_WHY], reason[LT_COMM_WHY];
    bool told;
} mpi_world;

static lt_err mpi_try(const mpi_library *m, int err, const char *what) {
    char text[512] = "";
    int length = 0;
    if (err == 0) {
        return LT_OK;
    }
    (void)m->Error_string(err, text, &length);
    LT_FAIL(LT_ERR_REMOTE, "MPI: %s: %s", what, text);
}

static int tag_of(const lt_group *g, bool is_pair) {
    uint64_t h = 1469598103934665603u;
    for (const char *p = g->name; *p != '\0'; p++) {
        h = lt_rng_mix(h ^ (unsigned char)*p);
    }
    for (int i = 0; i < g->n; i++) {
        h = lt_rng_mix(h ^ (uint64_t)g->ranks[i]);
    }
    return (int)(2 + (h & 0xfffffff) * 2 + is_pair);
}

/* Groups that share members need tags of their own: this rank refuses two of one tag. */
static lt_err group_open(lt_group *g) {
    for (const lt_group *other = g->comm->groups; other != NULL; other = other->next) {
        const bool same = other->n == g->n && strcmp(other->name, g->name) == 0 &&
                          memcmp(other->ranks, g->ranks, (size_t)g->n * sizeof *g->ranks) == 0;
        if (other->n > 1 && !same && tag_of(other, false) == tag_of(g, false)) {
            LT_FAIL(LT_ERR_ARG, "groups %s and %s have one tag; give one another name", g->name,
                    other->name);
        }
    }
    return LT_OK;
}

/* ---- Rounds of a collective ------------------------------------------------------------------ */

typedef struct {
    const char *send; /* To this member; NULL: nothing. */
    char *recv;       /* From it. */
    size_t send_bytes, recv_bytes;
} exchange;

/* Bytes [round * piece, ...) of a message, at most a piece. */
static size_t clip(size_t bytes, int64_t round, size_t piece) {
    const size_t at = (size_t)round * piece;
    return at >= bytes ? 0 : bytes - at < piece ? bytes - at : piece;
}

static size_t shard_bytes(const lt_call *call, int i) {
    const int n = call->group->n;
    return (size_t)(lt_comm_shard(call->count, n, i + 1) - lt_comm_shard(call->count, n, i)) *
           lt_dtype_bytes(call->dtype);
}

static size_t shard_at(const lt_call *call, int i) {
    return (size_t)lt_comm_shard(call->count, call->group->n, i) * lt_dtype_bytes(call->dtype);
}

static bool reduces(const lt_call *call) {
    return call->kind == LT_CALL_ALL_REDUCE || call->kind == LT_CALL_REDUCE_SCATTER;
}

static int64_t pieces_of(size_t bytes, size_t piece) {
    return (int64_t)((bytes + piece - 1) / piece);
}

/* Rounds in which pieces are reduced: as many as the largest shard, which is the first, has. */
static int64_t reduce_rounds(const lt_call *call) {
    const size_t row = (size_t)call->count * lt_dtype_bytes(call->dtype);
    return !reduces(call) ? 0
                          : pieces_of(call->kind == LT_CALL_ALL_REDUCE ? shard_bytes(call, 0) : row,
                                      REDUCE_PIECE);
}

static size_t sum_before(const int64_t *counts, int i, lt_dtype dtype) {
    int64_t sum = 0;
    for (int j = 0; j < i; j++) {
        sum += counts[j];
    }
    return (size_t)sum * lt_dtype_bytes(dtype);
}

/* Rounds after those of reduction. Members of an all_to_all may have different numbers: a pair's
 * pieces are as many as its own messages have, and a round without any costs nothing. */
static int64_t move_rounds(const lt_call *call) {
    const size_t elem = lt_dtype_bytes(call->dtype), row = (size_t)call->count * elem;
    int64_t most = 0;
    switch (call->kind) {
    case LT_CALL_ALL_REDUCE:
        return pieces_of(shard_bytes(call, 0), MOVE_PIECE);
    case LT_CALL_ALL_GATHER:
    case LT_CALL_BROADCAST:
        return pieces_of(row, MOVE_PIECE);
    case LT_CALL_ALL_TO_ALL:
        for (int i = 0; i < call->group->n; i++) {
            const int64_t count = call->send_counts[i] > call->recv_counts[i]
                                      ? call->send_counts[i]
                                      : call->recv_counts[i];
            const int64_t k = pieces_of((size_t)count * elem, MOVE_PIECE);
            most = k > most ? k : most;
        }
        return most;
    case LT_CALL_BARRIER:
        return 1;
    default:
        return 0;
    }
}

/* What goes to and comes from member i in a reducing round. */
static exchange reduce_exchange(mpi_world *w, const lt_call *call, int i, int64_t round) {
    const size_t row = (size_t)call->count * lt_dtype_bytes(call->dtype);
    const bool all = call->kind == LT_CALL_ALL_REDUCE;
    const int own = call->group->rank;
    const size_t at = (all ? shard_at(call, i) : (size_t)i * row) + (size_t)round * REDUCE_PIECE;
    return (exchange){
        .send = (const char *)call->src + at,
        .recv = w->scratch + (size_t)i * REDUCE_PIECE,
        .send_bytes = clip(all ? shard_bytes(call, i) : row, round, REDUCE_PIECE),
        .recv_bytes = clip(all ? shard_bytes(call, own) : row, round, REDUCE_PIECE),
    };
}

static exchange move_exchange(const lt_call *call, int i, int64_t round) {
    static char byte[2]; /* Of a barrier; nobody reads it. */
    const size_t elem = lt_dtype_bytes(call->dtype), row = (size_t)call->count * elem,
                 at = (size_t)round * MOVE_PIECE;
    const int own = call->group->rank;
    const char *src = call->src;
    char *dst = call->dst;
    exchange e = {0};
    switch (call->kind) {
    case LT_CALL_ALL_REDUCE:
        e = (exchange){dst + shard_at(call, own), dst + shard_at(call, i), shard_bytes(call, own),
                       shard_bytes(call, i)};
        break;
    case LT_CALL_ALL_GATHER:
        e = (exchange){src, dst + (size_t)i * row, row, row};
        break;
    case LT_CALL_BROADCAST:
        e = (exchange){src, dst, own == call->peer ? row : 0, i == call->peer ? row : 0};
        break;
    case LT_CALL_ALL_TO_ALL:
        e = (exchange){src + sum_before(call->send_counts, i, call->dtype),
                       dst + sum_before(call->recv_counts, i, call->dtype),
                       (size_t)call->send_counts[i] * elem, (size_t)call->recv_counts[i] * elem};
        break;
    default:
        return (exchange){byte, byte + 1, 1, 1};
    }
    e.send_bytes = clip(e.send_bytes, round, MOVE_PIECE);
    e.recv_bytes = clip(e.recv_bytes, round, MOVE_PIECE);
    e.send += e.send_bytes > 0 ? at : 0;
    e.recv += e.recv_bytes > 0 ? at : 0;
    return e;
}

static header header_of(const lt_call *call, int to) {
    return (header){.kind = call->kind,
                    .seq = (int64_t)call->seq,
                    .count = call->count,
                    .dtype = (int64_t)call->dtype,
                    .op = (int64_t)call->op,
                    .peer = call->peer,
                    .to_you = call->kind == LT_CALL_ALL_TO_ALL ? call->send_counts[to] : 0};
}

static lt_err add_transfer(mpi_world *w, const lt_group *g, int member, exchange e) {
    const mpi_library *m = &w->mpi;
    const int rank = g->ranks[member], tag = tag_of(g, false);
    transfer *t;
    if (e.recv_bytes > 0) {
        t = &w->transfers[w->n_transfers++];
        *t = (transfer){.rank = rank, .is_recv = true, .bytes = e.recv_bytes};
        LT_TRY(mpi_try(
            m, m->Irecv(e.recv, (int)e.recv_bytes, m->byte, rank, tag, w->data, &t->request),
            "receive"));
    }
    if (e.send_bytes > 0) {
        t = &w->transfers[w->n_transfers++];
        *t = (transfer){.rank = rank, .bytes = e.send_bytes};
        LT_TRY(mpi_try(
            m, m->Isend(e.send, (int)e.send_bytes, m->byte, rank, tag, w->data, &t->request),
            "send"));
    }
    return LT_OK;
}

/* Rounds are numbered from -1, the check; *more false: there is no such round. */
static lt_err begin_round(mpi_world *w, const lt_call *call, bool *more) {
    const lt_group *g = call->group;
    const int64_t n_reduce = reduce_rounds(call), round = w->round;
    w->n_transfers = 0;
    *more = round < n_reduce + move_rounds(call);
    for (int i = 0; *more && i < g->n; i++) {
        exchange e;
        if (i == g->rank) {
            continue;
        }
        if (round < 0) {
            w->own[i] = header_of(call, i);
            e = (exchange){(const char *)&w->own[i], (char *)&w->theirs[i], sizeof *w->own,
                           sizeof *w->own};
        } else {
            e = round < n_reduce ? reduce_exchange(w, call, i, round)
                                 : move_exchange(call, i, round - n_reduce);
        }
        LT_TRY(add_transfer(w, g, i, e));
    }
    return LT_OK;
}

static lt_err compare(const mpi_world *w, const lt_call *call) {
    const lt_group *g = call->group;
    const header own = header_of(call, 0);
    for (int i = 0; i < g->n; i++) {
        const header *h = &w->theirs[i];
        if (i == g->rank) {
            continue;
        }
        if (h->kind != own.kind || h->seq != own.seq || h->count != own.count ||
            h->dtype != own.dtype || h->op != own.op || h->peer != own.peer) {
            LT_FAIL(LT_ERR_REMOTE,
                    "call %lld of group %s differs: rank %d calls %s of %lld %s, rank %d calls %s "
                    "of %lld %s, its call %lld (root %lld and %lld, reduction %lld and %lld)",
                    (long long)own.seq, g->name, g->ranks[g->rank], lt_call_kind_name(call->kind),
                    (long long)own.count, lt_dtype_name(call->dtype), g->ranks[i],
                    h->kind >= 0 && h->kind < LT_CALL_KINDS
                        ? lt_call_kind_name((lt_call_kind)h->kind)
                        : "?",
                    (long long)h->count,
                    h->dtype >= 0 && h->dtype < LT_DTYPE_COUNT ? lt_dtype_name((lt_dtype)h->dtype)
                                                               : "?",
                    (long long)h->seq, (long long)own.peer, (long long)h->peer, (long long)own.op,
                    (long long)h->op);
        }
        if (call->kind == LT_CALL_ALL_TO_ALL && h->to_you != call->recv_counts[i]) {
            LT_FAIL(LT_ERR_REMOTE,
                    "all_to_all %lld of group %s: rank %d sends %lld elements to rank %d, which "
                    "awaits %lld",
                    (long long)own.seq, g->name, g->ranks[i], (long long)h->to_you,
                    g->ranks[g->rank], (long long)call->recv_counts[i]);
        }
    }
    return LT_OK;
}

/* All pieces of a reducing round are there: reduce them into dst. */
static void reduce_round(mpi_world *w, const lt_call *call) {
    const void *srcs[LT_COMM_MAX_RANKS];
    const int own = call->group->rank;
    const size_t at = (size_t)w->round * REDUCE_PIECE;
    const exchange e = reduce_exchange(w, call, own, w->round);
    for (int i = 0; i < call->group->n; i++) {
        srcs[i] = w->scratch + (size_t)i * REDUCE_PIECE;
    }
    srcs[own] = e.send;
    lt_comm_reduce((char *)call->dst +
                       (call->kind == LT_CALL_ALL_REDUCE ? shard_at(call, own) : 0) + at,
                   srcs, call->group->n, (int64_t)(e.recv_bytes / lt_dtype_bytes(call->dtype)),
                   call->dtype, call->op);
}

static lt_err end_round(mpi_world *w, const lt_call *call) {
    if (w->round < 0) {
        return compare(w, call);
    }
    if (w->round < reduce_rounds(call)) {
        reduce_round(w, call);
    }
    return LT_OK;
}

/* *done: every transfer of the round is. A message of another size than was awaited is told. */
static lt_err test_round(mpi_world *w, const lt_group *g, bool *done) {
    *done = true;
    for (int i = 0; i < w->n_transfers; i++) {
        transfer *t = &w->transfers[i];
        mpi_status status = {0};
        int there = 0;
        if (t->request == NULL) {
            continue;
        }
        LT_TRY(mpi_try(&w->mpi, w->mpi.Test(&t->request, &there, &status), "transfer"));
        if (there == 0) {
            *done = false;
            continue;
        }
        t->request = NULL;
        if (t->is_recv && status.bytes != t->bytes) {
            LT_FAIL(LT_ERR_REMOTE, "group %s: rank %d sends %zu bytes where %zu are awaited",
                    g->name, t->rank, status.bytes, t->bytes);
        }
    }
    return LT_OK;
}

/* A member's own part, which needs nobody: row, segment. */
static void move_own(const lt_call *call) {
    if (call->kind == LT_CALL_ALL_GATHER || call->kind == LT_CALL_ALL_TO_ALL) {
        const size_t elem = lt_dtype_bytes(call->dtype);
        const int own = call->group->rank;
        const bool gather = call->kind == LT_CALL_ALL_GATHER;
        const size_t bytes = (size_t)(gather ? call->count : call->send_counts[own]) * elem;
        char *to = (char *)call->dst +
                   (gather ? (size_t)own * bytes : sum_before(call->recv_counts, own, call->dtype));
        const char *from = (const char *)call->src +
                           (gather ? 0 : sum_before(call->send_counts, own, call->dtype));
        if (to != from && bytes > 0) {
            memcpy(to, from, bytes);
        }
    }
}

static lt_err collective(mpi_world *w, lt_call *call, bool *done) {
    bool more = true, there;
    *done = false;
    if (call->phase == 0) {
        w->round = call->group->comm->options.check ? -1 : 0;
        call->phase = 1;
        LT_TRY(begin_round(w, call, &more));
        if (more && w->round == 0) {
            move_own(call);
        }
    }
    while (more) {
        LT_TRY(test_round(w, call->group, &there));
        if (!there) {
            return LT_OK;
        }
        LT_TRY(end_round(w, call));
        w->round++;
        if (w->round == 0) {
            move_own(call);
        }
        LT_TRY(begin_round(w, call, &more));
    }
    *done = true;
    return LT_OK;
}

/* ---- Pairs ----------------------------------------------------------------------------------- */

/* A message is a row of pieces; phase counts those that are there. */
static lt_err pair(mpi_world *w, lt_call *call, bool *done) {
    const mpi_library *m = &w->mpi;
    const lt_group *g = call->group;
    const size_t bytes = (size_t)call->count * lt_dtype_bytes(call->dtype);
    transfer *t = &w->pairs[call->number % LT_COMM_AHEAD];
    const int rank = g->ranks[call->peer], tag = tag_of(g, true);
    mpi_status status = {0};
    int there = 0;

    *done = false;
    for (;;) {
        const size_t at = (size_t)call->phase * MOVE_PIECE,
                     n = clip(bytes, call->phase, MOVE_PIECE);
        if (t->request == NULL) {
            /* An empty message is one piece of 0 bytes. */
            if (call->phase > 0 && n == 0) {
                *done = true;
                return LT_OK;
            }
            *t = (transfer){.rank = rank, .is_recv = call->kind == LT_CALL_RECV, .bytes = n};
            LT_TRY(mpi_try(m,
                           t->is_recv ? m->Irecv((char *)call->dst + at, (int)n, m->byte, rank, tag,
                                                 w->data, &t->request)
                                      : m->Isend((const char *)call->src + at, (int)n, m->byte,
                                                 rank, tag, w->data, &t->request),
                           lt_call_kind_name(call->kind)));
        }
        LT_TRY(mpi_try(m, m->Test(&t->request, &there, &status), lt_call_kind_name(call->kind)));
        if (there == 0) {
            return LT_OK;
        }
        t->request = NULL;
        if (t->is_recv && status.bytes != n) {
            LT_FAIL(LT_ERR_REMOTE,
                    "message %llu of group %s: rank %d sends %zu bytes, rank %d awaits %zu",
                    (unsigned long long)call->seq, g->name, rank, status.bytes, g->ranks[g->rank],
                    n);
        }
        call->phase++;
    }
}

/* ---- The worker's side ----------------------------------------------------------------------- */

static lt_err listen(mpi_world *w) {
    const mpi_library *m = &w->mpi;
    return mpi_try(m,
                   m->Irecv(w->notice, (int)sizeof w->notice, m->byte, ANY_SOURCE, CONTROL_TAG,
                            w->control, &w->notice_request),
                   "receive");
}

/* Has another rank ended the world? Its reason is the failure then. */
static lt_err heed(mpi_world *w) {
    int there = 0;
    LT_TRY(mpi_try(&w->mpi, w->mpi.Test(&w->notice_request, &there, NULL), "control"));
    if (there != 0) {
        w->notice[sizeof w->notice - 1] = '\0';
        w->told = true; /* Whoever sent it tells the others too. */
        LT_FAIL(LT_ERR_REMOTE, "%s", w->notice);
    }
    return LT_OK;
}

static lt_advance advance(lt_call *call) {
    mpi_world *w = call->group->comm->world;
    bool done = false;
    lt_err err = heed(w);
    if (err == LT_OK) {
        err = call->kind == LT_CALL_SEND || call->kind == LT_CALL_RECV ? pair(w, call, &done)
                                                                       : collective(w, call, &done);
    }
    return err != LT_OK ? LT_ADVANCE_FAILED : done ? LT_ADVANCE_DONE : LT_ADVANCE_WAITING;
}

static void missing(const lt_call *call, char *out, size_t out_bytes) {
    const mpi_world *w = call->group->comm->world;
    const bool is_pair = call->kind == LT_CALL_SEND || call->kind == LT_CALL_RECV;
    const transfer *list = is_pair ? &w->pairs[call->number % LT_COMM_AHEAD] : w->transfers;
    const int n_list = is_pair ? 1 : w->n_transfers;
    int used = 0, n = 0, last = -1;
    out[0] = '\0';
    for (int i = 0; i < n_list && (size_t)used < out_bytes; i++) {
        if (list[i].request != NULL && list[i].rank != last) {
            used += snprintf(out + used, out_bytes - (size_t)used, "%srank %d", n++ > 0 ? ", " : "",
                             list[i].rank);
            last = list[i].rank;
        }
    }
    if ((size_t)used < out_bytes) {
        (void)snprintf(out + used, out_bytes - (size_t)used, " did not come");
    }
}

/* The world has ended: take back what MPI holds of the callers' buffers, tell the other ranks. */
static void end_world(lt_comm *c) {
    mpi_world *w = c->world;
    void *request;
    for (int i = 0; i < w->n_transfers; i++) {
        if (w->transfers[i].request != NULL && w->transfers[i].is_recv) {
            (void)w->mpi.Cancel(&w->transfers[i].request);
        }
    }
    for (int i = 0; i < LT_COMM_AHEAD; i++) {
        if (w->pairs[i].request != NULL && w->pairs[i].is_recv) {
            (void)w->mpi.Cancel(&w->pairs[i].request);
        }
    }
    if (!w->told) {
        w->told = true;
        memcpy(w->reason, c->why, sizeof w->reason);
        for (int r = 0; r < c->size; r++) {
            if (r != c->rank) {
                (void)w->mpi.Isend(w->reason, (int)sizeof w->reason, w->mpi.byte, r, CONTROL_TAG,
                                   w->control, &request);
            }
        }
    }
}

static void close_world(lt_comm *c) {
    mpi_world *w = c->world;
    if (c->failed == LT_OK && w->notice_request != NULL) {
        (void)w->mpi.Cancel(&w->notice_request);
        (void)w->mpi.Wait(&w->notice_request, NULL);
        (void)w->mpi.Finalize();
    }
    free(w->transfers);
    free(w->scratch);
    free(w);
}

const lt_transport lt_transport_mpi = {.name = "mpi",
                                       .poll_us = POLL_US,
                                       .group_open = group_open,
                                       .advance = advance,
                                       .missing = missing,
                                       .abort = end_world,
                                       .close = close_world};

/* ---- Opening --------------------------------------------------------------------------------- */

static lt_err load(mpi_library *m) {
    static const char *const names[] = {"libmpi.so.40", "libmpi.so.80", "libmpi.so"};
    const char *missing_name = NULL;
    for (size_t i = 0; m->library == NULL && i < sizeof names / sizeof *names; i++) {
        m->library = dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
    }
    if (m->library == NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "MPI: no libmpi of Open MPI here (%s); on Debian: apt-get "
                "install openmpi-bin",
                dlerror());
    }
#define MPI_LOAD(name, args)                                                                       \
    *(void **)&m->name = dlsym(m->library, "MPI_" #name);                                          \
    missing_name = m->name == NULL ? "MPI_" #name : missing_name;
    MPI_FUNCTIONS(MPI_LOAD)
#undef MPI_LOAD
    m->byte = dlsym(m->library, "ompi_mpi_byte");
    m->world = dlsym(m->library, "ompi_mpi_comm_world");
    m->return_errors = dlsym(m->library, "ompi_mpi_errors_return");
    if (missing_name != NULL || m->byte == NULL || m->world == NULL || m->return_errors == NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "MPI: the libmpi found is not Open MPI's: it has no %s",
                missing_name != NULL ? missing_name : "ompi_mpi_comm_world");
    }
    return LT_OK;
}

static lt_err start(mpi_world *w, int *rank, int *size) {
    const mpi_library *m = &w->mpi;
    int given = 0, before = 0;
    LT_TRY(mpi_try(m, m->Initialized(&before), "start"));
    if (before != 0) {
        LT_FAIL(LT_ERR_STATE, "MPI: this process has started it already");
    }
    LT_TRY(mpi_try(m, m->Init_thread(NULL, NULL, SERIALIZED, &given), "start"));
    if (given < SERIALIZED) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "MPI: its threads are of level %d, and %d is needed", given,
                SERIALIZED);
    }
    LT_TRY(mpi_try(m, m->Comm_set_errhandler(m->world, m->return_errors), "start"));
    LT_TRY(mpi_try(m, m->Comm_dup(m->world, &w->data), "start"));
    LT_TRY(mpi_try(m, m->Comm_dup(m->world, &w->control), "start"));
    LT_TRY(mpi_try(m, m->Comm_rank(m->world, rank), "rank"));
    return mpi_try(m, m->Comm_size(m->world, size), "size");
}

lt_err lt_comm_open_mpi(lt_comm **out, const lt_comm_options *o) {
    lt_err err = LT_OK;
    mpi_world *w = calloc(1, sizeof *w);
    int rank = 0, size = 0;

    if (w == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "MPI");
    }
    LT_TRY_DONE(load(&w->mpi));
    LT_TRY_DONE(start(w, &rank, &size));
    if (size > LT_COMM_MAX_RANKS) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "MPI: %d ranks; at most %d", size, LT_COMM_MAX_RANKS);
    }
    w->transfers = calloc(2 * (size_t)size, sizeof *w->transfers);
    w->scratch = malloc((size_t)size * REDUCE_PIECE);
    if (w->transfers == NULL || w->scratch == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "MPI: rank %d of %d", rank, size);
    }
    LT_TRY_DONE(listen(w));
    LT_TRY_DONE(lt_comm_begin(out, &lt_transport_mpi, w, rank, size, o, NULL, NULL));
    w = NULL;
done:
    if (w != NULL) {
        free(w->transfers);
        free(w->scratch);
        free(w);
    }
    return err;
}

bool lt_comm_under_mpi(void) {
    return getenv("OMPI_COMM_WORLD_SIZE") != NULL || getenv("PMIX_RANK") != NULL;
}
