/* attention.c: the ordered lists of attention: the Hopper kernels, those for sm_80, tiled.cu for
 * fp32, then any.cu, which accepts everything else. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/merge_args.h"
#include "kernels/cuda/attention/starts_args.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/attention/plain_args.h"
#include "kernels/cuda/specs.h"

/* The -D constants of the kernels, for launches and for lt_specs_attention_plain. */
#define ANY_WORDS   "DTYPE=%s COLS=%d"
#define MERGE_WORDS "DTYPE=%s"
#define TILED_WORDS "DTYPE=fp32 WIDTH=%d PARTNERS=%d SOFTCAP=%d"

#define WARPS         4 /* Rows per block of any.cu. */
#define MAX_WIDTH     1024
#define TILED_THREADS 128
#define MERGE_WARPS   8 /* As in merge.cu. */

static const char *fwd_refuse(const void *args, const lt_device *device) {
    return lt_cuda_attention_refusal(args, lt_cuda_device_info(device));
}
static lt_err fwd_run(lt_queue *q, const void *args) {
    lt_scratch scratch = {.bytes = lt_cuda_attention_scratch_bytes(args)};
    LT_TRY(lt_cuda_scratch_counted(q, scratch.bytes, &scratch.data));
    return lt_cuda_attention(q->gpu, q->stream, args, scratch);
}
static const char *bwd_refuse(const void *args, const lt_device *device) {
    return lt_cuda_attention_bwd_refusal(args, lt_cuda_device_info(device));
}
static lt_err bwd_run(lt_queue *q, const void *args) {
    const lt_attention_cut cut = lt_cuda_attention_bwd_cut(args, lt_cuda_device_info(q->device));
    lt_scratch scratch = {.bytes = lt_cuda_attention_bwd_scratch_bytes(args, cut)};
    LT_TRY(lt_cuda_scratch_counted(q, scratch.bytes, &scratch.data));
    return lt_cuda_attention_bwd(q->gpu, q->stream, args, cut, scratch);
}

static const char *sm80_fwd_refuse(const void *args, const lt_device *device) {
    return lt_cuda_attention_sm80_refusal(args, lt_cuda_device_info(device));
}
static lt_err sm80_fwd_run(lt_queue *q, const void *args) {
    return lt_cuda_attention_sm80(q->gpu, q->stream, args);
}
static const char *sm80_bwd_refuse(const void *args, const lt_device *device) {
    return lt_cuda_attention_bwd_sm80_refusal(args, lt_cuda_device_info(device));
}

/* ---- Plain cores: any.cu and tiled.cu ---- */

static lt_attn_plain_strides strides_of(const lt_tensor *t) {
    return (lt_attn_plain_strides){t->stride[0], t->stride[1], t->stride[2]};
}
static lt_attn_plain_args plain_of(const lt_attention_args *a) {
    return (lt_attn_plain_args){.q = a->q.data,
                                .k = a->k.data,
                                .v = a->v.data,
                                .out = a->out.data,
                                .kv_len = a->kv_len.data,
                                .doc_start = a->doc_start.data,
                                .alibi = a->alibi.data,
                                .sinks = a->sinks.data,
                                .lse = a->lse.data,
                                .sq = strides_of(&a->q),
                                .sk = strides_of(&a->k),
                                .sv = strides_of(&a->v),
                                .so = strides_of(&a->out),
                                .doc_ld = a->doc_start.stride[0],
                                .window = a->window,
                                .batch = (int)a->q.shape[0],
                                .heads = (int)a->q.shape[2],
                                .kv_heads = (int)a->k.shape[2],
                                .q_tokens = (int)a->q.shape[1],
                                .kv_tokens = (int)a->k.shape[1],
                                .dim = (int)a->q.shape[3],
                                .causal = a->causal,
                                .scale = a->scale,
                                .softcap = a->softcap};
}

