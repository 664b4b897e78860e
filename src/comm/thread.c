/* thread.c: ranks as threads of one process. Buffers of other members are plain pointers, so each
 * byte is copied once.
 *
 * A group holds a post for each member: what it calls, and how far it is. A collective with number
 * s passes three stations, and no member leaves one before all have reached it:
 *
 *     3 s      each member's call stands in its post: all are compared, then members read each
 *              other's src and write their own dst (all_reduce: their own shard of it)
 *     3 s + 1  all_reduce only: every shard is complete; members read each other's dst
 *     3 s + 2  all have read what they need: buffers belong to their owners again
 *
 * A pair of members has a channel: the sender posts where its data are, the receiver copies
 * them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/call.h"

typedef struct {
    uint64_t posted, taken; /* Number of sends so far, and how many of them were received. */
    const void *src;
    int64_t count;
    lt_dtype dtype;
} channel;

typedef struct meeting {
    struct meeting *next;
    char name[LT_COMM_NAME];
    int n, n_open;
    int *ranks;        /* (n) */
    uint64_t *reached; /* (n): the last station that each member has reached. */
    lt_call *posts;    /* (n) */
    lt_comm **comms;   /* (n) */
    channel *channels; /* (n, n), by sender and receiver. */
} meeting;

typedef struct {
    pthread_mutex_t lock;
    meeting *meetings;
    lt_comm **comms; /* (size); NULL: not yet open, or closed. */
    int size;
    int moving; /* Workers that are copying without the lock. */
    lt_err failed;
    char why[LT_COMM_WHY];
} thread_world;

static void meeting_free(meeting *m) {
    if (m != NULL) {
        free(m->ranks);
        free(m->reached);
        free(m->posts);
        free(m->comms);
        free(m->channels);
        free(m);
    }
}

static meeting *meeting_make(const lt_group *g) {
    const size_t n = (size_t)g->n;
    meeting *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return NULL;
    }
    m->n = g->n;
    memcpy(m->name, g->name, sizeof m->name);
    m->ranks = calloc(n, sizeof *m->ranks);
    m->reached = calloc(n, sizeof *m->reached);
    m->posts = calloc(n, sizeof *m->posts);
    m->comms = calloc(n, sizeof(lt_comm *));
    m->channels = calloc(n * n, sizeof *m->channels);
    if (m->ranks == NULL || m->reached == NULL || m->posts == NULL || m->comms == NULL ||
        m->channels == NULL) {
        meeting_free(m);
        return NULL;
    }
    memcpy(m->ranks, g->ranks, n * sizeof *m->ranks);
    return m;
}

/* Enter the oldest meeting place with this name and list that this member has not entered: a group
 * may be opened several times, by one member before another opens it once, and the first of each
 * are one group. */
static lt_err group_open(lt_group *g) {
    thread_world *w = g->comm->world;
    lt_err err = LT_OK;
    meeting *m, **end = &w->meetings;

    (void)pthread_mutex_lock(&w->lock);
    for (m = w->meetings; m != NULL; m = m->next) {
        end = &m->next;
        if (strcmp(m->name, g->name) == 0 && m->n == g->n &&
            memcmp(m->ranks, g->ranks, (size_t)g->n * sizeof *m->ranks) == 0 &&
            m->comms[g->rank] == NULL) {
            break;
        }
    }
    if (m == NULL) {
        m = meeting_make(g);
        if (m == NULL) {
            LT_FAIL_DONE(LT_ERR_OOM, "group %s of %d members", g->name, g->n);
        }
        *end = m;
    }
    m->comms[g->rank] = g->comm;
    m->n_open++;
    g->shared = m;
done:
    (void)pthread_mutex_unlock(&w->lock);
    return err;
}

/* The meeting place is kept, because other ranks may still use it. */
static void group_close(lt_group *g) {
    thread_world *w = g->comm->world;
    (void)pthread_mutex_lock(&w->lock);
    ((meeting *)g->shared)->n_open--;
    (void)pthread_mutex_unlock(&w->lock);
}

