/* comm.c: one rank of a world: its groups, its ring of calls, and the worker that advances them
 * (call.h has the states). In a group of one member each call is a copy, done at once. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/call.h"
#include "comm/launched.h"
#include "comm/shm.h"
#include "tensor/timeline.h"

#define DEADLINE_S 30.0
#define NS         1000000000u
/* A polling worker polls this many times before it sleeps between polls, and fewer times if a yield
 * takes this long. Other threads need the core then: a worker that yields waits for all of them,
 * each time, while one that has slept runs before them. Beside four other processes a step of three
 * small ranks took three times as long without this. */
#define POLLS         200
#define LONG_YIELD_NS 500000u

static void wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t ns) {
    const struct timespec t = {.tv_sec = (time_t)(ns / NS), .tv_nsec = (long)(ns % NS)};
    (void)pthread_cond_timedwait(cond, lock, &t);
}

static lt_err cond_open(pthread_cond_t *cond) { /* The condition uses the clock of lt_clock_ns. */
    pthread_condattr_t attr;
    int err = pthread_condattr_init(&attr);
    err = err != 0 ? err : pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    err = err != 0 ? err : pthread_cond_init(cond, &attr);
    (void)pthread_condattr_destroy(&attr);
    if (err != 0) {
        LT_FAIL(LT_ERR_OOM, "condition variable: %s", strerror(err));
    }
    return LT_OK;
}

static lt_call *call_of(lt_comm *c, uint64_t number) {
    return &c->calls[number % LT_COMM_AHEAD];
}

static uint64_t deadline_ns(const lt_comm *c) {
    return (uint64_t)(c->options.deadline_s * (double)NS);
}

/* ---- The end of a world ---------------------------------------------------------------------- */

static void write_records(lt_comm *c) {
    if (c->options.record_dir != NULL &&
        lt_records_write(&c->records, c->options.record_dir, c->options.epoch, c->rank, c->size,
                         c->why) != LT_OK) {
        lt_log_warn("rank %d: %s", c->rank, lt_error_message());
    }
}

void lt_comm_fail(lt_comm *c, lt_err err, const char *reason) {
    if (c->failed != LT_OK) {
        return;
    }
    c->failed = err;
    (void)snprintf(c->why, sizeof c->why, "%s", reason);
    for (uint64_t k = c->finished + 1; k <= c->issued; k++) {
        lt_call *call = call_of(c, k);
        lt_record *r = lt_records_of(&c->records, k);
        if (call->state != LT_CALL_DONE) {
            if (r != NULL && call->state == LT_CALL_STARTED) {
                r->state = LT_CALL_FAILED;
            }
            call->state = LT_CALL_FAILED;
        }
    }
    write_records(c);
    (void)pthread_cond_broadcast(&c->change);
    (void)pthread_cond_broadcast(&c->work);
    if (c->transport != NULL && c->transport->abort != NULL) {
        c->transport->abort(c);
    }
}

void lt_comm_abort(lt_comm *c, const char *reason) {
    (void)pthread_mutex_lock(c->lock);
    lt_comm_fail(c, LT_ERR_REMOTE, reason);
    (void)pthread_mutex_unlock(c->lock);
}

/* ---- The worker ------------------------------------------------------------------------------ */

static bool is_pair(const lt_call *call) {
    return call->kind == LT_CALL_SEND || call->kind == LT_CALL_RECV;
}

/* Whether the call may start: no call under way must end first. */
static bool has_turn(lt_comm *c, const lt_call *call) {
    for (uint64_t k = c->finished + 1; k < call->number; k++) {
        const lt_call *e = call_of(c, k);
        if (e->state == LT_CALL_DONE || e->phase >= LT_CALL_ISSUED) {
            continue;
        }
        if (is_pair(call)
                ? e->kind == call->kind && e->group == call->group && e->peer == call->peer
                : !is_pair(e)) {
            return false;
        }
    }
    return true;
}

