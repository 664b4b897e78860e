/* beside.cuh: the small ops before and after a product in a layer that decodes, which the product's
 * kernel computes (gemv_ring.cu, gemm_q_ring.cu): arguments, the norm of the rows, the ends of
 * sums.
 *
 * -D M rows, 1 to 8; NORM, ADD, PARAM, LANES: RMSNorm of x [+ add], gains of type PARAM, LANES 32
 * or 256 as norm.cu divides a row; TAIL 0: none, 1: act = f(column) * column + N / 2 (KIND 0:
 * GELU's tanh form, 2: SiLU), 2: pairs (i, i + dim / 2) of heads of q and k rotated in place, heads
 * of k and v also to their pages; HELD: x stands in shared memory. WIDTH: K, if a kernel is made
 * for one; BARE 1: no bias, and y is not added to. THREADS, SENT (groups of cp.async that are under
 * way when the norm begins) are the kernel's. Bits are those of the ops one by one. */
#ifndef LT_CUDA_GEMM_BESIDE_CUH
#define LT_CUDA_GEMM_BESIDE_CUH

#include "common/act.cuh"
#include "common/early.cuh"
#include "common/hopper.cuh"
#include "common/product.cuh"
#include "common/reduce.cuh"
#include "common/rotate.cuh"
#include "kernels/cuda/gemm/ring_args.h"

#ifndef BARE /* Neither a bias nor the old y is added to the sums. */
#define BARE 0
#endif
#define BIAS_AT(a, col) (BARE ? 0.0f : bias_at((a)->bias, (a)->bias_type, col))
/* Pieces c of 8 columns of a row, starting with the first. */
#ifdef WIDTH /* K, where a kernel is made for one: a known number of turns. */
#define WIDTH_OF(a) WIDTH
#define TURNS_OF(a) ITEMS
#define EACH_PIECE(a, c, first, apart)                                                             \
    for (int turn = 0, c = first; turn < (WIDTH / 8 + apart - 1) / apart; turn++, c += apart)      \
        if (c < WIDTH / 8)
#else
#define WIDTH_OF(a)                    ((a)->k)
#define TURNS_OF(a)                    div_up(M *ROW_ITEMS(a), THREADS)
#define EACH_PIECE(a, c, first, apart) for (int c = first; c < (a)->k / 8; c += apart)
#endif

/* The norm divides the rows' pieces among all threads: item i is piece i % ROW_ITEMS of row i /
 * ROW_ITEMS, and a thread has every THREADS-th item. */
#ifndef ROW_ITEMS
#define ROW_ITEMS(a) (WIDTH_OF(a) / 8)
#endif
#ifdef WIDTH
#define ITEMS ((M * ROW_ITEMS(0) + THREADS - 1) / THREADS)
#else
#define ITEMS 4 /* Or more. */
#endif
#define ITEMS_AT_ONCE (ITEMS < 4 ? ITEMS : 4)
#define EACH_TURN(a, turn, apart)                                                                  \
    _Pragma("unroll") for (int turn = 0; turn < TURNS_OF(a); turn += apart)
#ifndef IN_REGISTERS
#define IN_REGISTERS 0
#endif
static_assert(LANES == 32 || (LANES == 256 && THREADS >= 256), "as norm.cu divides a row");

/* Dynamic shared memory: the kernel's rings, x (HELD; rows 64 bytes further apart than they are
 * long, for the banks), then the norm's gains and sums of pieces, then angles and slots of the
 * rows. */
typedef struct {
    uint4 *x;
    u8 *gain;
    float *part, *angles;
    int *slots;
} places;
/* The remainder tells the compiler the block's size, from which it derives most of what follows. */
INLINE u32 item_of(int turn) {
    return threadIdx.x % THREADS + (u32)(turn * THREADS);
}
INLINE bool is_item(const lt_gemv_ring_args *a, int turn) {
    (void)a;
    return item_of(turn) < (u32)(M * ROW_ITEMS(a));
}
INLINE int row_of(const lt_gemv_ring_args *a, int turn) {
    (void)a;
    return M == 1 ? 0 : (int)(item_of(turn) / (u32)ROW_ITEMS(a));
}
INLINE int piece_of(const lt_gemv_ring_args *a, int turn) {
    (void)a;
    return (int)(M == 1 ? item_of(turn) : item_of(turn) % (u32)ROW_ITEMS(a));
}
INLINE int x_pitch(const lt_gemv_ring_args *a) { /* In pieces of 16 bytes. */
    return LT_RING_X_PITCH(WIDTH_OF(a));
}
INLINE places places_of(const lt_gemv_ring_args *a, u8 *behind_rings) {
    places s;
    s.x = (uint4 *)behind_rings;
    s.gain = behind_rings + (HELD ? LT_RING_X_BYTES(M, WIDTH_OF(a)) : 0);
    s.part = (float *)(s.gain + (NORM ? LT_RING_GAIN_BYTES(WIDTH_OF(a), (int)sizeof(PARAM)) : 0));
    s.angles = s.part + (NORM ? LT_RING_PART_FLOATS(M, WIDTH_OF(a)) : 0);
    s.slots = (int *)(s.angles + (TAIL == 2 ? LT_RING_ANGLE_FLOATS(M, a->dim) : 0));
    return s;
}

