/* vec.cuh: rows in pieces of W elements: 16 bytes if width and alignment allow (W = VEC_ELEMS),
 * otherwise single elements (W = 1). The launcher chooses W; DTYPE is the storage type. */
#ifndef LT_VEC_CUH
#define LT_VEC_CUH

#include "common/early.cuh"
#include "common/reduce.cuh"
#include "kernels/cuda/common/view_args.h"

/* Where row r of a tensor begins. */
INLINE i64 row_at(lt_cuda_view v, i64 row, lt_cuda_row_shape n) {
    if (n.n1 * n.n2 == 1) {
        return row * v.s[0];
    }
    const u32 r = (u32)row, i2 = r % (u32)n.n2, rest = r / (u32)n.n2;
    return (i64)(rest / (u32)n.n1) * v.s[0] + (i64)(rest % (u32)n.n1) * v.s[1] + (i64)i2 * v.s[2];
}

#if W > 1
static_assert(W == VEC_ELEMS(DTYPE), "W is 1 or a 16-byte vector");
INLINE void piece_load(float *f, const DTYPE *p) {
    UNPACK(DTYPE, f, *(const uint4 *)p);
}
/* For data that are read once: they do not displace others in the cache. */
INLINE void piece_load_stream(float *f, const DTYPE *p) {
    UNPACK(DTYPE, f, __ldcs((const uint4 *)p));
}
INLINE void piece_store(DTYPE *p, const float *f) {
    *(uint4 *)p = PACK(DTYPE, f);
}
#else
INLINE void piece_load(float *f, const DTYPE *p) {
    f[0] = TO_F32(DTYPE, *p);
}
INLINE void piece_load_stream(float *f, const DTYPE *p) {
    f[0] = TO_F32(DTYPE, *p);
}
INLINE void piece_store(DTYPE *p, const float *f) {
    *p = FROM_F32(DTYPE, f[0]);
}
#endif
/* A piece in its storage type, which takes half the registers of floats while it waits. */
#if W > 1
typedef uint4 raw;
INLINE raw raw_zero(void) {
    return make_uint4(0u, 0u, 0u, 0u);
}
INLINE raw raw_load_once(const DTYPE *p) {
    return __ldcs((const uint4 *)p);
}
INLINE void raw_unpack(float *f, raw r) {
    UNPACK(DTYPE, f, r);
}
INLINE raw raw_pack(const float *f) {
    return PACK(DTYPE, f);
}
#else
typedef DTYPE raw;
INLINE raw raw_zero(void) {
    return FROM_F32(DTYPE, 0.0f);
}
INLINE raw raw_load_once(const DTYPE *p) {
    return *p;
}
INLINE void raw_unpack(float *f, raw r) {
    f[0] = TO_F32(DTYPE, r);
}
INLINE raw raw_pack(const float *f) {
    return FROM_F32(DTYPE, f[0]);
}
#endif

INLINE raw raw_load(const DTYPE *p) {
    return *(const raw *)p;
}

/* W floats of an fp32 array (parameters, tables, gradients). */
INLINE void piece_load_f32(float *f, const float *p) {
#if W > 1
#pragma unroll
    for (int i = 0; i < W; i += 4) {
        *(float4 *)&f[i] = *(const float4 *)&p[i];
    }
#else
    f[0] = p[0];
#endif
}
INLINE void piece_store_f32(float *p, const float *f) {
#if W > 1
#pragma unroll
    for (int i = 0; i < W; i += 4) {
        *(float4 *)&p[i] = *(const float4 *)&f[i];
    }
#else
    p[0] = f[0];
#endif
}
/* W elements of a parameter that is fp32 or bf16 (PARAM). */
#ifdef PARAM
INLINE void piece_load_param(float *f, const PARAM *p) {
    if (sizeof(PARAM) == 4) {
        piece_load_f32(f, (const float *)p);
    } else if (W == 8) {
        bf16_unpack(f, *(const uint4 *)p);
    } else {
#pragma unroll
        for (int i = 0; i < W; i++) {
            f[i] = TO_F32(PARAM, p[i]);
        }
    }
}
#endif

#endif