/* ---- Collectives ----------------------------------------------------------------------------- */

static bool all_reached(const meeting *m, uint64_t station) {
    for (int i = 0; i < m->n; i++) {
        if (m->reached[i] < station) {
            return false;
        }
    }
    return true;
}

/* This member has reached a station. The last one wakes the others. */
static void reach(meeting *m, int member, uint64_t station) {
    m->reached[member] = station;
    for (int i = 0; i < m->n && all_reached(m, station); i++) {
        if (i != member && m->comms[i] != NULL) {
            (void)pthread_cond_signal(&m->comms[i]->work);
        }
    }
}

static void describe(const lt_call *call, int rank, char *out, size_t out_bytes) {
    char root[32] = "";
    if (call->peer >= 0) {
        (void)snprintf(root, sizeof root, " from member %d", call->peer);
    }
    (void)snprintf(out, out_bytes, "rank %d calls %s of %lld %s%s", rank,
                   lt_call_kind_name(call->kind), (long long)call->count,
                   lt_dtype_name(call->dtype), root);
}

/* Whether all members call the same verb, with the sizes that the others expect. */
static bool compare(const meeting *m, const lt_call *call) {
    char ours[160], theirs[160];
    const int own = call->group->rank;
    for (int i = 0; i < m->n; i++) {
        const lt_call *p = &m->posts[i];
        if (p->kind != call->kind || p->count != call->count || p->dtype != call->dtype ||
            p->peer != call->peer || p->op != call->op) {
            describe(&m->posts[0], m->ranks[0], ours, sizeof ours);
            for (i = 1;
                 m->posts[i].kind == m->posts[0].kind && m->posts[i].count == m->posts[0].count &&
                 m->posts[i].dtype == m->posts[0].dtype && m->posts[i].peer == m->posts[0].peer &&
                 m->posts[i].op == m->posts[0].op;
                 i++) {}
            describe(&m->posts[i], m->ranks[i], theirs, sizeof theirs);
            lt_error_set(LT_ERR_REMOTE, "call %llu of group %s differs: %s, %s%s",
                         (unsigned long long)call->seq, m->name, ours, theirs,
                         m->posts[i].op != m->posts[0].op ? " (another reduction)" : "");
            return false;
        }
        if (call->kind == LT_CALL_ALL_TO_ALL && p->send_counts[own] != call->recv_counts[i]) {
            lt_error_set(LT_ERR_REMOTE,
                         "all_to_all %llu of group %s: rank %d sends %lld elements to rank %d, "
                         "which awaits %lld",
                         (unsigned long long)call->seq, m->name, m->ranks[i],
                         (long long)p->send_counts[own], m->ranks[own],
                         (long long)call->recv_counts[i]);
            return false;
        }
    }
    return true;
}

static void copy(void *dst, const void *src, size_t bytes) {
    if (dst != src && bytes > 0) {
        memcpy(dst, src, bytes);
    }
}

/* Reduce elements [first, first + count) of every member's src into dst. */
static void reduce_part(const meeting *m, const lt_call *call, void *dst, int64_t first,
                        int64_t count) {
    const void *srcs[LT_COMM_MAX_RANKS];
    const size_t at = (size_t)first * lt_dtype_bytes(call->dtype);
    for (int i = 0; i < m->n; i++) {
        srcs[i] = (const char *)m->posts[i].src + at;
    }
    if (count > 0) {
        lt_comm_reduce(dst, srcs, m->n, count, call->dtype, call->op);
    }
}

static void exchange(const meeting *m, const lt_call *call) {
    const size_t elem = lt_dtype_bytes(call->dtype);
    const int own = call->group->rank;
    size_t to = 0;
    for (int i = 0; i < m->n; i++) {
        const lt_call *p = &m->posts[i];
        size_t from = 0;
        for (int j = 0; j < own; j++) {
            from += (size_t)p->send_counts[j] * elem;
        }
        copy((char *)call->dst + to, (const char *)p->src + from,
             (size_t)call->recv_counts[i] * elem);
        to += (size_t)call->recv_counts[i] * elem;
    }
}

