/* NCCL's transport over the emulated library (tests/emu/nccl.c): calls in progress, other
 * versions, ranks that differ, come late, stall, fail or die; and copies between GPUs
 * (comm/peer.h), which do most of its work on one machine, with the same ranks. The program is
 * its own rank, started by the launcher; what a rank reports goes into a folder. Skipped without
 * four GPUs, or with real ones, because only the emulation makes faults. */
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
#include "base/rng.h"
#include "platform/agent/launch.h"
#include "comm/shm.h"
#include "lateen/comm.h"
#include "tensor/backend.h"

#define N     4
#define CALLS 12
#define COUNT 3000

/* ---- A rank ---------------------------------------------------------------------------------- */

static void put(const char *dir, int rank, const char *text) {
    char path[LT_PATH_BYTES], file[64];
    (void)snprintf(file, sizeof file, "said-%d", rank);
    if (lt_path_join(path, dir, file) == LT_OK) {
        (void)!lt_file_write_atomic(path, text, strlen(text));
    }
}

/* Transfers of which one reads what another one brings, while the host waits for none: a sum over
 * pairs of ranks, and over the other pairs of those sums; then rows of all ranks, each of which
 * is read as soon as it has arrived. */
static lt_err chain(lt_comm *c, lt_device *d, lt_queue *q, float *x, lt_group *all) {
    const int own = lt_comm_rank(c), first[2] = {own & ~1, own | 1}, then[2] = {own & 1, own | 2};
    float host[COUNT], row[COUNT];
    void *rows;
    lt_group *a, *b;
    LT_TRY(lt_group_open(&a, c, "a", first, 2));
    LT_TRY(lt_group_open(&b, c, "b", then, 2));
    LT_TRY(d->backend->alloc(d, &rows, N * sizeof row, "rows"));
    for (int k = 0; k < CALLS; k++) {
        lt_comm_work work;
        for (int i = 0; i < COUNT; i++) {
            host[i] = (float)(own + i % 100 + k);
        }
        LT_TRY(d->backend->upload(q, x, host, sizeof host));
        LT_TRY(lt_all_reduce(a, x, x, COUNT, LT_F32, LT_REDUCE_SUM, &work));
        LT_TRY(lt_all_reduce(b, x, x, COUNT, LT_F32, LT_REDUCE_SUM, &work));
        LT_TRY(lt_comm_order(c, work, q));
        LT_TRY(d->backend->download(q, row, x, sizeof row));
        LT_TRY(d->backend->sync(q));
        for (int i = 0; i < COUNT; i++) {
            const float want = (float)(N * (i % 100 + k) + N * (N - 1) / 2);
            if (row[i] != want) {
                LT_FAIL(LT_ERR_STATE, "sum of sums %d of %d: %g, not %g", i, k, (double)row[i],
                        (double)want);
            }
        }
        LT_TRY(d->backend->upload(q, x, host, sizeof host));
        LT_TRY(lt_all_gather(all, rows, x, COUNT, LT_F32, &work));
        for (int step = 1; step < N; step++) {
            const int member = (own - step + N) % N;
            LT_TRY(lt_comm_order_member(c, work, member, q));
            LT_TRY(
                d->backend->download(q, row, (float *)rows + (size_t)member * COUNT, sizeof row));
            LT_TRY(d->backend->sync(q));
            for (int i = 0; i < COUNT; i++) {
                if (row[i] != (float)(member + i % 100 + k)) {
                    LT_FAIL(LT_ERR_STATE, "row of rank %d, %d of %d: %g", member, i, k,
                            (double)row[i]);
                }
            }
        }
        LT_TRY(lt_comm_order(c, work, q));
    }
    d->backend->release(d, rows, N * sizeof row);
    return lt_barrier(all);
}

/* Sums of small whole numbers, which are exact in any order. */
static lt_err work(lt_comm *c, lt_device *d, lt_queue *q, float *x, const char *how) {
    static const int ranks[N] = {0, 1, 2, 3};
    const int own = lt_comm_rank(c), n = lt_comm_size(c);
    float host[COUNT];
    lt_group *g;
    LT_TRY(lt_group_open(&g, c, "all", ranks, n));
    lt_comm_follow(c, q);
    if (strncmp(how, "chain", 5) == 0) {
        return chain(c, d, q, x, g);
    }
    for (int k = 0; k < CALLS; k++) {
        const bool culprit = own == 2 && k == 5;
        for (int i = 0; i < COUNT; i++) {
            host[i] = (float)(own + i % 100 + k);
        }
        if (culprit && strncmp(how, "late", 4) == 0) {
            (void)sleep(60); /* Until the launcher ends it, after the others. */
        }
        if (culprit && strcmp(how, "die") == 0) {
            (void)raise(SIGKILL);
        }
        LT_TRY(d->backend->upload(q, x, host, sizeof host));
        LT_TRY(lt_all_reduce(g, x, x, culprit && strcmp(how, "differ") == 0 ? 7 : COUNT, LT_F32,
                             LT_REDUCE_SUM, NULL));
        LT_TRY(d->backend->download(q, host, x, sizeof host));
        LT_TRY(d->backend->sync(q));
        for (int i = 0; i < COUNT; i++) {
            const float want = (float)(n * (i % 100 + k) + n * (n - 1) / 2);
            if (host[i] != want) {
                LT_FAIL(LT_ERR_STATE, "sum %d of %d: %g, not %g", i, k, (double)host[i],
                        (double)want);
            }
        }
    }
    return lt_barrier(g);
}

