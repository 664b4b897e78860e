/* The launcher: what its ranks get, which ranks learn of a failed rank, and how a launch ends.
 * The test program is its own rank: argv says what it does, and it writes its results to a
 * folder. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "platform/agent/launch.h"
#include "comm/board.h"
#include "comm/shm.h"
#include "lateen/comm.h"

#define N 4

/* ---- A rank ---------------------------------------------------------------------------------- */

static volatile sig_atomic_t stopped;

static void on_term(int number) {
    stopped = number;
}

static void put(const char *dir, const char *name, int rank, const char *text) {
    char path[LT_PATH_BYTES], file[64];
    (void)snprintf(file, sizeof file, "%s-%d", name, rank);
    if (lt_path_join(path, dir, file) == LT_OK) {
        (void)!lt_file_write_atomic(path, text, strlen(text));
    }
}

static lt_err sum(lt_comm *c, lt_group *g) {
    float x = (float)lt_comm_rank(c), want = 0.0f;
    for (int r = 0; r < lt_comm_size(c); r++) {
        want += (float)r;
    }
    LT_TRY(lt_all_reduce(g, &x, &x, 1, LT_F32, LT_REDUCE_SUM, NULL));
    if (x != want) {
        LT_FAIL(LT_ERR_STATE, "the sum is %g, not %g", (double)x, (double)want);
    }
    return LT_OK;
}

/* Leave a process behind, and note its pid and how many segments of memory the launcher holds. */
static void leave_a_mess(const char *dir, int attempt) {
    const pid_t pid = fork();
    char folder[64], text[64], target[LT_PATH_BYTES], path[LT_PATH_BYTES], **names = NULL;
    size_t n = 0;
    int segments = 0;
    if (pid == 0) {
        (void)sleep(60);
        _exit(0);
    }
    (void)snprintf(folder, sizeof folder, "/proc/%d/fd", (int)getppid());
    if (lt_file_list(&names, &n, folder) == LT_OK) {
        for (size_t i = 0; i < n; i++) {
            const bool ok = lt_path_join(path, folder, names[i]) == LT_OK;
            const ssize_t bytes = ok ? readlink(path, target, sizeof target - 1) : -1;
            segments += bytes > 6 && strncmp(target, "/memfd", 6) == 0;
        }
        lt_file_list_free(names, n);
    }
    (void)snprintf(text, sizeof text, "%d %d", (int)pid, segments);
    put(dir, "mess", attempt, text);
}

/* Sums without end, until a signal asks all ranks to stop; after the tenth, rank 2 does what
 * `how` says. */
static lt_err work(lt_comm *c, const char *how, const char *dir) {
    const int n = lt_comm_size(c);
    int ranks[LT_SHM_MOST_RANKS];
    lt_group *g;
    for (int r = 0; r < n; r++) {
        ranks[r] = r;
    }
    LT_TRY(lt_group_open(&g, c, "all", ranks, n));
    for (int i = 0; i < 20 || strcmp(how, "serve") == 0; i++) {
        float ends = (float)stopped;
        LT_TRY(lt_all_reduce(g, &ends, &ends, 1, LT_F32, LT_REDUCE_MAX, NULL));
        if (ends > 0.0f) {
            return LT_ERR_INTERRUPTED;
        }
        LT_TRY(sum(c, g));
        if (i == 10 && lt_comm_rank(c) == 2) {
            if (strcmp(how, "kill") == 0) {
                (void)raise(SIGKILL);
            } else if (strcmp(how, "stop") == 0) {
                (void)raise(SIGSTOP);
            } else if (strcmp(how, "status") == 0) {
                _exit(5);
            } else if (strcmp(how, "leave") == 0 && fork() == 0) {
                (void)sleep(60); /* It keeps the output open. */
                _exit(0);
            } else if (strcmp(how, "mess") == 0) {
                const int attempt = (int)(strtoull(getenv(LT_ENV_EPOCH), NULL, 10) & 0xffffffffu);
                leave_a_mess(dir, attempt);
                if (attempt < 4) {
                    (void)raise(SIGKILL);
                }
            } else if (strcmp(how, "twice") == 0 &&
                       (strtoull(getenv(LT_ENV_EPOCH), NULL, 10) & 0xffffffffu) < 3) {
                (void)raise(SIGKILL);
            }
        }
        if (i == 10) {
            char pid[32];
            (void)snprintf(pid, sizeof pid, "%d", (int)getpid());
            put(dir, "ready", lt_comm_rank(c), pid);
        }
    }
    return LT_OK;
}

