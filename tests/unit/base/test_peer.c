/* test_peer.c: peers that answer, have nothing to measure, never become ready, end early, or answer
 * nonsense. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/peer.h"

static const char *const none[] = {NULL};

static void test_answers(void **state) {
    lt_peer p;
    double x = 0.0;
    (void)state;
    assert_int_equal(lt_peer_open(&p, "echo ready; while read a b; do echo $((a + b + $2)); done",
                                  (const char *const[]){"one", "40", NULL}),
                     LT_OK);
    assert_int_equal(lt_peer_ask(&p, "1 1", &x), LT_OK);
    assert_true(x == 42.0);
    assert_int_equal(lt_peer_ask(&p, "2 3", &x), LT_OK);
    assert_true(x == 45.0);
    lt_peer_close(&p);
    lt_peer_close(&p); /* No-op on a zeroed peer. */
}

/* The peer holds only the ends of the pipes that it uses, each as its standard input or output
 * and as the original descriptor. */
static void test_ends_of_pipes(void **state) {
    static const char command[] =
        "count() { n=0; for f in /proc/$$/fd/*; do [ \"$(readlink $f)\" = \"$1\" ] && "
        "n=$((n + 1)); done; }; count \"$(readlink /proc/$$/fd/0)\"; in=$n; "
        "count \"$(readlink /proc/$$/fd/1)\"; echo ready; read a; echo $((in * 10 + n))";
    lt_peer p;
    double x = 0.0;
    (void)state;
    assert_int_equal(lt_peer_open(&p, command, none), LT_OK);
    assert_int_equal(lt_peer_ask(&p, "x", &x), LT_OK);
    assert_int_equal(x, 22);
    lt_peer_close(&p);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* No process is left to wait for. */
}

static void test_nothing_to_measure(void **state) {
    lt_peer p;
    double x = 1.0;
    (void)state;
    assert_int_equal(lt_peer_open(&p, "echo ready; while read a; do echo $a; done", none), LT_OK);
    assert_int_equal(lt_peer_ask(&p, "-", &x), LT_OK);
    assert_true(x == 0.0);
    assert_int_equal(lt_peer_ask(&p, "3", &x), LT_OK); /* It keeps answering. */
    assert_true(x == 3.0);
    lt_peer_close(&p);
}

static void test_never_ready(void **state) {
    lt_peer p;
    (void)state;
    assert_int_equal(lt_peer_open(&p, "echo not yet", none), LT_ERR_REMOTE);
    assert_non_null(strstr(lt_error_message(), "did not start: echo not yet"));
    lt_peer_close(&p);
}

static void test_ends(void **state) {
    lt_peer p;
    double x;
    (void)state;
    assert_int_equal(lt_peer_open(&p, "echo ready; read a; echo 1", none), LT_OK);
    assert_int_equal(lt_peer_ask(&p, "x", &x), LT_OK);
    assert_int_equal(lt_peer_ask(&p, "y", &x), LT_ERR_REMOTE);
    assert_non_null(strstr(lt_error_message(), "ended at 'y'"));
    lt_peer_close(&p);
}

static void test_nonsense(void **state) {
    lt_peer p;
    double x;
    (void)state;
    assert_int_equal(lt_peer_open(&p, "echo ready; while read a; do echo $a; done", none), LT_OK);
    assert_int_equal(lt_peer_ask(&p, "oh", &x), LT_ERR_REMOTE);
    assert_non_null(strstr(lt_error_message(), "answered 'oh'"));
    assert_int_equal(lt_peer_ask(&p, "nan", &x), LT_ERR_REMOTE);
    assert_int_equal(lt_peer_ask(&p, "-1", &x), LT_ERR_REMOTE);
    assert_int_equal(lt_peer_ask(&p, "--", &x), LT_ERR_REMOTE);
    assert_int_equal(lt_peer_ask(&p, "2.5", &x), LT_OK);
    lt_peer_close(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_answers),
                                       cmocka_unit_test(test_ends_of_pipes),
                                       cmocka_unit_test(test_nothing_to_measure),
                                       cmocka_unit_test(test_never_ready),
                                       cmocka_unit_test(test_ends),
                                       cmocka_unit_test(test_nonsense)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
