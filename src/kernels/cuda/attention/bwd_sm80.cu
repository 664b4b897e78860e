/* bwd_sm80.cu: dQ, dK, dV of attention from Q, K, V, dO and the forward's log-sum-exp, on the
 * tensor cores as GPUs from sm_80 on have them; bit-identical run to run.
 *
 * SHAPES    as fwd_sm80.cu.
 * MAP       two passes of one kernel, so that each result is summed by one block, in order, without
 *           atomics: seven products instead of five.
 *               GIVES = 1 (dQ)                      a block's rows are queries of a head, its steps
 *                                                   the keys they see
 *               GIVES = 2 (dV), 4 (dK), 6 (both)    a block's rows are keys of a key head, its
 *                                                   steps the queries that see them, of each query
 *                                                   head of the group
 *           4 warps, 16 TILES rows each, STEP rows of the other side a step. Wide heads' dK and dV
 *           do not fit in registers together: a pass each.
 * MOVEMENT  a, b: the rows' Q, dO (or K, V), in smem for good; x, y: the step's K, V (or Q, dO),
 *           two places each, the next step's on their way by cp.async.
 *     S = a x^T ─ mask, exp2(S - lse) ─▶ P in registers ──▶ dV += P y
 *     dP = b y^T ─ P (dP - delta) ─▶ dS in registers ──▶ dQ or dK += dS x
 *     The sums of one product are the next one's left operand without moving; with keys as rows, S
 *     and P are transposed, which needs no instruction.
 * BOUND     14 T S D H flop (half if causal; 16 with a pass for dK) at 2048 flop a clock an SM
 *           (A100).
 * MEASURED  docs/speed/attention.md.
 * NUMERICS  S, dP, P, dS in f32; P and dS rounded to 16 bits as operands; sums in f32, in order of
 *           keys (dQ), of heads and queries (dK, dV), one rounding at the store.
 * REFS      Dao 2023 (arXiv:2307.08691). */
#include "attention/sm80.cuh"

#define OF_KEYS    (GIVES != 1)       /* the rows are keys */
#define WITH_DS    ((GIVES & 5) != 0) /* dQ or dK */
#define STEP_BYTES (2 * STEP * LINE)  /* x and y of a step */
/* log-sum-exps and deltas of the queries of a step, with OF_KEYS */
#define STATS_BYTES (2 * STEP * 4)
static_assert(GIVES == 1 || GIVES == 2 || GIVES == 4 || GIVES == 6, "what a pass gives");

/* delta[b][h][t], with LANES threads per row. */
extern "C" __global__ void __launch_bounds__(THREADS)
    attn_bwd_sm80_delta(const __grid_constant__ lt_attn_sm80_args w) {
    const i64 row = (i64)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES,
              rows = (i64)w.a.batch * w.a.q_heads * w.a.q_tokens;
    const int lane = (int)threadIdx.x % LANES, t = (int)(row % w.a.q_tokens),
              h = (int)(row / w.a.q_tokens % w.a.q_heads),
              b = (int)(row / w.a.q_tokens / w.a.q_heads);
    float sum = 0.0f;
    if (row < rows && lane * 8 < w.width) {
        const uint4 x = *(const uint4 *)(w.o + b * w.so.batch + h * w.so.head + t * w.so.token +
                                         lane * 8);
        const uint4 y = *(const uint4 *)(w.d_o + b * w.sdo.batch + h * w.sdo.head +
                                         t * w.sdo.token + lane * 8);
        sum = elem_lo(x.x) * elem_lo(y.x) + elem_hi(x.x) * elem_hi(y.x) +
              elem_lo(x.y) * elem_lo(y.y) + elem_hi(x.y) * elem_hi(y.y) +
              elem_lo(x.z) * elem_lo(y.z) + elem_hi(x.z) * elem_hi(y.z) +
              elem_lo(x.w) * elem_lo(y.w) + elem_hi(x.w) * elem_hi(y.w);
    }
#pragma unroll
    for (int i = LANES / 2; i > 0; i /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, i);
    }
    if (row < rows && lane == 0) {
        w.delta[row] = sum;
    }
}