static const char *plain_refuse_tensors(const lt_tensor *const *t, int n, lt_dtype act) {
    for (int i = 0; i < n; i++) {
        if (t[i]->dtype != act || lt_cuda_dtype_word(act) == NULL) {
            return "tensors of different types";
        }
        if (t[i]->n_dims != 4 || (t[i]->shape[3] > 1 && t[i]->stride[3] != 1)) {
            return "not (B, T, H, D) with contiguous heads";
        }
    }
    return t[0]->shape[3] > MAX_WIDTH ? "head wider than 1024" : NULL;
}
static const char *any_fwd_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_attention_args *a = args;
    const lt_tensor *const t[] = {&a->q, &a->k, &a->v, &a->out};
    return plain_refuse_tensors(t, 4, a->q.dtype);
}
static const char *any_bwd_refuse(const void *args, const lt_device *device) {
    const lt_attention_bwd_args *a = args;
    const lt_tensor *const t[] = {&a->dq, &a->dk, &a->dv, &a->dout};
    const char *why = any_fwd_refuse(&a->fwd, device);
    why = why != NULL ? why : plain_refuse_tensors(t, 4, a->fwd.q.dtype);
    return why != NULL                                        ? why
           : a->fwd.lse.data == NULL || a->delta.data == NULL ? "no lse or delta"
                                                              : NULL;
}

static lt_err any_launch(lt_queue *q, const char *entry, lt_attn_plain_args *w, lt_dtype act,
                         int64_t blocks) {
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {w};
    int cols = 1;
    while (cols * 32 < w->dim) { /* Powers of two, so that there are fewer specialisations. */
        cols *= 2;
    }
    snprintf(defines, sizeof defines, ANY_WORDS, lt_cuda_dtype_word(act), cols);
    return lt_cuda_run(q, "attention/any.cu", entry, defines, blocks, 1, WARPS * 32, list);
}
static lt_err any_fwd_run(lt_queue *q, const void *args) {
    const lt_attention_args *a = args;
    lt_attn_plain_args w = plain_of(a);
    return any_launch(q, "attn_any_fwd", &w, a->q.dtype,
                      LT_CUDA_DIV_UP((int64_t)w.batch * w.heads * w.q_tokens, WARPS));
}
static lt_attn_plain_args plain_bwd_of(const lt_attention_bwd_args *a) {
    lt_attn_plain_args w = plain_of(&a->fwd);
    w.d_out = a->dout.data, w.dq = a->dq.data, w.dk = a->dk.data, w.dv = a->dv.data;
    w.delta = a->delta.data, w.dsinks = a->dsinks.data;
    w.sdo = strides_of(&a->dout), w.sdq = strides_of(&a->dq), w.sdk = strides_of(&a->dk),
    w.sdv = strides_of(&a->dv);
    return w;
}
/* The gradient of the sinks, after every delta. */
static lt_err sinks_run(lt_queue *q, lt_attn_plain_args *w, lt_dtype act) {
    return w->sinks != NULL && w->dsinks != NULL ? any_launch(q, "attn_any_sinks", w, act, w->heads)
                                                 : LT_OK;
}
static lt_err sm80_bwd_run(lt_queue *q, const void *args) {
    const lt_attention_bwd_args *a = args;
    lt_attn_plain_args w = plain_bwd_of(a);
    LT_TRY(lt_cuda_attention_bwd_sm80(q->gpu, q->stream, a));
    return sinks_run(q, &w, a->fwd.q.dtype);
}
static lt_err any_bwd_run(lt_queue *q, const void *args) {
    const lt_attention_bwd_args *a = args;
    const lt_dtype act = a->fwd.q.dtype;
    lt_attn_plain_args w = plain_bwd_of(a);
    LT_TRY(any_launch(q, "attn_any_dq", &w, act,
                      LT_CUDA_DIV_UP((int64_t)w.batch * w.heads * w.q_tokens, WARPS)));
    LT_TRY(any_launch(q, "attn_any_dkv", &w, act,
                      LT_CUDA_DIV_UP((int64_t)w.batch * w.kv_heads * w.kv_tokens, WARPS)));
    return sinks_run(q, &w, act);
}

/* A launch of tiled.cu: partners per step, tiles of rows and of partners in shared memory. */
typedef struct {
    const char *entry;
    int partners[2]; /* for heads of up to 64 and 128 */
    size_t tiles;    /* of either kind */
} tiled_kernel;
static const tiled_kernel tiled_fwd = {"attn_tiled_fwd", {64, 64}, 1};
static const tiled_kernel tiled_dq = {"attn_tiled_dq", {64, 32}, 2};
static const tiled_kernel tiled_dkv = {"attn_tiled_dkv", {64, 32}, 2};

