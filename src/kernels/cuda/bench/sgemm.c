/* bench/sgemm.c: Ladder 1: checks every rung on odd shapes, times them at 4096 and 8192 beside
 * cuBLAS, and the shipped kernel on more shapes. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/bench/bench.h"
#include "kernels/cuda/sgemm/sgemm.h"

#define N_SETS  3 /* Sets of operands: at 4096 one set is 200 MB, four times the L2 cache. */
#define REPEATS 100
/* |C - ref| / (|alpha| |A| |B| + |beta C|): fp32 sums in k order stay under sqrt(k) roundings
     * of 6e-8. */
#define SCALED_BOUND 2e-6

typedef struct {
    lt_bench *b;
    const lt_sgemm_rung *rung; /* NULL: the shipped kernel, or the vendor's. */
    bool vendor;
    lt_sgemm_args sets[N_SETS];
} run_ctx;

static lt_err queue(void *p, CUstream s, int set) {
    const run_ctx *r = p;
    const lt_sgemm_args *a = &r->sets[set];
    if (r->vendor) {
        return lt_cublas_matmul(r->b->blas, s,
                                &(lt_cublas_args){.m = a->m,
                                                  .n = a->n,
                                                  .k = a->k,
                                                  .lda = a->lda,
                                                  .ldb = a->ldb,
                                                  .ldd = a->ldc,
                                                  .alpha = a->alpha,
                                                  .beta = a->beta,
                                                  .a = a->a,
                                                  .b = a->b,
                                                  .d = a->c});
    }
    return r->rung != NULL ? lt_sgemm_rung_run(r->b->gpu, s, r->rung, a)
                           : lt_sgemm(r->b->gpu, s, a);
}

/* ---- Checks ---- */

typedef struct {
    int m, n, k, pad; /* pad: added to every leading dimension. */
    float alpha, beta;
} check_case;
static const check_case check_cases[] = {
    {1, 1, 1, 0, 1.0f, 0.0f},         {256, 512, 64, 0, 1.0f, 0.0f},
    {129, 257, 65, 0, 1.0f, 0.0f},    {515, 389, 260, 3, 1.0f, 0.0f},
    {512, 512, 512, 4, -0.5f, 2.0f},  {100, 1000, 999, 1, 1.5f, -1.0f},
    {1000, 36, 40, 0, 1.0f, 1.0f},    {3, 700, 33, 5, 1.0f, 0.0f},
    {128, 4096, 1024, 0, 1.0f, 0.0f}, {1500, 3000, 1000, 0, 1.0f, 0.5f},
};

typedef struct {
    lt_sgemm_args args;
    float *c_first; /* Copy of C as it was before the call. */
    double *ref, *bound;
    size_t c_bytes;
} check_bufs;

static lt_err check_bufs_open(lt_bench *b, check_bufs *x, const check_case *t, bool integers) {
    const int lda = t->k + t->pad, ldb = t->n + t->pad, ldc = t->n + t->pad;
    void *pa = NULL, *pb = NULL, *pc = NULL, *pd = NULL, *pr = NULL, *pe = NULL;
    x->c_bytes = (size_t)t->m * (size_t)ldc * 4;
    LT_TRY(lt_cuda_alloc(b->gpu, &pa, (size_t)t->m * (size_t)lda * 4, "check"));
    LT_TRY(lt_cuda_alloc(b->gpu, &pb, (size_t)t->k * (size_t)ldb * 4, "check"));
    LT_TRY(lt_cuda_alloc(b->gpu, &pc, x->c_bytes, "check"));
    LT_TRY(lt_cuda_alloc(b->gpu, &pd, x->c_bytes, "check"));
    LT_TRY(lt_cuda_alloc(b->gpu, &pr, (size_t)t->m * (size_t)t->n * 8, "check"));
    LT_TRY(lt_cuda_alloc(b->gpu, &pe, (size_t)t->m * (size_t)t->n * 8, "check"));
    LT_TRY(lt_bench_random(b, pa, (int64_t)t->m * lda, "fp32", 11, 1.0f, integers));
    LT_TRY(lt_bench_random(b, pb, (int64_t)t->k * ldb, "fp32", 12, 1.0f, integers));
    if (t->beta != 0.0f) {
        LT_TRY(lt_bench_random(b, pd, (int64_t)t->m * ldc, "fp32", 13, 1.0f, integers));
    } else {
        /* NaN exposes unwritten elements, and reads of C. */
        LT_TRY(lt_cuda_fill(b->gpu, b->stream, pd, 0xff, x->c_bytes));
    }
    x->args = (lt_sgemm_args){t->m,    t->n, t->k, lda, ldb,  ldc, t->alpha,
                              t->beta, pa,   pb,   pc,  NULL, NULL};
    LT_TRY(lt_sgemm_workspace_open(b->gpu, &x->args.workspace));
    x->c_first = pd, x->ref = pr, x->bound = pe;
    return lt_bench_gemm_ref(b, x->ref, x->bound,
                             &(lt_bench_gemm){t->m, t->n, t->k, ldc, lda, 1, ldb, 1, pa, pb, pd,
                                              t->alpha, t->beta, "fp32"});
}

