/* tune.c: `lateen tune gemm`: which kernel computes a product fastest.
 *
 * Each candidate runs as the op's list would run it (winners.h, force), recorded as in serving, on
 * sets of operands in turn that together are several times as large as the L2. After a quick round
 * of all, the best FINALISTS run interleaved, and the median decides. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/gemm/winners.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/random_args.h"
#include "kernels/cuda/timing.h"

#define MAX_SETS    24
#define MAX_TILES   112
#define TRIED_TILES 24 /* The best candidates by the estimate. */
#define FINALISTS   6
#define MAX_TRIED   (TRIED_TILES + LT_CUBLAS_PROPOSALS + 2)

typedef struct {
    lt_queue *q;
    const lt_matmul_args *sets;
    lt_gemm_winner as;
} candidate;

static lt_err queue_one(void *ctx, CUstream s, int set) {
    const candidate *c = ctx;
    lt_err err;
    (void)s; /* Timing uses the queue's stream. */
    lt_gemm_winner_force(&c->as);
    err = c->q->device->backend->ops->matmul(c->q, &c->sets[set]);
    lt_gemm_winner_force(NULL);
    return err;
}

/* Whether the list accepts the candidate as what it claims to be. */
static bool serves(const candidate *c) {
    const lt_op_impl *impl;
    lt_gemm_winner_force(&c->as);
    impl = lt_registry_choose(lt_registry_list(c->q->device->backend, LT_OP_matmul), &c->sets[0],
                              c->q->device, NULL, 0);
    lt_gemm_winner_force(NULL);
    return impl != NULL && strcmp(impl->name, lt_gemm_by_names[c->as.by]) == 0;
}

static int tile_compare(const void *a, const void *b) {
    const lt_gemm_winner *x = a, *y = b;
    return (x->us[LT_GEMM_BY_WGMMA] > y->us[LT_GEMM_BY_WGMMA]) -
           (x->us[LT_GEMM_BY_WGMMA] < y->us[LT_GEMM_BY_WGMMA]);
}

/* Candidates that are worth measuring; us is 1 for the kind that a candidate stands for. */
static int space_fill(candidate *out, lt_queue *q, const lt_matmul_args *sets) {
    const lt_cuda_info *info = lt_cuda_get_info(q->gpu);
    lt_gemm_tile tiles[MAX_TILES];
    lt_gemm_winner by_estimate[MAX_TILES], all[MAX_TRIED];
    lt_gemm_args g;
    int n = 0, n_tiles = 0, n_all = 0;

    if (lt_gemm_from_matmul(&g, &sets[0]) == NULL && lt_gemm_refusal(&g, info) == NULL) {
        n_tiles = lt_gemm_tile_all(tiles, MAX_TILES, &g, lt_gemm_scratch_bytes());
    }
    for (int i = 0; i < n_tiles; i++) {
        by_estimate[i] = (lt_gemm_winner){
            .by = LT_GEMM_BY_WGMMA,
            .tile = tiles[i],
            .us = {[LT_GEMM_BY_WGMMA] = lt_gemm_tile_us(&tiles[i], &g, info->n_sms)}};
    }
    qsort(by_estimate, (size_t)n_tiles, sizeof *by_estimate, tile_compare);
    for (int i = 0; i < n_tiles && i < TRIED_TILES; i++) {
        all[n_all++] = by_estimate[i];
    }
    for (int i = 1; i <= LT_CUBLAS_PROPOSALS; i++) {
        all[n_all++] = (lt_gemm_winner){
            .by = LT_GEMM_BY_CUBLASLT, .choice = i, .vendor = lt_cublas_version()};
    }
    all[n_all++] = (lt_gemm_winner){.by = LT_GEMM_BY_GEMV};
    all[n_all++] = (lt_gemm_winner){.by = LT_GEMM_BY_FEW};
    for (int i = 0; i < n_all; i++) {
        out[n] = (candidate){q, sets, all[i]};
        memset(out[n].as.us, 0, sizeof out[n].as.us);
        out[n].as.us[all[i].by] = 1.0;
        n += serves(&out[n]);
    }
    return n;
}

