/* Errors, arenas, random numbers, files. */
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

#include "base/arena.h"
#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"

static void error_names_the_object(void **state) {
    (void)state;
    assert_int_equal(lt_error_set(LT_ERR_IO, "shard %s: %d bytes", "a.bin", 7), LT_ERR_IO);
    assert_string_equal(lt_error_message(), "shard a.bin: 7 bytes");
    (void)lt_error_prefix(LT_ERR_IO, "rank %d", 3);
    assert_string_equal(lt_error_message(), "rank 3: shard a.bin: 7 bytes");
    assert_string_equal(lt_err_text(LT_ERR_FORMAT), "malformed input");
}

static void arena_measures_what_it_places(void **state) {
    lt_arena a = {0};
    unsigned char *p, *q;
    (void)state;
    assert_null(lt_arena_take(&a, 100, 64));
    assert_null(lt_arena_take(&a, 1000, 256));
    assert_int_equal(a.used_bytes, 256 + 1000);
    assert_int_equal(lt_arena_open(&a, "test"), LT_OK);
    p = lt_arena_take(&a, 100, 64);
    q = lt_arena_take(&a, 1000, 256);
    assert_int_equal((uintptr_t)q % 256, 0);
    assert_true(q >= p + 100);
    assert_int_equal(q[999], 0);
    assert_int_equal(a.used_bytes, a.size_bytes);
    lt_arena_close(&a);
    lt_arena_close(&a);
}

/* Known answers of the Random123 distribution (kat_vectors, philox4x32 10). */
static void philox_matches_known_answers(void **state) {
    uint32_t out[4];
    (void)state;
    lt_rng_block(out, 0, 0, 0);
    assert_int_equal(out[0], 0x6627e8d5);
    assert_int_equal(out[1], 0xe169c58d);
    assert_int_equal(out[2], 0xbc57ac4c);
    assert_int_equal(out[3], 0x9b00dbd8);
    lt_rng_block(out, UINT64_MAX, UINT64_MAX, UINT64_MAX);
    assert_int_equal(out[0], 0x408f276d);
    assert_int_equal(out[1], 0x41c83b0e);
    assert_int_equal(out[2], 0xa20bc7c6);
    assert_int_equal(out[3], 0x6d5451fd);
    lt_rng_block(out, 0x299f31d0a4093822u, 0x0370734413198a2eu, 0x85a308d3243f6a88u);
    assert_int_equal(out[0], 0xd16cfe09);
    assert_int_equal(out[1], 0x94fdcceb);
    assert_int_equal(out[2], 0x5001e420);
    assert_int_equal(out[3], 0x24126ea1);
}

static void a_permutation_has_each_number_once(void **state) {
    (void)state;
    for (uint64_t n = 1; n < 300; n = n * 2 + 1) {
        unsigned char seen[512] = {0};
        for (uint64_t i = 0; i < n; i++) {
            const uint64_t to = lt_rng_permute(i, n, 42, 3);
            assert_true(to < n);
            assert_int_equal(seen[to]++, 0);
        }
    }
}

static void normal_numbers_have_mean_and_deviation(void **state) {
    lt_rng r = {.seed = 1, .stream = 2};
    double sum = 0, squares = 0;
    const int n = 100000;
    (void)state;
    for (int i = 0; i < n; i++) {
        const double x = lt_rng_normal(&r);
        sum += x;
        squares += x * x;
    }
    assert_true(sum / n > -0.02 && sum / n < 0.02);
    assert_true(squares / n > 0.97 && squares / n < 1.03);
}

static void files_are_whole(void **state) {
    char folder[] = "/tmp/lateen-test-XXXXXX", path[LT_PATH_BYTES], *text;
    lt_file_map map;
    struct stat st;
    size_t bytes;
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(lt_path_join(path, folder, "a/b"), LT_OK);
    const mode_t masked = umask(0); /* So that all bits of the mode apply. */
    assert_int_equal(lt_file_make_dirs(path), LT_OK);
    umask(masked);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0755);
    assert_int_equal(lt_path_join(path, folder, "c/d/x"), LT_OK);
    assert_int_equal(lt_file_make_parent(path), LT_OK);
    assert_false(lt_file_exists(path));
    *strrchr(path, '/') = '\0';
    assert_true(lt_file_is_dir(path));
    assert_int_equal(lt_file_make_parent("x"), LT_OK);
    assert_int_equal(lt_file_make_parent("/x"), LT_OK);
    assert_int_equal(lt_path_join(path, folder, "a/b/x"), LT_OK);
    assert_int_equal(lt_file_write_atomic(path, "hello", 5), LT_OK);
    assert_int_equal(lt_file_read(&text, &bytes, path, 5), LT_OK);
    assert_string_equal(text, "hello");
    free(text);
    assert_int_equal(lt_file_read(&text, &bytes, path, 4), LT_ERR_LIMIT);
    assert_int_equal(lt_file_map_open(&map, path), LT_OK);
    assert_memory_equal(map.data, "hello", 5);
    lt_file_map_close(&map);
    assert_int_equal(lt_file_map_open(&map, folder), LT_ERR_IO);
    assert_int_equal(lt_path_join(path, folder, "link"), LT_OK);
    assert_int_equal(symlink("a/gone", path), 0);
    assert_true(lt_file_has_name(path) && !lt_file_exists(path));
    assert_int_equal(lt_file_map_open(&map, path), LT_ERR_NOT_FOUND);
    assert_non_null(
        strstr(lt_error_message(), "/link: it is a broken link: its target a/gone is not"));
    assert_int_equal(lt_file_remove_tree(folder), LT_OK);
    assert_false(lt_file_exists(folder));
    assert_int_equal(lt_file_map_open(&map, path), LT_ERR_NOT_FOUND);
    assert_non_null(strstr(lt_error_message(), path));
}