/* Room for aligned copies of both operands. */
static lt_err aligned_open(lt_bench *b, void **out, const lt_sgemm_args *a) {
    return lt_cuda_alloc(
        b->gpu, out, ((size_t)a->m * (size_t)(a->k + 3) + (size_t)a->k * (size_t)(a->n + 3)) * 4,
        "aligned operands");
}

static void check_bufs_close(lt_bench *b, check_bufs *x) {
    lt_cuda_free(b->gpu, (void *)(uintptr_t)x->args.a);
    lt_cuda_free(b->gpu, (void *)(uintptr_t)x->args.b);
    lt_cuda_free(b->gpu, x->args.c);
    lt_cuda_free(b->gpu, x->c_first);
    lt_cuda_free(b->gpu, x->args.workspace);
    lt_cuda_free(b->gpu, x->args.aligned);
    lt_cuda_free(b->gpu, x->ref);
    lt_cuda_free(b->gpu, x->bound);
}

static lt_err run_any(lt_bench *b, const lt_sgemm_rung *r, const lt_sgemm_tile *tile,
                      const lt_sgemm_args *a) {
    return r != NULL      ? lt_sgemm_rung_run(b->gpu, b->stream, r, a)
           : tile != NULL ? lt_sgemm_with(b->gpu, b->stream, a, tile)
                          : lt_sgemm(b->gpu, b->stream, a);
}

static lt_err check_one(lt_bench *b, const lt_sgemm_rung *r, const lt_sgemm_tile *tile,
                        const char *name, check_bufs *x, bool integers) {
    const lt_sgemm_args *a = &x->args;
    lt_bench_error e;
    LT_TRY(lt_cuda_copy(b->gpu, b->stream, a->c, x->c_first, x->c_bytes));
    LT_TRY(run_any(b, r, tile, a));
    LT_TRY(lt_bench_compare(b, &e, a->c, "fp32", x->ref, x->bound, a->m, a->n, a->ldc));
    lt_bench_check(
        b, "sgemm", name, e.n_bad == 0.0 && e.scaled_max <= (integers ? 0.0 : SCALED_BOUND),
        "%d x %d x %d lda %d beta %g%s: error %.2e (scaled %.2e, at most %.0e), %.0f not finite",
        a->m, a->n, a->k, a->lda, (double)a->beta, integers ? " integers" : "", e.relative,
        e.scaled_max, SCALED_BOUND, e.n_bad);
    return LT_OK;
}

/* Repeat the same call REPEATS times: every byte of C must be equal. */
static lt_err check_repeats(lt_bench *b, const lt_sgemm_tile *tile, const char *name,
                            check_bufs *x) {
    lt_err err = LT_OK;
    unsigned char *first = malloc(x->c_bytes), *again = malloc(x->c_bytes);
    int differ = 0;
    if (first == NULL || again == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "check");
    }
    for (int i = 0; i < REPEATS; i++) {
        LT_TRY_DONE(lt_cuda_copy(b->gpu, b->stream, x->args.c, x->c_first, x->c_bytes));
        LT_TRY_DONE(run_any(b, NULL, tile, &x->args));
        LT_TRY_DONE(
            lt_cuda_download(b->gpu, b->stream, i == 0 ? first : again, x->args.c, x->c_bytes));
        LT_TRY_DONE(lt_cuda_sync(b->gpu, b->stream));
        differ += i > 0 && memcmp(first, again, x->c_bytes) != 0;
    }
    lt_bench_check(b, "sgemm", name, differ == 0, "%d of %d repeats differ", differ, REPEATS);
done:
    free(first);
    free(again);
    return err;
}

