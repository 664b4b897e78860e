/* bench/gemm.c: Ladder 2: 16-bit GEMM on tensor cores: every tile, layout and output checked on odd
 * shapes against double, then timed beside cuBLASLt's best heuristic on squares and on the products
 * of GPT-2 124M and Llama 1B and 8B (forward, dgrad, wgrad, serving). */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/bench/bench.h"
#include "kernels/cuda/gemm/gemm.h"

#define MAX_SETS 24
#define REPEATS  100
/* |C - ref| / (|A| |B|), f32 sums: roundings of 6e-8 in groups of 16, random signs. */
#define SCALED_BOUND 4e-6
/* Relative, in norm: each element is rounded once to 2^-9, uniformly. */
#define BF16_BOUND 2.4e-3

typedef struct {
    int64_t m, n, k;
    bool trans_a, trans_b, f32, accumulate;
} gemm_shape;

typedef struct {
    lt_bench *b;
    bool vendor;
    const lt_gemm_rung *rung; /* NULL: the shipped choice, or the vendor's library. */
    lt_scratch scratch;
    int n_sets;
    lt_gemm_args sets[MAX_SETS];
} run_ctx;

static lt_err queue(void *p, CUstream s, int set) {
    const run_ctx *r = p;
    const lt_gemm_args *a = &r->sets[set];
    if (r->rung != NULL) {
        return lt_gemm_rung_run(r->b->gpu, s, r->rung, a);
    }
    if (!r->vendor) {
        return lt_gemm(r->b->gpu, s, a, r->scratch);
    }
    return lt_cublas_matmul(
        r->b->blas, s,
        &(lt_cublas_args){.m = a->m,
                          .n = a->n,
                          .k = a->k,
                          .lda = a->lda,
                          .ldb = a->ldb,
                          .ldd = a->ldc,
                          .trans_a = a->trans_a,
                          .trans_b = a->trans_b,
                          .in = LT_CUBLAS_BF16,
                          .out = a->out == LT_F32 ? LT_CUBLAS_F32 : LT_CUBLAS_BF16,
                          .alpha = 1.0f,
                          .beta = a->accumulate ? 1.0f : 0.0f,
                          .a = a->a,
                          .b = a->b,
                          .d = a->c});
}

static lt_err set_open(lt_bench *b, lt_gemm_args *a, const gemm_shape *t, uint64_t seed,
                       bool integers) {
    void *pa = NULL, *pb = NULL, *pc = NULL;
    LT_TRY(lt_cuda_alloc(b->gpu, &pa, (size_t)(t->m * t->k) * 2, "A"));
    LT_TRY(lt_cuda_alloc(b->gpu, &pb, (size_t)(t->n * t->k) * 2, "B"));
    LT_TRY(lt_cuda_alloc(b->gpu, &pc, (size_t)(t->m * t->n) * 4, "C"));
    LT_TRY(lt_bench_random(b, pa, t->m * t->k, "bf16", seed, 1.0f, integers));
    LT_TRY(lt_bench_random(b, pb, t->n * t->k, "bf16", seed + 1, 1.0f, integers));
    *a = (lt_gemm_args){.m = t->m,
                        .n = t->n,
                        .k = t->k,
                        .lda = t->trans_a ? t->m : t->k,
                        .ldb = t->trans_b ? t->k : t->n,
                        .ldc = t->n,
                        .trans_a = t->trans_a,
                        .trans_b = t->trans_b,
                        .accumulate = t->accumulate,
                        .in = LT_BF16,
                        .out = t->f32 ? LT_F32 : LT_BF16,
                        .alpha = 1.0f,
                        .a = pa,
                        .b = pb,
                        .c = pc,
                        .act = -1,
                        .act_bwd = -1};
    return LT_OK;
}
/* Open enough sets that together they are several times the L2. */
static lt_err sets_open(lt_bench *b, run_ctx *r, const gemm_shape *t) {
    const int64_t bytes = (t->m * t->k + t->n * t->k + t->m * t->n) * 2,
                  wanted = 4 * (int64_t)lt_cuda_get_info(b->gpu)->l2_bytes / bytes + 1;
    r->b = b;
    r->n_sets = wanted < 2 ? 2 : wanted > MAX_SETS ? MAX_SETS : (int)wanted;
    for (int i = 0; i < r->n_sets; i++) {
        LT_TRY(set_open(b, &r->sets[i], t, (uint64_t)(2 * i + 1), false));
        LT_TRY(lt_cuda_fill(b->gpu, b->stream, r->sets[i].c, 0, (size_t)(t->m * t->n) * 4));
    }
    return LT_OK;
}
static void set_close(lt_bench *b, lt_gemm_args *a) {
    lt_cuda_free(b->gpu, (void *)(uintptr_t)a->a);
    lt_cuda_free(b->gpu, (void *)(uintptr_t)a->b);
    lt_cuda_free(b->gpu, a->c);
}