/* all_reduce and the others, after the first station: read the members' sources. */
static void read_sources(const meeting *m, const lt_call *call) {
    const size_t elem = lt_dtype_bytes(call->dtype), row = (size_t)call->count * elem;
    const int own = call->group->rank;
    const int64_t first = lt_comm_shard(call->count, m->n, own);
    switch (call->kind) {
    case LT_CALL_ALL_REDUCE:
        reduce_part(m, call, (char *)call->dst + (size_t)first * elem, first,
                    lt_comm_shard(call->count, m->n, own + 1) - first);
        break;
    case LT_CALL_REDUCE_SCATTER:
        reduce_part(m, call, call->dst, call->count * own, call->count);
        break;
    case LT_CALL_ALL_GATHER:
        for (int i = 0; i < m->n; i++) {
            copy((char *)call->dst + (size_t)i * row, m->posts[i].src, row);
        }
        break;
    case LT_CALL_BROADCAST:
        copy(call->dst, m->posts[call->peer].src, row);
        break;
    case LT_CALL_ALL_TO_ALL:
        exchange(m, call);
        break;
    default:
        break;
    }
}

/* all_reduce, after the second station: copy the shards that other members have reduced. */
static void read_shards(const meeting *m, const lt_call *call) {
    const size_t elem = lt_dtype_bytes(call->dtype);
    for (int i = 0; i < m->n; i++) {
        const int64_t first = lt_comm_shard(call->count, m->n, i);
        copy((char *)call->dst + (size_t)first * elem,
             (const char *)m->posts[i].dst + (size_t)first * elem,
             (size_t)(lt_comm_shard(call->count, m->n, i + 1) - first) * elem);
    }
}

static void begin_moving(thread_world *w) {
    w->moving++;
    (void)pthread_mutex_unlock(&w->lock);
}

static void end_moving(thread_world *w) {
    (void)pthread_mutex_lock(&w->lock);
    w->moving--;
    for (int i = 0; w->failed != LT_OK && w->moving == 0 && i < w->size; i++) {
        if (w->comms[i] != NULL) {
            (void)pthread_cond_broadcast(&w->comms[i]->change);
        }
    }
}

static lt_advance collective(thread_world *w, lt_call *call) {
    meeting *m = call->group->shared;
    const int own = call->group->rank;
    const uint64_t station = 3 * call->seq;

    if (call->phase == 0) {
        m->posts[own] = *call;
        reach(m, own, station);
        call->phase = 1;
    }
    if (call->phase == 1 && all_reached(m, station)) {
        if (!compare(m, call)) {
            return LT_ADVANCE_FAILED;
        }
        begin_moving(w);
        read_sources(m, call);
        end_moving(w);
        if (w->failed != LT_OK) {
            return LT_ADVANCE_WAITING;
        }
        call->phase = call->kind == LT_CALL_ALL_REDUCE ? 2 : 3;
        reach(m, own, station + (call->phase == 2 ? 1 : 2));
    }
    if (call->phase == 2 && all_reached(m, station + 1)) {
        begin_moving(w);
        read_shards(m, call);
        end_moving(w);
        call->phase = 3;
        reach(m, own, station + 2);
    }
    return call->phase == 3 && all_reached(m, station + 2) ? LT_ADVANCE_DONE : LT_ADVANCE_WAITING;
}

/* ---- Pairs ----------------------------------------------------------------------------------- */

static channel *channel_of(const lt_call *call) {
    const meeting *m = call->group->shared;
    const int own = call->group->rank, n = m->n;
    return &m->channels[call->kind == LT_CALL_SEND ? own * n + call->peer : call->peer * n + own];
}

