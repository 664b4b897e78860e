/* bench/memory.c: ops that move bytes, compared with the measured copy bandwidth. optest checks
 * them (optest --check --backend cuda), with the same launchers; here they are only timed, at
 * training sizes whose buffers are several times as large as the L2 cache. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "kernels/cuda/bench/bench.h"
#include "kernels/cuda/ops/launch.h"
#include "tensor/cost.h"

#define MAX_BUFFERS 16

typedef struct {
    lt_bench *b;
    lt_queue *q;
    int n_buffers;
    void *buffers[MAX_BUFFERS];
    lt_err err; /* The first failure of a maker; later makers are no-ops. */
} shop;

static lt_tensor make(shop *s, lt_dtype dtype, int64_t rows, int64_t cols) {
    lt_tensor t = rows > 0 ? lt_tensor_2d(NULL, dtype, rows, cols)
                           : lt_tensor_1d(NULL, dtype, cols);
    const int64_t count = lt_tensor_count(&t) > 0 ? lt_tensor_count(&t)
                                                  : (rows > 0 ? rows : 1) * cols;
    if (s->err != LT_OK) {
        return t;
    }
    LT_ASSERT(s->n_buffers < MAX_BUFFERS);
    s->err = lt_cuda_alloc(s->b->gpu, &t.data, (size_t)count * lt_dtype_bytes(dtype), "bench");
    s->buffers[s->n_buffers++] = t.data;
    if (s->err == LT_OK) {
        s->err = lt_bench_random(s->b, t.data, count, lt_cuda_dtype_word(dtype),
                                 (uint64_t)s->n_buffers, 0.5f, false);
    }
    return t;
}

/* n int32 in [0, below). ascending: 0, 1, 2, .. */
static lt_tensor make_ids(shop *s, int64_t n, int64_t below, bool ascending) {
    lt_tensor t = lt_tensor_1d(NULL, LT_I32, n);
    int32_t *host = malloc((size_t)n * sizeof *host);
    lt_rng r = {.seed = 5};
    if (host == NULL) {
        s->err = LT_ERR_OOM;
    }
    for (int64_t i = 0; i < n && host != NULL; i++) {
        host[i] = (int32_t)(ascending ? i % below : (int64_t)lt_rng_below(&r, (uint64_t)below));
    }
    if (s->err == LT_OK) {
        s->err = lt_cuda_alloc(s->b->gpu, &t.data, (size_t)n * sizeof *host, "bench ids");
        s->buffers[s->n_buffers++] = t.data;
    }
    if (s->err == LT_OK) {
        s->err = lt_cuda_upload(s->b->gpu, s->b->stream, t.data, host, (size_t)n * sizeof *host);
    }
    if (s->err == LT_OK) {
        s->err = lt_cuda_sync(s->b->gpu, s->b->stream);
    }
    free(host);
    return t;
}

typedef struct {
    shop *s;
    const lt_op_impl *impl;
    const void *args;
} run_ctx;

static lt_err queue_op(void *p, CUstream stream, int set) {
    const run_ctx *r = p;
    (void)stream; /* The bench uses the queue's stream. */
    (void)set;
    return r->impl->run(r->s->q, r->args);
}

/* Time one call of the first entry of the op's list that accepts it, and free what the makers made.
 * A failure counts as a failed check, and the bench continues. */
static void op_time(shop *s, lt_op op, const void *args, const char *name, const char *shape) {
    char why[512] = "no entry";
    run_ctx ctx = {s,
                   lt_registry_choose(lt_registry_list(s->b->device->backend, op), args,
                                      s->b->device, why, sizeof why),
                   args};
    lt_timing t = {.name = name, .queue = queue_op, .ctx = &ctx};
    lt_err err = s->err;
    if (err == LT_OK && lt_bench_skips(s->b, shape)) {
        /* Its buffers are freed as those of a row that ran. */
    } else if (err == LT_OK && ctx.impl == NULL) {
        lt_bench_check(s->b, lt_op_name(op), name, false, "%s: refused: %s", shape, why);
    } else if (err == LT_OK) {
        err = lt_timing_run(
            s->b->gpu, s->b->stream, &t, 1,
            &(lt_timing_plan){.n_sets = 1, .rounds = s->b->rounds, .inner_ms = 0.5});
        if (err == LT_OK && t.err == LT_OK) {
            lt_bench_row(s->b, &(lt_bench_result){.op = lt_op_name(op),
                                                  .name = name,
                                                  .shape = shape,
                                                  .ms = t.ms,
                                                  .ms_best = t.ms_best,
                                                  .bytes = lt_op_cost(op, args).bytes,
                                                  .limit = s->b->copy_gbps * 1e9});
        } else if (err == LT_OK) {
            lt_bench_check(s->b, lt_op_name(op), name, false, "%s: %s", shape, t.error);
        }
    }
    lt_bench_failed(s->b, lt_op_name(op), shape, err);
    for (int i = 0; i < s->n_buffers; i++) {
        lt_cuda_free(s->b->gpu, s->buffers[i]);
    }
    s->n_buffers = 0;
    s->err = LT_OK;
}

