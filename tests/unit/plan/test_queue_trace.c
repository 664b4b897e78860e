/* Traces of jobs: columns under either name and in any order, quotes, ties, run times that are
 * drawn, a file larger than the first buffer, and each fault reported with its line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "lateen/base.h"
#include "plan/queue.h"

static lt_policy_tenant tenants[] = {{.name = "a"}, {.name = "bc"}};
static const lt_policy policy = {.gpus = 8, .live = 8, .tenants = tenants, .n_tenants = 2};

static const char *written(char path[64], const char *text) {
    int fd;
    snprintf(path, 64, "/tmp/lateen_traceXXXXXX");
    fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    return path;
}

/* runtimes NULL: there are none. */
static lt_err read_text(lt_queue_job **out, size_t *n, const char *text, const char *runtimes,
                        uint64_t seed) {
    char path[64], times[64] = "";
    lt_err err;
    written(path, text);
    if (runtimes != NULL) {
        written(times, runtimes);
    }
    err = lt_queue_read(out, n, &policy, path, times, seed);
    unlink(path);
    if (runtimes != NULL) {
        unlink(times);
    }
    return err;
}

static void jobs_come_in_order_of_arrival(void **state) {
    static const char *const texts[] = {
        "tenant,arrival_s,gpus,run_s\nbc,5,2,10\na,1,1,3.5\na,5,4,7\na,0.5,8,0\n",
        /* Other names, another order, an unused column, lines ended by \r\n, no final line
         * break. */
        "run_s,note,scale_factor,vc,arrival_s\r\n10,\"x,y\",2,bc,5\r\n3.5,,1,a,1\r\n"
        "7,\"\",4,a,5\r\n0,z,8,a,0.5"};
    static const struct {
        double arrival_s, run_s;
        int64_t gpus;
        size_t tenant;
    } want[] = {{0.5, 0, 8, 0}, {1, 3.5, 1, 0}, {5, 10, 2, 1}, {5, 7, 4, 0}};
    (void)state;
    for (size_t t = 0; t < 2; t++) {
        lt_queue_job *jobs = NULL;
        size_t n = 0;
        if (read_text(&jobs, &n, texts[t], NULL, 1) != LT_OK) {
            fail_msg("%s", lt_error_message());
        }
        assert_int_equal(n, 4);
        for (size_t i = 0; i < n; i++) {
            assert_true(jobs[i].arrival_s == want[i].arrival_s && jobs[i].run_s == want[i].run_s);
            assert_int_equal(jobs[i].gpus, want[i].gpus);
            assert_int_equal(jobs[i].tenant, want[i].tenant);
        }
        free(jobs);
    }
}

/* The same seed draws the same run times; all of them occur, and another seed draws others. */
static void run_times_are_drawn(void **state) {
    static char text[8192] = "tenant,arrival_s,gpus\n";
    static const char *const times[] = {"runtime\n10\n20\n30\n", "x,run_s\n1,10\n2,20\n3,30\n"};
    lt_queue_job *jobs[4] = {NULL};
    size_t n = 0, of[3] = {0}, other = 0;
    (void)state;
    for (int i = 0; i < 300; i++) {
        snprintf(text + strlen(text), 32, "a,%d,1\n", i);
    }
    for (size_t k = 0; k < 4; k++) {
        assert_int_equal(read_text(&jobs[k], &n, text, times[k % 2], k < 2 ? 7 : 8), LT_OK);
        assert_int_equal(n, 300);
    }
    for (size_t i = 0; i < n; i++) {
        const int at = (int)(jobs[0][i].run_s / 10) - 1;
        assert_in_range(at, 0, 2);
        assert_true(jobs[0][i].run_s == 10.0 * (at + 1));
        of[at]++;
        assert_true(jobs[0][i].run_s == jobs[1][i].run_s);
        assert_true(jobs[2][i].run_s == jobs[3][i].run_s);
        other += jobs[0][i].run_s != jobs[2][i].run_s;
    }
    /* 100 of each are expected, with a standard deviation of 8. */
    assert_true(of[0] > 60 && of[1] > 60 && of[2] > 60 && other > 100);
    for (size_t k = 0; k < 4; k++) {
        free(jobs[k]);
    }
}

