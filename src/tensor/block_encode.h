/* block_encode.h: between block_encode.c and block_encode_k.c: one block of 256 elements each. */
#ifndef LT_TENSOR_BLOCK_ENCODE_H
#define LT_TENSOR_BLOCK_ENCODE_H

#include "tensor/block.h"

void lt_block_encode_q4_k(unsigned char *b, const float *x);
void lt_block_encode_q5_k(unsigned char *b, const float *x);
void lt_block_encode_q6_k(unsigned char *b, const float *x);

#endif
