/* The trace of a failure: its levels and their order, more levels than fit, and a failure that was
 * kept aside and returns with its own trace. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/log.h"

/* The lines on which the functions below fail or pass a failure on. */
static int fail_line, try_line, done_line, prefix_line;

static lt_err origin(int number) {
    fail_line = __LINE__ + 1;
    LT_FAIL(LT_ERR_IO, "disk %d", number);
}

static lt_err by_try(int number) {
    try_line = __LINE__ + 1;
    LT_TRY(origin(number));
    return LT_OK;
}

static lt_err by_done(int number) {
    lt_err err = LT_OK;
    done_line = __LINE__ + 1;
    LT_TRY_DONE(by_try(number));
done:
    return err;
}

static lt_err by_prefix(int number) {
    const lt_err err = by_done(number);
    prefix_line = __LINE__ + 1;
    return lt_error_prefix(err, "shelf");
}

static lt_err fine(void) {
    LT_TRY(LT_OK);
    return LT_OK;
}

static void every_level(void **state) {
    char trace[LT_ERROR_TRACE_BYTES], expected[LT_ERROR_TRACE_BYTES];
    (void)state;
    assert_int_equal(by_prefix(7), LT_ERR_IO);
    assert_string_equal(lt_error_message(), "shelf: disk 7");
    snprintf(expected, sizeof expected,
             "  at %s:%d in origin\n  at %s:%d in by_try\n  at %s:%d in by_done\n"
             "  at %s:%d in by_prefix\n",
             __FILE__, fail_line, __FILE__, try_line, __FILE__, done_line, __FILE__, prefix_line);
    assert_string_equal(lt_error_trace_text(trace), expected);
    assert_int_equal(fine(), LT_OK); /* Success records nothing. */
    assert_string_equal(lt_error_trace_text(trace), expected);
    assert_int_equal(origin(8), LT_ERR_IO); /* The next failure starts a new trace. */
    snprintf(expected, sizeof expected, "  at %s:%d in origin\n", __FILE__, fail_line);
    assert_string_equal(lt_error_trace_text(trace), expected);
}

static lt_err deep(int levels) {
    lt_err err = origin(levels);
    for (int i = 1; i < levels; i++) {
        lt_error_pass(&(lt_error_place){"deep.c", "deep", i});
    }
    return err;
}

static int count(const char *text, const char *word) {
    int n = 0;
    for (const char *p = strstr(text, word); p != NULL; p = strstr(p + 1, word)) {
        n++;
    }
    return n;
}

static void bounded(void **state) {
    char trace[LT_ERROR_TRACE_BYTES], last[64];
    (void)state;
    for (int levels = 1; levels <= 3 * LT_ERROR_LEVELS; levels++) {
        const char *last_at;
        assert_int_equal(deep(levels), LT_ERR_IO);
        (void)lt_error_trace_text(trace);
        assert_int_equal(count(trace, "  at "),
                         levels < LT_ERROR_LEVELS ? levels : LT_ERROR_LEVELS);
        assert_non_null(strstr(trace, " in origin\n")); /* The origin stays, */
        /* and so does the newest level, which is last. */
        if (levels > 1) {
            snprintf(last, sizeof last, "  at deep.c:%d in deep\n", levels - 1);
            last_at = strstr(trace, last);
            assert_non_null(last_at);
            assert_int_equal(strlen(last_at), strlen(last));
        }
        snprintf(last, sizeof last, "  ... %d levels\n", levels - LT_ERROR_LEVELS);
        assert_int_equal(count(trace, last), levels > LT_ERROR_LEVELS ? 1 : 0);
    }
}

static lt_err no_room_for(const char *what) {
    LT_FAIL(LT_ERR_OOM, "%s", what);
}

/* Code that finds no memory names what the memory was for; the message adds that there was
 * none. */
static void out_of_memory(void **state) {
    static char names[2 * LT_ERROR_MESSAGE_BYTES];
    (void)state;
    assert_int_equal(no_room_for("rows of a table"), LT_ERR_OOM);
    assert_string_equal(lt_error_message(), "out of memory: rows of a table");
    assert_int_equal(no_room_for("GPU 0 is out of memory"), LT_ERR_OOM);
    assert_string_equal(lt_error_message(), "GPU 0 is out of memory");
    memset(names, 'n', sizeof names - 1);
    assert_int_equal(no_room_for(names), LT_ERR_OOM);
    assert_int_equal(strlen(lt_error_message()), LT_ERROR_MESSAGE_BYTES - 1);
    assert_int_equal(strncmp(lt_error_message(), "out of memory: nnn", 18), 0);
}

