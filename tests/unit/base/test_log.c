/* Log output: levels, the file, progress lines; and time as text. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/thread.h"

/* What fn writes to stderr in a process of its own, which reads LATEEN_LOG at its first
 * message. */
static char *said_by(void (*fn)(void), const char *level) {
    static char text[1 << 16];
    int to[2];
    size_t n = 0;
    ssize_t got;
    pid_t child;
    assert_int_equal(pipe(to), 0);
    child = fork();
    if (child == 0) {
        dup2(to[1], STDERR_FILENO);
        close(to[0]);
        close(to[1]);
        if (level != NULL) {
            setenv("LATEEN_LOG", level, 1);
        } else {
            unsetenv("LATEEN_LOG");
        }
        fn();
        fflush(stderr);
        _exit(0);
    }
    close(to[1]);
    while ((got = read(to[0], text + n, sizeof text - 1 - n)) > 0) {
        n += (size_t)got;
    }
    text[n] = '\0';
    close(to[0]);
    assert_int_equal(waitpid(child, NULL, 0), child);
    return text;
}

static void say_all(void) {
    lt_log_error("e %d", 1);
    lt_log_warn("w");
    lt_log_info("i");
    lt_log_debug("d");
}

static void say_quietly(void) {
    lt_log_set_level(LT_LOG_WARN);
    say_all();
}

static void levels(void **state) {
    (void)state;
    assert_string_equal(said_by(say_all, NULL), "error: e 1\nwarn: w\ni\n");
    assert_string_equal(said_by(say_all, "error"), "error: e 1\n");
    assert_string_equal(said_by(say_all, "warn"), "error: e 1\nwarn: w\n");
    assert_string_equal(said_by(say_all, "info"), "error: e 1\nwarn: w\ni\n");
    assert_string_equal(said_by(say_all, "debug"), "error: e 1\nwarn: w\ni\ndebug: d\n");
    assert_string_equal(said_by(say_all, "nonsense"), "error: e 1\nwarn: w\ni\n");
    assert_string_equal(said_by(say_quietly, "debug"), "error: e 1\nwarn: w\n");
}

static char path[64];

static void say_to_file(void) {
    if (lt_log_to_file(path) == LT_OK) {
        lt_log_info("one");
        lt_log_debug("not this");
        lt_log_note(LT_LOG_WARN, "two %d", 2);
        (void)!lt_log_to_file(NULL);
        lt_log_info("after");
    }
}

static void a_file(void **state) {
    char *text = NULL, word[16], rest[32];
    int y, mo, d, h, mi, s, used = 0;
    (void)state;
    snprintf(path, sizeof path, "/tmp/lateen-log-%d", (int)getpid());
    assert_string_equal(said_by(say_to_file, NULL), "one\nafter\n");
    assert_int_equal(lt_file_read(&text, NULL, path, 1000), LT_OK);
    assert_int_equal(sscanf(text, "%d-%d-%dT%d:%d:%dZ %15s %31s\n%n", &y, &mo, &d, &h, &mi, &s,
                            word, rest, &used),
                     8);
    assert_true(y >= 2026 && mo >= 1 && mo <= 12 && d >= 1 && d <= 31 && h < 24 && mi < 60);
    assert_string_equal(word, "info");
    assert_string_equal(rest, "one");
    assert_non_null(strstr(text + used, "Z warn two 2\n"));
    assert_null(strstr(text, "not this"));
    assert_null(strstr(text, "after"));
    free(text);
    unlink(path);
    assert_int_equal(lt_log_to_file("/no/such/folder/log"), LT_ERR_IO);
    assert_non_null(strstr(lt_error_message(), "/no/such/folder/log"));
}

static void say_as_json(void) {
    lt_log_set_json();
    lt_log_info("before");
    lt_log_set_step(7);
    lt_log_info("within");
}

/* A message before the first step has no step. */
static void json_lines(void **state) {
    char *text = said_by(say_as_json, NULL), *second = strchr(text, '\n');
    (void)state;
    assert_non_null(second);
    *second++ = '\0';
    assert_non_null(strstr(text, "before"));
    assert_null(strstr(text, "\"step\""));
    assert_non_null(strstr(second, "within"));
    assert_non_null(strstr(second, "\"step\""));
}

static void say_to_both(void) {
    lt_log_set_json();
    if (lt_log_to_file(path) == LT_OK) {
        lt_log_info("\"said\" \x01");
    }
}

/* stderr is a pipe that another process has filled and that is read only in the next second, so
 * that the message waits between its two copies. They are equal nevertheless. */
static void both_copies_have_one_time(void **state) {
    static char filling[1 << 16], shown[sizeof filling + 4096];
    char *kept = NULL;
    int to[2];
    ssize_t got;
    size_t n = 0;
    pid_t child;
    (void)state;
    snprintf(path, sizeof path, "/tmp/lateen-log-%d", (int)getpid());
    assert_int_equal(pipe(to), 0);
    const int room = fcntl(to[1], F_GETPIPE_SZ);
    assert_true(room > 0 && (size_t)room <= sizeof filling);
    assert_int_equal(write(to[1], filling, (size_t)room), room);
    child = fork();
    if (child == 0) {
        dup2(to[1], STDERR_FILENO);
        close(to[0]);
        close(to[1]);
        say_to_both();
        _exit(0);
    }
    close(to[1]);
    sleep(2);
    while ((got = read(to[0], shown + n, sizeof shown - 1 - n)) > 0) {
        n += (size_t)got;
    }
    close(to[0]);
    assert_int_equal(waitpid(child, NULL, 0), child);
    shown[n] = '\0';
    assert_int_equal(lt_file_read(&kept, NULL, path, 1000), LT_OK);
    assert_string_equal(kept, shown + room);
    assert_non_null(strstr(kept, "\"message\": \"\\\"said\\\" \\u0001\"}\n"));
    free(kept);
    unlink(path);
}

