/* winners.c: see winners.h.
 *
 * The file: <cache>/gemm.tune, one line a product:
 *     gpu m n k layout in out sum bias by bn wg_m consumers cluster stages splits group pingpong
 *     block choice vendor us...
 *     gpu      the GPU's name, blanks as _
 *     layout   op(a) op(b): nt nn tn tt
 *     in, out  bf16 fp16 fp32
 *     sum      1: y += product
 *     bias     none, or its type
 *     by       wgmma cublaslt gemv few
 *     block    1: not persistent, 2: pairs of blocks
 *     choice, vendor, us   as in lt_gemm_winner; without times of kinds that are newer than the
 *     line
 * The same kind of lines in winners.txt are part of the program; they were measured on the GPUs of
 * this project. The file's lines come before them. A malformed line, or one of a tile that does not
 * exist, is skipped. The file is read once a process; writers replace all of it (write another
 * file, rename). */
#include "kernels/cuda/gemm/winners.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "kernels/cuda/compile.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/source.h"

#define MAX_ROWS       2048
#define MAX_SLOTS      (2 * MAX_ROWS) /* A power of two: rows are found by hash. */
#define FILE_BYTES_MAX ((size_t)4 << 20)
#define ROW_BYTES      400

const char *const lt_gemm_by_names[LT_GEMM_BY_COUNT] = {"wgmma", "cublaslt", "gemv", "few"};

/* A product and a GPU, as the line writes them. */
typedef struct {
    char gpu[128];
    int64_t m, n, k;
    char layout[3], in[8], out[8], bias[8];
    int sum;
} row_key;

typedef struct {
    row_key key;
    lt_gemm_winner winner;
    bool shipped; /* The row comes from winners.txt and is not written to the file. */
} row;

static struct {
    bool read;
    int n_rows;
    row rows[MAX_ROWS];
    int slots[MAX_SLOTS]; /* Index + 1 of a row, or 0. */
} table;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* The choice of the tuning thread; other threads choose by the table. */
static _Thread_local const lt_gemm_winner *forced;

static const char *word(lt_dtype dtype) {
    const char *w = lt_cuda_dtype_word(dtype);
    return w != NULL ? w : "none";
}

static void key_of(row_key *out, const lt_cuda_info *info, const lt_gemm_args *a) {
    memset(out, 0, sizeof *out); /* Compared and hashed as bytes. */
    snprintf(out->gpu, sizeof out->gpu, "%s", info->name);
    for (char *p = out->gpu; *p != '\0'; p++) {
        *p = *p == ' ' ? '_' : *p;
    }
    out->m = a->m;
    out->n = a->n;
    out->k = a->k;
    snprintf(out->layout, sizeof out->layout, "%c%c", a->trans_a ? 't' : 'n',
             a->trans_b ? 't' : 'n');
    snprintf(out->in, sizeof out->in, "%s", word(a->in));
    snprintf(out->out, sizeof out->out, "%s", word(a->out));
    snprintf(out->bias, sizeof out->bias, "%s", a->bias != NULL ? word(a->bias_dtype) : "none");
    /* A weight's gradient is stored by the first batch of a step and added to by the others: one
     * row serves both, because reading y costs little compared with K. */
    out->sum = a->accumulate || (a->trans_a && a->out == LT_F32);
}

static uint64_t key_hash(const row_key *key) {
    const unsigned char *bytes = (const unsigned char *)key;
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < sizeof *key; i++) {
        h = (h ^ bytes[i]) * 1099511628211u;
    }
    return h ^ h >> 29;
}

/* The slot of key: its row's, or the free one where it belongs. */
static int *slot_find(const row_key *key) {
    for (size_t i = (size_t)key_hash(key);; i++) {
        int *slot = &table.slots[i % MAX_SLOTS];
        if (*slot == 0 || memcmp(&table.rows[*slot - 1].key, key, sizeof *key) == 0) {
            return slot;
        }
    }
}

static bool row_add(const row *r) {
    int *slot = slot_find(&r->key);
    if (*slot == 0) {
        if (table.n_rows == MAX_ROWS) {
            return false;
        }
        *slot = ++table.n_rows;
    }
    table.rows[*slot - 1] = *r;
    return true;
}

