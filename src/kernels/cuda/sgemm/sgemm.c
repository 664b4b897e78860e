/* sgemm.c: launcher of sgemm.cu. See sgemm.h.
 *
 * The tile of a call is the tuner's winner for its shape class, from a text file in the kernel
 * cache with one line per class. Without such a line, the tile of the shipped table and the
 * number of blocks that share its K are those with the least modelled time. */
#include "kernels/cuda/ops/rearrange_args.h"
#include "kernels/cuda/sgemm/sgemm.h"
#include "kernels/cuda/sgemm/sgemm_args.h"

#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/sgemm/tune.h"
#include "kernels/cuda/specs.h"

/* Depth of a stage in K: a row of A's tile is 128 bytes, one swizzle atom. */
#define BK              LT_SGEMM_K
#define WARP            32
#define MAX_REGISTERS   255
#define SM_REGISTERS    65536
#define TMA_BOX_MAX     256 /* Most elements of a box in one dimension. */
#define MAX_PARTS       8
#define MAX_CLUSTER     4
#define FLAGS_BYTES     16384  /* One int per tile, or per share of one. */
#define PARTS_BYTES_SM  196608 /* The most sums that an SM's registers can hold. */
#define UNALIGNED_FLOPS 25e12  /* Measured on an H100: 4097^3 read unaligned, and 4096^3. */
#define ALIGNED_FLOPS   50e12
#define COPY_BYTES_S    2.5e12
#define COPY_LAUNCHES_S 6e-6

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
    return (size_t)LT_SGEMM_BYTES(lt_sgemm_tile_bm(t), lt_sgemm_tile_bn(t), t->stages);
}

static int stages_of(int k) {
    return (k + BK - 1) / BK;
}

static int64_t tile_count(const lt_sgemm_args *a, const lt_sgemm_tile *t) {
    return lt_cuda_div_up(a->m, lt_sgemm_tile_bm(t)) * lt_cuda_div_up(a->n, lt_sgemm_tile_bn(t));
}

const char *lt_sgemm_tile_refusal(const lt_sgemm_tile *t, const lt_cuda_info *info) {
    const int threads = lt_sgemm_tile_threads(t);
    /* Sums, fragments, addresses. */
    const int registers = t->tm * t->tn + 4 * t->tm + 2 * t->tn + 14;
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
    if (t->parts < 1 || t->parts > MAX_PARTS || t->cluster < 1 || t->cluster > MAX_CLUSTER ||
        t->tm * t->tn / 4 % t->cluster != 0) {
        return "K is shared by 1 to 8 clusters of 1, 2 or 4 blocks that add equal shares";
    }
    if (t->cluster > 1 &&
        (t->copy != LT_SGEMM_TMA || (size_t)lt_sgemm_tile_bm(t) * (size_t)lt_sgemm_tile_bn(t) * 4 >
                                        lt_sgemm_tile_shared_bytes(t))) {
        return "a cluster needs the copy engine, and stages as large as the tile's sums";
    }
    if (t->copy == LT_SGEMM_TMA && info->cc < 90) {
        return "no copy engine before compute capability 9.0";
    }
    return NULL;
}

void lt_sgemm_tile_text(char out[256], const lt_sgemm_tile *t) {
    char cluster[24] = "", parts[24] = "";
    if (t->cluster > 1) {
        snprintf(cluster, sizeof cluster, " CLUSTER=%d", t->cluster);
    }
    if (t->parts > 1) {
        snprintf(parts, sizeof parts, " PARTS=%d", t->parts);
    }
    snprintf(out, 256,
             "TM=%d TN=%d LANES_M=%d WARPS_M=%d WARPS_N=%d STAGES=%d BLOCKS_PER_SM=%d GROUP_M=%d "
             "UNROLL=%d COPY=%d%s%s%s",
             t->tm, t->tn, t->lanes_m, t->warps_m, t->warps_n, t->stages, t->blocks_per_sm,
             t->group_m, t->unroll, (int)t->copy, cluster, parts,
             t->keep_order ? " --ptxas-options=-O1" : "");
}

