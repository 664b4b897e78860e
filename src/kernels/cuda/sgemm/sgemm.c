/* sgemm.c: launcher of sgemm.cu. See sgemm.h.
 *
 * The tile of a call: the tuner's winner for its shape class, kept in a text file of the kernel cache, one line a class; else the
 * tile of the shipped table with the least modelled time, waves x area of a wave's tile / measured efficiency of the tile. */
#include "kernels/cuda/sgemm/sgemm.h"

#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/sgemm/tune.h"

#define BK               32 /* K depth of a stage: a row of A's tile is 128 bytes, one swizzle atom. */
#define WARP             32
#define MAX_REGISTERS    255
#define SM_REGISTERS     65536
#define TMA_BOX_MAX      256   /* Elements of a box dimension. */
#define SPLIT_COST       0.08  /* What the loop of sgemm_split.cu and its adding cost. */
#define MIN_SPLIT_STAGES 4     /* Stages of K a block's share has at least. */
#define UNALIGNED_FLOPS  25e12 /* Measured on an H100: 4097^3 as it lies, and 4096^3. */
#define ALIGNED_FLOPS    50e12
#define COPY_BYTES_S     2.5e12
#define COPY_LAUNCHES_S  6e-6

int lt_sgemm_tile_bm(const lt_sgemm_tile *t) {
    return t->warps_m * t->lanes_m * t->tm;
}

int lt_sgemm_tile_bn(const lt_sgemm_tile *t) {
    return t->warps_n * (WARP / t->lanes_m) * t->tn;
}

int lt_sgemm_tile_threads(const lt_sgemm_tile *t) {
    return t->warps_m * t->warps_n * WARP;
}

size_t lt_sgemm_tile_shared_bytes(const lt_sgemm_tile *t) {
    return (size_t)t->stages * BK * 4 * (size_t)(lt_sgemm_tile_bm(t) + lt_sgemm_tile_bn(t));
}

const char *lt_sgemm_tile_refusal(const lt_sgemm_tile *t, const lt_cuda_info *info) {
    const int threads = lt_sgemm_tile_threads(t);
    const int registers = t->tm * t->tn + 4 * t->tm + 2 * t->tn +
                          14; /* Sums, fragments, addresses. */
    if (t->lanes_m != 4 && t->lanes_m != 8) {
        return "lanes_m must be 4 or 8: the zigzag of lanes needs two or more lanes each way";
    }
    if (t->tn % 4 != 0 || (t->lanes_m * t->tm) % 8 != 0) {
        return "tn must be a multiple of 4 (16-byte reads of B) and a warp's rows one of 8 "
               "(swizzle of A)";
    }
    if (t->copy == LT_SGEMM_TMA &&
        (lt_sgemm_tile_bm(t) > TMA_BOX_MAX || lt_sgemm_tile_bn(t) > TMA_BOX_MAX)) {
        return "a tile side is over 256, the longest box the copy engine takes";
    }
    if (threads > 1024) {
        return "more than 1024 threads a block";
    }
    if (registers > MAX_REGISTERS || registers * threads * t->blocks_per_sm > SM_REGISTERS) {
        return "the register tile does not fit the registers of a thread or of an SM";
    }
    if ((lt_sgemm_tile_shared_bytes(t) + 2048) * (size_t)t->blocks_per_sm >
        info->shared_optin_bytes + 2048) {
        return "the stages do not fit shared memory";
    }
    if (t->unroll < 1 || BK / 4 % t->unroll != 0) {
        return "a stage of 8 quads of K is unrolled by 1, 2, 4 or 8";
    }
    if (t->stages < (t->copy == LT_SGEMM_TMA ? 2 : 3)) {
        return "too few stages: nothing would overlap";
    }
    if (t->copy == LT_SGEMM_TMA && info->cc < 90) {
        return "no copy engine before compute capability 9.0";
    }
    return NULL;
}

