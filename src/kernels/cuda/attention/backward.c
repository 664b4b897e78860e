/* backward.c: attention's backward pass: launches of bwd_edges.cu, bwd_sm90.cu, bwd_dq_sm90.cu and
 * bwd_wide_sm90.cu.
 *
 * The edges (deltas, bounds and scales before the products) read 270 MB for 16k tokens of 2048
 * columns, about 0.1 ms, whatever the length. The products leave the memory idle, so they convert
 * the sums to dQ meanwhile (bwd_finish.cuh). Two ways to divide a call:
 *     one pass      edges, products.
 *     apart         dQ and deltas by one kernel, dK and dV by another: no edges at all, but 7
 *                   products instead of 5. For short sequences.
 * For heads wider than 128 columns, deltas, dQ, and dK with dV have a kernel each, with 7 products
 * (bwd_wide_sm90.cu). */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/attention/attention_private.h"
#include "kernels/cuda/specs.h"

/* The -D constants of the kernels, for launches and for lt_specs_attention_bwd. */
#define PRODUCT_WORDS "HEAD_DIM=%d DQ=%d CLUSTER=%d "
#define DQ_WORDS      "HEAD_DIM=%d "
#define WIDE_WORDS    "HEAD_DIM=%d OF=%d "
#define EDGE_WORDS    "HEAD_DIM=%d DTYPE=%s"

/* With this many keys per query on average, or fewer, dQ is computed apart: on one H100 with 16k
 * tokens of 2048 columns this is 15 to 30 % faster up to 512 keys, and 1 to 6 % slower with 1024
 * (docs/speed/attention.md). */
#define APART_KEYS 768

const char *lt_cuda_attention_bwd_refusal(const lt_attention_bwd_args *a,
                                          const lt_cuda_info *info) {
    const lt_tensor *tensors[] = {&a->dq, &a->dk, &a->dv, &a->dout};
    const char *why = lt_cuda_attention_refusal(&a->fwd, info);
    for (int i = 0; why == NULL && i < 4; i++) {
        why = lt_attn_tensor_refusal(tensors[i]);
        if (why == NULL && tensors[i]->dtype != a->fwd.q.dtype) {
            why = "tensors of different types";
        }
    }
    return why;
}

static int padded_of(const lt_attention_args *a) {
    return (int)lt_cuda_div_up(a->q.shape[1], 128) * 128;
}
static int width_of(const lt_attention_args *a) {
    const int64_t d = a->q.shape[3];
    return d <= 64 ? 64 : d <= 128 ? 128 : d <= 192 ? 192 : 256;
}
/* Query heads per key head. */
static int group_of(const lt_attention_args *a) {
    return (int)(a->q.shape[2] / a->k.shape[2]);
}
static int pairs_of(const lt_attention_args *a) { /* Number of (batch, key head) pairs. */
    return (int)(a->q.shape[0] * a->k.shape[2]);
}
/* Elements of the sums of dQ of a (batch, key head) pair. */
static size_t sums_of(const lt_attention_args *a) {
    return (size_t)group_of(a) * (size_t)padded_of(a) * (size_t)width_of(a);
}

/* Shape of bwd_sm90.cu: blocks per cluster, keys per block, queries per step. */
static int cluster_of(const lt_attention_args *a, bool apart) {
    return !apart && width_of(a) == 128 && a->window == 0 && a->doc_start.data == NULL ? 2 : 1;
}
static int block_keys(const lt_attention_args *a, bool apart) {
    return width_of(a) == 64 && !apart ? 256 : 128; /* BN */
}
static int step_queries(const lt_attention_args *a, bool apart) {
    return width_of(a) == 64 && apart ? 128 : 64; /* BM */
}
/* Tiles of a (batch, key head) pair. */
static int64_t tiles_of(const lt_attention_args *a, bool apart) {
    return lt_cuda_div_up(a->k.shape[1], block_keys(a, apart) * cluster_of(a, apart));
}
/* See bwd_tiles.cuh. Tiles that run together share Q, dO and sums of dQ. */
static int section_of(const lt_attention_args *a) {
    return a->causal && a->window == 0 ? lt_attn_section(8.0 * (double)sums_of(a), pairs_of(a)) : 1;
}
/* Buffers for sums of dQ: twice as many as (batch, key head) pairs are in progress at a time, by
 * sections or by tiles. */
