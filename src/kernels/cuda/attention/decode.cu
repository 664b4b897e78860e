/* decode.cu: attention of new tokens, one or a whole prompt, against a paged key/value cache, for
 * serving.
 *
 * SHAPES    q, out: rows q_start[b] .. q_start[b + 1] of sequence b (or T rows each), H heads,
 *           strides of their own; pages (n, PAGE, G, D) of K and of V, of DTYPE or, CODES (K) and
 *           VCODES (V, as K if not given), of what coded.cuh names; table (B, table_ld) page
 *           numbers; kv_len (B), the new tokens included. D = HEAD_DIM, a multiple of 64 up to 256;
 *           PAGE a multiple of 16; T * H / G rows share a key head, 16 a row tile.
 * MAP       keys are cut in splits (of `share` tiles of 16, or in `splits` parts). decode_split: a
 *           block of WARPS warps for (`turns` splits, key head and row tile, sequence); warp w
 *           takes tiles w, w + WARPS, .. of a split. decode_combine: a warp a row, joins the splits
 *           in order. decode_walk, for launches whose row tiles alone fill the GPU: a block walks
 *           over all splits of its row tile and joins them, with the same sums in the same order. A
 *           row's bits do not depend on which of the two ran, nor on any other row: tiles that it
 *           does not see change nothing.
 * PACKS     1: sequences of one row each whose first keys lie in the same pages (answers to one
 *           prompt, requests with one system prompt). A block takes the rows of up to 16 / (H / G)
 *           of them as one row tile. It reads those keys once and then, to the end of the split,
 *           the other keys of each sequence, which the other rows do not see. In decode_split each
 *           sequence has blocks for the splits behind; in decode_walk the block goes on with them.
 *           A row meets its keys in the order in which it would meet them alone, so its bits are
 *           the same. A value of V that is not finite would reach the rows of the whole tile.
 * MOVEMENT
 *     Q 16 rows ──▶ fragments in registers, once
 *     K, V 16 keys ──cp.async, 16 bytes a lane──▶ ring of STAGES x (K, V) of this warp in smem,
 *                                                 rows swizzled ──ldmatrix──▶ mma.sync
 *     S (16, 16) ─ exp2, running maximum ─▶ P fragments ──mma──▶ O (16, D) f32 registers
 *     warps ──smem──▶ one (max, sum, O) a split ──▶ HBM ──decode_combine──▶ out
 *     A warp waits only for its own copies: no block barrier in the loop.
 * CODES     codes lie in smem as they are in the pages and become halves in registers, whatever
 *           DTYPE is: Q's rows are scaled by a power of two to fit (GAIN), P is rounded to halves.
 *           A product may take the columns of K and Q in any order, and give the columns of O in
 *           any order, so a lane takes adjacent codes: of e4m3 by ldmatrix, four of a key (K) or
 *           two columns of two keys (V); of blocks by plain loads, as blocks are aligned to 2
 *           bytes. load_rows and column_of know the orders. Scales of blocks multiply the sums of
 *           32 columns of K, and V's halves.
 * BOUND     memory: 4 D bytes a key and key head. STAGES - 1 tiles of 64 D bytes in flight a warp:
 *           with 8 warps an SM and D = 128, 128 KB, five times what an SM needs at 3 TB/s and 1 us.
 *           CODES: half of that or less. The limit is the number of instructions that turn codes
 *           into halves, so they are few, and more blocks run on an SM to hide their latency.
 * MEASURED  docs/speed/attention.md.
 * NUMERICS  f32 sums; fixed order (keys of a warp, warps, splits): bit-identical run to run for the
 *           same number of splits.
 * REFS      Flash-decoding (Dao et al. 2023); PagedAttention, Kwon et al. 2023
 *           (arXiv:2309.06180). */
#include "attention/mask.cuh"
#include "common/early.cuh"
#include "common/mma.cuh"

#ifndef PACKS
#define PACKS 0
#endif
#ifndef CODES
#define CODES 0
#endif
#ifndef VCODES
#define VCODES CODES
#endif
#if CODES || VCODES
#include "attention/coded.cuh"
#endif
#if CODES
typedef u8 k_elem;
#define MMA_K mma_16x8x16_fp16
#else
typedef elem k_elem;
#define MMA_K mma_16x8x16
#endif
#if VCODES
typedef u8 v_elem;
#define MMA_V          mma_16x8x16_fp16
#define PACK_P(lo, hi) f32x2_to_fp16x2(lo, hi)
#else
typedef elem v_elem;
#define MMA_V  mma_16x8x16
#define PACK_P PACK_ELEM
#endif
#include "kernels/cuda/attention/decode_args.h"

