/* fuse.c: see fuse.h. This file decides which ops join; gemv_ring.c decides what its kernel
 * accepts.
 *
 * CHECKED   bit for bit on an H100 and on the emulated GPU (tests/unit/kernels/test_cuda_fuse.c;
 *           compute-sanitizer's memcheck finds nothing).
 * MEASURED  tokens/s op by op and fused, Llama-1B, prompt 128, one H100, 2026-11-22:
 *               streams  BF16          Q8_0          Q4_0            Q4_K
 *               1        960, 1,027    1,263, 1,492  1,652, 1,895
 *               2        1,924, 2,000  2,489, 2,946  3,314, 3,723
 *               3        2,876, 2,792
 *               4        3,666, 3,550  4,601, 5,624  5,904, 7,502
 *               5                                    7,456, 8,118    6,652, 7,787
 *               8                      9,286, 9,644  11,462, 11,330  10,069, 10,971
 *           BF16 op by op runs gemm_few.cu. 5 and 8 streams sum in integers (gemm_q_ring.cu);
 *           before, 8 streams made 8,945 and 8,801 in Q8_0, and 11,381 and 11,100 in Q4_0. */
#include "kernels/cuda/ops/fuse.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* Whether both have the same elements at the same addresses. */
static bool same(const lt_tensor *a, const lt_tensor *b) {
    bool equal = a->data == b->data && a->dtype == b->dtype && a->n_dims == b->n_dims;
    for (int d = 0; equal && d < a->n_dims; d++) {
        equal = a->shape[d] == b->shape[d] && (a->stride[d] == b->stride[d] || a->shape[d] == 1);
    }
    return equal;
}

/* Whether x (R, H, D) is `heads` heads of rows of y (R, N), starting at head `first`. */
static bool heads_of(const lt_tensor *x, const lt_tensor *y, int64_t first, int64_t heads,
                     int64_t dim) {
    return x->n_dims == 3 && x->dtype == y->dtype && x->shape[0] == y->shape[0] &&
           x->shape[1] == heads && x->shape[2] == dim && x->stride[2] == 1 &&
           (x->stride[1] == dim || heads == 1) &&
           (x->stride[0] == y->stride[0] || y->shape[0] == 1) &&
           x->data == (char *)y->data + (size_t)(first * dim) * lt_dtype_bytes(y->dtype);
}

/* Whether the whole heads of q and k are rotated in place. */
static bool turns_in_place(const lt_rope_args *a) {
    return same(&a->x, &a->y) && !a->inverse && a->x.n_dims == 3;
}
/* (R, (q_heads + 2 kv_heads) D): the product's y or, if it is already computed, the memory that
 * begins with the rotated heads. */
static lt_tensor rows_of(const lt_fuse_ops *f, int64_t kv_heads) {
    const lt_tensor *x = &f->rope.x;
    return f->has_product
               ? f->product.y
               : (lt_tensor){.data = x->data,
                             .dtype = x->dtype,
                             .n_dims = 2,
                             .shape = {x->shape[0], (x->shape[1] + kv_heads) * x->shape[2]},
                             .stride = {x->stride[0], 1}};
}

/* The rows of experts that f gathers go on to products and an activation. */
static bool experts_go_on(lt_fuse_ops *f, lt_op op, const void *args) {
    if (op == LT_OP_matmul_grouped && f->n_experts < 2 && !f->has_act) {
        f->experts[f->n_experts++] = *(const lt_matmul_grouped_args *)args;
        return true;
    }
    if (op == LT_OP_act_fwd && f->n_experts > 0 && !f->has_act) {
        f->act = *(const lt_act_args *)args;
        return f->has_act = true;
    }
    return false;
}