void lt_sgemm_tile_text(char out[256], const lt_sgemm_tile *t) {
    snprintf(out, 256,
             "TM=%d TN=%d LANES_M=%d WARPS_M=%d WARPS_N=%d STAGES=%d BLOCKS_PER_SM=%d GROUP_M=%d "
             "UNROLL=%d COPY=%d%s",
             t->tm, t->tn, t->lanes_m, t->warps_m, t->warps_n, t->stages, t->blocks_per_sm,
             t->group_m, t->unroll, (int)t->copy, t->keep_order ? " --ptxas-options=-O1" : "");
}

/* Rows of whole 16 bytes, as the copy engine and cp.async of 16 bytes need them. */
static bool is_aligned(const float *p, int ld) {
    return ((uintptr_t)p & 15) == 0 && ld % 4 == 0;
}

lt_sgemm_copy lt_sgemm_copy_allowed(const lt_sgemm_args *a, const lt_cuda_info *info) {
    const bool aligned = is_aligned(a->a, a->lda) && is_aligned(a->b, a->ldb);
    return !aligned ? LT_SGEMM_ASYNC_4 : info->cc >= 90 ? LT_SGEMM_TMA : LT_SGEMM_ASYNC_16;
}

/* The shipped tiles, and the share of the multiply-add peak that a full wave of each reaches on an H100 (4096^3, table in docs). Unrolled by 4: NVRTC 12.4 to
 * 13.3 leave a loop of 8 quads rolled, and a rolled one loses the order that spares register reads (34 instead of 50.6 TFLOP/s with 13.0). */
static const struct {
    lt_sgemm_tile tile;
    double efficiency;
} shipped[] = {
    {{8, 16, 8, 2, 4, 4, 1, 8, 4, LT_SGEMM_TMA, true}, 0.87},  /* 128 x 256 */
    {{8, 16, 8, 2, 2, 3, 2, 8, 4, LT_SGEMM_TMA, true}, 0.865}, /* 128 x 128 */
    {{8, 8, 8, 2, 4, 3, 2, 8, 4, LT_SGEMM_TMA, true}, 0.70},   /* 128 x 128, more warps */
    {{8, 8, 8, 1, 4, 3, 4, 8, 4, LT_SGEMM_TMA, true}, 0.66},   /* 64 x 128 */
    {{8, 8, 8, 1, 2, 3, 4, 8, 4, LT_SGEMM_TMA, true}, 0.55},   /* 64 x 64 */
    {{4, 4, 8, 1, 2, 3, 8, 8, 4, LT_SGEMM_TMA, true}, 0.35},   /* 32 x 32 */
};

lt_sgemm_tile lt_sgemm_tile_choose(lt_cuda *c, const lt_sgemm_args *a) {
    const lt_cuda_info *info = lt_cuda_get_info(c);
    const lt_sgemm_copy copy = lt_sgemm_copy_allowed(a, info);
    lt_sgemm_tile best = shipped[0].tile;
    double best_time = INFINITY;
    if (lt_sgemm_tune_find(c, a->m, a->n, a->k, copy, &best)) {
        return best;
    }
    for (size_t i = 0; i < sizeof shipped / sizeof *shipped; i++) {
        lt_sgemm_tile t = shipped[i].tile;
        const double bm = lt_sgemm_tile_bm(&t), bn = lt_sgemm_tile_bn(&t);
        double tiles, waves, time;
        t.copy = copy;
        t.stages = copy == LT_SGEMM_TMA || t.stages > 3 ? t.stages : 3;
        while (lt_sgemm_tile_refusal(&t, info) != NULL && t.blocks_per_sm > 1) {
            t.blocks_per_sm--;
        }
        if (lt_sgemm_tile_refusal(&t, info) != NULL) {
            t.stages = 3;
        }
        if (lt_sgemm_tile_refusal(&t, info) != NULL) {
            continue;
        }
        tiles = ceil(a->m / bm) * ceil(a->n / bn);
        waves = ceil(tiles /
                     info->n_sms); /* In tiles an SM: co-resident blocks share its multipliers. */
        time = waves * bm * bn / shipped[i].efficiency;
        if (time < best_time) {
            best_time = time;
            best = t;
        }
    }
    return best;
}

