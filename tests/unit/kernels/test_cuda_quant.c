/* Products with ggml's block formats on a GPU against the values of the blocks in double. Skipped
 * without a GPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/rng.h"
#include "tensor/block.h"
#include "tensor/ops.h"
#include "unit/device.h"

/* Tiles are 128 columns and 16 rows: neither N nor the K of simple formats is a multiple. */
enum { K_MOST = 768, K_SIMPLE = 736, N = 77, M_MOST = 140 };
enum { FEW = 8 }; /* Rows that are rounded to 8 bits (ops/fuse.c). */

typedef struct {
    const lt_backend *b;
    lt_queue *q;
    int k;
    float weights[N * K_MOST], x[M_MOST * K_MOST], x8[FEW * K_MOST], doubt[FEW * K_MOST];
    unsigned char blocks[N * K_MOST * 2];
    uint16_t x16[M_MOST * K_MOST], bias[N];
    float y[M_MOST * N];
    void *d_blocks, *d_packed, *d_x, *d_y, *d_bias, *d_ids;
    size_t packed_bytes;
} bench;

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

static float uniform(lt_rng *r) {
    return (float)lt_rng_below(r, 2001) / 1000.0f - 1.0f;
}

static bool is_simple(lt_dtype type) {
    return lt_dtype_block(type, &(size_t){0}) == 32;
}

static void make(bench *t, lt_dtype type) {
    const int K = t->k = is_simple(type) ? K_SIMPLE : K_MOST;
    lt_rng r = {.seed = 7, .stream = (uint64_t)type};
    for (int i = 0; i < N * K; i++) {
        t->weights[i] = uniform(&r) + 0.3f;
    }
    lt_block_encode(t->blocks, type, t->weights, (size_t)(N * K));
    lt_block_decode(t->weights, type, t->blocks, (size_t)(N * K));
    for (int i = 0; i < M_MOST * K; i++) {
        t->x16[i] = lt_f32_to_bf16(uniform(&r));
        t->x[i] = lt_bf16_to_f32(t->x16[i]);
    }
    for (int i = 0; i < N; i++) {
        t->bias[i] = lt_f32_to_bf16(uniform(&r));
    }
}

static void place(bench *t, lt_dtype type) {
    const int K = t->k;
    const lt_tensor b = lt_tensor_2d(t->d_blocks, type, N, K);
    const size_t bytes = N * lt_dtype_row_bytes(type, K);
    t->packed_bytes = t->b->matmul_pack_bytes(device_of(t->b), &b, true);
    assert_true(t->packed_bytes > 0);
    must(t->b->alloc(device_of(t->b), &t->d_packed, t->packed_bytes, "packed"));
    must(t->b->upload(t->q, t->d_blocks, t->blocks, bytes));
    must(t->b->upload(t->q, t->d_x, t->x16, sizeof t->x16));
    must(t->b->upload(t->q, t->d_bias, t->bias, sizeof t->bias));
    must(t->b->ops->matmul_pack(
        t->q, &(lt_matmul_pack_args){.dst = t->d_packed, .b = b, .trans_b = true}));
}

/* The first FEW rows as they are when rounded to 8 bits, and the error of those that may be
 * rounded either way: nearly half a unit. */
static void round_few(bench *t) {
    for (int i = 0; i < FEW * t->k; i += 32) {
        float most = 0.0f;
        for (int j = i; j < i + 32; j++) {
            most = fmaxf(most, fabsf(t->x[j]));
        }
        for (int j = i; j < i + 32; j++) {
            const double d = (double)most / 127.0, x = most > 0.0f ? (double)t->x[j] / d : 0.0;
            t->x8[j] = (float)(nearbyint(x) * d);
            t->doubt[j] = fabs(fabs(x - floor(x)) - 0.5) < 1e-4 ? (float)d : 0.0f;
        }
    }
}

