/* bench/attention.c: Ladder 3: attention forward and backward, checked against the naive kernel in
 * double on the GPU's own inputs (odd shapes, every mask, poisoned outputs, repeats bit-identical),
 * then timed on the grid of FlashAttention's papers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/attention/attention_private.h"
#include "kernels/cuda/attention/ladder/naive_args.h"
#include "kernels/cuda/bench/bench.h"
#include "kernels/cuda/specs.h"

/* Constants of the oracle, attention/ladder/01_naive.cu in double. */
#define ORACLE_WORDS "REAL=double CAUSAL=%d WINDOW=%d DOC=%d SOFTCAP=%d ALIBI=%d SINKS=%d"

#define REPEATS 100
/* |O - ref| / |ref| in norm: P and O each rounded to bf16 (2^-9, uniform), as PyTorch's. */
#define FWD_BOUND 3.2e-3
#define BWD_BOUND 5e-3 /* P, dS and the result rounded, delta from a rounded O. */
#define LSE_BOUND 1e-4
#define N_ARRAYS  8

/* B, T, S, H, G, D; then flags. */
typedef struct {
    int b, t, s, h, g, d;
    bool causal;
    int window;
    float softcap;
    bool alibi, sinks, lens, docs;
} attn_case;
static const attn_case cases[] = {
    {.b = 2, .t = 300, .s = 300, .h = 4, .g = 4, .d = 128},
    {.b = 1, .t = 515, .s = 515, .h = 4, .g = 2, .d = 128, .causal = true},
    {.b = 2, .t = 333, .s = 500, .h = 6, .g = 2, .d = 64, .causal = true},
    {.b = 1, .t = 500, .s = 333, .h = 2, .g = 2, .d = 64, .causal = true},
    {.b = 3, .t = 1, .s = 777, .h = 8, .g = 2, .d = 128, .causal = true},
    {.b = 1, .t = 257, .s = 400, .h = 2, .g = 2, .d = 96},
    {.b = 1, .t = 400, .s = 400, .h = 2, .g = 1, .d = 128, .causal = true, .window = 100},
    {.b = 1, .t = 300, .s = 300, .h = 2, .g = 2, .d = 64, .causal = true, .softcap = 20.0f},
    {.b = 1, .t = 300, .s = 300, .h = 2, .g = 2, .d = 128, .causal = true, .alibi = true},
    {.b = 3,
     .t = 200,
     .s = 300,
     .h = 2,
     .g = 2,
     .d = 64,
     .causal = true,
     .sinks = true,
     .lens = true},
    {.b = 2, .t = 300, .s = 300, .h = 2, .g = 2, .d = 128, .causal = true, .docs = true},
    {.b = 20,
     .t = 200,
     .s = 333,
     .h = 30,
     .g = 15,
     .d = 64,
     .causal = true}, /* More heads than SMs. */
    {.b = 1, .t = 1100, .s = 1100, .h = 4, .g = 2, .d = 64, .causal = true},
    {.b = 2, .t = 700, .s = 900, .h = 2, .g = 1, .d = 64},
    {.b = 1, .t = 900, .s = 900, .h = 2, .g = 2, .d = 64, .causal = true, .window = 100},
    {.b = 2, .t = 600, .s = 600, .h = 2, .g = 2, .d = 64, .causal = true, .docs = true},
    {.b = 1, .t = 1100, .s = 1100, .h = 4, .g = 2, .d = 128, .causal = true},
    {.b = 8,
     .t = 700,
     .s = 900,
     .h = 40,
     .g = 20,
     .d = 128,
     .lens = true}, /* Clusters with several tiles. */
    {.b = 1, .t = 300, .s = 300, .h = 2, .g = 2, .d = 256, .causal = true},
    {.b = 1, .t = 300, .s = 300, .h = 2, .g = 2, .d = 192},
    {.b = 2, .t = 515, .s = 700, .h = 4, .g = 2, .d = 256, .causal = true},
    {.b = 3, .t = 500, .s = 1030, .h = 2, .g = 1, .d = 256, .lens = true},
    {.b = 9, .t = 1000, .s = 777, .h = 4, .g = 2, .d = 128, .softcap = 20.0f},
    {.b = 2, .t = 500, .s = 777, .h = 20, .g = 20, .d = 256, .causal = true},
    {.b = 1,
     .t = 3072,
     .s = 2100,
     .h = 6,
     .g = 2,
     .d = 256,
     .causal = true}, /* Clusters with more tiles than run at once; the last 18 see no key. */
};

