/* fuse_experts.c: a recorded step's few rows of experts: their gathering, their first products and
 * the gated activation as one kernel (fuse.h), gemv.cu for 16-bit weights and gemm_q.cu for blocks.
 * Otherwise, each of these short kernels waits for the one before it.
 *
 * CHECKED   bit for bit (tests/unit/kernels/test_cuda_fuse_experts.c). */
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/ops/fuse.h"
#include "kernels/cuda/ops/matmul.h"
#include "kernels/cuda/ops/matmul_q.h"

static bool rows_match(const lt_tensor *x, const lt_tensor *y, int64_t first_col) {
    return x->n_dims == 2 && y->n_dims == 2 && x->dtype == y->dtype && x->stride[1] == 1 &&
           y->stride[1] == 1 && x->stride[0] == y->stride[0] &&
           x->data == (char *)y->data + (size_t)first_col * lt_dtype_bytes(y->dtype);
}

/* The product of gates and factors that f's grouped products are, if they are one: `gates` computes
 * the gates, and `factors` are the matrices of the factors. */
static bool as_one(const lt_fuse_ops *f, lt_matmul_grouped_args *gates, const void **factors) {
    const lt_matmul_grouped_args *a = &f->experts[0], *b = &f->experts[f->n_experts - 1];
    const int64_t n = f->act.x.shape[1] / 2;
    *gates = *a;
    gates->y = lt_tensor_cols(&f->act.x, 0, n);
    gates->b.shape[1] = n;
    if (!rows_match(&a->y, &f->act.x, 0) || a->accumulate || b->accumulate) {
        return false;
    }
    if (f->n_experts == 2) {
        *factors = b->b_packed != NULL ? b->b_packed : b->b.data;
        return a->b.shape[1] == n && b->b.shape[1] == n && rows_match(&b->y, &f->act.x, n) &&
               a->b.dtype == b->b.dtype && a->packed_step == b->packed_step &&
               (a->b_packed == NULL) == (b->b_packed == NULL) &&
               memcmp(a->b.shape, b->b.shape, sizeof a->b.shape) == 0 &&
               memcmp(a->b.stride, b->b.stride, sizeof a->b.stride) == 0 &&
               a->expert_start.data == b->expert_start.data && a->fixed_order == b->fixed_order;
    }
    if (a->b.shape[1] != 2 * n) {
        return false;
    }
    /* Packed slabs of 16 columns follow each other. */
    *factors = a->b_packed != NULL ? (const char *)a->b_packed + a->packed_step / 2
                                   : (const char *)a->b.data +
                                         (size_t)(n * a->b.stride[1]) * lt_dtype_bytes(a->b.dtype);
    return true;
}

static bool apart(const lt_fuse_ops *f) {
    return lt_fuse_apart(&f->gather.x, &f->gather.y) && lt_fuse_apart(&f->gather.x, &f->act.x) &&
           lt_fuse_apart(&f->gather.x, &f->act.y) && lt_fuse_apart(&f->gather.y, &f->act.x) &&
           lt_fuse_apart(&f->gather.y, &f->act.y) && lt_fuse_apart(&f->act.x, &f->act.y);
}

/* Whether all is as the kernels expect, and `up` is then their product. */
static bool build(lt_experts_up *up, const lt_fuse_ops *f) {
    const lt_tensor *rows[] = {&f->gather.x, &f->gather.y, &f->act.x, &f->act.y};
    if (!f->has_act || !f->act.gated ||
        (f->act.kind != LT_ACT_SILU && f->act.kind != LT_ACT_GELU_TANH)) {
        return false;
    }
    for (int i = 0; i < 4; i++) {
        if (rows[i]->n_dims != 2 || rows[i]->dtype != f->gather.x.dtype ||
            rows[i]->stride[1] != 1) {
            return false;
        }
    }
    for (int i = 0; i < f->n_experts; i++) {
        if (f->experts[i].a.data != f->gather.y.data || f->experts[i].weights ||
            f->experts[i].a.shape[0] != f->gather.slot_row.shape[0] ||
            f->experts[i].expert_start.data != f->gather.expert_start.data) {
            return false;
        }
    }
    *up = (lt_experts_up){.gather = &f->gather, .act = &f->act, .unfused = &f->experts[0]};
    if (!as_one(f, &up->gates, &up->factors) || !apart(f)) {
        return false;
    }
    /* Rows are read in pieces of 16 bytes. */
    up->gates.a.data = f->gather.x.data, up->gates.a.stride[0] = f->gather.x.stride[0];
    const bool aligned = ((uintptr_t)f->gather.x.data | (uintptr_t)f->gather.y.data) % 16 == 0 &&
                         f->gather.x.stride[0] % 8 == 0 && f->gather.y.stride[0] % 8 == 0 &&
                         f->gather.x.shape[1] % 8 == 0 && f->gather.x.shape[1] > 0;
    return aligned && f->gather.slot_row.shape[0] > 0;
}

lt_experts_up_args lt_cuda_experts_up_args(const lt_experts_up *up) {
    return (lt_experts_up_args){.slot_row = up->gather->slot_row.data,
                                .factors = up->factors,
                                .gathered = up->gather->y.data,
                                .act = up->act->y.data,
                                .ld_gathered = up->gather->y.stride[0],
                                .ld_act = up->act->y.stride[0],
                                .top_k = (int)up->gather->top_k};
}

bool lt_cuda_experts_up_takes(const lt_queue *q, const lt_fuse_ops *f) {
    lt_experts_up up;
    if (!build(&up, f)) {
        return false;
    }
    return lt_cuda_gemv_up_takes(q, &up) ||
           (f->gather.x.shape[0] <= q->fuse->most_expert_rows && lt_cuda_few_q_up_takes(q, &up));
}

lt_err lt_cuda_experts_up_run(lt_queue *q, const lt_fuse_ops *f, bool launch) {
    lt_experts_up up;
    const bool whole = build(&up, f);
    LT_ASSERT(whole);
    return lt_cuda_gemv_up_takes(q, &up) ? lt_cuda_gemv_up_run(q, &up, launch)
                                         : lt_cuda_few_q_up_run(q, &up, launch);
}
