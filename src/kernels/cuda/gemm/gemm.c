/* gemm.c: see gemm.h. The table has the tiles that were the fastest for some shape
 * (docs/speed/gemm.md). The estimate below picks one of them without a measurement, so the same
 * shape always runs the same kernel and gives the same bits. */
#include "kernels/cuda/gemm/gemm.h"

#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/gemm/winners.h"
#include "kernels/cuda/specs.h"

/* The -D constants of the kernels, for launches and for lt_specs_gemm. */
#define TILE_WORDS                                                                                 \
    "BN=%d WG_M=%d CONSUMERS=%d PINGPONG=%d CLUSTER=%d PAIR=%d STAGES=%d "                         \
    "C_STAGES=%d A_MAJOR_M=%d B_MAJOR_N=%d REGS_PRODUCER=%d REGS_CONSUMER=%d"
#define OUT_WORDS    " OUT_F32=%d OUT_ADD=%d %s"
#define BESIDE_WORDS " BESIDE=%d"

#define SPLITS_MAX    8
#define SCRATCH_BYTES ((size_t)128 << 20)
#define STEP          64 /* Elements of K per stage of the ring (BK) */

/* rate: the measured share of the tensor cores' peak in the main loop. */
typedef struct {
    lt_gemm_tile tile;
    double rate;
} tile_row;
static const tile_row tiles[] = {
    {{256, 1, 2, 1, 4, 1, 8, false, false, false}, 1.000},
    {{256, 1, 2, 2, 4, 1, 8, false, false, false}, 0.997},
    {{192, 1, 2, 1, 4, 1, 8, false, false, false}, 0.965},
    {{128, 1, 2, 1, 6, 1, 8, false, false, false}, 0.930},
    {{128, 2, 2, 1, 6, 1, 8, true, false, false}, 0.950},
    {{128, 1, 1, 1, 6, 1, 8, false, false, false}, 0.680},
    {{64, 1, 1, 1, 8, 1, 8, false, false, false}, 0.500},
    {{64, 1, 2, 1, 8, 1, 8, false, false, false}, 0.600},
    {{192, 1, 3, 1, 4, 1, 8, false, false, false}, 0.930},
    {{192, 1, 3, 1, 4, 1, 8, false, false, true}, 0.910},
    {{256, 1, 2, 1, 4, 1, 8, false, false, true}, 0.935},
    {{64, 1, 2, 1, 8, 1, 8, false, false, true}, 0.600},
    {{64, 1, 1, 1, 8, 1, 8, false, false, true}, 0.500},
};
#define N_TILES (sizeof tiles / sizeof tiles[0])

static int tile_bm(const lt_gemm_tile *t) {
    return 64 * t->wg_m * (t->pingpong ? 1 : t->consumers);
}
static int tile_parts(const lt_gemm_tile *t) { /* of K */
    return t->splits * (t->pair ? 2 : 1);
}
static int tile_c_stages(const lt_gemm_tile *t) {
    return t->consumers > 2 ? 1 : 2;
}
static int tile_b_rows(const lt_gemm_tile *t) { /* N contiguous: whole columns of 64. */
    return (t->bn + 63) / 64 * 64;
}
size_t lt_gemm_tile_shared_bytes(const lt_gemm_tile *t) {
    return (size_t)LT_GEMM_SM90_BYTES(tile_bm(t), tile_b_rows(t), t->stages, t->consumers,
                                      tile_c_stages(t));
}
static int64_t tile_m_padded(const lt_gemm_tile *t, int64_t m) {
    return lt_cuda_div_up(m, tile_bm(t) * t->cluster) * tile_bm(t) * t->cluster;
}
size_t lt_gemm_tile_scratch_bytes(const lt_gemm_tile *t, const lt_gemm_args *a) {
    return t->splits > 1 ? (size_t)(t->splits * tile_m_padded(t, a->m) * a->n) * 4 : 0;
}

size_t lt_gemm_scratch_bytes(void) {
    return SCRATCH_BYTES;
}

