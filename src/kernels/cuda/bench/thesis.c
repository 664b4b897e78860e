/* bench/thesis.c: the grid of the thesis that this project grew from: attention forward, full, at
 * batch 1 to 8, 8 to 32 heads, 512 to 2048 tokens, heads of 64 and 128, in fp32, fp16 and bf16; its
 * two errors (greatest absolute, mean relative) against the naive kernel in double, and the time.
 * The op runs as the op table chooses. */
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/attention/attention_private.h"
#include "kernels/cuda/attention/ladder/naive_args.h"
#include "kernels/cuda/bench/bench.h"
#include "kernels/cuda/check_args.h"
#include "kernels/cuda/ops/launch.h"
#include "tensor/ops.h"
#include "kernels/cuda/specs.h"

#define GRID_WORDS "REAL=double DTYPE=%s"

#define ROUNDS 5

typedef struct {
    int batch, heads, tokens, width;
} grid_case;

/* Error bounds. fp32: those of the thesis. 16 bits: an output near 1 rounded once (half a unit in
 * the last place: 2^-11; 2^-8 with P rounded, too), and small outputs relative to their size. */
static const struct {
    lt_dtype dtype;
    const char *word;
    double absolute, relative;
} kinds[] = {
    {LT_F32, "fp32", 1e-4, 1e-3}, {LT_F16, "fp16", 4e-3, 2e-2}, {LT_BF16, "bf16", 3e-2, 1e-1}};

typedef struct {
    lt_bench *b;
    lt_backend const *be;
    lt_queue *q;
    lt_attention_args a;
} grid_run;

static lt_err queue(void *p, CUstream s, int set) {
    grid_run *r = p;
    (void)s;
    (void)set;
    return r->be->ops->attention_fwd(r->q, &r->a);
}

static lt_err exact(lt_bench *b, const lt_attention_args *a, const grid_case *c, const char *word,
                    void *out, void *lse) {
    const lt_cuda_kernel *k;
    char text[64];
    lt_attn_naive_fwd_args call = {.a = lt_attn_args_of(a, (lt_scratch){.bytes = 0}),
                                   .exact = out,
                                   .lse = lse,
                                   .q = a->q.data,
                                   .k = a->k.data,
                                   .v = a->v.data,
                                   .width = c->width};
    void *args[] = {&call};
    snprintf(text, sizeof text, GRID_WORDS, word);
    LT_TRY(lt_cuda_kernel_get(b->gpu, &k, "attention/ladder/01_naive.cu", "attn_naive_fwd", text));
    return lt_cuda_launch(
        b->gpu, b->stream, k,
        &(lt_cuda_dims){
            .grid = {(unsigned)c->tokens, (unsigned)c->heads, (unsigned)c->batch},
            .block = {128},
            .dynamic_shared_bytes = LT_ATTN_NAIVE_BYTES((size_t)c->tokens, sizeof(double))},
        args);
}

static lt_err errors(lt_bench *b, const lt_tensor *x, const char *word, void *ref,
                     double found[3]) {
    lt_err err = LT_OK;
    const lt_cuda_kernel *k;
    void *sums = NULL, *data = x->data;
    char text[32];
    int64_t n = lt_tensor_count(x);
    lt_cuda_diff_grid_args call = {.x = data, .ref = ref, .n = n};
    void *args[] = {&call};
    snprintf(text, sizeof text, "DTYPE=%s", word);
    LT_TRY_DONE(lt_cuda_alloc(b->gpu, &sums, 24, "errors"));
    call.out = sums;
    LT_TRY_DONE(lt_cuda_fill(b->gpu, b->stream, sums, 0, 24));
    LT_TRY_DONE(lt_cuda_kernel_get(b->gpu, &k, "check.cu", "diff_grid", text));
    LT_TRY_DONE(
        lt_cuda_launch(b->gpu, b->stream, k, &(lt_cuda_dims){.grid = {512}, .block = {256}}, args));
    LT_TRY_DONE(lt_cuda_download(b->gpu, b->stream, found, sums, 24));
    LT_TRY_DONE(lt_cuda_sync(b->gpu, b->stream));
    found[1] /= (double)n;
done:
    lt_cuda_free(b->gpu, sums);
    return err;
}

static lt_err tensor_open(lt_bench *b, lt_tensor *t, const grid_case *c, lt_dtype dtype,
                          const char *word, uint64_t seed) {
    void *p = NULL;
    const int64_t n = (int64_t)c->batch * c->tokens * c->heads * c->width;
    LT_TRY(lt_cuda_alloc(b->gpu, &p, (size_t)n * lt_dtype_bytes(dtype), "thesis"));
    *t = lt_tensor_4d(p, dtype, c->batch, c->tokens, c->heads, c->width);
    return seed > 0 ? lt_bench_random(b, p, n, word, seed, 1.0f, false)
                    : lt_cuda_fill(b->gpu, b->stream, p, 0xff, (size_t)n * lt_dtype_bytes(dtype));
}

