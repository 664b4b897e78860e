/* backward.c: attention's backward pass: launches of bwd_edges.cu, bwd_sm90.cu and bwd_dq_sm90.cu.
 *
 * The edges (deltas and scales before the products, dQ from its sums behind them) move 600 MB for 16k tokens of 2048 columns, 0.2 ms, whatever the length; the products leave the memory
 * idle. Three ways to cut a call:
 *     one piece     edges before, products, edges behind.
 *     pieces        each some (batch, key head)s, their products on two streams beside the op's, so that edges of one run while another's last blocks do, and dQ's sums are few:
 *                       op's stream   prepare 0 │ prepare 1 │ finish 0, prepare 2 │ finish 1, prepare 3 │ ...
 *                       beside it               │ products 0 ────│ products 1 ─────│ products 2 ─────│ ...
 *                   The sums of a piece lie where those of the piece before the last one lay. The bits are those of one piece.
 *     apart         dQ and deltas by one kernel, dK and dV by another: no edges at all, but 7 products instead of 5. For short sequences.
 * Heads wider than 128 columns: deltas, dQ, dK and dV by a kernel each, 8 products (bwd_wide_sm90.cu). */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/attention/attention_private.h"

/* Measured on one H100, 16k tokens of 2048 columns (docs/SPEED.md). Pieces: - 3 to - 5 % causal, 0 to - 3 % full from 8192 keys on; up to 4096 keys their launches cost what they save.
 * Clusters lose by them: + 9 % at 8192 keys causal, + 2 % full, equal at 16384. */
#define PIECES_KEYS 8192
#define PIECE_BYTES (34 << 20) /* Of dQ's sums of a piece; two pieces are under way. */
/* Apart, keys that a query sees on average: at 128 columns - 5 to - 27 % up to here, + 5 % with twice as many; at 64 columns + 3 to + 5 % at 1024. */
#define APART_KEYS(width) ((width) == 64 ? 512 : 1024)

/* strides and bwd_args of bwd.cuh. */
typedef struct {
    int64_t token, head, batch;
} strides;
typedef struct {
    lt_attn_args a;
    int padded;
    float *lse2, *delta, *unit;
    void *dq_acc;
    unsigned *bounds;
    int width;
    void *dq;
    strides dq_strides;
    void *dk, *dv;
    strides dk_strides, dv_strides;
    int first, pairs;
} kernel_bwd_args;

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
/* Query heads of a key head. */
static int group_of(const lt_attention_args *a) {
    return (int)(a->q.shape[2] / a->k.shape[2]);
}
/* Elements of dQ's sums of a (batch, key head). */
static size_t sums_of(const lt_attention_args *a) {
    return (size_t)group_of(a) * (size_t)padded_of(a) * (size_t)width_of(a);
}

/* Of bwd_sm90.cu: blocks of a cluster, keys of a block, queries of a step. */
static int cluster_of(const lt_attention_args *a, bool apart) {
    return !apart && width_of(a) == 128 && a->window == 0 && a->doc_start.data == NULL ? 2 : 1;
}
static int block_keys(const lt_attention_args *a, bool apart) {
    return width_of(a) == 64 && !apart ? 256 : 128; /* BN */
}
static int step_queries(const lt_attention_args *a, bool apart) {
    return width_of(a) == 64 && apart ? 128 : 64; /* BM */
}
/* See unit_count of bwd_tiles.cuh: of a (batch, key head). */
static int64_t units_of(const lt_attention_args *a, bool apart) {
    const bool paired = a->causal && a->window == 0; /* PAIRED */
    const int64_t tiles = lt_cuda_div_up(a->k.shape[1],
                                         block_keys(a, apart) * cluster_of(a, apart));
    return paired ? (tiles + 1) / 2 : tiles;
}

static bool apart_pays(const lt_attention_args *a) {
    const int64_t keys = a->k.shape[1], most = APART_KEYS(width_of(a));
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
    lt_attention_cut cut = {.n_pieces = 1};
    if (apart_pays(&a->fwd)) {
        cut.apart = true;
    } else if (a->fwd.k.shape[1] >= PIECES_KEYS && cluster_of(&a->fwd, false) == 1) {
        const int64_t pairs = (int64_t)(PIECE_BYTES / 4 / sums_of(&a->fwd)); /* Of a piece. */
        if (pairs * units_of(&a->fwd, false) * 10 >= 9 * info->n_sms) { /* Enough for all SMs. */
            cut.n_pieces = (int)lt_cuda_div_up(a->fwd.q.shape[0] * a->fwd.k.shape[2], pairs);
        }
    }
    return cut;
}

