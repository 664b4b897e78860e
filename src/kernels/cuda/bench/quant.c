/* bench/quant.c: products with quantised weights in Llama-1B's shapes, as the op table runs them:
 * at which share of the copy bandwidth the packed weights are read, and how much faster the product
 * is than with BF16 weights (the peer). A unit test checks the results (test_cuda_quant).
 *
 * RUNS products with different copies of the weights, together larger than the L2, are one graph,
 * as in a decoding step. Otherwise the host's part of a launch would count, which takes longer than
 * most of these products. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/bench/bench.h"
#include "kernels/cuda/ops/launch.h"
#include "tensor/ops.h"

#define RUNS      48
#define SET_BYTES ((size_t)256 << 20) /* Bytes of all copies together: five times an H100's L2. */
#define MAX_SETS  RUNS

typedef struct {
    const char *name;
    int64_t n, k;
} weight_shape;

/* One kind of weights: LT_BF16 or blocks. */
typedef struct {
    const lt_backend *be;
    lt_queue *q;
    lt_graph *graph;
    lt_matmul_args a;
    unsigned char *weights;
    size_t bytes; /* Bytes of a copy. */
    int n_sets;
} product;

static lt_err run_set(product *p, int set) {
    unsigned char *w = p->weights + (size_t)set * p->bytes;
    if (p->a.b.dtype == LT_BF16) {
        p->a.b.data = w;
    } else {
        p->a.b_packed = w;
    }
    return p->be->ops->matmul(p->q, &p->a);
}

static lt_err queue_graph(void *ctx, CUstream s, int set) {
    product *p = ctx;
    (void)s;
    (void)set;
    return p->be->graph_launch(p->q, p->graph);
}

/* Run it once, so that kernels are compiled and scratch has grown; then record it. */
static lt_err record(product *p) {
    lt_err err = LT_OK, ended;
    LT_TRY(run_set(p, 0));
    LT_TRY(p->be->sync(p->q));
    LT_TRY(p->be->graph_begin(p->q));
    for (int i = 0; i < RUNS && err == LT_OK; i++) {
        err = run_set(p, i % p->n_sets);
    }
    ended = p->be->graph_end(p->q, &p->graph);
    return err != LT_OK ? err : ended;
}

static lt_err product_open(product *p, lt_bench *b, const weight_shape *shape, lt_dtype type,
                           void *x, void *y, int64_t m) {
    const lt_tensor w = lt_tensor_2d(NULL, type, shape->n, shape->k);
    size_t sets;
    p->bytes = type == LT_BF16 ? (size_t)(2 * shape->n * shape->k)
                               : p->be->matmul_pack_bytes(p->q->device, &w, true);
    sets = SET_BYTES / p->bytes + 1;
    p->n_sets = sets > MAX_SETS ? MAX_SETS : (int)sets;
    p->a = (lt_matmul_args){.y = lt_tensor_2d(y, LT_BF16, m, shape->n),
                            .a = lt_tensor_2d(x, LT_BF16, m, shape->k),
                            .b = w,
                            .trans_b = true};
    LT_TRY(p->be->alloc(p->q->device, (void **)&p->weights, (size_t)p->n_sets * p->bytes,
                        "quantised bench"));
    /* Any bits will do for numbers; these are also finite scales. */
    LT_TRY(lt_bench_random(b, p->weights, (int64_t)((size_t)p->n_sets * p->bytes / 2), "bf16", 3,
                           1.0f, false));
    LT_TRY(lt_cuda_sync(b->gpu, b->stream));
    return record(p);
}

static void product_close(product *p) {
    p->be->graph_close(p->q->device, p->graph);
    if (p->weights != NULL) {
        p->be->release(p->q->device, p->weights, 0);
    }
}

static lt_err quant_one(lt_bench *b, const lt_backend *be, lt_queue *q, const weight_shape *shape,
                        lt_dtype type, int64_t m, const char *text) {
    lt_err err = LT_OK;
    product blocks = {.be = be, .q = q}, plain = {.be = be, .q = q};
    lt_timing t[2] = {{.name = "blocks", .queue = queue_graph, .ctx = &blocks},
                      {.name = "bf16", .queue = queue_graph, .ctx = &plain}};
    void *x = NULL, *y = NULL;

    LT_TRY_DONE(be->alloc(q->device, &x, (size_t)(m * shape->k) * 2, "quantised bench"));
    LT_TRY_DONE(be->alloc(q->device, &y, (size_t)(m * shape->n) * 2, "quantised bench"));
    LT_TRY_DONE(lt_bench_random(b, x, m * shape->k, "bf16", 1, 1.0f, false));
    LT_TRY_DONE(product_open(&blocks, b, shape, type, x, y, m));
    LT_TRY_DONE(product_open(&plain, b, shape, LT_BF16, x, y, m));
    LT_TRY_DONE(
        lt_timing_run(q->gpu, q->stream, t, 2,
                      &(lt_timing_plan){.n_sets = 1, .rounds = b->rounds, .inner_ms = 0.3}));
    for (int i = 0; i < 2; i++) {
        if (t[i].err != LT_OK) {
            LT_FAIL_DONE(t[i].err, "%s", t[i].error);
        }
    }
    lt_bench_row(b, &(lt_bench_result){.op = "quant",
                                       .name = lt_dtype_name(type),
                                       .shape = text,
                                       .ms = t[0].ms / RUNS,
                                       .ms_best = t[0].ms_best / RUNS,
                                       .bytes = (double)blocks.bytes,
                                       .limit = b->copy_gbps * 1e9,
                                       .peer_ms = t[1].ms / RUNS});
done:
    product_close(&blocks);
    product_close(&plain);
    be->release(q->device, x, 0);
    be->release(q->device, y, 0);
    return err;
}

lt_err lt_bench_quant(lt_bench *b) {
    static const weight_shape shapes[] = {{"qkv", 3072, 2048},
                                          {"out", 2048, 2048},
                                          {"up", 16384, 2048},
                                          {"down", 2048, 8192},
                                          {"head", 128256, 2048}};
    static const lt_dtype types[] = {LT_Q8_0, LT_Q4_0, LT_Q4_K, LT_Q6_K, LT_Q5_0};
    static const int64_t rows[] = {1, 8, 16, 32, 64, 128, 256};
    enum { N_EVERY = 2 }; /* Types that are timed with every number of rows; the others with one. */
    const lt_backend *be = b->device->backend;
    lt_queue *q = NULL;
    LT_TRY(be->queue_open(b->device, &q));
    for (size_t i = 0; i < sizeof types / sizeof *types && !b->check_only; i++) {
        for (size_t r = 0; r < (i < N_EVERY ? sizeof rows / sizeof *rows : 1); r++) {
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
                char text[96];
                snprintf(text, sizeof text, "%s %lldx%lldx%lld", shapes[s].name, (long long)rows[r],
                         (long long)shapes[s].n, (long long)shapes[s].k);
                if (!lt_bench_skips(b, text)) {
                    lt_bench_failed(b, "quant", text,
                                    quant_one(b, be, q, &shapes[s], types[i], rows[r], text));
                }
            }
        }
    }
    be->queue_close(q);
    return LT_OK;
}
