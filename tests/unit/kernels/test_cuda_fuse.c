/* Ops that become one kernel when a step is recorded (ops/fuse.h) give the same bits in every
 * tensor as the same ops one by one. The step is three layers of a transformer written as ops,
 * with sizes that are multiples of no tile. Skipped without a GPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/rng.h"
#include "kernels/cuda/ops/fuse.h"
#include "tensor/block.h"
#include "tensor/ops.h"
#include "unit/device.h"

enum { LAYERS = 2, MATRICES = 4, MOST_ROWS = 70, ARENA = 120 << 20 };
enum { QKV, OUT, UP, DOWN };

typedef struct {
    const char *what;
    /* tokens: of the longest sequence. */
    int rows, width, heads, kv_heads, dim, ffn, vocab, page, tokens;
    lt_dtype act, weights[MATRICES];
    lt_act_kind kind;
    /* part_rope: only a part of a head rotates. */
    bool gated, layer_norm, bias, qk_norm, part_rope;
    float softcap;
    int window;
    int slack; /* Elements by which rows of the stream are padded. */
    bool unfused;
} shape;

#define ALL(t)                                                                                     \
    { t, t, t, t }
static const shape shapes[] = {
    {"Llama, bf16, a row", 1, 256, 8, 2, 64, 512, 1003, 16, 37, LT_BF16, ALL(LT_BF16), LT_ACT_SILU,
     .gated = true},
    {"wide, bf16, a row", 1, 2560, 4, 2, 64, 520, 77, 16, 20, LT_BF16, ALL(LT_BF16), LT_ACT_SILU,
     .gated = true},
    {"2048 wide, bf16, a row: brief products, deep ones by the copy engine", 1, 2048, 2, 1, 64,
     4096, 77, 16, 20, LT_BF16, ALL(LT_BF16), LT_ACT_SILU, .gated = true},
    {"Llama, bf16, 3 rows", 3, 200, 6, 2, 64, 208, 77, 32, 300, LT_BF16, ALL(LT_BF16), LT_ACT_SILU,
     .gated = true, .slack = 8},
    {"wide, fp16, 5 rows", 5, 2560, 4, 4, 128, 136, 77, 16, 20, LT_F16, ALL(LT_F16), LT_ACT_SILU,
     .gated = true, .bias = true},
    {"GPT, fp16, 8 rows, bias", 8, 136, 3, 3, 64, 264, 50, 16, 20, LT_F16, ALL(LT_F16),
     LT_ACT_GELU_TANH, .layer_norm = true, .bias = true},
    {"gated GELU, 8 rows, bias", 8, 2048, 4, 2, 64, 264, 50, 16, 20, LT_BF16, ALL(LT_BF16),
     LT_ACT_GELU_TANH, .gated = true, .bias = true},
    {"long, split, window", 2, 128, 4, 1, 64, 160, 40, 16, 1300, LT_BF16, ALL(LT_BF16),
     LT_ACT_RELU2, .window = 700},
    {"heads of 128, qk-norm, softcap", 1, 256, 10, 2, 128, 96, 100, 16, 70, LT_BF16, ALL(LT_BF16),
     LT_ACT_GELU, .gated = true, .qk_norm = true, .softcap = 5.0f},
    {"heads of 256, part of them rotated", 2, 128, 2, 1, 256, 96, 100, 16, 33, LT_BF16,
     ALL(LT_BF16), LT_ACT_XIELU, .part_rope = true},
    {"9 rows: rotation and pages", 9, 128, 2, 1, 64, 96, 100, 16, 33, LT_BF16, ALL(LT_BF16),
     LT_ACT_SILU, .gated = true},
    {"9 rows, bias, fp16", 9, 136, 6, 2, 128, 96, 100, 16, 33, LT_F16, ALL(LT_F16), LT_ACT_SILU,
     .gated = true, .bias = true},
    {"9 rows of blocks: rotation and pages", 9, 128, 2, 1, 64, 96, 100, 16, 33, LT_BF16,
     ALL(LT_Q8_0), LT_ACT_SILU, .gated = true},
    {"33 rows of blocks, GELU, bias", 33, 256, 4, 2, 64, 288, 100, 16, 33, LT_BF16, ALL(LT_Q5_1),
     LT_ACT_GELU_TANH, .gated = true, .bias = true},
    {"70 rows, a part of the head turns: none", 70, 128, 2, 1, 64, 96, 100, 16, 33, LT_BF16,
     ALL(LT_BF16), LT_ACT_SILU, .gated = true, .part_rope = true, .unfused = true},
    {"Q8_0", 1, 352, 4, 2, 64, 224, 77, 16, 40, LT_BF16, ALL(LT_Q8_0), LT_ACT_SILU, .gated = true},
    {"2048 wide, Q8_0, a row: by the copy engine", 1, 2048, 2, 1, 64, 512, 77, 16, 20, LT_BF16,
     ALL(LT_Q8_0), LT_ACT_SILU, .gated = true},
    {"Q4_0, 4 rows", 4, 1056, 4, 4, 64, 96, 77, 16, 40, LT_BF16, ALL(LT_Q4_0), LT_ACT_SILU,
     .gated = true},
    {"Q4_K, 8 rows", 8, 2048, 4, 1, 64, 512, 77, 16, 40, LT_BF16, ALL(LT_Q4_K), LT_ACT_SILU,
     .gated = true},
    {"Q6_K, 7 rows", 7, 512, 4, 2, 64, 1024, 77, 16, 40, LT_BF16, ALL(LT_Q6_K), LT_ACT_SILU,
     .gated = true},
    {"mixed types",
     2,
     256,
     4,
     2,
     64,
     512,
     77,
     16,
     40,
     LT_BF16,
     {LT_Q4_K, LT_Q5_0, LT_Q5_K, LT_Q4_1},
     LT_ACT_SILU,
     .gated = true},
};

