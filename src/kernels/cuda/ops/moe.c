/* moe.c: launchers of moe.cu and moe_bias.cu. Nothing is copied to the host: the kernels read how
 * many rows each expert has. */
#include <stdio.h>

#include "base/arena.h"
#include "base/error.h"
#include "kernels/cuda/ops/col_parts_args.h"
#include "kernels/cuda/ops/col_sum_args.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/moe_args.h"
#include "kernels/cuda/ops/moe_bias_args.h"
#include "kernels/cuda/specs.h"

/* Words of the kernels, as launches and lt_specs_moe write them. */
#define HELD_WORDS "DTYPE=fp32 W=1 HELD=%d"

#define FILE_NAME "ops/moe.cu"
#define BIAS_FILE "ops/moe_bias.cu"
#define THREADS   LT_CUDA_TEAM_THREADS
#define ROWS      8 /* Rows in a block of the routing kernels, one per warp. */
/* At most this many blocks count the assignments of the experts, because each of them ends with
 * one atomic sum per expert. */
#define TOTAL_BLOCKS 64
#define PART_ROWS    256 /* Rows of one partial sum of probabilities. */
#define SEARCHED     64  /* With at most so many assignments their slots are searched. */

/* The number of experts per lane is rounded up to a power of two, so that there are fewer
 * specialisations. */
static void route_defines(char out[LT_CUDA_DEFINES_BYTES], int experts) {
    int held = 1;
    while (held * 32 < experts) {
        held *= 2;
    }
    snprintf(out, LT_CUDA_DEFINES_BYTES, HELD_WORDS, held);
}

static const char *refuse_f32(const lt_tensor *const *t, int n) {
    return lt_cuda_refuse_rows(t, n, LT_F32);
}

/* ---- Routing ---- */

static const char *moe_route_fwd_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_moe_route_args *a = args;
    const lt_tensor *const f32[] = {&a->probs, &a->weights, &a->logits};
    if (a->logits.shape[1] > LT_MOE_MAX_EXPERTS) {
        return "more than 1024 experts";
    }
    if (a->experts.shape[1] > 1 && a->experts.stride[1] != 1) {
        return "columns not contiguous";
    }
    return a->aux.data != NULL && a->aux.dtype != LT_F32 ? "aux is not F32" : refuse_f32(f32, 3);
}

/* sums (E) += columns of x (rows, E), through parts. */
static lt_err column_sums(lt_queue *q, void *sums, void *parts, lt_tensor x, int n_parts,
                          int share) {
    const int rows = (int)x.shape[0], cols = (int)x.shape[1];
    lt_cuda_col_parts_args to_parts = {
        .parts = parts, .x = x.data, .rows = rows, .cols = cols, .share = share, .ld = x.stride[0]};
    lt_cuda_col_sum_args to_sum = {.dst = sums, .parts = parts, .n_parts = n_parts, .cols = cols};
    void *first[] = {&to_parts}, *second[] = {&to_sum};
    LT_TRY(lt_cuda_run_early(q, "ops/col_parts.cu", "col_parts", "DTYPE=fp32 W=1",
                             LT_CUDA_DIV_UP(cols, 32), n_parts, 256, first));
    return lt_cuda_run_early(q, "ops/col_sum.cu", "col_sum", "", LT_CUDA_DIV_UP(cols, 32), 1, 512,
                             second);
}

/* A forward routing: its sizes, and its buffers in the scratch memory. */
typedef struct {
    int rows, experts, top_k, n, blocks, n_parts;
    void *lse, *total, *sums, *counts, *dropped, *parts;
} route;

