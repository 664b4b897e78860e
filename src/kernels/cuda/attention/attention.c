/* attention.c: see attention.h. */
#include "kernels/cuda/attention/attention.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/attention/attention_private.h"
#include "kernels/cuda/attention/ladder/naive_args.h"
#include "kernels/cuda/attention/ladder/rung_args.h"
#include "kernels/cuda/specs.h"

/* The -D constants of the kernels, for launches and for lt_specs_attention. */
#define FORWARD_WORDS                                                                              \
    "HEAD_DIM=%d BN=%d CONSUMERS=%d O_DIRECT=%d Q_SLOTS=%d STAGES=%d TURNS=%d "                    \
    "HEADS=%d REGS_PRODUCER=%d REGS_CONSUMER=%d SINKS=%d CLUSTER=%d "
#define PAGED_WORDS " PAGED=%d"

/* Up to this many keys, causal tiles of all lengths run at once: see tile_locate. */
#define SECTION_KEYS 512
#define L2_SHARE     (32 << 20) /* Bytes of the L2's 50 MB that the tiles running together use. */
/* Most prompts of one call: their positions are in shared memory. */
#define PROMPTS_MOST 128

/* A forward specialisation for heads up to `width`; the first row that fits a call was measured to
 * be the fastest (docs/speed/attention.md). */
typedef struct {
    int width;
    enum { ANY, CAUSAL, FULL } mask;
    int keys_max; /* Most keys of a call, or of its window; 0: any number. */
    int bn, consumers, stages, q_slots, o_direct, regs_producer, regs_consumer;
    /* Blocks that share copies of K and V if the keys of neighbours differ by at most a
     * diagonal. */
    int cluster;
} fwd_row;
static const fwd_row fwd_rows[] = {
    /* With few keys a tile waits for its loads, so more are issued in advance, and smaller tiles
     * waste less of the diagonal. */
    {64, CAUSAL, 1024, 128, 2, 4, 2, 0, 40, 232, 1},
    {64, CAUSAL, 0, 128, 3, 3, 2, 0, 32, 160, 1},
    {64, FULL, 1024, 128, 3, 3, 2, 0, 32, 160, 1},
    {64, ANY, 0, 128, 3, 2, 1, 0, 32, 160, 1},
    {128, CAUSAL, 1024, 128, 2, 2, 2, 0, 40, 232, 1},
    {128, FULL, 1024, 128, 2, 2, 2, 0, 40, 232, 2},
    {128, CAUSAL, 0, 128, 2, 2, 1, 0, 40, 232, 1},
    {128, FULL, 0, 128, 2, 2, 1, 0, 40, 232, 2},
    {192, ANY, 0, 96, 2, 2, 1, 1, 24, 240, 1},
    {256, CAUSAL, 512, 64, 2, 2, 1, 1, 40, 232, 1},
    {256, CAUSAL, 2048, 80, 2, 2, 1, 1, 40, 232, 1},
    {256, ANY, 0, 80, 2, 2, 1, 1, 40, 232, 2},
};

static const fwd_row *fwd_row_for(int64_t width, int64_t keys, int64_t window, bool causal) {
    keys = window > 0 && window < keys ? window : keys;
    for (size_t i = 0; i < sizeof fwd_rows / sizeof *fwd_rows; i++) {
        const fwd_row *r = &fwd_rows[i];
        if (width <= r->width && (r->keys_max == 0 || keys <= r->keys_max) &&
            (r->mask == ANY || (r->mask == CAUSAL) == causal)) {
            return r;
        }
    }
    return NULL;
}
static const fwd_row *fwd_row_of(const lt_attention_args *a) {
    return fwd_row_for(a->q.shape[3], a->k.shape[1], a->window, a->causal);
}

/* Whether the copy engine can read (B, T, H, D) of 16-bit elements. */
const char *lt_attn_tensor_refusal(const lt_tensor *t) {
    if (t->n_dims != 4 || (t->dtype != LT_BF16 && t->dtype != LT_F16)) {
        return "not (B, T, H, D) of 16-bit elements";
    }
    if (t->stride[3] != 1 || t->stride[2] % 8 != 0 || t->stride[1] % 8 != 0 ||
        t->stride[0] % 8 != 0 || (uintptr_t)t->data % 16 != 0) {
        return "rows not 16-byte aligned";
    }
    return NULL;
}

