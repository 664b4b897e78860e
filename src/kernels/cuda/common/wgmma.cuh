/* wgmma.cuh: the warpgroup matrix product of Hopper, D (64 x N) += A (64 x 16) B (16 x N), N = 8,
 * 16, .. 256, 16-bit inputs (or 8-bit floats, 32 deep), f32 sums.
 *
 * A kernel defines the shapes it uses, e.g.
 *     WGMMA_SS(mma_qk, BLOCK_N, 0, 0)
 *         void mma_qk(float d[N / 2], u64 a_desc, u64 b_desc, int accumulate)
 *     WGMMA_RS(mma_pv, HEAD_DIM, 1)
 *         void mma_pv(float d[N / 2], const u32 a[4], u64 b_desc, int accumulate)
 * and mma_qk_set, mma_pv_set, which begin a sum: d need not hold anything, so its registers are
 * free until then. TRANS_A or TRANS_B is 1 for an operand whose M (or N) index is contiguous in
 * shared memory, and 0 where K is. Thread t of the warpgroup (w = t / 32, l = t % 32) holds d[4 i +
 * 0, 1] = D[16 w + l / 4][8 i + 2 (l % 4) + 0, 1] and d[4 i + 2, 3] the same 8 rows below; a[0..3]
 * of A = rows (l / 4, l / 4 + 8, l / 4, l / 4 + 8), columns 2 (l % 4) + (0, 0, 8, 8).
 *
 * Order of use: wgmma_fence; products; wgmma_commit; wgmma_wait(n) leaves at most n committed
 * groups running. Accumulators and A registers belong to the tensor cores from the first product to
 * the wait.
 *
 * Descriptors (PTX ISA, "matrix descriptor"): start address, leading and stride byte offsets, each
 * / 16, and the swizzle in bits 62-63. Tiles come from the copy engine in 128-byte swizzle: rows of
 * 128 bytes (64 elements), groups of 8 rows = 1024 bytes, whose 16-byte pieces are permuted by row
 * % 8; a tile starts on 1024 bytes.
 *   K contiguous:   8 rows of M/N -> next 8: 1024 (stride); next 16 of K: +32 bytes on the
 *                   start; 64 of K a tile column.
 *   M/N contiguous: 8 of K -> next 8: 1024 (stride); next 64 of M/N: `leading`, the distance
 *                   between columns of tiles; next 16 of K: +2048 bytes on the start. */
#ifndef LT_CUDA_WGMMA_CUH
#define LT_CUDA_WGMMA_CUH

#include "common/hopper.cuh"

#define SWIZZLE_128B ((u64)1 << 62)

INLINE u64 wgmma_desc(u32 smem, u32 leading_bytes) {
    return (u64)((smem & 0x3ffffu) >> 4) | (u64)(leading_bytes >> 4) << 16 |
           (u64)(1024 >> 4) << 32 | SWIZZLE_128B;
}
/* Never overflows the address field, because shared memory is smaller than 256 KiB. */
#define DESC_ADD(desc, bytes) ((desc) + ((u64)(bytes) >> 4))

INLINE void wgmma_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
INLINE void wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
#define wgmma_wait(n) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")

/* Tells the compiler that x[] may change here, so that it neither moves nor copies registers that
 * the tensor cores use. */
#define wgmma_pin(x, n)                                                                            \
    _Pragma("unroll") for (int pin_i = 0; pin_i < (n); pin_i++) {                                  \
        asm volatile("" : "+f"((x)[pin_i])::"memory");                                             \
    }

#define WGMMA_SS(fn, N, TRANS_A, TRANS_B)  WGMMA_SS_(fn, N, TRANS_A, TRANS_B)
#define WGMMA_SS_(fn, N, TRANS_A, TRANS_B) WGMMA_SS__(fn, N, TRANS_A, TRANS_B, WGMMA_NUM_##N)
#define WGMMA_SS__(...)                    WGMMA_SS___(__VA_ARGS__)
#define WGMMA_SS___(fn, N, TA, TB, i0, i1, i2, i3, i4, i5)                                         \
    INLINE void fn(float *d, u64 a, u64 b, int accumulate) {                                       \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #i2 ", 0; "                                \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." ELEM_PTX "." ELEM_PTX " "   \
                     "{" WGMMA_STR_##N "}, %" #i0 ", %" #i1 ", p, 1, 1, " #TA ", " #TB "; }"       \
                     : WGMMA_ACC_##N(d, "+f")                                                      \
                     : "l"(a), "l"(b), "r"(accumulate)                                             \
                     : "memory");                                                                  \
    }                                                                                              \
    __attribute__((unused)) INLINE void fn##_set(float *d, u64 a, u64 b) {                         \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, 0, 0; "                                       \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." ELEM_PTX "." ELEM_PTX " "   \
                     "{" WGMMA_STR_##N "}, %" #i0 ", %" #i1 ", p, 1, 1, " #TA ", " #TB "; }"       \
                     : WGMMA_ACC_##N(d, "=f")                                                      \
                     : "l"(a), "l"(b)                                                              \
                     : "memory");                                                                  \
    }
