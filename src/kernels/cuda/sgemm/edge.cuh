/* edge.cuh: reads and writes that respect the edges of a matrix, shared by the rungs of the ladder,
 * so that each accepts any shape. */
#ifndef LT_SGEMM_EDGE_CUH
#define LT_SGEMM_EDGE_CUH

#include "common/types.cuh"

/* Element (row, col) of a row-major (rows, cols) matrix, 0 outside. */
INLINE float edge_load(const float *p, int row, int col, int rows, int cols, int ld) {
    return row < rows && col < cols ? p[(i64)row * ld + col] : 0.0f;
}
/* Elements (row, col..col+3): one 16-byte read if all four exist and are aligned (`vec`: base and
 * ld allow it), else one by one. */
INLINE float4 edge_load4(const float *p, int row, int col, int rows, int cols, int ld, bool vec) {
    if (vec && row < rows && col + 3 < cols) {
        return *(const float4 *)&p[(i64)row * ld + col];
    }
    return make_float4(
        edge_load(p, row, col, rows, cols, ld), edge_load(p, row, col + 1, rows, cols, ld),
        edge_load(p, row, col + 2, rows, cols, ld), edge_load(p, row, col + 3, rows, cols, ld));
}
/* c[row][col] = alpha * sum + beta * c[row][col]; with beta 0, c is not read. */
INLINE void edge_store(float *c, float sum, int row, int col, int m, int n, int ldc, float alpha,
                       float beta) {
    if (row < m && col < n) {
        float *to = &c[(i64)row * ldc + col];
        *to = beta == 0.0f ? alpha * sum : alpha * sum + beta * *to;
    }
}
INLINE void edge_store4(float *c, const float *sum, int row, int col, int m, int n, int ldc,
                        float alpha, float beta, bool vec) {
    if (vec && row < m && col + 3 < n) {
        float4 *to = (float4 *)&c[(i64)row * ldc + col];
        float4 v = make_float4(alpha * sum[0], alpha * sum[1], alpha * sum[2], alpha * sum[3]);
        if (beta != 0.0f) {
            const float4 old = *to;
            v.x += beta * old.x, v.y += beta * old.y, v.z += beta * old.z, v.w += beta * old.w;
        }
        *to = v;
        return;
    }
#pragma unroll
    for (int x = 0; x < 4; x++) {
        edge_store(c, sum[x], row, col + x, m, n, ldc, alpha, beta);
    }
}
/* May rows of p be read 16 bytes at a time from columns that are multiples of 4? */
INLINE bool vec_ok(const void *p, int ld) {
    return ((u64)p & 15) == 0 && (ld & 3) == 0;
}

#endif