/* Where things lie: (batch, key head)s of a piece, places for dQ's sums and the elements of one. */
typedef struct {
    int pairs, places;
    size_t sums;
} layout;
static layout layout_of(const lt_attention_args *a, lt_attention_cut cut) {
    const int total = (int)(a->q.shape[0] * a->k.shape[2]),
              pairs = (int)lt_cuda_div_up(total, cut.n_pieces);
    if (cut.apart) {
        return (layout){total, 0, 0};
    }
    return (layout){pairs, pairs < total ? 2 : 1, sums_of(a) * (size_t)pairs};
}

/* The scratch behind the counters, measured with base 0, or placed. */
static size_t carve(kernel_bwd_args *w, const lt_attention_args *a, const layout *l,
                    uintptr_t base) {
    const size_t rows = (size_t)(a->q.shape[0] * a->q.shape[2]) * (size_t)padded_of(a);
    size_t used = LT_ATTN_COUNTER_BYTES;
    w->padded = padded_of(a);
    w->lse2 = (float *)(base + used);
    used += rows * 4;
    w->delta = (float *)(base + used);
    used += rows * 4;
    w->unit = (float *)(base + used);
    used += rows * 4;
    w->dq_acc = (void *)(base + used);
    used += l->sums * 4 * (size_t)l->places;
    w->bounds = (unsigned *)(base + used);
    return used + (size_t)(a->k.shape[0] * a->k.shape[2]) * 8;
}

size_t lt_cuda_attention_bwd_scratch_bytes(const lt_attention_bwd_args *a, lt_attention_cut cut) {
    kernel_bwd_args w;
    const layout l = layout_of(&a->fwd, cut);
    return carve(&w, &a->fwd, &l, 0);
}

/* The arguments for the i-th piece: its sums lie in one of two places, its counters too. */
static kernel_bwd_args piece_args(const kernel_bwd_args *all, const layout *l, int i) {
    const int left = all->a.batch * all->a.kv_heads - i * l->pairs;
    const uintptr_t bytes = l->sums * 4;
    kernel_bwd_args w = *all;
    w.first = i * l->pairs;
    w.pairs = left < l->pairs ? left : l->pairs;
    w.a.counter += i % 2 * 32;
    /* Kernels count rows from the call's first on. */
    w.dq_acc = (void *)((uintptr_t)w.dq_acc + (uintptr_t)(i % 2) * bytes - (uintptr_t)i * bytes);
    return w;
}

static strides strides_of(const lt_tensor *t) {
    return (strides){t->stride[1], t->stride[2], t->stride[0]};
}

/* Words of bwd_edges.cu. */
static void edges_text(char *out, size_t bytes, const lt_attention_args *a) {
    snprintf(out, bytes, "HEAD_DIM=%d DTYPE=%s", width_of(a) > 128 ? 256 : width_of(a),
             a->q.dtype == LT_F16 ? "fp16" : "bf16");
}
/* Deltas, bounds, scales, cleared sums; before the products. */
static lt_err prepare(lt_cuda *c, CUstream s, const lt_attention_bwd_args *a, kernel_bwd_args *w,
                      const char *text) {
    const lt_cuda_kernel *bounds, *rows;
    const int block_rows = 2048 / width_of(&a->fwd);
    void *k = a->fwd.k.data, *v = a->fwd.v.data, *o = a->fwd.out.data, *d_o = a->dout.data;
    strides sk = strides_of(&a->fwd.k), sv = strides_of(&a->fwd.v), so = strides_of(&a->fwd.out),
            sd = strides_of(&a->dout);
    void *bounds_args[] = {w, &k, &v, &sk, &sv}, *rows_args[] = {w, &o, &d_o, &so, &sd};
    const int64_t most = 512 / w->pairs > 1 ? 512 / w->pairs : 1,
                  blocks = lt_cuda_div_up(w->a.kv_tokens, block_rows);

    LT_TRY(lt_cuda_kernel_get(c, &rows, "attention/bwd_edges.cu", "attn_bwd_prepare", text));
    LT_TRY(lt_cuda_kernel_get(c, &bounds, "attention/bwd_edges.cu", "attn_bwd_bounds", text));
    LT_TRY(lt_cuda_launch(
        c, s, bounds,
        &(lt_cuda_dims){.grid = {(unsigned)(blocks < most ? blocks : most), (unsigned)w->pairs},
                        .block = {256}},
        bounds_args));
    return lt_cuda_launch(c, s, rows,
                          &(lt_cuda_dims){.grid = {(unsigned)(w->padded / block_rows),
                                                   (unsigned)(w->pairs * group_of(&a->fwd))},
                                          .block = {256}},
                          rows_args);
}