static int time_compare(const void *a, const void *b) {
    const double x = ((const lt_timing *)a)->err == LT_OK ? ((const lt_timing *)a)->ms : 1e30,
                 y = ((const lt_timing *)b)->err == LT_OK ? ((const lt_timing *)b)->ms : 1e30;
    return (x > y) - (x < y);
}

/* Keep the finalists, and the best of each kind: the record shows by how much the winner won. */
static int keep_best(lt_timing *t, int n) {
    bool seen[LT_GEMM_BY_COUNT] = {false};
    int kept = 0;
    qsort(t, (size_t)n, sizeof *t, time_compare);
    for (int i = 0; i < n && t[i].err == LT_OK; i++) {
        const lt_gemm_by by = ((const candidate *)t[i].ctx)->as.by;
        if (kept < FINALISTS || !seen[by]) {
            t[kept++] = t[i];
        }
        seen[by] = true;
    }
    return kept;
}

static lt_err race(candidate *all, int n, int n_sets, lt_gemm_winner *won) {
    lt_timing t[MAX_TRIED];
    lt_queue *q = all[0].q;

    for (int i = 0; i < n; i++) {
        t[i] = (lt_timing){.name = "", .queue = queue_one, .ctx = &all[i]};
    }
    LT_TRY(lt_timing_run(
        q->gpu, q->stream, t, n,
        &(lt_timing_plan){.n_sets = n_sets, .rounds = 3, .inner_ms = 0.3, .graph = true}));
    n = keep_best(t, n);
    if (n == 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "tune gemm: no kernel runs: %s", t[0].error);
    }
    LT_TRY(lt_timing_run(
        q->gpu, q->stream, t, n,
        &(lt_timing_plan){.n_sets = n_sets, .rounds = 15, .inner_ms = 0.5, .graph = true}));
    qsort(t, (size_t)n, sizeof *t, time_compare);
    *won = ((const candidate *)t[0].ctx)->as;
    memset(won->us, 0, sizeof won->us);
    for (int i = n - 1; i >= 0; i--) {
        const candidate *c = t[i].ctx;
        if (t[i].err == LT_OK) {
            won->us[c->as.by] = t[i].ms * 1e3;
            won->tile = c->as.by == LT_GEMM_BY_WGMMA ? c->as.tile : won->tile;
        }
    }
    return LT_OK;
}

static lt_err fill(lt_queue *q, void *x, int64_t n, uint64_t seed) {
    const lt_cuda_kernel *k;
    float scale = 1.0f;
    lt_cuda_random_fill_args call = {.x = x, .n = n, .seed = seed, .scale = scale};
    void *args[] = {&call};
    LT_TRY(lt_cuda_kernel_get(q->gpu, &k, "random.cu", "random_fill", "DTYPE=bf16 MODE=0"));
    return lt_cuda_launch(q->gpu, q->stream, k, &(lt_cuda_dims){.grid = {512}, .block = {256}},
                          args);
}

static lt_tensor matrix(void *data, lt_dtype dtype, int64_t rows, int64_t cols) {
    return (lt_tensor){
        .data = data, .dtype = dtype, .n_dims = 2, .shape = {rows, cols}, .stride = {cols, 1}};
}

/* Operands adjacent in memory (one allocation per set, in *block). */
static lt_err set_open(lt_queue *q, lt_matmul_args *a, void **block, const lt_gemm_product *p,
                       uint64_t seed) {
    const size_t a_bytes = (size_t)(p->m * p->k) * 2, b_bytes = (size_t)(p->n * p->k) * 2,
                 y_bytes = (size_t)(p->m * p->n) * (p->f32 ? 4 : 2);
    const size_t b_at = LT_CUDA_DIV_UP(a_bytes, 256) * 256,
                 y_at = b_at + LT_CUDA_DIV_UP(b_bytes, 256) * 256,
                 bias_at = y_at + LT_CUDA_DIV_UP(y_bytes, 256) * 256;
    char *at;

    LT_TRY(lt_cuda_alloc(q->gpu, block, bias_at + (size_t)p->n * 2, "tuner: operands"));
    at = *block;
    LT_TRY(lt_cuda_fill(q->gpu, q->stream, at, 0, bias_at + (size_t)p->n * 2));
    LT_TRY(fill(q, at, p->m * p->k, seed));
    LT_TRY(fill(q, at + b_at, p->n * p->k, seed + 1));
    *a = (lt_matmul_args){
        .y = matrix(at + y_at, p->f32 ? LT_F32 : LT_BF16, p->m, p->n),
        .a = matrix(at, LT_BF16, p->trans_a ? p->k : p->m, p->trans_a ? p->m : p->k),
        .b = matrix(at + b_at, LT_BF16, p->trans_b ? p->n : p->k, p->trans_b ? p->k : p->n),
        .trans_a = p->trans_a,
        .trans_b = p->trans_b,
        .accumulate = p->accumulate};
    if (p->bias) {
        a->bias = (lt_tensor){
            .data = at + bias_at, .dtype = LT_BF16, .n_dims = 1, .shape = {p->n}, .stride = {1}};
    }
    return LT_OK;
}

