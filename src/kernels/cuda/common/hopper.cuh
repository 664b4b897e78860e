/* hopper.cuh: what kernels for Hopper's tensor cores need beyond ptx.cuh: clusters, multicast and
 * 4-D copies, adding copies, register hand-over between warpgroups, 8x8 matrix stores, and the
 * 16-bit element type of a specialisation.
 *
 * One function is one PTX instruction. The rules a caller must keep:
 *   - an mbarrier of a ring: full[s] expects one arrival (the producer's, which carries the byte
 *     count), empty[s] one a consumer warpgroup (times the blocks of a cluster when tiles are
 *     multicast); waiting uses the parity of the phase, which flips on wrap;
 *   - shared memory written by ordinary stores and then read by the copy engine or the tensor
 *     cores: fence_proxy_async() in every writing thread, then a barrier, then the asynchronous
 *     read;
 *   - a tensor map lies in a `const __grid_constant__` parameter. */
#ifndef LT_HOPPER_CUH
#define LT_HOPPER_CUH

#include "common/ptx.cuh"

/* ---- Element type: -D DTYPE=bf16 (default) or fp16; fp32 has no pairs in a word (the oracle of
 * attention). */
#ifndef DTYPE
#define DTYPE bf16
#endif
typedef DTYPE elem;
#define PTX_NAME_bf16     "bf16"
#define PTX_NAME_fp16     "f16"
#define ELEM_PTX          CONCAT(PTX_NAME_, DTYPE)
#define ELEM_F32(x)       TO_F32(DTYPE, x)
#define PACK_ELEM(lo, hi) CONCAT(CONCAT(f32x2_to_, DTYPE), x2)(lo, hi)

#define IN_PAIRS_bf16 1
#define IN_PAIRS_fp16 1
#define IN_PAIRS_fp32 0
#if CONCAT(IN_PAIRS_, DTYPE)
INLINE float elem_lo(u32 pair) {
    elem x;
    x.bits = (u16)(pair & 0xffffu);
    return ELEM_F32(x);
}
INLINE float elem_hi(u32 pair) {
    elem x;
    x.bits = (u16)(pair >> 16);
    return ELEM_F32(x);
}
#endif

INLINE float exp2_fast(float x) { /* 2^x to 2 ulp; -inf gives 0. */
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
INLINE int min_i(int a, int b) {
    return a < b ? a : b;
}
INLINE int max_i(int a, int b) {
    return a > b ? a : b;
}
INLINE int div_up(int a, int b) {
    return (a + b - 1) / b;
}

/* Tells the compiler that the whole warp has the same value, so that it may use a uniform
 * register. */
INLINE int warp_uniform(int x) {
    return __shfl_sync(0xffffffffu, x, 0);
}

/* Arrive at the same barrier in block `cta` of the cluster. */
INLINE void mbarrier_arrive_remote(u32 bar, u32 cta) {
    asm volatile("{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1;"
                 " mbarrier.arrive.shared::cluster.b64 _, [remote]; }" ::"r"(bar),
                 "r"(cta)
                 : "memory");
}
/* The address in block `rank` of the cluster that corresponds to this address. */
INLINE u32 remote_address(u32 address, int rank) {
    u32 y;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(y) : "r"(address), "r"(rank));
    return y;
}
/* Load 16 bytes from a block of the cluster, at an address of remote_address. */
INLINE float4 remote_load(u32 address) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address));
    return v;
}
/* Store to a block of the cluster, whose barrier counts the bytes. */
INLINE void st_async_v2(u32 address, float a, float b, u32 bar) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
            address),
        "f"(a), "f"(b), "r"(bar)
        : "memory");
}
INLINE void st_async_v4(u32 address, float a, float b, float c, float d, u32 bar) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32"
                 " [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
                 "f"(a), "f"(b), "f"(c), "f"(d), "r"(bar)
                 : "memory");
}
INLINE void tensor_map_prefetch(const void *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
INLINE void tma_load_2d_multicast(u32 dst, const void *map, u32 bar, int x, int y, u32 cta_mask) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster"
                 " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "h"((unsigned short)cta_mask)
                 : "memory");
}
/* Data that are not read again should leave the L2 first. */
INLINE u64 evict_first(void) {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
INLINE void tma_load_2d_hint(u32 dst, const void *map, u32 bar, int x, int y, u64 policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint"
                 " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "l"(policy)
                 : "memory");
}
INLINE void tma_load_3d_hint(u32 dst, const void *map, u32 bar, int x, int y, int z, u64 policy) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint"
                 " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "l"(policy)
                 : "memory");
}
INLINE void tma_load_4d(u32 dst, const void *map, u32 bar, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
INLINE void tma_load_4d_multicast(u32 dst, const void *map, u32 bar, int x, int y, int z, int w,
                                  u32 cta_mask) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster"
                 " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w), "h"((unsigned short)cta_mask)
                 : "memory");
}
/* Prefetch into the L2. */
INLINE void tma_prefetch_4d(const void *map, int x, int y, int z, int w) {
    asm volatile(
        "cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map),
        "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
}
INLINE void tma_store_4d(const void *map, u32 src, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group"
                 " [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(src), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
/* global += shared, in the map's type */
INLINE void tma_add_2d(const void *map, u32 src, int x, int y) {
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"
                 " [%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(src), "r"(x), "r"(y)
                 : "memory");
}
INLINE void tma_store_3d(const void *map, u32 src, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::
            "l"(map),
        "r"(src), "r"(x), "r"(y), "r"(z)
        : "memory");
}
INLINE void tma_add_3d(const void *map, u32 src, int x, int y, int z) {
    asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group"
                 " [%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(src), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
/* Copies contiguous bytes, a multiple of 16, with both ends 16-byte aligned. */
INLINE void bulk_load(u32 dst, const void *src, u32 bytes, u32 bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(dst),
        "l"(src), "r"(bytes), "r"(bar)
        : "memory");
}
INLINE void bulk_store(void *dst, u32 src, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src),
                 "r"(bytes)
                 : "memory");
}
INLINE void bulk_load_hint(u32 dst, const void *src, u32 bytes, u32 bar, u64 policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1], %2, [%3], %4;" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(bar), "l"(policy)
                 : "memory");
}
INLINE void bulk_prefetch(const void *src, u32 bytes) { /* To the L2. */
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(src), "r"(bytes) : "memory");
}
/* Copies to shared memory of a block of the cluster, whose barrier counts the bytes; the addresses
 * are of remote_address. */
