/* few.c: the launcher of gemm_few.cu and how it shares out a product. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/gemm/gemm.h"

#define MOST_ROWS                                                                                  \
    64 /* At 128 x costs the L2 as much as W the memory: 0.56 to 1.0 of cuBLASLt's speed. */
#define SM_BYTES    (227 * 1024) /* Shared memory that the blocks of an SM have together. */
#define BLOCK_BYTES 1024         /* Of it, what the system takes a block. */
#define MOST_STAGES 32
#define HELD_BYTES  (100 * 1024) /* Of weights, an SM, that are all on their way at once. */

/* few_args of gemm_few.cu. */
typedef struct {
    const void *bias;
    void *y;
    int64_t ldy;
    int m, n, k, bias_type, accumulate;
} few_args;

static int64_t div_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
static int rows_of(const lt_gemm_args *a) {
    return (int)div_up(a->m, 8) * 8;
}
static size_t stage_bytes(const lt_gemm_few_tile *t, int rows) {
    return (size_t)(t->depth * (64 * t->groups + rows)) * 128;
}
/* All but the ring: see the kernel. */
static size_t fixed_bytes(const lt_gemm_few_tile *t, int rows) {
    const int octets = rows / 8,
              each = t->splits == 1 ? (octets < 4 ? octets : 4) : (int)div_up(octets, t->splits);
    return 1024 + (size_t)(t->groups * t->splits * each) * 2048 + (size_t)(16 * MOST_STAGES) + 64;
}

const char *lt_gemm_few_refusal(const lt_gemm_args *a, const lt_cuda_info *info) {
    const char *why = lt_gemm_refusal(a, info);
    if (why != NULL) {
        return why;
    }
    if (a->m > MOST_ROWS) {
        return "too many rows";
    }
    return a->trans_a || !a->trans_b ? "weights not stored (N, K)"
           : a->act >= 0 || a->act_bwd >= 0 || a->residual || a->pre != NULL || a->alpha != 1.0f
               ? "an epilogue"
               : NULL;
}

/* As many stages as fit, or as a block has work for; false: not even two. */
bool lt_gemm_few_fit(lt_gemm_few_tile *t, const lt_gemm_args *a, const lt_cuda_info *info) {
    const int rows = rows_of(a);
    const int64_t tiles = div_up(a->n, 64 * t->groups * (1 + t->pair)),
                  share = div_up(div_up(a->k, 64 * t->depth), t->splits);
    const size_t room = SM_BYTES / (size_t)t->per_sm - BLOCK_BYTES, fixed = fixed_bytes(t, rows);
    int64_t stages = room > fixed ? (int64_t)((room - fixed) / stage_bytes(t, rows)) : 0,
            blocks = (int64_t)info->n_sms * t->per_sm / (t->splits * (1 + t->pair)), work;
    blocks = blocks < tiles && t->splits == 1 ? blocks : tiles;
    work = share * div_up(tiles, blocks);
    stages = stages < work ? stages : work;
    t->stages = (int)(stages < MOST_STAGES ? stages : MOST_STAGES);
    t->blocks = (int)blocks * t->splits * (1 + t->pair);
    if (t->pair && (t->splits > 1 || rows % 16 != 0)) {
        return false;
    }
    return t->stages >= 1 && (t->stages >= 2 || work == 1);
}

/* What won on an H100 at 1 to 64 rows (docs/SPEED.md): many columns, a block walks over tiles; a product that the SMs hold at once, many small parts; else one wave of
 * clusters of two, as larger ones leave SMs of the H100's uneven GPCs idle. */
lt_gemm_few_tile lt_gemm_few_choose(const lt_gemm_args *a, const lt_cuda_info *info) {
    const int64_t tiles = div_up(a->n, 64), most = info->n_sms;
    const bool held = a->n * a->k * 2 <= most * HELD_BYTES;
    lt_gemm_few_tile t = {.groups = 1, .splits = 1, .depth = 2, .per_sm = 1};
    if (tiles > most) {
        t.groups = div_up(tiles, 2) <= most || a->m > 32 ? 2 : 1;
    } else if (held) {
        t.groups = tiles >= 32 ? 2 : 1;
        t.splits = 4;
    } else {
        t.splits = tiles * 2 <= most ? 2 : 1;
    }
    return lt_gemm_few_fit(&t, a, info) ? t : (lt_gemm_few_tile){0};
}

lt_err lt_gemm_few(lt_cuda *c, CUstream s, const lt_gemm_args *a) {
    const lt_gemm_few_tile t = lt_gemm_few_choose(a, lt_cuda_get_info(c));
    return lt_gemm_few_with(c, s, a, &t);
}

void lt_gemm_few_text(char out[256], const lt_gemm_few_tile *t, const lt_gemm_args *a) {
    snprintf(out, 256, "BN=%d GROUPS=%d SPLITS=%d DEPTH=%d STAGES=%d OUT=%s DTYPE=%s PAIR=%d",
             rows_of(a), t->groups, t->splits, t->depth, t->stages,
             a->out == LT_F32   ? "fp32"
             : a->out == LT_F16 ? "fp16"
                                : "bf16",
             a->in == LT_F16 ? "fp16" : "bf16", t->pair);
}

lt_err lt_gemm_few_with(lt_cuda *c, CUstream s, const lt_gemm_args *a, const lt_gemm_few_tile *t) {
    const char *why = lt_gemm_few_refusal(a, lt_cuda_get_info(c));
    const unsigned cluster = (unsigned)(t->pair ? 2 : t->splits);
    const lt_cuda_kernel *k;
    CUtensorMap map_w, map_x;
    char text[256];
    few_args w = {.bias = a->bias,
                  .y = a->c,
                  .ldy = a->ldc,
                  .m = (int)a->m,
                  .n = (int)a->n,
                  .k = (int)a->k,
                  .bias_type = a->bias == NULL            ? 0
                               : a->bias_dtype == LT_F32  ? 1
                               : a->bias_dtype == LT_BF16 ? 2
                                                          : 3,
                  .accumulate = a->accumulate};
    void *args[] = {&map_w, &map_x, &w};
    if (why != NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "gemm of few rows, %lld x %lld x %lld: %s", (long long)a->m,
                (long long)a->n, (long long)a->k, why);
    }
    lt_gemm_few_text(text, t, a);
    LT_TRY(lt_cuda_kernel_get(c, &k, "gemm/gemm_few.cu", "gemm_few", text));
    LT_TRY(lt_gemm_operand_map(c, &map_w, a->b, a->in, a->k, a->n, a->ldb, 64, 64 * t->groups));
    LT_TRY(lt_gemm_operand_map(c, &map_x, a->a, a->in, a->k, a->m, a->lda, 64,
                               rows_of(a) / (1 + t->pair)));
    return lt_cuda_launch(
        c, s, k,
        &(lt_cuda_dims){.grid = {(unsigned)t->blocks},
                        .block = {(unsigned)(128 * t->groups + 32)},
                        .cluster = {cluster > 1 ? cluster : 0, cluster > 1, cluster > 1},
                        .dynamic_shared_bytes = fixed_bytes(t, rows_of(a)) +
                                                (size_t)t->stages * stage_bytes(t, rows_of(a)),
                        .overlap_previous = true},
        args);
}
