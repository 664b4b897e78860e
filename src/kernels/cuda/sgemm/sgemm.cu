/* sgemm.cu — C = alpha A B + beta C in fp32 on CUDA cores: the top rung of the ladder and the
 * kernel that ships.
 *
 * SHAPES    a (m, k), b (k, n), c (m, n), row-major with row strides lda, ldb, ldc; any sizes. With
 *           beta 0, c is not read.
 * CONSTANTS A lane holds TM x TN sums, a warp is LANES_M x (32 / LANES_M) lanes, a block WARPS_M x
 *           WARPS_N warps, tile BM x BN; K goes in stages of BK = 32, STAGES of them in shared
 *           memory, UNROLL quads of steps per turn of the loop. COPY: 0 copy engine (needs lda,
 *           ldb multiples of 4 and 16-byte aligned bases; sm_90), 1 cp.async of 16 bytes (the
 *           same alignment, sm_80), 2 cp.async of 4 bytes (anything). CLUSTER x PARTS blocks
 *           share a tile's K (at least this many stages of it): PARTS clusters of CLUSTER blocks
 *           each (CLUSTER > 1 needs COPY 0).
 * MOVEMENT
 *     A  HBM ──one box 32 x BM──▶ smem [BM][32], 16-byte chunks XOR-swizzled by row
 *                                               ──LDS.128: 4 k of one row──▶ a[TM]
 *     B  HBM ──one box BN x 32──▶ smem [32][BN] ──LDS.128: 4 columns of one k──▶ b[2][TN / 4]
 *        a[i].k x b[j] ──▶ sum[i][j]: 4 TM TN multiply-adds from TM + TN 16-byte reads
 *           A is NOT transposed: a lane reads four k of a row at once and uses them in four steps.
 *           So nothing but multiply-adds and 16-byte reads is left in the loop; the copy engine
 *           does the rest.
 * PIPELINE  full[s]: the copy engine's bytes have arrived. empty[s]: every warp has read its last
 *           word. Thread 0 refills a stage as soon as it is empty. Warps may drift apart, because
 *           there is no block-wide barrier in the loop. Fragments of the next step are read while
 *           this one multiplies: b has two buffers; a[i] is refilled right after its last use.
 * REGISTERS are the limit on this chip. A scheduler issues one multiply-add per clock, which
 *           needs three operands; the register file has two banks (even, odd) that give one
 *           operand per clock each. Measured on an H100 with patched machine code: 3 reads per
 *           multiply-add run at 44 TFLOP/s, 2.5 at 52, 2.25 at 57, 2.06 at 63. The operand cache
 *           helps: an operand that the next instruction uses again is not read again. Hence the
 *           order of the products: along a row of sums with a[i] held, back along the next row
 *           (b's last operand is held at the turn). ptxas at its usual level reorders this into
 *           runs of 2 to 8 and spoils it (2.16 reads and bank conflicts: 47 TFLOP/s); at -O1 it
 *           keeps the order (2.05), so the kernel is compiled with -O1.
 * BOUND     2 m n k flop / (132 SMs x 128 x 1.98 GHz = 66.9 TFLOP/s); issue slots: TM TN 4 / (4 TM
 *           TN + TM + 4 TN / 4 ...) = 95 %.
 * K SHARED  A product of few tiles leaves most SMs without work, so each of CLUSTER x PARTS blocks
 *           multiplies one part of its K. The blocks of a cluster leave their sums in shared
 *           memory, where the ring was; each reads one CLUSTER-th of the tile from all of them and
 *           adds. The clusters' sums of that share go through sums[] (which stays in the L2): the
 *           cluster that arrives last, as a counter tells, adds them all and stores C. No cluster
 *           waits for another. Clusters of 4 and 8 are not used: they start only where one GPC
 *           has room for all of their blocks, and many SMs stay idle.
 * NUMERICS  Products in k order, one sum an element, fused multiply-add: the same bits every run,
 *           and for every tile size. Where K is shared, an element is the sum of its clusters'
 *           sums, each the sum of its blocks', in k order: the same bits every run.
 * LADDER    ladder/01_naive .. 10_double_buffered; rungs 11 to 15 are this file with more and
 *           more of its parts enabled (ladder.c).
 * REFS      maxas (S. Gray) on banks and reuse, Jia et al. 2018 (arXiv:1804.06826) on Volta's
 *           banks. */
#include "sgemm/tile.cuh"