/* dQ from its sums. */
static lt_err finish(lt_cuda *c, CUstream s, const lt_attention_bwd_args *a, kernel_bwd_args *w,
                     const char *text) {
    const lt_cuda_kernel *k;
    void *args[] = {w};

    LT_TRY(lt_cuda_kernel_get(c, &k, "attention/bwd_edges.cu", "attn_bwd_finish", text));
    return lt_cuda_launch(
        c, s, k,
        &(lt_cuda_dims){.grid = {(unsigned)(w->padded / 64), w->width <= 64 ? 1 : 2,
                                 (unsigned)(w->pairs * group_of(&a->fwd))},
                        .block = {128}},
        args);
}

/* The sinks' gradient. */
static lt_err finish_sinks(lt_cuda *c, CUstream s, const lt_attention_bwd_args *a,
                           kernel_bwd_args *w) {
    const lt_cuda_kernel *k;
    char text[64];
    void *dsinks = a->dsinks.data, *args[] = {w, &dsinks};

    if (dsinks == NULL || a->fwd.sinks.data == NULL) {
        return LT_OK;
    }
    edges_text(text, sizeof text, &a->fwd);
    LT_TRY(lt_cuda_kernel_get(c, &k, "attention/bwd_edges.cu", "attn_bwd_sinks", text));
    return lt_cuda_launch(c, s, k,
                          &(lt_cuda_dims){.grid = {(unsigned)w->a.q_heads}, .block = {256}}, args);
}

/* The products: bwd_sm90.cu and what the copy engine reads and writes for it. */
typedef struct {
    const lt_cuda_kernel *kernel;
    CUtensorMap q, k, v, d_o, dk, dv;
    size_t shared_bytes;
    int64_t units; /* of a (batch, key head) */
    int cluster;
} products;
static lt_err products_open(products *p, lt_cuda *c, const lt_attention_bwd_args *a, bool apart) {
    const int width = width_of(&a->fwd), bn = block_keys(&a->fwd, apart),
              bm = step_queries(&a->fwd, apart);
    const int stages = apart ? (width == 64 ? 4 : 3) : 2; /* STAGES */
    const int cluster = cluster_of(&a->fwd, apart);
    const size_t kv = (size_t)bn * (size_t)width * 2, step = (size_t)bm * (size_t)width * 2,
                 row = (size_t)bm * 4, ring = (size_t)stages * (2 * step + 2 * row),
                 sums = 2 * (size_t)(bn * cluster) * (size_t)bm * 2 + 2 * 16384 +
                        (size_t)stages * row;
    char text[320], flags[256];

    lt_attn_flags(flags, sizeof flags, &a->fwd);
    snprintf(text, sizeof text, "HEAD_DIM=%d DQ=%d CLUSTER=%d %s", width, !apart, cluster, flags);
    p->cluster = cluster;
    p->units = units_of(&a->fwd, apart);
    p->shared_bytes = 1024 + ring + (apart ? 4 * kv : 2 * kv + sums) + 320 /* barriers, tiles */;
    LT_TRY(lt_cuda_kernel_get(c, &p->kernel, "attention/bwd_sm90.cu", "attn_bwd_sm90", text));
    LT_TRY(lt_attn_map(c, &p->q, &a->fwd.q, 1, bm));
    LT_TRY(lt_attn_map(c, &p->d_o, &a->dout, 1, bm));
    LT_TRY(lt_attn_map(c, &p->k, &a->fwd.k, 1, bn));
    LT_TRY(lt_attn_map(c, &p->v, &a->fwd.v, 1, bn));
    LT_TRY(lt_attn_map(c, &p->dk, &a->dk, 1, 64));
    return lt_attn_map(c, &p->dv, &a->dv, 1, 64);
}
static lt_err products_run(products *p, lt_cuda *c, CUstream s, kernel_bwd_args *w, int n_sms) {
    const int64_t units = p->units * w->pairs, clusters = n_sms / p->cluster;
    void *args[] = {&p->q, &p->k, &p->v, &p->d_o, &p->dk, &p->dv, w};
    return lt_cuda_launch(
        c, s, p->kernel,
        &(lt_cuda_dims){
            .grid = {(unsigned)((units > clusters ? clusters : units) * p->cluster)},
            .block = {384},
            .cluster = {p->cluster > 1 ? (unsigned)p->cluster : 0, p->cluster > 1, p->cluster > 1},
            .dynamic_shared_bytes = p->shared_bytes},
        args);
}