static int places_of(const lt_attention_args *a, int n_sms) {
    const int section = section_of(a),
              busy = (int)lt_cuda_div_up(n_sms / cluster_of(a, false), tiles_of(a, false));
    return 2 * (section > busy ? section : busy);
}

static bool apart_pays(const lt_attention_args *a) {
    const int64_t keys = a->k.shape[1], most = APART_KEYS;
    if (width_of(a) > 128) {
        return true;
    }
    if (a->window > 0 && a->window < keys) {
        return a->window <= most;
    }
    return (a->causal ? keys / 2 : keys) <= most;
}

lt_attention_cut lt_cuda_attention_bwd_cut(const lt_attention_bwd_args *a,
                                           const lt_cuda_info *info) {
    return (lt_attention_cut){.apart = apart_pays(&a->fwd),
                              .places = places_of(&a->fwd, info->n_sms)};
}

/* Measure (base 0) or place the scratch after the counters. */
static size_t carve(lt_attn_bwd_args *w, const lt_attention_args *a, lt_attention_cut cut,
                    uintptr_t base) {
    const size_t rows = (size_t)(a->q.shape[0] * a->q.shape[2]) * (size_t)padded_of(a);
    const size_t pairs = (size_t)pairs_of(a);
    size_t used = LT_ATTN_COUNTER_BYTES;
    w->padded = padded_of(a);
    w->lse2 = (float *)(base + used);
    used += rows * 4;
    w->delta = (float *)(base + used);
    used += rows * 4;
    w->unit = (float *)(base + used);
    used += rows * 4;
    w->dq_acc = (void *)(base + used);
    w->places = cut.apart ? 0 : (cut.places < pairs_of(a) ? cut.places : pairs_of(a));
    used += sums_of(a) * 4 * (size_t)w->places;
    w->added = (unsigned *)(base + used);
    used += rows / 64 * (size_t)(width_of(a) / 64) * 16;
    w->bounds = (unsigned *)(base + used);
    w->cleared = w->bounds + 2 * pairs;
    return used + pairs * 12;
}

size_t lt_cuda_attention_bwd_scratch_bytes(const lt_attention_bwd_args *a, lt_attention_cut cut) {
    lt_attn_bwd_args w;
    return carve(&w, &a->fwd, cut, 0);
}

static lt_attn_strides strides_of(const lt_tensor *t) {
    return (lt_attn_strides){t->stride[1], t->stride[2], t->stride[0]};
}

