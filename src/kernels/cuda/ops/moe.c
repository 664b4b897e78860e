/* moe.c: launchers of moe.cu and moe_bias.cu. Nothing comes to the host: how many rows an expert
 * got is read by the kernels. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/specs.h"

/* Words of the kernels, as launches and lt_specs_moe write them. */
#define TEAM_WORDS "DTYPE=%s W=%d TEAM=%d"
#define HELD_WORDS "DTYPE=fp32 W=1 HELD=%d"

#define FILE_NAME   "ops/moe.cu"
#define BIAS_FILE   "ops/moe_bias.cu"
#define THREADS     256
#define ROWS        8 /* A block of the routing kernels: one a warp. */
#define MAX_EXPERTS 1024
#define TOTAL_BLOCKS                                                                               \
    64 /* At most, that count the experts' assignments: each ends with an atomic sum an expert. */
#define ALIGN(n) (((n) + 255) / 256 * 256)

/* Experts of a lane, in powers of two: fewer specialisations. */
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
    if (a->logits.shape[1] > MAX_EXPERTS) {
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
    int rows = (int)x.shape[0], cols = (int)x.shape[1];
    void *first[] = {&parts, &x.data, &rows, &cols, &share, &x.stride[0]},
         *second[] = {&sums, &parts, &n_parts, &cols};
    LT_TRY(lt_cuda_run_early(q, "ops/col_parts.cu", "col_parts", "DTYPE=fp32 W=1",
                             LT_CUDA_DIV_UP(cols, 32), n_parts, 256, first));
    return lt_cuda_run_early(q, "ops/col_sum.cu", "col_sum", "", LT_CUDA_DIV_UP(cols, 32), 1, 512,
                             second);
}

static lt_err moe_route_fwd_run(lt_queue *q, const void *args) {
    lt_moe_route_args a = *(const lt_moe_route_args *)args;
    int rows = (int)a.logits.shape[0], experts = (int)a.logits.shape[1],
        top_k = (int)a.experts.shape[1], normalise = a.normalise, capacity = (int)a.capacity;
    int n = rows * top_k, blocks = LT_CUDA_DIV_UP(n, THREADS), share = 256;
    const int n_parts = LT_CUDA_DIV_UP(rows, share);
    const size_t lse_bytes = ALIGN((size_t)rows * 4), total_bytes = ALIGN((size_t)experts * 4),
                 counts_bytes = ALIGN((size_t)blocks * (size_t)experts * 4),
                 dropped_bytes = ALIGN((size_t)blocks * 4),
                 parts_bytes = (size_t)n_parts * (size_t)experts * 4;
    unsigned char *base;
    void *scratch, *lse, *total, *sums, *counts, *dropped, *parts;

    if (n == 0) {
        return lt_cuda_fill(q->gpu, q->stream, a.expert_start.data, 0, (size_t)(experts + 1) * 4);
    }
    LT_TRY(lt_cuda_scratch(
        q, lse_bytes + 2 * total_bytes + counts_bytes + dropped_bytes + parts_bytes, &scratch));
    base = scratch;
    lse = base, base += lse_bytes;
    total = base, base += total_bytes;
    sums = base, base += total_bytes;
    counts = base, base += counts_bytes;
    dropped = base, base += dropped_bytes;
    parts = base;
    void *choose[] = {&a.probs.data,
                      &a.experts.data,
                      &a.weights.data,
                      &lse,
                      &a.logits.data,
                      &a.probs.stride[0],
                      &a.experts.stride[0],
                      &a.weights.stride[0],
                      &a.logits.stride[0],
                      &rows,
                      &experts,
                      &top_k,
                      &normalise};
    void *count[] = {&counts, &a.experts.data, &a.experts.stride[0], &n, &top_k, &experts};
    void *scan[] = {&counts, &total, &a.expert_start.data, &dropped, &blocks, &experts, &capacity};
    void *place[] = {&a.slot_row.data,
                     &a.weights.data,
                     &a.experts.data,
                     &counts,
                     &a.expert_start.data,
                     &dropped,
                     &a.experts.stride[0],
                     &a.weights.stride[0],
                     &n,
                     &top_k,
                     &experts,
                     &capacity};
    char defines[LT_CUDA_DEFINES_BYTES];
    route_defines(defines, experts);
    LT_TRY(lt_cuda_run_early(q, FILE_NAME, "route_choose", defines, LT_CUDA_DIV_UP(rows, ROWS), 1,
                             THREADS, choose));
    LT_TRY(lt_cuda_run_early(q, FILE_NAME, "route_count", defines, blocks, 1, THREADS, count));
    LT_TRY(lt_cuda_run_early(q, FILE_NAME, "route_scan", defines, 1, 1, 1024, scan));
    LT_TRY(lt_cuda_run_early(q, FILE_NAME, "route_place", defines, blocks, 1, THREADS, place));
    if (a.aux.data == NULL) {
        return LT_OK;
    }
    void *aux[] = {&a.aux.data, &a.aux.stride[0], &sums, &total, &lse, &rows, &top_k, &experts};
    LT_TRY(lt_cuda_fill(q->gpu, q->stream, sums, 0, total_bytes));
    LT_TRY(column_sums(q, sums, parts, a.probs, n_parts, share));
    return lt_cuda_run_early(q, FILE_NAME, "route_aux", defines, 1, 1, 1024, aux);
}

