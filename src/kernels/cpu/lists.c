/* lists.c: the CPU backend's table (see lists.h): for each op the kernels of isa/ for AVX-512, AVX2
 * and portable, in this order, and what each refuses.
 *
 * A refusal has two parts: the instruction set (features.h) and check_<op>, the shapes, types and
 * strides that op's kernel serves, the same for all sets. The reference serves what is refused
 * here: mostly F64, odd strides and mixed types that no model uses. */
#include "kernels/cpu/lists.h"

#include "base/error.h"
#include "base/thread.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/features.h"
#include "kernels/host.h"
#include "kernels/cpu/quant.h"
#include "tensor/cached.h"

#define COUNT_OF(array) ((int)(sizeof(array) / sizeof(array)[0]))

static const char *const BAD_TYPES = "needs equal F32 or BF16 activations";
static const char *const BAD_F32 = "needs F32";
static const char *const BAD_STRIDE = "needs last stride 1";
static const char *const BAD_RANK = "needs (R, C) or (R, H, C)";

static bool dense(const lt_tensor *t) {
    return t->data == NULL || t->shape[t->n_dims - 1] <= 1 || t->stride[t->n_dims - 1] == 1;
}

/* All present tensors have the type of the first, F32 or BF16, and last stride 1. */
static const char *bad_acts(const lt_tensor *const *t, int n) {
    for (int i = 0; i < n; i++) {
        if (t[i]->data == NULL) {
            continue;
        }
        if (t[i]->dtype != t[0]->dtype || (t[i]->dtype != LT_F32 && t[i]->dtype != LT_BF16)) {
            return BAD_TYPES;
        }
        if (!dense(t[i])) {
            return BAD_STRIDE;
        }
    }
    return NULL;
}

/* All present tensors are F32 with last stride 1. */
static const char *bad_f32(const lt_tensor *const *t, int n) {
    for (int i = 0; i < n; i++) {
        if (t[i]->data != NULL && t[i]->dtype != LT_F32) {
            return BAD_F32;
        }
        if (!dense(t[i])) {
            return BAD_STRIDE;
        }
    }
    return NULL;
}

static const char *bad_param(const lt_tensor *t) {
    if (t->data != NULL && t->dtype != LT_F32 && t->dtype != LT_BF16) {
        return "needs F32 or BF16 parameters";
    }
    return dense(t) ? NULL : BAD_STRIDE;
}

#define TENSORS(...)                                                                               \
    (const lt_tensor *const[]){__VA_ARGS__}, COUNT_OF(((const lt_tensor *const[]){__VA_ARGS__}))
#define REFUSE_IF(expr)                                                                            \
    do {                                                                                           \
        const char *why_ = (expr);                                                                 \
        if (why_ != NULL) {                                                                        \
            return why_;                                                                           \
        }                                                                                          \
    } while (0)

static bool half_or_float(lt_dtype dtype) {
    return dtype == LT_F32 || dtype == LT_BF16 || dtype == LT_F16;
}

static const char *check_matmul(const void *args) {
    const lt_matmul_args *a = args;
    if (!half_or_float(a->a.dtype) || !half_or_float(a->b.dtype) || !half_or_float(a->y.dtype)) {
        return "needs F32, BF16 or F16";
    }
    if (a->bias.data != NULL && !half_or_float(a->bias.dtype)) {
        return "needs F32, BF16 or F16 bias";
    }
    return dense(&a->a) && dense(&a->b) && dense(&a->y) && dense(&a->bias) ? NULL : BAD_STRIDE;
}

/* Measured (docs/speed/cpu.md): with more rows packing pays; BF16 weights are then widened once per
 * packed panel, otherwise once per block of rows. */
#define ROWS_MAX      16
#define ROWS_MAX_HALF 8

static const char *check_matmul_rows(const void *args) {
    const lt_matmul_args *a = args;
    if (!a->fixed_order && a->y.shape[0] > (a->b.dtype == LT_F32 ? ROWS_MAX : ROWS_MAX_HALF)) {
        return "too many rows";
    }
    if (a->trans_a || !a->trans_b) {
        return "b is not stored (N, K)";
    }
    return check_matmul(args);
}