/* Sizes near those of buffers; files without a size; an empty file. */
static void files_of_any_size(void **state) {
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 70000};
    char folder[] = "/tmp/lateen-test-XXXXXX", path[LT_PATH_BYTES], copy[LT_PATH_BYTES],
         *text = NULL;
    char *data = malloc(70000);
    size_t bytes = 1;
    lt_file_map map;
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(lt_path_join(path, folder, "x"), LT_OK);
    assert_int_equal(lt_path_join(copy, folder, "y"), LT_OK);
    for (size_t i = 0; i < 70000; i++) {
        data[i] = (char)(i * i % 251);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(lt_file_write_atomic(path, data, sizes[i]), LT_OK);
        assert_int_equal(lt_file_copy(path, copy, 70000), LT_OK);
        assert_int_equal(lt_file_read(&text, &bytes, copy, sizes[i]), LT_OK);
        assert_int_equal(bytes, sizes[i]);
        assert_memory_equal(text, data, sizes[i]);
        assert_int_equal(text[bytes], '\0');
        free(text);
        assert_int_equal(lt_file_map_open(&map, path), LT_OK);
        assert_int_equal(map.size_bytes, sizes[i]);
        assert_memory_equal(map.data, data, sizes[i]);
        lt_file_map_forget(&map);
        assert_memory_equal(map.data, data, sizes[i]); /* Read a second time. */
        lt_file_map_close(&map);
        assert_true(map.data == NULL && map.size_bytes == 0);
    }
    assert_int_equal(lt_file_copy(path, copy, 69999), LT_ERR_LIMIT);
    int ends[2]; /* A pipe has no size and delivers pieces. */
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], data, 30000), 30000);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    close(ends[1]);
    assert_int_equal(lt_file_read(&text, &bytes, path, 30000), LT_OK);
    close(ends[0]);
    assert_int_equal(bytes, 30000);
    assert_memory_equal(text, data, 30000);
    free(text);
    assert_int_equal(lt_file_read(&text, NULL, "/proc/self/status", 1 << 20), LT_OK);
    assert_memory_equal(text, "Name:", 5);
    free(text);
    text = NULL;
    assert_int_equal(lt_file_read(&text, NULL, folder, 100), LT_ERR_IO);
    assert_int_equal(lt_file_read(&text, NULL, "/nowhere/at/all", 100), LT_ERR_NOT_FOUND);
    assert_null(text);
    assert_int_equal(lt_file_remove_tree(folder), LT_OK);
    assert_int_equal(lt_file_remove_tree(folder), LT_OK); /* Absent: no error. */
    free(data);
}

