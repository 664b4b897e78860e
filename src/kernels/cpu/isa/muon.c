/* muon.c: Muon for one matrix (formulas and scratch layout: kernels/ref/muon.c, tensor/ops.h).
 *
 * BOUND     Products: 2 S^2 L + 2 S^3 + 2 S^2 L flops an iteration, by the backend's own matmul;
 *           the element-wise passes between them are memory bound.
 * NUMERICS  |u|_F by fixed chunks of rows in double. With products in BF16, the elements of X, A
 *           and B are rounded to BF16 when they are stored, but kept as F32, in which a product of
 *           two of them is exact. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/rows.h"
#include "tensor/backend.h"

#include <math.h>

#define NS_A 3.4445f
#define NS_B (-4.7750f)
#define NS_C 2.0315f

typedef struct {
    float *x, *x_next, *a, *b; /* (S, L) twice, (S, S) twice */
    int64_t side, length;
    bool tall;   /* x holds u transposed. */
    bool rounds; /* To BF16. */
} workspace;

static float *row_of_f32(const lt_tensor *t, int64_t r) {
    return (float *)t->data + r * t->stride[0];
}

/* m <- momentum m + g; u into x, transposed when tall; returns |u|_F^2 of rows [from, to). */
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
            w->x[w->tall ? j * w->length + i : i * w->length + j] = u;
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

/* y = alpha a + beta b over count floats, b NULL: 0. */
static void blend(const workspace *w, float *y, float alpha, const float *a, float beta,
                  const float *b, int64_t count) {
#pragma omp parallel for schedule(static) if (count > PARALLEL_MIN)
    for (int64_t i = 0; i < count; i += VEC) {
        const int64_t n = count - i;
        vf x = alpha * v_get(a, LT_F32, i, n);
        if (b != NULL) {
            x += beta * v_get(b, LT_F32, i, n);
        }
        v_put(y, LT_F32, i, w->rounds ? v_from_bf16(v_to_bf16(x)) : x, n);
    }
}

/* A = X X^T, B = b A + c A A, X' = a X + B X. */
static lt_err newton_schulz(workspace *w, lt_queue *q) {
    const lt_ops *ops = lt_backend_cpu()->ops;
    const lt_tensor x = lt_tensor_2d(w->x, LT_F32, w->side, w->length);
    const lt_tensor x_next = lt_tensor_2d(w->x_next, LT_F32, w->side, w->length);
    const lt_tensor a = lt_tensor_2d(w->a, LT_F32, w->side, w->side);
    const lt_tensor b = lt_tensor_2d(w->b, LT_F32, w->side, w->side);
    LT_TRY(ops->matmul(q, &(lt_matmul_args){.y = a, .a = x, .b = x, .trans_b = true}));
    if (w->rounds) {
        blend(w, w->a, 1.0f, w->a, 0.0f, NULL, w->side * w->side);
    }
    LT_TRY(ops->matmul(q, &(lt_matmul_args){.y = b, .a = a, .b = a}));
    blend(w, w->b, NS_C, w->b, NS_B, w->a, w->side * w->side);
    LT_TRY(ops->matmul(q, &(lt_matmul_args){.y = x_next, .a = b, .b = x}));
    blend(w, w->x_next, 1.0f, w->x_next, NS_A, w->x, w->side * w->length);
    float *swap = w->x;
    w->x = w->x_next;
    w->x_next = swap;
    return LT_OK;
}

static void update_params(const lt_muon_args *a, const workspace *w) {
    const float keep = (float)(1.0 - (double)a->lr * (double)a->decay);
    const float rate = a->lr * a->scale;
#pragma omp parallel for schedule(static) if (lt_tensor_count(&a->p) > PARALLEL_MIN)
    for (int64_t i = 0; i < a->p.shape[0]; i++) {
        float *p = row_of_f32(&a->p, i);
        for (int64_t j = 0; j < a->p.shape[1]; j++) {
            p[j] = keep * p[j] - rate * w->x[w->tall ? j * w->length + i : i * w->length + j];
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
    const int64_t side = rows < cols ? rows : cols;
    float *mem = a->scratch.data;
    workspace w = {.x = mem,
                   .x_next = mem + rows * cols,
                   .a = mem + 2 * rows * cols,
                   .b = mem + 2 * rows * cols + side * side,
                   .side = side,
                   .length = rows < cols ? cols : rows,
                   .tall = rows > cols,
                   .rounds = a->products == LT_BF16};
    LT_ASSERT(lt_tensor_count(&a->scratch) >= lt_muon_scratch_count(rows, cols));
    const double norm = momentum_step(a, &w);
    blend(&w, w.x, (float)(1.0 / (norm > 1e-7 ? norm : 1e-7)), w.x, 0.0f, NULL, rows * cols);
    for (int64_t step = 0; step < a->steps; step++) {
        LT_TRY(newton_schulz(&w, q));
    }
    update_params(a, &w);
    return LT_OK;
}