#ifndef STAGES
#define STAGES LT_DECODE_STAGES(HEAD_DIM, CODES, VCODES)
#endif
#define WARPS   4
#define KEYS    16
#define COMBINE 8 /* splits that decode_combine reads at once */
/* For K or V, by its codes: bytes of a row, and of the piece of it that is copied at once and is
 * aligned to its own size. */
#define BLOCKED(codes)   ((codes) >= 2)
#define ROW_BYTES(codes) LT_DECODE_ROW_BYTES(HEAD_DIM, codes)
#define PIECE(codes)     (ROW_BYTES(codes) % 16 == 0 ? 16 : ROW_BYTES(codes) % 8 == 0 ? 8 : 4)
#define PIECES(codes)    (ROW_BYTES(codes) / PIECE(codes))
#define LANES(codes)     /* lanes per row */                                                       \
    (BLOCKED(codes) || PIECES(codes) % 8 != 0 ? 4 : PIECES(codes) % 16 != 0 ? 8 : 16)
#define SPAN(codes)       (PIECES(codes) % 8 == 0 ? 8 : 4) /* pieces that are permuted */
#define TILE_BYTES(codes) (KEYS * ROW_BYTES(codes))
#define SLOT_BYTES        (TILE_BYTES(CODES) + TILE_BYTES(VCODES))
#define RING_BYTES        (STAGES * SLOT_BYTES) /* bytes of one warp's ring */
/* Blocks of decode_split that should fit on an SM; before Hopper, rings of heads of 128 leave room
 * for two. */
#if CODES && VCODES && HEAD_DIM <= 128
#define SPLIT_BOUNDS                                                                               \
    __launch_bounds__(32 * WARPS, __CUDA_ARCH__ < 900 || PACKS ? 2 : HEAD_DIM > 64 ? 3 : 4)
#else
#define SPLIT_BOUNDS __launch_bounds__(32 * WARPS)
#endif
static_assert(WARPS * RING_BYTES == LT_DECODE_RING_BYTES(HEAD_DIM, CODES, VCODES), "rings");
static_assert(PAGE % KEYS == 0, "a tile of keys lies in one page");
static_assert(HEAD_DIM % 64 == 0 && HEAD_DIM <= 256, "head width");

/* The work of a block: 16 rows of (token, head of the group), and the keys that they see. The rows
 * of a pack are those of its sequences, as if these were tokens of the first one. */
typedef struct {
    int b, g, row0, rows, first, tokens; /* first: row of q of the sequence's first token */
    int n_keys, begin, end, share;       /* tiles seen by any of the 16 rows; tiles of a split */
    int low, high;                       /* positions of the first and of the last row */
    int settled;                         /* tiles before this one hold no keys of new tokens */
    /* The pack of sequence b: its first sequence, its number of sequences, and the number of tiles
     * that these share (0: b is alone). packed: this work is for all of them. */
    int lead, members, common;
    bool packed;
} work;

/* The warp's 16 rows: fragments of Q; and of rows lane / 4 and lane / 4 + 8: their positions, their
 * ALiBi slopes, and the scales of their products. */
typedef struct {
    u32 q[HEAD_DIM / 16][4];
    int position[2], token[2]; /* token: in a pack, the index of the sequence */
    float slope[2], gain[2];
} rows16;

INLINE work work_of(const lt_attn_decode_args *a, int b, int g, int row0) {
    const int group = a->q_heads / a->kv_heads;
    work w;
    w.b = b, w.g = g, w.row0 = row0;
    w.first = a->q_start ? a->q_start[b] : b * a->q_tokens;
    w.tokens = a->q_start ? a->q_start[b + 1] - w.first : a->q_tokens;
    /* Sequences with more rows belong to another kernel. */
    w.rows = w.tokens <= a->q_tokens ? w.tokens * group : 0;
    w.n_keys = a->kv_len[b];
    const int before = w.n_keys - w.tokens, tiles = div_up(w.n_keys, KEYS);
    w.low = before + row0 / group;
    w.high = before + min_i(row0 + 15, w.rows - 1) / group;
    w.end = min_i(tiles, w.high / KEYS + 1);
    w.begin = a->window > 0 ? max_i(0, w.low - a->window + 1) / KEYS : 0;
    w.share = a->share > 0 ? a->share : div_up(tiles, a->splits);
    w.settled = before / KEYS;
    w.lead = b, w.members = 1, w.common = 0, w.packed = false;
    if (PACKS && a->window == 0 && w.tokens == 1) {
        /* Its first sequence, their number, and their shared keys. */
        const int *pack = a->packs + 3 * b;
        const int most = LT_DECODE_PACK(group), lead = pack[0] + (b - pack[0]) / most * most,
                  members = min_i(most, pack[0] + pack[1] - lead);
        if (members > 1 && pack[2] >= KEYS) {
            w.lead = lead, w.members = members, w.common = pack[2] / KEYS;
        }
    }
    return w;
}
/* The work of the whole pack that begins with this sequence. */
INLINE void take_pack(const lt_attn_decode_args *a, work *w) {
    w->packed = true;
    w->tokens = w->members, w->rows = w->members * (a->q_heads / a->kv_heads);
    w->low = 0x7fffffff; /* All rows see the shared keys. */
    w->settled = w->common;
    for (int i = 1; i < w->members; i++) {
        w->end = max_i(w->end, div_up(a->kv_len[w->b + i], KEYS));
    }
}
/* Combine two partial results: factors of the old and of the new one. */
INLINE void join(float *m, float other, float *keep, float *take) {
    const float top = fmaxf(*m, other);
    *keep = top == -INFINITE ? 1.0f : exp2_fast(*m - top);
    *take = top == -INFINITE ? 0.0f : exp2_fast(other - top);
    *m = top;
}