/* The same for 8-bit floats, 64 x 32 by 32 x N, with K contiguous in both (the only layout): A of
 * A_F8, e4m3 or e5m2, B of e4m3. */
#define WGMMA_SS_F8(fn, N, A_F8)  WGMMA_SS_F8_(fn, N, A_F8)
#define WGMMA_SS_F8_(fn, N, A_F8) WGMMA_SS_F8__(fn, N, A_F8, WGMMA_NUM_##N)
#define WGMMA_SS_F8__(...)        WGMMA_SS_F8___(__VA_ARGS__)
#define WGMMA_SS_F8___(fn, N, A_F8, i0, i1, i2, i3, i4, i5)                                        \
    INLINE void fn(float *d, u64 a, u64 b, int accumulate) {                                       \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #i2 ", 0; "                                \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." #A_F8 ".e4m3 "              \
                     "{" WGMMA_STR_##N "}, %" #i0 ", %" #i1 ", p, 1, 1; }"                         \
                     : WGMMA_ACC_##N(d, "+f")                                                      \
                     : "l"(a), "l"(b), "r"(accumulate)                                             \
                     : "memory");                                                                  \
    }                                                                                              \
    __attribute__((unused)) INLINE void fn##_set(float *d, u64 a, u64 b) {                         \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, 0, 0; "                                       \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." #A_F8 ".e4m3 "              \
                     "{" WGMMA_STR_##N "}, %" #i0 ", %" #i1 ", p, 1, 1; }"                         \
                     : WGMMA_ACC_##N(d, "=f")                                                      \
                     : "l"(a), "l"(b)                                                              \
                     : "memory");                                                                  \
    }
#define WGMMA_RS(fn, N, TRANS_B)  WGMMA_RS_(fn, N, TRANS_B)
#define WGMMA_RS_(fn, N, TRANS_B) WGMMA_RS__(fn, N, TRANS_B, WGMMA_NUM_##N)
#define WGMMA_RS__(...)           WGMMA_RS___(__VA_ARGS__)
#define WGMMA_RS___(fn, N, TB, i0, i1, i2, i3, i4, i5)                                             \
    INLINE void fn(float *d, const u32 *a, u64 b, int accumulate) {                                \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #i5 ", 0; "                                \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." ELEM_PTX "." ELEM_PTX " "   \
                     "{" WGMMA_STR_##N "}, {%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4        \
                                       ", p, 1, 1, " #TB "; }"                                     \
                     : WGMMA_ACC_##N(d, "+f")                                                      \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate)         \
                     : "memory");                                                                  \
    }                                                                                              \
    __attribute__((unused)) INLINE void fn##_set(float *d, const u32 *a, u64 b) {                  \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, 0, 0; "                                       \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." ELEM_PTX "." ELEM_PTX " "   \
                     "{" WGMMA_STR_##N "}, {%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4        \
                                       ", p, 1, 1, " #TB "; }"                                     \
                     : WGMMA_ACC_##N(d, "=f")                                                      \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)                          \
                     : "memory");                                                                  \
    }

/* Lists of the N / 2 accumulators: operands, their names in the assembly text, and the numbers of
 * the six operands after them. */
