/* A rank that does not call, calls something else, fails or gives up: every other rank fails
 * within the deadline, with a message that names the rank, and the records agree. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "mpirun.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "comm/rounds.h"
#include "lateen/comm.h"

#define N 4

typedef struct {
    int culprit;
    lt_err errs[N];
    char messages[N][512];
    double seconds[N];
    atomic_int n_kept;
} outcome;

static lt_err open_all(lt_group **g, lt_comm *c) {
    const int ranks[N] = {0, 1, 2, 3};
    return lt_group_open(g, c, "all", ranks, N);
}

/* Record how a rank's verb ended, and return LT_OK: only failures of the others may end the world
 * here. */
static void keep(outcome *o, lt_comm *c, lt_err err, double start_s) {
    const int r = lt_comm_rank(c);
    o->errs[r] = err;
    o->seconds[r] = lt_clock_s() - start_s;
    (void)snprintf(o->messages[r], sizeof o->messages[r], "%s",
                   err != LT_OK ? lt_error_message() : "");
    atomic_fetch_add(&o->n_kept, 1);
}

static lt_err late_rank(lt_comm *c, void *ctx) {
    outcome *o = ctx;
    float x = 1.0f;
    lt_group *g;
    double start_s;
    LT_TRY(open_all(&g, c));
    LT_TRY(lt_all_reduce(g, &x, &x, 1, LT_F32, LT_REDUCE_SUM, NULL));
    start_s = lt_clock_s();
    while (lt_comm_rank(c) == o->culprit && atomic_load(&o->n_kept) < N - 1 &&
           lt_clock_s() < start_s + 60.0) {
        (void)usleep(1000); /* Until the deadline of the others has passed. */
    }
    keep(o, c, lt_all_reduce(g, &x, &x, 1, LT_F32, LT_REDUCE_SUM, NULL), start_s);
    return LT_OK;
}

static void a_missing_rank_is_named(void **state) {
    char dir[] = "/tmp/lt_comm_XXXXXX", want[96], blame[4096];
    (void)state;
    assert_non_null(mkdtemp(dir));
    for (int culprit = 0; culprit < N; culprit++) {
        outcome o = {.culprit = culprit};
        const lt_comm_options options = {.deadline_s = 1.0, .record_dir = dir, .epoch = 5};
        assert_int_equal(lt_comm_run_threads(N, &options, late_rank, &o), LT_OK);
        (void)snprintf(want, sizeof want, "group all (4 members): rank %d (at call 1) did not come",
                       culprit);
        for (int r = 0; r < N; r++) {
            assert_int_equal(o.errs[r], LT_ERR_REMOTE);
            assert_non_null(strstr(o.messages[r], want));
            assert_true(r == culprit || o.seconds[r] < 20.0);
        }
        assert_int_equal(lt_comm_blame(dir, blame, sizeof blame), LT_OK);
        (void)snprintf(want, sizeof want, "rank %d did not come to it", culprit);
        assert_non_null(strstr(blame, want));
        for (int r = 0; r < N; r++) {
            (void)snprintf(want, sizeof want, "rank %d did not come to it", r);
            assert_true(r == culprit || strstr(blame, want) == NULL);
        }
    }
    assert_int_equal(lt_file_remove_tree(dir), LT_OK);
}

typedef struct {
    outcome o;
    int how;
} different;

/* Ways to differ: the verb, the count, the type, the root, the reduction. */
static lt_err differ_rank(lt_comm *c, void *ctx) {
    different *d = ctx;
    const bool other = lt_comm_rank(c) == d->o.culprit;
    float x[8] = {0};
    lt_group *g;
    lt_err err;
    LT_TRY(open_all(&g, c));
    const double start_s = lt_clock_s();
    if (!other) {
        err = d->how == 3 ? lt_broadcast(g, x, 4, LT_F32, 0, NULL)
                          : lt_all_reduce(g, x, x, 4, LT_F32, LT_REDUCE_SUM, NULL);
    } else {
        err = d->how == 0   ? lt_barrier(g)
              : d->how == 1 ? lt_all_reduce(g, x, x, 5, LT_F32, LT_REDUCE_SUM, NULL)
              : d->how == 2 ? lt_all_reduce(g, x, x, 4, LT_I32, LT_REDUCE_SUM, NULL)
              : d->how == 3 ? lt_broadcast(g, x, 4, LT_F32, 1, NULL)
                            : lt_all_reduce(g, x, x, 4, LT_F32, LT_REDUCE_MAX, NULL);
    }
    keep(&d->o, c, err, start_s);
    return LT_OK;
}

