/* gemm.c: matrix products of any size, layout and dtype, by packing (Goto & van de Geijn 2008,
 * doi:10.1145/1356052.1356053).
 *
 * BLOCKS   k is cut into nearly equal steps of at most K_STEP. In a step, threads take blocks of
 *          columns of y whose part of b, packed as panels of LT_TILE_COLS columns [k][column],
 *          fills less than half of L2. The thread that takes a block packs it and multiplies chunks
 *          of rows with it: b is packed once, stays in L2, and no thread waits for it. A thread
 *          without a block packs that of another thread again and helps with its chunks.
 * ROWS     a is read where it lies if it is F32 and its rows run along k: a tile takes its rows as
 *          scalars, so there is nothing to transpose; the next panel's rows are fetched into L2
 *          meanwhile. BF16 and F16 rows are widened first. Where rows run across k (weight
 *          gradients), a is packed as panels of LT_TILE_ROWS rows [k][row], several panels at a
 *          time, because they lie side by side: by all threads before the step or, where one block
 *          has all columns, by each thread just before it uses them (own_a). M is divided evenly
 *          among panels (1024 rows: 62 panels of 14 and 12 of 13), so no panel is nearly empty.
 * LAYOUT   Transpositions of b are undone while packing, by VEC x VEC transposes in registers, so
 *          NN, NT, TN and TT run alike.
 * BF16     On CPUs where a BF16 dot product is no faster than F32 multiply-adds (Intel without AMX:
 *          half as fast, measured), widening in the pack and multiplying in F32 is both faster and
 *          more exact than VDPBF16PS. Where it is twice as fast (AMD), gemm_pairs.c builds this
 *          file once more with GEMM_PAIRS: a "float" of a panel is then a pair of BF16 neighbours
 *          in k, and every k here counts pairs.
 * ORDER    Every element of y is one chain of multiply-adds over k within a step, and steps add in
 *          order: no dependence on threads or on M, N.
 * REJECTED Packing of both operands by all threads before each step: both went to the last-level
 *          cache and back (docs/speed/cpu.md). */
#include <omp.h>
#include <stdatomic.h>

#include "base/error.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/pack.h"
#include "kernels/cpu/isa/tile.h"
#include "kernels/cpu/scratch.h"

#define K_STEP         800
#define BLOCK_BYTES    (800 << 10)  /* Bytes of a block of b. */
#define OWN_BYTES      (1280 << 10) /* Bytes of all of b, if each thread packs a itself. */
#define MAX_ROWS       2048         /* Rows of a that are packed at a time. */
#define CHUNK_PANELS   8
#define HELP_MIN_TURNS 3 /* Number of chunks that justifies packing a block again. */
#ifdef GEMM_PAIRS
#define GEMM_NAME LT_ISA_NAME(lt_cpu_matmul_pairs)
#define PACK      pack_pairs
#define MUL       tile_mul_pairs
#else
#define GEMM_NAME LT_ISA_NAME(lt_cpu_matmul)
#define PACK      pack_panel
#define MUL       tile_mul
#endif
#define NR     LT_TILE_COLS
#define MAX_MR LT_TILE_ROWS
#define A_ROW  ((MAX_MR + VEC - 1) / VEC * VEC) /* Floats from k to k + 1 in a panel of a. */

typedef enum {
    A_IN_PLACE, /* F32 rows along k, read in place, */
    A_WIDENED,  /* or first copied as F32. */
    A_PACKED,   /* Panels, packed by all threads before the step, */
    A_OWN       /* or by each thread as it needs them. */
} a_kind;

typedef struct {
    const lt_matmul_args *args;
    int64_t m, n, k;
    /* Memory of unfinished F32 sums: y itself, or scratch if y is BF16. Its row stride is
     * sums_row. */
    float *sums;
    int64_t sums_row;
    a_kind kind;
    float *packed_a, *packed_b;        /* packed_b: one block per thread. */
    int64_t a_row;                     /* Floats from one row to the next if rows run along k. */
    int64_t fetch_step;                /* Bytes of the next panel of a to prefetch per step of k. */
    int64_t row, n_rows, n_row_panels; /* The current rows, in chunks; */
    int64_t n_chunks;
    int64_t n_col_panels, n_blocks, block_panels; /* the blocks of columns; */
    int64_t at, depth;                            /* the current step of k. */
    _Atomic int *turns; /* The next chunk of each block and, after all chunks, the next block. */
    bool plain;         /* y is F32, and so is the bias, if any. */
} gemm;

