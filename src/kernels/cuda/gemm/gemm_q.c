/* gemm_q.c: launches gemm_q_sm90.cu, and decides how it divides a product. Weights are read before
 * the preceding kernels are done, so no running kernel may write them (early.cuh). */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/gemm/few_args.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/ops/matmul_q.h"
#include "kernels/cuda/specs.h"

/* The -D constants of the kernels, for launches and for lt_specs_gemm_q. */
#define GEMM_Q_WORDS                                                                               \
    "BN=%d GROUPS=%d SPLITS=%d EXACT=%d BATCH=%d BITS=%d GROUP=%d MINS=%d "                        \
    "OFFSET=%d OUT=%s DTYPE=%s"
#define GATED_WORDS   " GATED=1 KIND=%d"
#define GROUPED_WORDS " GROUPED=1 NARROW=%d"

#define TILE_K      128 /* tile_q.cuh */
#define TILE_ROWS   16
#define SLABS       4 /* Slabs of 16 columns per warpgroup. */
#define MOST_STAGES LT_FEW_MOST_STAGES
#define LEAST_STEPS 2 /* Least tiles of K per part. */
/* Bytes of x's rows that an SM holds at once: the L2 is closer than the memory. */
#define X_BYTES (64 * 1024)

typedef struct {
    int rows, narrow, groups, splits, batch, w_stages, x_stages, blocks;
    bool exact;
    size_t shared_bytes;
} tile;

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Shared memory without the rings: sums (few_sums.cuh), barriers, alignment. */
static int64_t fixed_bytes(const tile *t) {
    return LT_GEMM_Q_FIXED_BYTES(t->groups, t->splits, t->rows / 8);
}
/* As many stages as fit, or as a block has work for; false: not even two of each fit. chunks: of
 * t->rows rows. */
static bool fit(tile *t, int64_t chunks, int64_t n, int64_t k, const lt_cuda_tile_format *f,
                const lt_cuda_info *info) {
    const int64_t x_stage = LT_GEMM_Q_X_BYTES(t->rows),
                  w_stage = LT_GEMM_Q_W_BYTES(f->tile_bytes, t->groups),
                  tiles = lt_cuda_div_up(n, 64 * t->groups) * chunks,
                  blocks = t->splits == 1 ? least(tiles, info->n_sms) : tiles,
                  work = lt_cuda_div_up(lt_cuda_div_up(k, TILE_K), t->splits) *
                         lt_cuda_div_up(tiles, blocks);
    int64_t x = X_BYTES / x_stage;
    x = least(x < 4 ? 4 : x, 2 * work);
    x = least(x < 2 ? 2 : x, MOST_STAGES);
    /* The system reserves 1024 bytes. */
    const int64_t room = LT_HOPPER_SHARED_BYTES - 1024 - fixed_bytes(t) - x * x_stage,
                  w = least(least(room / w_stage, work), MOST_STAGES);
    t->x_stages = (int)x, t->w_stages = (int)w, t->blocks = (int)blocks * t->splits;
    t->shared_bytes = (size_t)(fixed_bytes(t) + x * x_stage + w * w_stage);
    return room > 0 && w >= 1 && (w >= 2 || work == 1);
}

/* Blocks of a wave in clusters of `splits`: an H100's GPCs have different numbers of SMs. */
static int64_t wave_of(int splits) {
    static const int most[] = {0, 132, 128, 108, 112, 80, 96};
    return most[splits];
}
/* Most rows with which weights are used exactly, in any order (docs/speed/decoding.md): with minima
 * this takes twice the products. 6 and 8 bits were not measured with more. */
static int64_t exact_rows(const lt_cuda_tile_format *f) {
    return f->mins ? 16 : f->bits <= 5 ? 32 : LT_GEMM_Q_PIECE;
}
/* What won on an H100 at 8 to 256 rows (docs/speed/decoding.md): as many blocks as a wave takes,
 * wide tiles where there is a choice; where not even one part of K fits in a wave, a walk over wide
 * tiles. */