/* dQ by itself, and deltas: bwd_dq_sm90.cu. */
static lt_err dq_run(lt_cuda *c, CUstream s, const lt_attention_bwd_args *a, kernel_bwd_args *w,
                     int n_sms) {
    const int64_t tiles = (int64_t)(w->padded / 128) * w->a.batch * w->a.q_heads;
    const lt_cuda_kernel *kernel;
    CUtensorMap q, k, v, o, d_o;
    void *args[] = {&q, &k, &v, &o, &d_o, w};
    char text[320], flags[256];

    lt_attn_flags(flags, sizeof flags, &a->fwd);
    snprintf(text, sizeof text, "HEAD_DIM=%d %s", width_of(&a->fwd), flags);
    LT_TRY(lt_cuda_kernel_get(c, &kernel, "attention/bwd_dq_sm90.cu", "attn_bwd_dq_sm90", text));
    LT_TRY(lt_attn_map(c, &q, &a->fwd.q, 1, 64));
    LT_TRY(lt_attn_map(c, &d_o, &a->dout, 1, 64));
    LT_TRY(lt_attn_map(c, &k, &a->fwd.k, 1, 128));
    LT_TRY(lt_attn_map(c, &v, &a->fwd.v, 1, 128));
    LT_TRY(lt_attn_map(c, &o, &a->fwd.out, 1, 128));
    return lt_cuda_launch(
        c, s, kernel,
        &(lt_cuda_dims){.grid = {(unsigned)(tiles > n_sms ? n_sms : tiles)},
                        .block = {384},
                        .dynamic_shared_bytes = 1024 + (192 << 10) +
                                                512 /* rings of either width; barriers, tiles */},
        args);
}

static lt_err run_apart(lt_cuda *c, CUstream s, const lt_attention_bwd_args *a, kernel_bwd_args *w,
                        int n_sms) {
    products p;
    LT_TRY(products_open(&p, c, a, true));
    LT_TRY(dq_run(c, s, a, w, n_sms));
    return products_run(&p, c, s, w, n_sms);
}

/* Of bwd_wide_sm90.cu: OF. */
typedef enum { OF_DQ, OF_DK, OF_DV } wide_of;
static lt_err wide_run(lt_cuda *c, CUstream s, const lt_attention_bwd_args *a,
                       const kernel_bwd_args *all, wide_of of, int n_sms) {
    kernel_bwd_args own = *all, *const w = &own;
    const lt_attention_args *f = &a->fwd;
    const lt_tensor *rows[] = {of == OF_DQ ? &f->q : &f->k, of == OF_DQ ? &a->dout : &f->v},
                    *steps[] = {of == OF_DQ ? &f->k : &f->q, of == OF_DQ ? &f->v : &a->dout};
    const size_t side = 128 * (size_t)width_of(f) * 2;
    const int64_t heads = (int64_t)w->a.batch * (of == OF_DQ ? w->a.q_heads : w->a.kv_heads),
                  rows_tiles = of == OF_DQ ? w->padded / 128 : lt_cuda_div_up(w->a.kv_tokens, 128),
                  tiles = rows_tiles * heads, sections = tiles / ((rows_tiles > 4 ? 2 : 1) * n_sms);
    const lt_cuda_kernel *kernel;
    CUtensorMap row_maps[2], step_maps[2];
    void *args[] = {&row_maps[0], &row_maps[1], &step_maps[0], &step_maps[1], w};
    char text[320], flags[256];

    w->a.section = !f->causal ? 1 : (int)(sections > 1 ? lt_cuda_div_up(heads, sections) : heads);
    w->a.counter += 16 * of;
    lt_attn_flags(flags, sizeof flags, f);
    snprintf(text, sizeof text, "HEAD_DIM=%d OF=%d %s", width_of(f), (int)of, flags);
    LT_TRY(
        lt_cuda_kernel_get(c, &kernel, "attention/bwd_wide_sm90.cu", "attn_bwd_wide_sm90", text));
    for (int i = 0; i < 2; i++) {
        LT_TRY(lt_attn_map(c, &row_maps[i], rows[i], 1, 128));
        LT_TRY(lt_attn_map(c, &step_maps[i], steps[i], 1, 64));
    }
    return lt_cuda_launch(
        c, s, kernel,
        &(lt_cuda_dims){
            .grid = {(unsigned)(tiles > n_sms ? n_sms : tiles)},
            .block = {384},
            /* Rows' sides, two stages of one side of a step and one or two of the other; log-sum-exps, deltas; barriers, tiles. */
            .dynamic_shared_bytes = 1024 + (of == OF_DV ? 3 * side : 7 * side / 2) + 1024 + 256},
        args);
}
static lt_err run_wide(lt_cuda *c, CUstream s, const lt_attention_bwd_args *a, kernel_bwd_args *w,
                       int n_sms) {
    const lt_cuda_kernel *rows;
    void *o = a->fwd.out.data, *d_o = a->dout.data;
    strides so = strides_of(&a->fwd.out), sd = strides_of(&a->dout);
    void *args[] = {w, &o, &d_o, &so, &sd};
    CUstream beside[2];
    char text[64];

    edges_text(text, sizeof text, &a->fwd);
    LT_TRY(lt_cuda_kernel_get(c, &rows, "attention/bwd_edges.cu", "attn_bwd_delta", text));
    LT_TRY(lt_cuda_launch(
        c, s, rows,
        &(lt_cuda_dims){.grid = {(unsigned)(w->padded / 8), (unsigned)(w->a.batch * w->a.q_heads)},
                        .block = {256}},
        args));
    for (int i = 0; i < 2;
         i++) { /* Blocks of the next run where those of the one before have no more to do. */
        LT_TRY(lt_cuda_stream_beside(c, &beside[i], s, i));
        LT_TRY(lt_cuda_stream_follow(c, beside[i], s));
    }
    LT_TRY(wide_run(c, s, a, w, OF_DQ, n_sms));
    for (wide_of of = OF_DK; of <= OF_DV; of++) {
        LT_TRY(wide_run(c, beside[of - OF_DK], a, w, of, n_sms));
        LT_TRY(lt_cuda_stream_follow(c, s, beside[of - OF_DK]));
    }
    return LT_OK;
}