const char *lt_cuda_attention_refusal(const lt_attention_args *a, const lt_cuda_info *info) {
    const lt_tensor *tensors[] = {&a->q, &a->k, &a->v, &a->out};
    if (info->cc != 90) {
        return "needs compute capability 9.0";
    }
    for (int i = 0; i < 4; i++) {
        const char *why = lt_attn_tensor_refusal(tensors[i]);
        if (why != NULL) {
            return why;
        }
        if (tensors[i]->dtype != a->q.dtype) {
            return "tensors of different types";
        }
    }
    if (a->doc_start.data != NULL && !lt_tensor_contiguous(&a->doc_start)) {
        return "doc_start not contiguous";
    }
    if (a->q.shape[3] % 8 != 0 || a->q.shape[3] > 256) {
        return "head width not a multiple of 8 up to 256";
    }
    if (a->q.shape[0] < 1 || a->q.shape[1] < 1 || a->k.shape[1] < 1) {
        return "no queries or no keys";
    }
    return NULL;
}

lt_attn_args lt_attn_args_of(const lt_attention_args *a, lt_scratch scratch) {
    return (lt_attn_args){.batch = (int)a->q.shape[0],
                          .q_heads = (int)a->q.shape[2],
                          .kv_heads = (int)a->k.shape[2],
                          .q_tokens = (int)a->q.shape[1],
                          .kv_tokens = (int)a->k.shape[1],
                          .window = (int)a->window,
                          .section = 1,
                          .scale = a->scale,
                          .softcap = a->softcap,
                          .kv_len = a->kv_len.data,
                          .doc_start = a->doc_start.data,
                          .alibi = a->alibi.data,
                          .sinks = a->sinks.data,
                          .lse = a->lse.data,
                          .counter = scratch.data,
                          .out = a->out.data,
                          .out_ld = a->out.stride[1],
                          .out_head_ld = a->out.stride[2],
                          .out_batch_ld = a->out.stride[0],
                          .out_width = (int)a->out.shape[3]};
}

/* The constants that forward and backward share. */
void lt_attn_flags(char *out, size_t bytes, const lt_attention_args *a) {
    snprintf(out, bytes, LT_ATTN_FLAGS, a->q.dtype == LT_F16 ? "fp16" : "bf16", a->causal,
             a->window > 0, a->doc_start.data != NULL, a->softcap > 0.0f, a->alibi.data != NULL);
}

/* A map with boxes of 64 columns, `heads` heads and `tokens` tokens. */
lt_err lt_attn_map(lt_cuda *c, CUtensorMap *map, const lt_tensor *t, int heads, int tokens) {
    return lt_cuda_tensor_map(
        c, map, t->data,
        &(lt_tensor_map_spec){.type = t->dtype == LT_F16 ? LT_CU_TMAP_FP16 : LT_CU_TMAP_BF16,
                              .elem_bytes = 2,
                              .rank = 4,
                              .size = {(uint64_t)t->shape[3], (uint64_t)t->shape[2],
                                       (uint64_t)t->shape[1], (uint64_t)t->shape[0]},
                              .stride_bytes = {0, (uint64_t)t->stride[2] * 2,
                                               (uint64_t)t->stride[1] * 2,
                                               (uint64_t)t->stride[0] * 2},
                              .box = {64, (uint32_t)heads, (uint32_t)tokens, 1},
                              .swizzle = LT_CU_TMAP_SWIZZLE_128B,
                              .l2_promotion = LT_CU_TMAP_L2_128B});
}

/* Query heads of one key head that share a tile: with few queries, as many as fill it. */
static int heads_packed(const lt_attention_args *a, int tile_rows) {
    const int group = (int)(a->q.shape[2] / a->k.shape[2]);
    int heads = 1;
    while (heads < 16 && group % (2 * heads) == 0 && a->q.shape[1] * heads * 2 <= tile_rows) {
        heads *= 2;
    }
    return heads;
}

size_t lt_cuda_attention_scratch_bytes(const lt_attention_args *a) {
    (void)a;
    return LT_ATTN_COUNTER_BYTES;
}

/* The parts of a launch of fwd_sm90.cu: constants in addition to the row's, its tensors as (B, T,
 * H, D), keys per copy. */