const char *lt_gemm_from_matmul(lt_gemm_args *out, const lt_matmul_args *a) {
    const lt_tensor *all[] = {&a->y, &a->a, &a->b};
    for (int i = 0; i < 3; i++) {
        if (all[i]->n_dims != 2 || all[i]->stride[1] != 1) {
            return "not 2-D with contiguous columns";
        }
    }
    if (a->a.dtype != a->b.dtype || a->b_packed != NULL) {
        return "operands of different types, or packed";
    }
    *out = (lt_gemm_args){.m = a->y.shape[0],
                          .n = a->y.shape[1],
                          .k = a->a.shape[a->trans_a ? 0 : 1],
                          .lda = a->a.stride[0],
                          .ldb = a->b.stride[0],
                          .ldc = a->y.stride[0],
                          .trans_a = a->trans_a,
                          .trans_b = a->trans_b,
                          .accumulate = a->accumulate,
                          .in = a->a.dtype,
                          .out = a->y.dtype,
                          .bias_dtype = a->bias.dtype,
                          .alpha = 1.0f,
                          .a = a->a.data,
                          .b = a->b.data,
                          .bias = a->bias.data,
                          .c = a->y.data,
                          .act = -1,
                          .act_bwd = -1};
    return NULL;
}

const char *lt_gemm_refusal(const lt_gemm_args *a, const lt_cuda_info *info) {
    const int64_t out_bytes = (int64_t)lt_dtype_bytes(a->out), limit = INT32_MAX / 2;
    const uintptr_t addresses = (uintptr_t)a->a | (uintptr_t)a->b | (uintptr_t)a->c;
    if (info->cc != 90) {
        return "needs compute capability 9.0";
    }
    if (a->in != LT_BF16 && a->in != LT_F16) {
        return "inputs are not 16-bit";
    }
    if (a->out != a->in && a->out != LT_F32) {
        return "output is neither the inputs' type nor F32";
    }
    if (a->m < 1 || a->n < 1 || a->k < 1 || a->m > limit || a->n > limit || a->k > limit) {
        return "sizes out of range";
    }
    if (a->lda % 8 != 0 || a->ldb % 8 != 0 || a->ldc * out_bytes % 16 != 0 || addresses % 16 != 0) {
        return "rows not 16-byte aligned";
    }
    if (a->n % 2 != 0) {
        return "odd number of columns";
    }
    if (a->bias != NULL && ((a->bias_dtype != LT_F32 && a->bias_dtype != a->in) ||
                            (a->bias_dtype != LT_F32 && (uintptr_t)a->bias % 4 != 0))) {
        return "bias of a third type, or not 4-byte aligned";
    }
    if ((a->aux != NULL && a->aux_ld % 2 != 0) || (a->pre != NULL && a->pre_ld % 2 != 0)) {
        return "epilogue rows not 4-byte aligned";
    }
    if ((a->act >= 0 || a->act_bwd >= 0) && (a->out != a->in || a->residual || a->accumulate ||
                                             ((uintptr_t)a->aux | (uintptr_t)a->pre) % 16 != 0 ||
                                             a->aux_ld % 8 != 0 || a->pre_ld % 8 != 0)) {
        return "activation with F32, with a sum, or on rows not 16-byte aligned";
    }
    if (a->accumulate && a->out != LT_F32 && a->residual) {
        return "residual and accumulation into 16 bits at once";
    }
    return NULL;
}

/* Waves of tiles, each as long as the slowest of: products, bytes into one SM (80 a clock), bytes
 * of all SMs from memory (1600 a clock). An epilogue of a cooperative tile is not hidden. Ping-pong
 * tiles lose L2 locality on long products. Constants fitted to 44 shapes on an H100: the pick is
 * 0.3 % slower than the best measured tile, geometric mean. */
