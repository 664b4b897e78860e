/* scaled.c: products of 8-bit floats with scales (matmul_scaled) through gemm_sm90.cu with FP8. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/specs.h"

/* The -D constants of the kernels, for launches and for lt_specs_gemm_scaled. */
#define SCALED_WORDS                                                                               \
    "FP8=1 A_F8=%s SCALES=%d PROMOTE=%d BN=%d WG_M=1 CONSUMERS=2 PINGPONG=0 "                      \
    "CLUSTER=1 STAGES=%d C_STAGES=2 A_MAJOR_M=0 B_MAJOR_N=0 REGS_PRODUCER=24 "                     \
    "REGS_CONSUMER=240 OUT_F32=%d OUT_ADD=%d DTYPE=bf16 EPI_BIAS=%d "                              \
    "EPI_RESIDUAL=%d"

#define STEP       128 /* Elements of K per stage of the ring: 128 bytes. */
#define BM         128 /* Two consumers of 64 rows. */
#define GROUP_ROWS 8

/* The tile for a kind of scales: with scales of 1 x 128, each 128 of K have separate sums. Wider
 * tiles of such sums, and pairs of blocks that share B, were slower (docs/speed/fp8.md). */
typedef struct {
    int bn, stages, scales;
    bool promote;
} tile;
static const tile by_tensor = {256, 4, 1, false}, by_row = {128, 6, 2, true};

static const char *refuse_operand(const lt_tensor *t, const lt_tensor *scale) {
    if (t->n_dims != 2 || t->stride[1] != 1 || t->stride[0] % 16 != 0 ||
        (uintptr_t)t->data % 16 != 0) {
        return "rows not contiguous on 16 bytes";
    }
    return scale->dtype == LT_F32 && lt_tensor_contiguous(scale) ? NULL
                                                                 : "scales not contiguous F32";
}

const char *lt_gemm_scaled_refusal(const lt_matmul_scaled_args *a, const lt_cuda_info *info) {
    const int64_t m = a->y.shape[0], n = a->y.shape[1], k = a->a.shape[1], limit = INT32_MAX / 2;
    const char *why;
    if (info->cc != 90) {
        return "needs compute capability 9.0";
    }
    if ((a->a.dtype != LT_F8_E4M3 && a->a.dtype != LT_F8_E5M2) || a->b.dtype != LT_F8_E4M3) {
        return "types are not E4M3 or E5M2 by E4M3";
    }
    if ((a->a_kind == LT_SCALE_TENSOR) != (a->b_kind == LT_SCALE_TENSOR) ||
        a->a_kind == LT_SCALE_BLOCK || a->b_kind == LT_SCALE_ROW) {
        return "kinds of scales";
    }
    why = refuse_operand(&a->a, &a->a_scale);
    why = why != NULL ? why : refuse_operand(&a->b, &a->b_scale);
    if (why != NULL) {
        return why;
    }
    if ((a->y.dtype != LT_BF16 && a->y.dtype != LT_F32) || a->y.n_dims != 2 ||
        a->y.stride[1] != 1 || a->y.stride[0] * (int64_t)lt_dtype_bytes(a->y.dtype) % 16 != 0 ||
        (uintptr_t)a->y.data % 16 != 0) {
        return "y is not BF16 or F32 with rows on 16 bytes";
    }
    if (a->bias.data != NULL && a->bias.dtype != LT_F32 &&
        (a->bias.dtype != LT_BF16 || (uintptr_t)a->bias.data % 4 != 0)) {
        return "bias of a third type, or not 4-byte aligned";
    }
    if (n % 2 != 0) {
        return "odd number of columns";
    }
    return m < 1 || n < 1 || k < 1 || m > limit || n > limit || k > limit ? "sizes out of range"
                                                                          : NULL;
}

lt_err lt_gemm_scaled(lt_cuda *c, CUstream s, const lt_matmul_scaled_args *a) {
    const tile *t = a->a_kind == LT_SCALE_TENSOR ? &by_tensor : &by_row;
    const bool f32 = a->y.dtype == LT_F32,
               /* y + product is a residual that happens to be y. */
        into_16 = a->accumulate && !f32;
    const int64_t m = a->y.shape[0], n = a->y.shape[1], k = a->a.shape[1];
    const int64_t blocks = lt_cuda_div_up(m, BM) * lt_cuda_div_up(n, t->bn),
                  fit = lt_cuda_get_info(c)->n_sms;
    lt_gemm_kernel_args w = {.m = (int)m,
                             .n = (int)n,
                             .k = (int)k,
                             .splits = 1,
                             .group = GROUP_ROWS,
                             .alpha = 1.0f,
                             .bias = a->bias.data,
                             .aux = into_16 ? a->y.data : NULL,
                             .aux_ld = a->y.stride[0],
                             .a_scale = a->a_scale.data,
                             .b_scale = a->b_scale.data};
    const lt_cuda_kernel *kernel;
    CUtensorMap map_a, map_b, map_c;
    char text[512];
    void *args[] = {&map_a, &map_b, &map_c, &map_c, &w};

    snprintf(text, sizeof text, SCALED_WORDS, a->a.dtype == LT_F8_E5M2 ? "e5m2" : "e4m3", t->scales,
             t->promote, t->bn, t->stages, f32, f32 && a->accumulate,
             a->bias.data == NULL      ? 0
             : a->bias.dtype == LT_F32 ? 2
                                       : 1,
             into_16);
    LT_TRY(lt_cuda_kernel_get(c, &kernel, "gemm/gemm_sm90.cu", "gemm_sm90", text));
    LT_TRY(lt_gemm_operand_map(c, &map_a, a->a.data, a->a.dtype, k, m, a->a.stride[0], STEP, BM));
    LT_TRY(
        lt_gemm_operand_map(c, &map_b, a->b.data, a->b.dtype, k, n, a->b.stride[0], STEP, t->bn));
    LT_TRY(lt_gemm_operand_map(c, &map_c, a->y.data, a->y.dtype, n, m, a->y.stride[0],
                               f32 ? 32 : 64, 64));
    return lt_cuda_launch(c, s, kernel,
                          &(lt_cuda_dims){.grid = {(unsigned)(blocks < fit ? blocks : fit)},
                                          .block = {384},
                                          .dynamic_shared_bytes = (size_t)LT_GEMM_SM90_BYTES(
                                              BM, t->bn, t->stages, 2, 2)},
                          args);
}

void lt_specs_gemm_scaled(lt_specs *l) {
    lt_spec(l, LT_SM90, "gemm/gemm_sm90.cu", SCALED_WORDS, "e4m3", 2, 1, 128, 6, 0, 0, 0, 0);
    lt_spec(l, LT_SM90, "gemm/gemm_sm90.cu", SCALED_WORDS, "e4m3", 2, 1, 128, 6, 1, 1, 0, 0);
    lt_spec(l, LT_SM90, "gemm/gemm_sm90.cu", SCALED_WORDS, "e4m3", 2, 1, 128, 6, 0, 0, 1, 1);
    lt_spec(l, LT_SM90, "gemm/gemm_sm90.cu", SCALED_WORDS, "e5m2", 1, 0, 256, 4, 0, 0, 0, 0);
}