/* 100,000 jobs: 1.8 MB. */
static void long_files_are_read_completely(void **state) {
    const size_t lines = 100000;
    char *text = malloc(lines * 24 + 64);
    size_t used = 0, n = 0;
    lt_queue_job *jobs = NULL;
    (void)state;
    assert_non_null(text);
    used = (size_t)sprintf(text, "tenant,arrival_s,gpus,run_s\n");
    for (size_t i = 0; i < lines; i++) {
        used += (size_t)sprintf(text + used, "bc,%06zu,3,%zu\n", lines - 1 - i, i);
    }
    assert_int_equal(read_text(&jobs, &n, text, NULL, 1), LT_OK);
    assert_int_equal(n, lines);
    for (size_t i = 0; i < n; i++) {
        if (jobs[i].arrival_s != (double)i || jobs[i].run_s != (double)(lines - 1 - i) ||
            jobs[i].gpus != 3 || jobs[i].tenant != 1) {
            fail_msg("job %zu: %g %g", i, jobs[i].arrival_s, jobs[i].run_s);
        }
    }
    free(jobs);
    free(text);
}

#define GOOD "tenant,arrival_s,gpus,run_s\n"

static void faults_are_named(void **state) {
    static const struct {
        const char *text, *runtimes;
        lt_err err;
        const char *word;
    } rows[] = {
        {"who,arrival_s,gpus,run_s\n", NULL, LT_ERR_FORMAT, "no column tenant (or vc)"},
        {"tenant,arrival,gpus,run_s\n", NULL, LT_ERR_FORMAT, "no column arrival_s"},
        {"tenant,arrival_s,gpu,run_s\n", NULL, LT_ERR_FORMAT, "no column gpus (or scale_factor)"},
        {"tenant,arrival_s,gpus\n", NULL, LT_ERR_FORMAT, "no column run_s, and no --runtimes"},
        {"tenant,arrival_s,gpus", "runtime\n1\n", LT_ERR_FORMAT, "no jobs"},
        {GOOD, NULL, LT_ERR_FORMAT, "no jobs"},
        {GOOD "z,1,1,1\n", NULL, LT_ERR_ARG, ":2: the policy has no tenant 'z'"},
        {GOOD "a,1,1,1\nb,1,1,1\n", NULL, LT_ERR_ARG, ":3: the policy has no tenant 'b'"},
        {GOOD "bcd,1,1,1\n", NULL, LT_ERR_ARG, "no tenant 'bcd'"},
        {GOOD "a,1,0,1\n", NULL, LT_ERR_FORMAT, ":2: 0 GPUs"},
        {GOOD "a,1,1.5,1\n", NULL, LT_ERR_FORMAT, ":2: 1.5 GPUs"},
        {GOOD "a,-1,1,1\n", NULL, LT_ERR_FORMAT, ":2: arrival_s '-1' is not a number from 0"},
        {GOOD "a,,1,1\n", NULL, LT_ERR_FORMAT, "arrival_s '' is not a number"},
        {GOOD "a,1s,1,1\n", NULL, LT_ERR_FORMAT, "arrival_s '1s' is not a number"},
        {GOOD "a,inf,1,1\n", NULL, LT_ERR_FORMAT, "arrival_s 'inf' is not a number"},
        {GOOD "a,1,x,1\n", NULL, LT_ERR_FORMAT, "gpus 'x' is not a number"},
        {GOOD "a,1,1,x\n", NULL, LT_ERR_FORMAT, "run_s 'x' is not a number"},
        {GOOD "a,1,1\n", NULL, LT_ERR_FORMAT, "run_s '' is not a number"},
        {GOOD "a,1,1,1\n", "runtime\n1\n", LT_ERR_ARG, "which contradicts --runtimes"},
        {"tenant,arrival_s,gpus\na,1,1\n", "time\n1\n", LT_ERR_FORMAT, "no column runtime"},
        {"tenant,arrival_s,gpus\na,1,1\n", "runtime\n", LT_ERR_FORMAT, "no run times"},
        {"tenant,arrival_s,gpus\na,1,1\n", "runtime\nx\n", LT_ERR_FORMAT, ":2: runtime 'x'"},
        {"tenant,arrival_s,gpus\na,1,1\n", "runtime\n1\nx\n", LT_ERR_FORMAT, ":3: runtime 'x'"}};
    lt_queue_job *jobs = NULL;
    size_t n = 0;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const lt_err err = read_text(&jobs, &n, rows[i].text, rows[i].runtimes, 1);
        if (err != rows[i].err || strstr(lt_error_message(), rows[i].word) == NULL) {
            fail_msg("row %zu: %d, '%s'", i, (int)err, lt_error_message());
        }
        assert_true(jobs == NULL && n == 0);
    }
    assert_int_equal(lt_queue_read(&jobs, &n, &policy, "/nowhere/x.csv", "", 1), LT_ERR_NOT_FOUND);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_come_in_order_of_arrival), cmocka_unit_test(run_times_are_drawn),
        cmocka_unit_test(long_files_are_read_completely), cmocka_unit_test(faults_are_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
