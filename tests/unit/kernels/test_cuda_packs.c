/* Sequences that begin with the same pages: attention that reads their common keys once gives
 * every row the bits that it has without packs, both if a block walks over all splits and if each
 * split has its own block. Skipped without a GPU. */
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
#include "tensor/ops.h"
#include "unit/device.h"

enum { PAGE = 16, D = 64 };

/* Sequence b has keys - 5 b % 37 tokens; the first `shared` of these are shared by its pack. */
typedef struct {
    const char *name;
    int64_t batch, heads, kv_heads, keys, pack, shared;
} pack_case;

typedef struct {
    const lt_backend *b;
    lt_queue *q;
    void *taken[16];
    int n_taken;
} bench;

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

static void *take(bench *t, const void *host, size_t bytes) {
    void *data = NULL;
    must(t->b->alloc(device_of(t->b), &data, bytes, "packs"));
    if (host != NULL) {
        must(t->b->upload(t->q, data, host, bytes));
        must(t->b->sync(t->q));
    }
    t->taken[t->n_taken++] = data;
    return data;
}

static void *take_random(bench *t, int64_t n, uint64_t stream) {
    lt_rng r = {.seed = 9, .stream = stream};
    uint16_t *x = malloc((size_t)n * sizeof *x);
    void *data;
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) {
        x[i] = lt_f32_to_bf16((float)lt_rng_below(&r, 4001) / 1000.0f - 2.0f);
    }
    data = take(t, x, (size_t)n * sizeof *x);
    free(x);
    return data;
}

static void compare(bench *t, const pack_case *c) {
    const int64_t pages = (c->keys + PAGE - 1) / PAGE, n = c->batch * c->heads * D;
    int32_t *table = malloc((size_t)(c->batch * pages) * sizeof *table),
            *lens = malloc((size_t)c->batch * sizeof *lens),
            *starts = malloc((size_t)(c->batch + 1) * sizeof *starts),
            *packs = malloc((size_t)(3 * c->batch) * sizeof *packs);
    uint16_t *out[2] = {malloc((size_t)n * 2), malloc((size_t)n * 2)};
    lt_attention_paged_args a = {.scale = 0.125f, .q_max = 1, .kv_max = c->keys};
    starts[0] = 0;
    for (int64_t b = 0; b < c->batch; b++) {
        const int64_t first = b / c->pack * c->pack, left = c->batch - first;
        for (int64_t i = 0; i < pages; i++) {
            table[b * pages + i] = (int32_t)((i < c->shared / PAGE ? first : b) * pages + i);
        }
        lens[b] = (int32_t)(c->keys - 5 * b % 37);
        starts[b + 1] = (int32_t)(b + 1);
        packs[3 * b] = (int32_t)first;
        packs[3 * b + 1] = (int32_t)(left < c->pack ? left : c->pack);
        packs[3 * b + 2] = (int32_t)c->shared;
    }
    a.q = lt_tensor_3d(take_random(t, n, 1), LT_BF16, c->batch, c->heads, D);
    a.out = lt_tensor_3d(take_random(t, n, 2), LT_BF16, c->batch, c->heads, D);
    a.k_pages = lt_tensor_4d(take_random(t, c->batch * pages * PAGE * c->kv_heads * D, 3), LT_BF16,
                             c->batch * pages, PAGE, c->kv_heads, D);
    a.v_pages = lt_tensor_4d(take_random(t, c->batch * pages * PAGE * c->kv_heads * D, 4), LT_BF16,
                             c->batch * pages, PAGE, c->kv_heads, D);
    a.table = lt_tensor_2d(take(t, table, (size_t)(c->batch * pages) * 4), LT_I32, c->batch, pages);
    a.kv_len = lt_tensor_1d(take(t, lens, (size_t)c->batch * 4), LT_I32, c->batch);
    a.q_start = lt_tensor_1d(take(t, starts, (size_t)(c->batch + 1) * 4), LT_I32, c->batch + 1);
    for (int i = 0; i < 2; i++) {
        if (i == 1) {
            a.packs = lt_tensor_2d(take(t, packs, (size_t)(3 * c->batch) * 4), LT_I32, c->batch, 3);
        }
        must(t->b->ops->attention_paged(t->q, &a));
        must(t->b->download(t->q, out[i], a.out.data, (size_t)n * 2));
        must(t->b->sync(t->q));
    }
    for (int64_t i = 0; i < n; i++) {
        if (out[0][i] != out[1][i]) {
            fail_msg("%s: sequence %lld, element %lld: %g alone, %g in a pack", c->name,
                     (long long)(i / (c->heads * D)), (long long)(i % (c->heads * D)),
                     (double)lt_bf16_to_f32(out[0][i]), (double)lt_bf16_to_f32(out[1][i]));
        }
    }
    for (; t->n_taken > 0; t->n_taken--) {
        t->b->release(device_of(t->b), t->taken[t->n_taken - 1], 0);
    }
    free(table);
    free(lens);
    free(starts);
    free(packs);
    free(out[0]);
    free(out[1]);
}

static void rows_in_packs_have_the_bits_of_rows_alone(void **state) {
    static const pack_case cases[] = {
        {"one split", 7, 4, 1, 200, 4, 144},
        {"splits", 5, 4, 2, 1300, 5, 720},
        {"splits that are common to their end", 6, 2, 1, 1100, 6, 1024},
        {"a block for all splits alone, one for each in packs", 40, 4, 1, 700, 8, 560},
        {"blocks for all splits", 120, 4, 1, 600, 10, 544},
        {"packs of two", 9, 8, 1, 300, 2, 256},
        {"heads without a group", 34, 1, 1, 250, 17, 208},
    };
    bench t = {.b = gpu_backend()};
    (void)state;
    if (t.b == NULL) {
        skip();
    }
    must(t.b->queue_open(device_of(t.b), &t.q));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        compare(&t, &cases[i]);
    }
    t.b->queue_close(t.q);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_in_packs_have_the_bits_of_rows_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