typedef struct {
    const shape *s;
    const lt_backend *b;
    lt_queue *q;
    lt_rng rng;
    unsigned char *arena;
    size_t used;
    lt_tensor w[LAYERS][MATRICES], bias[LAYERS][MATRICES], gain[LAYERS][4], gain_bias[LAYERS][2],
        k_pages[LAYERS], v_pages[LAYERS];
    void *packed[LAYERS][MATRICES];
    lt_tensor embed, head, table, ids, positions, slots, q_start, kv_len, pages, xielu;
    lt_tensor x, x2, branch, h, qkv, qk, att, up, act, logits, rstd;
} net;

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}
static void *take(net *t, size_t bytes) {
    void *at = t->arena + t->used;
    t->used += (bytes + 255) / 256 * 256;
    assert_true(t->used <= ARENA);
    return at;
}
static float uniform(lt_rng *r) {
    return (float)lt_rng_below(r, 2001) / 1000.0f - 1.0f;
}
/* (rows, cols) random numbers around `middle`, with rows `ld` apart. */
static lt_tensor make(net *t, lt_dtype type, int64_t rows, int64_t cols, int64_t ld, float middle,
                      float scale) {
    const size_t count = (size_t)(rows * ld);
    float *f = malloc(count * sizeof *f);
    unsigned char *bytes = malloc(count * 4);
    lt_tensor x = {.n_dims = rows > 1 || ld != cols || scale < 0.0f ? 2 : 1, .dtype = type};
    for (size_t i = 0; i < count; i++) {
        f[i] = middle + fabsf(scale) * uniform(&t->rng);
    }
    x = lt_tensor_2d(NULL, type, rows, cols);
    if (lt_dtype_is_block(type)) {
        lt_block_encode(bytes, type, f, count);
        x.data = take(t, lt_dtype_row_bytes(type, (int64_t)count));
        must(t->b->upload(t->q, x.data, bytes, lt_dtype_row_bytes(type, (int64_t)count)));
    } else {
        lt_convert(bytes, type, f, LT_F32, count);
        x.data = take(t, count * lt_dtype_bytes(type));
        x.stride[0] = ld;
        must(t->b->upload(t->q, x.data, bytes, count * lt_dtype_bytes(type)));
    }
    must(t->b->sync(t->q));
    free(f);
    free(bytes);
    return x;
}
static lt_tensor vector(net *t, lt_dtype type, int64_t n, float middle, float scale) {
    const lt_tensor x = make(t, type, 1, n, n, middle, scale);
    return lt_tensor_1d(x.data, type, n);
}
static lt_tensor ints(net *t, const int32_t *values, int64_t n) {
    const lt_tensor x = lt_tensor_1d(take(t, (size_t)n * 4), LT_I32, n);
    must(t->b->upload(t->q, x.data, values, (size_t)n * 4));
    must(t->b->sync(t->q));
    return x;
}

