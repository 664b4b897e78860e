/* sgemm_split.cu — C = alpha A B + beta C in fp32 with tiles cut along K, so that all blocks end together (stream-K).
 *
 * SHAPES    as sgemm.cu with COPY=0: any sizes, lda and ldb multiples of 4, 16-byte aligned bases.
 * IDEA      Few or badly many tiles leave SMs idle: 16 tiles on 132 SMs, or 288 in 2.2 waves that take 3. A fixed grid of blocks, as many as fit,
 *           each walks its share: first a share of the last `split_tiles` tiles cut at stage boundaries, then whole tiles.
 *           The block that begins a split tile owns it: the blocks after it leave their sums in parts[] and raise flags[]; the
 *           owner adds them in order and stores. Blocks count backwards (share = gridDim - 1 - blockIdx), so an owner waits only
 *           for blocks that were started before it: no deadlock on a busy GPU. Flags are back at 0 when the kernel ends.
 * PIPELINE  The ring of sgemm.cu runs on across segments: the next tile's first stages arrive while this one is stored.
 * MEASURED  4096 x 2304 x 768 on an H100: 44.0 TFLOP/s, whole tiles 35.5, cuBLAS 41.2; 128 x 4096 x 4096: 36.7, whole tiles 20.9,
 *           cuBLAS 44.2. At 4096^3: 47.8 against 50.9: around the longer loop ptxas finds a worse allocation of register banks.
 * NUMERICS  A tile's sum is the sum of its pieces' sums in k order: fixed by shape and GPU, the same bits every run.
 * REFS      Osama et al. 2023, arXiv:2301.03598 (Stream-K).
 *@spec sm_90a: TM=8 TN=16 LANES_M=8 WARPS_M=2 WARPS_N=4 STAGES=4 BLOCKS_PER_SM=1 GROUP_M=8 UNROLL=4 COPY=0 --ptxas-options=-O1
 *@spec sm_90a: TM=8 TN=16 LANES_M=8 WARPS_M=2 WARPS_N=2 STAGES=3 BLOCKS_PER_SM=2 GROUP_M=8 UNROLL=4 COPY=0 --ptxas-options=-O1 */
#include "sgemm/tile.cuh"

static_assert(COPY == COPY_TMA, "needs the copy engine");

/* A block's share of the work: units (stages of split tiles) [unit, unit_end), then whole tiles tile, tile + gridDim.x, .. */
typedef struct {
    int unit, unit_end, tile;
} walk;
typedef struct {
    int tile, k0, length; /* Stages [k0, k0 + length) of a tile. */
} segment;
INLINE walk walk_start(int units) {
    const i64 share = gridDim.x - 1 - blockIdx.x;
    const walk w = {(int)(share * units / gridDim.x), (int)((share + 1) * units / gridDim.x), (int)blockIdx.x};
    return w;
}
INLINE bool walk_more(const walk *w, int n_whole) {
    return w->unit < w->unit_end || w->tile < n_whole;
}
INLINE segment walk_next(walk *w, int n_whole, int n_stages) {
    segment s = {w->tile, 0, n_stages};
    if (w->unit < w->unit_end) {
        s.tile = n_whole + w->unit / n_stages;
        s.k0 = w->unit % n_stages;
        s.length = min(n_stages - s.k0, w->unit_end - w->unit);
        w->unit += s.length;
    } else {
        w->tile += gridDim.x;
    }
    return s;
}

/* Thread 0: fetch the next stage of this block's work into place s of the ring, if there is one. */
INLINE void fetch_next(walk *w, segment *now, u32 dst, u32 bar, const tensor_map *map_a, const tensor_map *map_b, int m, int n,
                       int n_whole, int n_stages) {
    if (now->length == 0) {
        if (!walk_more(w, n_whole)) {
            return;
        }
        *now = walk_next(w, n_whole, n_stages);
    }
    const int2 corner = tile_corner(now->tile, m, n);
    stage_fetch(dst, bar, map_a, map_b, corner.x, corner.y, now->k0);
    now->k0++;
    now->length--;
}
#define FETCH(s)                                                                                                                  \
    fetch_next(&fetch_walk, &fetch_now, base + (s) * STAGE_BYTES, smem_addr(&full[s]), &map_a, &map_b, m, n, n_whole, n_stages)

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
sgemm_split(OPERANDS, float4 *parts, int *flags, int split_tiles, float *c, int m, int n, int k, int ldc, float alpha, float beta) {
    extern __shared__ __align__(1024) u8 smem[];
    const u32 base = smem_addr(smem);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    /* Lanes that read the same 16 bytes are served together if they are neighbours by bit 0 or bit 1: bit 0 walks along n (pairs share
     * a), bit 1 along m (pairs share b). */
    const int lane_n = (lane & 1) | (lane >> 2 & LANES_N / 2 - 1) << 1;
    const int lane_m = (lane >> 1 & 1) | (lane >> (LANES_N == 4 ? 3 : 4)) << 1;
    const u32 a_lane = base + (warp / WARPS_N * LANES_M * TM + lane_m) * ROW_BYTES;
    const u32 b_lane = base + A_BYTES + (warp % WARPS_N * LANES_N * TN + lane_n * 4) * 4;
    const u32 swizzle = (lane_m & 7) * 16;
    const int n_stages = (k + BK - 1) / BK;
    float sum[TM][TN];
    float4 a_held[TM], b_held[2][TN / 4];
    int stage = 0;

    /* 1. Fill the ring. */
    __shared__ alignas(8) u64 full[STAGES], empty[STAGES];
    __shared__ walk fetch_walk; /* Thread 0's: how far the fetching has come. In shared memory, registers are dear. */
    __shared__ segment fetch_now;
    const int n_tiles = ((m + BM - 1) / BM) * ((n + BN - 1) / BN), n_whole = n_tiles - split_tiles;
    const int share = gridDim.x - 1 - blockIdx.x;
    walk work = walk_start(split_tiles * n_stages);
    u32 phase = 0; /* Parity of the ring's current turn. */
    if (!walk_more(&work, n_whole)) {
        return;
    }
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(smem_addr(&full[s]), 1);
            mbarrier_init(smem_addr(&empty[s]), WARPS);
        }
        mbarrier_init_fence();
        fetch_walk = work;
        fetch_now.length = 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            FETCH(s);
        }
    }
    mbarrier_wait(smem_addr(&full[0]), 0);
    /* 2. The first fragments. */
