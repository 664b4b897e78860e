/* quant.h: the CPU's layout of quantised matrices (N, K): 16 rows are interleaved, so that each
 * 32-bit lane of a vector belongs to one row, and an instruction that multiplies four 8-bit
 * neighbours and adds them into a lane (VPDPBUSD, VPMADDUBSW) works on 16 rows at once, without
 * sums across a vector. One layout serves all instruction sets; each takes 4, 8 or 16 lanes at a
 * time.
 *
 * A group of 16 rows (rows beyond N are zero):
 *
 *     [ heads of all blocks, padded to 64 bytes ][ bodies of all blocks, 64-byte aligned ]
 *
 * Bytes of one block, r = row of the group, e = byte of a lane:
 *
 *   format      head                       body
 *   Q4_0        f16 d[16]                  nibbles[4][r][e]: low nibble element 4 i + e, high
 *                                          nibble element 16 + 4 i + e
 *   Q4_1        f16 d[16], m[16]           the same
 *   Q5_0, Q5_1  as Q4_0, Q4_1              the same, then fifth[8]: u64 each, bit 4 r + e for
 *                                          element 4 i + e
 *   Q8_0        f16 d[16]                  bytes[8][r][e]: element 4 i + e, plus 128
 *   Q4_K        f16 d[16], m[16];          for each group of 32 elements, for l in 0..7, for r:
 *               u8 scale[8][16];           two bytes, whose low nibbles are elements l and l + 8,
 *               u8 min[4][r][2]            and high nibbles elements l + 16 and l + 24
 *   Q5_K        the same                   the same, then for each group fifth[2][8]: u32, bit
 *                                          2 r + e, of low (0) and of high (1) nibbles
 *   Q6_K        f16 d[16];                 for each 32 elements, for l in 0, 2, 4, 6: nibbles of
 *               s8 scale[16][16]           l, nibbles of l + 1 as in Q4_K, then 32 bytes of bit
 *                                          pairs: low of l, high of l, low of l + 1, high of l + 1
 * The K formats keep elements of equal index modulo 8 together because ggml's definition sums those
 * apart (kernels/ref/qdot.c). */
#ifndef LT_CPU_QUANT_H
#define LT_CPU_QUANT_H

#include "tensor/block.h"
#include "tensor/ops.h"

#define LT_QUANT_ROWS 16 /* Rows of a group. */

typedef struct {
    int64_t n_groups, n_blocks;
    int64_t head, body;             /* Bytes of a block. */
    int64_t bodies_at, group_bytes; /* Offset of the bodies in a group; size of a whole group. */
} lt_quant_layout;

/* False: the type has no partner, or its rows are not whole blocks. */
bool lt_quant_layout_of(lt_quant_layout *out, lt_dtype type, int64_t n, int64_t k);

/* matmul_pack for these types. */
lt_err lt_cpu_matmul_pack_quant(lt_queue *q, const void *args);

#endif
