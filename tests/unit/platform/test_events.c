/* Events of a run: held until the folder is known or the disk has space, then written completely
 * and in order. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "platform/agent/events.h"

static char folder[64], path[96];

static int begin(void **state) {
    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/lateen-events-XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/events.jsonl", folder);
    return 0;
}

static int end(void **state) {
    (void)state;
    return lt_file_remove_tree(folder) != LT_OK;
}

static void put(lt_events *e, int attempt, int number) {
    lt_events_put(e, attempt, json_pack("{s:s, s:i}", "event", "test", "number", number));
}

/* Check that the file has n lines, numbered from 0 on. */
static void holds(int n, int attempt, int restart) {
    char *text = NULL, *at;
    assert_int_equal(lt_file_read(&text, NULL, path, 1 << 20), LT_OK);
    at = text;
    for (int i = 0; i < n; i++) {
        char *stop = strchr(at, '\n');
        json_t *line;
        assert_non_null(stop);
        *stop = '\0';
        line = json_loads(at, 0, NULL);
        assert_non_null(line);
        assert_int_equal(json_integer_value(json_object_get(line, "number")), i);
        assert_int_equal(json_integer_value(json_object_get(line, "attempt")), attempt);
        assert_int_equal(json_integer_value(json_object_get(line, "restart")), restart);
        assert_string_equal(json_string_value(json_object_get(line, "event")), "test");
        assert_true(fabs(json_real_value(json_object_get(line, "unix_s")) - lt_clock_unix_s()) <
                    600);
        assert_true(strlen(json_string_value(json_object_get(line, "time"))) > 0);
        json_decref(line);
        at = stop + 1;
    }
    assert_string_equal(at, "");
    free(text);
}

static void held_until_the_folder_is_known(void **state) {
    lt_events e;
    (void)state;
    lt_events_open(&e, true, 4);
    put(&e, 2, 0);
    put(&e, 2, 1);
    lt_events_put(&e, 2, NULL); /* There is no memory for a line. */
    lt_events_folder(&e, "");   /* The folder is not known yet. */
    assert_false(lt_file_exists(path));
    lt_events_folder(&e, folder);
    holds(2, 2, 4);
    put(&e, 2, 2);
    holds(3, 2, 4);
    lt_events_folder(&e, "/nowhere"); /* Another call changes nothing. */
    put(&e, 2, 3);
    holds(4, 2, 4);
    lt_events_close(&e);
    assert_int_equal(e.fd, -1);
    assert_false(e.wanted);
    lt_events_close(&e);
    lt_events_open(&e, true, 4); /* A launcher that starts again appends to the file. */
    lt_events_folder(&e, folder);
    put(&e, 2, 4);
    holds(5, 2, 4);
    lt_events_close(&e);
}

static void no_folder_is_named(void **state) {
    lt_events e;
    (void)state;
    lt_events_open(&e, false, 0);
    put(&e, 1, 0);
    lt_events_folder(&e, folder);
    put(&e, 1, 1);
    assert_null(e.held);
    assert_false(lt_file_exists(path));
    lt_events_close(&e);
    lt_log_set_level(LT_LOG_ERROR);
    lt_events_open(&e, true, 0); /* A folder that cannot be written ends no run. */
    put(&e, 1, 0);
    lt_events_folder(&e, "/proc/nowhere");
    assert_false(e.wanted);
    put(&e, 1, 1);
    lt_events_close(&e);
}

static void limit_files_to(rlim_t bytes) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* The disk has space for half a line: nothing of it remains, and the line is written with the
 * next one. */
static void a_full_disk(void **state) {
    struct stat one, now;
    lt_events e;
    (void)state;
    (void)signal(SIGXFSZ, SIG_IGN);
    lt_log_set_level(LT_LOG_ERROR);
    lt_events_open(&e, true, 0);
    lt_events_folder(&e, folder);
    put(&e, 0, 0);
    assert_int_equal(stat(path, &one), 0);
    limit_files_to((rlim_t)one.st_size + 20);
    put(&e, 0, 1);
    put(&e, 0, 2);
    assert_int_equal(stat(path, &now), 0);
    limit_files_to((rlim_t)2 * (rlim_t)one.st_size - 1); /* The line, without its end. */
    put(&e, 0, 3);
    limit_files_to(RLIM_INFINITY);
    assert_int_equal(now.st_size, one.st_size);
    assert_true(e.late);
    put(&e, 0, 4);
    assert_false(e.late);
    assert_int_equal(json_array_size(e.held), 0);
    holds(5, 0, 0);
    limit_files_to((rlim_t)one.st_size);
    put(&e, 0, 5);
    limit_files_to(RLIM_INFINITY);
    lt_events_close(&e); /* At the end there is space. */
    holds(6, 0, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(held_until_the_folder_is_known, begin, end),
        cmocka_unit_test_setup_teardown(no_folder_is_named, begin, end),
        cmocka_unit_test_setup_teardown(a_full_disk, begin, end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