/* Largest number of terms for which it is worthwhile. With fixed_order the kernel must not depend
 * on them, as those at the end may be zeros for some rows. */
#define NARROW_TERMS 128

static const char *check_matmul_narrow(const void *args) {
    const lt_matmul_args *a = args;
    if (a->trans_a || a->trans_b) {
        return "b is not stored (K, N)";
    }
    if (!a->fixed_order && (a->y.shape[0] > ROWS_MAX || a->a.shape[1] > NARROW_TERMS)) {
        return "too many rows or terms";
    }
    return check_matmul(args);
}

static const char *check_matmul_pairs(const void *args) {
    const lt_matmul_args *a = args;
    const int64_t k = a->a.shape[a->trans_a ? 0 : 1];
    if (!lt_cpu_features_get()->bf16_dot) {
        return "needs BF16 dot products faster than F32 multiply-adds";
    }
    if (a->a.dtype != LT_BF16 || a->b.dtype != LT_BF16) {
        return "needs BF16";
    }
    if (k % 2 != 0 || (!a->trans_a && a->a.stride[0] % 2 != 0) ||
        (a->trans_b && a->b.stride[0] % 2 != 0)) {
        return "odd number of terms";
    }
    return check_matmul(args);
}

static const char *check_matmul_quant(const void *args) {
    const lt_matmul_args *a = args;
    lt_quant_layout layout;
    if (!lt_dtype_is_block(a->b.dtype)) {
        return "b is not of a block type";
    }
    if (a->b_packed == NULL) {
        return "b is not packed";
    }
    if (a->trans_a || !a->trans_b ||
        !lt_quant_layout_of(&layout, a->b.dtype, a->y.shape[1], a->a.shape[1])) {
        return "b is not stored (N, K) in whole blocks with a partner";
    }
    REFUSE_IF(bad_f32(TENSORS(&a->a, &a->y)));
    return bad_param(&a->bias);
}

static const char *check_matmul_pack(const void *args) {
    const lt_matmul_pack_args *a = args;
    return lt_cpu_matmul_pack_bytes(&a->b, a->trans_b) > 0 ? NULL : "not packed here";
}

#define ONEDNN_MIN_SIDE 64 /* For smaller sides, its packing costs more than the product. */

static const char *check_matmul_onednn(const void *args) {
    const lt_matmul_args *a = args;
    if (a->fixed_order) {
        return "its order depends on the shape";
    }
    REFUSE_IF(bad_f32(TENSORS(&a->a, &a->b, &a->y)));
    REFUSE_IF(bad_param(&a->bias));
    return a->y.shape[0] >= ONEDNN_MIN_SIDE && a->y.shape[1] >= ONEDNN_MIN_SIDE ? NULL
                                                                                : "y is small";
}

static const char *check_colsum(const void *args) {
    const lt_colsum_args *a = args;
    REFUSE_IF(bad_f32(TENSORS(&a->y)));
    return bad_acts(TENSORS(&a->x));
}

static const char *check_embed_fwd(const void *args) {
    const lt_embed_args *a = args;
    if (a->y.dtype == LT_F32 && a->table.dtype != LT_F32 && lt_block_decodes(a->table.dtype) &&
        (a->pos_table.data == NULL || a->pos_table.dtype == LT_F32)) {
        REFUSE_IF(dense(&a->table) ? NULL : BAD_STRIDE);
        return bad_f32(TENSORS(&a->y, &a->pos_table));
    }
    REFUSE_IF(bad_acts(TENSORS(&a->table, &a->pos_table)));
    return bad_acts(TENSORS(&a->y));
}

static const char *check_embed_bwd(const void *args) {
    const lt_embed_bwd_args *a = args;
    REFUSE_IF(bad_f32(TENSORS(&a->dtable, &a->dpos_table)));
    return bad_acts(TENSORS(&a->dy));
}

static const char *bad_rank(const lt_tensor *x) {
    return x->n_dims == 2 || x->n_dims == 3 ? NULL : BAD_RANK;
}