/* Position of piece c of row r in a tile of K or of V, swizzled if ldmatrix reads it. */
INLINE u32 place(u32 tile, int r, int c, const int codes) {
    const int turn = SPAN(codes) == 8 ? r : r / 2; /* Two rows of 64 bytes fill the banks. */
    return tile + (u32)(BLOCKED(codes) ? r * ROW_BYTES(codes) + c * PIECE(codes)
                                       : (r * PIECES(codes) + (c & ~(SPAN(codes) - 1)) +
                                          ((c ^ turn) & (SPAN(codes) - 1))) *
                                             16);
}

/* 1. Start copying key tile `t` (16 keys), which lies in the page, into slot; no-op if t is past
 * the end. */
INLINE int page_of(const lt_attn_decode_args *a, int t, int end, int b) {
    return t < end ? a->table[(i64)b * a->table_ld + t * KEYS / PAGE] : 0;
}
/* Copy the tile of 16 keys that begins with key `first` of the pool, from K or V, or from both if
 * their rows are alike (other NULL: only one). */
INLINE void copy_tile(u32 tile, const u8 *pages, u32 other_tile, const u8 *other, i64 first,
                      int heads, int g, const int codes) {
    const i64 step = (i64)heads * ROW_BYTES(codes);
    const int lane = (int)threadIdx.x % 32, row = lane / LANES(codes), piece = lane % LANES(codes);
    i64 at = (first + row) * step + g * ROW_BYTES(codes) + piece * PIECE(codes);
#pragma unroll
    for (int r = 0; r < KEYS; r += 32 / LANES(codes)) {
#pragma unroll
        for (int c = 0; c < PIECES(codes); c += LANES(codes)) {
            if (c + LANES(codes) <= PIECES(codes) || c + piece < PIECES(codes)) {
                cp_async(place(tile, r + row, c + piece, codes), pages + at + c * PIECE(codes),
                         PIECE(codes));
                if (other != NULL) {
                    cp_async(place(other_tile, r + row, c + piece, codes),
                             other + at + c * PIECE(codes), PIECE(codes));
                }
            }
        }
        at += 32 / LANES(codes) * step;
    }
}
INLINE void fetch(const lt_attn_decode_args *a, u32 ring, int slot, int t, int page, int end,
                  int g) {
    const u32 k_tile = ring + slot * SLOT_BYTES, v_tile = k_tile + TILE_BYTES(CODES);
    const u8 *const k = (const u8 *)a->k, *const v = (const u8 *)a->v;
    if (t < end) {
        const i64 first = (i64)page * PAGE + t * KEYS % PAGE;
#if CODES == VCODES
        copy_tile(k_tile, k, v_tile, v, first, a->kv_heads, g, CODES);
#else
        copy_tile(k_tile, k, 0, NULL, first, a->kv_heads, g, CODES);
        copy_tile(v_tile, v, 0, NULL, first, a->kv_heads, g, VCODES);
#endif
    }
    cp_async_commit();
}

/* 2. S (16 rows, 16 keys) of a tile, depending on the type of K, and the columns of Q that its
 * product takes: pair_of gives the first column of pair i (0, 1) of fragment d, and the step to its
 * second. */
