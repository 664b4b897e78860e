/* scaled.c: products of 8-bit floats with scales (matmul_scaled) through gemm_sm90.cu with FP8. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/specs.h"

/* Words of the kernels, as launches and lt_specs_gemm_scaled write them. */
#define SCALED_WORDS                                                                               \
    "FP8=1 A_F8=%s SCALES=%d PROMOTE=%d BN=%d WG_M=1 CONSUMERS=2 PINGPONG=0 "                      \
    "CLUSTER=%d STAGES=%d C_STAGES=2 A_MAJOR_M=0 B_MAJOR_N=0 REGS_PRODUCER=24 "                    \
    "REGS_CONSUMER=240 OUT_F32=%d OUT_ADD=%d DTYPE=bf16 EPI_BIAS=%d "                              \
    "EPI_RESIDUAL=%d"

#define STEP       128 /* K elements a stage of the ring: 128 bytes. */
#define BM         128 /* Two consumers of 64 rows. */
#define GROUP_ROWS 8

/* What was measured to win somewhere (docs/speed/fp8.md). */
const lt_gemm_scaled_tile lt_gemm_scaled_tiles[] = {
    {128, 1, 6, true}, {128, 2, 6, true}, {192, 1, 4, true}, {192, 2, 4, true}, {256, 1, 4, false},
};
const int lt_gemm_n_scaled_tiles = sizeof lt_gemm_scaled_tiles / sizeof *lt_gemm_scaled_tiles;

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

/* Clocks of all waves of tiles. Measured on Llama-1B's products: the wider promoted tile is 5 %
 * slower; pairs that share B are 2 % faster than single tiles, but optest has not run on them yet
 * (docs/speed/fp8.md), so the bench alone takes them. */
static lt_gemm_scaled_tile choose(const lt_matmul_scaled_args *a, int n_sms) {
    const bool promote = a->a_kind != LT_SCALE_TENSOR;
    lt_gemm_scaled_tile best = lt_gemm_scaled_tiles[0];
    double best_clocks = 1e30;
    for (int i = 0; i < lt_gemm_n_scaled_tiles; i++) {
        const lt_gemm_scaled_tile *t = &lt_gemm_scaled_tiles[i];
        const int64_t tiles = lt_cuda_div_up(a->y.shape[0], BM * t->cluster) * t->cluster *
                              lt_cuda_div_up(a->y.shape[1], t->bn);
        const double rate = t->bn == 192 ? 0.9 : 1.0;
        const double clocks = (double)lt_cuda_div_up(tiles, n_sms) *
                              ((double)lt_cuda_div_up(a->a.shape[1], STEP) * t->bn * 4.0 / rate +
                               800.0);
        if (t->promote == promote && t->cluster == 1 && clocks < best_clocks) {
            best_clocks = clocks;
            best = *t;
        }
    }
    return best;
}

lt_err lt_gemm_scaled_with(lt_cuda *c, CUstream s, const lt_matmul_scaled_args *a,
                           const lt_gemm_scaled_tile *t) {
    const bool f32 = a->y.dtype == LT_F32,
               /* y + product is a residual that happens to be y. */
        into_16 = a->accumulate && !f32;
    const int64_t m = a->y.shape[0], n = a->y.shape[1], k = a->a.shape[1];
    const int64_t blocks = lt_cuda_div_up(m, BM * t->cluster) * t->cluster *
                           lt_cuda_div_up(n, t->bn),
                  fit = lt_cuda_get_info(c)->n_sms / t->cluster * t->cluster;
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

    snprintf(text, sizeof text, SCALED_WORDS, a->a.dtype == LT_F8_E5M2 ? "e5m2" : "e4m3",
             a->a_kind == LT_SCALE_TENSOR ? 1 : 2, t->promote, t->bn, t->cluster, t->stages, f32,
             f32 && a->accumulate,
             a->bias.data == NULL      ? 0
             : a->bias.dtype == LT_F32 ? 2
                                       : 1,
             into_16);
    LT_TRY(lt_cuda_kernel_get(c, &kernel, "gemm/gemm_sm90.cu", "gemm_sm90", text));
    LT_TRY(lt_gemm_operand_map(c, &map_a, a->a.data, a->a.dtype, k, m, a->a.stride[0], STEP, BM));
    LT_TRY(lt_gemm_operand_map(c, &map_b, a->b.data, a->b.dtype, k, n, a->b.stride[0], STEP,
                               t->bn / t->cluster));
    LT_TRY(lt_gemm_operand_map(c, &map_c, a->y.data, a->y.dtype, n, m, a->y.stride[0],
                               f32 ? 32 : 64, 64));
    return lt_cuda_launch(
        c, s, kernel,
        &(lt_cuda_dims){
            .grid = {(unsigned)(blocks < fit ? blocks : fit)},
            .block = {384},
            .cluster = {t->cluster > 1 ? (unsigned)t->cluster : 0, t->cluster > 1, t->cluster > 1},
            .dynamic_shared_bytes = (size_t)LT_GEMM_SM90_BYTES(BM, t->bn, t->stages, 2, 2)},
        args);
}

lt_err lt_gemm_scaled(lt_cuda *c, CUstream s, const lt_matmul_scaled_args *a) {
    const lt_gemm_scaled_tile t = choose(a, lt_cuda_get_info(c)->n_sms);
    return lt_gemm_scaled_with(c, s, a, &t);
}

void lt_specs_gemm_scaled(lt_specs *l) {
    lt_spec(l, LT_SM90, "gemm/gemm_sm90.cu", SCALED_WORDS, "e4m3", 2, 1, 128, 1, 6, 0, 0, 0, 0);
    lt_spec(l, LT_SM90, "gemm/gemm_sm90.cu", SCALED_WORDS, "e4m3", 2, 1, 128, 2, 6, 0, 0, 0, 0);
    lt_spec(l, LT_SM90, "gemm/gemm_sm90.cu", SCALED_WORDS, "e4m3", 2, 1, 192, 1, 4, 0, 0, 0, 0);
    lt_spec(l, LT_SM90, "gemm/gemm_sm90.cu", SCALED_WORDS, "e4m3", 2, 1, 192, 2, 4, 0, 0, 0, 0);
    lt_spec(l, LT_SM90, "gemm/gemm_sm90.cu", SCALED_WORDS, "e4m3", 2, 1, 192, 1, 4, 1, 1, 0, 0);
    lt_spec(l, LT_SM90, "gemm/gemm_sm90.cu", SCALED_WORDS, "e4m3", 2, 1, 128, 1, 6, 0, 0, 1, 1);
    lt_spec(l, LT_SM90, "gemm/gemm_sm90.cu", SCALED_WORDS, "e5m2", 1, 0, 256, 1, 4, 0, 0, 0, 0);
}
