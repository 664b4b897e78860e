/* Programs that run while their caller does something else: output, messages, status, deadline. */
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
#include "platform/command.h"

static void keeps_what_it_prints(void **state) {
    lt_command c;
    char *said = NULL;
    int status = 0;
    (void)state;
    assert_int_equal(
        lt_command_begin(
            &c, (const char *const[]){"sh", "-c", "cat; echo out; echo err >&2; exit 3", NULL},
            60.0),
        LT_OK);
    lt_command_wait(&c, &said, &status);
    assert_int_equal(status, 3);
    assert_string_equal(said, "out\nerr\n");
    assert_int_equal(c.pid, 0);
    free(said);
}

static void does_not_wait(void **state) {
    lt_command c;
    char *said = NULL;
    int status = 0;
    const double begin = lt_clock_s();
    (void)state;
    assert_int_equal(lt_command_begin(&c, (const char *const[]){"sleep", "60", NULL}, 0.3), LT_OK);
    assert_false(lt_command_has_ended(&c, &said, &status));
    lt_command_wait(&c, &said, &status); /* The deadline ends it. */
    assert_int_equal(status, -1);
    assert_string_equal(said, "");
    assert_true(lt_clock_s() - begin >= 0.3 && lt_clock_s() - begin < 30.0);
    free(said);
}

/* ---- Waiting for a program ---- */

static lt_err run(char **said, const char *line, double deadline_s) {
    return lt_command_run(said, (const char *const[]){"sh", "-c", line, NULL}, deadline_s);
}

static void all_output_is_read(void **state) {
    static const int lines[] = {0, 1, 1170, 1171, 20000}; /* 8,192 bytes end in line 1,171. */
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char line[96], want[16];
        char *said = NULL;
        (void)snprintf(line, sizeof line, "seq -f %%06.0f 1 %d; echo message >&2", lines[i]);
        assert_int_equal(run(&said, line, 60.0), LT_OK);
        assert_int_equal(strlen(said), 7 * (size_t)lines[i]);
        for (int k = 1; k <= lines[i]; k++) {
            (void)snprintf(want, sizeof want, "%06d\n", k);
            assert_memory_equal(said + 7 * (k - 1), want, 7);
        }
        free(said);
    }
}

static void other_ends_are_failures(void **state) {
    char *said = NULL;
    (void)state;
    assert_int_equal(run(&said, "echo said; exit 4", 60.0), LT_ERR_REMOTE);
    assert_string_equal(lt_error_message(), "sh -c: exit status 4");
    assert_int_equal(run(&said, "kill -9 $$", 60.0), LT_ERR_REMOTE);
    assert_string_equal(lt_error_message(), "sh -c: exit status -1");
    assert_int_equal(lt_command_run(&said, (const char *const[]){"false", NULL}, 60.0),
                     LT_ERR_REMOTE);
    assert_string_equal(lt_error_message(), "false : exit status 1");
    assert_int_equal(lt_command_run(&said, (const char *const[]){"no-such-program", NULL}, 60.0),
                     LT_ERR_NOT_FOUND);
    assert_null(said);
}

/* The message of a failure contains what the program wrote, in one line; what a successful
 * program wrote is passed through. */
static void messages_belong_to_the_failure(void **state) {
    static const struct {
        const char *line, *error, *passed;
    } rows[] = {
        {"echo a >&2; echo; printf '\\r\\n\\033b\\n' >&2; exit 4", "sh -c: exit status 4: a; ?b",
         ""},
        {"echo late >&2; sleep 60", "sh has not ended after 0.3 s: late", ""},
        {"echo a >&2", "", "a\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        FILE *aside = tmpfile();
        const int before = dup(STDERR_FILENO);
        char *said = NULL, passed[16] = "";
        lt_err err;
        assert_true(aside != NULL && before >= 0 && dup2(fileno(aside), STDERR_FILENO) >= 0);
        err = run(&said, rows[i].line, i == 1 ? 0.3 : 60.0);
        assert_true(dup2(before, STDERR_FILENO) >= 0);
        assert_int_equal(err, rows[i].error[0] != '\0' ? LT_ERR_REMOTE : LT_OK);
        assert_string_equal(err != LT_OK ? lt_error_message() : "", rows[i].error);
        rewind(aside);
        assert_string_equal(fgets(passed, sizeof passed, aside) != NULL ? passed : "",
                            rows[i].passed);
        (void)fclose(aside);
        (void)close(before);
        free(said);
    }
}

/* The deadline holds for a program that prints, for one that has closed its output, and for a
 * process that a program leaves behind with the output still open. */
static void the_deadline_is_kept(void **state) {
    static const char *const lines[] = {"sleep 60", "echo a; sleep 60", "exec >&-; sleep 60",
                                        "sleep 60 & exit 0", "yes | sleep 60"};
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const double begin_s = lt_clock_s();
        char *said = NULL;
        assert_int_equal(run(&said, lines[i], 0.3), LT_ERR_REMOTE);
        assert_string_equal(lt_error_message(), "sh has not ended after 0.3 s");
        assert_true(lt_clock_s() - begin_s >= 0.3 && lt_clock_s() - begin_s < 30.0);
        assert_null(said);
    }
}

/* A program that prints more than is kept is ended, and its output is not cut. */
static void too_much_output(void **state) {
    char *said = NULL;
    (void)state;
    /* 64 MiB with the final 0. */
    assert_int_equal(run(&said, "head -c 67108863 /dev/zero", 120.0), LT_OK);
    free(said);
    said = NULL;
    assert_int_equal(run(&said, "cat /dev/zero", 120.0), LT_ERR_LIMIT);
    assert_string_equal(lt_error_message(), "sh -c: more than 67108863 bytes of output");
    assert_null(said);
}

static void names_a_program_that_is_not_there(void **state) {
    lt_command c;
    (void)state;
    assert_int_equal(lt_command_begin(&c, (const char *const[]){"no-such-program", NULL}, 1.0),
                     LT_ERR_NOT_FOUND);
    assert_non_null(strstr(lt_error_message(), "no-such-program"));
    assert_int_equal(c.pid, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_what_it_prints),
        cmocka_unit_test(does_not_wait),
        cmocka_unit_test(all_output_is_read),
        cmocka_unit_test(other_ends_are_failures),
        cmocka_unit_test(messages_belong_to_the_failure),
        cmocka_unit_test(the_deadline_is_kept),
        cmocka_unit_test(too_much_output),
        cmocka_unit_test(names_a_program_that_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