#if CODES >= 2 || VCODES >= 2
#include "attention/decode_blocks.cuh"
#endif
#if CODES == 1
/* Matrices: keys 0-7 and 8-15 of 16 columns, then of the next 16. */
INLINE void scores(float s[2][4], const rows16 *r, u32 k_tile) {
    const int lane = (int)threadIdx.x % 32;
    u32 f[4], first[4], second[4];
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 32; d++) {
        ldmatrix_x4(f, place(k_tile, lane % 16, 2 * d + lane / 16, CODES));
        f8_halves4(first, second, f);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            MMA_K(s[i % 2], r->q[2 * d + i / 2], first[i], second[i]);
        }
    }
}
INLINE int pair_of(int d, int lane, int i) {
    return 16 * d + lane % 4 * 4 + (F8_NATIVE ? 2 * i : i);
}
#define PAIR_STEP (F8_NATIVE ? 1 : 2)
#elif CODES == 0
INLINE void scores(float s[2][4], const rows16 *r, u32 k_tile) {
    const int lane = (int)threadIdx.x % 32;
    u32 f[4];
#pragma unroll
    /* Four matrices: keys 0-7 and keys 8-15, each in columns 0-7 and in columns 8-15. */
    for (int d = 0; d < HEAD_DIM / 16; d++) {
        ldmatrix_x4(f, place(k_tile, lane % 8 + lane / 16 * 8, 2 * d + lane / 8 % 2, CODES));
        MMA_K(s[0], r->q[d], f[0], f[1]);
        MMA_K(s[1], r->q[d], f[2], f[3]);
    }
}
INLINE int pair_of(int d, int lane, int i) {
    return 16 * d + lane % 4 * 2 + 8 * i;
}
#define PAIR_STEP 1
#endif

/* O += P V, depending on the type of V, and the column of sum i (0, 1) of o[d]. */
#if VCODES == 1
INLINE void gather(float o[HEAD_DIM / 8][4], const u32 p[4], u32 v_tile) {
    const int lane = (int)threadIdx.x % 32;
    u32 f[4], even[4], odd[4];
#pragma unroll
    for (int d = 0; d < PIECES(VCODES) / 2; d++) {
        ldmatrix_x4_trans(f, place(v_tile, lane % 16, 2 * d + lane / 16, VCODES));
        f8_halves4_apart(even, odd, f);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            MMA_V(o[4 * d + 2 * i], p, even[2 * i], even[2 * i + 1]);
            MMA_V(o[4 * d + 2 * i + 1], p, odd[2 * i], odd[2 * i + 1]);
        }
    }
}
INLINE int column_of(int d, int lane, int i) {
    return d / 2 * 16 + lane % 4 * 4 + i * 2 + d % 2;
}
#elif VCODES == 0
INLINE void gather(float o[HEAD_DIM / 8][4], const u32 p[4], u32 v_tile) {
    const int lane = (int)threadIdx.x % 32;
    u32 f[4];
#pragma unroll
    /* Matrices: keys 0-7 and 8-15 of 8 columns, then of the next 8. */
    for (int d = 0; d < HEAD_DIM / 16; d++) {
        ldmatrix_x4_trans(f, place(v_tile, lane % 16, 2 * d + lane / 16, VCODES));
        MMA_V(o[2 * d], p, f[0], f[1]);
        MMA_V(o[2 * d + 1], p, f[2], f[3]);
    }
}
INLINE int column_of(int d, int lane, int i) {
    return d * 8 + lane % 4 * 2 + i;
}
#endif

/* 3. One tile of 16 keys for the warp's 16 rows. What all rows see needs no mask; and while no
 *    row's maximum grows, the factor of its sums is 1 and is left out. only: the one sequence of a
 *    pack whose rows see it, or -1. */
INLINE void attend(const lt_attn_decode_args *a, const work *w, const rows16 *r,
                   float o[HEAD_DIM / 8][4], float top[2], float sum[2], u32 k_tile, int key,
                   int only) {
    const int lane = (int)threadIdx.x % 32;
    const bool open = (!PACKS || only < 0) && key + KEYS - 1 <= w->low &&
                      (a->window == 0 || key > w->high - a->window);
    float s[2][4] = {{0.0f}};
    u32 p[4];

    scores(s, r, k_tile);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float m = top[h], old = top[h], part = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = key + i / 2 * 8 + lane % 4 * 2 + i % 2;
            float *x = &s[i / 2][2 * h + i % 2];
            float logit = *x * (r->gain[h] * LOG2E);
            if (SOFTCAP) {
                logit = a->softcap * LOG2E * tanh_of(__fdividef(*x * r->gain[h], a->softcap));
            }
            if (ALIBI) {
                logit += r->slope[h] * (float)(at - r->position[h]);
            }
            *x = logit;
        }
        if (!open) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = key + i / 2 * 8 + lane % 4 * 2 + i % 2;
                const bool see = at <= r->position[h] &&
                                 (!PACKS || only < 0 || only == r->token[h]) &&
                                 (a->window == 0 || at > r->position[h] - a->window);
                float *x = &s[i / 2][2 * h + i % 2];
                *x = see ? *x : -INFINITE;
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            m = fmaxf(m, s[i / 2][2 * h + i % 2]);
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
        p[h] = PACK_P(s[0][2 * h], s[0][2 * h + 1]);
        p[2 + h] = PACK_P(s[1][2 * h], s[1][2 * h + 1]);
        if (__any_sync(0xffffffffu, back != 1.0f)) {
#pragma unroll
            for (int d = 0; d < HEAD_DIM / 8; d++) {
                o[d][2 * h] *= back;
                o[d][2 * h + 1] *= back;
            }
        }
    }
    gather(o, p, k_tile + TILE_BYTES(CODES));
}

