/* promote.cuh: a consumer's share of one tile of 8-bit floats with a scale for each 128 of K, for
 * gemm_sm90.cu with PROMOTE, whose names it uses. The FP32 units scale and add the sums of one step
 * while the tensor cores make those of the next. */
#ifndef LT_CUDA_GEMM_PROMOTE_CUH
#define LT_CUDA_GEMM_PROMOTE_CUH

/* Scales of one step: of this thread's two rows of A, 8 apart. They include the single scale of B
 * for the tile's 128 rows of B. */
typedef struct {
    float row0, row1;
} scales;
INLINE scales scales_of(const lt_gemm_kernel_args *a, int step, int row, int col) {
    const float *of_a = a->a_scale + (i64)step * a->m,
                of_b = __ldg(a->b_scale + (i64)(col / 128) * div_up(a->k, BK) + step);
    scales s;
    s.row0 = __ldg(of_a + min_i(row, a->m - 1)) * of_b; /* Exact. */
    s.row1 = __ldg(of_a + min_i(row + 8, a->m - 1)) * of_b;
    return s;
}

typedef struct {
    u32 my_a, ring, full, empty;
    const lt_gemm_kernel_args *args;
    int row, col, k_begin; /* row: this thread's first */
} scaled_tile;

/* Queues the products of the step at r. */
INLINE void step_issue(float part[BN / 2], const scaled_tile *t, const ring_pos *r) {
    const u32 tile = t->ring + r->slot * STAGE_BYTES;
    const u64 a = wgmma_desc(tile + t->my_a, 8192), b = wgmma_desc(tile + A_BYTES, 8192);
    mbarrier_wait(t->full + 8 * r->slot, r->phase);
    wgmma_fence();
    mma_set(part, a, b);
#pragma unroll
    for (int k = 1; k < MMAS; k++) {
        mma(part, DESC_ADD(a, k * 32), DESC_ADD(b, k * 32), 1);
    }
    wgmma_commit();
}
/* acc += the finished sums of the step at r. */
INLINE void step_add(float acc[BN / 2], float part[BN / 2], const scales *s, const scaled_tile *t,
                     ring_pos *r) {
    stage_give_back(t->empty + 8 * r->slot, (int)threadIdx.x % 128);
    ring_step(r, STAGES);
    wgmma_pin(part, BN / 2);
#pragma unroll
    for (int i = 0; i < BN / 8; i++) {
        acc[4 * i] += s->row0 * part[4 * i];
        acc[4 * i + 1] += s->row0 * part[4 * i + 1];
        acc[4 * i + 2] += s->row1 * part[4 * i + 2];
        acc[4 * i + 3] += s->row1 * part[4 * i + 3];
    }
}
INLINE void multiply_scaled(float acc[BN / 2], ring_pos *r, int n_steps, const scaled_tile *t) {
    float part[2][BN / 2]; /* of even and odd steps */
    scales s[2];
    ring_pos ahead = *r; /* of the step queued last; r: of the first that was not yet added */
    int step = 0;        /* that is at r */

    s[0] = scales_of(t->args, t->k_begin, t->row, t->col);
    step_issue(part[0], t, &ahead);
#pragma unroll
    for (int i = 0; i < BN / 2; i++) {
        acc[i] = 0.0f;
    }
    for (; step + 2 < n_steps; step += 2) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            s[i ^ 1] = scales_of(t->args, t->k_begin + step + i + 1, t->row, t->col);
            ring_step(&ahead, STAGES);
            step_issue(part[i ^ 1], t, &ahead);
            wgmma_wait(1);
            step_add(acc, part[i], &s[i], t, r);
        }
    }
    if (step + 1 < n_steps) { /* Two steps are left; otherwise one. */
        s[1] = scales_of(t->args, t->k_begin + step + 1, t->row, t->col);
        ring_step(&ahead, STAGES);
        step_issue(part[1], t, &ahead);
        wgmma_wait(1);
        step_add(acc, part[0], &s[0], t, r);
        wgmma_wait(0);
        step_add(acc, part[1], &s[1], t, r);
    } else {
        wgmma_wait(0);
        step_add(acc, part[0], &s[0], t, r);
    }
}

#endif