static void miss(lt_comm *c, const lt_call *call) {
    char missing[LT_COMM_WHY / 2], why[LT_COMM_WHY];
    c->transport->missing(call, missing, sizeof missing);
    (void)snprintf(why, sizeof why, "%s %llu of group %s (%d members): %s, after %.3g s",
                   lt_call_kind_name(call->kind), (unsigned long long)call->seq, call->group->name,
                   call->group->n, missing, c->options.deadline_s);
    lt_comm_fail(c, LT_ERR_REMOTE, why);
}

/* Do the call of a group of one member. */
static void alone(const lt_call *call) {
    const size_t bytes = lt_call_bytes(call);
    if (call->dst != call->src && call->src != NULL && bytes > 0) {
        memmove(call->dst, call->src, bytes);
    }
}

static lt_advance advance(lt_comm *c, lt_call *call) {
    if (call->group->n > 1) {
        return c->transport->advance(call);
    }
    alone(call);
    return LT_ADVANCE_DONE;
}

/* Advance one call; true if it made progress. */
static bool move(lt_comm *c, lt_call *call, uint64_t now) {
    lt_record *r = lt_records_of(&c->records, call->number);
    const int phase = call->phase;
    bool started = false;
    if (call->state == LT_CALL_QUEUED) {
        call->state = LT_CALL_STARTED;
        call->started_ns = now;
        started = true;
        if (r != NULL) {
            r->state = LT_CALL_STARTED;
            r->started_ns = now;
        }
    }
    switch (advance(c, call)) {
    case LT_ADVANCE_DONE:
        call->state = c->failed == LT_OK ? LT_CALL_DONE : call->state;
        lt_comm_note_end(c, call);
        return true;
    case LT_ADVANCE_FAILED:
        lt_comm_fail(c, LT_ERR_REMOTE, lt_error_message());
        return true;
    case LT_ADVANCE_WAITING:
        break;
    }
    if (now - call->started_ns > deadline_ns(c)) {
        miss(c, call);
        return true;
    }
    return started || call->phase != phase;
}

/* Advance all calls that have their turn. *next_ns: when the first of them misses its deadline. */
static bool move_all(lt_comm *c, uint64_t *next_ns) {
    bool moved = false;
    *next_ns = lt_clock_ns() + deadline_ns(c);
    for (uint64_t k = c->finished + 1; k <= c->issued && c->failed == LT_OK; k++) {
        lt_call *call = call_of(c, k);
        if (call->state == LT_CALL_DONE || !has_turn(c, call)) {
            continue;
        }
        moved = move(c, call, lt_clock_ns()) || moved;
        if (call->started_ns + deadline_ns(c) < *next_ns) {
            *next_ns = call->started_ns + deadline_ns(c);
        }
    }
    while (c->finished < c->issued && call_of(c, c->finished + 1)->state == LT_CALL_DONE) {
        c->finished++;
    }
    return moved;
}

static void *work(void *arg) {
    lt_comm *c = arg;
    const int poll_us = c->transport->poll_us;
    uint64_t next_ns;
    int idle = 0;
    (void)pthread_mutex_lock(c->lock);
    while (!c->closing) {
        if (c->failed == LT_OK && move_all(c, &next_ns)) {
            (void)pthread_cond_broadcast(&c->change);
            idle = 0;
        } else if (c->failed != LT_OK || c->finished == c->issued) {
            (void)pthread_cond_wait(&c->work, c->lock);
        } else if (poll_us > 0 && idle++ < POLLS) {
            const uint64_t from_ns = lt_clock_ns();
            (void)pthread_mutex_unlock(c->lock);
            (void)sched_yield();
            (void)pthread_mutex_lock(c->lock);
            idle = lt_clock_ns() - from_ns > LONG_YIELD_NS ? POLLS : idle;
        } else {
            wait_until(&c->work, c->lock,
                       poll_us > 0 ? lt_clock_ns() + (uint64_t)poll_us * 1000
                                   : next_ns + NS / 1000);
        }
    }
    (void)pthread_mutex_unlock(c->lock);
    return NULL;
}

/* ---- Opening --------------------------------------------------------------------------------- */