static void a_rank_that_calls_something_else_is_named(void **state) {
    (void)state;
    for (int how = 0; how < 5; how++) {
        for (int culprit = 0; culprit < N; culprit++) {
            different d = {.o.culprit = culprit, .how = how};
            char rank[32];
            assert_int_equal(lt_comm_run_threads(N, NULL, differ_rank, &d), LT_OK);
            (void)snprintf(rank, sizeof rank, "rank %d calls", culprit);
            for (int r = 0; r < N; r++) {
                assert_int_equal(d.o.errs[r], LT_ERR_REMOTE);
                assert_non_null(strstr(d.o.messages[r], "call 1 of group all differs"));
                assert_non_null(strstr(d.o.messages[r], rank));
                assert_true(d.o.seconds[r] < 20.0);
            }
        }
    }
}

/* A receive that expects another number than is sent, and counts of all_to_all that do not
 * match. */
static lt_err unequal_rank(lt_comm *c, void *ctx) {
    different *d = ctx;
    const int own = lt_comm_rank(c);
    int64_t sends[N] = {1, 1, 1, 1}, receives[N] = {1, 1, 1, 1};
    int32_t x[8] = {0}, y[8];
    lt_group *g;
    lt_err err;
    LT_TRY(open_all(&g, c));
    const double start_s = lt_clock_s();
    if (d->how == 0) {
        err = own == 0   ? lt_send(g, 1, x, 3, LT_I32, NULL)
              : own == 1 ? lt_recv(g, 0, y, 4, LT_I32, NULL)
                         : lt_barrier(g);
    } else {
        sends[2] += own == 0; /* Rank 0 sends 2 to rank 2, which expects 1. */
        err = lt_all_to_all(g, y, receives, x, sends, LT_I32, NULL);
    }
    keep(&d->o, c, err, start_s);
    return LT_OK;
}

static void unequal_counts_are_named(void **state) {
    static const char *const says[] = {"rank 0 sends 3 I32, rank 1 awaits 4 I32",
                                       "rank 0 sends 2 elements to rank 2, which awaits 1"};
    (void)state;
    for (int how = 0; how < 2; how++) {
        different d = {.how = how};
        assert_int_equal(lt_comm_run_threads(N, NULL, unequal_rank, &d), LT_OK);
        for (int r = 0; r < N; r++) {
            assert_int_equal(d.o.errs[r], LT_ERR_REMOTE);
            assert_non_null(strstr(d.o.messages[r], says[how]));
        }
    }
}

/* A rank whose own work fails ends the world; its failure is the one that is reported. */
static lt_err broken_rank(lt_comm *c, void *ctx) {
    lt_group *g;
    (void)ctx;
    LT_TRY(open_all(&g, c));
    if (lt_comm_rank(c) == 2) {
        LT_FAIL(LT_ERR_IO, "shard 17: no such file");
    }
    return lt_barrier(g);
}

/* Are all of these bytes, which have no final zero, still the '#' that the test wrote? */
static bool untouched(const char *from, const char *end) {
    while (from < end && *from == '#') {
        from++;
    }
    return from == end;
}

/* Ranks 0 to 39 are missing, the odd ones from two messages each: their names fill the buffer,
 * and nothing is written past it. */
