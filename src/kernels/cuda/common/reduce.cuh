/* reduce.cuh: sums, running sums and maxima over a warp and over a block, in a fixed order, so that
 * the same inputs always give the same bits. */
#ifndef LT_REDUCE_CUH
#define LT_REDUCE_CUH

#include "common/types.cuh"

#define WARP      32
#define ALL_LANES 0xffffffffu

/* Sum over n neighbouring lanes, a power of two; each receives it. It is a butterfly, with the same
 * tree on every lane. */
INLINE float lanes_sum(float x, const int n) {
#pragma unroll
    for (int lanes = n / 2; lanes > 0; lanes /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, lanes);
    }
    return x;
}
INLINE float lanes_max(float x, const int n) {
#pragma unroll
    for (int lanes = n / 2; lanes > 0; lanes /= 2) {
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, lanes));
    }
    return x;
}
INLINE float warp_sum(float x) {
    return lanes_sum(x, WARP);
}
INLINE float warp_max(float x) {
    return lanes_max(x, WARP);
}

INLINE u32 warp_max_u32(u32 x) {
    u32 y;
    asm("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
    return y;
}

/* Lane l receives the sum of lanes 0 to l. */
INLINE int warp_running_sum(int x) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int lanes = 1; lanes < WARP; lanes *= 2) {
        const int left = __shfl_up_sync(ALL_LANES, x, lanes);
        x += lane >= lanes ? left : 0;
    }
    return x;
}

/* Sum over a block of n_warps warps; every thread gets it. smem: n_warps floats that nobody reads
 * after the call returns on all threads; a second call must use other floats (or a barrier
 * between): there is only one barrier here. */
INLINE float block_sum(float x, float *smem, int n_warps) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    x = warp_sum(x);
    if (lane == 0) {
        smem[warp] = x;
    }
    __syncthreads();
    return warp_sum(lane < n_warps ? smem[lane] : 0.0f);
}
/* The same for 64-bit numbers. */
template <typename T> INLINE T block_sum_of(T x, T *smem, int n_warps) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, lanes);
    }
    if (lane == 0) {
        smem[warp] = x;
    }
    __syncthreads();
    x = lane < n_warps ? smem[lane] : 0;
#pragma unroll
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, lanes);
    }
    return x;
}
INLINE float block_max(float x, float *smem, int n_warps) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    x = warp_max(x);
    if (lane == 0) {
        smem[warp] = x;
    }
    __syncthreads();
    return warp_max(lane < n_warps ? smem[lane] : -__uint_as_float(0x7f800000u));
}

#endif