lt_err lt_comm_begin(lt_comm **out, const lt_transport *t, void *world, int rank, int size,
                     const lt_comm_options *o, pthread_mutex_t *lock, int *moving) {
    lt_err err = LT_OK;
    lt_comm *c = calloc(1, sizeof *c);

    LT_ASSERT(out != NULL && rank >= 0 && rank < size && size <= LT_COMM_MAX_RANKS);
    if (c == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "rank %d of %d", rank, size);
    }
    c->rank = rank;
    c->size = size;
    c->transport = t;
    c->world = world;
    c->options = o != NULL ? *o : (lt_comm_options){0};
    if (!(c->options.deadline_s >= 0.0)) {
        LT_FAIL_DONE(LT_ERR_ARG, "a deadline of %g s", c->options.deadline_s);
    }
    c->options.deadline_s = c->options.deadline_s > 0.0 ? c->options.deadline_s : DEADLINE_S;
    (void)pthread_mutex_init(&c->own_lock, NULL);
    c->lock = lock != NULL ? lock : &c->own_lock;
    c->moving = moving != NULL ? moving : &c->own_moving;
    LT_TRY_DONE(cond_open(&c->work));
    LT_TRY_DONE(cond_open(&c->change));
    LT_TRY_DONE(lt_records_open(&c->records));
    c->counts = calloc((size_t)LT_COMM_AHEAD * 2 * (size_t)size, sizeof *c->counts);
    if (c->counts == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "rank %d of %d", rank, size);
    }
    if (t != NULL) {
        const int e = pthread_create(&c->worker, NULL, work, c);
        if (e != 0) {
            LT_FAIL_DONE(LT_ERR_OOM, "worker of rank %d: %s", rank, strerror(e));
        }
        c->has_worker = true;
    }
    *out = c;
    c = NULL;
done:
    lt_comm_close(c);
    return err;
}

lt_err lt_comm_open(lt_comm **out, const lt_comm_options *o) {
    return lt_launched_apart()      ? lt_comm_open_tcp(out, o)
           : lt_comm_under_launch() ? lt_comm_open_shm(out, o)
           : lt_comm_under_mpi()    ? lt_comm_open_mpi(out, o)
                                    : lt_comm_open_self(out, o);
}

bool lt_comm_is_rank(void) {
    return lt_comm_under_launch() || lt_comm_under_mpi();
}

lt_err lt_comm_started_as(int *rank, int *n_ranks) {
    static const char *const names[][2] = {{LT_ENV_RANK, LT_ENV_RANKS},
                                           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                           {"SLURM_PROCID", "SLURM_NTASKS"}};
    *rank = 0;
    *n_ranks = 1;
    if (!lt_comm_is_rank()) {
        return LT_OK;
    }
    for (size_t i = lt_comm_under_launch() ? 0 : 1; i < sizeof names / sizeof *names; i++) {
        const char *own = getenv(names[i][0]), *all = getenv(names[i][1]);
        if (own != NULL && all != NULL) {
            *rank = atoi(own);
            *n_ranks = atoi(all);
            return LT_OK;
        }
    }
    LT_FAIL(LT_ERR_UNSUPPORTED, "the environment does not say how many ranks were started: neither "
                                "OMPI_COMM_WORLD_SIZE nor SLURM_NTASKS is set");
}

lt_err lt_comm_open_self(lt_comm **out, const lt_comm_options *o) {
    return lt_comm_begin(out, NULL, NULL, 0, 1, o, NULL, NULL);
}

void lt_comm_close(lt_comm *c) {
    if (c == NULL) {
        return;
    }
    if (c->has_worker) {
        (void)pthread_mutex_lock(c->lock);
        c->closing = true;
        (void)pthread_cond_broadcast(&c->work);
        (void)pthread_mutex_unlock(c->lock);
        (void)pthread_join(c->worker, NULL);
    }
    while (c->groups != NULL) {
        lt_group *g = c->groups;
        c->groups = g->next;
        if (g->shared != NULL) {
            c->transport->group_close(g);
        }
        free(g->ranks);
        free(g->sent);
        free(g);
    }
    if (c->transport != NULL && c->transport->close != NULL) {
        c->transport->close(c);
    }
    lt_records_close(&c->records);
    free(c->counts);
    (void)pthread_cond_destroy(&c->work);
    (void)pthread_cond_destroy(&c->change);
    (void)pthread_mutex_destroy(&c->own_lock);
    free(c);
}

