/* decode.c: see decode.h. */
#include "kernels/cuda/attention/decode.h"
#include "kernels/cuda/attention/decode_args.h"

#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/attention/attention_private.h"
#include "kernels/cuda/specs.h"

/* The -D constants of the kernels, for launches and for lt_specs_decode. */
#define WORDS        "HEAD_DIM=%d PAGE=%d DTYPE=%s"
#define OPTION_WORDS " SOFTCAP=%d ALIBI=%d SINKS=%d"
#define CODES_WORDS  " CODES=%d VCODES=%d"
#define PACKS_WORD   " PACKS=1"

#define ROWS        16 /* Query rows of a tile, keys of a tile (decode.cu). */
#define WARPS       LT_DECODE_WARPS
#define SPLITS_MAX  64
#define SPLIT_TILES 8 /* A split should have at least this many tiles of keys: two per warp. */

static int64_t row_tiles(const lt_decode_args *a) {
    return lt_cuda_div_up(a->q.shape[1] * (a->q.shape[2] / a->k_pages.shape[2]), ROWS);
}
/* As many splits as give every SM a block, but none shorter than its own overhead. */
static int splits(const lt_decode_args *a, const lt_cuda_info *info) {
    const int64_t blocks = a->q.shape[0] * a->k_pages.shape[2] * row_tiles(a),
                  tiles = lt_cuda_div_up(a->kv_len_max, ROWS);
    /* One block per SM was measured to be the fastest, although two would fit. */
    int64_t n = info->n_sms / blocks;
    n = n > tiles / SPLIT_TILES ? tiles / SPLIT_TILES : n;
    n = n > SPLITS_MAX ? SPLITS_MAX : n;
    return (int)(n < 1 ? 1 : n);
}

int lt_cuda_codes_of(lt_dtype cache) {
    return cache == LT_F8_E4M3 ? 1 : cache == LT_Q8_0 ? 2 : cache == LT_Q4_0 ? 3 : 0;
}

const char *lt_cuda_decode_refusal(const lt_decode_args *a, const lt_cuda_info *info) {
    const lt_tensor *all[] = {&a->q, &a->out, &a->k_pages, &a->v_pages};
    if (info->cc < 80) {
        return "needs compute capability 8.0";
    }
    for (int i = 0; i < 4; i++) {
        if (all[i]->n_dims != 4 || all[i]->dtype != a->q.dtype || !lt_tensor_contiguous(all[i])) {
            return "not 4-D, contiguous and of one type";
        }
    }
    if (a->q.dtype != LT_BF16 && a->q.dtype != LT_F16) {
        return "not 16-bit";
    }
    if (a->q.shape[3] % 64 != 0 || a->q.shape[3] > 256) {
        return "head width not 64, 128, 192 or 256";
    }
    return a->k_pages.shape[1] % ROWS != 0 ? "page not a multiple of 16 tokens" : NULL;
}

size_t lt_cuda_decode_scratch_bytes(const lt_decode_args *a, const lt_cuda_info *info) {
    return (size_t)(a->q.shape[0] * a->k_pages.shape[2] * row_tiles(a) * splits(a, info)) * ROWS *
           (size_t)(a->q.shape[3] + 2) * 4;
}