static void norms(shop *s, int64_t rows, int64_t cols, const char *shape) {
    {
        lt_rmsnorm_args a = {.y = make(s, LT_BF16, rows, cols),
                             .x = make(s, LT_BF16, rows, cols),
                             .gain = make(s, LT_F32, 0, cols),
                             .rstd = make(s, LT_F32, 0, rows),
                             .eps = 1e-5f};
        op_time(s, LT_OP_rmsnorm_fwd, &a, "rmsnorm", shape);
    }
    {
        lt_rmsnorm_args a = {.y = make(s, LT_BF16, rows, cols),
                             .x = make(s, LT_BF16, rows, cols),
                             .add = make(s, LT_BF16, rows, cols),
                             .sum = make(s, LT_BF16, rows, cols),
                             .gain = make(s, LT_F32, 0, cols),
                             .rstd = make(s, LT_F32, 0, rows),
                             .eps = 1e-5f};
        op_time(s, LT_OP_rmsnorm_fwd, &a, "rmsnorm + residual", shape);
    }
    {
        lt_rmsnorm_bwd_args a = {.dx = make(s, LT_BF16, rows, cols),
                                 .dgain = make(s, LT_F32, 0, cols),
                                 .dy = make(s, LT_BF16, rows, cols),
                                 .x = make(s, LT_BF16, rows, cols),
                                 .gain = make(s, LT_F32, 0, cols),
                                 .rstd = make(s, LT_F32, 0, rows)};
        op_time(s, LT_OP_rmsnorm_bwd, &a, "rmsnorm backward", shape);
    }
    {
        lt_rmsnorm_bwd_args a = {.dx = make(s, LT_BF16, rows, cols),
                                 .dgain = make(s, LT_F32, 0, cols),
                                 .dy = make(s, LT_BF16, rows, cols),
                                 .x = make(s, LT_BF16, rows, cols),
                                 .gain = make(s, LT_F32, 0, cols),
                                 .rstd = make(s, LT_F32, 0, rows),
                                 .add_dx = true};
        op_time(s, LT_OP_rmsnorm_bwd, &a, "rmsnorm backward, added", shape);
    }
    {
        lt_layernorm_args a = {.y = make(s, LT_BF16, rows, cols),
                               .x = make(s, LT_BF16, rows, cols),
                               .gain = make(s, LT_F32, 0, cols),
                               .bias = make(s, LT_F32, 0, cols),
                               .mean = make(s, LT_F32, 0, rows),
                               .rstd = make(s, LT_F32, 0, rows),
                               .eps = 1e-5f};
        op_time(s, LT_OP_layernorm_fwd, &a, "layernorm", shape);
    }
    lt_layernorm_bwd_args a = {.dx = make(s, LT_BF16, rows, cols),
                               .dgain = make(s, LT_F32, 0, cols),
                               .dbias = make(s, LT_F32, 0, cols),
                               .dy = make(s, LT_BF16, rows, cols),
                               .x = make(s, LT_BF16, rows, cols),
                               .gain = make(s, LT_F32, 0, cols),
                               .mean = make(s, LT_F32, 0, rows),
                               .rstd = make(s, LT_F32, 0, rows)};
    op_time(s, LT_OP_layernorm_bwd, &a, "layernorm backward", shape);
}

