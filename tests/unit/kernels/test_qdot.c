/* Products with quantised matrices against ggml's generic dot products
 * (tools/make_quant_goldens.py), bit for bit: the reference, and every implementation of the CPU
 * backend that this machine can run. */
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
#include "kernels/registry.h"
#include "unit/device.h"

static void the_reference_equals_ggml(void **state) {
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

/* y (M, N) of one implementation against the reference's dot products. */
static void compare(const lt_op_impl *impl, const lt_matmul_args *a) {
    const int64_t M = a->y.shape[0], N = a->y.shape[1], K = a->a.shape[1];
    const lt_partner partner = lt_block_partner(a->b.dtype);
    const int64_t block = lt_partner_block(partner);
    lt_q8 *q8 = malloc((size_t)(K / block) * sizeof *q8);
    assert_int_equal(impl->run(NULL, a), LT_OK);
    for (int64_t m = 0; m < M; m++) {
        for (int64_t i = 0; i < K / block; i++) {
            lt_q8_encode(&q8[i], partner, (const float *)a->a.data + m * K + i * block);
        }
        for (int64_t n = 0; n < N; n++) {
            const lt_tensor row = lt_tensor_rows(&a->b, n, 1);
            const float want = lt_ref_qdot(a->b.dtype, row.data, q8, K);
            const float got = ((const float *)a->y.data)[m * N + n];
            if (memcmp(&got, &want, sizeof got) != 0) {
                fail_msg("%s, %s, M %d: y[%d][%d] = %.9g, not %.9g", impl->name,
                         lt_dtype_name(a->b.dtype), (int)M, (int)m, (int)n, (double)got,
                         (double)want);
            }
        }
    }
    free(q8);
}

static void every_kernel_equals_the_reference(void **state) {
    static const lt_dtype types[] = {LT_Q4_0, LT_Q4_1, LT_Q5_0, LT_Q5_1,
                                     LT_Q8_0, LT_Q4_K, LT_Q5_K, LT_Q6_K};
    enum { M = 19, N = 37, K = 512 };
    const lt_backend *cpu = lt_backend_cpu();
    const lt_op_list list = lt_registry_list(cpu, LT_OP_matmul);
    float *w = malloc(N * K * sizeof *w), *x = malloc(M * K * sizeof *x), *y = malloc(M * N * 4);
    unsigned char *b = malloc(N * K * 2);
    uint32_t seed = 1;
    int n_ran = 0;
    (void)state;
    for (int i = 0; i < N * K; i++) {
        seed = seed * 1664525u + 1013904223u;
        w[i] = (float)((int32_t)seed >> 8) * 0x1p-24f;
    }
    for (int i = 0; i < M * K; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = i / 64 % 9 == 0 ? 0.0f : (float)((int32_t)seed >> 20) * 0x1p-6f; /* With ties. */
    }
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        lt_block_encode(b, types[t], w, N * K);
        if (types[t] == LT_Q8_0) {
            memset(b + 2, 0x80, 32); /* -128, which no encoder writes. */
        }
        const lt_tensor bt = lt_tensor_2d(b, types[t], N, K);
        void *packed = NULL;
        const size_t bytes = cpu->matmul_pack_bytes(device_of(cpu), &bt, true);
        assert_true(bytes > 0);
        assert_int_equal(cpu->alloc(device_of(cpu), &packed, bytes, "packed"), LT_OK);
        assert_int_equal(cpu->ops->matmul_pack(NULL, &(lt_matmul_pack_args){packed, bt, true}),
                         LT_OK);
        for (int m = 1; m <= M; m += m < 5 ? 1 : 7) {
            const lt_matmul_args a = {.y = lt_tensor_2d(y, LT_F32, m, N),
                                      .a = lt_tensor_2d(x, LT_F32, m, K),
                                      .b = bt,
                                      .trans_b = true,
                                      .b_packed = packed};
            for (int i = 0; i < list.n_impls; i++) {
                if (list.impls[i].refuse == NULL || list.impls[i].refuse(&a, NULL) == NULL) {
                    compare(&list.impls[i], &a);
                    n_ran++;
                }
            }
        }
        cpu->release(device_of(cpu), packed, bytes);
    }
    assert_true(n_ran >= 2 * 8);
    free(w);
    free(x);
    free(y);
    free(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_reference_equals_ggml),
                                       cmocka_unit_test(every_kernel_equals_the_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