static size_t route_carve(route *r, lt_arena *a) {
    r->lse = lt_arena_take(a, (size_t)r->rows * 4, 256);                           /* (R) F32. */
    r->total = lt_arena_take(a, (size_t)r->experts * 4, 256);                      /* (E) I32. */
    r->sums = lt_arena_take(a, (size_t)r->experts * 4, 256);                       /* (E) F32. */
    r->counts = lt_arena_take(a, (size_t)r->blocks * (size_t)r->experts * 4, 256); /* I32. */
    r->dropped = lt_arena_take(a, (size_t)r->blocks * 4, 256);                     /* I32. */
    r->parts = lt_arena_take(a, (size_t)r->n_parts * (size_t)r->experts * 4, 256); /* F32. */
    return a->used_bytes;
}
static lt_err route_open(lt_queue *q, route *r, const lt_moe_route_args *a) {
    lt_arena measure = {0};
    void *scratch;
    *r = (route){.rows = (int)a->logits.shape[0],
                 .experts = (int)a->logits.shape[1],
                 .top_k = (int)a->experts.shape[1]};
    r->n = r->rows * r->top_k;
    r->blocks = LT_CUDA_DIV_UP(r->n, THREADS);
    r->n_parts = LT_CUDA_DIV_UP(r->rows, PART_ROWS);
    const size_t bytes = route_carve(r, &measure);
    LT_TRY(lt_cuda_scratch(q, bytes, &scratch));
    lt_arena place = {.base = scratch, .size_bytes = bytes};
    (void)route_carve(r, &place);
    return LT_OK;
}
static lt_cuda_route_choose_args choose_args(const route *r, const lt_moe_route_args *a) {
    return (lt_cuda_route_choose_args){.probs = a->probs.data,
                                       .chosen = a->experts.data,
                                       .weights = a->weights.data,
                                       .lse_out = r->lse,
                                       .logits = a->logits.data,
                                       .ld_probs = a->probs.stride[0],
                                       .ld_chosen = a->experts.stride[0],
                                       .ld_weights = a->weights.stride[0],
                                       .ld_logits = a->logits.stride[0],
                                       .rows = r->rows,
                                       .experts = r->experts,
                                       .top_k = r->top_k,
                                       .normalise = a->normalise};
}
/* Choose each row's experts and weights. */
static lt_err route_choose(lt_queue *q, const route *r, const lt_moe_route_args *a,
                           const char *defines) {
    lt_cuda_route_choose_args call = choose_args(r, a);
    void *list[] = {&call};
    return lt_cuda_run_early(q, FILE_NAME, "route_choose", defines, LT_CUDA_DIV_UP(r->rows, ROWS),
                             1, THREADS, list);
}
static lt_err route_few(lt_queue *q, const route *r, const lt_moe_route_args *a,
                        const char *defines) {
    lt_cuda_route_few_args call = {
        .choose = choose_args(r, a), .slot_row = a->slot_row.data, .start = a->expert_start.data};
    void *list[] = {&call};
    return lt_cuda_run_early(q, FILE_NAME, "route_few", defines, 1, 1, THREADS, list);
}
/* Find where each expert's rows begin, and the slot of each assignment. */
static lt_err route_place(lt_queue *q, const route *r, const lt_moe_route_args *a,
                          const char *defines) {
    lt_cuda_route_count_args to_count = {.counts = r->counts,
                                         .chosen = a->experts.data,
                                         .ld = a->experts.stride[0],
                                         .n = r->n,
                                         .top_k = r->top_k,
                                         .experts = r->experts};
    lt_cuda_route_scan_args to_scan = {.counts = r->counts,
                                       .total = r->total,
                                       .start = a->expert_start.data,
                                       .dropped = r->dropped,
                                       .blocks = r->blocks,
                                       .experts = r->experts,
                                       .capacity = (int)a->capacity};
    lt_cuda_route_place_args to_place = {.slot_row = a->slot_row.data,
                                         .weights = a->weights.data,
                                         .chosen = a->experts.data,
                                         .counts = r->counts,
                                         .start = a->expert_start.data,
                                         .dropped = r->dropped,
                                         .ld_chosen = a->experts.stride[0],
                                         .ld_weights = a->weights.stride[0],
                                         .n = r->n,
                                         .top_k = r->top_k,
                                         .experts = r->experts,
                                         .capacity = (int)a->capacity};
    void *count[] = {&to_count}, *scan[] = {&to_scan}, *place[] = {&to_place};
    LT_TRY(lt_cuda_run_early(q, FILE_NAME, "route_count", defines, r->blocks, 1, THREADS, count));
    LT_TRY(lt_cuda_run_early(q, FILE_NAME, "route_scan", defines, 1, 1, 1024, scan));
    return lt_cuda_run_early(q, FILE_NAME, "route_place", defines, r->blocks, 1, THREADS, place);
}
/* Compute the sums of the auxiliary losses. */
static lt_err route_aux(lt_queue *q, const route *r, const lt_moe_route_args *a,
                        const char *defines) {
    lt_cuda_route_aux_args call = {.aux = a->aux.data,
                                   .step = a->aux.stride[0],
                                   .sums = r->sums,
                                   .total = r->total,
                                   .lse = r->lse,
                                   .rows = r->rows,
                                   .top_k = r->top_k,
                                   .experts = r->experts};
    void *list[] = {&call};
    LT_TRY(lt_cuda_fill(q->gpu, q->stream, r->sums, 0, (size_t)r->experts * 4));
    LT_TRY(column_sums(q, r->sums, r->parts, a->probs, r->n_parts, PART_ROWS));
    return lt_cuda_run_early(q, FILE_NAME, "route_aux", defines, 1, 1, 1024, list);
}
static lt_err moe_route_fwd_run(lt_queue *q, const void *args) {
    const lt_moe_route_args *a = args;
    char defines[LT_CUDA_DEFINES_BYTES];
    route r;

    if (a->logits.shape[0] * a->experts.shape[1] == 0) {
        return lt_cuda_fill(q->gpu, q->stream, a->expert_start.data, 0,
                            (size_t)(a->logits.shape[1] + 1) * 4);
    }
    LT_TRY(route_open(q, &r, a));
    route_defines(defines, r.experts);
    if (r.rows <= ROWS && r.n <= THREADS && a->capacity == 0 && a->aux.data == NULL) {
        return route_few(q, &r, a, defines);
    }
    LT_TRY(route_choose(q, &r, a, defines));
    LT_TRY(route_place(q, &r, a, defines));
    return a->aux.data != NULL ? route_aux(q, &r, a, defines) : LT_OK;
}

