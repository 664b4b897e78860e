/* paged.c: launchers of writes to the paged key/value cache and of attention over it. fwd_sm90.cu
 * serves prompts (pages of codes are first converted to 16 bits), decode.cu single tokens, and
 * prompts on other GPUs, and any_paged.cu everything else. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/decode.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/attention/any_paged_args.h"
#include "kernels/cuda/attention/widen_pages_args.h"
#include "kernels/cuda/specs.h"
#include "tensor/block.h"
#include "tensor/cached.h"

/* Words of the kernels, as launches and lt_specs_paged write them. */
#define PAGED_WORDS "QTYPE=%s CTYPE=%s VTYPE=%s COLS=%d CODES=%d VCODES=%d"
#define WIDEN_WORDS "DTYPE=%s CODES=%d VCODES=%d"

#define WARPS     4 /* Rows per block of any_paged.cu. */
#define MAX_WIDTH 1024

static const char *attention_paged_refuse(const void *args, const lt_device *device) {
    return lt_cuda_paged_refusal(args, lt_cuda_device_info(device));
}

/* ---- Prompts over pages of codes: their keys and values in 16 bits, in adjacent pages. ---- */

/* The most memory for the copy; decode.cu serves prompts that need more. 131,072 tokens of 8
 * heads of 128 need half of it. */
#define WIDE_MOST (1LL << 30)

/* An upper bound of the number of pages of all prompts of the call. */
static int64_t wide_pages(const lt_attention_paged_args *a) {
    const int64_t page = a->k_pages.shape[1], most = lt_cuda_attention_prompts_most(a),
                  by_length = most * LT_CUDA_DIV_UP(a->kv_max, page);
    const int64_t told = a->prompt_keys / page + most;
    return a->prompt_keys > 0 && told < by_length ? told : by_length;
}
/* The same call with keys, values and table in `room`, in 16 bits; room NULL: only their shapes.
 * *bytes: the memory that they take. */
static lt_attention_paged_args widened(const lt_attention_paged_args *a, void *room,
                                       size_t *bytes) {
    const lt_tensor *const k = &a->k_pages;
    const int64_t n = wide_pages(a);
    const size_t each = (size_t)(n * k->shape[1] * k->shape[2] * k->shape[3]) * 2;
    unsigned char *const at = room;
    lt_attention_paged_args w = *a;
    w.k_pages = lt_tensor_4d(at, a->q.dtype, n, k->shape[1], k->shape[2], k->shape[3]);
    w.v_pages = lt_tensor_4d(at == NULL ? NULL : at + each, a->q.dtype, n, k->shape[1], k->shape[2],
                             k->shape[3]);
    w.table = lt_tensor_2d(at == NULL ? NULL : at + 2 * each, LT_I32, a->kv_len.shape[0],
                           a->table.shape[1]);
    *bytes = 2 * each + (size_t)(a->kv_len.shape[0] * a->table.shape[1]) * 4;
    return w;
}
static lt_err widen(lt_queue *q, const lt_attention_paged_args *a,
                    const lt_attention_paged_args *wide) {
    lt_attn_widen_pages_args w = {.wide = {wide->k_pages.data, wide->v_pages.data},
                                  .coded = {a->k_pages.data, a->v_pages.data},
                                  .table = a->table.data,
                                  .q_start = a->q_start.data,
                                  .kv_len = a->kv_len.data,
                                  .wide_table = wide->table.data,
                                  .table_ld = a->table.stride[0],
                                  .window = a->window,
                                  .sequences = (int)a->kv_len.shape[0],
                                  .columns = (int)wide->table.shape[1],
                                  .q_least = LT_PROMPT_ROWS,
                                  .page = (int)a->k_pages.shape[1],
                                  .row = (int)(a->k_pages.shape[2] * a->k_pages.shape[3])};
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&w};
    snprintf(defines, sizeof defines, WIDEN_WORDS, lt_cuda_dtype_word(a->q.dtype),
             lt_cuda_codes_of(a->k_pages.dtype), lt_cuda_codes_of(a->v_pages.dtype));
    return lt_cuda_run_early(q, "attention/widen_pages.cu", "widen_pages", defines,
                             wide->k_pages.shape[0], 2, 256, list);
}
/* Does the call have prompts that fwd_sm90.cu takes? *out: the call, with pages that it can
 * read. */
