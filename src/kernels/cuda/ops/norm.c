/* norm.c: launcher of norm.cu: RMSNorm and LayerNorm.
 *
 * A row of up to 128 pieces belongs to 8, 16 or 32 lanes of a warp (heads; narrow models), a longer one to a block of 256 threads. The specialisation is
 * the smallest number of pieces a thread that covers the row. Backward runs on as many blocks as are resident at once (a second,
 * half-filled wave costs a quarter), so its order of sums depends on the kind of GPU only, not on the run. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/ops/launch.h"

#define FILE_NAME       "ops/norm.cu"
#define THREADS         256
#define WARP            32
#define WARP_VECS       4 /* Pieces a lane in rows that one warp holds: no block barrier for them. */
#define MAX_HELD        64 /* Elements of a row a thread keeps in registers. */
#define COL_SUM_COLS    32
#define COL_SUM_THREADS 512

/* norm_views of norm.cu. */
typedef struct {
    lt_cuda_view y, x, add, sum, dx, dy;
    lt_cuda_row_shape n;
} norm_views;

typedef struct {
    char defines[LT_CUDA_DEFINES_BYTES];
    int lanes, rows_at_once;
} spec;

/* False when the row is too long for registers. */
static bool spec_make(spec *s, int kind, lt_dtype act, lt_dtype param, int w, int64_t width) {
    const int64_t pieces = LT_CUDA_DIV_UP(width, w);
    int64_t lanes = THREADS, vecs;
    for (int small = 8; small <= WARP; small *= 2) {
        if (lanes == THREADS && pieces <= (small == WARP ? WARP * WARP_VECS : small)) {
            lanes = small;
        }
    }
    vecs = LT_CUDA_DIV_UP(pieces, lanes);
    while (lanes == THREADS && vecs > 2 && (vecs & (vecs - 1)) != 0) {
        vecs++; /* Powers of two: fewer specialisations. */
    }
    s->lanes = (int)lanes;
    s->rows_at_once = THREADS / s->lanes;
    snprintf(s->defines, sizeof s->defines,
             "KIND=%d DTYPE=%s PARAM=%s W=%d LANES=%d VECS=%d THREADS=%d", kind,
             lt_cuda_dtype_word(act), lt_cuda_dtype_word(param), w, s->lanes, (int)vecs, THREADS);
    return vecs * w <= MAX_HELD;
}

static bool row_fits(const lt_tensor *x) {
    spec s;
    return spec_make(&s, 0, x->dtype, LT_F32, 1, lt_cuda_width(x)) ||
           (lt_cuda_width(x) % (16 / (int64_t)lt_dtype_bytes(x->dtype)) == 0 &&
            ((uintptr_t)x->data & 15) == 0 &&
            spec_make(&s, 0, x->dtype, LT_F32, 16 / (int)lt_dtype_bytes(x->dtype),
                      lt_cuda_width(x)));
}

static const char *refuse(const lt_tensor *const *rows, int n, const lt_tensor *x,
                          const lt_tensor *gain) {
    const char *why = lt_cuda_refuse_rows(rows, n, x->dtype);
    if (why == NULL && gain->dtype != LT_F32 && gain->dtype != LT_BF16) {
        why = "gain is not F32 or BF16";
    }
    return why == NULL && !row_fits(x) ? "row too long for a block's registers" : why;
}

static lt_err fwd(lt_queue *q, int kind, const lt_tensor *const rows_of[4], lt_tensor gain,
                  lt_tensor bias, lt_tensor mean, lt_tensor rstd, float eps, float gain_offset) {
    const lt_tensor *y = rows_of[0], *x = rows_of[1], *add = rows_of[2], *sum = rows_of[3];
    const lt_tensor *const all[] = {y, x, add, sum, &gain, &bias};
    int rows = (int)lt_cuda_rows(x), cols = (int)lt_cuda_width(x);
    int w = lt_cuda_piece(all, 6, x->dtype, cols);
    void *py = y->data, *px = x->data, *padd = add->data, *psum = sum->data;
    norm_views at = {.n = lt_cuda_row_shape_of(x)};
    void *args[] = {&py,        &px,   &padd, &psum, &gain.data,   &bias.data, &mean.data,
                    &rstd.data, &rows, &cols, &eps,  &gain_offset, &at};
    spec s;
    at.y = lt_cuda_view_of(y), at.x = lt_cuda_view_of(x), at.add = lt_cuda_view_of(add);
    at.sum = lt_cuda_view_of(sum);
    (void)spec_make(&s, kind, x->dtype, gain.dtype, w, cols);
    return lt_cuda_run_early(q, FILE_NAME, "norm_fwd", s.defines,
                             LT_CUDA_DIV_UP(rows, s.rows_at_once), 1, THREADS, args);
}

