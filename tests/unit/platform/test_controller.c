/* The controller: the table of its states and events, budgets, back-off, and its decision for
 * each kind of fault. Times are invented. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "platform/agent/controller.h"

#define EXITED(status) ((status) << 8) /* As returned by waitpid. */

static void kinds_of_faults(void **state) {
    static const struct {
        int status;
        lt_fault_kind kind;
    } cases[] = {{EXITED(0), LT_FAULT_NONE},     {EXITED(75), LT_FAULT_NONE},
                 {EXITED(2), LT_FAULT_USAGE},    {EXITED(127), LT_FAULT_USAGE},
                 {EXITED(1), LT_FAULT_CRASH},    {EXITED(74), LT_FAULT_DEVICE},
                 {EXITED(76), LT_FAULT_LOST},    {EXITED(77), LT_FAULT_REPLACED},
                 {EXITED(78), LT_FAULT_CORRUPT}, {SIGSEGV, LT_FAULT_CRASH},
                 {SIGABRT, LT_FAULT_CRASH},      {SIGFPE, LT_FAULT_CRASH},
                 {SIGILL, LT_FAULT_CRASH},       {SIGBUS, LT_FAULT_DEVICE},
                 {SIGKILL, LT_FAULT_KILLED},     {SIGTERM, LT_FAULT_KILLED}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(lt_fault_of_status(cases[i].status), cases[i].kind);
    }
}

/* Every field of the table in the header. Decisions are checked below. */
static void table_of_states(void **state) {
    enum { __ = LT_CONTROL_STATES };
    static const int next[LT_CONTROL_STATES][LT_EVENTS] = {
        /* In the order of the events: READY, FAULT, EMPTY, LATE, STOP. */
        {LT_CONTROL_RUNNING, LT_CONTROL_ENDING, LT_CONTROL_OVER, LT_CONTROL_ENDING, __},
        {__, LT_CONTROL_ENDING, LT_CONTROL_OVER, LT_CONTROL_ENDING, __},
        {__, __, LT_CONTROL_OVER, LT_CONTROL_KILLING, __},
        {__, __, LT_CONTROL_OVER, LT_CONTROL_OVER, __},
        {__, __, __, LT_CONTROL_STARTING, LT_CONTROL_OVER},
        {__, __, __, __, __}};
    (void)state;
    for (int from = 0; from < LT_CONTROL_STATES; from++) {
        for (int on = 0; on < LT_EVENTS; on++) {
            lt_controller c;
            lt_controller_open(&c, &(lt_control_options){.grace_s = 1.0}, 0.0);
            c.state = (lt_control_state)from;
            (void)lt_controller_event(&c, (lt_event)on, 5.0);
            assert_int_equal(c.state, next[from][on] == __ ? from : next[from][on]);
        }
    }
}

static const lt_control_options usual = {.retries = 3, .grace_s = 10.0, .hang_s = 30.0};

/* One attempt that takes steps up to `step` and ends with a fault; returns the decision. */
static lt_action fault_at(lt_controller *c, lt_fault_kind kind, int status, int64_t step,
                          double *now_s) {
    const lt_fault f = {.kind = kind, .rank = 1, .status = status, .step = step};
    lt_controller_progress(c, step, *now_s += 1.0);
    assert_int_equal(lt_controller_event(c, LT_ON_READY, *now_s), LT_DO_NOTHING);
    assert_int_equal(lt_controller_fault(c, &f, *now_s += 1.0), LT_DO_TELL);
    return lt_controller_event(c, LT_ON_EMPTY, *now_s += 1.0);
}

static void begin(lt_controller *c, double *now_s) {
    *now_s = c->until_s;
    assert_int_equal(lt_controller_tick(c, *now_s), LT_DO_BEGIN);
}