/* First row of a row panel among the current rows; of panel + 1: one past its last. */
static int64_t panel_row(const gemm *g, int64_t panel) {
    return panel * g->n_rows / g->n_row_panels;
}

/* Pack panels [p0, p1) of a to dst. Whole vectors are read, so the matrix's last panel is packed
 * separately. */
static void pack_a(const gemm *g, int64_t p0, int64_t p1, float *dst) {
    const lt_tensor *a = &g->args->a;
    int64_t p = p0;
#ifndef GEMM_PAIRS
    int64_t from[CHUNK_PANELS];
    for (; g->args->trans_a && p < p1 && g->row + panel_row(g, p) + A_ROW <= g->m; p++) {
        from[p - p0] = panel_row(g, p) - panel_row(g, p0);
    }
    pack_panels_along(dst, A_ROW, from, p - p0, a, g->row + panel_row(g, p0), g->at, g->depth);
#endif
    for (; p < p1; p++) {
        const int64_t first = panel_row(g, p);
        PACK(dst + (p - p0) * A_ROW * g->depth, A_ROW, a, !g->args->trans_a, g->row + first,
             panel_row(g, p + 1) - first, g->at, g->depth);
    }
}

/* Panels of b [p0, p1), at most MAX_BLOCK of them, to dst. */
static void pack_b(const gemm *g, int64_t p0, int64_t p1, float *dst) {
    const lt_tensor *b = &g->args->b;
    int64_t p = p0;
#ifndef GEMM_PAIRS
    while (!g->args->trans_b && p < p1 && (p + 1) * NR <= g->n) {
        int64_t from[CHUNK_PANELS], n = 0;
        for (; n < CHUNK_PANELS && p + n < p1 && (p + n + 1) * NR <= g->n; n++) {
            from[n] = n * NR;
        }
        pack_panels_along(dst + (p - p0) * NR * g->depth, NR, from, n, b, p * NR, g->at, g->depth);
        p += n;
    }
#endif
    for (; p < p1; p++) {
        const int64_t cols = g->n - p * NR < NR ? g->n - p * NR : NR;
        PACK(dst + (p - p0) * NR * g->depth, NR, b, g->args->trans_b, p * NR, cols, g->at,
             g->depth);
    }
}

/* A chunk's rows of a, widened. */
static void widen_a(const gemm *g, int64_t first, int64_t last) {
    const lt_tensor *a = &g->args->a;
    for (int64_t r = first; r < last; r++) {
        const int64_t from = (g->row + r) * a->stride[0] + g->at;
        float *dst = g->packed_a + r * g->a_row;
        if (a->dtype == LT_BF16) {
            widen_row(dst, a->data, LT_BF16, from, g->depth);
        } else {
            widen_row(dst, a->data, LT_F16, from, g->depth);
        }
    }
}

/* Add a tile's sums to y if there are earlier ones (an earlier step, or accumulate); after the last
 * step, add the bias and convert to y's dtype. */
LT_INLINE void store_tile(const gemm *g, const lt_tile *t, int64_t mr, int64_t row, int64_t col,
                          int64_t n) {
    const lt_matmul_args *a = g->args;
    const bool first = g->at == 0;
    const bool last = g->at + g->depth == g->k;
    for (int64_t i = 0; i < mr; i++) {
        for (int64_t j = 0; j < 2 && j * VEC < n; j++) {
            const int64_t lanes = n - j * VEC < VEC ? n - j * VEC : VEC;
            const int64_t y_at = (row + i) * a->y.stride[0] + col + j * VEC;
            float *sum = g->sums + (row + i) * g->sums_row + col + j * VEC;
            vf x = t->v[i][j];
            if (!first) {
                x += lanes == VEC ? v_load(sum) : v_load_n(sum, lanes);
            } else if (a->accumulate) {
                x += v_load_as_n(a->y.data, a->y.dtype, y_at, lanes);
            }
            if (!last) {
                v_store_n(sum, x, lanes);
                continue;
            }
            if (a->bias.data != NULL) {
                x += v_load_as_n(a->bias.data, a->bias.dtype, col + j * VEC, lanes);
            }
            v_store_as_n(a->y.data, a->y.dtype, y_at, x, lanes);
        }
    }
}