static void names_of_missing_ranks_fit_the_buffer(void **state) {
    static const char all[] = "rank 0, rank 1, rank 2, rank 3, rank 4 did not come";
    lt_transfer list[60];
    lt_rounds w = {.transfers = list};
    const lt_call call = {.kind = LT_CALL_ALL_REDUCE};
    char out[512];
    (void)state;
    for (int r = 0; r < 40; r++) {
        for (int twice = 0; twice <= r % 2; twice++) {
            list[w.n_transfers++] = (lt_transfer){.request = &w, .rank = r};
        }
    }
    for (size_t room = 1; room < 400; room++) {
        memset(out, '#', sizeof out);
        lt_rounds_missing(&w, &call, out, room);
        assert_true(strlen(out) < room);
        assert_true(untouched(out + room, out + sizeof out));
    }
    w.n_transfers = 7; /* Ranks 0 to 4. */
    lt_rounds_missing(&w, &call, out, sizeof out);
    assert_string_equal(out, all);
    list[0].request = list[3].request = NULL; /* Ranks 0 and 2 have called. */
    lt_rounds_missing(&w, &call, out, sizeof out);
    assert_string_equal(out, "rank 1, rank 3, rank 4 did not come");
}

/* The same for ranks as threads, while rank 0 waits for the others. */
static lt_err waits_for_three(lt_comm *c, void *ctx) {
    static const char all[] =
        "rank 1 (at call 0), rank 2 (at call 0), rank 3 (at call 0) did not come";
    atomic_bool *seen = ctx;
    const lt_call *call = &c->calls[1 % LT_COMM_AHEAD]; /* The first call. */
    float x = 1.0f;
    char out[512];
    lt_comm_work w;
    lt_group *g;
    LT_TRY(open_all(&g, c));
    while (lt_comm_rank(c) != 0 && !atomic_load(seen)) {
        (void)usleep(1000);
    }
    LT_TRY(lt_all_reduce(g, &x, &x, 1, LT_F32, LT_REDUCE_SUM, &w));
    while (lt_comm_rank(c) == 0 && !atomic_load(seen)) {
        bool fits = true;
        (void)pthread_mutex_lock(c->lock);
        for (size_t room = 1; room < 200 && call->phase == 1; room++) {
            memset(out, '#', sizeof out);
            c->transport->missing(call, out, room);
            fits = fits && strlen(out) < room && untouched(out + room, out + sizeof out);
        }
        atomic_store(seen, call->phase == 1);
        (void)pthread_mutex_unlock(c->lock);
        if (!fits || (atomic_load(seen) && strcmp(out, all) != 0)) {
            LT_FAIL(LT_ERR_STATE, "'%.200s'", out);
        }
    }
    return lt_comm_wait(c, w);
}

static void names_of_missing_threads_fit_the_buffer(void **state) {
    atomic_bool seen = false;
    (void)state;
    if (lt_comm_run_threads(N, NULL, waits_for_three, &seen) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

static void the_first_failure_is_reported(void **state) {
    const double start_s = lt_clock_s();
    (void)state;
    assert_int_equal(lt_comm_run_threads(N, NULL, broken_rank, NULL), LT_ERR_IO);
    assert_string_equal(lt_error_message(), "rank 2: shard 17: no such file");
    assert_true(lt_clock_s() - start_s < 20.0);
}

/* After an abort every verb fails at once, on every rank, with the first reason; a message that
 * was received earlier makes no rank wait. */
static lt_err abort_rank(lt_comm *c, void *ctx) {
    outcome *o = ctx;
    static float big[N][1 << 16];
    float *x = big[lt_comm_rank(c)];
    lt_comm_work w;
    lt_group *g;
    LT_TRY(open_all(&g, c));
    if (lt_comm_rank(c) == 0) {
        LT_TRY(lt_send(g, 1, x, 1 << 16, LT_F32, NULL));
    } else if (lt_comm_rank(c) == 1) {
        LT_TRY(lt_recv(g, 0, x, 1 << 16, LT_F32, NULL));
    }
    const double start_s = lt_clock_s();
    if (lt_comm_rank(c) == 1) {
        (void)usleep(50000);
        lt_comm_abort(c, "enough");
        lt_comm_abort(c, "more than enough");
    } else {
        for (int i = 0; i < 3; i++) {
            if (lt_all_reduce(g, x, x, 1 << 16, LT_F32, LT_REDUCE_SUM, &w) != LT_OK) {
                break;
            }
        }
    }
    keep(o, c, lt_barrier(g), start_s);
    return LT_OK;
}

static void an_abort_reaches_all(void **state) {
    outcome o = {0};
    (void)state;
    assert_int_equal(lt_comm_run_threads(N, NULL, abort_rank, &o), LT_OK);
    for (int r = 0; r < N; r++) {
        assert_int_equal(o.errs[r], LT_ERR_REMOTE);
        assert_string_equal(o.messages[r], "enough");
        assert_true(o.seconds[r] < 20.0);
    }
}

static void blame_of_bad_folders(void **state) {
    char dir[] = "/tmp/lt_blame_XXXXXX", path[LT_PATH_BYTES], text[256];
    static const char head[] = "{\"epoch\": 1, \"rank\": 0, \"size\": 2, \"reason\": \"x\"}\n";
    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(lt_comm_blame(dir, text, sizeof text), LT_ERR_NOT_FOUND);
    assert_int_equal(lt_path_join(path, dir, "rank-0.jsonl"), LT_OK);
    assert_int_equal(lt_file_write_atomic(path, head, strlen(head)), LT_OK);
    assert_int_equal(lt_comm_blame(dir, text, sizeof text), LT_OK);
    assert_non_null(strstr(text, "rank 1 left no record"));
    assert_int_equal(lt_comm_blame(dir, text, 10), LT_OK);
    assert_int_equal(strlen(text), 9);
    assert_int_equal(lt_file_write_atomic(path, "{}\n[1]\n", 7), LT_OK);
    assert_int_equal(lt_comm_blame(dir, text, sizeof text), LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), "rank-0.jsonl:2"));
    assert_int_equal(lt_file_remove_tree(dir), LT_OK);
}

