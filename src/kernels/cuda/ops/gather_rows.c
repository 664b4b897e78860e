/* gather_rows.c: launcher of gather_rows.cu. */
#include "base/error.h"
#include "kernels/cuda/ops/gather_rows_args.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/specs.h"

#define FILE_NAME "ops/gather_rows.cu"

static const char *gather_rows_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_gather_rows_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->x};
    return lt_cuda_refuse_rows(rows, 2, a->x.dtype);
}

static lt_err gather_rows_run(lt_queue *q, const void *args) {
    const lt_gather_rows_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->x};
    const int64_t n = a->y.shape[0];
    char defines[LT_CUDA_DEFINES_BYTES];
    int64_t blocks;
    lt_cuda_gather_rows_args call = {.y = a->y.data,
                                     .x = a->x.data,
                                     .index = a->index.data,
                                     .start = a->start.data,
                                     .ldy = a->y.stride[0],
                                     .ldx = a->x.stride[0],
                                     .cols = (int)lt_cuda_width(&a->y),
                                     .n = (int)n};
    void *list[] = {&call};
    lt_cuda_team_defines(defines, rows, 2, n, &blocks);
    return lt_cuda_run_early(q, FILE_NAME, "gather_rows", defines, blocks, 1, LT_CUDA_TEAM_THREADS,
                             list);
}

const lt_op_impl lt_cuda_gather_rows_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"teams", gather_rows_refuse, gather_rows_run}};

void lt_specs_gather_rows(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, FILE_NAME, LT_CUDA_TEAM_WORDS, "bf16", 8, LT_CUDA_TEAM_THREADS);
    lt_spec(l, LT_SM_ALL, FILE_NAME, LT_CUDA_TEAM_WORDS, "bf16", 8, 32);
    lt_spec(l, LT_SM_ALL, FILE_NAME, LT_CUDA_TEAM_WORDS, "fp32", 4, LT_CUDA_TEAM_THREADS);
}
