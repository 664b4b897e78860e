/* tiled.cu: attention in fp32, forward and backward, on CUDA cores: FlashAttention's tiles
 * (ladder/02_tiled.cu), for training in fp32.
 *
 * SHAPES    q, out, dO, dQ (B, T, H, D), k, v, dK, dV (B, S, G, D) of fp32 with
 *           lt_attn_plain_strides of their own, rows of whole 16 bytes; D a multiple of 4 up to
 *           WIDTH (64, 128).
 * MAP       128 threads as 8 x 16 (ty, tx) and 64 rows of a head: queries (forward, dQ) or keys
 *           (dK, dV). PARTNERS (32, 64) come at a time. A thread has 8 rows (8 ty ..) x PARTNERS /
 *           16 partners (tx, tx + 16, ..) of the scores, and 8 rows x WIDTH / 16 columns (4 tx ..,
 *           in quads 64 apart) of each sum.
 * MOVEMENT
 *     rows, partners ──float4──▶ smem ──▶ S = rows x partners, in registers ─ mask, softmax ─▶
 *         P or dS in smem ──▶ sum += P x partners
 *           Both products read 16 bytes at a time: 16 reads of 128 bytes for 128 multiply-adds a
 *           warp (S, 64 partners), 24 for 256 (sums, WIDTH 128). Rows are padded by 4 floats: eight
 *           neighbours of tx read eight rows, 4 banks apart. Forward, K and V share a place: V is
 *           fetched under the softmax, and two blocks or more fit an SM.
 * BOUND     f32 multiply-adds, 67 TFLOP/s on an H100. Backward makes 7 products for the 5 that are
 *           counted: S and dP twice, but nothing is added by two blocks.
 * NUMERICS  f32, exp and tanh of CUDA's library; sums in order of keys (out, dQ), of heads and
 *           queries (dK, dV): bit-identical run to run. A row that sees nothing: 0, lse -inf.
 * REFS      Dao et al. 2022 (arXiv:2205.14135), algorithms 1 and 4. */
#include "attention/plain.cuh"

#define THREADS   128
#define ROWS      LT_ATTN_TILED_ROWS /* Rows of a tile. */
#define TALL      8                  /* Rows per thread. */
#define MEET      (PARTNERS / 16)    /* Partners per thread. */
#define QUADS     (WIDTH / 64)       /* Groups of four columns for each thread. */
#define PAD       (WIDTH + 4)
#define P_PAD     (PARTNERS + 4)
#define OWN       (ROWS * PAD) /* Floats of a tile of rows, and of a tile of partners. */
#define OTHERS    (PARTNERS * PAD)
#define PLACES(t) (((t) * (OWN + OTHERS) + ROWS * P_PAD) * 4)
static_assert(PLACES(1) == LT_ATTN_TILED_BYTES(1, PARTNERS, WIDTH) &&
                  PLACES(2) == LT_ATTN_TILED_BYTES(2, PARTNERS, WIDTH),
              "tiles and P");
#define TX         ((int)threadIdx.x % 16)
#define TY         ((int)threadIdx.x / 16)
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)

/* Load a tile of `height` rows: `rows` x dim floats of memory, rows `step` apart, and zeros around
 * them. */