static void budget(void **state) {
    lt_controller c;
    double now_s = 0.0;
    (void)state;
    lt_controller_open(&c, &usual, now_s);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(fault_at(&c, LT_FAULT_KILLED, SIGKILL, 10 + i, &now_s), LT_DO_WAIT);
        /* Each attempt took a new step, so there is no back-off. */
        assert_true(c.until_s == now_s);
        begin(&c, &now_s);
        assert_int_equal(c.attempt, i + 2);
    }
    assert_int_equal(fault_at(&c, LT_FAULT_KILLED, SIGKILL, 20, &now_s), LT_DO_END);
    assert_non_null(strstr(c.why, "all 3 retries"));
}

/* A missing path gives the same status each time, before any step; after some steps the run is
 * known to be right, and continues to its last retry. */
static void starts_that_fail(void **state) {
    enum { STATUS = 1 << 8, OTHER = 3 << 8 }; /* 1 and 3 as returned by waitpid. */
    const lt_control_options many = {.retries = 9, .grace_s = 1.0};
    lt_controller c;
    double now_s = 0.0;
    (void)state;
    lt_controller_open(&c, &many, now_s);
    for (int i = 0; i < 4; i++) { /* Another status begins a new count. */
        assert_int_equal(fault_at(&c, LT_FAULT_CRASH, i % 2 == 0 ? OTHER : STATUS, -1, &now_s),
                         LT_DO_WAIT);
        begin(&c, &now_s);
    }
    for (int i = 1; i < LT_SAME_STARTS - 1; i++) {
        assert_int_equal(fault_at(&c, LT_FAULT_CRASH, STATUS, -1, &now_s), LT_DO_WAIT);
        begin(&c, &now_s);
    }
    assert_int_equal(fault_at(&c, LT_FAULT_CRASH, STATUS, -1, &now_s), LT_DO_END);
    assert_non_null(strstr(c.why, "3 attempts in a row ended with status 1 before the first step"));
    lt_controller_open(&c, &many, now_s);
    assert_int_equal(fault_at(&c, LT_FAULT_KILLED, SIGKILL, 5, &now_s), LT_DO_WAIT);
    for (int i = 0; i < 8; i++) {
        begin(&c, &now_s);
        assert_int_equal(fault_at(&c, LT_FAULT_CRASH, STATUS, -1, &now_s), LT_DO_WAIT);
    }
    begin(&c, &now_s);
    assert_int_equal(fault_at(&c, LT_FAULT_CRASH, STATUS, -1, &now_s), LT_DO_END);
    assert_non_null(strstr(c.why, "all 9 retries"));
}

static void hardware_is_free(void **state) {
    lt_controller c;
    double now_s = 0.0;
    (void)state;
    lt_controller_open(&c, &usual, now_s);
    for (int i = 0; i < 50; i++) { /* With new steps, any number of times. */
        assert_int_equal(fault_at(&c, i % 2 == 0 ? LT_FAULT_SILENT : LT_FAULT_DEVICE, 0, i, &now_s),
                         LT_DO_WAIT);
        begin(&c, &now_s);
    }
    assert_int_equal(c.used, 0);
    for (int i = 0; i < LT_FREE_IN_A_ROW - 1; i++) {
        assert_int_equal(fault_at(&c, LT_FAULT_SILENT, 0, 49, &now_s), LT_DO_WAIT);
        begin(&c, &now_s);
    }
    assert_int_equal(fault_at(&c, LT_FAULT_SILENT, 0, 49, &now_s), LT_DO_END);
    assert_non_null(strstr(c.why, "without a new step"));
}

/* A run that grows is started again whatever the budgets, and loses no machine. */
static void a_run_that_grows(void **state) {
    const lt_control_options o = {.retries = 1, .grace_s = 1.0, .requeue = true};
    lt_controller c;
    double now_s = 0.0;
    (void)state;
    lt_controller_open(&c, &o, now_s);
    assert_int_equal(fault_at(&c, LT_FAULT_KILLED, SIGKILL, 3, &now_s), LT_DO_WAIT);
    begin(&c, &now_s);
    assert_int_equal(fault_at(&c, LT_FAULT_SILENT, 0, 3, &now_s), LT_DO_WAIT);
    begin(&c, &now_s);
    assert_int_equal(fault_at(&c, LT_FAULT_GROW, 0, 3, &now_s), LT_DO_WAIT);
    assert_int_equal(c.used, 1);
    assert_false(c.elsewhere);
}