static const char *moe_route_bwd_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_moe_route_bwd_args *a = args;
    const lt_tensor *const f32[] = {&a->dlogits, &a->dweights, &a->logits, &a->probs, &a->weights};
    return a->logits.shape[1] > MAX_EXPERTS ? "more than 1024 experts" : refuse_f32(f32, 5);
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
    void *count[] = {&total, &a.experts.data, &a.experts.stride[0], &n, &top_k, &experts};
    void *list[] = {&a.dlogits.data,
                    &a.dweights.data,
                    &a.logits.data,
                    &a.probs.data,
                    &a.experts.data,
                    &a.weights.data,
                    &total,
                    &a.dlogits.stride[0],
                    &a.dweights.stride[0],
                    &a.logits.stride[0],
                    &a.probs.stride[0],
                    &a.experts.stride[0],
                    &a.weights.stride[0],
                    &rows,
                    &experts,
                    &top_k,
                    &normalise,
                    &a.aux_coef,
                    &a.z_coef,
                    &a.aux_scale.data};
    LT_TRY(lt_cuda_fill(q->gpu, q->stream, total, 0, (size_t)experts * 4));
    LT_TRY(lt_cuda_run_early(q, FILE_NAME, "route_total", defines,
                             blocks < TOTAL_BLOCKS ? blocks : TOTAL_BLOCKS, 1, THREADS, count));
    return lt_cuda_run_early(q, FILE_NAME, "route_bwd", defines, LT_CUDA_DIV_UP(rows, ROWS), 1,
                             THREADS, list);
}

/* ---- Rows ---- */

/* A row's -D words; *blocks: of a launch over so many rows. A warp a row of up to 4 pieces a
 * lane. */
static void row_defines(char out[LT_CUDA_DEFINES_BYTES], const lt_tensor *const *rows, int n,
                        int64_t count, int64_t *blocks) {
    const int64_t width = lt_cuda_width(rows[0]);
    const int w = lt_cuda_piece(rows, n, rows[0]->dtype, width);
    const int team = width <= (int64_t)w * 32 * 4 ? 32 : THREADS;
    *blocks = LT_CUDA_DIV_UP(count, THREADS / team);
    snprintf(out, LT_CUDA_DEFINES_BYTES, TEAM_WORDS, lt_cuda_dtype_word(rows[0]->dtype), w, team);
}
/* Where the number of kept rows stands. */
static void *n_kept(const lt_tensor *expert_start) {
    return (int32_t *)expert_start->data + expert_start->shape[0] - 1;
}
/* Slot of each assignment, in scratch. */
static lt_err invert(lt_queue *q, void **inverse, lt_tensor slot_row, const lt_tensor *start) {
    int n = (int)slot_row.shape[0];
    void *kept = n_kept(start);
    LT_TRY(lt_cuda_scratch(q, (size_t)n * 4, inverse));
    void *list[] = {inverse, &slot_row.data, &kept, &n};
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
    void *list[] = {&a.y.data,      &a.x.data, &a.slot_row.data, &kept, &a.y.stride[0],
                    &a.x.stride[0], &cols,     &top_k,           &n};
    row_defines(defines, rows, 2, n, &blocks);
    return lt_cuda_run_early(q, FILE_NAME, "moe_gather", defines, blocks, 1, THREADS, list);
}

/* y = sums of rows of x, weighted or not. */
static lt_err sum_rows(lt_queue *q, lt_tensor y, lt_tensor x, lt_tensor weights,
                       const lt_tensor *slot_row, const lt_tensor *start, int64_t k, bool add_y) {
    const lt_tensor *const rows[] = {&y, &x};
    int cols = (int)lt_cuda_width(&y), top_k = (int)k, add = add_y, n = (int)y.shape[0];
    void *inverse;
    char defines[LT_CUDA_DEFINES_BYTES];
    int64_t blocks;
    void *list[] = {
        &y.data, &x.data, &weights.data, &inverse, &y.stride[0], &x.stride[0], &weights.stride[0],
        &cols,   &top_k,  &add,          &n};
    LT_TRY(invert(q, &inverse, *slot_row, start));
    row_defines(defines, rows, 2, n, &blocks);
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
    void *list[] = {&a.dx.data,
                    &a.dweights.data,
                    &a.dy.data,
                    &a.x.data,
                    &a.weights.data,
                    &inverse,
                    &a.dx.stride[0],
                    &a.dweights.stride[0],
                    &a.dy.stride[0],
                    &a.x.stride[0],
                    &a.weights.stride[0],
                    &cols,
                    &top_k,
                    &n};
    LT_TRY(invert(q, &inverse, a.slot_row, &a.expert_start));
    row_defines(defines, rows, 3, n, &blocks);
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
    void *list[] = {&a.y.data,
                    &a.bias.data,
                    &a.expert_start.data,
                    &a.y.stride[0],
                    &a.bias.stride[0],
                    &cols,
                    &experts,
                    &n};
    row_defines(defines, rows, 2, n, &blocks);
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
    void *list[] = {
        &a.dbias.data, &a.dy.data, &a.expert_start.data, &a.dbias.stride[0], &a.dy.stride[0],
        &cols,         &n};
    row_defines(defines, rows, 1, n, &blocks);
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
    lt_spec(l, LT_SM_ALL, "ops/moe.cu", TEAM_WORDS, "bf16", 8, 32);
    lt_spec(l, LT_SM_ALL, "ops/moe.cu", TEAM_WORDS, "fp32", 4, 256);
    lt_spec(l, LT_SM_ALL, BIAS_FILE, TEAM_WORDS, "bf16", 8, 256);
    lt_spec(l, LT_SM_ALL, BIAS_FILE, TEAM_WORDS, "fp32", 4, 32);
    lt_spec(l, LT_SM_ALL, "ops/moe.cu", HELD_WORDS, 1);
    lt_spec(l, LT_SM_ALL, "ops/moe.cu", HELD_WORDS, 32);
}
