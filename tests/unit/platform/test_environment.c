/* What a rank gets in its environment: its own values and none of an outer launcher, everything
 * else of this process, each name once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "platform/agent/environment.h"

/* The value of a name that occurs once; NULL: it does not occur. */
static const char *value_of(char **words, const char *name) {
    const char *found = NULL;
    for (size_t i = 0; words[i] != NULL; i++) {
        const size_t n = strlen(name);
        if (strncmp(words[i], name, n) == 0 && words[i][n] == '=') {
            assert_null(found);
            found = words[i] + n + 1;
        }
    }
    return found;
}

static void has(char **words, const char *name, const char *want) {
    const char *value = value_of(words, name);
    if (value == NULL || strcmp(value, want) != 0) {
        fail_msg("%s is '%s', not '%s'", name, value != NULL ? value : "(not there)", want);
    }
}

static const lt_environment full = {.rank = 3,
                                    .n = 5,
                                    .full = 6,
                                    .segment = 11,
                                    .board = 12,
                                    .store = "127.0.0.1:77",
                                    .token = "secret",
                                    .epoch = (uint64_t)1 << 32 | 2,
                                    .beat_s = 0.5,
                                    .silent_s = 8.25,
                                    .memory = "/dev/shm/m",
                                    .node = 1,
                                    .snapshot = 40,
                                    .mtbf_s = 3600};

static void values_of_a_rank(void **state) {
    static const char *const own[][2] = {
        {"LATEEN_RANK", "3"},       {"LATEEN_RANKS", "5"},  {"LATEEN_FULL", "6"},
        {"LATEEN_SEGMENT", "11"},   {"LATEEN_BOARD", "12"}, {"LATEEN_STORE", "127.0.0.1:77"},
        {"LATEEN_TOKEN", "secret"}, {"LATEEN_BEAT", "0.5"}, {"LATEEN_EPOCH", "4294967298"},
        {"LATEEN_SILENT", "8.25"},  {"LATEEN_NODE", "1"},   {"LATEEN_MEMORY", "/dev/shm/m"},
        {"LATEEN_SNAPSHOT", "40"},  {"LATEEN_MTBF", "3600"}};
    static const char *const mine[][2] = {
        {"OTHER", "kept"}, {"LATEEN_RANKING", "kept, too"}, {"XLATEEN_RANK", "x"}, {"EMPTY", ""}};
    char **words;
    (void)state;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) { /* Those of an outer launcher. */
        assert_int_equal(setenv(own[i][0], "outer", 1), 0);
    }
    for (size_t i = 0; i < sizeof mine / sizeof *mine; i++) {
        assert_int_equal(setenv(mine[i][0], mine[i][1], 1), 0);
    }
    words = lt_environment_make(&full);
    assert_non_null(words);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        has(words, own[i][0], own[i][1]);
    }
    for (size_t i = 0; i < sizeof mine / sizeof *mine; i++) {
        has(words, mine[i][0], mine[i][1]);
    }
    has(words, "PATH", getenv("PATH"));
    lt_environment_free(words);
    lt_environment_free(NULL);
}

/* Without memory for snapshots there is no variable about it, whatever the outer launcher had. */
static void without_memory(void **state) {
    lt_environment e = full;
    char **words;
    (void)state;
    e.memory = "";
    assert_int_equal(setenv("LATEEN_MEMORY", "outer", 1), 0);
    words = lt_environment_make(&e);
    assert_non_null(words);
    assert_null(value_of(words, "LATEEN_MEMORY"));
    assert_null(value_of(words, "LATEEN_NODE"));
    assert_null(value_of(words, "LATEEN_SNAPSHOT"));
    assert_null(value_of(words, "LATEEN_MTBF"));
    has(words, "LATEEN_FULL", "6");
    has(words, "LATEEN_BOARD", "12");
    lt_environment_free(words);
}

/* On several machines there is no segment, and a rank has an index among those of its machine. */
static void on_several_machines(void **state) {
    lt_environment e = full;
    char **words;
    (void)state;
    words = lt_environment_make(&e);
    assert_non_null(words);
    assert_null(value_of(words, "LATEEN_LOCAL_RANK"));
    lt_environment_free(words);
    e.apart = true;
    e.local = 1;
    e.locals = 3;
    words = lt_environment_make(&e);
    assert_non_null(words);
    has(words, "LATEEN_SEGMENT", "tcp");
    has(words, "LATEEN_LOCAL_RANK", "1");
    has(words, "LATEEN_LOCAL_RANKS", "3");
    lt_environment_free(words);
}

/* Ranks divide the cores, unless the environment sets the number of threads per rank. */
static void threads(void **state) {
    static const int ranks[] = {1, 2, 1000000};
    lt_environment e = full;
    lt_limits limits;
    char want[32], **words;
    (void)state;
    lt_limits_read(&limits);
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        const int each = limits.n_cpus / ranks[i];
        for (int set = 0; set < 3; set++) {
            assert_int_equal(set == 0   ? unsetenv("OMP_NUM_THREADS")
                             : set == 1 ? setenv("OMP_NUM_THREADS", "", 1)
                                        : setenv("OMP_NUM_THREADS", "7", 1),
                             0);
            e.full = ranks[i];
            words = lt_environment_make(&e);
            assert_non_null(words);
            (void)snprintf(want, sizeof want, "%d", set == 2 ? 7 : each > 0 ? each : 1);
            has(words, "OMP_NUM_THREADS", want);
            lt_environment_free(words);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_a_rank), cmocka_unit_test(without_memory),
        cmocka_unit_test(on_several_machines), cmocka_unit_test(threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