static bool choose(tile *t, const lt_matmul_args *a, const lt_cuda_tile_format *f,
                   const lt_cuda_info *info) {
    const int64_t n = a->y.shape[1], steps = lt_cuda_div_up(a->b.shape[1], TILE_K),
                  m = a->y.shape[0]; /* In a fixed order, splits must not depend on m. */
    int64_t busy = 0;
    *t = (tile){.groups = 2, .splits = 1, .exact = a->fixed_order || m <= exact_rows(f)};
    if (m <= LT_GEMM_Q_PIECE) {
        t->rows = (int)lt_cuda_div_up(m, 8) * 8;
    } else {
        const int64_t tall = lt_cuda_div_up(m, 128);
        const bool wide = tall > 1 && lt_cuda_div_up(n, 128) * tall > info->n_sms;
        t->rows = wide ? 256 : (int)lt_cuda_div_up(lt_cuda_div_up(m, tall), 16) * 16;
    }
    for (int groups = 2; groups >= 1 && t->rows <= 128; groups--) {
        const int64_t tiles = lt_cuda_div_up(n, 64 * groups) * lt_cuda_div_up(m, t->rows);
        for (int splits = 1; splits <= 6 && (splits == 1 || splits * LEAST_STEPS <= steps);
             splits++) {
            if (tiles * splits <= wave_of(splits) && tiles * splits > busy) {
                busy = tiles * splits;
                t->groups = groups, t->splits = splits;
            }
        }
    }
    t->batch = t->exact && t->rows <= 32 ? 2 : 1;
    return fit(t, lt_cuda_div_up(m, t->rows), n, a->b.shape[1], f, info);
}

const char *lt_gemm_q_refusal(const lt_matmul_args *a, const lt_cuda_info *info) {
    lt_cuda_tile_format f;
    tile t;
    return info->cc != 90                                  ? "needs compute capability 9.0"
           : !lt_cuda_tile_format_of(&f, a->b.dtype)       ? "not packed blocks"
           : a->y.shape[0] > 0 && !choose(&t, a, &f, info) ? "rings do not fit"
                                                           : NULL;
}

/* Packed tiles, those of a slab adjacent: (words of a piece, pieces of a slab, slabs); `box` slabs
 * are copied at a time. */
static lt_err weights_map(lt_cuda *c, CUtensorMap *map, const void *packed, int64_t slabs,
                          int64_t k, const lt_cuda_tile_format *f, int box) {
    const int cuts = f->tile_bytes > 2048 ? 4 : 2; /* CUTS of the kernel. */
    const int64_t tiles = lt_cuda_div_up(k, TILE_K), piece = f->tile_bytes / cuts;
    return lt_cuda_tensor_map(
        c, map, (void *)(uintptr_t)packed,
        &(lt_tensor_map_spec){
            .type = LT_CU_TMAP_UINT32,
            .elem_bytes = 4,
            .rank = 3,
            .size = {(uint64_t)(piece / 4), (uint64_t)(tiles * cuts), (uint64_t)slabs},
            .stride_bytes = {0, (uint64_t)piece, (uint64_t)(tiles * f->tile_bytes)},
            .box = {(uint32_t)(piece / 4), (uint32_t)cuts, (uint32_t)box},
            .swizzle = LT_CU_TMAP_SWIZZLE_NONE,
            .l2_promotion = LT_CU_TMAP_L2_256B});
}

static lt_cuda_dims dims_of(const tile *t) {
    const unsigned cluster = (unsigned)t->splits;
    return (lt_cuda_dims){.grid = {(unsigned)t->blocks},
                          /* THREADS of the kernel. */
                          .block = {(unsigned)(128 * t->groups + (t->rows > 128 ? 128 : 64))},
                          .cluster = {cluster > 1 ? cluster : 0, cluster > 1, cluster > 1},
                          .dynamic_shared_bytes = t->shared_bytes,
                          .overlap_previous = true};
}