lt_err lt_cuda_decode(lt_cuda *c, CUstream s, const lt_decode_args *a, lt_scratch scratch) {
    const lt_cuda_info *info = lt_cuda_get_info(c);
    const char *why = lt_cuda_decode_refusal(a, info);
    const int width = (int)a->q.shape[3];
    const size_t ring = (size_t)LT_DECODE_RING_BYTES(width, 0, 0),
                 meet = (size_t)LT_DECODE_MEET_BYTES(width);
    lt_attn_decode_args w = {.batch = (int)a->q.shape[0],
                             .q_heads = (int)a->q.shape[2],
                             .kv_heads = (int)a->k_pages.shape[2],
                             .q_tokens = (int)a->q.shape[1],
                             .splits = splits(a, info),
                             .table_ld = (int)a->table.stride[0],
                             .window = (int)a->window,
                             .turns = 1,
                             .scale = a->scale,
                             .q = a->q.data,
                             .k = a->k_pages.data,
                             .v = a->v_pages.data,
                             .table = a->table.data,
                             .kv_len = a->kv_len.data,
                             .out = a->out.data,
                             .part = scratch.data,
                             .head_ld = (int)a->q.shape[3],
                             .q_ld = a->q.shape[2] * a->q.shape[3],
                             .out_ld = a->q.shape[2] * a->q.shape[3]};
    const int64_t rows = a->q.shape[1] * (a->q.shape[2] / a->k_pages.shape[2]);
    const lt_cuda_kernel *split, *combine;
    char text[128];
    void *args[] = {&w};

    if (why != NULL || scratch.bytes < lt_cuda_decode_scratch_bytes(a, info)) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "paged attention: %s",
                why != NULL ? why : "too little scratch");
    }
    snprintf(text, sizeof text, WORDS, width, (int)a->k_pages.shape[1],
             a->q.dtype == LT_F16 ? "fp16" : "bf16");
    LT_TRY(lt_cuda_kernel_get(c, &split, "attention/decode.cu", "decode_split", text));
    LT_TRY(lt_cuda_kernel_get(c, &combine, "attention/decode.cu", "decode_combine", text));
    LT_TRY(lt_cuda_launch(
        c, s, split,
        &(lt_cuda_dims){
            .grid = {(unsigned)w.splits, (unsigned)(w.kv_heads * row_tiles(a)), (unsigned)w.batch},
            .block = {32 * WARPS},
            .dynamic_shared_bytes = ring > meet ? ring : meet},
        args));
    return lt_cuda_launch(c, s, combine,
                          &(lt_cuda_dims){.grid = {(unsigned)lt_cuda_div_up(rows, 4),
                                                   (unsigned)w.kv_heads, (unsigned)w.batch},
                                          .block = {128}},
                          args);
}

/* ---- The op ---- */

/* Tiles per split: 512 keys, whatever the batch is, so that a row's sums do not depend on the
 * batch. */
#define SPLIT_SHARE 32
#define BUSY        2 /* With this many row tiles per SM or more, one block walks all splits. */
/* Bytes of shared memory with which two blocks fit on an SM with 227 KB. */
#define SHARED_HALF 115200

static int64_t paged_row_tiles(const lt_attention_paged_args *a) {
    return lt_cuda_div_up(a->q_max * (a->q.shape[1] / a->k_pages.shape[2]), ROWS);
}
static int64_t paged_splits(const lt_attention_paged_args *a) {
    return lt_cuda_div_up(lt_cuda_div_up(a->kv_max, ROWS), SPLIT_SHARE);
}
static int64_t pack_most(const lt_attention_paged_args *a) {
    return LT_DECODE_PACK(a->q.shape[1] / a->k_pages.shape[2]);
}
/* Two sequences per tile gain nothing (docs/speed/attention.md, attempt 164). */
static bool packed(const lt_attention_paged_args *a) {
    return a->packs.data != NULL && a->window == 0 && pack_most(a) > 2;
}
/* With packs, one of this many blocks does the work. */
static bool walks(const lt_attention_paged_args *a, const lt_cuda_info *info) {
    return a->kv_len.shape[0] * a->k_pages.shape[2] * paged_row_tiles(a) >=
               BUSY * info->n_sms * (packed(a) ? pack_most(a) : 1) ||
           paged_splits(a) == 1;
}

/* Splits that a block computes one after another. Two if that leaves nearly two blocks for every SM
 * or more: narrow heads gain 3 % (docs/speed/attention.md). */
static int turns(const lt_attention_paged_args *a, const lt_cuda_info *info) {
    const int64_t blocks = a->kv_len.shape[0] * a->k_pages.shape[2] * paged_row_tiles(a) *
                           lt_cuda_div_up(paged_splits(a), 2);
    return a->q.shape[2] <= 64 && 20 * blocks >= 19 * (int64_t)BUSY * info->n_sms ? 2 : 1;
}

