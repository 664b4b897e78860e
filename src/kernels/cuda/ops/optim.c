/* optim.c: launchers of optim.cu: AdamW, AdEMAMix, Lion, the global norm and clipping by it. */
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/optim_args.h"
#include "kernels/cuda/specs.h"

#define THREADS 256
/* The most blocks. The number is the same for all GPUs, so that the order of the sum is, too. */
#define SUMSQ_BLOCKS 1056

static float draw_step(int64_t step) {
    return (float)(step & LT_OPTIM_STEP_MASK);
}
static const char *defines(int w, lt_dtype moments) {
    static const char *const texts[2][2] = {{"W=1", "W=4"}, {"W=1 MOMENTS=16", "W=4 MOMENTS=16"}};
    return texts[moments == LT_BF16][w == 4];
}
static const char *refuse_moments(const lt_tensor *const *moments, int n) {
    for (int i = 0; i < n; i++) {
        const lt_dtype type = moments[i]->dtype;
        if (type != moments[0]->dtype || (type != LT_F32 && type != LT_BF16)) {
            return "moments are not all F32 or all BF16";
        }
        if (!lt_tensor_contiguous(moments[i])) {
            return "moments are not contiguous";
        }
    }
    return NULL;
}
static float correction(float beta, int64_t step) {
    return (float)(1.0 - pow((double)beta, (double)step));
}
static const char *refuse_buffers(const lt_tensor *const *flat, int n, const lt_tensor *copy,
                                  const lt_tensor *now) {
    const char *why = lt_cuda_refuse_rows(flat, n, LT_F32);
    if (why != NULL || !lt_cuda_all_contiguous(flat, n)) {
        return why != NULL ? why : "not contiguous";
    }
    if (copy->data != NULL && (copy->dtype != LT_BF16 || !lt_tensor_contiguous(copy))) {
        return "copy is not contiguous BF16";
    }
    return now->data != NULL && now->dtype != LT_F32 ? "now is not F32" : NULL;
}

static const char *adamw_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_adamw_args *a = args;
    const lt_tensor *const rows[] = {&a->p, &a->g}, *const moments[] = {&a->m, &a->v};
    const char *why = refuse_moments(moments, 2);
    return why != NULL ? why : refuse_buffers(rows, 2, &a->copy, &a->now);
}
static lt_err adamw_run(lt_queue *q, const void *args) {
    lt_adamw_args a = *(const lt_adamw_args *)args;
    const lt_tensor *const rows[] = {&a.p, &a.g, &a.m, &a.v, &a.copy};
    int64_t count = lt_tensor_count(&a.p);
    const int w = lt_cuda_piece(rows, 5, LT_F32, count);
    lt_cuda_adamw_args call = {.p = a.p.data,
                               .g = a.g.data,
                               .m = a.m.data,
                               .v = a.v.data,
                               .copy = a.copy.data,
                               .count = count,
                               .beta1 = a.beta1,
                               .beta2 = a.beta2,
                               .eps = a.eps,
                               .decay = a.decay,
                               .s = {.lr = a.lr,
                                     .grad_scale = a.grad_scale,
                                     .correct1 = correction(a.beta1, a.step),
                                     .correct2 = correction(a.beta2, a.step),
                                     .step = draw_step(a.step)},
                               .device = a.now.data,
                               .draws = {a.seed, a.first}};
    void *list[] = {&call};
    return lt_cuda_run(q, "ops/optim.cu", "adamw", defines(w, a.m.dtype),
                       LT_CUDA_DIV_UP(count, (int64_t)THREADS * w), 1, THREADS, list);
}

static const char *ademamix_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_ademamix_args *a = args;
    const lt_tensor *const rows[] = {&a->p, &a->g}, *const moments[] = {&a->m1, &a->m2, &a->v};
    const char *why = refuse_moments(moments, 3);
    return why != NULL ? why : refuse_buffers(rows, 2, &a->copy, &a->now);
}
static lt_err ademamix_run(lt_queue *q, const void *args) {
    lt_ademamix_args a = *(const lt_ademamix_args *)args;
    const lt_tensor *const rows[] = {&a.p, &a.g, &a.m1, &a.m2, &a.v, &a.copy};
    int64_t count = lt_tensor_count(&a.p);
    const int w = lt_cuda_piece(rows, 6, LT_F32, count);
    lt_cuda_ademamix_args call = {.p = a.p.data,
                                  .g = a.g.data,
                                  .m1 = a.m1.data,
                                  .m2 = a.m2.data,
                                  .v = a.v.data,
                                  .copy = a.copy.data,
                                  .count = count,
                                  .beta1 = a.beta1,
                                  .beta2 = a.beta2,
                                  .eps = a.eps,
                                  .decay = a.decay,
                                  .s = {.lr = a.lr,
                                        .grad_scale = a.grad_scale,
                                        .correct1 = correction(a.beta1, a.step),
                                        .correct2 = correction(a.beta2, a.step),
                                        .alpha = a.alpha,
                                        .beta3 = a.beta3,
                                        .step = draw_step(a.step)},
                                  .device = a.now.data,
                                  .draws = {a.seed, a.first}};
    void *list[] = {&call};
    return lt_cuda_run(q, "ops/optim.cu", "ademamix", defines(w, a.m1.dtype),
                       LT_CUDA_DIV_UP(count, (int64_t)THREADS * w), 1, THREADS, list);
}

