/* A decoding step's mixture of experts: gathering, products and activation that become one kernel
 * when the step is recorded (ops/fuse_experts.c) give the same bits in every tensor as the same ops
 * one by one. Skipped without a GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/rng.h"
#include "kernels/cuda/ops/fuse.h"
#include "tensor/block.h"
#include "tensor/ops.h"
#include "unit/device.h"

typedef struct {
    const char *what;
    int rows, experts, top_k, width, ffn;
    lt_dtype act, weights;
    lt_act_kind kind;
    bool two;   /* Gates and factors are two matrices. */
    bool plain; /* The activation is not gated. */
    bool fixed;
    bool over; /* The activation's results take the place of the gathered rows. */
    /* The second half of each sum takes the first half back, so that rounding alone is left, which
     * shows the order of the sum. */
    bool cancels;
    int slack; /* Elements by which rows of x are padded. */
    bool unfused;
} shape;

static const shape shapes[] = {
    {"bf16, a row", 1, 8, 2, 256, 72, LT_BF16, LT_BF16, LT_ACT_SILU, .slack = 0},
    {"bf16, 5 rows, two matrices", 5, 64, 3, 136, 41, LT_BF16, LT_BF16, LT_ACT_GELU_TANH,
     .two = true, .slack = 8},
    {"fp16, deep, warps that share K", 1, 4, 1, 2048, 150, LT_F16, LT_F16, LT_ACT_SILU,
     .cancels = true},
    {"bf16, 20 rows of many experts", 20, 80, 2, 64, 24, LT_BF16, LT_BF16, LT_ACT_SILU, .slack = 0},
    {"Q4_K, a row", 1, 16, 4, 512, 48, LT_BF16, LT_Q4_K, LT_ACT_SILU, .slack = 0},
    {"Q4_0, K is no multiple of a tile, two matrices", 3, 8, 2, 160, 80, LT_BF16, LT_Q4_0,
     LT_ACT_SILU, .two = true, .slack = 8},
    {"Q8_0, fp16, 12 rows", 12, 8, 2, 128, 32, LT_F16, LT_Q8_0, LT_ACT_GELU_TANH, .slack = 0},
    {"Q6_K, in a fixed order", 2, 8, 3, 256, 64, LT_BF16, LT_Q6_K, LT_ACT_SILU, .fixed = true},
    {"Q5_1, deep, warps that share K", 1, 4, 1, 1024, 320, LT_BF16, LT_Q5_1, LT_ACT_SILU,
     .cancels = true},
    {"an activation without factors", 1, 8, 2, 256, 72, LT_BF16, LT_BF16, LT_ACT_SILU,
     .plain = true, .unfused = true},
    {"another activation", 1, 8, 2, 256, 72, LT_BF16, LT_BF16, LT_ACT_RELU2, .unfused = true},
    {"columns that are no whole slabs of gates", 1, 8, 2, 256, 24, LT_BF16, LT_Q4_0, LT_ACT_SILU,
     .unfused = true},
    {"results over rows that are read", 1, 8, 2, 64, 64, LT_BF16, LT_BF16, LT_ACT_SILU,
     .over = true, .unfused = true},
    {"more rows than a step has", 40, 8, 2, 64, 24, LT_BF16, LT_BF16, LT_ACT_SILU, .unfused = true},
};