lt_err lt_gemm_q(lt_cuda *c, CUstream s, const lt_matmul_args *a, const lt_gemm_gated *gated) {
    const lt_cuda_info *info = lt_cuda_get_info(c);
    lt_cuda_tile_format f;
    const bool packed = lt_cuda_tile_format_of(&f, a->b.dtype);
    tile t;
    const lt_cuda_kernel *kernel;
    CUtensorMap map_w, map_x;
    char text[256];
    lt_gemm_q_plan plan;
    lt_gemm_few_args w = {.bias = a->bias.data,
                          .y = a->y.data,
                          .ldy = a->y.stride[0],
                          .m = (int)a->y.shape[0],
                          .n = (int)a->y.shape[1],
                          .k = (int)a->b.shape[1],
                          .bias_type = a->bias.data == NULL       ? 0
                                       : a->bias.dtype == LT_F32  ? 1
                                       : a->bias.dtype == LT_BF16 ? 2
                                                                  : 3,
                          .accumulate = a->accumulate,
                          .act = gated != NULL ? gated->y : NULL,
                          .ld_act = gated != NULL ? gated->ld : 0};
    void *args[] = {&map_w, &map_x, &w, &plan};
    LT_ASSERT(packed);
    if (!choose(&t, a, &f, info)) {
        LT_FAIL(LT_ERR_LIMIT, "packed product, %d x %d x %d: rings do not fit", w.m, w.n, w.k);
    }
    plan = (lt_gemm_q_plan){.w_stages = t.w_stages, .x_stages = t.x_stages};
    const int at = snprintf(text, sizeof text, GEMM_Q_WORDS, t.rows, t.groups, t.splits, t.exact,
                            t.batch, f.bits, f.group, f.mins, f.offset,
                            lt_cuda_dtype_word(a->y.dtype), lt_cuda_dtype_word(a->a.dtype));
    if (gated != NULL) {
        snprintf(text + at, sizeof text - (size_t)at, GATED_WORDS, (int)gated->kind);
    }
    LT_TRY(lt_cuda_kernel_get(c, &kernel, "gemm/gemm_q_sm90.cu", "gemm_q_sm90", text));
    if (gated != NULL && gated->y == NULL) {
        return LT_OK; /* Only fetched. */
    }
    LT_TRY(weights_map(c, &map_w, a->b_packed, lt_cuda_div_up(w.n, TILE_ROWS), w.k, &f,
                       gated != NULL ? 2 : SLABS * t.groups));
    LT_TRY(lt_gemm_operand_map(c, &map_x, a->a.data, a->a.dtype, w.k, w.m, a->a.stride[0], 64,
                               t.rows));
    const lt_cuda_dims dims = dims_of(&t);
    return lt_cuda_launch(c, s, kernel, &dims, args);
}

/* ---- Experts ---- */

/* Tiles for experts with so many rows on average, and the narrow products of chunks with few rows
 * (docs/speed/decoding.md 82). */
static const struct {
    int64_t least_rows;
    int rows, narrow;
} grouped_tiles[] = {{384, 256, 128}, {24, 128, 32}, {0, 32, 16}};

static bool choose_grouped(tile *t, const lt_matmul_grouped_args *a, const lt_cuda_tile_format *f,
                           const lt_cuda_info *info) {
    const int64_t rows = a->a.shape[0], experts = a->b.shape[0];
    int i = 0;
    while (rows < grouped_tiles[i].least_rows * experts) {
        i++;
    }
    *t = (tile){.rows = grouped_tiles[i].rows,
                .narrow = grouped_tiles[i].narrow,
                .groups = 2,
                .splits = 1,
                .batch = 1};
    return fit(t, rows / t->rows + least(rows, experts), a->b.shape[1], a->b.shape[2], f, info);
}

const char *lt_gemm_q_grouped_refusal(const lt_matmul_grouped_args *a, const lt_cuda_info *info) {
    lt_cuda_tile_format f;
    tile t;
    return info->cc != 90                            ? "needs compute capability 9.0"
           : !lt_cuda_tile_format_of(&f, a->b.dtype) ? "not packed blocks"
           : a->packed_step != (size_t)(a->b.shape[1] / TILE_ROWS *
                                        lt_cuda_div_up(a->b.shape[2], TILE_K) * f.tile_bytes)
               ? "experts not adjacent"
           : !choose_grouped(&t, a, &f, info) ? "rings do not fit"
                                              : NULL;
}

