/* gemv_ring.c: the launcher of gemm/gemv_ring.cu and gemm_q_ring.cu: which of the ops that fuse.c
 * holds they accept, and how they divide a product. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/ops/fuse.h"
#include "kernels/cuda/ops/matmul.h"
#include "kernels/cuda/ops/matmul_q.h"
#include "kernels/cuda/gemm/ring_args.h"
#include "kernels/cuda/specs.h"

/* The -D constants of the kernels, for launches and for lt_specs_gemv_ring. */
#define RING_WORDS                                                                                 \
    "M=%d SPLIT=%d WARPS=%d STAGES=%d NORM=%d ADD=%d PARAM=%s LANES=%d TAIL=%d "                   \
    "KIND=%d OUT=%s DTYPE=%s "
#define WIDTH_WORDS  "WIDTH=%d BARE=%d "
#define PLAIN_WORDS  "WHOLE=%d HELD=%d ROWS=%d UNROLL=%d FILL=%d BEYOND=%d BLOCKS=%d"
#define PACKED_WORDS "FILL=%d BLOCKS=%d BITS=%d GROUP=%d MINS=%d OFFSET=%d"

/* Llama-1B, one stream, one H100, 2026-11-22 (docs/speed/decoding.md): 16 warps an SM beat 8; 4
 * columns a warp beat 2. 215 KB of rings beat 112 and less, beside which the next kernel's block
 * stands; so with Q8_0 and Q6_K. 4 and 5 bits, whose weights of gate and up fit or nearly fit in
 * 158 KB of all SMs, are faster with blocks beside each other: 158 KB behind a norm and 66
 * elsewhere; BF16 where plan_narrow says. */
#define WARPS       16
#define LEAST_WARPS 8 /* 256 threads compute a norm. */
/* Pieces of 512 bytes in a warp's stage: columns times pieces of each. */
#define STAGE_PIECES       4
#define MOST_STAGES        12
#define BUDGET             215 /* KB of shared memory for rings and rows. */
#define BUDGET_Q           200
#define BUDGET_BEHIND_NORM 158
#define BUDGET_PLAIN       66
#define BRIEF_Q            40   /* KB beside the 178 KB of gate and up. */
#define NARROW             2048 /* plan_narrow, is_narrow */
/* Most rows times blocks that are not narrow; more were not measured. */
#define WIDE_ROWS     4
#define BUDGET_BRIEF  112 /* For a product whose weights are all in flight at once. */
#define BUDGET_BESIDE 143 /* For gate and up beside the output projection, 70 KB. */
#define MOST_BEYOND   4   /* Stages prefetched to the L2: 17 MB; 8 have less effect, 26 no more. */
/* Most rows for which a kernel is compiled for one K, with unrolled loops. */
#define MOST_FOR_WIDTH 2
#define STATIC_BYTES   18432     /* Most static shared memory. */
#define HELD_BYTES     65536     /* Bytes of x in shared memory. */
#define EIGHT_BYTES    86016     /* The same in 8 bits. */
#define MOST_COLS      (1 << 20) /* Indexes stay in 32 bits. */
#define DEFINES_BYTES  320

/* ---- What it takes ---- */