enum { OF_ROUTE, OF_WEIGHTS, GATHERED, OF_UP, OF_ACT, OF_DOWN, OF_Y, TENSORS };
typedef struct {
    const shape *s;
    const lt_backend *b;
    lt_queue *q;
    lt_rng rng;
    void *arena;
    size_t used;
    lt_tensor logits, probs, chosen, start, x, all[TENSORS];
    lt_tensor matrix[3]; /* gates and factors, or gates; factors; those of the way back */
    const void *packed[3];
    size_t packed_bytes[3];
} net;
enum { ARENA = 64 << 20 };

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}
static void *take(net *t, size_t bytes) {
    void *p = (char *)t->arena + t->used;
    t->used += (bytes + 255) / 256 * 256;
    assert_true(t->used <= ARENA);
    return p;
}
static lt_tensor rows_of(net *t, lt_dtype type, int64_t rows, int64_t cols, int64_t ld) {
    lt_tensor x = lt_tensor_2d(take(t, (size_t)(rows * ld) * lt_dtype_bytes(type)), type, rows,
                               cols);
    x.stride[0] = ld;
    return x;
}
static void fill(net *t, const lt_tensor *x, float scale, bool cancels) {
    const size_t n = (size_t)(x->shape[0] * x->stride[0]);
    float *f = malloc(n * sizeof *f);
    void *bytes = malloc(n * lt_dtype_bytes(x->dtype));
    for (size_t i = 0; i < n; i++) {
        f[i] = scale * ((float)lt_rng_below(&t->rng, 2001) / 1000.0f - 1.0f);
    }
    for (size_t i = n / 2; i < n && cancels; i++) { /* One row. */
        f[i] = -f[i - n / 2];
    }
    lt_convert(bytes, x->dtype, f, LT_F32, n);
    must(t->b->upload(t->q, x->data, bytes, n * lt_dtype_bytes(x->dtype)));
    must(t->b->sync(t->q));
    free(f);
    free(bytes);
}
/* experts matrices (n, k) of the weights' type. */
static void matrix(net *t, int which, int n, int k) {
    const shape *s = t->s;
    const size_t count = (size_t)s->experts * (size_t)n * (size_t)k,
                 bytes = (size_t)s->experts * (size_t)n * lt_dtype_row_bytes(s->weights, k);
    float *f = malloc(count * sizeof *f);
    unsigned char *host = malloc(bytes);
    const bool blocks = s->weights != s->act;
    void *data = take(t, bytes);
    for (size_t i = 0; i < count; i++) {
        const bool again = s->cancels && (int)(i % (size_t)k) >= k / 2;
        f[i] = again ? f[i - (size_t)k / 2]
                     : 0.2f * ((float)lt_rng_below(&t->rng, 2001) / 1000.0f - 0.9f);
    }
    if (blocks) {
        lt_block_encode(host, s->weights, f, count);
    } else {
        lt_convert(host, s->weights, f, LT_F32, count);
    }
    must(t->b->upload(t->q, data, host, bytes));
    must(t->b->sync(t->q));
    free(f);
    free(host);
    t->matrix[which] = (lt_tensor){.data = data,
                                   .dtype = s->weights,
                                   .n_dims = 3,
                                   .shape = {s->experts, n, k},
                                   .stride = {(int64_t)n * k, k, 1}};
    if (blocks) {
        const lt_tensor flat = lt_tensor_2d(data, s->weights, (int64_t)s->experts * n, k);
        t->packed_bytes[which] = t->b->matmul_pack_bytes(device_of(t->b), &flat, true);
        assert_true(t->packed_bytes[which] > 0);
        void *packed = take(t, t->packed_bytes[which]);
        must(t->b->ops->matmul_pack(
            t->q, &(lt_matmul_pack_args){.dst = packed, .b = flat, .trans_b = true}));
        t->packed[which] = packed;
    }
}

static void net_open(net *t, const shape *s, const lt_backend *b) {
    const int n = s->rows * s->top_k, up = s->plain ? s->ffn : 2 * s->ffn;
    *t = (net){.s = s, .b = b, .rng = {.seed = 5, .stream = (uint64_t)(s - shapes)}};
    must(b->queue_open(device_of(b), &t->q));
    must(b->alloc(device_of(b), &t->arena, ARENA, "test"));
    t->logits = rows_of(t, LT_F32, s->rows, s->experts, s->experts);
    t->probs = rows_of(t, LT_F32, s->rows, s->experts, s->experts);
    t->chosen = rows_of(t, LT_I32, s->rows, s->top_k, s->top_k);
    t->start = lt_tensor_1d(take(t, (size_t)(s->experts + 1) * 4), LT_I32, s->experts + 1);
    t->x = rows_of(t, s->act, s->rows, s->width, s->width + s->slack);
    t->all[OF_ROUTE] = lt_tensor_1d(take(t, (size_t)n * 4), LT_I32, n);
    t->all[OF_WEIGHTS] = rows_of(t, LT_F32, s->rows, s->top_k, s->top_k);
    t->all[GATHERED] = rows_of(t, s->act, n, s->width, s->width + s->slack);
    t->all[OF_UP] = rows_of(t, s->act, n, up, up);
    t->all[OF_ACT] = rows_of(t, s->act, n, s->ffn, s->ffn);
    if (s->over) {
        t->all[OF_ACT].data = t->all[GATHERED].data;
    }
    t->all[OF_DOWN] = rows_of(t, s->act, n, s->width, s->width);
    t->all[OF_Y] = rows_of(t, s->act, s->rows, s->width, s->width);
    fill(t, &t->logits, 3.0f, false);
    fill(t, &t->x, 1.0f, s->cancels);
    matrix(t, 0, s->two ? s->ffn : up, s->width);
    if (s->two) {
        matrix(t, 1, s->ffn, s->width);
    }
    if (s->weights == s->act) { /* Blocks need widths of 32; the product behind is not fused. */
        matrix(t, 2, s->width, s->ffn);
    }
}
static void net_close(net *t) {
    t->b->queue_close(t->q);
    t->b->release(device_of(t->b), t->arena, ARENA);
}