#define FLAGS_BYTES    16384  /* One int a block. */
#define PARTS_BYTES_SM 196608 /* Sums that an SM's registers can hold, at most. */

lt_err lt_sgemm_workspace_open(lt_cuda *c, void **out) {
    const size_t bytes = FLAGS_BYTES + (size_t)lt_cuda_get_info(c)->n_sms * PARTS_BYTES_SM;
    LT_TRY(lt_cuda_alloc(c, out, bytes, "sgemm workspace"));
    LT_TRY(lt_cuda_fill(c, NULL, *out, 0, FLAGS_BYTES)); /* Every call leaves them at 0. */
    return lt_cuda_sync(c, NULL);
}

/* How many of the last tiles to cut along k, so that all blocks end together; 0 when whole waves come out or cutting does not pay. */
static int split_tiles_choose(int tiles, int blocks, int n_stages, const lt_sgemm_args *a,
                              const lt_sgemm_tile *t, int n_sms) {
    const int rest = tiles % blocks, split = tiles < blocks ? tiles : rest + blocks;
    const size_t parts_bytes = (size_t)blocks *
                               (size_t)(lt_sgemm_tile_bm(t) * lt_sgemm_tile_bn(t)) * 4;
    if (a->workspace == NULL || rest == 0 || parts_bytes > (size_t)n_sms * PARTS_BYTES_SM ||
        blocks > FLAGS_BYTES / 4) {
        return 0;
    }
    const double waves = (double)tiles / blocks, idle = 1.0 - waves / ceil(waves);
    if ((int64_t)split * n_stages < (int64_t)blocks * MIN_SPLIT_STAGES || idle < SPLIT_COST) {
        return 0; /* Shares too short for the adding to pay; or the last wave is nearly whole. */
    }
    return split;
}

static lt_err map_make(lt_cuda *c, CUtensorMap *map, const float *p, int rows, int cols, int ld,
                       int box_rows, int box_cols, int swizzle) {
    const lt_tensor_map_spec spec = {.type = LT_CU_TMAP_FP32,
                                     .elem_bytes = 4,
                                     .rank = 2,
                                     .size = {(uint64_t)cols, (uint64_t)rows},
                                     .stride_bytes = {0, (uint64_t)ld * 4},
                                     .box = {(uint32_t)box_cols, (uint32_t)box_rows},
                                     .swizzle = swizzle,
                                     .l2_promotion = LT_CU_TMAP_L2_256B};
    return lt_cuda_tensor_map(c, map, (void *)(uintptr_t)p, &spec);
}