/* q and k of rows that also hold v, normalised and rotated. */
static void heads(shop *s, int64_t rows, int64_t q, int64_t kv, int64_t width, const char *shape) {
    const int64_t n = q + kv, wide = (n + kv) * width;
    {
        lt_qk_norm_args a = {.y = make(s, LT_BF16, rows, n * width),
                             .x = make(s, LT_BF16, rows, wide),
                             .positions = make_ids(s, rows, 2048, true),
                             .table = make(s, LT_F32, 2048, width),
                             .q_gain = make(s, LT_BF16, 0, width),
                             .k_gain = make(s, LT_BF16, 0, width),
                             .rstd = make(s, LT_F32, 0, rows * n),
                             .eps = 1e-5f,
                             .n_q = q};
        a.y = lt_tensor_split_last(&a.y, n, width);
        a.x = lt_tensor_cols(&a.x, 0, n * width);
        a.x = lt_tensor_split_last(&a.x, n, width);
        a.table = lt_tensor_3d(a.table.data, LT_F32, 2048, width / 2, 2);
        op_time(s, LT_OP_qk_norm_fwd, &a, "QK-norm + rope", shape);
    }
    lt_qk_norm_bwd_args a = {.dx = make(s, LT_BF16, rows, wide),
                             .dq_gain = make(s, LT_F32, 0, width),
                             .dk_gain = make(s, LT_F32, 0, width),
                             .x = make(s, LT_BF16, rows, wide),
                             .positions = make_ids(s, rows, 2048, true),
                             .table = make(s, LT_F32, 2048, width),
                             .q_gain = make(s, LT_BF16, 0, width),
                             .k_gain = make(s, LT_BF16, 0, width),
                             .rstd = make(s, LT_F32, 0, rows * n),
                             .n_q = q};
    a.x = lt_tensor_cols(&a.x, 0, n * width), a.dx = lt_tensor_cols(&a.dx, 0, n * width);
    a.x = lt_tensor_split_last(&a.x, n, width);
    a.dy = a.dx = lt_tensor_split_last(&a.dx, n, width);
    a.table = lt_tensor_3d(a.table.data, LT_F32, 2048, width / 2, 2);
    op_time(s, LT_OP_qk_norm_bwd, &a, "QK-norm + rope backward", shape);
}

static void activations(shop *s, lt_act_kind kind, bool gated, const char *name,
                        const char *name_back, const char *shape) {
    const int64_t rows = 16384, cols = 8192, in = gated ? 2 * cols : cols;
    {
        lt_act_args a = {.y = make(s, LT_BF16, rows, cols),
                         .x = make(s, LT_BF16, rows, in),
                         .xielu_params = make(s, LT_F32, 0, 2),
                         .kind = kind,
                         .gated = gated};
        op_time(s, LT_OP_act_fwd, &a, name, shape);
    }
    lt_act_bwd_args a = {.dx = make(s, LT_BF16, rows, in),
                         .dxielu_params = make(s, LT_F32, 0, 2),
                         .dy = make(s, LT_BF16, rows, cols),
                         .x = make(s, LT_BF16, rows, in),
                         .xielu_params = make(s, LT_F32, 0, 2),
                         .kind = kind,
                         .gated = gated};
    op_time(s, LT_OP_act_bwd, &a, name_back, shape);
}

static void rows_of_tables(shop *s) {
    const int64_t rows = 16384, cols = 4096, heads = 32, width = 128, vocab = 50304;
    {
        lt_rope_args a = {.y = make(s, LT_BF16, rows, cols),
                          .x = make(s, LT_BF16, rows, cols),
                          .positions = make_ids(s, rows, 4096, true),
                          .table = make(s, LT_F32, 4096, width)};
        a.y = lt_tensor_3d(a.y.data, LT_BF16, rows, heads, width);
        a.x = lt_tensor_3d(a.x.data, LT_BF16, rows, heads, width);
        a.table = lt_tensor_3d(a.table.data, LT_F32, 4096, width / 2, 2);
        op_time(s, LT_OP_rope, &a, "rope", "16384 x 32 x 128");
    }
    {
        lt_embed_args a = {.y = make(s, LT_BF16, rows, cols),
                           .table = make(s, LT_BF16, vocab, cols),
                           .ids = make_ids(s, rows, vocab, false),
                           .scale = 1.0f};
        op_time(s, LT_OP_embed_fwd, &a, "embedding", "16384 x 4096 of 50304");
    }
    lt_embed_bwd_args a = {.dtable = make(s, LT_F32, vocab, cols),
                           .dy = make(s, LT_BF16, rows, cols),
                           .ids = make_ids(s, rows, vocab, false),
                           .scale = 1.0f};
    op_time(s, LT_OP_embed_bwd, &a, "embedding gradient", "16384 x 4096 of 50304");
}

static void loss(shop *s, int64_t rows, int64_t vocab, const char *shape) {
    for (int gradient = 1; gradient >= 0; gradient--) {
        lt_xent_args a = {.logits = make(s, LT_BF16, rows, vocab),
                          .labels = make_ids(s, rows, vocab, false),
                          .loss = make(s, LT_F32, 0, rows),
                          .lse = make(s, LT_F32, 0, rows),
                          .grad_scale = (float)gradient};
        op_time(s, LT_OP_xent, &a, gradient ? "cross-entropy + gradient" : "cross-entropy", shape);
    }
}

