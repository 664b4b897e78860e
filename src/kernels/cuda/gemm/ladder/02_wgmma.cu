/* 02_wgmma.cu: Hopper's own product: a warpgroup of 128 threads multiplies 64 x 128 x 16 straight
 * from shared memory; the copy engine fetches.
 *
 * SHAPES    any m, n, k (rows 16-byte aligned): the engine reads zeros outside the matrix.
 * MAP       128 threads, a tile of 128 x 128: two products of 64 rows, 128 registers of sums a
 *           thread.
 * MOVEMENT
 *     HBM/L2 ──TMA, 128-byte swizzle, one thread──▶ one stage (A 128 x 64, B 128 x 64)
 *         ──wgmma──▶ sums ──▶ HBM
 *     mbarrier: armed with the bytes under way, passed when they are there. No thread computes an
 *     address of an operand.
 * BOUND     nothing overlaps: a stage's copy takes longer than its 8 products of 128 clocks, and
 *           the tensor cores wait for it. Several blocks an SM hide a part.
 * LADDER    rung 2. Next: 03_ring.cu, copies ahead of the products.
 * REFS      PTX ISA 9.7.15 (wgmma), 9.7.9.27 (bulk tensor copies). */
#include "common/wgmma.cuh"
#include "gemm/ladder/ladder.cuh"

#define BM         128
#define BN         128
#define BK         64
#define TILE_BYTES (128 * 128)
WGMMA_SS(mma, 128, 0, 0)

static_assert(1023 + 2 * TILE_BYTES + 8 <= LT_GEMM_RUNG_COPIED_BYTES(BM, BN, 1), "a stage");

extern "C" __global__ void __launch_bounds__(128)
    gemm_wgmma(const __grid_constant__ tensor_map map_a, const __grid_constant__ tensor_map map_b,
               const __grid_constant__ lt_gemm_rung_args a) {
    extern __shared__ __align__(1024) u8 smem[];
    const u32 tile_a = (smem_addr(smem) + 1023) & ~1023u, tile_b = tile_a + TILE_BYTES,
              full = tile_b + TILE_BYTES;
    const int tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32;
    const int row0 = (int)blockIdx.y * BM, col0 = (int)blockIdx.x * BN;
    float sum[2][BN / 2] = {{0.0f}};

    if (tid == 0) {
        mbarrier_init(full, 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    for (int step = 0; step < div_up(a.k, BK); step++) {
        if (tid == 0) {
            mbarrier_expect(full, 2 * TILE_BYTES);
            tma_load_2d(tile_a, &map_a, full, step * BK, row0);
            tma_load_2d(tile_b, &map_b, full, step * BK, col0);
        }
        mbarrier_wait(full, (u32)step & 1u);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BK / 16; k++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                mma(sum[i], wgmma_desc(tile_a + i * 8192 + k * 32, 8192),
                    wgmma_desc(tile_b + k * 32, 8192), 1);
            }
        }
        wgmma_commit();
        wgmma_wait(0);
        __syncthreads(); /* All have read the stage, so it may be filled again. */
    }
    wgmma_pin(sum[0], BN / 2);
    wgmma_pin(sum[1], BN / 2);
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            const int row = row0 + i * 64 + warp * 16 + lane / 4, col = col0 + j * 8 + lane % 4 * 2;
            store_pair(&a, row, col, sum[i][4 * j], sum[i][4 * j + 1]);
            store_pair(&a, row + 8, col, sum[i][4 * j + 2], sum[i][4 * j + 3]);
        }
    }
}