/* Ways to divide a backward pass. The way that a call chooses needs no more scratch than one of
 * them. */
static const lt_attention_cut cuts[] = {
    {.places = 1 << 20}, {.places = 2}, {.places = 1}, {.apart = true}};
#define FIRST_CUT(d) ((d) > 128 ? 3 : 0) /* Wider heads have only the last one. */

typedef struct {
    lt_bench *b;
    lt_attention_bwd_args a;
    lt_scratch scratch;
    void *owned[24];
    int n_owned;
    bool backward;
    bool sm80; /* The kernels on mma.sync instead of Hopper's. */
    lt_attention_cut cut;
    const lt_attention_rung *rung; /* NULL: the shipped kernel. */
} attn_run;

static lt_err room(attn_run *r, void **out, size_t bytes) {
    LT_ASSERT(r->n_owned < (int)(sizeof r->owned / sizeof *r->owned));
    LT_TRY(lt_cuda_alloc(r->b->gpu, out, bytes, "attention bench"));
    r->owned[r->n_owned++] = *out;
    return LT_OK;
}
static void run_close(attn_run *r) {
    for (int i = 0; i < r->n_owned; i++) {
        lt_cuda_free(r->b->gpu, r->owned[i]);
    }
}
static lt_err tensor(attn_run *r, lt_tensor *t, int b, int n, int h, int d, uint64_t seed) {
    void *p = NULL;
    LT_TRY(room(r, &p, (size_t)b * (size_t)n * (size_t)h * (size_t)d * 2));
    if (seed > 0) {
        LT_TRY(lt_bench_random(r->b, p, (int64_t)b * n * h * d, "bf16", seed, 1.0f, false));
    }
    *t = lt_tensor_4d(p, LT_BF16, b, n, h, d);
    return LT_OK;
}

/* Upload the lengths, document starts, slopes and sinks of a case. */
static lt_err extras(attn_run *r, const attn_case *t) {
    float *x = malloc((size_t)t->h * 4);
    int *n = malloc((size_t)(t->b * t->t) * 4);
    lt_err err = LT_OK;
    void *p = NULL;
    if (x == NULL || n == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "bench");
    }
    for (int h = 0; h < t->h; h++) {
        x[h] = 0.25f * (float)(h + 1);
    }
    if (t->alibi || t->sinks) {
        LT_TRY_DONE(room(r, &p, (size_t)t->h * 4));
        LT_TRY_DONE(lt_cuda_upload(r->b->gpu, r->b->stream, p, x, (size_t)t->h * 4));
        *(t->alibi ? &r->a.fwd.alibi : &r->a.fwd.sinks) = lt_tensor_1d(p, LT_F32, t->h);
    }
    if (t->lens) {
        for (int b = 0; b < t->b; b++) {
            n[b] = b == 0 ? t->s : (b == 1 ? t->s / 2 : 7);
        }
        LT_TRY_DONE(room(r, &p, (size_t)t->b * 4));
        LT_TRY_DONE(lt_cuda_upload(r->b->gpu, r->b->stream, p, n, (size_t)t->b * 4));
        r->a.fwd.kv_len = lt_tensor_1d(p, LT_I32, t->b);
    }
    if (t->docs) {
        for (int i = 0; i < t->b * t->t; i++) {
            n[i] = i % t->t < 130 ? 0 : (i % t->t < 190 ? 130 : 190);
        }
        LT_TRY_DONE(room(r, &p, (size_t)(t->b * t->t) * 4));
        LT_TRY_DONE(lt_cuda_upload(r->b->gpu, r->b->stream, p, n, (size_t)(t->b * t->t) * 4));
        r->a.fwd.doc_start = lt_tensor_2d(p, LT_I32, t->b, t->t);
    }
    LT_TRY_DONE(lt_cuda_sync(r->b->gpu, r->b->stream)); /* The host arrays are about to be freed. */
done:
    free(x);
    free(n);
    return err;
}

