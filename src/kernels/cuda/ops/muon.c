/* muon.c: Muon on one matrix (muon.cu): momentum, five Newton-Schulz iterations through sgemm,
 * update. X has the shorter side as rows (S x L):
 *     A = X X^T,  B = b A + c A A,  X' = a X + B X
 * Scratch: X, X' (S L each), A, B (S S each), as lt_muon_scratch_count says. X' first holds X^T, as
 * the second operand of A. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/sgemm/sgemm.h"
#include "kernels/cuda/ops/muon_args.h"
#include "kernels/cuda/ops/rearrange_args.h"
#include "kernels/cuda/specs.h"

#define FILE_NAME "ops/muon.cu"
#define THREADS   256
#define BLOCKS    264 /* As in muon.cu. */

static const float NS_A = 3.4445f, NS_B = -4.7750f, NS_C = 2.0315f;

static const char *muon_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_muon_args *a = args;
    const lt_tensor *const flat[] = {&a->p, &a->g, &a->m, &a->scratch};
    if (!lt_cuda_all_contiguous(flat, 4) ||
        (a->copy.data != NULL && (!lt_tensor_contiguous(&a->copy) || a->copy.dtype != LT_BF16))) {
        return "not contiguous, or the copy is not BF16";
    }
    return lt_cuda_refuse_rows(flat, 4, LT_F32);
}

static lt_err turn(lt_queue *q, float *dst, const float *src, int64_t n_rows, int64_t n_cols) {
    const int rows = (int)n_rows, cols = (int)n_cols;
    lt_cuda_transpose_fp32_args call = {
        .dst = dst, .src = src, .rows = rows, .cols = cols, .ld = n_cols, .pitch = n_rows};
    void *list[] = {&call};
    return lt_cuda_run(q, "ops/rearrange.cu", "transpose_fp32", "", LT_CUDA_DIV_UP(cols, 32),
                       (int)LT_CUDA_DIV_UP(rows, 32), 256, list);
}
/* c (m, n) = alpha a b + beta c. */
static lt_err product(lt_queue *q, float *c, const float *a, const float *b, int64_t m, int64_t n,
                      int64_t k, float alpha, float beta) {
    return lt_sgemm(q->gpu, q->stream,
                    &(lt_sgemm_args){.m = (int)m,
                                     .n = (int)n,
                                     .k = (int)k,
                                     .lda = (int)k,
                                     .ldb = (int)n,
                                     .ldc = (int)n,
                                     .alpha = alpha,
                                     .beta = beta,
                                     .a = a,
                                     .b = b,
                                     .c = c,
                                     .workspace = q->sgemm_workspace});
}

static lt_err newton_schulz(lt_queue *q, float *x, float *next, float *a, float *b, int64_t s,
                            int64_t l) {
    LT_TRY(turn(q, next, x, s, l));
    LT_TRY(product(q, a, x, next, s, s, l, 1.0f, 0.0f));
    LT_TRY(lt_cuda_copy(q->gpu, q->stream, b, a, (size_t)(s * s) * 4));
    LT_TRY(product(q, b, a, a, s, s, s, NS_C, NS_B));
    LT_TRY(lt_cuda_copy(q->gpu, q->stream, next, x, (size_t)(s * l) * 4));
    return product(q, next, b, x, s, l, s, 1.0f, NS_A);
}

static lt_err muon_run(lt_queue *q, const void *args) {
    lt_muon_args a = *(const lt_muon_args *)args;
    const int64_t rows = a.p.shape[0], cols = a.p.shape[1], s = rows < cols ? rows : cols,
                  l = rows < cols ? cols : rows;
    const bool tall = rows > cols;
    int64_t count = rows * cols;
    float *x = a.scratch.data, *next = x + count, *gram = next + count, *b = gram + s * s, *swap;
    lt_optim_numbers now = {.lr = a.lr, .grad_scale = a.grad_scale};
    void *parts, *u = tall ? next : x;

    if (count == 0) {
        return LT_OK;
    }
    if (q->sgemm_workspace == NULL) {
        LT_TRY(lt_sgemm_workspace_open(q->gpu, &q->sgemm_workspace));
    }
    LT_TRY(lt_cuda_scratch(q, BLOCKS * sizeof(double), &parts));
    lt_cuda_muon_momentum_args to_momentum = {.u = u,
                                              .parts = parts,
                                              .m = a.m.data,
                                              .g = a.g.data,
                                              .count = count,
                                              .momentum = a.momentum,
                                              .nesterov = a.nesterov,
                                              .s = now,
                                              .device = a.now.data};
    lt_cuda_muon_scale_args to_scale = {.u = u, .parts = parts, .count = count};
    void *momentum[] = {&to_momentum}, *scale[] = {&to_scale};
    LT_TRY(lt_cuda_run(q, FILE_NAME, "muon_momentum", "", BLOCKS, 1, THREADS, momentum));
    LT_TRY(lt_cuda_run(q, FILE_NAME, "muon_scale", "", BLOCKS, 1, THREADS, scale));
    if (tall) {
        LT_TRY(turn(q, x, next, rows, cols));
    }
    for (int64_t step = 0; step < a.steps; step++) {
        LT_TRY(newton_schulz(q, x, next, gram, b, s, l));
        swap = x, x = next, next = swap;
    }
    if (tall) {
        LT_TRY(turn(q, next, x, s, l));
        x = next;
    }
    lt_cuda_muon_update_args to_update = {.p = a.p.data,
                                          .copy = a.copy.data,
                                          .u = x,
                                          .count = count,
                                          .decay = a.decay,
                                          .scale = a.scale,
                                          .s = now,
                                          .device = a.now.data};
    void *update[] = {&to_update};
    return lt_cuda_run(q, FILE_NAME, "muon_update", "", LT_CUDA_DIV_UP(count, THREADS), 1, THREADS,
                       update);
}

const lt_op_impl lt_cuda_muon_impls[LT_REGISTRY_MAX_IMPLS] = {{"sgemm", muon_refuse, muon_run}};

void lt_specs_muon(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, "ops/muon.cu", "%s", "");
    lt_spec(l, LT_SM_ALL, "ops/rearrange.cu", "%s", "");
}
