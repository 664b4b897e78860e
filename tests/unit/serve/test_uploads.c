/* Uploads whose calls run at the same time on several threads: what has ended does not change,
 * and no part is left on disk. tests/e2e/serve_uploads.py tests everything else. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "serve/api/files/uploads.h"

#define PART_BYTES ((size_t)16 << 20)
#define N_THREADS  4

static lt_files *files;
static lt_uploads *uploads;
static char dir[64], *data;

static int open_all(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "%s", "/tmp/test_uploads.XXXXXX");
    assert_non_null(mkdtemp(dir));
    data = malloc(PART_BYTES);
    assert_non_null(data);
    for (size_t i = 0; i < PART_BYTES; i++) {
        data[i] = (char)(i * 2654435761u >> 24);
    }
    assert_int_equal(lt_files_open(&files, &(lt_files_options){dir, 100, (int64_t)1 << 40}), LT_OK);
    assert_int_equal(lt_uploads_open(&uploads, &(lt_uploads_options){.dir = dir,
                                                                     .files = files,
                                                                     .max_uploads = 100,
                                                                     .max_bytes = (int64_t)1 << 40,
                                                                     .pending_s = 3600}),
                     LT_OK);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    lt_uploads_close(uploads);
    lt_files_close(files);
    free(data);
    return lt_file_remove_tree(dir) != LT_OK;
}

static int parts_on_disk(void) {
    char path[LT_PATH_BYTES];
    char **names = NULL;
    size_t n = 0;
    assert_int_equal(lt_path_join(path, dir, "uploads"), LT_OK);
    assert_int_equal(lt_file_list(&names, &n, path), LT_OK);
    lt_file_list_free(names, n);
    return (int)n;
}

static void begin(const char *id, size_t bytes) {
    lt_upload t = {.bytes = (int64_t)bytes, .file = {.name = "x", .purpose = "batch"}};
    lt_api_error e = {0};
    snprintf(t.id, sizeof t.id, "%s", id);
    assert_true(lt_uploads_create(uploads, &t, &e));
}

/* ---- A part arrives while its upload is cancelled ---- */

static void *add(void *id) {
    lt_api_error e = {0};
    char part[LT_FILE_ID_BYTES];
    snprintf(part, sizeof part, "part_%s", (const char *)id);
    return lt_uploads_add(uploads, id, "", part, data, PART_BYTES, &e) ? id : NULL;
}

static void parts_of_cancelled_uploads_are_removed(void **state) {
    int n_late = 0;
    (void)state;
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        char id[32];
        void *kept = NULL;
        lt_upload t;
        lt_api_error e = {0};
        snprintf(id, sizeof id, "upload_%d", i);
        begin(id, PART_BYTES);
        assert_int_equal(pthread_create(&thread, NULL, add, id), 0);
        usleep((useconds_t)(500 * i)); /* Writing a part takes some milliseconds. */
        assert_true(lt_uploads_cancel(uploads, id, "", &t, &e));
        assert_int_equal(pthread_join(thread, &kept), 0);
        n_late += kept == NULL;
        assert_int_equal(parts_on_disk(), 0);
    }
    assert_true(n_late > 0); /* Otherwise nothing was tested. */
}

/* ---- Several calls complete it ---- */

static void *complete(void *ids) {
    static int n;
    char file[32];
    lt_upload t;
    lt_api_error e = {0};
    snprintf(file, sizeof file, "file-%d", __atomic_fetch_add(&n, 1, __ATOMIC_SEQ_CST));
    return lt_uploads_complete(uploads, "upload_c", "", ids, NULL, file, &t, &e) ? ids : NULL;
}

static void one_call_completes_it(void **state) {
    json_t *ids = json_pack("[s]", "part_upload_c");
    pthread_t threads[N_THREADS];
    int n_done = 0;
    size_t n_files = 0;
    (void)state;
    begin("upload_c", PART_BYTES);
    assert_non_null(add("upload_c"));
    for (int i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, complete, ids), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        void *done = NULL;
        assert_int_equal(pthread_join(threads[i], &done), 0);
        n_done += done != NULL;
    }
    lt_file_entry *list = lt_files_list(files, "", &n_files);
    assert_int_equal(n_done, 1);
    assert_int_equal(n_files, 1);
    assert_int_equal(list[0].bytes, PART_BYTES);
    assert_int_equal(parts_on_disk(), 0);
    free(list);
    json_decref(ids);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_of_cancelled_uploads_are_removed),
                                       cmocka_unit_test(one_call_completes_it)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, open_all, close_all);
}
