/* block.h: ggml's block formats: conversion from and to F32, exactly as ggml's reference defines it
 * (without fused multiply-add, which -std=c17 forbids); and NF4, as bitsandbytes defines it.
 *
 *   format elements bytes  value of element i        layout of a block
 *   Q4_0   32       18     d * (q - 8)               f16 d; 16 bytes: low nibbles 0..15,
 *                                                    high 16..31
 *   Q4_1   32       20     d * q + m                 f16 d, m; nibbles as above
 *   Q5_0   32       22     d * (q - 16)              f16 d; u32 of fifth bits; nibbles
 *   Q5_1   32       24     d * q + m                 f16 d, m; u32 of fifth bits; nibbles
 *   Q8_0   32       34     d * q                     f16 d; 32 int8
 *   Q2_K   256      84     (d * s) * q - dmin * m    16 bytes s | m << 4; 64 bytes of 2 bits;
 *                                                    f16 d, dmin
 *   Q3_K   256      110    (d * (s - 32)) * (q - 4)  32 bytes high bits; 64 bytes of 2 bits;
 *                                                    12 bytes of 6-bit s; f16 d
 *   Q4_K   256      144    (d * s) * q - dmin * m    f16 d, dmin; 12 bytes of eight 6-bit (s, m);
 *                                                    128 bytes nibbles
 *   Q5_K   256      176    (d * s) * q - dmin * m    as Q4_K, 32 bytes of fifth bits before the
 *                                                    nibbles
 *   Q6_K   256      210    (d * s) * (q - 32)        128 bytes low nibbles; 64 bytes high pairs;
 *                                                    16 int8 s; f16 d
 *   MXFP4  32       17     2^(e - 127) * v(q)        byte e; nibbles as Q4_0's. v: 0, 0.5, 1, 1.5,
 *                                                    2, 3, 4, 6, and from q = 8 on the negatives
 *   NF4    64       36     d * v(q)                  f32 d = max|x|; nibbles: high 2i, low 2i + 1.
 *                                                    v: quantiles of a normal distribution
 *                                                    (Dettmers et al. 2023, "QLoRA",
 *                                                    arXiv:2305.14314, appendix E)
 *   NF4_   64       33     d * v(q)                  byte c; nibbles as NF4's. d = m(c) s + o:
 *   DOUBLE                                           m are 256 numbers, s is the same for 256
 *                                                    blocks, and o for the matrix (ibid., "double
 *                                                    quantization"): these are stored apart from
 *                                                    the blocks, see lt_nf4_double_encode
 *
 * A product with such a matrix first rounds its activations to 8 bits, block by block, as ggml does
 * (to the "partner" of its format):
 *   Q8_0  32   d = f16(max|x| / 127), q = round(x / d), halves away from 0
 *                                                              for Q4_0, Q5_0, Q8_0
 *   Q8_1  32   the same, and s = f16(d * sum q)                for Q4_1, Q5_1
 *   Q8_K  256  d = -(the x of largest |x|) / 127 in F32, q = round to nearest even
 *                                                              for the K formats
 * Q2_K and Q3_K are only decoded; so is MXFP4, but Q5_0 can hold its values. NF4 and NF4_DOUBLE
 * have no partner. */
#ifndef LT_TENSOR_BLOCK_H
#define LT_TENSOR_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/tensor.h"

#define LT_BLOCK_SMALL 32 /* Elements of a block of Q8_0, Q4_0, ...: those without sub-blocks. */
#define LT_BLOCK_NF4   64
#define LT_BLOCK_SUPER 256 /* Elements of a K block, and a multiple of all blocks. */

/* Whether lt_block_decode takes the type: F32, F16, BF16, F64 or any block type. */
bool lt_block_decodes(lt_dtype type);
/* Convert count elements (whole blocks) of `type` at src, of any alignment, to F32. */
void lt_block_decode(float *dst, lt_dtype type, const void *src, size_t count);