INLINE void tile_load(float *to, int height, const float *from, i64 step, int rows, int dim) {
#pragma unroll 2
    for (int i = (int)threadIdx.x; i < height * WIDTH / 4; i += THREADS) {
        const int r = i / (WIDTH / 4), c = i % (WIDTH / 4) * 4;
        *(float4 *)(to + r * PAD + c) = r < rows && c < dim ? *(const float4 *)(from + r * step + c)
                                                            : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}
/* s[i][n] = row 8 ty + i of a . row tx + 16 n of b */
INLINE void product_nt(float s[TALL][MEET], const float *a, const float *b) {
    EACH(i, TALL) EACH(n, MEET) s[i][n] = 0.0f;
#pragma unroll 1
    for (int d = 0; d < WIDTH; d += 4) {
        float4 x[TALL], y[MEET];
        EACH(n, MEET) y[n] = *(const float4 *)(b + (TX + n * 16) * PAD + d);
        EACH(i, TALL) x[i] = *(const float4 *)(a + (TY * TALL + i) * PAD + d);
        EACH(i, TALL)
        EACH(n, MEET)
        s[i][n] += x[i].x * y[n].x + x[i].y * y[n].y + x[i].z * y[n].z + x[i].w * y[n].w;
    }
}
INLINE void add_scaled(float4 *to, float f, float4 x) {
    to->x += f * x.x, to->y += f * x.y, to->z += f * x.z, to->w += f * x.w;
}
/* sum += p (ROWS, PARTNERS) x (PARTNERS, WIDTH) */
INLINE void product_nn(float4 sum[TALL][QUADS], const float *p, const float *x) {
#pragma unroll 1
    for (int j = 0; j < PARTNERS; j += 4) {
        float4 f[TALL];
        EACH(i, TALL) f[i] = *(const float4 *)(p + (TY * TALL + i) * P_PAD + j);
        EACH(c, QUADS) {
            float4 y[4];
            EACH(n, 4) y[n] = *(const float4 *)(x + (j + n) * PAD + c * 64 + TX * 4);
            EACH(i, TALL) {
                add_scaled(&sum[i][c], f[i].x, y[0]);
                add_scaled(&sum[i][c], f[i].y, y[1]);
                add_scaled(&sum[i][c], f[i].z, y[2]);
                add_scaled(&sum[i][c], f[i].w, y[3]);
            }
        }
    }
}
INLINE void zero(float4 sum[TALL][QUADS]) {
    EACH(i, TALL) EACH(c, QUADS) sum[i][c] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}
INLINE void p_store(float *p, const float s[TALL][MEET]) {
    EACH(i, TALL) EACH(n, MEET) p[(TY * TALL + i) * P_PAD + TX + n * 16] = s[i][n];
}
/* Store the sums, each row times its factor, inside the limits of rows and columns. */
INLINE void rows_store(float *to, i64 step, const float4 sum[TALL][QUADS], const float factor[TALL],
                       int rows, int dim) {
    EACH(i, TALL) EACH(c, QUADS) {
        const int r = TY * TALL + i, col = c * 64 + TX * 4;
        const float f = factor[i];
        const float4 x = sum[i][c];
        if (r < rows && col < dim) {
            *(float4 *)(to + r * step + col) = make_float4(x.x * f, x.y * f, x.z * f, x.w * f);
        }
    }
}
/* The keys of query t; none after the last query. */
INLINE span sees(const lt_attn_plain_args *w, int b, int t, int n_keys) {
    const span none = {0, 0, 0};
    return t < w->q_tokens ? visible(w, b, t, n_keys) : none;
}
/* Keys that some of n queries see: neither end falls as t rises. */
INLINE span tile_sees(const lt_attn_plain_args *w, int b, int first, int n, int n_keys) {
    span s = visible(w, b, first, n_keys);
    s.to = visible(w, b, min(first + n, w->q_tokens) - 1, n_keys).to;
    return s;
}
/* The tile and head of this block. If causal, the tiles with the most work begin first: the last
 * queries, the first keys. */
typedef struct {
    int first, h, b;
} place;
INLINE place place_of(int tokens, int heads, bool last_first) {
    const int tiles = (tokens + ROWS - 1) / ROWS, pairs = (int)gridDim.x / tiles,
              pair = (int)blockIdx.x % pairs, tile = (int)blockIdx.x / pairs;
    const place p = {(last_first ? tiles - 1 - tile : tile) * ROWS, pair % heads, pair / heads};
    return p;
}

extern "C" __global__ void __launch_bounds__(THREADS, WIDTH == 64 ? 4 : 2)
    attn_tiled_fwd(const __grid_constant__ lt_attn_plain_args w) {
    extern __shared__ __align__(16) float room[];
    float *const q = room, *const kv = q + OWN, *const p = kv + OTHERS;
    const place at = place_of(w.q_tokens, w.heads, true);
    const int g = at.h / (w.heads / w.kv_heads), n_keys = keys_of(&w, at.b);
    const float *const k = w.k + at.b * w.sk.b + g * w.sk.h, *const v = w.v + at.b * w.sv.b +
                                                                        g * w.sv.h;
    const span all = tile_sees(&w, at.b, at.first, ROWS, n_keys);
    const float start = w.sinks ? w.sinks[at.h] : -INFINITE;
    float top[TALL], sum[TALL], shrink[TALL], slope;
    float4 out[TALL][QUADS];

    zero(out);
    EACH(i, TALL) {
        top[i] = start;
        sum[i] = w.sinks ? 1.0f : 0.0f;
    }
    tile_load(q, ROWS, w.q + at.b * w.sq.b + at.first * w.sq.t + at.h * w.sq.h, w.sq.t,
              w.q_tokens - at.first, w.dim);
    for (int s0 = all.from / PARTNERS * PARTNERS; s0 < all.to; s0 += PARTNERS) {
        float s[TALL][MEET];
        __syncthreads(); /* The previous tile has been used. */
        tile_load(kv, PARTNERS, k + s0 * w.sk.t, w.sk.t, n_keys - s0, w.dim);
        __syncthreads();
        product_nt(s, q, kv);
        __syncthreads();
        tile_load(kv, PARTNERS, v + s0 * w.sv.t, w.sv.t, n_keys - s0, w.dim);
        EACH(i, TALL) {
            /* Computed again for each tile, since registers are scarcer. */
            const span see = sees(&w, at.b, at.first + TY * TALL + i, n_keys);
            float most = top[i], part = 0.0f;
            EACH(n, MEET) {
                const int key = s0 + TX + n * 16;
                s[i][n] = key >= see.from && key < see.to
                              ? logit(&w, s[i][n], at.h, key, see.pos, &slope)
                              : -INFINITE;
                most = fmaxf(most, s[i][n]);
            }
            most = lanes_max(most, 16);
            EACH(n, MEET) {
                s[i][n] = s[i][n] > -INFINITE ? expf(s[i][n] - most) : 0.0f;
                part += s[i][n];
            }
            shrink[i] = top[i] > -INFINITE ? expf(top[i] - most) : 0.0f;
            sum[i] = sum[i] * shrink[i] + lanes_sum(part, 16);
            top[i] = most;
            EACH(c, QUADS)
            out[i][c] = make_float4(out[i][c].x * shrink[i], out[i][c].y * shrink[i],
                                    out[i][c].z * shrink[i], out[i][c].w * shrink[i]);
        }
        p_store(p, s);
        __syncthreads();
        product_nn(out, p, kv);
    }
    EACH(i, TALL) {
        const int t = at.first + TY * TALL + i;
        shrink[i] = sum[i] > 0.0f ? 1.0f / sum[i] : 0.0f;
        if (TX == 0 && t < w.q_tokens && w.lse) {
            w.lse[((i64)at.b * w.heads + at.h) * w.q_tokens + t] = sum[i] > 0.0f
                                                                       ? top[i] + logf(sum[i])
                                                                       : -INFINITE;
        }
    }
    rows_store(w.out + at.b * w.so.b + at.first * w.so.t + at.h * w.so.h, w.so.t, out, shrink,
               w.q_tokens - at.first, w.dim);
}

/* delta and dQ. */
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attn_tiled_dq(const __grid_constant__ lt_attn_plain_args w) {
    extern __shared__ __align__(16) float room[];
    float *const q = room, *const d_out = q + OWN, *const k = d_out + OWN, *const v = k + OTHERS,
                 *const p = v + OTHERS;
    const place at = place_of(w.q_tokens, w.heads, true);
    const int g = at.h / (w.heads / w.kv_heads), n_keys = keys_of(&w, at.b),
              rows = w.q_tokens - at.first;
    const float *const k_rows = w.k + at.b * w.sk.b + g * w.sk.h, *const v_rows = w.v +
                                                                                  at.b * w.sv.b +
                                                                                  g * w.sv.h;
    const float *const o = w.out + at.b * w.so.b + at.first * w.so.t + at.h * w.so.h;
    const i64 stats = ((i64)at.b * w.heads + at.h) * w.q_tokens + at.first;
    const span all = tile_sees(&w, at.b, at.first, ROWS, n_keys);
    float delta[TALL], lse[TALL], scale[TALL];
    float4 dq[TALL][QUADS];

    zero(dq);
    tile_load(q, ROWS, w.q + at.b * w.sq.b + at.first * w.sq.t + at.h * w.sq.h, w.sq.t, rows,
              w.dim);
    tile_load(d_out, ROWS, w.d_out + at.b * w.sdo.b + at.first * w.sdo.t + at.h * w.sdo.h, w.sdo.t,
              rows, w.dim);
    __syncthreads();
    EACH(i, TALL) {
        const int r = TY * TALL + i;
        float part = 0.0f;
        for (int d = TX; d < w.dim && r < rows; d += 16) {
            part += d_out[r * PAD + d] * o[r * w.so.t + d];
        }
        delta[i] = lanes_sum(part, 16);
        lse[i] = r < rows ? w.lse[stats + r] : -INFINITE;
        scale[i] = w.scale;
        if (TX == 0 && r < rows) {
            w.delta[stats + r] = delta[i];
        }
    }
    for (int s0 = all.from / PARTNERS * PARTNERS; s0 < all.to; s0 += PARTNERS) {
        float s[TALL][MEET], dp[TALL][MEET];
        __syncthreads();
        tile_load(k, PARTNERS, k_rows + s0 * w.sk.t, w.sk.t, n_keys - s0, w.dim);
        tile_load(v, PARTNERS, v_rows + s0 * w.sv.t, w.sv.t, n_keys - s0, w.dim);
        __syncthreads();
        product_nt(s, q, k);
        product_nt(dp, d_out, v);
        EACH(i, TALL) {
            const span see = sees(&w, at.b, at.first + TY * TALL + i, n_keys);
            EACH(n, MEET) {
                const int key = s0 + TX + n * 16;
                float prob = 0.0f, draw = 0.0f;
                if (key >= see.from && key < see.to) {
                    pair(&w, s[i][n], dp[i][n], lse[i], delta[i], at.h, key, see.pos, &prob, &draw);
                }
                s[i][n] = draw;
            }
        }
        p_store(p, s);
        __syncthreads();
        product_nn(dq, p, k);
    }
    rows_store(w.dq + at.b * w.sdq.b + at.first * w.sdq.t + at.h * w.sdq.h, w.sdq.t, dq, scale,
               rows, w.dim);
}

/* dK and dV, after every delta. */
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attn_tiled_dkv(const __grid_constant__ lt_attn_plain_args w) {
    extern __shared__ __align__(16) float room[];
    float *const k = room, *const v = k + OWN, *const q = v + OWN, *const d_out = q + OTHERS,
                 *const p = d_out + OTHERS;
    const place at = place_of(w.kv_tokens, w.kv_heads, false); /* h: of keys */
    const int group = w.heads / w.kv_heads, n_keys = keys_of(&w, at.b),
              rows = w.kv_tokens - at.first;
    float scale[TALL], one[TALL];
    float4 dk[TALL][QUADS], dv[TALL][QUADS];

    zero(dk);
    zero(dv);
    EACH(i, TALL) scale[i] = w.scale, one[i] = 1.0f;
    tile_load(k, ROWS, w.k + at.b * w.sk.b + at.first * w.sk.t + at.h * w.sk.h, w.sk.t,
              n_keys - at.first, w.dim);
    tile_load(v, ROWS, w.v + at.b * w.sv.b + at.first * w.sv.t + at.h * w.sv.h, w.sv.t,
              n_keys - at.first, w.dim);
    for (int h = at.h * group; h < (at.h + 1) * group; h++) {
        const float *const q_rows = w.q + at.b * w.sq.b + h * w.sq.h, *const d_rows = w.d_out +
                                                                                      at.b *
                                                                                          w.sdo.b +
                                                                                      h * w.sdo.h;
        const i64 stats = ((i64)at.b * w.heads + h) * w.q_tokens;
        for (int t0 = 0; t0 < w.q_tokens; t0 += PARTNERS) {
            const span all = tile_sees(&w, at.b, t0, PARTNERS, n_keys);
            float s[TALL][MEET], dp[TALL][MEET];
            if (all.to <= at.first || all.from >= at.first + ROWS) {
                continue; /* None of these queries sees one of these keys. */
            }
            __syncthreads();
            tile_load(q, PARTNERS, q_rows + t0 * w.sq.t, w.sq.t, w.q_tokens - t0, w.dim);
            tile_load(d_out, PARTNERS, d_rows + t0 * w.sdo.t, w.sdo.t, w.q_tokens - t0, w.dim);
            __syncthreads();
            product_nt(s, k, q);
            product_nt(dp, v, d_out);
            EACH(n, MEET) {
                const int t = t0 + TX + n * 16;
                const span see = sees(&w, at.b, t, n_keys);
                const float lse = t < w.q_tokens ? w.lse[stats + t] : -INFINITE,
                            delta = t < w.q_tokens ? w.delta[stats + t] : 0.0f;
                EACH(i, TALL) {
                    const int key = at.first + TY * TALL + i;
                    float prob = 0.0f, draw = 0.0f;
                    if (key >= see.from && key < see.to) {
                        pair(&w, s[i][n], dp[i][n], lse, delta, h, key, see.pos, &prob, &draw);
                    }
                    s[i][n] = prob, dp[i][n] = draw;
                }
            }
            p_store(p, s);
            __syncthreads();
            product_nn(dv, p, d_out);
            __syncthreads();
            p_store(p, dp);
            __syncthreads();
            product_nn(dk, p, q);
        }
    }
    rows_store(w.dk + at.b * w.sdk.b + at.first * w.sdk.t + at.h * w.sdk.h, w.sdk.t, dk, scale,
               rows, w.dim);
    rows_store(w.dv + at.b * w.sdv.b + at.first * w.sdv.t + at.h * w.sdv.h, w.sdv.t, dv, one, rows,
               w.dim);
}