static lt_err checks(lt_bench *b) {
    lt_err err = LT_OK;
    static const lt_sgemm_tile odd_tiles[] = {
        {8, 16, 4, 4, 2, 3, 1, 8, 2, LT_SGEMM_TMA, true, 1, 1},
        {16, 8, 4, 2, 4, 4, 1, 4, 8, LT_SGEMM_TMA, true, 1, 1},
        {4, 8, 8, 2, 2, 2, 2, 1, 1, LT_SGEMM_TMA, false, 1, 1},
        {12, 12, 4, 2, 2, 3, 1, 8, 1, LT_SGEMM_ASYNC_4, true, 1, 1},
        {8, 16, 8, 2, 4, 3, 1, 8, 2, LT_SGEMM_ASYNC_16, true, 1, 1},
        {8, 16, 8, 2, 4, 4, 1, 8, 4, LT_SGEMM_TMA, true, 4, 2},
        {8, 16, 8, 2, 2, 3, 2, 8, 4, LT_SGEMM_TMA, true, 1, 3},
        {8, 8, 8, 1, 2, 3, 4, 8, 4, LT_SGEMM_TMA, true, 2, 1},
        {8, 8, 8, 2, 2, 3, 3, 8, 4, LT_SGEMM_ASYNC_16, true, 1, 2},
        {4, 4, 8, 1, 2, 3, 8, 8, 4, LT_SGEMM_ASYNC_4, true, 1, 4}};
    int n = 0;
    for (size_t i = 0; i < sizeof check_cases / sizeof *check_cases; i++) {
        for (int integers = 0; integers < 2; integers++) {
            check_bufs x = {0};
            LT_TRY_DONE(check_bufs_open(b, &x, &check_cases[i], integers));
            for (int r = 0; r < lt_sgemm_n_rungs; r++, n++) {
                LT_TRY_DONE(
                    check_one(b, &lt_sgemm_rungs[r], NULL, lt_sgemm_rungs[r].name, &x, integers));
            }
            for (size_t t = 0; t < sizeof odd_tiles / sizeof *odd_tiles; t++) {
                char text[256];
                lt_sgemm_tile_text(text, &odd_tiles[t]);
                if (odd_tiles[t].copy >= lt_sgemm_copy_allowed(&x.args, lt_cuda_get_info(b->gpu)) &&
                    lt_sgemm_tile_shares(&odd_tiles[t], &x.args, lt_cuda_get_info(b->gpu))) {
                    LT_TRY_DONE(check_one(b, NULL, &odd_tiles[t], text, &x, integers));
                    n++;
                }
            }
            LT_TRY_DONE(check_one(b, NULL, NULL, "shipped", &x, integers));
            if (!integers && i == 3) {
                LT_TRY_DONE(check_repeats(b, NULL, "shipped, unaligned", &x));
            }
            LT_TRY_DONE(aligned_open(b, &x.args.aligned, &x.args));
            LT_TRY_DONE(check_one(b, NULL, NULL, "shipped, operands copied", &x, integers));
            if (!integers && i == 4) {
                LT_TRY_DONE(
                    check_repeats(b, &lt_sgemm_rungs[lt_sgemm_n_rungs - 1].tile, "shipped", &x));
            }
            check_bufs_close(b, &x);
        }
    }
    fprintf(b->to, "sgemm: %d checks of rungs and tiles against double, %d failed in all\n", n,
            b->n_failed);
done:
    return err;
}

/* ---- Timings ---- */

static lt_err sets_open(lt_bench *b, lt_sgemm_args sets[N_SETS], int m, int n, int k) {
    LT_TRY(lt_sgemm_workspace_open(b->gpu, &sets[0].workspace));
    for (int i = 0; i < N_SETS; i++) {
        void *pa = NULL, *pb = NULL, *pc = NULL;
        LT_TRY(lt_cuda_alloc(b->gpu, &pa, (size_t)m * (size_t)k * 4, "A"));
        LT_TRY(lt_cuda_alloc(b->gpu, &pb, (size_t)k * (size_t)n * 4, "B"));
        LT_TRY(lt_cuda_alloc(b->gpu, &pc, (size_t)m * (size_t)n * 4, "C"));
        LT_TRY(lt_bench_random(b, pa, (int64_t)m * k, "fp32", (uint64_t)(2 * i + 1), 1.0f, false));
        LT_TRY(lt_bench_random(b, pb, (int64_t)k * n, "fp32", (uint64_t)(2 * i + 2), 1.0f, false));
        sets[i] = (lt_sgemm_args){
            m, n, k, k, n, n, 1.0f, 0.0f, pa, pb, pc, sets[0].workspace, sets[0].aligned};
        if (i == 0 && lt_sgemm_aligned_bytes(&sets[0]) > 0) {
            LT_TRY(aligned_open(b, &sets[0].aligned, &sets[0]));
        }
    }
    return LT_OK;
}

