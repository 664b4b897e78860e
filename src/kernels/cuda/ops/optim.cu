/* optim.cu — AdamW, AdEMAMix and Lion, one pass over flat fp32 buffers; and the sum of squares for
 * the global norm.
 *
 * SHAPES    p, g, m, v (m1, m2) n fp32; copy n bf16, may be null. n a multiple of 4, bases 16-byte
 *           aligned (W=4), or any (W=1). MOMENTS=16: AdamW's and AdEMAMix's moments are bf16,
 *           rounded at random (ops.h says by which bits).
 * MAP       one piece of 4 elements per thread; the grid covers n.
 * BOUND     bytes per element: AdamW 16 read, 12 written, 2 for the copy: 30; AdEMAMix 20 + 16 +
 *           2: 38. 1e9 parameters: 10 and 12.7 ms at 3.0 TB/s. MOMENTS=16: 22 and 26: 7.3 and 8.7
 *           ms. Philox is 20 wide products and 40 more operations per element: 4 ms at 64 per
 *           clock and SM.
 * NUMERICS  fp32, as torch.optim.AdamW; bias corrections come from the host in double. sumsq:
 *           fixed order; the sums of threads are added in double.
 * REFS      arXiv:1711.05101, arXiv:2409.03137. */
#define DTYPE fp32
#include "common/vec.cuh"

#ifndef MOMENTS
#define MOMENTS 32
#endif
static_assert(MOMENTS == 32 || MOMENTS == 16, "moments are fp32 or bf16");
#if MOMENTS == 32
typedef float moment;
#else
typedef bf16 moment;
#endif
#include "kernels/cuda/ops/optim_args.h"

#define THREADS 256
#define HELD    4 /* Pieces that a thread of sumsq_parts has in flight. */

INLINE void copy_store(bf16 *copy, const float *p) {
#if W == 4
    *(uint2 *)copy = make_uint2(f32x2_to_bf16x2(p[0], p[1]), f32x2_to_bf16x2(p[2], p[3]));
#else
    *copy = f32_to_bf16(p[0]);
#endif
}

/* ---- Moments ---- */

#if MOMENTS == 32
INLINE void moment_load(float *f, const moment *m) {
    piece_load_stream(f, m);
}
INLINE void moment_store(moment *m, const float *f, const u32 (*)[4], int) {
    piece_store(m, f);
}
INLINE void draw(u32 (*)[4], lt_optim_draws, float, i64) {
}
#else
#define STREAM 0x6d6f6d73u /* As LT_OPTIM_STREAM. */

