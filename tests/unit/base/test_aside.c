/* Files and folders that have a temporary name until they are complete: published, given up,
 * interrupted by a signal. */
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

#include "base/aside.h"
#include "base/error.h"

static char folder[] = "/tmp/lateen-test-XXXXXX";

static const char *at(const char *name) {
    static char paths[4][LT_PATH_BYTES];
    static int next;
    char *path = paths[next++ % 4];
    assert_int_equal(lt_path_join(paths[(next - 1) % 4], folder, name), LT_OK);
    return path;
}

static void put(const char *in, const char *name) {
    char path[LT_PATH_BYTES];
    assert_int_equal(lt_path_join(path, in, name), LT_OK);
    assert_int_equal(lt_file_write_atomic(path, "x", 1), LT_OK);
}

static size_t n_names(void) {
    char **names;
    size_t n;
    assert_int_equal(lt_file_list(&names, &n, folder), LT_OK);
    lt_file_list_free(names, n);
    return n;
}

static void files(void **state) {
    lt_aside a;
    char *text;
    size_t bytes;
    (void)state;
    assert_int_equal(lt_aside_open(&a, at("file")), LT_OK);
    assert_true(fputs("whole", a.file) > 0);
    assert_true(!lt_file_exists(at("file")) && lt_file_exists(at("file.tmp")));
    assert_int_equal(lt_aside_publish(&a), LT_OK);
    lt_aside_close(&a);
    lt_aside_close(&a);
    assert_int_equal(lt_file_read(&text, &bytes, at("file"), 100), LT_OK);
    assert_string_equal(text, "whole");
    free(text);
    assert_int_equal(lt_aside_open(&a, at("file")), LT_OK); /* The old file stays. */
    lt_aside_close(&a);
    assert_true(lt_file_exists(at("file")) && n_names() == 1);
    assert_int_equal(unlink(at("file")), 0);
    assert_int_equal(lt_aside_open(&a, at("no/file")), LT_ERR_IO);
    assert_non_null(strstr(lt_error_message(), "no/file.tmp: No such file"));
    lt_aside_close(&a);
    assert_int_equal(lt_aside_open(&a, folder), LT_ERR_IO); /* A file cannot take its place. */
}

static void folders(void **state) {
    lt_aside a, b;
    (void)state;
    assert_int_equal(lt_aside_open_folder(&a, at("over/model/")), LT_OK);
    assert_string_equal(a.path, at("over/model.tmp"));
    put(a.path, "weights");
    assert_int_equal(lt_aside_open_folder(&b, at("over/model")), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "over/model.tmp exists already"));
    lt_aside_close(&b); /* The folder belongs to no one, so it stays. */
    assert_int_equal(lt_aside_publish(&a), LT_OK);
    lt_aside_close(&a);
    assert_true(lt_file_exists(at("over/model/weights")) && !lt_file_exists(at("over/model.tmp")));
    assert_int_equal(lt_aside_open_folder(&a, at("given up")), LT_OK);
    put(a.path, "weights");
    lt_aside_close(&a);
    assert_int_equal(lt_file_remove_tree(at("over")), LT_OK);
    assert_int_equal(n_names(), 0);
}

/* More names than fit into the buffer of the handler. */
static void a_signal_removes_unfinished_files(void **state) {
    int status;
    (void)state;
    const pid_t child = fork();
    if (child == 0) {
        lt_aside a = {0}, b = {0};
        bool made = lt_aside_open(&a, at("file")) == LT_OK &&
                    lt_aside_open_folder(&b, at("model")) == LT_OK;
        for (int i = 0; made && i < 300; i++) {
            char name[LT_PATH_BYTES + 64];
            (void)snprintf(name, sizeof name, "%s/%040d", b.path, i);
            FILE *f = fopen(name, "w");
            made = f != NULL && fclose(f) == 0;
        }
        (void)raise(made ? SIGTERM : SIGKILL);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    assert_int_equal(n_names(), 0);
}

/* After the last one is closed, a signal ends the process as before; an ignored signal stays
 * ignored. */
static void handlers_are_restored(void **state) {
    struct sigaction now;
    lt_aside a, b;
    (void)state;
    (void)signal(SIGHUP, SIG_IGN);
    assert_int_equal(lt_aside_open(&a, at("a")), LT_OK);
    assert_int_equal(lt_aside_open(&b, at("b")), LT_OK);
    lt_aside_close(&a);
    assert_int_equal(sigaction(SIGTERM, NULL, &now), 0);
    assert_true(now.sa_handler != SIG_DFL);
    lt_aside_close(&b);
    assert_int_equal(sigaction(SIGTERM, NULL, &now), 0);
    assert_true(now.sa_handler == SIG_DFL);
    assert_int_equal(sigaction(SIGHUP, NULL, &now), 0);
    assert_true(now.sa_handler == SIG_IGN);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(files), cmocka_unit_test(folders),
                                       cmocka_unit_test(a_signal_removes_unfinished_files),
                                       cmocka_unit_test(handlers_are_restored)};
    int failed;
    if (mkdtemp(folder) == NULL) {
        return 1;
    }
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    return lt_file_remove_tree(folder) == LT_OK ? failed : 1;
}
