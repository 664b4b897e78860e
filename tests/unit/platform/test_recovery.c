/* What a launch writes about its attempts to events.jsonl: which rank failed, how, at which step,
 * and its last output; stragglers and suspects; how long each phase of a recovery took, and how
 * many steps were lost. The test program is its own rank, and shows on the board what the test
 * wants. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "comm/board.h"
#include "comm/shm.h"
#include "lateen/comm.h"
#include "platform/agent/launch.h"

/* Events of this kind, in order; "": all. The caller owns the reference. */
static json_t *events_of(const char *dir, const char *kind) {
    char path[LT_PATH_BYTES], *text = NULL, *rest = NULL;
    json_t *all = json_array();
    size_t bytes;
    if (lt_path_join(path, dir, "events.jsonl") == LT_OK &&
        lt_file_read(&text, &bytes, path, 1 << 20) == LT_OK) {
        for (char *line = strtok_r(text, "\n", &rest); line != NULL;
             line = strtok_r(NULL, "\n", &rest)) {
            json_t *e = json_loads(line, 0, NULL);
            const char *is = json_string_value(json_object_get(e, "event"));
            if (is != NULL && (kind[0] == '\0' || strcmp(is, kind) == 0)) {
                json_array_append(all, e);
            }
            json_decref(e);
        }
    }
    free(text);
    return all;
}

/* ---- A rank ---------------------------------------------------------------------------------- */

/* If the events do not come, the rank ends with a status that the test does not expect. */
static void wait_for(const char *dir, const char *kind, size_t n) {
    const double until_s = lt_clock_s() + 20;
    bool come = false;
    for (; !come && lt_clock_s() < until_s; (void)usleep(10000)) {
        json_t *events = events_of(dir, kind);
        come = json_array_size(events) >= n;
        json_decref(events);
    }
    if (!come) {
        _exit(99);
    }
}

/* Steps 0 to 7, during which rank 1 dies. What a rank shows is seen before it continues. */
static void first_attempt(lt_board *b, int rank, const char *dir) {
    lt_board_phase(b, LT_PHASE_LOADED);
    for (int i = 0; i <= 7; i++) {
        lt_board_step(b, i);
    }
    if (rank == 0) {
        (void)sleep(60);
    }
    lt_board_slow(b, 0.5);
    wait_for(dir, "straggler", 1);
    lt_board_slow(b, 0);
    wait_for(dir, "straggler", 2);
    lt_board_suspect(b, 6);
    wait_for(dir, "suspect", 1);
    (void)fprintf(stderr, "last words\n");
    (void)usleep(300000);
    (void)raise(SIGKILL);
}

/* From the state after step 4 on. Rank 1 is the last to start and to load its state, rank 0 to
 * connect, each time 60 ms after the last phase of the other. */
static void second_attempt(lt_board *b, int rank) {
    const double until_s = lt_clock_s() + 20;
    lt_board_step(b, 4);
    for (int phase = LT_PHASE_STARTED; phase <= LT_PHASE_LOADED; phase++) {
        if (phase % 2 == rank) {
            while ((int)lt_board_seen(b, 1 - rank).phase < phase - 1 && lt_clock_s() < until_s) {
                (void)usleep(1000);
            }
            (void)usleep(60000);
        }
        lt_board_phase(b, (lt_phase)phase);
    }
    for (int i = 5; i <= 8; i++) {
        (void)usleep(60000);
        lt_board_step(b, i);
    }
    (void)usleep(500000);
}

/* Returns the status with which the rank ends. */
static int play(lt_board *b, const char *how, int rank, const char *dir) {
    const bool first = (strtoull(getenv(LT_ENV_EPOCH), NULL, 10) & 0xffffffffu) == 1;
    if (rank == 0) {
        lt_board_folder(b, dir);
    }
    if (strcmp(how, "recovers") == 0 && first) {
        first_attempt(b, rank, dir);
    } else if (strcmp(how, "recovers") == 0) {
        second_attempt(b, rank);
    } else if (strcmp(how, "told") == 0 && first) {
        lt_board_step(b, 3);
        lt_board_stop(b, SIGTERM);
        return LT_RANK_STOPPED;
    } else if (strcmp(how, "hangs") == 0 && first) {
        (void)sleep(60);
    } else if (strcmp(how, "creeps") == 0) {
        (void)usleep(400000);
        lt_board_phase(b, LT_PHASE_LOADED);
        for (int i = 0; i < 25; i++) {
            lt_board_step(b, i);
            (void)usleep(100000);
        }
    } else if (strcmp(how, "fails") == 0 && first) {
        (void)usleep(rank == 1 ? 1000 : 400000);
        return rank == 1 ? 9 : LT_RANK_LOST;
    }
    return 0;
}