static lt_err prompts_of(lt_queue *q, const lt_attention_paged_args *a,
                         lt_attention_paged_args *out, bool *takes) {
    const lt_cuda_info *info = lt_cuda_get_info(q->gpu);
    size_t bytes = 0;
    void *room = NULL;
    *out = *a;
    *takes = lt_cuda_attention_takes_prompts(a, info);
    if (*takes || (lt_cuda_codes_of(a->k_pages.dtype) == 0 && a->k_pages.dtype != a->q.dtype) ||
        (lt_cuda_codes_of(a->v_pages.dtype) == 0 && a->v_pages.dtype != a->q.dtype)) {
        return LT_OK;
    }
    *out = widened(a, NULL, &bytes);
    *takes = lt_cuda_attention_takes_prompts(out, info) && bytes <= WIDE_MOST;
    /* If there is not that much memory, decode.cu handles the prompts. */
    if (!*takes || lt_cuda_wide(q, bytes, &room) != LT_OK) {
        *takes = false;
        return LT_OK;
    }
    *out = widened(a, room, &bytes);
    return widen(q, a, out);
}

static lt_err attention_paged_run(lt_queue *q, const void *args) {
    const lt_cuda_info *info = lt_cuda_get_info(q->gpu);
    lt_attention_paged_args a = *(const lt_attention_paged_args *)args, prompts;
    lt_scratch scratch = {0};
    bool takes;
    LT_TRY(prompts_of(q, &a, &prompts, &takes));
    if (takes) {
        lt_scratch counters = {.bytes = LT_CUDA_COUNTER_BYTES};
        LT_TRY(lt_cuda_scratch_counted(q, 0, &counters.data));
        LT_TRY(lt_cuda_attention_prompts(q->gpu, q->stream, &prompts, counters));
        if (a.kv_len.shape[0] == 1) {
            return LT_OK;
        }
        a.q_max = LT_PROMPT_ROWS - 1; /* Only the rest remains. */
    }
    scratch.bytes = lt_cuda_paged_scratch_bytes(&a, info);
    if (scratch.bytes > 0) {
        LT_TRY(lt_cuda_scratch(q, scratch.bytes, &scratch.data));
    }
    return lt_cuda_paged(q->gpu, q->stream, &a, scratch);
}

static const char *cache_word(lt_dtype type) {
    return type == LT_F8_E4M3                   ? "f8e4m3"
           : type == LT_Q8_0 || type == LT_Q4_0 ? "u8"
                                                : lt_cuda_dtype_word(type);
}
static const char *refuse_cache(const lt_tensor *k, const lt_tensor *v,
                                const lt_tensor *const *acts, int n) {
    const char *why = lt_cuda_refuse_rows(acts, n, acts[0]->dtype);
    if (why != NULL) {
        return why;
    }
    if (cache_word(k->dtype) == NULL || cache_word(v->dtype) == NULL) {
        return "types of the cache";
    }
    if (lt_cached_refusal(k->dtype, k->shape[3]) != NULL ||
        lt_cached_refusal(v->dtype, v->shape[3]) != NULL) {
        return "heads that are not of whole blocks";
    }
    return lt_tensor_contiguous(k) && lt_tensor_contiguous(v) ? NULL : "pages not contiguous";
}
static void defines_of(char out[LT_CUDA_DEFINES_BYTES], lt_dtype act, lt_dtype keys,
                       lt_dtype values, int64_t width) {
    int cols = 1;
    while (cols * 32 < width) {
        cols *= 2;
    }
    snprintf(out, LT_CUDA_DEFINES_BYTES, PAGED_WORDS, lt_cuda_dtype_word(act), cache_word(keys),
             cache_word(values), cols, lt_cuda_codes_of(keys), lt_cuda_codes_of(values));
}

