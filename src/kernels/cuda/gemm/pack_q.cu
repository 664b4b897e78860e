/* pack_q.cu: ggml's rows of blocks into the tiles of tile_q.cuh.
 *
 * SHAPES    src: `rows` rows of `groups` groups of 32, any alignment. dst: whole tiles; what is past the rows and columns of src becomes zero.
 * MAP       a thread a group of 32 of a row.
 * NUMERICS  a simple format's numbers are kept; a K format's d * s is rounded to fp16 once (2^-11, less than what 16-bit activations round).
 *@spec sm_80 sm_90a: TYPE=Q8_0 BITS=8 GROUP=32 MINS=0
 *@spec sm_80 sm_90a: TYPE=Q4_0 BITS=4 GROUP=32 MINS=0
 *@spec sm_80 sm_90a: TYPE=Q4_1 BITS=4 GROUP=32 MINS=1
 *@spec sm_80 sm_90a: TYPE=Q5_0 BITS=8 GROUP=32 MINS=0
 *@spec sm_80 sm_90a: TYPE=Q5_1 BITS=8 GROUP=32 MINS=1
 *@spec sm_80 sm_90a: TYPE=Q4_K BITS=4 GROUP=32 MINS=1
 *@spec sm_80 sm_90a: TYPE=Q5_K BITS=8 GROUP=32 MINS=1
 *@spec sm_80 sm_90a: TYPE=Q6_K BITS=8 GROUP=16 MINS=0 */
#include "common/blocks.cuh"
#include "gemm/tile_q.cuh"

#define THREADS 128

extern "C" __global__ void __launch_bounds__(THREADS)
pack_q(u8 *dst, const u8 *src, i64 rows, int groups, int tiles, i64 src_bytes) {
    const i64 item = (i64)blockIdx.x * THREADS + threadIdx.x, row = item / (4 * tiles);
    const int group = (int)(item % (4 * tiles)), g = group % 4, r = (int)(row % TILE_ROWS);
    u8 *const tile = dst + tile_at(row, 32 * group, tiles);
    group32 x = {{0}, {0.0f, 0.0f}, 0.0f};
    if (row >= (rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS) {
        return;
    }
    if (row < rows && group < groups) {
        unpack_group(&x, src + row * src_bytes, group);
    }
    for (int q = 0; q < 4; q++) {
        for (int first = 0; first < 8; first += 32 / BITS) {
            u32 word = 0;
            for (int e = first; e < first + 32 / BITS; e++) {
                word |= (u32)(x.u[element_at(q, e)] ^ (OFFSET == 128 ? 0x80 : 0)) << bits_in_word(e);
            }
            *(u32 *)(tile + word_in_tile(g, r, q, first / 4)) = word;
        }
    }
    for (int i = 0; i < SCALES; i++) {
        *(fp16 *)(tile + scale_in_tile(g, r, i)) = f32_to_fp16(x.scale[i]);
    }
    if (MINS) {
        *(fp16 *)(tile + least_in_tile(g, r)) = f32_to_fp16(x.least);
    }
}