/* Constants of bwd_edges.cu. */
static void edges_text(char *out, size_t bytes, const lt_attention_args *a) {
    snprintf(out, bytes, EDGE_WORDS, width_of(a) > 128 ? 256 : width_of(a),
             a->q.dtype == LT_F16 ? "fp16" : "bf16");
}
static lt_attn_bwd_delta_args delta_args(const lt_attention_bwd_args *a,
                                         const lt_attn_bwd_args *w) {
    return (lt_attn_bwd_delta_args){.w = *w,
                                    .o = a->fwd.out.data,
                                    .d_o = a->dout.data,
                                    .so = strides_of(&a->fwd.out),
                                    .sd = strides_of(&a->dout)};
}
/* Before the products: deltas, bounds, scales, and sums set to zero. */
static lt_err prepare(lt_cuda *c, CUstream s, const lt_attention_bwd_args *a, lt_attn_bwd_args *w) {
    const int pairs = pairs_of(&a->fwd);
    const lt_cuda_kernel *bounds, *rows;
    const int block_rows = 2048 / width_of(&a->fwd);
    lt_attn_bwd_bounds_args of_bounds = {.w = *w,
                                         .k = a->fwd.k.data,
                                         .v = a->fwd.v.data,
                                         .sk = strides_of(&a->fwd.k),
                                         .sv = strides_of(&a->fwd.v)};
    lt_attn_bwd_delta_args of_rows = delta_args(a, w);
    void *bounds_args[] = {&of_bounds}, *rows_args[] = {&of_rows};
    const int64_t most = 512 / pairs > 1 ? 512 / pairs : 1,
                  blocks = lt_cuda_div_up(w->a.kv_tokens, block_rows);
    char text[64];

    edges_text(text, sizeof text, &a->fwd);
    LT_TRY(lt_cuda_kernel_get(c, &rows, "attention/bwd_edges.cu", "attn_bwd_prepare", text));
    LT_TRY(lt_cuda_kernel_get(c, &bounds, "attention/bwd_edges.cu", "attn_bwd_bounds", text));
    LT_TRY(lt_cuda_fill(c, s, w->bounds, 0, (size_t)pairs * 12)); /* `cleared` too. */
    LT_TRY(lt_cuda_launch(
        c, s, bounds,
        &(lt_cuda_dims){.grid = {(unsigned)(blocks < most ? blocks : most), (unsigned)pairs},
                        .block = {256}},
        bounds_args));
    return lt_cuda_launch(c, s, rows,
                          &(lt_cuda_dims){.grid = {(unsigned)(w->padded / block_rows),
                                                   (unsigned)(pairs * group_of(&a->fwd))},
                                          .block = {256}},
                          rows_args);
}

/* The gradient of the sinks. */
static lt_err finish_sinks(lt_cuda *c, CUstream s, const lt_attention_bwd_args *a,
                           lt_attn_bwd_args *w) {
    const lt_cuda_kernel *k;
    char text[64];
    lt_attn_bwd_sinks_args call = {.w = *w, .dsinks = a->dsinks.data};
    void *args[] = {&call};

    if (call.dsinks == NULL || a->fwd.sinks.data == NULL) {
        return LT_OK;
    }
    edges_text(text, sizeof text, &a->fwd);
    LT_TRY(lt_cuda_kernel_get(c, &k, "attention/bwd_edges.cu", "attn_bwd_sinks", text));
    return lt_cuda_launch(c, s, k,
                          &(lt_cuda_dims){.grid = {(unsigned)w->a.q_heads}, .block = {256}}, args);
}