/* ---- Checks ---- */

static lt_err check_repeats(lt_bench *b, const lt_gemm_args *a, lt_scratch scratch) {
    lt_err err = LT_OK;
    const size_t bytes = (size_t)(a->m * a->n) * lt_dtype_bytes(a->out);
    unsigned char *first = malloc(bytes), *again = malloc(bytes);
    int differ = 0;
    if (first == NULL || again == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "check");
    }
    for (int i = 0; i < REPEATS; i++) {
        LT_TRY_DONE(lt_cuda_fill(b->gpu, b->stream, a->c, a->accumulate ? 0 : 0xff, bytes));
        LT_TRY_DONE(lt_gemm(b->gpu, b->stream, a, scratch));
        LT_TRY_DONE(lt_cuda_download(b->gpu, b->stream, i == 0 ? first : again, a->c, bytes));
        LT_TRY_DONE(lt_cuda_sync(b->gpu, b->stream));
        differ += i > 0 && memcmp(first, again, bytes) != 0;
    }
    lt_bench_check(b, "gemm", "repeats", differ == 0, "%d of %d repeats differ", differ, REPEATS);
done:
    free(first);
    free(again);
    return err;
}

/* One way to compute a product; both NULL: as shipped. */
typedef struct {
    const lt_gemm_tile *tile;
    const lt_gemm_few_tile *few;
} way;
static lt_err check_way(lt_bench *b, const gemm_shape *t, const lt_gemm_args *a, const way *w,
                        const double *ref, const double *bound, bool integers, lt_scratch scratch) {
    lt_bench_error e;
    char name[64] = "as shipped";
    LT_TRY(lt_cuda_fill(b->gpu, b->stream, a->c, t->accumulate ? 0 : 0xff,
                        (size_t)(t->m * t->n) * (t->f32 ? 4 : 2)));
    if (w->tile != NULL) {
        snprintf(name, sizeof name, "bn %d splits %d%s", w->tile->bn, w->tile->splits,
                 w->tile->pair ? " in pairs" : "");
        LT_TRY(lt_gemm_with(b->gpu, b->stream, a, w->tile, scratch));
    } else if (w->few != NULL) {
        snprintf(name, sizeof name, "few rows, groups %d splits %d", w->few->groups,
                 w->few->splits);
        LT_TRY(lt_gemm_few_with(b->gpu, b->stream, a, w->few));
    } else {
        LT_TRY(lt_gemm(b->gpu, b->stream, a, scratch));
    }
    LT_TRY(lt_bench_compare(b, &e, a->c, t->f32 ? "fp32" : "bf16", ref, bound, t->m, t->n, t->n));
    lt_bench_check(b, "gemm", "shape",
                   e.n_bad == 0.0 && (t->f32 ? e.scaled_max <= (integers ? 0.0 : SCALED_BOUND)
                                             : e.relative <= BF16_BOUND),
                   "%lld x %lld x %lld %c%c %s%s %s%s: error %.2e (scaled %.2e), %.0f not finite",
                   (long long)t->m, (long long)t->n, (long long)t->k, t->trans_a ? 'T' : 'N',
                   t->trans_b ? 'T' : 'N', t->f32 ? "f32" : "bf16", t->accumulate ? " +=" : "",
                   name, integers ? " integers" : "", e.relative, e.scaled_max, e.n_bad);
    return LT_OK;
}