static const char *check_rmsnorm_fwd(const void *args) {
    const lt_rmsnorm_args *a = args;
    REFUSE_IF(bad_rank(&a->x));
    REFUSE_IF(bad_param(&a->gain));
    REFUSE_IF(bad_f32(TENSORS(&a->rstd)));
    if (a->add.data != NULL && a->sum.data == NULL) {
        return "add without sum";
    }
    return bad_acts(TENSORS(&a->x, &a->y, &a->add, &a->sum));
}

/* A row of one element: its gradient is the difference of two nearly equal numbers, which needs the
 * reference's doubles. */
static const char *bad_width(const lt_tensor *x) {
    return x->shape[x->n_dims - 1] < 2 ? "rows of one element" : NULL;
}

static const char *check_rmsnorm_bwd(const void *args) {
    const lt_rmsnorm_bwd_args *a = args;
    REFUSE_IF(bad_rank(&a->x));
    REFUSE_IF(bad_width(&a->x));
    REFUSE_IF(bad_param(&a->gain));
    REFUSE_IF(bad_f32(TENSORS(&a->rstd, &a->dgain, &a->mean)));
    return bad_acts(TENSORS(&a->x, &a->dx, &a->dy));
}

static const char *check_layernorm_fwd(const void *args) {
    const lt_layernorm_args *a = args;
    REFUSE_IF(bad_rank(&a->x));
    REFUSE_IF(bad_param(&a->gain));
    REFUSE_IF(bad_param(&a->bias));
    REFUSE_IF(bad_f32(TENSORS(&a->rstd, &a->mean)));
    if (a->add.data != NULL && a->sum.data == NULL) {
        return "add without sum";
    }
    return bad_acts(TENSORS(&a->x, &a->y, &a->add, &a->sum));
}

static const char *check_layernorm_bwd(const void *args) {
    const lt_layernorm_bwd_args *a = args;
    REFUSE_IF(bad_rank(&a->x));
    REFUSE_IF(bad_width(&a->x));
    REFUSE_IF(bad_param(&a->gain));
    REFUSE_IF(bad_f32(TENSORS(&a->rstd, &a->mean, &a->dgain, &a->dbias)));
    return bad_acts(TENSORS(&a->x, &a->dx, &a->dy));
}

static const char *check_rope(const void *args) {
    const lt_rope_args *a = args;
    REFUSE_IF(bad_f32(TENSORS(&a->table)));
    if (a->table.shape[1] > 512) {
        return "head wider than 1024";
    }
    return bad_acts(TENSORS(&a->x, &a->y));
}

static const char *check_qk_norm_fwd(const void *args) {
    const lt_qk_norm_args *a = args;
    REFUSE_IF(bad_f32(TENSORS(&a->table, &a->rstd)));
    REFUSE_IF(bad_param(&a->q_gain));
    REFUSE_IF(bad_param(&a->k_gain));
    if (a->x.shape[2] > 1024) {
        return "head wider than 1024";
    }
    return bad_acts(TENSORS(&a->x, &a->y));
}

static const char *check_qk_norm_bwd(const void *args) {
    const lt_qk_norm_bwd_args *a = args;
    REFUSE_IF(bad_f32(TENSORS(&a->table, &a->rstd, &a->dq_gain, &a->dk_gain)));
    REFUSE_IF(bad_param(&a->q_gain));
    REFUSE_IF(bad_param(&a->k_gain));
    if (a->x.shape[2] > 1024) {
        return "head wider than 1024";
    }
    return bad_acts(TENSORS(&a->x, &a->dx, &a->dy));
}

static const char *check_attention_fwd(const void *args) {
    const lt_attention_args *a = args;
    REFUSE_IF(bad_f32(TENSORS(&a->lse, &a->alibi, &a->sinks)));
    if (a->q.shape[3] > 1024) {
        return "head wider than 1024";
    }
    /* A cache in 16 bits beside F32 activations. */
    if (a->k.dtype == LT_F16 && a->v.dtype == LT_F16) {
        REFUSE_IF(dense(&a->k) && dense(&a->v) ? NULL : BAD_STRIDE);
        return bad_f32(TENSORS(&a->q, &a->out));
    }
    return bad_acts(TENSORS(&a->q, &a->k, &a->v, &a->out));
}