static lt_err run_open(attn_run *r, lt_bench *b, const attn_case *t) {
    void *lse = NULL, *delta = NULL, *scratch = NULL;
    lt_attention_args *f = &r->a.fwd;
    *r = (attn_run){.b = b};
    LT_TRY(tensor(r, &f->q, t->b, t->t, t->h, t->d, 1));
    LT_TRY(tensor(r, &f->k, t->b, t->s, t->g, t->d, 2));
    LT_TRY(tensor(r, &f->v, t->b, t->s, t->g, t->d, 3));
    LT_TRY(tensor(r, &r->a.dout, t->b, t->t, t->h, t->d, 4));
    LT_TRY(tensor(r, &f->out, t->b, t->t, t->h, t->d, 0));
    LT_TRY(tensor(r, &r->a.dq, t->b, t->t, t->h, t->d, 0));
    LT_TRY(tensor(r, &r->a.dk, t->b, t->s, t->g, t->d, 0));
    LT_TRY(tensor(r, &r->a.dv, t->b, t->s, t->g, t->d, 0));
    LT_TRY(room(r, &lse, (size_t)(t->b * t->h * t->t) * 4));
    LT_TRY(room(r, &delta, (size_t)(t->b * t->h * t->t) * 4));
    f->lse = lt_tensor_3d(lse, LT_F32, t->b, t->h, t->t);
    r->a.delta = lt_tensor_3d(delta, LT_F32, t->b, t->h, t->t);
    f->scale = 1.0f / sqrtf((float)t->d);
    f->causal = t->causal, f->window = t->window, f->softcap = t->softcap;
    LT_TRY(extras(r, t));
    r->cut = lt_cuda_attention_bwd_cut(&r->a, lt_cuda_get_info(b->gpu));
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        const size_t bytes = lt_cuda_attention_bwd_scratch_bytes(&r->a, cuts[i]);
        r->scratch.bytes = bytes > r->scratch.bytes ? bytes : r->scratch.bytes;
    }
    LT_TRY(room(r, &scratch, r->scratch.bytes));
    r->scratch.data = scratch;
    return lt_cuda_fill(b->gpu, b->stream, scratch, 0, 256);
}

/* out, lse, dq, dk, dv of the naive kernel in double. */
static lt_err naive(attn_run *r, const attn_case *t, void *exact[5]) {
    const lt_cuda_kernel *fwd, *bwd;
    lt_attention_args *f = &r->a.fwd;
    char text[256];
    const lt_attn_args w = lt_attn_args_of(f, (lt_scratch){.bytes = 0});
    lt_attn_naive_fwd_args of_fwd = {.a = w,
                                     .exact = exact[0],
                                     .lse = exact[1],
                                     .q = f->q.data,
                                     .k = f->k.data,
                                     .v = f->v.data,
                                     .width = t->d};
    lt_attn_naive_bwd_args of_bwd = {.a = w,
                                     .dq = exact[2],
                                     .dk = exact[3],
                                     .dv = exact[4],
                                     .o = exact[0],
                                     .lse = exact[1],
                                     .q = f->q.data,
                                     .k = f->k.data,
                                     .v = f->v.data,
                                     .d_o = r->a.dout.data,
                                     .width = t->d};
    void *fwd_args[] = {&of_fwd}, *bwd_args[] = {&of_bwd};
    const lt_cuda_dims dims = {
        .grid = {(unsigned)t->t, (unsigned)t->h, (unsigned)t->b},
        .block = {128},
        .dynamic_shared_bytes = LT_ATTN_NAIVE_BYTES((size_t)t->s, sizeof(double))};
    const size_t kv_bytes = (size_t)t->b * (size_t)t->s * (size_t)t->g * (size_t)t->d * 8;

    snprintf(text, sizeof text, ORACLE_WORDS, t->causal, t->window > 0, t->docs, t->softcap > 0.0f,
             t->alibi, t->sinks);
    LT_TRY(lt_cuda_kernel_get(r->b->gpu, &fwd, "attention/ladder/01_naive.cu", "attn_naive_fwd",
                              text));
    LT_TRY(lt_cuda_kernel_get(r->b->gpu, &bwd, "attention/ladder/01_naive.cu", "attn_naive_bwd",
                              text));
    LT_TRY(lt_cuda_launch(r->b->gpu, r->b->stream, fwd, &dims, fwd_args));
    LT_TRY(lt_cuda_fill(r->b->gpu, r->b->stream, exact[3], 0, kv_bytes));
    LT_TRY(lt_cuda_fill(r->b->gpu, r->b->stream, exact[4], 0, kv_bytes));
    return lt_cuda_launch(r->b->gpu, r->b->stream, bwd, &dims, bwd_args);
}