typedef struct {
    uintptr_t from, to;
} range;
static range range_of(const lt_tensor *t) {
    int64_t last = 0;
    for (int d = 0; d < t->n_dims; d++) {
        last += (t->shape[d] - 1) * t->stride[d];
    }
    const uintptr_t from = (uintptr_t)t->data;
    return (range){from, t->data == NULL
                             ? from
                             : from + (uintptr_t)(last + 1) * (uintptr_t)lt_dtype_bytes(t->dtype)};
}
static bool apart(const lt_tensor *const *some, int n_some, const lt_tensor *const *others,
                  int n_others) {
    for (int i = 0; i < n_some * n_others; i++) {
        const range a = range_of(some[i / n_others]), b = range_of(others[i % n_others]);
        if (a.from < b.to && b.from < a.to) {
            return false;
        }
    }
    return true;
}
bool lt_fuse_apart(const lt_tensor *a, const lt_tensor *b) {
    return apart(&a, 1, &b, 1);
}
/* Whether rows can be copied in pieces of 16 bytes. */
static bool in_pieces(const lt_tensor *t, lt_dtype type) {
    return t->dtype == type && t->n_dims == 2 && (uintptr_t)t->data % 16 == 0 &&
           t->stride[1] == 1 && t->stride[0] % 8 == 0;
}
/* Weights of blocks, packed. */
static bool is_packed(const lt_matmul_args *a, lt_cuda_tile_format *f) {
    return a->b_packed != NULL && lt_cuda_tile_format_of(f, a->b.dtype);
}
/* Bytes of M rows of x in 8 bits: eight_q.cuh. */
static size_t eight_bytes(int64_t m, int64_t k, const lt_cuda_tile_format *f) {
    const int64_t tiles = LT_CUDA_DIV_UP(k, 128), factors = f->group == 32 ? 2 : 4;
    return (size_t)LT_RING_EIGHT_BYTES(m, tiles, 16 * factors);
}
/* Whether the model is at most as wide as the one that was measured. */
static bool is_narrow(const lt_matmul_args *a) {
    return a->b.shape[0] <= NARROW || a->b.shape[1] <= NARROW;
}
static bool takes_product(const lt_matmul_args *a, const lt_fuse_rows *most) {
    const int64_t k = a->b.shape[1];
    lt_cuda_tile_format f;
    const bool packed = is_packed(a, &f),
               fine = a->y.n_dims == 2 && a->a.n_dims == 2 && a->y.shape[0] >= 1 &&
                      a->y.shape[0] <= (packed ? most->packed : most->plain) && !a->fixed_order &&
                      !a->trans_a && a->trans_b &&
                      (a->a.dtype == LT_BF16 || a->a.dtype == LT_F16) &&
                      lt_cuda_dtype_word(a->y.dtype) != NULL && in_pieces(&a->a, a->a.dtype) &&
                      lt_matmul_dense(&a->y) && k > 0 && k <= MOST_COLS && a->y.shape[1] >= 1 &&
                      a->y.shape[1] <= MOST_COLS;
    return fine && (packed ? (a->y.shape[0] <= WIDE_ROWS || is_narrow(a)) && k % 32 == 0 &&
                                 eight_bytes(a->y.shape[0], k, &f) <= EIGHT_BYTES &&
                                 lt_cuda_pack_bytes(&a->b, true) <= UINT32_MAX
                           : a->b.data != NULL && in_pieces(&a->b, a->a.dtype) && k % 8 == 0);
}
static bool takes_norm(const lt_rmsnorm_args *n, lt_dtype type, int64_t k) {
    return in_pieces(&n->x, type) && in_pieces(&n->y, type) &&
           (n->add.data == NULL) == (n->sum.data == NULL) &&
           (n->add.data == NULL || (in_pieces(&n->add, type) && in_pieces(&n->sum, type))) &&
           (n->gain.dtype == LT_F32 || n->gain.dtype == LT_BF16) && n->gain.data != NULL &&
           n->gain.stride[0] == 1 && (uintptr_t)n->gain.data % 16 == 0 && k <= 16384;
}
/* For quantised weights, pairs of columns must lie in whole slabs. */
static bool takes_pairs(const lt_fuse_ops *f) {
    lt_cuda_tile_format format;
    const int64_t half = f->has_act ? f->product.y.shape[1] / 2 : f->rope.x.shape[2] / 2;
    return !is_packed(&f->product, &format) || half % 16 == 0;
}
static bool takes_rotation(const lt_fuse_ops *f) {
    const lt_rope_args *r = &f->rope;
    const lt_kv_write_args *w = &f->kv;
    const lt_dtype type = f->product.y.dtype;
    const int64_t dim = r->x.shape[2];
    return dim % 2 == 0 && r->table.shape[1] * 2 == dim && lt_tensor_contiguous(&r->table) &&
           lt_tensor_contiguous(&r->positions) && lt_tensor_contiguous(&w->slots) &&
           w->k_pages.dtype == type && w->v_pages.dtype == type &&
           lt_tensor_contiguous(&w->k_pages) && lt_tensor_contiguous(&w->v_pages);
}