static void wake(const meeting *m, int member) {
    if (m->comms[member] != NULL) {
        (void)pthread_cond_signal(&m->comms[member]->work);
    }
}

static lt_advance send_call(lt_call *call) {
    channel *ch = channel_of(call);
    if (call->phase == 0) {
        ch->src = call->src;
        ch->count = call->count;
        ch->dtype = call->dtype;
        ch->posted = call->seq;
        call->phase = 1;
        wake(call->group->shared, call->peer);
    }
    return ch->taken >= call->seq ? LT_ADVANCE_DONE : LT_ADVANCE_WAITING;
}

static lt_advance recv_call(thread_world *w, lt_call *call) {
    channel *ch = channel_of(call);
    const meeting *m = call->group->shared;
    if (ch->posted < call->seq) {
        return LT_ADVANCE_WAITING;
    }
    if (ch->count != call->count || ch->dtype != call->dtype) {
        lt_error_set(LT_ERR_REMOTE,
                     "message %llu of group %s: rank %d sends %lld %s, rank %d awaits %lld %s",
                     (unsigned long long)call->seq, m->name, m->ranks[call->peer],
                     (long long)ch->count, lt_dtype_name(ch->dtype), m->ranks[call->group->rank],
                     (long long)call->count, lt_dtype_name(call->dtype));
        return LT_ADVANCE_FAILED;
    }
    begin_moving(w);
    copy(call->dst, ch->src, (size_t)call->count * lt_dtype_bytes(call->dtype));
    end_moving(w);
    ch->taken = call->seq;
    wake(m, call->peer);
    return LT_ADVANCE_DONE;
}

static lt_advance advance(lt_call *call) {
    thread_world *w = call->group->comm->world;
    switch (call->kind) {
    case LT_CALL_SEND:
        return send_call(call);
    case LT_CALL_RECV:
        return recv_call(w, call);
    default:
        return collective(w, call);
    }
}

/* ---- Failures -------------------------------------------------------------------------------- */

static void missing(const lt_call *call, char *out, size_t out_bytes) {
    const meeting *m = call->group->shared;
    int used = 0;
    out[0] = '\0';
    if (call->kind == LT_CALL_SEND || call->kind == LT_CALL_RECV) {
        (void)snprintf(out, out_bytes, "rank %d did not come", m->ranks[call->peer]);
        return;
    }
    for (int i = 0, n = 0; i < m->n && (size_t)used < out_bytes; i++) {
        if (m->reached[i] < 3 * call->seq + (call->phase == 1 ? 0 : call->phase == 2 ? 1 : 2)) {
            used += snprintf(out + used, out_bytes - (size_t)used, "%srank %d (at call %llu)",
                             n++ > 0 ? ", " : "", m->ranks[i],
                             (unsigned long long)(m->reached[i] / 3));
        }
    }
    if ((size_t)used < out_bytes) {
        (void)snprintf(out + used, out_bytes - (size_t)used, " did not come");
    }
}

static void tell_all(lt_comm *c) {
    thread_world *w = c->world;
    if (w->failed != LT_OK) {
        return;
    }
    w->failed = c->failed;
    memcpy(w->why, c->why, sizeof w->why);
    for (int i = 0; i < w->size; i++) {
        if (w->comms[i] != NULL) {
            lt_comm_fail(w->comms[i], w->failed, w->why);
        }
    }
}

const lt_transport lt_transport_thread = {.name = "thread",
                                          .group_open = group_open,
                                          .group_close = group_close,
                                          .advance = advance,
                                          .missing = missing,
                                          .abort = tell_all};

/* ---- Ranks as threads ------------------------------------------------------------------------ */

typedef struct {
    lt_comm *comm;
    lt_err (*fn)(lt_comm *c, void *ctx);
    void *ctx;
    pthread_t thread;
    bool started;
    lt_err err;
    char message[LT_COMM_WHY - 16];
} rank_thread;