/* The longest message and the longest name of a run, of characters that take the most bytes. */
static void say_the_longest(void) {
    static char text[5000];
    memset(text, 1, sizeof text - 1);
    lt_log_set_json();
    lt_log_set_run(text, UINT32_MAX, UINT32_MAX, INT32_MIN);
    lt_log_set_step(INT64_MAX);
    lt_log_error("%s", text);
}

static void the_longest_line(void **state) {
    const char *text = said_by(say_the_longest, NULL);
    size_t n = strlen(text);
    (void)state;
    assert_true(n > 6 * 1000);
    assert_string_equal(text + n - 9, "\\u0001\"}\n");
}

static void trace_to_file(void) {
    if (lt_log_to_file(path) == LT_OK) {
        (void)lt_error_set(LT_ERR_IO, "disk");
        lt_log_note_trace();
    }
}

static void note_to_file(void) {
    if (lt_log_to_file(path) == LT_OK) {
        lt_log_note(LT_LOG_WARN, "last words");
    }
}

static void leaves_in_file(void (*fn)(void), const char *words) {
    char *text = NULL;
    snprintf(path, sizeof path, "/tmp/lateen-log-%d", (int)getpid());
    assert_string_equal(said_by(fn, NULL), "");
    assert_int_equal(lt_file_read(&text, NULL, path, 1000), LT_OK);
    assert_non_null(strstr(text, words));
    free(text);
    unlink(path);
}

/* A process that ends without closing its log has already written its messages and traces. */
static void messages_are_written_at_once(void **state) {
    (void)state;
    leaves_in_file(trace_to_file, " in trace_to_file");
    leaves_in_file(note_to_file, "last words");
}

static void show_three(void) {
    lt_progress p = {.plain_every_s = 1000.0}, never = {.plain_every_s = 0.0};
    lt_progress_show(&p, "step %d", 1);
    lt_progress_show(&p, "step 2"); /* Too early to be shown. */
    lt_progress_show(&never, "never");
    lt_progress_end(&p);
    lt_progress_show(&p, "step 3"); /* The same step in another run. */
    lt_log_info("behind");
}

static void show_often(void) {
    lt_progress p = {.plain_every_s = 0.05};
    lt_progress_show(&p, "a");
    usleep(80000);
    lt_progress_show(&p, "b");
}

static void progress(void **state) {
    (void)state;
    assert_string_equal(said_by(show_three, NULL), "step 1\nstep 3\nbehind\n");
    assert_string_equal(said_by(show_three, "warn"), "");
    assert_string_equal(said_by(show_often, NULL), "a\nb\n");
}

static void durations(void **state) {
    static const struct {
        double s;
        const char *text;
    } rows[] = {{-3.0, "0 s"},        {0.4, "0 s"},        {0.6, "1 s"},        {12.0, "12 s"},
                {59.4, "59 s"},       {59.6, "1:00"},      {60.0, "1:00"},      {245.0, "4:05"},
                {3599.0, "59:59"},    {3599.7, "1:00:00"}, {3600.0, "1:00:00"}, {3723.0, "1:02:03"},
                {90061.0, "25:01:01"}};
    char text[LT_CLOCK_TEXT_BYTES];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_string_equal(lt_duration_text(text, rows[i].s), rows[i].text);
    }
}

static void spans(void **state) {
    struct timeval tv = lt_clock_span(2.75);
    double unix_s, before;
    uint64_t ns;
    (void)state;
    assert_int_equal(tv.tv_sec, 2);
    assert_int_equal(tv.tv_usec, 750000);
    tv = lt_clock_span(-1.0);
    assert_true(tv.tv_sec == 0 && tv.tv_usec == 0);
    tv = lt_clock_span(0.25);
    assert_true(tv.tv_sec == 0 && tv.tv_usec == 250000);
    unix_s = lt_clock_unix_s();
    assert_true(unix_s >= (double)time(NULL) - 2.0 && unix_s <= (double)time(NULL) + 2.0);
    ns = lt_clock_ns();
    before = lt_clock_s();
    usleep(20000);
    assert_true(lt_clock_ns() - ns >= 20000000u && lt_clock_ns() - ns < 20000000000u);
    assert_true(lt_clock_s() - before >= 0.0199 && lt_clock_s() - before < 20.0);
    assert_true(before * 1e9 >= (double)ns - 1e6 && before * 1e9 <= (double)ns + 1e9);
}

static void mark(void *ctx, size_t i) {
    ((int *)ctx)[i]++;
}

static void threads(void **state) {
    int seen[100] = {0};
    const int before = lt_thread_count();
    (void)state;
    lt_thread_set_count(3);
    assert_int_equal(lt_thread_count(), 3);
    lt_parallel_for(99, mark, seen);
    for (int i = 0; i < 99; i++) {
        assert_int_equal(seen[i], 1);
    }
    assert_int_equal(seen[99], 0);
    lt_thread_set_count(before);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(levels),
                                       cmocka_unit_test(a_file),
                                       cmocka_unit_test(progress),
                                       cmocka_unit_test(durations),
                                       cmocka_unit_test(spans),
                                       cmocka_unit_test(threads),
                                       cmocka_unit_test(json_lines),
                                       cmocka_unit_test(messages_are_written_at_once),
                                       cmocka_unit_test(both_copies_have_one_time),
                                       cmocka_unit_test(the_longest_line)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