/* Opening uses as much memory of the GPU as was announced. */
static lt_err open_world(lt_comm **out, lt_comm *host, lt_device *d, const lt_comm_options *o) {
    const size_t announced = lt_comm_device_measure(lt_comm_size(host)).device_bytes;
    size_t before, after;
    LT_TRY(d->backend->memory_left(d, &before));
    LT_TRY(lt_comm_open_device(out, host, d, o));
    LT_TRY(d->backend->memory_left(d, &after));
    if (before - after != announced) {
        LT_FAIL(LT_ERR_STATE, "opening took %zu bytes of the GPU, not %zu", before - after,
                announced);
    }
    return LT_OK;
}

static lt_err run_rank(const char *how, int *rank) {
    const lt_comm_options o = {.deadline_s = 6.0, .check = strstr(how, "unchecked") == NULL};
    lt_comm *host = NULL, *c = NULL;
    lt_device *d = NULL;
    lt_queue *q = NULL;
    void *x = NULL;
    lt_err err = LT_OK;
    LT_TRY_DONE(lt_comm_open(&host, &o));
    *rank = lt_comm_rank(host);
    LT_TRY_DONE(lt_device_open(&d, LT_DEVICE_CUDA, strcmp(how, "same") == 0 ? 0 : *rank));
    LT_TRY_DONE(d->backend->queue_open(d, &q));
    LT_TRY_DONE(d->backend->alloc(d, &x, COUNT * sizeof(float), "x"));
    LT_TRY_DONE(open_world(&c, host, d, &o));
    LT_TRY_DONE(work(c, d, q, x, how));
done:
    if (err != LT_OK) {
        lt_failure f;
        lt_failure_keep(&f, err);
        lt_comm_close(c);
        lt_comm_close(host);
        return lt_failure_raise(&f); /* The process ends, and frees the rest. */
    }
    lt_comm_close(c);
    d->backend->release(d, x, COUNT * sizeof(float));
    d->backend->queue_close(q);
    lt_device_close(d);
    lt_comm_close(host);
    return LT_OK;
}

static int as_rank(const char *how, const char *dir) {
    int rank = atoi(getenv(LT_ENV_RANK));
    const lt_err err = run_rank(how, &rank);
    put(dir, rank, err == LT_OK ? "ok" : lt_error_message());
    /* The ranks' own messages are wanted, not the launcher's. */
    (void)usleep(err == LT_OK ? 0 : 300000);
    return err == LT_OK ? 0 : err == LT_ERR_REMOTE ? 76 : 1;
}

/* ---- The cases ------------------------------------------------------------------------------- */

static bool emulated(void) {
    const char *n = getenv("LATEEN_EMU_DEVICES");
    return n != NULL && atoi(n) >= N;
}