INLINE elem *row_out(const lt_attn_decode_args *a, const work *w, int row, int *head) {
    const int group = a->q_heads / a->kv_heads;
    *head = w->g * group + row % group;
    return a->out + (w->first + row / group) * a->out_ld + *head * a->head_ld;
}
/* 4. Joins the results of the warps, in their order, for the first `rows` of the 16 rows, and
 *    writes them to part. Where a row sees no other keys (alone) they go to out, with the bits that
 *    the joining of one split gives. In part the results of a pack's sequences lie `apart` floats
 *    apart; with apart = 0 rows follow each other. sm: WARPS x rows x (D + 2) floats. */
INLINE void merge(const lt_attn_decode_args *a, const work *wk, float o[HEAD_DIM / 8][4],
                  const float top[2], float sum[2], int rows, float *sm, float *part, i64 apart,
                  bool alone) {
    const int tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32, width = HEAD_DIM + 2;
    float *mine = sm + warp * rows * width;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *row = mine + (lane / 4 + 8 * h) * width;
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
        if (lane / 4 + 8 * h >= rows) {
            continue;
        }
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 8; d++) {
            row[column_of(d, lane, 0)] = o[d][2 * h];
            row[column_of(d, lane, 1)] = o[d][2 * h + 1];
        }
        if (lane % 4 == 0) {
            row[HEAD_DIM] = top[h];
            row[HEAD_DIM + 1] = sum[h];
        }
    }
    __syncthreads();
    for (int i = tid; alone && i < rows * HEAD_DIM; i += 32 * WARPS) {
        const int r = i / HEAD_DIM, d = i % HEAD_DIM;
        float m = -INFINITE, x = 0.0f, all = 0.0f;
        int head;
        for (int w = 0; w < WARPS; w++) {
            m = fmaxf(m, sm[(w * rows + r) * width + HEAD_DIM]);
        }
        for (int w = 0; w < WARPS && m > -INFINITE; w++) {
            const float f = exp2_fast(sm[(w * rows + r) * width + HEAD_DIM] - m);
            x += sm[(w * rows + r) * width + d] * f;
            all += sm[(w * rows + r) * width + HEAD_DIM + 1] * f;
        }
        row_out(a, wk, wk->row0 + r, &head)[d] = FROM_F32(DTYPE, all > 0.0f ? x / all : 0.0f);
    }
    for (int i = tid; !alone && i < rows * width; i += 32 * WARPS) {
        const int r = i / width, d = i % width;
        float m = -INFINITE, x = 0.0f;
        for (int w = 0; w < WARPS; w++) {
            m = fmaxf(m, sm[(w * rows + r) * width + HEAD_DIM]);
        }
        for (int w = 0; w < WARPS && m > -INFINITE; w++) {
            x += sm[(w * rows + r) * width + d] *
                 exp2_fast(sm[(w * rows + r) * width + HEAD_DIM] - m);
        }
        if (PACKS && apart > 0) {
            const int group = a->q_heads / a->kv_heads;
            part[r / group * apart + r % group * width + d] = d == HEAD_DIM ? m : x;
        } else {
            part[i] = d == HEAD_DIM ? m : x;
        }
    }
}

/* This warp's first tile in the split that begins with tile `begin`: whole rounds of tiles that no
 * row sees are skipped. */
INLINE int first_tile(const work *w, int begin) {
    return begin + max_i(0, w->begin - begin) / WARPS * WARPS + (int)threadIdx.x / 32;
}
/* Copy a split's first tiles that hold no keys of new tokens: these exist before this step's
 * kernels write. Returns how many copies were started. */
INLINE int fetch_settled(const lt_attn_decode_args *a, const work *w, int begin, int end,
                         u8 *smem) {
    const u32 ring = smem_addr(smem) + threadIdx.x / 32 * RING_BYTES;
    const int first = first_tile(w, begin), settled = min_i(end, w->settled);
    int s = 0;
    for (; s < STAGES - 1 && first + s * WARPS < settled; s++) {
        const int t = first + s * WARPS;
        fetch(a, ring, s, t, page_of(a, t, end, w->b), end, w->g);
    }
    return s;
}
#if PACKS
/* The order of a warp's tiles in a split: those that all rows of the work may see, then those of
 * each sequence of a pack. A tile belongs to the same warp as if the sequence were alone. */
