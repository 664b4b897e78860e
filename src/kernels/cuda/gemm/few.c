/* few.c: launches gemm_few.cu, and decides how it divides a product. As with gemv.cu, the weights
 * are read before the preceding kernels are done, so no running kernel may write them. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/gemm/few_args.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/specs.h"

/* The -D constants of the kernels, for launches and for lt_specs_few. */
#define FEW_WORDS   "BN=%d GROUPS=%d SPLITS=%d STAGES=%d OUT=%s DTYPE=%s"
#define GATED_WORDS " GATED=1 KIND=%d"

/* With 128 rows, x costs as much L2 traffic as W memory traffic: 0.56 to 1.0 of cuBLASLt's
 * speed. */
#define MOST_ROWS   64
#define DEPTH       2 /* Depth of the kernel's stages: times 64 of K. */
#define MOST_STAGES LT_FEW_MOST_STAGES
#define HELD_BYTES  (100 * 1024) /* Bytes of weights in flight per SM. */

static int rows_of(const lt_gemm_args *a) {
    return (int)lt_cuda_div_up(a->m, 8) * 8;
}
static size_t stage_bytes(const lt_gemm_few_tile *t, int rows) {
    return (size_t)LT_FEW_STAGE_BYTES(t->groups, rows);
}
/* Everything but the ring: see the kernel. */
static size_t fixed_bytes(const lt_gemm_few_tile *t, int rows) {
    return (size_t)LT_FEW_FIXED_BYTES(t->groups, t->splits, rows / 8);
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

/* As many stages as fit, or as a block has work for; false: not even two fit. */
bool lt_gemm_few_fit(lt_gemm_few_tile *t, const lt_gemm_args *a, const lt_cuda_info *info) {
    const int rows = rows_of(a);
    const int64_t tiles = lt_cuda_div_up(a->n, 64 * t->groups),
                  share = lt_cuda_div_up(lt_cuda_div_up(a->k, 64 * DEPTH), t->splits);
    /* The system reserves 1024 bytes. */
    const size_t room = LT_HOPPER_SHARED_BYTES - 1024, fixed = fixed_bytes(t, rows);
    int64_t stages = room > fixed ? (int64_t)((room - fixed) / stage_bytes(t, rows)) : 0,
            blocks = info->n_sms, work;
    blocks = blocks < tiles && t->splits == 1 ? blocks : tiles;
    work = share * lt_cuda_div_up(tiles, blocks);
    stages = stages < work ? stages : work;
    t->stages = (int)(stages < MOST_STAGES ? stages : MOST_STAGES);
    t->blocks = (int)blocks * t->splits;
    return t->stages >= 1 && (t->stages >= 2 || work == 1);
}

/* Blocks of a wave in clusters of `splits`: an H100's GPCs have different numbers of SMs, and
 * clusters of 4, 7 and 8 left many idle. */
static int64_t wave_of(int splits) {
    static const int most[] = {0, 132, 128, 108, 0, 80, 96};
    return most[splits];
}
/* What won on an H100 at 1 to 64 rows (docs/speed/decoding.md). Many columns: blocks walk over
 * tiles. A product that the SMs hold at once: many parts, as nobody waits for a place. Else as many
 * blocks as a wave takes, with wide tiles where there is a choice. */
lt_gemm_few_tile lt_gemm_few_choose(const lt_gemm_args *a, const lt_cuda_info *info) {
    const int64_t tiles = lt_cuda_div_up(a->n, 64), most = info->n_sms;
    lt_gemm_few_tile t = {.groups = 1, .splits = 1}, best = t;
    if (tiles > most) {
        best.groups = lt_cuda_div_up(tiles, 2) <= most ? 2 : 1;
    } else if (a->n * a->k * 2 <= most * HELD_BYTES) {
        best = (lt_gemm_few_tile){.groups = tiles >= 32 ? 2 : 1, .splits = 4};
    } else {
        int64_t busy = 0;
        for (t.groups = 1; t.groups <= 2; t.groups++) {
            for (t.splits = 1; t.splits <= 6; t.splits++) {
                const int64_t blocks = lt_cuda_div_up(tiles, t.groups) * t.splits;
                if (blocks <= wave_of(t.splits) && blocks + (a->m <= 32) > busy) {
                    busy = blocks;
                    best = t;
                }
            }
        }
    }
    (void)lt_gemm_few_fit(&best, a, info);
    return best;
}

static void defines_of(char out[256], const lt_gemm_few_tile *t, const lt_gemm_args *a,
                       const lt_gemm_gated *gated) {
    const int at = snprintf(out, 256, FEW_WORDS, rows_of(a), t->groups, t->splits, t->stages,
                            a->out == LT_F32   ? "fp32"
                            : a->out == LT_F16 ? "fp16"
                                               : "bf16",
                            a->in == LT_F16 ? "fp16" : "bf16");
    if (gated != NULL) {
        snprintf(out + at, 256 - (size_t)at, GATED_WORDS, (int)gated->kind);
    }
}

static lt_err few_with(lt_cuda *c, CUstream s, const lt_gemm_args *a, const lt_gemm_few_tile *t,
                       const lt_gemm_gated *gated) {
    const char *why = lt_gemm_few_refusal(a, lt_cuda_get_info(c));
    const unsigned cluster = (unsigned)t->splits;
    const lt_cuda_kernel *k;
    CUtensorMap map_w, map_x;
    char text[256];
    lt_gemm_few_args w = {.bias = a->bias,
                          .y = a->c,
                          .ldy = a->ldc,
                          .m = (int)a->m,
                          .n = (int)a->n,
                          .k = (int)a->k,
                          .bias_type = a->bias == NULL            ? 0
                                       : a->bias_dtype == LT_F32  ? 1
                                       : a->bias_dtype == LT_BF16 ? 2
                                                                  : 3,
                          .accumulate = a->accumulate,
                          .act = gated != NULL ? gated->y : NULL,
                          .ld_act = gated != NULL ? gated->ld : 0};
    void *args[] = {&map_w, &map_x, &w};
    if (why != NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "gemm of few rows, %lld x %lld x %lld: %s", (long long)a->m,
                (long long)a->n, (long long)a->k, why);
    }
    defines_of(text, t, a, gated);
    LT_TRY(lt_cuda_kernel_get(c, &k, "gemm/gemm_few.cu", "gemm_few", text));
    if (gated != NULL && gated->y == NULL) {
        return LT_OK; /* The kernel was only fetched. */
    }
    LT_TRY(lt_gemm_operand_map(c, &map_w, a->b, a->in, a->k, a->n, a->ldb, 64,
                               gated != NULL ? 32 : 64 * t->groups));
    LT_TRY(lt_gemm_operand_map(c, &map_x, a->a, a->in, a->k, a->m, a->lda, 64, rows_of(a)));
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

lt_err lt_gemm_few_with(lt_cuda *c, CUstream s, const lt_gemm_args *a, const lt_gemm_few_tile *t) {
    return few_with(c, s, a, t, NULL);
}

lt_err lt_gemm_few_gated(lt_cuda *c, CUstream s, const lt_gemm_args *a, const lt_gemm_gated *g) {
    const lt_gemm_few_tile t = lt_gemm_few_choose(a, lt_cuda_get_info(c));
    LT_ASSERT(a->n % 2 == 0 && !a->accumulate);
    LT_ASSERT(g->kind == LT_ACT_SILU || g->kind == LT_ACT_GELU_TANH);
    return few_with(c, s, a, &t, g);
}

lt_err lt_gemm_few(lt_cuda *c, CUstream s, const lt_gemm_args *a) {
    const lt_gemm_few_tile t = lt_gemm_few_choose(a, lt_cuda_get_info(c));
    return lt_gemm_few_with(c, s, a, &t);
}

void lt_specs_few(lt_specs *l) {
    lt_spec(l, LT_SM90, "gemm/gemm_few.cu", FEW_WORDS, 32, 1, 4, 8, "bf16", "bf16");
    lt_spec(l, LT_SM90, "gemm/gemm_few.cu", FEW_WORDS, 32, 2, 1, 5, "bf16", "bf16");
    lt_spec(l, LT_SM90, "gemm/gemm_few.cu", FEW_WORDS, 64, 2, 1, 4, "fp32", "bf16");
    lt_spec(l, LT_SM90, "gemm/gemm_few.cu", FEW_WORDS, 24, 1, 2, 8, "fp16", "fp16");
    lt_spec(l, LT_SM90, "gemm/gemm_few.cu", FEW_WORDS, 8, 2, 4, 4, "bf16", "bf16");
    lt_spec(l, LT_SM90, "gemm/gemm_few.cu", FEW_WORDS GATED_WORDS, 32, 2, 1, 5, "bf16", "bf16", 2);
    lt_spec(l, LT_SM90, "gemm/gemm_few.cu", FEW_WORDS GATED_WORDS, 8, 1, 4, 4, "bf16", "bf16", 0);
}
