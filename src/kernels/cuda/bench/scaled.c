/* bench/scaled.c: products of 8-bit floats: gemm_sm90.cu with FP8 and both kinds of scales on the
 * products of Llama-1B at 16,384 tokens, beside cuBLASLt's 8-bit products (one scale per operand,
 * sums in the tensor cores, with and without promotion) and the same product in BF16, which a
 * step would run instead; and the casts, compared with the copy bandwidth. optest checks the
 * results (cast_scaled, matmul_scaled).
 *
 * Power limits these products, so the relevant figures are those of --sustained: seconds of the
 * same kernel on random data. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/bench/bench.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/ops/launch.h"
#include "tensor/cost.h"

#define N_SETS 2

/* y (M, N) = a (M, K) b (N, K)^T: in BF16, and with a and b in 8 bits and both kinds of
 * scales. */
typedef struct {
    lt_tensor y, a, b;
    lt_matmul_scaled_args block, tensor;
} product_set;

typedef struct {
    lt_bench *b;
    lt_queue *q;
    int64_t m, n, k;
    product_set sets[N_SETS];
    void *taken[N_SETS * 12];
    int n_taken;
} products;

/* Our products with both kinds of scales, BF16, then those of cuBLASLt. */
typedef enum { BLOCK, TENSOR, BF16, PEER, PEER_FAST, N_RUNS } product;
static const char *const names[N_RUNS] = {"1x128", "tensor", "BF16", "cuBLASLt 8-bit",
                                          "cuBLASLt 8-bit, fast"};

typedef struct {
    products *p;
    product what;
} run_ctx;

static lt_err queue_product(void *ctx, CUstream s, int set) {
    const run_ctx *r = ctx;
    const product_set *x = &r->p->sets[set];
    lt_bench *b = r->p->b;
    if (r->what == BF16) {
        return b->device->backend->ops->matmul(
            r->p->q, &(lt_matmul_args){.y = x->y, .a = x->a, .b = x->b, .trans_b = true});
    }
    if (r->what < BF16) {
        return lt_gemm_scaled(b->gpu, s, r->what == BLOCK ? &x->block : &x->tensor);
    }
    return lt_cublas_matmul(b->blas, s,
                            &(lt_cublas_args){.m = r->p->m,
                                              .n = r->p->n,
                                              .k = r->p->k,
                                              .lda = r->p->k,
                                              .ldb = r->p->k,
                                              .ldd = r->p->n,
                                              .trans_b = true,
                                              .in = LT_CUBLAS_E4M3,
                                              .out = LT_CUBLAS_BF16,
                                              .alpha = 1.0f,
                                              .fast = r->what == PEER_FAST,
                                              .a = x->tensor.a.data,
                                              .b = x->tensor.b.data,
                                              .a_scale = x->tensor.a_scale.data,
                                              .b_scale = x->tensor.b_scale.data,
                                              .d = x->y.data});
}

static lt_err take(products *p, lt_tensor *t, lt_dtype dtype, int64_t rows, int64_t cols) {
    void *data = NULL;
    LT_ASSERT(p->n_taken < (int)(sizeof p->taken / sizeof *p->taken));
    LT_TRY(lt_cuda_alloc(p->b->gpu, &data, (size_t)(rows * cols) * lt_dtype_bytes(dtype), "bench"));
    p->taken[p->n_taken++] = data;
    *t = lt_tensor_2d(data, dtype, rows, cols);
    return LT_OK;
}

/* Allocate x (rows, cols) in 8 bits. */
static lt_err take_codes(products *p, lt_tensor *codes, lt_tensor *scale, const lt_tensor *x,
                         lt_scale_kind kind) {
    const int64_t rows = x->shape[0], cols = x->shape[1];
    const lt_tensor s = lt_scale_tensor(p, kind, rows, cols);
    LT_TRY(take(p, codes, LT_F8_E4M3, rows, cols));
    LT_TRY(take(p, scale, LT_F32, 1, lt_tensor_count(&s)));
    *scale = lt_scale_tensor(scale->data, kind, rows, cols);
    return p->b->device->backend->ops->cast_scaled(
        p->q, &(lt_cast_scaled_args){.y = *codes, .scale = *scale, .x = *x, .kind = kind});
}