/* A start begins without records; those of the previous failure are kept, and no older ones. One
 * that a killed rank has left incomplete is removed. */
static void records_are_put_aside(void **state) {
    static const char *const names[] = {"rank-0.jsonl", "rank-12.jsonl", "rank-1.jsonl.tmp",
                                        "metrics.jsonl", "device/rank-0.jsonl"};
    char dir[] = "/tmp/lt_aside_XXXXXX", path[LT_PATH_BYTES], text[256];
    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(lt_records_put_aside(dir), LT_OK);
    assert_int_equal(lt_path_join(path, dir, "device"), LT_OK);
    assert_int_equal(lt_file_make_dirs(path), LT_OK);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(lt_path_join(path, dir, names[i]), LT_OK);
        assert_int_equal(lt_file_write_atomic(path, "x", 1), LT_OK);
    }
    assert_int_equal(lt_path_join(path, dir, "records-before"), LT_OK);
    for (int again = 0; again < 2; again++) {
        /* There is nothing new, so the old ones stay. */
        assert_int_equal(lt_records_put_aside(dir), LT_OK);
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            const bool moved = i != 2 && i != 3;
            assert_int_equal(lt_path_join(path, dir, names[i]), LT_OK);
            assert_int_equal(lt_file_exists(path), i == 3);
            (void)snprintf(path, sizeof path, "%s/records-before/%s", dir, names[i]);
            assert_int_equal(lt_file_exists(path), moved);
        }
    }
    assert_int_equal(lt_comm_blame(dir, text, sizeof text), LT_ERR_NOT_FOUND);
    assert_non_null(strstr(lt_error_message(), "an earlier start are in "));
    assert_int_equal(lt_path_join(path, dir, "rank-3.jsonl"), LT_OK);
    assert_int_equal(lt_file_write_atomic(path, "x", 1), LT_OK);
    assert_int_equal(lt_records_put_aside(dir), LT_OK);
    (void)snprintf(path, sizeof path, "%s/records-before/rank-0.jsonl", dir);
    assert_false(lt_file_exists(path));
    (void)snprintf(path, sizeof path, "%s/records-before/rank-3.jsonl", dir);
    assert_true(lt_file_exists(path));
    assert_int_equal(lt_file_remove_tree(dir), LT_OK);
}

/* ---- The same between processes -------------------------------------------------------------- */

/* A rank of mpirun: in its second call rank 2 of 4 comes late, stops, calls something else or
 * aborts; the others write how their calls ended to files. */