static lt_err compare(attn_run *r, const char *what, const lt_tensor *x, const void *exact,
                      double bound, const char *shape) {
    const int64_t rows = x->shape[0] * x->shape[1] * x->shape[2];
    lt_bench_error e;
    LT_TRY(
        lt_bench_compare(r->b, &e, x->data, "bf16", exact, NULL, rows, x->shape[3], x->shape[3]));
    lt_bench_check(r->b, "attention", what, e.n_bad == 0.0 && e.relative <= bound,
                   "%s: error %.2e (at most %.1e), %.0f not finite", shape, e.relative, bound,
                   e.n_bad);
    return LT_OK;
}

static lt_err poison(attn_run *r, const lt_tensor *x) {
    return lt_cuda_fill(r->b->gpu, r->b->stream, x->data, 0xff, (size_t)lt_tensor_count(x) * 2);
}

static lt_err forward(attn_run *r, CUstream s) {
    return r->sm80 ? lt_cuda_attention_sm80(r->b->gpu, s, &r->a.fwd)
                   : lt_cuda_attention(r->b->gpu, s, &r->a.fwd, r->scratch);
}
static lt_err backward(attn_run *r, CUstream s) {
    return r->sm80 ? lt_cuda_attention_bwd_sm80(r->b->gpu, s, &r->a)
                   : lt_cuda_attention_bwd(r->b->gpu, s, &r->a, r->cut, r->scratch);
}
static lt_err both(attn_run *r) {
    LT_TRY(forward(r, r->b->stream));
    return r->backward ? backward(r, r->b->stream) : LT_OK;
}

/* Every run gives the same bits, with few buffers or many. */
static lt_err check_repeats(attn_run *r, const char *shape) {
    lt_err err = LT_OK;
    const lt_tensor *x[] = {&r->a.fwd.out, &r->a.dq, &r->a.dk, &r->a.dv};
    const int n = r->backward ? 4 : 1;
    unsigned char *first[4] = {NULL}, *again = NULL;
    size_t most = 0;
    int differ = 0;
    for (int i = 0; i < n; i++) {
        const size_t bytes = (size_t)lt_tensor_count(x[i]) * 2;
        most = bytes > most ? bytes : most;
        first[i] = malloc(bytes);
    }
    again = malloc(most);
    for (int k = 0; k < REPEATS; k++) {
        r->cut = r->cut.apart ? r->cut : cuts[k % 3];
        LT_TRY_DONE(both(r));
        for (int i = 0; i < n; i++) {
            const size_t bytes = (size_t)lt_tensor_count(x[i]) * 2;
            LT_TRY_DONE(lt_cuda_download(r->b->gpu, r->b->stream, k == 0 ? first[i] : again,
                                         x[i]->data, bytes));
            LT_TRY_DONE(lt_cuda_sync(r->b->gpu, r->b->stream));
            differ += k > 0 && memcmp(first[i], again, bytes) != 0;
        }
    }
    lt_bench_check(r->b, "attention", "repeats", differ == 0, "%s: %d results of %d repeats differ",
                   shape, differ, REPEATS);
done:
    for (int i = 0; i < 4; i++) {
        free(first[i]);
    }
    free(again);
    return err;
}

/* Checks the results on poisoned memory against double. */
static lt_err check_results(attn_run *r, void *exact[5], const char *shape) {
    LT_TRY(poison(r, &r->a.fwd.out));
    LT_TRY(poison(r, &r->a.dq));
    LT_TRY(poison(r, &r->a.dk));
    LT_TRY(poison(r, &r->a.dv));
    LT_TRY(both(r));
    LT_TRY(compare(r, r->sm80 ? "mma.sync out" : "out", &r->a.fwd.out, exact[0], FWD_BOUND, shape));
    if (r->backward) {
        LT_TRY(compare(r, r->sm80 ? "mma.sync dq" : "dq", &r->a.dq, exact[2], BWD_BOUND, shape));
        LT_TRY(compare(r, r->sm80 ? "mma.sync dk" : "dk", &r->a.dk, exact[3], BWD_BOUND, shape));
        LT_TRY(compare(r, r->sm80 ? "mma.sync dv" : "dv", &r->a.dv, exact[4], BWD_BOUND, shape));
    }
    return LT_OK;
}

