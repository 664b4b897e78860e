/* muon.c: Muon on one matrix (muon.cu): momentum, Newton-Schulz iterations, update. With X of S
 * rows and L columns, S <= L:
 *     A = X X^T,  B = b A + c A A,  X' = a X + B X
 * In F32 the products are sgemm's. X is kept with the shorter side as rows, and X' first holds X^T,
 * as the second operand of A. Scratch: X, X' (S L each), A, B (S S each), as lt_muon_scratch_count
 * says.
 *
 * In BF16 they are gemm_sm90's, X has the shape of the matrix (if it is tall, A = X^T X and X B
 * take the places of X X^T and B X), and the coefficients move so that each product is one kernel
 * with a scaled sum and a plain residual:
 *     A~ = b a^2k Y Y^T,  B = A~ + c/b^2 A~ A~,  Y' = Y + B Y / a,  where X = a^k Y after k
 *     iterations
 * So the update multiplies Y by a^steps. What gemm_sm90 refuses is a product to F32 and muon_add.
 * Scratch: F32 sums, or u (S L), then in BF16 Y, Y' (S L each), A~, B (S S each). */
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/ops/matmul.h"
#include "kernels/cuda/sgemm/sgemm.h"
#include "kernels/cuda/ops/muon_args.h"
#include "kernels/cuda/ops/rearrange_args.h"
#include "kernels/cuda/specs.h"

#define FILE_NAME  "ops/muon.cu"
#define THREADS    256
#define MOST_PARTS 1056 /* Blocks of muon_momentum: all threads of an H100 or H200. */

static const float NS_A = 3.4445f, NS_B = -4.7750f, NS_C = 2.0315f;