typedef struct {
    int t, end; /* tile, and the end of its part of the order; t >= end: no tile is left */
    int only;   /* -1, or the sequence of the pack whose keys these are */
} way;
INLINE void way_find(const lt_attn_decode_args *a, const work *w, way *at, int begin, int end) {
    while (w->packed && at->t >= at->end && at->only + 1 < w->members) {
        const int first = begin + (int)threadIdx.x / 32;
        at->only++;
        at->end = min_i(end, div_up(a->kv_len[w->b + at->only], KEYS));
        at->t = first + div_up(max_i(0, w->common - first), WARPS) * WARPS;
    }
}
INLINE way way_of(const lt_attn_decode_args *a, const work *w, int begin, int end) {
    way at = {first_tile(w, begin), w->packed ? min_i(end, w->common) : end, -1};
    way_find(a, w, &at, begin, end);
    return at;
}
INLINE void way_step(const lt_attn_decode_args *a, const work *w, way *at, int begin, int end) {
    at->t += WARPS;
    way_find(a, w, at, begin, end);
}
INLINE int page_on(const lt_attn_decode_args *a, const work *w, const way *at) {
    return page_of(a, at->t, at->end, w->b + max_i(0, at->only));
}
/* All tiles of this warp in the split [begin, end). sent: number of copies that were already
 * started. */
INLINE void attend_all(const lt_attn_decode_args *a, const work *w, const rows16 *r, int begin,
                       int end, u32 ring, int sent, float o[HEAD_DIM / 8][4], float top[2],
                       float sum[2]) {
    way at = way_of(a, w, begin, end), ahead = at;
    for (int s = 0; s < STAGES - 1; s++, way_step(a, w, &ahead, begin, end)) {
        if (s >= sent) {
            fetch(a, ring, s, ahead.t, page_on(a, w, &ahead), ahead.end, w->g);
        }
    }
    for (int i = 0; at.t < at.end; i++) {
        const int page = page_on(a, w, &ahead);
        cp_async_wait(STAGES - 2);
        __syncwarp();
        attend(a, w, r, o, top, sum, ring + i % STAGES * SLOT_BYTES, at.t * KEYS, at.only);
        __syncwarp();
        fetch(a, ring, (i + STAGES - 1) % STAGES, ahead.t, page, ahead.end, w->g);
        way_step(a, w, &at, begin, end);
        way_step(a, w, &ahead, begin, end);
    }
}
/* A simple loop: with the version above, decode_split takes 162 registers instead of 128 (heads of
 * 64), so fewer blocks fit on an SM. */
#else
INLINE void attend_all(const lt_attn_decode_args *a, const work *w, const rows16 *r, int begin,
                       int end, u32 ring, int sent, float o[HEAD_DIM / 8][4], float top[2],
                       float sum[2]) {
    const int first = first_tile(w, begin);
    for (int s = sent; s < STAGES - 1; s++) {
        const int t = first + s * WARPS;
        fetch(a, ring, s, t, page_of(a, t, end, w->b), end, w->g);
    }
    for (int t = first, i = 0; t < end; t += WARPS, i++) {
        const int then = t + (STAGES - 1) * WARPS, page = page_of(a, then, end, w->b);
        cp_async_wait(STAGES - 2);
        __syncwarp();
        attend(a, w, r, o, top, sum, ring + i % STAGES * SLOT_BYTES, t * KEYS, -1);
        __syncwarp(); /* All lanes have read the slot that the next copies may fill. */
        fetch(a, ring, (i + STAGES - 1) % STAGES, then, page, end, w->g);
    }
}
#endif
/* Tiles [begin, end) of a split: what the four warps find, merged into part, or, alone, into out.
 * sent: of its copies, how many were started. Where warps do not meet in the rings' place, the
 * first copies of the next split, which ends at `next`, are started before they meet; how many.
 * part, apart: see merge. */
INLINE int split(const lt_attn_decode_args *a, const work *w, const rows16 *r, int begin, int end,
                 int next, u8 *smem, float *part, i64 apart, int sent, bool alone) {
    const u32 ring = smem_addr(smem) + threadIdx.x / 32 * RING_BYTES;
    float o[HEAD_DIM / 8][4] = {{0.0f}}, top[2] = {-INFINITE, -INFINITE}, sum[2] = {0.0f, 0.0f};

    attend_all(a, w, r, begin, end, ring, sent, o, top, sum);
    if (a->meet == 0) {
        cp_async_wait(0);
        __syncthreads(); /* The warps combine their results in the memory of the rings. */
    } else if (next > end) {
        for (sent = 0; sent < STAGES - 1; sent++) {
            const int t = first_tile(w, end) + sent * WARPS;
            fetch(a, ring, sent, t, page_of(a, t, next, w->b), next, w->g);
        }
    }
    merge(a, w, o, top, sum, min_i(16, w->rows - w->row0), (float *)(smem + a->meet), part, apart,
          alone);
    return a->meet == 0 || (PACKS && next == end) ? 0 : sent;
}