/* With fewer queries than half a panel, lanes of the panels are idle, and reading the keys once for
 * a few queries is faster. */
#define DECODE_MAX_QUERIES 8

static const char *check_attention_decode(const void *args) {
    const lt_attention_args *a = args;
    if (a->q.shape[1] > DECODE_MAX_QUERIES) {
        return "more than 8 queries";
    }
    return check_attention_fwd(args);
}

static const char *check_attention_bwd(const void *args) {
    const lt_attention_bwd_args *a = args;
    REFUSE_IF(check_attention_fwd(&a->fwd));
    REFUSE_IF(bad_f32(TENSORS(&a->delta, &a->dsinks)));
    return bad_acts(TENSORS(&a->fwd.q, &a->fwd.k, &a->dq, &a->dk, &a->dv, &a->dout));
}

static const char *check_attention_merge(const void *args) {
    const lt_attention_merge_args *a = args;
    REFUSE_IF(bad_f32(TENSORS(&a->out, &a->lse, &a->part_lse, &a->sinks)));
    return bad_acts(TENSORS(&a->part));
}

static bool cache_type(const lt_tensor *t) {
    return lt_cached_refusal(t->dtype, t->shape[3]) == NULL && lt_tensor_contiguous(t);
}

static const char *const BAD_PAGES = "needs contiguous pages of a type of tensor/cached.h";
static const char *const BAD_HEAD = "head wider than 512";

static const char *check_kv_write(const void *args) {
    const lt_kv_write_args *a = args;
    if (!cache_type(&a->k_pages) || !cache_type(&a->v_pages)) {
        return BAD_PAGES;
    }
    if (a->k.shape[2] > 512 || a->v.shape[2] > 512) {
        return BAD_HEAD;
    }
    return bad_acts(TENSORS(&a->k, &a->v));
}

static const char *check_attention_paged(const void *args) {
    const lt_attention_paged_args *a = args;
    REFUSE_IF(bad_f32(TENSORS(&a->alibi, &a->sinks)));
    if (!cache_type(&a->k_pages) || !cache_type(&a->v_pages)) {
        return BAD_PAGES;
    }
    if (a->q.shape[2] > 512) {
        return BAD_HEAD;
    }
    return bad_acts(TENSORS(&a->q, &a->out));
}

static const char *check_act_fwd(const void *args) {
    const lt_act_args *a = args;
    REFUSE_IF(bad_f32(TENSORS(&a->xielu_params)));
    return bad_acts(TENSORS(&a->x, &a->y));
}

static const char *check_act_bwd(const void *args) {
    const lt_act_bwd_args *a = args;
    REFUSE_IF(bad_f32(TENSORS(&a->xielu_params, &a->dxielu_params)));
    return bad_acts(TENSORS(&a->x, &a->dx, &a->dy));
}

static const char *check_add(const void *args) {
    const lt_add_args *a = args;
    if (!half_or_float(a->y.dtype) || !half_or_float(a->a.dtype) ||
        (a->b.data != NULL && !half_or_float(a->b.dtype))) {
        return "needs F32, BF16 or F16";
    }
    if (a->y.n_dims > 3 && !(lt_tensor_contiguous(&a->y) && lt_tensor_contiguous(&a->a) &&
                             (a->b.data == NULL || lt_tensor_contiguous(&a->b)))) {
        return BAD_RANK;
    }
    if (a->y.n_dims != a->a.n_dims || (a->b.data != NULL && a->b.n_dims != a->y.n_dims)) {
        return "needs equal ranks";
    }
    return dense(&a->y) && dense(&a->a) && dense(&a->b) ? NULL : BAD_STRIDE;
}

static const char *check_cast(const void *args) {
    const lt_cast_args *a = args;
    return check_add(&(lt_add_args){.y = a->y, .a = a->x});
}

