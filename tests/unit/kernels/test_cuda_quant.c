/* Products with ggml's block formats on a GPU against the blocks' own values in double; skipped where there is no GPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "tensor/block.h"
#include "tensor/ops.h"

enum { K = 768, N = 77, M_MOST = 40 };

typedef struct {
    const lt_backend *b;
    lt_queue *q;
    float weights[N * K], x[M_MOST * K];
    unsigned char blocks[N * K * 2];
    uint16_t x16[M_MOST * K], bias[N];
    float y[M_MOST * N];
    void *d_blocks, *d_packed, *d_x, *d_y, *d_bias, *d_ids;
    size_t packed_bytes;
} bench;

static float uniform(lt_rng *r) {
    return (float)lt_rng_below(r, 2001) / 1000.0f - 1.0f;
}

static void make(bench *t, lt_dtype type) {
    lt_rng r = {.seed = 7, .stream = (uint64_t)type};
    for (int i = 0; i < N * K; i++) {
        t->weights[i] = uniform(&r) + 0.3f;
    }
    lt_block_encode(t->blocks, type, t->weights, N * K);
    lt_block_decode(t->weights, type, t->blocks, N * K);
    for (int i = 0; i < M_MOST * K; i++) {
        t->x16[i] = lt_f32_to_bf16(uniform(&r));
        t->x[i] = lt_bf16_to_f32(t->x16[i]);
    }
    for (int i = 0; i < N; i++) {
        t->bias[i] = lt_f32_to_bf16(uniform(&r));
    }
}

static void place(bench *t, lt_dtype type) {
    const lt_tensor b = lt_tensor_2d(t->d_blocks, type, N, K);
    const size_t bytes = N * lt_dtype_row_bytes(type, K);
    t->packed_bytes = t->b->matmul_pack_bytes(&b, true);
    assert_true(t->packed_bytes > 0);
    assert_int_equal(t->b->alloc(&t->d_packed, t->packed_bytes, "packed"), LT_OK);
    assert_int_equal(t->b->upload(t->q, t->d_blocks, t->blocks, bytes), LT_OK);
    assert_int_equal(t->b->upload(t->q, t->d_x, t->x16, sizeof t->x16), LT_OK);
    assert_int_equal(t->b->upload(t->q, t->d_bias, t->bias, sizeof t->bias), LT_OK);
    assert_int_equal(t->b->ops->matmul_pack(
                         t->q, &(lt_matmul_pack_args){.dst = t->d_packed, .b = b, .trans_b = true}),
                     LT_OK);
}

/* 32-bit sums of K products of numbers up to 1.3: far below 1e-3. K formats: scales are rounded to F16, 2^-11 of each weight. More than 8 rows: weights are
 * rounded to BF16, 2^-9 of each. Errors add up like sqrt(K); the sums themselves are about 10. */
static void check(bench *t, lt_dtype type, int m, bool bias) {
    const double tolerance = m > 8 ? 1e-1 : lt_dtype_block(type, &(size_t){0}) > 32 ? 3e-2 : 1e-3;
    const lt_matmul_args a = {.y = lt_tensor_2d(t->d_y, LT_F32, m, N),
                              .a = lt_tensor_2d(t->d_x, LT_BF16, m, K),
                              .b = lt_tensor_2d(t->d_blocks, type, N, K),
                              .bias = bias ? lt_tensor_1d(t->d_bias, LT_BF16, N) : (lt_tensor){0},
                              .trans_b = true,
                              .b_packed = t->d_packed};
    double worst = 0.0;
    assert_int_equal(t->b->ops->matmul(t->q, &a), LT_OK);
    assert_int_equal(t->b->download(t->q, t->y, t->d_y, (size_t)(m * N) * sizeof *t->y), LT_OK);
    assert_int_equal(t->b->sync(t->q), LT_OK);
    for (int i = 0; i < m * N; i++) {
        double sum = bias ? (double)lt_bf16_to_f32(t->bias[i % N]) : 0.0;
        for (int k = 0; k < K; k++) {
            sum += (double)t->x[i / N * K + k] * (double)t->weights[i % N * K + k];
        }
        worst = fmax(worst, fabs(sum - (double)t->y[i]));
    }
    if (worst > tolerance) {
        fail_msg("%s, %d rows%s: off by %g", lt_dtype_name(type), m, bias ? ", bias" : "", worst);
    }
}

static void check_embed(bench *t, lt_dtype type) {
    const int32_t ids[3] = {5, 76, 0};
    static uint16_t y[3 * K];
    assert_int_equal(t->b->upload(t->q, t->d_ids, ids, sizeof ids), LT_OK);
    assert_int_equal(
        t->b->ops->embed_fwd(t->q, &(lt_embed_args){.y = lt_tensor_2d(t->d_y, LT_BF16, 3, K),
                                                    .table = lt_tensor_2d(t->d_blocks, type, N, K),
                                                    .ids = lt_tensor_1d(t->d_ids, LT_I32, 3),
                                                    .scale = 2.0f}),
        LT_OK);
    assert_int_equal(t->b->download(t->q, y, t->d_y, sizeof y), LT_OK);
    assert_int_equal(t->b->sync(t->q), LT_OK);
    for (int i = 0; i < 3 * K; i++) {
        const float w = 2.0f * t->weights[ids[i / K] * K + i % K];
        assert_true(fabsf(lt_bf16_to_f32(y[i]) - w) <= 0x1p-8f * fabsf(w) + 1e-6f);
    }
}

static void test_products(void **state) {
    static const lt_dtype types[] = {LT_Q4_0, LT_Q4_1, LT_Q5_0, LT_Q5_1,
                                     LT_Q8_0, LT_Q4_K, LT_Q5_K, LT_Q6_K};
    static const int rows[] = {1, 2, 3, 8, 9, 40};
    const lt_backend *b = lt_backend_cuda();
    bench *t;
    (void)state;
    if (b == NULL) {
        skip();
    }
    t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->b = b;
    assert_int_equal(t->b->queue_open(&t->q), LT_OK);
    assert_int_equal(t->b->alloc(&t->d_blocks, sizeof t->blocks, "blocks"), LT_OK);
    assert_int_equal(t->b->alloc(&t->d_x, sizeof t->x16, "x"), LT_OK);
    assert_int_equal(t->b->alloc(&t->d_y, sizeof t->y, "y"), LT_OK);
    assert_int_equal(t->b->alloc(&t->d_bias, sizeof t->bias, "bias"), LT_OK);
    assert_int_equal(t->b->alloc(&t->d_ids, 64, "ids"), LT_OK);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        make(t, types[i]);
        place(t, types[i]);
        for (size_t j = 0; j < sizeof rows / sizeof *rows; j++) {
            check(t, types[i], rows[j], j % 2 == 1);
        }
        check_embed(t, types[i]);
        t->b->release(t->d_packed, t->packed_bytes);
    }
    t->b->queue_close(t->q);
    t->b->release(t->d_blocks, sizeof t->blocks);
    t->b->release(t->d_x, sizeof t->x16);
    t->b->release(t->d_y, sizeof t->y);
    t->b->release(t->d_bias, sizeof t->bias);
    t->b->release(t->d_ids, 64);
    free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_products)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
