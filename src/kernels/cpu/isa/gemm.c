/* gemm.c: matrix products of any size, layout and dtype, by packing (Goto & van de Geijn 2008, doi:10.1145/1356052.1356053).
 *
 * BLOCKS   y is cut into blocks of at most MAX_ROWS x MAX_COLS, k into nearly equal steps of at most K_STEP. For each step all threads
 *          first pack: a into panels of LT_TILE_ROWS rows [k][row], b into panels of LT_TILE_COLS columns [k][column], both F32 whatever the
 *          inputs are. Then they take tasks of TASK_ROWS x TASK_COLS of y and run tile_mul (tile.h) over their panels.
 * CACHE    A task's share of a (8 panels x 800 k: 400 KB) stays in L2 while panels of b (100 KB) pass; the next panel of b and the tile of y are fetched ahead.
 *          Where y has few rows (flat), a panel of b is packed by the thread that uses it, at once; where y is tall, tasks write along its rows.
 * LAYOUT   Every transposition is undone while packing, by VEC x VEC transposes in registers, so NN, NT, TN and TT run alike.
 * BF16     On CPUs where a BF16 dot product is no faster than F32 multiply-adds (Intel without AMX: half as fast, measured), widening in the pack
 *          and multiplying in F32 is both faster and more exact than VDPBF16PS. Where it is twice as fast (AMD), gemm_pairs.c builds this file once
 *          more with GEMM_PAIRS: a "float" of a panel is then a pair of BF16 neighbours in k, and every k here counts pairs.
 * ORDER    Every element of y is one chain of multiply-adds over k within a step, and steps add in order: no dependence on threads or on M, N.
 * ROWS     M is dealt evenly over panels (1024 rows: 62 panels of 14 and 12 of 13), so no panel is nearly empty. */
#include <omp.h>

#include "base/error.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/pack.h"
#include "kernels/cpu/isa/tile.h"
#include "kernels/cpu/scratch.h"

#define MAX_ROWS 2048
#define MAX_COLS 3072
#ifndef K_STEP
#define K_STEP 800
#endif
#ifndef TASK_ROWS
#define TASK_ROWS 8 /* panels */
#endif
#ifndef TASK_COLS
#define TASK_COLS 8 /* panels */
#endif
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
#ifndef FLAT_PANELS
#define FLAT_PANELS 24
#endif

typedef struct {
    const lt_matmul_args *args;
    int64_t m, n, k;
    float *
        sums; /* Where unfinished F32 sums live: y itself, or scratch when y is BF16; row stride sums_row. */
    int64_t sums_row;
    float *packed_a, *packed_b;
    int64_t row, n_rows, n_row_panels; /* The present block of rows, */
    int64_t col, n_cols, n_col_panels; /* of columns, */
    int64_t at, depth;                 /* and step of k. */
    bool flat;  /* y has few rows: panels of b are packed where they are used. */
    bool tall;  /* y has few columns. */
    bool plain; /* y is F32 without bias. */
} gemm;

/* First row (or with panel + 1: one past the last) of a row panel in the block. */
static int64_t panel_row(const gemm *g, int64_t panel) {
    return panel * g->n_rows / g->n_row_panels;
}

static void pack_a_panel(const gemm *g, int64_t panel) {
    const int64_t first = panel_row(g, panel);
    PACK(g->packed_a + panel * A_ROW * g->depth, A_ROW, &g->args->a, !g->args->trans_a,
         g->row + first, panel_row(g, panel + 1) - first, g->at, g->depth);
}

static void pack_b_panel(const gemm *g, int64_t panel) {
    const int64_t first = panel * NR;
    const int64_t cols = g->n_cols - first < NR ? g->n_cols - first : NR;
    PACK(g->packed_b + panel * NR * g->depth, NR, &g->args->b, g->args->trans_b, g->col + first,
         cols, g->at, g->depth);
}

/* Sums of a tile into y: onto what is there (an earlier step or accumulate), and with the bias and in y's dtype after the last step. */
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