static lt_err set_open(products *p, product_set *x, uint64_t seed) {
    lt_matmul_scaled_args *s[2] = {&x->block, &x->tensor};
    LT_TRY(take(p, &x->y, LT_BF16, p->m, p->n));
    LT_TRY(take(p, &x->a, LT_BF16, p->m, p->k));
    LT_TRY(take(p, &x->b, LT_BF16, p->n, p->k));
    LT_TRY(lt_bench_random(p->b, x->a.data, p->m * p->k, "bf16", seed, 1.0f, false));
    LT_TRY(lt_bench_random(p->b, x->b.data, p->n * p->k, "bf16", seed + 1, 0.02f, false));
    LT_TRY(lt_cuda_sync(p->b->gpu, p->b->stream));
    for (int i = 0; i < 2; i++) {
        *s[i] = (lt_matmul_scaled_args){.y = x->y,
                                        .a_kind = i == 0 ? LT_SCALE_ROW : LT_SCALE_TENSOR,
                                        .b_kind = i == 0 ? LT_SCALE_BLOCK : LT_SCALE_TENSOR};
        LT_TRY(take_codes(p, &s[i]->a, &s[i]->a_scale, &x->a, s[i]->a_kind));
        LT_TRY(take_codes(p, &s[i]->b, &s[i]->b_scale, &x->b, s[i]->b_kind));
    }
    return p->b->device->backend->sync(p->q);
}

static void sets_close(products *p) {
    for (int i = 0; i < p->n_taken; i++) {
        lt_cuda_free(p->b->gpu, p->taken[i]);
    }
    p->n_taken = 0;
}

static lt_err product_time(lt_bench *b, lt_queue *q, const char *what, int64_t m, int64_t n,
                           int64_t k) {
    lt_err err = LT_OK;
    const lt_cuda_info *info = lt_cuda_get_info(b->gpu);
    static run_ctx ctx[N_RUNS];
    static products p;
    lt_timing runs[N_RUNS];
    char shape[80];
    const int n_runs = b->blas != NULL ? N_RUNS : PEER;

    p = (products){.b = b, .q = q, .m = m, .n = n, .k = k};
    snprintf(shape, sizeof shape, "%s %lld x %lld x %lld", what, (long long)m, (long long)n,
             (long long)k);
    if (lt_bench_skips(b, shape)) {
        return LT_OK;
    }
    for (int i = 0; i < N_SETS; i++) {
        LT_TRY_DONE(set_open(&p, &p.sets[i], (uint64_t)(2 * i + 1)));
    }
    for (int i = 0; i < n_runs; i++) {
        ctx[i] = (run_ctx){.p = &p, .what = (product)i};
        runs[i] = (lt_timing){.name = names[i], .queue = queue_product, .ctx = &ctx[i]};
    }
    LT_TRY_DONE(
        lt_timing_run(b->gpu, q->stream, runs, n_runs,
                      &(lt_timing_plan){.n_sets = N_SETS, .rounds = b->rounds, .inner_ms = 0.3}));
    for (int i = 0; i < n_runs; i++) {
        lt_bench_result row = {.op = "fp8",
                               .name = runs[i].name,
                               .shape = shape,
                               .ms = runs[i].ms,
                               .ms_best = runs[i].ms_best,
                               .flops = 2.0 * (double)m * (double)n * (double)k,
                               .peer = i >= BF16,
                               .limit_is_flops = true,
                               .limit = (i == BF16 ? 4096.0 : 8192.0) * info->n_sms *
                                        info->clock_mhz * 1e6};
        if (runs[i].err != LT_OK) {
            lt_bench_check(b, "fp8", runs[i].name, false, "%s", runs[i].error);
            continue;
        }
        if (b->sustained_s > 0.0) {
            LT_TRY_DONE(lt_timing_sustained(b->gpu, q->stream, &runs[i], N_SETS, b->sustained_s,
                                            &row.ms_sustained, &row.state));
        }
        lt_bench_row(b, &row);
    }
done:
    sets_close(&p);
    return err;
}

typedef struct {
    lt_queue *q;
    lt_cast_scaled_args sets[N_SETS];
} cast_ctx;

static lt_err queue_cast(void *ctx, CUstream s, int set) {
    const cast_ctx *c = ctx;
    (void)s;
    return c->q->device->backend->ops->cast_scaled(c->q, &c->sets[set]);
}

