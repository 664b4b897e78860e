/* blocks.cuh: ggml's block formats as integers (layouts: tensor/block.h). TYPE is one of Q4_0
 * Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K. A group of 32 neighbours of a row is held as unsigned
 * numbers u < 256; the value of element i is scale[i / 16] * (u - OFFSET) - least. */
#ifndef LT_BLOCKS_CUH
#define LT_BLOCKS_CUH

#include "common/types.cuh"

#define IS_Q4_0 0
#define IS_Q4_1 1
#define IS_Q5_0 2
#define IS_Q5_1 3
#define IS_Q8_0 4
#define IS_Q4_K 5
#define IS_Q5_K 6
#define IS_Q6_K 7
#define KIND    CONCAT(IS_, TYPE)
#if KIND <= 4
#define BLOCK_GROUPS 1 /* Groups of 32 elements in a block. */
#else
#define BLOCK_GROUPS 8
#endif
#if KIND == 0
#define BLOCK_BYTES 18
#define OFFSET      8
#elif KIND == 1
#define BLOCK_BYTES 20
#define OFFSET      0
#elif KIND == 2
#define BLOCK_BYTES 22
#define OFFSET      16
#elif KIND == 3
#define BLOCK_BYTES 24
#define OFFSET      0
#elif KIND == 4
#define BLOCK_BYTES 34
#define OFFSET      128
#elif KIND == 5
#define BLOCK_BYTES 144
#define OFFSET      0
#elif KIND == 6
#define BLOCK_BYTES 176
#define OFFSET      0
#else
#define BLOCK_BYTES 210
#define OFFSET      32
#endif

typedef struct {
    u8 u[32];
    float scale[2], least;
} group32;

INLINE float half_at(const u8 *p) {
    fp16 x;
    x.bits = (u16)(p[0] | p[1] << 8);
    return fp16_to_f32(x);
}
INLINE u32 word_at(const u8 *p) {
    return (u32)p[0] | (u32)p[1] << 8 | (u32)p[2] << 16 | (u32)p[3] << 24;
}

#if KIND <= 4
INLINE void unpack_simple(group32 *out, const u8 *b) {
    const bool has_min = KIND == 1 || KIND == 3;
    out->scale[0] = out->scale[1] = half_at(b);
    out->least = has_min ? -half_at(b + 2) : 0.0f;
    b += has_min ? 4 : 2;
    const u32 fifth = KIND == 2 || KIND == 3 ? word_at(b) : 0;
    b += KIND == 2 || KIND == 3 ? 4 : 0;
    for (int i = 0; i < 32; i++) {
        const u32 nibble = i < 16 ? b[i % 16] & 15 : b[i % 16] >> 4;
        out->u[i] = KIND == 4 ? (u8)(b[i] ^ 0x80) : (u8)(nibble | (fifth >> i & 1) << 4);
    }
}
#elif KIND <= 6
INLINE void unpack_k(group32 *out, const u8 *b, int g) {
    const u8 *s = b + 4, *high = b + 16, *low = b + (KIND == 6 ? 48 : 16) + g / 2 * 32;
    const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
    const int least = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4;
    out->scale[0] = out->scale[1] = half_at(b) * (float)scale;
    out->least = half_at(b + 2) * (float)least;
    for (int i = 0; i < 32; i++) {
        const int nibble = g % 2 == 0 ? low[i] & 15 : low[i] >> 4;
        out->u[i] = (u8)(nibble | (KIND == 6 ? (high[i] >> g & 1) << 4 : 0));
    }
}
#else
INLINE void unpack_6(group32 *out, const u8 *b, int g) {
    const int half = g / 4, quarter = g % 4;
    const u8 *low = b + 64 * half + 32 * (quarter % 2), *high = b + 128 + 32 * half;
    for (int i = 0; i < 2; i++) {
        out->scale[i] = half_at(b + 208) * (float)(signed char)b[192 + 2 * g + i];
    }
    out->least = 0.0f;
    for (int i = 0; i < 32; i++) {
        const int nibble = quarter < 2 ? low[i] & 15 : low[i] >> 4;
        out->u[i] = (u8)(nibble | (high[i] >> 2 * quarter & 3) << 4);
    }
}
#endif

/* Elements [32 group, 32 group + 32) of a row. */
INLINE void unpack_group(group32 *out, const u8 *row, i64 group) {
    const u8 *b = row + group / BLOCK_GROUPS * BLOCK_BYTES;
#if KIND <= 4
    unpack_simple(out, b);
#elif KIND <= 6
    unpack_k(out, b, (int)(group % BLOCK_GROUPS));
#else
    unpack_6(out, b, (int)(group % BLOCK_GROUPS));
#endif
}

#endif
