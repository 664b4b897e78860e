/* test_cuda_compile.c: kernel texts, NVRTC and its disk cache; and that a machine without a driver
 * gets a clear error. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "kernels/cuda/compile.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/source.h"

static char cache[] = "/tmp/lateen-cache-XXXXXX";

static int setup(void **state) {
    (void)state;
    return mkdtemp(cache) != NULL && setenv("LATEEN_CACHE_DIR", cache, 1) == 0 ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    return lt_file_remove_tree(cache) == LT_OK ? 0 : -1;
}

static void need_nvrtc(void) {
    int version;
    if (lt_nvrtc_version(&version, NULL) != LT_OK) {
        skip();
    }
}

static void text_and_includes(void **state) {
    lt_source s;
    uint64_t hash;
    (void)state;
    assert_int_equal(lt_source_open(&s, "random.cu"), LT_OK);
    assert_string_equal(s.name[0], "random.cu");
    assert_string_equal(s.name[1], "common/types.cuh");
    assert_non_null(strstr(s.text[1], "f32_to_bf16"));
    hash = s.hash;
    lt_source_close(&s);
    assert_int_equal(lt_source_open(&s, "random.cu"), LT_OK);
    assert_true(s.hash == hash);
    lt_source_close(&s);
    assert_int_equal(lt_source_open(&s, "nothing.cu"), LT_ERR_NOT_FOUND);
    assert_non_null(strstr(lt_error_message(), "nothing.cu"));
}

static void kernel_dir_overrides(void **state) {
    lt_source s;
    char path[LT_PATH_BYTES];
    static const char text[] = "#include \"b.cuh\"\n";
    (void)state;
    assert_int_equal(lt_path_join(path, cache, "a.cu"), LT_OK);
    assert_int_equal(lt_file_write_atomic(path, text, sizeof text - 1), LT_OK);
    setenv("LATEEN_KERNEL_DIR", cache, 1);
    /* b.cuh is missing, and the message names it. */
    assert_int_not_equal(lt_source_open(&s, "a.cu"), LT_OK);
    assert_non_null(strstr(lt_error_message(), "b.cuh"));
    assert_int_equal(lt_path_join(path, cache, "b.cuh"), LT_OK);
    /* A cycle ends. */
    assert_int_equal(lt_file_write_atomic(path, "#include \"a.cu\"\n", 16), LT_OK);
    assert_int_equal(lt_source_open(&s, "a.cu"), LT_OK);
    assert_int_equal(s.n_parts, 2);
    lt_source_close(&s);
    unsetenv("LATEEN_KERNEL_DIR");
}

static void compile_once(void **state) {
    lt_cubin c;
    lt_kernel_cost cost;
    int n;
    (void)state;
    need_nvrtc();
    assert_int_equal(lt_cubin_get(&c, "copy.cu", "UNROLL=2", "sm_80"), LT_OK);
    assert_false(c.from_cache);
    assert_int_equal(lt_cubin_costs(&c, &cost, 1, &n), LT_OK);
    assert_int_equal(n, 1);
    assert_string_equal(cost.entry, "copy");
    assert_true(cost.n_regs > 4 && cost.n_regs < 256 && cost.code_bytes > 0 &&
                cost.spill_store_bytes == 0);
    lt_cubin_close(&c);
    assert_int_equal(lt_cubin_get(&c, "copy.cu", "UNROLL=2", "sm_80"), LT_OK);
    assert_true(c.from_cache);
    lt_cubin_close(&c);
    assert_int_equal(lt_cubin_get(&c, "copy.cu", "UNROLL=99", "sm_80"), LT_ERR_DEVICE);
    assert_non_null(strstr(lt_error_message(), "vectors in flight"));
    assert_non_null(strstr(lt_error_message(), "UNROLL=99"));
}

static void damaged_cache_is_noticed(void **state) {
    lt_cubin c;
    char **names, path[LT_PATH_BYTES];
    size_t n;
    (void)state;
    need_nvrtc();
    assert_int_equal(lt_cubin_get(&c, "copy.cu", "UNROLL=3", "sm_80"), LT_OK);
    lt_cubin_close(&c);
    assert_int_equal(lt_file_list(&names, &n, cache), LT_OK);
    for (size_t i = 0; i < n; i++) { /* Flip the last byte of each file. */
        if (lt_path_has_suffix(names[i], ".cubin")) {
            char *data;
            size_t bytes;
            assert_int_equal(lt_path_join(path, cache, names[i]), LT_OK);
            assert_int_equal(lt_file_read(&data, &bytes, path, 1 << 26), LT_OK);
            data[bytes - 1] = (char)~data[bytes - 1];
            assert_int_equal(lt_file_write_atomic(path, data, bytes), LT_OK);
            free(data);
        }
    }
    lt_file_list_free(names, n);
    assert_int_equal(lt_cubin_get(&c, "copy.cu", "UNROLL=3", "sm_80"), LT_OK);
    assert_false(c.from_cache);
    lt_cubin_close(&c);
}

static void processes_share_the_cache(void **state) {
    (void)state;
    need_nvrtc();
    for (int i = 0; i < 4; i++) {
        const pid_t child = fork();
        if (child == 0) {
            lt_cubin c = {0};
            _exit(lt_cubin_get(&c, "copy.cu", "UNROLL=5", "sm_80") == LT_OK && c.size_bytes > 0
                      ? 0
                      : 1);
        }
        assert_true(child > 0);
    }
    for (int i = 0; i < 4; i++) {
        int status = 1;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    lt_cubin c;
    assert_int_equal(lt_cubin_get(&c, "copy.cu", "UNROLL=5", "sm_80"), LT_OK);
    assert_true(c.from_cache);
    lt_cubin_close(&c);
}

static void a_missing_driver_is_reported(void **state) {
    int n;
    (void)state;
    if (lt_cuda_count(&n) == LT_OK) {
        skip();
    }
    assert_true(strlen(lt_error_message()) > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_and_includes),
        cmocka_unit_test(kernel_dir_overrides),
        cmocka_unit_test(compile_once),
        cmocka_unit_test(damaged_cache_is_noticed),
        cmocka_unit_test(processes_share_the_cache),
        cmocka_unit_test(a_missing_driver_is_reported),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
