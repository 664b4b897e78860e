/* tune.c: `lateen tune sgemm`: try every tile, remember the fastest.
 *
 * The file: <cache>/sgemm-<GPU's name>.tune, one line per shape class:
 *     m n k copy | tm tn lanes_m warps_m warps_n stages blocks_per_sm group_m unroll keep_order
 *     cluster parts tflops
 * The class is m, n, k rounded up to powers of two. The file is read once a process and kept; a
 * malformed line is skipped, and a tile that the device refuses is not used. Writers replace the
 * whole file (write another file, rename). */
#include "kernels/cuda/sgemm/tune.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/thread.h"
#include "kernels/cuda/compile.h"
#include "kernels/cuda/random_args.h"
#include "kernels/cuda/timing.h"

#define MAX_ROWS       512
#define MAX_TILES      2048
#define FILE_BYTES_MAX ((size_t)1 << 20)
#define N_FINALISTS    8 /* Tiles; each is tried with every way to share K. */
/* cluster, parts. */
static const int ways[][2] = {{1, 1}, {1, 2}, {1, 4}, {1, 8}, {2, 1}, {2, 2}};
#define N_WAYS ((int)(sizeof ways / sizeof *ways))

typedef struct {
    int m, n, k, copy;
    lt_sgemm_tile tile;
    double tflops;
} tune_row;

static struct {
    pthread_mutex_t lock;
    bool read;
    char gpu[128];
    int n_rows;
    tune_row rows[MAX_ROWS];
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int class_of(int n) {
    int c = 16;
    while (c < n && c < (1 << 30)) {
        c *= 2;
    }
    return c;
}

static lt_err tune_path(char path[LT_PATH_BYTES], const char *gpu) {
    char dir[LT_PATH_BYTES], name[192];
    LT_TRY(lt_cache_dir(dir));
    snprintf(name, sizeof name, "sgemm-%s.tune", gpu);
    for (char *p = name; *p != '\0'; p++) {
        *p = *p == ' ' || *p == '/' ? '_' : *p;
    }
    return lt_path_join(path, dir, name);
}

/* The caller holds the lock. */
static void rows_read(const char *gpu) {
    char path[LT_PATH_BYTES], *text = NULL;
    size_t bytes;
    if (memory.read && strcmp(memory.gpu, gpu) == 0) {
        return;
    }
    memory.read = true;
    memory.n_rows = 0;
    snprintf(memory.gpu, sizeof memory.gpu, "%s", gpu);
    if (tune_path(path, gpu) != LT_OK || !lt_file_exists(path) ||
        lt_file_read(&text, &bytes, path, FILE_BYTES_MAX) != LT_OK) {
        return;
    }
    for (char *line = text; line != NULL && *line != '\0' && memory.n_rows < MAX_ROWS;
         line = (line = strchr(line, '\n')) == NULL ? NULL : line + 1) {
        tune_row r;
        int keep;
        lt_sgemm_tile *t = &r.tile;
        if (sscanf(line, "%d %d %d %d | %d %d %d %d %d %d %d %d %d %d %d %d %lf", &r.m, &r.n, &r.k,
                   &r.copy, &t->tm, &t->tn, &t->lanes_m, &t->warps_m, &t->warps_n, &t->stages,
                   &t->blocks_per_sm, &t->group_m, &t->unroll, &keep, &t->cluster, &t->parts,
                   &r.tflops) == 17 &&
            r.copy >= 0 && r.copy <= 2 && t->group_m > 0 && t->lanes_m > 0) {
            t->copy = (lt_sgemm_copy)r.copy;
            t->keep_order = keep != 0;
            memory.rows[memory.n_rows++] = r;
        }
    }
    free(text);
}

static tune_row *row_find(int m, int n, int k, int copy) {
    for (int i = 0; i < memory.n_rows; i++) {
        tune_row *r = &memory.rows[i];
        if (r->m == class_of(m) && r->n == class_of(n) && r->k == class_of(k) && r->copy == copy) {
            return r;
        }
    }
    return NULL;
}

bool lt_sgemm_tune_find(lt_cuda *c, const lt_sgemm_args *a, lt_sgemm_copy copy,
                        lt_sgemm_tile *out) {
    const lt_cuda_info *info = lt_cuda_get_info(c);
    const tune_row *r;
    bool found;
    pthread_mutex_lock(&memory.lock);
    rows_read(info->name);
    r = row_find(a->m, a->n, a->k, (int)copy);
    found = r != NULL && lt_sgemm_tile_refusal(&r->tile, info) == NULL &&
            lt_sgemm_tile_shares(&r->tile, a, info);
    if (found) {
        *out = r->tile;
    }
    pthread_mutex_unlock(&memory.lock);
    return found;
}

static lt_err rows_write(void) {
    char path[LT_PATH_BYTES];
    char *text = malloc(MAX_ROWS * 160);
    size_t used = 0;
    lt_err err;
    if (text == NULL) {
        LT_FAIL(LT_ERR_OOM, "tune file");
    }
    for (int i = 0; i < memory.n_rows; i++) {
        const tune_row *r = &memory.rows[i];
        const lt_sgemm_tile *t = &r->tile;
        used += (size_t)snprintf(text + used, MAX_ROWS * 160 - used,
                                 "%d %d %d %d | %d %d %d %d %d %d %d %d %d %d %d %d %.2f\n", r->m,
                                 r->n, r->k, r->copy, t->tm, t->tn, t->lanes_m, t->warps_m,
                                 t->warps_n, t->stages, t->blocks_per_sm, t->group_m, t->unroll,
                                 t->keep_order, t->cluster, t->parts, r->tflops);
    }
    err = tune_path(path, memory.gpu);
    err = err == LT_OK ? lt_file_write_atomic(path, text, used) : err;
    free(text);
    return err;
}

static lt_err winner_keep(lt_cuda *c, int m, int n, int k, const lt_sgemm_tile *t, double tflops) {
    lt_err err = LT_OK;
    tune_row *r;
    pthread_mutex_lock(&memory.lock);
    memory.read = false; /* Another process may have written it since. */
    rows_read(lt_cuda_get_info(c)->name);
    r = row_find(m, n, k, (int)t->copy);
    if (r == NULL && memory.n_rows == MAX_ROWS) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "tune file: more than %d shape classes", MAX_ROWS);
    }
    r = r != NULL ? r : &memory.rows[memory.n_rows++];
    *r = (tune_row){class_of(m), class_of(n), class_of(k), (int)t->copy, *t, tflops};
    err = rows_write();
