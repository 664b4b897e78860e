/* sm80.cuh: shared by fwd_sm80.cu and bwd_sm80.cu: their arguments, tiles in shared memory, and the
 * two products of attention on mma.sync.
 *
 * A warp owns 16 TILES rows of the block's; a thread holds of each 16 x 8 piece of a product the
 * elements (lane / 4 [+ 8], lane % 4 * 2 [+ 1]), as mma.cuh says. So a row lies in four threads, a
 * product's sums have the layout of the next one's left operand, and no warp ever needs what
 * another computed. */
#ifndef LT_CUDA_ATTENTION_SM80_CUH
#define LT_CUDA_ATTENTION_SM80_CUH

#include "attention/mask.cuh"
#include "common/mma.cuh"

/* Two blocks per SM: a thread may have 255 registers, and uses them. */
#define THREADS 128
#define ROWS    (64 * TILES)             /* of a block */
#define LINE    LT_ATTN_SM80_LINE(WIDTH) /* bytes of a row in shared memory */
/* threads that copy a row, 16 bytes each; some are idle if WIDTH / 8 is not a power of two */
#define LANES (WIDTH <= 64 ? 8 : WIDTH <= 128 ? 16 : 32)
static_assert(WIDTH == 64 || WIDTH == 96 || WIDTH == 128 || WIDTH == 192 || WIDTH == 256,
              "head width is padded to one of these");

/* Address of 16 bytes in a tile of `rows` rows: columns of 64 elements one after another, with
 * pieces swizzled by the row so that ldmatrix has no bank conflicts. */
INLINE u32 piece_at(u32 tile, int rows, int row, int piece) {
    return tile + piece / 8 * rows * 128 + row * 128 + ((piece % 8 ^ (row & 7)) << 4);
}
/* From piece c of a row, c < 2, to piece 2 i + c: one operation on one address, where piece_at's
 * own way held a register for each swizzled piece (forward: 136 bytes of spills). Tiles begin on
 * 128 bytes. */
INLINE u32 piece_on(u32 at, int rows, int i) {
    return (at ^ (u32)(i % 4 * 32)) + i / 4 * rows * 128;
}
/* Start to copy rows first .. of x to a tile; zeros from row `limit` and column `width` on. */
INLINE void fetch(u32 tile, int rows, const elem *x, i64 stride, int first, int limit, int width) {
    const int piece = (int)threadIdx.x % LANES, row = (int)threadIdx.x / LANES;
    const elem *from = x + (i64)first * stride + (row * (int)stride + piece * 8);
    if (WIDTH / 8 == LANES || piece < WIDTH / 8) {
#pragma unroll 2
        for (int i = 0; i < rows; i += THREADS / LANES) {
            const bool inside = first + row + i < limit && piece * 8 < width;
            cp_async_16_or_zero(piece_at(tile, rows, row + i, piece),
                                inside ? from + i * stride : x, inside ? 4 : 0);
        }
    }
}

/* sums += x y^T for a warp's rows of tile x (of ROWS) and all rows of tile y (of STEP). */
INLINE void product_of_rows(float sums[TILES][STEP / 8][4], u32 x, u32 y) {
    const int lane = (int)threadIdx.x % 32, first = (int)threadIdx.x / 32 * 16 * TILES;
    const u32 from_x = piece_at(x, ROWS, first + lane % 16, lane / 16),
              from_y = piece_at(y, STEP, lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
    for (int d = 0; d < WIDTH / 16; d++) {
        u32 left[TILES][4];
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            ldmatrix_x4(left[m], piece_on(from_x, ROWS, d) + m * 16 * 128);
        }
#pragma unroll
        for (int i = 0; i < STEP / 16; i++) {
            u32 right[4];
            ldmatrix_x4(right, piece_on(from_y, STEP, d) + i * 16 * 128);
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                mma_16x8x16(sums[m][2 * i], left[m], right[0], right[1]);
                mma_16x8x16(sums[m][2 * i + 1], left[m], right[2], right[3]);
            }
        }
    }
}
/* out += p y, where p is rounded to 16 bits in its registers; tile y has STEP rows. */
INLINE void product_of_sums(float out[TILES][WIDTH / 8][4], const float p[TILES][STEP / 8][4],
                            u32 y) {
    const int lane = (int)threadIdx.x % 32;
    const u32 from_y = piece_at(y, STEP, lane / 8 % 2 * 8 + lane % 8, lane / 16);
#pragma unroll
    for (int n = 0; n < STEP / 16; n++) {
        u32 left[TILES][4];
#pragma unroll
        for (int m = 0; m < TILES; m++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                left[m][e] = PACK_ELEM(p[m][2 * n + e / 2][e % 2 * 2],
                                       p[m][2 * n + e / 2][e % 2 * 2 + 1]);
            }
        }
#pragma unroll
        for (int i = 0; i < WIDTH / 16; i++) {
            u32 right[4];
            ldmatrix_x4_trans(right, piece_on(from_y, STEP, i) + n * 16 * 128);
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                mma_16x8x16(out[m][2 * i], left[m], right[0], right[1]);
                mma_16x8x16(out[m][2 * i + 1], left[m], right[2], right[3]);
            }
        }
    }
}

/* Store a warp's rows, times scale, through its own rows of a tile that no other warp reads: whole
 * rows are written, 16 bytes per thread. `first` is the block's first row. */
INLINE void store_rows(elem *to, i64 stride, int first, int limit, int width,
                       const float x[TILES][WIDTH / 8][4], const float scale[TILES][2], u32 tile) {
    const int lane = (int)threadIdx.x % 32, row0 = (int)threadIdx.x / 32 * 16 * TILES;
#pragma unroll
    for (int m = 0; m < TILES; m++) {
#pragma unroll
        for (int i = 0; i < WIDTH / 8; i++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                st_shared_s32(piece_at(tile, ROWS, row0 + m * 16 + half * 8 + lane / 4, i) +
                                  lane % 4 * 4,
                              (int)PACK_ELEM(x[m][i][half * 2] * scale[m][half],
                                             x[m][i][half * 2 + 1] * scale[m][half]));
            }
        }
    }
    __syncwarp();
    for (int row = row0 + lane / LANES, piece = lane % LANES; row < row0 + 16 * TILES;
         row += 32 / LANES) {
        if (piece * 8 < width && first + row < limit) {
            *(uint4 *)(to + (i64)(first + row) * stride +
                       piece * 8) = ld_shared_v4(piece_at(tile, ROWS, row, piece));
        }
    }
}

/* The score in units of log2 from q.k: see mask.cuh. *slope: its derivative by scale * q.k. */
INLINE float logit_of(const lt_attn_sm80_args *w, float product, float alibi, int key, int position,
                      float *slope) {
    float x = product * w->a.scale;
    *slope = 1.0f;
    if (SOFTCAP) {
        const float th = tanh_of(__fdividef(x, w->a.softcap));
        x = w->a.softcap * th;
        *slope = 1.0f - th * th;
    }
    x *= LOG2E;
    return ALIBI ? x + alibi * (float)(key - position) : x;
}
INLINE float alibi_of(const lt_attn_sm80_args *w, int head) {
    return ALIBI ? w->a.alibi[head] * LOG2E : 0.0f;
}

#endif