static const char *moe_route_bwd_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_moe_route_bwd_args *a = args;
    const lt_tensor *const f32[] = {&a->dlogits, &a->dweights, &a->logits, &a->probs, &a->weights};
    return a->logits.shape[1] > LT_MOE_MAX_EXPERTS ? "more than 1024 experts" : refuse_f32(f32, 5);
}
static lt_err moe_route_bwd_run(lt_queue *q, const void *args) {
    lt_moe_route_bwd_args a = *(const lt_moe_route_bwd_args *)args;
    int rows = (int)a.logits.shape[0], experts = (int)a.logits.shape[1],
        top_k = (int)a.experts.shape[1], normalise = a.normalise, n = rows * top_k;
    void *total;
    const int blocks = LT_CUDA_DIV_UP(n, THREADS);
    char defines[LT_CUDA_DEFINES_BYTES];
    LT_TRY(lt_cuda_scratch(q, (size_t)experts * 4, &total));
    route_defines(defines, experts);
    lt_cuda_route_total_args to_count = {.total = total,
                                         .chosen = a.experts.data,
                                         .ld = a.experts.stride[0],
                                         .n = n,
                                         .top_k = top_k,
                                         .experts = experts};
    void *count[] = {&to_count};
    lt_cuda_route_bwd_args call = {.dlogits = a.dlogits.data,
                                   .dweights = a.dweights.data,
                                   .logits = a.logits.data,
                                   .probs = a.probs.data,
                                   .chosen = a.experts.data,
                                   .weights = a.weights.data,
                                   .total = total,
                                   .ld_dlogits = a.dlogits.stride[0],
                                   .ld_dweights = a.dweights.stride[0],
                                   .ld_logits = a.logits.stride[0],
                                   .ld_probs = a.probs.stride[0],
                                   .ld_chosen = a.experts.stride[0],
                                   .ld_weights = a.weights.stride[0],
                                   .rows = rows,
                                   .experts = experts,
                                   .top_k = top_k,
                                   .normalise = normalise,
                                   .aux_coef = a.aux_coef,
                                   .z_coef = a.z_coef,
                                   .aux_scale = a.aux_scale.data};
    void *list[] = {&call};
    LT_TRY(lt_cuda_fill(q->gpu, q->stream, total, 0, (size_t)experts * 4));
    LT_TRY(lt_cuda_run_early(q, FILE_NAME, "route_total", defines,
                             blocks < TOTAL_BLOCKS ? blocks : TOTAL_BLOCKS, 1, THREADS, count));
    return lt_cuda_run_early(q, FILE_NAME, "route_bwd", defines, LT_CUDA_DIV_UP(rows, ROWS), 1,
                             THREADS, list);
}

