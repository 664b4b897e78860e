/* mma.cuh: the warp matrix product of sm_80, D (16 x 8, f32) += A (16 x 16) B (16 x 8) of 16-bit
 * elements, and its fragment loads.
 *
 * Lane l, r = l / 4, c = 2 (l % 4): a[0..3] = A[r][c..], A[r + 8][c..], A[r][c + 8..], A[r + 8][c +
 * 8..], two elements each; b[0..1] = B[c..][r], B[c + 8..][r]; d[0..3] = D[r][c], D[r][c + 1], D[r
 * + 8][c], D[r + 8][c + 1]. */
#ifndef LT_MMA_CUH
#define LT_MMA_CUH

#include "common/hopper.cuh"

INLINE void mma_16x8x16(float d[4], const u32 a[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." ELEM_PTX "." ELEM_PTX
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
                 " {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* The same of halves, whatever DTYPE is. */
INLINE void mma_16x8x16_fp16(float d[4], const u32 a[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3},"
                 " {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* D (16 x 8) = A (16 x 32) B (32 x 8) + c of bytes, A's unsigned or signed, B's signed; exact. As
 * above with four elements for two: a[0..3] = A[r][4 q..], A[r + 8][4 q..], A[r][4 q + 16..], A[r +
 * 8][4 q + 16..] with q = l % 4; b = B[4 q..][r], B[4 q + 16..][r]; d as above. c: all elements
 * alike. */
INLINE void mma_16x8x32_u8(int d[4], const u32 a[4], u32 b0, u32 b1, int c) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3},"
        " {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c));
}
INLINE void mma_16x8x32_s8(int d[4], const u32 a[4], u32 b0, u32 b1, int c) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3},"
        " {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c));
}
/* 16 columns of A: a[0], a[1], b0. */
INLINE void mma_16x8x16_u8(int d[4], u32 a0, u32 a1, u32 b, int c) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0, %1, %2, %3},"
        " {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(c));
}
/* Load four 8x8 matrices; lane i gives the address of row i % 8 of matrix i / 8 and receives
 * elements (i / 4, 2 (i % 4)..) of each. */
INLINE void ldmatrix_x4(u32 r[4], u32 addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}
INLINE void ldmatrix_x4_trans(u32 r[4], u32 addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

#endif
