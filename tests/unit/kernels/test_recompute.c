/* What recomputation needs of the ops: in every implementation, the norm of the stored sum has
 * the bits of the fused add and norm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/registry.h"

enum { ROWS = 7, WIDTH = 133 };

typedef struct {
    lt_dtype dtype;
    unsigned char x[ROWS * WIDTH * 4], add[ROWS * WIDTH * 4], sum[ROWS * WIDTH * 4];
    unsigned char fused[ROWS * WIDTH * 4], redone[ROWS * WIDTH * 4];
    float gain[WIDTH], bias[WIDTH], mean[2][ROWS], rstd[2][ROWS];
} buffers;

static void fill(buffers *b, lt_dtype dtype) {
    lt_rng r = {.seed = 5};
    memset(b, 0, sizeof *b);
    b->dtype = dtype;
    for (size_t i = 0; i < ROWS * WIDTH; i++) {
        const double x = lt_rng_normal(&r), add = lt_rng_normal(&r);
        lt_convert(b->x + i * lt_dtype_bytes(dtype), dtype, &x, LT_F64, 1);
        lt_convert(b->add + i * lt_dtype_bytes(dtype), dtype, &add, LT_F64, 1);
    }
    for (int c = 0; c < WIDTH; c++) {
        b->gain[c] = (float)lt_rng_normal(&r);
        b->bias[c] = (float)lt_rng_normal(&r);
    }
}

static lt_tensor rows_of(buffers *b, void *data) {
    return lt_tensor_2d(data, b->dtype, ROWS, WIDTH);
}

static void redo_rms(buffers *b, const lt_op_impl *impl) {
    lt_rmsnorm_args a = {.y = rows_of(b, b->fused),
                         .x = rows_of(b, b->x),
                         .add = rows_of(b, b->add),
                         .sum = rows_of(b, b->sum),
                         .gain = lt_tensor_1d(b->gain, LT_F32, WIDTH),
                         .rstd = lt_tensor_1d(b->rstd[0], LT_F32, ROWS),
                         .eps = 1e-5f};
    assert_int_equal(impl->run(NULL, &a), LT_OK);
    a.x = a.sum;
    a.add = a.sum = (lt_tensor){0};
    a.y.data = b->redone;
    a.rstd.data = b->rstd[1];
    assert_int_equal(impl->run(NULL, &a), LT_OK);
}

static void redo_layer(buffers *b, const lt_op_impl *impl) {
    lt_layernorm_args a = {.y = rows_of(b, b->fused),
                           .x = rows_of(b, b->x),
                           .add = rows_of(b, b->add),
                           .sum = rows_of(b, b->sum),
                           .gain = lt_tensor_1d(b->gain, LT_F32, WIDTH),
                           .bias = lt_tensor_1d(b->bias, LT_F32, WIDTH),
                           .mean = lt_tensor_1d(b->mean[0], LT_F32, ROWS),
                           .rstd = lt_tensor_1d(b->rstd[0], LT_F32, ROWS),
                           .eps = 1e-5f};
    assert_int_equal(impl->run(NULL, &a), LT_OK);
    a.x = a.sum;
    a.add = a.sum = (lt_tensor){0};
    a.y.data = b->redone;
    a.mean.data = b->mean[1];
    a.rstd.data = b->rstd[1];
    assert_int_equal(impl->run(NULL, &a), LT_OK);
}

/* Check every implementation that runs here; those of other instruction sets refuse. */
static void check(lt_op op, lt_dtype dtype, void (*redo)(buffers *b, const lt_op_impl *impl)) {
    const lt_op_list list = lt_registry_list(lt_backend_cpu(), op);
    buffers *b = malloc(sizeof *b);
    assert_non_null(b);
    for (int i = 0; i < list.n_impls; i++) {
        fill(b, dtype);
        if (list.impls[i].refuse != NULL) {
            static float any[1];
            const lt_tensor t = lt_tensor_2d(any, dtype, ROWS, WIDTH),
                            g = lt_tensor_1d(any, LT_F32, WIDTH);
            const lt_rmsnorm_args rms = {.y = t, .x = t, .add = t, .sum = t, .gain = g};
            const lt_layernorm_args layer = {
                .y = t, .x = t, .add = t, .sum = t, .gain = g, .bias = g};
            const void *args = op == LT_OP_rmsnorm_fwd ? (const void *)&rms : (const void *)&layer;
            if (list.impls[i].refuse(args, NULL) != NULL) {
                continue;
            }
        }
        redo(b, &list.impls[i]);
        assert_memory_equal(b->fused, b->redone, sizeof b->fused);
        assert_memory_equal(b->rstd[0], b->rstd[1], sizeof b->rstd[0]);
        assert_memory_equal(b->mean[0], b->mean[1], sizeof b->mean[0]);
    }
    free(b);
}

static void rmsnorm_of_the_sum_repeats(void **state) {
    (void)state;
    check(LT_OP_rmsnorm_fwd, LT_F32, redo_rms);
    check(LT_OP_rmsnorm_fwd, LT_BF16, redo_rms);
}

static void layernorm_of_the_sum_repeats(void **state) {
    (void)state;
    check(LT_OP_layernorm_fwd, LT_F32, redo_layer);
    check(LT_OP_layernorm_fwd, LT_BF16, redo_layer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_of_the_sum_repeats),
        cmocka_unit_test(layernorm_of_the_sum_repeats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