const char *lt_cuda_paged_refusal(const lt_attention_paged_args *a, const lt_cuda_info *info) {
    const int64_t width = a->q.shape[2];
    if (info->cc < 80) {
        return "needs compute capability 8.0";
    }
    if ((a->q.dtype != LT_BF16 && a->q.dtype != LT_F16) || a->out.dtype != a->q.dtype) {
        return "not 16-bit and of one type";
    }
    if ((a->k_pages.dtype != a->q.dtype && lt_cuda_codes_of(a->k_pages.dtype) == 0) ||
        (a->v_pages.dtype != a->q.dtype && lt_cuda_codes_of(a->v_pages.dtype) == 0)) {
        return "keys or values neither as q nor F8_E4M3, Q8_0 or Q4_0";
    }
    if (width % 64 != 0 || width > 256) {
        return "head width not 64, 128, 192 or 256";
    }
    if (!lt_tensor_contiguous(&a->k_pages) || !lt_tensor_contiguous(&a->v_pages) ||
        (((uintptr_t)a->k_pages.data | (uintptr_t)a->v_pages.data) & 15) != 0) {
        return "pages not contiguous on 16 bytes";
    }
    if (a->q.stride[1] != a->out.stride[1] || a->q.stride[2] != 1 || a->out.stride[2] != 1 ||
        a->q.stride[0] % 2 != 0 || a->q.stride[1] % 2 != 0 || (uintptr_t)a->q.data % 4 != 0) {
        return "rows of q not 4-byte aligned, or heads apart in another way than out's";
    }
    return a->k_pages.shape[1] % ROWS != 0 ? "page not a multiple of 16 tokens" : NULL;
}

size_t lt_cuda_paged_scratch_bytes(const lt_attention_paged_args *a, const lt_cuda_info *info) {
    return walks(a, info) ? 0
                          : (size_t)(a->kv_len.shape[0] * a->k_pages.shape[2] * paged_row_tiles(a) *
                                     paged_splits(a)) *
                                ROWS * (size_t)(a->q.shape[2] + 2) * 4;
}

static lt_attn_decode_args paged_args(const lt_attention_paged_args *a, void *part) {
    return (lt_attn_decode_args){.batch = (int)a->kv_len.shape[0],
                                 .q_heads = (int)a->q.shape[1],
                                 .kv_heads = (int)a->k_pages.shape[2],
                                 .q_tokens = (int)a->q_max,
                                 .splits = (int)paged_splits(a),
                                 .table_ld = (int)a->table.stride[0],
                                 .window = (int)a->window,
                                 .share = SPLIT_SHARE,
                                 .head_ld = (int)a->q.stride[1],
                                 .scale = a->scale,
                                 .softcap = a->softcap,
                                 .q = a->q.data,
                                 .k = a->k_pages.data,
                                 .v = a->v_pages.data,
                                 .table = a->table.data,
                                 .kv_len = a->kv_len.data,
                                 .q_start = a->q_start.data,
                                 .packs = a->packs.data,
                                 .alibi = a->alibi.data,
                                 .sinks = a->sinks.data,
                                 .out = a->out.data,
                                 .part = part,
                                 .q_ld = a->q.stride[0],
                                 .out_ld = a->out.stride[0]};
}

