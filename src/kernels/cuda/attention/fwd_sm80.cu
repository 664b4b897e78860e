/* fwd_sm80.cu: O = softmax(mask(scale * Q K^T)) V and its log-sum-exp, forward, on the tensor cores
 * as GPUs from sm_80 on have them.
 *
 * SHAPES    q, o (B, T, H, D), k, v (B, S, G, D), any lt_attn_strides of 16 bytes; D <= WIDTH (64,
 *           96, 128, 192, 256), the rest read as zero; any T, S.
 * MAP       4 warps, 16 TILES queries of one head each. Causal: long rows first.
 * MOVEMENT
 *     Q (ROWS, D) ──cp.async──▶ smem ──ldmatrix──▶ fragments, for each block of keys anew, since
 *                                                  the registers hold O
 *     K block (STEP, D) ──cp.async──▶ smem ──ldmatrix──▶ S = Q K^T f32 registers
 *         ─ mask, exp2, row sums ─▶ P 16-bit registers ─────────────────┐
 *     V block (STEP, D) ──cp.async──▶ smem ──ldmatrix.trans────mma.sync─┴─▶ O f32 registers
 *     V comes under Q K^T, the next K under the softmax and P V. Each has one place, so that two
 *     blocks fit an SM and one's exponentials run under the other's products. With TILES = 2 a
 *     fragment of K or V serves 32 queries: with 16, an SM's shared memory would be as busy as its
 *     tensor cores.
 * BOUND     4 T S D H flop (half if causal) at 2048 flop a clock an SM (A100); T S H exponentials
 *           at 16 a clock an SM.
 * MEASURED  docs/speed/attention.md.
 * NUMERICS  scores and sums in f32, P rounded to 16 bits, O in f32, one rounding at the store.
 *           Online softmax, fixed order: bit-identical run to run. A row that sees no key: 0, lse
 *           -inf.
 * LADDER    of ladder/03_mma_sync.cu's kind; the Hopper kernel is fwd_sm90.cu.
 * REFS      Dao 2023 (arXiv:2307.08691). */
#include "attention/sm80.cuh"

/* scores are turned into logits before the maximum is taken */
#define LOG2_UNITS (SOFTCAP || ALIBI)

/* State of this thread's rows. */
typedef struct {
    /* top: in units of the scores; sum: this thread's part until the end */
    float top[TILES][2], sum[TILES][2];
} rows_state;

