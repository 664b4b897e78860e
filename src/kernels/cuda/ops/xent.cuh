/* xent.cuh: shared by the cross-entropy kernels: a thread's running maximum and sum of
 * exponentials, and the gradient of a piece. */
#ifndef LT_CUDA_XENT_CUH
#define LT_CUDA_XENT_CUH

#include "common/vec.cuh"

#ifndef WEIGHTS /* 1: the last argument has a weight per row that scales the row's gradient. */
#define WEIGHTS 0
#endif
#define NEGATIVE __uint_as_float(0xff800000u) /* -inf. */
#define LOG2_E   1.4426950409f

INLINE float capped(float x, float softcap) {
    return SOFTCAP ? softcap * tanhf(x / softcap) : x;
}
INLINE float exp2_fast(float x) { /* 2 ulp; -inf gives 0. */
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

typedef struct {
    float top, sum; /* sum: of exp(x - top) */
    int where;      /* The first column that holds top. */
} running;

INLINE void running_add(running *r, float *x, int col, float softcap) {
    float most = NEGATIVE, part = 0.0f;
#pragma unroll
    for (int i = 0; i < W; i++) {
        x[i] = capped(x[i], softcap);
        most = fmaxf(most, x[i]);
    }
    if (most > r->top) { /* Rescale the sum so far; this is rare after the first pieces. */
        r->sum *= exp2_fast((r->top - most) * LOG2_E);
        r->top = most;
#pragma unroll
        for (int i = W - 1; i >= 0; i--) {
            r->where = x[i] == most ? col + i : r->where;
        }
    }
#pragma unroll
    for (int i = 0; i < W; i++) {
        part += exp2_fast((x[i] - r->top) * LOG2_E);
    }
    r->sum += r->top > NEGATIVE ? part : 0.0f;
}

/* share: the factor of the exponentials, which is the scale of the row's gradient over their sum;
 * hot: subtracted in the label's column. */
INLINE void gradient(float *x, int col, int label, float row_top, float share, float hot,
                     float softcap) {
#pragma unroll
    for (int i = 0; i < W; i++) {
        const float y = capped(x[i], softcap);
        const float slope = SOFTCAP ? 1.0f - (y / softcap) * (y / softcap) : 1.0f;
        x[i] = (share * exp2_fast((y - row_top) * LOG2_E) - (col + i == label ? hot : 0.0f)) *
               slope;
    }
}

#endif