lt_err lt_cuda_paged(lt_cuda *c, CUstream s, const lt_attention_paged_args *a, lt_scratch scratch) {
    const lt_cuda_info *info = lt_cuda_get_info(c);
    const int width = (int)a->q.shape[2], codes = lt_cuda_codes_of(a->k_pages.dtype),
              vcodes = lt_cuda_codes_of(a->v_pages.dtype);
    const size_t ring = (size_t)LT_DECODE_RING_BYTES(width, codes, vcodes),
                 result = (size_t)LT_DECODE_RESULT_BYTES(width),
                 meet = (size_t)LT_DECODE_MEET_BYTES(width);
    const size_t rows = packed(a) ? ROWS
                                  : (size_t)(a->q_max * (a->q.shape[1] / a->k_pages.shape[2])),
                 beside = ring + meet / ROWS * (rows < ROWS ? rows : ROWS);
    const size_t meet_bytes = ring > meet ? ring : meet;
    lt_attn_decode_args w = paged_args(a, scratch.data);
    size_t shared = meet_bytes;
    const unsigned blocks = (unsigned)(w.kv_heads * paged_row_tiles(a)), batch = (unsigned)w.batch;
    const lt_cuda_kernel *split, *combine;
    char text[160];
    void *args[] = {&w};

    if (batch == 0 || blocks == 0) {
        return LT_OK;
    }
    snprintf(text, sizeof text, WORDS OPTION_WORDS CODES_WORDS "%s", width,
             (int)a->k_pages.shape[1], a->q.dtype == LT_F16 ? "fp16" : "bf16", a->softcap > 0.0f,
             a->alibi.data != NULL, a->sinks.data != NULL, codes, vcodes,
             packed(a) ? PACKS_WORD : "");
    if (walks(a, info)) {
        w.result = (int)meet_bytes;
        LT_TRY(lt_cuda_kernel_get(c, &split, "attention/decode.cu", "decode_walk", text));
        lt_cuda_all_shared(c, split);
        return lt_cuda_launch(c, s, split,
                              &(lt_cuda_dims){.grid = {1, blocks, batch},
                                              .block = {32 * WARPS},
                                              .dynamic_shared_bytes = meet_bytes + result,
                                              .overlap_previous = info->cc >= 90},
                              args);
    }
    LT_ASSERT(scratch.bytes >= lt_cuda_paged_scratch_bytes(a, info));
    w.turns = turns(a, info);
    if (w.turns > 1 && beside <= SHARED_HALF) {
        w.meet = (int)ring, shared = beside;
    }
    LT_TRY(lt_cuda_kernel_get(c, &split, "attention/decode.cu", "decode_split", text));
    LT_TRY(lt_cuda_kernel_get(c, &combine, "attention/decode.cu", "decode_combine", text));
    lt_cuda_all_shared(c, split);
    lt_cuda_all_shared(c, combine);
    LT_TRY(lt_cuda_launch(
        c, s, split,
        &(lt_cuda_dims){.grid = {(unsigned)lt_cuda_div_up(w.splits, w.turns), blocks, batch},
                        .block = {32 * WARPS},
                        .dynamic_shared_bytes = shared,
                        .overlap_previous = info->cc >= 90},
        args));
    return lt_cuda_launch(c, s, combine,
                          &(lt_cuda_dims){.grid = {(unsigned)(paged_row_tiles(a) * ROWS / 4),
                                                   (unsigned)w.kv_heads, batch},
                                          .block = {128},
                                          .overlap_previous = info->cc >= 90},
                          args);
}

void lt_specs_decode(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, "attention/decode.cu", WORDS, 128, 16, "bf16");
    lt_spec(l, LT_SM_ALL, "attention/decode.cu", WORDS, 128, 64, "bf16");
    lt_spec(l, LT_SM_ALL, "attention/decode.cu", WORDS, 64, 16, "bf16");
    lt_spec(l, LT_SM_ALL, "attention/decode.cu", WORDS, 128, 128, "fp16");
    lt_spec(l, LT_SM_ALL, "attention/decode.cu", WORDS OPTION_WORDS, 64, 16, "bf16", 1, 1, 1);
    lt_spec(l, LT_SM_ALL, "attention/decode.cu", WORDS CODES_WORDS, 64, 16, "fp16", 1, 1);
    lt_spec(l, LT_SM_ALL, "attention/decode.cu", WORDS PACKS_WORD, 64, 16, "bf16");
    lt_spec(l, LT_SM_ALL, "attention/decode.cu", WORDS PACKS_WORD, 128, 16, "bf16");
    lt_spec(l, LT_SM_ALL, "attention/decode.cu", WORDS CODES_WORDS PACKS_WORD, 128, 16, "bf16", 1,
            1);
    for (int codes = 1; codes <= 3; codes++) {
        lt_spec(l, LT_SM_ALL, "attention/decode.cu", WORDS CODES_WORDS, 64, 16, "bf16", codes,
                codes);
        lt_spec(l, LT_SM_ALL, "attention/decode.cu", WORDS CODES_WORDS, 128, 16, "bf16", codes,
                codes);
        for (int vcodes = 0; vcodes <= 3; vcodes++) { /* Also keys that are plain numbers. */
            const int kcodes = vcodes == codes ? 0 : codes;
            lt_spec(l, LT_SM_ALL, "attention/decode.cu", WORDS CODES_WORDS, 128, 16, "bf16", kcodes,
                    vcodes);
        }
    }
}
