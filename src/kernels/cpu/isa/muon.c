/* muon.c: Muon for one matrix (formulas and scratch layout: kernels/ref/muon.c, tensor/ops.h).
 *
 * BOUND     Products: 2 S^2 L + 2 S^3 + 2 S^2 L flops an iteration, by the backend's own matmul;
 *           the element-wise passes between them are memory bound.
 * NUMERICS  |u|_F by fixed chunks of rows in double. With products in BF16, X, A and B are BF16 and
 *           their sums F32. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/rows.h"
#include "tensor/backend.h"

#include <math.h>

#define NS_A 3.4445f
#define NS_B (-4.7750f)
#define NS_C 2.0315f

typedef struct {
    lt_tensor x, x_next, a, b; /* (S, L) twice, (S, S) twice, in the type of the products */
    float *u;                  /* (S, L): at first the update, then sums in BF16's case. */
    int64_t side, length;
    bool tall; /* x holds u transposed. */
} workspace;

static float *row_of_f32(const lt_tensor *t, int64_t r) {
    return (float *)t->data + r * t->stride[0];
}

/* m <- momentum m + g; u, transposed when tall; returns |u|_F^2 of rows [from, to). */
static double momentum_rows(const lt_muon_args *a, const workspace *w, int64_t from, int64_t to) {
    double sum_sq = 0.0;
    for (int64_t i = from; i < to; i++) {
        const float *g_row = row_of_f32(&a->g, i);
        float *m_row = row_of_f32(&a->m, i);
        for (int64_t j = 0; j < a->p.shape[1]; j++) {
            const float g = a->grad_scale * g_row[j];
            const float m = a->momentum * m_row[j] + g;
            const float u = a->nesterov ? g + a->momentum * m : m;
            m_row[j] = m;
            w->u[w->tall ? j * w->length + i : i * w->length + j] = u;
            sum_sq += (double)u * (double)u;
        }
    }
    return sum_sq;
}

static double momentum_step(const lt_muon_args *a, const workspace *w) {
    const int64_t rows = a->p.shape[0];
    const int64_t n_chunks = row_chunks(rows);
    double partial[64];
    double sum = 0.0;
#pragma omp parallel for schedule(static) if (rows * a->p.shape[1] > PARALLEL_MIN)
    for (int64_t chunk = 0; chunk < n_chunks; chunk++) {
        partial[chunk] = momentum_rows(a, w, chunk_start(rows, n_chunks, chunk),
                                       chunk_start(rows, n_chunks, chunk + 1));
    }
    for (int64_t chunk = 0; chunk < n_chunks; chunk++) {
        sum += partial[chunk];
    }
    return sqrt(sum);
}

/* y = alpha a + beta b, a in F32, b of y's type or NULL. */
static void blend(const lt_tensor *y, float alpha, const float *a, float beta, const lt_tensor *b) {
    const int64_t count = lt_tensor_count(y);
#pragma omp parallel for schedule(static) if (count > PARALLEL_MIN)
    for (int64_t i = 0; i < count; i += VEC) {
        const int64_t n = count - i;
        vf x = alpha * v_get(a, LT_F32, i, n);
        if (b != NULL) {
            x += beta * get_any(b->data, b->dtype, i, n);
        }
        put_any(y->data, y->dtype, i, x, n);
    }
}

/* y = alpha a b + beta c. */
static lt_err product(workspace *w, lt_queue *q, const lt_tensor *y, float alpha,
                      lt_matmul_args args, float beta, const lt_tensor *c) {
    float *sum = y->dtype == LT_F32 ? y->data : w->u;
    args.y = lt_tensor_2d(sum, LT_F32, y->shape[0], y->shape[1]);
    LT_TRY(lt_backend_cpu()->ops->matmul(q, &args));
    if (y->dtype != LT_F32 || alpha != 1.0f || c != NULL) {
        blend(y, alpha, sum, beta, c);
    }
    return LT_OK;
}