static bool eight_bits(const lt_tensor *t) {
    return t->dtype == LT_F8_E4M3 || t->dtype == LT_F8_E5M2;
}

static const char *check_cast_scaled(const void *args) {
    const lt_cast_scaled_args *a = args;
    REFUSE_IF(bad_acts(TENSORS(&a->x)));
    if (a->scale.dtype == LT_F64 || a->t_scale.dtype == LT_F64) {
        return BAD_F32;
    }
    return dense(&a->y) && dense(&a->t) ? NULL : BAD_STRIDE;
}

static const char *check_matmul_scaled(const void *args) {
    const lt_matmul_scaled_args *a = args;
    if (!eight_bits(&a->a) || !eight_bits(&a->b) || a->a_scale.dtype != LT_F32 ||
        a->b_scale.dtype != LT_F32 || a->a_kind == LT_SCALE_BLOCK || a->b_kind == LT_SCALE_ROW) {
        return "needs 8-bit floats with F32 scales";
    }
    return dense(&a->a) && dense(&a->b) ? bad_acts(TENSORS(&a->y)) : BAD_STRIDE;
}

static const char *check_xent(const void *args) {
    const lt_xent_args *a = args;
    REFUSE_IF(bad_f32(TENSORS(&a->loss, &a->lse, &a->part, &a->parts)));
    return bad_acts(TENSORS(&a->logits));
}

static const char *check_distill(const void *args) {
    const lt_distill_args *a = args;
    REFUSE_IF(bad_acts(TENSORS(&a->teacher)));
    REFUSE_IF(bad_f32(TENSORS(&a->logp)));
    if (a->loss.dtype != LT_F32 || (a->weights.data != NULL && a->weights.dtype != LT_F32)) {
        return BAD_F32;
    }
    return dense(&a->ids) ? bad_acts(TENSORS(&a->logits)) : BAD_STRIDE;
}

static const char *check_lora_add(const void *args) {
    const lt_lora_add_args *a = args;
    const lt_tensor *const t[] = {&a->x, &a->y, &a->a, &a->b};
    return bad_acts(t, COUNT_OF(t));
}

static const char *check_lora_scale(const void *args) {
    const lt_lora_scale_args *a = args;
    REFUSE_IF(bad_f32(TENSORS(&a->factor, &a->offset)));
    return bad_acts(TENSORS(&a->y));
}

static const char *check_gather_rows(const void *args) {
    const lt_gather_rows_args *a = args;
    return bad_acts(TENSORS(&a->x, &a->y));
}

static const char *check_moe_route_fwd(const void *args) {
    const lt_moe_route_args *a = args;
    return bad_f32(TENSORS(&a->logits, &a->probs, &a->weights, &a->aux));
}

static const char *check_moe_route_bwd(const void *args) {
    const lt_moe_route_bwd_args *a = args;
    return bad_f32(TENSORS(&a->logits, &a->probs, &a->weights, &a->dweights, &a->dlogits));
}

static const char *check_moe_gather_fwd(const void *args) {
    const lt_moe_gather_args *a = args;
    return bad_acts(TENSORS(&a->x, &a->y));
}

static const char *check_moe_gather_bwd(const void *args) {
    const lt_moe_gather_bwd_args *a = args;
    return bad_acts(TENSORS(&a->dx, &a->dy));
}

static const char *check_moe_combine_fwd(const void *args) {
    const lt_moe_combine_args *a = args;
    REFUSE_IF(bad_f32(TENSORS(&a->weights)));
    return bad_acts(TENSORS(&a->x, &a->y));
}

static const char *check_moe_combine_bwd(const void *args) {
    const lt_moe_combine_bwd_args *a = args;
    REFUSE_IF(bad_f32(TENSORS(&a->weights, &a->dweights)));
    return bad_acts(TENSORS(&a->x, &a->dx, &a->dy));
}

static const char *check_moe_bias_fwd(const void *args) {
    const lt_moe_bias_args *a = args;
    return bad_acts(TENSORS(&a->y, &a->bias));
}

