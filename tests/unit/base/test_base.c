/* Errors, arenas, random numbers, files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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

static void permutation_is_one(void **state) {
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

static void normal_has_its_moments(void **state) {
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
    size_t bytes;
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(lt_path_join(path, folder, "a/b"), LT_OK);
    assert_int_equal(lt_file_make_dirs(path), LT_OK);
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
    assert_int_equal(lt_file_remove_tree(folder), LT_OK);
    assert_false(lt_file_exists(folder));
    assert_int_equal(lt_file_map_open(&map, path), LT_ERR_NOT_FOUND);
    assert_non_null(strstr(lt_error_message(), path));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_names_the_object),
        cmocka_unit_test(arena_measures_what_it_places),
        cmocka_unit_test(philox_matches_known_answers),
        cmocka_unit_test(permutation_is_one),
        cmocka_unit_test(normal_has_its_moments),
        cmocka_unit_test(files_are_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
