/* probe.h: measured limits of this machine's cores and memory: the denominators of every "% of the
 * bound". */
#ifndef LT_KERNELS_CPU_PROBE_H
#define LT_KERNELS_CPU_PROBE_H

#include <stdint.h>

#include "kernels/cpu/features.h"
#include "lateen/base.h"

typedef struct {
    int n_threads;
    /* Bytes read plus bytes written, of buffers far larger than the caches. A streaming copy;
     * reading alone. */
    double copy_gbps, read_gbps;
    /* Loops of multiply-adds in registers on all threads, by instruction set; 0: this CPU does not
     * have the set. */
    double f32_gflops[LT_ISA_AVX512 + 1], bf16_gflops;
    /* Rate of oneDNN's matrix product of 1024 x 1024 x 1024; 0 if it refuses the type. */
    double onednn_f32_gflops, onednn_bf16_gflops;
    /* Rate of Lateen's own product (kernels/peak.h): the peak that training's MFU refers to. */
    double matmul_f32_gflops, matmul_bf16_gflops;
    /* The larger of the above: the peak from which bounds are computed. */
    double peak_f32_gflops, peak_bf16_gflops;
} lt_cpu_probe;

/* Measure for about 2 s on an idle machine. Uses two buffers of at most 256 MiB. */
LT_MUST_USE lt_err lt_cpu_probe_run(lt_cpu_probe *out);

/* Measure copy_gbps and read_gbps only, about 1 s. */
LT_MUST_USE lt_err lt_cpu_probe_memory(lt_cpu_probe *out);

/* isa/probe.c, isa/probe_bf16.c: the number of flops in `rounds` rounds on one thread. sink[0] =
 * 0.5, sink[1] = 1; sink[2] receives a result. */
double lt_probe_f32_portable(int64_t rounds, float *sink);
double lt_probe_f32_avx2(int64_t rounds, float *sink);
double lt_probe_f32_avx512(int64_t rounds, float *sink);
double lt_probe_bf16_avx512(int64_t rounds, float *sink);

#endif