static void sets_close(lt_bench *b, lt_sgemm_args sets[N_SETS]) {
    lt_cuda_free(b->gpu, sets[0].workspace);
    lt_cuda_free(b->gpu, sets[0].aligned);
    for (int i = 0; i < N_SETS; i++) {
        lt_cuda_free(b->gpu, (void *)(uintptr_t)sets[i].a);
        lt_cuda_free(b->gpu, (void *)(uintptr_t)sets[i].b);
        lt_cuda_free(b->gpu, sets[i].c);
    }
}

static lt_err shape_time(lt_bench *b, int m, int n, int k, bool ladder) {
    lt_err err = LT_OK;
    const lt_cuda_info *info = lt_cuda_get_info(b->gpu);
    static run_ctx ctx[LT_TIMING_MAX_CANDIDATES];
    lt_timing t[LT_TIMING_MAX_CANDIDATES];
    lt_sgemm_args sets[N_SETS] = {{0}};
    char shape[64];
    int n_runs = 0, vendor = -1;
    snprintf(shape, sizeof shape, "%d x %d x %d", m, n, k);
    if (lt_bench_skips(b, shape)) {
        return LT_OK;
    }
    LT_TRY_DONE(sets_open(b, sets, m, n, k));
    for (int r = ladder ? 0 : lt_sgemm_n_rungs - 1; r <= lt_sgemm_n_rungs + 1; r++) {
        run_ctx *x = &ctx[n_runs];
        const bool shipped = r == lt_sgemm_n_rungs, last = r == lt_sgemm_n_rungs + 1;
        if ((last && b->blas == NULL) || (!ladder && r < lt_sgemm_n_rungs)) {
            continue;
        }
        *x = (run_ctx){
            .b = b, .rung = r < lt_sgemm_n_rungs ? &lt_sgemm_rungs[r] : NULL, .vendor = last};
        memcpy(x->sets, sets, sizeof sets);
        t[n_runs] = (lt_timing){.name = last      ? "cuBLASLt"
                                        : shipped ? "shipped"
                                                  : lt_sgemm_rungs[r].name,
                                .queue = queue,
                                .ctx = x};
        vendor = last ? n_runs : vendor;
        n_runs++;
    }
    LT_TRY_DONE(
        lt_timing_run(b->gpu, b->stream, t, n_runs,
                      &(lt_timing_plan){.n_sets = N_SETS, .rounds = b->rounds, .inner_ms = 0.3}));
    for (int i = 0; i < n_runs; i++) {
        const run_ctx *x = t[i].ctx;
        lt_bench_result row = {.op = "sgemm",
                               .name = t[i].name,
                               .shape = shape,
                               .ms = t[i].ms,
                               .ms_best = t[i].ms_best,
                               .flops = 2.0 * m * (double)n * k,
                               .peer = i == vendor,
                               .limit_is_flops = true,
                               .limit = 2.0 * LT_SGEMM_FMA_PER_SM * info->n_sms * info->clock_mhz *
                                        1e6};
        if (t[i].err != LT_OK) {
            lt_bench_check(b, "sgemm", t[i].name, false, "%s", t[i].error);
            continue;
        }
        if (x->rung != NULL) {
            row.rung = x->rung->rung, row.idea = x->rung->idea;
            LT_TRY_DONE(lt_bench_took(b, &row.took, &t[i]));
        }
        row.peer_ms = vendor >= 0 && i != vendor ? t[vendor].ms : 0.0;
        if (b->sustained_s > 0.0 && (row.peer || x->rung == NULL)) {
            LT_TRY_DONE(lt_timing_sustained(b->gpu, b->stream, &t[i], N_SETS, b->sustained_s,
                                            &row.ms_sustained, &row.state));
        }
        lt_bench_row(b, &row);
    }
done:
    sets_close(b, sets);
    return err;
}

lt_err lt_bench_sgemm(lt_bench *b) {
    static const int shapes[][3] = {
        {4096, 4096, 4096}, {8192, 8192, 8192}, {1024, 1024, 1024}, {2048, 2048, 2048},
        {512, 512, 512},    {16384, 768, 768},  {4096, 2304, 768},  {4000, 4000, 4000},
        {4097, 4097, 4097}, {128, 4096, 4096},  {256, 4096, 4096},  {768, 768, 16384},
        {384, 3072, 768},   {640, 640, 640},    {3000, 3000, 3000}, {3072, 768, 1024}};
    LT_TRY(checks(b));
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && !b->check_only; i++) {
        LT_TRY(shape_time(b, shapes[i][0], shapes[i][1], shapes[i][2], b->ladder && i < 2));
    }
    return LT_OK;
}