typedef struct {
    const fwd_row *row;
    int turns, heads, box, cluster;
    bool sinks;
    const char *flags;
    const lt_tensor *q, *k, *v, *out;
    int64_t blocks;
    size_t more_shared;
} fwd_launch;
static lt_err launch_forward(lt_cuda *c, CUstream s, const fwd_launch *l, lt_attn_args *w) {
    const fwd_row *r = l->row;
    const size_t shared = (size_t)LT_ATTN_FORWARD_BYTES(r->width, r->bn, r->consumers, r->o_direct,
                                                        r->q_slots, r->stages);
    const unsigned cluster = (unsigned)l->cluster;
    char text[512];
    const lt_cuda_kernel *k;
    CUtensorMap q, key, v, o;
    void *args[] = {&q, &key, &v, &o, w};

    snprintf(text, sizeof text, FORWARD_WORDS "%s", r->width, r->bn, r->consumers, r->o_direct,
             r->q_slots, r->stages, l->turns, l->heads, r->regs_producer, r->regs_consumer,
             l->sinks, l->cluster, l->flags);
    LT_TRY(lt_cuda_kernel_get(c, &k, "attention/fwd_sm90.cu", "attn_fwd_sm90", text));
    LT_TRY(lt_attn_map(c, &q, l->q, l->heads, 64 / l->heads));
    LT_TRY(lt_attn_map(c, &key, l->k, 1, l->box));
    LT_TRY(lt_attn_map(c, &v, l->v, 1, l->box));
    LT_TRY(lt_attn_map(c, &o, l->out, l->heads, 64 / l->heads));
    return lt_cuda_launch(
        c, s, k,
        &(lt_cuda_dims){.grid = {(unsigned)l->blocks},
                        .block = {(unsigned)(128 * (1 + r->consumers))},
                        .cluster = {cluster > 1 ? cluster : 0, cluster > 1, cluster > 1},
                        .dynamic_shared_bytes = shared + l->more_shared},
        args);
}
int lt_attn_section(double bytes, int64_t pairs) {
    const int64_t most = (int64_t)(L2_SHARE / bytes);
    return (int)lt_cuda_div_up(pairs, lt_cuda_div_up(pairs, most < 1 ? 1 : most));
}

static lt_err forward(lt_cuda *c, CUstream s, const lt_attention_args *a, lt_scratch scratch,
                      const fwd_row *r, int turns) {
    const lt_cuda_info *info = lt_cuda_get_info(c);
    const char *why = lt_cuda_attention_refusal(a, info);
    lt_attn_args w = lt_attn_args_of(a, scratch);
    char flags[256];

    if (why != NULL || r == NULL || scratch.bytes < LT_ATTN_COUNTER_BYTES) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "attention: %s", why != NULL ? why : "no scratch");
    }
    const int rows = 64 * r->consumers, heads = heads_packed(a, rows);
    const int64_t pairs = (int64_t)w.batch * w.q_heads / heads,
                  tiles = lt_cuda_div_up((int64_t)w.q_tokens * heads, rows), n = tiles * pairs,
                  alike = (info->n_sms + tiles / 2) / tiles;
    const bool alike_keys = a->window == 0 && a->doc_start.data == NULL && heads == 1;
    const int cluster = alike_keys && tiles % r->cluster == 0 ? r->cluster : 1,
              fit = info->n_sms / cluster * cluster;
    w.section = a->causal && w.kv_tokens > SECTION_KEYS
                    ? lt_attn_section(4.0 * w.kv_tokens * r->width * heads * w.kv_heads / w.q_heads,
                                      pairs)
                    : (int)(alike < 1 ? 1 : (alike > pairs ? pairs : alike));
    lt_attn_flags(flags, sizeof flags, a);
    return launch_forward(c, s,
                          &(fwd_launch){.row = r,
                                        .turns = turns,
                                        .heads = heads,
                                        .box = r->bn / cluster,
                                        .cluster = cluster,
                                        .sinks = a->sinks.data != NULL,
                                        .flags = flags,
                                        .q = &a->q,
                                        .k = &a->k,
                                        .v = &a->v,
                                        .out = &a->out,
                                        .blocks = n < fit ? n : fit},
                          &w);
}

lt_err lt_cuda_attention(lt_cuda *c, CUstream s, const lt_attention_args *a, lt_scratch scratch) {
    return forward(c, s, a, scratch, fwd_row_of(a), 1);
}

/* ---- Pages ---- */

