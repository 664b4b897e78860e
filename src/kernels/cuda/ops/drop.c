/* drop.c: launcher of drop.cu. */
#include <limits.h>
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/ops/drop_args.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/specs.h"

#define DROP_WORDS "DTYPE=%s W=%d ADD=%d"
#define THREADS    256 /* As in drop.cu. */

static const char *drop_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_drop_args *a = args;
    const lt_tensor *const rows[] = {&a->x, &a->y};
    const char *why = lt_cuda_refuse_rows(rows, 2, a->x.dtype);
    return why == NULL && a->x.shape[0] > INT_MAX / LT_CUDA_DIV_UP(a->x.shape[1], THREADS)
               ? "too many rows"
               : why;
}

static lt_err drop_run(lt_queue *q, const void *args) {
    const lt_drop_args *a = args;
    const lt_tensor *const rows[] = {&a->x, &a->y};
    const int64_t cols = a->x.shape[1];
    const int w = a->column % 4 == 0 ? lt_cuda_piece(rows, 2, a->x.dtype, cols) : 1;
    char defines[LT_CUDA_DEFINES_BYTES];
    lt_cuda_drop_args call = {.y = a->y.data,
                              .x = a->x.data,
                              .seed = a->seed,
                              .stream = a->stream,
                              .first_row = a->first_row,
                              .row_step = a->row_step,
                              .blocks = (unsigned long long)a->blocks,
                              .ld_y = a->y.stride[0],
                              .ld_x = a->x.stride[0],
                              .starts = {a->starts[0], a->starts[1]},
                              .column = a->column,
                              .rows = (int)a->x.shape[0],
                              .cols = (int)cols,
                              .seq = (int)a->seq,
                              .piece = (int)a->piece,
                              .threshold = a->threshold,
                              .factor = a->factor};
    void *list[] = {&call};
    snprintf(defines, sizeof defines, DROP_WORDS, lt_cuda_dtype_word(a->x.dtype), w, a->add);
    return lt_cuda_run_early(q, "ops/drop.cu", "drop", defines,
                             a->x.shape[0] * LT_CUDA_DIV_UP(cols, (int64_t)THREADS * w), 1, THREADS,
                             list);
}

const lt_op_impl lt_cuda_drop_impls[LT_REGISTRY_MAX_IMPLS] = {{"pieces", drop_refuse, drop_run}};

void lt_specs_drop(lt_specs *l) {
    for (int add = 0; add < 2; add++) {
        lt_spec(l, LT_SM_ALL, "ops/drop.cu", DROP_WORDS, "bf16", 8, add);
        lt_spec(l, LT_SM_ALL, "ops/drop.cu", DROP_WORDS, "bf16", 1, add);
        lt_spec(l, LT_SM_ALL, "ops/drop.cu", DROP_WORDS, "fp32", 4, add);
        lt_spec(l, LT_SM_ALL, "ops/drop.cu", DROP_WORDS, "fp32", 1, add);
    }
}