static const char *check_moe_bias_bwd(const void *args) {
    const lt_moe_bias_bwd_args *a = args;
    REFUSE_IF(bad_f32(TENSORS(&a->dbias)));
    return bad_acts(TENSORS(&a->dy));
}

static const char *bad_copy(const lt_tensor *copy, const lt_tensor *now) {
    if (now->data != NULL) {
        return "needs plain numbers";
    }
    return copy->data == NULL || copy->dtype == LT_BF16 ? NULL : "needs a BF16 copy";
}

/* All F32, or all BF16. */
static const char *bad_moments(const lt_tensor *const *moments, int n) {
    for (int i = 0; i < n; i++) {
        if (moments[i]->dtype != moments[0]->dtype || !dense(moments[i]) ||
            (moments[i]->dtype != LT_F32 && moments[i]->dtype != LT_BF16)) {
            return "needs moments of one type, F32 or BF16";
        }
    }
    return NULL;
}

static const char *check_adamw(const void *args) {
    const lt_adamw_args *a = args;
    REFUSE_IF(bad_copy(&a->copy, &a->now));
    REFUSE_IF(bad_moments(TENSORS(&a->m, &a->v)));
    return bad_f32(TENSORS(&a->p, &a->g));
}

static const char *check_ademamix(const void *args) {
    const lt_ademamix_args *a = args;
    REFUSE_IF(bad_copy(&a->copy, &a->now));
    REFUSE_IF(bad_moments(TENSORS(&a->m1, &a->m2, &a->v)));
    return bad_f32(TENSORS(&a->p, &a->g));
}

static const char *check_lion(const void *args) {
    const lt_lion_args *a = args;
    REFUSE_IF(bad_copy(&a->copy, &a->now));
    return bad_f32(TENSORS(&a->p, &a->g, &a->m));
}

static const char *check_muon(const void *args) {
    const lt_muon_args *a = args;
    REFUSE_IF(bad_copy(&a->copy, &a->now));
    if (a->products != LT_F32 && a->products != LT_BF16) {
        return "products neither in F32 nor in BF16";
    }
    return bad_f32(TENSORS(&a->p, &a->g, &a->m, &a->scratch));
}

static const char *check_sumsq(const void *args) {
    const lt_sumsq_args *a = args;
    return a->out.dtype != LT_F64 ? "needs an F64 result" : bad_f32(TENSORS(&a->x));
}

static const char *check_hash(const void *args) {
    (void)args;
    return NULL;
}

/* A check in the form of a refusal: all CPU devices of a process have the same instruction set. */
#define CHECK_REFUSAL(op)                                                                          \
    static const char *refuse_##op(const void *a, const lt_device *device) {                       \
        (void)device;                                                                              \
        return check_##op(a);                                                                      \
    }

/* The three refusals and list entries of an op. */
#define ISA_REFUSALS(op)                                                                           \
    static const char *refuse_##op##_avx512(const void *a, const lt_device *device) {              \
        (void)device;                                                                              \
        return lt_cpu_features_get()->isa < LT_ISA_AVX512 ? "needs AVX-512 with VNNI"              \
                                                          : check_##op(a);                         \
    }                                                                                              \
    static const char *refuse_##op##_avx2(const void *a, const lt_device *device) {                \
        (void)device;                                                                              \
        return lt_cpu_features_get()->isa < LT_ISA_AVX2 ? "needs AVX2" : check_##op(a);            \
    }                                                                                              \
    CHECK_REFUSAL(op)
