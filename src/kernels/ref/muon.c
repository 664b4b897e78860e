/* muon.c (ref): Muon for one matrix p (N, M): momentum, then the semi-orthogonal matrix nearest to
 * the update, by Newton-Schulz.
 *
 *     m <- momentum m + g';  u = g' + momentum m (Nesterov) or m;  X = u / max(|u|_F, 1e-7)
 *     repeat `steps` times: A = X X^T, B = b A + c A^2, X <- a X + B X
 *         with (a, b, c) = (3.4445, -4.7750, 2.0315)
 *     p <- (1 - lr decay) p - lr scale X
 * X is kept with the shorter side as rows (S x L): u is transposed when N > M. Scratch: X and its
 * successor (S L each), A and B (S S each). With products in BF16 each element of X, A and B is
 * rounded when it is stored. Source: Keller Jordan, "Muon: An optimizer for hidden
 * layers in neural networks", 2024. */
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

static const double NS_A = 3.4445, NS_B = -4.7750, NS_C = 2.0315;

int64_t lt_muon_scratch_count(int64_t rows, int64_t cols) {
    const int64_t side = min_i64(rows, cols);
    return 2 * rows * cols + 2 * side * side;
}

typedef struct {
    const lt_tensor *mem;
    int64_t x, x_next, a, b; /* Offsets into scratch. */
    int64_t side, length;    /* S, L. */
    bool rounds;             /* To BF16. */
} workspace;

static void store(const workspace *w, int64_t i, double value) {
    const float rounded = w->rounds ? lt_bf16_to_f32(lt_f32_to_bf16((float)value)) : 0.0f;
    set(w->mem, i, w->rounds ? (double)rounded : value);
}

/* Store u as X (transposed if N > M) and update the momentum on the way; returns |u|_F. */
static double momentum_step(const lt_muon_args *a, const workspace *w) {
    const double scale = present(&a->now) ? get(&a->now, LT_OPTIM_GRAD_SCALE)
                                          : (double)a->grad_scale;
    const double mu = (double)a->momentum;
    const bool tall = a->p.shape[0] > a->p.shape[1];
    double sum_sq = 0.0;

    for (int64_t i = 0; i < a->p.shape[0]; i++) {
        for (int64_t j = 0; j < a->p.shape[1]; j++) {
            const double g = scale * get(&a->g, at2(&a->g, i, j));
            const double m = mu * get(&a->m, at2(&a->m, i, j)) + g;
            const double u = a->nesterov ? g + mu * m : m;
            set(&a->m, at2(&a->m, i, j), m);
            set(w->mem, w->x + (tall ? j * w->length + i : i * w->length + j), u);
            sum_sq += u * u;
        }
    }
    return sqrt(sum_sq);
}

/* A = X X^T, then B = b A + c A A. */
static void gram(const workspace *w) {
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t i = 0; i < w->side; i++) {
        for (int64_t j = 0; j < w->side; j++) {
            double sum = 0.0;
            for (int64_t k = 0; k < w->length; k++) {
                sum += get(w->mem, w->x + i * w->length + k) *
                       get(w->mem, w->x + j * w->length + k);
            }
            store(w, w->a + i * w->side + j, sum);
        }
    }
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t i = 0; i < w->side; i++) {
        for (int64_t j = 0; j < w->side; j++) {
            double sum = 0.0;
            for (int64_t k = 0; k < w->side; k++) {
                sum += get(w->mem, w->a + i * w->side + k) * get(w->mem, w->a + k * w->side + j);
            }
            store(w, w->b + i * w->side + j,
                  NS_B * get(w->mem, w->a + i * w->side + j) + NS_C * sum);
        }
    }
}

/* X <- a X + B X, into the other buffer; then the two buffers swap. */
static void newton_schulz(workspace *w) {
    int64_t swap;
    gram(w);
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t i = 0; i < w->side; i++) {
        for (int64_t j = 0; j < w->length; j++) {
            double sum = NS_A * get(w->mem, w->x + i * w->length + j);
            for (int64_t k = 0; k < w->side; k++) {
                sum += get(w->mem, w->b + i * w->side + k) * get(w->mem, w->x + k * w->length + j);
            }
            store(w, w->x_next + i * w->length + j, sum);
        }
    }
    swap = w->x;
    w->x = w->x_next;
    w->x_next = swap;
}

lt_err lt_ref_muon(lt_queue *q, const lt_muon_args *a) {
    const int64_t rows = a->p.shape[0], cols = a->p.shape[1], n = rows * cols;
    const int64_t side = min_i64(rows, cols);
    const bool tall = rows > cols;
    workspace w = {.mem = &a->scratch,
                   .x_next = n,
                   .a = 2 * n,
                   .b = 2 * n + side * side,
                   .side = side,
                   .length = max_i64(rows, cols),
                   .rounds = a->products == LT_BF16};
    const double lr = present(&a->now) ? get(&a->now, LT_OPTIM_LR) : (double)a->lr;
    double norm;

    (void)q;
    if (present(&a->now) && get(&a->now, LT_OPTIM_SKIP) != 0.0) {
        return LT_OK;
    }
    LT_ASSERT(a->p.n_dims == 2 && a->g.n_dims == 2 && a->m.n_dims == 2);
    LT_ASSERT(lt_tensor_count(&a->scratch) >= lt_muon_scratch_count(rows, cols));
    norm = fmax(momentum_step(a, &w), 1e-7);
    for (int64_t i = 0; i < n; i++) {
        store(&w, w.x + i, get(w.mem, w.x + i) / norm);
    }
    for (int64_t step = 0; step < a->steps; step++) {
        newton_schulz(&w);
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) {
            const double u = get(w.mem, w.x + (tall ? j * w.length + i : i * w.length + j));
            const double p = get(&a->p, at2(&a->p, i, j)) * (1.0 - lr * (double)a->decay);
            set(&a->p, at2(&a->p, i, j), p - lr * (double)a->scale * u);
            if (present(&a->copy)) {
                set(&a->copy, at2(&a->copy, i, j), get(&a->p, at2(&a->p, i, j)));
            }
        }
    }
    return LT_OK;
}
