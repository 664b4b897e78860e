/* decode.cu: attention of 1 to 8 new tokens a sequence against a paged key/value cache, split over the sequence; for serving.
 *
 * SHAPES    q, out (B, T, H, D) contiguous; pages (n, PAGE, G, D) of K and of V; table (B, table_ld) page numbers; kv_len (B), the new tokens
 *           included. D = HEAD_DIM, a multiple of 64 up to 256; PAGE a multiple of 16; T * H / G rows share a key head, 16 a row tile.
 * MAP       decode_split: a block of WARPS warps for (split, key head and row tile, sequence); warp w takes keys 16 (w, w + WARPS, ..) of
 *           the split's range. decode_combine: a warp a row, adds the splits in order.
 * MOVEMENT
 *     Q 16 rows ──▶ fragments in registers, once
 *     K, V 16 keys ──cp.async, 16 bytes a lane──▶ ring of STAGES x (K, V) of this warp in smem, rows swizzled ──ldmatrix──▶ mma.sync
 *     S (16, 16) ─ exp2, running maximum ─▶ P fragments ──mma──▶ O (16, D) f32 registers
 *     warps ──smem──▶ one (max, sum, O) a split ──▶ HBM ──decode_combine──▶ out
 *     A warp waits only for its own copies: no block barrier in the loop.
 * BOUND     memory: 4 D bytes a key and key head. STAGES - 1 tiles of 64 D bytes in flight a warp: with 8 warps an SM and D = 128,
 *           128 KB, five times what 3 TB/s x 1 us asks of an SM.
 * MEASURED  docs/SPEED.md, "attention".
 * NUMERICS  f32 sums; fixed order (keys of a warp, warps, splits): bit-identical run to run for the same number of splits.
 * REFS      Flash-decoding (Dao et al. 2023); PagedAttention, Kwon et al. 2023 (arXiv:2309.06180).
 *@spec sm_80 sm_90a: HEAD_DIM=128 PAGE=16
 *@spec sm_80 sm_90a: HEAD_DIM=128 PAGE=64
 *@spec sm_80 sm_90a: HEAD_DIM=64 PAGE=16
 *@spec sm_80 sm_90a: HEAD_DIM=128 PAGE=128 DTYPE=fp16 */
#include "attention/mask.cuh"
#include "common/mma.cuh"

#ifndef STAGES
#define STAGES (HEAD_DIM <= 64 ? 6 : (HEAD_DIM <= 128 ? 3 : 2))
#endif
#define WARPS      4
#define KEYS       16
#define CHUNKS     (HEAD_DIM / 8) /* 16-byte pieces of a row */
#define TILE_BYTES (KEYS * HEAD_DIM * 2)
#define RING_BYTES (STAGES * 2 * TILE_BYTES) /* of one warp */
static_assert(PAGE % KEYS == 0, "a tile of keys lies in one page");
static_assert(HEAD_DIM % 64 == 0 && HEAD_DIM <= 256, "head width");

typedef struct {
    int batch, q_heads, kv_heads, q_tokens, splits, table_ld, window; /* window 0: none */
    float scale;
    const elem *q, *k, *v;
    const int *table, *kv_len;
    elem *out;
    float *part; /* (B, G * row tiles, splits, 16, D + 2): O, max, sum */
} decode_args;

/* Swizzled place of 16-byte piece c of row r. */
INLINE u32 place(u32 tile, int r, int c) {
    return tile + (u32)((r * CHUNKS + (c & ~7) + ((c ^ r) & 7 & (CHUNKS - 1))) * 16);
}

/* 1. Start the copies of key tile `t` (16 keys) into slot; nothing when t is past the end. */
INLINE void fetch(const decode_args *a, u32 ring, int slot, int t, int end, int b, int g) {
    const int lane = (int)threadIdx.x % 32;
    const u32 k_tile = ring + slot * 2 * TILE_BYTES, v_tile = k_tile + TILE_BYTES;
    if (t < end) {
        const i64 page = a->table[(i64)b * a->table_ld + t * KEYS / PAGE];
        const i64 first = ((page * PAGE + t * KEYS % PAGE) * a->kv_heads + g) * HEAD_DIM;
#pragma unroll
        for (int i = lane; i < KEYS * CHUNKS; i += 32) {
            const i64 at = first + (i64)(i / CHUNKS) * a->kv_heads * HEAD_DIM + i % CHUNKS * 8;
            cp_async_16(place(k_tile, i / CHUNKS, i % CHUNKS), a->k + at);
            cp_async_16(place(v_tile, i / CHUNKS, i % CHUNKS), a->v + at);
        }
    }
    cp_async_commit();
}