/* n picks with the same options (tensor/ops.h), each with its own draw. */
static lt_tensor make_how(shop *s, int64_t n, const double *options) {
    lt_tensor t = lt_tensor_2d(NULL, LT_F64, n, LT_CHOOSE_HOW_COUNT);
    const size_t bytes = (size_t)n * LT_CHOOSE_HOW_COUNT * sizeof(double);
    double *host = malloc(bytes);
    lt_rng r = {.seed = 6};
    if (host == NULL) {
        s->err = LT_ERR_OOM;
    }
    for (int64_t i = 0; i < n && host != NULL; i++) {
        memcpy(host + i * LT_CHOOSE_HOW_COUNT, options, LT_CHOOSE_HOW_COUNT * sizeof *host);
        host[i * LT_CHOOSE_HOW_COUNT + LT_CHOOSE_DRAW] = lt_rng_uniform(&r);
        host[i * LT_CHOOSE_HOW_COUNT + LT_CHOOSE_SLOT] += options[LT_CHOOSE_SLOT] < 0.0 ? 0.0
                                                                                        : (double)i;
    }
    if (s->err == LT_OK) {
        s->err = lt_cuda_alloc(s->b->gpu, &t.data, bytes, "bench options");
        s->buffers[s->n_buffers++] = t.data;
    }
    if (s->err == LT_OK) {
        s->err = lt_cuda_upload(s->b->gpu, s->b->stream, t.data, host, bytes);
    }
    if (s->err == LT_OK) {
        s->err = lt_cuda_sync(s->b->gpu, s->b->stream);
    }
    free(host);
    return t;
}

/* Choose tokens from logits of deviation 0.5: temperature 0.15 makes them as peaked as a
 * model's. */