static lt_err check_rungs(attn_run *r, const void *exact, const char *shape) {
    for (int i = 0; i < lt_attention_n_rungs; i++) {
        LT_TRY(poison(r, &r->a.fwd.out));
        LT_TRY(lt_cuda_attention_rung(r->b->gpu, r->b->stream, &lt_attention_rungs[i], &r->a.fwd,
                                      r->scratch));
        LT_TRY(compare(r, lt_attention_rungs[i].name, &r->a.fwd.out, exact, FWD_BOUND, shape));
    }
    return LT_OK;
}

static lt_err check_case(lt_bench *b, const attn_case *t) {
    lt_err err = LT_OK;
    attn_run r;
    void *exact[5] = {NULL};
    char shape[128];
    const size_t q_count = (size_t)t->b * (size_t)t->t * (size_t)t->h,
                 k_count = (size_t)t->b * (size_t)t->s * (size_t)t->g;
    const size_t d = (size_t)t->d,
                 counts[5] = {q_count * d, q_count, q_count * d, k_count * d, k_count * d};
    snprintf(shape, sizeof shape, "b%d t%d s%d h%d/%d d%d%s%s%s%s%s%s%s", t->b, t->t, t->s, t->h,
             t->g, t->d, t->causal ? " causal" : "", t->window ? " window" : "",
             t->softcap > 0.0f ? " softcap" : "", t->alibi ? " alibi" : "",
             t->sinks ? " sinks" : "", t->lens ? " lengths" : "", t->docs ? " documents" : "");
    LT_TRY_DONE(run_open(&r, b, t));
    for (int i = 0; i < 5; i++) {
        LT_TRY_DONE(room(&r, &exact[i], counts[i] * 8));
    }
    r.backward = true;
    LT_TRY_DONE(naive(&r, t, exact));
    for (size_t i = FIRST_CUT(t->d); i < sizeof cuts / sizeof *cuts; i++) {
        r.cut = cuts[i];
        LT_TRY_DONE(check_results(&r, exact, shape));
        if (i == 0 || r.cut.apart) {
            LT_TRY_DONE(check_repeats(&r, shape));
        }
    }
    r.sm80 = true;
    LT_TRY_DONE(check_results(&r, exact, shape));
    LT_TRY_DONE(check_repeats(&r, shape));
    r.sm80 = false;
    if ((t->d == 64 || t->d == 128) && t->window == 0 && t->softcap == 0.0f && !t->alibi &&
        !t->sinks && !t->docs) {
        LT_TRY_DONE(check_rungs(&r, exact[0], shape));
    }
done:
    run_close(&r);
    return err;
}

/* ---- Timings ---- */

static lt_err queue(void *p, CUstream s, int set) {
    attn_run *r = p;
    (void)set;
    if (r->rung != NULL) {
        return lt_cuda_attention_rung(r->b->gpu, s, r->rung, &r->a.fwd, r->scratch);
    }
    return r->backward ? backward(r, s) : forward(r, s);
}

/* The peer's time for one direction of a shape; 0: there is no peer, or it has no such kernel. */
static lt_err ask_peer(lt_bench *b, const attn_case *t, const char *way, double *ms) {
    char line[96];
    *ms = 0.0;
    if (b->peer.to == NULL) {
        return LT_OK;
    }
    snprintf(line, sizeof line, "%s %d %d %d %d %s", way, t->b, t->t, t->h, t->d,
             t->causal ? "causal" : "full");
    return lt_peer_ask(&b->peer, line, ms);
}

/* A recording played for 35 ms, then timed for as long (bench/peers/attention_torch.py does the
 * same): launches do not count. At its 700 W the card's clock swings by 5 % within a second: of
 * three turns of 100 ms the medians of a kernel and of its peer fell into different swings, and a
 * ratio was off by as much. Many short turns share them. */
static const lt_timing_plan played = {.n_sets = 1, .rounds = 1, .inner_ms = 35, .graph = true};

enum { TURNS = 9, MOST_RUNGS = 8 };

/* Ours and the peer's in turn, TURNS times, every other time the peer first: then each runs as
 * often behind itself, at its own clock, as behind the other, at the other's. run's ms become
 * medians over the turns, *peer_ms the peer's (0: none). */