static const fwd_row *paged_row(const lt_attention_paged_args *a) {
    return fwd_row_for(a->q.shape[2], a->kv_max, a->window, true);
}
static int box_of(const lt_attention_paged_args *a, const fwd_row *r) {
    return (int)(a->k_pages.shape[1] < r->bn ? a->k_pages.shape[1] : r->bn);
}
/* (R, H, D) as a batch of one. */
static lt_tensor as_batch(const lt_tensor *t) {
    lt_tensor x = *t;
    x.n_dims = 4;
    for (int d = 3; d > 0; d--) {
        x.shape[d] = t->shape[d - 1], x.stride[d] = t->stride[d - 1];
    }
    x.shape[0] = 1, x.stride[0] = x.shape[1] * x.stride[1];
    return x;
}

int64_t lt_cuda_attention_prompts_most(const lt_attention_paged_args *a) {
    const int64_t by_rows = a->q.shape[0] / LT_PROMPT_ROWS, n = a->kv_len.shape[0];
    return n < by_rows ? n : by_rows;
}

bool lt_cuda_attention_takes_prompts(const lt_attention_paged_args *a, const lt_cuda_info *info) {
    const lt_tensor q = as_batch(&a->q), out = as_batch(&a->out);
    const fwd_row *r = paged_row(a);
    return info->cc == 90 && !a->fixed_order && a->q_max >= LT_PROMPT_ROWS &&
           lt_cuda_attention_prompts_most(a) <= PROMPTS_MOST && r != NULL &&
           a->q.shape[2] == r->width && lt_attn_tensor_refusal(&q) == NULL &&
           lt_attn_tensor_refusal(&out) == NULL && lt_attn_tensor_refusal(&a->k_pages) == NULL &&
           lt_attn_tensor_refusal(&a->v_pages) == NULL && a->k_pages.dtype == a->q.dtype &&
           a->v_pages.dtype == a->q.dtype && a->out.dtype == a->q.dtype &&
           r->bn % box_of(a, r) == 0 && a->k_pages.shape[1] % box_of(a, r) == 0;
}

lt_err lt_cuda_attention_prompts(lt_cuda *c, CUstream s, const lt_attention_paged_args *a,
                                 lt_scratch scratch) {
    const lt_cuda_info *info = lt_cuda_get_info(c);
    const fwd_row *r = paged_row(a);
    const lt_tensor q = as_batch(&a->q), out = as_batch(&a->out);
    const int64_t heads = a->q.shape[1], kv_heads = a->k_pages.shape[2],
                  stops = lt_cuda_attention_prompts_most(a) + 1;
    fwd_row row = *r;
    lt_attn_args w = {.batch = (int)a->kv_len.shape[0],
                      .q_heads = (int)heads,
                      .kv_heads = (int)kv_heads,
                      .q_tokens = (int)a->q_max,
                      .kv_tokens = (int)a->kv_max,
                      .window = (int)a->window,
                      .scale = a->scale,
                      .softcap = a->softcap,
                      .kv_len = a->kv_len.data,
                      .alibi = a->alibi.data,
                      .sinks = a->sinks.data,
                      .counter = scratch.data,
                      .q_start = a->q_start.data,
                      .table = a->table.data,
                      .table_ld = (int)a->table.stride[0],
                      .q_least = LT_PROMPT_ROWS,
                      .out = a->out.data,
                      .out_ld = a->out.stride[0],
                      .out_head_ld = a->out.stride[1],
                      .out_width = (int)a->out.shape[2]};
    const lt_attention_args alike = {
        .q = q, .causal = true, .window = a->window, .softcap = a->softcap, .alibi = a->alibi};
    char flags[256];

    LT_ASSERT(scratch.bytes >= LT_ATTN_COUNTER_BYTES);
    if (row.consumers == 2) { /* With pages the producer needs more registers. */
        row.regs_producer = 40, row.regs_consumer = 232;
    }
    w.section = lt_attn_section(
        4.0 * (double)a->kv_max * r->width * (double)kv_heads / (double)heads, heads);
    lt_attn_flags(flags, sizeof flags, &alike);
    snprintf(flags + strlen(flags), sizeof flags - strlen(flags), PAGED_WORDS,
             (int)a->k_pages.shape[1]);
    return launch_forward(c, s,
                          &(fwd_launch){.row = &row,
                                        .turns = 1,
                                        .heads = 1,
                                        .box = box_of(a, r),
                                        .cluster = 1,
                                        .sinks = a->sinks.data != NULL,
                                        .flags = flags,
                                        .q = &q,
                                        .k = &a->k_pages,
                                        .v = &a->v_pages,
                                        .out = &out,
                                        .blocks = info->n_sms,
                                        .more_shared = 128 + 8 * (size_t)stops},
                          &w);
}