/* Check the shipped way, forced splits, pairs of blocks, and the kernel for few rows in several
 * shapes. */
static lt_err check_ways(lt_bench *b, const gemm_shape *t, const lt_gemm_args *a, const double *ref,
                         const double *bound, bool integers, lt_scratch scratch) {
    static const lt_gemm_few_tile few[] = {
        {.groups = 1, .splits = 1}, {.groups = 1, .splits = 4}, {.groups = 2, .splits = 1},
        {.groups = 2, .splits = 6}, {.groups = 1, .splits = 3},
    };
    static const lt_gemm_tile pairs[] = {{192, 1, 3, 1, 4, 1, 8, false, false, true},
                                         {256, 1, 2, 1, 4, 2, 8, false, false, true},
                                         {64, 1, 2, 1, 8, 1, 8, false, false, true}};
    const lt_cuda_info *info = lt_cuda_get_info(b->gpu);
    lt_gemm_tile tile = lt_gemm_tile_choose(a, info, scratch.bytes);
    LT_TRY(check_way(b, t, a, &(way){NULL, NULL}, ref, bound, integers, scratch));
    tile.splits = 3;
    if (t->k >= 64 * 12 && t->n % 4 == 0) {
        LT_TRY(check_way(b, t, a, &(way){&tile, NULL}, ref, bound, integers, scratch));
    }
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs && t->k >= 64 * 12 && t->n % 4 == 0; i++) {
        LT_TRY(check_way(b, t, a, &(way){&pairs[i], NULL}, ref, bound, integers, scratch));
    }
    for (size_t i = 0; i < sizeof few / sizeof *few && lt_gemm_few_refusal(a, info) == NULL; i++) {
        lt_gemm_few_tile f = few[i];
        if (lt_gemm_few_fit(&f, a, info)) {
            LT_TRY(check_way(b, t, a, &(way){NULL, &f}, ref, bound, integers, scratch));
        }
    }
    return LT_OK;
}

static lt_err check_shape(lt_bench *b, const gemm_shape *t, bool integers, lt_scratch scratch) {
    lt_err err = LT_OK;
    lt_gemm_args a = {0};
    void *ref = NULL, *bound = NULL;
    LT_TRY_DONE(set_open(b, &a, t, 21, integers));
    LT_TRY_DONE(lt_cuda_alloc(b->gpu, &ref, (size_t)(t->m * t->n) * 8, "check"));
    LT_TRY_DONE(lt_cuda_alloc(b->gpu, &bound, (size_t)(t->m * t->n) * 8, "check"));
    LT_TRY_DONE(lt_bench_gemm_ref(b, ref, bound,
                                  &(lt_bench_gemm){.m = (int)t->m,
                                                   .n = (int)t->n,
                                                   .k = (int)t->k,
                                                   .ldc = (int)t->n,
                                                   .a_row = t->trans_a ? 1 : t->k,
                                                   .a_col = t->trans_a ? t->m : 1,
                                                   .b_row = t->trans_b ? 1 : t->n,
                                                   .b_col = t->trans_b ? t->k : 1,
                                                   .a = a.a,
                                                   .b = a.b,
                                                   .c0 = NULL,
                                                   .alpha = 1.0f,
                                                   .beta = 0.0f,
                                                   .dtype = "bf16"}));
    LT_TRY_DONE(check_ways(b, t, &a, ref, bound, integers, scratch));
    if (!integers) {
        LT_TRY_DONE(check_repeats(b, &a, scratch));
    }
done:
    set_close(b, &a);
    lt_cuda_free(b->gpu, ref);
    lt_cuda_free(b->gpu, bound);
    return err;
}