static lt_err in_turns(lt_bench *b, const attn_case *t, lt_timing *run, double *peer_ms) {
    double ours[TURNS], peers[TURNS] = {0};
    for (int turn = 0; turn < TURNS; turn++) {
        for (int side = 0; side < 2; side++) {
            if ((turn + side) % 2 == 1) {
                LT_TRY(ask_peer(b, t, run->name, &peers[turn]));
                continue;
            }
            LT_TRY(lt_timing_run(b->gpu, b->stream, run, 1, &played));
            ours[turn] = run->ms;
        }
    }
    run->ms = lt_timing_median(ours, TURNS);
    run->ms_best = ours[0];
    *peer_ms = lt_timing_median(peers, TURNS);
    return LT_OK;
}

/* Time a case with Hopper's kernels, or with those on mma.sync. */
static lt_err case_time(lt_bench *b, const attn_case *t, bool sm80) {
    lt_err err = LT_OK;
    const lt_cuda_info *info = lt_cuda_get_info(b->gpu);
    attn_run r, back;
    lt_timing runs[2];
    char shape[64];
    static const char *const names[] = {"forward, mma.sync", "backward, mma.sync"};
    const double flops = 4.0 * t->b * t->h * (double)t->t * t->s * t->d * (t->causal ? 0.5 : 1.0);
    double peer_ms[2] = {0};
    snprintf(shape, sizeof shape, "b%d s%d h%d d%d %s", t->b, t->s, t->h, t->d,
             t->causal ? "causal" : "full");
    if (lt_bench_skips(b, shape)) {
        return LT_OK;
    }
    LT_TRY_DONE(run_open(&r, b, t));
    r.sm80 = sm80;
    LT_TRY_DONE(both(&r));
    back = r;
    back.backward = true;
    runs[0] = (lt_timing){.name = "forward", .queue = queue, .ctx = &r};
    runs[1] = (lt_timing){.name = "backward", .queue = queue, .ctx = &back};
    for (int i = 0; i < 2; i++) {
        LT_TRY_DONE(in_turns(b, t, &runs[i], &peer_ms[i]));
        if (runs[i].err != LT_OK) {
            lt_bench_check(b, "attention", runs[i].name, false, "%s", runs[i].error);
            continue;
        }
        lt_bench_result row = {.op = "attention",
                               .name = sm80 ? names[i] : runs[i].name,
                               .shape = shape,
                               .ms = runs[i].ms,
                               .ms_best = runs[i].ms_best,
                               .peer_ms = peer_ms[i],
                               .peer_lacks = b->peer.to != NULL && !(peer_ms[i] > 0.0),
                               .flops = flops * (i == 0 ? 1.0 : 2.5),
                               .limit_is_flops = true,
                               .limit = 4096.0 * info->n_sms * info->clock_mhz * 1e6};
        if (b->sustained_s > 0.0) {
            LT_TRY_DONE(lt_timing_sustained(b->gpu, b->stream, &runs[i], 1, b->sustained_s,
                                            &row.ms_sustained, &row.state));
        }
        lt_bench_row(b, &row);
    }
done:
    run_close(&r);
    return err;
}

/* All rungs and the peer in turn, TURNS times. Slow ones run once: naive's third of a second is the
 * same at any clock. */