static bool goes_on(lt_fuse_ops *f, lt_op op, const void *args) {
    if (f->has_gather) {
        return experts_go_on(f, op, args);
    }
    if (op == LT_OP_matmul) {
        const lt_matmul_args *a = args;
        if (f->has_product || !f->has_norm || !same(&f->norm.y, &a->a)) {
            return false;
        }
        f->product = *a;
        return f->has_product = true;
    }
    if (f->has_act) {
        return false;
    }
    if (op == LT_OP_act_fwd && f->has_product && !f->has_rope) {
        const lt_act_args *a = args;
        f->act = *a;
        return f->has_act = a->gated && a->kind != LT_ACT_SWIGLU_CLAMPED &&
                            same(&f->product.y, &a->x);
    }
    if (op == LT_OP_rope && f->has_product && !f->has_rope) {
        const lt_rope_args *a = args;
        f->rope = *a;
        return f->has_rope = turns_in_place(a) &&
                             heads_of(&a->x, &f->product.y, 0, a->x.shape[1], a->x.shape[2]);
    }
    if (op == LT_OP_kv_write && f->has_rope) {
        const lt_kv_write_args *a = args;
        const int64_t dim = f->rope.x.shape[2], kv_heads = a->k.shape[1],
                      q_heads = f->rope.x.shape[1] - kv_heads;
        const lt_tensor y = rows_of(f, kv_heads);
        f->kv = *a;
        return f->has_kv = heads_of(&a->k, &y, q_heads, kv_heads, dim) &&
                           heads_of(&a->v, &y, q_heads + kv_heads, kv_heads, dim) &&
                           y.shape[1] == (q_heads + 2 * kv_heads) * dim;
    }
    return false;
}

static void begin(lt_fuse_ops *f, lt_op op, const void *args) {
    /* Products of more rows may consist of several ops themselves. */
    if (op == LT_OP_rmsnorm_fwd) {
        f->norm = *(const lt_rmsnorm_args *)args;
        f->has_norm = f->norm.x.n_dims == 2 && f->norm.x.shape[0] <= LT_FUSE_ROWS;
    } else if (op == LT_OP_matmul) {
        f->product = *(const lt_matmul_args *)args;
        f->has_product = f->product.y.n_dims == 2 && f->product.y.shape[0] <= LT_FUSE_ACT_ROWS;
    } else if (op == LT_OP_rope) {
        f->rope = *(const lt_rope_args *)args;
        f->has_rope = turns_in_place(&f->rope) && f->rope.x.stride[2] == 1 &&
                      (f->rope.x.stride[1] == f->rope.x.shape[2] || f->rope.x.shape[1] == 1);
    } else if (op == LT_OP_moe_gather_fwd) {
        f->gather = *(const lt_moe_gather_args *)args;
        f->has_gather = f->gather.slot_row.shape[0] <= LT_FUSE_ACT_ROWS;
    }
}

/* Whether only a rotation and pages are held, whose product was already computed. */
static bool turns(const lt_fuse_ops *f) {
    return f->has_rope && f->has_kv && lt_cuda_rope_kv_takes(&f->rope, &f->kv);
}

/* Whether the activation becomes part of a product of few rows. */
static bool gates(const lt_queue *q, const lt_fuse_ops *f) {
    return f->has_product && f->has_act && lt_cuda_few_gated_takes(q, &f->product, &f->act);
}

static lt_err run_held(lt_queue *q, const lt_op_list *lists, const lt_fuse_ops *f) {
    const bool both = turns(f), gated = gates(q, f);
    const struct {
        bool has;
        lt_op op;
        const void *args;
    } ops[] = {{f->has_gather, LT_OP_moe_gather_fwd, &f->gather},
               {f->n_experts > 0, LT_OP_matmul_grouped, &f->experts[0]},
               {f->n_experts > 1, LT_OP_matmul_grouped, &f->experts[1]},
               {f->has_norm, LT_OP_rmsnorm_fwd, &f->norm},
               {f->has_product && !gated, LT_OP_matmul, &f->product},
               {f->has_act && !gated, LT_OP_act_fwd, &f->act},
               {f->has_rope && !both, LT_OP_rope, &f->rope},
               {f->has_kv && !both, LT_OP_kv_write, &f->kv}};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        LT_TRY(ops[i].has ? lt_registry_run(&lists[ops[i].op], ops[i].op, q, ops[i].args) : LT_OK);
    }
    q->fuse->n_fused += both || gated;
    LT_TRY(gated ? lt_cuda_few_gated_run(q, &f->product, &f->act, true) : LT_OK);
    return both ? lt_cuda_rope_kv_run(q, &f->rope, &f->kv, true) : LT_OK;
}

