/* random.cu — x[i] = scale · normal(seed, i): inputs of tests and benches, computed on the
 * device.
 *
 * SHAPES    n elements of DTYPE (bf16, fp16, fp32).
 * IDEA      splitmix64's finaliser of (seed, i) gives two uniform words; Box-Muller one normal. A
 *           pure function of (seed, i), so any part can be made again. MODE=1: small integers -4..4
 *           instead, whose products and sums are exact: they find layout bugs. */
#include "common/types.cuh"
#include "kernels/cuda/random_args.h"

extern "C" __global__ void random_fill(const lt_cuda_random_fill_args w) {
    const i64 turn = (i64)gridDim.x * blockDim.x;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < w.n; i += turn) {
        u64 h = w.seed * 0x9e3779b97f4a7c15ull + (u64)i * 0xbf58476d1ce4e5b9ull +
                0x94d049bb133111ebull;
        h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
        h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
        h ^= h >> 31;
#if MODE == 1
        w.x[i] = FROM_F32(DTYPE, (float)((int)(h % 9) - 4));
#else
        const float u1 = ((u32)h >> 8) * 0x1p-24f + 0x1p-25f, u2 = ((u32)(h >> 32) >> 8) * 0x1p-24f;
        w.x[i] = FROM_F32(DTYPE, w.scale * sqrtf(-2.0f * logf(u1)) * cospif(2.0f * u2));
#endif
    }
}