/* The products: bwd_sm90.cu, with the maps through which the copy engine reads and writes. */
typedef struct {
    const lt_cuda_kernel *kernel;
    CUtensorMap q, k, v, d_o, dk, dv;
    size_t shared_bytes;
    int64_t tiles; /* of a (batch, key head) pair */
    int cluster;
} products;
static lt_err products_open(products *p, lt_cuda *c, const lt_attention_bwd_args *a, bool apart) {
    const int width = width_of(&a->fwd), bn = block_keys(&a->fwd, apart),
              bm = step_queries(&a->fwd, apart);
    const int stages = apart ? (width == 64 ? 4 : 3) : 2;                            /* STAGES */
    const int cluster = cluster_of(&a->fwd, apart), key_box = cluster > 1 ? 64 : bn; /* KEY_BOX */
    char text[320], flags[256];

    lt_attn_flags(flags, sizeof flags, &a->fwd);
    snprintf(text, sizeof text, PRODUCT_WORDS "%s", width, !apart, cluster, flags);
    p->cluster = cluster;
    p->tiles = tiles_of(&a->fwd, apart);
    p->shared_bytes = (size_t)LT_ATTN_BWD_BYTES(width, bn, bm, cluster, stages, !apart);
    LT_TRY(lt_cuda_kernel_get(c, &p->kernel, "attention/bwd_sm90.cu", "attn_bwd_sm90", text));
    LT_TRY(lt_attn_map(c, &p->q, &a->fwd.q, 1, bm));
    LT_TRY(lt_attn_map(c, &p->d_o, &a->dout, 1, bm));
    LT_TRY(lt_attn_map(c, &p->k, &a->fwd.k, 1, key_box));
    LT_TRY(lt_attn_map(c, &p->v, &a->fwd.v, 1, key_box));
    LT_TRY(lt_attn_map(c, &p->dk, &a->dk, 1, 64));
    return lt_attn_map(c, &p->dv, &a->dv, 1, 64);
}
static lt_err products_run(products *p, lt_cuda *c, CUstream s, const lt_attention_bwd_args *a,
                           lt_attn_bwd_args *w, bool apart, int n_sms) {
    const bool two = apart && a->fwd.causal && a->fwd.window == 0; /* DRAWN */
    const int64_t tiles = lt_cuda_div_up(p->tiles * pairs_of(&a->fwd), two ? 2 : 1),
                  clusters = n_sms / p->cluster;
    void *args[] = {&p->q, &p->k, &p->v, &p->d_o, &p->dk, &p->dv, w};
    w->a.section = apart ? 1 : section_of(&a->fwd);
    if (!apart && w->a.section > w->places) {
        w->a.section = w->places;
    }
    return lt_cuda_launch(
        c, s, p->kernel,
        &(lt_cuda_dims){
            .grid = {(unsigned)((tiles > clusters ? clusters : tiles) * p->cluster)},
            .block = {384},
            .cluster = {p->cluster > 1 ? (unsigned)p->cluster : 0, p->cluster > 1, p->cluster > 1},
            .dynamic_shared_bytes = p->shared_bytes},
        args);
}

/* bwd_dq_sm90.cu: dQ alone, and the deltas. */
static lt_err dq_run(lt_cuda *c, CUstream s, const lt_attention_bwd_args *a, lt_attn_bwd_args *w,
                     int n_sms) {
    const int64_t tiles = (int64_t)(w->padded / 128) * w->a.batch * w->a.q_heads;
    const lt_cuda_kernel *kernel;
    CUtensorMap q, k, v, o, d_o;
    void *args[] = {&q, &k, &v, &o, &d_o, w};
    char text[320], flags[256];

    lt_attn_flags(flags, sizeof flags, &a->fwd);
    snprintf(text, sizeof text, DQ_WORDS "%s", width_of(&a->fwd), flags);
    LT_TRY(lt_cuda_kernel_get(c, &kernel, "attention/bwd_dq_sm90.cu", "attn_bwd_dq_sm90", text));
    LT_TRY(lt_attn_map(c, &q, &a->fwd.q, 1, 64));
    LT_TRY(lt_attn_map(c, &d_o, &a->dout, 1, 64));
    LT_TRY(lt_attn_map(c, &k, &a->fwd.k, 1, 128));
    LT_TRY(lt_attn_map(c, &v, &a->fwd.v, 1, 128));
    LT_TRY(lt_attn_map(c, &o, &a->fwd.out, 1, 128));
    return lt_cuda_launch(c, s, kernel,
                          &(lt_cuda_dims){.grid = {(unsigned)(tiles > n_sms ? n_sms : tiles)},
                                          .block = {384},
                                          .dynamic_shared_bytes = LT_ATTN_BWD_DQ_BYTES},
                          args);
}

static lt_err run_apart(lt_cuda *c, CUstream s, const lt_attention_bwd_args *a, lt_attn_bwd_args *w,
                        int n_sms) {
    products p;
    LT_TRY(products_open(&p, c, a, true));
    LT_TRY(dq_run(c, s, a, w, n_sms));
    return products_run(&p, c, s, a, w, true, n_sms);
}