static lt_err run_pieces(lt_cuda *c, CUstream s, const lt_attention_bwd_args *a,
                         const kernel_bwd_args *all, const layout *l, int n_sms) {
    const int n_pieces = (int)lt_cuda_div_up(all->pairs, l->pairs);
    char edges[64];
    products p;
    kernel_bwd_args w;

    edges_text(edges, sizeof edges, &a->fwd);
    LT_TRY(products_open(&p, c, a, false));
    LT_TRY(lt_cuda_fill(c, s, all->bounds, 0, (size_t)all->pairs * 8));
    for (int i = 0; i <= n_pieces; i++) {
        CUstream beside = s;
        if (i < n_pieces) {
            w = piece_args(all, l, i);
            LT_TRY(prepare(c, s, a, &w, edges));
            if (n_pieces > 1) {
                LT_TRY(lt_cuda_stream_beside(c, &beside, s, i % 2));
                LT_TRY(lt_cuda_stream_follow(c, beside, s));
            }
            LT_TRY(products_run(&p, c, beside, &w, n_sms));
        }
        if (i > 0) {
            w = piece_args(all, l, i - 1);
            if (n_pieces > 1) {
                LT_TRY(lt_cuda_stream_beside(c, &beside, s, (i - 1) % 2));
                LT_TRY(lt_cuda_stream_follow(c, s, beside));
            }
            LT_TRY(finish(c, s, a, &w, edges));
        }
    }
    return LT_OK;
}

lt_err lt_cuda_attention_bwd(lt_cuda *c, CUstream s, const lt_attention_bwd_args *a,
                             lt_attention_cut cut, lt_scratch scratch) {
    const lt_cuda_info *info = lt_cuda_get_info(c);
    const char *why = lt_cuda_attention_bwd_refusal(a, info);
    const layout l = layout_of(&a->fwd, cut);
    kernel_bwd_args all;
    const size_t need = carve(&all, &a->fwd, &l, (uintptr_t)scratch.data);

    if (why != NULL || scratch.bytes < need) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "attention backward: %s (scratch %zu of %zu bytes)",
                why != NULL ? why : "too little scratch", scratch.bytes, need);
    }
    all.a = lt_attn_args_of(&a->fwd, scratch);
    all.width = (int)a->fwd.q.shape[3];
    all.first = 0;
    all.pairs = all.a.batch * all.a.kv_heads;
    all.dq = a->dq.data, all.dk = a->dk.data, all.dv = a->dv.data;
    all.dq_strides = strides_of(&a->dq);
    all.dk_strides = strides_of(&a->dk), all.dv_strides = strides_of(&a->dv);
    LT_TRY(width_of(&a->fwd) > 128 ? run_wide(c, s, a, &all, info->n_sms)
           : cut.apart             ? run_apart(c, s, a, &all, info->n_sms)
                                   : run_pieces(c, s, a, &all, &l, info->n_sms));
    return finish_sinks(c, s, a, &all);
}
