/* Products with quantised matrices against ggml's generic dot products (tools/make_quant_goldens.py), bit for bit: the reference, and every
 * implementation of the CPU backend that this machine runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "data/gguf.h"
#include "kernels/ref/qdot.h"

static void the_reference_is_ggmls(void **state) {
    lt_file_map map;
    uint32_t rows, cols, n_types = 0;
    (void)state;
    assert_int_equal(lt_file_map_open(&map, "tests/golden/quant.bin"), LT_OK);
    memcpy(&rows, map.data, 4);
    memcpy(&cols, map.data + 4, 4);
    const size_t values = (size_t)rows * cols * sizeof(float);
    float *a = malloc(values);
    lt_q8 *q8 = malloc(cols / 32 * sizeof *q8);
    memcpy(a, map.data + 8 + values, values);
    for (size_t at = 8 + 2 * values; at < map.size_bytes; n_types++) {
        uint32_t head[2];
        lt_dtype type = LT_I8;
        memcpy(head, map.data + at, sizeof head);
        at += sizeof head;
        assert_true(lt_ggml_type_dtype(head[0], &type));
        const int64_t block = lt_partner_block(lt_block_partner(type));
        for (uint32_t r = 0; r < rows; r++) {
            float want;
            memcpy(&want, map.data + at + rows * head[1] + r * sizeof want, sizeof want);
            for (int64_t i = 0; i < cols / block; i++) {
                lt_q8_encode(&q8[i], lt_block_partner(type), a + r * cols + i * block);
            }
            const float got = lt_ref_qdot(type, map.data + at + r * head[1], q8, cols);
            if (memcmp(&got, &want, sizeof got) != 0) {
                fail_msg("%s, row %u: %.9g, ggml has %.9g", lt_dtype_name(type), r, (double)got,
                         (double)want);
            }
        }
        at += rows * (head[1] + sizeof(float));
    }
    assert_int_equal(n_types, 8);
    free(a);
    free(q8);
    lt_file_map_close(&map);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_reference_is_ggmls)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