/* store_tile where y is F32, the tile whole and no bias due: most tiles of a training step. */
LT_INLINE void store_whole(const gemm *g, const lt_tile *t, const int mr, int64_t at) {
    float *y = g->sums + at;
    if (g->at > 0 || g->args->accumulate) {
#pragma GCC unroll 16
        for (int i = 0; i < mr; i++) {
            v_store(y, v_load(y) + t->v[i][0]);
            v_store(y + VEC, v_load(y + VEC) + t->v[i][1]);
            y += g->sums_row;
        }
        return;
    }
#pragma GCC unroll 16
    for (int i = 0; i < mr; i++) {
        v_store(y, t->v[i][0]);
        v_store(y + VEC, t->v[i][1]);
        y += g->sums_row;
    }
}

/* A packed panel of b, and what to fetch into L2 while it is used, a step of k at a time. */
typedef struct {
    const float *at;
    const char *next;
    int64_t next_step;
} panel_b;

static void run_tile(const gemm *g, int64_t row_panel, int64_t col_panel, const panel_b *b) {
    const int64_t first = panel_row(g, row_panel);
    const int mr = (int)(panel_row(g, row_panel + 1) - first);
    const float *a = g->packed_a + row_panel * A_ROW * g->depth;
    const int64_t cols = g->n_cols - col_panel * NR;
    lt_tile t;
    /* The tile of y comes from far while its products are computed. */
    const int64_t y_at = (g->row + first) * g->sums_row + g->col + col_panel * NR;
    for (int i = 0; i < mr; i++) {
        __builtin_prefetch(g->sums + y_at + i * g->sums_row, 1, 3);
        __builtin_prefetch(g->sums + y_at + i * g->sums_row + VEC, 1, 3);
    }
    if (cols >= NR && g->plain) {
        LT_TILE_SWITCH(mr, MUL(&t, MR, g->depth, a, 1, A_ROW, b->at, NR, b->next, b->next_step);
                       store_whole(g, &t, MR, y_at));
        return;
    }
    LT_TILE_SWITCH(mr, MUL(&t, MR, g->depth, a, 1, A_ROW, b->at, NR, b->next, b->next_step));
    store_tile(g, &t, mr, g->row + first, g->col + col_panel * NR, cols < NR ? cols : NR);
}

/* The tiles of a task: a panel of b against all row panels, or, where y is tall and b's panels stay in L2, the other way round, which writes
 * y along its rows. */
static void run_task(const gemm *g, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    if (g->tall) {
        for (int64_t r = r0; r < r1; r++) {
            for (int64_t c = c0; c < c1; c++) {
                const panel_b b = {g->packed_b + c * NR * g->depth, NULL, 0};
                run_tile(g, r, c, &b);
            }
        }
        return;
    }
    for (int64_t c = c0; c < c1; c++) { /* The next panel comes spread over this one's tiles. */
        const float *at = g->packed_b + c * NR * g->depth;
        panel_b b = {at, (const char *)(at + NR * g->depth),
                     NR * (int64_t)sizeof(float) / (r1 - r0)};
        for (int64_t r = r0; r < r1; r++) {
            run_tile(g, r, c, &b);
            b.next += g->depth * b.next_step;
        }
    }
}

/* Where y has few rows: pack a panel of b into this thread's own place and use it at once, while it is in L1 or L2; the first tiles fetch the
 * source of the panel after it. */
static void run_column(const gemm *g, int64_t col_panel, float *own) {
    const lt_tensor *t = &g->args->b;
    const int64_t first = g->col + col_panel * NR;
    const int64_t cols = g->n_cols - col_panel * NR;
    const int64_t row_bytes = t->stride[0] * (t->dtype == LT_F32 ? 4 : 2);
    const bool ahead = !g->args->trans_b && t->dtype == LT_F32 && cols >= 2 * NR;
    const char *source = (const char *)t->data + g->at * row_bytes +
                         (first + NR) * (int64_t)sizeof(float);
    PACK(own, NR, t, g->args->trans_b, first, cols < NR ? cols : NR, g->at, g->depth);
    for (int64_t r = 0; r < g->n_row_panels; r++) {
        const bool fetch = ahead && r * 64 < NR * (int64_t)sizeof(float);
        const panel_b b = {own, fetch ? source + r * 64 : (const char *)own, fetch ? row_bytes : 0};
        run_tile(g, r, col_panel, &b);
    }
}