/* ---- What comes before */

#if NORM
/* The gains are weights, so they are copied with the first stage. norm_rows waits for them, and for
 * all threads, since the thread that copies one need not be the one that reads it. */
INLINE void send_gains(const lt_gemv_ring_args *a, const places *s) {
    const int each = 8 * (int)sizeof(PARAM) / 16;
    EACH_PIECE(a, c, (int)threadIdx.x, THREADS) {
#pragma unroll
        for (int i = 0; i < each; i++) {
            cp_async_16(smem_addr(s->gain) + (u32)(c * each + i) * 16,
                        (const u8 *)a->gain + (c * each + i) * 16);
        }
    }
}
INLINE float sum_of_pieces(const lt_gemv_ring_args *a, const float *part) {
    const int lane = (int)(threadIdx.x % LANES);
    float x = 0.0f;
    EACH_PIECE(a, c, lane, LANES) {
        x += part[c];
    }
    return warp_sum(x);
}
/* A thread's own items, if they stay in its registers (IN_REGISTERS) rather than in s->x. */
typedef struct {
    uint4 v[IN_REGISTERS ? ITEMS : 1];
} own_pieces;
INLINE uint4 *piece_at(const lt_gemv_ring_args *a, const places *s, own_pieces *own, int turn,
                       int m, int c) {
    return IN_REGISTERS ? &own->v[turn] : &s->x[m * x_pitch(a) + c];
}
/* Normalise x (+ add) in place; block 0 also stores the results that the separate op would
 * store. */
INLINE void norm_rows(const lt_gemv_ring_args *a, const places *s, own_pieces *own) {
    __shared__ float meet[M][8], scales[M];
    const int tid = (int)threadIdx.x, warp = (int)(threadIdx.x / 32), pieces = WIDTH_OF(a) / 8;
    const bool keeps = blockIdx.x == 0;
    float scale = 0.0f;

    EACH_TURN(a, turn, ITEMS_AT_ONCE) { /* 1. Sums of squares of pieces. */
        uint4 v[ITEMS_AT_ONCE], more[ITEMS_AT_ONCE];
#pragma unroll
        for (int i = 0; i < ITEMS_AT_ONCE; i++) {
            const int m = row_of(a, turn + i), c = piece_of(a, turn + i);
            if (is_item(a, turn + i) && c < pieces) {
                v[i] = *(const uint4 *)(a->x + m * a->ldx + 8 * c);
                more[i] = ADD ? *(const uint4 *)(a->add + m * a->ld_add + 8 * c) : v[i];
            }
        }
#pragma unroll
        for (int i = 0; i < ITEMS_AT_ONCE; i++) {
            const int m = row_of(a, turn + i), c = piece_of(a, turn + i);
            float f[8], g[8], squares = 0.0f;
            if (!is_item(a, turn + i) || c >= pieces) {
                continue;
            }
            if (ADD) {
                UNPACK(DTYPE, f, v[i]);
                UNPACK(DTYPE, g, more[i]);
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    f[e] += g[e];
                }
                v[i] = PACK(DTYPE, f);
                if (keeps) {
                    *(uint4 *)(a->sum + m * a->ld_sum + 8 * c) = v[i];
                }
            }
            UNPACK(DTYPE, f, v[i]);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                squares += f[e] * f[e];
            }
            *piece_at(a, s, own, turn + i, m, c) = v[i];
            s->part[m * pieces + c] = squares;
        }
    }
    cp_async_wait(SENT - 1); /* The gains, which were sent first. */
    __syncthreads();
    if (LANES > 32) { /* 2. Rows: the warps' sums are added by the same tree as in norm.cu. */
        for (int m = 0; m < M && tid < LANES; m++) {
            const float x = sum_of_pieces(a, s->part + m * pieces);
            if (tid % 32 == 0) {
                meet[m][warp] = x;
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        float x = 0.0f;
        if (M > 1 && warp != m % WARPS) { /* One warp per row: broadcast the result to all. */
            continue;
        }
        if (LANES > 32) {
            x = meet[m][tid % 8];
#pragma unroll
            for (int lanes = 4; lanes > 0; lanes /= 2) {
                x += __shfl_xor_sync(ALL_LANES, x, lanes);
            }
        } else {
            x = sum_of_pieces(a, s->part + m * pieces);
        }
        scale = rsqrtf(x * (1.0f / WIDTH_OF(a)) + a->eps);
        if (M > 1 && tid % 32 == 0) {
            scales[m] = scale;
        }
        if (keeps && a->rstd && tid % 32 == 0 && warp == m % WARPS) {
            a->rstd[m] = scale;
        }
    }
    if (M > 1) {
        __syncthreads();
    }
    /* 3. Normalise the thread's own pieces, in the order in which they were read. */
    EACH_TURN(a, turn, 1) {
        const int m = row_of(a, turn), c = piece_of(a, turn);
        float g[8], f[8];
        if (!is_item(a, turn) || c >= pieces) {
            continue;
        }
        if (sizeof(PARAM) == 4) {
            *(float4 *)g = *(const float4 *)(s->gain + 32 * c),
                     *(float4 *)(g + 4) = *(const float4 *)(s->gain + 32 * c + 16);
        } else {
            bf16_unpack(g, *(const uint4 *)(s->gain + 16 * c));
        }
        UNPACK(DTYPE, f, *piece_at(a, s, own, turn, m, c));
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const float hat = f[e] * (M > 1 ? scales[m] : scale);
            f[e] = hat * (a->gain_offset + g[e]);
        }
        const uint4 y = PACK(DTYPE, f);
        *piece_at(a, s, own, turn, m, c) = y;
        if (keeps) {
            *(uint4 *)(a->normed + m * a->ld_normed + 8 * c) = y;
        }
    }
}
#endif

