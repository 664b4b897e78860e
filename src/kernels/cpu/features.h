/* features.h: what instructions this CPU and its operating system offer, found once at run time.
 *
 * LATEEN_ISA=portable|avx2|avx512 caps what is reported, so that tests can run each path on one
 * machine; a cap never adds anything. */
#ifndef LT_KERNELS_CPU_FEATURES_H
#define LT_KERNELS_CPU_FEATURES_H

#include <stdbool.h>

/* field, name in `lateen doctor` */
#define LT_CPU_FEATURE_MAP(X)                                                                      \
    X(avx2, "avx2")                                                                                \
    X(fma, "fma")                                                                                  \
    X(f16c, "f16c")                                                                                \
    X(avx512f, "avx512f")                                                                          \
    X(avx512bw, "avx512bw")                                                                        \
    X(avx512dq, "avx512dq")                                                                        \
    X(avx512vl, "avx512vl")                                                                        \
    X(avx512_bf16, "avx512_bf16")                                                                  \
    X(avx512_vnni, "avx512_vnni")                                                                  \
    X(avx512_fp16, "avx512_fp16")                                                                  \
    X(avx_vnni, "avx_vnni")                                                                        \
    X(amx_tile, "amx_tile")                                                                        \
    X(amx_bf16, "amx_bf16")                                                                        \
    X(amx_int8, "amx_int8")

typedef enum { LT_ISA_PORTABLE, LT_ISA_AVX2, LT_ISA_AVX512 } lt_isa;

typedef struct {
#define LT_CPU_FEATURE_FIELD(field, name) bool field;
    LT_CPU_FEATURE_MAP(LT_CPU_FEATURE_FIELD)
#undef LT_CPU_FEATURE_FIELD
    /* The widest set for which src/kernels/cpu/isa was compiled and that this CPU has: AVX2 means
     * AVX2, FMA and F16C; AVX512 also F, BW, DQ, VL and VNNI (Zen 4, Cascade Lake, Ice Lake and
     * later). */
    lt_isa isa;
    bool amd;
    /* BF16 dot products are faster than F32 multiply-adds: AMD. LATEEN_BF16_DOT=1 or 0 overrides
     * this if the CPU has the instruction. */
    bool bf16_dot;
    char model[64]; /* "AMD EPYC 9354P 32-Core Processor"; "unknown" without CPUID. */
} lt_cpu_features;

const lt_cpu_features *lt_cpu_features_get(void);
/* "portable", "avx2", "avx512": the suffixes of the object files. */
const char *lt_isa_name(lt_isa isa);

#endif