done:
    pthread_mutex_unlock(&memory.lock);
    return err;
}

/* ---- The search ---- */

static const int tile_sides[] = {4, 8, 12, 16}, warp_sides[] = {1, 2, 4};

typedef struct {
    lt_cuda *gpu;
    const char *arch;
    lt_sgemm_args args;
    lt_sgemm_tile tile;
    char text[256];
} candidate;

typedef struct {
    const char *why;
    int count;
} refusal_count;

static void refusal_note(refusal_count *counts, const char *why) {
    int i = 0;
    while (counts[i].why != NULL && strcmp(counts[i].why, why) != 0) {
        i++;
    }
    counts[i].why = why;
    counts[i].count++;
}

/* Every combination that the device does not refuse, at most max. */
static int space_fill(candidate *out, int max, const lt_cuda_info *info, const lt_sgemm_args *a,
                      refusal_count *counts) {
    const lt_sgemm_copy copy = lt_sgemm_copy_allowed(a, info);
    /* Eight tiles of 64 x 128 per SM. */
    const bool large = (double)a->m * a->n > 8192.0 * 8.0 * info->n_sms;
    int n = 0;
    for (int v = 0; v < 4 * 4 * 2 * 3 * 3 * 3 * 3 * 2 * 3; v++) { /* A counter in mixed radix. */
        int x = v;
        lt_sgemm_tile t = {.group_m = 8, .copy = copy, .cluster = 1, .parts = 1};
        const char *why;
        t.tm = tile_sides[x % 4], x /= 4;
        t.tn = tile_sides[x % 4], x /= 4;
        t.lanes_m = 4 << x % 2, x /= 2;
        t.warps_m = warp_sides[x % 3], x /= 3;
        t.warps_n = warp_sides[x % 3], x /= 3;
        t.stages = 2 + x % 3, x /= 3;
        t.blocks_per_sm = 1 << x % 3, x /= 3;
        t.keep_order = x % 2 != 0, x /= 2;
        t.unroll = 2 << x % 3;
        t.unroll = t.unroll == 2 ? 1 : t.unroll;
        why = lt_sgemm_tile_refusal(&t, info);
        if (why == NULL && lt_sgemm_tile_threads(&t) * t.blocks_per_sm < 256) {
            why = "fewer than 8 warps an SM: nothing hides latency";
        }
        if (why == NULL && t.tm * t.tn < (large ? 64 : 32)) {
            why = large ? "a register tile under 64 sums: reads would bind"
                        : "a register tile under 32 sums: reads would bind";
        }
        if (why == NULL && !t.keep_order && t.unroll != 1) {
            why = "unrolled further only with the products in order";
        }
        if (why != NULL) {
            refusal_note(counts, why);
        } else if (n < max) {
            out[n].tile = t;
            lt_sgemm_tile_text(out[n].text, &t);
            n++;
        }
    }
    return n;
}