lt_err lt_sgemm_with(lt_cuda *c, CUstream s, const lt_sgemm_args *a, const lt_sgemm_tile *t) {
    const char *refusal = lt_sgemm_tile_refusal(t, lt_cuda_get_info(c));
    const int bm = lt_sgemm_tile_bm(t), bn = lt_sgemm_tile_bn(t);
    const int tiles = ((a->m + bm - 1) / bm) * ((a->n + bn - 1) / bn),
              n_sms = lt_cuda_get_info(c)->n_sms;
    int blocks = n_sms * t->blocks_per_sm, split;
    void *flags = a->workspace,
         *parts = (unsigned char *)a->workspace + (a->workspace != NULL ? FLAGS_BYTES : 0);
    const lt_cuda_kernel *k;
    CUtensorMap map_a, map_b;
    lt_sgemm_args v = *a;
    char defines[256];
    void *with_maps[] = {&map_a, &map_b, &v.c, &v.m, &v.n, &v.k, &v.ldc, &v.alpha, &v.beta};
    void *with_parts[] = {&map_a, &map_b, &parts, &flags, &split,   &v.c,
                          &v.m,   &v.n,   &v.k,   &v.ldc, &v.alpha, &v.beta};
    void *with_pointers[] = {&v.a, &v.b, &v.lda, &v.ldb,   &v.c,   &v.m,
                             &v.n, &v.k, &v.ldc, &v.alpha, &v.beta};

    LT_ASSERT(a->m > 0 && a->n > 0 && a->k > 0);
    if (refusal != NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "sgemm tile: %s", refusal);
    }
    if (t->copy < lt_sgemm_copy_allowed(a, lt_cuda_get_info(c))) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "sgemm: lda %d, ldb %d or the bases are not 16-byte aligned, as this tile's copies "
                "need",
                a->lda, a->ldb);
    }
    lt_sgemm_tile_text(defines, t);
    split = t->copy == LT_SGEMM_TMA
                ? split_tiles_choose(tiles, blocks, (a->k + BK - 1) / BK, a, t, n_sms)
                : 0;
    blocks = split > 0 ? blocks : tiles;
    LT_TRY(lt_cuda_kernel_get(c, &k, split > 0 ? "sgemm/sgemm_split.cu" : "sgemm/sgemm.cu",
                              split > 0 ? "sgemm_split" : "sgemm", defines));
    if (t->copy == LT_SGEMM_TMA) {
        LT_TRY(map_make(c, &map_a, a->a, a->m, a->k, a->lda, bm, BK, LT_CU_TMAP_SWIZZLE_128B));
        LT_TRY(map_make(c, &map_b, a->b, a->k, a->n, a->ldb, BK, bn, LT_CU_TMAP_SWIZZLE_NONE));
    }
    return lt_cuda_launch(c, s, k,
                          &(lt_cuda_dims){.grid = {(unsigned)blocks},
                                          .block = {(unsigned)lt_sgemm_tile_threads(t)},
                                          .dynamic_shared_bytes = lt_sgemm_tile_shared_bytes(t)},
                          split > 0                 ? with_parts
                          : t->copy == LT_SGEMM_TMA ? with_maps
                                                    : with_pointers);
}

static size_t copy_bytes(int rows, int cols) {
    return (size_t)rows * (size_t)lt_sgemm_pitch(cols) * 4;
}

size_t lt_sgemm_aligned_bytes(const lt_sgemm_args *a) {
    const size_t a_bytes = is_aligned(a->a, a->lda) ? 0 : copy_bytes(a->m, a->k),
                 b_bytes = is_aligned(a->b, a->ldb) ? 0 : copy_bytes(a->k, a->n);
    const double flops = 2.0 * a->m * a->n * (double)a->k,
                 copies_s = (double)(a_bytes + b_bytes) * 2 / COPY_BYTES_S + COPY_LAUNCHES_S;
    return flops * (1 / UNALIGNED_FLOPS - 1 / ALIGNED_FLOPS) > copies_s ? a_bytes + b_bytes : 0;
}

/* Have *p (rows, cols), rows *ld apart, copied to *room if its rows are not aligned. */
static lt_err align(lt_cuda *c, CUstream s, const float **p, int *ld, int rows, int cols,
                    unsigned char **room) {
    const lt_cuda_kernel *k;
    float *to = (float *)*room;
    int64_t from_ld = *ld, to_ld = lt_sgemm_pitch(cols);
    void *list[] = {&to, p, &cols, &from_ld, &to_ld};
    if (is_aligned(*p, *ld)) {
        return LT_OK;
    }
    LT_TRY(lt_cuda_kernel_get(c, &k, "ops/rearrange.cu", "copy_rows_fp32", ""));
    LT_TRY(lt_cuda_launch(
        c, s, k,
        &(lt_cuda_dims){.grid = {(unsigned)rows, (unsigned)((cols + 2047) / 2048)}, .block = {256}},
        list));
    *p = to;
    *ld = (int)to_ld;
    *room += copy_bytes(rows, cols);
    return LT_OK;
}

lt_err lt_sgemm(lt_cuda *c, CUstream s, const lt_sgemm_args *a) {
    lt_sgemm_args v = *a;
    lt_sgemm_tile t;
    if (a->aligned != NULL) {
        unsigned char *room = a->aligned;
        LT_TRY(align(c, s, &v.a, &v.lda, a->m, a->k, &room));
        LT_TRY(align(c, s, &v.b, &v.ldb, a->k, a->n, &room));
    }
    t = lt_sgemm_tile_choose(c, &v);
    return lt_sgemm_with(c, s, &v, &t);
}