static lt_err checks(lt_bench *b, lt_scratch scratch) {
    static const int64_t sizes[][3] = {{128, 256, 64},    {8, 520, 520},  {336, 264, 200},
                                       {1000, 776, 1032}, {1, 512, 4096}, {2304, 768, 2048},
                                       {32, 2048, 2048},  {56, 776, 1000}};
    int n = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int lay = 0; lay < 4; lay++) {
            for (int out = 0; out < 3; out++, n++) {
                const gemm_shape t = {sizes[i][0],  sizes[i][1], sizes[i][2], lay / 2 == 1,
                                      lay % 2 == 1, out > 0,     out == 2};
                if (t.trans_a && t.m % 8 != 0) {
                    continue;
                }
                LT_TRY(check_shape(b, &t, (i + (size_t)out) % 2 == 0, scratch));
            }
        }
    }
    fprintf(b->to, "gemm: %d shapes against double, %d checks failed in all\n", n, b->n_failed);
    return LT_OK;
}

/* Every rung of the ladder on an odd shape. */
static lt_err check_rungs(lt_bench *b, const gemm_shape *t, bool integers) {
    lt_err err = LT_OK;
    lt_gemm_args a = {0};
    void *ref = NULL, *bound = NULL;
    LT_TRY_DONE(set_open(b, &a, t, 31, integers));
    LT_TRY_DONE(lt_cuda_alloc(b->gpu, &ref, (size_t)(t->m * t->n) * 8, "check"));
    LT_TRY_DONE(lt_cuda_alloc(b->gpu, &bound, (size_t)(t->m * t->n) * 8, "check"));
    LT_TRY_DONE(
        lt_bench_gemm_ref(b, ref, bound,
                          &(lt_bench_gemm){(int)t->m, (int)t->n, (int)t->k, (int)t->n, t->k, 1, 1,
                                           t->k, a.a, a.b, NULL, 1.0f, 0.0f, "bf16"}));
    for (int i = 0; i < lt_gemm_n_rungs; i++) {
        const lt_gemm_rung *r = &lt_gemm_rungs[i];
        lt_bench_error e;
        LT_TRY_DONE(lt_cuda_fill(b->gpu, b->stream, a.c, 0xff, (size_t)(t->m * t->n) * 2));
        LT_TRY_DONE(lt_gemm_rung_run(b->gpu, b->stream, r, &a));
        LT_TRY_DONE(lt_bench_compare(b, &e, a.c, "bf16", ref, bound, t->m, t->n, t->n));
        lt_bench_check(b, "gemm", r->name, e.n_bad == 0.0 && e.relative <= BF16_BOUND,
                       "rung %d, %lld x %lld x %lld: error %.2e, %.0f not finite", r->rung,
                       (long long)t->m, (long long)t->n, (long long)t->k, e.relative, e.n_bad);
    }
done:
    set_close(b, &a);
    lt_cuda_free(b->gpu, ref);
    lt_cuda_free(b->gpu, bound);
    return err;
}

/* ---- Timings ---- */

