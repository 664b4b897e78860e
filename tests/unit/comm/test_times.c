/* When calls were in flight, and how long their callers waited (comm/times.c, tensor/timeline.h):
 * a rank that is 0.1 s late, with ranks as threads. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/call.h"
#include "lateen/comm.h"
#include "tensor/timeline.h"

#define LATE_US 100000
#define LATE_S  0.09 /* A sleep may be cut short by no more than the clock's resolution. */

/* What the ranks observed; read after all have ended. */
typedef struct {
    double waited_s, moved_s;
    int64_t n_spans;
    lt_comm_call calls[3];
    bool recalled[3];
    double later_s; /* What moved after the report. */
} seen;
static seen of_rank[2];
static bool keeps;

static lt_err meet(lt_comm *c, void *ctx) {
    static const int ranks[2] = {0, 1};
    lt_device device = {.backend = lt_backend_cpu()};
    lt_timeline line;
    lt_comm_work work[2];
    lt_group *g;
    float x[2] = {0};
    const int own = lt_comm_rank(c);
    seen *s = &of_rank[own];
    (void)ctx;
    lt_timeline_open(&line, &device, NULL);
    LT_TRY(lt_timeline_restart(&line, keeps));
    LT_TRY(lt_group_open(&g, c, "pair", ranks, 2));
    LT_TRY(lt_barrier(g));
    (void)lt_comm_moved(c);
    lt_comm_tell_waits(c, &line);
    const lt_comm_work first = lt_comm_last(c);
    if (own == 1) {
        (void)usleep(LATE_US);
        LT_TRY(lt_recv(g, 0, &x[0], 1, LT_F32, NULL));
        LT_TRY(lt_recv(g, 0, &x[1], 1, LT_F32, NULL));
    } else { /* Two sends at once, whose time in flight counts once. */
        LT_TRY(lt_send(g, 1, &x[0], 1, LT_F32, &work[0]));
        LT_TRY(lt_send(g, 1, &x[1], 1, LT_F32, &work[1]));
        LT_TRY(lt_comm_wait(c, work[0]));
        LT_TRY(lt_comm_wait(c, work[1]));
        LT_TRY(lt_comm_wait(c, work[1])); /* It is done, so there is no wait. */
    }
    s->moved_s = lt_comm_moved(c);
    s->later_s = lt_comm_moved(c);
    s->waited_s = line.waited_s;
    for (int i = 0; i < 3; i++) {
        s->recalled[i] = lt_comm_recall(c, first + 1 + (lt_comm_work)i, &s->calls[i]);
    }
    LT_TRY(lt_timeline_settle(&line));
    s->n_spans = line.n;
    lt_comm_tell_waits(c, NULL);
    LT_TRY(lt_barrier(g));
    lt_timeline_close(&line);
    return LT_OK;
}

static void run(bool keep) {
    memset(of_rank, 0, sizeof of_rank);
    keeps = keep;
    assert_int_equal(lt_comm_run_threads(2, NULL, meet, NULL), LT_OK);
}

/* Rank 1 sleeps after the barrier. If rank 0 is delayed after the barrier, it waits for less than
 * that, and the run is repeated. */
static void run_until_met(void) {
    for (int tries = 0; tries < 50; tries++) {
        run(false);
        if (of_rank[0].waited_s >= LATE_S && of_rank[1].waited_s < of_rank[0].waited_s &&
            of_rank[0].moved_s >= LATE_S &&
            of_rank[0].moved_s <= of_rank[0].waited_s + 0.5 * LATE_S) {
            return;
        }
    }
}

static void waits_for_a_late_rank(void **state) {
    (void)state;
    run_until_met();
    assert_true(of_rank[0].waited_s >= LATE_S);
    assert_true(of_rank[1].waited_s < of_rank[0].waited_s);
    assert_int_equal(of_rank[0].n_spans, 0); /* Only the sum is kept. */
}

static void transfers_are_counted_once(void **state) {
    (void)state;
    run_until_met();
    assert_true(of_rank[0].moved_s >= LATE_S);
    /* Not once per send. */
    assert_true(of_rank[0].moved_s <= of_rank[0].waited_s + 0.5 * LATE_S);
    assert_true(of_rank[1].moved_s == 0.0); /* A receive counts at its sender. */
    assert_true(of_rank[0].later_s == 0.0); /* What was reported is not reported again. */
}

static void calls_are_recalled(void **state) {
    (void)state;
    run_until_met();
    for (int r = 0; r < 2; r++) {
        const lt_comm_call *c = of_rank[r].calls;
        assert_true(of_rank[r].recalled[0] && of_rank[r].recalled[1] && !of_rank[r].recalled[2]);
        assert_string_equal(c[0].verb, r == 0 ? "send" : "recv");
        assert_string_equal(c[0].group, "pair");
        assert_int_equal(c[0].peer, 1 - r);
        assert_int_equal(c[0].bytes, sizeof(float));
        assert_int_equal(c[0].members, 2);
        assert_true(c[0].is_pair && c[1].call == c[0].call + 1);
        assert_true(c[0].issued_ns <= c[0].started_ns && c[0].started_ns <= c[0].done_ns);
    }
    /* The send lasts until the receive has been called. */
    assert_true(of_rank[0].calls[0].done_ns >= of_rank[1].calls[0].issued_ns);
    assert_true((double)(of_rank[0].calls[0].done_ns - of_rank[0].calls[0].started_ns) >=
                LATE_S * 1e9);
}

static void spans_are_kept(void **state) {
    (void)state;
    run(true);
    assert_true(of_rank[0].n_spans >= 1 && of_rank[0].n_spans <= 2);
}