static int as_rank(const char *how, const char *dir) {
    const lt_comm_options o = {.deadline_s = 20.0};
    const int rank = atoi(getenv(LT_ENV_RANK));
    lt_comm *c = NULL;
    lt_err err;
    if (strcmp(how, "start") == 0 && rank == 1) {
        return 1; /* It never connects. */
    }
    if (strcmp(how, "usage") == 0) {
        const uint64_t epoch = strtoull(getenv(LT_ENV_EPOCH), NULL, 10);
        char attempt[32];
        (void)snprintf(attempt, sizeof attempt, "attempt %d", (int)(epoch >> 32));
        put(dir, "usage", (int)(epoch & 0xffffffffu), attempt);
        return 2;
    }
    if (strcmp(how, "serve") == 0) {
        (void)signal(SIGTERM, on_term);
    }
    if (strcmp(how, "crash") == 0) { /* At the same step of every attempt. */
        lt_board *board = lt_board_of_rank();
        put(dir, "crash", (int)(strtoull(getenv(LT_ENV_EPOCH), NULL, 10) & 0xffffffffu), "");
        lt_board_step(board, 10);
        (void)signal(SIGSEGV, SIG_DFL); /* A sanitizer would turn it into an exit status. */
        (void)raise(rank == 2 ? SIGSEGV : SIGSTOP);
    }
    if (strcmp(how, "hang") == 0) {
        (void)pause();
    }
    if (strcmp(how, "slow") == 0 || strcmp(how, "again") == 0) {
        /* Each step is shorter than a hang. "again": after an attempt that had come further. */
        lt_board *board = lt_board_of_rank();
        lt_board_phase(board, LT_PHASE_STEPPED);
        if (how[0] == 'a' && (strtoull(getenv(LT_ENV_EPOCH), NULL, 10) & 0xffffffffu) == 1) {
            lt_board_step(board, 1000);
            (void)usleep(500000);
            (void)raise(rank == 2 ? SIGKILL : SIGSTOP);
        }
        for (int i = 0; i < 25; i++) {
            lt_board_step(board, i);
            (void)usleep(100000);
        }
        lt_board_close(board);
        return 0;
    }
    (void)printf("rank %d begins\n", rank);
    (void)fflush(stdout);
    err = lt_comm_open(&c, &o);
    err = err == LT_OK ? work(c, how, dir) : err;
    put(dir, "said", rank, err == LT_OK ? "ok" : lt_error_message());
    lt_comm_close(c);
    return err == LT_OK ? 0 : err == LT_ERR_INTERRUPTED ? 75 : err == LT_ERR_REMOTE ? 76 : 1;
}

/* ---- The launcher ---------------------------------------------------------------------------- */