INLINE void bulk_send(u32 dst, u32 src, u32 bytes, u32 bar) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];" ::"r"(dst),
                 "r"(src), "r"(bytes), "r"(bar)
                 : "memory");
}
INLINE void bulk_add_s32(void *dst, u32 src, u32 bytes) {
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], %2;" ::"l"(dst),
        "r"(src), "r"(bytes)
        : "memory");
}

/* ---- clusters, registers */
INLINE u32 cluster_cta_rank(void) {
    u32 r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
INLINE void cluster_sync(void) {
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::
            : "memory");
}
#define regs_grow(n)   asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n))
#define regs_shrink(n) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n))

/* ---- 8x8 matrices of 16-bit elements, registers to shared memory; lane i gives the address of row
 * i % 8 of matrix i / 8. */
/* ---- 8x8 matrices of 16-bit elements between registers and shared memory; lane i gives the
 * address of row i (i < 32). */
INLINE void stmatrix_x4(u32 addr, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}
INLINE void stmatrix_x4_trans(u32 addr, u32 a, u32 b, u32 c, u32 d) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr),
        "r"(a), "r"(b), "r"(c), "r"(d)
        : "memory");
}
INLINE void st_shared_v2(u32 addr, float a, float b) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(addr), "f"(a), "f"(b) : "memory");
}
INLINE void st_shared_v2_s32(u32 addr, int a, int b) {
    asm volatile("st.shared.v2.s32 [%0], {%1, %2};" ::"r"(addr), "r"(a), "r"(b) : "memory");
}
INLINE void st_shared_s32(u32 addr, int x) {
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(addr), "r"(x) : "memory");
}
INLINE int ld_shared_s32(u32 addr) {
    int x;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(x) : "r"(addr) : "memory");
    return x;
}
INLINE void st_shared_v4_s32(u32 addr, int a, int b, int c, int d) {
    asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}
INLINE uint4 ld_shared_v4(u32 addr) {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(addr)
                 : "memory");
    return x;
}
INLINE void st_shared_v4(u32 addr, uint4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(x.x), "r"(x.y),
                 "r"(x.z), "r"(x.w)
                 : "memory");
}
INLINE void ld_shared_v2(u32 addr, float *a, float *b) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(*a), "=f"(*b) : "r"(addr) : "memory");
}
INLINE float ld_shared_f32(u32 addr) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(addr) : "memory");
    return x;
}

#endif