static bool takes_ops(const lt_fuse_ops *f, const lt_cuda_info *info) {
    const lt_matmul_args *a = &f->product;
    const lt_tensor *const reads[] = {f->has_norm ? &f->norm.x : &a->a,
                                      f->has_norm ? &f->norm.add : &a->bias},
                           *const early[] = {&f->norm.sum, &f->norm.y, &f->norm.rstd},
                           *const late[] = {&a->y, &f->act.y};
    const int n_late = f->has_act ? 2 : 1;
    if (info->cc < 80 || !takes_product(a, &f->most) || !apart(reads, 2, late, n_late)) {
        return false;
    }
    if (f->has_norm &&
        (!takes_norm(&f->norm, a->a.dtype, a->b.shape[1]) || !apart(reads, 2, early, 3) ||
         !apart(early, 3, late, n_late) || a->y.shape[0] * a->b.shape[1] * 2 > HELD_BYTES)) {
        return false;
    }
    if ((f->has_act || f->has_kv) &&
        (a->accumulate || a->y.dtype != a->a.dtype || !takes_pairs(f))) {
        return false;
    }
    if (f->has_act) {
        return (f->act.kind == LT_ACT_SILU || f->act.kind == LT_ACT_GELU_TANH) &&
               f->act.y.dtype == a->a.dtype && f->act.y.stride[1] == 1;
    }
    return !f->has_kv || takes_rotation(f);
}

/* ---- How it shares out ---- */

typedef struct {
    int split, columns, unroll, stages, blocks, warps;
    int fill, beyond, company; /* FILL, BEYOND and BLOCKS of gemv_ring.cu, gemm_q_ring.cu. */
    bool whole, held;
    size_t eight, shared_bytes; /* eight: x in 8 bits. */
} shape;

/* A block an SM over units of work for groups of s->split warps, each of `steps` stages of
 * stage_bytes a warp; rings as deep as the budget allows, but of `least` stages. Of the stages of a
 * ring `idle` are not on their way. */
static void share_out(shape *s, const lt_fuse_ops *f, const lt_cuda_info *info, int64_t units,
                      int64_t steps, size_t stage_bytes, int idle, int budget_kb) {
    const int64_t m = f->product.y.shape[0], k = f->product.b.shape[1];
    const size_t gain = f->has_norm
                            ? LT_RING_GAIN_BYTES((size_t)k, lt_dtype_bytes(f->norm.gain.dtype))
                            : 0,
                 parts = f->has_norm ? (size_t)LT_RING_PART_FLOATS(m, k) * sizeof(float) : 0,
                 rotated = f->has_kv ? (size_t)(LT_RING_ANGLE_FLOATS(m, f->rope.x.shape[2]) +
                                                LT_RING_SLOT_INTS(m)) *
                                           4
                                     : 0,
                 x = s->held ? (size_t)LT_RING_X_BYTES(m, k) : 0,
                 fixed = s->eight + x + gain + parts + rotated,
                 stage = (size_t)s->warps * stage_bytes,
                 most = (size_t)info->shared_optin_bytes - STATIC_BYTES,
                 budget = (size_t)budget_kb * 1024, room = budget < most ? budget : most;
    const int64_t least = 1 + idle;
    int64_t stages = fixed + (size_t)least * stage < room ? (int64_t)((room - fixed) / stage)
                                                          : least;
    s->blocks = (int)(units < info->n_sms ? units : info->n_sms);
    const int64_t needed = LT_CUDA_DIV_UP(units, s->blocks * (s->warps / s->split)) * steps + idle;
    stages = stages > needed ? needed : stages;
    s->stages = (int)(stages > MOST_STAGES ? MOST_STAGES : stages < least ? least : stages);
    s->shared_bytes = (size_t)s->stages * stage + fixed;
}
/* Whether kernels are held to 64 registers and rings so small that the next kernel's block stands
 * beside this one's and its weights come meanwhile: of 4 and 5 bits and one row, or two of a narrow
 * model; four lose by it. */