/* kinds: of the scales of y and of its transpose; -1: that result is not computed. */
static lt_err cast_time(lt_bench *b, lt_queue *q, const char *what, int64_t rows, int64_t cols,
                        int kind, int t_kind) {
    lt_err err = LT_OK;
    static cast_ctx ctx;
    static products p;
    lt_timing run = {.name = what, .queue = queue_cast, .ctx = &ctx};
    char shape[48];
    lt_bench_result row;

    p = (products){.b = b, .q = q};
    ctx.q = q;
    snprintf(shape, sizeof shape, "%lld x %lld", (long long)rows, (long long)cols);
    if (lt_bench_skips(b, shape)) {
        return LT_OK;
    }
    for (int i = 0; i < N_SETS; i++) {
        lt_cast_scaled_args *a = &ctx.sets[i];
        *a = (lt_cast_scaled_args){.kind = (lt_scale_kind)(kind < 0 ? 0 : kind),
                                   .t_kind = (lt_scale_kind)(t_kind < 0 ? 0 : t_kind)};
        LT_TRY_DONE(take(&p, &a->x, LT_BF16, rows, cols));
        LT_TRY_DONE(lt_bench_random(b, a->x.data, rows * cols, "bf16", 3, 1.0f, false));
        for (int transposed = 0; transposed < 2; transposed++) {
            const int64_t r = transposed ? cols : rows, c = transposed ? rows : cols;
            lt_tensor *y = transposed ? &a->t : &a->y, *s = transposed ? &a->t_scale : &a->scale;
            const lt_scale_kind of = transposed ? a->t_kind : a->kind;
            const lt_tensor scale = lt_scale_tensor(&p, of, r, c);
            if ((transposed ? t_kind : kind) >= 0) {
                LT_TRY_DONE(take(&p, y, LT_F8_E4M3, r, c));
                LT_TRY_DONE(take(&p, s, LT_F32, 1, lt_tensor_count(&scale)));
                *s = lt_scale_tensor(s->data, of, r, c);
            }
        }
    }
    LT_TRY_DONE(lt_cuda_sync(b->gpu, b->stream));
    LT_TRY_DONE(
        lt_timing_run(b->gpu, q->stream, &run, 1,
                      &(lt_timing_plan){.n_sets = N_SETS, .rounds = b->rounds, .inner_ms = 0.3}));
    row = (lt_bench_result){.op = "fp8",
                            .name = what,
                            .shape = shape,
                            .ms = run.ms,
                            .ms_best = run.ms_best,
                            .bytes = lt_op_cost(LT_OP_cast_scaled, &ctx.sets[0]).bytes,
                            .limit = b->copy_gbps * 1e9};
    lt_bench_check(b, "fp8", what, run.err == LT_OK, "%s", run.error);
    if (run.err == LT_OK) {
        lt_bench_row(b, &row);
    }
done:
    sets_close(&p);
    return err;
}

lt_err lt_bench_scaled(lt_bench *b) {
    lt_err err = LT_OK;
    lt_queue *q = NULL;
    if (b->check_only) {
        return LT_OK;
    }
    LT_TRY(b->device->backend->queue_open(b->device, &q));
    LT_TRY_DONE(cast_time(b, q, "rows", 16384, 2048, LT_SCALE_ROW, -1));
    LT_TRY_DONE(cast_time(b, q, "rows", 16384, 16384, LT_SCALE_ROW, -1));
    LT_TRY_DONE(cast_time(b, q, "blocks both ways", 16384, 2048, LT_SCALE_BLOCK, LT_SCALE_BLOCK));
    LT_TRY_DONE(cast_time(b, q, "rows both ways", 16384, 8192, LT_SCALE_ROW, LT_SCALE_ROW));
    LT_TRY_DONE(cast_time(b, q, "blocks transposed", 16384, 8192, -1, LT_SCALE_BLOCK));
    LT_TRY_DONE(cast_time(b, q, "tensor", 16384, 8192, LT_SCALE_TENSOR, -1));
    LT_TRY_DONE(product_time(b, q, "qkv", 16384, 3072, 2048));
    LT_TRY_DONE(product_time(b, q, "attn_out", 16384, 2048, 2048));
    LT_TRY_DONE(product_time(b, q, "up", 16384, 16384, 2048));
    LT_TRY_DONE(product_time(b, q, "down", 16384, 2048, 8192));
    LT_TRY_DONE(product_time(b, q, "d up", 16384, 2048, 16384));
    LT_TRY_DONE(product_time(b, q, "d down", 16384, 8192, 2048));
    LT_TRY_DONE(product_time(b, q, "square", 8192, 8192, 8192));
done:
    b->device->backend->queue_close(q);
    return err;
}