/* Spans of the clock: outer ones contain inner ones, and phases are kept only on demand. */
static void spans_nest(void **state) {
    lt_device device = {.backend = lt_backend_cpu()};
    lt_timeline t;
    lt_open_span outer, inner;
    (void)state;
    lt_timeline_open(&t, &device, NULL);
    for (int keep = 0; keep < 2; keep++) {
        assert_int_equal(lt_timeline_restart(&t, keep), LT_OK);
        for (int i = 0; i < 300; i++) { /* More than the initial capacity. */
            assert_int_equal(lt_timeline_begin(&t, &outer, LT_SPAN_FORWARD, i, 0), LT_OK);
            assert_int_equal(lt_timeline_begin(&t, &inner, LT_SPAN_HOST_WAIT, 7, 0), LT_OK);
            assert_int_equal(lt_timeline_end(&t, &inner), LT_OK);
            assert_int_equal(lt_timeline_end(&t, &outer), LT_OK);
        }
        assert_int_equal(lt_timeline_settle(&t), LT_OK);
        assert_int_equal(t.n, keep ? 600 : 0);
        assert_true(t.waited_s > 0.0);
    }
    for (int i = 0; i < 300; i++) {
        const lt_span *a = &t.spans[2 * i], *b = &t.spans[2 * i + 1];
        assert_int_equal(a->kind, LT_SPAN_FORWARD);
        assert_int_equal(a->first, i);
        assert_true(a->from_ns <= b->from_ns && b->from_ns <= b->to_ns && b->to_ns <= a->to_ns);
    }
    assert_int_equal(lt_timeline_begin(NULL, &outer, LT_SPAN_WAIT, 0, 0), LT_OK);
    assert_int_equal(lt_timeline_end(NULL, &outer), LT_OK);
    lt_timeline_close(&t);
}

/* ---- Times reported by a transport ---- */

static uint64_t told_from, told_to;
static bool told;
static int n_measured;

static bool tells(const lt_call *call, uint64_t *from_ns, uint64_t *to_ns) {
    (void)call;
    *from_ns = told_from;
    *to_ns = told_to;
    return told;
}

static lt_err measures(lt_comm *c, bool on, bool in_place) {
    (void)c;
    n_measured += on ? in_place ? 100 : 10 : 1;
    return in_place ? LT_ERR_UNSUPPORTED : LT_OK;
}

static lt_comm *telling(const lt_transport *t) {
    static lt_comm c;
    memset(&c, 0, sizeof c);
    assert_int_equal(pthread_mutex_init(&c.own_lock, NULL), 0);
    c.lock = &c.own_lock;
    c.transport = t;
    return &c;
}

static void done(lt_comm *c, const lt_call *call, uint64_t from, uint64_t to) {
    told_from = from;
    told_to = to;
    lt_comm_note_end(c, call);
}

/* Overlapping calls count the time during which either is in flight, in any order; calls of a
 * group of one, receives and calls that were not measured count nothing. */
static void times_that_overlap_count_once(void **state) {
    static const lt_transport transport = {.name = "told", .took = tells};
    lt_comm *c = telling(&transport);
    lt_group pair = {.n = 2}, one = {.n = 1};
    lt_call send = {.kind = LT_CALL_SEND, .group = &pair},
            recv = {.kind = LT_CALL_RECV, .group = &pair},
            alone = {.kind = LT_CALL_ALL_REDUCE, .group = &one};
    (void)state;
    assert_int_equal(lt_records_open(&c->records), LT_OK);
    told = true;
    done(c, &send, 1000, 2000);
    assert_true(fabs(lt_comm_moved(c) - 1000e-9) < 1e-15);
    done(c, &send, 3000, 4000);
    done(c, &send, 3500, 4500); /* Half of it is already counted. */
    assert_true(fabs(lt_comm_moved(c) - 1500e-9) < 1e-15);
    done(c, &send, 3900, 4400); /* All of it is already counted. */
    done(c, &send, 4500, 4500);
    assert_true(lt_comm_moved(c) == 0.0);
    done(c, &recv, 5000, 6000);
    done(c, &alone, 5000, 6000);
    told = false;
    done(c, &send, 5000, 6000);
    assert_true(lt_comm_moved(c) == 0.0);
    told = true;
    done(c, &send, 5000, 6000); /* None of those has moved the end of what is counted. */
    assert_true(fabs(lt_comm_moved(c) - 1000e-9) < 1e-15);
    lt_records_close(&c->records);
}

static void a_transport_measures_if_it_can(void **state) {
    static const lt_transport can = {.name = "can", .measure = measures}, cannot = {.name = "not"};
    (void)state;
    n_measured = 0;
    assert_int_equal(lt_comm_measure(telling(&can), true, false), LT_OK);
    assert_int_equal(n_measured, 10);
    assert_int_equal(lt_comm_measure(telling(&can), false, false), LT_OK);
    assert_int_equal(n_measured, 11);
    assert_int_equal(lt_comm_measure(telling(&can), true, true), LT_ERR_UNSUPPORTED);
    assert_int_equal(n_measured, 111);
    assert_int_equal(lt_comm_measure(telling(&cannot), true, true), LT_OK);
    assert_int_equal(lt_comm_measure(telling(NULL), true, true), LT_OK);
    assert_int_equal(n_measured, 111);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits_for_a_late_rank),
        cmocka_unit_test(transfers_are_counted_once),
        cmocka_unit_test(calls_are_recalled),
        cmocka_unit_test(spans_are_kept),
        cmocka_unit_test(spans_nest),
        cmocka_unit_test(times_that_overlap_count_once),
        cmocka_unit_test(a_transport_measures_if_it_can),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