lt_err lt_gemm_q_grouped(lt_cuda *c, CUstream s, const lt_matmul_grouped_args *a) {
    lt_cuda_tile_format f;
    const bool packed = lt_cuda_tile_format_of(&f, a->b.dtype);
    const int experts = (int)a->b.shape[0];
    tile t;
    const lt_cuda_kernel *kernel;
    CUtensorMap map_w, map_x;
    char text[256];
    lt_gemm_few_args w = {.y = a->y.data,
                          .ldy = a->y.stride[0],
                          .m = (int)a->y.shape[0],
                          .n = (int)a->y.shape[1],
                          .k = (int)a->b.shape[2],
                          .accumulate = a->accumulate};
    lt_gemm_q_plan plan = {
        .experts = experts, .slabs = w.n / TILE_ROWS, .start = a->expert_start.data};
    void *args[] = {&map_w, &map_x, &w, &plan};
    if (w.m == 0 || w.n == 0 || experts == 0) {
        return LT_OK;
    }
    LT_ASSERT(packed);
    if (!choose_grouped(&t, a, &f, lt_cuda_get_info(c))) {
        LT_FAIL(LT_ERR_LIMIT, "packed experts, %d x %d x %d: rings do not fit", w.m, w.n, w.k);
    }
    plan.w_stages = t.w_stages, plan.x_stages = t.x_stages;
    snprintf(text, sizeof text, GEMM_Q_WORDS GROUPED_WORDS, t.rows, t.groups, t.splits, t.exact,
             t.batch, f.bits, f.group, f.mins, f.offset, lt_cuda_dtype_word(a->y.dtype),
             lt_cuda_dtype_word(a->a.dtype), t.narrow);
    LT_TRY(lt_cuda_kernel_get(c, &kernel, "gemm/gemm_q_sm90.cu", "gemm_q_sm90", text));
    LT_TRY(weights_map(c, &map_w, a->b_packed, (int64_t)experts * plan.slabs, w.k, &f,
                       SLABS * t.groups));
    LT_TRY(lt_gemm_operand_map(c, &map_x, a->a.data, a->a.dtype, w.k, w.m, a->a.stride[0], 64,
                               t.rows));
    const lt_cuda_dims dims = dims_of(&t);
    return lt_cuda_launch(c, s, kernel, &dims, args);
}

void lt_specs_gemm_q(lt_specs *l) {
    lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS, 8, 2, 4, 1, 2, 5, 32, 1, 0, "fp16",
            "fp16");
    lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS, 32, 2, 1, 1, 2, 4, 32, 0, 8, "bf16",
            "bf16");
    lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS GATED_WORDS, 32, 2, 1, 1, 2, 4, 32, 0,
            8, "bf16", "bf16", 2);
    lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS, 32, 2, 6, 1, 2, 8, 32, 0, 128, "bf16",
            "bf16");
    lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS GATED_WORDS, 32, 2, 1, 1, 2, 5, 32, 1,
            0, "bf16", "bf16", 0);
    lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS, 32, 2, 4, 1, 2, 6, 16, 0, 32, "bf16",
            "bf16");
    lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS, 40, 1, 2, 1, 1, 4, 32, 1, 0, "bf16",
            "bf16");
    lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS, 64, 2, 6, 1, 1, 8, 32, 0, 128, "bf16",
            "bf16");
    lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS, 64, 2, 1, 1, 1, 4, 32, 1, 0, "fp32",
            "bf16");
    lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS, 64, 2, 1, 1, 1, 6, 16, 0, 32, "bf16",
            "bf16");
    lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS, 24, 2, 6, 0, 1, 4, 32, 1, 0, "bf16",
            "bf16");
    lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS GATED_WORDS, 64, 2, 1, 0, 1, 5, 32, 1,
            0, "bf16", "bf16", 2);
    lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS, 64, 2, 4, 0, 1, 6, 16, 0, 32, "bf16",
            "bf16");
    lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS, 128, 2, 1, 0, 1, 8, 32, 0, 128, "fp16",
            "fp16");
    lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS, 128, 2, 2, 0, 1, 8, 32, 0, 128, "bf16",
            "bf16");
    lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS, 128, 1, 2, 0, 1, 4, 32, 1, 0, "bf16",
            "bf16");
    lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS, 256, 2, 1, 0, 1, 4, 32, 0, 8, "bf16",
            "bf16");
    lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS, 256, 2, 1, 0, 1, 8, 32, 0, 128, "fp32",
            "bf16");
    lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS, 256, 2, 1, 0, 1, 5, 32, 1, 0, "bf16",
            "bf16");
    lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS, 256, 2, 1, 0, 1, 6, 16, 0, 32, "fp16",
            "fp16");
    for (size_t i = 0; i < sizeof grouped_tiles / sizeof *grouped_tiles; i++) {
        const int rows = grouped_tiles[i].rows, narrow = grouped_tiles[i].narrow;
        lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS GROUPED_WORDS, rows, 2, 1, 0, 1, 4,
                32, 1, 0, "bf16", "bf16", narrow);
        lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS GROUPED_WORDS, rows, 2, 1, 0, 1, 8,
                32, 0, 128, "bf16", "bf16", narrow);
        lt_spec(l, LT_SM90, "gemm/gemm_q_sm90.cu", GEMM_Q_WORDS GROUPED_WORDS, rows, 2, 1, 0, 1, 6,
                16, 0, 32, "bf16", "bf16", narrow);
    }
}