/* ---- Rows ---- */

/* The address of the number of kept rows. */
static void *n_kept(const lt_tensor *expert_start) {
    return (int32_t *)expert_start->data + expert_start->shape[0] - 1;
}
/* Find the slot of each assignment, in scratch memory. */
static lt_err invert(lt_queue *q, void **inverse, lt_tensor slot_row, const lt_tensor *start) {
    int n = (int)slot_row.shape[0];
    void *kept = n_kept(start);
    LT_TRY(lt_cuda_scratch(q, (size_t)n * 4, inverse));
    lt_cuda_moe_invert_args call = {
        .inverse = *inverse, .slot_row = slot_row.data, .n_kept = kept, .n = n};
    void *list[] = {&call};
    return lt_cuda_run_early(q, FILE_NAME, "moe_invert", "DTYPE=fp32 W=1",
                             LT_CUDA_DIV_UP(n, THREADS), 1, THREADS, list);
}

static const char *moe_gather_fwd_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_moe_gather_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->x};
    return lt_cuda_refuse_rows(rows, 2, a->x.dtype);
}
static lt_err moe_gather_fwd_run(lt_queue *q, const void *args) {
    lt_moe_gather_args a = *(const lt_moe_gather_args *)args;
    const lt_tensor *const rows[] = {&a.y, &a.x};
    int cols = (int)lt_cuda_width(&a.x), top_k = (int)a.top_k, n = (int)a.slot_row.shape[0];
    void *kept = n_kept(&a.expert_start);
    char defines[LT_CUDA_DEFINES_BYTES];
    int64_t blocks;
    lt_cuda_moe_gather_args call = {.y = a.y.data,
                                    .x = a.x.data,
                                    .slot_row = a.slot_row.data,
                                    .n_kept = kept,
                                    .ldy = a.y.stride[0],
                                    .ldx = a.x.stride[0],
                                    .cols = cols,
                                    .top_k = top_k,
                                    .n = n};
    void *list[] = {&call};
    lt_cuda_team_defines(defines, rows, 2, n, &blocks);
    return lt_cuda_run_early(q, FILE_NAME, "moe_gather", defines, blocks, 1, THREADS, list);
}