int lt_comm_rank(const lt_comm *c) {
    return c->rank;
}

int lt_comm_size(const lt_comm *c) {
    return c->size;
}

const char *lt_comm_transport(const lt_comm *c) {
    return c->transport != NULL ? c->transport->name : "self";
}

lt_comm_options lt_comm_options_of(const lt_comm *c) {
    return c->options;
}

/* ---- Groups ---------------------------------------------------------------------------------- */

static lt_err check_list(const lt_comm *c, const char *name, const int *ranks, int n, int *own) {
    *own = -1;
    if (n < 1 || n > c->size) {
        LT_FAIL(LT_ERR_ARG, "group %s: %d members in a world of %d ranks", name, n, c->size);
    }
    if (name[0] == '\0' || strlen(name) >= LT_COMM_NAME) {
        LT_FAIL(LT_ERR_ARG, "group '%s': a name has 1 to %d bytes", name, LT_COMM_NAME - 1);
    }
    for (int i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= c->size) {
            LT_FAIL(LT_ERR_ARG, "group %s: rank %d in a world of %d", name, ranks[i], c->size);
        }
        for (int j = 0; j < i; j++) {
            if (ranks[i] == ranks[j]) {
                LT_FAIL(LT_ERR_ARG, "group %s: rank %d is member %d and %d", name, ranks[i], j, i);
            }
        }
        *own = ranks[i] == c->rank ? i : *own;
    }
    if (*own < 0) {
        LT_FAIL(LT_ERR_ARG, "group %s: rank %d opens it and is not a member", name, c->rank);
    }
    return LT_OK;
}

lt_err lt_group_open(lt_group **out, lt_comm *c, const char *name, const int *ranks, int n) {
    lt_err err = LT_OK;
    lt_group *g = NULL;
    int own;

    LT_TRY(check_list(c, name, ranks, n, &own));
    g = calloc(1, sizeof *g);
    if (g != NULL) {
        g->ranks = calloc((size_t)n, sizeof *g->ranks);
        g->sent = calloc(2 * (size_t)n, sizeof *g->sent);
    }
    if (g == NULL || g->ranks == NULL || g->sent == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "group %s of %d members", name, n);
    }
    g->received = g->sent + n;
    g->comm = c;
    g->rank = own;
    g->n = n;
    memcpy(g->ranks, ranks, (size_t)n * sizeof *ranks);
    (void)snprintf(g->name, sizeof g->name, "%s", name);
    if (n > 1) {
        LT_TRY_DONE(c->transport->group_open(g));
    }
    g->next = c->groups;
    c->groups = g;
    *out = g;
    g = NULL;
done:
    if (g != NULL) {
        free(g->ranks);
        free(g->sent);
        free(g);
    }
    return err;
}

int lt_group_rank(const lt_group *g) {
    return g->rank;
}

int lt_group_size(const lt_group *g) {
    return g->n;
}

const char *lt_group_name(const lt_group *g) {
    return g->name;
}

const int *lt_group_ranks(const lt_group *g) {
    return g->ranks;
}