double lt_gemm_tile_us(const lt_gemm_tile *t, const lt_gemm_args *a, int n_sms) {
    const double clock_mhz = 1600.0;
    const int64_t bm = tile_bm(t),
                  steps = lt_cuda_div_up(lt_cuda_div_up(a->k, STEP), tile_parts(t));
    const int64_t n = lt_cuda_div_up(a->m, bm * t->cluster) * t->cluster *
                      lt_cuda_div_up(a->n, t->bn) * tile_parts(t);
    const int64_t waves = lt_cuda_div_up(n, n_sms), busy = n < n_sms ? n : n_sms;
    double rate = 0.9, clocks;
    for (size_t i = 0; i < N_TILES; i++) {
        const lt_gemm_tile *r = &tiles[i].tile;
        if (r->bn == t->bn && r->wg_m == t->wg_m && r->consumers == t->consumers &&
            r->cluster == t->cluster && r->pair == t->pair) {
            rate = tiles[i].rate;
        }
    }
    if (t->pingpong && waves * steps > 300) {
        rate -= 5e-5 * (double)(waves * steps - 300);
        rate = rate < 0.7 ? 0.7 : rate;
    }
    const double products = (double)(bm * t->bn) * STEP / 2048.0 / rate;
    const double stage = (double)(bm + tile_b_rows(t)) * STEP * 2.0;
    /* bytes of one step of all tiles, read from memory once */
    const double unique = (double)(a->m + a->n) * STEP * 2.0 * tile_parts(t);
    const double through = stage / 80.0 < products ? products : stage / 80.0;
    const double step = through > unique * (double)busy / (double)n / 1600.0
                            ? through
                            : unique * (double)busy / (double)n / 1600.0;
    /* Activations: two special functions per element, 16 per clock; hidden if the other consumer
     * multiplies meanwhile. */
    const double special = (a->act >= 0 || a->act_bwd >= 0) && !t->pingpong
                               ? (double)(bm * t->bn) * 2.0 / 16.0
                               : 0.0;
    clocks = (double)waves * ((double)steps * step +
                              (t->pingpong && waves > 1 ? 200.0 : 600.0 + 4.0 * t->bn) + special) +
             3000.0;
    if (t->pair) { /* Half of the sums are sent to the neighbour. */
        clocks += 1000.0 + (double)(bm * t->bn) * 2.0 / 32.0;
    }
    if (t->splits > 1) {
        clocks += 5000.0 + (double)a->m * (double)a->n * 8.0 * t->splits / 2200.0;
    }
    return clocks / clock_mhz;
}

int lt_gemm_tile_all(lt_gemm_tile *out, int max, const lt_gemm_args *a, size_t scratch_bytes) {
    int n = 0;
    for (size_t i = 0; i < N_TILES; i++) {
        for (int splits = 1; splits <= SPLITS_MAX && n < max; splits++) {
            const bool pair = tiles[i].tile.pair, late = a->act >= 0 || a->act_bwd >= 0;
            const int parts = splits * (pair ? 2 : 1);
            const int64_t steps = lt_cuda_div_up(a->k, STEP), share = lt_cuda_div_up(steps, parts);
            out[n] = tiles[i].tile;
            out[n].splits = splits;
            if (parts > 1 && ((parts - 1) * share >= steps || share < 4)) {
                continue; /* The part is empty, or too short. */
            }
            if (pair && (scratch_bytes == 0 || late)) {
                /* It would be two parts again, or chunks of 64 columns that are rounded. */
                continue;
            }
            if (splits > 1 &&
                (lt_gemm_tile_scratch_bytes(&out[n], a) > scratch_bytes || a->n % 4 != 0)) {
                continue; /* There is not enough scratch. */
            }
            n++;
        }
    }
    return n;
}

lt_gemm_tile lt_gemm_tile_choose(const lt_gemm_args *a, const lt_cuda_info *info,
                                 size_t scratch_bytes) {
    lt_gemm_tile all[N_TILES * SPLITS_MAX], best = tiles[0].tile;
    const int n = lt_gemm_tile_all(all, N_TILES * SPLITS_MAX, a, scratch_bytes);
    double best_us = 1e30;
    for (int i = 0; i < n; i++) {
        const double us = lt_gemm_tile_us(&all[i], a, info->n_sms);
        if (us < best_us) {
            best_us = us;
            best = all[i];
        }
    }
    return best;
}

bool lt_gemm_tile_exists(const lt_gemm_tile *t) {
    for (size_t i = 0; i < N_TILES; i++) {
        const lt_gemm_tile *r = &tiles[i].tile;
        if (r->bn == t->bn && r->wg_m == t->wg_m && r->consumers == t->consumers &&
            r->cluster == t->cluster && r->stages == t->stages && r->group == t->group &&
            r->pingpong == t->pingpong && r->block_a_tile == t->block_a_tile &&
            r->pair == t->pair) {
            return t->splits >= 1 && t->splits <= SPLITS_MAX;
        }
    }
    return false;
}