static const char *muon_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_muon_args *a = args;
    const lt_tensor *const flat[] = {&a->p, &a->g, &a->m, &a->scratch};
    if (!lt_cuda_all_contiguous(flat, 4) ||
        (a->copy.data != NULL && (!lt_tensor_contiguous(&a->copy) || a->copy.dtype != LT_BF16))) {
        return "not contiguous, or the copy is not BF16";
    }
    if (a->products != LT_F32 && a->products != LT_BF16) {
        return "products neither in F32 nor in BF16";
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

/* c (m, n) = alpha op(a) op(b) + aux, all in BF16; sum: m n elements in F32. */
static lt_err product_16(lt_queue *q, lt_gemm_args g, float *sum) {
    g.in = g.out = LT_BF16;
    g.act = g.act_bwd = -1;
    g.residual = g.aux != NULL;
    g.ldc = g.aux_ld = g.n;
    if (lt_gemm_refusal(&g, lt_cuda_get_info(q->gpu)) == NULL) {
        return lt_cuda_gemm_run(q, &g, false);
    }
    const lt_matmul_args plain = {
        .y = lt_tensor_2d(sum, LT_F32, g.m, g.n),
        .a = lt_tensor_2d((void *)(uintptr_t)g.a, LT_BF16, g.trans_a ? g.k : g.m, g.lda),
        .b = lt_tensor_2d((void *)(uintptr_t)g.b, LT_BF16, g.trans_b ? g.n : g.k, g.ldb),
        .trans_a = g.trans_a,
        .trans_b = g.trans_b};
    lt_cuda_muon_add_args to_add = {
        .y = g.c, .sum = sum, .x = g.aux, .count = g.m * g.n, .alpha = g.alpha};
    void *add[] = {&to_add};
    LT_TRY(q->device->backend->ops->matmul(q, &plain));
    return lt_cuda_run(q, FILE_NAME, "muon_add", "", LT_CUDA_DIV_UP(to_add.count, THREADS), 1,
                       THREADS, add);
}

/* y (rows, cols) is replaced by next; power is a^2k. */
static lt_err newton_schulz_16(lt_queue *q, const uint16_t *y, uint16_t *next, uint16_t *a,
                               float *sum, int64_t rows, int64_t cols, float power) {
    const bool tall = rows > cols;
    const int64_t s = tall ? cols : rows, l = tall ? rows : cols;
    uint16_t *b = a + s * s;
    LT_TRY(product_16(q,
                      (lt_gemm_args){.m = s,
                                     .n = s,
                                     .k = l,
                                     .lda = cols,
                                     .ldb = cols,
                                     .trans_a = tall,
                                     .trans_b = !tall,
                                     .alpha = NS_B * power,
                                     .a = y,
                                     .b = y,
                                     .c = a},
                      sum));
    LT_TRY(product_16(q,
                      (lt_gemm_args){.m = s,
                                     .n = s,
                                     .k = s,
                                     .lda = s,
                                     .ldb = s,
                                     .trans_b = true, /* A is symmetric. */
                                     .alpha = NS_C / (NS_B * NS_B),
                                     .a = a,
                                     .b = a,
                                     .aux = a,
                                     .c = b},
                      sum));
    return product_16(q,
                      (lt_gemm_args){.m = rows,
                                     .n = cols,
                                     .k = s,
                                     .lda = s,
                                     .ldb = cols,
                                     .alpha = 1.0f / NS_A,
                                     .a = tall ? y : b,
                                     .b = tall ? b : y,
                                     .aux = y,
                                     .c = next},
                      sum);
}

static lt_err scale(lt_queue *q, const lt_cuda_muon_momentum_args *of, uint16_t *x, int n_parts) {
    lt_cuda_muon_scale_args to_scale = {
        .u = of->u, .x = x, .parts = of->parts, .count = of->count, .n_parts = n_parts};
    void *list[] = {&to_scale};
    return lt_cuda_run(q, FILE_NAME, "muon_scale", "", n_parts, 1, THREADS, list);
}

/* update gets the result: u, or x and its scale. */
static lt_err orthogonalise(lt_queue *q, const lt_muon_args *a,
                            const lt_cuda_muon_momentum_args *from, int n_parts,
                            lt_cuda_muon_update_args *update) {
    const int64_t rows = a->p.shape[0], cols = a->p.shape[1], s = rows < cols ? rows : cols,
                  l = rows < cols ? cols : rows, count = rows * cols;
    const bool tall = rows > cols;
    float *x = a->scratch.data, *next = x + count, *gram = next + count, *b = gram + s * s, *swap;

    if (q->sgemm_workspace == NULL) {
        LT_TRY(lt_sgemm_workspace_open(q->gpu, &q->sgemm_workspace));
    }
    LT_TRY(scale(q, from, NULL, n_parts));
    if (tall) {
        LT_TRY(turn(q, x, next, rows, cols));
    }
    for (int64_t step = 0; step < a->steps; step++) {
        LT_TRY(newton_schulz(q, x, next, gram, b, s, l));
        swap = x, x = next, next = swap;
    }
    if (tall) {
        LT_TRY(turn(q, next, x, s, l));
        x = next;
    }
    update->u = x;
    return LT_OK;
}
static lt_err orthogonalise_16(lt_queue *q, const lt_muon_args *a,
                               const lt_cuda_muon_momentum_args *from, int n_parts,
                               lt_cuda_muon_update_args *update) {
    const int64_t rows = a->p.shape[0], cols = a->p.shape[1], count = rows * cols;
    float *sum = from->u, power = 1.0f;
    uint16_t *y = (uint16_t *)(sum + count), *next = y + count, *gram = next + count, *swap;

    LT_TRY(scale(q, from, y, n_parts));
    for (int64_t step = 0; step < a->steps; step++) {
        LT_TRY(newton_schulz_16(q, y, next, gram, sum, rows, cols, power));
        swap = y, y = next, next = swap;
        power *= NS_A * NS_A;
    }
    update->x = y;
    update->scale *= sqrtf(power);
    return LT_OK;
}

static lt_err muon_run(lt_queue *q, const void *args) {
    const lt_muon_args a = *(const lt_muon_args *)args;
    const bool in_16 = a.products == LT_BF16;
    const int64_t count = lt_tensor_count(&a.p), wanted = LT_CUDA_DIV_UP(count, 4 * THREADS);
    const int n_parts = wanted < MOST_PARTS ? (int)wanted : MOST_PARTS;
    const lt_optim_numbers now = {.lr = a.lr, .grad_scale = a.grad_scale};
    void *parts;
    if (count == 0) {
        return LT_OK;
    }
    LT_TRY(lt_cuda_scratch(q, (size_t)n_parts * sizeof(double), &parts));
    /* In F32 the u of a tall matrix waits in the place of X' to be transposed. */
    lt_cuda_muon_momentum_args to_momentum = {
        .u = (float *)a.scratch.data + (!in_16 && a.p.shape[0] > a.p.shape[1] ? count : 0),
        .parts = parts,
        .m = a.m.data,
        .g = a.g.data,
        .count = count,
        .momentum = a.momentum,
        .nesterov = a.nesterov,
        .s = now,
        .device = a.now.data};
    lt_cuda_muon_update_args to_update = {.p = a.p.data,
                                          .copy = a.copy.data,
                                          .count = count,
                                          .decay = a.decay,
                                          .scale = a.scale,
                                          .s = now,
                                          .device = a.now.data};
    void *momentum[] = {&to_momentum}, *update[] = {&to_update};
    LT_TRY(lt_cuda_run(q, FILE_NAME, "muon_momentum", "", n_parts, 1, THREADS, momentum));
    LT_TRY((in_16 ? orthogonalise_16 : orthogonalise)(q, &a, &to_momentum, n_parts, &to_update));
    return lt_cuda_run(q, FILE_NAME, "muon_update", "", LT_CUDA_DIV_UP(count, THREADS), 1, THREADS,
                       update);
}

const lt_op_impl lt_cuda_muon_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"newton_schulz", muon_refuse, muon_run}};

void lt_specs_muon(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, "ops/muon.cu", "%s", "");
    lt_spec(l, LT_SM_ALL, "ops/rearrange.cu", "%s", "");
}