/* ---- The ladder ---- */

const lt_attention_rung lt_attention_rungs[] = {
    {1, "naive", "a block a query, all its scores at once", "attention/ladder/01_naive.cu",
     "attn_naive_fwd", 1, 128, 0, 0},
    {2, "tiled", "tiles of keys, online softmax, scores never in memory",
     "attention/ladder/02_tiled.cu", "attn_tiled", 64, 256, 0, 0},
    {3, "mma.sync", "tensor cores of sm_80, scores in a warp's registers",
     "attention/ladder/03_mma_sync.cu", "attn_mma_sync", 128, 256, 0, 0},
    {4, "wgmma and copy engine", "a producer feeds one consumer; softmax under the product before",
     NULL, NULL, 0, 0, 1, 0},
    {5, "two consumers", "the same keys serve 128 queries", NULL, NULL, 0, 0, 2, 0},
    {6, "turns", "one consumer's softmax under the other's products", NULL, NULL, 0, 0, 2, 1},
};
const int lt_attention_n_rungs = sizeof lt_attention_rungs / sizeof *lt_attention_rungs;

#define NAIVE_WORDS "REAL=float CAUSAL=%d"
#define RUNG_WORDS  "CAUSAL=%d WIDTH=%d"

static void rung_launch(const lt_attention_rung *r, const lt_attention_args *a, char words[64],
                        size_t *shared) {
    const size_t width = (size_t)a->q.shape[3], keys = (size_t)a->k.shape[1];
    snprintf(words, 64, r->rung == 1 ? NAIVE_WORDS : RUNG_WORDS, a->causal, (int)width);
    *shared = r->rung == 1   ? LT_ATTN_NAIVE_BYTES(keys, sizeof(float))
              : r->rung == 2 ? LT_ATTN_RUNG_TILED_BYTES(width)
                             : LT_ATTN_RUNG_MMA_BYTES(width);
}

lt_err lt_cuda_attention_rung(lt_cuda *c, CUstream s, const lt_attention_rung *r,
                              const lt_attention_args *a, lt_scratch scratch) {
    const lt_attn_args w = lt_attn_args_of(a, scratch);
    const lt_cuda_kernel *k;
    const fwd_row *row = fwd_row_of(a);
    const int width = (int)a->q.shape[3];
    lt_attn_naive_fwd_args of_naive = {.a = w,
                                       .o = a->out.data,
                                       .lse = a->lse.data,
                                       .q = a->q.data,
                                       .k = a->k.data,
                                       .v = a->v.data,
                                       .width = width};
    lt_attn_rung_args of_rung = {
        .a = w, .o = a->out.data, .q = a->q.data, .k = a->k.data, .v = a->v.data, .width = width};
    char words[64];
    size_t shared;
    void *naive[] = {&of_naive}, *args[] = {&of_rung};

    if (r->file == NULL) {
        fwd_row with = row != NULL ? *row : fwd_rows[0];
        with.consumers = r->consumers;
        with.regs_producer = 40;
        with.regs_consumer = 232;
        with.cluster = 1;
        return forward(c, s, a, scratch, row != NULL ? &with : NULL, r->turns);
    }
    if ((width != 64 && width != 128) || a->window > 0 || a->softcap > 0.0f ||
        a->doc_start.data != NULL || a->alibi.data != NULL || a->sinks.data != NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "rung %d: head width %d, or a mask beyond causal", r->rung,
                width);
    }
    rung_launch(r, a, words, &shared);
    LT_TRY(lt_cuda_kernel_get(c, &k, r->file, r->entry, words));
    return lt_cuda_launch(c, s, k,
                          &(lt_cuda_dims){.grid = {(unsigned)lt_cuda_div_up(w.q_tokens, r->rows),
                                                   (unsigned)w.q_heads, (unsigned)w.batch},
                                          .block = {(unsigned)r->threads},
                                          .dynamic_shared_bytes = shared},
                          r->rung == 1 ? naive : args);
}