/* The query of this thread's row; rows after the last repeat it. */
INLINE int token_of(int first, int m, int half) {
    return first + (int)threadIdx.x / 32 * 16 * TILES + m * 16 + half * 8 +
           (int)threadIdx.x % 32 / 4;
}
INLINE void mask_block(float s[TILES][STEP / 8][4], const lt_attn_sm80_args *w, int b, int n_keys,
                       int first, int first_key) {
    const int col = first_key + (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2 * TILES; r++) {
        const key_range see = range_of(&w->a, b, n_keys, token_of(first, r / 2, r % 2));
#pragma unroll
        for (int i = 0; i < STEP / 4; i++) {
            const int key = col + i / 2 * 8 + i % 2;
            float *const x = &s[r / 2][i / 2][r % 2 * 2 + i % 2];
            *x = key < see.lo || key > see.hi ? -INFINITE : *x;
        }
    }
}
INLINE void logits_block(float s[TILES][STEP / 8][4], const lt_attn_sm80_args *w, float alibi,
                         int offset, int first, int first_key) {
    const int col = first_key + (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2 * TILES; r++) {
        const int position = token_of(first, r / 2, r % 2) + offset;
#pragma unroll
        for (int i = 0; i < STEP / 4; i++) {
            float *const x = &s[r / 2][i / 2][r % 2 * 2 + i % 2], slope;
            *x = logit_of(w, *x, alibi, col + i / 2 * 8 + i % 2, position, &slope);
        }
    }
}
/* Over the four threads of a row. */
INLINE float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
INLINE float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
/* S to P; earlier sums and outputs are rescaled to the new maximum. */
INLINE void softmax_block(float s[TILES][STEP / 8][4], float out[TILES][WIDTH / 8][4],
                          rows_state *state, float scale) {
#pragma unroll
    for (int r = 0; r < 2 * TILES; r++) {
        const int m = r / 2, h = r % 2 * 2;
        float most = s[m][0][h], sum = 0.0f;
#pragma unroll
        for (int i = 0; i < STEP / 8; i++) {
            most = fmaxf(most, fmaxf(s[m][i][h], s[m][i][h + 1]));
        }
        most = fmaxf(row_max(most), state->top[m][r % 2]);
        const float base = most == -INFINITE ? 0.0f : most * scale,
                    shrink = exp2_fast(state->top[m][r % 2] * scale - base);
        state->top[m][r % 2] = most;
#pragma unroll
        for (int i = 0; i < WIDTH / 8; i++) {
            out[m][i][h] *= shrink;
            out[m][i][h + 1] *= shrink;
        }
#pragma unroll
        for (int i = 0; i < STEP / 8; i++) {
            s[m][i][h] = exp2_fast(s[m][i][h] * scale - base);
            s[m][i][h + 1] = exp2_fast(s[m][i][h + 1] * scale - base);
            sum += s[m][i][h] + s[m][i][h + 1];
        }
        state->sum[m][r % 2] = state->sum[m][r % 2] * shrink + sum;
    }
}
/* Log-sum-exps, and the factor for O. */
INLINE void finish(float inverse[TILES][2], const rows_state *state, const lt_attn_sm80_args *w,
                   int b, int head, int first, float scale) {
#pragma unroll
    for (int r = 0; r < 2 * TILES; r++) {
        const int t = token_of(first, r / 2, r % 2);
        float sum = row_sum(state->sum[r / 2][r % 2]), top = state->top[r / 2][r % 2] * scale,
              keep = 1.0f;
        if (SINKS) { /* The sink is one more logit of the sum, without a value. */
            const float sink = w->a.sinks[head] * LOG2E, most = fmaxf(top, sink);
            keep = exp2_fast(top - most);
            sum = sum * keep + exp2_fast(sink - most);
            top = most;
        }
        inverse[r / 2][r % 2] = sum == 0.0f ? 0.0f : keep / sum;
        if (w->a.lse != 0 && threadIdx.x % 4 == 0 && t < w->a.q_tokens) {
            w->a.lse[((i64)b * w->a.q_heads + head) * w->a.q_tokens + t] =
                sum == 0.0f ? -INFINITE : top * LN2 + logf(sum);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attn_fwd_sm80(const __grid_constant__ lt_attn_sm80_args w) {
    extern __shared__ __align__(128) u8 smem[];
    static_assert(ROWS * LINE + 2 * STEP * LINE == LT_ATTN_SM80_FORWARD_BYTES(ROWS, STEP, WIDTH),
                  "q, k, v");
    const u32 sq = smem_addr(smem), sk = sq + ROWS * LINE, sv = sk + STEP * LINE;
    const int tiles = div_up(w.a.q_tokens, ROWS), pair = (int)blockIdx.x / tiles,
              b = pair / w.a.q_heads, h = pair % w.a.q_heads;
    const int first = (tiles - 1 - (int)blockIdx.x % tiles) * ROWS,
              g = h / (w.a.q_heads / w.a.kv_heads), n_keys = keys_of(&w.a, b);
    const key_range top = range_of(&w.a, b, n_keys, first),
                    low = range_of(&w.a, b, n_keys, first + ROWS - 1);
    const int j_begin = top.lo / STEP, j_end = low.hi < top.lo ? j_begin : low.hi / STEP + 1;
    const elem *k = w.k + b * w.sk.batch + g * w.sk.head, *v = w.v + b * w.sv.batch + g * w.sv.head;
    const float scale = LOG2_UNITS ? 1.0f : w.a.scale * LOG2E, alibi = alibi_of(&w, h);
    float out[TILES][WIDTH / 8][4] = {{{0.0f}}}, inverse[TILES][2];
    rows_state state;

#pragma unroll
    for (int r = 0; r < 2 * TILES; r++) {
        state.top[r / 2][r % 2] = -INFINITE;
        state.sum[r / 2][r % 2] = 0.0f;
    }
    fetch(sq, ROWS, w.q + b * w.sq.batch + h * w.sq.head, w.sq.token, first, w.a.q_tokens, w.width);
    if (j_begin < j_end) {
        fetch(sk, STEP, k, w.sk.token, j_begin * STEP, n_keys, w.width);
    }
    cp_async_commit();
    for (int j = j_begin; j < j_end; j++) {
        float s[TILES][STEP / 8][4] = {{{0.0f}}};
        cp_async_wait(0);
        __syncthreads(); /* K has arrived, and V's memory is free. */
        fetch(sv, STEP, v, w.sv.token, j * STEP, n_keys, w.width);
        cp_async_commit();
        product_of_rows(s, sq, sk); /* 1. S = Q K^T */
        cp_async_wait(0);
        __syncthreads(); /* V has arrived, and K's memory is free. */
        if (j + 1 < j_end) {
            fetch(sk, STEP, k, w.sk.token, (j + 1) * STEP, n_keys, w.width);
        }
        cp_async_commit();
        if (LOG2_UNITS) {
            logits_block(s, &w, alibi, n_keys - w.a.q_tokens, first, j * STEP);
        }
        /* 2. Only blocks that some row sees partly are masked. */
        if (j * STEP < low.lo || j * STEP + STEP - 1 > top.hi) {
            mask_block(s, &w, b, n_keys, first, j * STEP);
        }
        softmax_block(s, out, &state, scale);
        product_of_sums(out, s, sv); /* 3. O += P V */
    }
    finish(inverse, &state, &w, b, h, first, scale);
    cp_async_wait(0);
    __syncthreads(); /* Even without keys all threads must have read Q, because O overwrites it. */
    store_rows(w.o + b * w.so.batch + h * w.so.head, w.so.token, first, w.a.q_tokens, w.width, out,
               inverse, sq);
}
