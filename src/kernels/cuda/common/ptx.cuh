/* ptx.cuh: instructions that CUDA C has no word for: asynchronous copies, barriers in shared
 * memory, the copy engine.
 *
 * Names follow the PTX manual. Addresses in shared memory are 32-bit (smem_addr). */
#ifndef LT_PTX_CUH
#define LT_PTX_CUH

#include "common/types.cuh"

INLINE u32 smem_addr(const void *p) {
    return (u32)__cvta_generic_to_shared(p);
}

/* Load 16 bytes that are not read again, bypassing the L1. */
INLINE uint4 load_once(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
/* The same for 8 bytes, in x and y. */
INLINE uint4 load_once_8(const void *p) {
    uint4 v = make_uint4(0, 0, 0, 0);
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(p));
    return v;
}

/* ---- cp.async (sm_80): 4, 8 or 16 bytes from global to shared memory without registers. src_bytes
 * < the size fills with zeros. */
INLINE void cp_async_16(u32 dst, const void *src) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}
/* Copies 4, 8 or 16 bytes; the number is a constant. */
INLINE void cp_async(u32 dst, const void *src, int bytes) {
    if (bytes == 16) {
        cp_async_16(dst, src);
    } else if (bytes == 8) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(dst), "l"(src) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dst), "l"(src) : "memory");
    }
}
INLINE void cp_async_16_hint(u32 dst, const void *src, u64 policy) { /* policy: evict_first(). */
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(dst),
                 "l"(src), "l"(policy)
                 : "memory");
}
/* 16 bytes of which the first 4 * words are read, the rest zeros. */
INLINE void cp_async_16_or_zero(u32 dst, const void *src, int words) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
                 "r"(words * 4)
                 : "memory");
}
INLINE void cp_async_4_or_zero(u32 dst, const void *src, bool take) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(dst), "l"(src),
                 "r"(take ? 4 : 0)
                 : "memory");
}
INLINE void cp_async_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Wait until at most n groups are in flight; n is a compile-time constant. */
#define cp_async_wait(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")

/* ---- mbarrier (sm_90 form): counts arrivals and bytes; `phase` is the parity being waited for. */
INLINE void mbarrier_init(u32 bar, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
/* Make initialised barriers visible to the copy engine and to the cluster. */
INLINE void mbarrier_init_fence(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
INLINE void mbarrier_arrive(u32 bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* Arrive once and announce bytes that asynchronous copies will deliver. */
INLINE void mbarrier_expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}
INLINE bool mbarrier_try_wait(u32 bar, u32 phase) {
    u32 done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
                 " selp.b32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(bar), "r"(phase)
                 : "memory");
    return done != 0;
}
/* A loop in C rather than PTX, so that the compiler may keep the address uniform. */
INLINE void mbarrier_wait(u32 bar, u32 phase) {
    while (!mbarrier_try_wait(bar, phase)) {}
}

/* A tensor map, passed by value: `const __grid_constant__ tensor_map map_a`. */
typedef struct alignas(128) {
    u64 opaque[16];
} tensor_map;

/* ---- The copy engine (TMA, sm_90). One thread issues; the barrier counts the bytes. x is the
 * contiguous coordinate. */
INLINE void tma_prefetch_map(const void *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
INLINE void tma_load_2d(u32 dst, const void *map, u32 bar, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4}], [%2];" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(x), "r"(y)
                 : "memory");
}
INLINE void tma_load_3d(u32 dst, const void *map, u32 bar, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
INLINE void tma_store_2d(const void *map, u32 src, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
            map),
        "r"(src), "r"(x), "r"(y)
        : "memory");
}
INLINE void tma_store_commit(void) {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Wait until at most n store groups still read shared memory. */
#define tma_store_wait_read(n) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(n) : "memory")
#define tma_store_wait(n)      asm volatile("cp.async.bulk.wait_group %0;" ::"n"(n) : "memory")
/* Needed between ordinary writes to shared memory and their use by the copy engine or the tensor
 * cores. */
INLINE void fence_proxy_async(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The same for global memory. */
INLINE void fence_proxy_async_global(void) {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* ---- Named barriers 1..15: a subset of the block's threads. */
INLINE void named_barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
INLINE void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- Counts between blocks, in global memory. Adds 1 behind all that the thread and those it met
 * at a barrier have written. */
INLINE void count_release(u32 *count) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}
INLINE void count_await(const u32 *count, u32 n) {
    u32 now;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(count) : "memory");
        if (now != n) {
            __nanosleep(200);
        }
    } while (now != n);
}

/* ---- Programmatic dependent launch (sm_90). */
INLINE void wait_for_previous_kernel(void) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
INLINE void let_next_kernel_start(void) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

#endif