static void matrices(net *t, int layer) {
    const shape *s = t->s;
    const int64_t dims[MATRICES][2] = {{(s->heads + 2 * s->kv_heads) * s->dim, s->width},
                                       {s->width, s->heads * s->dim},
                                       {s->ffn * (s->gated ? 2 : 1), s->width},
                                       {s->width, s->ffn}};
    for (int i = 0; i < MATRICES; i++) {
        const float scale = 1.5f / sqrtf((float)dims[i][1]);
        t->w[layer][i] = make(t, s->weights[i], dims[i][0], dims[i][1], dims[i][1], 0.1f * scale,
                              scale);
        t->packed[layer][i] = NULL;
        t->bias[layer][i] = s->bias
                                ? vector(t, i % 2 == 0 ? LT_F32 : s->act, dims[i][0], 0.0f, 0.2f)
                                : (lt_tensor){0};
        if (lt_dtype_is_block(s->weights[i])) {
            t->packed[layer][i] = take(
                t, t->b->matmul_pack_bytes(device_of(t->b), &t->w[layer][i], true));
            must(t->b->ops->matmul_pack(t->q, &(lt_matmul_pack_args){.dst = t->packed[layer][i],
                                                                     .b = t->w[layer][i],
                                                                     .trans_b = true}));
        }
    }
    for (int i = 0; i < 4; i++) {
        t->gain[layer][i] = vector(t, i % 2 == 0 ? LT_F32 : LT_BF16, i < 2 ? s->width : s->dim,
                                   1.0f, 0.3f);
    }
    for (int i = 0; i < 2; i++) {
        t->gain_bias[layer][i] = vector(t, i % 2 == 0 ? LT_F32 : LT_BF16, s->width, 0.0f, 0.3f);
    }
}

/* Sequence i has tokens - 7 i tokens, in pages from the last one down. */
static void paging(net *t) {
    const shape *s = t->s;
    const int per = (s->tokens + s->page - 1) / s->page, n_pages = per * s->rows;
    int32_t positions[MOST_ROWS], slots[MOST_ROWS], q_start[MOST_ROWS + 1], kv_len[MOST_ROWS],
        ids[MOST_ROWS];
    int32_t *pages = malloc((size_t)n_pages * sizeof *pages);
    for (int i = 0; i < n_pages; i++) {
        pages[i] = n_pages - 1 - i;
    }
    for (int i = 0; i < s->rows; i++) {
        kv_len[i] = s->tokens - 7 * i > 1 ? s->tokens - 7 * i : 1;
        positions[i] = kv_len[i] - 1;
        slots[i] = i == 5
                       ? -1
                       : pages[i * per + positions[i] / s->page] * s->page + positions[i] % s->page;
        q_start[i] = i;
        ids[i] = (i * 5 + 3) % 29;
    }
    q_start[s->rows] = s->rows;
    t->positions = ints(t, positions, s->rows);
    t->slots = ints(t, slots, s->rows);
    t->q_start = ints(t, q_start, s->rows + 1);
    t->kv_len = ints(t, kv_len, s->rows);
    t->ids = ints(t, ids, s->rows);
    t->pages = ints(t, pages, n_pages);
    t->pages = lt_tensor_2d(t->pages.data, LT_I32, s->rows, per);
    free(pages);
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int i = 0; i < 2; i++) {
            const lt_tensor all = make(t, s->act, n_pages * s->page, s->kv_heads * s->dim,
                                       s->kv_heads * s->dim, 0.0f, 1.0f);
            *(i == 0 ? &t->k_pages[layer] : &t->v_pages[layer]) = lt_tensor_4d(
                all.data, s->act, n_pages, s->page, s->kv_heads, s->dim);
        }
    }
}

static void rotations(net *t) {
    const shape *s = t->s;
    const int half = (s->part_rope ? s->dim / 2 : s->dim) / 2;
    float *f = malloc((size_t)(s->tokens * half * 2) * sizeof *f);
    for (int p = 0; p < s->tokens; p++) {
        for (int i = 0; i < half; i++) {
            const double angle = p * pow(100.0, -(double)i / half);
            f[(p * half + i) * 2] = (float)cos(angle);
            f[(p * half + i) * 2 + 1] = (float)sin(angle);
        }
    }
    t->table = lt_tensor_3d(take(t, (size_t)(s->tokens * half * 2) * 4), LT_F32, s->tokens, half,
                            2);
    must(t->b->upload(t->q, t->table.data, f, (size_t)(s->tokens * half * 2) * 4));
    must(t->b->sync(t->q));
    free(f);
}

