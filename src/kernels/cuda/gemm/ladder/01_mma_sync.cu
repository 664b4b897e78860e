/* 01_mma_sync.cu: tensor cores as sm_80 has them: a warp multiplies 16 x 8 x 16, operands in
 * registers.
 *
 * SHAPES    any m, n, k (rows 16-byte aligned).
 * MAP       256 threads, a tile of 128 x 128 of C: 2 x 4 warps of 64 x 32 sums, 64 registers a
 *           thread.
 * MOVEMENT
 *     HBM/L2 ──cp.async, 16 bytes a thread──▶ ring of 3 stages (A 128 x 64, B 128 x 64)
 *         ──ldmatrix──▶ fragments ──mma.sync──▶ sums
 *     The 16-byte piece p of a row goes to place p ^ (row % 8): so both the eight pieces of a row
 *     (writing) and one piece of eight rows (ldmatrix) lie in different banks.
 * BOUND     a 64 x 32 warp tile reads (64 + 32) x 16 x 2 bytes for 64 x 32 x 16 products: 2 KB a
 *           1024 tensor-core clocks of sm_80, but half as many on sm_90, whose mma.sync reaches
 *           about 62 % of what wgmma does.
 * NUMERICS  f32 sums in order of k, one rounding.
 * LADDER    rung 1. Next: 02_wgmma.cu, operands straight from shared memory.
 * REFS      PTX ISA 9.7.14 (mma.sync, ldmatrix). */
#include "common/mma.cuh"
#include "gemm/ladder/ladder.cuh"

#define BM         128
#define BN         128
#define BK         64 /* elements: rows of 128 bytes */
#define THREADS    256
#define TILE_BYTES (128 * 128)

INLINE u32 piece_at(u32 tile, int row, int piece) {
    return tile + row * 128 + ((piece ^ (row & 7)) << 4);
}

/* Fetch 128 rows of 64 elements, with zeros outside the matrix. */
INLINE void fetch(u32 tile, const elem *x, i64 ld, int first_row, int rows, int first_k, int k) {
#pragma unroll
    for (int i = 0; i < 128 * 8 / THREADS; i++) {
        const int at = (int)threadIdx.x + i * THREADS, row = at / 8, piece = at % 8,
                  col = first_k + piece * 8;
        const int words = first_row + row < rows ? max_i(0, min_i(4, (k - col) / 2)) : 0;
        cp_async_16_or_zero(piece_at(tile, row, piece),
                            words > 0 ? x + (first_row + row) * ld + col : x, words);
    }
}

static_assert(STAGES * 2 * TILE_BYTES == LT_GEMM_RUNG_BYTES(BM, BN, STAGES), "the ring");

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_mma_sync(const __grid_constant__ lt_gemm_rung_args a) {
    extern __shared__ __align__(128) u8 smem[];
    const u32 ring = smem_addr(smem);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, n_steps = div_up(a.k, BK);
    const int row0 = (int)blockIdx.y * BM, col0 = (int)blockIdx.x * BN, warp_row = warp / 4 * 64,
              warp_col = warp % 4 * 32;
    float sum[4][4][4] = {{{0.0f}}};

    for (int s = 0; s < STAGES - 1; s++) { /* 1. Fill the ring except for one stage. */
        fetch(ring + s * 2 * TILE_BYTES, a.a, a.lda, row0, a.m, s * BK, a.k);
        fetch(ring + s * 2 * TILE_BYTES + TILE_BYTES, a.b, a.ldb, col0, a.n, s * BK, a.k);
        cp_async_commit();
    }
    for (int step = 0; step < n_steps; step++) {
        const u32 tile_a = ring + step % STAGES * 2 * TILE_BYTES, tile_b = tile_a + TILE_BYTES;
        const int next = step + STAGES - 1;
        cp_async_wait(STAGES - 2);
        /* This stage has arrived for all threads, and all have finished the previous one. */
        __syncthreads();
        if (next < n_steps) {
            const u32 slot = ring + next % STAGES * 2 * TILE_BYTES;
            fetch(slot, a.a, a.lda, row0, a.m, next * BK, a.k);
            fetch(slot + TILE_BYTES, a.b, a.ldb, col0, a.n, next * BK, a.k);
        }
        cp_async_commit();
#pragma unroll
        for (int k = 0; k < BK / 16; k++) { /* 2. For each 16 of k: 4 x 4 products of 16 x 8. */
            u32 x[4][4], y[2][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                ldmatrix_x4(x[i],
                            piece_at(tile_a, warp_row + i * 16 + lane % 16, k * 2 + lane / 16));
            }
#pragma unroll
            for (int j = 0; j < 2; j++) {
                ldmatrix_x4(y[j], piece_at(tile_b, warp_col + j * 16 + lane / 16 * 8 + lane % 8,
                                           k * 2 + lane / 8 % 2));
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    mma_16x8x16(sum[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int row = row0 + warp_row + i * 16 + lane / 4,
                      col = col0 + warp_col + j * 8 + lane % 4 * 2;
            store_pair(&a, row, col, sum[i][j][0], sum[i][j][1]);
            store_pair(&a, row + 8, col, sum[i][j][2], sum[i][j][3]);
        }
    }
}
