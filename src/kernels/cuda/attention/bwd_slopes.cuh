/* bwd_slopes.cuh: the steps between the products of bwd_sm90.cu (2 and 3 there): P^T from S^T and
 * dS^T from dP^T, for BM queries and a warpgroup's 64 keys, in registers as wgmma leaves them (keys
 * are rows: a thread has two, eight apart, and two of each eight queries). */
#ifndef LT_CUDA_ATTENTION_BWD_SLOPES_CUH
#define LT_CUDA_ATTENTION_BWD_SLOPES_CUH

#include "attention/bwd_tiles.cuh"
#include "common/hopper.cuh"

/* Whether any of the BM queries from `token` on sees any of n keys; whether each of them sees all
 * keys. */
INLINE bool any_seen(const lt_attn_bwd_args *w, const tile_pos *p, int token, int key, int n) {
    const key_range first = range_of(&w->a, p->b, p->n_keys, token),
                    last = range_of(&w->a, p->b, p->n_keys, token + BM - 1);
    return key <= last.hi && key + n > first.lo;
}
INLINE bool all_seen(const lt_attn_bwd_args *w, const tile_pos *p, int token, int key, int n) {
    const key_range first = range_of(&w->a, p->b, p->n_keys, token),
                    last = range_of(&w->a, p->b, p->n_keys, token + BM - 1);
    return key + n - 1 <= first.hi && key >= last.lo;
}

/* 2. probs becomes P^T, rounded; with SOFTCAP s becomes P^T times the cap's slope. */
INLINE void probabilities(float s[BM / 2], u32 probs[BM / 4], u32 lse, const lt_attn_bwd_args *w,
                          const tile_pos *p, int key, int token, bool mask, float slope) {
    const int lane = (int)threadIdx.x % 32, shift = p->n_keys - w->a.q_tokens;
    const float scale2 = w->a.scale * LOG2E;

#pragma unroll
    for (int i = 0; i < BM / 8; i++) {
        float l[2], x[4], bend[4];
        ld_shared_v2(lse + (8 * i + lane % 4 * 2) * 4, &l[0], &l[1]);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int t = token + 8 * i + e % 2, k = key + e / 2 * 8;
            bend[e] = 1.0f;
            x[e] = s[4 * i + e];
            if (SOFTCAP) {
                const float tanh = tanh_of(__fdividef(x[e] * w->a.scale, w->a.softcap));
                x[e] = w->a.softcap * LOG2E * tanh - l[e % 2];
                bend[e] = 1.0f - tanh * tanh;
            } else {
                x[e] = x[e] * scale2 - l[e % 2];
            }
            if (ALIBI) {
                x[e] += slope * (float)(k - shift - t);
            }
            x[e] = exp2_fast(x[e]);
            if (mask) {
                const key_range see = range_of(&w->a, p->b, p->n_keys, t);
                x[e] = k < see.lo || k > see.hi ? 0.0f : x[e];
            }
            if (SOFTCAP) {
                s[4 * i + e] = x[e] * bend[e];
            }
        }
        probs[2 * i] = PACK_ELEM(x[0], x[1]);
        probs[2 * i + 1] = PACK_ELEM(x[2], x[3]);
    }
}

/* The same with P_KEPT: s becomes P^T. Masks come before the exponentials, so that ptxas may move
 * some of these behind the wait for dP. */
INLINE void probabilities_kept(float s[BM / 2], u32 lse, const lt_attn_bwd_args *w,
                               const tile_pos *p, int key, int token, bool mask, float slope) {
    const int lane = (int)threadIdx.x % 32, shift = p->n_keys - w->a.q_tokens;
    const float scale2 = w->a.scale * LOG2E;

#pragma unroll
    for (int i = 0; i < BM / 8; i++) {
        float l[2];
        ld_shared_v2(lse + (8 * i + lane % 4 * 2) * 4, &l[0], &l[1]);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int t = token + 8 * i + e % 2, k = key + e / 2 * 8;
            s[4 * i + e] = s[4 * i + e] * scale2 - l[e % 2];
            if (ALIBI) {
                s[4 * i + e] += slope * (float)(k - shift - t);
            }
        }
    }
    if (mask) {
#pragma unroll
        for (int i = 0; i < BM / 2; i++) {
            const int t = token + 8 * (i / 4) + i % 2, k = key + i % 4 / 2 * 8;
            const key_range see = range_of(&w->a, p->b, p->n_keys, t);
            s[i] = k < see.lo || k > see.hi ? -INFINITE : s[i];
        }
    }
#pragma unroll
    for (int i = 0; i < BM / 2; i++) {
        s[i] = exp2_fast(s[i]);
    }
}

/* 3. dS^T = P^T (dP^T - delta), rounded: into registers and, for dQ, into shared memory,
 *    transposed: BM queries, 64 keys. With P_KEPT probs := P^T rounded; without, P is taken as
 *    rounded for dV: f32 copies of it would not fit in registers. */
INLINE void slopes(const float s[BM / 2], u32 probs[BM / 4], const float dp[BM / 2],
                   u32 dsr[BM / 4], u32 delta, u32 ds) {
    const int warp = (int)threadIdx.x % 128 / 32, lane = (int)threadIdx.x % 32, r8 = lane % 8;
    const u32 row = ds + (lane / 16 * 8 + r8) * 128 + ((2 * warp + lane / 8 % 2) ^ r8) * 16;

    float d[2];
#pragma unroll
    for (int i = 0; i < BM / 4; i++) {
        if (i % 2 == 0) {
            ld_shared_v2(delta + (4 * i + lane % 4 * 2) * 4, &d[0], &d[1]);
        }
        const float p0 = P_KEPT || SOFTCAP ? s[2 * i] : elem_lo(probs[i]),
                    p1 = P_KEPT || SOFTCAP ? s[2 * i + 1] : elem_hi(probs[i]);
        dsr[i] = PACK_ELEM(p0 * (dp[2 * i] - d[0]), p1 * (dp[2 * i + 1] - d[1]));
        if (P_KEPT) {
            probs[i] = PACK_ELEM(p0, p1);
        }
    }
    if (DQ) {
#pragma unroll
        for (int i = 0; i < BM / 16; i++) {
            stmatrix_x4_trans(row + i * 2048, dsr[4 * i], dsr[4 * i + 1], dsr[4 * i + 2],
                              dsr[4 * i + 3]);
        }
    }
}

/* For keys that none of the queries sees. */
INLINE void no_slopes(u32 ds) {
    const int tid = (int)threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < BM / 16; i++) {
        st_shared_v4_s32(ds + i * 2048 + tid * 16, 0, 0, 0, 0);
    }
}

#endif
