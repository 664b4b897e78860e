/* grouped.c: products of experts through gemm_sm90.cu (GROUPED). Only the device knows how many
 * rows an expert has, so the grid is one block an SM, and each block walks over the experts to find
 * its tiles. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/specs.h"

/* The -D constants of the kernels, for launches and for lt_specs_grouped. */
#define GROUPED_WORDS                                                                              \
    "GROUPED=%d BN=%d WG_M=%d CONSUMERS=2 PINGPONG=%d CLUSTER=1 STAGES=%d "                        \
    "C_STAGES=2 A_MAJOR_M=%d B_MAJOR_N=%d OUT_F32=%d OUT_ADD=%d REGS_PRODUCER=24 "                 \
    "REGS_CONSUMER=240 DTYPE=%s EPI_RESIDUAL=%d"

#define STEP       64   /* Elements of K per stage (BK) */
#define SHORT_K    1024 /* Up to this K, ping-pong pays by hiding a tile's stores. */
#define GROUP_ROWS 8

typedef struct {
    int bn, wg_m, stages;
    bool pingpong;
} tile;

static tile tile_of(const lt_matmul_grouped_args *a) {
    const int64_t n = a->y.shape[a->y.n_dims - 1];
    if (a->weights) {
        return n > 128 ? (tile){256, 1, 4, false} : (tile){128, 1, 6, false};
    }
    return n <= 128 || a->a.shape[1] <= SHORT_K ? (tile){128, 2, 6, true}
                                                : (tile){256, 1, 4, false};
}

const char *lt_gemm_grouped_refusal(const lt_matmul_grouped_args *a, const lt_cuda_info *info) {
    const lt_tensor *all[] = {&a->y, &a->a, &a->b};
    if (info->cc != 90) {
        return "needs compute capability 9.0";
    }
    if ((a->a.dtype != LT_BF16 && a->a.dtype != LT_F16) || a->b.dtype != a->a.dtype) {
        return "inputs are not 16-bit";
    }
    if (a->weights ? a->y.dtype != LT_F32 : a->y.dtype != a->a.dtype && a->y.dtype != LT_F32) {
        return "type of y";
    }
    for (int i = 0; i < 3; i++) {
        const lt_tensor *t = all[i];
        const int64_t piece = 16 / (int64_t)lt_dtype_bytes(t->dtype);
        if (t->stride[t->n_dims - 1] != 1 || (uintptr_t)t->data % 16 != 0) {
            return "rows not contiguous on 16 bytes";
        }
        for (int d = 0; d < t->n_dims - 1; d++) {
            if (t->stride[d] % piece != 0 || t->stride[d] <= 0) {
                return "rows not 16-byte aligned";
            }
        }
    }
    if (a->a.shape[0] < 1 || a->y.shape[a->y.n_dims - 1] % 2 != 0) {
        return "no rows, or an odd number of columns";
    }
    return a->a.shape[0] > INT32_MAX / 2 ? "sizes out of range" : NULL;
}

/* Boxes of inner x outer (x 1). */
static lt_err map_of(lt_cuda *c, CUtensorMap *map, const lt_tensor *t, int inner, int outer) {
    const int bytes = (int)lt_dtype_bytes(t->dtype), rank = t->n_dims;
    lt_tensor_map_spec spec = {.type = t->dtype == LT_F32   ? LT_CU_TMAP_FP32
                                       : t->dtype == LT_F16 ? LT_CU_TMAP_FP16
                                                            : LT_CU_TMAP_BF16,
                               .elem_bytes = bytes,
                               .rank = rank,
                               .box = {(uint32_t)inner, (uint32_t)outer, 1},
                               .swizzle = LT_CU_TMAP_SWIZZLE_128B,
                               .l2_promotion = LT_CU_TMAP_L2_128B};
    for (int i = 0; i < rank; i++) {
        spec.size[i] = (uint64_t)t->shape[rank - 1 - i];
        spec.stride_bytes[i] = i == 0 ? 0 : (uint64_t)(t->stride[rank - 1 - i] * bytes);
    }
    return lt_cuda_tensor_map(c, map, t->data, &spec);
}

lt_err lt_gemm_grouped(lt_cuda *c, CUstream s, const lt_matmul_grouped_args *a) {
    const tile t = tile_of(a);
    const bool weights = a->weights, f32 = a->y.dtype == LT_F32,
               /* y + product is the residual form with y as the residual. */
        into_16 = a->accumulate && !f32;
    const int bm = 64 * t.wg_m * (t.pingpong ? 1 : 2);
    const size_t shared = (size_t)LT_GEMM_SM90_BYTES(bm, t.bn, t.stages, 2, 2);
    lt_gemm_kernel_args w = {.m = (int)(weights ? a->y.shape[1] : a->y.shape[0]),
                             .n = (int)a->y.shape[a->y.n_dims - 1],
                             .k = (int)(weights ? a->a.shape[0] : a->a.shape[1]),
                             .splits = 1,
                             .group = GROUP_ROWS,
                             .alpha = 1.0f,
                             .aux = into_16 ? a->y.data : NULL,
                             .aux_ld = a->y.stride[0],
                             .c = a->y.data,
                             .ldc = a->y.stride[0],
                             .start = a->expert_start.data,
                             .experts = (int)a->expert_start.shape[0] - 1};
    const lt_cuda_kernel *k;
    CUtensorMap map_a, map_b, map_c;
    char text[320];
    void *args[] = {&map_a, &map_b, &map_c, &map_c, &w};

    snprintf(text, sizeof text, GROUPED_WORDS, weights ? 2 : 1, t.bn, t.wg_m, t.pingpong, t.stages,
             weights, weights || !a->trans_b, f32, f32 && a->accumulate,
             a->a.dtype == LT_F16 ? "fp16" : "bf16", into_16);
    LT_TRY(lt_cuda_kernel_get(c, &k, "gemm/gemm_sm90.cu", "gemm_sm90", text));
    LT_TRY(map_of(c, &map_a, &a->a, 64, weights ? 64 : bm));
    LT_TRY(map_of(c, &map_b, &a->b, 64, weights || !a->trans_b ? 64 : t.bn));
    LT_TRY(map_of(c, &map_c, &a->y, f32 ? 32 : 64, 64));
    return lt_cuda_launch(c, s, k,
                          &(lt_cuda_dims){.grid = {(unsigned)lt_cuda_get_info(c)->n_sms},
                                          .block = {384},
                                          .dynamic_shared_bytes = shared},
                          args);
}

void lt_specs_grouped(lt_specs *l) {
    lt_spec(l, LT_SM90, "gemm/gemm_sm90.cu", GROUPED_WORDS, 1, 256, 1, 0, 4, 0, 0, 0, 0, "bf16", 0);
    lt_spec(l, LT_SM90, "gemm/gemm_sm90.cu", GROUPED_WORDS, 1, 128, 2, 1, 6, 0, 1, 0, 0, "bf16", 0);
    lt_spec(l, LT_SM90, "gemm/gemm_sm90.cu", GROUPED_WORDS, 2, 256, 1, 0, 4, 1, 1, 1, 1, "bf16", 0);
}