static void net_open(net *t, const shape *s, const lt_backend *b) {
    *t = (net){.s = s, .b = b, .rng = {.seed = 3, .stream = (uint64_t)(s - shapes)}};
    const int R = s->rows, all = (s->heads + 2 * s->kv_heads) * s->dim, ld = s->width + s->slack;
    must(b->alloc(device_of(b), (void **)&t->arena, ARENA, "net"));
    must(b->queue_open(device_of(b), &t->q));
    for (int layer = 0; layer < LAYERS; layer++) {
        matrices(t, layer);
    }
    paging(t);
    rotations(t);
    t->embed = make(t, s->act, 29, s->width, s->width, 0.0f, 1.0f);
    t->head = make(t, s->act, s->vocab, s->width, s->width, 0.0f, 0.1f);
    t->xielu = vector(t, LT_F32, 2, 0.5f, 0.2f);
    t->x = make(t, s->act, R, s->width, ld, 0, 1);
    t->x2 = make(t, s->act, R, s->width, ld, 0, 1);
    t->branch = make(t, s->act, R, s->width, ld, 0, 1);
    t->h = make(t, s->act, R, s->width, s->width, 0, 1);
    t->qkv = make(t, s->act, R, all, all, 0, 1);
    t->qk = make(t, s->act, R, all, all, 0, 1);
    t->att = make(t, s->act, R, s->heads * s->dim, s->heads * s->dim, 0, 1);
    t->up = make(t, s->act, R, s->ffn * (s->gated ? 2 : 1), s->ffn * (s->gated ? 2 : 1), 0, 1);
    t->act = make(t, s->act, R, s->ffn, s->ffn, 0, 1);
    t->logits = make(t, LT_F32, R, s->vocab, s->vocab, 0, 1);
    t->rstd = vector(t, LT_F32, R * s->heads, 0, 1);
}
static void net_close(net *t) {
    t->b->queue_close(t->q);
    t->b->release(device_of(t->b), t->arena, ARENA);
}

/* ---- A step ---- */