/* The reason that a rank gives when its own work fails. */
static void own_reason(const rank_thread *t, char *out, size_t out_bytes) {
    (void)snprintf(out, out_bytes, "rank %d: %s", t->comm->rank, t->message);
}

/* A rank that fails ends the world, because the others would wait for it. */
static void *rank_main(void *arg) {
    rank_thread *t = arg;
    char reason[LT_COMM_WHY];
    t->err = t->fn(t->comm, t->ctx);
    if (t->err != LT_OK) {
        (void)snprintf(t->message, sizeof t->message, "%s", lt_error_message());
        own_reason(t, reason, sizeof reason);
        lt_comm_abort(t->comm, reason);
    }
    return NULL;
}

static void world_free(thread_world *w) {
    while (w->meetings != NULL) {
        meeting *m = w->meetings;
        w->meetings = m->next;
        meeting_free(m);
    }
    free(w->comms);
    (void)pthread_mutex_destroy(&w->lock);
}

/* Report the rank whose own failure ended the world; otherwise the first that failed. */
static lt_err first_failure(const thread_world *w, const rank_thread *ranks) {
    const rank_thread *first = NULL;
    char reason[LT_COMM_WHY];
    for (int i = w->size - 1; i >= 0; i--) {
        own_reason(&ranks[i], reason, sizeof reason);
        if (ranks[i].err != LT_OK && strcmp(reason, w->why) == 0) {
            return lt_error_set(ranks[i].err, "%s", reason);
        }
        first = ranks[i].err != LT_OK ? &ranks[i] : first;
    }
    if (first == NULL) {
        return LT_OK;
    }
    own_reason(first, reason, sizeof reason);
    return lt_error_set(first->err, "%s", reason);
}

lt_err lt_comm_run_threads(int n_ranks, const lt_comm_options *o,
                           lt_err (*fn)(lt_comm *c, void *ctx), void *ctx) {
    lt_err err = LT_OK;
    thread_world w = {.lock = PTHREAD_MUTEX_INITIALIZER, .size = n_ranks};
    rank_thread *ranks = NULL;

    if (n_ranks < 1 || n_ranks > LT_COMM_MAX_RANKS) {
        LT_FAIL(LT_ERR_ARG, "%d ranks; 1 to %d are possible", n_ranks, LT_COMM_MAX_RANKS);
    }
    ranks = calloc((size_t)n_ranks, sizeof *ranks);
    w.comms = calloc((size_t)n_ranks, sizeof(lt_comm *));
    if (ranks == NULL || w.comms == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%d ranks", n_ranks);
    }
    for (int i = 0; i < n_ranks; i++) {
        LT_TRY_DONE(lt_comm_begin(&w.comms[i], &lt_transport_thread, &w, i, n_ranks, o, &w.lock,
                                  &w.moving));
    }
    for (int i = 0; i < n_ranks; i++) {
        ranks[i] = (rank_thread){.comm = w.comms[i], .fn = fn, .ctx = ctx};
        if (pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]) != 0) {
            lt_comm_abort(w.comms[i], "a rank's thread could not be started");
            LT_FAIL_DONE(LT_ERR_OOM, "rank %d of %d: no thread for it", i, n_ranks);
        }
        ranks[i].started = true;
    }
done:
    for (int i = 0; ranks != NULL && i < n_ranks; i++) {
        if (ranks[i].started) {
            (void)pthread_join(ranks[i].thread, NULL);
        }
    }
    if (err == LT_OK && ranks != NULL) {
        err = first_failure(&w, ranks);
    }
    for (int i = 0; w.comms != NULL && i < n_ranks; i++) {
        lt_comm *c = w.comms[i];
        if (c != NULL) {
            (void)pthread_mutex_lock(&w.lock);
            w.comms[i] = NULL;
            (void)pthread_mutex_unlock(&w.lock);
            lt_comm_close(c);
        }
    }
    world_free(&w);
    free(ranks);
    return err;
}