static bool in_company(const lt_fuse_ops *f, const lt_cuda_tile_format *t) {
    const int64_t m = f->product.y.shape[0];
    return t->bits <= 5 && (m == 1 || (m == 2 && is_narrow(&f->product)));
}
/* One row times 8-bit blocks of a model 2048 wide, on Hopper: by the copy engine, gate and up
 * beside the output projection. Budgets are as they are; other widths were not measured, and fewer
 * bits lose by it (docs/speed/decoding.md). */
static void plan_narrow_q(shape *s, const lt_fuse_ops *f, const lt_cuda_info *info,
                          const lt_cuda_tile_format *t) {
    const int64_t n = f->product.y.shape[1], k = f->product.b.shape[1];
    if (info->cc < 90 || t->bits != 8 || f->product.y.shape[0] != 1 ||
        (n != NARROW && k != NARROW)) {
        return;
    }
    s->fill = 2;
    s->company = f->has_act || s->shared_bytes <= BRIEF_Q * 1024 ? 2 : 1;
}
static int budget_of(const lt_fuse_ops *f, const lt_cuda_tile_format *t) {
    return !in_company(f, t) ? BUDGET_Q : f->has_norm ? BUDGET_BEHIND_NORM : BUDGET_PLAIN;
}
/* One row times 16-bit weights of a model 2048 wide, in which attention and the output projection
 * leave the memory idle: q k v and that projection are brief, all of their weights on their way at
 * once, with no more warps than have work; gate and up stand beside the projection and fill their
 * ring while attention runs, and send what comes next to the L2; what else there is has a deep
 * ring. On Hopper the copy engine fills the rings of all that are not brief. Other widths were not
 * measured, and keep one way for all. Budget in KB. */
static int plan_narrow(shape *s, const lt_fuse_ops *f, const lt_cuda_info *info, int64_t units,
                       int64_t steps, size_t stage_bytes) {
    const int64_t m = f->product.y.shape[0], n = f->product.y.shape[1], k = f->product.b.shape[1],
                  blocks = units < info->n_sms ? units : info->n_sms,
                  rounds = LT_CUDA_DIV_UP(units, blocks * (WARPS / s->split)),
                  groups = LT_CUDA_DIV_UP(units, blocks * rounds);
    const int warps = s->split * (int)groups;
    if (m != 1 || (n != NARROW && k != NARROW) || !s->whole) {
        return BUDGET;
    }
    if ((size_t)(rounds * steps * warps) * stage_bytes <= (BUDGET_BRIEF - 16) * 1024) {
        s->fill = 1, s->company = 2;
        s->warps = warps < LEAST_WARPS ? LEAST_WARPS : warps;
        return BUDGET_BRIEF;
    }
    const bool copied = info->cc >= 90 && s->unroll == 1;
    if (f->has_act) {
        s->fill = copied ? 2 : 1, s->company = 2;
        return BUDGET_BESIDE;
    }
    s->fill = copied && !f->has_kv ? 2 : 0;
    return BUDGET;
}
static shape shape_of(const lt_fuse_ops *f, const lt_cuda_info *info) {
    const lt_matmul_args *a = &f->product;
    const int64_t m = a->y.shape[0], n = a->y.shape[1], k = a->b.shape[1], pairs = (n + 1) / 2;
    const bool paired = f->has_act || f->has_kv;
    shape s = {.split = 1,
               .warps = WARPS,
               .company = 1,
               .held = f->has_norm || m * k * 2 <= HELD_BYTES / 2};
    lt_cuda_tile_format format;
    if (is_packed(a, &format)) {
        const int64_t slabs = LT_CUDA_DIV_UP(n, 16), tiles = LT_CUDA_DIV_UP(k, 128);
        s.split = lt_cuda_split_q(n, k, info->n_sms);
        /* Otherwise in registers. */
        s.held = f->has_norm && LT_CUDA_DIV_UP(m * tiles * 16, 32 * WARPS) > 4;
        s.eight = eight_bytes(m, k, &format);
        share_out(&s, f, info, paired ? slabs / 2 : slabs,
                  LT_CUDA_DIV_UP(tiles, s.split) * (paired ? 2 : 1), (size_t)format.tile_bytes, 0,
                  budget_of(f, &format));
        s.company = in_company(f, &format) ? 2 : 1;
        plan_narrow_q(&s, f, info, &format);
        return s;
    }
    s.split = lt_cuda_gemv_split(n, k, info->n_sms);
    s.columns = m <= 2 ? 4 : 2; /* 4 columns times more rows would be too many sums. */
    s.unroll = STAGE_PIECES / s.columns * s.split * 256 > k ? 1 : STAGE_PIECES / s.columns;
    const int64_t step = s.unroll * s.split * 256;
    s.whole = k % step == 0;
    const int64_t units = LT_CUDA_DIV_UP(pairs, s.columns / 2), steps = LT_CUDA_DIV_UP(k, step);
    const size_t stage_bytes = (size_t)LT_RING_STAGE_BYTES(s.unroll, s.columns);
    const int budget = plan_narrow(&s, f, info, units, steps, stage_bytes);
    share_out(&s, f, info, units, steps, stage_bytes, s.fill == 0, budget);
    if (s.fill == 2 && f->has_act && s.stages < steps) {
        s.beyond = (int)(steps - s.stages < MOST_BEYOND ? steps - s.stages : MOST_BEYOND);
    }
    return s;
}