static lt_tensor heads(const net *t, const lt_tensor *rows, int first, int count) {
    const lt_tensor cols = lt_tensor_cols(rows, first * t->s->dim, count * t->s->dim);
    return lt_tensor_split_last(&cols, count, t->s->dim);
}
static lt_err norm(net *t, int layer, int which, lt_tensor y, lt_tensor x, lt_tensor add,
                   lt_tensor sum) {
    if (t->s->layer_norm) {
        return t->b->ops->layernorm_fwd(t->q,
                                        &(lt_layernorm_args){.y = y,
                                                             .x = x,
                                                             .add = add,
                                                             .sum = sum,
                                                             .gain = t->gain[layer][which],
                                                             .bias = t->gain_bias[layer][which],
                                                             .eps = 1e-5f});
    }
    return t->b->ops->rmsnorm_fwd(
        t->q, &(lt_rmsnorm_args){.y = y,
                                 .x = x,
                                 .add = add,
                                 .sum = sum,
                                 .gain = t->gain[layer][which],
                                 .rstd = lt_tensor_1d(t->rstd.data, LT_F32, t->s->rows),
                                 .eps = 1e-5f});
}
static lt_err linear(net *t, int layer, int which, lt_tensor y, lt_tensor x) {
    return t->b->ops->matmul(t->q, &(lt_matmul_args){.y = y,
                                                     .a = x,
                                                     .b = t->w[layer][which],
                                                     .bias = t->bias[layer][which],
                                                     .trans_b = true,
                                                     .b_packed = t->packed[layer][which]});
}
static lt_err attention_half(net *t, int layer, lt_tensor stream) {
    const shape *s = t->s;
    const lt_tensor none = {0};
    const int H = s->heads, G = s->kv_heads;
    LT_TRY(stream.data == NULL ? norm(t, layer, 0, t->h, t->x, none, none)
                               : norm(t, layer, 0, t->h, stream, t->branch, t->x));
    LT_TRY(linear(t, layer, QKV, t->qkv, t->h));
    const lt_tensor *from = &t->qkv;
    for (int i = 0; s->qk_norm && layer > 0 && i < 2; i++) { /* Layer 0 does it in one op. */
        from = &t->qk;
        LT_TRY(t->b->ops->rmsnorm_fwd(
            t->q, &(lt_rmsnorm_args){.y = heads(t, &t->qk, i * H, i == 0 ? H : G),
                                     .x = heads(t, &t->qkv, i * H, i == 0 ? H : G),
                                     .gain = t->gain[layer][2 + i],
                                     .eps = 1e-5f}));
    }
    if (s->qk_norm && layer == 0) {
        from = &t->qk;
        LT_TRY(t->b->ops->qk_norm_fwd(t->q, &(lt_qk_norm_args){.y = heads(t, from, 0, H + G),
                                                               .x = heads(t, &t->qkv, 0, H + G),
                                                               .positions = t->positions,
                                                               .table = t->table,
                                                               .q_gain = t->gain[layer][2],
                                                               .k_gain = t->gain[1][2],
                                                               .eps = 1e-5f,
                                                               .n_q = H}));
    } else {
        const lt_tensor rotated = heads(t, from, 0, H + G);
        LT_TRY(t->b->ops->rope(
            t->q, &(lt_rope_args){
                      .y = rotated, .x = rotated, .positions = t->positions, .table = t->table}));
    }
    LT_TRY(t->b->ops->kv_write(t->q, &(lt_kv_write_args){.k_pages = t->k_pages[layer],
                                                         .v_pages = t->v_pages[layer],
                                                         .k = heads(t, from, H, G),
                                                         .v = heads(t, &t->qkv, H + G, G),
                                                         .slots = t->slots}));
    LT_TRY(t->b->ops->attention_paged(
        t->q, &(lt_attention_paged_args){.out = heads(t, &t->att, 0, H),
                                         .q = heads(t, from, 0, H),
                                         .k_pages = t->k_pages[layer],
                                         .v_pages = t->v_pages[layer],
                                         .table = t->pages,
                                         .q_start = t->q_start,
                                         .kv_len = t->kv_len,
                                         .scale = 1.0f / sqrtf((float)s->dim),
                                         .softcap = s->softcap,
                                         .window = s->window,
                                         .q_max = 1,
                                         .kv_max = t->pages.shape[1] * s->page}));
    return linear(t, layer, OUT, t->branch, t->att);
}
static lt_err step(net *t) {
    const lt_tensor none = {0};
    lt_tensor stream = none;
    LT_TRY(t->b->ops->embed_fwd(
        t->q, &(lt_embed_args){.y = t->x, .table = t->embed, .ids = t->ids, .scale = 1.5f}));
    for (int layer = 0; layer < LAYERS; layer++) {
        LT_TRY(attention_half(t, layer, stream));
        LT_TRY(norm(t, layer, 1, t->h, t->x, t->branch, t->x2));
        LT_TRY(linear(t, layer, UP, t->up, t->h));
        LT_TRY(t->b->ops->act_fwd(
            t->q, &(lt_act_args){.y = t->act,
                                 .x = t->up,
                                 .xielu_params = t->s->kind == LT_ACT_XIELU ? t->xielu : none,
                                 .kind = t->s->kind,
                                 .gated = t->s->gated}));
        LT_TRY(linear(t, layer, DOWN, t->branch, t->act));
        stream = t->x2;
    }
    LT_TRY(norm(t, LAYERS - 1, 0, t->h, stream, t->branch, t->x));
    return t->b->ops->matmul(
        t->q, &(lt_matmul_args){.y = t->logits, .a = t->h, .b = t->head, .trans_b = true});
}

/* ---- Comparison ---- */