lt_comm *lt_group_comm(const lt_group *g) {
    return g->comm;
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static lt_err failed(const lt_comm *c) {
    return lt_error_set(c->failed, "%s", c->why);
}

/* If the slot already holds another call, this one is done. */
static bool is_under_way(const lt_comm *c, const lt_call *call, lt_comm_work work_number) {
    return call->number == work_number && call->state != LT_CALL_DONE &&
           (c->failed == LT_OK || *c->moving > 0);
}

lt_err lt_comm_wait(lt_comm *c, lt_comm_work work_number) {
    lt_err err = LT_OK;
    lt_open_span span;
    const lt_call *call = call_of(c, work_number);
    (void)pthread_mutex_lock(c->lock);
    LT_ASSERT(work_number <= c->issued);
    if (is_under_way(c, call, work_number)) {
        err = lt_timeline_begin(c->timeline, &span, LT_SPAN_HOST_WAIT, (int64_t)work_number, 0);
        while (is_under_way(c, call, work_number)) {
            (void)pthread_cond_wait(&c->change, c->lock);
        }
        err = err == LT_OK ? lt_timeline_end(c->timeline, &span) : err;
    }
    if (call->number == work_number && call->state != LT_CALL_DONE) {
        err = failed(c);
    }
    (void)pthread_mutex_unlock(c->lock);
    return err;
}

bool lt_comm_done(lt_comm *c, lt_comm_work work_number) {
    const lt_call *call = call_of(c, work_number);
    bool done;
    (void)pthread_mutex_lock(c->lock);
    done = call->number != work_number || call->state == LT_CALL_DONE ||
           (c->failed != LT_OK && *c->moving == 0);
    (void)pthread_mutex_unlock(c->lock);
    return done;
}

/* q waits for the call, which the device has not ended, or for one member's part of it. */
static lt_err order(lt_comm *c, lt_call *call, int member, lt_queue *q) {
    lt_open_span span;
    LT_TRY(lt_timeline_begin(c->timeline, &span, LT_SPAN_WAIT, (int64_t)call->number, 0));
    LT_TRY(c->transport->order(call, member, q));
    return lt_timeline_end(c->timeline, &span);
}

lt_err lt_comm_order(lt_comm *c, lt_comm_work work_number, lt_queue *q) {
    return lt_comm_order_member(c, work_number, -1, q);
}

lt_err lt_comm_order_member(lt_comm *c, lt_comm_work work_number, int member, lt_queue *q) {
    lt_err err = LT_OK;
    lt_call *call = call_of(c, work_number);
    if (c->transport == NULL || c->transport->order == NULL) {
        return lt_comm_wait(c, work_number);
    }
    (void)pthread_mutex_lock(c->lock);
    LT_ASSERT(work_number <= c->issued);
    while (call->number == work_number && call->state != LT_CALL_DONE &&
           call->phase < LT_CALL_ISSUED && c->failed == LT_OK) {
        (void)pthread_cond_wait(&c->change, c->lock);
    }
    if (c->failed != LT_OK && call->number == work_number && call->state != LT_CALL_DONE) {
        err = failed(c);
    } else if (call->number == work_number && call->state != LT_CALL_DONE) {
        err = order(c, call, member, q);
    }
    (void)pthread_mutex_unlock(c->lock);
    return err;
}

void lt_comm_follow(lt_comm *c, lt_queue *q) {
    (void)pthread_mutex_lock(c->lock);
    c->queue = q;
    (void)pthread_mutex_unlock(c->lock);
}

/* ---- Verbs ----------------------------------------------------------------------------------- */

size_t lt_call_side_bytes(const lt_call *call, bool dst) {
    int64_t count = call->count;
    if (call->kind == LT_CALL_ALL_TO_ALL) {
        const int64_t *counts = dst ? call->recv_counts : call->send_counts;
        count = 0;
        for (int i = 0; i < call->group->n; i++) {
            count += counts[i];
        }
    } else if (call->kind == (dst ? LT_CALL_ALL_GATHER : LT_CALL_REDUCE_SCATTER)) {
        count *= call->group->n;
    }
    return (size_t)count * lt_dtype_bytes(call->dtype);
}

size_t lt_call_bytes(const lt_call *call) {
    return lt_call_side_bytes(call, call->kind == LT_CALL_ALL_GATHER);
}

static void put_counts(lt_comm *c, lt_call *call) {
    const int n = call->group->n;
    int64_t *to = c->counts + (call->number % LT_COMM_AHEAD) * 2 * (uint64_t)c->size;
    if (call->kind == LT_CALL_ALL_TO_ALL) {
        memcpy(to, call->send_counts, (size_t)n * sizeof *to);
        memcpy(to + n, call->recv_counts, (size_t)n * sizeof *to);
        call->send_counts = to;
        call->recv_counts = to + n;
    }
}

/* Take a slot of the ring as soon as one is free. Called with the lock held. */
static lt_err place(lt_comm *c, lt_call *call) {
    lt_group *g = call->group;
    while (c->failed == LT_OK && c->issued - c->finished >= LT_COMM_AHEAD) {
        (void)pthread_cond_wait(&c->change, c->lock);
    }
    if (c->failed != LT_OK) {
        return failed(c);
    }
    call->number = ++c->issued;
    call->seq = call->kind == LT_CALL_SEND   ? ++g->sent[call->peer]
                : call->kind == LT_CALL_RECV ? ++g->received[call->peer]
                                             : ++g->seq;
    put_counts(c, call);
    if (g->n > 1 && c->transport->begin != NULL) {
        const lt_err err = c->transport->begin(call, has_turn(c, call));
        if (err != LT_OK) { /* The other ranks still make this call. */
            lt_comm_fail(c, err, lt_error_message());
            return err;
        }
    }
    *call_of(c, call->number) = *call;
    c->records.n = call->number;
    c->records.ring[call->number % LT_COMM_RECORDS] = (lt_record){
        .call = call->number,
        .seq = call->seq,
        .members = g->n,
        .peer = call->peer,
        .kind = call->kind,
        .state = LT_CALL_QUEUED,
        .dtype = call->dtype,
        .bytes = lt_call_bytes(call),
        .issued_ns = lt_clock_ns(),
    };
    memcpy(lt_records_of(&c->records, call->number)->group, g->name, sizeof g->name);
    return LT_OK;
}

static lt_err issue(lt_call call, lt_comm_work *work_number) {
    lt_comm *c = call.group->comm;
    lt_err err;

    LT_ASSERT(call.count >= 0);
    if (call.group->n == 1 && c->transport != NULL && c->transport->order != NULL &&
        call.dst != call.src && call.src != NULL && lt_call_bytes(&call) > 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s of group %s: one member's copy in a GPU's memory",
                lt_call_kind_name(call.kind), call.group->name);
    }
    (void)pthread_mutex_lock(c->lock);
    err = place(c, &call);
    if (err == LT_OK && call.group->n == 1 && has_turn(c, &call)) {
        lt_record *r = lt_records_of(&c->records, call.number);
        alone(&call);
        call_of(c, call.number)->state = LT_CALL_DONE;
        r->state = LT_CALL_DONE;
        r->started_ns = r->done_ns = r->issued_ns;
        c->finished += c->finished + 1 == call.number;
    } else if (err == LT_OK) {
        (void)pthread_cond_signal(&c->work);
    }
    (void)pthread_mutex_unlock(c->lock);
    if (err != LT_OK) {
        return err;
    }
    if (work_number != NULL) {
        *work_number = call.number;
        return LT_OK;
    }
    return lt_comm_wait(c, call.number);
}