/* 32-bit sums of K products of numbers up to 1.3: far below 1e-3. K formats: scales are rounded
 * to F16, 2^-11 of each weight. With more than 16 rows (with minima), 32 (4 and 5 bits), or 64,
 * weights may be rounded to BF16, 2^-9 of each, and so may the rest of minima, in which the
 * numbers of a group have the same error. Errors add up like sqrt(K); the sums themselves are
 * about 10. Computed on a CPU for such numbers, with the roundings of the kernel: at most 0.08,
 * 0.097 with minima. */
static void check(bench *t, lt_dtype type, lt_dtype act, int m, bool bias) {
    const bool mins = type == LT_Q4_1 || type == LT_Q5_1 || type == LT_Q4_K || type == LT_Q5_K,
               fine = type == LT_Q8_0 || type == LT_Q6_K;
    const double tolerance = m > (mins   ? 16
                                  : fine ? 64
                                         : 32)
                                 ? (mins ? 1.3e-1 : 1e-1)
                             : is_simple(type) ? 1e-3
                                               : 3e-2;
    const int K = t->k;
    const lt_matmul_args a = {.y = lt_tensor_2d(t->d_y, LT_F32, m, N),
                              .a = lt_tensor_2d(t->d_x, act, m, K),
                              .b = lt_tensor_2d(t->d_blocks, type, N, K),
                              .bias = bias ? lt_tensor_1d(t->d_bias, LT_BF16, N) : (lt_tensor){0},
                              .trans_b = true,
                              .b_packed = t->d_packed};
    const bool few = m <= FEW;
    double worst = 0.0;
    if (few) {
        round_few(t);
    }
    must(t->b->ops->matmul(t->q, &a));
    must(t->b->download(t->q, t->y, t->d_y, (size_t)(m * N) * sizeof *t->y));
    must(t->b->sync(t->q));
    for (int i = 0; i < m * N; i++) {
        double sum = bias ? (double)lt_bf16_to_f32(t->bias[i % N]) : 0.0, doubt = 0.0;
        for (int k = 0; k < K; k++) {
            const int at = i / N * K + k;
            const double w = (double)t->weights[i % N * K + k];
            sum += (double)(few ? t->x8[at] : t->x[at]) * w;
            doubt += few ? (double)t->doubt[at] * fabs(w) : 0.0;
        }
        worst = fmax(worst, fabs(sum - (double)t->y[i]) - doubt);
    }
    if (worst > tolerance) {
        fail_msg("%s, %d rows%s: off by %g", lt_dtype_name(type), m, bias ? ", bias" : "", worst);
    }
}

/* In a fixed order a row has the same bits alone and among others, in any piece of the rows. */
static void check_fixed(bench *t, lt_dtype type) {
    static float all[M_MOST * N];
    lt_matmul_args a = {.y = lt_tensor_2d(t->d_y, LT_F32, M_MOST, N),
                        .a = lt_tensor_2d(t->d_x, LT_BF16, M_MOST, t->k),
                        .b = lt_tensor_2d(t->d_blocks, type, N, t->k),
                        .trans_b = true,
                        .fixed_order = true,
                        .b_packed = t->d_packed};
    must(t->b->ops->matmul(t->q, &a));
    must(t->b->download(t->q, all, t->d_y, sizeof all));
    must(t->b->sync(t->q));
    for (int row = 0; row < M_MOST; row += 23) {
        a.y = lt_tensor_2d(t->d_y, LT_F32, 1, N);
        a.a = lt_tensor_2d((uint16_t *)t->d_x + row * t->k, LT_BF16, 1, t->k);
        must(t->b->ops->matmul(t->q, &a));
        must(t->b->download(t->q, t->y, t->d_y, N * sizeof *t->y));
        must(t->b->sync(t->q));
        assert_memory_equal(t->y, all + row * N, N * sizeof *t->y);
    }
}