/* As many held ops as one kernel accepts are fused: if necessary without the tail, then without the
 * norm. */
static lt_err let_go(lt_queue *q, const lt_op_list *lists, const lt_fuse_ops *f) {
    const lt_cuda_info *info = lt_cuda_get_info(q->gpu);
    lt_fuse_ops whole = *f, before = {0}, behind = {0};
    whole.most = q->fuse->most;
    if (f->has_gather) {
        const bool up = lt_cuda_experts_up_takes(q, f);
        q->fuse->n_fused += up && q->fuse->records;
        return up                 ? lt_cuda_experts_up_run(q, f, q->fuse->records)
               : q->fuse->records ? run_held(q, lists, f)
                                  : LT_OK;
    }
    if (f->has_rope && !f->has_kv) {
        behind.rope = f->rope, behind.has_rope = true;
        whole.has_rope = false;
    }
    if (!lt_cuda_ring_takes(&whole, info)) {
        behind = *f, behind.has_norm = behind.has_product = false;
        whole.has_act = whole.has_rope = whole.has_kv = false;
    }
    if (!lt_cuda_ring_takes(&whole, info)) {
        before.norm = f->norm, before.has_norm = f->has_norm;
        whole.has_norm = false;
    }
    const bool takes = lt_cuda_ring_takes(&whole, info);
    if (!q->fuse->records) {
        LT_TRY(takes ? lt_cuda_ring_run(q, &whole, false) : LT_OK);
        LT_TRY(!takes && gates(q, f) ? lt_cuda_few_gated_run(q, &f->product, &f->act, false)
                                     : LT_OK);
        return !(takes && whole.has_kv) && turns(f)
                   ? lt_cuda_rope_kv_run(q, &f->rope, &f->kv, false)
                   : LT_OK;
    }
    if (!takes) {
        return run_held(q, lists, f);
    }
    q->fuse->n_fused += whole.has_norm || whole.has_act || whole.has_kv;
    LT_TRY(run_held(q, lists, &before));
    LT_TRY(lt_cuda_ring_run(q, &whole, true));
    return run_held(q, lists, &behind);
}

static bool holds(const lt_fuse_ops *f) {
    return f->has_norm || f->has_product || f->has_rope || f->has_gather;
}

lt_err lt_fuse_flush(lt_queue *q, const lt_op_list *lists) {
    lt_fuse_ops held;
    if (!holds(&q->fuse->held)) {
        return LT_OK; /* Usual before nearly every op of a training step. */
    }
    held = q->fuse->held;
    q->fuse->held = (lt_fuse_ops){0};
    return let_go(q, lists, &held);
}

lt_err lt_fuse_offer(lt_queue *q, const lt_op_list *lists, lt_op op, const void *args,
                     bool *taken) {
    lt_fuse *f = q->fuse;
    lt_fuse_ops *held = &f->held;
    *taken = false;
    if (f->off) {
        return LT_OK;
    }
    if (!goes_on(held, op, args)) {
        LT_TRY(lt_fuse_flush(q, lists));
        begin(held, op, args);
    }
    *taken = f->records && holds(held);
    /* Nothing can be fused after it. */
    return held->has_act || held->has_kv ? lt_fuse_flush(q, lists) : LT_OK;
}

lt_err lt_fuse_record(lt_queue *q, const lt_op_list *lists, bool records) {
    const char *wish = getenv("LATEEN_CUDA_FUSE");
    LT_TRY(lt_fuse_flush(q, lists));
    q->fuse->off = wish != NULL && strcmp(wish, "off") == 0;
    const bool all = wish != NULL && strcmp(wish, "all") == 0;
    q->fuse->most = q->fuse->off ? (lt_fuse_rows){0, 0}
                                 : (lt_fuse_rows){all ? LT_FUSE_ROWS : 2, LT_FUSE_ROWS};
    q->fuse->most_expert_rows = all ? LT_FUSE_ACT_ROWS : 1; /* docs/speed/decoding.md 83 */
    q->fuse->records = records && !q->fuse->off;
    return LT_OK;
}