static void choices(shop *s) {
    static const struct {
        const char *name;
        double how[LT_CHOOSE_HOW_COUNT];
    } cases[] = {
        {"token: greedy", {0, 0, 1, 0, 0, -1, LT_CHOOSE_PLAIN}},
        {"token: temperature", {0.15, 0, 1, 0, 0, -1, LT_CHOOSE_PLAIN}},
        {"token: top-p 0.95", {0.15, 0, 0.95, 0, 0, -1, LT_CHOOSE_PLAIN}},
        {"token: top-k 40, top-p 0.95", {0.15, 40, 0.95, 0, 0, -1, LT_CHOOSE_PLAIN}},
        {"token: flat, top-p 0.95", {1, 0, 0.95, 0, 0, -1, LT_CHOOSE_PLAIN}},
        {"token: greedy, 20 log-probabilities", {0, 0, 1, 0, 0, 20, LT_CHOOSE_PLAIN}},
        {"token: typical 0.9",
         {0.15, 0, 1, 0, 0, -1, 0.9, 1, 0, 0, 0, -1, LT_CHOOSE_NO_NEW, -1, -1}},
        {"token: greedy, penalties", {0, 0, 1, 0, 0, -1, 1, 1.1, 0.5, 0.5, 0, 0, 5, -1, -1}},
        {"token: top-p 0.95, penalties",
         {0.15, 0, 0.95, 0, 0, -1, 1, 1.1, 0.5, 0.5, 0, 0, 5, -1, -1}}};
    static const struct {
        int64_t rows;
        const char *shape;
    } sizes[] = {{1, "1 x 128256"}, {32, "32 x 128256"}, {256, "256 x 128256"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases * 3; i++) {
        const int64_t n = sizes[i % 3].rows;
        lt_choose_args a = {.id = make_ids(s, n, 1, true),
                            .rank = make_ids(s, n, 1, true),
                            .logprob = make(s, LT_F32, 0, n),
                            .top_id = make_ids(s, n * LT_CHOOSE_TOP, 1, true),
                            .top_logprob = make(s, LT_F32, n, LT_CHOOSE_TOP),
                            .logits = make(s, LT_F32, n, 128256),
                            .rows = make_ids(s, n, n, true),
                            .how = make_how(s, n, cases[i / 3].how)};
        if (cases[i / 3].how[LT_CHOOSE_SLOT] >= 0.0) {
            a.penalties = make_ids(s, n * (128256 + LT_PENALTY_BIASES), 1, true);
            a.penalties = lt_tensor_2d(a.penalties.data, LT_I32, n, 128256 + LT_PENALTY_BIASES);
        }
        a.top_id = lt_tensor_2d(a.top_id.data, LT_I32, n, LT_CHOOSE_TOP);
        op_time(s, LT_OP_choose, &a, cases[i / 3].name, sizes[i % 3].shape);
    }
}

/* Both optimisers with moments of this type. */
static void optimisers(shop *s, int64_t n, lt_dtype moments) {
    {
        lt_adamw_args a = {.p = make(s, LT_F32, 0, n),
                           .g = make(s, LT_F32, 0, n),
                           .m = make(s, moments, 0, n),
                           .v = make(s, moments, 0, n),
                           .copy = make(s, LT_BF16, 0, n),
                           .lr = 1e-4f,
                           .beta1 = 0.9f,
                           .beta2 = 0.95f,
                           .eps = 1e-8f,
                           .decay = 0.1f,
                           .grad_scale = 1.0f,
                           .step = 10};
        op_time(s, LT_OP_adamw, &a, moments == LT_F32 ? "AdamW" : "AdamW, bf16 moments",
                "134M parameters");
    }
    {
        lt_ademamix_args a = {.p = make(s, LT_F32, 0, n),
                              .g = make(s, LT_F32, 0, n),
                              .m1 = make(s, moments, 0, n),
                              .m2 = make(s, moments, 0, n),
                              .v = make(s, moments, 0, n),
                              .copy = make(s, LT_BF16, 0, n),
                              .lr = 1e-4f,
                              .beta1 = 0.9f,
                              .beta2 = 0.95f,
                              .beta3 = 0.999f,
                              .alpha = 5.0f,
                              .eps = 1e-8f,
                              .decay = 0.1f,
                              .grad_scale = 1.0f,
                              .step = 10};
        op_time(s, LT_OP_ademamix, &a, moments == LT_F32 ? "AdEMAMix" : "AdEMAMix, bf16 moments",
                "134M parameters");
    }
}

static void flat(shop *s) {
    const int64_t n = (int64_t)1 << 27;
    optimisers(s, n, LT_F32);
    optimisers(s, n, LT_BF16);
    {
        lt_sumsq_args a = {.out = make(s, LT_F32, 0, 2), .x = make(s, LT_F32, 0, n)};
        op_time(s, LT_OP_sumsq, &a, "sum of squares", "134M");
    }
    {
        lt_cast_args a = {.y = make(s, LT_BF16, 0, n), .x = make(s, LT_F32, 0, n)};
        op_time(s, LT_OP_cast, &a, "fp32 to bf16", "134M");
    }
    {
        lt_colsum_args a = {.y = make(s, LT_F32, 0, 3072), .x = make(s, LT_BF16, 65536, 3072)};
        op_time(s, LT_OP_colsum, &a, "column sums", "65536 x 3072");
    }
    lt_add_args a = {.y = make(s, LT_BF16, 0, n),
                     .a = make(s, LT_BF16, 0, n),
                     .b = make(s, LT_BF16, 0, n),
                     .alpha = 1.0f,
                     .beta = 1.0f};
    op_time(s, LT_OP_add, &a, "residual add", "134M");
}

lt_err lt_bench_memory_ops(lt_bench *b) {
    lt_queue q = {.device = b->device, .gpu = b->gpu, .stream = b->stream};
    shop s = {.b = b, .q = &q};
    if (b->check_only) {
        return LT_OK;
    }
    norms(&s, 16384, 4096, "16384 x 4096");
    norms(&s, 65536, 768, "65536 x 768");
    norms(&s, 524288, 128, "heads: 524288 x 128");
    norms(&s, 65536, 1024, "65536 x 1024");
    heads(&s, 65536, 16, 4, 64, "65536 x (16 + 4) x 64");
    heads(&s, 16384, 32, 8, 128, "16384 x (32 + 8) x 128");
    activations(&s, LT_ACT_GELU_TANH, false, "gelu (tanh)", "gelu (tanh) backward", "16384 x 8192");
    activations(&s, LT_ACT_GELU, false, "gelu (erf)", "gelu (erf) backward", "16384 x 8192");
    activations(&s, LT_ACT_SILU, true, "swiglu", "swiglu backward", "16384 x 8192");
    activations(&s, LT_ACT_XIELU, false, "xielu", "xielu backward", "16384 x 8192");
    rows_of_tables(&s);
    loss(&s, 8192, 50304, "8192 x 50304");
    loss(&s, 4096, 128256, "4096 x 128256");
    choices(&s);
    flat(&s);
    lt_cuda_free(b->gpu, q.scratch);
    return LT_OK;
}