#ifndef PARTS
#define PARTS 1
#endif
#ifndef CLUSTER
#define CLUSTER 1
#endif
#define SHARERS (CLUSTER * PARTS) /* Blocks that share a tile. */
#if SHARERS > 1
#define QUARTETS (TM * TN / 4) /* Sums of a thread, in units of 16 bytes. */
#define SHARE    (QUARTETS / CLUSTER)
static_assert(QUARTETS % CLUSTER == 0, "the blocks of a cluster add equal shares");
#endif
#if CLUSTER > 1
#include "common/hopper.cuh"
static_assert(COPY == COPY_TMA, "clusters need Hopper");
static_assert(BM * BN * 4 <= STAGES * STAGE_BYTES, "the sums take the ring's place");
#endif

#if CLUSTER > 1
/* This block's share of the tile's sums, added over the blocks of the cluster. */
INLINE void cluster_add(float4 *held, const float (*sum)[TN], u8 *smem, int rank) {
    __syncthreads(); /* Every warp has read its last stage, so the memory of the ring is free. */
#pragma unroll
    for (int q = 0; q < QUARTETS; q++) {
        const float *s = &sum[q / (TN / 4)][q % (TN / 4) * 4];
        ((float4 *)smem)[q * THREADS + threadIdx.x] = make_float4(s[0], s[1], s[2], s[3]);
    }
    cluster_sync();
#pragma unroll
    for (int q = 0; q < SHARE; q++) {
        const u32 at = smem_addr(smem) + ((rank * SHARE + q) * THREADS + threadIdx.x) * 16;
        held[q] = remote_load(remote_address(at, 0));
#pragma unroll
        for (int r = 1; r < CLUSTER; r++) {
            const float4 v = remote_load(remote_address(at, r));
            held[q].x += v.x, held[q].y += v.y, held[q].z += v.z, held[q].w += v.w;
        }
    }
    cluster_sync(); /* No block may exit while another reads its shared memory. */
}
#endif
#if PARTS > 1
/* Store the share of part `part`. Returns true in the cluster that arrives last, whose held is
 * then the sum over all parts. */