#define ISA_ENTRIES(op, suffix)                                                                    \
    {"avx512" suffix, refuse_##op##_avx512, lt_cpu_##op##_avx512},                                 \
        {"avx2" suffix, refuse_##op##_avx2, lt_cpu_##op##_avx2}, {                                 \
        "portable" suffix, refuse_##op, lt_cpu_##op##_portable                                     \
    }

ISA_REFUSALS(matmul_quant)
ISA_REFUSALS(matmul_rows)
ISA_REFUSALS(matmul_narrow)
ISA_REFUSALS(matmul)
CHECK_REFUSAL(matmul_pairs)
CHECK_REFUSAL(matmul_onednn)
static const lt_op_impl matmul_impls[] = {
    ISA_ENTRIES(matmul_quant, "-quant"),
    ISA_ENTRIES(matmul_rows, "-rows"),
    ISA_ENTRIES(matmul_narrow, "-narrow"),
    {"avx512-bf16", refuse_matmul_pairs, lt_cpu_matmul_pairs_avx512},
    {"avx512", refuse_matmul_avx512, lt_cpu_matmul_avx512},
    {"avx2", refuse_matmul_avx2, lt_cpu_matmul_avx2},
    /* It also has builds for other instruction sets. */
    {"onednn", refuse_matmul_onednn, lt_cpu_matmul_onednn},
    {"portable", refuse_matmul, lt_cpu_matmul_portable},
};

/* ---- Products of experts ---- */

/* Experts with at most this many rows on average are computed in parallel, one per thread, if there
 * are enough of them: a product of one or two rows is too small to be divided. */
#define BESIDE_ROWS    4
#define BESIDE_EXPERTS 4

static bool run_beside(const lt_matmul_grouped_args *a) {
    const int32_t *start = a->expert_start.data;
    int64_t n = 0;
    for (int64_t e = 0; e + 1 < a->expert_start.shape[0]; e++) {
        n += start[e] < start[e + 1];
    }
    return !a->weights && n >= BESIDE_EXPERTS &&
           start[a->expert_start.shape[0] - 1] <= BESIDE_ROWS * n;
}

typedef struct {
    const lt_matmul_grouped_args *args;
    lt_queue *queue;
    lt_op_list list;
    /* Failure of any thread. All would fail in the same way, since only memory can be missing. */
    lt_err err;
} experts;

static void one_expert(void *ctx, size_t e) {
    experts *x = ctx;
    const int32_t *start = x->args->expert_start.data;
    if (start[e] < start[e + 1]) {
        const lt_matmul_args one = lt_matmul_of_expert(x->args, (int64_t)e, start[e], start[e + 1]);
        const lt_err err = lt_registry_run(&x->list, LT_OP_matmul, x->queue, &one);
        if (err != LT_OK) {
#pragma omp atomic write
            x->err = err;
        }
    }
}

static lt_err matmul_grouped_beside(lt_queue *q, const lt_matmul_grouped_args *a) {
    experts x = {.args = a,
                 .queue = q,
                 .list = lt_registry_list(lt_backend_cpu(), LT_OP_matmul),
                 .err = LT_OK};
    lt_parallel_for((size_t)a->expert_start.shape[0] - 1, one_expert, &x);
    return x.err == LT_OK ? LT_OK : lt_error_set(x.err, "products of experts");
}

/* The experts one after another, each through matmul's list. */
static lt_err matmul_grouped_run(lt_queue *q, const void *args) {
    const lt_matmul_grouped_args *a = args;
    const int32_t *start = a->expert_start.data;
    const lt_op_list list = lt_registry_list(lt_backend_cpu(), LT_OP_matmul);
    if (run_beside(a)) {
        return matmul_grouped_beside(q, a);
    }
    for (int64_t e = 0; e + 1 < a->expert_start.shape[0]; e++) {
        const lt_matmul_args one = lt_matmul_of_expert(a, e, start[e], start[e + 1]);
        /* No token chose the expert; products leave y unchanged where K is 0. */
        if (start[e] == start[e + 1]) {
            LT_TRY(!a->weights || a->accumulate
                       ? LT_OK
                       : lt_host_zero_pieces(q, one.y.data, (size_t)one.y.shape[1] * sizeof(float),
                                             (size_t)one.y.stride[0] * sizeof(float),
                                             one.y.shape[0]));
        } else {
            LT_TRY(lt_registry_run(&list, LT_OP_matmul, q, &one));
        }
    }
    return LT_OK;
}
static const char *check_matmul_grouped(const void *args) {
    const lt_matmul_grouped_args *a = args;
    return a->a.dtype == LT_F64 ? "F64" : NULL;
}
static lt_err matmul_act_run(lt_queue *q, const void *args) {
    return lt_matmul_act_in_parts(lt_backend_cpu()->ops, q, args);
}
static const char *check_matmul_act(const void *args) {
    const lt_matmul_act_args *a = args;
    return a->a.dtype == LT_F64 ? "F64" : NULL;
}
CHECK_REFUSAL(matmul_act)
static const lt_op_impl matmul_act_impls[] = {{"parts", refuse_matmul_act, matmul_act_run}};

static lt_err matmul_lora_run(lt_queue *q, const void *args) {
    return lt_matmul_lora_in_parts(lt_backend_cpu()->ops, q, args);
}
static const char *check_matmul_lora(const void *args) {
    const lt_matmul_lora_args *a = args;
    return a->u.dtype == LT_F64 ? "F64" : NULL;
}
CHECK_REFUSAL(matmul_lora)
static const lt_op_impl matmul_lora_impls[] = {{"parts", refuse_matmul_lora, matmul_lora_run}};

CHECK_REFUSAL(matmul_grouped)
static const lt_op_impl matmul_grouped_impls[] = {
    {"experts", refuse_matmul_grouped, matmul_grouped_run}};
CHECK_REFUSAL(matmul_pack)
static const lt_op_impl matmul_pack_impls[] = {
    {"quant", refuse_matmul_pack, lt_cpu_matmul_pack_quant},
};

ISA_REFUSALS(attention_decode)
ISA_REFUSALS(attention_fwd)
static const lt_op_impl attention_fwd_impls[] = {
    ISA_ENTRIES(attention_decode, "-decode"),
    ISA_ENTRIES(attention_fwd, ""),
};

/* Ops with one kernel per instruction set. */
/* clang-format off */
#define PLAIN_OP_MAP(X)                                                                            \
    X(colsum) X(embed_fwd) X(embed_bwd) X(rmsnorm_fwd) X(rmsnorm_bwd) X(layernorm_fwd)             \
    X(layernorm_bwd) X(rope) X(attention_bwd) X(attention_merge) X(kv_write) X(attention_paged)    \
    X(act_fwd) X(act_bwd) X(add) X(qk_norm_fwd) X(qk_norm_bwd) X(xent) X(distill) X(gather_rows)   \
    X(moe_route_fwd) X(moe_route_bwd) X(moe_gather_fwd) X(moe_gather_bwd) X(moe_combine_fwd)       \
    X(moe_combine_bwd) X(moe_bias_fwd) X(moe_bias_bwd) X(lora_add) X(lora_scale) X(adamw)          \
    X(ademamix) X(lion) X(muon) X(sumsq) X(cast) X(hash) X(cast_scaled) X(matmul_scaled)
/* clang-format on */
#define PLAIN_OP(op)                                                                               \
    ISA_REFUSALS(op)                                                                               \
    static const lt_op_impl op##_impls[] = {ISA_ENTRIES(op, "")};
PLAIN_OP_MAP(PLAIN_OP)

#define OP_LIST(op) [LT_OP_##op] = {op##_impls, COUNT_OF(op##_impls)},
const lt_op_list lt_cpu_lists[LT_OP_COUNT] = {
    OP_LIST(matmul) OP_LIST(matmul_grouped) OP_LIST(matmul_pack) OP_LIST(matmul_act)
        OP_LIST(matmul_lora) OP_LIST(attention_fwd) PLAIN_OP_MAP(OP_LIST)};

/* Only block types are packed: training weights change every step, and products of few rows read
 * plain weights directly. */
size_t lt_cpu_matmul_pack_bytes(const lt_tensor *b, bool trans_b) {
    lt_quant_layout l;
    if (!trans_b || b->n_dims != 2 || !lt_dtype_is_block(b->dtype) ||
        !lt_quant_layout_of(&l, b->dtype, b->shape[0], b->shape[1])) {
        return 0;
    }
    return (size_t)(l.n_groups * l.group_bytes);
}