static lt_err rungs_in_turns(lt_bench *b, const attn_case *t, lt_timing *runs, int n_runs,
                             double *peer_ms) {
    const double once = 10.0; /* ms */
    double each[MOST_RUNGS][TURNS], peers[TURNS];
    for (int turn = 0; turn < TURNS; turn++) {
        LT_TRY(ask_peer(b, t, "forward", &peers[turn]));
        for (int k = 0; k < n_runs; k++) {
            const int i = turn % 2 == 0 ? k : n_runs - 1 - k;
            if (turn == 0 || (runs[i].err == LT_OK && each[i][0] < once)) {
                LT_TRY(lt_timing_run(b->gpu, b->stream, &runs[i], 1, &played));
            }
            each[i][turn] = runs[i].ms;
        }
    }
    for (int i = 0; i < n_runs; i++) {
        runs[i].ms = lt_timing_median(each[i], TURNS);
        runs[i].ms_best = each[i][0];
    }
    *peer_ms = lt_timing_median(peers, TURNS);
    return LT_OK;
}
static lt_err ladder_time(lt_bench *b, const attn_case *t) {
    lt_err err = LT_OK;
    const lt_cuda_info *info = lt_cuda_get_info(b->gpu);
    attn_run r, each[MOST_RUNGS];
    lt_timing runs[MOST_RUNGS];
    char shape[64];
    double peer_ms = 0.0;
    lt_bench_result figures = {.op = "attention",
                               .shape = shape,
                               .flops = 4.0 * t->b * t->h * (double)t->t * t->s * t->d *
                                        (t->causal ? 0.5 : 1.0),
                               .limit_is_flops = true,
                               .limit = 4096.0 * info->n_sms * info->clock_mhz * 1e6};
    LT_ASSERT(lt_attention_n_rungs <= MOST_RUNGS);
    snprintf(shape, sizeof shape, "ladder b%d s%d h%d d%d %s", t->b, t->s, t->h, t->d,
             t->causal ? "causal" : "full");
    if (lt_bench_skips(b, shape)) {
        return LT_OK;
    }
    LT_TRY_DONE(run_open(&r, b, t));
    for (int i = 0; i < lt_attention_n_rungs; i++) {
        each[i] = r;
        each[i].rung = &lt_attention_rungs[i];
        runs[i] = (lt_timing){.name = lt_attention_rungs[i].name, .queue = queue, .ctx = &each[i]};
    }
    LT_TRY_DONE(rungs_in_turns(b, t, runs, lt_attention_n_rungs, &peer_ms));
    for (int i = 0; i < lt_attention_n_rungs; i++) {
        lt_bench_result row = figures;
        if (runs[i].err != LT_OK) {
            lt_bench_check(b, "attention", runs[i].name, false, "%s", runs[i].error);
            continue;
        }
        row.name = runs[i].name, row.ms = runs[i].ms, row.ms_best = runs[i].ms_best;
        row.idea = lt_attention_rungs[i].idea, row.rung = lt_attention_rungs[i].rung;
        row.peer_ms = peer_ms;
        LT_TRY_DONE(lt_bench_took(b, &row.took, &runs[i]));
        lt_bench_row(b, &row);
    }
    if (peer_ms > 0.0) {
        figures.name = "cuDNN", figures.ms = peer_ms, figures.peer = true;
        lt_bench_row(b, &figures);
    }
done:
    run_close(&r);
    return err;
}

lt_err lt_bench_attention(lt_bench *b) {
    static const int widths[] = {64, 128, 256};
    if (lt_cuda_get_info(b->gpu)->cc != 90) {
        fprintf(b->to, "attention: left out: needs compute capability 9.0\n");
        return LT_OK;
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_bench_failed(b, "attention", "check", check_case(b, &cases[i]));
    }
    fprintf(b->to, "attention: %zu shapes against double, %d checks failed in all\n",
            sizeof cases / sizeof *cases, b->n_failed);
    for (int i = 0; i < 4 && b->ladder && !b->check_only; i++) {
        const int d = i < 2 ? 128 : 64;
        lt_bench_failed(b, "attention", "",
                        ladder_time(b, &(attn_case){.b = 2,
                                                    .t = 4096,
                                                    .s = 4096,
                                                    .h = 2048 / d,
                                                    .g = 2048 / d,
                                                    .d = d,
                                                    .causal = i % 2 == 1}));
    }
    for (size_t w = 0; w < 3 && !b->check_only; w++) {
        for (int s = 512; s <= 16384; s *= 2) {
            for (int causal = 0; causal < 2; causal++) {
                const int h = 2048 / widths[w];
                const attn_case t = {.b = 16384 / s,
                                     .t = s,
                                     .s = s,
                                     .h = h,
                                     .g = h,
                                     .d = widths[w],
                                     .causal = causal == 1};
                lt_bench_failed(b, "attention", "", case_time(b, &t, false));
                if (s == 4096) {
                    lt_bench_failed(b, "attention", "", case_time(b, &t, true));
                }
            }
        }
    }
    return LT_OK;
}

void lt_specs_bench_attention(lt_specs *l) {
    static const char naive[] = "attention/ladder/01_naive.cu";
    lt_spec(l, LT_SM_ALL, naive, ORACLE_WORDS, 0, 0, 0, 0, 0, 0);
    lt_spec(l, LT_SM_ALL, naive, ORACLE_WORDS, 1, 1, 1, 1, 1, 1);
}