static float *fetched(net *t, const lt_tensor *x) {
    const size_t count = (size_t)((x->shape[0] - 1) * x->stride[0] +
                                  lt_tensor_count(x) / x->shape[0]);
    unsigned char *bytes = malloc(count * 4);
    float *f = malloc(count * sizeof *f);
    must(t->b->download(t->q, bytes, x->data, count * lt_dtype_bytes(x->dtype)));
    must(t->b->sync(t->q));
    lt_convert(f, LT_F32, bytes, x->dtype, count);
    free(bytes);
    return f;
}
enum { COMPARED = 12 };
static void results(net *t, lt_tensor out[COMPARED]) {
    const lt_tensor all[COMPARED] = {t->logits, t->x,    t->x2,         t->branch,
                                     t->h,      t->qkv,  t->att,        t->up,
                                     t->act,    t->rstd, t->k_pages[1], t->v_pages[LAYERS - 1]};
    memcpy(out, all, sizeof all);
    if (t->rstd.n_dims == 1) {
        out[9] = lt_tensor_2d(t->rstd.data, LT_F32, 1, t->s->rows);
    }
}
/* Copy the pages of all layers to the host, or back. */
static void pages_copy(net *t, unsigned char *host, bool back) {
    const size_t bytes = (size_t)lt_tensor_count(&t->k_pages[0]) *
                         lt_dtype_bytes(t->k_pages[0].dtype);
    for (int i = 0; i < 2 * LAYERS; i++) {
        void *pages = (i % 2 == 0 ? &t->k_pages[i / 2] : &t->v_pages[i / 2])->data;
        must(back ? t->b->upload(t->q, pages, host + (size_t)i * bytes, bytes)
                  : t->b->download(t->q, host + (size_t)i * bytes, pages, bytes));
    }
    must(t->b->sync(t->q));
}
static void wipe(net *t) {
    lt_tensor all[COMPARED];
    results(t, all);
    for (int i = 0; i < COMPARED - 2; i++) {
        must(t->b->zero(t->q, all[i].data,
                        (size_t)lt_tensor_count(&all[i]) * lt_dtype_bytes(all[i].dtype)));
    }
    must(t->b->sync(t->q));
}

static void check(net *t) {
    static const char *const names[COMPARED] = {"logits", "x",  "x2",  "branch", "h", "qkv",
                                                "att",    "up", "act", "rstd",   "k", "v"};
    lt_tensor all[COMPARED];
    float *want[COMPARED];
    lt_graph *g = NULL;
    unsigned char *const pages = malloc((size_t)lt_tensor_count(&t->k_pages[0]) * 2 * 2 * LAYERS);
    results(t, all);
    pages_copy(t, pages, false);
    wipe(t);
    must(step(t));
    for (int i = 0; i < COMPARED; i++) {
        want[i] = fetched(t, &all[i]);
    }
    wipe(t);
    pages_copy(t, pages, true);
    t->q->fuse->n_fused = 0;
    must(t->b->graph_begin(t->q));
    must(step(t));
    must(t->b->graph_end(t->q, &g));
    print_message("%lld kernels of several ops\n", (long long)t->q->fuse->n_fused);
    assert_true(t->s->unfused == (t->q->fuse->n_fused == 0));
    for (int turn = 0; turn < 2; turn++) { /* A graph runs more than once. */
        must(t->b->graph_launch(t->q, g));
        for (int i = 0; i < COMPARED; i++) {
            float *const got = fetched(t, &all[i]);
            for (int64_t r = 0; r < all[i].shape[0]; r++) {
                for (int64_t c = 0; c < lt_tensor_count(&all[i]) / all[i].shape[0]; c++) {
                    const float a = want[i][r * all[i].stride[0] + c],
                                b = got[r * all[i].stride[0] + c];
                    if (!(a == b)) {
                        fail_msg("%s, %s: %g in row %d, column %d is %g", t->s->what, names[i],
                                 (double)a, (int)r, (int)c, (double)b);
                    }
                }
            }
            free(got);
        }
    }
    t->b->graph_close(device_of(t->b), g);
    free(pages);
    for (int i = 0; i < COMPARED; i++) {
        free(want[i]);
    }
}

static void fused_ops_have_the_same_bits(void **state) {
    const lt_backend *b = gpu_backend();
    const char *only = getenv("FUSE_CASE");
    (void)state;
    if (b == NULL) {
        print_message("no GPU: %s\n", lt_error_message());
        skip();
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        static net t;
        if (only != NULL && (size_t)atoi(only) != i) {
            continue;
        }
        print_message("%s\n", shapes[i].what);
        net_open(&t, &shapes[i], b);
        check(&t);
        net_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fused_ops_have_the_same_bits)};
    (void)setenv("LATEEN_CUDA_FUSE", "all", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