static lt_err check_reduce(const lt_group *g, lt_dtype dtype, const char *verb) {
    if (!lt_comm_can_reduce(dtype)) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s of group %s: no sums of %s", verb, g->name,
                lt_dtype_name(dtype));
    }
    return LT_OK;
}

static lt_err check_member(const lt_group *g, int i, const char *verb) {
    if (i < 0 || i >= g->n) {
        LT_FAIL(LT_ERR_ARG, "%s of group %s: member %d of %d", verb, g->name, i, g->n);
    }
    return LT_OK;
}

lt_err lt_all_reduce(lt_group *g, void *dst, const void *src, int64_t count, lt_dtype dtype,
                     lt_reduce op, lt_comm_work *work_number) {
    LT_TRY(check_reduce(g, dtype, "all_reduce"));
    return issue((lt_call){.kind = LT_CALL_ALL_REDUCE,
                           .group = g,
                           .dst = dst,
                           .src = src,
                           .count = count,
                           .dtype = dtype,
                           .op = op,
                           .peer = -1},
                 work_number);
}

lt_err lt_reduce_scatter(lt_group *g, void *dst, const void *src, int64_t count, lt_dtype dtype,
                         lt_reduce op, lt_comm_work *work_number) {
    LT_TRY(check_reduce(g, dtype, "reduce_scatter"));
    return issue((lt_call){.kind = LT_CALL_REDUCE_SCATTER,
                           .group = g,
                           .dst = dst,
                           .src = src,
                           .count = count,
                           .dtype = dtype,
                           .op = op,
                           .peer = -1},
                 work_number);
}