static const char *any_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_attention_paged_args *a = args;
    const lt_tensor *const acts[] = {&a->q, &a->out};
    const char *why = refuse_cache(&a->k_pages, &a->v_pages, acts, 2);
    return why != NULL ? why : a->q.shape[2] > MAX_WIDTH ? "head wider than 1024" : NULL;
}
static lt_err any_run(lt_queue *q, const void *args) {
    const lt_attention_paged_args *a = args;
    lt_attn_any_paged_args w = {.q = a->q.data,
                                .out = a->out.data,
                                .k = a->k_pages.data,
                                .v = a->v_pages.data,
                                .table = a->table.data,
                                .q_start = a->q_start.data,
                                .kv_len = a->kv_len.data,
                                .alibi = a->alibi.data,
                                .sinks = a->sinks.data,
                                .q_r = a->q.stride[0],
                                .q_h = a->q.stride[1],
                                .o_r = a->out.stride[0],
                                .o_h = a->out.stride[1],
                                .table_ld = a->table.stride[0],
                                .window = a->window,
                                .rows = (int)a->q.shape[0],
                                .heads = (int)a->q.shape[1],
                                .kv_heads = (int)a->k_pages.shape[2],
                                .dim = (int)a->q.shape[2],
                                .page = (int)a->k_pages.shape[1],
                                .sequences = (int)a->kv_len.shape[0],
                                .scale = a->scale,
                                .softcap = a->softcap};
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&w};
    if (w.sequences == 0) {
        return LT_OK;
    }
    defines_of(defines, a->q.dtype, a->k_pages.dtype, a->v_pages.dtype, w.dim);
    return lt_cuda_run(q, "attention/any_paged.cu", "paged_any", defines,
                       LT_CUDA_DIV_UP((int64_t)w.rows * w.heads, WARPS), 1, WARPS * 32, list);
}

static const char *kv_write_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_kv_write_args *a = args;
    const lt_tensor *const acts[] = {&a->k, &a->v};
    return refuse_cache(&a->k_pages, &a->v_pages, acts, 2);
}
static lt_err kv_write_run(lt_queue *q, const void *args) {
    lt_kv_write_args a = *(const lt_kv_write_args *)args;
    int heads = (int)a.k.shape[1], dim = (int)a.k.shape[2];
    /* If one of the two is of a block type, one thread writes one block, or as many numbers. */
    const bool blocks = lt_dtype_is_block(a.k_pages.dtype) || lt_dtype_is_block(a.v_pages.dtype);
    const int64_t count = lt_tensor_count(&a.k) / (blocks ? LT_BLOCK_SMALL : 1);
    char defines[LT_CUDA_DEFINES_BYTES];
    lt_cuda_kv_write_any_args call = {.k_pages = a.k_pages.data,
                                      .v_pages = a.v_pages.data,
                                      .k = a.k.data,
                                      .v = a.v.data,
                                      .slots = a.slots.data,
                                      .k_r = a.k.stride[0],
                                      .k_h = a.k.stride[1],
                                      .v_r = a.v.stride[0],
                                      .v_h = a.v.stride[1],
                                      .count = count,
                                      .heads = heads,
                                      .dim = dim};
    void *list[] = {&call};
    defines_of(defines, a.k.dtype, a.k_pages.dtype, a.v_pages.dtype, 1);
    return lt_cuda_run_early(q, "attention/any_paged.cu", "kv_write_any", defines,
                             LT_CUDA_DIV_UP(count, 256), 1, 256, list);
}

const lt_op_impl lt_cuda_attention_paged_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"mma", attention_paged_refuse, attention_paged_run}, {"any", any_refuse, any_run}};
const lt_op_impl lt_cuda_kv_write_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"elements", kv_write_refuse, kv_write_run}};

void lt_specs_paged(lt_specs *l) {
    static const struct {
        const char *q, *keys, *values;
        int cols, codes, vcodes;
    } sets[] = {{"fp32", "fp32", "fp32", 2, 0, 0},     {"bf16", "fp16", "fp16", 4, 0, 0},
                {"bf16", "f8e4m3", "f8e4m3", 2, 1, 1}, {"bf16", "u8", "u8", 2, 2, 2},
                {"bf16", "u8", "u8", 2, 3, 3},         {"bf16", "f8e4m3", "u8", 2, 1, 3},
                {"fp32", "u8", "fp16", 2, 2, 0}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        lt_spec(l, LT_SM_ALL, "attention/any_paged.cu", PAGED_WORDS, sets[i].q, sets[i].keys,
                sets[i].values, sets[i].cols, sets[i].codes, sets[i].vcodes);
    }
    for (int codes = 1; codes <= 3; codes++) {
        lt_spec(l, LT_SM90, "attention/widen_pages.cu", WIDEN_WORDS, "bf16", codes, codes);
        lt_spec(l, LT_SM90, "attention/widen_pages.cu", WIDEN_WORDS, "bf16", codes, codes - 1);
    }
}
