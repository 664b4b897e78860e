/* block_encode.h: what block_encode_k.c provides for block_encode.c: each function encodes one
 * block of 256 elements. */
#ifndef LT_TENSOR_BLOCK_ENCODE_H
#define LT_TENSOR_BLOCK_ENCODE_H

#include "tensor/block.h"

void lt_block_encode_q4_k(unsigned char *b, const float *x);
void lt_block_encode_q5_k(unsigned char *b, const float *x);
void lt_block_encode_q6_k(unsigned char *b, const float *x);

#endif
