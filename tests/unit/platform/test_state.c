/* What a copy records about its progress: cut at every byte, of another copy, locked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "platform/copy/state.h"

static char folder[64], path[96], key[LT_STATE_KEY_BYTES];

static int begin(void **state) {
    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/lateen-state-XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/f.state", folder);
    lt_state_key(key, "s3://b/k", "\"etag\"", "f", 100, 10);
    return 0;
}

static int end(void **state) {
    (void)state;
    return lt_file_remove_tree(folder) != LT_OK;
}

static void keys(void **state) {
    char other[LT_STATE_KEY_BYTES];
    (void)state;
    lt_state_key(other, "s3://b/k", "\"etag\"", "f", 100, 10);
    assert_string_equal(key, other);
    lt_state_key(other, "s3://b/l", "\"etag\"", "f", 100, 10);
    assert_string_not_equal(key, other);
    lt_state_key(other, "s3://b/k", "\"etah\"", "f", 100, 10);
    assert_string_not_equal(key, other);
    lt_state_key(other, "s3://b/k", "\"etag\"", "g", 100, 10);
    assert_string_not_equal(key, other);
    lt_state_key(other, "s3://b/k", "\"etag\"", "f", 101, 10);
    assert_string_not_equal(key, other);
    lt_state_key(other, "s3://b/k", "\"etag\"", "f", 100, 11);
    assert_string_not_equal(key, other);
    lt_state_key(other, "s3://b/k\"etag\"", "", "f", 100, 10);
    assert_string_not_equal(key, other);
}

static void written_and_read(void **state) {
    char upload[LT_STATE_UPLOAD_BYTES], other[LT_STATE_KEY_BYTES];
    lt_state_part parts[10] = {{0}};
    lt_state *s = NULL, *second = NULL;
    bool found;
    (void)state;
    assert_int_equal(lt_state_open(&s, path, key, NULL, upload, parts, 10, &found), LT_OK);
    assert_false(found);
    assert_int_equal(lt_state_add_upload(s, "id with blanks/+="), LT_OK);
    assert_int_equal(lt_state_add_part(s, 9, UINT64_MAX), LT_OK);
    assert_int_equal(lt_state_add_part(s, 0, 7), LT_OK);
    found = true;
    assert_int_equal(lt_state_open(&second, path, key, NULL, upload, parts, 10, &found),
                     LT_ERR_STATE);
    assert_false(found);
    lt_state_close(s, true);
    assert_int_equal(lt_state_open(&s, path, key, NULL, upload, parts, 10, &found), LT_OK);
    assert_true(found);
    assert_string_equal(upload, "id with blanks/+=");
    for (int i = 0; i < 10; i++) {
        assert_int_equal(parts[i].has, i == 0 || i == 9);
    }
    assert_true(parts[9].hash == UINT64_MAX && parts[0].hash == 7);
    assert_int_equal(lt_state_begin(s), LT_OK); /* It forgets them, and keeps the key. */
    lt_state_close(s, true);
    assert_int_equal(lt_state_open(&s, path, key, NULL, upload, parts, 10, &found), LT_OK);
    assert_true(found && upload[0] == '\0' && !parts[9].has);
    lt_state_close(s, true);
    lt_state_key(other, "another", "", "", 0, 0);
    assert_int_equal(lt_state_open(&s, path, other, NULL, upload, parts, 10, &found), LT_OK);
    assert_false(found);
    lt_state_close(s, false);
    assert_false(lt_file_exists(path));
}

/* Wherever the text is cut: complete lines count, others do not. */
static void texts_that_are_cut(void **state) {
    char text[256], upload[LT_STATE_UPLOAD_BYTES];
    lt_state_part parts[10];
    size_t kept = 0;
    (void)state;
    const int n = snprintf(text, sizeof text,
                           "lateen-copy 1\nkey %s\nupload u-1\npart 3 00000000000000ff\n"
                           "part 10 0000000000000001\npart -1 0000000000000001\npart 4 1 \n",
                           key);
    const char *whole[] = {strstr(text, "\nupload") + 1, strstr(text, "\npart 3") + 1,
                           strstr(text, "\npart 10") + 1};
    for (int bytes = 0; bytes <= n; bytes++) {
        const bool found = lt_state_read(text, (size_t)bytes, key, upload, parts, 10, &kept);
        assert_int_equal(found, text + bytes >= whole[0]);
        if (found) {
            assert_int_equal(upload[0] != '\0', text + bytes >= whole[1]);
            assert_int_equal(parts[3].has, text + bytes >= whole[2]);
            assert_true(!parts[3].has || parts[3].hash == 255);
            assert_true(!parts[4].has && kept <= (size_t)bytes && text[kept - 1] == '\n');
        }
    }
    /* What follows a line that was cut is not lost with it. */
    lt_state *s = NULL;
    bool found = false;
    assert_int_equal(lt_file_write_atomic(path, text, (size_t)(whole[2] - 5 - text)), LT_OK);
    assert_int_equal(lt_state_open(&s, path, key, NULL, upload, parts, 10, &found), LT_OK);
    assert_true(found && !parts[3].has);
    assert_int_equal(lt_state_add_part(s, 5, 1), LT_OK);
    lt_state_close(s, true);
    assert_int_equal(lt_state_open(&s, path, key, NULL, upload, parts, 10, &found), LT_OK);
    assert_true(found && !parts[3].has && parts[5].has);
    assert_string_equal(upload, "u-1"); /* The lines before it are not lost, either. */
    lt_state_close(s, false);
    text[strlen("lateen-copy ")] = '2';
    assert_false(lt_state_read(text, (size_t)n, key, upload, parts, 10, &kept));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys),
        cmocka_unit_test(written_and_read),
        cmocka_unit_test(texts_that_are_cut),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
