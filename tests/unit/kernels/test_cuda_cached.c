/* Keys and values that are written in blocks to pages of a GPU have the bits of tensor/cached.h.
 * Skipped without a GPU. */
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
#include "tensor/cached.h"
#include "tensor/ops.h"
#include "unit/device.h"

enum {
    R = 24,
    G = 2,
    D = 64,
    P = 16,
    PAGES = 3,
    ROW = G * D,
    MOST = 2 * PAGES * P * ROW,
    UNTOUCHED = 85
};

typedef struct {
    const lt_backend *b;
    lt_queue *q;
    uint16_t x16[2][R * ROW];
    float x[2][R * ROW]; /* Keys, values. */
    unsigned char got[MOST], want[MOST];
    int32_t slots[R];
    void *d_x[2], *d_pages[2], *d_slots;
} bench;

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

/* Random numbers, and blocks with special values: ties of Q8_0 and of Q4_0, zeros, values too
 * small for a scale, a block without one, and two values of the largest magnitude. */
static void make(bench *t) {
    lt_rng r = {.seed = 5, .stream = 1};
    for (int which = 0; which < 2; which++) {
        float *const x = t->x[which];
        for (int i = 0; i < R * ROW; i++) {
            x[i] = (float)lt_rng_below(&r, 4001) / 1000.0f - 2.0f;
        }
        for (int i = 0; i < 32; i++) {
            x[32 + i] = i == 7 ? 127.0f : (float)i - 16.5f;
            x[64 + i] = i == 3 ? -8.0f : (float)(i % 8) - 3.5f;
            x[96 + i] = 0.0f;
            x[128 + i] = i == 1 ? 0x1p-61f : -0x1p-70f;
            x[192 + i] = i == 2 ? -3.0f : i == 30 ? 3.0f : 0.25f;
            x[224 + i] = i == 2 ? 3.0f : i == 30 ? -3.0f : 0.25f;
        }
        x[160] = NAN;
        x[ROW * 2 + 31] = -INFINITY;
        x[ROW * 3] = 0x1p120f; /* The scale is infinite. */
        for (int i = 0; i < R * ROW; i++) {
            t->x16[which][i] = lt_f32_to_bf16(x[i]);
            x[i] = lt_bf16_to_f32(t->x16[which][i]);
        }
    }
    for (int i = 0; i < R; i++) {
        t->slots[i] = i % 5 == 4 ? -1 : (int32_t)((i * 7 + 3) % (PAGES * P));
    }
}

static void place(bench *t) {
    for (int which = 0; which < 2; which++) {
        must(t->b->alloc(device_of(t->b), &t->d_x[which], sizeof t->x16[0], "x"));
        must(t->b->alloc(device_of(t->b), &t->d_pages[which], MOST, "pages"));
        must(t->b->upload(t->q, t->d_x[which], t->x16[which], sizeof t->x16[0]));
    }
    must(t->b->alloc(device_of(t->b), &t->d_slots, sizeof t->slots, "slots"));
    must(t->b->upload(t->q, t->d_slots, t->slots, sizeof t->slots));
}

static void write_and_compare(bench *t, lt_dtype type) {
    const size_t row = lt_dtype_row_bytes(type, ROW), bytes = PAGES * P * row;
    const lt_kv_write_args a = {.k_pages = lt_tensor_4d(t->d_pages[0], type, PAGES, P, G, D),
                                .v_pages = lt_tensor_4d(t->d_pages[1], type, PAGES, P, G, D),
                                .k = lt_tensor_3d(t->d_x[0], LT_BF16, R, G, D),
                                .v = lt_tensor_3d(t->d_x[1], LT_BF16, R, G, D),
                                .slots = lt_tensor_1d(t->d_slots, LT_I32, R)};
    for (int which = 0; which < 2; which++) {
        memset(t->want, UNTOUCHED, sizeof t->want);
        must(t->b->upload(t->q, t->d_pages[which], t->want, bytes));
        must(t->b->sync(t->q));
    }
    must(t->b->ops->kv_write(t->q, &a));
    for (int which = 0; which < 2; which++) {
        memset(t->want, UNTOUCHED, sizeof t->want);
        for (int i = 0; i < R; i++) {
            if (t->slots[i] >= 0) {
                lt_cached_encode(t->want + (size_t)t->slots[i] * row, type, t->x[which] + i * ROW,
                                 ROW);
            }
        }
        must(t->b->download(t->q, t->got, t->d_pages[which], bytes));
        must(t->b->sync(t->q));
        for (size_t i = 0; i < bytes; i++) {
            if (t->got[i] != t->want[i]) {
                fail_msg("%s: byte %zu of slot %zu is %d, should be %d", lt_dtype_name(type),
                         i % row, i / row, t->got[i], t->want[i]);
            }
        }
    }
}

static void blocks_have_the_bits_of_the_format(void **state) {
    bench *t = calloc(1, sizeof *t);
    (void)state;
    assert_non_null(t);
    t->b = gpu_backend();
    if (t->b == NULL) {
        free(t);
        skip();
    }
    must(t->b->queue_open(device_of(t->b), &t->q));
    make(t);
    place(t);
    write_and_compare(t, LT_Q8_0);
    write_and_compare(t, LT_Q4_0);
    t->b->queue_close(t->q);
    for (int which = 0; which < 2; which++) {
        t->b->release(device_of(t->b), t->d_x[which], sizeof t->x16[0]);
        t->b->release(device_of(t->b), t->d_pages[which], MOST);
    }
    t->b->release(device_of(t->b), t->d_slots, sizeof t->slots);
    free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(blocks_have_the_bits_of_the_format)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