static const char *lion_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_lion_args *a = args;
    const lt_tensor *const rows[] = {&a->p, &a->g, &a->m};
    return refuse_buffers(rows, 3, &a->copy, &a->now);
}
static lt_err lion_run(lt_queue *q, const void *args) {
    lt_lion_args a = *(const lt_lion_args *)args;
    const lt_tensor *const rows[] = {&a.p, &a.g, &a.m, &a.copy};
    int64_t count = lt_tensor_count(&a.p);
    const int w = lt_cuda_piece(rows, 4, LT_F32, count);
    lt_cuda_lion_args call = {.p = a.p.data,
                              .g = a.g.data,
                              .m = a.m.data,
                              .copy = a.copy.data,
                              .count = count,
                              .beta1 = a.beta1,
                              .beta2 = a.beta2,
                              .decay = a.decay,
                              .s = {.lr = a.lr, .grad_scale = a.grad_scale},
                              .device = a.now.data};
    void *list[] = {&call};
    return lt_cuda_run(q, "ops/optim.cu", "lion", w == 4 ? "W=4" : "W=1",
                       LT_CUDA_DIV_UP(count, (int64_t)THREADS * w), 1, THREADS, list);
}

/* ---- Norm and clipping ---- */

static const char *sumsq_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_sumsq_args *a = args;
    const lt_tensor *const rows[] = {&a->x};
    return lt_tensor_contiguous(&a->x) ? lt_cuda_refuse_rows(rows, 1, LT_F32) : "not contiguous";
}
static lt_err sumsq_run(lt_queue *q, const void *args) {
    lt_sumsq_args a = *(const lt_sumsq_args *)args;
    const lt_tensor *const rows[] = {&a.x};
    int64_t count = lt_tensor_count(&a.x);
    const int w = lt_cuda_piece(rows, 1, LT_F32, count);
    /* Blocks past the last element would add only zeros, which change no bit of the sum. */
    const int64_t used = LT_CUDA_DIV_UP(count, (int64_t)THREADS * w);
    const int blocks = used < 1 ? 1 : used < SUMSQ_BLOCKS ? (int)used : SUMSQ_BLOCKS;
    lt_cuda_sumsq_parts_args call = {.x = a.x.data, .count = count};
    lt_cuda_sumsq_total_args total = {.out = a.out.data, .n = blocks, .accumulate = a.accumulate};
    void *parts, *first[] = {&call}, *second[] = {&total};
    LT_TRY(lt_cuda_scratch(q, SUMSQ_BLOCKS * sizeof(double), &parts));
    call.parts = parts;
    total.parts = parts;
    LT_TRY(lt_cuda_run(q, "ops/optim.cu", "sumsq_parts", defines(w, LT_F32), blocks, 1, THREADS,
                       first));
    return lt_cuda_run(q, "ops/optim.cu", "sumsq_total", defines(w, LT_F32), 1, 1, THREADS, second);
}

static const char *clip_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_clip_args *a = args;
    return a->now.dtype != LT_F32 || a->sumsq.dtype != LT_F64 ? "types" : NULL;
}
static lt_err clip_run(lt_queue *q, const void *args) {
    lt_clip_args a = *(const lt_clip_args *)args;
    lt_cuda_clip_scale_args call = {.step = a.now.data,
                                    .norm_out = a.norm.data,
                                    .sumsq = a.sumsq.data,
                                    .scale = a.scale,
                                    .max_norm = a.max_norm};
    void *list[] = {&call};
    return lt_cuda_run(q, "ops/optim.cu", "clip_scale", "W=1", 1, 1, 32, list);
}

#define ENTRY(op)                                                                                  \
    const lt_op_impl lt_cuda_##op##_impls[LT_REGISTRY_MAX_IMPLS] = {                               \
        {"pieces", op##_refuse, op##_run}};
ENTRY(adamw)
ENTRY(ademamix)
ENTRY(lion)
ENTRY(sumsq)
ENTRY(clip)

void lt_specs_optim(lt_specs *l) {
    for (int w = 1; w <= 4; w += 3) {
        lt_spec(l, LT_SM_ALL, "ops/optim.cu", "%s", defines(w, LT_F32));
        lt_spec(l, LT_SM_ALL, "ops/optim.cu", "%s", defines(w, LT_BF16));
    }
}