/* store_tile if y and the bias are F32 and the tile is whole, as most tiles of a training step
 * are. */
LT_INLINE void store_whole(const gemm *g, lt_tile *t, const int mr, int64_t row, int64_t col) {
    const float *bias = g->args->bias.data;
    float *const y = g->sums + row * g->sums_row + col;
    if (g->at > 0 || g->args->accumulate) {
#pragma GCC unroll 16
        for (int i = 0; i < mr; i++) {
            t->v[i][0] = v_load(y + i * g->sums_row) + t->v[i][0];
            t->v[i][1] = v_load(y + i * g->sums_row + VEC) + t->v[i][1];
        }
    }
    if (bias != NULL && g->at + g->depth == g->k) {
        const vf b0 = v_load(bias + col);
        const vf b1 = v_load(bias + col + VEC);
#pragma GCC unroll 16
        for (int i = 0; i < mr; i++) {
            t->v[i][0] += b0;
            t->v[i][1] += b1;
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < mr; i++) {
        v_store(y + i * g->sums_row, t->v[i][0]);
        v_store(y + i * g->sums_row + VEC, t->v[i][1]);
    }
}

/* Position of a tile: its rows among the current ones, its columns, its column panel in the block,
 * and whether another row panel follows. */
typedef struct {
    int64_t row, col, in_block;
    int mr;
    bool more;
} place;

/* Multiply and store; mul leaves its sums in t. There are two versions, so that the sums of the
 * first stay in registers. */
#define TILE_RUN(mul)                                                                              \
    const int64_t cols = g->n - at->col;                                                           \
    if (cols >= NR && g->plain) {                                                                  \
        lt_tile t;                                                                                 \
        LT_TILE_SWITCH(at->mr, mul; store_whole(g, &t, MR, g->row + at->row, at->col));            \
        return;                                                                                    \
    }                                                                                              \
    lt_tile t;                                                                                     \
    LT_TILE_SWITCH(at->mr, mul);                                                                   \
    store_tile(g, &t, at->mr, g->row + at->row, at->col, cols < NR ? cols : NR);

#ifndef GEMM_PAIRS
/* A tile of rows that run along k. Meanwhile it prefetches two rows of the next panel; the block's
 * other tiles prefetch the others. */
static void run_tile_rows(const gemm *g, const place *at, const float *b) {
    const float *a = g->kind == A_WIDENED
                         ? g->packed_a + at->row * g->a_row
                         : (const float *)g->args->a.data + (g->row + at->row) * g->a_row + g->at;
    const bool fetch = at->more && 2 * at->in_block < at->mr;
    const char *next = (const char *)(fetch ? a + (at->mr + 2 * at->in_block) * g->a_row : a);
    const int64_t next_row = fetch ? g->a_row * (int64_t)sizeof(float) : 0;
    TILE_RUN(tile_mul_rows(&t, MR, g->depth, a, g->a_row, b, NR, next, next_row))
}
#endif

/* A tile of a packed panel. The block's tiles prefetch the next panel, fetch_step bytes per
 * step. */
static void run_tile_packed(const gemm *g, const place *at, const float *a, const float *b) {
    const char *next = (const char *)(a + A_ROW * g->depth) +
                       at->in_block * g->fetch_step * g->depth;
    TILE_RUN(MUL(&t, MR, g->depth, a, 1, A_ROW, b, NR, next, g->fetch_step))
}

/* Prefetch the tile of y, which is not in the cache, while its products are computed. */
LT_INLINE void fetch_sums(const gemm *g, const place *at) {
    const float *y = g->sums + (g->row + at->row) * g->sums_row + at->col;
    for (int i = 0; i < at->mr; i++) {
        __builtin_prefetch(y, 1, 3);
        __builtin_prefetch(y + VEC, 1, 3);
        y += g->sums_row;
    }
}

/* A chunk of rows with the columns [c0, c1), packed in own. */
static void run_chunk(const gemm *g, int64_t chunk, int64_t c0, int64_t c1, float *own) {
    const int64_t r0 = chunk * g->n_row_panels / g->n_chunks;
    const int64_t r1 = (chunk + 1) * g->n_row_panels / g->n_chunks;
    const float *a = g->packed_a + r0 * A_ROW * g->depth;
    if (g->kind == A_OWN) {
        pack_a(g, r0, r1, own + g->block_panels * NR * g->depth);
        a = own + g->block_panels * NR * g->depth;
    }
    for (int64_t r = r0; r < r1; r++) {
        place at = {.row = panel_row(g, r), .more = r + 1 < g->n_row_panels};
        at.mr = (int)(panel_row(g, r + 1) - at.row);
        for (int64_t c = c0; c < c1; c++) {
            const float *b = own + (c - c0) * NR * g->depth;
            at.col = c * NR;
            at.in_block = c - c0;
            fetch_sums(g, &at);
#ifndef GEMM_PAIRS
            if (g->kind == A_IN_PLACE || g->kind == A_WIDENED) {
                run_tile_rows(g, &at, b);
                continue;
            }
#endif
            run_tile_packed(g, &at, a, b);
        }
        a += A_ROW * g->depth;
    }
}

static int64_t take_turn(_Atomic int *turn) {
    return atomic_fetch_add_explicit(turn, 1, memory_order_relaxed);
}

/* Take chunks of a block until none is left. */
static void run_block(const gemm *g, int64_t block, float *own) {
    const int64_t c0 = block * g->n_col_panels / g->n_blocks;
    const int64_t c1 = (block + 1) * g->n_col_panels / g->n_blocks;
    bool packed = false;
    for (int64_t chunk = take_turn(&g->turns[block]); chunk < g->n_chunks;
         chunk = take_turn(&g->turns[block])) {
        if (!packed) {
            pack_b(g, c0, c1, own);
            packed = true;
        }
        run_chunk(g, chunk, c0, c1, own);
    }
}

/* A thread's part of a step: blocks that no thread has begun, then chunks of other threads'
 * blocks. */
static void run_blocks(const gemm *g, float *own) {
    for (int64_t block = take_turn(&g->turns[g->n_blocks]); block < g->n_blocks;
         block = take_turn(&g->turns[g->n_blocks])) {
        run_block(g, block, own);
    }
    for (int64_t block = g->n_blocks - 1; block >= 0; block--) {
        const int turn = atomic_load_explicit(&g->turns[block], memory_order_relaxed);
        if (g->n_chunks - turn >= HELP_MIN_TURNS || g->n_blocks == 1) {
            run_block(g, block, own);
        }
    }
}

/* One step of k over the present rows. */
static void run_step(const gemm *g) {
    const bool before = g->kind == A_PACKED || g->kind == A_WIDENED;
    const bool parallel = g->n_rows * g->n * g->depth > 1 << 16;
    const int64_t own_floats =
        (g->block_panels * NR + (g->kind == A_OWN ? CHUNK_PANELS * A_ROW : 0)) * g->depth;
    for (int64_t i = 0; i <= g->n_blocks; i++) {
        atomic_store_explicit(&g->turns[i], 0, memory_order_relaxed);
    }
#pragma omp parallel if (parallel)
    {
        if (before) {
#pragma omp for schedule(dynamic, 1)
            for (int64_t i = 0; i < g->n_chunks; i++) {
                const int64_t p0 = i * g->n_row_panels / g->n_chunks;
                const int64_t p1 = (i + 1) * g->n_row_panels / g->n_chunks;
                if (g->kind == A_WIDENED) {
                    widen_a(g, panel_row(g, p0), panel_row(g, p1));
                } else {
                    pack_a(g, p0, p1, g->packed_a + p0 * A_ROW * g->depth);
                }
            }
        }
        run_blocks(g, g->packed_b + omp_get_thread_num() * own_floats);
    }
}

/* Decide how a is read, and how many blocks the columns make. */
static void gemm_plan(gemm *g, int64_t threads) {
    const lt_matmul_args *a = g->args;
    const int64_t panel_bytes = NR * g->depth * (int64_t)sizeof(float);
    int64_t fit = panel_bytes > 0 ? BLOCK_BYTES / panel_bytes : 1;
    g->a_row = a->a.stride[0];
    g->kind = A_PACKED;
#ifndef GEMM_PAIRS
    if (!a->trans_a) {
        g->kind = a->a.dtype == LT_F32 ? A_IN_PLACE : A_WIDENED;
    }
    if (g->kind == A_WIDENED) { /* Not a multiple of 4 KB, where rows would share cache sets. */
        g->a_row = (g->depth + VEC - 1) / VEC * VEC + 16;
    }
#endif
    if (g->kind == A_PACKED && g->m > 4 * g->n && g->n_col_panels * panel_bytes <= OWN_BYTES) {
        g->kind = A_OWN;
        g->n_blocks = 1;
        g->block_panels = g->n_col_panels;
        return;
    }
    fit = fit > 1 ? fit : 1;
    g->n_blocks = (g->n_col_panels + fit - 1) / fit;
    g->n_blocks = (g->n_blocks + threads - 1) / threads * threads;
    g->n_blocks = g->n_blocks < g->n_col_panels ? g->n_blocks : g->n_col_panels;
    g->block_panels = g->n_blocks > 0 ? (g->n_col_panels + g->n_blocks - 1) / g->n_blocks : 1;
}

static lt_err gemm_open(gemm *g, const lt_matmul_args *a) {
    *g = (gemm){.args = a, .m = a->y.shape[0], .n = a->y.shape[1]};
    g->k = a->trans_a ? a->a.shape[0] : a->a.shape[1];
#ifdef GEMM_PAIRS
    g->k /= 2;
#endif
    const int64_t steps = (g->k + K_STEP - 1) / K_STEP;
    const int64_t threads = omp_get_max_threads();
    g->depth = steps > 0 ? (g->k + steps - 1) / steps : 0;
    g->n_col_panels = (g->n + NR - 1) / NR;
    gemm_plan(g, threads);
    g->fetch_step = A_ROW * (int64_t)sizeof(float) / g->block_panels;
    g->plain = a->y.dtype == LT_F32 && (a->bias.data == NULL || a->bias.dtype == LT_F32);
    g->sums = a->y.data;
    g->sums_row = a->y.stride[0];
    const int64_t rows = g->m < MAX_ROWS ? g->m : MAX_ROWS;
    const int64_t a_floats = g->kind == A_PACKED    ? (rows / MAX_MR + 2) * A_ROW * g->depth
                             : g->kind == A_WIDENED ? rows * g->a_row
                                                    : 0;
    const int64_t own = g->block_panels * NR + (g->kind == A_OWN ? CHUNK_PANELS * A_ROW : 0);
    LT_TRY(lt_cpu_scratch(&g->packed_a, LT_CPU_SLOT_A, (size_t)a_floats * sizeof(float)));
    LT_TRY(lt_cpu_scratch(&g->packed_b, LT_CPU_SLOT_B,
                          (size_t)(threads * own * g->depth) * sizeof(float)));
    LT_TRY(
        lt_cpu_scratch(&g->turns, LT_CPU_SLOT_TURNS, (size_t)(g->n_blocks + 1) * sizeof *g->turns));
    if (a->y.dtype != LT_F32 && steps > 1) {
        LT_TRY(lt_cpu_scratch(&g->sums, LT_CPU_SLOT_C, (size_t)(g->m * g->n) * sizeof(float)));
        g->sums_row = g->n;
    }
    return LT_OK;
}

lt_err GEMM_NAME(lt_queue *q, const void *args) {
    gemm g;
    (void)q;
    LT_TRY(gemm_open(&g, args));
    const int64_t step = g.depth;
    const int64_t rows = g.kind == A_PACKED || g.kind == A_WIDENED ? MAX_ROWS : g.m;
    for (g.at = 0; g.at < g.k; g.at += step) {
        g.depth = g.k - g.at < step ? g.k - g.at : step;
        for (g.row = 0; g.row < g.m; g.row += rows) {
            g.n_rows = g.m - g.row < rows ? g.m - g.row : rows;
            g.n_row_panels = (g.n_rows + MAX_MR - 1) / MAX_MR;
            g.n_chunks = (g.n_row_panels + CHUNK_PANELS - 1) / CHUNK_PANELS;
            run_step(&g);
        }
    }
    return LT_OK;
}
