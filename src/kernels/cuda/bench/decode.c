/* bench/decode.c: attention of one new token a sequence over a paged key/value cache, as the op
 * table runs it: at which share of the copy bandwidth keys and values are read. optest checks that
 * results are right (attention_paged). Every sequence has separate pages, scattered over the
 * pool, or all share those of a prefix, which are then timed with packs and without. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "kernels/cuda/bench/bench.h"
#include "kernels/cuda/ops/launch.h"
#include "tensor/cached.h"
#include "tensor/ops.h"

typedef struct {
    int64_t batch, context, heads, kv_heads, width, page;
    lt_dtype cache; /* Of keys and values: BF16, or a type of tensor/cached.h. */
    int64_t shared; /* Length of the prefix that all sequences share. */
} decode_case;

typedef struct {
    const lt_backend *be;
    lt_queue *q;
    lt_attention_paged_args a;
    lt_tensor packs; /* Where sequences share a prefix; a has them or not. */
    void *owned[8];
    int n_owned;
} decode_run;

static lt_err queue(void *p, CUstream s, int set) {
    decode_run *r = p;
    (void)s;
    (void)set;
    return r->be->ops->attention_paged(r->q, &r->a);
}

static lt_err room(decode_run *r, void **out, size_t bytes) {
    LT_TRY(r->be->alloc(r->q->device, out, bytes, "decode bench"));
    r->owned[r->n_owned++] = *out;
    return LT_OK;
}

/* Page i of sequence b: sequences share no page of the pool. */
static int32_t page_of(int64_t i, int64_t n_pages) {
    return (int32_t)(i * 7919 % n_pages);
}

static lt_err metadata(decode_run *r, const decode_case *c, int64_t a_sequence, int64_t n_pages) {
    lt_err err = LT_OK;
    const int64_t n = c->batch * a_sequence + 5 * c->batch + 1;
    int32_t *host = malloc((size_t)n * 4);
    void *table = NULL;
    if (host == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "decode bench");
    }
    for (int64_t i = 0; i < c->batch * a_sequence; i++) {
        const int64_t page = i % a_sequence;
        host[i] = page_of(page < c->shared / c->page ? page : i, n_pages);
    }
    for (int64_t b = 0; b < c->batch; b++) {
        host[c->batch * a_sequence + b] = (int32_t)c->context;
    }
    for (int64_t b = 0; b <= c->batch; b++) {
        host[c->batch * a_sequence + c->batch + b] = (int32_t)b;
    }
    for (int64_t b = 0; b < c->batch; b++) {
        int32_t *pack = host + c->batch * a_sequence + 2 * c->batch + 1 + 3 * b;
        pack[0] = 0, pack[1] = (int32_t)c->batch, pack[2] = (int32_t)c->shared;
    }
    LT_TRY_DONE(room(r, &table, (size_t)n * 4));
    LT_TRY_DONE(r->be->upload(r->q, table, host, (size_t)n * 4));
    LT_TRY_DONE(r->be->sync(r->q));
    r->a.table = lt_tensor_2d(table, LT_I32, c->batch, a_sequence);
    r->a.kv_len = lt_tensor_1d((int32_t *)table + c->batch * a_sequence, LT_I32, c->batch);
    r->a.q_start = lt_tensor_1d((int32_t *)table + c->batch * a_sequence + c->batch, LT_I32,
                                c->batch + 1);
    r->packs = lt_tensor_2d((int32_t *)table + c->batch * a_sequence + 2 * c->batch + 1, LT_I32,
                            c->batch, 3);
done:
    free(host);
    return err;
}

/* Random numbers of [-2, 2), whole blocks of every type. */
enum { PIECE = 1 << 18 };