INLINE bool parts_add(float4 *held, float4 *sums, int *arrived, int part) {
    __shared__ bool is_last;
    float4 *const parts = sums + threadIdx.x;
#pragma unroll
    for (int q = 0; q < SHARE; q++) {
        __stcg(&parts[(part * SHARE + q) * THREADS], held[q]);
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(arrived, 1) == PARTS - 1;
        if (is_last) {
            *arrived = 0; /* For the next call. */
        }
        __threadfence();
    }
    __syncthreads();
    if (!is_last) {
        return false;
    }
#pragma unroll
    for (int q = 0; q < SHARE; q++) {
        held[q] = __ldcg(&parts[q * THREADS]);
#pragma unroll
        for (int p = 1; p < PARTS; p++) {
            const float4 v = __ldcg(&parts[(p * SHARE + q) * THREADS]);
            held[q].x += v.x, held[q].y += v.y, held[q].z += v.z, held[q].w += v.w;
        }
    }
    return true;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    sgemm(MAPS const lt_cuda_sgemm_args w) {
    float *const c = w.c;
    const int m = w.m, n = w.n, k = w.k, ldc = w.ldc;
    const float alpha = w.alpha, beta = w.beta;
    extern __shared__ __align__(1024) u8 smem[];
    const u32 base = smem_addr(smem);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    /* Lanes that read the same 16 bytes are served together if they are neighbours by bit 0 or bit
     * 1: bit 0 walks along n (pairs share a), bit 1 along m (pairs share b). */
    const int lane_n = (lane & 1) | (lane >> 2 & LANES_N / 2 - 1) << 1;
    const int lane_m = (lane >> 1 & 1) | (lane >> (LANES_N == 4 ? 3 : 4)) << 1;
    const int2 corner = tile_corner(blockIdx.x / SHARERS, m, n);
    const int row = corner.x, col = corner.y;
#if SHARERS > 1
    const int sharer = blockIdx.x % SHARERS, rank = sharer % CLUSTER, k_stages = (k + BK - 1) / BK;
    const int first_stage = k_stages * sharer / SHARERS,
              n_stages = k_stages * (sharer + 1) / SHARERS - first_stage;
#else
    const int first_stage = 0, n_stages = (k + BK - 1) / BK;
#endif
    const u32 a_lane = base + (warp / WARPS_N * LANES_M * TM + lane_m) * ROW_BYTES;
    const u32 b_lane = base + A_BYTES + (warp % WARPS_N * LANES_N * TN + lane_n * 4) * 4;
    const u32 swizzle = (lane_m & 7) * 16;
    float sum[TM][TN] = {{0.0f}};
    float4 a_held[TM], b_held[2][TN / 4];
    int stage = 0;

    /* 1. Fill the ring. */
#if COPY == COPY_TMA
    __shared__ alignas(8) u64 full[STAGES], empty[STAGES];
    u32 phase = 0; /* Parity of the ring's current turn. */
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(smem_addr(&full[s]), 1);
            mbarrier_init(smem_addr(&empty[s]), WARPS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int t = 0; t < STAGES && t < n_stages; t++) {
            stage_fetch(base + t * STAGE_BYTES, smem_addr(&full[t]), &map_a, &map_b, row, col,
                        first_stage + t);
        }
    }
    mbarrier_wait(smem_addr(&full[0]), 0);
#else
    for (int t = 0; t < STAGES; t++) {
        if (t < n_stages) {
            stage_fetch(base + t * STAGE_BYTES, w.a, w.b, w.lda, w.ldb, row, col, first_stage + t,
                        m, n, k);
        }
        cp_async_commit();
    }
    cp_async_wait(STAGES - 1);
    __syncthreads();
#endif
    /* 2. The first fragments. */
#pragma unroll
    for (int i = 0; i < TM; i++) {
        a_held[i] = a_read(a_lane + swizzle, i);
    }
#pragma unroll
    for (int j = 0; j < TN / 4; j++) {
        b_held[0][j] = lds128(b_lane + j * LANES_N * 16);
    }
    /* 3. Stages of quads of steps; the last quad of a stage reads ahead into the next stage. */
    for (int t = 0; t < n_stages; t++) {
        const u32 at = stage * STAGE_BYTES;
        const int left = stage;
#pragma unroll UNROLL
        for (int q = 0; q < QUADS; q++) {
            const u32 b_now = b_lane + at + q * 4 * BN * 4;
            u32 a_next = a_lane + at + ((q + 1) * 16 ^ swizzle), b_next = b_now + 4 * BN * 4;
            if (q == QUADS - 1) {
                stage = stage + 1 == STAGES ? 0 : stage + 1;
#if COPY == COPY_TMA
                phase ^= stage == 0;
                if (t + 1 < n_stages) {
                    mbarrier_wait(smem_addr(&full[stage]), phase);
                }
#else
                cp_async_wait(STAGES - 3); /* Stage t + 1 has arrived, */
                /* and every warp has left stage t - 1, so its place is free. */
                __syncthreads();
                if (t > 0 && t + STAGES - 1 < n_stages) {
                    const int free = left == 0 ? STAGES - 1 : left - 1;
                    stage_fetch(base + free * STAGE_BYTES, w.a, w.b, w.lda, w.ldb, row, col,
                                first_stage + t + STAGES - 1, m, n, k);
                }
                cp_async_commit();
#endif
                a_next = a_lane + stage * STAGE_BYTES + swizzle;
                b_next = b_lane + stage * STAGE_BYTES;
            }
            quad(sum, a_held, b_held, b_now, b_next, a_next);
        }
#if COPY == COPY_TMA
        __syncwarp();
        if (lane == 0) {
            mbarrier_arrive(smem_addr(&empty[left]));
        }
        if (threadIdx.x == 0 && t + STAGES < n_stages) {
            mbarrier_wait(smem_addr(&empty[left]), phase ^ (stage == 0));
            stage_fetch(base + left * STAGE_BYTES, smem_addr(&full[left]), &map_a, &map_b, row, col,
                        first_stage + t + STAGES);
        }
#endif
    }
    /* 4. Store C, 16 bytes at a time if its alignment allows it. */
    const bool vec = vec_ok(c, ldc);
    const int row0 = row + warp / WARPS_N * LANES_M * TM + lane_m,
              col0 = col + warp % WARPS_N * LANES_N * TN + lane_n * 4;
#if SHARERS > 1
    float4 held[SHARE];
#if CLUSTER > 1
    cluster_add(held, sum, smem, rank);
#else
#pragma unroll
    for (int q = 0; q < SHARE; q++) {
        const float *s = &sum[q / (TN / 4)][q % (TN / 4) * 4];
        held[q] = make_float4(s[0], s[1], s[2], s[3]);
    }
#endif
#if PARTS > 1
    const int share = blockIdx.x / SHARERS * CLUSTER + rank;
    if (!parts_add(held, w.sums + (i64)share * (PARTS * SHARE * THREADS), &w.arrived[share],
                   sharer / CLUSTER)) {
        return;
    }
#endif
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        const int q = rank * SHARE + s;
        edge_store4(c, (const float *)&held[s], row0 + q / (TN / 4) * LANES_M,
                    col0 + q % (TN / 4) * LANES_N * 4, m, n, ldc, alpha, beta, vec);
    }
#else
#pragma unroll
    for (int i = 0; i < TM; i++) {
#pragma unroll
        for (int j = 0; j < TN / 4; j++) {
            edge_store4(c, &sum[i][4 * j], row0 + i * LANES_M, col0 + j * LANES_N * 4, m, n, ldc,
                        alpha, beta, vec);
        }
    }
#endif
}
