/* starts.cu: the first visible key of each query, where the keys are those of another rank (ops.h,
 * attention_starts).
 *
 * SHAPES    y, doc_start (B, T) int32, rows y_b and doc_b apart.
 * MAP       one thread per query.
 * BOUND     8 bytes per query. */
#include "common/types.cuh"
#include "kernels/cuda/attention/starts_args.h"

extern "C" __global__ void __launch_bounds__(256)
    attention_starts(const __grid_constant__ lt_attn_starts_args a) {
    const int t = blockIdx.x * 256 + threadIdx.x, own = a.q_first + t, piece = a.piece;
    const i64 b = blockIdx.y;
    if (t >= a.tokens) {
        return;
    }
    int first = a.doc_start != 0 ? a.doc_start[b * a.doc_b + t] : 0;
    if (a.window > 0) {
        const int place = (own < piece ? a.q_piece0 : a.q_piece1) * piece + own % piece;
        first = max(first, place - a.window + 1);
    }
    a.y[b * a.y_b + t] = min(max(first - a.k_piece0 * piece, 0), piece) +
                         min(max(first - a.k_piece1 * piece, 0), piece);
}