/* The constant OF of bwd_wide_sm90.cu: which gradients a launch computes. */
typedef enum { OF_DQ, OF_DK_DV } wide_of;
static lt_err wide_run(lt_cuda *c, CUstream s, const lt_attention_bwd_args *a,
                       const lt_attn_bwd_args *all, wide_of of, int n_sms) {
    lt_attn_bwd_args own = *all, *const w = &own;
    const lt_attention_args *f = &a->fwd;
    const lt_tensor *rows[] = {of == OF_DQ ? &f->q : &f->k, of == OF_DQ ? &a->dout : &f->v},
                    *steps[] = {of == OF_DQ ? &f->k : &f->q, of == OF_DQ ? &f->v : &a->dout};
    const int tile = of == OF_DQ ? 128 : 64; /* ROWS */
    const int64_t heads = (int64_t)w->a.batch * (of == OF_DQ ? w->a.q_heads : w->a.kv_heads),
                  rows_tiles = lt_cuda_div_up(of == OF_DQ ? w->padded : w->a.kv_tokens, tile),
                  tiles = rows_tiles * heads,
                  sections = tiles / ((rows_tiles * tile > 512 ? 2 : 1) * n_sms);
    const lt_cuda_kernel *kernel;
    CUtensorMap row_maps[2], step_maps[2];
    void *args[] = {&row_maps[0], &row_maps[1], &step_maps[0], &step_maps[1], w};
    char text[320], flags[256];

    w->a.section = !f->causal ? 1 : (int)(sections > 1 ? lt_cuda_div_up(heads, sections) : heads);
    w->a.counter += 16 * of;
    lt_attn_flags(flags, sizeof flags, f);
    snprintf(text, sizeof text, WIDE_WORDS "%s", width_of(f), (int)of, flags);
    LT_TRY(
        lt_cuda_kernel_get(c, &kernel, "attention/bwd_wide_sm90.cu", "attn_bwd_wide_sm90", text));
    for (int i = 0; i < 2; i++) {
        LT_TRY(lt_attn_map(c, &row_maps[i], rows[i], 1, tile));
        LT_TRY(lt_attn_map(c, &step_maps[i], steps[i], 1, 64));
    }
    return lt_cuda_launch(c, s, kernel,
                          &(lt_cuda_dims){.grid = {(unsigned)(tiles > n_sms ? n_sms : tiles)},
                                          .block = {384},
                                          .dynamic_shared_bytes = (size_t)LT_ATTN_BWD_WIDE_BYTES(
                                              width_of(f), of == OF_DK_DV)},
                          args);
}
static lt_err run_wide(lt_cuda *c, CUstream s, const lt_attention_bwd_args *a, lt_attn_bwd_args *w,
                       int n_sms) {
    const lt_cuda_kernel *rows;
    lt_attn_bwd_delta_args call = delta_args(a, w);
    void *args[] = {&call};
    CUstream side;
    char text[64];

    edges_text(text, sizeof text, &a->fwd);
    LT_TRY(lt_cuda_kernel_get(c, &rows, "attention/bwd_edges.cu", "attn_bwd_delta", text));
    LT_TRY(lt_cuda_launch(
        c, s, rows,
        &(lt_cuda_dims){.grid = {(unsigned)(w->padded / 8), (unsigned)(w->a.batch * w->a.q_heads)},
                        .block = {256}},
        args));
    /* The second kernel's blocks run as soon as blocks of the first have finished. */
    LT_TRY(lt_cuda_side_stream(c, &side, s, 0));
    LT_TRY(lt_cuda_stream_follow(c, side, s));
    LT_TRY(wide_run(c, s, a, w, OF_DQ, n_sms));
    LT_TRY(wide_run(c, side, a, w, OF_DK_DV, n_sms));
    return lt_cuda_stream_follow(c, s, side);
}