lt_err lt_reduce_scatter_early(lt_group *g, int member, const void *src, int64_t count,
                               lt_dtype dtype) {
    lt_comm *c = g->comm;
    lt_err err = LT_OK;
    lt_call call = {.kind = LT_CALL_REDUCE_SCATTER,
                    .group = g,
                    .src = src,
                    .count = count,
                    .dtype = dtype,
                    .op = LT_REDUCE_SUM,
                    .peer = member};
    LT_TRY(check_member(g, member, "reduce_scatter"));
    if (member == g->rank || c->transport->early == NULL) {
        return LT_OK;
    }
    (void)pthread_mutex_lock(c->lock);
    call.number = c->issued + 1;
    if (c->failed == LT_OK && has_turn(c, &call)) {
        err = c->transport->early(&call);
    }
    (void)pthread_mutex_unlock(c->lock);
    return err;
}

lt_err lt_all_gather(lt_group *g, void *dst, const void *src, int64_t count, lt_dtype dtype,
                     lt_comm_work *work_number) {
    return issue((lt_call){.kind = LT_CALL_ALL_GATHER,
                           .group = g,
                           .dst = dst,
                           .src = src,
                           .count = count,
                           .dtype = dtype,
                           .peer = -1},
                 work_number);
}

lt_err lt_broadcast(lt_group *g, void *data, int64_t count, lt_dtype dtype, int root,
                    lt_comm_work *work_number) {
    LT_TRY(check_member(g, root, "broadcast"));
    return issue((lt_call){.kind = LT_CALL_BROADCAST,
                           .group = g,
                           .dst = data,
                           .src = data,
                           .count = count,
                           .dtype = dtype,
                           .peer = root},
                 work_number);
}

lt_err lt_all_to_all(lt_group *g, void *dst, const int64_t *recv_counts, const void *src,
                     const int64_t *send_counts, lt_dtype dtype, lt_comm_work *work_number) {
    for (int i = 0; i < g->n; i++) {
        if (send_counts[i] < 0 || recv_counts[i] < 0) {
            LT_FAIL(LT_ERR_ARG, "all_to_all of group %s: member %d: sends %lld, receives %lld",
                    g->name, i, (long long)send_counts[i], (long long)recv_counts[i]);
        }
    }
    if (send_counts[g->rank] != recv_counts[g->rank]) {
        LT_FAIL(LT_ERR_ARG, "all_to_all of group %s: sends %lld to itself, receives %lld", g->name,
                (long long)send_counts[g->rank], (long long)recv_counts[g->rank]);
    }
    return issue((lt_call){.kind = LT_CALL_ALL_TO_ALL,
                           .group = g,
                           .dst = dst,
                           .src = src,
                           .dtype = dtype,
                           .peer = -1,
                           .send_counts = send_counts,
                           .recv_counts = recv_counts},
                 work_number);
}

static lt_err pair(lt_group *g, lt_call_kind kind, int peer, void *dst, const void *src,
                   int64_t count, lt_dtype dtype, lt_comm_work *work_number) {
    LT_TRY(check_member(g, peer, lt_call_kind_name(kind)));
    if (peer == g->rank) {
        LT_FAIL(LT_ERR_ARG, "%s of group %s: member %d to itself", lt_call_kind_name(kind), g->name,
                peer);
    }
    return issue((lt_call){.kind = kind,
                           .group = g,
                           .dst = dst,
                           .src = src,
                           .count = count,
                           .dtype = dtype,
                           .peer = peer},
                 work_number);
}

lt_err lt_send(lt_group *g, int to, const void *src, int64_t count, lt_dtype dtype,
               lt_comm_work *work_number) {
    return pair(g, LT_CALL_SEND, to, NULL, src, count, dtype, work_number);
}

lt_err lt_recv(lt_group *g, int from, void *dst, int64_t count, lt_dtype dtype,
               lt_comm_work *work_number) {
    return pair(g, LT_CALL_RECV, from, dst, NULL, count, dtype, work_number);
}

lt_err lt_barrier(lt_group *g) {
    return issue((lt_call){.kind = LT_CALL_BARRIER, .group = g, .dtype = LT_U8, .peer = -1}, NULL);
}
