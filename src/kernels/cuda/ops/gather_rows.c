/* gather_rows.c: launcher of gather_rows.cu. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/ops/gather_rows_args.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/specs.h"

#define FILE_NAME  "ops/gather_rows.cu"
#define TEAM_WORDS "DTYPE=%s W=%d TEAM=%d"
#define THREADS    256 /* As in gather_rows.cu. */
#define WARP       32
#define FEW_PIECES 4 /* Pieces of a thread up to which a warp has a row. */

static const char *gather_rows_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_gather_rows_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->x};
    return lt_cuda_refuse_rows(rows, 2, a->x.dtype);
}

static lt_err gather_rows_run(lt_queue *q, const void *args) {
    const lt_gather_rows_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->x};
    const int64_t width = lt_cuda_width(&a->y), n = a->y.shape[0];
    const int w = lt_cuda_piece(rows, 2, a->x.dtype, width);
    const int team = width <= (int64_t)w * WARP * FEW_PIECES ? WARP : THREADS;
    char defines[LT_CUDA_DEFINES_BYTES];
    lt_cuda_gather_rows_args call = {.y = a->y.data,
                                     .x = a->x.data,
                                     .index = a->index.data,
                                     .start = a->start.data,
                                     .ldy = a->y.stride[0],
                                     .ldx = a->x.stride[0],
                                     .cols = (int)width,
                                     .n = (int)n};
    void *list[] = {&call};
    snprintf(defines, sizeof defines, TEAM_WORDS, lt_cuda_dtype_word(a->x.dtype), w, team);
    return lt_cuda_run_early(q, FILE_NAME, "gather_rows", defines,
                             LT_CUDA_DIV_UP(n, THREADS / team), 1, THREADS, list);
}

const lt_op_impl lt_cuda_gather_rows_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"teams", gather_rows_refuse, gather_rows_run}};

void lt_specs_gather_rows(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, FILE_NAME, TEAM_WORDS, "bf16", 8, THREADS);
    lt_spec(l, LT_SM_ALL, FILE_NAME, TEAM_WORDS, "bf16", 8, WARP);
    lt_spec(l, LT_SM_ALL, FILE_NAME, TEAM_WORDS, "fp32", 4, THREADS);
}
