/* share_q.cuh: a lane's share of a tile of quantised weights (tile_q.cuh) in registers, and the
 * parts that operand_q.cuh and eight_q.cuh need. */
#ifndef LT_CUDA_GEMM_SHARE_Q_CUH
#define LT_CUDA_GEMM_SHARE_Q_CUH

#include "common/mma.cuh"
#include "gemm/tile_q.cuh"

typedef struct {
    uint4 v[PIECES], high, scale[SCALES], least;
} share;

INLINE u32 word_of(uint4 v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
/* Number i (0..3: row r, 4..7: row r + 8) of a lane's scales. */
INLINE float scale_of(uint4 v, int i) {
    fp16 x;
    x.bits = (u16)(word_of(v, i / 2) >> 16 * (i % 2));
    return fp16_to_f32(x);
}
/* This lane's share of a tile in shared memory. */
__attribute__((unused)) INLINE void take_share(share *s, u32 tile) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        s->v[p] = ld_shared_v4(tile + 512 * p + 16 * lane);
    }
    if (HIGH == 2) {
        s->high = ld_shared_v4(tile + HIGH_AT + 16 * lane);
    } else if (HIGH == 1) {
        s->high = make_uint4((u32)ld_shared_s32(tile + HIGH_AT + 8 * lane),
                             (u32)ld_shared_s32(tile + HIGH_AT + 8 * lane + 4), 0, 0);
    }
#pragma unroll
    for (int i = 0; i < SCALES; i++) {
        s->scale[i] = ld_shared_v4(tile + SCALES_AT + 128 * i + lane / 4 * 16);
    }
    if (MINS) {
        s->least = ld_shared_v4(tile + MINS_AT + lane / 4 * 16);
    }
}
/* x shifted so that bit `from` becomes bit 4. */
INLINE u32 to_bit_4(u32 x, int from) {
    return from > 4 ? x >> (from - 4) : x << (4 - from);
}

#endif