static lt_err grid_one(lt_bench *b, const lt_backend *be, lt_queue *q, const grid_case *c, int kind,
                       const char *shape) {
    lt_err err = LT_OK;
    grid_run r = {.be = be, .q = q, .a = {.scale = 1.0f / sqrtf((float)c->width)}};
    lt_timing run = {.name = kinds[kind].word, .queue = queue, .ctx = &r};
    void *ref = NULL, *lse = NULL, *lse_ref = NULL;
    const int64_t rows = (int64_t)c->batch * c->tokens * c->heads;
    double found[3] = {0};
    LT_TRY_DONE(tensor_open(b, &r.a.q, c, kinds[kind].dtype, kinds[kind].word, 1));
    LT_TRY_DONE(tensor_open(b, &r.a.k, c, kinds[kind].dtype, kinds[kind].word, 2));
    LT_TRY_DONE(tensor_open(b, &r.a.v, c, kinds[kind].dtype, kinds[kind].word, 3));
    LT_TRY_DONE(tensor_open(b, &r.a.out, c, kinds[kind].dtype, kinds[kind].word, 0));
    LT_TRY_DONE(lt_cuda_alloc(b->gpu, &lse, (size_t)rows * 4, "thesis"));
    LT_TRY_DONE(lt_cuda_alloc(b->gpu, &lse_ref, (size_t)rows * 8, "thesis"));
    LT_TRY_DONE(lt_cuda_alloc(b->gpu, &ref, (size_t)(rows * c->width) * 8, "thesis"));
    r.a.lse = lt_tensor_3d(lse, LT_F32, c->batch, c->heads, c->tokens);
    LT_TRY_DONE(exact(b, &r.a, c, kinds[kind].word, ref, lse_ref));
    LT_TRY_DONE(lt_cuda_sync(b->gpu, b->stream));
    LT_TRY_DONE(queue(&r, NULL, 0));
    LT_TRY_DONE(be->sync(q));
    LT_TRY_DONE(errors(b, &r.a.out, kinds[kind].word, ref, found));
    lt_bench_check(b, "thesis", kinds[kind].word,
                   found[2] == 0.0 && found[0] <= kinds[kind].absolute &&
                       found[1] <= kinds[kind].relative,
                   "%s: greatest error %.2e (at most %.0e), mean relative %.2e (at most %.0e), "
                   "%.0f not finite",
                   shape, found[0], kinds[kind].absolute, found[1], kinds[kind].relative, found[2]);
    if (!b->check_only) {
        LT_TRY_DONE(
            lt_timing_run(q->gpu, q->stream, &run, 1,
                          &(lt_timing_plan){.n_sets = 1, .rounds = ROUNDS, .inner_ms = 0.2}));
        LT_TRY_DONE(run.err);
    }
    lt_bench_row(b, &(lt_bench_result){.op = "thesis",
                                       .name = kinds[kind].word,
                                       .shape = shape,
                                       .ms = b->check_only ? 1.0 : run.ms,
                                       .ms_best = run.ms_best,
                                       .flops = 4.0 * (double)rows * c->tokens * c->width,
                                       .limit_is_flops = true,
                                       .error_max = found[0],
                                       .error_relative = found[1]});
done:
    lt_cuda_free(b->gpu, r.a.q.data);
    lt_cuda_free(b->gpu, r.a.k.data);
    lt_cuda_free(b->gpu, r.a.v.data);
    lt_cuda_free(b->gpu, r.a.out.data);
    lt_cuda_free(b->gpu, lse);
    lt_cuda_free(b->gpu, lse_ref);
    lt_cuda_free(b->gpu, ref);
    return err;
}

lt_err lt_bench_thesis(lt_bench *b) {
    const lt_backend *be = b->device->backend;
    lt_queue *q = NULL;
    int n = 0;
    LT_TRY(be->queue_open(b->device, &q));
    for (int kind = 0; kind < 3; kind++) {
        for (int batch = 1; batch <= 8; batch *= 2) {
            for (int heads = 8; heads <= 32; heads *= 2) {
                for (int tokens = 512; tokens <= 2048; tokens *= 2) {
                    for (int width = 64; width <= 128; width *= 2) {
                        const grid_case c = {batch, heads, tokens, width};
                        char shape[64];
                        snprintf(shape, sizeof shape, "b%d h%d s%d d%d", c.batch, c.heads, c.tokens,
                                 c.width);
                        if (!lt_bench_skips(b, shape)) {
                            lt_bench_failed(b, kinds[kind].word, shape,
                                            grid_one(b, be, q, &c, kind, shape));
                            n++;
                        }
                    }
                }
            }
        }
    }
    fprintf(b->to, "thesis: %d points of the grid, %d checks failed in all\n", n, b->n_failed);
    be->queue_close(q);
    return LT_OK;
}

void lt_specs_bench_thesis(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, "attention/ladder/01_naive.cu", GRID_WORDS, "fp32");
    lt_spec(l, LT_SM_ALL, "attention/ladder/01_naive.cu", GRID_WORDS, "fp16");
}
