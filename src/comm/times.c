/* times.c: when the calls of a rank were in progress, and how long their callers waited. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/call.h"

void lt_comm_note_end(lt_comm *c, const lt_call *call) {
    lt_record *r = lt_records_of(&c->records, call->number);
    uint64_t from = call->started_ns, to = lt_clock_ns();
    const bool alone = call->group->n == 1;
    const bool measured = !alone &&
                          (c->transport->took == NULL || c->transport->took(call, &from, &to));
    if (r != NULL) {
        r->state = LT_CALL_DONE;
        r->started_ns = from;
        r->done_ns = to;
    }
    if (measured && call->kind != LT_CALL_RECV && to > c->moved_until_ns) {
        from = from > c->moved_until_ns ? from : c->moved_until_ns;
        c->moved_s += to > from ? (double)(to - from) * 1e-9 : 0.0;
        c->moved_until_ns = to;
    }
}

void lt_comm_tell_waits(lt_comm *c, lt_timeline *t) {
    (void)pthread_mutex_lock(c->lock);
    c->timeline = t;
    (void)pthread_mutex_unlock(c->lock);
}

lt_err lt_comm_measure(lt_comm *c, bool on, bool in_place) {
    lt_err err = LT_OK;
    if (c->transport == NULL || c->transport->measure == NULL) {
        return LT_OK;
    }
    (void)pthread_mutex_lock(c->lock);
    err = c->transport->measure(c, on, in_place);
    (void)pthread_mutex_unlock(c->lock);
    return err;
}

double lt_comm_moved(lt_comm *c) {
    double seconds;
    (void)pthread_mutex_lock(c->lock);
    seconds = c->moved_s;
    c->moved_s = 0.0;
    (void)pthread_mutex_unlock(c->lock);
    return seconds;
}

lt_comm_work lt_comm_last(lt_comm *c) {
    lt_comm_work last;
    (void)pthread_mutex_lock(c->lock);
    last = c->issued;
    (void)pthread_mutex_unlock(c->lock);
    return last;
}

bool lt_comm_recall(lt_comm *c, lt_comm_work work_number, lt_comm_call *out) {
    bool ended;
    (void)pthread_mutex_lock(c->lock);
    const lt_record *r = lt_records_of(&c->records, work_number);
    ended = r != NULL && r->state == LT_CALL_DONE;
    if (ended) {
        *out = (lt_comm_call){.call = r->call,
                              .members = r->members,
                              .peer = r->peer,
                              .is_pair = r->kind == LT_CALL_SEND || r->kind == LT_CALL_RECV,
                              .bytes = (int64_t)r->bytes,
                              .issued_ns = r->issued_ns,
                              .started_ns = r->started_ns,
                              .done_ns = r->done_ns};
        (void)snprintf(out->verb, sizeof out->verb, "%s", lt_call_kind_name(r->kind));
        memcpy(out->group, r->group, sizeof out->group);
    }
    (void)pthread_mutex_unlock(c->lock);
    return ended;
}
