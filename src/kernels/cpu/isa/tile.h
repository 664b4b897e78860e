/* tile.h: the inner product of all matrix kernels on the CPU: acc (mr, 2 VEC) += a (mr, k) . b (k,
 * 2 VEC).
 *
 * The rows of a arrive as scalars broadcast from memory, the columns of b as two vectors, and mr x
 * 2 accumulators stay in registers over all of k: with AVX-512, 14 x 2 of the 32 registers, 28
 * multiply-adds for 16 loads a step. mr is a constant wherever this is inlined (LT_TILE_SWITCH), so
 * the loops unroll fully.
 *
 * A product may also prefetch memory for the next ones into L2: next_step bytes a step from `next`
 * on; NULL: nothing.
 *
 * tile_mul: a element (i, k) lies at a[i * a_row + k * a_col]; a_row or a_col is 1 or LT_TILE_ROWS
 * in all uses that matter; b element (k, j) at b[k * b_row + j]. */
#ifndef LT_CPU_ISA_TILE_H
#define LT_CPU_ISA_TILE_H

#include "kernels/cpu/isa/vec.h"

#if defined(LT_ISA_avx512)
#define LT_TILE_ROWS 14
#elif defined(LT_ISA_avx2)
#define LT_TILE_ROWS 6
#else
#define LT_TILE_ROWS 6
#endif
#define LT_TILE_COLS (2 * VEC)

typedef struct {
    vf v[LT_TILE_ROWS][2];
} lt_tile;

LT_INLINE void tile_mul(lt_tile *t, const int mr, int64_t k_count, const float *a,
                        const int64_t a_row, const int64_t a_col, const float *b,
                        const int64_t b_row, const char *next, const int64_t next_step) {
    vf acc[LT_TILE_ROWS][2];
#pragma GCC unroll 16
    for (int i = 0; i < mr; i++) {
        acc[i][0] = (vf){0};
        acc[i][1] = (vf){0};
    }
#pragma GCC unroll 1
    for (int64_t k = 0; k < k_count; k++) {
        const vf b0 = v_load(b);
        const vf b1 = v_load(b + VEC);
        if (next != NULL) { /* A constant after inlining. */
            __builtin_prefetch(next, 0, 2);
            next += next_step;
        }
#pragma GCC unroll 16
        for (int i = 0; i < mr; i++) {
            const vf ai = v_set(a[i * a_row]);
            acc[i][0] += ai * b0;
            acc[i][1] += ai * b1;
        }
        a += a_col;
        b += b_row;
    }
#pragma GCC unroll 16
    for (int i = 0; i < mr; i++) {
        t->v[i][0] = acc[i][0];
        t->v[i][1] = acc[i][1];
    }
}

/* The same where a's rows run along k, a_row floats apart, as their owner stored them. Two other
 * such rows, at next and next_row bytes after it, are fetched into L2. Four steps a turn: the
 * pointers and the fetches cost a quarter. */
LT_INLINE void tile_mul_rows(lt_tile *t, const int mr, int64_t k_count, const float *a,
                             int64_t a_row, const float *b, const int64_t b_row, const char *next,
                             int64_t next_row) {
    vf acc[LT_TILE_ROWS][2];
    /* A pointer to every third row, since one pointer gives three addresses. */
    const float *p[(LT_TILE_ROWS + 2) / 3];
#pragma GCC unroll 16
    for (int i = 0; i < (mr + 2) / 3; i++) {
        p[i] = a + 3 * i * a_row;
    }
#pragma GCC unroll 16
    for (int i = 0; i < mr; i++) {
        acc[i][0] = (vf){0};
        acc[i][1] = (vf){0};
    }
#define LT_TILE_STEP(u)                                                                            \
    {                                                                                              \
        const vf b0 = v_load(b + (u)*b_row);                                                       \
        const vf b1 = v_load(b + (u)*b_row + VEC);                                                 \
        _Pragma("GCC unroll 16") for (int i = 0; i < mr; i++) {                                    \
            const vf ai = v_set(p[i / 3][(u) + i % 3 * a_row]);                                    \
            acc[i][0] += ai * b0;                                                                  \
            acc[i][1] += ai * b1;                                                                  \
        }                                                                                          \
    }
    int64_t k = 0;
#pragma GCC unroll 1
    for (; k + 4 <= k_count; k += 4) {
        LT_TILE_STEP(0)
        __builtin_prefetch(next, 0, 2);
        LT_TILE_STEP(1)
        LT_TILE_STEP(2)
        __builtin_prefetch(next + next_row, 0, 2);
        LT_TILE_STEP(3)
        next += 16;
#pragma GCC unroll 16
        for (int i = 0; i < (mr + 2) / 3; i++) {
            p[i] += 4;
        }
        b += 4 * b_row;
    }
#pragma GCC unroll 1
    for (; k < k_count; k++) {
        LT_TILE_STEP(0)
#pragma GCC unroll 16
        for (int i = 0; i < (mr + 2) / 3; i++) {
            p[i] += 1;
        }
        b += b_row;
    }
#undef LT_TILE_STEP
#pragma GCC unroll 16
    for (int i = 0; i < mr; i++) {
        t->v[i][0] = acc[i][0];
        t->v[i][1] = acc[i][1];
    }
}

/* Run `call` with the constant MR equal to the variable mr, 1 <= mr <= LT_TILE_ROWS. */
#if LT_TILE_ROWS == 14
/* clang-format off */
#define LT_TILE_SWITCH(mr, call)                                                                   \
    switch (mr) {                                                                                  \
        LT_TILE_CASE(14, call)                                                                     \
        LT_TILE_CASE(13, call)                                                                     \
        LT_TILE_CASE(12, call)                                                                     \
        LT_TILE_CASE(11, call)                                                                     \
        LT_TILE_CASE(10, call)                                                                     \
        LT_TILE_CASE(9, call)                                                                      \
        LT_TILE_CASE(8, call)                                                                      \
        LT_TILE_CASE(7, call) LT_TILE_CASE(6, call) LT_TILE_CASE(5, call) LT_TILE_CASE(4, call)    \
            LT_TILE_CASE(3, call) LT_TILE_CASE(2, call) LT_TILE_CASE(1, call)                      \
    }
/* clang-format on */
#else
#define LT_TILE_SWITCH(mr, call)                                                                   \
    switch (mr) {                                                                                  \
        LT_TILE_CASE(6, call)                                                                      \
        LT_TILE_CASE(5, call)                                                                      \
        LT_TILE_CASE(4, call) LT_TILE_CASE(3, call) LT_TILE_CASE(2, call) LT_TILE_CASE(1, call)    \
    }
#endif
#define LT_TILE_CASE(n, call)                                                                      \
    case n: {                                                                                      \
        enum { MR = n };                                                                           \
        call;                                                                                      \
    } break;

#endif