static int as_rank(const char *how, const char *dir) {
    lt_board *b = lt_board_of_rank();
    const int status = b == NULL ? 3 : play(b, how, atoi(getenv(LT_ENV_RANK)), dir);
    lt_board_close(b);
    return status;
}

/* ---- The launcher ---------------------------------------------------------------------------- */

static int launch(const lt_launch_options *o, const char *how, const char *dir) {
    char word[] = "test_recovery", a[32], b[128];
    char *const argv[] = {word, a, b, NULL};
    int status = -1;
    (void)snprintf(a, sizeof a, "%s", how);
    (void)snprintf(b, sizeof b, "%s", dir);
    if (lt_launch(o, "/proc/self/exe", argv, &status) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    return status;
}

static const char *text_at(const json_t *e, const char *key) {
    const char *text = json_string_value(json_object_get(e, key));
    assert_non_null(text);
    return text;
}

static double number_at(const json_t *e, const char *key) {
    assert_true(json_is_number(json_object_get(e, key)));
    return json_number_value(json_object_get(e, key));
}

/* The i-th event of a kind, which has n. */
static json_t *event(const char *dir, const char *kind, size_t i, size_t n) {
    json_t *events = events_of(dir, kind), *e;
    if (json_array_size(events) != n) {
        fail_msg("%zu events %s, not %zu", json_array_size(events), kind, n);
    }
    e = json_incref(json_array_get(events, i));
    json_decref(events);
    return e;
}

static void a_recovery_is_recorded(void **state) {
    static const char *const phases[] = {"detect",  "fence", "decide",   "relaunch",
                                         "connect", "load",  "recompute"};
    enum { PHASES = sizeof phases / sizeof *phases };
    char dir[] = "/tmp/lt_recovery_XXXXXX";
    const lt_launch_options o = {
        .n_ranks = 2, .retries = 2, .grace_s = 0.3, .beat_s = 0.1, .silent_s = 60.0};
    const double start_s = lt_clock_s();
    double sum_s = 0, seconds;
    json_t *e;
    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(launch(&o, "recovers", dir), 0);
    seconds = lt_clock_s() - start_s;
    for (size_t i = 0; i < 2; i++) {
        e = event(dir, "start", i, 2);
        assert_true(number_at(e, "ranks") == 2);
        assert_true(number_at(e, "attempt") == (double)(i + 1));
        json_decref(e);
        e = event(dir, "straggler", i, 2);
        assert_true(number_at(e, "rank") == 1 && number_at(e, "node") == -1);
        assert_true(json_is_true(json_object_get(e, "slow")) == (i == 0));
        assert_true(number_at(e, "share") == (i == 0 ? 0.5 : 0));
        json_decref(e);
    }
    e = event(dir, "suspect", 0, 1);
    assert_true(number_at(e, "rank") == 1 && number_at(e, "step") == 6);
    json_decref(e);
    e = event(dir, "fault", 0, 1);
    assert_string_equal(text_at(e, "kind"), "killed");
    assert_string_equal(text_at(e, "what"), "rank 1 was ended by signal 9 (Killed)");
    assert_true(number_at(e, "rank") == 1 && number_at(e, "step") == 7);
    assert_true(number_at(e, "attempt") == 1);
    assert_true(json_array_size(json_object_get(e, "words")) > 0);
    assert_string_equal(json_string_value(json_array_get(json_object_get(e, "words"), 0)),
                        "last words");
    json_decref(e);
    e = event(dir, "decision", 0, 1);
    assert_true(json_is_true(json_object_get(e, "again")) && number_at(e, "wait_s") == 0);
    json_decref(e);
    for (size_t i = 0; i < PHASES; i++) {
        e = event(dir, "phase", i, PHASES);
        assert_string_equal(text_at(e, "phase"), phases[i]);
        assert_true(number_at(e, "seconds") >= 0);
        assert_true(number_at(e, "attempt") == (i < 2 ? 1 : 2));
        /* The rank that does not end is killed after its grace period; each phase takes at least
         * 0.06 s, and so does each of the steps from 5 to 8, after step 7. */
        assert_true(number_at(e, "seconds") >= (i == 1 ? 0.25 : i == 6 ? 0.2 : i > 3 ? 0.05 : 0));
        assert_true(number_at(e, "seconds") < 8); /* LT_KILL_S, after which a rank is given up. */
        sum_s += number_at(e, "seconds");
        json_decref(e);
    }
    e = event(dir, "recovered", 0, 1);
    assert_true(number_at(e, "step") == 7 && number_at(e, "steps_lost") == 7 - 4);
    assert_true(number_at(e, "seconds") > sum_s - 1e-3 && number_at(e, "seconds") < sum_s + 1e-3);
    assert_true(sum_s > 0.6 && sum_s < seconds);
    json_decref(e);
    e = event(dir, "end", 0, 1);
    assert_true(number_at(e, "status") == 0);
    json_decref(e);
    assert_int_equal(lt_file_remove_tree(dir), LT_OK);
}

/* If a rank got a signal which the launcher did not get, the run does not end, because all have
 * saved. Of two ranks that end at once, the one that failed because of the other is not the
 * fault. Without a new step the next attempt waits. */
static void other_faults_are_recorded(void **state) {
    static const struct {
        const char *how, *kind, *what;
        double rank, step, wait_s;
    } cases[] = {{"told", "told", "a rank was asked to stop, and all have saved", -1, 3, 0},
                 {"hangs", "hang", "no rank made progress for 0.4 s", -1, -1, 1},
                 {"fails", "crash", "rank 1 ended with status 9", 1, -1, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[] = "/tmp/lt_recovery_XXXXXX";
        const lt_launch_options o = {.n_ranks = 2,
                                     .retries = 1,
                                     .hang_s = strcmp(cases[i].how, "hangs") == 0 ? 0.4 : 0,
                                     .grace_s = 0.3,
                                     .beat_s = 0.1,
                                     .silent_s = 60.0};
        json_t *e;
        assert_non_null(mkdtemp(dir));
        assert_int_equal(launch(&o, cases[i].how, dir), 0);
        e = event(dir, "fault", 0, 1);
        assert_string_equal(text_at(e, "kind"), cases[i].kind);
        assert_string_equal(text_at(e, "what"), cases[i].what);
        assert_true(number_at(e, "rank") == cases[i].rank);
        assert_true(number_at(e, "step") == cases[i].step);
        json_decref(e);
        e = event(dir, "decision", 0, 1);
        assert_true(json_is_true(json_object_get(e, "again")));
        assert_true(number_at(e, "wait_s") == cases[i].wait_s);
        json_decref(e);
        assert_int_equal(lt_file_remove_tree(dir), LT_OK);
    }
}

/* Ranks whose steps advance do not hang, however late the first step was. */
static void progress_is_no_fault(void **state) {
    char dir[] = "/tmp/lt_recovery_XXXXXX";
    const lt_launch_options o = {
        .n_ranks = 2, .retries = 1, .hang_s = 2.0, .grace_s = 0.3, .beat_s = 0.1, .silent_s = 60.0};
    json_t *e;
    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(launch(&o, "creeps", dir), 0);
    e = events_of(dir, "fault");
    assert_int_equal(json_array_size(e), 0);
    json_decref(e);
    assert_int_equal(lt_file_remove_tree(dir), LT_OK);
}

int main(int argc, char **argv) {
    if (argc == 3 && lt_comm_under_launch()) {
        return as_rank(argv[1], argv[2]);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_recovery_is_recorded),
                                       cmocka_unit_test(other_faults_are_recorded),
                                       cmocka_unit_test(progress_is_no_fault)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