lt_gemm_tile lt_gemm_tile_best(const lt_gemm_args *a, const lt_cuda_info *info,
                               size_t scratch_bytes) {
    const lt_gemm_winner *w = lt_gemm_winner_find(info, a);
    return w != NULL && w->us[LT_GEMM_BY_WGMMA] > 0.0 &&
                   lt_gemm_tile_scratch_bytes(&w->tile, a) <= scratch_bytes
               ? w->tile
               : lt_gemm_tile_choose(a, info, scratch_bytes);
}

static const char *act_word(int act) {
    return act == LT_ACT_GELU_TANH ? "ACT_GELU_TANH"
           : act == LT_ACT_SILU    ? "ACT_SILU"
           : act == LT_ACT_RELU2   ? "ACT_RELU2"
                                   : "ACT_NONE";
}
/* The constants of the epilogue; partial sums have none. */
static void epilogue_text(char *out, size_t bytes, const lt_gemm_args *a, bool residual) {
    snprintf(
        out, bytes, "DTYPE=%s EPI_BIAS=%d EPI_SAVE=%d EPI_ACT=%s EPI_ACT_BWD=%s EPI_RESIDUAL=%d",
        a->in == LT_F16 ? "fp16" : "bf16", a->bias == NULL ? 0 : (a->bias_dtype == LT_F32 ? 2 : 1),
        a->pre != NULL, act_word(a->act), act_word(a->act_bwd), residual);
}

lt_err lt_gemm_operand_map(lt_cuda *c, CUtensorMap *map, const void *data, lt_dtype dtype,
                           int64_t inner, int64_t outer, int64_t ld, int box_inner, int box_outer) {
    const int bytes = (int)lt_dtype_bytes(dtype);
    return lt_cuda_tensor_map(
        c, map, (void *)(uintptr_t)data,
        &(lt_tensor_map_spec){.type = dtype == LT_F32   ? LT_CU_TMAP_FP32
                                      : dtype == LT_F16 ? LT_CU_TMAP_FP16
                                      : bytes == 1      ? LT_CU_TMAP_UINT8
                                                        : LT_CU_TMAP_BF16,
                              .elem_bytes = bytes,
                              .rank = 2,
                              .size = {(uint64_t)inner, (uint64_t)outer},
                              .stride_bytes = {0, (uint64_t)(ld * bytes)},
                              .box = {(uint32_t)box_inner, (uint32_t)box_outer},
                              .swizzle = box_inner * bytes == 64 ? LT_CU_TMAP_SWIZZLE_64B
                                                                 : LT_CU_TMAP_SWIZZLE_128B,
                              .l2_promotion = LT_CU_TMAP_L2_128B});
}

void lt_gemm_tile_text(char out[256], const lt_gemm_tile *t, const lt_gemm_args *a) {
    snprintf(out, 256, TILE_WORDS, t->bn, t->wg_m, t->consumers, t->pingpong, t->cluster, t->pair,
             t->stages, tile_c_stages(t), a->trans_a, !a->trans_b, t->consumers > 2 ? 32 : 24,
             t->consumers > 2 ? 160 : 240);
}

/* The product itself: into c, or its partial sums into scratch. */
/* Blocks of a launch whose tiles of C need `blocks` blocks of their own, of which `fit` can run at
 * once. A persistent block computes several tiles one after the other, so a GPU of its own gets as
 * many blocks as fit. Where NCCL's kernels hold some multiprocessors, the blocks that have to wait
 * for a place make such a launch take up to twice as long; blocks with less work each share the
 * places that are left evenly. A block still gets SHARED_STEPS steps of K where there are so many,
 * and products with fewer than SHORT steps a tile, for which a block's start and end are most of
 * the cost, keep one wave. */
static int64_t blocks_to_launch(const lt_cuda *c, const lt_gemm_tile *t, int64_t k, int64_t blocks,
                                int64_t fit) {
    enum { SHARED_STEPS = 64, SHORT = 32 };
    const int64_t steps = lt_cuda_div_up(lt_cuda_div_up(k, STEP), tile_parts(t));
    if (blocks <= fit || t->block_a_tile || t->pair) {
        return blocks;
    }
    if (!lt_cuda_is_shared(c) || steps < SHORT) {
        return fit;
    }
    const int64_t each = lt_cuda_div_up(blocks, lt_cuda_div_up(SHARED_STEPS, steps));
    const int64_t wanted = lt_cuda_div_up(each, t->cluster) * t->cluster;
    return wanted > fit ? wanted : fit;
}