/* Are the rows whole multiples of 16 bytes, as the copy engine and cp.async of 16 bytes need
 * them? */
static bool is_aligned(const float *p, int ld) {
    return ((uintptr_t)p & 15) == 0 && ld % 4 == 0;
}

lt_sgemm_copy lt_sgemm_copy_allowed(const lt_sgemm_args *a, const lt_cuda_info *info) {
    const bool aligned = is_aligned(a->a, a->lda) && is_aligned(a->b, a->ldb);
    return !aligned ? LT_SGEMM_ASYNC_4 : info->cc >= 90 ? LT_SGEMM_TMA : LT_SGEMM_ASYNC_16;
}

bool lt_sgemm_tile_shares(const lt_sgemm_tile *t, const lt_sgemm_args *a,
                          const lt_cuda_info *info) {
    const int64_t tiles = tile_count(a, t);
    return stages_of(a->k) >= t->cluster * t->parts &&
           (t->parts == 1 || (a->workspace != NULL && tiles * t->cluster <= FLAGS_BYTES / 4 &&
                              tiles * t->parts * lt_sgemm_tile_bm(t) * lt_sgemm_tile_bn(t) * 4 <=
                                  (int64_t)info->n_sms * PARTS_BYTES_SM));
}

/* The shipped tiles and what was measured for them on an H200 (24 shapes, 9 ways to share K;
 * docs/speed/sgemm.md): the share of the multiply-add peak that one block alone on an SM reaches,
 * and that blocks_per_sm blocks reach together; what a block costs beside its products; what it
 * costs to add PARTS parts through the L2. Unrolled by 4: NVRTC 12.4 to 13.3 do not unroll a loop
 * of 8 quads, and a loop that is not unrolled loses the order that spares register reads (34
 * instead of 50.6 TFLOP/s with 13.0). */
static const struct {
    lt_sgemm_tile tile;
    double alone, together, block_us, add_us;
} shipped[] = {
    {{8, 16, 8, 2, 4, 4, 1, 8, 4, LT_SGEMM_TMA, true, 1, 1},
     0.785,
     0.785,
     2.2,
     15.0},                                                                         /* 128 x 256 */
    {{8, 8, 8, 2, 4, 3, 2, 8, 4, LT_SGEMM_TMA, true, 1, 1}, 0.70, 0.735, 3.2, 6.8}, /* 128 x 128 */
    {{8, 8, 8, 2, 2, 3, 3, 8, 4, LT_SGEMM_TMA, true, 1, 1}, 0.645, 0.76, 6.0, 2.4}, /* 128 x 64 */
    {{8, 8, 8, 1, 4, 3, 3, 8, 4, LT_SGEMM_TMA, true, 1, 1}, 0.645, 0.76, 6.0, 2.4}, /* 64 x 128 */
    {{8, 8, 8, 1, 2, 3, 4, 8, 4, LT_SGEMM_TMA, true, 1, 1}, 0.33, 0.70, 3.7, 3.7},  /* 64 x 64 */
    {{4, 4, 8, 1, 2, 3, 8, 8, 4, LT_SGEMM_TMA, true, 1, 1}, 0.175, 0.60, 2.2, 1.3}, /* 32 x 32 */
};

/* Efficiency with `blocks` blocks on an SM at once, at most blocks_per_sm: it rises from `alone`
 * to `together` as x / (a + b x). */
static double efficiency_of(size_t row, const lt_sgemm_tile *t, double blocks) {
    const double full = t->blocks_per_sm;
    const double one = 1 / shipped[row].alone, all = full / shipped[row].together;
    const double b = full > 1 ? (all - one) / (full - 1) : 0;
    return blocks / (one + b * (blocks - 1));
}

/* Modelled time of a product with row's tile as adapted in *t: the SM with the most blocks
 * computes them in rounds of as many as fit. */