static lt_err fill_coded(decode_run *r, unsigned char *to, int64_t count, lt_dtype cache,
                         float *x) {
    const size_t bytes = lt_dtype_row_bytes(cache, PIECE);
    unsigned char *const codes = (unsigned char *)(x + PIECE);
    uint64_t state = 1;
    for (int i = 0; i < PIECE; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(state >> 40) / (float)(1 << 22) - 2.0f;
    }
    lt_cached_encode(codes, cache, x, PIECE);
    for (int64_t done = 0; done < count; done += PIECE) {
        const int64_t n = count - done < PIECE ? count - done : PIECE;
        LT_TRY(r->be->upload(r->q, to + (size_t)(done / PIECE) * bytes, codes,
                             lt_dtype_row_bytes(cache, n)));
    }
    return r->be->sync(r->q);
}
static lt_err fill_pages(decode_run *r, lt_bench *b, void *pages, int64_t count, lt_dtype cache,
                         uint64_t seed) {
    float *room;
    lt_err err;
    if (cache == LT_BF16) {
        return lt_bench_random(b, pages, count, "bf16", seed, 1.0f, false);
    }
    room = malloc(PIECE * sizeof *room + lt_dtype_row_bytes(cache, PIECE));
    if (room == NULL) {
        LT_FAIL(LT_ERR_OOM, "decode bench");
    }
    err = fill_coded(r, pages, count, cache, room);
    free(room);
    return err;
}

static lt_err decode_open(decode_run *r, lt_bench *b, const decode_case *c) {
    const int64_t a_sequence = (c->context + c->page - 1) / c->page;
    int64_t n_pages = c->batch * a_sequence;
    const int64_t row = c->page * c->kv_heads * c->width;
    void *q = NULL, *out = NULL, *k = NULL, *v = NULL;
    n_pages += n_pages % 7919 == 0;
    LT_TRY(room(r, &q, (size_t)(c->batch * c->heads * c->width) * 2));
    LT_TRY(room(r, &out, (size_t)(c->batch * c->heads * c->width) * 2));
    LT_TRY(room(r, &k, lt_dtype_row_bytes(c->cache, n_pages * row)));
    LT_TRY(room(r, &v, lt_dtype_row_bytes(c->cache, n_pages * row)));
    LT_TRY(lt_bench_random(b, q, c->batch * c->heads * c->width, "bf16", 1, 1.0f, false));
    LT_TRY(fill_pages(r, b, k, n_pages * row, c->cache, 2));
    LT_TRY(fill_pages(r, b, v, n_pages * row, c->cache, 3));
    LT_TRY(lt_cuda_sync(b->gpu, b->stream));
    r->a.q = lt_tensor_3d(q, LT_BF16, c->batch, c->heads, c->width);
    r->a.out = lt_tensor_3d(out, LT_BF16, c->batch, c->heads, c->width);
    r->a.k_pages = lt_tensor_4d(k, c->cache, n_pages, c->page, c->kv_heads, c->width);
    r->a.v_pages = lt_tensor_4d(v, c->cache, n_pages, c->page, c->kv_heads, c->width);
    r->a.scale = 1.0f / sqrtf((float)c->width);
    r->a.q_max = 1;
    r->a.kv_max = c->context;
    return metadata(r, c, a_sequence, n_pages);
}

static void shape_text(char *out, size_t bytes, const decode_case *c) {
    const int n = snprintf(out, bytes, "b%lld keys %lld h%lld/%lld d%lld pages of %lld, %s",
                           (long long)c->batch, (long long)c->context, (long long)c->heads,
                           (long long)c->kv_heads, (long long)c->width, (long long)c->page,
                           lt_dtype_name(c->cache));
    if (c->shared > 0) {
        snprintf(out + n, bytes - (size_t)n, ", %lld shared", (long long)c->shared);
    }
}

/* The bytes of the keys and values of all sequences are counted, also of those that they share. */
static lt_err decode_one(lt_bench *b, const lt_backend *be, lt_queue *q, const decode_case *c,
                         const char *shape) {
    lt_err err = LT_OK;
    decode_run r[2] = {{.be = be, .q = q}};
    lt_timing runs[2] = {{.name = "attention_paged", .queue = queue, .ctx = &r[0]},
                         {.name = "attention_paged, packs", .queue = queue, .ctx = &r[1]}};
    const int n = c->shared > 0 ? 2 : 1;
    LT_TRY_DONE(decode_open(&r[0], b, c));
    r[1] = r[0];
    r[1].a.packs = r[1].packs;
    LT_TRY_DONE(
        lt_timing_run(q->gpu, q->stream, runs, n,
                      &(lt_timing_plan){.n_sets = 1, .rounds = b->rounds, .inner_ms = 0.3}));
    for (int i = 0; i < n; i++) {
        if (runs[i].err != LT_OK) {
            lt_bench_check(b, "decode", shape, false, "%s", runs[i].error);
            continue;
        }
        lt_bench_row(b, &(lt_bench_result){.op = "decode",
                                           .name = runs[i].name,
                                           .shape = shape,
                                           .ms = runs[i].ms,
                                           .ms_best = runs[i].ms_best,
                                           .bytes = 2.0 * (double)lt_dtype_row_bytes(
                                                              c->cache, c->batch * c->context *
                                                                            c->kv_heads * c->width),
                                           .limit = b->copy_gbps * 1e9});
    }
done:
    for (int i = 0; i < r[0].n_owned; i++) {
        be->release(q->device, r[0].owned[i], 0);
    }
    return err;
}