bool lt_cuda_ring_takes(const lt_fuse_ops *f, const lt_cuda_info *info) {
    return takes_ops(f, info) &&
           shape_of(f, info).shared_bytes + STATIC_BYTES <= (size_t)info->shared_optin_bytes;
}

static lt_gemv_ring_args args_of(const lt_fuse_ops *f) {
    const lt_matmul_args *a = &f->product;
    lt_cuda_tile_format format;
    lt_gemv_ring_args w = {.x = a->a.data,
                           .w = is_packed(a, &format) ? a->b_packed : a->b.data,
                           .bias = a->bias.data,
                           .y = a->y.data,
                           .ldx = a->a.stride[0],
                           .ldw = a->b.stride[0],
                           .ldy = a->y.stride[0],
                           .n = (int)a->y.shape[1],
                           .k = (int)a->b.shape[1],
                           .bias_type = lt_matmul_bias_type(&a->bias),
                           .accumulate = a->accumulate};
    if (f->has_norm) {
        const lt_rmsnorm_args *n = &f->norm;
        w.x = n->x.data, w.ldx = n->x.stride[0];
        w.add = n->add.data, w.ld_add = n->add.stride[0];
        w.sum = n->sum.data, w.ld_sum = n->sum.stride[0];
        w.normed = n->y.data, w.ld_normed = n->y.stride[0];
        w.gain = n->gain.data, w.rstd = n->rstd.data;
        w.eps = n->eps, w.gain_offset = n->gain_offset;
    }
    if (f->has_act) {
        w.act = f->act.y.data, w.ld_act = f->act.y.stride[0];
    }
    if (f->has_kv) {
        w.kv_heads = (int)f->kv.k.shape[1];
        w.q_heads = (int)f->rope.x.shape[1] - w.kv_heads;
        w.dim = (int)f->rope.x.shape[2];
        w.positions = f->rope.positions.data, w.table = f->rope.table.data;
        w.slots = f->kv.slots.data;
        w.k_pages = f->kv.k_pages.data, w.v_pages = f->kv.v_pages.data;
    }
    return w;
}