static void compile_one(void *ctx, size_t i) {
    candidate *c = &((candidate *)ctx)[i];
    lt_cubin cubin = {0};
    if (lt_cubin_get(&cubin, "sgemm/sgemm.cu", c->text, c->arch) != LT_OK) {
        return; /* It fails again when the tuning run loads it, and is left out there. */
    }
    lt_cubin_close(&cubin);
}

static lt_err queue_one(void *ctx, CUstream s, int set) {
    candidate *c = ctx;
    (void)set;
    return lt_sgemm_with(c->gpu, s, &c->args, &c->tile);
}

typedef struct {
    double ms;
    int index;
} place;

static int place_compare(const void *a, const void *b) {
    const double x = ((const place *)a)->ms, y = ((const place *)b)->ms;
    return (x > y) - (x < y);
}

/* The finalists: the first tiles of `places`, each with every way to share K that fits. */
static int finalists_fill(candidate *out, const candidate *all, const place *places, int n_places,
                          const lt_cuda_info *info) {
    int n = 0;
    for (int i = 0; i < n_places && i < N_FINALISTS; i++) {
        for (int w = 0; w < N_WAYS; w++) {
            candidate x = all[places[i].index];
            x.tile.cluster = ways[w][0];
            x.tile.parts = ways[w][1];
            if (lt_sgemm_tile_refusal(&x.tile, info) == NULL &&
                lt_sgemm_tile_shares(&x.tile, &x.args, info)) {
                lt_sgemm_tile_text(x.text, &x.tile);
                out[n++] = x;
            }
        }
    }
    return n;
}

/* One quick run of each, then runs of the finalists in turn. */
static lt_err race(lt_cuda *c, CUstream s, candidate *all, int n, double seconds_max,
                   candidate *finalists, lt_timing *finals, int *n_finals) {
    lt_err err = LT_OK;
    const double start_s = lt_clock_s();
    place *places = calloc((size_t)n, sizeof *places);
    int n_run = 0;
    if (places == NULL) {
        LT_FAIL(LT_ERR_OOM, "tuner");
    }
    for (int i = 0; i < n && lt_clock_s() - start_s < seconds_max; i++) {
        lt_timing one = {.name = all[i].text, .queue = queue_one, .ctx = &all[i]};
        LT_TRY_DONE(lt_timing_run(c, s, &one, 1,
                                  &(lt_timing_plan){.n_sets = 1, .rounds = 1, .inner_ms = 0.5}));
        if (one.err == LT_OK) {
            places[n_run++] = (place){one.ms, i};
        }
    }
    qsort(places, (size_t)n_run, sizeof *places, place_compare);
    *n_finals = finalists_fill(finalists, all, places, n_run, lt_cuda_get_info(c));
    lt_parallel_for((size_t)*n_finals, compile_one, finalists);
    for (int i = 0; i < *n_finals; i++) {
        finals[i] = (lt_timing){
            .name = finalists[i].text, .queue = queue_one, .ctx = &finalists[i]};
    }
    LT_TRY_DONE(lt_timing_run(c, s, finals, *n_finals,
                              &(lt_timing_plan){.n_sets = 1, .rounds = 9, .inner_ms = 1.0}));
done:
    free(places);
    return err;
}

