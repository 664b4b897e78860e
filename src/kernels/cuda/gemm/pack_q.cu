/* pack_q.cu: ggml's rows of blocks into the tiles of tile_q.cuh.
 *
 * SHAPES    src: `rows` rows of `groups` groups of 32, any alignment. dst: whole tiles; what is
 *           past the rows and columns of src becomes zero.
 * MAP       a thread 128 columns of a row: no two write the same byte.
 * NUMERICS  a simple format's numbers are kept; a K format's d * s is rounded to fp16 once (2^-11,
 *           less than what 16-bit activations round). */
#include "common/blocks.cuh"
#include "gemm/tile_q.cuh"
#include "kernels/cuda/gemm/pack_q_args.h"

#define THREADS 128

/* Store group g of the tile's row r; its high bits are or-ed into their bytes. */
INLINE void put_group(u8 *tile, const group32 *x, int g, int r) {
    for (int q = 0; q < 4; q++) {
        for (int first = 0; first < 8; first += 4) {
            u32 word = 0;
            for (int e = first; e < first + 4; e++) {
                const u32 low = LOW == 4 ? x->u[element_at(q, e)] & 15u
                                         : x->u[element_at(q, e)] ^ (OFFSET == 128 ? 0x80u : 0u);
                word |= low << bits_in_word(g, e);
            }
            u32 *const to = (u32 *)(tile + word_in_tile(g, r, q, first / 4));
            *to = LOW == 4 && g % 2 == 1 ? *to | word : word;
        }
        for (int e = 0; HIGH > 0 && e < 8; e++) {
            tile[high_in_tile(g, r, q) + bits_in_word(0, e) / 8] |= (u8)(x->u[element_at(q, e)] >>
                                                                         4 << high_bit(g, e / 4));
        }
    }
    for (int i = 0; i < SCALES; i++) {
        *(fp16 *)(tile + scale_in_tile(g, r, i)) = f32_to_fp16(x->scale[i]);
    }
    if (MINS) {
        *(fp16 *)(tile + least_in_tile(g, r)) = f32_to_fp16(x->least);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) pack_q(const lt_cuda_pack_q_args a) {
    const i64 item = (i64)blockIdx.x * THREADS + threadIdx.x, row = item / a.tiles;
    const int first = (int)(item % a.tiles) * 4, r = (int)(row % TILE_ROWS);
    if (row >= (a.rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS) {
        return;
    }
    u8 *const tile = a.dst + tile_at(row, 32 * first, a.tiles);
    for (int i = 0; i < 16 * HIGH; i++) { /* This row's words of four quarters. */
        const int q = i / (4 * HIGH), byte = i % (4 * HIGH);
        tile[HIGH_AT + 8 * HIGH * (r % 8 * 4 + q) + 4 * HIGH * (r / 8) + byte] = 0;
    }
    for (int g = 0; g < 4; g++) {
        group32 x = {{0}, {0.0f, 0.0f}, 0.0f};
        if (row < a.rows && first + g < a.groups) {
            unpack_group(&x, a.src + row * a.src_bytes, first + g);
        }
        put_group(tile, &x, g, r);
    }
}