/* Decode count elements, from element `from` on, of MXFP4 as transformers stores it: blocks of 16
 * bytes, whose low nibbles are the elements of even index, and e of each block in scales. */
void lt_block_decode_mxfp4(float *dst, const unsigned char *blocks, const unsigned char *scales,
                           size_t from, size_t count);

/* A block of MXFP4 as one of Q5_0 with the same values: twice v is a whole number from -12 to 12,
 * and 2^(e - 128) is an F16 from 2^-24 on; with a smaller scale the values are rounded to multiples
 * of 2^-24. adjacent: transformers' order of nibbles. False: the scale is above 2^16, or it is 255,
 * which means NaN; nothing is written. */
bool lt_block_mxfp4_as_q5_0(unsigned char *dst, const unsigned char *nibbles, int e, bool adjacent);

/* The 16 values of NF4, in ascending order. */
extern const float lt_nf4_values[16];

/* NF4_DOUBLE, whole matrices: lt_block_decode and lt_block_encode do not take it.
 *
 * The scales of n blocks are lt_nf4_scales_count(n) numbers: o; m, 256 ascending numbers; and s
 * of each 256 blocks. o is the mean of all d, m the "dynamic" 8-bit numbers of bitsandbytes, s
 * the largest |d - o|, and c the number nearest to (d - o) / s, after that has been rounded to
 * one of 65,536 steps, as in bitsandbytes' CPU code. */
int64_t lt_nf4_scales_count(int64_t n_blocks);
/* Encode n blocks of NF4 at src as NF4_DOUBLE at dst, with their scales. */
void lt_nf4_double_encode(void *dst, float *scales, const void *src, int64_t n_blocks);
/* Decode n blocks at src, the first of which has the index first_block in its matrix. */
void lt_nf4_double_decode(float *dst, const void *src, const float *scales, int64_t first_block,
                          int64_t n_blocks);
/* Convert to blocks of NF4 with the same values: their scales are the d. */
void lt_nf4_double_to_nf4(void *dst, const void *src, const float *scales, int64_t first_block,
                          int64_t n_blocks);

/* Whether lt_block_encode takes the type: F32, F16, BF16, NF4 or a format with a partner. */
bool lt_block_encodes(lt_dtype type);
/* Convert count elements (whole blocks) to `type`, as ggml's quantize_row_<type>_ref does, or to
 * the nearest values of NF4. Values must be finite. */
void lt_block_encode(void *dst, lt_dtype type, const float *src, size_t count);

typedef enum { LT_PARTNER_NONE, LT_PARTNER_Q8_0, LT_PARTNER_Q8_1, LT_PARTNER_Q8_K } lt_partner;
/* NONE: products with this type are not defined. */
lt_partner lt_block_partner(lt_dtype type);
int64_t lt_partner_block(lt_partner partner); /* 32 or 256 */

/* One block of activations. sums: the sum of each 16 neighbours in Q8_K; otherwise sums[0] is the
 * sum of all 32. */
typedef struct {
    float d, s; /* As stored: rounded to F16 in Q8_0 and Q8_1. s: Q8_1 only. */
    int8_t q[LT_BLOCK_SUPER];
    int16_t sums[LT_BLOCK_SUPER / 16];
} lt_q8;
void lt_q8_encode(lt_q8 *dst, lt_partner partner, const float *x);

/* A block of a format with a partner as integers: value i is d * scale[i / group] * q[i] (- or +) m
 * * min[i / group]; simple formats have one group of scale 1. The offset of q is already
 * subtracted. */
typedef struct {
    float d, m;
    int n, group; /* Elements in the block; elements per scale. */
    int8_t q[LT_BLOCK_SUPER];
    int8_t scale[LT_BLOCK_SUPER / 16];
    uint8_t min[LT_BLOCK_SUPER / 32];
} lt_block_ints;
void lt_block_unpack(lt_block_ints *dst, lt_dtype type, const void *block);

#endif
