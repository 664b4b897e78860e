/* Programs that run while their caller does something else: output, messages, status, deadline. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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
        cmocka_unit_test(names_a_program_that_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
