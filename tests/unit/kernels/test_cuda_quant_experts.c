/* Products of experts with ggml's block formats on a GPU, against the values of the blocks in
 * double. Skipped without a GPU. */
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

/* Three tiles of 16 columns for each expert; K of simple formats is no multiple of a tile. */
enum { E = 40, N = 48, K_MOST = 256, K_SIMPLE = 160, M_MOST = 810 };

typedef struct {
    const lt_backend *b;
    lt_queue *q;
    int k;
    float weights[E * N * K_MOST], x[M_MOST * K_MOST];
    unsigned char blocks[E * N * K_MOST * 2];
    uint16_t x16[M_MOST * K_MOST];
    float y[M_MOST * N], again[M_MOST * N];
    void *d_blocks, *d_packed, *d_x, *d_y, *d_start;
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

static void make(bench *t, lt_dtype type) {
    const int K = t->k = lt_dtype_block(type, &(size_t){0}) == 32 ? K_SIMPLE : K_MOST;
    const lt_tensor b = lt_tensor_2d(t->d_blocks, type, E * N, K);
    lt_rng r = {.seed = 9, .stream = (uint64_t)type};
    for (int i = 0; i < E * N * K; i++) {
        t->weights[i] = uniform(&r) + 0.3f;
    }
    lt_block_encode(t->blocks, type, t->weights, (size_t)(E * N * K));
    lt_block_decode(t->weights, type, t->blocks, (size_t)(E * N * K));
    for (int i = 0; i < M_MOST * K; i++) {
        t->x16[i] = lt_f32_to_bf16(uniform(&r));
        t->x[i] = lt_bf16_to_f32(t->x16[i]);
    }
    t->packed_bytes = t->b->matmul_pack_bytes(device_of(t->b), &b, true);
    assert_true(t->packed_bytes > 0 && t->packed_bytes % E == 0);
    must(t->b->alloc(device_of(t->b), &t->d_packed, t->packed_bytes, "packed"));
    must(t->b->upload(t->q, t->d_blocks, t->blocks, E * N * lt_dtype_row_bytes(type, K)));
    must(t->b->upload(t->q, t->d_x, t->x16, sizeof t->x16));
    must(t->b->ops->matmul_pack(
        t->q, &(lt_matmul_pack_args){.dst = t->d_packed, .b = b, .trans_b = true}));
}

static lt_matmul_grouped_args args_of(bench *t, lt_dtype type, int experts, int rows) {
    return (lt_matmul_grouped_args){.y = lt_tensor_2d(t->d_y, LT_F32, rows, N),
                                    .a = lt_tensor_2d(t->d_x, LT_BF16, rows, t->k),
                                    .b = {.dtype = type,
                                          .n_dims = 3,
                                          .shape = {experts, N, t->k},
                                          .stride = {(int64_t)N * t->k, t->k, 1}},
                                    .expert_start = lt_tensor_1d(t->d_start, LT_I32, experts + 1),
                                    .trans_b = true,
                                    .b_packed = t->d_packed,
                                    .packed_step = t->packed_bytes / E};
}

/* Expert e has counts[e % n_counts] rows, and three rows follow that belong to none. Tolerances as
 * in test_cuda_quant.c: K formats round their scales to F16. From 10 rows for each expert on, a GPU
 * may round weights to BF16. */
static void check(bench *t, lt_dtype type, int experts, const int *counts, int n_counts, bool add) {
    int32_t start[E + 1] = {0};
    int rows;
    for (int e = 0; e < experts; e++) {
        start[e + 1] = start[e] + counts[e % n_counts];
    }
    rows = start[experts] + 3;
    const double tolerance = rows >= 10 * experts                       ? 1e-1
                             : lt_dtype_block(type, &(size_t){0}) == 32 ? 1e-3
                                                                        : 2e-2;
    assert_true(rows <= M_MOST);
    for (int i = 0; i < rows * N; i++) {
        t->y[i] = (float)(i % 7);
    }
    lt_matmul_grouped_args a = args_of(t, type, experts, rows);
    a.accumulate = add;
    must(t->b->upload(t->q, t->d_start, start, sizeof start));
    must(t->b->upload(t->q, t->d_y, t->y, (size_t)(rows * N) * sizeof *t->y));
    must(t->b->ops->matmul_grouped(t->q, &a));
    must(t->b->download(t->q, t->y, t->d_y, (size_t)(rows * N) * sizeof *t->y));
    must(t->b->sync(t->q));
    for (int i = 0, e = 0; i < rows * N; i++) {
        const int row = i / N;
        const bool own = row < start[experts];
        double sum = own && !add ? 0.0 : (double)(i % 7);
        while (own && row >= start[e + 1]) {
            e++;
        }
        for (int k = 0; own && k < t->k; k++) {
            sum += (double)t->x[row * t->k + k] *
                   (double)t->weights[((int64_t)e * N + i % N) * t->k + k];
        }
        if (!(fabs(sum - (double)t->y[i]) <= (own ? tolerance : 0.0))) {
            fail_msg("%s, %d experts, row %d of expert %d, column %d: %g, not %g",
                     lt_dtype_name(type), experts, row, e, i % N, (double)t->y[i], sum);
        }
    }
}

/* In a fixed order, a row has the same bits alone and among others. */
static void check_fixed(bench *t, lt_dtype type) {
    const int rows = 100;
    int32_t start[4] = {0, 9, 9, rows};
    lt_matmul_grouped_args a = args_of(t, type, 3, rows);
    a.fixed_order = true;
    must(t->b->upload(t->q, t->d_start, start, sizeof start));
    must(t->b->ops->matmul_grouped(t->q, &a));
    must(t->b->download(t->q, t->y, t->d_y, (size_t)(rows * N) * sizeof *t->y));
    must(t->b->sync(t->q));
    for (int row = 0; row < rows; row += 33) {
        const int e = row < 9 ? 0 : 2;
        for (int i = 0; i < 4; i++) {
            start[i] = i > e;
        }
        a = args_of(t, type, 3, 1);
        a.fixed_order = true;
        a.a.data = (uint16_t *)t->d_x + row * t->k;
        must(t->b->upload(t->q, t->d_start, start, sizeof start));
        must(t->b->ops->matmul_grouped(t->q, &a));
        must(t->b->download(t->q, t->again, t->d_y, N * sizeof *t->y));
        must(t->b->sync(t->q));
        assert_memory_equal(t->again, t->y + row * N, N * sizeof *t->y);
    }
}

static void experts_with_blocks(void **state) {
    static const lt_dtype types[] = {LT_Q4_0, LT_Q4_1, LT_Q5_0, LT_Q5_1,
                                     LT_Q8_0, LT_Q4_K, LT_Q5_K, LT_Q6_K};
    /* A few rows of few experts; more experts than lanes of a warp; chunks of 16, 32, 128 and 256
     * rows, whole ones and ones with few rows. */
    static const int few[] = {1, 0, 3, 1, 2}, many[] = {2, 0, 1}, short_chunks[] = {9, 0, 14},
                     some[] = {3, 70, 0, 17}, chunks[] = {180, 0, 65, 1}, wide[] = {105, 90},
                     tall[] = {500, 300};
    const lt_backend *b = gpu_backend();
    bench *t;
    (void)state;
    if (b == NULL) {
        skip();
    }
    t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->b = b;
    must(b->queue_open(device_of(b), &t->q));
    must(b->alloc(device_of(b), &t->d_blocks, sizeof t->blocks, "blocks"));
    must(b->alloc(device_of(b), &t->d_x, sizeof t->x16, "x"));
    must(b->alloc(device_of(b), &t->d_y, sizeof t->y, "y"));
    must(b->alloc(device_of(b), &t->d_start, (E + 1) * sizeof(int32_t), "start"));
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        make(t, types[i]);
        check(t, types[i], 5, few, 5, i % 2 == 1);
        if (!core_only() || i % 3 == 0) {
            check(t, types[i], E, many, 3, false);
            check(t, types[i], 6, short_chunks, 3, false);
            check(t, types[i], 4, some, 4, true);
        }
        if (!core_only() || i % 3 == 1) {
            check(t, types[i], 4, chunks, 4, false);
            check_fixed(t, types[i]);
        }
        if (!core_only() || types[i] == LT_Q4_K) {
            check(t, types[i], 2, wide, 2, false);
            check(t, types[i], 2, tall, 2, true);
        }
        b->release(device_of(b), t->d_packed, t->packed_bytes);
    }
    b->queue_close(t->q);
    b->release(device_of(b), t->d_blocks, sizeof t->blocks);
    b->release(device_of(b), t->d_x, sizeof t->x16);
    b->release(device_of(b), t->d_y, sizeof t->y);
    b->release(device_of(b), t->d_start, (E + 1) * sizeof(int32_t));
    free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(experts_with_blocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
