/* probe.c: how many multiply-adds a second one core can do: chains of independent multiply-adds in
 * registers, no memory. Compiled for each instruction set. NUM accumulators cover the latency of a
 * multiply-add (4 cycles) times the number of units (2). */
#include <stdint.h>

#include "kernels/cpu/probe.h"

#define NAME_(base, isa) base##_##isa
#define NAME(base, isa)  NAME_(base, isa)

enum { NUM = 12 };

#if defined(LT_ISA_avx512)
#include <immintrin.h>
typedef __m512 vector;
#define BROADCAST(x) _mm512_set1_ps(x)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define LANES        16
#elif defined(LT_ISA_avx2)
#include <immintrin.h>
typedef __m256 vector;
#define BROADCAST(x) _mm256_set1_ps(x)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define LANES        8
#else
typedef float vector __attribute__((vector_size(16)));
#define BROADCAST(x) ((vector){x, x, x, x})
#define FMA(a, b, c) ((a) * (b) + (c))
#define LANES        4
#endif

double NAME(lt_probe_f32, LT_ISA)(int64_t rounds, float *sink) {
    /* x <- x * 0.5 + 0.5 stays at 1; the compiler cannot know the values. */
    const vector half = BROADCAST(sink[0]);
    vector x[NUM];
    union {
        vector v;
        float f[LANES];
    } last;

    for (int i = 0; i < NUM; i++) {
        x[i] = BROADCAST(sink[1]);
    }
    for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < NUM; i++) {
            x[i] = FMA(x[i], half, half);
        }
    }
    for (int i = 1; i < NUM; i++) {
        x[0] = FMA(x[0], half, x[i]);
    }
    last.v = x[0];
    sink[2] = last.f[0];
    return (double)rounds * NUM * LANES * 2.0;
}