static void specs_rungs(lt_specs *l) {
    for (int i = 0; i < lt_attention_n_rungs; i++) {
        const lt_attention_rung *r = &lt_attention_rungs[i];
        if (r->file != NULL && r->rung == 1) {
            lt_spec(l, LT_SM_ALL, r->file, NAIVE_WORDS, 1);
        }
        for (int width = 64; r->file != NULL && r->rung > 1 && width <= 128; width += 64) {
            lt_spec(l, LT_SM_ALL, r->file, RUNG_WORDS, 0, width);
            lt_spec(l, LT_SM_ALL, r->file, RUNG_WORDS, 1, width);
        }
    }
}

/* Each row of the table with the masks for which it is used, with and without clusters. */
static void specs_rows(lt_specs *l) {
    for (size_t i = 0; i < sizeof fwd_rows / sizeof *fwd_rows; i++) {
        const fwd_row *r = &fwd_rows[i];
        for (int causal = r->mask == CAUSAL; causal <= (r->mask != FULL); causal++) {
            for (int cluster = 1; cluster <= r->cluster; cluster++) {
                lt_spec(l, LT_SM90, "attention/fwd_sm90.cu", FORWARD_WORDS LT_ATTN_FLAGS, r->width,
                        r->bn, r->consumers, r->o_direct, r->q_slots, r->stages, 1, 1,
                        r->regs_producer, r->regs_consumer, 0, cluster, "bf16", causal, 0, 0, 0, 0);
            }
        }
    }
}

/* Also each flag once; few queries, whose heads share a tile; prompts with keys in pages. */
void lt_specs_attention(lt_specs *l) {
    specs_rungs(l);
    specs_rows(l);
    lt_spec(l, LT_SM90, "attention/fwd_sm90.cu", FORWARD_WORDS LT_ATTN_FLAGS, 128, 128, 2, 0, 1, 2,
            1, 1, 40, 232, 0, 1, "fp16", 1, 0, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/fwd_sm90.cu", FORWARD_WORDS LT_ATTN_FLAGS, 128, 128, 2, 0, 1, 2,
            1, 1, 40, 232, 0, 1, "bf16", 1, 1, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/fwd_sm90.cu", FORWARD_WORDS LT_ATTN_FLAGS, 128, 128, 2, 0, 1, 2,
            1, 1, 40, 232, 0, 1, "bf16", 1, 0, 1, 0, 0);
    lt_spec(l, LT_SM90, "attention/fwd_sm90.cu", FORWARD_WORDS LT_ATTN_FLAGS, 128, 128, 2, 0, 1, 2,
            1, 1, 40, 232, 0, 1, "bf16", 1, 0, 0, 1, 0);
    lt_spec(l, LT_SM90, "attention/fwd_sm90.cu", FORWARD_WORDS LT_ATTN_FLAGS, 128, 128, 2, 0, 1, 2,
            1, 1, 40, 232, 0, 1, "bf16", 1, 0, 0, 0, 1);
    lt_spec(l, LT_SM90, "attention/fwd_sm90.cu", FORWARD_WORDS LT_ATTN_FLAGS, 128, 128, 2, 0, 1, 2,
            1, 1, 40, 232, 1, 1, "bf16", 1, 0, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/fwd_sm90.cu", FORWARD_WORDS LT_ATTN_FLAGS, 128, 128, 2, 0, 1, 2,
            1, 4, 40, 232, 0, 1, "bf16", 1, 0, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/fwd_sm90.cu", FORWARD_WORDS LT_ATTN_FLAGS PAGED_WORDS, 64, 128,
            3, 0, 2, 3, 1, 1, 32, 160, 0, 1, "bf16", 1, 0, 0, 0, 0, 16);
    lt_spec(l, LT_SM90, "attention/fwd_sm90.cu", FORWARD_WORDS LT_ATTN_FLAGS PAGED_WORDS, 128, 128,
            2, 0, 1, 2, 1, 1, 40, 232, 0, 1, "bf16", 1, 0, 0, 0, 0, 16);
    lt_spec(l, LT_SM90, "attention/fwd_sm90.cu", FORWARD_WORDS LT_ATTN_FLAGS PAGED_WORDS, 128, 128,
            2, 0, 1, 2, 1, 1, 40, 232, 0, 1, "bf16", 1, 1, 0, 0, 0, 256);
    lt_spec(l, LT_SM90, "attention/fwd_sm90.cu", FORWARD_WORDS LT_ATTN_FLAGS PAGED_WORDS, 256, 80,
            2, 1, 1, 2, 1, 1, 40, 232, 0, 1, "bf16", 1, 0, 0, 1, 0, 16);
}
