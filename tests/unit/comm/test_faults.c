/* What a world does when a rank does not come, calls something else, fails or gives up: every other
 * rank fails within the deadline, with a message that names it, and the records tell the same. */
#include <setjmp.h>
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
#include "lateen/comm.h"

#define N 4

typedef struct {
    int culprit;
    lt_err errs[N];
    char messages[N][512];
    double seconds[N];
} outcome;

static lt_err open_all(lt_group **g, lt_comm *c) {
    const int ranks[N] = {0, 1, 2, 3};
    return lt_group_open(g, c, "all", ranks, N);
}

/* Keep how a rank's verb ended, and go on: only the others' failures end the world here. */
static void keep(outcome *o, lt_comm *c, lt_err err, double start_s) {
    const int r = lt_comm_rank(c);
    o->errs[r] = err;
    o->seconds[r] = lt_clock_s() - start_s;
    (void)snprintf(o->messages[r], sizeof o->messages[r], "%s",
                   err != LT_OK ? lt_error_message() : "");
}

static lt_err late_rank(lt_comm *c, void *ctx) {
    outcome *o = ctx;
    float x = 1.0f;
    lt_group *g;
    double start_s;
    LT_TRY(open_all(&g, c));
    LT_TRY(lt_all_reduce(g, &x, &x, 1, LT_F32, LT_REDUCE_SUM, NULL));
    start_s = lt_clock_s();
    if (lt_comm_rank(c) == o->culprit) {
        (void)usleep(700000);
    }
    keep(o, c, lt_all_reduce(g, &x, &x, 1, LT_F32, LT_REDUCE_SUM, NULL), start_s);
    return LT_OK;
}

static void who_does_not_come_is_named(void **state) {
    char dir[] = "/tmp/lt_comm_XXXXXX", want[64], blame[4096];
    (void)state;
    assert_non_null(mkdtemp(dir));
    for (int culprit = 0; culprit < N; culprit++) {
        outcome o = {.culprit = culprit};
        const lt_comm_options options = {.deadline_s = 0.2, .record_dir = dir, .epoch = 5};
        assert_int_equal(lt_comm_run_threads(N, &options, late_rank, &o), LT_OK);
        (void)snprintf(want, sizeof want, "group all (4 members): rank %d (at call 1) did not come",
                       culprit);
        for (int r = 0; r < N; r++) {
            assert_int_equal(o.errs[r], LT_ERR_REMOTE);
            assert_non_null(strstr(o.messages[r], want));
            assert_true(r == culprit || o.seconds[r] < 0.6);
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

static void who_calls_something_else_is_named(void **state) {
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
                assert_true(d.o.seconds[r] < 5.0);
            }
        }
    }
}

/* A receive that awaits another number than is sent, and counts of all_to_all that do not fit. */
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
        sends[2] += own == 0; /* Rank 0 sends 2 to rank 2, which awaits 1. */
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

/* A rank whose own work fails ends the world; its failure is the one that is told. */
static lt_err broken_rank(lt_comm *c, void *ctx) {
    lt_group *g;
    (void)ctx;
    LT_TRY(open_all(&g, c));
    if (lt_comm_rank(c) == 2) {
        LT_FAIL(LT_ERR_IO, "shard 17: no such file");
    }
    return lt_barrier(g);
}

static void the_first_failure_is_told(void **state) {
    const double start_s = lt_clock_s();
    (void)state;
    assert_int_equal(lt_comm_run_threads(N, NULL, broken_rank, NULL), LT_ERR_IO);
    assert_string_equal(lt_error_message(), "rank 2: shard 17: no such file");
    assert_true(lt_clock_s() - start_s < 5.0);
}

/* After an abort every verb fails at once, on every rank, with the first reason. */
static lt_err abort_rank(lt_comm *c, void *ctx) {
    outcome *o = ctx;
    static float big[N][1 << 16];
    float *x = big[lt_comm_rank(c)];
    lt_comm_work w;
    lt_group *g;
    LT_TRY(open_all(&g, c));
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
        assert_true(o.seconds[r] < 5.0);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_does_not_come_is_named),
        cmocka_unit_test(who_calls_something_else_is_named),
        cmocka_unit_test(unequal_counts_are_named),
        cmocka_unit_test(the_first_failure_is_told),
        cmocka_unit_test(an_abort_reaches_all),
        cmocka_unit_test(blame_of_bad_folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