static size_t tiled_shared_bytes(const tiled_kernel *t, int64_t dim) {
    const size_t width = dim > 64 ? 128 : 64, partners = (size_t)t->partners[dim > 64];
    return LT_ATTN_TILED_BYTES(t->tiles, partners, width);
}
static const char *tiled_refuse(const lt_tensor *const *t, int n, const tiled_kernel *kernel,
                                const lt_device *device) {
    for (int i = 0; i < n; i++) {
        if (t[i]->dtype != LT_F32) {
            return "not F32";
        }
        if (((uintptr_t)t[i]->data & 15) != 0 || t[i]->stride[0] % 4 != 0 ||
            t[i]->stride[1] % 4 != 0 || t[i]->stride[2] % 4 != 0) {
            return "rows not of whole 16 bytes";
        }
    }
    if (t[0]->shape[3] % 4 != 0 || t[0]->shape[3] > 128) {
        return "head width not a multiple of 4 up to 128";
    }
    return tiled_shared_bytes(kernel, t[0]->shape[3]) >
                   lt_cuda_device_info(device)->shared_optin_bytes
               ? "tiles do not fit shared memory"
               : NULL;
}
static const char *tiled_fwd_refuse(const void *args, const lt_device *device) {
    const lt_attention_args *a = args;
    const lt_tensor *const t[] = {&a->q, &a->k, &a->v, &a->out};
    const char *why = any_fwd_refuse(args, device);
    return why != NULL ? why : tiled_refuse(t, 4, &tiled_fwd, device);
}
static const char *tiled_bwd_refuse(const void *args, const lt_device *device) {
    const lt_attention_bwd_args *a = args;
    const lt_tensor *const t[] = {&a->fwd.q, &a->fwd.k, &a->fwd.v, &a->fwd.out,
                                  &a->dout,  &a->dq,    &a->dk,    &a->dv};
    const char *why = any_bwd_refuse(args, device);
    return why != NULL ? why : tiled_refuse(t, 8, &tiled_dkv, device);
}
/* One block per tile of `tokens` of each of `heads`. */
static lt_err tiled_launch(lt_queue *q, const tiled_kernel *t, lt_attn_plain_args *w, int tokens,
                           int heads) {
    char defines[LT_CUDA_DEFINES_BYTES];
    const lt_cuda_kernel *k;
    void *list[] = {w};
    const int64_t blocks = (int64_t)LT_CUDA_DIV_UP(tokens, LT_ATTN_TILED_ROWS) * heads * w->batch;
    if (blocks == 0) {
        return LT_OK;
    }
    snprintf(defines, sizeof defines, TILED_WORDS, w->dim > 64 ? 128 : 64, t->partners[w->dim > 64],
             w->softcap > 0.0f);
    LT_TRY(lt_cuda_kernel_get(q->gpu, &k, "attention/tiled.cu", t->entry, defines));
    return lt_cuda_launch(q->gpu, q->stream, k,
                          &(lt_cuda_dims){.grid = {(unsigned)blocks},
                                          .block = {TILED_THREADS},
                                          .dynamic_shared_bytes = tiled_shared_bytes(t, w->dim)},
                          list);
}
static lt_err tiled_fwd_run(lt_queue *q, const void *args) {
    lt_attn_plain_args w = plain_of(args);
    return tiled_launch(q, &tiled_fwd, &w, w.q_tokens, w.heads);
}
static lt_err tiled_bwd_run(lt_queue *q, const void *args) {
    lt_attn_plain_args w = plain_bwd_of(args);
    LT_TRY(tiled_launch(q, &tiled_dq, &w, w.q_tokens, w.heads));
    LT_TRY(tiled_launch(q, &tiled_dkv, &w, w.kv_tokens, w.kv_heads));
    return sinks_run(q, &w, LT_F32);
}

const lt_op_impl lt_cuda_attention_fwd_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"wgmma", fwd_refuse, fwd_run},
    {"mma.sync", sm80_fwd_refuse, sm80_fwd_run},
    {"tiled", tiled_fwd_refuse, tiled_fwd_run},
    {"any", any_fwd_refuse, any_fwd_run}};
const lt_op_impl lt_cuda_attention_bwd_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"wgmma", bwd_refuse, bwd_run},
    {"mma.sync", sm80_bwd_refuse, sm80_bwd_run},
    {"tiled", tiled_bwd_refuse, tiled_bwd_run},
    {"any", any_bwd_refuse, any_bwd_run}};

