/* gemm_split.cu: C = epilogue(alpha * sum of the partial sums of a split-K product), in order of the splits.
 *
 * SHAPES    part (splits, m_padded, N) f32 as gemm_sm90.cu writes it, C (M, N) 16-bit or f32; N even.
 * MAP       a thread two columns of one row.
 * BOUND     memory, mostly L2: (4 splits + 2) M N bytes; worth it where M N is small beside K (M + N).
 * NUMERICS  fixed order: bit-identical run to run. OUT_ADD: C += sum, f32.
 *@spec sm_80 sm_90a: OUT_F32=0
 *@spec sm_80 sm_90a: OUT_F32=1 OUT_ADD=1
 *@spec sm_80 sm_90a: EPI_BIAS=1 EPI_ACT=ACT_GELU_TANH */
#include "common/hopper.cuh"
#include "gemm/epilogue.cuh"

#ifndef OUT_F32
#define OUT_F32 0
#endif
#ifndef OUT_ADD
#define OUT_ADD 0
#endif

extern "C" __global__ void __launch_bounds__(256)
gemm_split_sum(const __grid_constant__ gemm_args a, void *c, const float *part, i64 ldc) {
    const int col = 2 * (int)(blockIdx.x * 256 + threadIdx.x), row = (int)blockIdx.y;
    float x = 0.0f, y = 0.0f;

    if (col >= a.n) {
        return;
    }
    for (int s = 0; s < a.splits; s++) {
        const float2 v = *(const float2 *)(part + (i64)(s * a.m_padded + row) * a.n + col);
        x += v.x;
        y += v.y;
    }
    epilogue_pair(&x, &y, row, col, &a);
    if (OUT_F32) {
        float2 *dst = (float2 *)((float *)c + row * ldc + col);
        const float2 old = OUT_ADD ? *dst : make_float2(0.0f, 0.0f);
        *dst = make_float2(old.x + x, old.y + y);
    } else {
        *(u32 *)((elem *)c + row * ldc + col) = PACK_ELEM(x, y);
    }
}
