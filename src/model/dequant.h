/* dequant.h: ggml's block formats, back to F32 exactly as ggml defines them (no fused multiply-add: build with -ffp-contract=off, which
 * -std=c17 implies). Served: F32 F16 BF16 F64 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K.
 *
 *   format  elements  bytes  value of element i                           layout of a block
 *   Q4_0    32        18     d * (q - 8)                                  f16 d; 16 bytes: low nibbles 0..15, high 16..31
 *   Q4_1    32        20     d * q + m                                    f16 d, m; nibbles as above
 *   Q5_0    32        22     d * (q - 16)                                 f16 d; u32 of fifth bits; nibbles
 *   Q5_1    32        24     d * q + m                                    f16 d, m; u32 of fifth bits; nibbles
 *   Q8_0    32        34     d * q                                        f16 d; 32 int8
 *   Q2_K    256       84     (d * s) * q - dmin * m                       16 bytes s | m << 4; 64 bytes of 2 bits; f16 d, dmin
 *   Q3_K    256       110    (d * (s - 32)) * (q - 4)                     32 bytes high bits; 64 bytes of 2 bits; 12 bytes of 6-bit s; f16 d
 *   Q4_K    256       144    (d * s) * q - dmin * m                       f16 d, dmin; 12 bytes of eight 6-bit (s, m); 128 bytes nibbles
 *   Q5_K    256       176    (d * s) * q - dmin * m                       as Q4_K, 32 bytes of fifth bits before the nibbles
 *   Q6_K    256       210    (d * s) * (q - 32)                           128 bytes low nibbles; 64 bytes high pairs; 16 int8 s; f16 d
 */
#ifndef LT_MODEL_DEQUANT_H
#define LT_MODEL_DEQUANT_H

#include <stdbool.h>
#include <stddef.h>

#include "data/gguf.h"

bool lt_dequant_serves(lt_ggml_type type);

/* count elements (a multiple of the block) of `type` at src (any alignment) into dst. type must be served. */
void lt_dequant(float *dst, lt_ggml_type type, const unsigned char *src, size_t count);

#endif