/* A = X X^T, B = b A + c A A, X' = a X + B X. */
static lt_err newton_schulz(workspace *w, lt_queue *q) {
    LT_TRY(product(w, q, &w->a, 1.0f, (lt_matmul_args){.a = w->x, .b = w->x, .trans_b = true}, 0.0f,
                   NULL));
    LT_TRY(product(w, q, &w->b, NS_C, (lt_matmul_args){.a = w->a, .b = w->a}, NS_B, &w->a));
    LT_TRY(product(w, q, &w->x_next, 1.0f, (lt_matmul_args){.a = w->b, .b = w->x}, NS_A, &w->x));
    const lt_tensor swap = w->x;
    w->x = w->x_next;
    w->x_next = swap;
    return LT_OK;
}

/* y = x in F32. */
static void widen(float *y, const lt_tensor *x) {
    const int64_t count = lt_tensor_count(x);
#pragma omp parallel for schedule(static) if (count > PARALLEL_MIN)
    for (int64_t i = 0; i < count; i += VEC) {
        v_put(y, LT_F32, i, get_any(x->data, x->dtype, i, count - i), count - i);
    }
}

static void update_params(const lt_muon_args *a, const workspace *w) {
    const float keep = (float)(1.0 - (double)a->lr * (double)a->decay);
    const float rate = a->lr * a->scale, *u = w->x.data;
#pragma omp parallel for schedule(static) if (lt_tensor_count(&a->p) > PARALLEL_MIN)
    for (int64_t i = 0; i < a->p.shape[0]; i++) {
        float *p = row_of_f32(&a->p, i);
        for (int64_t j = 0; j < a->p.shape[1]; j++) {
            p[j] = keep * p[j] - rate * u[w->tall ? j * w->length + i : i * w->length + j];
        }
        if (a->copy.data != NULL) {
            for (int64_t j = 0; j < a->p.shape[1]; j++) {
                ((uint16_t *)a->copy.data)[i * a->copy.stride[0] + j] = lt_f32_to_bf16(p[j]);
            }
        }
    }
}

lt_err LT_ISA_NAME(lt_cpu_muon)(lt_queue *q, const void *args) {
    const lt_muon_args *a = args;
    const int64_t rows = a->p.shape[0];
    const int64_t cols = a->p.shape[1];
    const int64_t side = rows < cols ? rows : cols, length = rows < cols ? cols : rows,
                  count = rows * cols;
    const bool in_16 = a->products == LT_BF16;
    float *mem = a->scratch.data;
    /* In F32: X, X' (where u is at first), A, B; in BF16: u, X, X', A, B. */
    char *x = (char *)(in_16 ? mem + count : mem);
    const size_t bytes = lt_dtype_bytes(a->products);
    char *square = x + (size_t)(2 * count) * bytes;
    workspace w = {
        .x = lt_tensor_2d(x, a->products, side, length),
        .x_next = lt_tensor_2d(x + (size_t)count * bytes, a->products, side, length),
        .a = lt_tensor_2d(square, a->products, side, side),
        .b = lt_tensor_2d(square + (size_t)(side * side) * bytes, a->products, side, side),
        .u = in_16 ? mem : mem + count,
        .side = side,
        .length = length,
        .tall = rows > cols};
    LT_ASSERT(lt_tensor_count(&a->scratch) >= lt_muon_scratch_count(rows, cols));
    const double norm = momentum_step(a, &w);
    blend(&w.x, (float)(1.0 / (norm > 1e-7 ? norm : 1e-7)), w.u, 0.0f, NULL);
    for (int64_t step = 0; step < a->steps; step++) {
        LT_TRY(newton_schulz(&w, q));
    }
    if (in_16) { /* The update reads F32. */
        widen(w.u, &w.x);
        w.x.data = w.u;
    }
    update_params(a, &w);
    return LT_OK;
}