static const char *merge_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_attention_merge_args *a = args;
    const lt_tensor *const part[] = {&a->part};
    const lt_tensor *const lines[] = {&a->lse, &a->part_lse};
    for (int i = 0; i < 2; i++) {
        if (lines[i]->stride[2] != 1) {
            return "tokens of lse are not neighbours";
        }
    }
    if (a->out.dtype != LT_F32 || a->out.stride[3] != 1) {
        return "out is not rows of F32";
    }
    return lt_cuda_refuse_rows(part, 1, a->part.dtype);
}
static lt_err merge_run(lt_queue *q, const void *args) {
    const lt_attention_merge_args *a = args;
    const int64_t *const n = a->out.shape;
    lt_attn_merge_args w = {.out = a->out.data,
                            .lse = a->lse.data,
                            .part = a->part.data,
                            .part_lse = a->part_lse.data,
                            .sinks = a->sinks.data,
                            .rows = n[0] * n[1] * n[2],
                            .out_b = a->out.stride[0],
                            .out_t = a->out.stride[1],
                            .out_h = a->out.stride[2],
                            .part_b = a->part.stride[0],
                            .part_t = a->part.stride[1],
                            .part_h = a->part.stride[2],
                            .lse_b = a->lse.stride[0],
                            .lse_h = a->lse.stride[1],
                            .part_lse_b = a->part_lse.stride[0],
                            .part_lse_h = a->part_lse.stride[1],
                            .tokens = (int)n[1],
                            .heads = (int)n[2],
                            .dim = (int)n[3],
                            .first = a->first};
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&w};
    snprintf(defines, sizeof defines, MERGE_WORDS, lt_cuda_dtype_word(a->part.dtype));
    return lt_cuda_run(q, "attention/merge.cu", "attention_merge", defines,
                       LT_CUDA_DIV_UP(w.rows, (int64_t)MERGE_WARPS), 1, MERGE_WARPS * 32, list);
}
const lt_op_impl lt_cuda_attention_merge_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"rows", merge_refuse, merge_run}};

static const char *starts_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_attention_starts_args *a = args;
    return a->y.stride[1] != 1 || (a->doc_start.data != NULL && a->doc_start.stride[1] != 1)
               ? "tokens are not neighbours"
               : NULL;
}
static lt_err starts_run(lt_queue *q, const void *args) {
    const lt_attention_starts_args *a = args;
    lt_attn_starts_args w = {.y = a->y.data,
                             .doc_start = a->doc_start.data,
                             .y_b = a->y.stride[0],
                             .doc_b = a->doc_start.stride[0],
                             .tokens = (int)a->y.shape[1],
                             .window = (int)(a->window < INT32_MAX ? a->window : INT32_MAX),
                             .piece = (int)a->piece,
                             .q_first = (int)a->q_first,
                             .q_piece0 = a->q_piece[0],
                             .q_piece1 = a->q_piece[1],
                             .k_piece0 = a->k_piece[0],
                             .k_piece1 = a->k_piece[1]};
    void *list[] = {&w};
    return lt_cuda_run(q, "attention/starts.cu", "attention_starts", "",
                       LT_CUDA_DIV_UP(w.tokens, 256), (int)a->y.shape[0], 256, list);
}
const lt_op_impl lt_cuda_attention_starts_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"queries", starts_refuse, starts_run}};

void lt_specs_attention_plain(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, "attention/starts.cu", "%s", "");
    lt_spec(l, LT_SM_ALL, "attention/merge.cu", MERGE_WORDS, "fp32");
    lt_spec(l, LT_SM_ALL, "attention/merge.cu", MERGE_WORDS, "bf16");
    lt_spec(l, LT_SM_ALL, "attention/any.cu", ANY_WORDS, "fp32", 2);
    lt_spec(l, LT_SM_ALL, "attention/any.cu", ANY_WORDS, "bf16", 8);
    lt_spec(l, LT_SM_ALL, "attention/tiled.cu", TILED_WORDS, 64, 64, 0);
    lt_spec(l, LT_SM_ALL, "attention/tiled.cu", TILED_WORDS, 128, 64, 0);
    lt_spec(l, LT_SM_ALL, "attention/tiled.cu", TILED_WORDS, 128, 32, 0);
    lt_spec(l, LT_SM80, "attention/tiled.cu", TILED_WORDS, 64, 32, 1);
}
