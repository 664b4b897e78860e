/* 03_ring.cu: a ring of stages, so that copies run ahead of products, and a tile twice as wide.
 *
 * SHAPES    any m, n, k (rows 16-byte aligned).
 * MAP       256 threads, a tile of 128 x 256 of C; each of two warpgroups owns 64 rows: 128
 *           registers of sums a thread.
 * MOVEMENT
 *     HBM/L2 ──TMA──▶ ring of STAGES x (A 128 x 64, B 256 x 64) ──wgmma──▶ sums ──▶ HBM
 *     Thread 0 asks for stage s + STAGES - 1 while stage s is multiplied; one product stays in
 *     flight (wgmma_wait(1)), so that the tensor cores always have the next.
 * BOUND     the barrier of the whole block in every step, which lets the slower warpgroup stop the
 *           other, and the tile's way out, during which nothing is multiplied.
 * LADDER    rung 3. Next: ../gemm_sm90.cu, a producer of its own and consumers that wait for data
 *           only. */
#include "common/wgmma.cuh"
#include "gemm/ladder/ladder.cuh"

#define BM          128
#define BN          256
#define BK          64
#define A_BYTES     (BM * 128)
#define STAGE_BYTES ((BM + BN) * 128)
WGMMA_SS(mma, 256, 0, 0)

INLINE void fetch(const void *map_a, const void *map_b, u32 ring, u32 full, int step, int row0,
                  int col0) {
    const u32 tile = ring + step % STAGES * STAGE_BYTES, bar = full + 8 * (step % STAGES);
    mbarrier_expect(bar, STAGE_BYTES);
    tma_load_2d(tile, map_a, bar, step * BK, row0);
    tma_load_2d(tile + A_BYTES, map_b, bar, step * BK, col0);
}

static_assert(1023 + STAGES * (STAGE_BYTES + 8) <= LT_GEMM_RUNG_COPIED_BYTES(BM, BN, STAGES),
              "the ring");

extern "C" __global__ void __launch_bounds__(256, 1)
    gemm_ring(const __grid_constant__ tensor_map map_a, const __grid_constant__ tensor_map map_b,
              const __grid_constant__ lt_gemm_rung_args a) {
    extern __shared__ __align__(1024) u8 smem[];
    const u32 ring = (smem_addr(smem) + 1023) & ~1023u, full = ring + STAGES * STAGE_BYTES;
    const int tid = (int)threadIdx.x, group = warp_uniform(tid / 128), warp = tid % 128 / 32,
              lane = tid % 32;
    const int row0 = (int)blockIdx.y * BM, col0 = (int)blockIdx.x * BN, n_steps = div_up(a.k, BK);
    float sum[BN / 2] = {0.0f};

    if (tid == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(full + 8 * s, 1);
        }
        mbarrier_init_fence();
        for (int s = 0; s < STAGES - 1 && s < n_steps; s++) {
            fetch(&map_a, &map_b, ring, full, s, row0, col0);
        }
    }
    __syncthreads();
    for (int step = 0; step < n_steps; step++) {
        const u32 tile = ring + step % STAGES * STAGE_BYTES;
        mbarrier_wait(full + 8 * (step % STAGES), (u32)(step / STAGES) & 1u);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BK / 16; k++) {
            mma(sum, wgmma_desc(tile + group * 8192 + k * 32, 8192),
                wgmma_desc(tile + A_BYTES + k * 32, 8192), 1);
        }
        wgmma_commit();
        wgmma_wait(1);   /* The previous step has been multiplied ... */
        __syncthreads(); /* ... by both: its stage is free. */
        if (tid == 0 && step + STAGES - 1 < n_steps) {
            fetch(&map_a, &map_b, ring, full, step + STAGES - 1, row0, col0);
        }
    }
    wgmma_wait(0);
    wgmma_pin(sum, BN / 2);
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        const int row = row0 + group * 64 + warp * 16 + lane / 4, col = col0 + j * 8 + lane % 4 * 2;
        store_pair(&a, row, col, sum[4 * j], sum[4 * j + 1]);
        store_pair(&a, row + 8, col, sum[4 * j + 2], sum[4 * j + 3]);
    }
}