/* Of two nested limits the outer one: a machine that fails again is left out. */
static void machines_are_left(void **state) {
    const lt_control_options one = {.retries = 3, .grace_s = 1.0, .requeue = true},
                             none = {.grace_s = 1.0, .requeue = true};
    lt_controller c;
    double now_s = 0.0;
    (void)state;
    lt_controller_open(&c, &one, now_s);
    assert_int_equal(fault_at(&c, LT_FAULT_DEVICE, 0, 4, &now_s), LT_DO_WAIT);
    begin(&c, &now_s);
    assert_int_equal(fault_at(&c, LT_FAULT_DEVICE, 0, 5, &now_s), LT_DO_WAIT); /* A new step. */
    begin(&c, &now_s);
    assert_int_equal(fault_at(&c, LT_FAULT_KILLED, SIGKILL, 5, &now_s), LT_DO_WAIT);
    begin(&c, &now_s);
    assert_false(c.elsewhere);
    assert_int_equal(fault_at(&c, LT_FAULT_SILENT, 0, 5, &now_s), LT_DO_END);
    assert_true(c.elsewhere);
    lt_controller_open(&c, &none, now_s);
    assert_int_equal(fault_at(&c, LT_FAULT_SILENT, 0, 4, &now_s), LT_DO_END);
    assert_true(c.elsewhere);
    lt_controller_open(&c, &none, now_s); /* A fault of the program itself. */
    assert_int_equal(fault_at(&c, LT_FAULT_CRASH, SIGSEGV, 4, &now_s), LT_DO_END);
    assert_false(c.elsewhere);
}

static void repeated_crashes(void **state) {
    static const struct {
        lt_fault_kind kind;
        int status;
        int64_t step;
        lt_action second;
    } cases[] = {{LT_FAULT_CRASH, SIGSEGV, 57, LT_DO_END},    /* The same again. */
                 {LT_FAULT_CRASH, SIGSEGV, 58, LT_DO_WAIT},   /* At another step, */
                 {LT_FAULT_CRASH, EXITED(1), 57, LT_DO_WAIT}, /* with another status. */
                 {LT_FAULT_KILLED, SIGKILL, 57, LT_DO_WAIT}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_controller c;
        double now_s = 0.0;
        lt_controller_open(&c, &usual, now_s);
        assert_int_equal(fault_at(&c, LT_FAULT_CRASH, SIGSEGV, 57, &now_s), LT_DO_WAIT);
        begin(&c, &now_s);
        assert_int_equal(fault_at(&c, cases[i].kind, cases[i].status, cases[i].step, &now_s),
                         cases[i].second);
        assert_true((cases[i].second == LT_DO_END) == (strstr(c.why, "after step 57") != NULL));
    }
}

static void what_is_never_tried_again(void **state) {
    const lt_fault_kind kinds_[] = {LT_FAULT_USAGE, LT_FAULT_REPLACED};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        lt_controller c;
        double now_s = 0.0;
        lt_controller_open(&c, &usual, now_s);
        assert_int_equal(fault_at(&c, kinds_[i], EXITED(2), 3, &now_s), LT_DO_END);
    }
}