static lt_err product(net *t, int which, lt_tensor y, lt_tensor x) {
    return t->b->ops->matmul_grouped(
        t->q,
        &(lt_matmul_grouped_args){.y = y,
                                  .a = x,
                                  .b = t->matrix[which],
                                  .expert_start = t->start,
                                  .trans_b = true,
                                  .fixed_order = t->s->fixed,
                                  .b_packed = t->packed[which],
                                  .packed_step = t->packed_bytes[which] / (size_t)t->s->experts});
}
static lt_err step(net *t) {
    const shape *s = t->s;
    const lt_ops *ops = t->b->ops;
    lt_tensor *all = t->all;
    LT_TRY(ops->moe_route_fwd(t->q, &(lt_moe_route_args){.probs = t->probs,
                                                         .experts = t->chosen,
                                                         .weights = all[OF_WEIGHTS],
                                                         .slot_row = all[OF_ROUTE],
                                                         .expert_start = t->start,
                                                         .logits = t->logits,
                                                         .normalise = true}));
    LT_TRY(ops->moe_gather_fwd(t->q, &(lt_moe_gather_args){.y = all[GATHERED],
                                                           .x = t->x,
                                                           .slot_row = all[OF_ROUTE],
                                                           .expert_start = t->start,
                                                           .top_k = s->top_k}));
    LT_TRY(
        product(t, 0, s->two ? lt_tensor_cols(&all[OF_UP], 0, s->ffn) : all[OF_UP], all[GATHERED]));
    if (s->two) {
        LT_TRY(product(t, 1, lt_tensor_cols(&all[OF_UP], s->ffn, s->ffn), all[GATHERED]));
    }
    LT_TRY(ops->act_fwd(
        t->q,
        &(lt_act_args){.y = all[OF_ACT], .x = all[OF_UP], .kind = s->kind, .gated = !s->plain}));
    if (t->matrix[2].data == NULL) {
        return LT_OK;
    }
    LT_TRY(product(t, 2, all[OF_DOWN], all[OF_ACT]));
    return ops->moe_combine_fwd(t->q, &(lt_moe_combine_args){.y = all[OF_Y],
                                                             .x = all[OF_DOWN],
                                                             .weights = all[OF_WEIGHTS],
                                                             .slot_row = all[OF_ROUTE],
                                                             .expert_start = t->start});
}

static size_t bytes_of(const lt_tensor *x) {
    return (size_t)(x->n_dims == 1 ? x->shape[0] : x->shape[0] * x->stride[0]) *
           lt_dtype_bytes(x->dtype);
}
static void wipe(net *t) {
    for (int i = 0; i < TENSORS; i++) {
        must(t->b->zero(t->q, t->all[i].data, bytes_of(&t->all[i])));
    }
    must(t->b->sync(t->q));
}
static void fetch(net *t, unsigned char *out[TENSORS]) {
    for (int i = 0; i < TENSORS; i++) {
        out[i] = malloc(bytes_of(&t->all[i]));
        must(t->b->download(t->q, out[i], t->all[i].data, bytes_of(&t->all[i])));
    }
    must(t->b->sync(t->q));
}

static void check(net *t, bool fused) {
    static const char *const names[TENSORS] = {"slots",      "weights",     "rows",  "up",
                                               "activation", "the product", "result"};
    unsigned char *want[TENSORS], *got[TENSORS];
    lt_graph *g = NULL;
    wipe(t);
    must(step(t));
    fetch(t, want);
    wipe(t);
    t->q->fuse->n_fused = 0;
    must(t->b->graph_begin(t->q));
    must(step(t));
    must(t->b->graph_end(t->q, &g));
    assert_int_equal(t->q->fuse->n_fused, fused);
    for (int turn = 0; turn < 2; turn++) { /* A graph runs more than once. */
        must(t->b->graph_launch(t->q, g));
        fetch(t, got);
        for (int i = 0; i < TENSORS; i++) {
            if (memcmp(got[i], want[i], bytes_of(&t->all[i])) != 0) {
                fail_msg("%s: %s: other bits", t->s->what, names[i]);
            }
            free(got[i]);
        }
        wipe(t);
    }
    t->b->graph_close(device_of(t->b), g);
    for (int i = 0; i < TENSORS; i++) {
        free(want[i]);
    }
}

static void each_shape(bool all) {
    const lt_backend *b = gpu_backend();
    if (b == NULL) {
        print_message("no GPU: %s\n", lt_error_message());
        skip();
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const shape *s = &shapes[i];
        static net t;
        if (core_only() && i % 3 != 0 && i < 9) {
            continue;
        }
        net_open(&t, s, b);
        check(&t, !s->unfused && (all || s->weights == s->act || s->rows == 1));
        net_close(&t);
    }
}

static void experts_have_the_same_bits(void **state) {
    (void)state;
    setenv("LATEEN_CUDA_FUSE", "all", 1);
    each_shape(true);
}
/* With several rows of packed blocks the ops one by one were faster. */
static void by_default(void **state) {
    (void)state;
    unsetenv("LATEEN_CUDA_FUSE");
    each_shape(false);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(experts_have_the_same_bits),
                                       cmocka_unit_test(by_default)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
