/* types.cuh: element types and their conversions, without any header of the toolkit.
 *
 * bf16 and fp16 are 16-bit words; arithmetic is always in float. DTYPE names the storage type of a
 * specialised kernel; LOAD and STORE convert one element. Vectors: 16 bytes is the widest access a
 * thread makes (vec16), VEC_ELEMS(type) elements in it. Rounding is to nearest even everywhere
 * (cvt.rn), once, at the store. */
#ifndef LT_TYPES_CUH
#define LT_TYPES_CUH

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef struct {
    u16 bits;
} bf16;
typedef struct {
    u16 bits;
} fp16;
typedef float fp32;

#define CONCAT_(a, b) a##b
#define CONCAT(a, b)  CONCAT_(a, b)
#define INLINE        static __device__ __forceinline__

INLINE float bf16_to_f32(bf16 x) {
    return __uint_as_float((u32)x.bits << 16);
}
INLINE bf16 f32_to_bf16(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
INLINE float fp16_to_f32(fp16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
INLINE fp16 f32_to_fp16(float x) {
    fp16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
INLINE float fp32_to_f32(fp32 x) {
    return x;
}
INLINE fp32 f32_to_fp32(float x) {
    return x;
}
/* Two floats to a packed pair, `lo` in the low half (the lower address). */
INLINE u32 f32x2_to_bf16x2(float lo, float hi) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    return y;
}
INLINE u32 f32x2_to_fp16x2(float lo, float hi) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    return y;
}
/* a & b | c in one instruction, also if b and c are constants, for which the compiler would use
 * two. */
INLINE u32 and_or(u32 a, u32 b, u32 c) {
    u32 y;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}
/* a * b + c of both halves, rounded once. */
INLINE u32 bf16x2_fma(u32 a, u32 b, u32 c) {
    u32 y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}
INLINE u32 fp16x2_fma(u32 a, u32 b, u32 c) {
    u32 y;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}
INLINE float bf16x2_lo(u32 x) {
    return __uint_as_float(x << 16);
}
INLINE float bf16x2_hi(u32 x) {
    return __uint_as_float(x & 0xffff0000u);
}

/* TO_F32(bf16, x), FROM_F32(fp16, y): selected by the name of the type, which may be a -D
 * constant. */
#define TO_F32(type, x)   CONCAT(type, _to_f32)(x)
#define FROM_F32(type, x) CONCAT(f32_to_, type)(x)
#define VEC_ELEMS(type)   (16 / (int)sizeof(type))

/* Unpack 16 bytes of elements into floats, and back. */
INLINE void bf16_unpack(float *f, uint4 v) {
    f[0] = bf16x2_lo(v.x), f[1] = bf16x2_hi(v.x), f[2] = bf16x2_lo(v.y), f[3] = bf16x2_hi(v.y);
    f[4] = bf16x2_lo(v.z), f[5] = bf16x2_hi(v.z), f[6] = bf16x2_lo(v.w), f[7] = bf16x2_hi(v.w);
}
INLINE uint4 bf16_pack(const float *f) {
    return make_uint4(f32x2_to_bf16x2(f[0], f[1]), f32x2_to_bf16x2(f[2], f[3]),
                      f32x2_to_bf16x2(f[4], f[5]), f32x2_to_bf16x2(f[6], f[7]));
}
INLINE void fp16_unpack2(float *f, u32 v) {
    fp16 lo, hi;
    asm("mov.b32 {%0, %1}, %2;" : "=h"(lo.bits), "=h"(hi.bits) : "r"(v));
    f[0] = fp16_to_f32(lo), f[1] = fp16_to_f32(hi);
}
INLINE void fp16_unpack(float *f, uint4 v) {
    fp16_unpack2(f, v.x), fp16_unpack2(f + 2, v.y), fp16_unpack2(f + 4, v.z),
        fp16_unpack2(f + 6, v.w);
}
INLINE uint4 fp16_pack(const float *f) {
    return make_uint4(f32x2_to_fp16x2(f[0], f[1]), f32x2_to_fp16x2(f[2], f[3]),
                      f32x2_to_fp16x2(f[4], f[5]), f32x2_to_fp16x2(f[6], f[7]));
}
INLINE void fp32_unpack(float *f, uint4 v) {
    f[0] = __uint_as_float(v.x), f[1] = __uint_as_float(v.y), f[2] = __uint_as_float(v.z),
    f[3] = __uint_as_float(v.w);
}
INLINE uint4 fp32_pack(const float *f) {
    return make_uint4(__float_as_uint(f[0]), __float_as_uint(f[1]), __float_as_uint(f[2]),
                      __float_as_uint(f[3]));
}
#define UNPACK(type, f, v) CONCAT(type, _unpack)(f, v)
#define PACK(type, f)      CONCAT(type, _pack)(f)

#endif