lt_err lt_bench_decode(lt_bench *b) {
    static const decode_case cases[] = {
        {1, 16384, 32, 8, 128, 16, LT_BF16, 0},    {1, 131072, 32, 8, 128, 64, LT_BF16, 0},
        {16, 4096, 32, 8, 128, 16, LT_BF16, 0},    {16, 4096, 32, 8, 128, 64, LT_BF16, 0},
        {16, 4096, 32, 8, 128, 128, LT_BF16, 0},   {16, 16384, 32, 8, 128, 16, LT_BF16, 0},
        {16, 16384, 32, 8, 64, 16, LT_BF16, 0},    {64, 4096, 32, 8, 64, 16, LT_BF16, 0},
        {64, 4096, 32, 8, 128, 16, LT_BF16, 0},    {64, 8192, 16, 16, 128, 64, LT_BF16, 0},
        {16, 32768, 64, 8, 128, 128, LT_BF16, 0},  {1, 131072, 32, 8, 128, 64, LT_F8_E4M3, 0},
        {16, 4096, 32, 8, 128, 16, LT_F8_E4M3, 0}, {16, 16384, 32, 8, 64, 16, LT_F8_E4M3, 0},
        {64, 4096, 32, 8, 128, 16, LT_F8_E4M3, 0}, {16, 32768, 64, 8, 128, 128, LT_F8_E4M3, 0},
        {1, 131072, 32, 8, 128, 64, LT_Q8_0, 0},   {16, 4096, 32, 8, 128, 16, LT_Q8_0, 0},
        {16, 16384, 32, 8, 64, 16, LT_Q8_0, 0},    {64, 4096, 32, 8, 128, 16, LT_Q8_0, 0},
        {1, 131072, 32, 8, 128, 64, LT_Q4_0, 0},   {16, 4096, 32, 8, 128, 16, LT_Q4_0, 0},
        {16, 16384, 32, 8, 64, 16, LT_Q4_0, 0},    {64, 4096, 32, 8, 128, 16, LT_Q4_0, 0},
        {1024, 512, 32, 8, 64, 16, LT_BF16, 256},  {1024, 768, 32, 8, 64, 16, LT_BF16, 256},
        {64, 2304, 32, 8, 64, 16, LT_BF16, 2048},  {64, 2304, 32, 8, 128, 16, LT_BF16, 2048},
        {64, 768, 32, 8, 128, 16, LT_BF16, 256},   {64, 768, 32, 8, 128, 16, LT_BF16, 512},
        {16, 4096, 32, 8, 128, 16, LT_BF16, 3072}, {256, 4096, 32, 8, 128, 16, LT_BF16, 3840},
        {8, 1280, 32, 8, 64, 16, LT_BF16, 1024},   {16, 1280, 32, 8, 64, 16, LT_BF16, 1024},
        {32, 1280, 32, 8, 64, 16, LT_BF16, 1024},  {128, 1280, 32, 8, 64, 16, LT_BF16, 1024}};
    const lt_backend *be = b->device->backend;
    lt_queue *q = NULL;
    LT_TRY(be->queue_open(b->device, &q));
    for (size_t i = 0; i < sizeof cases / sizeof *cases && !b->check_only; i++) {
        char shape[96];
        shape_text(shape, sizeof shape, &cases[i]);
        if (!lt_bench_skips(b, shape)) {
            lt_bench_failed(b, "decode", shape, decode_one(b, be, q, &cases[i], shape));
        }
    }
    be->queue_close(q);
    return LT_OK;
}