static lt_err run_once(lt_cuda *c, CUstream s, const lt_attention_bwd_args *a, lt_attn_bwd_args *w,
                       int n_sms) {
    products p;
    LT_TRY(products_open(&p, c, a, false));
    LT_TRY(prepare(c, s, a, w));
    return products_run(&p, c, s, a, w, false, n_sms);
}

lt_err lt_cuda_attention_bwd(lt_cuda *c, CUstream s, const lt_attention_bwd_args *a,
                             lt_attention_cut cut, lt_scratch scratch) {
    const lt_cuda_info *info = lt_cuda_get_info(c);
    const char *why = lt_cuda_attention_bwd_refusal(a, info);
    lt_attn_bwd_args w;
    const size_t need = carve(&w, &a->fwd, cut, (uintptr_t)scratch.data);

    if (why != NULL || scratch.bytes < need) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "attention backward: %s (scratch %zu of %zu bytes)",
                why != NULL ? why : "too little scratch", scratch.bytes, need);
    }
    w.a = lt_attn_args_of(&a->fwd, scratch);
    w.width = (int)a->fwd.q.shape[3];
    w.dq = a->dq.data, w.dk = a->dk.data, w.dv = a->dv.data;
    w.dq_strides = strides_of(&a->dq);
    w.dk_strides = strides_of(&a->dk), w.dv_strides = strides_of(&a->dv);
    LT_TRY(width_of(&a->fwd) > 128 ? run_wide(c, s, a, &w, info->n_sms)
           : cut.apart             ? run_apart(c, s, a, &w, info->n_sms)
                                   : run_once(c, s, a, &w, info->n_sms));
    return finish_sinks(c, s, a, &w);
}