#define WGMMA_ACC4(d, i, how) how((d)[i]), how((d)[i + 1]), how((d)[i + 2]), how((d)[i + 3])
#define WGMMA_ACC_8(d, how)   WGMMA_ACC4(d, 0, how)
#define WGMMA_ACC_16(d, how)  WGMMA_ACC_8(d, how), WGMMA_ACC4(d, 4, how)
#define WGMMA_ACC_24(d, how)  WGMMA_ACC_16(d, how), WGMMA_ACC4(d, 8, how)
#define WGMMA_ACC_32(d, how)  WGMMA_ACC_24(d, how), WGMMA_ACC4(d, 12, how)
#define WGMMA_ACC_40(d, how)  WGMMA_ACC_32(d, how), WGMMA_ACC4(d, 16, how)
#define WGMMA_ACC_48(d, how)  WGMMA_ACC_40(d, how), WGMMA_ACC4(d, 20, how)
#define WGMMA_ACC_56(d, how)  WGMMA_ACC_48(d, how), WGMMA_ACC4(d, 24, how)
#define WGMMA_ACC_64(d, how)  WGMMA_ACC_56(d, how), WGMMA_ACC4(d, 28, how)
#define WGMMA_ACC_72(d, how)  WGMMA_ACC_64(d, how), WGMMA_ACC4(d, 32, how)
#define WGMMA_ACC_80(d, how)  WGMMA_ACC_72(d, how), WGMMA_ACC4(d, 36, how)
#define WGMMA_ACC_88(d, how)  WGMMA_ACC_80(d, how), WGMMA_ACC4(d, 40, how)
#define WGMMA_ACC_96(d, how)  WGMMA_ACC_88(d, how), WGMMA_ACC4(d, 44, how)
#define WGMMA_ACC_104(d, how) WGMMA_ACC_96(d, how), WGMMA_ACC4(d, 48, how)
#define WGMMA_ACC_112(d, how) WGMMA_ACC_104(d, how), WGMMA_ACC4(d, 52, how)
#define WGMMA_ACC_120(d, how) WGMMA_ACC_112(d, how), WGMMA_ACC4(d, 56, how)
#define WGMMA_ACC_128(d, how) WGMMA_ACC_120(d, how), WGMMA_ACC4(d, 60, how)
#define WGMMA_ACC_136(d, how) WGMMA_ACC_128(d, how), WGMMA_ACC4(d, 64, how)
#define WGMMA_ACC_144(d, how) WGMMA_ACC_136(d, how), WGMMA_ACC4(d, 68, how)
#define WGMMA_ACC_152(d, how) WGMMA_ACC_144(d, how), WGMMA_ACC4(d, 72, how)
#define WGMMA_ACC_160(d, how) WGMMA_ACC_152(d, how), WGMMA_ACC4(d, 76, how)
#define WGMMA_ACC_168(d, how) WGMMA_ACC_160(d, how), WGMMA_ACC4(d, 80, how)
#define WGMMA_ACC_176(d, how) WGMMA_ACC_168(d, how), WGMMA_ACC4(d, 84, how)
#define WGMMA_ACC_184(d, how) WGMMA_ACC_176(d, how), WGMMA_ACC4(d, 88, how)
#define WGMMA_ACC_192(d, how) WGMMA_ACC_184(d, how), WGMMA_ACC4(d, 92, how)
#define WGMMA_ACC_200(d, how) WGMMA_ACC_192(d, how), WGMMA_ACC4(d, 96, how)
#define WGMMA_ACC_208(d, how) WGMMA_ACC_200(d, how), WGMMA_ACC4(d, 100, how)
#define WGMMA_ACC_216(d, how) WGMMA_ACC_208(d, how), WGMMA_ACC4(d, 104, how)
#define WGMMA_ACC_224(d, how) WGMMA_ACC_216(d, how), WGMMA_ACC4(d, 108, how)
#define WGMMA_ACC_232(d, how) WGMMA_ACC_224(d, how), WGMMA_ACC4(d, 112, how)
#define WGMMA_ACC_240(d, how) WGMMA_ACC_232(d, how), WGMMA_ACC4(d, 116, how)
#define WGMMA_ACC_248(d, how) WGMMA_ACC_240(d, how), WGMMA_ACC4(d, 120, how)
#define WGMMA_ACC_256(d, how) WGMMA_ACC_248(d, how), WGMMA_ACC4(d, 124, how)
#define WGMMA_STR_8           "%0, %1, %2, %3"
#define WGMMA_STR_16          WGMMA_STR_8 ", %4, %5, %6, %7"
#define WGMMA_STR_24          WGMMA_STR_16 ", %8, %9, %10, %11"
#define WGMMA_STR_32          WGMMA_STR_24 ", %12, %13, %14, %15"
#define WGMMA_STR_40          WGMMA_STR_32 ", %16, %17, %18, %19"
#define WGMMA_STR_48          WGMMA_STR_40 ", %20, %21, %22, %23"
#define WGMMA_STR_56          WGMMA_STR_48 ", %24, %25, %26, %27"
#define WGMMA_STR_64          WGMMA_STR_56 ", %28, %29, %30, %31"
#define WGMMA_STR_72          WGMMA_STR_64 ", %32, %33, %34, %35"
#define WGMMA_STR_80          WGMMA_STR_72 ", %36, %37, %38, %39"
#define WGMMA_STR_88          WGMMA_STR_80 ", %40, %41, %42, %43"
#define WGMMA_STR_96          WGMMA_STR_88 ", %44, %45, %46, %47"
#define WGMMA_STR_104         WGMMA_STR_96 ", %48, %49, %50, %51"
#define WGMMA_STR_112         WGMMA_STR_104 ", %52, %53, %54, %55"
#define WGMMA_STR_120         WGMMA_STR_112 ", %56, %57, %58, %59"
#define WGMMA_STR_128         WGMMA_STR_120 ", %60, %61, %62, %63"
#define WGMMA_STR_136         WGMMA_STR_128 ", %64, %65, %66, %67"
#define WGMMA_STR_144         WGMMA_STR_136 ", %68, %69, %70, %71"
#define WGMMA_STR_152         WGMMA_STR_144 ", %72, %73, %74, %75"
#define WGMMA_STR_160         WGMMA_STR_152 ", %76, %77, %78, %79"
#define WGMMA_STR_168         WGMMA_STR_160 ", %80, %81, %82, %83"
#define WGMMA_STR_176         WGMMA_STR_168 ", %84, %85, %86, %87"
#define WGMMA_STR_184         WGMMA_STR_176 ", %88, %89, %90, %91"
#define WGMMA_STR_192         WGMMA_STR_184 ", %92, %93, %94, %95"
#define WGMMA_STR_200         WGMMA_STR_192 ", %96, %97, %98, %99"
#define WGMMA_STR_208         WGMMA_STR_200 ", %100, %101, %102, %103"
#define WGMMA_STR_216         WGMMA_STR_208 ", %104, %105, %106, %107"
#define WGMMA_STR_224         WGMMA_STR_216 ", %108, %109, %110, %111"
#define WGMMA_STR_232         WGMMA_STR_224 ", %112, %113, %114, %115"
#define WGMMA_STR_240         WGMMA_STR_232 ", %116, %117, %118, %119"
#define WGMMA_STR_248         WGMMA_STR_240 ", %120, %121, %122, %123"
#define WGMMA_STR_256         WGMMA_STR_248 ", %124, %125, %126, %127"
#define WGMMA_NUM_8           4, 5, 6, 7, 8, 9
#define WGMMA_NUM_16          8, 9, 10, 11, 12, 13
#define WGMMA_NUM_24          12, 13, 14, 15, 16, 17
#define WGMMA_NUM_32          16, 17, 18, 19, 20, 21
#define WGMMA_NUM_40          20, 21, 22, 23, 24, 25
#define WGMMA_NUM_48          24, 25, 26, 27, 28, 29
#define WGMMA_NUM_56          28, 29, 30, 31, 32, 33
#define WGMMA_NUM_64          32, 33, 34, 35, 36, 37
#define WGMMA_NUM_72          36, 37, 38, 39, 40, 41
#define WGMMA_NUM_80          40, 41, 42, 43, 44, 45
#define WGMMA_NUM_88          44, 45, 46, 47, 48, 49
#define WGMMA_NUM_96          48, 49, 50, 51, 52, 53
#define WGMMA_NUM_104         52, 53, 54, 55, 56, 57
#define WGMMA_NUM_112         56, 57, 58, 59, 60, 61
#define WGMMA_NUM_120         60, 61, 62, 63, 64, 65
#define WGMMA_NUM_128         64, 65, 66, 67, 68, 69
#define WGMMA_NUM_136         68, 69, 70, 71, 72, 73
#define WGMMA_NUM_144         72, 73, 74, 75, 76, 77
#define WGMMA_NUM_152         76, 77, 78, 79, 80, 81
#define WGMMA_NUM_160         80, 81, 82, 83, 84, 85
#define WGMMA_NUM_168         84, 85, 86, 87, 88, 89
#define WGMMA_NUM_176         88, 89, 90, 91, 92, 93
#define WGMMA_NUM_184         92, 93, 94, 95, 96, 97
#define WGMMA_NUM_192         96, 97, 98, 99, 100, 101
#define WGMMA_NUM_200         100, 101, 102, 103, 104, 105
#define WGMMA_NUM_208         104, 105, 106, 107, 108, 109
#define WGMMA_NUM_216         108, 109, 110, 111, 112, 113
#define WGMMA_NUM_224         112, 113, 114, 115, 116, 117
#define WGMMA_NUM_232         116, 117, 118, 119, 120, 121
#define WGMMA_NUM_240         120, 121, 122, 123, 124, 125
#define WGMMA_NUM_248         124, 125, 126, 127, 128, 129
#define WGMMA_NUM_256         128, 129, 130, 131, 132, 133

#endif