lt_err lt_cuda_ring_run(lt_queue *q, const lt_fuse_ops *f, bool launch) {
    const lt_cuda_info *info = lt_cuda_get_info(q->gpu);
    const lt_matmul_args *a = &f->product;
    const shape s = shape_of(f, info);
    const lt_cuda_kernel *k;
    lt_cuda_tile_format format;
    const bool packed = is_packed(a, &format);
    lt_gemv_ring_args w = args_of(f);
    char defines[DEFINES_BYTES];
    void *list[] = {&w};
    int at = snprintf(defines, sizeof defines, RING_WORDS, (int)a->y.shape[0], s.split, s.warps,
                      s.stages, f->has_norm, f->has_norm && f->norm.add.data != NULL,
                      f->has_norm ? lt_cuda_dtype_word(f->norm.gain.dtype) : "fp32",
                      w.k / 8 > 256 && f->has_norm ? 256 : 32,
                      f->has_act  ? 1
                      : f->has_kv ? 2
                                  : 0,
                      f->has_act ? (int)f->act.kind : 0, lt_cuda_dtype_word(a->y.dtype),
                      lt_cuda_dtype_word(a->a.dtype));
    if (packed || a->y.shape[0] <= MOST_FOR_WIDTH) {
        at += snprintf(defines + at, sizeof defines - (size_t)at, WIDTH_WORDS, w.k,
                       w.bias_type == 0 && !w.accumulate);
    }
    if (packed) {
        snprintf(defines + at, sizeof defines - (size_t)at, PACKED_WORDS, s.fill, s.company,
                 format.bits, format.group, format.mins, format.offset);
    } else {
        snprintf(defines + at, sizeof defines - (size_t)at, PLAIN_WORDS, s.whole, s.held, s.columns,
                 s.unroll, s.fill, s.beyond, s.company);
    }
    LT_TRY(lt_cuda_kernel_get(q->gpu, &k, packed ? "gemm/gemm_q_ring.cu" : "gemm/gemv_ring.cu",
                              packed ? "gemm_q_ring" : "gemv_ring", defines));
    lt_cuda_all_shared(q->gpu, k);
    if (!launch) {
        return LT_OK;
    }
    return lt_cuda_launch(q->gpu, q->stream, k,
                          &(lt_cuda_dims){.grid = {(unsigned)s.blocks},
                                          .block = {32 * (unsigned)s.warps},
                                          .dynamic_shared_bytes = s.shared_bytes,
                                          .overlap_previous = info->cc >= 90},
                          list);
}