/* Time all rungs and cuBLASLt, interleaved. */
static lt_err ladder_time(lt_bench *b, int64_t n) {
    lt_err err = LT_OK;
    enum { MOST = 16 };
    static run_ctx ctx[MOST];
    lt_timing runs[MOST];
    char shape[64];
    const gemm_shape t = {n, n, n, false, true, false, false};
    const int n_runs = lt_gemm_n_rungs + (b->blas != NULL);
    LT_ASSERT(n_runs <= MOST);
    memset(ctx, 0, sizeof ctx);
    snprintf(shape, sizeof shape, "ladder %lld", (long long)n);
    if (lt_bench_skips(b, shape)) {
        return LT_OK;
    }
    LT_TRY_DONE(sets_open(b, &ctx[0], &t));
    for (int i = 0; i < n_runs; i++) {
        const bool vendor = i == lt_gemm_n_rungs;
        ctx[i] = ctx[0];
        ctx[i].vendor = vendor, ctx[i].rung = vendor ? NULL : &lt_gemm_rungs[i];
        runs[i] = (lt_timing){
            .name = vendor ? "cuBLASLt" : lt_gemm_rungs[i].name, .queue = queue, .ctx = &ctx[i]};
    }
    LT_TRY_DONE(lt_timing_run(
        b->gpu, b->stream, runs, n_runs,
        &(lt_timing_plan){
            .n_sets = ctx[0].n_sets, .rounds = b->rounds, .inner_ms = 0.3, .graph = true}));
    for (int i = 0; i < n_runs; i++) {
        const lt_gemm_rung *r = ctx[i].rung;
        const lt_cuda_info *info = lt_cuda_get_info(b->gpu);
        lt_bench_result row = {.op = "gemm",
                               .name = runs[i].name,
                               .shape = shape,
                               .ms = runs[i].ms,
                               .ms_best = runs[i].ms_best,
                               .flops = 2.0 * (double)n * (double)n * (double)n,
                               .peer = r == NULL,
                               .limit_is_flops = true,
                               .limit = 4096.0 * info->n_sms * info->clock_mhz * 1e6};
        if (runs[i].err != LT_OK) {
            lt_bench_check(b, "gemm", runs[i].name, false, "%s", runs[i].error);
            continue;
        }
        if (r != NULL) {
            row.rung = r->rung, row.idea = r->idea;
            row.peer_ms = b->blas != NULL ? runs[n_runs - 1].ms : 0.0;
            LT_TRY_DONE(lt_bench_took(b, &row.took, &runs[i]));
        }
        lt_bench_row(b, &row);
    }
done:
    for (int i = 0; i < ctx[0].n_sets; i++) {
        set_close(b, &ctx[0].sets[i]);
    }
    return err;
}

static lt_err shape_time(lt_bench *b, const gemm_shape *t, const char *what, lt_scratch scratch) {
    lt_err err = LT_OK;
    const lt_cuda_info *info = lt_cuda_get_info(b->gpu);
    static run_ctx ctx[2];
    lt_timing runs[2];
    char shape[64];
    const int n_runs = b->blas != NULL ? 2 : 1;
    memset(ctx, 0, sizeof ctx);
    snprintf(shape, sizeof shape, "%s %lld x %lld x %lld %c%c", what, (long long)t->m,
             (long long)t->n, (long long)t->k, t->trans_a ? 'T' : 'N', t->trans_b ? 'T' : 'N');
    if (lt_bench_skips(b, shape)) {
        return LT_OK;
    }
    LT_TRY_DONE(sets_open(b, &ctx[0], t));
    for (int i = 0; i < n_runs; i++) {
        ctx[i] = ctx[0];
        ctx[i].vendor = i == 1, ctx[i].scratch = scratch;
        runs[i] = (lt_timing){
            .name = i == 1 ? "cuBLASLt" : "shipped", .queue = queue, .ctx = &ctx[i]};
    }
    LT_TRY_DONE(lt_timing_run(
        b->gpu, b->stream, runs, n_runs,
        &(lt_timing_plan){
            .n_sets = ctx[0].n_sets, .rounds = b->rounds, .inner_ms = 0.3, .graph = true}));
    for (int i = 0; i < n_runs; i++) {
        lt_bench_result row = {.op = "gemm",
                               .name = runs[i].name,
                               .shape = shape,
                               .ms = runs[i].ms,
                               .ms_best = runs[i].ms_best,
                               .flops = 2.0 * (double)t->m * (double)t->n * (double)t->k,
                               .peer = i == 1,
                               .limit_is_flops = true,
                               .limit = 4096.0 * info->n_sms * info->clock_mhz * 1e6};
        if (runs[i].err != LT_OK) {
            lt_bench_check(b, "gemm", runs[i].name, false, "%s", runs[i].error);
            continue;
        }
        row.peer_ms = i == 0 && n_runs == 2 ? runs[1].ms : 0.0;
        if (b->sustained_s > 0.0) {
            LT_TRY_DONE(lt_timing_sustained(b->gpu, b->stream, &runs[i], ctx[0].n_sets,
                                            b->sustained_s, &row.ms_sustained, &row.state));
        }
        lt_bench_row(b, &row);
    }
done:
    for (int i = 0; i < ctx[0].n_sets; i++) {
        set_close(b, &ctx[0].sets[i]);
    }
    return err;
}