static void back_off(void **state) {
    static const double waits_s[] = {0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0};
    const lt_control_options many = {.retries = 100, .grace_s = 1.0};
    lt_controller c;
    double now_s = 0.0;
    (void)state;
    lt_controller_open(&c, &many, now_s);
    /* Only the first attempt takes a step. */
    for (size_t i = 0; i < sizeof waits_s / sizeof *waits_s; i++) {
        assert_int_equal(fault_at(&c, LT_FAULT_KILLED, SIGKILL, 5, &now_s), LT_DO_WAIT);
        assert_true(c.until_s - now_s == waits_s[i]);
        assert_int_equal(lt_controller_tick(&c, c.until_s - 0.01), LT_DO_NOTHING);
        begin(&c, &now_s);
    }
    assert_int_equal(fault_at(&c, LT_FAULT_KILLED, SIGKILL, 6, &now_s), LT_DO_WAIT);
    assert_true(c.until_s == now_s); /* A new step ends the back-off. */
    assert_int_equal(lt_controller_event(&c, LT_ON_STOP, now_s), LT_DO_END);
}

static void deadlines(void **state) {
    lt_controller c;
    (void)state;
    lt_controller_open(&c, &usual, 100.0); /* Starting: no rank connects. */
    assert_int_equal(lt_controller_tick(&c, 129.9), LT_DO_NOTHING);
    lt_controller_progress(&c, -1, 129.9); /* One connects. */
    assert_int_equal(lt_controller_tick(&c, 159.8), LT_DO_NOTHING);
    assert_int_equal(lt_controller_tick(&c, 159.9), LT_DO_TELL);
    assert_int_equal(c.fault.kind, LT_FAULT_HANG);
    assert_int_equal(lt_controller_tick(&c, 169.8), LT_DO_NOTHING); /* They ignore it. */
    assert_int_equal(lt_controller_tick(&c, 169.9), LT_DO_KILL);
    assert_int_equal(lt_controller_tick(&c, 179.8), LT_DO_NOTHING); /* One cannot be killed. */
    assert_int_equal(lt_controller_tick(&c, 179.9), LT_DO_WAIT);
    assert_int_equal(lt_controller_tick(&c, 180.9), LT_DO_BEGIN);
    assert_int_equal(c.attempt, 2);
}

static void first_faults(void **state) {
    const lt_fault lost = {.kind = LT_FAULT_LOST, .rank = 0, .status = EXITED(76), .step = 4},
                   device = {.kind = LT_FAULT_DEVICE, .rank = 2, .status = EXITED(74), .step = 4},
                   killed = {.kind = LT_FAULT_KILLED, .rank = 3, .status = SIGKILL, .step = 4};
    lt_controller c;
    (void)state;
    lt_controller_open(&c, &usual, 0.0);
    assert_int_equal(lt_controller_fault(&c, &lost, 1.0), LT_DO_TELL);
    assert_int_equal(lt_controller_fault(&c, &device, 1.0), LT_DO_NOTHING); /* The cause. */
    assert_int_equal(lt_controller_fault(&c, &killed, 1.0), LT_DO_NOTHING);
    assert_int_equal(c.fault.rank, 2);
    assert_int_equal(lt_controller_event(&c, LT_ON_EMPTY, 2.0), LT_DO_WAIT);
    assert_int_equal(c.used, 0);
    lt_controller_open(&c, &usual, 0.0); /* A requested stop is not undone. */
    assert_int_equal(lt_controller_event(&c, LT_ON_STOP, 0.5), LT_DO_NOTHING);
    assert_int_equal(lt_controller_fault(&c, &killed, 1.0), LT_DO_TELL);
    assert_int_equal(lt_controller_event(&c, LT_ON_EMPTY, 2.0), LT_DO_END);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_of_faults),
        cmocka_unit_test(table_of_states),
        cmocka_unit_test(budget),
        cmocka_unit_test(starts_that_fail),
        cmocka_unit_test(hardware_is_free),
        cmocka_unit_test(a_run_that_grows),
        cmocka_unit_test(machines_are_left),
        cmocka_unit_test(repeated_crashes),
        cmocka_unit_test(what_is_never_tried_again),
        cmocka_unit_test(back_off),
        cmocka_unit_test(deadlines),
        cmocka_unit_test(first_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