/* Steps of K of the second product. */
static int beside_steps(const lt_gemm_args *a) {
    return a->beside.v == NULL ? 0 : (int)lt_cuda_div_up(a->beside.rank, STEP);
}

/* Number of rows (trans_b) or columns of v. */
static int64_t beside_extent(const lt_gemm_args *a) {
    int64_t n = 0;
    for (int i = 0; i < a->beside.n_parts; i++) {
        const lt_lora_add_part *p = &a->beside.parts[i];
        n = p->first_of_b + p->columns > n ? p->first_of_b + p->columns : n;
    }
    return n;
}

const char *lt_gemm_beside_refusal(const lt_gemm_args *a, const lt_gemm_tile *t) {
    const uintptr_t addresses = (uintptr_t)a->beside.u | (uintptr_t)a->beside.v;
    if (a->trans_a || t->splits > 1 || t->pair) {
        return "K is in parts, or a is transposed";
    }
    if (addresses % 16 != 0 || a->beside.ld_u % 8 != 0 || a->beside.ld_v % 8 != 0) {
        return "rows of u or v are not 16-byte aligned";
    }
    if (a->beside.n_parts > LT_GEMM_BESIDE_PARTS || beside_steps(a) > LT_GEMM_BESIDE_STEPS ||
        (a->beside.n_parts > 1 && a->beside.rank > STEP)) {
        return "too many parts, or too large a rank";
    }
    for (int i = 0; i < a->beside.n_parts; i++) {
        const lt_lora_add_part *p = &a->beside.parts[i];
        const int64_t end = p->first_of_y + p->columns;
        if (p->first_of_y % t->bn != 0 || (end % t->bn != 0 && end != a->n)) {
            return "a tile has columns of two parts";
        }
    }
    return NULL;
}

static lt_err beside_maps(lt_cuda *c, CUtensorMap *u, CUtensorMap *v, lt_gemm_beside_args *w,
                          const lt_gemm_args *a, const lt_gemm_tile *t) {
    const int64_t extent = beside_extent(a), rank = a->beside.rank;
    *w = (lt_gemm_beside_args){
        .n_parts = a->beside.n_parts, .rank = (int)rank, .none = (int)extent};
    for (int i = 0; i < a->beside.n_parts; i++) {
        const lt_lora_add_part *p = &a->beside.parts[i];
        w->first[i] = (int)p->first_of_y;
        w->end[i] = (int)(p->first_of_y + p->columns);
        w->shift[i] = (int)(p->first_of_b - p->first_of_y);
    }
    LT_TRY(lt_gemm_operand_map(c, u, a->beside.u, a->in, a->beside.n_parts * rank, a->m,
                               a->beside.ld_u, STEP, tile_bm(t)));
    return a->trans_b ? lt_gemm_operand_map(c, v, a->beside.v, a->in, rank, extent, a->beside.ld_v,
                                            STEP, t->bn / t->cluster)
                      : lt_gemm_operand_map(c, v, a->beside.v, a->in, extent, rank, a->beside.ld_v,
                                            STEP, STEP);
}