static bool row_parse(row *r, const char *line) {
    char by[16];
    int pingpong, block, n, used = 0, n_us = 0;
    lt_gemm_winner *w = &r->winner;
    lt_gemm_tile *t = &w->tile;

    memset(r, 0, sizeof *r);
    n = sscanf(line, "%127s %ld %ld %ld %2s %7s %7s %d %7s %15s %d %d %d %d %d %d %d %d %d %d %d%n",
               r->key.gpu, &r->key.m, &r->key.n, &r->key.k, r->key.layout, r->key.in, r->key.out,
               &r->key.sum, r->key.bias, by, &t->bn, &t->wg_m, &t->consumers, &t->cluster,
               &t->stages, &t->splits, &t->group, &pingpong, &block, &w->choice, &w->vendor, &used);
    if (n != 21) {
        return false;
    }
    for (line += used; n_us < LT_GEMM_BY_COUNT && *line == ' '; n_us++) {
        char *end;
        w->us[n_us] = strtod(line, &end);
        if (end == line) {
            return false;
        }
        line = end;
    }
    t->pingpong = pingpong != 0;
    t->block_a_tile = block == 1;
    t->pair = block == 2;
    for (w->by = 0; w->by < LT_GEMM_BY_COUNT && strcmp(by, lt_gemm_by_names[w->by]) != 0;) {
        w->by++;
    }
    return n_us >= 1 && (*line == '\n' || *line == '\0') && w->by < LT_GEMM_BY_COUNT &&
           lt_gemm_tile_exists(t) && w->choice >= 0;
}

static void rows_parse(const char *text, bool shipped) {
    row *r = malloc(sizeof *r);
    for (const char *line = text; r != NULL && line != NULL && *line != '\0';
         line = (line = strchr(line, '\n')) == NULL ? NULL : line + 1) {
        if (*line != '#' && row_parse(r, line)) {
            r->shipped = shipped;
            (void)row_add(r);
        }
    }
    free(r);
}

static lt_err tune_path(char path[LT_PATH_BYTES]) {
    char dir[LT_PATH_BYTES];
    LT_TRY(lt_cache_dir(dir));
    return lt_path_join(path, dir, "gemm.tune");
}

/* Called with the lock held. A file that cannot be read counts as missing: the list's rules serve
 * every shape. */
static void rows_read(void) {
    char path[LT_PATH_BYTES], *text = NULL;
    lt_source ours = {0};
    size_t bytes;

    table.read = true;
    table.n_rows = 0;
    memset(table.slots, 0, sizeof table.slots);
    if (lt_source_open(&ours, "gemm/winners.txt") == LT_OK) {
        rows_parse(ours.text[0], true);
        lt_source_close(&ours);
    }
    if (tune_path(path) == LT_OK && lt_file_exists(path) &&
        lt_file_read(&text, &bytes, path, FILE_BYTES_MAX) == LT_OK) {
        rows_parse(text, false);
        free(text);
    }
}

void lt_gemm_winner_force(const lt_gemm_winner *w) {
    forced = w;
}

const lt_gemm_winner *lt_gemm_winner_find(const lt_cuda_info *info, const lt_gemm_args *a) {
    row_key key;
    const lt_gemm_winner *found = NULL;
    if (a->act >= 0 || a->act_bwd >= 0 || a->residual || a->pre != NULL || a->alpha != 1.0f) {
        return NULL;
    }
    if (forced != NULL) {
        return forced;
    }
    key_of(&key, info, a);
    pthread_mutex_lock(&lock);
    if (!table.read) {
        rows_read();
    }
    const int slot = *slot_find(&key);
    found = slot != 0 ? &table.rows[slot - 1].winner : NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

static lt_err rows_write(const char *path) {
    char *text = malloc((size_t)MAX_ROWS * ROW_BYTES);
    size_t used = 0;
    lt_err err;

    if (text == NULL) {
        LT_FAIL(LT_ERR_OOM, "tune file");
    }
    for (int i = 0; i < table.n_rows; i++) {
        const row_key *k = &table.rows[i].key;
        const lt_gemm_winner *w = &table.rows[i].winner;
        const lt_gemm_tile *t = &w->tile;
        if (table.rows[i].shipped) {
            continue;
        }
        used += (size_t)snprintf(text + used, ROW_BYTES,
                                 "%s %ld %ld %ld %s %s %s %d %s %s %d %d %d %d %d %d %d %d %d %d "
                                 "%d %.2f %.2f %.2f %.2f\n",
                                 k->gpu, k->m, k->n, k->k, k->layout, k->in, k->out, k->sum,
                                 k->bias, lt_gemm_by_names[w->by], t->bn, t->wg_m, t->consumers,
                                 t->cluster, t->stages, t->splits, t->group, t->pingpong,
                                 t->pair ? 2 : t->block_a_tile, w->choice, w->vendor, w->us[0],
                                 w->us[1], w->us[2], w->us[3]);
    }
    err = lt_file_write_atomic(path, text, used);
    free(text);
    return err;
}

lt_err lt_gemm_winner_keep(const lt_cuda_info *info, const lt_gemm_args *a,
                           const lt_gemm_winner *w) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    row r = {.winner = *w};

    LT_TRY(tune_path(path));
    key_of(&r.key, info, a);
    pthread_mutex_lock(&lock);
    rows_read(); /* Another process may have written since. */
    if (!row_add(&r)) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "%s: more than %d products", path, MAX_ROWS);
    }
    err = rows_write(path);
done:
    pthread_mutex_unlock(&lock);
    return err;
}