/* y = sums of rows of x, with weights or without. */
static lt_err sum_rows(lt_queue *q, lt_tensor y, lt_tensor x, lt_tensor weights,
                       const lt_tensor *slot_row, const lt_tensor *start, int64_t k, bool add_y) {
    const lt_tensor *const rows[] = {&y, &x};
    int cols = (int)lt_cuda_width(&y), top_k = (int)k, add = add_y, n = (int)y.shape[0];
    void *inverse;
    char defines[LT_CUDA_DEFINES_BYTES];
    int64_t blocks;
    lt_cuda_moe_sum_args call = {.y = y.data,
                                 .x = x.data,
                                 .weights = weights.data,
                                 .slot_row = slot_row->data,
                                 .n_kept = n_kept(start),
                                 .ldy = y.stride[0],
                                 .ldx = x.stride[0],
                                 .ld_weights = weights.stride[0],
                                 .cols = cols,
                                 .top_k = top_k,
                                 .add = add,
                                 .n = n};
    void *list[] = {&call};
    if (slot_row->shape[0] > SEARCHED) {
        LT_TRY(invert(q, &inverse, *slot_row, start));
        call.inverse = inverse;
    }
    lt_cuda_team_defines(defines, rows, 2, n, &blocks);
    return lt_cuda_run_early(q, FILE_NAME, "moe_sum", defines, blocks, 1, THREADS, list);
}

static const char *moe_gather_bwd_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_moe_gather_bwd_args *a = args;
    const lt_tensor *const rows[] = {&a->dx, &a->dy};
    return lt_cuda_refuse_rows(rows, 2, a->dx.dtype);
}
static lt_err moe_gather_bwd_run(lt_queue *q, const void *args) {
    const lt_moe_gather_bwd_args *a = args;
    return sum_rows(q, a->dx, a->dy, (lt_tensor){0}, &a->slot_row, &a->expert_start, a->top_k,
                    a->add_dx);
}

static const char *moe_combine_fwd_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_moe_combine_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->x}, *const f32[] = {&a->weights};
    const char *why = lt_cuda_refuse_rows(rows, 2, a->x.dtype);
    return why != NULL ? why : refuse_f32(f32, 1);
}
static lt_err moe_combine_fwd_run(lt_queue *q, const void *args) {
    const lt_moe_combine_args *a = args;
    return sum_rows(q, a->y, a->x, a->weights, &a->slot_row, &a->expert_start, a->weights.shape[1],
                    false);
}

static const char *moe_combine_bwd_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_moe_combine_bwd_args *a = args;
    const lt_tensor *const rows[] = {&a->dx, &a->dy, &a->x}, *const f32[] = {&a->weights,
                                                                             &a->dweights};
    const char *why = lt_cuda_refuse_rows(rows, 3, a->x.dtype);
    return why != NULL ? why : refuse_f32(f32, 2);
}
static lt_err moe_combine_bwd_run(lt_queue *q, const void *args) {
    lt_moe_combine_bwd_args a = *(const lt_moe_combine_bwd_args *)args;
    const lt_tensor *const rows[] = {&a.dx, &a.dy, &a.x};
    int cols = (int)lt_cuda_width(&a.dy), top_k = (int)a.weights.shape[1],
        n = (int)a.slot_row.shape[0];
    void *inverse;
    char defines[LT_CUDA_DEFINES_BYTES];
    int64_t blocks;
    lt_cuda_moe_combine_bwd_args call = {.dx = a.dx.data,
                                         .dweights = a.dweights.data,
                                         .dy = a.dy.data,
                                         .x = a.x.data,
                                         .weights = a.weights.data,
                                         .lddx = a.dx.stride[0],
                                         .ld_dweights = a.dweights.stride[0],
                                         .lddy = a.dy.stride[0],
                                         .ldx = a.x.stride[0],
                                         .ld_weights = a.weights.stride[0],
                                         .cols = cols,
                                         .top_k = top_k,
                                         .n = n};
    void *list[] = {&call};
    LT_TRY(invert(q, &inverse, a.slot_row, &a.expert_start));
    call.inverse = inverse;
    lt_cuda_team_defines(defines, rows, 3, n, &blocks);
    return lt_cuda_run_early(q, FILE_NAME, "moe_combine_bwd", defines, blocks, 1, THREADS, list);
}

/* ---- Biases of experts ---- */