void lt_specs_attention_bwd(lt_specs *l) {
    lt_spec(l, LT_SM90, "attention/bwd_sm90.cu", PRODUCT_WORDS LT_ATTN_FLAGS, 64, 1, 1, "bf16", 0,
            0, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_sm90.cu", PRODUCT_WORDS LT_ATTN_FLAGS, 64, 1, 1, "bf16", 1,
            0, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_sm90.cu", PRODUCT_WORDS LT_ATTN_FLAGS, 128, 1, 2, "bf16", 0,
            0, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_sm90.cu", PRODUCT_WORDS LT_ATTN_FLAGS, 128, 1, 2, "bf16", 1,
            0, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_sm90.cu", PRODUCT_WORDS LT_ATTN_FLAGS, 64, 0, 1, "bf16", 0,
            0, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_sm90.cu", PRODUCT_WORDS LT_ATTN_FLAGS, 64, 0, 1, "bf16", 1,
            0, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_sm90.cu", PRODUCT_WORDS LT_ATTN_FLAGS, 128, 0, 1, "bf16", 0,
            0, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_sm90.cu", PRODUCT_WORDS LT_ATTN_FLAGS, 128, 0, 1, "bf16", 1,
            0, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_sm90.cu", PRODUCT_WORDS LT_ATTN_FLAGS, 128, 0, 1, "bf16", 1,
            1, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_sm90.cu", PRODUCT_WORDS LT_ATTN_FLAGS, 128, 0, 1, "bf16", 1,
            0, 1, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_sm90.cu", PRODUCT_WORDS LT_ATTN_FLAGS, 128, 1, 1, "bf16", 1,
            1, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_sm90.cu", PRODUCT_WORDS LT_ATTN_FLAGS, 128, 1, 1, "bf16", 1,
            0, 1, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_sm90.cu", PRODUCT_WORDS LT_ATTN_FLAGS, 128, 1, 2, "bf16", 1,
            0, 0, 0, 1);
    lt_spec(l, LT_SM90, "attention/bwd_sm90.cu", PRODUCT_WORDS LT_ATTN_FLAGS, 128, 1, 2, "fp16", 1,
            0, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_sm90.cu", PRODUCT_WORDS LT_ATTN_FLAGS, 128, 1, 2, "bf16", 0,
            0, 0, 1, 0);
    lt_spec(l, LT_SM90, "attention/bwd_dq_sm90.cu", DQ_WORDS LT_ATTN_FLAGS, 64, "bf16", 0, 0, 0, 0,
            0);
    lt_spec(l, LT_SM90, "attention/bwd_dq_sm90.cu", DQ_WORDS LT_ATTN_FLAGS, 64, "bf16", 1, 0, 0, 0,
            0);
    lt_spec(l, LT_SM90, "attention/bwd_dq_sm90.cu", DQ_WORDS LT_ATTN_FLAGS, 128, "bf16", 0, 0, 0, 0,
            0);
    lt_spec(l, LT_SM90, "attention/bwd_dq_sm90.cu", DQ_WORDS LT_ATTN_FLAGS, 128, "bf16", 1, 0, 0, 0,
            0);
    lt_spec(l, LT_SM90, "attention/bwd_dq_sm90.cu", DQ_WORDS LT_ATTN_FLAGS, 128, "bf16", 1, 1, 0, 0,
            0);
    lt_spec(l, LT_SM90, "attention/bwd_dq_sm90.cu", DQ_WORDS LT_ATTN_FLAGS, 128, "bf16", 1, 0, 1, 0,
            0);
    lt_spec(l, LT_SM90, "attention/bwd_dq_sm90.cu", DQ_WORDS LT_ATTN_FLAGS, 128, "bf16", 1, 0, 0, 1,
            0);
    lt_spec(l, LT_SM90, "attention/bwd_dq_sm90.cu", DQ_WORDS LT_ATTN_FLAGS, 128, "bf16", 1, 0, 0, 0,
            1);
    lt_spec(l, LT_SM90, "attention/bwd_dq_sm90.cu", DQ_WORDS LT_ATTN_FLAGS, 128, "fp16", 1, 0, 0, 0,
            0);
    lt_spec(l, LT_SM90, "attention/bwd_wide_sm90.cu", WIDE_WORDS LT_ATTN_FLAGS, 256, 0, "bf16", 0,
            0, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_wide_sm90.cu", WIDE_WORDS LT_ATTN_FLAGS, 256, 1, "bf16", 0,
            0, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_wide_sm90.cu", WIDE_WORDS LT_ATTN_FLAGS, 256, 0, "bf16", 1,
            0, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_wide_sm90.cu", WIDE_WORDS LT_ATTN_FLAGS, 256, 1, "bf16", 1,
            0, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_wide_sm90.cu", WIDE_WORDS LT_ATTN_FLAGS, 192, 0, "bf16", 1,
            0, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_wide_sm90.cu", WIDE_WORDS LT_ATTN_FLAGS, 192, 1, "bf16", 1,
            0, 0, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_wide_sm90.cu", WIDE_WORDS LT_ATTN_FLAGS, 256, 0, "bf16", 1,
            1, 1, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_wide_sm90.cu", WIDE_WORDS LT_ATTN_FLAGS, 256, 1, "bf16", 1,
            1, 1, 0, 0);
    lt_spec(l, LT_SM90, "attention/bwd_wide_sm90.cu", WIDE_WORDS LT_ATTN_FLAGS, 256, 1, "bf16", 1,
            0, 0, 1, 1);
    lt_spec(l, LT_SM90, "attention/bwd_wide_sm90.cu", WIDE_WORDS LT_ATTN_FLAGS, 256, 1, "fp16", 1,
            0, 0, 0, 0);
    lt_spec(l, LT_SM_ALL, "attention/bwd_edges.cu", EDGE_WORDS, 64, "bf16");
    lt_spec(l, LT_SM_ALL, "attention/bwd_edges.cu", EDGE_WORDS, 128, "bf16");
    lt_spec(l, LT_SM_ALL, "attention/bwd_edges.cu", EDGE_WORDS, 256, "bf16");
    lt_spec(l, LT_SM_ALL, "attention/bwd_edges.cu", EDGE_WORDS, 128, "fp16");
}