static double time_us(size_t row, const lt_sgemm_tile *t, const lt_sgemm_args *a,
                      const lt_cuda_info *info) {
    /* FLOP that an SM computes in a microsecond. */
    const double per_us = 2.0 * LT_SGEMM_FMA_PER_SM * info->clock_mhz;
    const double sharers = t->cluster * t->parts,
                 blocks = ceil((double)tile_count(a, t) * sharers / info->n_sms),
                 fit = t->blocks_per_sm, rest = fmod(blocks, fit), rounds = floor(blocks / fit);
    const double work_us = 2.0 * lt_sgemm_tile_bm(t) * lt_sgemm_tile_bn(t) *
                           ceil(stages_of(a->k) / sharers) * BK / per_us;
    double us = rounds * (fit * work_us / efficiency_of(row, t, fit) + shipped[row].block_us);
    if (rest > 0) {
        us += rest * work_us / efficiency_of(row, t, rest) + shipped[row].block_us;
    }
    return us + (t->parts > 1 ? shipped[row].add_us / t->cluster : 0) + (t->cluster > 1 ? 1 : 0);
}

/* Clusters that do not fill the GPU are placed together on some of its SMs, while others stay
 * idle. */
static bool cluster_fills(const lt_sgemm_tile *t, const lt_sgemm_args *a,
                          const lt_cuda_info *info) {
    return t->cluster == 1 || 10 * tile_count(a, t) * t->cluster * t->parts >=
                                  7 * (int64_t)info->n_sms * t->blocks_per_sm;
}

/* Adapt the row's tile to this device and these operands. False: they cannot use it. */
static bool tile_adapt(lt_sgemm_tile *t, lt_sgemm_copy copy, const lt_cuda_info *info) {
    t->copy = copy;
    t->stages = copy == LT_SGEMM_TMA || t->stages > 3 ? t->stages : 3;
    while (lt_sgemm_tile_refusal(t, info) != NULL && t->blocks_per_sm > 1) {
        t->blocks_per_sm--;
    }
    if (lt_sgemm_tile_refusal(t, info) != NULL) {
        t->stages = 3;
    }
    return lt_sgemm_tile_refusal(t, info) == NULL;
}

lt_sgemm_tile lt_sgemm_tile_choose(lt_cuda *c, const lt_sgemm_args *a) {
    const lt_cuda_info *info = lt_cuda_get_info(c);
    const lt_sgemm_copy copy = lt_sgemm_copy_allowed(a, info);
    lt_sgemm_tile best = shipped[0].tile;
    double best_us = INFINITY;
    if (lt_sgemm_tune_find(c, a, copy, &best)) {
        return best;
    }
    for (size_t i = 0; i < sizeof shipped / sizeof *shipped; i++) {
        lt_sgemm_tile t = shipped[i].tile;
        if (!tile_adapt(&t, copy, info)) {
            continue;
        }
        for (int way = 0; way < 2 * MAX_PARTS; way++) {
            t.cluster = way < MAX_PARTS ? 1 : 2;
            t.parts = way % MAX_PARTS + 1;
            if (lt_sgemm_tile_refusal(&t, info) == NULL && lt_sgemm_tile_shares(&t, a, info) &&
                cluster_fills(&t, a, info) && time_us(i, &t, a, info) < best_us) {
                best_us = time_us(i, &t, a, info);
                best = t;
            }
        }
    }
    return best;
}

