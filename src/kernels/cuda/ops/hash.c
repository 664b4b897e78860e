/* hash.c: launcher of hash.cu. */
#include "base/error.h"
#include "kernels/cuda/ops/hash_args.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/specs.h"

#define FILE_NAME "ops/hash.cu"
#define THREADS   256 /* As in hash.cu. */

static const char *hash_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_hash_args *a = args;
    return a->out.dtype != LT_I64 || a->pieces.dtype != LT_I64 ? "types" : NULL;
}

static lt_err hash_run(lt_queue *q, const void *args) {
    const lt_hash_args *a = args;
    lt_cuda_hash_args call = {
        .out = a->out.data, .pieces = a->pieces.data, .x = a->x.data, .ld = a->pieces.stride[0]};
    void *list[] = {&call};
    return lt_cuda_run(q, FILE_NAME, "hash", "", a->out.shape[0], 1, THREADS, list);
}

const lt_op_impl lt_cuda_hash_impls[LT_REGISTRY_MAX_IMPLS] = {{"vectors", hash_refuse, hash_run}};

void lt_specs_hash(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, FILE_NAME, "%s", "");
}
