/* decode_blocks.cuh: the two products of decode.cu with K (CODES) or V (VCODES) in blocks of Q8_0
 * or Q4_0.
 *
 * What a lane reads of each block, with c = lane % 4 and n = lane / 4:
 *
 *     of   keys                              columns             Q8_0: bytes       Q4_0: nibbles of
 *     K    n and n + 8                       eight               8 c .. 8 c + 7    4 c .. 4 c + 3
 *     V    2 c, 2 c + 1, 2 c + 8, 2 c + 9    four                4 n .. 4 n + 3    2 n, 2 n + 1
 *
 * The product of Q with K takes K's integers, and the sum of each 32 columns is multiplied by the
 * block's scale. V's numbers are multiplied by their scale before their product, as halves. */
#ifndef LT_DECODE_BLOCKS_CUH
#define LT_DECODE_BLOCKS_CUH

#include "attention/coded.cuh"

INLINE u32 shared_half(u32 at) {
    u16 x;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(at) : "memory");
    return x;
}
/* The four bytes at `at`, a multiple of 4 if `even`, otherwise 2 more than one. */
INLINE u32 shared_word(u32 at, bool even) {
    return even ? (u32)ld_shared_s32(at)
                : __byte_perm((u32)ld_shared_s32(at - 2), (u32)ld_shared_s32(at + 2), 0x5432);
}
/* Address of block b of a key; the codes after its scale begin at a multiple of 4 bytes if b is
 * odd. */
INLINE u32 block_at(u32 tile, int key, int b, const int codes) {
    return tile + (u32)(key * ROW_BYTES(codes) + b * CODED_BYTES(codes));
}
/* The k-th of the keys of which this lane holds scores and numbers of V. */
INLINE int key_of(int lane, int k) {
    return lane % 4 * 2 + k % 2 + k / 2 * 8;
}

#if CODES >= CODES_Q8
/* The numbers of K of a block, as the halves of two steps of the product. */
INLINE void k_halves(u32 f[4], u32 block, int lane, bool odd) {
#if CODES == CODES_Q8
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 four = shared_word(block + 2 + lane % 4 * 8 + 4 * i, odd);
        f[2 * i] = bytes_to_halves(__byte_perm(four, 0u, 0x4140));
        f[2 * i + 1] = bytes_to_halves(__byte_perm(four, 0u, 0x4342));
    }
#else
    const u32 eight = shared_word(block + 2 + lane % 4 * 4, odd);
    f[0] = low_nibbles_to_halves(eight);
    f[1] = low_nibbles_to_halves(eight >> 8);
    f[2] = high_nibbles_to_halves(eight);
    f[3] = high_nibbles_to_halves(eight >> 8);
#endif
}
INLINE void scores(float s[2][4], const rows16 *r, u32 k_tile) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < HEAD_DIM / CODED_BLOCK; b++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float part[4] = {0.0f};
            u32 f[4];
            k_halves(f, block_at(k_tile, lane / 4 + 8 * i, b, CODES), lane, b % 2 == 1);
            mma_16x8x16_fp16(part, r->q[2 * b], f[0], f[1]);
            mma_16x8x16_fp16(part, r->q[2 * b + 1], f[2], f[3]);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                fp16 scale;
                scale.bits = (u16)shared_half(block_at(k_tile, key_of(lane, 2 * i + k), b, CODES));
                s[i][k] = __fmaf_rn(part[k], fp16_to_f32(scale), s[i][k]);
                s[i][2 + k] = __fmaf_rn(part[2 + k], fp16_to_f32(scale), s[i][2 + k]);
            }
        }
    }
}
INLINE int pair_of(int d, int lane, int i) {
    return CODES == CODES_Q8 ? d / 2 * CODED_BLOCK + lane % 4 * 8 + d % 2 * 4 + 2 * i
                             : 16 * d + lane % 4 * 4 + i;
}
#define PAIR_STEP (CODES == CODES_Q8 ? 1 : 2)

#endif

#if VCODES >= CODES_Q8
/* The numbers of V of a block for a pair of keys: a pair of halves per column. */
INLINE void v_halves(u32 f[4], u32 first, u32 second, int lane, bool odd) {
#if VCODES == CODES_Q8
    const u32 one = shared_word(first + 2 + lane / 4 * 4, odd),
              other = shared_word(second + 2 + lane / 4 * 4, odd);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f[i] = bytes_to_halves(__byte_perm(one, other, 0x4400 + 0x1111 * i));
    }
#else
    const u32 both = shared_half(first + 2 + lane / 4 * 2) | shared_half(second + 2 + lane / 4 * 2)
                                                                 << 16;
    f[0] = low_nibbles_to_halves(both);
    f[1] = low_nibbles_to_halves(both >> 8);
    f[2] = high_nibbles_to_halves(both);
    f[3] = high_nibbles_to_halves(both >> 8);
#endif
    const u32 scales = shared_half(first) | shared_half(second) << 16;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f[i] = fp16x2_fma(f[i], scales, HALF_NO_SUM);
    }
}

INLINE void gather(float o[HEAD_DIM / 8][4], const u32 p[4], u32 v_tile) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < HEAD_DIM / CODED_BLOCK; b++) {
        u32 f[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            v_halves(f[i], block_at(v_tile, key_of(lane, 2 * i), b, VCODES),
                     block_at(v_tile, key_of(lane, 2 * i + 1), b, VCODES), lane, b % 2 == 1);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            mma_16x8x16_fp16(o[4 * b + i], p, f[0][i], f[1][i]);
        }
    }
}
INLINE int column_of(int d, int lane, int i) {
    const int n = lane % 4 * 2 + i;
    return d / 4 * CODED_BLOCK +
           (VCODES == CODES_Q8 ? 4 * n + d % 4 : d % 4 / 2 * 16 + 2 * n + d % 2);
}
#endif

#endif