static lt_err launch_product(lt_cuda *c, CUstream s, const lt_gemm_args *a, const lt_gemm_tile *t,
                             void *partial, bool residual, lt_gemm_kernel_args *w) {
    const bool split = t->splits > 1, f32 = split || a->out == LT_F32;
    const int bm = tile_bm(t), out_cols = t->pair ? t->bn / 2 : t->bn;
    const unsigned cluster = t->pair ? 2 : (unsigned)t->cluster;
    const int64_t blocks = lt_cuda_div_up(a->m, bm * t->cluster) * t->cluster *
                           lt_cuda_div_up(a->n, t->bn) * tile_parts(t);
    const int64_t fit = lt_cuda_get_info(c)->n_sms / t->cluster * t->cluster;
    char text[768], tile_words[256], epilogue[256] = "", beside_words[32] = "";
    const lt_cuda_kernel *k;
    CUtensorMap map_a, map_b, map_c, map_pre, map_u, map_v;
    lt_gemm_beside_args beside;

    if (!split) {
        epilogue_text(epilogue, sizeof epilogue, a, residual);
    } else {
        snprintf(epilogue, sizeof epilogue, "DTYPE=%s", a->in == LT_F16 ? "fp16" : "bf16");
    }
    lt_gemm_tile_text(tile_words, t, a);
    if (a->beside.v != NULL) {
        snprintf(beside_words, sizeof beside_words, BESIDE_WORDS, beside_steps(a));
        LT_TRY(beside_maps(c, &map_u, &map_v, &beside, a, t));
    }
    snprintf(text, sizeof text, "%s" OUT_WORDS "%s", tile_words, f32,
             !split && a->accumulate && a->out == LT_F32, epilogue, beside_words);
    LT_TRY(lt_cuda_kernel_get(c, &k, "gemm/gemm_sm90.cu", "gemm_sm90", text));
    LT_TRY(a->trans_a ? lt_gemm_operand_map(c, &map_a, a->a, a->in, a->m, a->k, a->lda, 64, 64)
                      : lt_gemm_operand_map(c, &map_a, a->a, a->in, a->k, a->m, a->lda, 64, bm));
    LT_TRY(a->trans_b ? lt_gemm_operand_map(c, &map_b, a->b, a->in, a->k, a->n, a->ldb, 64,
                                            t->bn / t->cluster)
                      : lt_gemm_operand_map(c, &map_b, a->b, a->in, a->n, a->k, a->ldb, 64, 64));
    LT_TRY(split ? lt_gemm_operand_map(c, &map_c, partial, LT_F32, a->n, t->splits * w->m_padded,
                                       a->n, 32, 64)
                 : lt_gemm_operand_map(c, &map_c, a->c, a->out, a->n, a->m, a->ldc,
                                       f32 || out_cols % 64 != 0 ? 32 : 64, 64));
    map_pre = map_c;
    if (!split && a->pre != NULL) {
        LT_TRY(lt_gemm_operand_map(c, &map_pre, a->pre, a->in, a->n, a->m, a->pre_ld, 64, 64));
    }
    void *args[] = {&map_a, &map_b, &map_c, &map_pre, w, &map_u, &map_v, &beside};
    w->early = blocks <= fit;
    return lt_cuda_launch(
        c, s, k,
        &(lt_cuda_dims){.grid = {(unsigned)blocks_to_launch(c, t, a->k, blocks, fit)},
                        .block = {(unsigned)(128 * (1 + t->consumers))},
                        .cluster = {cluster > 1 ? cluster : 0, cluster > 1, cluster > 1},
                        .dynamic_shared_bytes = lt_gemm_tile_shared_bytes(t),
                        .overlap_previous = w->early},
        args);
}

static lt_err launch_sum(lt_cuda *c, CUstream s, const lt_gemm_args *a, void *partial,
                         bool residual, lt_gemm_kernel_args *w) {
    char text[320], epilogue[256];
    const lt_cuda_kernel *k;
    lt_gemm_split_args call = {.a = *w, .c = a->c, .part = partial, .ldc = a->ldc};
    void *args[] = {&call};

    epilogue_text(epilogue, sizeof epilogue, a, residual);
    snprintf(text, sizeof text, OUT_WORDS, a->out == LT_F32, a->accumulate && a->out == LT_F32,
             epilogue);
    LT_TRY(lt_cuda_kernel_get(c, &k, "gemm/gemm_split.cu", "gemm_split_sum", text));
    return lt_cuda_launch(c, s, k,
                          &(lt_cuda_dims){.grid = {(unsigned)lt_cuda_div_up(a->n * a->m, 4 * 256)},
                                          .block = {256},
                                          .overlap_previous = true},
                          args);
}