void lt_specs_gemv_ring(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, "gemm/gemv_ring.cu", RING_WORDS WIDTH_WORDS PLAIN_WORDS, 1, 1, 16, 6, 1,
            1, "fp32", 32, 1, 2, "bf16", "bf16", 2048, 1, 1, 1, 4, 1, 0, 0, 1);
    lt_spec(l, LT_SM_ALL, "gemm/gemv_ring.cu", RING_WORDS WIDTH_WORDS PLAIN_WORDS, 1, 2, 16, 5, 1,
            1, "bf16", 32, 2, 0, "bf16", "bf16", 2048, 1, 1, 1, 4, 1, 0, 0, 1);
    lt_spec(l, LT_SM_ALL, "gemm/gemv_ring.cu", RING_WORDS WIDTH_WORDS PLAIN_WORDS, 1, 4, 16, 6, 0,
            0, "fp32", 32, 0, 0, "bf16", "bf16", 2048, 1, 1, 1, 4, 1, 0, 0, 1);
    lt_spec(l, LT_SM_ALL, "gemm/gemv_ring.cu", RING_WORDS PLAIN_WORDS, 1, 1, 16, 12, 0, 0, "fp32",
            32, 0, 0, "fp32", "bf16", 0, 0, 4, 1, 0, 0, 1);
    lt_spec(l, LT_SM_ALL, "gemm/gemv_ring.cu", RING_WORDS PLAIN_WORDS, 4, 2, 16, 5, 1, 1, "fp32",
            256, 2, 0, "fp16", "fp16", 1, 1, 2, 2, 0, 0, 1);
    lt_spec(l, LT_SM_ALL, "gemm/gemv_ring.cu", RING_WORDS PLAIN_WORDS, 8, 1, 16, 4, 1, 1, "fp32",
            32, 1, 0, "bf16", "bf16", 1, 1, 2, 2, 0, 0, 1);
    lt_spec(l, LT_SM_ALL, "gemm/gemv_ring.cu", RING_WORDS WIDTH_WORDS PLAIN_WORDS, 1, 2, 12, 4, 1,
            1, "bf16", 32, 2, 0, "bf16", "bf16", 2048, 1, 1, 1, 4, 1, 1, 0, 2);
    lt_spec(l, LT_SM80, "gemm/gemv_ring.cu", RING_WORDS WIDTH_WORDS PLAIN_WORDS, 1, 1, 16, 4, 1, 1,
            "bf16", 32, 1, 2, "bf16", "bf16", 2048, 1, 1, 1, 4, 1, 1, 0, 2);
    lt_spec(l, LT_SM90, "gemm/gemv_ring.cu", RING_WORDS WIDTH_WORDS PLAIN_WORDS, 1, 1, 16, 4, 1, 1,
            "bf16", 32, 1, 2, "bf16", "bf16", 2048, 1, 1, 1, 4, 1, 2, 4, 2);
    lt_spec(l, LT_SM90, "gemm/gemv_ring.cu", RING_WORDS WIDTH_WORDS PLAIN_WORDS, 1, 4, 16, 6, 0, 0,
            "fp32", 32, 0, 0, "bf16", "bf16", 8192, 1, 1, 1, 4, 1, 2, 0, 1);
    lt_spec(l, LT_SM90, "gemm/gemv_ring.cu", RING_WORDS WIDTH_WORDS PLAIN_WORDS, 1, 1, 16, 6, 1, 1,
            "bf16", 32, 0, 0, "fp32", "bf16", 2048, 1, 1, 1, 4, 1, 2, 0, 1);
    lt_spec(l, LT_SM_ALL, "gemm/gemm_q_ring.cu", RING_WORDS WIDTH_WORDS PACKED_WORDS, 1, 4, 16, 8,
            1, 1, "fp32", 32, 1, 2, "bf16", "bf16", 2048, 1, 0, 2, 4, 32, 0, 8);
    lt_spec(l, LT_SM90, "gemm/gemm_q_ring.cu", RING_WORDS WIDTH_WORDS PACKED_WORDS, 1, 4, 16, 5, 1,
            1, "fp32", 32, 1, 2, "bf16", "bf16", 2048, 1, 2, 2, 8, 32, 0, 128);
    lt_spec(l, LT_SM_ALL, "gemm/gemm_q_ring.cu", RING_WORDS WIDTH_WORDS PACKED_WORDS, 1, 16, 16, 2,
            1, 1, "bf16", 32, 2, 0, "bf16", "bf16", 2048, 1, 0, 1, 8, 32, 0, 128);
    lt_spec(l, LT_SM_ALL, "gemm/gemm_q_ring.cu", RING_WORDS WIDTH_WORDS PACKED_WORDS, 1, 1, 16, 4,
            0, 0, "fp32", 32, 0, 0, "fp32", "bf16", 8192, 1, 0, 1, 6, 16, 0, 32);
    lt_spec(l, LT_SM_ALL, "gemm/gemm_q_ring.cu", RING_WORDS WIDTH_WORDS PACKED_WORDS, 2, 4, 16, 7,
            1, 1, "bf16", 32, 1, 2, "bf16", "bf16", 2048, 1, 0, 2, 4, 32, 1, 0);
    lt_spec(l, LT_SM_ALL, "gemm/gemm_q_ring.cu", RING_WORDS WIDTH_WORDS PACKED_WORDS, 2, 16, 16, 2,
            0, 0, "fp32", 32, 0, 0, "bf16", "bf16", 8192, 1, 0, 2, 5, 32, 0, 16);
    lt_spec(l, LT_SM_ALL, "gemm/gemm_q_ring.cu", RING_WORDS WIDTH_WORDS PACKED_WORDS, 8, 16, 16, 2,
            1, 1, "bf16", 32, 2, 0, "bf16", "bf16", 2048, 1, 0, 1, 6, 16, 0, 32);
    lt_spec(l, LT_SM_ALL, "gemm/gemm_q_ring.cu", RING_WORDS WIDTH_WORDS PACKED_WORDS, 8, 16, 16, 4,
            0, 0, "fp32", 32, 0, 0, "bf16", "bf16", 8192, 1, 0, 1, 4, 32, 0, 8);
    lt_spec(l, LT_SM_ALL, "gemm/gemm_q_ring.cu", RING_WORDS WIDTH_WORDS PACKED_WORDS, 8, 8, 16, 2,
            0, 0, "fp32", 32, 0, 0, "bf16", "bf16", 1056, 0, 0, 1, 5, 32, 1, 0);
    lt_spec(l, LT_SM_ALL, "gemm/gemm_q_ring.cu", RING_WORDS WIDTH_WORDS PACKED_WORDS, 8, 4, 16, 2,
            1, 1, "fp32", 256, 1, 0, "bf16", "bf16", 4096, 1, 0, 1, 4, 32, 1, 0);
}