static lt_err process_rank(lt_comm *c, const char *how) {
    const bool culprit = lt_comm_rank(c) == 2;
    float x[8] = {0};
    lt_group *g;
    LT_TRY(open_all(&g, c));
    LT_TRY(lt_all_reduce(g, x, x, 4, LT_F32, LT_REDUCE_SUM, NULL));
    if (culprit && strcmp(how, "late") == 0) {
        (void)usleep(8000000);
    } else if (culprit && strcmp(how, "stop") == 0) {
        (void)raise(SIGSTOP);
    } else if (culprit && strcmp(how, "abort") == 0) {
        lt_comm_abort(c, "rank 2: the disk is full");
    }
    LT_TRY(lt_all_reduce(g, x, x, culprit && strcmp(how, "differ") == 0 ? 5 : 4, LT_F32,
                         LT_REDUCE_SUM, NULL));
    return lt_barrier(g);
}

static int as_process(const char *how, const char *dir) {
    const lt_comm_options o = {.deadline_s = 3.0, .record_dir = dir, .check = true};
    char path[LT_PATH_BYTES];
    lt_comm *c = NULL;
    lt_err err = lt_comm_open(&c, &o);
    if (err == LT_OK) {
        err = process_rank(c, how);
    }
    if (err != LT_OK && c != NULL) {
        (void)snprintf(path, sizeof path, "%s/said-%d", dir, lt_comm_rank(c));
        (void)!lt_file_write_atomic(path, lt_error_message(), strlen(lt_error_message()));
        (void)usleep(2500000); /* mpirun ends all processes when the first one ends. */
    }
    lt_comm_close(c);
    return err == LT_ERR_REMOTE ? 3 : 4;
}

static void processes_name_the_rank_that_fails(void **state) {
    static const struct {
        const char *how, *says;
    } cases[] = {{"late", "all_reduce 2 of group all (4 members): rank 2 did not come"},
                 {"stop", "all_reduce 2 of group all (4 members): rank 2 did not come"},
                 {"differ", "call 2 of group all differs"},
                 {"abort", "rank 2: the disk is full"}};
    (void)state;
    if (!mpirun_is_there()) {
        skip();
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[] = "/tmp/lt_comm_XXXXXX", arg[128], blame[4096];
        const double start_s = lt_clock_s();
        assert_non_null(mkdtemp(dir));
        (void)snprintf(arg, sizeof arg, "%s %s 2>/dev/null", cases[i].how, dir);
        assert_int_not_equal(mpirun(N, arg), 0);
        assert_true(lt_clock_s() - start_s < 120.0);
        for (int r = 0; r < N; r++) {
            char path[LT_PATH_BYTES], name[32], *text = NULL;
            size_t bytes;
            if (r == 2 && i < 2) {
                continue; /* It may end before it can write anything. */
            }
            (void)snprintf(name, sizeof name, "said-%d", r);
            assert_int_equal(lt_path_join(path, dir, name), LT_OK);
            if (lt_file_read(&text, &bytes, path, 4096) != LT_OK ||
                strstr(text, cases[i].says) == NULL) {
                fail_msg("%s: rank %d says: %s", cases[i].how, r, text != NULL ? text : "nothing");
            }
            free(text);
        }
        assert_int_equal(lt_comm_blame(dir, blame, sizeof blame), LT_OK);
        assert_non_null(strstr(blame, "waits in all_reduce 2 of group all"));
        assert_int_equal(lt_file_remove_tree(dir), LT_OK);
    }
}

int main(int argc, char **argv) {
    if (lt_comm_under_mpi() && argc == 3) {
        return as_process(argv[1], argv[2]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_rank_is_named),
        cmocka_unit_test(a_rank_that_calls_something_else_is_named),
        cmocka_unit_test(unequal_counts_are_named),
        cmocka_unit_test(names_of_missing_ranks_fit_the_buffer),
        cmocka_unit_test(names_of_missing_threads_fit_the_buffer),
        cmocka_unit_test(the_first_failure_is_reported),
        cmocka_unit_test(an_abort_reaches_all),
        cmocka_unit_test(blame_of_bad_folders),
        cmocka_unit_test(records_are_put_aside),
        cmocka_unit_test(processes_name_the_rank_that_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