static lt_err operands_make(lt_cuda *c, lt_sgemm_args *a) {
    void *x = NULL, *y = NULL, *z = NULL;
    const lt_cuda_kernel *k;
    int64_t nx = (int64_t)a->m * a->k, ny = (int64_t)a->k * a->n;
    LT_TRY(lt_cuda_alloc(c, &x, (size_t)nx * 4, "tuner: A"));
    a->a = x;
    LT_TRY(lt_cuda_alloc(c, &y, (size_t)ny * 4, "tuner: B"));
    a->b = y;
    LT_TRY(lt_cuda_alloc(c, &z, (size_t)a->m * (size_t)a->n * 4, "tuner: C"));
    a->c = z;
    LT_TRY(lt_sgemm_workspace_open(c, &a->workspace));
    lt_cuda_random_fill_args to_x = {.x = x, .n = nx, .seed = 1, .scale = 1.0f},
                             to_y = {.x = y, .n = ny, .seed = 2, .scale = 1.0f};
    void *args_x[] = {&to_x}, *args_y[] = {&to_y};
    LT_TRY(lt_cuda_kernel_get(c, &k, "random.cu", "random_fill", "DTYPE=fp32 MODE=0"));
    LT_TRY(lt_cuda_launch(c, NULL, k, &(lt_cuda_dims){.grid = {512}, .block = {256}}, args_x));
    LT_TRY(lt_cuda_launch(c, NULL, k, &(lt_cuda_dims){.grid = {512}, .block = {256}}, args_y));
    return lt_cuda_sync(c, NULL);
}

lt_err lt_sgemm_tune(FILE *to, lt_cuda *c, int m, int n, int k, double seconds_max) {
    lt_err err = LT_OK;
    const lt_cuda_info *info = lt_cuda_get_info(c);
    const double flops = 2.0 * m * (double)n * k, start_s = lt_clock_s();
    candidate *all = calloc(MAX_TILES + N_FINALISTS * N_WAYS, sizeof *all);
    refusal_count counts[16] = {{0}};
    lt_timing finals[N_FINALISTS * N_WAYS];
    CUstream s = NULL;
    lt_sgemm_args a = {.m = m, .n = n, .k = k, .lda = k, .ldb = n, .ldc = n, .alpha = 1.0f};
    int n_all, n_finals = 0, best = 0;

    if (all == NULL) {
        LT_FAIL(LT_ERR_OOM, "tuner");
    }
    LT_TRY_DONE(lt_cuda_stream_open(c, &s, false));
    LT_TRY_DONE(operands_make(c, &a));
    n_all = space_fill(all, MAX_TILES, info, &a, counts);
    for (int i = 0; i < n_all; i++) {
        all[i].gpu = c, all[i].arch = info->arch, all[i].args = a;
    }
    fprintf(to, "sgemm %d x %d x %d on %s: %d tiles to try; refused before compiling:\n", m, n, k,
            info->name, n_all);
    for (int i = 0; counts[i].why != NULL; i++) {
        fprintf(to, "  %4d  %s\n", counts[i].count, counts[i].why);
    }
    lt_parallel_for((size_t)n_all, compile_one, all);
    fprintf(to, "compiled in %.1f s\n", lt_clock_s() - start_s);
    LT_TRY_DONE(race(c, s, all, n_all, seconds_max, all + MAX_TILES, finals, &n_finals));
    for (int i = 0; i < n_finals; i++) {
        if (finals[i].err != LT_OK) {
            continue;
        }
        best = finals[best].err != LT_OK || finals[i].ms < finals[best].ms ? i : best;
        fprintf(to, "%8.2f TFLOP/s  %s\n", flops / finals[i].ms / 1e9, finals[i].name);
    }
    if (n_finals > 0 && finals[best].err == LT_OK) {
        const candidate *won = finals[best].ctx;
        LT_TRY_DONE(winner_keep(c, m, n, k, &won->tile, flops / finals[best].ms / 1e9));
        fprintf(to, "kept for %d x %d x %d: %s, %.1f s in all\n", class_of(m), class_of(n),
                class_of(k), won->text, lt_clock_s() - start_s);
    }
done:
    lt_cuda_stream_close(c, s);
    lt_cuda_free(c, (void *)(uintptr_t)a.a);
    lt_cuda_free(c, (void *)(uintptr_t)a.b);
    lt_cuda_free(c, a.c);
    lt_cuda_free(c, a.workspace);
    free(all);
    return err;
}