lt_err lt_gemm_with(lt_cuda *c, CUstream s, const lt_gemm_args *a, const lt_gemm_tile *t,
                    lt_scratch scratch) {
    /* c + product is the residual form with c as the residual. */
    const bool into_16 = a->accumulate && a->out != LT_F32;
    const bool residual = a->residual || into_16, split = t->splits > 1;
    lt_gemm_kernel_args w = {.m = (int)a->m,
                             .n = (int)a->n,
                             .k = (int)a->k,
                             .splits = t->splits,
                             .m_padded = (int)tile_m_padded(t, a->m),
                             .group = t->group,
                             .alpha = split ? 1.0f : a->alpha,
                             .bias = a->bias,
                             .aux = into_16 ? a->c : a->aux,
                             .pre = a->pre,
                             .aux_ld = into_16 ? a->ldc : a->aux_ld,
                             .pre_ld = a->pre_ld};
    const char *why = lt_gemm_refusal(a, lt_cuda_get_info(c));

    if (why != NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "gemm %lld x %lld x %lld: %s", (long long)a->m, (long long)a->n,
                (long long)a->k, why);
    }
    LT_ASSERT(a->beside.v == NULL || lt_gemm_beside_refusal(a, t) == NULL);
    if (lt_gemm_tile_scratch_bytes(t, a) > scratch.bytes) {
        LT_FAIL(LT_ERR_LIMIT,
                "gemm %lld x %lld x %lld in %d parts needs %zu bytes of scratch, %zu given",
                (long long)a->m, (long long)a->n, (long long)a->k, t->splits,
                lt_gemm_tile_scratch_bytes(t, a), scratch.bytes);
    }
    LT_TRY(launch_product(c, s, a, t, scratch.data, residual, &w));
    if (split) {
        w.alpha = a->alpha;
        LT_TRY(launch_sum(c, s, a, scratch.data, residual, &w));
    }
    return LT_OK;
}

lt_err lt_gemm(lt_cuda *c, CUstream s, const lt_gemm_args *a, lt_scratch scratch) {
    if (lt_gemm_few_refusal(a, lt_cuda_get_info(c)) == NULL) {
        return lt_gemm_few(c, s, a);
    }
    const lt_gemm_tile t = lt_gemm_tile_best(a, lt_cuda_get_info(c), scratch.bytes);
    return lt_gemm_with(c, s, a, &t, scratch);
}

/* Every tile as products forward and gradients of weights use it; then, with the first tile, all
 * other options. */
void lt_specs_gemm(lt_specs *l) {
    static const lt_gemm_args forward = {.trans_b = true}, weights = {.trans_a = true}, back = {0};
    static const struct {
        const lt_gemm_args *as;
        const char *epilogue;
    } others[] = {{&back, "DTYPE=bf16"},
                  {&forward, "DTYPE=fp16"},
                  {&forward, "DTYPE=bf16 EPI_BIAS=1 EPI_SAVE=1 EPI_ACT=ACT_GELU_TANH"},
                  {&back, "DTYPE=bf16 EPI_ACT_BWD=ACT_GELU_TANH"},
                  {&forward, "DTYPE=bf16 EPI_BIAS=2 EPI_RESIDUAL=1"},
                  {&forward, "DTYPE=bf16 EPI_RESIDUAL=1"},
                  {&back, "DTYPE=bf16 EPI_RESIDUAL=1"}};
    char words[256];
    for (size_t i = 0; i < N_TILES; i++) {
        lt_gemm_tile_text(words, &tiles[i].tile, &forward);
        lt_spec(l, LT_SM90, "gemm/gemm_sm90.cu", "%s" OUT_WORDS, words, 0, 0, "DTYPE=bf16");
        lt_gemm_tile_text(words, &tiles[i].tile, &weights);
        lt_spec(l, LT_SM90, "gemm/gemm_sm90.cu", "%s" OUT_WORDS, words, 1, 1, "DTYPE=bf16");
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        lt_gemm_tile_text(words, &tiles[0].tile, others[i].as);
        lt_spec(l, LT_SM90, "gemm/gemm_sm90.cu", "%s" OUT_WORDS, words, 0, 0, others[i].epilogue);
    }
    lt_gemm_tile_text(words, &tiles[0].tile, &forward);
    lt_spec(l, LT_SM90, "gemm/gemm_sm90.cu", "%s" OUT_WORDS BESIDE_WORDS, words, 0, 0, "DTYPE=bf16",
            1);
    lt_gemm_tile_text(words, &tiles[1].tile, &back);
    lt_spec(l, LT_SM90, "gemm/gemm_sm90.cu", "%s" OUT_WORDS BESIDE_WORDS, words, 0, 0, "DTYPE=bf16",
            2);
    lt_spec(l, LT_SM_ALL, "gemm/gemm_split.cu", OUT_WORDS, 0, 0, "DTYPE=bf16");
    lt_spec(l, LT_SM_ALL, "gemm/gemm_split.cu", OUT_WORDS, 1, 1, "DTYPE=bf16");
    lt_spec(l, LT_SM_ALL, "gemm/gemm_split.cu", OUT_WORDS, 0, 0,
            "DTYPE=bf16 EPI_BIAS=1 EPI_ACT=ACT_GELU_TANH");
}
