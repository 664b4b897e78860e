/* features.c: CPUID and XGETBV (Intel SDM vol. 2A, CPUID; vol. 1, 13.3). A vector extension counts
 * only if the operating system saves its registers: XCR0 bits 1-2 for AVX, 5-7 for AVX-512, 17-18
 * for AMX. Using AMX also needs a permission from Linux (arch_prctl ARCH_REQ_XCOMP_PERM), which
 * oneDNN asks for itself; here it only means the tiles exist. */
#include "kernels/cpu/features.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static lt_cpu_features found;

const char *lt_isa_name(lt_isa isa) {
    static const char *const names[] = {"portable", "avx2", "avx512"};
    return names[isa];
}

#if defined(__x86_64__)
#include <cpuid.h>

enum { XCR0_AVX = 0x6, XCR0_AVX512 = 0xE6, XCR0_AMX = 0x60000 };

typedef struct {
    uint32_t a, b, c, d;
} registers;

static registers cpuid(uint32_t leaf, uint32_t sub) {
    registers r = {0, 0, 0, 0};
    if (__get_cpuid_count(leaf, sub, &r.a, &r.b, &r.c, &r.d) == 0) {
        return (registers){0, 0, 0, 0};
    }
    return r;
}

static uint64_t xcr0(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return ((uint64_t)high << 32) | low;
}

static bool bit(uint32_t word, int n) {
    return ((word >> n) & 1u) != 0;
}

static void read_model(char *out, size_t bytes) {
    char text[49] = {0};
    const char *start = text;
    if (cpuid(0x80000000u, 0).a < 0x80000004u) {
        return;
    }
    for (uint32_t i = 0; i < 3; i++) {
        const registers r = cpuid(0x80000002u + i, 0);
        memcpy(text + 16 * i, &r, sizeof r);
    }
    while (*start == ' ') {
        start++;
    }
    snprintf(out, bytes, "%s", start);
    for (size_t n = strlen(out); n > 0 && out[n - 1] == ' '; n--) {
        out[n - 1] = '\0';
    }
}

static void read_features(lt_cpu_features *f) {
    const registers one = cpuid(1, 0), seven = cpuid(7, 0), seven1 = cpuid(7, 1);
    const uint64_t saved = bit(one.c, 27) ? xcr0() : 0; /* Bit 27 is OSXSAVE. */
    const bool avx = (saved & XCR0_AVX) == XCR0_AVX && bit(one.c, 28);
    const bool avx512 = (saved & XCR0_AVX512) == XCR0_AVX512 && bit(seven.b, 16);
    const bool amx = (saved & XCR0_AMX) == XCR0_AMX && bit(seven.d, 24);

    const registers zero = cpuid(0, 0);
    f->amd = zero.b == 0x68747541u; /* "Auth" of AuthenticAMD */
    read_model(f->model, sizeof f->model);
    f->avx2 = avx && bit(seven.b, 5);
    f->fma = avx && bit(one.c, 12);
    f->f16c = avx && bit(one.c, 29);
    f->avx_vnni = avx && bit(seven1.a, 4);
    f->avx512f = avx512;
    f->avx512dq = avx512 && bit(seven.b, 17);
    f->avx512bw = avx512 && bit(seven.b, 30);
    f->avx512vl = avx512 && bit(seven.b, 31);
    f->avx512_vnni = avx512 && bit(seven.c, 11);
    f->avx512_fp16 = avx512 && bit(seven.d, 23);
    f->avx512_bf16 = avx512 && bit(seven1.a, 5);
    f->amx_tile = amx;
    f->amx_bf16 = amx && bit(seven.d, 22);
    f->amx_int8 = amx && bit(seven.d, 25);
}
#else
static void read_features(lt_cpu_features *f) {
    (void)f; /* On another architecture only the portable build runs. */
}
#endif

static lt_isa cap_from_environment(void) {
    const char *text = getenv("LATEEN_ISA");
    for (lt_isa isa = LT_ISA_PORTABLE; text != NULL && isa <= LT_ISA_AVX512; isa++) {
        if (strcmp(text, lt_isa_name(isa)) == 0) {
            return isa;
        }
    }
    if (text != NULL) {
        lt_log_warn("LATEEN_ISA=%s is ignored: portable, avx2 or avx512", text);
    }
    return LT_ISA_AVX512;
}

static void apply_cap(lt_cpu_features *f, lt_isa cap) {
    if (cap < LT_ISA_AVX512) {
        f->avx512f = f->avx512bw = f->avx512dq = f->avx512vl = false;
        f->avx512_bf16 = f->avx512_vnni = f->avx512_fp16 = false;
        f->amx_tile = f->amx_bf16 = f->amx_int8 = false;
    }
    if (cap < LT_ISA_AVX2) {
        f->avx2 = f->fma = f->f16c = f->avx_vnni = false;
    }
}

/* AMD runs VDPBF16PS at the rate of multiply-adds, with twice their work per instruction; Intel's
 * cores run it at half that rate (measured; their fast BF16 is AMX). */
static bool fast_bf16_dot(void) {
    const char *wish = getenv("LATEEN_BF16_DOT");
    if (found.isa < LT_ISA_AVX512 || !found.avx512_bf16) {
        return false;
    }
    return wish != NULL && wish[0] != '\0' ? wish[0] != '0' : found.amd;
}

static void find(void) {
    snprintf(found.model, sizeof found.model, "unknown");
    read_features(&found);
    apply_cap(&found, cap_from_environment());
    if (found.avx2 && found.fma && found.f16c) {
        found.isa = LT_ISA_AVX2;
        if (found.avx512f && found.avx512bw && found.avx512dq && found.avx512vl &&
            found.avx512_vnni) {
            found.isa = LT_ISA_AVX512;
        }
    }
    found.bf16_dot = fast_bf16_dot();
}

const lt_cpu_features *lt_cpu_features_get(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, find);
    return &found;
}