/* The work of a block. */
typedef struct {
    int b, kv_head, n_keys, first; /* first: first of its rows */
    /* range of rows on the other side that meet them; begin is a multiple of STEP */
    int begin, end;
    int whole_from, whole_to; /* the part of this range that meets all of the block's rows */
    int head, heads;          /* query heads: a single one, or all of the group */
} job;
/* The first query whose last (or first) visible key is at or after `key`: both rise with the
 * query. */
INLINE int query_of(const lt_attn_args *a, int b, int n_keys, int key, bool last) {
    int low = 0, high = a->q_tokens;
    while (low < high) {
        const int mid = (low + high) / 2;
        const key_range see = range_of(a, b, n_keys, mid);
        if ((last ? see.hi : see.lo) >= key) {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    return low;
}
INLINE job job_of(const lt_attn_args *a) {
    const int group = a->q_heads / a->kv_heads,
              tiles = div_up(OF_KEYS ? a->kv_tokens : a->q_tokens, ROWS),
              heads = OF_KEYS ? a->kv_heads : a->q_heads;
    const int pair = (int)blockIdx.x / tiles, tile = (int)blockIdx.x % tiles;
    job j;
    j.b = pair / heads;
    j.n_keys = keys_of(a, j.b);
    if (OF_KEYS) { /* Causal: most queries see the first keys, so these come first. */
        j.kv_head = pair % heads, j.head = j.kv_head * group, j.heads = group;
        j.first = tile * ROWS;
        j.begin = query_of(a, j.b, j.n_keys, j.first, true) / STEP * STEP;
        j.end = query_of(a, j.b, j.n_keys, j.first + ROWS, false);
        j.whole_from = query_of(a, j.b, j.n_keys, j.first + ROWS - 1, true);
        j.whole_to = query_of(a, j.b, j.n_keys, j.first + 1, false);
    } else {
        j.head = pair % heads, j.kv_head = j.head / group, j.heads = 1;
        j.first = (tiles - 1 - tile) * ROWS;
        const key_range top = range_of(a, j.b, j.n_keys, j.first),
                        low = range_of(a, j.b, j.n_keys, j.first + ROWS - 1);
        j.begin = top.lo / STEP * STEP, j.end = low.hi + 1;
        j.whole_from = low.lo, j.whole_to = top.hi + 1;
    }
    return j;
}

/* Start to copy a step's tiles and, with OF_KEYS, the numbers of its queries. */
INLINE void fetch_step(u32 to, u32 stats, const lt_attn_sm80_args *w, const job *j, int head,
                       int first) {
    if (OF_KEYS) {
        const i64 row = ((i64)j->b * w->a.q_heads + head) * w->a.q_tokens;
        const int at = (int)threadIdx.x % STEP;
        const bool inside = first + at < w->a.q_tokens;
        fetch(to, STEP, w->q + j->b * w->sq.batch + head * w->sq.head, w->sq.token, first,
              w->a.q_tokens, w->width);
        fetch(to + STEP * LINE, STEP, w->d_o + j->b * w->sdo.batch + head * w->sdo.head,
              w->sdo.token, first, w->a.q_tokens, w->width);
        if (threadIdx.x < 2 * STEP) {
            const float *const from = (threadIdx.x < STEP ? w->a.lse : w->delta) + row;
            cp_async_4_or_zero(stats + 4 * threadIdx.x, inside ? from + first + at : from, inside);
        }
    } else {
        fetch(to, STEP, w->k + j->b * w->sk.batch + j->kv_head * w->sk.head, w->sk.token, first,
              j->n_keys, w->width);
        fetch(to + STEP * LINE, STEP, w->v + j->b * w->sv.batch + j->kv_head * w->sv.head,
              w->sv.token, first, j->n_keys, w->width);
    }
    cp_async_commit();
}

/* A row that sees nothing has no probabilities. */
INLINE float lse2_of(float lse) {
    return lse == -INFINITE ? INFINITE : lse * LOG2E;
}
/* the queries whose numbers a thread needs: of its columns of a step, or of its rows */
#define QUERIES (OF_KEYS ? STEP / 4 : 2 * TILES)
INLINE int row_of(int r) {
    return (int)threadIdx.x / 32 * 16 * TILES + r / 2 * 16 + r % 2 * 8 + (int)threadIdx.x % 32 / 4;
}
INLINE int col_of(int c) {
    return c / 2 * 8 + (int)threadIdx.x % 4 * 2 + c % 2;
}
/* A number of each query of the step, read from shared memory when it is needed, since the sums
 * occupy the registers. */
INLINE void columns_read(float x[QUERIES], u32 at) {
#pragma unroll
    for (int c = 0; c < QUERIES; c += 2) {
        ld_shared_v2(at + 4 * col_of(c), x + c, x + c + 1);
    }
}
#define AT(x, r, c) x[(r) / 2][(c) / 2][(r) % 2 * 2 + (c) % 2]

/* S to P, and with SOFTCAP the slopes of dS. `first`: the step's first. */
INLINE void probabilities(float s[TILES][STEP / 8][4], float slopes[TILES][STEP / 8][4],
                          const float lse[QUERIES], const lt_attn_sm80_args *w, const job *j,
                          int first, float alibi, bool masked) {
    const int offset = j->n_keys - w->a.q_tokens;
#pragma unroll
    for (int r = 0; r < 2 * TILES; r++) {
#pragma unroll
        for (int c = 0; c < STEP / 4; c++) {
            const int query = OF_KEYS ? first + col_of(c) : j->first + row_of(r),
                      key = OF_KEYS ? j->first + row_of(r) : first + col_of(c);
            float slope;
            const float x = logit_of(w, AT(s, r, c), alibi, key, query + offset, &slope);
            AT(s, r, c) = exp2_fast(x - lse2_of(lse[OF_KEYS ? c : r]));
            if (SOFTCAP) {
                AT(slopes, r, c) = slope;
            }
        }
    }
    if (!masked) {
        return;
    }
#pragma unroll
    for (int q = 0; q < QUERIES; q++) {
        const int query = OF_KEYS ? first + col_of(q) : j->first + row_of(q);
        const key_range see = range_of(&w->a, j->b, j->n_keys, query);
#pragma unroll
        for (int k = 0; k < (OF_KEYS ? 2 * TILES : STEP / 4); k++) {
            const int key = OF_KEYS ? j->first + row_of(k) : first + col_of(k);
            float *const x = OF_KEYS ? &AT(s, k, q) : &AT(s, q, k);
            *x = key < see.lo || key > see.hi || query >= w->a.q_tokens ? 0.0f : *x;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attn_bwd_sm80(const __grid_constant__ lt_attn_sm80_args w) {
    extern __shared__ __align__(128) u8 smem[];
    static_assert(2 * ROWS * LINE + 2 * STEP_BYTES + 2 * STEP * 8 ==
                      LT_ATTN_SM80_BACKWARD_BYTES(ROWS, STEP, WIDTH),
                  "a, b, the ring, its log-sum-exps and deltas");
    const u32 sa = smem_addr(smem), sb = sa + ROWS * LINE, ring = sb + ROWS * LINE,
              stats = ring + 2 * STEP_BYTES;
    const job j = job_of(&w.a);
    const int steps = j.end > j.begin ? div_up(j.end - j.begin, STEP) : 0,
              rows = OF_KEYS ? w.a.kv_tokens : w.a.q_tokens;
    /* d: dQ or dK */
    float dv[TILES][WIDTH / 8][4] = {{{0.0f}}}, d[TILES][WIDTH / 8][4] = {{{0.0f}}},
                            scale[TILES][2];
    float lse[QUERIES], delta[QUERIES];

    if (OF_KEYS) {
        fetch(sa, ROWS, w.k + j.b * w.sk.batch + j.kv_head * w.sk.head, w.sk.token, j.first,
              j.n_keys, w.width);
        fetch(sb, ROWS, w.v + j.b * w.sv.batch + j.kv_head * w.sv.head, w.sv.token, j.first,
              j.n_keys, w.width);
    } else {
        const i64 row = ((i64)j.b * w.a.q_heads + j.head) * w.a.q_tokens;
        fetch(sa, ROWS, w.q + j.b * w.sq.batch + j.head * w.sq.head, w.sq.token, j.first,
              w.a.q_tokens, w.width);
        fetch(sb, ROWS, w.d_o + j.b * w.sdo.batch + j.head * w.sdo.head, w.sdo.token, j.first,
              w.a.q_tokens, w.width);
#pragma unroll
        for (int r = 0; r < 2 * TILES; r++) {
            const int t = min_i(j.first + row_of(r), w.a.q_tokens - 1);
            lse[r] = w.a.lse[row + t];
            delta[r] = w.delta[row + t];
        }
    }
    /* A separate group: if no step follows, they must have arrived before results overwrite
     * them. */
    cp_async_commit();
    if (steps > 0) {
        fetch_step(ring, stats, &w, &j, j.head, j.begin);
    }
    for (int i = 0, head = 0, step = 0; i < steps * j.heads; i++) {
        const u32 x = ring + i % 2 * STEP_BYTES, y = x + STEP * LINE,
                  at = stats + i % 2 * STATS_BYTES;
        const int first = j.begin + step * STEP;
        const float alibi = alibi_of(&w, j.head + head);
        float p[TILES][STEP / 8][4] = {{{0.0f}}}, dp[TILES][STEP / 8][4] = {{{0.0f}}},
                              slopes[TILES][STEP / 8][4];

        cp_async_wait(0);
        __syncthreads(); /* This step's tiles have arrived, and the previous step is finished. */
        if (++step == steps) {
            step = 0, head++;
        }
        if (i + 1 < steps * j.heads) {
            fetch_step(ring + (i + 1) % 2 * STEP_BYTES, stats + (i + 1) % 2 * STATS_BYTES, &w, &j,
                       j.head + head, j.begin + step * STEP);
        }
        product_of_rows(p, sa, x); /* 1. P */
        if (OF_KEYS) {
            columns_read(lse, at);
        }
        probabilities(p, slopes, lse, &w, &j, first, alibi,
                      first < j.whole_from || first + STEP > j.whole_to);
        if (GIVES & 2) {
            product_of_sums(dv, p, y); /* 2. dV */
        }
        if (WITH_DS) {
            product_of_rows(dp, sb, y); /* 3. dS */
            if (OF_KEYS) {
                columns_read(delta, at + 4 * STEP);
            }
#pragma unroll
            for (int r = 0; r < 2 * TILES; r++) {
#pragma unroll
                for (int c = 0; c < STEP / 4; c++) {
                    const float slope = SOFTCAP ? AT(slopes, r, c) : 1.0f;
                    AT(dp, r, c) = AT(p, r, c) * (AT(dp, r, c) - delta[OF_KEYS ? c : r]) * slope;
                }
            }
            product_of_sums(d, dp, x); /* 4. dQ or dK */
        }
    }
    cp_async_wait(0);
    __syncthreads(); /* Needed also if there was no step. */
#pragma unroll
    for (int r = 0; r < 2 * TILES; r++) {
        scale[r / 2][r % 2] = w.a.scale;
    }
    if (GIVES == 1) {
        store_rows(w.dq + j.b * w.sdq.batch + j.head * w.sdq.head, w.sdq.token, j.first, rows,
                   w.width, d, scale, sa);
    }
    if (GIVES & 4) {
        store_rows(w.dk + j.b * w.sdk.batch + j.kv_head * w.sdk.head, w.sdk.token, j.first, rows,
                   w.width, d, scale, sa);
    }
#pragma unroll
    for (int r = 0; r < 2 * TILES; r++) {
        scale[r / 2][r % 2] = 1.0f;
    }
    if (GIVES & 2) {
        store_rows(w.dv + j.b * w.sdv.batch + j.kv_head * w.sdv.head, w.sdv.token, j.first, rows,
                   w.width, dv, scale, sb);
    }
}