static int launch(const char *how, const char *dir) {
    const lt_launch_options o = {.n_ranks = N, .grace_s = 6.0, .beat_s = 0.2, .silent_s = 20.0};
    char word[] = "test_nccl", a[32], b[128];
    char *const argv[] = {word, a, b, NULL};
    int status = -1;
    (void)snprintf(a, sizeof a, "%s", how);
    (void)snprintf(b, sizeof b, "%s", dir);
    if (lt_launch(&o, "/proc/self/exe", argv, &status) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    return status;
}

/* Every rank of `who` (one bit each) reports `want`. */
static void check_case(const char *name, const char *how, int status, unsigned who,
                       const char *want) {
    char dir[] = "/tmp/lt_nccl_XXXXXX";
    const double start_s = lt_clock_s();
    int got;
    assert_non_null(mkdtemp(dir));
    got = launch(how, dir);
    if (got != status || lt_clock_s() - start_s > 45.0) {
        fail_msg("%s: status %d after %g s", name, got, lt_clock_s() - start_s);
    }
    for (int r = 0; r < N; r++) {
        char path[LT_PATH_BYTES], file[64], *text = NULL;
        size_t bytes;
        (void)snprintf(file, sizeof file, "said-%d", r);
        assert_int_equal(lt_path_join(path, dir, file), LT_OK);
        if ((who >> r & 1) != 0 &&
            (lt_file_read(&text, &bytes, path, 4096) != LT_OK || strstr(text, want) == NULL)) {
            fail_msg("%s: rank %d says: %s", name, r, text != NULL ? text : "nothing");
        }
        free(text);
    }
    assert_int_equal(lt_file_remove_tree(dir), LT_OK);
}

static void set(const char *name, const char *value) {
    if (value == NULL) {
        (void)unsetenv(name);
    } else {
        (void)setenv(name, value, 1);
    }
}

static void versions_and_progress(void **state) {
    static const struct {
        const char *how, *version, *polls, *says;
        int status;
    } cases[] = {{"work", "21800", "3", "ok", 0},
                 {"work", "23203", "7", "ok", 0},
                 {"unchecked", NULL, "1", "ok", 0},
                 {"chain", NULL, NULL, "ok", 0},
                 {"work", "21705", NULL, "NCCL 2.17.5 is too old; 2.18 or newer is needed", 1},
                 {"same", NULL, NULL, "Duplicate GPU detected", 76}};
    (void)state;
    if (!emulated()) {
        skip();
    }
    set("LATEEN_PEER_COPIES", "0");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set("LATEEN_EMU_NCCL_VERSION", cases[i].version);
        set("LATEEN_EMU_NCCL_POLLS", cases[i].polls);
        check_case(cases[i].says, cases[i].how, cases[i].status, 15, cases[i].says);
    }
    set("LATEEN_EMU_NCCL_VERSION", NULL);
    set("LATEEN_EMU_NCCL_POLLS", NULL);
    set("LATEEN_PEER_COPIES", NULL);
}

static void ranks_that_differ_or_are_late(void **state) {
    (void)state;
    if (!emulated()) {
        skip();
    }
    set("LATEEN_EMU_NCCL_STRICT", "0");
    for (int copies = 0; copies < 2; copies++) {
        set("LATEEN_PEER_COPIES", copies != 0 ? NULL : "0");
        check_case("late", "late", 76, 11, "rank 2 did not come");
        check_case("differ", "differ", 76, 11, "call 6 of group all differs");
    }
    set("LATEEN_EMU_NCCL_STRICT", NULL);
}

/* Only the words of the mailboxes show which rank is missing, and only the end of a world
 * releases the queues that wait for them. */
static void copies(void **state) {
    (void)state;
    if (!emulated()) {
        skip();
    }
    check_case("copies, unchecked", "unchecked", 0, 15, "ok");
    check_case("copies, one behind the other", "chain, unchecked", 0, 15, "ok");
    check_case("copies, late", "late, unchecked", 76, 11, "rank 2 did not come");
    check_case("copies, a rank dies", "die", 76, 11, "rank 2 was ended by signal 9");
}

/* Random faults for the seeds FAULT_SEEDS=A..B (1..8): each seed chooses a rank, a call of NCCL
 * and a kind. */
static void faults(void **state) {
    static const struct {
        const char *kind, *says;
    } kinds[] = {{"die", "rank %d was ended by signal 9"},
                 {"stall", "group all (4 members): "},
                 {"error", ""},
                 {"slow", "ok"}};
    const char *text = getenv("FAULT_SEEDS");
    int first = 1, last = 8;
    (void)state;
    if (text != NULL && (sscanf(text, "%d..%d", &first, &last) != 2 || last < first)) {
        fail_msg("FAULT_SEEDS is '%s', not A..B", text);
    }
    if (!emulated()) {
        skip();
    }
    set("LATEEN_PEER_COPIES", "0");
    for (int i = first; i <= last; i++) {
        lt_rng rng = {.seed = (uint64_t)i};
        const int rank = (int)lt_rng_below(&rng, N), call = 1 + (int)lt_rng_below(&rng, CALLS),
                  kind = i % 4;
        char value[64], name[96], says[96], seed[16];
        (void)snprintf(value, sizeof value, "%d:%d:%s", rank, call, kinds[kind].kind);
        (void)snprintf(name, sizeof name, "fault %d: %s", i, value);
        (void)snprintf(says, sizeof says, kinds[kind].says, rank);
        (void)snprintf(seed, sizeof seed, "%d", i);
        set("LATEEN_EMU_NCCL_FAULT", value);
        set("LATEEN_EMU_SEED", seed);
        check_case(name, "work", kind == 3 ? 0 : 76, kind == 0 ? 15u & ~(1u << rank) : 15u, says);
    }
    set("LATEEN_EMU_NCCL_FAULT", NULL);
    set("LATEEN_EMU_SEED", NULL);
    set("LATEEN_PEER_COPIES", NULL);
}

int main(int argc, char **argv) {
    if (argc == 3 && lt_comm_under_launch()) {
        return as_rank(argv[1], argv[2]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(versions_and_progress),
        cmocka_unit_test(ranks_that_differ_or_are_late),
        cmocka_unit_test(copies),
        cmocka_unit_test(faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