#pragma unroll
    for (int i = 0; i < TM; i++) {
        a_held[i] = a_read(a_lane + swizzle, i);
    }
#pragma unroll
    for (int j = 0; j < TN / 4; j++) {
        b_held[0][j] = lds128(b_lane + j * LANES_N * 16);
    }
    while (walk_more(&work, n_whole)) {
        const segment now = walk_next(&work, n_whole, n_stages);
        const int length = now.length;
#pragma unroll
        for (int i = 0; i < TM; i++) {
#pragma unroll
            for (int j = 0; j < TN; j++) {
                sum[i][j] = 0.0f;
            }
        }
        /* 3. Stages of quads of steps; the last quad of a stage reads ahead into the next stage, also across segments. */
        for (int t = 0; t < length; t++) {
            const u32 at = stage * STAGE_BYTES;
            const int left = stage;
#pragma unroll UNROLL
            for (int q = 0; q < QUADS; q++) {
                const u32 b_now = b_lane + at + q * 4 * BN * 4;
                u32 a_next = a_lane + at + ((q + 1) * 16 ^ swizzle), b_next = b_now + 4 * BN * 4;
                if (q == QUADS - 1) {
                    stage = stage + 1 == STAGES ? 0 : stage + 1;
                    phase ^= stage == 0;
                    if (t + 1 < length || walk_more(&work, n_whole)) {
                        mbarrier_wait(smem_addr(&full[stage]), phase);
                    }
                    a_next = a_lane + stage * STAGE_BYTES + swizzle;
                    b_next = b_lane + stage * STAGE_BYTES;
                }
                quad(sum, a_held, b_held, b_now, b_next, a_next);
            }
            __syncwarp();
            if (lane == 0) {
                mbarrier_arrive(smem_addr(&empty[left]));
            }
            if (threadIdx.x == 0 && (fetch_now.length > 0 || walk_more(&fetch_walk, n_whole))) {
                mbarrier_wait(smem_addr(&empty[left]), phase ^ (stage == 0));
                FETCH(left);
            }
        }
        /* 4. A part of a tile that another block owns is left for it; an owner adds what the others left. */
        if (now.k0 > 0) {
            float4 *to = parts + (i64)share * (BM * BN / 4);
#pragma unroll
            for (int i = 0; i < TM; i++) {
#pragma unroll
                for (int j = 0; j < TN / 4; j++) {
                    __stcg(&to[(i * (TN / 4) + j) * THREADS + threadIdx.x],
                           make_float4(sum[i][4 * j], sum[i][4 * j + 1], sum[i][4 * j + 2], sum[i][4 * j + 3]));
                }
            }
            __syncthreads();
            if (threadIdx.x == 0) {
                flag_raise(&flags[share]);
            }
            continue;
        }
        for (int missing = n_stages - length, other = share + 1; missing > 0; other++) {
            const i64 units = (i64)split_tiles * n_stages;
            const int theirs = min((int)((other + 1) * units / gridDim.x - other * units / gridDim.x), missing);
            if (theirs == 0) {
                continue;
            }
            if (threadIdx.x == 0) {
                flag_await(&flags[other]);
            }
            __syncthreads();
            const float4 *from = parts + (i64)other * (BM * BN / 4);
#pragma unroll
            for (int i = 0; i < TM; i++) {
#pragma unroll
                for (int j = 0; j < TN / 4; j++) {
                    const float4 v = __ldcg(&from[(i * (TN / 4) + j) * THREADS + threadIdx.x]);
                    sum[i][4 * j] += v.x, sum[i][4 * j + 1] += v.y, sum[i][4 * j + 2] += v.z, sum[i][4 * j + 3] += v.w;
                }
            }
            __syncthreads();
            if (threadIdx.x == 0) {
                flags[other] = 0;
            }
            missing -= theirs;
        }
        const int2 corner = tile_corner(now.tile, m, n);
        const int row = corner.x, col = corner.y;
        /* 5. C, 16 bytes at a time where it allows. */
        const bool vec = vec_ok(c, ldc);
        const int row0 = row + warp / WARPS_N * LANES_M * TM + lane_m, col0 = col + warp % WARPS_N * LANES_N * TN + lane_n * 4;
#pragma unroll
        for (int i = 0; i < TM; i++) {
#pragma unroll
            for (int j = 0; j < TN / 4; j++) {
                edge_store4(c, &sum[i][4 * j], row0 + i * LANES_M, col0 + j * LANES_N * 4, m, n, ldc, alpha, beta, vec);
            }
        }
    }
}