/* A write that fails leaves neither the file nor a part of it; an existing file stays. */
static void failed_writes(void **state) {
    char folder[] = "/tmp/lateen-test-XXXXXX", path[LT_PATH_BYTES], aside[LT_PATH_BYTES], *text;
    char longest[LT_PATH_BYTES + 8];
    struct stat st;
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(lt_path_join(path, folder, "none/x"), LT_OK);
    assert_int_equal(lt_file_write_atomic(path, "a", 1), LT_ERR_IO);
    assert_int_equal(lt_path_join(path, folder, "x"), LT_OK);
    assert_int_equal(lt_file_make_dirs(path), LT_OK); /* Now a folder has that name. */
    assert_int_equal(lt_file_write_atomic(path, "a", 1), LT_ERR_IO);
    assert_non_null(strstr(lt_error_message(), "is a folder"));
    assert_int_equal(lt_path_join(aside, folder, "x.tmp"), LT_OK);
    assert_false(lt_file_exists(aside));
    assert_int_equal(lt_path_join(path, folder, "pipe"), LT_OK);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(lt_file_write_atomic(path, "a", 1), LT_ERR_IO);
    assert_true(lstat(path, &st) == 0 && S_ISFIFO(st.st_mode));
    assert_int_equal(lt_path_join(path, folder, "y"), LT_OK);
    assert_int_equal(lt_file_write_atomic(path, "old", 3), LT_OK);
    assert_int_equal(lt_path_join(aside, folder, "y.tmp"), LT_OK);
    assert_int_equal(lt_file_make_dirs(aside), LT_OK); /* In the way of the next write. */
    assert_int_equal(lt_file_write_atomic(path, "new", 3), LT_ERR_IO);
    assert_int_equal(lt_file_read(&text, NULL, path, 3), LT_OK);
    assert_string_equal(text, "old");
    free(text);
    memset(longest, 'x', sizeof longest);
    longest[LT_PATH_BYTES - 4] = '\0';
    /* There is no room for .tmp. */
    assert_int_equal(lt_file_write_atomic(longest, "a", 1), LT_ERR_LIMIT);
    assert_int_equal(lt_file_remove_tree(folder), LT_OK);
}

static void folders(void **state) {
    char folder[] = "/tmp/lateen-test-XXXXXX", path[LT_PATH_BYTES], longest[LT_PATH_BYTES + 8],
         **names;
    size_t n = 0;
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(lt_file_list(&names, &n, folder), LT_OK);
    assert_int_equal(n, 0);
    lt_file_list_free(names, n);
    for (int i = 39; i >= 0; i--) {
        char name[16];
        snprintf(name, sizeof name, "f%02d", i);
        assert_int_equal(lt_path_join(path, folder, name), LT_OK);
        assert_int_equal(lt_file_write_atomic(path, "", 0), LT_OK);
    }
    assert_int_equal(lt_path_join(path, folder, ".hidden"), LT_OK);
    assert_int_equal(lt_file_write_atomic(path, "", 0), LT_OK);
    assert_int_equal(lt_file_list(&names, &n, folder), LT_OK);
    assert_int_equal(n, 41);
    assert_string_equal(names[0], ".hidden"); /* In order. */
    assert_string_equal(names[1], "f00");
    assert_string_equal(names[40], "f39");
    lt_file_list_free(names, n);
    lt_file_list_free(NULL, 0);
    assert_int_equal(lt_file_list(&names, &n, "/nowhere"), LT_ERR_NOT_FOUND);
    assert_int_equal(lt_file_list(&names, &n, path), LT_ERR_IO);
    assert_int_equal(lt_file_make_dirs(path), LT_ERR_IO);
    assert_int_equal(lt_file_make_dirs(""), LT_ERR_ARG);
    assert_int_equal(lt_path_join(path, folder, "a/b/c/"), LT_OK);
    assert_int_equal(lt_file_make_dirs(path), LT_OK);
    assert_int_equal(lt_file_make_dirs(path), LT_OK);
    assert_true(lt_file_is_dir(path));
    assert_int_equal(lt_path_join(path, folder, "f00"), LT_OK);
    assert_false(lt_file_is_dir(path));
    memset(longest, 'x', sizeof longest);
    longest[LT_PATH_BYTES] = '\0';
    assert_int_equal(lt_file_make_dirs(longest), LT_ERR_ARG);
    longest[LT_PATH_BYTES - 2] = '\0';
    assert_int_equal(lt_path_join(path, "", longest), LT_OK);
    assert_int_equal(lt_path_join(path, "a", longest), LT_ERR_LIMIT);
    assert_int_equal(lt_file_sync_dir("/nowhere"), LT_ERR_IO);
    assert_int_equal(lt_file_sync_dir(folder), LT_OK);
    assert_int_equal(lt_file_sync_parent("VERSION"), LT_OK);
    assert_int_equal(lt_file_sync_parent("/tmp"), LT_OK);
    assert_true(lt_path_has_suffix("a.json", ".json"));
    assert_true(lt_path_has_suffix(".json", ".json"));
    assert_false(lt_path_has_suffix("json", ".json"));
    assert_false(lt_path_has_suffix("a.jsonl", ".json"));
    assert_int_equal(lt_file_remove_tree(folder), LT_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_names_the_object),
        cmocka_unit_test(arena_measures_what_it_places),
        cmocka_unit_test(philox_matches_known_answers),
        cmocka_unit_test(a_permutation_has_each_number_once),
        cmocka_unit_test(normal_numbers_have_mean_and_deviation),
        cmocka_unit_test(files_are_whole),
        cmocka_unit_test(files_of_any_size),
        cmocka_unit_test(failed_writes),
        cmocka_unit_test(folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