/* ---- What comes behind */

INLINE float activate(float x) {
    return KIND == 2 ? silu(x) : gelu_tanh(x);
}
INLINE float product_of(const lt_gemv_ring_args *a, int col, float sum) { /* Rounded to y's type. */
    return TO_F32(OUT, FROM_F32(OUT, sum + BIAS_AT(a, col)));
}
INLINE void turn_and_write(const lt_gemv_ring_args *a, const places *s, int m, int pair,
                           float first, float second) {
    const int half = a->dim / 2, i = pair % half, head = pair / half, col = head * a->dim + i;
    OUT *const y = a->y + m * a->ldy + col;
    float u = product_of(a, col, first), v = product_of(a, col + half, second);
    const int slot = s->slots[m];
    if (head < a->q_heads + a->kv_heads) {
        rotate_pair(&u, &v, s->angles[(m * half + i) * 2], s->angles[(m * half + i) * 2 + 1]);
    }
    y[0] = FROM_F32(OUT, u), y[half] = FROM_F32(OUT, v);
    if (head >= a->q_heads && slot >= 0) {
        const bool value = head >= a->q_heads + a->kv_heads;
        const int g = head - a->q_heads - (value ? a->kv_heads : 0);
        OUT *const page = (OUT *)(value ? a->v_pages : a->k_pages) +
                          ((i64)slot * a->kv_heads + g) * a->dim + i;
        page[0] = FROM_F32(OUT, u), page[half] = FROM_F32(OUT, v);
    }
}
INLINE void store_column(const lt_gemv_ring_args *a, int m, int col, float sum) {
    if (col < a->n) {
        product_store(a->y + m * a->ldy + col, sum, BIAS_AT(a, col), BARE ? 0 : a->accumulate);
    }
}
/* TAIL 1, 2: pair p of columns (column_of, + distance_of). */
INLINE void store_pair(const lt_gemv_ring_args *a, const places *s, int m, int pair, float first,
                       float second) {
#if TAIL == 2
    turn_and_write(a, s, m, pair, first, second);
#elif TAIL == 1
    (void)s;
    store_column(a, m, pair, first);
    store_column(a, m, pair + a->n / 2, second);
    a->act[m * a->ld_act + pair] = FROM_F32(DTYPE, activate(product_of(a, pair, first)) *
                                                       product_of(a, pair + a->n / 2, second));
#endif
}

/* ---- Both */

/* Before the preceding kernels are done, copy what none of them writes. Gains are part of the first
 * stage. */
INLINE void send_early(const lt_gemv_ring_args *a, const places *s) {
#if NORM
    send_gains(a, s);
#endif
#if TAIL == 2
    for (int i = (int)threadIdx.x; i < M * a->dim; i += THREADS) {
        s->angles[i] = a->table[(i64)a->positions[i / a->dim] * a->dim + i % a->dim];
    }
    if (threadIdx.x < M) {
        s->slots[threadIdx.x] = a->slots[threadIdx.x];
    }
#endif
    (void)a, (void)s;
}
/* Afterwards, copy x. */
INLINE void bring_x(const lt_gemv_ring_args *a, const places *s) {
#if NORM
    own_pieces none;
    norm_rows(a, s, &none);
#elif HELD
    for (int m = 0; m < M; m++) {
        EACH_PIECE(a, c, (int)threadIdx.x, THREADS) {
            s->x[m * x_pitch(a) + c] = *(const uint4 *)(a->x + m * a->ldx + 8 * c);
        }
    }
#endif
    if (NORM || HELD || TAIL == 2) {
        __syncthreads();
    }
}
/* Eight elements of row m, starting at column k. */
INLINE const uint4 *x_at(const lt_gemv_ring_args *a, const places *s, int m, int k) {
    return HELD ? s->x + m * x_pitch(a) + k / 8 : (const uint4 *)(a->x + m * a->ldx + k);
}

#endif