/* The last check of a type, because it changes x. */
static void check_f16(bench *t, lt_dtype type) {
    for (int i = 0; i < M_MOST * t->k; i++) {
        t->x16[i] = lt_f32_to_f16(t->x[i]);
        t->x[i] = lt_f16_to_f32(t->x16[i]);
    }
    must(t->b->upload(t->q, t->d_x, t->x16, sizeof t->x16));
    check(t, type, LT_F16, 5, true);
    check(t, type, LT_F16, 12, false);
}

static void check_embed(bench *t, lt_dtype type) {
    /* The second id is known late. */
    const int32_t given[4] = {5, -4, 0, 76}, ids[3] = {5, 76, 0};
    static uint16_t y[3 * K_MOST];
    const int K = t->k;
    must(t->b->upload(t->q, t->d_ids, given, sizeof given));
    must(t->b->ops->embed_fwd(t->q, &(lt_embed_args){.y = lt_tensor_2d(t->d_y, LT_BF16, 3, K),
                                                     .table = lt_tensor_2d(t->d_blocks, type, N, K),
                                                     .ids = lt_tensor_1d(t->d_ids, LT_I32, 3),
                                                     .late = lt_tensor_1d(t->d_ids, LT_I32, 4),
                                                     .scale = 2.0f,
                                                     .table_packed = t->d_packed}));
    must(t->b->download(t->q, y, t->d_y, (size_t)(3 * K) * sizeof *y));
    must(t->b->sync(t->q));
    for (int i = 0; i < 3 * K; i++) {
        const float w = 2.0f * t->weights[ids[i / K] * K + i % K];
        if (!(fabsf(lt_bf16_to_f32(y[i]) - w) <= 0x1p-8f * fabsf(w) + 0x1p-10f)) {
            fail_msg("%s: row %d, column %d is %g, not %g", lt_dtype_name(type), ids[i / K], i % K,
                     (double)lt_bf16_to_f32(y[i]), (double)w);
        }
    }
}

static void products_with_blocks(void **state) {
    static const lt_dtype types[] = {LT_Q4_0, LT_Q4_1, LT_Q5_0, LT_Q5_1,
                                     LT_Q8_0, LT_Q4_K, LT_Q5_K, LT_Q6_K};
    static const int rows[] = {1, 2, 3, 8, 9, 17, 40, 64, 70, 140};
    const lt_backend *b = gpu_backend();
    bench *t;
    (void)state;
    if (b == NULL) {
        skip();
    }
    t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->b = b;
    must(t->b->queue_open(device_of(t->b), &t->q));
    must(t->b->alloc(device_of(t->b), &t->d_blocks, sizeof t->blocks, "blocks"));
    must(t->b->alloc(device_of(t->b), &t->d_x, sizeof t->x16, "x"));
    must(t->b->alloc(device_of(t->b), &t->d_y, sizeof t->y, "y"));
    must(t->b->alloc(device_of(t->b), &t->d_bias, sizeof t->bias, "bias"));
    must(t->b->alloc(device_of(t->b), &t->d_ids, 64, "ids"));
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        make(t, types[i]);
        place(t, types[i]);
        /* Core cases: a third of the numbers of rows for each type, a different third from type
         * to type. */
        for (size_t j = core_only() ? i % 3 : 0; j < sizeof rows / sizeof *rows;
             j += core_only() ? 3 : 1) {
            check(t, types[i], LT_BF16, rows[j], j % 2 == 1);
        }
        check_fixed(t, types[i]);
        check_embed(t, types[i]);
        check_f16(t, types[i]);
        t->b->release(device_of(t->b), t->d_packed, t->packed_bytes);
    }
    t->b->queue_close(t->q);
    t->b->release(device_of(t->b), t->d_blocks, sizeof t->blocks);
    t->b->release(device_of(t->b), t->d_x, sizeof t->x16);
    t->b->release(device_of(t->b), t->d_y, sizeof t->y);
    t->b->release(device_of(t->b), t->d_bias, sizeof t->bias);
    t->b->release(device_of(t->b), t->d_ids, 64);
    free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(products_with_blocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