static int sets_of(const lt_queue *q, const lt_gemm_product *p) {
    const int64_t bytes = (p->m * p->k + p->n * p->k + p->m * p->n) * 2,
                  wanted = 4 * (int64_t)lt_cuda_get_info(q->gpu)->l2_bytes / bytes + 1;
    return wanted < 2 ? 2 : wanted > MAX_SETS ? MAX_SETS : (int)wanted;
}

static void print_winner(FILE *to, const lt_gemm_product *p, const lt_gemm_winner *w) {
    const double flops = 2.0 * (double)p->m * (double)p->n * (double)p->k;
    fprintf(to, "%7lld %7lld %7lld %c%c %s%s%s  %-8s %8.1f us %6.0f TFLOP/s ", (long long)p->m,
            (long long)p->n, (long long)p->k, p->trans_a ? 't' : 'n', p->trans_b ? 't' : 'n',
            p->f32 ? "fp32" : "bf16", p->accumulate ? " +=" : "   ", p->bias ? " bias" : "     ",
            lt_gemm_by_names[w->by], w->us[w->by], flops / w->us[w->by] / 1e6);
    for (int i = 0; i < LT_GEMM_BY_COUNT; i++) {
        if (i != (int)w->by && w->us[i] > 0.0) {
            fprintf(to, "  %s %.2f x its time", lt_gemm_by_names[i], w->us[i] / w->us[w->by]);
        }
    }
    fprintf(to, "\n");
    fflush(to);
}

lt_err lt_gemm_tune(FILE *to, lt_device *device, const lt_gemm_product *p) {
    lt_err err = LT_OK;
    lt_queue *q = NULL;
    lt_matmul_args sets[MAX_SETS];
    void *blocks[MAX_SETS] = {NULL};
    candidate all[MAX_TRIED];
    lt_gemm_winner won;
    lt_gemm_args g;
    int n, n_sets = 2;

    if (p->m < 1 || p->n < 1 || p->k < 1) {
        LT_FAIL(LT_ERR_ARG, "tune gemm: a product of %lld x %lld x %lld", (long long)p->m,
                (long long)p->n, (long long)p->k);
    }
    LT_TRY(device->backend->queue_open(device, &q));
    n_sets = sets_of(q, p);
    for (int i = 0; i < n_sets; i++) {
        LT_TRY_DONE(set_open(q, &sets[i], &blocks[i], p, (uint64_t)(10 * i + 1)));
    }
    n = space_fill(all, q, sets);
    if (n == 0) {
        LT_FAIL_DONE(LT_ERR_UNSUPPORTED,
                     "tune gemm: %lld x %lld x %lld: neither cuBLASLt nor our tiles serve it here",
                     (long long)p->m, (long long)p->n, (long long)p->k);
    }
    LT_TRY_DONE(race(all, n, n_sets, &won));
    LT_ASSERT(lt_gemm_from_matmul(&g, &sets[0]) == NULL);
    LT_TRY_DONE(lt_gemm_winner_keep(lt_cuda_get_info(q->gpu), &g, &won));
    print_winner(to, p, &won);
done:
    for (int i = 0; i < n_sets; i++) {
        lt_cuda_free(q->gpu, blocks[i]);
    }
    device->backend->queue_close(q);
    return err;
}