#if CODES
#define IS_HALF_bf16 0
#define IS_HALF_fp16 1
/* GAIN: the power of two that brings the largest number of a row to [2^14, 2^15): nothing
 * overflows, and rounding loses less than 2^-38 of the largest. It is the same in the four lanes of
 * the row. */
INLINE float factor_of(float most) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const int power = (int)(__float_as_uint(most) >> 23) - 127;
    return !CONCAT(IS_HALF_, DTYPE) && power >= -100 && power < 128
               ? __uint_as_float((u32)(127 + 14 - power) << 23)
               : 1.0f;
}
#endif

/* Queries of the warp's 16 rows as fragments; rows past the end repeat the last. */
INLINE void load_rows(const lt_attn_decode_args *a, const work *w, rows16 *r) {
    const int lane = (int)threadIdx.x % 32, group = a->q_heads / a->kv_heads;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = min_i(w->row0 + lane / 4 + 8 * h, w->rows - 1), t = row / group,
                  head = w->g * group + row % group;
        const u32 *src = (const u32 *)(a->q + (w->first + t) * a->q_ld + head * a->head_ld);
        r->position[h] = w->packed ? a->kv_len[w->b + t] - 1 : w->n_keys - w->tokens + t;
        r->token[h] = t;
        r->slope[h] = ALIBI ? a->alibi[head] * LOG2E : 0.0f;
        r->gain[h] = a->scale;
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; d++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int at = pair_of(d, lane, i);
                if (PAIR_STEP == 1) {
                    r->q[d][2 * i + h] = src[at / 2];
                } else {
                    r->q[d][2 * i + h] = __byte_perm(src[at / 2], src[at / 2 + 1],
                                                     at % 2 == 0 ? 0x5410 : 0x7632);
                }
            }
        }
#if CODES
        float most = 0.0f;
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; d++) {
            for (int i = h; i < 4; i += 2) {
                most = fmaxf(most, fmaxf(fabsf(elem_lo(r->q[d][i])), fabsf(elem_hi(r->q[d][i]))));
            }
        }
        const float factor = factor_of(most);
        r->gain[h] = a->scale / factor;
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; d++) {
            for (int i = h; i < 4; i += 2) {
                r->q[d][i] = f32x2_to_fp16x2(elem_lo(r->q[d][i]) * factor,
                                             elem_hi(r->q[d][i]) * factor);
            }
        }
#endif
    }
}

extern "C" __global__ void SPLIT_BOUNDS
decode_split(const __grid_constant__ lt_attn_decode_args a) {
    extern __shared__ __align__(128) u8 smem[];
    const int row_tiles = div_up(a.q_tokens * (a.q_heads / a.kv_heads), 16);
    const work own = work_of(&a, (int)blockIdx.z, (int)blockIdx.y / row_tiles,
                             (int)blockIdx.y % row_tiles * 16);
    const int last = ((int)blockIdx.x + 1) * a.turns;
    const i64 sequence = (i64)gridDim.y * a.splits * 16 * (HEAD_DIM + 2);
    int i = (int)blockIdx.x * a.turns;
    work w = own;
    rows16 r;
    /* The first sequence of the pack computes the splits with shared keys. */
    if (PACKS && own.lead != own.b) {
        i = max_i(i, div_up(own.common, own.share));
    } else if (PACKS && i * own.share < own.common) {
        take_pack(&a, &w);
    }
    const bool works = w.row0 < w.rows && i < last && i * w.share < w.end;
    int sent = works ? fetch_settled(&a, &w, i * w.share, min_i(w.end, (i + 1) * w.share), smem)
                     : 0;

    wait_for_others();
    if (!works) {
        return;
    }
    load_rows(&a, &w, &r);
    for (; i < last && i * w.share < w.end; i++) {
        const int end = min_i(w.end, (i + 1) * w.share);
        const bool leave = PACKS && w.packed && end >= own.common;
        sent = split(&a, &w, &r, i * w.share, end,
                     i + 1 < last && !w.packed ? min_i(w.end, end + w.share) : end, smem,
                     a.part + (int)blockIdx.z * sequence +
                         ((i64)blockIdx.y * a.splits + i) * 16 * (HEAD_DIM + 2),
                     w.packed ? sequence : 0, sent, false);
        __syncthreads(); /* All warps have read each other's results. */
        if (leave) {
            w = own;
            load_rows(&a, &w, &r);
        }
    }
}

