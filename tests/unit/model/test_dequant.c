/* ggml's block formats against the values of the `gguf` package (tools/make_dequant_goldens.py), bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "model/dequant.h"

static void every_format_is_exact(void **state) {
    lt_file_map map;
    size_t at = 0;
    int n_formats = 0;
    (void)state;
    assert_int_equal(lt_file_map_open(&map, "tests/golden/dequant.bin"), LT_OK);
    while (at < map.size_bytes) {
        uint32_t head[3];
        float got[2048], want[2048];
        memcpy(head, map.data + at, sizeof head);
        assert_true(head[2] <= 2048);
        assert_true(lt_dequant_serves((lt_ggml_type)head[0]));
        lt_dequant(got, (lt_ggml_type)head[0], map.data + at + sizeof head, head[2]);
        memcpy(want, map.data + at + sizeof head + head[1], head[2] * sizeof(float));
        assert_memory_equal(got, want, head[2] * sizeof(float));
        at += sizeof head + head[1] + head[2] * sizeof(float);
        n_formats++;
    }
    assert_int_equal(n_formats, 13);
    lt_file_map_close(&map);
}

static void others_are_refused(void **state) {
    (void)state;
    assert_false(lt_dequant_serves(LT_GGML_IQ2_XXS));
    assert_false(lt_dequant_serves(LT_GGML_I32));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_format_is_exact),
                                       cmocka_unit_test(others_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
