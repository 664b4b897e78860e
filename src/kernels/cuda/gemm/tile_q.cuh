/* tile_q.cuh: the layout of quantised weights for the operands of mma.sync: pack_q.cu writes it,
 * and gemm_q.cu reads it.
 *
 *     matrix (N, K)   slabs of 16 rows, each as its tiles of 128 columns one after another; N and K
 *                     are padded with zeros
 *     tile            PIECES x 32 lanes x 16 bytes: numbers of 8 bits, or the low 4 | 32 lanes x 8
 *                     HIGH bytes: the HIGH bits above | SCALES x 128 bytes of scales | (MINS) 128
 *                     bytes of minima, fp16
 * Lane l holds rows r = l / 4 and r + 8 of the slab, h = 0 and 1, and of each group g of 32 columns
 * eight elements e, those of quarter l % 4: element_at. Pairs j of them, e = 2j and 2j + 1, are the
 * words that mma.sync takes; the second always stands 16 bits above the first:
 *     8 bits         bytes 0, 2, 1, 3 of word i of h are elements 4 i .. 4 i + 3 in order; OFFSET
 *                    128 (Q8_0) means signed ones
 *     4 bits         in the same order, low halves of bytes are of group g, high halves of group
 *                    g + 1, g even
 *     bits above     in the bytes of their elements; HIGH 1: bit 2 g + i of word h; HIGH 2: bit 4
 *                    (g % 2) + 2 i of word 2 h + g / 2
 * A row's scales and minima: lane quarters share 16 bytes: four of row r, four of row r + 8.
 * -D BITS (4, 5, 6, 8), GROUP (elements a scale: 32, 16), MINS, OFFSET. */
#ifndef LT_CUDA_GEMM_TILE_Q_CUH
#define LT_CUDA_GEMM_TILE_Q_CUH

#include "common/types.cuh"

#define TILE_ROWS  16
#define TILE_K     128
#define LOW        (BITS == 8 ? 8 : 4)
#define HIGH       (BITS - LOW)
#define PIECES     (LOW / 2)
#define SCALES     (32 / GROUP)
#define HIGH_AT    (512 * PIECES)
#define SCALES_AT  (HIGH_AT + 256 * HIGH)
#define MINS_AT    (SCALES_AT + 128 * SCALES)
#define TILE_BYTES (MINS_AT + 128 * MINS)
static_assert(BITS == 4 || BITS == 5 || BITS == 6 || BITS == 8, "four widths");
static_assert(GROUP == 32 || GROUP == 16, "a scale for 32 or 16 elements");

/* Where element e of quarter q stands in its group of 32. A product does not care in which order it
 * meets K: what mma.sync calls k = 2q, 2q + 1, 2q + 8, 2q + 9 are elements 0..3, then 4..7. On
 * Hopper they are those columns, 16 and 16, for wgmma reads x as it is (gemm_q_sm90.cu); elsewhere
 * neighbours, so that a lane loads its piece of x at once: with 16 rows gemm_q.cu took three times
 * as long without. */
#if __CUDA_ARCH__ == 900
#define AS_COUNTED 1
#else
#define AS_COUNTED 0
#endif
INLINE int element_at(int q, int e) {
    return AS_COUNTED    ? 8 * (e / 2) + 2 * q + e % 2
           : GROUP == 32 ? 8 * q + e
                         : 16 * (e / 4) + 4 * q + e % 4;
}
/* The tile that holds column k of row n of a matrix `tiles` tiles wide. */
INLINE i64 tile_at(i64 n, i64 k, int tiles) {
    return (n / TILE_ROWS * tiles + k / TILE_K) * TILE_BYTES;
}
/* Offset in a tile of the word with elements 4 i .. 4 i + 3 (LOW 4: of two groups) of group g of 4,
 * row r of 16, quarter q. */
INLINE int word_in_tile(int g, int r, int q, int i) {
    return 512 * (LOW == 4 ? g / 2 : g) + 16 * (r % 8 * 4 + q) + 4 * (r / 8 * 2 + i);
}
/* Index of the scale of element element_at(., 4 i ..) in group g, row r, and of its minimum. */
INLINE int scale_in_tile(int g, int r, int i) {
    const int s = GROUP == 32 ? g : 2 * g + i;
    return SCALES_AT + 128 * (s / 4) + 16 * (r % 8) + 2 * (r / 8 * 4 + s % 4);
}
INLINE int least_in_tile(int g, int r) {
    return MINS_AT + 16 * (r % 8) + 2 * (r / 8 * 4 + g);
}
/* Shift of element e of group g in its word. */
INLINE int bits_in_word(int g, int e) {
    return 8 * (e % 4 / 2) + 16 * (e % 2) + (LOW == 4 ? 4 * (g % 2) : 0);
}
/* The word of the high bits of a lane's row, and the position of the bits of words i of elements in
 * each of its bytes. */
INLINE int high_word(int g, int h) {
    return HIGH == 2 ? 2 * h + g / 2 : h;
}
INLINE int high_bit(int g, int i) {
    return HIGH == 2 ? 4 * (g % 2) + 2 * i : 2 * g + i;
}
INLINE int high_in_tile(int g, int r, int q) {
    return HIGH_AT + 8 * HIGH * (r % 8 * 4 + q) + 4 * high_word(g, r / 8);
}

#endif