static lt_err bwd(lt_queue *q, int kind, lt_tensor dx, lt_tensor dgain, lt_tensor dbias,
                  lt_tensor dy, lt_tensor x, lt_tensor gain, lt_tensor mean, lt_tensor rstd,
                  float gain_offset, bool add_dx) {
    const lt_tensor *const all[] = {&dx, &dy, &x, &gain};
    int rows = (int)lt_cuda_rows(&x), cols = (int)lt_cuda_width(&x), add = add_dx, n_parts, per_sm;
    const int w = lt_cuda_piece(all, 4, x.dtype, cols);
    int64_t blocks, most;
    const lt_cuda_kernel *k;
    void *parts = NULL;
    spec s;
    (void)spec_make(&s, kind, x.dtype, gain.dtype, w, cols);
    if (rows == 0) {
        return LT_OK;
    }
    LT_TRY(lt_cuda_kernel_get(q->gpu, &k, FILE_NAME, "norm_bwd", s.defines));
    LT_TRY(lt_cuda_occupancy(q->gpu, k, THREADS, 0, &per_sm));
    blocks = LT_CUDA_DIV_UP(rows, s.rows_at_once);
    most = (int64_t)lt_cuda_get_info(q->gpu)->n_sms * per_sm;
    blocks = blocks < most ? blocks : most;
    n_parts = (int)blocks;
    LT_TRY(lt_cuda_scratch(q, (size_t)n_parts * (size_t)cols * 4 * 2, &parts));
    norm_views at = {.n = lt_cuda_row_shape_of(&x),
                     .x = lt_cuda_view_of(&x),
                     .dx = lt_cuda_view_of(&dx),
                     .dy = lt_cuda_view_of(&dy)};
    void *args[] = {&dx.data,   &parts, &dy.data, &x.data,      &gain.data, &mean.data,
                    &rstd.data, &rows,  &cols,    &gain_offset, &add,       &at};
    void *sums[] = {&dgain.data, &dbias.data, &parts, &n_parts, &cols};
    LT_TRY(lt_cuda_run(q, FILE_NAME, "norm_bwd", s.defines, blocks, 1, THREADS, args));
    return lt_cuda_run(q, "ops/col_sum.cu", "col_sum_pair", "", LT_CUDA_DIV_UP(cols, COL_SUM_COLS),
                       1 + kind, COL_SUM_THREADS, sums);
}

static const char *rmsnorm_fwd_refuse(const void *args) {
    const lt_rmsnorm_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->x, &a->add, &a->sum};
    return refuse(rows, 4, &a->x, &a->gain);
}
static lt_err rmsnorm_fwd_run(lt_queue *q, const void *args) {
    const lt_rmsnorm_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->x, &a->add, &a->sum};
    return fwd(q, 0, rows, a->gain, (lt_tensor){0}, (lt_tensor){0}, a->rstd, a->eps,
               a->gain_offset);
}
static const char *rmsnorm_bwd_refuse(const void *args) {
    const lt_rmsnorm_bwd_args *a = args;
    const lt_tensor *const rows[] = {&a->dx, &a->dy, &a->x};
    return a->rstd.data == NULL ? "no rstd" : refuse(rows, 3, &a->x, &a->gain);
}
static lt_err rmsnorm_bwd_run(lt_queue *q, const void *args) {
    const lt_rmsnorm_bwd_args *a = args;
    return bwd(q, 0, a->dx, a->dgain, (lt_tensor){0}, a->dy, a->x, a->gain, (lt_tensor){0}, a->rstd,
               a->gain_offset, a->add_dx);
}
static const char *layernorm_fwd_refuse(const void *args) {
    const lt_layernorm_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->x, &a->add, &a->sum};
    if (a->bias.data != NULL && a->bias.dtype != a->gain.dtype) {
        return "gain and bias of different types";
    }
    return refuse(rows, 4, &a->x, &a->gain);
}
static lt_err layernorm_fwd_run(lt_queue *q, const void *args) {
    const lt_layernorm_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->x, &a->add, &a->sum};
    return fwd(q, 1, rows, a->gain, a->bias, a->mean, a->rstd, a->eps, 0.0f);
}
static const char *layernorm_bwd_refuse(const void *args) {
    const lt_layernorm_bwd_args *a = args;
    const lt_tensor *const rows[] = {&a->dx, &a->dy, &a->x};
    return a->rstd.data == NULL || a->mean.data == NULL ? "no mean or rstd"
                                                        : refuse(rows, 3, &a->x, &a->gain);
}
static lt_err layernorm_bwd_run(lt_queue *q, const void *args) {
    const lt_layernorm_bwd_args *a = args;
    return bwd(q, 1, a->dx, a->dgain, a->dbias, a->dy, a->x, a->gain, a->mean, a->rstd, 0.0f,
               a->add_dx);
}

#define ENTRY(op)                                                                                  \
    const lt_op_impl lt_cuda_##op##_impls[LT_REGISTRY_MAX_IMPLS] = {                               \
        {"rows", op##_refuse, op##_run}};
ENTRY(rmsnorm_fwd)
ENTRY(rmsnorm_bwd)
ENTRY(layernorm_fwd)
ENTRY(layernorm_bwd)