/* 2. One tile of 16 keys for the warp's 16 rows. */
INLINE void attend(const decode_args *a, const u32 q[HEAD_DIM / 16][4], float o[HEAD_DIM / 8][4], float top[2], float sum[2], u32 k_tile,
                   int key, int n_keys, const int position[2]) {
    const int lane = (int)threadIdx.x % 32;
    const u32 v_tile = k_tile + TILE_BYTES;
    float s[2][4] = {{0.0f}};
    u32 f[4], p[4];

#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; d++) { /* Matrices: keys 0-7 and 8-15 by the two halves of 16 columns. */
        ldmatrix_x4(f, place(k_tile, lane % 8 + lane / 16 * 8, 2 * d + lane / 8 % 2));
        mma_16x8x16(s[0], q[d], f[0], f[1]);
        mma_16x8x16(s[1], q[d], f[2], f[3]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float m = top[h], old = top[h], part = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = key + i / 2 * 8 + lane % 4 * 2 + i % 2;
            float *x = &s[i / 2][2 * h + i % 2];
            const bool see = at < n_keys && at <= position[h] && (a->window == 0 || at > position[h] - a->window);
            *x = see ? *x * (a->scale * LOG2E) : -INFINITE;
            m = fmaxf(m, *x);
        }
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        const float base = m == -INFINITE ? 0.0f : m, back = exp2_fast(old - base);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *x = &s[i / 2][2 * h + i % 2];
            *x = exp2_fast(*x - base);
            part += *x;
        }
        top[h] = m;
        sum[h] = sum[h] * back + part;
        p[h] = PACK_ELEM(s[0][2 * h], s[0][2 * h + 1]);
        p[2 + h] = PACK_ELEM(s[1][2 * h], s[1][2 * h + 1]);
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 8; d++) {
            o[d][2 * h] *= back;
            o[d][2 * h + 1] *= back;
        }
    }
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; d++) { /* Matrices: keys 0-7 and 8-15 of 8 columns, then of the next 8. */
        ldmatrix_x4_trans(f, place(v_tile, lane % 16, 2 * d + lane / 16));
        mma_16x8x16(o[2 * d], p, f[0], f[1]);
        mma_16x8x16(o[2 * d + 1], p, f[2], f[3]);
    }
}