static const char *moe_bias_fwd_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_moe_bias_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->bias};
    return lt_cuda_refuse_rows(rows, 2, a->y.dtype);
}
static lt_err moe_bias_fwd_run(lt_queue *q, const void *args) {
    lt_moe_bias_args a = *(const lt_moe_bias_args *)args;
    const lt_tensor *const rows[] = {&a.y, &a.bias};
    int cols = (int)lt_cuda_width(&a.y), n = (int)a.y.shape[0], experts = (int)a.bias.shape[0];
    char defines[LT_CUDA_DEFINES_BYTES];
    int64_t blocks;
    lt_cuda_moe_bias_args call = {.y = a.y.data,
                                  .bias = a.bias.data,
                                  .start = a.expert_start.data,
                                  .ldy = a.y.stride[0],
                                  .ld_bias = a.bias.stride[0],
                                  .cols = cols,
                                  .experts = experts,
                                  .n = n};
    void *list[] = {&call};
    lt_cuda_team_defines(defines, rows, 2, n, &blocks);
    return lt_cuda_run_early(q, BIAS_FILE, "moe_bias", defines, blocks, 1, THREADS, list);
}

static const char *moe_bias_bwd_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_moe_bias_bwd_args *a = args;
    const lt_tensor *const rows[] = {&a->dy}, *const f32[] = {&a->dbias};
    const char *why = lt_cuda_refuse_rows(rows, 1, a->dy.dtype);
    return why != NULL ? why : refuse_f32(f32, 1);
}
static lt_err moe_bias_bwd_run(lt_queue *q, const void *args) {
    lt_moe_bias_bwd_args a = *(const lt_moe_bias_bwd_args *)args;
    const lt_tensor *const rows[] = {&a.dy};
    int cols = (int)lt_cuda_width(&a.dy), n = (int)a.dy.shape[0];
    char defines[LT_CUDA_DEFINES_BYTES];
    int64_t blocks;
    lt_cuda_moe_bias_bwd_args call = {.dbias = a.dbias.data,
                                      .dy = a.dy.data,
                                      .start = a.expert_start.data,
                                      .ld_dbias = a.dbias.stride[0],
                                      .lddy = a.dy.stride[0],
                                      .cols = cols,
                                      .n = n};
    void *list[] = {&call};
    lt_cuda_team_defines(defines, rows, 1, n, &blocks);
    const int w = lt_cuda_piece(rows, 1, a.dy.dtype, cols);
    return lt_cuda_run_early(q, BIAS_FILE, "moe_bias_bwd", defines, LT_CUDA_DIV_UP(cols, 32 * w),
                             (int)a.dbias.shape[0], THREADS, list);
}

#define ENTRY(op)                                                                                  \
    const lt_op_impl lt_cuda_##op##_impls[LT_REGISTRY_MAX_IMPLS] = {                               \
        {"rows", op##_refuse, op##_run}};
ENTRY(moe_route_fwd)
ENTRY(moe_route_bwd)
ENTRY(moe_gather_fwd)
ENTRY(moe_gather_bwd)
ENTRY(moe_combine_fwd)
ENTRY(moe_combine_bwd)
ENTRY(moe_bias_fwd)
ENTRY(moe_bias_bwd)

void lt_specs_moe(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, "ops/moe.cu", LT_CUDA_TEAM_WORDS, "bf16", 8, 32);
    lt_spec(l, LT_SM_ALL, "ops/moe.cu", LT_CUDA_TEAM_WORDS, "fp32", 4, 256);
    lt_spec(l, LT_SM_ALL, BIAS_FILE, LT_CUDA_TEAM_WORDS, "bf16", 8, 256);
    lt_spec(l, LT_SM_ALL, BIAS_FILE, LT_CUDA_TEAM_WORDS, "fp32", 4, 32);
    lt_spec(l, LT_SM_ALL, "ops/moe.cu", HELD_WORDS, 1);
    lt_spec(l, LT_SM_ALL, "ops/moe.cu", HELD_WORDS, 32);
}
