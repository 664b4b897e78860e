/* The lease of a run folder: which process gets it, which one is refused, and which one learns
 * that it has lost it. A holder is another process. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"
#include "platform/agent/lease.h"

static lt_lease of(const char *job, uint64_t attempt) {
    lt_lease l = {.lock_fd = -1, .attempt = attempt};
    (void)snprintf(l.job, sizeof l.job, "%s", job);
    return l;
}

/* Start a process that takes the lease and lives until it is killed. */
static pid_t hold(const char *folder, const char *job, uint64_t attempt) {
    int ready[2];
    char c = 0;
    assert_int_equal(pipe(ready), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        lt_lease l = of(job, attempt);
        c = lt_lease_take(&l, folder) == LT_OK ? 'y' : 'n';
        (void)!write(ready[1], &c, 1);
        (void)pause();
        _exit(0);
    }
    assert_int_equal(read(ready[0], &c, 1), 1);
    assert_int_equal(c, 'y');
    (void)close(ready[0]);
    (void)close(ready[1]);
    return pid;
}

static void end(pid_t pid) {
    (void)kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void which_process_gets_it(void **state) {
    static const struct {
        const char *holder, *taker;
        uint64_t held, taken;
        bool lives;
        lt_err want;
        int64_t epoch;
    } cases[] = {
        {"", "", 0, 0, false, LT_OK, 2},              /* The same command, later. */
        {"", "", 0, 0, true, LT_ERR_STATE, 0},        /* The same command, twice. */
        {"slurm-7", "slurm-7", 0, 1, true, LT_OK, 2}, /* Put back in the queue. */
        {"slurm-7", "slurm-7", 0, 1, false, LT_OK, 2},
        {"slurm-7", "slurm-7", 0, 0, true, LT_ERR_STATE, 0}, /* The same attempt. */
        {"slurm-7", "slurm-7", 0, 0, false, LT_OK, 2},
        {"slurm-7", "slurm-7", 2, 1, true, LT_ERR_REPLACED, 0}, /* An orphan. */
        {"slurm-7", "slurm-7", 2, 1, false, LT_ERR_REPLACED, 0},
        {"slurm-7", "slurm-8", 2, 9, true, LT_ERR_STATE, 0}, /* Another job. */
        {"slurm-7", "slurm-8", 2, 0, false, LT_OK, 2},
        {"slurm-7", "", 2, 0, true, LT_ERR_STATE, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[] = "/tmp/lt_lease_XXXXXX";
        lt_lease l = of(cases[i].taker, cases[i].taken);
        pid_t pid;
        lt_err err;
        assert_non_null(mkdtemp(folder));
        pid = hold(folder, cases[i].holder, cases[i].held);
        if (!cases[i].lives) {
            end(pid);
        }
        err = lt_lease_take(&l, folder);
        if (err != cases[i].want || l.epoch != cases[i].epoch) {
            fail_msg("case %zu: %s, epoch %lld: %s", i, lt_err_text(err), (long long)l.epoch,
                     lt_error_message());
        }
        lt_lease_close(&l);
        if (cases[i].lives) {
            end(pid);
        }
        assert_int_equal(lt_file_remove_tree(folder), LT_OK);
    }
}

static void which_process_has_lost_it(void **state) {
    char folder[] = "/tmp/lt_lease_XXXXXX";
    lt_lease first = of("slurm-7", 0), second = of("slurm-7", 1), third = of("slurm-7", 1);
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(lt_lease_check(NULL), LT_OK);
    assert_int_equal(lt_lease_check(&first), LT_OK); /* No other process has taken it. */
    assert_int_equal(lt_lease_take(&first, folder), LT_OK);
    assert_int_equal(lt_lease_check(&first), LT_OK);
    assert_int_equal(lt_lease_take(&second, folder), LT_OK);
    assert_int_equal(lt_lease_check(&first), LT_ERR_REPLACED);
    assert_non_null(strstr(lt_error_message(), "(epoch 1) was replaced by epoch 2"));
    assert_int_equal(lt_lease_check(&second), LT_OK);
    lt_lease_close(&first); /* Its lock is on a file that has no name any more. */
    assert_int_equal(lt_lease_take(&third, folder), LT_ERR_STATE);
    assert_int_equal(lt_lease_check(&second), LT_OK);
    lt_lease_close(&second);
    assert_int_equal(lt_file_remove_tree(folder), LT_OK);
}

/* Epochs are counted, and unpublished files of earlier ones are removed. */
static void epochs_are_counted(void **state) {
    char folder[] = "/tmp/lt_lease_XXXXXX", path[64];
    (void)state;
    assert_non_null(mkdtemp(folder));
    for (int64_t epoch = 1; epoch <= 12; epoch++) {
        lt_lease l = of("", 0);
        assert_int_equal(lt_lease_take(&l, folder), LT_OK);
        assert_int_equal(l.epoch, epoch);
        for (int64_t of_epoch = epoch - 1; of_epoch <= epoch; of_epoch++) {
            (void)snprintf(path, sizeof path, "%s/lease/%lld.model.tmp", folder,
                           (long long)of_epoch);
            assert_int_equal(access(path, F_OK), -1);
        }
        assert_int_equal(lt_file_write_atomic(path, "x", 1), LT_OK); /* The process's own file. */
        lt_lease_close(&l);
    }
    assert_int_equal(lt_file_remove_tree(folder), LT_OK);
}

/* A lease whose file cannot be written is not taken. */
static void no_room_for_an_epoch(void **state) {
    char folder[] = "/tmp/lt_lease_XXXXXX";
    int status = 0;
    (void)state;
    assert_non_null(mkdtemp(folder));
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct rlimit none = {0, 0};
        lt_lease l = of("", 0);
        (void)signal(SIGXFSZ, SIG_IGN);
        const bool limited = setrlimit(RLIMIT_FSIZE, &none) == 0;
        const lt_err err = lt_lease_take(&l, folder);
        _exit(limited && err == LT_ERR_IO && l.epoch == 0 && l.lock_fd == -1 &&
                      strstr(lt_error_message(), "/lease/000000001.json: File too large") != NULL
                  ? 7
                  : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 7);
    assert_int_equal(lt_file_remove_tree(folder), LT_OK);
}

/* A file of an earlier epoch that cannot be removed might still be published. */
static void what_cannot_be_removed(void **state) {
    char folder[] = "/tmp/lt_lease_XXXXXX", path[64];
    lt_lease l = of("", 0);
    (void)state;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/lease/0.model.tmp", folder);
    assert_int_equal(lt_file_make_dirs(path), LT_OK);
    assert_int_equal(lt_lease_take(&l, folder), LT_ERR_IO);
    assert_non_null(strstr(lt_error_message(), "0.model.tmp: "));
    assert_int_equal(l.lock_fd, -1);
    assert_int_equal(lt_file_remove_tree(folder), LT_OK);
}

/* If many processes try to take it at the same moment, at most one gets it. */
static void at_most_one_of_many_gets_it(void **state) {
    char folder[] = "/tmp/lt_lease_XXXXXX";
    (void)state;
    assert_non_null(mkdtemp(folder));
    for (uint64_t round = 1; round <= 20; round++) {
        enum { TAKERS = 6 };
        pid_t pids[TAKERS];
        int tried[2], go[2], holders = 0;
        char c;
        assert_true(pipe(tried) == 0 && pipe(go) == 0);
        for (int i = 0; i < TAKERS; i++) {
            pids[i] = fork();
            if (pids[i] == 0) {
                lt_lease l = of("slurm-7", round);
                const bool taken = lt_lease_take(&l, folder) == LT_OK;
                (void)close(go[1]);
                (void)!write(tried[1], "t", 1);
                (void)!read(go[0], &c, 1); /* Until all have tried. */
                _exit(taken && lt_lease_check(&l) == LT_OK ? 1 : 0);
            }
        }
        for (int i = 0; i < TAKERS; i++) {
            assert_int_equal(read(tried[0], &c, 1), 1);
        }
        (void)close(go[1]);
        for (int i = 0; i < TAKERS; i++) {
            int status;
            assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
            holders += WEXITSTATUS(status);
        }
        (void)close(tried[0]);
        (void)close(tried[1]);
        (void)close(go[0]);
        assert_int_equal(holders, 1);
    }
    assert_int_equal(lt_file_remove_tree(folder), LT_OK);
}

static void identity(void **state) {
    lt_lease l = {.lock_fd = -1};
    (void)state;
    (void)unsetenv("SLURM_JOB_ID");
    (void)unsetenv("SLURM_RESTART_COUNT");
    lt_lease_identify(&l);
    assert_string_equal(l.job, "");
    assert_true(l.attempt == 0);
    (void)setenv("SLURM_JOB_ID", "77", 1);
    (void)setenv("SLURM_RESTART_COUNT", "3", 1);
    lt_lease_identify(&l);
    assert_string_equal(l.job, "slurm-77");
    assert_true(l.attempt == (uint64_t)3 << 32);
    (void)setenv("LATEEN_EPOCH", "12884901890", 1);
    lt_lease_identify(&l);
    assert_true(l.attempt == ((uint64_t)3 << 32 | 2));
    (void)unsetenv("SLURM_JOB_ID");
    (void)setenv("LATEEN_TOKEN", "secret", 1);
    lt_lease_identify(&l);
    assert_true(strncmp(l.job, "launch-", 7) == 0 && strstr(l.job, "secret") == NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(which_process_gets_it),
        cmocka_unit_test(which_process_has_lost_it),
        cmocka_unit_test(epochs_are_counted),
        cmocka_unit_test(no_room_for_an_epoch),
        cmocka_unit_test(what_cannot_be_removed),
        cmocka_unit_test(at_most_one_of_many_gets_it),
        cmocka_unit_test(identity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