/* lt_rng_block of base/rng.c for W elements. */
INLINE void draw(u32 (*words)[4], lt_optim_draws d, float step, i64 at) {
#pragma unroll
    for (int i = 0; i < W; i++) {
        const u64 position = (u64)(d.first + at + i);
        u32 c0 = (u32)position, c1 = (u32)(position >> 32), c2 = (u32)step, c3 = STREAM;
        u32 k0 = (u32)d.seed, k1 = (u32)(d.seed >> 32);
#pragma unroll
        for (int round = 0; round < 10; round++) {
            const u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
            c0 = (u32)(p1 >> 32) ^ c1 ^ k0;
            c2 = (u32)(p0 >> 32) ^ c3 ^ k1;
            c1 = (u32)p1;
            c3 = (u32)p0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        words[i][0] = c0;
        words[i][1] = c1;
        words[i][2] = c2;
    }
}

INLINE u32 round_drawn(float x, u32 bits) { /* As lt_f32_to_bf16_drawn. */
    const u32 u = __float_as_uint(x);
    return (u & 0x7FFFFFFFu) > 0x7F800000u ? u >> 16 | 0x40u : (u + (bits & 0xFFFFu)) >> 16;
}

INLINE void moment_load(float *f, const moment *m) {
#if W == 4
    const uint2 u = __ldcs((const uint2 *)m);
    f[0] = __uint_as_float(u.x << 16);
    f[1] = __uint_as_float(u.x & 0xFFFF0000u);
    f[2] = __uint_as_float(u.y << 16);
    f[3] = __uint_as_float(u.y & 0xFFFF0000u);
#else
    f[0] = __uint_as_float((u32) * (const unsigned short *)m << 16);
#endif
}
INLINE void moment_store(moment *m, const float *f, const u32 (*words)[4], int word) {
#if W == 4
    *(uint2 *)m = make_uint2(
        round_drawn(f[0], words[0][word]) | round_drawn(f[1], words[1][word]) << 16,
        round_drawn(f[2], words[2][word]) | round_drawn(f[3], words[3][word]) << 16);
#else
    *(unsigned short *)m = (unsigned short)round_drawn(f[0], words[0][word]);
#endif
}
#endif

/* For p and m see ops.h. */
extern "C" __global__ void __launch_bounds__(THREADS) lion(const lt_cuda_lion_args w) {
    const i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) * W;
    float x[W], d[W], first[W];
    lt_optim_numbers s = w.s;
    if (w.device) {
        s = *w.device;
    }
    if (at >= w.count || s.skip != 0.0f) {
        return;
    }
    piece_load_stream(x, w.p + at);
    piece_load_stream(d, w.g + at);
    piece_load_stream(first, w.m + at);
#pragma unroll
    for (int i = 0; i < W; i++) {
        d[i] *= s.grad_scale;
        const float u = w.beta1 * first[i] + (1.0f - w.beta1) * d[i];
        x[i] *= 1.0f - s.lr * w.decay;
        x[i] -= s.lr * (u > 0.0f ? 1.0f : u < 0.0f ? -1.0f : u);
        first[i] = w.beta2 * first[i] + (1.0f - w.beta2) * d[i];
    }
    piece_store(w.p + at, x);
    piece_store(w.m + at, first);
    if (w.copy) {
        copy_store(w.copy + at, x);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) adamw(const lt_cuda_adamw_args w) {
    const i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) * W;
    float x[W], d[W], first[W], second[W];
    u32 words[W][4];
    lt_optim_numbers s = w.s;
    if (w.device) {
        s = *w.device;
    }
    if (at >= w.count || s.skip != 0.0f) {
        return;
    }
    piece_load_stream(x, w.p + at);
    piece_load_stream(d, w.g + at);
    moment_load(first, w.m + at);
    moment_load(second, w.v + at);
    draw(words, w.draws, s.step, at);
#pragma unroll
    for (int i = 0; i < W; i++) {
        d[i] *= s.grad_scale;
        first[i] = w.beta1 * first[i] + (1.0f - w.beta1) * d[i];
        second[i] = w.beta2 * second[i] + (1.0f - w.beta2) * d[i] * d[i];
        x[i] *= 1.0f - s.lr * w.decay;
        x[i] -= s.lr * (first[i] / s.correct1) / (sqrtf(second[i] / s.correct2) + w.eps);
    }
    piece_store(w.p + at, x);
    moment_store(w.m + at, first, words, 0);
    moment_store(w.v + at, second, words, 1);
    if (w.copy) {
        copy_store(w.copy + at, x);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) ademamix(const lt_cuda_ademamix_args w) {
    const i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) * W;
    float x[W], d[W], fast[W], slow[W], second[W];
    u32 words[W][4];
    lt_optim_numbers s = w.s;
    if (w.device) {
        s = *w.device;
    }
    if (at >= w.count || s.skip != 0.0f) {
        return;
    }
    piece_load_stream(x, w.p + at);
    piece_load_stream(d, w.g + at);
    moment_load(fast, w.m1 + at);
    moment_load(slow, w.m2 + at);
    moment_load(second, w.v + at);
    draw(words, w.draws, s.step, at);
#pragma unroll
    for (int i = 0; i < W; i++) {
        d[i] *= s.grad_scale;
        fast[i] = w.beta1 * fast[i] + (1.0f - w.beta1) * d[i];
        slow[i] = s.beta3 * slow[i] + (1.0f - s.beta3) * d[i];
        second[i] = w.beta2 * second[i] + (1.0f - w.beta2) * d[i] * d[i];
        x[i] -= s.lr * ((fast[i] / s.correct1 + s.alpha * slow[i]) /
                            (sqrtf(second[i] / s.correct2) + w.eps) +
                        w.decay * x[i]);
    }
    piece_store(w.p + at, x);
    moment_store(w.m1 + at, fast, words, 0);
    moment_store(w.m2 + at, slow, words, 2);
    moment_store(w.v + at, second, words, 1);
    if (w.copy) {
        copy_store(w.copy + at, x);
    }
}

/* parts[blockIdx]: the sum of one block. The launcher fixes the grid, and so the order. */
extern "C" __global__ void __launch_bounds__(THREADS)
    sumsq_parts(const lt_cuda_sumsq_parts_args w) {
    __shared__ double slots[THREADS / WARP];
    const i64 turn = (i64)gridDim.x * THREADS * W;
    double sum = 0.0;
    for (i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) * W; at < w.count; at += HELD * turn) {
        float f[HELD][W], part = 0.0f;
#pragma unroll
        for (int h = 0; h < HELD; h++) { /* All loads are issued before the first is used. */
#pragma unroll
            for (int i = 0; i < W; i++) {
                f[h][i] = 0.0f;
            }
            if (at + h * turn < w.count) {
                piece_load_stream(f[h], w.x + at + h * turn);
            }
        }
#pragma unroll
        for (int h = 0; h < HELD; h++) {
#pragma unroll
            for (int i = 0; i < W; i++) {
                part += f[h][i] * f[h][i];
            }
        }
        sum += part;
    }
    sum = block_sum_of(sum, slots, THREADS / WARP);
    if (threadIdx.x == 0) {
        w.parts[blockIdx.x] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sumsq_total(const lt_cuda_sumsq_total_args w) {
    __shared__ double slots[THREADS / WARP];
    double sum = 0.0;
    for (int i = threadIdx.x; i < w.n; i += THREADS) {
        sum += w.parts[i];
    }
    sum = block_sum_of(sum, slots, THREADS / WARP);
    if (threadIdx.x == 0) {
        *w.out = (w.accumulate ? *w.out : 0.0) + sum;
    }
}

/* step->grad_scale = scale * min(1, max_norm / norm), norm = scale * sqrt(sumsq). If that is not
 * finite, skip is set. norm_out may be null. */
extern "C" __global__ void __launch_bounds__(32) clip_scale(const lt_cuda_clip_scale_args w) {
    if (threadIdx.x == 0) {
        const double norm = sqrt(*w.sumsq) * w.scale;
        const bool finite = norm < 1e300;
        w.step->grad_scale = w.max_norm > 0.0f && norm > w.max_norm
                                 ? (float)((double)w.scale * w.max_norm / norm)
                                 : w.scale;
        w.step->skip = finite ? 0.0f : 1.0f;
        if (w.norm_out) {
            *w.norm_out = (float)norm;
        }
    }
}