static void long_names(void **state) {
    static char file[1000];
    char trace[LT_ERROR_TRACE_BYTES];
    (void)state;
    memset(file, 'f', sizeof file - 1);
    (void)origin(1);
    for (int i = 0; i < LT_ERROR_LEVELS; i++) {
        lt_error_pass(&(lt_error_place){file, "g", i});
    }
    (void)lt_error_trace_text(trace);
    assert_int_equal(trace[strlen(trace) - 1], '\n'); /* Whole lines only. */
    assert_int_equal(count(trace, "  at "), 3);
}

static void *fail_elsewhere(void *arg) {
    lt_failure_keep(arg, by_try(3));
    return NULL;
}

static lt_err raise_here(const lt_failure *f) {
    LT_TRY(lt_failure_raise(f));
    return LT_OK;
}

static void another_thread(void **state) {
    char trace[LT_ERROR_TRACE_BYTES];
    lt_failure f, none;
    pthread_t thread;
    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, &f), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    (void)lt_error_set(LT_ERR_ARG, "of this thread");
    lt_failure_keep(&none, LT_OK);
    assert_int_equal(raise_here(&none), LT_OK);
    assert_string_equal(lt_error_message(), "of this thread");
    assert_int_equal(raise_here(&f), LT_ERR_IO);
    assert_string_equal(lt_error_message(), "disk 3");
    (void)lt_error_trace_text(trace);
    assert_int_equal(count(trace, "  at "), 3);
    assert_non_null(strstr(trace, " in by_try\n"));
    assert_non_null(strstr(strstr(trace, " in by_try\n"), " in raise_here\n"));
}

/* Run `fn` in a process of its own, and collect what it writes to a log file and to stderr. */
static void run_apart(void (*fn)(void), char *said, size_t bytes) {
    int to[2];
    pid_t child;
    ssize_t n;
    size_t used = 0;
    assert_int_equal(pipe(to), 0);
    child = fork();
    if (child == 0) {
        dup2(to[1], STDERR_FILENO);
        close(to[0]);
        fn();
        _exit(0);
    }
    close(to[1]);
    while ((n = read(to[0], said + used, bytes - 1 - used)) > 0) {
        used += (size_t)n;
    }
    said[used] = '\0';
    close(to[0]);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static void *trace_of_nothing(void *out) {
    return (void *)lt_error_trace_text(out);
}

/* A thread without an error has an empty trace. */
static void nothing_has_failed(void **state) {
    char trace[LT_ERROR_TRACE_BYTES] = "before";
    pthread_t thread;
    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, trace_of_nothing, trace), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(trace, "");
}

static void fail_assertion(void) {
    (void)by_try(5);
    LT_ASSERT(fail_line < 0);
}

static void log_quiet(void) {
    lt_log_set_level(LT_LOG_INFO);
    (void)by_try(5);
    lt_log_trace();
}

static void log_verbose(void) {
    (void)by_try(5);
    lt_log_set_level(LT_LOG_DEBUG);
    lt_log_trace();
}

static void verbose_prints_the_trace(void **state) {
    char said[8192];
    (void)state;
    run_apart(fail_assertion, said, sizeof said);
    assert_non_null(strstr(said, "assertion failed"));
    assert_non_null(strstr(said, "disk 5\n  at "));
    assert_non_null(strstr(said, " in by_try\n"));
    run_apart(log_quiet, said, sizeof said);
    assert_string_equal(said, "");
    run_apart(log_verbose, said, sizeof said);
    assert_int_equal(count(said, "  at "), 2);
}

static void the_log_file_has_the_trace(void **state) {
    char path[] = "/tmp/lateen-trace-XXXXXX", text[4096];
    const int fd = mkstemp(path);
    ssize_t n;
    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(lt_log_to_file(path), LT_OK);
    (void)by_try(5);
    lt_log_note(LT_LOG_ERROR, "%s", lt_error_message());
    lt_log_note_trace();
    assert_int_equal(lt_log_to_file(NULL), LT_OK);
    n = read(fd, text, sizeof text - 1);
    assert_true(n > 0);
    text[n] = '\0';
    assert_non_null(strstr(text, "error disk 5\n  at "));
    assert_int_equal(count(text, "  at "), 2);
    close(fd);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_level),
                                       cmocka_unit_test(bounded),
                                       cmocka_unit_test(out_of_memory),
                                       cmocka_unit_test(long_names),
                                       cmocka_unit_test(another_thread),
                                       cmocka_unit_test(verbose_prints_the_trace),
                                       cmocka_unit_test(the_log_file_has_the_trace),
                                       cmocka_unit_test(nothing_has_failed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
