/* probe_bf16.c: the same as probe.c for VDPBF16PS (5 or 6 cycles), if an AVX-512 CPU has it. */
#include "kernels/cpu/isa/vec.h"

#if defined(LT_ISA_avx512)
#include "kernels/cpu/probe.h"

enum { NUM = 12 };

double lt_probe_bf16_avx512(int64_t rounds, float *sink) {
    /* A lane adds two products of bf16 pairs to its float: four flops. */
    const __m512bh half = _mm512_cvtne2ps_pbh(_mm512_set1_ps(sink[0]), _mm512_set1_ps(sink[0]));
    __m512 x[NUM];

    for (int i = 0; i < NUM; i++) {
        x[i] = _mm512_set1_ps(sink[1]);
    }
    for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < NUM; i++) {
            x[i] = _mm512_dpbf16_ps(x[i], half, half);
        }
    }
    for (int i = 1; i < NUM; i++) {
        x[0] = _mm512_add_ps(x[0], x[i]);
    }
    sink[2] = _mm512_cvtss_f32(x[0]);
    return (double)rounds * NUM * 16.0 * 4.0;
}
#endif
