/* gemm_split.cu: C = epilogue(alpha * sum of the partial sums of a split-K product), in order of
 * the splits.
 *
 * SHAPES    part (splits, m_padded, N) f32 as gemm_sm90.cu writes it, C (M, N) 16-bit or f32, rows
 *           16-byte aligned; N a multiple of 4, up to 8 splits.
 * MAP       a thread adds up four columns of one row; it requests all of their parts at once.
 * BOUND     memory, mostly L2: (4 splits + 2) M N bytes; worth it where M N is small beside K (M +
 *           N).
 * NUMERICS  fixed order: bit-identical run to run. OUT_ADD: C += sum, f32. */
#include "common/early.cuh"
#include "common/hopper.cuh"
#include "gemm/epilogue.cuh"

#ifndef OUT_F32
#define OUT_F32 0
#endif
#ifndef OUT_ADD
#define OUT_ADD 0
#endif

#define SPLITS_MAX 8

extern "C" __global__ void __launch_bounds__(256)
    gemm_split_sum(const __grid_constant__ lt_gemm_split_args w) {
    const int quads = w.a.n / 4, at = (int)(blockIdx.x * 256 + threadIdx.x), row = at / quads,
              col = at % quads * 4;
    const i64 apart = (i64)w.a.m_padded * w.a.n;
    float4 v[SPLITS_MAX], sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f), old = sum;

    wait_for_others();
    if (row >= w.a.m) {
        return;
    }
    const float *const part = w.part + (i64)row * w.a.n + col;
#pragma unroll
    for (int s = 0; s < SPLITS_MAX; s++) {
        if (s < w.a.splits) {
            v[s] = *(const float4 *)(part + s * apart);
        }
    }
    if (OUT_F32 && OUT_ADD) {
        old = *(const float4 *)((const float *)w.c + row * w.ldc + col);
    }
#pragma unroll
    for (int s = 0; s < SPLITS_MAX; s++) {
        if (s < w.a.splits) {
            sum.x += v[s].x, sum.y += v[s].y, sum.z += v[s].z, sum.w += v[s].w;
        }
    }
    epilogue_pair(&sum.x, &sum.y, row, col, &w.a);
    epilogue_pair(&sum.z, &sum.w, row, col + 2, &w.a);
    if (OUT_F32) {
        *(float4 *)((float *)w.c + row * w.ldc + col) = make_float4(old.x + sum.x, old.y + sum.y,
                                                                    old.z + sum.z, old.w + sum.w);
    } else {
        *(uint2 *)((elem *)w.c + row * w.ldc + col) = make_uint2(PACK_ELEM(sum.x, sum.y),
                                                                 PACK_ELEM(sum.z, sum.w));
    }
}