/* 3. The warps' results to one, in order of warps, and to memory. sm: WARPS x 16 x (D + 2) floats. */
INLINE void merge(const decode_args *a, float o[HEAD_DIM / 8][4], const float top[2], float sum[2], float *sm, float *part) {
    const int tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32, width = HEAD_DIM + 2;
    float *mine = sm + warp * 16 * width;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *row = mine + (lane / 4 + 8 * h) * width;
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 8; d++) {
            row[8 * d + lane % 4 * 2] = o[d][2 * h];
            row[8 * d + lane % 4 * 2 + 1] = o[d][2 * h + 1];
        }
        if (lane % 4 == 0) {
            row[HEAD_DIM] = top[h];
            row[HEAD_DIM + 1] = sum[h];
        }
    }
    __syncthreads();
    for (int i = tid; i < 16 * width; i += 32 * WARPS) {
        const int r = i / width, d = i % width;
        float m = -INFINITE, x = 0.0f;
        for (int w = 0; w < WARPS; w++) {
            m = fmaxf(m, sm[(w * 16 + r) * width + HEAD_DIM]);
        }
        for (int w = 0; w < WARPS && m > -INFINITE; w++) {
            x += sm[(w * 16 + r) * width + d] * exp2_fast(sm[(w * 16 + r) * width + HEAD_DIM] - m);
        }
        part[i] = d == HEAD_DIM ? m : x;
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
decode_split(const __grid_constant__ decode_args a) {
    extern __shared__ __align__(128) u8 smem[];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, group = a.q_heads / a.kv_heads;
    const int rows = a.q_tokens * group, row_tiles = div_up(rows, 16), b = (int)blockIdx.z;
    const int g = (int)blockIdx.y / row_tiles, row0 = (int)blockIdx.y % row_tiles * 16;
    const int n_keys = a.kv_len[b], tiles = div_up(n_keys, KEYS), share = div_up(tiles, a.splits);
    const int begin = (int)blockIdx.x * share, end = min_i(tiles, begin + share);
    const u32 ring = smem_addr(smem) + warp * RING_BYTES;
    u32 q[HEAD_DIM / 16][4];
    float o[HEAD_DIM / 8][4] = {{0.0f}}, top[2] = {-INFINITE, -INFINITE}, sum[2] = {0.0f, 0.0f};
    int position[2];

    for (int s = 0; s < STAGES - 1; s++) {
        fetch(&a, ring, s, begin + warp + s * WARPS, end, b, g);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = row0 + lane / 4 + 8 * h, t = min_i(row, rows - 1) / group, head = g * group + min_i(row, rows - 1) % group;
        const u32 *src = (const u32 *)(a.q + ((i64)(b * a.q_tokens + t) * a.q_heads + head) * HEAD_DIM);
        position[h] = n_keys - a.q_tokens + t;
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; d++) {
            q[d][h] = src[8 * d + lane % 4];
            q[d][2 + h] = src[8 * d + 4 + lane % 4];
        }
    }
    for (int t = begin + warp, i = 0; t < end; t += WARPS, i++) {
        cp_async_wait(STAGES - 2);
        __syncwarp();
        attend(&a, q, o, top, sum, ring + i % STAGES * 2 * TILE_BYTES, t * KEYS, n_keys, position);
        __syncwarp(); /* All lanes have read the slot that the next copies may fill. */
        fetch(&a, ring, (i + STAGES - 1) % STAGES, t + (STAGES - 1) * WARPS, end, b, g);
    }
    cp_async_wait(0);
    __syncthreads(); /* The rings become the place where warps meet. */
    merge(&a, o, top, sum, (float *)smem,
          a.part + ((i64)(b * gridDim.y + blockIdx.y) * a.splits + blockIdx.x) * 16 * (HEAD_DIM + 2));
}

extern "C" __global__ void __launch_bounds__(128)
decode_combine(const __grid_constant__ decode_args a) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, group = a.q_heads / a.kv_heads, width = HEAD_DIM + 2;
    const int rows = a.q_tokens * group, row_tiles = div_up(rows, 16), b = (int)blockIdx.z, g = (int)blockIdx.y;
    const int row = (int)blockIdx.x * 4 + warp;
    float m = -INFINITE, sum = 0.0f, o[HEAD_DIM / 32 + 1] = {0.0f};

    if (row >= rows) {
        return;
    }
    const float *part = a.part + ((i64)((b * a.kv_heads + g) * row_tiles + row / 16) * a.splits * 16 + row % 16) * width;
    for (int s = 0; s < a.splits; s++) {
        m = fmaxf(m, part[(i64)s * 16 * width + HEAD_DIM]);
    }
    for (int s = 0; s < a.splits && m > -INFINITE; s++) {
        const float *p = part + (i64)s * 16 * width, w = exp2_fast(p[HEAD_DIM] - m);
        sum += p[HEAD_DIM + 1] * w;
#pragma unroll
        for (int i = 0; i * 32 < HEAD_DIM; i++) {
            o[i] += i * 32 + lane < HEAD_DIM ? p[i * 32 + lane] * w : 0.0f;
        }
    }
    elem *dst = a.out + ((i64)(b * a.q_tokens + row / group) * a.q_heads + g * group + row % group) * HEAD_DIM;
#pragma unroll
    for (int i = 0; i * 32 < HEAD_DIM; i++) {
        if (i * 32 + lane < HEAD_DIM) {
            dst[i * 32 + lane] = FROM_F32(DTYPE, sum > 0.0f ? o[i] / sum : 0.0f);
        }
    }
}