lt_err lt_sgemm_workspace_open(lt_cuda *c, void **out) {
    const size_t bytes = FLAGS_BYTES + (size_t)lt_cuda_get_info(c)->n_sms * PARTS_BYTES_SM;
    LT_TRY(lt_cuda_alloc(c, out, bytes, "sgemm workspace"));
    LT_TRY(lt_cuda_fill(c, NULL, *out, 0, FLAGS_BYTES)); /* Every call leaves the flags at 0. */
    return lt_cuda_sync(c, NULL);
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
    const lt_cuda_info *info = lt_cuda_get_info(c);
    const char *refusal = lt_sgemm_tile_refusal(t, info);
    const bool by_engine = t->copy == LT_SGEMM_TMA;
    const int bm = lt_sgemm_tile_bm(t), bn = lt_sgemm_tile_bn(t), n_stages = stages_of(a->k);
    const int tiles = (int)tile_count(a, t);
    void *flags = a->workspace,
         *sums = (unsigned char *)a->workspace + (a->workspace != NULL ? FLAGS_BYTES : 0);
    const lt_cuda_kernel *k;
    CUtensorMap map_a, map_b;
    char defines[256];
    lt_cuda_sgemm_args call = {.c = a->c,
                               .m = a->m,
                               .n = a->n,
                               .k = a->k,
                               .ldc = a->ldc,
                               .alpha = a->alpha,
                               .beta = a->beta,
                               .a = a->a,
                               .b = a->b,
                               .lda = a->lda,
                               .ldb = a->ldb,
                               .sums = sums,
                               .arrived = flags};
    void *with_maps[] = {&map_a, &map_b, &call};

    LT_ASSERT(a->m > 0 && a->n > 0 && a->k > 0);
    if (refusal != NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "sgemm tile: %s", refusal);
    }
    if (t->copy < lt_sgemm_copy_allowed(a, info)) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "sgemm: lda %d, ldb %d or the bases are not 16-byte aligned, as this tile's copies "
                "need",
                a->lda, a->ldb);
    }
    if (!lt_sgemm_tile_shares(t, a, info)) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "sgemm: %d x %d parts of %d tiles: k %d has %d stages of %d, or the workspace has "
                "no room for the sums",
                t->cluster, t->parts, tiles, a->k, n_stages, BK);
    }
    lt_sgemm_tile_text(defines, t);
    LT_TRY(lt_cuda_kernel_get(c, &k, "sgemm/sgemm.cu", "sgemm", defines));
    if (by_engine) {
        LT_TRY(map_make(c, &map_a, a->a, a->m, a->k, a->lda, bm, BK, LT_CU_TMAP_SWIZZLE_128B));
        LT_TRY(map_make(c, &map_b, a->b, a->k, a->n, a->ldb, BK, bn, LT_CU_TMAP_SWIZZLE_NONE));
    }
    return lt_cuda_launch(c, s, k,
                          &(lt_cuda_dims){.grid = {(unsigned)(tiles * t->cluster * t->parts)},
                                          .block = {(unsigned)lt_sgemm_tile_threads(t)},
                                          .cluster = {t->cluster > 1 ? (unsigned)t->cluster : 0},
                                          .dynamic_shared_bytes = lt_sgemm_tile_shared_bytes(t)},
                          by_engine ? with_maps : with_maps + 2);
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

/* Make sure that *p (rows, cols), whose rows are *ld apart, has aligned rows: if not, copy it to
 * *room. */
static lt_err align(lt_cuda *c, CUstream s, const float **p, int *ld, int rows, int cols,
                    unsigned char **room) {
    const lt_cuda_kernel *k;
    float *to = (float *)*room;
    const int64_t to_ld = lt_sgemm_pitch(cols);
    lt_cuda_copy_rows_fp32_args call = {
        .dst = to, .src = *p, .cols = cols, .ld = *ld, .pitch = to_ld};
    void *list[] = {&call};
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

/* Every shipped tile with every way to copy; with K shared among the blocks of a cluster, and in
 * parts. */
void lt_specs_sgemm(lt_specs *l) {
    static const struct { int cluster, parts; } shares[] = {{1, 1}, {2, 4}};
    for (size_t i = 0; i < sizeof shipped / sizeof *shipped; i++) {
        for (int copy = LT_SGEMM_TMA; copy <= LT_SGEMM_ASYNC_4; copy++) {
            lt_sgemm_tile t = shipped[i].tile;
            char text[256];
            t.copy = (lt_sgemm_copy)copy;
            for (size_t k = 0; k < sizeof shares / sizeof *shares; k++) {
                t.cluster = shares[k].cluster, t.parts = shares[k].parts;
                lt_sgemm_tile_text(text, &t);
                if (copy == LT_SGEMM_TMA || k == 0) {
                    lt_spec(l, copy == LT_SGEMM_TMA ? LT_SM90 : LT_SM_ALL, "sgemm/sgemm.cu", "%s",
                            text);
                }
            }
        }
    }
}
