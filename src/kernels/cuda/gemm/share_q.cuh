/* share_q.cuh: a lane's share of a tile of quantised weights (tile_q.cuh) in registers, and what operand_q.cuh and eight_q.cuh need of it. */
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
/* x moved so that bit `from` comes to bit 4. */
INLINE u32 to_bit_4(u32 x, int from) {
    return from > 4 ? x >> (from - 4) : x << (4 - from);
}

#endif