/* One step of k over one block of y: pack, then multiply. */
static void run_step(const gemm *g, bool pack_b) {
    const int64_t tasks_down = (g->n_row_panels + TASK_ROWS - 1) / TASK_ROWS;
    const int64_t tasks_across = (g->n_col_panels + TASK_COLS - 1) / TASK_COLS;
    const int64_t n_tasks = g->flat ? g->n_col_panels : tasks_down * tasks_across;
    const int64_t n_b = pack_b && !g->flat ? g->n_col_panels : 0;
    const bool parallel = g->n_rows * g->n_cols * g->depth > 1 << 16;
#pragma omp parallel if (parallel)
    {
#pragma omp for schedule(dynamic, 4)
        for (int64_t i = 0; i < n_b + g->n_row_panels; i++) {
            if (i < n_b) {
                pack_b_panel(g, i);
            } else {
                pack_a_panel(g, i - n_b);
            }
        }
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t task = 0; task < n_tasks; task++) {
            if (g->flat) {
                run_column(g, task, g->packed_b + omp_get_thread_num() * NR * g->depth);
                continue;
            }
            const int64_t r0 = task % tasks_down * g->n_row_panels / tasks_down;
            const int64_t r1 = (task % tasks_down + 1) * g->n_row_panels / tasks_down;
            const int64_t c0 = task / tasks_down * g->n_col_panels / tasks_across;
            const int64_t c1 = (task / tasks_down + 1) * g->n_col_panels / tasks_across;
            run_task(g, r0, r1, c0, c1);
        }
    }
}

static lt_err gemm_open(gemm *g, const lt_matmul_args *a) {
    *g = (gemm){.args = a, .m = a->y.shape[0], .n = a->y.shape[1]};
    g->k = a->trans_a ? a->a.shape[0] : a->a.shape[1];
#ifdef GEMM_PAIRS
    g->k /= 2;
#endif
    const int64_t steps = (g->k + K_STEP - 1) / K_STEP;
    const int64_t depth = steps > 0 ? (g->k + steps - 1) / steps : 0;
    const int64_t rows = ((g->m < MAX_ROWS ? g->m : MAX_ROWS) + 2 * MAX_MR) * A_ROW / MAX_MR;
    const int64_t cols = g->flat ? omp_get_max_threads() * NR
                                 : (g->n < MAX_COLS ? g->n : MAX_COLS) + NR;
    g->depth = depth;
    g->plain = a->y.dtype == LT_F32 && a->bias.data == NULL;
    g->flat = g->m <= FLAT_PANELS * MAX_MR;
    g->sums = a->y.data;
    g->sums_row = a->y.stride[0];
    /* n_panels * A_ROW may exceed the rows of a block by up to one panel. */
    LT_TRY(lt_cpu_scratch(&g->packed_a, LT_CPU_SLOT_A, (size_t)(rows * depth) * sizeof(float)));
    LT_TRY(lt_cpu_scratch(&g->packed_b, LT_CPU_SLOT_B, (size_t)(cols * depth) * sizeof(float)));
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
    for (g.col = 0; g.col < g.n; g.col += MAX_COLS) {
        g.n_cols = g.n - g.col < MAX_COLS ? g.n - g.col : MAX_COLS;
        g.n_col_panels = (g.n_cols + NR - 1) / NR;
        for (g.at = 0; g.at < g.k; g.at += step) {
            g.depth = g.k - g.at < step ? g.k - g.at : step;
            for (g.row = 0; g.row < g.m; g.row += MAX_ROWS) {
                g.n_rows = g.m - g.row < MAX_ROWS ? g.m - g.row : MAX_ROWS;
                g.n_row_panels = (g.n_rows + MAX_MR - 1) / MAX_MR;
                g.tall = g.n_row_panels > 2 * g.n_col_panels && g.n_cols * g.depth <= 1 << 17;
                run_step(&g, g.row == 0);
            }
        }
    }
    return LT_OK;
}
