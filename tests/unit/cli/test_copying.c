/* How verbs show copies: a line of JSON at most once a second, whose rate and remaining time follow
 * from the bytes and the clock; and which signals stop a copy, and what they do besides. */
#include "unit/cli/verb_run.h"

#include <signal.h>

#include "base/clock.h"
#include "base/error.h"
#include "cli/platform/copying.h"

static const int all[] = {SIGINT, SIGTERM, SIGHUP};
enum { SIGNALS = sizeof all / sizeof *all };

static void (*handler_of(int number))(int) {
    struct sigaction is;
    assert_int_equal(sigaction(number, NULL, &is), 0);
    return is.sa_handler;
}

static void handle(int number, void (*how)(int)) {
    const struct sigaction own = {.sa_handler = how};
    assert_int_equal(sigaction(number, &own, NULL), 0);
}

static lt_copy_report report(int64_t done, int64_t moved) {
    return (lt_copy_report){.n_files = 3,
                            .n_files_done = 1,
                            .total_bytes = 9000,
                            .done_bytes = done,
                            .moved_bytes = moved};
}

/* ---- Lines ---- */

/* 4,000 bytes were there already. 2,000 are copied in a little more than a second, and 3,000 are
 * left. */
static int tell(int argc, char **argv) {
    lt_copy_options o = lt_copy_defaults();
    lt_copy_report r = report(4000, 0);
    double since_s;
    (void)argc, (void)argv;
    lt_copying_show(&o, true, true);
    since_s = lt_clock_s();
    assert_false(o.tick(o.ctx, &r));
    assert_false(o.tick(o.ctx, &r)); /* Too early for another line. */
    while (lt_clock_s() < since_s + 1.05) {
        (void)usleep(1000);
    }
    r = report(6000, 2000);
    assert_false(o.tick(o.ctx, &r));
    lt_copying_shown();
    return LT_EXIT_DONE;
}

static void lines_of_json(void **state) {
    (void)state;
    const double start_s = lt_clock_s();
    ran r = run_verb(tell, "tell");
    const double most_s = lt_clock_s() - start_s;
    char *second = strchr(r.out, '\n');
    assert_non_null(second);
    *second++ = '\0';
    json_t *first = json_loads(r.out, 0, NULL), *last = json_loads(second, 0, NULL);
    assert_true(first != NULL && last != NULL); /* Exactly two lines. */
    assert_string_equal(json_string_value(json_object_get(first, "event")), "progress");
    near_at(first, "files", 3);
    near_at(first, "files_done", 1);
    near_at(first, "bytes", 4000);
    near_at(first, "total_bytes", 9000);
    near_at(first, "rate_bytes_s", 0);
    assert_true(json_is_null(json_object_get(first, "eta_s"))); /* No rate is known yet. */
    near_at(last, "bytes", 6000);
    const double rate = number_at(last, "rate_bytes_s");
    if (!(rate >= 2000 / most_s - 1 && rate <= 2000 / 1.04)) {
        fail_msg("%g bytes/s: 2,000 bytes were copied in 1.05 to %g s", rate, most_s);
    }
    assert_true(number_at(last, "eta_s") > 3000 / (rate + 1) - 0.06 &&
                number_at(last, "eta_s") < 3000 / (rate - 1) + 0.06);
    json_decref(first);
    json_decref(last);
    ran_close(&r);
}

/* ---- Signals ---- */

static int handled;

static void count(int number) {
    handled += number;
}

static int stop_alone(int argc, char **argv) {
    (void)argc, (void)argv;
    for (int i = 0; i < SIGNALS; i++) {
        const lt_copy_report r = report(0, 0);
        lt_copy_options o = lt_copy_defaults();
        handle(all[i], count);
        lt_copying_show(&o, true, true);
        assert_false(o.tick(o.ctx, &r)); /* What stopped the copy before is forgotten. */
        handled = 0;
        assert_int_equal(raise(all[i]), 0);
        assert_true(o.tick(o.ctx, &r));
        assert_int_equal(handled, 0);
        lt_copying_shown();
        assert_true(handler_of(all[i]) == count);
        handle(all[i], SIG_DFL);
    }
    return LT_EXIT_DONE;
}

/* A process that does more than copy keeps its handlers, which run, too. */
static int stop_and_handle(int argc, char **argv) {
    (void)argc, (void)argv;
    for (int i = 0; i < SIGNALS; i++) {
        const lt_copy_report r = report(0, 0);
        lt_copy_options o = lt_copy_defaults();
        handle(all[i], count);
        lt_copying_show(&o, true, false);
        for (int k = 0; k < SIGNALS; k++) { /* The others have no handler, and get none. */
            assert_true((handler_of(all[k]) == SIG_DFL) == (k != i));
        }
        handled = 0;
        assert_int_equal(raise(all[i]), 0);
        assert_true(o.tick(o.ctx, &r));
        assert_int_equal(handled, all[i]);
        lt_copying_shown();
        assert_true(handler_of(all[i]) == count);
        handle(all[i], SIG_DFL);
    }
    return LT_EXIT_DONE;
}

/* nohup's SIGHUP stays ignored; a write beyond the limit of a file's size fails in a copy, and ends
 * the process afterwards as before. */
static int leave_ignored(int argc, char **argv) {
    lt_copy_options o = lt_copy_defaults();
    (void)argc, (void)argv;
    handle(SIGHUP, SIG_IGN);
    for (int alone = 0; alone < 2; alone++) {
        lt_copying_show(&o, true, alone != 0);
        assert_true(handler_of(SIGHUP) == SIG_IGN);
        assert_true((handler_of(SIGTERM) != SIG_DFL) == (alone != 0));
        assert_true(handler_of(SIGXFSZ) == SIG_IGN);
        lt_copying_shown();
        assert_true(handler_of(SIGHUP) == SIG_IGN && handler_of(SIGTERM) == SIG_DFL);
        assert_true(handler_of(SIGXFSZ) == SIG_DFL);
    }
    handle(SIGHUP, SIG_DFL);
    return LT_EXIT_DONE;
}

static void signals_that_stop_a_copy(void **state) {
    static int (*const verbs[])(int, char **) = {stop_alone, stop_and_handle, leave_ignored};
    (void)state;
    for (int i = 0; i < 3; i++) {
        ran r = run_verb(verbs[i], "copy");
        assert_int_equal(r.status, LT_EXIT_DONE);
        ran_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_of_json),
        cmocka_unit_test(signals_that_stop_a_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