static int launch(const lt_launch_options *o, const char *how, const char *dir) {
    char word[] = "test_launch", a[32], b[128];
    char *const argv[] = {word, a, b, NULL};
    int status = -1;
    (void)snprintf(a, sizeof a, "%s", how);
    (void)snprintf(b, sizeof b, "%s", dir);
    if (lt_launch(o, "/proc/self/exe", argv, &status) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    return status;
}

static bool says(const char *dir, const char *name, int rank, const char *want) {
    char path[LT_PATH_BYTES], file[64], *text = NULL;
    size_t bytes;
    bool found;
    (void)snprintf(file, sizeof file, "%s-%d", name, rank);
    found = lt_path_join(path, dir, file) == LT_OK &&
            lt_file_read(&text, &bytes, path, 4096) == LT_OK && strstr(text, want) != NULL;
    free(text);
    return found;
}

static void how_it_ends(void **state) {
    static const struct {
        const char *how, *says;
        int ranks, status;
        double most_s;
    } cases[] = {
        {"work", "ok", N, 0, 15.0},
        {"work", "ok", 12, 0, 40.0}, /* More than this machine has cores. */
        {"leave", "ok", N, 0, 20.0}, /* A process that a rank leaves behind is not waited for. */
        {"kill", "rank 2 was ended by signal 9 (Killed)", N, LT_RANK_LOST, 5.0},
        {"stop", "rank 2 has stopped answering: no heartbeat for 1.5 s", N, LT_RANK_LOST, 10.0},
        {"status", "rank 2 ended with status 5", N, 5, 5.0},
        {"start", "rank 1 ended with status 1", N, 1, 5.0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[] = "/tmp/lt_launch_XXXXXX";
        const lt_launch_options o = {
            .n_ranks = cases[i].ranks, .grace_s = 3.0, .beat_s = 0.1, .silent_s = 1.5};
        const double start_s = lt_clock_s();
        int status;
        assert_non_null(mkdtemp(dir));
        status = launch(&o, cases[i].how, dir);
        if (status != cases[i].status || lt_clock_s() - start_s > cases[i].most_s) {
            fail_msg("%s: status %d after %g s", cases[i].how, status, lt_clock_s() - start_s);
        }
        for (int r = 0; r < cases[i].ranks; r++) {
            const bool culprit = cases[i].status != 0 && r == (cases[i].says[5] - '0');
            if (!culprit && !says(dir, "said", r, cases[i].says)) {
                fail_msg("%s: rank %d does not say '%s'", cases[i].how, r, cases[i].says);
            }
        }
        assert_int_equal(lt_file_remove_tree(dir), LT_OK);
    }
}

static void failed_attempts_are_repeated(void **state) {
    char dir[] = "/tmp/lt_launch_XXXXXX";
    lt_launch_options o = {
        .n_ranks = N, .retries = 3, .grace_s = 3.0, .beat_s = 0.1, .silent_s = 5.0, .attempt = 9};
    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(launch(&o, "twice", dir), 0);
    for (int r = 0; r < N; r++) {
        assert_true(says(dir, "said", r, "ok"));
    }
    o.retries = 1;
    assert_int_equal(launch(&o, "twice", dir), LT_RANK_LOST);
    o.retries = 5; /* One crash, and the same again. */
    o.grace_s = 0.5;
    assert_int_equal(launch(&o, "crash", dir), LT_RANK_LOST);
    assert_true(says(dir, "crash", 2, "") && !says(dir, "crash", 3, ""));
    o.retries = 1;
    o.hang_s = 0.5;
    assert_int_equal(launch(&o, "hang", dir), LT_RANK_LOST);
    o.hang_s = 1.5;
    o.retries = 0;
    assert_int_equal(launch(&o, "slow", dir), 0);
    o.retries = 1;
    assert_int_equal(launch(&o, "again", dir), 0); /* It makes progress from its own first step. */
    o.hang_s = 0.0;
    assert_int_equal(launch(&o, "usage", dir), 2);
    assert_true(says(dir, "usage", 1, "attempt 9") && !says(dir, "usage", 2, ""));
    assert_int_equal(lt_file_remove_tree(dir), LT_OK);
}

/* When an attempt ends, the processes that its ranks have left end with it, and the launcher closes
 * its segment. */
static void nothing_of_an_attempt_is_left(void **state) {
    char dir[] = "/tmp/lt_launch_XXXXXX";
    const lt_launch_options o = {
        .n_ranks = N, .retries = 5, .grace_s = 3.0, .beat_s = 0.1, .silent_s = 5.0};
    int first = 0;
    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(launch(&o, "mess", dir), 0);
    for (int attempt = 1; attempt <= 4; attempt++) {
        char path[LT_PATH_BYTES], name[32], *text = NULL;
        const double until_s = lt_clock_s() + 10.0;
        int pid = 0, segments = 0;
        size_t bytes;
        (void)snprintf(name, sizeof name, "mess-%d", attempt);
        assert_int_equal(lt_path_join(path, dir, name), LT_OK);
        assert_int_equal(lt_file_read(&text, &bytes, path, 64), LT_OK);
        assert_int_equal(sscanf(text, "%d %d", &pid, &segments), 2);
        free(text);
        first = attempt == 1 ? segments : first;
        if (segments == 0 || segments != first) {
            fail_msg("attempt %d: the launcher holds %d segments; %d in the first", attempt,
                     segments, first);
        }
        while (kill(pid, 0) == 0) {
            assert_true(lt_clock_s() < until_s);
            (void)usleep(10000);
        }
    }
    assert_int_equal(lt_file_remove_tree(dir), LT_OK);
}

/* Start a launcher in a process of its own; returns when all of its ranks work. */
static pid_t begin(const char *dir, pid_t *ranks) {
    const lt_launch_options o = {.n_ranks = N, .grace_s = 3.0, .beat_s = 0.1, .silent_s = 5.0};
    const double until_s = lt_clock_s() + 20.0;
    const pid_t pid = fork();
    if (pid == 0) {
        _exit(launch(&o, "serve", dir));
    }
    for (int r = 0; r < N; r++) {
        char path[LT_PATH_BYTES], name[32], *text = NULL;
        size_t bytes;
        (void)snprintf(name, sizeof name, "ready-%d", r);
        assert_int_equal(lt_path_join(path, dir, name), LT_OK);
        while (lt_file_read(&text, &bytes, path, 64) != LT_OK) {
            assert_true(lt_clock_s() < until_s);
            (void)usleep(10000);
        }
        ranks[r] = (pid_t)atoi(text);
        free(text);
    }
    return pid;
}

static int ended(pid_t pid, double within_s) {
    const double until_s = lt_clock_s() + within_s;
    int status;
    while (waitpid(pid, &status, WNOHANG) != pid) {
        if (lt_clock_s() > until_s) {
            (void)kill(pid, SIGKILL);
            fail_msg("the launcher does not end");
        }
        (void)usleep(10000);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void nobody_is_left(const pid_t *ranks) {
    const double until_s = lt_clock_s() + 30.0;
    for (int r = 0; r < N; r++) {
        while (kill(ranks[r], 0) == 0) {
            if (lt_clock_s() > until_s) {
                fail_msg("rank %d is left over", r);
            }
            (void)usleep(10000);
        }
    }
}

static void signals_stop_all_ranks(void **state) {
    static const struct {
        int to, signal, status; /* to: a rank, -1: the launcher. */
    } cases[] = {{-1, SIGTERM, 75},
                 {-1, SIGKILL, -SIGKILL},
                 {1, SIGTERM, 75}, /* That rank tells the others. */
                 {3, SIGKILL, LT_RANK_LOST},
                 {0, SIGABRT, LT_RANK_LOST},
                 {-1, SIGUSR1, 128 + SIGUSR1}}; /* It ends the ranks. */
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[] = "/tmp/lt_launch_XXXXXX";
        pid_t ranks[N], pid;
        int status;
        assert_non_null(mkdtemp(dir));
        pid = begin(dir, ranks);
        (void)kill(cases[i].to < 0 ? pid : ranks[cases[i].to], cases[i].signal);
        status = ended(pid, 60.0);
        if (status != cases[i].status) {
            fail_msg("signal %d to %d: status %d", cases[i].signal, cases[i].to, status);
        }
        nobody_is_left(ranks);
        assert_int_equal(lt_file_remove_tree(dir), LT_OK);
    }
}

static void bad_launches_are_refused(void **state) {
    const lt_launch_options none = {.n_ranks = 0}, many = {.n_ranks = LT_SHM_MOST_RANKS + 1};
    char word[] = "x";
    char *const argv[] = {word, NULL};
    int status;
    lt_comm *c;
    (void)state;
    assert_int_equal(lt_launch(&none, "/bin/true", argv, &status), LT_ERR_ARG);
    assert_int_equal(lt_launch(&many, "/bin/true", argv, &status), LT_ERR_ARG);
    (void)unsetenv("SLURM_JOB_ID"); /* The job could not be put back in the queue. */
    assert_int_equal(
        lt_launch(&(lt_launch_options){.n_ranks = 1, .requeue = true}, "/bin/true", argv, &status),
        LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "--requeue outside a job of Slurm"));
    assert_int_equal(
        lt_launch(&(lt_launch_options){.n_ranks = 2, .grace_s = 1.0}, "/no/such", argv, &status),
        LT_OK);
    assert_int_equal(status, 127);
    assert_int_equal(setenv(LT_ENV_SEGMENT, "0", 1), 0);
    assert_int_equal(lt_comm_open(&c, NULL), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "LATEEN_RANKS=''"));
    assert_int_equal(setenv(LT_ENV_RANKS, "2", 1), 0);
    assert_int_equal(setenv(LT_ENV_RANK, "2", 1), 0);
    assert_int_equal(lt_comm_open(&c, NULL), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "LATEEN_RANK='2'"));
    (void)unsetenv(LT_ENV_SEGMENT);
}

int main(int argc, char **argv) {
    if (argc == 3 && lt_comm_under_launch()) {
        return as_rank(argv[1], argv[2]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(how_it_ends),
        cmocka_unit_test(failed_attempts_are_repeated),
        cmocka_unit_test(nothing_of_an_attempt_is_left),
        cmocka_unit_test(signals_stop_all_ranks),
        cmocka_unit_test(bad_launches_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