extern "C" __global__ void __launch_bounds__(128)
    decode_combine(const __grid_constant__ lt_attn_decode_args a) {
    wait_for_others();
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32,
              group = a.q_heads / a.kv_heads, width = HEAD_DIM + 2;
    const int row_tiles = div_up(a.q_tokens * group, 16), row = (int)blockIdx.x * 4 + warp;
    const work w = work_of(&a, (int)blockIdx.z, (int)blockIdx.y, row / 16 * 16);
    float m = -INFINITE, sum = 0.0f, o[HEAD_DIM / 32] = {0.0f}, keep, take;
    int head;

    if (row >= w.rows) {
        return;
    }
    const float *part =
        a.part +
        ((i64)((w.b * a.kv_heads + w.g) * row_tiles + row / 16) * a.splits * 16 + row % 16) * width;
    const int splits = div_up(w.end, w.share);
    /* Loads of several splits at once take as long as one. */
    for (int s0 = 0; s0 < splits; s0 += COMBINE) {
        float x[COMBINE][HEAD_DIM / 32 + 2];
#pragma unroll
        for (int k = 0; k < COMBINE; k++) {
            const float *p = part + (i64)min_i(s0 + k, splits - 1) * 16 * width;
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 32; i++) {
                x[k][i] = p[i * 32 + lane];
            }
            x[k][HEAD_DIM / 32] = p[HEAD_DIM], x[k][HEAD_DIM / 32 + 1] = p[HEAD_DIM + 1];
        }
#pragma unroll
        for (int k = 0; k < COMBINE; k++) {
            if (s0 + k < splits) {
                join(&m, x[k][HEAD_DIM / 32], &keep, &take);
                sum = __fmaf_rn(sum, keep, x[k][HEAD_DIM / 32 + 1] * take);
#pragma unroll
                for (int i = 0; i < HEAD_DIM / 32; i++) {
                    o[i] = __fmaf_rn(o[i], keep, x[k][i] * take);
                }
            }
        }
    }
    elem *dst = row_out(&a, &w, row, &head);
    if (SINKS) {
        join(&m, a.sinks[head] * LOG2E, &keep, &take);
        sum = __fmaf_rn(sum, keep, take);
    }
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 32; i++) {
        dst[i * 32 + lane] = FROM_F32(DTYPE,
                                      sum > 0.0f ? (SINKS ? o[i] * keep : o[i]) / sum : 0.0f);
    }
}

/* Shared memory: the rings (or the merge), then one split's result, then the total, with 16 x (D +
 * 2) floats each. 8 threads per row combine the splits. */
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    decode_walk(const __grid_constant__ lt_attn_decode_args a) {
    extern __shared__ __align__(128) u8 smem[];
    const int tid = (int)threadIdx.x, width = HEAD_DIM + 2,
              row_tiles = div_up(a.q_tokens * (a.q_heads / a.kv_heads), 16);
    /* The longest rows of a prompt come first. */
    const int turn = row_tiles - 1 - (int)blockIdx.y % row_tiles;
    work w = work_of(&a, (int)blockIdx.z, (int)blockIdx.y / row_tiles, turn * 16);
    const bool led = w.lead != w.b; /* The first sequence of the pack works for this one. */
    float *const part = (float *)(smem + a.result), *const mine = part + tid / 8 * width;
    rows16 r;
    float m = -INFINITE, sum = 0.0f, o[HEAD_DIM / 8] = {0.0f}, keep = 1.0f, take;
    int head, begin = w.begin / w.share * w.share;
    if (!led && w.members > 1) {
        take_pack(&a, &w);
    }
    const bool works = w.row0 < w.rows && !led;
    int sent = works ? fetch_settled(&a, &w, begin, min_i(w.end, begin + w.share), smem) : 0;

    wait_for_others();
    if (!works) {
        return;
    }
    load_rows(&a, &w, &r);
    const bool alone = !SINKS && w.end - begin <= w.share;
    for (; begin < w.end; begin += w.share, sent = 0) {
        const int end = min_i(w.end, begin + w.share);
        split(&a, &w, &r, begin, end, end, smem, part, 0, sent, alone);
        if (alone) {
            return;
        }
        __syncthreads();
        join(&m, mine[HEAD_DIM], &keep, &take);
        sum = __fmaf_rn(sum, keep, mine[HEAD_DIM + 1] * take);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) {
            o[i] = __fmaf_rn(o[i], keep, mine[i * 8 + tid % 8] * take);
        }
        __syncthreads(); /* Before the rings and the result are used for the next split. */
    }
    const int row = w.row0 + tid / 8;
    if (row < w.rows) {
        elem *dst = row_out(&a, &w, row, &head);
        if (SINKS) {
            join(&m, a.sinks[head] * LOG2E, &keep, &take);
            sum = __fmaf_rn(sum, keep, take);
        }
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) {
            dst[i * 8 + tid % 8] = FROM_F32(DTYPE,
                                            sum > 0.0f ? (SINKS ? o[i] * keep : o[i]) / sum : 0.0f);
        }
    }
}