/* Tokens and the (out, in) widths of the linear layers of a model: forward NT, dgrad NN, wgrad TN
 * into f32. */
static lt_err model_time(lt_bench *b, const char *name, int64_t tokens, const int64_t widths[4][2],
                         lt_scratch scratch) {
    for (int i = 0; i < 4; i++) {
        const int64_t n = widths[i][0], k = widths[i][1];
        const gemm_shape forward = {tokens, n, k, false, true, false, false},
                         dgrad = {tokens, k, n, false, false, false, false};
        const gemm_shape wgrad = {n, k, tokens, true, false, true, true};
        LT_TRY(shape_time(b, &forward, name, scratch));
        LT_TRY(shape_time(b, &dgrad, name, scratch));
        LT_TRY(shape_time(b, &wgrad, name, scratch));
    }
    return LT_OK;
}

lt_err lt_bench_gemm_ops(lt_bench *b) {
    lt_err err = LT_OK;
    static const int64_t gpt2[4][2] = {{2304, 768}, {768, 768}, {3072, 768}, {768, 3072}};
    static const int64_t llama_1b[4][2] = {{3072, 2048}, {2048, 2048}, {16384, 2048}, {2048, 8192}};
    static const int64_t llama_8b[4][2] = {
        {6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}};
    lt_scratch scratch = {.bytes = lt_gemm_scratch_bytes()};
    const gemm_shape probe = {64, 64, 64, false, true, false, false};
    lt_gemm_args a = {0};
    const char *why;

    LT_TRY_DONE(set_open(b, &a, &probe, 1, false));
    why = lt_gemm_refusal(&a, lt_cuda_get_info(b->gpu));
    if (why != NULL) {
        fprintf(b->to, "gemm: left out: %s\n", why);
        goto done;
    }
    LT_TRY_DONE(lt_cuda_alloc(b->gpu, &scratch.data, scratch.bytes, "scratch"));
    LT_TRY_DONE(checks(b, scratch));
    for (int i = 0; i < 4; i++) {
        static const int64_t sizes[][3] = {
            {256, 512, 256}, {300, 264, 200}, {1000, 776, 1032}, {8, 520, 72}};
        const gemm_shape t = {sizes[i][0], sizes[i][1], sizes[i][2], false, true, false, false};
        LT_TRY_DONE(check_rungs(b, &t, i % 2 == 0));
    }
    if (b->ladder && !b->check_only) {
        LT_TRY_DONE(ladder_time(b, 4096));
        LT_TRY_DONE(ladder_time(b, 8192));
    }
    for (int64_t n = 1024; n <= 16384 && !b->check_only; n *= 2) {
        const gemm_shape nn = {n, n, n, false, false, false, false},
                         nt = {n, n, n, false, true, false, false};
        LT_TRY_DONE(shape_time(b, &nn, "square", scratch));
        LT_TRY_DONE(shape_time(b, &nt, "square", scratch));
    }
    for (int64_t m = 1; m <= 128 && !b->check_only; m *= 2) {
        const gemm_shape t = {m, 4096, 4096, false, true, false, false};
        LT_TRY_DONE(shape_time(b, &t, "serve", scratch));
    }
    if (!b->check_only) {
        LT_TRY_DONE(model_time(b, "gpt2-124m", 16384, gpt2, scratch));
        LT_TRY_DONE(model_time(b, "llama-1b", 8192, llama_1b, scratch));
        LT_TRY_DONE(model_time(b, "llama-8b", 8192, llama_8b, scratch));
    }
done:
    set_close(b, &a);
    lt_cuda_free(b->gpu, scratch.data);
    return err;
}
